/* reference_engine.c - examples/reference_engine.c and the fast engine compute the same.
 *
 * The example is included as it is.  What the fast engine has computed reaches it through adapter
 * files: weights, pending gradients and moments, by their names. */
#define main reference_main
#include "../../examples/reference_engine.c"
#undef main
#include <sys/wait.h>
#include <tinker/engine.h>
#include <unistd.h>
#include "support/tap.h"
#include "support/tiny_model.h"

enum { SEED = 7, GREEDY = 10, LENGTH = 24 };

/* One model in both engines, and an adapter in each. */
struct pair {
    char dir[160];
    tinker_engine *engine;
    tinker_adapter *fast;
    struct transformer t;
    struct activations s;
};

static void open_pair(struct pair *p, const char *dir, size_t rank)
{
    tinker_error err = { 0 };
    snprintf(p->dir, sizeof(p->dir), "%s", dir);
    p->engine = tinker_engine_open(dir, NULL, &err);
    p->fast = p->engine ? tiny_adapter(p->engine, (int64_t)rank, SEED) : NULL;
    if (!p->fast) {
        printf("Bail out! %s: %s\n", dir, err.message);
        exit(1);
    }
    load_transformer(&p->t, dir);
    make_adapter(&p->t, rank, SEED);
    make_activations(&p->t, &p->s, 64);
}

static void close_pair(struct pair *p)
{
    free_activations(&p->s);
    free_transformer(&p->t);
    tinker_adapter_free(p->fast);
    tinker_engine_close(p->engine);
}

/* Tokens of the bundled model's text, or any; targets are the tokens that follow. */
struct text {
    int32_t tokens[LENGTH], targets[LENGTH];
    int64_t wide[LENGTH];
    float weights[LENGTH];
    tinker_chunk chunk;
    tinker_named_tensor inputs[2];
    tinker_datum datum;
    struct example example;
};

static void make_text(struct text *x, size_t vocab, uint64_t seed)
{
    for (size_t i = 0; i < LENGTH; i++) {
        x->tokens[i] = (int32_t)(draw_uniform(seed, i) * (double)vocab);
        x->targets[i] = (int32_t)(draw_uniform(seed, i + 1) * (double)vocab);
        x->wide[i] = x->targets[i];
        x->weights[i] = i < 4 ? 0 : (float)(0.5 + draw_uniform(seed + 1, i)); /* 0: a prompt */
    }
    x->chunk = (tinker_chunk){ .tokens = x->tokens, .n_tokens = LENGTH };
    tinker_tensor targets = { .dtype = TINKER_INT64, .data = x->wide, .n = LENGTH };
    tinker_tensor weights = { .dtype = TINKER_FLOAT32, .data = x->weights, .n = LENGTH };
    x->inputs[0] = (tinker_named_tensor){ "target_tokens", targets };
    x->inputs[1] = (tinker_named_tensor){ "weights", weights };
    x->datum =
        (tinker_datum){ .model_input = { &x->chunk, 1 }, .inputs = x->inputs, .n_inputs = 2 };
    x->example = (struct example){ x->tokens, x->targets, x->weights, LENGTH };
}

/* A pass of the fast engine to its end; free it. */
static tinker_pass *run_pass(struct pair *p, const tinker_datum *datum, int forward_only)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *pass = tinker_pass_new(p->engine, p->fast, datum, 1, &loss, forward_only, &err);
    int more = pass ? 1 : -1;
    while (more > 0)
        more = tinker_pass_step(pass, &err);
    if (more < 0) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    return pass;
}

static double loss_of(const tinker_pass *pass)
{
    const tinker_forward_backward *r = tinker_pass_result(pass);
    return tinker_metric(r->metrics, r->n_metrics, "loss:sum");
}

static void step_fast(struct pair *p, const struct adamw *o, tinker_step_metrics *m)
{
    tinker_error err = { 0 };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = o->learning_rate;
    adam.beta1 = o->beta1;
    adam.beta2 = o->beta2;
    adam.eps = o->eps;
    adam.weight_decay = o->weight_decay;
    adam.grad_clip_norm = o->clip_norm;
    if (tinker_adapter_step(p->fast, &adam, m, &err) != TINKER_OK)
        TAP_FAIL("%s", err.message);
}

