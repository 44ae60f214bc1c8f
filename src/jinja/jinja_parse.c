/* jinja_parse.c - statements of templates.
 *
 * Bodies are lists linked by `next`.  Tags that need other files (include, import,
 * extends, block) are refused by name.  Depth of nesting is limited. */
#include "base/array.h"
#include "jinja/jinja.h"

#include <string.h>

/* The parser works on an array of tokens that ends in TOK_EOF; p->at only moves forward. Looking at
 * p->at[1] is safe whenever p->at is not the end. A failure sticks in p->x: every function below
 * may go on after it, but must neither move p->at past the end nor loop. */
static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends);

/* Fail at the line of the current token; the first failure of a parse is kept. */
static bool fail_at(struct jinja_parser *p, const char *what)
{
    if (p->x->failed)
        return false;
    p->x->line = p->at->line;
    return jx_fail(p->x, "%s", what);
}

/* Expect the "%}" of the current tag. Whatever else stands there is an error, so that no word of a
 * tag is silently ignored. */
static bool end_tag(struct jinja_parser *p)
{
    if (p->x->failed)
        return false;
    if (p->at->kind != TOK_BLOCK_END)
        return fail_at(p, "expected '%}'");
    p->at++;
    return true;
}

/* At "{% endNAME": skip both tokens, which parse_body() has seen, and an optional name after them
 * ("{% endmacro greet %}"), then close the tag. */
static bool close_body(struct jinja_parser *p)
{
    if (p->x->failed)
        return false;
    p->at += 2;
    if (p->at->kind == TOK_NAME) /* endmacro name */
        p->at++;
    return end_tag(p);
}

/* Whether a tag called `name` begins here. Nothing is consumed. */
static bool at_tag(const struct jinja_parser *p, const char *name)
{
    return p->at->kind == TOK_BLOCK_BEGIN && p->at[1].kind == TOK_NAME &&
           jinja_same(p->at[1].text, name);
}

/* if = "{% if" expr "%}" body { "{% elif" expr "%}" body } [ "{% else %}" body ] "{% endif %}"
 *
 * An elif becomes a nested if in `other`; the loop follows the chain, so that its length does not
 * count as depth. */
static void parse_if(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    while (!p->x->failed) {
        node->a = jinja_parse_tuple(p, true);
        end_tag(p);
        node->body = parse_body(p, ends);
        if (p->x->failed)
            return;
        /* The new node is filled by the next round. */
        if (at_tag(p, "elif")) {
            p->at += 2;
            node->other = jinja_node_new(p, ST_IF);
            if (!node->other)
                return;
            node = node->other;
            continue;
        }
        if (at_tag(p, "else")) {
            p->at += 2;
            end_tag(p);
            node->other = parse_body(p, last);
        }
        close_body(p);
        return;
    }
}

/* Names of a for or set target: "a", "a, b", "(a, b)", and for set also "ns.attr". */
static void parse_targets(struct jinja_parser *p, struct jinja_node *node, bool attributes)
{
    bool parens = jinja_accept_op(p, "(");
    struct jv_str attr = { NULL, 0 }, name = { "", 0 };
    do {
        if (!jinja_expect_name(p, &name))
            return;
        jinja_push_key(p, node, name, NULL);
        if (attributes && jinja_accept_op(p, "."))
            jinja_expect_name(p, &attr);
        /* A trailing comma is accepted and changes nothing: "for a, in x" binds a to the whole
         * item, where Python would unpack it. */
    } while (jinja_accept_op(p, ",") && p->at->kind == TOK_NAME && !jinja_is_name(p, "in"));
    if (parens)
        jinja_expect_op(p, ")");
    if (attr.n == 0)
        return;
    /* The tree has room for one attribute; the reference also allows "set ns.a, b = ...". */
    if (node->n_keys > 1) {
        fail_at(p, "cannot unpack into an attribute");
        return;
    }
    node->attrs = arena_memdup(p->x->arena, &attr, sizeof(attr));
    if (!node->attrs)
        jx_nomem(p->x);
}

/* for = "{% for" targets "in" expr [ "if" expr ] "%}" body [ "{% else %}" body ] "{% endfor %}"
 *
 * The sequence is parsed without "if ... else", because the "if" after it belongs to the loop. */
