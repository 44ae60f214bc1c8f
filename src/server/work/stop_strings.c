/* stop_strings.c - see stop_strings.h.
 *
 * Each token is decoded and appended to the tail of its sequence; only as much of the tail is
 * kept as a match that is still to come can need.  A token may end inside a character: the
 * decoder holds back incomplete UTF-8. */
#include "server/work/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* One of the sequences that a request samples at the same time. */
struct sequence {
    tinker_decoder *decoder; /* tokens to text */
    tinker_text text;        /* the tail of what was generated */
};

struct stop_strings {
    char **strings;
    size_t n, longest; /* of the strings; bytes of the longest one */
    struct sequence *sequences;
    size_t n_sequences;
};

struct stop_strings *stop_strings_new(tinker_tokenizer *t, const char *const *strings, size_t n,
                                      size_t n_sequences, tinker_error *err)
{
    if (!t) {
        err_set(err, TINKER_EINVAL, "stop strings need a tokenizer, and this model has none");
        return NULL;
    }
    struct stop_strings *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "stop strings");
        return NULL;
    }
    s->strings = calloc(n ? n : 1, sizeof(*s->strings));
    s->sequences = calloc(n_sequences ? n_sequences : 1, sizeof(*s->sequences));
    if (!s->strings || !s->sequences) {
        err_nomem(err, "stop strings");
        goto fail;
    }
    s->n_sequences = n_sequences;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (!len) { /* it would match at once */
            err_set(err, TINKER_EINVAL, "sampling_params.stop[%zu] is empty", i);
            goto fail;
        }
        s->strings[i] = strdup(strings[i]);
        if (!s->strings[i]) {
            err_nomem(err, "stop strings");
            goto fail;
        }
        s->n++;
        s->longest = len > s->longest ? len : s->longest;
    }
    for (size_t i = 0; i < n_sequences; i++) {
        s->sequences[i].decoder = tinker_decoder_new(t, NULL, err);
        if (!s->sequences[i].decoder)
            goto fail;
    }
    return s;
fail:
    stop_strings_free(s);
    return NULL;
}

void stop_strings_free(struct stop_strings *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_sequences; i++) {
        tinker_decoder_free(s->sequences[i].decoder);
        tinker_text_clear(&s->sequences[i].text);
    }
    for (size_t i = 0; i < s->n; i++)
        free(s->strings[i]);
    free(s->strings);
    free(s->sequences);
    free(s);
}

int stop_strings_add_token(struct stop_strings *s, size_t sequence, int32_t token)
{
    struct sequence *q = &s->sequences[sequence];
    /* A token that does not decode cannot be part of a match; neither can one without text yet. */
    if (tinker_decoder_put(q->decoder, &token, 1, &q->text, NULL) != TINKER_OK || !q->text.n)
        return 0;
    /* The text may hold NUL bytes, so strstr() would not do. */
    for (size_t i = 0; i < s->n; i++) {
        const char *stop = s->strings[i];
        size_t n = strlen(stop);
        for (size_t at = 0; at + n <= q->text.n; at++)
            if (q->text.s[at] == stop[0] && memcmp(q->text.s + at, stop, n) == 0)
                return 1;
    }
    /* The part of a later match that is here already is shorter than the longest string. */
    size_t keep = s->longest ? s->longest - 1 : 0;
    if (q->text.n > keep) {
        memmove(q->text.s, q->text.s + q->text.n - keep, keep + 1); /* with the final NUL */
        q->text.n = keep;
    }
    return 0;
}
