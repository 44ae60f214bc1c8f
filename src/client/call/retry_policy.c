/* retry_policy.c - see retry_policy.h: one table of status codes, one of delays. */
#include "client/call/retry_policy.h"

#include <math.h>
#include "base/array.h"
#include "base/number.h"
#include "wire/timestamp.h"

/* Short names for the columns of the table. */
enum {
    AGAIN = RETRY_ON_ATTEMPT | RETRY_ON_TRY,
    WRONG = RETRY_USER | RETRY_USER_EVENT,
    BROKEN = AGAIN | RETRY_SESSION
};

/* The first row that covers a status counts, so single codes stand before their class. */
static const struct status_row {
    int first, last;
    unsigned bits;
    enum retry_poll_action poll;
} status_rows[] = {
    { 400, 400, .bits = WRONG | RETRY_REFUSED, .poll = RETRY_POLL_BUDGET },
    { 402, 402, .bits = WRONG | RETRY_BILLING | RETRY_SESSION, .poll = RETRY_POLL_BILLING },
    { 404, 404, .bits = WRONG | RETRY_REFUSED, .poll = RETRY_POLL_FATAL },
    { 408, 408, .bits = AGAIN, .poll = RETRY_POLL_PENDING },
    { 409, 409, .bits = AGAIN | WRONG | RETRY_REFUSED, .poll = RETRY_POLL_FATAL },
    { 410, 410, .bits = RETRY_USER_EVENT | RETRY_REFUSED, .poll = RETRY_POLL_GONE },
    { 422, 422, .bits = WRONG | RETRY_REFUSED, .poll = RETRY_POLL_FATAL },
    { 429, 429, .bits = AGAIN | RETRY_RATE_LIMIT | RETRY_SESSION | RETRY_USER_EVENT,
      .poll = RETRY_POLL_BACKOFF },
    { 400, 499, .bits = WRONG, .poll = RETRY_POLL_FATAL },
    /* A proxy or a crash may have swallowed the response of a request that was executed; 503 and
     * the others say that it was not. */
    { 500, 500, .bits = BROKEN | RETRY_LOST, .poll = RETRY_POLL_AGAIN },
    { 502, 502, .bits = BROKEN | RETRY_LOST, .poll = RETRY_POLL_AGAIN },
    { 504, 504, .bits = BROKEN | RETRY_LOST, .poll = RETRY_POLL_AGAIN },
    { 500, 599, .bits = BROKEN, .poll = RETRY_POLL_AGAIN },
    /* No such codes exist; layer 1 gives them the benefit of the doubt, layer 2 does not. */
    { 600, 999, .bits = RETRY_ON_ATTEMPT | RETRY_SESSION, .poll = RETRY_POLL_AGAIN },
};

static const struct status_row *find_status(int status)
{
    static const struct status_row none = { .poll = RETRY_POLL_FATAL };
    for (size_t i = 0; i < ARRAY_LEN(status_rows); i++)
        if (status >= status_rows[i].first && status <= status_rows[i].last)
            return &status_rows[i];
    return &none;
}

bool retry_status_is(int status, unsigned bits)
{
    return (find_status(status)->bits & bits) != 0;
}

enum retry_poll_action retry_poll_action(int status)
{
    return find_status(status)->poll;
}

/* min(base * 2^(k - 1), max).  The exponent is bounded because 2^1024 is infinite. */
static double double_delay(double base, double max, int64_t k)
{
    double d = base * exp2((double)(k - 1 < 1000 ? k - 1 : 1000));
    return d < max ? d : max;
}

int64_t retry_delay_ms(enum retry_delay kind, int k, double u)
{
    /* jitter: the delay is shortened by up to this fraction, so that clients which failed
     * together do not come back together. */
    static const struct {
        double base_ms, max_ms, jitter;
    } delays[] = {
        [RETRY_DELAY_ATTEMPT] = { .base_ms = 500, .max_ms = 10000, .jitter = 0.25 },
        [RETRY_DELAY_TRY] = { .base_ms = 1000, .max_ms = 30000, .jitter = 0 },
        [RETRY_DELAY_POLL] = { .base_ms = 1000, .max_ms = 30000, .jitter = 0 },
    };
    double d = double_delay(delays[kind].base_ms, delays[kind].max_ms, k);
    return (int64_t)ceil(d * (1 - delays[kind].jitter * u));
}

int64_t retry_sample_delay_ms(const tinker_retry_options *o, int k, double u)
{
    double max = (double)o->delay_max_ms;
    double d = double_delay((double)o->delay_base_ms, max, k);
    d += d * o->jitter * (2 * u - 1); /* here the jitter goes both ways */
    d = d > max ? max : d;
    return (int64_t)(d > 0 ? d : 0);
}

int64_t retry_poll_error_delay_ms(int64_t initial_ms, int64_t max_ms, int64_t k)
{
    return (int64_t)double_delay((double)initial_ms, (double)max_ms, k);
}

int64_t retry_after_ms(const struct http_response *resp, int64_t wall_ns)
{
    char text[64];
    double ms = 0;
    struct wire_time date;
    if (http_response_header(resp, "retry-after-ms", text, sizeof(text)) && number_read(text, &ms))
        return ms > 0 && ms <= 60000 ? (int64_t)ceil(ms) : 0;
    if (!http_response_header(resp, "retry-after", text, sizeof(text)))
        return 0;
    /* RFC 9110, 10.2.3: seconds, or a date; some proxies send fractions of a second. */
    if (number_read(text, &ms))
        ms *= 1000;
    else
        ms = wire_time_parse_http(text, &date) ? (double)(date.us - wall_ns / 1000) / 1e3 : 0;
    return ms > 0 && ms <= 60000 ? (int64_t)ceil(ms) : 0;
}
