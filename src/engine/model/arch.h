/* arch.h - the supported model architectures: everything in which they differ.
 *
 * All of them are the network of block.h.  A struct arch says which of its optional
 * parts a model has, how config.json asks for them, and what the tensors are called in
 * model and adapter files.  The rest of the engine reads these fields and never compares
 * architectures, so that a new one is a new row of the table in arch.c.  Read-only. */
#ifndef ENGINE_ARCH_H
#define ENGINE_ARCH_H

#include <stdbool.h>
#include <stddef.h>

/* The linear modules of a layer that an adapter can train, in the order of its parameters. */
enum linear_id {
    LINEAR_Q,
    LINEAR_K,
    LINEAR_V,
    LINEAR_O,
    LINEAR_GATE,
    LINEAR_UP,
    LINEAR_DOWN,
    LINEARS,
    EXPERT_LINEARS = LINEARS - LINEAR_GATE /* an expert has gate, up and down of its own */
};

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_TYPES };

/* How an architecture decides whether some linear modules have a bias. */
enum arch_bias {
    ARCH_BIAS_NEVER,
    ARCH_BIAS_ALWAYS,
    ARCH_BIAS_CONFIG /* as attention_bias or mlp_bias of config.json says */
};

/* Module names.  A tensor is called "<module>.weight" or "<module>.bias"; one of a layer
 * "<layers>.<index>.<module>.weight". */
struct arch_names {
    /* of the whole model */
    const char *embed, *layers, *norm, *head;
    /* in a layer */
    const char *norm1, *norm2, *q_norm, *k_norm;
    const char *linear[LINEARS];
    /* in a sparse layer, NULL without experts: one matrix per expert, "<experts>.<index>.<expert>.weight", or all
     * experts in one tensor of three dimensions, "<experts>.<gate_up or down>" */
    const char *router, *experts;
    const char *expert[EXPERT_LINEARS];
    const char *stacked_gate_up, *stacked_down;
    /* in adapter files: the unembedding, where PEFT says <head>; and in <experts> the stacks
     * of factors that the experts share */
    const char *adapter_head;
    const char *adapter_expert[EXPERT_LINEARS];
};

struct arch {
    const char *name;     /* model_type of config.json, and tinker_engine_info.arch */
    const char *hf_class; /* in the `architectures` of config.json */
    bool qk_norm;         /* RMSNorm over each head of q and k */
    bool moe;             /* config.json describes experts */
    bool tied;            /* whether the head is the embedding when config.json does not say */
    enum arch_bias qkv_bias, o_bias, mlp_bias;
    unsigned ropes; /* bit 1 << type: this rope type is supported */
    const struct arch_names *names;
};

/* The architecture of this model_type; NULL: unknown. */
const struct arch *arch_by_name(const char *name);
/* The same by class name, which need not end in a NUL. */
const struct arch *arch_by_class(const char *hf_class, size_t n);
/* All known class names with ", " between them, cut to size. */
void arch_list_classes(char *out, size_t size);

#endif
