/* result_types.c - the results of sampling and training in JSON.
 *
 * The form that SDKs before 0.25 read: lists with null where a log-probability does
 * not exist, and top-k rows of [token, logprob] pairs.  In memory a missing prompt
 * logprob is NaN and an unused top-k cell is token 0 with logprob -99999. */
#include "wire/data_types.h"

#include <math.h>
#include <string.h>

static const float UNUSED_LOGPROB = -99999.0f;
enum { TOPK_MAX = 4096 }; /* per prompt position */

/* ---- one sequence ---------------------------------------------------------------- */

static bool read_floats(struct wire_reader *r, const float **out, size_t *n)
{
    float *v = NULL;
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    if (!json_array_float_null(&r->json, &v, n))
        return wire_read_ok(r) && wire_read_nomem(r);
    *out = v;
    return true;
}

static bool read_stop_reason(struct wire_reader *r, tinker_stop_reason *out)
{
    const char *s = NULL;
    if (!wire_read_string(r, &s))
        return false;
    bool stop = strcmp(s, "stop") == 0;
    if (!stop && strcmp(s, "length") != 0)
        return wire_read_fail(r, "stop_reason: expected \"stop\" or \"length\", got \"%.40s\"", s);
    *out = stop ? TINKER_STOP_STOP : TINKER_STOP_LENGTH;
    return true;
}

static bool read_sequence(struct wire_reader *r, void *value)
{
    tinker_sequence *seq = value;
    struct json_str key;
    size_t n_logprobs = 0;
    bool reason = false, tokens = false, ok = true;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    while (ok && json_next_key(&r->json, &key)) {
        if (json_str_is(key, "stop_reason"))
            reason = ok = read_stop_reason(r, &seq->stop_reason);
        else if (json_str_is(key, "tokens"))
            tokens = ok = wire_read_int32s(r, &seq->tokens, &seq->n);
        else if (json_str_is(key, "logprobs"))
            ok = read_floats(r, &seq->logprobs, &n_logprobs);
        else
            ok = json_skip(&r->json);
    }
    if (!wire_read_ok(r))
        return false;
    if (!reason || !tokens)
        return wire_read_fail(r, "%s is required", reason ? "tokens" : "stop_reason");
    if (seq->logprobs && n_logprobs != seq->n)
        return wire_read_fail(r, "logprobs: expected %zu values, got %zu", seq->n, n_logprobs);
    return true;
}

static bool put_float(struct wire_writer *w, float v)
{
    if (!isfinite(v))
        return wire_write_fail(w, "must be finite");
    json_put_float(&w->json, v);
    return true;
}

static bool write_sequence(struct wire_writer *w, const void *value)
{
    const tinker_sequence *seq = value;
    json_put_begin_object(&w->json);
    json_put_key(&w->json, "stop_reason");
    json_put_string(&w->json, seq->stop_reason == TINKER_STOP_LENGTH ? "length" : "stop");
    json_put_key(&w->json, "tokens");
    json_put_array_int32(&w->json, seq->tokens, seq->n);
    if (seq->logprobs) {
        json_put_key(&w->json, "logprobs");
        json_put_begin_array(&w->json);
        for (size_t i = 0; i < seq->n; i++)
            if (!put_float(w, seq->logprobs[i]))
                return false;
        json_put_end_array(&w->json);
    }
    json_put_end_object(&w->json);
    return true;
}

static const struct wire_type wire_sequence = { .name = "SampledSequence",
                                                .size = sizeof(tinker_sequence),
                                                .read = read_sequence,
                                                .write = write_sequence };

/* ---- top-k rows ------------------------------------------------------------------ */

/* Rows of unequal length, gathered before the matrix has a width. */
struct topk_rows {
    struct topk_row {
        const int32_t *tokens;
        const float *logprobs;
        size_t n;
    } * v;
    size_t n, cap, widest;
};

static bool grow_rows(struct wire_reader *r, struct topk_rows *rows)
{
    if (rows->n < rows->cap)
        return true;
    size_t cap = rows->cap ? rows->cap * 2 : 16, size = sizeof rows->v[0];
    if (cap > SIZE_MAX / size)
        return wire_read_nomem(r);
    rows->v = arena_grow(r->arena, rows->v, rows->cap * size, cap * size);
    rows->cap = cap;
    return rows->v != NULL || wire_read_nomem(r);
}

/* One [token, logprob] pair. */
static bool read_pair(struct wire_reader *r, int32_t *token, float *logprob)
{
    int64_t id = 0;
    double lp = 0;
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    if (!json_next_item(&r->json) || !wire_read_int(r, &id) || !json_next_item(&r->json) ||
        !wire_read_double(r, &lp) || json_next_item(&r->json))
        return wire_read_ok(r) && wire_read_fail(r, "expected pairs of token and logprob");
    if (id < INT32_MIN || id > INT32_MAX)
        return wire_read_fail(r, "token %lld does not fit 32 bits", (long long)id);
    *token = (int32_t)id;
    *logprob = (float)lp;
    return wire_read_ok(r);
}

