/* sample_options.c - a sampling request as the user gives it: checked, then written as JSON.
 *
 * Which options there are, their ranges and how they are spelled is in wire/sample_types.c, which
 * the server reads, too.  Runs in the caller's thread. */
#include <string.h>
#include "base/err.h"
#include "client/sampling/sampling_client.h"
#include "wire/check.h"
#include "wire/sample_options.h"
#include "wire/wire.h"

/* The rest of the tensor is looked at when it is written. */
static tinker_status check_targets(const tinker_tensor *t, tinker_error *err)
{
    if (t && wire_dtype(t->dtype) != TINKER_INT64)
        return err_set(err, TINKER_EINVAL, "target_prompt_logprobs: tokens are integers");
    if (t && (!t->shape || t->ndim != 2))
        return err_set(err, TINKER_EINVAL,
                       "target_prompt_logprobs needs a shape of two dimensions, one row for each "
                       "token of the prompt but the first");
    return TINKER_OK;
}

/* In the caller's thread, before anything is queued: everything that is wrong anywhere is refused
 * here; the rest is the service's to judge. */
tinker_status sample_check(struct sample_request *r, const tinker_model_input *prompt,
                           const tinker_sampling_params *params, const tinker_sample_options *opts,
                           tinker_error *err)
{
    *r = (struct sample_request){ prompt, TINKER_SAMPLING_PARAMS_INIT, TINKER_SAMPLE_OPTIONS_INIT };
    tinker_status s =
        opts_copy(&r->params, sizeof(r->params), params, "tinker_sampling_params", err);
    if (s == TINKER_OK)
        s = opts_copy(&r->opts, sizeof(r->opts), opts, "tinker_sample_options", err);
    if (s == TINKER_OK)
        s = wire_check_sampling_params(&r->params, err);
    if (s == TINKER_OK && !prompt)
        s = err_set(err, TINKER_EINVAL, "sample needs a prompt");
    if (s == TINKER_OK)
        s = wire_check_model_input(prompt, true, err);
    struct wire_sample_request scratch = { 0 };
    if (s == TINKER_OK)
        s = wire_sample_set_options(&scratch, &r->opts, err);
    return s == TINKER_OK ? check_targets(r->opts.target_prompt_logprobs, err) : s;
}

const char *sample_prompt_option(const struct sample_request *r)
{
    struct wire_sample_request req = { 0 };
    wire_sample_set_options(&req, &r->opts, NULL); /* was checked */
    return wire_sample_prompt_option(&req);
}

/* numbered: with a seq_id, whose value sample_op.c patches in when the request is sent. */
tinker_status sample_encode(const tinker_sampler *s, const struct sample_request *r, bool numbered,
                            struct buf *out, tinker_error *err)
{
    struct wire_sample_request req;
    wire_init(&wire_sample_request, &req);
    tinker_status status = wire_sample_set_options(&req, &r->opts, err);
    if (status != TINKER_OK)
        return status;
    req.prompt = *r->prompt;
    req.sampling_params = r->params;
    req.sampling_session_id = s->id;
    req.seq_id = (struct wire_opt_int){ numbered, 0 };
    req.record_stability_info.has = req.record_stability_info.value =
        atomic_load(&s->base->records_stability);
    return wire_encode_json(&wire_sample_request, &req, out, err);
}
