/* array.h - the two macros over arrays and structs that every folder may use. */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include <stddef.h>

/* Number of elements of an array (never of a pointer). */
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* The struct of `type` whose `member` p points to. */
#define container_of(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

#endif
