/* render.c - what each chat format writes, and which of it is trained.
 *
 * Expected texts mark trained tokens with [[ and ]].  The tokenizer has one token per byte, so
 * the text is the whole truth but for cuts between chunks, which conformance covers. */
#include "render_fixture.h"
#include "support/tap.h"
#include <tinker/extra/renderer.h>

static tinker_renderer *make(const char *name, const tinker_renderer_options *opts)
{
    tinker_error err = { .message = "" };
    tinker_renderer *r = tinker_renderer_new(name, tokenizer, opts, &err);
    if (!r)
        TAP_FAIL("%s: %s", name, err.message);
    return r;
}

/* Decoded tokens, with marks where training begins and ends. */
static char *show(const tinker_example *e)
{
    struct buf b;
    bool on = false;
    size_t at = 0;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "");
    for (size_t i = 0; i < e->input.n_chunks; i++) {
        const tinker_chunk *c = &e->input.chunks[i];
        if (c->n_tokens == 0)
            TAP_FAIL("chunk %zu is empty", i);
        for (size_t k = 0; k < c->n_tokens; k++, at++) {
            bool trained = e->weights && e->weights[at] != 0;
            tinker_text text = TINKER_TEXT_INIT;
            tinker_decode_options opts = TINKER_DECODE_OPTIONS_INIT;
            opts.raw_bytes = 1;
            tinker_tokenizer_decode(tokenizer, &c->tokens[k], 1, &opts, &text, NULL);
            buf_puts(&b, trained == on ? "" : on ? "]]" : "[[");
            on = trained;
            buf_append(&b, text.s, text.n);
            tinker_text_clear(&text);
        }
    }
    CHECK_INT(at, e->n_tokens);
    buf_puts(&b, on ? "]]" : "");
    return buf_detach(&b, NULL);
}

static void check_example(const tinker_renderer *r, const char *json, const char *mode,
                          const char *want)
{
    tinker_error err = { .message = "" };
    tinker_conversation *c = tinker_conversation_parse(json, 0, &err);
    tinker_rendered *x = NULL;
    tinker_train_on train = TINKER_TRAIN_LAST_ASSISTANT_MESSAGE;
    if (c && strcmp(mode, "prompt") == 0) {
        x = tinker_renderer_prompt(r, c->messages, c->n_messages, NULL, NULL, &err);
    } else if (c) {
        CHECK_INT(tinker_train_on_parse(mode, &train, &err), TINKER_OK);
        x = tinker_renderer_example(r, c->messages, c->n_messages, train, &err);
    }
    char *got = x ? show(&x->examples[0]) : NULL;
    CHECK_STR(got ? got : err.message, want);
    free(got);
    tinker_rendered_free(x);
    tinker_conversation_free(c);
}

#define U  "{\"role\":\"user\",\"content\":\"q\"}"
#define A  "{\"role\":\"assistant\",\"content\":\"a\"}"
#define UA "[" U "," A "]"
#define THOUGHT                                                                        \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"}," \
    "{\"type\":\"text\",\"text\":\"a\"}]}"
#define PADDED                                                               \
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\" \\n\"}," \
    "{\"type\":\"text\",\"text\":\" x \"},{\"type\":\"text\",\"text\":\"\\ny\\n \"}]}"
#define CALL                                                                                  \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"," \
    "\"arguments\":\"{\\\"x\\\":1}\"}}]}"
#define RESULT "{\"role\":\"tool\",\"name\":\"f\",\"tool_call_id\":\"i\",\"content\":\"r\"}"
#define TWO_CALLS                                                                                \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"function\":{"      \
    "\"name\":"                                                                                  \
    "\"f\",\"arguments\":\"{}\"}},{\"id\":\"2\",\"function\":{\"name\":\"f\",\"arguments\":\"{}" \
    "\"}}]}"
#define RESULT_OF(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"r" id "\"}"
#define LAST          "last_assistant_message"

