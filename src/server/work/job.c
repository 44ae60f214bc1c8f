/* job.c - decoding and comparing requests: see work.h. */
#include "server/work/job.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/map.h"
#include "wire/proto.h"
#include "wire/wire.h"

struct work *work_new(enum work_kind kind)
{
    struct work *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    arena_init(&w->arena, (size_t)4 << 30);
    w->kind = kind;
    return w;
}

void work_free(struct work *w)
{
    if (!w)
        return;
    if (w->observer)
        w->observer->free(w->observer);
    arena_clear(&w->arena);
    free(w);
}

static const struct wire_type *json_type(enum work_kind kind)
{
    switch (kind) {
    case WORK_CREATE:
        return &wire_create_model_request;
    case WORK_CREATE_BY_LOAD:
    case WORK_LOAD:
        return &wire_load_weights_request;
    case WORK_FORWARD:
        return &wire_forward_request;
    case WORK_FORWARD_BACKWARD:
        return &wire_forward_backward_request;
    case WORK_OPTIM_STEP:
        return &wire_optim_step_request;
    case WORK_SAVE:
        return &wire_save_weights_request;
    case WORK_SAVE_SAMPLER:
        return &wire_save_weights_for_sampler_request;
    case WORK_SAVE_EXTERNAL:
        return &wire_save_weights_external_request;
    case WORK_UNLOAD:
        return &wire_unload_model_request;
    case WORK_SAMPLE:
        return &wire_sample_request;
    }
    return NULL;
}

tinker_status work_decode(struct work *w, bool proto, const char *body, size_t n, tinker_error *err)
{
    bool is_pass = w->kind == WORK_FORWARD || w->kind == WORK_FORWARD_BACKWARD;
    tinker_status status;
    if (proto && !is_pass)
        return err_set(err, TINKER_EINVAL, "%s takes a JSON body", work_kind_name(w->kind));
    if (proto)
        status = wire_decode_forward_backward_request(body, n, &w->arena, &w->pass, err);
    else
        status =
            wire_decode_json(json_type(w->kind), body, n, WIRE_LENIENT, &w->arena, &w->pass, err);
    if (status == TINKER_OK && is_pass) {
        /* In JSON the path of the request says it, in protobuf a field. */
        if (proto)
            w->kind = w->pass.forward_only ? WORK_FORWARD : WORK_FORWARD_BACKWARD;
        w->pass.forward_only = w->kind == WORK_FORWARD;
    }
    return status;
}

/* ---- peeking ------------------------------------------------------------------------- */

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
    return id && seq->has && json_end(&r);
}

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

/* The first two top-level fields of a ForwardBackwardRequest: model_id and seq_id. */
static bool peek_proto(const char *body, size_t n, struct arena *arena, const char **model_id,
                       struct wire_opt_int *seq)
{
    const unsigned char *p = (const unsigned char *)body, *end = p + n;
    uint64_t tag, value;
    while (p < end && read_varint(&p, end, &tag)) {
        if (tag == (1u << 3 | 2)) {
            if (!read_varint(&p, end, &value) || value > (uint64_t)(end - p))
                return false;
            *model_id = arena_strndup(arena, (const char *)p, (size_t)value);
            p += value;
        } else if (tag == (2u << 3 | 0)) {
            if (!read_varint(&p, end, &value))
                return false;
            seq->has = value != 0;
            seq->value = (int32_t)value;
        } else {
            break;
        }
    }
    return *model_id && seq->has;
}

bool work_peek(bool proto, const char *body, size_t n, struct arena *arena, const char **model_id,
               struct wire_opt_int *seq)
{
    *model_id = NULL;
    *seq = (struct wire_opt_int){ 0 };
    return proto ? peek_proto(body, n, arena, model_id, seq)
                 : peek_json(body, n, arena, model_id, seq);
}

