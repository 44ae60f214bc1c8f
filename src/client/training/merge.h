/* merge.h - one result out of the results of a batch that was sent in chunks.
 * Pure functions; the result refers to the arena and to the parts. */
#ifndef CLIENT_MERGE_H
#define CLIENT_MERGE_H

#include <stdint.h>
#include <tinker/data.h>
#include "base/arena.h"
#include "base/log.h"

/* Outputs in order of the parts; metrics merged by the suffix of their name, over the
 * names that every part has.  log (may be NULL) hears about dropped ones. */
tinker_status merge_results(const tinker_forward_backward *const *parts, size_t n,
                            struct arena *arena, tinker_forward_backward *out,
                            const struct log *log, tinker_error *err);

/* The reference's hash of a tuple of integers, independent of their order: values are
 * cut to integers first.  v is sorted in place. */
int64_t merge_hash_unordered(double *v, size_t n);

#endif
