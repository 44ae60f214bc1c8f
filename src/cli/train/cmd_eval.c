/* cmd_eval.c - `tinker eval`: how good are the answers of a model to the questions of a file?
 *
 * Questions are asked in portions; with --out every item is a line of its own as soon as it is
 * judged, and a run that was interrupted goes on behind the last of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/array.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/text/text_model.h"
#include "cli/train/train_eval.h"
#include "json/json.h"

/* PORTION: questions sampled at once.  Enough to fill the server's batch, few enough that an
 * interrupt costs little and that progress moves. */
enum { PORTION = 64, SHOWN_WRONG = 5, TEXT_WIDTH = 60 };

struct eval_options {
    const char *model, *path, *data, *tokenizer, *renderer, *system, *out, *form, *against;
    struct opt_list graders;
    int64_t n, max_tokens, seed, limit, grader_timeout, grader_workers;
    double temperature, fail_under;
    bool nll, ignore_case, normalize;
};

/* One model: its answers, judged.  share[i]: of item i, how many of its answers are right. */
struct eval_side {
    const char *name; /* model or path */
    tinker_sampler *sampler;
    double *share, *score;
    size_t *right, done;
    size_t errors, prompt_tokens, sampled;
    double nll, bpb;
};

struct eval {
    struct eval_options o;
    struct trainer t; /* service, tokenizer, renderer, graders */
    tinker_rows *rows;
    size_t n_items;
    struct eval_side sides[2];
    size_t n_sides;
    FILE *out;
    int64_t start_ns;
    size_t shown;
};

/* ---- opening ---- */

/* Settings that nobody gave are NaN or -1 until here, because their defaults depend on each
 * other: one answer per question is judged greedily (temperature 0), several answers only make
 * sense when they may differ (temperature 1). */
static bool parse_eval(struct eval_options *o, int argc, char **argv, int *status)
{
    *o = (struct eval_options){ .form = "auto",
                                .n = 1,
                                .max_tokens = 512,
                                .temperature = NAN,
                                .limit = -1,
                                .fail_under = NAN,
                                .grader_timeout = 30,
                                .grader_workers = 1 };
    const struct opt opts[] = {
        { .name = "data",
          .letter = 'd',
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "questions with expected answers",
          .out = &o->data },
        { .name = "grader",
          .letter = 'g',
          .kind = OPT_LIST,
          .value = "GRADER",
          .help = "exact, contains, regex:RE, number[:TOL], choice[:ABCD], boxed, json[:PATH], "
                  "length:A-B, "
                  "cmd:COMMAND; @WEIGHT may follow; repeat to add up",
          .out = &o->graders },
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "base model (default: the only one there is)",
          .out = &o->model },
        { .name = "path",
          .letter = 'p',
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "tinker:// path of weights to sample from",
          .out = &o->path },
        { .name = "against",
          .kind = OPT_STRING,
          .value = "NAME|PATH",
          .help = "compare with another model on the same items",
          .out = &o->against },
        { .name = "n",
          .letter = 'n',
          .kind = OPT_INT,
          .value = "N",
          .help = "answers for each question (default 1)",
          .out = &o->n },
        { .name = "max-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "longest answer (default 512)",
          .out = &o->max_tokens },
        { .name = "temperature",
          .kind = OPT_DOUBLE,
          .value = "T",
          .help = "(default 0; 1 with several answers)",
          .out = &o->temperature },
        { .name = "seed",
          .kind = OPT_INT,
          .value = "N",
          .help = "of sampling (default 0)",
          .out = &o->seed },
        { .name = "limit",
          .kind = OPT_INT,
          .value = "N",
          .help = "only the first questions",
          .out = &o->limit },
        { .name = "nll",
          .kind = OPT_FLAG,
          .help = "score the answers of the rows instead of sampling",
          .out = &o->nll },
        { .name = "out",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "one JSON line per item; goes on where it ended",
          .out = &o->out },
        { .name = "fail-under",
          .kind = OPT_DOUBLE,
          .value = "X",
          .help = "exit status 4 when the accuracy is below",
          .out = &o->fail_under },
        { .name = "system",
          .kind = OPT_STRING,
          .value = "TEXT",
          .help = "system message before every question",
          .out = &o->system },
        { .name = "data-format",
          .kind = OPT_STRING,
          .value = "FORM",
          .help = "form of the rows (default auto)",
          .out = &o->form },
        { .name = "renderer",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "chat format (default: the model's)",
          .out = &o->renderer },
        { .name = "tokenizer",
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "directory of the tokenizer (default: the model's)",
          .out = &o->tokenizer },
        { .name = "ignore-case",
          .kind = OPT_FLAG,
          .help = "exact and contains ignore case",
          .out = &o->ignore_case },
        { .name = "normalize",
          .kind = OPT_FLAG,
          .help = "and blanks, and a final full stop",
          .out = &o->normalize },
        { .name = "grader-timeout",
          .kind = OPT_DURATION,
          .value = "TIME",
          .help = "longest wait for a grader command (default 30s)",
          .out = &o->grader_timeout },
        { .name = "grader-workers",
          .kind = OPT_INT,
          .value = "N",
          .help = "processes of a grader command (default 1)",
          .out = &o->grader_workers },
    };
    const struct opt_spec spec = { .command = "eval",
                                   .about =
                                       "Ask a model the questions of a file and judge its answers.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example =
                                       "tinker eval --data questions.jsonl --grader number" };
    if (!opt_parse(&spec, argc, argv, status))
        return false;
    const char *wrong =
        !o->data ? "Missing option '--data'."
        : !o->graders.n && !o->nll
            ? "Missing option '--grader': how are answers compared? exact, contains, "
              "number, ... (-h lists them), or --nll."
        : o->n < 1 || o->limit == 0 ? "Ask for at least one answer."
        : o->max_tokens < 1         ? "--max-tokens must be at least 1."
                                    : NULL;
    if (wrong)
        *status = opt_usage_error(&spec, "%s", wrong);
    if (isnan(o->temperature))
        o->temperature = o->n > 1 ? 1 : 0;
    return !wrong;
}

