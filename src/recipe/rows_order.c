/* rows_order.c - which rows a step trains.
 *
 * As the cookbook has it: one shuffle by the given seed sets the test rows apart; then every epoch
 * permutes the rest afresh, with the number of the epoch as its seed. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "recipe/rows.h"

/* How many datums a row has. Pairs have two, chosen and rejected, next to each other. */
static size_t datums_of(const tinker_rows *x)
{
    return x->n && x->rows[0].talk[1] ? 2 : 1;
}

/* Shallow: tensors belong to the rows, which live as long as the handle. */
static void copy_datums(const tinker_rows *x, const size_t *rows, size_t n, tinker_datum *out)
{
    size_t each = datums_of(x);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < each; k++)
            out[i * each + k] = x->rows[rows[i]].datum[k]->datum;
}

/* The test rows come first in the shuffled order. A batch size of 0, or one beyond the number of
 * rows, means all of them. */
bool rows_arrange(tinker_rows *x, tinker_error *err)
{
    size_t test = x->opts.test_size;
    if (test >= x->n) {
        err_set(err, TINKER_EINVAL, "%s: %zu rows cannot give %zu test rows and something to train",
                x->path, x->n, test);
        return false;
    }
    size_t *order = calloc(x->n + 1, sizeof(*order));
    x->n_train = x->n - test;
    x->n_test = test;
    x->train = calloc(x->n_train + 1, sizeof(size_t));
    x->test = calloc(x->n_test + 1, sizeof(size_t));
    x->epoch_order = calloc(x->n_train + 1, sizeof(size_t));
    x->test_data = calloc(x->n_test * datums_of(x) + 1, sizeof(*x->test_data));
    if (!order || !x->train || !x->test || !x->epoch_order || !x->test_data) {
        free(order);
        err_nomem(err, x->path);
        return false;
    }
    for (size_t i = 0; i < x->n; i++)
        order[i] = i;
    if (x->opts.shuffle_seed >= 0)
        tinker_permutation((uint64_t)x->opts.shuffle_seed, x->n, order);
    memcpy(x->test, order, test * sizeof(*order));
    memcpy(x->train, order + test, x->n_train * sizeof(*order));
    free(order);
    if (!x->opts.prompts_only) {
        copy_datums(x, x->test, x->n_test, x->test_data);
        x->n_test_data = x->n_test * datums_of(x);
    }
    x->stats.rows = x->n;
    x->stats.train_rows = x->n_train;
    x->stats.test_rows = x->n_test;
    x->batch_size =
        x->opts.batch_size && x->opts.batch_size < x->n_train ? x->opts.batch_size : x->n_train;
    return true;
}

/* An incomplete last batch is dropped, unless the caller keeps it or it is the only one. */
size_t tinker_rows_batches(const tinker_rows *x)
{
    size_t n = x->fixed ? x->n_fixed : x->n_train;
    size_t full = n / x->batch_size, rest = n % x->batch_size;
    return full + (rest && (x->opts.keep_last || !full));
}

/* The array is reused by the next call. Computed anew for each epoch from its number, so a
 * resumed run needs no stored state. */
const size_t *tinker_rows_order(tinker_rows *x, size_t epoch, size_t *n)
{
    if (epoch == SIZE_MAX) {
        *n = x->n_test;
        return x->test;
    }
    if (x->fixed) {
        *n = x->n_fixed;
        return x->fixed;
    }
    *n = x->n_train;
    if (x->opts.shuffle_seed < 0)
        return x->train;
    tinker_permutation(epoch, x->n_train, x->epoch_order);
    for (size_t i = 0; i < x->n_train; i++)
        x->epoch_order[i] = x->train[x->epoch_order[i]];
    return x->epoch_order;
}

/* For runs that replay the order of another program (order.txt). */
tinker_status tinker_rows_set_order(tinker_rows *x, const size_t *order, size_t n,
                                    tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (order[i] >= x->n)
            return err_set(err, TINKER_EINVAL, "line %zu of the order: there is no row %zu", i + 1,
                           order[i]);
    if (n == 0)
        return err_set(err, TINKER_EINVAL, "the order names no row");
    size_t *copy = malloc(n * sizeof(*copy));
    if (!copy)
        return err_nomem(err, "an order");
    memcpy(copy, order, n * sizeof(*copy));
    free(x->fixed);
    x->fixed = copy;
    x->n_fixed = n;
    x->batch_size = x->opts.batch_size && x->opts.batch_size < n ? x->opts.batch_size : n;
    return TINKER_OK;
}

/* The array is the handle's and valid until the next call. */
const tinker_datum *tinker_rows_batch(tinker_rows *x, size_t epoch, size_t batch, size_t *n)
{
    size_t rows, each = datums_of(x), from = batch * x->batch_size;
    const size_t *order = tinker_rows_order(x, epoch, &rows);
    size_t count = from >= rows ? 0 : rows - from < x->batch_size ? rows - from : x->batch_size;
    *n = count * each;
    if (*n > x->batch_cap) {
        tinker_datum *grown = realloc(x->batch, *n * sizeof(*grown));
        if (!grown) {
            *n = 0;
            return NULL;
        }
        x->batch = grown;
        x->batch_cap = *n;
    }
    copy_datums(x, order + from, count, x->batch);
    return x->batch;
}

const tinker_datum *tinker_rows_test(const tinker_rows *x, size_t *n)
{
    *n = x->n_test_data;
    return x->test_data;
}
