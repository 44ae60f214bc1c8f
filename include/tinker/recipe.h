/* recipe.h - from data in files to a trained model: what training loops are made of.
 *
 *     tinker_recipe *r = tinker_recipe_open(NULL, &err);
 *     tinker_rows *rows = tinker_rows_load("mine.jsonl", r->renderer, r->tokenizer, NULL, &err);
 *     for (size_t i = 0, n; i < tinker_rows_batches(rows); i++) {
 *         const tinker_datum *data = tinker_rows_batch(rows, 0, i, &n);
 *         tinker_step step;
 *         if (tinker_recipe_step(r, data, n, NULL, NULL, &step, &err) != TINKER_OK)
 *             ...
 *         printf("loss %.4f\n", step.nll);
 *     }
 *
 * Orders, weights, rates, names of metrics and files are those of the tinker cookbook, so that
 * the same data and seed give the same steps there and here.  `tinker train` and `tinker eval`
 * are made of these calls.  Nothing here prints or exits.
 *
 * Thread safety: one thread at a time for each object; functions without an object: any thread,
 * any time. */
#ifndef TINKER_RECIPE_H
#define TINKER_RECIPE_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/chat.h>
#include <tinker/custom_loss.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/sampling.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reader of a JSON Lines file: one conversation per line, as for
 * tinker_conversation_parse(); empty lines are skipped. */
typedef struct tinker_dataset tinker_dataset;

/* "-" reads standard input.  NULL with *err set when the file cannot be opened. */
TINKER_API tinker_dataset *tinker_dataset_open(const char *path, tinker_error *err);
TINKER_API void tinker_dataset_close(tinker_dataset *d);
/* The next conversation into *out, borrowed until the next call; NULL at the end of the data,
 * which is TINKER_OK.  A failure (TINKER_EINVAL for a line that cannot be read, TINKER_ENOMEM)
 * sets *out to NULL, too, and its message says "file:line: ..."; the next call goes on with the
 * following line.  Blocks on the file. */
TINKER_API tinker_status tinker_dataset_next(tinker_dataset *d, const tinker_conversation **out,
                                             tinker_error *err);
/* Line number of the conversation last returned or refused, from 1. */
TINKER_API size_t tinker_dataset_line(const tinker_dataset *d);

typedef enum tinker_reduction {
    TINKER_REDUCTION_NONE = 0, /* weights as they are: loss summed over tokens */
    TINKER_REDUCTION_MEAN = 1  /* weights of one example sum to 1 */
} tinker_reduction;

/* A datum for cross-entropy: the input without its last token, "target_tokens" one step
 * ahead and "weights" aligned with them.  Owns what `datum` refers to. */
typedef struct tinker_training_row {
    tinker_datum datum;
    size_t n_targets;
    size_t n_trained;   /* targets with a weight other than 0 */
    size_t n_truncated; /* tokens cut off to keep max_length */
} tinker_training_row;

/* max_length 0: no limit.  Too long: text is cut at the end, an image that does not fit
 * is dropped whole, images left at the end are dropped.  NULL with *err set: TINKER_EINVAL
 * when fewer than 2 tokens are left. */
TINKER_API tinker_training_row *tinker_training_row_new(const tinker_example *example,
                                                        size_t max_length,
                                                        tinker_reduction reduction,
                                                        tinker_error *err);
TINKER_API void tinker_training_row_free(tinker_training_row *row);

/* ---- rows: a file read, checked, rendered and held in memory ----------------------------------- */

/* What the lines of a file look like; the other members of a row are kept for graders. */
typedef enum tinker_row_form {
    TINKER_FORM_AUTO = 0,          /* as the first row says; all others must be alike */
    TINKER_FORM_MESSAGES,          /* messages; tools?, weight? */
    TINKER_FORM_SHAREGPT,          /* conversations: [{from, value}]; system? */
    TINKER_FORM_PAIR,              /* chosen, rejected; prompt? */
    TINKER_FORM_COMPARISON,        /* comparison: {prompt_conversation, completion_A, _B}, label */
    TINKER_FORM_ALPACA,            /* instruction, output; input?, system?, history? */
    TINKER_FORM_PROMPT_COMPLETION, /* prompt, completion or response */
    TINKER_FORM_QUESTION_ANSWER,   /* question, answer */
    TINKER_FORM_TOKENS,            /* tokens: ids; weights? */
    TINKER_FORM_TEXT,              /* text, without any chat format; all of it is trained */
    TINKER_FORM_PROMPT             /* prompt alone: for sampling */
} tinker_row_form;
/* "messages", "sharegpt", ... ; NULL for an invalid value.  Static. */
TINKER_API const char *tinker_row_form_name(tinker_row_form form);
/* TINKER_EINVAL lists the names. */
TINKER_API tinker_status tinker_row_form_parse(const char *name, tinker_row_form *out,
                                               tinker_error *err);

