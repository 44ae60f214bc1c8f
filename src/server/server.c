/* server.c - starting and stopping the server: see server.h.
 *
 * Start: data directory, socket, models, recovery, engine thread, timer thread, HTTP thread; a
 * failure undoes what was done.  Stop: the reverse of the threads, then memory, then the store. */
#include "grammar/grammar.h"
#include "server/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/array.h"
#include "base/err.h"
#include "base/os.h"
#include "base/rand.h"
#include "server/store/checkpoint.h"
#include "server/store/data_dir.h"
#include "server/work/live_state.h"
#include "server/store/recover.h"
#include "server/api/routes.h"
#include "server/work/engine_thread.h"
#include "server/store/timers.h"
#include "server/work/usage.h"
#include "wire/path.h"

void server_options_init(struct server_options *o)
{
    *o = (struct server_options){ .host = "127.0.0.1",
                                  .port = 8000,
                                  .engine = TINKER_ENGINE_OPTIONS_INIT,
                                  .memory_part = 0.5,
                                  .session_timeout_s = 300,
                                  .hold_ms = 30000,
                                  .seq_gap_ms = 30000,
                                  .idle_memory_s = 60,
                                  .result_ttl_s = 3600,
                                  .max_queued_samples = 16384,
                                  .max_queued_bytes = (int64_t)1 << 30,
                                  .max_result_bytes = (int64_t)256 << 20,
                                  .max_batch = 64,
                                  .max_body = (size_t)256 << 20,
                                  .max_decoded_body = (size_t)1 << 30,
                                  .max_rank = 1024,
                                  .train_share = 0.5,
                                  .autosave = 1,
                                  .ephemeral_keep = 32,
                                  .advertise_tokenizer = true };
}

/* "/name" or "/name/name" of characters that need no escape: signed URLs begin with it. */
static bool is_valid_prefix(const char *text)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~:";
    const char *p = text;
    while (*p == '/') {
        size_t n = strspn(p + 1, plain);
        if (wire_check_segment("a path prefix", p + 1, n, NULL) != TINKER_OK)
            return false;
        p += 1 + n;
    }
    return p > text && *p == '\0'; /* at least one segment, nothing after the last */
}

static tinker_status check_options(const struct server_options *o, tinker_error *err)
{
    if (!o->n_models)
        return err_set(err, TINKER_EINVAL, "no model to serve");
    /* Clients choose a model by its name. */
    for (size_t i = 0; i < o->n_models; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->models[i].name, o->models[k].name) == 0)
                return err_set(err, TINKER_EINVAL, "two models have the name %s",
                               o->models[i].name);
    if (!o->data_dir)
        return err_set(err, TINKER_EINVAL, "no data directory");
    for (size_t i = 0; i < o->n_api_keys; i++) {
        /* Visible characters only.  An empty key, perhaps from a variable that is not set, would
         * let everybody in; one with a space or a newline never arrives in a header as given. */
        const char *p = o->api_keys[i];
        while (*p > ' ' && *p < 0x7f)
            p++;
        if (p == o->api_keys[i] || *p)
            return err_set(err, TINKER_EINVAL, "API key %zu is empty or has spaces in it", i + 1);
    }
    if (!o->unix_path && !o->n_api_keys && !o->insecure && !listener_is_loopback(o->host))
        return err_set(err, TINKER_EINVAL,
                       "%s can be reached from other machines: set an API key (--api-key) or, to "
                       "serve everybody, --insecure",
                       o->host);
    if (!(o->train_share > 0 && o->train_share < 1))
        return err_set(err, TINKER_EINVAL, "the share of training must be between 0 and 1");
    if (o->path_prefix && !is_valid_prefix(o->path_prefix))
        return err_set(err, TINKER_EINVAL, "the path prefix must look like /name, not '%s'",
                       o->path_prefix);
    if (o->autosave < 0 || o->ephemeral_keep < 1 || o->max_adapters < 0 || o->max_batch_tokens < 0)
        return err_set(
            err, TINKER_EINVAL,
            "--autosave, --ephemeral-keep, --max-adapters or --max-batch-tokens is out of "
            "range");
    if (o->hold_ms > 44000)
        return err_set(err, TINKER_EINVAL,
                       "polls must not be held for more than 44 s: clients give up after 45 s");
    return TINKER_OK;
}

/* ---- data directory ---------------------------------------------------------------------- */

static char *join_path(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%s", dir, name);
    return path;
}

/* Create and lock the data directory, open the store, load the key that signs URLs.  What is open
 * on failure is closed by server_close(). */
