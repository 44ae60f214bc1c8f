/* Options of the server that change what it keeps, holds or answers. */
#include "server/store/timers.h"
#include "server/harness.h"

static void no_elementwise(struct server_options *o)
{
    o->no_elementwise_loss = true;
}

static void test_elementwise_loss_can_be_left_out(void)
{
    for (int out = 0; out < 2; out++) {
        char session[64], model[96];
        struct server *s = start_model(out ? no_elementwise : NULL, session, model);
        REQUIRE(s);
        struct reply r = result_of(s, forward_backward(s, model, 1));
        CHECK(strstr(r.body, "\"logprobs\":{"));
        CHECK_INT(strstr(r.body, "\"elementwise_loss\":{") != NULL, !out);
        reply_clear(&r);
        server_close(s);
    }
}

static void bare_ids(struct server_options *o)
{
    o->bare_checkpoint_ids = true;
}

static void test_checkpoint_ids_can_be_bare(void)
{
    for (int bare = 0; bare < 2; bare++) {
        char session[64], model[96];
        struct server *s = start_model(bare ? bare_ids : NULL, session, model);
        REQUIRE(s);
        struct reply r =
            result_of(s, post(s, "/api/v1/save_weights",
                              "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"0001\"}", model));
        reply_clear(&r);
        r = send_get(s, "/api/v1/checkpoints");
        CHECK_STR(find_member(&r, "checkpoint_id"), bare ? "0001" : "weights/0001");
        CHECK(strstr(find_member(&r, "tinker_path"), "/weights/0001"));
        reply_clear(&r);
        server_close(s);
    }
}

static void bf16_samplers(struct server_options *o)
{
    o->sampler_bf16 = true;
}

static void test_named_sampler_weights_in_half_the_size(void)
{
    for (int half = 0; half < 2; half++) {
        char session[64], model[96];
        struct server *s = start_model(half ? bf16_samplers : NULL, session, model);
        REQUIRE(s);
        struct reply r =
            result_of(s, post(s, "/api/v1/save_weights_for_sampler",
                              "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model));
        reply_clear(&r);
        CHECK_INT(atomic_load(&fake_save_flags), half ? TINKER_ADAPTER_BF16 : 0);
        r = result_of(s, post(s, "/api/v1/save_weights",
                              "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":\"b\"}", model));
        reply_clear(&r);
        CHECK_INT(atomic_load(&fake_save_flags), TINKER_ADAPTER_OPTIMIZER);
        server_close(s);
    }
}

static void keep_two(struct server_options *o)
{
    o->ephemeral_keep = 2;
}

static void test_only_the_newest_unnamed_weights_stay(void)
{
    char session[64], model[96];
    struct server *s = start_model(keep_two, session, model);
    REQUIRE(s);
    for (int i = 1; i <= 3; i++) {
        struct reply r =
            result_of(s, post(s, "/api/v1/save_weights_for_sampler",
                              "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":%d}",
                              model, i, i));
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    server_close(s); /* what is in memory would hide what is on disk */
    s = start_with(keep_two);
    REQUIRE(s);
    for (int i = 1; i <= 3; i++) {
        struct reply r = result_of(
            s, post(s, "/api/v1/asample",
                    "{\"sampling_session_id\":\"%s:sample:%d\",\"seq_id\":0,\"prompt\":{\"chunks\":"
                    "[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}",
                    session, i));
        CHECK_INT(strstr(r.body, "\"error\"") != NULL, i == 1);
        reply_clear(&r);
    }
    server_close(s);
}

/* ---- adapters in memory ------------------------------------------------------------------- */

static void two_adapters(struct server_options *o)
{
    o->max_adapters = 2;
}

static void two_unsaved_adapters(struct server_options *o)
{
    o->max_adapters = 2;
    o->autosave = 0;
}

enum { MODELS = 5 };

/* Each in turn, so that each has to leave memory between its own requests; a gradient that
 * was not applied goes with it and comes back. */
static void check_turns(struct server *s)
{
    char session[64], model[MODELS][96];
    make_session(s, session);
    for (int i = 0; i < MODELS; i++)
        make_model(s, session, i, model[i]);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MODELS; i++) {
            struct reply r = result_of(s, forward_backward(s, model[i], 1 + 2 * round));
            CHECK(!strstr(r.body, "\"error\""));
            reply_clear(&r);
            CHECK(atomic_load(&fake_adapters) <= 2);
        }
        for (int i = 0; i < MODELS; i++) {
            struct reply r = result_of(s, optim_step(s, model[i], 2 + 2 * round, 1));
            CHECK(strstr(r.body, "\"grad_norm:mean\":3.0"));
            CHECK(strstr(r.body, round ? "\"step:max\":2.0" : "\"step:max\":1.0"));
            reply_clear(&r);
            CHECK(atomic_load(&fake_adapters) <= 2);
        }
    }
}

