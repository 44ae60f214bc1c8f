/* quantized.c - adapters on a quantized base: a run is the run of the numbers that the codes stand
 * for, to the bit; whatever the threads; and what cannot be done says so. */
#include <tinker/engine.h>
#include <unistd.h>
#include "engine/kernels/kernels.h"
#include "engine/model/adapter.h"
#include "support/tap.h"
#include "support/tiny_model.h"

enum { STEPS = 2, SAMPLED = 12 };

struct outcome {
    double loss[STEPS];
    int32_t tokens[SAMPLED];
    float logprobs[SAMPLED];
};

static tinker_engine *open_as(const struct init_model *o, tinker_weights_dtype dtype, int threads)
{
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.dtype = dtype;
    opts.threads = threads;
    return tiny_open(o, &opts);
}

static void sample_some(tinker_engine *e, tinker_adapter *a, struct outcome *out)
{
    tinker_error err = { 0 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    int32_t prompt[] = { 1, 2, 3, 4, 5 };
    params.max_tokens = SAMPLED;
    params.seed = 9;
    params.has_seed = 1;
    tinker_generate g = {
        .adapter = a, .prompt = prompt, .n_prompt = 5, .params = &params, .num_samples = 1
    };
    tinker_generator *gen = tinker_generator_new(e, &err);
    CHECK(tinker_generator_add(gen, &g, &err) == TINKER_OK);
    while (tinker_generator_step(gen, &err) > 0) {
    }
    void *tag;
    const tinker_sample *s;
    CHECK(tinker_generator_next(gen, &tag, &s, &err) == 1);
    for (size_t i = 0; i < s->sequences[0].n && i < SAMPLED; i++) {
        out->tokens[i] = s->sequences[0].tokens[i];
        out->logprobs[i] = s->sequences[0].logprobs[i];
    }
    tinker_generator_free(gen);
}

/* A few steps and a sample; the adapter is the caller's to free. */
static tinker_adapter *run_training(tinker_engine *e, struct outcome *out)
{
    tinker_error err = { 0 };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d =
        tiny_data(tiny_lengths, TINY_LENGTHS, (size_t)tinker_engine_describe(e)->vocab_size,
                  "cross_entropy", 3);
    memset(out, 0, sizeof(*out));
    adam.learning_rate = 0.01;
    for (int i = 0; i < STEPS; i++) {
        out->loss[i] = tiny_train(e, a, d, "cross_entropy");
        CHECK(tinker_adapter_step(a, &adam, NULL, &err) == TINKER_OK);
    }
    sample_some(e, a, out);
    free(d);
    return a;
}

/* `to`, a float32 matrix, becomes the numbers of `from`. */
static void copy_numbers(const struct linear *to, const struct linear *from)
{
    float *w = malloc(from->out * from->in * sizeof(*w));
    for (size_t o = 0; o < from->out; o++)
        packed_row(w + o * from->in, from->w, o);
    packed_init((void *)(uintptr_t)to->w, PACKED_F32, w, SOURCE_F32, from->out, from->in);
    free(w);
}

static void copy_model_numbers(struct model *to, const struct model *from)
{
    const struct model_config *c = &from->config;
    for (size_t i = 0; i < c->layers; i++) {
        const struct layer *a = &to->layers[i], *b = &from->layers[i];
        for (enum linear_id id = 0; id < LINEARS; id++)
            if (b->linear[id].w)
                copy_numbers(&a->linear[id], &b->linear[id]);
        for (size_t k = 0; b->experts && k < c->experts * EXPERT_LINEARS; k++)
            copy_numbers(&a->experts[k], &b->experts[k]);
    }
    copy_numbers(&to->head, &from->head);
}

static void check_run(const char *arch, bool tied, tinker_weights_dtype dtype)
{
    struct init_model o;
    struct outcome got, want, threaded;
    tiny_longer_options(&o, arch);
    o.config.tied = tied;
    tinker_engine *q = open_as(&o, dtype, 1), *f = open_as(&o, TINKER_WEIGHTS_F32, 2),
                  *t = open_as(&o, dtype, 3);
    CHECK(engine_is_quantized(q) && !engine_is_quantized(f));
    CHECK_INT(q->model->dtype, dtype == TINKER_WEIGHTS_Q4 ? PACKED_Q4_0 : PACKED_Q8_0);
    copy_model_numbers(f->model, q->model);
    tinker_adapter *a = run_training(q, &got), *b = run_training(f, &want),
                   *c = run_training(t, &threaded);
    CHECK(memcmp(&got, &want, sizeof(got)) == 0);
    CHECK(memcmp(&got, &threaded, sizeof(got)) == 0);
    CHECK(memcmp(a->w, b->w, a->params.total * sizeof(float)) == 0);
    CHECK(memcmp(a->w, c->w, a->params.total * sizeof(float)) == 0);
    CHECK(got.loss[1] < got.loss[0]);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_adapter_free(c);
    tinker_engine_close(q);
    tinker_engine_close(f);
    tinker_engine_close(t);
}

static void test_runs_are_those_of_the_numbers(void)
{
    check_run("qwen3", true, TINKER_WEIGHTS_Q8);
    check_run("qwen3", false, TINKER_WEIGHTS_Q4);
    check_run("qwen2", true, TINKER_WEIGHTS_Q4);
    check_run("qwen3_moe", false, TINKER_WEIGHTS_Q8);
    check_run("qwen3_moe", true, TINKER_WEIGHTS_Q4);
}

/* Logprobs of a forward pass over the sampled tokens behind the prompt. */
static void check_sampled_logprobs(tinker_engine *e, tinker_adapter *a, const struct outcome *out)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    size_t length = 5 + SAMPLED - 1;
    struct tiny_data *d = tiny_data(&length, 1, 8, "cross_entropy", 3);
    for (size_t i = 0; i < length; i++) {
        d->tokens[0][i] = i < 5 ? (int32_t)i + 1 : out->tokens[i - 5];
        d->targets[0][i] = i < 4 ? 0 : out->tokens[i - 4];
        d->weights[0][i] = 1;
    }
    tinker_pass *p = tiny_pass(e, a, d, &loss, 1, &err);
    CHECK(p != NULL);
    const tinker_forward_backward *r = tinker_pass_result(p);
    const float *logprobs = r->outputs[0].tensors[0].tensor.data;
    CHECK(memcmp(logprobs + 4, out->logprobs, sizeof(out->logprobs)) == 0);
    tinker_pass_free(p);
    free(d);
}

