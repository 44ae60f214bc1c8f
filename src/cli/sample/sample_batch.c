/* sample_batch.c - see sample_batch.h.
 *
 * A window of requests is in flight; results are written in the order of the input unless
 * --unordered.  Each is one write of one line, so a file that is cut off is still valid up to its
 * last newline, and --resume goes on behind it.
 *
 * Ctrl-C: nothing more is sent, what is in flight is waited for (GRACE_MS), the rest is left out. */
#include "cli/sample/sample_batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/text/text_model.h"

enum { LINE_MAX_BYTES = 256 << 20, GRACE_MS = 10000, TEXT_MAX = 1 << 30 };

/* One line of the input. */
struct item {
    struct json_str raw;
    char *id; /* JSON: a string or a number; NULL: the line has none */
    size_t line;
    struct sample_job job;
    tinker_future *future;
    tinker_error err;
    bool failed, written, skipped;
};

/* The ids that the output has already, sorted. */
struct done_ids {
    char **v;
    size_t n, cap;
};

/* All items and where their results go.  Items stay until the end, but small: see write_item(). */
struct run {
    const struct sample_batch *b;
    tinker_sampler *sampler;
    struct item *items;
    size_t n;
    int fd;
    size_t failed, written;
    struct progress bar;
};

/* ---- reading ---------------------------------------------------------------------------------- */

/* Count the lines that are not empty, and point at them.
 * NULL: out of memory; an input without lines gives an empty array. */
static struct item *split_lines(char *text, size_t n, size_t *count)
{
    size_t cap = 0;
    struct item *items = NULL;
    *count = 0;
    for (size_t i = 0, line = 1; i < n; line++) {
        size_t len = 0;
        while (i + len < n && text[i + len] != '\n')
            len++;
        size_t first = i + strspn(text + i, " \t\r");
        if (first < i + len) {
            if (*count == cap) {
                cap = cap ? cap * 2 : 256;
                struct item *grown = realloc(items, cap * sizeof(*grown));
                if (!grown) {
                    free(items);
                    return NULL;
                }
                items = grown;
            }
            items[(*count)++] =
                (struct item){ .raw = { text + first, i + len - first }, .line = line };
        }
        i += len + 1;
    }
    return items ? items : calloc(1, sizeof(*items));
}

/* The text of a member that is a string or a number, as JSON spells it.
 * Ids are compared and written back in this form, so 1 and "1" stay different. */
static char *copy_raw(struct json_str raw)
{
    char *copy = malloc(raw.n + 1);
    if (copy) {
        memcpy(copy, raw.s, raw.n);
        copy[raw.n] = 0;
    }
    return copy;
}

/* "stop": "text" or ["text", ...]; the texts stay in the arena. */
static bool read_stops(struct json_reader *r, struct opt_list *out)
{
    char *text;
    out->n = 0;
    if (json_peek(r) == JSON_STRING) {
        if (!json_cstring(r, &text))
            return false;
        out->items[out->n++] = text;
        return true;
    }
    if (!json_begin_array(r))
        return false;
    while (json_next_item(r)) {
        if (out->n == OPT_LIST_MAX || !json_cstring(r, &text))
            return false;
        out->items[out->n++] = text;
    }
    return true;
}

/* A number that the line sets. *known: the member is one of them.
 * A line may set what the options set for all; everything else keeps the value of the options. */
static bool read_override(struct json_reader *r, struct json_str key, struct sample_params *p,
                          bool *known)
{
    *known = true;
    if (json_str_is(key, "max_tokens"))
        return json_int64(r, &p->how.max_tokens);
    if (json_str_is(key, "temperature"))
        return json_double(r, &p->how.temperature);
    if (json_str_is(key, "top_p"))
        return json_double(r, &p->how.top_p);
    if (json_str_is(key, "min_p"))
        return json_double(r, &p->how.min_p);
    if (json_str_is(key, "repetition_penalty"))
        return json_double(r, &p->how.repetition_penalty);
    if (json_str_is(key, "presence_penalty"))
        return json_double(r, &p->how.presence_penalty);
    if (json_str_is(key, "frequency_penalty"))
        return json_double(r, &p->how.frequency_penalty);
    if (json_str_is(key, "top_k"))
        return json_int64(r, &p->how.top_k);
    if (json_str_is(key, "seed"))
        return json_int64(r, &p->how.seed);
    if (json_str_is(key, "n") || json_str_is(key, "num_samples"))
        return json_int64(r, &p->n);
    if (json_str_is(key, "stop"))
        return read_stops(r, &p->stop);
    *known = false;
    return true;
}

/* Where the prompt of a line is; one of the three. */
struct line_prompt {
    struct json_str text, messages, tokens;
};

