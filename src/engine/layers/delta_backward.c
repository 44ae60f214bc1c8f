/* delta_backward.c - the gated delta rule backward, chunk by chunk from the right; see delta.h.
 *
 * With dS the gradient of S1, w_i = e^(G_n - G_i), E = diag(e^(G_i)), A_ij = (k_i . k_j) D_ij and
 * P_ij = (q_i . k_j) D_ij over the n rows of a chunk (A strictly below the diagonal, P with it):
 *
 *   R  = V - E K S0 - A U                         (U = diag(b) R)
 *   dU = P^T dO + diag(w) K dS
 *   lam_i = dU_i - sum over j > i of A_ji b_j lam_j,  dR = diag(b) lam,  db_i = lam_i . R_i,  dV = dR
 *   dP = tril(dO U^T),  dA = -tril(dR U^T) without the diagonal
 *   dQ = (dP * D) K + E dO S0^T
 *   dK = (dP * D)^T Q + (dA * D + (dA * D)^T) K - E dR S0^T + diag(w) U dS^T
 *   X  = dP * P + dA * A,  z_i = w_i U_i . (K dS)_i
 *   dG_i = row sum of X - column sum of X + e^(G_i) (dO_i . (Q S0)_i - dR_i . (K S0)_i) - z_i
 *   dG_n += sum of z + e^(G_n) sum(dS * S0),  dg_i = sum over j >= i of dG_j
 *   dS = e^(G_n) dS + Q^T E dO - K^T E dR                     for the chunk to the left */
#include "engine/layers/delta.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/attn.h"
#include "engine/kernels/vec.h"
#include "engine/lanes.h"
#include "engine/layers/block_linear.h"
#include "engine/layers/norm.h"
#include "engine/layers/turn.h"

enum {
    ROW_GRAIN = 8,
    CHANNEL_GRAIN = 64,
    TOGETHER = 8,
    C = DELTA_CHUNK,
    DIM = MODEL_MAX_DELTA_DIM
};

void delta_back_init(struct delta_back *d, const struct model_config *c, size_t rows,
                     struct cutter *p)
{
    bool any = model_attention_layers(c, c->layers) < c->layers;
    size_t heads = any ? rows * c->delta_v_heads : 0, channels = any ? model_delta_channels(c) : 0;
    size_t keys = any ? rows * c->delta_k_heads * c->delta_k_dim : 0;
    d->dm = cutter_take(p, rows * channels);
    d->dconv = cutter_take(p, rows * channels);
    d->dq = cutter_take(p, keys);
    d->dk = cutter_take(p, keys);
    d->dv = cutter_take(p, heads * c->delta_v_dim);
    d->dz = cutter_take(p, heads * c->delta_v_dim);
    d->do_ = cutter_take(p, heads * c->delta_v_dim);
    d->dy = cutter_take(p, heads * c->delta_v_dim);
    d->db = cutter_take(p, heads);
    d->dg = cutter_take(p, heads);
    d->dx = cutter_take(p, any ? rows * c->hidden : 0);
}

struct delta_back_job {
    const struct block *b;
    const struct layer *l;
    const struct delta_acts *d;
    const struct delta_back *s;
    float *dconv_w; /* rank 0: the gradient of the convolution's weights */
};

static float compute_sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* ---- one chunk ------------------------------------------------------------------------------- */

/* One value head: a chunk's matrices, and dS, which goes from chunk to chunk.  Rows are copied, so
 * that products read them from the first cache: in a batch they lie far apart. */
struct chunk_back {
    size_t n, row;
    float G[C], decay[C];                         /* e^(G_i) */
    const float *left;                            /* (n), e^(G_n - G_i): the last row of D */
    float q[C * DIM], k[C * DIM];                 /* (n, dk) */
    float u[C * DIM], dO[C * DIM];                /* (n, dv) */
    float dq[C * DIM], dk[C * DIM];               /* (n, dk) */
    float kt[DIM * C];                            /* (dk, C) */
    float A[C * C], minus[C * C];                 /* (n, C), 0 from the diagonal on; minus A */
    float P[C * C], D[C * C];                     /* (n, C), 0 above the diagonal */
    float dA[C * C], dP[C * C];                   /* (n, C), times D */
    float ks[C * DIM], qs[C * DIM], kds[C * DIM]; /* (n, dv) */
    float R[C * DIM], dR[C * DIM], dU[C * DIM];   /* (n, dv) */
    float ut[DIM * C];                            /* (dv, C) */
    float scaled[C * DIM];                        /* (n, dv) */
    float flat[DIM * DIM];                        /* (dv, dk): a state turned */
    float dS[DIM * DIM];                          /* (dk, dv) */
    double dG[C]; /* sums that nearly cancel where the state decays fast */
};

