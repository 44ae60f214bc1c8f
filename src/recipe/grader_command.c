/* grader_command.c - a grader that is a program of the user's, kept running.
 *
 * It reads one JSON object per line and answers with one line each: a bare number answers the
 * oldest open request, an object the one whose id it names.  So a naive loop of "read a line,
 * print a number" works, and so does a program that judges many at once.  Its input is a socket:
 * unlike a pipe, one may write to it after the reader has gone without a signal.
 *
 * A program that does not answer in time, or ends, is started again and gets all open requests
 * once more; the request that it stumbled over has two attempts. */
#include "recipe/grader.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/array.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "json/json.h"

extern char **environ;

/* Three starts in a row without a single answer mean a program that cannot work, not one that
 * stumbles over an item. The first BANNER lines that are no answers are taken for greetings of
 * interpreters and libraries. */
enum {
    MAX_ANSWER = 16 << 20,
    MAX_DEATHS = 3,
    END_MS = 5000,
    KILL_MS = 2000,
    ATTEMPTS = 2,
    BANNER = 20
};

/* Of one item while a batch is judged. */
struct request {
    bool done;
    int failures;
};

struct grader_command {
    char *command;
    tinker_grader_options opts;
    char *run_dir, worker[32];
    pid_t pid; /* 0: not running */
    int in, out, err;
    struct buf to_send, answers, errors;
    int deaths;           /* in a row, without an answer */
    bool answered;        /* this process has answered something */
    int ignored;          /* lines before that: banners, versions, warnings */
    int64_t next_id;      /* of the first item of the batch */
    char last_error[160]; /* last line it wrote to stderr */
};

/* ---- the process ---- */

/* Names whose values are nobody's business but this program's. A grader is often somebody else's
 * script, and its logs are shared. */
static bool is_secret(const char *entry)
{
    static const char *const parts[] = { "API_KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL" };
    size_t n = strcspn(entry, "=");
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        for (size_t k = 0; k + strlen(parts[i]) <= n; k++)
            if (memcmp(entry + k, parts[i], strlen(parts[i])) == 0)
                return true;
    return strncmp(entry, "TINKER_GRADER", 13) == 0 || strncmp(entry, "TINKER_RUN_DIR=", 15) == 0;
}

/* free() the array alone. The strings are those of environ and of c. */
static char **build_environment(struct grader_command *c)
{
    static char mark[] = "TINKER_GRADER=1";
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    char **env = calloc(n + 4, sizeof(*env));
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_secret(environ[i]))
            env[k++] = environ[i];
    env[k++] = mark;
    env[k++] = c->worker;
    if (c->run_dir)
        env[k++] = c->run_dir;
    return env;
}

/* Only our end is non-blocking: the program's end must behave as programs expect. */
static bool open_pipe(int fd[2])
{
    if (pipe(fd) != 0)
        return false;
    fcntl(fd[0], F_SETFD, FD_CLOEXEC);
    fcntl(fd[1], F_SETFD, FD_CLOEXEC);
    fcntl(fd[0], F_SETFL, O_NONBLOCK);
    return true;
}

/* A group of its own, so that what a shell starts ends with it. posix_spawn() and not fork():
 * the process has threads, and a child that allocates between fork() and exec() may deadlock.
 * The signal mask and SIGPIPE are restored, since callers of the library may have changed them
 * and both are inherited. */
static int spawn_shell(struct grader_command *c, int in, int out, int err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    char shell[] = "sh", flag[] = "-c";
    char *argv[] = { shell, flag, c->command, NULL };
    char **env = build_environment(c);
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, in, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_adddup2(&actions, err, 2);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    int code = env ? posix_spawn(&c->pid, "/bin/sh", &actions, &attributes, argv, env) : ENOMEM;
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    free(env);
    return code;
}

/* All descriptors are closed on failure, so that a program that cannot be started leaks none
 * however often it is tried. */
