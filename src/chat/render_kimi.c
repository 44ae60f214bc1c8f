/* render_kimi.c - Kimi K2, K2.5 and K2.6.
 *
 * A default system message is inserted where there is none.  A turn spans everything after
 * the last answer without tool calls; reasoning before it collapses to an empty think block.
 * From 2.5 on the prompt opens (or closes) the think block itself. */
#include "chat/render_parse.h"

#include <string.h>
#include "base/utf8.h"

/* A conversation with a tool (kimi_k25; line breaks added):
 *
 *     <|im_system|>tool_declare<|im_middle|># Tools ...<|im_end|>
 *     <|im_system|>system<|im_middle|>You are Kimi, ...<|im_end|>
 *     <|im_user|>user<|im_middle|>Time?<|im_end|>
 *     <|im_assistant|>assistant<|im_middle|><think>The clock.</think><|tool_calls_section_begin|>
 *     <|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>
 *     <|tool_calls_section_end|><|im_end|>
 *     <|im_system|>clock<|im_middle|>## Return of functions.clock:0\n12:00<|im_end|>
 *     <|im_assistant|>assistant<|im_middle|><think></think>Noon.<|im_end|> */
const char kimi_default_system[] = "You are Kimi, an AI assistant created by Moonshot AI.";

/* The default goes behind a declaration of tools and before everything else. */
static void kimi_insert_system(struct render_call *c, const tinker_message **messages, size_t *n)
{
    tinker_message system = { .role = "system", .content = kimi_default_system };
    bool declares = *n > 0 && role_is(&(*messages)[0], "tool_declare");
    size_t at = declares ? 1 : 0;
    if (*n <= at || !role_is(&(*messages)[at], "system"))
        *messages = render_insert(c, *messages, n, at, system);
}

/* A turn with tools contains several answers, and its reasoning stays visible as a whole. */
static size_t kimi_turn_start(const tinker_message *messages, size_t n)
{
    for (size_t i = n; i-- > 0;)
        if (role_is(&messages[i], "assistant") && messages[i].n_tool_calls == 0)
            return i + 1;
    return 0;
}

/* Everything that is neither user nor assistant is a system message with a name: "tool" carries the
 * name of the function and says which call it answers. */
static void kimi_put_header(struct render_call *c, const tinker_message *m, struct render_out *out)
{
    struct render_text t;
    bool tool = role_is(m, "tool");
    text_init(&t, c);
    text_markup(&t, role_is(m, "user")        ? "<|im_user|>"
                    : role_is(m, "assistant") ? "<|im_assistant|>"
                                              : "<|im_system|>");
    text_name(&t, tool && m->name && *m->name ? m->name : m->role);
    text_markup(&t, "<|im_middle|>");
    if (tool) {
        if (!m->tool_call_id || !*m->tool_call_id)
            render_warn(c, "a tool message without tool_call_id: the model cannot tell which "
                           "call it answers");
        text_markup(&t, "## Return of ");
        text_content(&t, chat_text(m->tool_call_id, 0));
        text_markup(&t, "\n");
    }
    render_set_header(out, text_encode(&t, false));
}

static void kimi_put_assistant(struct render_call *c, struct render_text *t,
                               const struct render_at *at)
{
    const tinker_message *m = at->message;
    struct jv_str thinking = message_join(c, m, TINKER_PART_THINKING);
    bool shown = thinking.n > 0 && (at->in_last_turn || (c->r->flags & RENDER_KEEP));
    text_markup(t, "<think>");
    if (shown)
        text_content(t, thinking);
    text_markup(t, "</think>");
    text_content(t, message_join(c, m, TINKER_PART_TEXT));
    if (m->n_tool_calls == 0)
        return;
    text_markup(t, "<|tool_calls_section_begin|>");
    for (size_t i = 0; i < m->n_tool_calls; i++) {
        const tinker_tool_call *call = &m->tool_calls[i];
        /* Calls without an id get the one that the model itself would write: functions.NAME:INDEX.
         */
        char number[24];
        size_t k = sizeof(number) - 1, v = i;
        number[k] = 0;
        do {
            number[--k] = (char)('0' + v % 10);
            v /= 10;
        } while (v);
        text_markup(t, "<|tool_call_begin|>");
        if (call->id && *call->id) {
            text_content(t, chat_text(call->id, 0));
        } else {
            text_markup(t, "functions.");
            text_content(t, chat_text(call->name, 0));
            text_markup(t, ":");
            text_markup(t, number + k);
        }
        text_markup(t, "<|tool_call_argument_begin|>");
        text_content(t, chat_text(call->arguments, 0));
        text_markup(t, "<|tool_call_end|>");
    }
    text_markup(t, "<|tool_calls_section_end|>");
}

/* Text and images are chunks of their own here; encoding them together is not what the template
 * does. */
