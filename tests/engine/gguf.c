/* gguf.c - models to GGUF and back: the same numbers under the same names, merged or not. */
#include <math.h>
#include <tinker/engine.h>
#include "gguf/gguf.h"
#include "engine/gguf/gguf_model.h"
#include "engine/gguf/gguf_scores.h"
#include "engine/model/adapter.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static tinker_engine *open_as(const char *path, tinker_weights_dtype dtype, tinker_error *err)
{
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.dtype = dtype;
    opts.threads = 2;
    return tinker_engine_open(path, &opts, err);
}

/* The loss of some data, forward only. */
static double forward_loss(tinker_engine *e, tinker_adapter *a)
{
    static const size_t lengths[] = { 40, 9 };
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    struct tiny_data *d =
        tiny_data(lengths, 2, (size_t)tinker_engine_describe(e)->vocab_size, "cross_entropy", 8);
    tinker_pass *p = tiny_pass(e, a, d, &loss, 1, &err);
    double sum = NAN;
    if (p) {
        const tinker_forward_backward *r = tinker_pass_result(p);
        sum = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    } else {
        TAP_FAIL("%s", err.message);
    }
    tinker_pass_free(p);
    free(d);
    return sum;
}

/* An adapter that says something. */
static tinker_adapter *trained(tinker_engine *e)
{
    tinker_error err = { 0 };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d =
        tiny_data(tiny_lengths, TINY_LENGTHS, (size_t)tinker_engine_describe(e)->vocab_size,
                  "cross_entropy", 3);
    adam.learning_rate = 0.05;
    for (int i = 0; i < 2; i++) {
        tiny_train(e, a, d, "cross_entropy");
        CHECK(tinker_adapter_step(a, &adam, NULL, &err) == TINKER_OK);
    }
    free(d);
    return a;
}

static void tiny_with_tokenizer(struct init_model *o, const char *arch, bool tied)
{
    tiny_longer_options(o, arch);
    o->config.tied = tied;
    o->config.hidden = 64;
    o->config.head_dim = 32;
    o->config.vocab = 300;
    if (o->config.arch->query_scalar) /* what files of Gemma take for granted */
        o->config.attention_scale = (float)(1 / sqrt(32));
    if (o->config.arch->old_yarn) { /* two lists, of which the test's texts use both */
        o->config.rope = (struct rope_config){
            .type = ROPE_LONGROPE, .theta = 10000, .factor = 4, .original_context = 20
        };
        for (size_t i = 0; i < 16; i++) {
            o->config.short_factor[i] = 1 + 0.125f * (float)i;
            o->config.long_factor[i] = 2 + 0.5f * (float)i;
        }
    }
    if (o->config.arch->local_theta == 500000) /* OLMo 3's layers with a window */
        o->config.rope.theta = 500000;
    for (size_t i = 0; o->config.arch->rope_skips && i < o->config.layers; i++)
        o->config.flags[i] = (i + 1) % 4 ? 0 : LAYER_NO_ROPE;
}

