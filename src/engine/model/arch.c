/* arch.c - the one table of architectures; see arch.h.
 *
 * To add one whose layers are those of block.h, add a row, and a struct arch_names where
 * its tensors are called differently.  Compare the defaults with the configuration class
 * of that name in transformers: what is false here may be true there. */
#include "engine/model/arch.h"

#include <stdio.h>
#include <string.h>
#include "base/array.h"

/* What almost all of them share.  A macro, because C cannot extend a constant table. */
#define COMMON_NAMES                                                               \
    .embed = "model.embed_tokens", .layers = "model.layers", .norm = "model.norm", \
    .head = "lm_head", .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm", \
    .sinks = "self_attn.sinks", .adapter_head = "model.unembed_tokens",            \
    .adapter_expert = { "w1", "w3", "w2" }
/* The norms of a layer that reads its input through a norm. */
#define PRE_NORMS .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm"
#define ATTENTION_LINEARS                                             \
    [LINEAR_Q] = "self_attn.q_proj", [LINEAR_K] = "self_attn.k_proj", \
    [LINEAR_V] = "self_attn.v_proj", [LINEAR_O] = "self_attn.o_proj"
#define MLP_LINEARS \
    [LINEAR_GATE] = "mlp.gate_proj", [LINEAR_UP] = "mlp.up_proj", [LINEAR_DOWN] = "mlp.down_proj"
/* Experts as Qwen3 MoE has them; dense models never look at these. */
#define EXPERT_NAMES                                                                      \
    .router = "mlp.gate", .experts = "mlp.experts",                                       \
    .expert = { "gate_proj", "up_proj", "down_proj" }, .stacked_gate_up = "gate_up_proj", \
    .stacked_down = "down_proj"

/* The names that Llama's implementation in transformers began and most others kept. */
static const struct arch_names llama_names = {
    COMMON_NAMES,
    PRE_NORMS,
    EXPERT_NAMES,
    .linear = { ATTENTION_LINEARS, MLP_LINEARS },
};

/* Norms before and after each branch. */
static const struct arch_names gemma_names = {
    /* Where a file has experts as separate matrices or stacked, both names are known. */
    COMMON_NAMES,
    .norm1 = "input_layernorm",
    .post_norm1 = "post_attention_layernorm",
    .norm2 = "pre_feedforward_layernorm",
    .post_norm2 = "post_feedforward_layernorm",
    .linear = { ATTENTION_LINEARS, MLP_LINEARS },
};

/* Norms only after each branch. */
static const struct arch_names olmo_names = {
    COMMON_NAMES,
    .post_norm1 = "post_attention_layernorm",
    .post_norm2 = "post_feedforward_layernorm",
    .linear = { ATTENTION_LINEARS, MLP_LINEARS },
};

/* q, k and v in one matrix, gate and up in another. */
static const struct arch_names phi_names = {
    COMMON_NAMES,
    PRE_NORMS,
    .linear = { ATTENTION_LINEARS, MLP_LINEARS },
    .qkv = "self_attn.qkv_proj",
    .gate_up = "mlp.gate_up_proj",
};

/* Its gate and up are fused as in Phi, under names of their own. */
static const struct arch_names granite_hybrid_names = {
    COMMON_NAMES,
    PRE_NORMS,
    .linear = { ATTENTION_LINEARS, [LINEAR_GATE] = "mlp.gate_proj", [LINEAR_UP] = "mlp.up_proj",
                [LINEAR_DOWN] = "shared_mlp.output_linear" },
    .gate_up = "shared_mlp.input_linear",
};

/* The released files say block_sparse_moe, transformers 5 renamed it to mlp. */
static const struct arch_names mixtral_names = {
    COMMON_NAMES,
    PRE_NORMS,
    .linear = { ATTENTION_LINEARS, MLP_LINEARS },
    .router = "block_sparse_moe.gate",
    .experts = "block_sparse_moe.experts",
    .expert = { "w1", "w3", "w2" },
    .stacked_gate_up = "gate_up_proj",
    .stacked_down = "down_proj",
    .other_router = "mlp.gate",
    .other_experts = "mlp.experts",
};

/* Experts only as stacks: single matrices of this name exist in exports alone. */
static const struct arch_names gpt_oss_names = {
    COMMON_NAMES,
    PRE_NORMS,
    .linear = { ATTENTION_LINEARS, MLP_LINEARS },
    .router = "mlp.router",
    .experts = "mlp.experts",
    .expert = { "gate_proj", "up_proj", "down_proj" },
    .stacked_gate_up = "gate_up_proj",
    .stacked_down = "down_proj",
};

