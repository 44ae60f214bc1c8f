/* rows.c - read and check a whole data file.
 *
 * The file stays in memory: raw rows are handed to graders as they stand.  Nothing is given up at
 * the first problem; all of them are counted and told. */
#include "recipe/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/os.h"

enum { MAX_LINE = 64 << 20 };
/* A line of 64 MiB is a mistake (a file without line ends); 16 GiB is more than fits the memory
 * of most machines that would read it. */
static const size_t max_file = (size_t)16 << 30;

void row_clear(struct row *row)
{
    for (int i = 0; i < 2; i++) {
        tinker_conversation_free(row->talk[i]);
        tinker_training_row_free(row->datum[i]);
    }
}

void tinker_rows_free(tinker_rows *x)
{
    if (!x)
        return;
    for (size_t i = 0; i < x->n; i++)
        row_clear(&x->rows[i]);
    free(x->rows);
    free(x->train);
    free(x->test);
    free(x->epoch_order);
    free(x->fixed);
    free(x->batch);
    free(x->test_data);
    free(x->path);
    free(x->data);
    arena_clear(&x->arena);
    free(x);
}

/* Columns count from the row's own column, because rows of a JSON array need not begin a line. */
void rows_problem(tinker_rows *x, const struct row *row, const struct row_problem *p)
{
    size_t column = p->column + row->column - 1;
    if (x->problems++ == 0)
        snprintf(x->first_problem, sizeof(x->first_problem), "%.100s:%zu:%zu: %.240s", x->path,
                 row->line, column, p->reason);
    if (x->opts.problem)
        x->opts.problem(row->line, column, p->reason, x->opts.problem_state);
}

/* ---- what a row says ---- */

/* The last answer is what an evaluation expects and what training in a conversation is about. */
static size_t find_last_answer(const tinker_conversation *c)
{
    size_t i = c->n_messages;
    while (i > 0 && strcmp(c->messages[i - 1].role, "assistant") != 0)
        i--;
    return i; /* one behind it; 0: none */
}

/* The prompt is a view of the conversation without its last answer: it borrows the messages and
 * is not freed. */
static bool set_prompt(tinker_rows *x, struct row *row)
{
    const tinker_conversation *c = row->talk[0];
    size_t last = find_last_answer(c);
    row->prompt = *c;
    row->prompt.n_messages = last ? last - 1 : c->n_messages;
    if (!last || last < c->n_messages)
        x->stats.no_answer_last++;
    if (row->expected || !last)
        return true;
    tinker_text text = TINKER_TEXT_INIT;
    bool ok = tinker_message_text(&c->messages[last - 1], &text, NULL) == TINKER_OK;
    row->expected = ok ? arena_strndup(&x->arena, text.s ? text.s : "", text.n) : NULL;
    tinker_text_clear(&text);
    return row->expected != NULL;
}

/* The conversation copies what it keeps, so the text can go at once. */
static bool read_talk(tinker_rows *x, struct row *row, struct row_parts *p, int side)
{
    struct buf json;
    tinker_error err;
    buf_init(&json, SIZE_MAX / 2);
    bool ok = row_parts_talk(p, x->stats.form, side, &json);
    if (ok) {
        row->talk[side] = tinker_conversation_parse(json.data, json.len, &err);
        if (!row->talk[side])
            ok = row_parts_fail(p, NULL, "%s", err.message);
    }
    buf_clear(&json);
    return ok;
}

/* Whole conversations without a prompt must have a beginning in common. */
static bool check_pair(struct row *row, struct row_parts *p)
{
    tinker_text a = TINKER_TEXT_INIT, b = TINKER_TEXT_INIT;
    bool same = row->talk[0]->n_messages > 1 && row->talk[1]->n_messages > 1 &&
                tinker_message_to_json(&row->talk[0]->messages[0], &a, NULL) == TINKER_OK &&
                tinker_message_to_json(&row->talk[1]->messages[0], &b, NULL) == TINKER_OK &&
                a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    tinker_text_clear(&a);
    tinker_text_clear(&b);
    return same || row_parts_fail(p, NULL,
                                  "chosen and rejected have no first message in common, and there "
                                  "is no prompt");
}

/* One form per file, decided by the first row unless the caller says which: a stray row of
 * another form is most likely a mistake in the data. */
static bool check_form(tinker_rows *x, struct row_parts *p)
{
    tinker_row_form form = row_parts_form(p);
    if (form == TINKER_FORM_AUTO)
        return row_parts_fail(p, NULL,
                              "no form recognized; accepted: messages, conversations, "
                              "prompt/completion, instruction/output, question/answer, "
                              "chosen/rejected, text, tokens");
    if (x->stats.form == TINKER_FORM_AUTO)
        x->stats.form = form;
    if (form == x->stats.form)
        return true;
    /* a row of prompt and completion may be read as a prompt alone */
    if (x->stats.form == TINKER_FORM_PROMPT && p->at[ROW_PROMPT].s)
        return true;
    return row_parts_fail(p, NULL, "this row is \"%s\", the file %s \"%s\"",
                          tinker_row_form_name(form),
                          x->opts.form == TINKER_FORM_AUTO ? "began as" : "is to be",
                          tinker_row_form_name(x->stats.form));
}

