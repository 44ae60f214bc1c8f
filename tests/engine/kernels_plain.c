/* The plain kernels, which every machine has: they pack, widen and transpose exactly. */
#include "engine/kernels/ops.h"
#include "support/tap.h"
#include "support/tile_check.h"

static void pack_widen_and_transpose(void)
{
    static struct operands p;
    float left[MR_MAX * KC];
    fill_operands(&p, 1, 77);
    check_packing(&kernels_plain, left, kernels_plain.mr, 77, &p);
    check_widen_and_transpose(&kernels_plain);
}

int main(void)
{
    RUN(pack_widen_and_transpose);
    return tap_done();
}