/* Attention in some layers, the delta rule in the others. */
static const struct arch_names qwen35_names = {
    COMMON_NAMES,
    PRE_NORMS,
    EXPERT_NAMES,
    .linear = { ATTENTION_LINEARS, MLP_LINEARS, [LINEAR_DELTA_QKV] = "linear_attn.in_proj_qkv",
                [LINEAR_DELTA_Z] = "linear_attn.in_proj_z",
                [LINEAR_DELTA_B] = "linear_attn.in_proj_b",
                [LINEAR_DELTA_A] = "linear_attn.in_proj_a",
                [LINEAR_DELTA_OUT] = "linear_attn.out_proj",
                [LINEAR_SHARED_GATE] = "mlp.shared_expert.gate_proj",
                [LINEAR_SHARED_UP] = "mlp.shared_expert.up_proj",
                [LINEAR_SHARED_DOWN] = "mlp.shared_expert.down_proj",
                [LINEAR_SHARED_ROUTER] = "mlp.shared_expert_gate" },
    .conv = "linear_attn.conv1d",
    .a_log = "linear_attn.A_log",
    .dt_bias = "linear_attn.dt_bias",
    .delta_norm = "linear_attn.norm",
};

/* Frequencies are scaled outside the layers, so that each type works with every architecture;
 * longrope has lists of factors, which only Phi's files have. */
enum { ALL_ROPES = ((1 << ROPE_TYPES) - 1) & ~(1 << ROPE_LONGROPE) };

/* What a row leaves out is false, never, 0 or NULL. */
static const struct arch arches[] = {
    {
        /* Llama 2 and 3, and models that reuse the class, such as SmolLM */
        .name = "llama",
        .hf_class = "LlamaForCausalLM",
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .mlp_bias = ARCH_BIAS_CONFIG,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* Qwen2 and 2.5: biases of q, k and v without a setting for them */
        .name = "qwen2",
        .hf_class = "Qwen2ForCausalLM",
        .qkv_bias = ARCH_BIAS_ALWAYS,
        .slide = SLIDE_UPPER,
        .slide_option = true,
        .window = 4096,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* norms of q and k in place of the biases */
        .name = "qwen3",
        .hf_class = "Qwen3ForCausalLM",
        .qk_norm = QK_NORM_HEAD,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .slide = SLIDE_UPPER,
        .slide_option = true,
        .window = 4096,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* Qwen3 with experts in its sparse layers */
        .name = "qwen3_moe",
        .hf_class = "Qwen3MoeForCausalLM",
        .qk_norm = QK_NORM_HEAD,
        .moe = true,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .slide_option = true,
        .slide = SLIDE_ALL,
        .window = 4096,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* Llama's network; every layer slides unless sliding_window is null */
        .name = "mistral",
        .hf_class = "MistralForCausalLM",
        .wrapper = "Mistral3ForConditionalGeneration",
        .wrapper_type = "mistral3",
        .slide = SLIDE_ALL,
        .window = 4096,
        .kv_heads = 8,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        .name = "ministral",
        .hf_class = "MinistralForCausalLM",
        .slide = SLIDE_ALL,
        .window = 4096,
        .kv_heads = 8,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* queries grow with the position beyond the original context */
        .name = "ministral3",
        .hf_class = "Ministral3ForCausalLM",
        .wrapper = "Mistral3ForConditionalGeneration",
        .wrapper_type = "mistral3",
        .slide = SLIDE_ALL,
        .temperature = true,
        .kv_heads = 8,
        .head_dim = 128,
        .eps = 1e-5,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        .name = "mixtral",
        .hf_class = "MixtralForCausalLM",
        .slide = SLIDE_ALL,
        .moe = true,
        .renormalize = true,
        .expert_inner = true,
        .kv_heads = 8,
        .eps = 1e-5,
        .theta = 1e6,
        .ropes = ALL_ROPES,
        .names = &mixtral_names,
    },
    {
        .name = "gemma2",
        .hf_class = "Gemma2ForCausalLM",
        .plus_one = true,
        .activation = ACTIVATION_GELU,
        .embed_root = true,
        .query_scalar = true,
        .attn_cap = true,
        .logit_cap = true,
        .slide = SLIDE_EVEN,
        .window = 4096,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .tied = true,
        .kv_heads = 4,
        .head_dim = 256,
        .ropes = ALL_ROPES,
        .names = &gemma_names,
    },
    {
        /* norms of q and k instead of the attention's cap; two ropes */
        .name = "gemma3_text",
        .hf_class = "Gemma3ForCausalLM",
        .wrapper = "Gemma3ForConditionalGeneration",
        .wrapper_type = "gemma3",
        .plus_one = true,
        .activation = ACTIVATION_GELU,
        .qk_norm = QK_NORM_HEAD,
        .embed_root = true,
        .query_scalar = true,
        .logit_cap = true,
        .rope_local = true,
        .slide = SLIDE_PATTERN,
        .slide_period = 6,
        .window = 4096,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .tied = true,
        .kv_heads = 4,
        .head_dim = 256,
        .theta = 1e6,
        .local_theta = 10000,
        .ropes = ALL_ROPES,
        .names = &gemma_names,
    },
    {
        /* Phi-3, Phi-3.5, Phi-4 and Phi-4-mini */
        .name = "phi3",
        .hf_class = "Phi3ForCausalLM",
        .slide = SLIDE_ALL,
        .eps = 1e-5,
        .old_yarn = true,
        .ropes = ALL_ROPES | 1 << ROPE_LONGROPE,
        .names = &phi_names,
    },
    {
        /* every fourth layer has no rope */
        .name = "smollm3",
        .hf_class = "SmolLM3ForCausalLM",
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .mlp_bias = ARCH_BIAS_CONFIG,
        .rope_skips = true,
        .slide = SLIDE_NONE,
        .slide_option = true,
        .tied = true,
        .kv_heads = 4,
        .theta = 2e6,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        .name = "olmo2",
        .hf_class = "Olmo2ForCausalLM",
        .qk_norm = QK_NORM_WHOLE,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .eps = 1e-5,
        .ropes = ALL_ROPES,
        .names = &olmo_names,
    },
    {
        /* with sliding layers, whose rope is never scaled */
        .name = "olmo3",
        .hf_class = "Olmo3ForCausalLM",
        .qk_norm = QK_NORM_WHOLE,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .rope_local = true,
        .slide = SLIDE_PATTERN,
        .slide_period = 4,
        .window = 4096,
        .eps = 1e-5,
        .theta = 500000,
        .local_theta = 500000,
        .ropes = ALL_ROPES,
        .names = &olmo_names,
    },
    {
        .name = "granite",
        .hf_class = "GraniteForCausalLM",
        .multipliers = true,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .mlp_bias = ARCH_BIAS_CONFIG,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* Granite 4 without Mamba layers and experts */
        .name = "granitemoehybrid",
        .hf_class = "GraniteMoeHybridForCausalLM",
        .multipliers = true,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .rope_option = true,
        .shared_inner = true,
        .ropes = ALL_ROPES,
        .names = &granite_hybrid_names,
    },
    {
        .name = "gpt_oss",
        .hf_class = "GptOssForCausalLM",
        .activation = ACTIVATION_CLAMPED,
        .qkv_bias = ARCH_BIAS_CONFIG_OR_TRUE,
        .o_bias = ARCH_BIAS_CONFIG_OR_TRUE,
        .sinks = true,
        .slide = SLIDE_EVEN,
        .window = 128,
        .moe = true,
        .renormalize = true, /* as a softmax over the chosen experts */
        .expert_inner = true,
        .expert_bias = true,
        .stack = STACK_COLUMNS,
        .kv_heads = 8,
        .head_dim = 64,
        .eps = 1e-5,
        .theta = 150000,
        .ropes = ALL_ROPES,
        .names = &gpt_oss_names,
    },
    {
        /* gated attention in every fourth layer, the delta rule in the others */
        .name = "qwen3_5_text",
        .hf_class = "Qwen3_5ForCausalLM",
        .wrapper = "Qwen3_5ForConditionalGeneration",
        .wrapper_type = "qwen3_5",
        .plus_one = true,
        .qk_norm = QK_NORM_HEAD,
        .gate = true,
        .delta = true,
        .slide_period = 4,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .kv_heads = 4,
        .head_dim = 256,
        .rotary = 0.25,
        .ropes = ALL_ROPES,
        .names = &qwen35_names,
    },
    {
        .name = "qwen3_5_moe_text",
        .hf_class = "Qwen3_5MoeForCausalLM",
        .wrapper = "Qwen3_5MoeForConditionalGeneration",
        .wrapper_type = "qwen3_5_moe",
        .plus_one = true,
        .qk_norm = QK_NORM_HEAD,
        .gate = true,
        .delta = true,
        .slide_period = 4,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .moe = true,
        .renormalize = true,
        .shared = SHARED_GATED,
        .kv_heads = 2,
        .head_dim = 256,
        .rotary = 0.25,
        .ropes = ALL_ROPES,
        .names = &qwen35_names,
    },
};

