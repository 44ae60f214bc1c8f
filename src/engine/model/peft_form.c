/* peft_form.c - see peft_form.h. */
#include "engine/model/peft_form.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/os.h"
#include "json/json.h"

/* What becomes of the sources of one tensor. */
enum part_kind { PART_COPY, PART_STACK_A, PART_STACK_B };

/* One tensor to write: a copy of source[0], or the factors of all experts of a layer, of
 * source[0] (gate or down) and source[1] (up; NULL for down).  What a part is made from is decided
 * while the names are listed; the data is made when the file is written. */
struct peft_part {
    enum part_kind kind;
    const struct peft_source *source[2];
    size_t rank, experts;
    bool in_turn; /* rows of gate and up alternate */
};

struct peft_writing {
    const struct peft_settings *s;
    const struct peft_source *sources;
    size_t n_sources;
    struct arena arena;
    struct st_entry *entries;
    struct peft_part *parts;
    size_t n;
    void *built; /* of the tensor that was fetched last */
    const char **modules, **parameters;
    size_t n_modules, n_parameters;
    bool fused; /* there is a pair of twice the rank */
};

/* Prefix of every tensor of a PEFT checkpoint. */
static const char prefix[] = "base_model.model.";

/* The name of a layer's experts in memory of transformers. */
static const char *peft_experts(const struct arch_names *names)
{
    return names->other_experts ? names->other_experts : names->experts;
}

/* Splits "base_model.model.<layers>.<i>.<experts>.<w1>.lora_A.weight" at the expert's part.
 * Returns the index of gate, up or down, EXPERT_LINEARS: the name is another.  *rest is
 * "lora_A.weight". */
static size_t split_stack_name(const struct arch_names *names, const char *name, size_t *before,
                               const char **rest)
{
    for (size_t i = 0; names->experts && i < EXPERT_LINEARS; i++) {
        char part[64];
        int n = snprintf(part, sizeof(part), ".%s.%s.", names->experts, names->adapter_expert[i]);
        const char *at = strstr(name, part);
        if (at) {
            *before = (size_t)(at - name) + 1;
            *rest = at + n;
            return i;
        }
    }
    return EXPERT_LINEARS;
}

/* The same layer's stack of another expert linear, or of the other factor; NULL: not there. */
static const struct peft_source *find_stack(const struct peft_writing *w, const char *name,
                                            size_t before, size_t linear, const char *factor)
{
    const struct arch_names *names = w->s->config->arch->names;
    char wanted[PARAM_NAME];
    snprintf(wanted, sizeof(wanted), "%.*s%s.%s.%s.weight", (int)before, name, names->experts,
             names->adapter_expert[linear], factor);
    for (size_t i = 0; i < w->n_sources; i++)
        /* A linear search: an adapter has a few hundred tensors, and stacks are few of them. */
        if (strcmp(w->sources[i].name, wanted) == 0)
            return &w->sources[i];
    return NULL;
}

/* A list of texts without repeats, for target_modules and target_parameters. */
static void add_target(const char **list, size_t *n, const char *text)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(list[i], text) == 0)
            return;
    list[(*n)++] = text;
}

