/* render_deepseek.c - DeepSeek V3.1, thinking and not.
 *
 * No newlines between messages.  An answer that follows a tool result has no header of its
 * own.  Without thinking, reasoning is cut from the content and the header ends in </think>;
 * with thinking, that is so for history only. */
#include "chat/render_parse.h"

#include <string.h>
#include "base/utf8.h"

#define CALLS_BEGIN "<｜tool▁calls▁begin｜>"
#define CALLS_END   "<｜tool▁calls▁end｜>"
#define CALL_BEGIN  "<｜tool▁call▁begin｜>"
#define CALL_END    "<｜tool▁call▁end｜>"
#define CALL_SEP    "<｜tool▁sep｜>"

/* Without thinking (deepseekv3; "|" stands for the fullwidth bar, line breaks added):
 *
 *     <|begin_of_sentence|>Be brief.<|User|>Hi<|Assistant|></think>Hello.<|end_of_sentence|>
 *     <|User|>Time?<|Assistant|></think>I look.<|tool_calls_begin|>
 *     <|tool_call_begin|>clock<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|><|end_of_sentence|>
 *     <|tool_output_begin|>"12:00"<|tool_output_end|>Noon.<|end_of_sentence|>
 *
 * The system message has no token of its own and may only stand first. With thinking the prompt
 * ends in "<|Assistant|><think>" and the last answer is "<think>...</think>text". */
static bool deepseek_thinks(const struct render_call *c)
{
    return (c->r->flags & RENDER_THINKING) != 0;
}

/* Parts in their order; thinking in tags unless it is stripped. */
static void deepseek_put_parts(struct render_text *t, const tinker_message *m, bool strip)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        struct jv_str s = chat_part_text(&m->parts[i]);
        if (m->parts[i].kind == TINKER_PART_TEXT) {
            text_content(t, s);
        } else if (m->parts[i].kind == TINKER_PART_IMAGE) {
            jx_fail(&t->c->x, "this renderer takes no images");
        } else if (!strip) {
            text_markup(t, "<think>");
            text_content(t, s);
            text_markup(t, "</think>");
        }
    }
}

/* Arguments are written as the caller gave them: a text, not necessarily compact JSON. */
static void deepseek_put_calls(struct render_text *t, const tinker_message *m)
{
    if (m->n_tool_calls == 0)
        return;
    text_markup(t, CALLS_BEGIN);
    for (size_t i = 0; i < m->n_tool_calls; i++) {
        text_markup(t, CALL_BEGIN);
        text_content(t, chat_text(m->tool_calls[i].name, 0));
        text_markup(t, CALL_SEP);
        text_content(t, chat_text(m->tool_calls[i].arguments, 0));
        text_markup(t, CALL_END);
    }
    text_markup(t, CALLS_END);
}

/* Body of an assistant message; whether the end token follows. */
static bool deepseek_put_assistant(struct render_call *c, struct render_text *t,
                                   const struct render_at *at, bool follows_tool)
{
    const tinker_message *m = at->message;
    bool strip = !(c->r->flags & RENDER_KEEP) && m->n_tool_calls == 0 && !at->is_last;
    if (!deepseek_thinks(c) && !follows_tool) {
        if (m->parts) {
            deepseek_put_parts(t, m, true);
            return t->buf.len > 0;
        }
        /* A string may hold <think>...</think> itself: the blocks are cut from it. */
        struct jv_str s = chat_content(m), inner;
        size_t end = 0, pos = 0, begin;
        for (; parse_between(s, "<think>", "</think>", &end, &begin, &inner); pos = end)
            text_content(t, parse_slice(s, pos, begin));
        text_content(t, parse_from(s, pos));
        return t->buf.len > 0;
    }
    if (m->parts)
        deepseek_put_parts(t, m, strip);
    else
        text_content(t, chat_content(m));
    return !message_is_empty(m);
}

/* The header ends in </think> where no reasoning follows: always without thinking, in history with
 * it. The last answer without reasoning gets an empty block instead, which is output and trained,
 * because the prompt opens the block and the model must close it. */
static bool deepseek_render_assistant(struct render_call *c, const struct render_at *at,
                                      struct render_out *out)
{
    const tinker_message *m = at->message;
    bool follows_tool = role_is(at->prev, "tool");
    bool history = !(c->r->flags & RENDER_KEEP) && !at->is_last;
    struct render_text t;
    struct render_ids block = { NULL, 0 };
    text_init(&t, c);
    if (!follows_tool) {
        text_markup(&t, "<｜Assistant｜>");
        struct render_ids header = text_encode(&t, false);
        if (!deepseek_thinks(c) || history)
            header = render_join(c, header, render_encode(c, "</think>"));
        render_set_header(out, header);
        if (deepseek_thinks(c) && at->is_last && !message_is_empty(m) && !message_has_thinking(m))
            block = render_encode(c, "<think></think>");
    }
    bool end = deepseek_put_assistant(c, &t, at, follows_tool);
    deepseek_put_calls(&t, m);
    struct render_ids ids = render_join(c, block, text_encode(&t, false));
    if (end)
        ids = render_join(c, ids, (struct render_ids){ &c->r->stop[0], 1 });
    render_push_ids(c, out, ids);
    return !c->x.failed;
}

