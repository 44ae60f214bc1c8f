/* route_tokenizer.c - /tokenizer_info, /tokenize and /detokenize, in the shape that
 * lm-evaluation-harness expects of a server, so that it needs no files of the model.
 *
 * "model", a member of the body or of the query, names a base model; without it the first one is
 * meant. */
#include <string.h>

#include "base/err.h"
#include "server/api/routes.h"
#include "server/work/live_state.h"

/* What the three requests may hold. */
struct tokenizer_request {
    struct json_str prompt;
    char *model;
    bool add_special;
    int32_t *tokens;
    size_t n_tokens;
};

static bool read_tokenizer_request(struct request *req, struct response *res,
                                   struct tokenizer_request *q)
{
    struct json_reader r;
    struct json_str key;
    *q = (struct tokenizer_request){ .add_special = true };
    json_reader_init(&r, req->body, req->n_body, &req->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (json_str_is(key, "prompt"))
            json_string(&r, &q->prompt);
        else if (json_str_is(key, "model"))
            json_cstring(&r, &q->model);
        else if (json_str_is(key, "add_special_tokens"))
            json_bool(&r, &q->add_special);
        else if (json_str_is(key, "tokens"))
            json_array_int32(&r, &q->tokens, &q->n_tokens);
        else
            json_skip(&r);
    if (!json_end(&r))
        response_error(res, 400, "%s", json_error(&r));
    return !r.failed;
}

/* NULL: the response says why not. */
static tinker_tokenizer *find_tokenizer(struct server *s, struct response *res, const char *model)
{
    struct base *base = model ? live_find_base(s, model) : s->n_bases ? &s->bases[0] : NULL;
    if (base && base->tokenizer)
        return base->tokenizer;
    if (base)
        response_error(res, 404, "model '%s' has no tokenizer", base->name);
    else
        response_error(res, 404, "model '%s' is not served here", model ? model : "");
    return NULL;
}

/* "name": the text of a special token, or null. */
static void put_special(struct json_writer *w, const char *name, const tinker_tokenizer *t,
                        tinker_special_kind kind)
{
    tinker_text text = TINKER_TEXT_INIT;
    int32_t id = tinker_tokenizer_special(t, kind);
    json_put_key(w, name);
    if (id >= 0 && tinker_tokenizer_token(t, id, &text, NULL) == TINKER_OK)
        json_put_string_n(w, text.s, text.n);
    else
        json_put_null(w);
    tinker_text_clear(&text);
}

void route_tokenizer_info(struct server *s, struct request *req, struct response *res)
{
    tinker_tokenizer *t = find_tokenizer(s, res, req->query(req, "model"));
    struct json_writer w;
    if (!t)
        return;
    const char *template = tinker_tokenizer_chat_template(t);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    put_special(&w, "eos_token", t, TINKER_TOKEN_EOS);
    put_special(&w, "bos_token", t, TINKER_TOKEN_BOS);
    put_special(&w, "pad_token", t, TINKER_TOKEN_PAD);
    json_put_key(&w, "chat_template");
    if (template)
        json_put_string(&w, template);
    else
        json_put_null(&w);
    json_put_end_object(&w);
    res->content_type = "application/json";
}

void route_tokenize(struct server *s, struct request *req, struct response *res)
{
    struct tokenizer_request q;
    struct json_writer w;
    tinker_encode_options opts = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokens tokens = TINKER_TOKENS_INIT;
    tinker_error err = { 0 };
    if (!read_tokenizer_request(req, res, &q))
        return;
    if (!q.prompt.s) {
        response_error(res, 400, "prompt is missing");
        return;
    }
    tinker_tokenizer *t = find_tokenizer(s, res, q.model);
    opts.add_special = q.add_special;
    if (!t)
        return;
    if (tinker_tokenizer_encode(t, q.prompt.s, q.prompt.n, &opts, &tokens, &err) != TINKER_OK) {
        response_error(res, 400, "%s", err.message);
        return;
    }
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "tokens");
    json_put_array_int32(&w, tokens.ids, tokens.n);
    json_put_key(&w, "count");
    json_put_int64(&w, (int64_t)tokens.n);
    json_put_end_object(&w);
    res->content_type = "application/json";
    tinker_tokens_clear(&tokens);
}

void route_detokenize(struct server *s, struct request *req, struct response *res)
{
    struct tokenizer_request q;
    struct json_writer w;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_error err = { 0 };
    if (!read_tokenizer_request(req, res, &q))
        return;
    tinker_tokenizer *t = find_tokenizer(s, res, q.model);
    if (!t)
        return;
    if (tinker_tokenizer_decode(t, q.tokens, q.n_tokens, NULL, &text, &err) != TINKER_OK) {
        response_error(res, 400, "%s", err.message);
        return;
    }
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "prompt");
    json_put_string_n(&w, text.s ? text.s : "", text.n);
    json_put_end_object(&w);
    res->content_type = "application/json";
    tinker_text_clear(&text);
}
