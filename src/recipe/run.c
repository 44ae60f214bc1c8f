/* run.c - the folder of a run: what was asked for, what happened, where to go on.
 *
 * A line of metrics.jsonl or checkpoints.jsonl is one write() on a descriptor opened for
 * appending: after a crash it is there or not, but never half, except at the end of a full disk;
 * a torn last line is cut off by the next process.  JSON is written with the separators of Python,
 * whose tools read these files, and NaN as those spell it. */
#include "recipe/run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "json/json.h"

struct tinker_run {
    char *dir, *config;
    int lock_fd, metrics_fd, checkpoints_fd, log_fd;
    struct arena arena; /* of `last` */
    tinker_checkpoint_record last;
    bool has_last;
};

/* Files of a run, which overwriting removes. */
static const char *const files[] = { "config.json",        "metrics.jsonl", "metrics.jsonl.bak",
                                     "checkpoints.jsonl",  "logs.log",      "metrics.svg",
                                     "samples.jsonl",      "eval.jsonl",    "order.txt",
                                     "timing_spans.jsonl", "reference.f32" };

char *run_path(const tinker_run *run, const char *name)
{
    size_t n = strlen(run->dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%s", run->dir, name);
    return path;
}

const char *tinker_run_config(const tinker_run *run)
{
    return run->config;
}

int tinker_run_log_fd(const tinker_run *run)
{
    return run->log_fd;
}

const tinker_checkpoint_record *tinker_run_last(const tinker_run *run)
{
    return run->has_last ? &run->last : NULL;
}

/* ---- reading what is there ---- */

static bool keep_text(struct arena *a, struct json_reader *r, const char **out)
{
    char *text;
    if (json_peek(r) != JSON_STRING || !json_cstring(r, &text))
        return json_skip(r);
    *out = arena_strdup(a, text);
    return true;
}

/* Further members stay as they are, to be asked for by name. A line that is not a record (a
 * comment by hand, another program's) is skipped, not an error. */
static bool read_record(struct arena *a, const char *s, size_t n, tinker_checkpoint_record *out)
{
    struct json_reader r;
    struct json_str key;
    *out = (tinker_checkpoint_record){ .epoch = -1, .extra = arena_strndup(a, s, n) };
    json_reader_init(&r, s, n, a);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "name"))
            keep_text(a, &r, &out->name);
        else if (json_str_is(key, "state_path"))
            keep_text(a, &r, &out->state_path);
        else if (json_str_is(key, "sampler_path"))
            keep_text(a, &r, &out->sampler_path);
        else if (json_str_is(key, "batch"))
            json_int64(&r, &out->batch);
        else if (json_str_is(key, "epoch") && json_peek(&r) == JSON_NUMBER)
            json_int64(&r, &out->epoch);
        else
            json_skip(&r);
    }
    return json_end(&r) && out->name;
}

/* The length of what ends with a newline: a torn last line does not count. */
static size_t whole_lines(const char *s, size_t n)
{
    while (n > 0 && s[n - 1] != '\n')
        n--;
    return n;
}

/* A record without a state cannot be resumed from (weights for sampling only), so it is passed
 * over. */
static void find_last_record(tinker_run *run, const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end ? (size_t)(end - s) - at : n - at;
        tinker_checkpoint_record record;
        if (read_record(&run->arena, s + at, len, &record) && record.state_path) {
            run->last = record;
            run->has_last = true;
        }
        at += len + 1;
    }
}

/* Read a file of lines and cut off what is torn. */
static tinker_status read_lines_file(const tinker_run *run, const char *name, char **data,
                                     size_t *n, tinker_error *err)
{
    char *path = run_path(run, name);
    *data = NULL;
    *n = 0;
    if (!path)
        return err_nomem(err, name);
    tinker_status status = TINKER_OK;
    if (access(path, F_OK) == 0) {
        status = os_read_file(path, (size_t)1 << 32, data, n, err);
        size_t whole = status == TINKER_OK ? whole_lines(*data, *n) : 0;
        if (status == TINKER_OK && whole < *n && truncate(path, (off_t)whole) != 0)
            status = err_errno(err, "truncate", path);
        *n = whole;
    }
    free(path);
    return status;
}

/* ---- opening ---- */

static int open_file(const tinker_run *run, const char *name, int flags)
{
    char *path = run_path(run, name);
    int fd = path ? open(path, flags | O_CLOEXEC, 0644) : -1;
    free(path);
    return fd;
}

/* Hidden files do not count, nor does the lock that was just taken. */
static bool is_used(const tinker_run *run)
{
    DIR *d = opendir(run->dir);
    struct dirent *e;
    bool used = false;
    while (d && (e = readdir(d)))
        used = used || (e->d_name[0] != '.' && strcmp(e->d_name, "lock") != 0);
    if (d)
        closedir(d);
    return used;
}

static void remove_files(const tinker_run *run)
{
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char *path = run_path(run, files[i]);
        if (path)
            unlink(path);
        free(path);
    }
}

/* One writer at a time: the lock goes with the process, whatever ends it. fcntl() and not
 * flock(): it also works on NFS, where run folders of clusters are. The number in the file is
 * for people. */
