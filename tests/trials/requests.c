/* requests.c - valid requests with one thing changed, many at once, until the count is reached.
 *
 * Most reach the engine: a mutation keeps the shape of a request and moves one value to an edge or
 * beyond it.  Every request must end with a result or with a refusal that names the request's
 * fault; a server error, a lost connection, a time-out or a number that is not finite is a failure.
 * Prints "N requests, N accepted, N refused by the library, N by the service".
 * Usage: requests COUNT SEED */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/stream.h>
#include <tinker/tinker.h>

enum {
    IN_FLIGHT = 24,
    TOKENS_MAX = 96,
    DATUMS_MAX = 6,
    TIMEOUT_MS = 120000,
    VOCAB = 300,
    CONTEXT = 64
};

static unsigned long long state;
static long accepted, refused_here, refused_there, failures;

static unsigned next_random(unsigned n) /* xorshift64*, in 0..n-1 */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (unsigned)((state * 0x2545f4914f6cdd1dULL) >> 33) % n;
}

static int one_in(unsigned n)
{
    return next_random(n) == 0;
}

/* Mostly an ordinary value, sometimes one of the edges. */
static double pick_number(double usual)
{
    static const double edges[] = {
        0,    -0.0,  1,      -1,           1e-45, 1e-38, 1e-12, 1e6,
        1e38, -1e38, 3.4e38, 4294967296.0, 0.5,   1e-7,  1e300, -1e-300
    };
    return one_in(12) ? edges[next_random(sizeof(edges) / sizeof(*edges))] : usual;
}

static int32_t pick_token(void)
{
    static const int32_t edges[] = { -1, VOCAB, VOCAB - 1, 0, 2147483647, -2147483647 - 1, 100000 };
    return one_in(400) ? edges[next_random(7)] : (int32_t)next_random(VOCAB);
}

static size_t pick_length(void)
{
    static const size_t edges[] = { 1, 2, CONTEXT - 1, CONTEXT, CONTEXT + 1, TOKENS_MAX };
    return one_in(10) ? edges[next_random(6)] : 2 + next_random(20);
}

/* ---- requests --------------------------------------------------------------------------------- */

static tinker_future *submit_pass(tinker_training *t, tinker_error *err)
{
    static const char *const losses[] = {
        "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"
    };
    static const char *const settings[] = { "clip_low_threshold", "clip_high_threshold", "beta",
                                            "no_such_setting" };
    static int32_t tokens[DATUMS_MAX][TOKENS_MAX];
    static int64_t targets[DATUMS_MAX][TOKENS_MAX];
    static float floats[DATUMS_MAX][3][TOKENS_MAX];
    tinker_chunk chunks[DATUMS_MAX][2];
    tinker_named_tensor inputs[DATUMS_MAX][4];
    tinker_datum data[DATUMS_MAX];
    size_t n_data = 1 + next_random(DATUMS_MAX), which = next_random(7);
    for (size_t d = 0; d < n_data; d++) {
        size_t n = pick_length(), cut = next_random((unsigned)n + 1), n_inputs = 0;
        for (size_t i = 0; i < n; i++) {
            tokens[d][i] = pick_token();
            targets[d][i] = pick_token();
            floats[d][0][i] = one_in(3) ? 0.0f : (float)pick_number(1);
            floats[d][1][i] = (float)-fabs(pick_number(next_random(1000) / 100.0));
            floats[d][2][i] = (float)pick_number(next_random(200) / 100.0 - 1);
        }
        size_t wrong = one_in(60) ? n - 1 : n; /* a tensor that is too short */
        static const char *const names[] = { "weights", "logprobs", "advantages" };
        inputs[d][n_inputs++] =
            (tinker_named_tensor){ "target_tokens",
                                   { .dtype = TINKER_INT64, .data = targets[d], .n = wrong } };
        for (size_t k = which == 0 ? 0 : 1; k < (which == 0 ? 1u : 3u); k++)
            if (!one_in(60))
                inputs[d][n_inputs++] = (tinker_named_tensor){
                    names[k], { .dtype = TINKER_FLOAT32, .data = floats[d][k], .n = n }
                };
        /* the same tokens in one chunk or in two */
        size_t n_chunks = one_in(4) && cut > 0 && cut < n ? 2 : 1;
        chunks[d][0] = (tinker_chunk){ .tokens = tokens[d], .n_tokens = n_chunks == 2 ? cut : n };
        chunks[d][1] = (tinker_chunk){ .tokens = tokens[d] + cut, .n_tokens = n - cut };
        data[d] = (tinker_datum){ .model_input = { chunks[d], n_chunks },
                                  .inputs = inputs[d],
                                  .n_inputs = n_inputs };
    }
    tinker_named_number config = { settings[next_random(one_in(8) ? 4 : 2)], pick_number(0.8) };
    tinker_loss loss = { .name = losses[which],
                         .config = &config,
                         .n_config = which == 2 || which == 3 ? one_in(2) : one_in(50) };
    if (one_in(100))
        loss.name = "no_such_loss";
    return one_in(3) ? tinker_training_forward(t, data, n_data, &loss, err)
                     : tinker_training_forward_backward(t, data, n_data, &loss, err);
}

