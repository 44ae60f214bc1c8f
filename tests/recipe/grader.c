/* grader.c - built-in graders, and commands that behave and misbehave. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <tinker/recipe.h>
#include <unistd.h>
#include "support/tap.h"

static tinker_error err;

static double score(const char *spec, const char *text, const char *expected, const char *row)
{
    tinker_grader *g = tinker_grader_new(spec, NULL, &err);
    double v = -1;
    if (g)
        tinker_grader_score(g, text, expected, row, &v, &err);
    tinker_grader_free(g);
    return v;
}

static void test_texts(void)
{
    CHECK_INT(score("exact", " yes\n", "yes", NULL), 1);
    CHECK_INT(score("exact", "Yes", "yes", NULL), 0);
    CHECK_INT(score("exact", "b", "[\"a\",\"b\"]", NULL), 1);
    CHECK_INT(score("contains", "I say yes.", "yes", NULL), 1);
    CHECK_INT(score("regex:^[0-9]+$", "123", NULL, NULL), 1);
    CHECK_INT(score("regex:is ([a-z]+)", "it is red", "red", NULL), 1);
    CHECK_INT(score("regex:is ([a-z]+)", "it is red", "blue", NULL), 0);
    CHECK_INT(score("regex", "abc", "", "{\"pattern\":\"b+\"}"), 1);
    CHECK(!tinker_grader_new("regex:(", NULL, &err));
    CHECK(!tinker_grader_new("length:9", NULL, &err));
    CHECK(!tinker_grader_new("nothing", NULL, &err) && strstr(err.message, "is no grader"));
    tinker_grader *g = tinker_grader_new("number:0.5@0.25", NULL, &err);
    REQUIRE(g);
    CHECK_STR(tinker_grader_name(g), "number");
    CHECK_NEAR(tinker_grader_weight(g), 0.25, 0);
    tinker_grader_free(g);
    tinker_grader_options o = TINKER_GRADER_OPTIONS_INIT;
    o.ignore_case = o.normalize = 1;
    g = tinker_grader_new("exact", &o, &err);
    REQUIRE(g);
    double v;
    tinker_grader_score(g, "The  Answer.", "the answer", NULL, &v, &err);
    CHECK_INT(v, 1);
    CHECK_INT(tinker_grader_score(g, "x", NULL, NULL, &v, &err), TINKER_EINVAL);
    tinker_grader_free(g);
}

static void test_values(void)
{
    CHECK_INT(score("number:0.1", "about 3.05", "3", NULL), 1);
    CHECK_INT(score("number", "\\boxed{1{,}000}", "work\n#### 1,000", NULL), 1);
    CHECK_INT(score("choice", "The answer is (b).", "B", NULL), 1);
    CHECK_INT(score("choice", "C", "2", NULL), 1);
    CHECK_INT(score("choice", "B", "green", "{\"choices\":[\"red\",\"green\"]}"), 1);
    CHECK_INT(score("choice", "C", "green", "{\"choices\":[\"red\",\"green\"]}"), 0);
    CHECK_INT(score("boxed", "so \\boxed{\\dfrac12}", "\\frac{1}{2}", NULL), 1);
    CHECK_INT(score("boxed", "\\boxed{0.5}", "\\frac{1}{2}", NULL), 1);
    CHECK_INT(score("boxed", "\\boxed{2/4}", "1/2", NULL), 0);
    CHECK_INT(score("boxed", "\\boxed{3.0}", "3", NULL), 0);
    CHECK_INT(score("boxed", "\\boxed{-\\frac{1}{2}}", "-0.5", NULL), 1);
    CHECK_INT(score("boxed", "1/2", "1/2", NULL), 0);
    CHECK_INT(score("json", "```json\n{\"a\":[1,2.0]}\n```", "{\"a\":[1.0,2]}", NULL), 1);
    CHECK_INT(score("json", "{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", NULL), 1);
    CHECK_INT(score("json", "{\"a\":1}", "{\"a\":1,\"b\":2}", NULL), 0);
    CHECK_INT(score("json:a.1", "{\"a\":[1,\"x\"]}", "x", NULL), 1);
    CHECK_INT(score("json", "{", "1", NULL), 0);
}

/* ---- commands ---- */

enum { N = 12 };
static tinker_grade items[N];
static char texts[N][16];

static size_t workers = 1;

static tinker_status run_command(const char *command, int64_t timeout_ms)
{
    char spec[512];
    tinker_grader_options o = TINKER_GRADER_OPTIONS_INIT;
    o.timeout_ms = timeout_ms;
    o.ahead = 4;
    o.workers = workers;
    snprintf(spec, sizeof(spec), "cmd:%s", command);
    tinker_grader *g = tinker_grader_new(spec, &o, &err);
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%d", i);
        items[i] = (tinker_grade){ .text = texts[i], .row = "{\"a\":\n1}" };
    }
    tinker_status status = g ? tinker_grader_run(g, items, N, &err) : TINKER_ENOMEM;
    tinker_grader_free(g);
    return status;
}

