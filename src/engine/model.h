/* model.h - a base model in memory: its shape, its packed weights, its rope.
 *
 * struct model is read-only after loading and shared by everything that computes:
 * passes, generators, adapters.  A rank-0 adapter (all parameters trained) owns a
 * struct model of its own, packed again after each optimiser step; ask
 * adapter_model() which one to use.  Thread safety: any thread once loaded. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/engine.h>
#include "engine/kernels/kernels.h"
#include "engine/threads.h"

enum arch { ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3 };
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };
enum { MODEL_MAX_HEAD_DIM = 512, MODEL_MAX_EOS = 16 };

struct rope_config {
    enum rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow, attention_factor; /* yarn; attention_factor 0: derived */
    double original_context;
};

/* What config.json says, checked: every size is positive and products fit. */
struct model_config {
    enum arch arch;
    size_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate;
    int64_t context; /* max_position_embeddings */
    float norm_eps;
    bool tied;    /* the head is the embedding */
    bool qk_norm; /* RMSNorm over each head of q and k */
    bool qkv_bias, o_bias, mlp_bias;
    struct rope_config rope;
    int32_t eos[MODEL_MAX_EOS];
    size_t n_eos;
};

enum linear_id { LINEAR_Q, LINEAR_K, LINEAR_V, LINEAR_O, LINEAR_GATE, LINEAR_UP, LINEAR_DOWN, LINEARS };

/* y = x W^T + bias, W (out, in). */
struct linear {
    const struct packed *w;
    const float *bias; /* NULL: none */
    size_t out, in;
};

struct layer {
    const float *norm1, *norm2;   /* (hidden) */
    const float *q_norm, *k_norm; /* (head_dim), NULL without qk_norm */
    struct linear linear[LINEARS];
};

struct model {
    struct model_config config;
    const void *embed; /* (vocab, hidden), row-major, of embed_dtype */
    enum source_dtype embed_dtype;
    struct layer *layers;
    const float *norm; /* (hidden) */
    struct linear head;
    float *inv_freq;  /* (head_dim / 2) */
    float rope_scale; /* of cos and sin; 1 but for yarn */
};

/* Shape of linear `id` in every layer. */
void model_linear_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in);
/* "self_attn.q_proj" and so on. */
const char *model_linear_name(enum linear_id id);
bool model_linear_has_bias(const struct model_config *c, enum linear_id id);

/* x (n, hidden) = rows of the embedding.  Tokens must be below vocab. */
void model_embed(const struct model *m, const int32_t *tokens, size_t n, float *x);

/* ---- what the rest of the engine asks an engine or an adapter ---------------------- */

struct tinker_engine {
    struct model *model;
    struct threads *threads;
    tinker_engine_options opts;
    tinker_engine_info info; /* info.context honours opts.max_context */
    uint64_t memory_limit;   /* opts.memory_limit, or what was free at open */
    char fingerprint[65];
    char *dir;
    struct checkpoint *files; /* the mapped safetensors */
    void *packed;             /* memory of the packed weights */
};

#endif
