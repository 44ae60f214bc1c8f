/* route_history_write.c - what programs and people add to a run: metrics, texts, a name, notes.
 *
 *     POST training_runs/{}/metrics {"step": 10, "metrics": {"reward": 0.5},
 *                                    "texts": [{"prompt": "2+2=", "text": "4", "label": "greedy"}]}
 *
 * or an array of such objects.  Everything is read and checked before anything is recorded. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "server/api/routes.h"
#include "server/store/store_history.h"

enum {
    LOG_ROWS = 1000,    /* of one request */
    LOG_VALUES = 20000, /* of one request */
    NOTE_NAME_MAX = 200,
    NOTE_MAX = 16 << 10,
};
static const int64_t step_max = INT64_C(1) << 53; /* what JavaScript can count */

/* One object of the request. */
struct log_row {
    int64_t step; /* -1: not given */
    struct history_value *values;
    size_t n_values, cap_values;
    struct store_text *texts;
    size_t n_texts, cap_texts;
};

/* ---- reading -------------------------------------------------------------------------------- */

/* The server records these itself; what a program sends under such a name is kept beside it. */
static bool is_own_name(const char *name)
{
    static const char *const names[] = { "loss",
                                         "time",
                                         "optim_seconds",
                                         "loss:sum",
                                         "weight:sum",
                                         "num_tokens:sum",
                                         "num_datums:sum",
                                         "pass_seconds:sum",
                                         "learning_rate:mean",
                                         "grad_norm:mean",
                                         "update_norm:mean",
                                         "clip_coef:mean" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* A name that can be shown and selected: no control characters, not too long. */
static bool check_name(struct json_reader *r, struct json_str name)
{
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.s[i] < 0x20 || name.s[i] == 0x7f) {
            json_fail(r, "metrics: a name has a control character");
            return false;
        }
    if (name.n == 0 || name.n > HISTORY_MAX_NAME - 16) {
        json_fail(r, "metrics: a name must have 1 to %d bytes", HISTORY_MAX_NAME - 16);
        return false;
    }
    return true;
}

/* Space for one more element of an array in the arena; NULL: no memory. */
static void *add_item(struct arena *arena, void **items, size_t *n, size_t *cap, size_t size)
{
    if (*n == *cap) {
        size_t grown = *cap ? *cap * 2 : 8;
        void *more = arena_grow(arena, *items, *cap * size, grown * size);
        if (!more)
            return NULL;
        *items = more;
        *cap = grown;
    }
    void *item = (char *)*items + (*n)++ * size;
    memset(item, 0, size);
    return item;
}

static void read_values(struct json_reader *r, struct arena *arena, struct log_row *row)
{
    struct json_str name;
    double value;
    json_begin_object(r);
    while (json_next_key(r, &name)) {
        if (json_peek(r) == JSON_NULL) { /* what Python calls None: there is no value now */
            json_null(r);
            continue;
        }
        if (!check_name(r, name) || !json_double(r, &value))
            return;
        const char *text = arena_strndup(arena, name.s, name.n);
        if (text && is_own_name(text))
            text = arena_printf(arena, "client/%s", text);
        struct history_value *v = add_item(arena, (void **)&row->values, &row->n_values,
                                           &row->cap_values, sizeof(*row->values));
        if (!text || !v || row->n_values > LOG_VALUES) {
            json_fail(r, "metrics: too many values");
            return;
        }
        *v = (struct history_value){ text, value, HISTORY_REPLACE, 0 };
    }
}

/* One member of a text; it must not be longer than what is kept. */
static void read_text_member(struct json_reader *r, const char *name, const char **out)
{
    char *text = NULL;
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else if (json_cstring(r, &text) && strlen(text) > HISTORY_MAX_TEXT)
        json_fail(r, "texts: %s is longer than %d bytes", name, HISTORY_MAX_TEXT);
    *out = text;
}

static void read_log_texts(struct json_reader *r, struct arena *arena, struct log_row *row)
{
    struct json_str key;
    json_begin_array(r);
    while (json_next_item(r)) {
        struct store_text *t = add_item(arena, (void **)&row->texts, &row->n_texts, &row->cap_texts,
                                        sizeof(*row->texts));
        if (!t || row->n_texts > HISTORY_MAX_TEXTS) {
            json_fail(r, "texts: more than %d", HISTORY_MAX_TEXTS);
            return;
        }
        json_begin_object(r);
        while (json_next_key(r, &key))
            if (json_str_is(key, "label"))
                read_text_member(r, "label", &t->label);
            else if (json_str_is(key, "prompt"))
                read_text_member(r, "prompt", &t->prompt);
            else if (json_str_is(key, "text"))
                read_text_member(r, "text", &t->text);
            else
                json_skip(r);
        if (!r->failed && !t->text)
            json_fail(r, "texts: text is missing");
    }
}

static void read_row(struct json_reader *r, struct arena *arena, struct log_row *row)
{
    struct json_str key;
    row->step = -1;
    json_begin_object(r);
    while (json_next_key(r, &key))
        if (json_peek(r) == JSON_NULL)
            json_null(r);
        else if (json_str_is(key, "step")) {
            if (json_int64(r, &row->step) && (row->step < 0 || row->step > step_max))
                json_fail(r, "step must be from 0 to 2^53");
        } else if (json_str_is(key, "metrics"))
            read_values(r, arena, row);
        else if (json_str_is(key, "texts"))
            read_log_texts(r, arena, row);
        else
            json_skip(r); /* newer clients */
    if (!r->failed && !row->n_values && !row->n_texts)
        json_fail(r, "neither metrics nor texts are given");
}

/* ---- recording ------------------------------------------------------------------------------ */

/* The step that the run is at: that of its last loss, 0 before the first. */
static int64_t find_step(struct server *s, struct arena *arena, const char *run)
{
    struct history_point *p;
    size_t n = 0;
    int64_t id = 0;
    history_flush(s->history, NULL);
    if (store_find_series(s->store, run, "loss", &id, NULL) != TINKER_OK || !id ||
        store_read_series(s->store, id, true, arena, &p, &n, NULL) != TINKER_OK || !n)
        return 0;
    return p[n - 1].step;
}

/* false: the response says why. */
static bool record_row(struct server *s, struct request *req, struct response *res,
                       struct log_row *row)
{
    tinker_error err = { 0 };
    int64_t now = live_wall_us(s);
    if (row->n_values &&
        !history_add(s->history, req->param[0], row->step, row->values, row->n_values)) {
        response_error(res, 422, "a run can have %d metrics; the first ones were recorded",
                       HISTORY_MAX_SERIES);
        return false;
    }
    for (size_t i = 0; i < row->n_texts; i++) {
        row->texts[i].step = row->step;
        row->texts[i].time_us = now;
        if (store_add_text(s->store, req->param[0], &row->texts[i], HISTORY_MAX_TEXTS, &err) !=
            TINKER_OK) {
            route_store_error(s, res, &err);
            return false;
        }
    }
    return true;
}

void route_log_metrics(struct server *s, struct request *req, struct response *res)
{
    struct json_reader r;
    struct log_row *rows = NULL;
    size_t n = 0, cap = 0, values = 0;
    tinker_error err = { 0 };
    if (!route_own_run(s, req, res))
        return;
    json_reader_init(&r, req->body, req->n_body, &req->arena);
    bool several = json_peek(&r) == JSON_ARRAY;
    if (several)
        json_begin_array(&r);
    for (bool more = several ? json_next_item(&r) : true; more;
         more = several && json_next_item(&r)) {
        struct log_row *row =
            n < LOG_ROWS ? add_item(&req->arena, (void **)&rows, &n, &cap, sizeof(*rows)) : NULL;
        if (row)
            read_row(&r, &req->arena, row);
        else
            json_fail(&r, "more than %d rows", LOG_ROWS);
        values += row ? row->n_values : 0;
        if (values > LOG_VALUES)
            json_fail(&r, "more than %d values", LOG_VALUES);
    }
    if (!json_end(&r)) {
        route_invalid(res, json_error(&r));
        return;
    }
    int64_t step = -1;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].step < 0)
            rows[i].step = step >= 0 ? step : (step = find_step(s, &req->arena, req->param[0]));
        if (!record_row(s, req, res, &rows[i]))
            return;
    }
    /* What was acknowledged survives the process. */
    if (history_flush(s->history, &err) != TINKER_OK)
        route_store_error(s, res, &err);
    else
        response_no_content(res);
}

