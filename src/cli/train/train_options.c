/* train_options.c - see train_options.h. */
#include "cli/train/train_options.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/buf.h"
#include "cli/command.h"
#include "cli/output/out.h"

/* Sets of kinds for the last column of the table: each option names the commands that have it. */
enum { ALL = TRAIN_SFT | TRAIN_DPO | TRAIN_RL | TRAIN_DISTILL, FILES = TRAIN_SFT | TRAIN_DISTILL };
enum { SAMPLED = TRAIN_RL | TRAIN_DISTILL, ROWS = TRAIN_SFT | TRAIN_DPO | TRAIN_DISTILL };

/* Spellings of the choices.  tinker_row_form_parse() and its siblings know them, too; they are
 * here so that --help and completion can list them. */
static const char *const forms[] = { "auto",
                                     "messages",
                                     "sharegpt",
                                     "pair",
                                     "alpaca",
                                     "prompt-completion",
                                     "question-answer",
                                     "comparison",
                                     "tokens",
                                     "text",
                                     "prompt",
                                     NULL };
static const char *const truncations[] = { "drop", "cut", "fail", NULL };
static const char *const reductions[] = { "mean", "none", NULL };
static const char *const lasts[] = { "drop", "keep", NULL };
static const char *const schedules[] = { "linear", "cosine", "constant", NULL };
static const char *const preferences[] = { "dpo", "ipo", "hinge", "cdpo", "simpo", "orpo", NULL };
static const char *const advantages[] = { "center", "grpo", "rloo", "raw", NULL };
static const char *const sample_modes[] = { "group", "each", NULL };
static const char *const advantage_norms[] = { "none", "token", NULL };
static const char *const grader_errors[] = { "drop", "zero", "fail", NULL };
static const char *const templates[] = { "none", "math", "gsm", "choice", NULL };
static const char *const modes[] = { "auto", "off-policy", "on-policy", NULL };

/* Defaults and values live in struct train_options; a row of the table points into it by offset,
 * since the struct of a command exists only when it runs. */
#define AT(member) offsetof(struct train_options, member)