static tinker_status start_locked(struct grader_command *c, tinker_error *err)
{
    int in[2], out[2], errors[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0)
        return err_errno(err, "start", c->command);
    if (!open_pipe(out)) {
        close(in[0]);
        close(in[1]);
        return err_errno(err, "start", c->command);
    }
    if (!open_pipe(errors))
        errors[0] = errors[1] = -1;
    fcntl(in[0], F_SETFL, O_NONBLOCK);
    int code = errors[0] < 0 ? EMFILE : spawn_shell(c, in[1], out[1], errors[1]);
    close(in[1]);
    close(out[1]);
    if (errors[1] >= 0)
        close(errors[1]);
    c->in = in[0];
    c->out = out[0];
    c->err = errors[0];
    c->answered = false;
    c->ignored = 0;
    buf_reset(&c->to_send);
    buf_reset(&c->answers);
    if (code == 0)
        return TINKER_OK;
    c->pid = 0;
    close(c->in);
    close(c->out);
    if (c->err >= 0)
        close(c->err);
    errno = code;
    return err_errno(err, "start", c->command);
}

/* One at a time: a program that is started between pipe() and FD_CLOEXEC of another worker would
 * keep that one's output open, and its end would never be seen. */
static tinker_status start_process(struct grader_command *c, tinker_error *err)
{
    static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&starting);
    tinker_status status = start_locked(c, err);
    pthread_mutex_unlock(&starting);
    return status;
}

/* true: it has ended within the time. Polling, because waitpid() knows no deadline and a SIGCHLD
 * handler would belong to the library. */
static bool wait_for_end(pid_t pid, int ms)
{
    for (int waited = 0;; waited += 10) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return true;
        if (waited >= ms)
            return false;
        nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
    }
}

/* In good order: its input ends, then it is asked, then it is made to. */
static void stop_process(struct grader_command *c, int patience_ms)
{
    if (!c->pid)
        return;
    close(c->in);
    if (!wait_for_end(c->pid, patience_ms)) {
        kill(-c->pid, SIGTERM);
        if (!wait_for_end(c->pid, KILL_MS)) {
            kill(-c->pid, SIGKILL);
            waitpid(c->pid, NULL, 0);
        }
    }
    kill(-c->pid, SIGKILL); /* what it has started itself */
    close(c->out);
    close(c->err);
    c->pid = 0;
}

struct grader_command *grader_command_new(const char *command, const tinker_grader_options *opts,
                                          size_t worker, tinker_error *err)
{
    struct grader_command *c = calloc(1, sizeof(*c));
    size_t n = opts->run_dir ? strlen(opts->run_dir) + sizeof("TINKER_RUN_DIR=") : 0;
    bool ok = c && (c->command = strdup(command)) && (!n || (c->run_dir = malloc(n)));
    if (!ok) {
        if (c)
            free(c->command);
        free(c);
        err_nomem(err, "a grader");
        return NULL;
    }
    if (n)
        snprintf(c->run_dir, n, "TINKER_RUN_DIR=%s", opts->run_dir);
    snprintf(c->worker, sizeof(c->worker), "TINKER_GRADER_WORKER=%zu", worker);
    c->opts = *opts;
    buf_init(&c->to_send, (size_t)1 << 30);
    buf_init(&c->answers, MAX_ANSWER + 1);
    buf_init(&c->errors, 4096);
    return c;
}

void grader_command_free(struct grader_command *c)
{
    if (!c)
        return;
    stop_process(c, END_MS);
    buf_clear(&c->to_send);
    buf_clear(&c->answers);
    buf_clear(&c->errors);
    free(c->command);
    free(c->run_dir);
    free(c);
}

/* ---- requests ---- */

static void put_member(struct json_writer *w, const char *key, const char *json, const char *text)
{
    if (!json && !text)
        return;
    json_put_key(w, key);
    if (json)
        json_put_raw(w, json, strlen(json));
    else
        json_put_string(w, text);
}

/* The members are described in docs/recipes.md; a program may ignore those that it does not
 * know. */
