/* listener_socket.c - TCP and Unix sockets: see listener_socket.h. */
#include "server/http/listener_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"

/* Below this the server would accept connections and then fail to open its own files. */
enum { FILES_KEPT = 128 }; /* descriptors for the store, weights and archives */

/* Names other than localhost are not resolved: DNS must not decide whether keys are needed. */
bool listener_is_loopback(const char *host)
{
    struct in6_addr v6;
    struct in_addr v4;
    if (strcasecmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* Against DNS rebinding: a web site may point its own name at this machine, but it cannot own an
 * address or "localhost".  The port, and the brackets of an IPv6 address, do not matter. */
bool listener_is_local_name(const char *host)
{
    char name[64];
    bool bracket = host[0] == '['; /* "[::1]:8000" */
    size_t n = strcspn(host + bracket, bracket ? "]" : ":");
    const char *rest = host + bracket + n;
    struct in6_addr v6;
    struct in_addr v4;
    /* Only a port may follow: "[::1].evil.com" is somebody's name. */
    if (bracket && *rest++ != ']')
        return false;
    bool ends = !*rest || (*rest == ':' && !rest[1 + strspn(rest + 1, "0123456789")]);
    if (n >= sizeof(name) || !ends)
        return false;
    memcpy(name, host + bracket, n);
    name[n] = '\0';
    /* An IPv6 address needs its brackets in a Host header (RFC 3986, 3.2.2). */
    return bracket ? inet_pton(AF_INET6, name, &v6) == 1
                   : inet_pton(AF_INET, name, &v4) == 1 || strcasecmp(name, "localhost") == 0;
}

/* A Unix socket, for this user only (mode 0600). */
static int listen_unix(const char *path, tinker_error *err)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    struct stat st;
    if (strlen(path) >= sizeof(sa.sun_path)) {
        err_set(err, TINKER_EINVAL, "socket path is too long: %s", path);
        return -1;
    }
    memcpy(sa.sun_path, path, strlen(path) + 1); /* the length was checked above */
    /* Replace a socket that a dead server left behind, but never another kind of file. */
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 && chmod(path, 0600) == 0 &&
        listen(fd, 1024) == 0)
        return fd;
    err_errno(err, "listen on", path);
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The first address that the host name resolves to. */
static int listen_tcp(const char *host, int *port, tinker_error *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *list = NULL;
    struct sockaddr_storage bound;
    socklen_t n_bound = sizeof(bound);
    char service[16], place[300];
    snprintf(service, sizeof(service), "%d", *port);
    snprintf(place, sizeof(place), "%s:%d", host, *port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) { /* a name that does not resolve is a wrong option, not a state */
        err_set(err, TINKER_EINVAL, "listen on %s: %s", place, gai_strerror(rc));
        return -1;
    }
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    /* A restarted server must not wait for the old connections' TIME_WAIT. */
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    /* The backlog holds clients that connect while the HTTP thread is busy. */
    bool ok = fd >= 0 && bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, 4096) == 0;
    freeaddrinfo(list);
    if (ok) {
        /* With port 0 the system chose one. */
        if (getsockname(fd, (struct sockaddr *)&bound, &n_bound) != 0)
            *port = 0;
        else if (bound.ss_family == AF_INET6)
            *port = ntohs(((struct sockaddr_in6 *)&bound)->sin6_port);
        else
            *port = ntohs(((struct sockaddr_in *)&bound)->sin_port);
        return fd;
    }
    if (errno == EADDRINUSE)
        err_set(
            err, TINKER_ESTATE,
            "listen on %s: %s; choose another address with --listen, or port 0 for any free port",
            place, strerror(errno));
    else
        err_errno(err, "listen on", place);
    if (fd >= 0)
        close(fd);
    return -1;
}

int listener_socket_open(const struct listener_options *opts, int *port, tinker_error *err)
{
    /* listen_tcp() replaces port 0 by the one it got. */
    *port = opts->unix_path ? 0 : opts->port;
    return opts->unix_path ? listen_unix(opts->unix_path, err) : listen_tcp(opts->host, port, err);
}

unsigned listener_socket_limit(int max_connections)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return (unsigned)max_connections;
    /* Every held poll takes a descriptor: raise the soft limit to the hard one. */
    if (r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    if (r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= (rlim_t)max_connections + FILES_KEPT)
        return (unsigned)max_connections;
    /* Too few descriptors: reserve some for files, or half when there are very few. */
    return r.rlim_cur > 2 * FILES_KEPT ? (unsigned)(r.rlim_cur - FILES_KEPT)
                                       : (unsigned)(r.rlim_cur / 2);
}
