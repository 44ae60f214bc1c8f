/* model_dir.c - see model_dir.h. */
#include "cli/models/model_dir.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/array.h"
#include "base/os.h"
#include "gguf/gguf.h"

/* Only whether it looks like one: opening it says what is wrong with it. */
bool model_dir_is_model(const char *dir)
{
    char path[MODEL_DIR_MAX + 16];
    if (gguf_is_name(dir) && !os_is_dir(dir))
        return access(dir, R_OK) == 0;
    snprintf(path, sizeof(path), "%s/config.json", dir);
    return access(path, R_OK) == 0;
}

/* Directory of this program without the final slash. /proc/self/exe is the real file, also when
 * it was started through a link or $PATH. */
static bool find_program_dir(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    if (n <= 0)
        return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

/* The bundled model is looked for relative to the program, so an installed tree can be moved. */
bool model_dir_bundled(char out[MODEL_DIR_MAX])
{
    /* Installed; in a build directory of the source tree; in the source tree itself. */
    static const char *const places[] = { "/../share/tinker/models/tiny", "/../../models/tiny",
                                          "/../models/tiny", "/models/tiny" };
    char dir[MODEL_DIR_MAX / 2];
    if (find_program_dir(dir, sizeof(dir)))
        for (size_t i = 0; i < ARRAY_LEN(places); i++) {
            snprintf(out, MODEL_DIR_MAX, "%s%s", dir, places[i]);
            if (model_dir_is_model(out))
                return true;
        }
    /* The last resort: run from the source tree by a relative name. */
    snprintf(out, MODEL_DIR_MAX, "models/tiny");
    return model_dir_is_model(out);
}

/* The variables in the order of the Hub's own tools, each with what they append to it. */
static void find_cache_root(char *out, size_t size)
{
    static const char *const places[][2] = { { "HF_HUB_CACHE", "" },
                                             { "HUGGINGFACE_HUB_CACHE", "" },
                                             { "HF_HOME", "/hub" },
                                             { "XDG_CACHE_HOME", "/huggingface/hub" },
                                             { "HOME", "/.cache/huggingface/hub" } };
    snprintf(out, size, "%s", places[4][1]);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const char *value = getenv(places[i][0]);
        if (!value || !*value)
            continue;
        snprintf(out, size, "%s%s", value, places[i][1]);
        return;
    }
}

/* "owner/name" in the characters the Hub allows. The id becomes part of paths: no "..", no
 * second slash, no leading dot. */
bool model_dir_is_id(const char *id)
{
    const char *slash = strchr(id, '/');
    return slash && slash > id && slash[1] && !strchr(slash + 1, '/') && !strstr(id, "..") &&
           id[0] != '.' && strlen(id) <= 200 &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") ==
               strlen(id);
}

/* "Qwen/Qwen3-0.6B" is the folder models--Qwen--Qwen3-0.6B; refs/main names its snapshot. */
void model_dir_folder(const char *id, char out[MODEL_FOLDER_MAX])
{
    char root[MODEL_DIR_MAX / 4];
    const char *slash = strchr(id, '/');
    find_cache_root(root, sizeof(root));
    snprintf(out, MODEL_FOLDER_MAX, "%s/models--%.*s--%s", root, (int)(slash - id), id, slash + 1);
}

/* The first GGUF file of a directory by name, with its path; not the vision part of a model. */
static bool find_gguf(char dir[MODEL_DIR_MAX])
{
    char first[256] = "";
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (gguf_is_name(e->d_name) && strncmp(e->d_name, "mmproj", 6) != 0 &&
            (!first[0] || strcmp(e->d_name, first) < 0))
            snprintf(first, sizeof(first), "%s", e->d_name);
    if (d)
        closedir(d);
    size_t n = strlen(dir);
    return first[0] &&
           snprintf(dir + n, MODEL_DIR_MAX - n, "/%s", first) < (int)(MODEL_DIR_MAX - n);
}

/* Only a model with a finished download has refs/main. */
bool model_dir_cached(const char *id, char out[MODEL_DIR_MAX])
{
    char folder[MODEL_FOLDER_MAX], *revision;
    size_t n;
    if (!model_dir_is_id(id))
        return false;
    model_dir_folder(id, folder);
    snprintf(out, MODEL_DIR_MAX, "%s/refs/main", folder);
    if (os_read_file(out, 256, &revision, &n, NULL) != TINKER_OK)
        return false;
    /* The file's content becomes part of a path: cut at a slash, so that it cannot lead
     * elsewhere. */
    revision[strcspn(revision, "\r\n /")] = 0;
    snprintf(out, MODEL_DIR_MAX, "%s/snapshots/%s", folder, revision);
    free(revision);
    return model_dir_is_model(out) ? true : find_gguf(out);
}

/* The owner of a cached model of this name. */
static bool find_owner(const char *name, char owner[128])
{
    char root[MODEL_DIR_MAX / 4];
    bool found = false;
    find_cache_root(root, sizeof(root));
    DIR *d = opendir(root);
    for (const struct dirent *e; !found && d && (e = readdir(d)) != NULL;) {
        const char *start = e->d_name + strlen("models--");
        const char *dashes = strncmp(e->d_name, "models--", 8) == 0 ? strstr(start, "--") : NULL;
        found = dashes && strcasecmp(dashes + 2, name) == 0;
        if (found)
            snprintf(owner, 128, "%.*s/%.100s", (int)(dashes - start < 100 ? dashes - start : 100),
                     start, dashes + 2);
    }
    if (d)
        closedir(d);
    return found;
}

/* By what the name looks like, from the most certain to the least; the first line is a command to
 * copy where there is one. */
const char *model_dir_hint(const char *name, char out[MODEL_HINT_MAX])
{
    char id[128];
    if (gguf_is_name(name))
        snprintf(out, MODEL_HINT_MAX,
                 "There is no file of this name.  tinker models lists what is here.");
    else if (model_dir_is_id(name))
        snprintf(out, MODEL_HINT_MAX,
                 "Fetch it with: tinker models pull %.200s\n"
                 "Or name a directory with config.json and *.safetensors, or a file x.gguf.",
                 name);
    else if (!strchr(name, '/') && find_owner(name, id))
        snprintf(out, MODEL_HINT_MAX,
                 "An id of the Hugging Face Hub has an owner: did you mean %s?", id);
    else if (!strchr(name, '/'))
        snprintf(out, MODEL_HINT_MAX,
                 "An id of the Hugging Face Hub has an owner: tinker models pull OWNER/%.200s\n"
                 "tinker models lists what is here.  A model is also a directory with config.json "
                 "and *.safetensors, or a file x.gguf.",
                 name);
    else
        snprintf(out, MODEL_HINT_MAX,
                 "tinker models lists what is here.  A model is a directory with config.json and "
                 "*.safetensors, a file x.gguf, or an id of the Hugging Face Hub.");
    return out;
}