/* --nll scores rows as training would see them, so they are rendered in full and kept in one
 * batch (SIZE_MAX / 4: larger than any file, and safe to add to). Sampling needs the prompt part
 * only.  Neither shuffles: item numbers in --out must mean the same lines in every run. */
static int load_questions(struct eval *e)
{
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    tinker_error err;
    if (tinker_row_form_parse(e->o.form, &o.form, &err) != TINKER_OK)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    o.prompts_only = !e->o.nll;
    o.shuffle_seed = TINKER_SHUFFLE_NONE;
    o.batch_size = SIZE_MAX / 4;
    int status = trainer_load(&e->t, e->o.data, &o, &e->rows);
    if (status != EXIT_OK)
        return status;
    e->n_items = tinker_rows_count(e->rows).rows;
    if (e->o.limit > 0 && (size_t)e->o.limit < e->n_items)
        e->n_items = (size_t)e->o.limit;
    return EXIT_OK;
}

/* calloc of n + 1: a size of zero may return NULL, which would look like a lack of memory. */
static int open_side(struct eval *e, const char *name)
{
    struct eval_side *s = &e->sides[e->n_sides++];
    int status = EXIT_OK;
    s->name = name;
    s->nll = s->bpb = NAN;
    s->share = calloc(e->n_items + 1, sizeof(*s->share));
    s->score = calloc(e->n_items + 1, sizeof(*s->score));
    s->right = calloc(e->n_items + 1, sizeof(*s->right));
    if (!s->share || !s->score || !s->right)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    s->sampler = trainer_sampler_on(&e->t, name, &status);
    return status;
}

/* The graders come first, since a mistake in their arguments should show before anything is
 * loaded, and a large tokenizer takes seconds to load.  `eval` borrows the trainer struct for
 * its service, tokenizer, renderer and graders, but opens no run folder and no model in
 * training. */
