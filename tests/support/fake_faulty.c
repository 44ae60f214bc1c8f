/* fake_faulty.c - see fake_faulty.h.
 *
 * Where an operation's number stands: learning_rate in millionths; the first token of a
 * datum or a prompt; the digits at the end of a checkpoint's name or of a run's id. */
#include "support/fake_faulty.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/fake_tinker.h"
#include "wire/proto.h"

struct faulty_job {
    char path[64], model[64];
    int64_t seq, operation;
    size_t n_data; /* of a pass */
    bool filler;   /* a forward pass over one token, for a number that nobody used */
    uint64_t content;
};

static void *const done = (void *)"done"; /* a value for sets */

void faulty_init(struct faulty *f, uint64_t seed, int percent, const char *config)
{
    memset(f, 0, sizeof(*f));
    rng_seed(&f->rng, seed);
    f->percent = percent;
    f->config = config;
    map_init(&f->jobs);
    map_init(&f->executed);
    map_init(&f->keys);
    map_init(&f->order);
    map_init(&f->numbers);
}

void faulty_clear(struct faulty *f)
{
    for (size_t i = 0; i < f->n_jobs; i++)
        free(f->by_id[i]);
    free(f->by_id);
    map_clear(&f->jobs);
    map_clear(&f->executed);
    map_clear(&f->keys);
    map_clear(&f->order);
    map_clear(&f->numbers);
}

long faulty_faults(const struct faulty *f)
{
    long n = 0;
    for (int i = 0; i < FAULTY_KINDS; i++)
        n += f->faults[i];
    return n;
}

static char *text(const char *fmt, const char *a, int64_t b)
{
    char *s = malloc(256);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(s, 256, fmt, a, (long long)b);
#pragma GCC diagnostic pop
    return s;
}

/* ---- what was asked ------------------------------------------------------------------ */

/* The string or number after "name": in a JSON body; "" when absent. */
static const char *member(const char *body, const char *name, char out[64])
{
    char key[64];
    snprintf(key, sizeof(key), "\"%s\":", name);
    const char *p = strstr(body, key);
    out[0] = '\0';
    if (p) {
        p += strlen(key);
        p += *p == '"' || *p == '[';
        snprintf(out, 64, "%.*s", (int)strcspn(p, "\",]}"), p);
    }
    return out;
}

static int64_t digits_at_end(const char *s)
{
    size_t n = strlen(s), i = n;
    while (i > 0 && s[i - 1] >= '0' && s[i - 1] <= '9')
        i--;
    return i < n ? strtoll(s + i, NULL, 10) : -1;
}

/* Mark a part of an operation as executed. */
static void execute(struct faulty *f, const char *part, int64_t operation, size_t index)
{
    char key[128];
    int n = snprintf(key, sizeof(key), "%s/%lld/%zu", part, (long long)operation, index);
    if (map_get(&f->executed, key, (size_t)n))
        f->twice++;
    map_put(&f->executed, key, (size_t)n, done, NULL);
}

static void read_pass(struct faulty *f, const struct fake_request *r, struct faulty_job *j,
                      bool first)
{
    struct wire_forward_backward_request req;
    struct arena a;
    arena_init(&a, SIZE_MAX);
    if (wire_decode_forward_backward_request(r->body, r->len, &a, &req, NULL) == TINKER_OK) {
        snprintf(j->model, sizeof(j->model), "%s", req.model_id);
        j->seq = req.seq_id.value;
        j->n_data = req.n_data;
        j->filler = req.forward_only && req.data[0].model_input.chunks[0].n_tokens == 1;
        j->operation = req.data[0].model_input.chunks[0].tokens[0];
        first = first && !j->filler;
        for (size_t i = 0; first && i < req.n_data; i++)
            execute(f, "pass", j->operation, (size_t)req.data[i].model_input.chunks[0].tokens[1]);
    }
    arena_clear(&a);
}

