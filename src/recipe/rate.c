/* rate.c - learning rates: schedules, a rule by model, and sizes of adapters.
 *
 * The table holds what the cookbook knows of the models of the hosted service: LoRA parameters
 * per rank of the three groups of modules, hidden sizes, and whether its rule for a learning rate
 * was calibrated for the family. */
#include <tinker/recipe.h>

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"

/* ---- names ---- */

/* In the order of their enums in <tinker/recipe.h>. */
static const char *const schedules[] = { "linear", "cosine", "constant" };
static const char *const advantages[] = { "center", "grpo", "rloo", "raw" };
static const char *const preferences[] = { "dpo", "ipo", "hinge", "cdpo", "simpo", "orpo" };
static const char *const forms[] = {
    "auto",   "messages",          "sharegpt",        "pair",   "comparison",
    "alpaca", "prompt-completion", "question-answer", "tokens", "text",
    "prompt"
};

/* The place of name in names[0..n), or -1 with *err listing them. 256 bytes hold the longest
 * list; the message is cut, not overrun, should one grow. */
static int find_name(const char *const *names, size_t n, const char *what, const char *name,
                     tinker_error *err)
{
    char all[256] = "";
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0)
            return (int)i;
        strncat(all, i ? ", " : "", sizeof(all) - strlen(all) - 1);
        strncat(all, names[i], sizeof(all) - strlen(all) - 1);
    }
    err_set(err, TINKER_EINVAL, "%s '%.40s' is not one of %s", what, name, all);
    return -1;
}

const char *tinker_lr_name(tinker_lr schedule)
{
    return (size_t)schedule < ARRAY_LEN(schedules) ? schedules[schedule] : NULL;
}

tinker_status tinker_lr_parse(const char *name, tinker_lr *out, tinker_error *err)
{
    int i = find_name(schedules, ARRAY_LEN(schedules), "schedule", name, err);
    if (i < 0)
        return TINKER_EINVAL;
    *out = (tinker_lr)i;
    return TINKER_OK;
}

const char *tinker_advantage_name(tinker_advantage how)
{
    return (size_t)how < ARRAY_LEN(advantages) ? advantages[how] : NULL;
}

tinker_status tinker_advantage_parse(const char *name, tinker_advantage *out, tinker_error *err)
{
    int i = find_name(advantages, ARRAY_LEN(advantages), "advantage", name, err);
    if (i < 0)
        return TINKER_EINVAL;
    *out = (tinker_advantage)i;
    return TINKER_OK;
}

const char *tinker_preference_name(tinker_preference loss)
{
    return (size_t)loss < ARRAY_LEN(preferences) ? preferences[loss] : NULL;
}

tinker_status tinker_preference_parse(const char *name, tinker_preference *out, tinker_error *err)
{
    int i = find_name(preferences, ARRAY_LEN(preferences), "loss", name, err);
    if (i < 0)
        return TINKER_EINVAL;
    *out = (tinker_preference)i;
    return TINKER_OK;
}

const char *tinker_row_form_name(tinker_row_form form)
{
    return (size_t)form < ARRAY_LEN(forms) ? forms[form] : NULL;
}

tinker_status tinker_row_form_parse(const char *name, tinker_row_form *out, tinker_error *err)
{
    int i = find_name(forms, ARRAY_LEN(forms), "format", name, err);
    if (i < 0)
        return TINKER_EINVAL;
    *out = (tinker_row_form)i;
    return TINKER_OK;
}

/* ---- schedules ---- */

/* Warm-up counts from 1, so that the first step is not wasted on a rate of 0. Linear and cosine
 * reach 0 one step after the last. */
double tinker_lr_multiplier(tinker_lr schedule, size_t step, size_t total, size_t warmup)
{
    if (step < warmup)
        return (double)(step + 1) / (double)warmup;
    double i = (double)(step - warmup);
    double n = total > warmup ? (double)(total - warmup) : 1;
    switch (schedule) {
    case TINKER_LR_LINEAR:
        return 1 - i / n;
    case TINKER_LR_COSINE:
        return 0.5 * (1 + cos(acos(-1) * i / n));
    default:
        return 1;
    }
}

/* ---- models ---- */

/* Sizes are per unit of rank: rank times the sum of the groups that are trained is the number of
 * parameters. unembed is hidden + vocabulary, the two sides of one LoRA pair. */
