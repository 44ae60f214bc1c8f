/* node.h - expressions over bytes: see node.c. */
#ifndef GRAMMAR_NODE_H
#define GRAMMAR_NODE_H

#include "base/arena.h"
#include "grammar/grammar.h"
#include "json/json.h"

enum node_kind {
    NODE_TEXT,   /* these bytes */
    NODE_CLASS,  /* one byte of a set */
    NODE_SEQ,    /* its parts, one after the other */
    NODE_CHOICE, /* one of its parts; without any: nothing matches */
    NODE_REPEAT  /* its one part, min to max times */
};

enum { NODE_NO_MAX = -1, NODES_MAX = 200000 };

struct node {
    enum node_kind kind;
    bool productive; /* some finite text matches it */
    bool nullable;   /* the empty text does */
    const char *text;
    int32_t n; /* of text or parts */
    uint64_t set[4];
    struct node **parts;
    int32_t min, max;
    struct node *next; /* of all nodes of the grammar */
};

/* A grammar while it is made.  The first failure is kept, and everything made after it is NULL, so a
 * caller may check once. */
struct builder {
    struct arena *arena;
    struct node *all;
    size_t count;
    struct node *any;     /* any JSON value; NULL: not made yet */
    struct node *any_str; /* any JSON string */
    tinker_error *err;
    bool failed;
    /* of schema.c */
    struct json_str root;
    struct schema_ref *refs;
    int depth;
};

/* Parts while they are collected; {0} is empty. */
struct node_parts {
    struct node **v;
    size_t n, cap;
};

/* Keep a failure; NULL. */
struct node *node_fail(struct builder *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
struct node *node_text(struct builder *b, const char *text, size_t n);
struct node *node_class(struct builder *b, const char *ranges); /* "az09": pairs of bounds */
struct node *node_set(struct builder *b, const uint64_t set[4]);
struct node *node_list(struct builder *b, enum node_kind kind, struct node *const *parts, size_t n);
/* One more part; nothing after a failure. */
void node_add_part(struct builder *b, struct node_parts *parts, struct node *x);
struct node *node_seq2(struct builder *b, struct node *x, struct node *y);
struct node *node_seq3(struct builder *b, struct node *x, struct node *y, struct node *z);
struct node *node_choice2(struct builder *b, struct node *x, struct node *y);
struct node *node_repeat(struct builder *b, struct node *part, int64_t min, int64_t max);
struct node *node_optional(struct builder *b, struct node *part);
/* A choice whose one part is set later, for what refers to itself. */
struct node *node_later(struct builder *b);
void node_resolve(struct builder *b, struct node *later, struct node *target);
/* Find out which nodes match any finite text and which the empty one; false: `root` matches none. */
bool node_classify(struct builder *b, const struct node *root);

/* number.c: bounds are NAN when there are none. */
struct node *number_node(struct builder *b, bool integer, double min, double max);
/* pattern.c: a JSON string, quotes included, in which the pattern is found. */
struct node *pattern_node(struct builder *b, struct json_str pattern);
/* schema_value.c */
struct node *value_any(struct builder *b);       /* any JSON value */
struct node *value_char(struct builder *b);      /* one character of a JSON string */
struct node *value_multibyte(struct builder *b); /* one of more than one byte */
struct node *value_string(struct builder *b, int64_t min, int64_t max);
struct node *value_literal(struct builder *b, struct json_str raw); /* JSON, spaces taken out */
struct node *value_comma(struct builder *b);
struct node *value_colon(struct builder *b);
struct node *value_open_key(struct builder *b, const struct json_str *taken, size_t n);
/* schema.c */
struct node *schema_node(struct builder *b, struct json_str schema);

/* automaton.c */
struct grammar *grammar_new(struct arena *arena, const struct node *root);

#endif
