/* graph.h - a loss that came as a graph of operations.
 *
 * A graph is a function of the logprobs and other inputs of one datum; it gives a loss and metrics.
 * Its form is that of torch.fx: nodes in order of execution, each an operation on earlier nodes.
 *
 *     struct graph *g = graph_new("dpo", inputs, n_inputs, json, n, &err);
 *     graph_evaluate(g, &datum, logprobs, n, &loss, grads, metrics, &err);
 *
 * Errors name the loss and the node and say what there is.  A graph never changes once it was made:
 * any thread may evaluate it, each evaluation on one thread. */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>

/* What a graph may cost.  The last two are per datum. */
enum {
    GRAPH_NODES_MAX = 4096,
    GRAPH_INPUTS_MAX = 16,
    GRAPH_NESTING_MAX = 8,
    GRAPH_MEMORY_MAX = 512 << 20,
    GRAPH_WORK_MAX = 1 << 28 /* elements computed, forward */
};

struct graph;

struct graph_input {
    const char *name;
    int64_t rank; /* 0, 1 or 2 */
};

/* json is {"format": 1, "nodes": […]}; all arguments are copied.  TINKER_EINVAL names the node. */
struct graph *graph_new(const char *name, const struct graph_input *inputs, size_t n_inputs,
                        const char *json, size_t n, tinker_error *err);
void graph_free(struct graph *g);

/* "custom/margin:mean" */
size_t graph_metrics(const struct graph *g);
const char *graph_metric_name(const struct graph *g, size_t i);
/* Does the reduction of metric i say mean? */
int graph_metric_is_mean(const struct graph *g, size_t i);

/* Loss and metrics of one datum with these n logprobs, in the shape of its target_tokens; unless
 * NULL, grads gets the n derivatives.  A loss that is not finite is TINKER_EREQUEST. */
tinker_status graph_evaluate(const struct graph *g, const tinker_datum *datum,
                             const float *logprobs, size_t n, double *loss, float *grads,
                             double *metrics, tinker_error *err);

#endif
