/* server.c - the HTTP side of `tinker serve` against a bare libmicrohttpd handler.
 *
 * One client thread drives both in turn over loopback, so the ratios share its cost:
 *   S1 small JSON POST, 50 connections, ours / bare          bar 0.7
 *   S2 the same at 400 connections / at 50                   bar 0.8
 *   S3 memory of one held poll                               bar 16 KB
 *   S4 50 connections beside 2000 held polls / a server without  bar 0.9
 *   S5 an 8 MB body kept / the bare handler dropping it      bar 0.4
 * and, without a rival:
 *   submit latency of 1,024 samples beside 2,000 held polls, reported
 *   process start to first answer, less the model's load      bar 50 ms */
#define _GNU_SOURCE /* sched_setaffinity() */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "engine/model/init_model.h"
#include "ratio.h"
#include "resident.h"
#include "server/server.h"

enum {
    REPEATS = 61,
    CPU_CLIENT = 0,
    CPU_SERVER = 1,
    HELD = 2000,
    BODY = 8 << 20,
    SAMPLES = 1024,
    IN_FLIGHT = 64
};
static const double seconds = 0.06; /* short turns: what disturbs one side disturbs both */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Client here, every other thread on another core; where there is but one, no pinning. */
static void pin_threads(bool on)
{
    DIR *d = opendir("/proc/self/task");
    cpu_set_t all, one;
    if (!d || sysconf(_SC_NPROCESSORS_ONLN) < 2)
        return;
    CPU_ZERO(&all);
    for (int i = 0; i < CPU_SETSIZE; i++)
        CPU_SET(i, &all);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        pid_t tid = (pid_t)strtol(e->d_name, NULL, 10);
        CPU_ZERO(&one);
        CPU_SET(tid == getpid() ? CPU_CLIENT : CPU_SERVER, &one);
        if (tid > 0)
            sched_setaffinity(tid, sizeof(one), on ? &one : &all);
    }
    closedir(d);
}

/* ---- the bare handler ----------------------------------------------------------------- */

