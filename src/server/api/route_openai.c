/* route_openai.c - /v1/models, /v1/completions, /v1/chat/completions: see openai.h.
 *
 * "model" is the name of a base model, a tinker:// path, or the id of a training run, which stands
 * for its newest checkpoint.  The first call of a handler submits one sample per prompt and keeps
 * struct openai as the request's context; the handler is called again whenever a sample is done,
 * until all are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "server/api/anthropic.h"
#include "server/api/openai.h"
#include "server/api/routes.h"
#include "server/work/submit.h"
#include "wire/proto.h"
#include "wire/wire.h"
#include "wire/sample_options.h"

/* Base models first, then the user's checkpoints that can be sampled from. */
void route_openai_models(struct server *s, struct request *req, struct response *res)
{
    struct json_writer w;
    struct store_checkpoint *list;
    size_t n = 0;
    tinker_error err = { 0 };
    /* 1000: a client chooses from a list, and none reads further. */
    if (store_list_checkpoints(s->store, req->user, NULL, 1000, 0, &req->arena, &list, &n, NULL,
                               &err) != TINKER_OK) {
        openai_error(res, 500, err.message);
        return;
    }
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "object");
    json_put_string(&w, "list");
    json_put_key(&w, "data");
    json_put_begin_array(&w);
    for (size_t i = 0; i < s->n_bases + n; i++) {
        const struct store_checkpoint *c = i < s->n_bases ? NULL : &list[i - s->n_bases];
        if (c && c->kind == STORE_EXTERNAL) /* PEFT files are for use elsewhere */
            continue;
        json_put_begin_object(&w);
        json_put_key(&w, "id");
        json_put_string(&w, c ? arena_printf(&req->arena, "tinker://%s/%s/%s", c->run,
                                             store_kind_name(c->kind), c->name)
                              : s->bases[i].name);
        json_put_key(&w, "object");
        json_put_string(&w, "model");
        json_put_key(&w, "created");
        /* Base models have no date of their own; a client may show it, so it is at least a time. */
        json_put_int64(&w, c ? c->created_us / 1000000 : clock_wall_ns(s->clock) / 1000000000);
        json_put_key(&w, "owned_by");
        json_put_string(&w, c ? c->owner : "tinker");
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    json_put_end_object(&w);
    res->content_type = "application/json";
}

/* ---- submitting ------------------------------------------------------------------------------ */

/* The job of one prompt; everything is copied into its arena, because it outlives the request.
 * NULL: no memory. */
static struct job *make_sample_job(const struct openai *o, size_t prompt)
{
    struct job *w = job_new(JOB_SAMPLE);
    if (!w)
        return NULL;
    struct wire_sample_request *r = &w->sample;
    wire_init(&wire_sample_request, r);
    tinker_chunk *chunk = arena_alloc(&w->arena, sizeof(*chunk));
    const char **stop = arena_array(&w->arena, o->n_stop + 1, sizeof(*stop));
    /* A prompt is borrowed from o, whose arena ends with the request, while the job may run on. */
    size_t n = o->prompts[prompt].n;
    const int32_t *tokens = arena_memdup(&w->arena, o->prompts[prompt].tokens, n * sizeof(*tokens));
    int32_t *stop_tokens = arena_array(&w->arena, o->n_stop_tokens + 1, sizeof(*stop_tokens));
    /* arena_memdup() of nothing needs an address all the same. */
    const tinker_logit_bias *bias =
        arena_memdup(&w->arena, o->params.n_logit_bias ? (const void *)o->params.logit_bias : "",
                     o->params.n_logit_bias * sizeof(*bias));
    w->dir = o->from.checkpoint ? arena_strdup(&w->arena, o->from.checkpoint->dir) : NULL;
    if (!chunk || !stop || !tokens || !stop_tokens || !bias || (o->from.checkpoint && !w->dir)) {
        job_free(w);
        return NULL;
    }
    /* Without any stop the model's own end tokens end it: see sample.c. */
    *chunk = (tinker_chunk){ .tokens = tokens, .n_tokens = n };
    r->prompt = (tinker_model_input){ chunk, 1 };
    tinker_sample_options options = o->options;
    options.num_samples = (size_t)o->n;
    /* OpenAI counts alternatives beside a flag, the engine takes their number. */
    options.topk_sample_logprobs = o->logprobs ? (size_t)o->top_logprobs : 0;
    options.prompt_logprobs = o->echo && o->logprobs;
    options.topk_prompt_logprobs = o->echo ? options.topk_sample_logprobs : 0;
    wire_sample_set_options(r, &options, NULL); /* both were checked when the request was read */
    tinker_sampling_params *p = &r->sampling_params;
    *p = o->params;
    p->logit_bias = o->params.n_logit_bias ? bias : NULL;
    for (size_t i = 0; i < o->n_stop; i++)
        stop[i] = arena_strdup(&w->arena, o->stop[i]);
    if (o->n_stop_tokens)
        memcpy(stop_tokens, o->stop_tokens, o->n_stop_tokens * sizeof(*stop_tokens));
    /* Stop strings were preferred when both came from the chat format; a client may give one kind
     * only. */
    if (o->n_stop) {
        p->stop_strings = stop;
        p->n_stop = o->n_stop;
    } else if (o->n_stop_tokens) {
        p->stop_tokens = stop_tokens;
        p->n_stop = o->n_stop_tokens;
    }
    return w;
}

