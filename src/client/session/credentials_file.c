/* credentials_file.c - see credentials_file.h.
 *
 * The file has named keys, and the name of the one to use, which may stand behind them: it is read
 * twice. */
#include "client/session/credentials_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"
#include "client/session/env.h"
#include "json/json.h"

/* A file of keys has a few hundred bytes; the limit is for a link to something endless. */
enum { FILE_MAX = 1 << 20 };

/* A text member of the object that is next; others are skipped.  *out NULL: not there, or null. */
static bool read_member(struct json_reader *r, const char *name, char **out)
{
    struct json_str key;
    *out = NULL;
    if (json_peek(r) != JSON_OBJECT)
        return json_skip(r);
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key))
        ok = json_str_is(key, name) && json_peek(r) == JSON_STRING ? json_cstring(r, out)
                                                                   : json_skip(r);
    return ok;
}

/* The member `key` of the member `name` of `keys`. */
static bool read_key(struct json_reader *r, const char *name, char **out)
{
    struct json_str key;
    bool ok = json_begin_object(r);
    *out = NULL;
    while (ok && json_next_key(r, &key)) {
        if (!json_str_is(key, "keys") || json_peek(r) != JSON_OBJECT) {
            ok = json_skip(r);
            continue;
        }
        ok = json_begin_object(r);
        while (ok && json_next_key(r, &key))
            ok = json_str_is(key, name) ? read_member(r, "key", out) : json_skip(r);
    }
    return ok;
}

tinker_status credentials_file_key(struct arena *a, const char **out, tinker_error *err)
{
    const char *home = env_text(a, "HOME");
    const char *path = home ? arena_printf(a, "%s/.tinker/credentials.json", home) : NULL;
    char *text;
    size_t n;
    *out = NULL;
    /* No file is no error: most programs get their key from the environment. */
    if (!path || access(path, F_OK) != 0)
        return TINKER_OK;
    tinker_status s = os_read_file(path, FILE_MAX, &text, &n, err);
    if (s != TINKER_OK)
        return s;
    /* {"default": "<name>", "keys": {"<name>": {"key": "tml-…"}, …}}
     * First pass: the name of the default key.  Second pass: the key of that name. */
    struct json_reader r;
    char *name = NULL, *key = NULL;
    json_reader_init(&r, text, n, a);
    bool ok = json_peek(&r) == JSON_OBJECT && read_member(&r, "default", &name) && json_end(&r);
    if (ok && name) {
        json_reader_init(&r, text, n, a);
        ok = read_key(&r, name, &key) && json_end(&r);
    }
    free(text);
    if (!ok)
        return err_set(err, TINKER_EINVAL, "%s is not a file of keys", path);
    *out = key;
    return TINKER_OK;
}
