/* Numbers that never come: who waits for them, for how long, and what becomes of them.
 *
 * Time is the test's, but the server's own timer thread looks at it, too. */
#include "server/http/listener.h"
#include "server/store/timers.h"
#include "server/harness.h"
#include "server/dial.h"

static struct fake_clock fake;

static void fake_time(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
    o->seq_gap_ms = 20000;
    o->session_timeout_s = 3600;
}

static void same_time(struct server_options *o)
{
    o->clock = &fake.clock;
    o->seq_gap_ms = 20000;
    o->session_timeout_s = 3600;
}

static void pass_time(struct server *s, int ms)
{
    fake_clock_advance_ms(&fake, ms);
    timers_run_once(s, false);
}

static void send_heartbeat(struct server *s, const char *session)
{
    struct reply r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
}

/* The id of a request that was accepted. */
static const char *check_accepted(struct reply r)
{
    static char ids[8][128];
    static int turn;
    char *id = ids[turn++ % 8];
    CHECK_STATUS(r, 200);
    snprintf(id, sizeof(ids[0]), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    return id;
}

static bool is_waiting(struct server *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    bool waiting = f && f->state == FUTURE_WAITING;
    pthread_mutex_unlock(&s->lock);
    return waiting;
}

static bool has_run(struct server *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    bool done = f && f->state == FUTURE_DONE;
    pthread_mutex_unlock(&s->lock);
    return done;
}

static void check_refused(struct server *s, const char *model, int seq)
{
    struct reply r = forward_backward(s, model, seq);
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "came too late"));
    reply_clear(&r);
}

/* As the official SDK does it: forward_backward fails inside, optim_step is sent. */
static void test_a_client_that_went_on_waits_seconds(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    const char *step = check_accepted(optim_step(s, model, 2, 1));
    pass_time(s, 4000);
    CHECK(is_waiting(s, step));
    pass_time(s, 1000);
    wait_done(s, step);
    CHECK(has_run(s, step));
    check_refused(s, model, 1);
    server_close(s);
}

/* The same when passes wait before what shows it. */
static void test_any_later_request_of_another_kind_shows_it(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    const char *second = check_accepted(forward_backward(s, model, 2));
    pass_time(s, 10000);
    CHECK(is_waiting(s, second));
    const char *third = check_accepted(optim_step(s, model, 3, 1));
    pass_time(s, 4000);
    CHECK(is_waiting(s, second));
    pass_time(s, 1000);
    wait_done(s, third);
    CHECK(has_run(s, second) && has_run(s, third));
    server_close(s);
}

/* Passes of one kind may be a batch whose first request is sent last. */
static void test_the_first_of_a_batch_gets_more_time(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    check_accepted(forward_backward(s, model, 2));
    const char *last = check_accepted(forward_backward(s, model, 3));
    pass_time(s, 19000);
    CHECK(is_waiting(s, last));
    const char *first = check_accepted(forward_backward(s, model, 1));
    wait_done(s, last);
    CHECK(has_run(s, first) && has_run(s, last));
    CHECK_NEAR(gradient_after(s, model, 4), 9, 0);
    server_close(s);
}

static void test_a_batch_does_not_wait_for_ever(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    const char *second = check_accepted(forward_backward(s, model, 2));
    pass_time(s, 20000);
    wait_done(s, second);
    CHECK(has_run(s, second));
    check_refused(s, model, 1);
    CHECK_NEAR(gradient_after(s, model, 3), 3, 0);
    server_close(s);
}

/* Who cannot reach us cannot send what is missing either; but nobody tries for ever. */
static void test_time_counts_while_the_client_is_heard(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    const char *second = check_accepted(forward_backward(s, model, 2));
    fake_clock_advance_ms(&fake, 40000);
    send_heartbeat(s, session);
    pass_time(s, 19000);
    CHECK(is_waiting(s, second));
    pass_time(s, 1000);
    wait_done(s, second);
    CHECK(has_run(s, second));
    const char *fourth = check_accepted(forward_backward(s, model, 4));
    fake_clock_advance_ms(&fake, 40000); /* and it is not heard of again */
    for (int i = 0; i < 5; i++)
        pass_time(s, 50000);
    CHECK(is_waiting(s, fourth));
    pass_time(s, 10000);
    wait_done(s, fourth);
    CHECK(has_run(s, fourth));
    server_close(s);
}

