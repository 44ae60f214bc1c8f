/* intercept.h - a proxy on loopback that may answer in place of the service.
 *
 * Examples about trouble need trouble at a known moment.  Every request of the program goes
 * through here; `answer` may reply to it, as the service would, or let it pass.  One thread and
 * one connection per request: simple, and fast enough for a demonstration. */
#ifndef INTERCEPT_H
#define INTERCEPT_H

#include "example.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { INTERCEPT_MOST = 1 << 18 }; /* bytes of a request */

/* `request` is all of it, beginning "POST /api/v1/…".  Returns a status, with the body of the
 * reply in out[0..size), or 0: let it pass.  Called from several threads. */
typedef int intercept_fn(void *state, const char *request, char *out, size_t size);

struct intercept {
    int listener;
    struct sockaddr_in service;
    intercept_fn *answer;
    void *state;
};
struct intercepted {
    const struct intercept *proxy;
    int fd;
    char request[INTERCEPT_MOST];
};

static inline void send_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        p += sent;
        n -= (size_t)sent;
    }
}

/* A whole request into c->request; its length, or 0. */
static inline size_t read_request(struct intercepted *c)
{
    size_t n = 0, whole = 0;
    while (n < sizeof(c->request) - 1 && (whole == 0 || n < whole)) {
        ssize_t got = recv(c->fd, c->request + n, sizeof(c->request) - 1 - n, 0);
        if (got <= 0)
            return 0;
        n += (size_t)got;
        c->request[n] = 0;
        const char *end = strstr(c->request, "\r\n\r\n");
        const char *line = end && !whole ? strchr(c->request, '\n') : NULL;
        if (line)
            whole = (size_t)(end + 4 - c->request);
        for (; line && line < end; line = strchr(line + 1, '\n'))
            if (strncasecmp(line + 1, "content-length:", 15) == 0)
                whole += strtoul(line + 16, NULL, 10);
    }
    return whole > 0 && n >= whole ? n : 0; /* 0 also when it is too long */
}

/* To the service, and its reply back, byte for byte but for one header. */
static inline void pass_on(struct intercepted *c, size_t n)
{
    int up = socket(AF_INET, SOCK_STREAM, 0);
    const char *rest = strchr(c->request, '\n') + 1;
    if (connect(up, (const struct sockaddr *)&c->proxy->service, sizeof(c->proxy->service)) == 0) {
        send_all(up, c->request, (size_t)(rest - c->request));
        send_all(up, "Connection: close\r\n", 19);
        send_all(up, rest, n - (size_t)(rest - c->request));
        char reply[16384];
        ssize_t got;
        while ((got = recv(up, reply, sizeof(reply), 0)) > 0)
            send_all(c->fd, reply, (size_t)got);
    }
    close(up);
}

static inline void *serve_one(void *state)
{
    struct intercepted *c = state;
    char body[4096], head[160];
    size_t n = read_request(c);
    int status = n ? c->proxy->answer(c->proxy->state, c->request, body, sizeof(body)) : 0;
    if (status) {
        snprintf(head, sizeof(head),
                 "HTTP/1.1 %d Here\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                 "Connection: close\r\n\r\n",
                 status, strlen(body));
        send_all(c->fd, head, strlen(head));
        send_all(c->fd, body, strlen(body));
    } else if (n)
        pass_on(c, n);
    close(c->fd);
    free(c);
    return NULL;
}

static inline void *accept_all(void *state)
{
    const struct intercept *proxy = state;
    for (;;) {
        struct intercepted *c = malloc(sizeof(*c));
        pthread_t thread;
        if (!c)
            return NULL;
        c->proxy = proxy;
        c->fd = accept(proxy->listener, NULL, NULL);
        if (c->fd < 0) {
            free(c);
            return NULL;
        }
        if (pthread_create(&thread, NULL, serve_one, c) == 0)
            pthread_detach(thread);
        else {
            close(c->fd); /* the client tries again */
            free(c);
        }
    }
}

/* A service that reaches the one of TINKER_BASE_URL, which must be on this machine, through
 * `answer`.  *p lives as long as the program.  opts NULL: defaults. */
static inline tinker_service *intercept(struct intercept *p, intercept_fn *answer, void *state,
                                        const tinker_service_options *opts)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    const char *url = getenv("TINKER_BASE_URL"), *port = url ? strrchr(url, ':') : NULL;
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t n = sizeof(at);
    pthread_t thread = 0;
    char here[64];
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->service = at;
    p->service.sin_port = htons((uint16_t)strtol(port ? port + 1 : "8000", NULL, 10));
    p->answer = answer;
    p->state = state;
    p->listener = socket(AF_INET, SOCK_STREAM, 0);
    expect(bind(p->listener, (struct sockaddr *)&at, n) == 0 && listen(p->listener, 64) == 0 &&
               getsockname(p->listener, (struct sockaddr *)&at, &n) == 0 &&
               pthread_create(&thread, NULL, accept_all, p) == 0,
           "a proxy can listen on this machine");
    pthread_detach(thread);
    snprintf(here, sizeof(here), "http://127.0.0.1:%d", ntohs(at.sin_port));
    if (opts)
        o = *opts;
    o.base_url = here;
    return need(tinker_service_new(&o, &err), "service");
}

#endif
