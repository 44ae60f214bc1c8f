/* Dates to and from text. */
#include "support/tap.h"

#include "wire/timestamp.h"

static void test_parse(void)
{
    static const struct {
        const char *text;
        int64_t us;
        int naive;
    } cases[] = {
        { "1970-01-01T00:00:00Z", 0, 0 },
        { "2026-08-09T10:11:12.345678Z", INT64_C(1786270272345678), 0 },
        { "2026-08-09t10:11:12.3z", INT64_C(1786270272300000), 0 },
        { "2026-08-09 10:11:12.1234567+00:00", INT64_C(1786270272123456), 0 },
        { "2026-08-09_12:11:12+0200", INT64_C(1786270272000000), 0 },
        { "2026-08-09T05:11:12-05", INT64_C(1786270272000000), 0 },
        { "2026-08-09T10:11", INT64_C(1786270260000000), 1 },
        { "2026-08-09T10:11:12", INT64_C(1786270272000000), 1 },
        { "2026-08-09", INT64_C(1786233600000000), 1 },
        { "2024-02-29T00:00:00Z", INT64_C(1709164800000000), 0 },
        { "0001-01-01T00:00:00Z", INT64_C(-62135596800000000), 0 },
        { "0001-01-01T00:00:00+01:00", INT64_C(-62135596800000000), 0 },
        { "9999-12-31T23:59:59.999999Z", INT64_C(253402300799999999), 0 },
        { "9999-12-31T23:59:59-08:00", INT64_C(253402300799999999), 0 },
        { "1969-12-31T23:59:59.5Z", -500000, 0 },
        { "1786270272", INT64_C(1786270272000000), 0 },
        { "1786270272.25", INT64_C(1786270272250000), 0 },
        { "1786270272345", INT64_C(1786270272345000), 0 }, /* milliseconds above 2e10 */
        { "17862702729258", INT64_C(17862702729258000), 0 },
        { "253402300799000", INT64_C(253402300799000000), 0 },
        { "-62135596800000", INT64_C(-62135596800000000), 0 },
        { "-1.5", -1500000, 0 },
        { "+3", 3000000, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_time t = { 0 };
        if (!wire_time_parse(cases[i].text, strlen(cases[i].text), &t))
            TAP_FAIL("%s was refused", cases[i].text);
        CHECK_INT(t.has, 1);
        CHECK_INT(t.us, cases[i].us);
        CHECK_INT(t.naive, cases[i].naive);
        char text[WIRE_TIME_TEXT];
        struct wire_time back = { 0 };
        wire_time_format(t, text);
        CHECK(wire_time_parse(text, strlen(text), &back) && back.us == t.us);
    }
}

static void test_parse_refused(void)
{
    static const char *const bad[] = { "",
                                       "2026-13-01T00:00:00Z",
                                       "2026-02-29T00:00:00Z",
                                       "1900-02-29T00:00:00Z",
                                       "2026-08-09T24:00:00Z",
                                       "2026-08-09T10:60:00Z",
                                       "2026-08-09T10:11:12.Z",
                                       "2026-08-09T10:11:12Zx",
                                       "2026-08-09T10:11:12+25:00",
                                       "2026-08-09X10:11:12Z",
                                       "2026-8-09T10:11:12Z",
                                       "0000-01-01T00:00:00Z",
                                       "yesterday",
                                       "1e9",
                                       "-",
                                       "99999999999999999999",
                                       "2026-08-09T" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct wire_time t;
        if (wire_time_parse(bad[i], strlen(bad[i]), &t))
            TAP_FAIL("%s was accepted", bad[i]);
    }
    struct wire_time t;
    CHECK(!wire_time_from_number(NAN, &t));
    CHECK(!wire_time_from_number(1e300, &t));
}

static void test_format(void)
{
    char out[WIRE_TIME_TEXT];
    wire_time_format((struct wire_time){ 1, false, INT64_C(1786270272345678) }, out);
    CHECK_STR(out, "2026-08-09T10:11:12.345678Z");
    wire_time_format((struct wire_time){ 1, false, INT64_C(1786270272000000) }, out);
    CHECK_STR(out, "2026-08-09T10:11:12Z");
    wire_time_format((struct wire_time){ 1, true, INT64_C(1786270272000100) }, out);
    CHECK_STR(out, "2026-08-09T10:11:12.000100");
    wire_time_format((struct wire_time){ 1, false, -1 }, out);
    CHECK_STR(out, "1969-12-31T23:59:59.999999Z");
    /* every day of 400 years and two leap rules survives the round trip */
    for (int64_t day = -135140; day < 11000; day += 1) {
        struct wire_time t = { 1, false, day * INT64_C(86400000000) }, back;
        wire_time_format(t, out);
        if (!wire_time_parse(out, strlen(out), &back) || back.us != t.us) {
            TAP_FAIL("%s came back as another day", out);
            return;
        }
    }
}

static void test_http_dates(void)
{
    struct wire_time t;
    CHECK(wire_time_parse_http("Sun, 09 Aug 2026 11:00:00 GMT", &t));
    CHECK_INT(t.us, INT64_C(1786273200000000));
    CHECK_INT(t.naive, 0);
    CHECK(wire_time_parse_http("09 Aug 2026 13:00:00 +0200", &t));
    CHECK_INT(t.us, INT64_C(1786273200000000));
    CHECK(!wire_time_parse_http("Sunday", &t));
    CHECK(!wire_time_parse_http("Sun, 31 Feb 2026 11:00:00 GMT", &t));
    CHECK(!wire_time_parse_http("0", &t));
    CHECK(!wire_time_parse_http("Sun, 09 Aug 2026 11:00:00", &t));
}

static void test_durations(void)
{
    char out[WIRE_TIME_TEXT];
    wire_duration_format(3654322, out);
    CHECK_STR(out, "0:00:03.654322");
    wire_duration_format(INT64_C(93784000000), out);
    CHECK_STR(out, "1 day, 2:03:04");
    wire_duration_format(INT64_C(2) * 86400000000, out);
    CHECK_STR(out, "2 days, 0:00:00");
    wire_duration_format(0, out);
    CHECK_STR(out, "0:00:00");
    wire_duration_format(-1, out);
    CHECK_STR(out, "-1 day, 23:59:59.999999");
}

int main(void)
{
    RUN(test_parse);
    RUN(test_parse_refused);
    RUN(test_format);
    RUN(test_http_dates);
    RUN(test_durations);
    return tap_done();
}
