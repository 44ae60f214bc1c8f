/* render_qwen_vl.c - Qwen3-VL and what grew out of it: Qwen3.5/3.6, Qwen3.8, Nemotron 3.
 *
 * One message is one run of text, cut only by images; text and control tokens are encoded
 * together.  From 3.5 on a turn without reasoning gets an empty think block in its header, tool
 * results share one user block, and tool calls are XML.  Flags choose the dialect. */
#include "chat/render_parse.h"

#include <string.h>

/* An answer after a question, by dialect:
 *
 *     qwen3_vl     <|im_start|>assistant\n<think>Greet.</think>Hello.<|im_end|>
 *     qwen3_5      <|im_start|>assistant\n<think>\nGreet.\n</think>\n\nHello.<|im_end|>
 *     nemotron3    <|im_start|>assistant\n<think>\nGreet.\n</think>\nHello.<|im_end|>
 *
 * A call from 3.5 on:
 * <tool_call>\n<function=clock>\n<parameter=zone>\nUTC\n</parameter>\n</function>\n</tool_call>,
 * results as in render_qwen3.c, but several in one user message. An image is <|vision_start|>, the
 * image, <|vision_end|>. Qwen3.8 states its effort in the system message. */
static const char effort_xhigh[] =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key "
    "assumptions, consider plausible alternatives, and prioritize correctness, consistency, and "
    "clarity in the final answer.";
static const char effort_low[] =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the "
    "conclusion without unnecessary elaboration.";

static bool has_flag(const struct render_call *c, unsigned flag)
{
    return (c->r->flags & flag) != 0;
}

/* ---- headers ---- */

/* The think block that the header of an assistant message ends with. */
static const char *choose_header_block(const struct render_call *c, const struct render_at *at)
{
    static const char empty[] = "<think>\n\n</think>\n\n";
    if (has_flag(c, RENDER_NEMOTRON)) {
        /* Nemotron closes the block in the header of every answer without (visible) reasoning.
         * Its smaller models leave a newline where reasoning was removed before text. */
        const tinker_message *m = at->message;
        bool historical = at->index < at->last_user, thought = message_has_thinking(m);
        if (thought && (!historical || has_flag(c, RENDER_KEEP)))
            return "";
        if (historical && thought && !has_flag(c, RENDER_ULTRA) && message_has_text_part(m) &&
            m->n_tool_calls == 0)
            return "<think></think>\n";
        return "<think></think>";
    }
    if (has_flag(c, RENDER_Q38)) {
        if (!has_flag(c, RENDER_KEEP) && at->index <= at->last_user)
            return "";
        return message_has_thinking_part(at->message) ? "" : empty;
    }
    if (!has_flag(c, RENDER_Q35) || at->index <= at->last_user)
        return "";
    return message_has_thinking(at->message) ? "" : empty;
}

/* Each header but the first begins with the newline after <|im_end|>. */
static void put_start(struct render_text *t, const struct render_at *at, const char *role)
{
    text_markup(t, at->index > 0 ? "\n<|im_start|>" : "<|im_start|>");
    text_name(t, role);
    text_markup(t, "\n");
}

/* What the prompt puts after the header: an open block, or an empty one. */
static const char *choose_prompt_block(const struct render_call *c)
{
    return has_flag(c, RENDER_NO_THINK) && !has_flag(c, RENDER_NEMOTRON) ? "<think>\n\n</think>\n\n"
                                                                         : "<think>\n";
}

/* The header; what the generation prompt does not supply becomes the first output chunk, so
 * that it can be trained. */
