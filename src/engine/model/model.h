/* model.h - a base model in memory: its shape, its packed weights, its rope.
 *
 * struct model is read-only after loading and shared by everything that computes:
 * passes, generators, adapters.  A rank-0 adapter (all parameters trained) owns a
 * struct model of its own, packed again after each optimizer step; ask
 * adapter_model() which one to use.  Thread safety: any thread once loaded. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/engine.h>
#include "engine/kernels/kernels.h"
#include "engine/model/arch.h"
#include "engine/threads.h"

enum {
    MODEL_MAX_HEAD_DIM = 512,
    MODEL_MAX_EOS = 16,
    MODEL_MAX_DENSE = 64,
    MODEL_MAX_USED = 64,
    MODEL_MAX_LAYERS = 4096,
    MODEL_MAX_CONV = 8,        /* rows of a delta layer's convolution */
    MODEL_MAX_DELTA_DIM = 128, /* of its keys and values */
    MODEL_ROPES = 2            /* of layers that see everything, of those that slide */
};

struct rope_config {
    enum rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor;      /* llama3 */
    double beta_fast, beta_slow, attention_factor; /* yarn; attention_factor 0: derived */
    double mscale, mscale_all_dim;                 /* yarn; 0: not given */
    bool keep_fraction;                            /* yarn: truncate is false */
    double original_context;
};

/* What is special about a layer. */
enum layer_flag {
    LAYER_SLIDES = 1,  /* sees the last `window` positions only */
    LAYER_NO_ROPE = 2, /* q and k are not rotated */
    LAYER_DELTA = 4    /* the gated delta rule instead of attention */
};

/* What config.json says, checked: every size is positive and products fit. */
struct model_config {
    const struct arch *arch;
    size_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate;
    int64_t context; /* max_position_embeddings */
    float norm_eps;
    bool tied; /* the head is the embedding */
    enum qk_norm qk_norm;
    bool qkv_bias, o_bias, mlp_bias;
    bool pre_norm, post_norm; /* of each branch: before it, and of what it adds */
    bool plus_one;            /* norms multiply by 1 + w */
    enum activation activation;
    float swiglu_limit, swiglu_alpha; /* of ACTIVATION_CLAMPED */
    bool sinks;                       /* a logit beside the keys of each head */
    bool gate;                        /* attention's output is gated by the second half of q */
    bool rounded_attention;           /* its products are of bfloat16, which pages hold */
    /* factors; caps of 0: none */
    float embed_scale, residual_scale, attention_scale, logit_divisor, attn_cap, logit_cap;
    size_t window;                         /* of layers that slide; 0: none does */
    unsigned char flags[MODEL_MAX_LAYERS]; /* enum layer_flag */
    size_t rotary;                         /* leading components of a head that turn */
    double temperature; /* beta of queries beyond the original context; 0: none */
    /* the gated delta rule, where a layer has it */
    size_t delta_k_heads, delta_v_heads, delta_k_dim, delta_v_dim, delta_conv;
    /* mixture of experts; experts 0: none, and the rest has no meaning */
    size_t experts, experts_used, expert_size; /* expert_size: intermediate of one */
    bool renormalize;                          /* the weights of a token's experts sum to 1 */
    bool expert_bias;                          /* of experts and router */
    enum shared_expert shared;
    size_t shared_size;              /* intermediate of the shared expert */
    size_t sparse_step;              /* every so many layers is sparse */
    uint16_t dense[MODEL_MAX_DENSE]; /* layers that are dense whatever the step */
    size_t n_dense;
    struct rope_config rope;       /* of all layers, or of those that do not slide */
    struct rope_config local_rope; /* of those that slide; theta 0: the same */
    /* longrope: divisors of the frequencies, for texts within the original context and beyond */
    float short_factor[MODEL_MAX_HEAD_DIM / 2], long_factor[MODEL_MAX_HEAD_DIM / 2];
    int32_t eos[MODEL_MAX_EOS];
    size_t n_eos;
    bool wrapped; /* the text part of a multimodal model */
};

/* y = x W^T + bias, W (out, in). */
struct linear {
    const struct packed *w;
    const float *bias; /* NULL: none */
    size_t out, in;
};