/* y (R, cols) = a (R, n) b (n, cols), or += */
static void multiply_tile(float *y, size_t ldy, const float *a, size_t lda, const float *b,
                          size_t ldb, size_t R, size_t n, size_t cols, bool add)
{
    for (size_t r = 0; !add && r < R; r++)
        memset(y + r * ldy, 0, cols * sizeof(float));
    attn_ops()->accumulate(y, ldy, a, lda, b, ldb, R, n, cols);
}

/* y (n, C) = a (n, d) b (d, C), with zeros beyond column n */
static void multiply_square(float *y, const float *a, const float *b, size_t n, size_t d)
{
    memset(y, 0, n * C * sizeof(float));
    attn_ops()->accumulate(y, C, a, d, b, C, n, d, n);
}

/* Copy the rows of a head. */
static void gather_rows(float *to, const float *from, size_t stride, size_t n, size_t dim)
{
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * dim, from + i * stride, dim * sizeof(*to));
}

/* scaled (n, dv) = diag(sign f) x (n, dv) */
static const float *scale_rows(struct chunk_back *t, const float *x, const float *f, float sign,
                               size_t dv)
{
    for (size_t i = 0; i < t->n; i++)
        vec_ops()->scale(t->scaled + i * dv, x + i * dv, sign * f[i], dv);
    return t->scaled;
}

/* Where one value head finds its rows. */
struct head_rows {
    const struct delta_back_job *j;
    const struct delta_head *h;
    size_t head;
    const float *q, *k, *v, *u, *dO; /* of the chunk's first row */
    const float *s0;                 /* NULL: zero */
    float *dq, *dk, *dv;             /* dq and dk of the key head: the first of its value heads
                                      * writes them, the others add */
    bool first;
};

/* What the forward had: decays, A, P, K S0, Q S0, R; and K dS. */
static void recompute_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct delta_head *h = m->h;
    size_t heads = h->c->delta_v_heads, n = t->n, dk = h->dk, dv = h->dv;
    gather_rows(t->q, m->q, h->k_stride, n, dk);
    gather_rows(t->k, m->k, h->k_stride, n, dk);
    gather_rows(t->u, m->u, h->v_stride, n, dv);
    gather_rows(t->dO, m->dO, h->v_stride, n, dv);
    for (size_t i = 0; i < n; i++)
        t->G[i] = (i ? t->G[i - 1] : 0) + m->j->d->g[(t->row + i) * heads + m->head];
    delta_decays(t->D, t->G, 0, n);
    t->left = t->D + (n - 1) * C;
    for (size_t i = 0; i < n; i++)
        t->decay[i] = expf(t->G[i]);
    turn_matrix(t->kt, C, t->k, dk, n, dk);
    multiply_square(t->A, t->k, t->kt, n, dk);
    multiply_square(t->P, t->q, t->kt, n, dk);
    for (size_t i = 0; i < n; i++)
        t->A[i * C + i] = 0;
    for (size_t i = 0; i < n * C; i++) {
        t->P[i] *= t->D[i];
        t->A[i] *= t->D[i];
        t->minus[i] = -t->A[i];
    }
    if (m->s0) {
        multiply_tile(t->ks, dv, t->k, dk, m->s0, dv, n, dk, dv, false);
        multiply_tile(t->qs, dv, t->q, dk, m->s0, dv, n, dk, dv, false);
    } else {
        memset(t->ks, 0, n * dv * sizeof(float));
        memset(t->qs, 0, n * dv * sizeof(float));
    }
    multiply_tile(t->kds, dv, t->k, dk, t->dS, dv, n, dk, dv, false);
    gather_rows(t->R, m->v, h->v_stride, n, dv);
    for (size_t i = 0; i < n; i++)
        vec_ops()->add_scaled(t->R + i * dv, t->ks + i * dv, -t->decay[i], dv);
    for (size_t i = 0; i < n; i += TOGETHER) { /* nothing but zeros right of a block's diagonal */
        size_t rows = n - i < TOGETHER ? n - i : TOGETHER;
        multiply_tile(t->R + i * dv, dv, t->minus + i * C, C, t->u, dv, rows, i + rows, dv, true);
    }
}

