/* tok_batch.c - many texts on several threads.
 *
 * Threads take the next text, longest first, so that a long one does not come last; every
 * result lands at its own index, so the outcome does not depend on who encoded it. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/tok_encode.h"

enum { MAX_THREADS = 256, WORTH_A_THREAD = 16 * 1024 /* bytes; starting one costs as much */ };

/* One text of the batch, and how many results its arrays held before the call. */
struct batch_item {
    size_t n, index;
    size_t had_ids, had_spans;
};

struct batch {
    const tinker_tokenizer *t;
    const tinker_slice *texts;
    const tinker_encode_options *o;
    tinker_tokens *out;
    tinker_spans *spans; /* NULL: not wanted */
    const struct batch_item *items;
    size_t n;
    atomic_size_t next;   /* item that nobody has taken yet */
    pthread_mutex_t lock; /* guards the three below */
    bool failed;
    size_t failed_at;
    tinker_error err;
};

/* Of several texts that fail the first one is named, whichever thread comes first. */
static void report_failure(struct batch *b, size_t index, const tinker_error *err)
{
    pthread_mutex_lock(&b->lock);
    if (!b->failed || index < b->failed_at) {
        b->failed = true;
        b->failed_at = index;
        b->err = *err;
    }
    pthread_mutex_unlock(&b->lock);
}

/* Body of each thread, the caller's included. */
static void *encode_items(void *state)
{
    struct batch *b = state;
    tinker_error err;
    memset(&err, 0, sizeof(err));
    struct tok_ctx *c = tok_ctx_take(b->t);
    if (!c) {
        err_nomem(&err, "tokens");
        report_failure(b, 0, &err);
        return NULL;
    }
    for (;;) {
        size_t k = atomic_fetch_add(&b->next, 1);
        if (k >= b->n)
            break;
        size_t i = b->items[k].index;
        /* After a failure the others still run: which text is named must not depend on timing. */
        if (tok_encode(b->t, c, b->texts[i].s, b->texts[i].n, b->o, &b->out[i],
                       b->spans ? &b->spans[i] : NULL, &err) != TINKER_OK)
            report_failure(b, i, &err);
    }
    tok_ctx_give(b->t, c);
    return NULL;
}

static int compare_lengths(const void *a, const void *b)
{
    const struct batch_item *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

tinker_status tinker_tokenizer_encode_batch(const tinker_tokenizer *t, const tinker_slice *texts,
                                            size_t n, const tinker_encode_options *opts,
                                            tinker_tokens *out, tinker_spans *spans,
                                            tinker_error *err)
{
    tinker_encode_options o;
    tinker_status status = tok_encode_options(&o, opts, err);
    if (status != TINKER_OK || n == 0)
        return status;
    struct batch_item *items = n > SIZE_MAX / 64 ? NULL : malloc(n * sizeof(*items));
    if (!items)
        return err_nomem(err, "batch");
    for (size_t i = 0; i < n; i++)
        items[i] = (struct batch_item){ texts[i].n, i, out[i].n, spans ? spans[i].n : 0 };
    qsort(items, n, sizeof(*items), compare_lengths);

    struct batch b = {
        .t = t, .texts = texts, .o = &o, .out = out, .spans = spans, .items = items, .n = n
    };
    pthread_mutex_init(&b.lock, NULL);
    pthread_t others[MAX_THREADS];
    /* As many threads as were asked for, as long as each has a share of the bytes that is worth it. */
    size_t bytes = 0, threads = o.threads > 0 ? (size_t)o.threads : (size_t)os_cpu_count();
    for (size_t i = 0; i < n; i++)
        bytes += texts[i].n;
    size_t most = bytes / WORTH_A_THREAD + 1;
    most = most < n ? most : n;
    most = most < MAX_THREADS ? most : MAX_THREADS;
    threads = threads < most ? threads : most;
    size_t started = 0;
    while (started + 1 < threads && pthread_create(&others[started], NULL, encode_items, &b) == 0)
        started++; /* fewer threads than wanted are enough */
    encode_items(&b);
    for (size_t i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    pthread_mutex_destroy(&b.lock);

    if (b.failed) { /* all or nothing: the texts that succeeded are taken back, too */
        for (size_t k = 0; k < n; k++) {
            out[items[k].index].n = items[k].had_ids;
            if (spans)
                spans[items[k].index].n = items[k].had_spans;
        }
        status = b.err.status;
        if (err) {
            *err = b.err;
            err_prefix(err, "text %zu", b.failed_at);
        }
    }
    free(items);
    return status;
}