static void read_json(const struct fake_request *r, struct faulty_job *j)
{
    char v[64];
    member(r->body, strcmp(j->path, "asample") == 0 ? "sampling_session_id" : "model_id", j->model);
    j->seq = strtoll(member(r->body, "seq_id", v), NULL, 10);
    if (strcmp(j->path, "asample") == 0)
        j->operation = strtoll(member(r->body, "tokens", v), NULL, 10);
    else if (strcmp(j->path, "optim_step") == 0)
        j->operation = llround(strtod(member(r->body, "learning_rate", v), NULL) * 1e6);
    else
        j->operation = digits_at_end(member(r->body, "path", v));
}

/* Submissions of one model must come in the order of their operations; those of one
 * operation (its chunks) have none among themselves. */
static void check_order(struct faulty *f, const struct faulty_job *j)
{
    size_t n = strlen(j->model);
    int64_t last = (int64_t)(intptr_t)map_get(&f->order, j->model, n);
    if (j->operation + 1 < last)
        f->out_of_order++;
    map_put(&f->order, j->model, n, (void *)(intptr_t)(j->operation + 1), NULL);
}

/* The highest number of each model, for faulty_missing(). */
static void note_number(struct faulty *f, const struct faulty_job *j)
{
    size_t n = strlen(j->model);
    if ((intptr_t)map_get(&f->numbers, j->model, n) < j->seq)
        map_put(&f->numbers, j->model, n, (void *)(intptr_t)j->seq, NULL);
}

long faulty_missing(struct faulty *f)
{
    size_t it = 0, n_model;
    const char *model;
    void *last;
    long missing = 0;
    while (map_next(&f->numbers, &it, &model, &n_model, &last))
        for (int64_t seq = 1; seq <= (intptr_t)last; seq++) {
            char key[128];
            int n = snprintf(key, sizeof(key), "%.*s/%lld", (int)n_model, model, (long long)seq);
            missing += !map_get(&f->jobs, key, (size_t)n);
        }
    return missing;
}

static struct faulty_job *add_job(struct faulty *f, const char *key, size_t n)
{
    if (f->n_jobs == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 64;
        f->by_id = realloc(f->by_id, f->cap * sizeof(*f->by_id));
    }
    struct faulty_job *j = calloc(1, sizeof(*j));
    f->by_id[f->n_jobs++] = j;
    /* ids count from 1, so that no value is NULL */
    map_put(&f->jobs, key, n, (void *)(intptr_t)f->n_jobs, NULL);
    return j;
}

static void submit(struct faulty *f, const struct fake_request *r, const char *path,
                   struct fake_reply *out)
{
    struct faulty_job seen = { .operation = -1 };
    bool pass = strcmp(path, "forward_backward") == 0, sample = strcmp(path, "asample") == 0;
    snprintf(seen.path, sizeof(seen.path), "%.63s", path);
    if (pass)
        read_pass(f, r, &seen, false);
    else
        read_json(r, &seen);
    seen.content = hash_bytes(r->body, r->len, 1);
    char key[128];
    int n = snprintf(key, sizeof(key), "%s/%lld", seen.model, (long long)seen.seq);
    intptr_t id = (intptr_t)map_get(&f->jobs, key, (size_t)n);
    f->fillers += seen.filler;
    if (id && f->by_id[id - 1]->filler != seen.filler) {
        /* the request that was given up and its filler: whichever comes second is refused */
        out->status = 409;
        out->body = strdup("{\"detail\":\"Training request sequence number was reused\"}");
        return;
    }
    if (id) {
        f->repeats++;
        f->changed += f->by_id[id - 1]->content != seen.content;
    } else {
        *add_job(f, key, (size_t)n) = seen;
        id = (intptr_t)f->n_jobs;
        if (pass)
            read_pass(f, r, &seen, true);
        else if (!sample) /* a sample may be asked for again, under a new number */
            execute(f, path, seen.operation, 0);
        if (!sample && !seen.filler)
            check_order(f, &seen);
        if (!sample)
            note_number(f, &seen);
        if (!sample && !seen.filler)
            f->weights += hash_bytes(key, (size_t)n, seen.content);
    }
    out->body = text("{\"request_id\":\"%s%lld\"}", "job-", id);
}