static void qwen_vl_put_header(struct render_call *c, const struct render_at *at,
                               struct render_out *out)
{
    const tinker_message *m = at->message;
    struct render_text t;
    text_init(&t, c);
    /* Only the first of several results has a header. */
    if (has_flag(c, RENDER_Q35) && role_is(m, "tool") && role_is(at->prev, "tool")) {
        text_markup(&t, has_flag(c, RENDER_NEMOTRON) ? "" : "\n");
        render_set_header(out, text_encode(&t, false));
        return;
    }
    put_start(&t, at, role_is(m, "tool") ? "user" : m->role);
    const char *block = role_is(m, "assistant") ? choose_header_block(c, at) : "", *rest = "";
    if (has_flag(c, RENDER_Q35) && role_is(m, "assistant") && at->is_last) {
        const char *given = choose_prompt_block(c);
        if (strncmp(block, given, strlen(given)) == 0) {
            rest = block + strlen(given);
            block = given;
        }
    }
    text_markup(&t, block);
    render_set_header(out, text_encode(&t, false));
    render_push_ids(c, out, render_encode(c, rest));
}

static bool qwen_vl_encode_suffix(struct render_call *c, const char *role,
                                  const struct render_at *at, struct render_ids *out)
{
    struct render_text t;
    text_init(&t, c);
    bool plain = !has_flag(c, RENDER_Q35);
    put_start(&t, at, plain && strcmp(role, "tool") == 0 ? "user" : role);
    if (has_flag(c, RENDER_NEMOTRON) && has_flag(c, RENDER_NO_THINK))
        text_markup(&t, "<think></think>");
    else if (!plain)
        text_markup(&t, choose_prompt_block(c));
    *out = text_encode(&t, false);
    return !c->x.failed;
}

/* ---- bodies ---- */

/* How far white space is trimmed: parts up to *first on the left, from *last on on the right.
 * Thinking does not count. */
static void find_visible(const tinker_message *m, size_t *first, size_t *last)
{
    *first = m->n_parts;
    *last = 0;
    for (size_t i = 0; i < m->n_parts; i++) {
        struct jv_str s = text_trim(chat_part_text(&m->parts[i]), NULL, true, true);
        if (m->parts[i].kind == TINKER_PART_THINKING ||
            (m->parts[i].kind == TINKER_PART_TEXT && s.n == 0))
            continue;
        *first = *first < i ? *first : i;
        *last = i;
    }
}

/* An image between its marks.  Nemotron starts a line with it if text came before, and numbers the
 * images of a message that has several; number 0: not this one. */
static void put_image(struct render_text *t, const tinker_part *part, bool after_text,
                      size_t number, struct render_out *out)
{
    bool nemotron = has_flag(t->c, RENDER_NEMOTRON);
    if (nemotron && !has_flag(t->c, RENDER_ULTRA))
        jx_fail(&t->c->x, "this renderer takes no images");
    if (nemotron && after_text && t->buf.len > 0 && t->buf.data[t->buf.len - 1] != '\n')
        text_markup(t, "\n");
    if (nemotron && number > 0)
        buf_printf(&t->buf, "<image %zu>", number);
    text_markup(t, nemotron ? "<img>" : "<|vision_start|>");
    render_push_text(t, out, false);
    render_push_image(t->c, out, part);
    text_markup(t, nemotron ? "</img>" : "<|vision_end|>");
}

