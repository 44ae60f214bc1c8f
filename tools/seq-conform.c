/* seq-conform.c - makes the calls that the conformance test asks for, one per line.
 *
 * In: the name of a step.  Out: "ok" TAB what came of it, or "error" TAB message.  The
 * steps and their data are those of tests/conformance/sequence.py, which makes the same
 * calls with the official SDK and compares what a server sees of both. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>
#include <tinker/extra/account.h>
#include "base/buf.h"
#include "seq-data.h"

enum { WAIT_MS = 60000, MANY = 8 };
#define RUN_ID     "11111111-2222-4333-8444-555555555555:train:0"
#define SESSION_ID "11111111-2222-4333-8444-555555555555"
#define STATE      "tinker://" RUN_ID "/weights/one"

static tinker_service *service;
static tinker_training *training;
static tinker_sampler *sampler;
static tinker_rest *rest;
static tinker_error err;
static struct buf out; /* what came of it */

/* ---- outcomes ------------------------------------------------------------------------- */

static void say(const char *text)
{
    buf_puts(&out, text);
}

static void say_number(double v)
{
    buf_printf(&out, "%.9g ", v);
}

static void say_sample(const tinker_sample *r)
{
    for (size_t i = 0; i < r->n_sequences; i++)
        for (size_t k = 0; k < r->sequences[i].n; k++) {
            say_number(r->sequences[i].tokens[k]);
            say_number((double)r->sequences[i].logprobs[k]);
        }
    for (size_t i = 0; r->prompt_logprobs && i < r->n_prompt; i++)
        say_number(isnan(r->prompt_logprobs[i]) ? 0 : (double)r->prompt_logprobs[i]);
}

static void say_pass(const tinker_forward_backward *r)
{
    say_number(tinker_metric(r->metrics, r->n_metrics, "loss:sum"));
    for (size_t i = 0; i < r->n_outputs; i++) {
        const tinker_tensor *t = &r->outputs[i].tensors[0].tensor;
        for (size_t k = 0; k < t->n; k++)
            say_number((double)((const float *)t->data)[k]);
    }
}

/* Wait for f, tell its result and free it. */
static bool finish(tinker_future *f)
{
    bool ok = f && tinker_future_wait(f, WAIT_MS, &err) == TINKER_OK;
    if (ok && tinker_future_sample(f))
        say_sample(tinker_future_sample(f));
    else if (ok && tinker_future_forward_backward(f))
        say_pass(tinker_future_forward_backward(f));
    else if (ok && tinker_future_saved_path(f))
        say(tinker_future_saved_path(f));
    else if (ok && tinker_future_loaded_path(f))
        say(tinker_future_loaded_path(f));
    else if (ok && tinker_future_base_model(f))
        say(tinker_future_base_model(f));
    else if (ok && tinker_future_file(f))
        say(tinker_future_file(f));
    else if (ok && tinker_future_loaded_path(f))
        say(tinker_future_loaded_path(f));
    tinker_future_free(f);
    return ok;
}

static const tinker_loss cross_entropy = { .name = "cross_entropy" };

static bool pass(size_t n, size_t tokens)
{
    return finish(
        tinker_training_forward_backward(training, batch(n, tokens), n, &cross_entropy, &err));
}

/* ---- training -------------------------------------------------------------------------- */

static bool create_lora(void)
{
    tinker_training_free(training);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 8;
    lora.has_seed = 1;
    lora.seed = 3;
    lora.train_mlp = 0;
    training = tinker_service_create_lora(service, "base/model", &lora, WAIT_MS, &err);
    if (training)
        say(tinker_training_model_id(training));
    return training != NULL;
}

static bool create_lora_metadata(void)
{
    tinker_training_free(training);
    tinker_lora lora = TINKER_LORA_INIT;
    tinker_named_string who[] = { { "who", "me" }, { "what", "ä \"q\"" } };
    lora.user_metadata = who;
    lora.n_user_metadata = 2;
    training = tinker_service_create_lora(service, "base/model", &lora, WAIT_MS, &err);
    return training != NULL;
}

