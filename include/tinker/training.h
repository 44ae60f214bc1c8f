/* training.h - drive one LoRA model that is being trained by the service.
 *
 * A tinker_training belongs to the tinker_service that created it and must be
 * freed first.  Submit calls never wait for the network: they queue the request
 * and return a future.  Requests of one training client take effect in the
 * order in which their submit calls returned. */
#ifndef TINKER_TRAINING_H
#define TINKER_TRAINING_H

#include <tinker/service.h>
#include <tinker/tokenizer.h>

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
 * empty or malformed batch, TINKER_ENOMEM.  Network failures arrive in the future.  A loss or a
 * setting of it that this library does not know goes to the service, which may be newer and
 * refuses what it does not know itself: TINKER_EREQUEST or TINKER_EHTTP in the future. */
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

/* The same for a model that was made with another optimizer: see `optimizer` of tinker_lora. */
TINKER_API tinker_future *tinker_training_optimizer_step(tinker_training *t,
                                                         const tinker_optimizer *optimizer,
                                                         tinker_error *err);

typedef struct tinker_save_options {
    size_t size;         /* set by TINKER_SAVE_OPTIONS_INIT */
    int64_t ttl_seconds; /* 0: keep forever */
    int overwrite;       /* training state only */
    /* Kept with the checkpoint (see tinker_checkpoint); not for external weights.  Overwriting
     * replaces all of it. */
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
    /* External weights only: every file is encrypted to these recipients ("age1…" or SSH public
     * keys, at most 10) of age, and its name ends with ".age". */
    const char *const *age_recipients;
    size_t n_age_recipients;
} tinker_save_options;
#define TINKER_SAVE_OPTIONS_INIT                            \
    {                                                       \
        sizeof(tinker_save_options), 0, 0, NULL, 0, NULL, 0 \
    }

/* Save weights and optimizer under `name`.  Result: tinker_future_saved_path().  Here and below: NULL
 * with *err set: TINKER_EINVAL, also for an option that such a checkpoint does not have,
 * TINKER_ENOMEM, TINKER_ESTATE. */
TINKER_API tinker_future *tinker_training_save_state(tinker_training *t, const char *name,
                                                     const tinker_save_options *opts,
                                                     tinker_error *err);
/* Save weights to sample from under `name`.  Result: tinker_future_saved_path(). */
TINKER_API tinker_future *tinker_training_save_for_sampler(tinker_training *t, const char *name,
                                                           const tinker_save_options *opts,
                                                           tinker_error *err);

/* Save weights in the format of Hugging Face, to be used elsewhere, under `name`; fetch them with
 * tinker_rest_get_checkpoint_files().  Result: tinker_future_saved_path(). */
TINKER_API tinker_future *tinker_training_save_external(tinker_training *t, const char *name,
                                                        const tinker_save_options *opts,
                                                        tinker_error *err);

/* Load weights saved by tinker_training_save_state() into this model; optimizer: the state
 * of the optimizer too.  access_token (may be NULL) is the credential of the account that
 * owns them.  Result: tinker_future_loaded_path(), or NULL when the service does not say. */
TINKER_API tinker_future *tinker_training_load_state(tinker_training *t, const char *path,
                                                     int optimizer, const char *access_token,
                                                     tinker_error *err);

typedef struct tinker_from_state_options {
    size_t size;            /* set by TINKER_FROM_STATE_OPTIONS_INIT */
    int optimizer;          /* the state of the optimizer too */
    const char *base_model; /* NULL: the one the weights were made for */
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
    const char *access_token;   /* credential of the account that owns the weights, or NULL */
    const char *optimizer_name; /* to go on with, without the state of the old one; NULL: "adamw" */
} tinker_from_state_options;
#define TINKER_FROM_STATE_OPTIONS_INIT                                  \
    {                                                                   \
        sizeof(tinker_from_state_options), 0, NULL, NULL, 0, NULL, NULL \
    }

/* A new training client that continues from saved weights.  Blocks, at most timeout_ms. */
TINKER_API tinker_training *tinker_service_create_from_state(tinker_service *s, const char *path,
                                                             const tinker_from_state_options *opts,
                                                             int64_t timeout_ms, tinker_error *err);