typedef enum tinker_on_truncate {
    TINKER_TRUNCATE_DROP = 0, /* a row longer than max_length is left out */
    TINKER_TRUNCATE_CUT,      /* it loses its end; left out when then nothing is trained */
    TINKER_TRUNCATE_FAIL      /* it is a problem of the file */
} tinker_on_truncate;

/* Told about every problem of a file; reason is one line, borrowed for the call.  In the thread
 * that loads. */
typedef void tinker_row_problem_fn(size_t line, size_t column, const char *reason, void *state);

enum { TINKER_SHUFFLE_NONE = -1 }; /* keep the order of the file */

typedef struct tinker_rows_options {
    size_t size; /* set by TINKER_ROWS_OPTIONS_INIT */
    tinker_row_form form;
    tinker_train_on train_on;   /* pairs always train the last assistant message */
    tinker_reduction reduction; /* pairs are never reduced */
    tinker_on_truncate on_truncate;
    size_t max_length;    /* tokens; 0: no limit */
    size_t test_size;     /* rows set apart after the first shuffle */
    int64_t shuffle_seed; /* or TINKER_SHUFFLE_NONE */
    size_t batch_size;    /* rows; more than there are: all of them */
    int keep_last;        /* 1: an epoch ends with what is left, fewer than batch_size */
    int prompts_only;     /* 1: nothing is rendered for training, only tinker_rows_prompt() works */
    tinker_row_problem_fn *problem; /* NULL: only the first one is told, by the error */
    void *problem_state;
} tinker_rows_options;
#define TINKER_ROWS_OPTIONS_INIT                                                             \
    {                                                                                        \
        sizeof(tinker_rows_options), TINKER_FORM_AUTO, TINKER_TRAIN_ALL_ASSISTANT_MESSAGES,  \
            TINKER_REDUCTION_MEAN, TINKER_TRUNCATE_DROP, 32768, 0, 0, 128, 0, 0, NULL, NULL, \
    }

typedef struct tinker_rows tinker_rows;

/* Read path ("-": standard input): one JSON object per line, or one JSON array of them.  All rows
 * are checked and rendered; with a problem in any of them the result is NULL and *err
 * (TINKER_EINVAL) says "FILE:LINE:COLUMN: reason" of the first and how many there are.
 * renderer may be NULL for forms without a conversation, both for prompts_only; they are borrowed
 * during the call.  opts NULL: defaults.  Other errors: TINKER_ESTATE for a file that cannot be
 * read, TINKER_ENOMEM.  Blocks on the file. */
TINKER_API tinker_rows *tinker_rows_load(const char *path, const tinker_renderer *renderer,
                                         const tinker_tokenizer *tokenizer,
                                         const tinker_rows_options *opts, tinker_error *err);
/* NULL is allowed. */
TINKER_API void tinker_rows_free(tinker_rows *x);

typedef struct tinker_rows_stats {
    tinker_row_form form;
    size_t rows, train_rows, test_rows; /* rows = train + test; without those left out */
    size_t dropped;                     /* too long, or nothing left to train */
    size_t ties;                        /* comparisons without a winner, left out */
    size_t truncated, duplicates;
    size_t no_answer_last; /* rows whose last message is not the assistant's */
    size_t longest, tokens, trained;
    char sha256[65]; /* of tokens and weights of all rows, in the order of the file */
} tinker_rows_stats;
TINKER_API tinker_rows_stats tinker_rows_count(const tinker_rows *x);

