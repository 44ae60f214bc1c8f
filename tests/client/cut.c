/* Responses that are cut: at every byte, by FIN and by RST, and at random.
 *
 * Whatever is lost of a response, the request counts as not answered and is sent again: every
 * operation ends well, with its own result, and nothing is executed twice. */
#include <sys/stat.h>
#include <unistd.h>
#include <tinker/extra/stream.h>
#include "client/session/session.h"
#include "client/training/training_client.h"
#include "support/fake_faulty.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define POLL       API "retrieve_future"
#define STREAM     API "stream_sample"
#define RUN_PATH   API "training_runs/run-1"
#define ARCHIVE    RUN_PATH "/checkpoints/weights/a/archive"
#define CHECKPOINT "tinker://run-1/weights/a"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 5, OPERATIONS = 200 };
#else
enum { STRIDE = 1, OPERATIONS = 1000 };
#endif
/* of what the fake server says without a length, as JSON */
#define UNFRAMED_HEAD \
    strlen("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
enum { TRAINERS = 4, LIMIT_MS = 900000, HEARTBEAT_MS = 10000 };

static const char events[] = "data: {\"token_id\":7}\n\ndata: {\"token_id\":8}\n\n"
                             "data: {\"sequence\":0,\"finish_reason\":\"stop\"}\n\n"
                             "data: [DONE]\n\n";
static const char blob[] = "an archive, or what passes for one";

struct test {
    struct world w;
    struct faulty faulty;
    tinker_training *trainers[TRAINERS];
    tinker_sampler *sampler;
    tinker_rest *rest;
    char location[128], file[64];
    int64_t number; /* of the last operation */
};

/* ---- the service ------------------------------------------------------------------------- */

static void answer(void *state, const struct fake_request *r, struct fake_reply *out)
{
    struct test *t = state;
    if (strcmp(r->path, STREAM) == 0) {
        out->content_type = "text/event-stream";
        out->body = strdup(events);
    } else if (strcmp(r->path, ARCHIVE) == 0) {
        out->status = 302;
        out->headers = t->location;
    } else if (strcmp(r->path, "/file") == 0) {
        out->content_type = "application/x-tar";
        out->body = strdup(blob);
    } else
        faulty_answer(&t->faulty, r, out);
}

static void test_open(struct test *t)
{
    memset(t, 0, sizeof(*t));
    faulty_init(&t->faulty, 1, 0, "{\"stream_sample\":true,\"fwdbwd_max_chunk_len\":2}");
    world_open(&t->w, NULL, NULL);
    t->w.instead_state = t;
    t->w.instead = answer;
    snprintf(t->location, sizeof(t->location), "Location: %s/file\r\n",
             fake_server_url(t->w.server));
    snprintf(t->file, sizeof(t->file), "/tmp/tinker-cut-%d", (int)getpid());
    t->rest = tinker_service_create_rest(t->w.service, NULL);
    for (int i = 0; i < TRAINERS; i++)
        t->trainers[i] = world_training(&t->w);
    t->sampler = world_sampler(&t->w);
}

static void test_close(struct test *t)
{
    for (int i = 0; i < TRAINERS; i++)
        tinker_training_free(t->trainers[i]);
    tinker_sampler_free(t->sampler);
    tinker_rest_free(t->rest);
    world_close(&t->w);
    CHECK_INT(t->faulty.twice, 0);
    CHECK_INT(t->faulty.out_of_order, 0);
    CHECK_INT(t->faulty.changed, 0);
    faulty_clear(&t->faulty);
}

/* ---- operations: true when it ended well, with its own result -------------------------------- */

static tinker_future *submit_pass(struct test *t, tinker_training *m, int64_t number)
{
    int32_t tokens[3][2];
    int64_t targets[2] = { 1, 2 };
    tinker_chunk chunks[3];
    tinker_named_tensor input = { "target_tokens",
                                  { .dtype = TINKER_INT64, .data = targets, .n = 2 } };
    tinker_datum data[3];
    for (int i = 0; i < 3; i++) {
        tokens[i][0] = (int32_t)number;
        tokens[i][1] = i;
        chunks[i] = (tinker_chunk){ .tokens = tokens[i], .n_tokens = 2 };
        data[i] =
            (tinker_datum){ .model_input = { &chunks[i], 1 }, .inputs = &input, .n_inputs = 1 };
    }
    return tinker_training_forward_backward(m, data, 3, &fake_loss, &t->w.err);
}

static bool is_own_pass(tinker_future *f, int64_t number)
{
    const tinker_forward_backward *p = tinker_future_forward_backward(f);
    return p && p->n_outputs == 3 &&
           tinker_metric(p->metrics, p->n_metrics, "operation:max") == (double)number &&
           tinker_metric(p->metrics, p->n_metrics, "loss:sum") == 3;
}

static tinker_future *submit_step(struct test *t, tinker_training *m, int64_t number)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = (double)number * 1e-6;
    return tinker_training_optim_step(m, &adam, &t->w.err);
}

