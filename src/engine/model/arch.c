/* arch.c - the one table of architectures; see arch.h.
 *
 * To add one whose layers are those of block.h, add a row, and a struct arch_names where
 * its tensors are called differently.  Compare the defaults with the configuration class
 * of that name in transformers: what is false here may be true there. */
#include "engine/model/arch.h"

#include <stdio.h>
#include <string.h>
#include "base/array.h"

/* The names that Llama's implementation in transformers began and most others kept. */
static const struct arch_names llama_names = {
    .embed = "model.embed_tokens",
    .layers = "model.layers",
    .norm = "model.norm",
    .head = "lm_head",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .linear = {
        [LINEAR_Q] = "self_attn.q_proj",
        [LINEAR_K] = "self_attn.k_proj",
        [LINEAR_V] = "self_attn.v_proj",
        [LINEAR_O] = "self_attn.o_proj",
        [LINEAR_GATE] = "mlp.gate_proj",
        [LINEAR_UP] = "mlp.up_proj",
        [LINEAR_DOWN] = "mlp.down_proj",
    },
/* the experts' names of Qwen3 MoE; dense models never look at them */
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .expert = {
        [LINEAR_GATE - LINEAR_GATE] = "gate_proj",
        [LINEAR_UP - LINEAR_GATE] = "up_proj",
        [LINEAR_DOWN - LINEAR_GATE] = "down_proj",
    },
    .stacked_gate_up = "gate_up_proj",
    .stacked_down = "down_proj",
/* the names that the hosted service gives its adapters */
    .adapter_head = "model.unembed_tokens",
    .adapter_expert = {
        [LINEAR_GATE - LINEAR_GATE] = "w1",
        [LINEAR_UP - LINEAR_GATE] = "w3",
        [LINEAR_DOWN - LINEAR_GATE] = "w2",
    },
};

/* Frequencies are scaled outside the layers, so that each type works with every architecture. */
enum { ALL_ROPES = (1 << ROPE_TYPES) - 1 };

/* What a row leaves out is false, never or NULL. */
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
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* norms of q and k in place of the biases */
        .name = "qwen3",
        .hf_class = "Qwen3ForCausalLM",
        .qk_norm = true,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .ropes = ALL_ROPES,
        .names = &llama_names,
    },
    {
        /* Qwen3 with experts in its sparse layers */
        .name = "qwen3_moe",
        .hf_class = "Qwen3MoeForCausalLM",
        .qk_norm = true,
        .moe = true,
        .qkv_bias = ARCH_BIAS_CONFIG,
        .o_bias = ARCH_BIAS_CONFIG,
        .ropes = ALL_ROPES,
        .names = &llama_names,
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

void arch_list_classes(char *out, size_t size)
{
    /* snprintf() returns what it would have written, so that at may pass size */
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(arches) && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", arches[i].hf_class);
}
