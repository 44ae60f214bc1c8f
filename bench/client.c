/* client.c - libtinker against a trivial local server, beside libcurl and the official SDK.
 *
 *     client [samples] [posts] [h2] [held] [encode] [many]
 *
 * Server and clients are pinned to different cores.  A sample is two POSTs: asample and a
 * poll that has the result.  Ratios are medians of eleven, the two sides in turns, with the spread.
 *   samples  1, 50, 400 in flight: >= 0.7 x raw libcurl, >= 30 x the SDK at 50 and 400
 *   posts    C1 our transport >= 0.8 x raw libcurl; C2-C4 >= 30, 25, 4 x httpx at 50, 400, 1
 *   h2       C5 the same over TLS, 50 in flight: >= 20 x httpx; the server is nghttpd (nghttp2-server)
 *   held     2,000 held polls: C6 short POSTs >= 0.6 x, C7 <= 24 KB each, C8 idle <= 0.2 % over 10 s
 *   encode   10 sequences of 65,000 tokens in less than 5 ms, beside the SDK
 *   many     10,000 samples in flight: < 200 MB, heartbeats <= 2 s late, no more threads
 * The Python side is in a process of its own (peer.h). */
#define _GNU_SOURCE /* MAP_ANONYMOUS, sched_setaffinity() */
#include <curl/curl.h>
#include <dirent.h>
#include <tinker/tinker.h>
#include "client/io/runtime.h"
#include "client_server.h"
#include "http/http.h"
#include "peer.h"
#include "ratio.h"
#include "resident.h"
#include "wire/proto.h"
#include "wire/types.h"

enum {
    REPEATS = 11,
    HELD = 2000,
    MANY = 10000,
    TOKENS = 65000,
    IDLE_S = 10,
    CPU_CLIENT = 0,
    CPU_SERVER = 1
};
static const double seconds = 0.3;
static struct server server;
static bool server_spins = true;
static char url[64];
static tinker_error err;

/* What one turn achieved, and how much of its core the server had meanwhile: it does not sleep
 * while there is work, so what is missing went to other programs. */
