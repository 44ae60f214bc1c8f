/* grader.c - graders by name; each compares the text of an answer with what was expected. */
#include "recipe/grader.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/number.h"
#include "json/json.h"
#include "recipe/grade_text.h"

enum { MAX_WORKERS = 64 };

/* What one judgment may use. */
struct judgment {
    const tinker_grader *g;
    const tinker_grade *item;
    struct arena *arena;
    const char *expected; /* one of those that are accepted */
};

/* ---- texts ---- */

/* Trimmed; without case and with single blanks and no final full stop if asked for. */
static char *simplify_text(struct judgment *j, const char *s)
{
    const tinker_grader_options *o = &j->g->opts;
    char *out = arena_alloc(j->arena, strlen(s) + 1), *to = out;
    /* Leading blanks are not part of an answer, whatever the options say. */
    s += strspn(s, " \t\r\n");
    for (; out && *s; s++) {
        bool blank = strchr(" \t\r\n", *s) != NULL;
        if (blank && o->normalize && to > out && to[-1] == ' ')
            continue;
        char c = blank && o->normalize ? ' ' : *s;
        *to++ = o->ignore_case ? (char)tolower((unsigned char)c) : c;
    }
    while (out && to > out && strchr(" \t\r\n", to[-1]))
        to--;
    /* "42." and "42" are the same answer, but 4.2 keeps its point. */
    if (out && o->normalize && to > out && to[-1] == '.')
        to--;
    if (out)
        *to = 0;
    return out;
}

/* 1 or 0; NaN is reserved for rows that cannot be judged, see tinker_grader_run(). */
static double grade_exact(struct judgment *j)
{
    /* Without memory the answer counts as wrong; the next allocation will say why. */
    char *a = simplify_text(j, j->item->text), *b = simplify_text(j, j->expected);
    return a && b && strcmp(a, b) == 0;
}

static double grade_contains(struct judgment *j)
{
    char *a = simplify_text(j, j->item->text), *b = simplify_text(j, j->expected);
    return a && b && strstr(a, b) != NULL;
}

/* A member of the row that is a text; NULL: none. The row is the raw line of the data file, kept
 * for graders that need more than "expected". */
static char *row_text(struct judgment *j, const char *name)
{
    struct json_reader r;
    struct json_str key;
    char *out = NULL;
    if (!j->item->row)
        return NULL;
    json_reader_init(&r, j->item->row, strlen(j->item->row), j->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, name) && json_peek(&r) == JSON_STRING)
            json_cstring(&r, &out);
        else
            json_skip(&r);
    }
    return out;
}

/* With a group, what it matched must be what was expected; else a match is enough. POSIX
 * extended expressions. A pattern of the grader is compiled once in tinker_grader_new(); a row's
 * own pattern for this judgment only. */
static double grade_regex(struct judgment *j)
{
    regmatch_t m[2];
    regex_t own;
    const regex_t *pattern = &j->g->pattern;
    if (!j->g->has_pattern) {
        /* A row without a pattern cannot be judged: NaN, and a reason. */
        char *text = row_text(j, "pattern");
        if (!text || regcomp(&own, text, REG_EXTENDED) != 0)
            return NAN;
        pattern = &own;
    }
    bool matched = regexec(pattern, j->item->text, 2, m, 0) == 0;
    if (matched && pattern->re_nsub > 0) {
        /* A group that took no part in the match is empty. */
        size_t n = m[1].rm_so < 0 ? 0 : (size_t)(m[1].rm_eo - m[1].rm_so);
        char *part = arena_strndup(j->arena, j->item->text + (n ? m[1].rm_so : 0), n);
        char *a = part ? simplify_text(j, part) : NULL, *b = simplify_text(j, j->expected);
        matched = a && b && strcmp(a, b) == 0;
    }
    if (!j->g->has_pattern)
        regfree(&own);
    return matched;
}

/* See grade_text.h for how a number is found in an answer. */
static double grade_number(struct judgment *j)
{
    char *found = grade_find_number(j->arena, j->item->text);
    char *wanted = grade_expected_number(j->arena, j->expected);
    /* Both as texts: 0.1 and 1e-1 are compared by value, large integers digit by digit. */
    return found && wanted && grade_equal_numbers(found, wanted, j->g->tolerance);
}

/* The options of a row, for an expected answer that is one of their texts. SIZE_MAX: the
 * expected answer is not the text of an option. *count tells how many letters the question has. */
