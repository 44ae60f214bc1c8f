/* graph_call.c - the arguments of a node, by place or by name.
 *
 * torch.fx writes every argument of a function that has a default, and which those are differs
 * between its versions.  So an argument that nobody has read is refused unless it says nothing. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/graph_impl.h"

/* Keeps the first problem: what follows is usually a consequence of it.  Its value is NONE, so that
 * an operation may return what call_fail() gives. */
struct value call_fail(struct call *c, const char *fmt, ...)
{
    if (!c->problem[0]) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(c->problem, sizeof(c->problem), fmt, ap);
        va_end(ap);
    }
    return (struct value){ .kind = VALUE_NONE };
}

struct value value_tensor(tinker_var *v, enum element element)
{
    return (struct value){ .kind = VALUE_TENSOR, .element = element, .var = v };
}

struct value value_number(enum value_kind kind, double number)
{
    return (struct value){ .kind = kind, .number = number };
}

bool value_is_number(const struct value *v)
{
    return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

/* Marks the argument as read, whether it is used or not: see the top of the file.  By place first,
 * as Python binds; a bit per argument is enough, since CALL_ARGS_MAX is 64. */
const struct value *call_arg(struct call *c, size_t i, const char *name)
{
    const struct value *v = NULL;
    if (i < c->node->n_args) {
        c->args_read |= (uint64_t)1 << i;
        v = &c->args[i];
    }
    for (size_t k = 0; !v && name && k < c->node->n_kwargs; k++)
        if (strcmp(c->kwargs[k].name, name) == 0) {
            c->kwargs_read |= (uint64_t)1 << k;
            v = &c->kwargs[k].value;
        }
    return v && v->kind != VALUE_NONE ? v : NULL;
}

tinker_var *call_tensor(struct call *c, size_t i, const char *name)
{
    const struct value *v = call_arg(c, i, name);
    if (v && v->kind == VALUE_TENSOR)
        return v->var;
    if (v && value_is_number(v))
        /* A Python number takes part in an operation of tensors as a tensor without axes. */
        return tinker_tape_scalar(c->tape, v->number);
    call_fail(c, "argument %zu (%s) must be a tensor or a number", i, name ? name : "");
    return NULL;
}

double call_number(struct call *c, size_t i, const char *name, double dflt)
{
    const struct value *v = call_arg(c, i, name);
    if (!v)
        return dflt;
    if (value_is_number(v))
        return v->number;
    /* A tensor of one element counts as a number unless the logprobs flow through it: its gradient
     * would be lost silently. */
    if (v->kind == VALUE_TENSOR && v->var->shape.n == 1 && !v->var->needs_grad)
        return tinker_var_item(v->var);
    call_fail(c, "argument %zu (%s) must be a number", i, name ? name : "");
    return dflt;
}

/* A whole number that fits an int64_t; false: it is none.  1e15 is below 2^53, so every integer up
 * to it is exact in the double that holds it. */
static bool read_whole(const struct value *v, int64_t *out)
{
    if (!value_is_number(v) || v->number != floor(v->number) || fabs(v->number) > 1e15)
        return false;
    *out = (int64_t)v->number;
    return true;
}

int64_t call_int(struct call *c, size_t i, const char *name, int64_t dflt)
{
    int64_t n = dflt;
    const struct value *v = call_arg(c, i, name);
    if (v && !read_whole(v, &n))
        call_fail(c, "argument %zu (%s) must be an integer", i, name ? name : "");
    return n;
}

bool call_flag(struct call *c, size_t i, const char *name, bool dflt)
{
    return call_number(c, i, name, dflt) != 0;
}

const char *call_text(struct call *c, size_t i, const char *name, const char *dflt)
{
    const struct value *v = call_arg(c, i, name);
    if (!v)
        return dflt;
    if (v->kind == VALUE_TEXT)
        return v->text;
    call_fail(c, "argument %zu (%s) must be a text", i, name ? name : "");
    return dflt;
}

bool call_ints(struct call *c, size_t i, const char *name, int64_t out[RANK_MAX], size_t *n)
{
    const struct value *v = call_arg(c, i, name);
    *n = 0;
    if (!v)
        return true;
    /* x.view(2, 3) and x.view([2, 3]) mean the same; the second form ends the list. */
    const struct value *items = v->kind == VALUE_LIST ? v->items : v;
    size_t count = v->kind == VALUE_LIST ? v->n : i < c->node->n_args ? c->node->n_args - i : 1;
    if (count > RANK_MAX) {
        call_fail(c, "more than %d dimensions", RANK_MAX);
        return false;
    }
    for (size_t k = 0; k < count; k++) {
        if (v->kind != VALUE_LIST)
            call_arg(c, i + k, NULL); /* counts as read */
        if (!read_whole(&items[k], &out[k])) {
            call_fail(c, "argument %zu (%s) must be integers", i, name ? name : "");
            return false;
        }
    }
    *n = count;
    return true;
}

/* A missing argument promotes nothing: BOOL is the lowest type. */
enum element call_element(struct call *c, size_t i, const char *name)
{
    const struct value *v = call_arg(c, i, name);
    if (!v)
        return ELEMENT_BOOL;
    switch (v->kind) {
    case VALUE_TENSOR:
        return v->element;
    case VALUE_BOOL:
        return ELEMENT_BOOL;
    case VALUE_INT:
        return ELEMENT_INT;
    default:
        return ELEMENT_FLOAT;
    }
}