static int open_eval(struct eval *e)
{
    struct trainer *t = &e->t;
    tinker_error err;
    int status = EXIT_OK;
    train_view_init(&t->view);
    arena_init(&t->names, SIZE_MAX);
    t->o.graders = e->o.graders;
    t->o.ignore_case = e->o.ignore_case;
    t->o.normalize = e->o.normalize;
    t->o.grader_timeout = e->o.grader_timeout;
    t->o.grader_workers = e->o.grader_workers;
    status = trainer_make_graders(t);
    if (status != EXIT_OK)
        return status;
    if (!api_open_model(&t->api, e->o.model, e->o.path, &status))
        return status;
    t->tokenizer = text_model_open(&t->api, e->o.tokenizer, &err);
    if (!t->tokenizer)
        return text_model_fail(&err, "Give its directory with --tokenizer DIR.");
    const char *name =
        e->o.renderer ? e->o.renderer : tinker_renderer_for(t->api.model, t->tokenizer);
    t->renderer = tinker_renderer_new(name, t->tokenizer, NULL, &err);
    if (!t->renderer)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    status = load_questions(e);
    if (status == EXIT_OK)
        status = open_side(e, t->api.path ? t->api.path : t->api.model);
    if (status == EXIT_OK && e->o.against)
        status = open_side(e, e->o.against);
    return status;
}

/* ---- items ---- */

/* One line of --out.  A score that no grader could give is null, not 0: a reader can tell a
 * wrong answer from one that was never judged.  The mean counts it as 0, so that a broken grader
 * cannot raise the result. */
static void put_item(struct buf *b, const struct eval *e, size_t item, const tinker_row *row,
                     const tinker_rollout *answers, const double *scores)
{
    struct json_writer w;
    json_writer_init(&w, b);
    json_put_begin_object(&w);
    json_put_key(&w, "id");
    json_put_int64(&w, (int64_t)item);
    json_put_key(&w, "expected");
    if (row->expected)
        json_put_string(&w, row->expected);
    else
        json_put_null(&w);
    json_put_key(&w, "responses");
    json_put_begin_array(&w);
    double sum = 0;
    for (size_t k = 0; k < (size_t)e->o.n; k++) {
        json_put_begin_object(&w);
        json_put_key(&w, "text");
        json_put_string(&w, answers[k].text);
        json_put_key(&w, "score");
        if (isnan(scores[k]))
            json_put_null(&w);
        else
            json_put_double(&w, scores[k]);
        json_put_key(&w, "stop_reason");
        json_put_string(&w,
                        answers[k].sequence->stop_reason == TINKER_STOP_STOP ? "stop" : "length");
        json_put_key(&w, "tokens");
        json_put_int64(&w, (int64_t)answers[k].sequence->n);
        json_put_end_object(&w);
        sum += isnan(scores[k]) ? 0 : scores[k];
    }
    json_put_end_array(&w);
    json_put_key(&w, "score");
    json_put_double(&w, sum / (double)e->o.n);
    json_put_end_object(&w);
    buf_putc(b, '\n');
}

/* Flushed line by line: the file is what a later run continues from, so an item that was paid
 * for must not sit in a buffer when the process is killed. */
static int write_item(struct eval *e, size_t item, const tinker_row *row,
                      const tinker_rollout *answers, const double *scores)
{
    struct buf line;
    if (!e->out)
        return EXIT_OK;
    buf_init(&line, 64 << 20);
    put_item(&line, e, item, row, answers, scores);
    bool ok =
        buf_ok(&line) && fwrite(line.data, 1, line.len, e->out) == line.len && fflush(e->out) == 0;
    buf_clear(&line);
    return ok ? EXIT_OK : out_fail(EXIT_IO, NULL, "cannot write %s", e->o.out);
}

/* right[i] counts answers for pass@k, share[i] is their part of n for the accuracy.  An answer
 * is right when its score is above 0, so that graders with partial credit still have an
 * accuracy. */
static void take_scores(struct eval_side *s, size_t item, const double *scores, size_t n)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        s->errors += isnan(scores[k]);
        s->right[item] += scores[k] > 0;
        sum += isnan(scores[k]) ? 0 : scores[k];
    }
    s->share[item] = (double)s->right[item] / (double)n;
    s->score[item] = sum / (double)n;
    s->done++;
}

/* A few wrong answers say more about a broken grader or chat format than the accuracy does; more
 * of them would push the result off the screen. */
static void show_wrong(struct eval *e, const tinker_row *row, const tinker_rollout *a)
{
    if (e->shown == SHOWN_WRONG || globals.json)
        return;
    if (e->shown++ == 0)
        out_say("wrong answers (up to %d):", SHOWN_WRONG);
    out_say("  line %zu  expected %.*s  got %.*s", row->line, TEXT_WIDTH,
            row->expected ? row->expected : "-", TEXT_WIDTH, a->text);
}

