/* engine.h - train LoRA adapters and sample from a Hugging Face model on this CPU.
 *
 * The narrow boundary of the local engine: no HTTP, no files but the ones named,
 * no threads of yours.  Link with -ltinker-engine.
 *
 *     tinker_engine *e = tinker_engine_open("models/tiny", NULL, &err);
 *     tinker_adapter *a = tinker_adapter_new(e, NULL, &err);
 *     tinker_pass *p = tinker_pass_new(e, a, data, n, &loss, 0, &err);
 *     while ((more = tinker_pass_step(p, &err)) > 0) {}     // 0: done, -1: failed
 *     use(tinker_pass_result(p));
 *     tinker_adapter_step(a, &adam, &metrics, &err);
 *
 * Determinism: the same inputs, weights and seeds give the same bits whatever the
 * thread count, the batch neighbors or the order in which passes and generator
 * steps interleave.
 *
 * Thread safety: one thread at a time per engine, its adapters, passes and
 * generators included, except where a function says otherwise. */
#ifndef TINKER_ENGINE_H
#define TINKER_ENGINE_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One base model in memory and the threads that compute on it. */
typedef struct tinker_engine tinker_engine;

typedef enum tinker_weights_dtype {
    TINKER_WEIGHTS_F32 = 0,
    TINKER_WEIGHTS_BF16 = 1, /* and activations, keys and values are rounded where that is faster */
    /* bf16 where all matrices are stored so, as accurate as f32 and in half the memory; else f32.
     * Of a GGUF file each matrix in the format that it has there */
    TINKER_WEIGHTS_STORED = 2,
    /* Matrices quantized to 8 or 4 bits when they are loaded, 32 neighboring weights with one scale;
     * the head always to 8, norms, biases, routers and the embedding not at all.  Adapters are
     * trained on top (rank 1 and more); gradients are those of the quantized weights, exactly. */
    TINKER_WEIGHTS_Q8 = 3,
    TINKER_WEIGHTS_Q4 = 4,
    /* The same weights, and forward products round the other factor to 8 bits, 32 neighbors with one
     * scale, where the CPU multiplies such numbers faster (AVX-512 VNNI), and keys and values to
     * bfloat16 where it multiplies those faster (AVX-512 BF16): training and sampling alike, so that sampled logprobs stay those of a forward pass to the bit.  Gradients pass the
     * rounding as if it were not there. */
    TINKER_WEIGHTS_Q8_INT8 = 5,
    TINKER_WEIGHTS_Q4_INT8 = 6
} tinker_weights_dtype;

typedef struct tinker_engine_options {
    size_t size;                /* set by TINKER_ENGINE_OPTIONS_INIT */
    int threads;                /* 0: one per available core */
    tinker_weights_dtype dtype; /* of the packed base weights */
    int64_t max_context;        /* 0: the model's own limit */
    uint64_t memory_limit;      /* bytes for passes and generators together; running samples have at
                                 * most half of it, cached prefixes what is left.  0: half of what
                                 * is free */
    int raw_logprobs;           /* sampled logprobs before temperature (else after) */
    int no_drafts;              /* compute one token of a sample at a time.  Else text that repeats
                                 * itself is guessed and several are computed at once, for the same
                                 * tokens and logprobs in less time */
} tinker_engine_options;
#define TINKER_ENGINE_OPTIONS_INIT                                       \
    {                                                                    \
        sizeof(tinker_engine_options), 0, TINKER_WEIGHTS_F32, 0, 0, 0, 0 \
    }

/* What was loaded.  Borrowed until the engine closes. */
typedef struct tinker_engine_info {
    const char *arch;        /* model_type of its config.json: "qwen3" */
    const char *fingerprint; /* hex; equal for equal base weights */
    int64_t vocab_size, context, layers, hidden, heads, kv_heads, head_dim, intermediate;
    uint64_t parameters;
    const int32_t *eos; /* end tokens, may be empty */
    size_t n_eos;
    const char *notice;    /* what of the files is not used, for the log; NULL: nothing */
    uint64_t weight_bytes; /* memory of the weights in the form that they are computed with */
} tinker_engine_info;

/* Load a model directory (config.json, *.safetensors) or a GGUF file; of one that is split
 * ("x-00001-of-00003.gguf") any part names all.  Returns NULL with *err set; a wrong or truncated
 * file gives TINKER_EINVAL with the file and tensor named. */
TINKER_API tinker_engine *tinker_engine_open(const char *dir, const tinker_engine_options *opts,
                                             tinker_error *err);
/* Everything made from the engine must be freed first. */
TINKER_API void tinker_engine_close(tinker_engine *e);
/* Another memory_limit, before passes and generators are made: engines side by side share what is
 * free, which is known only when all are open.  0: half of what is free now. */
