/* run_history.c - see run_history.h. */
#include "cli/manage/run_history.h"

#include <math.h>
#include <string.h>
#include <tinker/extra/http.h>

#include "cli/output/out.h"
#include "json/json.h"

/* Bounds what a response may become in memory: a million points are some 50 MB. */
enum { FETCH_MEMORY = 256 << 20 };

/* Ids and names of metrics in an address. */
static void put_escaped(struct buf *b, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        /* Letters, digits and "-_.~" are never escaped (RFC 3986, 2.3); the comma parts names of
         * metrics in the query and stays, too. */
        if ((*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z') ||
            strchr("-_.~,", *p))
            buf_putc(b, (char)*p);
        else
            buf_printf(b, "%%%02X", *p);
}

/* A GET whose answer is kept; NULL after the error was printed. */
static tinker_future *get_path(struct api *a, struct buf *path, int *status)
{
    tinker_error err = { 0 };
    tinker_future *f = NULL;
    if (buf_ok(path))
        f = api_wait(tinker_service_call(a->service, "GET", path->data, NULL, 0, NULL, &err), &err,
                     status);
    else
        *status = out_fail(EXIT_FAILED, NULL, "Out of memory");
    buf_clear(path);
    return f;
}

/* "format" is json or csv: the service writes both, so this program never converts numbers. */
tinker_future *run_history_ask(struct api *a, const char *id, const struct run_query *q,
                               const char *format, int *status)
{
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_puts(&path, "/api/v1/training_runs/");
    put_escaped(&path, id);
    buf_printf(&path, "/metrics?format=%s", format);
    if (q->names) {
        buf_puts(&path, "&names=");
        put_escaped(&path, q->names);
    }
    /* 0: from the beginning, to the end, all points. */
    if (q->from)
        buf_printf(&path, "&from=%lld", (long long)q->from);
    if (q->to)
        buf_printf(&path, "&to=%lld", (long long)q->to);
    if (q->max_points)
        buf_printf(&path, "&max_points=%lld", (long long)q->max_points);
    return get_path(a, &path, status);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* An array of numbers; null is a value that was not finite. */
static size_t read_numbers(struct json_reader *r, struct arena *arena, double **out)
{
    size_t n = 0, cap = 0;
    *out = NULL;
    json_begin_array(r);
    while (json_next_item(r)) {
        if (n == cap) {
            size_t grown = cap ? cap * 2 : 64;
            double *more = arena_grow(arena, *out, cap * sizeof(double), grown * sizeof(double));
            if (!more) {
                json_fail(r, "out of memory");
                return 0;
            }
            *out = more;
            cap = grown;
        }
        (*out)[n] = NAN;
        if (json_peek(r) == JSON_NULL)
            json_null(r);
        else
            json_double(r, &(*out)[n]);
        n++;
    }
    return n;
}

/* "steps" and "values" belong together by position; "min" and "max" are there for a thinned
 * series, whose values alone would hide its lows and highs. */
static void read_metric(struct json_reader *r, struct arena *arena, struct history_metric *m)
{
    struct json_str key;
    size_t n_steps = 0;
    double *list = NULL;
    m->low = INFINITY;
    m->top = -INFINITY;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        bool steps = json_str_is(key, "steps"), values = json_str_is(key, "values");
        if (!steps && !values && !json_str_is(key, "min") && !json_str_is(key, "max")) {
            json_skip(r);
            continue;
        }
        size_t n = read_numbers(r, arena, &list);
        if (steps) {
            m->steps = list;
            n_steps = n;
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            m->low = fmin(m->low, list[i]);
            m->top = fmax(m->top, list[i]);
        }
        if (values) {
            m->values = list;
            m->n = n;
        }
    }
    /* A service that sends unequal lengths is read as far as both go. */
    m->n = m->n < n_steps ? m->n : n_steps;
}

/* The result is in the arena of *out, for as long as it is drawn or printed. */
bool run_history_fetch(struct api *a, const char *id, const struct run_query *q,
                       struct run_history *out, int *status)
{
    struct json_reader r;
    struct json_str key, name;
    memset(out, 0, sizeof(*out));
    arena_init(&out->arena, FETCH_MEMORY);
    tinker_future *f = run_history_ask(a, id, q, "json", status);
    if (!f)
        return false;
    const tinker_response *res = tinker_future_response(f);
    json_reader_init(&r, res->body, res->n_body, &out->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (!json_str_is(key, "metrics")) {
            json_skip(&r);
            continue;
        }
        json_begin_object(&r);
        while (json_next_key(&r, &name)) {
            /* More series than any view shows; the rest is passed over. */
            if (out->n == HISTORY_SERIES_MAX) {
                json_skip(&r);
                continue;
            }
            struct history_metric *m = &out->metrics[out->n++];
            m->name = arena_strndup(&out->arena, name.s, name.n);
            if (!m->name)
                json_fail(&r, "out of memory");
            read_metric(&r, &out->arena, m);
        }
    }
    bool ok = json_end(&r);
    if (!ok)
        *status = out_fail(EXIT_FAILED, json_error(&r), "The metrics of the run cannot be read");
    tinker_future_free(f);
    return ok;
}

/* Metrics and their names are in the arena, so this frees all of them. */
void run_history_clear(struct run_history *h)
{
    arena_clear(&h->arena);
}

/* A list will do: a run has a few dozen metrics. */
const struct history_metric *run_history_metric(const struct run_history *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++)
        if (strcmp(h->metrics[i].name, name) == 0)
            return &h->metrics[i];
    return NULL;
}

