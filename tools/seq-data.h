/* seq-data.h - the data of tools/seq-conform: tokens and datums, as tests/conformance/sequence.py
 * makes them.  Memory is that of the current step. */
#ifndef TOOLS_SEQ_DATA_H
#define TOOLS_SEQ_DATA_H

#include <stdbool.h>
#include <stdlib.h>
#include <tinker/data.h>
#include "base/arena.h"

static struct arena arena;

static inline void *get(size_t n, size_t size)
{
    void *p = arena_array(&arena, n, size);
    if (!p)
        abort();
    return p;
}

static inline tinker_chunk text(int first, size_t n)
{
    int32_t *tokens = get(n, sizeof *tokens);
    for (size_t k = 0; k < n; k++)
        tokens[k] = first + (int)k;
    return (tinker_chunk){ .tokens = tokens, .n_tokens = n };
}

/* Datum i of `n` tokens: targets, and weights unless they are left out. */
static inline tinker_datum datum(int i, size_t n, bool weights)
{
    tinker_chunk *chunk = get(1, sizeof *chunk);
    *chunk = text(100 * i, n);
    int64_t *targets = get(n, sizeof *targets);
    float *w = get(n, sizeof *w);
    for (size_t k = 0; k < n; k++) {
        targets[k] = 100 * i + (int)k + 1;
        w[k] = 0.5f * (float)k;
    }
    tinker_named_tensor *inputs = get(2, sizeof *inputs);
    inputs[0] = (tinker_named_tensor){ "target_tokens",
                                       { .dtype = TINKER_INT64, .data = targets, .n = n } };
    inputs[1] = (tinker_named_tensor){ "weights", { .dtype = TINKER_FLOAT32, .data = w, .n = n } };
    return (
        tinker_datum){ .model_input = { chunk, 1 }, .inputs = inputs, .n_inputs = weights ? 2 : 1 };
}

static inline const tinker_datum *batch(size_t n, size_t tokens)
{
    tinker_datum *data = get(n, sizeof *data);
    for (size_t i = 0; i < n; i++)
        data[i] = datum((int)i, tokens, true);
    return data;
}

#endif