TINKER_API void tinker_engine_limit_memory(tinker_engine *e, uint64_t bytes);
/* Thread safety: any thread, any time. */
TINKER_API const tinker_engine_info *tinker_engine_describe(const tinker_engine *e);

/* What a model takes, known from its configuration and the headers of its files. */
typedef struct tinker_model_needs {
    size_t size;      /* set by TINKER_MODEL_NEEDS_INIT */
    int64_t rank;     /* asked: of an adapter (default 32) */
    int64_t tokens;   /* asked: of a text (default 512); at most the context counts */
    char arch[32];    /* model_type of its config.json */
    int64_t context;  /* the longest text it is made for */
    uint64_t weights; /* bytes in memory, of the dtype of the options */
    uint64_t adapter; /* of an adapter in training: weights, gradients, moments */
    uint64_t pass;    /* of a pass on one text, at least: each layer computed twice */
    uint64_t cache;   /* of keys, values and states of a sample as long as the text */
    int64_t trains;   /* the longest text that can be trained on with memory_limit bytes for
                         * weights, adapter and pass (0: what is free now); 0: none */
} tinker_model_needs;
#define TINKER_MODEL_NEEDS_INIT                                      \
    {                                                                \
        sizeof(tinker_model_needs), 32, 512, { 0 }, 0, 0, 0, 0, 0, 0 \
    }

/* Whether a model can be loaded and what that will take, before anything is loaded: fails as
 * tinker_engine_open() does where configuration or files are not those of a supported model. */
TINKER_API tinker_status tinker_model_measure(const char *dir, const tinker_engine_options *opts,
                                              tinker_model_needs *out, tinker_error *err);

/* ---- adapters ---------------------------------------------------------------- */

/* LoRA weights, their accumulated gradient and Adam state; or, with rank 0, all
 * parameters of the model (full-parameter training). */
typedef struct tinker_adapter tinker_adapter;

/* lora NULL: defaults.  The seed that was used is in tinker_adapter_describe().  TINKER_EINVAL: no
 * such optimizer here, see tinker_adapter_optimize(). */
TINKER_API tinker_adapter *tinker_adapter_new(tinker_engine *e, const tinker_lora *lora,
                                              tinker_error *err);
TINKER_API void tinker_adapter_free(tinker_adapter *a);
TINKER_API const tinker_lora *tinker_adapter_describe(const tinker_adapter *a);
/* Another optimizer for an adapter that has taken no step, as tinker_lora names one for a new one. */
TINKER_API tinker_status tinker_adapter_set_optimizer(tinker_adapter *a, const char *name,
                                                      tinker_error *err);
TINKER_API int64_t tinker_adapter_steps(const tinker_adapter *a);  /* optimizer steps taken */
TINKER_API uint64_t tinker_adapter_bytes(const tinker_adapter *a); /* memory held */

/* An immutable copy of the weights for sampling; no gradient, no Adam state. */
TINKER_API tinker_adapter *tinker_adapter_snapshot(const tinker_adapter *a, tinker_error *err);

enum {
    TINKER_ADAPTER_OPTIMIZER = 1, /* save: also moments and pending gradients; load: want them */
    TINKER_ADAPTER_PEFT = 2,      /* save: names and shapes of PEFT, see tinker_adapter_to_peft() */
    TINKER_ADAPTER_BF16 = 4       /* save: the weights in bf16, half the size */
};

/* Write adapter_config.json and adapter_model.safetensors (PEFT layout) into the
 * existing directory dir, with the optimizer also optimizer.safetensors and
 * trainer_state.json.  Files are synced; the caller makes the directory appear
 * atomically.  base_name is recorded as the base model's name. */
TINKER_API tinker_status tinker_adapter_save(const tinker_adapter *a, const char *dir,
                                             const char *base_name, int flags, tinker_error *err);
/* Load what tinker_adapter_save() or PEFT wrote.  With the optimizer flag the next
 * step is bit-identical to continuing the saved adapter. */
TINKER_API tinker_adapter *tinker_adapter_load(tinker_engine *e, const char *dir, int flags,
                                               tinker_error *err);
/* Write the files of an adapter in `dir`, as tinker_adapter_save() or the service writes them, into
 * the existing directory out_dir so that PEFT applies all of it: PEFT drops what it does not know
 * without a word, such as our name of the unembedding.  `model`: the base model, a directory or
 * GGUF file, of which only the configuration is read; NULL: it is not here and taken for a dense
 * text model.  base_name NULL: as the adapter says.  TINKER_ESTATE: PEFT has no such adapter
 * (rank 0), or the model must be given (experts). */
