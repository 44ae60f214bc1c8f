/* job.c - decoding and comparing requests: see job.h.
 *
 * Nothing here blocks or locks; a job belongs to one thread at a time. */
#include "server/work/job.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/map.h"
#include "grammar/grammar.h"
#include "wire/proto.h"
#include "wire/wire.h"

/* The arena holds the decoded body, so a job and all its tensors go with one call. */
struct job *job_new(enum job_kind kind)
{
    struct job *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    arena_init(&w->arena, (size_t)4 << 30); /* the body's limit is checked by the listener */
    w->kind = kind;
    return w;
}

void job_free(struct job *w)
{
    if (!w)
        return;
    if (w->observer) /* ends its stream */
        w->observer->free(w->observer);
    grammar_free(w->grammar);
    arena_clear(&w->arena);
    free(w);
}

/* The wire type of a request's JSON body.  All members of the union begin at the same address, so
 * one decoder call fills any of them. */
static const struct wire_type *json_type(enum job_kind kind)
{
    switch (kind) {
    case JOB_CREATE:
        return &wire_create_model_request;
    case JOB_CREATE_BY_LOAD:
    case JOB_LOAD:
        return &wire_load_weights_request;
    case JOB_FORWARD:
        return &wire_forward_request;
    case JOB_FORWARD_BACKWARD:
        return &wire_forward_backward_request;
    case JOB_OPTIM_STEP:
        return &wire_optim_step_request;
    case JOB_SAVE:
        return &wire_save_weights_request;
    case JOB_SAVE_SAMPLER:
        return &wire_save_weights_for_sampler_request;
    case JOB_SAVE_EXTERNAL:
        return &wire_save_weights_external_request;
    case JOB_UNLOAD:
        return &wire_unload_model_request;
    case JOB_SAMPLE:
        return &wire_sample_request;
    case JOB_CUSTOM_LOSS: /* it is over at once: no job */
        break;
    }
    return NULL;
}

/* Lenient: members that this version does not know are skipped, as newer clients send them. */
tinker_status job_decode(struct job *w, bool proto, const char *body, size_t n, tinker_error *err)
{
    bool is_pass = w->kind == JOB_FORWARD || w->kind == JOB_FORWARD_BACKWARD;
    tinker_status status;
    if (proto && !is_pass)
        return err_set(err, TINKER_EINVAL, "%s takes a JSON body", job_kind_name(w->kind));
    if (proto)
        status = wire_decode_forward_backward_request(body, n, &w->arena, &w->pass, err);
    else
        status =
            wire_decode_json(json_type(w->kind), body, n, WIRE_LENIENT, &w->arena, &w->pass, err);
    /* Exactly one of the two: adam_params is AdamW's own struct, optimizer_params the object of any
     * other optimizer, kept as text until the step runs (train_state_step()). */
    if (status == TINKER_OK && w->kind == JOB_OPTIM_STEP &&
        !w->optim.adam_params == !w->optim.optimizer_params.s)
        status = err_set(err, TINKER_EINVAL,
                         w->optim.adam_params
                             ? "adam_params and optimizer_params are both given"
                             : "adam_params: missing (optimizer_params of other optimizers)");
    if (status == TINKER_OK && is_pass) {
        /* In JSON the path of the request says whether there is a backward pass, in protobuf a
         * field does. */
        if (proto)
            w->kind = w->pass.forward_only ? JOB_FORWARD : JOB_FORWARD_BACKWARD;
        w->pass.forward_only = w->kind == JOB_FORWARD;
    }
    return status;
}

/* ---- peeking ------------------------------------------------------------------------- */

/* model_id and seq_id of an object whose other members may be anything.  For a body that
 * job_decode() refused: its number must be used up, or the numbers behind it wait for nothing.
 * One of the two with a value of another type counts as missing. */
static bool peek_json(const char *body, size_t n, struct arena *arena, const char **model_id,
                      struct wire_opt_int *seq)
{
    struct json_reader r;
    struct json_str key;
    char *id = NULL;
    json_reader_init(&r, body, n, arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "model_id") && json_peek(&r) == JSON_STRING)
            json_cstring(&r, &id);
        else if (json_str_is(key, "seq_id") && json_peek(&r) == JSON_NUMBER)
            seq->has = json_int64(&r, &seq->value);
        else
            json_skip(&r);
    }
    *model_id = id;
    /* json_end(): in a body that was cut, the number itself may lack digits. */
    return id && seq->has && json_end(&r);
}

/* A protobuf varint: 7 bits per byte, low ones first, the top bit says that more follow.  64 bits
 * take at most ten bytes; false for more, and where the body ends inside one. */
static bool read_varint(const unsigned char **p, const unsigned char *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        unsigned char c = *(*p)++;
        *out |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80))
            return true;
    }
    return false;
}

/* The first two top-level fields of a ForwardBackwardRequest: model_id and seq_id.  A tag is
 * field number << 3 | wire type (0 varint, 2 length-delimited).  Serializers write fields in the
 * order of their numbers, so the first other field ends the search and no datum is looked at. */
