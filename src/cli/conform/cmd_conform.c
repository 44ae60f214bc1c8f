/* cmd_conform.c - `tinker conform [URL]`: how much of what clients rely on does a server do?
 *
 * Every check is one point.  What the checks make is small, carries a name of its own, expires
 * within an hour, and is deleted by the last group: see conform_rest.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "base/clock.h"
#include "base/rand.h"
#include "cli/args/opt.h"
#include "cli/conform/conform.h"
#include "cli/output/confirm.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"

/* Every request is answered within 45 s, polls too: that is when the SDK gives up. */
enum { ANSWER_MS = 45000, CALL_S = 90, ARENA_MAX = 64 << 20 };
static const int64_t HEARTBEAT_NS = 10000000000;

/* In the order in which they run. */
static const struct conform_group *const groups[] = { &conform_service,  &conform_errors,
                                                      &conform_training, &conform_sampling,
                                                      &conform_chat,     &conform_rest };

static const char *const columns[] = { "Check", "Result", "Rule, or fault" };

/* One row: the check itself, or why it failed. */
static void add_row(struct listing *l, const struct conform_check *check, const char *result,
                    const char *why)
{
    listing_cell(l, check->name);
    listing_cell(l, result);
    listing_cell(l, why ? why : check->about);
    struct json_writer *w = listing_object(l);
    json_put_begin_object(w);
    rows_put_text(w, "check", check->name);
    rows_put_text(w, "result", result);
    rows_put_text(w, "about", check->about);
    rows_put_text(w, "why", why);
    json_put_end_object(w);
    listing_object_end(l);
}

/* Not one of them is run: a server's author reads the list before running it. */
static int list_checks(void)
{
    struct listing l;
    listing_init(&l, columns, ARRAY_LEN(columns));
    for (size_t g = 0; g < ARRAY_LEN(groups); g++)
        for (size_t i = 0; i < groups[g]->n; i++)
            add_row(&l, &groups[g]->checks[i], "-", NULL);
    return listing_print(&l, "Checks", "{\"checks\":[");
}

/* The session is not the library's, which would keep it alive by itself. */
static void keep_session(struct conform *c, int64_t *last_ns)
{
    char body[CONFORM_ID_MAX + 32];
    int64_t now = clock_now_ns(clock_real());
    if (!c->session[0] || now - *last_ns < HEARTBEAT_NS)
        return;
    *last_ns = now;
    snprintf(body, sizeof(body), "{\"session_id\":\"%s\"}", c->session);
    conform_send(c, "POST", CONFORM_API "session_heartbeat", body);
}

/* Run all checks; how many passed.  A signal ends it: what was made expires by itself. */
static size_t run_checks(struct conform *c, struct listing *l, size_t *total)
{
    size_t passed = 0;
    int64_t last_ns = clock_now_ns(clock_real());
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
        size_t of_group = 0;
        for (size_t i = 0; i < groups[g]->n && !api_interrupted(); i++) {
            const struct conform_check *check = &groups[g]->checks[i];
            arena_init(&c->arena, ARENA_MAX);
            c->why[0] = 0;
            bool ok = check->run(c);
            of_group += ok;
            add_row(l, check, ok ? "ok" : "FAIL", ok ? NULL : c->why);
            keep_session(c, &last_ns);
            arena_clear(&c->arena);
        }
        out_say("%s: %zu of %zu", groups[g]->name, of_group, groups[g]->n);
        passed += of_group;
        *total += groups[g]->n;
    }
    return passed;
}

/* The score is in the head of the JSON object, before the checks, so that a reader of a stream
 * has it first.  listing_print() adds the rows and closes both brackets. */
static int print_score(struct listing *l, const char *url, const char *model, size_t passed,
                       size_t total, double score)
{
    struct buf head;
    struct json_writer w;
    char title[128];
    buf_init(&head, 4096);
    json_writer_init(&w, &head);
    json_put_begin_object(&w);
    rows_put_text(&w, "url", url);
    rows_put_text(&w, "model", model[0] ? model : NULL);
    rows_put_real(&w, "score", score);
    rows_put_count(&w, "passed", (int64_t)passed);
    rows_put_count(&w, "total", (int64_t)total);
    json_put_key(&w, "checks");
    buf_putc(&head, '[');
    snprintf(title, sizeof(title), "Score: %.1f %% (%zu of %zu)", score, passed, total);
    int status = buf_ok(&head) ? listing_print(l, title, head.data)
                               : out_fail(EXIT_FAILED, NULL, "out of memory");
    buf_clear(&head);
    return status;
}

