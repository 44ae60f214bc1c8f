/* dispatch.c - choose the kernels of this machine, once. */
#include "engine/kernels/ops.h"
#include "engine/kernels/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct kernel_ops *chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    chosen = &kernels_plain;
}

const struct kernel_ops *kernels_ops(void)
{
    pthread_once(&once, choose);
    return chosen;
}

const char *kernels_name(void)
{
    return kernels_ops()->name;
}