/* Numbers of the fast adapter in the reference's layout: from the weights, or with a suffix
 * (".grad", ".exp_avg", ".exp_avg_sq") from the optimizer's state. */
static void read_fast(struct pair *p, const char *suffix, float *out)
{
    tinker_error err = { 0 };
    struct tensor_file f;
    struct float_list *list = NULL;
    struct lora_linear *l;
    char dir[160];
    snprintf(dir, sizeof(dir), "%s", tiny_path("adapter"));
    if (os_make_dirs(dir, &err) != TINKER_OK ||
        tinker_adapter_save(p->fast, dir, "base", TINKER_ADAPTER_OPTIMIZER, &err) != TINKER_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    open_tensors(&f, dir, *suffix ? "optimizer.safetensors" : "adapter_model.safetensors");
    for (size_t i = 0; (l = linear_at(&p->t, i)) != NULL; i++) {
        for (int b = 0; b < 2; b++) {
            char name[NAME_SIZE], full[NAME_SIZE + 16];
            size_t rank = p->t.adapter.rank, rows = b ? l->out : rank, columns = b ? rank : l->in;
            name_factor(&p->t, i, b ? 'B' : 'A', name);
            snprintf(full, sizeof(full), "%s%s", name, suffix);
            memcpy(out, load_tensor(&f, full, rows, columns, &list), rows * columns * sizeof(*out));
            out += rows * columns;
        }
    }
    free_floats(list);
    free(f.bytes);
}

/* Distance of two vectors, relative to the length of the second. */
static double relative_distance(const float *x, const float *y, size_t n)
{
    double difference = 0, length = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        length += (double)y[i] * y[i];
    }
    return length > 0 ? sqrt(difference / length) : sqrt(difference);
}

/* The same for each factor of the adapter; the largest, and where. */
static double worst_factor(struct pair *p, const float *x, const float *y, char name[NAME_SIZE])
{
    double worst = 0;
    size_t at = 0;
    struct lora_linear *l;
    for (size_t i = 0; (l = linear_at(&p->t, i)) != NULL; i++) {
        for (int b = 0; b < 2; b++) {
            size_t n = p->t.adapter.rank * (b ? l->out : l->in);
            double distance = relative_distance(x + at, y + at, n);
            if (!(distance <= worst)) {
                worst = distance;
                name_factor(&p->t, i, b ? 'B' : 'A', name);
            }
            at += n;
        }
    }
    return worst;
}

static void check_factors(struct pair *p, const char *what, const float *x, const float *y)
{
    char name[NAME_SIZE] = "all equal";
    double worst = worst_factor(p, x, y, name);
    printf("# %s: relative difference at most %.2g (%s)\n", what, worst, name);
    if (!(worst <= 1e-5))
        TAP_FAIL("%s differ by %g in %s", what, worst, name);
}

/* Takes the fast adapter's weights and state over. */
static void copy_fast(struct pair *p)
{
    struct adapter *a = &p->t.adapter;
    read_fast(p, "", a->w);
    read_fast(p, ".exp_avg", a->m);
    read_fast(p, ".exp_avg_sq", a->v);
    a->steps = tinker_adapter_steps(p->fast);
}

/* Both adapters after two steps of the fast engine: no factor is zero any more. */
static void warm_up(struct pair *p, const struct text *x)
{
    struct adamw o = adamw_defaults;
    o.learning_rate = 2e-3;
    for (int i = 0; i < 2; i++) {
        tinker_pass_free(run_pass(p, &x->datum, 0));
        step_fast(p, &o, NULL);
    }
    copy_fast(p);
}

/* Every token of the vocabulary as a target of each position: all log-probabilities, which are the
 * logits but for a constant of each row. */
