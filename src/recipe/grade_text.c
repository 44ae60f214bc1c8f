/* grade_text.c - see grade_text.h. */
#include "recipe/grade_text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/array.h"
#include "base/number.h"

/* ---- numbers ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Length of -?\d+\.?\d* at s, with commas among the digits if they may be; 0: none. Written out,
 * since POSIX expressions would need to be compiled for every answer. */
static size_t measure_number(const char *s, bool commas)
{
    size_t n = *s == '-';
    if (!is_digit(s[n]))
        return 0;
    while (is_digit(s[n]) || (commas && s[n] == ','))
        n++;
    n += s[n] == '.';
    while (is_digit(s[n]))
        n++;
    return n;
}

/* What stands between the brace at *s and its partner; NULL: it has none. */
static char *copy_braces(struct arena *a, const char *s)
{
    size_t depth = 0;
    for (size_t i = 0; s[i]; i++) {
        depth += s[i] == '{';
        depth -= s[i] == '}';
        if (depth == 0)
            return arena_strndup(a, s + 1, i - 1);
    }
    return NULL;
}

static void remove_chars(char *s, const char *chars)
{
    char *to = s;
    for (; *s; s++)
        if (!strchr(chars, *s))
            *to++ = *s;
    *to = 0;
}

/* \text{...} and other commands go, then braces, dollars, commas and blanks; the first number of
 * what is left, else all of it. Models write 1{,}000, \$5 or 12\text{ apples}; the data sets
 * have 1000, 5 and 12. */
static char *clean_number(struct arena *a, const char *from)
{
    char *out = arena_alloc(a, strlen(from) + 1), *to = out;
    for (const char *s = from; out && *s;) {
        if (*s != '\\') {
            *to++ = *s++;
            continue;
        }
        bool text = strncmp(s, "\\text{", 6) == 0;
        s++;
        while (isalpha((unsigned char)*s))
            s++;
        if (text) {
            while (*s && *s != '}')
                s++;
            s += *s == '}';
        }
    }
    if (!out)
        return NULL;
    *to = 0;
    remove_chars(out, "{}$, \t\r\n");
    for (char *s = out; *s; s++) {
        size_t n = measure_number(s, false);
        if (n)
            return arena_strndup(a, s, n);
    }
    return out;
}

/* Behind "answer is" or "answer:". The first statement counts: models repeat themselves behind
 * it with other numbers. */
static char *find_stated_number(struct arena *a, const char *text)
{
    static const char *const words[] = { "answer is", "answer:" };
    for (const char *s = text; *s; s++)
        for (size_t i = 0; i < ARRAY_LEN(words); i++) {
            size_t n = strlen(words[i]);
            if (strncasecmp(s, words[i], n) != 0)
                continue;
            const char *v = s + n + strspn(s + n, " \t\r\n");
            v += *v == '$';
            size_t len = strspn(v, "0123456789,.-");
            char *out = len ? arena_strndup(a, v, len) : NULL;
            if (out) {
                remove_chars(out, ",");
                return out;
            }
        }
    return NULL;
}

/* The last number, of those behind ** if `bold`. Each hit is copied without its commas; the one
 * before stays in the arena, which ends with the judgment. */
static char *find_last_number(struct arena *a, const char *text, bool bold)
{
    char *last = NULL;
    for (const char *s = text; *s; s++) {
        const char *v = s;
        if (bold) {
            if (strncmp(s, "**", 2) != 0)
                continue;
            v = s + 2 + (s[2] == '$');
        }
        size_t n = measure_number(v, true);
        if (!n)
            continue;
        last = arena_strndup(a, v, n);
        if (!last)
            return NULL;
        remove_chars(last, ",");
        s = v + n - 1;
    }
    return last;
}

/* The order is that of the cookbook's GSM8K grader, from the most explicit to a guess: \boxed{},
 * ####, "the answer is", a bold number, the last number. "" when the text has none, which equals
 * no expected answer. */
char *grade_find_number(struct arena *a, const char *text)
{
    const char *box = strstr(text, "\\boxed{");
    char *out = box ? copy_braces(a, box + strlen("\\boxed")) : NULL;
    if (out)
        return clean_number(a, out);
    const char *marks = strstr(text, "####");
    if (marks) {
        char *line = arena_strndup(a, marks + 4, strcspn(marks + 4, "\n"));
        return line ? clean_number(a, line) : NULL;
    }
    out = find_stated_number(a, text);
    out = out ? out : find_last_number(a, text, true);
    out = out ? out : find_last_number(a, text, false);
    return out ? out : arena_strdup(a, "");
}

/* The last line that begins with ####, as data sets of mathematics have it. */
char *grade_expected_number(struct arena *a, const char *text)
{
    const char *from = text;
    for (const char *s = text; s; s = strchr(s, '\n')) {
        s += *s == '\n';
        if (strncmp(s, "####", 4) == 0)
            from = s + 4 + (s[4] == ':');
    }
    char *out = arena_strndup(a, from, from == text ? strlen(from) : strcspn(from, "\n"));
    if (out)
        remove_chars(out, ",");
    return out;
}

