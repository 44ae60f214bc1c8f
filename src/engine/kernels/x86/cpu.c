/* cpu.c - the kernel sets of x86_64 in order of preference, and how to ask the CPU for them.
 *
 * A set may run when the CPU has every extension its files are compiled for and the operating
 * system saves the registers it uses: __builtin_cpu_supports() checks both for vectors, the tile
 * registers of AMX must be requested from Linux. */
#include "engine/kernels/cpu.h"

#include <cpuid.h>
#include "base/array.h"
#include "base/os.h"
#include "engine/kernels/x86/sets.h"

/* F16C converts stored half precision to float32: CPUID leaf 1, ECX, since clang 14 has no name
 * for it. */
static int has_avx2(void)
{
    const unsigned f16c = 1u << 29;
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & f16c);
}

/* The four parts that every server CPU with AVX-512 has; the kernels are compiled for all. */
static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

/* VPDPBUSD; see ops_avx512vnni.c. */
static int has_avx512vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* VDPBF16PS; see ops_avx512bf16.c.  Every CPU that has it has VPDPBUSD, too. */
static int has_avx512bf16(void)
{
    return has_avx512vnni() && __builtin_cpu_supports("avx512bf16");
}

/* CPUID leaf 7, EDX.  Read directly, because gcc and clang name these two features differently.
 * Every CPU with the unit has VDPBF16PS, whose conversions its kernels use. */
static int has_amx(void)
{
    const unsigned amx_tile = 1u << 24, amx_bf16 = 1u << 22;
    unsigned eax, ebx, ecx, edx;
    return has_avx512bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (edx & amx_tile) && (edx & amx_bf16) && os_allow_tiles();
}

/* Three sets are AVX-512 with some functions replaced; they are put together at the first use. */
static struct kernel_ops avx512_with_vnni, avx512_with_bf16, avx512_with_amx;

const struct kernel_set *cpu_kernel_sets(size_t *n)
{
    static const struct kernel_set sets[] = {
        { .ops = &avx512_with_amx, .is_supported = has_amx },
        { .ops = &avx512_with_bf16, .is_supported = has_avx512bf16 },
        { .ops = &avx512_with_vnni, .is_supported = has_avx512vnni },
        { .ops = &kernels_avx512, .is_supported = has_avx512 },
        { .ops = &kernels_avx2, .is_supported = has_avx2 },
    };
    /* Called once, by dispatch.c, before any thread computes. */
    avx512_with_vnni = kernels_avx512;
    kernels_avx512vnni_fill(&avx512_with_vnni);
    avx512_with_bf16 = avx512_with_vnni;
    kernels_avx512bf16_fill(&avx512_with_bf16);
    /* The matrix unit replaces whole products with bfloat16 weights, not tiles, so nothing of
     * VDPBF16PS is needed here. */
    avx512_with_amx = avx512_with_vnni;
    avx512_with_amx.name = "amx";
    avx512_with_amx.weights[PACKED_BF16].matrix = &kernels_amx;
    avx512_with_amx.weights[PACKED_BF16_PAIRS].matrix = &kernels_amx_rounded;
    *n = ARRAY_LEN(sets);
    return sets;
}

/* PAUSE: a thread that spins leaves the core's units to its sibling. */
void cpu_relax(void)
{
    __builtin_ia32_pause();
}
