/* harness.h - a server in the test's process, driven through its routes and over TCP.
 *
 * call() hands a request to the routes as the listener would and waits out holds by
 * calling again, so most tests need no socket. */
#ifndef UNIT_SERVER_HARNESS_H
#define UNIT_SERVER_HARNESS_H

#include <dirent.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/work/live_state.h"
#include "server/api/routes.h"
#include "server/server.h"
#include "server/work/stream.h"
#include "support/nap.h"
#include "support/tap.h"
#include "server/fake_engine.h"

static char test_dir[256], test_model[300], test_data[300];
static struct server_model test_models[] = { { "test/model", test_model } };
static const struct log quiet = { NULL, NULL, LOG_OFF };

static void harness_init_in(const char *parent)
{
    snprintf(test_dir, sizeof(test_dir), "%s/tinker-server-test.XXXXXX", parent);
    if (!mkdtemp(test_dir))
        exit(2);
    snprintf(test_model, sizeof(test_model), "%s/model", test_dir);
    snprintf(test_data, sizeof(test_data), "%s/data", test_dir);
    mkdir(test_model, 0700);
}

static void harness_init(void)
{
    harness_init_in("/tmp");
}

/* Where writing costs nothing, for tests that write much. */
static void harness_init_in_memory(void)
{
    harness_init_in(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
}

static void harness_clear(void)
{
    os_remove_tree(test_dir, NULL);
}

static struct server *start_with(void (*change)(struct server_options *))
{
    struct server_options o;
    tinker_error err = { 0 };
    server_options_init(&o);
    o.models = test_models;
    o.n_models = 1;
    o.port = 0;
    o.data_dir = test_data;
    o.log = &quiet;
    if (change)
        change(&o);
    struct server *s = server_open(&o, &err);
    if (!s)
        TAP_FAIL("server_open: %s", err.message);
    return s;
}

/* On a new data directory. */
static struct server *start_fresh(void (*change)(struct server_options *))
{
    os_remove_tree(test_data, NULL);
    return start_with(change);
}

static struct server *start_server(void)
{
    return start_fresh(NULL);
}

/* Two users, known by their keys. */
static const char *const keys[] = { "tml-alice-0123456789", "tml-bob-0123456789" };
#define ALICE keys[0]
#define BOB   keys[1]

static void two_keys(struct server_options *o)
{
    o->api_keys = keys;
    o->n_api_keys = 2;
}

/* What came back; body is NUL-terminated. */
struct reply {
    int status;
    char *body, *content_type, *location, *allow;
    size_t n;
    int fd;
    uint64_t fd_size;
    struct body_source source;
};

static void reply_clear(struct reply *r)
{
    free(r->body);
    free(r->content_type);
    free(r->location);
    free(r->allow);
    if (r->fd >= 0)
        close(r->fd);
    if (r->source.state)
        r->source.free(r->source.state);
    memset(r, 0, sizeof(*r));
    r->fd = -1;
}

struct ask {
    const char *method, *path, *key, *accept, *content_type, *encoding, *origin, *host;
    const char *sdk; /* version of the Python SDK that it says to be */
    const char *query[4][2];
    const char *body;
    size_t n_body;
    bool no_wait; /* a hold ends at once, as if its time were up */
};

static const char *ask_query(struct request *req, const char *name)
{
    const struct ask *a = req->transport;
    for (size_t i = 0; i < 4 && a->query[i][0]; i++)
        if (strcmp(a->query[i][0], name) == 0)
            return a->query[i][1];
    return NULL;
}

static bool charge_ask(struct request *req, size_t n)
{
    (void)req, (void)n;
    return true;
}

static struct reply send_ask(struct server *s, const struct ask *a)
{
    struct buf decoded; /* what a compressed body becomes */
    buf_init(&decoded, SIZE_MAX);
    struct request req = { .method = a->method,
                           .path = a->path,
                           .api_key = a->key,
                           .accept = a->accept ? a->accept : "application/json",
                           .content_type = a->content_type ? a->content_type : "application/json",
                           .content_encoding = a->encoding,
                           .origin = a->origin,
                           .sdk_version = a->sdk,
                           .host = a->host ? a->host : "127.0.0.1:1",
                           .body = a->body ? a->body : "",
                           .n_body = a->body && !a->n_body ? strlen(a->body) : a->n_body,
                           .buffer = &decoded,
                           .charge = charge_ask,
                           .query = ask_query,
                           .transport = (void *)(uintptr_t)a };
    struct reply r = { .fd = -1 };
    arena_init(&req.arena, SIZE_MAX);
    int64_t held_ms = 0;
    for (int i = 0; i < 4000; i++) {
        struct response res;
        response_init(&res);
        routes_handle(s, &req, &res);
        /* As the listener does: a call after a hold has no body. */
        buf_clear(&decoded);
        req.body = "";
        req.n_body = 0;
        req.again = true;
        if (res.wait) {
            struct timespec t = { 0, 5000000 };
            buf_clear(&res.body);
            held_ms += 5;
            req.timed_out = a->no_wait || (res.wait_ms && held_ms > res.wait_ms);
            if (!a->no_wait)
                nanosleep(&t, NULL);
            continue;
        }
        if (res.stream) { /* a reader who leaves at once */
            stream_abandon(res.stream);
            stream_unref(res.stream);
        }
        r.status = res.status;
        r.content_type = res.content_type ? strdup(res.content_type) : NULL;
        for (size_t h = 0; h < res.n_headers; h++) {
            if (strcmp(res.headers[h].name, "Location") == 0)
                r.location = strdup(res.headers[h].value);
            if (strcmp(res.headers[h].name, "Allow") == 0)
                r.allow = strdup(res.headers[h].value);
        }
        r.fd = res.fd;
        r.fd_size = res.fd_size;
        r.source = res.source;
        r.n = res.body.len;
        r.body = res.body.len ? buf_detach(&res.body, &r.n) : strdup("");
        buf_clear(&res.body);
        break;
    }
    if (req.context_free)
        req.context_free(req.context);
    arena_clear(&req.arena);
    return r;
}

__attribute__((format(printf, 3, 4))) static struct reply post(struct server *s, const char *path,
                                                               const char *fmt, ...)
{
    char body[65536];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(body, sizeof(body), fmt, ap);
    va_end(ap);
    struct ask a = { .method = "POST", .path = path, .body = body };
    return send_ask(s, &a);
}

static struct reply send_get(struct server *s, const char *path)
{
    struct ask a = { .method = "GET", .path = path };
    return send_ask(s, &a);
}

/* The text of a string member at any depth, copied; "" when it is not there. */
static const char *find_member(const struct reply *r, const char *name)
{
    static char out[8][512];
    static int turn;
    char *to = out[turn++ % 8], key[64];
    snprintf(key, sizeof(key), "\"%s\":\"", name);
    const char *p = r->body ? strstr(r->body, key) : NULL;
    *to = 0;
    if (p) {
        p += strlen(key);
        snprintf(to, 512, "%.*s", (int)strcspn(p, "\""), p);
    }
    return to;
}

#define CHECK_STATUS(reply, want)                                                     \
    do {                                                                              \
        if ((reply).status != (want))                                                 \
            TAP_FAIL("status %d, want %d: %s", (reply).status, (want), (reply).body); \
    } while (0)

static void make_session(struct server *s, char out[64])
{
    struct reply r = post(s, "/api/v1/create_session",
                          "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}");
    CHECK_STATUS(r, 200);
    snprintf(out, 64, "%s", find_member(&r, "session_id"));
    reply_clear(&r);
}

/* Submit and wait; the result's reply. */
static struct reply result_of(struct server *s, struct reply submitted)
{
    CHECK_STATUS(submitted, 200);
    struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}",
                          find_member(&submitted, "request_id"));
    reply_clear(&submitted);
    return r;
}

