/* Training: ids, turns, chunks, results, checkpoints, and models made from them. */
#include "client/io/runtime.h"
#include "client/training/training_client.h"
#include "client/io/send_order.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define PASS API "forward_backward"
#define STEP API "optim_step"

static tinker_training *open_training(struct world *w, const char *config)
{
    world_open(w, config, NULL);
    return world_training(w);
}

/* What is known about a run goes out, what is not stays as it is. */
static void test_describing_a_run(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    char path[200];
    snprintf(path, sizeof(path), API "training_runs/%s/note", tinker_training_model_id(t));
    say(&w, path, 200, "{}", -1);
    tinker_run_description d = TINKER_RUN_DESCRIPTION_INIT;
    d.planned_steps = -1;
    CHECK(!tinker_training_describe(t, &d, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK_STR(w.err.message, "planned_steps is -1, expected at least 0");
    static const char *const bodies[] = { "{}", "{\"name\":\"first\",\"planned_steps\":7}" };
    for (size_t i = 0; i < 2; i++) {
        d.planned_steps = i ? 7 : 0;
        d.name = i ? "first" : NULL;
        tinker_future *f = tinker_training_describe(t, &d, &w.err);
        REQUIRE(f);
        CHECK_INT(world_finish(&w, f, 400000), TINKER_OK);
        REQUIRE(fake_count(w.server, path) == i + 1);
        CHECK_STR(fake_get(w.server, path, i)->body, bodies[i]);
        tinker_future_free(f);
    }
    tinker_training_free(t);
    world_close(&w);
}

static void finish_free(struct world *w, tinker_future *f, tinker_status want)
{
    CHECK_INT(world_finish(w, f, 400000), want);
    tinker_future_free(f);
}

static void test_create_lora(void) /* R-088 R-187 */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    tinker_named_string meta = { "who", "é 漢 🙂" };
    o.user_metadata = &meta;
    o.n_user_metadata = 1;
    world_open(&w, NULL, &o);
    tinker_lora none = TINKER_LORA_INIT;
    none.train_attn = none.train_mlp = none.train_unembed = 0;
    CHECK(tinker_service_request_lora(w.service, "tiny", &none, &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_EINVAL);
    none = (tinker_lora)TINKER_LORA_INIT;
    none.rank = -1;
    CHECK(!tinker_service_request_lora(w.service, "tiny", &none, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK_INT(fake_count(w.server, NULL), 0);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 8;
    lora.has_seed = 1;
    lora.seed = 3;
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", &lora, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_STR(
        fake_get(w.server, API "create_model", 0)->body,
        "{\"session_id\":\"sess\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":{"
        "\"rank\":8,\"seed\":3,\"train_unembed\":true,\"train_mlp\":true,\"train_attn\":true},"
        "\"type\":\"create_model\"}");
    CHECK(strstr(fake_get(w.server, API "create_session", 0)->body, "{\"who\":\"é 漢 🙂\"}") !=
          NULL);
    tinker_training_free(tinker_future_take_training(f));
    CHECK(tinker_future_take_training(f) == NULL);
    tinker_future_free(f);
    world_close(&w);
}

static void test_ids_are_reserved_in_order(void) /* R-089 R-184 */
{
    struct world w;
    tinker_training *t =
        open_training(&w, "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":false}");
    tinker_datum *data = fake_data(3, 4);
    tinker_future *f[3] = { tinker_training_forward_backward(t, data, 3, &fake_loss, NULL),
                            tinker_training_optim_step(t, NULL, NULL),
                            tinker_training_save_state(t, "x", NULL, NULL) };
    for (int i = 0; i < 3; i++)
        finish_free(&w, f[i], TINKER_OK);
    CHECK_INT(fake_pass_seq(fake_get(w.server, PASS, 0)), 1); /* serial */
    CHECK_INT(fake_pass_seq(fake_get(w.server, PASS, 1)), 2);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 3);
    CHECK_INT(fake_json_int(fake_get(w.server, API "save_weights", 0), "seq_id"), 4);
    fake_data_free(data, 3);
    tinker_training_free(t);
    world_close(&w);
}

static void test_one_submission_at_a_time(void) /* R-090 R-091 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    fake_script(w.server, STEP, (struct fake_reply){ .by_handler = true, .delay_ms = 2000 });
    tinker_future *a = tinker_training_optim_step(t, NULL, NULL);
    tinker_future *b = tinker_training_optim_step(t, NULL, NULL);
    world_advance(&w, 1999);
    CHECK_INT(fake_count(w.server, STEP), 1);
    finish_free(&w, b, TINKER_OK);
    CHECK_INT(world_at(&w, STEP, 1), 2000);
    finish_free(&w, a, TINKER_OK);
    /* the result of the first is not awaited */
    fake_script(w.server, API "retrieve_future", (struct fake_reply){ .fault = FAKE_HANG });
    a = tinker_training_optim_step(t, NULL, NULL);
    world_settle(&w);
    b = tinker_training_optim_step(t, NULL, NULL);
    finish_free(&w, b, TINKER_OK);
    CHECK(!tinker_future_done(a));
    tinker_future_free(a);
    tinker_training_free(t);
    world_close(&w);
}

struct arrival {
    struct send_turn turn;
    int *order, *n, id;
};

static void on_turn(struct send_turn *t)
{
    struct arrival *a = (struct arrival *)t;
    a->order[(*a->n)++] = a->id;
}

static void test_turn_machine(void) /* */
{
    struct send_order turns = { 0 };
    int order[8], n = 0;
    struct arrival a[5] = { { .id = 0 }, { .id = 1 }, { .id = 2 }, { .id = 3 }, { .id = 4 } };
    for (int i = 0; i < 5; i++) {
        a[i].turn.granted = on_turn;
        a[i].order = order;
        a[i].n = &n;
    }
    CHECK(!send_order_enter(&turns, &a[4].turn, 4, 4));
    CHECK(!send_order_enter(&turns, &a[2].turn, 1, 3));
    CHECK(!send_order_enter(&turns, &a[1].turn, 1, 3));
    CHECK(send_order_enter(&turns, &a[0].turn, 0, 0));
    send_order_leave(&turns);
    CHECK_INT(n, 2); /* both of the range are in */
    CHECK(send_order_enter(&turns, &a[3].turn, 1, 3));
    send_order_leave(&turns);
    send_order_leave(&turns);
    CHECK_INT(n, 2);
    send_order_leave(&turns);
    CHECK_INT(n, 3);
    CHECK_INT(order[2], 4);
}

static void test_first_chunk_goes_last(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, "{\"fwdbwd_max_chunk_len\":1}");
    tinker_datum *data = fake_data(4, 4);
    fake_script(w.server, PASS,
                (struct fake_reply){ .by_handler = true, .delay_ms = 500, .times = 3 });
    tinker_future *f = tinker_training_forward_backward(t, data, 4, &fake_loss, NULL);
    tinker_future *g = tinker_training_optim_step(t, NULL, NULL);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, PASS), 3); /* chunks 2, 3 and 4 together */
    int64_t sum = 0;
    for (size_t i = 0; i < 3; i++)
        sum += fake_pass_seq(fake_get(w.server, PASS, i));
    CHECK_INT(sum, 2 + 3 + 4);
    world_advance(&w, 400);
    CHECK_INT(fake_count(w.server, PASS), 3);
    CHECK_INT(fake_count(w.server, STEP), 0);
    world_advance(&w, 100);
    CHECK_INT(fake_pass_seq(fake_get(w.server, PASS, 3)), 1);
    finish_free(&w, g, TINKER_OK);
    const struct fake_request *step = fake_get(w.server, STEP, 0);
    CHECK_INT(fake_json_int(step, "seq_id"), 5);
    CHECK(step->index > fake_get(w.server, PASS, 3)->index);
    /* each of the three had a connection of its own */
    CHECK(fake_get(w.server, PASS, 0)->conn != fake_get(w.server, PASS, 1)->conn);
    tinker_future_free(f);
    fake_data_free(data, 4);
    tinker_training_free(t);
    world_close(&w);
}

