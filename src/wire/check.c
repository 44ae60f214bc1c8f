/* check.c - refuses data that cannot be sent, and estimates the size of the rest.
 *
 * Element values are looked at only where a conversion could lose them (uint64 and
 * float64) and in sparse indices, so a large float32 or int64 batch costs nothing. */
#include "wire/check.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "base/err.h"
#include "wire/json/describe.h"

/* ---- element types --------------------------------------------------------------- */

/* The type that an element has on the wire; 0: it cannot be sent. */
tinker_dtype wire_dtype(tinker_dtype in)
{
    switch (in) {
    case TINKER_FLOAT32:
    case TINKER_FLOAT64:
        return TINKER_FLOAT32;
    case TINKER_INT64:
    case TINKER_INT32:
    case TINKER_UINT32:
    case TINKER_UINT64:
        return TINKER_INT64;
    /* Results only: requests of the reference carry float32 and int64, nothing else. */
    case TINKER_BFLOAT16:
        break;
    }
    return (tinker_dtype)0;
}

/* Bytes of an element in memory; 0: no such type. */
size_t wire_dtype_size(tinker_dtype dtype)
{
    switch (dtype) {
    case TINKER_BFLOAT16:
        return 2;
    case TINKER_FLOAT32:
    case TINKER_INT32:
    case TINKER_UINT32:
        return 4;
    case TINKER_FLOAT64:
    case TINKER_INT64:
    case TINKER_UINT64:
        return 8;
    }
    return 0;
}

/* ---- tensors --------------------------------------------------------------------- */

/* Compressed sparse rows: crow[i] .. crow[i + 1] are the entries of row i, col[k] their columns. */
static tinker_status check_sparse(const tinker_tensor *t, const struct wire_place *at,
                                  tinker_error *err)
{
    if (!t->crow || !t->col)
        return wire_refuse(at, err, "row pointers and column indices go together");
    if (!t->shape || t->ndim != 2)
        return wire_refuse(at, err, "a sparse tensor needs a shape of two dimensions");
    /* The struct does not say how long crow is. The caller vouches for rows + 1 entries; decoders
     * compare the counts before they call this. */
    int64_t rows = t->shape[0], cols = t->shape[1];
    if (rows < 0 || cols < 0)
        return wire_refuse(at, err, "the shape holds a negative size");
    /* The ends first: between them the pointers only ascend, so all are in range. */
    if (t->crow[0] != 0 || t->crow[rows] < 0 || (uint64_t)t->crow[rows] != t->n)
        return wire_refuse(at, err, "row pointers must run from 0 to %zu", t->n);
    for (int64_t i = 0; i < rows; i++)
        if (t->crow[i] > t->crow[i + 1] || t->crow[i] < 0)
            return wire_refuse(at, err, "row pointer %lld decreases", (long long)i + 1);
    for (size_t i = 0; i < t->n; i++)
        /* In any order, but in range: a reader uses them as indices into a dense row. */
        if (t->col[i] < 0 || t->col[i] >= cols)
            return wire_refuse(at, err, "column index %zu is %lld, of %lld columns", i,
                               (long long)t->col[i], (long long)cols);
    return TINKER_OK;
}

/* Only conversions that could change a value silently are worth a pass over the data. */
static tinker_status check_values(const tinker_tensor *t, const struct wire_place *at,
                                  tinker_error *err)
{
    const uint64_t *u = t->data;
    const double *d = t->data;
    for (size_t i = 0; t->dtype == TINKER_UINT64 && i < t->n; i++)
        if (u[i] > INT64_MAX)
            return wire_refuse(at, err, "value %zu is above the largest int64", i);
    /* Rounding to float32 is expected, becoming infinite is not. */
    for (size_t i = 0; t->dtype == TINKER_FLOAT64 && i < t->n; i++)
        /* NaN and infinity pass: protobuf carries them, and the writer of JSON refuses them. */
        if (isfinite(d[i]) && !isfinite((float)d[i]))
            return wire_refuse(at, err, "value %zu (%g) is too large for float32", i, d[i]);
    return TINKER_OK;
}

