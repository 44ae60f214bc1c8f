/* grade_text.h - answers found in texts: numbers, letters, boxed expressions.
 *
 * Results are in the arena; "" when nothing was found, NULL when memory ran out. */
#ifndef RECIPE_GRADE_TEXT_H
#define RECIPE_GRADE_TEXT_H

#include <stdbool.h>
#include "base/arena.h"

/* The number that a text gives as its answer: boxed, behind ####, behind "answer is", bold, or the
 * last one. */
char *grade_find_number(struct arena *a, const char *text);
/* What an expected answer says: behind the last ####, without commas. */
char *grade_expected_number(struct arena *a, const char *text);
/* Equal as numbers, else as texts; nothing is equal to nothing. */
bool grade_equal_numbers(const char *found, const char *expected, double tolerance);
/* The letter, upper case, of `letters` that a text chooses; 0: none. */
char grade_find_letter(const char *text, const char *letters);
/* The content of the last \boxed{...}; NULL: none. */
char *grade_find_boxed(struct arena *a, const char *text);
/* Equal mathematical expressions, as far as rewriting of their LaTeX tells. */
bool grade_equal_boxed(struct arena *a, const char *found, const char *expected);

#endif