static bool info(void)
{
    tinker_future *f = tinker_training_get_info(training, &err);
    bool ok = f && tinker_future_wait(f, WAIT_MS, &err) == TINKER_OK;
    if (ok)
        say(tinker_future_model_info(f)->model_name);
    tinker_future_free(f);
    return ok;
}

static bool forward_backward(void)
{
    return pass(3, 4);
}

static bool forward_backward_7(void)
{
    return pass(7, 4);
}

static bool forward_backward_bytes(void)
{
    return pass(6, 10);
}

static bool forward_7(void)
{
    return finish(tinker_training_forward(training, batch(7, 4), 7, &cross_entropy, &err));
}

static bool forward(void)
{
    return finish(tinker_training_forward(training, batch(2, 3), 2, &cross_entropy, &err));
}

static bool ppo(void)
{
    tinker_datum d = datum(1, 3, false);
    static const float logprobs[] = { -1, -0.5f, -0.25f }, advantages[] = { 1, -1, 0.1f };
    tinker_named_tensor inputs[] = {
        d.inputs[0],
        { "logprobs", { .dtype = TINKER_FLOAT32, .data = logprobs, .n = 3 } },
        { "advantages", { .dtype = TINKER_FLOAT32, .data = advantages, .n = 3 } },
    };
    d.inputs = inputs;
    d.n_inputs = 3;
    tinker_named_number config[] = { { "clip_low_threshold", 0.8 },
                                     { "clip_high_threshold", 1.2 } };
    tinker_loss loss = { .name = "ppo", .config = config, .n_config = 2 };
    return finish(tinker_training_forward_backward(training, &d, 1, &loss, &err));
}

static bool chunks_of_all_kinds(void)
{
    tinker_datum d = datum(1, 3, true);
    tinker_chunk chunks[] = {
        text(5, 2),
        { .kind = TINKER_CHUNK_IMAGE, .bytes = "\x89PNG\x00\xff", .n_bytes = 6, .format = "png" },
        { .kind = TINKER_CHUNK_IMAGE,
          .bytes = "jj",
          .n_bytes = 2,
          .format = "jpeg",
          .has_expected_tokens = 1,
          .expected_tokens = 12 },
        text(9, 1),
    };
    d.model_input = (tinker_model_input){ chunks, 4 };
    return finish(tinker_training_forward_backward(training, &d, 1, &cross_entropy, &err));
}

static bool shapes(void)
{
    static const int64_t targets[] = { 1, 2, 3, 4 }, shape[] = { 2, 2 };
    static const int64_t crow[] = { 0, 1, 2 }, col[] = { 1, 0 };
    static const float values[] = { 0.5f, 2 };
    tinker_datum d = datum(1, 2, false);
    tinker_named_tensor inputs[] = {
        { "target_tokens",
          { .dtype = TINKER_INT64, .data = targets, .n = 4, .shape = shape, .ndim = 2 } },
        { "weights",
          { .dtype = TINKER_FLOAT32,
            .data = values,
            .n = 2,
            .shape = shape,
            .ndim = 2,
            .crow = crow,
            .col = col } },
    };
    d.inputs = inputs;
    d.n_inputs = 2;
    return finish(tinker_training_forward_backward(training, &d, 1, &cross_entropy, &err));
}

/* loss = sum of squares of all logprobs */
static tinker_var *squares(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                           size_t n, void *state)
{
    (void)data;
    (void)state;
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_add(sum, tinker_var_sum(tinker_var_square(logprobs[i]), TINKER_ALL, 0));
    return sum;
}

static bool custom(void)
{
    tinker_datum data[] = { datum(0, 3, false), datum(1, 2, true) };
    return finish(
        tinker_training_forward_backward_custom(training, data, 2, squares, NULL, NULL, &err));
}

