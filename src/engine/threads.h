/* threads.h - the engine's own thread pool: fork, run slices, join.
 *
 * threads_run() calls job(arg, begin, end) over [0, n) cut at multiples of grain,
 * on all threads, and returns when all is done.  The calling thread takes part.
 * Which thread gets which slice varies; the slices' results must not depend on it.
 *
 * Thread safety: one thread at a time. */
#ifndef ENGINE_THREADS_H
#define ENGINE_THREADS_H

#include <stddef.h>

struct threads;
struct threads *threads_new(int count); /* >= 1; NULL: no memory */
void threads_free(struct threads *t);
int threads_count(const struct threads *t);
void threads_run(struct threads *t, size_t n, size_t grain,
                 void (*job)(void *arg, size_t begin, size_t end), void *arg);

/* The same with shorter last slices, for work whose slices cost nothing to begin: the threads
 * finish closer together.  With threads_run(), a token's products spent 4 % of their time waiting
 * for the slowest thread. */
void threads_run_fine(struct threads *t, size_t n, size_t grain,
                      void (*job)(void *arg, size_t begin, size_t end), void *arg);

/* Scratch memory for what the slices of the next run share: THREADS_MEMORY floats, aligned to 64
 * bytes.  The pool has one caller at a time, who may keep data there from one run to the next. */
enum { THREADS_MEMORY = (1 << 20) + (1 << 14) + (1 << 19) };
float *threads_memory(struct threads *t);

#endif
