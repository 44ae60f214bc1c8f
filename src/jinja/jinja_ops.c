/* jinja_ops.c - operators, tests and global functions of templates.
 *
 * Arithmetic is Python's: floor division, modulo with the sign of the divisor, true
 * division to float.  Overflow of 64-bit integers is an error, not a big number. */
#include "base/array.h"
#include "jinja/jinja.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>
#include "base/utf8.h"

/* Positional arguments win over keywords of the same meaning. name NULL: the argument has no
 * keyword; an i beyond the arguments of real calls: it is given by keyword only. */
struct jv jinja_arg(const struct jinja_args *args, size_t i, const char *name, struct jv missing)
{
    if (i < args->n)
        return args->items[i];
    struct jv *v = name ? jv_find(args->kwargs, jv_str(name)) : NULL;
    return v ? *v : missing;
}

/* ---- operators ---- */

/* An undefined value knows the name that did not exist, see jv_undefined(). */
struct jv jinja_fail_undefined(struct jx *x, struct jv v)
{
    jx_fail(x, "'%.*s' is undefined", (int)(v.str.n < 60 ? v.str.n : 60), v.str.s ? v.str.s : "");
    return jv_undefined(NULL);
}

/* Name an undefined operand rather than the types: a misspelled variable is the usual cause. */
static struct jv bad_operands(struct jx *x, const char *op, struct jv a, struct jv b)
{
    if (a.kind == JV_UNDEFINED || b.kind == JV_UNDEFINED)
        return jinja_fail_undefined(x, a.kind == JV_UNDEFINED ? a : b);
    jx_fail(x, "unsupported operands for %s: '%s' and '%s'", op, jv_type_name(a), jv_type_name(b));
    return jv_undefined(NULL);
}

/* The operators + and ~ on text. Both are copied and nothing is freed, so a text that grows in a
 * loop uses memory with the square of its length; the arena's limit is what ends that. */
static struct jv concat_text(struct jx *x, struct jv_str a, struct jv_str b)
{
    if (!jx_step(x, 1 + (a.n + b.n) / 256))
        return jv_undefined(NULL);
    /* One byte more, which jx_alloc() has zeroed: the text ends with a NUL, as in jv_str_copy(). */
    char *s = a.n > SIZE_MAX - b.n - 1 ? NULL : jx_alloc(x, a.n + b.n + 1);
    if (!s) {
        jx_nomem(x);
        return jv_undefined(NULL);
    }
    if (a.n)
        memcpy(s, a.s, a.n);
    if (b.n)
        memcpy(s + a.n, b.s, b.n);
    return jv_strn(s, a.n + b.n);
}

/* "ab" * 3 and [1] * 3. Zero and negative counts give an empty value; steps and the arena's limit
 * bound large ones. */
static struct jv repeat_value(struct jx *x, struct jv v, int64_t times)
{
    struct buf b;
    struct jv out;
    if (v.kind == JV_STRING) {
        buf_init(&b, x->arena->max);
        for (int64_t i = 0; i < times && buf_ok(&b) && jx_step(x, 1); i++)
            buf_append(&b, v.str.s, v.str.n);
        return jv_from_buf(x, &b);
    }
    out = jv_list_new(x);
    /* A step for each round, too: no items are repeated as often as one likes. */
    for (int64_t i = 0; i < times && jx_step(x, 1); i++)
        for (size_t k = 0; k < v.list->n && jx_step(x, 1); k++)
            jv_push(x, out, v.list->items[k]);
    if (!x->failed)
        out.kind = v.kind;
    return out;
}

/* Python would go on with a larger integer. Here arithmetic ends at 64 bits: an error is better
 * than a wrong number in a prompt, and JV_BIG is only printed. */
static struct jv fail_overflow(struct jx *x)
{
    jx_fail(x, "integer overflow");
    return jv_undefined(NULL);
}

/* Finite operands without a finite result are an error. Python raises OverflowError for a large one
 * and ZeroDivisionError for 0 ** -1; its (-8) ** 0.5 is a complex number, which does not exist
 * here. */
static struct jv float_power(struct jx *x, double a, double b)
{
    double v = pow(a, b);
    if (isfinite(v) || !isfinite(a) || !isfinite(b))
        return jv_float(v);
    jx_fail(x, a == 0 ? "zero cannot be raised to a negative power" : "** has no finite result");
    return jv_undefined(NULL);
}

