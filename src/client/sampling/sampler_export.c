/* sampler_export.c - one sampler in several processes.
 *
 * The text that travels holds the ids, the address, the credential and the settings the
 * service gave, so that the other process needs no request and no environment.  There, a
 * second session object stands for the first: it sends the same heartbeats, and it can sample but
 * not create anything.  Its samples are numbered far away from those of the others. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/array.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/rand.h"
#include "client/sampling/sample_retry.h"
#include "client/sampling/sample_limits.h"
#include "client/call/call_options.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "client/session/startup.h"
#include "json/json.h"
#include "wire/wire.h"

struct imported_session { /* one per session and address in a service */
    struct imported_session *next;
    struct session *session;
    struct config cfg; /* shares all strings with the service's but those in `arena` */
    struct arena arena;
};

/* What travels. Texts are borrowed from the arena of whoever reads it. */
struct exported_sampler {
    const char *base_url, *url_auth, *api_key, *session_id, *sampler_id, *jwt;
    struct json_str config;
    bool records_stability;
    bool own_key; /* it holds none: the reader uses the one of its service */
};

/* ---- export ------------------------------------------------------------------------------- */

struct export_job {
    tinker_sampler *sampler;
    bool handle; /* in the form of the official SDK */
    struct buf out;
    tinker_error err;
    tinker_status status;
};

/* A member that is left out when there is nothing to say. */
static void put_optional(struct json_writer *w, const char *key, const char *value)
{
    if (!value)
        return;
    json_put_key(w, key);
    json_put_string(w, value);
}

/* Loop thread: the session and its token belong to it. */
tinker_status sampler_export_write(const tinker_sampler *s, struct buf *out, tinker_error *err)
{
    struct session *h = s->session;
    struct json_writer w;
    struct buf config;
    buf_init(&config, 1 << 16);
    tinker_status status = wire_encode_json(&wire_client_config_response, &h->server, &config, err);
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    json_put_key(&w, "tinker_sampler");
    json_put_int64(&w, 1);
    put_optional(&w, "base_url", h->cfg->base_url);
    put_optional(&w, "authorization", h->cfg->url_auth);
    put_optional(&w, "api_key", h->cfg->api_key);
    put_optional(&w, "session_id", h->session_id);
    put_optional(&w, "sampler_id", s->id);
    put_optional(&w, "jwt", auth_jwt(h->auth));
    if (atomic_load(&s->base->records_stability)) {
        json_put_key(&w, "record_stability_info");
        json_put_bool(&w, true);
    }
    if (status == TINKER_OK) {
        json_put_key(&w, "config");
        json_put_raw(&w, config.data, config.len);
    }
    json_put_end_object(&w);
    buf_clear(&config);
    return status;
}

/* The form of the official SDK: its reader wants exactly these keys, but ignores what it does not
 * know inside the two configurations. */
static tinker_status write_handle(const tinker_sampler *s, struct buf *out, tinker_error *err)
{
    struct session *h = s->session;
    struct json_writer w;
    struct buf config, json;
    size_t n = strlen(h->cfg->base_url);
    buf_init(&config, 1 << 16);
    buf_init(&json, 1 << 18);
    tinker_status status = wire_encode_json(&wire_client_config_response, &h->server, &config, err);
    json_writer_init(&w, &json);
    json_put_begin_object(&w);
    json_put_key(&w, "session_id");
    json_put_string(&w, h->session_id ? h->session_id : "");
    json_put_key(&w, "sampling_session_id");
    json_put_string(&w, s->id);
    json_put_key(&w, "holder");
    json_put_begin_object(&w);
    json_put_key(&w, "base_url"); /* without the slash that ours ends with */
    json_put_string_n(&w, h->cfg->base_url, n && h->cfg->base_url[n - 1] == '/' ? n - 1 : n);
    json_put_key(&w, "default_headers_overrides");
    json_put_raw(&w, "{}", 2);
    json_put_key(&w, "client_config");
    if (status == TINKER_OK)
        json_put_raw(&w, config.data, config.len);
    json_put_key(&w, "client_dynamic_config");
    json_put_begin_object(&w);
    json_put_key(&w, "sample_cancel_enabled");
    json_put_bool(&w, h->cancels);
    json_put_end_object(&w);
    json_put_key(&w, "api_key");
    json_put_null(&w);
    json_put_end_object(&w);
    json_put_key(&w, "record_stability_info");
    json_put_bool(&w, atomic_load(&s->base->records_stability) != 0);
    json_put_end_object(&w);
    base64url_encode(out, json.data ? json.data : "", json.len);
    for (size_t i = json.len % 3; i && i < 3; i++) /* Python wants the padding */
        buf_putc(out, '=');
    if (status == TINKER_OK && !buf_ok(&json))
        status = err_nomem(err, "sampler");
    buf_clear(&config);
    buf_clear(&json);
    return status;
}

