/* seq_gap.h - request numbers of a training client that no request used, and filling them.
 *
 * Numbers are given when a call is made; the service runs them in order and without gaps.
 * A request that ends before it is accepted (canceled, refused on the way, a custom loss
 * that failed) leaves its number behind, and everything after it would wait for that.  The
 * next request of the client therefore fills the gaps before it is sent; without a next
 * request nobody waits, and nothing is sent.
 *
 * The filler is a forward pass over one token with weight 0: a plain request that every
 * service knows.  It leaves no gradient, not even where forward_only is ignored.  If the
 * request that ended did reach the service, its number is taken, the filler is refused,
 * and that is just as well.  Its result is not asked for.
 *
 * Runs on the loop thread. */
#ifndef CLIENT_SEQ_GAP_H
#define CLIENT_SEQ_GAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

struct call;
struct tinker_training;

/* Numbers that are to be filled, as ranges in no order: thousands may be canceled at once. */
struct seq_gaps {
    struct seq_gap_range {
        int64_t first, last;
    } * v;
    size_t n, room;
};

bool seq_gaps_add(struct seq_gaps *g, int64_t seq); /* false: no memory */
bool seq_gaps_take(struct seq_gaps *g, int64_t *seq);
void seq_gaps_clear(struct seq_gaps *g);

struct seq_gap_fill;

/* All gaps have been tried.  failed is NULL, or the call whose error (a service that cannot be
 * reached, after all retries) would meet the next request as well.  The fill may be freed. */
typedef void seq_gap_fill_done(struct seq_gap_fill *f, void *owner, const struct call *failed);

/* Fill the gaps of t.  NULL: no memory.  done comes later, never from here. */
struct seq_gap_fill *seq_gap_fill_start(struct tinker_training *t, seq_gap_fill_done *done,
                                        void *owner);
/* Stop, and keep what is not filled for the next.  f may be NULL. */
void seq_gap_fill_free(struct seq_gap_fill *f);

#endif
