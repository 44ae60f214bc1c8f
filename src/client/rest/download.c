/* download.c - the address of a checkpoint's archive or of a session's trace, and the
 * download of an archive.
 *
 * The service makes archives on demand: until one is ready it answers 503, which is
 * waited out in rounds of 30 s.  The signed address it gives belongs to someone else, so
 * the download carries none of our headers.  It is written next to its target, in
 * constant memory, and renamed when it is complete and on the disk.  A connection that is
 * lost meanwhile is made again, and the file begun again: no address promises the same
 * bytes twice, so there is nothing to go on from.
 * Runs on the loop thread, except the submit functions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/array.h"
#include "base/err.h"
#include "base/os.h"
#include "base/rand.h"
#include "client/call/retry_policy.h"
#include "client/call/call.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/rest/download_progress.h"
#include "client/rest/file_writer.h"
#include "client/call/call_options.h"
#include "wire/future.h"
#include "wire/timestamp.h"
#include "wire/wire.h"

/* An archive: six rounds of half a minute, each with the retries of a call.  A trace: every five
 * seconds until the service has it.  A redirect that names no end is valid for 15 minutes. */
enum { ROUND_MS = 30000, ROUNDS_MAX = 6, TRACE_MS = 5000, LIFETIME_S = 15 * 60 };
enum { PART_NAME = 16 }; /* ".part.", 8 digits and the NUL fit */
enum { TAR_MAGIC_AT = 257, ARCHIVE_HEAD = TAR_MAGIC_AT + 5 };
enum { TAR_END = 1024 }; /* two blocks of zeros */

/* States, each entered from the completion of the one before:
 *
 *   session ready -> ask for the address -> [503: wait a round, ask again] -> address
 *     -> without a file: done
 *     -> with one: GET it -> data to the file writer -> [connection lost: pause, GET again]
 *        -> finish the file (fsync, rename) -> done
 *
 * `timer` belongs to the state under way: `fire` says which. */
struct download_op {
    struct operation op;
    struct session_wait wait;
    struct call call;
    char *path; /* of the endpoint */
    bool trace;
    struct timer timer; /* between rounds */
    struct timer still; /* "still running" */
    int rounds, half_minutes;
    bool warned;
    /* of a download */
    char *file, *part; /* target, and the name while it grows */
    struct file_writer_owner owner;
    struct file_writer *writer;
    struct http_pool *pool;
    struct http_request http;
    int64_t got, zeros; /* bytes so far, and how many zeros they end with */
    char head[ARCHIVE_HEAD];
    int failures; /* connections lost */
    tinker_download_options opts;
    struct download_progress *progress;
};

/* The address may come as a redirect: it is read, not followed, because the download needs a
 * connection of its own, without the credentials. */
static const struct call_spec archive_spec = {
    .name = "checkpoint_archive",
    .method = "GET",
    .pool = POOL_REDIRECT,
    .max_retries = CALL_DEFAULT,
    .outer = true,
    .no_redirect = true,
};
static const struct call_spec trace_spec = {
    .name = "export_session_trace",
    .method = "GET",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
    .outer = true,
};

static void request_address(struct download_op *a);
static void on_download_timer(struct timer *t);

/* ---- ends --------------------------------------------------------------------------------- */

/* Cancel what is under way in any state; safe to call twice. */
static void stop_download(struct download_op *a)
{
    struct loop *l = a->op.session->rt->loop;
    session_forget(&a->wait);
    call_cancel(&a->call);
    http_cancel(&a->http);
    loop_disarm(l, &a->timer);
    loop_disarm(l, &a->still);
}

static void download_destroy(struct operation *op)
{
    struct download_op *a = (struct download_op *)op; /* first member */
    call_clear(&a->call);
    http_request_clear(&a->http);
    http_pool_free(a->pool);
    file_writer_free(a->writer);
    download_progress_unref(a->progress);
    free(a->path);
    free(a->file);
    free(a->part);
    free(a);
}

static void download_abandon(struct operation *op)
{
    stop_download((struct download_op *)op);
    operation_destroy(op);
}

/* What was written is gone before the user hears of it. */
static void fail_download(struct download_op *a, const tinker_error *err)
{
    tinker_error copy = *err; /* err may be the call's, which is reset now */
    stop_download(a);
    file_writer_free(a->writer);
    a->writer = NULL;
    operation_fail(&a->op, &copy);
}

/* ---- download ------------------------------------------------------------------------------ */

