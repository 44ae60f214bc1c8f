/* Sizes, times and dates: the vectors of the reference. */
#include <string.h>
#include <tinker/rest.h>
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "support/tap.h"

static const int64_t NOW = 1762346096000000; /* 2025-11-05T12:34:56Z */
enum { MINUTE = 60, HOUR = 3600, DAY = 86400 };

static void test_d2_sizes(void)
{
    static const struct {
        int64_t bytes;
        const char *text;
    } cases[] = {
        { 0, "0 B" },
        { 500, "500 B" },
        { 1023, "1023 B" },
        { 1024, "1.0 KB" },
        { 1536, "1.5 KB" },
        { 1048575, "1024.0 KB" },
        { 1572864, "1.5 MB" },
        { 1610612736, "1.5 GB" },
        { 1649267441664, "1.5 TB" },
        { INT64_MAX, "8.0 EB" },
        { -1, "N/A" },
    };
    char out[FMT_TEXT];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_STR(fmt_size(cases[i].bytes, out), cases[i].text);
}

static void check_relative(int64_t seconds, const char *text)
{
    char out[FMT_TEXT];
    CHECK_STR(fmt_relative(NOW + seconds * 1000000, NOW, out), text);
}

static void test_d2_relative_times(void)
{
    char out[FMT_TEXT];
    CHECK_STR(fmt_relative(TINKER_NO_TIME, NOW, out), "N/A");
    check_relative(0, "just now");
    check_relative(-60, "just now");
    check_relative(-61, "1 minute ago");
    check_relative(-HOUR, "60 minutes ago");
    check_relative(-HOUR - 1, "1 hour ago");
    check_relative(-DAY + 1, "23 hours ago");
    check_relative(-DAY, "1 day ago");
    check_relative(-7 * DAY, "7 days ago");
    check_relative(-8 * DAY, "1 week ago");
    check_relative(-13 * DAY, "1 week ago");
    check_relative(-30 * DAY, "4 weeks ago");
    check_relative(-31 * DAY, "2025-10-05");
    check_relative(30, "in less than a minute");
    check_relative(2 * HOUR + 5 * MINUTE, "in 2 hours");
    check_relative(3 * DAY, "in 3 days");
    check_relative(40 * DAY, "2025-12-15");
}

/* "Never" may be the year 9999, which nanoseconds cannot count. */
static void test_far_away(void)
{
    static const int64_t end = 253402300799000000;
    char out[FMT_TEXT];
    CHECK_STR(fmt_rfc3339(end, out), "9999-12-31T23:59:59Z");
    CHECK_STR(fmt_rfc3339(end + 5, out), "9999-12-31T23:59:59.000005Z");
    CHECK_STR(fmt_relative(end, NOW, out), "9999-12-31");
    CHECK_STR(fmt_rfc3339(-1, out), "1969-12-31T23:59:59.999999Z");
}

static void test_json_times(void)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1024);
    json_writer_init(&w, &b);
    json_put_begin_array(&w);
    fmt_json_time(&w, NOW);
    fmt_json_time(&w, NOW + 789012);
    fmt_json_time(&w, TINKER_NO_TIME);
    globals.time_format = "rfc3339";
    fmt_json_time(&w, NOW + 789012);
    globals.time_format = "relative";
    json_put_end_array(&w);
    CHECK_STR(b.data, "[\"2025-11-05 12:34:56+00:00\",\"2025-11-05 12:34:56.789012+00:00\",null,"
                      "\"2025-11-05T12:34:56.789012Z\"]");
    buf_clear(&b);
}

static void test_dates(void)
{
    static const struct {
        const char *text;
        int64_t us; /* -1: refused */
    } cases[] = {
        { "1970-01-01", 0 },
        { "2025-11-05T12:34:56Z", 1762346096000000 },
        { " 2025-11-05 12:34:56 ", 1762346096000000 },
        { "2025-11-05T12:34", 1762346040000000 },
        { "2025-11-05T13:34:56+01:00", 1762346096000000 },
        { "2025-11-05T11:04:56-01:30", 1762346096000000 },
        { "2025-11-05T12:34:56.5", 1762346096500000 },
        { "2024-02-29", 1709164800000000 },
        { "2000-03-01", 951868800000000 },
        { "2023-02-29", -1 },
        { "2024-13-01", -1 },
        { "2024-01-00", -1 },
        { "2024-01-01T24:00", -1 },
        { "2024-01-01T12:00:00.", -1 },
        { "2024-01-01Tx", -1 },
        { "2024-01-01T12:00+1:00", -1 },
        { "01/15/2024", -1 },
        { "not-a-date", -1 },
        { "", -1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t us = -1;
        CHECK_INT(fmt_read_date(cases[i].text, &us) ? us : -1, cases[i].us);
    }
}

int main(void)
{
    RUN(test_d2_sizes);
    RUN(test_d2_relative_times);
    RUN(test_far_away);
    RUN(test_json_times);
    RUN(test_dates);
    return tap_done();
}
