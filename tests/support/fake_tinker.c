/* fake_tinker.c - see fake_tinker.h. */
#include "support/fake_tinker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "client/io/runtime.h"
#include "http/loop.h"
#include "wire/proto.h"

extern char **environ;

const tinker_loss fake_loss = { .name = "cross_entropy" };

static char *format(const char *fmt, const char *a, long long b)
{
    size_t n = strlen(fmt) + strlen(a) + 32;
    char *s = malloc(n);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(s, n, fmt, a, b);
#pragma GCC diagnostic pop
    return s;
}

/* ---- the default answers ---------------------------------------------------------------- */

char *fake_sample_result(const int32_t *tokens, size_t n, size_t *len)
{
    float *logprobs = calloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        logprobs[i] = -0.5f;
    tinker_sequence seq = {
        .stop_reason = TINKER_STOP_LENGTH, .tokens = tokens, .logprobs = logprobs, .n = n
    };
    tinker_sample sample = { .sequences = &seq, .n_sequences = 1 };
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    wire_encode_sample_response(&sample, &b, NULL);
    free(logprobs);
    return buf_detach(&b, len);
}

char *fake_pass_result(size_t n_outputs, const tinker_named_number *metrics, size_t n_metrics,
                       size_t *len)
{
    static const float logprobs[] = { -1.0f, -2.0f };
    static const tinker_named_tensor tensor = {
        "logprobs", { .dtype = TINKER_FLOAT32, .data = logprobs, .n = 2 }
    };
    tinker_loss_output *outputs = calloc(n_outputs + 1, sizeof(*outputs));
    for (size_t i = 0; i < n_outputs; i++)
        outputs[i] = (tinker_loss_output){ &tensor, 1 };
    tinker_forward_backward fb = { "TorchLossReturn", outputs, n_outputs, metrics, n_metrics };
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    wire_encode_forward_backward_output(&fb, &b, NULL);
    free(outputs);
    return buf_detach(&b, len);
}

static void pass_answer(const struct promise *p, struct fake_reply *out)
{
    struct wire_forward_backward_request req;
    struct arena a;
    arena_init(&a, SIZE_MAX);
    size_t n = 1;
    if (wire_decode_forward_backward_request(p->body, p->len, &a, &req, NULL) == TINKER_OK)
        n = req.n_data;
    tinker_named_number loss = { "loss:sum", 2.0 * (double)n };
    out->content_type = "application/x-protobuf";
    out->body = fake_pass_result(n, &loss, 1, &out->len);
    arena_clear(&a);
}

static void promise_answer(struct world *w, const struct promise *p, struct fake_reply *out)
{
    static const int32_t tokens[] = { 11, 12, 13 };
    const char *what = p->path + strlen(API);
    if (strcmp(what, "create_model") == 0)
        out->body = format("{\"model_id\":\"%s:train:%lld\",\"type\":\"create_model\"}", "sess",
                           w->n_models++);
    else if (strcmp(what, "forward_backward") == 0)
        pass_answer(p, out);
    else if (strcmp(what, "optim_step") == 0)
        out->body = strdup("{\"metrics\":{\"grad_norm:mean\":0.5}}");
    else if (strcmp(what, "asample") == 0) {
        out->content_type = "application/x-protobuf";
        out->body = fake_sample_result(tokens, 3, &out->len);
    } else if (strcmp(what, "save_weights_for_sampler") == 0 && strstr(p->body, "\"path\"") == NULL)
        out->body = format("{\"sampling_session_id\":\"%s:sample:%lld\"}", "sess", w->n_samplers++);
    else if (strcmp(what, "save_weights_for_sampler") == 0)
        out->body = strdup("{\"path\":\"tinker://sess:train:0/sampler_weights/named\"}");
    else if (strcmp(what, "save_weights") == 0)
        out->body = strdup("{\"path\":\"tinker://sess:train:0/weights/named\"}");
    else if (strcmp(what, "save_weights_external") == 0)
        out->body = strdup("{\"path\":\"tinker://sess:train:0/external_weights/x\"}");
    else if (strcmp(what, "load_weights") == 0)
        out->body = strdup("{\"path\":\"tinker://sess:train:0/weights/named\"}");
    else
        out->body = strdup("{\"model_id\":\"sess:train:0\"}");
}