/* Batches of one epoch, at least 1. */
TINKER_API size_t tinker_rows_batches(const tinker_rows *x);
/* The datums of a batch, *n of them: one for each row, or chosen and rejected by turns for pairs.
 * Any order of calls.  Borrowed until the next call; what the datums refer to, until free. */
TINKER_API const tinker_datum *tinker_rows_batch(tinker_rows *x, size_t epoch, size_t batch,
                                                 size_t *n);
/* The rows set apart, in their order.  Borrowed until free. */
TINKER_API const tinker_datum *tinker_rows_test(const tinker_rows *x, size_t *n);
/* Which rows (numbers from 0, of all rows that were not left out) an epoch uses, in its order;
 * epoch SIZE_MAX: the test rows.  Borrowed until the next call. */
TINKER_API const size_t *tinker_rows_order(tinker_rows *x, size_t epoch, size_t *n);
/* Use this order in every epoch instead.  Copied.  TINKER_EINVAL: no such row, or none at all. */
TINKER_API tinker_status tinker_rows_set_order(tinker_rows *x, const size_t *order, size_t n,
                                               tinker_error *err);

/* One row as a question.  Borrowed from the rows. */
typedef struct tinker_row {
    const tinker_conversation *prompt; /* what comes before the last answer */
    const char *expected; /* answer, expected or target, else the last answer; NULL: none */
    const char *json;     /* the row as it stands in the file, */
    size_t n_json;        /* so many bytes */
    size_t line;
} tinker_row;
/* Row number `row`.  TINKER_EINVAL for a row without a conversation (tokens, text). */
TINKER_API tinker_status tinker_rows_prompt(const tinker_rows *x, size_t row, tinker_row *out,
                                            tinker_error *err);

/* The order that numpy's default_rng(seed).permutation(n) gives, which is how data sets are
 * shuffled in Python, into out[0..n). */
TINKER_API void tinker_permutation(uint64_t seed, size_t n, size_t *out);

/* ---- learning rates ---------------------------------------------------------------------------- */

typedef enum tinker_lr {
    TINKER_LR_LINEAR = 0, /* 1 - step / total */
    TINKER_LR_COSINE,     /* (1 + cos(pi step / total)) / 2 */
    TINKER_LR_CONSTANT
} tinker_lr;
/* What the rate of step (from 0) is multiplied with.  During the first `warmup` steps it rises
 * to 1; the schedule runs over the rest. */
TINKER_API double tinker_lr_multiplier(tinker_lr schedule, size_t step, size_t total,
                                       size_t warmup);
/* "linear", "cosine", "constant"; NULL for an invalid value.  Static. */
TINKER_API const char *tinker_lr_name(tinker_lr schedule);
TINKER_API tinker_status tinker_lr_parse(const char *name, tinker_lr *out, tinker_error *err);

/* A learning rate that suits a model: 5e-5, times 10 for LoRA, times (2000 / hidden)^k with k by
 * family.  Of a model that is in the cookbook's table (and of its Llama and Qwen families) the name
 * is enough; for others give model_type and hidden size of its config.json (NULL, 0: unknown).
 * NaN: there is no rule. */
TINKER_API double tinker_lr_auto(const char *model, const char *model_type, int64_t hidden,
                                 int lora);
/* Trained parameters of an adapter; -1: the model is not in the table. */
TINKER_API int64_t tinker_lora_count(const char *model, int64_t rank, int mlp, int attn,
                                     int unembed);

/* ---- a model in training ------------------------------------------------------------------------ */

/* Adam as the cookbook's loops set it. */
#define TINKER_ADAM_RECIPE                                   \
    {                                                        \
        sizeof(tinker_adam), 1e-4, 0.9, 0.95, 1e-8, 0.0, 0.0 \
    }

typedef struct tinker_recipe_options {
    size_t size;                 /* set by TINKER_RECIPE_OPTIONS_INIT */
    tinker_service *service;     /* NULL: one of its own, from the environment */
    const char *model;           /* NULL: the only one of the service, or that of from_state */
    const char *renderer;        /* NULL: the one that suits the model */
    tinker_tokenizer *tokenizer; /* NULL: the model's */
    const char *from_state;      /* tinker://.../weights/...: continue from there */
    int with_optimizer;          /* with its optimizer */
    const tinker_lora *lora;     /* NULL: rank 32, all modules */
    int64_t timeout_ms;          /* of each wait; -1: for ever */
} tinker_recipe_options;
#define TINKER_RECIPE_OPTIONS_INIT                                                   \
    {                                                                                \
        sizeof(tinker_recipe_options), NULL, NULL, NULL, NULL, NULL, 0, NULL, 600000 \
    }