/* Unknown members are passed over: datasets carry columns of their own. */
static bool read_line_members(struct json_reader *r, struct item *it, struct line_prompt *p)
{
    struct json_str key, raw;
    bool ok = json_begin_object(r), known;
    while (ok && json_next_key(r, &key)) {
        struct json_str *place = json_str_is(key, "messages") ? &p->messages
                                 : json_str_is(key, "tokens") ? &p->tokens
                                                              : NULL;
        if (json_str_is(key, "id")) {
            ok = json_raw(r, &raw) && (it->id = copy_raw(raw)) != NULL;
        } else if (json_str_is(key, "prompt")) {
            ok = json_string(r, &p->text);
        } else if (place) {
            ok = json_raw(r, place);
        } else {
            ok = read_override(r, key, &it->job.params, &known);
            if (ok && !known)
                ok = json_skip(r);
        }
    }
    return ok && json_end(r);
}

/* Ids instead of text: sent as they are, no tokenizer is asked. */
static tinker_status read_tokens(struct json_str raw, struct arena *arena, struct sample_job *j,
                                 tinker_error *err)
{
    struct json_reader r;
    int32_t *ids;
    size_t n;
    json_reader_init(&r, raw.s, raw.n, arena);
    if (!json_array_int32(&r, &ids, &n))
        return err_set(err, TINKER_EINVAL, "tokens: a list of token ids");
    return tinker_tokens_append(&j->prompt, ids, n, err);
}

/* Everything that can be wrong with a line is found before it is sent. */
static tinker_status prepare_item(struct item *it, struct arena *arena, tinker_error *err)
{
    struct json_reader r;
    struct line_prompt p;
    memset(&p, 0, sizeof(p));
    json_reader_init(&r, it->raw.s, it->raw.n, arena);
    if (!read_line_members(&r, it, &p))
        return err_set(err, TINKER_EINVAL, "line %zu: %s", it->line, json_error(&r));
    if (!!p.text.s + !!p.messages.s + !!p.tokens.s != 1)
        return err_set(err, TINKER_EINVAL, "line %zu: give one of prompt, messages and tokens",
                       it->line);
    const struct sample_params *q = &it->job.params;
    if (q->n < 1 || q->n > SAMPLE_MAX_NUM || q->how.max_tokens < 1)
        return err_set(err, TINKER_EINVAL, "line %zu: n is 1 to %d, max_tokens 1 or more", it->line,
                       SAMPLE_MAX_NUM);
    tinker_status status = sample_job_set_stops(&it->job, err);
    if (status != TINKER_OK)
        return status;
    return p.text.s       ? sample_job_set_text(&it->job, p.text.s, p.text.n, err)
           : p.messages.s ? sample_job_set_messages(&it->job, p.messages.s, p.messages.n, err)
                          : read_tokens(p.tokens, arena, &it->job, err);
}

/* ---- what is there already ---------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Results that were written by an earlier run; those that failed are tried again.  *end: where the
 * last whole line ends. */
