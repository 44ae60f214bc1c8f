/* adapter_save.c - an adapter as files in PEFT layout, and its training state.
 *
 * adapter_config.json and adapter_model.safetensors are what PEFT reads;
 * optimizer.safetensors holds the moments (and a pending gradient) under the
 * parameter's name plus .exp_avg, .exp_avg_sq, .grad; trainer_state.json the rest.
 * A rank-0 adapter stores every weight under its HF name, with r = 0.  Experts are stacks
 * of three dimensions (params.h); the form of PEFT is in peft_form.h. */
#include "engine/model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "engine/model/peft_form.h"
#include "engine/safetensors/safetensors.h"
#include "json/json.h"

/* Members of the JSON files. */
static void put_text_member(struct json_writer *w, const char *key, const char *value)
{
    json_put_key(w, key);
    json_put_string(w, value);
}

static void put_flag_member(struct json_writer *w, const char *key, bool value)
{
    json_put_key(w, key);
    json_put_bool(w, value);
}

static void put_int_member(struct json_writer *w, const char *key, int64_t value)
{
    json_put_key(w, key);
    json_put_int64(w, value);
}

static void put_empty_member(struct json_writer *w, const char *key)
{
    json_put_key(w, key);
    json_put_begin_object(w);
    json_put_end_object(w);
}

/* For qsort() of an array of strings. */
static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whether an adapter trains a linear in any layer; gate, up and down may be those of experts. */
static bool trains_linear(const struct model_config *c, const tinker_lora *l, enum linear_id id)
{
    if (!(linear_is_attention(id) ? l->train_attn : l->train_mlp))
        return false;
    if (id >= LINEAR_GATE && id <= LINEAR_DOWN)
        return true;
    for (size_t i = 0; i < c->layers; i++)
        if (model_has_linear(c, i, id))
            return true;
    return false;
}

/* target_modules: the last parts of the module names in alphabetical order, as PEFT writes them. */
static void put_target_modules(struct json_writer *w, const struct model_config *c,
                               const tinker_lora *l)
{
    const struct arch_names *names = c->arch->names;
    /* all linears of a layer and the head */
    const char *modules[LINEARS + 1];
    size_t n = 0, kept = 0, first, rows;
    for (enum linear_id id = 0; id < LINEARS; id++)
        if (trains_linear(c, l, id))
            modules[n++] = model_module(c, id, &first, &rows);
    if (l->train_unembed)
        modules[n++] = names->adapter_head;
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(modules[i], '.');
        modules[i] = dot ? dot + 1 : modules[i];
    }
    qsort(modules, n, sizeof(*modules), compare_strings);
    /* linears may share a module, and modules the last part of their names */
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(modules[kept - 1], modules[i]) != 0)
            modules[kept++] = modules[i];
    n = kept;
    json_put_key(w, "target_modules");
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_put_string(w, modules[i]);
    json_put_end_array(w);
}

/* What the JSON documents are made of. */
struct document {
    const tinker_adapter *a;
    const char *base_name;
};

/* The members that PEFT reads; the others have PEFT's defaults. */
static void put_adapter_config(struct json_writer *w, const struct document *d)
{
    const tinker_adapter *a = d->a;
    json_put_begin_object(w);
    put_text_member(w, "peft_type", a->desc.rank ? "LORA" : "FULL");
    put_text_member(w, "task_type", "CAUSAL_LM");
    put_text_member(w, "base_model_name_or_path", d->base_name);
    put_int_member(w, "r", a->desc.rank);
    json_put_key(w, "lora_alpha");
    /* an integer where it is one, as PEFT writes it */
    if (fabs(a->alpha) < 0x1p53 && a->alpha == (double)(int64_t)a->alpha)
        json_put_int64(w, (int64_t)a->alpha);
    else
        json_put_double(w, a->alpha);
    put_target_modules(w, &a->engine->model->config, &a->desc);
    json_put_key(w, "lora_dropout");
    json_put_double(w, 0);
    put_text_member(w, "bias", "none");
    put_flag_member(w, "fan_in_fan_out", false);
    put_flag_member(w, "inference_mode", true);
    put_flag_member(w, "init_lora_weights", true);
    /* as PEFT writes them */
    json_put_key(w, "modules_to_save");
    json_put_null(w);
    put_empty_member(w, "rank_pattern");
    put_empty_member(w, "alpha_pattern");
    json_put_end_object(w);
}

