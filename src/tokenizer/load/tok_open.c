/* tok_open.c - loading by name: file, directory, or model in the Hugging Face cache.
 *
 * Files are identified by their paths, sizes and times.  That identity is the key of the table of
 * loaded tokenizers (tok_cache.c) and the stamp of a prebuilt file (tok_prebuilt.c), so neither
 * has to read a file that did not change. */
#include "tokenizer/load/tok_open.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/err.h"
#include "base/sha.h"
#include "tokenizer/load/tok_gguf.h"
#include "tokenizer/load/tok_json.h"

enum { MAX_FILE = 512 << 20 }; /* bytes */
enum { COARSEST_CLOCK_S = 2 }; /* two changes within it may bear the same time */

/* ---- finding --------------------------------------------------------------------------------- */

/* Links are followed: the Hugging Face cache is made of them. */
static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Put dir/name into out when it is a file. */
static bool find_file(char out[HF_PATH], const char *dir, const char *name)
{
    int n = snprintf(out, HF_PATH, "%s/%s", dir, name);
    if (n > 0 && n < HF_PATH && is_file(out))
        return true;
    out[0] = '\0';
    return false;
}

/* Of several the first by name: the order of a directory is no order. */
static bool find_tiktoken(char out[HF_PATH], const char *dir)
{
    DIR *d = opendir(dir);
    char path[HF_PATH];
    out[0] = '\0';
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (ends_with(e->d_name, ".tiktoken") && find_file(path, dir, e->d_name) &&
            (!*out || strcmp(path, out) < 0))
            memcpy(out, path, sizeof(path));
    if (d)
        closedir(d);
    return *out != '\0';
}

/* With its NUL, so that two paths are not taken for one. */
static void hash_path(struct sha256 *h, const char *path)
{
    sha256_update(h, path, strlen(path) + 1);
}

/* *changed: when a file last changed in any way. */
static void hash_stat(struct sha256 *h, const char *path, time_t *changed)
{
    struct stat st;
    if (!*path || stat(path, &st) != 0)
        return;
    int64_t v[7] = { (int64_t)st.st_dev,          (int64_t)st.st_ino,
                     (int64_t)st.st_size,         (int64_t)st.st_mtim.tv_sec,
                     (int64_t)st.st_mtim.tv_nsec, (int64_t)st.st_ctim.tv_sec,
                     (int64_t)st.st_ctim.tv_nsec };
    sha256_update(h, v, sizeof(v));
    *changed = st.st_ctim.tv_sec > *changed ? st.st_ctim.tv_sec : *changed;
}

/* place: of the paths; identity: also of what is there now. */
static void identify_files(struct tok_files *f, bool lenient)
{
    struct sha256 h, place;
    time_t changed = 0;
    sha256_init(&h);
    uint32_t version = BPE_VERSION;
    sha256_update(&h, "tokenizer", 10);
    sha256_update(&h, &version, sizeof(version));
    sha256_update(&h, &lenient, sizeof(lenient));
    hash_path(&h, f->main);
    hash_path(&h, f->config);
    place = h; /* so far only names; what follows changes with the files */
    sha256_final(&place, f->place);
    hash_path(&h, f->chat_template);
    hash_stat(&h, f->main, &changed);
    hash_stat(&h, f->config, &changed);
    hash_stat(&h, f->chat_template, &changed);
    sha256_final(&h, f->identity);
    /* A file that changed just now may change again without another time. */
    f->settled = time(NULL) - changed > COARSEST_CLOCK_S;
}