static void compare_logits(struct pair *p, const struct text *x)
{
    size_t V = p->t.config.vocab;
    const int64_t shape[] = { LENGTH, (int64_t)V };
    int64_t *all = calloc(LENGTH * V, sizeof(*all));
    float *zero = calloc(LENGTH * V, sizeof(*zero));
    for (size_t i = 0; i < LENGTH * V; i++)
        all[i] = (int64_t)(i % V);
    tinker_named_tensor inputs[] = {
        { "target_tokens", { TINKER_INT64, all, LENGTH * V, shape, 2, NULL, NULL } },
        { "weights", { TINKER_FLOAT32, zero, LENGTH * V, shape, 2, NULL, NULL } },
    };
    tinker_datum datum = { .model_input = { &x->chunk, 1 }, .inputs = inputs, .n_inputs = 2 };
    tinker_pass *pass = run_pass(p, &datum, 1);
    const tinker_loss_output *output = &tinker_pass_result(pass)->outputs[0];
    const float *logprobs = NULL;
    for (size_t i = 0; i < output->n_tensors; i++)
        if (strcmp(output->tensors[i].name, "logprobs") == 0 &&
            output->tensors[i].tensor.n == LENGTH * V)
            logprobs = output->tensors[i].tensor.data;
    compute_loss(&p->t, &p->s, &x->example);
    double worst = logprobs ? 0 : INFINITY;
    for (size_t i = 0; logprobs && i < LENGTH * V; i++)
        worst = fmax(worst, fabs((double)p->s.logits[i] - p->s.lse[i / V] - logprobs[i]));
    printf("# logits: difference at most %.2g\n", worst);
    CHECK(worst <= 1e-4);
    tinker_pass_free(pass);
    free(all);
    free(zero);
}

static void compare_gradients(struct pair *p, const struct text *x)
{
    struct adapter *a = &p->t.adapter;
    float *grad = calloc(a->n, sizeof(float));
    tinker_pass *pass = run_pass(p, &x->datum, 0);
    double want = loss_of(pass), got = compute_loss(&p->t, &p->s, &x->example);
    CHECK_NEAR(got / want, 1, 1e-6);
    clear_floats(a->grad, a->n);
    model_backward(&p->t, &p->s, &x->example);
    read_fast(p, ".grad", grad);
    check_factors(p, "gradients", a->grad, grad);
    tinker_pass_free(pass);
    free(grad);
}

/* After compare_gradients(): both have a gradient pending.  The changes of the weights are
 * compared, which are much smaller than the weights. */
static void compare_step(struct pair *p, const struct adamw *o)
{
    struct adapter *a = &p->t.adapter;
    float *fast = calloc(a->n, sizeof(float)), *change = malloc(a->n * sizeof(float));
    tinker_step_metrics m = { 0 };
    memcpy(change, a->w, a->n * sizeof(float));
    step_fast(p, o, &m);
    adamw_step(a, o);
    CHECK(m.update_norm > 0);
    CHECK(o->clip_norm == 0 ? m.clip_coef == 1 : m.clip_coef < 1);
    CHECK_INT(a->steps, m.step);
    read_fast(p, "", fast);
    for (size_t i = 0; i < a->n; i++) {
        fast[i] -= change[i];
        change[i] = a->w[i] - change[i];
    }
    check_factors(p, "changes by a step", change, fast);
    read_fast(p, ".exp_avg", fast);
    check_factors(p, "first moments", a->m, fast);
    read_fast(p, ".exp_avg_sq", fast);
    check_factors(p, "second moments", a->v, fast);
    free(change);
    free(fast);
}

