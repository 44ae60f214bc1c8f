/* render_parse.c - responses taken apart, whole and while they arrive. */
#include "render_fixture.h"
#include "support/tap.h"
#include <tinker/extra/renderer.h>

static tinker_tokens encode(const char *text)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_tokenizer_encode(tokenizer, text, strlen(text), NULL, &ids, NULL);
    return ids;
}

static const struct {
    const char *renderer, *text, *want; /* termination: s, e, m; then the message */
} cases[] = {
    { "llama3", "hi<|eot_id|>", "s{\"role\":\"assistant\",\"content\":\"hi\"}" },
    { "llama3", "hi", "m{\"role\":\"assistant\",\"content\":\"hi\"}" },
    { "role_colon", " hi\n\nUser:", "s{\"role\":\"assistant\",\"content\":\"hi\"}" },
    { "role_colon", " hi<|im_end|>", "e{\"role\":\"assistant\",\"content\":\"hi\"}" },
    { "role_colon", " hi\n\nUser: x\n\nUser:", "m{\"role\":\"assistant\",\"content\":\"hi\"}" },
    { "qwen3", "<think>\nt\n</think>\n\na<|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},"
      "{\"type\":\"text\",\"text\":\"a\"}]}" },
    { "qwen3", "<think>\n\n</think>\n\na<|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}" },
    { "qwen3", "x<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call><|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],\"tool_calls\":[{"
      "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]}" },
    { "qwen3", "<tool_call>[]</tool_call><|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[],\"unparsed_tool_calls\":[{\"raw_text\":"
      "\"<tool_call>[]</tool_call>\",\"error\":\"Tool call is not a JSON object\"}]}" },
    { "qwen3", "a<tool_call>{<|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a<tool_call>{\"}],"
      "\"unparsed_tool_calls\":[{\"raw_text\":\"<tool_call>{\",\"error\":\"unterminated tool "
      "block: "
      "'<tool_call>' opened without a matching '</tool_call>'\"}]}" },
    { "qwen3_5",
      "t\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n[1]\n</"
      "parameter>\n<parameter=b>\nx y"
      "\n</parameter>\n</function>\n</tool_call><|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{\"type\":"
      "\"text\",\"text\":\"\"}],\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":"
      "\"f\","
      "\"arguments\":\"{\\\"a\\\": [1], \\\"b\\\": \\\"x y\\\"}\"}}]}" },
    { "qwen3_5",
      "<tool_call><function=f><parameter=a>NaN</parameter><parameter=b>-Infinity</parameter>"
      "<parameter=c>Nan</parameter></function></tool_call><|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[],\"tool_calls\":[{\"type\":\"function\","
      "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": NaN, \\\"b\\\": -Infinity, "
      "\\\"c\\\": \\\"Nan\\\"}\"}}]}" },
    { "qwen3",
      "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[NaN,Infinity]}}</tool_call><|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[],\"tool_calls\":[{\"type\":\"function\","
      "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [NaN, Infinity]}\"}}]}" },
    { "deepseekv3_thinking", "t</think>a<｜end▁of▁sentence｜>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},"
      "{\"type\":\"text\",\"text\":\"a\"}]}" },
    { "deepseekv3",
      "a <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
      "s{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{\"type\":\"function\","
      "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}" },
    { "kimi_k25",
      "t</think>a<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{\"type\":"
      "\"text\",\"text\":\"a\"}],\"tool_calls\":[{\"type\":\"function\",\"id\":\"functions.f:3\","
      "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}" },
    { "gpt_oss_no_sysprompt",
      "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>a<|"
      "return|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},"
      "{\"type\":\"text\",\"text\":\"a\"}]}" },
    { "gpt_oss_no_sysprompt",
      " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\":1}<|call|>",
      "s{\"role\":\"assistant\",\"content\":\" to=functions.f<|channel|>commentary "
      "<|constrain|>json"
      "<|message|>{\\\"x\\\":1}\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":"
      "\"f\","
      "\"arguments\":\"{\\\"x\\\":1}\"}}]}" },
    { "tml_v0",
      "<|message_model|><|content_thinking|>t<|end_message|><|message_model|>f"
      "<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{\"x\":1}}<|end_message|>"
      "<|content_model_end_sampling|>",
      "s{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"}],"
      "\"tool_calls\":[{\"type\":\"function\",\"id\":\"functions.f:0\",\"function\":{\"name\":"
      "\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}}]}" },
};

