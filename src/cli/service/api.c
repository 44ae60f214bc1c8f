/* api.c - see api.h. */
#include "cli/service/api.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "cli/account/stored_key.h"
#include "cli/args/config.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/service/trace.h"

enum { DEFAULT_TIMEOUT_MS = 600000 };
enum { SILENCE_S = 5 }; /* then say that nothing happened yet */

static volatile sig_atomic_t caught;
static atomic_int queue_state; /* what the service said last of a request that waits */

/* Only a flag may be set here: nothing else in a handler is async-signal-safe. The wait that
 * the signal interrupted sees it. */
static void on_signal(int number)
{
    caught = number;
}

/* SIGINT is Ctrl-C, SIGTERM what kill and service managers send. Both end a command in good
 * order, with exit code 128 + number. */
sigset_t api_stopping_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

/* While a wait sleeps, a signal ends the wait, even where the caller has blocked it; at other
 * times it ends the program as usual. Begun and ended by await_future(), so a watch never
 * outlives a wait. */
struct watch {
    sigset_t mask, asleep; /* of the caller; of the sleep */
    struct sigaction interrupt, terminate;
};

/* A signal that is already ignored stays ignored: a shell starts background jobs with SIGINT
 * ignored, and Ctrl-C is not meant for them. */
static void watch_signal(int number, struct sigaction *old)
{
    struct sigaction action = { .sa_handler = on_signal };
    sigemptyset(&action.sa_mask);
    sigaction(number, NULL, old);
    if (old->sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

/* Block the signals and remember the caller's mask. pselect() unblocks them atomically for the
 * sleep, so one that arrives between the check of `caught` and the sleep is not lost. */
static void begin_watch(struct watch *w)
{
    sigset_t set = api_stopping_signals();
    sigprocmask(SIG_BLOCK, &set, &w->mask); /* but in pselect() */
    w->asleep = w->mask;
    sigdelset(&w->asleep, SIGINT);
    sigdelset(&w->asleep, SIGTERM);
    watch_signal(SIGINT, &w->interrupt);
    watch_signal(SIGTERM, &w->terminate);
}

/* After a signal the handlers stay installed: a second Ctrl-C must not kill the program while
 * it still cleans up. Treat repeated SIGINT and SIGTERM as one clean shutdown. */
static void end_watch(const struct watch *w)
{
    if (!caught) {
        sigaction(SIGINT, &w->interrupt, NULL);
        sigaction(SIGTERM, &w->terminate, NULL);
    }
    sigprocmask(SIG_SETMASK, &w->mask, NULL);
}

int api_interrupted(void)
{
    return caught;
}

/* ---- connecting --------------------------------------------------------------------- */

/* Log lines of the library go to --log-file, else to stderr, on a line of their own if a progress
 * bar stands there.  Called from the library's threads, too. */
static void print_log_line(tinker_log_level level, const char *line, void *state)
{
    FILE *f = state;
    (void)level;
    if (f == stderr)
        progress_break();
    fprintf(f, "%s\n", line);
}

/* Called from a thread of the library; the last state decides later between the exit codes for
 * "out of capacity" and for "timed out". */
static void on_queue_state(const char *who, tinker_queue_state now, const char *reason, void *state)
{
    (void)state;
    (void)who;
    (void)reason; /* the library says it */
    atomic_store(&queue_state, (int)now);
}

/* The settings of a connection, each from where it counts: see config.h. */
struct settings {
    const char *base_url, *api_key, *command, *project, *model;
    char *key_text; /* from a file */
    bool local;     /* nobody named a service */
};

/* The first line of the file, without blanks around it. */
static bool read_key_file(const char *path, struct settings *s, int *status)
{
    tinker_error err;
    size_t n;
    if (os_read_file(path, 1 << 16, &s->key_text, &n, &err) != TINKER_OK) {
        *status = out_fail(EXIT_CONFIG, NULL, "%s", err.message);
        return false;
    }
    char *text = s->key_text + strspn(s->key_text, " \t\r\n");
    text[strcspn(text, " \t\r\n")] = 0;
    log_secret(text);
    s->api_key = text;
    return true;
}

static bool read_settings(struct settings *s, int *status)
{
    const char *file = NULL, *timeout = NULL;
    struct stored_key stored;
    tinker_error err;
    bool found = false;
    memset(s, 0, sizeof(*s));
    if (!config_get(CONFIG_BASE_URL, &s->base_url, NULL, status) ||
        !config_get(CONFIG_API_KEY_FILE, &file, NULL, status) ||
        !config_get(CONFIG_API_KEY, &s->api_key, NULL, status) ||
        !config_get(CONFIG_CREDENTIAL_CMD, &s->command, NULL, status) ||
        !config_get(CONFIG_PROJECT_ID, &s->project, NULL, status) ||
        !config_get(CONFIG_TIMEOUT, &timeout, NULL, status) ||
        !config_get(CONFIG_MODEL, &s->model, NULL, status))
        return false;
    if (file && !globals.api_key && !read_key_file(file, s, status))
        return false;
    if (timeout && globals.timeout < 0 && !opt_read_duration(timeout, &globals.timeout)) {
        *status =
            out_fail(EXIT_CONFIG, NULL, "timeout in the configuration is no duration: %s", timeout);
        return false;
    }
    s->local = s->base_url && strcmp(s->base_url, "local") == 0;
    if (s->base_url || s->api_key || s->command)
        return true;
    /* Neither address nor key: a stored key means the hosted service, none this machine. */
    if (stored_key_read(&stored, &found, &err) != TINKER_OK && err.status == TINKER_EINVAL) {
        *status = out_fail(EXIT_CONFIG, NULL, "%s", err.message);
        return false;
    }
    s->local = !found;
    return true;
}

/* Say once which of the two it is: nobody named it. */
static void tell_local(const struct local *l)
{
    static bool told;
    if (!told && l->engine)
        out_say("local engine: %s", l->model);
    else if (!told)
        out_say("local server: %s", l->url);
    told = true;
}

/* --retries counts over all layers of a request, so it belongs to the handle that sends it. */
static tinker_rest *create_rest(tinker_service *s, tinker_error *err)
{
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    tinker_rest *rest = tinker_service_create_rest(s, err);
    if (!rest || globals.retries < 0)
        return rest;
    o.max_retries = globals.retries ? (int)globals.retries : -1;
    tinker_rest *limited = tinker_rest_with(rest, &o, err);
    tinker_rest_free(rest);
    return limited;
}

/* Build the client. The connection itself is made by the first request, so a wrong address
 * shows up there and not here. */
static bool connect_service(struct api *a, const struct settings *s, int *status)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    tinker_error err;
    sigset_t set = api_stopping_signals(), old;
    /* NULL: the library has its own default, and reads ~/.tinker/credentials.json. */
    o.base_url = s->local ? a->local.url : s->base_url;
    a->loopback = s->local || (s->base_url && (strstr(s->base_url, "//127.") ||
                                               strstr(s->base_url, "//localhost") ||
                                               strstr(s->base_url, "//[::1]")));
    o.api_key = s->api_key;
    o.credentials.command = s->command;
    o.credentials.project_id = s->project;
    if (globals.retries >= 0)
        o.network.max_retries = globals.retries ? (int)globals.retries : -1;
    if (globals.log_file) {
        a->log = fopen(globals.log_file, "a");
        if (!a->log) {
            *status = out_fail(EXIT_IO, NULL, "open %s: %s", globals.log_file, strerror(errno));
            return false;
        }
        setvbuf(a->log, NULL, _IOLBF, 0);
        o.observation.log = print_log_line;
        o.observation.log_state = a->log;
        o.observation.log_verbose = 2;
        o.observation.dump_headers = 1;
    } else if (!globals.quiet) {
        o.observation.log = print_log_line;
        o.observation.log_state = stderr;
        o.observation.log_verbose = globals.verbose > 1 ? 2 : (int)globals.verbose;
    }
    /* The library's threads inherit the mask, so a signal reaches this thread and no other. */
    sigprocmask(SIG_BLOCK, &set, &old);
    a->service = tinker_service_new(&o, &err);
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (a->service) {
        tinker_service_observe(a->service, on_queue_state, 1, NULL);
        a->rest = create_rest(a->service, &err);
    }
    if (!a->rest) {
        *status = out_fail(EXIT_CONFIG,
                           "Set TINKER_API_KEY, and TINKER_BASE_URL for a server of your own; or "
                           "run: tinker auth login",
                           "Configuration error: %s", err.message);
        return false;
    }
    return !globals.trace || trace_attach(a->service, globals.trace, status);
}

/* The engine or server of this machine if need be, then the client.  model and recorded as
 * local_open() has them. */
static bool open_connection(struct api *a, const struct settings *s, const char *model,
                            bool recorded, int *status)
{
    memset(a, 0, sizeof(*a));
    if (s->local && !local_open(&a->local, model, recorded, status))
        return false;
    if (connect_service(a, s, status))
        return true;
    api_close(a);
    return false;
}

bool api_open(struct api *a, int *status)
{
    struct settings s;
    bool ok = read_settings(&s, status) && open_connection(a, &s, NULL, false, status);
    if (ok && s.local && globals.verbose)
        tell_local(&a->local);
    free(s.key_text);
    return ok;
}

tinker_future *api_get_capabilities(struct api *a, int *status)
{
    tinker_error err;
    return api_wait(tinker_service_get_capabilities(a->service, &err), &err, status);
}

/* Weights that can be sampled from; a path without a kind is left to the service. */
static bool check_sampler_path(const char *path, int *status)
{
    tinker_checkpoint_path parts;
    if (!api_read_path(path, &parts, status))
        return false;
    if (parts.kind == TINKER_CHECKPOINT_SAMPLER || parts.kind == TINKER_CHECKPOINT_UNKNOWN)
        return true;
    *status =
        out_fail(EXIT_USAGE, "Save sampler weights, and give tinker://RUN_ID/sampler_weights/NAME.",
                 "%s is training state, which cannot be sampled", path);
    return false;
}

char *api_find_newest(struct api *a, const char *run, tinker_checkpoint_kind kind, int *status)
{
    tinker_page page = TINKER_PAGE_INIT;
    tinker_error err;
    bool any = strcmp(run, "last") == 0;
    const tinker_checkpoint *best = NULL;
    page.limit = 1000;
    tinker_future *f = api_wait(any ? tinker_rest_list_user_checkpoints(a->rest, &page, &err)
                                    : tinker_rest_list_checkpoints(a->rest, run, &err),
                                &err, status);
    const tinker_checkpoints *all = f ? tinker_future_checkpoints(f) : NULL;
    for (size_t i = 0; all && i < all->n; i++) {
        const tinker_checkpoint *c = tinker_checkpoint_at(all, i);
        if (c->kind == kind && (!best || c->time_us > best->time_us))
            best = c;
    }
    if (all && !best)
        *status = out_fail(
            EXIT_NOT_FOUND, "tinker checkpoint list shows what there is.", "there %s%s%s yet",
            kind == TINKER_CHECKPOINT_SAMPLER ? "are no sampler weights" : "is no training state",
            any ? "" : " of ", any ? "" : run);
    char *path = best ? strdup(best->path) : NULL;
    tinker_future_free(f);
    return path;
}

/* The base model of saved weights. */
static char *find_base_of(struct api *a, const char *path, int *status)
{
    tinker_error err;
    tinker_future *f = api_wait(tinker_rest_get_weights_info(a->rest, path, &err), &err, status);
    char *name = f ? strdup(tinker_future_weights_info(f)->base_model) : NULL;
    tinker_future_free(f);
    return name;
}

/* The only model that the service samples from; else NULL after they were listed. */
static char *find_only_model(struct api *a, int *status)
{
    tinker_future *f = api_get_capabilities(a, status);
    const tinker_capabilities *c = f ? tinker_future_capabilities(f) : NULL;
    char *only = NULL;
    struct buf names;
    size_t n = 0;
    if (!c)
        return NULL;
    buf_init(&names, 1 << 16);
    for (size_t i = 0; i < c->n; i++) {
        const tinker_supported_model *m = tinker_supported_model_at(c, i);
        if (!m->name || m->sampleable == 0)
            continue;
        buf_printf(&names, "%s%s", n ? ", " : "It has: ", m->name);
        if (n++ == 0)
            only = strdup(m->name);
    }
    if (n != 1) {
        free(only);
        only = NULL;
        *status = out_fail(EXIT_USAGE, n && buf_ok(&names) ? names.data : NULL,
                           "Give a model with '-m': the service has %s",
                           n ? "several" : "none to sample from");
    }
    buf_clear(&names);
    tinker_future_free(f);
    return only;
}

/* The engine was started with the bundled model to ask about the weights; they need another. */
static bool restart_engine(struct api *a, const struct settings *s, int *status)
{
    char *model = a->model, *path = a->path;
    a->model = a->path = NULL;
    api_close(a);
    bool ok = open_connection(a, s, model, true, status);
    if (ok) {
        a->model = model;
        a->path = path;
    } else {
        free(model);
        free(path);
    }
    return ok;
}

/* Fill a->path and a->model from what the user gave. */
static bool find_model(struct api *a, const char *wanted, const char *path, int *status)
{
    if (path) {
        a->path = strncmp(path, "tinker://", 9) == 0
                      ? strdup(path)
                      : api_find_newest(a, path, TINKER_CHECKPOINT_SAMPLER, status);
        if (!a->path)
            return false;
    }
    if (a->local.engine && (wanted || !path))
        a->model = strdup(a->local.model);
    else
        a->model = wanted ? strdup(wanted)
                   : path ? find_base_of(a, a->path, status)
                          : find_only_model(a, status);
    return a->model != NULL;
}

bool api_open_model(struct api *a, const char *model, const char *path, int *status)
{
    struct settings s;
    if (path && strstr(path, "://") && !check_sampler_path(path, status))
        return false;
    bool ok = read_settings(&s, status);
    const char *wanted = ok && !model && !path ? s.model : model;
    ok = ok && open_connection(a, &s, wanted, false, status);
    if (ok && !find_model(a, wanted, path, status)) {
        api_close(a);
        ok = false;
    }
    if (ok && a->local.engine && strcmp(a->model, a->local.model) != 0)
        ok = restart_engine(a, &s, status);
    if (ok && s.local)
        tell_local(&a->local);
    free(s.key_text);
    return ok;
}

bool api_is_local(const struct api *a)
{
    return a->loopback;
}

/* The service ends before the engine that it talks to. */
void api_close(struct api *a)
{
    tinker_rest_free(a->rest);
    tinker_service_free(a->service);
    trace_finish();
    local_close(&a->local);
    free(a->model);
    free(a->path);
    if (a->log)
        fclose(a->log);
    memset(a, 0, sizeof(*a));
}

/* ---- waiting ------------------------------------------------------------------------ */

/* A wait with timeout 0 fails with ETIMEDOUT and a message about what is pending: the text of
 * the last failed attempt, or just "pending". */
static void report_waiting(tinker_future *f)
{
    tinker_error err;
    if (tinker_future_wait(f, 0, &err) != TINKER_ETIMEDOUT)
        return;
    bool why = strcmp(err.message, "pending") != 0;
    out_say("Still waiting for the server (Ctrl-C gives up)%s%s", why ? ": " : "",
            why ? err.message : "");
}

/* Sleep until the queue has something or a signal arrives. *told: the user has been told
 * already, or need not be; then sleep without a limit. */
static tinker_status sleep_until_ready(tinker_queue *q, tinker_future *f, const struct watch *w,
                                       bool *told, tinker_error *err)
{
    static const struct timespec silence = { SILENCE_S, 0 };
    int fd = tinker_queue_fd(q);
    fd_set set;
    while (!tinker_future_done(f) && !caught) {
        /* The queue's descriptor is small: the program has opened few files before it. */
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (pselect(fd + 1, &set, NULL, NULL, *told ? NULL : &silence, &w->asleep) > 0)
            return TINKER_OK;
        if (!*told && !caught)
            report_waiting(f);
        *told = true;
    }
    if (!caught)
        return TINKER_OK;
    *err = (tinker_error){ .status = TINKER_ECANCELED };
    snprintf(err->message, sizeof(err->message), "interrupted");
    return err->status;
}

/* Wait for f until its deadline or a signal. usual_ms is the deadline without --timeout, -1 for
 * none. A future that was not waited for to its end is canceled, so that its request does not
 * go on behind an error message. */
static tinker_status await_future(tinker_future *f, int64_t usual_ms, bool *told, tinker_error *err)
{
    tinker_queue *q = tinker_queue_new(err);
    if (!q)
        return err->status;
    struct watch w;
    tinker_status status = tinker_queue_add(q, f, NULL, err);
    tinker_future_set_deadline(f, opt_wait_ms(usual_ms));
    begin_watch(&w);
    while (status == TINKER_OK && !tinker_future_done(f))
        status = sleep_until_ready(q, f, &w, told, err);
    end_watch(&w);
    if (status == TINKER_OK)
        status = tinker_future_wait(f, 0, err);
    else
        tinker_future_cancel(f);
    /* The future belongs to the caller; only the queue ends here. */
    tinker_queue_free(q);
    return status;
}

/* The "still waiting" line is printed once per process, not once per request. */
tinker_status api_await(tinker_future *f, tinker_error *err)
{
    static bool told; /* once is enough */
    return await_future(f, DEFAULT_TIMEOUT_MS, &told, err);
}

/* No deadline: a download may take hours, and the library ends one in which nothing arrives. */
tinker_status api_await_download(tinker_future *f, tinker_error *err)
{
    bool told = true; /* by a bar, and by the library while the archive is being made */
    return await_future(f, -1, &told, err);
}

tinker_future *api_wait(tinker_future *f, tinker_error *err, int *status)
{
    if (f && api_await(f, err) == TINKER_OK)
        return f;
    *status = api_fail(err, f);
    tinker_future_free(f);
    return NULL;
}

int api_done(tinker_future *f, tinker_error *err)
{
    int status = EXIT_OK;
    tinker_future_free(api_wait(f, err, &status));
    return status;
}

/* ---- failing ------------------------------------------------------------------------ */

static const struct {
    int http_status;
    enum exit_code code;
    const char *headline, *hint;
} answers[] = {
    { 404, EXIT_NOT_FOUND, "Resource not found", NULL },
    { 401, EXIT_CONFIG, "Authentication failed", "Check the API key." },
    { 403, EXIT_CONFIG, "Permission denied", "This account may not do that." },
    { 400, EXIT_FAILED, "Invalid request", NULL },
    { 422, EXIT_FAILED, "Invalid data provided", NULL },
    { 429, EXIT_CAPACITY, "Rate limit exceeded", "Wait a moment, then try again." },
};

/* Put an error body on one line: JSON loses the blanks between its parts, other text has runs
 * of blanks replaced by one. Blanks inside JSON strings stay, and a body that was cut off in
 * the middle must not be read beyond its end. */
static void squeeze_blanks(char *text)
{
    bool json = *text == '{' || *text == '[', quoted = false;
    char *end = text;
    for (const char *s = text; *s; s++) {
        if (quoted && *s == '\\' && s[1])
            *end++ = *s++;
        else if (json && *s == '"')
            quoted = !quoted;
        if (quoted || !strchr(" \t\r\n", *s))
            *end++ = *s;
        else if (!json && end > text && end[-1] != ' ')
            *end++ = ' ';
    }
    while (end > text && end[-1] == ' ')
        end--;
    *end = 0;
}

/* The body of the answer says more than the message made from it, so it is preferred. Same
 * shape as str() of the exceptions of the official client. */
void api_error_text(char *out, size_t size, const tinker_error *err, const tinker_future *f)
{
    const char *body = f ? tinker_future_error_body(f) : "";
    char head[48] = "";
    if (err->http_status)
        snprintf(head, sizeof(head), "Error code: %d - ", err->http_status);
    snprintf(out, size, "%s%s", head, err->http_status && *body ? body : err->message);
    squeeze_blanks(out + strlen(head));
}

/* Headline, hint and details in the layout of the official program, plus the request id, which
 * support asks for. */
static int fail_with_details(const tinker_error *err, enum exit_code code, const char *hint,
                             const char *headline, const char *text)
{
    char details[2048];
    const struct out_answer answer = { err->http_status, err->request_id };
    snprintf(details, sizeof(details), "%s%sDetails: %s", hint ? hint : "", hint ? "\n" : "", text);
    return out_fail_answer(code, &answer, details, headline);
}

/* Exit code by HTTP status: the table above, then 5xx, then anything else as a plain failure. */
static int fail_status(const tinker_error *err, const char *text)
{
    int status = err->http_status;
    char headline[64];
    for (size_t i = 0; i < ARRAY_LEN(answers); i++)
        if (answers[i].http_status == status)
            return fail_with_details(err, answers[i].code, answers[i].hint, answers[i].headline,
                                     text);
    if (status >= 500)
        return fail_with_details(err, EXIT_FAILED, "The server failed; try again later.",
                                 "Internal server error", text);
    snprintf(headline, sizeof(headline), "API error (status %d)", status);
    return fail_with_details(err, EXIT_FAILED, NULL, headline, text);
}

/* A deadline that passes while the service says 429 or pauses the queue is a capacity problem,
 * not a network problem: scripts retry the two differently. */
static bool was_out_of_capacity(const tinker_future *f)
{
    const tinker_response *last = f ? tinker_future_response(f) : NULL;
    int state = atomic_load(&queue_state);
    return (last && last->status == 429) || state == TINKER_QUEUE_PAUSED_CAPACITY ||
           state == TINKER_QUEUE_PAUSED_RATE_LIMIT;
}

/* Print what went wrong and choose the exit code. An interrupt wins over the error it caused in
 * the request. */
int api_fail(const tinker_error *err, const tinker_future *f)
{
    char text[1536];
    /* Exit code 130 or 143, as a shell reports a program that the signal has ended. */
    if (caught) {
        out_say("Interrupted.");
        return 128 + caught;
    }
    /* A deadline that passes while a request is refused again and again: the refusal is the news. */
    const tinker_response *last = f ? tinker_future_response(f) : NULL;
    tinker_error refused = *err;
    if (err->status == TINKER_ETIMEDOUT && !err->http_status && last && last->status >= 400)
        refused.http_status = last->status;
    err = &refused;
    api_error_text(text, sizeof(text), err, f);
    if (err->http_status)
        return fail_status(err, text);
    switch (err->status) {
    case TINKER_EINVAL:
        return out_fail(EXIT_USAGE, NULL, "%s", text);
    case TINKER_ETIMEDOUT:
        return fail_with_details(err, was_out_of_capacity(f) ? EXIT_CAPACITY : EXIT_NETWORK,
                                 "Try again, or give more time with --timeout.", "Request timeout",
                                 text);
    case TINKER_ECONNECT:
        return fail_with_details(err, EXIT_NETWORK,
                                 "Check the network and the address of the server.",
                                 "Connection failed", text);
    case TINKER_EPROTOCOL:
        return fail_with_details(err, EXIT_FAILED,
                                 "Is TINKER_BASE_URL the address of a Tinker service?",
                                 "The server sent an invalid response", text);
    default:
        return fail_with_details(err, EXIT_FAILED, NULL, "API error occurred", text);
    }
}

/* Both forms of a path in one message, because users mix them up. */
static bool fail_bad_path(const char *path, int *status)
{
    *status = out_fail(EXIT_USAGE,
                       "A checkpoint path looks like tinker://RUN_ID/weights/NAME "
                       "or tinker://RUN_ID/sampler_weights/NAME.",
                       "Invalid checkpoint path: %s", path);
    return false;
}

bool api_check_path(const char *path, int *status)
{
    static const char scheme[] = "tinker://";
    return strncmp(path, scheme, sizeof(scheme) - 1) == 0 || fail_bad_path(path, status);
}

bool api_read_path(const char *path, tinker_checkpoint_path *out, int *status)
{
    return tinker_checkpoint_path_parse(path, out, NULL) == TINKER_OK ||
           fail_bad_path(path, status);
}
