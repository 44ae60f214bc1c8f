/* string_match.h - find any of many strings in a text that comes byte by byte (Aho-Corasick).
 *
 * A byte costs the same whatever the number of strings: the state is the longest end of the text so
 * far that begins one of them.
 *
 * Thread safety: made by one thread, then read by any. */
#ifndef SERVER_STRING_MATCH_H
#define SERVER_STRING_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct string_match;

/* NULL: no memory.  The strings are copied; none is empty. */
struct string_match *string_match_new(const char *const *strings, size_t n);
void string_match_free(struct string_match *m);
/* The state after one more byte; 0 is the state of an empty text. */
uint32_t string_match_next(const struct string_match *m, uint32_t state, unsigned char byte);
/* Does one of the strings end here? */
bool string_match_is_end(const struct string_match *m, uint32_t state);

#endif