static void test_idle_adapters_make_room(void)
{
    struct server *s = start_fresh(two_adapters);
    REQUIRE(s);
    atomic_store(&fake_passes_run, 0);
    check_turns(s);
    CHECK_INT(atomic_load(&fake_passes_run), 2 * MODELS); /* none had to run again */
    server_close(s);
    s = start_fresh(two_unsaved_adapters);
    REQUIRE(s);
    check_turns(s);
    server_close(s);
}

static void test_idle_adapters_leave_for_memory(void)
{
    struct server *s = start_fresh(NULL);
    REQUIRE(s);
    s->max_adapter_bytes = 2 * sizeof(tinker_adapter);
    check_turns(s);
    server_close(s);
}

static void test_adapters_for_sampling_count_too(void)
{
    char session[64], model[96];
    struct server *s = start_model(two_adapters, session, model);
    REQUIRE(s);
    for (int i = 1; i <= 4; i++) {
        struct reply r =
            result_of(s, post(s, "/api/v1/save_weights_for_sampler",
                              "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":%d}",
                              model, i, i));
        reply_clear(&r);
        r = result_of(s, post(s, "/api/v1/asample",
                              "{\"sampling_session_id\":\"%s:sample:%d\",\"seq_id\":0,\"prompt\":{"
                              "\"chunks\":[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":"
                              "1}}",
                              session, i));
        CHECK(strstr(r.body, "[6]"));
        reply_clear(&r);
        CHECK(atomic_load(&fake_adapters) <= 2);
    }
    server_close(s);
}

static void one_adapter(struct server_options *o)
{
    o->max_adapters = 1;
}

static void save_sampler(struct server *s, const char *model, int i)
{
    struct reply r = result_of(
        s, post(s, "/api/v1/save_weights_for_sampler",
                "{\"model_id\":\"%s\",\"seq_id\":1,\"sampling_session_seq_id\":%d}", model, i));
    CHECK(strstr(r.body, "sampling_session_id"));
    reply_clear(&r);
}

/* Passes and samples of all of them at once; returns how many adapters there were at most. */
static int run_many_models(void (*change)(struct server_options *))
{
    enum { ROUNDS = 3 };
    struct server *s = start_fresh(change);
    char session[64], model[MODELS][96], ids[ROUNDS][MODELS][2][128];
    if (!s)
        return -1;
    make_session(s, session);
    for (int i = 0; i < MODELS; i++) {
        make_model(s, session, i, model[i]);
        save_sampler(s, model[i], i);
    }
    atomic_store(&fake_step_us, 1000);
    for (int k = 0; k < ROUNDS; k++)
        for (int i = 0; i < MODELS; i++) {
            struct reply r = forward_backward(s, model[i], 2 + k);
            snprintf(ids[k][i][0], 128, "%s", find_member(&r, "request_id"));
            reply_clear(&r);
            r = post(s, "/api/v1/asample",
                     "{\"sampling_session_id\":\"%s:sample:%d\",\"seq_id\":%d,\"prompt\":{"
                     "\"chunks\":[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":4}}",
                     session, i, k);
            snprintf(ids[k][i][1], 128, "%s", find_member(&r, "request_id"));
            reply_clear(&r);
        }
    for (int n = 0; n < ROUNDS * MODELS * 2; n++) {
        struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}",
                              ids[n / 2 / MODELS][n / 2 % MODELS][n % 2]);
        CHECK_STATUS(r, 200);
        CHECK(!strstr(r.body, "\"error\""));
        reply_clear(&r);
    }
    atomic_store(&fake_step_us, 0);
    for (int i = 0; i < MODELS; i++) { /* no gradient was lost on the way */
        struct reply r = result_of(s, optim_step(s, model[i], 2 + ROUNDS, 1));
        CHECK(strstr(r.body, "\"grad_norm:mean\":9.0"));
        reply_clear(&r);
    }
    server_close(s);
    return atomic_load(&fake_adapters_most);
}

