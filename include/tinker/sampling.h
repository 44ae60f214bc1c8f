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

/* Open a sampler on a base model, or on saved weights ("tinker://…/sampler_weights/…");
 * exactly one of the two is not NULL.  Blocks, at most timeout_ms. */
TINKER_API tinker_sampler *tinker_service_create_sampler(tinker_service *s, const char *base_model,
                                                         const char *model_path, int64_t timeout_ms,
                                                         tinker_error *err);
/* Save the current weights without a name and open a sampler on them.  Blocks. */
TINKER_API tinker_sampler *tinker_training_create_sampler(tinker_training *t, int64_t timeout_ms,
                                                          tinker_error *err);
/* No other call on the object may be in progress. */
TINKER_API void tinker_sampler_free(tinker_sampler *s);
/* Borrowed until free. */
TINKER_API const char *tinker_sampler_id(const tinker_sampler *s);

typedef struct tinker_sample_options {
    size_t size; /* set by TINKER_SAMPLE_OPTIONS_INIT */
    size_t num_samples;
    int prompt_logprobs;
    size_t topk_prompt_logprobs;
} tinker_sample_options;
#define TINKER_SAMPLE_OPTIONS_INIT { sizeof(tinker_sample_options), 1, 0, 0 }

/* Sample continuations of `prompt`, which is encoded before the call returns.
 * params and opts may be NULL.  Result: tinker_future_sample(). */
TINKER_API tinker_future *tinker_sampler_sample(tinker_sampler *s, const tinker_model_input *prompt,
                                                const tinker_sampling_params *params,
                                                const tinker_sample_options *opts,
                                                tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