tinker_status tok_files_find(struct tok_files *f, const char *path, bool lenient, tinker_error *err)
{
    char dir[HF_PATH];
    memset(f, 0, sizeof(*f));
    if (strlen(path) + 64 > HF_PATH)
        return err_set(err, TINKER_EINVAL, "the path has more than %d bytes", HF_PATH - 64);
    if (os_is_dir(path)) { /* of several files the one that says most */
        snprintf(dir, sizeof(dir), "%s", path);
        if (!find_file(f->main, dir, "tokenizer.json") &&
            !find_file(f->main, dir, "tiktoken.model") &&
            !find_file(f->main, dir, "tokenizer.model") && !find_tiktoken(f->main, dir))
            return err_set(err, TINKER_ESTATE, "%s holds no tokenizer.json and no rank file", path);
    } else {
        const char *slash = strrchr(path, '/');
        snprintf(f->main, sizeof(f->main), "%s", path);
        snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    }
    f->format = ends_with(f->main, ".json")   ? TOK_JSON
                : ends_with(f->main, ".gguf") ? TOK_GGUF
                                              : TOK_RANKS;
    /* a GGUF file is complete: what lies beside it may be another model's */
    if (f->format != TOK_GGUF) {
        find_file(f->config, dir, "tokenizer_config.json");
        find_file(f->chat_template, dir, "chat_template.jinja");
    }
    identify_files(f, lenient);
    return TINKER_OK;
}

bool tok_files_same(const struct tok_files *f, bool lenient)
{
    struct tok_files now = *f;
    identify_files(&now, lenient);
    return memcmp(now.identity, f->identity, sizeof(now.identity)) == 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* The tables of a tokenizer.json or a rank file. */
static tinker_status build_block(const struct tok_files *f, const struct os_map *main,
                                 const char *config, size_t config_n, bool lenient,
                                 struct os_map *block, tinker_error *err)
{
    struct tok_source s = { .config = config, .config_n = config_n, .lenient = lenient };
    struct arena arena; /* of the special tokens of a family */
    tinker_status status = TINKER_OK;
    if (f->format == TOK_JSON) {
        s.json = main->data;
        s.json_n = main->len;
        return tok_build_json(&s, block, err);
    }
    arena_init(&arena, SIZE_MAX);
    s.ranks = main->data;
    s.ranks_n = main->len;
    status = tiktoken_family_find(f, &s, &arena, err);
    if (status == TINKER_OK)
        status = tok_build_ranks(&s, block, err);
    arena_clear(&arena);
    return status;
}

/* Read the source files, and write a prebuilt one to dir (NULL: do not). */
static tinker_tokenizer *load_source(const struct tok_files *f, const char *dir, bool lenient,
                                     tinker_error *err)
{
    struct os_map main;
    char *config = NULL;
    size_t config_n = 0;
    struct os_map block;
    if (*f->config && os_read_file(f->config, MAX_FILE, &config, &config_n, err) != TINKER_OK)
        return NULL;
    tinker_status status = os_map_open(&main, f->main, err);
    if (status == TINKER_OK) {
        if (main.len > MAX_FILE)
            status = err_set(err, TINKER_EINVAL, "larger than 512 MB");
        else
            status = build_block(f, &main, config ? config : "", config_n, lenient, &block, err);
        if (status != TINKER_OK)
            err_prefix(err, "%s", f->main);
        /* Not if a file changed while it was read: the block would be the other one's. */
        if (status == TINKER_OK && dir && tok_files_same(f, lenient))
            tok_prebuilt_write(dir, f, block.data, (struct tok_str){ main.data, main.len },
                               (struct tok_str){ config ? config : "", config_n });
        os_map_close(&main);
    }
    free(config);
    if (status != TINKER_OK)
        return NULL;
    tinker_tokenizer *t = tok_from_block(block, err);
    if (!t)
        err_prefix(err, "%s", f->main);
    return t;
}

/* From the metadata of a GGUF file, of which only those pages are read. */
static tinker_tokenizer *load_gguf(const struct tok_files *f, bool lenient, tinker_error *err)
{
    struct gguf g;
    struct buf json, config;
    struct os_map block;
    if (gguf_open(&g, f->main, err) != TINKER_OK)
        return NULL;
    buf_init(&json, MAX_FILE);
    buf_init(&config, MAX_FILE);
    tinker_status status = tok_gguf_describe(&g, &json, &config, err);
    struct tok_source s = { .json = json.data,
                            .json_n = json.len,
                            .config = config.data,
                            .config_n = config.len,
                            .lenient = lenient };
    if (status == TINKER_OK) {
        status = tok_build_json(&s, &block, err);
        if (status != TINKER_OK)
            err_prefix(err, "%s", f->main);
    }
    buf_clear(&json);
    buf_clear(&config);
    gguf_close(&g);
    return status == TINKER_OK ? tok_from_block(block, err) : NULL;
}

tinker_tokenizer *tok_files_load(const struct tok_files *f, const char *dir, bool lenient,
                                 tinker_error *err)
{
    if (f->format == TOK_GGUF)
        return load_gguf(f, lenient, err);
    tinker_tokenizer *t = dir ? tok_prebuilt_open(dir, f) : NULL;
    if (!t)
        t = load_source(f, dir, lenient, err);
    if (!t || !*f->chat_template)
        return t;
    /* A chat_template.jinja beside the tokenizer wins over the configuration's. */
    char *text;
    size_t n;
    tinker_status status = os_read_file(f->chat_template, 1 << 24, &text, &n, err);
    if (status == TINKER_OK) {
        t->chat_template = arena_strndup(&t->arena, text, n);
        free(text);
        if (!t->chat_template)
            status = err_nomem(err, "chat template");
    }
    if (status == TINKER_OK)
        return t;
    tinker_tokenizer_free(t);
    return NULL;
}

/* ---- the public calls ------------------------------------------------------------------------ */

/* Where prebuilt files are, or NULL: nowhere. */
static const char *find_cache_dir(const char *given, char out[HF_PATH])
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (given)
        return given;
    if (xdg && *xdg)
        n = snprintf(out, HF_PATH, "%s/tinker", xdg);
    else if (home && *home)
        n = snprintf(out, HF_PATH, "%s/.cache/tinker", home);
    else
        return NULL;
    return n > 0 && n < HF_PATH ? out : NULL;
}

