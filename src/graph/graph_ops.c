/* graph_ops.c - the table of operations: how each may be written and what computes it.
 *
 * Names are those of torch.fx.  A function, an operator and a method of one name are one row: they
 * take the same arguments.  What torch has and the table has not is refused when a graph is made. */
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "graph/graph_impl.h"

/* Reductions share functions; these say which they are. */
enum { SUM, MEAN, PROD, LOGSUMEXP, MAX = 1, MIN = -1, STD = 0, VAR = 1, ANY = 0, ALL = 1 };

/* Each row gives the forms in which torch.fx records the operation.  OP_ANY has all three because
 * an expression is recorded as it was written: a + b is operator.add, torch.add(a, b) a function,
 * a.add(b) a method.  A form that torch itself does not have is left out, so that a typing error is
 * found when the graph is made. */
/* clang-format off */
static const struct op ops[] = {
    /* pairs */
    { .name = "add", .forms = OP_ANY, .run = op_pair, .pair = tinker_var_add },
    { .name = "sub", .forms = OP_ANY, .run = op_pair, .pair = tinker_var_sub },
    /* Python has / and //, torch one div() with rounding_mode: see op_pair(). */
    { .name = "mul", .forms = OP_ANY, .run = op_pair, .pair = tinker_var_mul },
    { .name = "truediv", .forms = OP_OPERATOR, .run = op_pair, .pair = tinker_var_div },
    { .name = "div", .forms = OP_BOTH, .run = op_pair, .pair = tinker_var_div },
    { .name = "floordiv", .forms = OP_OPERATOR, .run = op_pair, .pair = pair_floor_div },
    { .name = "floor_divide", .forms = OP_BOTH, .run = op_pair, .pair = pair_floor_div },
    { .name = "mod", .forms = OP_OPERATOR, .run = op_pair, .pair = pair_mod },
    { .name = "remainder", .forms = OP_BOTH, .run = op_pair, .pair = pair_mod },
    { .name = "maximum", .forms = OP_BOTH, .run = op_pair, .pair = tinker_var_maximum },
    { .name = "minimum", .forms = OP_BOTH, .run = op_pair, .pair = tinker_var_minimum },
    { .name = "pow", .forms = OP_ANY, .run = op_pow },
    { .name = "matmul", .forms = OP_ANY, .run = op_matmul },
    { .name = "dot", .forms = OP_BOTH, .run = op_dot },
    { .name = "lt", .forms = OP_ANY, .run = op_compare, .pair = tinker_var_lt },
    { .name = "le", .forms = OP_ANY, .run = op_compare, .pair = tinker_var_le },
    { .name = "gt", .forms = OP_ANY, .run = op_compare, .pair = tinker_var_gt },
    { .name = "ge", .forms = OP_ANY, .run = op_compare, .pair = tinker_var_ge },
    { .name = "eq", .forms = OP_ANY, .run = op_compare, .pair = tinker_var_eq },
    { .name = "ne", .forms = OP_ANY, .run = op_compare, .pair = tinker_var_ne },
    /* On bool values the bitwise & and | of Python are the logical operations. */
    { .name = "and_", .forms = OP_OPERATOR, .run = op_compare, .pair = tinker_var_and },
    { .name = "or_", .forms = OP_OPERATOR, .run = op_compare, .pair = tinker_var_or },
    { .name = "logical_and", .forms = OP_BOTH, .run = op_compare, .pair = tinker_var_and },
    { .name = "logical_or", .forms = OP_BOTH, .run = op_compare, .pair = tinker_var_or },
    { .name = "invert", .forms = OP_OPERATOR, .run = op_invert },
    { .name = "logical_not", .forms = OP_BOTH, .run = op_invert },
    /* element by element */
    { .name = "neg", .forms = OP_ANY, .run = op_map, .map = tinker_var_neg },
    { .name = "abs", .forms = OP_ANY, .run = op_map, .map = tinker_var_abs },
    { .name = "exp", .forms = OP_BOTH, .run = op_map, .map = tinker_var_exp },
    { .name = "expm1", .forms = OP_BOTH, .run = op_map, .map = tinker_var_expm1 },
    { .name = "log", .forms = OP_BOTH, .run = op_map, .map = tinker_var_log },
    { .name = "log1p", .forms = OP_BOTH, .run = op_map, .map = tinker_var_log1p },
    { .name = "log2", .forms = OP_BOTH, .run = op_map, .map = map_log2 },
    { .name = "sqrt", .forms = OP_BOTH, .run = op_map, .map = tinker_var_sqrt },
    { .name = "rsqrt", .forms = OP_BOTH, .run = op_map, .map = tinker_var_rsqrt },
    { .name = "square", .forms = OP_BOTH, .run = op_map, .map = tinker_var_square },
    { .name = "reciprocal", .forms = OP_BOTH, .run = op_map, .map = map_reciprocal },
    { .name = "sigmoid", .forms = OP_BOTH | OP_NN, .run = op_map, .map = tinker_var_sigmoid },
    { .name = "tanh", .forms = OP_BOTH | OP_NN, .run = op_map, .map = tinker_var_tanh },
    { .name = "relu", .forms = OP_BOTH | OP_NN, .run = op_map, .map = tinker_var_relu },
    { .name = "erf", .forms = OP_BOTH, .run = op_map, .map = map_erf },
    /* F.logsigmoid is a builtin of torch, which fx records as torch._C._nn.log_sigmoid. */
    { .name = "log_sigmoid", .forms = OP_NN, .run = op_map, .map = tinker_var_logsigmoid },
    { .name = "logsigmoid", .forms = OP_NN, .run = op_map, .map = tinker_var_logsigmoid },
    { .name = "softplus", .forms = OP_NN, .run = op_softplus },
    { .name = "gelu", .forms = OP_NN, .run = op_gelu },
    { .name = "silu", .forms = OP_NN, .run = op_silu },
    { .name = "sign", .forms = OP_BOTH, .run = op_map, .map = tinker_var_sign },
    { .name = "floor", .forms = OP_BOTH, .run = op_map, .map = tinker_var_floor },
    { .name = "round", .forms = OP_BOTH, .run = op_map, .map = tinker_var_round },
    { .name = "isfinite", .forms = OP_BOTH, .run = op_step, .map = tinker_var_isfinite },
    { .name = "clamp", .forms = OP_BOTH, .run = op_clamp },
    { .name = "clip", .forms = OP_BOTH, .run = op_clamp },
    { .name = "where", .forms = OP_TORCH, .run = op_where },
    { .name = "masked_fill", .forms = OP_BOTH, .run = op_masked_fill },
    { .name = "nan_to_num", .forms = OP_BOTH, .run = op_nan_to_num },
    { .name = "detach", .forms = OP_METHOD, .run = op_detach },
    { .name = "clone", .forms = OP_BOTH, .run = op_same },
    { .name = "contiguous", .forms = OP_METHOD, .run = op_same },
    { .name = "float", .forms = OP_METHOD, .run = op_cast },
    { .name = "double", .forms = OP_METHOD, .run = op_cast },
    { .name = "long", .forms = OP_METHOD, .run = op_cast },
    { .name = "int", .forms = OP_METHOD, .run = op_cast },
    { .name = "bool", .forms = OP_METHOD, .run = op_cast },
    { .name = "to", .forms = OP_METHOD, .run = op_cast },
    { .name = "type_as", .forms = OP_METHOD, .run = op_cast },
    /* choice is the value of all elements. */
    { .name = "zeros_like", .forms = OP_TORCH, .run = op_like, .choice = 0 },
    { .name = "ones_like", .forms = OP_TORCH, .run = op_like, .choice = 1 },
    /* along axes */
    /* Without an axis they reduce all elements, as torch does; see op_reduce.c. */
    { .name = "sum", .forms = OP_BOTH, .run = op_reduce, .choice = SUM },
    { .name = "mean", .forms = OP_BOTH, .run = op_reduce, .choice = MEAN },
    { .name = "prod", .forms = OP_BOTH, .run = op_reduce, .choice = PROD },
    { .name = "logsumexp", .forms = OP_BOTH, .run = op_reduce, .choice = LOGSUMEXP },
    { .name = "max", .forms = OP_BOTH, .run = op_extreme, .choice = MAX },
    { .name = "min", .forms = OP_BOTH, .run = op_extreme, .choice = MIN },
    { .name = "std", .forms = OP_BOTH, .run = op_spread, .choice = STD },
    { .name = "var", .forms = OP_BOTH, .run = op_spread, .choice = VAR },
    { .name = "norm", .forms = OP_BOTH | OP_FUNCTIONAL, .run = op_norm },
    { .name = "softmax", .forms = OP_BOTH | OP_NN, .run = op_normalize, .choice = 0 },
    { .name = "log_softmax", .forms = OP_BOTH | OP_NN, .run = op_normalize, .choice = 1 },
    { .name = "cumsum", .forms = OP_BOTH, .run = op_cumsum },
    { .name = "diff", .forms = OP_BOTH, .run = op_diff },
    { .name = "any", .forms = OP_BOTH, .run = op_any_all, .choice = ANY },
    { .name = "all", .forms = OP_BOTH, .run = op_any_all, .choice = ALL },
    /* shapes */
    /* x.shape and its kin are attribute reads, which fx records as calls of getattr. */
    { .name = "getattr", .forms = OP_BUILTIN, .run = op_getattr },
    { .name = "getitem", .forms = OP_OPERATOR, .run = op_getitem },
    { .name = "size", .forms = OP_METHOD, .run = op_size },
    { .name = "numel", .forms = OP_BOTH, .run = op_numel },
    { .name = "dim", .forms = OP_METHOD, .run = op_dim },
    { .name = "view", .forms = OP_METHOD, .run = op_view },
    { .name = "reshape", .forms = OP_BOTH, .run = op_view },
    { .name = "flatten", .forms = OP_BOTH, .run = op_flatten },
    { .name = "squeeze", .forms = OP_BOTH, .run = op_squeeze },
    { .name = "unsqueeze", .forms = OP_BOTH, .run = op_unsqueeze },
    /* view() needs contiguous memory in torch; here every value is, so the two are one. */
    { .name = "expand", .forms = OP_METHOD, .run = op_expand },
    { .name = "transpose", .forms = OP_BOTH, .run = op_transpose },
    { .name = "t", .forms = OP_BOTH, .run = op_transpose },
    { .name = "permute", .forms = OP_BOTH, .run = op_permute },
    { .name = "cat", .forms = OP_TORCH, .run = op_join, .choice = 0 },
    { .name = "stack", .forms = OP_TORCH, .run = op_join, .choice = 1 },
    { .name = "flip", .forms = OP_BOTH, .run = op_flip },
    { .name = "roll", .forms = OP_BOTH, .run = op_roll },
    /* losses of torch.nn.functional */
    /* choice: see the enum in op_pointwise_loss(). */
    { .name = "mse_loss", .forms = OP_NN, .run = op_pointwise_loss, .choice = 0 },
    { .name = "l1_loss", .forms = OP_NN, .run = op_pointwise_loss, .choice = 1 },
    { .name = "smooth_l1_loss", .forms = OP_NN, .run = op_pointwise_loss, .choice = 2 },
    { .name = "huber_loss", .forms = OP_NN, .run = op_pointwise_loss, .choice = 3 },
    { .name = "kl_div", .forms = OP_NN, .run = op_kl_div },
    { .name = "binary_cross_entropy_with_logits", .forms = OP_NN, .run = op_bce_logits },
    /* math.* works on Python numbers, at the time when the graph runs. */
    /* numbers */
    { .name = "exp", .forms = OP_MATH, .run = op_math, .map = tinker_var_exp },
    { .name = "log", .forms = OP_MATH, .run = op_math, .map = tinker_var_log },
    { .name = "sqrt", .forms = OP_MATH, .run = op_math, .map = tinker_var_sqrt },
    { .name = "tanh", .forms = OP_MATH, .run = op_math, .map = tinker_var_tanh },
    { .name = "floor", .forms = OP_MATH, .run = op_math, .map = tinker_var_floor },
};
/* clang-format on */

