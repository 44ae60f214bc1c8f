/* generator_pages.c - which sequences compute in a step, and the pages they need.
 *
 * Older sequences come first.  One that needs a page takes it, if need be, from the
 * youngest sequence, which then starts over when there is room; so the oldest always
 * finishes and memory that is too small for all costs time, not failures.  A sequence
 * without pages starts only when its length and one page for each running one fit,
 * and none overtakes it. */
#include "engine/generate/generator.h"

#include <stdlib.h>
#include <string.h>
#include "base/clock.h"

static size_t pages_for(size_t positions)
{
    return (positions + KV_BLOCK - 1) / KV_BLOCK;
}

void sequence_release(tinker_generator *g, struct sequence *s)
{
    /* The last page first: what others are likely to share leaves the cache last. */
    while (s->n_pages > 0)
        kv_unref(&g->kv, s->pages[--s->n_pages]);
    s->computed = 0;
    s->published = 0;
    if (s->state != NULL)
        kv_unhold(&g->kv, g->state_pages);
    free(s->state);
    s->state = NULL;
}

/* A sequence of a model with delta layers has a state as long as it has pages; it is counted as
 * pages.  It need not be cleared: a sequence that starts does not read it. */
static bool take_state(tinker_generator *g, struct sequence *s)
{
    if (g->state_floats == 0 || s->state != NULL)
        return true;
    if (!kv_hold(&g->kv, g->state_pages))
        return false;
    s->state = aligned_alloc(64, (g->state_floats * sizeof(float) + 63) / 64 * 64);
    if (s->state == NULL)
        kv_unhold(&g->kv, g->state_pages);
    return s->state != NULL;
}

/* The name of a full page: who may share it, weights, the page before it, and its own tokens.  By induction over
 * the parent two pages of the same key hold the same bits.  Padding is zeroed because keys are
 * compared byte by byte. */
static struct kv_key page_key(const struct sequence *s, size_t page)
{
    const struct request *r = s->request;
    struct kv_key key;
    memset(&key, 0, sizeof key);
    key.scope = r->cache_scope;
    if (r->adapter != NULL) {
        key.adapter = r->adapter->id;
        key.steps = r->steps;
    }
    key.is_long = r->is_long;
    key.parent = page == 0 ? 0 : s->pages[page - 1]->serial;
    memcpy(key.tokens, s->tokens + page * KV_BLOCK, sizeof key.tokens);
    return key;
}

/* A state is only known at the position that a sequence has reached, so that pages of a model with
 * delta layers cannot be continued by another sequence. */
static bool can_share(const tinker_generator *g)
{
    return g->state_floats == 0;
}

/* Was the adapter trained since the request came?  Then positions are computed with other weights
 * than page_key() names: they must neither be published nor taken from the cache. */
static bool weights_changed(const struct request *r)
{
    return r->adapter != NULL && (uint64_t)r->adapter->steps != r->steps;
}

/* data[] is what attention reads, pages[] what counts references; both always name the same
 * page. */
static void set_page(struct sequence *s, size_t i, struct kv_page *page)
{
    s->pages[i] = page;
    s->data[i] = page->data;
}

/* Is the page before the next one published (it may have failed for lack of memory)?  Its serial
 * is part of the next key. */
static bool parent_is_published(const struct sequence *s)
{
    return s->published == 0 || s->pages[s->published - 1]->serial != 0;
}

void sequence_reuse_prefix(tinker_generator *g, struct sequence *s)
{
    struct request *r = s->request;
    if (!can_share(g))
        return;
    /* whole pages only: a page that was begun must be computed to its end */
    if (s->computed % KV_BLOCK != 0 || s->published * KV_BLOCK != s->computed || weights_changed(r))
        return;
    /* Positions before `limit` may come from the cache.  The logits of the last known token are
     * always needed, and those before each prompt token that is still to be scored. */
    size_t limit = request_scores(r) && r->scored + 1 < r->n_prompt ? r->scored : s->len - 1;
    while (parent_is_published(s) && s->computed + KV_BLOCK <= limit) {
        struct kv_key key = page_key(s, s->published);
        struct kv_page *page = kv_find(&g->kv, &key);
        if (page == NULL)
            return;
        /* a page taken earlier for these positions, but not computed yet, goes back */
        if (s->published < s->n_pages)
            kv_unref(&g->kv, s->pages[s->published]);
        else
            s->n_pages++;
        set_page(s, s->published++, page);
        s->computed += KV_BLOCK;
        /* cache hits of the prompt are counted once, not again after an eviction */
        if (s->computed > s->reached) {
            r->cache_hits += r->forked ? 0 : KV_BLOCK;
            s->reached = s->computed;
        }
    }
}

