/* route_history.c - the history of a run: its metrics as JSON or CSV, its texts, and the list of
 * runs with where each of them is now.
 *
 * Whoever reads gets everything that has been recorded up to now: new points are written first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "server/api/routes.h"
#include "server/store/store_history.h"

/* ---- reading metrics ------------------------------------------------------------------------ */

/* One metric of the answer. */
struct column {
    const char *name;
    struct history_point *p;
    size_t n;
    size_t at; /* CSV: the next point to print */
};

/* What the query asks for. */
struct selection {
    const char *names; /* separated by commas, NULL: all */
    int64_t from, to, max_points;
    bool csv;
};

/* Is the name one of the list? */
static bool is_selected(const char *list, const char *name)
{
    size_t n = strlen(name);
    /* Names that are parts of others ("loss" in "loss:sum") must not match. */
    for (const char *p = list; p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || !p[n]))
            return true;
    return !list;
}

static bool read_selection(struct request *req, struct response *res, struct selection *q)
{
    const char *format = req->query(req, "format");
    *q = (struct selection){ .names = req->query(req, "names") };
    /* An empty list is a form that was not filled in. */
    if (q->names && !*q->names)
        q->names = NULL;
    if (format && strcmp(format, "csv") != 0 && strcmp(format, "json") != 0) {
        response_error(res, 422, "query parameter format must be json or csv, not '%.40s'", format);
        return false;
    }
    /* A browser that asks for text/csv needs no parameter. */
    q->csv = format ? strcmp(format, "csv") == 0 : req->accept && strstr(req->accept, "text/csv");
    return route_query_int(req, res, "from", 0, INT64_MAX, &q->from) &&
           route_query_int(req, res, "to", INT64_MAX, INT64_MAX, &q->to) &&
           route_query_int(req, res, "max_points", 0, INT64_MAX, &q->max_points);
}

/* The points of one series that were asked for. */
static tinker_status read_column(struct server *s, struct arena *arena, const struct selection *q,
                                 int64_t id, struct column *c, tinker_error *err)
{
    tinker_status status = store_read_series(s->store, id, false, arena, &c->p, &c->n, err);
    size_t kept = 0;
    if (status != TINKER_OK)
        return status;
    for (size_t i = 0; i < c->n; i++)
        /* Both ends belong to the range. */
        if (c->p[i].step >= q->from && c->p[i].step <= q->to)
            c->p[kept++] = c->p[i];
    c->n = kept;
    /* The newest point stays as it is: it is the number that people look at. */
    if (q->max_points && c->n > (size_t)q->max_points)
        c->n = history_thin(c->p, c->n, 1, (size_t)q->max_points);
    return TINKER_OK;
}

/* JSON has no infinity and no NaN. */
static void put_number(struct json_writer *w, double v)
{
    if (isfinite(v))
        json_put_double(w, v);
    else
        json_put_null(w);
}

static void put_values(struct json_writer *w, const char *key, const struct column *c,
                       size_t offset)
{
    /* One function for mean, min and max, which are doubles of the same struct. */
    json_put_key(w, key);
    json_put_begin_array(w);
    for (size_t i = 0; i < c->n; i++)
        put_number(w, *(const double *)((const char *)&c->p[i] + offset));
    json_put_end_array(w);
}

/* Arrays side by side, which are half the size of an object per point.  Only where points stand
 * for several steps there are bounds and counts. */
static void put_column(struct json_writer *w, const struct column *c)
{
    bool thinned = false;
    json_put_begin_object(w);
    json_put_key(w, "steps");
    json_put_begin_array(w);
    for (size_t i = 0; i < c->n; i++) {
        json_put_int64(w, c->p[i].step);
        thinned = thinned || c->p[i].n > 1;
    }
    json_put_end_array(w);
    put_values(w, "values", c, offsetof(struct history_point, mean));
    if (thinned) {
        put_values(w, "min", c, offsetof(struct history_point, min));
        put_values(w, "max", c, offsetof(struct history_point, max));
        json_put_key(w, "counts");
        json_put_begin_array(w);
        for (size_t i = 0; i < c->n; i++)
            json_put_uint64(w, c->p[i].n);
        json_put_end_array(w);
    }
    json_put_end_object(w);
}

static void reply_json(struct response *res, const char *run, const struct column *c, size_t n)
{
    struct json_writer w;
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "training_run_id");
    json_put_string(&w, run);
    json_put_key(&w, "metrics");
    json_put_begin_object(&w);
    for (size_t i = 0; i < n; i++) {
        json_put_key(&w, c[i].name);
        put_column(&w, &c[i]);
    }
    json_put_end_object(&w);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}

