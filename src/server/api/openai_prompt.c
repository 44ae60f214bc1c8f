/* openai_prompt.c - text and messages to tokens, tokens to text: see openai.h.
 *
 * Stops come from three sources: the request, the chat format, and the model's end tokens.  In
 * this API a list of stops is one more way to end; to the engine it is the only one, so all of
 * them go into one list, of strings if there is any string, else of tokens. */
#include "server/api/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Copy the tokens of one more prompt. */
static tinker_status add_prompt(struct openai *o, const int32_t *tokens, size_t n,
                                tinker_error *err)
{
    /* Each prompt becomes a sample of its own. */
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

/* One prompt: a text, or an array of token ids. */
static tinker_status read_prompt(struct openai *o, struct json_reader *r, tinker_error *err)
{
    struct json_str text;
    int32_t *ids;
    size_t n;
    if (json_peek(r) == JSON_STRING && json_string(r, &text)) {
        tinker_tokens tokens = TINKER_TOKENS_INIT;
        tinker_encode_options opts = TINKER_ENCODE_OPTIONS_INIT;
        opts.add_special = 1;
        if (!o->from.base->tokenizer)
            return err_set(err, TINKER_EINVAL, "this model has no tokenizer: send token ids");
        tinker_status status =
            tinker_tokenizer_encode(o->from.base->tokenizer, text.s, text.n, &opts, &tokens, err);
        if (status == TINKER_OK)
            status = add_prompt(o, tokens.ids, tokens.n, err);
        tinker_tokens_clear(&tokens);
        return status;
    }
    if (json_array_int32(r, &ids, &n))
        return add_prompt(o, ids, n, err);
    return err_set(err, TINKER_EINVAL, "prompt: %s", json_error(r));
}

/* ---- stops -------------------------------------------------------------------------------- */

/* One more string that ends a sample. */
static tinker_status add_stop_string(struct openai *o, const char *text, size_t n,
                                     tinker_error *err)
{
    if (o->n_stop == OPENAI_STOPS_ALL)
        return err_set(err, TINKER_EINVAL,
                       "stop: more than %d strings, including those of the model",
                       OPENAI_STOPS_ALL);
    o->stop[o->n_stop] = arena_strndup(&o->arena, text, n);
    if (!o->stop[o->n_stop])
        return err_nomem(err, "stops");
    o->n_stop++;
    return TINKER_OK;
}

/* More tokens that end a sample. */
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

/* ---- chat --------------------------------------------------------------------------------- */

/* Chosen by the name of the base model and its tokenizer, as in the SDK. */
tinker_renderer *openai_renderer(const struct openai *o, tinker_error *err)
{
    struct base *base = o->from.base;
    const char *name = tinker_renderer_for(base->name, base->tokenizer);
    /* A text that must be JSON has no place for thinking: take the format without it if there is
     * one. */
    if (o->no_thinking) {
        char other[80];
        snprintf(other, sizeof(other), "%s_disable_thinking", name);
        tinker_renderer *r = tinker_renderer_new(other, base->tokenizer, NULL, NULL);
        if (r)
            return r;
    }
    return tinker_renderer_new(name, base->tokenizer, NULL, err);
}

/* Render with the declarations of tools before the messages.  The formats put them into the
 * system message, so that one is passed along and not rendered again. */
static tinker_rendered *render_with_tools(struct openai *o, tinker_renderer *r,
                                          const tinker_conversation *c, tinker_error *err)
{
    const tinker_message *m = c->messages;
    /* Content of several parts cannot be moved: it stays where it is. */
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
        x = tinker_renderer_prompt(r, all, n, NULL, o->prefill, err);
    } else {
        err_nomem(err, "prompt");
    }
    tinker_conversation_free(prefix);
    return x;
}

