/* dataset.c - conversations from JSON Lines, and training rows from examples.
 *
 * A line that cannot be read is reported as "file:line: ..." and the next call goes on
 * behind it.  Thread: one at a time. */
#include <tinker/recipe.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"

struct tinker_dataset {
    FILE *file;
    char *path;
    char *line;
    size_t cap, number;
    tinker_conversation *row;
};

/* "e": the descriptor is not for programs that this one starts. */
tinker_dataset *tinker_dataset_open(const char *path, tinker_error *err)
{
    tinker_dataset *d = calloc(1, sizeof(*d));
    if (!d || !(d->path = strdup(path))) {
        free(d);
        err_nomem(err, "a dataset");
        return NULL;
    }
    d->file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (d->file)
        return d;
    err_errno(err, "open", path);
    tinker_dataset_close(d);
    return NULL;
}

void tinker_dataset_close(tinker_dataset *d)
{
    if (!d)
        return;
    if (d->file && d->file != stdin)
        fclose(d->file);
    tinker_conversation_free(d->row);
    free(d->path);
    free(d->line);
    free(d);
}

/* errno tells the end of the file from a failure: getline() returns -1 for both. The row of the
 * last call goes first, so that there is one at a time. */
tinker_status tinker_dataset_next(tinker_dataset *d, const tinker_conversation **out,
                                  tinker_error *err)
{
    tinker_error own;
    *out = NULL;
    tinker_conversation_free(d->row);
    d->row = NULL;
    ssize_t n;
    size_t skip;
    do {
        errno = 0;
        n = getline(&d->line, &d->cap, d->file);
        if (n < 0) {
            return errno ? err_errno(err, "read", d->path) : TINKER_OK; /* the end */
        }
        /* Windows editors begin a file with a byte order mark, which JSON does not allow. */
        skip = d->number++ == 0 && strncmp(d->line, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
        /* Blank lines between blocks and at the end are no rows. */
    } while (strspn(d->line + skip, " \t\r\n\v\f") >= (size_t)n - skip);
    d->row = tinker_conversation_parse(d->line + skip, (size_t)n - skip, &own);
    *out = d->row;
    if (d->row)
        return TINKER_OK;
    err_prefix(&own, "%s:%zu", d->path, d->number);
    if (err)
        *err = own;
    return own.status;
}

size_t tinker_dataset_line(const tinker_dataset *d)
{
    return d->number;
}

/* ---- rows ---- */

/* A row and the memory of everything its datum refers to. */
struct row_box {
    tinker_training_row pub; /* first */
    struct arena arena;
    tinker_named_tensor inputs[2];
};

void tinker_training_row_free(tinker_training_row *row)
{
    struct row_box *box = (struct row_box *)row;
    if (!box)
        return;
    arena_clear(&box->arena);
    free(box);
}

/* Positions that a chunk takes; an image that does not say how many counts as none. */
static size_t length_of(const tinker_chunk *c)
{
    return c->kind == TINKER_CHUNK_TEXT ? c->n_tokens
           : c->expected_tokens > 0     ? (size_t)c->expected_tokens
                                        : 0;
}

/* Cut chunks[0..*n) to max tokens and drop what cannot end an example; the tokens left. From the
 * end: text loses tokens, an image that does not fit goes whole. Empty chunks go, and images at
 * the end, behind which there is nothing to predict. */
static size_t truncate_chunks(tinker_chunk *chunks, size_t *n, size_t max)
{
    size_t total = 0, kept = 0;
    for (size_t i = 0; i < *n; i++)
        total += length_of(&chunks[i]);
    while (max > 0 && total > max && *n > 0) {
        tinker_chunk *last = &chunks[*n - 1];
        size_t over = total - max, len = length_of(last);
        if (last->kind == TINKER_CHUNK_TEXT && over < len) {
            last->n_tokens -= over;
            total = max;
        } else {
            total -= len;
            --*n;
        }
    }
    for (size_t i = 0; i < *n; i++)
        if (chunks[i].kind != TINKER_CHUNK_TEXT || chunks[i].n_tokens > 0)
            chunks[kept++] = chunks[i];
    while (kept > 0 && chunks[kept - 1].kind != TINKER_CHUNK_TEXT)
        total -= length_of(&chunks[--kept]);
    *n = kept;
    return total;
}

/* Copy chunks with their tokens, so that the row stands alone: the example belongs to the
 * renderer. */
static tinker_chunk *copy_chunks(struct arena *a, const tinker_model_input *in)
{
    tinker_chunk *chunks = arena_array(a, in->n_chunks + 1, sizeof(*chunks));
    for (size_t i = 0; chunks && i < in->n_chunks; i++) {
        chunks[i] = in->chunks[i];
        const tinker_chunk *c = &in->chunks[i];
        if (c->n_tokens)
            chunks[i].tokens = arena_memdup(a, c->tokens, c->n_tokens * sizeof(*c->tokens));
        if (c->n_bytes)
            chunks[i].bytes = arena_memdup(a, c->bytes, c->n_bytes);
        if (c->format)
            chunks[i].format = arena_strdup(a, c->format);
        if (c->location)
            chunks[i].location = arena_strdup(a, c->location);
        if ((c->n_tokens && !chunks[i].tokens) || (c->n_bytes && !chunks[i].bytes) ||
            (c->format && !chunks[i].format) || (c->location && !chunks[i].location))
            return NULL;
    }
    return chunks;
}

/* Targets are all tokens but the first; positions of an image read 0. */
static void fill_targets(int64_t *targets, const tinker_chunk *chunks, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < length_of(&chunks[i]); k++, at++)
            if (at > 0)
                targets[at - 1] = chunks[i].kind == TINKER_CHUNK_TEXT ? chunks[i].tokens[k] : 0;
    }
}