static void parse_for(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    static const char *const last[] = { "endfor", NULL };
    parse_targets(p, node, false);
    if (!jinja_accept_name(p, "in"))
        fail_at(p, "expected 'in'");
    node->a = jinja_parse_tuple(p, false);
    if (jinja_accept_name(p, "if"))
        node->b = jinja_parse_expr(p);
    /* No chat template needs loop(), and refusing it here is better than failing there. */
    if (jinja_accept_name(p, "recursive"))
        fail_at(p, "recursive loops are not supported");
    end_tag(p);
    /* The else part is outside of the loop: break and continue there mean the next outer one. */
    p->loops++;
    node->body = parse_body(p, ends);
    p->loops--;
    if (!p->x->failed && at_tag(p, "else")) {
        p->at += 2;
        end_tag(p);
        node->other = parse_body(p, last);
    }
    close_body(p);
}

/* set = "{% set" targets "=" expr "%}" | "{% set" targets { "|" filter } "%}" body "{% endset %}"
 */
static void parse_set(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "endset", NULL };
    parse_targets(p, node, true);
    if (jinja_accept_op(p, "=")) {
        node->a = jinja_parse_tuple(p, true);
        end_tag(p);
        return;
    }
    /* Without "=" the value is the text of a block, through filters if any are named. */
    node->kind = ST_SET_BLOCK;
    if (jinja_is_op(p, "|"))
        node->a = jinja_parse_filters(p, NULL);
    end_tag(p);
    node->body = parse_body(p, ends);
    close_body(p);
}

/* parameters = "(" [ NAME [ "=" expr ] { "," NAME [ "=" expr ] } ] ")"
 *
 * Names go to keys, defaults (NULL: none) to kwargs, at the same index. */
static void parse_parameters(struct jinja_parser *p, struct jinja_node *node)
{
    jinja_expect_op(p, "(");
    while (!p->x->failed && !jinja_is_op(p, ")")) {
        struct jv_str name = { "", 0 };
        if (!jinja_expect_name(p, &name))
            return;
        struct jinja_node *missing = jinja_accept_op(p, "=") ? jinja_parse_expr(p) : NULL;
        jinja_push_key(p, node, name, missing);
        if (!jinja_accept_op(p, ","))
            break;
    }
    jinja_expect_op(p, ")");
}

/* macro = "{% macro" NAME parameters "%}" body "{% endmacro" [ NAME ] "%}"
 *
 * A macro inside a loop cannot break that loop: it may be called when the loop is over. */
static void parse_macro(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "endmacro", NULL };
    int loops = p->loops;
    p->loops = 0;
    jinja_expect_name(p, &node->name);
    parse_parameters(p, node);
    end_tag(p);
    node->body = parse_body(p, ends);
    close_body(p);
    p->loops = loops;
}

/* call = "{% call" [ parameters ] expr "%}" body "{% endcall %}"; expr must be a call. The
 * parameters are those of the body, which the called macro runs as caller(...). */
static void parse_call_block(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "endcall", NULL };
    if (jinja_is_op(p, "("))
        parse_parameters(p, node);
    node->a = jinja_parse_expr(p);
    if (!p->x->failed && node->a->kind != EX_CALL)
        fail_at(p, "expected a call");
    end_tag(p);
    node->body = parse_body(p, ends);
    close_body(p);
}

/* filter = "{% filter" NAME [ args ] "%}" body "{% endfilter %}" */
static void parse_filter_block(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "endfilter", NULL };
    jinja_expect_name(p, &node->name);
    if (jinja_is_op(p, "("))
        jinja_parse_args(p, node);
    end_tag(p);
    node->body = parse_body(p, ends);
    close_body(p);
}

/* with = "{% with" [ NAME "=" expr { "," NAME "=" expr } ] "%}" body "{% endwith %}" */
static void parse_with(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "endwith", NULL };
    while (!p->x->failed && p->at->kind != TOK_BLOCK_END) {
        struct jv_str name = { "", 0 };
        jinja_expect_name(p, &name);
        jinja_expect_op(p, "=");
        jinja_push_key(p, node, name, jinja_parse_expr(p));
        if (!jinja_accept_op(p, ","))
            break;
    }
    end_tag(p);
    node->body = parse_body(p, ends);
    close_body(p);
}

/* "{% generation %}" marks what an assistant said, for masks that transformers computes; it does
 * not change the text, so it is a plain group. */
static void parse_generation(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = { "endgeneration", NULL };
    end_tag(p);
    node->body = parse_body(p, ends);
    close_body(p);
}

