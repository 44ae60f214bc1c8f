/* known_models.c - see known_models.h. */
#include "cli/models/known_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/os.h"
#include "json/json.h"

/* Directories that `tinker serve --model DIR` was started with, so that `tinker models` can list
 * them.  The file is a convenience: what cannot be read or written is passed over. */
enum { FILE_MAX = 1 << 20 };

/* {"NAME": "DIR", ...} */
void known_models_each(const char *data, known_models_fn *each, void *state)
{
    char path[MODEL_DIR_MAX + 32], *text;
    size_t n;
    snprintf(path, sizeof(path), "%s/models.json", data);
    if (os_read_file(path, FILE_MAX, &text, &n, NULL) != TINKER_OK)
        return;
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    arena_init(&arena, FILE_MAX * 4);
    json_reader_init(&r, text, n, &arena);
    /* A file that is not what it should be ends the walk; what came before counts. */
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key)) {
        char *dir = NULL, *name = arena_printf(&arena, "%.*s", (int)key.n, key.s);
        ok = name && json_cstring(&r, &dir);
        if (ok)
            each(name, dir, state);
    }
    arena_clear(&arena);
    free(text);
}

struct search {
    const char *name;
    char *out;
};

static void match_known(const char *name, const char *dir, void *state)
{
    struct search *s = state;
    if (strcmp(name, s->name) == 0)
        snprintf(s->out, MODEL_DIR_MAX, "%s", dir);
}

/* A directory that has been moved or deleted since is not found. */
bool known_models_find(const char *data, const char *name, char out[MODEL_DIR_MAX])
{
    struct search s = { name, out };
    out[0] = 0;
    known_models_each(data, match_known, &s);
    return out[0] && model_dir_is_model(out);
}

struct rewrite {
    struct json_writer w;
    const char *name;
};

/* All but the one that is written anew, which goes to the end. */
static void copy_known(const char *name, const char *dir, void *state)
{
    struct rewrite *r = state;
    if (strcmp(name, r->name) == 0)
        return;
    json_put_key(&r->w, name);
    json_put_string(&r->w, dir);
}

/* Full paths, since commands run in other directories.  Nothing is written when nothing changes:
 * servers start often. */
void known_models_add(const char *data, const char *name, const char *dir)
{
    char path[MODEL_DIR_MAX + 32], old[MODEL_DIR_MAX], *full = os_full_path(dir);
    struct buf b;
    if (full && !(known_models_find(data, name, old) && strcmp(old, full) == 0)) {
        snprintf(path, sizeof(path), "%s/models.json", data);
        buf_init(&b, FILE_MAX);
        struct rewrite r = { .name = name };
        json_writer_init(&r.w, &b);
        json_put_begin_object(&r.w);
        known_models_each(data, copy_known, &r);
        json_put_key(&r.w, name);
        json_put_string(&r.w, full);
        json_put_end_object(&r.w);
        if (buf_ok(&b))
            os_write_file(path, b.data, b.len, NULL);
        buf_clear(&b);
    }
    free(full);
}