/* Ours, with the caller's over the defaults. */
static tinker_status copy_options(tinker_tokenizer_options *o, const tinker_tokenizer_options *opts,
                                  tinker_error *err)
{
    *o = (tinker_tokenizer_options)TINKER_TOKENIZER_OPTIONS_INIT;
    return opts ? opts_copy(o, sizeof(*o), opts, "tinker_tokenizer_options", err) : TINKER_OK;
}

/* What load_request() is asked for. */
struct request {
    const struct tok_files *files;
    const char *dir;
    bool lenient;
};

/* Called by tok_cache_load() when nobody has it. */
static tinker_tokenizer *load_request(void *state, tinker_error *err)
{
    const struct request *r = state;
    return tok_files_load(r->files, r->dir, r->lenient, err);
}

/* A path that exists; a path inside what a rule gives; a repository in the Hugging Face cache. */
static tinker_status find_by_name(struct tok_files *f, const char *name,
                                  const tinker_tokenizer_options *o, tinker_error *err)
{
    char path[HF_PATH];
    tinker_tokenizer_source source;
    /* tokenizer_id says that `name` is not meant */
    if (!o->tokenizer_id && (os_is_dir(name) || is_file(name)))
        return tok_files_find(f, name, o->lenient, err);
    if (!o->tokenizer_id && (*name == '/' || *name == '.')) /* meant as a path */
        return err_set(err, TINKER_ESTATE, "%s: no such file or directory", name);
    tinker_status status = tinker_tokenizer_resolve(name, o->tokenizer_id, &source, err);
    /* tokenizer_id may be a path, too */
    if (status == TINKER_OK && (os_is_dir(source.repo) || is_file(source.repo)))
        return tok_files_find(f, source.repo, o->lenient, err);
    if (status == TINKER_OK)
        status = hf_cache_find(source.repo, o->revision ? o->revision : source.revision, o->hf_home,
                               path, err);
    return status == TINKER_OK ? tok_files_find(f, path, o->lenient, err) : status;
}

/* ---- a loader of the caller's ---------------------------------------------------------------- */

/* What ask_loader() is asked for. */
struct asked {
    const tinker_tokenizer_options *o;
    tinker_tokenizer_source source;
};

