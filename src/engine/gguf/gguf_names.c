/* gguf_names.c - how GGUF and Hugging Face call the same tensors, types and architectures. */
#include "engine/gguf/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"

static const struct {
    const char *hf, *gguf;
} global_names[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.norm", "output_norm" },
    { "lm_head", "output" },
}, layer_names[] = {
    { "input_layernorm", "attn_norm" },
    { "self_attn.q_proj", "attn_q" },
    { "self_attn.k_proj", "attn_k" },
    { "self_attn.v_proj", "attn_v" },
    { "self_attn.o_proj", "attn_output" },
    { "self_attn.q_norm", "attn_q_norm" },
    { "self_attn.k_norm", "attn_k_norm" },
    { "post_attention_layernorm", "ffn_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
    { "mlp.gate", "ffn_gate_inp" },
}, expert_names[] = {
    { "gate_proj", "ffn_gate_exps" },
    { "up_proj", "ffn_up_exps" },
    { "down_proj", "ffn_down_exps" },
};

static const struct gguf_family families[] = {
    { "llama", "llama", "LlamaForCausalLM", true },
    { "qwen2", "qwen2", "Qwen2ForCausalLM", false },
    { "qwen3", "qwen3", "Qwen3ForCausalLM", false },
    { "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", false },
};

static const struct {
    uint32_t type;
    enum source_dtype dtype;
} types[] = {
    { GGUF_TENSOR_F32, SOURCE_F32 },   { GGUF_TENSOR_F16, SOURCE_F16 },
    { GGUF_TENSOR_BF16, SOURCE_BF16 }, { GGUF_TENSOR_Q8_0, SOURCE_Q8_0 },
    { GGUF_TENSOR_Q4_0, SOURCE_Q4_0 }, { GGUF_TENSOR_Q4_1, SOURCE_Q4_1 },
    { GGUF_TENSOR_Q5_0, SOURCE_Q5_0 }, { GGUF_TENSOR_Q5_1, SOURCE_Q5_1 },
    { GGUF_TENSOR_Q4_K, SOURCE_Q4_K }, { GGUF_TENSOR_Q5_K, SOURCE_Q5_K },
    { GGUF_TENSOR_Q6_K, SOURCE_Q6_K }, { GGUF_TENSOR_MXFP4, SOURCE_MXFP4 },
};

bool gguf_source_dtype(uint32_t type, enum source_dtype *out)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].type == type) {
            *out = types[i].dtype;
            return true;
        }
    return false;
}

uint32_t gguf_type_of(enum source_dtype dtype)
{
    size_t i = 0;
    while (types[i].dtype != dtype)
        i++;
    return types[i].type;
}

const struct gguf_family *gguf_family_by_arch(const char *arch, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strlen(families[i].arch) == n && memcmp(families[i].arch, arch, n) == 0)
            return &families[i];
    return NULL;
}

const struct gguf_family *gguf_family_by_type(const char *model_type)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

void gguf_list_families(char *out, size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(families) && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", families[i].arch);
}

/* Is `module` what stands in s up to its last dot?  Then that dot. */
static const char *match_module(const char *s, const char *module)
{
    size_t n = strlen(module);
    return strncmp(s, module, n) == 0 && s[n] == '.' && !strchr(s + n + 1, '.') ? s + n : NULL;
}

/* "mlp.experts.7.up_proj.weight" */
static bool name_expert(const char *s, unsigned long layer, char out[128], int64_t *expert)
{
    static const char prefix[] = "mlp.experts.";
    char *end;
    if (strncmp(s, prefix, sizeof(prefix) - 1) != 0)
        return false;
    *expert = (int64_t)strtoul(s + sizeof(prefix) - 1, &end, 10);
    for (size_t i = 0; *end == '.' && i < ARRAY_LEN(expert_names); i++) {
        const char *dot = match_module(end + 1, expert_names[i].hf);
        if (dot) {
            snprintf(out, 128, "blk.%lu.%s%s", layer, expert_names[i].gguf, dot);
            return true;
        }
    }
    return false;
}

bool gguf_tensor_name(const char *hf, char out[128], int64_t *expert)
{
    static const char layers[] = "model.layers.";
    const char *dot;
    char *end;
    *expert = -1;
    for (size_t i = 0; i < ARRAY_LEN(global_names); i++)
        if ((dot = match_module(hf, global_names[i].hf)) != NULL) {
            snprintf(out, 128, "%s%s", global_names[i].gguf, dot);
            return true;
        }
    if (strncmp(hf, layers, sizeof(layers) - 1) != 0)
        return false;
    unsigned long layer = strtoul(hf + sizeof(layers) - 1, &end, 10);
    for (size_t i = 0; *end == '.' && i < ARRAY_LEN(layer_names); i++)
        if ((dot = match_module(end + 1, layer_names[i].hf)) != NULL) {
            snprintf(out, 128, "blk.%lu.%s%s", layer, layer_names[i].gguf, dot);
            return true;
        }
    return *end == '.' && name_expert(end + 1, layer, out, expert);
}