/* As struct opt, with the place of the value and the kinds of training that have it. */
static const struct train_row {
    const char *name;
    char letter;
    enum opt_kind kind;
    const char *value, *help;
    size_t at;
    const char *const *choices;
    unsigned kinds;
} table[] = {
    { "data", 'd', OPT_STRING, "FILE", "rows to train on: JSON Lines, or one JSON array", AT(data),
      NULL, ALL },
    { "model", 'm', OPT_STRING, "NAME", "base model (default: the only one there is)", AT(model),
      NULL, ALL },
    { "out", 'o', OPT_STRING, "DIR", "folder of the run (default ./tinker-runs/DATE-KIND-NAME)",
      AT(out), NULL, ALL },
    { "teacher", 0, OPT_STRING, "NAME|PATH",
      "model, tinker:// path of weights, or last, to learn from", AT(teacher), NULL,
      TRAIN_DISTILL },
    { "mode", 0, OPT_CHOICE, "MODE",
      "off-policy: on the rows' answers; on-policy: on the student's own (auto: by the rows)",
      AT(mode), modes, TRAIN_DISTILL },
    { "topk", 0, OPT_INT, "K", "likeliest tokens of the teacher, off-policy (default 20)", AT(topk),
      NULL, TRAIN_DISTILL },
    { "grader", 'g', OPT_LIST, "GRADER",
      "exact, contains, regex:RE, number[:TOL], choice[:ABCD], boxed, json[:PATH], length:A-B, "
      "cmd:COMMAND; @WEIGHT may follow; repeat to add up",
      AT(graders), NULL, ALL },
    { "reward-cmd", 0, OPT_STRING, "COMMAND", "the same as --grader cmd:COMMAND", AT(reward_cmd),
      NULL, TRAIN_RL },
    { "ignore-case", 0, OPT_FLAG, NULL, "exact and contains ignore case", AT(ignore_case), NULL,
      ALL },
    { "normalize", 0, OPT_FLAG, NULL, "and blanks, and a final full stop", AT(normalize), NULL,
      ALL },
    { "grader-timeout", 0, OPT_DURATION, "TIME", "longest wait for a grader command (default 30s)",
      AT(grader_timeout), NULL, ALL },
    { "grader-workers", 0, OPT_INT, "N", "processes of a grader command (default 1)",
      AT(grader_workers), NULL, ALL },
    { "env-cmd", 0, OPT_STRING, "COMMAND",
      "a program that replies to each answer, for conversations of several turns", AT(env_cmd),
      NULL, TRAIN_RL },
    { "turns", 0, OPT_INT, "N", "most answers in a conversation with it (default 8)", AT(turns),
      NULL, TRAIN_RL },
    { "grader-error", 0, OPT_CHOICE, "WHAT", "an answer that cannot be judged: drop, zero, fail",
      AT(grader_error), grader_errors, TRAIN_RL },
    { "no-probe", 0, OPT_FLAG, NULL, "do not judge the first expected answer before sampling",
      AT(no_probe), NULL, TRAIN_RL },
    { "group-size", 0, OPT_INT, "N", "answers for each prompt (rl 8, distill 4)", AT(group_size),
      NULL, SAMPLED },
    { "groups", 0, OPT_INT, "N", "prompts of an iteration (rl 32, distill 64; cut to the rows)",
      AT(groups), NULL, SAMPLED },
    { "max-tokens", 0, OPT_INT, "N", "longest answer (rl 512, distill 1024)", AT(max_tokens), NULL,
      SAMPLED },
    { "temperature", 0, OPT_DOUBLE, "T", "of sampling (default 1.0)", AT(temperature), NULL,
      SAMPLED },
    { "loss", 0, OPT_STRING, "NAME",
      "importance_sampling, ppo, cispo, dro; grpo, dapo, reinforce are settings of these", AT(loss),
      NULL, TRAIN_RL },
    { "loss-config", 0, OPT_LIST, "K=V", "a setting of the loss; repeat for more", AT(loss_config),
      NULL, TRAIN_RL },
    { "advantage", 0, OPT_CHOICE, "HOW", "center, grpo, rloo, raw (default center)", AT(advantage),
      advantages, TRAIN_RL },
    { "advantage-norm", 0, OPT_CHOICE, "HOW",
      "token: a long answer weighs as much as a short one (default none)", AT(advantage_norm),
      advantage_norms, TRAIN_RL },
    { "length-reward", 0, OPT_STRING, "X|clamp",
      "reward of an answer that was cut off; clamp: at most 0 (default: as it is judged)",
      AT(length_reward), NULL, TRAIN_RL },
    { "async", 0, OPT_INT, "K",
      "sample up to K iterations ahead of training, with weights so old (default 0)", AT(ahead),
      NULL, SAMPLED },
    { "substeps", 0, OPT_INT, "N", "optimizer steps for each iteration (default 1)", AT(substeps),
      NULL, SAMPLED },
    { "kl", 0, OPT_DOUBLE, "COEF",
      "rl: penalty on leaving the reference (default 0); distill: weight of the teacher (default "
      "1)",
      AT(kl), NULL, SAMPLED },
    { "kl-discount", 0, OPT_DOUBLE, "GAMMA", "carry it back to earlier tokens (default 0)",
      AT(kl_discount), NULL, SAMPLED },
    { "kl-reference", 0, OPT_STRING, "NAME|PATH", "the reference (default: the base model)",
      AT(kl_reference), NULL, TRAIN_RL },
    { "post-kl", 0, OPT_FLAG, NULL, "also measure how far each iteration moves the model",
      AT(post_kl), NULL, SAMPLED },
    { "keep-constant-groups", 0, OPT_FLAG, NULL, "train groups whose rewards are all equal, too",
      AT(keep_constant), NULL, TRAIN_RL },
    { "template", 0, OPT_CHOICE, "NAME", "ask for the answer in a form: none, math, gsm, choice",
      AT(template), templates, TRAIN_RL },
    { "system", 0, OPT_STRING, "TEXT", "system message before every prompt", AT(system), NULL,
      SAMPLED },
    { "fewshot", 0, OPT_STRING, "FILE", "messages before every prompt, a JSON array", AT(fewshot),
      NULL, SAMPLED },
    { "prompt-prefix", 0, OPT_STRING, "TEXT", "before the last user text", AT(prompt_prefix), NULL,
      SAMPLED },
    { "prompt-suffix", 0, OPT_STRING, "TEXT", "behind the last user text", AT(prompt_suffix), NULL,
      SAMPLED },
    { "format-coef", 0, OPT_DOUBLE, "X",
      "reward lost by an answer that does not end by itself (default 0; 0.1 with a template)",
      AT(format_coef), NULL, TRAIN_RL },
    { "sample-mode", 0, OPT_CHOICE, "MODE",
      "group: one request for each prompt; each: for each answer", AT(sample_mode), sample_modes,
      SAMPLED },
    { "sample-seed", 0, OPT_INT, "N", "seed of sampling (default: --seed)", AT(sample_seed), NULL,
      SAMPLED },
    { "no-sample-seed", 0, OPT_FLAG, NULL, "sample without seeds: not repeatable",
      AT(no_sample_seed), NULL, SAMPLED },
    { "no-rollout-text", 0, OPT_FLAG, NULL, "keep no texts of answers in the run's folder",
      AT(no_rollout_text), NULL, SAMPLED },
    { "beta", 0, OPT_DOUBLE, "BETA", "strength of the reference (default 0.1)", AT(beta), NULL,
      TRAIN_DPO },
    { "loss", 0, OPT_CHOICE, "NAME", "dpo, ipo, hinge, cdpo, simpo, orpo (default dpo)",
      AT(preference), preferences, TRAIN_DPO },
    { "label-smoothing", 0, OPT_DOUBLE, "X", "share of labels taken as wrong, cdpo (default 0)",
      AT(label_smoothing), NULL, TRAIN_DPO },
    { "gamma", 0, OPT_DOUBLE, "X", "margin, simpo (default 0.5)", AT(gamma), NULL, TRAIN_DPO },
    { "lambda", 0, OPT_DOUBLE, "X", "weight of the odds ratio, orpo (default 0.1)", AT(lambda),
      NULL, TRAIN_DPO },
    { "reference", 0, OPT_STRING, "NAME|PATH", "reference (default: the weights at the start)",
      AT(reference), NULL, TRAIN_DPO },
    /* data */
    { "data-format", 0, OPT_CHOICE, "FORM", "form of the rows (default auto: by the first row)",
      AT(form), forms, ALL },
    { "test-data", 0, OPT_STRING, "FILE", "rows to evaluate on", AT(test_data), NULL, ROWS },
    { "test-size", 0, OPT_INT, "N", "set so many rows apart for that", AT(test_size), NULL, ROWS },
    { "renderer", 0, OPT_STRING, "NAME", "chat format (default: the model's)", AT(renderer), NULL,
      ALL },
    { "tokenizer", 0, OPT_STRING, "DIR", "directory of the tokenizer (default: the model's)",
      AT(tokenizer), NULL, ALL },
    { "train-on", 0, OPT_STRING, "WHAT",
      "all_assistant_messages, last_assistant_message, all_tokens, ...", AT(train_on), NULL,
      FILES },
    { "max-length", 0, OPT_INT, "N", "longest row in tokens (32768; dpo 8192)", AT(max_length),
      NULL, ROWS },
    { "on-truncate", 0, OPT_CHOICE, "WHAT", "longer rows: drop, cut, fail (default drop)",
      AT(on_truncate), truncations, ROWS },
    { "reduction", 0, OPT_CHOICE, "HOW", "weights of a row: mean sums to 1, none (default mean)",
      AT(reduction), reductions, TRAIN_SFT },
    { "shuffle-seed", 0, OPT_STRING, "N", "seed of the order (default 0); none: as in the file",
      AT(shuffle_seed), NULL, ALL },
    { "order", 0, OPT_STRING, "FILE", "row numbers to train, one per line", AT(order), NULL,
      TRAIN_SFT },
    { "write-order", 0, OPT_STRING, "FILE", "write the order of all epochs to a file",
      AT(write_order), NULL, TRAIN_SFT },
    /* training */
    { "epochs", 'e', OPT_INT, "N", "passes over the data (default 1)", AT(epochs), NULL, ALL },
    { "batch-size", 'b', OPT_INT, "N",
      "rows for each step, cut to what there is (sft 128, dpo 256, distill 64)", AT(batch_size),
      NULL, ROWS },
    { "last-batch", 0, OPT_CHOICE, "WHAT", "fewer rows at the end of an epoch: drop, keep",
      AT(last_batch), lasts, ROWS },
    { "max-steps", 0, OPT_INT, "N", "stop after so many steps", AT(max_steps), NULL, ALL },
    { "lr", 0, OPT_STRING, "auto|X", "learning rate (default auto)", AT(lr), NULL, ALL },
    { "lr-schedule", 0, OPT_CHOICE, "NAME",
      "linear, cosine, constant (default linear; constant with rl, distill)", AT(schedule),
      schedules, ALL },
    { "warmup", 0, OPT_INT, "N", "steps in which the rate rises", AT(warmup), NULL, ALL },
    { "min-lr", 0, OPT_DOUBLE, "X", "never below", AT(min_lr), NULL, ALL },
    { "rank", 'r', OPT_INT, "N", "rank of the adapter (default 32)", AT(rank), NULL, ALL },
    { "seed", 0, OPT_INT, "N", "seed of the adapter, and of sampling", AT(seed), NULL, ALL },
    { "beta1", 0, OPT_DOUBLE, "X", "Adam (default 0.9)", AT(beta1), NULL, ALL },
    { "beta2", 0, OPT_DOUBLE, "X", "Adam (default 0.95)", AT(beta2), NULL, ALL },
    { "eps", 0, OPT_DOUBLE, "X", "Adam (default 1e-8)", AT(eps), NULL, ALL },
    { "weight-decay", 0, OPT_DOUBLE, "X", "Adam (default 0)", AT(weight_decay), NULL, ALL },
    { "grad-clip", 0, OPT_DOUBLE, "X", "largest norm of the gradient (default 0: any)",
      AT(grad_clip), NULL, ALL },
    { "no-mlp", 0, OPT_FLAG, NULL, "no adapter on the MLP layers", AT(no_mlp), NULL, ALL },
    { "no-attn", 0, OPT_FLAG, NULL, "no adapter on attention", AT(no_attn), NULL, ALL },
    { "no-unembed", 0, OPT_FLAG, NULL, "no adapter on the output layer", AT(no_unembed), NULL,
      ALL },
    { "submit-ahead", 0, OPT_INT, "N", "steps sent before one is awaited (default 1)",
      AT(submit_ahead), NULL, TRAIN_SFT },
    /* checkpoints and evaluation */
    { "resume", 0, OPT_FLAG, NULL, "go on with the run in --out", AT(resume), NULL, ALL },
    { "overwrite", 0, OPT_FLAG, NULL, "begin anew in --out", AT(overwrite), NULL, ALL },
    { "force-resume", 0, OPT_FLAG, NULL, "resume although data or settings differ",
      AT(force_resume), NULL, ALL },
    { "init", 0, OPT_STRING, "PATH", "begin with saved weights: tinker://RUN/weights/NAME, or last",
      AT(init), NULL, ALL },
    { "with-optimizer", 0, OPT_FLAG, NULL, "and with their optimizer", AT(with_optimizer), NULL,
      ALL },
    { "save-every", 0, OPT_INT, "N",
      "checkpoint every so many steps (default 20; 0: only the last)", AT(save_every), NULL, ALL },
    { "save-every-tokens", 0, OPT_INT, "N", "and after so many tokens (default 0: not by tokens)",
      AT(save_every_tokens), NULL, TRAIN_SFT },
    { "save-every-seconds", 0, OPT_DURATION, "TIME", "and after so long (default 0: not by time)",
      AT(save_every_seconds), NULL, ALL },
    { "rolling-save-every", 0, OPT_INT, "N",
      "cheap checkpoint, of which the last is kept (default 0: none)", AT(rolling_save_every), NULL,
      ALL },
    { "ttl", 0, OPT_DURATION, "TIME", "how long checkpoints live but the last one (default 7d)",
      AT(ttl), NULL, ALL },
    { "rolling-ttl", 0, OPT_DURATION, "TIME", "and the cheap ones (default 2h)", AT(rolling_ttl),
      NULL, ALL },
    { "eval-every", 0, OPT_INT, "N", "evaluate every so many steps (default 10; rl, distill 20)",
      AT(eval_every), NULL, ALL },
    { "eval-data", 0, OPT_STRING, "FILE", "questions to sample and grade while training",
      AT(eval_data), NULL, ALL },
    { "eval-n", 0, OPT_INT, "N", "answers for each of them (default 1)", AT(eval_n), NULL, ALL },
    { "eval-temperature", 0, OPT_DOUBLE, "T", "(default 0)", AT(eval_temperature), NULL, ALL },
    { "eval-max-tokens", 0, OPT_INT, "N", "(default 256)", AT(eval_max_tokens), NULL, ALL },
    { "sample-every", 0, OPT_INT, "N", "show answers every so many steps (default 0: never)",
      AT(sample_every), NULL, ALL },
    { "sample-prompts", 0, OPT_STRING, "FILE",
      "what is asked for them (default: the first rows of --test-data, else of --data)",
      AT(sample_prompts), NULL, ALL },
    { "name", 0, OPT_STRING, "TEXT", "of the run, for people", AT(name), NULL, ALL },
    { "metadata", 0, OPT_LIST, "K=V", "kept with the run at the service; repeat for more",
      AT(metadata), NULL, ALL },
    { "dry-run", 0, OPT_FLAG, NULL, "check the data, show the plan, send nothing", AT(dry_run),
      NULL, ALL },
};

