/* helper_main.c - the side of the helper: tinker_sampling_helper().
 *
 * One thread reads orders and hands out results; the callbacks of the library (log, queue states)
 * write frames of their own.  See helper.h. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <tinker/version.h>
#include <unistd.h>
#include "base/err.h"
#include "base/map.h"
#include "client/sampling/helper.h"
#include "client/session/service.h"
#include "wire/proto.h"

enum {
    SOCKET = STDIN_FILENO,
    LOOK_MS = 1000, /* whether the program still lives */
    ORDERS_PER_TURN = 16,
    CLOSE_MS = 500,    /* for telemetry at the end */
    CHUNK = 256 * 1024 /* of reading */
};

struct helped { /* a sampler of the program */
    struct helped *next;
    uint32_t number;
    tinker_service *service;
    tinker_sampler *sampler; /* NULL: err says why */
    tinker_error err;
};

struct order { /* a sample under way */
    uint64_t id;
    tinker_future *future;
};

struct helping {
    struct helped *targets;
    struct map orders; /* by id */
    tinker_queue *done;
    struct buf in;
};

/* ---- writing: any thread ------------------------------------------------------------------------ */

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

static void write_all(const void *p, size_t n)
{
    const char *at = p;
    while (n > 0) {
        ssize_t k = send(SOCKET, at, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return; /* the reader will see that the other side is gone */
        at += k;
        n -= (size_t)k;
    }
}

/* Whole frames: several threads tell at once. */
static void send_frame(struct helper_frame f, const struct buf *content)
{
    f.len = content->len;
    pthread_mutex_lock(&writing);
    write_all(&f, sizeof(f));
    write_all(content->data, content->len);
    pthread_mutex_unlock(&writing);
}

static void tell_text(struct helper_frame f, const char *text)
{
    const struct buf content = { .data = (char *)text, .len = strlen(text) };
    send_frame(f, &content);
}

static void on_line(tinker_log_level level, const char *line, void *state)
{
    const struct helped *t = state;
    tell_text(
        (struct helper_frame){ .id = (uint64_t)level, .target = t->number, .kind = HELPER_LINE },
        line);
}

static void on_helper_queue_state(const char *who, tinker_queue_state queue_state,
                                  const char *reason, void *state)
{
    const struct helped *t = state;
    (void)who;
    tell_text((struct helper_frame){ .id = (uint64_t)queue_state,
                                     .target = t->number,
                                     .kind = HELPER_STATE },
              reason);
}

static void tell_failure(uint64_t id, const struct helper_failure *failure, const char *request_id,
                         const char *body)
{
    struct buf content;
    buf_init(&content, SIZE_MAX / 4);
    buf_append(&content, failure, sizeof(*failure));
    buf_append(&content, request_id, strlen(request_id) + 1);
    if (body)
        buf_puts(&content, body);
    send_frame((struct helper_frame){ .id = id, .kind = HELPER_FAILURE }, &content);
    buf_clear(&content);
}

static void tell_error(uint64_t id, const tinker_error *err)
{
    const struct helper_failure failure = { .err = *err, .retry_after_ms = -1 };
    tell_failure(id, &failure, "", NULL);
}

/* ---- samplers ------------------------------------------------------------------------------------ */

/* A service and a sampler as the other process has them. What the text does not hold comes from
 * the settings before it. */
static bool open_sampler(struct helped *t, const char *content, size_t n)
{
    size_t settings = helper_text_length(content, n);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.base_url = "http://localhost"; /* both are in the text of the sampler */
    o.api_key = "tml-of-the-sampler";
    o.observation.log = on_line;
    o.observation.log_state = t;
    o.limits.close_ms = CLOSE_MS;
    o.observation.metrics = -1;
    o.subprocess_sampling = -1; /* no helper has a helper */
    if (settings == n) {
        err_set(&t->err, TINKER_EPROTOCOL, "no sampler was told");
        return false;
    }
    char *text = strndup(content + settings + 1, n - settings - 1);
    t->service = text ? tinker_service_new(&o, &t->err) : NULL;
    if (!text)
        err_nomem(&t->err, "sampler");
    if (t->service &&
        helper_options_read(&t->service->cfg, content, settings, &t->err) == TINKER_OK) {
        tinker_service_observe(t->service, on_helper_queue_state, 0, t);
        t->sampler = tinker_service_import_sampler(t->service, text, &t->err);
    }
    free(text);
    return t->sampler != NULL;
}

/* A target that could not be opened stays, with the reason: each of its samples is answered with
 * it. */
static void add_target(struct helping *h, uint32_t number, const char *content, size_t n)
{
    struct helped *t = calloc(1, sizeof(*t));
    if (!t)
        return; /* its samples will name the number */
    t->number = number;
    if (!open_sampler(t, content, n))
        err_prefix(&t->err, "sampling helper");
    t->next = h->targets;
    h->targets = t;
}

static void remove_target(struct helping *h, uint32_t number)
{
    for (struct helped **at = &h->targets; *at; at = &(*at)->next) {
        struct helped *t = *at;
        if (t->number != number)
            continue;
        *at = t->next;
        tinker_sampler_free(t->sampler);
        tinker_service_free(t->service);
        free(t);
        return;
    }
}

/* ---- samples --------------------------------------------------------------------------------------- */

/* The request was encoded and checked over there; here it is only sent. */
static tinker_future *submit_order(const struct helped *t, const char *content, size_t n,
                                   tinker_error *err)
{
    struct sample_order order;
    struct buf body;
    if (n < sizeof(order)) {
        err_set(err, TINKER_EPROTOCOL, "an order without an end");
        return NULL;
    }
    memcpy(&order, content, sizeof(order));
    buf_init(&body, SIZE_MAX / 4);
    buf_append(&body, content + sizeof(order), n - sizeof(order));
    if (buf_ok(&body))
        return sample_submit(t->sampler, &order, &body, err);
    buf_clear(&body);
    err_nomem(err, "sample");
    return NULL;
}

/* Submit a sample and remember it by its id, or answer why not. */
static void add_order(struct helping *h, const struct helper_frame *f, const char *content)
{
    struct helped *t = h->targets;
    while (t && t->number != f->target)
        t = t->next;
    tinker_error err;
    if (!t || !t->sampler) {
        if (!t)
            err_set(&err, TINKER_EINVAL, "the sampling helper has no target %u", f->target);
        tell_error(f->id, t ? &t->err : &err);
        return;
    }
    struct order *o = calloc(1, sizeof(*o));
    tinker_future *future = o ? submit_order(t, content, (size_t)f->len, &err) : NULL;
    if (!o)
        err_nomem(&err, "sample");
    if (future) {
        *o = (struct order){ f->id, future };
        if (map_put(&h->orders, (const char *)&o->id, sizeof(o->id), o, NULL)) {
            if (tinker_queue_add(h->done, future, o, &err) == TINKER_OK)
                return;
            map_remove(&h->orders, (const char *)&o->id, sizeof(o->id));
        } else
            err_nomem(&err, "sample");
    }
    if (future)
        tinker_future_cancel(future);
    tinker_future_free(future);
    free(o);
    tell_error(f->id, &err);
}

/* A sample is complete: its result or its failure goes back. */
static void finish_order(struct helping *h, struct order *o)
{
    tinker_future *f = o->future;
    struct helper_failure failure = { .retry_after_ms = -1 };
    struct buf content;
    buf_init(&content, SIZE_MAX / 4);
    if (tinker_future_wait(f, 0, &failure.err) == TINKER_OK) {
        const char *id = tinker_future_request_id(f);
        buf_append(&content, id, strlen(id) + 1);
        if (wire_encode_sample_response(tinker_future_sample(f), &content, &failure.err) ==
            TINKER_OK)
            send_frame((struct helper_frame){ .id = o->id, .kind = HELPER_RESULT }, &content);
        else
            tell_error(o->id, &failure.err);
    } else {
        const char *body = tinker_future_error_body(f);
        failure.retry_after_ms = tinker_future_retry_after_ms(f);
        failure.has_body = body != NULL;
        tell_failure(o->id, &failure, tinker_future_request_id(f), body);
    }
    buf_clear(&content);
    map_remove(&h->orders, (const char *)&o->id, sizeof(o->id));
    tinker_future_free(f);
    free(o);
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

/* One frame; false: it makes no sense, and the helper ends. */
static bool handle_frame(struct helping *h, const struct helper_frame *f, const char *content)
{
    struct order *o;
    switch (f->kind) {
    case HELPER_REGISTER:
        add_target(h, f->target, content, (size_t)f->len);
        return true;
    case HELPER_UNREGISTER:
        remove_target(h, f->target);
        return true;
    case HELPER_SAMPLE:
        add_order(h, f, content);
        return true;
    case HELPER_CANCEL:
        o = map_get(&h->orders, (const char *)&f->id, sizeof(f->id));
        if (o)
            tinker_future_cancel(o->future);
        return true;
    default:
        return false;
    }
}

/* false: the program is gone. */
static bool receive_orders(struct helping *h)
{
    if (!buf_reserve(&h->in, CHUNK))
        return false;
    ssize_t n = recv(SOCKET, h->in.data + h->in.len, CHUNK, MSG_DONTWAIT);
    if (n > 0) {
        h->in.len += (size_t)n;
        h->in.data[h->in.len] = '\0';
    }
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Some of the orders that have come, so that results are not held up by a flood of them; false:
 * they make no sense. *more: others wait. */
static bool take_orders(struct helping *h, bool *more)
{
    struct helper_frame f;
    const char *content;
    size_t at = 0;
    bool broken = false, ok = true;
    int n = 0;
    while (ok && n < ORDERS_PER_TURN &&
           (content = helper_frame_next(&h->in, &at, &f, &broken)) != NULL) {
        ok = handle_frame(h, &f, content);
        n++;
    }
    helper_frame_drop(&h->in, at);
    *more = n == ORDERS_PER_TURN;
    return ok && !broken;
}

/* Orders in, results out, until the program is gone: its socket has ended, or this process has
 * another parent. */
static void serve_parent(struct helping *h)
{
    pid_t program = getppid();
    bool more = false;
    void *tag;
    for (;;) {
        struct pollfd fds[] = { { .fd = SOCKET, .events = POLLIN },
                                { .fd = tinker_queue_fd(h->done), .events = POLLIN } };
        poll(fds, 2, more ? 0 : LOOK_MS);
        if (getppid() != program || (fds[0].revents && !receive_orders(h)) ||
            !take_orders(h, &more))
            return;
        while (tinker_queue_next(h->done, 0, &tag) != NULL)
            finish_order(h, tag);
    }
}

int tinker_sampling_helper(void)
{
    struct stat st;
    struct helping h = { 0 };
    if (fstat(SOCKET, &st) != 0 || !S_ISSOCK(st.st_mode))
        return 2;
    h.done = tinker_queue_new(NULL);
    if (!h.done)
        return 1;
    map_init(&h.orders);
    buf_init(&h.in, SIZE_MAX / 4);
    tell_text((struct helper_frame){ .kind = HELPER_HELLO }, tinker_version());
    serve_parent(&h);
    const char *key;
    size_t it = 0, n;
    void *value;
    while (map_next(&h.orders, &it, &key, &n, &value)) {
        struct order *o = value;
        map_remove(&h.orders, key, n);
        tinker_future_cancel(o->future);
        tinker_future_free(o->future);
        free(o);
        it = 0;
    }
    while (h.targets)
        remove_target(&h, h.targets->number);
    tinker_queue_free(h.done);
    map_clear(&h.orders);
    buf_clear(&h.in);
    return 0;
}
