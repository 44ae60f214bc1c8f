/* trace.c - W3C trace context, level 1 (and the random flag of level 2).  Pure functions over
 * text; whatever the specification calls malformed is refused. */
#include <tinker/extra/trace.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/rand.h"

enum { TRACE_DIGITS = 32, PARENT_DIGITS = 16, KEY_MAX = 256, VALUE_MAX = 256 };
/* version "-" trace id "-" parent id "-" flags, as in 00-<32>-<16>-01: where the parts
 * begin. */
enum { AT_TRACE = 3, AT_PARENT = 36, AT_FLAGS = 53, LENGTH = 55 };

/* ---- traceparent ------------------------------------------------------------------------------ */

/* Lower case only: the specification calls upper case malformed. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_hex(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (hex_digit(s[i]) < 0)
            return false;
    return true;
}

/* n digits, not all 0. */
static bool is_id(const char *s, size_t n)
{
    return is_hex(s, n) && strspn(s, "0") < n;
}

static int hex_byte(const char *s)
{
    return hex_digit(s[0]) << 4 | hex_digit(s[1]);
}

static tinker_status refuse_traceparent(tinker_error *err, const char *why)
{
    return err_set(err, TINKER_EINVAL, "not a traceparent: %s", why);
}

tinker_status tinker_trace_parse(const char *s, tinker_trace *out, tinker_error *err)
{
    size_t n = s ? strlen(s) : 0;
    if (n < LENGTH)
        return refuse_traceparent(err, "it is too short");
    /* ff is reserved as invalid; any other version is accepted. */
    if (!is_hex(s, 2) || hex_byte(s) == 0xff)
        return refuse_traceparent(err, "its version is not 00 to fe");
    if (s[2] != '-' || s[AT_PARENT - 1] != '-' || s[AT_FLAGS - 1] != '-')
        return refuse_traceparent(err, "its parts are not where they belong");
    /* Version 00 has exactly this length.  A later version may append parts, after a dash,
     * which are ignored. */
    if (hex_byte(s) == 0 ? n > LENGTH : n > LENGTH && s[LENGTH] != '-')
        return refuse_traceparent(err, "something follows its flags");
    if (!is_id(s + AT_TRACE, TRACE_DIGITS))
        return refuse_traceparent(err, "its trace id is not 32 digits of lower-case hex, or all 0");
    if (!is_id(s + AT_PARENT, PARENT_DIGITS))
        return refuse_traceparent(err,
                                  "its parent id is not 16 digits of lower-case hex, or all 0");
    if (!is_hex(s + AT_FLAGS, 2))
        return refuse_traceparent(err, "its flags are not two digits of lower-case hex");
    /* Flags that are not known yet are kept here and cleared in tinker_trace_format(). */
    *out = (tinker_trace){ .flags = (unsigned)hex_byte(s + AT_FLAGS) };
    memcpy(out->trace_id, s + AT_TRACE, TRACE_DIGITS);
    memcpy(out->parent_id, s + AT_PARENT, PARENT_DIGITS);
    return TINKER_OK;
}

/* Always writes version 00, the one whose rules this code knows. */
tinker_status tinker_trace_format(const tinker_trace *t, char out[TINKER_TRACEPARENT_SIZE],
                                  tinker_error *err)
{
    if (strnlen(t->trace_id, sizeof(t->trace_id)) != TRACE_DIGITS ||
        !is_id(t->trace_id, TRACE_DIGITS))
        return refuse_traceparent(err, "trace_id is not 32 digits of lower-case hex, or all 0");
    if (strnlen(t->parent_id, sizeof(t->parent_id)) != PARENT_DIGITS ||
        !is_id(t->parent_id, PARENT_DIGITS))
        return refuse_traceparent(err, "parent_id is not 16 digits of lower-case hex, or all 0");
    snprintf(out, TINKER_TRACEPARENT_SIZE, "00-%s-%s-%02x", t->trace_id, t->parent_id,
             t->flags & (TINKER_TRACE_SAMPLED | TINKER_TRACE_RANDOM));
    return TINKER_OK;
}

/* An id of zeros means "none" to others, so draw again in the (unlikely) case.
 * 2 * n random digits that are not all 0, with NUL. */
static bool random_id(char *out, size_t n)
{
    unsigned char raw[16], any = 0;
    while (!any) {
        if (rand_os(raw, n) != 0)
            return false;
        for (size_t i = 0; i < n; i++)
            any |= raw[i];
    }
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
    return true;
}

/* A child keeps the trace id and flags, and gets an own parent id; without a parent it
 * begins a trace. */
tinker_status tinker_trace_child(const tinker_trace *parent, tinker_trace *out, tinker_error *err)
{
    tinker_trace t = { .flags = TINKER_TRACE_SAMPLED | TINKER_TRACE_RANDOM };
    if (parent)
        t = *parent;
    if ((!parent && !random_id(t.trace_id, TRACE_DIGITS / 2)) ||
        !random_id(t.parent_id, PARENT_DIGITS / 2))
        return err_set(err, TINKER_ESTATE, "the system gives no random numbers");
    *out = t;
    return TINKER_OK;
}

/* ---- tracestate ------------------------------------------------------------------------------- */

struct member {
    const char *key, *value; /* into the text */
    size_t n_key, n_value;
};

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

/* Key characters of the specification: a-z 0-9 _ - * /, beginning with a letter, or, for a
 * tenant, with a digit. */
