/* What newer clients ask for: copies, external weights, search, ends of sessions, tools. */
#include <sqlite3.h>

#include "server/harness.h"

#define RUNS "/api/v1/training_runs/"

static struct server *s;
static char session[64], model[96];

static void begin_surface(void)
{
    s = start_server();
    REQUIRE(s);
    make_session(s, session);
    make_model(s, session, 0, model);
}

static void save_as(const char *route, const char *name, int seq)
{
    struct reply r = result_of(
        s, post(s, route, "{\"model_id\":\"%s\",\"path\":\"%s\",\"seq_id\":%d}", model, name, seq));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
}

static struct reply of_checkpoint(const char *method, const char *run, const char *rest)
{
    char path[300];
    snprintf(path, sizeof(path), RUNS "%s/checkpoints/%s", run, rest);
    struct ask a = { .method = method, .path = path };
    return send_ask(s, &a);
}

static size_t checkpoints_listed(void)
{
    struct reply r = send_get(s, "/api/v1/checkpoints");
    size_t n = 0;
    for (const char *p = r.body; (p = strstr(p, "\"tinker_path\"")) != NULL; p++)
        n++;
    reply_clear(&r);
    return n;
}

static void test_a_copy_shares_files_and_outlives_its_source(void)
{
    begin_surface();
    save_as("/api/v1/save_weights", "a", 1);
    struct reply r = post(s, "/api/v1/copy_weights",
                          "{\"source_path\":\"tinker://%s/weights/a\","
                          "\"destination_project_id\":\"p\",\"ttl_seconds\":3600}",
                          model);
    CHECK_STATUS(r, 200);
    char copy[200], run[128];
    snprintf(copy, sizeof(copy), "%s", find_member(&r, "tinker_path"));
    reply_clear(&r);
    CHECK(strncmp(copy, "tinker://", 9) == 0 && strstr(copy, ":train:0/weights/a"));
    snprintf(run, sizeof(run), "%.*s", (int)strcspn(copy + 9, "/"), copy + 9);
    CHECK(strcmp(run, model) != 0);
    CHECK_INT(checkpoints_listed(), 2);
    CHECK_INT(weights_on_disk(), 1);

    r = of_checkpoint("DELETE", model, "weights/a");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/load_weights",
                          "{\"session_id\":\"%s\",\"model_seq_id\":5,\"path\":\"%s\","
                          "\"optimizer\":true}",
                          session, copy));
    CHECK(strstr(r.body, ":train:5") && !strstr(r.body, "\"error\""));
    reply_clear(&r);
    r = post(s, "/api/v1/optim_step",
             "{\"model_id\":\"%s\",\"seq_id\":1,\"adam_params\":{\"learning_rate\":1}}", run);
    CHECK_STATUS(r, 404); /* a copy cannot be trained */
    reply_clear(&r);
    r = of_checkpoint("DELETE", run, "weights/a");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    r = post(s, "/api/v1/copy_weights", "{\"source_path\":\"%s\",\"destination_project_id\":\"p\"}",
             copy);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    server_close(s);
}

static void test_a_copy_needs_one_place_to_go(void)
{
    static const char *const bad[] = {
        "{\"source_path\":\"tinker://x/weights/a\"}",
        "{\"source_path\":\"tinker://x/weights/a\",\"destination_project_id\":\"p\","
        "\"session_id\":\"s\",\"model_seq_id\":1}",
        "{\"source_path\":\"tinker://x/weights/a\",\"destination_project_id\":\"p\","
        "\"ttl_seconds\":0}",
        "{\"source_path\":\"nonsense\",\"destination_project_id\":\"p\"}",
    };
    begin_surface();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct reply r = post(s, "/api/v1/copy_weights", "%s", bad[i]);
        CHECK_STATUS(r, 400);
        reply_clear(&r);
    }
    server_close(s);
}

