/* Guessed tokens: the same results as without them, and fewer steps where text repeats itself. */
#include "engine/generate/generator.h"
#include "support/generate.h"

static void a_draft_follows_the_longest_phrase(void)
{
    /* 1 2 3 came twice: what followed 9 1 2 3 counts, not what came last */
    static const int32_t text[] = { 9, 1, 2, 3, 50, 51, 8, 1, 2, 3, 60, 61, 9, 1, 2, 3 };
    int32_t draft[DRAFT_MAX];
    CHECK_INT(draft_tokens(text, 16, draft, 3), 3);
    CHECK(draft[0] == 50 && draft[1] == 51 && draft[2] == 8);
    /* of equal ones the latest */
    CHECK_INT(draft_tokens(text + 1, 15, draft, 2), 2);
    CHECK(draft[0] == 60);
    CHECK_INT(draft_tokens(text + 2, 8, draft, 2), 2);
    CHECK(draft[0] == 50 && draft[1] == 51);
    /* a single token is no phrase, and nothing is read before the text */
    static const int32_t few[] = { 4, 5, 6, 4 };
    CHECK_INT(draft_tokens(few, 4, draft, 2), 0);
    for (size_t n = 0; n < 4; n++)
        CHECK_INT(draft_tokens(few, n, draft, 2), 0);
    /* a text that repeats its end goes on for longer than it is */
    static const int32_t loop[] = { 7, 8, 7, 8, 7 };
    CHECK_INT(draft_tokens(loop, 5, draft, 6), 6);
    for (size_t i = 0; i < 6; i++)
        CHECK_INT(draft[i], i % 2 ? 7 : 8);
}

static void drafts_pause_where_they_fail(void)
{
    struct draft_state s = { 0 };
    size_t n = draft_length(&s), tried = 0;
    CHECK(n > 1);
    draft_result(&s, n, n);
    CHECK_INT(draft_length(&s), 2 * n < DRAFT_MAX ? 2 * n : DRAFT_MAX);
    draft_result(&s, DRAFT_MAX, 2);
    CHECK_INT(draft_length(&s), 3);
    for (size_t i = 0; i < 1000; i++) {
        n = draft_length(&s);
        if (n > 0)
            draft_result(&s, n, 0);
        tried += n;
    }
    CHECK(tried < 45);
    while ((n = draft_length(&s)) == 0) {
    }
    draft_result(&s, n, n); /* one that comes ends the pauses */
    CHECK_INT(draft_length(&s), 2);
}

/* What a request with callbacks saw. */
struct watcher {
    size_t seen, stop_after;
    int32_t last;
    uint64_t mask[(VOCAB + 63) / 64];
};

static int stop_later(size_t sample, int32_t token, float logprob, void *state)
{
    struct watcher *w = state;
    (void)sample;
    (void)logprob;
    w->last = token;
    return ++w->seen == w->stop_after;
}

/* After an even token only odd ones may come, and so on: a rule that needs the last token. */
static const uint64_t *alternate(size_t sample, void *state)
{
    struct watcher *w = state;
    (void)sample;
    for (size_t i = 0; i < (VOCAB + 63) / 64; i++)
        w->mask[i] = w->last % 2 ? 0x5555555555555555u : 0xaaaaaaaaaaaaaaaau;
    return w->mask;
}

enum { KINDS = 10 };

/* The requests that are compared: a prompt that repeats itself, sampled in many ways. */
static void make_request(size_t kind, tinker_generate *q, tinker_sampling_params *p,
                         struct watcher *w)
{
    static const int32_t stops[] = { 17, 99, 250 };
    *p = params(120, 40 + (int64_t)kind, kind % 2 ? 0.3 : 0);
    *w = (struct watcher){ 0 };
    q->params = p;
    q->num_samples = 1;
    q->on_token = NULL;
    q->on_mask = NULL;
    q->state = w;
    q->topk_sample_logprobs = 0;
    switch (kind) {
    case 2:
        p->temperature = 1;
        break;
    case 3:
        p->top_k = 3;
        break;
    case 4:
        p->temperature = 1;
        p->top_p = 0.2;
        break;
    case 5:
        p->stop_tokens = stops;
        p->n_stop = 3;
        break;
    case 6:
        q->on_token = stop_later;
        w->stop_after = 41;
        break;
    case 7:
        q->on_token = stop_later;
        q->on_mask = alternate;
        break;
    case 8:
        p->frequency_penalty = 0.1;
        q->topk_sample_logprobs = 3;
        break;
    case 9:
        q->num_samples = 3;
        break;
    default:
        break;
    }
}

