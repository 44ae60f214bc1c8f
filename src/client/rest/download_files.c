/* download_files.c - the files of external weights, several at once, resumed and checked.
 *
 *   session ready -> ask for the addresses -> every file: GET -> data to its writer -> on the disk
 *     connection lost: pause, GET the rest (Range) -> 206: go on; 200: from the first byte
 *     403, 410, or soon expired: ask for the addresses again, once per file
 *   all there -> SHA256SUMS, rename the directory -> done
 *
 * The files grow in a hidden directory beside the target, which takes its name when all of them are
 * complete; whatever fails, nothing is left behind.  The addresses belong to somebody else, who sees
 * none of our headers.  Runs on the loop thread, except the submit function and what a worker removes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/array.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/os.h"
#include "base/rand.h"
#include "base/sha.h"
#include "client/call/call.h"
#include "client/call/call_options.h"
#include "client/call/retry_policy.h"
#include "client/rest/download_progress.h"
#include "client/rest/file_writer.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "wire/future.h"
#include "wire/wire.h"

/* AT_ONCE connections fill a link; more would only make the store answer 503. NAME_MAX_BYTES leaves
 * room below PATH_MAX for the directory and the name of a part. */
enum { AT_ONCE = 4, NAME_MAX_BYTES = 512, ETAG_SIZE = 256, DIGEST_TEXT = 65 };
/* Addresses that end within this time are renewed before a file begins. */
#define RENEW_US (INT64_C(300) * 1000000)

enum file_state { FILE_WAITING, FILE_RUNNING, FILE_PAUSED, FILE_SAVED };

struct files_op;
struct one_file {
    struct files_op *all;
    const char *name, *url; /* in the future's arena */
    char *path, *part;      /* below the hidden directory */
    enum file_state state;
    struct http_request http;
    struct http_header range[2];
    char range_text[48], etag[ETAG_SIZE];
    char expected[DIGEST_TEXT], digest[DIGEST_TEXT]; /* SHA-256; "": the server says none */
    struct file_writer_owner owner;
    struct file_writer *writer;
    struct sha256 sha;
    struct timer timer;
    int64_t got, total; /* total -1: not known yet */
    int failures;
    bool answered;  /* the first byte of this response has come */
    bool renewed;   /* its address was */
    bool misplaced; /* a 206 for another range than was asked for */
};

struct files_op {
    struct operation op;
    struct session_wait wait;
    struct call call;
    char *path;         /* of the endpoint */
    char *dir, *hidden; /* the target, and where it grows */
    tinker_download_options opts;
    struct download_progress *progress;
    struct http_pool *pool;
    struct one_file *files;
    size_t n;
    int64_t expires_us;
    bool asking; /* for addresses */
};

static const struct call_spec urls_spec = {
    .name = "get_checkpoint_files",
    .method = "GET",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
    .outer = true,
};

static void start_files(struct files_op *a);

/* ---- removal, on a worker -------------------------------------------------------------------- */

/* Remove a directory without holding up the loop; takes over the path. */
struct removal {
    struct runtime_job job; /* first member */
    char *path;
};

static void remove_tree(struct runtime_job *j)
{
    os_remove_tree(((struct removal *)j)->path, NULL);
}

static void removal_done(struct runtime_job *j)
{
    free(((struct removal *)j)->path);
    free(j);
}

static void remove_later(struct runtime *rt, char *path)
{
    struct removal *r = path ? calloc(1, sizeof(*r)) : NULL;
    if (!r) {
        free(path);
        return;
    }
    r->job.work = remove_tree;
    r->job.done = removal_done;
    r->path = path;
    if (!runtime_work(rt, &r->job)) {
        remove_tree(&r->job);
        removal_done(&r->job);
    }
}

/* ---- ends --------------------------------------------------------------------------------------- */

/* Both ends, success and failure, come here: no callback of a call, a file or a timer may fire
 * afterwards.  What is left of the hidden directory goes; after success there is none. */
static void stop_files(struct files_op *a)
{
    struct loop *l = a->op.session->rt->loop;
    session_forget(&a->wait);
    call_cancel(&a->call);
    for (size_t i = 0; i < a->n; i++) {
        http_cancel(&a->files[i].http);
        loop_disarm(l, &a->files[i].timer);
        file_writer_free(a->files[i].writer);
        a->files[i].writer = NULL;
    }
    if (a->hidden)
        remove_later(a->op.session->rt, a->hidden);
    a->hidden = NULL;
}

