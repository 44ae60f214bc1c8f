/* trace.c - see trace.h.
 *
 * The file is the JSON form of trace events: one complete event ("X") per HTTP exchange, one
 * instant ("i") per retry and change of the queue.  Exchanges overlap, and a viewer nests what
 * overlaps on one line, so each takes the first line that is free.
 *
 * Events come on the library's callback thread, one at a time; the file belongs to it until the
 * service is freed. */
#include "cli/service/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tinker/data.h>
#include <tinker/extra/events.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/output/out.h"
#include "json/json.h"

enum { LINES = 64 };

static struct {
    FILE *file;
    const char *path;
    bool begun;
    double free_us[LINES]; /* when the line's last exchange ended */
} trace;

/* Texts and numbers of the event, as they are. */
static void put_args(struct json_writer *w, const tinker_event *e)
{
    json_put_key(w, "args");
    json_put_begin_object(w);
    for (size_t i = 0; i < e->n_metadata; i++) {
        json_put_key(w, e->metadata[i].name);
        json_put_string(w, e->metadata[i].value);
    }
    for (size_t i = 0; i < e->n_measurements; i++) {
        json_put_key(w, e->measurements[i].name);
        json_put_double(w, e->measurements[i].value);
    }
    json_put_end_object(w);
}

/* Of an exchange that took `us` and ends now.
 * When all are taken the last one is used, and overlaps there. */
static int take_line(double start_us, double end_us)
{
    int line = 0;
    while (line + 1 < LINES && trace.free_us[line] > start_us)
        line++;
    trace.free_us[line] = end_us;
    return line;
}

/* Times are those of the monotonic clock in microseconds; only their differences matter to a
 * viewer. */
static int on_trace_event(const tinker_event *e, void *state)
{
    const char *operation = tinker_event_text(e, "operation");
    double ms = tinker_metric(e->measurements, e->n_measurements, "duration_ms");
    double now_us = (double)clock_now_ns(clock_real()) / 1e3;
    bool exchange = strncmp(e->name, "http.request.", 13) == 0;
    struct buf b;
    struct json_writer w;
    (void)state;
    /* Its end tells all that its start does. */
    if (strcmp(e->name, "http.request.start") == 0)
        return 0;
    exchange = exchange && ms >= 0;
    double start_us = exchange ? now_us - ms * 1e3 : now_us;
    buf_init(&b, 1 << 20);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "name");
    json_put_string(&w, exchange && operation ? operation : e->name);
    json_put_key(&w, "ph");
    json_put_string(&w, exchange ? "X" : "i");
    json_put_key(&w, "pid");
    json_put_int64(&w, 1);
    json_put_key(&w, "tid");
    json_put_int64(&w, exchange ? take_line(start_us, now_us) : 0);
    json_put_key(&w, "ts");
    json_put_double(&w, start_us);
    if (exchange) {
        json_put_key(&w, "dur");
        json_put_double(&w, ms * 1e3);
    }
    put_args(&w, e);
    json_put_end_object(&w);
    if (buf_ok(&b))
        fprintf(trace.file, "%s%s", trace.begun ? ",\n" : "", b.data);
    trace.begun = true;
    buf_clear(&b);
    return 0;
}

bool trace_attach(tinker_service *s, const char *path, int *status)
{
    tinker_error err;
    trace.file = fopen(path, "w");
    if (!trace.file) {
        *status = out_fail(EXIT_IO, NULL, "open %s: %s", path, strerror(errno));
        return false;
    }
    trace.path = path;
    fputs("{\"traceEvents\":[\n", trace.file);
    if (tinker_service_attach(s, "trace", NULL, on_trace_event, NULL, &err) == TINKER_OK)
        return true;
    *status = out_fail(EXIT_FAILED, NULL, "%s", err.message);
    return false;
}

/* The library has sent its last event: the service is freed before. */
void trace_finish(void)
{
    if (!trace.file)
        return;
    fputs("\n]}\n", trace.file);
    bool ok = !ferror(trace.file);
    if (fclose(trace.file) != 0 || !ok)
        out_say("warning: %s is not complete", trace.path);
    memset(&trace, 0, sizeof(trace));
}