static size_t find_option(struct judgment *j, size_t *count)
{
    struct json_reader r;
    struct json_str key, item;
    size_t found = SIZE_MAX, n = 0;
    *count = 0;
    if (!j->item->row)
        return found;
    json_reader_init(&r, j->item->row, strlen(j->item->row), j->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (!json_str_is(key, "choices") || json_peek(&r) != JSON_ARRAY) {
            json_skip(&r);
            continue;
        }
        json_begin_array(&r);
        for (n = 0; json_next_item(&r); n++)
            /* Options that are no texts still count as letters. */
            if (json_peek(&r) != JSON_STRING || !json_string(&r, &item))
                json_skip(&r);
            else if (json_str_is(item, j->expected))
                found = n;
    }
    *count = n;
    return found;
}

/* Expected: a letter, an index from 0, or the text of an option. Which letters count: those of
 * the argument, else as many as the row has options, else A to D. A letter wins over an index,
 * so an option whose text is "3" is not taken for the fourth. */
static double grade_choice(struct judgment *j)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char letters[27] = "ABCD";
    size_t count, option = find_option(j, &count);
    if (j->g->argument)
        snprintf(letters, sizeof(letters), "%s", j->g->argument);
    else if (count > 0 && count <= 26)
        snprintf(letters, sizeof(letters), "%.*s", (int)count, alphabet);
    char wanted = 0;
    size_t index = (size_t)strtoul(j->expected, NULL, 10);
    if (strlen(j->expected) == 1 && isalpha((unsigned char)*j->expected))
        wanted = (char)toupper((unsigned char)*j->expected);
    else if (option < strlen(letters))
        wanted = letters[option];
    else if (isdigit((unsigned char)*j->expected) && index < strlen(letters))
        wanted = letters[index];
    return wanted && grade_find_letter(j->item->text, letters) == wanted;
}

/* The expected answer may be a whole worked solution, as in MATH, or what its box holds. */
static double grade_boxed(struct judgment *j)
{
    char *found = grade_find_boxed(j->arena, j->item->text);
    char *inner = grade_find_boxed(j->arena, j->expected);
    return found && grade_equal_boxed(j->arena, found, inner ? inner : j->expected);
}

/* In tokens as they were sampled, special tokens included. */
static double grade_length(struct judgment *j)
{
    return j->item->tokens >= j->g->low && j->item->tokens <= j->g->high;
}

/* ---- JSON ---- */

/* Without the fence of a code block around it. Chat models wrap JSON in ```json even when told
 * not to; the form is not what this grader judges. */
static const char *unwrap_fence(const char *s, size_t *n)
{
    s += strspn(s, " \t\r\n");
    if (strncmp(s, "```", 3) == 0) {
        /* The language behind the fence goes with its line. */
        s += strcspn(s, "\n");
        s += *s == '\n';
        const char *end = strstr(s, "```");
        *n = end ? (size_t)(end - s) : strlen(s);
        return s;
    }
    *n = strlen(s);
    return s;
}

/* One step of a path like "items.0.name": a member of an object, or an element by its number.
 * The last of repeated members counts, as in Python. */
static bool find_member(struct json_reader *r, const char *path, size_t n, struct json_str *out)
{
    struct json_str key;
    /* Every member is read to its end, so that a broken object is noticed. */
    bool found = false;
    if (json_peek(r) == JSON_OBJECT) {
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            if (key.n == n && memcmp(key.s, path, n) == 0)
                found = json_raw(r, out);
            else
                json_skip(r);
        }
    } else if (json_peek(r) == JSON_ARRAY) {
        /* strtoul() takes a name for 0, hence the test for a digit below. */
        size_t want = (size_t)strtoul(path, NULL, 10), i = 0;
        json_begin_array(r);
        for (; json_next_item(r); i++)
            if (i == want && isdigit((unsigned char)*path))
                found = json_raw(r, out);
            else
                json_skip(r);
    }
    return found;
}

static bool equal_json(struct arena *a, struct json_str x, struct json_str y, int depth);

/* Every member of x is in y, and there are as many. Quadratic in the number of members: answers
 * are short, and no table has to be built. Names are taken to be unique. */