static tinker_status open_data(struct server *s, tinker_error *err)
{
    struct buf key;
    bool exposed = false;
    tinker_status status = data_dir_secure(s->opts.data_dir, s->log, &exposed, err);
    if (status != TINKER_OK)
        return status;
    buf_init(&key, 256);
    s->checkpoints = join_path(s->opts.data_dir, "checkpoints");
    char *db = join_path(s->opts.data_dir, "tinker.db");
    char *lock = join_path(s->opts.data_dir, "lock");
    if (!s->checkpoints || !db || !lock)
        status = err_nomem(err, "path");
    /* Two servers on one directory would destroy each other's state.  The lock ends with the
     * process, however it ends. */
    if (status == TINKER_OK) {
        s->lock_fd = data_dir_open_file(lock, err);
        if (s->lock_fd < 0)
            status = TINKER_ESTATE;
        else if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0)
            status = err_set(err, TINKER_ESTATE, "another server is using %s", s->opts.data_dir);
    }
    if (status == TINKER_OK)
        status = os_make_dirs(s->checkpoints, err);
    if (status == TINKER_OK) {
        s->store = store_open(db, err);
        status = s->store ? store_get_setting(s->store, "signing-key", &key, err) : TINKER_ESTATE;
        s->history = s->store ? history_new(s->store, s->log) : NULL;
        if (status == TINKER_OK && !s->history)
            status = err_nomem(err, "history");
        s->usage = s->store ? usage_new() : NULL;
        if (status == TINKER_OK && !s->usage)
            status = err_nomem(err, "usage");
    }
    bool is_new = key.len != sizeof(s->key);
    if (status == TINKER_OK && !is_new && !exposed) {
        memcpy(s->key, key.data, sizeof(s->key));
    } else if (status == TINKER_OK) {
        /* The first start on this database: weights found here belong to another one.  Where others
         * could read the key it is replaced: links that were signed with it end. */
        if (is_new)
            status = checkpoint_set_aside(s, err);
        if (status == TINKER_OK && rand_os(s->key, sizeof(s->key)) != 0)
            status = err_set(err, TINKER_ESTATE, "no randomness from the system");
        if (status == TINKER_OK)
            status = store_put_setting(s->store, "signing-key", s->key, sizeof(s->key), err);
    }
    buf_clear(&key);
    free(lock);
    free(db);
    return status;
}

/* ---- base models --------------------------------------------------------------------------- */

/* Has the directory files from which some library makes a tokenizer? */
static bool has_tokenizer_files(const char *dir)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "spiece.model",
        "vocab.json",     "vocab.txt",       "tiktoken.model"
    };
    bool found = false;
    for (size_t i = 0; i < ARRAY_LEN(names) && !found; i++) {
        char *path = join_path(dir, names[i]);
        found = path && access(path, R_OK) == 0;
        free(path);
    }
    return found;
}