static tinker_future *submit_step(tinker_training *t, tinker_error *err)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = pick_number(1e-4);
    adam.beta1 = pick_number(0.9);
    adam.beta2 = pick_number(0.95);
    adam.eps = pick_number(1e-8);
    adam.weight_decay = pick_number(0.01);
    adam.grad_clip_norm = pick_number(1);
    return tinker_training_optim_step(t, &adam, err);
}

/* What newer services know: rules that change the distribution. */
static void pick_rules(tinker_sampling_params *p, tinker_logit_bias biases[4])
{
    static const char *const schemas[] = {
        "{\"type\":\"boolean\"}",
        "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}",
        "{\"type\":\"array\",\"items\":{\"enum\":[\"a b\",1,null]},\"maxItems\":3}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":{\"pattern\":"
        "\"^[a-c]{2,9}$\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
        "{\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\",\"items\":{\"$ref\":"
        "\"#/$defs/n\"}}]}},\"$ref\":\"#/$defs/n\"}",
        "{}",
        "{\"type\":\"string\",\"minLength\":3,\"maxLength\":1}",
        "{\"not\":{}}",
        "{\"type\":",
    };
    if (one_in(6))
        p->min_p = pick_number(0.1);
    if (one_in(6))
        p->repetition_penalty = pick_number(1.2);
    if (one_in(6))
        p->presence_penalty = pick_number(0.5);
    if (one_in(6))
        p->frequency_penalty = pick_number(-0.5);
    if (one_in(6)) {
        for (size_t i = 0; i < 4; i++)
            biases[i] = (tinker_logit_bias){ pick_token(), pick_number(next_random(200) - 100.0) };
        p->logit_bias = biases;
        p->n_logit_bias = next_random(5);
    }
    if (one_in(6)) {
        p->json_schema = schemas[next_random(one_in(4) ? 9 : 6)];
        p->n_stop = 0; /* both at once are refused */
        p->stop_tokens = NULL;
    }
}

static tinker_future *submit_sample(tinker_sampler *s, tinker_error *err)
{
    int32_t tokens[TOKENS_MAX], stops[3];
    int64_t wanted[TOKENS_MAX * 2];
    tinker_logit_bias biases[4];
    size_t n = pick_length();
    for (size_t i = 0; i < n; i++)
        tokens[i] = pick_token();
    for (size_t i = 0; i < 3; i++)
        stops[i] = pick_token();
    tinker_chunk text = { .tokens = tokens, .n_tokens = n };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = one_in(20) ? (int64_t)pick_number(1e9) : 1 + (int64_t)next_random(12);
    p.temperature = pick_number(next_random(20) / 10.0);
    p.top_p = one_in(2) ? 1 : pick_number(0.9);
    p.top_k = one_in(2) ? -1 : (int64_t)fmin(fmax(pick_number(5), -2), 1e9);
    p.has_seed = one_in(2);
    p.seed = (int64_t)next_random(1000);
    p.stop_tokens = stops;
    p.n_stop = next_random(3);
    pick_rules(&p, biases);
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    size_t rows = one_in(40) ? n : n - 1, k = 1 + next_random(2);
    int64_t shape[2] = { (int64_t)rows, (int64_t)k };
    tinker_tensor targets = {
        .dtype = TINKER_INT64, .data = wanted, .n = rows * k, .shape = shape, .ndim = 2
    };
    for (size_t i = 0; i < rows * k; i++)
        wanted[i] = one_in(5) ? -1 : pick_token();
    if (one_in(6) && rows > 0)
        o.target_prompt_logprobs = &targets;
    if (one_in(6))
        o.prompt_alt_tokens_k = next_random(4);
    o.num_samples = one_in(40) ? 0 : 1 + next_random(4);
    o.prompt_logprobs = one_in(3);
    o.topk_prompt_logprobs = one_in(3) ? next_random(8) : 0;
    o.topk_sample_logprobs = one_in(3) ? next_random(8) : 0;
    o.prompt_logprobs_last_n = o.prompt_logprobs && one_in(3) ? next_random((unsigned)n + 2) : 0;
    return tinker_sampler_sample(s, &input, &p, &o, err);
}

static tinker_future *submit_save(tinker_training *t, tinker_error *err)
{
    static const char *const names[] = { "a", "b",    "step-1", "..",  "a/b",
                                         "",  "x\ny", "%2e%2e", "\xff" };
    const char *name = names[next_random(one_in(2) ? 9 : 3)];
    return one_in(2) ? tinker_training_save_state(t, name, NULL, err)
                     : tinker_training_save_for_sampler(t, name, NULL, err);
}

/* ---- outcomes ---------------------------------------------------------------------------------- */

static void fail(const char *what, const tinker_error *err)
{
    fprintf(stderr, "requests: %s: %s\n", what, err ? err->message : "");
    failures++;
}

static void check_numbers(const tinker_future *f)
{
    const tinker_sample *s = tinker_future_sample(f);
    for (size_t k = 0; s && k < s->n_sequences; k++)
        for (size_t i = 0; i < s->sequences[k].n; i++)
            if (!(s->sequences[k].logprobs[i] <= 0) || s->sequences[k].tokens[i] < 0 ||
                s->sequences[k].tokens[i] >= VOCAB)
                fail("a sampled token or logprob is impossible", NULL);
}

static void finish(tinker_future *f)
{
    tinker_error err = { 0 };
    tinker_status s = tinker_future_wait(f, TIMEOUT_MS, &err);
    if (s == TINKER_OK) {
        accepted++;
        check_numbers(f);
    } else if (s == TINKER_EREQUEST || (s == TINKER_EHTTP && err.http_status < 500) ||
               s == TINKER_EINVAL)
        refused_there++;
    else
        fail("neither a result nor a refusal", &err);
    tinker_future_free(f);
}

/* The loss of known data on a new adapter: what it was before, whatever has happened since. */
static double known_loss(tinker_service *service)
{
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    lora.has_seed = 1;
    lora.seed = 3;
    tinker_training *t =
        tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
    tinker_datum *d = tinker_datum_from_tokens((int32_t[]){ 5, 6, 7, 8 }, 4, NULL, &err);
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_future *f = t && d ? tinker_training_forward(t, d, 1, &loss, &err) : NULL;
    double value = NAN;
    if (f && tinker_future_wait(f, TIMEOUT_MS, &err) == TINKER_OK) {
        const tinker_forward_backward *r = tinker_future_forward_backward(f);
        value = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    } else
        fail("the known pass", &err);
    tinker_future_free(f);
    tinker_datum_free(d);
    tinker_training_free(t);
    return value;
}

int main(int argc, char **argv)
{
    long count = argc > 2 ? strtol(argv[1], NULL, 10) : 0;
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 0) * 0x9e3779b97f4a7c15ULL + 1;
    tinker_error err = { 0 };
    tinker_service *service = count > 0 ? tinker_service_new(NULL, &err) : NULL;
    if (!service)
        return fprintf(stderr, "requests: %s\n", err.message), 2;
    double before = known_loss(service);
    tinker_training *t = tinker_service_create_lora(service, "tinker/tiny", NULL, TIMEOUT_MS, &err);
    tinker_sampler *s =
        tinker_service_create_sampler(service, "tinker/tiny", NULL, TIMEOUT_MS, &err);
    if (!t || !s)
        return fprintf(stderr, "requests: %s\n", err.message), 2;
    tinker_future *flying[IN_FLIGHT] = { NULL };
    for (long i = 0; i < count && failures < 20; i++) {
        tinker_future **slot = &flying[i % IN_FLIGHT];
        if (*slot)
            finish(*slot);
        unsigned kind = next_random(20);
        *slot = kind < 9    ? submit_pass(t, &err)
                : kind < 12 ? submit_step(t, &err)
                : kind < 19 ? submit_sample(s, &err)
                            : submit_save(t, &err);
        refused_here += *slot == NULL;
        if (*slot && one_in(30))
            tinker_future_cancel(*slot), tinker_future_free(*slot), *slot = NULL;
    }
    for (int i = 0; i < IN_FLIGHT; i++)
        if (flying[i])
            finish(flying[i]);
    if (known_loss(service) != before)
        fail("the base model answers differently now", NULL);
    tinker_training_free(t);
    tinker_sampler_free(s);
    tinker_service_free(service);
    printf("%ld requests, %ld accepted, %ld refused by the library, %ld by the service\n", count,
           accepted, refused_here, refused_there);
    return failures > 0;
}
