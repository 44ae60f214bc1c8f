/* room: engine - config.json of any content: an error, or sizes whose products fit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model/config.h"
#include "engine/layers/rope.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static float inv_freq[MODEL_MAX_HEAD_DIM / 2];
    struct model_config c;
    tinker_error err;
    if (config_parse(&c, "fuzz", (const char *)data, n, &err) != TINKER_OK) {
        demand(strncmp(err.message, "fuzz: ", 6) == 0);
        return 0;
    }
    demand(c.vocab && c.hidden && c.layers && c.heads && c.kv_heads && c.intermediate);
    demand(c.head_dim % 2 == 0 && c.head_dim <= MODEL_MAX_HEAD_DIM && c.heads % c.kv_heads == 0);
    demand(model_parameters(&c) < (uint64_t)1 << 62);
    for (size_t i = 0; i < c.n_eos; i++)
        demand((size_t)c.eos[i] < c.vocab);
    rope_init(&c.rope, c.rotary, c.short_factor, inv_freq);
    config_parse_generation(&c, "fuzz", (const char *)data, n, &err);
    return 0;
}