/* false: the user wants to stop. */
static bool report_archive_progress(struct download_op *a)
{
    return download_progress_tell(a->progress, a->op.session->rt, a->got, a->http.resp.length);
}

/* Loop thread, for each piece of the body. false ends the transfer with HTTP_FAIL_SINK. */
static bool on_data(struct http_request *r, const void *p, size_t n)
{
    struct download_op *a = container_of(r, struct download_op, http);
    enum file_writer_room room = file_writer_put(a->writer, p, n);
    if (room == FILE_WRITER_BROKEN)
        return false;
    if (room == FILE_WRITER_FULL) /* the disk is slower than the network: on_room() goes on */
        http_pause(r, true);
    /* Note what tells a whole archive from a part: its first bytes and the zeros at its end. */
    const char *bytes = p;
    size_t zeros = 0;
    if (a->got < ARCHIVE_HEAD) {
        size_t space = ARCHIVE_HEAD - (size_t)a->got;
        memcpy(a->head + a->got, bytes, n < space ? n : space);
    }
    while (zeros < n && bytes[n - 1 - zeros] == '\0')
        zeros++;
    a->zeros = zeros == n ? a->zeros + (int64_t)n : (int64_t)zeros;
    a->got += (int64_t)n;
    return report_archive_progress(a);
}

static void download_failed(struct download_op *a)
{
    const struct http_response *resp = &a->http.resp;
    tinker_error err;
    if (file_writer_error(a->writer)) {
        errno = file_writer_error(a->writer);
        err_errno(&err, "write", a->file);
    } else if (resp->failure == HTTP_FAIL_SINK)
        err_set(&err, TINKER_ECANCELED, "the download was stopped");
    else if (resp->failure != HTTP_OK)
        err_set(&err, resp->failure == HTTP_FAIL_TIMEOUT ? TINKER_ETIMEDOUT : TINKER_ECONNECT,
                "download: %s", resp->reason);
    else {
        /* Only a JSON body is repeated in the message: that of an object store may quote the
         * signature of the URL. */
        char text[320];
        bool json = resp->body.len > 0 && resp->body.data[0] == '{';
        wire_error_text(resp->status, json ? resp->body.data : "", json ? resp->body.len : 0, text,
                        sizeof(text));
        err_set(&err, TINKER_EHTTP, "download: %s", text);
        err.http_status = resp->status;
    }
    fail_download(a, &err);
}

/* The worker has written what was buffered: read on, or give up when the disk failed. */
static void on_room(struct file_writer_owner *o)
{
    struct download_op *a = container_of(o, struct download_op, owner);
    if (file_writer_error(a->writer))
        download_failed(a);
    else
        http_pause(&a->http, false);
}

/* The file has its name and is on the disk. */
static void on_saved(struct file_writer_owner *o, int error)
{
    struct download_op *a = container_of(o, struct download_op, owner);
    struct tinker_future *f = a->op.future;
    if (error) {
        download_failed(a);
        return;
    }
    f->value = arena_strdup(&f->arena, a->file);
    stop_download(a);
    operation_succeed(&a->op);
}

/* The GET is over.  Success is not reported before the file is on the disk: on_saved(). */
static void on_downloaded(struct http_request *r)
{
    struct download_op *a = container_of(r, struct download_op, http);
    struct session *h = a->op.session;
    struct http_response *resp = &r->resp;
    /* A body without Content-Length ends with the connection, complete or not.  A tar ends with two
     * blocks of zeros, so one that does not was cut off.  A cut gzip cannot be recognized here: the
     * checksum at its end is for whoever unpacks it. */
    bool gzip = a->got >= 2 && memcmp(a->head, "\x1f\x8b", 2) == 0;
    bool tar = a->got >= ARCHIVE_HEAD && memcmp(a->head + TAR_MAGIC_AT, "ustar", 5) == 0;
    bool cut = resp->until_close && !gzip && (a->got < ARCHIVE_HEAD || (tar && a->zeros < TAR_END));
    if (cut && resp->failure == HTTP_OK && resp->status == 200) {
        resp->failure = HTTP_FAIL_CONNECT;
        snprintf(resp->reason, sizeof(resp->reason),
                 "the connection closed in the middle of the archive");
    }
    /* Begin again after a lost connection only: an HTTP status is a response, and a full disk stays
     * full. */
    const struct call_options *p = a->op.options;
    int max = p && p->max_retries >= 0 ? p->max_retries : h->cfg->max_retries;
    bool lost = resp->failure == HTTP_FAIL_CONNECT || resp->failure == HTTP_FAIL_TIMEOUT;
    if (lost && !file_writer_error(a->writer) && a->failures < max) {
        int64_t ms = retry_delay_ms(RETRY_DELAY_ATTEMPT, ++a->failures, h->rt->uniform(h->rt));
        file_writer_free(a->writer);
        a->writer = NULL;
        log_line(&h->log, LOG_DEBUG, "the download begins again in %lld ms: %s", (long long)ms,
                 resp->reason);
        metric_add(h->cfg->metrics.attempt_retries, 1);
        a->timer.fire = on_download_timer;
        loop_arm(h->rt->loop, &a->timer, ms);
        return;
    }
    if (resp->failure != HTTP_OK || resp->status != 200) {
        download_failed(a);
        return;
    }
    report_archive_progress(a);
    file_writer_finish(a->writer);
}

