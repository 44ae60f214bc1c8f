/* adapter_load.c - read an adapter from PEFT files, ours or PEFT's own.
 *
 * What is trained follows from the tensors in the file.  A file that trains only some
 * projections of a group (PEFT often has q and v alone) loads as the whole group; the
 * missing pairs start as in a new adapter, with no effect.  Names are PEFT's; the
 * unembedding is unembed_tokens or, in files of PEFT, lm_head. */
#include "engine/model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/err.h"
#include "base/os.h"
#include "engine/model/adapter_config.h"
#include "engine/model/peft_form.h"
#include "engine/safetensors/safetensors.h"
#include "json/json.h"

enum { JSON_MAX = 16 << 20 };
static const int64_t steps_max = (int64_t)1 << 53; /* Adam raises betas to it in double */

/* Everything that a load opens or reads; one place to clean up. */
struct loading {
    tinker_engine *e;
    const struct arch_names *names; /* of the engine's model */
    const char *dir;
    bool optimizer;
    struct arena arena;
    tinker_lora lora;
    double alpha;
    int64_t steps;
    bool has_state;
    struct safetensors weights, moments;
    bool weights_open, moments_open;
    tinker_error *err;
};

/* NULL: out of memory. */
static char *make_path(struct loading *l, const char *name)
{
    return arena_printf(&l->arena, "%s/%s", l->dir, name);
}

/* ---- adapter_config.json --------------------------------------------------------------- */

static tinker_status read_adapter_config(struct loading *l)
{
    struct adapter_config c;
    char *path = make_path(l, "adapter_config.json");
    if (!path)
        return err_nomem(l->err, "adapter");
    tinker_status status =
        adapter_config_read(&c, path, l->e->model->config.experts > 0, &l->arena, l->err);
    l->lora.rank = c.rank;
    l->alpha = c.alpha;
    return status;
}

/* ---- trainer_state.json ---------------------------------------------------------------- */

/* Step, seed and what is trained.  Without the optimizer flag the file may be missing. */
static tinker_status read_state(struct loading *l)
{
    char *path = make_path(l, "trainer_state.json"), *text;
    size_t len;
    if (!path)
        return err_nomem(l->err, "adapter");
    if (!l->optimizer && access(path, F_OK) != 0)
        return TINKER_OK;
    tinker_status status = os_read_file(path, JSON_MAX, &text, &len, l->err);
    if (status != TINKER_OK)
        return status;
    struct json_reader r;
    struct json_str key, member, fingerprint = { 0 };
    char *optimizer = NULL;
    int64_t format = 0;
    bool flag = false;
    json_reader_init(&r, text, len, &l->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "format"))
            json_int64(&r, &format);
        else if (json_str_is(key, "step"))
            json_int64(&r, &l->steps);
        else if (json_str_is(key, "optimizer"))
            json_cstring(&r, &optimizer);
        else if (json_str_is(key, "base_fingerprint"))
            json_string(&r, &fingerprint);
        else if (!json_str_is(key, "lora"))
            json_skip(&r);
        else {
            json_begin_object(&r);
            while (json_next_key(&r, &member)) {
                if (json_str_is(member, "seed"))
                    json_int64(&r, &l->lora.seed);
                else if (json_str_is(member, "train_attn"))
                    l->lora.train_attn = json_bool(&r, &flag) && flag;
                else if (json_str_is(member, "train_mlp"))
                    l->lora.train_mlp = json_bool(&r, &flag) && flag;
                else if (json_str_is(member, "train_unembed"))
                    l->lora.train_unembed = json_bool(&r, &flag) && flag;
                else
                    json_skip(&r);
            }
        }
    }
    if (!json_end(&r))
        status = err_set(l->err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    else if (format != 1)
        status =
            err_set(l->err, TINKER_EINVAL, "%s: format %lld is unknown", path, (long long)format);
    else if (l->steps < 0 || l->steps > steps_max)
        status = err_set(l->err, TINKER_EINVAL, "%s: step is %lld, must be 0 to %lld", path,
                         (long long)l->steps, (long long)steps_max);
    else if (!json_str_is(fingerprint, l->e->fingerprint))
        status = err_set(l->err, TINKER_EINVAL, "%s: this checkpoint belongs to another base model",
                         path);
    /* Its moments mean nothing to another optimizer; weights alone may go on with any. */
    l->lora.optimizer = l->optimizer ? optimizer : NULL;
    l->has_state = status == TINKER_OK;
    free(text);
    return status;
}

/* ---- tensors --------------------------------------------------------------------------- */