/* Everything was stopped before, so memory is all that is left.  Writers are gone: stop_files()
 * freed them. */
static void files_destroy(struct operation *op)
{
    struct files_op *a = (struct files_op *)op; /* first member */
    call_clear(&a->call);
    for (size_t i = 0; i < a->n; i++) {
        http_request_clear(&a->files[i].http);
        free(a->files[i].path);
        free(a->files[i].part);
    }
    http_pool_free(a->pool);
    download_progress_unref(a->progress);
    free(a->files);
    free(a->path);
    free(a->dir);
    free(a->hidden);
    free(a);
}

static void files_abandon(struct operation *op)
{
    stop_files((struct files_op *)op);
    operation_destroy(op);
}

static void fail_files(struct files_op *a, const tinker_error *err)
{
    tinker_error copy = *err; /* it may be the call's */
    stop_files(a);
    operation_fail(&a->op, &copy);
}

/* "<digest>  <name>" of each file, as sha256sum reads it. */
static tinker_status write_sums(struct files_op *a, tinker_error *err)
{
    struct buf sums, path;
    buf_init(&sums, 1 << 24);
    buf_init(&path, 1 << 16);
    for (size_t i = 0; i < a->n; i++)
        buf_printf(&sums, "%s  %s\n", a->files[i].digest, a->files[i].name);
    buf_printf(&path, "%s/SHA256SUMS", a->hidden);
    tinker_status s = buf_ok(&sums) && buf_ok(&path)
                          ? os_write_file(path.data, sums.data, sums.len, err)
                          : err_nomem(err, "download");
    buf_clear(&sums);
    buf_clear(&path);
    return s;
}

/* All files are on the disk: give the directory its name.  On the loop thread, as it is short and may
 * not be cut in the middle; what was there before goes only when the new one has its name. */
static void finish_files(struct files_op *a)
{
    struct tinker_future *f = a->op.future;
    tinker_error err;
    /* ".old" and the NUL */
    size_t n = strlen(a->hidden) + 5;
    char *old = malloc(n);
    tinker_status s = old ? write_sums(a, &err) : err_nomem(&err, "download");
    if (s == TINKER_OK)
        s = os_sync_dir(a->hidden, &err);
    if (s == TINKER_OK) {
        snprintf(old, n, "%s.old", a->hidden);
        bool replace = rename(a->dir, old) == 0;
        if (rename(a->hidden, a->dir) != 0) {
            s = err_errno(&err, "rename to", a->dir);
            if (replace)
                rename(old, a->dir);
        } else {
            free(a->hidden); /* it is the target now */
            a->hidden = NULL;
            if (replace) {
                remove_later(a->op.session->rt, old);
                old = NULL;
            }
        }
    }
    free(old);
    if (s != TINKER_OK) {
        fail_files(a, &err);
        return;
    }
    f->value = arena_strdup(&f->arena, a->dir);
    stop_files(a);
    operation_succeed(&a->op);
}

/* ---- one file ------------------------------------------------------------------------------------- */

/* Total unknown: of one file means of the download. Resumed bytes count once, for `got` is what is
 * on the disk. */
static bool report_files_progress(struct files_op *a)
{
    int64_t done = 0, total = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->files[i].total < 0)
            total = -1;
        else if (total >= 0)
            total += a->files[i].total;
        done += a->files[i].got;
    }
    return download_progress_tell(a->progress, a->op.session->rt, done, total);
}

/* Begin at the first byte: a new writer, under a new name, as a worker may still be removing the
 * last one. */
static bool open_writer(struct one_file *f, tinker_error *err)
{
    char uuid[37];
    rand_uuid(uuid);
    size_t n = strlen(f->path);
    snprintf(f->part + n, 16, ".%.8s", uuid);
    file_writer_free(f->writer);
    f->got = 0;
    sha256_init(&f->sha);
    f->writer = file_writer_open(f->all->op.session->rt, f->part, f->path, &f->owner, err);
    return f->writer != NULL;
}

