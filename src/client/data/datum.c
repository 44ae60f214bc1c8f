/* datum.c - a training example out of the tokens of one text.
 *
 * One block of memory holds the datum and everything it refers to, so that it is freed at once.
 * For tokens t[0..n) the model reads t[0..n-1) and is to predict t[1..n): the targets are the
 * tokens one position ahead, and so are the weights. */
#include <tinker/data.h>

#include <stdlib.h>
#include <string.h>
#include "base/err.h"

/* target_tokens and weights share one shape. */
struct datum_block {
    tinker_datum datum; /* first: the public pointer is that of the block */
    tinker_chunk chunk;
    tinker_named_tensor inputs[2];
    int64_t shape;
    int64_t targets[]; /* n - 1, then as many weights, then as many tokens */
};

tinker_datum *tinker_datum_from_tokens(const int32_t *tokens, size_t n, const float *weights,
                                       tinker_error *err)
{
    const size_t each = sizeof(int64_t) + sizeof(float) + sizeof(int32_t);
    if (!tokens || n < 2) {
        err_set(err, TINKER_EINVAL, "a datum needs at least 2 tokens, got %zu", tokens ? n : 0);
        return NULL;
    }
    size_t m = n - 1;
    struct datum_block *b = m < SIZE_MAX / each / 2 ? malloc(sizeof(*b) + m * each) : NULL;
    if (!b) {
        err_nomem(err, "datum");
        return NULL;
    }
    /* In the order of falling alignment, so that no padding is needed: int64, float, int32. */
    float *w = (float *)(void *)(b->targets + m);
    int32_t *input = (int32_t *)(void *)(w + m);
    memcpy(input, tokens, m * sizeof(*input));
    for (size_t i = 0; i < m; i++) {
        b->targets[i] = tokens[i + 1];
        w[i] = weights ? weights[i + 1] : 1;
    }
    b->shape = (int64_t)m;
    b->chunk = (tinker_chunk){ .kind = TINKER_CHUNK_TEXT, .tokens = input, .n_tokens = m };
    b->inputs[0] = (tinker_named_tensor){
        "target_tokens",
        { .dtype = TINKER_INT64, .data = b->targets, .n = m, .shape = &b->shape, .ndim = 1 }
    };
    b->inputs[1] = (tinker_named_tensor){
        "weights", { .dtype = TINKER_FLOAT32, .data = w, .n = m, .shape = &b->shape, .ndim = 1 }
    };
    /* All pointers lead into the block. */
    b->datum =
        (tinker_datum){ .model_input = { &b->chunk, 1 }, .inputs = b->inputs, .n_inputs = 2 };
    return &b->datum;
}

void tinker_datum_free(tinker_datum *d)
{
    free(d); /* the first member of its block */
}
