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
    { "self_attn.qkv_proj", "attn_qkv" },
    { "self_attn.o_proj", "attn_output" },
    { "self_attn.q_norm", "attn_q_norm" },
    { "self_attn.k_norm", "attn_k_norm" },
    { "linear_attn.in_proj_qkv", "attn_qkv" },
    { "linear_attn.in_proj_z", "attn_gate" },
    { "linear_attn.in_proj_b", "ssm_beta" },
    { "linear_attn.in_proj_a", "ssm_alpha" },
    { "linear_attn.conv1d", "ssm_conv1d" },
    { "linear_attn.norm", "ssm_norm" },
    { "linear_attn.out_proj", "ssm_out" },
    { "post_attention_layernorm", "ffn_norm" },
    { "pre_feedforward_layernorm", "ffn_norm" },
    { "post_feedforward_layernorm", "post_ffw_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.gate_up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
    { "shared_mlp.output_linear", "ffn_down" },
    { "mlp.gate", "ffn_gate_inp" },
    { "mlp.router", "ffn_gate_inp" },
    { "block_sparse_moe.gate", "ffn_gate_inp" },
    { "mlp.shared_expert.gate_proj", "ffn_gate_shexp" },
    { "mlp.shared_expert.up_proj", "ffn_up_shexp" },
    { "mlp.shared_expert.down_proj", "ffn_down_shexp" },
    { "mlp.shared_expert_gate", "ffn_gate_inp_shexp" },
}, expert_names[] = {
    { "gate_proj", "ffn_gate_exps" },
    { "up_proj", "ffn_up_exps" },
    { "down_proj", "ffn_down_exps" },
    { "w1", "ffn_gate_exps" },
    { "w3", "ffn_up_exps" },
    { "w2", "ffn_down_exps" },
}, bare_names[] = { /* with their suffixes */
    { "self_attn.sinks", "attn_sinks.weight" },
    { "linear_attn.A_log", "ssm_a" },
    { "linear_attn.dt_bias", "ssm_dt.bias" },
};

/* Of rows with one name of the architecture, a file's is the first whose conditions it meets. */
static const struct gguf_family families[] = {
    { .arch = "llama",
      .model_type = "mixtral",
      .hf_class = "MixtralForCausalLM",
      .experts = true,
      .pairs = true },
    { .arch = "llama",
      .model_type = "mistral",
      .hf_class = "MistralForCausalLM",
      .window = true,
      .pairs = true },
    { .arch = "llama", .model_type = "llama", .hf_class = "LlamaForCausalLM", .pairs = true },
    { .arch = "llama",
      .model_type = "ministral",
      .hf_class = "MinistralForCausalLM",
      .window = true,
      .pairs = true },
    { .arch = "mistral3",
      .model_type = "ministral3",
      .hf_class = "Ministral3ForCausalLM",
      .pairs = true },
    { .arch = "qwen2", .model_type = "qwen2", .hf_class = "Qwen2ForCausalLM" },
    { .arch = "qwen3", .model_type = "qwen3", .hf_class = "Qwen3ForCausalLM" },
    { .arch = "qwen3moe", .model_type = "qwen3_moe", .hf_class = "Qwen3MoeForCausalLM" },
    { .arch = "qwen35",
      .model_type = "qwen3_5_text",
      .hf_class = "Qwen3_5ForCausalLM",
      .norm_after = true },
    { .arch = "qwen35moe",
      .model_type = "qwen3_5_moe_text",
      .hf_class = "Qwen3_5MoeForCausalLM",
      .norm_after = true },
    { .arch = "gemma2",
      .model_type = "gemma2",
      .hf_class = "Gemma2ForCausalLM",
      .norm_after = true,
      .period = 2,
      .large = 46 },
    { .arch = "gemma3",
      .model_type = "gemma3_text",
      .hf_class = "Gemma3ForCausalLM",
      .norm_after = true,
      .period = 6,
      .large = 62,
      .local_theta = 10000 },
    { .arch = "phi3", .model_type = "phi3", .hf_class = "Phi3ForCausalLM" },
    { .arch = "smollm3", .model_type = "smollm3", .hf_class = "SmolLM3ForCausalLM", .pairs = true },
    { .arch = "olmo2",
      .model_type = "olmo3",
      .hf_class = "Olmo3ForCausalLM",
      .window = true,
      .norm_after = true,
      .period = 4 },
    { .arch = "olmo2", .model_type = "olmo2", .hf_class = "Olmo2ForCausalLM", .norm_after = true },
    { .arch = "granite", .model_type = "granite", .hf_class = "GraniteForCausalLM", .pairs = true },
    { .arch = "granite",
      .model_type = "granitemoehybrid",
      .hf_class = "GraniteMoeHybridForCausalLM",
      .pairs = true },
    { .arch = "gpt-oss",
      .model_type = "gpt_oss",
      .hf_class = "GptOssForCausalLM",
      .norm_after = true,
      .period = 2,
      .keep_fraction = true },
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

/* false: a type that the container knows and the kernels do not. */
bool gguf_source_dtype(uint32_t type, enum source_dtype *out)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].type == type) {
            *out = types[i].dtype;
            return true;
        }
    return false;
}

