/* timestamp.c - dates to and from text, without the C library's time zone state.
 *
 * Days are counted with the proleptic Gregorian calendar.  Years 1 to 9999, as the
 * reference's datetime type has them. */
#include "wire/timestamp.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* All times are microseconds since 1970 UTC, without leap seconds, as Python counts them. The
 * limits are the first microsecond of year 1 and the last one of year 9999. */
static const int64_t US = 1000000;
static const int64_t DAY_US = INT64_C(86400) * 1000000;
static const int64_t FIRST_US = INT64_C(-62135596800) * 1000000; /* of year 1 */
static const int64_t LAST_US = INT64_C(253402300800) * 1000000 - 1;

/* Days from 1970-01-01; the year starts in March so that leap days come last. An era is 400 years,
 * 146097 days; yoe and doe count years and days in it, doy the days in the year; (153 * m + 2) / 5
 * is the number of days before month m, counted from March (H. Hinnant, "chrono-compatible
 * low-level date algorithms"). */
static int64_t days_from_date(int64_t y, int m, int d)
{
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t yoe = y - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    int64_t doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    /* 719468 days lie between 0000-03-01, where the eras begin, and 1970-01-01. */
    return era * 146097 + doe - 719468;
}

/* The reverse, with the same names. */
static void date_from_days(int64_t days, int64_t *y, int *m, int *d)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    int64_t doe = days - era * 146097;
    /* Take the leap days out, so that every year has 365: one after each 4 years (1460 days), but
     * not after 100 (36524), and again after 400 (146096). */
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    /* Five months from March or from August have 153 days; mp is 0 in March. */
    int64_t mp = (5 * doy + 2) / 153;
    *d = (int)(doy - (153 * mp + 2) / 5 + 1);
    *m = (int)(mp < 10 ? mp + 3 : mp - 9);
    *y = yoe + era * 400 + (*m <= 2);
}

/* Division that rounds down, before 1970 too; b > 0. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* RFC 3339 with six digits or none, as the reference writes it; naive: without a zone. */
void wire_time_format(struct wire_time t, char out[WIRE_TIME_TEXT])
{
    int64_t days = floor_div(t.us, DAY_US), in_day = t.us - days * DAY_US, y;
    /* Any int64 fits: with a year of six digits and a sign the text is 30 bytes long. */
    int m, d, n;
    date_from_days(days, &y, &m, &d);
    int sec = (int)(in_day / US), us = (int)(in_day % US);
    n = snprintf(out, WIRE_TIME_TEXT, "%04d-%02d-%02dT%02d:%02d:%02d", (int)y, m, d, sec / 3600,
                 sec / 60 % 60, sec % 60);
    if (us)
        n += snprintf(out + n, WIRE_TIME_TEXT - (size_t)n, ".%06d", us);
    if (!t.naive)
        snprintf(out + n, WIRE_TIME_TEXT - (size_t)n, "Z");
}

/* ---- reading --------------------------------------------------------------------- */

/* What is left of the text; every reader below moves p. */
struct scan {
    const char *p, *end;
};

/* Exactly `count` digits. */
static bool scan_digits(struct scan *s, int count, int *out)
{
    int v = 0;
    for (int i = 0; i < count; i++, s->p++) {
        if (s->p == s->end || !isdigit((unsigned char)*s->p))
            return false;
        v = v * 10 + (*s->p - '0');
    }
    *out = v;
    return true;
}

/* Step over c, if it is next. */
static bool skip_char(struct scan *s, char c)
{
    bool ok = s->p < s->end && *s->p == c;
    s->p += ok;
    return ok;
}

/* Gregorian: every fourth year, but of the hundreds only every fourth. */
static int days_in_month(int y, int m)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return days[m - 1] + (m == 2 && leap);
}

/* yyyy-mm-dd, the only form of a date that services write. */
static bool read_date(struct scan *s, int64_t *days)
{
    int y, m, d;
    if (!scan_digits(s, 4, &y) || !skip_char(s, '-') || !scan_digits(s, 2, &m) ||
        !skip_char(s, '-') || !scan_digits(s, 2, &d))
        return false;
    /* Not only two digits: 2026-02-30 is no date. */
    if (y < 1 || m < 1 || m > 12 || d < 1 || d > days_in_month(y, m))
        return false;
    *days = days_from_date(y, m, d);
    return true;
}

/* hh:mm[:ss[.fraction]]; digits after the sixth are dropped */
static bool read_clock(struct scan *s, int64_t *us)
{
    int h, m, sec = 0, fraction = 0, n = 0;
    if (!scan_digits(s, 2, &h) || !skip_char(s, ':') || !scan_digits(s, 2, &m) || h > 23 || m > 59)
        return false;
    if (skip_char(s, ':')) {
        /* RFC 3339 knows a leap second :60; datetime of the reference does not. */
        if (!scan_digits(s, 2, &sec) || sec > 59)
            return false;
        /* ISO 8601 allows both signs, RFC 3339 only the first. */
        if (skip_char(s, '.') || skip_char(s, ',')) {
            for (; s->p < s->end && isdigit((unsigned char)*s->p); s->p++, n++)
                if (n < 6)
                    fraction = fraction * 10 + (*s->p - '0');
            if (n == 0)
                return false;
            for (; n < 6; n++)
                fraction *= 10;
        }
    }
    *us = (h * INT64_C(3600) + m * 60 + sec) * US + fraction;
    return true;
}

