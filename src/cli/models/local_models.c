/* local_models.c - see local_models.h. */
#include "cli/models/local_models.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tinker/engine.h>

#include "base/arena.h"
#include "base/os.h"
#include "cli/models/known_models.h"
#include "cli/output/fmt.h"
#include "cli/serve/serve_place.h"
#include "gguf/gguf.h"
#include "json/json.h"

/* Far above any real config.json, some of which hold tables. */
enum { CONFIG_MAX = 1 << 22 };

/* Numbers of config.json; those of a text_config inside it count, too. */
static bool read_config_members(struct json_reader *r, struct local_model *m)
{
    static const struct {
        const char *key;
        size_t at;
    } numbers[] = {
        { "max_position_embeddings", offsetof(struct local_model, context) },
        { "hidden_size", offsetof(struct local_model, hidden) },
        { "num_hidden_layers", offsetof(struct local_model, layers) },
    };
    struct json_str key;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        enum json_kind kind = json_peek(r);
        int64_t *place = NULL;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
            if (json_str_is(key, numbers[i].key) && kind == JSON_NUMBER)
                place = (int64_t *)((char *)m + numbers[i].at);
        if (place) {
            ok = json_int64(r, place);
        } else if (json_str_is(key, "text_config") && kind == JSON_OBJECT) {
            ok = read_config_members(r, m);
        } else if (json_str_is(key, "model_type") && kind == JSON_STRING && !m->type[0]) {
            char *text = NULL;
            ok = json_cstring(r, &text);
            if (ok)
                snprintf(m->type, sizeof(m->type), "%s", text);
        } else {
            ok = json_skip(r);
        }
    }
    return ok;
}

/* Without config.json the model is listed with what is known from its files. */
static void read_model_config(struct local_model *m)
{
    char path[MODEL_DIR_MAX + 32], *text;
    size_t n;
    struct arena arena;
    struct json_reader r;
    snprintf(path, sizeof(path), "%s/config.json", m->dir);
    if (os_read_file(path, CONFIG_MAX, &text, &n, NULL) != TINKER_OK)
        return;
    arena_init(&arena, CONFIG_MAX * 4);
    json_reader_init(&r, text, n, &arena);
    read_config_members(&r, m);
    arena_clear(&arena);
    free(text);
}

/* What lies on disk is the only measure that needs no opening of the files. */
static void measure_files(struct local_model *m)
{
    DIR *d = opendir(m->dir);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[MODEL_DIR_MAX + 300];
        struct stat st;
        size_t n = strlen(e->d_name);
        snprintf(path, sizeof(path), "%s/%s", m->dir, e->d_name);
        if (n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0 && stat(path, &st) == 0)
            m->weight_bytes += (int64_t)st.st_size;
        m->has_tokenizer = m->has_tokenizer || strcmp(e->d_name, "tokenizer.json") == 0 ||
                           strstr(e->d_name, ".tiktoken") != NULL;
    }
    if (d)
        closedir(d);
}

/* The same of a GGUF file, or all parts of one; nothing of one that is not whole. */
static void read_gguf(struct local_model *m)
{
    static const struct {
        const char *key;
        size_t at;
    } numbers[] = {
        { "context_length", offsetof(struct local_model, context) },
        { "embedding_length", offsetof(struct local_model, hidden) },
        { "block_count", offsetof(struct local_model, layers) },
    };
    struct gguf g;
    const char *s;
    size_t n;
    if (gguf_open(&g, m->dir, NULL) != TINKER_OK)
        return;
    if (gguf_get_string(&g, "general.architecture", &s, &n) && n < sizeof(m->type))
        snprintf(m->type, sizeof(m->type), "%.*s", (int)n, s);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        char key[128];
        int64_t value;
        /* Keys of GGUF begin with the architecture: "qwen3.context_length". */
        snprintf(key, sizeof(key), "%s.%s", m->type, numbers[i].key);
        if (gguf_get_int(&g, key, &value))
            *(int64_t *)((char *)m + numbers[i].at) = value;
    }
    /* Quantized blocks as they are stored, which is also what they take in memory. */
    for (size_t i = 0; i < g.n; i++)
        m->weight_bytes += (int64_t)g.tensors[i]->bytes;
    m->has_tokenizer = gguf_get(&g, "tokenizer.ggml.tokens") != NULL;
    gguf_close(&g);
}

void local_models_read(const char *dir, struct local_model *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->dir, sizeof(out->dir), "%s", dir);
    /* A GGUF file is a model by itself; a directory with such a name is one with config.json. */
    if (gguf_is_name(dir) && !os_is_dir(dir)) {
        read_gguf(out);
    } else {
        read_model_config(out);
        measure_files(out);
    }
}

/* A name counts once: the bundled model, then the cache, then directories that were served. */
static bool add_model(struct local_models *out, const char *name, const char *dir,
                      const char *place)
{
    for (size_t i = 0; i < out->n; i++)
        if (strcmp(out->v[i].name, name) == 0)
            return true;
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 8;
        struct local_model *v = realloc(out->v, cap * sizeof(*v));
        if (!v)
            return false;
        out->v = v;
        out->cap = cap;
    }
    struct local_model *m = &out->v[out->n++];
    local_models_read(dir, m);
    snprintf(m->name, sizeof(m->name), "%s", name);
    m->place = place;
    return true;
}