/* A tensor that this model has no parameter for: usually another base model. */
static tinker_status refuse_unplaced(struct loading *l, const char *name)
{
    return err_set(l->err, TINKER_EINVAL, "%s: tensor %.120s has no place in this model",
                   l->weights.path, name);
}

/* Whether a tensor's name has these modules, separated by dots, in its middle. */
static bool has_module(const char *name, const char *module)
{
    size_t n = strlen(module);
    for (const char *at = strstr(name, module); at; at = strstr(at + 1, module))
        if (at > name && at[-1] == '.' && at[n] == '.')
            return true;
    return false;
}

/* What the file trains, by the names of its tensors: PEFT's configuration may name modules in
 * ways that only PEFT resolves. */
static tinker_status infer_modules(struct loading *l)
{
    tinker_lora *lora = &l->lora;
    for (size_t i = 0; i < l->weights.n; i++) {
        const char *name = l->weights.tensors[i].name;
        for (enum linear_id id = 0; id < LINEARS; id++) {
            size_t first, rows;
            const char *module = model_module(&l->e->model->config, id, &first, &rows);
            if (module && has_module(name, module))
                *(linear_is_attention(id) ? &lora->train_attn : &lora->train_mlp) = 1;
        }
        if ((l->names->experts && has_module(name, l->names->experts)) ||
            (l->names->other_experts && has_module(name, l->names->other_experts)))
            lora->train_mlp = 1;
        if (has_module(name, l->names->adapter_head) || has_module(name, l->names->head))
            lora->train_unembed = 1;
    }
    if (l->weights.n == 0)
        return err_set(l->err, TINKER_EINVAL, "%s: no tensors", l->weights.path);
    if (lora->rank && !lora->train_attn && !lora->train_mlp && !lora->train_unembed)
        return refuse_unplaced(l, l->weights.tensors[0].name);
    return TINKER_OK;
}

/* PEFT stores a copy of the base weight beside a trained lm_head. */
static bool is_base_copy(const struct loading *l, const char *name)
{
    char copy[PARAM_NAME];
    snprintf(copy, sizeof(copy), "base_model.model.%s.base_layer.weight", l->names->head);
    return strcmp(name, copy) == 0;
}

/* A small file must not make a large adapter: its factors have the rank that the configuration
 * says, A (rank, in) or B (out, rank); with rank 0 it has as many weights as the model. */
static tinker_status check_size(struct loading *l)
{
    uint64_t count = 0, all = model_parameters(&l->e->model->config);
    size_t rank = (size_t)l->lora.rank;
    bool factors = false;
    for (size_t i = 0; i < l->weights.n; i++) {
        const struct st_tensor *t = &l->weights.tensors[i];
        count += t->count;
        if (!rank || is_base_copy(l, t->name))
            continue;
        bool a = strstr(t->name, ".lora_A.") != NULL;
        if (!a && !strstr(t->name, ".lora_B."))
            return refuse_unplaced(l, t->name);
        size_t rows = t->ndim < 2 ? 0 : t->shape[t->ndim - 2];
        size_t cols = t->ndim < 2 ? 0 : t->shape[t->ndim - 1];
        /* experts in the form of PEFT hold a multiple, which peft_stack_read() checks */
        bool experts = l->names->experts && strstr(t->name, ".experts.") && rank && t->ndim == 2 &&
                       (a ? rows : cols) % rank == 0;
        if (!t->count || ((a ? rows : cols) != rank && !experts))
            return err_set(l->err, TINKER_EINVAL,
                           "%s: tensor %.120s is not %zu x %zu as adapter_config.json says",
                           l->weights.path, t->name, a ? rank : rows, a ? cols : rank);
        factors = true;
    }
    if (rank && !factors)
        return refuse_unplaced(l, l->weights.tensors[0].name);
    if (!rank && count != all)
        return err_set(l->err, TINKER_EINVAL, "%s: has %llu weights, the model has %llu",
                       l->weights.path, (unsigned long long)count, (unsigned long long)all);
    return TINKER_OK;
}

/* The shapes that tinker_adapter_save() and PEFT write for a parameter. */
static bool has_param_shape(const struct st_tensor *t, const struct param *p)
{
    const size_t *s = t->shape;
    if (p->vector)
        return t->ndim == 1 && s[0] == p->cols;
    if (p->stack)
        return t->ndim == 3 && s[0] == p->stack && s[1] == p->rows && s[2] == p->cols;
    return t->ndim == 2 && s[0] == p->rows && s[1] == p->cols;
}