struct figure {
    double rate, cpu_us; /* per second; of one */
    double core;
};

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* CPU time of the server; of one that sleeps, wall time. */
static double served(void)
{
    clockid_t clock = CLOCK_MONOTONIC;
    struct timespec t;
    if (server_spins)
        clock_getcpuclockid(server.pid, &clock);
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct meter {
    double start, cpu, served;
};

static struct meter meter_start(void)
{
    return (struct meter){ server_now(), cpu(), served() };
}

static struct figure meter_stop(const struct meter *m, long done)
{
    double passed = server_now() - m->start;
    return (struct figure){ (double)done / passed, (cpu() - m->cpu) * 1e6 / (double)done,
                            (served() - m->served) / passed };
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* "name ratio x (bar, spread; a against b) verdict" of REPEATS pairs, which a server that had to
 * share its core does not allow. */
static void ratio(const char *name, const struct figure *a, const struct figure *b, double bar)
{
    double r[REPEATS], x[REPEATS], y[REPEATS], us[REPEATS], theirs[REPEATS], core[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        core[i] = a[i].core;
        r[i] = a[i].rate / b[i].rate;
        x[i] = a[i].rate;
        y[i] = b[i].rate;
        us[i] = a[i].cpu_us;
        theirs[i] = b[i].cpu_us;
    }
    qsort(r, REPEATS, sizeof(*r), compare);
    qsort(x, REPEATS, sizeof(*x), compare);
    qsort(y, REPEATS, sizeof(*y), compare);
    qsort(us, REPEATS, sizeof(*us), compare);
    qsort(theirs, REPEATS, sizeof(*theirs), compare);
    qsort(core, REPEATS, sizeof(*core), compare);
    double m = r[REPEATS / 2], share = core[REPEATS / 2];
    printf("%-34s %6.2f x (bar %.1f, spread %.2f-%.2f; %.0f against %.0f /s, %.0f against %.0f us "
           "CPU) ",
           name, m, bar, r[0], r[REPEATS - 1], x[REPEATS / 2], y[REPEATS / 2], us[REPEATS / 2],
           theirs[REPEATS / 2]);
    if (share >= 0.95)
        keep_ratio("client", name, m, r[0], r[REPEATS - 1], bar);
    if (share < 0.95)
        printf("no verdict: the server had %.2f of its core\n", share);
    else
        printf("%s\n", m >= bar ? "met" : "MISSED");
    fflush(stdout);
}

static int client_peer(struct peer *p, const char *what, const char *where)
{
    return peer_open(p, "sdk", "bench/client_oracle.py", what, where, NULL);
}

static struct figure peer_figure(struct peer *p, int n)
{
    struct figure f = { 0 };
    if (p->pid > 0 && peer_turn(p, n, &f.rate, &f.cpu_us) != 2)
        server_die("the oracle has ended");
    return f;
}

static void verdict(const char *name, double value, const char *unit, double most)
{
    printf("%-34s %6.2f %s (at most %g) %s\n", name, value, unit, most,
           value <= most ? "met" : "MISSED");
    fflush(stdout);
}

/* ---- raw libcurl ---------------------------------------------------------------------- */

/* What our client sends, by hand: with a sample, and with a poll. */
static struct curl_slist *raw_headers(int step)
{
    static const char *const lines[] = {
        "Expect:",
        "Content-Type: application/json",
        "X-Idempotency-Key: stainless-python-retry-11111111-2222-4333-8444-555555555555",
        "x-stainless-retry-count: 0",
        "x-stainless-read-timeout: 60",
        "X-API-Key: tml-bench",
        "User-Agent: libtinker/0.1.0",
        "X-Stainless-Package-Version: 0.25.0",
        "X-Stainless-OS: Linux",
        "X-Stainless-Arch: x64",
        "X-Stainless-Runtime: C",
        "X-Stainless-Runtime-Version: 11",
        "X-Stainless-Async: async:epoll",
    };
    static const char *const own[2][5] = {
        { "Accept: application/json", "X-Tinker-Sampling-Backpressure: 1" },
        { "Accept: application/x-protobuf", "X-Tinker-Request-Iteration: 0",
          "X-Tinker-Request-Type: Sample", "X-Stainless-Raw-Response: raw",
          "X-Tinker-Create-Promise-Roundtrip-Time: 3.6e-07" },
    };
    struct curl_slist *list = NULL;
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
        list = curl_slist_append(list, lines[i]);
    for (int i = 0; i < 5 && own[step][i]; i++)
        list = curl_slist_append(list, own[step][i]);
    return list;
}

static size_t raw_write(char *p, size_t size, size_t n, void *state)
{
    (void)p, (void)state;
    return size * n;
}

struct raw {
    CURLM *multi;
    struct curl_slist *headers[2];
    char urls[2][128];
    const char *bodies[2];
    int steps; /* requests of one piece of work */
};

static void raw_send(struct raw *r, CURL *e, long step)
{
    curl_easy_setopt(e, CURLOPT_URL, r->urls[step]);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, r->headers[step]);
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, r->bodies[step]);
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE, (long)strlen(r->bodies[step]));
    curl_easy_setopt(e, CURLOPT_PRIVATE, (char *)step);
    curl_multi_add_handle(r->multi, e);
}

/* Pieces of work per second with n in flight, driven by curl_multi_poll(). */
static struct figure raw_load(struct raw *r, int n)
{
    r->multi = curl_multi_init();
    r->headers[0] = raw_headers(0);
    r->headers[1] = raw_headers(1);
    curl_multi_setopt(r->multi, CURLMOPT_MAXCONNECTS, (long)n + 1);
    CURL **easy = calloc((size_t)n, sizeof(*easy));
    for (int i = 0; i < n; i++) {
        easy[i] = curl_easy_init();
        curl_easy_setopt(easy[i], CURLOPT_ACCEPT_ENCODING, "gzip, deflate, zstd");
        curl_easy_setopt(easy[i], CURLOPT_WRITEFUNCTION, raw_write);
        curl_easy_setopt(easy[i], CURLOPT_NOSIGNAL, 1L);
        raw_send(r, easy[i], 0);
    }
    long done = -n; /* the first round opens the connections */
    double end = server_now() + 10;
    struct meter meter = { 0 };
    int running, left;
    while (server_now() < end) {
        curl_multi_perform(r->multi, &running);
        CURLMsg *m;
        while ((m = curl_multi_info_read(r->multi, &left)) != NULL) {
            CURL *e = m->easy_handle;
            char *step = NULL;
            if (m->data.result != CURLE_OK)
                server_die(curl_easy_strerror(m->data.result));
            curl_easy_getinfo(e, CURLINFO_PRIVATE, &step);
            long next = ((long)step + 1) % r->steps;
            if (next == 0 && ++done == 0) {
                meter = meter_start();
                end = meter.start + seconds;
            }
            curl_multi_remove_handle(r->multi, e);
            raw_send(r, e, next);
        }
        curl_multi_poll(r->multi, NULL, 0, 100, NULL);
    }
    struct figure f = meter_stop(&meter, done);
    for (int i = 0; i < n; i++) {
        curl_multi_remove_handle(r->multi, easy[i]);
        curl_easy_cleanup(easy[i]);
    }
    free(easy);
    curl_multi_cleanup(r->multi);
    curl_slist_free_all(r->headers[0]);
    curl_slist_free_all(r->headers[1]);
    return f;
}

