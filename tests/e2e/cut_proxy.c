/* cut_proxy.c - a proxy in front of a server that cuts responses.
 *
 * Usage: cut_proxy PORT PERCENT SEED: forwards to 127.0.0.1:PORT, prints its own port.  So many percent
 * of the responses end after a random byte, by FIN or by RST; some of the others arrive one byte at
 * a time.  SIGTERM: prints "N responses, M cut" and ends. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BEYOND = 200 }; /* a cut may fall into what comes after the first bytes */

static struct {
    pthread_mutex_t lock;
    unsigned long long random;
    unsigned percent;
    long responses, cuts;
    int port;
} proxy = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct link {
    int client, server;
    bool answered; /* what comes from the server goes on with a response */
    long cut_after;
    bool cut, reset, single;
};

static unsigned next_random(void) /* xorshift64 */
{
    proxy.random ^= proxy.random << 13;
    proxy.random ^= proxy.random >> 7;
    proxy.random ^= proxy.random << 17;
    return (unsigned)(proxy.random >> 32);
}

/* The first n bytes of a response are there: what becomes of it? */
static void begin_response(struct link *l, ssize_t n)
{
    pthread_mutex_lock(&proxy.lock);
    l->cut = next_random() % 100 < proxy.percent;
    l->cut_after = next_random() % (unsigned)(n + (next_random() % 4 ? 0 : BEYOND));
    l->reset = next_random() % 2;
    l->single = next_random() % 8 == 0;
    proxy.responses++;
    pthread_mutex_unlock(&proxy.lock);
    l->answered = true;
}

static bool send_all(int fd, const char *p, size_t n, bool single)
{
    while (n > 0) {
        ssize_t w = send(fd, p, single ? 1 : n, MSG_NOSIGNAL);
        if (w <= 0)
            return false;
        p += w;
        n -= (size_t)w;
        if (single)
            sched_yield();
    }
    return true;
}

/* false: the connection is over */
static bool forward_response(struct link *l)
{
    char buf[65536];
    ssize_t n = recv(l->server, buf, sizeof(buf), 0);
    if (n <= 0)
        return false;
    if (!l->answered)
        begin_response(l, n);
    bool now = l->cut && l->cut_after < n;
    if (!send_all(l->client, buf, now ? (size_t)l->cut_after : (size_t)n, l->single))
        return false;
    l->cut_after -= n;
    if (!now)
        return true;
    if (l->reset)
        setsockopt(l->client, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 },
                   sizeof(struct linger));
    pthread_mutex_lock(&proxy.lock);
    proxy.cuts++;
    pthread_mutex_unlock(&proxy.lock);
    return false;
}

static bool forward_request(struct link *l)
{
    char buf[65536];
    ssize_t n = recv(l->client, buf, sizeof(buf), 0);
    l->answered = false;
    return n > 0 && send_all(l->server, buf, (size_t)n, false);
}

static int connect_server(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((unsigned short)proxy.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
        return fd;
    close(fd);
    return -1;
}

static void *run_link(void *arg)
{
    struct link l = { .client = *(int *)arg, .server = connect_server() };
    free(arg);
    setsockopt(l.client, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    bool go_on = l.server >= 0;
    while (go_on) {
        struct pollfd p[2] = { { .fd = l.client, .events = POLLIN },
                               { .fd = l.server, .events = POLLIN } };
        if (poll(p, 2, -1) < 0)
            break;
        if (p[1].revents)
            go_on = forward_response(&l);
        else if (p[0].revents)
            go_on = forward_request(&l);
    }
    close(l.client);
    if (l.server >= 0)
        close(l.server);
    return NULL;
}

static void *run_proxy(void *arg)
{
    int listener = *(int *)arg;
    for (;;) {
        int *fd = malloc(sizeof(*fd));
        pthread_t thread;
        if (!fd || (*fd = accept(listener, NULL, NULL)) < 0 ||
            pthread_create(&thread, NULL, run_link, fd) != 0)
            exit(1);
        pthread_detach(thread);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    sigset_t set;
    int sig, fd = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t thread;
    if (argc != 4 || bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return 1;
    proxy.port = (int)strtol(argv[1], NULL, 10);
    proxy.percent = (unsigned)strtoul(argv[2], NULL, 10);
    proxy.random = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15ULL + 1;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, run_proxy, &fd) != 0)
        return 1;
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    sigwait(&set, &sig);
    pthread_mutex_lock(&proxy.lock);
    printf("%ld responses, %ld cut\n", proxy.responses, proxy.cuts);
    return 0;
}
