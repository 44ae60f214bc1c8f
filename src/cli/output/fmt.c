/* fmt.c - see fmt.h. */
#include "cli/output/fmt.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <tinker/rest.h>
#include "base/clock.h"
#include "cli/command.h"

enum { MICROS = 1000000, MINUTE = 60, HOUR = 3600, DAY = 86400 };

/* Units of 1024 with one decimal, as the official program prints them. */
const char *fmt_size(int64_t bytes, char out[FMT_TEXT])
{
    static const char *const units[] = { "KB", "MB", "GB", "TB", "PB", "EB" };
    if (bytes < 0) {
        snprintf(out, FMT_TEXT, "N/A");
    } else if (bytes < 1024) {
        snprintf(out, FMT_TEXT, "%d B", (int)bytes);
    } else {
        double v = (double)bytes / 1024;
        size_t unit = 0;
        for (; v >= 1024 && unit < 5; unit++)
            v /= 1024;
        snprintf(out, FMT_TEXT, "%.1f %s", v, units[unit]);
    }
    return out;
}

/* ---- times out ------------------------------------------------------------------- */

/* Rounds toward minus infinity, for times before 1970. */
static int64_t divide_floor(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Not by nanoseconds: they end in the year 2262, and a service may say 9999 for never. */
const char *fmt_rfc3339(int64_t us, char out[FMT_TEXT])
{
    int64_t s = divide_floor(us, MICROS);
    int fraction = (int)(us - s * MICROS);
    time_t t = (time_t)s;
    struct tm tm = { 0 };
    gmtime_r(&t, &tm);
    int n = snprintf(out, FMT_TEXT, "%04lld-%02d-%02dT%02d:%02d:%02d", tm.tm_year + 1900LL,
                     tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    if (fraction)
        snprintf(out + n, (size_t)(FMT_TEXT - n), ".%06dZ", fraction);
    else
        snprintf(out + n, (size_t)(FMT_TEXT - n), "Z");
    return out;
}

/* "3 days ago", "in 1 hour". */
static void put_units(char *out, int64_t n, const char *unit, bool future)
{
    snprintf(out, FMT_TEXT, "%s%lld %s%s%s", future ? "in " : "", (long long)n, unit,
             n > 1 ? "s" : "", future ? "" : " ago");
}

/* The limits are those of the official program: weeks up to 30 days, then the date. "> HOUR",
 * not ">=": 60 minutes are still minutes there. */
const char *fmt_relative(int64_t us, int64_t now_us, char out[FMT_TEXT])
{
    if (us == TINKER_NO_TIME) {
        snprintf(out, FMT_TEXT, "N/A");
        return out;
    }
    char date[FMT_TEXT];
    bool future = us > now_us;
    int64_t seconds = (future ? us - now_us : now_us - us) / MICROS, days = seconds / DAY;
    if (days > 30)
        snprintf(out, FMT_TEXT, "%.*s", (int)strcspn(fmt_rfc3339(us, date), "T"), date);
    else if (days > 7)
        put_units(out, days / 7, "week", future);
    else if (days > 0)
        put_units(out, days, "day", future);
    else if (seconds > HOUR)
        put_units(out, seconds / HOUR, "hour", future);
    else if (seconds > MINUTE)
        put_units(out, seconds / MINUTE, "minute", future);
    else
        snprintf(out, FMT_TEXT, future ? "in less than a minute" : "just now");
    return out;
}

/* `none` is returned as it is; other texts are in `out`. */
const char *fmt_cell_time(int64_t us, const char *none, char out[FMT_TEXT])
{
    if (us == TINKER_NO_TIME)
        return none;
    /* A file is read later: times in it are absolute. */
    bool file = strcmp(globals.format, "csv") == 0 || strcmp(globals.format, "tsv") == 0;
    if (strcmp(globals.time_format, "rfc3339") == 0 ||
        (file && strcmp(globals.time_format, "relative") == 0))
        return fmt_rfc3339(us, out);
    if (strcmp(globals.time_format, "unix") == 0) {
        snprintf(out, FMT_TEXT, "%lld", (long long)divide_floor(us, MICROS));
        return out;
    }
    return fmt_relative(us, clock_wall_ns(clock_real()) / 1000, out);
}

/* --time-format unix gives a number with fraction, the others a string, no time null. */
void fmt_json_time(struct json_writer *w, int64_t us)
{
    char text[FMT_TEXT], python[FMT_TEXT];
    if (us == TINKER_NO_TIME) {
        json_put_null(w);
    } else if (strcmp(globals.time_format, "unix") == 0) {
        json_put_double(w, (double)us / MICROS);
    } else if (strcmp(globals.time_format, "rfc3339") == 0) {
        json_put_string(w, fmt_rfc3339(us, text));
    } else {
        /* str() of a Python datetime, as the official program prints it:
         * "2026-08-09 10:11:12.345678+00:00" */
        fmt_rfc3339(us, text);
        text[strcspn(text, "T")] = ' ';
        snprintf(python, sizeof(python), "%.*s+00:00", (int)strcspn(text, "Z"), text);
        json_put_string(w, python);
    }
}

/* ---- dates in --------------------------------------------------------------------- */

/* Exactly `digits` digits at *s. On success *s is behind them, as in all of these. */
static bool parse_digits(const char **s, int digits, int *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, (*s)++) {
        if (!isdigit((unsigned char)**s))
            return false;
        *out = *out * 10 + (**s - '0');
    }
    return true;
}

/* Skip one character if it is c. */
static bool skip_char(const char **s, char c)
{
    if (**s != c)
        return false;
    (*s)++;
    return true;
}

/* Up to six digits behind a point, as microseconds: ".5" is 500000. */
static bool parse_fraction(const char **s, int *micros)
{
    int digits = 0;
    for (*micros = 0; isdigit((unsigned char)**s) && digits < 6; (*s)++, digits++)
        *micros = *micros * 10 + (**s - '0');
    if (digits == 0)
        return false;
    for (; digits < 6; digits++)
        *micros *= 10;
    return true;
}

/* HH:MM[:SS[.fraction]]. A leap second, :60, is refused. */
static bool parse_clock_time(const char **s, int *seconds, int *micros)
{
    int h, m, sec = 0;
    if (!parse_digits(s, 2, &h) || !skip_char(s, ':') || !parse_digits(s, 2, &m))
        return false;
    if (skip_char(s, ':') && !parse_digits(s, 2, &sec))
        return false;
    if (h > 23 || m > 59 || sec > 59 || (skip_char(s, '.') && !parse_fraction(s, micros)))
        return false;
    *seconds = h * HOUR + m * MINUTE + sec;
    return true;
}

/* "Z", "+HH:MM", "-HH:MM" or nothing, which is UTC; *offset in seconds east of Greenwich. */
static bool parse_zone(const char **s, int *offset)
{
    int sign = **s == '-' ? -1 : 1, hours, minutes;
    *offset = 0;
    if (skip_char(s, 'Z') || skip_char(s, 'z') || !**s)
        return true;
    if (!skip_char(s, '+') && !skip_char(s, '-'))
        return false;
    if (!parse_digits(s, 2, &hours) || !skip_char(s, ':') || !parse_digits(s, 2, &minutes) ||
        hours > 23 || minutes > 59)
        return false;
    *offset = sign * (hours * HOUR + minutes * MINUTE);
    return true;
}

/* Gregorian calendar. */
static int count_month_days(int year, int month)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

/* March is month 0, so that the leap day comes last and the month lengths follow (153 m + 2) /
 * 5. 719468 days lie between 0000-03-01 and 1970-01-01. */
static int64_t count_days_since_1970(int year, int month, int day)
{
    int64_t y = year - (month <= 2);
    int64_t from_march = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return y * 365 + y / 4 - y / 100 + y / 400 + from_march - 719468;
}

/* Every character must be used: "2024-01-01x" is no date. us = (days * 86400 + seconds -
 * offset) * 10^6 + fraction. */
bool fmt_read_date(const char *text, int64_t *us)
{
    char copy[64];
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    if (n >= sizeof(copy))
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;

    const char *s = copy;
    int year, month, day, micros = 0, offset = 0, seconds = 0;
    if (!parse_digits(&s, 4, &year) || !skip_char(&s, '-') || !parse_digits(&s, 2, &month) ||
        !skip_char(&s, '-') || !parse_digits(&s, 2, &day) || year < 1 || month < 1 || month > 12 ||
        day < 1 || day > count_month_days(year, month))
        return false;
    if ((skip_char(&s, 'T') || skip_char(&s, 't') || skip_char(&s, ' ')) &&
        !(parse_clock_time(&s, &seconds, &micros) && parse_zone(&s, &offset)))
        return false;
    if (*s)
        return false;
    *us = (count_days_since_1970(year, month, day) * DAY + seconds - offset) * MICROS + micros;
    return true;
}