static char *parse_text(const char *name, const char *text)
{
    tinker_error err = { .message = "" };
    tinker_renderer *r = tinker_renderer_new(name, tokenizer, NULL, &err);
    tinker_tokens ids = encode(text);
    tinker_parsed *p = r ? tinker_renderer_parse(r, ids.ids, ids.n, &err) : NULL;
    tinker_text json = TINKER_TEXT_INIT;
    if (p)
        CHECK_INT(tinker_message_to_json(p->message, &json, &err), TINKER_OK);
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, p ? (const char *[]){ "s", "e", "m" }[p->termination] : err.message);
    buf_puts(&b, json.s ? json.s : "");
    tinker_text_clear(&json);
    tinker_parsed_free(p);
    tinker_tokens_clear(&ids);
    tinker_renderer_free(r);
    return buf_detach(&b, NULL);
}

static void test_parse(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *got = parse_text(cases[i].renderer, cases[i].text);
        CHECK_STR(got, cases[i].want);
        free(got);
    }
}

static void test_two_stop_tokens(void)
{
    char *got = parse_text("qwen3", "a<|im_end|>b<|im_end|>");
    CHECK_STR(got, "renderer qwen3: the response holds 2 stop tokens; was it sampled with this "
                   "renderer's stop sequences?");
    free(got);
}

/* Deltas as "T0:text|K1:thinking|", fed one token at a time. */
static char *stream_text(const char *name, const char *text)
{
    tinker_error err = { .message = "" };
    tinker_renderer *r = tinker_renderer_new(name, tokenizer, NULL, &err);
    tinker_parse_stream *s = r ? tinker_parse_stream_new(r, &err) : NULL;
    tinker_tokens ids = encode(text);
    const tinker_delta *d;
    tinker_parsed *p = NULL;
    size_t n;
    struct buf b;
    int kind = -1, index = -1;
    buf_init(&b, 1 << 20);
    for (size_t i = 0; s && i <= ids.n; i++) {
        tinker_status st = i < ids.n ? tinker_parse_stream_feed(s, ids.ids[i], &d, &n, &err)
                                     : tinker_parse_stream_finish(s, &d, &n, &p, &err);
        CHECK_INT(st, TINKER_OK);
        for (size_t k = 0; st == TINKER_OK && k < n; k++) {
            CHECK_INT(utf8_valid_prefix(d[k].text, d[k].n_text), d[k].n_text);
            if ((int)d[k].kind != kind || d[k].content_index != index)
                buf_printf(&b, "|%c%d:", "HTK"[d[k].kind], d[k].content_index);
            kind = (int)d[k].kind;
            index = d[k].content_index;
            buf_append(&b, d[k].text, d[k].n_text);
        }
    }
    CHECK(p != NULL);
    tinker_parsed_free(p);
    tinker_parse_stream_free(s);
    tinker_tokens_clear(&ids);
    tinker_renderer_free(r);
    return buf_detach(&b, NULL);
}

