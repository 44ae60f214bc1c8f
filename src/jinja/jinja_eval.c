/* jinja_eval.c - runs a syntax tree.
 *
 * Scopes are frames linked to their parents; a loop body, a macro and a with block open
 * one, an if does not.  Every node costs a step and a level of depth, so time, memory and
 * stack are bounded whatever the template does.  Thread: the one that owns the jx. */
#include "base/array.h"
#include "jinja/jinja.h"

#include <string.h>
#include "base/utf8.h"

/* The name is borrowed from the tree or from the globals; both outlive the run. */
struct var {
    struct jv_str name;
    struct jv value;
};

/* One scope. Variables are few, so a scope is an array that is searched from its start; the chain
 * of parents ends in the frame of the globals. Frames live in the arena of the run: a macro may
 * outlive the block that defined it (closure), and nothing is freed before the end. */
struct jinja_frame {
    struct jinja_frame *parent;
    struct var *vars;
    size_t n, cap;
};

/* How a statement ended. BREAK and CONTINUE travel up through if, with and group until a for takes
 * them; the parser has made sure that there is one. */
enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

/* The two halves call each other: an expression may call a macro, which runs statements. */
static struct jv eval_expr(struct jinja_run *r, const struct jinja_node *e);
static enum flow exec_body(struct jinja_run *r, const struct jinja_node *s);

/* ---- variables ---- */

/* A scope below `parent`; NULL and failed when memory ran out. It takes effect when the caller
 * stores it in r->frame. */
static struct jinja_frame *push_frame(struct jinja_run *r, struct jinja_frame *parent)
{
    struct jinja_frame *f = jx_alloc(r->x, sizeof(*f));
    if (f)
        f->parent = parent;
    return f;
}

static bool same_name(struct jv_str a, struct jv_str b)
{
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
}

/* Set a variable of this very scope. As in Python's Jinja, assignment never reaches an outer scope:
 * "{% set %}" inside a loop is gone after the iteration, and namespace() exists to get around that.
 */
static void set_var(struct jinja_run *r, struct jinja_frame *f, struct jv_str name, struct jv value)
{
    for (size_t i = 0; i < f->n; i++) {
        if (same_name(f->vars[i].name, name)) {
            f->vars[i].value = value;
            return;
        }
    }
    if (f->n == f->cap) {
        /* The old array stays in the arena: growing by doubling wastes at most as much again. */
        size_t cap = f->cap ? f->cap * 2 : 4;
        struct var *vars = r->x->failed ? NULL : arena_array(r->x->arena, cap, sizeof(*vars));
        if (!vars) {
            jx_nomem(r->x);
            return;
        }
        if (f->n > 0)
            memcpy(vars, f->vars, f->n * sizeof(*vars));
        f->vars = vars;
        f->cap = cap;
    }
    f->vars[f->n++] = (struct var){ name, value };
}

/* Look a name up from the innermost scope outward. Names of built-in functions come last, so that a
 * template may define a variable called "range". An unknown name is not an error here: it is an
 * undefined value, which prints as nothing and fails when it is used for more than that. */
static struct jv get_var(struct jinja_run *r, struct jv_str name)
{
    static const char *const functions[] = { "range", "dict", "namespace", "raise_exception",
                                             "strftime_now" };
    for (struct jinja_frame *f = r->frame; f; f = f->parent) {
        /* The work grows with the number of variables, and so do the steps. */
        jx_step(r->x, 1 + f->n / 16);
        for (size_t i = 0; i < f->n; i++)
            if (same_name(f->vars[i].name, name))
                return f->vars[i].value;
    }
    for (size_t i = 0; i < ARRAY_LEN(functions); i++) {
        if (jinja_same(name, functions[i])) {
            struct jv v = jv_str(functions[i]);
            v.kind = JV_FUNCTION;
            return v;
        }
    }
    /* Undefined remembers its name for the message of a later failure. */
    struct jv v = jv_strn(name.s, name.n);
    v.kind = JV_UNDEFINED;
    return v;
}

