/* What those are told who do not wait any longer: why the last attempt failed. */
#include <unistd.h>
#include <tinker/extra/http.h>
#include <tinker/extra/stream.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define POLL  API "retrieve_future"
#define CKPT  "tinker://r:train:0/weights/step-1"
#define CKPTS API "training_runs/r:train:0/checkpoints/weights/step-1"

struct clients {
    tinker_training *training;
    tinker_sampler *sampler;
    tinker_rest *rest;
    tinker_stream *stream;
};

/* ---- one operation of every kind --------------------------------------------------------------- */

static tinker_future *health(struct world *w, struct clients *c)
{
    (void)c;
    return tinker_service_check_health(w->service, &w->err);
}

static tinker_future *optim_step(struct world *w, struct clients *c)
{
    return tinker_training_optim_step(c->training, NULL, &w->err);
}

static tinker_future *forward(struct world *w, struct clients *c)
{
    tinker_datum *data = fake_data(1, 4);
    tinker_future *f = tinker_training_forward(c->training, data, 1, &fake_loss, &w->err);
    fake_data_free(data, 1);
    return f;
}

static tinker_future *sample(struct world *w, struct clients *c)
{
    return tinker_sampler_sample(c->sampler, fake_prompt(5), NULL, NULL, &w->err);
}

static tinker_future *stream(struct world *w, struct clients *c)
{
    c->stream = tinker_sampler_stream(c->sampler, fake_prompt(5), NULL, NULL, &w->err);
    return c->stream ? stream_future(c->stream) : NULL;
}

static tinker_future *open_sampler(struct world *w, struct clients *c)
{
    (void)c;
    return tinker_service_request_sampler(w->service, "tiny", NULL, &w->err);
}

static tinker_future *open_training(struct world *w, struct clients *c)
{
    (void)c;
    return tinker_service_request_lora(w->service, "tiny", NULL, &w->err);
}

static tinker_future *sessions(struct world *w, struct clients *c)
{
    return tinker_rest_list_sessions(c->rest, NULL, &w->err);
}

static tinker_future *download(struct world *w, struct clients *c)
{
    char file[64];
    snprintf(file, sizeof(file), "/tmp/tinker-trouble-%d.tar", (int)getpid());
    return tinker_rest_download_checkpoint(c->rest, CKPT, file, NULL, &w->err);
}

static tinker_receive_next on_piece(const tinker_piece *piece, void *state)
{
    (void)state;
    (void)piece;
    return TINKER_RECEIVE_MORE;
}

static tinker_future *receive(struct world *w, struct clients *c)
{
    (void)c;
    return tinker_service_receive(w->service, "GET", API "log", NULL, 0, NULL, on_piece, NULL,
                                  &w->err);
}

static const struct {
    const char *name, *path; /* of the request that is not answered well */
    tinker_future *(*submit)(struct world *w, struct clients *c);
} kinds[] = {
    { "rest without a client", API "healthz", health },
    { "optim_step", API "optim_step", optim_step },
    { "forward", API "forward_backward", forward },
    { "polls of a training result", POLL, optim_step },
    { "sample", API "asample", sample },
    { "polls of a sample", POLL, sample },
    { "stream", API "stream_sample", stream },
    { "sampling client", API "create_sampling_session", open_sampler },
    { "training client", API "create_model", open_training },
    { "rest", API "sessions", sessions },
    { "download", CKPTS "/archive", download },
    { "receive", API "log", receive },
};

static void open_clients(struct world *w, struct clients *c)
{
    world_open(w, "{\"stream_sample\":true}", NULL);
    *c = (struct clients){ .training = world_training(w), .sampler = world_sampler(w) };
    c->rest = tinker_service_create_rest(w->service, &w->err);
    REQUIRE(c->training && c->sampler && c->rest);
}

static void close_clients(struct world *w, struct clients *c)
{
    tinker_stream_free(c->stream);
    tinker_rest_free(c->rest);
    tinker_sampler_free(c->sampler);
    tinker_training_free(c->training);
    world_close(w);
}

/* Submit with a deadline of 20 s; the message is left in w->err. */
static void expire(struct world *w, struct clients *c, size_t kind)
{
    tinker_future *f = kinds[kind].submit(w, c);
    REQUIRE(f != NULL);
    tinker_future_set_deadline(f, 20000);
    CHECK_INT(world_finish(w, f, 100000), TINKER_ETIMEDOUT);
    if (!c->stream)
        tinker_future_free(f);
}

static void test_a_deadline_tells_what_the_service_answered(void)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        struct world w;
        struct clients c;
        open_clients(&w, &c);
        say(&w, kinds[i].path, 503, "{\"detail\":\"no room\"}", -1);
        expire(&w, &c, i);
        if (!strstr(w.err.message, "within its deadline of 20 s; the last attempt failed: ") ||
            !strstr(w.err.message, "Error code: 503 - no room"))
            TAP_FAIL("%s: %s", kinds[i].name, w.err.message);
        CHECK_INT(w.err.http_status, 0); /* the deadline is the failure, not the answer */
        close_clients(&w, &c);
    }
}