/* For qsort() of an array of strings. */
static int compare_targets(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* How PEFT finds the module of a tensor.  By the last part of its name; but PEFT takes mlp names of
 * models with experts for those of experts, so there the module's weight is named as a parameter. */
static bool note_target(struct peft_writing *w, const char *name)
{
    const char *end = strstr(name, ".lora_"), *in_layer = strstr(name, ".layers.");
    char *module = end ? arena_strndup(&w->arena, name, (size_t)(end - name)) : NULL;
    if (!module)
        return false;
    /* The number is followed by a dot, behind which the module's name in the layer begins. */
    if (in_layer) /* behind the layer's number */
        in_layer = strchr(in_layer + strlen(".layers."), '.');
    if (w->s->config && w->s->config->experts && in_layer && !strstr(in_layer, "attn.")) {
        char *key = arena_printf(&w->arena, "%.*s.weight", (int)(end - in_layer - 1), in_layer + 1);
        if (key)
            add_target(w->parameters, &w->n_parameters, key);
        return key != NULL;
    }
    const char *dot = strrchr(module, '.');
    add_target(w->modules, &w->n_modules, dot ? dot + 1 : module);
    return true;
}

/* A tensor that keeps its shape. */
static tinker_status add_copy(struct peft_writing *w, const struct peft_source *source,
                              tinker_error *err)
{
    static const char head[] = "base_model.model.model.unembed_tokens.";
    char name[PARAM_NAME];
    if (w->s->config)
        params_peft_name(w->s->config, source->name, name);
    else if (strncmp(source->name, head, sizeof(head) - 1) == 0)
        snprintf(name, sizeof(name), "%slm_head.%s", prefix, source->name + sizeof(head) - 1);
    else
        snprintf(name, sizeof(name), "%s", source->name);
    struct st_entry *e = &w->entries[w->n];
    e->name = arena_strdup(&w->arena, name);
    e->dtype = w->s->bf16 ? SOURCE_BF16 : source->dtype;
    /* Stacks keep a shape of their own; see add_stack(). */
    e->ndim = source->ndim;
    memcpy(e->shape, source->shape, sizeof(source->shape));
    w->parts[w->n++] = (struct peft_part){ .kind = PART_COPY, .source = { source } };
    /* After the part is noted: the error names it, and the caller writes nothing. */
    if (!strstr(name, ".lora_A.") && !strstr(name, ".lora_B."))
        return err_set(err, TINKER_EINVAL, "tensor %.120s is no factor of an adapter", name);
    /* PEFT refuses to wrap single experts of a stacked model. */
    if (strstr(name, ".experts."))
        return err_set(err, TINKER_ESTATE,
                       "its experts have factors of their own (%.120s), which PEFT applies only as "
                       "stacks",
                       name);
    return e->name && note_target(w, name) ? TINKER_OK : err_nomem(err, "adapter files");
}

/* Whether a stack has the shape that this model needs: (1 or experts, rows, cols). */
static bool fits_model(const struct peft_source *s, const struct peft_source *like, size_t experts,
                       size_t rows, size_t cols)
{
    return s && s->ndim == 3 && (s->shape[0] == 1 || s->shape[0] == experts) &&
           s->shape[1] == rows && s->shape[2] == cols && s->dtype == like->dtype;
}

/* Both factors of one parameter of a layer's experts: linear is gate, for both gate and up, or
 * down. */
static tinker_status add_stack(struct peft_writing *w, const char *name, size_t before,
                               size_t linear, tinker_error *err)
{
    const struct model_config *c = w->s->config;
    size_t pairs = linear == 0 ? 2 : 1, rank = (size_t)w->s->rank, out, in;
    const struct peft_source *a[2] = { 0 }, *b[2] = { 0 };
    char text[PARAM_NAME], peft[PARAM_NAME];
    model_expert_shape(c, linear == 0 ? LINEAR_GATE : LINEAR_DOWN, &out, &in);
    /* gate and up share the stack that transformers has for both, so they share a pair of twice the
     * rank. */
    for (size_t i = 0; i < pairs; i++) {
        a[i] = find_stack(w, name, before, linear + i, "lora_A");
        b[i] = find_stack(w, name, before, linear + i, "lora_B");
        const struct peft_source *like = a[0] ? a[0] : w->sources;
        if (!fits_model(a[i], like, c->experts, rank, in) ||
            !fits_model(b[i], like, c->experts, out, rank))
            return err_set(err, TINKER_EINVAL,
                           "the stacks of %.*s%s.%s are not those of this base model", (int)before,
                           name, c->arch->names->experts, c->arch->names->adapter_expert[linear]);
    }
    /* PEFT wraps gate_up_proj first and down_proj around it */
    snprintf(text, sizeof(text), "%.*s%s%s", (int)before, name, peft_experts(c->arch->names),
             linear == 0 ? ".base_layer" : "");
    params_peft_name(c, text, peft);
    for (enum part_kind kind = PART_STACK_A; kind <= PART_STACK_B; kind++) {
        struct st_entry *e = &w->entries[w->n];
        bool first = kind == PART_STACK_A;
        e->name = arena_printf(&w->arena, "%s.lora_%c.weight", peft, first ? 'A' : 'B');
        e->dtype = w->s->bf16 ? SOURCE_BF16 : a[0]->dtype;
        e->ndim = 2;
        /* PEFT flattens the experts into the rank: A has pairs * rank rows per expert. */
        e->shape[0] = first ? pairs * rank * c->experts : pairs * out;
        e->shape[1] = first ? in : pairs * rank * c->experts;
        w->parts[w->n++] =
            (struct peft_part){ .kind = kind,
                                .source = { first ? a[0] : b[0], first ? a[1] : b[1] },
                                .rank = rank,
                                .experts = c->experts,
                                .in_turn = c->arch->stack == STACK_COLUMNS };
        if (!e->name)
            return err_nomem(err, "adapter files");
    }
    /* A rank of its own goes into rank_pattern, a file of the default rank has none. */
    w->fused |= linear == 0;
    const char *stacked =
        linear == 0 ? c->arch->names->stacked_gate_up : c->arch->names->stacked_down;
    char *target = arena_printf(&w->arena, "%s.%s", peft_experts(c->arch->names), stacked);
    if (target)
        add_target(w->parameters, &w->n_parameters, target);
    return target ? TINKER_OK : err_nomem(err, "adapter files");
}

/* All tensors, in the order of the sources. */
static tinker_status list_parts(struct peft_writing *w, tinker_error *err)
{
    tinker_status status = TINKER_OK;
    for (size_t i = 0; status == TINKER_OK && i < w->n_sources; i++) {
        const struct peft_source *s = &w->sources[i];
        const char *rest = "";
        size_t before = 0, linear = EXPERT_LINEARS;
        if (w->s->config)
            linear = split_stack_name(w->s->config->arch->names, s->name, &before, &rest);
        /* Only stacks have three dimensions. */
        if (s->ndim != 3)
            status = add_copy(w, s, err);
        else if (!w->s->config)
            status = err_set(err, TINKER_ESTATE,
                             "its experts (%.120s) need the base model: PEFT names and lays them "
                             "out as that model does",
                             s->name);
        else if (linear == EXPERT_LINEARS)
            status =
                err_set(err, TINKER_EINVAL, "tensor %.120s has no place in this model", s->name);
        else if (linear != 1 && strcmp(rest, "lora_A.weight") == 0) /* of gate and of down */
            status = add_stack(w, s->name, before, linear, err);
    }
    return status;
}

/* One element of a stack; one that all experts share has a single matrix. */
static const char *stack_element(const struct peft_source *s, size_t expert, size_t row, size_t col)
{
    size_t e = s->shape[0] > 1 ? expert : 0;
    return (const char *)s->data +
           ((e * s->shape[1] + row) * s->shape[2] + col) * st_dtype_size(s->dtype);
}

/* Row (expert, pair, k) is row k of the pair's A for that expert.  (PEFT reads A as (experts, rank,
 * in).) */
static void build_stack_a(const struct peft_part *p, char *out)
{
    size_t pairs = p->source[1] ? 2 : 1;
    size_t bytes = p->source[0]->shape[2] * st_dtype_size(p->source[0]->dtype);
    for (size_t e = 0; e < p->experts; e++)
        for (size_t i = 0; i < pairs; i++)
            for (size_t k = 0; k < p->rank; k++, out += bytes)
                memcpy(out, stack_element(p->source[i], e, k, 0), bytes);
}

/* Where row o of pair i is among the rows of a parameter.  GPT-OSS keeps gate and up in turn, all
 * others one below the other. */
static size_t peft_row(bool in_turn, size_t pairs, size_t rows, size_t i, size_t o)
{
    return in_turn ? o * pairs + i : i * rows + o;
}

/* Column (pair, k, expert) of row o of a pair; the other pair's columns stay 0.  (PEFT reads B as
 * (out, rank, experts), hence the expert in the last place.) */
static void build_stack_b(const struct peft_part *p, char *out)
{
    size_t pairs = p->source[1] ? 2 : 1, rows = p->source[0]->shape[1];
    size_t size = st_dtype_size(p->source[0]->dtype), width = pairs * p->rank * p->experts;
    for (size_t i = 0; i < pairs; i++)
        for (size_t o = 0; o < rows; o++)
            for (size_t k = 0; k < p->rank; k++)
                for (size_t e = 0; e < p->experts; e++) {
                    size_t row = peft_row(p->in_turn, pairs, rows, i, o);
                    size_t col = (i * p->rank + k) * p->experts + e;
                    memcpy(out + (row * width + col) * size, stack_element(p->source[i], e, o, k),
                           size);
                }
}

/* Data of one tensor as it is written; see st_fetch.  One in memory at a time. */
static const void *fetch_part(void *state, size_t entry, tinker_error *err)
{
    struct peft_writing *w = state;
    const struct peft_part *p = &w->parts[entry];
    const struct st_entry *e = &w->entries[entry];
    enum source_dtype dtype = p->source[0]->dtype;
    size_t count = 1;
    for (size_t i = 0; i < e->ndim; i++)
        count *= e->shape[i];
    /* The tensor before this one was written already. */
    free(w->built);
    w->built = NULL;
    /* No copy and no conversion: straight from the source. */
    if (p->kind == PART_COPY && e->dtype == dtype)
        return p->source[0]->data;
    void *values = NULL;
    const void *from = p->source[0]->data;
    if (p->kind != PART_COPY) {
        /* calloc(): of B, the part of the other pair stays 0, which keeps gate and up
         * independent. */
        from = values = calloc(count, st_dtype_size(dtype));
        if (values && p->kind == PART_STACK_A)
            build_stack_a(p, values);
        else if (values)
            build_stack_b(p, values);
    }
    w->built = values;
    /* Through float32, which every type converts to and from. */
    if (from && e->dtype != dtype) {
        float *floats = malloc(count * sizeof(*floats));
        w->built = malloc(count * st_dtype_size(e->dtype));
        if (floats && w->built) {
            st_to_float(from, dtype, 0, count, floats);
            st_from_float(floats, e->dtype, count, w->built);
        } else {
            free(w->built);
            w->built = NULL;
        }
        free(floats);
        free(values);
    }
    if (!w->built)
        err_nomem(err, "adapter files");
    return w->built;
}

/* A list of targets in alphabetical order, as PEFT writes it. */
static void put_targets(struct json_writer *w, const char *key, const char **list, size_t n)
{
    json_put_key(w, key);
    if (n > 1)
        qsort(list, n, sizeof(*list), compare_targets);
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_put_string(w, list[i]);
    json_put_end_array(w);
}

/* An integer where it is one, as PEFT writes it. */
static void put_alpha(struct json_writer *w, double alpha)
{
    if (fabs(alpha) < 0x1p53 && alpha == (double)(int64_t)alpha)
        json_put_int64(w, (int64_t)alpha);
    else
        json_put_double(w, alpha);
}

/* {"<experts>.<gate_up>": value} for the pair of twice the rank, else {}. */
static void put_fused_pattern(struct json_writer *w, const struct peft_writing *p, const char *key,
                              double value)
{
    json_put_key(w, key);
    json_put_begin_object(w);
    if (p->fused) {
        const struct arch_names *names = p->s->config->arch->names;
        char name[PARAM_NAME];
        snprintf(name, sizeof(name), "%s.%s", peft_experts(names), names->stacked_gate_up);
        json_put_key(w, name);
        put_alpha(w, value);
    }
    json_put_end_object(w);
}

static tinker_status write_peft_config(struct peft_writing *p, const char *path, tinker_error *err)
{
    struct buf text;
    struct json_writer w;
    static const struct {
        const char *key, *text;
    } texts[] = { { "peft_type", "LORA" }, { "task_type", "CAUSAL_LM" }, { "bias", "none" } };
    buf_init(&text, 4 << 20);
    /* 4 MiB: names of every module of a large model. */
    json_writer_init(&w, &text);
    json_put_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        json_put_key(&w, texts[i].key);
        json_put_string(&w, texts[i].text);
    }
    json_put_key(&w, "base_model_name_or_path");
    json_put_string(&w, p->s->base_name);
    json_put_key(&w, "r");
    json_put_int64(&w, p->s->rank);
    json_put_key(&w, "lora_alpha");
    put_alpha(&w, p->s->alpha);
    put_targets(&w, "target_modules", p->modules, p->n_modules);
    if (p->n_parameters)
        put_targets(&w, "target_parameters", p->parameters, p->n_parameters);
    json_put_key(&w, "lora_dropout");
    json_put_double(&w, 0);
    json_put_key(&w, "fan_in_fan_out");
    json_put_bool(&w, false);
    json_put_key(&w, "inference_mode");
    json_put_bool(&w, true);
    json_put_key(&w, "init_lora_weights");
    json_put_bool(&w, true);
    json_put_key(&w, "modules_to_save");
    json_put_null(&w);
    /* the scale alpha / r stays */
    put_fused_pattern(&w, p, "rank_pattern", 2 * (double)p->s->rank);
    put_fused_pattern(&w, p, "alpha_pattern", 2 * p->s->alpha);
    json_put_end_object(&w);
    tinker_status status =
        buf_ok(&text) ? os_write_file(path, text.data, text.len, err) : err_nomem(err, path);
    buf_clear(&text);
    return status;
}

