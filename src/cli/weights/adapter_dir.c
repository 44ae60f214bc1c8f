/* adapter_dir.c - see adapter_dir.h. */
#include "cli/weights/adapter_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/err.h"
#include "gguf/gguf.h"
#include "base/os.h"
#include "cli/models/known_models.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/serve/serve_place.h"
#include "cli/service/api.h"
#include "json/json.h"

/* "r" is the rank in PEFT's file; other members describe training and are not needed here. */
static tinker_status read_adapter_config(struct adapter_dir *a, tinker_error *err)
{
    char path[ADAPTER_PATH_MAX + 64], *text, *base = NULL;
    size_t n;
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    /* -1: the file does not say.  A missing or broken file is an error, but one without a base
     * is not: the command may have named it. */
    a->rank = -1;
    snprintf(path, sizeof(path), "%s/checkpoint_complete", a->dir);
    a->complete = access(path, F_OK) == 0;
    snprintf(path, sizeof(path), "%s/adapter_config.json", a->dir);
    tinker_status status = os_read_file(path, 1 << 20, &text, &n, err);
    if (status != TINKER_OK)
        return status;
    arena_init(&arena, 4 << 20);
    json_reader_init(&r, text, n, &arena);
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key)) {
        if (json_str_is(key, "r") && json_peek(&r) == JSON_NUMBER)
            ok = json_int64(&r, &a->rank);
        else if (json_str_is(key, "base_model_name_or_path") && json_peek(&r) == JSON_STRING)
            ok = json_cstring(&r, &base);
        else
            ok = json_skip(&r);
    }
    snprintf(a->base, sizeof(a->base), "%s", base ? base : "");
    if (!ok || !json_end(&r))
        status = err_set(err, TINKER_EINVAL, "%s is not understood", path);
    arena_clear(&arena);
    free(text);
    return status;
}

/* The archive first, then what the service knows of it: its name of the base model is better
 * than the one in the files, which may be a directory of another machine. */
static int download_adapter(struct adapter_dir *a, struct api *api, const char *path,
                            const char *archive)
{
    tinker_error err;
    int status = EXIT_OK;
    tinker_future *f = tinker_rest_download_checkpoint(api->rest, path, archive, NULL, &err);
    if (!f || api_await_download(f, &err) != TINKER_OK)
        status = api_fail(&err, f);
    else if (tinker_archive_extract(archive, a->dir, &err) != TINKER_OK)
        status = out_fail(EXIT_DATA, NULL, "%s", err.message);
    tinker_future_free(f);
    if (status == EXIT_OK && (f = tinker_rest_get_weights_info(api->rest, path, &err)) != NULL) {
        if (api_await(f, &err) == TINKER_OK)
            snprintf(a->base, sizeof(a->base), "%s", tinker_future_weights_info(f)->base_model);
        tinker_future_free(f);
    }
    return status;
}

/* Fetch the archive and unpack it below TMPDIR.
 * The archive is deleted at once; the adapter stays until adapter_dir_close(). */
