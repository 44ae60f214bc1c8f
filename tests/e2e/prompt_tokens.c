/* prompt_tokens.c - chosen and drawn tokens at positions of a prompt, from a real server.
 * Usage: prompt_tokens BASE_MODEL; the server is named by the environment. */
#include <stdio.h>
#include <string.h>
#include <tinker/tinker.h>

enum { PROMPT = 6, ROWS = PROMPT - 1, CHOSEN = 3, DRAWN = 4, TOP = 32 };
static const int32_t tokens[PROMPT] = { 5, 9, 17, 33, 9, 5 };
static int failed;

static void expect(int ok, const char *what)
{
    printf("%s: %s\n", what, ok ? "yes" : "NO");
    failed |= !ok;
}

static const tinker_sample *ask(tinker_sampler *s, const tinker_sample_options *o,
                                tinker_future **out)
{
    const tinker_chunk chunk = { .tokens = tokens, .n_tokens = PROMPT };
    const tinker_model_input prompt = { &chunk, 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    tinker_error err;
    p.max_tokens = 1;
    p.has_seed = 1;
    p.seed = 42;
    *out = tinker_future_await(tinker_sampler_sample(s, &prompt, &p, o, &err), 60000, &err);
    if (!*out)
        printf("%s\n", err.message);
    return *out ? tinker_future_sample(*out) : NULL;
}

/* Of position i of the prompt, as the likeliest tokens there have it; 1: not among them. */
static float known(const tinker_sample *r, size_t i, int64_t token)
{
    for (size_t k = 0; k < r->topk; k++)
        if (r->topk_tokens[i * r->topk + k] == token)
            return r->topk_logprobs[i * r->topk + k];
    return 1;
}

/* The token of the prompt, nothing, and the likeliest one, in each row. */
static void check_chosen(tinker_sampler *s, const tinker_sample *scored)
{
    static const int64_t shape[] = { ROWS, CHOSEN };
    int64_t ids[ROWS][CHOSEN];
    for (size_t i = 0; i < ROWS; i++) {
        ids[i][0] = tokens[i + 1];
        ids[i][1] = -1;
        ids[i][2] = scored->topk_tokens[(i + 1) * scored->topk];
    }
    const tinker_tensor targets = {
        .dtype = TINKER_INT64, .data = ids, .n = ROWS * CHOSEN, .shape = shape, .ndim = 2
    };
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.target_prompt_logprobs = &targets;
    tinker_future *f;
    const tinker_sample *r = ask(s, &o, &f);
    const tinker_tensor *t = r ? r->target_prompt_logprobs : NULL;
    expect(t && t->dtype == TINKER_FLOAT32 && t->ndim == 2 && t->shape[0] == ROWS &&
               t->shape[1] == CHOSEN && t->n == ROWS * CHOSEN && !r->prompt_alt_tokens,
           "the answer has the shape of the question");
    int same = t != NULL;
    for (size_t i = 0; same && i < ROWS; i++) {
        const float *row = (const float *)t->data + i * CHOSEN;
        same = row[0] == scored->prompt_logprobs[i + 1] && row[1] == 0 &&
               row[2] == scored->topk_logprobs[(i + 1) * scored->topk];
    }
    expect(same, "chosen tokens have the logprobs of the prompt");
    tinker_future_free(f);
}

static void check_sparse(tinker_sampler *s, const tinker_sample *scored)
{
    static const int64_t shape[] = { ROWS, CHOSEN }, crow[ROWS + 1] = { 0, 0, 0, 0, 0, 1 },
                         col[] = { 2 };
    const int32_t id = tokens[PROMPT - 1];
    const tinker_tensor targets = { TINKER_INT32, &id, 1, shape, 2, crow, col };
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.target_prompt_logprobs = &targets;
    tinker_future *f;
    const tinker_sample *r = ask(s, &o, &f);
    const tinker_tensor *t = r ? r->target_prompt_logprobs : NULL;
    expect(t && t->crow && t->col && t->n == 1 && t->col[0] == 2 && t->crow[ROWS] == 1 &&
               *(const float *)t->data == scored->prompt_logprobs[PROMPT - 1],
           "a sparse question has a sparse answer");
    tinker_future_free(f);
}

static void check_drawn(tinker_sampler *s, const tinker_sample *scored)
{
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.prompt_alt_tokens_k = DRAWN;
    tinker_future *f, *again;
    const tinker_sample *r = ask(s, &o, &f), *q = ask(s, &o, &again);
    const tinker_tensor *t = r ? r->prompt_alt_tokens : NULL;
    const tinker_tensor *v = r ? r->prompt_alt_logprobs : NULL;
    expect(t && v && t->dtype == TINKER_INT64 && t->n == ROWS * DRAWN && v->n == t->n &&
               t->shape[0] == ROWS && t->shape[1] == DRAWN && !r->target_prompt_logprobs,
           "so many tokens are drawn in each place");
    int same = t && v;
    for (size_t i = 0; same && i < t->n; i++) {
        float want = known(scored, i / DRAWN + 1, ((const int64_t *)t->data)[i]);
        same = want > 0 || want == ((const float *)v->data)[i];
    }
    expect(same, "drawn tokens have the logprobs of the likeliest");
    expect(t && q && q->prompt_alt_tokens &&
               memcmp(t->data, q->prompt_alt_tokens->data, t->n * sizeof(int64_t)) == 0,
           "the same seed draws the same");
    tinker_future_free(f);
    tinker_future_free(again);
}

static void check_refused(tinker_sampler *s)
{
    static const int64_t id = 1, shape[] = { 1, 1 };
    const tinker_tensor short_one = {
        .dtype = TINKER_INT64, .data = &id, .n = 1, .shape = shape, .ndim = 2
    };
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.target_prompt_logprobs = &short_one;
    tinker_future *f;
    expect(!ask(s, &o, &f), "too few rows are refused");
}

int main(int argc, char **argv)
{
    tinker_error err;
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    tinker_future *f = NULL;
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_sampler *s = service
                            ? tinker_service_create_sampler(
                                  service, argc > 1 ? argv[1] : "tinker/tiny", NULL, 60000, &err)
                            : NULL;
    o.prompt_logprobs = 1;
    o.topk_prompt_logprobs = TOP;
    const tinker_sample *scored = s ? ask(s, &o, &f) : NULL;
    if (!scored) {
        fprintf(stderr, "no logprobs: %s\n", s ? "see above" : err.message);
        return 1;
    }
    check_chosen(s, scored);
    check_sparse(s, scored);
    check_drawn(s, scored);
    check_refused(s);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return failed;
}
