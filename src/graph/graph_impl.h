/* graph_impl.h - nodes, values and calls: what the files of this folder share. */
#ifndef GRAPH_GRAPH_IMPL_H
#define GRAPH_GRAPH_IMPL_H

#include <stdbool.h>
#include "autodiff/tape.h"
#include "base/arena.h"
#include "graph/graph.h"

/* In order of promotion: a sum of an int and a float is a float. */
enum element { ELEMENT_BOOL, ELEMENT_INT, ELEMENT_FLOAT };

enum value_kind {
    VALUE_NONE,
    VALUE_BOOL, /* these three: `number` */
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_TEXT,
    VALUE_TENSOR,
    VALUE_LIST,  /* a list or a tuple */
    VALUE_SLICE, /* three items */
    VALUE_ELLIPSIS,
    VALUE_DTYPE,
    VALUE_OTHER, /* a device, layout or memory format: nothing depends on it */
    VALUE_REF    /* node n; only as an argument */
};

struct value {
    enum value_kind kind;
    enum element element; /* TENSOR, DTYPE */
    double number;
    const char *text;
    tinker_var *var;
    const struct value *items; /* LIST, SLICE */
    size_t n;                  /* of items; REF: which node */
};

struct named_value {
    const char *name;
    struct value value;
};

enum node_kind { NODE_PLACEHOLDER, NODE_CALL, NODE_OUTPUT };

struct op;
struct graph_node {
    enum node_kind kind;
    const char *name, *target;
    const struct op *op; /* CALL */
    size_t input;        /* PLACEHOLDER */
    const struct value *args;
    const struct named_value *kwargs;
    size_t n_args, n_kwargs;
};

struct graph_metric {
    const char *name;
    struct value value;
};

struct graph {
    struct arena arena;
    const char *name;
    struct graph_input inputs[GRAPH_INPUTS_MAX];
    size_t n_inputs;
    struct graph_node *nodes;
    size_t n_nodes;
    struct value loss; /* a REF */
    struct graph_metric *metrics;
    size_t n_metrics;
};

/* ---- a call ---------------------------------------------------------------------- */

enum { CALL_ARGS_MAX = 64 };

/* A node that is being computed: its arguments with all references replaced. */
struct call {
    tinker_tape *tape;
    struct arena *arena; /* for values, as long as the tape */
    const struct graph_node *node;
    const struct value *args;
    const struct named_value *kwargs;
    uint64_t args_read, kwargs_read; /* what is left unread is refused */
    char problem[200];               /* "": none */
};

typedef struct value op_fn(struct call *c);
typedef tinker_var *map_fn(tinker_var *a);
typedef tinker_var *pair_fn(tinker_var *a, tinker_var *b);

/* How an operation may be written. */
enum op_form {
    OP_OPERATOR = 1,    /* operator.add */
    OP_TORCH = 2,       /* torch.add */
    OP_METHOD = 4,      /* a call_method node */
    OP_NN = 8,          /* torch.nn.functional.relu, torch._C._nn.gelu */
    OP_FUNCTIONAL = 16, /* torch.functional.norm */
    OP_MATH = 32,       /* math.exp */
    OP_BUILTIN = 64     /* getattr */
};
enum { OP_BOTH = OP_TORCH | OP_METHOD, OP_ANY = OP_TORCH | OP_METHOD | OP_OPERATOR };

struct op {
    const char *name;
    unsigned forms;
    op_fn *run;
    union {
        map_fn *map;   /* for op_map() and op_step() */
        pair_fn *pair; /* for op_pair() and op_compare() */
        int choice;    /* for those that serve several rows */
    };
};

/* NULL: no such operation in this form. */
const struct op *op_find(bool method, const char *target);
/* Names of some operations, for a message. */
const char *op_known(void);

/* Argument i, or that with the name; NULL: not given, or null. */
const struct value *call_arg(struct call *c, size_t i, const char *name);
/* The same as a tensor; numbers become one of rank 0.  NULL: c->problem says why. */
tinker_var *call_tensor(struct call *c, size_t i, const char *name);
double call_number(struct call *c, size_t i, const char *name, double dflt);
int64_t call_int(struct call *c, size_t i, const char *name, int64_t dflt);
bool call_flag(struct call *c, size_t i, const char *name, bool dflt);
/* A text; dflt when it is not given. */
const char *call_text(struct call *c, size_t i, const char *name, const char *dflt);
/* Integers from argument i on: one list, or all arguments that are left.  false: a problem. */
bool call_ints(struct call *c, size_t i, const char *name, int64_t out[RANK_MAX], size_t *n);
/* Of argument i; that of a number is what it would be as a tensor. */
enum element call_element(struct call *c, size_t i, const char *name);
struct value call_fail(struct call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool value_is_number(const struct value *v);
struct value value_tensor(tinker_var *v, enum element element);
struct value value_number(enum value_kind kind, double number);

/* ---- the operations, by file ------------------------------------------------------ */

op_fn op_map, op_step, op_pair, op_compare, op_pow, op_clamp, op_where, op_masked_fill, op_cast,
    op_like, op_nan_to_num, op_softplus, op_gelu, op_silu, op_math, op_invert, op_same, op_detach;
pair_fn pair_floor_div, pair_mod;
map_fn map_erf, map_log2, map_reciprocal;

op_fn op_reduce, op_extreme, op_spread, op_norm, op_normalize, op_cumsum, op_diff, op_dot,
    op_matmul, op_any_all;

op_fn op_getattr, op_size, op_numel, op_dim, op_view, op_squeeze, op_unsqueeze, op_expand,
    op_transpose, op_permute, op_flatten, op_join, op_flip, op_roll, op_getitem;

op_fn op_pointwise_loss, op_kl_div, op_bce_logits;

#endif
