/* tok_decode_slots.c - decoding long lists of ids, with one memory access a token.
 *
 * A table holds for each id its text and length in 16 bytes, which are copied whole; the length
 * says how many of them count.  An id that does not fit (longer text, special, a byte token, no
 * token at all) is marked and takes the careful way.  The table is made when a tokenizer has
 * decoded enough to make up for it, and never changes.
 *
 * Most tokens are UTF-8 on their own, and what is put together from such is UTF-8.  Of a byte-level
 * result only the runs with others among them, parts of characters, need to be looked at.  A run is
 * made of whole blocks of tokens, so that the loop over a block need not ask. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/utf8.h"
#include "tokenizer/tok_decode.h"
#include "unicode/unicode.h"

enum { SLOT_TEXT = 15, SLOT_PART = 16, SLOT_ODD = 128 };
enum {
    BLOCK = 128,          /* ids that are copied before anybody looks at them */
    AHEAD = 64,           /* ids; how far prefetches run ahead */
    WORTH_A_TABLE = 32768 /* ids that were decoded without one */
};
#define NO_RUN SIZE_MAX

struct tok_slot {
    char text[SLOT_TEXT];
    uint8_t n; /* | SLOT_PART: not UTF-8 on its own; SLOT_ODD: not here */
};
_Static_assert(sizeof(struct tok_slot) == 16, "copied as one");

struct decoding {
    const tinker_tokenizer *t;
    const int32_t *ids;
    size_t i, n;
    const tinker_decode_options *o;
    struct buf *out;
    size_t run; /* where in out the open run with parts starts, or NO_RUN */
    bool sound; /* what was appended before it is UTF-8 */
    tinker_error *err;
};

/* ---- the table ------------------------------------------------------------------------------- */

/* What an id stands for, if 16 bytes can say it. */
static void fill_slot(const tinker_tokenizer *t, uint32_t id, struct tok_slot *slot,
                      struct buf *scratch)
{
    size_t n;
    const char *p = bpe_bytes(&t->bpe, id, &n);
    slot->n = SLOT_ODD;
    if ((t->bpe.flags[id] & (BPE_TOKEN | BPE_SPECIAL)) != BPE_TOKEN)
        return;
    if (!t->bpe.byte_level) {
        if (tok_byte_token(p, n) >= 0)
            return;
        buf_reset(scratch);
        tok_put_meta(scratch, p, n, &t->decs[0]);
        p = scratch->data;
        n = scratch->len;
    }
    if (n > SLOT_TEXT || !buf_ok(scratch))
        return;
    if (n > 0)
        memcpy(slot->text, p, n);
    slot->n = (uint8_t)(utf8_valid_prefix(p, n) == n ? n : SLOT_PART | n);
}

/* The table, or NULL when it is not worth its while, or there is no memory: then without. */
static const struct tok_slot *find_slots(const tinker_tokenizer *t, size_t n)
{
    tinker_tokenizer *shared = (tinker_tokenizer *)(uintptr_t)t; /* the table has the lock */
    const struct tok_slot *slots = atomic_load_explicit(&shared->slots, memory_order_acquire);
    if (slots)
        return slots;
    if (atomic_fetch_add(&shared->decoded, n) + n < WORTH_A_TABLE)
        return NULL;
    pthread_mutex_lock(&shared->lock);
    if (!atomic_load(&shared->slots)) { /* else another thread was faster */
        struct buf scratch;
        struct tok_slot *made =
            os_map_new(&shared->slot_map, ((size_t)t->bpe.n_ids + 1) * sizeof(*made));
        buf_init(&scratch, SIZE_MAX);
        for (uint32_t id = 0; made && id < t->bpe.n_ids; id++)
            fill_slot(t, id, &made[id], &scratch);
        buf_clear(&scratch);
        atomic_store(&shared->slots, made);
    }
    pthread_mutex_unlock(&shared->lock);
    return atomic_load(&shared->slots);
}

/* ---- ids that are not in the table ------------------------------------------------------------- */

/* The open run is complete: whole characters follow.  Look at it. */
static void close_run(struct decoding *d)
{
    size_t n = d->out->len - d->run;
    if (d->run == NO_RUN || !buf_ok(d->out))
        return;
    d->sound = d->sound && uni_valid_prefix(d->out->data + d->run, n) == n;
    d->run = NO_RUN;
}

/* The byte-level token at d->i, the careful way. */
static tinker_status decode_odd_bytes(struct decoding *d)
{
    bool use;
    size_t n;
    int32_t id = d->ids[d->i++];
    tinker_status status = tok_use_id(d->t, id, d->o, &use, d->err);
    if (status != TINKER_OK || !use)
        return status;
    const char *p = bpe_bytes(&d->t->bpe, (uint32_t)id, &n);
    if (utf8_valid_prefix(p, n) == n) /* a run of parts of characters ends, or begins */
        close_run(d);
    else if (d->run == NO_RUN)
        d->run = d->out->len;
    buf_append(d->out, p, n);
    return TINKER_OK;
}

