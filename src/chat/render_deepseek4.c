/* render_deepseek4.c - DeepSeek V4.1.
 *
 * Results of tools and questions that follow each other are one turn and one text: the first
 * message of a turn has all of it, the others render as nothing, so that tokens are those of the
 * model's own template.  Thinking before the last turn is left out unless tools are declared.  What
 * decides is the whole conversation, so it is looked at once, in deepseek4_prepare(), and the
 * prompt inside an example is taken as it is. */
#include "chat/render_parse.h"

#include <string.h>
#include "chat/render_order.h"

/* A conversation with a tool (line breaks and bars as in render_deepseek.c; the "|DSML|" marks are
 * text, not tokens):
 *
 *     <|begin_of_sentence|><|System|>Reasoning Effort: 75 (range ...)\n\nBe brief.\n\n## Tools ...
 *     <|User|>Time?<|Assistant|><think>The clock.</think>\n\n
 *     <|DSML| calls>\n<|DSML| invoke name="clock">\n
 *     <|DSML| parameter name="zone" string="true">UTC</|DSML| parameter>\n
 *     </|DSML| invoke>\n</|DSML| calls><|end_of_sentence|>
 *     <|User|><tool_result>12:00</tool_result>
 *     <|Assistant|><think>...</think>Noon.<|end_of_sentence|> */
#define CALLS_OPEN   "<｜DSML｜ calls>"
#define CALLS_CLOSE  "</｜DSML｜ calls>"
#define INVOKE_OPEN  "<｜DSML｜ invoke name=\""
#define INVOKE_CLOSE "</｜DSML｜ invoke>"
#define PARAM_OPEN   "<｜DSML｜ parameter name=\""
#define PARAM_TEXT   "\" string=\"true\">"
#define PARAM_JSON   "\" string=\"false\">"
#define PARAM_CLOSE  "</｜DSML｜ parameter>"

static bool deepseek4_thinks(const struct render_call *c)
{
    return (c->r->flags & RENDER_THINKING) != 0;
}

static bool in_user_turn(const tinker_message *m)
{
    return role_is(m, "user") || role_is(m, "tool");
}

/* ---- the conversation as turns ---- */

/* The message's content becomes the text of b, which is cleared. */
static void set_message_text(struct render_call *c, tinker_message *m, struct buf *b)
{
    struct jv_str s = jv_from_buf(&c->x, b).str;
    m->parts = NULL;
    m->n_parts = 0;
    m->content = s.s;
    m->n_content = s.n;
}

/* A declaration of tools becomes part of the system message before it, or is the first one. */
static void fold_tools(struct render_call *c, tinker_message *messages, size_t i)
{
    struct jv_str text = message_text(c, &messages[i]), system = { "", 0 };
    bool second = i == 1 && role_is(&messages[0], "system");
    struct buf b;
    if (i > 0 && !second) {
        jx_fail(&c->x, "tools may be declared first, or right after the first system message");
        return;
    }
    if (second)
        system = message_text(c, &messages[0]);
    buf_init(&b, c->x.arena->max);
    buf_append(&b, system.s, system.n);
    buf_puts(&b, "\n\n");
    deepseek4_declare(c, &b, text);
    set_message_text(c, &messages[0], &b); /* the second is passed over by its role */
    messages[0].role = "system";
}

/* All of messages[0..n), results in the order of their calls, is put into the first. */
static void join_turn(struct render_call *c, const struct call_order *order,
                      tinker_message *messages, size_t n)
{
    struct buf b;
    tinker_message *sorted = order_copy(c, messages, n);
    if (sorted)
        order_sort(c, order, sorted, n);
    buf_init(&b, c->x.arena->max);
    for (size_t i = 0; sorted && i < n && !c->x.failed; i++) {
        struct jv_str s = message_text(c, &sorted[i]);
        bool tool = role_is(&sorted[i], "tool");
        buf_puts(&b, i > 0 ? "\n\n" : "");
        buf_puts(&b, tool ? "<tool_result>" : "");
        buf_append(&b, s.s, s.n);
        buf_puts(&b, tool ? "</tool_result>" : "");
    }
    set_message_text(c, &messages[0], &b);
}

/* One pass over the whole conversation: fold declarations of tools into the system message, join
 * the messages of each user turn, and find out through which message thinking is dropped
 * (c->drop_through; -1: none). Declared tools keep all thinking. */