static void test_stream(void)
{
    static const struct {
        const char *renderer, *text, *want;
    } streams[] = {
        { "qwen3", "<think>\nt é</think>a <thin b<|im_end|>",
          "|H0:assistant|K1:\nt é|T2:a <thin b" },
        { "qwen3", "", "|H0:assistant" },
        { "qwen3", "a<thi", "|H0:assistant|T0:a<thi" },
        { "qwen3_5", "t</think>a<|im_end|>", "|H0:assistant|K1:\nt|T2:a" },
        { "qwen3_5", "<think>\nt</think>a<|im_end|>", "|H0:assistant|K1:\nt|T2:a" },
        { "kimi_k25", "t</think>a<|im_end|>ignored", "|H0:assistant|K1:t|T2:a" },
        { "llama3", "<think>x<|eot_id|>", "|H0:assistant|T0:<think>x" },
        { "role_colon", " a\n\nUse\n\nUser: b", "|H0:assistant|T0: a\n\nUse" },
        { "gpt_oss_no_sysprompt",
          "<|channel|>analysis<|message|>t<|end|><|start|>assistant "
          "to=functions.f<|channel|>commentary"
          "<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>a<|<|return|>",
          "|H0:assistant|K0:t|T1:a<|" },
    };
    for (size_t i = 0; i < sizeof(streams) / sizeof(*streams); i++) {
        char *got = stream_text(streams[i].renderer, streams[i].text);
        CHECK_STR(got, streams[i].want);
        free(got);
    }
}

/* A format of the program's own has no think blocks: what arrives is what is parsed. */
static tinker_status render_nothing(const tinker_message *m, int is_last, tinker_text *header,
                                    tinker_text *body, tinker_text *tail, tinker_error *err,
                                    void *state)
{
    (void)state, (void)m, (void)is_last, (void)header, (void)body, (void)tail, (void)err;
    return TINKER_OK;
}

static void test_stream_of_custom_format(void)
{
    tinker_format_options f = TINKER_FORMAT_OPTIONS_INIT;
    f.render = render_nothing;
    f.stop = "<|im_end|>";
    CHECK_INT(tinker_renderer_register("mine", &f, NULL), TINKER_OK);
    char *got = stream_text("mine", "<think>a</think>b<|im_end|>");
    CHECK_STR(got, "|H0:assistant|T0:<think>a</think>b");
    free(got);
    CHECK_INT(tinker_renderer_unregister("mine"), 1);
}

static void test_stream_state(void)
{
    tinker_error err = { .message = "" };
    tinker_renderer *r = tinker_renderer_new("llama3", tokenizer, NULL, &err);
    tinker_parse_stream *s = r ? tinker_parse_stream_new(r, &err) : NULL;
    const tinker_delta *d;
    size_t n;
    REQUIRE(s);
    CHECK_INT(tinker_parse_stream_finish(s, &d, &n, NULL, &err), TINKER_OK);
    CHECK_INT(tinker_parse_stream_feed(s, 65, &d, &n, &err), TINKER_ESTATE);
    CHECK_INT(tinker_parse_stream_finish(s, &d, &n, NULL, &err), TINKER_ESTATE);
    tinker_parse_stream_free(s);
    tinker_renderer_free(r);
}

/* What a renderer writes for an answer, it reads back as the same answer. */
static void test_round_trip(void)
{
    static const char *const answers[] = {
        "{\"role\":\"assistant\",\"content\":\"plain\"}",
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"why\"},"
        "{\"type\":\"text\",\"text\":\"because\"}]}",
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"why\"},"
        "{\"type\":\"text\",\"text\":\"see\"}],\"tool_calls\":[{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1, \\\"y\\\": [true, null, \\\"é\\\"]}\"}}]}",
    };
    static const char *const names[] = {
        "qwen3",    "qwen3_5",         "qwen3_8_low_reasoning", "deepseekv3_thinking",
        "kimi_k25", "nemotron3_ultra", "gpt_oss_no_sysprompt"
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        for (size_t k = 1; k < sizeof(answers) / sizeof(*answers); k++) {
            if (k == 2 && strcmp(names[i], "nemotron3_ultra") == 0)
                continue; /* its newline before the calls becomes text */
            tinker_error err = { .message = "" };
            char json[1024];
            snprintf(json, sizeof(json), "[{\"role\":\"user\",\"content\":\"q\"},%s]", answers[k]);
            tinker_renderer *r = tinker_renderer_new(names[i], tokenizer, NULL, &err);
            tinker_conversation *c = tinker_conversation_parse(json, 0, &err);
            REQUIRE(r && c);
            tinker_rendered *x = tinker_renderer_example(r, c->messages, 2, 0, &err);
            REQUIRE(x);
            tinker_tokens ids = TINKER_TOKENS_INIT;
            const tinker_example *e = &x->examples[0];
            size_t at = 0;
            for (size_t j = 0; j < e->input.n_chunks; j++)
                for (size_t t = 0; t < e->input.chunks[j].n_tokens; t++)
                    if (e->weights[at++] != 0)
                        tinker_tokens_append(&ids, &e->input.chunks[j].tokens[t], 1, NULL);
            tinker_parsed *p = tinker_renderer_parse(r, ids.ids, ids.n, &err);
            REQUIRE(p);
            CHECK_INT(p->termination, TINKER_TERMINATION_STOP_SEQUENCE);
            CHECK_INT(tinker_parsed_failure(p), TINKER_PARSE_OK);
            CHECK_INT(p->message->n_tool_calls, k == 2);
            CHECK_INT(p->message->n_parts, 2);
            CHECK_STR(p->message->n_parts ? p->message->parts[0].text : "", "why");
            const char *text = p->message->n_parts > 1 ? p->message->parts[1].text : "";
            CHECK(strncmp(text, k == 2 ? "see" : "because", 3) == 0);
            if (p->message->n_tool_calls)
                CHECK(
                    strstr(p->message->tool_calls[0].arguments, "\"x\": 1, \"y\": [true, null, "));
            tinker_parsed_free(p);
            tinker_tokens_clear(&ids);
            tinker_rendered_free(x);
            tinker_conversation_free(c);
            tinker_renderer_free(r);
        }
    }
}