static const struct {
    const char *renderer, *messages, *mode, *want;
} cases[] = {
    { "role_colon", UA, LAST, "User: q\n\nAssistant:[[ a\n\nUser:]]" },
    { "role_colon", "[" U "]", "prompt", "User: q\n\nAssistant:" },
    { "role_colon", UA, "all_tokens", "[[User: q\n\nAssistant: a\n\nUser:]]" },
    { "role_colon", UA, "all_user_and_system_messages", "User:[[ q\n\n]]Assistant: a\n\nUser:" },
    { "llama3", UA, LAST,
      "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n[[a<|eot_id|>]]" },
    { "qwen3", UA, LAST,
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[[<think>\n\n</"
      "think>\n\na<|im_end|>]]" },
    { "qwen3_disable_thinking", UA, LAST,
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
      "think>\n\n[[a<|im_end|>]]" },
    { "qwen3_instruct", "[" U "," A "," U "," A "]", "all_assistant_messages",
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[[a<|im_end|>]]\n<|im_start|>user\nq"
      "<|im_end|>\n<|im_start|>assistant\n[[a<|im_end|>]]" },
    { "qwen3", "[" U "," THOUGHT "," U "," THOUGHT "]", LAST,
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nq"
      "<|im_end|>\n<|im_start|>assistant\n[[<think>\nt\n</think>\n\na<|im_end|>]]" },
    { "qwen3", "[" U "," CALL "," RESULT "]", "prompt",
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", "
      "\"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n"
      "</tool_response><|im_end|>\n<|im_start|>assistant\n" },
    { "qwen3_vl", "[" U "," CALL "]", LAST,
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[[\n<tool_call>\n{\"name\": \"f\", "
      "\"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>]]" },
    { "qwen3_5", UA, LAST,
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n[[\n</"
      "think>\n\na<|im_end|>]]" },
    { "qwen3_5", "[" PADDED "," A "]", LAST,
      "<|im_start|>user\nx \ny<|im_end|>\n<|im_start|>assistant\n<think>\n[[\n</"
      "think>\n\na<|im_end|>]]" },
    { "qwen3_5_preserve_thinking", "[" U "," THOUGHT "," U "]", "prompt",
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nt\n</think>\n\na<|im_end|>\n"
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n" },
    { "glm5_3_low_reasoning", "[" U "," CALL "," RESULT "," THOUGHT "," U "," A "]",
      "all_assistant_messages",
      "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>q<|assistant|><think>[[</"
      "think><tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call><|observation|>]]"
      "<tool_response>r</tool_response><|assistant|><think>[[t</think>a<|user|>]]q<|assistant|>"
      "<think>[[</think>a<|user|>]]" },
    { "glm5_3_max_reasoning", "[" TWO_CALLS "," RESULT_OF("2") "," RESULT_OF("1") "]", "prompt",
      "[gMASK]<sop><|system|>Reasoning Effort: "
      "Max<|assistant|><think></think><tool_call>f</tool_call>"
      "<tool_call>f</tool_call><|observation|><tool_response>r1</tool_response><tool_response>r2</"
      "tool_response><|assistant|><think>" },
    { "deepseekv4_1", "[" U "," THOUGHT "," U "," THOUGHT "]", LAST,
      "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, "
      "the "
      "more thorough the reasoning)\n\n<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜>"
      "<｜User｜>q<｜Assistant｜><think>[[t</think>a<｜end▁of▁sentence｜>]]" },
    { "deepseekv4_1_disable_thinking",
      "[" U "," TWO_CALLS "," RESULT_OF("2") "," U "," RESULT_OF("1") "]", "prompt",
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ "
      "invoke "
      "name=\"f\">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ "
      "invoke>\n</｜DSML｜ "
      "calls><｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result>\n\nq\n\n<tool_result>r2</"
      "tool_result><｜Assistant｜></think>" },
    { "nemotron3_ultra_medium_thinking", "[" PADDED "]", "prompt",
      "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n \n x \ny\n \n\n{reasoning effort: "
      "efficient}<|im_end|>\n<|im_start|>assistant\n<think>\n" },
    { "qwen3_5", "[" U "," CALL "," RESULT "," RESULT "]", "prompt",
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n"
      "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\nr\n</tool_response>\n<tool_response>\nr\n"
      "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n" },
    { "qwen3_8_low_reasoning", "[" U "]", "prompt",
      "<|im_start|>system\nReasoning effort is set to low. Keep your thinking brief and focused, "
      "moving directly to the conclusion without unnecessary elaboration.<|im_end|>\n"
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n" },
    { "qwen3_8_disable_thinking", "[{\"role\":\"system\",\"content\":\" \"}," U "]", "prompt",
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n" },
    { "deepseekv3", UA, LAST,
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>[[a<｜end▁of▁sentence｜>]]" },
    { "deepseekv3_thinking", "[" U "," THOUGHT "," U "," THOUGHT "]", LAST,
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜>q"
      "<｜Assistant｜><think>[[t</think>a<｜end▁of▁sentence｜>]]" },
    { "deepseekv3", "[" U "," CALL "," RESULT "]", "prompt",
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think><｜tool▁calls▁begin｜>"
      "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
      "<｜tool▁output▁begin｜>r<｜tool▁output▁end｜>" },
    { "kimi_k2", UA, LAST,
      "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI."
      "<|im_end|><|im_user|>user<|im_middle|>q<|im_end|><|im_assistant|>assistant<|im_middle|>"
      "[[<think></think>a<|im_end|>]]" },
    { "kimi_k25", "[{\"role\":\"system\",\"content\":\"s\"}," U "," CALL "," RESULT "]", "prompt",
      "<|im_system|>system<|im_middle|>s<|im_end|><|im_user|>user<|im_middle|>q<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|><think></think><|tool_calls_section_begin|>"
      "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\":1}<|tool_call_end|>"
      "<|tool_calls_section_end|><|im_end|><|im_system|>f<|im_middle|>## Return of i\nr<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|><think>" },
    { "nemotron3", UA, LAST,
      "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
      "<think></think>[[a<|im_end|>]]" },
    { "nemotron3_low_thinking", "[" U "]", "prompt",
      "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nq\n\n{reasoning effort: low}<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n" },
    { "nemotron3_ultra", "[" U "," THOUGHT "," U "]", "prompt",
      "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
      "<think></"
      "think>a<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n" },
    { "gpt_oss_no_sysprompt", "[{\"role\":\"system\",\"content\":\"s\"}," U "," THOUGHT "]", LAST,
      "<|start|>developer<|message|># Instructions\n\ns\n\n<|end|><|start|>user<|message|>q<|end|>"
      "<|start|>assistant[[<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final"
      "<|message|>a<|return|>]]" },
    { "gpt_oss_no_sysprompt", "[" U "," CALL "," RESULT "]", "prompt",
      "<|start|>user<|message|>q<|end|><|start|>assistant to=functions.f<|channel|>commentary "
      "<|constrain|>json<|message|>{\"x\":1}<|call|><|start|>functions.f to=assistant<|channel|>"
      "commentary<|message|>r<|end|><|start|>assistant" },
    { "qwen3_8_low_reasoning",
      "[{\"role\":\"system\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"}]}," U "]",
      "prompt",
      "<|im_start|>system\nReasoning effort is set to low. Keep your thinking brief and focused, "
      "moving directly to the conclusion without unnecessary elaboration.<think>\nt\n</think>"
      "\n\n<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n" },
    { "tml_v0", "[" U "," CALL "," RESULT "]", "prompt",
      "<|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|><|message_user|>"
      "<|content_text|>q<|end_message|><|message_model|>f<|content_invoke_tool_json|>{\"name\":"
      "\"f\""
      ",\"args\":{\"x\":1}}<|end_message|><|content_model_end_sampling|><|message_tool|>f"
      "<|content_text|>r<|end_message|>" },
    { "tml_v0", "[" U "," THOUGHT "]", LAST,
      "<|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|><|message_user|>"
      "<|content_text|>q<|end_message|>[[<|message_model|><|content_thinking|>t<|end_message|>"
      "<|message_model|><|content_text|>a<|end_message|><|content_model_end_sampling|>]]" },
    /* refusals name the renderer and the reason */
    { "tml_v0", "[{\"role\":\"developer\",\"content\":\"s\"}]", "prompt",
      "renderer tml_v0: role \"developer\" is not supported (system, user, assistant, tool)" },
    { "qwen3_5",
      "[" U ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":"
      "\"f\",\"arguments\":\"[1]\"}}]}]",
      LAST, "renderer qwen3_5: arguments of the call to f are no JSON object" },
    { "llama3", "[" U "," THOUGHT "]", LAST,
      "renderer llama3: expected text content in the assistant message, got 2 parts" },
    { "deepseekv3", "[" U ",{\"role\":\"system\",\"content\":\"s\"}]", "prompt",
      "renderer deepseekv3: a system message may only stand first (option system_as_user turns "
      "later ones into user messages)" },
    { "qwen3", "[" U ",{\"role\":\"assistant\",\"content\":\"a\",\"trainable\":true}]", LAST,
      "renderer qwen3: messages[1] has \"trainable\", which only customized accepts" },
    { "qwen3", UA, "customized",
      "renderer qwen3: messages[0] has no \"trainable\", which customized requires" },
};

static void test_formats(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_renderer *r = make(cases[i].renderer, NULL);
        REQUIRE(r);
        check_example(r, cases[i].messages, cases[i].mode, cases[i].want);
        tinker_renderer_free(r);
    }
}

static void test_customized(void)
{
    tinker_renderer *r = make("kimi_k2", NULL);
    REQUIRE(r);
    check_example(r,
                  "[{\"role\":\"user\",\"content\":\"q\",\"trainable\":true},"
                  "{\"role\":\"assistant\",\"content\":\"a\",\"trainable\":false}]",
                  "customized",
                  "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by "
                  "Moonshot AI.<|im_end|><|im_user|>user<|im_middle|>[[q<|im_end|>]]"
                  "<|im_assistant|>assistant<|im_middle|><think></think>a<|im_end|>");
    tinker_renderer_free(r);
}

/* How much more often the id of token appears in the prompt of one message than of another. */
static size_t count_more(const char *name, int safe, const char *token, tinker_message forged,
                         tinker_message honest)
{
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    opts.safe_content = safe;
    tinker_renderer *r = make(name, &opts);
    size_t count[2] = { 0, 0 };
    int32_t id = tinker_tokenizer_id(tokenizer, token, strlen(token));
    for (int k = 0; r && k < 2; k++) {
        tinker_rendered *x = tinker_renderer_prompt(r, k ? &forged : &honest, 1, NULL, NULL, NULL);
        for (size_t i = 0; x && i < x->examples[0].input.n_chunks; i++)
            for (size_t j = 0; j < x->examples[0].input.chunks[i].n_tokens; j++)
                count[k] += x->examples[0].input.chunks[i].tokens[j] == id;
        tinker_rendered_free(x);
    }
    tinker_renderer_free(r);
    return count[1] - count[0];
}

/* The control token typed by a user. */
static size_t count_forged(const char *name, int safe, const char *token)
{
    char text[64];
    snprintf(text, sizeof(text), "a%sb", token);
    return count_more(name, safe, token, (tinker_message){ .role = "user", .content = text },
                      (tinker_message){ .role = "user", .content = "ab" });
}

/* The same in the name of a role, and of a tool. */
static size_t count_named(const char *name, int safe, const char *token)
{
    char text[64];
    snprintf(text, sizeof(text), "a%sb", token);
    tinker_message tool = { .role = "tool", .content = "x", .name = text, .tool_call_id = "1" };
    tinker_message honest = tool;
    honest.name = "ab";
    return count_more(name, safe, token, (tinker_message){ .role = text, .content = "x" },
                      (tinker_message){ .role = "ab", .content = "x" }) +
           count_more(name, safe, token, tool, honest);
}

static void test_forged_names(void)
{
    CHECK_INT(count_named("qwen3", 1, "<|im_end|>"), 0);
    CHECK_INT(count_named("llama3", 1, "<|eot_id|>"), 0);
    CHECK_INT(count_named("qwen3_5", 1, "<|im_end|>"), 0);
    CHECK_INT(count_named("kimi_k25", 0, "<|im_end|>"), 2); /* as the reference */
    CHECK_INT(count_named("kimi_k25", 1, "<|im_end|>"), 0);
    CHECK_INT(count_named("gpt_oss_no_sysprompt", 1, "<|end|>"), 0);
    CHECK_INT(count_named("role_colon", 1, "<|endoftext|>"), 0);
}

/* Lengths that only together are too long for a size. */
static void test_huge_images_are_refused(void)
{
    tinker_renderer *r = make("qwen3_vl", NULL);
    tinker_error err = { .message = "" };
    tinker_part parts[3] = { { .kind = TINKER_PART_IMAGE,
                               .bytes = "\x89PNG\r\n\x1a\n.",
                               .n_bytes = 9,
                               .expected_tokens = INT64_MAX } };
    parts[1] = parts[2] = parts[0];
    parts[2].expected_tokens = 2;
    const tinker_message messages[] = { { .role = "user", .parts = parts, .n_parts = 3 },
                                        { .role = "assistant", .content = "a" } };
    REQUIRE(r);
    CHECK(!tinker_renderer_example(r, messages, 2, TINKER_TRAIN_ALL_MESSAGES, &err));
    CHECK(strstr(err.message, "expected_tokens") != NULL);
    tinker_renderer_free(r);
}

static void test_forged_turns(void)
{
    CHECK_INT(count_forged("qwen3", 0, "<|im_end|>"), 0);
    CHECK_INT(count_forged("qwen3_instruct", 0, "<|im_end|>"), 0);
    CHECK_INT(count_forged("llama3", 0, "<|eot_id|>"), 1); /* as the reference */
    CHECK_INT(count_forged("llama3", 1, "<|eot_id|>"), 0);
    CHECK_INT(count_forged("qwen3_5", 0, "<|im_end|>"), 1);
    CHECK_INT(count_forged("qwen3_5", 1, "<|im_end|>"), 0);
    CHECK_INT(count_forged("kimi_k25", 1, "<|im_end|>"), 0);
    CHECK_INT(count_forged("gpt_oss_no_sysprompt", 1, "<|end|>"), 0);
    CHECK_INT(count_forged("deepseekv3", 0, "<｜User｜>"), 1); /* added, but not special */
    CHECK_INT(count_forged("deepseekv3", 1, "<｜User｜>"), 0);
    CHECK_INT(count_forged("role_colon", 1, "<|endoftext|>"), 0);
}

static void test_safe_content_changes_nothing_else(void)
{
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    opts.safe_content = 1;
    opts.date = "2026-01-31";
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_renderer *r = make(cases[i].renderer, &opts);
        REQUIRE(r);
        check_example(r, cases[i].messages, cases[i].mode, cases[i].want);
        tinker_renderer_free(r);
    }
}

static void test_history(void)
{
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    opts.thinking_in_history = 1;
    tinker_renderer *r = make("qwen3", &opts);
    REQUIRE(r);
    CHECK_INT(tinker_renderer_has_extension(r), 1);
    check_example(r, "[" U "," THOUGHT "," U "]", "prompt",
                  "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nt\n</think>\n\na"
                  "<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    tinker_renderer_free(r);
    r = make("qwen3", NULL);
    REQUIRE(r);
    CHECK_INT(tinker_renderer_has_extension(r), 0);
    tinker_renderer_free(r);
}

static size_t count_examples(const char *name, const char *json, tinker_train_on mode)
{
    tinker_renderer *r = make(name, NULL);
    tinker_conversation *c = tinker_conversation_parse(json, 0, NULL);
    tinker_rendered *x =
        r && c ? tinker_renderer_examples(r, c->messages, c->n_messages, mode, NULL) : NULL;
    size_t n = x ? x->n_examples : 99;
    tinker_rendered_free(x);
    tinker_conversation_free(c);
    tinker_renderer_free(r);
    return n;
}

static void test_examples(void)
{
    static const char two[] = "[" U "," A "," U "," A "]";
    CHECK_INT(count_examples("llama3", two, TINKER_TRAIN_ALL_ASSISTANT_MESSAGES), 1);
    CHECK_INT(count_examples("qwen3", two, TINKER_TRAIN_ALL_ASSISTANT_MESSAGES), 2);
    CHECK_INT(count_examples("qwen3", two, TINKER_TRAIN_LAST_ASSISTANT_TURN), 1);
    CHECK_INT(count_examples("qwen3", "[" U "]", TINKER_TRAIN_LAST_ASSISTANT_MESSAGE), 0);
    CHECK_INT(count_examples("qwen3", two, TINKER_TRAIN_ALL_TOKENS), 99);
    CHECK_INT(count_examples("kimi_k2", two, TINKER_TRAIN_ALL_ASSISTANT_MESSAGES), 2);
    CHECK_INT(count_examples("kimi_k2", two, TINKER_TRAIN_ALL_TOKENS), 2);
}

static void test_no_think_refuses_reasoning(void)
{
    static const char *const names[] = { "qwen3_disable_thinking", "qwen3_5_disable_thinking",
                                         "kimi_k25_disable_thinking" };
    for (size_t i = 0; i < 3; i++) {
        tinker_error err = { .message = "" };
        tinker_renderer *r = make(names[i], NULL);
        tinker_conversation *c = tinker_conversation_parse("[" U "," THOUGHT "]", 0, &err);
        REQUIRE(r && c);
        CHECK(tinker_renderer_disables_thinking(r));
        tinker_rendered *x = tinker_renderer_example(r, c->messages, 2, 0, &err);
        CHECK(!x);
        CHECK(strstr(err.message, "contains reasoning"));
        tinker_rendered_free(x);
        tinker_conversation_free(c);
        tinker_renderer_free(r);
    }
}

static void test_registry(void)
{
    tinker_error err = { .message = "" };
    tinker_text warning = TINKER_TEXT_INIT;
    size_t n = 0;
    while (tinker_renderer_name_at(n)) {
        tinker_renderer *r = make(tinker_renderer_name_at(n), NULL);
        REQUIRE(r);
        CHECK_STR(tinker_renderer_name(r), tinker_renderer_name_at(n));
        tinker_stop_sequences stop = tinker_renderer_stop(r);
        CHECK(stop.n >= 1 && (stop.tokens != NULL) != (stop.strings != NULL));
        tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
        params.max_tokens = 7;
        tinker_renderer_set_stop(r, &params);
        CHECK(params.n_stop == stop.n && params.stop_tokens == stop.tokens);
        CHECK(params.stop_strings == stop.strings && params.max_tokens == 7);
        tinker_renderer_free(r);
        n++;
    }
    CHECK_INT(n, 44);
    CHECK_STR(tinker_renderer_recommended("thinkingmachines/Inkling", 0), "tml_v0");
    CHECK_STR(tinker_renderer_recommended("Qwen/Qwen3-8B:step-7", 0), "qwen3");
    CHECK_STR(tinker_renderer_recommended("Qwen/Qwen3-8B", 1), "qwen3_disable_thinking");
    CHECK_STR(tinker_renderer_recommended("Qwen/Qwen3-8B", 2), NULL);
    CHECK_STR(tinker_renderer_recommended("nobody/knows", 0), NULL);
    CHECK_INT(tinker_renderer_suits("Qwen/Qwen3-8B", "qwen3", &warning), 1);
    CHECK_INT(tinker_renderer_suits("nobody/knows", "qwen3", &warning), 1);
    CHECK_INT(tinker_renderer_suits("Qwen/Qwen3-8B", "llama3", &warning), 0);
    CHECK_STR(warning.s, "renderer llama3 is not made for Qwen/Qwen3-8B, which knows qwen3, "
                         "qwen3_disable_thinking");
    CHECK_INT(tinker_renderer_suits("Qwen/Qwen3-8B", "llama3", NULL), 0);
    tinker_text_clear(&warning);
    CHECK_STR(tinker_renderer_for("meta-llama/Llama-3.2-1B", NULL), "role_colon");
    CHECK(!tinker_renderer_new("nonsense", tokenizer, NULL, &err));
    CHECK_STR(err.message, "unknown renderer \"nonsense\"");
    tinker_train_on mode;
    CHECK_INT(tinker_train_on_parse("all", &mode, &err), TINKER_EINVAL);
    CHECK_STR(tinker_train_on_name(TINKER_TRAIN_CUSTOMIZED), "customized");
    CHECK_STR(tinker_train_on_name((tinker_train_on)7), NULL);
}

/* "[role] content<|im_end|>"; a message of role "bad" cannot be rendered. */
static tinker_status bracket(const tinker_message *m, int is_last, tinker_text *header,
                             tinker_text *body, tinker_text *tail, tinker_error *err, void *state)
{
    const char *open = state;
    if (strcmp(m->role, "bad") == 0) {
        snprintf(err->message, sizeof(err->message), "no role bad");
        return TINKER_EINVAL;
    }
    tinker_text_append(header, open, strlen(open), err);
    tinker_text_append(header, m->role, strlen(m->role), err);
    tinker_text_append(header, "] ", 2, err);
    if (m->content)
        tinker_text_append(body, m->content, m->n_content, err);
    tinker_text_append(tail, is_last ? "." : ";", 1, err);
    return tinker_text_append(tail, "<|im_end|>", 10, err);
}

static void test_custom(void)
{
    tinker_format_options f = TINKER_FORMAT_OPTIONS_INIT;
    tinker_error err = { .message = "" };
    char open[] = "[";
    CHECK_INT(tinker_renderer_register("mine", &f, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "renderer mine: render is missing");
    f.render = bracket;
    CHECK_INT(tinker_renderer_register("mine", &f, &err), TINKER_EINVAL);
    f.state = open;
    f.stop = "<|im_end|>";
    f.extends = 1;
    CHECK_INT(tinker_renderer_register("", &f, &err), TINKER_EINVAL);
    CHECK_INT(tinker_renderer_register("mine", &f, &err), TINKER_OK);
    tinker_renderer *r = make("mine", NULL);
    REQUIRE(r);
    CHECK_INT(tinker_renderer_has_extension(r), 1);
    check_example(r, "[{\"role\":\"user\",\"content\":\"hi\"}]", "prompt",
                  "[user] hi.<|im_end|>[assistant] ");
    check_example(r,
                  "[{\"role\":\"user\",\"content\":\"hi\"},"
                  "{\"role\":\"assistant\",\"content\":\"yes\"}]",
                  "last_assistant_message", "[user] hi;<|im_end|>[assistant] [[yes.<|im_end|>]]");
    tinker_conversation *c =
        tinker_conversation_parse("[{\"role\":\"bad\",\"content\":\"\"}]", 0, &err);
    CHECK(!tinker_renderer_prompt(r, c->messages, 1, NULL, NULL, &err));
    CHECK_STR(err.message, "renderer mine: no role bad");
    tinker_conversation_free(c);

    /* A name of ours wins over a built-in one until it is taken back; what was made stays. */
    f.stop = "<|nothing|>";
    CHECK_INT(tinker_renderer_register("qwen3", &f, &err), TINKER_OK);
    CHECK(!tinker_renderer_new("qwen3", tokenizer, NULL, &err));
    CHECK(strstr(err.message, "has no token <|nothing|>"));
    f.stop = "<|im_end|>";
    CHECK_INT(tinker_renderer_register("qwen3", &f, &err), TINKER_OK);
    tinker_renderer *ours = make("qwen3", NULL);
    CHECK_INT(tinker_renderer_unregister("qwen3"), 1);
    CHECK_INT(tinker_renderer_unregister("qwen3"), 0);
    check_example(ours, "[{\"role\":\"user\",\"content\":\"hi\"}]", "prompt",
                  "[user] hi.<|im_end|>[assistant] ");
    tinker_renderer *theirs = make("qwen3", NULL);
    check_example(theirs, "[{\"role\":\"user\",\"content\":\"hi\"}]", "prompt",
                  "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    CHECK_INT(tinker_renderer_unregister("mine"), 1);
    tinker_renderer_free(theirs);
    tinker_renderer_free(ours);
    tinker_renderer_free(r);
}

/* Parameters that are a reference as a whole have no properties of their own. */
static void test_tool_of_a_reference(void)
{
    static const tinker_tool tool = {
        .name = "f",
        .parameters = "{\"$ref\":\"#/$defs/A\",\"$defs\":{\"A\":{\"type\":\"string\"}}}",
    };
    tinker_error err = { .message = "" };
    tinker_renderer *r = make("kimi_k25", NULL);
    REQUIRE(r);
    tinker_conversation *c = tinker_renderer_tool_prefix(r, &tool, 1, NULL, &err);
    CHECK_STR(c ? c->messages[0].content : err.message,
              "# Tools\n\n## functions\nnamespace functions {\ninterface A string\n"
              "type f = (_: {}) => any;\n}\n");
    tinker_conversation_free(c);
    static const tinker_tool itself = { .name = "f", .parameters = "{\"$ref\":\"#\"}" };
    c = tinker_renderer_tool_prefix(r, &itself, 1, NULL, &err);
    CHECK_STR(c ? c->messages[0].content : err.message,
              "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {}) => any;\n}\n");
    tinker_conversation_free(c);
    tinker_renderer_free(r);
}

static void test_wrong_tokenizer(void)
{
    static const char json[] = "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":"
                               "{\"a\":0},\"merges\":[]}}";
    tinker_error err = { .message = "" };
    tinker_tokenizer_options opts = TINKER_TOKENIZER_OPTIONS_INIT;
    opts.no_prebuilt = opts.lenient = 1;
    tinker_tokenizer *t = tinker_tokenizer_load_json(json, sizeof(json) - 1, NULL, 0, &opts, &err);
    REQUIRE(t);
    CHECK(!tinker_renderer_new("qwen3", t, NULL, &err));
    CHECK(strstr(err.message, "has no token <|im_end|>"));
    CHECK_STR(tinker_renderer_for("x/y", t), "role_colon");
    tinker_tokenizer_free(t);
}

static void test_images(void)
{
    static const char json[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see "
        "\"},{\"type\":\"image\","
        "\"expected_tokens\":5,\"image\":\"data:image/png;base64,iVBORw0KGgoAAAAA\"}]}," A "]";
    tinker_error err = { .message = "" };
    tinker_renderer *r = make("qwen3_vl_instruct", NULL);
    tinker_conversation *c = tinker_conversation_parse(json, 0, &err);
    REQUIRE(r && c);
    tinker_rendered *x = tinker_renderer_example(r, c->messages, 2, 0, &err);
    REQUIRE(x);
    const tinker_model_input *in = &x->examples[0].input;
    CHECK_INT(in->n_chunks, 6);
    CHECK_INT(in->chunks[2].kind, TINKER_CHUNK_IMAGE);
    CHECK_INT(in->chunks[2].n_bytes, 12);
    CHECK_STR(in->chunks[2].format, "png");
    CHECK_INT(in->chunks[2].expected_tokens, 5);
    size_t text = 0;
    for (size_t i = 0; i < in->n_chunks; i++)
        text += in->chunks[i].n_tokens;
    CHECK_INT(x->examples[0].n_tokens, text + 5);
    tinker_rendered_free(x);
    tinker_conversation_free(c);
    tinker_renderer_free(r);
}

/* Nemotron 3.5 Super: an image starts a line after text, and several in a message are numbered. */
static void test_images_of_nemotron(void)
{
#define IMAGE                                              \
    "{\"type\":\"image\",\"expected_tokens\":5,\"image\":" \
    "\"data:image/png;base64,iVBORw0KGgoAAAAA\"}"
    static const char json[] = "[{\"role\":\"user\",\"content\":[" IMAGE
                               ",{\"type\":\"text\",\"text\":\"x\"}," IMAGE "]}]";
    tinker_error err = { .message = "" };
    tinker_renderer *r = make("nemotron3_ultra", NULL), *blind = make("nemotron3", NULL);
    tinker_conversation *c = tinker_conversation_parse(json, 0, &err);
    REQUIRE(r && blind && c);
    CHECK(!tinker_renderer_prompt(blind, c->messages, 1, NULL, NULL, &err));
    CHECK_STR(err.message, "renderer nemotron3: this renderer takes no images");
    tinker_rendered *x = tinker_renderer_prompt(r, c->messages, 1, NULL, NULL, &err);
    REQUIRE(x);
    tinker_text text = TINKER_TEXT_INIT;
    for (size_t i = 0; i < x->examples[0].input.n_chunks; i++) {
        const tinker_chunk *k = &x->examples[0].input.chunks[i];
        if (k->kind == TINKER_CHUNK_IMAGE)
            tinker_text_append(&text, "(image)", 7, &err);
        else
            tinker_tokenizer_decode(tokenizer, k->tokens, k->n_tokens, NULL, &text, &err);
    }
    CHECK_STR(text.s,
              "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<image 1><img>(image)</img>x\n"
              "<image 2><img>(image)</img><|im_end|>\n<|im_start|>assistant\n<think>\n");
    tinker_text_clear(&text);
    tinker_rendered_free(x);
    tinker_conversation_free(c);
    tinker_renderer_free(blind);
    tinker_renderer_free(r);
}

static void test_tool_prefix(void)
{
    tinker_error err = { 0 };
    const tinker_tool tools[] = { { "add", "Adds.", "{\"type\":\"object\"}", NULL },
                                  { "stop", "Stops.", "{}", NULL } };
    tinker_renderer *r = tinker_renderer_new("qwen3", tokenizer, NULL, &err);
    REQUIRE(r != NULL);
    tinker_conversation *c = tinker_renderer_tool_prefix(r, tools, 2, "Be brief.", &err);
    REQUIRE(c != NULL);
    CHECK_INT(c->n_messages, 1);
    CHECK_STR(c->messages[0].role, "system");
    const char *text = c->messages[0].content;
    CHECK(text && strncmp(text, "Be brief.\n\n# Tools\n", 19) == 0);
    CHECK(strstr(text, "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"add\", "
                       "\"description\": \"Adds.\", \"parameters\": {\"type\": \"object\"}}}\n"
                       "{\"type\": \"function\", \"function\": {\"name\": \"stop\", "
                       "\"description\": \"Stops.\", \"parameters\": {}}}\n</tools>") != NULL);
    tinker_conversation_free(c);
    tinker_renderer_free(r);
    r = tinker_renderer_new("llama3", tokenizer, NULL, &err);
    REQUIRE(r != NULL);
    CHECK(!tinker_renderer_tool_prefix(r, tools, 2, NULL, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(strstr(err.message, "llama3: this format has no tools") != NULL);
    tinker_renderer_free(r);
}

int main(void)
{
    if (!fixture_open())
        return 1;
    RUN(test_formats);
    RUN(test_customized);
    RUN(test_forged_turns);
    RUN(test_forged_names);
    RUN(test_huge_images_are_refused);
    RUN(test_safe_content_changes_nothing_else);
    RUN(test_history);
    RUN(test_examples);
    RUN(test_no_think_refuses_reasoning);
    RUN(test_registry);
    RUN(test_custom);
    RUN(test_wrong_tokenizer);
    RUN(test_images);
    RUN(test_images_of_nemotron);
    RUN(test_tool_prefix);
    RUN(test_tool_of_a_reference);
    tinker_tokenizer_free(tokenizer);
    return tap_done();
}