/* RFC 4180: quoted where it must be.  A name that a spreadsheet would take for a formula gets a
 * quote in front: it may have come from anybody.  Quoted always, so that no name needs a look for
 * commas. */
static void put_csv_name(struct buf *b, const char *name)
{
    buf_putc(b, '"');
    if (strchr("=+-@\t\r", *name))
        buf_putc(b, '\'');
    for (; *name; name++) {
        if (*name == '"')
            buf_putc(b, '"');
        buf_putc(b, *name);
    }
    buf_putc(b, '"');
}

/* A row per step, a column per metric; empty where a metric has no value.  Columns are walked
 * together, always at the lowest step that is next, so each point is printed once even where a run
 * went back to an earlier step. */
static void reply_csv(struct response *res, struct column *c, size_t n)
{
    struct buf *b = &res->body;
    buf_puts(b, "step");
    for (size_t i = 0; i < n; i++) {
        buf_putc(b, ',');
        put_csv_name(b, c[i].name);
    }
    buf_puts(b, "\r\n");
    for (;;) {
        /* The merge of sorted columns: the next row is the lowest step that any of them has. */
        int64_t step = INT64_MAX;
        bool more = false;
        for (size_t i = 0; i < n; i++)
            if (c[i].at < c[i].n && (!more || c[i].p[c[i].at].step < step)) {
                step = c[i].p[c[i].at].step;
                more = true;
            }
        if (!more)
            break;
        buf_printf(b, "%lld", (long long)step);
        for (size_t i = 0; i < n; i++) {
            buf_putc(b, ',');
            if (c[i].at < c[i].n && c[i].p[c[i].at].step == step)
                /* 17 digits read back as the same double. */
                buf_printf(b, "%.17g", c[i].p[c[i].at++].mean);
        }
        buf_puts(b, "\r\n");
    }
    res->status = 200;
    res->content_type = "text/csv; charset=utf-8";
}

void route_read_metrics(struct server *s, struct request *req, struct response *res)
{
    struct selection q;
    struct store_series *series = NULL;
    size_t n = 0, n_columns = 0;
    tinker_error err = { 0 };
    if (!route_own_run(s, req, res) || !read_selection(req, res, &q))
        return;
    history_flush(s->history, NULL); /* a full disk does not keep people from what there is */
    tinker_status status =
        store_list_series(s->store, req->param[0], &req->arena, &series, &n, &err);
    /* One more: a run without metrics has an array, too. */
    struct column *columns = arena_array(&req->arena, n + 1, sizeof(*columns));
    if (status == TINKER_OK && !columns)
        status = err_nomem(&err, "metrics");
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        if (!is_selected(q.names, series[i].name))
            continue;
        struct column *c = &columns[n_columns++];
        c->name = series[i].name;
        status = read_column(s, &req->arena, &q, series[i].id, c, &err);
    }
    if (status != TINKER_OK)
        route_store_error(s, res, &err);
    else if (q.csv)
        reply_csv(res, columns, n_columns);
    else
        reply_json(res, req->param[0], columns, n_columns);
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void put_text(struct json_writer *w, const char *key, const char *value)
{
    json_put_key(w, key);
    if (value)
        json_put_string(w, value);
    else
        json_put_null(w);
}