static bool equal_objects(struct arena *a, struct json_str x, struct json_str y, int depth)
{
    struct json_reader r, q;
    struct json_str key, value, other;
    size_t n = 0, m = 0;
    json_reader_init(&r, x.s, x.n, a);
    json_begin_object(&r);
    for (; json_next_key(&r, &key) && json_raw(&r, &value); n++) {
        json_reader_init(&q, y.s, y.n, a);
        if (!find_member(&q, key.s, key.n, &other) || !equal_json(a, value, other, depth + 1))
            return false;
    }
    json_reader_init(&q, y.s, y.n, a);
    json_begin_object(&q);
    for (; json_next_key(&q, &key) && json_skip(&q); m++)
        ;
    return n == m;
}

static bool equal_arrays(struct arena *a, struct json_str x, struct json_str y, int depth)
{
    struct json_reader r, q;
    struct json_str value, other;
    json_reader_init(&r, x.s, x.n, a);
    json_reader_init(&q, y.s, y.n, a);
    json_begin_array(&r);
    json_begin_array(&q);
    for (;;) {
        bool more = json_next_item(&r), too = json_next_item(&q);
        if (!more || !too)
            return more == too;
        if (!json_raw(&r, &value) || !json_raw(&q, &other) ||
            !equal_json(a, value, other, depth + 1))
            return false;
    }
}

/* Deep equality; numbers by value, members in any order. The depth is bounded because the text
 * is a model's: without it deep nesting would exhaust the stack. */
static bool equal_json(struct arena *a, struct json_str x, struct json_str y, int depth)
{
    struct json_reader r, q;
    struct json_str s, t;
    double v, w;
    json_reader_init(&r, x.s, x.n, a);
    json_reader_init(&q, y.s, y.n, a);
    enum json_kind kind = json_peek(&r);
    /* 64 levels are more than any expected answer has. */
    if (depth > 64 || kind != json_peek(&q))
        return false;
    switch (kind) {
    case JSON_OBJECT:
        return equal_objects(a, x, y, depth);
    case JSON_ARRAY:
        return equal_arrays(a, x, y, depth);
    case JSON_NUMBER:
        /* 1 and 1.0 are equal here, unlike in their spelling. */
        return json_double(&r, &v) && json_double(&q, &w) && v == w;
    case JSON_STRING:
        return json_string(&r, &s) && json_string(&q, &t) && s.n == t.n &&
               memcmp(s.s, t.s, s.n) == 0;
    default:
        /* true, false and null. */
        return x.n == y.n && memcmp(x.s, y.s, x.n) == 0;
    }
}

/* An expected text that is no JSON stands for the string. */
static double grade_json(struct judgment *j)
{
    struct json_reader r;
    size_t n;
    const char *text = unwrap_fence(j->item->text, &n);
    struct json_str value, wanted = { j->expected, strlen(j->expected) };
    json_reader_init(&r, text, n, j->arena);
    /* Text behind the JSON makes the answer wrong: a parser would refuse it. */
    if (!json_raw(&r, &value) || !json_end(&r))
        return 0;
    for (const char *path = j->g->argument; path && *path;) {
        size_t len = strcspn(path, ".");
        json_reader_init(&r, value.s, value.n, j->arena);
        if (!find_member(&r, path, len, &value))
            return 0;
        path += len;
        path += *path == '.';
    }
    json_reader_init(&r, wanted.s, wanted.n, j->arena);
    if (json_skip(&r) && json_end(&r))
        return equal_json(j->arena, value, wanted, 0);
    json_reader_init(&r, value.s, value.n, j->arena);
    return json_peek(&r) == JSON_STRING && json_string(&r, &value) && value.n == wanted.n &&
           memcmp(value.s, wanted.s, wanted.n) == 0;
}

/* ---- by name ---- */

/* The one table of graders. A command has no function here: it judges whole batches, see
 * grader_command.c. */
static const struct grader_kind {
    const char *name;
    double (*grade)(struct judgment *j);
    bool needs_expected;
} kinds[] = {
    { "exact", grade_exact, true },   { "contains", grade_contains, true },
    { "regex", grade_regex, false },  { "number", grade_number, true },
    { "choice", grade_choice, true }, { "boxed", grade_boxed, true },
    { "json", grade_json, true },     { "length", grade_length, false },
    { "cmd", NULL, false },
};

static const struct grader_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

const char *tinker_grader_name(const tinker_grader *g)
{
    return g->name;
}

double tinker_grader_weight(const tinker_grader *g)
{
    return g->weight;
}

