/* render_glm.c - GLM 5.3.
 *
 * No message has an end of its own: a turn ends with the role token of what comes next, and the
 * model has to write it.  So an assistant message owns that token, which is trained with it, and
 * the next message goes without a header.  Every answer begins with a think block, which the
 * prompt opens.  Results of tools come in the order of their calls where ids tell it. */
#include "base/array.h"
#include "chat/render_parse.h"

#include <string.h>
#include "base/utf8.h"
#include "chat/render_order.h"

#define USER        "<|user|>"
#define OBSERVATION "<|observation|>"
#define KEY_OPEN    "<arg_key>"
#define KEY_CLOSE   "</arg_key>"
#define VALUE_OPEN  "<arg_value>"
#define VALUE_CLOSE "</arg_value>"

/* A conversation with a tool (line breaks added, none are in the text):
 *
 *     [gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.<|user|>Time?
 *     <|assistant|><think>The clock.</think>
 *     <tool_call>clock<arg_key>zone</arg_key><arg_value>UTC</arg_value></tool_call>
 *     <|observation|><tool_response>12:00</tool_response>
 *     <|assistant|><think>...</think>Noon.<|user|>
 *
 * The <|observation|> and the last <|user|> belong to the answers before them. */
enum { STOP_EOS = 2 }; /* which of the stop tokens is <|endoftext|> */

/* The opening is fixed text, and its effort is chosen by the name of the renderer. */
static struct render_ids glm_encode_opening(struct render_call *c)
{
    const char *effort = c->r->flags & RENDER_LOW    ? "Low"
                         : c->r->flags & RENDER_HIGH ? "High"
                                                     : "Max";
    struct render_text t;
    text_init(&t, c);
    text_markup(&t, "[gMASK]<sop><|system|>Reasoning Effort: ");
    text_markup(&t, effort);
    return text_encode(&t, false);
}

/* NULL: the format has no such role. */
static const char *find_role_token(const char *role)
{
    static const char *const tokens[][2] = { { "system", "<|system|>" },
                                             { "user", USER },
                                             { "assistant", "<|assistant|>" },
                                             { "tool", OBSERVATION } };
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++)
        if (strcmp(role, tokens[i][0]) == 0)
            return tokens[i][1];
    return NULL;
}

/* What the assistant message m ends with when `next`, or nothing if NULL, follows; NULL: next
 * starts with what the model would not have written. */
static const char *choose_turn_end(const tinker_message *m, const tinker_message *next)
{
    const char *end = m->n_tool_calls > 0 ? OBSERVATION : USER;
    if (!next)
        return end;
    const char *token = find_role_token(next->role);
    return token && strcmp(token, end) == 0 ? end : NULL;
}

/* ---- messages ---- */

static void refuse_parts(struct render_call *c, const tinker_message *m, bool thinking)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].kind != TINKER_PART_TEXT &&
            !(thinking && m->parts[i].kind == TINKER_PART_THINKING))
            jx_fail(&c->x, "part %zu of the %s message is of a kind that has no place there", i,
                    m->role);
}

/* Thinking and text of an assistant message: of its parts, or of a string with think tags. */
static void split_thinking(struct render_call *c, const tinker_message *m, struct jv_str *thought,
                           struct jv_str *text)
{
    static const struct jv_str open = { "<think>", 7 }, close = { "</think>", 8 };
    refuse_parts(c, m, true);
    *thought = message_join(c, m, TINKER_PART_THINKING);
    *text = message_join(c, m, TINKER_PART_TEXT);
    size_t end = m->parts ? SIZE_MAX : text_find(*text, close, 0);
    if (end == SIZE_MAX)
        return;
    *thought = (struct jv_str){ text->s, end };
    size_t begin = text_rfind(*thought, open);
    if (begin != SIZE_MAX)
        *thought = (struct jv_str){ text->s + begin + open.n, end - begin - open.n };
    size_t rest = text_rfind(*text, close) + close.n;
    *text = (struct jv_str){ text->s + rest, text->n - rest };
}

static void glm_put_call(struct render_text *t, const tinker_tool_call *call)
{
    struct jv args = call_arguments(t->c, call);
    text_markup(t, "<tool_call>");
    text_content(t, chat_text(call->name, 0));
    for (size_t i = 0; args.kind == JV_DICT && i < args.dict->n; i++) {
        struct jv v = args.dict->pairs[i].value;
        text_markup(t, KEY_OPEN);
        text_content(t, args.dict->pairs[i].key.str);
        text_markup(t, KEY_CLOSE VALUE_OPEN);
        text_content(t, v.kind == JV_STRING ? v.str : render_dumps_utf8(t->c, v));
        text_markup(t, VALUE_CLOSE);
    }
    text_markup(t, "</tool_call>");
}