/* ---- results ------------------------------------------------------------------------- */

/* Is a number below that of j missing? */
static bool is_behind_gap(struct faulty *f, const struct faulty_job *j)
{
    for (int64_t seq = 1; seq < j->seq; seq++) {
        char key[128];
        int n = snprintf(key, sizeof(key), "%s/%lld", j->model, (long long)seq);
        if (!map_get(&f->jobs, key, (size_t)n))
            return true;
    }
    return false;
}

static void result(struct faulty *f, const struct fake_request *r, struct fake_reply *out)
{
    char id[64];
    size_t i = (size_t)digits_at_end(member(r->body, "request_id", id));
    const struct faulty_job *j = i >= 1 && i <= f->n_jobs ? f->by_id[i - 1] : NULL;
    uint64_t mood = f->percent > 0 ? rng_next(&f->rng) % 100 : 99; /* it may be in none */
    if (!j) {
        out->status = 404;
        out->body = strdup("{\"detail\":\"no such request\"}");
    } else if (mood < 10 || (f->strict && is_behind_gap(f, j))) {
        out->body =
            strdup("{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"active\"}");
        out->delay_ms = 500;
    } else if (mood < 15 && strstr(r->body, "\"allow_metadata_only\":true")) {
        out->body = strdup("{\"status\":\"complete_metadata\",\"response_payload_size\":1000}");
    } else if (strcmp(j->path, "forward_backward") == 0) {
        tinker_named_number metrics[] = { { "loss:sum", (double)j->n_data },
                                          { "operation:max", (double)j->operation } };
        out->content_type = "application/x-protobuf";
        out->body = fake_pass_result(j->n_data, metrics, 2, &out->len);
    } else if (strcmp(j->path, "asample") == 0) {
        int32_t token = (int32_t)j->operation;
        out->content_type = "application/x-protobuf";
        out->body = fake_sample_result(&token, 1, &out->len);
    } else if (strcmp(j->path, "optim_step") == 0) {
        out->body = text("{\"metrics\":{\"operation:max\":%s%lld}}", "", j->operation);
    } else {
        out->body = text("{\"path\":\"tinker://run/%s/op-%lld\"}",
                         strstr(j->path, "sampler") ? "sampler_weights" : "weights", j->operation);
    }
}

/* ---- everything else ------------------------------------------------------------------ */

static void manage(struct faulty *f, const struct fake_request *r, struct fake_reply *out)
{
    char key[512] = "", run[64];
    const char *p = strstr(r->path, "training_runs/");
    snprintf(run, sizeof(run), "%.*s", p ? (int)strcspn(p + 14, "/?") : 0, p ? p + 14 : "");
    if (strcmp(r->method, "GET") == 0) {
        out->body = strstr(r->path, "/checkpoints")
                        ? strdup("{\"checkpoints\":[]}")
                        : text("{\"training_run_id\":\"%srun-%lld\",\"base_model\":\"m\","
                               "\"model_owner\":\"me\",\"is_lora\":true,\"last_request_time\":"
                               "\"2026-08-01T00:00:00Z\"}",
                               "", digits_at_end(run));
        return;
    }
    fake_header(r, "X-Idempotency-Key", key);
    if (!map_get(&f->keys, key, strlen(key))) {
        map_put(&f->keys, key, strlen(key), done, NULL);
        execute(f, r->method, digits_at_end(run), 0);
    } else
        f->repeats++;
    out->body = strdup("{}");
}

