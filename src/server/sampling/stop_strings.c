/* stop_strings.c - see stop_strings.h.
 *
 * Each token is decoded, and its text goes byte by byte through the matcher, so nothing of it has
 * to be kept.  A token may end inside a character: the decoder holds back incomplete UTF-8. */
#include "server/sampling/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/sampling/string_match.h"

/* One of the sequences that a request samples at the same time. */
struct sequence {
    tinker_decoder *decoder; /* tokens to text */
    uint32_t state;          /* of the matcher after that text */
};

struct stop_strings {
    struct string_match *match;
    tinker_text text; /* of one token; all sequences are decoded on the same thread */
    struct sequence *sequences;
    size_t n_sequences;
};

/* Refuse what no request needs before it costs anything: NULL, or what is wrong. */
const char *stop_strings_problem(const tinker_sampling_params *p)
{
    size_t bytes = 0;
    if (p->n_stop > STOPS_MAX)
        return "sampling_params.stop: more than 1024 strings or tokens";
    for (size_t i = 0; p->stop_strings && i < p->n_stop; i++)
        bytes += strlen(p->stop_strings[i]);
    return bytes > STOP_BYTES_MAX ? "sampling_params.stop: more than 65536 bytes" : NULL;
}

struct stop_strings *stop_strings_new(tinker_tokenizer *t, const char *const *strings, size_t n,
                                      size_t n_sequences, tinker_error *err)
{
    if (!t) {
        err_set(err, TINKER_EINVAL, "stop strings need a tokenizer, and this model has none");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (!strings[i][0]) { /* it would match at once */
            err_set(err, TINKER_EINVAL, "sampling_params.stop[%zu] is empty", i);
            return NULL;
        }
    struct stop_strings *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "stop strings");
        return NULL;
    }
    /* One automaton for all sequences: they differ only in the state that they are in. */
    s->match = string_match_new(strings, n);
    s->sequences = calloc(n_sequences ? n_sequences : 1, sizeof(*s->sequences));
    if (!s->match || !s->sequences) {
        err_nomem(err, "stop strings");
        goto fail;
    }
    /* Set before the loop: on failure the decoders that are not made yet are NULL. */
    s->n_sequences = n_sequences;
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
    for (size_t i = 0; i < s->n_sequences; i++)
        tinker_decoder_free(s->sequences[i].decoder);
    tinker_text_clear(&s->text);
    string_match_free(s->match);
    free(s->sequences);
    free(s);
}

/* 1: a stop string has just been completed, maybe in the middle of the token; the client cuts the
 * text.  The rest of the token is not read, for the sequence ends here.  Work per byte does not
 * depend on the number of strings. */
int stop_strings_add_token(struct stop_strings *s, size_t sequence, int32_t token)
{
    struct sequence *q = &s->sequences[sequence];
    /* The buffer of the last token is used again. */
    s->text.n = 0;
    /* A token that does not decode cannot be part of a match. */
    if (tinker_decoder_put(q->decoder, &token, 1, &s->text, NULL) != TINKER_OK)
        return 0;
    for (size_t i = 0; i < s->text.n; i++) {
        q->state = string_match_next(s->match, q->state, (unsigned char)s->text.s[i]);
        if (string_match_is_end(s->match, q->state))
            return 1;
    }
    return 0;
}