static bool optim_step(void)
{
    return finish(tinker_training_optim_step(training, NULL, &err));
}

static bool optim_step_own(void)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 4e-5;
    adam.beta2 = 0.999;
    adam.eps = 1e-8;
    adam.weight_decay = 0.01;
    adam.grad_clip_norm = 1;
    return finish(tinker_training_optim_step(training, &adam, &err));
}

/* Everything is submitted before anything is waited for. */
static bool pipeline(void)
{
    tinker_future *f[6];
    for (int i = 0; i < 6; i += 2) {
        f[i] = tinker_training_forward_backward(training, batch(2, 3), 2, &cross_entropy, &err);
        f[i + 1] = tinker_training_optim_step(training, NULL, &err);
    }
    bool ok = true;
    for (int i = 0; i < 6; i++)
        ok = finish(f[i]) && ok;
    return ok;
}

static bool pipeline_7(void)
{
    tinker_future *f[] = { tinker_training_forward_backward(training, batch(7, 4), 7,
                                                            &cross_entropy, &err),
                           tinker_training_optim_step(training, NULL, &err) };
    bool ok = finish(f[0]);
    return finish(f[1]) && ok;
}

static bool save_state(void)
{
    return finish(tinker_training_save_state(training, "one", NULL, &err));
}

static bool save_state_options(void)
{
    tinker_save_options opts = TINKER_SAVE_OPTIONS_INIT;
    opts.ttl_seconds = 3600;
    opts.overwrite = 1;
    return finish(tinker_training_save_state(training, "two", &opts, &err));
}

static bool save_for_sampler(void)
{
    return finish(tinker_training_save_for_sampler(training, "one", NULL, &err));
}

static bool save_for_sampler_ttl(void)
{
    tinker_save_options opts = TINKER_SAVE_OPTIONS_INIT;
    opts.ttl_seconds = 60;
    return finish(tinker_training_save_for_sampler(training, "two", &opts, &err));
}

static bool keep_sampler(tinker_sampler *s)
{
    tinker_sampler_free(sampler);
    sampler = s;
    if (s)
        say(tinker_sampler_id(s));
    return s != NULL;
}

static bool save_and_sample(void)
{
    return keep_sampler(tinker_training_create_sampler(training, WAIT_MS, &err));
}

static bool load_state(void)
{
    return finish(tinker_training_load_state(training, STATE, 0, NULL, &err));
}

static bool load_state_optimizer(void)
{
    return finish(tinker_training_load_state(training, STATE, 1, NULL, &err));
}

static bool load_state_token(void)
{
    return finish(tinker_training_load_state(training, STATE, 0, "tml-other", &err));
}

static bool from(const tinker_from_state_options *opts)
{
    tinker_training_free(training);
    training = tinker_service_create_from_state(service, STATE, opts, WAIT_MS, &err);
    if (training)
        say(tinker_training_model_id(training));
    return training != NULL;
}

static bool from_state(void)
{
    return from(NULL);
}

static bool from_state_optimizer(void)
{
    tinker_from_state_options opts = TINKER_FROM_STATE_OPTIONS_INIT;
    opts.optimizer = 1;
    return from(&opts);
}

static bool from_state_options(void)
{
    tinker_from_state_options opts = TINKER_FROM_STATE_OPTIONS_INIT;
    tinker_named_string who = { "who", "me" };
    opts.base_model = "other/model";
    opts.user_metadata = &who;
    opts.n_user_metadata = 1;
    return from(&opts);
}

static bool from_state_token(void)
{
    tinker_from_state_options opts = TINKER_FROM_STATE_OPTIONS_INIT;
    opts.access_token = "tml-other";
    return from(&opts);
}

/* ---- sampling -------------------------------------------------------------------------- */

static bool create_sampler(void)
{
    return keep_sampler(tinker_service_create_sampler(service, "base/model", NULL, WAIT_MS, &err));
}