static void test_adapters_in_use_are_never_more(void)
{
    atomic_store(&fake_adapters_most, 0);
    CHECK_INT(run_many_models(one_adapter), 1);
    CHECK_INT(run_many_models(two_adapters), 2);
    CHECK(run_many_models(NULL) > 2);
}

/* The memory of a sample that has been waiting for a place; 0: it does not wait. */
static size_t size_waiting(struct server *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    size_t n = f && f->state == FUTURE_WAITING && f->starved ? f->job->arena.used : 0;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void test_waiting_for_a_place_takes_no_more_memory(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(one_adapter, session, model);
    REQUIRE(s);
    save_sampler(s, model, 0);
    atomic_store(&fake_step_us, 1000);
    atomic_store(&fake_pass_steps, 0);
    struct reply r = long_pass(s, model, 2, 300);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    while (!atomic_load(&fake_pass_steps))
        nap_ms(1);
    r = post(s, "/api/v1/asample",
             "{\"sampling_session_id\":\"%s:sample:0\",\"seq_id\":0,\"prompt\":{\"chunks\":[{"
             "\"tokens\":[1,2,3,4]},{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}",
             session);
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    size_t first = 0, last = 0;
    for (int i = 0; i < 2000 && !first; i++, nap_ms(1))
        first = size_waiting(s, id);
    int slices = atomic_load(&fake_pass_steps);
    while (atomic_load(&fake_pass_steps) < slices + 20)
        nap_ms(1);
    last = size_waiting(s, id);
    atomic_store(&fake_step_us, 0);
    CHECK(first && last == first);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
    CHECK(strstr(r.body, "[6]"));
    reply_clear(&r);
    server_close(s);
}

/* What has to run again after a restart and a sample want the one place at the same time. */
static void test_one_place_after_a_restart(void)
{
    struct server *s = start_fresh(one_adapter);
    REQUIRE(s);
    char session[64], model[3][96];
    make_session(s, session);
    for (int i = 0; i < 3; i++) {
        make_model(s, session, i, model[i]);
        save_sampler(s, model[i], i);
        for (int k = 2; k < 4; k++) {
            struct reply r = result_of(s, forward_backward(s, model[i], k));
            reply_clear(&r);
        }
    }
    server_close(s);
    atomic_store(&fake_adapters_most, 0);
    atomic_store(&fake_step_us, 1000);
    s = start_with(one_adapter);
    REQUIRE(s);
    struct reply r =
        result_of(s, post(s, "/api/v1/asample",
                          "{\"sampling_session_id\":\"%s:sample:0\",\"seq_id\":0,\"prompt\":{"
                          "\"chunks\":[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":2}}",
                          session));
    CHECK(strstr(r.body, "[6,7]"));
    reply_clear(&r);
    atomic_store(&fake_step_us, 0);
    for (int i = 0; i < 3; i++) {
        r = result_of(s, optim_step(s, model[i], 4, 1));
        CHECK(strstr(r.body, "\"grad_norm:mean\":6.0"));
        reply_clear(&r);
    }
    CHECK_INT(atomic_load(&fake_adapters_most), 1);
    server_close(s);
}

static void test_no_room_on_disk_fails_who_needs_it(void)
{
    struct server *s = start_fresh(one_adapter);
    REQUIRE(s);
    char session[64], model[2][96];
    make_session(s, session);
    for (int i = 0; i < 2; i++)
        make_model(s, session, i, model[i]);
    struct reply r = result_of(s, forward_backward(s, model[0], 1));
    reply_clear(&r);
    atomic_store(&fake_save_fails, 1);
    r = result_of(s, forward_backward(s, model[1], 1));
    CHECK(strstr(r.body, "cannot unload another model to make space"));
    reply_clear(&r);
    atomic_store(&fake_save_fails, 0);
    r = result_of(s, forward_backward(s, model[1], 2));
    CHECK(strstr(r.body, "\"logprobs\""));
    reply_clear(&r);
    server_close(s);
}