static struct render_ids glm_encode_header(struct render_call *c)
{
    return render_join(c, render_encode(c, "<|assistant|>"), render_encode(c, "<think>"));
}

/* In a finished example the role token that ends the turn is the stop overlap of the last message;
 * in between it is part of the output. Either way it is trained with the answer. */
static bool glm_render_assistant(struct render_call *c, const struct render_at *at,
                                 struct render_out *out)
{
    const tinker_message *m = at->message;
    bool keep = c->r->flags & RENDER_KEEP || at->index > at->last_user;
    struct jv_str thought, text;
    struct render_text t;
    text_init(&t, c);
    split_thinking(c, m, &thought, &text);
    if (keep)
        text_content(&t, thought);
    text_markup(&t, "</think>");
    text_content(&t, text_trim(text, NULL, true, true));
    for (size_t i = 0; i < m->n_tool_calls && !c->x.failed; i++)
        glm_put_call(&t, &m->tool_calls[i]);
    const char *end = choose_turn_end(m, at->next);
    struct render_ids ids = text_encode(&t, false), stop = render_encode(c, end ? end : "");
    render_set_header(out, glm_encode_header(c));
    render_push_ids(c, out, at->is_last ? ids : render_join(c, ids, stop));
    out->overlap = stop;
    out->has_overlap = at->is_last;
    return !c->x.failed;
}

static bool glm_render_message(struct render_call *c, const struct render_at *at,
                               struct render_out *out)
{
    const tinker_message *m = at->message;
    if (role_is(m, "assistant"))
        return glm_render_assistant(c, at, out);
    const char *token = find_role_token(m->role);
    bool tool = role_is(m, "tool");
    /* The answer before this message ended with the message's own role token. */
    bool given = role_is(at->prev, "assistant") && choose_turn_end(at->prev, m);
    if (!token)
        return jx_fail(&c->x, "role %s is not supported", m->role);
    struct render_text t;
    text_init(&t, c);
    refuse_parts(c, m, false);
    if (!given && !(tool && role_is(at->prev, "tool")))
        render_set_header(out, render_encode(c, token));
    text_markup(&t, tool ? "<tool_response>" : "");
    text_content(&t, message_join(c, m, TINKER_PART_TEXT));
    text_markup(&t, tool ? "</tool_response>" : "");
    render_push_text(&t, out, false);
    return !c->x.failed;
}

static bool glm_encode_suffix(struct render_call *c, const char *role, const struct render_at *at,
                              struct render_ids *out)
{
    const char *token = find_role_token(role);
    (void)at;
    if (!token)
        return jx_fail(&c->x, "role %s is not supported", role);
    *out = strcmp(role, "assistant") == 0 ? glm_encode_header(c) : render_encode(c, token);
    return !c->x.failed;
}

/* ---- order of results ---- */

/* Whether every result has an id of its own, which is that of a call. */
static bool results_match_calls(struct render_call *c, const struct call_order *o,
                                const tinker_message *results, size_t n)
{
    bool *seen = c->x.failed ? NULL : arena_array(c->x.arena, o->n + 1, sizeof(*seen));
    if (!seen)
        return jx_nomem(&c->x);
    memset(seen, 0, (o->n + 1) * sizeof(*seen));
    for (size_t i = 0; i < n; i++) {
        size_t number = order_number(o, results[i].tool_call_id);
        if (number == SIZE_MAX || seen[number])
            return false;
        seen[number] = true;
    }
    return true;
}

/* Sort each run of results by the order of the calls that they answer, if ids make that certain:
 * every call and every result has an id of its own and they match. Otherwise the caller's order is
 * the best there is. */
static void glm_sort_results(struct render_call *c, const tinker_message **messages, size_t *n)
{
    struct call_order order;
    tinker_message *copy = order_copy(c, *messages, *n);
    order_init(&order);
    for (size_t i = 0, end; copy && i < *n && !c->x.failed; i = end + 1) {
        for (end = i; end < *n && role_is(&copy[end], "tool"); end++)
            ;
        if (end > i && i > 0 && role_is(&copy[i - 1], "assistant") &&
            order_take(c, &order, &copy[i - 1]) &&
            results_match_calls(c, &order, copy + i, end - i))
            order_sort(c, &order, copy + i, end - i);
    }
    order_clear(&order);
    if (copy)
        *messages = copy;
}

/* ---- responses ---- */

struct pair {
    size_t begin, end; /* of all of it */
    struct jv_str key, value;
};

