/* jinja_parse_expr.c - expressions of templates, by recursive descent.
 *
 * Precedence as in the reference engine, from loose to tight: if-else, or, and, not,
 * comparisons, + -, ~, * / // %, **, unary, then postfix, filters and tests.  Depth is
 * limited so that hostile sources cannot exhaust the stack. */
#include "base/array.h"
#include "jinja/jinja.h"

#include <string.h>

/* The grammar, from loose to tight; each level is one function below, so the file reads upward:
 *
 *     expr    = or { "if" or [ "else" expr ] }
 *     or      = and { "or" and }
 *     and     = not { "and" not }
 *     not     = "not" not | compare
 *     compare = add { ( "==" | "!=" | "<" | "<=" | ">" | ">=" | [ "not" ] "in" ) add }
 *     add     = concat { ( "+" | "-" ) concat }
 *     concat  = mul { "~" mul }
 *     mul     = pow { ( "*" | "/" | "//" | "%" ) pow }
 *     pow     = unary { "**" unary }            (from left to right, unlike Python)
 *     unary   = ( "-" | "+" ) unary | primary, then postfix and filters
 *
 * The reference, and this parser, differ from Python in two places: 2 ** 3 ** 2 is 64, and a sign
 * binds tighter than "**", so that -2 ** 2 is 4. Keywords are names: "in", "is" and "not" are
 * recognized by where they stand.
 *
 * Every function returns NULL after a failure, or a node that is then never used. */
static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filters);

bool jinja_same(struct jv_str a, const char *b)
{
    return a.n == strlen(b) && memcmp(a.s, b, a.n) == 0;
}

/* Zeroed, with the line of the current token. NULL once the parse has failed; callers check where
 * they write to it and otherwise pass NULL on. */
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind)
{
    struct jinja_node *node = jx_alloc(p->x, sizeof(*node));
    if (node) {
        node->kind = kind;
        node->line = p->at->line;
    }
    return node;
}

bool jinja_is_op(const struct jinja_parser *p, const char *op)
{
    return p->at->kind == TOK_OP && jinja_same(p->at->text, op);
}

bool jinja_is_name(const struct jinja_parser *p, const char *name)
{
    return p->at->kind == TOK_NAME && jinja_same(p->at->text, name);
}

/* accept: consume if it is there. expect: consume or fail. After a failure none of them moves, so
 * loops end. */
bool jinja_accept_op(struct jinja_parser *p, const char *op)
{
    if (p->x->failed || !jinja_is_op(p, op))
        return false;
    p->at++;
    return true;
}

bool jinja_accept_name(struct jinja_parser *p, const char *name)
{
    if (p->x->failed || !jinja_is_name(p, name))
        return false;
    p->at++;
    return true;
}

/* Fail with what was wanted and what is there instead, at the line of the current token; false,
 * always. At most 40 bytes of the token are quoted. */
static bool fail_unexpected(struct jinja_parser *p, const char *wanted)
{
    if (p->x->failed) /* p->at may be past the end by now */
        return false;
    p->x->line = p->at->line;
    /* Indexed by token kind: these kinds have no text of their own. */
    static const char *const ends[] = { "end of template", "text", "'{{'", "'}}'", "'{%'", "'%}'" };
    if (p->at->kind <= TOK_BLOCK_END)
        return jx_fail(p->x, "expected %s, found %s", wanted, ends[p->at->kind]);
    int n = p->at->text.n < 40 ? (int)p->at->text.n : 40;
    return jx_fail(p->x, "expected %s, found '%.*s'", wanted, n, p->at->text.s);
}

bool jinja_expect_op(struct jinja_parser *p, const char *op)
{
    return jinja_accept_op(p, op) || fail_unexpected(p, op);
}

bool jinja_expect_name(struct jinja_parser *p, struct jv_str *out)
{
    if (p->x->failed)
        return false;
    if (p->at->kind != TOK_NAME)
        return fail_unexpected(p, "a name");
    *out = p->at->text;
    p->at++;
    return true;
}

/* Lists have no capacity: it is the next power of two, so they are full at 0, 1, 2, 4, 8 ... */
bool jinja_push_node(struct jinja_parser *p, struct jinja_node *to, struct jinja_node *item)
{
    if (p->x->failed || !item)
        return false;
    size_t n = to->n_list;
    if ((n & (n - 1)) == 0) { /* 0, 1, 2, 4, 8 ...: full */
        struct jinja_node **list = arena_array(p->x->arena, n ? n * 2 : 1, sizeof(*list));
        if (!list)
            return jx_nomem(p->x);
        if (n > 0)
            memcpy(list, to->list, n * sizeof(*list));
        to->list = list;
    }
    to->list[to->n_list++] = item;
    return true;
}