static void kimi_put_parts(struct render_call *c, const tinker_message *m, struct render_out *out)
{
    struct render_text t;
    text_init(&t, c);
    if (!(c->r->flags & RENDER_K25))
        jx_fail(&c->x, "content of several parts is not supported");
    for (size_t i = 0; i < m->n_parts && !c->x.failed; i++) {
        if (m->parts[i].kind == TINKER_PART_TEXT) {
            text_content(&t, chat_part_text(&m->parts[i]));
            render_push_text(&t, out, false);
        } else if (m->parts[i].kind == TINKER_PART_IMAGE) {
            render_push_ids(c, out, render_encode(c, "<|media_begin|>image<|media_content|>"));
            render_push_image(c, out, &m->parts[i]);
            render_push_ids(c, out, render_encode(c, "<|media_end|>\n"));
        } else {
            jx_fail(&c->x, "thinking is only possible in assistant messages");
        }
    }
    render_push_ids(c, out, render_encode(c, "<|im_end|>"));
    buf_clear(&t.buf);
}

static bool kimi_render_message(struct render_call *c, const struct render_at *at,
                                struct render_out *out)
{
    const tinker_message *m = at->message;
    kimi_put_header(c, m, out);
    bool one_text = !m->parts || (m->n_parts == 1 && m->parts[0].kind == TINKER_PART_TEXT);
    if (!role_is(m, "assistant") && !one_text) {
        kimi_put_parts(c, m, out);
        return !c->x.failed;
    }
    struct render_text t;
    text_init(&t, c);
    if (role_is(m, "assistant"))
        kimi_put_assistant(c, &t, at);
    else
        text_content(&t, message_text(c, m));
    text_markup(&t, "<|im_end|>");
    render_push_text(&t, out, false);
    return !c->x.failed;
}

/* Part of the prompt since 2.5; earlier models write <think> themselves. */
static const char *kimi_prefill(const struct render_call *c, const tinker_message *messages,
                                size_t n)
{
    (void)messages;
    (void)n;
    if (!(c->r->flags & RENDER_K25))
        return "";
    return c->r->flags & RENDER_NO_THINK ? "<think></think>" : "<think>";
}

/* ---- responses ---- */

static void kimi_read_calls(struct render_call *c, struct render_parse *p, struct jv_str section)
{
    static const struct jv_str open = { "<|tool_call_begin|>", 19 };
    struct parse_mark mid = { .what = "<|tool_call_argument_begin|>" };
    struct parse_mark close = { .what = "<|tool_call_end|>" };
    size_t at = 0, mid_n = strlen(mid.what), close_n = strlen(close.what);
    while (!c->x.failed && (at = text_find(section, open, at)) != SIZE_MAX) {
        size_t id_at = at + open.n, sep = parse_next(&mid, section, id_at);
        size_t end = sep == SIZE_MAX ? SIZE_MAX : parse_next(&close, section, sep + mid_n);
        if (end == SIZE_MAX)
            return; /* nor does anything behind it end */
        struct jv_str id = { section.s + id_at, sep - id_at };
        bool plain = !memchr(id.s, '<', id.n);
        if (plain)
            id = text_trim(id, NULL, true, true);
        /* An id is functions.NAME:0: it ends in a colon and digits. */
        size_t digits = 0;
        while (digits < id.n && id.s[id.n - 1 - digits] >= '0' && id.s[id.n - 1 - digits] <= '9')
            digits++;
        if (!plain || digits == 0 || id.n <= digits + 1 || id.s[id.n - digits - 1] != ':') {
            at = id_at;
            continue;
        }
        struct jv_str name = { id.s, parse_find(id, ":", 0) };
        size_t dot = parse_find(name, ".", 0);
        if (dot != SIZE_MAX)
            name = parse_from(name, dot + 1);
        struct jv_str args = { section.s + sep + mid_n, end - sep - mid_n };
        struct jv_str raw = { section.s + at, end + close_n - at };
        parse_add_checked(c, p, parse_cstr(c, id), name, text_trim(args, NULL, true, true), raw);
        at = end + close_n;
    }
}

/* The section's marker has been seen in two spellings. */
static const char *const markers[][2] = {
    { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>" },
    { "<|tool_call_section_begin|>", "<|tool_call_section_end|>" },
    { "<|tool_call_begin|>", "<|tool_call_end|>" },
};

static void kimi_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    if ((c->r->flags & RENDER_K25) && !streaming)
        parse_restore(c, p, (struct render_ids){ &c->r->think_open, 1 }, c->r->think_close);
    parse_stop(c, p);
    if (c->x.failed || (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    struct jv_str all = p->content, text = all, section = { NULL, 0 };
    for (size_t i = 0; i < 2; i++) { /* whichever spelling comes first */
        size_t at = 0, begin;
        struct jv_str inner;
        if (parse_between(all, markers[i][0], markers[i][1], &at, &begin, &inner) &&
            (!section.s || begin < text.n)) {
            section = inner;
            text.n = begin;
        }
    }
    if (section.s)
        kimi_read_calls(c, p, section);
    for (size_t i = 0; i < 3; i++)
        if (parse_unterminated(c, p, all, markers[i][0], markers[i][1]))
            break;
    parse_blocks(c, p, text, false);
}

const struct render_format render_kimi = {
    .tokens = { "<|im_end|>", "<|im_middle|>", "<|im_assistant|>" },
    .n_stop = 1,
    .render = kimi_render_message,
    .prepare = kimi_insert_system,
    .turn_start = kimi_turn_start,
    .prefill = kimi_prefill,
    .parse = kimi_parse_response,
    .tools = kimi_tools,
    .split_by_user = true,
    .think_tags = true,
};
