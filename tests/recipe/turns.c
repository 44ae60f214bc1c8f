/* turns.c - training data from answers in several turns; the numbers are those of the cookbook's
 * trajectory_to_data(). */
#include "recipe/rollout.c"

#include "support/tap.h"

static struct arena arena;

static void check_floats(const tinker_datum *d, int which, const float *want, size_t n)
{
    const tinker_tensor *t = &d->inputs[which].tensor;
    CHECK_INT(t->n, n);
    for (size_t i = 0; i < n && i < t->n; i++)
        CHECK_NEAR(((const float *)t->data)[i], want[i], 0);
}

/* Two turns of which the second begins with all of the first, then one that does not. */
static void test_prefixes(void)
{
    const int32_t first[] = { 1, 2 }, second[] = { 1, 2, 3, 4, 5 }, third[] = { 9, 8 };
    int32_t said[] = { 3, 4 }, more[] = { 6 }, other[] = { 7 };
    float logprobs[][2] = { { -0.1F, -0.2F }, { -0.3F }, { -0.4F } };
    const tinker_sequence answers[] = { { .tokens = said, .n = 2, .logprobs = logprobs[0] },
                                        { .tokens = more, .n = 1, .logprobs = logprobs[1] },
                                        { .tokens = other, .n = 1, .logprobs = logprobs[2] } };
    struct turn at[] = { { first, 2, &answers[0] },
                         { second, 5, &answers[1] },
                         { third, 2, &answers[2] } };
    const struct turns turns = { at, 3 };
    tinker_datum data[3];
    size_t n;
    REQUIRE(put_answer(&arena, &turns, 0.75, data, &n));
    CHECK_INT(n, 2);
    CHECK_INT(data[0].model_input.chunks[0].n_tokens, 5);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(data[0].model_input.chunks[0].tokens[i], i + 1);
        CHECK_INT(((const int64_t *)data[0].inputs[0].tensor.data)[i], i + 2);
    }
    check_floats(&data[0], 1, (const float[]){ 0, -0.1F, -0.2F, 0, -0.3F }, 5);
    check_floats(&data[0], 2, (const float[]){ 0, 0.75F, 0.75F, 0, 0.75F }, 5);
    check_floats(&data[0], 3, (const float[]){ 0, 1, 1, 0, 1 }, 5);
    CHECK_INT(data[1].model_input.chunks[0].n_tokens, 2);
    check_floats(&data[1], 1, (const float[]){ 0, -0.4F }, 2);
    check_floats(&data[1], 3, (const float[]){ 0, 1 }, 2);
}

/* A turn in which nothing was said teaches nothing, and does not end the sequence. */
static void test_silence(void)
{
    const int32_t first[] = { 1, 2 }, second[] = { 1, 2, 3, 5 };
    int32_t said[] = { 3 };
    float logprob[] = { -0.5F };
    const tinker_sequence answers[] = { { .tokens = said, .n = 1, .logprobs = logprob },
                                        { .n = 0 } };
    struct turn at[] = { { first, 2, &answers[0] },
                         { second, 4, &answers[1] },
                         { second, 4, &answers[0] } };
    tinker_datum data[3];
    size_t n;
    REQUIRE(put_answer(&arena, &(struct turns){ at, 3 }, 1, data, &n));
    CHECK_INT(n, 1);
    CHECK_INT(data[0].model_input.chunks[0].n_tokens, 4);
    REQUIRE(put_answer(&arena, &(struct turns){ at + 1, 1 }, 1, data, &n));
    CHECK_INT(n, 0);
}

int main(void)
{
    arena_init(&arena, SIZE_MAX);
    RUN(test_prefixes);
    RUN(test_silence);
    arena_clear(&arena);
    return tap_done();
}
