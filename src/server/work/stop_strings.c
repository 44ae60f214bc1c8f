/* stop_strings.c - see stop_strings.h.
 *
 * Only as much text is kept per sequence as the longest stop string can still need. */
#include "server/work/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct sequence {
    tinker_decoder *decoder;
    tinker_text text; /* the tail of what was generated */
};

struct stop_strings {
    char **strings;
    size_t n, longest;
    struct sequence *sequences;
    size_t n_sequences;
};

static int copy_strings(struct stop_strings *s, const char *const *strings, size_t n,
                        tinker_error *err)
{
    s->strings = calloc(n ? n : 1, sizeof(*s->strings));
    if (!s->strings)
        return err_nomem(err, "stop strings");
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (!len)
            return err_set(err, TINKER_EINVAL, "sampling_params.stop[%zu] is empty", i);
        s->strings[i] = strdup(strings[i]);
        if (!s->strings[i])
            return err_nomem(err, "stop strings");
        s->n++;
        s->longest = len > s->longest ? len : s->longest;
    }
    return TINKER_OK;
}

static int open_decoders(struct stop_strings *s, tinker_tokenizer *t, size_t n, tinker_error *err)
{
    s->sequences = calloc(n ? n : 1, sizeof(*s->sequences));
    if (!s->sequences)
        return err_nomem(err, "stop strings");
    s->n_sequences = n;
    for (size_t i = 0; i < n; i++) {
        s->sequences[i].decoder = tinker_decoder_new(t, NULL, err);
        if (!s->sequences[i].decoder)
            return err ? (int)err->status : TINKER_ENOMEM;
    }
    return TINKER_OK;
}

struct stop_strings *stop_strings_new(tinker_tokenizer *t, const char *const *strings, size_t n,
                                      size_t n_samples, tinker_error *err)
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
    if (copy_strings(s, strings, n, err) == TINKER_OK &&
        open_decoders(s, t, n_samples, err) == TINKER_OK)
        return s;
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

/* The text may hold NUL bytes, so strstr() would not do. */
static int contains_string(const tinker_text *text, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= text->n; i++)
        if (text->s[i] == what[0] && memcmp(text->s + i, what, n) == 0)
            return 1;
    return 0;
}

int stop_strings_add_token(struct stop_strings *s, size_t sample, int32_t token)
{
    struct sequence *q = &s->sequences[sample];
    if (tinker_decoder_put(q->decoder, &token, 1, &q->text, NULL) != TINKER_OK || !q->text.n)
        return 0;
    for (size_t i = 0; i < s->n; i++)
        if (contains_string(&q->text, s->strings[i]))
            return 1;
    /* What is left of a match that may still come is shorter than the longest string. */
    size_t keep = s->longest ? s->longest - 1 : 0;
    if (q->text.n > keep) {
        memmove(q->text.s, q->text.s + q->text.n - keep, keep + 1);
        q->text.n = keep;
    }
    return 0;
}
