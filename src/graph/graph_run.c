/* graph_run.c - one datum: inputs, nodes in order, loss, metrics, gradient.
 *
 * Each evaluation has a tape of its own, so what one datum costs is over with it.  The tape bounds
 * its memory, and the work is counted node by node: a graph of a few thousand nodes may repeat
 * large products. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph_impl.h"

struct run {
    const struct graph *graph;
    tinker_tape *tape;
    struct arena arena;
    struct value *values; /* of the nodes so far */
    tinker_var *logprobs;
    size_t work;
    tinker_error *err;
};

/* A datum has a handful of inputs: no index is worth it. */
static const tinker_tensor *find_tensor(const tinker_datum *d, const char *name)
{
    for (size_t i = 0; i < d->n_inputs; i++)
        if (strcmp(d->inputs[i].name, name) == 0)
            return &d->inputs[i].tensor;
    return NULL;
}

/* The shape of the targets is that of the logprobs: [T] or [T, K]. */
static tinker_status make_logprobs(struct run *u, const tinker_datum *d, const float *logprobs,
                                   size_t n, struct value *out)
{
    const struct graph *g = u->graph;
    const tinker_tensor *targets = find_tensor(d, "target_tokens");
    int64_t shape[2] = { (int64_t)n, 1 };
    int64_t rank = targets && targets->shape && targets->ndim == 2 ? 2 : 1;
    if (rank != g->inputs[0].rank)
        return err_set(u->err, TINKER_EINVAL,
                       "custom loss %.60s: logprobs have rank %d here, the loss was made for %d",
                       g->name, (int)rank, (int)g->inputs[0].rank);
    if (rank == 2) {
        shape[0] = targets->shape[0];
        shape[1] = targets->shape[1];
    }
    /* The tape computes in double: losses subtract logprobs that are nearly equal. */
    double *wide = arena_array(&u->arena, n, sizeof(*wide));
    if (!wide && n)
        return err_nomem(u->err, "custom loss");
    for (size_t i = 0; i < n; i++)
        wide[i] = logprobs[i];
    /* A leaf is what gradients are asked of; all other inputs are constants. */
    u->logprobs = tinker_tape_leaf(u->tape, wide, n, shape, (size_t)rank);
    *out = value_tensor(u->logprobs, ELEMENT_FLOAT);
    return tinker_tape_status(u->tape, u->err);
}

static tinker_status make_input(struct run *u, const tinker_datum *d, size_t i, struct value *out)
{
    const struct graph *g = u->graph;
    const struct graph_input *in = &g->inputs[i];
    const tinker_tensor *t = find_tensor(d, in->name);
    if (!t)
        return err_set(u->err, TINKER_EINVAL, "custom loss %.60s: the datum has no %.64s", g->name,
                       in->name);
    /* Copied onto the tape, because the datum is float or integer and the tape is double. */
    tinker_var *v = tinker_tape_tensor(u->tape, t);
    tinker_status status = tinker_tape_status(u->tape, u->err);
    if (status != TINKER_OK) {
        err_prefix(u->err, "custom loss %.60s: %.64s", g->name, in->name);
        return status;
    }
    /* A number comes as [] or [1]. */
    if (in->rank == 0 && v->shape.n == 1)
        v = tinker_var_reshape(v, NULL, 0);
    if ((int64_t)v->shape.ndim != in->rank)
        return err_set(u->err, TINKER_EINVAL,
                       "custom loss %.60s: %.64s has rank %zu here, the loss was made for %d",
                       g->name, in->name, v->shape.ndim, (int)in->rank);
    /* Only integers promote differently; every float type is a double here. */
    bool integer = t->dtype == TINKER_INT64 || t->dtype == TINKER_INT32 ||
                   t->dtype == TINKER_UINT32 || t->dtype == TINKER_UINT64;
    *out = value_tensor(v, integer ? ELEMENT_INT : ELEMENT_FLOAT);
    return TINKER_OK;
}