static void put_request(struct buf *out, const tinker_grade *g, int64_t id)
{
    struct json_writer w;
    size_t from = out->len;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    json_put_key(&w, "id");
    json_put_int64(&w, id);
    put_member(&w, "prompt", g->prompt, NULL);
    put_member(&w, "response", NULL, g->text);
    if (g->message)
        put_member(&w, "message", g->message, NULL);
    put_member(&w, "expected", NULL, g->expected);
    put_member(&w, "row", g->row, NULL);
    json_put_key(&w, "step");
    json_put_int64(&w, g->step);
    json_put_key(&w, "group");
    json_put_int64(&w, g->group);
    json_put_key(&w, "sample");
    json_put_int64(&w, g->sample);
    put_member(&w, "stop_reason", NULL, g->stop_reason);
    json_put_key(&w, "tokens");
    json_put_int64(&w, (int64_t)g->tokens);
    put_member(&w, "split", NULL, g->split);
    if (g->turn > 0) {
        json_put_key(&w, "turn");
        json_put_int64(&w, g->turn);
    }
    if (g->probe) {
        json_put_key(&w, "probe");
        json_put_bool(&w, true);
    }
    json_put_end_object(&w);
    /* Raw values may have newlines between their parts, which would end the line. */
    for (size_t i = from; i < out->len; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
    buf_putc(out, '\n');
}

/* ---- one batch ---- */

struct batch {
    struct grader_command *c;
    tinker_grade *items;
    struct request *requests;
    size_t n, sent, done;
    size_t *queue, first, last; /* items in the order in which this process got them */
    int64_t clock_ns;           /* since when the oldest open request waits */
};

/* The item that a bare number answers: the first one sent that is still open; n: none. */
static size_t find_oldest(struct batch *b)
{
    while (b->first < b->last && b->requests[b->queue[b->first]].done)
        b->first++;
    return b->first < b->last ? b->queue[b->first] : b->n;
}

/* An item is sent at most ATTEMPTS times between two starts, so the queue has room. */
static void send_item(struct batch *b, size_t i)
{
    put_request(&b->c->to_send, &b->items[i], b->c->next_id + (int64_t)i);
    b->queue[b->last++] = i;
}

/* An answer restarts the clock: the time limit is for one answer, not for the batch. reason may
 * already be the item's own array. */
static void settle_item(struct batch *b, size_t i, double score, const char *reason)
{
    b->requests[i].done = true;
    b->items[i].score = score;
    if (reason != b->items[i].reason)
        snprintf(b->items[i].reason, sizeof(b->items[i].reason), "%s", reason);
    b->done++;
    b->clock_ns = clock_now_ns(clock_real());
}

/* A second failure settles the item. i >= sent: an answer came while nothing was open, which
 * blames nobody. */
static void fail_item(struct batch *b, size_t i, const char *reason)
{
    if (i >= b->sent)
        return;
    if (++b->requests[i].failures >= ATTEMPTS) {
        settle_item(b, i, NAN, reason);
        return;
    }
    if (b->first < b->last && b->queue[b->first] == i)
        b->first++; /* that answer was for this one; it comes again behind the others */
    send_item(b, i);
    b->clock_ns = clock_now_ns(clock_real());
}

struct answer {
    int64_t id;
    bool has_id, has_score;
    double score, format;
    char reason[128];
    bool error;
    bool done;                   /* an environment has said that this was the last turn */
    struct json_str observation; /* its messages, within the line; s NULL: none */
};

/* true and false are scores of 1 and 0: graders often print what a comparison returned. */
static bool read_score(struct json_reader *r, double *out)
{
    bool yes;
    if (json_peek(r) != JSON_BOOL)
        return json_double(r, out);
    if (!json_bool(r, &yes))
        return false;
    *out = yes;
    return true;
}

/* 120 bytes fit the column of a report; the rest of an essay helps nobody. */
static void keep_reason(struct json_reader *r, struct answer *a)
{
    struct json_str text;
    if (json_peek(r) == JSON_STRING && json_string(r, &text))
        snprintf(a->reason, sizeof(a->reason), "%.*s", (int)(text.n < 120 ? text.n : 120), text.s);
    else
        json_skip(r);
}

static void read_metrics(struct json_reader *r, struct answer *a)
{
    struct json_str key;
    json_begin_object(r);
    while (json_next_key(r, &key))
        if (!json_str_is(key, "format") || !json_double(r, &a->format))
            json_skip(r);
}

/* A number, true, false, or an object. A score that is not finite is no answer: one NaN would
 * make the mean of the step NaN. */
static bool read_answer_line(const char *s, size_t n, struct answer *a)
{
    struct json_reader r;
    struct json_str key;
    struct arena arena;
    *a = (struct answer){ .format = NAN };
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, s, n, &arena);
    if (json_peek(&r) != JSON_OBJECT) {
        a->has_score = read_score(&r, &a->score);
    } else {
        json_begin_object(&r);
        while (json_next_key(&r, &key)) {
            if (json_str_is(key, "id"))
                a->has_id = json_int64(&r, &a->id);
            else if (json_str_is(key, "score"))
                a->has_score = read_score(&r, &a->score);
            else if (json_str_is(key, "metrics") && json_peek(&r) == JSON_OBJECT)
                read_metrics(&r, a);
            else if (json_str_is(key, "observation") && json_peek(&r) == JSON_ARRAY)
                json_raw(&r, &a->observation);
            else if (json_str_is(key, "done") && json_peek(&r) == JSON_BOOL)
                json_bool(&r, &a->done);
            else if (json_str_is(key, "feedback"))
                keep_reason(&r, a);
            else if (json_str_is(key, "error")) {
                a->error = true;
                keep_reason(&r, a);
            } else
                json_skip(&r);
        }
    }
    /* A turn in the middle may be worth nothing. */
    bool ok = json_end(&r) && (a->has_score || a->error || a->observation.s) && isfinite(a->score);
    arena_clear(&arena);
    return ok;
}

