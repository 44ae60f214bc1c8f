/* The system's clock is set back by an hour: timers go on. */
#include <pthread.h>
#include <time.h>

/* What whoever asked before the change remembers. */
static int before_the_change(clockid_t id, struct timespec *t)
{
    int rc = clock_gettime(id, t);
    if (id == CLOCK_REALTIME)
        t->tv_sec += 3600;
    return rc;
}
#define clock_gettime before_the_change
#include "server/store/timers.c"
#undef clock_gettime

#include "server/store/store_sql.h"
#include "server/harness.h"

static void short_gap(struct server_options *o)
{
    o->seq_gap_ms = 1;
    o->ephemeral_keep = 1;
}

static void test_waits_end(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(short_gap, session, model);
    REQUIRE(s);
    struct reply r = optim_step(s, model, 2, 1);
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    wait_done(s, id);
    CHECK(is_done(s, id));
    server_close(s);
}

static struct reply save_unnamed(struct server *s, const char *model, int seq, int n)
{
    return result_of(s, post(s, "/api/v1/save_weights_for_sampler",
                             "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":%d}",
                             model, seq, n));
}

static void test_the_newest_unnamed_weights_stay(void)
{
    char session[64], model[96];
    struct server *s = start_model(short_gap, session, model);
    REQUIRE(s);
    struct reply r = save_unnamed(s, model, 1, 9);
    reply_clear(&r);
    pthread_mutex_lock(&s->store->lock);
    sql_run(s->store, "UPDATE checkpoints SET created_us=created_us+3600000000", NULL, 0, NULL);
    pthread_mutex_unlock(&s->store->lock);
    r = save_unnamed(s, model, 2, 10);
    reply_clear(&r);
    server_close(s); /* what is in memory would hide what is on disk */
    s = start_with(short_gap);
    REQUIRE(s);
    r = result_of(s, post(s, "/api/v1/asample",
                          "{\"sampling_session_id\":\"%s:sample:10\",\"seq_id\":0,\"prompt\":{"
                          "\"chunks\":[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}",
                          session));
    CHECK(strstr(r.body, "[6]"));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_waits_end);
    RUN(test_the_newest_unnamed_weights_stay);
    harness_clear();
    return tap_done();
}