static enum MHD_Result bare(void *cls, struct MHD_Connection *conn, const char *url,
                            const char *method, const char *version, const char *data, size_t *n,
                            void **state)
{
    static char answer[] = "{\"type\":\"session_heartbeat\"}";
    (void)cls, (void)url, (void)method, (void)version, (void)data;
    if (!*state) {
        *state = answer;
        return MHD_YES;
    }
    if (*n) {
        *n = 0;
        return MHD_YES;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(sizeof(answer) - 1, answer, MHD_RESPMEM_PERSISTENT);
    MHD_add_response_header(r, "Content-Type", "application/json");
    enum MHD_Result ok = MHD_queue_response(conn, 200, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- the client -------------------------------------------------------------------------- */

static int dial(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
        die("connect");
    return fd;
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            die("send");
        p += k;
        n -= (size_t)k;
    }
}

static char *request(const char *path, const char *more, const char *body, size_t n_body, size_t *n)
{
    char head[256];
    int k = snprintf(head, sizeof(head),
                     "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: tml-bench\r\n"
                     "Content-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n",
                     path, more, n_body);
    *n = (size_t)k + n_body;
    char *text = malloc(*n + 1);
    if (!text)
        die("malloc");
    memcpy(text, head, (size_t)k);
    memcpy(text + k, body, n_body);
    text[*n] = 0;
    return text;
}

/* Exchanges per second over `n` connections, each with one request in flight.  Answers
 * are small: one read holds a whole one. */
static double drive(int port, int n, const char *text, size_t n_text)
{
    int ep = epoll_create1(0), *fds = calloc((size_t)n, sizeof(*fds));
    struct epoll_event events[512];
    char in[4096];
    size_t done = 0;
    for (int i = 0; i < n; i++) {
        struct epoll_event e = { .events = EPOLLIN };
        e.data.fd = fds[i] = dial(port);
        epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e);
    }
    double start = now(), end = start + seconds;
    for (int i = 0; i < n; i++)
        send_all(fds[i], text, n_text);
    while (now() < end) {
        int k = epoll_wait(ep, events, 512, 100);
        for (int i = 0; i < k; i++) {
            if (recv(events[i].data.fd, in, sizeof(in), 0) <= 0)
                die("recv");
            done++;
            send_all(events[i].data.fd, text, n_text);
        }
    }
    double rate = (double)done / (now() - start);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    close(ep);
    free(fds);
    return rate;
}

/* One exchange; the answer's body in a static buffer. */
static const char *ask(int port, const char *path, const char *body)
{
    static char in[8192];
    size_t n, got = 0;
    char *text = request(path, "Connection: close\r\n", body, strlen(body), &n);
    int fd = dial(port);
    send_all(fd, text, n);
    free(text);
    for (ssize_t k; got + 1 < sizeof(in) && (k = recv(fd, in + got, sizeof(in) - 1 - got, 0)) > 0;)
        got += (size_t)k;
    in[got] = 0;
    close(fd);
    char *end = strstr(in, "\r\n\r\n");
    return end ? end + 4 : in;
}

static double median(double *v)
{
    for (int i = 1; i < REPEATS; i++)
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    return v[REPEATS / 2];
}

static void ratio(const char *name, double (*a)(void *), void *sa, double (*b)(void *), void *sb,
                  double bar, const char *unit)
{
    double r[REPEATS], va[REPEATS], vb[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        va[i] = a(sa);
        vb[i] = b(sb);
        r[i] = va[i] / vb[i];
    }
    double m = median(r);
    keep_ratio("server", name, m, r[0], r[REPEATS - 1], bar);
    printf("%s %.2f x (bar %.1f, spread %.2f-%.2f; %.0f against %.0f %s) %s\n", name, m, bar, r[0],
           r[REPEATS - 1], median(va), median(vb), unit, m >= bar ? "met" : "MISSED");
}

struct load {
    int port, connections;
    char *text;
    size_t n;
};
static double run_load(void *state)
{
    struct load *l = state;
    return drive(l->port, l->connections, l->text, l->n);
}

/* Megabytes per second of bodies on one connection. */
static double run_upload(void *state)
{
    struct load *l = state;
    return drive(l->port, 1, l->text, l->n) * BODY / 1e6;
}

/* ---- set-up --------------------------------------------------------------------------------- */

static struct server *start(const char *dir, const char *name, tinker_error *err)
{
    char model[300], data[300];
    struct server_model list[] = { { "bench/tiny", model } };
    struct server_options opts;
    snprintf(model, sizeof(model), "%s/model", dir);
    snprintf(data, sizeof(data), "%s/%s", dir, name);
    server_options_init(&opts);
    opts.models = list;
    opts.n_models = 1;
    opts.port = 0;
    opts.data_dir = data;
    return server_open(&opts, err);
}

static bool write_model(const char *dir, tinker_error *err)
{
    char model[300];
    struct init_model o;
    snprintf(model, sizeof(model), "%s/model", dir);
    init_model_defaults(&o);
    return init_model_write(&o, model, err) == TINKER_OK;
}

static void text_member(const char *json, const char *key, char *out, size_t size)
{
    const char *p = strstr(json, key);
    p = p ? p + strlen(key) + 3 : "";
    snprintf(out, size, "%.*s", (int)strcspn(p, "\""), p);
}

/* A session of its own, and a heartbeat for it. */
static struct load heartbeats(int port, char *session, size_t size)
{
    char body[256];
    struct load l = { .port = port, .connections = 50 };
    text_member(ask(port, "/api/v1/create_session",
                    "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}"),
                "session_id", session, size);
    snprintf(body, sizeof(body), "{\"session_id\":\"%s\",\"type\":\"session_heartbeat\"}", session);
    l.text = request("/api/v1/session_heartbeat", "", body, strlen(body), &l.n);
    return l;
}

/* Hold polls for a request whose turn cannot come, because the one before it is missing. */
static void hold_polls(int port, const char *session, int *fds)
{
    char body[512], id[128];
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"bench/tiny\","
             "\"lora_config\":{\"rank\":1}}",
             session);
    ask(port, "/api/v1/create_model", body);
    snprintf(body, sizeof(body), "{\"model_id\":\"%s:train:0\",\"seq_id\":2,\"adam_params\":{}}",
             session);
    text_member(ask(port, "/api/v1/optim_step", body), "request_id", id, sizeof(id));
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", id);
    size_t n;
    char *text = request("/api/v1/retrieve_future", "", body, strlen(body), &n);
    double before = resident();
    for (int i = 0; i < HELD; i++) {
        fds[i] = dial(port);
        send_all(fds[i], text, n);
    }
    free(text);
    sleep(1);
    double each = (resident() - before) / HELD;
    printf("S3 %.1f KB per held poll (bar 16) %s\n", each / 1024, each <= 16384 ? "met" : "MISSED");
}