struct layer {
    const float *norm1, *norm2;           /* (hidden), NULL without pre_norm */
    const float *post_norm1, *post_norm2; /* (hidden), NULL without post_norm */
    const float *q_norm, *k_norm;         /* (head_dim), or (heads * head_dim) as a whole */
    const float *sinks;                   /* (heads) */
    struct linear linear[LINEARS];
    /* of the delta rule: (channels, conv), (v_heads), (v_heads), (v_dim) */
    const float *conv, *a_log, *dt_bias, *delta_norm;
    /* of a sparse layer, whose gate, up and down are in its experts */
    struct linear router;   /* (experts, hidden) */
    struct linear *experts; /* (experts, EXPERT_LINEARS); NULL in a dense layer */
};

/* Angles per position of one kind of layer. */
struct rope {
    float *inv_freq;      /* (rotary / 2) */
    float *long_inv_freq; /* the same for texts beyond the original context; NULL: one for all */
    float scale;          /* of cos and sin; 1 but for yarn and longrope */
};

struct model {
    struct model_config config;
    const void *embed; /* (vocab, hidden), row-major, of embed_dtype */
    enum source_dtype embed_dtype;
    uint64_t weight_bytes; /* of the two memories below */
    struct layer *layers;
    struct linear *experts; /* of all sparse layers */
    const float *norm;      /* (hidden) */
    struct linear head;
    struct rope ropes[MODEL_ROPES]; /* the second without inv_freq: all layers have the first */
    enum packed_dtype dtype;        /* of the first layer's first matrix */
    bool quantized;                 /* some matrix is */
    void *packed_memory, *vector_memory; /* of all weights, and of norms and biases */
    struct huge_pages *pages;            /* of the former; NULL: as they are */
};

/* Shape of linear `id` in every layer. */
void model_linear_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in);
/* The same for one expert: gate, up or down. */
void model_expert_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in);
/* Whether the MLP of a layer is a mixture of experts, and how many layers are so. */
bool model_sparse(const struct model_config *c, size_t layer);
size_t model_sparse_layers(const struct model_config *c);
/* Floats of a token's gate (or up): the most of any layer. */
size_t model_mlp_width(const struct model_config *c);
bool model_linear_has_bias(const struct model_config *c, enum linear_id id);
/* Whether a layer has this linear, as a matrix of its own (not one of experts). */
bool model_has_linear(const struct model_config *c, size_t layer, enum linear_id id);
/* The module of a linear, and which of its rows: several linears may share one.  *rows receives
 * those of the module. */
const char *model_module(const struct model_config *c, enum linear_id id, size_t *first,
                         size_t *rows);
static inline bool model_layer_is(const struct model_config *c, size_t layer, enum layer_flag flag)
{
    return c->flags[layer] & flag;
}
/* How many layers have keys and values; how many of them come before `layer`. */
size_t model_attention_layers(const struct model_config *c, size_t layer);
/* Whether a sequence of so many tokens uses the frequencies of long texts. */
bool model_is_long(const struct model_config *c, size_t tokens);
/* Channels of a delta layer's convolution: its q, k and v. */
static inline size_t model_delta_channels(const struct model_config *c)
{
    return 2 * c->delta_k_heads * c->delta_k_dim + c->delta_v_heads * c->delta_v_dim;
}

/* x (n, hidden) = rows of the embedding, without embed_scale.  Tokens must be below vocab. */
void model_embed(const struct model *m, const int32_t *tokens, size_t n, float *x);

/* ---- making one ----------------------------------------------------------------------- */

/* The data of one weight; row-major, of dtype, at any address.  pairs: see struct packed_source. */
struct weight {
    const void *data;
    enum source_dtype dtype;
    size_t pairs;
    void *owned; /* memory of data that whoever asked must free; NULL: it belongs to the source */
};
/* Its numbers, a vector or matrix of rows x cols, in the order of the model. */
void weight_to_float(const struct weight *w, size_t rows, size_t cols, float *out);
struct tensor_place;
/* Where weights come from, and in which format the model keeps each matrix. */
struct weight_source {
    /* The weight of this name and shape (rows 0: a vector of cols); false with *err set when there
     * is none. */
    bool (*get)(void *state, const char *name, size_t rows, size_t cols, struct weight *out,
                tinker_error *err);
    /* NULL: float32.  Gives the same for the same place every time. */
    enum packed_dtype (*format)(void *state, const struct tensor_place *at);
    /* NULL, or: the model has read these bytes, which `get` gave without `owned`, for now. */
    void (*done)(const void *data, size_t n);
    void *state;
};

