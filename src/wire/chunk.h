/* chunk.h - one event of a streamed sample: a token, the end of a sequence, or a failure.
 *
 *     {"index":3,"sequence":0,"token_id":17,"token":" a","logprob":-0.25}
 *     {..., "topk_logprobs":[[17,-0.25],[4,-1.5]]}   if they were asked for
 *     {"sequence":0,"finish_reason":"stop","total_tokens":4}
 *     {"error":"the adapter is gone"}
 *
 * The stream ends with the data "[DONE]", which is no JSON. */
#ifndef WIRE_CHUNK_H
#define WIRE_CHUNK_H

#include <tinker/data.h>
#include "base/buf.h"
#include "json/json.h"

#define WIRE_STREAM_DONE "[DONE]"

enum wire_chunk_kind { WIRE_CHUNK_TOKEN, WIRE_CHUNK_FINISHED, WIRE_CHUNK_FAILED };

struct wire_sample_chunk {
    enum wire_chunk_kind kind;
    int64_t sequence;
    int64_t index; /* TOKEN: its place in the sequence */
    int32_t token; /* TOKEN */
    float logprob; /* TOKEN; NaN: not given */
    /* TOKEN: the likeliest tokens at this position; in the arena after reading. */
    const int32_t *topk_tokens;
    const float *topk_logprobs;
    size_t topk;
    const char *text; /* TOKEN: characters that are complete with it; FAILED: why */
    size_t n_text;
    tinker_stop_reason stop_reason; /* FINISHED */
    int64_t total;                  /* FINISHED: tokens of the sequence */
};

void wire_put_chunk(struct buf *out, const struct wire_sample_chunk *c);
/* TINKER_EPROTOCOL for anything but these three kinds. text refers to json or to the arena, so it
 * is valid as long as both are. */
tinker_status wire_read_chunk(const char *json, size_t n, struct arena *arena,
                              struct wire_sample_chunk *out, tinker_error *err);

#endif
