/* room: text - any response and any conversation under any renderer: no crash, and invariants.
 *
 * The first byte chooses the renderer.  The rest is fed as a response, whole and as a stream, and
 * once more as JSON messages.  Weights must match tokens, no chunk may be empty. */
#include <stdlib.h>
#include <tinker/extra/renderer.h>
#include "../tests/chat/render_fixture.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

static void check_examples(const tinker_rendered *x, bool weighted)
{
    for (size_t i = 0; x && i < x->n_examples; i++) {
        const tinker_example *e = &x->examples[i];
        size_t n = 0;
        for (size_t k = 0; k < e->input.n_chunks; k++) {
            const tinker_chunk *c = &e->input.chunks[k];
            demand(c->kind != TINKER_CHUNK_TEXT || c->n_tokens > 0);
            n += c->kind == TINKER_CHUNK_TEXT ? c->n_tokens : (size_t)c->expected_tokens;
        }
        demand(n == e->n_tokens && (e->weights != NULL) == weighted);
        for (size_t k = 0; weighted && k < n; k++)
            demand(e->weights[k] == 0 || e->weights[k] == 1);
    }
}

static void render_json(const tinker_renderer *r, const char *s, size_t n)
{
    tinker_error err;
    tinker_conversation *c = n ? tinker_conversation_parse(s, n, &err) : NULL;
    if (!c)
        return;
    tinker_rendered *x = tinker_renderer_prompt(r, c->messages, c->n_messages, NULL, "p", &err);
    check_examples(x, false);
    tinker_rendered_free(x);
    for (int mode = 0; mode < 7; mode++) {
        x = tinker_renderer_examples(r, c->messages, c->n_messages, (tinker_train_on)mode, &err);
        check_examples(x, true);
        tinker_rendered_free(x);
    }
    if (c->n_tools)
        tinker_conversation_free(tinker_renderer_tool_prefix(r, c->tools, c->n_tools, "s", &err));
    tinker_conversation_free(c);
}

static void check_message(const tinker_parsed *p)
{
    if (!p)
        return;
    tinker_text text = TINKER_TEXT_INIT;
    demand(tinker_message_to_json(p->message, &text, NULL) == TINKER_OK);
    demand(strlen(text.s) == text.n);
    text.n = 0;
    demand(tinker_message_text(p->message, &text, NULL) == TINKER_OK);
    tinker_text_clear(&text);
}

static void parse(const tinker_renderer *r, const tinker_tokens *ids)
{
    tinker_error err;
    tinker_parsed *p = tinker_renderer_parse(r, ids->ids, ids->n, &err);
    check_message(p);
    tinker_parsed_free(p);
    const tinker_delta *d;
    size_t n;
    tinker_parse_stream *s = tinker_parse_stream_new(r, &err);
    demand(s != NULL);
    for (size_t i = 0; i <= ids->n; i++) {
        p = NULL;
        if (i < ids->n)
            demand(tinker_parse_stream_feed(s, ids->ids[i], &d, &n, &err) == TINKER_OK);
        else if (tinker_parse_stream_finish(s, &d, &n, &p, &err) != TINKER_OK)
            break;
        for (size_t k = 0; k < n; k++)
            demand(utf8_valid_prefix(d[k].text, d[k].n_text) == d[k].n_text);
        check_message(p);
        tinker_parsed_free(p);
    }
    tinker_parse_stream_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tinker_tokenizer *tokenizer;
    tinker_error err;
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    if (!tokenizer)
        tokenizer = fixture_tokenizer(&err);
    demand(tokenizer != NULL);
    if (size == 0)
        return 0;
    size_t n = 0;
    while (tinker_renderer_name_at(n))
        n++;
    opts.safe_content = data[0] >> 7;
    opts.date = "2026-01-31";
    const char *name = tinker_renderer_name_at((data[0] & 127) % n);
    tinker_renderer *r = tinker_renderer_new(name, tokenizer, &opts, &err);
    demand(r != NULL);
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_encode_options encode = TINKER_ENCODE_OPTIONS_INIT;
    encode.replace_invalid = 1;
    const char *text = (const char *)data + 1;
    demand(tinker_tokenizer_encode(tokenizer, text, size - 1, &encode, &ids, &err) == TINKER_OK);
    parse(r, &ids);
    render_json(r, text, size - 1);
    tinker_tokens_clear(&ids);
    tinker_renderer_free(r);
    return 0;
}