static void test_a_failed_chunk_blocks_nobody(void) /* */
{
    for (int parallel = 0; parallel < 2; parallel++) {
        struct world w;
        tinker_training *t = open_training(
            &w, parallel ? "{\"fwdbwd_max_chunk_len\":1}"
                         : "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false}");
        tinker_datum *data = fake_data(3, 4);
        say(&w, PASS, 422, "{\"detail\":\"bad\"}", 1);
        tinker_future *f = tinker_training_forward_backward(t, data, 3, &fake_loss, NULL);
        tinker_future *g = tinker_training_optim_step(t, NULL, NULL);
        finish_free(&w, g, TINKER_OK);
        CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 4);
        finish_free(&w, f, TINKER_EHTTP);
        CHECK_INT(w.err.http_status, 422);
        fake_data_free(data, 3);
        tinker_training_free(t);
        world_close(&w);
    }
}

static void test_a_cancelled_request_takes_its_turn(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    fake_script(w.server, STEP, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *a = tinker_training_optim_step(t, NULL, NULL);
    tinker_future *b = tinker_training_optim_step(t, NULL, NULL);
    tinker_future *c = tinker_training_optim_step(t, NULL, NULL);
    world_settle(&w);
    tinker_future_cancel(b); /* still waiting */
    world_settle(&w);
    CHECK_INT(tinker_future_wait(b, 0, NULL), TINKER_ECANCELED);
    tinker_future_cancel(a); /* being sent */
    finish_free(&w, c, TINKER_OK);
    CHECK_INT(fake_count(w.server, STEP), 2);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 1), "seq_id"), 3); /* */
    tinker_future_free(a);
    tinker_future_free(b);
    tinker_training_free(t);
    world_close(&w);
}

