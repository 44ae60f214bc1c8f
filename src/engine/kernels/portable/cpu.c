/* cpu.c - any machine without a folder of its own: plain kernels, and no pause instruction. */
#include "engine/kernels/cpu.h"

#include <sched.h>

const struct kernel_set *cpu_kernel_sets(size_t *n)
{
    /* No sets of this machine: dispatch falls back on the plain kernels, which are always there. */
    *n = 0;
    return NULL;
}

void cpu_relax(void)
{
    sched_yield();
}