/* Written as f32 and read back: the same bits without an adapter, the merged ones with it. */
static void check_round_trip(const char *arch, bool tied)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_with_tokenizer(&o, arch, tied);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = trained(e);
    char base[200], merged[200];
    snprintf(base, sizeof(base), "%s", tiny_path("base.gguf"));
    snprintf(merged, sizeof(merged), "%s", tiny_path("merged.gguf"));
    if (tinker_engine_export_gguf(e, NULL, base, TINKER_GGUF_F32, &err) != TINKER_OK ||
        tinker_engine_export_gguf(e, a, merged, TINKER_GGUF_F32, &err) != TINKER_OK)
        TAP_FAIL("%s", err.message);
    tinker_engine *b = open_as(base, TINKER_WEIGHTS_STORED, &err);
    tinker_engine *m = open_as(merged, TINKER_WEIGHTS_STORED, &err);
    if (b && m) {
        CHECK_STR(tinker_engine_describe(b)->arch, arch);
        CHECK(forward_loss(b, NULL) == forward_loss(e, NULL));
        CHECK_NEAR(forward_loss(m, NULL) / forward_loss(e, a), 1, 1e-5);
        CHECK(fabs(forward_loss(e, a) / forward_loss(e, NULL) - 1) > 1e-4);
    } else {
        TAP_FAIL("%s", err.message);
    }
    tinker_engine_close(b);
    tinker_engine_close(m);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void test_round_trips(void)
{
    check_round_trip("qwen3", true);
    check_round_trip("qwen3", false);
    check_round_trip("qwen2", true);
    check_round_trip("llama", true);
    check_round_trip("llama", false);
    check_round_trip("qwen3_moe", false);
    check_round_trip("mistral", false);
    check_round_trip("ministral3", true);
    check_round_trip("mixtral", false);
    check_round_trip("gemma2", true);
    check_round_trip("gemma3_text", true);
    check_round_trip("phi3", false);
    check_round_trip("smollm3", true);
    check_round_trip("olmo2", false);
    check_round_trip("olmo3", false);
    check_round_trip("granite", false);
    check_round_trip("gpt_oss", false);
    check_round_trip("qwen3_5_text", false);
    check_round_trip("qwen3_5_moe_text", true);
}

/* Q8_0 and Q4_0 written, read as they are: near the base, and adapters train on them. */
static void test_quantized_files(void)
{
    static const struct {
        tinker_gguf_type type;
        double within;
    } cases[] = { { TINKER_GGUF_F16, 1e-3 },
                  { TINKER_GGUF_BF16, 1e-2 },
                  { TINKER_GGUF_Q8_0, 1e-2 },
                  { TINKER_GGUF_Q4_0, 0.2 },
                  { TINKER_GGUF_Q4_K, 0.2 } };
    struct init_model o;
    tinker_error err = { 0 };
    tiny_with_tokenizer(&o, "llama", false);
    tinker_engine *e = tiny_open(&o, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *path = tiny_path("some.gguf");
        CHECK(tinker_engine_export_gguf(e, NULL, path, cases[i].type, &err) == TINKER_OK);
        tinker_engine *q = open_as(path, TINKER_WEIGHTS_STORED, &err);
        if (!q) {
            TAP_FAIL("%s", err.message);
            continue;
        }
        CHECK_NEAR(forward_loss(q, NULL) / forward_loss(e, NULL), 1, cases[i].within);
        tinker_adapter *a = trained(q);
        CHECK(forward_loss(q, a) != forward_loss(q, NULL));
        tinker_adapter_free(a);
        tinker_engine_close(q);
    }
    tinker_engine_close(e);
}

/* Names of factors, the scale, and that what cannot be written says why. */
static void test_adapter_files(void)
{
    struct init_model o;
    struct gguf g;
    tinker_error err = { 0 };
    double alpha;
    for (int tied = 0; tied < 2; tied++) {
        tiny_with_tokenizer(&o, "qwen3_moe", tied);
        tinker_engine *e = tiny_open(&o, NULL);
        tinker_adapter *a = trained(e);
        const char *path = tiny_path("adapter.gguf");
        tinker_status status = tinker_adapter_export_gguf(a, path, &err);
        if (tied) {
            CHECK(status == TINKER_EINVAL && strstr(err.message, "merged"));
        } else if (status == TINKER_OK && gguf_open(&g, path, &err) == TINKER_OK) {
            const struct gguf_tensor *down = gguf_find(&g, "blk.1.ffn_down_exps.weight.lora_b"),
                                     *q = gguf_find(&g, "blk.0.attn_q.weight.lora_a");
            CHECK(gguf_get_double(&g, "adapter.lora.alpha", &alpha) && alpha == 32);
            CHECK(down && down->dim[0] == 4 && down->dim[1] == 64 &&
                  down->dim[2] == o.config.experts);
            CHECK(q && q->dim[0] == 64 && q->dim[1] == 4);
            CHECK(gguf_find(&g, "output.weight.lora_b") != NULL);
            gguf_close(&g);
        } else {
            TAP_FAIL("%s", err.message);
        }
        tinker_adapter_free(a);
        tinker_engine_close(e);
    }
}

