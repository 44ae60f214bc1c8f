/* route_page.c - the page at /, its files, and the state of the machine that it shows.
 *
 * The page is static and needs no key; everything it shows it asks for with the user's key, like
 * any other client.  Its policy lets it load and call this server only, and run no inline code, so
 * a name that slipped into the markup could load nothing and send nothing away. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <tinker/version.h>

#include "base/os.h"
#include "server/api/routes.h"
#include "server/page/page_files.h"

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static void reply_file(struct response *res, const char *name)
{
    for (size_t i = 0; i < n_page_files; i++) {
        const struct page_file *f = &page_files[i];
        if (strcmp(f->name, name) != 0)
            continue;
        buf_append(&res->body, f->data, f->size);
        res->status = 200;
        res->content_type = f->content_type;
        response_header(res, "Content-Security-Policy", policy);
        response_header(res, "X-Content-Type-Options", "nosniff");
        /* A new server brings new files: browsers ask each time, which costs nothing here. */
        response_header(res, "Cache-Control", "no-cache");
        response_header(res, "ETag", f->etag);
        return;
    }
    response_error(res, 404, "Not Found");
}

void route_page_file(struct server *s, struct request *req, struct response *res)
{
    (void)s;
    reply_file(res, req->param[0]);
}

/* Browsers get the page, programs a short description. */
void route_page(struct server *s, struct request *req, struct response *res)
{
    size_t n = strlen(req->path);
    if (!req->accept || !strstr(req->accept, "text/html")) {
        response_json(res, "{\"name\":\"tinker\",\"version\":\"" TINKER_VERSION
                           "\",\"api\":\"/api/v1\",\"metrics\":\"/metrics\"}");
        return;
    }
    (void)s;
    if (req->path[n - 1] == '/') {
        reply_file(res, "index.html");
        return;
    }
    /* "/prefix": the page's own links are relative, so it has to be a folder. */
    const char *last = strrchr(req->path, '/');
    const char *place = arena_printf(&req->arena, "%s/", last ? last + 1 : req->path);
    if (!place) {
        response_error(res, 500, "out of memory");
        return;
    }
    response_json(res, "{}");
    res->status = 308;
    response_header(res, "Location", place);
}

/* ---- the machine ---------------------------------------------------------------------------- */

static void put_page_int(struct json_writer *w, const char *key, int64_t v)
{
    json_put_key(w, key);
    json_put_int64(w, v);
}

/* Resident memory of this process in bytes. */
static int64_t resident_bytes(void)
{
    long long total = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm && fscanf(statm, "%lld %lld", &total, &resident) != 2)
        resident = 0;
    if (statm)
        fclose(statm);
    return resident * sysconf(_SC_PAGESIZE);
}

