/* render_qwen3.c - Qwen3 text models: thinking, without thinking, instruct.
 *
 * The body is encoded with control tokens as text and the end token follows as an id of
 * its own, so a message cannot forge a turn.  A produced turn is framed with a think block
 * even when it did not reason, as the model's template does. */
#include "chat/render_parse.h"

#include <string.h>

/* A conversation with thinking (qwen3):
 *
 *     <|im_start|>user\nHi<|im_end|>\n
 *     <|im_start|>assistant\n<think>\nGreet.\n</think>\n\nHello.<|im_end|>
 *
 * History shows "Hello." only. A tool call is "<tool_call>\n{"name": ..., "arguments":
 * ...}\n</tool_call>" after the text, its result a user message
 * "<tool_response>\n...\n</tool_response>". Messages are separated by the newline that begins each
 * header but the first.
 *
 * Framed: an answer that gets a think block, empty or not. Only answers to a user are: the template
 * looks for the last user message, and writes no block where there is none. */
static bool is_framed(const struct render_call *c, const struct render_at *at)
{
    return !(c->r->flags & RENDER_INSTRUCT) && role_is(at->message, "assistant") &&
           at->last_user >= 0 && (at->is_last || (c->r->flags & RENDER_KEEP));
}

/* The frame as the template writes it, which strips newlines around the reasoning. */
static void put_think_frame(struct render_text *t, struct jv_str reasoning)
{
    text_markup(t, "<think>\n");
    text_content(t, text_trim(reasoning, "\n", true, true));
    text_markup(t, "\n</think>\n\n");
}

static struct jv_str skip_newlines(struct jv_str s)
{
    return text_trim(s, "\n", true, false);
}

/* Newlines after a frame are the frame's own: those of the content go. */
static void qwen3_put_parts(struct render_text *t, const struct render_at *at, bool framed,
                            bool strip)
{
    const tinker_message *m = at->message;
    bool after_block = false;
    for (size_t i = 0; i < m->n_parts; i++) {
        struct jv_str s = chat_part_text(&m->parts[i]);
        if (m->parts[i].kind == TINKER_PART_TEXT) {
            text_content(t, after_block ? skip_newlines(s) : s);
            after_block = false;
        } else if (m->parts[i].kind == TINKER_PART_THINKING && !strip) {
            after_block = framed;
            if (framed) {
                put_think_frame(t, s);
                continue;
            }
            text_markup(t, "<think>");
            text_content(t, s);
            text_markup(t, "</think>");
        } else if (m->parts[i].kind == TINKER_PART_IMAGE) {
            jx_fail(&t->c->x, "this renderer takes no images");
        }
    }
}

void qwen_put_json_calls(struct render_text *t, const tinker_message *m)
{
    for (size_t i = 0; i < m->n_tool_calls && !t->c->x.failed; i++) {
        struct jv call = jv_dict_new(&t->c->x);
        jv_set(&t->c->x, call, "name", jv_str(m->tool_calls[i].name));
        jv_set(&t->c->x, call, "arguments", message_arguments(t->c, &m->tool_calls[i]));
        text_markup(t, i > 0 ? "\n<tool_call>\n" : "<tool_call>\n");
        text_content(t, render_dumps(t->c, call));
        text_markup(t, "\n</tool_call>");
    }
}