/* The token at d->i and, when it is a byte token, those behind it that are byte tokens too: how
 * they read is known only at the end of the run. */
static tinker_status decode_odd_meta(struct decoding *d)
{
    struct buf run;
    tinker_status status = TINKER_OK;
    buf_init(&run, SIZE_MAX);
    for (; d->i < d->n && status == TINKER_OK; d->i++) {
        bool use;
        size_t n;
        status = tok_use_id(d->t, d->ids[d->i], d->o, &use, d->err);
        if (status != TINKER_OK || !use)
            continue;
        const char *p = bpe_bytes(&d->t->bpe, (uint32_t)d->ids[d->i], &n);
        int byte = tok_byte_token(p, n);
        if (byte < 0 && run.len > 0)
            break;
        if (byte < 0) {
            tok_put_meta(d->out, p, n, &d->t->decs[0]);
            d->i++;
            break;
        }
        buf_putc(&run, (char)byte);
    }
    if (run.len > 0)
        tok_put_byte_run(d->out, run.data, run.len);
    if (run.failed)
        d->out->failed = true;
    buf_clear(&run);
    return status;
}

/* ---- all ids --------------------------------------------------------------------------------- */

/* Ask for the slot of an id; whatever number it is, that does no harm. */
static inline void prefetch_slot(const struct tok_slot *slots, int32_t id)
{
    __builtin_prefetch((const void *)((uintptr_t)slots + (uint32_t)id * sizeof(*slots)));
}

/* Copy the tokens of ids[0..n), for which there is room; *soon are ids that come later.  Stops at one
 * that is not in the table; returns how many were copied.  *kinds: the lengths, or-ed. */
static size_t copy_tokens(const struct tok_slot *slots, uint32_t n_ids, const int32_t *ids,
                          const int32_t *soon, size_t n, char **out, unsigned *kinds)
{
    char *at = *out;
    unsigned all = 0;
    size_t i = 0;
    for (; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        prefetch_slot(slots, soon[i]);
        if (id >= n_ids)
            break;
        unsigned len = slots[id].n; /* copy first, ask later: one branch a token */
        memcpy(at, &slots[id], sizeof(*slots));
        if (len >= SLOT_ODD)
            break;
        all |= len;
        at += len & SLOT_TEXT;
    }
    *out = at;
    *kinds = all;
    return i;
}

/* Up to BLOCK ids, for which room is made; false: the next one is not in the table. */
static bool copy_block(struct decoding *d, const struct tok_slot *slots)
{
    /* The last AHEAD ids are a block of their own, with nothing left to prefetch. */
    size_t left = d->n - d->i, n = left > AHEAD ? left - AHEAD : left;
    const int32_t *ids = d->ids + d->i, *soon = left > AHEAD ? ids + AHEAD : ids;
    n = n < BLOCK ? n : BLOCK;
    /* every slot is copied whole, so there is room for one more than counts */
    if (!buf_reserve(d->out, (n + 1) * sizeof(*slots)))
        return true; /* out says that it failed */
    char *at = d->out->data + d->out->len;
    unsigned kinds;
    size_t done = copy_tokens(slots, d->t->bpe.n_ids, ids, soon, n, &at, &kinds);
    if (!(kinds & SLOT_PART)) /* whole characters only */
        close_run(d);
    else if (d->run == NO_RUN)
        d->run = d->out->len;
    d->out->len = (size_t)(at - d->out->data);
    d->i += done;
    return done == n;
}

bool tok_decode_slots(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                      const tinker_decode_options *o, struct buf *out, bool *sound,
                      tinker_status *status, tinker_error *err)
{
    /* Blocks from the table; each id that is not in it, the careful way. */
    const struct tok_slot *slots = n > 0 ? find_slots(t, n) : NULL;
    struct decoding d = {
        .t = t, .ids = ids, .n = n, .o = o, .out = out, .run = NO_RUN, .sound = true, .err = err
    };
    if (!slots)
        return false;
    *status = TINKER_OK;
    for (size_t i = 0; i < n && i < AHEAD; i++)
        prefetch_slot(slots, ids[i]);
    while (d.i < n && *status == TINKER_OK && buf_ok(out))
        if (!copy_block(&d, slots))
            *status = t->bpe.byte_level ? decode_odd_bytes(&d) : decode_odd_meta(&d);
    close_run(&d);
    if (*status == TINKER_OK && !buf_ok(out))
        *status = err_nomem(err, "text");
    if (out->data)
        out->data[out->len] = '\0';
    *sound = d.sound;
    return true;
}