/* All of s as a number, with blanks around it and a dot behind it. A sentence ends with a full
 * stop that is not part of the number. */
static bool read_number(const char *s, double *out)
{
    char text[64];
    s += strspn(s, " \t\r\n");
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n.", s[n - 1]))
        n--;
    if (n == 0 || n >= sizeof(text))
        return false;
    memcpy(text, s, n);
    text[n] = 0;
    return number_read(text, out);
}

/* Answers that are no numbers ("no solution") are compared as text; nothing equals an empty one. */
static bool equal_trimmed(const char *a, const char *b)
{
    size_t n, m;
    a += strspn(a, " \t\r\n");
    b += strspn(b, " \t\r\n");
    for (n = strlen(a); n && strchr(" \t\r\n", a[n - 1]);)
        n--;
    for (m = strlen(b); m && strchr(" \t\r\n", b[m - 1]);)
        m--;
    return n == m && n > 0 && memcmp(a, b, n) == 0;
}

/* The tolerance is absolute, as in the cookbook: expected answers are mostly integers. */
bool grade_equal_numbers(const char *found, const char *expected, double tolerance)
{
    double a, b;
    if (read_number(found, &a) && read_number(expected, &b))
        return fabs(a - b) < tolerance;
    return equal_trimmed(found, expected);
}

/* ---- letters ---- */

/* An upper-case answer is meant by a lower-case letter, too; the end of the text is no letter
 * although strchr() finds it in every string. */
static char valid_letter(char c, const char *letters)
{
    char upper = (char)toupper((unsigned char)c);
    return upper && strchr(letters, upper) ? upper : 0;
}

/* What a regular expression calls \w: "A" is a choice, the A of "Apple" is none. */
static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Behind "answer is" or "answer:", with an optional bracket. */
static char find_stated_letter(const char *text, const char *letters)
{
    static const char *const words[] = { "answer is", "answer:" };
    for (const char *s = text; *s; s++)
        for (size_t i = 0; i < ARRAY_LEN(words); i++) {
            if (strncasecmp(s, words[i], strlen(words[i])) != 0)
                continue;
            const char *v = s + strlen(words[i]);
            v += strspn(v, " \t\r\n");
            v += *v == '(' || *v == '[';
            char c = valid_letter(*v, letters);
            if (c && !is_word_char(v[1]))
                return c;
        }
    return 0;
}

/* First the explicit forms. The letter that stands alone nearest to the end is a guess, so it
 * must be upper case (an article "a" is no choice) and within the last 300 bytes. */
char grade_find_letter(const char *text, const char *letters)
{
    enum { NEAR_END = 300 };
    for (const char *box = text; (box = strstr(box, "\\boxed{")); box++) {
        char c = valid_letter(box[7], letters);
        if (c && box[8] == '}')
            return c;
    }
    char found = find_stated_letter(text, letters);
    if (found)
        return found;
    size_t n = strlen(text), from = n > NEAR_END ? n - NEAR_END : 0;
    for (size_t i = n; i-- > from;)
        if (strchr(letters, text[i]) && text[i] && !is_word_char(text[i + 1]) &&
            (i == 0 || !is_word_char(text[i - 1])))
            return text[i];
    return 0;
}

/* ---- boxed expressions ---- */

/* The last box: what comes before is work. \boxed 5 without braces ends at a blank, a dollar or
 * the line's end. */
char *grade_find_boxed(struct arena *a, const char *text)
{
    const char *last = NULL;
    for (const char *s = text; (s = strstr(s, "\\boxed")); s++)
        last = s;
    if (!last)
        return NULL;
    last += strlen("\\boxed");
    if (*last == '{')
        return copy_braces(a, last);
    last += strspn(last, " ");
    return arena_strndup(a, last, strcspn(last, "$ \n"));
}

/* Replace every `from`; the result is never longer than ten times the text. Worst case: every
 * byte is a match of one byte. */
static char *replace_all(struct arena *a, const char *s, const char *from, const char *to)
{
    size_t n = strlen(from), m = strlen(to), at = 0;
    char *out = arena_alloc(a, strlen(s) * (m > n ? m - n + 1 : 1) + 1);
    while (out && *s) {
        if (strncmp(s, from, n) == 0) {
            memcpy(out + at, to, m);
            at += m;
            s += n;
        } else {
            out[at++] = *s++;
        }
    }
    if (out)
        out[at] = 0;
    return out;
}

/* \frac12 -> \frac{1}{2} TeX takes a single character as an argument without braces. Each such
 * \frac grows by four bytes of at least seven, so three times the length is enough. */