/* ---- samples ----------------------------------------------------------------------------- */

static tinker_service *service;
static tinker_sampler *sampler;

static void open_sampler(void)
{
    tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
    opts.base_url = url;
    opts.api_key = "tml-bench";
    opts.telemetry.enabled = -1;
    service = tinker_service_new(&opts, &err);
    sampler = service ? tinker_service_create_sampler(service, "m", NULL, 10000, &err) : NULL;
    if (!sampler)
        server_die(err.message);
}

static void close_sampler(void)
{
    tinker_sampler_free(sampler);
    tinker_service_free(service);
}

static tinker_future *sample(void)
{
    static int32_t tokens[64];
    for (int i = 0; i < 64; i++)
        tokens[i] = i;
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = 64 };
    tinker_model_input prompt = { &chunk, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 16;
    tinker_future *f = tinker_sampler_sample(sampler, &prompt, &params, NULL, &err);
    if (!f)
        server_die(err.message);
    return f;
}

static struct figure our_samples(int n)
{
    tinker_queue *q = tinker_queue_new(&err);
    for (int i = 0; i < n; i++)
        tinker_queue_add(q, sample(), NULL, &err);
    long done = -n;
    double end = server_now() + 10;
    struct meter meter = { 0 };
    while (server_now() < end) {
        tinker_future *f = tinker_queue_next(q, 1000, NULL);
        if (!f || tinker_future_wait(f, 0, &err) != TINKER_OK)
            server_die(err.message);
        tinker_future_free(f);
        if (++done == 0) {
            meter = meter_start();
            end = meter.start + seconds;
        }
        tinker_queue_add(q, sample(), NULL, &err);
    }
    struct figure f = meter_stop(&meter, done);
    for (int i = 0; i < n; i++)
        tinker_future_free(tinker_queue_next(q, 1000, NULL));
    tinker_queue_free(q);
    return f;
}

static void bench_samples(void)
{
    static const int counts[] = { 1, 50, 400 };
    struct figure ours[3][REPEATS], raw[3][REPEATS], sdk[3][REPEATS];
    char body[2048] = "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[0", name[64];
    for (int i = 1; i < 64; i++)
        snprintf(body + strlen(body), sizeof(body) - strlen(body), ",%d", i);
    snprintf(
        body + strlen(body), sizeof(body) - strlen(body),
        "],\"type\":\"encoded_text\"}]},\"sampling_params\":{\"max_tokens\":16,\"temperature\":1.0,"
        "\"top_k\":-1,\"top_p\":1.0},\"sampling_session_id\":\"sess:sample:0\",\"seq_id\":0,"
        "\"prompt_logprobs\":false,\"topk_prompt_logprobs\":0,\"type\":\"sample\"}");
    struct raw r = {
        .steps = 2, .bodies = { body, "{\"request_id\":\"req-1\",\"allow_metadata_only\":true}" }
    };
    snprintf(r.urls[0], sizeof(r.urls[0]), "%s/api/v1/asample", url);
    snprintf(r.urls[1], sizeof(r.urls[1]), "%s/api/v1/retrieve_future", url);
    struct peer o;
    int beside = client_peer(&o, "sdk", url);
    open_sampler();
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < 3; i++) {
            sdk[i][k] = peer_figure(&o, counts[i]);
            ours[i][k] = our_samples(counts[i]);
            raw[i][k] = raw_load(&r, counts[i]);
        }
    close_sampler();
    peer_close(&o);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "samples/s, %d in flight / libcurl", counts[i]);
        ratio(name, ours[i], raw[i], 0.7);
        snprintf(name, sizeof(name), "samples/s, %d in flight / SDK", counts[i]);
        if (beside)
            ratio(name, ours[i], sdk[i], counts[i] == 1 ? 0 : 30);
    }
}

