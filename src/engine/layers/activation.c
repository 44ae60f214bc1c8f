/* activation.c - activations as silu(h) * w; see activation.h. */
#include "engine/layers/activation.h"

#include "engine/kernels/vec.h"

/* Elements that are prepared at once: h and w stay in the first cache. */
enum { BLOCK = 512 };

static const float gelu_c = 1.5957691216057308f; /* 2 sqrt(2/pi) */
static const float gelu_a = 0.044715f;

static float clamp_float(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* h and w of n <= BLOCK elements. */
static void prepare_block(const struct model_config *c, float *h, float *w, const float *gate,
                          const float *up, size_t n)
{
    if (c->activation == ACTIVATION_GELU) {
        for (size_t i = 0; i < n; i++) {
            float slope = gelu_c * (1 + gelu_a * gate[i] * gate[i]); /* h / gate, never 0 */
            h[i] = gate[i] * slope;
            w[i] = up[i] / slope;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        h[i] = c->swiglu_alpha * (gate[i] < c->swiglu_limit ? gate[i] : c->swiglu_limit);
        w[i] = (clamp_float(up[i], -c->swiglu_limit, c->swiglu_limit) + 1) / c->swiglu_alpha;
    }
}

void activation_forward(const struct model_config *c, float *y, const float *gate, const float *up,
                        size_t n)
{
    float h[BLOCK], w[BLOCK];
    if (c->activation == ACTIVATION_SILU) {
        vec_ops()->silu(y, gate, up, n);
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t count = n - at < BLOCK ? n - at : BLOCK;
        prepare_block(c, h, w, gate + at, up + at, count);
        vec_ops()->silu(y + at, h, w, count);
    }
}

/* From dh and dw to the gradients of gate and up: the chain rule of prepare_block(). */
static void finish_block(const struct model_config *c, float *dgate, float *dup, const float *gate,
                         const float *up, size_t n)
{
    if (c->activation == ACTIVATION_GELU) {
        for (size_t i = 0; i < n; i++) {
            float x = gate[i], slope = gelu_c * (1 + gelu_a * x * x), dw = dup[i];
            /* dh/dx = c (1 + 3 a x^2);  dw/dx = -up slope' / slope^2 */
            dgate[i] = dgate[i] * gelu_c * (1 + 3 * gelu_a * x * x) -
                       dw * up[i] * 2 * gelu_c * gelu_a * x / (slope * slope);
            dup[i] = dw / slope;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float limit = c->swiglu_limit;
        dgate[i] = gate[i] <= limit ? dgate[i] * c->swiglu_alpha : 0;
        dup[i] = up[i] >= -limit && up[i] <= limit ? dup[i] / c->swiglu_alpha : 0;
    }
}

void activation_backward(const struct model_config *c, float *dgate, float *dup, const float *gate,
                         const float *up, size_t n)
{
    float h[BLOCK], w[BLOCK];
    if (c->activation == ACTIVATION_SILU) {
        vec_ops()->silu_backward(dgate, dup, gate, up, n);
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t count = n - at < BLOCK ? n - at : BLOCK;
        prepare_block(c, h, w, gate + at, up + at, count);
        vec_ops()->silu_backward(dgate + at, dup + at, h, w, count);
        finish_block(c, dgate + at, dup + at, gate + at, up + at, count);
    }
}