/* Bind names to a value in the current scope; several names unpack what can be iterated. */
static void bind_targets(struct jinja_run *r, const struct jinja_node *target, struct jv value)
{
    if (target->n_keys == 1) {
        set_var(r, r->frame, target->keys[0], value);
        return;
    }
    struct jv items = jv_iterate(r->x, value);
    if (r->x->failed)
        return;
    /* Python's rule: as many names as values, neither more nor fewer. */
    if (items.list->n != target->n_keys) {
        jx_fail(r->x, "cannot unpack %zu values into %zu names", items.list->n, target->n_keys);
        return;
    }
    for (size_t i = 0; i < target->n_keys; i++)
        set_var(r, r->frame, target->keys[i], items.list->items[i]);
}

/* ---- expressions ---- */

/* Evaluate the arguments of a call, filter or test: positional ones first, in order of writing,
 * then keywords into a dict, which exists only if there are any. */
static void eval_args(struct jinja_run *r, const struct jinja_node *e, struct jinja_args *out)
{
    *out = (struct jinja_args){ .kwargs = jv_undefined(NULL) };
    if (e->n_list > 0)
        out->items = jx_alloc(r->x, e->n_list * sizeof(*out->items));
    for (size_t i = 0; i < e->n_list && !r->x->failed; i++)
        out->items[out->n++] = eval_expr(r, e->list[i]);
    if (e->n_keys > 0)
        out->kwargs = jv_dict_new(r->x);
    for (size_t i = 0; i < e->n_keys && !r->x->failed; i++)
        jv_put(r->x, out->kwargs, jv_strn(e->keys[i].s, e->keys[i].n), eval_expr(r, e->kwargs[i]));
}

/* v.name as Environment.getattr() defines it: an attribute first, then an item; of our types, only
 * methods are attributes. Something missing is undefined; an attribute of something undefined is an
 * error, as the default class Undefined has it: ({}).a is undefined, ({}).a.b fails. */
struct jv jinja_attr(struct jinja_run *r, struct jv v, struct jv_str name)
{
    if (v.kind == JV_UNDEFINED) {
        jx_fail(r->x, "'%.*s' is undefined", (int)(v.str.n < 60 ? v.str.n : 60),
                v.str.s ? v.str.s : "");
        return v;
    }
    if (jinja_has_method(v, name)) {
        /* A method value carries its object, so that {{ x.strip }} can be passed on. */
        struct jv m = { .kind = JV_METHOD };
        m.method = jx_alloc(r->x, sizeof(*m.method));
        if (!m.method)
            return jv_undefined(NULL);
        *m.method = (struct jv_method){ v, name };
        return m;
    }
    struct jv *found = jv_find(v, jv_strn(name.s, name.n));
    struct jv missing = jv_strn(name.s, name.n);
    missing.kind = JV_UNDEFINED;
    return found ? *found : missing;
}

/* Byte offset of code point i of s: skips continuation bytes (10xxxxxx). */
static size_t offset_of(struct jv_str s, size_t i)
{
    size_t at = 0;
    for (; i > 0 && at < s.n; i--) {
        at++;
        while (at < s.n && ((unsigned char)s.s[at] & 0xc0) == 0x80)
            at++;
    }
    return at;
}

/* Item i of a sequence, or character i of a text; a negative index counts from the end, and an
 * index out of range is undefined, as Jinja's subscript swallows IndexError. */
static struct jv get_at_index(struct jinja_run *r, struct jv v, int64_t i)
{
    /* Text has no index by code point: it is walked, at one step for 64 bytes. */
    if (v.kind == JV_STRING && !jx_step(r->x, 1 + v.str.n / 64))
        return jv_undefined(NULL);
    size_t n = v.kind == JV_STRING ? text_length(v.str) : v.list->n;
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return jv_undefined("index");
    if (v.kind != JV_STRING)
        return v.list->items[i];
    size_t from = offset_of(v.str, (size_t)i);
    struct jv_str rest = { v.str.s + from, v.str.n - from };
    return jv_strn(rest.s, offset_of(rest, 1));
}

/* a[b], Environment.getitem(): an item first, then an attribute of that name, the reverse of a.b.
 * "loop['index']" and "message['role']" are dict entries, "text['strip']" is a method. */
