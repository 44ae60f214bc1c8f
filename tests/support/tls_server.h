/* tls_server.h - openssl's own test server on loopback, with a certificate that nobody trusts. */
#ifndef SUPPORT_TLS_SERVER_H
#define SUPPORT_TLS_SERVER_H

#include <arpa/inet.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[64], cert[96], key[96];
static int port;
static pid_t server;

static int free_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        exit(2);
    close(fd);
    return ntohs(a.sin_port);
}

static bool listening(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port) };
    for (int i = 0; i < 500; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        int rc = connect(fd, (struct sockaddr *)&a, sizeof(a));
        close(fd);
        if (rc == 0)
            return true;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    return false;
}

/* Make a key and a certificate for localhost and a-b.localhost.  One of the past takes openssl's little
 * authority: `req` makes none. */
static bool make_certificate(bool expired)
{
    char command[2048];
    if (!expired)
        snprintf(
            command, sizeof(command),
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
            "subjectAltName=DNS:localhost,DNS:a-b.localhost -keyout %s -out %s >/dev/null 2>&1",
            key, cert);
    else
        snprintf(
            command, sizeof(command),
            "cd %s && : >index && echo 01 >serial && "
            "printf '[ca]\\ndefault_ca=c\\n[c]\\ndatabase=index\\nnew_certs_dir=.\\n"
            "serial=serial\\ndefault_md=sha256\\npolicy=p\\nx509_extensions=e\\n[p]\\n"
            "commonName=supplied\\n[e]\\nsubjectAltName=DNS:localhost,DNS:a-b.localhost\\n' "
            ">conf && openssl req -new -newkey rsa:2048 -nodes -subj /CN=localhost -keyout %s "
            "-out request >/dev/null 2>&1 && openssl ca -batch -config conf -selfsign -keyfile "
            "%s -in request -out %s -notext -startdate 20200101000000Z -enddate "
            "20200102000000Z >/dev/null 2>&1",
            dir, key, key, cert);
    return system(command) == 0;
}

/* false: no openssl program here */
static bool start_server_with(bool expired)
{
    char text[16];
    snprintf(dir, sizeof(dir), "/tmp/tinker-tls-XXXXXX");
    if (!mkdtemp(dir))
        exit(2);
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    if (!make_certificate(expired))
        return false;
    port = free_port();
    snprintf(text, sizeof(text), "%d", port);
    server = fork();
    if (server == 0) {
        freopen("/dev/null", "r", stdin);
        freopen("/dev/null", "w", stdout);
        freopen("/dev/null", "w", stderr);
        execlp("openssl", "openssl", "s_server", "-accept", text, "-cert", cert, "-key", key,
               "-cert2", cert, "-key2", key, "-servername", "a-b.localhost", "-servername_fatal",
               "-www", "-quiet", (char *)NULL);
        _exit(127);
    }
    return listening();
}

static inline bool start_server(void)
{
    return start_server_with(false);
}

static void stop_server(void)
{
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    char command[96]; /* an authority leaves files of its own */
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    if (system(command) != 0)
        exit(2);
}

#endif