void tinker_grader_free(tinker_grader *g)
{
    if (!g)
        return;
    if (g->has_pattern)
        regfree(&g->pattern);
    for (size_t i = 0; g->commands && i < g->opts.workers; i++)
        grader_command_free(g->commands[i]);
    free(g->commands);
    free(g->spec);
    free(g);
}

/* "name[:argument][@weight]"; in a command an @ is part of it. The spec is cut in place; g owns
 * it and name and argument point into it. */
static tinker_status split_spec(tinker_grader *g, tinker_error *err)
{
    char *colon = strchr(g->spec, ':'), *at = strrchr(g->spec, '@');
    g->name = g->spec;
    g->weight = 1;
    /* "cmd:grep @" is a command with an @. */
    bool command = colon && strncmp(g->spec, "cmd:", 4) == 0;
    if (at && !command) {
        *at = 0;
        if (!number_read(at + 1, &g->weight))
            return err_set(err, TINKER_EINVAL, "'%s' is not a weight of a grader", at + 1);
    }
    /* A colon behind the @ would belong to the weight, which has none. */
    if (colon && (!at || colon < at || command)) {
        *colon = 0;
        g->argument = colon + 1;
    }
    return TINKER_OK;
}

static tinker_status make_commands(tinker_grader *g, const char *command, tinker_error *err)
{
    if (g->opts.workers < 1 || g->opts.workers > MAX_WORKERS)
        return err_set(err, TINKER_EINVAL, "a grader has 1 to %d workers", MAX_WORKERS);
    g->commands = calloc(g->opts.workers, sizeof(*g->commands));
    for (size_t i = 0; g->commands && i < g->opts.workers; i++) {
        g->commands[i] = grader_command_new(command, &g->opts, i, err);
        if (!g->commands[i])
            return TINKER_ENOMEM;
    }
    return g->commands ? TINKER_OK : err_nomem(err, "a grader");
}

/* Arguments are checked when the grader is made, so that a wrong one is told before a model is
 * asked anything. */
static tinker_status read_argument(tinker_grader *g, tinker_error *err)
{
    const char *s = g->argument;
    char *end;
    if (strcmp(g->name, "number") == 0) {
        g->tolerance = 1e-5;
        if (s && !(number_read(s, &g->tolerance) && g->tolerance >= 0))
            return err_set(err, TINKER_EINVAL, "'%s' is not a tolerance", s);
    } else if (strcmp(g->name, "length") == 0) {
        /* Both ends, so that length:40 is refused rather than guessed. */
        g->low = s ? strtoul(s, &end, 10) : 0;
        g->high = s && *end == '-' ? strtoul(end + 1, &end, 10) : 0;
        if (!s || *end || g->high < g->low)
            return err_set(err, TINKER_EINVAL, "length needs a range of tokens: length:1-40");
    } else if (strcmp(g->name, "regex") == 0 && s) {
        int code = regcomp(&g->pattern, s, REG_EXTENDED);
        char why[100];
        if (code != 0) {
            regerror(code, &g->pattern, why, sizeof(why));
            return err_set(err, TINKER_EINVAL, "regex '%s': %s", s, why);
        }
        g->has_pattern = true;
    } else if (strcmp(g->name, "cmd") == 0) {
        if (!s || !*s)
            return err_set(err, TINKER_EINVAL, "cmd needs a command: cmd:python3 grade.py");
        return make_commands(g, s, err);
    }
    return TINKER_OK;
}

tinker_grader *tinker_grader_new(const char *spec, const tinker_grader_options *opts,
                                 tinker_error *err)
{
    tinker_grader_options o = TINKER_GRADER_OPTIONS_INIT;
    if (opts && opts_copy(&o, sizeof(o), opts, "tinker_grader_options", err) != TINKER_OK)
        return NULL;
    /* g->spec is cut in place, so it must be a copy. */
    tinker_grader *g = calloc(1, sizeof(*g));
    if (!g || !(g->spec = strdup(spec))) {
        free(g);
        err_nomem(err, "a grader");
        return NULL;
    }
    g->opts = o;
    tinker_status status = split_spec(g, err);
    if (status == TINKER_OK && !find_kind(g->name))
        status = err_set(err, TINKER_EINVAL,
                         "'%.40s' is no grader: exact, contains, regex, number, choice, boxed, "
                         "json, length, cmd:COMMAND",
                         g->name);
    if (status == TINKER_OK)
        status = read_argument(g, err);
    if (status == TINKER_OK)
        return g;
    tinker_grader_free(g);
    return NULL;
}

