/* render_registry.c - renderers by name, names by model.
 *
 * Two tables: what each name means, and which names suit which model.  Control tokens are
 * looked up by name in the loaded vocabulary, never by number. */
#include "base/array.h"
#include "chat/render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/renderer.h>
#include "base/err.h"
#include "chat/render_custom.h"

/* Name, format, and what distinguishes the variant within its family. */
static const struct render_variant variants[] = {
    { "role_colon", &render_role_colon, RENDER_EXTENDS },
    { "llama3", &render_llama3, RENDER_EXTENDS },
    { "qwen3", &render_qwen3, 0 },
    { "qwen3_disable_thinking", &render_qwen3, RENDER_NO_THINK },
    { "qwen3_instruct", &render_qwen3, RENDER_INSTRUCT | RENDER_EXTENDS },
    { "qwen3_vl", &render_qwen_vl, RENDER_VL },
    { "qwen3_vl_instruct", &render_qwen_vl, RENDER_VL | RENDER_INSTRUCT },
    { "qwen3_5", &render_qwen_vl, RENDER_VL | RENDER_Q35 | RENDER_NEVER_EXTENDS },
    { "qwen3_5_disable_thinking", &render_qwen_vl,
      RENDER_VL | RENDER_Q35 | RENDER_NEVER_EXTENDS | RENDER_NO_THINK },
    { "qwen3_5_preserve_thinking", &render_qwen_vl,
      RENDER_VL | RENDER_Q35 | RENDER_NEVER_EXTENDS | RENDER_KEEP },
    { "qwen3_8_xhigh_reasoning", &render_qwen_vl,
      RENDER_VL | RENDER_Q35 | RENDER_Q38 | RENDER_KEEP | RENDER_NEVER_EXTENDS },
    { "qwen3_8_medium_reasoning", &render_qwen_vl,
      RENDER_VL | RENDER_Q35 | RENDER_Q38 | RENDER_KEEP | RENDER_NEVER_EXTENDS | RENDER_MEDIUM },
    { "qwen3_8_low_reasoning", &render_qwen_vl,
      RENDER_VL | RENDER_Q35 | RENDER_Q38 | RENDER_KEEP | RENDER_NEVER_EXTENDS | RENDER_LOW },
    { "qwen3_8_disable_thinking", &render_qwen_vl,
      RENDER_VL | RENDER_Q35 | RENDER_Q38 | RENDER_KEEP | RENDER_NEVER_EXTENDS | RENDER_NO_THINK },
    { "deepseekv3", &render_deepseek, RENDER_EXTENDS },
    { "deepseekv3_disable_thinking", &render_deepseek, RENDER_EXTENDS },
    { "deepseekv3_thinking", &render_deepseek, RENDER_THINKING },
    { "deepseekv4_1", &render_deepseek4, RENDER_THINKING },
    { "deepseekv4_1_low_reasoning", &render_deepseek4, RENDER_THINKING | RENDER_LOW },
    { "deepseekv4_1_max_reasoning", &render_deepseek4, RENDER_THINKING | RENDER_HIGH },
    { "deepseekv4_1_disable_thinking", &render_deepseek4, RENDER_NO_THINK | RENDER_EXTENDS },
    { "deepseekv4_1_preserve_thinking", &render_deepseek4, RENDER_THINKING | RENDER_KEEP },
    { "glm5_3_max_reasoning", &render_glm, RENDER_THINKING | RENDER_KEEP },
    { "glm5_3_low_reasoning", &render_glm, RENDER_THINKING | RENDER_KEEP | RENDER_LOW },
    { "glm5_3_high_reasoning", &render_glm, RENDER_THINKING | RENDER_KEEP | RENDER_HIGH },
    { "kimi_k2", &render_kimi, RENDER_NEVER_EXTENDS },
    { "kimi_k25", &render_kimi, RENDER_K25 | RENDER_NEVER_EXTENDS },
    { "kimi_k25_disable_thinking", &render_kimi,
      RENDER_K25 | RENDER_NO_THINK | RENDER_NEVER_EXTENDS },
    { "kimi_k26", &render_kimi, RENDER_K25 | RENDER_NEVER_EXTENDS },
    { "kimi_k26_disable_thinking", &render_kimi,
      RENDER_K25 | RENDER_NO_THINK | RENDER_NEVER_EXTENDS },
    { "kimi_k26_preserve_thinking", &render_kimi, RENDER_K25 | RENDER_KEEP | RENDER_NEVER_EXTENDS },
    { "nemotron3", &render_qwen_vl, RENDER_Q35 | RENDER_NEMOTRON },
    { "nemotron3_disable_thinking", &render_qwen_vl,
      RENDER_Q35 | RENDER_NEMOTRON | RENDER_NO_THINK },
    { "nemotron3_low_thinking", &render_qwen_vl, RENDER_Q35 | RENDER_NEMOTRON | RENDER_LOW },
    { "nemotron3_preserve_thinking", &render_qwen_vl, RENDER_Q35 | RENDER_NEMOTRON | RENDER_KEEP },
    { "nemotron3_ultra", &render_qwen_vl, RENDER_Q35 | RENDER_NEMOTRON | RENDER_ULTRA },
    { "nemotron3_ultra_disable_thinking", &render_qwen_vl,
      RENDER_Q35 | RENDER_NEMOTRON | RENDER_ULTRA | RENDER_NO_THINK },
    { "nemotron3_ultra_medium_thinking", &render_qwen_vl,
      RENDER_Q35 | RENDER_NEMOTRON | RENDER_ULTRA | RENDER_MEDIUM },
    { "nemotron3_ultra_preserve_thinking", &render_qwen_vl,
      RENDER_Q35 | RENDER_NEMOTRON | RENDER_ULTRA | RENDER_KEEP },
    { "gpt_oss_no_sysprompt", &render_harmony, RENDER_NEVER_EXTENDS },
    { "gpt_oss_low_reasoning", &render_harmony, RENDER_NEVER_EXTENDS | RENDER_LOW },
    { "gpt_oss_medium_reasoning", &render_harmony, RENDER_NEVER_EXTENDS | RENDER_MEDIUM },
    { "gpt_oss_high_reasoning", &render_harmony, RENDER_NEVER_EXTENDS | RENDER_HIGH },
    { "tml_v0", &render_tml, RENDER_EXTENDS },
};
enum { N_VARIANTS = ARRAY_LEN(variants) };