static bool peek_proto(const char *body, size_t n, struct arena *arena, const char **model_id,
                       struct wire_opt_int *seq)
{
    const unsigned char *p = (const unsigned char *)body, *end = p + n;
    uint64_t tag, value;
    while (p < end && read_varint(&p, end, &tag)) {
        if (tag == (1u << 3 | 2)) { /* field 1, length-delimited */
            if (!read_varint(&p, end, &value) || value > (uint64_t)(end - p))
                return false;
            *model_id = arena_strndup(arena, (const char *)p, (size_t)value);
            p += value;
        } else if (tag == (2u << 3 | 0)) { /* field 2, varint */
            if (!read_varint(&p, end, &value))
                return false;
            /* proto3 does not send 0, so 0 and absent look the same; numbers begin at 1. */
            seq->has = value != 0;
            /* A negative int32 comes sign-extended to 64 bits; the cast restores it. */
            seq->value = (int32_t)value;
        } else {
            break;
        }
    }
    return *model_id && seq->has;
}

bool job_peek(bool proto, const char *body, size_t n, struct arena *arena, const char **model_id,
              struct wire_opt_int *seq)
{
    /* Both are needed: without them nobody knows whose turn the failed request takes. */
    *model_id = NULL;
    *seq = (struct wire_opt_int){ 0 };
    return proto ? peek_proto(body, n, arena, model_id, seq)
                 : peek_json(body, n, arena, model_id, seq);
}

/* NULL for kinds that make a model or need none. */
const char *job_model_id(const struct job *w)
{
    switch (w->kind) {
    case JOB_FORWARD:
    case JOB_FORWARD_BACKWARD:
        return w->pass.model_id;
    case JOB_OPTIM_STEP:
        return w->optim.model_id;
    case JOB_SAVE:
        return w->save.model_id;
    case JOB_SAVE_SAMPLER:
        return w->save_sampler.model_id;
    case JOB_SAVE_EXTERNAL:
        return w->save_external.model_id;
    case JOB_LOAD:
        return w->load.model_id;
    case JOB_UNLOAD:
        return w->unload.model_id;
    default:
        return NULL;
    }
}

/* create_model, unload_model and samples carry no number of the model's order. */
struct wire_opt_int job_seq(const struct job *w)
{
    struct wire_opt_int none = { 0 };
    switch (w->kind) {
    case JOB_FORWARD:
    case JOB_FORWARD_BACKWARD:
        return w->pass.seq_id;
    case JOB_OPTIM_STEP:
        return w->optim.seq_id;
    case JOB_SAVE:
        return w->save.seq_id;
    case JOB_SAVE_SAMPLER:
        return w->save_sampler.seq_id;
    case JOB_SAVE_EXTERNAL:
        return w->save_external.seq_id;
    case JOB_LOAD:
        return w->load.seq_id;
    default:
        return none;
    }
}

/* Two requests with one number are the same when their hashes are.  The kind counts: two kinds may
 * have the same fields.  JOB_HASH_UNKNOWN (0) has a meaning in the store, so no hash is 0. */
uint64_t job_hash(const struct job *w)
{
    /* A body that does not decode leaves fields unset.  Its error message stands for it, and is the
     * same when the body is sent again. */
    uint64_t h = w->refused[0] ? hash_bytes(w->refused, strlen(w->refused), 1)
                               : wire_hash(json_type(w->kind), &w->pass);
    uint64_t kind = w->kind;
    h = hash_bytes(&kind, sizeof(kind), h);
    return h != JOB_HASH_UNKNOWN ? h : 1;
}

/* Chunks of text only have tokens; n_tokens of the others is 0. */
static int64_t input_tokens(const tinker_model_input *in)
{
    int64_t n = 0;
    for (size_t i = 0; i < in->n_chunks; i++)
        n += (int64_t)in->chunks[i].n_tokens;
    return n;
}

/* For limits, counters and the log; images have no tokens here. */
int64_t job_tokens(const struct job *w)
{
    int64_t n = 0;
    if (w->kind == JOB_SAMPLE)
        return input_tokens(&w->sample.prompt);
    if (w->kind != JOB_FORWARD && w->kind != JOB_FORWARD_BACKWARD)
        return 0;
    for (size_t i = 0; i < w->pass.n_data; i++)
        n += input_tokens(&w->pass.data[i].model_input);
    return n;
}

/* These must be replayed, or saved, for the state of a model to be the same again.  FORWARD and the
 * saves only read it; UNLOAD is recorded as the status of the model. */
bool job_kind_changes(enum job_kind kind)
{
    return kind == JOB_FORWARD_BACKWARD || kind == JOB_OPTIM_STEP || kind == JOB_LOAD ||
           kind == JOB_CREATE || kind == JOB_CREATE_BY_LOAD;
}

/* Also the last segment of the request's path: see route_submit(). */
const char *job_kind_name(enum job_kind kind)
{
    static const char *const names[] = {
        [JOB_CREATE] = "create_model",
        /* The same path: a body without model_id makes the model that it loads into. */
        [JOB_CREATE_BY_LOAD] = "load_weights",
        [JOB_FORWARD] = "forward",
        [JOB_FORWARD_BACKWARD] = "forward_backward",
        [JOB_OPTIM_STEP] = "optim_step",
        [JOB_SAVE] = "save_weights",
        [JOB_SAVE_SAMPLER] = "save_weights_for_sampler",
        [JOB_LOAD] = "load_weights",
        [JOB_UNLOAD] = "unload_model",
        [JOB_SAMPLE] = "sample",
        [JOB_SAVE_EXTERNAL] = "save_weights_external",
        [JOB_CUSTOM_LOSS] = "create_custom_loss",
    };
    return names[kind];
}
