/* training.h - drive one LoRA model that is being trained by the service.
 *
 * A tinker_training belongs to the tinker_service that created it and must be
 * freed first.  Submit calls never wait for the network: they queue the request
 * and return a future.  Requests of one training client take effect in the
 * order in which their submit calls returned. */
#ifndef TINKER_TRAINING_H
#define TINKER_TRAINING_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Create a LoRA adapter on base_model and wait until the service has it, at most
 * timeout_ms.  lora NULL: rank 32, all modules.  Returns NULL with *err set.  Blocks. */
TINKER_API tinker_training *tinker_service_create_lora(tinker_service *s, const char *base_model,
                                                       const tinker_lora *lora, int64_t timeout_ms,
                                                       tinker_error *err);
/* The same without waiting; tinker_future_take_training() of the future gives the client. */
TINKER_API tinker_future *tinker_service_request_lora(tinker_service *s, const char *base_model,
                                                      const tinker_lora *lora, tinker_error *err);
/* Does not unload the model.  No other call on the object may be in progress. */
TINKER_API void tinker_training_free(tinker_training *t);
/* Borrowed until free, for example "6ee3…:train:0". */
TINKER_API const char *tinker_training_model_id(const tinker_training *t);

/* Accumulate gradients for data[0..n) under `loss`.
 * The data is encoded before the call returns and may be freed or reused.
 * Returns a new future (free with tinker_future_free()) with a
 * tinker_future_forward_backward() result, or NULL with *err set: TINKER_EINVAL for an
 * empty or malformed batch, TINKER_ENOMEM.  Network failures arrive in the future. */
TINKER_API tinker_future *tinker_training_forward_backward(tinker_training *t,
                                                           const tinker_datum *data, size_t n,
                                                           const tinker_loss *loss,
                                                           tinker_error *err);
/* The same without gradients. */
TINKER_API tinker_future *tinker_training_forward(tinker_training *t, const tinker_datum *data,
                                                  size_t n, const tinker_loss *loss,
                                                  tinker_error *err);
/* Apply the accumulated gradient; adam NULL: defaults.  Result: tinker_future_metrics(). */
TINKER_API tinker_future *tinker_training_optim_step(tinker_training *t, const tinker_adam *adam,
                                                     tinker_error *err);

typedef struct tinker_save_options {
    size_t size;         /* set by TINKER_SAVE_OPTIONS_INIT */
    int64_t ttl_seconds; /* 0: keep for ever */
    int overwrite;       /* training state only */
} tinker_save_options;
#define TINKER_SAVE_OPTIONS_INIT { sizeof(tinker_save_options), 0, 0 }

/* Save weights and optimizer under `name`.  Result: tinker_future_path(). */
TINKER_API tinker_future *tinker_training_save_state(tinker_training *t, const char *name,
                                                     const tinker_save_options *opts,
                                                     tinker_error *err);
/* Save weights to sample from under `name`.  Result: tinker_future_path(). */
TINKER_API tinker_future *tinker_training_save_for_sampler(tinker_training *t, const char *name,
                                                           const tinker_save_options *opts,
                                                           tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