static void deepseek4_prepare(struct render_call *c, const tinker_message **messages, size_t *n)
{
    struct call_order order;
    if (c->nested)
        return;
    tinker_message *copy = order_copy(c, *messages, *n);
    bool drops = !(c->r->flags & RENDER_KEEP);
    c->drop_through = -1;
    for (size_t i = 0; copy && i < *n && !c->x.failed; i++)
        if (role_is(&copy[i], "tool_declare")) {
            drops = false;
            fold_tools(c, copy, i);
        }
    order_init(&order);
    for (size_t i = 0, end; copy && i < *n && !c->x.failed; i = end) {
        if (copy[i].n_tool_calls > 0)
            order_take(c, &order, &copy[i]);
        for (end = i; end < *n && in_user_turn(&copy[end]); end++)
            ;
        if (end > i)
            join_turn(c, &order, copy + i, end - i);
        else
            end = i + 1;
        /* A system message in the middle counts as something the user said. */
        bool later = role_is(&copy[end - 1], "system") && end > 1;
        if (drops && (in_user_turn(&copy[end - 1]) || later))
            c->drop_through = (int64_t)end - 1;
    }
    order_clear(&order);
    if (copy)
        *messages = copy;
}

/* A later system message begins a turn, as a user message does. */
static size_t deepseek4_turn_start(const tinker_message *messages, size_t n)
{
    for (size_t i = n; i-- > 0;)
        if (role_is(&messages[i], "user") || (i > 0 && role_is(&messages[i], "system")))
            return i + 1;
    return 0;
}

/* ---- messages ---- */

/* What a prompt begins with, before the first message. */
static void deepseek4_put_opening(struct render_text *t, const struct render_at *at)
{
    unsigned flags = t->c->r->flags;
    const char *effort = flags & RENDER_LOW ? "50" : flags & RENDER_HIGH ? "100" : "75";
    if (at->index > 0 || (!deepseek4_thinks(t->c) && !role_is(at->message, "system")))
        return;
    text_markup(t, "<｜System｜>");
    if (!deepseek4_thinks(t->c))
        return;
    text_markup(t, "Reasoning Effort: ");
    text_markup(t, effort);
    text_markup(t, " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
}

/* The system message is encoded as one text with its header, which gets the token that reaches over
 * its end. */
static bool deepseek4_render_system(struct render_call *c, const struct render_at *at,
                                    struct render_out *out)
{
    struct render_text t;
    text_init(&t, c);
    deepseek4_put_opening(&t, at);
    text_markup(&t, at->index > 0 ? "<｜System｜>" : "");
    size_t header = t.buf.len, covered = 0, k = 0, n;
    text_content(&t, message_text(c, at->message));
    struct render_ids ids = text_encode(&t, false);
    for (; k < ids.n && covered < header; covered += n)
        tinker_tokenizer_bytes(c->r->tokenizer, ids.ids[k++], &n);
    render_set_header(out, (struct render_ids){ ids.ids, k });
    render_push_ids(c, out, (struct render_ids){ ids.ids + k, ids.n - k });
    return !c->x.failed;
}

/* Arguments as an object; what is none is the one argument of that name. */
static struct jv read_call_arguments(struct render_call *c, const tinker_tool_call *call)
{
    struct jv_str given = chat_text(call->arguments, 0);
    struct jv v = jv_loads(&c->x, given.s, given.n, NULL);
    /* Some programs encode arguments twice: a JSON string that holds JSON. */
    if (v.kind == JV_STRING)
        v = jv_loads(&c->x, v.str.s, v.str.n, NULL);
    if (v.kind == JV_DICT)
        return v;
    struct jv args = jv_dict_new(&c->x);
    jv_set(&c->x, args, "arguments", jv_strn(given.s, given.n));
    return args;
}

/* Strings are written as they are, everything else as JSON; the attribute `string` tells which, so
 * that "3" and 3 stay different. */
static void deepseek4_put_call(struct render_text *t, const tinker_tool_call *call)
{
    struct jv args = read_call_arguments(t->c, call);
    text_markup(t, INVOKE_OPEN);
    text_content(t, chat_text(call->name, 0));
    text_markup(t, "\">\n");
    for (size_t i = 0; !t->c->x.failed && i < args.dict->n; i++) {
        struct jv v = args.dict->pairs[i].value;
        bool string = v.kind == JV_STRING;
        text_markup(t, i > 0 ? "\n" PARAM_OPEN : PARAM_OPEN);
        text_content(t, args.dict->pairs[i].key.str);
        text_markup(t, string ? PARAM_TEXT : PARAM_JSON);
        text_content(t, string ? v.str : render_dumps_utf8(t->c, v));
        text_markup(t, PARAM_CLOSE);
    }
    text_markup(t, "\n" INVOKE_CLOSE);
}

/* An answer has a header only if the turn before is the user's; otherwise (two answers in a row)
 * its text continues. `keep`: whether its thinking is shown, else the header closes the block. */
static bool deepseek4_render_assistant(struct render_call *c, const struct render_at *at,
                                       struct render_out *out)
{
    const tinker_message *m = at->message;
    bool keep = deepseek4_thinks(c) && at->index > c->drop_through;
    bool follows =
        at->prev && (in_user_turn(at->prev) || (role_is(at->prev, "system") && at->index > 1));
    struct render_text t;
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].kind == TINKER_PART_IMAGE)
            return jx_fail(&c->x, "this renderer takes no images");
    text_init(&t, c);
    deepseek4_put_opening(&t, at);
    if (follows)
        text_markup(&t, keep ? "<｜Assistant｜><think>" : "<｜Assistant｜></think>");
    render_set_header(out, text_encode(&t, false));
    if (keep) {
        text_content(&t, message_join(c, m, TINKER_PART_THINKING));
        text_markup(&t, "</think>");
    }
    text_content(&t, message_join(c, m, TINKER_PART_TEXT));
    text_markup(&t, m->n_tool_calls > 0 ? "\n\n" CALLS_OPEN : "");
    for (size_t i = 0; i < m->n_tool_calls && !c->x.failed; i++) {
        text_markup(&t, "\n");
        deepseek4_put_call(&t, &m->tool_calls[i]);
    }
    text_markup(&t, m->n_tool_calls > 0 ? "\n" CALLS_CLOSE : "");
    struct render_ids end = { &c->r->stop[0], 1 };
    render_push_ids(c, out, render_join(c, text_encode(&t, false), end));
    return !c->x.failed;
}