static int fetch_adapter(struct adapter_dir *a, const char *where)
{
    const char *tmp = getenv("TMPDIR");
    char work[ADAPTER_PATH_MAX - 64], archive[ADAPTER_PATH_MAX];
    struct api api;
    int status = EXIT_OK;
    bool newest = strcmp(where, "last") == 0;
    /* A directory of its own, made by mkdtemp() with mode 0700: weights are private. */
    snprintf(work, sizeof(work), "%s/tinker-weights.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if ((!newest && !api_check_path(where, &status)) || !api_open(&api, &status))
        return status;
    char *path =
        newest ? api_find_newest(&api, where, TINKER_CHECKPOINT_SAMPLER, &status) : strdup(where);
    if (path && !mkdtemp(work))
        status = out_fail(EXIT_IO, NULL, "make %s: %s", work, strerror(errno));
    if (path && status == EXIT_OK) {
        snprintf(archive, sizeof(archive), "%s/archive.tar", work);
        snprintf(a->dir, sizeof(a->dir), "%s/adapter", work);
        a->temporary = true;
        status = download_adapter(a, &api, path, archive);
        unlink(archive);
    }
    free(path);
    api_close(&api);
    return status;
}

/* Three kinds of places: a checkpoint, "last", or a directory of this machine. */
int adapter_dir_open(struct adapter_dir *a, const char *where)
{
    tinker_error err;
    char told[256];
    memset(a, 0, sizeof(*a));
    int status = EXIT_OK;
    if (strncmp(where, "tinker://", 9) == 0 ||
        /* A file or directory that is called "last" means itself. */
        (strcmp(where, "last") == 0 && access(where, F_OK) != 0))
        status = fetch_adapter(a, where);
    else
        snprintf(a->dir, sizeof(a->dir), "%s", where);
    /* What the service said wins over adapter_config.json. */
    snprintf(told, sizeof(told), "%s", a->base);
    if (status == EXIT_OK && read_adapter_config(a, &err) != TINKER_OK)
        status = out_fail(EXIT_DATA,
                          "An adapter has adapter_config.json and "
                          "adapter_model.safetensors.",
                          "%s", err.message);
    if (told[0])
        snprintf(a->base, sizeof(a->base), "%s", told);
    if (status != EXIT_OK)
        adapter_dir_close(a);
    return status;
}

/* Only what was fetched is removed; a directory that was named stays.  The parent goes, too: it
 * holds nothing but this adapter. */
void adapter_dir_close(struct adapter_dir *a)
{
    char *slash = a->temporary ? strrchr(a->dir, '/') : NULL;
    if (slash) {
        *slash = 0;
        os_remove_tree(a->dir, NULL);
    }
    a->temporary = false;
}

/* The A and B matrix of a pair share the rank: A is (r, in), B is (out, r).
 * A pair that is not whole would load as zeros in some programs and fail in others. */
static tinker_status check_pairs(const struct adapter_dir *a, const struct tensor_file *f,
                                 size_t *n_pairs, tinker_error *err)
{
    *n_pairs = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct tensor_entry *t = &f->v[i], *partner = NULL;
        const char *at = strstr(t->name, "lora_A");
        char other[1024];
        if (!at)
            continue;
        snprintf(other, sizeof(other), "%.*slora_B%s", (int)(at - t->name), t->name, at + 6);
        /* Quadratic, but adapters have some hundred tensors. */
        for (size_t k = 0; k < f->n && !partner; k++)
            partner = strcmp(f->v[k].name, other) == 0 ? &f->v[k] : NULL;
        if (!partner)
            return err_set(err, TINKER_EINVAL, "%s has no %s beside it", t->name, other);
        if (t->n_dims < 2 || partner->n_dims < 2)
            return err_set(err, TINKER_EINVAL, "%s is no matrix", t->name);
        /* Counted from the end, since experts may be stacked in front. */
        int64_t rank = t->shape[t->n_dims - 2], same = partner->shape[partner->n_dims - 1];
        if (rank != same)
            return err_set(err, TINKER_EINVAL, "%s has rank %lld, its partner %lld", t->name,
                           (long long)rank, (long long)same);
        /* Less is allowed: PEFT's rank_pattern gives single layers another rank. */
        if (a->rank > 0 && rank > a->rank)
            return err_set(err, TINKER_EINVAL, "%s has rank %lld, adapter_config.json says %lld",
                           t->name, (long long)rank, (long long)a->rank);
        ++*n_pairs;
    }
    return *n_pairs ? TINKER_OK : err_set(err, TINKER_EINVAL, "there are no lora_A matrices in it");
}

/* The header first, which costs nothing, then every number. */
tinker_status adapter_dir_check(const struct adapter_dir *a, size_t *n_pairs, tinker_error *err)
{
    char path[ADAPTER_PATH_MAX + 64];
    struct tensor_file f;
    /* The older form, adapter_model.bin, is a pickle and not ours to read. */
    snprintf(path, sizeof(path), "%s/adapter_model.safetensors", a->dir);
    tinker_status status = tensor_file_open(&f, path, err);
    if (status == TINKER_OK)
        status = check_pairs(a, &f, n_pairs, err);
    if (status == TINKER_OK)
        status = tensor_file_check_data(&f, path, err);
    tensor_file_clear(&f);
    return status;
}

