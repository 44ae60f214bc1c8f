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

enum { ROW_GRAIN = 8, CHANNEL_GRAIN = 64, C = DELTA_CHUNK, DIM = MODEL_MAX_DELTA_DIM };

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

/* d silu(x) / dx */
static float silu_slope(float x)
{
    float s = compute_sigmoid(x);
    return s * (1 + x * (1 - s));
}

/* ---- one chunk ------------------------------------------------------------------------------- */

/* One value head: a chunk's matrices, and dS, which goes from chunk to chunk. */
struct chunk_back {
    size_t n, row;
    float G[C], decay[C], left[C];      /* e^(G_i), e^(G_n - G_i) */
    float kt[DIM * C];                  /* (dk, C) */
    float A[C * C], P[C * C], D[C * C]; /* (n, C) */
    float dA[C * C], dP[C * C];         /* (n, C), times D */
    float turned[C * C];
    float ks[C * DIM], qs[C * DIM], kds[C * DIM]; /* (n, dv) */
    float R[C * DIM], dR[C * DIM], dU[C * DIM];   /* (n, dv) */
    float ut[DIM * C];                            /* (dv, C) */
    float scaled[C * DIM];                        /* (n, dv) */
    float flat[DIM * DIM];                        /* (dv, dk): a state turned */
    float dS[DIM * DIM];                          /* (dk, dv) */
    double dG[C]; /* sums that nearly cancel where the state decays fast */
};

/* dst (cols, ldd) = src (rows, lds) turned. */
static void turn_matrix(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                        size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            dst[c * ldd + r] = src[r * lds + c];
}

/* y (R, cols) = a (R, n) b (n, cols), or += */
static void multiply_tile(float *y, size_t ldy, const float *a, size_t lda, const float *b,
                          size_t ldb, size_t R, size_t n, size_t cols, bool add)
{
    for (size_t r = 0; !add && r < R; r++)
        memset(y + r * ldy, 0, cols * sizeof(float));
    attn_ops()->accumulate(y, ldy, a, lda, b, ldb, R, n, cols);
}

/* scaled (n, dv) = diag(f) x */
static const float *scale_rows(struct chunk_back *t, const float *x, size_t ldx, const float *f,
                               float sign, size_t dv)
{
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < dv; k++)
            t->scaled[i * dv + k] = sign * f[i] * x[i * ldx + k];
    return t->scaled;
}

/* Where one value head finds its rows. */
struct head_rows {
    const struct delta_back_job *j;
    const struct delta_head *h;
    size_t head;
    const float *q, *k, *v, *u, *dO; /* of the chunk's first row */
    const float *s0;                 /* NULL: zero */
    float *dq, *dk, *dv;
    bool first; /* of its group: stores dq and dk, the others add */
};

/* A, P, D and the decays, as the forward had them. */
static void recompute_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct delta_head *h = m->h;
    size_t heads = h->c->delta_v_heads, n = t->n;
    for (size_t i = 0; i < n; i++)
        t->G[i] = (i ? t->G[i - 1] : 0) + m->j->d->g[(t->row + i) * heads + m->head];
    for (size_t i = 0; i < n; i++) {
        t->decay[i] = expf(t->G[i]);
        t->left[i] = expf(t->G[n - 1] - t->G[i]);
    }
    turn_matrix(t->kt, C, m->k, h->k_stride, n, h->dk);
    multiply_tile(t->A, C, m->k, h->k_stride, t->kt, C, n, h->dk, n, false);
    multiply_tile(t->P, C, m->q, h->k_stride, t->kt, C, n, h->dk, n, false);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            float d = k <= i ? expf(t->G[i] - t->G[k]) : 0;
            t->D[i * C + k] = d;
            t->P[i * C + k] *= d;
            t->A[i * C + k] *= k < i ? d : 0;
        }
    }
    if (m->s0) {
        multiply_tile(t->ks, h->dv, m->k, h->k_stride, m->s0, h->dv, n, h->dk, h->dv, false);
        multiply_tile(t->qs, h->dv, m->q, h->k_stride, m->s0, h->dv, n, h->dk, h->dv, false);
    } else {
        memset(t->ks, 0, n * h->dv * sizeof(float));
        memset(t->qs, 0, n * h->dv * sizeof(float));
    }
    multiply_tile(t->kds, h->dv, m->k, h->k_stride, t->dS, h->dv, n, h->dk, h->dv, false);
    for (size_t i = 0; i < n; i++) {
        float *r = t->R + i * h->dv;
        for (size_t k = 0; k < h->dv; k++)
            r[k] = m->v[i * h->v_stride + k] - t->decay[i] * t->ks[i * h->dv + k];
        for (size_t k = 0; k < i; k++)
            for (size_t e = 0; e < h->dv; e++)
                r[e] -= t->A[i * C + k] * m->u[k * h->v_stride + e];
    }
}