static bool deepseek4_render_message(struct render_call *c, const struct render_at *at,
                                     struct render_out *out)
{
    const tinker_message *m = at->message;
    if (role_is(m, "system"))
        return deepseek4_render_system(c, at, out);
    if (role_is(m, "tool_declare"))
        return true; /* it is in the system message */
    if (in_user_turn(m)) {
        struct render_text t;
        if (at->prev && in_user_turn(at->prev))
            return true; /* the first message of the turn has all of its text */
        text_init(&t, c);
        deepseek4_put_opening(&t, at);
        text_markup(&t, "<｜User｜>");
        render_set_header(out, text_encode(&t, false));
        text_content(&t, message_text(c, m));
        render_push_text(&t, out, false);
        return !c->x.failed;
    }
    if (role_is(m, "assistant"))
        return deepseek4_render_assistant(c, at, out);
    return jx_fail(&c->x, "role %s is not supported", m->role);
}

/* ---- responses ---- */

/* An invocation or a parameter that was found in text. */
struct dsml_block {
    size_t begin, end; /* of all of it */
    struct jv_str name, body;
    bool string;
};

/* The next invocation at or after `at`. */
static bool find_dsml_invoke(struct jv_str s, size_t at, struct dsml_block *out)
{
    size_t begin = parse_find(s, INVOKE_OPEN, at), name = begin + strlen(INVOKE_OPEN);
    size_t stop = begin == SIZE_MAX ? SIZE_MAX : parse_find(s, "\">\n", name);
    size_t end = stop == SIZE_MAX ? SIZE_MAX : parse_find(s, INVOKE_CLOSE, stop + 3);
    if (end == SIZE_MAX)
        return false;
    *out = (struct dsml_block){ begin, end + strlen(INVOKE_CLOSE), parse_slice(s, name, stop),
                                parse_slice(s, stop + 3, end), false };
    return true;
}

/* The next parameter at or after `at`. */
static bool find_dsml_parameter(struct jv_str s, size_t at, struct parse_mark marks[2],
                                struct dsml_block *out)
{
    size_t begin = parse_find(s, PARAM_OPEN, at), name = begin + strlen(PARAM_OPEN);
    if (begin == SIZE_MAX)
        return false;
    size_t text = parse_next(&marks[0], s, name), json = parse_next(&marks[1], s, name);
    bool string = text < json;
    size_t stop = string ? text : json;
    size_t body = stop + strlen(string ? PARAM_TEXT : PARAM_JSON);
    size_t end = stop == SIZE_MAX ? SIZE_MAX : parse_find(s, PARAM_CLOSE, body);
    if (end == SIZE_MAX)
        return false;
    *out = (struct dsml_block){ begin, end + strlen(PARAM_CLOSE), parse_slice(s, name, stop),
                                parse_slice(s, body, end), string };
    return true;
}