/* Queue every prompt; false: none is, and the response says why. */
static bool submit_all(struct server *s, struct request *req, struct response *res,
                       struct openai *o)
{
    /* These requests name no session; all of a user share one. */
    struct session *session = sampler_table_direct_session(s, req->user);
    int status = session ? SUBMIT_OK : SUBMIT_FAILED;
    size_t n = 0;
    tinker_error err = { 0 };
    /* One job per prompt: they may be computed in one batch, but each has its own future. */
    while (status == SUBMIT_OK && n < o->n_prompts) {
        struct job *w = make_sample_job(o, n);
        if (w && openai_grammar(o, &w->grammar, &err) != TINKER_OK) {
            job_free(w);
            break;
        }
        /* An id of ours: nobody polls it, so it only has to be unique. */
        o->prompts[n].future = arena_printf(&o->arena, "%s-%zu", o->id, n);
        if (w && o->stream)
            w->observer = openai_observer(s, o, &res->stream);
        if (w && o->prompts[n].future && (!o->stream || w->observer)) {
            /* Takes the job over, whatever it returns. */
            status = submit_sample(s, req->user, session, o->from.base, w, o->prompts[n].future);
        } else {
            job_free(w);
            status = SUBMIT_FAILED;
        }
        n += status == SUBMIT_OK;
    }
    if (status == SUBMIT_OK && !err.status)
        return true;
    /* Nobody will ask for those that were queued.  The job that was not is freed, and with it its
     * observer and the producer's side of the stream. */
    while (n > 0)
        route_cancel_sample(s, req->user, o->prompts[--n].future);
    /* The stream was made by openai_observer() and handed to the response; nobody will write to
     * it. */
    stream_unref(res->stream);
    res->stream = NULL;
    if (err.status)
        openai_error(res, err.status == TINKER_ENOMEM ? 503 : 400, err.message);
    else
        route_submitted(s, res, status, o->id, NULL, NULL);
    return false;
}

/* Decode, find the weights, tokenize; `count`: nothing is to be sampled.  false: the response says
 * why not. */
static bool prepare_completion(struct server *s, struct request *req, struct response *res,
                               struct openai *o, bool count)
{
    tinker_error err = { 0 };
    char uuid[37];
    if ((o->anthropic ? anthropic_read(o, req->body, req->n_body, count, &err)
                      : openai_read(o, req->body, req->n_body, &err)) != TINKER_OK) {
        openai_error(res, 400, err.message);
        return false;
    }
    const char *path = o->model, *base = o->model;
    const char *semicolon = strchr(o->model, ';');
    if (semicolon) { /* "<base>;<checkpoint>": both must agree */
        base = arena_strndup(&req->arena, o->model, (size_t)(semicolon - o->model));
        path = semicolon + 1;
        if (!base || strncmp(path, "tinker://", 9) != 0) {
            openai_error(res, 400, "model: expected a tinker:// path after the semicolon");
            return false;
        }
    } else if (strncmp(path, "tinker://", 9) != 0) {
        path = NULL;
        /* Not a base model: perhaps a run of the user, for its newest checkpoint. */
        const struct store_checkpoint *newest = NULL;
        /* The newer of a training and a sampler checkpoint; both can be sampled from. */
        for (int kind = STORE_TRAINING; kind <= STORE_SAMPLER && !live_find_base(s, o->model);
             kind++) {
            struct store_checkpoint *c = NULL;
            store_last_checkpoint(s->store, o->model, kind, &req->arena, &c, NULL);
            if (c && strcmp(c->owner, req->user) == 0 &&
                (!newest || c->created_us >= newest->created_us))
                newest = c;
        }
        if (newest)
            path = arena_printf(&req->arena, "tinker://%s/%s/%s", newest->run,
                                store_kind_name(newest->kind), newest->name);
    }
    if (!sampler_table_find_source(s, req, res, semicolon || !path ? base : NULL, path, &o->from))
        return false;
    /* Random, so a retry of the HTTP request samples again, as with the OpenAI API. */
    rand_uuid(uuid);
    snprintf(o->id, sizeof(o->id), "%s%s",
             o->anthropic ? "msg_"
             : o->chat    ? "chatcmpl-"
                          : "cmpl-",
             uuid);
    o->created_s = clock_wall_ns(s->clock) / 1000000000;
    /* Models without a chat template or tokenizer are refused here, before anything is queued. */
    tinker_status status = openai_prompts(o, !s->opts.no_implicit_eos, &err);
    /* Parts of the body, which goes when this call returns; of tools and schema only whether there
     * are any matters once all samples are queued. */
    o->prompt = o->messages = (struct json_str){ 0 };
    /* One connection, one sample: several would need several observers on one stream. */
    if (status == TINKER_OK && o->stream && o->n_prompts != 1) {
        openai_error(res, 400, "a stream takes one prompt");
        return false;
    }
    if (status == TINKER_OK && o->stream && !o->from.base->tokenizer) {
        openai_error(res, 400, "this model has no tokenizer: there is no text to stream");
        return false;
    }
    if (status != TINKER_OK) {
        openai_error(res, 400, err.message);
        return false;
    }
    return true;
}

