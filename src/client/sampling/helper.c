/* helper.c - the side of the program: starting the helper, handing it samples, outliving it.
 *
 * Invariants: an operation is in `pending` from its SAMPLE frame until its answer, its cancellation
 * or the end of the helper; a helper that ended stays, with the reason, until the last of its
 * targets is released.  Runs on the loop thread, except the submit, and waiting for the end of the
 * process, which a worker does: that may take seconds.  See helper.h. */
#include "client/sampling/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <tinker/version.h>
#include <unistd.h>
#include "base/array.h"
#include "base/err.h"
#include "base/map.h"
#include "client/call/call_options.h"
#include "client/future/result.h"
#include "client/session/service.h"

extern char **environ;

enum {
    STARTUP_MS = 30000,
    ENDING_MS = 200,   /* from the end of its socket to that of the process */
    KILLED_MS = 5000,  /* from SIGKILL to that */
    CHUNK = 256 * 1024 /* of reading */
};

/* Waiting for the end of a process, on a worker. */
struct reaping {
    struct runtime_job job;
    struct helper *helper; /* notified of its end; NULL: none */
    pid_t pid;
    bool kill; /* at once; else it is about to end by itself */
    int status;
};

/* The helper process as the loop thread sees it. `targets` counts the samplers that know it; the
 * last one frees it. */
struct helper {
    struct runtime *rt;
    pid_t owner, pid; /* of the process that started it, and its own */
    int fd, targets;
    char *program;
    bool greeted, ended;
    tinker_error why; /* ended; TINKER_OK: not known yet, because the process is being reaped */
    struct reaping *reaping; /* made with it, so that its end needs no memory */
    struct timer startup;
    struct buf in, out;
    size_t sent; /* of out */
    uint32_t next_target;
    uint64_t next_id;
    struct map pending; /* id to operation */
    struct helper_target *first;
};

/* One sampler that the helper has a copy of. */
struct helper_target {
    struct loop_task task;
    struct helper *helper;
    struct helper_target *next, *prev;
    tinker_sampler *sampler; /* which has this one; not counted */
    uint32_t number;
    uint64_t state, reason; /* the last that was told; of the reason a hash */
};

/* A sample that the helper makes. `sent`: it is in `pending` under its id. */
struct helper_op {
    struct operation op;
    tinker_sampler *sampler; /* a reference */
    struct sample_order order;
    struct buf body;
    uint64_t id;
    bool sent;
};

/* The one that new samplers get.  Loop thread; in a fork the parent's. */
static struct helper *current;

/* ---- frames --------------------------------------------------------------------------------- */

const char *helper_frame_next(const struct buf *b, size_t *at, struct helper_frame *out,
                              bool *broken)
{
    size_t left = b->len - *at;
    if (left < sizeof(*out))
        return NULL;
    memcpy(out, b->data + *at, sizeof(*out));
    *broken = out->len > HELPER_FRAME_MAX;
    if (*broken || left - sizeof(*out) < out->len)
        return NULL;
    const char *content = b->data + *at + sizeof(*out);
    *at += sizeof(*out) + (size_t)out->len;
    return content;
}

void helper_frame_drop(struct buf *b, size_t used)
{
    if (used == 0)
        return;
    memmove(b->data, b->data + used, b->len - used);
    b->len -= used;
}

size_t helper_text_length(const char *text, size_t n)
{
    const char *end = memchr(text, '\0', n);
    return end ? (size_t)(end - text) : n;
}

/* ---- the end of a helper ---------------------------------------------------------------------- */

/* Look once per millisecond; true: it has ended, with *status (-1: somebody else has asked for
 * it). waitpid() without WNOHANG has no deadline. */
static bool wait_for_exit(pid_t pid, int patience_ms, int *status)
{
    for (int i = 0; i <= patience_ms; i++) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got != 0) {
            *status = got == pid ? *status : -1;
            return true;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return false;
}

/* All samples under way fail with the reason. Each failure may run code that changes the map:
 * start over after each. */
static void fail_pending(struct helper *x)
{
    const char *key;
    size_t it = 0, n;
    void *value;
    while (map_next(&x->pending, &it, &key, &n, &value)) {
        struct helper_op *o = value;
        o->sent = false; /* nobody to cancel it with */
        map_remove(&x->pending, key, n);
        operation_fail(&o->op, &x->why);
        it = 0; /* the callback may have changed the rest */
    }
}

/* On a worker. A helper whose socket ended is about to exit by itself and gets some time; one
 * that was given up is killed. */
