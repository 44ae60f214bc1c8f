/* train_view.c - see train_view.h. */
#include "cli/train/train_view.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "recipe/plot.h"

/* LABEL: width of the first column.  Sparkline cells between SPARK_MIN and SPARK_MAX; fewer than
 * SPARK_MIN show no shape.  MAX_EXAMPLE: bytes of the example row. */
enum { LABEL = 7, SPARK_MIN = 6, SPARK_MAX = 24, MAX_EXAMPLE = 1200 };

/* One line that is redrawn needs a terminal; a log file, CI or --json gets a line per step
 * instead. */
void train_view_init(struct train_view *v)
{
    *v = (struct train_view){ .start_ns = clock_now_ns(clock_real()) };
    v->live =
        out_can_draw(STDERR_FILENO) && !globals.json && !globals.quiet && !globals.no_progress;
}

void train_view_clear(struct train_view *v)
{
    if (v->line_open)
        fputc('\n', stderr);
    v->line_open = false;
    free(v->values);
    v->values = NULL;
}

double train_view_seconds(const struct train_view *v)
{
    return (double)(clock_now_ns(clock_real()) - v->start_ns) / 1e9;
}

/* A line that is being redrawn is ended first; it stays on the screen as the last state. */
void train_view_say(struct train_view *v, const char *label, const char *fmt, ...)
{
    va_list ap;
    if (globals.quiet)
        return;
    if (v->line_open)
        fputc('\n', stderr);
    v->line_open = false;
    fprintf(stderr, "%-*s", LABEL, label);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* Groups of three, by hand: the locale is "C", which has no separator. */
void train_view_count(struct buf *out, size_t n)
{
    char digits[32];
    int len = snprintf(digits, sizeof(digits), "%zu", n);
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            buf_putc(out, ',');
        buf_putc(out, digits[i]);
    }
}

/* Rounded up: an estimate that ends too early annoys, one that ends too late does not.  Below
 * 100 seconds and 90 minutes the finer unit still says more. */
static void put_duration(struct buf *out, double seconds)
{
    long s = (long)ceil(seconds);
    if (s < 100)
        buf_printf(out, "%ld s", s);
    else if (s < 5400)
        buf_printf(out, "%ld min", (s + 59) / 60);
    else
        buf_printf(out, "%ld h %02ld min", s / 3600, s / 60 % 60);
}

/* Without memory the sparkline just stops growing; no run fails for a drawing. */
static void keep_value(struct train_view *v, double value)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 64;
        double *grown = realloc(v->values, cap * sizeof(*grown));
        if (!grown)
            return;
        v->values = grown;
        v->cap = cap;
    }
    v->values[v->n++] = value;
}

/* Parts by importance: what does not fit into the width is left out from the end, and the
 * sparkline takes what is left. */
static void put_step_line(struct buf *out, struct train_view *v, const char *head,
                          const char *const *parts, size_t n, size_t width)
{
    size_t used = strlen(head), shown = 0;
    bool spark = width == 0 || used + 2 + SPARK_MIN < width;
    size_t reserve = spark ? 2 + SPARK_MIN : 0;
    while (shown < n && (width == 0 || used + 2 + strlen(parts[shown]) + reserve < width)) {
        if (*parts[shown])
            used += 2 + strlen(parts[shown]);
        shown++;
    }
    /* Without a width (a log file) the line may be any length; in a terminal one column stays free,
     * since some wrap when the last one is filled. */
    size_t cells = width == 0 ? SPARK_MAX / 2 : width - used - 3;
    buf_puts(out, head);
    if (spark && v->n > 1) {
        buf_puts(out, "  ");
        plot_sparkline(out, v->values, v->n, cells < SPARK_MAX ? cells : SPARK_MAX);
    }
    for (size_t i = 0; i < shown; i++)
        if (*parts[i])
            buf_printf(out, "  %s", parts[i]);
}