static bool read_done(const char *path, struct done_ids *done, off_t *end)
{
    char *text;
    size_t n;
    *end = 0;
    if (os_read_file(path, TEXT_MAX, &text, &n, NULL) != TINKER_OK)
        return true;
    bool ok = true;
    for (size_t i = 0; ok && i < n;) {
        /* The last line without an end was cut off and is asked again. */
        const char *newline = memchr(text + i, '\n', n - i);
        if (!newline)
            break;
        size_t len = (size_t)(newline - (text + i));
        struct arena arena;
        struct json_reader r;
        struct json_str key, raw;
        char *id = NULL;
        bool failed = false;
        arena_init(&arena, LINE_MAX_BYTES);
        json_reader_init(&r, text + i, len, &arena);
        /* A line of another program in the file has no id and is neither counted nor removed. */
        bool good = json_begin_object(&r);
        while (good && json_next_key(&r, &key)) {
            good = json_raw(&r, &raw);
            failed = failed || json_str_is(key, "error");
            if (good && json_str_is(key, "id") && !id)
                id = copy_raw(raw);
        }
        arena_clear(&arena);
        if (good && id && !failed) {
            if (done->n == done->cap) {
                size_t cap = done->cap ? done->cap * 2 : 256;
                char **v = realloc(done->v, cap * sizeof(*v));
                ok = v != NULL;
                done->v = ok ? v : done->v;
                done->cap = ok ? cap : done->cap;
            }
            if (ok)
                done->v[done->n++] = id;
        } else {
            free(id);
        }
        i += len + 1;
        *end = (off_t)i;
    }
    free(text);
    if (done->n > 1)
        qsort(done->v, done->n, sizeof(*done->v), compare_texts);
    return ok;
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* A line without an id is known by its number, which --resume uses the same way. */
static void put_id(struct json_writer *w, const struct item *it)
{
    json_put_key(w, "id");
    if (it->id)
        json_put_raw(w, it->id, strlen(it->id));
    else
        json_put_uint64(w, it->line);
}

/* The request id lets the operator of the service find the failure in its logs. */
static void put_item_error(struct json_writer *w, const struct item *it)
{
    json_put_key(w, "error");
    json_put_begin_object(w);
    json_put_key(w, "message");
    json_put_string(w, it->err.message);
    if (it->err.http_status) {
        json_put_key(w, "status");
        json_put_int64(w, it->err.http_status);
    }
    if (it->err.request_id[0]) {
        json_put_key(w, "request_id");
        json_put_string(w, it->err.request_id);
    }
    json_put_end_object(w);
}

/* One line, in one write.  false: it could not be written. */
static bool write_item(struct run *r, struct item *it)
{
    struct buf line;
    struct json_writer w;
    buf_init(&line, TEXT_MAX);
    json_writer_init(&w, &line);
    json_put_begin_object(&w);
    put_id(&w, it);
    if (!it->failed && sample_put_result(&w, &it->job, r->b->raw, tinker_future_sample(it->future),
                                         &it->err) != TINKER_OK)
        it->failed = true;
    if (it->failed)
        put_item_error(&w, it);
    json_put_end_object(&w);
    buf_putc(&line, '\n');
    const char *p = line.data;
    size_t left = buf_ok(&line) ? line.len : 0;
    bool ok = left > 0;
    while (ok && left) {
        ssize_t k = write(r->fd, p, left);
        /* A pipe may take less than a line at once; the loop writes the rest. */
        if (k < 0 && errno == EINTR)
            continue;
        ok = k > 0;
        p += ok ? k : 0;
        left -= ok ? (size_t)k : 0;
    }
    buf_clear(&line);
    it->written = true;
    r->written++;
    r->failed += it->failed;
    progress_at(&r->bar, (int64_t)r->written, (int64_t)r->n);
    /* The result is not needed any more, and there may be a million of them. */
    tinker_future_free(it->future);
    it->future = NULL;
    sample_job_clear(&it->job);
    return ok;
}

/* ---- running ---------------------------------------------------------------------------------- */

/* A line that cannot be sent is a failed item at once: its error stands in its place in the
 * output. */
static void submit_item(struct run *r, struct item *it)
{
    struct arena arena;
    arena_init(&arena, LINE_MAX_BYTES);
    sample_job_init(&it->job, r->b->text, r->b->params);
    it->job.system = r->b->system;
    it->failed = prepare_item(it, &arena, &it->err) != TINKER_OK;
    if (!it->failed) {
        it->future = sample_job_submit(&it->job, r->sampler, NULL, NULL, &it->err);
        it->failed = !it->future;
    }
    arena_clear(&arena);
}

/* After an interrupt requests in flight get GRACE_MS each, so that work that is nearly done is
 * not thrown away. */
static void await_item(struct item *it)
{
    if (it->failed || !it->future)
        return;
    tinker_status status = api_interrupted() ? tinker_future_wait(it->future, GRACE_MS, &it->err)
                                             : api_await(it->future, &it->err);
    it->failed = status != TINKER_OK;
}

/* The next item to write among those in flight: the oldest, or (unordered) one that is ready.
 * Waiting for the oldest even when a later one is ready keeps the order; its result stays in
 * memory until then. */
static size_t choose_item(const struct run *r, size_t from, size_t to)
{
    size_t first = from;
    while (first < to && r->items[first].written)
        first++;
    for (size_t i = first; r->b->unordered && i < to; i++) {
        const struct item *it = &r->items[i];
        if (!it->written && (it->failed || (it->future && tinker_future_done(it->future))))
            return i;
    }
    return first;
}

/* Keep the window full and write what is ready.  false: the output failed.
 * `first`: everything before it is written.  `sent`: everything before it was submitted or
 * skipped.  At most `window` items lie between. */
static bool run_items(struct run *r)
{
    size_t sent = 0, first = 0, window = (size_t)r->b->concurrency;
    while (first < r->n) {
        for (; sent < r->n && sent < first + window && !api_interrupted(); sent++) {
            if (!r->items[sent].skipped)
                submit_item(r, &r->items[sent]);
            else
                r->items[sent].written = true;
        }
        size_t i = choose_item(r, first, sent);
        /* Everything in flight is written: the lines before `sent` were skipped, or the input is
         * through. */
        if (i == sent) {
            if (api_interrupted() || sent == r->n)
                return true;
            first = sent;
            continue;
        }
        await_item(&r->items[i]);
        if (api_interrupted() && r->items[i].failed)
            r->items[i].written = true; /* left out: --resume asks again */
        else if (!write_item(r, &r->items[i]))
            return false;
        while (first < sent && r->items[first].written)
            first++;
    }
    return true;
}

/* Futures of lines that were not reached after an interrupt are among them. */
static void free_items(struct run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        tinker_future_free(r->items[i].future);
        sample_job_clear(&r->items[i].job);
        free(r->items[i].id);
    }
    free(r->items);
}