static void qwen_vl_put_parts(struct render_text *t, const struct render_at *at,
                              struct render_out *out)
{
    const tinker_message *m = at->message;
    /* 3.8 strips what stands before the last question, the others all but the last message. */
    bool strip = !has_flag(t->c, RENDER_KEEP) && role_is(m, "assistant") &&
                 (has_flag(t->c, RENDER_Q38) ? at->index <= at->last_user : !at->is_last);
    bool trim = has_flag(t->c, RENDER_Q35) && !has_flag(t->c, RENDER_NEMOTRON);
    size_t first, last, total = 0, images = 0, before = t->buf.len;
    for (size_t i = 0; i < m->n_parts; i++)
        total += m->parts[i].kind == TINKER_PART_IMAGE;
    find_visible(m, &first, &last);
    for (size_t i = 0; i < m->n_parts && !t->c->x.failed; i++) {
        struct jv_str s = chat_part_text(&m->parts[i]);
        if (m->parts[i].kind == TINKER_PART_TEXT) {
            text_content(t, trim ? text_trim(s, NULL, i <= first, i >= last) : s);
        } else if (m->parts[i].kind == TINKER_PART_THINKING) {
            if (strip)
                continue;
            /* The dialects differ in the newlines around the reasoning. */
            text_markup(t, has_flag(t->c, RENDER_Q35) ? "<think>\n" : "<think>");
            text_content(t, s);
            text_markup(t, has_flag(t->c, RENDER_ULTRA)      ? "</think>"
                           : has_flag(t->c, RENDER_NEMOTRON) ? "\n</think>\n"
                           : has_flag(t->c, RENDER_Q35)      ? "\n</think>\n\n"
                                                             : "</think>");
        } else {
            images++;
            put_image(t, &m->parts[i], t->buf.len > before, total > 1 ? images : 0, out);
            before = t->buf.len;
        }
    }
}

static void put_xml_call(struct render_text *t, const tinker_tool_call *call)
{
    struct jv args = call_arguments(t->c, call);
    text_markup(t, "<tool_call>\n<function=");
    text_content(t, chat_text(call->name, 0));
    text_markup(t, ">\n");
    for (size_t i = 0; args.kind == JV_DICT && i < args.dict->n; i++) {
        text_markup(t, "<parameter=");
        text_content(t, args.dict->pairs[i].key.str);
        text_markup(t, ">\n");
        /* 3.8 writes numbers and booleans as JSON (true), the older ones as Python (True). */
        struct jv v = args.dict->pairs[i].value;
        bool text = v.kind == JV_STRING ||
                    (!has_flag(t->c, RENDER_Q38) && v.kind != JV_DICT && v.kind != JV_LIST);
        text_content(t, text ? jv_to_str(&t->c->x, v).str : render_dumps(t->c, v));
        text_markup(t, "\n</parameter>\n");
    }
    text_markup(t, "</function>\n</tool_call>");
}

/* How calls are set off from the text before them. */
static void qwen_vl_put_calls(struct render_text *t, const tinker_message *m)
{
    const struct render_call *c = t->c;
    if (!has_flag(c, RENDER_Q35)) {
        text_markup(t, "\n");
        qwen_put_json_calls(t, m);
        return;
    }
    bool nemotron = has_flag(c, RENDER_NEMOTRON);
    bool visible = !m->parts && !parse_is_blank(chat_content(m));
    for (size_t i = 0; m->parts && i < m->n_parts; i++)
        visible =
            visible || m->parts[i].kind == TINKER_PART_IMAGE ||
            (m->parts[i].kind == TINKER_PART_TEXT && !parse_is_blank(chat_part_text(&m->parts[i])));
    if (!nemotron)
        text_markup(t, visible ? "\n\n" : "");
    else if (has_flag(c, RENDER_ULTRA) || !message_has_thinking_part(m) || message_has_text_part(m))
        text_markup(t, "\n");
    for (size_t i = 0; i < m->n_tool_calls && !c->x.failed; i++) {
        text_markup(t, i > 0 && !nemotron ? "\n" : "");
        put_xml_call(t, &m->tool_calls[i]);
        text_markup(t, nemotron ? "\n" : "");
    }
}

/* A copy of a message with a line added to its text. */
static void add_line(struct render_call *c, const tinker_message *m, const char *line,
                     tinker_message *copy)
{
    *copy = *m;
    if (m->parts) {
        /* Content of parts gets one more part, a string gets a longer string. */
        tinker_part *parts = arena_array(c->x.arena, m->n_parts + 1, sizeof(*parts));
        if (!parts) {
            jx_nomem(&c->x);
            return;
        }
        if (m->n_parts > 0)
            memcpy(parts, m->parts, m->n_parts * sizeof(*parts));
        parts[copy->n_parts++] = (tinker_part){ .kind = TINKER_PART_TEXT, .text = line };
        copy->parts = parts;
        return;
    }
    struct buf b;
    buf_init(&b, c->x.arena->max);
    buf_append(&b, chat_content(m).s, chat_content(m).n);
    buf_puts(&b, line);
    struct jv text = jv_from_buf(&c->x, &b);
    copy->content = text.str.s;
    copy->n_content = text.str.n;
}