static tinker_status take_lock(tinker_run *run, tinker_error *err)
{
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char text[32];
    run->lock_fd = open_file(run, "lock", O_RDWR | O_CREAT);
    if (run->lock_fd < 0)
        return err_errno(err, "open the lock of", run->dir);
    if (fcntl(run->lock_fd, F_SETLK, &whole) != 0)
        return err_set(err, TINKER_ESTATE, "%s: another process writes to this run", run->dir);
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(run->lock_fd, 0) != 0 || write(run->lock_fd, text, (size_t)n) != n)
        return err_errno(err, "write the lock of", run->dir);
    return TINKER_OK;
}

static tinker_status open_files(tinker_run *run, tinker_error *err)
{
    static const struct {
        const char *name;
        size_t member;
    } which[] = { { "metrics.jsonl", offsetof(tinker_run, metrics_fd) },
                  { "checkpoints.jsonl", offsetof(tinker_run, checkpoints_fd) },
                  { "logs.log", offsetof(tinker_run, log_fd) } };
    for (size_t i = 0; i < ARRAY_LEN(which); i++) {
        int *fd = (int *)(void *)((char *)run + which[i].member);
        *fd = open_file(run, which[i].name, O_WRONLY | O_CREAT | O_APPEND);
        if (*fd < 0)
            return err_errno(err, "open", run->dir);
    }
    return TINKER_OK;
}

/* config.json is written once; what a resumed run was told goes to the log. */
static tinker_status settle_config(tinker_run *run, const char *json, tinker_error *err)
{
    char *path = run_path(run, "config.json");
    size_t n;
    tinker_status status = TINKER_OK;
    if (!path)
        return err_nomem(err, "a path");
    if (access(path, F_OK) == 0)
        status = os_read_file(path, (size_t)64 << 20, &run->config, &n, err);
    else if (json)
        status = os_write_file(path, json, strlen(json), err);
    free(path);
    return status;
}

/* Locked before anything is looked at or removed; read before it is written to. */
static tinker_status open_run(tinker_run *run, tinker_run_mode mode, const char *config,
                              tinker_error *err)
{
    tinker_status status = os_make_dirs(run->dir, err);
    if (status == TINKER_OK)
        status = take_lock(run, err);
    if (status != TINKER_OK)
        return status;
    if (mode == TINKER_RUN_NEW && is_used(run))
        return err_set(err, TINKER_ESTATE, "%s is not empty: resume it, or overwrite it", run->dir);
    if (mode == TINKER_RUN_OVERWRITE)
        remove_files(run);
    char *data;
    size_t n;
    status = read_lines_file(run, "checkpoints.jsonl", &data, &n, err);
    if (status == TINKER_OK)
        find_last_record(run, data, n);
    free(data);
    if (status == TINKER_OK)
        status = settle_config(run, config, err);
    return status == TINKER_OK ? open_files(run, err) : status;
}

tinker_run *tinker_run_open(const char *dir, tinker_run_mode mode, const char *config_json,
                            tinker_error *err)
{
    tinker_run *run = calloc(1, sizeof(*run));
    if (!run || !(run->dir = strdup(dir))) {
        free(run);
        err_nomem(err, "a run");
        return NULL;
    }
    arena_init(&run->arena, SIZE_MAX);
    run->lock_fd = run->metrics_fd = run->checkpoints_fd = run->log_fd = -1;
    if (open_run(run, mode, config_json, err) == TINKER_OK)
        return run;
    if (run->metrics_fd >= 0)
        close(run->metrics_fd);
    run->metrics_fd = -1; /* nothing to draw */
    tinker_run_close(run);
    return NULL;
}

/* The lock is released last, when nothing of ours writes any more. */
void tinker_run_close(tinker_run *run)
{
    if (!run)
        return;
    if (run->metrics_fd >= 0)
        tinker_run_plot(run, NULL);
    const int fds[] = { run->metrics_fd, run->checkpoints_fd, run->log_fd, run->lock_fd };
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    arena_clear(&run->arena);
    free(run->config);
    free(run->dir);
    free(run);
}

/* ---- writing ---- */

/* A short write means a full disk, for which write() does not set errno. */
static tinker_status append_line(const tinker_run *run, int fd, const struct buf *line,
                                 const char *name, tinker_error *err)
{
    if (!buf_ok(line))
        return err_nomem(err, name);
    ssize_t n = write(fd, line->data, line->len);
    if (n == (ssize_t)line->len)
        return TINKER_OK;
    if (n >= 0)
        errno = ENOSPC;
    return err_errno(err, "write to a file of", run->dir);
}

/* A number as Python writes it; what the JSON writer refuses is spelled as Python does. Integers
 * without a point, whatever type they had: step 5 is 5 and not 5.0. */
static void put_json_number(struct buf *out, double v)
{
    struct json_writer w;
    json_writer_init(&w, out);
    if (isnan(v))
        buf_puts(out, "NaN");
    else if (isinf(v))
        buf_puts(out, v > 0 ? "Infinity" : "-Infinity");
    else if (v == floor(v) && fabs(v) < 1e15)
        json_put_int64(&w, (int64_t)v);
    else
        json_put_double(&w, v);
}