static void retrieve(struct world *w, const struct fake_request *r, struct fake_reply *out)
{
    for (const struct promise *p = w->promises; p; p = p->next) {
        char want[48];
        snprintf(want, sizeof(want), "\"%s\"", p->id);
        if (strstr(r->body, want)) {
            promise_answer(w, p, out);
            return;
        }
    }
    out->status = 404;
    out->body = strdup("{\"detail\":\"no such request\"}");
}

static void new_promise(struct world *w, const struct fake_request *r, struct fake_reply *out)
{
    struct promise *p = calloc(1, sizeof(*p));
    snprintf(p->id, sizeof(p->id), "req-%d", w->n_promises++);
    snprintf(p->path, sizeof(p->path), "%.*s", (int)strcspn(r->path, "?"), r->path);
    p->body = malloc(r->len + 1);
    memcpy(p->body, r->body, r->len + 1);
    p->len = r->len;
    p->next = w->promises;
    w->promises = p;
    out->body = format("{\"request_id\":\"%s\"}", p->id, 0);
}

static const struct {
    const char *path, *body;
} fixed[] = {
    { "client/dynamic_config", "{}" },
    { "create_session", "{\"session_id\":\"sess\",\"type\":\"create_session\"}" },
    { "session_heartbeat", "{\"type\":\"session_heartbeat\"}" },
    { "telemetry", "{\"status\":\"accepted\"}" },
    { "healthz", "{\"status\":\"ok\"}" },
    { "get_server_capabilities",
      "{\"supported_models\":[{\"model_name\":\"tiny\",\"max_context_length\":128}],\"new\":1}" },
};

static void answer(void *state, const struct fake_request *r, struct fake_reply *out)
{
    struct world *w = state;
    if (w->instead) {
        w->instead(w->instead_state, r, out);
        return;
    }
    char what[256] = "";
    if (strncmp(r->path, API, strlen(API)) == 0)
        snprintf(what, sizeof(what), "%.*s", (int)strcspn(r->path + strlen(API), "?"),
                 r->path + strlen(API));
    for (size_t i = 0; i < sizeof(fixed) / sizeof(*fixed); i++)
        if (strcmp(what, fixed[i].path) == 0) {
            out->body = strdup(fixed[i].body);
            return;
        }
    static const char *const submissions[] = { "create_model",
                                               "forward_backward",
                                               "optim_step",
                                               "asample",
                                               "save_weights",
                                               "load_weights",
                                               "save_weights_for_sampler",
                                               "save_weights_external",
                                               "unload_model" };
    for (size_t i = 0; i < sizeof(submissions) / sizeof(*submissions); i++)
        if (strcmp(what, submissions[i]) == 0) {
            new_promise(w, r, out);
            return;
        }
    if (strcmp(what, "client/config") == 0)
        out->body = strdup(w->config);
    else if (strcmp(what, "create_sampling_session") == 0)
        out->body = format("{\"sampling_session_id\":\"%s:sample:%lld\"}", "sess", w->n_samplers++);
    else if (strcmp(what, "retrieve_future") == 0)
        retrieve(w, r, out);
    else {
        out->status = 404;
        out->body = strdup("{\"detail\":\"not found\"}");
    }
}

/* ---- the world ---------------------------------------------------------------------------- */

static void clear_environment(void)
{
    static const char *const prefixes[] = { "TINKER_",     "TINKEX_",   "CLOUDFLARE_", "http_proxy",
                                            "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY",
                                            "no_proxy",    "NO_PROXY" };
    for (size_t i = 0; environ && environ[i];) {
        char name[128];
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(environ[i], "="), environ[i]);
        bool ours = false;
        for (size_t k = 0; k < sizeof(prefixes) / sizeof(*prefixes); k++)
            ours = ours || strncmp(name, prefixes[k], strlen(prefixes[k])) == 0;
        if (ours)
            unsetenv(name);
        else
            i++;
    }
}

static void keep_line(tinker_log_level level, const char *line, void *state)
{
    struct world *w = state;
    (void)level;
    if (w->n_log < 512)
        w->log[w->n_log++] = strdup(line);
}

void world_options(struct world *w, tinker_service_options *opts)
{
    memset(w, 0, sizeof(*w));
    fake_clock_init(&w->clock);
    *opts = (tinker_service_options)TINKER_SERVICE_OPTIONS_INIT;
    opts->api_key = "tml-0123456789abcdef";
    opts->telemetry.enabled = -1;
    opts->observation.log = keep_line;
    opts->observation.log_state = w;
    opts->observation.log_verbose = 2;
}