/* weight -1 marks a tie, which add_row() drops without counting a problem. */
static bool read_row(tinker_rows *x, struct row *row, struct row_problem *problem)
{
    struct row_parts p;
    if (!row_parts_read(&p, row->raw.s, row->raw.n, &x->arena, problem) || !check_form(x, &p) ||
        !row_parts_weight(&p, &row->weight))
        return false;
    if (x->stats.form == TINKER_FORM_TOKENS)
        return row_parts_tokens(&p, &row->tokens, &row->weights, &row->n_tokens);
    if (x->stats.form == TINKER_FORM_TEXT)
        return row_parts_string(&p, ROW_TEXT, &row->text);
    if (!row_parts_expected(&p, &row->expected) || !read_talk(x, row, &p, 0))
        return false;
    row->trainable = p.trainable;
    if (x->stats.form == TINKER_FORM_PAIR || x->stats.form == TINKER_FORM_COMPARISON) {
        if (!read_talk(x, row, &p, 1) || (!p.at[ROW_PROMPT].s && !check_pair(row, &p)))
            return false;
        if (p.tie) {
            x->stats.ties++;
            row->weight = -1; /* left out */
        }
    }
    return set_prompt(x, row) || row_parts_fail(&p, NULL, "out of memory");
}

/* ---- the file ---- */

/* false only without memory; a row with a problem is reported and not kept. */
static bool add_row(tinker_rows *x, const char *s, size_t n, size_t line, size_t column)
{
    struct row_problem problem;
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        struct row *rows = realloc(x->rows, cap * sizeof(*rows));
        if (!rows)
            return false;
        x->rows = rows;
        x->cap = cap;
    }
    struct row *row = &x->rows[x->n];
    *row = (struct row){ .raw = { s, n }, .line = line, .column = column, .weight = 1 };
    if (n > MAX_LINE)
        problem = (struct row_problem){ 1, "longer than 64 MiB" };
    else if (read_row(x, row, &problem)) {
        if (row->weight >= 0)
            x->n++;
        else
            row_clear(row);
        return true;
    }
    rows_problem(x, row, &problem);
    row_clear(row);
    return true;
}

static bool read_lines(tinker_rows *x, size_t skip)
{
    size_t line = 0;
    for (size_t at = skip; at < x->n_data;) {
        const char *s = x->data + at, *end = memchr(s, '\n', x->n_data - at);
        size_t n = end ? (size_t)(end - s) : x->n_data - at;
        line++;
        bool blank = strspn(s, " \t\r") >= n;
        if (!blank && !add_row(x, s, n, line, 1))
            return false;
        at += n + 1;
    }
    return true;
}

/* One array of all rows.  Lines are counted from where the last row was found. */
static bool read_array(tinker_rows *x, size_t skip)
{
    struct json_reader r;
    struct json_str item;
    size_t line = 1;
    const char *seen = x->data, *begin = x->data;
    json_reader_init(&r, x->data + skip, x->n_data - skip, &x->arena);
    json_begin_array(&r);
    while (json_next_item(&r)) {
        if (!json_raw(&r, &item))
            break;
        for (; seen < item.s; seen++)
            if (*seen == '\n') {
                line++;
                begin = seen + 1;
            }
        if (!add_row(x, item.s, item.n, line, (size_t)(item.s - begin) + 1))
            return false;
    }
    if (!json_end(&r)) {
        struct row nowhere = { .line = line, .column = 1 };
        struct row_problem problem = { 1, "" };
        snprintf(problem.reason, sizeof(problem.reason), "not JSON: %s", json_error(&r));
        rows_problem(x, &nowhere, &problem);
    }
    return true;
}

/* A search of bytes is enough to tell a list of messages from a list of rows. */
static bool find_role(const char *s, size_t n)
{
    static const char role[] = "\"role\"";
    for (size_t i = 0; i + sizeof(role) - 1 <= n; i++)
        if (memcmp(s + i, role, sizeof(role) - 1) == 0)
            return true;
    return false;
}

/* A file whose first line is a list of messages alone is one of lines, too. */
static bool is_array_of_rows(const char *s)
{
    s += strspn(s, " \t\r\n");
    if (*s != '[')
        return false;
    s += 1 + strspn(s + 1, " \t\r\n");
    if (*s != '{')
        return *s == ']';
    const char *end = strchr(s, '\n');
    size_t n = end ? (size_t)(end - s) : strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        n--;
    /* messages begin with a role; rows do not */
    return !(n && s[n - 1] == ']' && find_role(s, n < 40 ? n : 40));
}

