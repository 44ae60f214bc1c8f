/* training_log.c - numbers, texts and notes that a program keeps with its run.
 *
 * Plain calls without a turn: what they carry names its step itself, so their order does not
 * matter.  Runs in the caller's thread. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/training.h>

#include "base/err.h"
#include "client/call/call_options.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/training/training_client.h"
#include "json/json.h"

enum { LOG_BODY_MAX = 16 << 20 };

/* 409 has no meaning here: nothing would change by waiting. */
static const struct rest_kind log_kind = { REST_KIND("log_metrics", "POST"), .result = RESULT_NONE,
                                           .conflict = REST_CONFLICT_FINAL };
static const struct rest_kind note_kind = { REST_KIND("set_run_note", "PUT"), .result = RESULT_NONE,
                                            .conflict = REST_CONFLICT_FINAL };

/* Takes over the body. */
static tinker_future *submit_log(tinker_training *t, const struct rest_kind *kind, const char *tail,
                                 struct buf *body, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/training_runs/", "run id", t->model_id, tail, err);
    if (path && buf_ok(body))
        return rest_submit(t->session, kind, path, body, t->options, err);
    if (path)
        err_nomem(err, "metrics");
    free(path);
    buf_clear(body);
    return NULL;
}

/* The head of a body: {"step":10; step -1 is left to the service. */
static bool begin_log(struct buf *body, struct json_writer *w, int64_t step, tinker_error *err)
{
    if (step < -1) {
        err_set(err, TINKER_EINVAL, "step is %lld, expected at least 0, or -1 for the last one",
                (long long)step);
        return false;
    }
    buf_init(body, LOG_BODY_MAX);
    json_writer_init(w, body);
    json_put_begin_object(w);
    if (step >= 0) {
        json_put_key(w, "step");
        json_put_int64(w, step);
    }
    return true;
}

/* Numbers that are not finite are left out, since JSON has no text for them; with none left it is
 * an error. */
tinker_future *tinker_training_log(tinker_training *t, int64_t step,
                                   const tinker_named_number *metrics, size_t n, tinker_error *err)
{
    struct buf body;
    struct json_writer w;
    if (!n || !metrics) {
        err_set(err, TINKER_EINVAL, "no metrics to log");
        return NULL;
    }
    if (!begin_log(&body, &w, step, err))
        return NULL;
    size_t finite = 0;
    json_put_key(&w, "metrics");
    json_put_begin_object(&w);
    for (size_t i = 0; i < n; i++)
        if (metrics[i].name && isfinite(metrics[i].value)) {
            json_put_key(&w, metrics[i].name);
            json_put_double(&w, metrics[i].value);
            finite++;
        }
    json_put_end_object(&w);
    json_put_end_object(&w);
    if (finite)
        return submit_log(t, &log_kind, "/metrics", &body, err);
    buf_clear(&body);
    err_set(err, TINKER_EINVAL, "no metric to log is a finite number");
    return NULL;
}

/* NULL leaves the member out, and the service keeps what it has. */
static void put_member(struct json_writer *w, const char *key, const char *value)
{
    if (!value)
        return;
    json_put_key(w, key);
    json_put_string(w, value);
}

/* One text per call; the service keeps the newest of a run. */
tinker_future *tinker_training_log_text(tinker_training *t, int64_t step, const char *label,
                                        const char *prompt, const char *text, tinker_error *err)
{
    struct buf body;
    struct json_writer w;
    if (!text) {
        err_set(err, TINKER_EINVAL, "no text to log");
        return NULL;
    }
    if (!begin_log(&body, &w, step, err))
        return NULL;
    json_put_key(&w, "texts");
    json_put_begin_array(&w);
    json_put_begin_object(&w);
    put_member(&w, "label", label);
    put_member(&w, "prompt", prompt);
    put_member(&w, "text", text);
    json_put_end_object(&w);
    json_put_end_array(&w);
    json_put_end_object(&w);
    return submit_log(t, &log_kind, "/metrics", &body, err);
}

/* 0 planned steps say nothing, so the member is left out. */
tinker_future *tinker_training_describe(tinker_training *t, const tinker_run_description *note,
                                        tinker_error *err)
{
    tinker_run_description ours = TINKER_RUN_DESCRIPTION_INIT;
    struct buf body;
    struct json_writer w;
    if (opts_copy(&ours, sizeof(ours), note, "tinker_run_description", err) != TINKER_OK)
        return NULL;
    if (ours.planned_steps < 0) {
        err_set(err, TINKER_EINVAL, "planned_steps is %lld, expected at least 0",
                (long long)ours.planned_steps);
        return NULL;
    }
    buf_init(&body, LOG_BODY_MAX);
    json_writer_init(&w, &body);
    json_put_begin_object(&w);
    put_member(&w, "name", ours.name);
    put_member(&w, "notes", ours.notes);
    if (ours.planned_steps) {
        json_put_key(&w, "planned_steps");
        json_put_int64(&w, ours.planned_steps);
    }
    json_put_end_object(&w);
    return submit_log(t, &note_kind, "/note", &body, err);
}