static void world_begin(struct world *w, const char *config, tinker_service_options *opts)
{
    struct clock *clock = w->real_time ? clock_real() : &w->clock.clock;
    w->config = strdup(config ? config : "{}");
    w->server = fake_server_start(clock, answer, w);
    if (!opts->base_url)
        opts->base_url = fake_server_url(w->server);
    runtime_use_clock(w->real_time ? NULL : clock);
    w->service = tinker_service_new(opts, &w->err);
}

void world_open(struct world *w, const char *config, const tinker_service_options *opts)
{
    tinker_service_options mine;
    if (opts)
        mine = *opts;
    else {
        clear_environment();
        world_options(w, &mine);
    }
    world_begin(w, config, &mine);
}

void world_open_real(struct world *w, const char *config)
{
    tinker_service_options opts;
    clear_environment();
    world_options(w, &opts);
    opts.observation.log_verbose = 0;
    w->real_time = true;
    world_begin(w, config, &opts);
}

void world_close(struct world *w)
{
    tinker_service_free(w->service);
    fake_server_stop(w->server);
    for (struct promise *p; (p = w->promises) != NULL;) {
        w->promises = p->next;
        free(p->body);
        free(p);
    }
    for (int i = 0; i < w->n_log; i++)
        free(w->log[i]);
    free(w->config);
    runtime_use_clock(NULL);
}

int64_t world_ms(struct world *w)
{
    return clock_now_ms(&w->clock.clock) - 1000; /* a fake clock starts at 1 s */
}

struct look {
    struct world *w;
    struct runtime *rt;
    bool settled;
    int64_t next_ns;
    int aborted;
};

static void look_on_loop(void *arg)
{
    struct look *k = arg;
    k->next_ns = loop_next_ns(k->rt->loop);
    k->aborted = loop_aborted(k->rt->loop);
    int busy = loop_busy_count(k->rt->loop) - k->w->outside;
    k->settled = busy == fake_held(k->w->server) && k->next_ns > loop_now_ns(k->rt->loop) &&
                 fake_next_ns(k->w->server) > loop_now_ns(k->rt->loop);
}

static struct look settle(struct world *w)
{
    struct look k = { w, runtime_current(), false, INT64_MAX, 0 };
    if (!k.rt)
        return k;
    /* The server may not have noticed yet that the client hung up on a held request: then
     * the counts can agree by accident, so look longer. */
    int calm = 0, enough = 2;
    for (int i = 0; i < 100000 && calm < enough; i++) {
        runtime_sync(k.rt, look_on_loop, &k);
        calm = k.settled ? calm + 1 : 0;
        enough = k.aborted != w->aborted ? 100 : 2;
        if (!k.settled || enough > 2)
            nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
    }
    w->aborted = k.aborted;
    if (calm < enough) {
        printf("# the world does not settle: %d busy, %d held\n", loop_busy_count(k.rt->loop),
               fake_held(w->server));
        exit(2);
    }
    runtime_drain_callbacks(k.rt);
    return k;
}

void world_settle(struct world *w)
{
    settle(w);
}

/* One step to the next deadline, not beyond limit_ns; false: the limit is reached. */
static bool step(struct world *w, int64_t limit_ns)
{
    struct look k = settle(w);
    int64_t now = clock_now_ns(&w->clock.clock), next = fake_next_ns(w->server);
    next = k.next_ns < next ? k.next_ns : next;
    next = next < limit_ns ? next : limit_ns;
    if (now >= limit_ns)
        return false;
    int64_t ms = (next - now + 999999) / 1000000;
    fake_clock_advance_ms(&w->clock, ms > 0 ? ms : 1);
    if (k.rt)
        loop_wake(k.rt->loop);
    fake_wake(w->server);
    settle(w);
    return true;
}

void world_step(struct world *w, int64_t grain_ms)
{
    struct look k = settle(w);
    int64_t now = clock_now_ns(&w->clock.clock), next = fake_next_ns(w->server);
    next = k.next_ns < next ? k.next_ns : next;
    int64_t ms = next < INT64_MAX ? (next - now + 999999) / 1000000 : grain_ms;
    fake_clock_advance_ms(&w->clock, ms > grain_ms ? ms : grain_ms);
    if (k.rt)
        loop_wake(k.rt->loop);
    fake_wake(w->server);
}

