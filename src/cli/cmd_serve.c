/* cmd_serve.c - `tinker serve`: the local Tinker server until a signal ends it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/model_dir.h"
#include "cli/opt.h"
#include "cli/out.h"
#include "server/server.h"

enum { MODELS_MAX = 16 };

/* What the options say, before it is checked. */
struct serve {
    struct opt_list models, keys;
    const char *listen, *unix_path, *data_dir, *dtype, *logprobs, *tls_cert, *tls_key, *log_level;
    int64_t threads, memory, context, session_timeout, seed, max_batch, max_queued, hold;
    double train_share;
    bool insecure, no_autosave, no_timeout, local_paths;
    /* made from them */
    struct server_model list[MODELS_MAX];
    char dirs[MODELS_MAX][MODEL_DIR_MAX];
    char names[MODELS_MAX][256];
    char host[256], data[MODEL_DIR_MAX];
    char *cert, *key;
};

static const char *const dtypes[] = { "f32", "bf16", NULL };
static const char *const logprob_kinds[] = { "scaled", "raw", NULL };
static const char *const levels[] = { "debug", "info", "warning", "error", NULL };

static bool parse(struct serve *v, int argc, char **argv, int *status)
{
    const struct opt opts[] = {
        { "model", 'm', OPT_LIST, "[NAME=]DIR",
          "a model to serve: a Hugging Face directory or an id "
          "in the local cache; repeat for more (default: the bundled " MODEL_DIR_BUNDLED ")",
          &v->models, NULL },
        { "listen", 'l', OPT_STRING, "HOST:PORT",
          "where to listen (default 127.0.0.1:8000; port 0: "
          "any free one)",
          &v->listen, NULL },
        { "unix", 0, OPT_STRING, "PATH", "listen on a Unix socket instead", &v->unix_path, NULL },
        { "data-dir", 'd', OPT_STRING, "DIR",
          "state and checkpoints (default "
          "$XDG_DATA_HOME/tinker or ~/.local/share/tinker)",
          &v->data_dir, NULL },
        { "api-key", 0, OPT_LIST, "KEY", "accept only these keys, one user each; repeat for more",
          &v->keys, NULL },
        { "insecure", 0, OPT_FLAG, NULL, "allow a public address without keys", &v->insecure,
          NULL },
        { "threads", 't', OPT_INT, "N", "compute threads (default: one per core)", &v->threads,
          NULL },
        { "memory", 0, OPT_SIZE, "SIZE",
          "limit for activations and caches (default: 3/4 of what is "
          "free)",
          &v->memory, NULL },
        { "context", 0, OPT_INT, "N", "longest sequence (default: the model's own limit)",
          &v->context, NULL },
        { "dtype", 0, OPT_CHOICE, "TYPE", "base weights as f32 (default) or bf16", &v->dtype,
          dtypes },
        { "session-timeout", 0, OPT_DURATION, "TIME",
          "end sessions without heartbeat (default 300)", &v->session_timeout, NULL },
        { "no-session-timeout", 0, OPT_FLAG, NULL, "never end sessions", &v->no_timeout, NULL },
        { "default-lora-seed", 0, OPT_INT, "N", "seed of adapters that name none (default: random)",
          &v->seed, NULL },
        { "sample-logprobs", 0, OPT_CHOICE, "KIND",
          "logprobs of sampled tokens: scaled by the "
          "temperature (default) or raw",
          &v->logprobs, logprob_kinds },
        { "max-batch", 0, OPT_INT, "N", "sequences sampled at once (default 64)", &v->max_batch,
          NULL },
        { "max-queued-samples", 0, OPT_INT, "N", "answer 429 above (default 16384)", &v->max_queued,
          NULL },
        { "train-share", 0, OPT_DOUBLE, "X",
          "share of training while sampling wants time too "
          "(default 0.5)",
          &v->train_share, NULL },
        { "no-autosave", 0, OPT_FLAG, NULL, "do not write the training state after each step",
          &v->no_autosave, NULL },
        { "allow-local-paths", 0, OPT_FLAG, NULL,
          "let clients load PEFT adapters of this machine as file:///dir", &v->local_paths, NULL },
        { "tls-cert", 0, OPT_STRING, "FILE", "serve HTTPS with this certificate (PEM)",
          &v->tls_cert, NULL },
        { "tls-key", 0, OPT_STRING, "FILE", "and this private key (PEM)", &v->tls_key, NULL },
        { "log-level", 0, OPT_CHOICE, "LEVEL", "debug, info (default), warning or error",
          &v->log_level, levels },
    };
    const struct opt_spec spec = {
        .command = "serve",
        .about = "Run the local Tinker server: train and sample on this machine's CPU.\n"
                 "State survives restarts; stop it with Ctrl-C or SIGTERM.",
        .opts = opts,
        .n_opts = sizeof(opts) / sizeof(opts[0]),
        .example = "tinker serve --model Qwen/Qwen3-0.6B=/models/qwen3-0.6b --listen 127.0.0.1:8000"
    };
    return opt_parse(&spec, argc, argv, status);
}