/* The SHA-256 that a response says its whole body has, as hexadecimal digits. */
static void read_digest(const struct http_response *resp, char out[DIGEST_TEXT])
{
    static const char *const names[] = { "repr-digest", "content-digest", "digest" };
    char text[256];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *p = http_response_header(resp, names[i], text, sizeof(text))
                            ? strstr(text, "sha-256=")
                            : NULL;
        struct buf bytes;
        if (!p)
            continue;
        p += 8;
        p += *p == ':'; /* RFC 9530 has colons around it, RFC 3230 has not */
        buf_init(&bytes, 256);
        if (base64_decode(&bytes, p, strcspn(p, ":, ")) && bytes.len == 32)
            hex_encode((const uint8_t *)bytes.data, 32, out);
        buf_clear(&bytes);
    }
    if (http_response_header(resp, "etag", text, sizeof(text)) &&
        strncmp(text, "\"sha256:", 8) == 0 && strlen(text) == 8 + 64 + 1)
        snprintf(out, DIGEST_TEXT, "%.64s", text + 8);
}

/* The first byte of a response: is it the rest that was asked for, or everything again? */
static bool begin_response(struct one_file *f)
{
    const struct http_response *resp = &f->http.resp;
    char text[96];
    long long from = -1, to, total = -1;
    f->answered = true;
    if (resp->status == 206) {
        f->misplaced = !http_response_header(resp, "content-range", text, sizeof(text)) ||
                       sscanf(text, "bytes %lld-%lld/%lld", &from, &to, &total) < 2 ||
                       from != f->got || (total >= 0 && f->total >= 0 && total != f->total);
        return !f->misplaced;
    }
    tinker_error err;
    if (f->got && !open_writer(f, &err))
        return false;
    f->total = resp->length;
    read_digest(resp, f->expected);
    /* Only a strong tag says that the bytes are the same. */
    if (!http_response_header(resp, "etag", f->etag, sizeof(f->etag)) || f->etag[0] != '"' ||
        strlen(f->etag) + 1 == sizeof(f->etag))
        f->etag[0] = '\0';
    return true;
}

static bool on_file_data(struct http_request *r, const void *p, size_t n)
{
    struct one_file *f = container_of(r, struct one_file, http);
    if (!f->answered && !begin_response(f))
        return false;
    enum file_writer_room room = file_writer_put(f->writer, p, n);
    if (room == FILE_WRITER_BROKEN)
        return false;
    if (room == FILE_WRITER_FULL)
        http_pause(r, true);
    sha256_update(&f->sha, p, n);
    f->got += (int64_t)n;
    return report_files_progress(f->all);
}

static void on_file_room(struct file_writer_owner *o)
{
    struct one_file *f = container_of(o, struct one_file, owner);
    http_pause(&f->http, false); /* a disk that failed ends the transfer with the next piece */
}

/* On the loop thread, after a worker has written, synced and renamed the file. */
static void on_file_saved(struct file_writer_owner *o, int error)
{
    struct one_file *f = container_of(o, struct one_file, owner);
    struct files_op *a = f->all;
    tinker_error err;
    if (error) {
        errno = error;
        err_errno(&err, "write", f->path);
        fail_files(a, &err);
        return;
    }
    file_writer_free(f->writer);
    f->writer = NULL;
    f->state = FILE_SAVED;
    start_files(a);
}

/* The most specific cause wins: a disk that is full shows as a transfer that was stopped, too. */
static void fail_file(struct one_file *f)
{
    const struct http_response *resp = &f->http.resp;
    tinker_error err;
    if (f->writer && file_writer_error(f->writer)) {
        errno = file_writer_error(f->writer);
        err_errno(&err, "write", f->path);
    } else if (f->misplaced)
        err_set(&err, TINKER_EPROTOCOL, "%s: the server sent another part than was asked for",
                f->name);
    else if (resp->failure == HTTP_FAIL_SINK)
        err_set(&err, TINKER_ECANCELED, "the download was stopped");
    else if (resp->failure != HTTP_OK)
        err_set(&err, resp->failure == HTTP_FAIL_TIMEOUT ? TINKER_ETIMEDOUT : TINKER_ECONNECT,
                "download of %s: %s", f->name, resp->reason);
    else {
        /* The body of an object store may quote the signature of the address. */
        err_set(&err, TINKER_EHTTP, "download of %s: HTTP %d", f->name, resp->status);
        err.http_status = resp->status;
    }
    fail_files(f->all, &err);
}

/* A pause is over.  Only the state changes: whether it may run is for start_files() to say. */
static void on_file_timer(struct timer *t)
{
    struct one_file *f = container_of(t, struct one_file, timer);
    f->state = FILE_WAITING;
    start_files(f->all);
}

