/* usage.c - see usage.h. */
#include "server/work/usage.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/work/live_state.h"

/* A full table is written at once, so ROWS bounds the memory, not what can be counted. */
enum { ROWS = 256, HOUR_S = 3600 };

/* Amounts by hour, user, kind, session and model, kept in memory until the next flush: a row in the
 * database for every sample would cost more than the sample. */
struct usage {
    pthread_mutex_t lock;
    /* guarded by lock */
    struct store_usage_row rows[ROWS]; /* their texts are owned */
    size_t n;
    int64_t stored_us; /* until when storage was counted; 0: never */
};

struct usage *usage_new(void)
{
    struct usage *u = calloc(1, sizeof(*u));
    if (u)
        pthread_mutex_init(&u->lock, NULL);
    return u;
}

/* The rows' texts are const for everybody else; they were made by strdup() below. */
static void clear_rows_locked(struct usage *u)
{
    for (size_t i = 0; i < u->n; i++) {
        free((void *)(uintptr_t)u->rows[i].owner);
        free((void *)(uintptr_t)u->rows[i].session_id);
        free((void *)(uintptr_t)u->rows[i].base_model);
    }
    u->n = 0;
}

void usage_free(struct usage *u)
{
    if (!u)
        return;
    clear_rows_locked(u);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* The lock is held during the write: whoever counts meanwhile waits for one small transaction. */
static void flush_locked(struct server *s)
{
    tinker_error err = { 0 };
    struct usage *u = s->usage;
    if (!u->n)
        return;
    /* Amounts are added to the rows of the database with the same key, so an hour may be written in
     * many parts. */
    if (store_add_usage(s->store, u->rows, u->n, &err) == TINKER_OK)
        clear_rows_locked(u);
    else
        log_line(s->log, LOG_ERROR, "usage: %s", err.message);
    /* A full table that cannot be written is dropped: counting must not stop the work. */
    if (u->n == ROWS)
        clear_rows_locked(u);
}

/* All of the key but the amount; the hour first, which differs most often. */
static bool same_row(const struct store_usage_row *a, const struct store_usage_row *b)
{
    return a->hour == b->hour && a->kind == b->kind && strcmp(a->owner, b->owner) == 0 &&
           strcmp(a->session_id, b->session_id) == 0 && strcmp(a->base_model, b->base_model) == 0;
}

static void add_locked(struct server *s, const struct store_usage_row *row)
{
    struct usage *u = s->usage;
    /* The last ones first: the same session comes again and again. */
    for (size_t i = u->n; i > 0; i--)
        if (same_row(&u->rows[i - 1], row)) {
            u->rows[i - 1].amount += row->amount;
            return;
        }
    if (u->n == ROWS)
        flush_locked(s);
    struct store_usage_row *v = &u->rows[u->n];
    *v = *row;
    v->owner = strdup(row->owner);
    v->session_id = strdup(row->session_id);
    v->base_model = strdup(row->base_model);
    u->n++; /* so that clear_rows_locked() frees what there is */
    if (!v->owner || !v->session_id || !v->base_model)
        clear_rows_locked(u); /* without memory nothing is counted rather than something wrong */
}

/* Any thread, once a request has succeeded: failed ones cost nothing. */
void usage_add(struct server *s, enum usage_kind kind, const char *owner, const char *session_id,
               const char *base_model, int64_t amount)
{
    struct store_usage_row row = { .hour = live_wall_us(s) / 1000000 / HOUR_S,
                                   .kind = (int)kind,
                                   .owner = owner,
                                   .session_id = session_id ? session_id : "",
                                   .base_model = base_model ? base_model : "",
                                   .amount = amount };
    if (amount <= 0)
        return;
    pthread_mutex_lock(&s->usage->lock);
    add_locked(s, &row);
    pthread_mutex_unlock(&s->usage->lock);
}

void usage_flush(struct server *s)
{
    pthread_mutex_lock(&s->usage->lock);
    flush_locked(s);
    pthread_mutex_unlock(&s->usage->lock);
}

/* Bytes of all projects of a user; 0 when the store cannot tell, which counts too little. */
static int64_t stored_bytes(struct server *s, const char *owner, struct arena *arena)
{
    struct store_usage *list;
    size_t n = 0;
    int64_t sum = 0;
    if (store_checkpoint_usage(s->store, owner, arena, &list, &n, NULL) != TINKER_OK)
        return 0;
    for (size_t i = 0; i < n; i++)
        sum += list[i].bytes;
    return sum;
}

/* Byte-seconds since the last look.  The timer calls it every minute; the first call after a
 * start only notes the time, since how long the server was down is not known. */
void usage_add_storage(struct server *s)
{
    struct arena arena;
    const char *key;
    void *value;
    size_t it = 0, n = 0, n_key;
    int64_t now = live_wall_us(s);
    pthread_mutex_lock(&s->usage->lock);
    int64_t seconds = s->usage->stored_us ? (now - s->usage->stored_us) / 1000000 : 0;
    s->usage->stored_us = now;
    pthread_mutex_unlock(&s->usage->lock);
    if (seconds <= 0 || seconds > HOUR_S) /* the clock was set */
        return;
    arena_init(&arena, SIZE_MAX);
    pthread_mutex_lock(&s->lock);
    /* Names are copied out, since the store must not be asked under server.lock; the texts stay,
     * for tenants are never freed. */
    const char **names = arena_array(&arena, s->tenants.len + 1, sizeof(*names));
    while (names && map_next(&s->tenants, &it, &key, &n_key, &value))
        names[n++] = ((struct tenant *)value)->name;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++)
        usage_add(s, USAGE_STORAGE, names[i], NULL, NULL,
                  stored_bytes(s, names[i], &arena) * seconds);
    arena_clear(&arena);
}

/* Best effort as to the request: a full disk must not undo a deletion that has happened. */
void usage_note(struct server *s, const char *owner, const char *event, const char *model_id,
                const char *path, const char *purpose, const char *session_id)
{
    struct store_event v = { live_wall_us(s), owner, event, model_id, path, purpose, session_id };
    tinker_error err = { 0 };
    if (store_add_event(s->store, &v, &err) != TINKER_OK)
        log_line(s->log, LOG_ERROR, "audit: %s", err.message);
}