static void make_model(struct server *s, const char *session, int n, char out[96])
{
    struct reply r = result_of(
        s, post(s, "/api/v1/create_model",
                "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":\"test/model\","
                "\"lora_config\":{\"rank\":8}}",
                session, n));
    CHECK_STATUS(r, 200);
    snprintf(out, 96, "%s", find_member(&r, "model_id"));
    reply_clear(&r);
}

/* With a session and a model. */
static struct server *start_model(void (*change)(struct server_options *), char session[64],
                                  char model[96])
{
    struct server *s = start_fresh(change);
    if (s) {
        make_session(s, session);
        make_model(s, session, 0, model);
    }
    return s;
}

/* Directories of weights. */
static size_t weights_on_disk(void)
{
    char path[400];
    size_t n = 0;
    snprintf(path, sizeof(path), "%s/checkpoints", test_data);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

#define DATUM(tokens)                                                                      \
    "{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[" tokens "]}]}," \
    "\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[" tokens "],\"dtype\":\"int64\"}}}"

static struct reply forward_backward(struct server *s, const char *model, int seq)
{
    return post(s, "/api/v1/forward_backward",
                "{\"model_id\":\"%s\",\"seq_id\":%d,\"forward_backward_input\":{\"data\":[" DATUM(
                    "5,6,7") "],\"loss_fn\":\"cross_entropy\"}}",
                model, seq);
}

/* A pass over n datums is n slices of the fake engine. */
static struct reply long_pass(struct server *s, const char *model, int seq, int n)
{
    static char body[65536];
    int k = snprintf(body, sizeof(body),
                     "{\"model_id\":\"%s\",\"seq_id\":%d,\"forward_backward_input\":{\"loss_fn\":"
                     "\"cross_entropy\",\"data\":[",
                     model, seq);
    for (int i = 0; i < n; i++)
        k += snprintf(body + k, sizeof(body) - (size_t)k, "%s" DATUM("1"), i ? "," : "");
    snprintf(body + k, sizeof(body) - (size_t)k, "]}}");
    struct ask a = { .method = "POST", .path = "/api/v1/forward_backward", .body = body };
    return send_ask(s, &a);
}

static struct reply optim_step(struct server *s, const char *model, int seq, double lr)
{
    return post(s, "/api/v1/optim_step",
                "{\"model_id\":\"%s\",\"seq_id\":%d,\"adam_params\":{\"learning_rate\":%g}}", model,
                seq, lr);
}

/* The norm of the gradient that a step with learning rate 1 found. */
static double gradient_after(struct server *s, const char *model, int seq)
{
    struct reply r = result_of(s, optim_step(s, model, seq, 1));
    const char *p = strstr(r.body, "\"grad_norm:mean\":");
    double v = p ? strtod(p + 17, NULL) : -1;
    reply_clear(&r);
    return v;
}

static bool is_done(struct server *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    bool done = f && (f->state == FUTURE_DONE || f->state == FUTURE_FAILED);
    pthread_mutex_unlock(&s->lock);
    return done;
}

/* Without asking for it: a poll would mark it as delivered. */
static void wait_done(struct server *s, const char *id)
{
    for (int i = 0; i < 10000 && !is_done(s, id); i++)
        nap_ms(1);
}

#endif