static bool qwen3_render_message(struct render_call *c, const struct render_at *at,
                                 struct render_out *out)
{
    const tinker_message *m = at->message;
    bool framed = is_framed(c, at), tool = role_is(m, "tool");
    if ((c->r->flags & RENDER_NO_THINK) && role_is(m, "assistant") && at->is_last &&
        !message_is_empty(m) && at->last_user < 0)
        return jx_fail(&c->x, "the conversation has no user message, so the template writes no "
                              "think block here while the prompt does; add a user message or "
                              "use the thinking renderer");
    struct render_text header;
    text_init(&header, c);
    text_markup(&header, at->index > 0 ? "\n<|im_start|>" : "<|im_start|>");
    text_name(&header, tool ? "user" : m->role);
    text_markup(&header, "\n");
    render_set_header(out, text_encode(&header, false));
    /* The body is assembled first, because whether it is empty decides about the newline before
     * calls. */
    struct render_text body, t;
    text_init(&body, c);
    text_init(&t, c);
    bool strip = !(c->r->flags & RENDER_KEEP) && role_is(m, "assistant") && !at->is_last;
    struct jv_str s = chat_content(m);
    size_t close = framed && !m->parts ? parse_find(s, "</think>", 0) : SIZE_MAX;
    if (m->parts) {
        qwen3_put_parts(&body, at, framed, strip);
    } else if (close == SIZE_MAX) {
        text_content(&body, s);
    } else {
        /* String content with an inline block: normalized as the template does. */
        struct jv_str reasoning = parse_slice(s, 0, close);
        size_t open = text_rfind(reasoning, (struct jv_str){ "<think>", 7 });
        if (open != SIZE_MAX)
            reasoning = parse_from(reasoning, open + 7);
        put_think_frame(&body, reasoning);
        text_content(&body, skip_newlines(parse_from(s, close + 8)));
    }
    if (!buf_ok(&body.buf))
        jx_nomem(&c->x);
    bool has_text = body.buf.len > 0;
    if (framed && !message_has_thinking(m)) {
        put_think_frame(&t, (struct jv_str){ "", 0 });
        text_content(
            &t, skip_newlines((struct jv_str){ body.buf.data ? body.buf.data : "", body.buf.len }));
    } else {
        text_markup(&t, tool ? "<tool_response>\n" : "");
        text_content(&t, (struct jv_str){ body.buf.data ? body.buf.data : "", body.buf.len });
        text_markup(&t, tool ? "\n</tool_response>" : "");
    }
    buf_clear(&body.buf);
    if (m->n_tool_calls) {
        text_markup(&t, has_text ? "\n" : "");
        qwen_put_json_calls(&t, m);
    }
    render_push_text(&t, out, true);
    render_push_ids(c, out, (struct render_ids){ &c->r->stop[0], 1 });
    return !c->x.failed;
}

/* disable_thinking answers for the model with an empty block. */
static bool qwen3_encode_suffix(struct render_call *c, const char *role, const struct render_at *at,
                                struct render_ids *out)
{
    struct render_text t;
    text_init(&t, c);
    text_markup(&t, at->index > 0 ? "\n<|im_start|>" : "<|im_start|>");
    text_name(&t, strcmp(role, "tool") == 0 && !(c->r->flags & RENDER_NO_THINK) ? "user" : role);
    text_markup(&t, "\n");
    if (c->r->flags & RENDER_NO_THINK)
        text_markup(&t, "<think>\n\n</think>\n\n");
    *out = text_encode(&t, false);
    return !c->x.failed;
}

/* ---- responses ---- */

/* Undo the framing: padding is not content, an empty block is no reasoning. */
static void remove_think_frames(struct render_parse *p)
{
    size_t kept = 0;
    bool after_block = false;
    for (size_t i = 0; i < p->n_parts; i++) {
        tinker_part part = p->parts[i];
        struct jv_str s = { part.text, part.n_text };
        if (part.kind == TINKER_PART_THINKING) {
            s = text_trim(s, "\n", true, true);
            after_block = true;
        } else if (after_block) {
            s = skip_newlines(s);
            after_block = false;
        }
        part.text = s.s;
        part.n_text = s.n;
        if (part.kind != TINKER_PART_THINKING || s.n > 0)
            p->parts[kept++] = part;
    }
    p->n_parts = kept;
}

void qwen_parse(struct render_call *c, struct render_parse *p, bool streaming, bool frames)
{
    parse_stop(c, p);
    if (c->x.failed || (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    struct jv_str text = p->content;
    parse_blocks(c, p, text, true);
    if (frames && p->as_list) {
        remove_think_frames(p);
        /* Parts are NUL-terminated by contract; trimming at the end may have undone that. */
        for (size_t i = 0; i < p->n_parts; i++)
            p->parts[i].text =
                parse_cstr(c, (struct jv_str){ p->parts[i].text, p->parts[i].n_text });
    }
    parse_unterminated(c, p, text, "<tool_call>", "</tool_call>");
}

static void qwen3_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    qwen_parse(c, p, streaming, !(c->r->flags & RENDER_INSTRUCT));
}

const struct render_format render_qwen3 = {
    .tokens = { "<|im_end|>", "<|im_start|>" },
    .n_stop = 1,
    .render = qwen3_render_message,
    .suffix = qwen3_encode_suffix,
    .parse = qwen3_parse_response,
    .tools = qwen_tools,
    .think_tags = true,
};