static void test_chunks_by_bytes(void) /* R-096 R-097 */
{
    struct world w;
    /* a datum of 10 tokens: 10 * 4 + 10 * 8 = 120 bytes */
    tinker_training *t = open_training(&w, "{\"fwdbwd_max_chunk_bytes_count\":250}");
    tinker_datum *data = fake_data(5, 10);
    finish_free(&w, tinker_training_forward_backward(t, data, 5, &fake_loss, NULL), TINKER_OK);
    CHECK_INT(fake_count(w.server, PASS), 3); /* 2 + 2 + 1 */
    CHECK(tinker_training_forward_backward(t, data, 0, &fake_loss, &w.err) == NULL);
    CHECK(strstr(w.err.message, "No data provided") != NULL);
    finish_free(&w, tinker_training_optim_step(t, NULL, NULL), TINKER_OK);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 4); /* no id was lost */
    fake_data_free(data, 5);
    tinker_training_free(t);
    world_close(&w);
}

static void test_bytes_being_sent_are_limited(void) /* */
{
    struct world w;
    tinker_training *t = open_training(
        &w, "{\"fwdbwd_max_chunk_len\":1,\"fwdbwd_dispatch_bytes_semaphore_size\":1}");
    tinker_datum *data = fake_data(4, 10);
    fake_script(w.server, PASS,
                (struct fake_reply){ .by_handler = true, .delay_ms = 100, .times = -1 });
    tinker_future *f = tinker_training_forward_backward(t, data, 4, &fake_loss, NULL);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, PASS), 1);
    world_advance(&w, 500);
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(world_at(&w, PASS, i + 1) - world_at(&w, PASS, i), 100);
    tinker_future_free(f);
    fake_data_free(data, 4);
    tinker_training_free(t);
    world_close(&w);
}

static void test_compressed_bodies(void) /* R-012 R-188 */
{
    struct world w;
    tinker_training *t = open_training(&w, "{\"proto_compress_fwdbwd\":true}");
    tinker_datum *data = fake_data(1, 1000);
    finish_free(&w, tinker_training_forward_backward(t, data, 1, &fake_loss, NULL), TINKER_OK);
    const struct fake_request *r = fake_get(w.server, PASS, 0);
    char v[512];
    CHECK_STR(fake_header(r, "Content-Encoding", v), "zstd");
    CHECK_STR(fake_header(r, "Content-Type", v), "application/x-protobuf");
    CHECK(r->len < 200 && r->len > 8);
    static const unsigned char magic[] = { 0x28, 0xB5, 0x2F, 0xFD };
    CHECK_MEM(r->body, 4, magic, 4);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_optim_step_body(void) /* R-110 R-016 R-018 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    finish_free(&w, tinker_training_optim_step(t, NULL, NULL), TINKER_OK);
    CHECK_STR(
        fake_get(w.server, STEP, 0)->body,
        "{\"adam_params\":{\"learning_rate\":0.0001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12,"
        "\"weight_decay\":0.0,\"grad_clip_norm\":0.0},\"model_id\":\"sess:train:0\",\"seq_id\":1,"
        "\"type\":\"optim_step\"}");
    size_t n = fake_count(w.server, NULL);
    tinker_adam bad = TINKER_ADAM_INIT;
    bad.learning_rate = NAN;
    CHECK(tinker_training_optim_step(t, &bad, &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_EINVAL);
    tinker_adam blank = { 0 };
    CHECK(tinker_training_optim_step(t, &blank, &w.err) == NULL); /* not initialized */
    world_settle(&w);
    CHECK_INT(fake_count(w.server, NULL), n);
    tinker_training_free(t);
    world_close(&w);
}