/* dU, then lam in its place, dR, dV and db.  Rows from the last to the first: what later blocks of
 * rows add is computed for a block together. */
static void solve_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct attn_ops *ops = attn_ops();
    const struct delta_head *h = m->h;
    size_t dv = h->dv, n = t->n, heads = h->c->delta_v_heads;
    memset(t->dU, 0, n * dv * sizeof(float));
    for (size_t i = 0; i < n; i += TOGETHER) { /* rows before a block do not read it */
        size_t rows = n - i < TOGETHER ? n - i : TOGETHER;
        ops->accumulate_turned(t->dU + i * dv, dv, t->P + i * C + i, C, t->dO + i * dv, dv, rows,
                               n - i, dv);
    }
    for (size_t end = n, begin; end > 0; end = begin) {
        begin = (end - 1) / TOGETHER * TOGETHER;
        for (size_t i = begin; i < end; i++)
            vec_ops()->add_scaled(t->dU + i * dv, t->kds + i * dv, t->left[i], dv);
        /* dR of later rows is b lam of them */
        ops->accumulate_turned(t->dU + begin * dv, dv, t->minus + end * C + begin, C,
                               t->dR + end * dv, dv, end - begin, n - end, dv);
        for (size_t i = end; i-- > begin;) {
            float *lam = t->dU + i * dv, *dR = t->dR + i * dv;
            size_t at = (t->row + i) * heads + m->head;
            ops->accumulate_turned(lam, dv, t->minus + (i + 1) * C + i, C, dR + dv, dv, 1,
                                   end - i - 1, dv);
            m->j->s->db[at] = lanes_dot(lam, t->R + i * dv, dv);
            vec_ops()->scale(dR, lam, m->j->d->b[at], dv);
            memcpy(m->dv + i * h->v_stride, dR, dv * sizeof(*dR));
        }
    }
}

/* dP and dA, both times D, and dG. */
static void gates_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct delta_head *h = m->h;
    size_t dv = h->dv, n = t->n, heads = h->c->delta_v_heads;
    double sum = 0, all = 0;
    turn_matrix(t->ut, C, t->u, dv, n, dv);
    multiply_square(t->dP, t->dO, t->ut, n, dv);
    multiply_square(t->dA, t->dR, t->ut, n, dv);
    memset(t->dG, 0, sizeof(t->dG));
    for (size_t i = 0; i < n; i++) {
        double row = 0;
        for (size_t k = i * C; k <= i * C + i; k++) {
            double x = (double)(t->dP[k] * t->P[k] + t->dA[k] * t->minus[k]);
            row += x;
            t->dG[k - i * C] -= x;
        }
        t->dG[i] += row;
        t->dA[i * C + i] = 0;
    }
    vec_ops()->scale_by(t->dP, t->dP, t->D, 1, n * C); /* 0 above the diagonal */
    vec_ops()->scale_by(t->dA, t->dA, t->D, 1, n * C);
    vec_ops()->scale(t->dA, t->dA, -1, n * C);
    for (size_t i = 0; i < n; i++) {
        float z = t->left[i] * lanes_dot(t->u + i * dv, t->kds + i * dv, dv);
        float through = lanes_dot(t->dO + i * dv, t->qs + i * dv, dv) -
                        lanes_dot(t->dR + i * dv, t->ks + i * dv, dv);
        t->dG[i] += (double)(t->decay[i] * through) - (double)z;
        sum += (double)z;
    }
    for (size_t d = 0; m->s0 && d < h->dk; d++)
        all += (double)lanes_dot(t->dS + d * dv, m->s0 + d * dv, dv);
    t->dG[n - 1] += sum + (double)t->decay[n - 1] * all;
    double suffix = 0;
    for (size_t i = n; i-- > 0;)
        m->j->s->dg[(t->row + i) * heads + m->head] = (float)(suffix += t->dG[i]);
}