/* From the first byte: services do not promise that a second GET sends the same bytes, so ranges
 * are not used. */
static void begin_download(struct download_op *a)
{
    tinker_error err;
    char uuid[37];
    size_t n = strlen(a->file) + PART_NAME;
    /* a name of its own for each: the worker may still be removing the last one */
    rand_uuid(uuid);
    snprintf(a->part, n, "%s.part.%.8s", a->file, uuid);
    a->got = a->zeros = 0;
    a->writer = file_writer_open(a->op.session->rt, a->part, a->file, &a->owner, &err);
    if (a->writer)
        http_start(a->pool, &a->http);
    else
        fail_download(a, &err);
}

static void on_download_timer(struct timer *t)
{
    begin_download(container_of(t, struct download_op, timer));
}

/* A pool of its own: the address belongs to another host, which must see none of the session's
 * headers, credentials or connections. */
static void start_download(struct download_op *a, const char *url)
{
    const struct config *cfg = a->op.session->cfg;
    struct tinker_future *f = a->op.future;
    tinker_error err;
    struct http_pool_options o = { .per_client = 1,
                                   .proxy = cfg->proxy,
                                   .no_proxy = cfg->no_proxy,
                                   .proxy_headers = cfg->proxy_headers,
                                   .n_proxy_headers = cfg->n_proxy_headers,
                                   .ca_file = cfg->ca_file,
                                   .budget = a->op.session->rt->budgets[BUDGET_OTHER] };
    a->pool = http_pool_new(a->op.session->rt->loop, &o, &err);
    a->http.url = arena_strdup(&f->arena, url);
    if (!a->pool || !a->http.url) {
        err_nomem(&err, "download");
        fail_download(a, &err);
        return;
    }
    a->owner = (struct file_writer_owner){ on_room, on_saved };
    a->http.method = "GET";
    a->http.timeouts = (struct http_timeouts){ 60000, 60000, 60000, 60000 };
    a->http.follow = true;
    a->http.max_response = 1 << 20; /* of an error's body; data goes to the file */
    a->http.on_data = on_data;
    a->http.done = on_downloaded;
    begin_download(a);
}

/* ---- the address ----------------------------------------------------------------------------- */

/* The address is known: it is the result, or where the download begins. */
static void use_address(struct download_op *a, const char *url, int64_t expires_us)
{
    struct tinker_future *f = a->op.future;
    tinker_error err;
    loop_disarm(a->op.session->rt->loop, &a->still);
    if (a->file) {
        start_download(a, url);
        return;
    }
    if (a->trace)
        f->value = arena_strdup(&f->arena, url);
    else {
        tinker_archive *out = arena_alloc(&f->arena, sizeof(*out));
        f->value = out;
        f->type = &wire_checkpoint_archive_url_response;
        if (out)
            *out = (tinker_archive){ arena_strdup(&f->arena, url), expires_us };
        if (out && !out->url)
            f->value = NULL;
    }
    stop_download(a);
    if (f->value)
        operation_succeed(&a->op);
    else {
        err_nomem(&err, "result");
        operation_fail(&a->op, &err);
    }
}

/* As the user or the download needs it: the service may name it in relation to itself. */
static void resolve_address(struct download_op *a, const char *reference, int64_t expires_us)
{
    tinker_error err;
    /* what has a scheme stays as it is: another spelling might not fit its signature */
    bool whole = reference[strcspn(reference, ":/?#")] == ':';
    char *base = whole ? NULL : call_url(&a->call);
    char *url = base ? http_resolve(base, reference) : NULL;
    if (whole || url)
        use_address(a, whole ? reference : url, expires_us);
    else {
        err_set(&err, TINKER_EPROTOCOL, "the service names no usable address of the archive");
        fail_download(a, &err);
    }
    free(base);
    free(url);
}

