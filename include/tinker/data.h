/* data.h - what goes into a model: tensors, model inputs, datums.
 *
 * These structs only refer to memory that the caller owns; the library reads it
 * during a call and never keeps a pointer.  Zero-initialize, then fill.
 *
 * Thread safety: plain data. */
#ifndef TINKER_DATA_H
#define TINKER_DATA_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types.  The wire carries float32 and int64; the other types convert
 * when they are encoded: int32 and the unsigned types to int64 (a value above
 * INT64_MAX is TINKER_EINVAL), float64 to float32 (rounded to nearest, with one
 * warning in the log; a finite value that overflows is TINKER_EINVAL).  bfloat16 is accepted in results only. */
typedef enum tinker_dtype {
    TINKER_FLOAT32 = 1,
    TINKER_INT64 = 2,
    TINKER_INT32 = 3,
    TINKER_BFLOAT16 = 4,
    TINKER_FLOAT64 = 5,
    TINKER_UINT32 = 6,
    TINKER_UINT64 = 7
} tinker_dtype;

/* Dense: data holds n elements, row-major; shape NULL means one dimension of n.
 * Sparse (crow and col not NULL): data holds the n non-zero values of a 2-D
 * matrix in compressed-sparse-row form, col[n], crow[shape[0] + 1]; shape is required. */
typedef struct tinker_tensor {
    tinker_dtype dtype;
    const void *data;
    size_t n;
    const int64_t *shape;
    size_t ndim;
    const int64_t *crow;
    const int64_t *col;
} tinker_tensor;

typedef enum tinker_chunk_kind {
    TINKER_CHUNK_TEXT = 0,          /* tokens */
    TINKER_CHUNK_IMAGE = 1,         /* bytes of a png or jpeg file */
    TINKER_CHUNK_IMAGE_POINTER = 2, /* location of one; sampling only */
    TINKER_CHUNK_DMEL = 3           /* serialized audio tensor container */
} tinker_chunk_kind;

typedef struct tinker_chunk {
    tinker_chunk_kind kind;
    const int32_t *tokens;   /* TEXT */
    size_t n_tokens;         /* TEXT */
    const void *bytes;       /* IMAGE, DMEL */
    size_t n_bytes;          /* IMAGE, DMEL */
    const char *format;      /* IMAGE, IMAGE_POINTER: "png" or "jpeg" */
    const char *location;    /* IMAGE_POINTER */
    int has_expected_tokens; /* IMAGE, IMAGE_POINTER */
    int64_t expected_tokens;
} tinker_chunk;

typedef struct tinker_model_input {
    const tinker_chunk *chunks;
    size_t n_chunks;
} tinker_model_input;

/* One named tensor of a datum or of a loss output, for example "target_tokens". */
typedef struct tinker_named_tensor {
    const char *name;
    tinker_tensor tensor;
} tinker_named_tensor;

/* Where some consecutive tokens of a datum come from: positions offset to offset + length of a
 * sampled sequence, or of the prompt that it was sampled for. */
typedef struct tinker_provenance {
    int sampled;             /* 0: of the prompt, 1: of the sampled tokens */
    const char *sequence_id; /* of sequence_ids of tinker_sample */
    int64_t offset, length;
} tinker_provenance;

/* One training example: position i of the input predicts element i of the tensors.  Spans, if
 * given, are given for both: they cover the tokens of the input, and "target_tokens", without
 * gaps and in order.  The loss "stable_reinforce" needs them. */
typedef struct tinker_datum {
    tinker_model_input model_input;
    const tinker_named_tensor *inputs;
    size_t n_inputs;
    const tinker_provenance *input_spans;
    size_t n_input_spans;
    const tinker_provenance *target_spans;
    size_t n_target_spans;
} tinker_datum;

/* A number with a name: a metric, or a setting of a loss function. */
typedef struct tinker_named_number {
    const char *name;
    double value;
} tinker_named_number;

/* A text with a name: one entry of user metadata. */
typedef struct tinker_named_string {
    const char *name;
    const char *value;
} tinker_named_string;

/* Which loss to compute: "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo",
 * "stable_reinforce", or another that the service knows, with optional settings such as
 * { "clip_low_threshold", 0.8 }, numbers or texts.  All need "target_tokens"; all but the first
 * also "logprobs" and "advantages", float32; "gspo" takes "sequence_ratio_mask", the positions
 * whose mean makes the ratio of the sequence; "stable_reinforce" takes its logprobs from the
 * record of the samples that tinker_datum's spans name. */
typedef struct tinker_loss {
    const char *name;
    const tinker_named_number *config;
    size_t n_config;
    const tinker_named_string *texts; /* settings that are texts */
    size_t n_texts;
} tinker_loss;

