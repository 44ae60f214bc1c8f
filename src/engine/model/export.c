/* export.c - write base model plus adapter as a Hugging Face directory.
 *
 * W' = W + (alpha / r) B A in float, rounded to W's own type; files and shards as in
 * the base, one tensor in memory at a time.  An adapter on a tied head cannot be
 * merged into the embedding without changing the inputs too, so the export gets an
 * lm_head of its own and tie_word_embeddings false. */
#include "engine/model/adapter.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "base/os.h"
#include "engine/safetensors/weight_files.h"
#include "engine/layers/linear.h"
#include "json/json.h"

/* Companions are read as a whole; a tokenizer.json of 256 MiB does not exist. */
enum { SMALL_FILE_MAX = 256 << 20 };

struct exporting {
    const tinker_adapter *a;
    const struct arch_names *modules; /* what the model calls its modules */
    const char *head_name, *embed_name;
    const char *dir;
    struct arena arena;
    struct buf index; /* members of weight_map */
    uint64_t total;
    bool untie;         /* write an lm_head that the base does not have */
    struct map changes; /* by name of the weight */
    /* of the file being written */
    const struct st_tensor **tensors;
    const char **names;
    float *values;
    void *bytes;
    size_t capacity; /* elements in values and bytes */
};

/* What the adapter has for one weight of the model.  A weight of several linears (Phi's qkv) has
 * one per linear. */
struct change {
    struct lora_pair pair;    /* a NULL: none */
    size_t first, rows;       /* of the tensor; rows 0: all of them */
    const struct param *full; /* rank 0 */
    struct change *next;      /* of other rows of the same tensor */
};

/* Later lookups are by the name in the files, which a walk over tensors knows. */
static tinker_status add_change(struct exporting *x, const char *name, struct change change,
                                tinker_error *err)
{
    char stored[ENGINE_NAME];
    name = engine_file_name(x->a->engine, name, stored);
    change.next = map_get(&x->changes, name, strlen(name));
    struct change *copy = arena_memdup(&x->arena, &change, sizeof(change));
    if (!copy || !map_put(&x->changes, name, strlen(name), copy, NULL))
        return err_nomem(err, name);
    return TINKER_OK;
}

/* Visits all tensors of the model and notes what the adapter has for each.  Rank 0 has a full
 * replacement, LoRA a pair. */
static tinker_status note_change(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct exporting *x = state;
    const tinker_adapter *a = x->a;
    struct change change = { 0 };
    if (at->stored) {
        change.first = at->first;
        change.rows = at->rows;
    }
    /* Rank 0 keeps the module as one parameter. */
    if (!a->desc.rank && at->first)
        return TINKER_OK; /* came with the first rows of its module */
    if (!a->desc.rank)
        change.full = &a->params.list[x->changes.len]; /* they lie in the order of the walk */
    else if (at->kind == TENSOR_WEIGHT)
        change.pair = *lora_pair(&a->lora, at->layer, at->id);
    else if (at->kind == TENSOR_EXPERT)
        change.pair = lora_expert(lora_pair(&a->lora, at->layer, at->id), at->expert);
    return add_change(x, at->name, change, err);
}

/* values (rows, cols), the base's weight of this name, becomes the adapter's; false when it
 * stays what it was. */
static bool merge_weight(const struct exporting *x, const char *name, float *values, size_t rows,
                         size_t cols)
{
    const tinker_adapter *a = x->a;
    const struct change *change = map_get(&x->changes, name, strlen(name));
    bool changed = false;
    /* Changes of one tensor concern different rows, so their order does not matter. */
    for (; change; change = change->next) {
        if (change->full)
            /* Not added but replaced: the adapter has the whole weight. */
            memcpy(values, a->w + change->full->offset, rows * cols * sizeof(float));
        else if (change->pair.a)
            /* values += scale * B A */
            linear_nn(a->engine->threads, FACTORS_EXACT, values + change->first * cols,
                      change->pair.b, change->pair.a, change->rows ? change->rows : rows, cols,
                      a->lora.rank, a->lora.scale, 1);
        changed = changed || change->full || change->pair.a;
    }
    return changed;
}

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && strcmp(s + n - k, suffix) == 0;
}

/* Whether the tensor is a stack of all experts of a layer: "...<experts>.<module>".  The module's
 * name must be at the end: gate_up_proj_bias is another tensor. */
static bool is_expert_stack(const struct exporting *x, const struct st_tensor *t,
                            const char *module)
{
    const char *const experts[] = { x->modules->experts, x->modules->other_experts };
    char suffix[96];
    for (size_t i = 0; t->ndim == 3 && i < 2 && experts[i]; i++) {
        snprintf(suffix, sizeof(suffix), ".%s.%s", experts[i], module);
        if (ends_with(t->name, suffix))
            return true;
    }
    return false;
}

