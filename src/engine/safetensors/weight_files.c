/* weight_files.c - which files of a directory hold the weights.
 *
 * File names come from the index, which is outside data: only plain names that end
 * in .safetensors are accepted, so nothing outside the directory can be named. */
#include "engine/safetensors/weight_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "json/json.h"

/* INDEX_MAX is far above the index of the largest models; FILES_MAX bounds what a hostile one can
 * make us open. */
enum { INDEX_MAX = 64 << 20, FILES_MAX = 4096 };

/* NULL: out of memory. */
static char *join_path(struct arena *a, const char *dir, const char *name)
{
    return arena_printf(a, "%s/%s", dir, name);
}

/* A file of the directory itself: no path, no hidden file, not cut by a NUL. */
static bool is_plain_name(const char *s, size_t n)
{
    static const char suffix[] = ".safetensors";
    size_t k = sizeof(suffix) - 1;
    if (n <= k || n > 255 || s[0] == '.' || memchr(s, '/', n) || memchr(s, '\0', n))
        return false;
    return memcmp(s + n - k, suffix, k) == 0;
}

/* File names without duplicates. */
struct names {
    struct arena *arena;
    const char **list; /* FILES_MAX of them fit */
    size_t n;
    struct map seen;
};

/* Adds a file name once: an index names each file for every tensor in it. */
static tinker_status add_name(struct names *names, const char *s, size_t n, tinker_error *err)
{
    /* By its text as it stands: the copy in the arena comes only for a new one. */
    if (map_get(&names->seen, s, n))
        return TINKER_OK;
    if (names->n == FILES_MAX)
        return err_set(err, TINKER_EINVAL, "more than %d safetensors files", FILES_MAX);
    char *copy = arena_strndup(names->arena, s, n);
    if (!copy || !map_put(&names->seen, s, n, copy, NULL))
        return err_nomem(err, "file names");
    names->list[names->n++] = copy;
    return TINKER_OK;
}

