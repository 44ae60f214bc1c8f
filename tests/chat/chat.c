/* chat.c - messages from JSON in the shapes people have, and the places of errors. */
#include <tinker/chat.h>
#include "support/tap.h"

static void test_shapes(void)
{
    static const struct {
        const char *json, *want; /* of the last message */
    } cases[] = {
        { "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]",
          "{\"role\":\"user\",\"content\":\"a\\u0000b\"}" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
          "{\"role\":\"user\",\"content\":\"\"}" },
        { "[{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"content\":\"a\"}]",
          "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"r\"},{"
          "\"type\":"
          "\"text\",\"text\":\"a\"}]}" },
        { "[{\"role\":\"user\",\"content\":[\"x\",{\"type\":\"image_url\",\"image_url\":{\"url\":"
          "\"data:\"}}]}]",
          "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\","
          "\"image\":"
          "\"data:\"}]}" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
          "\"function\":"
          "{\"name\":\"f\",\"arguments\":{\"é\":1.0}}}]}]",
          "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"id\":"
          "\"1\","
          "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"\\\\u00e9\\\": 1.0}\"}}]}" },
        { "[{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"1\",\"name\":\"f\","
          "\"trainable\":false}]",
          "{\"role\":\"tool\",\"content\":\"r\",\"trainable\":false,\"tool_call_id\":\"1\","
          "\"name\":\"f\"}" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_error err = { .message = "" };
        tinker_conversation *c = tinker_conversation_parse(cases[i].json, 0, &err);
        tinker_text got = TINKER_TEXT_INIT;
        int ok =
            c && tinker_message_to_json(&c->messages[c->n_messages - 1], &got, &err) == TINKER_OK;
        CHECK_STR(ok ? got.s : err.message, cases[i].want);
        tinker_text_clear(&got);
        tinker_conversation_free(c);
    }
}

static void test_places(void)
{
    static const struct {
        const char *json, *want;
    } cases[] = {
        { "[{\"role\":\"user\"", "not JSON: line 1" },
        { "{}", "object has no \"messages\"" },
        { "{\"messages\":3}", "messages: expected a list" },
        { "[{\"role\":\"user\",\"content\":\"a\"},{\"content\":\"b\"}]",
          "messages[1]: message has no role" },
        { "[3]", "messages[0]: message is not an object" },
        { "[{\"role\":\"u\",\"content\":7}]",
          "messages[0]: content is neither a string nor a list" },
        { "[{\"role\":\"u\",\"content\":[{\"type\":\"video\"}]}]",
          "messages[0].content[0]: unknown type" },
        { "[{\"role\":\"u\",\"content\":[{\"type\":\"text\"}]}]",
          "messages[0].content[0]: content part has no text" },
        { "[{\"role\":\"a\",\"tool_calls\":[{\"function\":{}}]}]",
          "messages[0].tool_calls[0]: tool call has no name" },
        { "[{\"role\":\"a\",\"tool_calls\":{}}]", "messages[0]: tool_calls is not a list" },
        { "[{\"role\":\"a\\u0000\"}]", "messages[0].role: expected a string" },
        { "[{\"role\":\"a\",\"trainable\":1}]",
          "messages[0]: trainable is neither true nor false" },
        { "[{\"role\":\"user\",\"contents\":\"hi\"}]", "messages[0]: message has no content" },
        { "{\"messages\":[],\"tools\":[{\"description\":\"d\"}]}", "tools[0]: tool has no name" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_error err = { .message = "" };
        tinker_conversation *c = tinker_conversation_parse(cases[i].json, 0, &err);
        CHECK(!c);
        if (strncmp(err.message, cases[i].want, strlen(cases[i].want)) != 0)
            CHECK_STR(err.message, cases[i].want);
        tinker_conversation_free(c);
    }
}

static void test_tools(void)
{
    tinker_error err = { .message = "" };
    tinker_conversation *c = tinker_conversation_parse(
        "{\"messages\":[],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"parameters\":"
        "{\"type\":\"object\"},\"strict\":true}},{\"name\":\"g\",\"description\":\"d\"}]}",
        0, &err);
    REQUIRE(c);
    CHECK_INT(c->n_tools, 2);
    CHECK_STR(c->tools[0].name, "f");
    CHECK_STR(c->tools[0].parameters, "{\"type\": \"object\"}");
    CHECK_STR(c->tools[0].spec,
              "{\"name\": \"f\", \"parameters\": {\"type\": \"object\"}, \"strict\": true}");
    CHECK_STR(c->tools[1].description, "d");
    CHECK_STR(c->tools[1].parameters, NULL);
    tinker_conversation_free(c);
    tinker_conversation_free(NULL);
}

/* The text of a message is what it says: no thinking, no images; it is appended. */
static void test_text(void)
{
    const tinker_part parts[] = { { .kind = TINKER_PART_THINKING, .text = "hm" },
                                  { .kind = TINKER_PART_TEXT, .text = "a" },
                                  { .kind = TINKER_PART_IMAGE, .text = "data:" },
                                  { .kind = TINKER_PART_TEXT, .text = "bcd", .n_text = 1 } };
    const tinker_message with_parts = { .role = "assistant", .parts = parts, .n_parts = 4 };
    const tinker_message thoughts = { .role = "assistant", .parts = parts, .n_parts = 1 };
    const tinker_message string = { .role = "assistant", .content = "<think>x" };
    const tinker_message none = { .role = "assistant" };
    tinker_text text = TINKER_TEXT_INIT;
    CHECK_INT(tinker_message_text(&thoughts, &text, NULL), TINKER_OK);
    CHECK_STR(text.s, "");
    CHECK_INT(tinker_message_text(&with_parts, &text, NULL), TINKER_OK);
    CHECK_STR(text.s, "ab");
    CHECK_INT(tinker_message_text(&none, &text, NULL), TINKER_OK);
    CHECK_INT(tinker_message_text(&string, &text, NULL), TINKER_OK);
    CHECK_STR(text.s, "ab<think>x");
    tinker_text_clear(&text);
}

int main(void)
{
    RUN(test_shapes);
    RUN(test_text);
    RUN(test_places);
    RUN(test_tools);
    return tap_done();
}