static void work_reap(struct runtime_job *j)
{
    struct reaping *r = (struct reaping *)j; /* first member */
    r->status = -1;
    if (r->kill || !wait_for_exit(r->pid, ENDING_MS, &r->status)) {
        kill(r->pid,
             SIGKILL); /* cannot be caught, so this ends soon, but for uninterruptible sleep */
        if (!wait_for_exit(r->pid, KILLED_MS, &r->status))
            r->status = -1;
    }
}

/* On the loop: now it is known how it ended, and its samples can be told. */
static void on_reaped(struct runtime_job *j)
{
    struct reaping *r = (struct reaping *)j;
    struct helper *x = r->helper;
    char how[64];
    if (r->status != -1 && WIFEXITED(r->status))
        snprintf(how, sizeof(how), "exit code %d", WEXITSTATUS(r->status));
    else if (r->status != -1 && WIFSIGNALED(r->status))
        snprintf(how, sizeof(how), "signal %d", WTERMSIG(r->status));
    else
        snprintf(how, sizeof(how), "exit code unknown");
    free(r);
    if (!x)
        return;
    x->reaping = NULL;
    if (!x->greeted)
        err_set(&x->why, TINKER_ESTATE,
                "%s is no sampling helper, it ended at once (%s); TINKER_SAMPLING_HELPER names "
                "another",
                x->program, how);
    else
        err_set(&x->why, TINKER_ESTATE,
                "the sampling helper died (%s); a new sampler starts another", how);
    fail_pending(x);
}

/* tell: x waits for it, and knows then why it has ended. The memory was allocated with the
 * helper, so that ending needs none. */
static void start_reaping(struct helper *x, bool tell)
{
    struct reaping *r = x->reaping;
    *r = (struct reaping){ .job = { .work = work_reap, .done = on_reaped },
                           .helper = tell ? x : NULL,
                           .pid = x->pid,
                           .kill = !tell };
    if (!tell)
        x->reaping = NULL;
    if (runtime_work(x->rt, &r->job))
        return;
    work_reap(&r->job); /* no worker, or no memory to ask one */
    on_reaped(&r->job);
}

static void close_socket(struct helper *x)
{
    if (x->fd < 0)
        return;
    loop_unwatch(x->rt->loop, x->fd);
    close(x->fd);
    x->fd = -1;
}

/* Give up on it: why is what to say, NULL: it has ended by itself. New samplers get a new one at
 * once. */
static void end_helper(struct helper *x, const char *why)
{
    if (x->ended)
        return;
    x->ended = true;
    loop_disarm(x->rt->loop, &x->startup);
    close_socket(x);
    if (current == x)
        current = NULL;
    start_reaping(x, !why);
    if (!why)
        return; /* until it is known how it has ended, its operations wait */
    err_set(&x->why, TINKER_ESTATE, "%s", why);
    fail_pending(x);
}

/* Its last sampler is gone: nobody waits for anything from it. */
static void helper_free(struct helper *x)
{
    if (current == x)
        current = NULL;
    if (!x->ended) {
        loop_disarm(x->rt->loop, &x->startup);
        close_socket(x);
        start_reaping(x, false);
    } else if (x->reaping)
        x->reaping->helper = NULL;
    buf_clear(&x->in);
    buf_clear(&x->out);
    map_clear(&x->pending);
    free(x->program);
    free(x);
}

/* ---- talking to it ------------------------------------------------------------------------------ */

static void on_ready(void *arg, int fd, unsigned events);

/* As much as the socket takes; the loop says when there is room for more. Errors are not looked
 * at: the socket ends then, which is read. */
