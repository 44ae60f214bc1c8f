/* rows.c - every form of a row, its problems, splits and orders; run folders. */
#include <math.h>
#include <stdlib.h>
#include <tinker/recipe.h>
#include <unistd.h>
#include "support/tap.h"

static char path[64];
static tinker_tokenizer *tokenizer;
static tinker_renderer *renderer;
static tinker_error err;
static char problems[4096];

static void keep_problem(size_t line, size_t column, const char *reason, void *state)
{
    (void)state;
    size_t n = strlen(problems);
    snprintf(problems + n, sizeof(problems) - n, "%zu:%zu: %s\n", line, column, reason);
}

static tinker_rows *load(const char *text, tinker_rows_options *o)
{
    tinker_rows_options usual = TINKER_ROWS_OPTIONS_INIT;
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
    o = o ? o : &usual;
    problems[0] = 0;
    o->problem = keep_problem;
    return tinker_rows_load(path, renderer, tokenizer, o, &err);
}

static void check_row(const char *text, tinker_row_form form, const char *question,
                      const char *expected)
{
    tinker_rows *x = load(text, NULL);
    tinker_row row;
    if (!x)
        printf("# %s\n", err.message);
    REQUIRE(x);
    CHECK_INT(tinker_rows_count(x).form, form);
    CHECK_INT(tinker_rows_prompt(x, 0, &row, &err), TINKER_OK);
    size_t n = row.prompt->n_messages;
    CHECK(n > 0);
    CHECK_STR(n ? row.prompt->messages[n - 1].content : "", question);
    CHECK_STR(row.expected, expected);
    tinker_rows_free(x);
}

