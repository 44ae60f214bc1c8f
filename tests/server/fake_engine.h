/* fake_engine.h - an engine of a few lines for tests of the server.
 *
 * Included once by a test; it defines the functions of <tinker/engine.h>, so the real
 * ones are not linked.  An adapter is one number: a pass adds the number of tokens of
 * its data to the gradient, a step adds gradient * learning rate.  A pass takes one
 * step per datum, each of fake_step_us microseconds; a sample yields token + 1, + 2, …
 * of its last prompt token, plus 100 times the adapter's number. */
#ifndef UNIT_SERVER_FAKE_ENGINE_H
#define UNIT_SERVER_FAKE_ENGINE_H

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tinker/engine.h>

#include "base/err.h"
#include "base/os.h"

enum { FAKE_VOCAB = 1000, FAKE_CONTEXT = 256 };
static atomic_int fake_save_fails;
static atomic_int fake_step_us, fake_adapters, fake_adapters_most, fake_passes_run;
static atomic_bool fake_no_memory;                   /* for new passes */
static atomic_bool fake_no_adapters;                 /* for new adapters */
static atomic_int fake_pass_steps, fake_token_steps; /* slices of either kind so far */
static atomic_int fake_together;                     /* most requests in one token step */
static uint64_t fake_memory;                         /* what engines may take, the last limits */
static atomic_int fake_save_flags;                   /* of the last save */
static atomic_int fake_partial_trims; /* the same of memory that was unused for long */
static atomic_int fake_trims;         /* times that unused memory was given back */
static _Atomic uint64_t fake_scope;   /* of the last sample's prefixes */

struct tinker_engine {
    tinker_engine_info info;
    uint64_t memory;
};
struct tinker_adapter {
    tinker_lora lora;
    double value, gradient;
    int64_t steps;
};
struct tinker_pass {
    tinker_datum_loss_fn *custom;
    void *custom_state;
    double custom_loss, custom_slope;
    tinker_adapter *a;
    size_t n, done;
    int forward_only;
    double tokens;
    float *logprobs;
    tinker_named_tensor *tensors;
    tinker_loss_output *outputs;
    tinker_named_number metrics[1];
    tinker_forward_backward result;
};
struct fake_request {
    tinker_generate g;
    int64_t max_tokens;
    int32_t last;
    size_t made;
    int stopped;
    int32_t *tokens;
    float *logprobs;
    tinker_sequence *sequences;
    tinker_sample result;
    float *prompt_logprobs;
    struct fake_request *next;
};
struct tinker_generator {
    struct fake_request *active, *finished, *returned;
};

static void fake_sleep(void)
{
    int us = atomic_load(&fake_step_us);
    struct timespec t = { us / 1000000, (us % 1000000) * 1000L };
    if (us)
        nanosleep(&t, NULL);
}

tinker_engine *tinker_engine_open(const char *dir, const tinker_engine_options *opts,
                                  tinker_error *err)
{
    (void)opts;
    static const int32_t eos[] = { 2 };
    if (!os_is_dir(dir)) {
        err_set(err, TINKER_EINVAL, "no such directory: %s", dir);
        return NULL;
    }
    tinker_engine *e = calloc(1, sizeof(*e));
    e->info = (tinker_engine_info){ .arch = "fake",
                                    .fingerprint = "00",
                                    .vocab_size = FAKE_VOCAB,
                                    .context = FAKE_CONTEXT,
                                    .eos = eos,
                                    .n_eos = 1 };
    return e;
}
void tinker_engine_close(tinker_engine *e)
{
    if (e)
        fake_memory -= e->memory;
    free(e);
}
void tinker_engine_limit_memory(tinker_engine *e, uint64_t bytes)
{
    fake_memory += bytes - e->memory;
    e->memory = bytes;
}
const tinker_engine_info *tinker_engine_describe(const tinker_engine *e)
{
    return &e->info;
}