static void flush_output(struct helper *x)
{
    while (x->fd >= 0 && x->sent < x->out.len) {
        ssize_t n =
            send(x->fd, x->out.data + x->sent, x->out.len - x->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            break;
        x->sent += (size_t)n;
    }
    bool all = x->sent == x->out.len;
    if (all) {
        buf_clear(&x->out); /* a large prompt does not stay */
        x->sent = 0;
    }
    if (x->fd >= 0)
        loop_watch(x->rt->loop, x->fd, all ? EPOLLIN : EPOLLIN | EPOLLOUT, on_ready, x);
}

/* A frame of two parts, whole or not at all: half a frame would break the stream for all others.
 * false: no memory. */
static bool put_frame(struct helper *x, struct helper_frame f, const void *a, size_t na,
                      const void *b, size_t nb)
{
    f.len = na + nb;
    if (f.len > HELPER_FRAME_MAX || !buf_reserve(&x->out, sizeof(f) + (size_t)f.len)) {
        x->out.failed = false; /* what it holds is whole */
        return false;
    }
    buf_append(&x->out, &f, sizeof(f));
    buf_append(&x->out, a, na);
    buf_append(&x->out, b, nb);
    flush_output(x);
    return true;
}

static struct helper_op *take_pending(struct helper *x, uint64_t id)
{
    struct helper_op *o = map_remove(&x->pending, (const char *)&id, sizeof(id));
    if (o)
        o->sent = false;
    return o; /* NULL: canceled meanwhile */
}

/* The request id, NUL, then the sample in protobuf, read by the same code as an answer of the
 * service. */
static void on_result(struct helper *x, const struct helper_frame *f, const char *content)
{
    struct helper_op *o = take_pending(x, f->id);
    tinker_error err;
    if (!o)
        return;
    size_t id = helper_text_length(content, (size_t)f->len), skip = id < f->len ? id + 1 : id;
    struct tinker_future *future = o->op.future;
    if (id > 0 && id < f->len)
        future_set_request(future, content, result_sample.poll.request_type);
    if (result_sample.read(future, content + skip, (size_t)f->len - skip, true, &err) == TINKER_OK)
        operation_succeed(&o->op);
    else
        operation_fail(&o->op, &err);
}

/* An error with what the user may ask of a failed future: request id, body, retry-after. */
static void on_failure(struct helper *x, const struct helper_frame *f, const char *content)
{
    struct helper_op *o = take_pending(x, f->id);
    struct helper_failure failure;
    if (!o)
        return;
    if (f->len < sizeof(failure)) {
        tinker_error err;
        err_set(&err, TINKER_EPROTOCOL, "the sampling helper told no reason");
        operation_fail(&o->op, &err);
        return;
    }
    memcpy(&failure, content, sizeof(failure));
    const char *text = content + sizeof(failure);
    size_t n = (size_t)f->len - sizeof(failure), id = helper_text_length(text, n);
    struct tinker_future *future = o->op.future;
    if (id > 0 && id < n)
        future_set_request(future, text, result_sample.poll.request_type);
    if (failure.has_body && id < n)
        future->error_body = strndup(text + id + 1, n - id - 1);
    future->retry_after_ms = failure.retry_after_ms;
    o->op.told = true; /* it was named and reported there */
    operation_fail(&o->op, &failure.err);
}

static void on_news(struct helper *x, const struct helper_frame *f, const char *content)
{
    struct helper_target *t = x->first;
    while (t && t->number != f->target)
        t = t->next;
    char *text = t ? strndup(content, (size_t)f->len) : NULL;
    if (text && f->kind == HELPER_LINE)
        log_line(&t->sampler->session->log, (enum log_level)f->id, "%s", text);
    else if (text) {
        /* Queue states are told only when they change; the hash stands for the reason. */
        tinker_sampler *s = t->sampler;
        uint64_t hash = hash_fnv1a(text, strlen(text));
        bool changed = t->state != f->id || t->reason != hash;
        t->state = f->id;
        t->reason = hash;
        queue_state_report(&s->base->watch, s->session, QUEUE_STATE_SAMPLING, s->id,
                           (enum wire_queue_state)f->id, text, changed);
    }
    free(text);
}

/* Frames are structs of the machine: a helper of another version would read them wrong, so it is
 * given up. */
static void on_hello(struct helper *x, const struct helper_frame *f, const char *content)
{
    char why[256];
    loop_disarm(x->rt->loop, &x->startup);
    x->greeted = true;
    if (f->len == strlen(tinker_version()) && memcmp(content, tinker_version(), f->len) == 0)
        return;
    snprintf(why, sizeof(why), "the sampling helper is of version %.*s, this library of %s",
             (int)(f->len < 32 ? f->len : 32), content, tinker_version());
    end_helper(x, why);
}

/* The socket can be read or written. A frame may end the helper, so that is asked before each. */
static void on_ready(void *arg, int fd, unsigned events)
{
    struct helper *x = arg;
    (void)fd;
    if (events & EPOLLOUT)
        flush_output(x);
    if (!(events & ~(unsigned)EPOLLOUT))
        return;
    bool open = true, broken = false;
    if (buf_reserve(&x->in, CHUNK)) {
        ssize_t n = recv(x->fd, x->in.data + x->in.len, CHUNK, MSG_DONTWAIT);
        if (n > 0) {
            x->in.len += (size_t)n;
            x->in.data[x->in.len] = '\0';
        }
        open = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    } else {
        x->in.failed = false; /* no memory now: the rest stays in the socket */
    }
    struct helper_frame f;
    const char *content;
    size_t at = 0;
    while (!x->ended && (content = helper_frame_next(&x->in, &at, &f, &broken)) != NULL)
        switch (f.kind) {
        case HELPER_HELLO:
            on_hello(x, &f, content);
            break;
        case HELPER_RESULT:
            on_result(x, &f, content);
            break;
        case HELPER_FAILURE:
            on_failure(x, &f, content);
            break;
        case HELPER_STATE:
        case HELPER_LINE:
            on_news(x, &f, content);
            break;
        default:
            end_helper(x, "the sampling helper sent an unknown message");
        }
    helper_frame_drop(&x->in, at);
    if (broken)
        end_helper(x, "the sampling helper sent a malformed message");
    else if (!open)
        end_helper(x, NULL);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static void on_startup(struct timer *t)
{
    char why[256];
    struct helper *x = container_of(t, struct helper, startup);
    snprintf(why, sizeof(why), "the sampling helper %.128s did not answer within %d s", x->program,
             STARTUP_MS / 1000);
    end_helper(x, why);
}

/* The program with the socket as its standard input, in a process group of its own, so that what
 * a terminal sends to this program (Ctrl-C) does not end it; 0 or an errno. */
static int spawn_helper(const char *program, int fd, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attr, &none); /* this thread blocks all */
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    char command[] = "sampling-helper";
    char *argv[] = { (char *)program, command, NULL };
    int rc = posix_spawnp(pid, program, &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return rc;
}

/* Start a helper and wait for its HELLO, at most STARTUP_MS; samples may be sent before it comes.
 */
static struct helper *helper_new(struct runtime *rt, const char *program, tinker_error *err)
{
    struct helper *x = calloc(1, sizeof(*x));
    struct reaping *reaping = calloc(1, sizeof(*reaping));
    char *copy = strdup(program);
    int pair[2];
    if (!x || !reaping || !copy) {
        free(x);
        free(reaping);
        free(copy);
        err_nomem(err, "sampling helper");
        return NULL;
    }
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 ? 0 : errno;
    if (rc == 0) {
        rc = spawn_helper(program, pair[1], &x->pid);
        close(pair[1]);
        if (rc != 0)
            close(pair[0]);
    }
    if (rc != 0) {
        err_set(err, TINKER_ESTATE,
                "start the sampling helper %s: %s (TINKER_SAMPLING_HELPER names another)", program,
                strerror(rc));
        free(x);
        free(reaping);
        free(copy);
        return NULL;
    }
    x->program = copy;
    x->reaping = reaping;
    x->rt = rt;
    x->owner = getpid();
    x->fd = pair[0];
    buf_init(&x->in, SIZE_MAX / 4);
    buf_init(&x->out, SIZE_MAX / 4);
    map_init(&x->pending);
    x->startup.fire = on_startup;
    if (!loop_watch(rt->loop, x->fd, EPOLLIN, on_ready, x)) {
        helper_free(x);
        err_nomem(err, "sampling helper");
        return NULL;
    }
    loop_arm(rt->loop, &x->startup, STARTUP_MS);
    return x;
}

/* Tell the helper all it needs for this sampler: settings of the service, then the exported
 * sampler with its credential. */
static bool register_target(struct helper_target *t, tinker_error *err)
{
    struct buf settings, sampler;
    buf_init(&settings, 16 << 20);
    buf_init(&sampler, 16 << 20);
    helper_options_write(t->sampler->session->cfg, &settings);
    buf_putc(&settings, '\0');
    bool ok = sampler_export_write(t->sampler, &sampler, err) == TINKER_OK;
    if (ok) {
        const struct helper_frame f = { .target = t->number, .kind = HELPER_REGISTER };
        ok = buf_ok(&settings) && buf_ok(&sampler) &&
             put_frame(t->helper, f, settings.data, settings.len, sampler.data, sampler.len);
        if (!ok)
            err_nomem(err, "sampling helper");
    }
    buf_clear(&settings);
    buf_clear(&sampler);
    return ok;
}

static void target_free(struct helper_target *t)
{
    struct helper *x = t->helper;
    *(t->prev ? &t->prev->next : &x->first) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    free(t);
    if (--x->targets == 0)
        helper_free(x);
}

/* The target of a sampler, made by its first sample. A helper that belongs to another process
 * (after fork()) or runtime is not used. */
static struct helper_target *attach_sampler(tinker_sampler *s, tinker_error *err)
{
    struct runtime *rt = s->session->rt;
    if (s->base->far)
        return s->base->far;
    struct helper *x = current;
    if (!x || x->owner != getpid() || x->rt != rt)
        x = helper_new(rt, s->session->cfg->sampling_helper, err);
    struct helper_target *t = x ? calloc(1, sizeof(*t)) : NULL;
    if (!t) {
        if (x && x->targets == 0)
            helper_free(x);
        if (x)
            err_nomem(err, "sampling helper");
        return NULL;
    }
    current = x;
    *t = (struct helper_target){ .helper = x, .sampler = s, .number = x->next_target++ };
    t->next = x->first;
    if (t->next)
        t->next->prev = t;
    x->first = t;
    x->targets++;
    if (!register_target(t, err)) {
        target_free(t);
        return NULL;
    }
    s->base->far = t;
    return t;
}

static void on_release(struct loop_task *task)
{
    struct helper_target *t = (struct helper_target *)task; /* first member */
    const struct helper_frame f = { .target = t->number, .kind = HELPER_UNREGISTER };
    if (!t->helper->ended)
        put_frame(t->helper, f, NULL, 0, NULL, 0);
    target_free(t);
}

void helper_release(struct helper_target *t)
{
    if (!t || t->helper->owner != getpid())
        return; /* in a fork there is no loop that could end it, and nothing to end */
    t->task.run = on_release;
    loop_post(t->helper->rt->loop, &t->task);
}

/* ---- samples ----------------------------------------------------------------------------------- */

static void far_destroy(struct operation *op)
{
    struct helper_op *o = (struct helper_op *)op; /* first member */
    buf_clear(&o->body);
    sampling_client_unref(o->sampler);
    free(o);
}

/* Canceled: notify the helper; a result that is on its way is dropped. */
static void far_abandon(struct operation *op)
{
    struct helper_op *o = (struct helper_op *)op;
    if (o->sent) {
        struct helper *x = o->sampler->base->far->helper;
        const struct helper_frame f = { .id = o->id, .kind = HELPER_CANCEL };
        take_pending(x, o->id);
        put_frame(x, f, NULL, 0, NULL, 0);
    }
    operation_destroy(op);
}

/* On the loop: hand the sample over. It is in `pending` before the frame goes out. */
static void far_start(struct operation *op)
{
    struct helper_op *o = (struct helper_op *)op;
    tinker_error err;
    struct helper_target *t = attach_sampler(o->sampler, &err);
    struct helper *x = t ? t->helper : NULL;
    if (!t || x->why.status != TINKER_OK) {
        operation_fail(op, t ? &x->why : &err);
        return;
    }
    o->id = x->next_id++;
    const struct helper_frame f = { .id = o->id, .target = t->number, .kind = HELPER_SAMPLE };
    o->sent = map_put(&x->pending, (const char *)&o->id, sizeof(o->id), o, NULL);
    if (!o->sent || !put_frame(x, f, &o->order, sizeof(o->order), o->body.data, o->body.len)) {
        take_pending(x, o->id);
        err_nomem(&err, "sampling helper");
        operation_fail(op, &err);
        return;
    }
    buf_clear(&o->body);
}

static const struct operation_class far_class = {
    .name = "sample",
    .start = far_start,
    .abandon = far_abandon,
    .destroy = far_destroy,
};

/* Not for a transport or breaker of the user's own, nor for options of single calls: they are
 * functions and pointers of this process. */
bool helper_wanted(const tinker_sampler *s)
{
    const struct config *c = s->session->cfg;
    /* the helper knows nothing of options of calls */
    return c->subprocess_sampling && !c->has_transport && !c->breaker_scope && !s->options;
}

tinker_future *helper_submit(tinker_sampler *s, const struct sample_order *order, struct buf *body,
                             tinker_error *err)
{
    struct helper_op *o = calloc(1, sizeof(*o));
    if (!o) {
        buf_clear(body);
        err_nomem(err, "sample");
        return NULL;
    }
    o->sampler = s;
    o->order = *order;
    o->body = *body;
    sampling_client_ref(s);
    tinker_future *f =
        operation_submit(&o->op, &far_class, s->session, RESULT_SAMPLE, s->options, err);
    if (!f)
        far_destroy(&o->op);
    return f;
}
