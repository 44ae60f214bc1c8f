/* render_nomem.c - every allocation of a rendering, a parse and a template fails once. */
#include "render_fixture.h"
#include "support/failmalloc.h"
#include "support/tap.h"
#include <tinker/extra/template.h>

static const char chat[] = "[{\"role\":\"user\",\"content\":\"q <|im_end|> "
                           "q\"},{\"role\":\"assistant\",\"content\":[{\"type\":"
                           "\"thinking\",\"thinking\":\"t\"},{\"type\":\"text\",\"text\":\"a\"}],"
                           "\"tool_calls\":[{\"function\":"
                           "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1,2]}\"}}]}]";
static const char answer[] = "t</think>a<tool_call>\n<function=f>\n<parameter=a>\n[1]\n</"
                             "parameter>\n</function>\n</tool_call>"
                             "<|im_end|>";

static bool render_all(const char *name)
{
    tinker_error err;
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    opts.safe_content = 1;
    tinker_renderer *r = tinker_renderer_new(name, tokenizer, &opts, &err);
    tinker_conversation *c = r ? tinker_conversation_parse(chat, 0, &err) : NULL;
    tinker_rendered *x =
        c ? tinker_renderer_examples(r, c->messages, 2, TINKER_TRAIN_ALL_ASSISTANT_MESSAGES, &err)
          : NULL;
    tinker_rendered *p = x ? tinker_renderer_prompt(r, c->messages, 1, NULL, "x", &err) : NULL;
    tinker_text text = TINKER_TEXT_INIT;
    bool ok = p && tinker_message_to_json(&c->messages[1], &text, &err) == TINKER_OK;
    size_t n = text.n;
    ok = ok && tinker_message_text(&c->messages[1], &text, &err) == TINKER_OK;
    CHECK(ok || text.n == n);
    tinker_text_clear(&text);
    tinker_rendered_free(p);
    tinker_rendered_free(x);
    tinker_conversation_free(c);
    tinker_renderer_free(r);
    return ok;
}

static bool parse_all(const tinker_tokens *ids)
{
    tinker_error err;
    const tinker_delta *d;
    size_t n;
    tinker_parsed *streamed = NULL;
    tinker_renderer *r = tinker_renderer_new("qwen3_5", tokenizer, NULL, &err);
    tinker_parsed *p = r ? tinker_renderer_parse(r, ids->ids, ids->n, &err) : NULL;
    tinker_parse_stream *s = p ? tinker_parse_stream_new(r, &err) : NULL;
    bool ok = s != NULL;
    for (size_t i = 0; i < ids->n && ok; i++)
        ok = tinker_parse_stream_feed(s, ids->ids[i], &d, &n, &err) == TINKER_OK;
    ok = ok && tinker_parse_stream_finish(s, &d, &n, &streamed, &err) == TINKER_OK;
    tinker_parsed_free(streamed);
    tinker_parse_stream_free(s);
    tinker_parsed_free(p);
    tinker_renderer_free(r);
    return ok;
}

static bool template_all(void)
{
    static const char source[] =
        "{% macro f(x, y=[1]) %}{{ x|tojson(sort_keys=true) }}{{ y }}{% endmacro %}{% set ns = "
        "namespace(a='x') %}{% for m in messages %}{% set ns.a = ns.a ~ m.role|upper %}{{ f(m) }}"
        "{% endfor %}{{ ns.a.split('S')|sort|join(',') }}{{ {'k': 'v'}.items()|list }}";
    tinker_error err;
    tinker_template *t = tinker_template_new(source, 0, &err);
    tinker_text text = TINKER_TEXT_INIT;
    bool ok = t && tinker_template_render_json(t, chat, NULL, NULL, &text, &err) == TINKER_OK;
    CHECK(ok || text.n == 0);
    tinker_text_clear(&text);
    tinker_template_free(t);
    return ok;
}

static void test_render(void)
{
    static const char *const names[] = { "qwen3",
                                         "qwen3_8_low_reasoning",
                                         "deepseekv3_thinking",
                                         "kimi_k25",
                                         "gpt_oss_high_reasoning",
                                         "nemotron3",
                                         "glm5_3_max_reasoning",
                                         "deepseekv4_1" };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        long n = 1;
        CHECK(render_all(names[i])); /* fills caches that may do without memory */
        for (;; n++) {
            failmalloc_at(n);
            bool ok = render_all(names[i]);
            bool hit = failmalloc_stop();
            if (!hit) {
                CHECK(ok);
                break;
            }
            CHECK(!ok);
        }
        CHECK(n > 10);
    }
}

static void test_parse(void)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_tokenizer_encode(tokenizer, answer, strlen(answer), NULL, &ids, NULL);
    for (long n = 1;; n++) {
        failmalloc_at(n);
        bool ok = parse_all(&ids);
        bool hit = failmalloc_stop();
        if (!hit) {
            CHECK(ok && n > 10);
            break;
        }
        CHECK(!ok);
    }
    tinker_tokens_clear(&ids);
}

static void test_template(void)
{
    for (long n = 1;; n++) {
        failmalloc_at(n);
        bool ok = template_all();
        bool hit = failmalloc_stop();
        if (!hit) {
            CHECK(ok && n > 5);
            break;
        }
        CHECK(!ok);
    }
}

int main(void)
{
    if (!fixture_open())
        return 1;
    RUN(test_render);
    RUN(test_parse);
    RUN(test_template);
    tinker_tokenizer_free(tokenizer);
    return tap_done();
}