/* weights[i] belongs to token i + 1, the one that position i predicts. A mean divides by the sum,
 * so that long and short examples count alike; an example without any weight stays at 0. Returns
 * how many are trained. */
static size_t fill_weights(float *to, const float *from, size_t n, tinker_reduction reduction)
{
    double sum = 0;
    size_t trained = 0;
    for (size_t i = 0; i < n; i++) {
        to[i] = from ? from[i + 1] : 1;
        sum += to[i];
        trained += to[i] != 0;
    }
    for (size_t i = 0; i < n && reduction == TINKER_REDUCTION_MEAN && sum > 0; i++)
        to[i] = (float)(to[i] / sum);
    return trained;
}

/* Input: all tokens but the last. Targets: all but the first. What the last chunk loses may leave
 * it empty, and it is dropped then. */
tinker_training_row *tinker_training_row_new(const tinker_example *example, size_t max_length,
                                             tinker_reduction reduction, tinker_error *err)
{
    struct row_box *box = calloc(1, sizeof(*box));
    if (!box) {
        err_nomem(err, "a training row");
        return NULL;
    }
    arena_init(&box->arena, SIZE_MAX);
    size_t n = example->input.n_chunks;
    tinker_chunk *chunks = copy_chunks(&box->arena, &example->input);
    size_t total = chunks ? truncate_chunks(chunks, &n, max_length) : 0;
    if (chunks && (n == 0 || total < 2)) {
        err_set(err, TINKER_EINVAL, "an example needs at least 2 tokens, %zu are left", total);
        tinker_training_row_free(&box->pub);
        return NULL;
    }
    size_t targets = total ? total - 1 : 0;
    int64_t *ids = chunks ? arena_array(&box->arena, targets + 1, sizeof(*ids)) : NULL;
    float *weights = chunks ? arena_array(&box->arena, targets + 1, sizeof(*weights)) : NULL;
    if (!ids || !weights) {
        err_nomem(err, "a training row");
        tinker_training_row_free(&box->pub);
        return NULL;
    }
    fill_targets(ids, chunks, n);
    box->pub.n_trained = fill_weights(weights, example->weights, targets, reduction);
    box->pub.n_targets = targets;
    box->pub.n_truncated = example->n_tokens > total ? example->n_tokens - total : 0;
    chunks[n - 1].n_tokens--;
    n -= chunks[n - 1].n_tokens == 0;
    box->inputs[0] = (tinker_named_tensor){ "target_tokens",
                                            { .dtype = TINKER_INT64, .data = ids, .n = targets } };
    box->inputs[1] =
        (tinker_named_tensor){ "weights",
                               { .dtype = TINKER_FLOAT32, .data = weights, .n = targets } };
    box->pub.datum =
        (tinker_datum){ .model_input = { chunks, n }, .inputs = box->inputs, .n_inputs = 2 };
    return &box->pub;
}