/* By repeated multiplication, which overflows after at most 63 rounds unless a is 0, 1 or -1; a
 * step per round bounds those. */
static struct jv int_power(struct jx *x, int64_t a, int64_t b)
{
    /* A negative exponent makes a float of an int, as in Python: 2 ** -1 is 0.5. */
    if (b < 0)
        return float_power(x, (double)a, (double)b);
    int64_t out = 1;
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(out, a, &out) || !jx_step(x, 1))
            return fail_overflow(x);
        if (out == 0 || (out == 1 && a == 1))
            break;
    }
    return jv_int(out);
}

/* Checked arithmetic of the compiler: signed overflow would be undefined. */
static struct jv int_op(struct jx *x, enum jinja_op op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = false;
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &out);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &out);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &out);
        break;
    case OP_POW:
        return int_power(x, a, b);
    default: /* floor division and modulo */
        if (b == 0) {
            jx_fail(x, "division by zero");
            return jv_undefined(NULL);
        }
        /* INT64_MIN / -1 overflows, and traps on some machines. */
        if (b == -1)
            return op == OP_MOD ? jv_int(0) : a == INT64_MIN ? fail_overflow(x) : jv_int(-a);
        out = op == OP_MOD ? a % b : a / b;
        /* C rounds toward zero, Python down: they differ when signs differ and a remainder is left.
         * -7 // 2 is -4 instead of -3, and -7 % 2 is 1 instead of -1. */
        if (a % b != 0 && (a < 0) != (b < 0))
            out = op == OP_MOD ? out + b : out - 1;
    }
    return over ? fail_overflow(x) : jv_int(out);
}

/* IEEE arithmetic but for division by zero and the sign rules of // and %. */
static struct jv float_op(struct jx *x, enum jinja_op op, double a, double b)
{
    /* Python raises here, where C gives infinity. */
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD)) {
        jx_fail(x, "division by zero");
        return jv_undefined(NULL);
    }
    switch (op) {
    case OP_ADD:
        return jv_float(a + b);
    case OP_SUB:
        return jv_float(a - b);
    case OP_MUL:
        return jv_float(a * b);
    case OP_DIV:
        return jv_float(a / b);
    case OP_POW:
        return float_power(x, a, b);
    default:
        break;
    }
    /* CPython's float_divmod(): a = q * b + m with an integer q, where m has the sign of b; fmod()
     * gives it the sign of a. q is rounded to the integer that it must be, because (a - m) / b is
     * not exact. A zero keeps the sign that it would have: m that of b, q that of a / b. */
    double m = fmod(a, b), q = (a - m) / b;
    if (m == 0)
        m = copysign(0, b);
    else if ((m < 0) != (b < 0)) {
        m += b;
        q -= 1;
    }
    q = q == 0 ? copysign(0, a / b) : floor(q) + (q - floor(q) > 0.5);
    return jv_float(op == OP_MOD ? m : q);
}

/* Numbers first; a bool counts as 0 or 1. "/" always gives a float, "~" always text. "%" is for
 * numbers only: text is not formatted with it, as it is in Python. */
struct jv jinja_binary(struct jx *x, enum jinja_op op, struct jv a, struct jv b)
{
    /* Indexed by the first members of enum jinja_op. */
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**", "~" };
    if (x->failed)
        return jv_undefined(NULL);
    if (op == OP_CONCAT) {
        struct jv left = jv_to_str(x, a), right = jv_to_str(x, b);
        return x->failed ? jv_undefined(NULL) : concat_text(x, left.str, right.str);
    }
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_FLOAT || b.kind == JV_FLOAT || op == OP_DIV)
            return float_op(x, op, jv_number(a), jv_number(b));
        return int_op(x, op, a.kind == JV_INT ? a.i : a.b, b.kind == JV_INT ? b.i : b.b);
    }
    if (op == OP_ADD && a.kind == JV_STRING && b.kind == JV_STRING)
        return concat_text(x, a.str, b.str);
    /* A view of a dict is stored like a list, but Python defines neither + nor * for it. */
    if (jv_is_view(a) || jv_is_view(b))
        return bad_operands(x, names[op], a, b);
    /* A new list, as values never change; a list and a tuple do not add, as in Python. */
    if (op == OP_ADD && jv_is_seq(a) && a.kind == b.kind) {
        const struct jv both[2] = { a, b };
        struct jv out = jv_list_new(x);
        for (size_t k = 0; k < 2; k++)
            for (size_t i = 0; i < both[k].list->n && jx_step(x, 1); i++)
                jv_push(x, out, both[k].list->items[i]);
        if (!x->failed)
            out.kind = a.kind; /* a tuple plus a tuple is a tuple */
        return out;
    }
    if (op == OP_MUL && (a.kind == JV_STRING || jv_is_seq(a)) && b.kind == JV_INT)
        return repeat_value(x, a, b.i);
    if (op == OP_MUL && (b.kind == JV_STRING || jv_is_seq(b)) && a.kind == JV_INT)
        return repeat_value(x, b, a.i);
    return bad_operands(x, names[op], a, b);
}