/* The last user message asks for less reasoning. */
static const tinker_message *add_effort_line(struct render_call *c, const struct render_at *at,
                                             tinker_message *copy)
{
    const char *line = has_flag(c, RENDER_LOW)      ? "\n\n{reasoning effort: low}"
                       : has_flag(c, RENDER_MEDIUM) ? "\n\n{reasoning effort: efficient}"
                                                    : NULL;
    const tinker_message *m = at->message;
    if (!line || !has_flag(c, RENDER_NEMOTRON) || !role_is(m, "user") || at->index != at->last_user)
        return m;
    if (m->parts && has_flag(c, RENDER_LOW)) {
        jx_fail(&c->x, "the last user message must be a string: this mode adds to its text");
        return m;
    }
    add_line(c, m, line, copy);
    return copy;
}

static bool qwen_vl_render_message(struct render_call *c, const struct render_at *given,
                                   struct render_out *out)
{
    struct render_at at = *given;
    tinker_message copy;
    at.message = add_effort_line(c, given, &copy);
    bool tool = role_is(at.message, "tool");
    if (has_flag(c, RENDER_NEMOTRON) && role_is(at.message, "assistant") &&
        at.index >= at.last_user)
        at.is_last = true; /* the template keeps reasoning from the last question on */
    qwen_vl_put_header(c, &at, out);
    struct render_text t;
    text_init(&t, c);
    text_markup(&t, tool ? "<tool_response>\n" : "");
    struct jv_str s = chat_content(at.message);
    if (at.message->parts)
        qwen_vl_put_parts(&t, &at, out);
    else
        text_content(&t, has_flag(c, RENDER_Q35) ? text_trim(s, NULL, true, true) : s);
    if (tool)
        text_markup(&t,
                    has_flag(c, RENDER_NEMOTRON) ? "\n</tool_response>\n" : "\n</tool_response>");
    if (at.message->n_tool_calls)
        qwen_vl_put_calls(&t, at.message);
    if (!(has_flag(c, RENDER_Q35) && tool && role_is(at.next, "tool")))
        text_markup(&t, "<|im_end|>");
    render_push_text(&t, out, false);
    return !c->x.failed;
}

/* ---- the system message ---- */

/* The sentence goes before the parts of a message that is not only text. */
static tinker_message prepend_sentence(struct render_call *c, const tinker_message *m,
                                       const char *sentence)
{
    tinker_message out = *m;
    size_t n = strlen(sentence);
    if (n == 0 || (m->parts[0].kind == TINKER_PART_TEXT &&
                   text_starts(chat_part_text(&m->parts[0]), sentence)))
        return out;
    char *text = arena_printf(c->x.arena, "%s\n\n", sentence);
    tinker_part *parts = arena_array(c->x.arena, m->n_parts + 1, sizeof(*parts));
    if (!text || !parts) {
        jx_nomem(&c->x);
        return out;
    }
    parts[0] = (tinker_part){ .kind = TINKER_PART_TEXT, .text = text, .n_text = n + 2 };
    memcpy(parts + 1, m->parts, m->n_parts * sizeof(*parts));
    out.parts = parts;
    out.n_parts = m->n_parts + 1;
    return out;
}

/* The system message begins with the sentence about effort: a new message where there was none,
 * prepended to its text otherwise, and not twice when it was given already. An empty system message
 * without a sentence is dropped. */
