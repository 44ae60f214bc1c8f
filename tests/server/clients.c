/* What clients of other versions and makes rely on. */
#include "server/harness.h"

static struct reply get_as_sdk(struct server *s, const char *path, const char *sdk)
{
    struct ask a = { .method = "GET", .path = path, .sdk = sdk };
    return send_ask(s, &a);
}

/* An SDK that does not know a kind of checkpoint fails on the whole list. */
static void test_old_sdks_see_the_kinds_they_know(void)
{
    static const struct {
        const char *sdk;
        bool external;
    } cases[] = { { "0.25.0", false }, { "0.18.1", false }, { "0.36.0", true }, { NULL, true } };
    char session[64], model[96], path[200];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    static const char *const saves[] = { "save_weights", "save_weights_external" };
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "/api/v1/%s", saves[i]);
        struct reply r = result_of(
            s, post(s, path, "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"a\"}", model, i + 1));
        CHECK(strstr(r.body, "weights/a"));
        reply_clear(&r);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints", model);
            struct reply r = get_as_sdk(s, k ? path : "/api/v1/checkpoints", cases[i].sdk);
            CHECK_STATUS(r, 200);
            CHECK(strstr(r.body, "/weights/a"));
            CHECK_INT(strstr(r.body, "external") != NULL, cases[i].external);
            reply_clear(&r);
        }
    server_close(s);
}

/* get_tokenizer() of the Python SDK loads what the base model is called; a directory has files of
 * a tokenizer even where we cannot read them ourselves. */
static void test_tokenizers_are_found(void)
{
    char session[64], model[96], file[400], path[200];
    snprintf(file, sizeof(file), "%s/tokenizer.model", test_model);
    CHECK_INT(os_write_file(file, "sentencepiece", 13, NULL), TINKER_OK);
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = post(s, "/api/v1/get_info", "{\"model_id\":\"%s\"}", model);
    CHECK_STR(find_member(&r, "tokenizer_id"), test_model);
    reply_clear(&r);
    r = post(s, "/api/v1/create_sampling_session",
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"test/model\"}",
             session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    snprintf(path, sizeof(path), "/api/v1/samplers/%s:sample:0", session);
    r = get_as_sdk(s, path, "0.25.0");
    CHECK_STR(find_member(&r, "base_model"), test_model);
    reply_clear(&r);
    r = get_as_sdk(s, path, NULL); /* ours asks for the tokenizer in another way */
    CHECK_STR(find_member(&r, "base_model"), "test/model");
    reply_clear(&r);
    /* What the SDK was told is a name that works. */
    r = post(s, "/api/v1/create_sampling_session",
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":1,\"base_model\":\"%s\"}", session,
             test_model);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
    unlink(file);
}

static void test_likeliest_prompt_tokens_come_with_their_own(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = result_of(
        s, post(s, "/api/v1/asample",
                "{\"base_model\":\"test/model\",\"prompt\":{\"chunks\":[{\"tokens\":[5,6]}]},"
                "\"sampling_params\":{\"max_tokens\":1},\"prompt_logprobs\":false,"
                "\"topk_prompt_logprobs\":2}"));
    CHECK(strstr(r.body, "\"prompt_logprobs\":["));
    reply_clear(&r);
    server_close(s);
}

static void other_model(struct server_options *o)
{
    static const struct server_model other[] = { { "other/model", test_model } };
    o->models = other;
}

/* The server comes back without the base model of a run that was active. */
static void test_a_base_that_is_not_served_now(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    server_close(s);
    s = start_with(other_model);
    REQUIRE(s);
    struct reply r = post(s, "/api/v1/create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"test/model\","
                          "\"lora_config\":{\"rank\":8}}",
                          session);
    CHECK_STATUS(r, 404);
    CHECK(strstr(r.body, "is not served here now"));
    reply_clear(&r);
    r = forward_backward(s, model, 1);
    CHECK_STATUS(r, 404);
    CHECK(strstr(r.body, "is not served here now"));
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL); /* with it everything goes on */
    REQUIRE(s);
    r = result_of(s, forward_backward(s, model, 1));
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    server_close(s);
}

static void local_paths(struct server_options *o)
{
    o->allow_local_paths = true;
}

/* Nobody will ever write to the FIFO: the engine thread must not wait for it. */
static void test_a_fifo_is_no_checkpoint(void)
{
    char session[64], model[96], dir[400], file[600];
    struct server *s = start_model(local_paths, session, model);
    REQUIRE(s);
    snprintf(dir, sizeof(dir), "%s/adapter", test_dir);
    snprintf(file, sizeof(file), "%s/adapter_model.safetensors", dir);
    mkdir(dir, 0700);
    CHECK(mkfifo(file, 0600) == 0);
    struct reply r = result_of(s, post(s, "/api/v1/load_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"file://%s\","
                                       "\"optimizer\":false}",
                                       model, dir));
    CHECK(strstr(find_member(&r, "error"), "not a regular file"));
    reply_clear(&r);
    r = result_of(s, forward_backward(s, model, 2));
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    server_close(s);
}

/* A message that tells what to do tells what can be done. */
static void test_messages_name_what_there_is(void)
{
    char session[64], model[96], path[100];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    static const char *const saves[] = { "save_weights", "save_weights_for_sampler",
                                         "save_weights_external" };
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof(path), "/api/v1/%s", saves[i / 2]);
        struct reply r = result_of(
            s, post(s, path, "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"a\"}", model, i + 1));
        if (i % 2) /* the second of each */
            CHECK(strstr(find_member(&r, "error"),
                         i == 1 ? "pass overwrite=true" : "choose another name"));
        reply_clear(&r);
    }
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_old_sdks_see_the_kinds_they_know);
    RUN(test_tokenizers_are_found);
    RUN(test_likeliest_prompt_tokens_come_with_their_own);
    RUN(test_a_base_that_is_not_served_now);
    RUN(test_a_fifo_is_no_checkpoint);
    RUN(test_messages_name_what_there_is);
    harness_clear();
    return tap_done();
}