static bool create_sampler_path(void)
{
    return keep_sampler(tinker_service_create_sampler(
        service, NULL, "tinker://" RUN_ID "/sampler_weights/one", WAIT_MS, &err));
}

static tinker_future *submit(int first, size_t n, const tinker_sampling_params *params,
                             const tinker_sample_options *opts)
{
    tinker_chunk chunk = text(first, n);
    tinker_model_input prompt = { &chunk, 1 };
    return tinker_sampler_sample(sampler, &prompt, params, opts, &err);
}

static bool sample(void)
{
    return finish(submit(7, 3, NULL, NULL));
}

static bool sample_params(void)
{
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = 20;
    p.has_seed = 1;
    p.seed = 9;
    p.temperature = 0.7;
    p.top_k = 40;
    p.top_p = 0.9;
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.num_samples = 3;
    o.prompt_logprobs = 1;
    o.topk_prompt_logprobs = 2;
    return finish(submit(7, 3, &p, &o));
}

static bool sample_stop(void)
{
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    const char *words[] = { "\n", "stop ü" };
    int32_t tokens[] = { 1, 2 };
    p.stop_strings = words;
    p.n_stop = 2;
    bool ok = finish(submit(7, 3, &p, NULL));
    p.stop_strings = NULL;
    p.stop_tokens = tokens;
    ok = finish(submit(7, 3, &p, NULL)) && ok;
    p.n_stop = 0;
    return finish(submit(7, 3, &p, NULL)) && ok;
}

static bool sample_chunks(void)
{
    tinker_chunk chunks[] = {
        text(5, 2),
        { .kind = TINKER_CHUNK_IMAGE, .bytes = "\x89PNG\x00\xff", .n_bytes = 6, .format = "png" },
        { .kind = TINKER_CHUNK_IMAGE_POINTER,
          .location = "s3://bucket/a.jpg",
          .format = "jpeg",
          .has_expected_tokens = 1,
          .expected_tokens = 5 },
        text(9, 1),
    };
    tinker_model_input prompt = { chunks, 4 };
    return finish(tinker_sampler_sample(sampler, &prompt, NULL, NULL, &err));
}

static bool sample_many(void)
{
    tinker_future *f[MANY];
    for (int i = 0; i < MANY; i++)
        f[i] = submit(10 * i, 3, NULL, NULL);
    bool ok = true;
    for (int i = 0; i < MANY; i++)
        ok = finish(f[i]) && ok;
    return ok;
}

static bool logprobs(void)
{
    tinker_chunk chunk = text(7, 4);
    tinker_model_input prompt = { &chunk, 1 };
    tinker_future *f = tinker_sampler_compute_logprobs(sampler, &prompt, &err);
    bool ok = f && tinker_future_wait(f, WAIT_MS, &err) == TINKER_OK;
    for (size_t i = 0; ok && i < tinker_future_sample(f)->n_prompt; i++) {
        float v = tinker_future_sample(f)->prompt_logprobs[i];
        say_number(isnan(v) ? 0 : (double)v);
    }
    tinker_future_free(f);
    return ok;
}

static bool base_model(void)
{
    return finish(tinker_sampler_get_base_model(sampler, &err));
}

/* ---- the rest --------------------------------------------------------------------------- */

static bool capabilities(void)
{
    return finish(tinker_service_get_capabilities(service, &err));
}

static bool runs(void)
{
    tinker_page page = TINKER_PAGE_INIT;
    page.limit = 5;
    page.offset = 10;
    page.scope = TINKER_SCOPE_ACCESSIBLE;
    page.project_id = "p 1&x";
    return finish(tinker_rest_list_training_runs(rest, NULL, &err)) &&
           finish(tinker_rest_list_training_runs(rest, &page, &err));
}