/* Everything a loop needs.  The members may be used, not replaced. */
typedef struct tinker_recipe {
    tinker_service *service;
    tinker_training *training;
    tinker_tokenizer *tokenizer;
    tinker_renderer *renderer;
    const char *model;
} tinker_recipe;

/* Open a service, make an adapter, load tokenizer and renderer.  opts NULL: defaults.  NULL with
 * *err set: the errors of those calls; TINKER_EINVAL when the service has several models and none
 * was named.  Blocks. */
TINKER_API tinker_recipe *tinker_recipe_open(const tinker_recipe_options *opts, tinker_error *err);
/* NULL is allowed.  What the caller gave (service, tokenizer) stays open. */
TINKER_API void tinker_recipe_close(tinker_recipe *r);

/* What a step was like.  NaN where a number makes no sense. */
typedef struct tinker_step {
    double nll;            /* mean over weighted tokens: the loss that people look at */
    double bpb;            /* bits per byte of what is trained */
    double kl_v1, kl_v2;   /* of the sampler against the model in training: data of rollouts */
    double kl_k3, entropy; /* the same */
    size_t sequences, tokens, trained;
    size_t sampled;                          /* tokens that the mask of rollouts counts */
    double weight;                           /* sum of the weights */
    const tinker_named_number *loss_metrics; /* of the pass, as the service sent them */
    size_t n_loss_metrics;
    const tinker_named_number *metrics; /* of the optimizer; both borrowed until the next call */
    size_t n_metrics;
} tinker_step;

/* Submit a pass over data[0..n) and an optimizer step without waiting for either.  loss NULL:
 * cross_entropy; adam NULL: TINKER_ADAM_RECIPE.  The input "mask" of a datum is not sent.
 * TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_recipe_submit(tinker_recipe *r, const tinker_datum *data, size_t n,
                                              const tinker_loss *loss, const tinker_adam *adam,
                                              tinker_error *err);
/* The same with a loss of your own, see tinker_training_forward_backward_custom(): `state` must
 * live until the step was awaited. */
TINKER_API tinker_status tinker_recipe_submit_custom(tinker_recipe *r, const tinker_datum *data,
                                                     size_t n, tinker_loss_fn *fn, void *state,
                                                     const tinker_adam *adam, tinker_error *err);
/* Wait for the oldest step that was submitted.  TINKER_ESTATE: there is none.  Blocks. */
TINKER_API tinker_status tinker_recipe_next(tinker_recipe *r, tinker_step *out, tinker_error *err);
/* How many were submitted and not yet awaited. */
TINKER_API size_t tinker_recipe_pending(const tinker_recipe *r);
/* Submit and wait.  out may be NULL.  Blocks. */
TINKER_API tinker_status tinker_recipe_step(tinker_recipe *r, const tinker_datum *data, size_t n,
                                            const tinker_loss *loss, const tinker_adam *adam,
                                            tinker_step *out, tinker_error *err);
/* Save the weights to sample from under `name` and, with state_path not NULL, the state to
 * continue from.  The sampler's path, like *state_path borrowed until the next save, or NULL with
 * *err set.  ttl_seconds 0: for ever.  Blocks. */
TINKER_API const char *tinker_recipe_save(tinker_recipe *r, const char *name, int64_t ttl_seconds,
                                          const char **state_path, tinker_error *err);

/* Minus the mean of the log-probabilities of data[0..n) in `out`, weighted; NaN without weights. */
TINKER_API double tinker_mean_nll(const tinker_forward_backward *out, const tinker_datum *data,
                                  size_t n);
/* The same sum for tokens that count (weight above 0, not special), in bits per byte of their
 * text. */
TINKER_API double tinker_bits_per_byte(const tinker_forward_backward *out, const tinker_datum *data,
                                       size_t n, const tinker_tokenizer *tokenizer);
/* Both from logprobs of your own, one array for each datum, as tinker_reference_logprobs() gives
 * them.  tokenizer NULL: *bpb is NaN. */