/* Append a name and its value (NULL: none) at one index of keys and kwargs. Keys are few
 * (arguments, parameters, targets): a copy per push is cheaper than a capacity in every node. */
bool jinja_push_key(struct jinja_parser *p, struct jinja_node *to, struct jv_str key,
                    struct jinja_node *value)
{
    if (p->x->failed)
        return false;
    size_t n = to->n_keys;
    struct jv_str *keys = arena_array(p->x->arena, n + 1, sizeof(*keys));
    struct jinja_node **values = arena_array(p->x->arena, n + 1, sizeof(*values));
    if (!keys || !values)
        return jx_nomem(p->x);
    if (n > 0) {
        memcpy(keys, to->keys, n * sizeof(*keys));
        memcpy(values, to->kwargs, n * sizeof(*values));
    }
    keys[n] = key;
    values[n] = value;
    to->keys = keys;
    to->kwargs = values;
    to->n_keys++;
    return true;
}

/* A node over operands; op matters for EX_BINARY and comparisons only. */
static struct jinja_node *make_node(struct jinja_parser *p, enum jinja_kind kind, enum jinja_op op,
                                    struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *node = jinja_node_new(p, kind);
    if (!node)
        return NULL;
    node->op = op;
    node->a = a;
    node->b = b;
    return node;
}

/* ---- primary ---- */

/* A constant in place of the current token, which is consumed. */
static struct jinja_node *take_constant(struct jinja_parser *p, struct jv v)
{
    struct jinja_node *node = jinja_node_new(p, EX_CONST);
    if (node)
        node->value = v;
    p->at++;
    return node;
}

/* list = "[" [ expr { "," expr } [ "," ] ] "]"
 * dict = "{" [ expr ":" expr { "," expr ":" expr } [ "," ] ] "}" */
static struct jinja_node *parse_items(struct jinja_parser *p, enum jinja_kind kind,
                                      const char *close)
{
    struct jinja_node *node = jinja_node_new(p, kind);
    p->at++;
    while (!p->x->failed && !jinja_is_op(p, close)) {
        jinja_push_node(p, node, jinja_parse_expr(p));
        if (kind == EX_DICT) { /* stored as key, value, key, value */
            jinja_expect_op(p, ":");
            jinja_push_node(p, node, jinja_parse_expr(p));
        }
        if (!jinja_accept_op(p, ","))
            break;
    }
    return jinja_expect_op(p, close) ? node : NULL;
}

/* primary = NAME | STRING+ | INT | FLOAT | "(" tuple ")" | list | dict */
static struct jinja_node *parse_primary(struct jinja_parser *p)
{
    struct jinja_node *node;
    if (p->x->failed)
        return NULL;
    switch (p->at->kind) {
    case TOK_NAME:
        /* Both spellings of constants are in use: Jinja's true and Python's True. */
        if (jinja_is_name(p, "true") || jinja_is_name(p, "True"))
            return take_constant(p, jv_bool(true));
        if (jinja_is_name(p, "false") || jinja_is_name(p, "False"))
            return take_constant(p, jv_bool(false));
        if (jinja_is_name(p, "none") || jinja_is_name(p, "None"))
            return take_constant(p, jv_none());
        node = jinja_node_new(p, EX_NAME);
        if (node)
            node->name = p->at->text;
        p->at++;
        return node;
    case TOK_STRING: { /* adjacent strings are one: "a" "b" is "ab", as in Python */
        struct buf b;
        buf_init(&b, p->x->arena->max);
        node = jinja_node_new(p, EX_CONST);
        for (; p->at->kind == TOK_STRING; p->at++)
            buf_append(&b, p->at->text.s, p->at->text.n);
        struct jv v = jv_from_buf(p->x, &b);
        if (node)
            node->value = v;
        return node;
    }
    case TOK_INT:
    case TOK_FLOAT:
        return take_constant(p, p->at->value);
    default:
        if (jinja_accept_op(p, "(")) {
            /* "()" is the empty tuple, "(a)" is a, "(a,)" and "(a, b)" are tuples. */
            node = jinja_is_op(p, ")") ? jinja_node_new(p, EX_TUPLE) : jinja_parse_tuple(p, true);
            return jinja_expect_op(p, ")") ? node : NULL;
        }
        if (jinja_is_op(p, "["))
            return parse_items(p, EX_LIST, "]");
        if (jinja_is_op(p, "{"))
            return parse_items(p, EX_DICT, "}");
        fail_unexpected(p, "an expression");
        return NULL;
    }
}

