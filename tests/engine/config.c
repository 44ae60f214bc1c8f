/* config.c - config.json: what is read, what is refused, and the rope that follows. */
#include "engine/model/config.h"
#include <math.h>
#include "engine/layers/rope.h"
#include "support/tap.h"

#define SIZES                                                                                  \
    "\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"max_position_embeddings\":512"

static tinker_status parse(struct model_config *c, const char *text, tinker_error *err)
{
    return config_parse(c, "config.json", text, strlen(text), err);
}

static void test_reads(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
                    ",\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-5,"
                    "\"rope_theta\":1000000,\"tie_word_embeddings\":true,\"unknown\":{\"a\":[1]},"
                    "\"rope_scaling\":null,\"eos_token_id\":[7,9],\"hidden_act\":\"silu\"}",
                    &err),
              TINKER_OK);
    CHECK_STR(c.arch->name, "qwen3");
    CHECK_INT(c.kv_heads, 2);
    CHECK_INT(c.head_dim, 32);
    CHECK(c.qk_norm && !c.qkv_bias && c.tied);
    CHECK_NEAR(c.norm_eps, 1e-5, 1e-12);
    CHECK_NEAR(c.rope.theta, 1e6, 0);
    CHECK_INT(c.n_eos, 2);
    CHECK_INT(c.eos[1], 9);
}

static void test_defaults_depend_on_the_architecture(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    CHECK_INT(
        parse(&c, "{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES ",\"eos_token_id\":3}", &err),
        TINKER_OK);
    CHECK(c.qkv_bias && !c.o_bias && !c.qk_norm && !c.tied);
    CHECK_INT(c.kv_heads, 4);
    CHECK_INT(c.head_dim, 16);
    CHECK_NEAR(c.rope.theta, 10000, 0);
    CHECK_INT(c.n_eos, 1);
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
                    ",\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":null}",
                    &err),
              TINKER_OK);
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias);
    /* as transformers 5 writes it */
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
                    ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"default\"}}",
                    &err),
              TINKER_OK);
    CHECK_NEAR(c.rope.theta, 500000, 0);
}

/* The names and the nesting of newer files, and what wins where two say something. */
static void test_newer_names(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
                    ",\"num_local_experts\":8,\"num_experts_per_tok\":2,"
                    "\"moe_intermediate_size\":8}",
                    &err),
              TINKER_OK);
    CHECK_INT(c.experts, 8);
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
                    ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5,"
                    "\"rope_type\":\"linear\",\"factor\":4}},\"per_layer_config\":null}",
                    &err),
              TINKER_OK);
    CHECK_NEAR(c.rope.theta, 5e5, 0);
    CHECK_INT(c.rope.type, ROPE_LINEAR);
    CHECK_NEAR(c.rope.factor, 4, 0);
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
                    ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\","
                    "\"type\":\"mrope\",\"partial_rotary_factor\":1.0,\"mscale\":2},"
                    "\"rope_theta\":10000.0}",
                    &err),
              TINKER_OK);
    CHECK_NEAR(c.rope.theta, 5e5, 0);
    CHECK_INT(c.rope.type, ROPE_DEFAULT);
}

/* Which of several, and that null, and what means nothing to us, change nothing. */
static void test_first_and_nothing(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    const char *text = "{\"architectures\":[\"Qwen3ForCausalLM\",\"LlamaForCausalLM\"]," SIZES
                       ",\"rms_norm_eps\":null,\"rope_theta\":null,\"hidden_act\":null,"
                       "\"num_key_value_heads\":null,\"tie_word_embeddings\":null,"
                       "\"layer_types\":[\"full_attention\",\"full_attention\"],"
                       "\"use_sliding_window\":false,\"sliding_window\":4096,"
                       "\"mlp_only_layers\":null,\"eos_token_id\":[-1,5],"
                       "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,"
                       "\"finetuned\":7,\"mrope_section\":[1,2]}}";
    CHECK_INT(parse(&c, text, &err), TINKER_OK);
    CHECK_STR(c.arch->name, "qwen3");
    CHECK_INT(c.kv_heads, 4);
    CHECK_NEAR(c.norm_eps, 1e-6, 1e-12);
    CHECK_NEAR(c.rope.theta, 10000, 0);
    CHECK_NEAR(c.rope.beta_fast, 32, 0);
    CHECK_NEAR(c.rope.beta_slow, 1, 0);
    CHECK(!c.tied);
    CHECK(c.n_eos == 1 && c.eos[0] == 5);
}

