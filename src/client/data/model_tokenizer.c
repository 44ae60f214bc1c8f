/* model_tokenizer.c - the tokenizer of the model behind a client.
 *
 * The service says which model it is, and perhaps which tokenizer; the files are this
 * machine's own.  A tokenizer that is asked for asks the service each time, as the reference
 * does; encoding and decoding ask once per client, in a future that all threads share.
 * Everything here runs in the caller's thread. */
#include "client/data/model_tokenizer.h"

#include <tinker/training.h>

#include "base/err.h"
#include "base/os.h"
#include "client/sampling/sampling_client.h"
#include "client/training/training_client.h"

/* `id` is what the service calls the tokenizer: a repository, or, when it runs on this
 * machine, a directory.  NULL: it did not say. */
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

tinker_tokenizer *model_tokenizer_load(const tinker_future *answer,
                                       const tinker_tokenizer_options *opts, tinker_error *err)
{
    const tinker_model_info *info = tinker_future_model_info(answer);
    if (!info)
        return load_named(tinker_future_path(answer), NULL, opts, err);
    return load_named(info->base_model ? info->base_model : info->model_name, info->tokenizer_id,
                      opts, err);
}

/* Wait for an answer that is the caller's own, load, free it. */
static tinker_tokenizer *load_once(tinker_future *f, const tinker_tokenizer_options *opts,
                                   int64_t timeout_ms, tinker_error *err)
{
    tinker_tokenizer *t = NULL;
    if (f && tinker_future_wait(f, timeout_ms, err) == TINKER_OK)
        t = model_tokenizer_load(f, opts, err);
    tinker_future_free(f);
    return t;
}

tinker_tokenizer *tinker_training_tokenizer(tinker_training *t,
                                            const tinker_tokenizer_options *opts,
                                            int64_t timeout_ms, tinker_error *err)
{
    return load_once(training_client_ask_name(t, err), opts, timeout_ms, err);
}

tinker_tokenizer *tinker_sampler_tokenizer(tinker_sampler *s, const tinker_tokenizer_options *opts,
                                           int64_t timeout_ms, tinker_error *err)
{
    return load_once(tinker_sampler_base_model(s, err), opts, timeout_ms, err);
}

/* ---- encoding and decoding ----------------------------------------------------------- */

/* One of the two clients, and where it keeps the answer. */
struct asker {
    tinker_training *training;
    tinker_sampler *sampler;
    pthread_mutex_t *lock;
    tinker_future **kept; /* lock */
};

static struct asker of_training(tinker_training *t)
{
    return (struct asker){ t, NULL, &t->lock, &t->named };
}

static struct asker of_sampler(tinker_sampler *s)
{
    return (struct asker){ NULL, s, &s->lock, &s->named };
}

/* A reference to the one answer, which may be under way still. */
static tinker_future *answer_of(const struct asker *a, tinker_error *err)
{
    pthread_mutex_lock(a->lock);
    if (!*a->kept)
        *a->kept = a->training ? training_client_ask_name(a->training, err)
                               : tinker_sampler_base_model(a->sampler, err);
    tinker_future *f = *a->kept;
    if (f)
        future_ref(f);
    pthread_mutex_unlock(a->lock);
    return f;
}

/* A failure is not kept: the next call asks again. */
static void forget_name(const struct asker *a, tinker_future *f)
{
    pthread_mutex_lock(a->lock);
    bool ours = *a->kept == f;
    if (ours)
        *a->kept = NULL;
    pthread_mutex_unlock(a->lock);
    if (ours)
        tinker_future_free(f);
}

/* *out: the tokenizer, NULL unless TINKER_OK. */
static tinker_status load_shared(const struct asker *a, const tinker_tokenizer_options *opts,
                                 int64_t timeout_ms, tinker_tokenizer **out, tinker_error *err)
{
    tinker_error mine = { 0 };
    tinker_future *f = answer_of(a, &mine);
    *out = NULL;
    if (f && tinker_future_wait(f, timeout_ms, &mine) == TINKER_OK)
        *out = model_tokenizer_load(f, opts, &mine);
    else if (f && tinker_future_done(f))
        forget_name(a, f);
    future_unref(f);
    if (!*out && err)
        *err = mine;
    return *out ? TINKER_OK : mine.status;
}

static tinker_status encode(struct asker a, const char *text, size_t n,
                            const tinker_tokenizer_options *opts, const tinker_encode_options *how,
                            int64_t timeout_ms, tinker_tokens *out, tinker_error *err)
{
    tinker_tokenizer *t;
    tinker_status s = load_shared(&a, opts, timeout_ms, &t, err);
    if (s == TINKER_OK)
        s = tinker_tokenizer_encode(t, text, n, how, out, err);
    tinker_tokenizer_free(t);
    return s;
}

static tinker_status decode(struct asker a, const int32_t *ids, size_t n,
                            const tinker_tokenizer_options *opts, const tinker_decode_options *how,
                            int64_t timeout_ms, tinker_text *out, tinker_error *err)
{
    tinker_tokenizer *t;
    tinker_status s = load_shared(&a, opts, timeout_ms, &t, err);
    if (s == TINKER_OK)
        s = tinker_tokenizer_decode(t, ids, n, how, out, err);
    tinker_tokenizer_free(t);
    return s;
}

tinker_status tinker_training_encode(tinker_training *t, const char *text, size_t n,
                                     const tinker_tokenizer_options *opts,
                                     const tinker_encode_options *how, int64_t timeout_ms,
                                     tinker_tokens *out, tinker_error *err)
{
    return encode(of_training(t), text, n, opts, how, timeout_ms, out, err);
}

tinker_status tinker_training_decode(tinker_training *t, const int32_t *ids, size_t n,
                                     const tinker_tokenizer_options *opts,
                                     const tinker_decode_options *how, int64_t timeout_ms,
                                     tinker_text *out, tinker_error *err)
{
    return decode(of_training(t), ids, n, opts, how, timeout_ms, out, err);
}

tinker_status tinker_sampler_encode(tinker_sampler *s, const char *text, size_t n,
                                    const tinker_tokenizer_options *opts,
                                    const tinker_encode_options *how, int64_t timeout_ms,
                                    tinker_tokens *out, tinker_error *err)
{
    return encode(of_sampler(s), text, n, opts, how, timeout_ms, out, err);
}

tinker_status tinker_sampler_decode(tinker_sampler *s, const int32_t *ids, size_t n,
                                    const tinker_tokenizer_options *opts,
                                    const tinker_decode_options *how, int64_t timeout_ms,
                                    tinker_text *out, tinker_error *err)
{
    return decode(of_sampler(s), ids, n, opts, how, timeout_ms, out, err);
}