static bool is_own_step(tinker_future *f, int64_t number)
{
    size_t n = 0;
    const tinker_named_number *m = tinker_future_metrics(f, &n);
    return tinker_metric(m, n, "operation:max") == (double)number;
}

/* Let time pass until f is complete; frees it. */
static bool finish(struct test *t, tinker_future *f)
{
    bool ok = f && world_finish(&t->w, f, LIMIT_MS) == TINKER_OK;
    if (!ok)
        printf("# %s\n", t->w.err.message);
    return ok;
}

static bool run_pass(struct test *t)
{
    int64_t number = ++t->number;
    tinker_future *f = submit_pass(t, t->trainers[0], number);
    bool ok = finish(t, f) && is_own_pass(f, number);
    tinker_future_free(f);
    return ok;
}

static bool run_step(struct test *t)
{
    int64_t number = ++t->number;
    tinker_future *f = submit_step(t, t->trainers[0], number);
    bool ok = finish(t, f) && is_own_step(f, number);
    tinker_future_free(f);
    return ok;
}

static bool run_save(struct test *t)
{
    char name[32];
    snprintf(name, sizeof(name), "op-%lld", (long long)++t->number);
    tinker_future *f = tinker_training_save_state(t->trainers[0], name, NULL, &t->w.err);
    bool ok = finish(t, f) && strstr(tinker_future_saved_path(f), name) != NULL;
    tinker_future_free(f);
    return ok;
}

static bool run_sample(struct test *t)
{
    int32_t token = (int32_t)++t->number;
    tinker_chunk chunk = { .tokens = &token, .n_tokens = 1 };
    tinker_model_input prompt = { &chunk, 1 };
    tinker_future *f = tinker_sampler_sample(t->sampler, &prompt, NULL, NULL, &t->w.err);
    bool ok = finish(t, f) && tinker_future_sample(f)->n_sequences == 1 &&
              tinker_future_sample(f)->sequences[0].tokens[0] == token;
    tinker_future_free(f);
    return ok;
}

static bool run_get(struct test *t)
{
    tinker_future *f =
        tinker_rest_get_training_run(t->rest, "run-1", TINKER_SCOPE_OWNED, &t->w.err);
    bool ok = finish(t, f) && strcmp(tinker_future_training_run(f)->id, "run-1") == 0;
    tinker_future_free(f);
    return ok;
}

static bool run_capabilities(struct test *t)
{
    tinker_future *f = tinker_service_get_capabilities(t->w.service, &t->w.err);
    bool ok = finish(t, f);
    tinker_future_free(f);
    return ok;
}

static bool download(struct test *t)
{
    tinker_future *f =
        tinker_rest_download_checkpoint(t->rest, CHECKPOINT, t->file, NULL, &t->w.err);
    bool ok = f != NULL;
    /* the end of the file is a worker's, which no fake clock waits for */
    while (ok && world_finish(&t->w, f, HEARTBEAT_MS) == TINKER_ETIMEDOUT &&
           world_ms(&t->w) < INT64_C(100) * LIMIT_MS) {
    }
    ok = ok && tinker_future_wait(f, 0, &t->w.err) == TINKER_OK;
    tinker_future_free(f);
    return ok;
}

