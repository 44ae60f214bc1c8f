/* dial.h - a client made of plain sockets, for tests that must misbehave. */
#ifndef UNIT_SERVER_DIAL_H
#define UNIT_SERVER_DIAL_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "support/nap.h"
#include "support/tap.h"

static int connect_local(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval t = { 20, 0 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
        TAP_FAIL("connect failed");
    return fd;
}

static void send_text(int fd, const char *text)
{
    size_t n = strlen(text);
    CHECK(send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n);
}

/* Read until `want` was seen or nothing more comes; the text is in a static buffer. */
static const char *receive_until(int fd, const char *want)
{
    static char text[300000];
    size_t n = 0;
    text[0] = 0;
    while (!strstr(text, want) && n + 1 < sizeof(text)) {
        ssize_t k = recv(fd, text + n, sizeof(text) - 1 - n, 0);
        if (k <= 0)
            break;
        n += (size_t)k;
        text[n] = 0;
    }
    return text;
}

/* Has the other side hung up?  Waits for it. */
static bool is_closed(int fd)
{
    char c;
    ssize_t n;
    while ((n = recv(fd, &c, 1, 0)) > 0)
        continue;
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* Has it not, as far as can be seen now? */
static bool is_open(int fd)
{
    char c;
    return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
}

#endif
