/* recipe.c - a model in training, and steps that are under way.
 *
 * A step is a pass and an optimizer step, submitted together; results come in the order of
 * submission.  What is needed of the data once the logprobs are there (targets, weights, mask,
 * sampled logprobs) is copied, so the caller may reuse his memory at once. */
#include <tinker/recipe.h>
#include <tinker/rest.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/err.h"
#include "recipe/score.h"

/* One step that is under way.  Its futures come from the training client and are freed before
 * it. */
struct pending {
    struct pending *next;
    struct arena arena;
    tinker_future *pass, *step;
    tinker_datum *data; /* targets, weights, logprobs, mask */
    size_t n;
    size_t tokens;
};

struct recipe_box {
    tinker_recipe pub; /* first */
    char *model;
    bool own_service, own_tokenizer;
    int64_t timeout_ms;
    /* last points to the end of the list, so that appending needs no walk. */
    struct pending *first, **last;
    size_t n_pending;
    struct pending *done; /* of the last step, which its metrics refer to */
    tinker_future *saved[2];
};

/* The public struct is the first member, so one pointer is both. */
static struct recipe_box *box_of(const tinker_recipe *r)
{
    return (struct recipe_box *)r;
}

static void free_pending(struct pending *p)
{
    if (!p)
        return;
    tinker_future_free(p->pass);
    tinker_future_free(p->step);
    arena_clear(&p->arena);
    free(p);
}

/* Children before parents: futures, then the training client, then the service. */
void tinker_recipe_close(tinker_recipe *r)
{
    struct recipe_box *box = box_of(r);
    if (!box)
        return;
    while (box->first) {
        struct pending *p = box->first;
        box->first = p->next;
        free_pending(p);
    }
    free_pending(box->done);
    tinker_future_free(box->saved[0]);
    tinker_future_free(box->saved[1]);
    tinker_renderer_free(r->renderer);
    if (box->own_tokenizer)
        tinker_tokenizer_free(r->tokenizer);
    tinker_training_free(r->training);
    if (box->own_service)
        tinker_service_free(r->service);
    free(box->model);
    free(box);
}

/* ---- opening ---- */

/* The model of the service when it has just one. */
static char *find_only_model(tinker_service *s, int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        tinker_future_await(tinker_service_get_capabilities(s, err), timeout_ms, err);
    const tinker_capabilities *c = f ? tinker_future_capabilities(f) : NULL;
    char *model = NULL;
    /* A service of one model is the usual case of a local server. */
    if (c && c->n == 1 && tinker_supported_model_at(c, 0)->name)
        model = strdup(tinker_supported_model_at(c, 0)->name);
    else if (c)
        err_set(err, TINKER_EINVAL, "the service has %zu models: name one", c->n);
    tinker_future_free(f);
    return model;
}

/* The base model of saved weights, as the service knows it. */
static char *find_model_of(tinker_training *t, int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = tinker_future_await(tinker_training_get_info(t, err), timeout_ms, err);
    const tinker_model_info *info = f ? tinker_future_model_info(f) : NULL;
    /* The name of the base; services that hide it at least name the model. */
    const char *name = info ? info->base_model ? info->base_model : info->model_name : NULL;
    char *model = name ? strdup(name) : NULL;
    if (f && !model)
        err_set(err, TINKER_ESTATE, "the service does not tell which model this is: name it");
    tinker_future_free(f);
    return model;
}

/* From a state, the base model is the one that the weights were made for unless the caller names
 * one. */
static tinker_training *open_training(struct recipe_box *box, const tinker_recipe_options *o,
                                      tinker_error *err)
{
    tinker_service *s = box->pub.service;
    if (!o->from_state) {
        if (!box->model)
            box->model = find_only_model(s, o->timeout_ms, err);
        return box->model ? tinker_service_create_lora(s, box->model, o->lora, o->timeout_ms, err)
                          : NULL;
    }
    tinker_from_state_options from = TINKER_FROM_STATE_OPTIONS_INIT;
    from.optimizer = o->with_optimizer;
    from.base_model = box->model;
    if (o->lora) {
        from.user_metadata = o->lora->user_metadata;
        from.n_user_metadata = o->lora->n_user_metadata;
    }
    tinker_training *t =
        tinker_service_create_from_state(s, o->from_state, &from, o->timeout_ms, err);
    if (t && !box->model)
        box->model = find_model_of(t, o->timeout_ms, err);
    return t;
}

/* What fails midway is released by tinker_recipe_close(), which knows by the own_ flags what is
 * the caller's. */
