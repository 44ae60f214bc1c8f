/* utf8.h - UTF-8, strictly: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the longest valid prefix of s[0..n); n when all is valid. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* Decode one code point at s[0..n), n > 0: its length 1..4, or 0 when invalid. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Encode cp; returns 1..4.  cp must be valid. */
int utf8_encode(uint32_t cp, char out[4]);

#endif