/* Optimizer settings of one step: AdamW with decoupled decay; clip 0 = off. */
typedef struct tinker_adam {
    size_t size; /* set by TINKER_ADAM_INIT */
    double learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm;
} tinker_adam;
#define TINKER_ADAM_INIT                                      \
    {                                                         \
        sizeof(tinker_adam), 1e-4, 0.9, 0.95, 1e-12, 0.0, 0.0 \
    }

/* The settings of one step of another optimizer, such as { "dimuon", { "learning_rate", 0.02 } }:
 * numbers and texts that go to the service as they are.  For "adamw" see tinker_adam. */
typedef struct tinker_optimizer {
    const char *name;
    const tinker_named_number *config;
    size_t n_config;
    const tinker_named_string *texts; /* settings that are texts */
    size_t n_texts;
} tinker_optimizer;

/* Which LoRA adapter to create. */
typedef struct tinker_lora {
    size_t size; /* set by TINKER_LORA_INIT */
    int64_t rank;
    int has_seed;
    int64_t seed;
    int train_attn, train_mlp, train_unembed; /* at least one must be set */
    const tinker_named_string *user_metadata; /* kept with the training run */
    size_t n_user_metadata;
    const char *optimizer; /* for the life of the model; NULL: "adamw" */
} tinker_lora;
#define TINKER_LORA_INIT                                      \
    {                                                         \
        sizeof(tinker_lora), 32, 0, 0, 1, 1, 1, NULL, 0, NULL \
    }

/* What is added to the logit of one token; -100 and less practically forbids it. */
typedef struct tinker_logit_bias {
    int32_t token;
    double bias;
} tinker_logit_bias;

/* How to sample.  max_tokens 0: up to the context limit.  top_k -1: no limit.
 * Stop: at most one of the two lists; both NULL: the model's end tokens; a
 * non-NULL list replaces them, so an empty list (n_stop 0) stops at max_tokens only.
 *
 * What follows the stops is known to `tinker serve` and to few other services; it is sent only where
 * it is not 0.  Penalties, biases and a schema change the distribution itself, so the logprobs of
 * samples are those of the changed one; min_p, as top_k and top_p, only leaves tokens out. */
typedef struct tinker_sampling_params {
    size_t size; /* set by TINKER_SAMPLING_PARAMS_INIT */
    int64_t max_tokens;
    int has_seed;
    int64_t seed;
    double temperature;
    int64_t top_k;
    double top_p;
    const char *const *stop_strings;
    const int32_t *stop_tokens;
    size_t n_stop;
    double min_p; /* leave out tokens less likely than this share of the likeliest; 0: none */
    /* Divides the logit of every token of prompt and sample, or multiplies it where it is negative;
     * 0 and 1: off. */
    double repetition_penalty;
    double presence_penalty;  /* subtracted once for every token of the sample so far */
    double frequency_penalty; /* subtracted as often as the token is there */
    const tinker_logit_bias *logit_bias;
    size_t n_logit_bias;
    const char *json_schema; /* what is sampled is JSON that this schema allows; NULL: any text */
} tinker_sampling_params;
#define TINKER_SAMPLING_PARAMS_INIT                                                                \
    {                                                                                              \
        sizeof(tinker_sampling_params), 0, 0, 0, 1.0, -1, 1.0, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, \
            NULL                                                                                   \
    }

typedef enum tinker_stop_reason { TINKER_STOP_STOP = 0, TINKER_STOP_LENGTH = 1 } tinker_stop_reason;

/* One sampled continuation.  logprobs is NULL when the service sent none; the two top-k
 * matrices of n rows by topk columns (as in tinker_sample) unless they were asked for. */
typedef struct tinker_sequence {
    tinker_stop_reason stop_reason;
    const int32_t *tokens;
    const float *logprobs;
    size_t n;
    const int32_t *topk_tokens;
    const float *topk_logprobs;
    size_t topk;
} tinker_sequence;

/* Result of a sampling request.  prompt_logprobs (NaN = none, always so for the
 * first token) and the two top-k matrices of n_prompt rows by topk columns
 * (unused cell: token 0, logprob -99999) are NULL unless they were asked for.  So are the
 * logprobs of chosen tokens at positions of the prompt, in the shape and layout of the
 * question (0 where that was -1), and the tokens drawn there, (n_prompt - 1, k). */
