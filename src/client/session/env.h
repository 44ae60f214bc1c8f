/* env.h - reading the environment the one way this library does.
 *
 * Values are trimmed; a blank one counts as unset.  Some TINKER_ names have an alias with
 * the prefix TINKEX_, which counts when the TINKER_ one is unset. */
#ifndef CLIENT_ENV_H
#define CLIENT_ENV_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"
#include "http/http.h"

/* The trimmed value, a copy in the arena; NULL: unset. */
const char *env_text(struct arena *a, const char *name);
bool env_truthy(const char *value); /* 1, true, yes, on in any case */
bool env_falsey(const char *value); /* 0, false, no, off in any case */
bool env_flag(struct arena *a, const char *name, bool dflt);
int64_t env_positive(struct arena *a, const char *name, int64_t dflt); /* else: dflt */
int64_t env_whole(struct arena *a, const char *name, int64_t dflt);    /* zero allowed */
/* Comma-separated words: trimmed, blank ones dropped, first of equals kept. */
bool env_words(struct arena *a, const char *value, const char ***out, size_t *n);
/* {"name": value, …}, values as text; malformed: none.  false: no memory. */
bool env_json_object(struct arena *a, const char *json, struct http_header **out, size_t *n);
/* [["name", "value"], …] */
bool env_json_pairs(struct arena *a, const char *json, struct http_header **out, size_t *n);

#endif