/* "{% break %}" and "{% continue %}" are Jinja's extension loopcontrols, which transformers
 * loads. */
static void parse_loop_control(struct jinja_parser *p, struct jinja_node *node)
{
    (void)node;
    if (p->loops == 0)
        fail_at(p, "not inside a loop");
    end_tag(p);
}

/* Which node each tag makes and who parses the rest of it. */
static const struct {
    const char *name;
    enum jinja_kind kind;
    void (*parse)(struct jinja_parser *p, struct jinja_node *node);
} tags[] = {
    { "if", ST_IF, parse_if },
    { "for", ST_FOR, parse_for },
    { "set", ST_SET, parse_set },
    { "macro", ST_MACRO, parse_macro },
    { "call", ST_CALL, parse_call_block },
    { "filter", ST_FILTER, parse_filter_block },
    { "with", ST_WITH, parse_with },
    { "generation", ST_GROUP, parse_generation },
    { "break", ST_BREAK, parse_loop_control },
    { "continue", ST_CONTINUE, parse_loop_control },
};

/* tag = "{%" NAME ...: dispatch by name. Every construct that contains a body passes through here,
 * so this is where nesting is limited. */
static struct jinja_node *parse_tag(struct jinja_parser *p)
{
    p->at++;
    struct jv_str name = { "", 0 };
    /* The node is made after the name was consumed; its line is that of the tag. */
    int line = p->at->line;
    if (!jinja_expect_name(p, &name))
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        /* Tags that load other templates (include, import, extends, block) are not in the table. */
        if (!jinja_same(name, tags[i].name))
            continue;
        struct jinja_node *node = jinja_node_new(p, tags[i].kind);
        if (!node)
            return NULL;
        node->line = line;
        if (++p->x->depth > JV_DEPTH_MAX)
            fail_at(p, "tags nested too deeply");
        else
            tags[i].parse(p, node);
        p->x->depth--;
        return node;
    }
    p->x->line = line;
    jx_fail(p->x, "unknown or unsupported tag '%.*s'", (int)(name.n < 40 ? name.n : 40), name.s);
    return NULL;
}

/* body = { TEXT | print | tag }, up to one of the tags in `ends`, which is not consumed (NULL: the
 * end of the template). An end tag that nobody waits for is an unknown tag. */
static struct jinja_node *parse_body(struct jinja_parser *p, const char *const *ends)
{
    struct jinja_node *first = NULL, **link = &first;
    while (!p->x->failed) {
        struct jinja_node *node = NULL;
        bool at_end = false;
        for (size_t i = 0; ends && ends[i]; i++)
            at_end = at_end || at_tag(p, ends[i]);
        if (at_end)
            break;
        if (p->at->kind == TOK_TEXT) {
            node = jinja_node_new(p, ST_TEXT);
            if (node)
                node->value = jv_strn(p->at->text.s, p->at->text.n);
            p->at++;
        } else if (p->at->kind == TOK_VAR_BEGIN) {
            p->at++;
            node = jinja_node_new(p, ST_PRINT);
            if (!node)
                break;
            node->a = jinja_parse_tuple(p, true);
            if (p->x->failed || p->at->kind != TOK_VAR_END)
                fail_at(p, "expected '}}'");
            else
                p->at++;
        } else if (p->at->kind == TOK_BLOCK_BEGIN) {
            node = parse_tag(p);
        } else {
            /* Only the end of the template gets here. */
            if (ends)
                fail_at(p, "a block is not closed");
            break;
        }
        if (!node)
            break;
        *link = node;
        link = &node->next;
    }
    return first;
}

/* Tokens and tree live in the arena of x, which outlives all runs of the template. */
struct jinja_node *jinja_parse(struct jx *x, const char *source, size_t n)
{
    struct jinja_tokens tokens = { NULL, 0, 0 };
    jinja_lex(x, source, n, &tokens);
    if (x->failed)
        return NULL;
    /* A group as the root: a template may be empty, and the caller gets a node all the same. A NULL
     * then always means failure. */
    struct jinja_parser p = { .x = x, .at = tokens.items };
    struct jinja_node *root = jinja_node_new(&p, ST_GROUP);
    struct jinja_node *body = parse_body(&p, NULL);
    if (x->failed || !root)
        return NULL;
    root->body = body;
    x->line = 0;
    return root;
}
