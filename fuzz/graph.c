/* room: graph - any bytes as the graph of a loss: no crash, and what is accepted can be computed or
 * fails with a message. */
#include <stdint.h>
#include <stdlib.h>

#include "graph/graph.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int64_t shape[] = { 4 };
    static const float q[] = { -1, -0.5f, -2, -0.25f }, weights[] = { 1, 0, 1, -1 };
    static const int64_t targets[] = { 3, 0, 7, 1 };
    static const float beta[] = { 0.1f };
    static const tinker_named_tensor inputs[] = {
        { "q", { TINKER_FLOAT32, q, 4, shape, 1, NULL, NULL } },
        { "weights", { TINKER_FLOAT32, weights, 4, shape, 1, NULL, NULL } },
        { "beta", { TINKER_FLOAT32, beta, 1, NULL, 0, NULL, NULL } },
        { "target_tokens", { TINKER_INT64, targets, 4, shape, 1, NULL, NULL } },
    };
    static const struct graph_input ranks[] = {
        { "logprobs", 1 }, { "q", 1 }, { "weights", 1 }, { "beta", 0 }
    };
    const tinker_datum datum = { .inputs = inputs, .n_inputs = 4 };
    static const float logprobs[] = { -0.5f, -1.5f, -0.1f, -3 };
    tinker_error err = { 0 };
    /* The first byte says how many of the inputs there are. */
    if (size < 1)
        return 0;
    struct graph *g =
        graph_new("f", ranks, (size_t)(data[0] & 3) + 1, (const char *)data + 1, size - 1, &err);
    if (!g) {
        if (err.status == TINKER_OK || !err.message[0])
            abort();
        return 0;
    }
    double loss, *metrics = calloc(graph_metrics(g) + 1, sizeof(*metrics));
    float grads[4];
    err = (tinker_error){ 0 };
    if (metrics &&
        graph_evaluate(g, &datum, logprobs, 4, &loss, grads, metrics, &err) != TINKER_OK &&
        !err.message[0])
        abort();
    free(metrics);
    graph_free(g);
    return 0;
}
