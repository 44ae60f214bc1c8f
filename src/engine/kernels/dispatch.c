/* dispatch.c - choose the kernels of this machine, once per process.
 *
 * cpu_kernel_sets() lists what the architecture has; the first set that the CPU supports wins,
 * and the plain kernels when there is none.  The environment variable TINKER_KERNELS forces a set
 * by its name; a name that is unknown or that this CPU cannot run is ignored. */
#include "engine/kernels/cpu.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct kernel_ops *chosen; /* written once, by choose_kernels() */

/* Sets are listed from the fastest on, so the first that the CPU supports is the one; a name in
 * TINKER_KERNELS wins over it if the CPU has that set. An unknown name changes nothing. */
static void choose_kernels(void)
{
    const char *forced = getenv("TINKER_KERNELS");
    size_t n;
    const struct kernel_set *sets = cpu_kernel_sets(&n);
    for (size_t i = 0; i < n; i++) {
        if (!sets[i].is_supported())
            continue;
        if (chosen == NULL || (forced != NULL && strcmp(forced, sets[i].ops->name) == 0))
            chosen = sets[i].ops;
    }
    if (chosen == NULL || (forced != NULL && strcmp(forced, kernels_plain.name) == 0))
        chosen = &kernels_plain;
}

/* Once per process: a choice that changed between two passes would change the bits of a run. */
const struct kernel_ops *kernels_ops(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_kernels);
    return chosen;
}

/* For the log and for messages: figures of two machines compare only when it is the same. */
const char *kernels_name(void)
{
    return kernels_ops()->name;
}

int kernels_bf16_exact(void)
{
    return kernels_ops()->weights[PACKED_BF16].matrix == NULL;
}

int kernels_bf16_rounds(void)
{
    const struct weight_ops *ops = &kernels_ops()->weights[PACKED_BF16_PAIRS];
    return ops->matrix ? ops->matrix->rounds : ops->narrow != NULL;
}

int kernels_int8_rounds(void)
{
    return kernels_ops()->weights[PACKED_Q8_0_INT8].quantize != NULL;
}