/* For both directions; count is what the shape says, n what there is. */
static tinker_status check_tensor(const tinker_tensor *t, const struct wire_place *at,
                                  tinker_error *err)
{
    /* Without a shape the tensor is a vector of whatever length it has. */
    uint64_t count = t->n;
    if (t->n && !t->data)
        return wire_refuse(at, err, "has no data");
    /* So that n times eight bytes cannot wrap. */
    if (t->n > SIZE_MAX / 8)
        return wire_refuse(at, err, "is too large");
    if (!t->shape && t->ndim)
        return wire_refuse(at, err, "has %zu dimensions but no shape", t->ndim);
    /* Decoders hold a shape in an array of this size on the stack. */
    if (t->ndim > WIRE_DIMENSIONS_MAX)
        return wire_refuse(at, err, "has more than %d dimensions", WIRE_DIMENSIONS_MAX);
    if (t->crow || t->col) {
        tinker_status status = check_sparse(t, at, err);
        return status ? status : check_values(t, at, err);
    }
    /* The product of the dimensions, without overflow; one of 0 makes it 0 whatever the others. */
    bool zero = false;
    for (size_t i = 0; t->shape && i < t->ndim; i++)
        zero = zero || t->shape[i] == 0;
    for (size_t i = 0; t->shape && i < t->ndim; i++) {
        /* A dimension of 0 never gets to the division: zero is set then. */
        count = i ? count : 1;
        if (t->shape[i] < 0 || (!zero && count > (uint64_t)INT64_MAX / (uint64_t)t->shape[i]))
            return wire_refuse(at, err, "the shape is negative or too large");
        count = zero ? 0 : count * (uint64_t)t->shape[i];
    }
    if (t->shape && t->ndim == 0) /* a scalar */
        count = 1;
    if (count != t->n)
        return wire_refuse(at, err, "expected %llu values, got %zu", (unsigned long long)count,
                           t->n);
    return check_values(t, at, err);
}

/* A tensor that is sent: the service takes no bfloat16. */
static tinker_status check_input_tensor(const tinker_tensor *t, const struct wire_place *at,
                                        tinker_error *err)
{
    /* A message of its own, because the type exists and users meet it in results. */
    if (t->dtype == TINKER_BFLOAT16)
        return wire_refuse(at, err, "bfloat16 is not accepted as input: use float32");
    if (!wire_dtype(t->dtype))
        return wire_refuse(at, err, "unknown element type %d", (int)t->dtype);
    return check_tensor(t, at, err);
}

/* No place: callers put the name in front themselves. */
tinker_status wire_check_tensor(const tinker_tensor *t, tinker_error *err)
{
    return check_input_tensor(t, NULL, err);
}

/* Results may be bfloat16, so only a type that does not exist is refused. */
tinker_status wire_check_result_tensor(const tinker_tensor *t, tinker_error *err)
{
    if (!wire_dtype_size(t->dtype))
        return wire_refuse(NULL, err, "unknown element type %d", (int)t->dtype);
    return check_tensor(t, NULL, err);
}

/* ---- model inputs ---------------------------------------------------------------- */

/* Refuse one member of the value at `at`, named as on the wire. */
static tinker_status refuse_member(const struct wire_place *at, const char *name, tinker_error *err,
                                   const char *why)
{
    struct wire_place member = { .up = at, .name = name };
    return wire_refuse(&member, err, "%s", why);
}

/* What the service decodes; other images are converted by the caller, who knows how. */
static tinker_status check_format(const tinker_chunk *c, const struct wire_place *at,
                                  tinker_error *err)
{
    struct wire_place member = { .up = at, .name = "format" };
    if (c->format && (strcmp(c->format, "png") == 0 || strcmp(c->format, "jpeg") == 0))
        return TINKER_OK;
    return wire_refuse(&member, err, "expected \"png\" or \"jpeg\", got \"%.40s\"",
                       c->format ? c->format : "");
}

