/* number.c - numbers of JSON, within bounds: digits are compared from the left.  A range such as 17
 * to 243 is cut into pieces of equal length and common prefix, as a human would write it: 17-19,
 * 20-99, 100-199, 200-239, 240-243. */
#include <math.h>

#include "grammar/node.h"

/* Integers of at most 15 digits: exact in a double, and no sample of digits without end. */
static const int64_t LIMIT = 999999999999999;

/* min and max are numbers of digits. */
static struct node *digits_node(struct builder *b, int64_t min, int64_t max)
{
    return node_repeat(b, node_class(b, "09"), min, max);
}

static struct node *digit_range(struct builder *b, int64_t from, int64_t to)
{
    const char range[] = { (char)('0' + from), (char)('0' + to), 0 };
    return node_class(b, range);
}

/* All texts of `count` digits from lo to hi, leading zeros included. */
static struct node *fixed_range(struct builder *b, int64_t lo, int64_t hi, int count)
{
    /* The value of the first of `count` digits. */
    int64_t unit = 1;
    for (int i = 1; i < count; i++)
        unit *= 10;
    if (count == 0)
        return node_text(b, "", 0);
    /* A whole decade needs no comparison. */
    if (lo == 0 && hi == unit * 10 - 1)
        return digits_node(b, count, count);
    /* With the same first digit the bounds are those of the rest. */
    int64_t first = lo / unit, last = hi / unit;
    if (first == last)
        return node_seq2(b, digit_range(b, first, first),
                         fixed_range(b, lo % unit, hi % unit, count - 1));
    /* the smallest first digit, the largest, and all between, after which anything may come */
    struct node *parts[3];
    size_t n = 0;
    parts[n++] =
        node_seq2(b, digit_range(b, first, first), fixed_range(b, lo % unit, unit - 1, count - 1));
    parts[n++] = node_seq2(b, digit_range(b, last, last), fixed_range(b, 0, hi % unit, count - 1));
    if (last - first > 1)
        parts[n++] =
            node_seq2(b, digit_range(b, first + 1, last - 1), digits_node(b, count - 1, count - 1));
    return node_list(b, NODE_CHOICE, parts, n);
}

/* Integers from lo >= 0 to hi without leading zeros; no part when there are none. */
static struct node *natural_range(struct builder *b, int64_t lo, int64_t hi)
{
    /* At most one part per length, and a length has at most 15 digits. */
    struct node *parts[20];
    size_t n = 0;
    /* least and most: the numbers of `count` digits, 0 among those of one. */
    int64_t least = 0, most = 9;
    for (int count = 1; count <= 15 && least <= hi; count++) {
        int64_t from = lo > least ? lo : least, to = hi < most ? hi : most;
        if (from <= to)
            parts[n++] = fixed_range(b, from, to, count);
        least = most + 1;
        most = most * 10 + 9;
    }
    return node_list(b, NODE_CHOICE, parts, n);
}

/* Numbers from lo >= 0 to hi with a fraction: any below hi, only zeros at hi itself.  2.5 to 7 is
 * refused before: whole bounds are enough for scores and ratings, and anything else needs a
 * comparison of fractions. */
static struct node *decimal_range(struct builder *b, int64_t lo, int64_t hi)
{
    struct node *point = node_text(b, ".", 1);
    /* "7.000" is 7; more zeros would only cost tokens. */
    struct node *zeros = node_seq2(b, point, node_repeat(b, node_class(b, "00"), 1, 3));
    struct node *fraction = node_seq2(b, point, digits_node(b, 1, 15));
    struct node *last = node_seq2(b, natural_range(b, hi, hi), node_optional(b, zeros));
    if (lo >= hi)
        return last;
    return node_choice2(b, node_seq2(b, natural_range(b, lo, hi - 1), node_optional(b, fraction)),
                        last);
}

struct node *number_node(struct builder *b, bool integer, double min, double max)
{
    struct node *minus = node_text(b, "-", 1);
    /* Without bounds: the grammar of RFC 8259, with limits on the length of each part. */
    if (isnan(min) && isnan(max)) {
        struct node *whole = node_choice2(b, node_text(b, "0", 1),
                                          node_seq2(b, node_class(b, "19"), digits_node(b, 0, 14)));
        struct node *signed_ = node_seq2(b, node_optional(b, minus), whole);
        if (integer)
            return signed_;
        struct node *fraction = node_seq2(b, node_text(b, ".", 1), digits_node(b, 1, 15));
        /* At most two digits: 1e99 is finite in a double, 1e999 is not. */
        struct node *exponent =
            node_seq3(b, node_class(b, "eeEE"), node_optional(b, node_class(b, "++--")),
                      digits_node(b, 1, 2));
        return node_seq3(b, signed_, node_optional(b, fraction), node_optional(b, exponent));
    }
    /* Before they become integers: a double beyond those has no value there. */
    if ((!isnan(min) && min > (double)LIMIT) || (!isnan(max) && max < (double)-LIMIT))
        return node_fail(b, "numbers of more than 15 digits are not supported");
    /* Bounds beyond the limit do not restrict what can be generated; integers above a fractional
     * minimum begin at its ceiling. */
    int64_t lo = isnan(min) || min < (double)-LIMIT ? -LIMIT : (int64_t)ceil(min);
    int64_t hi = isnan(max) || max > (double)LIMIT ? LIMIT : (int64_t)floor(max);
    /* 1.5 <= x would need the digits of the bound; see decimal_range(). */
    if (!integer && ((!isnan(min) && min != floor(min)) || (!isnan(max) && max != floor(max))))
        return node_fail(b, "bounds of a number that are not whole are not supported");
    struct node *parts[2];
    size_t n = 0;
    struct node *(*range)(struct builder *, int64_t, int64_t) =
        integer ? natural_range : decimal_range;
    /* Positive and negative numbers apart: digits are compared without their sign. */
    if (hi >= 0 && hi >= lo)
        parts[n++] = range(b, lo > 0 ? lo : 0, hi);
    if (lo < 0 && hi >= lo)
        /* The order of the bounds turns around with the sign. */
        parts[n++] = node_seq2(b, minus, range(b, hi < 0 ? -hi : 0, -lo));
    return node_list(b, NODE_CHOICE, parts, n);
}