/* See gguf_fetch: the same bytes for every tensor. */
static const void *fetch_same(void *state, size_t index, tinker_error *err)
{
    (void)index, (void)err;
    return *(const void **)state;
}

/* Files that are no models, or not ours. */
static void test_refusals(void)
{
    static const uint64_t shape[2] = { 4, 4 };
    static const float values[16];
    static const struct {
        const char *arch, *type, *words;
    } cases[] = { { "mamba", "model", "architecture mamba is not supported" },
                  { "llama", "adapter", "an adapter, not a model" },
                  { "llama", "model", "llama.context_length is missing" } };
    tinker_error err = { 0 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct gguf_writer w;
        const char *path = tiny_path("wrong.gguf");
        const void *data = values;
        gguf_writer_init(&w);
        gguf_put_string(&w, "general.architecture", cases[i].arch, strlen(cases[i].arch));
        gguf_put_string(&w, "general.type", cases[i].type, strlen(cases[i].type));
        gguf_put_tensor(&w, "token_embd.weight", GGUF_TENSOR_F32, 2, shape);
        CHECK(gguf_write(&w, path, fetch_same, &data, &err) == TINKER_OK);
        gguf_writer_clear(&w);
        CHECK(open_as(path, TINKER_WEIGHTS_STORED, &err) == NULL);
        if (!strstr(err.message, cases[i].words))
            TAP_FAIL("'%s' lacks '%s'", err.message, cases[i].words);
    }
}

/* A matrix of another shape than the metadata says, or none. */
static void test_shapes(void)
{
    static const char up[] = "model.layers.0.mlp.up_proj.weight";
    struct init_model o;
    struct gguf_model m;
    struct weight out;
    tinker_error err = { 0 };
    tiny_with_tokenizer(&o, "qwen3", true);
    tinker_engine *e = tiny_open(&o, NULL);
    const char *path = tiny_path("shapes.gguf");
    size_t rows = o.config.intermediate, cols = o.config.hidden;
    CHECK_INT(tinker_engine_export_gguf(e, NULL, path, TINKER_GGUF_F32, &err), TINKER_OK);
    REQUIRE(gguf_model_open(&m, path, &err) == TINKER_OK);
    CHECK(gguf_model_weight(&m, up, rows, cols, &out, &err));
    for (size_t i = 0; i < 2; i++) {
        CHECK(!gguf_model_weight(&m, up, rows + i, cols + 1 - i, &out, &err));
        CHECK(strstr(err.message, "tensor blk.0.ffn_up.weight is not "));
    }
    CHECK(!gguf_model_weight(&m, "model.layers.9.mlp.up_proj.weight", rows, cols, &out, &err));
    CHECK(strstr(err.message, "tensor blk.9.ffn_up.weight (model.layers.9.mlp.up_proj.weight) is "
                              "missing"));
    gguf_model_close(&m);
    tinker_engine_close(e);
}

/* Files have the frequencies of Llama 3, not its settings: those that we know are recognized. */
static void test_frequencies_of_llama(void)
{
    for (int other = 0; other < 2; other++) {
        struct init_model o;
        tinker_error err = { 0 };
        tiny_with_tokenizer(&o, "llama", true);
        o.config.rope = (struct rope_config){ .type = ROPE_LLAMA3,
                                              .theta = 10000,
                                              .factor = 8,
                                              .low_freq_factor = 1,
                                              .high_freq_factor = 4,
                                              .original_context = other ? 4096 : 8192 };
        tinker_engine *e = tiny_open(&o, NULL);
        const char *path = tiny_path("llama3.gguf");
        CHECK_INT(tinker_engine_export_gguf(e, NULL, path, TINKER_GGUF_F32, &err), TINKER_OK);
        tinker_engine *back = open_as(path, TINKER_WEIGHTS_STORED, &err);
        CHECK_INT(back != NULL, !other);
        if (other)
            CHECK(strstr(err.message, "are not the frequencies of Llama 3"));
        else if (back)
            CHECK(forward_loss(back, NULL) == forward_loss(e, NULL));
        tinker_engine_close(back);
        tinker_engine_close(e);
    }
}

