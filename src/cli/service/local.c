/* local.c - see local.h. */
#include "cli/service/local.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/models/known_models.h"
#include "cli/models/model_dir.h"
#include "cli/output/out.h"
#include "cli/serve/serve_options.h"
#include "cli/serve/serve_place.h"
#include "gguf/gguf.h"

/* WAIT_S: longest wait for another command.  LOOK_MS: between two looks at the lock.
 * SILENCE_MS: before the user is told what is being waited for. */
enum { WAIT_S = 600, LOOK_MS = 50, SILENCE_MS = 1000 };

/* The server inside of this process; its options own texts that the server refers to. */
struct local_engine {
    struct server *server;
    struct serve_options options;
    struct log log;
};

/* The directory of a model as people name it, or as it was recorded. */
static bool find_model_dir(const char *data, const char *model, bool recorded,
                           char dir[MODEL_DIR_MAX], int *status)
{
    if (strcmp(model, MODEL_DIR_BUNDLED) == 0 && model_dir_bundled(dir))
        return true;
    if (recorded && known_models_find(data, model, dir))
        return true;
    if ((os_is_dir(model) || gguf_is_name(model)) && model_dir_is_model(model)) {
        snprintf(dir, MODEL_DIR_MAX, "%s", model);
        return true;
    }
    if (model_dir_cached(model, dir) || known_models_find(data, model, dir))
        return true;
    if (os_is_dir(model)) { /* opening it says what is missing */
        snprintf(dir, MODEL_DIR_MAX, "%s", model);
        return true;
    }
    char hint[MODEL_HINT_MAX];
    *status = out_fail(EXIT_NOT_FOUND, model_dir_hint(model, hint), "no model '%s' on this machine",
                       model);
    return false;
}

/* As `tinker serve --model MODEL` on a port of its own, with its defaults and without its talk. */
static bool set_engine_options(struct local_engine *e, const char *model, const char *dir,
                               struct server_options *opts, int *status)
{
    char text[MODEL_DIR_MAX + LOCAL_NAME_MAX];
    bool named = !os_is_dir(model) || strcmp(model, dir) != 0; /* else the directory names it */
    snprintf(text, sizeof(text), "%s%s%s", named ? model : "", named ? "=" : "", dir);
    /* Paths of this machine are the user's own here: `checkpoint import` loads them. */
    char command[] = "serve", listen[] = "--listen=127.0.0.1:0", paths[] = "--allow-local-paths";
    char option[] = "--model";
    char *argv[] = { command, listen, paths, option, text };
    if (!serve_options_parse(&e->options, ARRAY_LEN(argv), argv, status))
        return false;
    *status = serve_options_take(&e->options, opts);
    if (*status != EXIT_OK)
        return false;
    /* What the server has to say about single requests is the business of its client here. */
    e->log = (struct log){ log_stderr, NULL, globals.verbose ? LOG_INFO : LOG_ERROR };
    opts->log = &e->log;
    return true;
}

/* Start the engine.  *busy: another process was faster; look again. */
static bool start_engine(struct local *l, const char *data, const char *model, bool recorded,
                         bool *busy, int *status)
{
    struct server_options opts;
    tinker_error err = { 0 };
    sigset_t stop, old;
    *busy = false;
    if (!find_model_dir(data, model, recorded, l->dir, status))
        return false;
    struct local_engine *e = calloc(1, sizeof(*e));
    if (!e) {
        *status = out_fail(EXIT_FAILED, NULL, "out of memory");
        return false;
    }
    if (!set_engine_options(e, model, l->dir, &opts, status))
        goto fail;
    /* Its threads inherit the mask: signals are for the main thread. */
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stop, &old);
    e->server = server_open(&opts, &err);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!e->server) {
        *busy = serve_place_busy(data);
        if (!*busy)
            *status = out_fail(EXIT_IO, NULL, "%s", err.message);
        goto fail;
    }
    snprintf(l->model, sizeof(l->model), "%s", opts.models[0].name);
    snprintf(l->url, sizeof(l->url), "http://127.0.0.1:%d", server_port(e->server));
    known_models_add(data, opts.models[0].name, l->dir);
    l->engine = e;
    return true;
fail:
    serve_options_clear(&e->options);
    free(e);
    return false;
}

/* Locked, and nobody says where: a server that is starting, or the engine of another command. */
static bool wait_for_turn(int64_t start_ns, bool *told, int *status)
{
    const struct timespec pause = { 0, LOOK_MS * 1000000L };
    int64_t ms = (clock_now_ns(clock_real()) - start_ns) / 1000000;
    int64_t limit_s = globals.timeout > 0 ? globals.timeout : WAIT_S;
    if (ms > limit_s * 1000) {
        *status =
            out_fail(EXIT_CAPACITY, "Commands share one engine through: tinker serve",
                     "another tinker command has used the engine for %lld s", (long long)limit_s);
        return false;
    }
    if (ms > SILENCE_MS && !*told) {
        *told = true;
        out_say("Waiting for another tinker command (with tinker serve they share one engine)");
    }
    nanosleep(&pause, NULL);
    return true;
}

/* A server that runs is used; otherwise the engine is started here, on a free port, for as long
 * as the command runs.  Two processes cannot share a data directory, so the second one waits. */
bool local_open(struct local *l, const char *model, bool recorded, int *status)
{
    char data[SERVE_PLACE_MAX];
    struct serve_info info;
    int64_t start_ns = clock_now_ns(clock_real());
    bool told = false, busy = true;
    memset(l, 0, sizeof(*l));
    if (!serve_place_data(NULL, data)) {
        *status = out_fail(EXIT_CONFIG, "Set XDG_DATA_HOME, or TINKER_BASE_URL for a server.",
                           "there is no home directory");
        return false;
    }
    do {
        if (!serve_place_busy(data)) {
            if (start_engine(l, data, model ? model : MODEL_DIR_BUNDLED, recorded, &busy, status))
                return true;
        } else if (serve_place_read(data, &info)) {
            if (strncmp(info.url, "unix:", 5) == 0) {
                *status = out_fail(EXIT_CONFIG, "Start it with --listen instead of --unix.",
                                   "the local server has only a Unix socket, %s", info.url + 5);
                return false;
            }
            snprintf(l->url, sizeof(l->url), "%s%s", info.url, info.path_prefix);
            return true;
        }
    } while (busy && wait_for_turn(start_ns, &told, status));
    return false;
}

void local_close(struct local *l)
{
    if (!l->engine)
        return;
    server_close(l->engine->server);
    serve_options_clear(&l->engine->options);
    free(l->engine);
    l->engine = NULL;
}
