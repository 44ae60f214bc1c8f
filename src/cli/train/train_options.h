/* train_options.h - the options of `tinker train`, of which each kind of training has some. */
#ifndef CLI_TRAIN_OPTIONS_H
#define CLI_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/recipe.h>
#include "base/buf.h"
#include "cli/args/opt.h"

enum train_kind { TRAIN_SFT = 1, TRAIN_DPO = 2, TRAIN_RL = 4, TRAIN_DISTILL = 8 };

#define TRAIN_NO_SEED INT64_MIN
enum { TRAIN_MAX_AHEAD = 16 };

struct train_options {
    /* data */
    const char *model, *data, *renderer, *tokenizer, *form, *train_on, *on_truncate, *reduction;
    const char *test_data, *shuffle_seed, *order, *write_order, *last_batch;
    int64_t test_size, max_length, batch_size;
    /* training */
    const char *lr, *schedule;
    int64_t rank, warmup, epochs, max_steps, seed, submit_ahead;
    double min_lr, beta1, beta2, eps, weight_decay, grad_clip;
    bool no_mlp, no_attn, no_unembed;
    /* checkpoints */
    const char *out, *init, *name;
    int64_t save_every, save_every_tokens, save_every_seconds, rolling_save_every, ttl, rolling_ttl;
    bool with_optimizer, resume, overwrite, force_resume, dry_run;
    struct opt_list metadata;
    /* evaluation */
    int64_t eval_every, eval_n, eval_max_tokens, sample_every;
    const char *eval_data, *sample_prompts;
    double eval_temperature;
    struct opt_list graders;
    bool ignore_case, normalize, no_probe;
    int64_t grader_timeout, grader_workers;
    /* preferences */
    const char *preference, *reference;
    double beta, label_smoothing, gamma, lambda;
    /* reinforcement */
    const char *loss, *advantage, *system, *prompt_prefix, *prompt_suffix, *sample_mode;
    const char *kl_reference, *template, *grader_error, *reward_cmd, *env_cmd, *fewshot;
    const char *length_reward, *advantage_norm;
    int64_t group_size, groups, max_tokens, substeps, turns, ahead, sample_seed;
    double temperature, kl, kl_discount, format_coef;
    bool keep_constant, no_sample_seed, no_rollout_text, post_kl;
    struct opt_list loss_config;
    /* distillation */
    const char *teacher, *mode;
    int64_t topk;
};

/* Parse; false: return *status. */
bool train_options_parse(struct train_options *o, enum train_kind kind, int argc, char **argv,
                         int *status);
/* The same command with --resume --out, for people to repeat. */
void train_options_repeat(struct buf *out, const struct train_options *o, int argc, char **argv);

#endif