/* 302: the address is in Location, its end perhaps in Expires. */
static void read_redirect(struct download_op *a)
{
    const struct http_response *resp = &a->call.http.resp;
    char *url = http_response_location(resp), date[64];
    struct wire_time t;
    tinker_error err;
    if (!url) {
        err_set(&err, TINKER_EPROTOCOL, "the service redirected without saying where");
        fail_download(a, &err);
        return;
    }
    /* Without a date of its own a signed URL is taken to live as long as those of the service
     * do. */
    int64_t expires =
        clock_wall_ns(a->op.session->rt->clock) / 1000 + LIFETIME_S * INT64_C(1000000);
    if (http_response_header(resp, "expires", date, sizeof(date)) && wire_time_parse_http(date, &t))
        expires = t.us;
    resolve_address(a, url, expires);
    free(url);
}

/* 200: the address is in a JSON body. */
static void read_archive(struct download_op *a)
{
    tinker_archive w;
    struct tinker_future *f = a->op.future;
    const struct buf *body = &a->call.http.resp.body;
    tinker_error err;
    tinker_status s =
        wire_decode_json(&wire_checkpoint_archive_url_response, body->data ? body->data : "",
                         body->len, WIRE_LENIENT, &f->arena, &w, &err);
    if (wire_as_answer(s, &err) != TINKER_OK)
        fail_download(a, &err);
    else
        resolve_address(a, w.url, w.expires_us);
}

static void on_round_timer(struct timer *t)
{
    request_address(container_of(t, struct download_op, timer));
}

/* The export of a trace: {"status": "pending" | "ready" | "failed", "url", "error"}. */
static void read_trace(struct download_op *a)
{
    struct wire_trace_export_response w;
    struct session *h = a->op.session;
    const struct buf *body = &a->call.http.resp.body;
    tinker_error err;
    tinker_status s = wire_decode_json(&wire_trace_export_response, body->data ? body->data : "",
                                       body->len, WIRE_LENIENT, &a->op.future->arena, &w, &err);
    if (s == TINKER_OK && strcmp(w.status, "pending") == 0) {
        if (!a->warned)
            log_line(&h->log, LOG_WARNING, "the trace is being exported, this may take a while");
        a->warned = true;
        loop_arm(h->rt->loop, &a->timer, TRACE_MS);
        return;
    }
    if (s == TINKER_OK && strcmp(w.status, "failed") == 0)
        s = err_set(&err, TINKER_EREQUEST, "the export failed: %s",
                    w.error ? w.error : "no reason");
    else if (s == TINKER_OK && !w.url)
        s = err_set(&err, TINKER_EPROTOCOL, "the response has no url");
    if (wire_as_answer(s, &err) != TINKER_OK)
        fail_download(a, &err);
    else
        resolve_address(a, w.url, 0);
}

/* Which statuses are caught before the retry layers of a call see them: 302 is the answer; 503 means
 * that the archive is still being made, until the rounds or the deadline are used up. */
static bool on_status(struct call *c, int status)
{
    struct download_op *a = container_of(c, struct download_op, call);
    if (a->trace)
        return false;
    return status == 302 ||
           (status == 503 && a->rounds < ROUNDS_MAX && !operation_is_spent(&a->op));
}

static void on_address_called(struct call *c)
{
    struct download_op *a = container_of(c, struct download_op, call);
    if (c->outcome == CALL_CAUGHT && c->http.resp.status == 302)
        read_redirect(a);
    else if (c->outcome == CALL_CAUGHT) {
        a->rounds++;
        loop_arm(a->op.session->rt->loop, &a->timer, ROUND_MS);
    } else if (c->outcome != CALL_OK) {
        operation_note_response(&a->op, c);
        fail_download(a, &c->err);
    } else if (a->trace)
        read_trace(a);
    else
        read_archive(a);
}

static void request_address(struct download_op *a)
{
    struct call *c = &a->call;
    c->session = a->op.session;
    c->op = &a->op;
    c->spec = a->trace ? &trace_spec : &archive_spec;
    c->path = a->path;
    c->catch = on_status;
    c->done = on_address_called;
    call_start(c);
}

/* A user who stares at a silent program is told every half minute, from the third minute on. */
static void on_still_timer(struct timer *t)
{
    struct download_op *a = container_of(t, struct download_op, still);
    if (++a->half_minutes >= 6)
        log_line(&a->op.session->log, LOG_WARNING, "the archive is still being made, %d s so far",
                 a->half_minutes * 30);
    loop_arm(a->op.session->rt->loop, t, ROUND_MS);
}