/* Any of a list of expected answers counts; the best of them. For json a list is itself the
 * expected value. */
static double grade_any(struct judgment *j, const struct grader_kind *kind)
{
    struct json_reader r;
    double best = 0;
    if (!j->item->expected)
        return kind->needs_expected ? NAN : kind->grade(j);
    j->expected = j->item->expected;
    /* Only an expected answer that looks like a list is tried as one. */
    if (*j->expected != '[' || strcmp(kind->name, "json") == 0)
        return kind->grade(j);
    json_reader_init(&r, j->item->expected, strlen(j->item->expected), j->arena);
    struct json_str value;
    json_begin_array(&r);
    while (json_next_item(&r)) {
        bool text = json_peek(&r) == JSON_STRING;
        if (!(text ? json_string(&r, &value) : json_raw(&r, &value)))
            break;
        j->expected = arena_strndup(j->arena, value.s, value.n);
        if (j->expected)
            /* fmax() ignores NaN, so one judgeable alternative is enough. */
            best = fmax(best, kind->grade(j));
    }
    if (json_end(&r))
        return best;
    j->expected = j->item->expected; /* a text that begins with a bracket */
    return kind->grade(j);
}

/* ---- commands ---- */

/* A worker's share of the answers. */
struct share {
    struct grader_command *command;
    tinker_grade *items;
    size_t n;
    pthread_t thread;
    bool running;
    tinker_status status;
    tinker_error err;
};

static void *run_share(void *state)
{
    struct share *s = state;
    s->status = grader_command_run(s->command, s->items, s->n, &s->err);
    return NULL;
}

/* Each worker gets a run of neighboring answers, in a thread of its own; the last share is this
 * thread's. A thread that cannot be started does its share here. */
static tinker_status run_commands(tinker_grader *g, tinker_grade *items, size_t n,
                                  tinker_error *err)
{
    struct share shares[MAX_WORKERS];
    size_t workers = g->opts.workers < n ? g->opts.workers : n;
    tinker_status status = TINKER_OK;
    for (size_t i = 0; i < workers; i++) {
        size_t from = i * n / workers;
        shares[i] = (struct share){ .command = g->commands[i],
                                    .items = items + from,
                                    .n = (i + 1) * n / workers - from };
        shares[i].running =
            i + 1 < workers && pthread_create(&shares[i].thread, NULL, run_share, &shares[i]) == 0;
    }
    for (size_t i = workers; i-- > 0;) {
        if (shares[i].running)
            pthread_join(shares[i].thread, NULL);
        else
            run_share(&shares[i]);
        if (shares[i].status != TINKER_OK) {
            status = shares[i].status;
            if (err)
                *err = shares[i].err;
        }
    }
    return status;
}

/* One arena per item: an answer may be long, and a batch has thousands. */
tinker_status tinker_grader_run(tinker_grader *g, tinker_grade *items, size_t n, tinker_error *err)
{
    if (g->commands)
        return run_commands(g, items, n, err);
    const struct grader_kind *kind = find_kind(g->name);
    for (size_t i = 0; i < n; i++) {
        struct arena arena;
        arena_init(&arena, SIZE_MAX);
        struct judgment j = { g, &items[i], &arena, "" };
        items[i].score = grade_any(&j, kind);
        items[i].format = NAN;
        /* A reason explains a missing score; a wrong answer needs none. */
        items[i].reason[0] = 0;
        if (isnan(items[i].score))
            snprintf(items[i].reason, sizeof(items[i].reason), "%s",
                     items[i].expected ? "the row has no usable \"pattern\""
                                       : "the row names no expected answer");
        arena_clear(&arena);
    }
    return TINKER_OK;
}

tinker_status tinker_grader_score(tinker_grader *g, const char *text, const char *expected,
                                  const char *row_json, double *score, tinker_error *err)
{
    tinker_grade item = { .text = text, .expected = expected, .row = row_json };
    tinker_status status = tinker_grader_run(g, &item, 1, err);
    if (status == TINKER_OK && isnan(item.score))
        status = err_set(err, TINKER_EINVAL, "%s", item.reason);
    *score = item.score;
    return status;
}