/* Publish pages that have become full; kv_publish() may replace one by an equal, older page. */
void sequence_publish(tinker_generator *g, struct sequence *s)
{
    if (weights_changed(s->request) || !can_share(g))
        return;
    while (parent_is_published(s) && (s->published + 1) * KV_BLOCK <= s->computed) {
        struct kv_key key = page_key(s, s->published);
        set_page(s, s->published, kv_publish(&g->kv, s->pages[s->published], &key));
        s->published++;
    }
}

/* Full pages never change and are shared; the partial last one is copied, because each sample
 * appends its own tokens to it.  False: no page for the copy. */
bool sequence_share_prompt(tinker_generator *g, struct sequence *to, const struct sequence *from)
{
    size_t positions = to->request->n_prompt, whole = positions / KV_BLOCK;
    struct kv_page *tail = NULL;
    if (!take_state(g, to))
        return false;
    if (to->state != NULL)
        memcpy(to->state, from->state, g->state_floats * sizeof(float));
    if (positions % KV_BLOCK != 0) {
        tail = kv_take(&g->kv);
        if (tail == NULL) {
            sequence_release(g, to);
            return false;
        }
        memcpy(tail->data, from->data[whole], g->kv.page_floats * sizeof(float));
    }
    for (size_t i = 0; i < whole; i++) {
        kv_ref(from->pages[i]);
        set_page(to, i, from->pages[i]);
    }
    if (tail != NULL)
        set_page(to, whole, tail);
    to->n_pages = pages_for(positions);
    to->published = from->published < whole ? from->published : whole;
    to->computed = positions;
    return true;
}

/* Give active[at] pages for so many positions.  When none is left, the youngest sequence behind it
 * loses all of its pages and starts over later; false when there is nobody younger. */
static bool take_pages(tinker_generator *g, size_t at, size_t positions)
{
    struct sequence *s = g->active[at];
    while (s->n_pages < pages_for(positions)) {
        struct kv_page *page = take_state(g, s) ? kv_take(&g->kv) : NULL;
        if (page != NULL) {
            set_page(s, s->n_pages++, page);
            continue;
        }
        /* From the youngest up, skipping those that hold nothing. */
        size_t victim = g->n_active - 1;
        while (victim > at && g->active[victim]->n_pages == 0)
            victim--;
        if (victim <= at)
            return false;
        sequence_release(g, g->active[victim]);
    }
    return true;
}

/* Pages it will want soon beyond those it has: its known tokens and the next page. */
static size_t pages_to_come(const tinker_generator *g, const struct sequence *s)
{
    return pages_for(s->len) + 1 - s->n_pages + (s->state == NULL ? g->state_pages : 0);
}

uint64_t generator_reserve(const tinker_generator *g, uint64_t pages, uint64_t kept)
{
    if (pages > g->kv.limit) /* beyond that sequences wait for each other */
        pages = g->kv.limit;
    return pages * g->kv.page_floats * sizeof(float) + kept;
}

void generator_account(tinker_generator *g)
{
    g->budget.held = kv_bytes(&g->kv) + g->kept;
    g->budget.reserved = generator_reserve(g, g->page_needs, g->kept);
}

/* Pages that may have memory in this step: what passes leave now, cached prefixes included. */
static void update_page_limit(tinker_generator *g)
{
    generator_account(g);
    uint64_t share = budget_share(g->engine, &g->budget);
    uint64_t pages =
        (share - (share > g->kept ? g->kept : share)) / (g->kv.page_floats * sizeof(float));
    g->kv.most = pages > SIZE_MAX / 2 ? SIZE_MAX / 2 : (size_t)pages;
    g->kv.now_ns = clock_now_ns(clock_real());
    if (g->kv.pages + g->kv.held > g->kv.most)
        kv_shrink(&g->kv, g->kv.pages + g->kv.held - g->kv.most);
}

