/* server_fixture.h - a whole server without its sockets, for the fuzz targets of its parsers.
 *
 * Requests go through the routes as the listener would hand them over; the engine is the
 * fake one of the unit tests.  One session, model and sampling session have fixed names,
 * so that mutated bodies can reach what lies behind them.  The server is made anew after
 * many inputs, which bounds memory. */
#ifndef FUZZ_SERVER_FIXTURE_H
#define FUZZ_SERVER_FIXTURE_H

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json/json.h"
#include "server/work/live_state.h"
#include "server/api/routes.h"
#include "server/server.h"
#include "server/work/stream.h"
#include "server/fake_engine.h"

enum { FUZZ_INPUTS = 4000 };
#define FUZZ_SESSION "00000000-0000-4000-8000-000000000000"
#define FUZZ_MODEL   FUZZ_SESSION ":train:0"

static struct server *fuzz_server;
static char fuzz_dir[64];
static unsigned fuzz_inputs;

static void fuzz_demand(bool condition)
{
    if (!condition)
        abort();
}

/* One exchange as it reaches the routes. */
struct fuzz_ask {
    const char *method, *path, *query, *content_type, *accept, *encoding;
    const char *body;
    size_t n_body;
};

/* The first value of a name in a=b&c=d, decoded no further: %XX never has a meaning here. */
static const char *fuzz_query(struct request *req, const char *name)
{
    static char value[256];
    const struct fuzz_ask *a = req->transport;
    size_t n = strlen(name);
    for (const char *p = a->query; p && *p; p += strcspn(p, "&"), p += *p == '&')
        if (strncmp(p, name, n) == 0 && p[n] == '=') {
            snprintf(value, sizeof(value), "%.*s", (int)strcspn(p + n + 1, "&"), p + n + 1);
            return value;
        }
    return NULL;
}

/* Whatever came in, what goes out is a sound answer. */
static void check_answer(const struct response *res)
{
    fuzz_demand(res->status >= 200 && res->status < 500);
    fuzz_demand(buf_ok(&res->body));
    if (!res->content_type || strcmp(res->content_type, "application/json") != 0)
        return;
    struct arena a;
    struct json_reader r;
    arena_init(&a, 64 << 20);
    json_reader_init(&r, res->body.data ? res->body.data : "", res->body.len, &a);
    json_skip(&r);
    fuzz_demand(json_end(&r));
    arena_clear(&a);
}

static bool fuzz_charge(struct request *req, size_t n)
{
    (void)req, (void)n;
    return true;
}

/* Hand it to the routes; a hold ends at once, as if its time were up. */
static int fuzz_send(const struct fuzz_ask *a)
{
    struct buf decoded;
    buf_init(&decoded, 256 << 20);
    struct request req = { .method = a->method,
                           .path = a->path,
                           .content_type = a->content_type,
                           .content_encoding = a->encoding,
                           .accept = a->accept,
                           .host = "127.0.0.1",
                           .body = a->body ? a->body : "",
                           .n_body = a->n_body,
                           .buffer = &decoded,
                           .charge = fuzz_charge,
                           .query = fuzz_query,
                           .transport = (void *)(uintptr_t)a };
    struct response res;
    arena_init(&req.arena, 256 << 20);
    response_init(&res);
    routes_place(fuzz_server, &req);
    routes_handle(fuzz_server, &req, &res);
    int status = res.status;
    if (res.stream) {
        stream_abandon(res.stream);
        stream_unref(res.stream);
    } else if (!res.wait) {
        check_answer(&res);
    } else {
        buf_clear(&res.body);
        response_init(&res);
        req.timed_out = req.again = true;
        req.body = "";
        req.n_body = 0;
        routes_handle(fuzz_server, &req, &res);
        if (!res.wait)
            check_answer(&res);
        status = res.status;
    }
    response_drop(&res);
    if (req.context_free)
        req.context_free(req.context);
    buf_clear(&decoded);
    arena_clear(&req.arena);
    return status;
}

static void fuzz_post(const char *path, const char *body)
{
    struct fuzz_ask a = { .method = "POST", .path = path, .body = body, .n_body = strlen(body) };
    fuzz_demand(fuzz_send(&a) == 200);
}

static void fuzz_close(void)
{
    server_close(fuzz_server);
    fuzz_server = NULL;
    if (fuzz_dir[0])
        os_remove_tree(fuzz_dir, NULL);
}

static void fuzz_names(void)
{
    struct store_session v = {
        .id = FUZZ_SESSION, .owner = "local", .created_us = 1, .seen_us = 1
    };
    fuzz_demand(store_add_session(fuzz_server->store, &v, NULL) == TINKER_OK);
    pthread_mutex_lock(&fuzz_server->lock);
    fuzz_demand(live_add_session_locked(fuzz_server, v.id, v.owner) != NULL);
    pthread_mutex_unlock(&fuzz_server->lock);
    fuzz_post("/api/v1/create_model",
              "{\"session_id\":\"" FUZZ_SESSION "\",\"model_seq_id\":0,\"base_model\":\"m\","
              "\"lora_config\":{\"rank\":4}}");
    fuzz_post("/api/v1/save_weights",
              "{\"model_id\":\"" FUZZ_MODEL "\",\"seq_id\":1,\"path\":\"w\"}");
    fuzz_post("/api/v1/create_sampling_session",
              "{\"session_id\":\"" FUZZ_SESSION "\",\"sampling_session_seq_id\":0,"
              "\"base_model\":\"m\"}");
    for (bool saved = false; !saved;) {
        struct timespec t = { 0, 1000000 };
        pthread_mutex_lock(&fuzz_server->lock);
        saved = live_find_future_locked(fuzz_server, FUZZ_MODEL ":1")->state == FUTURE_DONE;
        pthread_mutex_unlock(&fuzz_server->lock);
        nanosleep(&t, NULL);
    }
}

/* A server for the next input. */
static void fuzz_open(const char *model_dir)
{
    struct server_options o;
    static struct server_model model = { "m", NULL };
    static char data[80], path[80];
    static const struct log quiet = { NULL, NULL, LOG_OFF };
    tinker_error err = { 0 };
    if (fuzz_server && ++fuzz_inputs % FUZZ_INPUTS != 0)
        return;
    if (fuzz_server)
        fuzz_close();
    else
        atexit(fuzz_close);
    snprintf(fuzz_dir, sizeof(fuzz_dir), "%s/tinker-fuzz.XXXXXX",
             os_is_dir("/dev/shm") ? "/dev/shm" : "/tmp");
    fuzz_demand(mkdtemp(fuzz_dir) != NULL);
    snprintf(data, sizeof(data), "%s/data", fuzz_dir);
    snprintf(path, sizeof(path), "%s/s", fuzz_dir);
    model.dir = model_dir ? model_dir : fuzz_dir;
    server_options_init(&o);
    o.models = &model;
    o.n_models = 1;
    o.unix_path = path; /* nobody connects */
    o.data_dir = data;
    o.log = &quiet;
    o.max_decoded_body = 4 << 20;
    o.max_queued_bytes = 16 << 20;
    o.max_queued_samples = 64;
    fuzz_server = server_open(&o, &err);
    fuzz_demand(fuzz_server != NULL);
    fuzz_names();
}

#endif
