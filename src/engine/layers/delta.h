/* delta.h - the gated delta rule in the place of attention, forward and backward.
 *
 *   m = in_qkv x;  c_t = silu(sum over s < K of conv_s m_(t-K+1+s)), cut into q, k, v
 *   q = l2(q) / sqrt(dk),  k = l2(k),  b = sigma(in_b x),  g = -exp(A_log) softplus(in_a x + dt)
 *   S = exp(g) S;  u = b (v - S^T k);  S = S + k u^T;  o = S^T q      S (dk, dv), zero at first
 *   y = out(rms(o) silu(in_z x))
 *
 * per value head, which shares the q and k of a key head with its group.
 *
 * The recurrence is computed in chunks of DELTA_CHUNK positions, cut at multiples of it.  With S0
 * the state at the chunk's start, G_i = g_1 + .. + g_i and D_ij = exp(G_i - G_j):
 *
 *   u_i = b_i (v_i - e^(G_i) S0^T k_i - sum over j < i of (k_i . k_j) D_ij u_j)
 *   o_i = e^(G_i) S0^T q_i + sum over j <= i of (q_i . k_j) D_ij u_j
 *   S1  = e^(G_n) S0 + sum over j of e^(G_n - G_j) k_j u_j^T
 *
 * Row i needs S0 and what its chunk has so far, whether it is computed alone or with the whole
 * chunk, and every sum runs over ascending j: a token that is sampled has the bits of training. */
#ifndef ENGINE_DELTA_H
#define ENGINE_DELTA_H

#include "engine/layers/cutter.h"
#include "engine/model/model.h"

struct acts;
struct back;
struct block;
struct grads;

enum { DELTA_CHUNK = 64 };

struct delta_acts {
    float *taps;              /* (K, channels): the convolution's weights, turned */
    float *m, *conv;          /* (rows, channels): before and after the convolution */
    float *q, *k;             /* (rows, k_heads * dk), normed */
    float *q_rstd, *k_rstd;   /* (rows, k_heads) */
    float *v, *z, *u, *o, *y; /* (rows, v_heads * dv) */
    float *b_raw, *a_raw;     /* (rows, v_heads): in_b x, in_a x */
    float *b, *g;             /* (rows, v_heads) */
    float *o_rstd;            /* (rows, v_heads) */
    float *states;            /* (chunks, v_heads, dk, dv): S0 of all chunks but first ones */
};

/* Scratch of the backward. */
struct delta_back {
    float *dm, *dconv;         /* (rows, channels) */
    float *dq, *dk;            /* (rows, k_heads * dk) */
    float *dv, *dz, *do_, *dy; /* (rows, v_heads * dv) */
    float *db, *dg;            /* (rows, v_heads) */
    float *dx;                 /* (rows, hidden): the gates' part */
};

/* States that the backward of a sequence of n tokens needs: at the starts of its chunks, but for
 * the first, which is zero. */
static inline size_t delta_chunks(size_t n)
{
    return n ? (n - 1) / DELTA_CHUNK : 0;
}

/* Lay out the activations of a delta layer, and the scratch (nothing for other models). */
void delta_acts_init(struct delta_acts *d, const struct model_config *c, size_t rows, size_t chunks,
                     struct cutter *p);
void delta_back_init(struct delta_back *d, const struct model_config *c, size_t rows,
                     struct cutter *p);

/* Floats of what a sequence keeps of all its delta layers from one batch to the next: the last
 * inputs of the convolution, S0 and the open chunk.  0 for other models.  A sequence that starts
 * reads nothing of it. */
size_t delta_state_floats(const struct model_config *c);

/* y (rows, hidden) from x (rows, hidden).  Segments without a state start at position 0 and keep
 * their states in a->delta.states. */
void delta_forward(const struct block *b, size_t layer, const float *x, struct acts *a, float *y);
/* dx (rows, hidden) from dy (rows, hidden); adds the gradients of parameters. */
void delta_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                    float *dy, float *dx, const struct grads *g, struct back *s);

/* ---- for delta_backward.c ---------------------------------------------------------------------- */

/* The chunks of one key head in one segment. */
struct delta_head {
    const struct model_config *c;
    size_t key, group; /* key head; value heads [key * group, (key + 1) * group) */
    size_t dk, dv;
    size_t k_stride, v_stride; /* floats from one row to the next */
};

struct delta_head delta_head(const struct model_config *c, size_t key);

/* D (n, C), 1 <= n <= C: exp(G_i - G_j) for j <= i, else 0. */
void delta_decays(float *D, const float *G, size_t first, size_t n);

/* y = silu(x) */
void delta_silu(float *y, const float *x, size_t n);

/* Slots of states before those of a segment. */
struct batch;
struct segment;
size_t delta_states_before(const struct batch *b, const struct segment *seg);

/* The state of value head `head` in slot `chunk` of states. */
static inline float *delta_state(const struct model_config *c, float *states, size_t chunk,
                                 size_t head)
{
    return states + (chunk * c->delta_v_heads + head) * c->delta_k_dim * c->delta_v_dim;
}

#endif