/* Read the ids of all lines so that those that are done can be skipped. */
static void skip_done(struct run *r, const struct done_ids *done)
{
    for (size_t i = 0; done->n && i < r->n; i++) {
        struct item *it = &r->items[i];
        struct arena arena;
        struct json_reader reader;
        struct json_str key, raw;
        arena_init(&arena, LINE_MAX_BYTES);
        json_reader_init(&reader, it->raw.s, it->raw.n, &arena);
        char line[32], *id = NULL;
        bool ok = json_begin_object(&reader);
        while (ok && json_next_key(&reader, &key)) {
            ok = json_raw(&reader, &raw);
            if (ok && json_str_is(key, "id") && !id)
                id = copy_raw(raw);
        }
        snprintf(line, sizeof(line), "%zu", it->line);
        /* A line without an id was written with its number as one. */
        const char *key_of_line = id ? id : line;
        /* Sorted by read_done(), so each line of input costs a few comparisons. */
        it->skipped = bsearch(&key_of_line, done->v, done->n, sizeof(*done->v), compare_texts);
        free(id);
        arena_clear(&arena);
    }
}

/* `end` is where the last whole line ends; what a killed run left behind it is cut off. */
static int open_output(const struct sample_batch *b, off_t end, int *fd)
{
    *fd = STDOUT_FILENO;
    if (!b->out || strcmp(b->out, "-") == 0)
        return EXIT_OK;
    /* O_EXCL: results of hours are not overwritten by a command that was repeated. */
    *fd = open(b->out, O_WRONLY | O_CREAT | O_CLOEXEC | (b->resume ? 0 : O_EXCL), 0644);
    if (*fd < 0 && errno == EEXIST)
        return out_fail(EXIT_IO, "Use --resume to go on with it, or another name.",
                        "%s exists already", b->out);
    /* What a killed run left of a line goes. */
    if (*fd < 0 || ftruncate(*fd, end) != 0 || lseek(*fd, end, SEEK_SET) < 0)
        return out_fail(EXIT_IO, NULL, "open %s: %s", b->out, strerror(errno));
    return EXIT_OK;
}

/* An interrupt before failures: lines that were not asked are the more important news. */
static int report_batch(const struct run *r, bool ok)
{
    if (!ok)
        return out_fail(EXIT_IO, NULL, "cannot write the results: %s", strerror(errno));
    if (api_interrupted()) {
        out_say("Interrupted after %zu of %zu lines.%s", r->written, r->n,
                r->b->out ? "  Go on with --resume." : "");
        return 128 + api_interrupted();
    }
    /* The other lines are good, hence a status of its own. */
    if (r->failed)
        return out_fail(EXIT_PARTIAL, "Their lines have an \"error\"; --resume tries them again.",
                        "%zu of %zu lines failed", r->failed, r->n);
    return EXIT_OK;
}

/* The output is opened before the first request: hours of work must not end with a file that
 * cannot be written. */
int sample_batch_run(const struct sample_batch *b, tinker_sampler *s)
{
    struct run r = { .b = b, .sampler = s, .fd = -1 };
    struct done_ids done = { 0 };
    char *text;
    size_t n;
    off_t end = 0;
    int status;
    /* The whole input is read: lines are pointed at, not copied, and --resume must know all ids. */
    if (!text_model_read(b->in, &text, &n, &status))
        return status;
    r.items = split_lines(text, n, &r.n);
    bool ok = r.items && (!b->resume || read_done(b->out, &done, &end));
    status = ok ? open_output(b, end, &r.fd) : out_fail(EXIT_FAILED, NULL, "out of memory");
    if (status == EXIT_OK) {
        skip_done(&r, &done);
        progress_start(&r.bar, "Sampling");
        bool written = run_items(&r);
        progress_end(&r.bar);
        if (r.fd != STDOUT_FILENO && close(r.fd) != 0)
            written = false;
        status = report_batch(&r, written);
    }
    for (size_t i = 0; i < done.n; i++)
        free(done.v[i]);
    free(done.v);
    if (r.items)
        free_items(&r);
    free(text);
    return status;
}