/* ---- postfix: attributes, subscripts, calls ---- */

/* subscript = "[" expr "]" | "[" [ expr ] ":" [ expr ] [ ":" [ expr ] ] "]"
 *
 * The reference also parses "a[1, 2]", a tuple as the key; no value here has such keys. parts[k] is
 * what stands after k colons; a slice is an item with colons. */
static struct jinja_node *parse_subscript(struct jinja_parser *p, struct jinja_node *on)
{
    struct jinja_node *node = jinja_node_new(p, EX_ITEM), *parts[3] = { NULL, NULL, NULL };
    size_t colons = 0;
    p->at++;
    while (!p->x->failed && !jinja_is_op(p, "]") && colons < 3) {
        if (jinja_accept_op(p, ":"))
            colons++;
        else if (!parts[colons])
            parts[colons] = jinja_parse_expr(p);
        else
            fail_unexpected(p, "']'");
    }
    if (!jinja_expect_op(p, "]") || !node)
        return NULL;
    if (colons > 2 || (colons == 0 && !parts[0])) {
        jx_fail(p->x, "malformed subscript");
        return NULL;
    }
    node->kind = colons ? EX_SLICE : EX_ITEM;
    node->a = on;
    node->b = parts[0];
    node->c = parts[1];
    node->d = parts[2];
    return node;
}

/* args = "(" [ arg { "," arg } [ "," ] ] ")"; arg = expr | NAME "=" expr. One token of lookahead
 * tells a keyword from a variable; *list and **dict are refused. */
void jinja_parse_args(struct jinja_parser *p, struct jinja_node *call)
{
    jinja_expect_op(p, "(");
    while (!p->x->failed && !jinja_is_op(p, ")")) {
        if (jinja_is_op(p, "*") || jinja_is_op(p, "**")) {
            p->x->line = p->at->line;
            jx_fail(p->x, "argument unpacking is not supported");
            return;
        }
        if (p->at->kind == TOK_NAME && p->at[1].kind == TOK_OP && jinja_same(p->at[1].text, "=")) {
            struct jv_str key = p->at->text;
            p->at += 2;
            struct jinja_node *value = jinja_parse_expr(p);
            jinja_push_key(p, call, key, value);
        } else {
            jinja_push_node(p, call, jinja_parse_expr(p));
        }
        if (!jinja_accept_op(p, ","))
            break;
    }
    jinja_expect_op(p, ")");
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *on)
{
    struct jinja_node *node = jinja_node_new(p, EX_CALL);
    if (!node)
        return NULL;
    node->a = on;
    jinja_parse_args(p, node);
    return node;
}

/* postfix = primary { "." NAME | subscript | args } */
static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *node)
{
    /* A step per round bounds the parse of a.a.a.a...: the chain nests the tree without recursing.
     * Running it does recurse, and is bounded there. */
    while (!p->x->failed && node && jx_step(p->x, 1)) {
        if (jinja_is_op(p, "[")) {
            node = parse_subscript(p, node);
        } else if (jinja_is_op(p, "(")) {
            node = parse_call(p, node);
        } else if (jinja_accept_op(p, ".")) {
            /* a.0 is Django's way to write a[0], which Jinja accepts. */
            if (p->at->kind == TOK_INT) {
                struct jinja_node *index = take_constant(p, p->at->value);
                node = make_node(p, EX_ITEM, OP_ADD, node, index);
                continue;
            }
            struct jinja_node *attr = jinja_node_new(p, EX_ATTR);
            struct jv_str name = { "", 0 };
            if (!jinja_expect_name(p, &name) || !attr)
                return NULL;
            attr->a = node;
            attr->name = name;
            node = attr;
        } else {
            break;
        }
    }
    return node;
}

/* ---- filters and tests ---- */

/* Whether the token can begin the argument of a test without parentheses: "x is divisibleby 3".
 * Words that continue the expression around it cannot. */