/* Replace references by values, lists item by item; false: no memory. */
static bool resolve_value(struct run *u, const struct value *in, struct value *out)
{
    /* A node's value is taken by copy: 48 bytes, and tensors stay shared through var. */
    *out = in->kind == VALUE_REF ? u->values[in->n] : *in;
    if (in->kind != VALUE_LIST && in->kind != VALUE_SLICE)
        return true;
    struct value *items = arena_array(&u->arena, in->n, sizeof(*items));
    out->items = items;
    for (size_t i = 0; items && i < in->n; i++)
        if (!resolve_value(u, &in->items[i], &items[i]))
            return false;
    return items || !in->n;
}

/* Says nothing: null, false, or what fx adds to the call of a function.  fx adds _stacklevel to
 * softmax(), and inplace to activations, whose result a functional graph cannot see. */
static bool is_idle(const char *name, const struct value *v)
{
    return v->kind == VALUE_NONE || v->kind == VALUE_OTHER ||
           (v->kind == VALUE_BOOL && v->number == 0) ||
           (name && (strcmp(name, "_stacklevel") == 0 || strcmp(name, "inplace") == 0));
}

/* Arguments are resolved for each datum, as they hold tensors of this datum. */
static tinker_status run_call(struct run *u, const struct graph_node *node, struct value *out)
{
    struct value *args = arena_array(&u->arena, node->n_args, sizeof(*args));
    struct named_value *kwargs = arena_array(&u->arena, node->n_kwargs, sizeof(*kwargs));
    bool ok = (args || !node->n_args) && (kwargs || !node->n_kwargs);
    for (size_t i = 0; ok && i < node->n_args; i++)
        ok = resolve_value(u, &node->args[i], &args[i]);
    for (size_t i = 0; ok && i < node->n_kwargs; i++) {
        kwargs[i].name = node->kwargs[i].name;
        ok = resolve_value(u, &node->kwargs[i].value, &kwargs[i].value);
    }
    if (!ok)
        return err_nomem(u->err, "custom loss");
    struct call c = {
        .tape = u->tape, .arena = &u->arena, .node = node, .args = args, .kwargs = kwargs
    };
    *out = node->op->run(&c);
    /* An argument we do not know could change the result; ignoring it would train on another loss
     * than the one that was written.  call_fail() keeps an earlier problem. */
    for (size_t i = 0; i < node->n_args; i++)
        if (!(c.args_read >> i & 1) && !is_idle(NULL, &args[i]))
            call_fail(&c, "argument %zu of %.80s is not supported here", i, node->target);
    for (size_t i = 0; i < node->n_kwargs; i++)
        if (!(c.kwargs_read >> i & 1) && !is_idle(kwargs[i].name, &kwargs[i].value))
            call_fail(&c, "argument %.40s of %.80s is not supported here", kwargs[i].name,
                      node->target);
    /* The tape keeps the first error of any operation; it comes before c.problem, which may only be
     * a consequence. */
    tinker_status status = tinker_tape_status(u->tape, u->err);
    /* The arena of the tape is bounded, so its "no memory" is the limit of the graph, not of the
     * machine. */
    if (status == TINKER_ENOMEM)
        err_set(u->err, status = TINKER_EINVAL, "it needs more than %d MiB for a datum",
                GRAPH_MEMORY_MAX >> 20);
    if (status == TINKER_OK && c.problem[0])
        status = err_set(u->err, TINKER_EINVAL, "%s", c.problem);
    /* NULL without an error: an operation met a value that it does not handle. */
    if (status == TINKER_OK && out->kind == VALUE_TENSOR && !out->var)
        status = err_set(u->err, TINKER_EINVAL, "%.80s gave nothing", node->target);
    /* Elements computed, not operations: a node of 4096 may be a product of large matrices. */
    if (status == TINKER_OK && out->kind == VALUE_TENSOR)
        u->work += out->var->shape.n;
    if (status == TINKER_OK && u->work > GRAPH_WORK_MAX)
        status = err_set(u->err, TINKER_EINVAL, "it computes too many elements for a datum");
    if (status != TINKER_OK)
        err_prefix(u->err, "custom loss %.60s: node %.64s", u->graph->name, node->name);
    return status;
}