/* Standard input has no size to map, so it is collected; the newline makes sure that the last
 * line ends. */
static bool read_file(tinker_rows *x, tinker_error *err)
{
    if (strcmp(x->path, "-") == 0) {
        struct buf all;
        char part[65536];
        buf_init(&all, max_file);
        while (!feof(stdin) && !ferror(stdin) && !all.failed)
            buf_append(&all, part, fread(part, 1, sizeof(part), stdin));
        buf_putc(&all, '\n');
        x->data = buf_detach(&all, &x->n_data);
        if (!x->data)
            err_nomem(err, "standard input");
    } else if (os_read_file(x->path, max_file, &x->data, &x->n_data, err) != TINKER_OK) {
        return false;
    }
    return x->data != NULL;
}

/* Training reads the marks of messages only when all have them. Marks on some rows only would
 * silently train nothing of the others. */
static void choose_train_on(tinker_rows *x)
{
    bool some = false, all = x->n > 0;
    struct row *lacking = NULL;
    for (size_t i = 0; i < x->n; i++) {
        some = some || x->rows[i].trainable != ROW_TRAINABLE_NONE;
        if (x->rows[i].trainable != ROW_TRAINABLE_ALL) {
            all = false;
            lacking = lacking ? lacking : &x->rows[i];
        }
    }
    if (all)
        x->opts.train_on = TINKER_TRAIN_CUSTOMIZED;
    else if (some) {
        struct row_problem p = { 1, "a message has no \"train\", which others of the file have" };
        rows_problem(x, lacking, &p);
    }
}

static tinker_status fail_with_problems(const tinker_rows *x, tinker_error *err)
{
    if (x->problems > 1)
        return err_set(err, TINKER_EINVAL, "%s (and %zu more)", x->first_problem, x->problems - 1);
    return err_set(err, TINKER_EINVAL, "%s", x->first_problem);
}

/* Parse everything, then render everything: problems of all rows are told before the first is
 * tokenized, which takes most of the time. */
static tinker_status load_rows(tinker_rows *x, const tinker_renderer *renderer,
                               const tinker_tokenizer *tokenizer, tinker_error *err)
{
    if (!read_file(x, err))
        return TINKER_ESTATE;
    size_t skip = strncmp(x->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    x->stats.form = x->opts.form;
    bool ok = is_array_of_rows(x->data + skip) ? read_array(x, skip) : read_lines(x, skip);
    if (!ok)
        return err_nomem(err, x->path);
    if (!x->opts.prompts_only) {
        choose_train_on(x);
        if (!x->problems && !rows_render(x, renderer, tokenizer))
            return err_nomem(err, x->path);
    }
    if (x->problems)
        return fail_with_problems(x, err);
    if (x->n == 0)
        return err_set(err, TINKER_EINVAL, "%s: there are no rows%s", x->path,
                       x->stats.dropped ? " left: all are longer than the longest allowed, or "
                                          "train nothing"
                                        : "");
    return rows_arrange(x, err) ? TINKER_OK : TINKER_EINVAL;
}

tinker_rows *tinker_rows_load(const char *path, const tinker_renderer *renderer,
                              const tinker_tokenizer *tokenizer, const tinker_rows_options *opts,
                              tinker_error *err)
{
    tinker_rows *x = calloc(1, sizeof(*x));
    const tinker_rows_options defaults = TINKER_ROWS_OPTIONS_INIT;
    if (!x || !(x->path = strdup(path))) {
        free(x);
        err_nomem(err, "rows");
        return NULL;
    }
    arena_init(&x->arena, SIZE_MAX);
    x->opts = defaults;
    if ((opts &&
         opts_copy(&x->opts, sizeof(x->opts), opts, "tinker_rows_options", err) != TINKER_OK) ||
        load_rows(x, renderer, tokenizer, err) != TINKER_OK) {
        tinker_rows_free(x);
        return NULL;
    }
    return x;
}

tinker_rows_stats tinker_rows_count(const tinker_rows *x)
{
    return x->stats;
}

tinker_status tinker_rows_prompt(const tinker_rows *x, size_t row, tinker_row *out,
                                 tinker_error *err)
{
    if (row >= x->n)
        return err_set(err, TINKER_EINVAL, "%s: there is no row %zu", x->path, row);
    const struct row *r = &x->rows[row];
    if (!r->talk[0])
        return err_set(err, TINKER_EINVAL, "%s:%zu: a row of \"%s\" has no prompt", x->path,
                       r->line, tinker_row_form_name(x->stats.form));
    *out = (tinker_row){ &r->prompt, r->expected, r->raw.s, r->raw.n, r->line };
    return TINKER_OK;
}
