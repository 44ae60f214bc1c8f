/* future.h - the outcome of a submitted request, and queues of outcomes.
 *
 * Every submit function returns a tinker_future at once.  There are three ways to
 * learn its outcome, freely mixed: wait for it, add it to a queue whose descriptor
 * fits any poll loop, or attach a callback that runs inside tinker_queue_dispatch().
 *
 * The caller owns the future throughout; a queue only refers to it.
 *
 * Which thread runs your code (other headers refer to this as "the callback thread"):
 *
 *   - In the thread that calls: callbacks of tinker_queue_dispatch(), of tinker_retry(), of
 *     tinker_breaker_call(), of tinker_parallel_run(), of loops such as a recipe's, message renderers
 *     and tokenizer loaders; and custom losses of the blocking forms.
 *   - On the callback thread, one for all services of the process: the log callback, queue
 *     observers, hooks, on_response, on_piece, stream events, progress of downloads, recovery
 *     callbacks, and a transport's send and cancel.  One at a time and in order, so a slow one
 *     delays the others but never the network.  It may submit; it must not wait: blocking calls
 *     fail there with TINKER_ESTATE.
 *   - On threads of their own: custom losses that were submitted as futures, and regularizers
 *     that run in parallel.
 *
 * Nothing of yours ever runs on the I/O thread, and nothing while a lock of the library is
 * held.  When the function that ends an interest returns (freeing the future, the service, or
 * detaching), the callback is not running and will not be called again, unless it is the
 * callback itself that called. */
#ifndef TINKER_FUTURE_H
#define TINKER_FUTURE_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread safety: any thread, any time. */
typedef struct tinker_future tinker_future;

/* Wait until the future is complete, at most timeout_ms (-1: forever; 0: do not wait).
 * Returns TINKER_OK when the result is there, TINKER_ETIMEDOUT when it is still
 * pending (the request goes on; wait again at will), or the error of the request.
 * Blocks. */
TINKER_API tinker_status tinker_future_wait(tinker_future *f, int64_t timeout_ms,
                                            tinker_error *err);

/* Submit and wait in one:
 *
 *     f = tinker_future_await(tinker_training_optim_step(t, NULL, &err), 60000, &err);
 *
 * f comes back complete and successful, and is still yours to free.  Else NULL with *err set, and
 * f is freed; if it was pending it is canceled, which does not undo what the service has begun.
 * f may be NULL, as a refused submission returns it: then *err stays as the submission set it.
 * Blocks. */
TINKER_API tinker_future *tinker_future_await(tinker_future *f, int64_t timeout_ms,
                                              tinker_error *err);

/* 1 when complete, with a result or an error. */
TINKER_API int tinker_future_done(const tinker_future *f);

/* Ask for cancellation: completes with TINKER_ECANCELED unless the result comes
 * first.  A request, not a promise: the service may execute it all the same, and
 * a canceled training request still takes its turn. */
TINKER_API void tinker_future_cancel(tinker_future *f);

/* Free the future and everything reachable from its result; does not cancel.
 * No other call on the object may be in progress. */
TINKER_API void tinker_future_free(tinker_future *f);

/* Let it fail with TINKER_ETIMEDOUT when it is not complete by then; counted from now.
 * Unlike a wait, this ends the polling. */
TINKER_API void tinker_future_set_deadline(tinker_future *f, int64_t timeout_ms);

/* Wait for all, or for one, of f[0..n), at most timeout_ms.  all: TINKER_OK when every one
 * succeeded, else the first error in the order of the array.  any: the index of one that is
 * complete, -1 when none is. */
TINKER_API tinker_status tinker_future_wait_all(tinker_future *const *f, size_t n,
                                                int64_t timeout_ms, tinker_error *err);
TINKER_API int64_t tinker_future_wait_any(tinker_future *const *f, size_t n, int64_t timeout_ms);

/* Body of the HTTP error that a future failed with, "" when there was none, and the wait the
 * service asked for, -1 when it did not.  Borrowed until free. */
TINKER_API const char *tinker_future_error_body(const tinker_future *f);
TINKER_API int64_t tinker_future_retry_after_ms(const tinker_future *f);

/* Request id that the service gave, "" while unknown.  Borrowed until free. */
TINKER_API const char *tinker_future_request_id(const tinker_future *f);

/* Typed results, borrowed until tinker_future_free(); NULL while pending, after a
 * failure, and for a future of another kind. */
TINKER_API const tinker_forward_backward *tinker_future_forward_backward(const tinker_future *f);
TINKER_API const tinker_sample *tinker_future_sample(const tinker_future *f);
/* Metrics of an optim_step; *n receives their number. */
TINKER_API const tinker_named_number *tinker_future_metrics(const tinker_future *f, size_t *n);
/* tinker:// path that was written by save_weights, save_weights_for_sampler, an external save or
 * copy_checkpoint. */
TINKER_API const char *tinker_future_saved_path(const tinker_future *f);
/* tinker:// path that load_weights has read; NULL also when the service does not say. */
TINKER_API const char *tinker_future_loaded_path(const tinker_future *f);
/* Name of the base model of a sampler. */
TINKER_API const char *tinker_future_base_model(const tinker_future *f);
/* File that a download has written, or the address of an exported trace. */
TINKER_API const char *tinker_future_file(const tinker_future *f);

/* What kind of request: "ForwardBackward", "Sample", …; "" when it is not one that can be
 * resumed.  Together with the request id it is enough to ask for the result from another
 * process: see tinker_service_resume(). */
TINKER_API const char *tinker_future_request_type(const tinker_future *f);

/* The client or tokenizer made by a tinker_…_request_…(): yours from now on, once; NULL while
 * pending, after a failure, and when it was taken. */
TINKER_API struct tinker_training *tinker_future_take_training(tinker_future *f);
TINKER_API struct tinker_sampler *tinker_future_take_sampler(tinker_future *f);
TINKER_API struct tinker_tokenizer *tinker_future_take_tokenizer(tinker_future *f);

/* Thread safety: one thread at a time for next and dispatch; add from any thread. */
typedef struct tinker_queue tinker_queue;

TINKER_API tinker_queue *tinker_queue_new(tinker_error *err);
/* Futures still queued are forgotten, not freed.  No other call may be in progress. */
TINKER_API void tinker_queue_free(tinker_queue *q);

/* Readable while the queue holds a completed future; spurious wake-ups may happen.
 * Owned by the queue: do not close or read it. */
TINKER_API int tinker_queue_fd(const tinker_queue *q);

/* Deliver f to q when it completes (at once if it has).  A future can be in one
 * queue at a time: TINKER_ESTATE otherwise.  Freeing the future removes it. */
TINKER_API tinker_status tinker_queue_add(tinker_queue *q, tinker_future *f, void *tag,
                                          tinker_error *err);

typedef void tinker_future_fn(tinker_future *f, void *state);
TINKER_API tinker_status tinker_queue_add_callback(tinker_queue *q, tinker_future *f,
                                                   tinker_future_fn *callback, void *state,
                                                   tinker_error *err);

/* The next completed future added with a tag, or NULL after timeout_ms (-1: forever).  Neither
 * this nor dispatch waits on one of the library's threads, or in a fork without a service of its
 * own, where nothing would come. */
TINKER_API tinker_future *tinker_queue_next(tinker_queue *q, int64_t timeout_ms, void **tag);

/* Run the callbacks of completed futures, waiting at most timeout_ms for the first.
 * Returns how many ran.  Callbacks may call anything, tinker_future_free() included. */
TINKER_API int tinker_queue_dispatch(tinker_queue *q, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