/* "item in in": a substring of text, a key of a mapping, an item of a sequence. Nothing is in an
 * undefined value, because Jinja's Undefined iterates over nothing. */
static bool contains_item(struct jx *x, struct jv item, struct jv in)
{
    if (in.kind == JV_STRING) {
        if (item.kind != JV_STRING)
            return jx_fail(x, "'in <string>' requires a string, not %s", jv_type_name(item));
        return jx_step(x, text_find_steps(in.str, item.str)) &&
               text_find(in.str, item.str, 0) != SIZE_MAX;
    }
    /* Equal keys have equal hashes, so a lookup decides; 1 is in {1.0: "a"}, as in Python. */
    if (jv_is_map(in))
        return jv_find(in, item) != NULL;
    if (jv_is_seq(in)) {
        for (size_t i = 0; i < in.list->n && jx_step(x, 1); i++)
            if (jv_equal_steps(x, in.list->items[i], item))
                return true;
        return false;
    }
    if (in.kind == JV_UNDEFINED)
        return false;
    return jx_fail(x, "argument of type '%s' is not iterable", jv_type_name(in));
}

/* Equality is defined for all values, order only for like ones; false after a failure. */
bool jinja_compare(struct jx *x, enum jinja_op op, struct jv a, struct jv b)
{
    if (x->failed)
        return false;
    switch (op) {
    case OP_EQ:
        return jv_equal_steps(x, a, b);
    case OP_NE:
        return !jv_equal_steps(x, a, b);
    /* "a in b": the container is on the right. */
    case OP_IN:
        return contains_item(x, a, b);
    case OP_NOT_IN:
        return !contains_item(x, a, b);
    case OP_LT:
        return jv_compare(x, a, b) < 0;
    case OP_LE:
        return jv_compare(x, a, b) <= 0;
    case OP_GT:
        return jv_compare(x, a, b) > 0;
    default:
        return jv_compare(x, a, b) >= 0;
    }
}

/* ---- tests ---- */

/* str.isupper() and str.islower(): cased characters exist, and all of them are of this case. Only
 * the categories Lu and Ll count; other cased characters (Lt, Roman numerals), at which Python
 * looks as well, are passed over. */
