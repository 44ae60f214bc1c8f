/* number.h - numbers as text, with a point whatever the program's locale says.
 *
 * A host program may have called setlocale(); headers, JSON and metrics keep their point.
 * Thread safety: any thread, any time. */
#ifndef BASE_NUMBER_H
#define BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

enum { NUMBER_SIZE = 32 }; /* of any text below, with its NUL */

/* v with so many significant digits (at most 17), without zeros behind. */
void number_text(double v, int digits, char out[NUMBER_SIZE]);
/* All of s as a finite number; false: it is not one. */
bool number_read(const char *s, double *out);

#endif