/* What a target begins with says which form it is.  A longer prefix stands before one that it
 * begins with: torch.nn.functional.relu must not be taken for a function "nn.functional.relu" of
 * torch. */
static const struct {
    const char *prefix;
    unsigned form;
} prefixes[] = {
    { "operator.", OP_OPERATOR }, { "torch.nn.functional.", OP_NN },
    { "torch._C._nn.", OP_NN },   { "torch.functional.", OP_FUNCTIONAL },
    { "torch.", OP_TORCH },       { "math.", OP_MATH },
};

const struct op *op_find(bool method, const char *target)
{
    /* A builtin (getattr) is the only function without a module. */
    unsigned form = method ? OP_METHOD : OP_BUILTIN;
    /* the longest prefixes stand first */
    for (size_t i = 0; !method && i < ARRAY_LEN(prefixes); i++) {
        size_t n = strlen(prefixes[i].prefix);
        if (strncmp(target, prefixes[i].prefix, n) == 0) {
            form = prefixes[i].form;
            target += n;
            break;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        if ((ops[i].forms & form) && strcmp(ops[i].name, target) == 0)
            return &ops[i];
    return NULL;
}

/* Shown when an operation is unknown; the whole table would not fit an error of 384 bytes. */
const char *op_known(void)
{
    return "arithmetic, comparisons, indexing, sum mean prod max min std var norm logsumexp "
           "softmax "
           "log_softmax cumsum clamp where exp log sigmoid tanh relu and more: docs/serve.md has "
           "all";
}