static bool starts_test_argument(const struct jinja_parser *p)
{
    if (p->at->kind == TOK_NAME)
        return !jinja_is_name(p, "else") && !jinja_is_name(p, "or") && !jinja_is_name(p, "and") &&
               !jinja_is_name(p, "is") && !jinja_is_name(p, "if") && !jinja_is_name(p, "in") &&
               !jinja_is_name(p, "not");
    return p->at->kind == TOK_STRING || p->at->kind == TOK_INT || p->at->kind == TOK_FLOAT ||
           jinja_is_op(p, "[") || jinja_is_op(p, "{");
}

/* filters = { "|" NAME [ args ] | "is" [ "not" ] NAME [ args | argument ] | args }
 *
 * Filters and tests bind tighter than any binary operator: a + b|length is a + (b|length); a sign
 * belongs to the value: -x|abs is (-x)|abs.  A call may follow a filter that returned a macro. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *node)
{
    while (!p->x->failed && jx_step(p->x, 1)) {
        bool test = false;
        if (node && jinja_is_op(p, "(")) {
            node = parse_call(p, node);
            continue;
        }
        if (!jinja_accept_op(p, "|")) {
            test = jinja_accept_name(p, "is");
            if (!test)
                break;
        }
        struct jinja_node *on = node;
        struct jv_str name = { "", 0 };
        node = jinja_node_new(p, test ? EX_TEST : EX_FILTER);
        bool negated = test && jinja_accept_name(p, "not");
        if (!jinja_expect_name(p, &name) || !node)
            return NULL;
        node->a = on;
        node->name = name;
        node->flag = negated;
        if (jinja_is_op(p, "("))
            jinja_parse_args(p, node);
        else if (test && starts_test_argument(p))
            jinja_push_node(p, node, parse_postfix(p, parse_primary(p)));
    }
    return node;
}

/* ---- operators ---- */

/* unary = ( "-" | "+" ) unary | postfix { filter | test }
 *
 * The operand of a sign takes no filters: those after it apply to the signed value. */
static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filters)
{
    if (++p->x->depth > JV_DEPTH_MAX) {
        p->x->line = p->at->line;
        jx_fail(p->x, "expression nested too deeply");
        return NULL;
    }
    struct jinja_node *node;
    if (jinja_accept_op(p, "-"))
        node = make_node(p, EX_NEG, OP_SUB, parse_unary(p, false), NULL);
    else if (jinja_accept_op(p, "+"))
        node = make_node(p, EX_POS, OP_ADD, parse_unary(p, false), NULL);
    else
        node = parse_primary(p);
    node = parse_postfix(p, node);
    if (with_filters)
        node = jinja_parse_filters(p, node);
    p->x->depth--;
    return node;
}

/* An operator of one level of precedence. */
struct level {
    const char *text;
    enum jinja_op op;
};

/* Left-associative operators of one level over operands parsed by `next`. The tree leans left and
 * is as deep as the chain is long: parsing takes no depth for it, but evaluating does. */
static struct jinja_node *parse_level(struct jinja_parser *p, const struct level *ops, size_t n,
                                      struct jinja_node *(*next)(struct jinja_parser *))
{
    struct jinja_node *left = next(p);
    /* Operators of one level bind alike, so after each operand all of them are tried again. */
    for (size_t i = 0; i < n && !p->x->failed; i++) {
        if (!jinja_accept_op(p, ops[i].text))
            continue;
        left = make_node(p, EX_BINARY, ops[i].op, left, next(p));
        i = (size_t)-1; /* look at all operators again */
    }
    return left;
}

/* An operand of "**", with its filters and tests; parse_level() wants this signature. */
static struct jinja_node *parse_operand(struct jinja_parser *p)
{
    return parse_unary(p, true);
}

static struct jinja_node *parse_pow(struct jinja_parser *p)
{
    static const struct level ops[] = { { "**", OP_POW } };
    return parse_level(p, ops, 1, parse_operand);
}

static struct jinja_node *parse_mul(struct jinja_parser *p)
{
    static const struct level ops[] = {
        { "*", OP_MUL }, { "/", OP_DIV }, { "//", OP_FLOORDIV }, { "%", OP_MOD }
    };
    return parse_level(p, ops, 4, parse_pow);
}

/* "~" binds tighter than "+" in Jinja: "a" + 1 ~ 2 is "a" + "12". */
static struct jinja_node *parse_concat(struct jinja_parser *p)
{
    static const struct level ops[] = { { "~", OP_CONCAT } };
    return parse_level(p, ops, 1, parse_mul);
}

static struct jinja_node *parse_add(struct jinja_parser *p)
{
    static const struct level ops[] = { { "+", OP_ADD }, { "-", OP_SUB } };
    return parse_level(p, ops, 2, parse_concat);
}