/* ---- submit latency ----------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each on a connection of its own, IN_FLIGHT at once; the engine samples meanwhile. */
static void submit_latency(int port, const char *session)
{
    static double begun[SAMPLES], took[SAMPLES];
    int ep = epoll_create1(0), sent = 0, done = 0;
    char body[512], in[4096];
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":9,\"base_model\":"
             "\"bench/tiny\"}",
             session);
    ask(port, "/api/v1/create_sampling_session", body);
    while (done < SAMPLES) {
        struct epoll_event events[IN_FLIGHT];
        while (sent < SAMPLES && sent - done < IN_FLIGHT) {
            size_t n;
            snprintf(body, sizeof(body),
                     "{\"sampling_session_id\":\"%s:sample:9\",\"seq_id\":%d,\"prompt\":{"
                     "\"chunks\":[{\"tokens\":[1,2,3]}]},\"sampling_params\":{\"max_tokens\":8}}",
                     session, sent);
            char *text = request("/api/v1/asample", "", body, strlen(body), &n);
            int fd = dial(port);
            struct epoll_event e = { .events = EPOLLIN,
                                     .data.u64 = (uint64_t)sent << 32 | (uint32_t)fd };
            epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
            begun[sent++] = now();
            send_all(fd, text, n);
            free(text);
        }
        int k = epoll_wait(ep, events, IN_FLIGHT, 5000);
        if (k <= 0)
            die("epoll_wait");
        for (int i = 0; i < k; i++) {
            int fd = (int)(uint32_t)events[i].data.u64, at = (int)(events[i].data.u64 >> 32);
            ssize_t got = recv(fd, in, sizeof(in) - 1, 0);
            in[got > 0 ? got : 0] = 0;
            if (!strstr(in, "request_id"))
                die("asample");
            took[at] = now() - begun[at];
            close(fd);
            done++;
        }
    }
    close(ep);
    qsort(took, SAMPLES, sizeof(*took), by_value);
    printf("submit latency of %d samples beside %d held polls: p50 %.2f ms, p99 %.2f ms\n", SAMPLES,
           HELD, took[SAMPLES / 2] * 1e3, took[SAMPLES * 99 / 100] * 1e3);
}

/* ---- cold start -------------------------------------------------------------------------------- */

/* Start the program beside this one; seconds until it has answered a request. */
static double cold_start(const char *dir, bool *ok)
{
    char program[4096], model[400], data[400], line[300] = "";
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 32);
    int ends[2];
    *ok = false;
    if (n <= 0 || pipe(ends) != 0)
        return 0;
    program[n] = 0;
    snprintf(strrchr(program, '/'), 32, "/../tinker");
    snprintf(model, sizeof(model), "bench/tiny=%s/model", dir);
    snprintf(data, sizeof(data), "%s/cold", dir);
    double start = now();
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, "serve", "--listen", "127.0.0.1:0", "--data-dir", data, "--model",
              model, "--log-level", "error", "--quiet", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    bool said = f && fgets(line, sizeof(line), f);
    const char *colon = said ? strrchr(line, ':') : NULL;
    if (colon)
        *ok = strstr(ask((int)strtol(colon + 1, NULL, 10), "/api/v1/client/config",
                         "{\"sdk_version\":\"0.25.0\"}"),
                     "use_pyqwest") != NULL;
    double took = now() - start;
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    if (f)
        fclose(f);
    os_remove_tree(data, NULL);
    return took;
}

