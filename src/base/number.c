/* number.c - see number.h.  The C library reads and writes by the locale of the thread, so that
 * is changed for the moment; without memory for a locale the program's own stands. */
#include "base/number.h"
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t plain; /* never freed */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_plain(void)
{
    plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

static locale_t enter(void)
{
    pthread_once(&once, make_plain);
    return plain ? uselocale(plain) : (locale_t)0;
}

static void leave(locale_t old)
{
    if (old)
        uselocale(old);
}

void number_text(double v, int digits, char out[NUMBER_SIZE])
{
    locale_t old = enter();
    snprintf(out, NUMBER_SIZE, "%.*g", digits, v);
    leave(old);
}

bool number_read(const char *s, double *out)
{
    char *end;
    locale_t old = enter();
    *out = strtod(s, &end);
    leave(old);
    return end != s && *end == '\0' && isfinite(*out);
}
