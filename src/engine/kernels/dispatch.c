/* dispatch.c - choose the kernels of this machine, once.
 *
 * The environment variable TINKER_KERNELS names one of the sets below to force it;
 * a name that is unknown or that this CPU cannot run is passed over. */
#include "engine/kernels/ops.h"
#include "engine/kernels/kernels.h"
#include "base/os.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct kernel_ops *chosen;
static struct kernel_ops with_bf16; /* AVX-512 and what its bfloat16 extension replaces */
static struct kernel_ops with_amx;  /* AVX-512 and the matrix unit */
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
#include <cpuid.h>

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static int has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static int has_amx(void)
{
    const unsigned tile = 1u << 24, bf16 = 1u << 22; /* compilers differ in their names */
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile) && (d & bf16) &&
           os_allow_tiles();
}
#endif

static int has_plain(void)
{
    return 1;
}

static const struct {
    int (*supported)(void);
    const struct kernel_ops *ops;
} sets[] = { /* best first */
#if defined(__x86_64__)
             { has_amx, &with_amx },
             { has_avx512bf16, &with_bf16 },
             { has_avx512, &kernels_avx512 },
             { has_avx2, &kernels_avx2 },
#endif
             { has_plain, &kernels_plain }
};

static void choose(void)
{
#if defined(__x86_64__)
    with_bf16 = kernels_avx512;
    kernels_avx512bf16_fill(&with_bf16);
    with_amx = kernels_avx512;
    with_amx.name = "amx";
    with_amx.matrix = &kernels_amx;
#endif
    const char *want = getenv("TINKER_KERNELS");
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (!sets[i].supported())
            continue;
        if (chosen == NULL)
            chosen = sets[i].ops;
        if (want != NULL && strcmp(want, sets[i].ops->name) == 0)
            chosen = sets[i].ops;
    }
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

int kernels_bf16_exact(void)
{
    return kernels_ops()->matrix == NULL;
}

int kernels_bf16_rounds(void)
{
    return kernels_ops()->narrow != NULL;
}