/* models--OWNER--NAME in the folder of the Hub's cache.
 * Only finished downloads count: model_dir_cached() wants refs/main. */
static bool add_cached(struct local_models *out)
{
    char folder[MODEL_FOLDER_MAX], dir[MODEL_DIR_MAX], id[256];
    bool ok = true;
    model_dir_folder("a/b", folder);
    *strrchr(folder, '/') = 0;
    DIR *d = opendir(folder);
    for (const struct dirent *e; ok && d && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "models--", 8) != 0)
            continue;
        /* The first "--" parts owner and name; owners have none in theirs. */
        const char *name = e->d_name + 8, *dashes = strstr(name, "--");
        if (!dashes)
            continue;
        snprintf(id, sizeof(id), "%.*s/%s", (int)(dashes - name), name, dashes + 2);
        if (model_dir_cached(id, dir))
            ok = add_model(out, id, dir, "cache");
    }
    if (d)
        closedir(d);
    return ok;
}

/* Directories are remembered by name; the files may be gone since. */
static void add_known(const char *name, const char *dir, void *state)
{
    if (model_dir_is_model(dir))
        add_model(state, name, dir, "directory");
}

static int compare_models(const void *a, const void *b)
{
    return strcasecmp(((const struct local_model *)a)->name, ((const struct local_model *)b)->name);
}

/* Sorted by name, in any case, so that the list does not change with the order in which a file
 * system returns its entries. */
bool local_models_find(struct local_models *out)
{
    char dir[MODEL_DIR_MAX], data[SERVE_PLACE_MAX];
    memset(out, 0, sizeof(*out));
    bool ok = !model_dir_bundled(dir) || add_model(out, MODEL_DIR_BUNDLED, dir, "bundled");
    ok = ok && add_cached(out);
    if (ok && serve_place_data(NULL, data))
        known_models_each(data, add_known, out);
    if (out->n > 1)
        qsort(out->v, out->n, sizeof(*out->v), compare_models);
    return ok;
}

/* All texts are in the array itself. */
void local_models_clear(struct local_models *m)
{
    free(m->v);
    memset(m, 0, sizeof(*m));
}

/* Three measures of one model: as stored, with a full context of cache, and as q4, which is what
 * --dtype would do. */
void local_models_measure(struct local_model *m)
{
    tinker_engine_options options = TINKER_ENGINE_OPTIONS_INIT;
    tinker_model_needs stored = TINKER_MODEL_NEEDS_INIT, whole = stored, q4 = stored;
    tinker_error err = { 0 };
    options.dtype = TINKER_WEIGHTS_STORED;
    m->loads = tinker_model_measure(m->dir, &options, &stored, &err) == TINKER_OK;
    if (!m->loads) {
        snprintf(m->problem, sizeof(m->problem), "%s", err.message);
        return;
    }
    m->context = stored.context;
    m->weights = (int64_t)stored.weights;
    m->training = (int64_t)(stored.weights + stored.adapter + stored.pass);
    m->trains = stored.trains;
    whole.tokens = stored.context;
    if (tinker_model_measure(m->dir, &options, &whole, &err) == TINKER_OK)
        m->context_cache = (int64_t)whole.cache;
    options.dtype = TINKER_WEIGHTS_Q4;
    if (tinker_model_measure(m->dir, &options, &q4, &err) == TINKER_OK)
        m->trains_q4 = q4.trains;
}

const char *local_models_fit(const struct local_model *m, char text[LOCAL_FIT_MAX])
{
    char size[FMT_TEXT];
    /* Rows of chat data have a few hundred tokens: a model that trains on 512 is of use. */
    int64_t useful = m->context < 512 ? m->context : 512;
    if (!m->loads)
        return "does not load";
    /* From best to worst; the first that holds is what a user should do. */
    if (m->trains >= m->context)
        return "yes";
    if (m->trains >= useful)
        snprintf(text, LOCAL_FIT_MAX, "to %lld tokens", (long long)m->trains);
    else if (m->trains_q4 >= useful && !gguf_is_name(m->dir))
        snprintf(text, LOCAL_FIT_MAX, "with --dtype q4");
    else if ((uint64_t)m->weights < os_memory_free())
        snprintf(text, LOCAL_FIT_MAX, "to sample; training needs %s", fmt_size(m->training, size));
    else
        snprintf(text, LOCAL_FIT_MAX, "no, needs %s", fmt_size(m->weights, size));
    return text;
}

/* Anywhere in the name, in any case: "Meta-Llama-3" is a Llama. */
static bool has_word(const char *name, const char *word)
{
    for (; *name; name++)
        if (strncasecmp(name, word, strlen(word)) == 0)
            return true;
    return false;
}

/* 5e-5 * 10 (LoRA) * (2000 / hidden)^k, calibrated for two families. */
double local_models_rate(const char *name, int64_t hidden)
{
    bool llama = has_word(name, "llama"), qwen = has_word(name, "qwen");
    if (hidden <= 0 || (!llama && !qwen))
        return 0;
    return 5e-5 * 10 * pow(2000.0 / (double)hidden, llama ? 0.781 : 0.0775);
}