/* ---- asking ---- */

/* Answers are numbered question by question: answer k belongs to question from + k / n.  The
 * row's JSON is handed to commands as text, one copy per question, since tinker_rows_prompt()
 * lends it for one call only.  Wrong answers are shown and items are written for the first model
 * only; the second one (--against) is there for the difference. */
static int judge_portion(struct eval *e, struct eval_side *s, size_t from, size_t count,
                         const tinker_rollouts *x)
{
    size_t n = (size_t)e->o.n, total = count * n;
    tinker_grade *items = calloc(total + 1, sizeof(*items));
    double *scores = calloc(total + 1, sizeof(*scores));
    char **rows = calloc(count + 1, sizeof(*rows));
    int status = items && scores && rows ? EXIT_OK : out_fail(EXIT_FAILED, NULL, "out of memory");
    tinker_row row;
    for (size_t k = 0; status == EXIT_OK && k < total; k++) {
        tinker_rows_prompt(e->rows, from + k / n, &row, NULL);
        if (!rows[k / n])
            rows[k / n] = strndup(row.json, row.n_json);
        items[k] = (tinker_grade){ .text = x->at[k].text,
                                   .expected = row.expected,
                                   .row = rows[k / n],
                                   .split = "test",
                                   .tokens = x->at[k].sequence->n,
                                   .group = (int64_t)(from + k / n),
                                   .sample = (int64_t)(k % n) };
        s->sampled += x->at[k].sequence->n;
        s->prompt_tokens += k % n ? 0 : x->at[k].n_prompt;
    }
    if (status == EXIT_OK)
        status = train_eval_grade(&e->t, items, total, scores, NULL);
    for (size_t i = 0; status == EXIT_OK && i < count; i++) {
        tinker_rows_prompt(e->rows, from + i, &row, NULL);
        take_scores(s, from + i, scores + i * n, n);
        if (s->share[from + i] == 0 && s == &e->sides[0])
            show_wrong(e, &row, &x->at[i * n]);
        if (s == &e->sides[0])
            status = write_item(e, from + i, &row, &x->at[i * n], scores + i * n);
    }
    for (size_t i = 0; rows && i < count; i++)
        free(rows[i]);
    free(rows);
    free(items);
    free(scores);
    return status;
}

/* prompts[] points at the rows' own conversations, or, with --system, at copies in own[] that
 * have one message in front.  The rows stay as they are because --against asks them again.  The
 * seed counts items, not portions, so an interrupted run samples what an uninterrupted one would
 * have sampled. */
static int ask_portion(struct eval *e, struct eval_side *s, size_t from, size_t count)
{
    const tinker_conversation *prompts[PORTION];
    tinker_conversation own[PORTION];
    tinker_message *messages[PORTION] = { NULL };
    tinker_rollout_options o = TINKER_ROLLOUT_OPTIONS_INIT;
    tinker_error err;
    int status = EXIT_OK;
    for (size_t i = 0; status == EXIT_OK && i < count; i++) {
        tinker_row row;
        if (tinker_rows_prompt(e->rows, from + i, &row, &err) != TINKER_OK) {
            status = out_fail(EXIT_DATA, NULL, "%s", err.message);
            break;
        }
        prompts[i] = row.prompt;
        if (!e->o.system)
            continue;
        messages[i] = calloc(row.prompt->n_messages + 1, sizeof(**messages));
        if (!messages[i]) {
            status = out_fail(EXIT_FAILED, NULL, "out of memory");
            break;
        }
        messages[i][0] = (tinker_message){ .role = "system", .content = e->o.system };
        memcpy(messages[i] + 1, row.prompt->messages, row.prompt->n_messages * sizeof(**messages));
        own[i] = *row.prompt;
        own[i].messages = messages[i];
        own[i].n_messages++;
        prompts[i] = &own[i];
    }
    o.group_size = (size_t)e->o.n;
    o.params.temperature = e->o.temperature;
    o.params.max_tokens = e->o.max_tokens;
    o.params.has_seed = 1;
    o.params.seed = e->o.seed + (int64_t)from;
    o.timeout_ms = trainer_wait_ms();
    tinker_rollouts *x = status == EXIT_OK
                             ? tinker_sampler_rollouts(s->sampler, e->t.renderer, e->t.tokenizer,
                                                       prompts, count, &o, &err)
                             : NULL;
    if (status == EXIT_OK)
        status = x ? judge_portion(e, s, from, count, x) : api_fail(&err, NULL);
    tinker_rollouts_free(x);
    for (size_t i = 0; i < count; i++)
        free(messages[i]);
    return status;
}

