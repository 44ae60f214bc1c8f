/* model_tokenizer.c - the tokenizer of the model behind a client.
 *
 * The service says which model it is, and perhaps which tokenizer; the files are this
 * machine's own.  Each call asks the service again, as the reference does: a program keeps
 * the tokenizer.  Everything here runs in the caller's thread. */
#include "client/data/model_tokenizer.h"

#include <tinker/training.h>

#include "base/err.h"
#include "base/os.h"
#include "client/sampling/sampling_client.h"
#include "client/training/training_client.h"

/* `id` is what the service calls the tokenizer: a repository, or, when it runs on this machine, a
 * directory. NULL: it did not say. What the caller asks for wins, then a directory, then the
 * repository. */
static tinker_tokenizer *load_named(const char *model, const char *id,
                                    const tinker_tokenizer_options *opts, tinker_error *err)
{
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    if (opts && opts_copy(&o, sizeof(o), opts, "tinker_tokenizer_options", err) != TINKER_OK)
        return NULL;
    if (o.tokenizer_id)
        return tinker_tokenizer_load(model ? model : o.tokenizer_id, &o, err);
    if (id && os_is_dir(id) && !o.loader)
        return tinker_tokenizer_load(id, &o, err);
    if (!model && !id) {
        err_set(err, TINKER_EPROTOCOL, "the service does not say which model this is");
        return NULL;
    }
    o.tokenizer_id = id;
    return tinker_tokenizer_load(model ? model : id, &o, err);
}

/* base_model is the repository; model_name may be a name of the service's own, and is used only
 * without it. */
tinker_tokenizer *model_tokenizer_load(const tinker_future *answer,
                                       const tinker_tokenizer_options *opts, tinker_error *err)
{
    const tinker_model_info *info = tinker_future_model_info(answer);
    if (!info)
        return load_named(tinker_future_base_model(answer), NULL, opts, err);
    return load_named(info->base_model ? info->base_model : info->model_name, info->tokenizer_id,
                      opts, err);
}

/* Wait for an answer that is the caller's own, load, free it. Loading has no timeout: it only
 * reads files. */
static tinker_tokenizer *load_once(tinker_future *f, const tinker_tokenizer_options *opts,
                                   int64_t timeout_ms, tinker_error *err)
{
    tinker_tokenizer *t = NULL;
    if (f && tinker_future_wait(f, timeout_ms, err) == TINKER_OK)
        t = model_tokenizer_load(f, opts, err);
    tinker_future_free(f);
    return t;
}

tinker_tokenizer *tinker_training_create_tokenizer(tinker_training *t,
                                                   const tinker_tokenizer_options *opts,
                                                   int64_t timeout_ms, tinker_error *err)
{
    return load_once(training_client_ask_name(t, err), opts, timeout_ms, err);
}

tinker_tokenizer *tinker_sampler_create_tokenizer(tinker_sampler *s,
                                                  const tinker_tokenizer_options *opts,
                                                  int64_t timeout_ms, tinker_error *err)
{
    return load_once(tinker_sampler_get_base_model(s, err), opts, timeout_ms, err);
}
