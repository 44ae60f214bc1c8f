/* history.c - points in memory until they are in the store: see history.h.
 *
 * A series in memory is the end of the one in the store: the points of its last chunk and those
 * that are newer.  A flush encodes them under the lock, writes them without it, and then drops the
 * chunks that are full; the last point always stays, because the next request may add to it.
 *
 * Locks: flush_lock, held during a flush and its I/O, then lock, a leaf. */
#include "server/store/history.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/map.h"
#include "server/store/store_history.h"

enum { IDLE_FLUSHES = 1200 }; /* a run that got nothing for ten minutes leaves memory */
/* When the store cannot be written (a full disk), memory is bounded by thinning here, too. */
enum { MEMORY_POINTS = 65536 };

struct series {
    char *name;
    struct history_point *points;
    size_t n, cap;
    double weight;       /* of the last point's value, for HISTORY_MEAN */
    int64_t first_chunk; /* number of the chunk that points[0] begins */
    int64_t stored;      /* points in the store before that chunk */
    bool dirty;
};

struct run {
    char *id;
    struct series *series;
    size_t n, cap;
    bool known; /* first_chunk and stored are those of the store */
    unsigned idle;
};

struct history {
    struct store *store;
    const struct log *log;
    pthread_mutex_t flush_lock;
    bool failed; /* guarded by flush_lock: the last flush failed, and the log says so */
    pthread_mutex_t lock;
    struct map runs; /* guarded by lock, with everything below it */
};

static void free_run(struct run *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++) {
        free(r->series[i].name);
        free(r->series[i].points);
    }
    free(r->series);
    free(r->id);
    free(r);
}

/* Nothing is read here: what the store has of a run is looked up when the run is first written. */
struct history *history_new(struct store *store, const struct log *log)
{
    struct history *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->store = store;
    h->log = log;
    pthread_mutex_init(&h->flush_lock, NULL);
    pthread_mutex_init(&h->lock, NULL);
    map_init(&h->runs);
    return h;
}

void history_free(struct history *h)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    if (!h)
        return;
    while (map_next(&h->runs, &it, &key, &n, &value))
        free_run(value);
    map_clear(&h->runs);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->flush_lock);
    free(h);
}

/* ---- adding --------------------------------------------------------------------------------- */

static struct run *find_run_locked(struct history *h, const char *id)
{
    struct run *r = map_get(&h->runs, id, strlen(id));
    if (r)
        return r;
    r = calloc(1, sizeof(*r));
    if (r && (r->id = strdup(id)) != NULL && map_put(&h->runs, id, strlen(id), r, NULL))
        return r;
    free_run(r);
    return NULL;
}

/* Runs have a dozen metrics, so a list will do.  NULL: one too many, or no memory. */
static struct series *find_series(struct run *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->series[i].name, name) == 0)
            return &r->series[i];
    if (r->n == HISTORY_MAX_SERIES)
        return NULL;
    if (r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 16;
        struct series *more = realloc(r->series, cap * sizeof(*more));
        if (!more)
            return NULL;
        r->series = more;
        r->cap = cap;
    }
    struct series *s = &r->series[r->n];
    memset(s, 0, sizeof(*s));
    s->name = strdup(name);
    if (!s->name)
        return NULL;
    r->n++;
    return s;
}

/* Requests of one step come one after the other, so the point so far and one new value are
 * enough. */
static double merge_value(const struct series *s, double old, const struct history_value *v)
{
    double both = s->weight + v->weight;
    switch (v->merge) {
    case HISTORY_SUM:
        return old + v->value;
    case HISTORY_MEAN:
        return both > 0 ? (old * s->weight + v->value * v->weight) / both : v->value;
    case HISTORY_MIN:
        return fmin(old, v->value);
    case HISTORY_MAX:
        return fmax(old, v->value);
    case HISTORY_REPLACE:
        break;
    }
    return v->value;
}

