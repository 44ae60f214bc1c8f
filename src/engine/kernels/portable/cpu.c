/* cpu.c - any machine without a folder of its own: plain kernels, and no pause instruction. */
#include "engine/kernels/cpu.h"

#include <sched.h>

const struct kernel_set *cpu_kernel_sets(size_t *n)
{
    *n = 0;
    return NULL;
}

void cpu_relax(void)
{
    sched_yield();
}