static void answer_well(struct faulty *f, const struct fake_request *r, const char *path,
                        struct fake_reply *out)
{
    static const char *const submissions[] = { "forward_backward",
                                               "optim_step",
                                               "asample",
                                               "save_weights",
                                               "load_weights",
                                               "save_weights_"
                                               "for_sampler" };
    for (size_t i = 0; i < sizeof(submissions) / sizeof(*submissions); i++)
        if (strcmp(path, submissions[i]) == 0) {
            submit(f, r, path, out);
            return;
        }
    if (strcmp(path, "retrieve_future") == 0 && strstr(r->body, "\"model-")) {
        char id[64];
        out->body = text("{\"model_id\":\"%s:train:%lld\"}", "sess",
                         digits_at_end(member(r->body, "request_id", id)));
    } else if (strcmp(path, "retrieve_future") == 0)
        result(f, r, out);
    else if (strcmp(path, "create_model") == 0)
        out->body = text("{\"request_id\":\"%s%lld\"}", "model-", f->n_models++);
    else if (strcmp(path, "create_sampling_session") == 0)
        out->body = text("{\"sampling_session_id\":\"%s:sample:%lld\"}", "sess", f->n_samplers++);
    else if (strcmp(path, "client/config") == 0)
        out->body = strdup(f->config);
    else if (strcmp(path, "create_session") == 0)
        out->body = strdup("{\"session_id\":\"sess\"}");
    else if (strcmp(path, "telemetry") == 0)
        out->body = strdup("{\"status\":\"accepted\"}");
    else if (strncmp(path, "training_runs/", 14) == 0)
        manage(f, r, out);
    else if (strcmp(path, "get_server_capabilities") == 0)
        out->body = strdup("{\"supported_models\":[]}");
    else
        out->body = strdup("{}");
}

/* ---- what goes wrong ------------------------------------------------------------------ */

static void replace(struct fake_reply *out, int status, const char *body)
{
    free((char *)out->body);
    *out = (struct fake_reply){ .status = status, .body = strdup(body) };
}

/* Spoil an answer, or take the place of one (out is empty: the work was not done). */
static void go_wrong(struct faulty *f, int kind, struct fake_reply *out)
{
    static const int statuses[] = { 408, 409, 429, 500 };
    uint64_t x = rng_next(&f->rng);
    f->faults[kind]++;
    if (kind <= 1)
        out->fault = FAKE_DROP;
    else if (kind == 2)
        out->fault = FAKE_TRUNCATE;
    else if (kind == 3) /* rarely beyond every timeout */
        out->delay_ms = x % 16 ? 1000 + (int64_t)(x / 16 % 4000) : 70000;
    else if (kind == 4)
        out->fault = FAKE_TWICE;
    else if (kind < 9)
        replace(out, statuses[kind - 5] + (kind == 8 ? (int)(x % 4) : 0), "{\"detail\":\"fault\"}");
    else {
        replace(out, 400, "");
        out->fault = FAKE_NO_LENGTH;
    }
}

void faulty_answer(void *faulty, const struct fake_request *r, struct fake_reply *out)
{
    struct faulty *f = faulty;
    char path[256] = "";
    if (strncmp(r->path, API, strlen(API)) == 0)
        snprintf(path, sizeof(path), "%.*s", (int)strcspn(r->path + strlen(API), "?"),
                 r->path + strlen(API));
    f->requests++;
    bool start = strstr(path, "config") || strstr(path, "create_") || strstr(r->body, "\"model-");
    uint64_t x = rng_next(&f->rng);
    bool wrong = !start && x % 100 < (uint64_t)f->percent;
    int kind = (int)(x / 100 % FAULTY_KINDS);
    bool before = kind == 0 || (kind >= 5 && x / 100000 % 2); /* the work is not done */
    if (!wrong || !before)
        answer_well(f, r, path, out);
    if (!start)
        out->delay_ms += (int64_t)(x / 1000000 % 100);
    if (wrong)
        go_wrong(f, kind, out);
}