/* The largest and the smallest that is taken; one more or less is refused. */
static void test_limits(void)
{
    static const struct {
        const char *more;
        bool ok;
    } cases[] = {
        { "\"max_position_embeddings\":1", true },
        { "\"max_position_embeddings\":0", false },
        { "\"max_position_embeddings\":16777216", true },
        { "\"max_position_embeddings\":16777217", false },
        { "\"head_dim\":512", true },
        { "\"head_dim\":514", false },
        { "\"num_hidden_layers\":4096", true },
        { "\"num_hidden_layers\":4097", false },
        { "\"rms_norm_eps\":0", true },
        { "\"rms_norm_eps\":-1e-9", false },
        { "\"num_attention_heads\":131072,\"head_dim\":128,\"hidden_size\":1", true },
        { "\"num_attention_heads\":131073,\"head_dim\":128,\"hidden_size\":1", false },
        { "\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", true },
        { "\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", false },
        { "\"eos_token_id\":99", true },
        { "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
          "\"high_freq_factor\":4}",
          false }, /* of which context is not said */
        { "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
          "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
          false },
        { "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
          "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
          true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        struct model_config c;
        tinker_error err = { 0 };
        snprintf(text, sizeof(text), "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",%s}",
                 cases[i].more);
        tinker_status status = parse(&c, text, &err);
        if ((status == TINKER_OK) != cases[i].ok)
            TAP_FAIL("%s: %s", cases[i].more, err.message);
    }
}

/* As the model cards of Qwen say to write it. */
static void test_yarn_makes_the_context_longer(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES
                    ",\"rope_scaling\":{\"factor\":4.0,\"original_max_position_embeddings\":400,"
                    "\"type\":\"yarn\",\"truncate\":true,\"mscale\":null}}",
                    &err),
              TINKER_OK);
    CHECK_INT(c.context, 1600);
    CHECK_NEAR(c.rope.original_context, 400, 0);
    CHECK_INT(parse(&c,
                    "{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES
                    ",\"rope_scaling\":{\"factor\":2.0,\"type\":\"yarn\"}}",
                    &err),
              TINKER_OK);
    CHECK_INT(c.context, 512);
    CHECK_NEAR(c.rope.original_context, 512, 0);
}