/* Defaults are the cookbook's for each kind of loop, so that a run without options is comparable
 * with its runs.  NaN marks defaults that depend on another option and are settled later (eps
 * with the mode of distillation, format_coef with the template). */
static void set_defaults(struct train_options *o, enum train_kind kind)
{
    bool sampled = kind & SAMPLED;
    *o = (struct train_options){
        .form = "auto",
        .train_on = "all_assistant_messages",
        .on_truncate = "drop",
        .reduction = "mean",
        .shuffle_seed = "0",
        .last_batch = "drop",
        .lr = "auto",
        .schedule = sampled ? "constant" : "linear",
        .rank = 32,
        .epochs = 1,
        .max_steps = -1,
        .seed = TRAIN_NO_SEED,
        .submit_ahead = 1,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = NAN,
        .save_every = 20,
        .ttl = 604800,
        .rolling_ttl = 7200,
        .eval_every = sampled ? 20 : 10,
        .eval_n = 1,
        .eval_max_tokens = 256,
        .grader_timeout = 30,
        .grader_workers = 1,
        .turns = 8,
        .advantage_norm = "none",
        .sample_seed = TRAIN_NO_SEED,
        .preference = "dpo",
        .beta = 0.1,
        .gamma = 0.5,
        .lambda = 0.1,
        .loss = "importance_sampling",
        .advantage = "center",
        .sample_mode = "group",
        .template = "none",
        .grader_error = "drop",
        .substeps = 1,
        .temperature = 1,
        .format_coef = NAN,
        .mode = "auto",
        .topk = 20,
    };
    o->max_length = kind == TRAIN_DPO ? 8192 : 32768;
    o->batch_size = kind == TRAIN_DPO ? 256 : kind == TRAIN_DISTILL ? 64 : 128;
    o->group_size = kind == TRAIN_DISTILL ? 4 : 8;
    o->groups = kind == TRAIN_DISTILL ? 64 : 32;
    o->max_tokens = kind == TRAIN_DISTILL ? 1024 : 512;
    o->kl = kind == TRAIN_DISTILL ? 1 : 0;
}