static void report_cold_start(const char *dir)
{
    double v[REPEATS], load[REPEATS];
    bool ok = true;
    char model[400];
    snprintf(model, sizeof(model), "%s/model", dir);
    for (int i = 0; i < REPEATS && ok; i++) {
        v[i] = cold_start(dir, &ok);
        double start = now();
        tinker_engine_close(tinker_engine_open(model, NULL, NULL));
        load[i] = now() - start;
    }
    if (!ok) {
        printf("cold start: no program beside the benchmark\n");
        return;
    }
    double own = median(v) - median(load);
    printf("cold start to first answer %.1f ms, of which the model %.1f ms: %.1f ms (bar 50) %s\n",
           median(v) * 1e3, median(load) * 1e3, own * 1e3, own <= 0.05 ? "met" : "MISSED");
}

/* The two servers take turns, so that what disturbs one disturbs the other. */
static void beside_held(struct load *holder, const char *session, struct load *other)
{
    static int held[HELD];
    static struct pollfd answered[HELD];
    hold_polls(holder->port, session, held);
    ratio("S4", run_load, holder, run_load, other, 0.9, "requests/s");
    for (int i = 0; i < HELD; i++)
        answered[i] = (struct pollfd){ .fd = held[i], .events = POLLIN };
    if (poll(answered, HELD, 0) != 0)
        printf("S4: polls were answered meanwhile: MISSED\n");
    pin_threads(false);
    submit_latency(holder->port, session);
    for (int i = 0; i < HELD; i++)
        close(held[i]);
}

/* Telemetry is received and not read: only the way counts. */
static void uploads(int port, int bare_port)
{
    char *filler = malloc(BODY);
    size_t n;
    if (!filler)
        die("malloc");
    memset(filler, ' ', BODY);
    char *big = request("/api/v1/telemetry", "", filler, BODY, &n);
    struct load ours = { port, 1, big, n }, theirs = { bare_port, 1, big, n };
    ratio("S5", run_upload, &ours, run_upload, &theirs, 0.4, "MB/s");
    free(big);
    free(filler);
}

static void raise_file_limit(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

int main(void)
{
    char dir[] = "/tmp/tinker-bench.XXXXXX", session[64], quiet_session[64];
    tinker_error err = { 0 };
    setvbuf(stdout, NULL, _IOLBF, 0);
    raise_file_limit();
    if (!mkdtemp(dir))
        die("mkdtemp");
    bool ok = write_model(dir, &err);
    struct server *s = ok ? start(dir, "data", &err) : NULL;
    struct server *quiet = s ? start(dir, "quiet", &err) : NULL;
    struct MHD_Daemon *d =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, bare, NULL,
                         MHD_OPTION_CONNECTION_LIMIT, 5000u, MHD_OPTION_END);
    if (!quiet || !d) {
        fprintf(stderr, "bench: %s\n", err.message);
        return 1;
    }
    int bare_port = MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port;
    struct load ours = heartbeats(server_port(s), session, sizeof(session));
    struct load without = heartbeats(server_port(quiet), quiet_session, sizeof(quiet_session));
    struct load theirs = ours, many = ours;
    theirs.port = bare_port;
    many.connections = 400;
    pin_threads(true);
    ratio("S1", run_load, &ours, run_load, &theirs, 0.7, "requests/s");
    ratio("S2", run_load, &many, run_load, &ours, 0.8, "requests/s");
    uploads(ours.port, bare_port);
    beside_held(&ours, session, &without);
    free(ours.text);
    free(without.text);
    MHD_stop_daemon(d);
    server_close(s);
    server_close(quiet);
    report_cold_start(dir);
    os_remove_tree(dir, NULL);
    return 0;
}