static void on_download_ready(struct session_wait *w, const tinker_error *err)
{
    struct download_op *a = container_of(w, struct download_op, wait);
    struct session *h = a->op.session;
    if (err) {
        fail_download(a, err);
        return;
    }
    if (!a->trace) {
        log_line(&h->log, LOG_WARNING, "making the archive may take several minutes");
        a->still.fire = on_still_timer;
        loop_arm(h->rt->loop, &a->still, ROUND_MS);
    }
    a->timer.fire = on_round_timer;
    request_address(a);
}

static void download_start(struct operation *op)
{
    struct download_op *a = (struct download_op *)op;
    download_progress_begin(a->progress, op);
    a->wait.ready = on_download_ready;
    session_when_ready(op->session, &a->wait);
}

/* ---- submitting, in the caller's thread -------------------------------------------------------- */

static const struct operation_class archive_class = {
    .name = "checkpoint_archive",
    .start = download_start,
    .abandon = download_abandon,
    .destroy = download_destroy,
};
static const struct operation_class download_class = {
    .name = "download_checkpoint",
    .start = download_start,
    .abandon = download_abandon,
    .destroy = download_destroy,
};
static const struct operation_class trace_class = {
    .name = "export_session_trace",
    .start = download_start,
    .abandon = download_abandon,
    .destroy = download_destroy,
};

/* Takes over path; NULL with *err set. */
static struct download_op *download_new(char *path, tinker_error *err)
{
    struct download_op *a = path ? calloc(1, sizeof(*a)) : NULL;
    if (!a) {
        if (path)
            err_nomem(err, "checkpoint_archive");
        free(path);
        return NULL;
    }
    a->path = path;
    return a;
}

static tinker_future *submit_download(struct download_op *a, const struct operation_class *class,
                                      tinker_rest *r, enum result_kind kind, tinker_error *err)
{
    struct session *h = rest_session(r, err);
    tinker_future *f = h ? operation_submit(&a->op, class, h, kind, rest_options(r), err) : NULL;
    if (!f)
        download_destroy(&a->op);
    return f;
}

tinker_future *tinker_rest_get_checkpoint_archive(tinker_rest *r, const char *path,
                                                  tinker_error *err)
{
    struct download_op *a = download_new(rest_checkpoint_path(path, "/archive", err), err);
    return a ? submit_download(a, &archive_class, r, RESULT_VALUE, err) : NULL;
}

const tinker_archive *tinker_future_archive(const tinker_future *f)
{
    return future_value(f, &wire_checkpoint_archive_url_response);
}

tinker_future *tinker_rest_export_trace(tinker_rest *r, const char *session_id, tinker_error *err)
{
    struct download_op *a = download_new(
        rest_path_of_id("api/v1/sessions/", "session id", session_id, "/trace_export", err), err);
    if (!a)
        return NULL;
    a->trace = true;
    return submit_download(a, &trace_class, r, RESULT_FILE, err);
}

static tinker_status prepare_file(struct download_op *a, const char *file, tinker_error *err)
{
    if (!file || !*file)
        return err_set(err, TINKER_EINVAL, "no file to download to");
    if (!a->opts.force && access(file, F_OK) == 0)
        return err_set(err, TINKER_EINVAL, "%s exists; use force to replace it", file);
    if (!download_progress_new(&a->progress, &a->opts, &a->op))
        return err_nomem(err, "download_checkpoint");
    a->file = strdup(file);
    a->part = malloc(strlen(file) + PART_NAME);
    if (!a->file || !a->part) {
        free(a->part);
        a->part = NULL; /* nothing to remove */
        return err_nomem(err, "download_checkpoint");
    }
    return TINKER_OK;
}

tinker_future *tinker_rest_download_checkpoint(tinker_rest *r, const char *path, const char *file,
                                               const tinker_download_options *opts,
                                               tinker_error *err)
{
    tinker_download_options ours = TINKER_DOWNLOAD_OPTIONS_INIT;
    if (opts_copy(&ours, sizeof(ours), opts, "tinker_download_options", err) != TINKER_OK)
        return NULL;
    struct download_op *a = download_new(rest_checkpoint_path(path, "/archive", err), err);
    if (!a)
        return NULL;
    a->opts = ours;
    if (prepare_file(a, file, err) != TINKER_OK) {
        download_destroy(&a->op);
        return NULL;
    }
    return submit_download(a, &download_class, r, RESULT_FILE, err);
}