/* The first call of a handler. */
static bool begin_completion(struct server *s, struct request *req, struct response *res,
                             struct openai *o)
{
    /* false: nothing was queued, or all of it was canceled. */
    bool ok = prepare_completion(s, req, res, o, false) && submit_all(s, req, res, o);
    o->schema = (struct json_str){ 0 };
    if (o->tools.s)
        o->tools = (struct json_str){ "", 0 };
    return ok;
}

/* ---- responses ---------------------------------------------------------------------------------- */

/* Prompt and sample as one sequence, for echo.  false: no memory. */
static bool join_prompt(const struct openai *o, struct arena *arena, size_t prompt,
                        const tinker_sample *s, const tinker_sequence *q, tinker_sequence *out)
{
    /* no_new: max_tokens 0, which echoes the prompt and adds nothing. */
    size_t p = o->prompts[prompt].n, made = o->no_new ? 0 : q->n, n = p + made, k = q->topk;
    /* n + 1 and n * k + 1: an empty array must not look like no memory. */
    int32_t *tokens = arena_array(arena, n + 1, sizeof(*tokens));
    float *logprobs = arena_array(arena, n + 1, sizeof(*logprobs));
    int32_t *top_tokens = arena_array(arena, n * k + 1, sizeof(*top_tokens));
    float *top_logprobs = arena_array(arena, n * k + 1, sizeof(*top_logprobs));
    if (!tokens || !logprobs || !top_tokens || !top_logprobs)
        return false;
    memcpy(tokens, o->prompts[prompt].tokens, p * sizeof(*tokens));
    memcpy(tokens + p, q->tokens, made * sizeof(*tokens));
    *out = *q;
    out->tokens = tokens;
    out->n = n;
    if (!s->prompt_logprobs || s->n_prompt != p || !q->logprobs) { /* they were not asked for */
        out->logprobs = NULL;
        return true;
    }
    memcpy(logprobs, s->prompt_logprobs, p * sizeof(*logprobs));
    memcpy(logprobs + p, q->logprobs, made * sizeof(*logprobs));
    out->logprobs = logprobs;
    if (k && s->topk == k && q->topk_tokens) {
        memcpy(top_tokens, s->topk_tokens, p * k * sizeof(*top_tokens));
        memcpy(top_tokens + p * k, q->topk_tokens, made * k * sizeof(*top_tokens));
        memcpy(top_logprobs, s->topk_logprobs, p * k * sizeof(*top_logprobs));
        memcpy(top_logprobs + p * k, q->topk_logprobs, made * k * sizeof(*top_logprobs));
        out->topk_tokens = top_tokens;
        out->topk_logprobs = top_logprobs;
    }
    return true;
}