/* Both ways to write a merge in tokenizer.json. */
static void test_merges(void)
{
    static const char *const texts[] = { "\"ab c\"", "[\"ab\",\"c\"]", "\"abc\"", "[\"ab\"]",
                                         "[\"a\",\"b\",\"c\"]" };
    for (size_t i = 0; i < 5; i++) {
        struct json_reader r;
        struct json_str part[2] = { { 0 } };
        struct arena arena;
        arena_init(&arena, 1 << 16);
        json_reader_init(&r, texts[i], strlen(texts[i]), &arena);
        CHECK_INT(gguf_read_merge(&r, part), i < 2);
        if (i < 2) {
            CHECK_MEM(part[0].s, part[0].n, "ab", 2);
            CHECK_MEM(part[1].s, part[1].n, "c", 1);
        }
        arena_clear(&arena);
    }
}

/* What a file of the architecture cannot say. */
static void test_settings_without_key(void)
{
    static const struct {
        const char *arch, *words;
    } cases[] = { { "gemma2", "query_pre_attn_scalar" },
                  { "olmo3", "rope_theta of layers with a window" },
                  { "smollm3", "no positions" } };
    tinker_error err = { 0 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct init_model o;
        tiny_with_tokenizer(&o, cases[i].arch, true);
        if (i == 0)
            o.config.attention_scale = 0.2f;
        else if (i == 1)
            o.config.rope.theta = 10000;
        else
            o.config.flags[0] = LAYER_NO_ROPE;
        tinker_engine *e = tiny_open(&o, NULL);
        CHECK(tinker_engine_export_gguf(e, NULL, tiny_path("no.gguf"), TINKER_GGUF_F32, &err) ==
              TINKER_EINVAL);
        if (!strstr(err.message, cases[i].words))
            TAP_FAIL("'%s' lacks '%s'", err.message, cases[i].words);
        tinker_engine_close(e);
    }
}

static void test_names(void)
{
    static const char *const pairs[][2] = {
        { "model.embed_tokens.weight", "token_embd.weight" },
        { "lm_head.weight", "output.weight" },
        { "model.layers.12.self_attn.o_proj.bias", "blk.12.attn_output.bias" },
        { "model.layers.3.mlp.gate.weight", "blk.3.ffn_gate_inp.weight" },
        { "model.layers.3.mlp.experts.7.up_proj.weight", "blk.3.ffn_up_exps.weight" },
    };
    const struct gguf_family *qwen = gguf_family_by_type("qwen3_moe"),
                             *gemma = gguf_family_by_type("gemma2");
    char name[128];
    int64_t expert;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        CHECK(gguf_tensor_name(qwen, pairs[i][0], name, &expert));
        CHECK_STR(name, pairs[i][1]);
        CHECK_INT(expert, i == 4 ? 7 : -1);
    }
    CHECK(gguf_tensor_name(gemma, "model.layers.1.post_attention_layernorm.weight", name, &expert));
    CHECK_STR(name, "blk.1.post_attention_norm.weight");
    CHECK(!gguf_tensor_name(qwen, "model.layers.3.mlp.other.weight", name, &expert));
    CHECK(!gguf_tensor_name(qwen, "model.layers.x.mlp.up_proj.weight", name, &expert));
}

int main(void)
{
    RUN(test_round_trips);
    RUN(test_quantized_files);
    RUN(test_adapter_files);
    RUN(test_refusals);
    RUN(test_shapes);
    RUN(test_frequencies_of_llama);
    RUN(test_merges);
    RUN(test_settings_without_key);
    RUN(test_names);
    tiny_done();
    return tap_done();
}
