/* stream.h - read a sample token by token, in a loop of your own.
 *
 * tinker_sampler_sample_stream() in sampling.h delivers the same events to a callback and collects
 * the result; most programs want that.  A tinker_stream is for programs that pull events, or that
 * have a poll loop.
 *
 *     tinker_stream *st = tinker_sampler_stream(sampler, &prompt, NULL, NULL, &err);
 *     tinker_stream_event e = { 0 };
 *     while (st && e.kind != TINKER_STREAM_END && !tinker_stream_next(st, 60000, &e, &err))
 *         if (e.kind == TINKER_STREAM_TOKEN)
 *             use(e.token);
 *     tinker_stream_free(st);
 *
 * Only `tinker serve` offers streams; the hosted service does not. */
#ifndef TINKER_EXTRA_STREAM_H
#define TINKER_EXTRA_STREAM_H

#include <tinker/sampling.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A sample whose tokens arrive one by one.  It belongs to its sampler and must be freed first.
 * Thread safety: one thread at a time, except cancel and set_deadline. */
typedef struct tinker_stream tinker_stream;

/* Sample as tinker_sampler_sample() does: the same tokens for the same seed, under the same limits.
 * Until the first event a failure is retried as for any sample (see tinker_retry_options).  After
 * it, only samples with a seed or temperature 0 are retried, and events already delivered are
 * skipped; any other sample would continue with different tokens, so its failure is final.
 * NULL with *err set: TINKER_ESTATE, without a request, when the service does not offer streams
 * (stream_sample of tinker_capabilities); TINKER_EINVAL, also for options about the prompt, which
 * no stream carries; TINKER_ENOMEM. */
TINKER_API tinker_stream *tinker_sampler_stream(tinker_sampler *s, const tinker_model_input *prompt,
                                                const tinker_sampling_params *params,
                                                const tinker_sample_options *opts,
                                                tinker_error *err);
/* The next event into *out.  TINKER_OK; TINKER_ETIMEDOUT when there is none within timeout_ms
 * (-1: forever; 0: do not wait); else why the stream broke, after the events that came before.
 * After TINKER_STREAM_END it says so again.  Blocks. */
TINKER_API tinker_status tinker_stream_next(tinker_stream *st, int64_t timeout_ms,
                                            tinker_stream_event *out, tinker_error *err);
/* Readable while tinker_stream_next() would not wait; for poll loops.  Spurious wake-ups may
 * happen.  Owned by the stream: do not close or read it.  -1 with *err set: TINKER_ESTATE. */
TINKER_API int tinker_stream_fd(tinker_stream *st, tinker_error *err);
/* The request of the stream, complete when it has ended: for tinker_future_done(),
 * tinker_future_response(), tinker_future_error_body(), tinker_future_request_id().  It has no
 * result but success.  Borrowed until tinker_stream_free(). */
TINKER_API const tinker_future *tinker_stream_future(const tinker_stream *st);
/* End the stream: after the events that came before, tinker_stream_next() says TINKER_ECANCELED.
 * Does not block.  Any thread, also while another waits for the next event. */
TINKER_API void tinker_stream_cancel(tinker_stream *st);
/* End the stream with TINKER_ETIMEDOUT when it is not complete within timeout_ms from now; -1
 * removes the deadline.  Any thread. */
TINKER_API void tinker_stream_set_deadline(tinker_stream *st, int64_t timeout_ms);
/* Ends the stream if it has not ended; the service stops sampling.  No other call on the object
 * may be in progress. */
TINKER_API void tinker_stream_free(tinker_stream *st);

#ifdef __cplusplus
}
#endif
#endif
