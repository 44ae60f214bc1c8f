/* openai_prompt.c - text and messages to tokens, tokens to text: see openai.h. */
#include "server/api/openai.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static tinker_status add_prompt(struct openai *o, const int32_t *tokens, size_t n,
                                tinker_error *err)
{
    if (o->n_prompts == OPENAI_PROMPTS)
        return err_set(err, TINKER_EINVAL, "more than %d prompts", OPENAI_PROMPTS);
    const int32_t *copy =
        arena_memdup(&o->arena, tokens ? tokens : (const int32_t *)"", n * sizeof(*tokens));
    if (!copy)
        return err_nomem(err, "prompt");
    o->prompts[o->n_prompts].tokens = copy;
    o->prompts[o->n_prompts++].n = n;
    return TINKER_OK;
}

static tinker_status encode_prompt(struct openai *o, const char *text, size_t n, int add_special,
                                   tinker_error *err)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_encode_options opts = TINKER_ENCODE_OPTIONS_INIT;
    opts.add_special = add_special;
    if (!o->from.base->tokenizer)
        return err_set(err, TINKER_EINVAL, "this model has no tokenizer: give token ids");
    tinker_status status =
        tinker_tokenizer_encode(o->from.base->tokenizer, text, n, &opts, &ids, err);
    if (status == TINKER_OK)
        status = add_prompt(o, ids.ids, ids.n, err);
    tinker_tokens_clear(&ids);
    return status;
}

/* One prompt: a text, or an array of token ids. */
static tinker_status read_prompt(struct openai *o, struct json_reader *r, tinker_error *err)
{
    struct json_str text;
    int32_t *ids;
    size_t n;
    if (json_peek(r) == JSON_STRING && json_string(r, &text))
        return encode_prompt(o, text.s, text.n, 1, err);
    if (json_array_int32(r, &ids, &n))
        return add_prompt(o, ids, n, err);
    return err_set(err, TINKER_EINVAL, "prompt: %s", json_error(r));
}

/* "text", [1, 2], ["text", "text"] or [[1, 2], [3]]. */
static tinker_status read_prompts(struct openai *o, tinker_error *err)
{
    struct json_reader r, look;
    json_reader_init(&r, o->prompt.s, o->prompt.n, &o->arena);
    look = r;
    bool list = json_begin_array(&look) && json_next_item(&look) && json_peek(&look) != JSON_NUMBER;
    if (!list)
        return read_prompt(o, &r, err);
    tinker_status status = TINKER_OK;
    json_begin_array(&r);
    while (status == TINKER_OK && json_next_item(&r))
        status = read_prompt(o, &r, err);
    return status;
}

/* ---- stops -------------------------------------------------------------------------------- */

static tinker_status add_stop_string(struct openai *o, const char *text, size_t n,
                                     tinker_error *err)
{
    if (o->n_stop == OPENAI_STOPS_ALL)
        return err_set(err, TINKER_EINVAL, "stop: more than %d with those of the model",
                       OPENAI_STOPS_ALL);
    o->stop[o->n_stop] = arena_strndup(&o->arena, text, n);
    if (!o->stop[o->n_stop])
        return err_nomem(err, "stops");
    o->n_stop++;
    return TINKER_OK;
}

static tinker_status add_stop_tokens(struct openai *o, const int32_t *tokens, size_t n,
                                     tinker_error *err)
{
    int32_t *all = arena_array(&o->arena, o->n_stop_tokens + n + 1, sizeof(*all));
    if (!all)
        return err_nomem(err, "stops");
    if (o->n_stop_tokens)
        memcpy(all, o->stop_tokens, o->n_stop_tokens * sizeof(*all));
    if (n)
        memcpy(all + o->n_stop_tokens, tokens, n * sizeof(*all));
    o->stop_tokens = all;
    o->n_stop_tokens += n;
    return TINKER_OK;
}

/* Here a list of stops is one more way to end; to the engine it is the only one. */
static tinker_status add_model_ends(struct openai *o, tinker_error *err)
{
    const tinker_engine_info *info = tinker_engine_describe(o->from.base->engine);
    return o->n_stop || o->n_stop_tokens ? add_stop_tokens(o, info->eos, info->n_eos, err)
                                         : TINKER_OK;
}

/* Stop tokens cannot stand beside stop strings, so they become strings. */
static tinker_status merge_stops(struct openai *o, tinker_error *err)
{
    if (!o->n_stop)
        return TINKER_OK;
    if (!o->from.base->tokenizer)
        return err_set(err, TINKER_EINVAL, "stop: this model has no tokenizer; use stop_token_ids");
    for (size_t i = 0; i < o->n_stop_tokens; i++) {
        tinker_text text = TINKER_TEXT_INIT;
        tinker_status status = tinker_tokenizer_decode(o->from.base->tokenizer, &o->stop_tokens[i],
                                                       1, NULL, &text, err);
        if (status == TINKER_OK && text.n)
            status = add_stop_string(o, text.s, text.n, err);
        tinker_text_clear(&text);
        if (status != TINKER_OK)
            return status;
    }
    o->n_stop_tokens = 0;
    return TINKER_OK;
}

/* ---- chat --------------------------------------------------------------------------------- */

/* The stops of the format join those of the request; as strings when it has strings. */
static tinker_status add_format_stops(struct openai *o, tinker_stop_sequences stop,
                                      tinker_error *err)
{
    for (size_t i = 0; stop.strings && i < stop.n; i++) {
        tinker_status status = add_stop_string(o, stop.strings[i], strlen(stop.strings[i]), err);
        if (status != TINKER_OK)
            return status;
    }
    return stop.tokens ? add_stop_tokens(o, stop.tokens, stop.n, err) : TINKER_OK;
}