tinker_status peft_form_write(const char *dir, const struct peft_settings *s,
                              const struct peft_source *sources, size_t n, tinker_error *err)
{
    struct peft_writing w = { .s = s, .sources = sources, .n_sources = n };
    arena_init(&w.arena, SIZE_MAX);
    /* no source becomes more than one tensor, or has more than one target.  A stack of gate or down
     * becomes two tensors, of the four or two sources that it has. */
    w.entries = arena_array(&w.arena, n, sizeof(*w.entries));
    w.parts = arena_array(&w.arena, n, sizeof(*w.parts));
    w.modules = arena_array(&w.arena, n, sizeof(*w.modules));
    w.parameters = arena_array(&w.arena, n, sizeof(*w.parameters));
    char *model = arena_printf(&w.arena, "%s/adapter_model.safetensors", dir);
    char *config = arena_printf(&w.arena, "%s/adapter_config.json", dir);
    tinker_status status = TINKER_OK;
    if (!w.entries || !w.parts || !w.modules || !w.parameters || !model || !config)
        status = err_nomem(err, "adapter files");
    if (status == TINKER_OK)
        status = list_parts(&w, err);
    if (status == TINKER_OK)
        status = safetensors_write(model, w.entries, w.n, fetch_part, &w, err);
    if (status == TINKER_OK)
        status = write_peft_config(&w, config, err);
    free(w.built);
    arena_clear(&w.arena);
    return status;
}

