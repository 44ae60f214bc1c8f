/* jinja.h - the Jinja subset of chat templates: lexer, syntax tree, evaluator.
 *
 * jinja_parse() turns a source into a tree that lives in the caller's arena and never
 * changes; any number of runs may share it.  jinja_run() evaluates it under limits of
 * steps, memory and depth.  White space is treated as with trim_blocks and lstrip_blocks
 * set, which is how models' templates are meant to be run. */
#ifndef JINJA_JINJA_H
#define JINJA_JINJA_H

#include "jinja/jinja_value.h"

/* ---- tokens ---- */

enum jinja_token_kind {
    TOK_EOF,
    TOK_TEXT, /* literal output */
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_INT,
    TOK_FLOAT,
    TOK_STRING,
    TOK_OP
};

struct jinja_token {
    enum jinja_token_kind kind;
    int line;
    struct jv_str text; /* NAME, OP: spelling; TEXT, STRING: content, escapes undone */
    struct jv value;    /* INT, FLOAT */
};

struct jinja_tokens {
    struct jinja_token *items;
    size_t n, cap;
};

/* Fails in x with "line N: ...". */
void jinja_lex(struct jx *x, const char *source, size_t n, struct jinja_tokens *out);

/* ---- the tree ---- */

enum jinja_kind {
    /* expressions */
    EX_CONST,
    EX_NAME,
    EX_LIST,
    EX_TUPLE,
    EX_DICT,
    EX_ATTR,
    EX_ITEM,
    EX_SLICE,
    EX_CALL,
    EX_FILTER,
    EX_TEST,
    EX_NOT,
    EX_NEG,
    EX_POS,
    EX_AND,
    EX_OR,
    EX_COMPARE,
    EX_BINARY,
    EX_COND,
    /* statements */
    ST_TEXT,
    ST_PRINT,
    ST_IF,
    ST_FOR,
    ST_SET,
    ST_SET_BLOCK,
    ST_MACRO,
    ST_CALL,
    ST_FILTER,
    ST_WITH,
    ST_BREAK,
    ST_CONTINUE,
    ST_GROUP
};

enum jinja_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

/* One node.  Which fields mean what:
 *   CONST value; NAME name; LIST, TUPLE, DICT (key, value, key, value ...) list;
 *   ATTR a.name; ITEM a[b]; SLICE a[b:c:d] (NULL: absent);
 *   CALL a(list, kwargs); FILTER a|name(list, kwargs); TEST a is [not] name(list), not: flag;
 *   NOT, NEG, POS a; AND, OR, BINARY a op b; COMPARE a, then each entry of list is another
 *   COMPARE node: its op and, in its a, the right operand; COND "a if b else c" (c NULL:
 *   undefined);
 *   TEXT value; PRINT a; IF a, body, other; FOR keys in a if b: body, other;
 *   SET keys = a; SET_BLOCK keys, body, filtered by a (a filter on NULL) if any;
 *   MACRO name(keys, defaults in kwargs) body; CALL (keys, defaults in kwargs) a: body, where a
 *   is an EX_CALL; FILTER name(list, kwargs): body; WITH keys = kwargs: body; GROUP body. */
struct jinja_node {
    enum jinja_kind kind;
    enum jinja_op op;
    bool flag; /* TEST: "is not" */
    int line;
    struct jv value;
    struct jv_str name;
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node **list;
    size_t n_list;
    struct jv_str *keys;  /* names of kwargs; of parameters; of set and for targets */
    struct jv_str *attrs; /* SET: attribute of a namespace target, n 0 when plain */
    size_t n_keys;
    struct jinja_node **kwargs;
    struct jinja_node *body, *other, *next; /* statements form lists by next */
};

struct jinja_node *jinja_parse(struct jx *x, const char *source, size_t n);