/* The words of `tinker train <kind> --help`. */
static const struct {
    enum train_kind kind;
    const char *command, *about, *example;
} spells[] = {
    { TRAIN_SFT, "train sft",
      "Fine-tune a model on examples: conversations, prompts with completions, texts.\n"
      "The whole file is checked before anything is sent.",
      "tinker train sft --data mine.jsonl --test-size 4" },
    { TRAIN_DPO, "train dpo",
      "Train a model on preferences: rows with prompt, chosen and rejected.",
      "tinker train dpo --data pairs.jsonl" },
    { TRAIN_RL, "train rl",
      "Train a model by rewards: it answers the prompts, a grader judges, and better\n"
      "answers become more likely.",
      "tinker train rl --data questions.jsonl --grader number" },
    { TRAIN_DISTILL, "train distill",
      "Teach a model what another one says: on given answers, or on its own.",
      "tinker train distill --teacher tinker/tiny --data mine.jsonl" },
};

/* Contradictions that the parser cannot see, one message each.  A group of one answer has no
 * neighbor to be better than: its centered advantage is always 0, so nothing would be learned.
 * The KL penalty compares sampled log-probabilities with those of the reference, which are the
 * same distribution at temperature 1 only. */
static bool check_options(const struct train_options *o, enum train_kind kind,
                          const struct opt_spec *spec, int *status)
{
    /* The first mistake wins; one message at a time can be acted on. */
    const char *wrong = NULL;
    if (!o->data)
        wrong = "Missing option '--data'.";
    else if (o->resume && o->overwrite)
        wrong = "Give either --resume or --overwrite.";
    else if (o->resume && !o->out)
        wrong = "--resume needs --out, the folder of the run.";
    else if (o->test_data && o->test_size)
        wrong = "Give either --test-data or --test-size.";
    else if (o->no_mlp && o->no_attn && o->no_unembed)
        wrong = "Nothing is left to train.";
    else if (o->epochs < 1 || o->batch_size < 1 || o->rank < 1 || o->group_size < 1 ||
             o->groups < 1 || o->max_tokens < 1 || o->substeps < 1 || o->topk < 1)
        wrong = "Epochs, rank and sizes must be at least 1.";
    else if (kind == TRAIN_RL && o->group_size < 2 && strcmp(o->advantage, "raw") != 0)
        wrong = "Answers are compared within a group: --group-size 2 or more, or --advantage raw.";
    else if (o->grader_workers < 1 || o->grader_workers > 64)
        wrong = "--grader-workers is 1 to 64.";
    else if (o->turns < 1 || o->ahead < 0 || o->ahead > TRAIN_MAX_AHEAD)
        wrong = "--turns is at least 1, --async 0 to 16.";
    else if (kind == TRAIN_RL && !o->graders.n && !o->reward_cmd && !o->env_cmd)
        wrong = "Missing option '--grader': what is a good answer?";
    else if (kind == TRAIN_RL && o->kl != 0 && o->temperature != 1)
        wrong = "A KL penalty needs --temperature 1.";
    else if (kind == TRAIN_DISTILL && !o->teacher)
        wrong = "Missing option '--teacher'.";
    if (!wrong)
        return true;
    *status = opt_usage_error(spec, "%s", wrong);
    return false;
}