const char *work_model_id(const struct work *w)
{
    switch (w->kind) {
    case WORK_FORWARD:
    case WORK_FORWARD_BACKWARD:
        return w->pass.model_id;
    case WORK_OPTIM_STEP:
        return w->optim.model_id;
    case WORK_SAVE:
        return w->save.model_id;
    case WORK_SAVE_SAMPLER:
        return w->save_sampler.model_id;
    case WORK_SAVE_EXTERNAL:
        return w->save_external.model_id;
    case WORK_LOAD:
        return w->load.model_id;
    case WORK_UNLOAD:
        return w->unload.model_id;
    default:
        return NULL;
    }
}

struct wire_opt_int work_seq(const struct work *w)
{
    struct wire_opt_int none = { 0 };
    switch (w->kind) {
    case WORK_FORWARD:
    case WORK_FORWARD_BACKWARD:
        return w->pass.seq_id;
    case WORK_OPTIM_STEP:
        return w->optim.seq_id;
    case WORK_SAVE:
        return w->save.seq_id;
    case WORK_SAVE_SAMPLER:
        return w->save_sampler.seq_id;
    case WORK_SAVE_EXTERNAL:
        return w->save_external.seq_id;
    case WORK_LOAD:
        return w->load.seq_id;
    default:
        return none;
    }
}

/* ---- hashing --------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    /* The length goes in too, so that neighbours cannot trade bytes. */
    h = hash_bytes(&n, sizeof(n), h);
    return hash_bytes(p ? p : "", p ? n : 0, h);
}

static uint64_t mix_int(uint64_t h, int64_t v)
{
    return mix(h, &v, sizeof(v));
}

static uint64_t mix_double(uint64_t h, double v)
{
    return mix(h, &v, sizeof(v));
}

static uint64_t mix_text(uint64_t h, const char *s)
{
    return s ? mix(h, s, strlen(s)) : mix_int(h, -1);
}

static uint64_t mix_opt(uint64_t h, struct wire_opt_int v)
{
    return mix_int(mix_int(h, v.has), v.has ? v.value : 0);
}

static size_t element_size(tinker_dtype dtype)
{
    switch (dtype) {
    case TINKER_FLOAT32:
    case TINKER_INT32:
    case TINKER_UINT32:
        return 4;
    case TINKER_BFLOAT16:
        return 2;
    default:
        return 8;
    }
}

static uint64_t mix_tensor(uint64_t h, const tinker_tensor *v)
{
    h = mix_int(h, v->dtype);
    h = mix(h, v->data, v->n * element_size(v->dtype));
    h = mix(h, v->shape, v->ndim * sizeof(int64_t));
    if (v->crow && v->ndim)
        h = mix(h, v->crow, ((size_t)v->shape[0] + 1) * sizeof(int64_t));
    return v->col ? mix(h, v->col, v->n * sizeof(int64_t)) : h;
}

static uint64_t hash_tensor(const tinker_named_tensor *t)
{
    return mix_tensor(mix_text(7, t->name), &t->tensor);
}

static uint64_t mix_input(uint64_t h, const tinker_model_input *in)
{
    for (size_t i = 0; i < in->n_chunks; i++) {
        const tinker_chunk *c = &in->chunks[i];
        h = mix_int(h, c->kind);
        h = mix(h, c->tokens, c->n_tokens * sizeof(int32_t));
        h = mix(h, c->bytes, c->n_bytes);
    }
    return h;
}

static uint64_t hash_pass(const struct wire_forward_backward_request *r, uint64_t h)
{
    h = mix_text(h, r->loss.name);
    h = mix_int(h, r->forward_only);
    uint64_t sum = 0; /* maps have no order: sums of member hashes have none either */
    for (size_t i = 0; i < r->loss.n_config; i++)
        sum += mix_double(mix_text(3, r->loss.config[i].name), r->loss.config[i].value);
    h = mix_int(h, (int64_t)sum);
    for (size_t i = 0; i < r->n_data; i++) {
        h = mix_input(h, &r->data[i].model_input);
        sum = 0;
        for (size_t j = 0; j < r->data[i].n_inputs; j++)
            sum += hash_tensor(&r->data[i].inputs[j]);
        h = mix_int(h, (int64_t)sum);
    }
    return h;
}

static uint64_t hash_optim(const tinker_adam *a, uint64_t h)
{
    const double v[] = { a->learning_rate, a->beta1,        a->beta2,
                         a->eps,           a->weight_decay, a->grad_clip_norm };
    return mix(h, v, sizeof(v));
}