static void test_external_weights_have_a_link_per_file(void)
{
    begin_surface();
    save_as("/api/v1/save_weights_external", "e", 1);
    struct reply r = of_checkpoint("GET", model, "external_weights/e/external_weights_urls");
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"expires\":\"") && strstr(r.body, "/file/"));
    CHECK(!strstr(r.body, "checkpoint_complete"));
    reply_clear(&r);
    r = send_get(s, "/file/0123/adapter_config.json");
    CHECK_STATUS(r, 403);
    reply_clear(&r);
    r = of_checkpoint("GET", model, "weights/e/external_weights_urls");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/save_weights_external",
                          "{\"model_id\":\"%s\",\"path\":\"f\",\"seq_id\":2,"
                          "\"age_encryption_recipients\":[\"age1x\"]}",
                          model));
    CHECK(strstr(r.body, "does not encrypt"));
    reply_clear(&r);
    r = send_get(s, "/v1/models");
    CHECK(!strstr(r.body, "external_weights"));
    reply_clear(&r);
    r = of_checkpoint("DELETE", model, "external_weights/e");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    server_close(s);
}

/* The ids of a search result, as letters of `names` in order. */
static void check_found(const char *query, const char *const *ids, const char *want)
{
    char found[16] = "";
    struct reply r = post(s, "/api/v1/sessions/search", "%s", query);
    CHECK_STATUS(r, 200);
    for (const char *p = r.body; (p = strstr(p, "\"session_id\":\"")) != NULL; p++)
        for (size_t i = 0; i < 3; i++)
            if (strncmp(p + 14, ids[i], 36) == 0)
                found[strlen(found)] = (char)('a' + i);
    CHECK_STR(found, want);
    reply_clear(&r);
}

static void test_sessions_are_found(void)
{
    char ids[3][64];
    const char *list[3] = { ids[0], ids[1], ids[2] };
    s = start_server();
    REQUIRE(s);
    for (int i = 0; i < 3; i++) {
        struct reply r = post(s, "/api/v1/create_session",
                              "{\"tags\":[],\"sdk_version\":\"0.36.0\",\"user_metadata\":"
                              "{\"i\":\"%d\"},\"project_id\":\"p%d\",\"display_name\":\"Run %d\"}",
                              i, i % 2, i);
        snprintf(ids[i], sizeof(ids[i]), "%s", find_member(&r, "session_id"));
        reply_clear(&r);
    }
    char path[128];
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/finish", ids[1]);
    for (int i = 0; i < 2; i++) { /* the first reason stays */
        struct reply r = post(s, path, "{\"reason\":{\"type\":\"%s\"},\"detail\":\"d\"}",
                              i ? "success" : "errored");
        CHECK_STATUS(r, 204);
        reply_clear(&r);
    }
    check_found("{}", list, "cba");
    check_found("{\"limit\":2}", list, "cb");
    check_found("{\"user_metadata\":{\"i\":\"1\"}}", list, "b");
    check_found("{\"display_name\":\"2 rUN\"}", list, "c");
    check_found("{\"project_ids\":[\"p0\"]}", list, "ca");
    check_found("{\"statuses\":[{\"type\":\"active\"}]}", list, "ca");
    check_found("{\"statuses\":[{\"type\":\"client_finished\",\"reasons\":[\"errored\"]}]}", list,
                "b");
    check_found("{\"statuses\":[{\"type\":\"client_finished\",\"reasons\":[\"success\"]}]}", list,
                "");
    check_found("{\"owner\":{\"type\":\"user\",\"owner_urns\":[\"urn:else\"]}}", list, "");
    struct reply r = post(s, "/api/v1/sessions/search", "{\"limit\":201}");
    CHECK_STATUS(r, 422);
    reply_clear(&r);
    server_close(s);
}