tinker_renderer *openai_renderer(const struct openai *o, tinker_error *err)
{
    struct base *base = o->from.base;
    return tinker_renderer_new(tinker_renderer_for(base->name, base->tokenizer), base->tokenizer,
                               NULL, err);
}

/* The prompt with declarations of tools before it; the system message moves into them. */
static tinker_rendered *render_with_tools(struct openai *o, tinker_renderer *r,
                                          const tinker_conversation *c, tinker_error *err)
{
    const tinker_message *m = c->messages;
    size_t skip = c->n_messages > 0 && strcmp(m[0].role, "system") == 0 && !m[0].parts;
    tinker_conversation *prefix =
        tinker_renderer_tool_prefix(r, c->tools, c->n_tools, skip ? m[0].content : NULL, err);
    if (!prefix)
        return NULL;
    size_t n = prefix->n_messages + c->n_messages - skip;
    tinker_message *all = arena_array(&o->arena, n + 1, sizeof(*all));
    tinker_rendered *x = NULL;
    if (all) {
        memcpy(all, prefix->messages, prefix->n_messages * sizeof(*all));
        memcpy(all + prefix->n_messages, m + skip, (c->n_messages - skip) * sizeof(*all));
        x = tinker_renderer_prompt(r, all, n, NULL, NULL, err);
    } else {
        err_nomem(err, "prompt");
    }
    tinker_conversation_free(prefix);
    return x;
}

static tinker_rendered *prompt_of(struct openai *o, tinker_renderer *r,
                                  const tinker_conversation *c, tinker_error *err)
{
    return c->n_tools ? render_with_tools(o, r, c, err)
                      : tinker_renderer_prompt(r, c->messages, c->n_messages, NULL, NULL, err);
}

static tinker_status render_conversation(struct openai *o, const tinker_conversation *c,
                                         tinker_error *err)
{
    tinker_renderer *r = openai_renderer(o, err);
    tinker_rendered *x = r ? prompt_of(o, r, c, err) : NULL;
    tinker_status status = x ? TINKER_OK : TINKER_EINVAL;
    if (x) {
        const tinker_model_input *in = &x->examples[0].input;
        size_t n = 0;
        int32_t *all = arena_array(&o->arena, x->examples[0].n_tokens + 1, sizeof(*all));
        for (size_t i = 0; all && i < in->n_chunks; i++) {
            if (in->chunks[i].kind != TINKER_CHUNK_TEXT) {
                status = err_set(err, TINKER_EINVAL, "images are not supported");
                break;
            }
            memcpy(all + n, in->chunks[i].tokens, in->chunks[i].n_tokens * sizeof(*all));
            n += in->chunks[i].n_tokens;
        }
        if (status == TINKER_OK)
            status = all ? add_prompt(o, all, n, err) : err_nomem(err, "prompt");
        if (status == TINKER_OK)
            status = add_format_stops(o, tinker_renderer_stop(r), err);
    }
    tinker_rendered_free(x);
    tinker_renderer_free(r);
    return status;
}

static tinker_status read_chat(struct openai *o, tinker_error *err)
{
    if (!o->from.base->tokenizer)
        return err_set(err, TINKER_EINVAL, "this model has no tokenizer and cannot chat");
    struct json_str all = o->messages;
    if (o->tools.s) {
        all.s = arena_printf(&o->arena, "{\"messages\":%.*s,\"tools\":%.*s}", (int)o->messages.n,
                             o->messages.s, (int)o->tools.n, o->tools.s);
        all.n = all.s ? strlen(all.s) : 0;
    }
    tinker_conversation *c = all.s ? tinker_conversation_parse(all.s, all.n, err) : NULL;
    if (!c)
        return TINKER_EINVAL;
    tinker_status status = c->n_messages ? render_conversation(o, c, err)
                                         : err_set(err, TINKER_EINVAL, "messages is empty");
    tinker_conversation_free(c);
    return status;
}

tinker_status openai_prompts(struct openai *o, bool ends, tinker_error *err)
{
    tinker_status status = o->chat ? read_chat(o, err) : read_prompts(o, err);
    if (status == TINKER_OK && ends)
        status = add_model_ends(o, err);
    return status == TINKER_OK ? merge_stops(o, err) : status;
}

/* ---- answers ---------------------------------------------------------------------------------- */

size_t openai_stop_at(const struct openai *o, const char *s, size_t n)
{
    size_t best = n;
    for (size_t k = 0; k < o->n_stop; k++) {
        size_t len = strlen(o->stop[k]);
        for (size_t i = 0; i + len <= n && i < best; i++)
            if (memcmp(s + i, o->stop[k], len) == 0)
                best = i;
    }
    return best;
}

tinker_status openai_text(const struct openai *o, const int32_t *tokens, size_t n, tinker_text *out,
                          tinker_error *err)
{
    tinker_decode_options opts = TINKER_DECODE_OPTIONS_INIT;
    /* Special tokens are part of a stop string, so they go after the cut only. */
    if (!o->n_stop) {
        opts.skip_special = 1;
        return tinker_tokenizer_decode(o->from.base->tokenizer, tokens, n, &opts, out, err);
    }
    tinker_status status =
        tinker_tokenizer_decode(o->from.base->tokenizer, tokens, n, &opts, out, err);
    if (status == TINKER_OK && out->s) {
        out->n = openai_stop_at(o, out->s, out->n);
        out->s[out->n] = 0;
    }
    return status;
}