/* Separators are those of Python's json.dumps(). */
static void put_key(struct buf *out, const char *key)
{
    struct json_writer w;
    json_writer_init(&w, out);
    buf_puts(out, out->len ? ", " : "{");
    json_put_string(&w, key);
    buf_puts(out, ": ");
}

static void put_string(struct buf *out, const char *key, const char *value)
{
    struct json_writer w;
    if (!value)
        return;
    put_key(out, key);
    json_writer_init(&w, out);
    json_put_string(&w, value);
}

tinker_status tinker_run_log(tinker_run *run, size_t step, const tinker_named_number *m, size_t n,
                             tinker_error *err)
{
    struct buf line;
    buf_init(&line, 1 << 20);
    put_key(&line, "step");
    put_json_number(&line, (double)step);
    for (size_t i = 0; i < n; i++)
        if (m[i].name) {
            put_key(&line, m[i].name);
            put_json_number(&line, m[i].value);
        }
    buf_puts(&line, "}\n");
    tinker_status status = append_line(run, run->metrics_fd, &line, "metrics", err);
    buf_clear(&line);
    return status;
}

/* The members of an object, behind those that are there. */
static void put_extra(struct buf *out, struct arena *a, const char *json)
{
    struct json_reader r;
    struct json_str key, value;
    json_reader_init(&r, json, strlen(json), a);
    json_begin_object(&r);
    while (json_next_key(&r, &key) && json_raw(&r, &value)) {
        char *name = arena_strndup(a, key.s, key.n);
        if (!name)
            return;
        put_key(out, name);
        buf_append(out, value.s, value.n);
    }
}

/* Synced to the disk: a checkpoint that is listed must not be forgotten by a power cut, or the
 * service's copy expires unseen. */
tinker_status tinker_run_checkpoint(tinker_run *run, const tinker_checkpoint_record *c,
                                    tinker_error *err)
{
    struct buf line;
    buf_init(&line, 1 << 20);
    put_string(&line, "name", c->name);
    put_key(&line, "batch");
    put_json_number(&line, (double)c->batch);
    if (c->epoch >= 0) {
        put_key(&line, "epoch");
        put_json_number(&line, (double)c->epoch);
    }
    put_string(&line, "state_path", c->state_path);
    put_string(&line, "sampler_path", c->sampler_path);
    if (c->rolling) {
        put_key(&line, "rolling");
        buf_puts(&line, "true");
    }
    if (c->extra)
        put_extra(&line, &run->arena, c->extra);
    buf_puts(&line, "}\n");
    tinker_status status = append_line(run, run->checkpoints_fd, &line, "checkpoints", err);
    if (status == TINKER_OK && fsync(run->checkpoints_fd) != 0)
        status = err_errno(err, "sync a file of", run->dir);
    if (status == TINKER_OK)
        find_last_record(run, line.data, line.len);
    buf_clear(&line);
    return status;
}

/* Local time, for people; a note that cannot be written does not stop a run. */
void tinker_run_note(tinker_run *run, const char *level, const char *text)
{
    struct timespec now;
    struct tm t;
    struct buf line;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &t);
    buf_init(&line, 1 << 20);
    buf_printf(&line, "%02d:%02d:%02d.%03ld %s %s\n", t.tm_hour, t.tm_min, t.tm_sec,
               now.tv_nsec / 1000000, level, text);
    append_line(run, run->log_fd, &line, "logs", NULL);
    buf_clear(&line);
}

/* ---- going on ---- */

/* The step of a line of metrics; SIZE_MAX: it has none. Lines are this program's own, so their
 * beginning is known. */
static size_t step_of_line(const char *s, size_t n)
{
    static const char head[] = "{\"step\": ";
    if (n <= sizeof(head) || memcmp(s, head, sizeof(head) - 1) != 0)
        return SIZE_MAX;
    return (size_t)strtoull(s + sizeof(head) - 1, NULL, 10);
}

/* Lines before the step stay, in a file that replaces the old one; the others are kept aside. A
 * run that resumes from an older checkpoint computes those steps again, and metrics must not
 * have them twice. */
tinker_status tinker_run_rewind(tinker_run *run, size_t step, tinker_error *err)
{
    char *data, *path = run_path(run, "metrics.jsonl"), *aside = run_path(run, "metrics.jsonl.bak");
    size_t n, keep = 0;
    tinker_status status = path && aside ? read_lines_file(run, "metrics.jsonl", &data, &n, err)
                                         : err_nomem(err, "a path");
    if (status == TINKER_OK) {
        while (keep < n && step_of_line(data + keep, n - keep) < step)
            keep += (size_t)((char *)memchr(data + keep, '\n', n - keep) - data) - keep + 1;
        if (keep < n)
            status = os_write_file(aside, data + keep, n - keep, err);
        if (status == TINKER_OK && keep < n && ftruncate(run->metrics_fd, (off_t)keep) != 0)
            status = err_errno(err, "truncate", path);
        free(data);
    }
    free(path);
    free(aside);
    return status;
}