static void export_on_loop(void *arg)
{
    struct export_job *j = arg;
    j->status = j->handle ? write_handle(j->sampler, &j->out, &j->err)
                          : sampler_export_write(j->sampler, &j->out, &j->err);
}

/* The loop must run in this process, and not be the caller. */
static bool may_sync_with_loop(const struct runtime *rt, const char *what, tinker_error *err)
{
    if (runtime_may_block(what, err) != TINKER_OK)
        return false;
    if (rt->pid == getpid())
        return true;
    err_set(err, TINKER_ESTATE, "%s: the service was made before fork()", what);
    return false;
}

static tinker_status export_sampler(const char *what, tinker_sampler *s, bool handle,
                                    tinker_text *out, tinker_error *err)
{
    struct export_job j = { .sampler = s, .handle = handle };
    if (!may_sync_with_loop(s->session->rt, what, err))
        return TINKER_ESTATE;
    buf_init(&j.out, 1 << 20);
    runtime_sync(s->session->rt, export_on_loop, &j);
    if (j.status == TINKER_OK)
        j.status = buf_ok(&j.out) ? tinker_text_append(out, j.out.data, j.out.len, err)
                                  : err_nomem(err, "sampler");
    else if (err)
        *err = j.err;
    buf_clear(&j.out);
    return j.status;
}

tinker_status tinker_sampler_export(tinker_sampler *s, tinker_text *out, tinker_error *err)
{
    return export_sampler("tinker_sampler_export", s, false, out, err);
}

tinker_status tinker_sampler_export_handle(tinker_sampler *s, tinker_text *out, tinker_error *err)
{
    return export_sampler("tinker_sampler_export_handle", s, true, out, err);
}

/* ---- import ------------------------------------------------------------------------------- */

static bool read_exported_member(struct json_reader *r, struct json_str key,
                                 struct exported_sampler *p)
{
    const struct {
        const char *name, **out;
    } texts[] = { { "base_url", &p->base_url },     { "authorization", &p->url_auth },
                  { "api_key", &p->api_key },       { "session_id", &p->session_id },
                  { "sampler_id", &p->sampler_id }, { "jwt", &p->jwt } };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        char *text;
        if (!json_str_is(key, texts[i].name))
            continue;
        if (!json_cstring(r, &text))
            return false;
        *texts[i].out = text;
        return true;
    }
    if (json_str_is(key, "config"))
        return json_raw(r, &p->config);
    if (json_str_is(key, "record_stability_info"))
        return json_bool(r, &p->records_stability);
    return json_skip(r);
}

/* The member "holder" of a handle: where the service is and how it wants to be used. */
static bool read_holder(struct json_reader *r, struct arena *a, struct exported_sampler *p)
{
    struct json_str key;
    char *text;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        if (json_str_is(key, "base_url") && json_cstring(r, &text)) {
            size_t n = strlen(text);
            p->base_url = arena_printf(a, "%s%s", text, n && text[n - 1] == '/' ? "" : "/");
        } else if (json_str_is(key, "client_config"))
            ok = json_raw(r, &p->config);
        else if (json_str_is(key, "api_key") && json_peek(r) == JSON_STRING) {
            ok = json_cstring(r, &text);
            p->api_key = text;
        } else
            ok = json_skip(r);
    }
    return ok;
}

