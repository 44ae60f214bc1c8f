/* cmd_serve.c - `tinker serve`: the local Tinker server until a signal ends it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/models/known_models.h"
#include "cli/output/out.h"
#include "cli/serve/open_page.h"
#include "cli/serve/serve_options.h"
#include "server/server.h"

/* Seconds that a clean stop may take. */
enum { STOP_S = 9 };

/* What server.json and the announcement say: an IPv6 host needs brackets in a URL. */
static void describe_server(const struct server_options *o, int port, struct serve_info *info)
{
    memset(info, 0, sizeof(*info));
    info->pid = getpid();
    info->port = port;
    if (o->unix_path)
        snprintf(info->url, sizeof(info->url), "unix:%s", o->unix_path);
    else
        snprintf(info->url, sizeof(info->url), strchr(o->host, ':') ? "%s://[%s]:%d" : "%s://%s:%d",
                 o->tls_cert ? "https" : "http", o->host, port);
    snprintf(info->path_prefix, sizeof(info->path_prefix), "%s",
             o->path_prefix ? o->path_prefix : "");
}

/* For a person who has just typed `tinker serve`: where to look, and what to type next. */
static void print_banner(const struct server_options *o, const struct serve_info *info)
{
    printf("tinker serve is ready:");
    for (size_t i = 0; i < o->n_models; i++)
        printf("%s %s", i ? "," : "", o->models[i].name);
    printf("\n\n");
    if (o->unix_path) {
        printf("  socket   %s\n", o->unix_path);
    } else {
        printf("  page     %s%s/\n", info->url, info->path_prefix);
        printf("  API      %s%s\n", info->url, info->path_prefix);
        printf("  OpenAI   %s%s/v1\n", info->url, info->path_prefix);
        printf("\nIn another terminal: tinker chat\n");
    }
    printf("Ctrl-C stops it; what was trained is kept in %s\n", o->data_dir);
}

/* Lines for eval in a shell, or JSON. No client can be pointed at a Unix socket by URL, so for
 * one it is a comment. People read the lines on stderr, or the banner. */
static void announce_server(const struct server_options *o, const struct serve_info *info)
{
    bool person = isatty(STDOUT_FILENO) && !globals.json;
    if (person) {
        print_banner(o, info);
    } else if (globals.json) {
        printf("{\"url\":\"%s%s\",\"port\":%lld}\n", info->url, info->path_prefix,
               (long long)info->port);
    } else if (o->unix_path) {
        printf("# %s%s\n", info->url, info->path_prefix);
    } else {
        printf("export TINKER_BASE_URL=%s%s\n", info->url, info->path_prefix);
        if (!o->n_api_keys)
            printf("export TINKER_API_KEY=tml-local\n");
    }
    fflush(stdout);
    for (size_t i = 0; i < o->n_models; i++)
        known_models_add(o->data_dir, o->models[i].name, o->models[i].dir);
    if (person)
        return;
    out_say("tinker serve: listening on %s%s", info->url, info->path_prefix);
    for (size_t i = 0; i < o->n_models; i++)
        out_say("tinker serve: model %s from %s", o->models[i].name, o->models[i].dir);
}

/* --open.  A browser that cannot be started is no reason not to serve. */
static void show_page(const struct server_options *o, const struct serve_info *info)
{
    char url[sizeof(info->url) + sizeof(info->path_prefix) + 2];
    snprintf(url, sizeof(url), "%s%s/", info->url, info->path_prefix);
    if (o->unix_path)
        out_say("tinker serve: browsers cannot open a Unix socket: use --listen");
    else if (open_page(url) != 0)
        out_say("tinker serve: no browser could be started (BROWSER names one): open %s", url);
}

/* Acknowledged work is on disk already, so a slice of computation that takes too long is
 * abandoned. STOP_S is below the ten seconds that service managers commonly wait before
 * SIGKILL. */
static void *exit_after_deadline(void *arg)
{
    struct timespec t = { STOP_S, 0 };
    (void)arg;
    nanosleep(&t, NULL);
    _exit(EXIT_OK);
}

/* The watchdog thread is detached: it dies with the process. */
static void stop_server(struct server *s)
{
    pthread_t watchdog;
    out_say("tinker serve: stopping");
    if (pthread_create(&watchdog, NULL, exit_after_deadline, NULL) == 0)
        pthread_detach(watchdog);
    server_close(s);
}

/* One thread receives SIGINT and SIGTERM from start to end.  Were it canceled when the server is
 * ready and the main thread waited from then on, a signal that it had taken at that moment would be
 * lost, and the server never stop. */
struct signal_watch {
    sigset_t signals;
    atomic_bool ready; /* the server is open: it is stopped, not left */
    sem_t stop;
};

/* Reading weights may take minutes, and nothing is at stake yet: a signal ends it at once with
 * 128 plus its number, as a shell reports a process that a signal ended. */
static void *watch_signals(void *arg)
{
    struct signal_watch *w = arg;
    int sig = SIGTERM;
    while (sigwait(&w->signals, &sig) != 0)
        continue;
    if (!atomic_load(&w->ready)) {
        out_say("tinker serve: interrupted");
        _exit(128 + sig);
    }
    sem_post(&w->stop);
    return NULL;
}

/* Static: the thread may outlive run_server(), which ends the process when opening fails. */
static struct signal_watch *start_watching(void)
{
    static struct signal_watch w;
    pthread_t thread;
    /* Blocked before any thread starts, so that only sigwait() sees them. */
    sigemptyset(&w.signals);
    sigaddset(&w.signals, SIGINT);
    sigaddset(&w.signals, SIGTERM);
    if (sem_init(&w.stop, 0, 0) != 0 || pthread_sigmask(SIG_BLOCK, &w.signals, NULL) != 0 ||
        pthread_create(&thread, NULL, watch_signals, &w) != 0)
        return NULL;
    pthread_detach(thread);
    return &w;
}