/* Consume a comparison operator. "not in" is two tokens, and "not" alone does not belong here. */
static bool accept_comparison(struct jinja_parser *p, enum jinja_op *op)
{
    static const struct level ops[] = { { "==", OP_EQ }, { "!=", OP_NE }, { "<=", OP_LE },
                                        { ">=", OP_GE }, { "<", OP_LT },  { ">", OP_GT } };
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        if (jinja_accept_op(p, ops[i].text)) {
            *op = ops[i].op;
            return true;
        }
    }
    if (jinja_accept_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (jinja_is_name(p, "not") && p->at[1].kind == TOK_NAME && jinja_same(p->at[1].text, "in")) {
        p->at += 2;
        *op = OP_NOT_IN;
        return true;
    }
    return false;
}

/* A chain is one node: a in `a`, then one entry of `list` per comparison, each with its operator.
 * Nested nodes could not evaluate the operand in the middle of a < b < c only once. */
static struct jinja_node *parse_compare(struct jinja_parser *p)
{
    struct jinja_node *left = parse_add(p), *node = NULL;
    enum jinja_op op = OP_EQ;
    while (!p->x->failed && accept_comparison(p, &op)) {
        if (!node) {
            node = jinja_node_new(p, EX_COMPARE);
            if (!node)
                return NULL;
            node->a = left;
        }
        struct jinja_node *right = make_node(p, EX_COMPARE, op, parse_add(p), NULL);
        jinja_push_node(p, node, right);
    }
    return node ? node : left;
}

/* Not a loop, because each "not" wraps the next; hence the limit. "not a == b" negates the whole
 * comparison, as "not" is looser than "==". */
static struct jinja_node *parse_not(struct jinja_parser *p)
{
    if (!jinja_accept_name(p, "not"))
        return parse_compare(p);
    if (++p->x->depth > JV_DEPTH_MAX) {
        jx_fail(p->x, "expression nested too deeply");
        return NULL;
    }
    struct jinja_node *node = make_node(p, EX_NOT, OP_EQ, parse_not(p), NULL);
    p->x->depth--;
    return node;
}

static struct jinja_node *parse_and(struct jinja_parser *p)
{
    struct jinja_node *left = parse_not(p);
    while (jinja_accept_name(p, "and"))
        left = make_node(p, EX_AND, OP_EQ, left, parse_not(p));
    return left;
}

/* Also the entry for places where "if" means something else: the sequence of a for loop. */
static struct jinja_node *parse_or(struct jinja_parser *p)
{
    struct jinja_node *left = parse_and(p);
    while (jinja_accept_name(p, "or"))
        left = make_node(p, EX_OR, OP_EQ, left, parse_and(p));
    return left;
}

/* "a if b else c": the condition stands in the middle. Without else the value is undefined when the
 * condition is false. The depth counts brackets of all kinds, as every bracket comes here; with the
 * level that parse_unary() takes, JV_DEPTH_MAX allows about half as many brackets. */
struct jinja_node *jinja_parse_expr(struct jinja_parser *p)
{
    if (++p->x->depth > JV_DEPTH_MAX) {
        p->x->line = p->at->line;
        jx_fail(p->x, "expression nested too deeply");
        return NULL;
    }
    struct jinja_node *node = parse_or(p);
    while (jinja_accept_name(p, "if")) {
        struct jinja_node *cond = make_node(p, EX_COND, OP_EQ, node, parse_or(p));
        if (cond && jinja_accept_name(p, "else"))
            cond->c = jinja_parse_expr(p);
        node = cond;
    }
    p->x->depth--;
    return node;
}

/* An expression, or several with commas, which make a tuple without parentheses; a trailing comma
 * is allowed before the end of the tag or a parenthesis. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_cond)
{
    struct jinja_node *first = with_cond ? jinja_parse_expr(p) : parse_or(p);
    if (!jinja_is_op(p, ","))
        return first;
    struct jinja_node *tuple = jinja_node_new(p, EX_TUPLE);
    if (!tuple)
        return NULL;
    jinja_push_node(p, tuple, first);
    while (jinja_accept_op(p, ",")) {
        if (p->at->kind == TOK_BLOCK_END || p->at->kind == TOK_VAR_END || jinja_is_op(p, ")"))
            break;
        jinja_push_node(p, tuple, with_cond ? jinja_parse_expr(p) : parse_or(p));
    }
    return tuple;
}