static void test_refuses(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{\"architectures\":[\"GPT2LMHeadModel\"]," SIZES "}", "GPT2LMHeadModel" },
        { "{" SIZES "}", "(none)" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]}", "vocab_size is 0" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"hidden_size\":-4}",
          "hidden_size is -4" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"vocab_size\":99999999999}",
          "vocab_size" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"num_key_value_heads\":3}",
          "share 3" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"head_dim\":15}", "odd" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"head_dim\":1024}", "head_dim" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"hidden_act\":\"gelu\"}", "silu" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
          ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
          "layer 1 is of a type that LlamaForCausalLM" },
        { "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
          ",\"layer_types\":[\"full_attention\"]}",
          "1 layer_types for 2 layers" },
        { "{\"architectures\":[\"MistralForCausalLM\"]," SIZES
          ",\"num_key_value_heads\":2,\"layer_types\":[\"full_attention\",\"chunked_attention\"]}",
          "layers of type \"chunked_attention\"" },
        { "{\"architectures\":[\"MistralForCausalLM\"]," SIZES ",\"sliding_window\":0}",
          "sliding_window is 0" },
        { "{\"architectures\":[\"SmolLM3ForCausalLM\"]," SIZES ",\"no_rope_layers\":[1]}",
          "1 no_rope_layers for 2 layers" },
        { "{\"architectures\":[\"SmolLM3ForCausalLM\"]," SIZES ",\"no_rope_layer_interval\":0}",
          "no_rope_layer_interval is 0" },
        { "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"]," SIZES
          ",\"shared_intermediate_size\":8}",
          "Mamba2" },
        { "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"]," SIZES
          ",\"shared_intermediate_size\":8,\"layer_types\":[\"attention\",\"mamba\"]}",
          "Mamba2" },
        { "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"]," SIZES
          ",\"shared_intermediate_size\":8,\"num_local_experts\":4}",
          "num_local_experts is 4" },
        { "{\"architectures\":[\"GraniteForCausalLM\"]," SIZES ",\"logits_scaling\":0}",
          "multiplier" },
        { "{\"architectures\":[\"GraniteForCausalLM\"]," SIZES ",\"residual_multiplier\":1e308}",
          "multiplier" },
        { "{\"architectures\":[\"Gemma2ForCausalLM\"]," SIZES
          ",\"use_bidirectional_attention\":true}",
          "use_bidirectional_attention" },
        { "{\"architectures\":[\"Gemma2ForCausalLM\"]," SIZES ",\"hidden_activation\":\"gelu\"}",
          "hidden_activation is not gelu_pytorch_tanh" },
        { "{\"architectures\":[\"Gemma3ForCausalLM\"]," SIZES ",\"attn_logit_softcapping\":50}",
          "attn_logit_softcapping" },
        { "{\"architectures\":[\"Phi3ForCausalLM\"]," SIZES
          ",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":[1,2]}}",
          "short_factor and long_factor" },
        { "{\"architectures\":[\"Qwen3_5ForCausalLM\"]," SIZES
          ",\"linear_num_key_heads\":3,\"linear_num_value_heads\":4,\"linear_key_head_dim\":8,"
          "\"linear_value_head_dim\":8}",
          "4 linear value heads" },
        { "{\"architectures\":[\"Qwen3_5ForCausalLM\"]," SIZES
          ",\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"linear_key_head_dim\":8,"
          "\"linear_value_head_dim\":8,\"layer_types\":[\"linear_attention\",\"linear_attention\"]"
          "}",
          "no layer has attention" },
        { "{\"architectures\":[\"Qwen3_5ForCausalLM\"]," SIZES ",\"linear_key_head_dim\":8}",
          "linear_num_key_heads is 0" },
        { "{\"architectures\":[\"GptOssForCausalLM\"]," SIZES
          ",\"num_key_value_heads\":2,\"num_local_experts\":4,\"num_experts_per_tok\":5}",
          "num_experts_per_tok is 5" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
          ",\"rope_scaling\":{\"type\":\"longrope\"}}",
          "longrope" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
          ",\"rope_scaling\":{\"type\":\"linear\"}}",
          "factor" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"rope_scaling\":{\"factor\":2}}",
          "no rope_type" },
        { "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
          ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},"
          "\"sliding_attention\":{\"rope_theta\":1e4}}}",
          "a rope of sliding_attention layers" },
        { "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
          ",\"rope_parameters\":{\"rope_theta\":0}}",
          "rope_theta" },
        { "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
          ",\"rope_parameters\":{\"rope_theta\":1e6,\"partial_rotary_factor\":1.5}}",
          "partial_rotary_factor is 1.5" },
        { "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES
          ",\"head_dim\":20,\"partial_rotary_factor\":0.25}",
          "turns 5 of 20 components" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
          ",\"per_layer_config\":{\"01\":{\"skip\":[\"attention\"]}}}",
          "per_layer_config" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"eos_token_id\":100}",
          "beyond the vocabulary" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"rope_theta\":0}", "rope_theta" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES, "config.json: line 1" },
        { "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES "}", "num_experts is 0" },
        { "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
          ",\"num_experts\":8,\"num_experts_per_tok\":9,\"moe_intermediate_size\":8}",
          "num_experts_per_tok is 9, must be 1 to 8" },
        { "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
          ",\"num_experts\":8,\"num_experts_per_tok\":2}",
          "moe_intermediate_size" },
        { "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
          ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8,"
          "\"decoder_sparse_step\":0}",
          "decoder_sparse_step" },
        { "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
          ",\"num_experts\":4000,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8,"
          "\"num_hidden_layers\":4000}",
          "too many" },
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
          ",\"head_dim\":16,\"hidden_size\":16777216,\"intermediate_size\":16777216,\"num_hidden_"
          "layers\":4096}",
          "parameters are too many" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_config c;
        tinker_error err = { 0 };
        tinker_status status = parse(&c, cases[i].text, &err);
        if (status != TINKER_EINVAL || !strstr(err.message, cases[i].want))
            TAP_FAIL("case %zu: wanted \"%s\", got \"%s\"", i, cases[i].want, err.message);
    }
}