/* A body that is on its way may be the missing number: a slow upload is no lost one. */
static void test_a_body_that_arrives_is_waited_for(void)
{
    char session[64], model[96], head[300], body[600];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    snprintf(body, sizeof(body),
             "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"data\":[" DATUM(
                 "5,6,7") "],\"loss_fn\":\"cross_entropy\"}}",
             model);
    snprintf(head, sizeof(head),
             "POST /api/v1/forward_backward HTTP/1.1\r\nHost: 127.0.0.1\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n{",
             strlen(body));
    int fd = connect_local(server_port(s));
    send_text(fd, head);
    for (int i = 0; i < 4000 && !listener_is_receiving(s->listener, "local", INT64_MAX); i++)
        nap_ms(5);
    CHECK(listener_is_receiving(s->listener, "local", INT64_MAX));
    CHECK(!listener_is_receiving(s->listener, "another", INT64_MAX));
    const char *step = check_accepted(optim_step(s, model, 2, 1));
    pass_time(s, 25000);
    CHECK(is_waiting(s, step));
    send_text(fd, body + 1);
    CHECK(strstr(receive_until(fd, "request_id"), "request_id"));
    close(fd);
    struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", step);
    CHECK(strstr(r.body, "\"grad_norm:mean\":3.0"));
    reply_clear(&r);
    /* One that its client broke off is not. */
    fd = connect_local(server_port(s));
    send_text(fd, head);
    for (int i = 0; i < 4000 && !listener_is_receiving(s->listener, "local", INT64_MAX); i++)
        nap_ms(5);
    const char *fourth = check_accepted(optim_step(s, model, 4, 1));
    pass_time(s, 6000);
    CHECK(is_waiting(s, fourth));
    close(fd);
    for (int i = 0; i < 4000 && listener_is_receiving(s->listener, "local", INT64_MAX); i++)
        nap_ms(5);
    timers_run_once(s, false);
    wait_done(s, fourth);
    CHECK(has_run(s, fourth));
    server_close(s);
}

/* Killed after the number was skipped and before what waited behind it had run. */
static void test_a_number_passed_over_is_refused_after_a_restart(void)
{
    char session[64], model[96], id[128];
    tinker_error err;
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    snprintf(id, sizeof(id), "%s", check_accepted(forward_backward(s, model, 4)));
    CHECK(is_waiting(s, id));
    CHECK_INT(store_set_skipped_seq(s->store, model, 3, &err), TINKER_OK);
    server_close(s);
    s = start_with(same_time);
    REQUIRE(s);
    wait_done(s, id);
    CHECK(has_run(s, id));
    check_refused(s, model, 2);
    check_refused(s, model, 3);
    CHECK_NEAR(gradient_after(s, model, 5), 6, 0);
    server_close(s);
    /* and once more, when all of it is history */
    s = start_with(same_time);
    REQUIRE(s);
    check_refused(s, model, 3);
    r = result_of(s, forward_backward(s, model, 6));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    server_close(s);
}

/* The timer thread itself records it. */
static void test_the_store_hears_of_it(void)
{
    char session[64], model[96];
    int64_t passed = 0;
    tinker_error err;
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    CHECK_INT(store_get_skipped_seq(s->store, model, &passed, &err), TINKER_OK);
    CHECK_INT(passed, -1);
    const char *step = check_accepted(optim_step(s, model, 7, 1));
    pass_time(s, 5000);
    wait_done(s, step);
    CHECK_INT(store_get_skipped_seq(s->store, model, &passed, &err), TINKER_OK);
    CHECK_INT(passed, 6);
    server_close(s);
}

/* Other models, and later gaps of the same one, are not touched. */
static void test_one_gap_at_a_time(void)
{
    char session[64], model[96], other[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    make_model(s, session, 1, other);
    const char *second = check_accepted(optim_step(s, model, 2, 1));
    pass_time(s, 3000);
    const char *fourth = check_accepted(optim_step(s, model, 4, 1));
    const char *theirs = check_accepted(optim_step(s, other, 2, 1));
    pass_time(s, 2000);
    wait_done(s, second);
    CHECK(is_waiting(s, fourth) && is_waiting(s, theirs));
    const char *first = check_accepted(optim_step(s, other, 1, 1));
    wait_done(s, theirs);
    CHECK(has_run(s, first) && has_run(s, theirs));
    const char *third = check_accepted(optim_step(s, model, 3, 1));
    wait_done(s, fourth);
    CHECK(has_run(s, third) && has_run(s, fourth));
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_client_that_went_on_waits_seconds);
    RUN(test_any_later_request_of_another_kind_shows_it);
    RUN(test_the_first_of_a_batch_gets_more_time);
    RUN(test_a_batch_does_not_wait_for_ever);
    RUN(test_time_counts_while_the_client_is_heard);
    RUN(test_a_body_that_arrives_is_waited_for);
    RUN(test_a_number_passed_over_is_refused_after_a_restart);
    RUN(test_the_store_hears_of_it);
    RUN(test_one_gap_at_a_time);
    harness_clear();
    return tap_done();
}
