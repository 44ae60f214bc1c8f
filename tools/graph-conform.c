/* graph-conform.c - computes losses that came as graphs for the conformance test, line by line.
 *
 * In:  CreateCustomLossRequest TAB Datum TAB logprobs, each JSON, logprobs one array
 * Out: "ok" TAB {"loss":…,"grads":[…],"metrics":{…}}, or "error" TAB message */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "graph/graph.h"
#include "json/json.h"
#include "server/training/custom_loss.h"
#include "wire/wire.h"

struct answer {
    double loss;
    float *grads, *logprobs;
    double *metrics;
    size_t n;
};

static tinker_status read_logprobs(char *text, struct arena *arena, struct answer *a,
                                   tinker_error *err)
{
    struct json_reader r;
    json_reader_init(&r, text, strlen(text), arena);
    if (!json_array_float(&r, &a->logprobs, &a->n) || !json_end(&r))
        return err_set(err, TINKER_EINVAL, "logprobs: %s", json_error(&r));
    a->grads = arena_array(arena, a->n + 1, sizeof(*a->grads));
    return a->grads ? TINKER_OK : err_nomem(err, "gradients");
}

static void print_answer(const struct graph *g, const struct answer *a)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1 << 26);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "loss");
    json_put_double(&w, a->loss);
    json_put_key(&w, "grads");
    json_put_array_float(&w, a->grads, a->n);
    json_put_key(&w, "metrics");
    json_put_begin_object(&w);
    for (size_t i = 0; i < graph_metrics(g); i++) {
        json_put_key(&w, graph_metric_name(g, i));
        json_put_double(&w, a->metrics[i]);
    }
    json_put_end_object(&w);
    json_put_end_object(&w);
    printf(buf_ok(&b) ? "ok\t%s\n" : "error\tthe result is not finite\n", b.data);
    buf_clear(&b);
}

static void answer_line(char *request, char *datum, char *logprobs)
{
    struct arena arena;
    struct wire_create_custom_loss_request r;
    tinker_datum d;
    struct graph *g = NULL;
    struct answer a = { 0 };
    tinker_error err = { 0 };
    arena_init(&arena, SIZE_MAX);
    tinker_status status = wire_decode_json(&wire_create_custom_loss_request, request,
                                            strlen(request), WIRE_LENIENT, &arena, &r, &err);
    if (status == TINKER_OK)
        status = custom_loss_check(&r, &g, &err);
    if (status == TINKER_OK)
        status =
            wire_decode_json(&wire_datum, datum, strlen(datum), WIRE_LENIENT, &arena, &d, &err);
    if (status == TINKER_OK)
        status = read_logprobs(logprobs, &arena, &a, &err);
    if (status == TINKER_OK)
        a.metrics = arena_array(&arena, graph_metrics(g) + 1, sizeof(*a.metrics));
    if (status == TINKER_OK)
        status = graph_evaluate(g, &d, a.logprobs, a.n, &a.loss, a.grads, a.metrics, &err);
    if (status == TINKER_OK)
        print_answer(g, &a);
    else
        printf("error\t%s\n", err.message);
    fflush(stdout);
    graph_free(g);
    arena_clear(&arena);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, stdin) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *datum = strchr(line, '\t');
        char *logprobs = datum ? strchr(datum + 1, '\t') : NULL;
        if (!logprobs) {
            printf("error\tthree fields are needed\n");
            fflush(stdout);
            continue;
        }
        *datum++ = *logprobs++ = '\0';
        answer_line(line, datum, logprobs);
    }
    free(line);
    return 0;
}