static const struct model_size {
    const char *org, *names; /* names separated by blanks */
    int64_t hidden, mlp, attn, unembed;
} sizes[] = {
    { "deepseek-ai", "DeepSeek-V3.1 DeepSeek-V3.1-Base", 7168, 94307328, 2440000, 136448 },
    { "deepseek-ai", "DeepSeek-V4.1-Flash DeepSeek-V4.1-Flash-1017", 5120, 107673600, 1013760,
      134400 },
    { "meta-llama", "Llama-3.1-70B Llama-3.3-70B-Instruct", 8192, 8847360, 4096000, 136448 },
    { "meta-llama", "Llama-3.1-8B Llama-3.1-8B-Instruct", 4096, 1769472, 851968, 132352 },
    { "meta-llama", "Llama-3.2-1B", 2048, 491520, 212992, 130304 },
    { "meta-llama", "Llama-3.2-3B", 3072, 946176, 573440, 131328 },
    { "moonshotai", "Kimi-K2-Thinking Kimi-K2.5 Kimi-K2.6", 7168, 144583680, 1940288, 171008 },
    { "nvidia", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
      2688, 11346176, 584832, 133760 },
    { "nvidia", "NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 8192, 254529536, 4134912, 139264 },
    { "nvidia",
      "NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16 NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 4096,
      111349760, 1675264, 135168 },
    { "openai", "gpt-oss-120b", 2880, 40124160, 746496, 203968 },
    { "openai", "gpt-oss-20b", 2880, 6842880, 497664, 203968 },
    { "Qwen", "Qwen3-235B-A22B-Instruct-2507 Qwen3-VL-235B-A22B-Instruct", 4096, 56598528, 3176448,
      156032 },
    { "Qwen",
      "Qwen3-30B-A3B Qwen3-30B-A3B-Base Qwen3-30B-A3B-Instruct-2507 Qwen3-VL-30B-A3B-Instruct",
      2048, 14450688, 835584, 153984 },
    { "Qwen", "Qwen3-32B", 5120, 5898240, 2490368, 157056 },
    { "Qwen", "Qwen3-4B-Instruct-2507", 2560, 1327104, 737280, 154496 },
    { "Qwen", "Qwen3-8B Qwen3-8B-Base", 4096, 1769472, 958464, 156032 },
    { "Qwen", "Qwen3.5-27B Qwen3.6-27B Qwen3.8-27B", 5120, 4325376, 2965504, 253440 },
    { "Qwen", "Qwen3.5-35B-A3B Qwen3.5-35B-A3B-Base Qwen3.6-35B-A3B", 2048, 16281600, 1013760,
      250368 },
    { "Qwen", "Qwen3.5-397B-A17B", 4096, 96030720, 2841600, 252416 },
    { "Qwen", "Qwen3.5-4B", 2560, 1130496, 897024, 250880 },
    { "Qwen", "Qwen3.5-9B Qwen3.5-9B-Base", 4096, 1572864, 1130496, 252416 },
    { "thinkingmachines", "Inkling", 6144, 154705920, 3424256, 207168 },
    { "thinkingmachines", "Inkling-Small", 4096, 64503808, 1311744, 205120 },
    { "zai-org", "GLM-5.3", 6144, 121356288, 2920320, 161024 },
    { "zai-org", "GLM-5.3-Flash", 4096, 75755520, 2009088, 158976 },
};

/* Is s[0..n) one of the words of `names`? */
static bool has_word(const char *names, const char *s, size_t n)
{
    while (*names) {
        size_t len = strcspn(names, " ");
        if (len == n && memcmp(names, s, n) == 0)
            return true;
        names += len;
        names += *names == ' ';
    }
    return false;
}

/* A ":checkpoint" behind the name does not matter. */
static const struct model_size *find_model(const char *model)
{
    const char *slash = strchr(model, '/');
    for (size_t i = 0; slash && i < ARRAY_LEN(sizes); i++)
        if (has_word(sizes[i].org, model, (size_t)(slash - model)) &&
            has_word(sizes[i].names, slash + 1, strcspn(slash + 1, ":")))
            return &sizes[i];
    return NULL;
}

int64_t tinker_lora_count(const char *model, int64_t rank, int mlp, int attn, int unembed)
{
    const struct model_size *m = find_model(model);
    return m ? rank * ((mlp ? m->mlp : 0) + (attn ? m->attn : 0) + (unembed ? m->unembed : 0)) : -1;
}

static bool contains_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (; *text; text++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)text[i]) == word[i])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* Llama-like models want smaller rates the larger they are, Qwen-like ones hardly. The smallest
 * models are taken as 512 wide: the rule was fitted to large ones and would go astray. rate =
 * 5e-5 * (10 for LoRA) * (2000 / hidden)^exponent. NaN for a known model of a family for which
 * the rule was not calibrated: no number is better than a wrong one. */
double tinker_lr_auto(const char *model, const char *model_type, int64_t hidden, int lora)
{
    enum { NARROWEST = 512 };
    const struct model_size *known = find_model(model);
    double exponent;
    if (contains_word(model, "llama"))
        exponent = 0.781;
    else if (contains_word(model, "qwen"))
        exponent = 0.0775;
    else if (known || !model_type)
        return NAN;
    else if (strstr(model_type, "llama") || strstr(model_type, "mistral") ||
             strstr(model_type, "smollm"))
        exponent = 0.781;
    else
        exponent = 0.0775;
    if (known)
        hidden = known->hidden;
    else if (hidden > 0 && hidden < NARROWEST)
        hidden = NARROWEST;
    return hidden > 0 ? 5e-5 * (lora ? 10 : 1) * pow(2000.0 / (double)hidden, exponent) : NAN;
}