static bool case_is(struct jv v, bool upper)
{
    bool any = false;
    for (size_t i = 0; v.kind == JV_STRING && i < v.str.n;) {
        uint32_t cp;
        int n = utf8_decode(v.str.s + i, v.str.n - i, &cp);
        if (n == 0)
            return false;
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        if (c == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
            return false;
        any = any || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LU;
        i += (size_t)n;
    }
    return any;
}

/* odd, even and divisibleby; i % -1 is avoided, since INT64_MIN % -1 traps. Floats are refused,
 * where Python would compute 1.5 % 2. */
static bool test_number(struct jx *x, struct jv_str name, struct jv v, struct jv arg)
{
    if (v.kind != JV_INT && v.kind != JV_BOOL)
        return jx_fail(x, "'%s' is not an integer", jv_type_name(v));
    int64_t i = v.kind == JV_INT ? v.i : v.b;
    if (jinja_same(name, "odd"))
        return i % 2 != 0;
    if (jinja_same(name, "even"))
        return i % 2 == 0;
    if (arg.kind != JV_INT || arg.i == 0)
        return jx_fail(x, "divisibleby needs a number other than zero");
    return arg.i == -1 || i % arg.i == 0;
}

/* Tests that look at the type only. *known: whether there is such a test.
 *
 * The classes are those of the reference: "sequence" is what has a length and subscripts, thus also
 * text, dicts and undefined, but no view; "mapping" is a dict and not a namespace; a bool is a
 * "number" but, unlike in Python, no "integer". */
static bool test_kind(struct jv_str name, struct jv v, bool *known)
{
    *known = true;
    if (jinja_same(name, "defined"))
        return v.kind != JV_UNDEFINED;
    if (jinja_same(name, "undefined"))
        return v.kind == JV_UNDEFINED;
    if (jinja_same(name, "none"))
        return v.kind == JV_NONE;
    if (jinja_same(name, "string"))
        return v.kind == JV_STRING;
    if (jinja_same(name, "mapping"))
        return v.kind == JV_DICT;
    if (jinja_same(name, "sequence"))
        return (jv_is_seq(v) && !jv_is_view(v)) || v.kind == JV_STRING || v.kind == JV_DICT ||
               v.kind == JV_UNDEFINED;
    if (jinja_same(name, "iterable"))
        return jv_is_seq(v) || v.kind == JV_STRING || v.kind == JV_DICT || v.kind == JV_UNDEFINED;
    if (jinja_same(name, "number"))
        return jv_is_number(v) || v.kind == JV_BIG;
    if (jinja_same(name, "integer"))
        return v.kind == JV_INT || v.kind == JV_BIG;
    if (jinja_same(name, "float"))
        return v.kind == JV_FLOAT;
    if (jinja_same(name, "boolean"))
        return v.kind == JV_BOOL;
    if (jinja_same(name, "true"))
        return v.kind == JV_BOOL && v.b;
    if (jinja_same(name, "false"))
        return v.kind == JV_BOOL && !v.b;
    if (jinja_same(name, "callable"))
        return v.kind == JV_FUNCTION || v.kind == JV_METHOD || v.kind == JV_MACRO;
    if (jinja_same(name, "upper") || jinja_same(name, "lower"))
        return case_is(v, name.s[0] == 'u');
    *known = false;
    return false;
}

/* Types first, as most templates ask "is defined" and "is string". */
bool jinja_test(struct jinja_run *r, struct jv_str name, struct jv v, const struct jinja_args *args)
{
    static const struct {
        const char *name;
        enum jinja_op op;
    } ops[] = { /* comparisons by name: select("equalto", 3) */
                { "eq", OP_EQ },          { "equalto", OP_EQ },  { "==", OP_EQ },
                { "sameas", OP_EQ },      { "ne", OP_NE },       { "!=", OP_NE },
                { "lt", OP_LT },          { "lessthan", OP_LT }, { "<", OP_LT },
                { "le", OP_LE },          { "<=", OP_LE },       { "gt", OP_GT },
                { "greaterthan", OP_GT }, { ">", OP_GT },        { "ge", OP_GE },
                { ">=", OP_GE },          { "in", OP_IN }
    };
    /* These never fail: "x is defined" is how a template protects itself from undefined values. */
    bool known;
    bool result = test_kind(name, v, &known);
    if (known)
        return result;
    struct jv arg = jinja_arg(args, 0, NULL, jv_undefined("argument"));
    /* Then arithmetic, then comparisons under their names. */
    if (jinja_same(name, "odd") || jinja_same(name, "even") || jinja_same(name, "divisibleby"))
        return test_number(r->x, name, v, arg);
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        if (!jinja_same(name, ops[i].name))
            continue;
        if (args->n != 1)
            return jx_fail(r->x, "test '%s' takes one argument", ops[i].name);
        /* Python's "is": approximated by the same type and an equal value. True is not 1, which is
         * what templates ask; two lists with equal items count as the same, though. */
        if (jinja_same(name, "sameas") && v.kind != arg.kind)
            return false;
        return jinja_compare(r->x, ops[i].op, v, arg);
    }
    return jx_fail(r->x, "no test named '%.*s'", (int)(name.n < 40 ? name.n : 40), name.s);
}

/* ---- functions ---- */

/* range(stop), range(start, stop), range(start, stop, step), as a list, and printed as one. Every
 * item is a step; that replaces the sandbox's limit of 100000 items. */
