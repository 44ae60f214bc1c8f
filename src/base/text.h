/* text.h - a tinker_text as the buffer it is made of.
 *
 * Both keep a NUL behind the end and come from the same allocator, so code that writes into a
 * struct buf can write into the caller's text without a copy. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <tinker/data.h>
#include "base/buf.h"

/* The text's memory as a buffer.  The text must not be used until text_from_buf() gave the memory,
 * which may have moved, back to it. */
struct buf text_to_buf(const tinker_text *t);
void text_from_buf(tinker_text *t, const struct buf *b);

#endif
