/* Events of a streamed sample: written as documented, read back, and refused when malformed. */
#include "wire/chunk.h"
#include "support/tap.h"

static void check_text(const struct wire_sample_chunk *c, const char *want)
{
    struct buf b;
    buf_init(&b, 4096);
    wire_put_chunk(&b, c);
    CHECK(buf_ok(&b));
    CHECK_STR(b.data, want);
    buf_clear(&b);
}

static void test_text(void)
{
    check_text(
        &(struct wire_sample_chunk){ .sequence = 1,
                                     .index = 3,
                                     .token = 17,
                                     .logprob = -0.25F,
                                     .text = " a\"",
                                     .n_text = 3 },
        "{\"index\":3,\"sequence\":1,\"token_id\":17,\"token\":\" a\\\"\",\"logprob\":-0.25}");
    check_text(&(struct wire_sample_chunk){ .token = 5, .logprob = NAN },
               "{\"index\":0,\"sequence\":0,\"token_id\":5,\"token\":\"\"}");
    check_text(&(struct wire_sample_chunk){ .kind = WIRE_CHUNK_FINISHED,
                                            .sequence = 2,
                                            .stop_reason = TINKER_STOP_LENGTH,
                                            .total = 9 },
               "{\"sequence\":2,\"finish_reason\":\"length\",\"total_tokens\":9}");
    check_text(&(struct wire_sample_chunk){ .kind = WIRE_CHUNK_FAILED, .text = "why", .n_text = 3 },
               "{\"error\":\"why\"}");
}

static tinker_status read_one(const char *json, struct wire_sample_chunk *out)
{
    struct arena a;
    tinker_error err;
    arena_init(&a, 1 << 16);
    tinker_status s = wire_read_chunk(json, strlen(json), &a, out, &err);
    if (out->text)
        out->text = out->n_text == 3 && memcmp(out->text, "why", 3) == 0 ? "why" : "other";
    arena_clear(&a);
    return s;
}

static void test_back(void)
{
    struct wire_sample_chunk c;
    CHECK_INT(
        read_one("{\"token_id\":7,\"logprob\":-1.5,\"sequence\":2,\"index\":4,\"new\":[1]}", &c),
        TINKER_OK);
    CHECK_INT(c.kind, WIRE_CHUNK_TOKEN);
    CHECK_INT(c.token, 7);
    CHECK_INT(c.sequence, 2);
    CHECK_INT(c.index, 4);
    CHECK_NEAR(c.logprob, -1.5, 0);
    CHECK_INT(
        read_one("{\"token_id\":7,\"finish_reason\":null,\"error\":null,\"logprob\":null}", &c),
        TINKER_OK);
    CHECK_INT(c.kind, WIRE_CHUNK_TOKEN);
    CHECK(isnan(c.logprob));
    CHECK_INT(read_one("{\"finish_reason\":\"stop\",\"total_tokens\":3}", &c), TINKER_OK);
    CHECK_INT(c.kind, WIRE_CHUNK_FINISHED);
    CHECK_INT(c.stop_reason, TINKER_STOP_STOP);
    CHECK_INT(read_one("{\"error\":\"why\",\"token\":\"x\"}", &c), TINKER_OK);
    CHECK_INT(c.kind, WIRE_CHUNK_FAILED);
    CHECK_STR(c.text, "why");
    CHECK_INT(read_one("{\"error\":{\"message\":\"x\"}}", &c), TINKER_OK);
    CHECK_INT(c.kind, WIRE_CHUNK_FAILED);
}

/* The likeliest tokens, written without unused cells and read as they are. */
static void test_rivals(void)
{
    static const int32_t tokens[] = { 17, 4, 0 };
    static const float logprobs[] = { -0.25F, -1.5F, -99999 };
    static const char text[] = "{\"index\":0,\"sequence\":0,\"token_id\":17,\"token\":\"\","
                               "\"logprob\":-0.25,\"topk_logprobs\":[[17,-0.25],[4,-1.5]]}";
    check_text(&(struct wire_sample_chunk){ .token = 17,
                                            .logprob = -0.25F,
                                            .topk_tokens = tokens,
                                            .topk_logprobs = logprobs,
                                            .topk = 3 },
               text);
    struct arena a;
    struct wire_sample_chunk c;
    tinker_error err;
    arena_init(&a, 1 << 16);
    CHECK_INT(wire_read_chunk(text, strlen(text), &a, &c, &err), TINKER_OK);
    CHECK_INT(c.topk, 2);
    REQUIRE(c.topk == 2);
    CHECK_INT(c.topk_tokens[1], 4);
    CHECK_NEAR(c.topk_logprobs[1], -1.5, 0);
    arena_clear(&a);
    CHECK_INT(read_one("{\"token_id\":7,\"topk_logprobs\":null}", &c), TINKER_OK);
    CHECK_INT(c.topk, 0);
    CHECK_INT(read_one("{\"token_id\":7,\"topk_logprobs\":[]}", &c), TINKER_OK);
    CHECK_INT(c.topk, 0);
}

static void test_refused(void)
{
    static const char *const bad[] = { "",
                                       "{}",
                                       "[]",
                                       "{\"token\":\"x\"}",
                                       "{\"token_id\":1.5}",
                                       "{\"token_id\":4294967296}",
                                       "{\"token_id\":1,\"sequence\":-1}",
                                       "{\"token_id\":1} x",
                                       "{\"token_id\":1,\"topk_logprobs\":3}",
                                       "{\"token_id\":1,\"topk_logprobs\":[3]}",
                                       "{\"token_id\":1,\"topk_logprobs\":[[3]]}",
                                       "{\"token_id\":1,\"topk_logprobs\":[[3,-1,2]]}",
                                       "{\"token_id\":1,\"topk_logprobs\":[[4294967296,-1]]}",
                                       "{\"token_id\":1,\"topk_logprobs\":[[1,-1]",
                                       "{\"finish_reason\":3}" };
    struct wire_sample_chunk c;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (read_one(bad[i], &c) != TINKER_EPROTOCOL)
            TAP_FAIL("accepted: %s", bad[i]);
}

int main(void)
{
    RUN(test_text);
    RUN(test_back);
    RUN(test_rivals);
    RUN(test_refused);
    return tap_done();
}