tinker_adapter *tinker_adapter_new(tinker_engine *e, const tinker_lora *lora, tinker_error *err)
{
    (void)e;
    if (atomic_load(&fake_no_adapters)) {
        err_set(err, TINKER_ENOMEM, "no memory for the adapter");
        return NULL;
    }
    tinker_adapter *a = calloc(1, sizeof(*a));
    a->lora = *lora;
    int n = atomic_fetch_add(&fake_adapters, 1) + 1;
    if (n > atomic_load(&fake_adapters_most)) /* one thread makes them */
        atomic_store(&fake_adapters_most, n);
    return a;
}
void tinker_adapter_free(tinker_adapter *a)
{
    if (a)
        atomic_fetch_sub(&fake_adapters, 1);
    free(a);
}
const tinker_lora *tinker_adapter_describe(const tinker_adapter *a)
{
    return &a->lora;
}
int64_t tinker_adapter_steps(const tinker_adapter *a)
{
    return a->steps;
}
uint64_t tinker_adapter_bytes(const tinker_adapter *a)
{
    (void)a;
    return sizeof(*a);
}
tinker_adapter *tinker_adapter_snapshot(const tinker_adapter *a, tinker_error *err)
{
    tinker_adapter *b = tinker_adapter_new(NULL, &a->lora, err);
    b->value = a->value;
    return b;
}
tinker_status tinker_adapter_save(const tinker_adapter *a, const char *dir, const char *base_name,
                                  int flags, tinker_error *err)
{
    char path[4200];
    tinker_adapter copy = *a;
    (void)base_name;
    atomic_store(&fake_save_flags, flags);
    if (atomic_load(&fake_save_fails))
        return err_set(err, TINKER_ESTATE, "the disk is full");
    if (!(flags & TINKER_ADAPTER_OPTIMIZER))
        copy.steps = 0, copy.gradient = 0;
    snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
    return os_write_file(path, &copy, sizeof(copy), err);
}
tinker_adapter *tinker_adapter_load(tinker_engine *e, const char *dir, int flags, tinker_error *err)
{
    char path[4200], *data;
    size_t n;
    (void)flags;
    snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
    if (os_read_file(path, 4096, &data, &n, err) != TINKER_OK)
        return NULL;
    tinker_lora lora = TINKER_LORA_INIT;
    tinker_adapter *a = tinker_adapter_new(e, &lora, err);
    memcpy(a, data, sizeof(*a));
    free(data);
    if (!(flags & TINKER_ADAPTER_OPTIMIZER))
        a->steps = 0, a->gradient = 0;
    return a;
}
tinker_status tinker_adapter_export(const tinker_adapter *a, const char *dir, tinker_error *err)
{
    (void)a, (void)dir;
    return err_set(err, TINKER_EINVAL, "the fake engine does not export");
}
tinker_status tinker_adapter_step(tinker_adapter *a, const tinker_adam *adam,
                                  tinker_step_metrics *metrics, tinker_error *err)
{
    double value = a->value + a->gradient * adam->learning_rate;
    if (fabs(value) > (double)FLT_MAX)
        return err_set(err, TINKER_EINVAL, "weights that are not finite");
    a->value = value;
    *metrics = (tinker_step_metrics){ .grad_norm = a->gradient,
                                      .learning_rate = adam->learning_rate,
                                      .clip_coef = 1,
                                      .step = ++a->steps };
    a->gradient = 0;
    return TINKER_OK;
}

tinker_status tinker_adapter_set_optimizer(tinker_adapter *a, const char *name, tinker_error *err)
{
    (void)err;
    a->lora.optimizer = name && strcmp(name, "dimuon") == 0 ? "dimuon" : NULL;
    return TINKER_OK;
}
/* Moves twice as far as Adam, and only an adapter of its own. */
tinker_status tinker_adapter_optimize(tinker_adapter *a, const tinker_optimizer *o,
                                      tinker_step_metrics *metrics, tinker_error *err)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    if (!a->lora.optimizer || strcmp(o->name, "dimuon") != 0)
        return err_set(err, TINKER_EINVAL, "optimizer %s is not the adapter's", o->name);
    for (size_t i = 0; i < o->n_config; i++)
        if (strcmp(o->config[i].name, "learning_rate") == 0)
            adam.learning_rate = 2 * o->config[i].value;
    return tinker_adapter_step(a, &adam, metrics, err);
}