/* ---- tokens at once -------------------------------------------------------------------------- */

static void thirty_tokens(struct server_options *o)
{
    o->max_batch_tokens = 30;
}

/* Three requests of 1 + 2 * 7 tokens and one of 1 + 40: at most two of them fit together,
 * and the large one runs alone. */
static int most_together(void (*change)(struct server_options *))
{
    struct server *s = start_fresh(change);
    char session[64], ids[4][128];
    if (!s)
        return -1;
    make_session(s, session);
    struct reply r =
        post(s, "/api/v1/create_sampling_session",
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":1,\"base_model\":\"test/model\"}",
             session);
    reply_clear(&r);
    atomic_store(&fake_step_us, 3000);
    atomic_store(&fake_together, 0);
    for (int i = 0; i < 4; i++) {
        r = post(s, "/api/v1/asample",
                 "{\"sampling_session_id\":\"%s:sample:1\",\"seq_id\":%d,\"num_samples\":%d,"
                 "\"prompt\":{\"chunks\":[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":"
                 "%d}}",
                 session, i, i == 3 ? 1 : 2, i == 3 ? 40 : 7);
        snprintf(ids[i], sizeof(ids[i]), "%s", find_member(&r, "request_id"));
        reply_clear(&r);
    }
    for (int i = 0; i < 4; i++) {
        r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", ids[i]);
        CHECK(strstr(r.body, "\"length\""));
        reply_clear(&r);
    }
    atomic_store(&fake_step_us, 0);
    server_close(s);
    return atomic_load(&fake_together);
}

static void test_tokens_at_once_are_limited(void)
{
    CHECK_INT(most_together(thirty_tokens), 2);
    CHECK(most_together(NULL) > 2);
}

static struct server_model two[2];
static void two_in_a_gigabyte(struct server_options *o)
{
    two[0] = two[1] = o->models[0];
    two[1].name = "test/other";
    o->models = two;
    o->n_models = 2;
    o->engine.memory_limit = 1 << 30;
}

static void all_that_is_free(struct server_options *o)
{
    two_in_a_gigabyte(o);
    o->engine.memory_limit = 0;
    o->memory_part = 1;
}

static void test_models_share_the_memory(void)
{
    struct server *s = start_fresh(two_in_a_gigabyte);
    REQUIRE(s);
    /* One budget: what the engines may use and the limits of all else come to what was given. */
    uint64_t parts = (uint64_t)s->opts.max_queued_bytes * 3 / 2 +
                     (uint64_t)s->opts.max_result_bytes + s->max_adapter_bytes;
    uint64_t all = fake_memory + parts + (1 << 27); /* bodies: an eighth */
    CHECK(all <= 1 << 30 && all > (1 << 30) - 16);  /* but for rounding */
    CHECK(s->opts.max_body <= 1 << 27 && s->opts.max_decoded_body <= 1 << 27);
    server_close(s);
    CHECK_INT(fake_memory, 0);
    s = start_fresh(NULL);
    REQUIRE(s);
    uint64_t half = fake_memory;
    server_close(s);
    s = start_fresh(all_that_is_free);
    REQUIRE(s);
    CHECK(fake_memory > half + half / 2 && fake_memory / 3 < half); /* about twice as much */
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_elementwise_loss_can_be_left_out);
    RUN(test_checkpoint_ids_can_be_bare);
    RUN(test_named_sampler_weights_in_half_the_size);
    RUN(test_only_the_newest_unnamed_weights_stay);
    RUN(test_idle_adapters_make_room);
    RUN(test_idle_adapters_leave_for_memory);
    RUN(test_adapters_for_sampling_count_too);
    RUN(test_adapters_in_use_are_never_more);
    RUN(test_waiting_for_a_place_takes_no_more_memory);
    RUN(test_one_place_after_a_restart);
    RUN(test_no_room_on_disk_fails_who_needs_it);
    RUN(test_tokens_at_once_are_limited);
    RUN(test_models_share_the_memory);
    harness_clear();
    return tap_done();
}