static void test_another_optimizer(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    const tinker_named_number config[] = { { "learning_rate", 0.02 }, { "beta1", 0.9 } };
    const tinker_named_string texts[] = { { "mode", "x" } };
    tinker_optimizer o = { "dimuon", config, 2, texts, 1 };
    finish_free(&w, tinker_training_optimizer_step(t, &o, NULL), TINKER_OK);
    CHECK_STR(fake_get(w.server, STEP, 0)->body,
              "{\"model_id\":\"sess:train:0\",\"seq_id\":1,\"type\":\"optim_step\","
              "\"optimizer_params\":{\"type\":\"dimuon\",\"learning_rate\":0.02,\"beta1\":0.9,"
              "\"mode\":\"x\"}}");
    size_t n = fake_count(w.server, NULL);
    const tinker_named_number bad[] = { { "type", 1 }, { NULL, 1 }, { "lr", NAN } };
    for (size_t i = 0; i < 3; i++) {
        o = (tinker_optimizer){ "dimuon", &bad[i], 1, NULL, 0 };
        CHECK(tinker_training_optimizer_step(t, &o, &w.err) == NULL);
        CHECK_INT(w.err.status, TINKER_EINVAL);
    }
    CHECK(tinker_training_optimizer_step(t, &(tinker_optimizer){ 0 }, &w.err) == NULL);
    CHECK(tinker_training_optimizer_step(t, NULL, &w.err) == NULL);
    world_settle(&w);
    CHECK_INT(fake_count(w.server, NULL), n);
    tinker_training_free(t);
    world_close(&w);
}