/* ---- the way back -------------------------------------------------------------------------- */

bool peft_stack_name(const struct model_config *c, const struct param *p, char out[PARAM_NAME])
{
    char name[PARAM_NAME];
    const char *rest;
    size_t before, linear = split_stack_name(c->arch->names, p->name, &before, &rest);
    if (!p->stack || linear == EXPERT_LINEARS)
        return false;
    snprintf(name, sizeof(name), "%.*s%s%s.%s", (int)before, p->name, peft_experts(c->arch->names),
             linear == 2 ? "" : ".base_layer", rest);
    params_peft_name(c, name, out);
    return true;
}

/* The inverse of build_stack_a() and build_stack_b(), for one factor of one linear. */
tinker_status peft_stack_read(const struct model_config *c, const struct param *p,
                              const struct safetensors *file, const struct st_tensor *t, float *out,
                              tinker_error *err)
{
    const char *rest;
    size_t before, linear = split_stack_name(c->arch->names, p->name, &before, &rest);
    bool first = strncmp(rest, "lora_A", 6) == 0, in_turn = c->arch->stack == STACK_COLUMNS;
    size_t pairs = linear == 2 ? 1 : 2, pair = linear == 1, rank = first ? p->rows : p->cols;
    size_t width = pairs * rank * c->experts, rows = first ? width : pairs * p->rows;
    size_t cols = first ? p->cols : width;
    /* Another base model, or another rank than adapter_config.json says. */
    if (!t->usable || t->ndim != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return err_set(err, TINKER_EINVAL, "%s: tensor %s is not %zu x %zu as this model needs",
                       file->path, t->name, rows, cols);
    float *all = malloc(t->count * sizeof(*all));
    if (!all)
        return err_nomem(err, "adapter");
    /* As floats at once: every element is looked at, and several times. */
    st_to_float(t->data, t->dtype, 0, t->count, all);
    tinker_status status = TINKER_OK;
    for (size_t i = 0; status == TINKER_OK && i < t->count; i++)
        /* NaN in one factor would spread to the whole adapter with the first step. */
        if (!isfinite(all[i]))
            status = err_set(err, TINKER_EINVAL, "%s: tensor %s: element %zu is not finite",
                             file->path, t->name, i);
    /* Every element of the factor for every expert, even where they share it, to find out that they
     * do. */
    for (size_t e = 0; status == TINKER_OK && e < c->experts; e++)
        for (size_t r = 0; r < p->rows; r++)
            for (size_t k = 0; k < p->cols; k++) {
                size_t row = first ? (e * pairs + pair) * rank + r
                                   : peft_row(in_turn, pairs, p->rows, pair, r);
                size_t col = first ? k : (pair * rank + k) * c->experts + e;
                float v = all[row * cols + col];
                /* the other pair's factor must have no say in this row */
                size_t other = first ? col : ((1 - pair) * rank + k) * c->experts + e;
                float *to = &out[((p->stack > 1 ? e : 0) * p->rows + r) * p->cols + k];
                /* PEFT could have trained the pair as one, with factors that both use: then there
                 * are no two pairs. */
                if (pairs == 2 && !first && all[row * cols + other] != 0)
                    status = err_set(err, TINKER_EINVAL,
                                     "%s: tensor %s: gate and up share factors, which is not "
                                     "supported",
                                     file->path, t->name);
                else if (p->stack == 1 && e > 0 && *to != v)
                    status = err_set(err, TINKER_EINVAL,
                                     "%s: tensor %s differs between experts, but here all experts "
                                     "share it",
                                     file->path, t->name);
                *to = v;
            }
    free(all);
    return status;
}