/* Per kind, the members that it needs.  Pointers to images work for sampling only. */
static tinker_status check_chunk(const tinker_chunk *c, bool pointers, const struct wire_place *at,
                                 tinker_error *err)
{
    switch (c->kind) {
    case TINKER_CHUNK_TEXT:
        /* Estimates count up to 10 bytes a token (size.c), a product that must not wrap. */
        if ((c->n_tokens && !c->tokens) || c->n_tokens > SIZE_MAX / 16)
            return refuse_member(at, "tokens", err, c->tokens ? "too many" : "has no data");
        return TINKER_OK;
    case TINKER_CHUNK_IMAGE:
        if (c->n_bytes && !c->bytes)
            return refuse_member(at, "data", err, "has no data");
        /* The field is an int32 in protobuf. */
        if (c->has_expected_tokens &&
            (c->expected_tokens < INT32_MIN || c->expected_tokens > INT32_MAX))
            return refuse_member(at, "expected_tokens", err, "does not fit 32 bits");
        return check_format(c, at, err);
    case TINKER_CHUNK_IMAGE_POINTER:
        /* The Chunk of protobuf has no arm for a pointer; sampling requests are JSON. */
        if (!pointers)
            return wire_refuse(at, err,
                               "an image_asset_pointer works for sampling only: "
                               "training needs the image bytes");
        if (!c->location)
            return refuse_member(at, "location", err, "is required");
        return check_format(c, at, err);
    case TINKER_CHUNK_DMEL:
        /* The length in tokens stands in the header of the tensor, so there has to be one. */
        if (!c->bytes || !c->n_bytes)
            return refuse_member(at, "dmel", err, "is empty");
        return TINKER_OK;
    }
    return wire_refuse(at, err, "unknown kind of chunk %d", (int)c->kind);
}

/* item.index is part of the place, so a failure names its chunk without further ado. */
static tinker_status check_chunks(const tinker_model_input *input, bool pointers,
                                  const struct wire_place *at, tinker_error *err)
{
    struct wire_place list = { .up = at, .name = "chunks" };
    struct wire_place item = { .up = &list };
    if (input->n_chunks && !input->chunks)
        return wire_refuse(&list, err, "has no data");
    for (; item.index < input->n_chunks; item.index++) {
        tinker_status status = check_chunk(&input->chunks[item.index], pointers, &item, err);
        if (status)
            return status;
    }
    return TINKER_OK;
}

tinker_status wire_check_model_input(const tinker_model_input *input, bool pointers,
                                     tinker_error *err)
{
    return check_chunks(input, pointers, NULL, err);
}

/* ---- datums ---------------------------------------------------------------------- */

/* Spans must cover `length` positions without gaps; -1: how many there are is not known here. */
static tinker_status check_spans(const tinker_provenance *spans, size_t n, int64_t length,
                                 const struct wire_place *at, tinker_error *err)
{
    int64_t covered = 0;
    if (!spans)
        return wire_refuse(at, err, "has no data");
    for (size_t i = 0; i < n; i++) {
        const tinker_provenance *s = &spans[i];
        if (!s->sequence_id || !*s->sequence_id)
            return wire_refuse(at, err, "span %zu has no sequence_id", i);
        /* Whether the sequence has these positions is known to the service only. */
        if (s->offset < 0 || s->length < 0 || s->length > INT64_MAX - covered)
            return wire_refuse(at, err, "span %zu has a negative offset or length", i);
        covered += s->length;
    }
    /* Spans follow each other, so only their sum is compared; offset is a position in the sequence,
     * not in the field. */
    if (length >= 0 && covered != length)
        return wire_refuse(at, err, "the spans cover %lld positions but the field has %lld",
                           (long long)covered, (long long)length);
    return TINKER_OK;
}

/* Both lists or none, each as long as what it describes. */
static tinker_status check_provenance(const tinker_datum *d, const struct wire_place *item,
                                      tinker_error *err)
{
    struct wire_place input = { .up = item, .name = "model_input_spans" };
    struct wire_place target = { .up = item, .name = "loss_fn_input_spans" };
    int64_t tokens = 0, targets = -1;
    if (!d->n_input_spans && !d->n_target_spans)
        return TINKER_OK;
    if (!d->n_input_spans || !d->n_target_spans)
        return wire_refuse(d->n_input_spans ? &target : &input, err,
                           "is missing: spans are given for input and targets or for neither");
    for (size_t i = 0; i < d->model_input.n_chunks && tokens >= 0; i++) {
        const tinker_chunk *c = &d->model_input.chunks[i];
        /* how many positions an image takes is for the service to say */
        tokens = c->kind == TINKER_CHUNK_TEXT ? tokens + (int64_t)c->n_tokens : -1;
    }
    for (size_t i = 0; i < d->n_inputs; i++) {
        const tinker_tensor *t = &d->inputs[i].tensor;
        /* A matrix has several targets per position; how spans cover it is not checked here. */
        if (strcmp(d->inputs[i].name, "target_tokens") == 0 && (!t->shape || t->ndim == 1))
            targets = (int64_t)t->n;
    }
    tinker_status status = check_spans(d->input_spans, d->n_input_spans, tokens, &input, err);
    return status ? status : check_spans(d->target_spans, d->n_target_spans, targets, &target, err);
}