/* ---- options to settings --------------------------------------------------------------- */

static void default_name(const char *dir, char *out, size_t size)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    const char *start = dir + n;
    while (start > dir && start[-1] != '/')
        start--;
    snprintf(out, size, "%.*s", (int)(dir + n - start), start);
}

static bool add_model(struct serve *v, size_t i, const char *text)
{
    const char *equals = strchr(text, '='), *place = equals ? equals + 1 : text;
    v->list[i].name = v->names[i];
    v->list[i].dir = v->dirs[i];
    if (os_is_dir(place)) {
        snprintf(v->dirs[i], MODEL_DIR_MAX, "%s", place);
        default_name(place, v->names[i], sizeof(v->names[i]));
    } else if (model_dir_cached(place, v->dirs[i])) {
        snprintf(v->names[i], sizeof(v->names[i]), "%s", place);
    } else {
        return false;
    }
    if (equals)
        snprintf(v->names[i], sizeof(v->names[i]), "%.*s", (int)(equals - text), text);
    return v->names[i][0] != 0;
}

static int take_models(struct serve *v, struct server_options *o)
{
    o->models = v->list;
    if (!v->models.n) {
        if (!model_dir_bundled(v->dirs[0]))
            return out_fail(EXIT_IO, "Give one with --model [NAME=]DIR.",
                            "the bundled model was not found");
        v->list[0] = (struct server_model){ MODEL_DIR_BUNDLED, v->dirs[0] };
        o->n_models = 1;
        return EXIT_OK;
    }
    if (v->models.n > MODELS_MAX)
        return out_fail(EXIT_USAGE, NULL, "at most %d models", MODELS_MAX);
    for (size_t i = 0; i < v->models.n; i++)
        if (!add_model(v, i, v->models.items[i]))
            return out_fail(EXIT_IO,
                            "It is neither a directory nor a model in the Hugging Face cache.",
                            "no model '%s'", v->models.items[i]);
    o->n_models = v->models.n;
    return EXIT_OK;
}

/* "HOST:PORT", "[::1]:PORT", ":PORT", "PORT". */
static bool take_address(struct serve *v, struct server_options *o)
{
    const char *colon = strrchr(v->listen, ':'), *port = colon ? colon + 1 : v->listen;
    char *end;
    long n = strtol(port, &end, 10);
    if (end == port || *end || n < 0 || n > 65535)
        return false;
    o->port = (int)n;
    size_t len = colon ? (size_t)(colon - v->listen) : 0;
    const char *host = v->listen;
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    if (len >= sizeof(v->host))
        return false;
    if (len) {
        memcpy(v->host, host, len);
        v->host[len] = 0;
        o->host = v->host;
    }
    return true;
}

static int take_data_dir(struct serve *v, struct server_options *o)
{
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (v->data_dir)
        snprintf(v->data, sizeof(v->data), "%s", v->data_dir);
    else if (xdg && *xdg)
        snprintf(v->data, sizeof(v->data), "%s/tinker", xdg);
    else if (home && *home)
        snprintf(v->data, sizeof(v->data), "%s/.local/share/tinker", home);
    else
        return out_fail(EXIT_USAGE, NULL, "no home directory: give --data-dir");
    o->data_dir = v->data;
    return EXIT_OK;
}