static void test_metadata_that_cannot_be_told_hides_nothing(void)
{
    s = start_server();
    REQUIRE(s);
    struct reply r =
        post(s, "/api/v1/create_session",
             "{\"tags\":[],\"sdk_version\":\"0.36.0\",\"user_metadata\":{\"\\u0000\":1}}");
    char id[64], run[128], path[200];
    const char *list[3] = { id, "", "" };
    snprintf(id, sizeof(id), "%s", find_member(&r, "session_id"));
    reply_clear(&r);
    r = post(s, "/api/v1/create_model",
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"test/model\","
             "\"lora_config\":{\"rank\":8},\"user_metadata\":{\"\\u0000\":1}}",
             id);
    snprintf(run, sizeof(run), "%s", find_member(&r, "model_id"));
    reply_clear(&r);
    r = send_get(s, "/api/v1/training_runs");
    CHECK_STATUS(r, 200);
    CHECK_STR(find_member(&r, "training_run_id"), run);
    reply_clear(&r);
    snprintf(path, sizeof(path), "/api/v1/sessions/%s", id);
    r = send_get(s, path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    check_found("{}", list, "a");
    server_close(s);
}

/* As version 3 had it. */
#define OLD_TABLES                                                   \
    "DROP INDEX samplers_dir; ALTER TABLE samplers DROP COLUMN dir;" \
    "ALTER TABLE models DROP COLUMN optimizer;"                      \
    "ALTER TABLE checkpoints DROP COLUMN optimizer;"

static void test_old_files_are_brought_up_to_date(void)
{
    static const char back[] = OLD_TABLES "ALTER TABLE sessions DROP COLUMN display_name;"
                                          "ALTER TABLE sessions DROP COLUMN finish_reason;"
                                          "ALTER TABLE sessions DROP COLUMN finish_detail;"
                                          "ALTER TABLE checkpoints DROP COLUMN user_metadata;"
                                          "UPDATE settings SET value='1' WHERE name='schema';";
    char path[400];
    begin_surface();
    save_as("/api/v1/save_weights", "a", 1);
    server_close(s);
    sqlite3 *db = NULL;
    snprintf(path, sizeof(path), "%s/tinker.db", test_data);
    CHECK(access(path, F_OK) == 0);
    CHECK(sqlite3_open(path, &db) == SQLITE_OK);
    CHECK(sqlite3_exec(db, back, NULL, NULL, NULL) == SQLITE_OK);
    sqlite3_close(db);
    s = start_with(NULL);
    REQUIRE(s);
    struct reply r = send_get(s, "/api/v1/checkpoints");
    CHECK(strstr(r.body, "/weights/a"));
    reply_clear(&r);
    make_session(s, session);
    server_close(s);
}

/* Requests of a release that hashed them another way: the number and the kind are enough. */
static void test_old_hashes_are_forgotten(void)
{
    static const char back[] = OLD_TABLES "UPDATE requests SET hash=4711;"
                                          "UPDATE settings SET value='2' WHERE name='schema';";
    char path[400];
    begin_surface();
    save_as("/api/v1/save_weights", "a", 1);
    server_close(s);
    sqlite3 *db = NULL;
    snprintf(path, sizeof(path), "%s/tinker.db", test_data);
    CHECK(sqlite3_open(path, &db) == SQLITE_OK);
    CHECK(sqlite3_exec(db, back, NULL, NULL, NULL) == SQLITE_OK);
    sqlite3_close(db);
    s = start_with(NULL);
    REQUIRE(s);
    struct reply r =
        post(s, "/api/v1/save_weights", "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = post(s, "/api/v1/save_weights_for_sampler",
             "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    server_close(s);
}

static struct reply sample_with(const char *options)
{
    return post(s, "/api/v1/asample",
                "{\"prompt\":{\"chunks\":[{\"tokens\":[1,2]}]},\"sampling_params\":{\"max_tokens\":"
                "2},\"base_model\":\"test/model\",%s}",
                options);
}

static void test_rivals_of_sampled_tokens_are_told(void)
{
    static const char *const bad[] = { "\"topk_sample_logprobs\":-1",
                                       "\"prompt_logprobs_last_n\":1",
                                       "\"prompt_logprobs\":true,\"prompt_logprobs_last_n\":0" };
    begin_surface();
    struct reply r = result_of(s, sample_with("\"topk_sample_logprobs\":1"));
    CHECK(strstr(r.body, "\"topk_logprobs\":[[["));
    reply_clear(&r);
    r = result_of(s, sample_with("\"topk_sample_logprobs\":0"));
    CHECK(strstr(r.body, "\"tokens\"") && !strstr(r.body, "topk_logprobs"));
    reply_clear(&r);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        r = sample_with(bad[i]);
        CHECK_STATUS(r, 400);
        reply_clear(&r);
    }
    r = post(s, "/api/v1/stream_sample",
             "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{},"
             "\"base_model\":\"test/model\",\"topk_sample_logprobs\":1}");
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
}

static void check_refused(const char *option, int status, const char *why)
{
    struct reply r = sample_with(option);
    CHECK_STATUS(r, status);
    CHECK(strstr(r.body, why));
    reply_clear(&r);
}

static void test_other_tokens_at_the_prompt_are_told(void)
{
    begin_surface();
    struct reply r = result_of(
        s, sample_with(
               "\"target_prompt_logprobs\":{\"data\":[3],\"dtype\":\"int64\",\"shape\":[1,1]}"));
    CHECK(strstr(r.body, "\"target_prompt_logprobs\":{\"data\":[-3.5],\"dtype\":\"float32\","
                         "\"shape\":[1,1]}"));
    CHECK(!strstr(r.body, "prompt_alt_tokens"));
    reply_clear(&r);
    r = result_of(s, sample_with("\"prompt_alt_tokens_k\":1"));
    CHECK(strstr(r.body, "\"prompt_alt_tokens\":{\"tokens\":{\"data\":[3],\"dtype\":\"int64\","
                         "\"shape\":[1,1]},\"logprobs\":{\"data\":[-3.5],"));
    CHECK(!strstr(r.body, "target_prompt_logprobs"));
    reply_clear(&r);
    check_refused("\"prompt_alt_tokens_k\":-1", 400, "must not be negative");
    check_refused("\"target_prompt_logprobs\":{\"data\":[1]}", 422, "target_prompt_logprobs");
    check_refused("\"target_prompt_logprobs\":{\"data\":[1],\"dtype\":\"int64\",\"shape\":[1,2]}",
                  422, "target_prompt_logprobs");
    r = post(s, "/api/v1/stream_sample",
             "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{},"
             "\"base_model\":\"test/model\",\"prompt_alt_tokens_k\":1}");
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "prompt_alt_tokens_k is not supported in streams"));
    reply_clear(&r);
    server_close(s);
}