/* A point that was thinned (n > 1) stands for several steps and takes no more values. */
static bool add_value(struct series *s, int64_t step, const struct history_value *v)
{
    struct history_point *last = s->n ? &s->points[s->n - 1] : NULL;
    if (last && last->step == step && last->n == 1) {
        last->mean = last->min = last->max = merge_value(s, last->mean, v);
        s->weight += v->weight;
        s->dirty = true;
        return true;
    }
    if (s->n == MEMORY_POINTS)
        s->n = history_thin(s->points, s->n, HISTORY_KEEP_POINTS, HISTORY_THIN_POINTS);
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 32;
        struct history_point *more = realloc(s->points, cap * sizeof(*more));
        if (!more)
            return false;
        s->points = more;
        s->cap = cap;
    }
    s->points[s->n++] = (struct history_point){ step, 1, v->value, v->value, v->value };
    s->weight = v->weight;
    s->dirty = true;
    return true;
}

/* false only without memory or beyond the limit of series: training never fails for its curves,
 * callers log at most. */
bool history_add(struct history *h, const char *run, int64_t step, const struct history_value *v,
                 size_t n)
{
    bool ok = true;
    pthread_mutex_lock(&h->lock);
    struct run *r = find_run_locked(h, run);
    if (r)
        r->idle = 0;
    for (size_t i = 0; r && i < n; i++) {
        struct series *s = find_series(r, v[i].name);
        ok = s && add_value(s, step, &v[i]) && ok;
    }
    pthread_mutex_unlock(&h->lock);
    return ok && r;
}

/* Nothing more will come: the run leaves memory with the next flush that finds it clean. */
void history_finish(struct history *h, const char *run)
{
    pthread_mutex_lock(&h->lock);
    struct run *r = map_get(&h->runs, run, strlen(run));
    if (r)
        r->idle = IDLE_FLUSHES;
    pthread_mutex_unlock(&h->lock);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Where the store's part of a run ends.  Until this is known nothing of it is written; points are
 * appended to a chunk of their own. */
static tinker_status place_run(struct history *h, struct run *r, tinker_error *err)
{
    struct arena arena;
    struct store_series *list;
    size_t n;
    arena_init(&arena, 64 << 20);
    tinker_status status = store_list_series(h->store, r->id, &arena, &list, &n, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        int64_t next = 0, points = 0;
        status = store_series_end(h->store, list[i].id, &next, &points, err);
        pthread_mutex_lock(&h->lock);
        struct series *s = find_series(r, list[i].name);
        if (s) { /* else it is over the limit, and stays as it is */
            s->first_chunk = next;
            s->stored = points;
        }
        pthread_mutex_unlock(&h->lock);
    }
    r->known = status == TINKER_OK; /* only a flush looks at it */
    arena_clear(&arena);
    return status;
}

/* One flush of a run: what is to be written, and how much of each series that was. */
struct batch {
    struct arena arena;
    struct store_chunk *chunks;
    size_t n, cap;
};

/* Encode one series; its full chunks, then the rest. */
static bool encode_series(struct batch *b, const struct run *r, const struct series *s)
{
    for (size_t at = 0; at < s->n; at += HISTORY_CHUNK) {
        size_t some = s->n - at < HISTORY_CHUNK ? s->n - at : HISTORY_CHUNK;
        struct buf bytes;
        buf_init(&bytes, SIZE_MAX);
        history_encode(s->points + at, some, &bytes);
        const void *data = buf_ok(&bytes) ? arena_memdup(&b->arena, bytes.data, bytes.len) : NULL;
        if (b->n == b->cap) {
            size_t cap = b->cap ? b->cap * 2 : 32;
            struct store_chunk *more =
                arena_grow(&b->arena, b->chunks, b->cap * sizeof(*more), cap * sizeof(*more));
            b->chunks = more ? more : b->chunks;
            b->cap = more ? cap : b->cap;
        }
        bool ok = data && b->n < b->cap;
        if (ok)
            b->chunks[b->n++] = (struct store_chunk){
                r->id, s->name, s->first_chunk + (int64_t)(at / HISTORY_CHUNK),
                some,  data,    bytes.len
            };
        buf_clear(&bytes);
        if (!ok)
            return false;
    }
    return true;
}

/* The full chunks are in the store: forget them, but keep at least one point. */
static void drop_stored_locked(struct run *r, const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        struct series *s = find_series(r, b->chunks[i].name);
        if (s && b->chunks[i].points == HISTORY_CHUNK && s->n > HISTORY_CHUNK &&
            b->chunks[i].chunk == s->first_chunk) {
            s->n -= HISTORY_CHUNK;
            memmove(s->points, s->points + HISTORY_CHUNK, s->n * sizeof(*s->points));
            s->first_chunk++;
            s->stored += HISTORY_CHUNK;
        }
    }
}