/* After a lost connection, an overloaded store (5xx) or a range that is not there. */
static bool try_again(struct one_file *f)
{
    struct files_op *a = f->all;
    struct session *h = a->op.session;
    const struct http_response *resp = &f->http.resp;
    const struct call_options *p = a->op.options;
    int max = p && p->max_retries >= 0 ? p->max_retries : h->cfg->max_retries;
    bool lost = resp->failure == HTTP_FAIL_CONNECT || resp->failure == HTTP_FAIL_TIMEOUT ||
                (resp->failure == HTTP_OK && (resp->status >= 500 || resp->status == 416));
    if (!lost || f->failures >= max || (f->writer && file_writer_error(f->writer)))
        return false;
    int64_t ms = retry_delay_ms(RETRY_DELAY_ATTEMPT, ++f->failures, h->rt->uniform(h->rt));
    log_line(&h->log, LOG_DEBUG, "%s goes on at byte %lld in %lld ms", f->name, (long long)f->got,
             (long long)ms);
    metric_add(h->cfg->metrics.attempt_retries, 1);
    tinker_error err;
    /* Without a strong tag the rest may be that of another version. */
    if (f->got && (resp->status == 416 || !f->etag[0]) && !open_writer(f, &err)) {
        fail_files(a, &err);
        return true;
    }
    f->state = FILE_PAUSED;
    f->timer.fire = on_file_timer;
    loop_arm(h->rt->loop, &f->timer, ms);
    return true;
}

static void ask_for_addresses(struct files_op *a);

static void on_file_done(struct http_request *r)
{
    struct one_file *f = container_of(r, struct one_file, http);
    struct http_response *resp = &r->resp;
    bool refused = resp->failure == HTTP_OK && (resp->status == 403 || resp->status == 410);
    if (refused && !f->renewed) { /* the address has ended */
        f->renewed = true;
        f->state = FILE_WAITING;
        ask_for_addresses(f->all);
        return;
    }
    if (try_again(f))
        return;
    if (resp->failure != HTTP_OK || (resp->status != 200 && resp->status != 206)) {
        fail_file(f);
        return;
    }
    if (!f->answered && !begin_response(f)) { /* an empty body */
        fail_file(f);
        return;
    }
    uint8_t digest[32];
    sha256_final(&f->sha, digest);
    hex_encode(digest, sizeof(digest), f->digest);
    if ((f->expected[0] && strcmp(f->expected, f->digest) != 0) ||
        (f->total >= 0 && f->got != f->total)) {
        tinker_error err;
        err_set(&err, TINKER_EPROTOCOL, "%s arrived damaged: %s", f->name,
                f->got == f->total ? "its SHA-256 is not the one that the server named"
                                   : "it has another length");
        fail_files(f->all, &err);
        return;
    }
    f->total = f->got;
    file_writer_finish(f->writer);
}

static void start_file(struct one_file *f)
{
    struct files_op *a = f->all;
    tinker_error err;
    if (!f->writer && !open_writer(f, &err)) {
        fail_files(a, &err);
        return;
    }
    f->state = FILE_RUNNING;
    f->answered = f->misplaced = false;
    f->http.url = f->url;
    f->http.n_headers = 0;
    /* If-Range (RFC 9110, 13.1.5): the rest if the tag still holds, else everything from the start,
     * so bytes of two versions never meet in one file. */
    if (f->got) {
        snprintf(f->range_text, sizeof(f->range_text), "bytes=%lld-", (long long)f->got);
        f->range[0] = (struct http_header){ "Range", f->range_text, false };
        f->range[1] = (struct http_header){ "If-Range", f->etag, false };
        f->http.n_headers = 2;
    }
    http_start(a->pool, &f->http);
}

/* Start what waits, as many as may run at once; the end when all are saved. */
static void start_files(struct files_op *a)
{
    size_t running = 0, saved = 0;
    for (size_t i = 0; i < a->n; i++) {
        running += a->files[i].state == FILE_RUNNING;
        saved += a->files[i].state == FILE_SAVED;
    }
    if (saved == a->n) {
        finish_files(a);
        return;
    }
    if (a->asking)
        return;
    for (size_t i = 0; i < a->n && running < AT_ONCE; i++) {
        struct one_file *f = &a->files[i];
        if (f->state != FILE_WAITING)
            continue;
        int64_t now = clock_wall_ns(a->op.session->rt->clock) / 1000;
        if (!f->renewed && a->expires_us != TINKER_NO_TIME && now >= a->expires_us - RENEW_US) {
            f->renewed = true;
            ask_for_addresses(a);
            return;
        }
        start_file(f);
        if (!a->hidden) /* it failed at once */
            return;
        running++;
    }
}