static void test_a_deadline_tells_that_connections_fail(void)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        struct world w;
        struct clients c;
        open_clients(&w, &c);
        fake_script(w.server, kinds[i].path,
                    (struct fake_reply){ .fault = FAKE_DROP, .times = -1 });
        expire(&w, &c, i);
        if (!strstr(w.err.message, "the last attempt failed: ") ||
            !strstr(w.err.message, fake_server_url(w.server)))
            TAP_FAIL("%s: %s", kinds[i].name, w.err.message);
        close_clients(&w, &c);
    }
}

/* ---- before the first attempt ------------------------------------------------------------------ */

/* Nothing of their own was sent, because the session could not be made. */
static void test_a_deadline_tells_why_there_is_no_session(void)
{
    static const char *const steps[] = { API "client/config", API "create_session" };
    for (size_t i = 0; i < 2; i++) {
        struct world w;
        world_open(&w, NULL, NULL);
        say(&w, steps[i], 500, "{\"detail\":\"asleep\"}", -1);
        tinker_future *f = tinker_service_request_sampler(w.service, "tiny", NULL, &w.err);
        tinker_future_set_deadline(f, 3000);
        CHECK_INT(world_finish(&w, f, 10000), TINKER_ETIMEDOUT);
        if (!strstr(w.err.message, "the last exchange with the service failed: Error code: 500"))
            TAP_FAIL("%s: %s", steps[i], w.err.message);
        tinker_future_free(f);
        world_close(&w);
    }
}

/* Nobody listens there: the system's own word for it reaches the user. */
static void test_a_refused_connection_is_called_so(void)
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.base_url = "http://127.0.0.1:9";
    world_open(&w, NULL, &o);
    tinker_future *f = tinker_service_check_health(w.service, &w.err);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_ECONNECT);
    CHECK(strstr(w.err.message, "http://127.0.0.1:9/: Couldn't connect to server: Connection "
                                "refused") != NULL);
    tinker_future_free(f);
    world_close(&w);
}

/* A step in line behind one that fails has not been sent either. */
static void test_a_deadline_in_the_queue_of_a_model(void)
{
    struct world w;
    struct clients c;
    open_clients(&w, &c);
    say(&w, API "optim_step", 503, "{\"detail\":\"no room\"}", -1);
    tinker_future *first = optim_step(&w, &c), *second = optim_step(&w, &c);
    tinker_future_set_deadline(second, 3000);
    CHECK_INT(world_finish(&w, second, 10000), TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "the last exchange with the service failed: Error code: 503"));
    tinker_future_free(first);
    tinker_future_free(second);
    close_clients(&w, &c);
}

/* ---- what is no trouble, or none any more ------------------------------------------------------- */

static void test_an_answer_ends_the_trouble(void)
{
    struct world w;
    struct clients c;
    open_clients(&w, &c);
    say(&w, POLL, 503, "{}", 2);
    say(&w, POLL, 408, "{\"queue_state\":\"paused_capacity\"}", 1);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f = optim_step(&w, &c);
    tinker_future_set_deadline(f, 20000);
    CHECK_INT(world_finish(&w, f, 30000), TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "deadline") && !strstr(w.err.message, "failed"));
    tinker_future_free(f);
    close_clients(&w, &c);
}

/* What is wrong with one request says nothing about another. */
static void test_the_fault_of_another_is_not_told(void)
{
    struct world w;
    struct clients c;
    open_clients(&w, &c);
    say(&w, API "sessions", 404, "{}", 1);
    fake_script(w.server, API "healthz", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = health(&w, &c), *other = sessions(&w, &c);
    CHECK_INT(world_finish(&w, other, 1000), TINKER_EHTTP);
    tinker_future_set_deadline(f, 3000);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_ETIMEDOUT);
    CHECK(!strstr(w.err.message, "failed"));
    tinker_future_free(f);
    tinker_future_free(other);
    close_clients(&w, &c);
}

/* ---- waits -------------------------------------------------------------------------------------- */

static void test_waits_tell_it_too(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    say(&w, API "client/config", 500, "{\"detail\":\"asleep\"}", -1);
    tinker_future *f = tinker_service_check_health(w.service, &w.err);
    world_settle(&w);
    CHECK_INT(tinker_future_wait(f, 0, NULL), TINKER_ETIMEDOUT);
    CHECK_INT(tinker_future_wait(f, 0, &w.err), TINKER_ETIMEDOUT);
    CHECK_STR(w.err.message, "pending; the last exchange with the service failed: Error code: 500 "
                             "- asleep");
    CHECK_INT(tinker_future_wait(f, 1, &w.err), TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "the request goes on; the last exchange with the service failed: "
                                "Error code: 500 - asleep") != NULL);
    CHECK(!tinker_service_create_sampler(w.service, "tiny", NULL, 50, &w.err));
    CHECK_INT(w.err.status, TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "was canceled; the last exchange") != NULL);
    tinker_future_cancel(f);
    world_settle(&w);
    CHECK_INT(tinker_future_wait(f, 0, &w.err), TINKER_ECANCELED);
    tinker_future_free(f);
    world_close(&w);
}

int main(void)
{
    RUN(test_a_deadline_tells_what_the_service_answered);
    RUN(test_a_deadline_tells_that_connections_fail);
    RUN(test_a_deadline_tells_why_there_is_no_session);
    RUN(test_a_refused_connection_is_called_so);
    RUN(test_a_deadline_in_the_queue_of_a_model);
    RUN(test_an_answer_ends_the_trouble);
    RUN(test_the_fault_of_another_is_not_told);
    RUN(test_waits_tell_it_too);
    return tap_done();
}
