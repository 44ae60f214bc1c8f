/* cmd_serve_control.c - `tinker serve status|stop|logs`: the server of a data directory. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/serve/serve_place.h"

/* Twice what the server takes at most, see STOP_S in cmd_serve.c. */
enum { STOP_WAIT_S = 20, ANSWER_MAX = 16 << 20 };

/* Parse the one option of these commands and find the data directory. false: *status is the
 * exit status. */
static bool read_data_dir(const char *command, const char *about, const char *example, int argc,
                          char **argv, char *data, int *status)
{
    const char *given = NULL;
    const struct opt opts[] = {
        { .name = "data-dir",
          .letter = 'd',
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "the server's directory (default as for serve)",
          .out = &given },
    };
    const struct opt_spec spec = {
        .command = command, .about = about, .opts = opts, .n_opts = 1, .example = example
    };
    if (!opt_parse(&spec, argc, argv, status))
        return false;
    if (serve_place_data(given, data))
        return true;
    *status = out_fail(EXIT_USAGE, NULL, "no home directory: give --data-dir");
    return false;
}

/* The lock says whether a server runs, server.json where. Both are needed: a crash leaves the
 * file behind, but never the lock. */
static bool find_server(const char *data, struct serve_info *info, int *status)
{
    if (serve_place_busy(data) && serve_place_read(data, info))
        return true;
    *status =
        out_fail(EXIT_NOT_FOUND, "Start one with: tinker serve", "no server runs on %s", data);
    return false;
}

/* ---- status ---------------------------------------------------------------------------- */

/* Ten seconds for each read and write: a server that hangs must not hang this command. */
static int connect_address(int family, const struct sockaddr *to, socklen_t n)
{
    struct timeval limit = { 10, 0 };
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(fd, to, n) == 0)
        return fd;
    close(fd);
    return -1;
}

/* The HOST of "http://HOST:PORT" or "http://[HOST]:PORT". */
static void copy_url_host(const char *url, char *out, size_t size)
{
    const char *host = strstr(url, "//");
    host = host ? host + 2 : url;
    bool quoted = *host == '[';
    host += quoted;
    snprintf(out, size, "%.*s", (int)strcspn(host, quoted ? "]" : ":/"), host);
}

/* Connect to "unix:PATH" or to the address in the URL; -1: no connection. A server that listens
 * on all interfaces (0.0.0.0, ::) is reached on this machine through the same address. */
static int connect_server(const struct serve_info *info)
{
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    char host[256], port[16];
    int fd = -1;
    if (strncmp(info->url, "unix:", 5) == 0) {
        snprintf(un.sun_path, sizeof(un.sun_path), "%s", info->url + 5);
        return connect_address(AF_UNIX, (struct sockaddr *)&un, sizeof(un));
    }
    copy_url_host(info->url, host, sizeof(host));
    snprintf(port, sizeof(port), "%d", (int)info->port);
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = connect_address(a->ai_family, a->ai_addr, a->ai_addrlen);
    freeaddrinfo(found);
    return fd;
}

/* GET /status with HTTP/1.0, so the end of the connection is the end of the body. Returns the
 * HTTP status, 0 if there is no answer. A small client here keeps this command free of the HTTP
 * layer. */
static int request_status(const struct serve_info *info, const char *key, struct buf *answer,
                          const char **body)
{
    char request[2048], piece[8192];
    int n = snprintf(request, sizeof(request),
                     "GET %s/status HTTP/1.0\r\nHost: localhost\r\n%s%s%s\r\n", info->path_prefix,
                     key ? "X-API-Key: " : "", key ? key : "", key ? "\r\n" : "");
    int fd = n > 0 && (size_t)n < sizeof(request) ? connect_server(info) : -1;
    if (fd < 0)
        return 0;
    ssize_t k = send(fd, request, (size_t)n, MSG_NOSIGNAL);
    while (k > 0 && (k = recv(fd, piece, sizeof(piece), 0)) > 0)
        buf_append(answer, piece, (size_t)k);
    close(fd);
    const char *head = buf_ok(answer) && answer->len ? answer->data : "";
    const char *gap = strstr(head, "\r\n\r\n");
    *body = gap ? gap + 4 : "";
    /* "HTTP/1.1 200 OK": the status is behind nine characters. */
    return gap && strlen(head) > 12 ? (int)strtol(head + 9, NULL, 10) : 0;
}

/* The digits behind "name": in the status, "-" if there are none. The first
 * occurrence counts; the text is only shown, so no parser is needed. */
static const char *get_status_number(const char *json, const char *name, char out[32])
{
    char key[64];
    snprintf(key, sizeof(key), "\"%s\":", name);
    const char *p = strstr(json, key);
    snprintf(out, 32, "%.*s", p ? (int)strspn(p + strlen(key), "0123456789.") : 1,
             p ? p + strlen(key) : "-");
    return out;
}