static void compare_samples(struct pair *p, const struct text *x, double temperature)
{
    static const int32_t none[1] = { 0 };
    tinker_error err = { 0 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = GREEDY;
    params.temperature = temperature;
    params.has_seed = 1;
    params.seed = 11;
    params.stop_tokens = none;
    tinker_generate ask = { .adapter = p->fast,
                            .prompt = x->tokens,
                            .n_prompt = LENGTH,
                            .params = &params,
                            .num_samples = 1 };
    tinker_generator *g = tinker_generator_new(p->engine, &err);
    REQUIRE(g && tinker_generator_add(g, &ask, &err) == TINKER_OK);
    const tinker_sample *sample = NULL;
    while (tinker_generator_step(g, &err) > 0)
        ;
    REQUIRE(tinker_generator_next(g, NULL, &sample, &err) == 1 && sample);

    int32_t tokens[LENGTH + GREEDY];
    memcpy(tokens, x->tokens, sizeof(x->tokens));
    p->t.config.eos = -1;
    CHECK_INT(generate_tokens(&p->t, &p->s, tokens, LENGTH, GREEDY, temperature, 11),
              LENGTH + GREEDY);
    CHECK_MEM(tokens + LENGTH, GREEDY * sizeof(*tokens), sample->sequences[0].tokens,
              sample->sequences[0].n * sizeof(*tokens));
    tinker_generator_free(g);
}

static void compare_all(const char *dir, size_t rank)
{
    struct pair p;
    struct text x;
    open_pair(&p, dir, rank);
    make_text(&x, p.t.config.vocab, 3);

    float *drawn = calloc(p.t.adapter.n, sizeof(float));
    read_fast(&p, "", drawn);
    CHECK_MEM(p.t.adapter.w, p.t.adapter.n * sizeof(float), drawn, p.t.adapter.n * sizeof(float));
    free(drawn);
    compare_logits(&p, &x); /* of the base model, since B is zero */

    warm_up(&p, &x);
    compare_logits(&p, &x);
    compare_gradients(&p, &x);
    /* With the usual eps, the first steps divide each gradient by about its own size, so that
     * rounding may turn the sign of one that is nearly zero.  So the step is compared on the same
     * gradient. */
    struct adamw o = adamw_defaults;
    read_fast(&p, ".grad", p.t.adapter.grad);
    compare_step(&p, &o);

    /* With an eps of the size of the clipped gradients nothing is amplified: here each engine uses
     * its own. */
    copy_fast(&p);
    compare_gradients(&p, &x);
    const struct adapter *a = &p.t.adapter;
    o.learning_rate = 2e-2;
    o.weight_decay = 0.1;
    o.clip_norm = 0.5 * sqrt(dot(a->grad, a->grad, a->n));
    o.eps = o.clip_norm / sqrt((double)a->n);
    compare_step(&p, &o);
    compare_samples(&p, &x, 0);
    compare_samples(&p, &x, 1);
    close_pair(&p);
}

static void test_bundled_model(void)
{
    compare_all("models/tiny", 8);
}

static const char *write_random_model(const char *name, bool tied, enum source_dtype dtype)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, "qwen3");
    o.config.tied = tied;
    o.config.heads = 6; /* three to a key/value head, and not as wide as the hidden size */
    o.config.kv_heads = 2;
    o.dtype = dtype;
    const char *dir = tiny_path(name);
    if (init_model_write(&o, dir, &err) != TINKER_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    return dir;
}

static void test_untied_bf16_model(void)
{
    compare_all(write_random_model("untied", false, SOURCE_BF16), 3);
}

/* Ten steps with nothing carried over: the same losses, and the same text learned. */
static void test_ten_steps_from_the_same_seed(void)
{
    struct pair p;
    struct text x;
    struct adamw o = adamw_defaults;
    o.learning_rate = 5e-3;
    o.eps = 1e-2;
    open_pair(&p, "models/tiny", 4);
    make_text(&x, p.t.config.vocab, 5);
    double first = 0, last = 0;
    for (int i = 0; i < 10; i++) {
        tinker_pass *pass = run_pass(&p, &x.datum, 0);
        last = loss_of(pass);
        first = i ? first : last;
        CHECK_NEAR(train_step(&p.t, &p.s, &x.example, &o) / last, 1, 1e-4);
        tinker_pass_free(pass);
        step_fast(&p, &o, NULL);
    }
    CHECK(last < first / 2);
    close_pair(&p);
}

/* A row at a time gives what all at once gives: what is kept of earlier rows is enough. */
static void test_cached_rows_equal_all_rows(void)
{
    struct pair p;
    struct text x;
    open_pair(&p, "models/tiny", 4);
    make_text(&x, p.t.config.vocab, 9);
    size_t n = LENGTH * p.t.config.vocab * sizeof(float);
    float *whole = malloc(n);
    model_forward(&p.t, &p.s, x.tokens, 0, LENGTH);
    memcpy(whole, p.s.logits, n);
    memset(p.s.logits, 0, n);
    for (size_t i = 0; i < LENGTH; i++)
        model_forward(&p.t, &p.s, x.tokens, i, i + 1);
    CHECK_MEM(p.s.logits, n, whole, n);
    free(whole);
    close_pair(&p);
}