TINKER_API void tinker_score_logprobs(float *const *logprobs, const tinker_datum *data, size_t n,
                                      const tinker_tokenizer *tokenizer, double *nll, double *bpb);

/* ---- answers and advantages --------------------------------------------------------------------- */

typedef enum tinker_advantage {
    TINKER_ADVANTAGE_CENTER = 0, /* reward - mean of the group */
    TINKER_ADVANTAGE_GRPO,       /* that / (standard deviation + 1e-6) */
    TINKER_ADVANTAGE_RLOO,       /* reward - mean of the others */
    TINKER_ADVANTAGE_RAW         /* the reward */
} tinker_advantage;
TINKER_API const char *tinker_advantage_name(tinker_advantage how);
TINKER_API tinker_status tinker_advantage_parse(const char *name, tinker_advantage *out,
                                                tinker_error *err);
/* Of the rewards of one group into out[0..n), rounded to float32. */
TINKER_API void tinker_group_advantages(const double *reward, size_t n, tinker_advantage how,
                                        double *out);

/* Estimates of KL(p || q) from one sample of p with log-probabilities p and q: p - q, its square
 * halved, exp(q - p) - 1 + p - q. */
TINKER_API double tinker_kl_k1(double p, double q);
TINKER_API double tinker_kl_k2(double p, double q);
TINKER_API double tinker_kl_k3(double p, double q);

/* One answer of the model, the last one when there were several turns.  text is what it says; fill
 * in reward. */
typedef struct tinker_rollout {
    const char *text;
    const tinker_message *message;
    const tinker_sequence *sequence;
    tinker_termination termination;
    size_t n_prompt; /* tokens of its prompt */
    double reward, advantage;
    int dropped; /* 1: not trained */
    size_t n_turns;
} tinker_rollout;
/* at[group * group_size + i] */
typedef struct tinker_rollouts {
    size_t n_groups, group_size;
    tinker_rollout *at;
} tinker_rollouts;

typedef struct tinker_rollout_options {
    size_t size; /* set by TINKER_ROLLOUT_OPTIONS_INIT */
    size_t group_size;
    /* Stop sequences: those of the renderer unless set.  A seed counts upwards: prompt p uses
     * seed + p, or answer i of it seed + p * group_size + i with one_request_each. */
    tinker_sampling_params params;
    int one_request_each;    /* one request for each answer instead of each prompt */
    tinker_sampler *sampler; /* NULL: of the weights as they are now */
    int64_t timeout_ms;
} tinker_rollout_options;
#define TINKER_ROLLOUT_OPTIONS_INIT                                                     \
    {                                                                                   \
        sizeof(tinker_rollout_options), 8, TINKER_SAMPLING_PARAMS_INIT, 0, NULL, 600000 \
    }

/* group_size answers to each of prompts[0..n), which are borrowed during the call.  opts NULL:
 * defaults.  NULL with *err set: what failed first.  Free with tinker_rollouts_free().  Blocks. */
TINKER_API tinker_rollouts *tinker_recipe_rollouts(tinker_recipe *r,
                                                   const tinker_conversation *const *prompts,
                                                   size_t n, const tinker_rollout_options *opts,
                                                   tinker_error *err);
/* The same without a model in training: answers of any sampler.  renderer and tokenizer must live
 * as long as further turns are asked for. */
TINKER_API tinker_rollouts *tinker_sampler_rollouts(tinker_sampler *s,
                                                    const tinker_renderer *renderer,
                                                    const tinker_tokenizer *tokenizer,
                                                    const tinker_conversation *const *prompts,
                                                    size_t n, const tinker_rollout_options *opts,
                                                    tinker_error *err);
/* The same in two steps, for loops that train while the next answers are sampled: the answers are
 * there when tinker_rollouts_wait() has returned TINKER_OK.  The sampler must live until then.
 * Submitting does not block. */
TINKER_API tinker_rollouts *
tinker_rollouts_submit(tinker_sampler *s, const tinker_renderer *renderer,
                       const tinker_tokenizer *tokenizer, const tinker_conversation *const *prompts,
                       size_t n, const tinker_rollout_options *opts, tinker_error *err);