/* Put or add rows (n, dk) to those of the key head. */
static void scatter_rows(float *to, size_t stride, const float *from, size_t n, size_t dk, bool add)
{
    for (size_t i = 0; i < n; i++) {
        if (add)
            vec_ops()->add(to + i * stride, from + i * dk, dk);
        else
            memcpy(to + i * stride, from + i * dk, dk * sizeof(*to));
    }
}

/* dQ and dK of the value head, added to those of its group, then dS for the chunk to the left. */
static void keys_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct attn_ops *ops = attn_ops();
    const struct delta_head *h = m->h;
    size_t dk = h->dk, dv = h->dv, n = t->n;
    memset(t->dq, 0, n * dk * sizeof(float));
    memset(t->dk, 0, n * dk * sizeof(float));
    for (size_t i = 0; i < n; i += TOGETHER) { /* what is not 0 of the triangles */
        size_t rows = n - i < TOGETHER ? n - i : TOGETHER, end = i + rows, at = i * C + i;
        float *dq_rows = t->dq + i * dk, *dk_rows = t->dk + i * dk;
        ops->accumulate(dq_rows, dk, t->dP + i * C, C, t->k, dk, rows, end, dk);
        ops->accumulate(dk_rows, dk, t->dA + i * C, C, t->k, dk, rows, end, dk);
        ops->accumulate_turned(dk_rows, dk, t->dP + at, C, t->q + i * dk, dk, rows, n - i, dk);
        ops->accumulate_turned(dk_rows, dk, t->dA + at, C, t->k + i * dk, dk, rows, n - i, dk);
    }
    if (m->s0) {
        turn_matrix(t->flat, dk, m->s0, dv, dk, dv);
        multiply_tile(t->dq, dk, scale_rows(t, t->dO, t->decay, 1, dv), dv, t->flat, dk, n, dv, dk,
                      true);
        multiply_tile(t->dk, dk, scale_rows(t, t->dR, t->decay, -1, dv), dv, t->flat, dk, n, dv, dk,
                      true);
    }
    turn_matrix(t->flat, dk, t->dS, dv, dk, dv);
    multiply_tile(t->dk, dk, scale_rows(t, t->u, t->left, 1, dv), dv, t->flat, dk, n, dv, dk, true);
    scatter_rows(m->dq, h->k_stride, t->dq, n, dk, !m->first);
    scatter_rows(m->dk, h->k_stride, t->dk, n, dk, !m->first);
    vec_ops()->scale(t->dS, t->dS, t->decay[n - 1], dk * dv);
    multiply_tile(t->dS, dv, t->kt, C, scale_rows(t, t->dR, t->decay, -1, dv), dv, dk, n, dv, true);
    turn_matrix(t->kt, C, t->q, dk, n, dk); /* the keys are not needed any more */
    multiply_tile(t->dS, dv, t->kt, C, scale_rows(t, t->dO, t->decay, 1, dv), dv, dk, n, dv, true);
}

/* A unit is a segment and a key head.  Its value heads follow each other, so that the sums over a
 * group are in a fixed order. */
static void rule_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_back_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    struct chunk_back t;
    for (size_t unit = begin; unit < end; unit++) {
        const struct segment *seg = &j->b->batch->segments[unit / c->delta_k_heads];
        struct delta_head h = delta_head(c, unit % c->delta_k_heads);
        size_t before = delta_states_before(j->b->batch, seg);
        for (size_t v = h.key * h.group; v < (h.key + 1) * h.group; v++) {
            memset(t.dS, 0, h.dk * h.dv * sizeof(float));
            for (size_t chunk = delta_chunks(seg->n) + 1; chunk-- > 0;) {
                size_t left = seg->n - chunk * C;
                t.n = left < C ? left : C;
                t.row = seg->row + chunk * C;
                size_t key = t.row * h.k_stride + h.key * h.dk,
                       value = t.row * h.v_stride + v * h.dv;
                struct head_rows m = {
                    .j = j,
                    .h = &h,
                    .head = v,
                    .q = j->d->q + key,
                    .k = j->d->k + key,
                    .v = j->d->v + value,
                    .u = j->d->u + value,
                    .dO = j->s->do_ + value,
                    .s0 = chunk ? delta_state(c, j->d->states, before + chunk - 1, v) : NULL,
                    .dq = j->s->dq + key,
                    .dk = j->s->dk + key,
                    .dv = j->s->dv + value,
                    .first = v == h.key * h.group,
                };
                recompute_chunk(&m, &t);
                solve_chunk(&m, &t);
                gates_chunk(&m, &t);
                keys_chunk(&m, &t);
            }
        }
    }
}