void train_view_step(struct train_view *v, size_t done, size_t total, size_t first,
                     const char *name, double value, const char *numbers, double rate,
                     size_t tokens)
{
    char head[64], lr[32];
    struct buf speed, eta, line;
    int wide = snprintf(NULL, 0, "%zu", total);
    keep_value(v, value);
    v->tokens += tokens;
    if (globals.quiet || globals.json)
        return;
    buf_init(&speed, 64);
    buf_init(&eta, 64);
    buf_init(&line, 4096);
    double seconds = train_view_seconds(v);
    /* The estimate counts steps of this process only (done - first): after a resume the steps
     * before it took none of this process's time. */
    snprintf(head, sizeof(head), "%-*s%*zu/%zu  %s %.3f", LABEL, "step", wide, done, total, name,
             value);
    snprintf(lr, sizeof(lr), "lr %.1e", rate);
    train_view_count(&speed, (size_t)((double)v->tokens / (seconds > 0 ? seconds : 1)));
    buf_puts(&speed, " tok/s");
    if (done < total && done > first) {
        buf_puts(&eta, "eta ");
        put_duration(&eta, seconds / (double)(done - first) * (double)(total - done));
    }
    /* By importance: numbers of the task, when it ends, how fast, the rate. */
    const char *parts[] = { numbers, eta.len ? eta.data : "", speed.data, lr };
    put_step_line(&line, v, head, parts, 4, v->live ? out_width(STDERR_FILENO) : 0);
    if (buf_ok(&line)) {
        if (v->live)
            fprintf(stderr, "\r%s\033[K", line.data);
        else
            fprintf(stderr, "%s\n", line.data);
        v->line_open = v->live;
        fflush(stderr);
    }
    buf_clear(&speed);
    buf_clear(&eta);
    buf_clear(&line);
}

/* Control characters would move the cursor; a newline shows as a sign and breaks the line. */
static void put_printable(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\n')
            buf_puts(out, "\\n\n       ");
        else if ((unsigned char)s[i] >= ' ' && s[i] != 127)
            buf_putc(out, s[i]);
}

/* Runs of tokens with and without weight, decoded as a whole so that characters stay whole. */
void train_view_example(struct train_view *v, const tinker_datum *d,
                        const tinker_tokenizer *tokenizer, size_t number, size_t of)
{
    struct buf out;
    const tinker_chunk *c = d->model_input.n_chunks ? &d->model_input.chunks[0] : NULL;
    const tinker_tensor *t = &d->inputs[0].tensor, *w = &d->inputs[1].tensor;
    bool color = out_can_draw(STDERR_FILENO) && !globals.no_color && !getenv("NO_COLOR");
    if (globals.quiet || globals.json || !c || c->kind != TINKER_CHUNK_TEXT)
        return;
    buf_init(&out, 1 << 20);
    const int64_t *targets = t->data;
    const float *weights = w->data;
    /* Targets are the input shifted by one, so first token and targets together are the row. */
    size_t n = t->n;
    for (size_t i = 0; i <= n && out.len < MAX_EXAMPLE;) {
        /* Position 0 is the first token, which nothing predicts; token i > 0 is targets[i - 1]
         * with its weight. */
        bool trained = i > 0 && weights[i - 1] != 0;
        tinker_tokens ids = TINKER_TOKENS_INIT;
        tinker_text text = TINKER_TEXT_INIT;
        do {
            int32_t id = i == 0 ? c->tokens[0] : (int32_t)targets[i - 1];
            tinker_tokens_append(&ids, &id, 1, NULL);
            i++;
        } while (i <= n && (weights[i - 1] != 0) == trained);
        tinker_tokenizer_decode(tokenizer, ids.ids, ids.n, NULL, &text, NULL);
        if (trained)
            buf_puts(&out, color ? "\033[32m" : "‹");
        put_printable(&out, text.s ? text.s : "", text.n);
        if (trained)
            buf_puts(&out, color ? "\033[0m" : "›");
        tinker_tokens_clear(&ids);
        tinker_text_clear(&text);
    }
    while (out.len && strchr(" \n", out.data[out.len - 1]))
        out.data[--out.len] = 0;
    train_view_say(v, "row", "%zu of %zu, what is trained %s", number, of,
                   color ? "in green" : "between ‹ and ›");
    if (out.len)
        fprintf(stderr, "       %s%s\n", out.data, out.len >= MAX_EXAMPLE ? " ..." : "");
    buf_clear(&out);
}