static int take_tls(struct serve *v, struct server_options *o)
{
    tinker_error err = { 0 };
    size_t n;
    if (!v->tls_cert != !v->tls_key)
        return out_fail(EXIT_USAGE, NULL, "--tls-cert and --tls-key belong together");
    if (!v->tls_cert)
        return EXIT_OK;
    if (os_read_file(v->tls_cert, 1 << 20, &v->cert, &n, &err) != TINKER_OK ||
        os_read_file(v->tls_key, 1 << 20, &v->key, &n, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    o->tls_cert = v->cert;
    o->tls_key = v->key;
    return EXIT_OK;
}

static int take_options(struct serve *v, struct server_options *o)
{
    server_options_init(o);
    int status = take_models(v, o);
    if (status == EXIT_OK)
        status = take_data_dir(v, o);
    if (status == EXIT_OK)
        status = take_tls(v, o);
    if (status != EXIT_OK)
        return status;
    if (v->listen && !take_address(v, o))
        return out_fail(EXIT_USAGE, NULL, "--listen takes HOST:PORT, not '%s'", v->listen);
    o->unix_path = v->unix_path;
    o->api_keys = v->keys.items;
    o->n_api_keys = v->keys.n;
    o->insecure = v->insecure;
    o->engine.threads = (int)v->threads;
    o->engine.memory_limit = (uint64_t)v->memory;
    o->engine.max_context = v->context;
    o->engine.dtype = strcmp(v->dtype, "bf16") == 0 ? TINKER_WEIGHTS_BF16 : TINKER_WEIGHTS_F32;
    o->engine.raw_logprobs = strcmp(v->logprobs, "raw") == 0;
    o->session_timeout_s = v->no_timeout ? -1 : v->session_timeout;
    o->has_default_lora_seed = v->seed >= 0;
    o->default_lora_seed = v->seed;
    o->max_batch = v->max_batch;
    o->max_queued_samples = v->max_queued;
    o->train_share = v->train_share;
    o->no_autosave = v->no_autosave;
    o->allow_local_paths = v->local_paths;
    return EXIT_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static int failure_code(const tinker_error *err)
{
    return err->status == TINKER_EINVAL ? EXIT_CONFIG : EXIT_IO;
}

static void announce(const struct server_options *o, int port)
{
    char url[400];
    if (o->unix_path)
        snprintf(url, sizeof(url), "unix:%s", o->unix_path);
    else
        snprintf(url, sizeof(url), strchr(o->host, ':') ? "%s://[%s]:%d" : "%s://%s:%d",
                 o->tls_cert ? "https" : "http", o->host, port);
    if (globals.json) {
        printf("{\"url\":\"%s\",\"port\":%d}\n", url, port);
    } else {
        printf("export TINKER_BASE_URL=%s\n", url);
        if (!o->n_api_keys)
            printf("export TINKER_API_KEY=tml-local\n");
    }
    fflush(stdout);
    out_say("tinker serve: listening on %s", url);
    for (size_t i = 0; i < o->n_models; i++)
        out_say("tinker serve: model %s from %s", o->models[i].name, o->models[i].dir);
}

static int run(const struct server_options *opts)
{
    tinker_error err = { 0 };
    sigset_t stop;
    int sig = 0;
    /* Blocked before any thread starts, so that only sigwait() below sees them. */
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    struct server *s = server_open(opts, &err);
    if (!s)
        return out_fail(failure_code(&err), NULL, "%s", err.message);
    announce(opts, server_port(s));
    while (sigwait(&stop, &sig) != 0)
        continue;
    out_say("tinker serve: stopping");
    server_close(s);
    return EXIT_OK;
}

int cmd_serve(int argc, char **argv)
{
    int status;
    struct serve *v = calloc(1, sizeof(*v));
    if (!v)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    v->dtype = "f32";
    v->logprobs = "scaled";
    v->log_level = "info";
    v->session_timeout = 300;
    v->seed = -1;
    v->max_batch = 64;
    v->max_queued = 16384;
    v->train_share = 0.5;
    if (parse(v, argc, argv, &status)) {
        struct server_options opts;
        struct log log = { log_stderr, NULL, log_level_parse(v->log_level, LOG_INFO) };
        status = take_options(v, &opts);
        opts.log = &log;
        if (status == EXIT_OK)
            status = run(&opts);
    }
    free(v->cert);
    free(v->key);
    free(v);
    return status;
}