static void prepare_qwen38(struct render_call *c, const tinker_message **messages, size_t *n)
{
    const char *sentence = has_flag(c, RENDER_NO_THINK | RENDER_MEDIUM) ? ""
                           : has_flag(c, RENDER_LOW)                    ? effort_low
                                                                        : effort_xhigh;
    tinker_message first = { .role = "system", .content = sentence };
    struct jv_str text;
    if (*n == 0 || !role_is(&(*messages)[0], "system")) {
        if (*sentence)
            *messages = render_insert(c, *messages, n, 0, first);
        return;
    }
    const tinker_message *system = &(*messages)[0];
    bool only_text = true;
    for (size_t i = 0; system->parts && i < system->n_parts; i++)
        only_text = only_text && system->parts[i].kind == TINKER_PART_TEXT;
    text = text_trim(message_join(c, system, TINKER_PART_TEXT), NULL, true, true);
    if (!only_text) {
        first = prepend_sentence(c, &(*messages)[0], sentence);
        ++*messages;
        --*n;
        *messages = render_insert(c, *messages, n, 0, first);
        return;
    }
    if (text.n == 0 && !*sentence) {
        ++*messages;
        --*n;
        return;
    }
    struct buf b;
    size_t len = strlen(sentence);
    bool present = text_starts(text, sentence) &&
                   (text.n == len || (text.n > len + 1 && memcmp(text.s + len, "\n\n", 2) == 0));
    buf_init(&b, c->x.arena->max);
    if (len && !present) {
        buf_puts(&b, sentence);
        buf_puts(&b, text.n ? "\n\n" : "");
    }
    buf_append(&b, text.s, text.n);
    struct jv content = jv_from_buf(&c->x, &b);
    const tinker_message old = (*messages)[0];
    first = old;
    first.parts = NULL;
    first.n_parts = 0;
    first.content = content.str.s;
    first.n_content = content.str.n;
    ++*messages;
    --*n;
    *messages = render_insert(c, *messages, n, 0, first);
}

static void qwen_vl_prepare(struct render_call *c, const tinker_message **messages, size_t *n)
{
    if (has_flag(c, RENDER_Q38)) {
        prepare_qwen38(c, messages, n);
    } else if (has_flag(c, RENDER_NEMOTRON) && (*n == 0 || !role_is(&(*messages)[0], "system"))) {
        tinker_message empty = { .role = "system", .content = "" };
        *messages = render_insert(c, *messages, n, 0, empty);
    }
}

/* ---- responses ---- */

/* Parameters of a function block into a dict; the reason when it is malformed. */
static const char *read_xml_parameters(struct render_call *c, struct jv_str body, struct jv args)
{
    static const struct jv_str open = { "<parameter=", 11 };
    struct parse_mark close = { .what = "</parameter>" }, line = { .what = "\n" };
    struct parse_mark bracket = { .what = ">" };
    size_t pos = 0, at = 0;
    while (!c->x.failed && (at = text_find(body, open, at)) != SIZE_MAX) {
        size_t begin = at + open.n, stop = parse_next(&bracket, body, begin);
        size_t end = stop == SIZE_MAX ? SIZE_MAX : parse_next(&close, body, stop + 1);
        if (end == SIZE_MAX)
            break; /* nor does anything behind it end */
        if (stop == begin || parse_next(&line, body, begin) < stop) {
            at = begin;
            continue;
        }
        size_t value = stop + 1;
        struct jv_str name =
            text_trim((struct jv_str){ body.s + begin, stop - begin }, NULL, true, true);
        if (!parse_is_blank((struct jv_str){ body.s + pos, at - pos }))
            return "Unexpected non-parameter content inside <function> block";
        if (name.n == 0)
            return "Empty parameter name";
        struct jv_str text =
            text_trim((struct jv_str){ body.s + value, end - value }, NULL, true, true);
        jv_put(&c->x, args, jv_strn(name.s, name.n), parse_argument(c, text));
        pos = at = end + strlen(close.what);
    }
    return parse_is_blank(parse_from(body, pos))
               ? NULL
               : "Unexpected trailing content inside <function> block";
}