/* All kinds of requests with and without drafts; how many guessed tokens came. */
static uint64_t compare_kinds(tinker_adapter *adapters[2], tinker_engine *with,
                              tinker_engine *without)
{
    tinker_generator *g = tinker_generator_new(with, NULL);
    int32_t prompt[60];
    uint64_t came;
    prompt_of(prompt, 12, 5);
    for (size_t i = 12; i < 60; i++)
        prompt[i] = prompt[i - 12];
    for (size_t kind = 0; kind < KINDS; kind++) {
        tinker_generate q = { .prompt = prompt, .n_prompt = 60 };
        tinker_sampling_params p;
        struct watcher w;
        struct outcome want[3], got;
        const tinker_sample *s;
        make_request(kind, &q, &p, &w);
        q.adapter = adapters[0];
        for (size_t i = 0; i < q.num_samples; i++) {
            w.seen = 0;
            w.last = 0;
            alone(without, &q, i, &want[i]);
        }
        w.seen = 0;
        w.last = 0;
        q.adapter = adapters[1];
        s = run_one(g, &q);
        CHECK(s != NULL);
        for (size_t i = 0; s != NULL && i < q.num_samples; i++) {
            copy_sequence(&got, s, i);
            got.hits = want[i].hits;
            CHECK(same(&got, &want[i]));
        }
        CHECK(kind != 6 || w.seen == 41);
    }
    came = g->came;
    printf("# %llu tokens guessed, %llu came\n", (unsigned long long)g->drafted,
           (unsigned long long)came);
    tinker_generator_free(g);
    return came;
}

static tinker_engine *open_without_drafts(void)
{
    tinker_engine *e = open_engine(1, 0);
    e->opts.no_drafts = 1;
    return e;
}

static void drafts_change_no_bit(void)
{
    static const tinker_weights_dtype modes[] = { TINKER_WEIGHTS_F32, TINKER_WEIGHTS_BF16,
                                                  TINKER_WEIGHTS_Q8_INT8 };
    for (size_t i = 0; i < 3; i++) {
        weights_dtype = modes[i];
        tinker_engine *with = open_engine(2, 0), *without = open_without_drafts();
        tinker_adapter *adapters[2] = { tiny_adapter(without, 4, 1), tiny_adapter(with, 4, 1) };
        train_a_little(without, adapters[0]);
        train_a_little(with, adapters[1]);
        CHECK(compare_kinds(adapters, with, without) > 50);
        tinker_adapter *none[2] = { NULL, NULL };
        CHECK(compare_kinds(none, with, without) > 50);
        tinker_adapter_free(adapters[0]);
        tinker_adapter_free(adapters[1]);
        tinker_engine_close(with);
        tinker_engine_close(without);
    }
    weights_dtype = TINKER_WEIGHTS_F32;
}

/* Requests side by side, in little memory: drafts take no page that a sequence needs. */
static void drafts_wait_for_memory(void)
{
    enum { MANY = 6 };
    static struct outcome want[MANY];
    uint64_t page = 2 * 2 * 2 * 32 * 16 * sizeof(float); /* layers, k and v, heads, block, dim */
    tinker_engine *without = open_without_drafts(), *little = open_engine(2, 2 * 12 * page);
    tinker_generator *g = tinker_generator_new(little, NULL);
    int32_t prompts[MANY][30];
    tinker_sampling_params p = params(150, 1, 0);
    tinker_generate q = { .n_prompt = 30, .params = &p, .num_samples = 1 };
    for (size_t i = 0; i < MANY; i++) {
        prompt_of(prompts[i], 10, 50 + i);
        for (size_t k = 10; k < 30; k++)
            prompts[i][k] = prompts[i][k - 10];
        q.prompt = prompts[i];
        alone(without, &q, 0, &want[i]);
        q.tag = &want[i];
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    }
    run(g);
    void *tag;
    const tinker_sample *s;
    int different = 0, results = 0;
    while (tinker_generator_next(g, &tag, &s, NULL)) {
        struct outcome got;
        REQUIRE(s != NULL);
        copy_sequence(&got, s, 0);
        got.hits = ((struct outcome *)tag)->hits;
        different += !same(&got, tag);
        results++;
    }
    CHECK_INT(results, MANY);
    CHECK_INT(different, 0);
    CHECK(g->came > 0);
    tinker_generator_free(g);
    tinker_engine_close(little);
    tinker_engine_close(without);
}

/* A cancel from a callback in the middle of a draft. */
struct canceler {
    tinker_generator *g;
    size_t seen;
};

static int cancel_later(size_t sample, int32_t token, float logprob, void *state)
{
    struct canceler *c = state;
    (void)sample;
    (void)token;
    (void)logprob;
    if (++c->seen == 61)
        tinker_generator_cancel(c->g, c);
    return 0;
}

static void a_cancel_ends_the_draft(void)
{
    tinker_engine *e = open_engine(1, 0);
    struct canceler c = { tinker_generator_new(e, NULL), 0 };
    int32_t prompt[40];
    for (size_t i = 0; i < 40; i++)
        prompt[i] = (int32_t)(i % 4);
    tinker_sampling_params p = params(150, 1, 0);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = 40,
                          .params = &p,
                          .num_samples = 1,
                          .on_token = cancel_later,
                          .state = &c,
                          .tag = &c };
    CHECK(tinker_generator_add(c.g, &q, NULL) == TINKER_OK);
    run(c.g);
    CHECK_INT(c.seen, 61);
    CHECK(tinker_generator_next(c.g, NULL, NULL, NULL) == 0);
    tinker_generator_free(c.g);
    tinker_engine_close(e);
}

int main(void)
{
    write_model();
    RUN(a_draft_follows_the_longest_phrase);
    RUN(drafts_pause_where_they_fail);
    RUN(drafts_change_no_bit);
    RUN(drafts_wait_for_memory);
    RUN(a_cancel_ends_the_draft);
    os_remove_tree(dir, NULL);
    return tap_done();
}