static void test_saves(void) /* R-111 R-114 R-018 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    o.ttl_seconds = 60;
    o.overwrite = 1;
    finish_free(&w, tinker_training_save_state(t, "a", &o, NULL), TINKER_OK);
    CHECK_STR(fake_get(w.server, API "save_weights", 0)->body,
              "{\"model_id\":\"sess:train:0\",\"path\":\"a\",\"seq_id\":1,\"ttl_seconds\":60,"
              "\"overwrite\":true,\"type\":\"save_weights\"}");
    finish_free(&w, tinker_training_save_for_sampler(t, "b", NULL, NULL), TINKER_OK);
    CHECK_STR(fake_get(w.server, API "save_weights_for_sampler", 0)->body,
              "{\"model_id\":\"sess:train:0\",\"path\":\"b\",\"seq_id\":2,\"type\":\"save_weights_"
              "for_sampler\"}");
    say(&w, API "retrieve_future", 200, "{\"sampling_session_id\":\"x\"}", 1);
    finish_free(&w, tinker_training_save_for_sampler(t, "b", NULL, NULL), TINKER_EPROTOCOL);
    CHECK(tinker_training_save_state(t, "a/b", NULL, &w.err) == NULL);
    CHECK(tinker_training_save_for_sampler(t, "b", &o, &w.err) == NULL); /* overwrite */
    CHECK(strstr(w.err.message, "overwrite") != NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void test_rounding_is_told_once(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    int32_t tokens[2] = { 1, 2 };
    int64_t targets[2] = { 2, 3 };
    double weights[2] = { 0.5, 1 };
    tinker_chunk text = { .tokens = tokens, .n_tokens = 2 };
    tinker_named_tensor in[] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = 2 } },
        { "weights", { .dtype = TINKER_FLOAT64, .data = weights, .n = 2 } },
    };
    tinker_datum datum = { .model_input = { &text, 1 }, .inputs = in, .n_inputs = 2 };
    finish_free(&w, tinker_training_forward(t, &datum, 1, &fake_loss, NULL), TINKER_OK);
    CHECK_INT(world_log_count(&w, "rounded"), 0); /* these are exact */
    weights[1] = 0.1;
    for (int i = 0; i < 3; i++)
        finish_free(&w, tinker_training_forward(t, &datum, 1, &fake_loss, NULL), TINKER_OK);
    CHECK_INT(world_log_count(&w, "data[0].loss_fn_inputs.weights: float64 values are rounded"), 1);
    CHECK_INT(world_log_count(&w, "rounded"), 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_saves_with_metadata(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    tinker_named_string metadata[] = { { "step", "7" }, { "note", "best \"so\" far" } };
    o.user_metadata = metadata;
    o.n_user_metadata = 2;
    finish_free(&w, tinker_training_save_state(t, "a", &o, NULL), TINKER_OK);
    CHECK_STR(
        fake_get(w.server, API "save_weights", 0)->body,
        "{\"model_id\":\"sess:train:0\",\"path\":\"a\",\"seq_id\":1,\"overwrite\":false,\"user_"
        "metadata\":{\"step\":\"7\",\"note\":\"best \\\"so\\\" far\"},\"type\":\"save_weights\"}");
    finish_free(&w, tinker_training_save_for_sampler(t, "b", &o, NULL), TINKER_OK);
    CHECK(strstr(fake_get(w.server, API "save_weights_for_sampler", 0)->body,
                 "\"user_metadata\":{\"step\":\"7\",") != NULL);
    CHECK(tinker_training_save_external(t, "c", &o, &w.err) == NULL);
    CHECK(strstr(w.err.message, "user_metadata") != NULL);
    metadata[1].value = NULL;
    CHECK(tinker_training_save_state(t, "a", &o, &w.err) == NULL);
    CHECK(strstr(w.err.message, "entry 1") != NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void test_external_saves(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    const char *recipients[11] = { "age1abc", "ssh-ed25519 AAAA" };
    tinker_future *f = tinker_training_save_external(t, "hf", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_STR(tinker_future_saved_path(f), "tinker://sess:train:0/external_weights/x");
    CHECK_STR(tinker_future_request_type(f), "SaveWeightsExternal");
    tinker_future_free(f);
    CHECK_STR(fake_get(w.server, API "save_weights_external", 0)->body,
              "{\"model_id\":\"sess:train:0\",\"path\":\"hf\",\"seq_id\":1,\"type\":\"save_weights_"
              "external\"}");
    o.ttl_seconds = 3600;
    o.age_recipients = recipients;
    o.n_age_recipients = 2;
    finish_free(&w, tinker_training_save_external(t, "hf", &o, NULL), TINKER_OK);
    CHECK_STR(fake_get(w.server, API "save_weights_external", 1)->body,
              "{\"model_id\":\"sess:train:0\",\"path\":\"hf\",\"seq_id\":2,\"ttl_seconds\":3600,"
              "\"age_encryption_recipients\":[\"age1abc\",\"ssh-ed25519 AAAA\"],\"type\":\"save_"
              "weights_external\"}");
    /* A name that exists is final, as for other saves. */
    say(&w, API "save_weights_external", 409, "{\"detail\":\"exists\"}", -1);
    finish_free(&w, tinker_training_save_external(t, "hf", NULL, NULL), TINKER_EHTTP);
    CHECK_INT(fake_count(w.server, API "save_weights_external"), 3);
    CHECK(tinker_training_save_state(t, "a", &o, &w.err) == NULL);
    CHECK(strstr(w.err.message, "age_recipients") != NULL);
    o.n_age_recipients = 3;
    CHECK(tinker_training_save_external(t, "hf", &o, &w.err) == NULL);
    CHECK(strstr(w.err.message, "entry 2 is empty") != NULL);
    o.n_age_recipients = 11;
    CHECK(tinker_training_save_external(t, "hf", &o, &w.err) == NULL);
    CHECK(strstr(w.err.message, "at most 10") != NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void test_unnamed_sampler_saves(void) /* R-115 R-116 R-219 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    say(&w, API "save_weights_for_sampler", 503, "{}", 1);
    tinker_future *f = tinker_training_request_sampler(t, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    tinker_sampler *s = tinker_future_take_sampler(f);
    REQUIRE(s);
    CHECK_STR(tinker_sampler_id(s), "sess:sample:0");
    CHECK_INT(fake_count(w.server, API "create_sampling_session"), 0);
    const struct fake_request *a = fake_get(w.server, API "save_weights_for_sampler", 0);
    const struct fake_request *b = fake_get(w.server, API "save_weights_for_sampler", 1);
    CHECK_INT(fake_json_int(a, "sampling_session_seq_id"), 0);
    CHECK_INT(fake_json_int(b, "sampling_session_seq_id"), 1);
    CHECK_INT(fake_json_int(a, "seq_id"), 1);
    CHECK_INT(fake_json_int(b, "seq_id"), 1);
    CHECK(strstr(a->body, "\"path\"") == NULL);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

static void test_load_state(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    const char *path = "tinker://r:train:0/weights/a";
    tinker_future *f = tinker_training_load_state(t, path, 0, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_STR(tinker_future_loaded_path(f), "tinker://sess:train:0/weights/named");
    tinker_future_free(f);
    finish_free(&w, tinker_training_load_state(t, path, 1, "tml-foreign-token", NULL), TINKER_OK);
    CHECK(strstr(fake_get(w.server, API "load_weights", 0)->body, "\"optimizer\":false") != NULL);
    CHECK(strstr(fake_get(w.server, API "load_weights", 1)->body,
                 "\"optimizer\":true,\"weights_access_token\":\"tml-foreign-token\"") != NULL);
    CHECK(tinker_training_load_state(t, "tinker://r:train:0/sampler_weights/a", 0, NULL, &w.err) ==
          NULL);
    CHECK(strstr(w.err.message, "save_state") != NULL);
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, API "retrieve_future", 1), "X-Tinker-Request-Type", v),
              "LoadWeights");
    tinker_training_free(t);
    world_close(&w);
}

static const char weights_info[] =
    "{\"base_model\":\"tiny\",\"is_lora\":true,\"lora_rank\":16,\"train_mlp\":false}";

static void test_from_state(void) /* R-118 R-119 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    say(&w, API "weights_info", 200, weights_info, 1);
    tinker_from_state_options o = TINKER_FROM_STATE_OPTIONS_INIT;
    o.optimizer = 1;
    tinker_future *f =
        tinker_service_request_from_state(w.service, "tinker://r:train:0/weights/a", &o, &w.err);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    tinker_training *t = tinker_future_take_training(f);
    REQUIRE(t);
    const struct fake_request *info = fake_get(w.server, API "weights_info", 0);
    const struct fake_request *create = fake_get(w.server, API "create_model", 0);
    const struct fake_request *load = fake_get(w.server, API "load_weights", 0);
    REQUIRE(info && create && load);
    CHECK_STR(info->body, "{\"tinker_path\":\"tinker://r:train:0/weights/a\"}");
    CHECK(info->index < create->index && create->index < load->index);
    CHECK(strstr(create->body,
                 "\"rank\":16,\"train_unembed\":true,\"train_mlp\":false,\"train_attn\":true") !=
          NULL);
    CHECK_INT(fake_json_int(load, "seq_id"), 1);
    CHECK(strstr(load->body, "\"optimizer\":true") != NULL);
    finish_free(&w, tinker_training_optim_step(t, NULL, NULL), TINKER_OK);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 2);
    tinker_future_free(f);
    tinker_training_free(t);
    say(&w, API "weights_info", 200, "{\"base_model\":\"tiny\",\"is_lora\":false}", 1);
    f = tinker_service_request_from_state(w.service, "tinker://r:train:0/weights/a", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_EINVAL);
    CHECK_INT(fake_count(w.server, API "create_model"), 1);
    tinker_future_free(f);
    world_close(&w);
}

static void test_from_state_in_one_request(void) /* */
{
    struct world w;
    world_open(&w, "{\"create_model_via_load_weights\":true}", NULL);
    tinker_future *f =
        tinker_service_request_from_state(w.service, "tinker://r:train:0/weights/a", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    tinker_training *t = tinker_future_take_training(f);
    CHECK_STR(tinker_training_model_id(t), "sess:train:0");
    CHECK_STR(
        fake_get(w.server, API "load_weights", 0)->body,
        "{\"session_id\":\"sess\",\"model_seq_id\":0,\"path\":\"tinker://r:train:0/weights/a\","
        "\"optimizer\":false,\"type\":\"load_weights\"}");
    CHECK_INT(fake_count(w.server, API "create_model"), 0);
    CHECK_INT(fake_count(w.server, API "weights_info"), 0);
    finish_free(&w, tinker_training_optim_step(t, NULL, NULL), TINKER_OK);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 1);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_from_state_of_another_account(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    say(&w, API "weights_info", 200, weights_info, -1);
    tinker_from_state_options o = TINKER_FROM_STATE_OPTIONS_INIT;
    o.access_token = "tml-another-account";
    tinker_future *f =
        tinker_service_request_from_state(w.service, "tinker://r:train:0/weights/a", &o, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, API "weights_info", 0), "X-API-Key", v),
              "tml-another-account");
    CHECK_STR(fake_header(fake_get(w.server, API "load_weights", 0), "X-API-Key", v),
              "tml-0123456789abcdef");
    CHECK(strstr(fake_get(w.server, API "load_weights", 0)->body,
                 "\"weights_access_token\":\"tml-another-account\"") != NULL);
    CHECK_INT(fake_count(w.server, API "create_session"), 1);
    tinker_training_free(tinker_future_take_training(f));
    tinker_future_free(f);
    world_close(&w);
}

static void test_info(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    say(&w, API "get_info", 503, "{}", 1);
    say(&w, API "get_info", 200,
        "{\"model_data\":{\"arch\":\"qwen3\",\"model_name\":\"tiny\",\"tokenizer_id\":\"a/"
        "b:rev\"},\"model_id\":\"sess:train:0\",\"is_lora\":true,\"lora_rank\":32,\"more\":1}",
        1);
    tinker_future *f = tinker_training_get_info(t, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    const tinker_model_info *i = tinker_future_model_info(f);
    REQUIRE(i);
    CHECK_STR(i->tokenizer_id, "a/b");
    CHECK_STR(i->model_name, "tiny");
    CHECK_INT(i->lora_rank, 32);
    CHECK_INT(i->is_lora, 1);
    tinker_future_free(f);
    finish_free(&w, tinker_training_optim_step(t, NULL, NULL), TINKER_OK);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 1); /* took no id */
    tinker_training_free(t);
    world_close(&w);
}

static void test_unload(void) /* */
{
    for (int direct = 0; direct < 2; direct++) {
        struct world w;
        tinker_training *t = open_training(&w, NULL);
        if (direct)
            say(&w, API "unload_model", 200,
                "{\"model_id\":\"sess:train:0\",\"type\":\"unload_model\"}", 1);
        fake_script(w.server, STEP, (struct fake_reply){ .by_handler = true, .delay_ms = 300 });
        tinker_future *step = tinker_training_optim_step(t, NULL, NULL);
        tinker_future *f = tinker_training_unload(t, NULL);
        finish_free(&w, f, TINKER_OK);
        CHECK_INT(world_at(&w, API "unload_model", 0), 300);
        CHECK(tinker_training_optim_step(t, NULL, &w.err) == NULL);
        CHECK_INT(w.err.status, TINKER_ESTATE);
        CHECK(strstr(w.err.message, "unloaded") != NULL);
        char v[512];
        size_t n = fake_count(w.server, API "retrieve_future");
        if (!direct)
            CHECK_STR(fake_header(fake_get(w.server, API "retrieve_future", n - 1),
                                  "X-Tinker-Request-Type", v),
                      "UnloadModel");
        tinker_future_free(step);
        tinker_training_free(t);
        world_close(&w);
    }
}

static void test_metrics_of_one_chunk_are_reduced_too(void) /* R-100 R-101 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    tinker_named_number m[] = {
        { "x:sum", 3 }, { "nocolon", 1 }, { "a:b:c", 1 }, { "y:odd", 1 }, { "z:unique", 7 }
    };
    size_t len;
    char *body = fake_pass_result(2, m, 5, &len);
    fake_script(
        w.server, API "retrieve_future",
        (struct fake_reply){ .body = body, .len = len, .content_type = "application/x-protobuf" });
    tinker_datum *data = fake_data(2, 4);
    tinker_future *f = tinker_training_forward(t, data, 2, &fake_loss, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const tinker_forward_backward *r = tinker_future_forward_backward(f);
    REQUIRE(r);
    CHECK_INT(r->n_metrics, 2);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "x:sum"), 3, 0);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "z:unique"), 7, 0);
    CHECK_INT(world_log_count(&w, "dropped"), 3);
    CHECK_STR(r->output_type, "TorchLossReturn");
    tinker_future_free(f);
    free(body);
    fake_data_free(data, 2);
    tinker_training_free(t);
    world_close(&w);
}

static void test_json_results_are_read_too(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    say(&w, API "retrieve_future", 200,
        "{\"loss_fn_output_type\":\"T\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":[-1.5,-2.0],"
        "\"dtype\":\"float32\",\"shape\":[2]}}],\"metrics\":{\"loss:sum\":6.0}}",
        1);
    tinker_datum *data = fake_data(1, 2);
    tinker_future *f = tinker_training_forward(t, data, 1, &fake_loss, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const tinker_forward_backward *r = tinker_future_forward_backward(f);
    REQUIRE(r && r->n_outputs == 1);
    CHECK_NEAR(((const float *)r->outputs[0].tensors[0].tensor.data)[0], -1.5, 0);
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

/* Sanitizers keep what was freed: there the number says nothing. */
static long resident_mb(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * 4 / 1024;
#endif
}

/* A program that is faster than a stalled service: memory is bounded, and it is told. */
static void test_queued_bytes_are_bounded(void) /* */
{
    enum { TRIES = 100 };
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.limits.max_queued_bytes = 20 << 20;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(1, 400000); /* 4 to 5 MB */
    tinker_future *f[TRIES];
    size_t n = 0;
    fake_script(w.server, PASS, (struct fake_reply){ .fault = FAKE_HANG });
    long before = resident_mb();
    for (int i = 0; i < TRIES; i++) {
        tinker_future *next = tinker_training_forward_backward(t, data, 1, &fake_loss, &w.err);
        if (next)
            f[n++] = next;
        else
            CHECK_INT(w.err.status, TINKER_ENOMEM);
    }
    CHECK(strstr(w.err.message, "max_queued_bytes") != NULL);
    CHECK(n >= 3 && n <= 6);
    CHECK(resident_mb() - before < 120); /* without the limit: 400 and more */
    tinker_future *step = tinker_training_optim_step(t, NULL, &w.err); /* small things pass */
    REQUIRE(step && n >= 1);
    tinker_future_cancel(f[0]); /* the one that hangs; the others go on */
    for (size_t i = 0; i < n; i++) {
        CHECK_INT(world_finish(&w, f[i], 10000), i == 0 ? TINKER_ECANCELED : TINKER_OK);
        tinker_future_free(f[i]);
    }
    CHECK_INT(world_finish(&w, step, 10000), TINKER_OK);
    tinker_future_free(step);
    for (int i = 0; i < 10; i++) { /* what was accepted counts no more */
        f[0] = tinker_training_forward_backward(t, data, 1, &fake_loss, &w.err);
        REQUIRE(f[0]);
        CHECK_INT(world_finish(&w, f[0], 10000), TINKER_OK);
        tinker_future_free(f[0]);
    }
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_one_batch_always_fits(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.limits.max_queued_bytes = 1;
    world_open(&w, "{\"fwdbwd_max_chunk_len\":1}", &o);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(3, 100);
    for (int i = 0; i < 3; i++) {
        fake_script(w.server, PASS,
                    (struct fake_reply){ .by_handler = true, .delay_ms = 1000, .times = 3 });
        tinker_future *f = tinker_training_forward_backward(t, data, 3, &fake_loss, &w.err);
        REQUIRE(f);
        CHECK(!tinker_training_forward_backward(t, data, 3, &fake_loss, &w.err));
        CHECK_INT(w.err.status, TINKER_ENOMEM);
        CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
        tinker_future_free(f);
        CHECK_INT(atomic_load(&t->session->queued_bytes), 0); /* of the refused one, too */
    }
    fake_data_free(data, 3);
    tinker_training_free(t);
    world_close(&w);
}

int main(void)
{
    RUN(test_create_lora);
    RUN(test_ids_are_reserved_in_order);
    RUN(test_one_submission_at_a_time);
    RUN(test_turn_machine);
    RUN(test_first_chunk_goes_last);
    RUN(test_a_failed_chunk_blocks_nobody);
    RUN(test_a_cancelled_request_takes_its_turn);
    RUN(test_chunks_by_bytes);
    RUN(test_bytes_being_sent_are_limited);
    RUN(test_compressed_bodies);
    RUN(test_optim_step_body);
    RUN(test_another_optimizer);
    RUN(test_saves);
    RUN(test_rounding_is_told_once);
    RUN(test_saves_with_metadata);
    RUN(test_external_saves);
    RUN(test_unnamed_sampler_saves);
    RUN(test_load_state);
    RUN(test_from_state);
    RUN(test_from_state_in_one_request);
    RUN(test_from_state_of_another_account);
    RUN(test_info);
    RUN(test_unload);
    RUN(test_describing_a_run);
    RUN(test_metrics_of_one_chunk_are_reduced_too);
    RUN(test_json_results_are_read_too);
    RUN(test_queued_bytes_are_bounded);
    RUN(test_one_batch_always_fits);
    return tap_done();
}