static bool is_key_part(const char *s, size_t n, size_t max, bool digit_first)
{
    if (n == 0 || n > max || !(is_lower(s[0]) || (digit_first && s[0] >= '0' && s[0] <= '9')))
        return false;
    for (size_t i = 1; i < n; i++)
        if (!is_lower(s[i]) && !(s[i] >= '0' && s[i] <= '9') && !(s[i] && strchr("_-*/", s[i])))
            return false;
    return true;
}

/* "name", or "tenant@system". */
static bool is_key(const char *s, size_t n)
{
    const char *at = memchr(s, '@', n);
    if (!at)
        return is_key_part(s, n, KEY_MAX, false);
    size_t tenant = (size_t)(at - s);
    /* Limits of the specification: 241 characters for the tenant, 14 for the system. */
    return is_key_part(s, tenant, 241, true) && is_key_part(at + 1, n - tenant - 1, 14, false);
}

/* Printable, without comma and equals sign; not empty, and no blank at its end. */
static bool is_value(const char *s, size_t n)
{
    if (n == 0 || n > VALUE_MAX || s[n - 1] == ' ')
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] > 0x7e || s[i] == ',' || s[i] == '=')
            return false;
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* The next member of a list that may have empty ones: 1; 0: there is none; -1: malformed. */
static int next_member(const char **at, struct member *m)
{
    const char *p = *at;
    /* Empty members are allowed by the specification and skipped. */
    while (is_blank(*p) || *p == ',')
        p++;
    size_t n = strcspn(p, ",");
    *at = p + n;
    if (n == 0)
        return 0;
    /* Blanks around a member do not belong to it. */
    while (n > 0 && is_blank(p[n - 1]))
        n--;
    const char *equals = memchr(p, '=', n);
    if (!equals)
        return -1;
    size_t key = (size_t)(equals - p);
    *m = (struct member){ p, equals + 1, key, n - key - 1 };
    /* Blanks around the equals sign are not allowed, which is_key() and is_value() see. */
    return is_key(m->key, m->n_key) && is_value(m->value, m->n_value) ? 1 : -1;
}

static bool same_key(const struct member *m, const char *key, size_t n)
{
    return m->n_key == n && memcmp(m->key, key, n) == 0;
}

/* All members; how many, -1: malformed. */
static int read_members(const char *text, struct member v[TINKER_TRACESTATE_MEMBERS],
                        tinker_error *err)
{
    int n = 0, got;
    struct member m;
    while ((got = next_member(&text, &m)) > 0) {
        /* 32 members at most; a longer list is malformed as a whole. */
        if (n == TINKER_TRACESTATE_MEMBERS) {
            err_set(err, TINKER_EINVAL, "a tracestate has more than %d members",
                    TINKER_TRACESTATE_MEMBERS);
            return -1;
        }
        /* Keys are unique.  With at most 32 of them comparing all pairs is cheap. */
        for (int i = 0; i < n; i++)
            if (same_key(&v[i], m.key, m.n_key)) {
                err_set(err, TINKER_EINVAL, "a tracestate has the key %.*s twice", (int)m.n_key,
                        m.key);
                return -1;
            }
        v[n++] = m;
    }
    if (got < 0)
        err_set(err, TINKER_EINVAL, "member %d of a tracestate is malformed", n + 1);
    return got < 0 ? -1 : n;
}

int tinker_tracestate_count(const char *tracestate, tinker_error *err)
{
    struct member v[TINKER_TRACESTATE_MEMBERS];
    return read_members(tracestate ? tracestate : "", v, err);
}

/* Like snprintf(): the length of the value, of which out may hold only a part. */
int tinker_tracestate_get(const char *tracestate, const char *key, char *out, size_t n)
{
    struct member v[TINKER_TRACESTATE_MEMBERS];
    int members = read_members(tracestate ? tracestate : "", v, NULL);
    for (int i = 0; i < members; i++)
        if (same_key(&v[i], key, strlen(key))) {
            snprintf(out, n, "%.*s", (int)v[i].n_value, v[i].value);
            return (int)v[i].n_value;
        }
    return -1;
}

/* Append a member if there is room for it. */
static bool append_member(char *out, size_t n, size_t *len, const struct member *m)
{
    size_t need = m->n_key + 1 + m->n_value + (*len > 0);
    if (need >= n - *len)
        return false;
    *len += (size_t)snprintf(out + *len, n - *len, "%s%.*s=%.*s", *len ? "," : "", (int)m->n_key,
                             m->key, (int)m->n_value, m->value);
    return true;
}

/* The member that was changed last stands first; when the list gets too long, members at its
 * end are dropped, as the specification asks. */
tinker_status tinker_tracestate_put(const char *tracestate, const char *key, const char *value,
                                    char *out, size_t n, tinker_error *err)
{
    struct member v[TINKER_TRACESTATE_MEMBERS];
    struct member own = { key, value, strlen(key), value ? strlen(value) : 0 };
    int members = read_members(tracestate ? tracestate : "", v, err);
    if (members < 0)
        return TINKER_EINVAL;
    if (!is_key(key, own.n_key) || (value && !is_value(value, own.n_value)))
        return err_set(err, TINKER_EINVAL, "not a key and value of a tracestate");
    if (n == 0)
        return err_set(err, TINKER_EINVAL, "no room for a tracestate");
    size_t len = 0;
    int count = 0;
    out[0] = '\0';
    if (value && !append_member(out, n, &len, &own))
        return err_set(err, TINKER_EINVAL, "no room for the new member of a tracestate");
    count += value != NULL;
    for (int i = 0; i < members && count < TINKER_TRACESTATE_MEMBERS; i++) {
        if (same_key(&v[i], key, own.n_key))
            continue;
        if (!append_member(out, n, &len, &v[i]))
            break;
        count++;
    }
    return TINKER_OK;
}
