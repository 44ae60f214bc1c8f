/* cpu.h - all that the engine asks of a CPU architecture.
 *
 * Exactly one folder below kernels/ implements this header: x86, aarch64, or portable for any
 * other machine.  The Makefile picks it from the compiler's target, so no file needs an #ifdef. */
#ifndef ENGINE_KERNELS_CPU_H
#define ENGINE_KERNELS_CPU_H

#include <stddef.h>

struct kernel_ops;

/* One set of kernels, and whether the CPU that runs this process can execute it. */
struct kernel_set {
    const struct kernel_ops *ops;
    int (*is_supported)(void);
};

/* The sets of this architecture in order of preference, best first; the plain kernels, which run
 * everywhere, are not among them.  Called once, before any kernel runs. */
const struct kernel_set *cpu_kernel_sets(size_t *n);

/* Tell the core that this thread is spinning. */
void cpu_relax(void);

#endif
