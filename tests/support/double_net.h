/* double_net.h - the network of the engine written a second time, in double, the long way:
 * no pages, no blocks, no packing, nothing shared with the engine but the parameter list.
 *
 * net_init() reads the base weights and the adapter; n->w holds the adapter's parameters
 * in double and may be changed between calls of forward(). */
#ifndef SUPPORT_DOUBLE_NET_H
#define SUPPORT_DOUBLE_NET_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/engine.h>
#include "base/arena.h"
#include "engine/model/adapter.h"
#include "engine/model/safetensors.h"

enum { MAX_T = 48, MAX_D = 64, MAX_EXPERTS = 8 };

/* The thread sanitizer makes this arithmetic ten times slower; it runs on one thread. */
#define ON_ONE_THREAD __attribute__((no_sanitize("thread")))

struct affine {
    const double *W, *bias, *A, *B; /* NULL: none */
    size_t out, in;
};

struct net {
    const struct model_config *c;
    tinker_engine *e;
    const tinker_adapter *a;
    double *w; /* the adapter's parameters in double, params layout */
    struct arena arena;
    const double *embed, *norm, *norm1[2], *norm2[2], *q_norm[2], *k_norm[2];
    struct affine linear[2][LINEARS], head;
    struct affine router[2], experts[2][MAX_EXPERTS][EXPERT_LINEARS]; /* of sparse layers */
    double closest; /* how near a choice between experts has been, of probabilities */
};

static const double *own(struct net *n, const char *name)
{
    for (size_t i = 0; i < n->a->params.n; i++)
        if (strcmp(n->a->params.list[i].name, name) == 0)
            return n->w + n->a->params.list[i].offset;
    return NULL;
}

/* A weight of the model: the adapter's own with rank 0, else the base's. */
static const double *tensor(struct net *n, const char *name, size_t rows, size_t cols)
{
    size_t count = (rows ? rows : 1) * cols;
    struct weight source;
    if (!n->a->desc.rank)
        return own(n, name);
    float *f = arena_array(&n->arena, count, sizeof(float));
    double *d = arena_array(&n->arena, count, sizeof(double));
    if (!engine_weight(n->e, name, rows, cols, &source, NULL))
        abort();
    st_to_float(source.data, source.dtype, 0, count, f);
    for (size_t i = 0; i < count; i++)
        d[i] = (double)f[i];
    return d;
}

static struct affine affine(struct net *n, const char *weight, const char *module, size_t out,
                            size_t in)
{
    char name[128];
    struct affine l = { .W = tensor(n, weight, out, in), .out = out, .in = in };
    snprintf(name, sizeof(name), "base_model.model.model.%s.lora_A.weight", module);
    l.A = own(n, name);
    snprintf(name, sizeof(name), "base_model.model.model.%s.lora_B.weight", module);
    l.B = own(n, name);
    return l;
}

static const double *layer_vector(struct net *n, size_t layer, const char *suffix, size_t cols)
{
    char name[128];
    snprintf(name, sizeof(name), "model.layers.%zu.%s", layer, suffix);
    return tensor(n, name, 0, cols);
}

/* Experts share one pair of stacks for each of gate, up and down. */
static void resolve_experts(struct net *n, size_t layer)
{
    static const char *const stacks[] = { "w1", "w3", "w2" };
    static const char *const names[] = { "gate_proj", "up_proj", "down_proj" };
    const struct model_config *c = n->c;
    char weight[128], module[96];
    snprintf(weight, sizeof(weight), "model.layers.%zu.mlp.gate.weight", layer);
    n->router[layer] = affine(n, weight, "none", c->experts, c->hidden);
    for (size_t e = 0; e < c->experts; e++) {
        for (int i = 0; i < EXPERT_LINEARS; i++) {
            struct affine *l = &n->experts[layer][e][i];
            size_t out = i == 2 ? c->hidden : c->expert_size;
            size_t in = i == 2 ? c->expert_size : c->hidden, r = (size_t)n->a->desc.rank;
            snprintf(weight, sizeof(weight), "model.layers.%zu.mlp.experts.%zu.%s.weight", layer, e,
                     names[i]);
            snprintf(module, sizeof(module), "layers.%zu.mlp.experts.%s", layer, stacks[i]);
            *l = affine(n, weight, module, out, in);
            if (l->A && i == 2)
                l->A += e * r * in;
            else if (l->A)
                l->B += e * out * r;
        }
    }
}