/* The text of a completion, after that of its prompt if that is wanted. */
static void put_completion_text(const struct openai *o, struct json_writer *w, size_t prompt,
                                const tinker_sequence *q)
{
    /* Decoded apart from the sample: joined, the two could merge into other characters. */
    tinker_text text = TINKER_TEXT_INIT;
    if (o->from.base->tokenizer && o->echo)
        tinker_tokenizer_decode(o->from.base->tokenizer, o->prompts[prompt].tokens,
                                o->prompts[prompt].n, NULL, &text, NULL);
    if (o->from.base->tokenizer && !o->no_new) {
        tinker_text more = TINKER_TEXT_INIT;
        openai_text(o, q->tokens, q->n, &more, NULL);
        /* No text rather than half of one. */
        if (more.n && tinker_text_append(&text, more.s, more.n, NULL) != TINKER_OK)
            text.n = 0;
        tinker_text_clear(&more);
    }
    json_put_key(w, "text");
    json_put_string_n(w, text.s ? text.s : "", text.n);
    tinker_text_clear(&text);
}

/* One sequence as a choice. */
static void put_choice(const struct openai *o, struct json_writer *w, size_t prompt,
                       const tinker_sample *s, const tinker_sequence *q, size_t index,
                       struct arena *arena)
{
    /* A message that calls tools ends for that reason, whatever token ended it. */
    const char *reason = q->stop_reason == TINKER_STOP_STOP ? "stop" : "length";
    size_t offset = 0;
    tinker_sequence all = *q;
    /* The text is still right without memory for the probabilities. */
    if (o->echo && !join_prompt(o, arena, prompt, s, q, &all))
        all.logprobs = NULL;
    /* Offsets count from the beginning of prompt and text together. */
    if (!o->chat && !o->echo)
        offset = openai_count_chars(o, o->prompts[prompt].tokens, o->prompts[prompt].n);
    json_put_begin_object(w);
    json_put_key(w, "index");
    json_put_int64(w, (int64_t)index);
    if (o->chat) {
        json_put_key(w, "message");
        json_put_begin_object(w);
        /* put_message() parses the text, so it alone knows whether it calls tools. */
        if (openai_put_message(o, w, q->tokens, q->n, false))
            reason = "tool_calls";
        json_put_end_object(w);
    } else {
        put_completion_text(o, w, prompt, q);
        json_put_key(w, "token_ids");
        json_put_array_int32(w, all.tokens, all.n);
    }
    json_put_key(w, "logprobs");
    openai_put_logprobs(o, w, &all, &offset);
    json_put_key(w, "finish_reason");
    json_put_string(w, reason);
    json_put_end_object(w);
}

/* All samples are there: one choice per sequence, numbered across the prompts.  OpenAI numbers
 * choices through all prompts, so a client divides by n. */
static void reply_completion(struct response *res, const struct openai *o,
                             const tinker_sample *samples, struct arena *arena)
{
    struct json_writer w;
    size_t prompt = 0, made = 0, index = 0;
    int64_t cached = 0;
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "id");
    json_put_string(&w, o->id);
    json_put_key(&w, "object");
    json_put_string(&w, o->chat ? "chat.completion" : "text_completion");
    json_put_key(&w, "created");
    json_put_int64(&w, o->created_s);
    json_put_key(&w, "model");
    json_put_string(&w, o->model);
    json_put_key(&w, "choices");
    json_put_begin_array(&w);
    for (size_t i = 0; i < o->n_prompts; i++) {
        prompt += o->prompts[i].n;
        cached += samples[i].prompt_cache_hit_tokens;
        for (size_t j = 0; j < samples[i].n_sequences; j++) {
            made += o->no_new ? 0 : samples[i].sequences[j].n;
            put_choice(o, &w, i, &samples[i], &samples[i].sequences[j], index++, arena);
        }
    }
    json_put_end_array(&w);
    json_put_key(&w, "usage");
    json_put_begin_object(&w);
    json_put_key(&w, "prompt_tokens");
    json_put_int64(&w, (int64_t)prompt);
    json_put_key(&w, "completion_tokens");
    json_put_int64(&w, (int64_t)made);
    json_put_key(&w, "total_tokens");
    json_put_int64(&w, (int64_t)(prompt + made));
    json_put_key(&w, "prompt_tokens_details");
    json_put_begin_object(&w);
    json_put_key(&w, "cached_tokens");
    json_put_int64(&w, cached);
    json_put_end_object(&w);
    json_put_end_object(&w);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}

static void reply_message(struct response *res, const struct openai *o, const tinker_sample *sample)
{
    struct json_writer w;
    json_writer_init(&w, &res->body);
    anthropic_put_message(o, &w, sample);
    res->status = 200;
    res->content_type = "application/json";
}