/* Only for dtypes of the table: exports offer no others. */
uint32_t gguf_type_of(enum source_dtype dtype)
{
    size_t i = 0;
    while (types[i].dtype != dtype)
        i++;
    return types[i].type;
}

/* By general.architecture of a file, and what else tells two families apart. */
const struct gguf_family *gguf_family_by_arch(const char *arch, size_t n, bool experts, bool window)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const struct gguf_family *f = &families[i];
        if (strlen(f->arch) == n && memcmp(f->arch, arch, n) == 0 && (!f->experts || experts) &&
            (!f->window || window))
            return f;
    }
    return NULL;
}

/* By model_type of a config.json, for exports. */
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
    for (size_t i = 0; i < ARRAY_LEN(families) && at < size; i++) {
        /* rows of one architecture stand together */
        if (i == 0 || strcmp(families[i].arch, families[i - 1].arch) != 0)
            at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", families[i].arch);
    }
}

/* Is `module` what stands in s up to its last dot?  Then that dot. */
static const char *match_module(const char *s, const char *module)
{
    size_t n = strlen(module);
    return strncmp(s, module, n) == 0 && s[n] == '.' && !strchr(s + n + 1, '.') ? s + n : NULL;
}

/* "mlp.experts.7.up_proj.weight": GGUF keeps all experts of a layer in one tensor with a third
 * dimension, Hugging Face has one tensor each; *expert says which slice is meant. */
static bool name_expert(const char *s, unsigned long layer, char out[128], int64_t *expert)
{
    static const char part[] = ".experts.";
    char *end;
    const char *at = strstr(s, part);
    if (!at)
        return false;
    *expert = (int64_t)strtoul(at + sizeof(part) - 1, &end, 10);
    for (size_t i = 0; *end == '.' && i < ARRAY_LEN(expert_names); i++) {
        const char *dot = match_module(end + 1, expert_names[i].hf);
        if (dot) {
            snprintf(out, 128, "blk.%lu.%s%s", layer, expert_names[i].gguf, dot);
            return true;
        }
    }
    return false;
}

/* Suffixes (.weight, .bias) are the same in both and are copied.  false: a tensor that GGUF has
 * no name for, which callers report by its Hugging Face name. */
bool gguf_tensor_name(const struct gguf_family *f, const char *hf, char out[128], int64_t *expert)
{
    static const char layers[] = "model.layers.", after[] = "post_attention_layernorm";
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
    if (*end != '.')
        return false;
    for (size_t i = 0; i < ARRAY_LEN(bare_names); i++)
        if (strcmp(end + 1, bare_names[i].hf) == 0) {
            snprintf(out, 128, "blk.%lu.%s", layer, bare_names[i].gguf);
            return true;
        }
    for (size_t i = 0; i < ARRAY_LEN(layer_names); i++)
        if ((dot = match_module(end + 1, layer_names[i].hf)) != NULL) {
            bool other = f->norm_after && strcmp(layer_names[i].hf, after) == 0;
            snprintf(out, 128, "blk.%lu.%s%s", layer,
                     other ? "post_attention_norm" : layer_names[i].gguf, dot);
            return true;
        }
    return name_expert(end + 1, layer, out, expert);
}