/* The files that "weight_map" names; which tensor is in which is read from the files. */
static tinker_status read_index(struct names *names, const char *path, tinker_error *err)
{
    char *text;
    size_t len;
    tinker_status status = os_read_file(path, INDEX_MAX, &text, &len, err);
    if (status != TINKER_OK)
        return status;
    struct json_reader r;
    struct json_str key, tensor, file;
    json_reader_init(&r, text, len, names->arena);
    json_begin_object(&r);
    while (status == TINKER_OK && json_next_key(&r, &key)) {
        /* metadata is of no use to us */
        if (!json_str_is(key, "weight_map")) {
            json_skip(&r);
            continue;
        }
        json_begin_object(&r);
        while (status == TINKER_OK && json_next_key(&r, &tensor)) {
            if (!json_string(&r, &file))
                break;
            /* a hostile index could name any file of the system */
            if (!is_plain_name(file.s, file.n))
                status = err_set(err, TINKER_EINVAL,
                                 "%s: tensor %.*s is in a file whose name is not plain", path,
                                 tensor.n > 120 ? 120 : (int)tensor.n, tensor.s);
            else
                status = add_name(names, file.s, file.n, err);
        }
    }
    if (status == TINKER_OK && !json_end(&r))
        status = err_set(err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    if (status == TINKER_OK && names->n == 0)
        status = err_set(err, TINKER_EINVAL, "%s: no weight_map", path);
    free(text);
    return status;
}

/* Files without an index, as some tools write them. */
static tinker_status read_directory(struct names *names, const char *dir, tinker_error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(err, "open", dir);
    tinker_status status = TINKER_OK;
    struct dirent *entry;
    char pickled[256] = "", gguf[256] = ""; /* what could be there instead */
    while (status == TINKER_OK && (entry = readdir(d)) != NULL) {
        const char *name = entry->d_name, *dot = strrchr(name, '.');
        if (is_plain_name(name, strlen(name)))
            status = add_name(names, name, strlen(name), err);
        else if (strncmp(name, "pytorch_model", 13) == 0 && dot && strcmp(dot, ".bin") == 0)
            snprintf(pickled, sizeof(pickled), "%s", name);
        else if (dot && strcmp(dot, ".gguf") == 0)
            snprintf(gguf, sizeof(gguf), "%s", name);
    }
    closedir(d);
    if (status != TINKER_OK || names->n)
        return status;
    if (gguf[0])
        return err_set(err, TINKER_EINVAL,
                       "%s: no *.safetensors file, but a GGUF one: name that itself, %s/%s", dir,
                       dir, gguf);
    if (pickled[0])
        return err_set(err, TINKER_EINVAL,
                       "%s: only %s, which is not read, because opening it can run programs: get a "
                       "revision with *.safetensors, or save it again with save_pretrained() of "
                       "transformers",
                       dir, pickled);
    return err_set(err, TINKER_EINVAL, "%s: no *.safetensors file", dir);
}

/* Sorted, so that the fingerprint does not depend on the order of the directory. */
static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* c->n counts the open files, so that a failure closes those and no more. */
static tinker_status open_files(struct weight_files *c, struct names *names, const char *dir,
                                tinker_error *err)
{
    /* The list is shared with the fingerprint of the model. */
    qsort(names->list, names->n, sizeof(*names->list), compare_names);
    c->files = calloc(names->n, sizeof(*c->files));
    if (!c->files)
        return err_nomem(err, dir);
    for (size_t i = 0; i < names->n; i++) {
        char *path = join_path(names->arena, dir, names->list[i]);
        if (!path)
            return err_nomem(err, dir);
        tinker_status status = safetensors_open(&c->files[i], path, err);
        if (status != TINKER_OK)
            return status;
        c->n++;
    }
    /* no tensor may be in two files: which one is meant would be a guess */
    for (size_t f = 1; f < c->n; f++)
        for (size_t i = 0; i < c->files[f].n; i++)
            /* Quadratic in the number of files, which is small; each look-up is one in a map. */
            for (size_t g = 0; g < f; g++)
                if (safetensors_find(&c->files[g], c->files[f].tensors[i].name))
                    return err_set(err, TINKER_EINVAL, "%s: tensor %.120s is also in %s",
                                   c->files[f].path, c->files[f].tensors[i].name, c->files[g].path);
    return TINKER_OK;
}

struct weight_files *weight_files_open(const char *dir, tinker_error *err)
{
    struct arena arena;
    arena_init(&arena, SIZE_MAX);
    struct names names = { .arena = &arena };
    map_init(&names.seen);
    /* a fixed table: an index cannot make us allocate without limit */
    names.list = arena_array(&arena, FILES_MAX, sizeof(*names.list));
    struct weight_files *c = calloc(1, sizeof(*c));
    tinker_status status = TINKER_OK;
    if (!names.list || !c)
        status = err_nomem(err, dir);
    /* the index lists the files of a sharded model; a single file needs none; anything else is
     * taken as it is found */
    char *index = join_path(&arena, dir, "model.safetensors.index.json");
    char *single = join_path(&arena, dir, "model.safetensors");
    if (status == TINKER_OK && (!index || !single))
        status = err_nomem(err, dir);
    else if (status == TINKER_OK && access(index, F_OK) == 0)
        status = read_index(&names, index, err);
    else if (status == TINKER_OK && access(single, F_OK) == 0)
        status = add_name(&names, "model.safetensors", strlen("model.safetensors"), err);
    else if (status == TINKER_OK)
        status = read_directory(&names, dir, err);
    if (status == TINKER_OK)
        status = open_files(c, &names, dir, err);
    map_clear(&names.seen);
    arena_clear(&arena);
    if (status != TINKER_OK) {
        weight_files_close(c);
        return NULL;
    }
    return c;
}

/* c NULL: nothing.  Closes what was opened, also after a failure. */
void weight_files_close(struct weight_files *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++)
        safetensors_close(&c->files[i]);
    free(c->files);
    free(c);
}

/* There are few files, and each has a map of its names. */
const struct st_tensor *weight_files_find(const struct weight_files *c, const char *name,
                                          const char **file)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct st_tensor *t = safetensors_find(&c->files[i], name);
        if (t) {
            if (file)
                *file = c->files[i].path;
            return t;
        }
    }
    return NULL;
}