static bool read_row(struct wire_reader *r, struct topk_row *row)
{
    int32_t *tokens = NULL;
    float *logprobs = NULL;
    size_t cap = 0;
    *row = (struct topk_row){ 0 };
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    while (json_next_item(&r->json)) {
        if (row->n == cap) {
            size_t more = cap ? cap * 2 : 8;
            tokens = arena_grow(r->arena, tokens, cap * sizeof *tokens, more * sizeof *tokens);
            logprobs =
                arena_grow(r->arena, logprobs, cap * sizeof *logprobs, more * sizeof *logprobs);
            if (!tokens || !logprobs)
                return wire_read_nomem(r);
            cap = more;
        }
        if (!read_pair(r, &tokens[row->n], &logprobs[row->n]))
            return false;
        row->n++;
    }
    row->tokens = tokens;
    row->logprobs = logprobs;
    return wire_read_ok(r);
}

static bool rows_to_matrix(struct wire_reader *r, const struct topk_rows *rows, tinker_sample *out)
{
    if (rows->widest == 0)
        return true;
    if (rows->n > SIZE_MAX / rows->widest)
        return wire_read_nomem(r);
    /* Every cell but those of a few null rows has a text: a short text cannot ask for
     * much memory by one long row among many empty ones. */
    size_t cells = rows->n * rows->widest, text = (size_t)(r->json.end - r->json.start);
    if (cells > text && cells - text > 16 * TOPK_MAX)
        return wire_read_fail(r, "topk_prompt_logprobs: too few of the %zu cells are given", cells);
    int32_t *tokens = arena_array(r->arena, cells, sizeof *tokens);
    float *logprobs = arena_array(r->arena, cells, sizeof *logprobs);
    if (!tokens || !logprobs)
        return wire_read_nomem(r);
    for (size_t i = 0; i < rows->n; i++) {
        for (size_t j = 0; j < rows->widest; j++) {
            bool there = j < rows->v[i].n;
            tokens[i * rows->widest + j] = there ? rows->v[i].tokens[j] : 0;
            logprobs[i * rows->widest + j] = there ? rows->v[i].logprobs[j] : UNUSED_LOGPROB;
        }
    }
    out->topk_tokens = tokens;
    out->topk_logprobs = logprobs;
    out->topk = rows->widest;
    return true;
}

static bool read_topk(struct wire_reader *r, struct topk_rows *rows)
{
    struct wire_place place = { .up = r->place };
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    r->place = &place;
    while (json_next_item(&r->json)) {
        place.index = rows->n;
        if (!grow_rows(r, rows) || !read_row(r, &rows->v[rows->n]))
            break;
        size_t n = rows->v[rows->n++].n;
        if (n > TOPK_MAX && !wire_read_fail(r, "more than %d entries", TOPK_MAX))
            break;
        rows->widest = n > rows->widest ? n : rows->widest;
    }
    r->place = place.up;
    return wire_read_ok(r);
}

static void write_topk_row(struct wire_writer *w, const int32_t *tokens, const float *logprobs,
                           size_t k)
{
    while (k && tokens[k - 1] == 0 && logprobs[k - 1] == UNUSED_LOGPROB)
        k--;
    if (k == 0) {
        json_put_null(&w->json);
        return;
    }
    json_put_begin_array(&w->json);
    for (size_t j = 0; j < k; j++) {
        json_put_begin_array(&w->json);
        json_put_int64(&w->json, tokens[j]);
        put_float(w, logprobs[j]);
        json_put_end_array(&w->json);
    }
    json_put_end_array(&w->json);
}

/* ---- SampleResponse -------------------------------------------------------------- */

static bool read_sample_key(struct wire_reader *r, struct json_str key, tinker_sample *out,
                            struct topk_rows *rows)
{
    const void *list = NULL;
    if (json_str_is(key, "sequences")) {
        bool ok = wire_read_list(r, &wire_sequence, &list, &out->n_sequences);
        out->sequences = list;
        return ok;
    }
    if (json_str_is(key, "prompt_logprobs"))
        return read_floats(r, &out->prompt_logprobs, &out->n_prompt);
    if (json_str_is(key, "topk_prompt_logprobs"))
        return read_topk(r, rows);
    if (json_str_is(key, "prompt_cache_hit_tokens"))
        return wire_read_int(r, &out->prompt_cache_hit_tokens);
    return json_skip(&r->json) || wire_read_ok(r);
}