static void test_experts(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    const char *text = "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
                       ",\"num_hidden_layers\":6,\"num_experts\":8,\"num_experts_per_tok\":3,"
                       "\"moe_intermediate_size\":40,\"norm_topk_prob\":true,"
                       "\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,77]}";
    CHECK_INT(parse(&c, text, &err), TINKER_OK);
    CHECK_STR(c.arch->name, "qwen3_moe");
    CHECK(c.qk_norm && c.renormalize);
    CHECK_INT(c.experts, 8);
    CHECK_INT(c.experts_used, 3);
    for (size_t i = 0; i < 6; i++)
        CHECK_INT(model_sparse(&c, i), i == 1 || i == 5);
    CHECK_INT(model_sparse_layers(&c), 2);
    CHECK_INT(model_mlp_width(&c), 120); /* of 3 experts; a dense layer has 96 */
    c.expert_size = 4;
    CHECK_INT(model_mlp_width(&c), 96);
    size_t out, in;
    model_expert_shape(&c, LINEAR_DOWN, &out, &in);
    CHECK(out == c.hidden && in == 4);
    /* the fields mean nothing in a model that has no experts */
    text = "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES ",\"num_experts\":8}";
    CHECK_INT(parse(&c, text, &err), TINKER_OK);
    CHECK_INT(model_sparse_layers(&c), 0);
}

static void test_generation_config_wins(void)
{
    struct model_config c;
    tinker_error err = { 0 };
    const char *more = "{\"eos_token_id\":[4,5,6],\"temperature\":0.6}",
               *bad = "{\"eos_token_id\":777}";
    parse(&c, "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"eos_token_id\":1}", &err);
    CHECK_INT(config_parse_generation(&c, "g", more, strlen(more), &err), TINKER_OK);
    CHECK_INT(c.n_eos, 3);
    CHECK_INT(c.eos[0], 4);
    CHECK_INT(config_parse_generation(&c, "g", bad, strlen(bad), &err), TINKER_EINVAL);
}

static void test_rope_frequencies(void)
{
    float inv[32];
    struct rope_config r = { .type = ROPE_DEFAULT, .theta = 10000 };
    CHECK_NEAR(rope_init(&r, 64, NULL, inv), 1, 0);
    CHECK_NEAR(inv[0], 1, 0);
    CHECK_NEAR(inv[16], 0.01, 1e-9);
    r.type = ROPE_LINEAR;
    r.factor = 4;
    rope_init(&r, 64, NULL, inv);
    CHECK_NEAR(inv[16], 0.0025, 1e-9);
    /* Llama 3.1: high frequencies stay, low ones are divided by 8, between is between */
    r = (struct rope_config){ .type = ROPE_LLAMA3,
                              .theta = 500000,
                              .factor = 8,
                              .low_freq_factor = 1,
                              .high_freq_factor = 4,
                              .original_context = 8192 };
    rope_init(&r, 64, NULL, inv);
    CHECK_NEAR(inv[0], 1, 0);
    CHECK_NEAR(inv[31] * 8, pow(500000, -62.0 / 64), 1e-10);
    double plain = pow(500000, -30.0 / 64), wavelength = 2 * 3.14159265358979323846 / plain;
    double s = (8192 / wavelength - 1) / 3;
    CHECK(wavelength > 2048 && wavelength < 8192);
    CHECK_NEAR(inv[15], (1 - s) * plain / 8 + s * plain, 1e-9);
}