/* What continues training besides tensors; tinker_adapter_load() reads most of it. */
static void put_trainer_state(struct json_writer *w, const struct document *d)
{
    const tinker_adapter *a = d->a;
    char created[32];
    /* for people; nothing reads it */
    clock_format_rfc3339(clock_wall_ns(clock_real()), created);
    json_put_begin_object(w);
    put_int_member(w, "format", 1);
    put_int_member(w, "step", a->steps);
    if (a->desc.optimizer)
        put_text_member(w, "optimizer", a->desc.optimizer);
    json_put_key(w, "lora");
    json_put_begin_object(w);
    put_int_member(w, "rank", a->desc.rank);
    json_put_key(w, "alpha");
    json_put_double(w, a->alpha);
    put_int_member(w, "seed", a->desc.seed);
    put_flag_member(w, "train_attn", a->desc.train_attn);
    put_flag_member(w, "train_mlp", a->desc.train_mlp);
    put_flag_member(w, "train_unembed", a->desc.train_unembed);
    json_put_end_object(w);
    put_text_member(w, "base_model", d->base_name);
    put_text_member(w, "base_fingerprint", a->engine->fingerprint);
    put_text_member(w, "engine_version", TINKER_VERSION);
    put_text_member(w, "created", created);
    json_put_end_object(w);
}

/* One JSON file of dir; put writes the document. */
static tinker_status write_json(const struct document *d, const char *dir, const char *name,
                                void (*put)(struct json_writer *w, const struct document *d),
                                tinker_error *err)
{
    struct buf text, path;
    struct json_writer w;
    buf_init(&text, 1 << 20);
    buf_init(&path, 1 << 16);
    json_writer_init(&w, &text);
    put(&w, d);
    buf_printf(&path, "%s/%s", dir, name);
    tinker_status status = buf_ok(&text) && buf_ok(&path)
                               ? os_write_file(path.data, text.data, text.len, err)
                               : err_nomem(err, name);
    buf_clear(&text);
    buf_clear(&path);
    return status;
}

/* The tensors of one file. */
struct saving {
    const tinker_adapter *a;
    struct arena arena;
    struct st_entry *entries;
    const float **data;
    size_t n;
    enum source_dtype dtype;
    void *converted; /* of the tensor that was fetched last */
};

/* Data of one tensor as it is written; see st_fetch. */
static const void *fetch_param(void *state, size_t entry, tinker_error *err)
{
    struct saving *s = state;
    size_t n = 1;
    if (s->dtype == SOURCE_F32)
        return s->data[entry];
    /* elements of the tensor */
    for (size_t i = 0; i < s->entries[entry].ndim; i++)
        n *= s->entries[entry].shape[i];
    /* the writer is done with the previous tensor: one conversion in memory at a time */
    free(s->converted);
    s->converted = malloc(n * st_dtype_size(s->dtype));
    if (s->converted)
        st_from_float(s->data[entry], s->dtype, n, s->converted);
    else
        err_nomem(err, "adapter files");
    return s->converted;
}

/* One matrix, vector or stack; name NULL: out of memory. */
/* Appends to the list, which was made large enough. */
static bool add_saved_tensor(struct saving *s, const struct param *p, const char *name, bool stack,
                             const float *data)
{
    struct st_entry *e = &s->entries[s->n];
    *e = (struct st_entry){ .name = name, .dtype = s->dtype };
    if (stack)
        e->shape[e->ndim++] = p->stack;
    if (!p->vector)
        e->shape[e->ndim++] = p->rows;
    e->shape[e->ndim++] = p->cols;
    s->data[s->n++] = data;
    return name != NULL;
}

/* All parameters of one buffer, under their names plus suffix. */
static bool add_saved_buffer(struct saving *s, const float *buffer, const char *suffix)
{
    const struct params *all = &s->a->params;
    bool ok = true;
    for (size_t i = 0; ok && i < all->n; i++) {
        const struct param *p = &all->list[i];
        char *name = arena_printf(&s->arena, "%s%s", p->name, suffix);
        ok = add_saved_tensor(s, p, name, p->stack > 0, buffer + p->offset);
    }
    return ok;
}

