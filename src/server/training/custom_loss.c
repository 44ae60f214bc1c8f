/* custom_loss.c - see custom_loss.h.
 *
 * The graph is read from the store for each pass: it is small, and a pass that runs again after a
 * restart needs it from there anyway. */
#include "server/training/custom_loss.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph.h"
#include "server/work/live_state.h"
#include "wire/wire.h"

struct custom_loss {
    struct arena arena; /* the decoded request, `one`, `sums` and the metrics of `result` */
    struct graph *graph;
    const tinker_datum *data; /* the job's: must live until the last slice of the pass */
    size_t n_data;
    size_t n;                       /* metrics of the graph */
    double *one, *sums;             /* metrics of the datum at hand, and sums of those before it */
    tinker_forward_backward result; /* what custom_loss_result() returns */
};

/* The number is that of the request, which makes it unique in its session and the same when a
 * request is sent again. */
const char *custom_loss_id(struct arena *arena, const char *session_id, int64_t seq)
{
    return arena_printf(arena, "%s:loss:%lld", session_id, (long long)seq);
}

/* Also when a loss is created: what cannot be read is refused then, not in the first pass. */
tinker_status custom_loss_check(const struct wire_create_custom_loss_request *r, struct graph **out,
                                tinker_error *err)
{
    struct graph_input inputs[GRAPH_INPUTS_MAX];
    if (r->n_inputs > GRAPH_INPUTS_MAX)
        return err_set(err, TINKER_EINVAL, "custom loss %.60s: it has more than %d inputs", r->name,
                       GRAPH_INPUTS_MAX);
    for (size_t i = 0; i < r->n_inputs; i++)
        inputs[i] = (struct graph_input){ r->inputs[i].name, r->inputs[i].rank };
    tinker_error own = { 0 };
    struct graph *g = graph_new(r->name, inputs, r->n_inputs, r->graph.s, r->graph.n, &own);
    if (out)
        *out = g;
    else
        graph_free(g);
    if (!g && err)
        *err = own;
    return own.status;
}

/* Read the loss with the number from the store and make its graph. */
static tinker_status load_graph(struct server *s, struct custom_loss *c, const char *session_id,
                                int64_t seq, const char *id, tinker_error *err)
{
    struct store_loss *stored = NULL;
    struct wire_create_custom_loss_request r;
    tinker_status status = store_get_loss(s->store, session_id, seq, &c->arena, &stored, err);
    if (status != TINKER_OK)
        return status;
    if (!stored)
        return err_set(err, TINKER_EINVAL, "this session has no custom loss %.200s", id);
    status = wire_decode_json(&wire_create_custom_loss_request, stored->body, stored->n_body,
                              WIRE_LENIENT, &c->arena, &r, err);
    return status == TINKER_OK ? custom_loss_check(&r, &c->graph, err) : status;
}

/* The number in "<session>:loss:<number>"; -1: the id is not one of this session.  Other sessions'
 * losses are refused here, so the owner needs no check.  strtoll() turns too many digits into
 * INT64_MAX, and no loss has that number. */
static int64_t parse_id(const char *session_id, const char *id)
{
    size_t n = strlen(session_id);
    char *end;
    if (strncmp(id, session_id, n) != 0 || strncmp(id + n, ":loss:", 6) != 0)
        return -1;
    const char *digits = id + n + 6;
    if (strspn(digits, "0123456789") != strlen(digits) || !*digits)
        return -1;
    return strtoll(digits, &end, 10);
}

/* One setting and no more: a typing error in a name must not train with something else silently. */
struct custom_loss *custom_loss_new(struct server *s, const char *session_id,
                                    const struct wire_forward_backward_request *r,
                                    tinker_error *err)
{
    const char *id = NULL;
    for (size_t i = 0; i < r->loss.n_texts; i++)
        if (strcmp(r->loss.texts[i].name, "loss_id") == 0)
            id = r->loss.texts[i].value;
    if (!id || r->loss.n_texts > 1 || r->loss.n_config) {
        err_set(err, TINKER_EINVAL,
                "loss custom takes one setting, loss_id, which create_custom_loss has returned");
        return NULL;
    }
    int64_t seq = parse_id(session_id, id);
    if (seq < 0) {
        err_set(err, TINKER_EINVAL, "this session has no custom loss %.200s", id);
        return NULL;
    }
    struct custom_loss *c = calloc(1, sizeof(*c));
    if (!c) {
        err_nomem(err, "custom loss");
        return NULL;
    }
    /* Far above what create_custom_loss takes: a body of at most ROUTE_BODY_MAX, 1 MiB. */
    arena_init(&c->arena, 64 << 20);
    c->data = r->data;
    c->n_data = r->n_data;
    tinker_status status = load_graph(s, c, session_id, seq, id, err);
    if (status == TINKER_OK) {
        c->n = graph_metrics(c->graph);
        c->one = arena_array(&c->arena, c->n + 1, sizeof(*c->one));
        c->sums = arena_array(&c->arena, c->n + 1, sizeof(*c->sums));
        if (!c->one || !c->sums)
            status = err_nomem(err, "custom loss");
    }
    if (status == TINKER_OK)
        return c;
    custom_loss_free(c);
    return NULL;
}

/* Called by the engine for each datum in ascending order, so sums have the same bits each time: a
 * pass that runs again after a crash must give the same result.  grads NULL: a forward pass. */
tinker_status custom_loss_datum(size_t datum, const float *logprobs, size_t n, double *loss,
                                float *grads, tinker_error *err, void *state)
{
    struct custom_loss *c = state;
    tinker_status status =
        graph_evaluate(c->graph, &c->data[datum], logprobs, n, loss, grads, c->one, err);
    for (size_t i = 0; status == TINKER_OK && i < c->n; i++)
        c->sums[i] += c->one[i];
    if (status != TINKER_OK)
        err_prefix(err, "data[%zu]", datum);
    return status;
}

/* The engine's result with the metrics of the graph behind its own.  Both results are valid until
 * custom_loss_free(): the new one borrows everything but the list. */
const tinker_forward_backward *custom_loss_result(struct custom_loss *c,
                                                  const tinker_forward_backward *pass)
{
    tinker_named_number *list = arena_array(&c->arena, pass->n_metrics + c->n, sizeof(*list));
    if (!list) /* no memory: the result is complete but for the metrics of the loss */
        return pass;
    memcpy(list, pass->metrics, pass->n_metrics * sizeof(*list));
    for (size_t i = 0; i < c->n; i++) {
        /* A mean is over datums, each counting the same; all other metrics are sums. */
        double scale = graph_metric_is_mean(c->graph, i) && c->n_data ? 1 / (double)c->n_data : 1;
        list[pass->n_metrics + i] =
            (tinker_named_number){ graph_metric_name(c->graph, i), c->sums[i] * scale };
    }
    c->result = *pass;
    c->result.metrics = list;
    c->result.n_metrics += c->n;
    return &c->result;
}

void custom_loss_free(struct custom_loss *c)
{
    if (!c)
        return;
    graph_free(c->graph);
    arena_clear(&c->arena);
    free(c);
}