typedef struct tinker_sample {
    const tinker_sequence *sequences;
    size_t n_sequences;
    const float *prompt_logprobs;
    size_t n_prompt;
    const int32_t *topk_tokens;
    const float *topk_logprobs;
    size_t topk;
    int64_t prompt_cache_hit_tokens;
    const tinker_tensor *target_prompt_logprobs;
    const tinker_tensor *prompt_alt_tokens, *prompt_alt_logprobs;
    /* How the service calls each of the sequences, for tinker_provenance: n_sequences texts.  NULL:
     * it does not say, or the sample was streamed or made by a helper process. */
    const char *const *sequence_ids;
} tinker_sample;

/* Named tensors that a loss returned for one datum, for example "logprobs". */
typedef struct tinker_loss_output {
    const tinker_named_tensor *tensors;
    size_t n_tensors;
} tinker_loss_output;

/* Result of forward or forward_backward: one output per datum, in order. */
typedef struct tinker_forward_backward {
    const char *output_type;
    const tinker_loss_output *outputs;
    size_t n_outputs;
    const tinker_named_number *metrics;
    size_t n_metrics;
} tinker_forward_backward;

/* ---- texts that come back --------------------------------------------------------------------
 *
 * Every call that makes a text appends it to a tinker_text.  Start from the INIT value; a call
 * grows it and leaves what was there.  s[n] is NUL once a call succeeded; on failure n is what it
 * was before.  Set n to 0 to use the memory again; tinker_text_clear() frees it.  The memory is
 * yours, but never to be freed in another way.  Thread safety: plain data. */
typedef struct tinker_text {
    char *s;
    size_t n, cap;
} tinker_text;
#define TINKER_TEXT_INIT \
    {                    \
        NULL, 0, 0       \
    }

/* Append a copy of s[0..n) to *t.  TINKER_ENOMEM. */
TINKER_API tinker_status tinker_text_append(tinker_text *t, const char *s, size_t n,
                                            tinker_error *err);
/* Free the memory; *t is empty and may be used again. */
TINKER_API void tinker_text_clear(tinker_text *t);

/* ---- metrics --------------------------------------------------------------------------------- */

/* Value of the metric called `name` in metrics[0..n).  A missing metric is NaN, never a number. */
TINKER_API double tinker_metric(const tinker_named_number *metrics, size_t n, const char *name);

/* ---- building inputs ------------------------------------------------------------------------- */

/* A model input that grows.  Thread safety: one thread at a time. */
typedef struct tinker_input tinker_input;

TINKER_API tinker_input *tinker_input_new(tinker_error *err);
TINKER_API void tinker_input_free(tinker_input *in);
/* Append a copy of a chunk of any kind, or of tokens: a last chunk of text gets longer, else a
 * new one begins.  TINKER_EINVAL: the chunk is malformed; TINKER_ENOMEM.  Nothing changes then. */
TINKER_API tinker_status tinker_input_append(tinker_input *in, const tinker_chunk *chunk,
                                             tinker_error *err);
TINKER_API tinker_status tinker_input_append_tokens(tinker_input *in, const int32_t *tokens,
                                                    size_t n, tinker_error *err);
/* What has been appended, for any call that takes a model input.  Borrowed until the next append
 * or free. */
TINKER_API const tinker_model_input *tinker_input_view(const tinker_input *in);

/* A datum for cross-entropy out of the tokens of one text: position i of the input, which is
 * tokens[0..n-1), predicts tokens[i + 1].  weights (NULL: all 1) has one number per token, and
 * weights[i + 1] is what the prediction of tokens[i + 1] counts.
 *
 *     tinker_datum *d = tinker_datum_from_tokens(ids.ids, ids.n, NULL, &err);
 *     tinker_future *f = tinker_training_forward_backward(t, d, 1, &loss, &err);
 *     tinker_datum_free(d);
 *
 * Copies everything; free it with tinker_datum_free().  NULL with *err set: TINKER_EINVAL for
 * fewer than 2 tokens, TINKER_ENOMEM. */
TINKER_API tinker_datum *tinker_datum_from_tokens(const int32_t *tokens, size_t n,
                                                  const float *weights, tinker_error *err);
/* Only what tinker_datum_from_tokens() returned; NULL is fine. */
TINKER_API void tinker_datum_free(tinker_datum *d);

/* How many tokens an input stands for.  TINKER_EINVAL when an image does not say how many it
 * expects, or audio has no readable header. */
TINKER_API tinker_status tinker_model_input_length(const tinker_model_input *input, int64_t *out,
                                                   tinker_error *err);
/* Its tokens to out[0..cap), when it is all text; *n receives their number, also when there is not
 * room for all.  TINKER_EINVAL: it has other chunks. */
TINKER_API tinker_status tinker_model_input_tokens(const tinker_model_input *input, int32_t *out,
                                                   size_t cap, size_t *n, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