/* The matrix of expert e in a stack, laid out as merge_weight() wants it: put it into `one`, or with
 * back the other way.  A stack of columns has gates and ups in turn. */
static void move_expert(const struct exporting *x, float *stack, const size_t shape[3], bool pairs,
                        size_t e, size_t second, float *one, bool back)
{
    /* (experts, in, out) for GPT-OSS, (experts, out, in) for all others. */
    bool columns = x->a->engine->arch->stack == STACK_COLUMNS;
    size_t outs = shape[columns ? 2 : 1], in = shape[columns ? 1 : 2], per = pairs ? 2 : 1;
    float *from = stack + e * outs * in;
    for (size_t o = 0; o < outs / per; o++) {
        for (size_t i = 0; i < in; i++) {
            float *at = columns ? from + i * outs + o * per + second
                                : from + (second * (outs / per) + o) * in + i;
            if (back)
                *at = one[o * in + i];
            else
                one[o * in + i] = *at;
        }
    }
}

/* Merges every expert of a stack: gates and ups with pairs, else downs.  False: nothing changed, or
 * no memory, which *err says.  A stack is converted as a whole, merged expert by expert, and
 * converted back. */
static bool merge_stack(struct exporting *x, const char *name, float *values, const size_t shape[3],
                        bool pairs, tinker_error *err)
{
    bool changed = false, columns = x->a->engine->arch->stack == STACK_COLUMNS;
    size_t outs = shape[columns ? 2 : 1] / (pairs ? 2 : 1), in = shape[columns ? 1 : 2];
    enum linear_id first = pairs ? LINEAR_GATE : LINEAR_DOWN;
    enum linear_id end = pairs ? LINEAR_DOWN : LINEAR_DOWN + 1;
    /* The part of the name before the experts; the expert's own name is put together behind it. */
    const char *layer = strstr(name, x->modules->experts);
    if (!layer && x->modules->other_experts)
        layer = strstr(name, x->modules->other_experts);
    float *one = malloc(outs * in * sizeof(*one));
    if (!one || !layer) {
        free(one);
        err_nomem(err, name);
        return false;
    }
    for (size_t e = 0; e < shape[0]; e++) {
        for (enum linear_id id = first; id < end; id++) {
            char expert[ENGINE_NAME];
            snprintf(expert, sizeof(expert), "%.*s%s.%zu.%s.weight", (int)(layer - name), name,
                     x->modules->experts, e, x->modules->expert[id - LINEAR_GATE]);
            /* a matrix of its own takes precedence over the stack when the model is read */
            if (weight_files_find(x->a->engine->files, expert, NULL))
                continue;
            move_expert(x, values, shape, pairs, e, id == LINEAR_UP, one, false);
            if (merge_weight(x, expert, one, outs, in)) {
                move_expert(x, values, shape, pairs, e, id == LINEAR_UP, one, true);
                changed = true;
            }
        }
    }
    free(one);
    return changed;
}

/* Bytes of a tensor of the export; those of the base where the adapter does not change it. */
static const void *fetch_merged(void *state, size_t entry, tinker_error *err)
{
    struct exporting *x = state;
    const struct st_tensor *t = x->tensors[entry];
    const char *name = x->names[entry];
    bool changed = false;
    if (t->count > x->capacity) { /* grown for the largest tensor so far, and kept */
        free(x->values);
        free(x->bytes);
        x->values = malloc(t->count * sizeof(float));
        x->bytes = malloc(t->count * sizeof(float));
        x->capacity = x->values && x->bytes ? t->count : 0;
        if (!x->capacity) {
            err_nomem(err, "merged weights");
            return NULL;
        }
    }
    st_to_float(t->data, t->dtype, 0, t->count, x->values);
    if (is_expert_stack(x, t, x->modules->stacked_gate_up))
        changed = merge_stack(x, name, x->values, t->shape, true, err);
    else if (is_expert_stack(x, t, x->modules->stacked_down))
        changed = merge_stack(x, name, x->values, t->shape, false, err);
    else if (t->ndim == 1 || t->ndim == 2)
        changed =
            merge_weight(x, name, x->values, t->ndim == 2 ? t->shape[0] : 1, t->shape[t->ndim - 1]);
    /* Byte for byte: a weight that nobody trained must not be rounded again. */
    if (!changed)
        return t->data;
    st_from_float(x->values, t->dtype, t->count, x->bytes);
    return x->bytes;
}

