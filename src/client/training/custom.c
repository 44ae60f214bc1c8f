/* custom.c - training with a loss of the caller's: forward, differentiate here, backward.
 *
 * The service's cross_entropy is the sum of -logprob * weight, so weights of minus the
 * gradient make it backpropagate any loss.  Everything runs in the caller's thread; the
 * two passes are ordinary requests, each with the ids of its moment. */
#include "client/training/custom.h"

#include <stdlib.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include "base/buf.h"
#include "base/err.h"
#include "client/observe/instrument.h"
#include "client/io/runtime.h"
#include "client/training/training_client.h"
#include "client/call/last_error.h"
#include "regularizer/evaluate.h"
#include "wire/check.h"

const tinker_loss custom_cross_entropy = { .name = "cross_entropy" };

/* ---- metrics ------------------------------------------------------------------------- */

struct custom_metrics *custom_metrics_new(const tinker_named_number *v, size_t n)
{
    struct custom_metrics *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    arena_init(&m->arena, SIZE_MAX);
    m->v = arena_array(&m->arena, n, sizeof(*m->v));
    m->n = n;
    for (size_t i = 0; m->v && i < n; i++) {
        m->v[i] = (tinker_named_number){ arena_strdup(&m->arena, v[i].name), v[i].value };
        if (!m->v[i].name)
            m->v = NULL;
    }
    if (m->v)
        return m;
    custom_metrics_free(m);
    return NULL;
}

void custom_metrics_free(struct custom_metrics *m)
{
    if (!m)
        return;
    arena_clear(&m->arena);
    free(m);
}

static tinker_named_number *find_named_tensor(tinker_named_number *v, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(v[i].name, name) == 0)
            return &v[i];
    return NULL;
}

tinker_status custom_metrics_lay(const struct custom_metrics *m, struct arena *a,
                                 tinker_forward_backward *out, tinker_error *err)
{
    size_t n = out->n_metrics;
    tinker_named_number *v = arena_array(a, n + m->n, sizeof(*v));
    if (!v)
        return err_nomem(err, "metrics");
    if (n)
        memcpy(v, out->metrics, n * sizeof(*v));
    for (size_t i = 0; i < m->n; i++) {
        tinker_named_number *same = find_named_tensor(v, n, m->v[i].name);
        if (same) {
            same->value = m->v[i].value;
            continue;
        }
        v[n].name = arena_strdup(a, m->v[i].name);
        v[n].value = m->v[i].value;
        if (!v[n++].name)
            return err_nomem(err, "metrics");
    }
    out->metrics = v;
    out->n_metrics = n;
    return TINKER_OK;
}

/* ---- checking the data ----------------------------------------------------------------- */

static const tinker_named_tensor *find_input(const tinker_datum *d, const char *name)
{
    for (size_t i = 0; i < d->n_inputs; i++)
        if (strcmp(d->inputs[i].name, name) == 0)
            return &d->inputs[i];
    return NULL;
}