/* Everything is checked before anything is sent: a batch is cut into several requests, and a bad
 * datum in the second must not be found after the first has trained. */
tinker_status wire_check_data(const tinker_datum *data, size_t n, tinker_error *err)
{
    struct wire_place list = { .name = "data" };
    struct wire_place item = { .up = &list };
    struct wire_place input = { .up = &item, .name = "model_input" };
    /* The service refuses an empty batch; saying so here costs no request. */
    if (n == 0 || !data)
        return wire_refuse(&list, err, "at least one datum is needed");
    for (; item.index < n; item.index++) {
        const tinker_datum *d = &data[item.index];
        /* Which names a loss needs, and of which types, is for the service to say. */
        struct wire_place map = { .up = &item, .name = "loss_fn_inputs" };
        /* input refers to item, so its place moves with the loop. */
        tinker_status status = check_chunks(&d->model_input, false, &input, err);
        if (status)
            return status;
        if (d->n_inputs && !d->inputs)
            return wire_refuse(&map, err, "has no data");
        for (size_t i = 0; i < d->n_inputs; i++) {
            struct wire_place entry = { .up = &map, .name = d->inputs[i].name };
            if (!entry.name || !*entry.name)
                return wire_refuse(&map, err, "entry %zu has no name", i);
            /* A handful of names: comparing all pairs is cheaper than a table. */
            for (size_t j = 0; j < i; j++)
                if (strcmp(d->inputs[j].name, entry.name) == 0)
                    return wire_refuse(&entry, err, "is given twice");
            status = check_input_tensor(&d->inputs[i].tensor, &entry, err);
            if (status)
                return status;
        }
        status = check_provenance(d, &item, err);
        if (status)
            return status;
    }
    return TINKER_OK;
}

/* ---- settings -------------------------------------------------------------------- */

/* Which losses exist is the service's to say: it may be newer than this library. */
tinker_status wire_check_loss(const tinker_loss *loss, tinker_error *err)
{
    if (!loss->name || !*loss->name)
        return err_set(err, TINKER_EINVAL, "loss_fn: has no name, for example cross_entropy");
    if (loss->n_config && !loss->config)
        return err_set(err, TINKER_EINVAL, "loss_fn_config: is NULL, and has %zu entries",
                       loss->n_config);
    for (size_t i = 0; i < loss->n_config; i++) {
        if (!loss->config[i].name || !*loss->config[i].name)
            return err_set(err, TINKER_EINVAL, "loss_fn_config: entry %zu has no name", i);
        if (!isfinite(loss->config[i].value))
            return err_set(err, TINKER_EINVAL, "loss_fn_config.%.80s: must be finite",
                           loss->config[i].name);
    }
    if (loss->n_texts && !loss->texts)
        return err_set(err, TINKER_EINVAL, "loss_fn_config: texts is NULL, and has %zu entries",
                       loss->n_texts);
    for (size_t i = 0; i < loss->n_texts; i++)
        if (!loss->texts[i].name || !*loss->texts[i].name || !loss->texts[i].value)
            return err_set(err, TINKER_EINVAL, "loss_fn_config: text %zu has no name or no value",
                           i);
    return TINKER_OK;
}

/* The largest rank is the service's to say. */
tinker_status wire_check_lora(const tinker_lora *lora, tinker_error *err)
{
    if (lora->rank < 1)
        return err_set(err, TINKER_EINVAL, "lora_config.rank: must be positive, is %lld",
                       (long long)lora->rank);
    /* Nothing to train is a mistake that would show only after hours. */
    if (!lora->train_attn && !lora->train_mlp && !lora->train_unembed)
        return err_set(err, TINKER_EINVAL,
                       "lora_config: one of train_attn, train_mlp and train_unembed must be set");
    return TINKER_OK;
}

