/* sample_job.c - see sample_job.h. */
#include "cli/sample/sample_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

/* text is borrowed and serves all jobs of a run. */
void sample_job_init(struct sample_job *j, const struct prompt_model *text,
                     const struct sample_params *params)
{
    *j = (struct sample_job){ .params = *params, .text = text, .prompt = TINKER_TOKENS_INIT };
}

/* The prompt and both lists are owned; texts in stop_strings are borrowed from the options. */
void sample_job_clear(struct sample_job *j)
{
    tinker_tokens_clear(&j->prompt);
    free(j->stop_tokens);
    free(j->stop_strings);
    j->stop_tokens = NULL;
    j->stop_strings = NULL;
}

/* ---- the prompt ------------------------------------------------------------------------------- */

/* Encode messages in the chat format. The tokens are copied; a prompt from the command line has
 * nothing but text.
 * An image cannot come from here, but a renderer of another format might make one. */
static tinker_status render_messages(struct sample_job *j, const tinker_message *messages, size_t n,
                                     tinker_error *err)
{
    tinker_rendered *x = tinker_renderer_prompt(j->text->renderer, messages, n, NULL, NULL, err);
    if (!x)
        return err->status;
    tinker_status status = TINKER_OK;
    const tinker_model_input *input = &x->examples[0].input;
    for (size_t i = 0; status == TINKER_OK && i < input->n_chunks; i++) {
        const tinker_chunk *c = &input->chunks[i];
        status = c->kind == TINKER_CHUNK_TEXT
                     ? tinker_tokens_append(&j->prompt, c->tokens, c->n_tokens, err)
                     : err_set(err, TINKER_EINVAL, "only text can be sampled from here");
    }
    tinker_rendered_free(x);
    return status;
}

tinker_status sample_job_set_text(struct sample_job *j, const char *text, size_t n,
                                  tinker_error *err)
{
    tinker_message messages[2] = { { .role = "system" }, { .role = "user" } };
    if (n == 0) /* a chat format would make a question of nothing */
        return err_set(err, TINKER_EINVAL, "the prompt is empty");
    if (!j->text->renderer)
        return tinker_tokenizer_encode(j->text->tokenizer, text, n, NULL, &j->prompt, err);
    /* The system message is used only if there is one: an empty one is not the same as none. */
    messages[0].content = j->system;
    messages[1].content = text;
    messages[1].n_content = n;
    return j->system ? render_messages(j, messages, 2, err)
                     : render_messages(j, messages + 1, 1, err);
}

/* It needs a chat format: roles mean nothing to a raw prompt. */
tinker_status sample_job_set_messages(struct sample_job *j, const char *json, size_t n,
                                      tinker_error *err)
{
    if (!j->text->renderer)
        return err_set(err, TINKER_EINVAL, "messages need a renderer: give --renderer NAME");
    tinker_conversation *c = tinker_conversation_parse(json, n, err);
    if (!c)
        return err->status;
    tinker_status status = c->n_messages ? render_messages(j, c->messages, c->n_messages, err)
                                         : err_set(err, TINKER_EINVAL, "there are no messages");
    tinker_conversation_free(c);
    return status;
}

/* The service takes tokens or strings, not both: --stop-token adds the renderer's tokens, --stop
 * replaces all. */
tinker_status sample_job_set_stops(struct sample_job *j, tinker_error *err)
{
    const struct sample_params *p = &j->params;
    tinker_stop_sequences own = { 0 };
    if (p->stop.n && p->stop_tokens.n)
        return err_set(err, TINKER_EINVAL, "Give either --stop or --stop-token.");
    if (j->text->renderer && !p->no_default_stop && !p->stop.n)
        own = tinker_renderer_stop(j->text->renderer);
    /* Room for everything in both lists; which of them is used is known at the end. */
    size_t n = p->stop.n + p->stop_tokens.n + own.n;
    j->stop_tokens = calloc(n + 1, sizeof(*j->stop_tokens));
    j->stop_strings = calloc(n + 1, sizeof(*j->stop_strings));
    if (!j->stop_tokens || !j->stop_strings)
        return err_nomem(err, "stops");
    for (size_t i = 0; i < p->stop.n; i++) {
        if (!*p->stop.items[i])
            return err_set(err, TINKER_EINVAL, "Invalid value for '--stop': the text is empty.");
        j->stop_strings[j->n_stop++] = p->stop.items[i];
    }
    for (size_t i = 0; i < p->stop_tokens.n; i++) {
        char *end;
        long long v = strtoll(p->stop_tokens.items[i], &end, 10);
        if (*end || end == p->stop_tokens.items[i] || v < 0 || v > INT32_MAX)
            return err_set(err, TINKER_EINVAL, "Invalid value for '--stop-token': '%s'",
                           p->stop_tokens.items[i]);
        j->stop_tokens[j->n_stop++] = (int32_t)v;
    }
    for (size_t i = 0; i < own.n; i++) {
        /* A renderer has strings or tokens; next to --stop-token only its tokens can be used. */
        if (own.strings && !p->stop_tokens.n)
            j->stop_strings[j->n_stop++] = own.strings[i];
        else if (own.tokens)
            j->stop_tokens[j->n_stop++] = own.tokens[i];
    }
    return TINKER_OK;
}