static bool deepseek_render_message(struct render_call *c, const struct render_at *at,
                                    struct render_out *out)
{
    const tinker_message *m = at->message;
    if (role_is(m, "assistant"))
        return deepseek_render_assistant(c, at, out);
    bool system = role_is(m, "system"), tool = role_is(m, "tool");
    if (!system && !tool && !role_is(m, "user"))
        return jx_fail(&c->x, "role %s is not supported", m->role);
    if (system && at->index > 0 && !c->r->opts.system_as_user)
        return jx_fail(&c->x, "a system message may only stand first (option system_as_user turns "
                              "later ones into user messages)");
    struct render_text t;
    text_init(&t, c);
    if (tool)
        render_set_header(out, render_encode(c, "<｜tool▁output▁begin｜>"));
    else if (!system || at->index > 0)
        render_set_header(out, render_encode(c, "<｜User｜>"));
    text_content(&t, message_text(c, m));
    text_markup(&t, tool ? "<｜tool▁output▁end｜>" : "");
    deepseek_put_calls(&t, m);
    render_push_text(&t, out, false);
    return !c->x.failed;
}

/* After the result of a tool the model goes on in the same turn, whose block is closed already. */
static const char *deepseek_prefill(const struct render_call *c, const tinker_message *messages,
                                    size_t n)
{
    bool after_tool = n > 0 && role_is(&messages[n - 1], "tool");
    return deepseek_thinks(c) && !after_tool ? "<think>" : "";
}

/* ---- responses ---- */

/* NAME<sep>ARGUMENTS between begin and end markers, inside one section. A begin marker whose name
 * is none is text, and the search goes on right behind it, as a regular expression's would. */
static void deepseek_read_calls(struct render_call *c, struct render_parse *p,
                                struct jv_str section)
{
    static const struct jv_str open = { CALL_BEGIN, sizeof(CALL_BEGIN) - 1 };
    struct parse_mark sep = { .what = CALL_SEP }, close = { .what = CALL_END };
    size_t at = 0, sep_n = strlen(CALL_SEP), close_n = strlen(CALL_END);
    while (!c->x.failed && (at = text_find(section, open, at)) != SIZE_MAX) {
        size_t name_at = at + open.n, mid = parse_next(&sep, section, name_at);
        size_t end = mid == SIZE_MAX ? SIZE_MAX : parse_next(&close, section, mid + sep_n);
        if (end == SIZE_MAX)
            return; /* nor does anything behind it end */
        struct jv_str name = { section.s + name_at, mid - name_at };
        bool word = name.n > 0; /* \w+ of Python: what the reference takes for a function's name */
        for (size_t i = 0; i < name.n && word;) {
            uint32_t cp;
            int n = utf8_decode(name.s + i, name.n - i, &cp);
            word = n > 0 && parse_is_word(cp);
            i += (size_t)n;
        }
        if (!word) {
            at = name_at;
            continue;
        }
        struct jv_str args = { section.s + mid + sep_n, end - mid - sep_n };
        struct jv_str raw = { section.s + at, end + close_n - at };
        parse_add_checked(c, p, NULL, name, text_trim(args, NULL, true, true), raw);
        at = end + close_n;
    }
}

/* Order matters: calls are read before the text is cut, and unfinished blocks are reported only
 * where nothing finished covers them. */
static void deepseek_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    if (deepseek_thinks(c) && !streaming)
        parse_restore(c, p, (struct render_ids){ &c->r->think_open, 1 }, c->r->think_close);
    parse_stop(c, p);
    if (c->x.failed || (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    struct jv_str text = p->content, inner;
    size_t at = 0, begin;
    if (parse_between(text, CALLS_BEGIN, CALLS_END, &at, &begin, &inner))
        deepseek_read_calls(c, p, inner);
    if (!parse_unterminated(c, p, text, CALLS_BEGIN, CALLS_END))
        parse_unterminated(c, p, text, CALL_BEGIN, CALL_END);
    if (p->n_calls || p->n_unparsed) {
        /* The message is the text without its tool sections and the white space before them. */
        struct buf b;
        size_t end = 0, pos = 0;
        buf_init(&b, c->x.arena->max);
        for (; parse_between(text, CALLS_BEGIN, CALLS_END, &end, &begin, &inner); pos = end) {
            struct jv_str before = text_trim(parse_slice(text, pos, begin), NULL, false, true);
            buf_append(&b, before.s, before.n);
        }
        buf_append(&b, text.s + pos, text.n - pos);
        text = text_trim(jv_from_buf(&c->x, &b).str, NULL, true, true);
    }
    parse_blocks(c, p, text, false);
}

const struct render_format render_deepseek = {
    .tokens = { "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>" },
    .n_stop = 1,
    .bos = "<｜begin▁of▁sentence｜>",
    .render = deepseek_render_message,
    .prefill = deepseek_prefill,
    .parse = deepseek_parse_response,
    .tools = deepseek_tools,
    .think_tags = true,
};