/* One portion after the other: the next one starts when all answers of this one are judged and
 * on disk, so `done` alone says where to continue. */
static int ask_all(struct eval *e, struct eval_side *s)
{
    struct progress p;
    int status = EXIT_OK;
    progress_start(&p, "eval");
    while (status == EXIT_OK && s->done < e->n_items) {
        size_t left = e->n_items - s->done;
        status = ask_portion(e, s, s->done, left < PORTION ? left : PORTION);
        progress_at(&p, (int64_t)s->done, (int64_t)e->n_items);
    }
    progress_end(&p);
    return status;
}

/* Items of an earlier run, in the file that is gone on with. */
static void recall_items(struct eval *e, const char *s, size_t n)
{
    struct arena a;
    struct eval_side *side = &e->sides[0];
    arena_init(&a, SIZE_MAX);
    for (size_t at = 0; at < n && side->done < e->n_items;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end ? (size_t)(end - s) - at : n - at, count = 0;
        struct json_reader r;
        struct json_str key;
        double scores[1024], v;
        json_reader_init(&r, s + at, len, &a);
        json_begin_object(&r);
        while (json_next_key(&r, &key)) {
            if (!json_str_is(key, "responses")) {
                json_skip(&r);
                continue;
            }
            json_begin_array(&r);
            while (json_next_item(&r)) {
                json_begin_object(&r);
                while (json_next_key(&r, &key)) {
                    bool score = json_str_is(key, "score") && count < 1024;
                    if (score && json_peek(&r) == JSON_NUMBER && json_double(&r, &v))
                        scores[count++] = v;
                    else if (score && json_peek(&r) == JSON_NULL && json_null(&r))
                        scores[count++] = NAN;
                    else
                        json_skip(&r);
                }
            }
        }
        /* Lines made with another --n do not count: their items are asked again. */
        if (json_end(&r) && count == (size_t)e->o.n)
            take_scores(side, side->done, scores, count);
        at += len + 1;
    }
    arena_clear(&a);
}

/* A killed run may have left half a line.  It is cut off before the file is opened for
 * appending, because a new line behind it would make one line of two items that nothing can
 * read. */
static int open_out(struct eval *e)
{
    char *data;
    size_t n;
    if (!e->o.out || e->o.nll)
        return EXIT_OK;
    if (access(e->o.out, F_OK) == 0 &&
        os_read_file(e->o.out, (size_t)1 << 32, &data, &n, NULL) == TINKER_OK) {
        while (n > 0 && data[n - 1] != '\n')
            n--; /* a torn line is asked again */
        if (truncate(e->o.out, (off_t)n) == 0)
            recall_items(e, data, n);
        free(data);
        if (e->sides[0].done)
            out_say("%zu items are in %s already", e->sides[0].done, e->o.out);
    }
    e->out = fopen(e->o.out, "ae");
    return e->out ? EXIT_OK : out_fail(EXIT_IO, NULL, "cannot write %s", e->o.out);
}

/* No sampling at all: one forward pass over the rows gives the log-probabilities of the answers
 * that are in the file.  bpb divides by bytes of text, so models with different tokenizers can
 * be compared. */
static int score_rows(struct eval *e, struct eval_side *s)
{
    tinker_error err;
    size_t n;
    const tinker_datum *data = tinker_rows_batch(e->rows, 0, 0, &n);
    n = n < e->n_items ? n : e->n_items;
    float **logprobs = tinker_reference_logprobs(s->sampler, data, n, trainer_wait_ms(), &err);
    if (!logprobs)
        return api_fail(&err, NULL);
    tinker_score_logprobs(logprobs, data, n, e->t.tokenizer, &s->nll, &s->bpb);
    free(logprobs);
    s->done = n;
    return EXIT_OK;
}

/* ---- the result ---- */

