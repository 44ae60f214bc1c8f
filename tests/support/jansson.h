/* jansson.h - libjansson beside our own json.h, which uses some of the same names.
 *
 * Their versions of those are declared under other names and are not called. */
#ifndef SUPPORT_JANSSON_H
#define SUPPORT_JANSSON_H

#define JSON_OBJECT JANSSON_OBJECT
#define JSON_ARRAY  JANSSON_ARRAY
#define JSON_STRING JANSSON_STRING
#define JSON_NULL   JANSSON_NULL
#define json_null   jansson_null
#define json_string jansson_string
#include <jansson.h>
#undef JSON_OBJECT
#undef JSON_ARRAY
#undef JSON_STRING
#undef JSON_NULL
#undef json_null
#undef json_string

#endif
