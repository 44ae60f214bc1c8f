/* sample_job.h - one request for samples: what the options say, the prompt as tokens, where it ends.
 *
 * Thread safety: one thread at a time. */
#ifndef CLI_SAMPLE_JOB_H
#define CLI_SAMPLE_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/extra/stream.h>
#include <tinker/sampling.h>
#include "base/arena.h"
#include "cli/args/opt.h"
#include "cli/sample/prompt_model.h"
#include "json/json.h"

#define SAMPLE_NO_SEED INT64_MIN
enum { SAMPLE_MAX_NUM = 1024 };

/* How tokens are chosen; a line of a batch may change it. */
struct sample_params {
    int64_t n, topk_prompt;
    tinker_sampling_params how; /* seed SAMPLE_NO_SEED: none; stops are those of the job */
    bool prompt_logprobs, no_default_stop;
    struct opt_list stop, stop_tokens;
};

struct sample_job {
    struct sample_params params;
    const struct prompt_model *text; /* borrowed */
    const char *system;              /* before a prompt of text, NULL: none */
    tinker_tokens prompt;
    int32_t *stop_tokens;
    const char **stop_strings;
    size_t n_stop;
    int64_t start_ns;
};

void sample_job_init(struct sample_job *j, const struct prompt_model *text,
                     const struct sample_params *params);
void sample_job_clear(struct sample_job *j);

/* The prompt: text, as one user message where there is a chat format; a conversation in JSON; token
 * ids are appended to j->prompt.  TINKER_EINVAL says what is wrong. */
tinker_status sample_job_set_text(struct sample_job *j, const char *text, size_t n,
                                  tinker_error *err);
tinker_status sample_job_set_messages(struct sample_job *j, const char *json, size_t n,
                                      tinker_error *err);
/* After the parameters are final: the user's stops, else those of the chat format. */
tinker_status sample_job_set_stops(struct sample_job *j, tinker_error *err);

/* Send it.  on_event NULL: no stream. */
tinker_future *sample_job_submit(struct sample_job *j, tinker_sampler *s,
                                 tinker_stream_event_fn *on_event, void *state, tinker_error *err);

/* ---- results ---------------------------------------------------------------------------------- */

/* "stop" or "length". */
const char *sample_stop_name(tinker_stop_reason reason);
/* The text of a sequence, without control tokens unless raw. */
tinker_status sample_decode(const struct sample_job *j, const tinker_sequence *s, bool raw,
                            tinker_text *out, tinker_error *err);
/* The members "sequences", "prompt_logprobs", "topk_prompt_logprobs" and "usage" of a result. */
tinker_status sample_put_result(struct json_writer *w, const struct sample_job *j, bool raw,
                                const tinker_sample *s, tinker_error *err);

#endif
