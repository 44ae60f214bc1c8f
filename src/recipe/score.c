/* score.c - see score.h. */
#include "recipe/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const tinker_tensor *score_input(const tinker_datum *d, const char *name)
{
    for (size_t i = 0; i < d->n_inputs; i++)
        if (strcmp(d->inputs[i].name, name) == 0)
            return &d->inputs[i].tensor;
    return NULL;
}

/* NULL for sparse tensors (crow): no recipe makes them. */
const float *score_floats(const tinker_datum *d, const char *name)
{
    const tinker_tensor *t = score_input(d, name);
    return t && t->dtype == TINKER_FLOAT32 && !t->crow ? t->data : NULL;
}

/* Of a matrix (positions, k), the positions. */
size_t score_length(const tinker_datum *d)
{
    const tinker_tensor *t = score_input(d, "target_tokens");
    return !t ? 0 : t->ndim ? (size_t)t->shape[0] : t->n;
}

/* UTF-8 length of the text of targets[from..to), special tokens included. */
static bool add_bytes(struct score *s, const int64_t *targets, size_t from, size_t to,
                      const tinker_tokenizer *tokenizer)
{
    tinker_text text = TINKER_TEXT_INIT;
    int32_t *ids = malloc((to - from + 1) * sizeof(*ids));
    for (size_t i = from; ids && i < to; i++)
        ids[i - from] = (int32_t)targets[i];
    bool ok =
        ids && tinker_tokenizer_decode(tokenizer, ids, to - from, NULL, &text, NULL) == TINKER_OK;
    s->bytes += text.n;
    tinker_text_clear(&text);
    free(ids);
    return ok;
}

/* Text is measured by runs of counted tokens: a character of several tokens that are all counted
 * counts as it is written. Bits per byte count plain text only: special tokens have no bytes of
 * their own, so they end a run. 0 * -inf is skipped, as a masked token may be impossible. */
bool score_add(struct score *s, const tinker_datum *d, const float *logprobs, size_t n,
               const tinker_tokenizer *tokenizer)
{
    const float *weights = score_floats(d, "weights");
    const tinker_tensor *t = score_input(d, "target_tokens");
    const int64_t *targets = t && t->dtype == TINKER_INT64 && !t->crow ? t->data : NULL;
    bool flat = targets && t->n == n;
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        double w = weights ? weights[i] : 1;
        s->weighted += w == 0 ? 0 : w * logprobs[i];
        s->weight += w;
        s->trained += w != 0;
        if (!tokenizer || !flat)
            continue;
        if (w > 0 && !tinker_tokenizer_is_special(tokenizer, (int32_t)targets[i])) {
            s->counted += logprobs[i];
            continue;
        }
        if (begin < i && !add_bytes(s, targets, begin, i, tokenizer))
            return false;
        begin = i + 1;
    }
    return !tokenizer || !flat || begin >= n || add_bytes(s, targets, begin, n, tokenizer);
}

double score_nll(const struct score *s)
{
    return s->weight != 0 ? -s->weighted / s->weight : NAN;
}

/* Nats to bits by log 2. Unlike the loss per token it compares models with different tokenizers. */
double score_bpb(const struct score *s)
{
    return s->bytes ? -s->counted / (log(2) * (double)s->bytes) : NAN;
}

/* The logprobs of a pass; an output without them scores nothing. */
static struct score score_pass(const tinker_forward_backward *out, const tinker_datum *data,
                               size_t n, const tinker_tokenizer *tokenizer)
{
    struct score s = { 0 };
    for (size_t i = 0; i < n && i < out->n_outputs; i++)
        for (size_t k = 0; k < out->outputs[i].n_tensors; k++) {
            const tinker_named_tensor *t = &out->outputs[i].tensors[k];
            if (strcmp(t->name, "logprobs") == 0 && t->tensor.dtype == TINKER_FLOAT32)
                score_add(&s, &data[i], t->tensor.data, t->tensor.n, tokenizer);
        }
    return s;
}

double tinker_mean_nll(const tinker_forward_backward *out, const tinker_datum *data, size_t n)
{
    struct score s = score_pass(out, data, n, NULL);
    return score_nll(&s);
}

double tinker_bits_per_byte(const tinker_forward_backward *out, const tinker_datum *data, size_t n,
                            const tinker_tokenizer *tokenizer)
{
    struct score s = score_pass(out, data, n, tokenizer);
    return score_bpb(&s);
}

void tinker_score_logprobs(float *const *logprobs, const tinker_datum *data, size_t n,
                           const tinker_tokenizer *tokenizer, double *nll, double *bpb)
{
    struct score s = { 0 };
    for (size_t i = 0; i < n; i++)
        score_add(&s, &data[i], logprobs[i], score_length(&data[i]), tokenizer);
    *nll = score_nll(&s);
    *bpb = score_bpb(&s);
}
