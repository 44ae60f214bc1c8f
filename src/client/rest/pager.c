/* pager.c - all items of a list that the service gives in pages.  Runs in the caller's thread.
 *
 * Pages are counted by position, and positions move while others create and delete.  So every
 * page begins with an item that was seen before: the list goes on behind it.  When it does not,
 * something before it was deleted, and the pager goes back until it does.  An item is known by
 * a hash of its id, so nothing is given twice.  Memory: one page, and 32 bytes per item. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/rest.h>
#include "base/err.h"
#include "base/map.h"
#include "base/rand.h"
#include "client/future/future.h"

enum { PAGE_DEFAULT = 100, SEEN_MAX = 1 << 22 };

struct page_kind {
    tinker_future *(*ask)(tinker_pager *p, const tinker_page *page, tinker_error *err);
    /* Of an answer: how many items, the id of one, and how many there are in all (-1: unknown). */
    size_t (*count)(const tinker_future *f);
    const char *(*id)(const tinker_future *f, size_t i);
    int64_t (*total)(const tinker_future *f);
};

struct tinker_pager {
    tinker_rest *rest;
    const struct page_kind *kind;
    tinker_page page; /* of the next request; limit: new items per page */
    char *project_id, *run_id;
    int64_t first;         /* offset at which the list begins: the caller's */
    int64_t step;          /* how far to go back when the next page leaves a gap; doubles */
    tinker_future *answer; /* under way, or being read */
    bool reading;
    size_t n, at;   /* of the answer: items, and the current one; at n: none */
    size_t stale;   /* items of answers since one that was not seen before */
    size_t fresh;   /* items of the answer that were not seen before */
    bool last, end; /* nothing comes behind the answer; nothing comes any more */
    tinker_error err;
    uint64_t *seen; /* hashes of ids, 0: free */
    size_t n_seen, cap;
    uint64_t seed;
};

/* ---- what was seen -------------------------------------------------------------------------- */

/* 0 marks a free slot, so no id may hash to it.  The seed is random: a service cannot choose ids
 * that collide, which would make it hide items. */
static uint64_t hash_id(const tinker_pager *p, const char *id)
{
    uint64_t h = hash_bytes(id, strlen(id), p->seed);
    return h ? h : 1;
}

/* Where the hash is, or would be: open addressing with linear probing.  cap is a power of two, and
 * at least half of the slots are free, so the loop ends. */
static uint64_t *find_slot(uint64_t *v, size_t cap, uint64_t hash)
{
    size_t i = (size_t)hash & (cap - 1);
    while (v[i] && v[i] != hash)
        i = (i + 1) & (cap - 1);
    return &v[i];
}

static bool was_seen(const tinker_pager *p, const char *id)
{
    return p->cap && *find_slot(p->seen, p->cap, hash_id(p, id));
}

/* Note an item as seen.  A failure is kept in p->err and ends the list. */
static tinker_status remember_item(tinker_pager *p, const char *id)
{
    if (p->n_seen == SEEN_MAX)
        return err_set(&p->err, TINKER_ENOMEM, "the list has more than %d items", SEEN_MAX);
    if (2 * p->n_seen >= p->cap) { /* keep half of the slots free */
        size_t cap = p->cap ? 2 * p->cap : 256;
        uint64_t *v = calloc(cap, sizeof(*v));
        if (!v)
            return err_nomem(&p->err, "list");
        for (size_t i = 0; i < p->cap; i++)
            if (p->seen[i])
                *find_slot(v, cap, p->seen[i]) = p->seen[i];
        free(p->seen);
        p->seen = v;
        p->cap = cap;
    }
    *find_slot(p->seen, p->cap, hash_id(p, id)) = hash_id(p, id);
    p->n_seen++;
    return TINKER_OK;
}

/* ---- the lists ------------------------------------------------------------------------------ */

/* Four functions for each kind of list: ask for a page, count, id of an item, and the total that
 * the service claims. */
static tinker_future *ask_runs(tinker_pager *p, const tinker_page *page, tinker_error *err)
{
    return tinker_rest_list_training_runs(p->rest, page, err);
}

static size_t count_runs(const tinker_future *f)
{
    return tinker_future_training_runs(f)->n;
}

static const char *id_of_run(const tinker_future *f, size_t i)
{
    return tinker_training_run_at(tinker_future_training_runs(f), i)->id;
}

static int64_t total_runs(const tinker_future *f)
{
    return tinker_future_training_runs(f)->cursor.total_count;
}

