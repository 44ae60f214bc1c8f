/* server_nomem.c - whatever allocation of a request fails, it is answered with 503 and a hint to retry,
 * or as if nothing had happened; never with a status that blames the request. */
#include "base/array.h"
#include "server/harness.h"
#include "server/store/timers.h"
#include "server/work/engine_thread.h"
#include "support/failmalloc.h"

static const char *no_query(struct request *req, const char *name)
{
    (void)req, (void)name;
    return NULL;
}

static char last_body[256]; /* of the last response */

static bool charge_nothing(struct request *req, size_t n)
{
    (void)req, (void)n;
    return true;
}

/* The request as the listener hands it to the routes, in this thread: the only one that allocates. */
static int handle_request(struct server *s, const char *method, const char *path, const char *body,
                          bool *hint)
{
    struct buf decoded;
    buf_init(&decoded, 1 << 20);
    struct request req = { .method = method,
                           .path = path,
                           .content_type = "application/json",
                           .host = "127.0.0.1",
                           .body = body,
                           .n_body = strlen(body),
                           .buffer = &decoded,
                           .charge = charge_nothing,
                           .query = no_query };
    struct response res;
    arena_init(&req.arena, 1 << 26);
    response_init(&res);
    routes_place(s, &req);
    routes_handle(s, &req, &res);
    int status = res.status;
    snprintf(last_body, sizeof(last_body), "%.*s", (int)res.body.len,
             res.body.len ? res.body.data : "");
    *hint = false;
    for (size_t i = 0; i < res.n_headers; i++)
        *hint = *hint || strcmp(res.headers[i].name, "Retry-After") == 0;
    response_drop(&res);
    if (req.context_free)
        req.context_free(req.context);
    buf_clear(&decoded);
    arena_clear(&req.arena);
    return status;
}

static void test_every_failure_is_503(void)
{
    char session[64], model[96], pass[512], sampler[256], sample[512], step[256], info[160],
        create[256];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    /* Nothing but this thread may take the failure: what is accepted waits. */
    engine_thread_stop(s);
    timers_stop(s);
    s->stopping = false;
    snprintf(pass, sizeof(pass),
             "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"data\":[{"
             "\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2,3]}]},"
             "\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[2,3,4],\"dtype\":\"int64\"}}}],"
             "\"loss_fn\":\"cross_entropy\"}}",
             model);
    snprintf(step, sizeof(step),
             "{\"model_id\":\"%s\",\"seq_id\":2,\"adam_params\":{\"learning_rate\":0.1}}", model);
    snprintf(sampler, sizeof(sampler),
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":7,\"base_model\":\"test/model\"}",
             session);
    snprintf(
        sample, sizeof(sample),
        "{\"sampling_session_id\":\"%s:sample:7\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"type\":"
        "\"encoded_text\",\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}",
        session);
    snprintf(create, sizeof(create),
             "{\"session_id\":\"%s\",\"model_seq_id\":5,\"base_model\":\"test/model\","
             "\"lora_config\":{\"rank\":4}}",
             session);
    snprintf(info, sizeof(info), "{\"model_id\":\"%s\"}", model);
    const struct {
        const char *method, *path, *body;
    } asks[] = { { "POST", "/api/v1/create_session", "{\"tags\":[\"a\"],\"sdk_version\":\"1\"}" },
                 { "POST", "/api/v1/forward_backward", pass },
                 { "POST", "/api/v1/optim_step", step },
                 { "POST", "/api/v1/create_model", create },
                 { "POST", "/api/v1/create_sampling_session", sampler },
                 { "POST", "/api/v1/asample", sample },
                 { "POST", "/api/v1/get_info", info },
                 { "GET", "/api/v1/training_runs", "" },
                 { "GET", "/api/v1/sessions", "" },
                 { "GET", "/api/v1/get_server_capabilities", "" } };
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        int refused = 0;
        for (long n = 1; n < 5000; n++) {
            bool hint;
            failmalloc_at(n);
            int status = handle_request(s, asks[i].method, asks[i].path, asks[i].body, &hint);
            bool failed = failmalloc_stop();
            if (status != 200 && (status != 503 || !hint || !failed)) {
                printf("# %s, allocation %ld: status %d %s\n", asks[i].path, n, status, last_body);
                CHECK(false);
            }
            refused += status == 503;
            if (!failed)
                break;
        }
        printf("# %s: %d times 503\n", asks[i].path, refused);
        CHECK(refused > 0);
    }
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_every_failure_is_503);
    harness_clear();
    return tap_done();
}
