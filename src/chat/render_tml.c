/* render_tml.c - tml_v0, the format of Inkling.
 *
 * Every message is "<|message_KIND|>" author "<|content_X|>" body "<|end_message|>"; a turn of the model
 * is one or more of its messages and ends in <|content_model_end_sampling|>.  A prompt ends behind
 * its last message: the model writes its own header.  Responses are read by token, because the same
 * spellings may stand in ordinary text, where they mean nothing. */
#include "chat/render_parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A conversation that calls a tool renders as follows (line breaks added, none are in the text):
 *
 *     <|message_system|>tool_declare<|content_xml|>[{"description":"","name":"clock",...}]<|end_message|>
 *     <|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|>
 *     <|message_user|><|content_text|>What time is it?<|end_message|>
 *     <|message_model|><|content_thinking|>I need the clock.<|end_message|>
 *     <|message_model|>clock<|content_invoke_tool_json|>{"name":"clock","args":{}}<|end_message|>
 *     <|content_model_end_sampling|>
 *     <|message_tool|>clock<|content_text|>12:00<|end_message|>
 *     <|message_model|><|content_text|>Noon.<|end_message|><|content_model_end_sampling|> */

/* What the reference inserts when nothing was asked for, in examples too. */
static const double DEFAULT_EFFORT = 0.9;

static const struct jv_dumps compact = { .item_sep = ",", .key_sep = ":", .indent = -1 };
static const struct jv_dumps compact_sorted = {
    .item_sep = ",", .key_sep = ":", .indent = -1, .sort_keys = true
};

static struct jv_str dump_compact(struct render_call *c, struct jv v, const struct jv_dumps *how)
{
    struct buf b;
    buf_init(&b, c->x.arena->max);
    jv_dump(&c->x, &b, v, how);
    return jv_from_buf(&c->x, &b).str;
}

/* At most two decimals of the effort rounded to thousandths, as the reference prints it: 0.545 is
 * 0.55 although it is nearer to 0.54 in binary. */
static void print_effort(char out[16], double effort)
{
    double hundredths = rint(rint(effort * 1000) / 1000.0 * 100.0);
    int h = (int)hundredths;
    if (h % 100 == 0)
        snprintf(out, 16, "%d", h / 100);
    else if (h % 10 == 0)
        snprintf(out, 16, "%d.%d", h / 100, h / 10 % 10);
    else
        snprintf(out, 16, "%d.%02d", h / 100, h % 100);
}

/* Say the effort behind the leading system messages. */
static void insert_effort(struct render_call *c, const tinker_message **messages, size_t *n)
{
    const tinker_renderer_options *o = &c->r->opts;
    double effort = o->has_thinking_effort ? o->thinking_effort : DEFAULT_EFFORT;
    char number[16];
    size_t at = 0;
    if (o->has_thinking_effort < 0)
        return;
    if (!(effort >= 0 && effort <= 1)) {
        jx_fail(&c->x, "thinking_effort must be a number from 0 to 1, not %g", effort);
        return;
    }
    while (at < *n &&
           (role_is(&(*messages)[at], "system") || role_is(&(*messages)[at], "tool_declare")))
        at++;
    print_effort(number, effort);
    char *text = arena_printf(c->x.arena, "Thinking effort level: %s", number);
    if (!text) {
        jx_nomem(&c->x);
        return;
    }
    *messages =
        render_insert(c, *messages, n, at, (tinker_message){ .role = "system", .content = text });
}

/* One message of the format: header with the name of its author (may be empty), and text. */
static void put_message(struct render_text *t, const char *kind, const char *author,
                        const char *content, struct jv_str text)
{
    text_markup(t, kind);
    if (author && *author)
        text_content(t, chat_text(author, 0));
    text_markup(t, content);
    text_content(t, text);
    text_markup(t, "<|end_message|>");
}

/* [{"description","name","parameters","type"}, ...] with sorted keys: all that the format has of a tool. */
static struct jv_str declare_tools(struct render_call *c, struct jv_str json)
{
    struct jv tools = jv_loads(&c->x, json.s, json.n, NULL), out = jv_list_new(&c->x);
    if (tools.kind != JV_LIST) {
        jx_fail(&c->x, "a tool_declare message must be a JSON array of tools");
        return json;
    }
    for (size_t i = 0; i < tools.list->n && !c->x.failed; i++) {
        struct jv tool = tools.list->items[i], spec = jv_get(tool, "function"),
                  d = jv_dict_new(&c->x);
        if (spec.kind != JV_DICT) {
            jx_fail(&c->x, "tool %zu of a tool_declare message has no \"function\"", i);
            break;
        }
        struct jv description = jv_get(spec, "description"),
                  parameters = jv_get(spec, "parameters");
        jv_set(&c->x, d, "description", description.kind == JV_STRING ? description : jv_str(""));
        jv_set(&c->x, d, "name", jv_get(spec, "name"));
        jv_set(&c->x, d, "parameters",
               parameters.kind == JV_DICT ? parameters : jv_dict_new(&c->x));
        jv_set(&c->x, d, "type", jv_str("function"));
        jv_push(&c->x, out, d);
    }
    return dump_compact(c, out, &compact_sorted);
}