/* A wrong line blames the oldest open item, which is the one a program that works in order was
 * at. A late answer to an item that was settled is ignored. */
static void take_line(struct batch *b, const char *s, size_t n)
{
    struct answer a;
    size_t i = find_oldest(b);
    if (!read_answer_line(s, n, &a)) {
        if (!b->c->answered && b->c->ignored++ < BANNER)
            return;
        char why[120];
        snprintf(why, sizeof(why), "the grader answered: %.*s", (int)(n < 80 ? n : 80), s);
        fail_item(b, i, why);
        return;
    }
    if (a.has_id) {
        int64_t at = a.id - b->c->next_id;
        if (at < 0 || at >= (int64_t)b->sent)
            return fail_item(b, i, "the grader answered with an unknown id");
        i = (size_t)at;
    }
    if (i >= b->sent || b->requests[i].done)
        return;
    b->c->answered = true;
    b->c->deaths = 0;
    if (a.error)
        return fail_item(b, i, a.reason);
    b->items[i].format = a.format;
    b->items[i].done = a.done || !a.observation.s;
    free(b->items[i].observation);
    b->items[i].observation = a.observation.s ? strndup(a.observation.s, a.observation.n) : NULL;
    settle_item(b, i, a.score, a.reason);
}

/* false: the program closed its output. A batch may be settled by the lines before that. */
static bool read_replies(struct batch *b)
{
    struct grader_command *c = b->c;
    char part[65536];
    ssize_t n;
    while ((n = read(c->out, part, sizeof(part))) > 0) {
        buf_append(&c->answers, part, (size_t)n);
        size_t at = 0;
        char *end;
        while (at < c->answers.len &&
               (end = memchr(c->answers.data + at, '\n', c->answers.len - at))) {
            size_t len = (size_t)(end - c->answers.data) - at;
            if (len > 0)
                take_line(b, c->answers.data + at, len);
            at += len + 1;
        }
        if (at > 0) {
            memmove(c->answers.data, c->answers.data + at, c->answers.len - at);
            c->answers.len -= at;
        }
        if (c->answers.failed || c->answers.len > MAX_ANSWER) {
            buf_reset(&c->answers);
            fail_item(b, find_oldest(b), "the grader answered with a line of more than 16 MiB");
        }
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* To the log; the last line is kept for the message when it dies. */
static void read_errors(struct grader_command *c)
{
    char part[4096];
    ssize_t n;
    while ((n = read(c->err, part, sizeof(part) - 1)) > 0) {
        if (c->opts.log_fd >= 0 && write(c->opts.log_fd, part, (size_t)n) != n)
            c->opts.log_fd = -1;
        part[n] = 0;
        while (n && part[n - 1] == '\n')
            part[--n] = 0;
        char *line = strrchr(part, '\n');
        snprintf(c->last_error, sizeof(c->last_error), "%.150s", line ? line + 1 : part);
    }
}

/* After a new start everything that is open is sent once more. A program that did answer before
 * it died gets a clean record: deaths in a row count only while there is no answer at all. */
static tinker_status restart_process(struct batch *b, tinker_error *err)
{
    struct grader_command *c = b->c;
    bool dead = !c->answered && ++c->deaths >= MAX_DEATHS;
    if (c->pid)
        read_errors(c);
    stop_process(c, 0);
    if (dead) {
        c->deaths = 0;
        return err_set(err, TINKER_ESTATE, "the grader '%s' ends without an answer%s%s", c->command,
                       c->last_error[0] ? ": " : "", c->last_error);
    }
    tinker_status status = start_process(c, err);
    b->first = b->last = 0;
    for (size_t i = 0; status == TINKER_OK && i < b->sent; i++)
        if (!b->requests[i].done)
            send_item(b, i);
    b->clock_ns = clock_now_ns(clock_real());
    return status;
}

/* MSG_NOSIGNAL: a program that has gone is noticed by its output, not by SIGPIPE in the caller's
 * process. */
static void send_requests(struct grader_command *c)
{
    ssize_t n = send(c->in, c->to_send.data, c->to_send.len, MSG_NOSIGNAL);
    if (n <= 0)
        return;
    memmove(c->to_send.data, c->to_send.data + n, c->to_send.len - (size_t)n);
    c->to_send.len -= (size_t)n;
}

/* Wait for something to happen and handle it. At most opts.ahead items are open, so that a slow
 * program does not make us buffer the whole batch, and a fast one always has the next line in
 * its input. */
static tinker_status turn_batch(struct batch *b, tinker_error *err)
{
    struct grader_command *c = b->c;
    while (b->sent < b->n && b->sent - b->done < c->opts.ahead) {
        if (b->sent == b->done)
            b->clock_ns = clock_now_ns(clock_real());
        send_item(b, b->sent++);
    }
    int64_t waited_ms = (clock_now_ns(clock_real()) - b->clock_ns) / 1000000;
    if (waited_ms >= c->opts.timeout_ms) {
        fail_item(b, find_oldest(b), "the grader did not answer in time");
        c->answered = true; /* slow is not dead */
        return b->done < b->n ? restart_process(b, err) : (stop_process(c, 0), TINKER_OK);
    }
    struct pollfd fds[] = { { .fd = c->out, .events = POLLIN },
                            { .fd = c->err, .events = POLLIN },
                            { .fd = c->to_send.len ? c->in : -1, .events = POLLOUT } };
    if (poll(fds, ARRAY_LEN(fds), (int)(c->opts.timeout_ms - waited_ms)) <= 0)
        return TINKER_OK;
    if (fds[2].revents)
        send_requests(c);
    if (fds[1].revents)
        read_errors(c);
    if (fds[0].revents && !read_replies(b) && b->done < b->n)
        return restart_process(b, err);
    return TINKER_OK;
}

/* The process stays for the next batch. Ids go on counting, so an answer that comes too late for
 * this batch cannot be taken for one of the next. */
tinker_status grader_command_run(struct grader_command *c, tinker_grade *items, size_t n,
                                 tinker_error *err)
{
    struct batch b = { .c = c, .items = items, .n = n };
    b.requests = calloc(n + 1, sizeof(*b.requests));
    b.queue = calloc(n + 1, ATTEMPTS * sizeof(*b.queue));
    if (!b.requests || !b.queue) {
        free(b.requests);
        free(b.queue);
        return err_nomem(err, "a batch to be judged");
    }
    for (size_t i = 0; i < n; i++) {
        items[i].score = items[i].format = NAN;
        items[i].observation = NULL;
        items[i].done = 0;
    }
    tinker_status status = c->pid ? TINKER_OK : start_process(c, err);
    b.clock_ns = clock_now_ns(clock_real());
    while (status == TINKER_OK && b.done < n)
        status = turn_batch(&b, err);
    c->next_id += (int64_t)n;
    free(b.requests);
    free(b.queue);
    return status;
}