static uint64_t min_bytes(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Divide --memory, or a part of what is free now that the weights are loaded.  Each part has a limit
 * of its own, so that together they cannot exceed it: bodies of requests an eighth, requests that
 * wait an eighth, results a sixteenth, adapters a quarter.  The rest, and what of these parts is more
 * than the server takes at most, is returned: it is for passes and samples, which share it (the
 * engine's budget.h), and models share it equally. */
static uint64_t divide_memory(struct server *s)
{
    enum { BODY_LEAST = 1 << 20 }; /* what routes that take no data accept */
    struct server_options *o = &s->opts;
    uint64_t total = o->engine.memory_limit, unused = os_memory_free();
    if (!total && unused != OS_MEMORY_UNKNOWN)
        total = (uint64_t)((double)unused * o->memory_part);
    if (!total)
        total = OS_MEMORY_UNKNOWN;
    uint64_t eighth = total / 8 > BODY_LEAST ? total / 8 : BODY_LEAST;
    uint64_t bodies = min_bytes(4 * (uint64_t)o->max_body, eighth);
    o->max_body = (size_t)min_bytes(o->max_body, eighth);
    o->max_decoded_body = (size_t)min_bytes(o->max_decoded_body, eighth);
    listener_limit_bodies(s->listener, o->max_body, (size_t)bodies,
                          o->n_api_keys > 1 ? (size_t)min_bytes(2 * o->max_body, bodies) : 0);
    /* Users together may exceed the queue's limit by half (queue.c): 1.5 * 1/12 is an eighth. */
    o->max_queued_bytes = (int64_t)min_bytes((uint64_t)o->max_queued_bytes, total / 12);
    o->max_result_bytes = (int64_t)min_bytes((uint64_t)o->max_result_bytes, total / 16);
    s->max_adapter_bytes = total / 4;
    uint64_t parts = bodies + (uint64_t)o->max_queued_bytes * 3 / 2 +
                     (uint64_t)o->max_result_bytes + s->max_adapter_bytes;
    return total > parts ? total - parts : 1;
}

/* Load all models first: only then is known how much memory is left for each. */
static tinker_status open_bases(struct server *s, tinker_error *err)
{
    s->bases = calloc(s->opts.n_models, sizeof(*s->bases));
    if (!s->bases)
        return err_nomem(err, "models");
    for (size_t i = 0; i < s->opts.n_models; i++) {
        const struct server_model *m = &s->opts.models[i];
        struct base *b = &s->bases[i];
        tinker_error no_tokenizer = { 0 };
        s->n_bases = i + 1; /* server_close() frees it, complete or not */
        b->name = m->name;
        b->dir = os_full_path(m->dir);
        if (!b->dir)
            return err_nomem(err, m->dir);
        int64_t start = clock_now_ns(clock_real());
        b->engine = tinker_engine_open(m->dir, &s->opts.engine, err);
        if (!b->engine)
            return err ? err->status : TINKER_EINVAL;
        b->load_ns = clock_now_ns(clock_real()) - start;
        const char *notice = tinker_engine_describe(b->engine)->notice;
        if (notice)
            log_line(s->log, LOG_INFO, "%s: %s", m->name, notice);
        /* Without a tokenizer it can still be trained and sampled by token ids. */
        b->tokenizer = tinker_tokenizer_load(m->dir, NULL, &no_tokenizer);
        b->has_tokenizer = b->tokenizer || has_tokenizer_files(m->dir);
        if (!b->tokenizer)
            log_line(s->log, LOG_WARNING, "%s has no usable tokenizer: %s", m->name,
                     no_tokenizer.message);
    }
    uint64_t each = s->n_bases ? divide_memory(s) / s->n_bases : 0;
    for (size_t i = 0; i < s->n_bases; i++) {
        struct base *b = &s->bases[i];
        tinker_engine_limit_memory(b->engine,
                                   each ? each : 1); /* 0 would mean half of what is free */
        b->generator = tinker_generator_new(b->engine, err);
        if (!b->generator)
            return err ? err->status : TINKER_ENOMEM;
    }
    return TINKER_OK;
}

/* ---- start and stop -------------------------------------------------------------------------------------- */

/* Everything that needs no resource but memory; server_close() relies on it. */
static void init_server(struct server *s, const struct server_options *opts)
{
    pthread_condattr_t monotonic;
    s->opts = *opts;
    s->clock = opts->clock ? opts->clock : clock_real();
    s->log = opts->log;
    s->lock_fd = -1; /* 0 would be a descriptor */
    s->started_ns = clock_now_ns(s->clock);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->submit_lock, NULL);
    pthread_rwlock_init(&s->evict_lock, NULL);
    /* Threads wait by the monotonic clock: the wall clock may be set. */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work_ready, &monotonic);
    pthread_cond_init(&s->timers_wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    map_init(&s->sessions);
    map_init(&s->models);
    map_init(&s->samplers);
    map_init(&s->futures);
    map_init(&s->sample_logs);
    map_init(&s->tenants);
    for (size_t i = 0; i < opts->n_api_keys; i++)
        log_secret(opts->api_keys[i]); /* redacted wherever they would be logged */
}

struct server *server_open(const struct server_options *opts, tinker_error *err)
{
    if (check_options(opts, err) != TINKER_OK)
        return NULL;
    struct server *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "server");
        return NULL;
    }
    init_server(s, opts);
    struct listener_options o = { .host = s->opts.host,
                                  .port = s->opts.port,
                                  .unix_path = s->opts.unix_path,
                                  .tls_cert = s->opts.tls_cert,
                                  .tls_key = s->opts.tls_key,
                                  .max_body = s->opts.max_body,
                                  .hold_ms = s->opts.hold_ms,
                                  .idle_ms = 120000,
                                  .body_ms = 60000,
                                  .max_connections = 65536,
                                  .check = routes_check,
                                  .is_check = routes_is_check,
                                  .place = routes_place,
                                  .clock = s->clock,
                                  .log = s->log };
    /* The address before the models: one that is taken should not cost the time to load them.
     * Requests are accepted when everything is ready, in listener_start(). */
    tinker_status status = open_data(s, err);
    if (status == TINKER_OK)
        s->listener = listener_open(&o, err);
    if (status == TINKER_OK && s->listener && open_bases(s, err) == TINKER_OK &&
        recover_state(s, err) == TINKER_OK && engine_thread_start(s, err) == TINKER_OK &&
        timers_start(s, err) == TINKER_OK &&
        listener_start(s->listener, routes_handle, s, err) == TINKER_OK)
        return s;
    server_close(s);
    return NULL;
}

int server_port(const struct server *s)
{
    return listener_port(s->listener);
}

void server_close(struct server *s)
{
    if (!s)
        return;
    /* The engine first, so that nothing wakes a closed listener; its slice is short. */
    engine_thread_stop(s);
    timers_stop(s);
    listener_stop(s->listener, 5000);
    live_clear(s); /* streams that were not finished still wake the listener */
    listener_close(s->listener, 0);
    for (size_t i = 0; i < s->n_bases; i++) {
        tinker_generator_free(s->bases[i].generator);
        vocabulary_free(s->bases[i].vocabulary); /* borrows from the tokenizer */
        tinker_tokenizer_free(s->bases[i].tokenizer);
        tinker_engine_close(s->bases[i].engine);
        free(s->bases[i].dir);
    }
    free(s->bases);
    if (s->history)
        history_flush(s->history, NULL);
    history_free(s->history);
    if (s->usage)
        usage_flush(s);
    usage_free(s->usage);
    store_close(s->store);
    if (s->lock_fd >= 0)
        close(s->lock_fd); /* after the store: now another server may start */
    free(s->checkpoints);
    pthread_cond_destroy(&s->timers_wake);
    pthread_cond_destroy(&s->work_ready);
    pthread_rwlock_destroy(&s->evict_lock);
    pthread_mutex_destroy(&s->submit_lock);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