/* A model with memory for its packed weights, and model_fill() to (re)pack them all from the same
 * source.  The embedding is borrowed from the source.  After a failed fill the model's
 * weights are undefined. */
struct model *model_new(const struct model_config *c, const struct weight_source *source,
                        tinker_error *err);
void model_free(struct model *m);
tinker_status model_fill(struct model *m, struct threads *t, const struct weight_source *source,
                         tinker_error *err);
/* Memory of the weights of a model from this source. */
uint64_t model_bytes(const struct model_config *c, const struct weight_source *source);
uint64_t model_parameters(const struct model_config *c);

/* Calls visit for every tensor a model of this config has, in a fixed order, with
 * its HF name; rows 0: a vector.  Stops at and returns the first failure. */
enum tensor_kind {
    TENSOR_EMBED,
    TENSOR_NORM1,
    TENSOR_NORM2,
    TENSOR_POST_NORM1,
    TENSOR_POST_NORM2,
    TENSOR_Q_NORM,
    TENSOR_K_NORM,
    TENSOR_SINKS,
    TENSOR_WEIGHT,
    TENSOR_BIAS,
    TENSOR_CONV,
    TENSOR_A_LOG,
    TENSOR_DT_BIAS,
    TENSOR_DELTA_NORM,
    TENSOR_ROUTER,
    TENSOR_ROUTER_BIAS,
    TENSOR_EXPERT,
    TENSOR_EXPERT_BIAS,
    TENSOR_NORM,
    TENSOR_HEAD
};
struct tensor_place {
    enum tensor_kind kind;
    size_t layer;      /* of the layer's tensors */
    enum linear_id id; /* of TENSOR_WEIGHT, TENSOR_BIAS and TENSOR_EXPERT */
    size_t rows, cols;
    const char *name; /* valid during the call */
    size_t expert;    /* of TENSOR_EXPERT; each has gate, up, down in a row */
    /* rows [first, first + rows) of a stored matrix of so many; stored 0: the whole matrix.  Of a
     * vector, elements. */
    size_t first, stored;
};
/* Norms that multiply by 1 + w where the architecture does so. */
bool model_is_offset_norm(enum tensor_kind kind);
/* Rows of the matrix as it is stored. */
static inline size_t tensor_stored_rows(const struct tensor_place *at)
{
    return at->rows && at->stored ? at->stored : at->rows;
}
typedef tinker_status tensor_visit(void *state, const struct tensor_place *at, tinker_error *err);
tinker_status model_tensors(const struct model_config *c, tensor_visit *visit, void *state,
                            tinker_error *err);

/* ---- what the rest of the engine asks an engine or an adapter ---------------------- */

struct tinker_engine {
    struct model *model;
    const struct arch *arch;        /* of the model; known before it is loaded */
    const struct arch_names *names; /* of that */
    struct threads *threads;
    tinker_engine_options opts;
    tinker_engine_info info;          /* info.context honors opts.max_context */
    uint64_t memory_limit;            /* opts.memory_limit, or what was free at open */
    uint64_t pass_bytes;              /* held by all live passes */
    struct budget_user *budget_users; /* generators, who share the limit with passes: budget.h */
    float *spare;                     /* work memory of the last pass, for the next one */
    size_t spare_bytes;
    char fingerprint[65];
    char *dir;
    struct weight_files *files; /* the mapped safetensors; NULL: there is a GGUF file */
    struct gguf_model *gguf;    /* NULL: a directory */
    char prefix[64];            /* what the files have before "layers"; "": as arch.c says */
    char notice[128];           /* what of the files is not used; "": nothing */
    bool mxfp4;                 /* its experts are MXFP4 blocks */
};

/* The name of a tensor in the files, where a multimodal model calls its text part differently. */
enum { ENGINE_NAME = 192 };
const char *engine_file_name(const tinker_engine *e, const char *name, char out[ENGINE_NAME]);
/* Whether some matrices are quantized: then adapters need a rank. */
bool engine_is_quantized(const tinker_engine *e);
/* The stored weight of this name, as struct weight_source says. */
bool engine_weight(const tinker_engine *e, const char *name, size_t rows, size_t cols,
                   struct weight *out, tinker_error *err);

#endif
