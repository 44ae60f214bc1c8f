/* result.c - see result.h. */
#include "client/future/result.h"

#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/training/merge.h"
#include "wire/proto.h"
#include "wire/wire.h"

/* The service answers in the format that the poll accepts; proto says which came. */
tinker_status result_read_pass(struct arena *a, const char *body, size_t n, bool proto,
                               tinker_forward_backward *out, tinker_error *err)
{
    if (proto)
        return wire_decode_forward_backward_output(body, n, a, out, err);
    return wire_decode_json(&wire_forward_backward_output, body, n, WIRE_LENIENT, a, out, err);
}

/* On a worker: the arena is the job's own. */
void *result_pass_aside(struct arena *a, const char *body, size_t n, bool proto, tinker_error *err)
{
    tinker_forward_backward *out = arena_alloc(a, sizeof(*out));
    if (!out)
        err_nomem(err, "result");
    return out && result_read_pass(a, body, n, proto, out, err) == TINKER_OK ? out : NULL;
}

/* One part through the same merge as several, so that the metrics come out alike. */
static tinker_status read_pass(struct tinker_future *f, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    tinker_forward_backward part, *out = arena_alloc(&f->arena, sizeof(*out));
    const tinker_forward_backward *parts[] = { &part };
    if (!out)
        return err_nomem(err, "result");
    /* Set before decoding: a failed read leaves memory of the arena behind it, which f->err
     * hides. */
    f->value = out;
    tinker_status s = result_read_pass(&f->arena, body, n, proto, &part, err);
    return s == TINKER_OK ? merge_results(parts, 1, &f->arena, out, NULL, err) : s;
}

/* An optimizer step that reports nothing is a success all the same. */
static tinker_status read_step(struct tinker_future *f, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    /* Metrics are optional; a result that is complete needs an address that is not NULL. */
    static const tinker_named_number none;
    struct wire_optim_step_response res;
    (void)proto;
    tinker_status s =
        wire_decode_json(&wire_optim_step_response, body, n, WIRE_LENIENT, &f->arena, &res, err);
    if (s != TINKER_OK)
        return s;
    bool some = res.metrics.has && res.metrics.n > 0;
    f->value = some ? res.metrics.v : &none;
    f->n = some ? res.metrics.n : 0;
    return TINKER_OK;
}

/* Readers of one kind of result each.  They run on the loop thread and put everything into the
 * future's arena: one response, one arena, one free.  WIRE_LENIENT passes over members that a
 * newer service may send. */
static tinker_status read_save(struct tinker_future *f, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    struct wire_save_weights_response res;
    (void)proto;
    tinker_status s =
        wire_decode_json(&wire_save_weights_response, body, n, WIRE_LENIENT, &f->arena, &res, err);
    if (s == TINKER_OK)
        f->value = res.path;
    return s;
}

static tinker_status read_save_for_sampler(struct tinker_future *f, const char *body, size_t n,
                                           bool proto, tinker_error *err)
{
    struct wire_save_weights_for_sampler_response res;
    (void)proto;
    tinker_status s = wire_decode_json(&wire_save_weights_for_sampler_response, body, n,
                                       WIRE_LENIENT, &f->arena, &res, err);
    if (s != TINKER_OK)
        return s;
    /* Optional in the schema, because the service may answer with a session instead; this
     * reader needs it. */
    if (!res.path)
        return err_set(err, TINKER_EPROTOCOL, "the response has no path");
    f->value = res.path;
    return TINKER_OK;
}

static tinker_status read_save_external(struct tinker_future *f, const char *body, size_t n,
                                        bool proto, tinker_error *err)
{
    struct wire_save_weights_external_response res;
    (void)proto;
    tinker_status s = wire_decode_json(&wire_save_weights_external_response, body, n, WIRE_LENIENT,
                                       &f->arena, &res, err);
    if (s == TINKER_OK)
        f->value = res.path;
    return s;
}

/* The path may be NULL: not every service says which state it has loaded. */
static tinker_status read_load(struct tinker_future *f, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    struct wire_load_weights_response res;
    (void)proto;
    tinker_status s =
        wire_decode_json(&wire_load_weights_response, body, n, WIRE_LENIENT, &f->arena, &res, err);
    if (s == TINKER_OK)
        f->value = res.path;
    return s;
}

/* As result_pass_aside(): large samples are decoded by a worker, so that a megabyte of
 * log-probabilities does not hold up every other request of the process. */
void *result_sample_aside(struct arena *a, const char *body, size_t n, bool proto,
                          tinker_error *err)
{
    tinker_sample *out = arena_alloc(a, sizeof(*out));
    if (!out) {
        err_nomem(err, "result");
        return NULL;
    }
    tinker_status s =
        proto ? wire_decode_sample_response(body, n, a, out, err)
              : wire_decode_json(&wire_sample_response, body, n, WIRE_LENIENT, a, out, err);
    return s == TINKER_OK ? out : NULL;
}

/* The small ones, on the loop thread. */
static tinker_status read_sample(struct tinker_future *f, const char *body, size_t n, bool proto,
                                 tinker_error *err)
{
    f->value = result_sample_aside(&f->arena, body, n, proto, err);
    return f->value ? TINKER_OK : err->status;
}

/* Only that it can be read: an unload has no result. */
static tinker_status read_unload(struct tinker_future *f, const char *body, size_t n, bool proto,
                                 tinker_error *err)
{
    struct wire_unload_model_response res;
    (void)proto;
    return wire_decode_json(&wire_unload_model_response, body, n, WIRE_LENIENT, &f->arena, &res,
                            err);
}

/* By request type: whether the result may come as protobuf, its kind, and who reads it.
 * The words are those of the protocol; tinker_service_resume() takes them, so they never change. */
const struct result_reader result_forward = { { "Forward", true },
                                              RESULT_FORWARD_BACKWARD,
                                              read_pass };
const struct result_reader result_forward_backward = { { "ForwardBackward", true },
                                                       RESULT_FORWARD_BACKWARD,
                                                       read_pass };
const struct result_reader result_optim_step = { { "OptimStep", false },
                                                 RESULT_METRICS,
                                                 read_step };
const struct result_reader result_save = { { "SaveWeights", false }, RESULT_SAVED_PATH, read_save };
const struct result_reader result_save_for_sampler = { { "SaveWeightsForSampler", false },
                                                       RESULT_SAVED_PATH,
                                                       read_save_for_sampler };
const struct result_reader result_save_external = { { "SaveWeightsExternal", false },
                                                    RESULT_SAVED_PATH,
                                                    read_save_external };
const struct result_reader result_load = { { "LoadWeights", false },
                                           RESULT_LOADED_PATH,
                                           read_load };
const struct result_reader result_sample = { { "Sample", true }, RESULT_SAMPLE, read_sample };
const struct result_reader result_unload = { { "UnloadModel", false }, RESULT_NONE, read_unload };

/* NULL: a type that cannot be resumed. */
const struct result_reader *result_find(const char *request_type)
{
    static const struct result_reader *const all[] = {
        &result_forward, &result_forward_backward, &result_optim_step,
        &result_save,    &result_save_for_sampler, &result_load,
        &result_sample,  &result_unload,           &result_save_external,
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strcmp(all[i]->poll.request_type, request_type) == 0)
            return all[i];
    return NULL;
}