/* ---- which run ------------------------------------------------------------------------------ */

/* null: not known, as before the first step. */
static void read_real(struct json_reader *r, double *out)
{
    *out = NAN;
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else
        json_double(r, out);
}

/* Never NULL, so that callers compare and print without a test. */
static void read_name(struct json_reader *r, const char **out)
{
    char *text = NULL;
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else
        json_cstring(r, &text);
    *out = text ? text : "";
}

/* Members of the summary that this version does not know are passed over. */
static void read_progress(struct json_reader *r, struct run_progress *p)
{
    struct json_str key;
    *p = (struct run_progress){ .id = "", .name = "", .state = "", .loss = NAN };
    json_begin_object(r);
    while (json_next_key(r, &key))
        if (json_str_is(key, "id"))
            read_name(r, &p->id);
        else if (json_str_is(key, "name"))
            read_name(r, &p->name);
        else if (json_str_is(key, "state"))
            read_name(r, &p->state);
        else if (json_str_is(key, "step"))
            json_int64(r, &p->step);
        else if (json_str_is(key, "planned_steps"))
            json_int64(r, &p->planned_steps);
        else if (json_str_is(key, "loss"))
            read_real(r, &p->loss);
        else if (json_str_is(key, "tokens_per_second"))
            read_real(r, &p->tokens_per_second);
        else if (json_str_is(key, "seconds_left"))
            read_real(r, &p->seconds_left);
        else
            json_skip(r);
}

/* false after the error was printed, with *status set.  Everything in *out lives in `arena`. */
bool run_history_find(struct api *a, const char *text, struct arena *arena,
                      struct run_progress *out, int *status)
{
    struct json_reader r;
    struct json_str key;
    struct run_progress one;
    struct buf path;
    bool found = false;
    buf_init(&path, 128);
    /* The 500 newest are enough for a person; ids of older runs need `run info`. */
    buf_puts(&path, "/api/v1/training_run_summaries?limit=500");
    tinker_future *f = get_path(a, &path, status);
    if (!f)
        return false;
    const tinker_response *res = tinker_future_response(f);
    json_reader_init(&r, res->body, res->n_body, arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (!json_str_is(key, "runs")) {
            json_skip(&r);
            continue;
        }
        json_begin_array(&r);
        while (json_next_item(&r)) { /* newest first */
            read_progress(&r, &one);
            /* An id, a name, or "last". Names need not be unique: the newest run with it is
             * meant. */
            bool matches = strcmp(text, "last") == 0 || strcmp(text, one.id) == 0 ||
                           (*one.name && strcmp(text, one.name) == 0);
            if (!found && matches && !r.failed) {
                *out = one;
                found = true;
            }
        }
    }
    if (!json_end(&r))
        *status = out_fail(EXIT_FAILED, json_error(&r), "The list of runs cannot be read");
    else if (!found)
        *status =
            out_fail(EXIT_NOT_FOUND, "`tinker run list` shows the ids; a name or \"last\" do, too",
                     "No run %s", text);
    found = found && !r.failed;
    /* Strings without escapes are borrowed from the answer: json_cstring() copies them. */
    tinker_future_free(f);
    return found;
}