static bool is_sent(const char *name)
{
    return strcmp(name, "target_tokens") == 0 || strcmp(name, "weights") == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The error lists all inputs that would not be sent, sorted, so that one message is enough to fix
 * the data. */
static tinker_status refuse_extra(const tinker_datum *d, size_t i, size_t n_extra,
                                  tinker_error *err)
{
    const char **names = calloc(n_extra, sizeof(*names));
    struct buf list;
    size_t n = 0;
    if (!names)
        return err_nomem(err, "inputs");
    for (size_t k = 0; k < d->n_inputs; k++)
        if (!is_sent(d->inputs[k].name))
            names[n++] = d->inputs[k].name;
    qsort(names, n, sizeof(*names), by_name);
    buf_init(&list, 256);
    for (size_t k = 0; k < n; k++)
        buf_printf(&list, "%s%s", k ? ", " : "", names[k]);
    tinker_status s = err_set(err, TINKER_EINVAL,
                              "data[%zu]: a custom loss takes the inputs target_tokens and weights,"
                              " found also: %s (strip_local_inputs keeps them local)",
                              i, list.data ? list.data : "too long a name");
    buf_clear(&list);
    free(names);
    return s;
}

/* Refuse before anything is sent. Only target_tokens and weights go to the service, which
 * computes logprobs of the targets; whatever else the loss needs stays here, and the caller must
 * say that he knows. */
tinker_status custom_check(const tinker_datum *data, size_t n, const tinker_custom_options *opts,
                           tinker_error *err)
{
    if (!data || n == 0)
        return err_set(err, TINKER_EINVAL, "forward_backward_custom: No data provided");
    tinker_status s = wire_check_data(data, n, err);
    for (size_t i = 0; i < n && s == TINKER_OK; i++) {
        size_t extra = 0;
        for (size_t k = 0; k < data[i].n_inputs; k++)
            extra += !is_sent(data[i].inputs[k].name);
        if (!find_input(&data[i], "target_tokens"))
            s = err_set(err, TINKER_EINVAL, "data[%zu]: target_tokens must be provided", i);
        else if (extra && !opts->strip_local_inputs)
            s = refuse_extra(&data[i], i, extra, err);
    }
    return s;
}

/* ---- data of the two passes --------------------------------------------------------------- */

/* Elements of the dense form: a sparse tensor lists fewer. */
static size_t count_elements(const tinker_tensor *t)
{
    size_t n = 1;
    for (size_t i = 0; t->shape && i < t->ndim; i++)
        n *= (size_t)t->shape[i];
    return t->shape ? n : t->n;
}

/* The same datum with these weights and nothing local. in has room for two. */
static tinker_datum with_weights(const tinker_datum *d, const tinker_tensor *weights,
                                 tinker_named_tensor *in)
{
    in[0] = *find_input(d, "target_tokens");
    in[1] = (tinker_named_tensor){ "weights", *weights };
    return (tinker_datum){ .model_input = d->model_input, .inputs = in, .n_inputs = 2 };
}

/* What is sent first: weights as they are, zeros where there are none. The forward pass ignores
 * them; they are there because a datum of cross_entropy must have some. One block of zeros, as
 * long as the longest datum, serves all. */
tinker_datum *custom_forward_data(struct arena *a, const tinker_datum *data, size_t n)
{
    tinker_datum *out = arena_array(a, n, sizeof(*out));
    tinker_named_tensor *in = arena_array(a, 2 * n, sizeof(*in));
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len = count_elements(&find_input(&data[i], "target_tokens")->tensor);
        most = !find_input(&data[i], "weights") && len > most ? len : most;
    }
    const float *zeros = arena_array(a, most, sizeof(*zeros)); /* shared by all */
    if (!out || !in || !zeros)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const tinker_named_tensor *w = find_input(&data[i], "weights");
        const tinker_tensor *t = &find_input(&data[i], "target_tokens")->tensor;
        tinker_tensor none = { TINKER_FLOAT32, zeros, count_elements(t), t->shape, t->ndim,
                               NULL,           NULL };
        out[i] = w && data[i].n_inputs == 2
                     ? data[i]
                     : with_weights(&data[i], w ? &w->tensor : &none, in + 2 * i);
    }
    return out;
}

/* The sparse form (compressed rows: values, columns, and where each row begins) of a matrix of
 * weights, when the reference would send it so; a custom loss over k candidates per position
 * mostly has gradient 0. false: no memory. */