/* Render the messages in the model's chat format: one prompt, and the stops of the format. */
static tinker_status render_conversation(struct openai *o, const tinker_conversation *c,
                                         tinker_error *err)
{
    tinker_renderer *r = openai_renderer(o, err);
    tinker_rendered *x = NULL;
    if (r && c->n_tools)
        x = render_with_tools(o, r, c, err);
    else if (r)
        x = tinker_renderer_prompt(r, c->messages, c->n_messages, NULL, o->prefill, err);
    tinker_status status = x ? TINKER_OK : TINKER_EINVAL;
    if (x) {
        const tinker_model_input *in = &x->examples[0].input;
        size_t n = 0;
        tinker_stop_sequences stop = { 0 };
        int32_t *all = arena_array(&o->arena, x->examples[0].n_tokens + 1, sizeof(*all));
        for (size_t i = 0; all && i < in->n_chunks; i++) {
            if (in->chunks[i].kind != TINKER_CHUNK_TEXT) { /* the engine reads text only */
                status = err_set(err, TINKER_EINVAL, "images are not supported");
                break;
            }
            memcpy(all + n, in->chunks[i].tokens, in->chunks[i].n_tokens * sizeof(*all));
            n += in->chunks[i].n_tokens;
        }
        if (status == TINKER_OK)
            status = all ? add_prompt(o, all, n, err) : err_nomem(err, "prompt");
        if (status == TINKER_OK)
            stop = tinker_renderer_stop(r);
        for (size_t i = 0; status == TINKER_OK && stop.strings && i < stop.n; i++)
            status = add_stop_string(o, stop.strings[i], strlen(stop.strings[i]), err);
        if (status == TINKER_OK && stop.tokens)
            status = add_stop_tokens(o, stop.tokens, stop.n, err);
    }
    tinker_rendered_free(x);
    tinker_renderer_free(r);
    return status;
}

tinker_status openai_prompts(struct openai *o, bool ends, tinker_error *err)
{
    tinker_tokenizer *tokenizer = o->from.base->tokenizer;
    tinker_status status = TINKER_OK;
    if (o->chat) {
        if (!tokenizer)
            return err_set(err, TINKER_EINVAL, "this model has no tokenizer and cannot chat");
        /* The parser takes a list of messages, or an object with messages and tools. */
        struct json_str all = o->messages;
        if (o->tools.s) {
            all.s = arena_printf(&o->arena, "{\"messages\":%.*s,\"tools\":%.*s}",
                                 (int)o->messages.n, o->messages.s, (int)o->tools.n, o->tools.s);
            all.n = all.s ? strlen(all.s) : 0;
        }
        tinker_conversation *c = all.s ? tinker_conversation_parse(all.s, all.n, err) : NULL;
        if (!c)
            return TINKER_EINVAL;
        status = c->n_messages ? render_conversation(o, c, err)
                               : err_set(err, TINKER_EINVAL, "messages is empty");
        tinker_conversation_free(c);
    } else {
        /* "text", [1, 2], ["text", "text"] or [[1, 2], [3]]. */
        struct json_reader r, look;
        json_reader_init(&r, o->prompt.s, o->prompt.n, &o->arena);
        look = r; /* a copy of the reader looks ahead */
        bool list =
            json_begin_array(&look) && json_next_item(&look) && json_peek(&look) != JSON_NUMBER;
        if (!list)
            status = read_prompt(o, &r, err);
        else
            json_begin_array(&r);
        while (list && status == TINKER_OK && json_next_item(&r))
            status = read_prompt(o, &r, err);
    }
    /* A list of stops replaces the model's own ends, so they have to be in it. */
    const tinker_engine_info *info = tinker_engine_describe(o->from.base->engine);
    if (status == TINKER_OK && ends && (o->n_stop || o->n_stop_tokens))
        status = add_stop_tokens(o, info->eos, info->n_eos, err);
    if (status != TINKER_OK || !o->n_stop)
        return status;
    /* The engine takes strings or tokens, not both: the tokens become strings. */
    if (!tokenizer)
        return err_set(err, TINKER_EINVAL, "stop: this model has no tokenizer; use stop_token_ids");
    for (size_t i = 0; i < o->n_stop_tokens && status == TINKER_OK; i++) {
        tinker_text text = TINKER_TEXT_INIT;
        status = tinker_tokenizer_decode(tokenizer, &o->stop_tokens[i], 1, NULL, &text, err);
        if (status == TINKER_OK && text.n)
            status = add_stop_string(o, text.s, text.n, err);
        tinker_text_clear(&text);
    }
    if (status == TINKER_OK)
        o->n_stop_tokens = 0;
    return status;
}

/* ---- responses -------------------------------------------------------------------------------- */

size_t openai_stop_at(const struct openai *o, const char *s, size_t n)
{
    size_t best = n;
    for (size_t k = 0; k < o->n_stop; k++) { /* the earliest match of any string wins */
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
    /* A stop string may contain special tokens: decode them, then cut before it. */
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