/* Loads a model in a child, which must end with this on stderr. */
static void expect_refusal(const char *dir, const char *message)
{
    int fds[2], status = 0;
    char text[512] = "";
    size_t n = 0;
    REQUIRE(pipe(fds) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct transformer t;
        dup2(fds[1], STDERR_FILENO);
        load_transformer(&t, dir);
        free_transformer(&t);
        _exit(0);
    }
    close(fds[1]);
    for (ssize_t got = 1; got > 0 && n<sizeof(text) - 1; n += got> 0 ? (size_t)got : 0)
        got = read(fds[0], text + n, sizeof(text) - 1 - n);
    close(fds[0]);
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || !strstr(text, message))
        TAP_FAIL("wanted \"%s\", status %d, got \"%s\"", message, status, text);
}

/* The file with one piece of text replaced by another of the same length. */
static void expect_edit_refused(const char *file, const char *from, const char *to,
                                const char *message)
{
    tinker_error err = { 0 };
    char path[200], *data = NULL;
    size_t len = 0;
    const char *dir = write_random_model("edited", true, SOURCE_F32);
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    REQUIRE(os_read_file(path, 1 << 24, &data, &len, &err) == TINKER_OK);
    REQUIRE(strlen(from) == strlen(to));
    bool found = false;
    for (size_t i = 0; !found && i + strlen(from) <= len; i++) {
        found = memcmp(data + i, from, strlen(from)) == 0;
        if (found)
            memcpy(data + i, to, strlen(to));
    }
    if (!found)
        TAP_FAIL("%s has no %s", file, from);
    CHECK_INT(os_write_file(path, data, len, &err), TINKER_OK);
    free(data);
    expect_refusal(dir, message);
}

static void test_bad_files_are_refused(void)
{
    static const char config[] = "config.json", tensors[] = "model.safetensors";
    expect_refusal(tiny_path("nowhere"), "nowhere/config.json: cannot be opened");
    expect_edit_refused(config, "{", "[", "config.json: is not a JSON object");
    expect_edit_refused(config, "\"hidden_size\"", "\"hidden_sizf\"", "hidden_size: is missing");
    expect_edit_refused(config, "\"num_hidden_layers\"", "\"num_hidden_layerz\"",
                        "num_hidden_layers: is missing");
    expect_edit_refused(config, "\"qwen3\"", "\"qwen9\"", "model_type: is not qwen3");
    expect_edit_refused(config, "\"silu\"", "\"gelu\"", "hidden_act: this setting");
    expect_edit_refused(tensors, "model.norm.weight", "model.gnom.weight",
                        "model.norm.weight: there is no such tensor");
    expect_edit_refused(tensors, "\"F32\"", "\"F16\"", "the dtype is neither F32 nor BF16");
    expect_edit_refused(tensors, "\"shape\":[96,32]", "\"shape\":[32,96]", "the shape is not");
    expect_edit_refused(tensors, "\"data_offsets\":[0,", "\"data_offsets\":[1,", "not as long");
    expect_edit_refused(tensors, "\"data_offsets\":[0,", "\"data_offsets\":[-,", "the data is not");
    char path[200];
    const char *dir = write_random_model("cut", true, SOURCE_F32);
    snprintf(path, sizeof(path), "%s/%s", dir, tensors);
    CHECK_INT(truncate(path, 40000), 0);
    expect_refusal(dir, "the data is not inside the file");
    CHECK_INT(truncate(path, 100), 0);
    expect_refusal(dir, "the header is longer than the file");
    CHECK_INT(truncate(path, 5), 0);
    expect_refusal(dir, "the header is longer than the file");
}

int main(void)
{
    RUN(test_bundled_model);
    RUN(test_untied_bf16_model);
    RUN(test_ten_steps_from_the_same_seed);
    RUN(test_cached_rows_equal_all_rows);
    RUN(test_bad_files_are_refused);
    tiny_done();
    return tap_done();
}