/* Activations in 8 bits: the same bits on any number of threads, in sampling and in training, and
 * losses near those of the same weights without rounding. */
static void check_int8_run(const char *arch, tinker_weights_dtype dtype, tinker_weights_dtype exact)
{
    struct init_model o;
    struct outcome got, want, threaded;
    tiny_longer_options(&o, arch);
    tinker_engine *q = open_as(&o, dtype, 1), *f = open_as(&o, exact, 2),
                  *t = open_as(&o, dtype, 3);
    CHECK(engine_is_quantized(q));
    CHECK_INT(q->model->weight_bytes, f->model->weight_bytes);
    tinker_adapter *a = run_training(q, &got), *b = run_training(f, &want),
                   *c = run_training(t, &threaded);
    CHECK(memcmp(&got, &threaded, sizeof(got)) == 0);
    CHECK(memcmp(a->w, c->w, a->params.total * sizeof(float)) == 0);
    CHECK_NEAR(got.loss[0], want.loss[0], 0.01 * want.loss[0]);
    CHECK(got.loss[1] < got.loss[0]);
    CHECK((memcmp(&got, &want, sizeof(got)) != 0) == kernels_int8_rounds());
    check_sampled_logprobs(q, a, &got);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_adapter_free(c);
    tinker_engine_close(q);
    tinker_engine_close(f);
    tinker_engine_close(t);
}

static void test_activations_in_8_bits(void)
{
    check_int8_run("qwen3", TINKER_WEIGHTS_Q8_INT8, TINKER_WEIGHTS_Q8);
    check_int8_run("qwen3", TINKER_WEIGHTS_Q4_INT8, TINKER_WEIGHTS_Q4);
    check_int8_run("qwen3_moe", TINKER_WEIGHTS_Q4_INT8, TINKER_WEIGHTS_Q4);
}

static void test_rank_0_is_refused(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    tiny_options(&o, "qwen3");
    tinker_engine *e = open_as(&o, TINKER_WEIGHTS_Q4, 1);
    lora.rank = 0;
    CHECK(tinker_adapter_new(e, &lora, &err) == NULL);
    CHECK(strstr(err.message, "quantized base") && strstr(err.message, "bf16"));
    tinker_engine_close(e);
}

/* 4.5 and 8.5 bits a weight of the layers, 8.5 of the head. */
static void test_memory(void)
{
    struct init_model o;
    uint64_t bytes[5];
    tiny_longer_options(&o, "llama");
    o.config.hidden = 256;
    o.config.heads = 4;
    o.config.kv_heads = 2;
    o.config.head_dim = 64;
    o.config.intermediate = 512;
    o.config.vocab = 64;
    o.config.tied = false;
    for (int d = TINKER_WEIGHTS_F32; d <= TINKER_WEIGHTS_Q4; d++) {
        tinker_engine *e = open_as(&o, (tinker_weights_dtype)d, 1);
        bytes[d] = e->model->weight_bytes;
        tinker_engine_close(e);
    }
    CHECK_NEAR((double)bytes[TINKER_WEIGHTS_Q8] / (double)bytes[TINKER_WEIGHTS_BF16], 8.5 / 16,
               0.01);
    CHECK_NEAR((double)bytes[TINKER_WEIGHTS_Q4] / (double)bytes[TINKER_WEIGHTS_BF16], 4.5 / 16,
               0.01);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A directory that says how somebody else quantized it. */
static void test_other_methods_are_named(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_options(&o, "qwen3");
    const char *dir = tiny_path("foreign");
    CHECK(init_model_write(&o, dir, &err) == TINKER_OK);
    char path[200],
        text[4096] = "{\"quantization_config\": {\"bits\": 4, \"quant_method\": \"awq\"},";
    snprintf(path, sizeof(path), "%s/config.json", dir);
    char *old;
    size_t n;
    CHECK(os_read_file(path, sizeof(text) / 2, &old, &n, &err) == TINKER_OK);
    strncat(text, old + 1, n - 1); /* without its first brace */
    write_text(path, text);
    CHECK(tinker_engine_open(dir, NULL, &err) == NULL);
    CHECK(strstr(err.message, "quantization_config says awq") && strstr(err.message, "GGUF"));
    /* null, as some files have it, is nothing */
    write_text(path, old);
    tinker_engine *e = tinker_engine_open(dir, NULL, &err);
    CHECK(e != NULL);
    tinker_engine_close(e);
    free(old);
}

int main(void)
{
    RUN(test_runs_are_those_of_the_numbers);
    RUN(test_activations_in_8_bits);
    RUN(test_rank_0_is_refused);
    RUN(test_memory);
    RUN(test_other_methods_are_named);
    tiny_done();
    return tap_done();
}
