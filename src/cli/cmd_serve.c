/* cmd_serve.c - `tinker serve`: the local Tinker server until a signal ends it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/model_dir.h"
#include "cli/opt.h"
#include "cli/out.h"
#include "cli/serve_place.h"
#include "server/server.h"

enum { MODELS_MAX = 16, STOP_S = 9 };

/* What the options say, before it is checked. */
struct serve {
    struct opt_list models, keys;
    const char *listen, *unix_path, *path_prefix, *data_dir, *dtype, *logprobs, *tls_cert, *tls_key,
        *log_level, *memory;
    int64_t threads, context, session_timeout, seed, max_batch, max_queued, result_ttl, seq_gap,
        max_rank, max_body;
    double train_share;
    bool insecure, no_auth, no_autosave, no_timeout, local_paths, no_tokenizer, read_only;
    bool strict_context, no_implicit_eos, daemon;
    bool foreground, always; /* accepted: they say what is so anyway */
    /* made from them */
    struct server_model list[MODELS_MAX];
    char dirs[MODELS_MAX][MODEL_DIR_MAX];
    char names[MODELS_MAX][256];
    char host[256], data[SERVE_PLACE_MAX];
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
        { "path-prefix", 0, OPT_STRING, "/PATH", "serve everything below this path",
          &v->path_prefix, NULL },
        { "data-dir", 'd', OPT_STRING, "DIR",
          "state and checkpoints (default "
          "$XDG_DATA_HOME/tinker or ~/.local/share/tinker)",
          &v->data_dir, NULL },
        { "api-key", 0, OPT_LIST, "KEY", "accept only these keys, one user each; repeat for more",
          &v->keys, NULL },
        { "no-auth", 0, OPT_FLAG, NULL, "accept any key, or none (default without --api-key)",
          &v->no_auth, NULL },
        { "insecure", 0, OPT_FLAG, NULL, "allow a public address without keys", &v->insecure,
          NULL },
        { "threads", 't', OPT_INT, "N", "compute threads (default: one per core)", &v->threads,
          NULL },
        { "memory", 0, OPT_STRING, "SIZE",
          "limit for activations and caches: 4G, or 50% of what is free (default: 75%)", &v->memory,
          NULL },
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
        { "max-rank", 0, OPT_INT, "N", "largest rank of an adapter (default 1024)", &v->max_rank,
          NULL },
        { "max-body", 0, OPT_SIZE, "SIZE", "largest request (default 256M)", &v->max_body, NULL },
        { "result-ttl", 0, OPT_DURATION, "TIME", "keep results this long (default 1h)",
          &v->result_ttl, NULL },
        { "seq-gap-timeout", 0, OPT_DURATION, "TIME",
          "wait this long for a request number that is missing (default 300)", &v->seq_gap, NULL },
        { "train-share", 0, OPT_DOUBLE, "X",
          "share of training while sampling wants time too "
          "(default 0.5)",
          &v->train_share, NULL },
        { "no-autosave", 0, OPT_FLAG, NULL, "do not write the training state after each step",
          &v->no_autosave, NULL },
        { "strict-context", 0, OPT_FLAG, NULL,
          "refuse samples that could outgrow the context, instead of ending them there",
          &v->strict_context, NULL },
        { "no-implicit-eos", 0, OPT_FLAG, NULL, "without a stop list only max_tokens ends a sample",
          &v->no_implicit_eos, NULL },
        { "allow-local-paths", 0, OPT_FLAG, NULL,
          "let clients load PEFT adapters of this machine as file:///dir", &v->local_paths, NULL },
        { "no-advertise-tokenizer", 0, OPT_FLAG, NULL,
          "do not tell clients the model directory as their tokenizer", &v->no_tokenizer, NULL },
        { "read-only", 0, OPT_FLAG, NULL, "only sample and list: nothing is trained or changed",
          &v->read_only, NULL },
        { "tls-cert", 0, OPT_STRING, "FILE", "serve HTTPS with this certificate (PEM)",
          &v->tls_cert, NULL },
        { "tls-key", 0, OPT_STRING, "FILE", "and this private key (PEM)", &v->tls_key, NULL },
        { "log-level", 0, OPT_CHOICE, "LEVEL", "debug, info (default), warning or error",
          &v->log_level, levels },
        { "daemon", 0, OPT_FLAG, NULL, "return when it listens, and go on in the background",
          &v->daemon, NULL },
        { "foreground", 0, OPT_FLAG, NULL, "stay in the foreground (the default)", &v->foreground,
          NULL },
        { "openai", 0, OPT_FLAG, NULL, "serve the OpenAI routes too (always so)", &v->always,
          NULL },
        { "deterministic", 0, OPT_FLAG, NULL, "same seed, same tokens in any batch (always so)",
          &v->always, NULL },
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
    if (!serve_place_data(v->data_dir, v->data))
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

/* "4G", or a part of what is free: "50%". */
static bool take_memory(const char *text, uint64_t *out)
{
    char *end;
    int64_t bytes;
    double percent = strtod(text, &end);
    if (end != text && strcmp(end, "%") == 0) {
        *out = (uint64_t)((double)os_memory_free() * percent / 100);
        return percent > 0 && percent <= 100;
    }
    bool ok = opt_read_size(text, &bytes);
    *out = ok ? (uint64_t)bytes : 0;
    return ok;
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
    if (v->memory && !take_memory(v->memory, &o->engine.memory_limit))
        return out_fail(EXIT_USAGE, NULL, "--memory takes a size or a percentage, not '%s'",
                        v->memory);
    if (v->no_auth && v->keys.n)
        return out_fail(EXIT_USAGE, NULL, "--no-auth and --api-key exclude each other");
    o->unix_path = v->unix_path;
    o->path_prefix = v->path_prefix;
    o->api_keys = v->keys.items;
    o->n_api_keys = v->keys.n;
    o->insecure = v->insecure;
    o->engine.threads = (int)v->threads;
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
    o->strict_context = v->strict_context;
    o->no_implicit_eos = v->no_implicit_eos;
    o->allow_local_paths = v->local_paths;
    o->advertise_tokenizer = !v->no_tokenizer;
    o->read_only = v->read_only;
    o->result_ttl_s = v->result_ttl;
    o->seq_gap_ms = v->seq_gap * 1000;
    o->max_rank = v->max_rank;
    o->max_body = (size_t)v->max_body;
    return EXIT_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static int failure_code(const tinker_error *err)
{
    return err->status == TINKER_EINVAL ? EXIT_CONFIG : EXIT_IO;
}

static void describe(const struct server_options *o, int port, struct serve_info *info)
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

static void announce(const struct server_options *o, const struct serve_info *info)
{
    if (globals.json) {
        printf("{\"url\":\"%s%s\",\"port\":%lld}\n", info->url, info->path_prefix,
               (long long)info->port);
    } else {
        printf("export TINKER_BASE_URL=%s%s\n", info->url, info->path_prefix);
        if (!o->n_api_keys)
            printf("export TINKER_API_KEY=tml-local\n");
    }
    fflush(stdout);
    out_say("tinker serve: listening on %s%s", info->url, info->path_prefix);
    for (size_t i = 0; i < o->n_models; i++)
        out_say("tinker serve: model %s from %s", o->models[i].name, o->models[i].dir);
}

/* What was acknowledged is on disk, so a slice of work that takes too long need not end. */
static void *end_anyway(void *arg)
{
    struct timespec t = { STOP_S, 0 };
    (void)arg;
    nanosleep(&t, NULL);
    _exit(EXIT_OK);
}

static void stop(struct server *s)
{
    pthread_t watchdog;
    out_say("tinker serve: stopping");
    if (pthread_create(&watchdog, NULL, end_anyway, NULL) == 0)
        pthread_detach(watchdog);
    server_close(s);
}

static int run(const struct server_options *opts)
{
    tinker_error err = { 0 };
    struct serve_info info;
    sigset_t signals;
    int sig = 0;
    /* Blocked before any thread starts, so that only sigwait() below sees them. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    /* A file that may not grow is an error of its writer, not the end of the process. */
    signal(SIGXFSZ, SIG_IGN);
    struct server *s = server_open(opts, &err);
    if (!s)
        return out_fail(failure_code(&err), NULL, "%s", err.message);
    describe(opts, server_port(s), &info);
    if (serve_place_write(opts->data_dir, &info, &err) != TINKER_OK)
        out_say("tinker serve: %s", err.message);
    announce(opts, &info);
    /* Whoever reads the announcement to its end need not wait for ours. */
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        close(null);
    }
    while (sigwait(&signals, &sig) != 0)
        continue;
    serve_place_remove(opts->data_dir);
    stop(s);
    return EXIT_OK;
}

/* ---- in the background ------------------------------------------------------------------------ */

/* What the child printed until it was ready, and its exit status if it never was. */
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

/* The child goes on and returns true; its standard output is a pipe to the parent until it
 * has announced itself, its standard error a log. */
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
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    fflush(NULL);
    pid_t child = log >= 0 && null >= 0 && pipe(ends) == 0 ? fork() : -1;
    if (child < 0) {
        *status = out_fail(EXIT_IO, NULL, "cannot go to the background: %s", strerror(errno));
        return false;
    }
    if (child > 0) {
        close(ends[1]);
        *status = wait_until_ready(child, ends[0]);
        if (*status != EXIT_OK)
            out_fail(*status, NULL, "the server did not start; see %s", path);
        return false;
    }
    setsid();
    dup2(null, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    return true;
}

static int start(const struct serve *v, const struct server_options *opts)
{
    int status;
    if (v->daemon && !go_to_background(v->data, &status))
        return status;
    return run(opts);
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
    v->result_ttl = 3600;
    v->seq_gap = 300;
    v->max_rank = 1024;
    v->max_body = 256 << 20;
    if (parse(v, argc, argv, &status)) {
        struct server_options opts;
        struct log log = { log_stderr, NULL, log_level_parse(v->log_level, LOG_INFO) };
        status = take_options(v, &opts);
        opts.log = &log;
        if (status == EXIT_OK)
            status = start(v, &opts);
    }
    free(v->cert);
    free(v->key);
    free(v);
    return status;
}
