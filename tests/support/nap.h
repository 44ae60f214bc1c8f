/* nap.h - wait a moment, between two looks at something that another thread does. */
#ifndef SUPPORT_NAP_H
#define SUPPORT_NAP_H

#include <time.h>

static void nap_ms(int n)
{
    struct timespec t = { n / 1000, (n % 1000) * 1000000L };
    nanosleep(&t, NULL);
}

#endif