static int64_t file_bytes(const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

/* Base models: they take memory from the start to the end. */
static void put_bases(struct server *s, struct json_writer *w)
{
    json_put_key(w, "models");
    json_put_begin_array(w);
    for (size_t i = 0; i < s->n_bases; i++) {
        const tinker_engine_info *info = tinker_engine_describe(s->bases[i].engine);
        json_put_begin_object(w);
        json_put_key(w, "name");
        json_put_string(w, s->bases[i].name);
        json_put_key(w, "arch");
        json_put_string(w, info->arch ? info->arch : "");
        put_page_int(w, "parameters", (int64_t)info->parameters);
        put_page_int(w, "context", info->context);
        put_page_int(w, "layers", info->layers);
        put_page_int(w, "weight_bytes", (int64_t)info->weight_bytes);
        put_page_int(w, "load_ms", s->bases[i].load_ns / 1000000);
        json_put_key(w, "chat");
        json_put_bool(w, s->bases[i].tokenizer != NULL);
        json_put_end_object(w);
    }
    json_put_end_array(w);
}

/* What waits and runs, read at one moment: of all users for an administrator, else the user's own.
 * How much others wait for would tell when they work. */
static void put_queue(struct server *s, struct request *req, struct json_writer *w)
{
    int64_t training = 0, running = 0, own = 0, adapter_bytes = 0, models = 0;
    size_t it = 0, n;
    const char *key;
    void *value;
    pthread_mutex_lock(&s->lock);
    while (map_next(&s->models, &it, &key, &n, &value)) {
        const struct model *m = value;
        if (!req->admin && strcmp(m->owner, req->user) != 0)
            continue;
        int64_t waiting = 0;
        for (const struct future *f = m->pending; f; f = f->next)
            waiting++;
        training += waiting;
        running += m->busy;
        models += m->state == MODEL_ACTIVE;
        adapter_bytes += m->state == MODEL_ACTIVE ? (int64_t)m->adapter_bytes : 0;
        own += strcmp(m->owner, req->user) == 0 ? waiting : 0;
    }
    size_t waiting = s->queued_samples, active = s->active_samples, sessions = s->sessions.len;
    size_t requests = s->queued_bytes, results = s->result_bytes;
    const struct tenant *t = map_get(&s->tenants, req->user, strlen(req->user));
    if (!req->admin) {
        waiting = t ? t->queued_samples : 0;
        requests = t ? t->queued_bytes : 0;
        results = t ? t->result_bytes : 0;
        active = sessions = 0;
        for (it = 0; map_next(&s->sessions, &it, &key, &n, &value);) {
            const struct session *session = value;
            active += session->tenant == t ? session->active_samples : 0;
            sessions += session->tenant == t;
        }
    }
    put_page_int(w, "samples_waiting", (int64_t)waiting);
    put_page_int(w, "samples_running", (int64_t)active);
    put_page_int(w, "request_bytes", (int64_t)requests);
    put_page_int(w, "result_bytes", (int64_t)results);
    put_page_int(w, "sessions", (int64_t)sessions);
    pthread_mutex_unlock(&s->lock);
    put_page_int(w, "training_waiting", training);
    put_page_int(w, "training_waiting_own", own);
    put_page_int(w, "training_running", running);
    put_page_int(w, "runs_in_memory", models);
    put_page_int(w, "adapter_bytes", adapter_bytes);
}

static void put_counters(struct server_counters *c, struct json_writer *w)
{
    put_page_int(w, "train_tokens", (int64_t)atomic_load(&c->train_tokens));
    put_page_int(w, "prompt_tokens", (int64_t)atomic_load(&c->prompt_tokens));
    put_page_int(w, "cached_tokens", (int64_t)atomic_load(&c->cached_tokens));
    put_page_int(w, "sample_tokens", (int64_t)atomic_load(&c->sample_tokens));
    put_page_int(w, "passes", (int64_t)atomic_load(&c->passes));
    put_page_int(w, "steps", (int64_t)atomic_load(&c->steps));
    put_page_int(w, "samples", (int64_t)atomic_load(&c->samples));
    put_page_int(w, "failures", (int64_t)atomic_load(&c->failures));
    put_page_int(w, "rounds", (int64_t)atomic_load(&c->rounds));
    put_page_int(w, "round_rows", (int64_t)atomic_load(&c->round_rows));
    put_page_int(w, "train_ms", (int64_t)(atomic_load(&c->train_ns) / 1000000));
    put_page_int(w, "sample_ms", (int64_t)(atomic_load(&c->sample_ns) / 1000000));
}

/* GET system: for the page's view of the machine. */
void route_system(struct server *s, struct request *req, struct response *res)
{
    struct json_writer w;
    struct statvfs disk;
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "version");
    json_put_string(&w, TINKER_VERSION);
    put_page_int(&w, "uptime_ms", (clock_now_ns(s->clock) - s->started_ns) / 1000000);
    put_page_int(&w, "threads", s->opts.engine.threads ? s->opts.engine.threads : os_cpu_count());
    /* The state of the machine changes with what others do: for administrators. */
    put_page_int(&w, "resident_bytes", req->admin ? resident_bytes() : 0);
    put_page_int(&w, "memory_free_bytes", req->admin ? (int64_t)os_memory_free() : 0);
    if (req->admin && statvfs(s->opts.data_dir, &disk) == 0) {
        put_page_int(&w, "disk_bytes", (int64_t)(disk.f_blocks * disk.f_frsize));
        put_page_int(&w, "disk_free_bytes", (int64_t)(disk.f_bavail * disk.f_frsize));
    }
    int64_t kv = 0;
    for (size_t i = 0; i < s->n_bases; i++)
        kv += (int64_t)atomic_load(&s->bases[i].kv_bytes);
    put_page_int(&w, "text_bytes", req->admin ? kv : 0);
    put_page_int(&w, "store_bytes", req->admin ? file_bytes(s->opts.data_dir, "tinker.db") : 0);
    json_put_key(&w, "read_only");
    json_put_bool(&w, s->opts.read_only);
    put_bases(s, &w);
    put_queue(s, req, &w);
    put_counters(req->admin ? &s->counters : live_user_counters(s, req->user), &w);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}
