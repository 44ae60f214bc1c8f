/* model_tokenizer.c - the tokenizer of the model behind a client.
 *
 * The service says which model it is, and perhaps which tokenizer; the files are this
 * machine's own.  Everything here runs in the caller's thread. */
#include <tinker/sampling.h>
#include <tinker/training.h>

#include "base/err.h"
#include "base/os.h"

/* `id` is what the service calls the tokenizer: a repository, or, when it runs on this
 * machine, a directory.  NULL: it did not say. */
static tinker_tokenizer *load(const char *model, const char *id,
                              const tinker_tokenizer_options *opts, tinker_error *err)
{
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    if (opts && opts_copy(&o, sizeof(o), opts, "tinker_tokenizer_options", err) != TINKER_OK)
        return NULL;
    if (o.tokenizer_id)
        return tinker_tokenizer_load(model ? model : o.tokenizer_id, &o, err);
    if (id && os_is_dir(id))
        return tinker_tokenizer_load(id, &o, err);
    if (!model && !id) {
        err_set(err, TINKER_EPROTOCOL, "the service does not say which model this is");
        return NULL;
    }
    o.tokenizer_id = id;
    return tinker_tokenizer_load(model ? model : id, &o, err);
}

tinker_tokenizer *tinker_training_tokenizer(tinker_training *t,
                                            const tinker_tokenizer_options *opts,
                                            int64_t timeout_ms, tinker_error *err)
{
    tinker_tokenizer *tokenizer = NULL;
    tinker_future *f = tinker_training_info(t, err);
    if (f && tinker_future_wait(f, timeout_ms, err) == TINKER_OK) {
        const tinker_model_info *info = tinker_future_model_info(f);
        tokenizer = load(info->model_name, info->tokenizer_id, opts, err);
    }
    tinker_future_free(f);
    return tokenizer;
}

tinker_tokenizer *tinker_sampler_tokenizer(tinker_sampler *s, const tinker_tokenizer_options *opts,
                                           int64_t timeout_ms, tinker_error *err)
{
    tinker_tokenizer *tokenizer = NULL;
    tinker_future *f = tinker_sampler_base_model(s, err);
    if (f && tinker_future_wait(f, timeout_ms, err) == TINKER_OK)
        tokenizer = load(tinker_future_path(f), NULL, opts, err);
    tinker_future_free(f);
    return tokenizer;
}
