/* graph_write.c - see graph_write.h.
 *
 * The loss runs on a tape that records its operations (autodiff/record.h), with numbers of no
 * meaning; then each operation is written as the call that torch.fx would trace, under names that
 * torch and `tinker serve` know.  The graph is for datums of any length, but a function may look at
 * a length or at a number and do something else: so it runs twice, on other lengths and numbers, and
 * both graphs must be the same. */
#include "client/training/graph_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autodiff/record.h"
#include "base/array.h"
#include "base/err.h"
#include "json/json.h"

enum { NODES_MAX = 4000 };

/* An argument of a call. */
struct arg {
    enum { ARG_NAME, ARG_NUMBER, ARG_INT, ARG_FLAG, ARG_NULL, ARG_DIMS, ARG_SLICES } kind;
    const char *name; /* of a node */
    double number;
    int64_t value;
    const int64_t *list; /* DIMS: value of them; SLICES: of the last axes, three each */
    const char *key;     /* NULL: by place */
};

/* Where the value of a var is in the graph. */
struct place {
    const tinker_var *var;
    struct arg arg; /* a node or a number */
    bool repeated;  /* broadcasting repeats it where it is used */
};

struct writer {
    struct json_writer json;
    struct arena arena;
    const tinker_graph_loss *loss;
    tinker_tape *tape;
    struct place places[NODES_MAX];
    size_t n_places, n_nodes;
    tinker_error *err;
    tinker_status status;
};

/* The first failure counts; "" so that callers can go on without a test. */
static const char *fail_write(struct writer *w, const char *what)
{
    if (w->status == TINKER_OK)
        w->status = err_set(w->err, TINKER_EINVAL, "custom loss %.60s: %s", w->loss->name, what);
    return "";
}

/* ---- nodes ------------------------------------------------------------------------------- */