tinker_pass *tinker_pass_new(tinker_engine *e, tinker_adapter *a, const tinker_datum *data,
                             size_t n, const tinker_loss *loss, int forward_only, tinker_error *err)
{
    (void)e;
    if (strcmp(loss->name, "cross_entropy") != 0) {
        err_set(err, TINKER_EINVAL, "unknown loss %s", loss->name);
        return NULL;
    }
    if (atomic_load(&fake_no_memory)) {
        err_set(err, TINKER_ENOMEM, "no memory for the batch");
        return NULL;
    }
    tinker_pass *p = calloc(1, sizeof(*p));
    p->a = a;
    p->n = n;
    p->forward_only = forward_only;
    p->logprobs = calloc(n + 1, sizeof(float));
    p->tensors = calloc(2 * n + 1, sizeof(*p->tensors));
    p->outputs = calloc(n + 1, sizeof(*p->outputs));
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < data[i].model_input.n_chunks; c++)
            p->tokens += (double)data[i].model_input.chunks[c].n_tokens;
        p->logprobs[i] = -0.5f;
        for (int k = 0; k < 2; k++)
            p->tensors[2 * i + k] = (tinker_named_tensor){ k ? "elementwise_loss" : "logprobs",
                                                           { TINKER_FLOAT32, &p->logprobs[i], 1,
                                                             NULL, 0, NULL, NULL } };
        p->outputs[i] = (tinker_loss_output){ &p->tensors[2 * i], 2 };
    }
    return p;
}
/* One logprob of -0.5 for each datum, whose loss the caller computes. */
tinker_pass *tinker_pass_new_custom(tinker_engine *e, tinker_adapter *a, const tinker_datum *data,
                                    size_t n, tinker_datum_loss_fn *fn, void *state,
                                    int forward_only, tinker_error *err)
{
    const tinker_loss plain = { .name = "cross_entropy" };
    tinker_pass *p = tinker_pass_new(e, a, data, n, &plain, forward_only, err);
    if (p) {
        p->custom = fn;
        p->custom_state = state;
    }
    return p;
}
int tinker_pass_step(tinker_pass *p, tinker_error *err)
{
    fake_sleep();
    atomic_fetch_add(&fake_pass_steps, 1);
    double loss = 0;
    float slope = 0;
    if (p->custom && p->custom(p->done, &p->logprobs[p->done], 1, &loss,
                               p->forward_only ? NULL : &slope, err, p->custom_state) != TINKER_OK)
        return -1;
    p->custom_loss += loss;
    p->custom_slope += (double)slope;
    if (++p->done < p->n)
        return 1;
    if (!p->forward_only)
        p->a->gradient += p->custom ? p->custom_slope : p->tokens;
    p->metrics[0] = (tinker_named_number){ "loss:sum", p->custom ? p->custom_loss : p->tokens };
    p->result = (tinker_forward_backward){ "scalar", p->outputs, p->n, p->metrics, 1 };
    atomic_fetch_add(&fake_passes_run, 1);
    return 0;
}
const tinker_forward_backward *tinker_pass_result(const tinker_pass *p)
{
    return &p->result;
}
void tinker_pass_free(tinker_pass *p)
{
    if (!p)
        return;
    free(p->logprobs);
    free(p->tensors);
    free(p->outputs);
    free(p);
}

