/* weights.h - what `tinker weights` and `tinker checkpoint` share. */
#ifndef CLI_WEIGHTS_H
#define CLI_WEIGHTS_H

#include <stdbool.h>

/* Check the adapter of a directory or checkpoint, with_base also against its base model (base NULL:
 * what the adapter says), and print the result.  The exit status. */
int weights_verify(const char *where, const char *base, bool with_base);

#endif