/* One tensor of the file to out, which has p's shape. */
static tinker_status copy_values(struct loading *l, const struct safetensors *s,
                                 const struct st_tensor *t, const struct param *p, float *out)
{
    if (!t->usable)
        return err_set(l->err, TINKER_EINVAL, "%s: tensor %s: dtype %s is not supported", s->path,
                       t->name, t->dtype_name);
    if (!has_param_shape(t, p) && p->stack)
        return err_set(l->err, TINKER_EINVAL,
                       "%s: tensor %s is not %zu x %zu x %zu as this model needs", s->path, t->name,
                       p->stack, p->rows, p->cols);
    if (!has_param_shape(t, p))
        return err_set(l->err, TINKER_EINVAL, "%s: tensor %s is not %zu x %zu as this model needs",
                       s->path, t->name, p->rows, p->cols);
    st_to_float(t->data, t->dtype, 0, t->count, out);
    return TINKER_OK;
}

/* The same, and refuses NAN and infinities: training on them would fail without a reason. */
static tinker_status copy_finite(struct loading *l, const struct safetensors *s,
                                 const struct st_tensor *t, const struct param *p, float *out)
{
    tinker_status status = copy_values(l, s, t, p, out);
    for (size_t i = 0; status == TINKER_OK && i < t->count; i++)
        if (!isfinite(out[i]))
            status = err_set(l->err, TINKER_EINVAL, "%s: tensor %s: element %zu is not finite",
                             s->path, t->name, i);
    return status;
}

/* A stack from files of PEFT: one tensor for all experts as peft_form.h says, or, of older
 * versions, a matrix for each.  A factor that all experts share must be the same in each.  *found
 * stays false when the file has none of them. */
static tinker_status copy_experts(struct loading *l, const struct param *p, float *out, bool *seen,
                                  bool *found)
{
    /* one expert's matrix of the stack */
    struct param one = { .rows = p->rows, .cols = p->cols };
    size_t count = p->rows * p->cols, experts = l->e->model->config.experts;
    const struct model_config *config = &l->e->model->config;
    char fused[PARAM_NAME];
    const struct st_tensor *all =
        peft_stack_name(config, p, fused) ? safetensors_find(&l->weights, fused) : NULL;
    if (all) {
        seen[all - l->weights.tensors] = *found = true;
        return peft_stack_read(config, p, &l->weights, all, out, l->err);
    }
    float *again = arena_array(&l->arena, count, sizeof(*again));
    for (size_t e = 0; e < experts; e++) {
        char name[PARAM_NAME];
        params_peft_expert_name(l->names, p->name, e, name);
        const struct st_tensor *t = safetensors_find(&l->weights, name);
        /* none of them, so far as the first one tells: the pair stays as in a new adapter */
        if (!t && e == 0)
            return TINKER_OK;
        if (!t)
            return err_set(l->err, TINKER_EINVAL, "%s: tensor %s is missing", l->weights.path,
                           name);
        /* of a shared factor the first expert's copy is kept, the others are compared with it */
        bool shared = p->stack == 1 && e > 0;
        float *to = shared ? again : out + (p->stack > 1 ? e * count : 0);
        tinker_status status =
            to ? copy_finite(l, &l->weights, t, &one, to) : err_nomem(l->err, "adapter");
        if (status != TINKER_OK)
            return status;
        if (shared && memcmp(again, out, count * sizeof(*out)) != 0)
            return err_set(l->err, TINKER_EINVAL,
                           "%s: tensor %s differs from that of expert 0, but here all experts "
                           "share it",
                           l->weights.path, name);
        /* marked, so that what is left over at the end can be refused */
        seen[t - l->weights.tensors] = *found = true;
    }
    return TINKER_OK;
}

/* Every tensor of the file must be one of ours; what the file lacks stays as it is. */
static tinker_status copy_weights(struct loading *l, tinker_adapter *a)
{
    bool *seen = arena_array(&l->arena, l->weights.n + 1, sizeof(*seen));
    if (!seen)
        return err_nomem(l->err, "adapter");
    for (size_t i = 0; i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        const struct st_tensor *t = safetensors_find(&l->weights, p->name);
        char peft_name[PARAM_NAME];
        params_peft_name(&l->e->model->config, p->name, peft_name);
        if (!t)
            t = safetensors_find(&l->weights, peft_name);
        bool found = t != NULL;
        tinker_status status = TINKER_OK;
        if (t) {
            seen[t - l->weights.tensors] = true;
            status = copy_finite(l, &l->weights, t, p, a->w + p->offset);
        } else if (p->stack) {
            status = copy_experts(l, p, a->w + p->offset, seen, &found);
        }
        /* our own files are complete; PEFT may leave modules out */
        if (status == TINKER_OK && !found && (l->has_state || !l->lora.rank))
            status = err_set(l->err, TINKER_EINVAL, "%s: tensor %s is missing", l->weights.path,
                             p->name);
        if (status != TINKER_OK)
            return status;
    }
    for (size_t i = 0; i < l->weights.n; i++) {
        const char *name = l->weights.tensors[i].name;
        if (!seen[i] && !is_base_copy(l, name))
            return refuse_unplaced(l, name);
    }
    return TINKER_OK;
}