/* The part after the last slash. */
static const char *file_name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Entry i of the file being written, and its line in the index. */
static bool add_entry(struct exporting *x, struct st_entry *e, size_t i, const struct st_tensor *t,
                      const char *name, const char *file)
{
    struct json_writer w;
    e[i] = (struct st_entry){ .name = name, .dtype = t->dtype, .ndim = t->ndim };
    memcpy(e[i].shape, t->shape, sizeof(t->shape));
    x->tensors[i] = t;
    x->names[i] = name;
    x->total += t->bytes;
    /* the index is written when all files are, but its lines are known here */
    if (x->index.len)
        buf_putc(&x->index, ',');
    json_writer_init(&w, &x->index);
    json_put_key(&w, name);
    json_put_string(&w, file);
    return buf_ok(&x->index);
}

/* One file of the base as a file of the export, with the same tensors in it but for the head.
 * Files and shards as in the base, so that a diff of the two directories shows what changed. */
static tinker_status export_file(struct exporting *x, size_t file, tinker_error *err)
{
    const struct weight_files *files = x->a->engine->files;
    const struct safetensors *s = &files->files[file];
    const char *name = file_name_of(s->path);
    struct st_entry *entries = arena_array(&x->arena, s->n + 1, sizeof(*entries));
    char *path = arena_printf(&x->arena, "%s/%s", x->dir, name);
    x->tensors = arena_array(&x->arena, s->n + 1, sizeof(*x->tensors));
    x->names = arena_array(&x->arena, s->n + 1, sizeof(*x->names));
    if (!entries || !path || !x->tensors || !x->names)
        return err_nomem(err, name);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->tensors[i];
        /* some files have a copy of the embedding there, which a tied model does not read */
        bool stale_head = x->a->engine->model->config.tied && strcmp(t->name, x->head_name) == 0;
        if (t->usable && !stale_head && !add_entry(x, entries, n++, t, t->name, name))
            return err_nomem(err, name);
        /* the new head starts from the embedding and is merged under its own name */
        if (x->untie && strcmp(t->name, x->embed_name) == 0 &&
            !add_entry(x, entries, n++, t, x->head_name, name))
            return err_nomem(err, name);
    }
    return safetensors_write(path, entries, n, fetch_merged, x, err);
}

/* config.json as it was, but for the tie.  Only the member itself is rewritten, so a setting that
 * we do not know survives. */
static tinker_status untie_config(struct exporting *x, const char *text, size_t len,
                                  struct buf *out, tinker_error *err)
{
    struct json_reader r;
    struct json_writer w;
    struct json_str key, raw;
    json_reader_init(&r, text, len, &x->arena);
    json_writer_init(&w, out);
    json_begin_object(&r);
    /* every other member is copied as text, in its order */
    json_put_begin_object(&w);
    while (json_next_key(&r, &key)) {
        json_put_key_n(&w, key.s, key.n);
        bool tie = json_str_is(key, "tie_word_embeddings");
        if (!json_raw(&r, &raw))
            break;
        if (tie)
            json_put_bool(&w, false);
        else
            json_put_raw(&w, raw.s, raw.n);
    }
    json_put_end_object(&w);
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "config.json: %s", json_error(&r));
    return buf_ok(out) ? TINKER_OK : err_nomem(err, "config.json");
}

/* Unchanged but for config.json of a model whose head is no longer tied.  GGUF and safetensors are
 * not copied: their extension is not in copy_companions()'s list. */
static tinker_status copy_file(struct exporting *x, const char *name, tinker_error *err)
{
    char *from = arena_printf(&x->arena, "%s/%s", x->a->engine->dir, name), *text;
    char *to = arena_printf(&x->arena, "%s/%s", x->dir, name);
    size_t len;
    if (!from || !to)
        return err_nomem(err, name);
    tinker_status status = os_read_file(from, SMALL_FILE_MAX, &text, &len, err);
    if (status != TINKER_OK)
        return status;
    struct buf changed;
    buf_init(&changed, SMALL_FILE_MAX);
    if (x->untie && strcmp(name, "config.json") == 0) {
        status = untie_config(x, text, len, &changed, err);
        if (status == TINKER_OK)
            status = os_write_file(to, changed.data, changed.len, err);
    } else {
        status = os_write_file(to, text, len, err);
    }
    buf_clear(&changed);
    free(text);
    return status;
}