/* Requests that are sent once, whatever comes back.
 * The library's own retries would hide what is measured here: a 500 that a retry makes good is
 * still a fault.  Responses are kept, so that their status and headers can be judged. */
static tinker_service *open_raw(struct api *a, tinker_error *err)
{
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.max_retries = -1;
    o.timeout_ms = ANSWER_MS;
    o.keep_response = 1;
    return tinker_service_with(a->service, &o, err);
}

static int run_conform(struct conform *c, double min_score)
{
    struct listing l;
    tinker_error err;
    size_t passed, total = 0;
    uint32_t mark = 0;
    /* Names must differ between runs: two at once, or one after a crash, must not find each
     * other's checkpoints. */
    rand_os(&mark, sizeof(mark));
    snprintf(c->mark, sizeof(c->mark), "conform-%08x", (unsigned)mark);
    c->raw = open_raw(c->api, &err);
    if (!c->raw)
        return api_fail(&err, NULL);
    /* A server that cannot be reached gets no score: "0 %" would be a statement about a server
     * that was never asked.  Any HTTP status counts as reached. */
    tinker_future *f =
        tinker_service_call(c->raw, "GET", CONFORM_API "healthz", NULL, 0, NULL, &err);
    if ((!f || api_await(f, &err) != TINKER_OK) && (!f || !err.http_status)) {
        int status = api_fail(&err, f);
        tinker_future_free(f);
        tinker_service_free(c->raw);
        return status;
    }
    tinker_future_free(f);
    listing_init(&l, columns, ARRAY_LEN(columns));
    passed = run_checks(c, &l, &total);
    tinker_service_free(c->raw);
    double score = 100.0 * (double)passed / (double)total;
    int status = print_score(&l, globals.base_url, c->model, passed, total, score);
    if (status != EXIT_OK)
        return status;
    if (api_interrupted())
        return EXIT_INTERRUPTED;
    /* For CI of a server's author: the exit status alone says whether the rules hold. */
    return score >= min_score ? EXIT_OK : EXIT_FAILED;
}

int cmd_conform(int argc, char **argv)
{
    struct conform c = { .seq = 1, .first_loss = NAN, .saved_loss = NAN };
    struct api a;
    double min_score = 100;
    bool list = false;
    const char *url = NULL;
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "the base model to try (default: the first of the server)",
          .out = &c.wanted },
        { .name = "min-score",
          .kind = OPT_DOUBLE,
          .value = "PERCENT",
          .help = "exit with 0 from this score on (default 100)",
          .out = &min_score },
        { .name = "list",
          .kind = OPT_FLAG,
          .help = "print the checks and send nothing",
          .out = &list },
    };
    const struct opt_arg args[] = { { .name = "URL", .out = &url, .optional = true } };
    const struct opt_spec spec = { .command = "conform",
                                   .about =
                                       "Score how well a server keeps the rules of the Tinker API.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .args = args,
                                   .n_args = ARRAY_LEN(args),
                                   .example = "tinker conform http://127.0.0.1:8000" };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (min_score < 0 || min_score > 100)
        return opt_usage_error(&spec, "--min-score is a percentage from 0 to 100.");
    /* No credentials are needed to read the list. */
    if (list)
        return list_checks();
    if (url)
        globals.base_url = url;
    /* The checks have deadlines of their own; this is the last resort when a whole request
     * hangs. */
    if (globals.timeout < 0)
        globals.timeout = CALL_S;
    if (!api_open(&a, &status))
        return status;
    c.api = &a;
    /* What it costs, said before anything is sent.  The figures are those of the checks: they do
     * not grow with the model. */
    out_say("In two sessions of their own: 4 training runs of rank 4, about 30 passes of 6 tokens, "
            "about 40 samples of at most 8 tokens, 3 small checkpoints that are deleted at the "
            "end.");
    if (api_is_local(&a) || confirm_ask(&status, "This is charged to your account. Go on?"))
        status = run_conform(&c, min_score);
    api_close(&a);
    return status;
}