/* A handle of the official SDK; false: it is none. */
static bool read_handle(const char *text, struct arena *a, struct exported_sampler *p)
{
    struct json_reader r;
    struct json_str key;
    struct buf json;
    buf_init(&json, 1 << 20);
    char *copy = base64url_decode(&json, text, strlen(text)) && json.len
                     ? arena_strndup(a, json.data, json.len)
                     : NULL;
    size_t n = json.len;
    buf_clear(&json);
    if (!copy)
        return false;
    json_reader_init(&r, copy, n, a);
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key)) {
        char *member;
        if (json_str_is(key, "holder"))
            ok = read_holder(&r, a, p);
        else if (json_str_is(key, "session_id") && (ok = json_cstring(&r, &member)))
            p->session_id = member;
        else if (json_str_is(key, "sampling_session_id") && (ok = json_cstring(&r, &member)))
            p->sampler_id = member;
        else if (json_str_is(key, "record_stability_info"))
            ok = json_bool(&r, &p->records_stability);
        else
            ok = ok && json_skip(&r);
    }
    p->own_key = !p->api_key;
    return json_end(&r);
}

/* Unknown members are skipped: a newer version may have written the text. */
static tinker_status read_exported(const char *text, struct arena *a, struct exported_sampler *p,
                                   tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    memset(p, 0, sizeof(*p));
    json_reader_init(&r, text ? text : "", text ? strlen(text) : 0, a);
    bool ok;
    if (text && *text != '{') {
        ok = read_handle(text, a, p);
    } else {
        ok = json_begin_object(&r);
        while (ok && json_next_key(&r, &key))
            ok = read_exported_member(&r, key, p);
        ok = json_end(&r);
    }
    if (!ok || !p->base_url || !p->session_id || !p->sampler_id || !p->config.s ||
        !(p->api_key || p->jwt || p->own_key))
        return err_set(err, TINKER_EINVAL, "this is not the text of an exported sampler");
    return TINKER_OK;
}

struct import_job {
    tinker_service *service;
    const struct exported_sampler *exported;
    struct imported_session *imported;
    tinker_error err;
    tinker_status status;
};

/* Make the session object look as if it had opened the session itself: server settings, limits,
 * token. Then it starts heartbeats. */
static tinker_status fill_session(struct imported_session *s, const struct exported_sampler *p,
                                  tinker_error *err)
{
    struct session *h = s->session;
    tinker_status status = wire_decode_json(&wire_client_config_response, p->config.s, p->config.n,
                                            WIRE_LENIENT, &h->arena, &h->server, err);
    if (status != TINKER_OK)
        return status;
    budget_init_bytes(&h->response_bytes, h->server.inflight_response_bytes_semaphore_size);
    budget_init_bytes(&h->train_bytes, h->server.fwdbwd_dispatch_bytes_semaphore_size);
    h->limits = sample_limits_ref(h->cfg->base_url, h->cfg->api_key, h->cfg->isolate_limits,
                                  h->server.sample_dispatch_bytes_semaphore_size);
    h->session_id = arena_strdup(&h->arena, p->session_id);
    if (!h->limits || !h->session_id)
        return err_nomem(err, "session");
    if (h->server.pjwt_auth_enabled)
        auth_seed(h->auth, p->jwt);
    return startup_adopt(h->startup, err);
}

static void import_on_loop(void *arg)
{
    struct import_job *j = arg;
    j->status = fill_session(j->imported, j->exported, &j->err);
    if (j->status == TINKER_OK)
        j->imported->session->state = SESSION_READY;
}

static void ignore_closed(void *arg)
{
    (void)arg;
}

static void discard_on_loop(void *arg)
{
    session_close(arg, ignore_closed, NULL);
}

/* The headers of the service, and with them the user and password of the other address. The
 * other's replaces ours. */
static bool take_authorization(struct imported_session *s, const char *value)
{
    const tinker_named_string header = { "Authorization", value };
    if (!value)
        return true;
    size_t n = s->cfg.n_default_headers;
    struct http_header *v = arena_array(&s->arena, n + 1, sizeof(*v));
    char *copy = arena_strdup(&s->arena, value);
    if (!v || !copy || call_options_check_header(&header, NULL) != TINKER_OK)
        return false;
    log_secret(copy);
    v[0] = (struct http_header){ "Authorization", copy, true };
    size_t at = 1;
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(s->cfg.default_headers[i].name, "Authorization") != 0)
            v[at++] = s->cfg.default_headers[i];
    s->cfg.url_auth = copy;
    s->cfg.default_headers = v;
    s->cfg.n_default_headers = at;
    return true;
}