static void resolve_layer(struct net *n, size_t i)
{
    const struct model_config *c = n->c;
    n->norm1[i] = layer_vector(n, i, "input_layernorm.weight", c->hidden);
    n->norm2[i] = layer_vector(n, i, "post_attention_layernorm.weight", c->hidden);
    if (c->qk_norm) {
        n->q_norm[i] = layer_vector(n, i, "self_attn.q_norm.weight", c->head_dim);
        n->k_norm[i] = layer_vector(n, i, "self_attn.k_norm.weight", c->head_dim);
    }
    for (int id = 0; id < LINEARS; id++) {
        char module[64], weight[96];
        size_t out, in;
        if (id >= LINEAR_GATE && model_sparse(c, i))
            continue;
        model_linear_shape(c, (enum linear_id)id, &out, &in);
        snprintf(module, sizeof(module), "layers.%zu.%s", i, c->arch->names->linear[id]);
        snprintf(weight, sizeof(weight), "model.%s.weight", module);
        n->linear[i][id] = affine(n, weight, module, out, in);
        snprintf(weight, sizeof(weight), "%s.bias", c->arch->names->linear[id]);
        if (model_linear_has_bias(c, (enum linear_id)id))
            n->linear[i][id].bias = layer_vector(n, i, weight, out);
    }
    if (model_sparse(c, i))
        resolve_experts(n, i);
}

/* y (out) = W x + bias + alpha/r B A x */
ON_ONE_THREAD static void linear(const struct net *n, const struct affine *l, const double *x,
                                 double *y)
{
    size_t r = (size_t)n->a->desc.rank;
    for (size_t o = 0; o < l->out; o++) {
        y[o] = l->bias ? l->bias[o] : 0;
        for (size_t i = 0; i < l->in; i++)
            y[o] += l->W[o * l->in + i] * x[i];
    }
    for (size_t k = 0; l->A && k < r; k++) {
        double t = 0;
        for (size_t i = 0; i < l->in; i++)
            t += l->A[k * l->in + i] * x[i];
        for (size_t o = 0; o < l->out; o++)
            y[o] += 32.0 / (double)r * l->B[o * r + k] * t;
    }
}

ON_ONE_THREAD static void rms(const double *x, const double *w, size_t n, double eps, double *y)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = 1 / sqrt(s / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s * w[i];
}

static double cosines[MAX_T][MAX_D], sines[MAX_T][MAX_D];

ON_ONE_THREAD static void rotate(const struct net *n, double *x, size_t pos)
{
    size_t half = n->c->head_dim / 2;
    for (size_t j = 0; j < half; j++) {
        double a = x[j], b = x[j + half];
        x[j] = a * cosines[pos][j] - b * sines[pos][j];
        x[j + half] = b * cosines[pos][j] + a * sines[pos][j];
    }
}

ON_ONE_THREAD static void heads(const struct net *n, double *x, size_t count, const double *norm,
                                size_t pos)
{
    size_t hd = n->c->head_dim;
    for (size_t h = 0; h < count; h++) {
        if (norm)
            rms(x + h * hd, norm, hd, (double)n->c->norm_eps, x + h * hd);
        rotate(n, x + h * hd, pos);
    }
}

ON_ONE_THREAD static void attention(const struct net *n, size_t t, double *q,
                                    double k[MAX_T][MAX_D], double v[MAX_T][MAX_D], double *out)
{
    size_t hd = n->c->head_dim, group = n->c->heads / n->c->kv_heads;
    for (size_t h = 0; h < n->c->heads; h++) {
        double p[MAX_T], sum = 0;
        for (size_t j = 0; j <= t; j++) {
            double s = 0;
            for (size_t i = 0; i < hd; i++)
                s += q[h * hd + i] * k[j][h / group * hd + i];
            p[j] = exp(s / sqrt((double)hd));
            sum += p[j];
        }
        for (size_t i = 0; i < hd; i++) {
            out[h * hd + i] = 0;
            for (size_t j = 0; j <= t; j++)
                out[h * hd + i] += p[j] / sum * v[j][h / group * hd + i];
        }
    }
}