/* ---- name and notes ------------------------------------------------------------------------- */

static void reply_note(struct response *res, const struct store_run_note *note)
{
    struct json_writer w;
    const char *texts[][2] = { { "name", note->name }, { "notes", note->notes } };
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        json_put_key(&w, texts[i][0]);
        json_put_string(&w, texts[i][1] ? texts[i][1] : "");
    }
    json_put_key(&w, "planned_steps");
    json_put_int64(&w, note->planned_steps);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}

void route_read_note(struct server *s, struct request *req, struct response *res)
{
    struct store_run_note note;
    tinker_error err = { 0 };
    if (!route_own_run(s, req, res))
        return;
    if (store_get_run_note(s->store, req->param[0], &req->arena, &note, &err) == TINKER_OK)
        reply_note(res, &note);
    else
        route_store_error(s, res, &err);
}

/* PUT note: only what the body has changes. */
void route_put_note(struct server *s, struct request *req, struct response *res)
{
    struct json_reader r;
    struct json_str key;
    struct store_run_note note;
    tinker_error err = { 0 };
    if (!route_own_run(s, req, res))
        return;
    if (store_get_run_note(s->store, req->param[0], &req->arena, &note, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    json_reader_init(&r, req->body, req->n_body, &req->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (json_str_is(key, "name")) {
            if (json_cstring(&r, (char **)&note.name) && strlen(note.name) > NOTE_NAME_MAX)
                json_fail(&r, "name is longer than %d bytes", NOTE_NAME_MAX);
        } else if (json_str_is(key, "notes")) {
            if (json_cstring(&r, (char **)&note.notes) && strlen(note.notes) > NOTE_MAX)
                json_fail(&r, "notes are longer than %d bytes", NOTE_MAX);
        } else if (json_str_is(key, "planned_steps")) {
            if (json_int64(&r, &note.planned_steps) &&
                (note.planned_steps < 0 || note.planned_steps > step_max))
                json_fail(&r, "planned_steps must be from 0 to 2^53");
        } else
            json_skip(&r);
    if (!json_end(&r))
        route_invalid(res, json_error(&r));
    else if (store_put_run_note(s->store, req->param[0], &note, &err) == TINKER_OK)
        reply_note(res, &note);
    else
        route_store_error(s, res, &err);
}