static const struct {
    const char *model;
    const char *names[5];
    /* Which renderers suit a model, best first. */
} models[] = {
    { "meta-llama/Llama-3.1-8B-Instruct", { "llama3" } },
    { "meta-llama/Llama-3.3-70B-Instruct", { "llama3" } },
    { "meta-llama/Llama-3.1-8B", { "role_colon" } },
    { "meta-llama/Llama-3.1-70B", { "role_colon" } },
    { "meta-llama/Llama-3.2-1B", { "role_colon" } },
    { "meta-llama/Llama-3.2-3B", { "role_colon" } },
    { "Qwen/Qwen3-8B-Base", { "role_colon" } },
    { "Qwen/Qwen3-30B-A3B-Base", { "role_colon" } },
    { "Qwen/Qwen3.5-9B-Base", { "role_colon" } },
    { "Qwen/Qwen3.5-35B-A3B-Base", { "role_colon" } },
    { "Qwen/Qwen3-8B", { "qwen3", "qwen3_disable_thinking" } },
    { "Qwen/Qwen3-32B", { "qwen3", "qwen3_disable_thinking" } },
    { "Qwen/Qwen3-30B-A3B", { "qwen3", "qwen3_disable_thinking" } },
    { "Qwen/Qwen3-4B-Instruct-2507", { "qwen3_instruct" } },
    { "Qwen/Qwen3-30B-A3B-Instruct-2507", { "qwen3_instruct" } },
    { "Qwen/Qwen3-235B-A22B-Instruct-2507", { "qwen3_instruct" } },
    { "Qwen/Qwen3-VL-30B-A3B-Instruct", { "qwen3_vl_instruct" } },
    { "Qwen/Qwen3-VL-235B-A22B-Instruct", { "qwen3_vl_instruct" } },
    { "Qwen/Qwen3.5-4B", { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.5-9B", { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.5-27B", { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.5-35B-A3B",
      { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.5-397B-A17B",
      { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.6-27B", { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.6-35B-A3B",
      { "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking" } },
    { "Qwen/Qwen3.8-27B",
      { "qwen3_8_xhigh_reasoning", "qwen3_8_disable_thinking", "qwen3_8_medium_reasoning",
        "qwen3_8_low_reasoning" } },
    { "deepseek-ai/DeepSeek-V3.1", { "deepseekv3", "deepseekv3_thinking" } },
    { "deepseek-ai/DeepSeek-V3.1-Base", { "role_colon" } },
    { "deepseek-ai/DeepSeek-V4.1-Flash",
      { "deepseekv4_1", "deepseekv4_1_low_reasoning", "deepseekv4_1_max_reasoning",
        "deepseekv4_1_disable_thinking", "deepseekv4_1_preserve_thinking" } },
    { "deepseek-ai/DeepSeek-V4.1-Flash-1017",
      { "deepseekv4_1", "deepseekv4_1_low_reasoning", "deepseekv4_1_max_reasoning",
        "deepseekv4_1_disable_thinking", "deepseekv4_1_preserve_thinking" } },
    { "zai-org/GLM-5.3",
      { "glm5_3_max_reasoning", "glm5_3_low_reasoning", "glm5_3_high_reasoning" } },
    { "zai-org/GLM-5.3-Flash",
      { "glm5_3_max_reasoning", "glm5_3_low_reasoning", "glm5_3_high_reasoning" } },
    { "openai/gpt-oss-20b", { "gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning" } },
    { "openai/gpt-oss-120b", { "gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning" } },
    { "thinkingmachines/Inkling", { "tml_v0" } },
    { "thinkingmachines/Inkling-Small", { "tml_v0" } },
    { "moonshotai/Kimi-K2-Thinking", { "kimi_k2" } },
    { "moonshotai/Kimi-K2.5", { "kimi_k25", "kimi_k25_disable_thinking" } },
    { "moonshotai/Kimi-K2.6",
      { "kimi_k26", "kimi_k26_disable_thinking", "kimi_k26_preserve_thinking" } },
    { "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
      { "nemotron3", "nemotron3_disable_thinking", "nemotron3_preserve_thinking" } },
    { "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
      { "nemotron3", "nemotron3_disable_thinking", "nemotron3_preserve_thinking",
        "nemotron3_low_thinking" } },
    { "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
      { "nemotron3_ultra", "nemotron3_ultra_disable_thinking", "nemotron3_ultra_medium_thinking",
        "nemotron3_ultra_preserve_thinking" } },
    { "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
      { "nemotron3_ultra", "nemotron3_ultra_disable_thinking",
        "nemotron3_ultra_preserve_thinking" } },
    { "nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16",
      { "nemotron3_ultra", "nemotron3_ultra_disable_thinking", "nemotron3_ultra_medium_thinking",
        "nemotron3_ultra_preserve_thinking" } },
};

static const char *const mode_names[] = {
    "last_assistant_message",
    "last_assistant_turn",
    "all_assistant_messages",
    "all_messages",
    "all_tokens",
    "all_user_and_system_messages",
    "customized",
};
enum { N_MODES = ARRAY_LEN(mode_names) };

const char *tinker_train_on_name(tinker_train_on mode)
{
    return (unsigned)mode < N_MODES ? mode_names[mode] : NULL;
}

tinker_status tinker_train_on_parse(const char *name, tinker_train_on *out, tinker_error *err)
{
    for (unsigned i = 0; i < N_MODES; i++) {
        if (strcmp(name, mode_names[i]) == 0) {
            *out = (tinker_train_on)i;
            return TINKER_OK;
        }
    }
    return err_set(err, TINKER_EINVAL,
                   "\"%s\" is none of last_assistant_message, last_assistant_turn, "
                   "all_assistant_messages, all_messages, all_tokens, "
                   "all_user_and_system_messages, customized",
                   name);
}

const struct render_variant *render_variant_find(const char *name)
{
    for (size_t i = 0; i < N_VARIANTS; i++)
        if (strcmp(variants[i].name, name) == 0)
            return &variants[i];
    return NULL;
}

const char *tinker_renderer_name_at(size_t i)
{
    return i < N_VARIANTS ? variants[i].name : NULL;
}

/* "model:checkpoint" names the model up to the colon. */
const char *tinker_renderer_recommended(const char *model, size_t i)
{
    size_t n = strcspn(model, ":");
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        if (strlen(models[k].model) == n && memcmp(models[k].model, model, n) == 0)
            return i < 5 ? models[k].names[i] : NULL;
    return NULL;
}

const char *tinker_renderer_for(const char *model, const tinker_tokenizer *tokenizer)
{
    static const struct {
        const char *token, *name;
        /* Control tokens that only one family has, the most specific first: several families share
     * <|im_start|>. */
    } signs[] = { { "<|content_model_end_sampling|>", "tml_v0" },
                  { "<|im_middle|>", "kimi_k25" },
                  { "<|channel|>", "gpt_oss_no_sysprompt" },
                  { "<|observation|>", "glm5_3_max_reasoning" },
                  { "<｜System｜>", "deepseekv4_1" },
                  { "<｜Assistant｜>", "deepseekv3" },
                  { "<|start_header_id|>", "llama3" },
                  { "<|im_start|>", "qwen3" } };
    const char *known = model ? tinker_renderer_recommended(model, 0) : NULL;
    if (known)
        return known;
    for (size_t i = 0; tokenizer && i < ARRAY_LEN(signs); i++) {
        if (tinker_tokenizer_id(tokenizer, signs[i].token, strlen(signs[i].token)) < 0)
            continue;
        bool thinks = tinker_tokenizer_id(tokenizer, "<think>", 7) >= 0;
        return strcmp(signs[i].name, "qwen3") == 0 && !thinks ? "qwen3_instruct" : signs[i].name;
    }
    return "role_colon";
}

int tinker_renderer_suits(const char *model, const char *name, tinker_text *warning)
{
    enum { WARNING_MAX = 4096 };
    struct buf b;
    if (!tinker_renderer_recommended(model, 0))
        return 1;
    for (size_t i = 0; tinker_renderer_recommended(model, i); i++)
        if (strcmp(tinker_renderer_recommended(model, i), name) == 0)
            return 1;
    if (!warning)
        return 0;
    buf_init(&b, WARNING_MAX);
    buf_printf(&b, "renderer %s is not made for %s, which knows", name, model);
    for (size_t i = 0; tinker_renderer_recommended(model, i); i++)
        buf_printf(&b, "%s %s", i ? "," : "", tinker_renderer_recommended(model, i));
    if (buf_ok(&b))
        tinker_text_append(warning, b.data, b.len, NULL);
    buf_clear(&b);
    return 0;
}

/* ---- objects ---- */

static int32_t find_token_id(const tinker_renderer *r, const char *token)
{
    return tinker_tokenizer_id(r->tokenizer, token, strlen(token));
}

static tinker_status find_tokens(tinker_renderer *r, tinker_error *err)
{
    const struct render_format *f = r->format;
    for (size_t i = 0; i < 6 && f->tokens[i]; i++) {
        int32_t id = find_token_id(r, f->tokens[i]);
        if (id < 0)
            return err_set(err, TINKER_EINVAL,
                           "renderer %s: the tokenizer has no token %s, so it belongs to another "
                           "family of models",
                           r->variant->name, f->tokens[i]);
        if (i < f->n_stop)
            r->stop[r->n_stop++] = id;
    }
    /* Optional: -1 where the vocabulary spells think tags with several tokens. */
    r->think_open = find_token_id(r, "<think>");
    r->think_close = find_token_id(r, "</think>");
    r->bos = f->bos ? find_token_id(r, f->bos) : -1;
    if (f->bos && r->bos < 0)
        return err_set(err, TINKER_EINVAL, "renderer %s: the tokenizer has no token %s",
                       r->variant->name, f->bos);
    if (f == &render_role_colon)
        r->bos = tinker_tokenizer_special(r->tokenizer, TINKER_TOKEN_BOS);
    return TINKER_OK;
}

tinker_renderer *tinker_renderer_new(const char *name, const tinker_tokenizer *tokenizer,
                                     const tinker_renderer_options *opts, tinker_error *err)
{
    /* A format of the program wins over a built-in one of the same name. */
    const struct render_variant *v = render_custom_find(name);
    if (!v)
        v = render_variant_find(name);
    if (!v) {
        err_set(err, TINKER_EINVAL, "unknown renderer \"%s\"", name);
        return NULL;
    }
    tinker_renderer *r = calloc(1, sizeof(*r));
    if (!r) {
        err_nomem(err, "a renderer");
        render_custom_release(v);
        return NULL;
    }
    r->variant = v;
    r->format = v->format;
    r->flags = v->flags;
    r->tokenizer = (tinker_tokenizer *)tokenizer; /* only ever read */
    static const tinker_renderer_options defaults = TINKER_RENDERER_OPTIONS_INIT;
    tinker_status status = TINKER_OK;
    r->opts = defaults;
    if (opts)
        status = opts_copy(&r->opts, sizeof(r->opts), opts, "tinker_renderer_options", err);
    const char *date = r->opts.date;
    if (status == TINKER_OK && date && strlen(date) >= sizeof(r->date))
        status = err_set(err, TINKER_EINVAL, "date \"%s\" is not of the form YYYY-MM-DD", date);
    else if (status == TINKER_OK && date)
        snprintf(r->date, sizeof(r->date), "%s", date);
    r->opts.safe_content |= r->format->plain_content;
    r->opts.date = NULL; /* the caller's text is not kept */
    if (r->opts.thinking_in_history > 0)
        r->flags |= RENDER_KEEP;
    else if (r->opts.thinking_in_history < 0)
        r->flags &= ~(unsigned)RENDER_KEEP;
    if (status != TINKER_OK || find_tokens(r, err) != TINKER_OK) {
        tinker_renderer_free(r);
        return NULL;
    }
    return r;
}

void tinker_renderer_free(tinker_renderer *r)
{
    if (!r)
        return;
    render_custom_release(r->variant);
    free(r);
}

const char *tinker_renderer_name(const tinker_renderer *r)
{
    return r->variant->name;
}

/* Kept thinking makes history equal to what was sampled, except where the format itself rewrites
 * it. */
int tinker_renderer_has_extension(const tinker_renderer *r)
{
    if (r->flags & RENDER_EXTENDS)
        return 1;
    return !(r->flags & RENDER_NEVER_EXTENDS) && (r->flags & RENDER_KEEP) != 0;
}

int tinker_renderer_disables_thinking(const tinker_renderer *r)
{
    return (r->flags & RENDER_NO_THINK) != 0;
}

tinker_stop_sequences tinker_renderer_stop(const tinker_renderer *r)
{
    static const char *const user[] = { "\n\nUser:" };
    if (r->format == &render_role_colon)
        return (tinker_stop_sequences){ NULL, user, 1 };
    return (tinker_stop_sequences){ r->stop, NULL, r->n_stop };
}

void tinker_renderer_set_stop(const tinker_renderer *r, tinker_sampling_params *params)
{
    tinker_stop_sequences stop = tinker_renderer_stop(r);
    params->stop_tokens = stop.tokens;
    params->stop_strings = stop.strings;
    params->n_stop = stop.n;
}
