/* fake_faulty.h - a Tinker service that goes wrong, and remembers what it executed.
 *
 * It drops, delays, truncates and repeats its answers and sends error statuses, before or
 * after the work was done.  Submissions are known by model and number, changes by their
 * idempotency key, so a repeated request finds its first execution.  The requests must
 * carry the number of the caller's operation (see fake_faulty.c): with it the service
 * notices work that is done twice, out of order, or under another's number.
 *
 * Thread safety: plain data; read it when the server has stopped. */
#ifndef SUPPORT_FAKE_FAULTY_H
#define SUPPORT_FAKE_FAULTY_H

#include <stdatomic.h>
#include "base/map.h"
#include "base/rand.h"
#include "support/fake_server.h"

enum { FAULTY_KINDS = 10 };

struct faulty {
    struct rng rng;
    atomic_int percent;        /* the test may change it */
    bool strict;               /* nothing runs before all lower numbers of its model are there */
    const char *config;        /* answer of client/config */
    struct map jobs, executed; /* jobs by model and number; executed: parts of operations */
    struct map keys;           /* idempotency keys of changes that were made */
    struct map order;          /* model: its last operation */
    struct map numbers;        /* model: its highest number */
    struct faulty_job **by_id;
    size_t n_jobs, cap;
    int n_models, n_samplers;
    long requests, faults[FAULTY_KINDS];
    long repeats;      /* submissions that were known already */
    long twice;        /* parts of an operation that were executed again */
    long out_of_order; /* first submissions after those of a later operation */
    long changed;      /* repeats with another content */
    long fillers;      /* of numbers that the client found unused */
    uint64_t weights;  /* a digest of the training that was executed: models, numbers, contents */
};

void faulty_init(struct faulty *f, uint64_t seed, int percent, const char *config);
void faulty_clear(struct faulty *f);
void faulty_answer(void *faulty, const struct fake_request *r, struct fake_reply *out);
long faulty_faults(const struct faulty *f);
/* Numbers below the highest of their model that never came: a strict service waits for them. */
long faulty_missing(struct faulty *f);

#endif
