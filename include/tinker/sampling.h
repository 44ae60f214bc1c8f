/* sampling.h - sample from a base model or from saved weights.
 *
 * A tinker_sampler belongs to the tinker_service that created it and must be freed
 * first. */
#ifndef TINKER_SAMPLING_H
#define TINKER_SAMPLING_H

#include <tinker/service.h>
#include <tinker/training.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the samples of one sampler are tried again.  Every field has its default in
 * TINKER_RETRY_OPTIONS_INIT. */
typedef struct tinker_retry_options {
    size_t size;           /* set by TINKER_RETRY_OPTIONS_INIT */
    int max_connections;   /* samples under way: 1000 for the service's own number, or fewer */
    int64_t progress_ms;   /* without any sample completing: taken for stuck */
    int64_t delay_base_ms; /* after the first failure; doubles each time */
    int64_t delay_max_ms;
    double jitter;   /* share by which a delay varies, 0 to 1 */
    int max_retries; /* -1: no limit */
    int no_retries;  /* 1: a single attempt */
    int no_stuck_detection;
} tinker_retry_options;
#define TINKER_RETRY_OPTIONS_INIT                                               \
    {                                                                           \
        sizeof(tinker_retry_options), 1000, 7200000, 500, 10000, 0.25, -1, 0, 0 \
    }

/* Call fn(attempt, err, state) until it succeeds, and wait between the calls as a sampler does between
 * samples; attempt counts from 0.  It ends with an error that is not retryable, after max_retries,
 * or progress_ms after the first call.  opts NULL: the defaults.  Blocks. */
typedef tinker_status tinker_retry_fn(int attempt, tinker_error *err, void *state);
TINKER_API tinker_status tinker_retry(tinker_retry_fn *fn, void *state,
                                      const tinker_retry_options *opts, tinker_error *err);

/* Open a sampler on a base model, or on saved weights ("tinker://…/sampler_weights/…");
 * at least one of the two is not NULL, and both must agree.  Blocks, at most timeout_ms. */
TINKER_API tinker_sampler *tinker_service_create_sampler(tinker_service *s, const char *base_model,
                                                         const char *model_path, int64_t timeout_ms,
                                                         tinker_error *err);
/* Save the current weights without a name and open a sampler on them.  Blocks. */
TINKER_API tinker_sampler *tinker_training_create_sampler(tinker_training *t, int64_t timeout_ms,
                                                          tinker_error *err);
/* The same without waiting; tinker_future_take_sampler() of the future gives the client. */
TINKER_API tinker_future *tinker_service_request_sampler(tinker_service *s, const char *base_model,
                                                         const char *model_path, tinker_error *err);
TINKER_API tinker_future *tinker_training_request_sampler(tinker_training *t, tinker_error *err);
/* No other call on the object may be in progress. */
TINKER_API void tinker_sampler_free(tinker_sampler *s);
/* Borrowed until free. */
TINKER_API const char *tinker_sampler_id(const tinker_sampler *s);

/* Ask the service for the name of the model that is sampled from.  Result:
 * tinker_future_base_model(). */
TINKER_API tinker_future *tinker_sampler_get_base_model(tinker_sampler *s, tinker_error *err);

/* The tokenizer of that model, from the files of this machine; as
 * tinker_training_create_tokenizer(). */
TINKER_API tinker_tokenizer *tinker_sampler_create_tokenizer(tinker_sampler *s,
                                                             const tinker_tokenizer_options *opts,
                                                             int64_t timeout_ms, tinker_error *err);

/* The same without waiting; as tinker_training_request_tokenizer(). */
TINKER_API tinker_future *tinker_sampler_request_tokenizer(tinker_sampler *s,
                                                           const tinker_tokenizer_options *opts,
                                                           tinker_error *err);

/* Append everything another process needs to use this sampler to *out: a text that holds the
 * credential, so treat it as a secret.  Clear it with tinker_text_clear().  TINKER_ESTATE in a
 * callback of the library or after fork(), TINKER_ENOMEM; *out is then as it was. */
TINKER_API tinker_status tinker_sampler_export(tinker_sampler *s, tinker_text *out,
                                               tinker_error *err);
/* A sampler from such a text, or from a handle of the official SDK, which takes the key of s.  Opens
 * no session and sends nothing; the service keeps the
 * session alive as long as one of the processes does.  s gives the settings that are not
 * in the text (log, proxies, timeouts). */
TINKER_API tinker_sampler *tinker_service_import_sampler(tinker_service *s, const char *text,
                                                         tinker_error *err);

/* The same in the form of the official SDK, whose SamplingClient.from_sampler_handle() and
 * get_sampler_handle() read and write it; tinker_service_import_sampler() does, too.  It holds no
 * credential: whoever reads it uses a key of its own. */
TINKER_API tinker_status tinker_sampler_export_handle(tinker_sampler *s, tinker_text *out,
                                                      tinker_error *err);

/* on: the service records what the loss "stable_reinforce" needs of later samples of this sampler;
 * 0, the default: it does not.  Exported with the sampler. */
TINKER_API void tinker_sampler_record_stability_info(tinker_sampler *s, int on);