/* JSON has no infinity and no NaN: an object names them. */
static void put_number(struct json_writer *j, double v)
{
    if (isfinite(v)) {
        json_put_double(j, v);
        return;
    }
    json_put_begin_object(j);
    json_put_key(j, "float");
    json_put_string(j, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
    json_put_end_object(j);
}

/* [null, {"slice": [start, stop, step]}] as a tuple; INT64_MAX stands for null. */
static void put_slices(struct json_writer *j, const struct arg *a)
{
    json_put_begin_object(j);
    json_put_key(j, "tuple");
    json_put_begin_array(j);
    for (int64_t i = 0; i < a->value; i++) {
        json_put_begin_object(j);
        json_put_key(j, "slice");
        json_put_begin_array(j);
        for (int k = 0; k < 3; k++)
            if (a->list[3 * i + k] == INT64_MAX)
                json_put_null(j);
            else
                json_put_int64(j, a->list[3 * i + k]);
        json_put_end_array(j);
        json_put_end_object(j);
    }
    json_put_end_array(j);
    json_put_end_object(j);
}

static void put_arg(struct json_writer *j, const struct arg *a)
{
    switch (a->kind) {
    case ARG_NAME:
        json_put_begin_object(j);
        json_put_key(j, "ref");
        json_put_string(j, a->name);
        json_put_end_object(j);
        return;
    case ARG_NUMBER:
        put_number(j, a->number);
        return;
    case ARG_INT:
        json_put_int64(j, a->value);
        return;
    case ARG_FLAG:
        json_put_bool(j, a->value != 0);
        return;
    case ARG_NULL:
        json_put_null(j);
        return;
    case ARG_DIMS:
        json_put_array_int64(j, a->list, (size_t)a->value);
        return;
    case ARG_SLICES:
        put_slices(j, a);
        return;
    }
}

/* A target with a dot is a function, one without a method of its first argument. */
static const char *put_node(struct writer *w, const char *target, const struct arg *args, size_t n)
{
    struct json_writer *j = &w->json;
    const char *name = arena_printf(&w->arena, "n%zu", w->n_nodes++);
    if (!name || w->n_nodes > NODES_MAX)
        return fail_write(w, name ? "it has too many operations" : "out of memory");
    json_put_begin_object(j);
    json_put_key(j, "op");
    json_put_string(j, strchr(target, '.') ? "call_function" : "call_method");
    json_put_key(j, "name");
    json_put_string(j, name);
    json_put_key(j, "target");
    json_put_string(j, target);
    json_put_key(j, "args");
    json_put_begin_array(j);
    for (size_t i = 0; i < n; i++)
        if (!args[i].key)
            put_arg(j, &args[i]);
    json_put_end_array(j);
    json_put_key(j, "kwargs");
    json_put_begin_object(j);
    for (size_t i = 0; i < n; i++)
        if (args[i].key) {
            json_put_key(j, args[i].key);
            put_arg(j, &args[i]);
        }
    json_put_end_object(j);
    json_put_end_object(j);
    return name;
}

static struct arg name_arg(const char *name)
{
    return (struct arg){ .kind = ARG_NAME, .name = name };
}

static struct arg number_arg(double v)
{
    return (struct arg){ .kind = ARG_NUMBER, .number = v };
}

static const char *put_call1(struct writer *w, const char *target, struct arg a)
{
    return put_node(w, target, &a, 1);
}

static const char *put_call2(struct writer *w, const char *target, struct arg a, struct arg b)
{
    return put_node(w, target, (struct arg[]){ a, b }, 2);
}

/* ---- operands ---------------------------------------------------------------------------- */

/* From the end: most operands were made just before. */
static const struct place *find_place(const struct writer *w, const tinker_var *v)
{
    for (size_t i = w->n_places; i-- > 0;)
        if (w->places[i].var == v)
            return &w->places[i];
    return NULL;
}

static void add_place(struct writer *w, const tinker_var *v, const char *name)
{
    if (w->n_places < NODES_MAX)
        w->places[w->n_places++] = (struct place){ v, name_arg(name), false };
    else
        fail_write(w, "it has too many operations");
}

/* What an operation reads: a node, or a number that the function knew. */
static struct arg name_operand(struct writer *w, tinker_var *v)
{
    const struct place *p = find_place(w, v);
    if (p)
        return p->arg;
    const double *d = tape_numbers(v);
    if (d && v->shape.n == 1)
        return number_arg(*d);
    fail_write(w, "a constant of several numbers cannot be part of it: make it an input");
    return number_arg(0);
}

/* The same for functions of torch that take no numbers: a tensor like another one. */
static struct arg tensor_operand(struct writer *w, tinker_var *v, struct arg like)
{
    struct arg a = name_operand(w, v);
    if (a.kind == ARG_NAME)
        return a;
    if (like.kind != ARG_NAME) {
        fail_write(w, "an operation on numbers alone cannot be part of it");
        return a;
    }
    const char *zeros = put_call1(w, "torch.zeros_like", like);
    return name_arg(put_call2(w, "operator.add", name_arg(zeros), a));
}

/* ---- operations -------------------------------------------------------------------------- */

/* Those whose call is a name and the operands. */
static const struct {
    const char *op, *target;
    bool compares; /* gives bools, which are 0 and 1 on our tape */
} plain[] = {
    { "neg", "operator.neg", false },
    { "abs", "torch.abs", false },
    { "square", "torch.square", false },
    { "sqrt", "torch.sqrt", false },
    { "rsqrt", "rsqrt", false },
    { "exp", "torch.exp", false },
    { "expm1", "torch.expm1", false },
    { "log", "torch.log", false },
    { "log1p", "torch.log1p", false },
    { "sigmoid", "torch.sigmoid", false },
    { "tanh", "torch.tanh", false },
    { "relu", "torch.relu", false },
    { "erf", "torch.erf", false },
    { "sign", "torch.sign", false },
    { "floor", "torch.floor", false },
    { "round", "torch.round", false },
    { "detach", "detach", false },
    { "isfinite", "torch.isfinite", true },
    { "add", "operator.add", false },
    { "sub", "operator.sub", false },
    { "mul", "operator.mul", false },
    { "div", "operator.truediv", false },
    { "pow", "operator.pow", false },
    { "matmul", "operator.matmul", false },
    { "gt", "operator.gt", true },
    { "ge", "operator.ge", true },
    { "lt", "operator.lt", true },
    { "le", "operator.le", true },
    { "eq", "operator.eq", true },
    { "ne", "operator.ne", true },
    { "logsigmoid", "torch._C._nn.log_sigmoid", false },
    { "softplus", "torch._C._nn.softplus", false },
};

/* Is it not 0? */
static struct arg put_truth(struct writer *w, tinker_var *v)
{
    return name_arg(put_call2(w, "operator.ne", name_operand(w, v), number_arg(0)));
}

static const char *put_numbers(struct writer *w, const char *bools)
{
    return put_call1(w, "float", name_arg(bools));
}

/* 1 / x, and 0 at 0, where torch would give infinity and a gradient that is not a number. */
static const char *put_recip(struct writer *w, tinker_var *v)
{
    struct arg x = name_operand(w, v);
    struct arg none = name_arg(put_call2(w, "operator.eq", x, number_arg(0)));
    const char *safe = put_node(w, "torch.where", (struct arg[]){ none, number_arg(1), x }, 3);
    const char *y = put_call2(w, "operator.truediv", number_arg(1), name_arg(safe));
    return put_node(w, "torch.where", (struct arg[]){ none, number_arg(0), name_arg(y) }, 3);
}

/* Sums, means and their kin, as they were called. */
static const char *put_reduction(struct writer *w, const struct record *r)
{
    static const int64_t both[] = { 0, 1 };
    tinker_var *v = r->parents[0];
    const struct place *p = find_place(w, v);
    if (p && p->repeated)
        return fail_write(w, "a repeated tensor cannot be reduced in it");
    bool all = r->axis == TINKER_ALL, log = strcmp(r->op, "logsumexp") == 0;
    bool extreme = strcmp(r->op, "max") == 0 || strcmp(r->op, "min") == 0;
    bool spread = strcmp(r->op, "variance") == 0, keeps = !strstr(r->op, "softmax");
    struct arg args[4] = { name_operand(w, v) };
    size_t n = 1;
    if (all && v->shape.ndim > 2)
        return fail_write(w, "a tensor of rank 3 cannot be reduced over all axes in it");
    if (!all)
        args[n++] = (struct arg){ .kind = ARG_INT, .value = r->axis };
    else if (log || (r->keep && !extreme))
        args[n++] = (struct arg){ .kind = ARG_DIMS, .list = both, .value = (int64_t)v->shape.ndim };
    else if (r->keep)
        return fail_write(w, "an extreme over all axes cannot keep them in it");
    if (spread)
        args[n++] = (struct arg){ .kind = ARG_INT, .value = r->correction, .key = "correction" };
    if (keeps && n > 1 && (r->keep || !all))
        args[n++] = (struct arg){ .kind = ARG_FLAG, .value = r->keep, .key = "keepdim" };
    const char *name = put_node(w, spread ? "var" : r->op, args, n);
    /* torch gives the values and where they are. */
    return extreme && !all ? put_call2(w, "operator.getitem", name_arg(name),
                                       (struct arg){ .kind = ARG_INT, .value = 0 })
                           : name;
}

/* Another shape of the same numbers: at most one length may be that of a datum. */
static const char *put_reshape(struct writer *w, const struct record *r)
{
    int64_t dims[RANK_MAX];
    const struct shape *s = &r->y->shape;
    bool open = false;
    for (size_t i = 0; i < s->ndim; i++) {
        dims[i] = s->dim[i] == 1 ? 1 : open ? (int64_t)s->dim[i] : -1;
        open = open || dims[i] == -1;
    }
    return put_call2(w, "reshape", name_operand(w, r->parents[0]),
                     (struct arg){ .kind = ARG_DIMS, .list = dims, .value = (int64_t)s->ndim });
}

/* What a recorded slice is counted from: its start and, unless it goes to the end, its end. */
static const char *put_slice(struct writer *w, const struct record *r)
{
    tinker_var *v = r->parents[0], *y = r->y;
    int64_t list[3 * RANK_MAX], dim = (int64_t)v->shape.dim[y->axis],
                                len = (int64_t)y->shape.dim[y->axis];
    const int64_t *index = y->index;
    int64_t step = len > 1 ? index[1] - index[0] : 1, end = len ? index[len - 1] + 1 : 0;
    bool even = len > 0 && step > 0;
    for (int64_t i = 1; i < len; i++)
        even = even && index[i] - index[i - 1] == step;
    if (!even)
        return fail_write(w, "of the operations that pick elements only slices can be part of it");
    for (int i = 0; i < 3 * (y->axis + 1); i++)
        list[i] = INT64_MAX;
    int64_t *own = &list[3 * y->axis];
    own[0] = index[0];
    if (end + step <= dim)
        own[1] = end - dim;
    if (step > 1)
        own[2] = step;
    return put_call2(w, "operator.getitem", name_operand(w, v),
                     (struct arg){ .kind = ARG_SLICES, .list = list, .value = y->axis + 1 });
}

/* Operations with parameters and forms of their own; NULL: not one of them. */
static const char *put_special(struct writer *w, const struct record *r)
{
    const char *op = r->op;
    tinker_var *const *v = r->parents;
    const double *p = r->y->p;
    if (strcmp(op, "shift") == 0)
        return put_call2(w, "operator.add", name_operand(w, v[0]), number_arg(p[0]));
    if (strcmp(op, "scale") == 0)
        return put_call2(w, "operator.mul", name_operand(w, v[0]), number_arg(p[0]));
    if (strcmp(op, "power") == 0)
        return put_call2(w, "operator.pow", name_operand(w, v[0]), number_arg(p[0]));
    if (strcmp(op, "recip") == 0)
        return put_recip(w, v[0]);
    if (strcmp(op, "clamp") == 0)
        return put_node(w, "torch.clamp",
                        (struct arg[]){ name_operand(w, v[0]), number_arg(p[0]), number_arg(p[1]) },
                        3);
    if (strcmp(op, "nan_to_num") == 0)
        return put_node(w, "torch.nan_to_num",
                        (struct arg[]){ name_operand(w, v[0]), number_arg(p[0]), number_arg(p[2]),
                                        number_arg(p[1]) },
                        4);
    if (strcmp(op, "not") == 0)
        return put_numbers(w, put_call2(w, "operator.eq", name_operand(w, v[0]), number_arg(0)));
    if (strcmp(op, "and") == 0 || strcmp(op, "or") == 0)
        return put_numbers(w, put_call2(w, op[0] == 'a' ? "operator.and_" : "operator.or_",
                                        put_truth(w, v[0]), put_truth(w, v[1])));
    if (strcmp(op, "where") == 0) {
        struct arg mask = put_truth(w, v[2]);
        return put_node(w, "torch.where",
                        (struct arg[]){ mask, name_operand(w, v[0]), name_operand(w, v[1]) }, 3);
    }
    if (strcmp(op, "minimum") == 0 || strcmp(op, "maximum") == 0) {
        struct arg a = name_operand(w, v[0]), b = name_operand(w, v[1]);
        a = tensor_operand(w, v[0], b);
        b = tensor_operand(w, v[1], a);
        return put_call2(w, op[1] == 'i' ? "torch.minimum" : "torch.maximum", a, b);
    }
    if (strcmp(op, "dot") == 0)
        return put_call1(
            w, "sum",
            name_arg(put_call2(w, "operator.mul", name_operand(w, v[0]), name_operand(w, v[1]))));
    if (strcmp(op, "cumsum") == 0)
        return put_call2(w, "cumsum", name_operand(w, v[0]),
                         (struct arg){ .kind = ARG_INT, .value = r->y->axis });
    if (strcmp(op, "reshape") == 0)
        return put_reshape(w, r);
    if (strcmp(op, "index_select") == 0)
        return put_slice(w, r);
    return NULL;
}

static void put_record(struct writer *w, const struct record *r)
{
    char text[120];
    /* Repeating happens by itself where the value is used. */
    if (strcmp(r->op, "expand") == 0) {
        struct arg a = name_operand(w, r->parents[0]);
        if (w->n_places < NODES_MAX)
            w->places[w->n_places++] = (struct place){ r->y, a, true };
        return;
    }
    /* A function of repeated values alone is repeated, too. */
    bool repeated = false, apart = false;
    for (size_t i = 0; i < r->n_parents; i++) {
        const struct place *p = find_place(w, r->parents[i]);
        repeated = repeated || (p && p->repeated);
        apart = apart || (p && !p->repeated);
    }
    static const char *const whole[] = { "dot", "matmul", "cumsum", "reshape", "index_select" };
    for (size_t i = 0; repeated && i < ARRAY_LEN(whole); i++)
        if (strcmp(whole[i], r->op) == 0)
            fail_write(w,
                       "a repeated tensor cannot be part of a product or change its shape in it");
    const char *name = r->call ? put_reduction(w, r) : NULL;
    for (size_t i = 0; !name && i < ARRAY_LEN(plain); i++)
        if (strcmp(plain[i].op, r->op) == 0) {
            struct arg args[2] = { { 0 } };
            for (size_t k = 0; k < r->n_parents && k < 2; k++)
                args[k] = name_operand(w, r->parents[k]);
            name = put_node(w, plain[i].target, args, r->n_parents);
            name = plain[i].compares ? put_numbers(w, name) : name;
        }
    if (!name)
        name = put_special(w, r);
    snprintf(text, sizeof(text), "the operation %.60s cannot be part of it", r->op);
    add_place(w, r->y, name ? name : fail_write(w, text));
    if (w->n_places)
        w->places[w->n_places - 1].repeated = repeated && !apart;
}

/* ---- a graph ----------------------------------------------------------------------------- */

/* Numbers of no meaning, around -1 as logprobs are. */
static double sample_number(size_t run, size_t input, size_t i)
{
    return -0.3 - 0.1 * (double)((i * 7 + input * 3 + run * 5) % 11);
}

/* A leaf or a constant of this rank, under its name. */
static tinker_var *put_input(struct writer *w, const char *name, int rank, size_t number,
                             size_t run)
{
    double v[32];
    int64_t shape[2] = { run ? 7 : 5, run ? 3 : 2 };
    size_t n = rank == 0 ? 1 : rank == 1 ? (size_t)shape[0] : (size_t)(shape[0] * shape[1]);
    struct json_writer *j = &w->json;
    for (size_t i = 0; i < n; i++)
        v[i] = sample_number(run, number, i);
    tinker_var *x = number ? tinker_tape_const(w->tape, v, n, shape, (size_t)rank)
                           : tinker_tape_leaf(w->tape, v, n, shape, (size_t)rank);
    json_put_begin_object(j);
    json_put_key(j, "op");
    json_put_string(j, "placeholder");
    json_put_key(j, "name");
    json_put_string(j, name);
    json_put_key(j, "target");
    json_put_string(j, name);
    json_put_key(j, "args");
    json_put_raw(j, "[]", 2);
    json_put_key(j, "kwargs");
    json_put_raw(j, "{}", 2);
    json_put_end_object(j);
    add_place(w, x, name);
    return x;
}

static void put_output(struct writer *w, tinker_var *loss)
{
    struct json_writer *j = &w->json;
    struct arg a = name_operand(w, loss);
    if (a.kind != ARG_NAME || loss->shape.n != 1)
        fail_write(w, a.kind == ARG_NAME ? "the loss is not one number" : "the loss is a constant");
    json_put_begin_object(j);
    json_put_key(j, "op");
    json_put_string(j, "output");
    json_put_key(j, "name");
    json_put_string(j, "output");
    json_put_key(j, "target");
    json_put_string(j, "output");
    json_put_key(j, "args");
    json_put_begin_array(j);
    json_put_begin_object(j);
    json_put_key(j, "tuple");
    json_put_begin_array(j);
    put_arg(j, &a);
    json_put_begin_object(j);
    json_put_key(j, "dict");
    json_put_begin_object(j);
    for (const struct record_metric *m = w->tape->recorded_metrics; m; m = m->next) {
        a = name_operand(w, m->value);
        if (a.kind != ARG_NAME || m->value->shape.n != 1)
            fail_write(w, "a metric is not one computed number");
        json_put_key(j, m->name);
        put_arg(j, &a);
    }
    json_put_end_object(j);
    json_put_end_object(j);
    json_put_end_array(j);
    json_put_end_object(j);
    json_put_end_array(j);
    json_put_key(j, "kwargs");
    json_put_raw(j, "{}", 2);
    json_put_end_object(j);
}

static tinker_status write_run(struct writer *w, size_t run, struct buf *out)
{
    const tinker_graph_loss *loss = w->loss;
    tinker_var *inputs[GRAPH_LOSS_INPUTS_MAX + 1];
    w->tape = tinker_tape_new(w->err);
    if (!w->tape)
        return TINKER_ENOMEM;
    json_writer_init(&w->json, out);
    json_put_begin_object(&w->json);
    json_put_key(&w->json, "format");
    json_put_int64(&w->json, 1);
    json_put_key(&w->json, "nodes");
    json_put_begin_array(&w->json);
    tinker_var *logprobs = put_input(w, "logprobs", loss->logprobs_rank, 0, run);
    for (size_t i = 0; i < loss->n_inputs; i++)
        inputs[i] = put_input(w, loss->inputs[i].name, loss->inputs[i].rank, i + 1, run);
    record_start(w->tape);
    tinker_var *y = loss->fn(w->tape, logprobs, inputs, loss->state);
    tinker_status status = tinker_tape_status(w->tape, w->err);
    if (status == TINKER_OK && !y)
        status =
            err_set(w->err, TINKER_EINVAL, "custom loss %.60s: it returned nothing", loss->name);
    for (const struct record *r = record_first(w->tape); status == TINKER_OK && r; r = r->next) {
        put_record(w, r);
        status = w->status;
    }
    if (status == TINKER_OK)
        put_output(w, y);
    status = status == TINKER_OK ? w->status : status;
    json_put_end_array(&w->json);
    json_put_end_object(&w->json);
    tinker_tape_free(w->tape);
    if (status == TINKER_OK && !buf_ok(out))
        status = err_nomem(w->err, "custom loss");
    return status;
}

static bool is_name(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= 64 && !strchr("0123456789", s[0]) &&
           strspn(s, "abcdefghijklmnopqrstuvwxyz_0123456789") == n;
}

tinker_status graph_loss_check(const tinker_graph_loss *loss, tinker_error *err)
{
    if (!loss->name || !*loss->name || !loss->fn)
        return err_set(err, TINKER_EINVAL, "a custom loss has a name and a function");
    if (loss->logprobs_rank != 1 && loss->logprobs_rank != 2)
        return err_set(err, TINKER_EINVAL, "custom loss %.60s: logprobs_rank is %d, must be 1 or 2",
                       loss->name, loss->logprobs_rank);
    if (loss->n_inputs > GRAPH_LOSS_INPUTS_MAX)
        return err_set(err, TINKER_EINVAL, "custom loss %.60s: more than %d inputs", loss->name,
                       GRAPH_LOSS_INPUTS_MAX);
    for (size_t i = 0; i < loss->n_inputs; i++)
        if (!is_name(loss->inputs[i].name) || strcmp(loss->inputs[i].name, "logprobs") == 0 ||
            loss->inputs[i].rank < 0 || loss->inputs[i].rank > 2)
            return err_set(
                err, TINKER_EINVAL,
                "custom loss %.60s: input %zu needs a name of lower-case letters, digits "
                "and _, and a rank from 0 to 2",
                loss->name, i);
    return TINKER_OK;
}

tinker_status graph_write(const tinker_graph_loss *loss, struct buf *out, tinker_error *err)
{
    struct buf again;
    tinker_error own = { 0 };
    tinker_status status = TINKER_OK;
    buf_init(&again, 1 << 24);
    for (size_t run = 0; status == TINKER_OK && run < 2; run++) {
        struct writer *w = calloc(1, sizeof(*w));
        if (!w)
            status = err_nomem(&own, "custom loss");
        else
            *w = (struct writer){ .loss = loss, .err = &own };
        if (w) {
            arena_init(&w->arena, 1 << 24);
            status = write_run(w, run, run ? &again : out);
            arena_clear(&w->arena);
        }
        free(w);
    }
    if (status == TINKER_OK &&
        (out->len != again.len || memcmp(out->data, again.data, out->len) != 0))
        status = err_set(&own, TINKER_EINVAL,
                         "custom loss %.60s: it looks at lengths or numbers, so that no graph is "
                         "right for all datums",
                         loss->name);
    buf_clear(&again);
    if (status != TINKER_OK && err)
        *err = own;
    return status;
}