/* o = down(silu(gate h) * up h) */
ON_ONE_THREAD static void mlp(const struct net *n, const struct affine *l, const double *h,
                              double *o)
{
    double gate[MAX_D], up[MAX_D];
    linear(n, &l[0], h, gate);
    linear(n, &l[1], h, up);
    for (size_t i = 0; i < l[0].out; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    linear(n, &l[2], up, o);
}

/* The weight of each expert for one token, 0 for those not chosen. */
ON_ONE_THREAD static void route(struct net *n, size_t layer, const double *h, double *w)
{
    const struct model_config *c = n->c;
    double p[MAX_EXPERTS], sum = 0, kept = 0, last = 0;
    linear(n, &n->router[layer], h, p);
    for (size_t e = 0; e < c->experts; e++)
        sum += exp(p[e]);
    for (size_t e = 0; e < c->experts; e++) {
        p[e] = exp(p[e]) / sum;
        w[e] = 0;
    }
    for (size_t k = 0; k <= c->experts_used && k < c->experts; k++) {
        size_t best = 0;
        for (size_t e = 1; e < c->experts; e++)
            best = p[e] > p[best] ? e : best;
        if (k == c->experts_used) {
            n->closest = fmin(n->closest, last - p[best]);
            break;
        }
        kept += w[best] = last = p[best];
        p[best] = -1;
    }
    for (size_t e = 0; c->renormalize && e < c->experts; e++)
        w[e] /= kept;
}

ON_ONE_THREAD static void mixture(struct net *n, size_t layer, const double *h, double *o)
{
    double w[MAX_EXPERTS], part[MAX_D];
    route(n, layer, h, w);
    memset(o, 0, n->c->hidden * sizeof(*o));
    for (size_t e = 0; e < n->c->experts; e++) {
        if (w[e] == 0)
            continue;
        mlp(n, n->experts[layer][e], h, part);
        for (size_t i = 0; i < n->c->hidden; i++)
            o[i] += w[e] * part[i];
    }
}

ON_ONE_THREAD static void layer_forward(struct net *n, size_t layer, double x[MAX_T][MAX_D],
                                        size_t T)
{
    static double k[MAX_T][MAX_D], v[MAX_T][MAX_D];
    const struct model_config *c = n->c;
    const struct affine *l = n->linear[layer];
    double eps = (double)c->norm_eps;
    for (size_t t = 0; t < T; t++) {
        double h[MAX_D], q[MAX_D], att[MAX_D], o[MAX_D];
        rms(x[t], n->norm1[layer], c->hidden, eps, h);
        linear(n, &l[LINEAR_Q], h, q);
        linear(n, &l[LINEAR_K], h, k[t]);
        linear(n, &l[LINEAR_V], h, v[t]);
        heads(n, q, c->heads, n->q_norm[layer], t);
        heads(n, k[t], c->kv_heads, n->k_norm[layer], t);
        attention(n, t, q, k, v, att);
        linear(n, &l[LINEAR_O], att, o);
        for (size_t i = 0; i < c->hidden; i++)
            x[t][i] += o[i];
        rms(x[t], n->norm2[layer], c->hidden, eps, h);
        if (model_sparse(c, layer))
            mixture(n, layer, h, o);
        else
            mlp(n, &l[LINEAR_GATE], h, o);
        for (size_t i = 0; i < c->hidden; i++)
            x[t][i] += o[i];
    }
}

/* log softmax of every position: lp (T, vocab). */
ON_ONE_THREAD static void forward(struct net *n, const int32_t *tokens, size_t T,
                                  double lp[MAX_T][MAX_D])
{
    static double x[MAX_T][MAX_D];
    const struct model_config *c = n->c;
    for (size_t t = 0; t < T; t++)
        memcpy(x[t], n->embed + (size_t)tokens[t] * c->hidden, c->hidden * sizeof(double));
    for (size_t l = 0; l < c->layers; l++)
        layer_forward(n, l, x, T);
    for (size_t t = 0; t < T; t++) {
        double h[MAX_D], sum = 0;
        rms(x[t], n->norm, c->hidden, (double)c->norm_eps, h);
        linear(n, &n->head, h, lp[t]);
        for (size_t i = 0; i < c->vocab; i++)
            sum += exp(lp[t][i]);
        for (size_t i = 0; i < c->vocab; i++)
            lp[t][i] -= log(sum);
    }
}

static void net_init(struct net *n, tinker_engine *e, const tinker_adapter *a)
{
    const struct model_config *c = &e->model->config;
    *n = (struct net){ .c = c, .e = e, .a = a, .closest = 1 };
    arena_init(&n->arena, SIZE_MAX);
    n->w = arena_array(&n->arena, a->params.total, sizeof(*n->w));
    for (size_t i = 0; i < a->params.total; i++)
        n->w[i] = (double)a->w[i];
    for (size_t i = 0; i < c->layers; i++)
        resolve_layer(n, i);
    n->norm = tensor(n, "model.norm.weight", 0, c->hidden);
    n->embed = tensor(n, "model.embed_tokens.weight", c->vocab, c->hidden);
    n->head = affine(n, c->tied ? "model.embed_tokens.weight" : "lm_head.weight", "unembed_tokens",
                     c->vocab, c->hidden);
    for (size_t t = 0; t < MAX_T; t++) {
        for (size_t j = 0; j < c->head_dim / 2; j++) {
            double angle = (double)((float)t * e->model->inv_freq[j]);
            cosines[t][j] = cos(angle) * (double)e->model->rope_scale;
            sines[t][j] = sin(angle) * (double)e->model->rope_scale;
        }
    }
}

#endif