/* ---- addresses --------------------------------------------------------------------------------------- */

/* A name from the service becomes part of a path of ours. */
static bool is_safe_name(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > NAME_MAX_BYTES || name[0] == '/' || name[n - 1] == '/' ||
        strchr(name, '\\') || strcmp(name, "SHA256SUMS") == 0)
        return false;
    for (const char *p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL) {
        size_t part = strcspn(p, "/");
        if (part == 0 || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
            return false;
    }
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return false;
    return true;
}

/* Absolute, in the future's arena; NULL: it cannot be used. */
static const char *resolve_url(struct files_op *a, const char *reference)
{
    struct arena *arena = &a->op.future->arena;
    if (reference[strcspn(reference, ":/?#")] == ':')
        return arena_strdup(arena, reference);
    char *base = call_url(&a->call), *url = base ? http_resolve(base, reference) : NULL;
    const char *out = url ? arena_strdup(arena, url) : NULL;
    free(base);
    free(url);
    return out;
}

/* Make the list of files and the directories below the hidden one. */
static tinker_status plan_files(struct files_op *a, const tinker_files *w, tinker_error *err)
{
    if (!w->n)
        return err_set(err, TINKER_EPROTOCOL, "the checkpoint has no files");
    a->files = calloc(w->n, sizeof(*a->files));
    if (!a->files)
        return err_nomem(err, "download");
    a->n = w->n;
    for (size_t i = 0; i < w->n; i++) {
        struct one_file *f = &a->files[i];
        f->all = a;
        f->total = -1;
        f->name = w->files[i].name;
        if (!is_safe_name(f->name))
            return err_set(err, TINKER_EPROTOCOL, "Unsafe file path in checkpoint: %.200s",
                           f->name);
        size_t n = strlen(a->hidden) + strlen(f->name) + 2;
        f->path = malloc(n);
        f->part = malloc(n + 16);
        if (!f->path || !f->part)
            return err_nomem(err, "download");
        snprintf(f->path, n, "%s/%s", a->hidden, f->name);
        snprintf(f->part, n, "%s", f->path);
        *strrchr(f->part, '/') = '\0';
        tinker_status s = os_make_dirs(f->part, err);
        if (s != TINKER_OK)
            return s;
        snprintf(f->part, n, "%s", f->path);
        f->owner = (struct file_writer_owner){ on_file_room, on_file_saved };
        f->http.method = "GET";
        f->http.headers = f->range;
        f->http.timeouts = (struct http_timeouts){ 60000, 60000, 60000, 60000 };
        /* Stores redirect to the machine that has the file. */
        f->http.follow = true;
        f->http.max_response = 1 << 20; /* of an error's body */
        f->http.on_data = on_file_data;
        f->http.done = on_file_done;
    }
    return TINKER_OK;
}

/* The addresses by name: a second answer may have another order. */
static tinker_status take_addresses(struct files_op *a, const tinker_files *w, tinker_error *err)
{
    for (size_t i = 0; i < a->n; i++) {
        struct one_file *f = &a->files[i];
        const char *found = NULL;
        for (size_t k = 0; k < w->n && !found; k++)
            if (strcmp(w->files[k].name, f->name) == 0)
                found = w->files[k].value;
        f->url = found ? resolve_url(a, found) : NULL;
        if (!f->url)
            return err_set(err, TINKER_EPROTOCOL, "the service names no usable address of %.200s",
                           f->name);
    }
    a->expires_us = w->expires_us;
    return TINKER_OK;
}

static void on_addresses(struct call *c)
{
    struct files_op *a = container_of(c, struct files_op, call);
    struct tinker_future *f = a->op.future;
    const struct buf *body = &c->http.resp.body;
    tinker_files w;
    tinker_error err;
    a->asking = false;
    if (c->outcome != CALL_OK) {
        operation_note_response(&a->op, c);
        fail_files(a, &c->err);
        return;
    }
    tinker_status s =
        wire_decode_json(&wire_external_weights_urls_response, body->data ? body->data : "",
                         body->len, WIRE_LENIENT, &f->arena, &w, &err);
    s = wire_as_answer(s, &err);
    /* Only the first answer makes the list; later ones renew its addresses. */
    if (s == TINKER_OK && !a->files)
        s = plan_files(a, &w, &err);
    if (s == TINKER_OK)
        s = take_addresses(a, &w, &err);
    if (s == TINKER_OK)
        start_files(a);
    else
        fail_files(a, &err);
}