/* The rows of this kind become the options of the command; the table order is the order of
 * --help. */
bool train_options_parse(struct train_options *o, enum train_kind kind, int argc, char **argv,
                         int *status)
{
    struct opt opts[ARRAY_LEN(table)];
    size_t n = 0, s = 0;
    while (spells[s].kind != kind)
        s++;
    set_defaults(o, kind);
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        /* The parser takes an array of struct opt; it lives only as long as this call, its values
         * in *o. */
        if (table[i].kinds & kind)
            opts[n++] = (struct opt){ table[i].name,   table[i].letter, table[i].kind,
                                      table[i].value,  table[i].help,   (char *)o + table[i].at,
                                      table[i].choices };
    const struct opt_spec spec = { .command = spells[s].command,
                                   .about = spells[s].about,
                                   .opts = opts,
                                   .n_opts = n,
                                   .example = spells[s].example };
    return opt_parse(&spec, argc, argv, status) && check_options(o, kind, &spec, status);
}

/* Quoted for a shell where it is needed. */
static void put_word(struct buf *out, const char *s)
{
    bool plain = *s && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                 "-_./:=,@+%") == strlen(s);
    buf_putc(out, ' ');
    /* Inside single quotes a shell reads everything but the quote itself literally. */
    if (!plain)
        buf_putc(out, '\'');
    for (; *s; s++)
        if (*s == '\'')
            buf_puts(out, "'\\''");
        else
            buf_putc(out, *s);
    if (!plain)
        buf_putc(out, '\'');
}

/* Parsing leaves the words of argv in place, those of options before the others.
 * Options that expand to a file name stay as they were typed; a "last" was replaced by its path
 * already, see resolve_last() in trainer.c. */
void train_options_repeat(struct buf *out, const struct train_options *o, int argc, char **argv)
{
    buf_printf(out, "tinker %s", argv[0]);
    for (int i = 1; i < argc; i++) {
        /* --resume and --out are written anew at the end: the folder may have had a default
         * name, and --overwrite in the repeated command would delete the run it should continue. */
        if (strcmp(argv[i], "--resume") == 0 || strcmp(argv[i], "--overwrite") == 0)
            continue;
        if (strcmp(argv[i], "--out") == 0 || strcmp(argv[i], "-o") == 0) {
            i++;
            continue;
        }
        if (strncmp(argv[i], "--out=", 6) == 0)
            continue;
        put_word(out, argv[i]);
    }
    buf_puts(out, " --out");
    put_word(out, o->out);
    buf_puts(out, " --resume");
}