struct result {
    double accuracy, error, low, high;
};

/* Standard error over items; with one answer each the interval is Wilson's. */
static struct result summarize_side(const struct eval *e, const struct eval_side *s)
{
    double m = (double)e->n_items, sum = 0, square = 0, z = 1.959963984540054;
    for (size_t i = 0; i < e->n_items; i++)
        sum += s->share[i];
    double mean = sum / m;
    for (size_t i = 0; i < e->n_items; i++)
        square += (s->share[i] - mean) * (s->share[i] - mean);
    struct result r = { .accuracy = mean, .error = m > 1 ? sqrt(square / (m * (m - 1))) : NAN };
    if (e->o.n == 1) {
        /* Wilson's score interval.  The plain mean ± z * error would be of width 0 when all
         * answers are right or all are wrong, which is what small test sets often give. */
        double middle = (mean + z * z / (2 * m)) / (1 + z * z / m);
        double half = z / (1 + z * z / m) * sqrt(mean * (1 - mean) / m + z * z / (4 * m * m));
        r.low = middle - half;
        r.high = middle + half;
    } else {
        r.low = fmax(mean - z * r.error, 0);
        r.high = fmin(mean + z * r.error, 1);
    }
    return r;
}

/* pass@k: the chance that at least one of k answers is right, estimated without bias from n >= k
 * answers of each question (1 - C(n - c, k) / C(n, k) with c right ones), then averaged over
 * questions. */
static double mean_pass(const struct eval *e, const struct eval_side *s, size_t k)
{
    double sum = 0;
    for (size_t i = 0; i < e->n_items; i++)
        sum += tinker_pass_at_k((size_t)e->o.n, s->right[i], k);
    return sum / (double)e->n_items;
}

/* Those of 1, 5, 10, 25, 50, 100 that there are answers for, and all. */
static size_t choose_ks(size_t n, size_t ks[8])
{
    static const size_t usual[] = { 1, 5, 10, 25, 50, 100 };
    size_t count = 0;
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (usual[i] <= n)
            ks[count++] = usual[i];
    if (ks[count - 1] != n)
        ks[count++] = n;
    return count;
}

/* JSON has no NaN: what was not measured is null, and the member stays, so that readers find the
 * same members in every result. */
static void put_number(struct json_writer *w, const char *key, double v)
{
    json_put_key(w, key);
    if (isfinite(v))
        json_put_double(w, v);
    else
        json_put_null(w);
}

/* With --nll there are no answers: the members of an accuracy are null and pass_at_k is empty. */
static void put_side(struct json_writer *w, const struct eval *e, const struct eval_side *s)
{
    struct result r = summarize_side(e, s);
    size_t ks[8], n = choose_ks((size_t)e->o.n, ks);
    bool asked = !e->o.nll;
    json_put_key(w, "model");
    json_put_string(w, s->name);
    json_put_key(w, "items");
    json_put_int64(w, (int64_t)e->n_items);
    json_put_key(w, "errors");
    json_put_int64(w, (int64_t)s->errors);
    put_number(w, "accuracy", asked ? r.accuracy : NAN);
    put_number(w, "stderr", asked ? r.error : NAN);
    json_put_key(w, "ci95");
    json_put_begin_array(w);
    if (asked) {
        json_put_double(w, r.low);
        json_put_double(w, r.high);
    }
    json_put_end_array(w);
    json_put_key(w, "pass_at_k");
    json_put_begin_object(w);
    for (size_t i = 0; asked && i < n; i++) {
        char name[24];
        snprintf(name, sizeof(name), "%zu", ks[i]);
        put_number(w, name, mean_pass(e, s, ks[i]));
    }
    json_put_end_object(w);
    put_number(w, "nll", s->nll);
    put_number(w, "bpb", s->bpb);
    json_put_key(w, "tokens");
    json_put_begin_object(w);
    json_put_key(w, "prompt");
    json_put_int64(w, (int64_t)s->prompt_tokens);
    json_put_key(w, "sampled");
    json_put_int64(w, (int64_t)s->sampled);
    json_put_end_object(w);
}