static void ask_for_addresses(struct files_op *a)
{
    struct call *c = &a->call;
    if (a->asking)
        return;
    a->asking = true;
    /* The same call again: what the last one held must go first. */
    call_clear(c);
    c->session = a->op.session;
    c->op = &a->op;
    c->spec = &urls_spec;
    c->path = a->path;
    c->done = on_addresses;
    call_start(c);
}

static void on_files_ready(struct session_wait *w, const tinker_error *err)
{
    struct files_op *a = container_of(w, struct files_op, wait);
    const struct config *cfg = a->op.session->cfg;
    tinker_error failed;
    if (err) {
        fail_files(a, err);
        return;
    }
    /* A pool of its own: connections to the store share nothing with those to the service, neither
     * credentials nor limits. */
    struct http_pool_options o = { .per_client = 1,
                                   .proxy = cfg->proxy,
                                   .no_proxy = cfg->no_proxy,
                                   .proxy_headers = cfg->proxy_headers,
                                   .n_proxy_headers = cfg->n_proxy_headers,
                                   .ca_file = cfg->ca_file,
                                   .budget = a->op.session->rt->budgets[BUDGET_OTHER] };
    a->pool = http_pool_new(a->op.session->rt->loop, &o, &failed);
    if (a->pool)
        ask_for_addresses(a);
    else
        fail_files(a, &failed);
}

static void files_start(struct operation *op)
{
    struct files_op *a = (struct files_op *)op;
    download_progress_begin(a->progress, op);
    a->wait.ready = on_files_ready;
    session_when_ready(op->session, &a->wait);
}

static const struct operation_class files_class = {
    .name = "download_files",
    .start = files_start,
    .abandon = files_abandon,
    .destroy = files_destroy,
};

/* ---- submitting, in the caller's thread ------------------------------------------------------------- */

/* "a/b" grows in "a/.b.part.<8 digits>". */
static tinker_status prepare_dir(struct files_op *a, const char *dir, tinker_error *err)
{
    char uuid[37];
    size_t n = dir ? strlen(dir) : 0;
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (!n || strcmp(dir, "/") == 0)
        return err_set(err, TINKER_EINVAL, "no directory to download to");
    if (!a->opts.force && access(dir, F_OK) == 0)
        return err_set(err, TINKER_EINVAL, "%s exists; use force to replace it", dir);
    rand_uuid(uuid);
    a->dir = strndup(dir, n);
    a->hidden = malloc(n + 24);
    if (!a->dir || !a->hidden)
        return err_nomem(err, "download_files");
    const char *slash = strrchr(a->dir, '/');
    int folder = slash ? (int)(slash + 1 - a->dir) : 0;
    snprintf(a->hidden, n + 24, "%.*s.%s.part.%.8s", folder, a->dir, a->dir + folder, uuid);
    return TINKER_OK;
}

tinker_future *tinker_rest_download_files(tinker_rest *r, const char *path, const char *dir,
                                          const tinker_download_options *opts, tinker_error *err)
{
    tinker_download_options ours = TINKER_DOWNLOAD_OPTIONS_INIT;
    if (opts_copy(&ours, sizeof(ours), opts, "tinker_download_options", err) != TINKER_OK)
        return NULL;
    char *endpoint = rest_checkpoint_path(path, "/external_weights_urls", err);
    struct files_op *a = endpoint ? calloc(1, sizeof(*a)) : NULL;
    if (!a) {
        if (endpoint)
            err_nomem(err, "download_files");
        free(endpoint);
        return NULL;
    }
    a->path = endpoint;
    /* The endpoint belongs to the operation from here on; whatever fails below frees it with the
     * rest. */
    a->opts = ours;
    a->expires_us = TINKER_NO_TIME;
    struct session *h = NULL;
    tinker_future *f = NULL;
    if (prepare_dir(a, dir, err) == TINKER_OK) {
        if (!download_progress_new(&a->progress, &a->opts, &a->op))
            err_nomem(err, "download_files");
        else if ((h = rest_session(r, err)) != NULL)
            f = operation_submit(&a->op, &files_class, h, RESULT_FILE, rest_options(r), err);
    }
    if (!f)
        files_destroy(&a->op);
    return f;
}