/* ---- small POSTs through our transport --------------------------------------------------- */

static const char small_body[] = "{\"session_id\":\"sess\",\"type\":\"session_heartbeat\"}";

struct posts {
    struct http_pool *pool;
    struct http_request *requests;
    char url[128];
    const char *ca_file;
    int n, open;
    long done;
    double end;
    struct meter meter;
    atomic_int over;
};
static struct posts posts;

static void post_done(struct http_request *r)
{
    if (r->resp.failure != HTTP_OK)
        server_die(r->resp.reason);
    if (++posts.done == 0) {
        posts.meter = meter_start();
        posts.end = posts.meter.start + seconds;
    }
    if (posts.done > 0 && server_now() >= posts.end) {
        if (--posts.open == 0)
            atomic_store(&posts.over, 1);
        return;
    }
    http_start(posts.pool, r);
}

static const struct http_header post_headers[] = { { "Content-Type", "application/json", false },
                                                   { "X-API-Key", "tml-bench", true } };

static void posts_begin(void *arg)
{
    (void)arg;
    struct http_pool_options opts = { .per_client = 50, .ca_file = posts.ca_file };
    posts.pool = http_pool_new(runtime_current()->loop, &opts, &err);
    for (int i = 0; i < posts.n; i++) {
        posts.requests[i] = (struct http_request){ .method = "POST",
                                                   .url = posts.url,
                                                   .headers = post_headers,
                                                   .n_headers = 2,
                                                   .body = small_body,
                                                   .body_len = sizeof(small_body) - 1,
                                                   .timeouts = { 60000, 5000, 60000, 60000 },
                                                   .small_response = true,
                                                   .done = post_done };
        http_start(posts.pool, &posts.requests[i]);
    }
}

static void posts_end(void *arg)
{
    (void)arg;
    for (int i = 0; i < posts.n; i++)
        http_request_clear(&posts.requests[i]);
    http_pool_free(posts.pool);
}

static struct figure our_posts(const char *base, int n)
{
    struct runtime *rt = runtime_current();
    posts.n = posts.open = n;
    posts.done = -n;
    posts.end = 0;
    atomic_store(&posts.over, 0);
    snprintf(posts.url, sizeof(posts.url), "%s/api/v1/echo", base);
    posts.requests = calloc((size_t)n, sizeof(*posts.requests));
    runtime_sync(rt, posts_begin, NULL);
    while (!atomic_load(&posts.over))
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    struct figure f = meter_stop(&posts.meter, posts.done);
    f.rate = (double)posts.done / seconds; /* this thread looks only now and then */
    runtime_sync(rt, posts_end, NULL);
    free(posts.requests);
    return f;
}

static void bench_posts(void)
{
    static const int counts[] = { 50, 400, 1 };
    static const double bars[] = { 30, 25, 4 };
    struct figure ours[3][REPEATS], raw[3][REPEATS], py[3][REPEATS];
    struct raw r = { .steps = 1, .bodies = { small_body } };
    char name[64];
    snprintf(r.urls[0], sizeof(r.urls[0]), "%s/api/v1/echo", url);
    struct peer o;
    int beside = client_peer(&o, "httpx", url);
    open_sampler(); /* for the runtime */
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < 3; i++) {
            py[i][k] = peer_figure(&o, counts[i]);
            ours[i][k] = our_posts(url, counts[i]);
            raw[i][k] = raw_load(&r, counts[i]);
        }
    close_sampler();
    peer_close(&o);
    ratio("C1 POSTs, 50 in flight / libcurl", ours[0], raw[0], 0.8);
    for (int i = 0; beside && i < 3; i++) {
        snprintf(name, sizeof(name), "C%d POSTs, %d in flight / httpx", i + 2, counts[i]);
        ratio(name, ours[i], py[i], bars[i]);
    }
}

/* ---- the same over TLS --------------------------------------------------------------------- */