static bool open_parts(struct recipe_box *box, const tinker_recipe_options *o, tinker_error *err)
{
    tinker_recipe *r = &box->pub;
    if (o->model && !(box->model = strdup(o->model))) {
        err_nomem(err, "a recipe");
        return false;
    }
    /* Without a service one is opened from the environment, as every command does. */
    r->service = o->service ? o->service : tinker_service_new(NULL, err);
    box->own_service = !o->service;
    r->training = r->service ? open_training(box, o, err) : NULL;
    if (!r->training || !box->model)
        return false;
    r->model = box->model;
    box->own_tokenizer = !o->tokenizer;
    r->tokenizer = o->tokenizer
                       ? o->tokenizer
                       : tinker_training_create_tokenizer(r->training, NULL, o->timeout_ms, err);
    if (!r->tokenizer)
        return false;
    /* The renderer depends on the model's family, not on its tokenizer alone. */
    const char *name = o->renderer ? o->renderer : tinker_renderer_for(r->model, r->tokenizer);
    r->renderer = tinker_renderer_new(name, r->tokenizer, NULL, err);
    return r->renderer != NULL;
}

tinker_recipe *tinker_recipe_open(const tinker_recipe_options *opts, tinker_error *err)
{
    tinker_recipe_options o = TINKER_RECIPE_OPTIONS_INIT;
    if (opts && opts_copy(&o, sizeof(o), opts, "tinker_recipe_options", err) != TINKER_OK)
        return NULL;
    struct recipe_box *box = calloc(1, sizeof(*box));
    if (!box) {
        err_nomem(err, "a recipe");
        return NULL;
    }
    /* Set before anything can fail: tinker_recipe_close() walks the list. */
    box->last = &box->first;
    box->timeout_ms = o.timeout_ms;
    if (open_parts(box, &o, err))
        return &box->pub;
    tinker_recipe_close(&box->pub);
    return NULL;
}

/* ---- submitting ---- */

/* Copy what the numbers of the step need: tensors that are dense and one-dimensional. Inputs of
 * higher rank (top-k targets) are skipped: no metric is computed from them here. */
static bool remember_datum(struct arena *a, const tinker_datum *from, tinker_datum *to)
{
    tinker_named_tensor *inputs = arena_array(a, from->n_inputs + 1, sizeof(*inputs));
    if (!inputs)
        return false;
    for (size_t i = 0; i < from->n_inputs; i++) {
        const tinker_named_tensor *t = &from->inputs[i];
        /* Sizes of the two types that are copied. */
        size_t element = t->tensor.dtype == TINKER_FLOAT32 ? sizeof(float) : sizeof(int64_t);
        bool plain = !t->tensor.crow && t->tensor.ndim < 2 &&
                     (t->tensor.dtype == TINKER_FLOAT32 || t->tensor.dtype == TINKER_INT64);
        if (!plain)
            continue;
        inputs[to->n_inputs] =
            (tinker_named_tensor){ arena_strdup(a, t->name),
                                   { .dtype = t->tensor.dtype,
                                     .n = t->tensor.n,
                                     .data =
                                         arena_memdup(a, t->tensor.data, t->tensor.n * element) } };
        if (!inputs[to->n_inputs].name || (t->tensor.n && !inputs[to->n_inputs].tensor.data))
            return false;
        to->n_inputs++;
    }
    to->inputs = inputs;
    return true;
}

/* A pending step holds its copies in one arena, freed when the step after it has been read. */
static struct pending *new_pending(const tinker_datum *data, size_t n, tinker_error *err)
{
    struct pending *p = calloc(1, sizeof(*p));
    if (!p) {
        err_nomem(err, "a step");
        return NULL;
    }
    arena_init(&p->arena, SIZE_MAX);
    p->data = arena_array(&p->arena, n + 1, sizeof(*p->data));
    p->n = n;
    for (size_t i = 0; i < n; i++) {
        int64_t length = 0;
        /* Tokens of a picture are counted by the service, and not here. */
        if (!p->data || !remember_datum(&p->arena, &data[i], &p->data[i])) {
            err_nomem(err, "a step");
            free_pending(p);
            return NULL;
        }
        if (tinker_model_input_length(&data[i].model_input, &length, NULL) == TINKER_OK)
            p->tokens += (size_t)length;
    }
    return p;
}

/* The data without "mask": the service does not know it. It marks the sampled tokens for the
 * metrics of this file only. */
