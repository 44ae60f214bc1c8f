/* render_harmony.c - gpt-oss: the Harmony format with its channels.
 *
 * Reasoning goes to the analysis channel, answers to final, tool calls and what is said
 * before them to commentary.  Only the last answer ends in <|return|>.  Reasoning of history
 * is kept.  The built-in system message carries a date, which the options can fix. */
#include "chat/render_parse.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* A conversation that calls a tool renders as follows (line breaks added, none are in the text):
 *
 *     <|start|>system<|message|>You are ChatGPT, ... Reasoning: medium ...<|end|>
 *     <|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|>
 *     <|start|>user<|message|>What time is it?<|end|>
 *     <|start|>assistant<|channel|>analysis<|message|>I need the clock.<|end|>
 *     <|start|>assistant to=functions.clock<|channel|>commentary <|constrain|>json
 *     <|message|>{}<|call|>
 *     <|start|>functions.clock to=assistant<|channel|>commentary<|message|>"12:00"<|end|>
 *     <|start|>assistant<|channel|>final<|message|>Noon.<|return|>
 *
 * A prompt ends after "<|start|>assistant": the model chooses its channel. The caller's system
 * message is the developer's in this format; "system" is reserved for the built-in text, which has
 * a role of its own here so that no message is taken for it. */
const char harmony_system_role[] = "_gptoss_internal_system";

/* NULL: the variant without a built-in system message. */
static const char *harmony_effort(const struct render_call *c)
{
    return c->r->flags & RENDER_LOW      ? "low"
           : c->r->flags & RENDER_MEDIUM ? "medium"
           : c->r->flags & RENDER_HIGH   ? "high"
                                         : NULL;
}

/* Put the built-in system message first. The date is part of the prompt, so a program that wants
 * the same tokens tomorrow fixes it in the options. */
static void harmony_insert_system(struct render_call *c, const tinker_message **messages, size_t *n)
{
    if (!harmony_effort(c))
        return;
    char date[16];
    time_t now = time(NULL);
    struct tm tm;
    if (!localtime_r(&now, &tm) || strftime(date, sizeof(date), "%Y-%m-%d", &tm) == 0)
        snprintf(date, sizeof(date), "1970-01-01");
    if (*n > 0 && role_is(&(*messages)[0], "system"))
        render_warn(c, "this renderer puts its own system message before the one given");
    char *text = arena_printf(
        c->x.arena,
        "You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: %s\n\nReasoning: %s\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every "
        "message.",
        c->r->date[0] ? c->r->date : date, harmony_effort(c));
    if (!text) {
        jx_nomem(&c->x);
        return;
    }
    tinker_message system = { .role = harmony_system_role, .content = text };
    *messages = render_insert(c, *messages, n, 0, system);
}

/* An answer is up to three kinds of sections: analysis, commentary before calls, and the calls or
 * the final text. The header has written "<|start|>assistant" for the first of them, so each
 * further section begins with its own, and the first call may follow the header directly. */
static void harmony_put_assistant(struct render_call *c, struct render_text *t,
                                  const struct render_at *at)
{
    const tinker_message *m = at->message;
    struct jv_str text = message_join(c, m, TINKER_PART_TEXT);
    struct jv_str thinking = message_join(c, m, TINKER_PART_THINKING);
    if (thinking.n > 0) {
        text_markup(t, "<|channel|>analysis<|message|>");
        text_content(t, thinking);
        text_markup(t, "<|end|><|start|>assistant");
    }
    if (m->n_tool_calls == 0) {
        text_markup(t, "<|channel|>final<|message|>");
        text_content(t, text);
        /* <|return|> says "sampling ends here"; in history the same answer ends in <|end|>, as any
         * other message does. So an example's last token differs from the same turn in a prompt. */
        text_markup(t, at->is_last ? "<|return|>" : "<|end|>");
        return;
    }
    if (text.n > 0) {
        text_markup(t, "<|channel|>commentary<|message|>");
        text_content(t, text);
        text_markup(t, "<|end|><|start|>assistant");
    }
    for (size_t i = 0; i < m->n_tool_calls; i++) {
        text_markup(t, i > 0 ? "<|start|>assistant to=functions." : " to=functions.");
        text_content(t, chat_text(m->tool_calls[i].name, 0));
        text_markup(t, "<|channel|>commentary <|constrain|>json<|message|>");
        text_content(t, chat_text(m->tool_calls[i].arguments, 0));
        text_markup(t, "<|call|>");
    }
}

static bool harmony_render_message(struct render_call *c, const struct render_at *at,
                                   struct render_out *out)
{
    const tinker_message *m = at->message;
    struct render_text t;
    if (role_is(m, "tool")) {
        /* The tool is the author and addresses the assistant.  "functions." is added where the
         * caller left it out. */
        const char *name = m->name && *m->name ? m->name : "unknown";
        if (name != m->name)
            render_warn(c, "a tool message without name: rendered as functions.unknown");
        text_init(&t, c);
        text_markup(&t, "<|start|>");
        text_markup(&t, strncmp(name, "functions.", 10) == 0 ? "" : "functions.");
        text_content(&t, chat_text(name, 0));
        text_markup(&t, " to=assistant");
        render_set_header(out, text_encode(&t, false));
        text_markup(&t, "<|channel|>commentary<|message|>");
        text_content(&t, message_text(c, m));
        text_markup(&t, "<|end|>");
        render_push_text(&t, out, false);
        return !c->x.failed;
    }
    bool internal = role_is(m, harmony_system_role), system = role_is(m, "system");
    text_init(&t, c);
    text_markup(&t, "<|start|>");
    text_name(&t, internal ? "system" : system ? "developer" : m->role);
    render_set_header(out, text_encode(&t, false));
    if (role_is(m, "assistant")) {
        harmony_put_assistant(c, &t, at);
    } else {
        text_markup(&t, system ? "<|message|># Instructions\n\n" : "<|message|>");
        text_content(&t, message_text(c, m));
        text_markup(&t, system ? "\n\n<|end|>" : "<|end|>");
    }
    render_push_text(&t, out, false);
    return !c->x.failed;
}

