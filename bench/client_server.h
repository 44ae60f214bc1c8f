/* client_server.h - a trivial HTTP/1.1 server in a process of its own, for bench/client.
 *
 * It answers what a sampling session asks with ready-made texts and can hold polls until
 * told otherwise.  Numbers that the bench looks at live in shared memory. */
#ifndef BENCH_CLIENT_SERVER_H
#define BENCH_CLIENT_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERVER_CONNECTIONS = 20000, SERVER_INPUT = 8192 };

struct server_shared {
    atomic_int hold; /* polls are not answered while this is set */
    atomic_int held;
    atomic_int heartbeats, late_ms; /* late: of the latest heartbeat, over its period */
    atomic_long requests;
};

struct server {
    pid_t pid;
    int port, listen;
    struct server_shared *shared;
    char *sample; /* a ready answer to a poll */
    size_t n_sample;
};

struct server_conn {
    char in[SERVER_INPUT];
    int len;
    char held;
};

static inline double server_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void server_die(const char *what)
{
    fprintf(stderr, "bench/client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static inline void server_pin(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set); /* on a single core it fails, and does not matter */
}

static inline void server_send(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EAGAIN)
            continue;
        if (k <= 0)
            return;
        p += k;
        n -= (size_t)k;
    }
}

static inline void server_answer(const struct server *s, int fd, const char *path)
{
    char out[1024];
    const char *body = "{}";
    if (strncmp(path, "retrieve_future", 15) == 0) {
        server_send(fd, s->sample, s->n_sample);
        return;
    }
    if (strncmp(path, "asample", 7) == 0)
        body = "{\"request_id\":\"req-1\",\"model_id\":null}";
    else if (strncmp(path, "create_session", 14) == 0)
        body = "{\"session_id\":\"sess\"}";
    else if (strncmp(path, "create_sampling_session", 23) == 0)
        body = "{\"sampling_session_id\":\"sess:sample:0\"}";
    else if (strncmp(path, "client/config", 13) == 0)
        body = "{\"sample_max_concurrent_requests\":20000}";
    else if (strncmp(path, "telemetry", 9) == 0)
        body = "{\"status\":\"accepted\"}";
    int n = snprintf(out, sizeof(out),
                     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    server_send(fd, out, (size_t)n);
}

static inline void server_heartbeat(struct server_shared *shared)
{
    static double last;
    double t = server_now();
    if (last > 0)
        atomic_store(&shared->late_ms, (int)((t - last - 10) * 1000));
    last = t;
    atomic_fetch_add(&shared->heartbeats, 1);
}

/* Answer every complete request in the input; 0: the connection is over. */
static inline int server_read(struct server *s, struct server_conn *c, int fd)
{
    ssize_t got = recv(fd, c->in + c->len, (size_t)(SERVER_INPUT - 1 - c->len), 0);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    c->len += (int)got;
    c->in[c->len] = '\0';
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end)
        return 1;
    char *length = strstr(c->in, "ontent-Length:");
    length = length ? length : strstr(c->in, "ontent-length:");
    int total =
        (int)(end + 4 - c->in) + (length && length < end ? (int)strtol(length + 14, NULL, 10) : 0);
    if (c->len < total)
        return 1;
    char *path = strstr(c->in, "/api/v1/");
    path = path && path < end ? path + 8 : end;
    c->len = 0; /* nobody pipelines */
    atomic_fetch_add(&s->shared->requests, 1);
    if (strncmp(path, "session_heartbeat", 17) == 0)
        server_heartbeat(s->shared);
    if (atomic_load(&s->shared->hold) && strncmp(path, "retrieve_future", 15) == 0) {
        c->held = 1;
        atomic_fetch_add(&s->shared->held, 1);
        return 1;
    }
    server_answer(s, fd, path);
    return 1;
}

static inline void server_accept(int listen, int ep, struct server_conn **conns)
{
    int fd, one = 1;
    while ((fd = accept(listen, NULL, NULL)) >= 0) {
        if (fd >= SERVER_CONNECTIONS) {
            close(fd);
            continue;
        }
        fcntl(fd, F_SETFL, O_NONBLOCK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        conns[fd] = calloc(1, sizeof(**conns));
        struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
}

static inline void server_close(struct server *s, struct server_conn **conns, int fd)
{
    if (conns[fd]->held)
        atomic_fetch_sub(&s->shared->held, 1);
    free(conns[fd]);
    conns[fd] = NULL;
    close(fd);
}

static inline void server_release(struct server *s, struct server_conn **conns)
{
    for (int fd = 0; fd < SERVER_CONNECTIONS && atomic_load(&s->shared->held) > 0; fd++)
        if (conns[fd] && conns[fd]->held) {
            conns[fd]->held = 0;
            atomic_fetch_sub(&s->shared->held, 1);
            server_send(fd, s->sample, s->n_sample);
        }
}

static inline void server_main(struct server *s)
{
    static struct server_conn *conns[SERVER_CONNECTIONS];
    static struct epoll_event events[512];
    int ep = epoll_create1(0);
    struct epoll_event e = { .events = EPOLLIN, .data.fd = s->listen };
    epoll_ctl(ep, EPOLL_CTL_ADD, s->listen, &e);
    int idle = 0; /* turns without work: it looks again for a while before it sleeps, so that
                     the figures are not those of waking up another core */
    for (;;) {
        int n = epoll_wait(ep, events, 512, idle < 20000 ? 0 : 100);
        idle = n > 0 ? 0 : idle + 1;
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == s->listen)
                server_accept(fd, ep, conns);
            else if (!server_read(s, conns[fd], fd))
                server_close(s, conns, fd);
        }
        if (!atomic_load(&s->shared->hold))
            server_release(s, conns);
    }
}

/* Start it on the given core; sample: the protobuf of a result, copied. */
static inline void server_start(struct server *s, unsigned cpu, const char *sample, size_t n)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    s->sample = malloc(n + 256);
    int head = snprintf(s->sample, 256,
                        "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
                        "Content-Length: %zu\r\n\r\n",
                        n);
    memcpy(s->sample + head, sample, n);
    s->n_sample = (size_t)head + n;
    s->shared =
        mmap(NULL, sizeof(*s->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s->listen = socket(AF_INET, SOCK_STREAM, 0);
    if (s->shared == MAP_FAILED || bind(s->listen, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        listen(s->listen, 4096) != 0 || getsockname(s->listen, (struct sockaddr *)&a, &len) != 0)
        server_die("listen");
    fcntl(s->listen, F_SETFL, O_NONBLOCK);
    s->port = ntohs(a.sin_port);
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        server_pin(cpu);
        server_main(s);
    }
    close(s->listen);
}

static inline void server_stop(struct server *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    munmap(s->shared, sizeof(*s->shared));
    free(s->sample);
}

#endif