static const tinker_datum *strip_mask(struct arena *a, const tinker_datum *data, size_t n)
{
    tinker_datum *out = arena_array(a, n + 1, sizeof(*out));
    for (size_t i = 0; out && i < n; i++) {
        tinker_named_tensor *inputs = arena_array(a, data[i].n_inputs + 1, sizeof(*inputs));
        /* A shallow copy: tensors stay the caller's, only their list is new. */
        out[i] = data[i];
        out[i].inputs = inputs;
        out[i].n_inputs = 0;
        for (size_t k = 0; inputs && k < data[i].n_inputs; k++)
            if (strcmp(data[i].inputs[k].name, "mask") != 0)
                inputs[out[i].n_inputs++] = data[i].inputs[k];
        if (!inputs)
            return NULL;
    }
    return out;
}

static bool has_mask(const tinker_datum *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (score_input(&data[i], "mask"))
            return true;
    return false;
}

/* The optimizer step follows at once; a pass without one would be left in the gradient. */
static tinker_status add_pending(tinker_recipe *r, struct pending *p, const tinker_adam *adam,
                                 tinker_error *err)
{
    struct recipe_box *box = box_of(r);
    static const tinker_adam usual = TINKER_ADAM_RECIPE;
    tinker_error own = { 0 };
    if (p->pass)
        p->step = tinker_training_optim_step(r->training, adam ? adam : &usual, &own);
    if (!p->step) {
        /* err may be NULL, so the status comes from a struct of our own. */
        if (p->pass && err)
            *err = own;
        tinker_status status = p->pass ? own.status : err ? err->status : TINKER_EINVAL;
        free_pending(p);
        return status ? status : TINKER_EINVAL;
    }
    /* Only a step with both futures is in the list. */
    *box->last = p;
    box->last = &p->next;
    box->n_pending++;
    return TINKER_OK;
}

/* Nothing is waited for: several steps may be submitted ahead, so that the service never idles
 * between them. */
tinker_status tinker_recipe_submit(tinker_recipe *r, const tinker_datum *data, size_t n,
                                   const tinker_loss *loss, const tinker_adam *adam,
                                   tinker_error *err)
{
    static const tinker_loss usual = { .name = "cross_entropy" };
    struct pending *p = new_pending(data, n, err);
    if (!p)
        return TINKER_ENOMEM;
    const tinker_datum *sent = has_mask(data, n) ? strip_mask(&p->arena, data, n) : data;
    if (!sent) {
        free_pending(p);
        return err_nomem(err, "a step");
    }
    p->pass = tinker_training_forward_backward(r->training, sent, n, loss ? loss : &usual, err);
    return add_pending(r, p, adam, err);
}

/* The custom loss runs here, on logprobs of a forward pass; inputs that only it reads are not
 * sent, and those that it does not read are no mistake of a recipe. */
tinker_status tinker_recipe_submit_custom(tinker_recipe *r, const tinker_datum *data, size_t n,
                                          tinker_loss_fn *fn, void *state, const tinker_adam *adam,
                                          tinker_error *err)
{
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    struct pending *p = new_pending(data, n, err);
    if (!p)
        return TINKER_ENOMEM;
    o.strip_local_inputs = 1;
    o.allow_unused = 1;
    p->pass = tinker_training_forward_backward_custom(r->training, data, n, fn, state, &o, err);
    return add_pending(r, p, adam, err);
}

size_t tinker_recipe_pending(const tinker_recipe *r)
{
    return box_of(r)->n_pending;
}

/* ---- results ---- */

/* Sums over sampled tokens, of which the mask tells. How far the model that is trained has moved
 * from the one that sampled: means of k1, k2, k3 and the entropy, under the names of the
 * cookbook (optim/kl_sample_train_v1 ...). */
struct drift {
    double v1, v2, k3, entropy, n;
};

static void add_drift(struct drift *d, const tinker_datum *datum, const float *trained, size_t n)
{
    const float *sampled = score_floats(datum, "logprobs"), *mask = score_floats(datum, "mask");
    for (size_t i = 0; sampled && mask && i < n; i++) {
        /* Tokens of the prompt were not sampled, so they say nothing about drift. */
        if (mask[i] == 0)
            continue;
        d->v1 += tinker_kl_k1(sampled[i], trained[i]);
        d->v2 += tinker_kl_k2(sampled[i], trained[i]);
        d->k3 += tinker_kl_k3(sampled[i], trained[i]);
        /* The negative logprob of a sampled token is an estimate of the entropy. */
        d->entropy -= sampled[i];
        d->n++;
    }
}

/* A datum whose logprobs have another length than its targets (top-k) has no mean loss here; its
 * own loss reports metrics. */
