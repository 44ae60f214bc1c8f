/* parallel.h - many calls at once: so many at a time, one time limit for all, results in order.
 *
 *     tinker_parallel_options o = TINKER_PARALLEL_OPTIONS_INIT;
 *     o.max_concurrency = 32;
 *     o.timeout_ms = 600000;
 *     tinker_parallel *p = tinker_sampler_sample_parallel(s, prompts, n, NULL, NULL, &o, &err);
 *     for (size_t i = 0; p && i < n; i++)
 *         if (tinker_parallel_status(p, i, &err) == TINKER_OK)
 *             use(tinker_parallel_sample(p, i));
 *     tinker_parallel_free(p);
 *
 * When the call returns nothing is under way any more: what did not succeed has ended, too. */
#ifndef TINKER_EXTRA_PARALLEL_H
#define TINKER_EXTRA_PARALLEL_H

#include <tinker/sampling.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The outcome of all items.  Thread safety: plain data. */
typedef struct tinker_parallel tinker_parallel;

/* Asks running calls to end.  Thread safety: any thread, any time. */
typedef struct tinker_canceler tinker_canceler;

/* Submit item i and return its future.  As everywhere, what is returned belongs to the caller: here
 * that is the library, which frees it with the tinker_parallel.  NULL with *err set: the error of
 * the item.  Called in the thread that called tinker_parallel_run(), in the order of the items. */
typedef tinker_future *tinker_parallel_submit_fn(size_t i, tinker_error *err, void *state);

/* Item i is over: f is its future (NULL: it was not submitted), and err says why it failed (NULL:
 * it did not).  Called in the thread that called tinker_parallel_run(), in the order of completion.
 * Not 0: cancel the rest. */
typedef int tinker_parallel_item_fn(size_t i, const tinker_future *f, const tinker_error *err,
                                    void *state);

/* Thread safety: plain data. */
typedef struct tinker_parallel_options {
    size_t size;               /* set by TINKER_PARALLEL_OPTIONS_INIT */
    size_t max_concurrency;    /* items under way at a time, 0: all */
    int64_t timeout_ms;        /* of all items together, 0: none */
    int stop_on_error;         /* the first failure cancels the rest */
    tinker_canceler *canceler; /* NULL: none */
    tinker_parallel_item_fn *on_item;
    void *on_item_state;
} tinker_parallel_options;
#define TINKER_PARALLEL_OPTIONS_INIT                               \
    {                                                              \
        sizeof(tinker_parallel_options), 0, 0, 0, NULL, NULL, NULL \
    }

/* Sample from n prompts, with the same params and opts; how may be NULL.  Returns when every item
 * has succeeded, failed or been canceled.  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM,
 * TINKER_ESTATE in a callback of the library; errors of items: tinker_parallel_status().  Blocks. */
TINKER_API tinker_parallel *
tinker_sampler_sample_parallel(tinker_sampler *s, const tinker_model_input *prompts, size_t n,
                               const tinker_sampling_params *params,
                               const tinker_sample_options *opts,
                               const tinker_parallel_options *how, tinker_error *err);
/* The same for calls of any kind. */
TINKER_API tinker_parallel *tinker_parallel_run(tinker_parallel_submit_fn *submit, void *state,
                                                size_t n, const tinker_parallel_options *how,
                                                tinker_error *err);

/* The outcome of item i: TINKER_OK; what its future or its submission says; TINKER_ETIMEDOUT when
 * the time of all was up; TINKER_ECANCELED when the rest was canceled.  TINKER_EINVAL: there is
 * no item i. */
TINKER_API tinker_status tinker_parallel_status(const tinker_parallel *p, size_t i,
                                                tinker_error *err);
/* Its future, for the other results; NULL when it was not submitted.  Borrowed. */
TINKER_API const tinker_future *tinker_parallel_future(const tinker_parallel *p, size_t i);
/* tinker_future_sample() of it, NULL when there is none.  Borrowed. */
TINKER_API const tinker_sample *tinker_parallel_sample(const tinker_parallel *p, size_t i);
TINKER_API size_t tinker_parallel_failed(const tinker_parallel *p); /* how many did not succeed */
TINKER_API void tinker_parallel_free(tinker_parallel *p);

/* NULL with *err set: TINKER_ENOMEM. */
TINKER_API tinker_canceler *tinker_canceler_new(tinker_error *err);
/* End all calls that have it, now and later, within a tenth of a second.  May be called in a
 * signal handler. */
TINKER_API void tinker_canceler_request(tinker_canceler *c);
/* No call may be running with it. */
TINKER_API void tinker_canceler_free(tinker_canceler *c);

#ifdef __cplusplus
}
#endif
#endif