static int compare_pairs(const void *a, const void *b)
{
    struct jv_str x = ((const struct jv_pair *)a)->key.str,
                  y = ((const struct jv_pair *)b)->key.str;
    int order = memcmp(x.s, y.s, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

/* The reference sorts the arguments themselves and keeps the order of what is inside them. */
static void put_call(struct render_call *c, struct render_text *t, const tinker_tool_call *call)
{
    struct jv args = call_arguments(c, call), sorted = jv_dict_new(&c->x),
              body = jv_dict_new(&c->x);
    if (c->x.failed)
        return;
    size_t n = args.kind == JV_DICT ? args.dict->n : 0;
    struct jv_pair *pairs = arena_array(c->x.arena, n + 1, sizeof(*pairs));
    if (!pairs) {
        jx_nomem(&c->x);
        return;
    }
    if (n)
        memcpy(pairs, args.dict->pairs, n * sizeof(*pairs));
    qsort(pairs, n, sizeof(*pairs), compare_pairs);
    for (size_t i = 0; i < n; i++)
        jv_put(&c->x, sorted, pairs[i].key, pairs[i].value);
    jv_set(&c->x, body, "name", jv_str(call->name));
    jv_set(&c->x, body, "args", sorted);
    put_message(t, "<|message_model|>", call->name, "<|content_invoke_tool_json|>",
                dump_compact(c, body, &compact));
}

/* The contents of a message, one message of the format for each part. */
static void put_parts(struct render_call *c, struct render_text *t, const tinker_message *m,
                      const char *kind, struct render_out *out)
{
    bool model = role_is(m, "assistant");
    if (m->n_parts == 0 && !(m->parts || (model && m->n_tool_calls && message_is_empty(m))))
        put_message(t, kind, role_is(m, "tool") ? m->name : NULL, "<|content_text|>",
                    message_text(c, m));
    for (size_t i = 0; i < m->n_parts && !c->x.failed; i++) {
        const tinker_part *part = &m->parts[i];
        /* empty text beside calls is how clients write that there is none */
        if (part->kind == TINKER_PART_TEXT && m->n_tool_calls && chat_part_text(part).n == 0)
            continue;
        if (part->kind == TINKER_PART_IMAGE) {
            text_markup(t, kind);
            text_markup(t, "<|content_image|>");
            render_push_text(t, out, false);
            render_push_image(c, out, part);
            text_markup(t, "<|end_message|>");
            continue;
        }
        put_message(t, kind, role_is(m, "tool") ? m->name : NULL,
                    part->kind == TINKER_PART_THINKING ? "<|content_thinking|>"
                                                       : "<|content_text|>",
                    chat_part_text(part));
    }
}

static bool tml_render_message(struct render_call *c, const struct render_at *at,
                               struct render_out *out)
{
    const tinker_message *m = at->message;
    static const struct {
        const char *role, *kind;
    } kinds[] = { { "system", "<|message_system|>" },
                  { "user", "<|message_user|>" },
                  { "assistant", "<|message_model|>" },
                  { "tool", "<|message_tool|>" } };
    const char *kind = NULL;
    struct render_text t;
    text_init(&t, c);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (role_is(m, kinds[i].role))
            kind = kinds[i].kind;
    if (role_is(m, "tool_declare"))
        put_message(&t, "<|message_system|>", "tool_declare", "<|content_xml|>",
                    declare_tools(c, message_text(c, m)));
    else if (kind)
        put_parts(c, &t, m, kind, out);
    else
        jx_fail(&c->x, "role \"%.50s\" is not supported (system, user, assistant, tool)", m->role);
    for (size_t i = 0; i < m->n_tool_calls && !c->x.failed; i++)
        put_call(c, &t, &m->tool_calls[i]);
    /* a turn without content has no end either */
    if (role_is(m, "assistant") && !(m->parts && !m->n_parts && !m->n_tool_calls))
        text_markup(&t, "<|content_model_end_sampling|>");
    render_push_text(&t, out, false);
    return !c->x.failed;
}

/* The model writes its own header. */
static bool tml_no_suffix(struct render_call *c, const char *role, const struct render_at *at,
                          struct render_ids *out)
{
    (void)c, (void)role, (void)at;
    *out = (struct render_ids){ NULL, 0 };
    return true;
}

/* ---- responses ---- */

static int32_t find_control(const struct render_call *c, const char *token)
{
    return tinker_tokenizer_id(c->r->tokenizer, token, strlen(token));
}

/* {"name":..., "args":{...}} and nothing else; the header may name the same tool. */
static void read_call(struct render_call *c, struct render_parse *p, struct jv_str author,
                      struct jv_str body)
{
    const char *why = NULL, *wrong = NULL;
    struct jv v = jv_loads(&c->x, body.s, body.n, &why);
    struct jv name = jv_get(v, "name"), args = jv_get(v, "args");
    if (why)
        wrong = arena_printf(c->x.arena, "invalid JSON: %s", why);
    else if (v.kind != JV_DICT || name.kind != JV_STRING || args.kind != JV_DICT)
        wrong = "a tool call must have a name and an object of args";
    else if (v.dict->n != 2)
        wrong = "unsupported tool-call field";
    else if (author.n && (author.n != name.str.n || memcmp(author.s, name.str.s, author.n) != 0))
        wrong = "the header names another tool";
    if (wrong) {
        parse_add_unparsed(c, p, body, wrong);
        return;
    }
    char *id =
        arena_printf(c->x.arena, "functions.%.*s:%zu", (int)name.str.n, name.str.s, p->n_calls);
    if (id)
        parse_add_call(c, p, id, name.str, render_dumps_utf8(c, args));
    else
        jx_nomem(&c->x);
}

/* tokens[0..n) without the stop token: messages one behind the other.  false: they are none. */
static bool read_messages(struct render_call *c, struct render_parse *p, size_t n)
{
    const int32_t model = find_control(c, "<|message_model|>"),
                  end = find_control(c, "<|end_message|>"),
                  text = find_control(c, "<|content_text|>"),
                  thinking = find_control(c, "<|content_thinking|>"),
                  call = find_control(c, "<|content_invoke_tool_json|>");
    for (size_t i = 0; i < n && !c->x.failed;) {
        if (p->tokens[i] != model)
            return false;
        size_t head = i + 1, body = head, last;
        while (body < n && p->tokens[body] != text && p->tokens[body] != thinking &&
               p->tokens[body] != call)
            body++;
        for (last = body; last < n && p->tokens[last] != end;)
            last++;
        if (last >= n)
            return false;
        struct jv_str content = parse_decode(c, p->tokens + body + 1, last - body - 1);
        if (p->tokens[body] == call)
            read_call(c, p, parse_decode(c, p->tokens + head, body - head), content);
        else
            parse_add_part(c, p,
                           p->tokens[body] == thinking ? TINKER_PART_THINKING : TINKER_PART_TEXT,
                           content);
        i = last + 1;
    }
    return n > 0;
}

static void tml_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    size_t n = 0;
    parse_stop(c, p);
    if (c->x.failed || (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    while (n < p->n_tokens && p->tokens[n] != c->r->stop[0])
        n++;
    struct jv_str whole = p->content;
    if (!read_messages(c, p, n)) {
        /* what was decoded as a whole is all that can be said */
        p->content = whole;
        p->as_list = false;
        p->n_parts = p->n_calls = p->n_unparsed = 0;
        p->termination = TINKER_TERMINATION_MALFORMED;
    } else if (p->n_parts == 1 && p->parts[0].kind == TINKER_PART_TEXT) {
        p->content = (struct jv_str){ p->parts[0].text, p->parts[0].n_text };
        p->as_list = false;
        p->n_parts = 0;
    } else if (p->n_parts == 0) {
        p->content = (struct jv_str){ "", 0 };
    }
}

/* Instructions, then the declaration. */
static void tml_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct jv list = jv_list_new(&c->x);
    struct buf b;
    buf_init(&b, c->x.arena->max);
    buf_puts(&b, system);
    if (*system)
        tools_add_message(c, out, "system", &b);
    for (size_t i = 0; i < tools.list->n && !c->x.failed; i++) {
        struct jv wrapped = jv_dict_new(&c->x);
        jv_set(&c->x, wrapped, "type", jv_str("function"));
        jv_set(&c->x, wrapped, "function", tools.list->items[i]);
        jv_push(&c->x, list, wrapped);
    }
    buf_reset(&b);
    jv_dump(&c->x, &b, list, &compact);
    tools_add_message(c, out, "tool_declare", &b);
}

const struct render_format render_tml = {
    .tokens = { "<|content_model_end_sampling|>", "<|message_model|>", "<|message_user|>",
                "<|content_text|>", "<|end_message|>", "<|content_invoke_tool_json|>" },
    .n_stop = 1,
    .render = tml_render_message,
    .suffix = tml_no_suffix,
    .prepare = insert_effort,
    .parse = tml_parse_response,
    .tools = tml_tools,
    .plain_content = true,
};
