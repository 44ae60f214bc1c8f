/* jinja_value.h - the dynamic values of chat templates and of JSON inside prompts.
 *
 * Values behave and print as Python's do, because templates and the text of tool
 * calls were written against Python.  Everything lives in one arena with a maximum;
 * a jv is three words, copied freely.  Failure (no memory, over a limit, wrong type) is
 * sticky in struct jx: functions return an undefined value or do nothing from then on, and
 * the caller looks at x->failed where it matters.  Not thread-safe. */
#ifndef JINJA_VALUE_H
#define JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"
#include <tinker/error.h>

enum jv_kind {
    JV_UNDEFINED, /* str: the name that was looked up, for messages */
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_BIG, /* integer beyond 64 bits: its digits, only ever printed */
    JV_FLOAT,
    JV_STRING,
    JV_LIST,
    JV_TUPLE, /* a list that prints with parentheses */
    JV_DICT,
    JV_NAMESPACE, /* a dict whose entries the template may set */
    JV_LOOP,      /* the loop variable: a dict of precomputed attributes */
    JV_FUNCTION,  /* str: name of a global function */
    JV_METHOD,    /* a method bound to a value */
    JV_MACRO
};

struct jv;
struct jv_list;
struct jv_dict;
struct jv_method;
struct jinja_macro;

struct jv_str {
    const char *s;
    size_t n;
};

struct jv {
    enum jv_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct jv_str str;
        struct jv_list *list;
        struct jv_dict *dict;
        struct jv_method *method;
        struct jinja_macro *macro;
    };
};

struct jv_list {
    struct jv *items;
    size_t n, cap;
    int depth;        /* of nesting; limited, so that recursion over values is */
    const char *view; /* "dict_keys" ...: may be iterated only; NULL: an ordinary list */
};

struct jv_pair {
    struct jv key, value;
};

/* Insertion-ordered; index is a hash table over pairs once there are many (NULL before), whose size
 * index_cap is a power of two. */
struct jv_dict {
    struct jv_pair *pairs;
    size_t n, cap;
    uint32_t *index;
    size_t index_cap;
    int depth;
};

struct jv_method {
    struct jv self;
    struct jv_str name;
};

/* What limits and reports one run. */
struct jx {
    struct arena *arena;
    tinker_error *err;
    bool failed;
    uint64_t steps, max_steps;
    int depth; /* levels of nesting that the parser, or the run, is inside of */
    int line;  /* of the token or node at hand, for messages; 0 outside templates */
};

/* Of values, and of tags and brackets in a source. */
enum { JV_DEPTH_MAX = 100 };

void jx_init(struct jx *x, struct arena *arena, uint64_t max_steps, tinker_error *err);
/* Record the first failure; false, always. */
bool jx_fail(struct jx *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool jx_nomem(struct jx *x);
/* Account for work; false once the budget is spent or something failed. */
bool jx_step(struct jx *x, uint64_t n);
void *jx_alloc(struct jx *x, size_t n); /* zeroed; NULL and failed */

/* ---- making ---- */
struct jv jv_undefined(const char *name);
struct jv jv_none(void);
struct jv jv_bool(bool b);
struct jv jv_int(int64_t i);
struct jv jv_float(double f);
struct jv jv_strn(const char *s, size_t n); /* borrowed */
struct jv jv_str(const char *s);            /* borrowed */
struct jv jv_str_copy(struct jx *x, const char *s, size_t n);
struct jv jv_from_buf(struct jx *x, struct buf *b); /* copies, then clears b */
struct jv jv_list_new(struct jx *x);
struct jv jv_dict_new(struct jx *x);
void jv_push(struct jx *x, struct jv list, struct jv item);
void jv_put(struct jx *x, struct jv dict, struct jv key, struct jv value);
void jv_set(struct jx *x, struct jv dict, const char *key, struct jv value);

/* ---- asking ---- */
bool jv_is_seq(struct jv v); /* list, tuple, or view of a dict */
bool jv_is_view(struct jv v);
bool jv_is_map(struct jv v);    /* dict, namespace or loop */
bool jv_is_number(struct jv v); /* bool, int or float */
bool jv_is(struct jv v, const char *text);
struct jv *jv_find(struct jv dict, struct jv key); /* NULL: absent */
struct jv jv_get(struct jv dict, const char *key); /* undefined when absent or no dict */
bool jv_truth(struct jv v);
bool jv_equal(struct jv a, struct jv b);
/* The same, but charged in steps: where parts are shared, comparing may take exponential time. */
bool jv_equal_steps(struct jx *x, struct jv a, struct jv b);
/* -1, 0, 1; fails when the kinds cannot be ordered. */
int jv_compare(struct jx *x, struct jv a, struct jv b);
double jv_number(struct jv v);
const char *jv_type_name(struct jv v);
/* Python's str() and repr(), appended. */
void jv_print(struct jx *x, struct buf *out, struct jv v);
void jv_repr(struct jx *x, struct buf *out, struct jv v);
struct jv jv_to_str(struct jx *x, struct jv v);
/* Items of a list, characters of a string, keys of a dict; a new list. */
struct jv jv_iterate(struct jx *x, struct jv v);

/* ---- text, by code points ---- */
bool text_is_space(uint32_t cp); /* as Python's str.isspace */
size_t text_length(struct jv_str s);
struct jv_str text_trim(struct jv_str s, const char *chars, bool left,
                        bool right); /* NULL: space */
/* Offset of the first (last) occurrence of what in s from offset `from`; SIZE_MAX: none. */
size_t text_find(struct jv_str s, struct jv_str what, size_t from);
size_t text_rfind(struct jv_str s, struct jv_str what);
/* Steps to charge for a search for `what`: the worst case, where it nearly matches everywhere. */
uint64_t text_find_steps(struct jv_str s, struct jv_str what);
bool text_starts(struct jv_str s, const char *prefix);
bool text_ends(struct jv_str s, const char *suffix);
enum text_case { TEXT_LOWER, TEXT_UPPER, TEXT_CAPITALIZE, TEXT_TITLE, TEXT_WORDS };
void text_case(struct buf *out, struct jv_str s, enum text_case how);

/* ---- JSON ---- */
struct jv_dumps {
    const char *item_sep, *key_sep; /* NULL: ", " and ": " (with indent: "," and ": ") */
    int indent;                     /* -1: one line */
    bool ascii;                     /* non-ASCII as \uXXXX */
    bool sort_keys;
};
#define JV_DUMPS_PYTHON             \
    {                               \
        .indent = -1, .ascii = true \
    }
/* Parse; on failure *why (may be NULL) receives the reason and the result is undefined
 * without making x fail (unless memory ran out). */
struct jv jv_loads(struct jx *x, const char *s, size_t n, const char **why);
void jv_dump(struct jx *x, struct buf *out, struct jv v, const struct jv_dumps *how);

#endif