/* GET texts: what the program generated while it trained, newest first. */
void route_read_texts(struct server *s, struct request *req, struct response *res)
{
    /* At most 200: a text can be long, and the page shows a few. */
    struct store_text *texts;
    struct json_writer w;
    size_t n;
    int64_t limit, offset;
    tinker_error err = { 0 };
    if (!route_own_run(s, req, res) || !route_query_int(req, res, "limit", 50, 200, &limit) ||
        !route_query_int(req, res, "offset", 0, INT64_MAX, &offset))
        return;
    if (store_list_texts(s->store, req->param[0], limit, offset, &req->arena, &texts, &n, &err) !=
        TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "texts");
    json_put_begin_array(&w);
    for (size_t i = 0; i < n; i++) {
        json_put_begin_object(&w);
        json_put_key(&w, "step");
        json_put_int64(&w, texts[i].step);
        json_put_key(&w, "time");
        json_put_double(&w, (double)texts[i].time_us / 1e6);
        put_text(&w, "label", texts[i].label);
        put_text(&w, "prompt", texts[i].prompt);
        put_text(&w, "text", texts[i].text);
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}

/* ---- the list of runs ----------------------------------------------------------------------- */

/* 32 steps are enough for a rate and few enough to follow a change; a run is "training" for 30 s
 * after its last step. */
enum { RATE_POINTS = 32, ACTIVE_S = 30 };

/* Where a run is, from the ends of three of its series. */
struct progress {
    int64_t step;           /* -1: none yet */
    double loss, last_time; /* NAN: none */
    double tokens_per_second, seconds_per_step;
};

/* The points of the last chunk of a series; none: *n is 0. */
static tinker_status read_end(struct server *s, struct arena *arena, const char *run,
                              const char *name, struct history_point **p, size_t *n,
                              tinker_error *err)
{
    int64_t id = 0;
    *n = 0;
    /* id 0: the run has no such metric. */
    tinker_status status = store_find_series(s->store, run, name, &id, err);
    return status == TINKER_OK && id ? store_read_series(s->store, id, true, arena, p, n, err)
                                     : status;
}

static tinker_status read_progress(struct server *s, struct arena *arena, const char *run,
                                   struct progress *out, tinker_error *err)
{
    /* The last chunk is enough, and does not grow with the run. */
    struct history_point *loss, *time, *tokens;
    size_t n_loss, n_time, n_tokens;
    *out = (struct progress){ .step = -1, .loss = NAN, .last_time = NAN };
    tinker_status status = read_end(s, arena, run, "loss", &loss, &n_loss, err);
    if (status == TINKER_OK)
        status = read_end(s, arena, run, "time", &time, &n_time, err);
    if (status == TINKER_OK)
        status = read_end(s, arena, run, "num_tokens:sum", &tokens, &n_tokens, err);
    if (status != TINKER_OK)
        return status;
    /* The step is that of the loss, which every training step has. */
    if (n_loss) {
        out->loss = loss[n_loss - 1].mean;
        out->step = loss[n_loss - 1].step;
    }
    if (!n_time)
        return TINKER_OK;
    out->last_time = time[n_time - 1].mean;
    /* Speed over the last steps: the time between k + 1 points took the tokens of the last k.  k:
     * the tokens of the first point were used before the time that it records. */
    size_t k = n_time - 1 < n_tokens ? n_time - 1 : n_tokens;
    k = k < RATE_POINTS ? k : RATE_POINTS;
    double seconds = k ? time[n_time - 1].mean - time[n_time - 1 - k].mean : 0, sum = 0;
    for (size_t i = 0; i < k; i++)
        sum += tokens[n_tokens - 1 - i].mean;
    if (seconds > 0) {
        out->tokens_per_second = sum / seconds;
        out->seconds_per_step = seconds / (double)k;
    }
    return TINKER_OK;
}

/* A word for what the run does now; in_memory: can it still be saved?
 *
 * Nobody says that a program is done, so the number of steps that it announced decides where there
 * is one: with all of them a run is finished at once, and one that left memory before was stopped. */
static const char *find_state(struct server *s, const struct store_model *m,
                              const struct progress *p, int64_t planned, bool *in_memory)
{
    /* Outside the lock: the clock may be a test's, with a lock of its own. */
    double now = (double)live_wall_us(s) / 1e6;
    pthread_mutex_lock(&s->lock);
    const struct model *live = live_find_model_locked(s, m->id);
    bool active = live && live->state == MODEL_ACTIVE;
    /* A request that waits keeps a run busy even if no step has ended yet. */
    bool busy = active && (live->busy || live->pending);
    pthread_mutex_unlock(&s->lock);
    bool done = planned > 0 && p->step >= planned;
    *in_memory = active;
    if (m->status == STORE_MODEL_LOST)
        return "lost";
    if (!active)
        return planned > 0 && !done ? "stopped" : "finished";
    if (busy)
        return "training";
    if (done)
        return "finished";
    return now - p->last_time < ACTIVE_S ? "training" : "idle";
}

static void put_metadata(struct json_writer *w, struct arena *arena, const char *json)
{
    const tinker_named_string *pairs;
    size_t n;
    route_metadata(json, arena, &pairs, &n);
    json_put_key(w, "user_metadata");
    json_put_begin_object(w);
    for (size_t i = 0; i < n; i++)
        put_text(w, pairs[i].name, pairs[i].value);
    json_put_end_object(w);
}

static void put_pair(struct json_writer *w, const char *key, double v)
{
    json_put_key(w, key);
    put_number(w, v);
}

static tinker_status put_summary(struct server *s, struct arena *arena, struct json_writer *w,
                                 const struct store_model *m, tinker_error *err)
{
    struct progress p;
    struct store_run_note note;
    struct store_checkpoint *checkpoint;
    struct store_series *series = NULL;
    size_t n, n_series = 0;
    int64_t checkpoints = 0;
    tinker_status status = read_progress(s, arena, m->id, &p, err);
    if (status == TINKER_OK)
        status = store_list_series(s->store, m->id, arena, &series, &n_series, err);
    if (status == TINKER_OK)
        status = store_get_run_note(s->store, m->id, arena, &note, err);
    if (status == TINKER_OK)
        status = store_list_checkpoints(s->store, m->owner, m->id, 1, 0, arena, &checkpoint, &n,
                                        &checkpoints, err);
    if (status != TINKER_OK)
        return status;
    bool in_memory;
    const char *state = find_state(s, m, &p, note.planned_steps, &in_memory);
    bool training = strcmp(state, "training") == 0;
    /* Only while it trains: a run that was stopped has no end to wait for. */
    double left = training && note.planned_steps > p.step && p.seconds_per_step > 0
                      ? (double)(note.planned_steps - p.step) * p.seconds_per_step
                      : NAN;
    json_put_begin_object(w);
    put_text(w, "id", m->id);
    put_text(w, "name", note.name);
    put_text(w, "notes", note.notes);
    put_text(w, "base_model", m->base_model);
    put_text(w, "state", state);
    json_put_key(w, "in_memory");
    json_put_bool(w, in_memory);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = { { "rank", m->lora.rank },
                    { "seed", m->lora.seed },
                    { "train_attn", m->lora.train_attn },
                    { "train_mlp", m->lora.train_mlp },
                    { "train_unembed", m->lora.train_unembed },
                    /* -1 stands for "none yet" inside and would look like a mistake outside. */
                    { "step", p.step < 0 ? 0 : p.step },
                    { "planned_steps", note.planned_steps },
                    { "tokens", m->train_tokens },
                    { "checkpoints", checkpoints } };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        json_put_key(w, numbers[i].key);
        json_put_int64(w, numbers[i].value);
    }
    put_pair(w, "loss", p.loss);
    put_pair(w, "tokens_per_second", p.tokens_per_second);
    put_pair(w, "seconds_left", left);
    put_pair(w, "created", (double)m->created_us / 1e6);
    put_pair(w, "last_request", (double)m->last_request_us / 1e6);
    put_metadata(w, arena, m->user_metadata);
    json_put_key(w, "metrics");
    json_put_begin_array(w);
    for (size_t i = 0; i < n_series; i++)
        json_put_string(w, series[i].name);
    json_put_end_array(w);
    json_put_end_object(w);
    return TINKER_OK;
}

