/* Answers to retrieve_future, error bodies, queue states. */
#include "support/tap.h"

#include "base/arena.h"
#include "wire/future.h"

static struct arena arena;
static tinker_error err;

static tinker_status classify_body(const char *type, const char *body,
                                   struct wire_future_answer *out)
{
    memset(&err, 0, sizeof err);
    return wire_classify_future(type, body, strlen(body), &arena, out, &err);
}

static void test_protobuf_by_type(void)
{
    struct wire_future_answer a;
    CHECK_INT(classify_body("application/x-protobuf", "\x0a", &a), TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_PROTO);
    CHECK_INT(classify_body("Application/X-Protobuf; charset=x", "{\"type\":\"try_again\"}", &a),
              TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_PROTO);
    CHECK_INT(classify_body(NULL, "{\"type\":\"try_again\"}", &a), TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_PENDING);
}

static void test_pending(void)
{
    struct wire_future_answer a;
    CHECK_INT(classify_body("application/json",
                            "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":"
                            "\"paused_capacity\",\"queue_state_reason\":\"waiting\"}",
                            &a),
              TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_PENDING);
    CHECK_INT(a.queue_state, WIRE_QUEUE_PAUSED_CAPACITY);
    CHECK_STR(a.queue_state_reason, "waiting");
    CHECK_INT(classify_body(
                  "application/json",
                  "{\"queue_state\":\"weird\",\"queue_state_reason\":null,\"type\":\"try_again\"}",
                  &a),
              TINKER_OK);
    CHECK_INT(a.queue_state, WIRE_QUEUE_UNKNOWN);
    CHECK(a.queue_state_reason == NULL);
}

/* The order of the decisions: try_again, complete_metadata, error, result. */
static void test_order(void)
{
    struct wire_future_answer a;
    CHECK_INT(
        classify_body(
            NULL, "{\"error\":\"x\",\"status\":\"complete_metadata\",\"type\":\"try_again\"}", &a),
        TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_PENDING);
    CHECK_INT(classify_body(NULL,
                            "{\"error\":\"x\",\"status\":\"complete_metadata\","
                            "\"response_payload_size\":73400320}",
                            &a),
              TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_METADATA);
    CHECK_INT(a.payload_size, 73400320);
    CHECK_INT(classify_body(
                  NULL, "{\"status\":\"complete_metadata\",\"response_payload_size\":null}", &a),
              TINKER_OK);
    CHECK_INT(a.payload_size, 0);
    CHECK_INT(classify_body(NULL, "{\"status\":\"pending\",\"request_id\":\"1\"}", &a), TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_PENDING);
    CHECK_INT(classify_body(NULL, "{\"path\":\"tinker://x\",\"type\":\"save_weights\"}", &a),
              TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_JSON);
    CHECK_INT(classify_body(NULL, "{}", &a), TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_JSON);
}

static void test_failed(void)
{
    struct wire_future_answer a;
    CHECK_INT(classify_body(NULL, "{\"error\":\"too \\u00e9 long\",\"category\":\"user\"}", &a),
              TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_FAILED);
    CHECK_STR(a.error, "too \xc3\xa9 long");
    CHECK_INT(a.category, TINKER_CATEGORY_USER);
    CHECK_INT(classify_body(NULL, "{\"error\":{\"a\":1},\"category\":\"User\"}", &a), TINKER_OK);
    CHECK_STR(a.error, "{\"a\":1}");
    CHECK_INT(a.category, TINKER_CATEGORY_UNKNOWN);
    /* the key decides, whatever its value */
    CHECK_INT(classify_body(NULL, "{\"error\":null,\"category\":\"server\"}", &a), TINKER_OK);
    CHECK_INT(a.state, WIRE_FUTURE_FAILED);
    CHECK_STR(a.error, "null");
    CHECK_INT(a.category, TINKER_CATEGORY_SERVER);
}

static void test_malformed(void)
{
    static const char *const bodies[] = {
        "", "[]", "not json", "{\"a\":NaN}", "{\"a\":1} x", "null", "{\"a\":\"\xff\"}"
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct wire_future_answer a;
        CHECK_INT(classify_body("application/json", bodies[i], &a), TINKER_EPROTOCOL);
        CHECK(strncmp(err.message, "retrieve_future: ", 17) == 0);
    }
}

static void test_queue_state_of_408(void)
{
    struct wire_future_answer a;
    const char *body = "{\"detail\":\"wait\",\"queue_state\":\"paused_rate_limit\"}";
    CHECK(wire_read_queue_state(body, strlen(body), &arena, &a));
    CHECK_INT(a.queue_state, WIRE_QUEUE_PAUSED_RATE_LIMIT);
    CHECK(!wire_read_queue_state("busy", 4, &arena, &a));
    CHECK_INT(a.queue_state, WIRE_QUEUE_UNKNOWN);
    CHECK_STR(wire_queue_state_name(WIRE_QUEUE_ACTIVE), "active");
    CHECK(wire_queue_state_name(WIRE_QUEUE_UNKNOWN) == NULL);
    CHECK_INT(wire_queue_state_parse(NULL), WIRE_QUEUE_UNKNOWN);
    CHECK_STR(wire_category_name(TINKER_CATEGORY_SERVER), "server");
    CHECK_STR(wire_category_name(99), "unknown");
}

static const char *error_text(int status, const char *body)
{
    static char out[64];
    wire_error_text(status, body, strlen(body), out, sizeof out);
    return out;
}

static void test_error_text(void)
{
    CHECK_STR(error_text(404, "{\"detail\":\"Model not found\"}"),
              "Error code: 404 - Model not found");
    CHECK_STR(error_text(400, "{\"message\":\"m\",\"error\":\"e\"}"), "Error code: 400 - e");
    CHECK_STR(error_text(422, "{\"detail\":[1]}"), "Error code: 422 - {\"detail\":[1]}");
    CHECK_STR(error_text(503, " upstream\n reset \r\n"), "Error code: 503 - upstream  reset");
    CHECK_STR(error_text(500, ""), "Error code: 500");
    CHECK_STR(error_text(500, "  \n"), "Error code: 500");
    CHECK_STR(error_text(500, "\"just text\""), "Error code: 500 - just text");
    CHECK_STR(error_text(500, "{\"detail\":"), "Error code: 500 - {\"detail\":");
    /* cut at a character, not inside one */
    const char *cut =
        error_text(500, "0123456789012345678901234567890123456789012\xe2\x82\xac\xe2\x82\xac");
    CHECK_STR(cut, "Error code: 500 - 0123456789012345678901234567890123456789012");
    char tiny[8];
    wire_error_text(500, "x", 1, tiny, sizeof tiny);
    CHECK_STR(tiny, "Error c");
}

int main(void)
{
    arena_init(&arena, SIZE_MAX);
    RUN(test_protobuf_by_type);
    RUN(test_pending);
    RUN(test_order);
    RUN(test_failed);
    RUN(test_malformed);
    RUN(test_queue_state_of_408);
    RUN(test_error_text);
    arena_clear(&arena);
    return tap_done();
}
