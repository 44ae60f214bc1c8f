/* tok_model.c - text and tokens by the name of a model, and text as a model input. */
#include <stdlib.h>
#include <string.h>
#include <tinker/tokenizer.h>
#include "base/err.h"

tinker_status tinker_model_encode(const char *model, const char *text, size_t n,
                                  const tinker_tokenizer_options *opts,
                                  const tinker_encode_options *how, tinker_tokens *out,
                                  tinker_error *err)
{
    tinker_error mine;
    tinker_tokenizer *t = tinker_tokenizer_load(model, opts, &mine);
    tinker_status s = t ? tinker_tokenizer_encode(t, text, n, how, out, &mine) : mine.status;
    tinker_tokenizer_free(t);
    if (s != TINKER_OK && err)
        *err = mine;
    return s;
}

tinker_status tinker_model_decode(const char *model, const int32_t *ids, size_t n,
                                  const tinker_tokenizer_options *opts,
                                  const tinker_decode_options *how, tinker_text *out,
                                  tinker_error *err)
{
    tinker_error mine;
    tinker_tokenizer *t = tinker_tokenizer_load(model, opts, &mine);
    tinker_status s = t ? tinker_tokenizer_decode(t, ids, n, how, out, &mine) : mine.status;
    tinker_tokenizer_free(t);
    if (s != TINKER_OK && err)
        *err = mine;
    return s;
}

/* Input, chunk and tokens in one piece of memory. */
struct owned_input {
    tinker_model_input input;
    tinker_chunk chunk;
    int32_t tokens[];
};

static tinker_model_input *own(const tinker_tokens *ids, tinker_error *err)
{
    struct owned_input *o = malloc(sizeof(*o) + ids->n * sizeof(*o->tokens));
    if (!o) {
        err_nomem(err, "model input");
        return NULL;
    }
    o->chunk = (tinker_chunk){ .tokens = o->tokens, .n_tokens = ids->n };
    o->input = (tinker_model_input){ &o->chunk, 1 };
    if (ids->n)
        memcpy(o->tokens, ids->ids, ids->n * sizeof(*o->tokens));
    return &o->input;
}

tinker_model_input *tinker_model_input_from_text(const tinker_tokenizer *t, const char *text,
                                                 size_t n, const tinker_encode_options *how,
                                                 tinker_error *err)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_model_input *input = NULL;
    if (tinker_tokenizer_encode(t, text, n, how, &ids, err) == TINKER_OK)
        input = own(&ids, err);
    tinker_tokens_clear(&ids);
    return input;
}

void tinker_model_input_free(tinker_model_input *input)
{
    free(input); /* the first member of what was allocated */
}
