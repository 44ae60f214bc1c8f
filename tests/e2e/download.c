/* download.c - a model hub of a few lines for download.sh.
 *
 *     download DIR: serves the files of DIR as the model "test/tiny", prints its port.
 *
 * Files listed in DIR/.large (lines "NAME SHA256") are redirected, as the Hub does it; the
 * others come at once, with the ETag that DIR/.small lists for them.  While DIR/.cut exists a body ends after its first 1000 bytes, while
 * DIR/.hold does it waits there.  Every request is a line of DIR/.log: path, and the range that
 * was asked for. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const char *root;

static void path_of(char out[1024], const char *name)
{
    snprintf(out, 1024, "%.700s/%.300s", root, name);
}

static void say(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        exit(1);
}

static void answer(int fd, const char *status, const char *headers, const char *body)
{
    char head[1024];
    snprintf(head, sizeof(head),
             "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", status,
             strlen(body), headers);
    say(fd, head);
    say(fd, body);
}

static void list(int fd)
{
    static char body[16384];
    size_t n = (size_t)snprintf(body, sizeof(body),
                                "{\"id\":\"test/tiny\",\"sha\":\"" COMMIT "\",\"siblings\":["
                                "{\"rfilename\":\"../evil.json\"},"
                                "{\"rfilename\":\"README.md\"}");
    DIR *d = opendir(root);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.')
            n += (size_t)snprintf(body + n, sizeof(body) - n, ",{\"rfilename\":\"%s\"}", e->d_name);
    if (d)
        closedir(d);
    snprintf(body + n, sizeof(body) - n, "]}");
    answer(fd, "200 OK", "Content-Type: application/json\r\n", body);
}

/* The hash of a file in a list of them; 0: it is not there. */
static int listed(const char *which, const char *name, char sha[80])
{
    char path[1024], line[512], at[256];
    path_of(path, which);
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "%255s %79s", at, sha) == 2 && strcmp(at, name) == 0;
    if (f)
        fclose(f);
    return found;
}

static int marked(const char *mark)
{
    char path[1024];
    path_of(path, mark);
    return access(path, F_OK) == 0;
}

/* At most n bytes of a file. */
static void copy(int fd, int file, size_t n)
{
    char piece[8192];
    for (ssize_t k; n && (k = read(file, piece, n < sizeof(piece) ? n : sizeof(piece))) > 0;
         n -= (size_t)k)
        if (write(fd, piece, (size_t)k) != k)
            break;
}

static void send_file(int fd, const char *name, long from)
{
    char path[1024], head[512], sha[80] = "";
    struct stat st;
    path_of(path, name);
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &st) != 0) {
        answer(fd, "404 Not Found", "", "");
        return;
    }
    if (from >= st.st_size) {
        answer(fd, "416 Range Not Satisfiable", "", "");
        return;
    }
    listed(".small", name, sha);
    lseek(file, from, SEEK_SET);
    snprintf(head, sizeof(head),
             from ? "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %ld-%ld/%ld\r\n"
                  : "HTTP/1.1 200 OK\r\n",
             from, (long)st.st_size - 1, (long)st.st_size);
    say(fd, head);
    snprintf(head, sizeof(head), "ETag: \"%s\"\r\nConnection: close\r\nContent-Length: %ld\r\n\r\n",
             sha, (long)st.st_size - from);
    say(fd, head);
    copy(fd, file, 1000);
    while (marked(".hold"))
        usleep(10000);
    if (!marked(".cut"))
        copy(fd, file, (size_t)st.st_size);
    close(file);
}

static void serve(int fd)
{
    char text[8192], path[512] = "", log[1024], line[1024], sha[80];
    size_t n = 0;
    for (ssize_t k; n + 1 < sizeof(text) && (k = read(fd, text + n, sizeof(text) - 1 - n)) > 0;) {
        n += (size_t)k;
        text[n] = 0;
        if (strstr(text, "\r\n\r\n"))
            break;
    }
    if (sscanf(text, "GET %511s", path) != 1)
        return;
    const char *range = strcasestr(text, "\r\nRange: bytes=");
    long from = range ? strtol(range + 15, NULL, 10) : 0;
    path_of(log, ".log");
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    snprintf(line, sizeof(line), "%s %ld%s\n", path, from,
             strcasestr(text, "\r\nAuthorization: Bearer ") ? " token" : "");
    say(out, line);
    close(out);
    const char *at = "/test/tiny/resolve/" COMMIT "/";
    if (strcmp(path, "/api/models/test/tiny/revision/main") == 0) {
        list(fd);
    } else if (strncmp(path, at, strlen(at)) == 0 && listed(".large", path + strlen(at), sha)) {
        snprintf(line, sizeof(line), "Location: /cdn/%.200s\r\nX-Linked-Etag: \"%s\"\r\n",
                 path + strlen(at), sha);
        answer(fd, "302 Found", line, "");
    } else if (strncmp(path, at, strlen(at)) == 0) {
        send_file(fd, path + strlen(at), from);
    } else if (strncmp(path, "/cdn/", 5) == 0) {
        send_file(fd, path + 5, from);
    } else {
        answer(fd, "404 Not Found", "", "");
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 2 || fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 || listen(fd, 16) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 1;
    root = argv[1];
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    for (int c; (c = accept(fd, NULL, NULL)) >= 0; close(c))
        if (fork() == 0) {
            serve(c);
            _exit(0);
        }
    return 0;
}
