/* render_simple.c - role_colon and llama3: plain formats without tools.
 *
 * role_colon stops at a string that reaches into the next header, so an example's last
 * message carries the overlap "User:".  llama3 encodes text and end token together, which
 * makes control tokens in content live unless safe_content is set. */
#include "chat/render_parse.h"

#include <string.h>

/* ---- role_colon ---- */

/*     User: Hi\n\nAssistant: Hello.\n\nUser:
 *
 * The header is "Assistant:", the output " Hello.\n\n", and the overlap "User:", which closes the
 * stop string "\n\nUser:". Only an assistant's overlap means something; other roles get a
 * placeholder, as in the reference. */
static bool role_colon_render_message(struct render_call *c, const struct render_at *at,
                                      struct render_out *out)
{
    struct render_text t;
    text_init(&t, c);
    text_capitalized(&t, at->message->role);
    text_markup(&t, ":");
    render_set_header(out, text_encode(&t, false));
    text_markup(&t, " ");
    text_content(&t, message_text(c, at->message));
    text_markup(&t, "\n\n");
    render_push_text(&t, out, false);
    out->overlap = render_encode(c, role_is(at->message, "assistant") ? "User:" : "<UNUSED>");
    out->has_overlap = true;
    return !c->x.failed;
}

/* The stop string may come once, and then EOS must not: a base model that goes on to write the
 * user's next turn has its text cut at the first stop. */
static void role_colon_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    static const struct jv_str stop = { "\n\nUser:", 7 };
    (void)streaming;
    int32_t eos = tinker_tokenizer_special(c->r->tokenizer, TINKER_TOKEN_EOS);
    bool ended = eos >= 0 && p->n_tokens > 0 && p->tokens[p->n_tokens - 1] == eos;
    struct jv_str text = parse_decode(c, p->tokens, p->n_tokens - ended);
    size_t pieces = 1, first = text.n;
    for (size_t at = 0; (at = text_find(text, stop, at)) != SIZE_MAX; at += stop.n)
        first = pieces++ == 1 ? at : first;
    text.n = first;
    /* What render puts around the content goes. */
    if (text_starts(text, " ")) {
        text.s++;
        text.n--;
    }
    if (text_ends(text, "\n\n"))
        text.n -= 2;
    p->content = text;
    p->termination = pieces == 1 && ended    ? TINKER_TERMINATION_EOS
                     : pieces == 2 && !ended ? TINKER_TERMINATION_STOP_SEQUENCE
                                             : TINKER_TERMINATION_MALFORMED;
}

const struct render_format render_role_colon = { .render = role_colon_render_message,
                                                 .parse = role_colon_parse_response };

/* ---- llama3 ---- */

/*     <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>
 *     <|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|> */
static bool llama3_render_message(struct render_call *c, const struct render_at *at,
                                  struct render_out *out)
{
    struct render_text t;
    text_init(&t, c);
    text_markup(&t, "<|start_header_id|>");
    text_name(&t, at->message->role);
    text_markup(&t, "<|end_header_id|>\n\n");
    render_set_header(out, text_encode(&t, false));
    text_content(&t, message_text(c, at->message));
    text_markup(&t, "<|eot_id|>");
    render_push_text(&t, out, false);
    return !c->x.failed;
}

static void llama3_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    (void)streaming;
    parse_stop(c, p);
}

const struct render_format render_llama3 = {
    .tokens = { "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>" },
    .n_stop = 1,
    .bos = "<|begin_of_text|>",
    .render = llama3_render_message,
    .parse = llama3_parse_response,
};