static int join_session(const char *id)
{
    struct reply r =
        post(s, "/api/v1/join_sampling_session", "{\"sampling_session_id\":\"%s\"}", id);
    const char *at = strstr(r.body, "\"client_counter\":");
    int number = at ? (int)strtol(at + 17, NULL, 10) : -r.status;
    reply_clear(&r);
    return number;
}

static void test_copies_of_a_client_get_numbers_of_their_own(void)
{
    char id[2][96];
    struct reply r;
    begin_surface();
    for (int i = 0; i < 2; i++) {
        snprintf(id[i], sizeof(id[i]), "%s:sample:%d", session, i);
        r = post(s, "/api/v1/create_sampling_session",
                 "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,\"base_model\":"
                 "\"test/model\"}",
                 session, i);
        reply_clear(&r);
    }
    CHECK_INT(join_session(id[0]), 1);
    CHECK_INT(join_session(id[0]), 2);
    CHECK_INT(join_session(id[1]), 1);
    r = post(s, "/api/v1/create_sampling_session",
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":"
             "\"test/model\"}",
             session); /* a retry */
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_INT(join_session(id[0]), 3);
    CHECK_INT(join_session("nobody"), -404);
    r = post(s, "/api/v1/client/config", "{\"sdk_version\":\"0.36.0\"}");
    CHECK(strstr(r.body, "\"sample_join_sampling_session\":true"));
    CHECK(strstr(r.body, "\"sample_use_retrieve_futures\":true") != NULL);
    reply_clear(&r);
    server_close(s);
}

static void test_options_that_are_not_there_are_refused(void)
{
    begin_surface();
    struct reply r = sample_with("\"record_stability_info\":true");
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "not supported"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":7,\"base_model\":\"test/model\","
                          "\"lora_config\":{\"rank\":8},\"optimizer_config\":{\"type\":\"lion\","
                          "\"version\":1}}",
                          session));
    CHECK(strstr(r.body, "optimizer 'lion' is not supported here (adamw, dimuon)"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":9,\"base_model\":\"test/model\","
                          "\"lora_config\":{\"rank\":8},\"optimizer_config\":{\"type\":\"dimuon\","
                          "\"version\":2}}",
                          session));
    CHECK(strstr(r.body, "version 2 is not supported"));
    reply_clear(&r);
    save_as("/api/v1/save_weights", "x", 1);
    r = result_of(
        s, post(s, "/api/v1/load_weights",
                "{\"session_id\":\"%s\",\"model_seq_id\":8,\"path\":\"tinker://%s/weights/x\","
                "\"optimizer\":false,\"optimizer_config\":{\"type\":\"lion\"}}",
                session, model));
    CHECK(strstr(r.body, "optimizer 'lion' is not supported here (adamw, dimuon)"));
    reply_clear(&r);
    r = result_of(
        s, post(s, "/api/v1/load_weights",
                "{\"session_id\":\"%s\",\"model_seq_id\":10,\"path\":\"tinker://%s/weights/x\","
                "\"optimizer\":true,\"optimizer_config\":{\"type\":\"dimuon\"}}",
                session, model));
    CHECK(strstr(r.body, "cannot override the optimizer"));
    reply_clear(&r);
    server_close(s);
}