TINKER_API tinker_status tinker_rollouts_wait(tinker_rollouts *x, int64_t timeout_ms,
                                              tinker_error *err);
TINKER_API void tinker_rollouts_free(tinker_rollouts *x);
/* One more turn: answer i is followed by next[i], the whole conversation so far with what the world
 * replied, borrowed during the call; NULL: it has ended.  text, message, sequence and termination
 * of the others become those of their new answers; what came before stays a part of the training
 * data.  opts: group_size is not used; answer i has seed + i.  All next[] NULL: nothing is done.
 * On a failure the answers stay as they were.  Blocks. */
TINKER_API tinker_status tinker_rollouts_next_turn(tinker_rollouts *x, tinker_sampler *s,
                                                   const tinker_conversation *const *next,
                                                   const tinker_rollout_options *opts,
                                                   tinker_error *err);
/* Turn `turn` of answer i: what the model said and after how many tokens of prompt.  NULL: there is
 * no such turn.  Borrowed. */
TINKER_API const tinker_sequence *tinker_rollouts_turn(const tinker_rollouts *x, size_t i,
                                                       size_t turn, size_t *n_prompt);
/* Advantages from the rewards, group by group.  drop_constant: answers of groups whose rewards are
 * all equal are dropped, but those of the first group when all groups are such.  Returns the mean
 * reward over all answers that were not dropped before. */
TINKER_API double tinker_rollouts_advantages(tinker_rollouts *x, tinker_advantage how,
                                             int drop_constant);
/* The data of all answers that are not dropped: "target_tokens", "logprobs", "advantages" and
 * "mask" (1 for what was sampled), which tinker_recipe_submit() does not send.  An answer is one
 * datum as long as each prompt begins with all that came before it; any other prompt begins a new
 * datum.  Borrowed from x until the next call or free; *n may be 0.  NULL with *err set:
 * TINKER_ENOMEM. */
TINKER_API const tinker_datum *tinker_rollouts_data(tinker_rollouts *x, size_t *n,
                                                    tinker_error *err);
/* Move the advantages of data[0..n) (of tinker_rollouts_data()) towards a reference:
 * centered, coef * (mean - d) with d = logprob - reference of a token, as a penalty on RL; else
 * -coef * d, which distills a teacher.  discount in [0, 1) carries it back to earlier tokens.
 * reference: as tinker_reference_logprobs() gives it.  Returns the mean of d. */
TINKER_API double tinker_add_kl(const tinker_datum *data, size_t n, float *const *reference,
                                double coef, double discount, int centered);

/* ---- references, preferences, distillation ------------------------------------------------------ */

/* Logprobs of the targets of data[0..n) under another model: one array for each datum, as long as
 * its targets, all in one block that free() gives back.  NULL with *err set.  Blocks, at most
 * timeout_ms. */
TINKER_API float **tinker_reference_logprobs(tinker_sampler *s, const tinker_datum *data, size_t n,
                                             int64_t timeout_ms, tinker_error *err);

typedef enum tinker_preference {
    TINKER_PREFERENCE_DPO = 0, /* -log sigma(z), z = beta ((c - c0) - (r - r0)) */
    TINKER_PREFERENCE_IPO,     /* (z / beta - 1 / (2 beta))^2 */
    TINKER_PREFERENCE_HINGE,   /* max(0, 1 - z) */
    TINKER_PREFERENCE_CDPO,    /* DPO with a share of labels taken as wrong */
    TINKER_PREFERENCE_SIMPO,   /* means instead of sums, no reference, a margin gamma */
    TINKER_PREFERENCE_ORPO     /* NLL of the chosen + lambda * log-odds ratio, no reference */
} tinker_preference;
TINKER_API const char *tinker_preference_name(tinker_preference loss);
TINKER_API tinker_status tinker_preference_parse(const char *name, tinker_preference *out,
                                                 tinker_error *err);

/* State of tinker_loss_preference(): data are pairs, chosen at even places, with "weights"
 * 0 or 1.  Zero-initialize, then fill. */
typedef struct tinker_dpo {
    size_t size; /* set by TINKER_DPO_INIT */
    tinker_preference loss;
    double beta, label_smoothing, gamma, lambda;
    float *const *reference; /* one array for each datum; NULL for SIMPO and ORPO */
} tinker_dpo;
#define TINKER_DPO_INIT                                                      \
    {                                                                        \
        sizeof(tinker_dpo), TINKER_PREFERENCE_DPO, 0.1, 0.0, 0.5, 0.1, NULL, \
    }