/* nghttpd in dir on the server's core; -1: there is none. */
static pid_t nghttpd_start(const char *dir, int port)
{
    char command[512];
    snprintf(command, sizeof(command),
             "cd %s && mkdir -p api/v1 && echo '{}' >api/v1/echo && openssl req -x509 -newkey "
             "rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
             "-keyout key.pem -out cert.pem 2>/dev/null && PATH=$PATH:/usr/sbin command -v nghttpd "
             ">/dev/null",
             dir);
    if (system(command) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        server_pin(CPU_SERVER);
        snprintf(command, sizeof(command),
                 "cd %s && PATH=$PATH:/usr/sbin exec nghttpd -a 127.0.0.1 -d . %d key.pem cert.pem",
                 dir, port);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    nanosleep(&(struct timespec){ .tv_nsec = 500000000 }, NULL);
    return pid;
}

static void bench_h2(void)
{
    char dir[] = "/tmp/bench-client-XXXXXX", base[64], ca[64], command[64];
    struct figure ours[REPEATS], py[REPEATS];
    int port = server.port < 60000 ? server.port + 1000 : server.port - 1000;
    if (!mkdtemp(dir))
        server_die(dir);
    pid_t pid = nghttpd_start(dir, port);
    if (pid < 0) {
        printf("# no nghttpd here: C5 needs the package nghttp2-server\n");
    } else {
        snprintf(ca, sizeof(ca), "%s/cert.pem", dir);
        snprintf(base, sizeof(base), "https://localhost:%d", port);
        setenv("SSL_CERT_FILE", ca, 1);
        struct peer o;
        int beside = client_peer(&o, "httpx", base);
        open_sampler(); /* for the runtime */
        posts.ca_file = ca;
        server_spins = false;
        for (int k = 0; k < REPEATS; k++) {
            py[k] = peer_figure(&o, 50);
            ours[k] = our_posts(base, 50);
        }
        peer_close(&o);
        if (beside)
            ratio("C5 HTTP/2 POSTs, 50 in flight / httpx", ours, py, 20);
        posts.ca_file = NULL;
        server_spins = true;
        close_sampler();
        unsetenv("SSL_CERT_FILE");
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
    }
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    if (system(command) != 0)
        printf("# %s is left\n", dir);
}

/* ---- held polls -------------------------------------------------------------------------- */

static int threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = -2;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void hold(tinker_future **f, int n)
{
    atomic_store(&server.shared->hold, 1);
    for (int i = 0; i < n; i++)
        f[i] = sample();
    double end = server_now() + 30;
    while (atomic_load(&server.shared->held) < n && server_now() < end)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (atomic_load(&server.shared->held) < n)
        printf("# only %d polls held\n", atomic_load(&server.shared->held));
}

static void release(tinker_future **f, int n)
{
    int ok = 0;
    atomic_store(&server.shared->hold, 0);
    for (int i = 0; i < n; i++) {
        ok += tinker_future_wait(f[i], 30000, &err) == TINKER_OK;
        tinker_future_free(f[i]);
    }
    if (ok < n)
        printf("# %d of %d results\n", ok, n);
}

/* CPU time in per cent of the time that passes.  A heartbeat is part of it, and so is, for every new
 * connection, a timer of libcurl 200 ms after it was begun (for a second address, needed or not): in
 * 3 s these alone took between nothing and 0.2 %, by how many were begun just before. */
static double idle_cpu(void)
{
    double used = cpu(), start = server_now();
    nanosleep(&(struct timespec){ .tv_sec = IDLE_S }, NULL);
    return 100 * (cpu() - used) / (server_now() - start);
}

static void bench_held(void)
{
    static tinker_future *f[HELD];
    struct figure none[REPEATS], beside[REPEATS];
    double each = 0, idle = 0;
    open_sampler();
    tinker_future_free(sample());
    for (int k = 0; k < REPEATS; k++) {
        none[k] = our_posts(url, 50);
        double before = resident();
        hold(f, HELD);
        if (k == 0) {
            each = (resident() - before) / HELD / 1024;
            idle = idle_cpu();
        }
        beside[k] = our_posts(url, 50);
        release(f, HELD);
    }
    close_sampler();
    ratio("C6 POSTs beside 2000 held / none", beside, none, 0.6);
    verdict("C7 memory of a held sample", each, "KB", 24);
    verdict("C8 idle CPU with 2000 held", idle, "%", 0.2);
}

static void bench_many(void)
{
    static tinker_future *f[MANY];
    open_sampler();
    tinker_future *one = sample();
    tinker_future_wait(one, 5000, &err);
    tinker_future_free(one);
    int before = threads(), late = 0;
    int beats = atomic_load(&server.shared->heartbeats);
    hold(f, MANY);
    double bytes = resident();
    for (int i = 0; i < 260; i++) { /* two heartbeats and more */
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        int ms = atomic_load(&server.shared->late_ms);
        late = ms > late ? ms : late;
        bytes = resident() > bytes ? resident() : bytes;
    }
    int more = threads() - before;
    beats = atomic_load(&server.shared->heartbeats) - beats;
    release(f, MANY);
    close_sampler();
    verdict("10,000 samples in flight, RSS", bytes / (1 << 20), "MB", 200);
    verdict("latest heartbeat over its period", beats >= 2 ? late / 1000.0 : 1e9, "s", 2);
    verdict("threads more than for one sample", more, "threads", 0);
}

/* ---- encoding ---------------------------------------------------------------------------- */

static void bench_encode(void)
{
    static int32_t tokens[TOKENS];
    static int64_t targets[TOKENS];
    static float weights[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = i;
        targets[i] = i;
        weights[i] = 1;
    }
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = TOKENS };
    tinker_named_tensor inputs[] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = TOKENS } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = TOKENS } }
    };
    tinker_datum data[10];
    for (int i = 0; i < 10; i++)
        data[i] = (tinker_datum){ .model_input = { &chunk, 1 }, .inputs = inputs, .n_inputs = 2 };
    struct wire_forward_backward_request req = { .model_id = "m",
                                                 .seq_id = { 1, 1 },
                                                 .data = data,
                                                 .n_data = 10,
                                                 .loss = { .name = "cross_entropy" },
                                                 .shaped = true };
    enum { ROUNDS = 8 };
    double all[ROUNDS], *ms = all + 1; /* the first maps memory, as a first step of training does */
    size_t bytes = 0;
    for (int k = 0; k < ROUNDS; k++) {
        struct buf out;
        buf_init(&out, SIZE_MAX / 4);
        double start = cpu(); /* CPU time, as on the other side: other programs do not count */
        if (wire_encode_forward_backward_request(&req, &out, &err) != TINKER_OK)
            server_die(err.message);
        all[k] = (cpu() - start) * 1e3;
        bytes = out.len;
        buf_clear(&out);
    }
    qsort(ms, ROUNDS - 1, sizeof(*ms), compare);
    double m = ms[(ROUNDS - 1) / 2];
    printf("# %.1f MB, spread %.2f-%.2f ms, the first time %.2f ms\n", (double)bytes / 1e6, ms[0],
           ms[ROUNDS - 2], all[0]);
    verdict("encode 10 x 65,000 tokens", m, "ms", 5);
    struct peer o;
    if (!client_peer(&o, "encode", "-"))
        return;
    double sdk_ms = peer_figure(&o, 10).cpu_us / 1e3;
    peer_close(&o);
    if (sdk_ms > 0)
        printf("%-34s %6.2f ms, %.0f x\n", "the same by the SDK", sdk_ms, sdk_ms / m);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = { { "samples", bench_samples }, { "posts", bench_posts },   { "h2", bench_h2 },
              { "held", bench_held },       { "encode", bench_encode }, { "many", bench_many } };

int main(int argc, char **argv)
{
    static const int32_t tokens[16] = { 1, 2, 3 };
    static const float logprobs[16] = { -1 };
    tinker_sequence seq = {
        .stop_reason = TINKER_STOP_LENGTH, .tokens = tokens, .logprobs = logprobs, .n = 16
    };
    tinker_sample result = { .sequences = &seq, .n_sequences = 1 };
    struct buf b;
    struct rlimit files;
    buf_init(&b, 1 << 20);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (wire_encode_sample_response(&result, &b, &err) != TINKER_OK)
        server_die(err.message);
    curl_global_init(CURL_GLOBAL_ALL);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        int wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted |= strcmp(argv[k], parts[i].name) == 0;
        if (!wanted)
            continue;
        server_start(&server, CPU_SERVER, b.data, b.len);
        server_pin(CPU_CLIENT);
        snprintf(url, sizeof(url), "http://127.0.0.1:%d", server.port);
        parts[i].run();
        server_stop(&server);
    }
    buf_clear(&b);
    return 0;
}