/* The next key with a value at or after `at`; false: there is none. As with the reference's regular
 * expression, a key may itself contain "</arg_key>" that no value follows. */
static bool find_pair(struct jv_str s, size_t at, struct pair *out)
{
    size_t begin = text_find(s, (struct jv_str){ KEY_OPEN, strlen(KEY_OPEN) }, at);
    if (begin == SIZE_MAX)
        return false;
    size_t key = begin + strlen(KEY_OPEN), stop = key;
    while ((stop = text_find(s, (struct jv_str){ KEY_CLOSE, strlen(KEY_CLOSE) }, stop)) !=
           SIZE_MAX) {
        struct jv_str rest = text_trim(parse_from(s, stop + strlen(KEY_CLOSE)), NULL, true, false);
        if (!text_starts(rest, VALUE_OPEN)) {
            stop += strlen(KEY_CLOSE);
            continue;
        }
        size_t value = (size_t)(rest.s - s.s) + strlen(VALUE_OPEN);
        size_t end = text_find(s, (struct jv_str){ VALUE_CLOSE, strlen(VALUE_CLOSE) }, value);
        if (end == SIZE_MAX)
            return false;
        *out = (struct pair){ begin,
                              end + strlen(VALUE_CLOSE),
                              { s.s + key, stop - key },
                              { s.s + value, end - value } };
        return true;
    }
    return false;
}

/* <tool_call>NAME KEY VALUE ...</tool_call>; NULL when it was added, else the reason. */
static const char *read_glm_call(struct render_call *c, struct render_parse *p, struct jv_str raw)
{
    static const char malformed[] = "Malformed GLM tool call";
    if (raw.n < 11 + 12 || !text_ends(raw, "</tool_call>")) /* what follows a NUL is cut */
        return malformed;
    struct jv_str s = text_trim((struct jv_str){ raw.s + 11, raw.n - 11 - 12 }, NULL, true, true);
    size_t n = 0, pos = 0;
    uint32_t cp;
    /* A name is letters, digits, underscores, hyphens and full stops. */
    for (int len; n < s.n && (len = utf8_decode(s.s + n, s.n - n, &cp)) > 0; n += (size_t)len)
        if (!parse_is_word(cp) && cp != '-' && cp != '.')
            break;
    if (n == 0)
        return malformed;
    struct jv_str name = { s.s, n }, body = text_trim(parse_from(s, n), NULL, true, true);
    struct jv args = jv_dict_new(&c->x);
    for (struct pair pair; !c->x.failed && find_pair(body, pos, &pair); pos = pair.end) {
        struct jv_str key = text_trim(pair.key, NULL, true, true);
        if (!parse_is_blank((struct jv_str){ body.s + pos, pair.begin - pos }))
            return "Unexpected content between tool call arguments";
        if (key.n == 0)
            return "Empty tool call argument key";
        jv_put(&c->x, args, jv_strn(key.s, key.n), parse_argument(c, pair.value));
    }
    if (!parse_is_blank(parse_from(body, pos)))
        return "Unexpected trailing content inside tool call";
    parse_add_call(c, p, NULL, name, render_dumps(c, args));
    return NULL;
}

/* parse_blocks() takes the inside of <tool_call> for JSON and records each as unparsed; these are
 * read again in GLM's own syntax. One of the stop tokens is the end of the text, which is told
 * apart in `termination`. */
static void glm_parse_response(struct render_call *c, struct render_parse *p, bool streaming)
{
    size_t kept = 0;
    if (!streaming)
        parse_restore(c, p, (struct render_ids){ &c->r->think_open, 1 }, c->r->think_close);
    parse_stop(c, p);
    if (c->x.failed || (p->termination == TINKER_TERMINATION_MALFORMED && !streaming))
        return;
    for (size_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] == c->r->stop[STOP_EOS])
            p->termination = TINKER_TERMINATION_EOS;
    parse_blocks(c, p, p->content, true);
    for (size_t i = 0; i < p->n_unparsed && !c->x.failed; i++) {
        tinker_unparsed_tool_call u = p->unparsed[i]; /* they are no JSON */
        u.error = read_glm_call(c, p, chat_text(u.raw_text, 0));
        if (u.error)
            p->unparsed[kept++] = u;
    }
    p->n_unparsed = kept;
}

const struct render_format render_glm = {
    .tokens = { USER, OBSERVATION, "<|endoftext|>", "<|system|>", "<|assistant|>" },
    .n_stop = 3,
    .opening = glm_encode_opening,
    .render = glm_render_message,
    .suffix = glm_encode_suffix,
    .prepare = glm_sort_results,
    .parse = glm_parse_response,
    .tools = glm_tools,
    .think_tags = true,
};
