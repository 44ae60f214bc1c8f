/* chunk.c - see chunk.h. */
#include "wire/chunk.h"

#include <math.h>
#include <string.h>
#include "base/err.h"
#include "wire/topk.h"

/* One event of a streamed sample, as a JSON object on one line: server-sent events end a field with
 * a line break, so there may be none inside. */
void wire_put_chunk(struct buf *out, const struct wire_sample_chunk *c)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    switch (c->kind) {
    case WIRE_CHUNK_TOKEN:
        json_put_key(&w, "index");
        json_put_int64(&w, c->index);
        json_put_key(&w, "sequence");
        json_put_int64(&w, c->sequence);
        json_put_key(&w, "token_id");
        json_put_int64(&w, c->token);
        json_put_key(&w, "token");
        /* Empty while a UTF-8 character is split over tokens: JSON cannot carry half of one, so the
         * token that completes it brings all of its bytes. */
        json_put_string_n(&w, c->text ? c->text : "", c->text ? c->n_text : 0);
        /* JSON has no NaN: a logprob that was not computed is left out. */
        if (isfinite(c->logprob)) {
            json_put_key(&w, "logprob");
            json_put_float(&w, c->logprob);
        }
        if (!c->topk)
            break;
        json_put_key(&w, "topk_logprobs"); /* pairs, up to the first unused cell */
        json_put_begin_array(&w);
        for (size_t i = 0; i < c->topk && c->topk_logprobs[i] > TOPK_UNUSED; i++) {
            json_put_begin_array(&w);
            json_put_int64(&w, c->topk_tokens[i]);
            json_put_float(&w, c->topk_logprobs[i]);
            json_put_end_array(&w);
        }
        json_put_end_array(&w);
        break;
    case WIRE_CHUNK_FINISHED:
        json_put_key(&w, "sequence");
        json_put_int64(&w, c->sequence);
        json_put_key(&w, "finish_reason");
        json_put_string(&w, c->stop_reason == TINKER_STOP_STOP ? "stop" : "length");
        json_put_key(&w, "total_tokens");
        json_put_int64(&w, c->total);
        break;
    /* The stream ends with it; tokens that came before are valid. */
    case WIRE_CHUNK_FAILED:
        json_put_key(&w, "error");
        json_put_string_n(&w, c->text, c->n_text);
        break;
    }
    json_put_end_object(&w);
}

/* ---- reading --------------------------------------------------------------------------- */

/* Which members were there; they decide the kind of the chunk. */
struct seen {
    bool token, reason, error, text;
};

/* An error may be an object: its JSON text will do. */
static void read_text(struct json_reader *r, struct wire_sample_chunk *c, bool *seen)
{
    struct json_str s;
    enum json_kind kind = json_peek(r);
    if (kind == JSON_NULL) {
        json_null(r);
    } else if (kind == JSON_STRING ? json_string(r, &s) : json_raw(r, &s)) {
        c->text = s.s;
        c->n_text = s.n;
        *seen = true;
    }
}

/* null counts as absent, so seen stays as it is. */
static bool read_int(struct json_reader *r, int64_t *out, bool *seen)
{
    if (json_peek(r) == JSON_NULL)
        return json_null(r);
    if (!json_int64(r, out))
        return false;
    if (seen)
        *seen = true;
    return true;
}

/* One member; null counts as absent, and a failure stays in the reader. This runs for every token
 * of a stream, so keys are compared directly instead of through a table. */
static void read_member(struct wire_reader *w, struct json_str key, struct wire_sample_chunk *c,
                        int64_t *token, struct seen *seen)
{
    struct json_reader *r = &w->json;
    const struct wire_place place = { .name = "topk_logprobs" };
    struct json_str reason;
    double logprob;
    bool null = json_peek(r) == JSON_NULL;
    if (json_str_is(key, "token_id"))
        read_int(r, token, &seen->token);
    else if (json_str_is(key, "sequence"))
        read_int(r, &c->sequence, NULL);
    else if (json_str_is(key, "index"))
        read_int(r, &c->index, NULL);
    else if (json_str_is(key, "total_tokens"))
        read_int(r, &c->total, NULL);
    else if (json_str_is(key, "finish_reason") && !null && json_string(r, &reason)) {
        seen->reason = true;
        /* Every other reason than "stop" means that the length ran out. */
        c->stop_reason = json_str_is(reason, "stop") ? TINKER_STOP_STOP : TINKER_STOP_LENGTH;
    } else if (json_str_is(key, "logprob") && !null && json_double(r, &logprob)) {
        c->logprob = (float)logprob;
    } else if (json_str_is(key, "topk_logprobs")) {
        w->place = &place;
        /* It fails through w, whose status ends the loop of the caller. */
        topk_read_row(w, &c->topk_tokens, &c->topk_logprobs, &c->topk);
        w->place = NULL;
    } else if (json_str_is(key, "error"))
        read_text(r, c, &seen->error);
    /* The text of an error is not overwritten by that of a token. */
    else if (json_str_is(key, "token") && !seen->error)
        read_text(r, c, &seen->text);
    else
        json_skip(r);
}

tinker_status wire_read_chunk(const char *json, size_t n, struct arena *arena,
                              struct wire_sample_chunk *out, tinker_error *err)
{
    /* A wire_reader only for topk_read_row(); the rest goes through its json. */
    struct wire_reader w = { .arena = arena, .mode = WIRE_LENIENT, .err = err };
    struct json_str key;
    struct seen seen = { 0 };
    int64_t token = 0;
    /* NaN: not given. */
    *out = (struct wire_sample_chunk){ .logprob = NAN };
    json_reader_init(&w.json, json, n, arena);
    /* Members in any order: which kind of event it is follows when all were read. */
    if (json_begin_object(&w.json))
        while (w.status == TINKER_OK && json_next_key(&w.json, &key))
            read_member(&w, key, out, &token, &seen);
    if (w.status != TINKER_OK)
        /* Only topk_read_row() sets it; its TINKER_EINVAL is about a text of the service. */
        return wire_as_answer(w.status, err);
    if (!json_end(&w.json))
        return err_set(err, TINKER_EPROTOCOL, "an event of the stream is no chunk: %s",
                       json_error(&w.json));
    /* Token ids are int32, as in protobuf; sequence is the index of a sample. */
    if (token < INT32_MIN || token > INT32_MAX || out->sequence < 0)
        return err_set(err, TINKER_EPROTOCOL, "a token or sequence of the stream is out of range");
    out->token = (int32_t)token;
    /* An error beats everything, an end beats a token that came with it. */
    out->kind = seen.error    ? WIRE_CHUNK_FAILED
                : seen.reason ? WIRE_CHUNK_FINISHED
                              : WIRE_CHUNK_TOKEN;
    if (!seen.error && !seen.reason && !seen.token)
        return err_set(err, TINKER_EPROTOCOL, "an event of the stream has neither token nor end");
    return TINKER_OK;
}