static void test_forms(void)
{
    check_row("\xef\xbb\xbf{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
              "\"assistant\",\"content\":\"a\"}]}\r\n",
              TINKER_FORM_MESSAGES, "q", "a");
    check_row("{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\","
              "\"value\":\"a\"}],\"system\":\"s\"}",
              TINKER_FORM_SHAREGPT, "q", "a");
    check_row("{\"instruction\":\"do\",\"input\":\"this\",\"output\":\"a\",\"history\":[[\"x\","
              "\"y\"]]}",
              TINKER_FORM_ALPACA, "do\n\nthis", "a");
    check_row("{\"prompt\":\"q\",\"response\":\"a\",\"expected\":\"b\"}",
              TINKER_FORM_PROMPT_COMPLETION, "q", "b");
    check_row("{\"question\":\"q\",\"answer\":12}", TINKER_FORM_QUESTION_ANSWER, "q", "12");
    check_row("[{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":{\"role\":"
              "\"assistant\",\"content\":\"a\"}},\n {\"prompt\":\"q2\",\"completion\":\"a2\"}]",
              TINKER_FORM_PROMPT_COMPLETION, "q", "a");
}

static void test_pairs(void)
{
    size_t n;
    tinker_rows *x =
        load("{\"comparison\":{\"prompt_conversation\":[{\"role\":\"user\",\"content\":"
             "\"q\"}],\"completion_A\":[{\"role\":\"assistant\",\"content\":\"first\"}"
             "],\"completion_B\":[{\"role\":\"assistant\",\"content\":\"second one\"}]}"
             ",\"label\":\"B\"}\n"
             "{\"comparison\":{\"prompt_conversation\":[{\"role\":\"user\",\"content\":"
             "\"q\"}],\"completion_A\":[{\"role\":\"assistant\",\"content\":\"first\"}"
             "],\"completion_B\":[{\"role\":\"assistant\",\"content\":\"second one\"}]}"
             ",\"label\":\"Tie\"}\n",
             NULL);
    REQUIRE(x);
    CHECK_INT(tinker_rows_count(x).ties, 1);
    const tinker_datum *d = tinker_rows_batch(x, 0, 0, &n);
    CHECK_INT(n, 2);
    /* B is chosen, and longer; weights are 1, not reduced */
    CHECK(d[0].inputs[0].tensor.n > d[1].inputs[0].tensor.n);
    CHECK_NEAR(((const float *)d[0].inputs[1].tensor.data)[d[0].inputs[1].tensor.n - 1], 1, 0);
    tinker_rows_free(x);
    CHECK(!load("{\"chosen\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                "\"content\":\"b\"}],\"rejected\":[{\"role\":\"user\",\"content\":\"c\"},{\"role\":"
                "\"assistant\",\"content\":\"d\"}]}",
                NULL));
    CHECK(strstr(problems, "no first message in common") != NULL);
}

static void test_problems(void)
{
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    CHECK(!load("{\"tokens\":[1,70000]}\n{\"tokens\":[1,2],\"weights\":[1]}\n7\n{\"tokens\":[1,2]",
                NULL));
    CHECK(strstr(problems, "2:27: weights has 1 elements, tokens 2\n") != NULL);
    CHECK(strstr(problems, "3:1: not an object\n") != NULL);
    CHECK(strstr(problems, "4:16: not JSON: ") != NULL);
    CHECK(strstr(err.message, "(and 2 more)") != NULL);
    CHECK(!load("{\"tokens\":[1,70000]}", NULL));
    CHECK(strstr(problems, "1:1: token 70000 is outside the vocabulary of ") != NULL);
    CHECK(!load("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", NULL));
    CHECK_STR(problems, "1:1: nothing to train on: no assistant message\n");
    CHECK(!load("{\"messages\":[{\"content\":\"q\"}]}", NULL));
    CHECK_STR(problems, "1:14: message 1 has no role\n");
    CHECK(!load("{\"messages\":[{\"role\":\"user\",\"content\":7}]}", NULL));
    CHECK_STR(problems, "1:39: content is neither text nor a list of parts\n");
    CHECK(!load("{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"train\":false},{\"role\":"
                "\"assistant\",\"content\":\"a\"}]}",
                NULL));
    CHECK(strstr(problems, "has no \"train\", which others of the file have") != NULL);
    o.max_length = 3;
    o.on_truncate = TINKER_TRUNCATE_FAIL;
    CHECK(!load("{\"tokens\":[1,2,3,4,5]}", &o));
    CHECK_STR(problems, "1:1: longer than --max-length by 2 tokens\n");
}

static void test_options(void)
{
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    size_t n;
    o.max_length = 3;
    tinker_rows *x = load("{\"tokens\":[1,2,3,4,5]}\n{\"tokens\":[5,6]}\n{\"tokens\":[5,6]}", &o);
    REQUIRE(x);
    CHECK_INT(tinker_rows_count(x).dropped, 1);
    CHECK_INT(tinker_rows_count(x).duplicates, 1);
    CHECK_INT(tinker_rows_batches(x), 1); /* fewer rows than a batch make one */
    tinker_rows_free(x);
    o.on_truncate = TINKER_TRUNCATE_CUT;
    o.keep_last = 1;
    o.batch_size = 2;
    o.shuffle_seed = TINKER_SHUFFLE_NONE;
    x = load("{\"tokens\":[1,2,3,4,5]}\n{\"tokens\":[7,6],\"weight\":0.5}\n{\"tokens\":[8,6]}", &o);
    REQUIRE(x);
    CHECK_INT(tinker_rows_count(x).truncated, 1);
    CHECK_INT(tinker_rows_batches(x), 2);
    const tinker_datum *d = tinker_rows_batch(x, 5, 0, &n);
    CHECK_INT(n, 2);
    CHECK_INT(d[1].model_input.chunks[0].tokens[0], 7);
    CHECK_NEAR(*(const float *)d[1].inputs[1].tensor.data, 0.5, 0);
    d = tinker_rows_batch(x, 0, 1, &n);
    CHECK_INT(n, 1);
    CHECK_INT(tinker_rows_set_order(x, (const size_t[]){ 2, 0, 9 }, 3, &err), TINKER_EINVAL);
    CHECK_INT(tinker_rows_set_order(x, (const size_t[]){ 2, 0 }, 2, &err), TINKER_OK);
    d = tinker_rows_batch(x, 0, 0, &n);
    CHECK_INT(d[0].model_input.chunks[0].tokens[0], 8);
    tinker_rows_free(x);
    x = load("{\"text\":\"some text\"}", NULL);
    REQUIRE(x);
    d = tinker_rows_batch(x, 0, 0, &n);
    const tinker_tensor *t = &d[0].inputs[0].tensor; /* ends with the end token */
    CHECK_INT(((const int64_t *)t->data)[t->n - 1],
              tinker_tokenizer_special(tokenizer, TINKER_TOKEN_EOS));
    tinker_rows_free(x);
    o.test_size = 1;
    CHECK(!load("{\"tokens\":[1,2]}", &o));
    CHECK(strstr(err.message, "cannot give 1 test rows") != NULL);
}

/* ---- run folders ---- */

static char dir[64];

static size_t file_size(const char *name)
{
    char file[128];
    snprintf(file, sizeof(file), "%s/%s", dir, name);
    FILE *f = fopen(file, "r");
    if (!f)
        return 0;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    fclose(f);
    return (size_t)n;
}

static void test_run_folder(void)
{
    char file[128];
    snprintf(dir, sizeof(dir), "/tmp/tinker-run-%ld", (long)getpid());
    tinker_run *run = tinker_run_open(dir, TINKER_RUN_NEW, "{\"a\":1}", &err);
    REQUIRE(run);
    CHECK(!tinker_run_config(run) && !tinker_run_last(run));
    for (size_t i = 0; i < 6; i++) {
        const tinker_named_number m[] = { { "train_mean_nll", i == 2 ? NAN : 3.5 - (double)i },
                                          { NULL, 1 } };
        CHECK_INT(tinker_run_log(run, i, m, 2, &err), TINKER_OK);
    }
    size_t whole = file_size("metrics.jsonl");
    const tinker_checkpoint_record c = { .name = "000003",
                                         .state_path = "tinker://x/weights/000003",
                                         .batch = 3,
                                         .epoch = 0,
                                         .extra = "{\"elapsed_tokens\": 7}" };
    CHECK_INT(tinker_run_checkpoint(run, &c, &err), TINKER_OK);
    tinker_run_close(run);
    CHECK(file_size("metrics.svg") > 1000);
    CHECK(!tinker_run_open(dir, TINKER_RUN_NEW, "{}", &err));
    CHECK(strstr(err.message, "is not empty") != NULL);
    /* a line that was torn off by a crash */
    snprintf(file, sizeof(file), "%s/checkpoints.jsonl", dir);
    FILE *f = fopen(file, "a");
    fputs("{\"name\": \"0000", f);
    fclose(f);
    run = tinker_run_open(dir, TINKER_RUN_RESUME, "{}", &err);
    REQUIRE(run);
    CHECK_STR(tinker_run_config(run), "{\"a\":1}");
    const tinker_checkpoint_record *last = tinker_run_last(run);
    REQUIRE(last);
    CHECK_STR(last->name, "000003");
    CHECK_INT(last->batch, 3);
    CHECK(strstr(last->extra, "\"elapsed_tokens\": 7") != NULL);
    CHECK_INT(tinker_run_rewind(run, 3, &err), TINKER_OK);
    CHECK(file_size("metrics.jsonl") < whole);
    CHECK_INT(file_size("metrics.jsonl") + file_size("metrics.jsonl.bak"), whole);
    tinker_run_close(run);
    run = tinker_run_open(dir, TINKER_RUN_OVERWRITE, "{}", &err);
    REQUIRE(run);
    CHECK(!tinker_run_last(run));
    CHECK_INT(file_size("metrics.jsonl"), 0);
    tinker_run_close(run);
    snprintf(file, sizeof(file), "rm -rf %s", dir);
    CHECK_INT(system(file), 0);
}

int main(void)
{
    snprintf(path, sizeof(path), "/tmp/tinker-rows-%ld.jsonl", (long)getpid());
    tokenizer = tinker_tokenizer_load("models/tiny", NULL, &err);
    renderer = tokenizer ? tinker_renderer_new("qwen3_instruct", tokenizer, NULL, &err) : NULL;
    if (!renderer)
        return 1;
    RUN(test_forms);
    RUN(test_pairs);
    RUN(test_problems);
    RUN(test_options);
    RUN(test_run_folder);
    unlink(path);
    tinker_renderer_free(renderer);
    tinker_tokenizer_free(tokenizer);
    return tap_done();
}