/* The input is copied by the call, so the arrays may end with it. The latency counts from here:
 * loading weights is not part of it. */
tinker_future *sample_job_submit(struct sample_job *j, tinker_sampler *s,
                                 tinker_stream_event_fn *on_event, void *state, tinker_error *err)
{
    const struct sample_params *q = &j->params;
    tinker_sampling_params p = q->how;
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT,
                           .tokens = j->prompt.ids,
                           .n_tokens = j->prompt.n };
    tinker_model_input input = { &chunk, 1 };
    if (j->prompt.n == 0) {
        err_set(err, TINKER_EINVAL, "the prompt is empty");
        return NULL;
    }
    /* A seed may be any number, 0 and negative ones included. */
    p.has_seed = p.seed != SAMPLE_NO_SEED;
    if (j->n_stop) {
        p.n_stop = j->n_stop;
        if (j->stop_strings[0])
            p.stop_strings = j->stop_strings;
        else
            p.stop_tokens = j->stop_tokens;
    } else if (q->no_default_stop) {
        p.stop_tokens = j->stop_tokens; /* an empty list: not where the model itself ends, either */
    }
    o.num_samples = (size_t)q->n;
    o.prompt_logprobs = q->prompt_logprobs;
    o.topk_prompt_logprobs = (size_t)q->topk_prompt;
    j->start_ns = clock_now_ns(clock_real());
    return on_event ? tinker_sampler_sample_stream(s, &input, &p, &o, on_event, state, err)
                    : tinker_sampler_sample(s, &input, &p, &o, err);
}

/* ---- results ---------------------------------------------------------------------------------- */

const char *sample_stop_name(tinker_stop_reason reason)
{
    return reason == TINKER_STOP_STOP ? "stop" : "length";
}

/* raw keeps control tokens in the text. */
tinker_status sample_decode(const struct sample_job *j, const tinker_sequence *s, bool raw,
                            tinker_text *out, tinker_error *err)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    o.skip_special = !raw;
    return tinker_tokenizer_decode(j->text->tokenizer, s->tokens, s->n, &o, out, err);
}

/* NaN stands for "none", as for the first token of a prompt, and becomes null.
 * NULL: they were not asked for. */
static void put_logprobs(struct json_writer *w, const float *v, size_t n)
{
    if (!v) {
        json_put_null(w);
        return;
    }
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i]))
            json_put_null(w);
        else
            json_put_float(w, v[i]);
    }
    json_put_end_array(w);
}

/* One list of [token, logprob] pairs per position of the prompt. The array is rectangular;
 * cells that are not used hold -99999 or less. */
static void put_topk(struct json_writer *w, const tinker_sample *s)
{
    if (!s->topk_tokens) {
        json_put_null(w);
        return;
    }
    json_put_begin_array(w);
    for (size_t i = 0; i < s->n_prompt; i++) {
        json_put_begin_array(w);
        for (size_t k = 0; k < s->topk; k++) {
            float logprob = s->topk_logprobs[i * s->topk + k];
            if (logprob <= -99999)
                continue;
            json_put_begin_array(w);
            json_put_int64(w, s->topk_tokens[i * s->topk + k]);
            json_put_float(w, logprob);
            json_put_end_array(w);
        }
        json_put_end_array(w);
    }
    json_put_end_array(w);
}

/* Members that were not asked for are null, never missing, so that readers need no tests. */
tinker_status sample_put_result(struct json_writer *w, const struct sample_job *j, bool raw,
                                const tinker_sample *s, tinker_error *err)
{
    tinker_status status = TINKER_OK;
    size_t sampled = 0;
    json_put_key(w, "sequences");
    json_put_begin_array(w);
    for (size_t i = 0; status == TINKER_OK && i < s->n_sequences; i++) {
        const tinker_sequence *q = &s->sequences[i];
        tinker_text text = TINKER_TEXT_INIT;
        status = sample_decode(j, q, raw, &text, err);
        json_put_begin_object(w);
        json_put_key(w, "text");
        json_put_string_n(w, text.s ? text.s : "", text.n);
        json_put_key(w, "tokens");
        json_put_array_int32(w, q->tokens, q->n);
        json_put_key(w, "logprobs");
        put_logprobs(w, q->logprobs, q->n);
        json_put_key(w, "stop_reason");
        json_put_string(w, sample_stop_name(q->stop_reason));
        json_put_end_object(w);
        tinker_text_clear(&text);
        sampled += q->n;
    }
    json_put_end_array(w);
    json_put_key(w, "prompt_logprobs");
    put_logprobs(w, s->prompt_logprobs, s->n_prompt);
    json_put_key(w, "topk_prompt_logprobs");
    put_topk(w, s);
    json_put_key(w, "usage");
    json_put_begin_object(w);
    json_put_key(w, "prompt");
    json_put_uint64(w, j->prompt.n);
    json_put_key(w, "sampled");
    json_put_uint64(w, sampled);
    json_put_end_object(w);
    return status;
}