static char *brace_fractions(struct arena *a, const char *s)
{
    static const char frac[] = "\\frac";
    size_t n = sizeof(frac) - 1, at = 0;
    char *out = arena_alloc(a, 3 * strlen(s) + 1);
    while (out && *s) {
        if (strncmp(s, frac, n) == 0 && s[n] && s[n] != '{' && s[n + 1]) {
            at += (size_t)snprintf(out + at, 3 * n, "%s{%c}{%c}", frac, s[n], s[n + 1]);
            s += n + 2;
        } else {
            out[at++] = *s++;
        }
    }
    if (out)
        out[at] = 0;
    return out;
}

/* In the manner of is_equiv() of the MATH benchmark (Hendrycks et al. 2021).  \dfrac must be \frac
 * before fractions get their braces. */
static char *normalize_boxed(struct arena *a, const char *s)
{
    static const struct {
        const char *from, *to;
    } rules[] = {
        { "\\text", "" },    { "\\left", "" },    { "\\right", "" }, { "\\!", "" },
        { "\\,", "" },       { "\\ ", "" },       { "\\$", "" },     { "$", "" },
        { "\\%", "" },       { "%", "" },         { "^\\circ", "" }, { "^{\\circ}", "" },
        { "tfrac", "frac" }, { "dfrac", "frac" }, { "{,}", "" },
    };
    char *out = arena_strdup(a, s);
    for (size_t i = 0; out && i < ARRAY_LEN(rules); i++)
        out = replace_all(a, out, rules[i].from, rules[i].to);
    out = out ? brace_fractions(a, out) : NULL;
    if (!out)
        return NULL;
    remove_chars(out, " \t\r\n");
    /* a comma between digits, three of them behind it, separates thousands */
    for (char *c = out; (c = strchr(c, ','));)
        if (c > out && is_digit(c[-1]) && is_digit(c[1]) && is_digit(c[2]) && is_digit(c[3]) &&
            !is_digit(c[4]))
            memmove(c, c + 1, strlen(c));
        else
            c++;
    for (char *c = out; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return out;
}

/* A rational number: an integer, a decimal, a/b or \frac{a}{b}.  Digits beyond 18 are left to the
 * comparison of texts. */
struct rational {
    long long top, bottom;
    bool fraction;
};

/* 18 digits: two such numbers are multiplied in 128 bits later without overflow. */
static bool read_integer(const char **s, long long *out)
{
    char *end;
    if (!is_digit(**s) && !(**s == '-' && is_digit((*s)[1])))
        return false;
    if (strspn(*s, "-0123456789") > 18)
        return false;
    *out = strtoll(*s, &end, 10);
    *s = end;
    return true;
}

/* A minus may stand before \frac, where it belongs to the whole fraction. A decimal becomes an
 * integer over a power of ten, so 0.5, 1/2 and \frac{1}{2} are the same number exactly and not
 * within a tolerance. */
static bool read_rational(const char *s, struct rational *out)
{
    long long sign = *s == '-' && s[1] == '\\' ? -1 : 1;
    *out = (struct rational){ 0, 1, false };
    if (sign < 0)
        s++;
    if (strncmp(s, "\\frac{", 6) == 0) {
        s += 6;
        if (!read_integer(&s, &out->top) || strncmp(s, "}{", 2) != 0)
            return false;
        s += 2;
        if (!read_integer(&s, &out->bottom) || strcmp(s, "}") != 0 || out->bottom == 0)
            return false;
        out->fraction = true;
        out->top *= sign;
        return true;
    }
    bool negative = *s == '-';
    if (*s == '.') /* .5 */
        out->top = 0;
    else if (!read_integer(&s, &out->top))
        return false;
    if (*s == '/') {
        s++;
        out->fraction = true;
        return read_integer(&s, &out->bottom) && !*s && out->bottom != 0;
    }
    if (*s == '.')
        for (s++; is_digit(*s) && out->bottom < 1000000000; s++) {
            out->top = out->top * 10 + (negative ? -1 : 1) * (*s - '0');
            out->bottom *= 10;
        }
    return !*s;
}

/* Euclid. */
static long long common_divisor(long long a, long long b)
{
    while (b) {
        long long t = a % b;
        a = b;
        b = t;
    }
    return a < 0 ? -a : a;
}

/* Both numbers: exactly equal; an integer wants an integer, and a fraction must be reduced.
 * \frac{2}{4} is not accepted for \frac{1}{2}: exercises ask for the reduced form. The products
 * are compared in 128 bits, so no division rounds. */
bool grade_equal_boxed(struct arena *a, const char *found, const char *expected)
{
    struct rational x, y;
    char *f = normalize_boxed(a, found), *e = normalize_boxed(a, expected);
    if (!f || !e)
        return false;
    if (strcmp(f, e) == 0)
        return *f != 0;
    if (!read_rational(f, &x) || !read_rational(e, &y))
        return false;
    if (x.fraction && common_divisor(x.top, x.bottom) != 1)
        return false;
    if (y.bottom == 1 && (x.fraction || strchr(f, '.')))
        return false;
    __extension__ typedef __int128 wide;
    return (wide)x.top * y.bottom == (wide)y.top * x.bottom;
}
