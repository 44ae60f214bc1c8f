/* generator_pages.c - which sequences compute in a step, and the pages they need.
 *
 * Older sequences come first.  One that needs a page takes it, if need be, from the
 * youngest sequence, which then starts over when there is room; so the oldest always
 * finishes and memory that is too small for all costs time, not failures.  A sequence
 * without pages starts only when its length and one page for each running one fit,
 * and none overtakes it. */
#include "engine/generate/generator.h"

#include <string.h>

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
}

static struct kv_key key_of(const struct sequence *s, size_t page)
{
    const struct request *r = s->request;
    struct kv_key key;
    memset(&key, 0, sizeof key);
    if (r->adapter != NULL) {
        key.adapter = r->adapter->id;
        key.steps = r->steps;
    }
    key.parent = page == 0 ? 0 : s->pages[page - 1]->serial;
    memcpy(key.tokens, s->tokens + page * KV_BLOCK, sizeof key.tokens);
    return key;
}

static bool weights_changed(const struct request *r)
{
    return r->adapter != NULL && (uint64_t)r->adapter->steps != r->steps;
}

static void set_page(struct sequence *s, size_t i, struct kv_page *page)
{
    s->pages[i] = page;
    s->data[i] = page->data;
}

/* The page before the next one to publish has a name that a key can begin with. */
static bool is_chained(const struct sequence *s)
{
    return s->published == 0 || s->pages[s->published - 1]->serial != 0;
}

/* Up to where positions need not be computed: the logits of the one before a prompt token
 * that is to be scored are wanted, and always those of the last. */
static size_t reusable(const struct sequence *s)
{
    const struct request *r = s->request;
    if (weights_changed(r))
        return 0;
    return request_scores(r) && r->scored + 1 < r->n_prompt ? r->scored : s->len - 1;
}

void sequence_reuse_prefix(tinker_generator *g, struct sequence *s)
{
    if (s->computed % KV_BLOCK != 0 || s->published * KV_BLOCK != s->computed)
        return;
    while (is_chained(s) && s->computed + KV_BLOCK <= reusable(s)) {
        struct kv_key key = key_of(s, s->published);
        struct kv_page *page = kv_find(&g->kv, &key);
        if (page == NULL)
            return;
        if (s->published < s->n_pages)
            kv_unref(&g->kv, s->pages[s->published]);
        else
            s->n_pages++;
        set_page(s, s->published++, page);
        s->computed += KV_BLOCK;
        if (s->computed > s->reached) {
            s->request->cache_hits += s->request->forked ? 0 : KV_BLOCK;
            s->reached = s->computed;
        }
    }
}

void sequence_publish(tinker_generator *g, struct sequence *s)
{
    if (weights_changed(s->request))
        return;
    while (is_chained(s) && (s->published + 1) * KV_BLOCK <= s->computed) {
        struct kv_key key = key_of(s, s->published);
        set_page(s, s->published, kv_publish(&g->kv, s->pages[s->published], &key));
        s->published++;
    }
}

bool sequence_share_prompt(tinker_generator *g, struct sequence *to, const struct sequence *from)
{
    size_t positions = to->request->n_prompt, whole = positions / KV_BLOCK;
    struct kv_page *tail = NULL;
    if (positions % KV_BLOCK != 0) {
        tail = kv_take(&g->kv);
        if (tail == NULL)
            return false;
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

/* Take the pages of the youngest sequence after `keeper`; false: there is none. */
static bool evict_younger(tinker_generator *g, size_t keeper)
{
    for (size_t i = g->n_active; i-- > keeper + 1;) {
        if (g->active[i]->n_pages > 0) {
            sequence_release(g, g->active[i]);
            return true;
        }
    }
    return false;
}

static bool grow(tinker_generator *g, size_t at, size_t positions)
{
    struct sequence *s = g->active[at];
    while (s->n_pages < pages_for(positions)) {
        struct kv_page *page = kv_take(&g->kv);
        if (page != NULL)
            set_page(s, s->n_pages++, page);
        else if (!evict_younger(g, at))
            return false;
    }
    return true;
}

/* Pages it will want soon beyond those it has: its known tokens and the next page. */
static size_t still_to_come(const struct sequence *s)
{
    return pages_for(s->len) + 1 - s->n_pages;
}

void generator_schedule(tinker_generator *g)
{
    size_t prefill = GENERATOR_PREFILL, reserved = 0;
    bool blocked = false;
    g->n_work = 0;
    for (size_t i = 0; i < g->n_active; i++) {
        struct sequence *s = g->active[i];
        if (s->done || s->request->canceled || s->request->error.status != TINKER_OK)
            continue;
        if (s->n_pages == 0 && g->n_work > 0 &&
            (blocked || kv_available(&g->kv) < still_to_come(s) + reserved)) {
            blocked = true;
            continue;
        }
        if (s->len - s->computed > 1)
            sequence_reuse_prefix(g, s);
        bool prompt = s->len - s->computed > 1;
        size_t rows = prompt && s->len - s->computed > prefill ? prefill : s->len - s->computed;
        if (rows == 0)
            continue; /* the step's share of prompts is used up */
        if (!grow(g, i, s->computed + rows)) {
            if (g->n_work == 0)
                request_fail(s->request, TINKER_ENOMEM, "no memory for keys and values");
            continue;
        }
        prefill -= prompt ? rows : 0;
        reserved += still_to_come(s);
        g->work[g->n_work++] = (struct work){ s, rows };
    }
}