tinker_generator *tinker_generator_new(tinker_engine *e, tinker_error *err)
{
    (void)e, (void)err;
    return calloc(1, sizeof(tinker_generator));
}
static void fake_request_free(struct fake_request *r)
{
    if (!r)
        return;
    free(r->tokens);
    free(r->logprobs);
    free(r->sequences);
    free(r->prompt_logprobs);
    free(r);
}
static void fake_list_free(struct fake_request *r)
{
    while (r) {
        struct fake_request *next = r->next;
        fake_request_free(r);
        r = next;
    }
}
void tinker_generator_free(tinker_generator *g)
{
    if (!g)
        return;
    fake_list_free(g->active);
    fake_list_free(g->finished);
    fake_request_free(g->returned);
    free(g);
}
tinker_status tinker_generator_add(tinker_generator *g, const tinker_generate *request,
                                   tinker_error *err)
{
    if (!request->n_prompt || request->n_prompt > 256)
        return err_set(err, TINKER_EINVAL, "prompt of %zu tokens, context 256", request->n_prompt);
    struct fake_request *r = calloc(1, sizeof(*r));
    r->g = *request;
    atomic_store(&fake_scope, request->cache_scope);
    r->max_tokens = request->params->max_tokens ? request->params->max_tokens : 16;
    if (r->max_tokens > FAKE_CONTEXT)
        r->max_tokens = FAKE_CONTEXT;
    r->last = request->prompt[request->n_prompt - 1];
    r->tokens = calloc((size_t)r->max_tokens, sizeof(int32_t));
    r->logprobs = calloc((size_t)r->max_tokens, sizeof(float));
    r->sequences = calloc(request->num_samples, sizeof(*r->sequences));
    r->next = g->active;
    g->active = r;
    return TINKER_OK;
}
static void fake_finish(tinker_generator *g, struct fake_request *r)
{
    for (size_t i = 0; i < r->g.num_samples; i++)
        r->sequences[i] = (tinker_sequence){
            .stop_reason = r->stopped ? TINKER_STOP_STOP : TINKER_STOP_LENGTH,
            .tokens = r->tokens,
            .logprobs = r->logprobs,
            .n = r->made,
            .topk_tokens = r->g.topk_sample_logprobs == 1 ? r->tokens : NULL,
            .topk_logprobs = r->g.topk_sample_logprobs == 1 ? r->logprobs : NULL,
            .topk = r->g.topk_sample_logprobs == 1,
        };
    r->result = (tinker_sample){ .sequences = r->sequences, .n_sequences = r->g.num_samples };
    if (r->g.prompt_logprobs) {
        r->prompt_logprobs = calloc(r->g.n_prompt, sizeof(float));
        r->result.prompt_logprobs = r->prompt_logprobs;
        r->result.n_prompt = r->g.n_prompt;
    }
    static const int64_t one_one[2] = { 1, 1 }, token[1] = { 3 };
    static const float logprob[1] = { -3.5f };
    static const tinker_tensor tokens = { TINKER_INT64, token, 1, one_one, 2, NULL, NULL };
    static const tinker_tensor logprobs = { TINKER_FLOAT32, logprob, 1, one_one, 2, NULL, NULL };
    r->result.target_prompt_logprobs = r->g.target_prompt_logprobs ? &logprobs : NULL;
    r->result.prompt_alt_tokens = r->g.prompt_alt_tokens_k ? &tokens : NULL;
    r->result.prompt_alt_logprobs = r->g.prompt_alt_tokens_k ? &logprobs : NULL;
    r->next = g->finished;
    g->finished = r;
}
int tinker_generator_step(tinker_generator *g, tinker_error *err)
{
    int left = 0, together = 0;
    (void)err;
    fake_sleep();
    atomic_fetch_add(&fake_token_steps, 1);
    for (struct fake_request *r = g->active; r; r = r->next)
        together++;
    if (together > atomic_load(&fake_together))
        atomic_store(&fake_together, together);
    for (struct fake_request **p = &g->active; *p;) {
        struct fake_request *r = *p;
        double next = (double)r->last + (double)r->made + 1;
        if (r->g.adapter)
            next += 100 * r->g.adapter->value;
        int32_t token = next >= 0 && next < FAKE_VOCAB ? (int32_t)next : 0;
        r->tokens[r->made] = token;
        r->logprobs[r->made++] = -1.5f;
        for (size_t i = 0; r->g.on_rivals && r->g.topk_sample_logprobs == 1 && i < r->g.num_samples;
             i++)
            r->g.on_rivals(i, &r->tokens[r->made - 1], &r->logprobs[r->made - 1], 1, r->g.state);
        for (size_t i = 0; i < r->g.num_samples; i++)
            if (r->g.on_token && r->g.on_token(i, token, -1.5f, r->g.state))
                r->stopped = 1;
        if (r->stopped || (int64_t)r->made == r->max_tokens) {
            *p = r->next;
            fake_finish(g, r);
        } else {
            p = &r->next;
            left++;
        }
    }
    return left;
}
int tinker_generator_next(tinker_generator *g, void **tag, const tinker_sample **sample,
                          tinker_error *err)
{
    (void)err;
    fake_request_free(g->returned);
    g->returned = g->finished;
    if (!g->returned)
        return 0;
    g->finished = g->returned->next;
    *tag = g->returned->g.tag;
    *sample = &g->returned->result;
    return 1;
}
uint64_t tinker_generator_memory(const tinker_generator *g)
{
    (void)g;
    return 0;
}

uint64_t tinker_generator_trim(tinker_generator *g, int64_t unused_ms)
{
    (void)g;
    atomic_fetch_add(unused_ms ? &fake_partial_trims : &fake_trims, 1);
    return 1;
}
void tinker_generator_cancel(tinker_generator *g, void *tag)
{
    for (struct fake_request **p = &g->active; *p; p = &(*p)->next)
        if ((*p)->g.tag == tag) {
            struct fake_request *r = *p;
            *p = r->next;
            fake_request_free(r);
            return;
        }
}

#endif