/* Why there will be no result: an HTTP status and a message. */
struct failure {
    int status; /* 0: none */
    char text[512];
};

/* The text is copied: the future may be freed once the lock is released. */
static void set_failure(struct failure *f, int status, const char *text)
{
    f->status = status;
    snprintf(f->text, sizeof(f->text), "%s", text);
}

/* Respond when all samples are done, fail when one has failed, else wait for one of them. */
static void reply_when_done(struct server *s, struct request *req, struct response *res,
                            struct openai *o)
{
    /* Under the lock only for looking: what is sent is written after it. */
    struct failure failure = { 0 };
    struct future *pending = NULL;
    tinker_error err = { 0 };
    tinker_sample *samples = arena_array(&req->arena, o->n_prompts + 1, sizeof(*samples));
    if (!samples) {
        response_no_memory(res);
        return;
    }
    pthread_mutex_lock(&s->lock);
    /* The first that failed or is not done decides. */
    for (size_t i = 0; i < o->n_prompts && !failure.status && !pending; i++) {
        struct future *f = live_find_future_locked(s, o->prompts[i].future);
        if (!f)
            set_failure(&failure, 500, "the result is no longer available");
        else if (f->state == FUTURE_FAILED)
            set_failure(&failure, f->category == TINKER_CATEGORY_SERVER ? 500 : 400,
                        f->result ? f->result : "failed");
        else if (f->state != FUTURE_DONE)
            pending = f;
    }
    for (size_t i = 0; i < o->n_prompts && !failure.status && !pending; i++) {
        struct future *f = live_find_future_locked(s, o->prompts[i].future);
        f->delivered = true; /* nobody asks again: it may go when memory is short */
        if (wire_decode_sample_response(f->result, f->n_result, &req->arena, &samples[i], &err) !=
            TINKER_OK)
            set_failure(&failure, 500, err.message);
    }
    pthread_mutex_unlock(&s->lock);
    if (failure.status)
        openai_error(res, failure.status, failure.text);
    else if (pending)
        res->wait = &pending->wait; /* hold after hold: these clients do not poll */
    else
        o->anthropic ? reply_message(res, o, samples)
                     : reply_completion(res, o, samples, &req->arena);
}

/* Called for the request and again after every hold; the context tells the two apart. */
static void handle_completion(struct server *s, struct request *req, struct response *res,
                              bool chat, bool anthropic)
{
    /* A context is there from the second call on. */
    struct openai *o = req->context;
    if (!o) {
        o = calloc(1, sizeof(*o));
        if (!o) {
            response_no_memory(res);
            return;
        }
        /* 1 GiB: prompts, their tokens and the parsed tools of one request. */
        arena_init(&o->arena, (size_t)1 << 30);
        o->chat = chat;
        o->anthropic = anthropic;
        o->server = s;
        o->user = req->user; /* lives as long as the request */
        req->context = o;    /* kept across holds, freed with the request */
        /* openai_free() also cancels what is still queued when the client goes away. */
        req->context_free = openai_free;
        if (!begin_completion(s, req, res, o))
            return;
        if (o->stream) {      /* the listener sends from here on; no second call comes */
            o->server = NULL; /* the sample ends with the stream, not with this call */
            res->content_type = "text/event-stream";
            response_header(res, "Cache-Control", "no-cache");
            return;
        }
    }
    reply_when_done(s, req, res, o);
}

void route_openai_completions(struct server *s, struct request *req, struct response *res)
{
    handle_completion(s, req, res, false, false);
}

void route_openai_chat(struct server *s, struct request *req, struct response *res)
{
    handle_completion(s, req, res, true, false);
}

void route_messages(struct server *s, struct request *req, struct response *res)
{
    handle_completion(s, req, res, true, true);
}

/* How many tokens the prompt of a message would have.  prepare_completion() without submitting: the
 * same code decides what a prompt is. */
void route_count_tokens(struct server *s, struct request *req, struct response *res)
{
    struct openai *o = calloc(1, sizeof(*o));
    struct json_writer w;
    if (!o) {
        response_no_memory(res);
        return;
    }
    arena_init(&o->arena, (size_t)1 << 30);
    o->chat = o->anthropic = true;
    if (prepare_completion(s, req, res, o, true)) {
        json_writer_init(&w, &res->body);
        json_put_begin_object(&w);
        json_put_key(&w, "input_tokens");
        json_put_int64(&w, (int64_t)o->prompts[0].n);
        json_put_end_object(&w);
        res->status = 200;
        res->content_type = "application/json";
    }
    openai_free(o);
}