const struct arch *arch_by_name(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(arches); i++)
        if (strcmp(arches[i].name, name) == 0)
            return &arches[i];
    return NULL;
}

const struct arch *arch_by_class(const char *hf_class, size_t n)
{
    /* compared with its length: json strings do not end in NUL */
    for (size_t i = 0; i < ARRAY_LEN(arches); i++)
        if (strlen(arches[i].hf_class) == n && memcmp(arches[i].hf_class, hf_class, n) == 0)
            return &arches[i];
    return NULL;
}

const struct arch *arch_by_wrapper(const char *hf_class, size_t n, const char *text_type,
                                   size_t type_n)
{
    for (size_t i = 0; i < ARRAY_LEN(arches); i++) {
        const struct arch *a = &arches[i];
        if (!a->wrapper || strlen(a->wrapper) != n || memcmp(a->wrapper, hf_class, n) != 0)
            continue;
        /* a text part that does not say its type is the first of its wrapper */
        if (!text_type || (strlen(a->name) == type_n && memcmp(a->name, text_type, type_n) == 0))
            return a;
    }
    return NULL;
}

/* Without "ForCausalLM", which all of them end in: the list must fit into an error. */
void arch_list_classes(char *out, size_t size)
{
    static const char suffix[] = "ForCausalLM";
    /* snprintf() returns what it would have written, so that at may pass size */
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(arches) && at < size; i++) {
        const char *name = arches[i].hf_class;
        at += (size_t)snprintf(out + at, size - at, "%s%.*s", i ? ", " : "",
                               (int)(strlen(name) - (sizeof(suffix) - 1)), name);
    }
}
