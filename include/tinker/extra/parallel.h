/* parallel.h - many calls at once: so many at a time, one time limit for all, results in order.
 *
 *     tinker_map_options o = TINKER_MAP_OPTIONS_INIT;
 *     o.max_concurrency = 32;
 *     o.timeout_ms = 600000;
 *     tinker_map *m = tinker_sampler_map(s, prompts, n, NULL, NULL, &o, &err);
 *     for (size_t i = 0; m && i < n; i++)
 *         if (tinker_map_status(m, i, &err) == TINKER_OK)
 *             use(tinker_map_sample(m, i));
 *     tinker_map_free(m);
 *
 * When the call returns nothing is under way any more: what did not succeed has ended, too. */
#ifndef TINKER_EXTRA_PARALLEL_H
#define TINKER_EXTRA_PARALLEL_H

#include <tinker/sampling.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What came of all items.  Thread safety: plain data. */
typedef struct tinker_map tinker_map;

/* Asks a running map to end.  Thread safety: any thread, any time. */
typedef struct tinker_canceller tinker_canceller;

/* Submit item i and return its future, which the map takes over; or NULL with *err set, which
 * becomes the error of the item.  Called in the thread of the map, in the order of the items. */
typedef tinker_future *tinker_map_submit(void *state, size_t i, tinker_error *err);

/* Item i is over: f is its future (NULL: it was not submitted), and err says why it failed (NULL:
 * it did not).  Called in the thread of the map, in the order of completion.  Not 0: cancel the
 * rest. */
typedef int tinker_map_callback(void *state, size_t i, const tinker_future *f,
                                const tinker_error *err);

/* Thread safety: plain data. */
typedef struct tinker_map_options {
    size_t size;                 /* set by TINKER_MAP_OPTIONS_INIT */
    size_t max_concurrency;      /* items under way at a time, 0: all */
    int64_t timeout_ms;          /* of all items together, 0: none */
    int stop_on_error;           /* the first failure cancels the rest */
    tinker_canceller *canceller; /* NULL: none */
    tinker_map_callback *on_item;
    void *on_item_state;
} tinker_map_options;
#define TINKER_MAP_OPTIONS_INIT                               \
    {                                                         \
        sizeof(tinker_map_options), 0, 0, 0, NULL, NULL, NULL \
    }

/* Sample from n prompts, with the same params and opts; how may be NULL.  Returns when every item
 * has succeeded, failed or been cancelled.  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM,
 * TINKER_ESTATE in a callback of the library; errors of items are in the map.  Blocks. */
TINKER_API tinker_map *tinker_sampler_map(tinker_sampler *s, const tinker_model_input *prompts,
                                          size_t n, const tinker_sampling_params *params,
                                          const tinker_sample_options *opts,
                                          const tinker_map_options *how, tinker_error *err);
/* The same for calls of any kind. */
TINKER_API tinker_map *tinker_map_run(tinker_map_submit *submit, void *state, size_t n,
                                      const tinker_map_options *how, tinker_error *err);

/* What came of item i: TINKER_OK; what its future or its submission says; TINKER_ETIMEDOUT when
 * the time of all was up; TINKER_ECANCELED when the rest was cancelled.  TINKER_EINVAL: there is
 * no item i. */
TINKER_API tinker_status tinker_map_status(const tinker_map *m, size_t i, tinker_error *err);
/* Its future, for the other results; NULL when it was not submitted.  Borrowed. */
TINKER_API const tinker_future *tinker_map_future(const tinker_map *m, size_t i);
/* tinker_future_sample() of it, NULL when there is none.  Borrowed. */
TINKER_API const tinker_sample *tinker_map_sample(const tinker_map *m, size_t i);
TINKER_API size_t tinker_map_failed(const tinker_map *m); /* how many did not succeed */
TINKER_API void tinker_map_free(tinker_map *m);

/* NULL with *err set: TINKER_ENOMEM. */
TINKER_API tinker_canceller *tinker_canceller_new(tinker_error *err);
/* End all maps that have it, now and later, within a tenth of a second.  May be called in a
 * signal handler. */
TINKER_API void tinker_canceller_request(tinker_canceller *c);
/* No map may be running with it. */
TINKER_API void tinker_canceller_free(tinker_canceller *c);

#ifdef __cplusplus
}
#endif
#endif
