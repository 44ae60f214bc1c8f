/* tok_functions.c - a tokenizer that is somebody else's: functions that encode and decode.
 *
 * It has no tables, so everything that asks them is answered here: before a text is cut, before
 * tokens are spelled.  Ids of it have no bytes, and no id is known to be special. */
#include <stdlib.h>

#include "base/err.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

tinker_tokenizer *tok_from_functions(const tinker_tokenizer_functions *functions, tinker_error *err)
{
    tinker_tokenizer_functions own = TINKER_TOKENIZER_FUNCTIONS_INIT;
    if (opts_copy(&own, sizeof(own), functions, "tinker_tokenizer_functions", err) != TINKER_OK)
        return NULL;
    if (!own.encode || !own.decode) {
        err_set(err, TINKER_EINVAL, "functions of a tokenizer: encode and decode are needed");
        return NULL;
    }
    tinker_tokenizer *t = calloc(1, sizeof(*t));
    if (!t || pthread_mutex_init(&t->lock, NULL) != 0) {
        free(t);
        err_nomem(err, "tokenizer");
        return NULL;
    }
    atomic_init(&t->refs, 1);
    arena_init(&t->arena, SIZE_MAX);
    map_init(&t->odd);
    for (int i = 0; i < 4; i++)
        t->special[i] = own.special[i];
    tinker_tokenizer_functions *kept = arena_memdup(&t->arena, &own, sizeof(own));
    if (!kept) {
        tinker_tokenizer_free(t); /* without functions, so the state is not freed */
        err_nomem(err, "tokenizer");
        return NULL;
    }
    t->functions = kept;
    return t;
}

tinker_status tok_functions_encode(const tinker_tokenizer *t, const char *text, size_t n,
                                   const tinker_encode_options *o, tinker_tokens *out,
                                   tinker_spans *spans, tinker_error *err)
{
    size_t had = out->n;
    if (spans)
        return err_set(err, TINKER_EINVAL, "this tokenizer tells no spans");
    if (!text && n)
        return err_set(err, TINKER_EINVAL, "there is no text");
    tinker_error own = { 0 };
    tinker_status status = t->functions->encode(text, n, o, out, &own, t->functions->state);
    if (status == TINKER_OK)
        return TINKER_OK;
    out->n = had; /* all or nothing, as ours */
    return err_set(err, status, "%s", own.message[0] ? own.message : "the tokenizer failed");
}

tinker_status tok_functions_decode(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                                   const tinker_decode_options *o, struct buf *out, bool *sound,
                                   tinker_error *err)
{
    tinker_text text = TINKER_TEXT_INIT;
    tinker_error own = { 0 };
    tinker_status status = t->functions->decode(ids, n, o, &text, &own, t->functions->state);
    *sound = utf8_valid_prefix(text.s ? text.s : "", text.n) == text.n;
    if (status == TINKER_OK)
        buf_append(out, text.s ? text.s : "", text.n);
    else
        err_set(err, status, "%s", own.message[0] ? own.message : "the tokenizer failed");
    tinker_text_clear(&text);
    return status;
}