static bool run_download(struct test *t)
{
    char got[sizeof(blob) + 1];
    bool ok = download(t);
    FILE *in = ok ? fopen(t->file, "rb") : NULL;
    ok = in && fread(got, 1, sizeof(got), in) == sizeof(blob) - 1 &&
         memcmp(got, blob, sizeof(blob) - 1) == 0;
    if (in)
        fclose(in);
    unlink(t->file);
    return ok;
}

/* 7, 8, finished, each once. */
static tinker_status read_stream(struct test *t, int has_seed, int *tokens, bool *ends)
{
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    tinker_stream_event e;
    tinker_status s;
    params.has_seed = has_seed;
    params.seed = 1;
    tinker_stream *st = tinker_sampler_stream(t->sampler, fake_prompt(5), &params, NULL, &t->w.err);
    if (!st)
        return t->w.err.status;
    world_finish(&t->w, stream_future(st), LIMIT_MS);
    *tokens = 0;
    *ends = false;
    while ((s = tinker_stream_next(st, 0, &e, &t->w.err)) == TINKER_OK &&
           e.kind != TINKER_STREAM_END) {
        if (e.kind == TINKER_STREAM_TOKEN && (*ends || e.token != 7 + (*tokens)++))
            s = TINKER_ESTATE;
        *ends = *ends || e.kind == TINKER_STREAM_FINISHED;
    }
    tinker_stream_free(st);
    return s;
}

static bool run_stream(struct test *t)
{
    int tokens;
    bool ends;
    tinker_status s = read_stream(t, 1, &tokens, &ends);
    if (s != TINKER_OK)
        printf("# %s\n", t->w.err.message);
    return s == TINKER_OK && tokens == 2 && ends;
}

/* One heartbeat is lost at most, and the next one is on time. */
static bool run_heartbeat(struct test *t)
{
    const struct session *h = t->trainers[0]->session;
    size_t before = fake_count(t->w.server, API "session_heartbeat");
    world_advance(&t->w, 3 * HEARTBEAT_MS);
    return h->heartbeat_failures == 0 && world_log_count(&t->w, "no heartbeat") == 0 &&
           fake_count(t->w.server, API "session_heartbeat") >= before + 2;
}

/* A second service begins: session, configuration, sampler, model. */
static bool run_start(struct test *t)
{
    tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
    opts.api_key = "tml-0123456789abcdef";
    opts.base_url = fake_server_url(t->w.server);
    opts.telemetry.enabled = -1;
    tinker_service *s = tinker_service_new(&opts, &t->w.err);
    tinker_future *f = s ? tinker_service_request_sampler(s, "tiny", NULL, &t->w.err) : NULL;
    bool ok = finish(t, f);
    tinker_future_free(f);
    f = ok ? tinker_service_request_lora(s, "tiny", NULL, &t->w.err) : NULL;
    ok = finish(t, f);
    tinker_future_free(f);
    tinker_service_free(s);
    return ok;
}

/* ---- every byte ------------------------------------------------------------------------------ */

#define PENDING "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"active\"}"
#define LARGE   "{\"status\":\"complete_metadata\",\"response_payload_size\":1000}"