/* ---- around the rule ------------------------------------------------------------------------- */

/* y = w n silu(z) with n = o rstd: do, dz from dy. */
static void gated_norm_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_back_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t dv = c->delta_v_dim;
    for (size_t i = begin * c->delta_v_heads; i < end * c->delta_v_heads; i++) {
        const float *o = j->d->o + i * dv, *z = j->d->z + i * dv, *w = j->l->delta_norm;
        float *dy = j->s->dy + i * dv, *dz = j->s->dz + i * dv, r = j->d->o_rstd[i];
        float n[DIM];
        vec_ops()->scale(n, o, r, dv);
        vec_ops()->scale_by(n, n, w, 1, dv);
        vec_ops()->silu_backward(dz, dy, z, n, dv); /* dy is now the norm's */
        norm_row_backward(j->s->do_ + i * dv, dy, o, w, r, dv, 0);
    }
}

/* y = s x scale, s = rsqrt(sum x^2 + eps):  dx = s (dy scale - y0 (y0 . dy scale)), y0 = s x. */
static void l2_backward(float *d, const float *y, float s, float scale, size_t n)
{
    /* y holds s x scale, so that y0 = y / scale */
    float shared = lanes_dot(y, d, n) / scale;
    vec_ops()->scale(d, d, scale, n);
    vec_ops()->add_scaled(d, y, -shared, n);
    vec_ops()->scale(d, d, s, n);
}

/* dx = dy d silu(x) / dx; dy is not dy any more. */
static void silu_slopes(float *dx, float *dy, const float *x, size_t n)
{
    enum { BLOCK = 128 };
    float ones[BLOCK];
    for (size_t i = 0; i < BLOCK; i++)
        ones[i] = 1;
    for (size_t i = 0; i < n; i += BLOCK)
        vec_ops()->silu_backward(dx + i, dy + i, x + i, ones, n - i < BLOCK ? n - i : BLOCK);
}

/* Gradients of the gates' linears, and of the convolution's output, from those of q, k, v, b, g. */
static void prepare_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_back_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct delta_acts *d = j->d;
    const struct delta_back *s = j->s;
    size_t channels = model_delta_channels(c), dk = c->delta_k_dim;
    size_t keys = c->delta_k_heads * dk, values = c->delta_v_heads * c->delta_v_dim;
    for (size_t row = begin; row < end; row++) {
        const float *conv = d->conv + row * channels;
        float *dconv = s->dconv + row * channels;
        for (size_t h = 0; h < c->delta_k_heads; h++) {
            size_t at = row * c->delta_k_heads + h;
            l2_backward(s->dq + at * dk, d->q + at * dk, d->q_rstd[at], 1 / sqrtf((float)dk), dk);
            l2_backward(s->dk + at * dk, d->k + at * dk, d->k_rstd[at], 1, dk);
        }
        silu_slopes(dconv, s->dq + row * keys, conv, keys);
        silu_slopes(dconv + keys, s->dk + row * keys, conv + keys, keys);
        silu_slopes(dconv + 2 * keys, s->dv + row * values, conv + 2 * keys, values);
        for (size_t h = 0; h < c->delta_v_heads; h++) {
            size_t at = row * c->delta_v_heads + h;
            s->db[at] *= d->b[at] * (1 - d->b[at]);
            /* through g = -exp(A_log) softplus(a + dt) */
            s->dg[at] *= -expf(j->l->a_log[h]) * compute_sigmoid(d->a_raw[at] + j->l->dt_bias[h]);
        }
    }
}