static tinker_future *ask_sessions(tinker_pager *p, const tinker_page *page, tinker_error *err)
{
    return tinker_rest_list_sessions(p->rest, page, err);
}

static size_t count_sessions(const tinker_future *f)
{
    return tinker_future_strings(f)->n;
}

static const char *id_of_session(const tinker_future *f, size_t i)
{
    return tinker_future_strings(f)->v[i];
}

static int64_t total_sessions(const tinker_future *f)
{
    (void)f; /* the service does not say */
    return -1;
}

/* The checkpoints of one run come in one piece, without pages. */
static tinker_future *ask_checkpoints(tinker_pager *p, const tinker_page *page, tinker_error *err)
{
    return p->run_id ? tinker_rest_list_checkpoints(p->rest, p->run_id, err)
                     : tinker_rest_list_user_checkpoints(p->rest, page, err);
}

static size_t count_checkpoints(const tinker_future *f)
{
    return tinker_future_checkpoints(f)->n;
}

static const char *id_of_checkpoint(const tinker_future *f, size_t i)
{
    return tinker_checkpoint_at(tinker_future_checkpoints(f), i)->path;
}

/* Without a cursor the list is complete. */
static int64_t total_checkpoints(const tinker_future *f)
{
    const tinker_checkpoints *c = tinker_future_checkpoints(f);
    return c->cursor ? c->cursor->total_count : 0;
}

static const struct page_kind runs_kind = {
    .ask = ask_runs, .count = count_runs, .id = id_of_run, .total = total_runs
};
static const struct page_kind sessions_kind = {
    .ask = ask_sessions, .count = count_sessions, .id = id_of_session, .total = total_sessions
};
static const struct page_kind checkpoints_kind = { .ask = ask_checkpoints,
                                                   .count = count_checkpoints,
                                                   .id = id_of_checkpoint,
                                                   .total = total_checkpoints };

/* ---- pages ---------------------------------------------------------------------------------- */

static void drop_answer(tinker_pager *p)
{
    tinker_future_free(p->answer);
    p->answer = NULL;
    p->reading = false;
    p->n = p->at = 0;
}

/* Begin to read the answer that arrived, or drop it when it leaves a gap.
 *
 * Every page but the first was asked for one item early.  If that first item was seen before, the
 * page continues the list.  If not, items in front of it were deleted, everything moved up, and
 * what moved past our offset would be missed: ask again, further and further back, at last from
 * the beginning, which always fits. */
static void open_answer(tinker_pager *p)
{
    p->n = p->kind->count(p->answer);
    bool overlaps = p->n > 0 && was_seen(p, p->kind->id(p->answer, 0));
    if (p->page.offset > p->first && !overlaps) {
        int64_t back = p->page.offset - p->first;
        p->page.offset -= p->step < back ? p->step : back;
        p->step *= 2;
        drop_answer(p);
        return;
    }
    int64_t behind = p->page.offset + (int64_t)p->n, total = p->kind->total(p->answer);
    p->last = p->n == 0 || (total >= 0 && behind >= total);
    p->fresh = 0;
    p->reading = true;
    p->at = (size_t)-1; /* before the first */
    p->step = p->page.limit;
    p->page.offset = behind > p->first ? behind - 1 : behind; /* one item early, see above */
}

/* Have an answer to read.  An error that is not kept in p->err is not the end. */
static tinker_status fetch_page(tinker_pager *p, int64_t timeout_ms, tinker_error *err)
{
    while (!p->reading) {
        if (!p->answer) {
            tinker_page page = p->page;
            page.limit++; /* the first was seen before */
            p->answer = p->kind->ask(p, &page, &p->err);
            if (!p->answer)
                return p->err.status;
        }
        tinker_status s = tinker_future_wait(p->answer, timeout_ms, err);
        if (s != TINKER_OK && tinker_future_done(p->answer))
            p->err = *err;
        if (s != TINKER_OK)
            return s;
        open_answer(p);
    }
    return TINKER_OK;
}