static bool run(void)
{
    return finish(tinker_rest_get_training_run(rest, RUN_ID, TINKER_SCOPE_OWNED, &err)) &&
           finish(tinker_rest_get_training_run(rest, RUN_ID, TINKER_SCOPE_ACCESSIBLE, &err)) &&
           finish(tinker_rest_get_training_run(rest, STATE, TINKER_SCOPE_OWNED, &err));
}

static bool checkpoints(void)
{
    tinker_page page = TINKER_PAGE_INIT;
    page.limit = 7;
    page.offset = 3;
    return finish(tinker_rest_list_checkpoints(rest, RUN_ID, &err)) &&
           finish(tinker_rest_list_user_checkpoints(rest, NULL, &err)) &&
           finish(tinker_rest_list_user_checkpoints(rest, &page, &err));
}

static bool weights_info(void)
{
    return finish(tinker_rest_get_weights_info(rest, STATE, &err));
}

static bool publish(void)
{
    return finish(tinker_rest_publish_checkpoint(rest, STATE, &err)) &&
           finish(tinker_rest_unpublish_checkpoint(rest, STATE, &err));
}

static bool ttl(void)
{
    return finish(tinker_rest_set_checkpoint_ttl(rest, STATE, 60, &err)) &&
           finish(tinker_rest_set_checkpoint_ttl(rest, STATE, 0, &err));
}

static bool archive(void)
{
    return finish(tinker_rest_get_checkpoint_archive(rest, STATE, &err));
}

static bool delete_checkpoint(void)
{
    return finish(tinker_rest_delete_checkpoint(rest, STATE, &err));
}

static bool sessions(void)
{
    tinker_page page = TINKER_PAGE_INIT;
    page.limit = 3;
    page.offset = 1;
    page.scope = TINKER_SCOPE_ACCESSIBLE;
    return finish(tinker_rest_list_sessions(rest, NULL, &err)) &&
           finish(tinker_rest_list_sessions(rest, &page, &err)) &&
           finish(tinker_rest_get_session(rest, SESSION_ID, TINKER_SCOPE_OWNED, &err));
}

static bool project(void)
{
    return finish(tinker_rest_assign_project(rest, SESSION_ID, "prj-1", &err));
}

static bool trace(void)
{
    return finish(tinker_rest_export_trace(rest, SESSION_ID, &err));
}

static bool sampler_info(void)
{
    return finish(tinker_rest_get_sampler(rest, SESSION_ID ":sample:0", &err));
}

static bool billing(void)
{
    return finish(
        tinker_rest_get_billing_usage(rest, "2026-08-01T00:00:00Z", "2026-08-02T05:00:00Z", &err));
}

static bool audit(void)
{
    return finish(tinker_rest_get_audit_log(rest, NULL, 0, &err)) &&
           finish(tinker_rest_get_audit_log(rest, "2026-08-01", 1, &err));
}

static bool whoami(void)
{
    tinker_future *f = tinker_rest_whoami(rest, &err);
    bool ok = f && tinker_future_wait(f, WAIT_MS, &err) == TINKER_OK;
    if (ok) {
        say(tinker_future_identity(f)->user_urn);
        say(tinker_future_identity(f)->email);
    }
    tinker_future_free(f);
    return ok;
}

/* ---- what came after SDK 0.25 --------------------------------------------------------------- */

static bool save_state_metadata(void)
{
    tinker_save_options opts = TINKER_SAVE_OPTIONS_INIT;
    tinker_named_string pairs[] = { { "k", "v" }, { "ä", "ö" } };
    opts.user_metadata = pairs;
    opts.n_user_metadata = 2;
    return finish(tinker_training_save_state(training, "three", &opts, &err));
}

static bool save_for_sampler_metadata(void)
{
    tinker_save_options opts = TINKER_SAVE_OPTIONS_INIT;
    tinker_named_string pair = { "k", "v" };
    opts.user_metadata = &pair;
    opts.n_user_metadata = 1;
    return finish(tinker_training_save_for_sampler(training, "four", &opts, &err));
}