static bool read_sample(struct wire_reader *r, void *value)
{
    tinker_sample *out = value;
    struct topk_rows rows = { 0 };
    struct json_str key;
    bool sequences = false;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    while (json_next_key(&r->json, &key)) {
        char name[32] = "";
        memcpy(name, key.s, key.n < sizeof name ? key.n : sizeof name - 1);
        struct wire_place place = { .up = r->place, .name = name };
        r->place = &place;
        sequences = sequences || json_str_is(key, "sequences");
        bool ok = read_sample_key(r, key, out, &rows);
        r->place = place.up;
        if (!ok)
            return false;
    }
    if (!wire_read_ok(r))
        return false;
    if (!sequences)
        return wire_read_fail(r, "sequences is required");
    if (out->prompt_logprobs && rows.n && rows.n != out->n_prompt)
        return wire_read_fail(r, "topk_prompt_logprobs: expected %zu rows, got %zu", out->n_prompt,
                              rows.n);
    if (rows.widest)
        out->n_prompt = rows.n;
    return rows_to_matrix(r, &rows, out);
}

static bool write_prompt_logprobs(struct wire_writer *w, const tinker_sample *s)
{
    json_put_key(&w->json, "prompt_logprobs");
    json_put_begin_array(&w->json);
    for (size_t i = 0; i < s->n_prompt; i++) {
        if (isnan(s->prompt_logprobs[i]))
            json_put_null(&w->json);
        else if (!put_float(w, s->prompt_logprobs[i]))
            return false;
    }
    json_put_end_array(&w->json);
    return true;
}

static bool write_sample(struct wire_writer *w, const void *value)
{
    const tinker_sample *s = value;
    json_put_begin_object(&w->json);
    json_put_key(&w->json, "sequences");
    json_put_begin_array(&w->json);
    for (size_t i = 0; i < s->n_sequences; i++) {
        struct wire_place list = { .up = w->place, .name = "sequences" };
        struct wire_place place = { .up = &list, .index = i };
        w->place = &place;
        write_sequence(w, &s->sequences[i]);
        w->place = list.up;
    }
    json_put_end_array(&w->json);
    if (s->prompt_logprobs && !write_prompt_logprobs(w, s))
        return false;
    if (s->topk_tokens && s->topk_logprobs) {
        json_put_key(&w->json, "topk_prompt_logprobs");
        json_put_begin_array(&w->json);
        for (size_t i = 0; i < s->n_prompt; i++)
            write_topk_row(w, s->topk_tokens + i * s->topk, s->topk_logprobs + i * s->topk,
                           s->topk);
        json_put_end_array(&w->json);
    }
    if (s->prompt_cache_hit_tokens) {
        json_put_key(&w->json, "prompt_cache_hit_tokens");
        json_put_int64(&w->json, s->prompt_cache_hit_tokens);
    }
    json_put_key(&w->json, "type");
    json_put_string(&w->json, "sample");
    json_put_end_object(&w->json);
    return w->status == TINKER_OK;
}

const struct wire_type wire_sample_response = { .name = "SampleResponse",
                                                .size = sizeof(tinker_sample),
                                                .read = read_sample,
                                                .write = write_sample };

/* ---- ForwardBackwardOutput ------------------------------------------------------- */

static bool read_loss_output(struct wire_reader *r, void *value)
{
    tinker_loss_output *out = value;
    const void *v = NULL;
    bool ok = wire_read_map(r, &wire_result_tensor, &v, &out->n_tensors);
    out->tensors = v;
    return ok;
}

static bool write_loss_output(struct wire_writer *w, const void *value)
{
    const tinker_loss_output *out = value;
    struct wire_place place = { .up = w->place };
    bool ok = true;
    json_put_begin_object(&w->json);
    w->place = &place;
    for (size_t i = 0; ok && i < out->n_tensors; i++) {
        place.name = out->tensors[i].name;
        json_put_key(&w->json, place.name);
        ok = wire_write_value(w, &wire_result_tensor, &out->tensors[i]);
    }
    w->place = place.up;
    json_put_end_object(&w->json);
    return ok;
}

static const struct wire_type wire_loss_fn_output = { .name = "LossFnOutput",
                                                      .size = sizeof(tinker_loss_output),
                                                      .read = read_loss_output,
                                                      .write = write_loss_output };

#define T tinker_forward_backward
static const struct wire_field forward_backward_output[] = {
    { .name = "loss_fn_output_type",
      .kind = WIRE_STRING,
      .flags = WIRE_REQUIRED,
      .offset = offsetof(T, output_type) },
    { .name = "loss_fn_outputs",
      .kind = WIRE_LIST,
      .flags = WIRE_REQUIRED,
      .offset = offsetof(T, outputs),
      .aux = offsetof(T, n_outputs),
      .type = &wire_loss_fn_output },
    { WIRE_FIELD(T, metrics, WIRE_NUMBER_PAIRS, WIRE_REQUIRED), .aux = offsetof(T, n_metrics) },
};
const struct wire_type wire_forward_backward_output = { .name = "ForwardBackwardOutput",
                                                        WIRE_TABLE(T, forward_backward_output) };
#undef T
