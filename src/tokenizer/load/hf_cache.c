/* hf_cache.c - model names to repositories to directories.
 *
 * The rules by which a model name chooses its tokenizer are the service's; the layout of the
 * cache (models--org--name/refs, snapshots) is the one all Hugging Face tools share.  Nothing
 * is ever downloaded here. */
#include "tokenizer/load/hf_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/os.h"

/* Models whose tokenizer the service pins to a revision. */
static const struct {
    const char *name, *repo, *revision;
} pinned[] = {
    { "moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2-Thinking",
      "612681931a8c906ddb349f8ad0f582cb552189cd" },
    { "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611" },
    { "moonshotai/Kimi-K2.5-Text-Only", "moonshotai/Kimi-K2.5",
      "4d01dfe0332d63057c186e0b262165819efb6611" },
    { "moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.6", "b5aabbfb20227ed42becbf5541dbffd213942c58" },
};
/* One repository stands for all of Llama 3, whose own ones need an agreement to be read. */
static const char llama3[] = "meta-llama/Llama-3";
static const char llama3_repo[] = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer";

/* Nothing is looked up here, so the answer is the same on every machine. */
tinker_status tinker_tokenizer_resolve(const char *model_name, const char *tokenizer_id,
                                       tinker_tokenizer_source *out, tinker_error *err)
{
    bool given = tokenizer_id && *tokenizer_id;
    const char *name = given ? tokenizer_id : model_name;
    memset(out, 0, sizeof(*out));
    if (!name || !*name || *name == ':')
        return err_set(err, TINKER_EINVAL, "the model name is empty");
    if (!given && strncmp(name, llama3, strlen(llama3)) == 0)
        name = llama3_repo;
    /* The repository: cut at ':', and "org/model/variant" at its second slash unless the service
     * gave the name. */
    size_t n = strcspn(name, ":"), slashes = 0, second = n;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' && ++slashes == 2)
            second = i;
    if (!given && slashes == 2)
        n = second;
    if (n >= sizeof(out->repo))
        return err_set(err, TINKER_EINVAL, "the model name has more than %zu bytes",
                       sizeof(out->repo) - 1);
    memcpy(out->repo, name, n);
    for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
        if (strcmp(out->repo, pinned[i].name) == 0) {
            snprintf(out->repo, sizeof(out->repo), "%s", pinned[i].repo);
            snprintf(out->revision, sizeof(out->revision), "%s", pinned[i].revision);
            break;
        }
    return TINKER_OK;
}

/* false: too long. */
static bool join_paths(char out[HF_PATH], const char *a, const char *b)
{
    int n = snprintf(out, HF_PATH, "%s%s", a, b);
    return n > 0 && n < HF_PATH;
}

/* A variable that is empty counts as not set. */
static const char *read_env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* A path of the environment and b; a leading ~ is the home directory, as in Python. */
static bool join_env_path(char out[HF_PATH], const char *a, const char *b)
{
    if (a[0] != '~' || (a[1] && a[1] != '/') || !read_env("HOME"))
        return join_paths(out, a, b);
    int n = snprintf(out, HF_PATH, "%s%s%s", read_env("HOME"), a + 1, b);
    return n > 0 && n < HF_PATH;
}

/* The directory that holds models--… directories; the order of the variables is Python's. */
static bool find_cache_root(const char *hf_home, char out[HF_PATH])
{
    if (hf_home)
        return join_paths(out, hf_home, "/hub");
    if (read_env("HF_HUB_CACHE"))
        return join_env_path(out, read_env("HF_HUB_CACHE"), "");
    if (read_env("HUGGINGFACE_HUB_CACHE"))
        return join_env_path(out, read_env("HUGGINGFACE_HUB_CACHE"), "");
    if (read_env("HF_HOME"))
        return join_env_path(out, read_env("HF_HOME"), "/hub");
    if (read_env("XDG_CACHE_HOME"))
        return join_env_path(out, read_env("XDG_CACHE_HOME"), "/huggingface/hub");
    return join_paths(out, read_env("HOME") ? read_env("HOME") : "", "/.cache/huggingface/hub");
}

/* No part of a name may walk out of the cache. */
static bool is_safe_name(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || (p[0] == '.' && p[1] == '.'))
            return false;
    return *s && *s != '/';
}

/* base/snapshots/<revision>, where a revision may also be a name in base/refs. */
static bool find_snapshot(const char *base, const char *revision, char out[HF_PATH])
{
    char path[HF_PATH];
    int n = snprintf(out, HF_PATH, "%s/snapshots/%s", base, revision);
    if (n > 0 && n < HF_PATH && os_is_dir(out))
        return true;
    n = snprintf(path, sizeof(path), "%s/refs/%s", base, revision);
    if (n <= 0 || n >= HF_PATH)
        return false;
    /* refs/main holds the commit that was fetched by that name */
    char *commit = NULL;
    size_t len;
    if (os_read_file(path, 256, &commit, &len, NULL) != TINKER_OK)
        return false;
    commit[strcspn(commit, "\r\n ")] = '\0';
    bool found = is_safe_name(commit) && !strchr(commit, '/');
    n = found ? snprintf(out, HF_PATH, "%s/snapshots/%s", base, commit) : 0;
    free(commit);
    return found && n > 0 && n < HF_PATH && os_is_dir(out);
}

tinker_status hf_cache_find(const char *repo, const char *revision, const char *hf_home,
                            char out[HF_PATH], tinker_error *err)
{
    char root[HF_PATH], base[HF_PATH], name[300];
    const char *wanted = revision && *revision ? revision : "main";
    if (!is_safe_name(repo) || !is_safe_name(wanted) || strlen(repo) > 256)
        return err_set(err, TINKER_EINVAL, "\"%.200s\" is not a model name", repo);
    /* org/name is models--org--name */
    size_t k = 0;
    for (const char *p = repo; *p && k + 3 < sizeof(name); p++) {
        name[k++] = *p == '/' ? '-' : *p;
        if (*p == '/')
            name[k++] = '-';
    }
    name[k] = '\0';
    if (!find_cache_root(hf_home, root))
        return err_set(err, TINKER_EINVAL, "the Hugging Face cache has too long a path");
    int n = snprintf(base, sizeof(base), "%s/models--%s", root, name);
    if (n > 0 && n < HF_PATH && find_snapshot(base, wanted, out))
        return TINKER_OK;
    return err_set(
        err, TINKER_ESTATE,
        "%s: neither a file nor a directory, and revision %.40s of it is not in %s; fetch "
        "it there with a Hugging Face tool, or give a directory",
        repo, wanted, root);
}
