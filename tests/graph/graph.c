/* Graphs of losses: values and gradients that are known, what is refused, and limits.  Every
 * operation is compared with torch in conformance. */
#include "base/buf.h"
#include "graph/graph.h"
#include "support/tap.h"

#define NODE(op, name, target, args)                                                    \
    "{\"op\":\"" op "\",\"name\":\"" name "\",\"target\":\"" target "\",\"args\":" args \
    ",\"kwargs\":{}}"
#define CALL(name, target, args) NODE("call_function", name, target, args) ","
#define HEAD                     "{\"format\":1,\"nodes\":[" NODE("placeholder", "logprobs", "logprobs", "[]") ","
#define INPUT                    NODE("placeholder", "w", "w", "[]") ","
#define END(loss)                                                                              \
    NODE("output", "output", "output", "[{\"tuple\":[{\"ref\":\"" loss "\"},{\"dict\":{}}]}]") \
    "]"                                                                                        \
    "}"

static const struct graph_input inputs[] = { { "logprobs", 1 }, { "w", 1 } };
static const float logprobs[] = { -1, -2, -3 };
static tinker_error err;

static struct graph *parse(const char *json, size_t n_inputs)
{
    err = (tinker_error){ 0 };
    return graph_new("f", inputs, n_inputs, json, strlen(json), &err);
}

/* The status of a loss of the logprobs above with weights 1, 0, 2. */
static tinker_status evaluate(const char *json, double *loss, float grads[3])
{
    static const float w[] = { 1, 0, 2 };
    static const int64_t shape[] = { 3 };
    static const tinker_named_tensor list[] = {
        { "w", { TINKER_FLOAT32, w, 3, shape, 1, NULL, NULL } }
    };
    const tinker_datum d = { .inputs = list, .n_inputs = 1 };
    struct graph *g = parse(json, 2);
    if (!g)
        return err.status;
    tinker_status status = graph_evaluate(g, &d, logprobs, 3, loss, grads, NULL, &err);
    graph_free(g);
    return status;
}

static void test_a_weighted_sum_has_its_weights_as_gradient(void)
{
    double loss = 0;
    float grads[3];
    tinker_status status =
        evaluate(HEAD INPUT CALL("mul", "operator.mul", "[{\"ref\":\"logprobs\"},{\"ref\":\"w\"}]")
                     NODE("call_method", "sum_1", "sum", "[{\"ref\":\"mul\"}]") "," END("sum_1"),
                 &loss, grads);
    CHECK_INT(status, TINKER_OK);
    CHECK(loss == -7 && grads[0] == 1 && grads[1] == 0 && grads[2] == 2);
}

static void test_a_loss_without_logprobs_has_no_gradient(void)
{
    double loss = 0;
    float grads[3] = { 9, 9, 9 };
    CHECK_INT(evaluate(HEAD INPUT NODE("call_method", "sum_1", "sum",
                                       "[{\"ref\":\"w\"}]") "," END("sum_1"),
                       &loss, grads),
              TINKER_OK);
    CHECK(loss == 3 && grads[0] == 0 && grads[1] == 0 && grads[2] == 0);
}

static void test_what_cannot_be_read_is_refused_with_its_node(void)
{
    static const struct {
        const char *json, *says;
    } bad[] = {
        { "", "column 1" },
        { "{\"format\":1}", "no output" },
        { "{\"format\":2,\"nodes\":[]}", "another format" },
        { HEAD "]}", "column" },
        { HEAD END("nobody"), "not before it" },
        { HEAD CALL("a", "torch.sum", "[{\"ref\":\"a\"}]") END("a"), "node a: it refers" },
        { HEAD CALL("logprobs", "torch.sum", "[]") END("logprobs"), "another node has this name" },
        { HEAD CALL("a", "os.system", "[\"x\"]") END("a"), "os.system is not supported" },
        { HEAD NODE("call_module", "a", "m", "[]") "," END("a"), "kind of node" },
        { HEAD NODE("placeholder", "b", "b", "[]") "," END("b"), "inputs, in their order" },
        { HEAD CALL("a", "torch.sum", "[[[[[[[[[[[1]]]]]]]]]]]") END("a"), "nested too deeply" },
        { HEAD CALL("a", "torch.sum", "[{\"set\":[1]}]") END("a"), "unknown kind" },
        { HEAD NODE("output", "o", "output", "[{\"ref\":\"logprobs\"}]") "]}",
          "a loss and a dict" },
        { HEAD NODE("output", "o", "output",
                    "[{\"tuple\":[{\"ref\":\"logprobs\"},{\"dict\":{\"loss:sum\":1}}]}]") "]}",
          "names of metrics" },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct graph *g = parse(bad[i].json, 1);
        if (g || !strstr(err.message, bad[i].says))
            TAP_FAIL("%zu: \"%s\", not \"%s\"", i, err.message, bad[i].says);
        graph_free(g);
    }
}

static void test_inputs_are_checked(void)
{
    static const struct graph_input bad[][2] = {
        { { "w", 1 }, { "logprobs", 1 } }, { { "logprobs", 0 }, { "w", 1 } },
        { { "logprobs", 3 }, { "w", 1 } }, { { "logprobs", 1 }, { "w", -1 } },
        { { "logprobs", 1 }, { "W", 1 } }, { { "logprobs", 1 }, { "", 1 } },
    };
    const char *json = HEAD INPUT END("w");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(!graph_new("f", bad[i], 2, json, strlen(json), &err));
    CHECK(!graph_new("f", inputs, 0, json, strlen(json), &err));
}

/* Tensors that double at each of many nodes: the memory of a datum ends it, not that of the host. */
static void test_a_graph_that_grows_ends_with_an_error(void)
{
    struct buf b;
    double loss;
    float grads[3];
    buf_init(&b, 1 << 20);
    buf_puts(&b, HEAD INPUT);
    for (int i = 0; i < 64; i++)
        buf_printf(&b,
                   "{\"op\":\"call_function\",\"name\":\"n%d\",\"target\":\"torch.cat\",\"args\":"
                   "[[{\"ref\":\"%s%.0d\"},{\"ref\":\"%s%.0d\"}]],\"kwargs\":{}},",
                   i + 1, i ? "n" : "w", i, i ? "n" : "w", i);
    buf_puts(&b, END("n64"));
    CHECK_INT(evaluate(b.data, &loss, grads), TINKER_EINVAL);
    CHECK(strstr(err.message, "MiB") && strstr(err.message, "node n"));
    buf_clear(&b);
}

static void test_more_nodes_than_the_limit_are_refused(void)
{
    struct buf b;
    buf_init(&b, 4 << 20);
    buf_puts(&b, HEAD);
    for (int i = 0; i < GRAPH_NODES_MAX; i++)
        buf_printf(&b,
                   "{\"op\":\"call_method\",\"name\":\"n%d\",\"target\":\"sum\",\"args\":"
                   "[{\"ref\":\"logprobs\"}]},",
                   i);
    buf_puts(&b, END("n0"));
    CHECK(!parse(b.data, 1) && strstr(err.message, "4096"));
    buf_clear(&b);
}

int main(void)
{
    RUN(test_a_weighted_sum_has_its_weights_as_gradient);
    RUN(test_a_loss_without_logprobs_has_no_gradient);
    RUN(test_what_cannot_be_read_is_refused_with_its_node);
    RUN(test_inputs_are_checked);
    RUN(test_a_graph_that_grows_ends_with_an_error);
    RUN(test_more_nodes_than_the_limit_are_refused);
    return tap_done();
}