/* A number, or a tensor of one element. */
static tinker_status read_scalar(struct run *u, const struct value *v, const char *what,
                                 double *out)
{
    if (value_is_number(v))
        *out = v->number;
    else if (v->kind == VALUE_TENSOR && v->var->shape.n == 1)
        *out = tinker_var_item(v->var);
    else
        return err_set(u->err, TINKER_EINVAL, "custom loss %.60s: %.80s is not a scalar",
                       u->graph->name, what);
    return TINKER_OK;
}

/* The derivatives by the logprobs; a loss that does not depend on them has none.  Gradients are
 * double on the tape and float on the way to the model. */
static tinker_status walk_loss(struct run *u, const struct value *loss, float *grads, size_t n)
{
    memset(grads, 0, n * sizeof(*grads));
    /* A mask that is 0 everywhere, for example, leaves a loss without a path to the logprobs. */
    if (loss->kind != VALUE_TENSOR || !loss->var->needs_grad)
        return TINKER_OK;
    tinker_status status = tinker_tape_backward(u->tape, loss->var, u->err);
    if (status != TINKER_OK) {
        err_prefix(u->err, "custom loss %.60s: gradient", u->graph->name);
        return status;
    }
    const double *g = tinker_var_grad(u->logprobs);
    /* g NULL: the walk back did not reach the logprobs. */
    for (size_t i = 0; g && i < n; i++) {
        /* An infinite gradient would make every weight of the adapter NaN in the next step. */
        if (!isfinite(g[i]))
            return err_set(u->err, TINKER_EREQUEST,
                           "custom loss %.60s: its gradient at position %zu is not finite",
                           u->graph->name, i);
        grads[i] = (float)g[i];
    }
    return TINKER_OK;
}

tinker_status graph_evaluate(const struct graph *g, const tinker_datum *datum,
                             const float *logprobs, size_t n, double *loss, float *grads,
                             double *metrics, tinker_error *err)
{
    tinker_error own;
    struct run u = { .graph = g, .err = err ? err : &own };
    /* A tape and an arena per datum: their free is all the cleaning up that an error needs. */
    u.tape = tinker_tape_new(u.err);
    if (!u.tape)
        return TINKER_ENOMEM;
    u.tape->arena.max = GRAPH_MEMORY_MAX;
    arena_init(&u.arena, GRAPH_MEMORY_MAX);
    u.values = arena_array(&u.arena, g->n_nodes, sizeof(*u.values));
    tinker_status status = u.values ? TINKER_OK : err_nomem(u.err, "custom loss");
    /* In order: a node refers to earlier ones only.  NODE_OUTPUT has no value of its own; the loss
     * and the metrics refer to other nodes. */
    for (size_t i = 0; i < g->n_nodes && status == TINKER_OK; i++) {
        const struct graph_node *node = &g->nodes[i];
        if (node->kind == NODE_CALL)
            status = run_call(&u, node, &u.values[i]);
        else if (node->kind == NODE_PLACEHOLDER)
            status = node->input == 0 ? make_logprobs(&u, datum, logprobs, n, &u.values[i])
                                      : make_input(&u, datum, node->input, &u.values[i]);
    }
    /* The parser made sure that the loss refers to a node. */
    const struct value *result = u.values ? &u.values[g->loss.n] : NULL;
    if (status == TINKER_OK)
        status = read_scalar(&u, result, "the loss", loss);
    if (status == TINKER_OK && !isfinite(*loss))
        status = err_set(u.err, TINKER_EREQUEST, "custom loss %.60s: it is not finite", g->name);
    for (size_t i = 0; status == TINKER_OK && i < g->n_metrics; i++)
        status = read_scalar(&u, &u.values[g->metrics[i].value.n], g->metrics[i].name, &metrics[i]);
    if (status == TINKER_OK && grads)
        /* Only for training; a forward pass has no use for it. */
        status = walk_loss(&u, result, grads, n);
    arena_clear(&u.arena);
    tinker_tape_free(u.tape);
    return status;
}