static bool maybe_sparse(struct arena *a, tinker_tensor *t)
{
    const double *v = t->data;
    size_t nnz = 0, rows = t->ndim == 2 ? (size_t)t->shape[0] : 0, at = 0;
    for (size_t i = 0; i < t->n; i++)
        nnz += v[i] != 0;
    if (t->ndim != 2 || !wire_worth_sparse(rows, (size_t)t->shape[1], nnz))
        return true;
    double *kept = arena_array(a, nnz, sizeof(*kept));
    int64_t *col = arena_array(a, nnz, sizeof(*col));
    int64_t *crow = arena_array(a, rows + 1, sizeof(*crow));
    if (!kept || !col || !crow)
        return false;
    for (size_t i = 0; i < t->n; i++) {
        size_t r = i / (size_t)t->shape[1];
        if (v[i] != 0) {
            kept[at] = v[i];
            col[at++] = (int64_t)(i % (size_t)t->shape[1]);
        }
        crow[r + 1] = (int64_t)at;
    }
    t->data = kept;
    t->n = nnz;
    t->crow = crow;
    t->col = col;
    return true;
}

/* What is sent second. Cross-entropy with weights w has the loss
 *
 *   L' = - sum_i w_i * logprob_i,   dL'/dlogprob_i = - w_i
 *
 * so w_i = - dL/dlogprob_i makes the service backpropagate the gradient of the custom loss L.
 * Values of L' mean nothing; its metrics are overlaid by those of the loss. */
tinker_datum *custom_backward_data(struct arena *a, const tinker_datum *data,
                                   const tinker_loss_report *r)
{
    size_t n = r->n_gradients;
    tinker_datum *out = arena_array(a, n, sizeof(*out));
    tinker_named_tensor *in = arena_array(a, 2 * n, sizeof(*in));
    for (size_t i = 0; out && in && i < n; i++) {
        tinker_tensor w = r->gradients[i];
        double *v = arena_array(a, w.n, sizeof(*v));
        if (!v)
            return NULL;
        for (size_t k = 0; k < w.n; k++)
            v[k] = -((const double *)w.data)[k];
        w.data = v;
        if (!maybe_sparse(a, &w))
            return NULL;
        out[i] = with_weights(&data[i], &w, in + 2 * i);
    }
    return in ? out : NULL;
}

/* ---- the two passes ------------------------------------------------------------------------- */

/* Where the logprobs of each datum are in the result of the forward pass. Nothing is copied: the
 * future keeps them. */
tinker_status custom_logprobs(const tinker_forward_backward *res, size_t n, tinker_tensor *out,
                              tinker_error *err)
{
    if (res->n_outputs != n)
        return err_set(err, TINKER_EPROTOCOL, "forward returned %zu outputs for %zu datums",
                       res->n_outputs, n);
    for (size_t i = 0; i < n; i++) {
        const tinker_loss_output *o = &res->outputs[i];
        size_t k = 0;
        while (k < o->n_tensors && strcmp(o->tensors[k].name, "logprobs") != 0)
            k++;
        if (k == o->n_tensors)
            return err_set(err, TINKER_EPROTOCOL, "forward returned no logprobs for datum %zu", i);
        out[i] = o->tensors[k].tensor;
    }
    return TINKER_OK;
}

/* Events go to the hooks of the service, then to the caller's own observer. */
struct told {
    struct hooks *hooks;
    tinker_loss_event_fn *observer;
    void *state;
};

static void send_loss_event(const tinker_loss_event *event, void *state)
{
    const struct told *to = state;
    loss_event(to->hooks, event);
    if (to->observer)
        to->observer(event, to->state);
}

/* Run the loss and its regularizers, and differentiate. Both the hooks of the service and the
 * observer in the options hear of every step. */
tinker_loss_report *custom_evaluate(struct hooks *hooks, tinker_loss_fn *fn, void *state,
                                    const tinker_datum *data, const tinker_tensor *logprobs,
                                    size_t n, const tinker_custom_options *opts, tinker_error *err)
{
    struct told to = { hooks, opts->observer, opts->observer_state };
    tinker_custom_options told = *opts;
    told.observer = send_loss_event;
    told.observer_state = &to;
    return tinker_loss_evaluate(fn, state, data, logprobs, n, &told, err);
}