/* What transformers computes for the same settings. */
static void test_yarn_frequencies(void)
{
    static const struct {
        struct rope_config rope;
        double scale;
        double inv[7];
    } cases[] = {
        { { .type = ROPE_YARN,
            .theta = 10000,
            .factor = 4,
            .beta_fast = 32,
            .beta_slow = 1,
            .original_context = 2048 },
          1.138629436111989,
          { 1, 0.1333521455526352, 0.024325214326381683, 0.005384615156799555,
            0.0009730085730552673, 0.00018747354624792933, 3.333803761051968e-05 } },
        { { .type = ROPE_YARN,
            .theta = 10000,
            .factor = 4,
            .beta_fast = 16,
            .beta_slow = 2,
            .attention_factor = 1.5,
            .original_context = 2048 },
          1.5,
          { 1, 0.1333521455526352, 0.025693506002426147, 0.0043750000186264515,
            0.0007905694656074047, 0.00018747354624792933, 3.333803761051968e-05 } },
        { { .type = ROPE_YARN,
            .theta = 10000,
            .factor = 0.5,
            .beta_fast = 32,
            .beta_slow = 1,
            .original_context = 2048 },
          1,
          { 1, 0.1333521455526352, 0.04135286062955856, 0.016153845936059952, 0.006081303581595421,
            0.0014997883699834347, 0.0002667043008841574 } },
        { { .type = ROPE_YARN,
            .theta = 10000,
            .factor = 4,
            .beta_fast = 32,
            .beta_slow = 1,
            .original_context = 8 },
          1.138629436111989,
          { 1, 0.0333380363881588, 0.007905694656074047, 0.0024999999441206455,
            0.0007905694656074047, 0.00018747354624792933, 3.333803761051968e-05 } },
    };
    static const size_t at[7] = { 0, 7, 12, 16, 20, 25, 31 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float inv[32];
        CHECK_NEAR(rope_init(&cases[i].rope, 64, NULL, inv), cases[i].scale, 1e-6);
        for (size_t k = 0; k < 7; k++)
            CHECK_NEAR(inv[at[k]], cases[i].inv[k], 3e-7 * cases[i].inv[k]);
    }
}

static void test_rotation_and_its_inverse(void)
{
    float inv[2] = { 1, 0.1f }, cs[8], x[4] = { 1, 2, 3, 4 };
    struct model m = { .config = { .rotary = 4 }, .ropes = { { .inv_freq = inv, .scale = 1 } } };
    rope_table(&m, 0, 5, 2, false, cs);
    CHECK_NEAR(cs[0], cos(5.0), 1e-7);
    CHECK_NEAR(cs[7], sin(0.6), 1e-7);
    rope_rotate(x, cs, 4);
    CHECK_NEAR(x[0], cos(5.0) - 3 * sin(5.0), 1e-6);
    CHECK_NEAR(x[2], 3 * cos(5.0) + sin(5.0), 1e-6);
    CHECK_NEAR(x[3], 4 * cos(0.5) + 2 * sin(0.5), 1e-6);
    rope_rotate_back(x, cs, 4);
    CHECK_NEAR(x[0], 1, 1e-6);
    CHECK_NEAR(x[3], 4, 1e-6);
}

int main(void)
{
    RUN(test_reads);
    RUN(test_defaults_depend_on_the_architecture);
    RUN(test_newer_names);
    RUN(test_first_and_nothing);
    RUN(test_limits);
    RUN(test_yarn_makes_the_context_longer);
    RUN(test_refuses);
    RUN(test_experts);
    RUN(test_generation_config_wins);
    RUN(test_rope_frequencies);
    RUN(test_yarn_frequencies);
    RUN(test_rotation_and_its_inverse);
    return tap_done();
}