/* Parameters into a dict; the reason when they cannot be read. */
static const char *read_dsml_parameters(struct render_call *c, struct jv_str s, struct jv args)
{
    struct parse_mark marks[2] = { { .what = PARAM_TEXT }, { .what = PARAM_JSON } };
    const char *why = NULL;
    size_t pos = 0;
    for (struct dsml_block f; !c->x.failed && find_dsml_parameter(s, pos, marks, &f); pos = f.end) {
        struct jv value = jv_strn(f.body.s, f.body.n), key = jv_strn(f.name.s, f.name.n);
        /* Nothing but white space may stand between parameters. */
        if (!parse_is_blank(parse_slice(s, pos, f.begin)))
            return "Invalid DSML: text outside parameters";
        if (parse_is_blank(f.name))
            return "Invalid DSML: empty parameter name";
        if (jv_find(args, key))
            return "Invalid DSML: duplicate parameter";
        if (!f.string)
            value = jv_loads(&c->x, f.body.s, f.body.n, &why);
        if (why)
            return "Invalid DSML: a parameter is not JSON";
        jv_put(&c->x, args, key, value);
    }
    return parse_is_blank(parse_slice(s, pos, s.n)) ? NULL
                                                    : "Invalid DSML: text outside parameters";
}

/* Take the calls out of text; returns what comes before them. */
static struct jv_str read_dsml_calls(struct render_call *c, struct render_parse *p,
                                     struct jv_str text)
{
    size_t end = 0, begin, pos = 0;
    struct jv_str inner;
    if (!parse_between(text, CALLS_OPEN, CALLS_CLOSE, &end, &begin, &inner))
        return text;
    if (begin >= 2 && memcmp(text.s + begin - 2, "\n\n", 2) == 0)
        begin -= 2;
    /* There must be invocations, and nothing between them; else the block is refused as a whole. */
    bool well_formed = true;
    for (struct dsml_block f; find_dsml_invoke(inner, pos, &f); pos = f.end)
        well_formed = well_formed && parse_is_blank(parse_slice(inner, pos, f.begin));
    well_formed = well_formed && pos > 0 && parse_is_blank(parse_from(inner, pos));
    if (!well_formed)
        parse_add_unparsed(c, p, parse_slice(text, begin, end), "Invalid DSML: malformed invoke");
    pos = 0;
    for (struct dsml_block f; well_formed && !c->x.failed && find_dsml_invoke(inner, pos, &f);
         pos = f.end) {
        struct jv args = jv_dict_new(&c->x);
        const char *why = parse_is_blank(f.name) ? "Invalid DSML: empty function name"
                                                 : read_dsml_parameters(c, f.body, args);
        if (why)
            parse_add_unparsed(c, p, parse_slice(inner, f.begin, f.end), why);
        else
            parse_add_call(c, p, NULL, f.name, render_dumps(c, args));
    }
    if (!parse_is_blank(parse_slice(text, end, text.n)))
        parse_add_unparsed(c, p, parse_slice(text, end, text.n),
                           "Invalid DSML: output after calls block");
    return parse_slice(text, 0, begin);
}

/* A mark outside of a complete calls block means that the model tried to call something: report it
 * instead of showing markup as an answer. */
static void deepseek4_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    if (deepseek4_thinks(c) && !streaming)
        parse_restore(c, p, (struct render_ids){ &c->r->think_open, 1 }, c->r->think_close);
    parse_stop(c, p);
    if (c->x.failed || (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    struct jv_str text = read_dsml_calls(c, p, p->content);
    if (!parse_unterminated(c, p, text, CALLS_OPEN, CALLS_CLOSE) &&
        parse_find(text, "｜DSML｜", 0) != SIZE_MAX)
        parse_add_unparsed(c, p, text, "Invalid DSML: marker outside a calls block");
    parse_blocks(c, p, text, false);
}

const struct render_format render_deepseek4 = {
    .tokens = { "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜System｜>" },
    .n_stop = 1,
    .bos = "<｜begin▁of▁sentence｜>",
    .render = deepseek4_render_message,
    .prepare = deepseek4_prepare,
    .turn_start = deepseek4_turn_start,
    .parse = deepseek4_parse_response,
    .tools = deepseek4_tools,
    .think_tags = true,
};