/* Called by tok_cache_load(): the caller's loader, with an error that names the repository. */
static tinker_tokenizer *ask_loader(void *state, tinker_error *err)
{
    const struct asked *a = state;
    const char *revision = a->o->revision ? a->o->revision : a->source.revision;
    tinker_error mine = { 0 };
    tinker_tokenizer *t = a->o->loader(a->source.repo, revision, &mine, a->o->loader_state);
    if (t)
        return t;
    /* A loader that forgot to say why still fails. */
    tinker_status s = mine.status == TINKER_OK ? TINKER_EINVAL : mine.status;
    err_set(err, s, "tokenizer %s: %s", a->source.repo,
            mine.message[0] ? mine.message : "the loader returned none");
    return NULL;
}

/* Remembered by loader, its state, repository and revision. */
static tinker_tokenizer *load_by_loader(const char *name, const tinker_tokenizer_options *o,
                                        tinker_error *err)
{
    struct asked a = { .o = o };
    uint8_t identity[32];
    struct sha256 h;
    if (tinker_tokenizer_resolve(name, o->tokenizer_id, &a.source, err) != TINKER_OK)
        return NULL;
    const char *revision = o->revision ? o->revision : a.source.revision;
    sha256_init(&h);
    sha256_update(&h, "loader", 7); /* so that it is the identity of no file */
    sha256_update(&h, &o->loader, sizeof(o->loader));
    sha256_update(&h, &o->loader_state, sizeof(o->loader_state));
    sha256_update(&h, a.source.repo, strlen(a.source.repo) + 1);
    sha256_update(&h, revision, strlen(revision) + 1);
    sha256_final(&h, identity);
    return tok_cache_load(identity, ask_loader, &a, err);
}

tinker_tokenizer *tinker_tokenizer_load(const char *name, const tinker_tokenizer_options *opts,
                                        tinker_error *err)
{
    tinker_tokenizer_options o;
    char dir[HF_PATH];
    if (copy_options(&o, opts, err) != TINKER_OK)
        return NULL;
    if (!name || !*name) {
        err_set(err, TINKER_EINVAL, "no tokenizer was named");
        return NULL;
    }
    if (o.functions)
        return tok_from_functions(o.functions, err);
    if (o.loader)
        return load_by_loader(name, &o, err);
    struct tok_files *f = malloc(sizeof(*f)); /* three paths: too large for a small stack */
    if (!f) {
        err_nomem(err, "tokenizer");
        return NULL;
    }
    tinker_tokenizer *t = NULL;
    if (find_by_name(f, name, &o, err) == TINKER_OK) {
        struct request r = { f, o.no_prebuilt ? NULL : find_cache_dir(o.cache_dir, dir),
                             o.lenient != 0 };
        t = tok_cache_load(f->identity, load_request, &r, err);
    }
    free(f);
    return t;
}

/* No config means none of its settings, not that one is looked for. */
tinker_tokenizer *tinker_tokenizer_load_json(const char *json, size_t n, const char *config,
                                             size_t n_config, const tinker_tokenizer_options *opts,
                                             tinker_error *err)
{
    tinker_tokenizer_options o;
    if (copy_options(&o, opts, err) != TINKER_OK)
        return NULL;
    struct tok_source s = { .json = json, .json_n = n, .lenient = o.lenient != 0 };
    s.config = config ? config : "";
    s.config_n = config ? n_config : 0;
    return tok_load(&s, err);
}

/* A file of ranks holds tokens alone: how text is split and which tokens are special is the caller's
 * to say. */
tinker_tokenizer *tinker_tokenizer_load_ranks(const char *ranks, size_t n, const char *pattern,
                                              const tinker_special_token *special, size_t n_special,
                                              const tinker_tokenizer_options *opts,
                                              tinker_error *err)
{
    tinker_tokenizer_options o;
    if (copy_options(&o, opts, err) != TINKER_OK)
        return NULL;
    if (!pattern) {
        err_set(err, TINKER_EINVAL, "a rank file needs a pattern");
        return NULL;
    }
    struct tok_source s = { .config = "", .ranks = ranks, .ranks_n = n, .pattern = pattern };
    s.special = special;
    s.n_special = n_special;
    s.lenient = o.lenient != 0;
    return tok_load(&s, err);
}