/* Losses for tinker_recipe_submit_custom() and tinker_training_forward_backward_custom().  They
 * report metrics: dpo_loss, accuracy, margin, chosen_reward, rejected_reward. */
TINKER_API tinker_var *tinker_loss_preference(tinker_tape *tape, const tinker_datum *data,
                                              tinker_var *const *logprobs, size_t n, void *state);

/* State of tinker_loss_kl3(): coef * mean of k3 of the model in training against a reference,
 * over tokens whose "mask" (else "weights") is not 0. */
typedef struct tinker_kl3 {
    size_t size;
    double coef;
    float *const *reference;
} tinker_kl3;
TINKER_API tinker_var *tinker_loss_kl3(tinker_tape *tape, const tinker_datum *data,
                                       tinker_var *const *logprobs, size_t n, void *state);
/* Reverse KL to a teacher's K likeliest tokens: "target_tokens" and "weights" of data are
 * (N, K), as tinker_topk_targets() makes them.  state is not used. */
TINKER_API tinker_var *tinker_loss_reverse_kl(tinker_tape *tape, const tinker_datum *data,
                                              tinker_var *const *logprobs, size_t n, void *state);

/* Datums whose targets are the K likeliest tokens of a teacher at each position, weighted by its
 * probabilities over them; positions that weigh nothing in data get weight 0. */
typedef struct tinker_topk_data tinker_topk_data;
TINKER_API tinker_topk_data *tinker_topk_targets(tinker_sampler *teacher, const tinker_datum *data,
                                                 size_t n, size_t k, int64_t timeout_ms,
                                                 tinker_error *err);
/* Borrowed until free. */
TINKER_API const tinker_datum *tinker_topk_datums(const tinker_topk_data *x, size_t *n);
/* Mean entropy of the teacher over the positions that count. */
TINKER_API double tinker_topk_entropy(const tinker_topk_data *x);
TINKER_API void tinker_topk_free(tinker_topk_data *x);

/* ---- grading ------------------------------------------------------------------------------------ */

/* Judges answers.  spec: "exact", "contains", "regex[:PATTERN]", "number[:TOLERANCE]",
 * "choice[:LETTERS]", "boxed", "json[:PATH]", "length:A-B" (tokens), "cmd:COMMAND"; a weight may
 * follow: "length:1-40@0.1".  A command is started once and kept; it reads one JSON object per line
 * and answers each with a line: a number, or {"id", "score", "metrics"?, "feedback"?}. */
typedef struct tinker_grader tinker_grader;

typedef struct tinker_grader_options {
    size_t size;                /* set by TINKER_GRADER_OPTIONS_INIT */
    int ignore_case, normalize; /* exact and contains */
    int64_t timeout_ms;         /* of one answer of a command */
    size_t ahead;               /* requests that a command has open */
    const char *run_dir;        /* told to the command as TINKER_RUN_DIR; NULL: none */
    int log_fd;                 /* stderr of the command; -1: nowhere */
    size_t workers;             /* processes of the command, each with a part of the answers */
} tinker_grader_options;
#define TINKER_GRADER_OPTIONS_INIT                                   \
    {                                                                \
        sizeof(tinker_grader_options), 0, 0, 30000, 32, NULL, -1, 1, \
    }

/* NULL with *err set: TINKER_EINVAL names what is wrong with spec, TINKER_ENOMEM.  A command is
 * started by the first answer that it has to judge. */
TINKER_API tinker_grader *tinker_grader_new(const char *spec, const tinker_grader_options *opts,
                                            tinker_error *err);
/* Ends its command: 5 s after its input was closed, by a signal. */
TINKER_API void tinker_grader_free(tinker_grader *g);
/* "number", "cmd", ... and the weight; borrowed. */
TINKER_API const char *tinker_grader_name(const tinker_grader *g);
TINKER_API double tinker_grader_weight(const tinker_grader *g);

/* One answer to be judged, and the judgment.  Zero-initialize, then fill; only text is needed by
 * all, expected by most. */
