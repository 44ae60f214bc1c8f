/* cpu.c - 64-bit ARM: no kernels of its own yet, so the engine runs the plain ones. */
#include "engine/kernels/cpu.h"

const struct kernel_set *cpu_kernel_sets(size_t *n)
{
    *n = 0;
    return NULL;
}

/* YIELD is a no-op on most cores; ISB delays for about as long as PAUSE does on x86. */
void cpu_relax(void)
{
    __asm__ volatile("isb" ::: "memory");
}