/* Copies configuration and tokenizer: the small text files beside the weights. */
static tinker_status copy_companions(struct exporting *x, tinker_error *err)
{
    static const char *const kinds[] = { ".json", ".txt", ".model", ".jinja" };
    DIR *d = opendir(x->a->engine->dir);
    if (!d)
        return err_errno(err, "open", x->a->engine->dir);
    tinker_status status = TINKER_OK;
    struct dirent *entry;
    while (status == TINKER_OK && (entry = readdir(d)) != NULL) {
        const char *name = entry->d_name;
        bool wanted = false;
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
            wanted |= ends_with(name, kinds[i]);
        /* the export has an index of its own, if any */
        if (wanted && name[0] != '.' && strcmp(name, "model.safetensors.index.json") != 0)
            status = copy_file(x, name, err);
    }
    closedir(d);
    return status;
}

/* The index of a sharded export.  Written last, when the total size is known. */
static tinker_status write_export_index(struct exporting *x, tinker_error *err)
{
    struct buf text;
    char *path = arena_printf(&x->arena, "%s/model.safetensors.index.json", x->dir);
    if (!path)
        return err_nomem(err, "index");
    buf_init(&text, 64 << 20);
    buf_printf(&text, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{",
               (unsigned long long)x->total);
    buf_append(&text, x->index.data, x->index.len);
    buf_puts(&text, "}}");
    tinker_status status =
        buf_ok(&text) ? os_write_file(path, text.data, text.len, err) : err_nomem(err, "index");
    buf_clear(&text);
    return status;
}

/* The tensor of a module as the files call it.  Our names may differ from those in the files, of
 * which e->names is one spelling. */
static const char *file_name_in(struct exporting *x, const char *module)
{
    char ours[ENGINE_NAME], stored[ENGINE_NAME];
    snprintf(ours, sizeof(ours), "%s.weight", module);
    return arena_strdup(&x->arena, engine_file_name(x->a->engine, ours, stored));
}

tinker_status tinker_adapter_export(const tinker_adapter *a, const char *dir, tinker_error *err)
{
    struct exporting x = { .a = a, .dir = dir };
    const tinker_engine *e = a->engine;
    struct stat to, from;
    /* A GGUF base has no config.json and no shards to imitate. */
    if (e->gguf)
        return err_set(err, TINKER_EINVAL, "%s is a GGUF file: write the merged model as GGUF, too",
                       e->dir);
    /* Compared by device and inode: a symbolic link or ".." would hide it from a comparison of
     * names. */
    if (stat(dir, &to) == 0 && stat(e->dir, &from) == 0 && to.st_dev == from.st_dev &&
        to.st_ino == from.st_ino)
        return err_set(err, TINKER_EINVAL, "%s is the base model itself", dir);
    /* Their scales have a precision of powers of two, and the merged weights would be rounded to
     * them. */
    if (e->mxfp4)
        return err_set(err, TINKER_EINVAL,
                       "the MXFP4 experts of %s cannot be merged: export the adapter itself",
                       e->dir);
    tinker_status status = os_make_dirs(dir, err);
    if (status != TINKER_OK)
        return status;
    arena_init(&x.arena, SIZE_MAX);
    buf_init(&x.index, 64 << 20);
    map_init(&x.changes);
    /* A trained head of a tied model; see the top of the file. */
    x.untie =
        e->model->config.tied && a->desc.rank && lora_head(&a->lora, e->model->config.layers)->a;
    x.modules = e->names;
    x.head_name = file_name_in(&x, x.modules->head);
    x.embed_name = file_name_in(&x, x.modules->embed);
    const struct model_config *c = &e->model->config;
    status =
        x.head_name && x.embed_name ? model_tensors(c, note_change, &x, err) : err_nomem(err, dir);
    if (status == TINKER_OK && a->desc.rank) { /* the head's own pair, also when it is tied */
        struct change head = { .pair = *lora_head(&a->lora, c->layers) };
        status = add_change(&x, x.head_name, head, err);
    }
    /* Weights first and the companions last: a directory without config.json is seen to be
     * incomplete. */
    for (size_t i = 0; status == TINKER_OK && i < e->files->n; i++)
        status = export_file(&x, i, err);
    /* a single model.safetensors needs no index */
    bool single =
        e->files->n == 1 && strcmp(file_name_of(e->files->files[0].path), "model.safetensors") == 0;
    if (status == TINKER_OK && !single)
        status = write_export_index(&x, err);
    if (status == TINKER_OK)
        status = copy_companions(&x, err);
    /* The names of the new files must reach the disk, too. */
    if (status == TINKER_OK)
        status = os_sync_dir(dir, err);
    free(x.values);
    free(x.bytes);
    map_clear(&x.changes);
    buf_clear(&x.index);
    arena_clear(&x.arena);
    return status;
}
