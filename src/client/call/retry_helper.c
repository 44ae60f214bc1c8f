/* retry_helper.c - trying something of the caller's again, by the rules of samples. */
#include <time.h>
#include <tinker/sampling.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"
#include "client/call/retry_policy.h"
#include "client/sampling/sample_retry.h"
#include "client/io/runtime.h"

tinker_status tinker_retry(tinker_retry_fn *fn, void *state, const tinker_retry_options *opts,
                           tinker_error *err)
{
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    tinker_error mine;
    struct rng rng;
    tinker_status s = opts_copy(&o, sizeof(o), opts, "tinker_retry_options", err);
    if (s == TINKER_OK)
        s = sample_retry_check(&o, err);
    if (s == TINKER_OK)
        /* Not on a thread of the library: sleeping there would stop the work that is waited
         * for. */
        s = runtime_may_block("tinker_retry", err);
    if (s != TINKER_OK)
        return s;
    rng_seed_os(&rng);
    int64_t start = clock_now_ms(clock_real());
    for (int k = 0;; k++) {
        mine = (tinker_error){ 0 };
        /* The number of the attempt lets the program choose another key or server. */
        s = fn(k, &mine, state);
        if (s == TINKER_OK)
            return s;
        bool last = !mine.retryable || o.no_retries || (o.max_retries >= 0 && k >= o.max_retries) ||
                    (!o.no_stuck_detection && clock_now_ms(clock_real()) - start >= o.progress_ms);
        if (last)
            break;
        int64_t ms = retry_sample_delay_ms(&o, k + 1, rng_uniform(&rng));
        struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
        while (nanosleep(&left, &left) != 0)
            ; /* interrupted by a signal: sleep for the rest */
    }
    if (err)
        *err = mine;
    return s;
}
