/* env.c - see env.h.  Called from config.c only, in the thread that makes a service. */
#include "client/session/env.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/array.h"
#include "json/json.h"

/* Settings that the Elixir client reads as TINKEX_<name>: accepted under that name, too, so that its
 * users need not change their environment.  The documented TINKER_<name> wins. */
static const char *const aliased[] = {
    "TINKER_DEFAULT_HEADERS", "TINKER_DEFAULT_QUERY", "TINKER_DUMP_HEADERS",  "TINKER_MAX_RETRIES",
    "TINKER_OTEL_PROPAGATE",  "TINKER_PARITY",        "TINKER_POLL_BACKOFF",  "TINKER_POOL_COUNT",
    "TINKER_POOL_SIZE",       "TINKER_PROXY",         "TINKER_PROXY_HEADERS", "TINKER_TIMEOUT"
};

/* A copy without blanks at both ends; NULL: nothing is left, or no memory (arena.failed says so). */
static const char *copy_trimmed(struct arena *a, const char *s, size_t n)
{
    while (n > 0 && isspace((unsigned char)*s))
        s++, n--;
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        n--;
    return n > 0 ? arena_strndup(a, s, n) : NULL;
}

/* The value without blanks at both ends; a blank value counts as unset. NULL: unset. */
const char *env_text(struct arena *a, const char *name)
{
    const char *value = getenv(name);
    bool blank = !value || !value[strspn(value, " \t\r\n\v\f")];
    for (size_t i = 0; blank && i < ARRAY_LEN(aliased); i++)
        if (strcmp(name, aliased[i]) == 0) {
            char alias[40];
            snprintf(alias, sizeof(alias), "TINKEX_%s", name + strlen("TINKER_"));
            value = getenv(alias);
        }
    return value ? copy_trimmed(a, value, strlen(value)) : NULL;
}

static bool is_one_of(const char *value, const char *const words[4])
{
    for (int i = 0; value && i < 4; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

/* The words that Python programs usually take; anything else is neither true nor false. */
bool env_truthy(const char *value)
{
    static const char *const words[] = { "1", "true", "yes", "on" };
    return is_one_of(value, words);
}

bool env_falsey(const char *value)
{
    static const char *const words[] = { "0", "false", "no", "off" };
    return is_one_of(value, words);
}

/* A default of true is only undone by a clear "no": a typing error does not switch things off. */
bool env_flag(struct arena *a, const char *name, bool dflt)
{
    const char *value = env_text(a, name);
    return env_truthy(value) || (dflt && !env_falsey(value));
}

/* At most 15 digits, so that no number overflows; anything else counts as unset. */
int64_t env_whole(struct arena *a, const char *name, int64_t dflt)
{
    const char *value = env_text(a, name);
    if (!value || strspn(value, "0123456789") != strlen(value) || strlen(value) > 15)
        return dflt;
    return strtoll(value, NULL, 10);
}

/* 0 counts as unset here: these settings have no meaning of zero. */
int64_t env_positive(struct arena *a, const char *name, int64_t dflt)
{
    int64_t v = env_whole(a, name, 0);
    return v > 0 ? v : dflt;
}

/* "a, b,,a" becomes { a, b }: blanks and repetitions are dropped. */
bool env_words(struct arena *a, const char *value, const char ***out, size_t *n)
{
    size_t commas = 0;
    for (const char *p = value; *p; p++)
        commas += *p == ',';
    *out = arena_array(a, commas + 1, sizeof(char *));
    *n = 0;
    if (!*out)
        return false;
    for (const char *p = value; *p;) {
        size_t len = strcspn(p, ",");
        const char *word = copy_trimmed(a, p, len);
        size_t known = 0;
        while (word && known < *n && strcmp((*out)[known], word) != 0)
            known++;
        if (word && known == *n) /* the first of equals is kept */
            (*out)[(*n)++] = word;
        p += len + (p[len] == ',');
    }
    return true;
}

/* Lists are short: growing by one each time is good enough. */
static bool add_pair(struct arena *a, struct http_header **out, size_t *n, const char *name,
                     const char *value)
{
    size_t size = sizeof(**out);
    struct http_header *v = arena_grow(a, *out, *n * size, (*n + 1) * size);
    if (!v)
        return false;
    v[*n] = (struct http_header){ name, value, false };
    *out = v;
    ++*n;
    return true;
}

/* The next JSON value as text: a string's content, else the value as written. */
static const char *value_text(struct json_reader *r, struct arena *a)
{
    struct json_str s;
    bool ok = json_peek(r) == JSON_STRING ? json_string(r, &s) : json_raw(r, &s);
    return ok ? arena_strndup(a, s.s, s.n) : NULL;
}

/* The end of a JSON value.  A malformed one counts as unset, as a whole: half of the
 * headers would be worse than none. */
static bool end_json(struct json_reader *r, bool ok, struct http_header **out, size_t *n)
{
    if (!json_end(r)) {
        *out = NULL;
        *n = 0;
    }
    return ok;
}

bool env_json_object(struct arena *a, const char *json, struct http_header **out, size_t *n)
{
    struct json_reader r;
    struct json_str key;
    bool ok = true;
    *out = NULL;
    *n = 0;
    json_reader_init(&r, json, strlen(json), a);
    json_begin_object(&r);
    while (ok && json_next_key(&r, &key)) {
        const char *name = arena_strndup(a, key.s, key.n);
        const char *value = value_text(&r, a);
        if (!r.failed)
            ok = name && value && add_pair(a, out, n, name, value);
    }
    return end_json(&r, ok, out, n);
}

/* An array of pairs keeps the order and may name a header twice, which an object cannot. */
bool env_json_pairs(struct arena *a, const char *json, struct http_header **out, size_t *n)
{
    struct json_reader r;
    bool ok = true;
    *out = NULL;
    *n = 0;
    json_reader_init(&r, json, strlen(json), a);
    json_begin_array(&r);
    while (ok && json_next_item(&r)) {
        const char *pair[2] = { NULL, NULL };
        int count = 0;
        json_begin_array(&r);
        while (json_next_item(&r)) {
            const char *text = value_text(&r, a);
            if (count < 2)
                pair[count] = text;
            count++;
        }
        if (!r.failed && count != 2)
            json_fail(&r, "expected [name, value]");
        if (!r.failed)
            ok = pair[0] && pair[1] && add_pair(a, out, n, pair[0], pair[1]);
    }
    return end_json(&r, ok, out, n);
}