static bool save_external(void)
{
    tinker_save_options opts = TINKER_SAVE_OPTIONS_INIT;
    opts.ttl_seconds = 3600;
    return finish(tinker_training_save_external(training, "hf", &opts, &err));
}

static bool save_external_encrypted(void)
{
    tinker_save_options opts = TINKER_SAVE_OPTIONS_INIT;
    const char *const recipients[] = { "age1x" };
    opts.age_recipients = recipients;
    opts.n_age_recipients = 1;
    return finish(tinker_training_save_external(training, "enc", &opts, &err));
}

static bool spans(void)
{
    tinker_datum d = datum(1, 3, true);
    const tinker_provenance input[] = { { 0, "s", 0, 2 }, { 1, "s", 0, 1 } };
    const tinker_provenance targets[] = { { 0, "s", 1, 1 }, { 1, "s", 0, 2 } };
    d.input_spans = input;
    d.n_input_spans = 2;
    d.target_spans = targets;
    d.n_target_spans = 2;
    return finish(tinker_training_forward_backward(training, &d, 1, &cross_entropy, &err));
}

static bool loss_texts(void)
{
    tinker_loss loss = cross_entropy;
    const tinker_named_number number = { "number", 0.5 };
    const tinker_named_string words = { "text", "words" };
    loss.config = &number;
    loss.n_config = 1;
    loss.texts = &words;
    loss.n_texts = 1;
    return finish(tinker_training_forward_backward(training, batch(1, 3), 1, &loss, &err));
}

static bool record_stability(void)
{
    tinker_sampler_free(sampler);
    sampler = tinker_service_create_sampler(service, "base/model", NULL, WAIT_MS, &err);
    if (!sampler)
        return false;
    tinker_sampler_record_stability_info(sampler, 1);
    return finish(submit(7, 3, NULL, NULL));
}

static bool external_urls(void)
{
    return finish(
        tinker_rest_get_checkpoint_files(rest, "tinker://" RUN_ID "/external_weights/one", &err));
}

static bool copy(void)
{
    tinker_copy_options opts = TINKER_COPY_OPTIONS_INIT;
    opts.project_id = "prj-2";
    opts.ttl_seconds = 3600;
    bool ok = finish(tinker_rest_copy_checkpoint(rest, STATE, &opts, &err));
    opts.ttl_seconds = 0;
    opts.access_token = "tml-other";
    return finish(tinker_rest_copy_checkpoint(rest, STATE, &opts, &err)) && ok;
}

static bool search_sessions(void)
{
    tinker_session_query q = TINKER_SESSION_QUERY_INIT;
    const char *const projects[] = { "p" };
    tinker_named_string pair = { "k", "v" };
    bool ok = finish(tinker_rest_search_sessions(rest, NULL, &err));
    q.project_ids = projects;
    q.n_project_ids = 1;
    q.user_metadata = &pair;
    q.n_user_metadata = 1;
    q.display_name = "night";
    q.limit = 20;
    q.scope = TINKER_SCOPE_ACCESSIBLE;
    return finish(tinker_rest_search_sessions(rest, &q, &err)) && ok;
}

static bool storage(void)
{
    return finish(tinker_rest_get_storage_usage(rest, NULL, &err)) &&
           finish(tinker_rest_get_storage_usage(rest, "p 1", &err));
}

static bool audit_types(void)
{
    for (int type = TINKER_AUDIT_ALL; type <= TINKER_AUDIT_ORGANIZATIONS; type++)
        if (!finish(tinker_rest_get_audit_log(rest, "2026-08-01", (tinker_audit_type)type, &err)))
            return false;
    return true;
}

static bool finish_session(void)
{
    return finish(tinker_service_finish(service, TINKER_FINISH_ERRORED, "boom", &err));
}

static bool nothing(void)
{
    return true;
}