/* Run until a signal. Exit codes: 3 for a bad configuration, 9 if the address or the data
 * directory cannot be used, 0 after a clean stop. */
static int run_server(const struct server_options *opts, const struct serve_options *v)
{
    tinker_error err = { 0 };
    struct serve_info info;
    struct signal_watch *watch = start_watching();
    if (!watch)
        return out_fail(EXIT_FAILED, NULL, "cannot start a thread: %s", strerror(errno));
    /* The socket listens from here on. */
    struct server *s = server_open(opts, &err);
    atomic_store(&watch->ready, s != NULL);
    if (!s)
        return out_fail(err.status == TINKER_EINVAL ? EXIT_CONFIG : EXIT_IO, NULL, "%s",
                        err.message);
    describe_server(opts, server_port(s), &info);
    if (serve_place_write(opts->data_dir, &info, &err) != TINKER_OK)
        out_say("tinker serve: %s", err.message);
    if (v->daemon)
        /* Not earlier: until the server is ready, Ctrl-C in the terminal is meant for it, too. */
        setsid();
    announce_server(opts, &info);
    if (v->open)
        show_page(opts, &info);
    /* Whoever reads the announcement to its end need not wait for ours. */
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        close(null);
    }
    while (sem_wait(&watch->stop) != 0)
        continue;
    serve_place_remove(opts->data_dir);
    stop_server(s);
    return EXIT_OK;
}

/* ---- in the background ------------------------------------------------------------------------ */

/* Copy the log from a position on: why the child could not start. */
static void print_log(const char *path, off_t from)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && lseek(fd, from, SEEK_SET) >= 0)
        for (ssize_t n; (n = read(fd, text, sizeof(text))) > 0;)
            fwrite(text, 1, (size_t)n, stderr);
    if (fd >= 0)
        close(fd);
}

/* The parent of --daemon: copy what the child announces; the pipe closes when the child is
 * ready or dead. Returns the exit status of a child that announced nothing. */
static int wait_until_ready(pid_t child, int fd)
{
    char text[4096];
    bool ready = false;
    for (ssize_t n; (n = read(fd, text, sizeof(text))) > 0;) {
        fwrite(text, 1, (size_t)n, stdout);
        ready = true;
    }
    close(fd);
    if (ready)
        return EXIT_OK;
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : EXIT_FAILED;
}

/* Returns true in the child, which goes on as the server; false in the parent, with *status
 * set. The child's stdout is a pipe to the parent until it has announced itself, its stderr is
 * serve.log in the data directory. */
static bool go_to_background(const char *data, int *status)
{
    char path[SERVE_PLACE_MAX + 32];
    tinker_error err = { 0 };
    int ends[2];
    snprintf(path, sizeof(path), "%s/serve.log", data);
    if (os_make_dirs(data, &err) != TINKER_OK) {
        *status = out_fail(EXIT_IO, NULL, "%s", err.message);
        return false;
    }
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log < 0 || fchmod(log, 0600) != 0) {
        *status = out_fail(EXIT_IO, NULL, "open %s: %s", path, strerror(errno));
        return false;
    }
    /* The log is appended to; only what this start adds is shown if it fails. */
    off_t logged = lseek(log, 0, SEEK_END);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    /* Before fork(): text in a stdio buffer would be printed by both processes. */
    fflush(NULL);
    pid_t child = null >= 0 && pipe(ends) == 0 ? fork() : -1;
    if (child < 0) {
        *status = out_fail(EXIT_IO, NULL, "cannot go to the background: %s", strerror(errno));
        return false;
    }
    if (child > 0) {
        close(ends[1]);
        *status = wait_until_ready(child, ends[0]);
        if (*status != EXIT_OK)
            print_log(path, logged);
        return false;
    }
    dup2(null, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    return true;
}

/* Lines about single requests fill a terminal; there they are for -v. */
static enum log_level choose_log_level(const struct serve_options *v)
{
    bool quiet = !v->daemon && !globals.log_file && isatty(STDERR_FILENO);
    if (v->log_level)
        return log_level_parse(v->log_level, LOG_INFO);
    return globals.verbose > 1 ? LOG_DEBUG : globals.verbose || !quiet ? LOG_INFO : LOG_WARNING;
}

/* --log-file: what stderr would get goes there. */
static bool redirect_log(int *status)
{
    int fd = globals.log_file
                 ? open(globals.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)
                 : -1;
    if (globals.log_file && (fd < 0 || dup2(fd, STDERR_FILENO) < 0)) {
        *status = out_fail(EXIT_IO, NULL, "open %s: %s", globals.log_file, strerror(errno));
        return false;
    }
    if (fd >= 0)
        close(fd);
    return true;
}

/* The options are large (fixed arrays for names and keys), so they are on the heap. */
int cmd_serve(int argc, char **argv)
{
    int status;
    struct serve_options *v = calloc(1, sizeof(*v));
    if (!v)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    if (serve_options_parse(v, argc, argv, &status)) {
        struct server_options opts;
        struct log log = { log_stderr, NULL, choose_log_level(v) };
        status = serve_options_take(v, &opts);
        opts.log = &log;
        /* With --daemon only the child runs the server; the parent has its exit status. */
        if (status == EXIT_OK && redirect_log(&status) &&
            (!v->daemon || go_to_background(v->data, &status)))
            status = run_server(&opts, v);
    }
    serve_options_clear(v);
    free(v);
    return status;
}