TINKER_API tinker_status tinker_adapter_to_peft(const char *dir, const char *model,
                                                const char *base_name, const char *out_dir,
                                                tinker_error *err);
/* Write the merged model as a Hugging Face directory.  The base must be one, too. */
TINKER_API tinker_status tinker_adapter_export(const tinker_adapter *a, const char *dir,
                                               tinker_error *err);

/* The type of matrices in a GGUF file.  As llama.cpp's quantizer does, Q4_0 and Q4_K files keep the
 * head in Q6_K, Q4_K files some other matrices too, and all files vectors and routers in F32; rows
 * that no block divides become Q5_0, Q8_0 or F16. */
typedef enum tinker_gguf_type {
    TINKER_GGUF_F16 = 0,
    TINKER_GGUF_Q8_0 = 1,
    TINKER_GGUF_Q4_0 = 2,
    TINKER_GGUF_Q4_K = 3,
    TINKER_GGUF_F32 = 4,
    TINKER_GGUF_BF16 = 5
} tinker_gguf_type;

/* Write the base model, with the adapter merged in unless a is NULL, as one GGUF file with tokenizer
 * and chat template.  Weights are merged into the numbers of the files, not into a quantized copy in
 * memory.  TINKER_EINVAL: an architecture or a tokenizer that we have no GGUF names for. */
TINKER_API tinker_status tinker_engine_export_gguf(tinker_engine *e, const tinker_adapter *a,
                                                   const char *path, tinker_gguf_type type,
                                                   tinker_error *err);
/* Write the adapter alone as a GGUF file that llama.cpp loads beside the base model.  TINKER_EINVAL
 * for rank 0, and for a pair on a head that is the embedding. */
TINKER_API tinker_status tinker_adapter_export_gguf(const tinker_adapter *a, const char *path,
                                                    tinker_error *err);

/* One AdamW step with the accumulated gradient, which is then zero.  metrics
 * receives `grad_norm:mean` and friends.  A gradient norm that is not finite,
 * or above 1.8e19 after clipping, skips the update, zeroes the gradient and is TINKER_EREQUEST.
 * A step that would make weights that are not finite is TINKER_EINVAL and changes nothing. */
typedef struct tinker_step_metrics {
    double grad_norm, learning_rate, clip_coef, update_norm;
    int64_t step;
} tinker_step_metrics;
TINKER_API tinker_status tinker_adapter_step(tinker_adapter *a, const tinker_adam *adam,
                                             tinker_step_metrics *metrics, tinker_error *err);

/* The same for an adapter whose tinker_lora names an optimizer, of which this engine has one beside
 * "adamw": "dimuon", for LoRA matrices (rank 1 and more), with the settings learning_rate (required),
 * beta1 (0.9), grad_clip_norm (0: off), damping (1e-4) and rank_lr_correction_exponent (0.175).  Its
 * formula is not published; what is computed is in docs/serve.md.  TINKER_EINVAL names what is not
 * known, out of range, or another optimizer than the adapter's. */
TINKER_API tinker_status tinker_adapter_optimize(tinker_adapter *a,
                                                 const tinker_optimizer *optimizer,
                                                 tinker_step_metrics *metrics, tinker_error *err);

/* ---- forward and backward ------------------------------------------------------ */

/* One forward or forward_backward request, run in small steps so that a caller can
 * share the machine between passes and generators. */
typedef struct tinker_pass tinker_pass;

/* Check and copy data[0..n) completely and compute the memory need.  a NULL: the
 * base model, forward only.  TINKER_EINVAL names the datum and the tensor;
 * TINKER_ENOMEM gives need and limit in bytes. */
TINKER_API tinker_pass *tinker_pass_new(tinker_engine *e, tinker_adapter *a,
                                        const tinker_datum *data, size_t n, const tinker_loss *loss,
                                        int forward_only, tinker_error *err);
/* The loss of one datum as a function of its logprobs, n for each of its positions times targets;
 * it sets the loss and, unless grads is NULL, its derivative by each logprob.  Called inside
 * tinker_pass_step(), once per datum in the order of data; a failure fails the pass. */
typedef tinker_status tinker_datum_loss_fn(size_t datum, const float *logprobs, size_t n,
                                           double *loss, float *grads, tinker_error *err,
                                           void *state);
/* As tinker_pass_new() with a loss of the caller: of each datum only the input and "target_tokens"
 * are read.  Costs one pass; the same through two passes of cross_entropy costs a forward more. */
TINKER_API tinker_pass *tinker_pass_new_custom(tinker_engine *e, tinker_adapter *a,
                                               const tinker_datum *data, size_t n,
                                               tinker_datum_loss_fn *fn, void *state,
                                               int forward_only, tinker_error *err);