/* The same without waiting; tinker_future_take_training() of the future gives the client. */
TINKER_API tinker_future *tinker_service_request_from_state(tinker_service *s, const char *path,
                                                            const tinker_from_state_options *opts,
                                                            tinker_error *err);

typedef struct tinker_model_info {
    const char *model_id;
    const char *model_name, *arch, *tokenizer_id; /* NULL: the service does not say */
    int is_lora;                                  /* -1: unknown */
    int64_t lora_rank;                            /* -1: unknown */
    const char *base_model;                       /* NULL: not told apart from model_name */
} tinker_model_info;
/* Ask the service what is being trained.  Result: tinker_future_model_info(). */
TINKER_API tinker_future *tinker_training_get_info(tinker_training *t, tinker_error *err);
TINKER_API const tinker_model_info *tinker_future_model_info(const tinker_future *f);

/* The tokenizer of the model, as the service names it, from the files of this machine: see
 * tinker_tokenizer_load().  opts may be NULL.  Asks the service each time: keep the tokenizer, and
 * encode and decode with it.  A new reference, to be freed with tinker_tokenizer_free(), or NULL
 * with *err set: TINKER_ETIMEDOUT, the errors of the request, or those of loading.  Blocks, on the
 * service at most timeout_ms. */
TINKER_API tinker_tokenizer *tinker_training_create_tokenizer(tinker_training *t,
                                                              const tinker_tokenizer_options *opts,
                                                              int64_t timeout_ms,
                                                              tinker_error *err);

/* The same without waiting; tinker_future_take_tokenizer() of the future gives the tokenizer.  It
 * is loaded, and a loader of your own is called, on a library thread, which must not wait. */
TINKER_API tinker_future *tinker_training_request_tokenizer(tinker_training *t,
                                                            const tinker_tokenizer_options *opts,
                                                            tinker_error *err);

/* Keep numbers of your own with the run: rewards, evaluations, whatever your loop computes.  `tinker
 * serve` shows them beside its own on its page and in `tinker run`; a service that keeps no metrics
 * answers with status 404, which a loop may ignore.
 *
 *     tinker_named_number m[] = { { "reward", mean }, { "eval/accuracy", accuracy } };
 *     tinker_future_free(tinker_training_log(t, step, m, 2, &err));
 *
 * step: the optimizer step they belong to, -1 for the run's last one.  A second value of a name at
 * the same step replaces the first; values that are not finite are left out.  A name has 1 to 112
 * bytes.  The numbers are encoded before the call returns; the request takes no turn, so it neither
 * waits for training requests nor delays them.  No result but success.  NULL with *err set:
 * TINKER_EINVAL for no metrics or a step below -1, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_training_log(tinker_training *t, int64_t step,
                                              const tinker_named_number *metrics, size_t n,
                                              tinker_error *err);
/* The same for a text that the model made, so that people see how it changes.  prompt and label
 * (for example "greedy") may be NULL. */
TINKER_API tinker_future *tinker_training_log_text(tinker_training *t, int64_t step,
                                                   const char *label, const char *prompt,
                                                   const char *text, tinker_error *err);

/* What people should know about the run.  Thread safety: plain data. */
typedef struct tinker_run_description {
    size_t size;           /* set by TINKER_RUN_DESCRIPTION_INIT */
    const char *name;      /* shown instead of the id; NULL: as it is */
    const char *notes;     /* NULL: as they are */
    int64_t planned_steps; /* for progress and the time that is left; 0: as it is */
} tinker_run_description;
#define TINKER_RUN_DESCRIPTION_INIT                   \
    {                                                 \
        sizeof(tinker_run_description), NULL, NULL, 0 \
    }
/* Set name, notes and length of the run; like tinker_training_log() otherwise. */
TINKER_API tinker_future *
tinker_training_describe(tinker_training *t, const tinker_run_description *note, tinker_error *err);

/* Unload the model from the service once all earlier requests were sent; every later
 * request on t fails with TINKER_ESTATE.  No result but success. */
TINKER_API tinker_future *tinker_training_unload(tinker_training *t, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