/* Z, +hh:mm, +hhmm, +hh, or nothing */
static bool read_offset(struct scan *s, struct wire_time *out)
{
    if (s->p == s->end) {
        out->naive = true;
        return true;
    }
    if (skip_char(s, 'Z') || skip_char(s, 'z'))
        return s->p == s->end;
    bool minus = skip_char(s, '-');
    int h, m = 0;
    if ((!minus && !skip_char(s, '+')) || !scan_digits(s, 2, &h))
        return false;
    if (s->p < s->end) {
        skip_char(s, ':');
        if (!scan_digits(s, 2, &m))
            return false;
    }
    if (h > 23 || m > 59 || s->p != s->end)
        return false;
    int64_t us = (h * INT64_C(3600) + m * 60) * US;
    /* Local time minus the offset is UTC. "-00:00", an unknown zone in RFC 3339, is UTC, too. */
    out->us += minus ? us : -us;
    /* the last day of all, west of Greenwich: there is no text for it in UTC */
    out->us = out->us < FIRST_US ? FIRST_US : out->us > LAST_US ? LAST_US : out->us;
    return true;
}

/* Seconds since 1970, or milliseconds: 2e10 seconds would be the year 2603. */
bool wire_time_from_number(double v, struct wire_time *out)
{
    if (!isfinite(v))
        return false;
    int64_t unit = fabs(v) > 2e10 ? 1000 : US; /* milliseconds, as the reference guesses */
    /* Compared as doubles first: converting one that no int64 can hold is undefined (C11,
     * 6.3.1.4). */
    double most = (double)(LAST_US / US) * (double)(US / unit);
    if (v < (double)(FIRST_US / unit) || v > most)
        return false;
    /* Seconds and fraction apart: the product of all would lose microseconds. */
    double whole = floor(v);
    *out = (struct wire_time){ .has = 1, .us = (int64_t)whole * unit };
    out->us += (int64_t)((v - whole) * (double)unit + 0.5);
    return true;
}

/* [+-]digits[.digits] as a number of seconds; false when it is no such text. */
static bool read_number(const char *s, size_t n, struct wire_time *out)
{
    double v = 0, scale = 1;
    bool minus = n && s[0] == '-', sign = minus || (n && s[0] == '+'), dot = false, any = false;
    for (size_t i = sign; i < n; i++) {
        if (s[i] == '.' && !dot) {
            dot = true;
            continue;
        }
        /* Longer ones are no times; the bound keeps scale finite. */
        if (!isdigit((unsigned char)s[i]) || n > 32)
            return false;
        any = true;
        v = v * 10 + (s[i] - '0');
        scale = dot ? scale * 10 : scale;
    }
    return any && wire_time_from_number((minus ? -v : v) / scale, out);
}

/* The forms of RFC 3339, and what the reference's parser takes beside them: a blank or _ for T, a
 * date alone, minutes without seconds, a number. */
bool wire_time_parse(const char *s, size_t n, struct wire_time *out)
{
    struct scan in = { s, s + n };
    int64_t days, us = 0;
    /* A number as text is a number: the reference's parser takes both. */
    if (read_number(s, n, out))
        return true;
    *out = (struct wire_time){ .has = 1 };
    if (!read_date(&in, &days))
        return false;
    /* A date alone is its midnight. */
    if (in.p == in.end) {
        out->naive = true;
        out->us = days * DAY_US;
        return true;
    }
    if (!skip_char(&in, 'T') && !skip_char(&in, 't') && !skip_char(&in, ' ') &&
        !skip_char(&in, '_'))
        return false;
    if (!read_clock(&in, &us))
        return false;
    out->us = days * DAY_US + us;
    return read_offset(&in, out);
}

/* Retry-After and Date (RFC 9110, 5.6.7).  Only the form that servers send today; the two obsolete
 * ones are refused. */
bool wire_time_parse_http(const char *s, struct wire_time *out)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    /* "Sun, 06 Nov 1994 08:49:37 GMT"; the name of the day is not checked. */
    const char *comma = strchr(s, ',');
    struct scan in = { comma ? comma + 1 : s, s + strlen(s) };
    int d, y, m = 0;
    int64_t us;
    while (skip_char(&in, ' ')) {
    }
    if (!scan_digits(&in, 2, &d) || !skip_char(&in, ' ') || in.end - in.p < 3)
        return false;
    while (m < 12 && strncasecmp(months + 3 * m, in.p, 3) != 0)
        m++;
    in.p += 3;
    if (m == 12 || !skip_char(&in, ' ') || !scan_digits(&in, 4, &y) || !skip_char(&in, ' '))
        return false;
    if (y < 1 || d < 1 || d > days_in_month(y, m + 1) || !read_clock(&in, &us))
        return false;
    while (skip_char(&in, ' ')) {
    }
    *out = (struct wire_time){ .has = 1, .us = days_from_date(y, m + 1, d) * DAY_US + us };
    /* HTTP dates are always GMT; "UTC" and offsets as in mail are tolerated. */
    if (in.end - in.p == 3 && (strncmp(in.p, "GMT", 3) == 0 || strncmp(in.p, "UTC", 3) == 0))
        return true;
    if (in.p == in.end || *in.p == 'Z' || !read_offset(&in, out))
        return false;
    return true;
}

/* As Python prints a timedelta: days are rounded down, so -1 us is "-1 day, 23:59:59.999999" and
 * the rest is never negative. */
void wire_duration_format(int64_t us, char out[WIRE_TIME_TEXT])
{
    int64_t days = floor_div(us, DAY_US), rest = us - days * DAY_US;
    int sec = (int)(rest / US), n = 0;
    if (days)
        n = snprintf(out, WIRE_TIME_TEXT, "%lld day%s, ", (long long)days,
                     days == 1 || days == -1 ? "" : "s");
    n += snprintf(out + n, WIRE_TIME_TEXT - (size_t)n, "%d:%02d:%02d", sec / 3600, sec / 60 % 60,
                  sec % 60);
    if (rest % US)
        snprintf(out + n, WIRE_TIME_TEXT - (size_t)n, ".%06d", (int)(rest % US));
}