/* Run one micro-batch.  1: more to do; 0: done, and the gradient was added to the
 * adapter as a whole; -1: failed, and nothing was added. */
TINKER_API int tinker_pass_step(tinker_pass *p, tinker_error *err);
/* The result once step returned 0.  Borrowed until free. */
TINKER_API const tinker_forward_backward *tinker_pass_result(const tinker_pass *p);
TINKER_API void tinker_pass_free(tinker_pass *p);

/* ---- sampling -------------------------------------------------------------------- */

/* Continuous batching: requests join and leave between token steps, each with its
 * own adapter; prompts share cached prefixes. */
typedef struct tinker_generator tinker_generator;

/* Asked after each generated token of a sequence: non-zero stops it there.  This is
 * how stop strings work; it also serves streaming.  Called inside generator_step. */
typedef int tinker_token_fn(size_t sample, int32_t token, float logprob, void *state);
/* Told before on_token is asked: the k likeliest tokens at that position, as many as
 * topk_sample_logprobs says.  Borrowed until on_token has returned. */
typedef void tinker_rivals_fn(size_t sample, const int32_t *tokens, const float *logprobs, size_t k,
                              void *state);

/* Asked before a token of a sequence is drawn: which may come, one bit per token of the vocabulary
 * (bit i % 64 of word i / 64).  The others have probability 0, and logprobs are those of the rest.
 * NULL: all may.  The words are borrowed until on_token has been asked about the drawn token.
 * Before the first token it is asked once, for all samples.  A mask without any token that the model
 * gives a probability fails the request.  Called inside generator_step. */
typedef const uint64_t *tinker_mask_fn(size_t sample, void *state);

typedef struct tinker_generate {
    tinker_adapter *adapter; /* NULL: the base model.  Must outlive the request. */
    const int32_t *prompt;   /* copied */
    size_t n_prompt;
    const tinker_sampling_params *params; /* stop_strings must be NULL: see on_token */
    size_t num_samples;                   /* sample i uses seed + i */
    int prompt_logprobs;
    size_t topk_prompt_logprobs;
    size_t topk_sample_logprobs;   /* of the same distribution as the logprobs of samples */
    size_t prompt_logprobs_last_n; /* score only the last tokens of the prompt; 0: all */
    tinker_token_fn *on_token;     /* may be NULL */
    void *state;                   /* for on_token */
    void *tag;                     /* returned by tinker_generator_next() */
    /* Tokens to score at the positions of the prompt after the first: int64 (n_prompt - 1, K),
     * -1 for none, dense or sparse; NULL: none.  Copied. */
    const tinker_tensor *target_prompt_logprobs;
    size_t prompt_alt_tokens_k;  /* to draw at each of these positions, at the temperature */
    tinker_rivals_fn *on_rivals; /* may be NULL; with the state of on_token */
    /* Prefixes are shared only between requests of the same number, so that neither the count of
     * cached tokens nor the time tells one user what another has prompted. */
    uint64_t cache_scope;
    tinker_mask_fn *on_mask; /* may be NULL; with the state of on_token */
} tinker_generate;

TINKER_API tinker_generator *tinker_generator_new(tinker_engine *e, tinker_error *err);
TINKER_API void tinker_generator_free(tinker_generator *g);
/* TINKER_ENOMEM: it does not fit beside the passes (retryable: once they are freed) or never. */
TINKER_API tinker_status tinker_generator_add(tinker_generator *g, const tinker_generate *request,
                                              tinker_error *err);
/* Advance every active sequence by one token, or several where drafts come true (a long prompt by one
 * slice).
 * Returns how many requests are unfinished, or -1. */
TINKER_API int tinker_generator_step(tinker_generator *g, tinker_error *err);
/* Take a finished request: its tag, its result (borrowed until the next call of
 * next or free), or its error.  Returns 0 when none is finished. */
TINKER_API int tinker_generator_next(tinker_generator *g, void **tag, const tinker_sample **sample,
                                     tinker_error *err);
/* Give the memory of cached prefixes that no request has used for unused_ms, and of other pages that
 * none uses, back to the system; 0: of all that none uses now.  Returns how many bytes that was. */
TINKER_API uint64_t tinker_generator_trim(tinker_generator *g, int64_t unused_ms);
/* Bytes of keys and values that it holds: of running requests, of cached prefixes and of pages kept
 * for the next ones. */
TINKER_API uint64_t tinker_generator_memory(const tinker_generator *g);
/* Drop the request with this tag, if any; it will not be returned. */
TINKER_API void tinker_generator_cancel(tinker_generator *g, void *tag);

#ifdef __cplusplus
}
#endif
#endif