/* Mean of the differences item by item, which the same questions to both make small. */
static double compare_sides(const struct eval *e, double *error)
{
    double m = (double)e->n_items, mean = 0, square = 0;
    for (size_t i = 0; i < e->n_items; i++)
        mean += (e->sides[0].share[i] - e->sides[1].share[i]) / m;
    for (size_t i = 0; i < e->n_items; i++) {
        double d = e->sides[0].share[i] - e->sides[1].share[i] - mean;
        square += d * d;
    }
    *error = m > 1 ? sqrt(square / (m * (m - 1))) : NAN;
    return mean;
}

/* The members of the first model stand at the top level, so that scripts that know no --against
 * read the same places with and without it. */
static void print_json_result(const struct eval *e, double seconds)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1 << 20);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    put_side(&w, e, &e->sides[0]);
    put_number(&w, "seconds", seconds);
    if (e->n_sides > 1) {
        double error, difference = compare_sides(e, &error);
        json_put_key(&w, "against");
        json_put_begin_object(&w);
        put_side(&w, e, &e->sides[1]);
        put_number(&w, "difference", difference);
        put_number(&w, "difference_stderr", error);
        json_put_end_object(&w);
    }
    json_put_end_object(&w);
    out_json(&b);
    buf_clear(&b);
}

/* Fixed columns on stdout; what people read aloud first: the accuracy with its error. */
static void print_side(const struct eval *e, const struct eval_side *s)
{
    struct result r = summarize_side(e, s);
    size_t ks[8], n = choose_ks((size_t)e->o.n, ks);
    printf("model       %s\nitems       %zu\n", s->name, e->n_items);
    if (e->o.nll) {
        printf("nll         %.4f\nperplexity  %.3f\nbpb         %.4f\n", s->nll, exp(s->nll),
               s->bpb);
        return;
    }
    printf("accuracy    %.3f ± %.3f  (95 %%: %.3f to %.3f)\n", r.accuracy, r.error, r.low, r.high);
    for (size_t i = 0; e->o.n > 1 && i < n; i++)
        printf("pass@%-6zu %.3f\n", ks[i], mean_pass(e, s, ks[i]));
    if (s->errors)
        printf("errors      %zu\n", s->errors);
    printf("tokens      %zu asked, %zu sampled\n", s->prompt_tokens, s->sampled);
}

/* EXIT_PARTIAL is what a CI job reads: the accuracy is below --fail-under, or some answers were
 * never judged, so the figure does not stand for all of them.  The report is printed in both
 * cases. */
static int print_eval(struct eval *e)
{
    double seconds = (double)(clock_now_ns(clock_real()) - e->start_ns) / 1e9;
    if (globals.json) {
        print_json_result(e, seconds);
    } else {
        for (size_t i = 0; i < e->n_sides; i++)
            print_side(e, &e->sides[i]);
        if (e->n_sides > 1 && !e->o.nll) {
            double error, difference = compare_sides(e, &error);
            printf("difference  %+.3f ± %.3f\n", difference, error);
        }
    }
    bool low =
        isfinite(e->o.fail_under) && summarize_side(e, &e->sides[0]).accuracy < e->o.fail_under;
    if (low)
        out_say("the accuracy is below %g", e->o.fail_under);
    return low || e->sides[0].errors ? EXIT_PARTIAL : EXIT_OK;
}

/* Without --against sides[1] is all zeros, which every free below allows. */
int cmd_eval(int argc, char **argv)
{
    struct eval *e = calloc(1, sizeof(*e));
    int status = EXIT_OK;
    if (!e)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    e->start_ns = clock_now_ns(clock_real());
    if (parse_eval(&e->o, argc, argv, &status)) {
        status = open_eval(e);
        if (status == EXIT_OK)
            status = open_out(e);
        for (size_t i = 0; status == EXIT_OK && i < e->n_sides; i++)
            status = e->o.nll ? score_rows(e, &e->sides[i]) : ask_all(e, &e->sides[i]);
        if (status == EXIT_OK)
            status = print_eval(e);
    }
    for (size_t i = 0; i < 2; i++) {
        tinker_sampler_free(e->sides[i].sampler);
        free(e->sides[i].share);
        free(e->sides[i].score);
        free(e->sides[i].right);
    }
    if (e->out)
        fclose(e->out);
    tinker_rows_free(e->rows);
    trainer_close(&e->t);
    free(e);
    return status;
}
