/* dataset.c - JSON Lines with the line in every error, and rows that line up. */
#include <tinker/recipe.h>
#include <unistd.h>
#include "support/tap.h"

static char path[64];

static void write_file(const char *text)
{
    snprintf(path, sizeof(path), "/tmp/tinker-dataset-%ld.jsonl", (long)getpid());
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

static void test_lines(void)
{
    tinker_error err = { .message = "" };
    write_file("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}\n\n  \n"
               "{\"messages\":[{\"role\":\"user\"\n"
               "{\"messages\":[{\"content\":\"x\"}]}\n"
               "[{\"role\":\"user\",\"content\":\"last\"}]");
    tinker_dataset *d = tinker_dataset_open(path, &err);
    REQUIRE(d);
    const tinker_conversation *c = NULL;
    CHECK_INT(tinker_dataset_next(d, &c, &err), TINKER_OK);
    CHECK(c && c->n_messages == 1 && strcmp(c->messages[0].content, "1") == 0);
    CHECK_INT(tinker_dataset_line(d), 1);
    char want[100];
    snprintf(want, sizeof(want), "%s:4: not JSON: ", path);
    CHECK(tinker_dataset_next(d, &c, &err) == TINKER_EINVAL && !c);
    CHECK(strncmp(err.message, want, strlen(want)) == 0);
    snprintf(want, sizeof(want), "%s:5: messages[0]: message has no role", path);
    CHECK(tinker_dataset_next(d, &c, &err) == TINKER_EINVAL && !c);
    CHECK_STR(err.message, want);
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK_INT(tinker_dataset_next(d, &c, &err), TINKER_OK);
    CHECK(c && strcmp(c->messages[0].content, "last") == 0);
    CHECK_INT(tinker_dataset_line(d), 6);
    err.status = TINKER_ENOMEM; /* the end is no failure: it leaves *err alone */
    CHECK(tinker_dataset_next(d, &c, &err) == TINKER_OK && !c && err.status == TINKER_ENOMEM);
    tinker_dataset_close(d);
    unlink(path);
}

/* As some editors write it: a byte order mark first, CR LF, no newline at the end. */
static void test_byte_order_mark(void)
{
    tinker_error err = { .message = "" };
    write_file("\xef\xbb\xbf[{\"role\":\"user\",\"content\":\"1\"}]\r\n\r\n"
               "[{\"role\":\"user\",\"content\":\"2\"}]\r");
    tinker_dataset *d = tinker_dataset_open(path, &err);
    REQUIRE(d);
    const tinker_conversation *c = NULL;
    for (int i = 1; i <= 2; i++) {
        CHECK_INT(tinker_dataset_next(d, &c, &err), TINKER_OK);
        CHECK(c && c->messages[0].content[0] == '0' + i);
        if (!c)
            TAP_FAIL("%s", err.message);
    }
    err.status = TINKER_ENOMEM; /* the end is no failure: it leaves *err alone */
    CHECK(tinker_dataset_next(d, &c, &err) == TINKER_OK && !c && err.status == TINKER_ENOMEM);
    tinker_dataset_close(d);
    unlink(path);
}

static void test_missing(void)
{
    tinker_error err = { .message = "" };
    CHECK(!tinker_dataset_open("/nonexistent/x.jsonl", &err));
    CHECK(strstr(err.message, "/nonexistent/x.jsonl"));
    tinker_dataset_close(NULL);
}

static const int32_t a[] = { 10, 11, 12 }, b[] = { 13, 14 }, c1[] = { 15 };
static const float weights[] = { 0, 0, 0, 1, 1, 1, 1, 1, 1 };

static tinker_example text_example(tinker_chunk chunks[3])
{
    chunks[0] = (tinker_chunk){ .tokens = a, .n_tokens = 3 };
    chunks[1] = (tinker_chunk){ .tokens = b, .n_tokens = 2 };
    chunks[2] = (tinker_chunk){ .tokens = c1, .n_tokens = 1 };
    return (tinker_example){ { chunks, 3 }, weights, 6 };
}

static void test_shift(void)
{
    tinker_chunk chunks[3];
    tinker_example e = text_example(chunks);
    tinker_training_row *row = tinker_training_row_new(&e, 0, TINKER_REDUCTION_NONE, NULL);
    REQUIRE(row);
    CHECK_INT(row->datum.model_input.n_chunks, 2); /* the last chunk had one token */
    CHECK_INT(row->datum.model_input.chunks[1].n_tokens, 2);
    const int64_t want[] = { 11, 12, 13, 14, 15 };
    const float w[] = { 0, 0, 1, 1, 1 };
    CHECK_STR(row->datum.inputs[0].name, "target_tokens");
    CHECK_MEM(row->datum.inputs[0].tensor.data, row->n_targets * 8, want, sizeof(want));
    CHECK_MEM(row->datum.inputs[1].tensor.data, row->n_targets * 4, w, sizeof(w));
    CHECK_INT(row->n_trained, 3);
    CHECK_INT(row->n_truncated, 0);
    tinker_training_row_free(row);
}

static void test_mean_and_truncation(void)
{
    tinker_chunk chunks[3];
    tinker_example e = text_example(chunks);
    tinker_training_row *row = tinker_training_row_new(&e, 5, TINKER_REDUCTION_MEAN, NULL);
    REQUIRE(row);
    const float *w = row->datum.inputs[1].tensor.data;
    CHECK_INT(row->n_targets, 4);
    CHECK_INT(row->n_truncated, 1);
    CHECK_NEAR(w[2], 0.5, 0);
    CHECK_NEAR(w[3], 0.5, 0);
    tinker_training_row_free(row);
    row = tinker_training_row_new(&e, 4, TINKER_REDUCTION_MEAN, NULL);
    REQUIRE(row);
    CHECK_INT(row->n_trained, 1);
    CHECK_INT(row->datum.model_input.n_chunks, 1);
    tinker_training_row_free(row);
    row = tinker_training_row_new(&e, 3, TINKER_REDUCTION_MEAN, NULL);
    REQUIRE(row);
    CHECK_INT(row->n_trained, 0); /* nothing trained is visible, not divided by zero */
    tinker_training_row_free(row);
    tinker_error err = { .message = "" };
    CHECK(!tinker_training_row_new(&e, 1, TINKER_REDUCTION_NONE, &err));
    CHECK_STR(err.message, "an example needs at least 2 tokens, 1 are left");
}

static void test_images(void)
{
    tinker_chunk chunks[4];
    tinker_example e = text_example(chunks);
    chunks[1] = (tinker_chunk){ .kind = TINKER_CHUNK_IMAGE,
                                .bytes = "png",
                                .n_bytes = 3,
                                .format = "png",
                                .has_expected_tokens = 1,
                                .expected_tokens = 4 };
    e.n_tokens = 8;
    tinker_training_row *row = tinker_training_row_new(&e, 0, TINKER_REDUCTION_NONE, NULL);
    REQUIRE(row);
    const int64_t want[] = { 11, 12, 0, 0, 0, 0, 15 };
    CHECK_MEM(row->datum.inputs[0].tensor.data, row->n_targets * 8, want, sizeof(want));
    tinker_training_row_free(row);
    row = tinker_training_row_new(&e, 6, TINKER_REDUCTION_NONE, NULL); /* the image does not fit */
    REQUIRE(row);
    CHECK_INT(row->n_targets, 2);
    CHECK_INT(row->n_truncated, 5);
    tinker_training_row_free(row);
    e.input.n_chunks = 2; /* an image at the end predicts nothing */
    row = tinker_training_row_new(&e, 0, TINKER_REDUCTION_NONE, NULL);
    REQUIRE(row);
    CHECK_INT(row->n_targets, 2);
    tinker_training_row_free(row);
}

int main(void)
{
    RUN(test_lines);
    RUN(test_byte_order_mark);
    RUN(test_missing);
    RUN(test_shift);
    RUN(test_mean_and_truncation);
    RUN(test_images);
    return tap_done();
}