static struct jv call_range(struct jx *x, const struct jinja_args *args)
{
    int64_t v[3] = { 0, 0, 1 };
    for (size_t i = 0; i < args->n && i < 3; i++) {
        if (args->items[i].kind != JV_INT)
            jx_fail(x, "range needs integers");
        v[i] = args->items[i].i;
    }
    /* range(stop) starts at 0. */
    if (args->n == 1) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (args->n == 0 || args->n > 3 || v[2] == 0)
        jx_fail(x, "range takes one to three integers");
    struct jv out = jv_list_new(x);
    while (!x->failed && (v[2] > 0 ? v[0] < v[1] : v[0] > v[1]) && jx_step(x, 1)) {
        jv_push(x, out, jv_int(v[0]));
        /* A sum beyond 64 bits is beyond the end as well. */
        if (__builtin_add_overflow(v[0], v[2], &v[0]))
            break;
    }
    return out;
}

/* dict(mapping, key=value) and namespace(...): the keywords come after the mapping and win. A list
 * of pairs, which Python takes in place of the mapping, is ignored. */
static struct jv call_dict(struct jx *x, const struct jinja_args *args, enum jv_kind kind)
{
    struct jv out = jv_dict_new(x);
    if (x->failed)
        return out;
    out.kind = kind;
    const struct jv from[2] = { args->n > 0 ? args->items[0] : jv_none(), args->kwargs };
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; jv_is_map(from[k]) && i < from[k].dict->n && jx_step(x, 1); i++)
            jv_put(x, out, from[k].dict->pairs[i].key, from[k].dict->pairs[i].value);
    return out;
}

/* Local time, as strftime_now of transformers. The format comes from the template and is bounded,
 * and so is the result: strftime() returns 0 for one of 256 bytes or more, which gives "". */
static struct jv call_strftime(struct jinja_run *r, const struct jinja_args *args)
{
    struct jv format = jinja_arg(args, 0, "format", jv_none());
    time_t now = (time_t)r->now;
    struct tm tm;
    char text[256], pattern[128];
    if (format.kind != JV_STRING || format.str.n == 0 || format.str.n >= sizeof(pattern) ||
        memchr(format.str.s, 0, format.str.n) || !localtime_r(&now, &tm)) {
        jx_fail(r->x, "strftime_now needs a format");
        return jv_undefined(NULL);
    }
    /* strftime() wants a C string; values are not NUL-terminated in general. */
    memcpy(pattern, format.str.s, format.str.n);
    pattern[format.str.n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof(text), pattern, &tm);
#pragma GCC diagnostic pop
    return jv_str_copy(r->x, text, n);
}

/* Call a method bound to its value, a macro, or a global function by its name. get_var() makes
 * functions of five names only, so the one left at the end is raise_exception(), whose message is
 * shown as the template's own words. */
struct jv jinja_call(struct jinja_run *r, struct jv f, const struct jinja_args *args)
{
    if (f.kind == JV_METHOD)
        return jinja_call_method(r->x, f.method->self, f.method->name, args);
    if (f.kind == JV_MACRO)
        return jinja_call_macro(r, f, args);
    /* A misspelled method ends here as an undefined value, whose name is the useful part. */
    if (f.kind != JV_FUNCTION) {
        jx_fail(r->x, "'%.*s' is %s and cannot be called",
                f.kind == JV_UNDEFINED && f.str.n < 60 ? (int)f.str.n : 0,
                f.kind == JV_UNDEFINED && f.str.s ? f.str.s : "", jv_type_name(f));
        return jv_undefined(NULL);
    }
    if (jinja_same(f.str, "range"))
        return call_range(r->x, args);
    if (jinja_same(f.str, "dict"))
        return call_dict(r->x, args, JV_DICT);
    if (jinja_same(f.str, "namespace"))
        return call_dict(r->x, args, JV_NAMESPACE);
    if (jinja_same(f.str, "strftime_now"))
        return call_strftime(r, args);
    struct jv message = jv_to_str(r->x, jinja_arg(args, 0, "message", jv_str("")));
    if (!r->x->failed)
        jx_fail(r->x, "template says: %.*s", (int)(message.str.n < 250 ? message.str.n : 250),
                message.str.s);
    return jv_undefined(NULL);
}