/* dU, then lam in its place, dR, dV and db. */
static void solve_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct delta_head *h = m->h;
    size_t dv = h->dv, n = t->n, heads = h->c->delta_v_heads;
    turn_matrix(t->turned, C, t->P, C, n, n);
    multiply_tile(t->dU, dv, t->turned, C, m->dO, h->v_stride, n, n, dv, false);
    for (size_t i = n; i-- > 0;) {
        float *lam = t->dU + i * dv, b = m->j->d->b[(t->row + i) * heads + m->head];
        for (size_t e = 0; e < dv; e++)
            lam[e] += t->left[i] * t->kds[i * dv + e];
        for (size_t k = i + 1; k < n; k++) /* dR of later rows is b lam of them */
            for (size_t e = 0; e < dv; e++)
                lam[e] -= t->A[k * C + i] * t->dR[k * dv + e];
        m->j->s->db[(t->row + i) * heads + m->head] = lanes_dot(lam, t->R + i * dv, dv);
        for (size_t e = 0; e < dv; e++)
            m->dv[i * h->v_stride + e] = t->dR[i * dv + e] = b * lam[e];
    }
}

/* dP and dA, both times D, and dG. */
static void gates_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct delta_head *h = m->h;
    size_t dv = h->dv, n = t->n, heads = h->c->delta_v_heads;
    double sum = 0, all = 0;
    turn_matrix(t->ut, C, m->u, h->v_stride, n, dv);
    multiply_tile(t->dP, C, m->dO, h->v_stride, t->ut, C, n, dv, n, false);
    multiply_tile(t->dA, C, t->dR, dv, t->ut, C, n, dv, n, false);
    memset(t->dG, 0, sizeof(t->dG));
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            float dp = k <= i ? t->dP[i * C + k] : 0, da = k < i ? -t->dA[i * C + k] : 0;
            float x = dp * t->P[i * C + k] + da * t->A[i * C + k];
            t->dG[i] += (double)x;
            t->dG[k] -= (double)x;
            t->dP[i * C + k] = dp * t->D[i * C + k];
            t->dA[i * C + k] = da * t->D[i * C + k];
        }
    }
    for (size_t i = 0; i < n; i++) {
        float z = t->left[i] * lanes_dot(m->u + i * h->v_stride, t->kds + i * dv, dv);
        float through = lanes_dot(m->dO + i * h->v_stride, t->qs + i * dv, dv) -
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

/* dQ and dK of the value head, added to those of its group, then dS for the chunk to the left. */
static void keys_chunk(const struct head_rows *m, struct chunk_back *t)
{
    const struct delta_head *h = m->h;
    size_t dk = h->dk, dv = h->dv, n = t->n, ks = h->k_stride;
    multiply_tile(m->dq, ks, t->dP, C, m->k, ks, n, n, dk, !m->first);
    turn_matrix(t->turned, C, t->dP, C, n, n);
    multiply_tile(m->dk, ks, t->turned, C, m->q, ks, n, n, dk, !m->first);
    multiply_tile(m->dk, ks, t->dA, C, m->k, ks, n, n, dk, true);
    turn_matrix(t->turned, C, t->dA, C, n, n);
    multiply_tile(m->dk, ks, t->turned, C, m->k, ks, n, n, dk, true);
    if (m->s0) {
        turn_matrix(t->flat, dk, m->s0, dv, dk, dv);
        multiply_tile(m->dq, ks, scale_rows(t, m->dO, h->v_stride, t->decay, 1, dv), dv, t->flat,
                      dk, n, dv, dk, true);
        multiply_tile(m->dk, ks, scale_rows(t, t->dR, dv, t->decay, -1, dv), dv, t->flat, dk, n, dv,
                      dk, true);
    }
    turn_matrix(t->flat, dk, t->dS, dv, dk, dv);
    multiply_tile(m->dk, ks, scale_rows(t, m->u, h->v_stride, t->left, 1, dv), dv, t->flat, dk, n,
                  dv, dk, true);
    for (size_t i = 0; i < dk * dv; i++)
        t->dS[i] *= t->decay[n - 1];
    multiply_tile(t->dS, dv, t->kt, C, scale_rows(t, t->dR, dv, t->decay, -1, dv), dv, dk, n, dv,
                  true);
    turn_matrix(t->kt, C, m->q, ks, n, dk); /* the keys are not needed any more */
    multiply_tile(t->dS, dv, t->kt, C, scale_rows(t, m->dO, h->v_stride, t->decay, 1, dv), dv, dk,
                  n, dv, true);
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
        for (size_t e = 0; e < dv; e++) {
            dz[e] = dy[e] * w[e] * o[e] * r * silu_slope(z[e]);
            dy[e] *= z[e] * compute_sigmoid(z[e]); /* the gradient of the norm's output */
        }
        norm_row_backward(j->s->do_ + i * dv, dy, o, w, r, dv, 0);
    }
}

/* y = s x scale, s = rsqrt(sum x^2 + eps):  dx = s (dy scale - y0 (y0 . dy scale)), y0 = s x. */
static void l2_backward(float *d, const float *y, float s, float scale, size_t n)
{
    /* y holds s x scale, so that y0 = y / scale */
    float shared = lanes_dot(y, d, n) / scale;
    for (size_t i = 0; i < n; i++)
        d[i] = s * (d[i] * scale - y[i] * shared);
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
        memcpy(dconv, s->dq + row * keys, keys * sizeof(float));
        memcpy(dconv + keys, s->dk + row * keys, keys * sizeof(float));
        memcpy(dconv + 2 * keys, s->dv + row * values, values * sizeof(float));
        for (size_t i = 0; i < channels; i++)
            dconv[i] *= silu_slope(conv[i]);
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
            for (size_t i = 0; i < channels; i++)
                dm[i] += j->l->conv[i * K + s] * d[i];
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
    for (size_t i = 0; i < rows * c->hidden; i++)
        dx[i] += d->dx[i];
}
