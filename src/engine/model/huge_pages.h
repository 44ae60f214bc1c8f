/* huge_pages.h - large pages, afterwards, for memory that is read from end to end again and again.
 *
 * A token reads all weights; in pages of 4 KB a seventh of its time goes into finding them.  To
 * ask for large pages when the memory is made costs a start up to seconds, for the system has to
 * free them first.  So a thread of its own asks when the weights are there, piece by piece, and
 * ends.  The bytes stay what they are, for readers and writers alike. */
#ifndef ENGINE_HUGE_PAGES_H
#define ENGINE_HUGE_PAGES_H

#include <stddef.h>

struct huge_pages;

/* Begin with p[0..n), which must outlive the result.  NULL: too little to be worth it, or there
 * is no thread; nothing is lost. */
struct huge_pages *huge_pages_start(void *p, size_t n);
/* Until all that can be large is.  NULL: at once. */
void huge_pages_wait(struct huge_pages *pages);
/* Stop, after the piece that is under way. */
void huge_pages_free(struct huge_pages *pages);

#endif
