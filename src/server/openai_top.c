/* openai_top.c - the likeliest tokens beside the chosen ones: see openai.h.
 *
 * While it samples the engine tells only the value of the token it chose.  Afterwards the
 * whole sequence is a prompt whose top-k the engine does give; its prefix is cached, so this
 * costs about one pass over the tokens that were made.  Streams do not wait for that. */
#include "server/openai.h"

#include <string.h>

#include "server/submit.h"
#include "wire/wire.h"

bool openai_wants_top(const struct openai *o)
{
    return o->logprobs && o->top_logprobs > 0 && !o->stream;
}

static struct work *make_work(const struct openai *o, size_t i, const tinker_sequence *q)
{
    struct work *w = work_new(WORK_SAMPLE);
    if (!w)
        return NULL;
    struct wire_sample_request *r = &w->sample;
    wire_init(&wire_sample_request, r);
    size_t n_prompt = o->prompts[i].n, n = n_prompt + q->n;
    tinker_chunk *chunk = arena_alloc(&w->arena, sizeof(*chunk));
    int32_t *tokens = arena_array(&w->arena, n, sizeof(*tokens));
    w->dir = o->from.checkpoint ? arena_strdup(&w->arena, o->from.checkpoint->dir) : NULL;
    if (!chunk || !tokens || (o->from.checkpoint && !w->dir)) {
        work_free(w);
        return NULL;
    }
    memcpy(tokens, o->prompts[i].tokens, n_prompt * sizeof(*tokens));
    memcpy(tokens + n_prompt, q->tokens, q->n * sizeof(*tokens));
    *chunk = (tinker_chunk){ .tokens = tokens, .n_tokens = n };
    r->prompt = (tinker_model_input){ chunk, 1 };
    r->num_samples = 1;
    r->prompt_logprobs = (struct wire_opt_bool){ 1, true };
    r->topk_prompt_logprobs = o->top_logprobs;
    /* One more token than is needed; none where the context is full. */
    bool full = (int64_t)n >= tinker_engine_describe(o->from.base->engine)->context;
    r->sampling_params.max_tokens = full ? 0 : 1;
    return w;
}

bool openai_top_submit(struct server *s, const char *user, struct openai *o, size_t i,
                       const tinker_sample *sample)
{
    struct session *session = samplers_direct_session(s, user);
    const char **ids = arena_array(&o->arena, sample->n_sequences + 1, sizeof(*ids));
    for (size_t j = 0; session && ids && j < sample->n_sequences; j++) {
        if (!sample->sequences[j].n)
            continue;
        ids[j] = arena_printf(&o->arena, "%s-%zu-top-%zu", o->id, i, j);
        struct work *w = ids[j] ? make_work(o, i, &sample->sequences[j]) : NULL;
        if (!w || submit_sample(s, user, session, o->from.base, w, ids[j]) != SUBMIT_OK)
            return false;
    }
    o->prompts[i].tops = ids;
    return session && ids;
}

struct openai_top openai_top_read(const struct openai *o, size_t i, const tinker_sample *found)
{
    size_t n = o->prompts[i].n;
    if (!found->topk_tokens || !found->prompt_logprobs || found->n_prompt < n)
        return (struct openai_top){ 0 };
    return (struct openai_top){ .tokens = found->topk_tokens + n * found->topk,
                                .logprobs = found->topk_logprobs + n * found->topk,
                                .chosen = found->prompt_logprobs + n,
                                .k = found->topk };
}
