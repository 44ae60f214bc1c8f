/* tinker.h - fine-tune and sample language models through the Tinker API.
 *
 *     #include <tinker/tinker.h>
 *     #include <stdio.h>
 *     int main(void) {
 *         tinker_error err;
 *         tinker_service *s = tinker_service_new(NULL, &err);
 *         tinker_sampler *m = s ? tinker_service_create_sampler(s, "tinker/tiny", NULL, 60000, &err) : NULL;
 *         int32_t prompt[] = { 1, 2, 3 };
 *         tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
 *         tinker_model_input input = { &text, 1 };
 *         tinker_future *f = m ? tinker_sampler_sample(m, &input, NULL, NULL, &err) : NULL;
 *         if (f && tinker_future_wait(f, 60000, &err) == TINKER_OK)
 *             printf("%zu tokens\n", tinker_future_sample(f)->sequences[0].n);
 *         else
 *             fprintf(stderr, "%s\n", err.message);
 *         tinker_future_free(f), tinker_sampler_free(m), tinker_service_free(s);
 *     }
 *
 * This header includes the stable core:
 *
 *     error.h        how every call reports failure
 *     data.h         tensors, model inputs, datums, settings, results
 *     future.h       the outcome of a request, and queues of outcomes
 *     service.h      a connection: options, session, telemetry
 *     training.h     train one LoRA model
 *     sampling.h     sample from a base model or from saved weights
 *     rest.h         what the service keeps: runs, checkpoints, sessions
 *     tokenizer.h    text to tokens and back
 *     chat.h         conversations to prompts and back
 *     custom_loss.h  losses of your own
 *     recipe.h       datasets and training rows
 *
 * What fewer programs need is in <tinker/extra/>:
 *
 *     account.h      identity, usage and cost, audit log
 *     autodiff.h     the tape under custom losses
 *     breaker.h      circuit breakers
 *     events.h       hooks on every request
 *     http.h         per-call options, raw calls, transports, multipart
 *     metrics.h      counters and histograms
 *     names.h        names of enum values
 *     parallel.h     many calls at once
 *     recovery.h     continue training after the service lost a model
 *     regularizer.h  composed losses
 *     renderer.h     chat formats of your own
 *     stream.h       samples token by token, without a callback
 *     template.h     Jinja chat templates
 *     tensor.h       half precision, sparse matrices
 *     trace.h        W3C trace context
 *
 * The local engine, a library of its own, is <tinker/engine.h>.  Each header has a man page:
 * tinker_future(3), tinker_http(3) and so on.
 *
 * One I/O thread per process does all network work, whatever the number of services and requests.
 * No function prints, exits, aborts or installs a signal handler.
 */
#ifndef TINKER_TINKER_H
#define TINKER_TINKER_H

#include <tinker/chat.h>
#include <tinker/custom_loss.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/future.h>
#include <tinker/recipe.h>
#include <tinker/rest.h>
#include <tinker/sampling.h>
#include <tinker/service.h>
#include <tinker/tokenizer.h>
#include <tinker/training.h>
#include <tinker/version.h>

#endif