/* <tool_call> <function=NAME> ... </function> </tool_call>; NULL when it was added. */
static const char *read_xml_call(struct render_call *c, struct render_parse *p, struct jv_str raw)
{
    static const char malformed[] = "Malformed Qwen3.5 tool call XML";
    struct jv_str s = text_trim(raw, NULL, true, true), name;
    if (!text_starts(s, "<tool_call>") || !text_ends(s, "</tool_call>") || s.n < 23)
        return malformed;
    s = text_trim((struct jv_str){ s.s + 11, s.n - 23 }, NULL, true, true);
    if (!text_starts(s, "<function=") || !text_ends(s, "</function>"))
        return malformed;
    /* "<function=NAME>": the name has no newline, and "</function>" follows behind it. */
    size_t used = parse_find(s, ">", 10) - 10 + 1;
    if (used <= 1 || used > s.n || 10 + used + 11 > s.n || memchr(s.s + 10, '\n', used - 1))
        return malformed;
    name = text_trim((struct jv_str){ s.s + 10, used - 1 }, NULL, true, true);
    if (name.n == 0)
        return "Missing function name";
    struct jv_str body = { s.s + 10 + used, s.n - 10 - used - 11 };
    struct jv args = jv_dict_new(&c->x);
    const char *why = read_xml_parameters(c, text_trim(body, NULL, true, true), args);
    if (!why)
        parse_add_call(c, p, NULL, name, render_dumps(c, args));
    return why;
}

/* parse_blocks() takes the inside of <tool_call> for JSON and records XML as unparsed; it is read
 * again here. What stays unreadable keeps the reason that fits its syntax. */
static void convert_xml(struct render_call *c, struct render_parse *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->n_unparsed && !c->x.failed; i++) {
        tinker_unparsed_tool_call u = p->unparsed[i];
        if (strncmp(u.error, "unterminated tool block", 23) != 0 &&
            strstr(u.raw_text, "<function=")) {
            const char *why = read_xml_call(c, p, chat_text(u.raw_text, 0));
            if (!why)
                continue;
            u.error = why;
        }
        p->unparsed[kept++] = u;
    }
    p->n_unparsed = kept;
}

/* Undo the newlines around the reasoning, and those after it at the first text part. */
static void tidy_parts(struct render_call *c, struct render_parse *p)
{
    bool seen = false;
    for (size_t i = 0; i < p->n_parts && !c->x.failed; i++) {
        tinker_part *part = &p->parts[i];
        struct jv_str s = { part->text, part->n_text };
        if (part->kind == TINKER_PART_THINKING) {
            s = text_trim(s, NULL, true, true);
            seen = true;
        } else if (seen) {
            if (has_flag(c, RENDER_NEMOTRON) && !has_flag(c, RENDER_ULTRA) && text_starts(s, "\n"))
                s = parse_from(s, 1);
            if (text_starts(s, "\n\n"))
                s = parse_from(s, 2);
        }
        part->text = parse_cstr(c, s);
        part->n_text = s.n;
        if (seen && part->kind == TINKER_PART_TEXT)
            break;
    }
}

static void qwen_vl_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    if (has_flag(c, RENDER_Q35) && !streaming)
        parse_restore(c, p, render_encode(c, "<think>\n"), c->r->think_close);
    qwen_parse(c, p, streaming, !has_flag(c, RENDER_INSTRUCT));
    if (!has_flag(c, RENDER_Q35) || c->x.failed ||
        (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    tidy_parts(c, p);
    convert_xml(c, p);
}

const struct render_format render_qwen_vl = {
    .tokens = { "<|im_end|>", "<|im_start|>" },
    .n_stop = 1,
    .render = qwen_vl_render_message,
    .suffix = qwen_vl_encode_suffix,
    .prepare = qwen_vl_prepare,
    .parse = qwen_vl_parse_response,
    .tools = qwen_tools,
    .think_tags = true,
};