static void read_step(const tinker_recipe *r, const struct pending *p, tinker_step *out)
{
    const tinker_forward_backward *result = tinker_future_forward_backward(p->pass);
    struct score score = { 0 };
    struct drift drift = { 0 };
    for (size_t i = 0; i < p->n && i < result->n_outputs; i++)
        for (size_t k = 0; k < result->outputs[i].n_tensors; k++) {
            const tinker_named_tensor *t = &result->outputs[i].tensors[k];
            if (strcmp(t->name, "logprobs") != 0 || t->tensor.dtype != TINKER_FLOAT32)
                continue;
            if (score_length(&p->data[i]) == t->tensor.n)
                score_add(&score, &p->data[i], t->tensor.data, t->tensor.n, r->tokenizer);
            add_drift(&drift, &p->data[i], t->tensor.data, t->tensor.n);
        }
    /* NAN divides everything to NAN: no sampled token, no number. */
    double n = drift.n ? drift.n : NAN;
    *out = (tinker_step){ .nll = score_nll(&score),
                          .bpb = score_bpb(&score),
                          .kl_v1 = drift.v1 / n,
                          .kl_v2 = drift.v2 / n,
                          .kl_k3 = drift.k3 / n,
                          .entropy = drift.entropy / n,
                          .sequences = p->n,
                          .tokens = p->tokens,
                          .trained = score.trained,
                          .sampled = (size_t)drift.n,
                          .weight = score.weight,
                          .loss_metrics = result->metrics,
                          .n_loss_metrics = result->n_metrics };
    out->metrics = tinker_future_metrics(p->step, &out->n_metrics);
}

/* A step that failed is taken off, too: the ones behind it have results of their own. Only a
 * timeout leaves it, so that waiting can go on. */
tinker_status tinker_recipe_next(tinker_recipe *r, tinker_step *out, tinker_error *err)
{
    struct recipe_box *box = box_of(r);
    struct pending *p = box->first;
    if (!p)
        return err_set(err, TINKER_ESTATE, "no step was submitted");
    tinker_status status = tinker_future_wait(p->pass, box->timeout_ms, err);
    /* Both are waited for, in the order in which they were submitted. */
    if (status == TINKER_OK)
        status = tinker_future_wait(p->step, box->timeout_ms, err);
    if (status == TINKER_ETIMEDOUT)
        return status; /* it is still under way */
    box->first = p->next;
    if (!box->first)
        box->last = &box->first;
    box->n_pending--;
    /* Metrics of the step before point into it until now. */
    free_pending(box->done);
    box->done = p;
    if (status == TINKER_OK && out)
        read_step(r, p, out);
    return status;
}

tinker_status tinker_recipe_step(tinker_recipe *r, const tinker_datum *data, size_t n,
                                 const tinker_loss *loss, const tinker_adam *adam, tinker_step *out,
                                 tinker_error *err)
{
    tinker_status status = tinker_recipe_submit(r, data, n, loss, adam, err);
    /* Steps that were submitted before this one come first; the numbers are those of the last. */
    while (status == TINKER_OK && tinker_recipe_pending(r) > 0)
        status = tinker_recipe_next(r, out, err);
    return status;
}

/* Both are submitted before either is awaited. Weights for sampling are immutable and never
 * overwritten; a state of the same name is, as in the cookbook. The futures stay, because the
 * paths live in them. */
const char *tinker_recipe_save(tinker_recipe *r, const char *name, int64_t ttl_seconds,
                               const char **state_path, tinker_error *err)
{
    struct recipe_box *box = box_of(r);
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    o.ttl_seconds = ttl_seconds;
    o.overwrite = 1;
    /* Paths of the save before point into these futures. */
    for (size_t i = 0; i < ARRAY_LEN(box->saved); i++) {
        tinker_future_free(box->saved[i]);
        box->saved[i] = NULL;
    }
    if (state_path && !(box->saved[1] = tinker_training_save_state(r->training, name, &o, err)))
        return NULL;
    /* A name that exists is an error: a sampler in use would change its weights. */
    o.overwrite = 0;
    box->saved[0] = tinker_training_save_for_sampler(r->training, name, &o, err);
    if (!box->saved[0] ||
        (state_path && tinker_future_wait(box->saved[1], box->timeout_ms, err) != TINKER_OK) ||
        tinker_future_wait(box->saved[0], box->timeout_ms, err) != TINKER_OK)
        return NULL;
    if (state_path)
        *state_path = tinker_future_saved_path(box->saved[1]);
    return tinker_future_saved_path(box->saved[0]);
}