/* One line per number; a server with HTTPS shows only its address.
 * A number that this server does not report shows as a dash. */
static void print_status(const struct serve_info *info, const char *json)
{
    static const char *const rows[][2] = {
        { "Uptime (s)", "uptime_s" },
        { "Memory (bytes)", "memory_bytes" },
        { "Sessions", "sessions" },
        { "Models", "models" },
        { "Samples waiting", "queued_samples" },
        { "Samples running", "active_samples" },
        { "Polls held", "held" },
        { "Tokens trained", "train_tokens" },
        { "Tokens sampled", "sample_tokens" },
        { "Optimizer steps", "optim_steps" },
    };
    char text[32];
    printf("%-16s  %s%s\n%-16s  %lld\n", "URL", info->url, info->path_prefix, "Process",
           (long long)info->pid);
    for (size_t i = 0; *json && i < ARRAY_LEN(rows); i++)
        printf("%-16s  %s\n", rows[i][0], get_status_number(json, rows[i][1], text));
}

/* Exit codes: 5 no server, 3 the key is refused, 7 it does not answer. */
int cmd_serve_status(int argc, char **argv)
{
    char data[SERVE_PLACE_MAX];
    struct serve_info info;
    struct buf answer;
    const char *body = "", *key = NULL;
    int status;
    if (!read_data_dir("serve status", "Show the local server of a data directory.",
                       "tinker serve status", argc, argv, data, &status) ||
        !find_server(data, &info, &status))
        return status;
    key = globals.api_key ? globals.api_key : getenv("TINKER_API_KEY");
    log_secret(key);
    buf_init(&answer, ANSWER_MAX);
    /* There is no TLS client here: an HTTPS server is known to run by its lock only. */
    bool tls = strncmp(info.url, "https:", 6) == 0;
    int code = tls ? 0 : request_status(&info, key, &answer, &body);
    status = EXIT_OK;
    if (code == 401)
        status = out_fail(EXIT_CONFIG, "Set TINKER_API_KEY to one of its keys.",
                          "the server at %s wants an API key", info.url);
    else if (code != 200 && !tls)
        status = out_fail(EXIT_NETWORK, NULL, "the server at %s does not answer", info.url);
    else if (globals.json)
        printf("{\"url\":\"%s%s\",\"pid\":%lld,\"status\":%s}\n", info.url, info.path_prefix,
               (long long)info.pid, tls ? "null" : body);
    else
        print_status(&info, tls ? "" : body);
    buf_clear(&answer);
    return status;
}

/* ---- stop and logs ------------------------------------------------------------------------ */

/* Wait for the lock, not for the process id: the server releases it at its very end,
 * and a process id may be reused. */
int cmd_serve_stop(int argc, char **argv)
{
    char data[SERVE_PLACE_MAX];
    struct serve_info info;
    struct timespec pause = { 0, 20 * 1000 * 1000 };
    int status;
    if (!read_data_dir("serve stop",
                       "Stop the local server of a data directory and wait for its end.",
                       "tinker serve stop", argc, argv, data, &status) ||
        !find_server(data, &info, &status))
        return status;
    if (kill((pid_t)info.pid, SIGTERM) != 0)
        return out_fail(EXIT_IO, NULL, "cannot stop process %lld: %s", (long long)info.pid,
                        strerror(errno));
    /* 50 checks per second: the pause is 20 ms. */
    for (int i = 0; i < STOP_WAIT_S * 50 && serve_place_busy(data); i++)
        nanosleep(&pause, NULL);
    if (serve_place_busy(data))
        return out_fail(EXIT_FAILED, NULL, "process %lld did not stop within %d seconds",
                        (long long)info.pid, STOP_WAIT_S);
    out_say("tinker serve: stopped");
    return EXIT_OK;
}

/* Print the log as it is now; it does not follow it. */
int cmd_serve_logs(int argc, char **argv)
{
    char data[SERVE_PLACE_MAX], path[SERVE_PLACE_MAX + 32], piece[8192];
    int status;
    if (!read_data_dir("serve logs", "Print the log of a server started with --daemon.",
                       "tinker serve logs", argc, argv, data, &status))
        return status;
    snprintf(path, sizeof(path), "%s/serve.log", data);
    FILE *f = fopen(path, "r");
    if (!f)
        return out_fail(EXIT_NOT_FOUND, "Only a server started with --daemon writes one.",
                        "there is no log file %s", path);
    for (size_t n; (n = fread(piece, 1, sizeof(piece), f)) > 0;)
        fwrite(piece, 1, n, stdout);
    fclose(f);
    return EXIT_OK;
}