/* What a model may write over and over until its context is full: reading it takes about as
 * long as writing it did, not the square of that. */
static void test_long_markup(void)
{
    static const struct {
        const char *renderer, *first, *again, *last;
    } long_cases[] = {
        { "gpt_oss_no_sysprompt", "", "<|channel|>final<|message|>a<|end|>", "<|return|>" },
        { "kimi_k25", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
          "<|tool_calls_section_end|><|im_end|>" },
        { "kimi_k25", "<|tool_calls_section_begin|>", "<|tool_call_begin|> ",
          "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>" },
        { "deepseekv3", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
          "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>" },
        { "deepseekv3", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
          "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>" },
        { "qwen3_5", "<tool_call><function=f>",
          "<parameter=", "</function></tool_call><|im_end|>" },
        { "qwen3_5", "<tool_call><function=f>", "<parameter=a>",
          "</function></tool_call><|im_end|>" },
        { "qwen3_5", "<tool_call><function=f>",
          "<parameter=", "\n></parameter></function></tool_call><|im_end|>" },
    };
    for (size_t i = 0; i < sizeof(long_cases) / sizeof(*long_cases); i++) {
        struct buf text;
        tinker_error err = { .message = "" };
        tinker_tokens ids = TINKER_TOKENS_INIT;
        tinker_encode_options opts = TINKER_ENCODE_OPTIONS_INIT;
        tinker_renderer *r = tinker_renderer_new(long_cases[i].renderer, tokenizer, NULL, &err);
        REQUIRE(r);
        buf_init(&text, SIZE_MAX);
        buf_puts(&text, long_cases[i].first);
        for (int k = 0; k < 60000; k++)
            buf_puts(&text, long_cases[i].again);
        buf_puts(&text, long_cases[i].last);
        opts.special = TINKER_SPECIAL_PARSE;
        CHECK_INT(tinker_tokenizer_encode(tokenizer, text.data, text.len, &opts, &ids, &err), 0);
        tinker_parsed *p = tinker_renderer_parse(r, ids.ids, ids.n, &err);
        CHECK(p != NULL);
        tinker_parsed_free(p);
        tinker_tokens_clear(&ids);
        buf_clear(&text);
        tinker_renderer_free(r);
    }
}

int main(void)
{
    if (!fixture_open())
        return 1;
    RUN(test_parse);
    RUN(test_two_stop_tokens);
    RUN(test_stream);
    RUN(test_stream_of_custom_format);
    RUN(test_stream_state);
    RUN(test_round_trip);
    RUN(test_long_markup);
    tinker_tokenizer_free(tokenizer);
    return tap_done();
}