typedef struct tinker_grade {
    const char *text;     /* the answer */
    const char *expected; /* NULL: none; a JSON array of texts: any of them */
    const char *row;      /* the row, a JSON object; NULL: none */
    const char *prompt;   /* JSON array of messages; NULL: none */
    const char *message;  /* JSON object; NULL: made from text */
    const char *stop_reason, *split;
    size_t tokens;
    int64_t step, group, sample;
    int64_t turn; /* of a conversation with an environment, from 1; 0: it is none */
    int probe;
    double score;     /* out; NaN: failed */
    char reason[128]; /* out: why it failed, or feedback of a command */
    double format;    /* out: "format" among the metrics of a command; NaN: none */
    /* out, of a command that is an environment: the messages that follow as a JSON array, to be
     * freed, or NULL; and whether the conversation has ended */
    char *observation;
    int done;
} tinker_grade;
/* Judge items[0..n).  An item that cannot be judged is no error: its score is NaN.  TINKER_ESTATE:
 * the command ends again and again without an answer.  Blocks on commands. */
TINKER_API tinker_status tinker_grader_run(tinker_grader *g, tinker_grade *items, size_t n,
                                           tinker_error *err);
/* One answer.  TINKER_EINVAL: it could not be judged. */
TINKER_API tinker_status tinker_grader_score(tinker_grader *g, const char *text,
                                             const char *expected, const char *row_json,
                                             double *score, tinker_error *err);
/* Probability that one of k answers is right, from n answers of which `correct` were. */
TINKER_API double tinker_pass_at_k(size_t n, size_t correct, size_t k);

/* ---- run directories ---------------------------------------------------------------------------- */

/* A folder with config.json, metrics.jsonl, checkpoints.jsonl, logs.log and metrics.svg, as the
 * cookbook's tools read it. */
typedef struct tinker_run tinker_run;
typedef enum tinker_run_mode {
    TINKER_RUN_NEW = 0,  /* TINKER_ESTATE when the folder is not empty */
    TINKER_RUN_RESUME,   /* continue what is there, or begin */
    TINKER_RUN_OVERWRITE /* remove the files of a run first */
} tinker_run_mode;

typedef struct tinker_checkpoint_record {
    const char *name, *state_path, *sampler_path; /* paths NULL: none */
    int64_t batch, epoch;                         /* epoch -1: not told */
    int rolling;
    const char *extra; /* JSON object of further members; NULL: none */
} tinker_checkpoint_record;

/* Take the folder for this process (TINKER_ESTATE: another one has it) and write config_json, an
 * object, to config.json unless that is there.  NULL with *err set.  Blocks on files, like all of
 * these. */
TINKER_API tinker_run *tinker_run_open(const char *dir, tinker_run_mode mode,
                                       const char *config_json, tinker_error *err);
/* Writes metrics.svg.  NULL is allowed. */
TINKER_API void tinker_run_close(tinker_run *run);
/* The last record with a state to continue from; NULL: none.  Borrowed. */
TINKER_API const tinker_checkpoint_record *tinker_run_last(const tinker_run *run);
/* Cut metrics.jsonl before `step`, where a resumed run goes on; what is cut is kept in
 * metrics.jsonl.bak. */
TINKER_API tinker_status tinker_run_rewind(tinker_run *run, size_t step, tinker_error *err);
/* Append a line; names that are NULL are left out. */
TINKER_API tinker_status tinker_run_log(tinker_run *run, size_t step, const tinker_named_number *m,
                                        size_t n, tinker_error *err);
TINKER_API tinker_status tinker_run_checkpoint(tinker_run *run, const tinker_checkpoint_record *c,
                                               tinker_error *err);
/* Append a line "HH:MM:SS.mmm LEVEL text" to logs.log. */
TINKER_API void tinker_run_note(tinker_run *run, const char *level, const char *text);
/* The descriptor of logs.log, for commands; borrowed. */
TINKER_API int tinker_run_log_fd(const tinker_run *run);
/* config.json as it was found; NULL: the run is new.  Borrowed. */
TINKER_API const char *tinker_run_config(const tinker_run *run);
/* Write metrics.svg from metrics.jsonl now. */
TINKER_API tinker_status tinker_run_plot(tinker_run *run, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