/* GET training_run_summaries: the user's runs, most recent request first; ?id=RUN: that one. */
void route_run_summaries(struct server *s, struct request *req, struct response *res)
{
    struct store_model *models;
    struct json_writer w;
    size_t n = 1;
    int64_t limit, offset, total = 1;
    tinker_error err = { 0 };
    tinker_status status = TINKER_OK;
    if (!route_query_int(req, res, "limit", 50, 500, &limit) ||
        !route_query_int(req, res, "offset", 0, INT64_MAX, &offset))
        return;
    const char *id = req->query(req, "id");
    /* route_own_run() reads the run from the path's parameter. */
    req->param[0] = id ? arena_strdup(&req->arena, id) : NULL;
    models = id && req->param[0] ? route_own_run(s, req, res) : NULL;
    if (id && !models) {
        if (!req->param[0])
            response_no_memory(res);
        return;
    }
    /* Without it the last seconds of a run would be missing. */
    history_flush(s->history, NULL);
    if (!id)
        status = store_list_models(s->store, req->user, NULL, -1, limit, offset, &req->arena,
                                   &models, &n, &total, &err);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "runs");
    json_put_begin_array(&w);
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        status = put_summary(s, &req->arena, &w, &models[i], &err);
    json_put_end_array(&w);
    json_put_key(&w, "total");
    json_put_int64(&w, total);
    /* The page compares times with the server's clock, not with that of the browser. */
    json_put_key(&w, "now");
    json_put_double(&w, (double)live_wall_us(s) / 1e6);
    json_put_end_object(&w);
    /* What was begun in the body is replaced by the error. */
    if (status != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    res->status = 200;
    res->content_type = "application/json";
}