/* Thin the series of a run that are too long now.  The chunk that is in memory keeps its number:
 * numbers only say the order. */
static tinker_status thin_run(struct history *h, struct run *r, tinker_error *err)
{
    tinker_status status = TINKER_OK;
    bool end = false;
    for (size_t i = 0; status == TINKER_OK && !end; i++) {
        struct series s = { 0 };
        size_t points = 0;
        pthread_mutex_lock(&h->lock); /* the array may move while it is not held */
        end = i >= r->n;
        if (!end)
            s = r->series[i]; /* names stay where they are */
        pthread_mutex_unlock(&h->lock);
        if (s.stored < HISTORY_MAX_POINTS)
            continue;
        status = store_thin_series(h->store, r->id, s.name, s.first_chunk, &points, err);
        pthread_mutex_lock(&h->lock);
        if (status == TINKER_OK)
            r->series[i].stored = (int64_t)points;
        pthread_mutex_unlock(&h->lock);
    }
    return status;
}

static tinker_status flush_run(struct history *h, struct run *r, tinker_error *err)
{
    struct batch b = { 0 };
    tinker_status status = r->known ? TINKER_OK : place_run(h, r, err);
    if (status != TINKER_OK)
        return status;
    arena_init(&b.arena, SIZE_MAX);
    bool ok = true;
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; ok && i < r->n; i++)
        if (r->series[i].dirty) {
            ok = encode_series(&b, r, &r->series[i]);
            r->series[i].dirty = !ok;
        }
    pthread_mutex_unlock(&h->lock);
    status = ok ? store_put_chunks(h->store, b.chunks, b.n, err) : err_nomem(err, "history");
    pthread_mutex_lock(&h->lock);
    if (status == TINKER_OK)
        drop_stored_locked(r, &b);
    for (size_t i = 0; status != TINKER_OK && i < b.n; i++) {
        struct series *s = find_series(r, b.chunks[i].name);
        if (s)
            s->dirty = true; /* tried again by the next flush */
    }
    pthread_mutex_unlock(&h->lock);
    arena_clear(&b.arena);
    return status == TINKER_OK ? thin_run(h, r, err) : status;
}

/* The next run with something to write, NULL: none.  Runs are freed only here and in
 * history_free(), so the pointer stays valid while flush_lock is held. */
static struct run *find_dirty_run_locked(struct history *h, size_t *it)
{
    size_t n;
    const char *key;
    void *value;
    while (map_next(&h->runs, it, &key, &n, &value)) {
        struct run *r = value;
        for (size_t i = 0; i < r->n; i++)
            if (r->series[i].dirty)
                return r;
        if (++r->idle > IDLE_FLUSHES) {
            map_remove(&h->runs, r->id, strlen(r->id));
            free_run(r);
        }
    }
    return NULL;
}

tinker_status history_flush(struct history *h, tinker_error *err)
{
    tinker_error own = { 0 };
    tinker_status status = TINKER_OK;
    size_t it = 0;
    pthread_mutex_lock(&h->flush_lock);
    for (;;) {
        pthread_mutex_lock(&h->lock);
        struct run *r = find_dirty_run_locked(h, &it);
        pthread_mutex_unlock(&h->lock);
        if (!r)
            break;
        tinker_status one = flush_run(h, r, &own);
        status = one == TINKER_OK ? status : one;
    }
    if (status != TINKER_OK && !h->failed) /* once, not twice a second */
        log_line(h->log, LOG_ERROR, "metrics of runs are not recorded: %s", own.message);
    h->failed = status != TINKER_OK;
    pthread_mutex_unlock(&h->flush_lock);
    if (status != TINKER_OK && err)
        *err = own;
    return status;
}