typedef struct tinker_sample_options {
    size_t size; /* set by TINKER_SAMPLE_OPTIONS_INIT */
    size_t num_samples;
    int prompt_logprobs;
    size_t topk_prompt_logprobs;
    size_t topk_sample_logprobs;   /* the likeliest tokens at each sampled position */
    size_t prompt_logprobs_last_n; /* only of the last tokens of the prompt; 0: of all */
    /* Tokens whose logprobs to tell at positions of the prompt: integers, dense or sparse, of
     * shape (tokens of the prompt - 1, k).  Row i is about token i + 1 of the prompt, and -1 asks
     * for nothing.  NULL: none. */
    const tinker_tensor *target_prompt_logprobs;
    size_t prompt_alt_tokens_k; /* tokens to draw in place of each of the prompt but the first */
} tinker_sample_options;
#define TINKER_SAMPLE_OPTIONS_INIT                            \
    {                                                         \
        sizeof(tinker_sample_options), 1, 0, 0, 0, 0, NULL, 0 \
    }

/* Sample continuations of `prompt`, which is encoded before the call returns, as is what opts
 * point to.  params and opts may be NULL.  Result: tinker_future_sample(). */
TINKER_API tinker_future *tinker_sampler_sample(tinker_sampler *s, const tinker_model_input *prompt,
                                                const tinker_sampling_params *params,
                                                const tinker_sample_options *opts,
                                                tinker_error *err);

/* Logprobs of the tokens of `prompt` itself: prompt_logprobs of tinker_future_sample(),
 * NaN for the first. */
TINKER_API tinker_future *tinker_sampler_compute_logprobs(tinker_sampler *s,
                                                          const tinker_model_input *prompt,
                                                          tinker_error *err);

/* ---- token by token --------------------------------------------------------------------- */

typedef enum tinker_stream_kind {
    TINKER_STREAM_TOKEN = 0,
    TINKER_STREAM_FINISHED, /* this sequence is complete */
    TINKER_STREAM_END       /* all are */
} tinker_stream_kind;

typedef struct tinker_stream_event {
    tinker_stream_kind kind;
    size_t sequence;                /* which of num_samples */
    int32_t token;                  /* TOKEN */
    float logprob;                  /* TOKEN; NaN: none */
    tinker_stop_reason stop_reason; /* FINISHED */
    /* TOKEN: the likeliest tokens at this position, if topk_sample_logprobs asked for them.
     * Borrowed until the callback returns, or until the next tinker_stream_next(). */
    const int32_t *topk_tokens;
    const float *topk_logprobs;
    size_t topk;
} tinker_stream_event;

/* Called for every token and every complete sequence (never with TINKER_STREAM_END), on the
 * callback thread (see future.h), in order; it may submit but not wait.  A value other than 0 ends
 * the sample.  Not called after tinker_future_free() has returned. */
typedef int tinker_stream_event_fn(const tinker_stream_event *event, void *state);

/* Sample as tinker_sampler_sample() does, with the same tokens for the same seed, and report each
 * token as it arrives.  The future completes after the last event, and tinker_future_sample() has
 * all tokens.  Streams are a feature of `tinker serve`; with the hosted service, and when opts ask
 * for logprobs or tokens of the prompt, which no stream carries, all events are reported when the
 * sample is complete, sequence by sequence.  If the callback ends the sample, the future fails
 * with TINKER_ECANCELED.  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM.
 * <tinker/extra/stream.h> has a form without a callback. */
TINKER_API tinker_future *tinker_sampler_sample_stream(tinker_sampler *s,
                                                       const tinker_model_input *prompt,
                                                       const tinker_sampling_params *params,
                                                       const tinker_sample_options *opts,
                                                       tinker_stream_event_fn *on_event,
                                                       void *state, tinker_error *err);

/* ---- in a process of their own ---------------------------------------------------------- */

/* With subprocess_sampling of tinker_service_options, samples and logprobs are made by a helper
 * process, one for all samplers of this one, which also keeps their sessions alive: they go on while
 * a debugger or a signal has stopped the program.  Results are the same.  The helper is started by
 * the first sample, and it ends when its last sampler is freed or this process ends.  When it dies,
 * the samples under way and all later ones of its samplers fail with TINKER_ESTATE, and samplers that
 * are made afterwards get a new one.
 *
 * What it does is not counted in the metrics, told to hooks or known to tinker_future_response().
 * Streams, calls with tinker_call_options and services with a transport or a breaker of their own
 * stay in this process.
 *
 * The helper is `tinker sampling-helper`, or another program (sampling_helper) whose main() calls
 * this when its first argument is "sampling-helper", and ends with the result: 0 when the program
 * that started it is gone, 2 when none did.  Blocks. */
TINKER_API int tinker_sampling_helper(void);

/* Change how later samples of this sampler are tried again; NULL: the defaults.
 * TINKER_EINVAL names a value that makes no sense. */
TINKER_API tinker_status tinker_sampler_set_retry(tinker_sampler *s,
                                                  const tinker_retry_options *opts,
                                                  tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