/* Writes the parameters of n buffers, each with its suffix, into one file of dir. */
static tinker_status write_buffers(const tinker_adapter *a, int flags, const float *const *buffer,
                                   const char *const *suffix, size_t n, const char *dir,
                                   const char *file, tinker_error *err)
{
    struct saving s = { .a = a, .dtype = flags & TINKER_ADAPTER_BF16 ? SOURCE_BF16 : SOURCE_F32 };
    size_t most = a->params.n * n;
    arena_init(&s.arena, SIZE_MAX);
    s.entries = arena_array(&s.arena, most, sizeof(*s.entries));
    s.data = arena_array(&s.arena, most, sizeof(*s.data));
    char *path = arena_printf(&s.arena, "%s/%s", dir, file);
    bool ok = path && s.entries && s.data;
    for (size_t i = 0; ok && i < n; i++)
        ok = add_saved_buffer(&s, buffer[i], suffix[i]);
    tinker_status status = ok ? safetensors_write(path, s.entries, s.n, fetch_param, &s, err)
                              : err_nomem(err, "adapter files");
    free(s.converted);
    arena_clear(&s.arena);
    return status;
}

/* The weights and adapter_config.json as PEFT reads them. */
static tinker_status write_peft(const tinker_adapter *a, int flags, const char *dir,
                                const char *base_name, tinker_error *err)
{
    const struct params *all = &a->params;
    struct peft_settings settings = { .config = &a->engine->model->config,
                                      .base_name = base_name,
                                      .rank = a->desc.rank,
                                      .alpha = a->alpha,
                                      .bf16 = flags & TINKER_ADAPTER_BF16 };
    struct peft_source *list = calloc(all->n, sizeof(*list));
    if (!list)
        return err_nomem(err, "adapter files");
    for (size_t i = 0; i < all->n; i++) {
        const struct param *p = &all->list[i];
        list[i] = (struct peft_source){ .name = p->name, .data = a->w + p->offset };
        list[i].dtype = SOURCE_F32;
        if (p->stack)
            list[i].shape[list[i].ndim++] = p->stack;
        list[i].shape[list[i].ndim++] = p->rows;
        list[i].shape[list[i].ndim++] = p->cols;
    }
    tinker_status status = peft_form_write(dir, &settings, list, all->n, err);
    free(list);
    return status;
}

tinker_status tinker_adapter_save(const tinker_adapter *a, const char *dir, const char *base_name,
                                  int flags, tinker_error *err)
{
    struct document document = { a, base_name ? base_name : "" };
    bool optimizer = flags & TINKER_ADAPTER_OPTIMIZER;
    if (optimizer && a->snapshot)
        return err_set(err, TINKER_EINVAL, "this adapter is a snapshot: it has no optimizer state");
    const float *weights[] = { a->w };
    bool peft = (flags & TINKER_ADAPTER_PEFT) && a->desc.rank; /* PEFT has no rank 0 */
    tinker_status status;
    if (peft)
        status = write_peft(a, flags, dir, document.base_name, err);
    else
        status = write_buffers(a, flags, weights, (const char *const[]){ "" }, 1, dir,
                               "adapter_model.safetensors", err);
    if (status == TINKER_OK && !peft)
        status = write_json(&document, dir, "adapter_config.json", put_adapter_config, err);
    if (status == TINKER_OK && optimizer) {
        /* in full precision, with our own names; moments that do not exist yet are zero */
        static const char *const suffix[] = { ".exp_avg", ".exp_avg_sq", ".grad" };
        float *zero = a->m && a->v ? NULL : adapter_buffer(a);
        const float *state[] = { a->m ? a->m : zero, a->v ? a->v : zero, a->grad };
        status = state[0] && state[1] ? write_buffers(a, 0, state, suffix, a->grad ? 3 : 2, dir,
                                                      "optimizer.safetensors", err)
                                      : err_nomem(err, "adapter files");
        free(zero);
    }
    if (status == TINKER_OK && optimizer)
        status = write_json(&document, dir, "trainer_state.json", put_trainer_state, err);
    /* the names in the directory, too, must survive a power failure */
    return status == TINKER_OK ? os_sync_dir(dir, err) : status;
}
