/* huge_pages.h - move memory that is already in use into huge pages.
 *
 * Every token reads all weights; with pages of 4 KB a seventh of that time goes into address
 * translation.  Asking for huge pages at allocation can delay the start by seconds, because the
 * system has to free them first.  So a background thread asks once the weights are there, piece
 * by piece, and ends.  Contents and addresses stay the same for readers and writers. */
#ifndef ENGINE_HUGE_PAGES_H
#define ENGINE_HUGE_PAGES_H

#include <stddef.h>

struct huge_pages;

/* Start with p[0..n), which must outlive the result.  NULL: too little memory to be worth it, or
 * no thread could be started; the memory works as before. */
struct huge_pages *huge_pages_start(void *p, size_t n);
/* Wait until the thread is done.  pages may be NULL. */
void huge_pages_wait(struct huge_pages *pages);
/* Stop the thread after its current piece and wait for it. */
void huge_pages_free(struct huge_pages *pages);

#endif