/* A timeout is not the end: the request goes on, and the next call waits for it again. */
tinker_status tinker_pager_next(tinker_pager *p, int64_t timeout_ms, tinker_error *err)
{
    tinker_error mine; /* *err is written only on failure */
    while (p->err.status == TINKER_OK && !p->end) {
        tinker_status s = fetch_page(p, timeout_ms, &mine);
        if (s != TINKER_OK && p->err.status == TINKER_OK) {
            if (err)
                *err = mine;
            return s;
        }
        if (s != TINKER_OK)
            break;
        while (++p->at < p->n) {
            const char *id = p->kind->id(p->answer, p->at);
            if (was_seen(p, id))
                continue;
            if (remember_item(p, id) != TINKER_OK)
                break;
            p->fresh++;
            return TINKER_OK;
        }
        /* A service that ignores the offset would give the same page for ever.  Going back over
         * all that was seen costs at most twice as many items; more without a new one is a loop. */
        p->stale = p->fresh ? 0 : p->stale + p->n;
        if (p->stale > 2 * p->n_seen + (size_t)p->page.limit)
            err_set(&p->err, TINKER_EPROTOCOL, "the service gives the same items again and again");
        /* nothing but the item that was known: there is nothing behind it */
        p->end = p->last || (p->n <= 1 && p->fresh == 0);
        drop_answer(p);
    }
    drop_answer(p);
    if (p->err.status != TINKER_OK && err)
        *err = p->err;
    return p->err.status;
}

/* A reference for the caller: the pager and the caller free theirs in any order. */
tinker_future *tinker_pager_future(tinker_pager *p)
{
    if (p->reading || !p->answer)
        return NULL;
    future_ref(p->answer);
    return p->answer;
}

/* NULL: the pager has another kind of items, or stands on none. */
static const tinker_future *current_answer(const tinker_pager *p, const struct page_kind *kind)
{
    return p->kind == kind && p->reading && p->at < p->n ? p->answer : NULL;
}

const tinker_training_run *tinker_pager_training_run(const tinker_pager *p)
{
    const tinker_future *f = current_answer(p, &runs_kind);
    return f ? tinker_training_run_at(tinker_future_training_runs(f), p->at) : NULL;
}

const char *tinker_pager_session(const tinker_pager *p)
{
    const tinker_future *f = current_answer(p, &sessions_kind);
    return f ? tinker_future_strings(f)->v[p->at] : NULL;
}

const tinker_checkpoint *tinker_pager_checkpoint(const tinker_pager *p)
{
    const tinker_future *f = current_answer(p, &checkpoints_kind);
    return f ? tinker_checkpoint_at(tinker_future_checkpoints(f), p->at) : NULL;
}

/* ---- making --------------------------------------------------------------------------------- */

void tinker_pager_free(tinker_pager *p)
{
    if (!p)
        return;
    if (p->answer)
        tinker_future_cancel(p->answer);
    drop_answer(p);
    free(p->seen);
    free(p->project_id);
    free(p->run_id);
    free(p);
}

static tinker_pager *pager_new(tinker_rest *r, const struct page_kind *kind, const char *run_id,
                               const tinker_page *page, tinker_error *err)
{
    tinker_page ours = TINKER_PAGE_INIT;
    if (opts_copy(&ours, sizeof(ours), page, "tinker_page", err) != TINKER_OK)
        return NULL;
    if (ours.limit < 0 || ours.offset < 0 || ours.limit > 1000000) {
        err_set(err, TINKER_EINVAL,
                "limit and offset of a page must not be negative, and the "
                "limit at most 1000000");
        return NULL;
    }
    tinker_pager *p = calloc(1, sizeof(*p));
    char *project = p && ours.project_id ? strdup(ours.project_id) : NULL;
    char *run = p && run_id ? strdup(run_id) : NULL;
    if (!p || (ours.project_id && !project) || (run_id && !run)) {
        free(project);
        free(run);
        free(p);
        err_nomem(err, "list");
        return NULL;
    }
    p->rest = r;
    p->kind = kind;
    p->page = ours;
    p->page.limit = ours.limit ? ours.limit : PAGE_DEFAULT;
    p->page.project_id = p->project_id = project;
    p->run_id = run;
    p->first = ours.offset;
    p->step = p->page.limit;
    if (rand_os(&p->seed, sizeof(p->seed)) != 0)
        p->seed = 0;
    return p;
}

tinker_pager *tinker_rest_all_training_runs(tinker_rest *r, const tinker_page *page,
                                            tinker_error *err)
{
    return pager_new(r, &runs_kind, NULL, page, err);
}

tinker_pager *tinker_rest_all_sessions(tinker_rest *r, const tinker_page *page, tinker_error *err)
{
    return pager_new(r, &sessions_kind, NULL, page, err);
}

tinker_pager *tinker_rest_all_checkpoints(tinker_rest *r, const char *run_id,
                                          const tinker_page *page, tinker_error *err)
{
    return pager_new(r, &checkpoints_kind, run_id, page, err);
}