static const struct kind {
    const char *name, *path;
    bool (*run)(struct test *t);
    const char *first; /* what is said before the answer, and cut; NULL: the answer is */
    int status;        /* of first */
} kinds[] = {
    { "submit a pass", API "forward_backward", run_pass, NULL, 0 },
    { "submit a step", API "optim_step", run_step, NULL, 0 },
    { "submit a save", API "save_weights", run_save, NULL, 0 },
    { "submit a sample", API "asample", run_sample, NULL, 0 },
    { "poll for protobuf", POLL, run_pass, NULL, 0 },
    { "poll for JSON", POLL, run_step, NULL, 0 },
    { "poll for a sample", POLL, run_sample, NULL, 0 },
    { "poll, pending", POLL, run_step, PENDING, 200 },
    { "poll, announced", POLL, run_pass, LARGE, 200 },
    { "poll, 408", POLL, run_step, "{\"queue_state\":\"paused_capacity\"}", 408 },
    { "submit, 503", API "optim_step", run_step, "{\"detail\":\"busy\"}", 503 },
    { "heartbeat", API "session_heartbeat", run_heartbeat, NULL, 0 },
    { "GET", RUN_PATH, run_get, NULL, 0 },
    { "GET capabilities", API "get_server_capabilities", run_capabilities, NULL, 0 },
    { "address of an archive", ARCHIVE, run_download, NULL, 0 },
    { "download", "/file", run_download, NULL, 0 },
    { "stream", STREAM, run_stream, NULL, 0 },
    { "create_session", API "create_session", run_start, NULL, 0 },
    { "client/config", API "client/config", run_start, NULL, 0 },
    { "create_sampling_session", API "create_sampling_session", run_start, NULL, 0 },
    { "create_model", API "create_model", run_start, NULL, 0 },
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

/* Cut one response after `at` bytes; false: it has no more than these, so nothing was cut. */
static bool cut_one(struct test *t, const struct kind *k, size_t at, enum fake_cut how,
                    enum fake_fault fault)
{
    size_t before = fake_cuts(t->w.server);
    if (k->first)
        fake_script(t->w.server, k->path,
                    (struct fake_reply){ .status = k->status, .body = k->first, .fault = fault });
    fake_cut(t->w.server, k->path, at, how);
    bool ok = k->run(t);
    CHECK(ok);
    if (!ok)
        printf("# %s: %s after %zu bytes\n", k->name, how == FAKE_CUT_FIN ? "FIN" : "RST", at);
    return fake_cuts(t->w.server) > before;
}

static void cut_every_byte(struct test *t, const struct kind *k)
{
    size_t n[2] = { 0, 0 };
    for (int how = FAKE_CUT_FIN; how <= FAKE_CUT_RST; how++)
        for (size_t at = how ? STRIDE / 2 : 0; cut_one(t, k, at, how, FAKE_NONE); at += STRIDE)
            n[how]++;
    CHECK(n[0] * STRIDE > 40 && n[1] * STRIDE > 40);
    printf("# %s: %zu cuts\n", k->name, n[0] + n[1]);
}

static void test_every_byte(void)
{
    struct test t;
    test_open(&t);
    for (int i = 0; i < KINDS; i++)
        cut_every_byte(&t, &kinds[i]);
    CHECK(t.faulty.repeats > 100); /* executed before the cut, and known by their numbers */
    test_close(&t);
}

/* Every byte by itself, whole and cut in the middle. */
static void test_trickle(void)
{
    struct test t;
    test_open(&t);
    fake_trickle(t.w.server, true);
    for (int i = 0; i < KINDS; i++)
        for (size_t at = 20; at <= 100; at += 40)
            cut_one(&t, &kinds[i], at, at % 80 ? FAKE_CUT_FIN : FAKE_CUT_RST, FAKE_NONE);
    for (int i = 0; i < KINDS; i++) {
        CHECK(kinds[i].run(&t));
    }
    test_close(&t);
}

/* Without a length only the content tells that something is missing. */
static void test_unframed(void)
{
    static const struct kind unframed[] = {
        { "poll, pending", POLL, run_step, PENDING, 200 },
        { "poll, announced", POLL, run_pass, LARGE, 200 },
        { "capabilities", API "get_server_capabilities", run_capabilities,
          "{\"supported_models\":[]}", 200 },
    };
    struct test t;
    test_open(&t);
    for (size_t i = 0; i < sizeof(unframed) / sizeof(*unframed); i++)
        for (size_t at = 0; cut_one(&t, &unframed[i], at, FAKE_CUT_FIN, FAKE_NO_LENGTH); at++) {
        }
    test_close(&t);
}

/* Of an archive without a length the two blocks of zeros tell that it is whole. */
static void test_unframed_archive(void)
{
    static char tar[4 * 512];
    struct test t;
    struct stat st;
    test_open(&t);
    memset(tar, 'x', 1024);
    memcpy(tar + 257, "ustar", 6);
    const struct fake_reply reply = {
        .body = tar, .len = sizeof(tar), .fault = FAKE_NO_LENGTH, .times = 2
    };
    for (size_t left = 1; left < sizeof(tar); left += 89) {
        size_t cuts = fake_cuts(t.w.server);
        fake_script(t.w.server, "/file", reply);
        /* the length of the head matters to nobody: count from the end */
        fake_cut(t.w.server, "/file", sizeof(tar) + UNFRAMED_HEAD - left, FAKE_CUT_FIN);
        CHECK(download(&t));
        CHECK(stat(t.file, &st) == 0 && st.st_size == (off_t)sizeof(tar));
        CHECK_INT(fake_cuts(t.w.server), cuts + 1);
        unlink(t.file);
    }
    test_close(&t);
}

/* Without a seed other tokens would come: what follows the first event is not tried again. */
static void test_stream_without_seed(void)
{
    struct test t;
    test_open(&t);
    size_t before, ended = 0, recovered = 0;
    for (size_t at = 0;; at++) {
        int tokens = 0;
        bool ends = false;
        before = fake_cuts(t.w.server);
        fake_cut(t.w.server, STREAM, at, FAKE_CUT_FIN);
        size_t asked = fake_count(t.w.server, STREAM);
        tinker_status s = read_stream(&t, 0, &tokens, &ends);
        if (fake_cuts(t.w.server) == before)
            break;
        recovered += s == TINKER_OK && fake_count(t.w.server, STREAM) == asked + 2;
        ended += s != TINKER_OK && tokens > 0 && fake_count(t.w.server, STREAM) == asked + 1;
        CHECK(s == TINKER_OK ? tokens == 2 && ends : tokens > 0);
    }
    CHECK(recovered > 60 && ended > 20);
    test_close(&t);
}

/* ---- at random ------------------------------------------------------------------------------- */

/* Training, a window of operations at a time, and everything else beside it; the weights. */
static uint64_t train(int percent, size_t *cuts)
{
    struct test t;
    test_open(&t);
    fake_cut_randomly(t.w.server, 7, percent);
    for (int i = 0; i < OPERATIONS; i += 2 * TRAINERS) {
        tinker_future *f[2 * TRAINERS];
        int64_t first = t.number + 1;
        for (int k = 0; k < 2 * TRAINERS; k++) {
            t.number++;
            f[k] = k % 2 ? submit_step(&t, t.trainers[k / 2], t.number)
                         : submit_pass(&t, t.trainers[k / 2], t.number);
        }
        for (int k = 0; k < 2 * TRAINERS; k++) {
            CHECK(finish(&t, f[k]));
            CHECK(k % 2 ? is_own_step(f[k], first + k) : is_own_pass(f[k], first + k));
            tinker_future_free(f[k]);
        }
        const struct kind *beside = &kinds[i / (2 * TRAINERS) % KINDS];
        bool ok = beside->run == run_heartbeat || beside->run(&t);
        CHECK(ok);
        if (!ok)
            printf("# %s, operation %d\n", beside->name, i);
    }
    fake_cut_randomly(t.w.server, 7, 0); /* closing has its own tests */
    CHECK(run_heartbeat(&t));            /* the session is as alive as ever */
    *cuts = fake_cuts(t.w.server);
    uint64_t weights = t.faulty.weights;
    test_close(&t);
    return weights;
}

static void test_random(void)
{
    size_t none, many;
    uint64_t clean = train(0, &none);
    CHECK(train(30, &many) == clean);
    CHECK_INT(none, 0);
    CHECK(many > OPERATIONS / 2);
    printf("# %zu responses cut\n", many);
}

int main(void)
{
    RUN(test_every_byte);
    RUN(test_trickle);
    RUN(test_unframed);
    RUN(test_unframed_archive);
    RUN(test_stream_without_seed);
    RUN(test_random);
    return tap_done();
}