/* dm_t = sum over s of conv_s dconv_(t+K-1-s), within the sequence. */
static void conv_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_back_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t channels = model_delta_channels(c), K = c->delta_conv;
    for (size_t row = begin; row < end; row++) {
        const struct segment *seg = &j->b->batch->segments[j->b->segment_of[row]];
        float *dm = j->s->dm + row * channels;
        memset(dm, 0, channels * sizeof(*dm));
        for (size_t s = K; s-- > 0;) {
            size_t later = row + K - 1 - s;
            if (later >= seg->row + seg->n)
                break;
            const float *d = j->s->dconv + later * channels;
            vec_ops()->add_products(dm, j->d->taps + s * channels, d, channels);
        }
    }
}

/* Gradient of the convolution's weights; channels are independent, rows ascend. */
static void conv_weights_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_back_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t channels = model_delta_channels(c), K = c->delta_conv;
    for (size_t row = 0; row < j->b->batch->n; row++) {
        const struct segment *seg = &j->b->batch->segments[j->b->segment_of[row]];
        for (size_t s = 0; s < K; s++) {
            size_t back = K - 1 - s;
            for (size_t i = begin; back <= row - seg->row && i < end; i++)
                j->dconv_w[i * K + s] +=
                    j->s->dconv[row * channels + i] * j->d->m[(row - back) * channels + i];
        }
    }
}

/* What only rank 0 trains: the norm, the gates' vectors and the convolution.  dg is that of a. */
static void add_delta_grads(const struct delta_back_job *job, const struct layer_params *p,
                            const struct grads *g)
{
    struct delta_back_job j = *job;
    const struct model_config *c = &j.b->model->config;
    size_t heads = c->delta_v_heads, rows = j.b->batch->n;
    float *da_log = grads_param(g, p->a_log), *ddt = grads_param(g, p->dt_bias);
    for (size_t i = 0; i < rows * heads; i++) {
        size_t h = i % heads;
        float slope = -expf(j.l->a_log[h]) * compute_sigmoid(j.d->a_raw[i] + j.l->dt_bias[h]);
        ddt[h] += j.s->dg[i];
        /* dA_log = dg g, with dg from da, whose slope is never 0 unless dg's part is */
        da_log[h] += slope != 0 ? j.s->dg[i] / slope * j.d->g[i] : 0;
    }
    j.dconv_w = grads_param(g, p->conv);
    threads_run(j.b->threads, model_delta_channels(c), CHANNEL_GRAIN, conv_weights_slice, &j);
}

void delta_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                    float *dy, float *dx, const struct grads *g, struct back *s)
{
    static const enum linear_id in[] = { LINEAR_DELTA_QKV, LINEAR_DELTA_Z };
    static const enum linear_id gates[] = { LINEAR_DELTA_B, LINEAR_DELTA_A };
    static const enum linear_id out[] = { LINEAR_DELTA_OUT };
    const struct model_config *c = &b->model->config;
    const struct delta_back *d = &s->delta;
    size_t rows = b->batch->n;
    struct delta_back_job job = { .b = b, .l = &b->model->layers[layer], .d = &a->delta, .s = d };
    block_linears_backward(b, layer, 1, out, &dy, a, a->delta.y, d->dy, g, s);
    threads_run(b->threads, rows, ROW_GRAIN, gated_norm_backward_slice, &job);
    if (!g->lora) /* dy is now the gradient of the norm's output */
        norm_gradient(b->threads, grads_param(g, g->params->layers[layer].delta_norm), d->dy,
                      a->delta.o, c->delta_v_dim, a->delta.o_rstd, rows * c->delta_v_heads,
                      c->delta_v_dim);
    threads_run(b->threads, b->batch->n_segments * c->delta_k_heads, 1, rule_backward_slice, &job);
    threads_run(b->threads, rows, ROW_GRAIN, prepare_backward_slice, &job);
    threads_run(b->threads, rows, ROW_GRAIN, conv_backward_slice, &job);
    if (!g->lora)
        add_delta_grads(&job, &g->params->layers[layer], g);
    /* dx of two sets of linears: the second is added */
    block_linears_backward(b, layer, 2, gates, (float *[]){ d->db, d->dg }, a, x, d->dx, g, s);
    block_linears_backward(b, layer, 2, in, (float *[]){ d->dm, d->dz }, a, x, dx, g, s);
    vec_ops()->add(dx, d->dx, rows * c->hidden);
}