/* copy_values() or copy_finite(). */
typedef tinker_status copy_tensor(struct loading *l, const struct safetensors *s,
                                  const struct st_tensor *t, const struct param *p, float *out);

/* One buffer of the optimizer: every parameter under its name with a suffix. */
static tinker_status copy_moments(struct loading *l, tinker_adapter *a, const char *suffix,
                                  copy_tensor *copy, float *out)
{
    for (size_t i = 0; i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        /* our own files only: no names of PEFT here */
        char *name = arena_printf(&l->arena, "%s%s", p->name, suffix);
        const struct st_tensor *t = name ? safetensors_find(&l->moments, name) : NULL;
        if (!t)
            return err_set(l->err, TINKER_EINVAL, "%s: tensor %s%s is missing", l->moments.path,
                           p->name, suffix);
        tinker_status status = copy(l, &l->moments, t, p, out + p->offset);
        if (status != TINKER_OK)
            return status;
    }
    return TINKER_OK;
}

/* Moments of all parameters, and a gradient where one was pending. */
static tinker_status read_moments(struct loading *l, tinker_adapter *a)
{
    char *path = make_path(l, "optimizer.safetensors");
    tinker_status status =
        path ? safetensors_open(&l->moments, path, l->err) : err_nomem(l->err, "adapter");
    if (status != TINKER_OK)
        return status;
    l->moments_open = true;
    if (!adapter_moments(a))
        return err_nomem(l->err, "moments");
    status = copy_moments(l, a, ".exp_avg", copy_finite, a->m);
    if (status == TINKER_OK)
        status = copy_moments(l, a, ".exp_avg_sq", copy_finite, a->v);
    /* its square root would be NAN */
    for (size_t i = 0; status == TINKER_OK && i < a->params.total; i++)
        if (a->v[i] < 0)
            status = err_set(l->err, TINKER_EINVAL, "%s: a second moment is negative", path);
    if (status != TINKER_OK || l->moments.n <= 2 * a->params.n)
        return status; /* no gradient was pending */
    a->grad = adapter_buffer(a);
    if (!a->grad)
        return err_nomem(l->err, "gradient");
    /* a gradient that is not finite is refused by the next step, as without the restart */
    return copy_moments(l, a, ".grad", copy_values, a->grad);
}

/* The order matters: nothing is allocated by the sizes in the configuration before the weights
 * have been seen to have them. */
static tinker_adapter *load_files(struct loading *l)
{
    if (read_adapter_config(l) != TINKER_OK)
        return NULL;
    char *path = make_path(l, "adapter_model.safetensors");
    if (!path) {
        err_nomem(l->err, "adapter");
        return NULL;
    }
    if (safetensors_open(&l->weights, path, l->err) != TINKER_OK)
        return NULL;
    l->weights_open = true;
    if (infer_modules(l) != TINKER_OK || check_size(l) != TINKER_OK || read_state(l) != TINKER_OK)
        return NULL;
    tinker_adapter *a = adapter_make(l->e, &l->lora, l->alpha, l->err);
    if (!a)
        return NULL;
    adapter_draw(a); /* pairs that the file lacks stay as in a new adapter */
    tinker_status status = copy_weights(l, a);
    if (status == TINKER_OK && l->optimizer)
        status = read_moments(l, a);
    /* a half-loaded adapter is of no use */
    if (status != TINKER_OK) {
        tinker_adapter_free(a);
        return NULL;
    }
    /* without the optimizer training starts anew, bias correction included */
    a->steps = l->optimizer ? l->steps : 0;
    return a;
}

tinker_adapter *tinker_adapter_load(tinker_engine *e, const char *dir, int flags, tinker_error *err)
{
    struct loading l = { .e = e, .names = e->names, .dir = dir, .err = err };
    l.optimizer = flags & TINKER_ADAPTER_OPTIMIZER;
    l.lora = (tinker_lora)TINKER_LORA_INIT;
    /* infer_modules() sets what the file has */
    l.lora.train_attn = l.lora.train_mlp = l.lora.train_unembed = 0;
    l.lora.has_seed = 1;
    arena_init(&l.arena, SIZE_MAX);
    tinker_adapter *a = load_files(&l);
    if (l.weights_open)
        safetensors_close(&l.weights);
    if (l.moments_open)
        safetensors_close(&l.moments);
    arena_clear(&l.arena);
    return a;
}
