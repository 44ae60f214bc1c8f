/* number.c - see number.h; also the lookup of a named number, which every library of ours exports.
 *
 * The C library reads and writes numbers by the locale of the thread, so that is changed for the
 * moment of the call; without memory for a locale the program's own stays in force. */
#include "base/number.h"
#include <tinker/data.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t plain; /* never freed */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_plain(void)
{
    plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

/* Returns the locale to restore; 0 when nothing was changed. */
static locale_t use_plain_locale(void)
{
    /* uselocale() changes this thread only, so others that print meanwhile are not disturbed. */
    pthread_once(&once, make_plain);
    return plain ? uselocale(plain) : (locale_t)0;
}

static void restore_locale(locale_t old)
{
    if (old)
        uselocale(old);
}

void number_text(double v, int digits, char out[NUMBER_SIZE])
{
    locale_t old = use_plain_locale();
    snprintf(out, NUMBER_SIZE, "%.*g", digits, v);
    restore_locale(old);
}

bool number_read(const char *s, double *out)
{
    char *end;
    locale_t old = use_plain_locale();
    *out = strtod(s, &end);
    restore_locale(old);
    /* All of the text, and something finite: "1e999" and "nan" are refused. */
    return end != s && *end == '\0' && isfinite(*out);
}

double tinker_metric(const tinker_named_number *metrics, size_t n, const char *name)
{
    /* A handful of metrics: a search from the front beats any index. */
    for (size_t i = 0; i < n; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    return NAN;
}