/* JSON has no infinity and no NaN.  Ranges are the service's to judge: it may be newer. */
tinker_status wire_check_adam(const tinker_adam *adam, tinker_error *err)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {
        { "learning_rate", adam->learning_rate },
        { "beta1", adam->beta1 },
        { "beta2", adam->beta2 },
        { "eps", adam->eps },
        { "weight_decay", adam->weight_decay },
        { "grad_clip_norm", adam->grad_clip_norm },
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (!isfinite(fields[i].value))
            return err_set(err, TINKER_EINVAL, "adam_params.%s: must be finite", fields[i].name);
    return TINKER_OK;
}

/* Ranges that no model and no service can give another meaning; all others are for the service. */
tinker_status wire_check_sampling_params(const tinker_sampling_params *p, tinker_error *err)
{
    /* 0 stands for "not given": as many as the context has room for. */
    if (p->max_tokens < 0)
        return err_set(err, TINKER_EINVAL, "sampling_params.max_tokens: must not be negative");
    /* 0 is greedy decoding. */
    if (!isfinite(p->temperature) || p->temperature < 0)
        return err_set(err, TINKER_EINVAL,
                       "sampling_params.temperature: must be zero or a positive number");
    if (!isfinite(p->top_p) || p->top_p < 0 || p->top_p > 1)
        return err_set(err, TINKER_EINVAL, "sampling_params.top_p: must be between 0 and 1");
    /* -1 is the default of the reference, and means no limit. */
    if (p->top_k < -1)
        return err_set(err, TINKER_EINVAL, "sampling_params.top_k: must be -1 or more");
    /* Negated, so that NaN is refused, too. */
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return err_set(err, TINKER_EINVAL, "sampling_params.min_p: must be between 0 and 1");
    if (!isfinite(p->repetition_penalty) || p->repetition_penalty < 0)
        return err_set(err, TINKER_EINVAL,
                       "sampling_params.repetition_penalty: must be a positive number");
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return err_set(err, TINKER_EINVAL, "sampling_params.%s: must be finite",
                       isfinite(p->presence_penalty) ? "frequency_penalty" : "presence_penalty");
    if (p->n_logit_bias && !p->logit_bias)
        return err_set(err, TINKER_EINVAL, "sampling_params.logit_bias: %zu values but no list",
                       p->n_logit_bias);
    for (size_t i = 0; i < p->n_logit_bias; i++)
        if (!isfinite(p->logit_bias[i].bias) || p->logit_bias[i].token < 0)
            return err_set(err, TINKER_EINVAL,
                           "sampling_params.logit_bias[%zu]: expected a token id and a finite "
                           "number",
                           i);
    /* One member on the wire, which is a list of either. */
    if (p->stop_strings && p->stop_tokens)
        return err_set(err, TINKER_EINVAL, "sampling_params.stop: either texts or tokens");
    if (p->n_stop && !p->stop_strings && !p->stop_tokens)
        return err_set(err, TINKER_EINVAL, "sampling_params.stop: %zu stops but no list",
                       p->n_stop);
    return TINKER_OK;
}

tinker_status wire_check_checkpoint_name(const char *name, tinker_error *err)
{
    size_t n = name ? strlen(name) : 0, i = 0;
    /* What is safe in a URL and as a file name everywhere. A leading dot would allow ".." and
     * hidden files; 255 bytes are the longest name of most file systems. */
    while (i < n && (isalnum((unsigned char)name[i]) || strchr("._-", name[i])))
        i++;
    if (n == 0 || n > WIRE_CHECKPOINT_NAME_MAX || i < n || name[0] == '.')
        return err_set(err, TINKER_EINVAL,
                       "checkpoint name \"%.60s\": expected 1 to %d letters, digits, '.', '_' or "
                       "'-', not starting with a dot",
                       n ? name : "", WIRE_CHECKPOINT_NAME_MAX);
    return TINKER_OK;
}
