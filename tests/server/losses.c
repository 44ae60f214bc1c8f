/* Custom losses that come as graphs: made once, refused by name, used by their id. */
#include "server/harness.h"

static struct server *s;
static char session[64], model[96];

#define NODE(op, name, target, args)                                                    \
    "{\"op\":\"" op "\",\"name\":\"" name "\",\"target\":\"" target "\",\"args\":" args \
    ",\"kwargs\":{}}"
/* 3 logprobs^2, and the logprobs as a metric */
#define NODES(square)                                                                              \
    NODE("placeholder", "logprobs", "logprobs", "[]")                                              \
    "," NODE("call_function", "square", square, "[{\"ref\":\"logprobs\"}]") "," NODE(              \
        "call_function", "mul", "operator.mul",                                                    \
        "[3,{\"ref\":\"square\"}]") "," NODE("call_method", "sum_1", "sum",                        \
                                             "[{\"ref\":\"mul\"}]") "," NODE("call_method",        \
                                                                             "mean", "mean",       \
                                                                             "[{\"ref\":"          \
                                                                             "\"logprobs\""        \
                                                                             "}]") "," NODE("outp" \
                                                                                            "ut",  \
                                                                                            "outp" \
                                                                                            "ut",  \
                                                                                            "outp" \
                                                                                            "ut",  \
                                                                                            "[{"   \
                                                                                            "\"tu" \
                                                                                            "ple"  \
                                                                                            "\":[" \
                                                                                            "{\"r" \
                                                                                            "ef\"" \
                                                                                            ":\"s" \
                                                                                            "um_"  \
                                                                                            "1\"}" \
                                                                                            ",{"   \
                                                                                            "\"di" \
                                                                                            "ct\"" \
                                                                                            ":{"   \
                                                                                            "\"cu" \
                                                                                            "stom" \
                                                                                            "/l:"  \
                                                                                            "mean" \
                                                                                            "\":{" \
                                                                                            "\"re" \
                                                                                            "f\":" \
                                                                                            "\"me" \
                                                                                            "an\"" \
                                                                                            "}}}]" \
                                                                                            "}]")

static struct reply submit_loss(const char *in, int seq, const char *nodes)
{
    return (post(s, "/api/v1/create_custom_loss",
                 "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"f\","
                 "\"inputs\":[{\"name\":\"logprobs\",\"rank\":1}],\"graph\":"
                 "{\"format\":1,\"nodes\":[%s]},\"type\":\"create_custom_loss\"}",
                 in, seq, nodes));
}

static struct reply create_loss(const char *in, int seq, const char *nodes)
{
    return result_of(s, submit_loss(in, seq, nodes));
}

static void begin_losses(void)
{
    s = start_server();
    REQUIRE(s);
    make_session(s, session);
    make_model(s, session, 0, model);
}

static struct reply run_loss(int seq, const char *config)
{
    return result_of(
        s, post(s, "/api/v1/forward_backward",
                "{\"model_id\":\"%s\",\"seq_id\":%d,\"forward_backward_input\":{\"data\":[{"
                "\"model_input\":{\"chunks\":[{\"tokens\":[1],\"type\":\"encoded_text\"}]},"
                "\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[2],\"dtype\":\"int64\","
                "\"shape\":[1]}}}],\"loss_fn\":\"custom\",\"loss_fn_config_texts\":%s}}",
                model, seq, config));
}

static void test_a_loss_is_made_once_and_used_by_its_id(void)
{
    char config[200], id[100];
    begin_losses();
    for (int i = 0; i < 2; i++) { /* the second is a retry */
        struct reply r = create_loss(session, 0, NODES("torch.square"));
        CHECK_STATUS(r, 200);
        snprintf(config, sizeof(config), "%s:loss:0", session);
        CHECK_STR(find_member(&r, "loss_id"), config);
        reply_clear(&r);
    }
    struct reply r = submit_loss(session, 0, NODES("torch.abs"));
    CHECK_STATUS(r, 409);
    reply_clear(&r);
    snprintf(config, sizeof(config), "{\"loss_id\":\"%s:loss:0\"}", session);
    r = run_loss(1, config); /* 3 * 0.25, with a logprob of -0.5 */
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"loss:sum\":0.75") && strstr(r.body, "\"custom/l:mean\":-0.5"));
    reply_clear(&r);
    server_close(s);
    /* It is still there after a restart, for a poll, too. */
    s = start_with(NULL);
    REQUIRE(s);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:loss:0\"}", session);
    CHECK_STATUS(r, 200);
    snprintf(id, sizeof(id), "%s:loss:0", session);
    CHECK_STR(find_member(&r, "loss_id"), id);
    reply_clear(&r);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:loss:7\"}", session);
    CHECK_STATUS(r, 410);
    reply_clear(&r);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"nobody:loss:0\"}");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = run_loss(2, config);
    CHECK(strstr(r.body, "\"loss:sum\":0.75") != NULL);
    reply_clear(&r);
    server_close(s);
}

static void test_what_is_wrong_is_told_where_it_is_asked_for(void)
{
    static const char *const configs[] = { "{}", "{\"loss_id\":\"x\"}",
                                           "{\"loss_id\":\"x\",\"y\":\"1\"}",
                                           "{\"loss_id\":\":loss:0\"}" };
    begin_losses();
    struct reply r = create_loss(session, 1, NODES("torch.sort"));
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "node square: torch.sort is not supported here (supported:"));
    CHECK(strstr(r.body, "\"category\":\"user\""));
    reply_clear(&r);
    r = submit_loss(session, 256, NODES("torch.square"));
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    r = submit_loss("nobody", 0, NODES("torch.square"));
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        r = run_loss((int)i + 1, configs[i]);
        CHECK(strstr(r.body, "\"category\":\"user\"") && strstr(r.body, "loss"));
        reply_clear(&r);
    }
    server_close(s);
}

static void test_a_loss_is_its_sessions(void)
{
    char other[64], config[200];
    begin_losses();
    make_session(s, other);
    struct reply r = create_loss(other, 0, NODES("torch.square"));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    snprintf(config, sizeof(config), "{\"loss_id\":\"%s:loss:0\"}", other);
    r = run_loss(1, config);
    CHECK(strstr(r.body, "this session has no custom loss"));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_loss_is_made_once_and_used_by_its_id);
    RUN(test_what_is_wrong_is_told_where_it_is_asked_for);
    RUN(test_a_loss_is_its_sessions);
    harness_clear();
    return tap_done();
}