/* A model remembers the optimizer that it was made with, over a restart, too; a checkpoint with
 * its state is not for a model of another. */
static void test_a_model_keeps_its_optimizer(void)
{
    static const char step[] = "{\"model_id\":\"%s\",\"seq_id\":%d,%s}";
    static const char dimuon[] = "\"optimizer_params\":{\"type\":\"dimuon\",\"learning_rate\":1}";
    char run[96];
    begin_surface();
    struct reply r =
        result_of(s, post(s, "/api/v1/create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":5,\"base_model\":\"test/model\","
                          "\"lora_config\":{\"rank\":8},\"optimizer_config\":{\"type\":\"dimuon\","
                          "\"version\":1}}",
                          session));
    snprintf(run, sizeof(run), "%s:train:5", session);
    CHECK_STR(find_member(&r, "model_id"), run);
    reply_clear(&r);
    server_close(s); /* before anything of it was saved */
    s = start_with(NULL);
    REQUIRE(s);
    r = result_of(s, post(s, "/api/v1/optim_step", step, run, 1, dimuon));
    CHECK(strstr(r.body, "\"step:max\":1"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/optim_step", step, model, 1, dimuon));
    CHECK(strstr(r.body, "is not the adapter's"));
    reply_clear(&r);
    static const char *const wrong[] = { "\"x\":1", "\"optimizer_params\":{\"learning_rate\":1}",
                                         "\"optimizer_params\":{\"type\":\"dimuon\",\"a\":[]}" };
    static const char *const why[] = { "adam_params: missing", "optimizer_params.type: missing",
                                       "optimizer_params.a: expected a number or a text" };
    for (int i = 0; i < 3; i++) {
        r = result_of(s, post(s, "/api/v1/optim_step", step, run, i + 2, wrong[i]));
        CHECK(strstr(r.body, why[i]));
        reply_clear(&r);
    }
    r = post(s, "/api/v1/get_info", "{\"model_id\":\"%s\"}", run);
    CHECK(strstr(r.body, "\"optimizer_config\":{\"type\":\"dimuon\"}"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/save_weights",
                          "{\"model_id\":\"%s\",\"seq_id\":5,\"path\":\"d\"}", run));
    CHECK(strstr(r.body, "weights/d"));
    reply_clear(&r);
    r = post(s, "/api/v1/weights_info", "{\"tinker_path\":\"tinker://%s/weights/d\"}", run);
    CHECK(strstr(r.body, "\"optimizer_config\":{\"type\":\"dimuon\"}"));
    reply_clear(&r);
    static const char load[] =
        "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"path\":\"tinker://%s/weights/d\","
        "\"optimizer\":%s}";
    r = result_of(s, post(s, "/api/v1/load_weights", load, session, 11, run, "true"));
    reply_clear(&r);
    r = post(s, "/api/v1/get_info", "{\"model_id\":\"%s:train:11\"}", session);
    CHECK(strstr(r.body, "dimuon"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/load_weights", load, session, 12, run, "false"));
    reply_clear(&r);
    r = post(s, "/api/v1/get_info", "{\"model_id\":\"%s:train:12\"}", session);
    CHECK(!strstr(r.body, "dimuon"));
    reply_clear(&r);
    r = result_of(s,
                  post(s, "/api/v1/create_model",
                       "{\"session_id\":\"%s\",\"model_seq_id\":13,\"base_model\":\"test/model\","
                       "\"lora_config\":{\"rank\":8}}",
                       session));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/load_weights",
                          "{\"model_id\":\"%s:train:13\",\"seq_id\":1,\"path\":"
                          "\"tinker://%s/weights/d\",\"optimizer\":true}",
                          session, run));
    CHECK(
        strstr(r.body, "the checkpoint has the state of dimuon, the model is trained with adamw"));
    reply_clear(&r);
    server_close(s);
}

/* The names of the checkpoints of a search, in order; *cursor: the text of the next cursor. */
static void check_checkpoints(const char *query, const char *want, char *cursor, size_t size)
{
    char found[64] = "";
    struct reply r = post(s, "/api/v1/checkpoints/search", "%s", query);
    CHECK_STATUS(r, 200);
    for (const char *p = r.body; (p = strstr(p, "\"checkpoint_id\":\"")) != NULL; p++) {
        const char *name = strchr(p + 17, '/') + 1;
        snprintf(found + strlen(found), sizeof(found) - strlen(found), "%.*s ",
                 (int)strcspn(name, "\""), name);
    }
    CHECK_STR(found, want);
    const char *next = strstr(r.body, "\"next_cursor\":");
    if (next && cursor)
        snprintf(cursor, size, "%.*s", (int)strlen(next + 14) - 1, next + 14);
    reply_clear(&r);
}

static void test_checkpoints_are_found(void)
{
    char query[600], cursor[400];
    begin_surface();
    save_as("/api/v1/save_weights", "a", 1);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights_for_sampler",
                                       "{\"model_id\":\"%s\",\"path\":\"b\",\"seq_id\":2,"
                                       "\"user_metadata\":{\"k\":\"v\",\"l\":\"w\"}}",
                                       model));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    save_as("/api/v1/save_weights_external", "c", 3);
    r = post(s, "/api/v1/copy_weights",
             "{\"source_path\":\"tinker://%s/weights/a\",\"destination_project_id\":\"p\"}", model);
    CHECK_STATUS(r, 200);
    reply_clear(&r);

    check_checkpoints("{}", "a c b a ", NULL, 0);
    check_checkpoints("{\"checkpoint_type\":\"training\"}", "a a ", NULL, 0);
    check_checkpoints("{\"checkpoint_type\":\"external\"}", "c ", NULL, 0);
    check_checkpoints("{\"user_metadata\":{\"k\":\"v\"}}", "b ", NULL, 0);
    check_checkpoints("{\"user_metadata\":{\"k\":\"v\",\"l\":\"x\"}}", "", NULL, 0);
    check_checkpoints("{\"base_models\":[\"test/model\",\"x\"]}", "a c b a ", NULL, 0);
    check_checkpoints("{\"base_models\":[\"x\"]}", "", NULL, 0);
    check_checkpoints("{\"project_ids\":[\"p\"]}", "a ", NULL, 0);
    check_checkpoints("{\"owner\":{\"type\":\"user\",\"owner_urns\":[\"nobody\"]}}", "", NULL, 0);
    /* Page by page, and the checkpoint that a cursor names is deleted between two pages. */
    check_checkpoints("{\"limit\":2}", "a c ", cursor, sizeof(cursor));
    r = of_checkpoint("DELETE", model, "external_weights/c");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    snprintf(query, sizeof(query), "{\"limit\":2,\"cursor\":%s}", cursor);
    check_checkpoints(query, "b a ", cursor, sizeof(cursor));
    CHECK_STR(cursor, "null");
    r = post(s, "/api/v1/checkpoints/search", "{\"limit\":201}");
    CHECK_STATUS(r, 422);
    reply_clear(&r);
    r = send_get(s, "/api/v1/checkpoints");
    CHECK(strstr(r.body, "\"base_model\":\"test/model\""));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_copy_shares_files_and_outlives_its_source);
    RUN(test_a_copy_needs_one_place_to_go);
    RUN(test_external_weights_have_a_link_per_file);
    RUN(test_sessions_are_found);
    RUN(test_checkpoints_are_found);
    RUN(test_metadata_that_cannot_be_told_hides_nothing);
    RUN(test_rivals_of_sampled_tokens_are_told);
    RUN(test_other_tokens_at_the_prompt_are_told);
    RUN(test_copies_of_a_client_get_numbers_of_their_own);
    RUN(test_options_that_are_not_there_are_refused);
    RUN(test_a_model_keeps_its_optimizer);
    RUN(test_old_files_are_brought_up_to_date);
    RUN(test_old_hashes_are_forgotten);
    harness_clear();
    return tap_done();
}