void world_advance(struct world *w, int64_t ms)
{
    int64_t limit = clock_now_ns(&w->clock.clock) + ms * 1000000;
    while (step(w, limit)) {
    }
}

tinker_status world_finish(struct world *w, tinker_future *f, int64_t max_ms)
{
    if (w->real_time)
        return tinker_future_wait(f, max_ms, &w->err);
    int64_t limit = clock_now_ns(&w->clock.clock) + max_ms * 1000000;
    settle(w);
    while (!tinker_future_done(f) && step(w, limit)) {
    }
    return tinker_future_wait(f, 0, &w->err);
}

tinker_training *world_training(struct world *w)
{
    tinker_future *f = tinker_service_request_lora(w->service, "tiny", NULL, &w->err);
    tinker_training *t = NULL;
    if (f && world_finish(w, f, 1000) == TINKER_OK)
        t = tinker_future_take_training(f);
    tinker_future_free(f);
    return t;
}

tinker_sampler *world_sampler(struct world *w)
{
    tinker_future *f = tinker_service_request_sampler(w->service, "tiny", NULL, &w->err);
    tinker_sampler *s = NULL;
    if (f && world_finish(w, f, 1000) == TINKER_OK)
        s = tinker_future_take_sampler(f);
    tinker_future_free(f);
    return s;
}

int world_log_count(struct world *w, const char *part)
{
    runtime_drain_callbacks(runtime_current());
    int n = 0;
    for (int i = 0; i < w->n_log; i++)
        n += strstr(w->log[i], part) != NULL;
    return n;
}

int64_t world_at(struct world *w, const char *path, size_t i)
{
    const struct fake_request *r = fake_get(w->server, path, i);
    return r ? r->at_ms - 1000 : -1;
}

void say(struct world *w, const char *path, int status, const char *body, int times)
{
    fake_script(w->server, path,
                (struct fake_reply){ .status = status, .body = body, .times = times });
}

/* ---- data ----------------------------------------------------------------------------------- */

tinker_datum *fake_data(size_t n, size_t n_tokens)
{
    tinker_datum *data = calloc(n, sizeof(*data));
    for (size_t i = 0; i < n; i++) {
        int32_t *tokens = calloc(n_tokens + 1, sizeof(*tokens));
        int64_t *targets = calloc(n_tokens + 1, sizeof(*targets));
        tinker_chunk *chunk = calloc(1, sizeof(*chunk));
        tinker_named_tensor *input = calloc(1, sizeof(*input));
        chunk->tokens = tokens;
        chunk->n_tokens = n_tokens;
        input->name = "target_tokens";
        input->tensor = (tinker_tensor){ .dtype = TINKER_INT64, .data = targets, .n = n_tokens };
        data[i] = (tinker_datum){ .model_input = { chunk, 1 }, .inputs = input, .n_inputs = 1 };
    }
    return data;
}

void fake_data_free(tinker_datum *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free((void *)data[i].model_input.chunks->tokens);
        free((void *)data[i].model_input.chunks);
        free((void *)data[i].inputs->tensor.data);
        free((void *)data[i].inputs);
    }
    free(data);
}

const tinker_model_input *fake_prompt(size_t n)
{
    static int32_t tokens[1 << 16];
    static _Thread_local tinker_chunk chunk;
    static _Thread_local tinker_model_input input;
    chunk = (tinker_chunk){ .tokens = tokens, .n_tokens = n };
    input = (tinker_model_input){ &chunk, 1 };
    return &input;
}

int64_t fake_json_int(const struct fake_request *r, const char *name)
{
    char key[64];
    snprintf(key, sizeof(key), "\"%s\":", name);
    const char *p = r ? strstr(r->body, key) : NULL;
    return p ? strtoll(p + strlen(key), NULL, 10) : -1;
}

int64_t fake_pass_seq(const struct fake_request *r)
{
    struct wire_forward_backward_request req;
    struct arena a;
    arena_init(&a, SIZE_MAX);
    int64_t seq = -1;
    if (r && wire_decode_forward_backward_request(r->body, r->len, &a, &req, NULL) == TINKER_OK)
        seq = req.seq_id.value;
    arena_clear(&a);
    return seq;
}