static uint64_t hash_load(const struct wire_load_weights_request *r, uint64_t h)
{
    return mix_int(mix_text(mix_text(h, r->path), r->base_model), r->optimizer);
}

static uint64_t hash_create(const struct wire_create_model_request *r, uint64_t h)
{
    h = mix_text(h, r->base_model);
    if (!r->lora_config)
        return h;
    const tinker_lora *l = r->lora_config;
    const int64_t v[] = { l->rank,       l->has_seed,  l->has_seed ? l->seed : 0,
                          l->train_attn, l->train_mlp, l->train_unembed };
    return mix(h, v, sizeof(v));
}

/* Derived from the table of the JSON form, so that no option is forgotten: everything but the
 * two large members, which are hashed as they are, and the number itself. */
static uint64_t hash_sample(const struct wire_sample_request *r, uint64_t h)
{
    struct wire_sample_request rest = *r;
    struct buf json;
    rest.prompt = (tinker_model_input){ 0 };
    rest.target_prompt_logprobs = NULL;
    rest.seq_id = (struct wire_opt_int){ 0 };
    buf_init(&json, 16 << 20);
    wire_encode_json(&wire_sample_request, &rest, &json, NULL);
    h = mix_input(mix(h, json.data ? json.data : "", json.len), &r->prompt);
    buf_clear(&json);
    return r->target_prompt_logprobs ? mix_tensor(h, r->target_prompt_logprobs) : h;
}

uint64_t work_hash(const struct work *w)
{
    uint64_t h = mix_int(1, w->kind);
    if (w->refused[0])
        return mix_text(h, w->refused);
    switch (w->kind) {
    case WORK_CREATE:
        return hash_create(&w->create, h);
    case WORK_CREATE_BY_LOAD:
    case WORK_LOAD:
        return hash_load(&w->load, h);
    case WORK_FORWARD:
    case WORK_FORWARD_BACKWARD:
        return hash_pass(&w->pass, h);
    case WORK_OPTIM_STEP:
        return hash_optim(&w->optim.adam_params, h);
    case WORK_SAVE:
        return mix_int(mix_opt(mix_text(h, w->save.path), w->save.ttl_seconds), w->save.overwrite);
    /* A retry of an unnamed save comes with another sampling session number. */
    case WORK_SAVE_SAMPLER:
        return mix_opt(mix_text(h, w->save_sampler.path), w->save_sampler.ttl_seconds);
    case WORK_SAVE_EXTERNAL:
        return mix_opt(mix_text(h, w->save_external.path), w->save_external.ttl_seconds);
    case WORK_UNLOAD:
        return h;
    case WORK_SAMPLE:
        return hash_sample(&w->sample, h);
    }
    return h;
}

static int64_t input_tokens(const tinker_model_input *in)
{
    int64_t n = 0;
    for (size_t i = 0; i < in->n_chunks; i++)
        n += (int64_t)in->chunks[i].n_tokens;
    return n;
}

int64_t work_tokens(const struct work *w)
{
    int64_t n = 0;
    if (w->kind == WORK_SAMPLE)
        return input_tokens(&w->sample.prompt);
    if (w->kind != WORK_FORWARD && w->kind != WORK_FORWARD_BACKWARD)
        return 0;
    for (size_t i = 0; i < w->pass.n_data; i++)
        n += input_tokens(&w->pass.data[i].model_input);
    return n;
}

bool work_kind_changes(enum work_kind kind)
{
    return kind == WORK_FORWARD_BACKWARD || kind == WORK_OPTIM_STEP || kind == WORK_LOAD ||
           kind == WORK_CREATE || kind == WORK_CREATE_BY_LOAD;
}

const char *work_kind_name(enum work_kind kind)
{
    static const char *const names[] = { "create_model",
                                         "load_weights",
                                         "forward",
                                         "forward_backward",
                                         "optim_step",
                                         "save_weights",
                                         "save_weights_for_sampler",
                                         "load_weights",
                                         "unload_model",
                                         "sample",
                                         "save_weights_external" };
    return names[kind];
}