static struct jv eval_item(struct jinja_run *r, const struct jinja_node *e)
{
    struct jv v = eval_expr(r, e->a), key = eval_expr(r, e->b);
    if (r->x->failed)
        return jv_undefined(NULL);
    if (jv_is_map(v)) {
        struct jv *found = jv_find(v, key);
        if (found)
            return *found;
    } else if ((jv_is_seq(v) || v.kind == JV_STRING) && !jv_is_view(v) &&
               (key.kind == JV_INT || key.kind == JV_BOOL)) {
        return get_at_index(r, v, key.kind == JV_INT ? key.i : key.b);
    }
    /* The fallback to attributes; it also reports a subscript of something undefined. */
    if (key.kind == JV_STRING)
        return jinja_attr(r, v, key.str);
    if (v.kind == JV_UNDEFINED)
        return jinja_attr(r, v, v.str);
    return jv_undefined("item");
}

/* A slice bound as Python reads it: negative counts from the end of n items, then it is limited to
 * [low, high]. The comparison with -n avoids overflow in i + n. */
static int64_t clamp_slice_bound(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

/* The value of one part of a slice in *out; false when it is absent or None, so that the caller's
 * default holds, which depends on the sign of the step. */
static bool slice_bound(struct jinja_run *r, const struct jinja_node *e, int64_t *out)
{
    struct jv v = e ? eval_expr(r, e) : jv_none();
    if (v.kind == JV_NONE)
        return false;
    if (v.kind == JV_INT || v.kind == JV_BOOL)
        *out = v.kind == JV_INT ? v.i : v.b;
    else
        jx_fail(r->x, "slice indices must be integers");
    return true;
}

/* a[b:c:d]. With a positive step the range is [from, to) within [0, n]; with a negative one it runs
 * down from `from` and stops before `to`, within [-1, n - 1]. Text is cut into characters, sliced
 * like a list, and joined again. */
static struct jv eval_slice(struct jinja_run *r, const struct jinja_node *e)
{
    struct jv v = eval_expr(r, e->a);
    int64_t from = 0, to = 0, step = 1;
    slice_bound(r, e->d, &step);
    bool text = v.kind == JV_STRING;
    /* Views of dicts have no positions. */
    if (jv_is_view(v))
        return jv_undefined("slice");
    struct jv items = text ? jv_iterate(r->x, v) : v;
    if (!r->x->failed && !jv_is_seq(items))
        jx_fail(r->x, "cannot slice '%s'", jv_type_name(v));
    if (!r->x->failed && step == 0)
        jx_fail(r->x, "slice step cannot be zero");
    if (r->x->failed)
        return jv_undefined(NULL);
    /* The bounds of slice.indices(): where a bound may lie, and below, what an absent one means. */
    int64_t n = (int64_t)items.list->n, low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    from = slice_bound(r, e->b, &from) ? clamp_slice_bound(from, n, low, high)
                                       : (step > 0 ? 0 : n - 1);
    to = slice_bound(r, e->c, &to) ? clamp_slice_bound(to, n, low, high) : (step > 0 ? n : -1);
    struct jv out = jv_list_new(r->x);
    while ((step > 0 ? from < to : from > to) && jx_step(r->x, 1)) {
        jv_push(r->x, out, items.list->items[from]);
        /* Stop before from + step could overflow. */
        if (step > 0 ? step > to - from : step < to - from)
            break;
        from += step;
    }
    if (text)
        return jinja_join(r->x, (struct jv_str){ "", 0 }, out);
    if (v.kind == JV_TUPLE && out.kind == JV_LIST)
        out.kind = JV_TUPLE;
    return out;
}

/* a < b < c means a < b and b < c, each operand evaluated once, as in Python. The first false
 * comparison ends it. */
static struct jv eval_compare(struct jinja_run *r, const struct jinja_node *e)
{
    struct jv left = eval_expr(r, e->a);
    for (size_t i = 0; i < e->n_list && !r->x->failed; i++) {
        struct jv right = eval_expr(r, e->list[i]->a);
        if (!jinja_compare(r->x, e->list[i]->op, left, right))
            return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

/* -INT64_MIN has no value here, so it falls through to the error. */
static struct jv eval_negate(struct jinja_run *r, struct jv v, bool negative)
{
    if (v.kind == JV_FLOAT)
        return jv_float(negative ? -v.f : v.f);
    if ((v.kind == JV_INT && v.i != INT64_MIN) || v.kind == JV_BOOL) {
        int64_t i = v.kind == JV_INT ? v.i : v.b;
        return jv_int(negative ? -i : i);
    }
    jx_fail(r->x, "bad operand for unary operator: '%s'", jv_type_name(v));
    return jv_undefined(NULL);
}

/* Apply one filter node to a value that was computed already. */
static struct jv eval_filter(struct jinja_run *r, const struct jinja_node *e, struct jv v)
{
    struct jinja_args args;
    eval_args(r, e, &args);
    return r->x->failed ? jv_undefined(NULL) : jinja_filter(r, e->name, v, &args);
}

/* The evaluation of each kind of node. "and" and "or" return one of their operands, not a boolean:
 * {{ name or "nobody" }} is the usual idiom for a default. */
static struct jv eval_node(struct jinja_run *r, const struct jinja_node *e)
{
    struct jv v, out;
    struct jinja_args args;
    switch (e->kind) {
    case EX_CONST:
        return e->value;
    case EX_NAME:
        return get_var(r, e->name);
    case EX_LIST:
    case EX_TUPLE:
        out = jv_list_new(r->x);
        for (size_t i = 0; i < e->n_list && !r->x->failed; i++)
            jv_push(r->x, out, eval_expr(r, e->list[i]));
        if (e->kind == EX_TUPLE && out.kind == JV_LIST)
            out.kind = JV_TUPLE;
        return out;
    /* Keys are evaluated before their values, and a later pair replaces an earlier one. */
    case EX_DICT:
        out = jv_dict_new(r->x);
        for (size_t i = 0; i + 1 < e->n_list && !r->x->failed; i += 2) {
            v = eval_expr(r, e->list[i]);
            if (jv_is_map(v) || jv_is_seq(v))
                jx_fail(r->x, "unhashable key of type %s", jv_type_name(v));
            jv_put(r->x, out, v, eval_expr(r, e->list[i + 1]));
        }
        return out;
    case EX_ATTR:
        v = eval_expr(r, e->a);
        return r->x->failed ? v : jinja_attr(r, v, e->name);
    case EX_ITEM:
        return eval_item(r, e);
    case EX_SLICE:
        return eval_slice(r, e);
    case EX_CALL:
        v = eval_expr(r, e->a);
        eval_args(r, e, &args);
        return r->x->failed ? jv_undefined(NULL) : jinja_call(r, v, &args);
    case EX_FILTER:
        v = eval_expr(r, e->a);
        return eval_filter(r, e, v);
    /* e->flag: "is not". */
    case EX_TEST:
        v = eval_expr(r, e->a);
        eval_args(r, e, &args);
        return jv_bool(!r->x->failed && jinja_test(r, e->name, v, &args) != e->flag);
    case EX_NOT:
        return jv_bool(!jv_truth(eval_expr(r, e->a)));
    case EX_NEG:
    case EX_POS:
        return eval_negate(r, eval_expr(r, e->a), e->kind == EX_NEG);
    case EX_AND:
        v = eval_expr(r, e->a);
        return jv_truth(v) ? eval_expr(r, e->b) : v;
    case EX_OR:
        v = eval_expr(r, e->a);
        return jv_truth(v) ? v : eval_expr(r, e->b);
    case EX_COMPARE:
        return eval_compare(r, e);
    /* Left before right: a call in either operand may raise an exception. */
    case EX_BINARY:
        v = eval_expr(r, e->a);
        return jinja_binary(r->x, e->op, v, eval_expr(r, e->b));
    /* Only the branch that is taken is evaluated. */
    case EX_COND:
        if (jv_truth(eval_expr(r, e->b)))
            return eval_expr(r, e->a);
        return e->c ? eval_expr(r, e->c) : jv_undefined("the inline if without else");
    default:
        return jv_undefined(NULL);
    }
}

/* The only way into eval_node(): pays for the node, notes its line for messages, and limits depth.
 * After a failure every result is undefined, so callers may go on without a check until they touch
 * the inside of a value. */
static struct jv eval_expr(struct jinja_run *r, const struct jinja_node *e)
{
    if (!jx_step(r->x, 1))
        return jv_undefined(NULL);
    r->x->line = e->line;
    if (++r->x->depth > EVAL_DEPTH_MAX) {
        jx_fail(r->x, "nested too deeply");
        return jv_undefined(NULL);
    }
    struct jv v = eval_node(r, e);
    r->x->depth--;
    return r->x->failed ? jv_undefined(NULL) : v;
}

/* ---- statements ---- */

/* Run statements into a string of their own: bodies of macros, set blocks and filter blocks. Output
 * goes through r->out, which is switched for the duration. */
static struct jv capture_output(struct jinja_run *r, const struct jinja_node *body)
{
    struct buf b, *out = r->out;
    buf_init(&b, r->x->arena->max);
    r->out = &b;
    exec_body(r, body);
    r->out = out;
    return jv_from_buf(r->x, &b);
}

/* Run the body of a macro in a scope below the one where it was defined, not where it is called.
 * Parameters: positional arguments, then keywords, then defaults, which see the parameters before
 * them. */
static struct jv call_macro(struct jinja_run *r, struct jinja_macro *m,
                            const struct jinja_args *args)
{
    const struct jinja_node *node = m->node;
    struct jinja_frame *frame = push_frame(r, m->closure), *saved = r->frame;
    if (!frame)
        return jv_undefined(NULL);
    if (args->n > node->n_keys) {
        jx_fail(r->x, "macro takes at most %zu arguments", node->n_keys);
        return jv_undefined(NULL);
    }
    /* Defaults are evaluated in the new scope, at each call. Keywords that name no parameter are
     * ignored, where the reference raises TypeError. */
    r->frame = frame;
    for (size_t i = 0; i < node->n_keys && !r->x->failed; i++) {
        struct jv_str name = node->keys[i];
        struct jv *given = jv_find(args->kwargs, jv_strn(name.s, name.n));
        struct jv value = jv_undefined("parameter");
        if (i < args->n)
            value = args->items[i];
        else if (given)
            value = *given;
        else if (node->kwargs[i])
            value = eval_expr(r, node->kwargs[i]);
        set_var(r, frame, name, value);
    }
    /* Inside "{% call %}" the block is the macro caller(). */
    struct jv *caller = jv_find(args->kwargs, jv_str("caller"));
    if (caller)
        set_var(r, frame, (struct jv_str){ "caller", 6 }, *caller);
    struct jv out = r->x->failed ? jv_undefined(NULL) : capture_output(r, node->body);
    r->frame = saved;
    return out;
}

/* Macros may call themselves; the depth limit ends that. */
struct jv jinja_call_macro(struct jinja_run *r, struct jv f, const struct jinja_args *args)
{
    if (++r->x->depth > EVAL_DEPTH_MAX) {
        jx_fail(r->x, "macros nested too deeply");
        return jv_undefined(NULL);
    }
    struct jv v = call_macro(r, f.macro, args);
    r->x->depth--;
    return v;
}

/* A macro is its node and the scope that it was defined in. The scope contains the macro, too, once
 * set_var() has stored it, which is how a macro can call itself. */
static struct jv make_macro(struct jinja_run *r, const struct jinja_node *node)
{
    struct jv v = { .kind = JV_MACRO };
    v.macro = jx_alloc(r->x, sizeof(*v.macro));
    if (!v.macro)
        return jv_undefined(NULL);
    *v.macro = (struct jinja_macro){ node, r->frame };
    return v;
}

/* The variable `loop` for iteration i. All attributes are computed beforehand: they are cheap, and
 * a dict needs no code of its own for lookups. */
static struct jv loop_value(struct jinja_run *r, const struct jv_list *items, size_t i)
{
    struct jv loop = jv_dict_new(r->x);
    if (r->x->failed)
        return loop;
    loop.kind = JV_LOOP;
    int64_t n = (int64_t)items->n, k = (int64_t)i;
    jv_set(r->x, loop, "index", jv_int(k + 1));
    jv_set(r->x, loop, "index0", jv_int(k));
    jv_set(r->x, loop, "first", jv_bool(i == 0));
    jv_set(r->x, loop, "last", jv_bool(k == n - 1));
    jv_set(r->x, loop, "length", jv_int(n));
    jv_set(r->x, loop, "revindex", jv_int(n - k));
    jv_set(r->x, loop, "revindex0", jv_int(n - k - 1));
    jv_set(r->x, loop, "depth", jv_int(1)); /* counts recursion only, which there is none of */
    jv_set(r->x, loop, "depth0", jv_int(0));
    if (i > 0)
        jv_set(r->x, loop, "previtem", items->items[i - 1]);
    if (k < n - 1)
        jv_set(r->x, loop, "nextitem", items->items[i + 1]);
    return loop;
}

/* The items that pass the loop's own "if". They are filtered before the first iteration, because
 * loop.length and loop.last count only those. The condition sees the targets but no `loop` of this
 * one: its position is not known yet. */
static struct jv loop_items(struct jinja_run *r, const struct jinja_node *s)
{
    struct jv all = jv_iterate(r->x, eval_expr(r, s->a));
    if (!s->b || r->x->failed)
        return all;
    struct jv kept = jv_list_new(r->x);
    struct jinja_frame *saved = r->frame;
    for (size_t i = 0; i < all.list->n && !r->x->failed; i++) {
        r->frame = push_frame(r, saved);
        if (r->frame)
            bind_targets(r, s, all.list->items[i]);
        if (!r->x->failed && jv_truth(eval_expr(r, s->b)))
            jv_push(r->x, kept, all.list->items[i]);
        r->frame = saved;
    }
    return kept;
}

/* Each iteration has a fresh scope. A break or continue in the else part belongs to the loop around
 * this one, so its flow is returned. */
static enum flow exec_for(struct jinja_run *r, const struct jinja_node *s)
{
    struct jv items = loop_items(r, s);
    struct jinja_frame *saved = r->frame;
    if (r->x->failed)
        return FLOW_NEXT;
    for (size_t i = 0; i < items.list->n && !r->x->failed; i++) {
        r->frame = push_frame(r, saved);
        if (!r->frame)
            break;
        /* `loop` is set first: a target of that name hides it. */
        set_var(r, r->frame, (struct jv_str){ "loop", 4 }, loop_value(r, items.list, i));
        bind_targets(r, s, items.list->items[i]);
        if (exec_body(r, s->body) == FLOW_BREAK)
            break;
    }
    /* Jinja's rule: else is for a sequence without items. After a break it does not run, and unlike
     * Python's it does not run after the last iteration either. */
    r->frame = saved;
    return items.list->n == 0 && s->other ? exec_body(r, s->other) : FLOW_NEXT;
}

/* Filters of a set block: "{% set x | f | g %}" parses to g(f(NULL)), where NULL stands for the
 * text of the block. Recursion reaches the innermost filter first. */
static struct jv apply_chain(struct jinja_run *r, const struct jinja_node *f, struct jv v)
{
    if (!f || r->x->failed)
        return v;
    if (f->kind != EX_FILTER || ++r->x->depth > EVAL_DEPTH_MAX) {
        jx_fail(r->x, "only filters may follow the names of a set block");
        return v;
    }
    v = apply_chain(r, f->a, v);
    r->x->depth--;
    return eval_filter(r, f, v);
}

/* "{% set a, b = expr %}", "{% set ns.attr = expr %}", and the block form. Only a namespace has
 * attributes that can be set; it is changed in place, which is how a value leaves a loop. */
static void exec_set(struct jinja_run *r, const struct jinja_node *s)
{
    struct jv v = s->kind == ST_SET ? eval_expr(r, s->a) : capture_output(r, s->body);
    if (s->kind == ST_SET_BLOCK)
        v = apply_chain(r, s->a, v);
    if (r->x->failed)
        return;
    if (!s->attrs) {
        bind_targets(r, s, v);
        return;
    }
    struct jv ns = get_var(r, s->keys[0]);
    if (ns.kind != JV_NAMESPACE)
        jx_fail(r->x, "cannot assign attribute on non-namespace object");
    jv_put(r->x, ns, jv_strn(s->attrs->s, s->attrs->n), v);
}

/* One statement. What it prints goes to r->out. */
static enum flow exec_one(struct jinja_run *r, const struct jinja_node *s)
{
    struct jv v;
    struct jinja_args args;
    struct jinja_frame *saved = r->frame, *frame;
    enum flow flow;
    switch (s->kind) {
    case ST_TEXT:
        jv_print(r->x, r->out, s->value);
        break;
    case ST_PRINT:
        v = eval_expr(r, s->a);
        if (!r->x->failed)
            jv_print(r->x, r->out, v);
        break;
    case ST_IF:
        /* An elif is an ST_IF as the only statement of `other`; walking down the chain in a
         * loop keeps a long one from using up the depth. */
        for (;; s = s->other) {
            if (jv_truth(eval_expr(r, s->a)))
                return exec_body(r, s->body);
            if (!s->other || r->x->failed)
                return FLOW_NEXT;
            if (s->other->kind != ST_IF || s->other->next)
                return exec_body(r, s->other);
        }
    case ST_FOR:
        return exec_for(r, s);
    case ST_SET:
    case ST_SET_BLOCK:
        exec_set(r, s);
        break;
    case ST_MACRO:
        set_var(r, r->frame, s->name, make_macro(r, s));
        break;
    case ST_CALL:
        /* "{% call(x) f(1) %}body{% endcall %}" calls f(1, caller=macro(x) body). */
        v = eval_expr(r, s->a->a);
        eval_args(r, s->a, &args);
        if (r->x->failed)
            break;
        if (args.kwargs.kind != JV_DICT)
            args.kwargs = jv_dict_new(r->x);
        jv_set(r->x, args.kwargs, "caller", make_macro(r, s));
        if (!r->x->failed)
            jv_print(r->x, r->out, jinja_call(r, v, &args));
        break;
    /* "{% filter f %}body{% endfilter %}" is f(text of the body). */
    case ST_FILTER:
        v = eval_filter(r, s, capture_output(r, s->body));
        if (!r->x->failed)
            jv_print(r->x, r->out, v);
        break;
    case ST_WITH:
        /* "{% with a = 1, b = a %}": the values are evaluated in the outer scope. */
        frame = push_frame(r, saved);
        for (size_t i = 0; i < s->n_keys && !r->x->failed; i++)
            set_var(r, frame, s->keys[i], eval_expr(r, s->kwargs[i]));
        r->frame = frame;
        flow = r->x->failed ? FLOW_NEXT : exec_body(r, s->body);
        r->frame = saved;
        return flow;
    /* A group opens no scope. */
    case ST_GROUP:
        return exec_body(r, s->body);
    case ST_BREAK:
        return FLOW_BREAK;
    case ST_CONTINUE:
        return FLOW_CONTINUE;
    default:
        break;
    }
    return FLOW_NEXT;
}

/* Statements one after the other until one of them breaks, continues or fails. After a failure the
 * depth need not be exact, since nothing runs any more and jinja_run() starts again at 0. */
static enum flow exec_body(struct jinja_run *r, const struct jinja_node *s)
{
    if (++r->x->depth > EVAL_DEPTH_MAX)
        jx_fail(r->x, "nested too deeply");
    enum flow flow = FLOW_NEXT;
    for (; s && flow == FLOW_NEXT && jx_step(r->x, 1); s = s->next) {
        r->x->line = s->line;
        flow = exec_one(r, s);
    }
    r->x->depth--;
    return flow;
}

void jinja_run(struct jx *x, const struct jinja_node *tree, struct jv globals, int64_t now,
               struct buf *out)
{
    struct jinja_run r = { .x = x, .out = out, .now = now };
    r.frame = push_frame(&r, NULL);
    x->depth = 0;
    /* Globals become the outermost scope; their keys come from JSON, so they are strings. */
    for (size_t i = 0; r.frame && jv_is_map(globals) && i < globals.dict->n; i++)
        set_var(&r, r.frame, globals.dict->pairs[i].key.str, globals.dict->pairs[i].value);
    if (!x->failed)
        exec_body(&r, tree);
    /* The output has the arena's limit; over it, the buffer has stopped growing. */
    if (!buf_ok(out))
        jx_nomem(x);
}