/* The directory, or GGUF file, of a base model on this machine.
 * A path wins over a name; names are the bundled model, the cache, then directories that were
 * served. */
static bool find_base(const char *name, char dir[MODEL_DIR_MAX])
{
    char data[SERVE_PLACE_MAX];
    if (os_is_dir(name) || (gguf_is_name(name) && access(name, F_OK) == 0)) {
        snprintf(dir, MODEL_DIR_MAX, "%s", name);
        return true;
    }
    return (strcmp(name, MODEL_DIR_BUNDLED) == 0 && model_dir_bundled(dir)) ||
           model_dir_cached(name, dir) ||
           (serve_place_data(NULL, data) && known_models_find(data, name, dir));
}

/* NULL after the error was printed, with a remedy: the name is missing, or the model is. */
tinker_engine *adapter_dir_open_base(const struct adapter_dir *a, const char *base, int *status)
{
    char dir[MODEL_DIR_MAX];
    const char *name = base ? base : a->base;
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    tinker_error err;
    /* As in the files: converting back and forth would change the numbers that are merged. */
    o.dtype = TINKER_WEIGHTS_STORED;
    if (!*name) {
        *status = out_fail(EXIT_USAGE, "Name it with --base.", "the adapter does not say its base");
        return NULL;
    }
    if (!find_base(name, dir)) {
        *status = out_fail(EXIT_NOT_FOUND,
                           "Give its directory with --base, or fetch it with: tinker "
                           "models pull NAME",
                           "the base model %s is not on this machine", name);
        return NULL;
    }
    tinker_engine *e = tinker_engine_open(dir, &o, &err);
    if (!e)
        *status = out_fail(EXIT_DATA, NULL, "%s", err.message);
    return e;
}

/* The two files are replaced in place: who opened the adapter reads PEFT's form from here on. */
int adapter_dir_to_peft(const struct adapter_dir *a, const char *base)
{
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
    char work[ADAPTER_PATH_MAX + 16], dir[MODEL_DIR_MAX], from[ADAPTER_PATH_MAX + 64],
        to[ADAPTER_PATH_MAX + 64];
    const char *name = base ? base : a->base;
    tinker_error err;
    /* A base that was named and is missing is a mistake; one that only the adapter names may be
     * elsewhere, and most adapters can be converted without it. */
    bool found = *name && find_base(name, dir);
    if (base && !found)
        return out_fail(EXIT_NOT_FOUND, "Give its directory, or fetch it with: tinker models pull",
                        "the base model %s is not on this machine", base);
    /* inside the adapter's directory: on the same file system, and gone with it */
    snprintf(work, sizeof(work), "%s/.peft", a->dir);
    if (mkdir(work, 0700) != 0)
        return out_fail(EXIT_IO, NULL, "make %s: %s", work, strerror(errno));
    tinker_status status =
        tinker_adapter_to_peft(a->dir, found ? dir : NULL, a->base[0] ? a->base : NULL, work, &err);
    /* Both files are complete before the first one replaces its old version. */
    for (size_t i = 0; status == TINKER_OK && i < ARRAY_LEN(files); i++) {
        snprintf(from, sizeof(from), "%s/%s", work, files[i]);
        snprintf(to, sizeof(to), "%s/%s", a->dir, files[i]);
        if (rename(from, to) != 0)
            status = err_errno(&err, "replace", to);
    }
    os_remove_tree(work, NULL);
    /* No form of PEFT exists for it (experts, full weights); other failures are of the files. */
    if (status == TINKER_ESTATE)
        return out_fail(EXIT_DATA,
                        "Give the base model with --base DIR if it is not on this machine, merge "
                        "it with: tinker weights export --to hf, or keep the files with: tinker "
                        "checkpoint download --format tinker",
                        "not possible in the form of PEFT: %s", err.message);
    if (status != TINKER_OK)
        return out_fail(EXIT_DATA,
                        "To keep the files as the service has them: tinker checkpoint download "
                        "--format tinker",
                        "cannot be written in the form of PEFT: %s", err.message);
    if (!found)
        out_say("note: the base model%s%s is not on this machine and is taken for a text model; if "
                "it is multimodal, give its directory with --base",
                *name ? " " : "", name);
    return EXIT_OK;
}
