/* tok_batch.c - many texts on several threads.
 *
 * Threads take the next text, longest first, so that a long one does not come last; every
 * result lands at its own index, so the outcome does not depend on who encoded it. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/tok_encode.h"

enum { MAX_THREADS = 256, WORTH_A_THREAD = 16 * 1024 };

struct batch {
    const tinker_tokenizer *t;
    const tinker_slice *texts;
    const tinker_encode_options *o;
    tinker_tokens *out;
    const size_t *order;
    size_t n;
    atomic_size_t next;
    pthread_mutex_t lock; /* guards the three below */
    bool failed;
    size_t failed_at;
    tinker_error err;
};

static void report(struct batch *b, size_t index, const tinker_error *err)
{
    pthread_mutex_lock(&b->lock);
    if (!b->failed || index < b->failed_at) {
        b->failed = true;
        b->failed_at = index;
        b->err = *err;
    }
    pthread_mutex_unlock(&b->lock);
}

static void *work(void *state)
{
    struct batch *b = state;
    tinker_error err;
    memset(&err, 0, sizeof(err));
    struct tok_ctx *c = tok_ctx_take(b->t);
    if (!c) {
        err_nomem(&err, "tokens");
        report(b, 0, &err);
        return NULL;
    }
    for (;;) {
        size_t k = atomic_fetch_add(&b->next, 1);
        if (k >= b->n)
            break;
        size_t i = b->order[k];
        if (tok_encode(b->t, c, b->texts[i].s, b->texts[i].n, b->o, &b->out[i], NULL, &err) !=
            TINKER_OK)
            report(b, i, &err); /* go on: which text is named must not depend on timing */
    }
    tok_ctx_give(b->t, c);
    return NULL;
}

struct item {
    size_t n, index;
};

static int by_length(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Indices by falling length, behind the lengths that the results had before. */
static size_t *make_order(const tinker_slice *texts, const tinker_tokens *out, size_t n)
{
    struct item *items = n > SIZE_MAX / 64 ? NULL : malloc(n * sizeof(*items));
    size_t *order = items ? malloc(2 * n * sizeof(*order)) : NULL;
    for (size_t i = 0; order && i < n; i++)
        items[i] = (struct item){ texts[i].n, i };
    if (order)
        qsort(items, n, sizeof(*items), by_length);
    for (size_t i = 0; order && i < n; i++) {
        order[i] = items[i].index;
        order[n + i] = out[i].n;
    }
    free(items);
    return order;
}

static int useful_threads(const tinker_slice *texts, size_t n, int wanted)
{
    size_t bytes = 0, most;
    if (wanted <= 0)
        wanted = os_cpu_count();
    for (size_t i = 0; i < n; i++)
        bytes += texts[i].n;
    most = bytes / WORTH_A_THREAD + 1;
    most = most < n ? most : n;
    most = most < MAX_THREADS ? most : MAX_THREADS;
    return (size_t)wanted < most ? wanted : (int)most;
}

static void run(struct batch *b, int threads)
{
    pthread_t others[MAX_THREADS];
    int started = 0;
    while (started + 1 < threads && pthread_create(&others[started], NULL, work, b) == 0)
        started++; /* fewer threads than wanted are enough */
    work(b);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], NULL);
}

tinker_status tinker_tokenizer_encode_batch(const tinker_tokenizer *t, const tinker_slice *texts,
                                            size_t n, const tinker_encode_options *opts,
                                            int threads, tinker_tokens *out, tinker_error *err)
{
    tinker_encode_options o;
    tinker_status status = tok_encode_options(&o, opts, err);
    if (status != TINKER_OK || n == 0)
        return status;
    size_t *order = make_order(texts, out, n);
    if (!order)
        return err_nomem(err, "batch");
    struct batch b = { .t = t, .texts = texts, .o = &o, .out = out, .order = order, .n = n };
    pthread_mutex_init(&b.lock, NULL);
    run(&b, useful_threads(texts, n, threads));
    pthread_mutex_destroy(&b.lock);
    if (b.failed) {
        for (size_t i = 0; i < n; i++)
            out[i].n = order[n + i];
        status = b.err.status;
        if (err) {
            *err = b.err;
            err_prefix(err, "text %zu", b.failed_at);
        }
    }
    free(order);
    return status;
}