/* ---- responses ---- */

/* The word after `key` in a header, up to white space or '<'; n 0: none. An occurrence without a
 * word ("to= x") is passed over. */
static struct jv_str find_header_word(struct jv_str header, const char *key)
{
    for (size_t at = 0; (at = parse_find(header, key, at)) != SIZE_MAX;) {
        at += strlen(key);
        size_t end = at;
        while (end < header.n && header.s[end] != '<' && !strchr(" \t\n\r\v\f", header.s[end]))
            end++;
        if (end > at)
            return (struct jv_str){ header.s + at, end - at };
    }
    return (struct jv_str){ NULL, 0 };
}

/* Walk over "HEADER<|message|>BODY END". END is the first of three markers, or the end of the text,
 * since the stop token itself was cut off. */
static void read_sections(struct render_call *c, struct render_parse *p, struct jv_str text)
{
    struct parse_mark ends[] = { { .what = "<|end|>" },
                                 { .what = "<|call|>" },
                                 { .what = "<|return|>" } };
    size_t at = 0, message;
    while (!c->x.failed && (message = parse_find(text, "<|message|>", at)) != SIZE_MAX) {
        struct jv_str header = { text.s + at, message - at };
        /* What precedes the last <|start|> belongs to no section. */
        size_t start = text_rfind(header, (struct jv_str){ "<|start|>", 9 });
        if (start != SIZE_MAX)
            header = (struct jv_str){ header.s + start, header.n - start };
        size_t body = message + 11, end = text.n, after = text.n;
        for (size_t i = 0; i < 3; i++) {
            size_t hit = parse_next(&ends[i], text, body);
            if (hit != SIZE_MAX && hit < end) {
                end = hit;
                after = hit + strlen(ends[i].what);
            }
        }
        struct jv_str raw = { header.s, (size_t)(text.s + after - header.s) };
        at = after;
        /* A recipient makes the section a call, otherwise the channel decides.  Sections of unknown
         * channels are dropped, as the reference does. */
        struct jv_str name = find_header_word(header, "<|channel|>");
        struct jv_str to = find_header_word(header, "to=");
        struct jv channel = jv_strn(name.s, name.n);
        struct jv_str content = parse_slice(text, body, end);
        struct jv_str trimmed = text_trim(content, NULL, true, true);
        if (trimmed.n == 0)
            continue;
        if (text_starts(to, "functions."))
            parse_add_checked(c, p, NULL, parse_from(to, 10), trimmed, raw);
        else if (jv_is(channel, "analysis"))
            parse_add_part(c, p, TINKER_PART_THINKING, content);
        else if (jv_is(channel, "final") || jv_is(channel, "commentary"))
            parse_add_part(c, p, TINKER_PART_TEXT, content);
    }
}

/* Two kinds of stop tokens: <|return|> and <|call|>, at most one of each. The content before the
 * first of them is parsed. Unlike the other formats, a response without either is not parsed
 * further, even while streaming: the deltas have shown its text already. */
static void harmony_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    (void)streaming;
    size_t count[2] = { 0, 0 }, at = p->n_tokens;
    for (size_t i = 0; i < p->n_tokens; i++) {
        for (size_t k = 0; k < 2; k++) {
            if (p->tokens[i] != c->r->stop[k])
                continue;
            at = i < at ? i : at;
            if (++count[k] > 1) {
                jx_fail(&c->x,
                        "the response holds several %s tokens; was it sampled with this "
                        "renderer's stop sequences?",
                        k ? "<|call|>" : "<|return|>");
                return;
            }
        }
    }
    p->content = parse_decode(c, p->tokens, at);
    p->termination = TINKER_TERMINATION_MALFORMED;
    if (count[0] + count[1] == 0)
        return;
    p->termination = TINKER_TERMINATION_STOP_SEQUENCE;
    read_sections(c, p, p->content);
    /* A header that names a function, without arguments that were parsed: the model ran out of
     * tokens in between.  Counting suffices, as every call, parsed or not, had one header. */
    struct jv_str text = p->content;
    size_t intents = 0;
    for (size_t i = 0; (i = parse_find(text, "to=functions.", i)) != SIZE_MAX; i += 13)
        intents++;
    if (intents <= p->n_calls + p->n_unparsed)
        return;
    size_t start = text_rfind(text, (struct jv_str){ "<|start|>", 9 });
    parse_add_unparsed(c, p, start == SIZE_MAX ? text : parse_from(text, start),
                       "unterminated tool block: 'to=functions.' tool-call header without a "
                       "parsable arguments payload");
}

const struct render_format render_harmony = {
    .tokens = { "<|return|>", "<|call|>", "<|start|>", "<|message|>" },
    .n_stop = 2,
    .render = harmony_render_message,
    .prepare = harmony_insert_system,
    .parse = harmony_parse_response,
    .tools = harmony_tools,
};