static void test_command(void)
{
    /* numbers answer in order; each request is one line */
    CHECK_INT(run_command("echo banner; i=0; while read -r x; do echo $i; i=$((i+1)); done", 20000),
              TINKER_OK);
    for (int i = 0; i < N; i++)
        CHECK_INT(items[i].score, i);
    /* ids answer in any order, here the reverse of four by four */
    CHECK_INT(run_command("n=0; s=; while read -r x; do i=${x#*:}; i=${i%%,*}; "
                          "s=\"{\\\"id\\\":$i,\\\"score\\\":$i.5}\n$s\"; n=$((n+1)); "
                          "if [ $n = 4 ]; then printf %s \"$s\"; n=0; s=; fi; done",
                          20000),
              TINKER_OK);
    for (int i = 0; i < N; i++)
        CHECK_NEAR(items[i].score, i + 0.5, 0);
    setenv("SOME_API_KEY", "x", 1);
    CHECK_INT(run_command("while read -r x; do echo ${SOME_API_KEY:-$TINKER_GRADER}; done", 20000),
              TINKER_OK);
    CHECK_INT(items[0].score, 1); /* the key is not told */
}

static void test_workers(void)
{
    /* Each gets a run of answers, and they work at the same time: one after the other would take
     * three times as long as the limit. */
    workers = 3;
    CHECK_INT(run_command("while read -r x; do sleep 0.2; echo $TINKER_GRADER_WORKER; done", 20000),
              TINKER_OK);
    for (int i = 0; i < N; i++)
        CHECK_INT(items[i].score, i * 3 / N);
    CHECK_INT(run_command("read -r x; echo 1", 20000), TINKER_OK); /* each starts again */
    CHECK_INT(items[N - 1].score, 1);
    CHECK_INT(run_command("exit 3", 20000), TINKER_ESTATE);
    workers = 100;
    CHECK(!tinker_grader_new(
        "cmd:true",
        &(tinker_grader_options){ .size = sizeof(tinker_grader_options), .workers = 100 }, &err));
    workers = 1;
}

/* An environment says what comes next, or that it is done; a turn need not have a score. */
static void test_environment(void)
{
    CHECK_INT(
        run_command(
            "while read -r x; do i=${x#*:}; i=${i%%,*}; case $i in "
            "0) echo '{\"id\":0,\"observation\":[{\"role\":\"user\",\"content\":\"go on\"}]}';; "
            "1) echo '{\"id\":1,\"observation\":[],\"done\":true,\"score\":0.5}';; "
            "*) echo 1;; esac; done",
            20000),
        TINKER_OK);
    CHECK_STR(items[0].observation, "[{\"role\":\"user\",\"content\":\"go on\"}]");
    CHECK(!items[0].done && items[0].score == 0);
    CHECK(items[1].done && items[1].score == 0.5);
    CHECK(items[2].done && items[2].score == 1 && !items[2].observation);
    for (int i = 0; i < N; i++)
        free(items[i].observation);
}

static void test_bad_commands(void)
{
    CHECK_INT(run_command("echo sorry >&2; exit 3", 20000), TINKER_ESTATE);
    CHECK(strstr(err.message, "ends without an answer: sorry") != NULL);
    /* garbage: the request fails twice and the rest goes on */
    CHECK_INT(run_command("while read -r x; do case $x in *'\"response\":\"3\"'*) echo what;; "
                          "*) echo 1;; esac; done",
                          20000),
              TINKER_OK);
    CHECK(isnan(items[3].score) && strstr(items[3].reason, "what"));
    CHECK_INT(items[4].score, 1);
    /* one that never comes back is given up */
    CHECK_INT(run_command("while read -r x; do case $x in *'\"response\":\"5\"'*) sleep 60;; "
                          "*) echo 1;; esac; done",
                          300),
              TINKER_OK);
    CHECK(isnan(items[5].score) && strstr(items[5].reason, "in time"));
    CHECK_INT(items[N - 1].score, 1);
    /* one that ends after every answer is started again */
    CHECK_INT(run_command("read -r x; echo 1", 20000), TINKER_OK);
    CHECK_INT(items[N - 1].score, 1);
    CHECK_INT(run_command("while read -r x; do echo NaN; done", 50), TINKER_OK);
    CHECK(isnan(items[0].score));
}

/* Nothing is left open after all that. */
static void test_descriptors(void)
{
    int before = dup(0);
    close(before);
    CHECK_INT(run_command("while read -r x; do echo 1; done", 20000), TINKER_OK);
    int after = dup(0);
    close(after);
    CHECK_INT(after, before);
}

int main(void)
{
    RUN(test_texts);
    RUN(test_values);
    RUN(test_command);
    RUN(test_workers);
    RUN(test_environment);
    RUN(test_bad_commands);
    RUN(test_descriptors);
    return tap_done();
}
