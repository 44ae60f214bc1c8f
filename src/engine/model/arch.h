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
#include <stdint.h>

/* The linear modules of a layer that an adapter can train, in the order of its parameters.  A
 * layer has those of its mixer (attention or the delta rule), then those of its MLP. */
enum linear_id {
    LINEAR_Q,
    LINEAR_K,
    LINEAR_V,
    LINEAR_O,
    LINEAR_DELTA_QKV, /* of a layer with the gated delta rule, see delta.h */
    LINEAR_DELTA_Z,
    LINEAR_DELTA_B,
    LINEAR_DELTA_A,
    LINEAR_DELTA_OUT,
    LINEAR_GATE,
    LINEAR_UP,
    LINEAR_DOWN,
    LINEAR_SHARED_GATE, /* of the expert that every token uses beside its own */
    LINEAR_SHARED_UP,
    LINEAR_SHARED_DOWN,
    LINEAR_SHARED_ROUTER, /* (1, hidden): how much of it */
    LINEARS,
    EXPERT_LINEARS = LINEAR_DOWN - LINEAR_GATE + 1 /* an expert has gate, up and down of its own */
};

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_TYPES
};

/* How an architecture decides whether some linear modules have a bias. */
enum arch_bias {
    ARCH_BIAS_NEVER,
    ARCH_BIAS_ALWAYS,
    ARCH_BIAS_CONFIG,        /* as attention_bias or mlp_bias of config.json says */
    ARCH_BIAS_CONFIG_OR_TRUE /* the same, true where config.json is silent */
};

/* RMSNorm of q and k before they are rotated. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WHOLE /* one over all heads of a row */ };

/* f(gate) * up in the MLP; activation.h has the formulas. */
enum activation { ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_CLAMPED, ACTIVATIONS };

/* Which layers slide when config.json has no layer_types. */
enum arch_slide {
    SLIDE_NONE,
    SLIDE_ALL,
    SLIDE_EVEN,    /* 0, 2, 4, ... */
    SLIDE_PATTERN, /* all but every slide_period-th */
    SLIDE_UPPER    /* from max_window_layers on */
};

/* The expert that every token uses: not there, scaled by a sigmoid, or added as it is. */
enum shared_expert { SHARED_NONE, SHARED_GATED, SHARED_PLAIN };

/* How the experts of a layer lie in a file, where they are not one matrix each. */
enum expert_stack {
    STACK_ROWS,    /* (experts, out, in), gates above ups */
    STACK_COLUMNS, /* (experts, in, out), gates and ups in turn; or MXFP4 blocks of rows */
};

/* Module names.  A tensor is called "<module>.weight" or "<module>.bias"; one of a layer
 * "<layers>.<index>.<module>.weight".  A norm without a name does not exist. */
struct arch_names {
    /* of the whole model */
    const char *embed, *layers, *norm, *head;
    /* in a layer: before attention and MLP, and of their outputs before these are added */
    const char *norm1, *norm2, *post_norm1, *post_norm2;
    const char *q_norm, *k_norm, *sinks;
    const char *linear[LINEARS];
    /* modules that hold the rows of several linears, one below the other; NULL: each its own.
     * An adapter has one pair for such a module. */
    const char *qkv, *gate_up, *shared_gate_up;
    /* the delta rule's vectors; conv, and norm, with ".weight" */
    const char *conv, *a_log, *dt_bias, *delta_norm;
    /* in a sparse layer, NULL without experts: one matrix per expert, "<experts>.<index>.<expert>.weight", or all
     * experts in one tensor of three dimensions, "<experts>.<gate_up or down>" */
    const char *router, *experts;
    const char *expert[EXPERT_LINEARS];
    const char *stacked_gate_up, *stacked_down;
    /* another name of router and experts, as transformers has them in memory; NULL: none */
    const char *other_router, *other_experts;
    /* in adapter files: the unembedding, where PEFT says <head>; and in <experts> the stacks
     * of factors that the experts share */
    const char *adapter_head;
    const char *adapter_expert[EXPERT_LINEARS];
};

struct arch {
    const char *name;     /* model_type of config.json, and tinker_engine_info.arch */
    const char *hf_class; /* in the `architectures` of config.json */
    /* a class whose text part this is, and its model_type; NULL: none */
    const char *wrapper, *wrapper_type;
    const struct arch_names *names;

    enum arch_bias qkv_bias, o_bias, mlp_bias;
    enum qk_norm qk_norm;
    bool plus_one; /* norms multiply by 1 + w, but for the delta rule's own */
    enum activation activation;
    bool tied; /* whether the head is the embedding when config.json does not say */

    unsigned ropes;   /* bit 1 << type: this rope type is supported */
    bool rope_local;  /* sliding layers have a rope of their own */
    bool rope_skips;  /* no_rope_layers of config.json, 1 where there is one */
    bool rope_option; /* only where position_embedding_type is "rope" */
    bool old_yarn;    /* "su" and "yarn" are old names of longrope */
    bool temperature; /* llama_4_scaling_beta */

    enum arch_slide slide;
    bool slide_option;   /* only where use_sliding_window is true */
    int64_t window;      /* where config.json has no sliding_window; 0: none */
    size_t slide_period; /* of SLIDE_PATTERN, and of full layers among delta layers */

    bool multipliers;  /* Granite's four numbers */
    bool embed_root;   /* the embedding is scaled by the root of hidden_size */
    bool query_scalar; /* query_pre_attn_scalar instead of head_dim in the scale */
    bool attn_cap;     /* attn_logit_softcapping */
    bool logit_cap;    /* final_logit_softcapping */
    bool sinks;        /* a logit beside the keys of each head */
    bool gate;         /* attention's output is gated: q_proj gives q and the gate */
    bool delta;        /* layers with the gated delta rule */

    bool moe;          /* config.json describes experts */
    bool renormalize;  /* the weights of chosen experts sum to 1, whatever config.json says */
    bool expert_inner; /* intermediate_size is that of an expert */
    bool expert_bias;  /* biases of experts and router */
    bool shared_inner; /* shared_intermediate_size is that of the dense MLP */
    enum shared_expert shared;
    enum expert_stack stack;

    /* what config.json may leave out, 0: heads, hidden / heads, 10000, 1e-6, 1 */
    int64_t kv_heads, head_dim;
    double theta, local_theta, eps, rotary;
};

/* The architecture of this model_type; NULL: unknown. */
const struct arch *arch_by_name(const char *name);
/* The same by class name, which need not end in a NUL. */
const struct arch *arch_by_class(const char *hf_class, size_t n);
/* The text part of a multimodal class: text_type is the model_type of its text_config, NULL
 * where it has none.  NULL: unknown. */
const struct arch *arch_by_wrapper(const char *hf_class, size_t n, const char *text_type,
                                   size_t type_n);
/* Whether a linear belongs to the mixer of a layer (train_attn), or to its MLP. */
static inline bool linear_is_attention(enum linear_id id)
{
    return id < LINEAR_GATE;
}
/* All known class names, without the "ForCausalLM" at their end, with ", " between them; cut to
 * size. */
void arch_list_classes(char *out, size_t size);

#endif
