/* W3C trace context: the examples of the specification, and what its test suite refuses. */
#include <tinker/tinker.h>
#include <tinker/extra/trace.h>
#include "support/tap.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static void test_examples(void)
{
    static const struct {
        const char *text;
        const char *trace, *parent;
        unsigned flags;
        const char *again; /* formatted */
    } cases[] = {
        { "00-" TRACE "-" PARENT "-01", TRACE, PARENT, 1, "00-" TRACE "-" PARENT "-01" },
        { "00-" TRACE "-" PARENT "-00", TRACE, PARENT, 0, "00-" TRACE "-" PARENT "-00" },
        { "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
          "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1,
          "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" },
        /* flags of the future are read and not passed on */
        { "00-" TRACE "-" PARENT "-ff", TRACE, PARENT, 0xff, "00-" TRACE "-" PARENT "-03" },
        /* so are versions of the future */
        { "cc-" TRACE "-" PARENT "-01", TRACE, PARENT, 1, "00-" TRACE "-" PARENT "-01" },
        { "cc-" TRACE "-" PARENT "-01-what-the-future-will-be-like", TRACE, PARENT, 1,
          "00-" TRACE "-" PARENT "-01" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_trace t;
        tinker_error err;
        char out[TINKER_TRACEPARENT_SIZE];
        if (tinker_trace_parse(cases[i].text, &t, &err) != TINKER_OK) {
            TAP_FAIL("%s: %s", cases[i].text, err.message);
            continue;
        }
        CHECK_STR(t.trace_id, cases[i].trace);
        CHECK_STR(t.parent_id, cases[i].parent);
        CHECK_INT(t.flags, cases[i].flags);
        CHECK_INT(tinker_trace_format(&t, out, &err), TINKER_OK);
        CHECK_STR(out, cases[i].again);
    }
}

static void test_refused(void)
{
    static const char *const bad[] = {
        "",
        "00",
        "00-" TRACE "-" PARENT,
        "00-" TRACE "-" PARENT "-",
        "00-" TRACE "-" PARENT "-0",
        "00-" TRACE "-" PARENT "-1x",
        "00-" TRACE "-" PARENT "-0A",
        "00-" TRACE "-" PARENT "-01 ",
        " 00-" TRACE "-" PARENT "-01",
        "00-" TRACE "-" PARENT "-01-",
        "00-" TRACE "-" PARENT "-01-what-the-future-will-be-like",
        "00-" TRACE "-" PARENT "-01.",
        "cc-" TRACE "-" PARENT "-01.what-the-future-will-not-be-like",
        "cc-" TRACE "-" PARENT "-0101",
        "ff-" TRACE "-" PARENT "-01",
        "0-" TRACE "-" PARENT "-01",
        ".0-" TRACE "-" PARENT "-01",
        "000-" TRACE "-" PARENT "-01",
        "0A-" TRACE "-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-.bf92f3577b34da6a3ce929d0e0e4736-" PARENT "-01",
        "00-bf92f3577b34da6a3ce929d0e0e4736-" PARENT "-01",
        "00-44bf92f3577b34da6a3ce929d0e0e4736-" PARENT "-01",
        "00-" TRACE "-0F067aa0ba902b7a-01",
        "00-" TRACE "-0f067aa0ba902b7-01",
        "00-" TRACE "-.0f067aa0ba902b7-01",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "_" PARENT "-01",
        "00-" TRACE "-" PARENT "_01",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        tinker_trace t = { .flags = 77 };
        tinker_error err = { 0 };
        if (tinker_trace_parse(bad[i], &t, &err) != TINKER_EINVAL || !err.message[0])
            TAP_FAIL("\"%s\" is taken", bad[i]);
        CHECK_INT(t.flags, 77);
    }
    CHECK_INT(tinker_trace_parse(NULL, NULL, NULL), TINKER_EINVAL);
    tinker_trace t = { "", PARENT, 0 };
    char out[TINKER_TRACEPARENT_SIZE];
    CHECK_INT(tinker_trace_format(&t, out, NULL), TINKER_EINVAL);
    memset(t.trace_id, 'a', sizeof(t.trace_id)); /* without an end */
    CHECK_INT(tinker_trace_format(&t, out, NULL), TINKER_EINVAL);
}

static void test_children(void)
{
    tinker_trace root, child, other;
    tinker_error err;
    char out[TINKER_TRACEPARENT_SIZE];
    CHECK_INT(tinker_trace_child(NULL, &root, &err), TINKER_OK);
    CHECK_INT(root.flags, TINKER_TRACE_SAMPLED | TINKER_TRACE_RANDOM);
    CHECK_INT(tinker_trace_format(&root, out, &err), TINKER_OK);
    CHECK_INT(strlen(out), TINKER_TRACEPARENT_SIZE - 1);
    root.flags = 0;
    CHECK_INT(tinker_trace_child(&root, &child, &err), TINKER_OK);
    CHECK_STR(child.trace_id, root.trace_id);
    CHECK(strcmp(child.parent_id, root.parent_id) != 0);
    CHECK_INT(child.flags, 0);
    CHECK_INT(tinker_trace_child(&child, &child, &err), TINKER_OK); /* in place */
    CHECK_STR(child.trace_id, root.trace_id);
    CHECK_INT(tinker_trace_child(NULL, &other, &err), TINKER_OK);
    CHECK(strcmp(other.trace_id, root.trace_id) != 0);
}

static void test_states(void)
{
    char out[600];
    CHECK_INT(tinker_tracestate_count("rojo=" PARENT ",congo=t61rcWkgMzE", NULL), 2);
    CHECK_INT(tinker_tracestate_get("rojo=" PARENT ",congo=t61rcWkgMzE", "congo", out, 600), 11);
    CHECK_STR(out, "t61rcWkgMzE");
    CHECK_INT(tinker_tracestate_get("rojo=" PARENT ",congo=t61rcWkgMzE", "cong", out, 600), -1);
    CHECK_INT(tinker_tracestate_get("rojo=abcdef", "rojo", out, 3), 6);
    CHECK_STR(out, "ab");
    static const struct {
        const char *text;
        int n;
    } good[] = {
        { "", 0 },
        { ",", 0 },
        { "foo=1", 1 },
        { "foo=1,", 1 },
        { "foo=1 , bar=2", 2 },
        { "foo=1\t,\t,bar=2 ", 2 },
        { "foo= 1", 1 },
        { "a_-*/9=!\"#$~", 1 },
        { "fw529a3039@dt=FfAAAAAAAAA", 1 },
        { "0tenant@sys=1", 1 },
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        if (tinker_tracestate_count(good[i].text, NULL) != good[i].n)
            TAP_FAIL("\"%s\" has %d members", good[i].text,
                     tinker_tracestate_count(good[i].text, NULL));
    static const char *const bad[] = {
        "foo=1,foo=1", "foo=1,bar=2,foo=3",
        "foo@=1",      "@foo=1",
        "foo@@bar=1",  "foo@bar@baz=1",
        "foo",         "foo=",
        "=1",          "FOO=1",
        "0foo=1",      "foo =1",
        "foo.bar=1",   "foo=1=2",
        "fo o=1",      "foo=\x7f",
        "foo=\x01",    "foo=a\xc3\xa4",
        "foo@0bar=1",  "tenant@system-is-longer=1",
        "fOo=1",       "foO=1",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        tinker_error err = { 0 };
        if (tinker_tracestate_count(bad[i], &err) != -1 || err.status != TINKER_EINVAL)
            TAP_FAIL("\"%s\" is taken", bad[i]);
    }
}

static void test_limits_of_states(void)
{
    char text[20000], key[300], value[300];
    size_t at = 0;
    for (int i = 0; i < 32; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%sbar%02d=%02d", i ? "," : "", i, i);
    CHECK_INT(tinker_tracestate_count(text, NULL), 32);
    snprintf(text + at, sizeof(text) - at, ",one=more");
    CHECK_INT(tinker_tracestate_count(text, NULL), -1);
    memset(key, 'z', sizeof(key));
    memset(value, 'v', sizeof(value));
    key[256] = value[256] = '\0';
    snprintf(text, sizeof(text), "%s=%s", key, value);
    CHECK_INT(tinker_tracestate_count(text, NULL), 1);
    snprintf(text, sizeof(text), "%sz=%s", key, value);
    CHECK_INT(tinker_tracestate_count(text, NULL), -1);
    snprintf(text, sizeof(text), "%s=%sv", key, value);
    CHECK_INT(tinker_tracestate_count(text, NULL), -1);
    snprintf(text, sizeof(text), "%.241s@%.14s=1", key, key);
    CHECK_INT(tinker_tracestate_count(text, NULL), 1);
    snprintf(text, sizeof(text), "%.242s@%.14s=1", key, key);
    CHECK_INT(tinker_tracestate_count(text, NULL), -1);
    snprintf(text, sizeof(text), "%.241s@%.15s=1", key, key);
    CHECK_INT(tinker_tracestate_count(text, NULL), -1);
}

static void test_changing_states(void)
{
    char out[600], full[600];
    tinker_error err;
    /* the example of the specification: congo was there and comes to the front */
    CHECK_INT(tinker_tracestate_put("rojo=" PARENT ",congo=t61rcWkgMzE", "congo", "ucfJifl5GOE",
                                    out, sizeof(out), &err),
              TINKER_OK);
    CHECK_STR(out, "congo=ucfJifl5GOE,rojo=" PARENT);
    CHECK_INT(tinker_tracestate_put(" a=1 ,, b=2", "c", "3", out, sizeof(out), &err), TINKER_OK);
    CHECK_STR(out, "c=3,a=1,b=2");
    CHECK_INT(tinker_tracestate_put("a=1,b=2", "a", NULL, out, sizeof(out), &err), TINKER_OK);
    CHECK_STR(out, "b=2");
    CHECK_INT(tinker_tracestate_put(NULL, "a", "1", out, sizeof(out), &err), TINKER_OK);
    CHECK_STR(out, "a=1");
    CHECK_INT(tinker_tracestate_put("a=1,b=2", "c", "3", out, 9, &err), TINKER_OK);
    CHECK_STR(out, "c=3,a=1"); /* b=2 finds no room */
    CHECK_INT(tinker_tracestate_put("a=1", "c", "3", out, 3, &err), TINKER_EINVAL);
    CHECK_INT(tinker_tracestate_put("a=1", "C", "3", out, sizeof(out), &err), TINKER_EINVAL);
    CHECK_INT(tinker_tracestate_put("a=1", "c", "3,d=4", out, sizeof(out), &err), TINKER_EINVAL);
    CHECK_INT(tinker_tracestate_put("a", "c", "3", out, sizeof(out), &err), TINKER_EINVAL);
    size_t at = 0;
    for (int i = 0; i < 32; i++)
        at += (size_t)snprintf(full + at, sizeof(full) - at, "%sm%02d=1", i ? "," : "", i);
    CHECK_INT(tinker_tracestate_put(full, "new", "1", out, sizeof(out), &err), TINKER_OK);
    CHECK_INT(tinker_tracestate_count(out, NULL), 32);
    CHECK(strncmp(out, "new=1,m00=1,", 12) == 0 && !strstr(out, "m31"));
}

int main(void)
{
    RUN(test_examples);
    RUN(test_refused);
    RUN(test_children);
    RUN(test_states);
    RUN(test_limits_of_states);
    RUN(test_changing_states);
    return tap_done();
}
