/* metric.c - looking up a named number; here because every library of ours has it. */
#include <tinker/data.h>
#include <math.h>
#include <string.h>

double tinker_metric(const tinker_named_number *metrics, size_t n, const char *name)
{
    /* A handful of metrics: a search from the front beats any index. */
    for (size_t i = 0; i < n; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    return NAN;
}