/* Between the two halves of the parser. */
struct jinja_parser {
    struct jx *x;
    struct jinja_token *at;
    int loops; /* around the current statement, within the macro */
};
struct jinja_node *jinja_parse_expr(struct jinja_parser *p); /* with "if ... else" */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_cond);
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *on);
void jinja_parse_args(struct jinja_parser *p, struct jinja_node *call);
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind);
bool jinja_is_op(const struct jinja_parser *p, const char *op);
bool jinja_is_name(const struct jinja_parser *p, const char *name);
bool jinja_accept_op(struct jinja_parser *p, const char *op);
bool jinja_expect_op(struct jinja_parser *p, const char *op);
bool jinja_accept_name(struct jinja_parser *p, const char *name);
bool jinja_expect_name(struct jinja_parser *p, struct jv_str *out);
bool jinja_push_node(struct jinja_parser *p, struct jinja_node *to, struct jinja_node *item);
bool jinja_push_key(struct jinja_parser *p, struct jinja_node *to, struct jv_str key,
                    struct jinja_node *value);

/* ---- evaluation ---- */

struct jinja_frame;
/* The frame is kept by pointer: a macro sees later changes of the variables around it, as a
 * Python closure does. */
struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_frame *closure;
};

/* Evaluated arguments of one call; both arrays live in the arena of the run. */
struct jinja_args {
    struct jv *items;
    size_t n;
    struct jv kwargs; /* a dict, or undefined when there are none */
};

/* One rendering.  Statements print to out, which a capture replaces for its duration; frame is the
 * innermost scope. */
struct jinja_run {
    struct jx *x;
    struct buf *out;
    struct jinja_frame *frame;
    int64_t now; /* seconds since 1970, for strftime_now */
};

/* Append the output of tree to out; globals is a dict of the template's variables. */
void jinja_run(struct jx *x, const struct jinja_node *tree, struct jv globals, int64_t now,
               struct buf *out);

/* Fail because v, which is undefined, was used. */
struct jv jinja_fail_undefined(struct jx *x, struct jv v);

/* Levels of nesting: expressions, statements and calls of macros and filters count together. A level costs
 * a few hundred bytes of C stack, so 300 of them fit the smallest thread that a program may use. */
enum { EVAL_DEPTH_MAX = 300 };

struct jv jinja_call(struct jinja_run *r, struct jv f, const struct jinja_args *args);
struct jv jinja_call_macro(struct jinja_run *r, struct jv f, const struct jinja_args *args);
struct jv jinja_attr(struct jinja_run *r, struct jv v, struct jv_str name);
struct jv jinja_filter(struct jinja_run *r, struct jv_str name, struct jv v,
                       const struct jinja_args *args);
bool jinja_test(struct jinja_run *r, struct jv_str name, struct jv v,
                const struct jinja_args *args);
struct jv jinja_binary(struct jx *x, enum jinja_op op, struct jv a, struct jv b);
bool jinja_compare(struct jx *x, enum jinja_op op, struct jv a, struct jv b);
/* A method of a string, list or dict. */
bool jinja_has_method(struct jv v, struct jv_str name);
struct jv jinja_call_method(struct jx *x, struct jv self, struct jv_str name,
                            const struct jinja_args *args);
struct jv jinja_split(struct jx *x, struct jv_str s, struct jv sep, int64_t max, bool from_right);
struct jv jinja_replace(struct jx *x, struct jv_str s, struct jv_str from, struct jv_str to,
                        int64_t max);
struct jv jinja_splitlines(struct jx *x, struct jv_str s, bool keep);
/* The number that Python's int() or float() reads in s; None: there is none. */
struct jv jinja_parse_number(struct jx *x, struct jv_str s, bool real);
struct jv jinja_round(struct jx *x, struct jv v, int64_t digits, struct jv method);
struct jv jinja_join(struct jx *x, struct jv_str sep, struct jv list);
/* Argument i, or the keyword; `missing` when neither was given. */
#define KEYWORD_ONLY SIZE_MAX /* as i: no position */
struct jv jinja_arg(const struct jinja_args *args, size_t i, const char *name, struct jv missing);
bool jinja_same(struct jv_str a, const char *b);

#endif