static const struct step {
    const char *name;
    bool (*run)(void);
} steps[] = {
    { "nothing", nothing },
    { "create_lora", create_lora },
    { "create_lora_metadata", create_lora_metadata },
    { "info", info },
    { "forward_backward", forward_backward },
    { "forward_backward_7", forward_backward_7 },
    { "forward_backward_bytes", forward_backward_bytes },
    { "forward", forward },
    { "forward_7", forward_7 },
    { "ppo", ppo },
    { "chunks_of_all_kinds", chunks_of_all_kinds },
    { "shapes", shapes },
    { "custom", custom },
    { "optim_step", optim_step },
    { "optim_step_own", optim_step_own },
    { "pipeline", pipeline },
    { "pipeline_7", pipeline_7 },
    { "save_state", save_state },
    { "save_state_options", save_state_options },
    { "save_for_sampler", save_for_sampler },
    { "save_for_sampler_ttl", save_for_sampler_ttl },
    { "save_and_sample", save_and_sample },
    { "load_state", load_state },
    { "load_state_optimizer", load_state_optimizer },
    { "load_state_token", load_state_token },
    { "from_state", from_state },
    { "from_state_optimizer", from_state_optimizer },
    { "from_state_options", from_state_options },
    { "from_state_token", from_state_token },
    { "create_sampler", create_sampler },
    { "create_sampler_path", create_sampler_path },
    { "sample", sample },
    { "sample_params", sample_params },
    { "sample_stop", sample_stop },
    { "sample_chunks", sample_chunks },
    { "sample_many", sample_many },
    { "logprobs", logprobs },
    { "base_model", base_model },
    { "capabilities", capabilities },
    { "runs", runs },
    { "run", run },
    { "checkpoints", checkpoints },
    { "weights_info", weights_info },
    { "publish", publish },
    { "ttl", ttl },
    { "archive", archive },
    { "delete_checkpoint", delete_checkpoint },
    { "sessions", sessions },
    { "project", project },
    { "trace", trace },
    { "sampler_info", sampler_info },
    { "billing", billing },
    { "audit", audit },
    { "whoami", whoami },
    { "save_state_metadata", save_state_metadata },
    { "save_for_sampler_metadata", save_for_sampler_metadata },
    { "save_external", save_external },
    { "save_external_encrypted", save_external_encrypted },
    { "spans", spans },
    { "loss_texts", loss_texts },
    { "record_stability", record_stability },
    { "external_urls", external_urls },
    { "copy", copy },
    { "search_sessions", search_sessions },
    { "storage", storage },
    { "audit_types", audit_types },
    { "finish_session", finish_session },
};

static const struct step *find(const char *name)
{
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (strcmp(steps[i].name, name) == 0)
            return &steps[i];
    return NULL;
}

int main(void)
{
    char line[128];
    tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
    tinker_named_string who = { "who", "me" };
    opts.user_metadata = &who;
    opts.n_user_metadata = 1;
    opts.credentials.project_id = "prj-0";
    service = tinker_service_new(&opts, &err);
    rest = service ? tinker_service_create_rest(service, &err) : NULL;
    if (!rest) {
        fprintf(stderr, "seq-conform: %s\n", err.message);
        return EXIT_FAILURE;
    }
    buf_init(&out, 1 << 20);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        const struct step *step = find(line);
        arena_init(&arena, 1 << 24);
        buf_reset(&out);
        bool ok = step && step->run();
        if (ok)
            printf("ok\t%.*s\n", (int)out.len, out.data ? out.data : "");
        else
            printf("error\t%s\n", step ? err.message : "unknown step");
        fflush(stdout);
        arena_clear(&arena);
    }
    tinker_training_free(training);
    tinker_sampler_free(sampler);
    tinker_rest_free(rest);
    tinker_service_free(service);
    buf_clear(&out);
    return EXIT_SUCCESS;
}