static struct imported_session *
imported_session_new(tinker_service *service, const struct exported_sampler *p, tinker_error *err)
{
    struct imported_session *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "session");
        return NULL;
    }
    arena_init(&s->arena, SIZE_MAX);
    s->cfg = service->cfg;
    s->cfg.base_url = arena_strdup(&s->arena, p->base_url);
    if (!p->own_key) {
        s->cfg.api_key = p->api_key ? arena_strdup(&s->arena, p->api_key) : NULL;
        log_secret(s->cfg.api_key);
    }
    struct import_job j = { .service = service, .exported = p, .imported = s };
    bool usable = take_authorization(s, p->url_auth);
    if (s->arena.failed)
        err_nomem(err, "session");
    else if (!usable)
        err_set(err, TINKER_EINVAL, "the address of an exported sampler cannot be used");
    else
        s->session = session_new(service->rt, &s->cfg, true, err);
    if (s->session) {
        s->session->observer = &service->observer;
        s->session->hooks = &service->hooks;
        runtime_sync(service->rt, import_on_loop, &j);
        if (j.status == TINKER_OK)
            return s;
        runtime_sync(service->rt, discard_on_loop, s->session);
        runtime_sync(service->rt, ignore_closed, NULL); /* after it was freed */
        if (err)
            *err = j.err;
    }
    arena_clear(&s->arena);
    free(s);
    return NULL;
}

/* The one of this session, made if there is none.  Not under the service's lock: making one waits
 * for the I/O thread, which may be about to take that lock. */
static struct imported_session *import_session(tinker_service *service,
                                               const struct exported_sampler *p, tinker_error *err)
{
    pthread_mutex_lock(&service->importing);
    pthread_mutex_lock(&service->lock);
    struct imported_session *s = service->imported_sessions;
    while (s && (strcmp(s->session->session_id, p->session_id) != 0 ||
                 strcmp(s->cfg.base_url, p->base_url) != 0))
        s = s->next;
    pthread_mutex_unlock(&service->lock);
    if (!s) {
        s = imported_session_new(service, p, err);
        pthread_mutex_lock(&service->lock);
        if (s) {
            s->next = service->imported_sessions;
            service->imported_sessions = s;
        }
        pthread_mutex_unlock(&service->lock);
    }
    pthread_mutex_unlock(&service->importing);
    return s;
}

tinker_sampler *tinker_service_import_sampler(tinker_service *service, const char *text,
                                              tinker_error *err)
{
    struct arena scratch;
    struct exported_sampler p;
    tinker_sampler *made = NULL;
    if (!may_sync_with_loop(service->base->rt, "tinker_service_import_sampler", err))
        return NULL;
    arena_init(&scratch, 16 << 20);
    if (read_exported(text, &scratch, &p, err) == TINKER_OK) {
        struct imported_session *s = import_session(service->base, &p, err);
        made = s ? sampling_client_new(s->session, p.sampler_id, service->options, err) : NULL;
    }
    if (made) {
        uint64_t r;
        if (rand_os(&r, sizeof(r)) != 0)
            r = 0;
        made->next_seq = INT64_C(1000000000) * (int64_t)(1 + r % 1000000000);
        atomic_store(&made->records_stability, p.records_stability);
    }
    arena_clear(&scratch);
    return made;
}

int sampler_export_count(const tinker_service *service)
{
    int n = 0;
    for (const struct imported_session *s = service->imported_sessions; s; s = s->next)
        n++;
    return n;
}

void sampler_export_close_all(tinker_service *service, void (*closed)(void *arg), void *arg)
{
    for (struct imported_session *s = service->imported_sessions; s; s = s->next)
        session_close(s->session, closed, arg);
}

void sampler_export_free_all(tinker_service *service)
{
    for (struct imported_session *s; (s = service->imported_sessions) != NULL;) {
        service->imported_sessions = s->next;
        arena_clear(&s->arena);
        free(s);
    }
}