/* So many guessed tokens of s at most: none for one that has not begun to draw, and no position
 * beyond the last that may come to be computed. */
static size_t draft_room(const struct sequence *s)
{
    const struct request *r = s->request;
    if (!r->forked || s->len - s->computed != 1)
        return 0;
    size_t left = r->n_prompt + r->max_new - s->len - 1;
    return left < DRAFT_MAX ? left : DRAFT_MAX;
}

/* Pages for n guessed tokens of s, of those that nobody else will want soon; how many tokens they
 * suffice for. */
static size_t take_draft_pages(tinker_generator *g, struct sequence *s, size_t n, size_t reserved)
{
    while (s->n_pages < pages_for(s->len + n)) {
        struct kv_page *page = kv_available(&g->kv) > reserved ? kv_take(&g->kv) : NULL;
        if (page == NULL)
            return s->n_pages * KV_BLOCK - s->len;
        set_page(s, s->n_pages++, page);
    }
    return n;
}

/* Let sequences that decode guess, as long as the rows of the step stay few: they read the same
 * weights.  A state cannot be taken back, so models with delta layers do not guess. */
static void schedule_drafts(tinker_generator *g, size_t reserved)
{
    size_t rows = 0;
    size_t most = g->logit_rows < GENERATOR_DRAFTS ? g->logit_rows : GENERATOR_DRAFTS;
    for (size_t i = 0; i < g->n_work; i++)
        rows += g->work[i].rows;
    if (g->n_work == 0 || rows >= most || g->state_floats > 0 || g->engine->opts.no_drafts)
        return;
    size_t each = (most - rows) / g->n_work;
    for (size_t i = 0; i < g->n_work; i++) {
        struct work *w = &g->work[i];
        size_t n = draft_room(w->sequence);
        n = n < each ? n : each;
        if (n == 0)
            continue;
        size_t length = draft_length(&w->sequence->drafts);
        n = n < length ? n : length;
        n = draft_tokens(w->sequence->tokens, w->sequence->len, w->sequence->draft, n);
        w->drafted = take_draft_pages(g, w->sequence, n, reserved);
        w->rows += w->drafted;
    }
}

void generator_schedule(tinker_generator *g)
{
    update_page_limit(g);
    size_t prefill = GENERATOR_PREFILL, reserved = 0;
    bool blocked = false;
    g->n_work = 0;
    for (size_t i = 0; i < g->n_active; i++) {
        struct sequence *s = g->active[i];
        if (s->done || s->request->canceled || s->request->error.status != TINKER_OK)
            continue;
        /* A sequence without pages waits until its own pages and one more for every running
         * sequence are available, else it would soon be evicted.  Those behind it wait, too:
         * first come, first served.  When nothing else runs, it starts in any case. */
        if (s->n_pages == 0 && g->n_work > 0 &&
            (blocked || kv_available(&g->kv) < pages_to_come(g, s) + reserved)) {
            blocked = true;
            continue;
        }
        if (s->len - s->computed > 1)
            sequence_reuse_prefix(g, s);
        /* more than one position to compute: a prompt, or starting over; limited per step so that
         * decoding sequences need not wait long for their next token */
        bool prompt = s->len - s->computed > 1;
        size_t rows = prompt && s->len - s->computed > prefill ? prefill : s->len - s->computed;
        if (rows == 0)
            continue; /* the step's share of prompts is used up */
        if (!take_pages(g, i, s->computed + rows)) {
            /* The oldest one fails only when malloc() does: limit_new_tokens() saw to the rest. */
            if (g->n_work == 0)
                request_fail(s->request, TINKER_ENOMEM, "no memory for keys and values");
            continue;
        }
        prefill -= prompt ? rows : 0;
        reserved += pages_to_come(g, s);
        g->work[g->n_work++] = (struct work){ .sequence = s, .rows = rows };
    }
    schedule_drafts(g, reserved);
}
