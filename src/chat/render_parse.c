/* render_parse.c - blocks, tool calls and stop tokens in sampled text.
 *
 * Nothing here fails on what a model wrote, except that several stop tokens mean the caller
 * sampled with the wrong ones.  Unreadable tool calls are kept with the reason.  All scans are
 * linear in the text. */
#include "chat/render_parse.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/err.h"

/* Characters of an unfinished block that are kept for the user; bytes of one parsed response. */
enum { DETAIL_MAX = 16384, MAX_PARSED = 1 << 30 };

static const char unterminated[] = "unterminated tool block";

/* A parsed response and its memory. The public struct is first, so that its pointer is ours. */
struct parsed_box {
    tinker_parsed pub; /* first */
    struct arena arena;
    tinker_message message;
};

/* The array with room for one more item. It is copied within the arena: the old one stays behind,
 * which doubling keeps below the size of the new one. */
static void *grow_array(struct render_call *c, void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return items;
    size_t wanted = *cap ? *cap * 2 : 4;
    void *bigger = c->x.failed ? NULL : arena_array(c->x.arena, wanted, size);
    if (!bigger) {
        jx_nomem(&c->x);
        return NULL;
    }
    if (n)
        memcpy(bigger, items, n * size);
    *cap = wanted;
    return bigger;
}

/* NUL-terminated copy; what follows a NUL byte in the text is cut. */
const char *parse_cstr(struct render_call *c, struct jv_str s)
{
    return jv_str_copy(&c->x, s.s, s.n).str.s;
}

/* Text of tokens. Special tokens are decoded, too: the markers between parts are text by now. */
struct jv_str parse_decode(struct render_call *c, const int32_t *tokens, size_t n)
{
    tinker_text text = TINKER_TEXT_INIT;
    struct jv_str out = { "", 0 };
    if (tinker_tokenizer_decode(c->r->tokenizer, tokens, n, NULL, &text, c->x.err) != TINKER_OK)
        c->x.failed = true;
    else if (text.n > 0)
        out = jv_str_copy(&c->x, text.s, text.n).str;
    tinker_text_clear(&text);
    return out;
}

/* Where the prompt opened the think block, the sampled tokens lack "<think>". It is put back before
 * parsing, if the block is closed at all (`needed` is </think>) and the model did not write the
 * opening itself. Then a response reads the same as the rendered message. */
void parse_restore(struct render_call *c, struct render_parse *p, struct render_ids prefix,
                   int32_t needed)
{
    bool found = false;
    if (c->x.failed || prefix.n == 0)
        return;
    for (size_t i = 0; i < p->n_tokens; i++)
        found = found || p->tokens[i] == needed;
    if (!found || (p->n_tokens >= prefix.n &&
                   memcmp(p->tokens, prefix.ids, prefix.n * sizeof(*prefix.ids)) == 0))
        return;
    struct render_ids all = render_join(c, prefix, (struct render_ids){ p->tokens, p->n_tokens });
    p->tokens = all.ids;
    p->n_tokens = all.n;
}

/* Everything before the stop token is content. No stop token: the response was cut off (malformed).
 * Several: the caller sampled with other stop sequences, so that the text goes beyond one message.
 */
void parse_stop(struct render_call *c, struct render_parse *p)
{
    size_t count = 0, at = p->n_tokens;
    for (size_t i = 0; i < p->n_tokens; i++) {
        bool stop = false;
        for (size_t k = 0; k < c->r->n_stop; k++)
            stop = stop || p->tokens[i] == c->r->stop[k];
        if (stop && count++ == 0)
            at = i;
    }
    if (count > 1) {
        jx_fail(&c->x,
                "the response holds %zu stop tokens; was it sampled with this renderer's "
                "stop sequences?",
                count);
        return;
    }
    p->content = parse_decode(c, p->tokens, at);
    p->termination = count ? TINKER_TERMINATION_STOP_SEQUENCE : TINKER_TERMINATION_MALFORMED;
}

/* Adding a part makes the content a list, even if it stays the only part. */
void parse_add_part(struct render_call *c, struct render_parse *p, tinker_part_kind kind,
                    struct jv_str text)
{
    tinker_part *parts = grow_array(c, p->parts, p->n_parts, &p->cap_parts, sizeof(*parts));
    p->as_list = true;
    if (!parts)
        return;
    p->parts = parts;
    parts[p->n_parts++] =
        (tinker_part){ .kind = kind, .text = parse_cstr(c, text), .n_text = text.n };
}

/* Texts are copied, because the caller's point into the decoded response or a scratch buffer; id is
 * kept as it is and must live in the arena. */
void parse_add_call(struct render_call *c, struct render_parse *p, const char *id,
                    struct jv_str name, struct jv_str arguments)
{
    tinker_tool_call *calls = grow_array(c, p->calls, p->n_calls, &p->cap_calls, sizeof(*calls));
    if (!calls)
        return;
    p->calls = calls;
    calls[p->n_calls++] = (tinker_tool_call){ id, parse_cstr(c, name), parse_cstr(c, arguments) };
}

/* raw is what the model wrote, for a program that asks it to try again; error must live in the
 * arena or be static. */
void parse_add_unparsed(struct render_call *c, struct render_parse *p, struct jv_str raw,
                        const char *error)
{
    tinker_unparsed_tool_call *calls =
        grow_array(c, p->unparsed, p->n_unparsed, &p->cap_unparsed, sizeof(*calls));
    if (!calls)
        return;
    p->unparsed = calls;
    calls[p->n_unparsed++] = (tinker_unparsed_tool_call){ parse_cstr(c, raw), error };
}

/* "Invalid JSON: why", in the arena. */
static const char *invalid_json(struct render_call *c, const char *why)
{
    char *text = c->x.failed ? NULL : arena_printf(c->x.arena, "Invalid JSON: %s", why);
    if (!text)
        jx_nomem(&c->x);
    return text ? text : "";
}

/* Arguments stay the text that the model wrote: what a later turn renders must be what was sampled.
 */
void parse_add_checked(struct render_call *c, struct render_parse *p, const char *id,
                       struct jv_str name, struct jv_str arguments, struct jv_str raw)
{
    const char *why = NULL;
    jv_loads(&c->x, arguments.s, arguments.n, &why);
    if (why)
        parse_add_unparsed(c, p, raw, invalid_json(c, why));
    else
        parse_add_call(c, p, id, name, arguments);
}

/* The call inside <tool_call>{"name": ..., "arguments": {...}}</tool_call>. The texts of errors are
 * those of the reference, because programs show them to the model. */
static void add_json_call(struct render_call *c, struct render_parse *p, struct jv_str body,
                          struct jv_str raw)
{
    const char *why = NULL;
    struct jv_str s = text_trim(body, NULL, true, true);
    struct jv v = jv_loads(&c->x, s.s, s.n, &why);
    struct jv name = jv_get(v, "name"), args = jv_get(v, "arguments"), id = jv_get(v, "id");
    if (why)
        parse_add_unparsed(c, p, raw, invalid_json(c, why));
    else if (v.kind != JV_DICT)
        parse_add_unparsed(c, p, raw, "Tool call is not a JSON object");
    else if (name.kind != JV_STRING)
        parse_add_unparsed(c, p, raw, "Missing or invalid 'name' field");
    else if (args.kind != JV_DICT)
        parse_add_unparsed(c, p, raw, "Missing or invalid 'arguments' field");
    else
        parse_add_call(c, p, id.kind == JV_STRING ? parse_cstr(c, id.str) : NULL, name.str,
                       render_dumps(c, args));
}

/* 3, true and [1] are JSON; "hello" without quotes is not, and stays text. */
struct jv parse_argument(struct render_call *c, struct jv_str s)
{
    struct jv v = jv_loads(&c->x, s.s, s.n, NULL);
    return v.kind == JV_UNDEFINED ? jv_strn(s.s, s.n) : v;
}

size_t parse_find(struct jv_str text, const char *what, size_t from)
{
    return text_find(text, (struct jv_str){ what, strlen(what) }, from);
}

struct jv_str parse_slice(struct jv_str text, size_t begin, size_t end)
{
    return (struct jv_str){ text.s + begin, end - begin };
}

struct jv_str parse_from(struct jv_str text, size_t begin)
{
    return (struct jv_str){ text.s + begin, text.n - begin };
}

bool parse_is_blank(struct jv_str text)
{
    return text_trim(text, NULL, true, true).n == 0;
}

/* Letters, numbers of any kind and the underscore: str.isalnum() of Python, and "_". */
bool parse_is_word(uint32_t cp)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    bool number = k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
    return cp == '_' || letter || number;
}

/* A marker that was found at or behind `from` before is still the next one, and one that was not
 * found will not be found later. So a scan for several markers is linear in all. */
size_t parse_next(struct parse_mark *m, struct jv_str text, size_t from)
{
    if (!m->known || m->at < from)
        m->at = text_find(text, (struct jv_str){ m->what, strlen(m->what) }, from);
    m->known = true;
    return m->at;
}

/* The first close after the open counts: blocks do not nest in any format. */
bool parse_between(struct jv_str text, const char *open, const char *close, size_t *at,
                   size_t *begin, struct jv_str *inner)
{
    size_t start = text_find(text, (struct jv_str){ open, strlen(open) }, *at);
    if (start == SIZE_MAX)
        return false;
    size_t from = start + strlen(open);
    size_t end = text_find(text, (struct jv_str){ close, strlen(close) }, from);
    if (end == SIZE_MAX)
        return false;
    *begin = start;
    *inner = (struct jv_str){ text.s + from, end - from };
    *at = end + strlen(close);
    return true;
}

/* Cut text into parts at think blocks and, if asked, at tool_call blocks, whichever comes first:
 *
 *     a<think>b</think>c<tool_call>{...}</tool_call>d
 *     -> text a, thinking b, text c, call, text d
 *
 * An unclosed block stays text. Each kind is searched again only after its last match was used, so
 * that the scan is linear in the text. */
void parse_blocks(struct render_call *c, struct render_parse *p, struct jv_str text, bool tools)
{
    bool think = text_find(text, (struct jv_str){ "<think>", 7 }, 0) != SIZE_MAX;
    tools = tools && text_find(text, (struct jv_str){ "<tool_call>", 11 }, 0) != SIZE_MAX;
    /* Content without blocks stays a string: most answers are. */
    if (!think && !tools) {
        p->content = text;
        return;
    }
    p->as_list = true;
    size_t pos = 0, think_end = 0, call_end = 0, think_at = 0, call_at = 0;
    struct jv_str thought = { "", 0 }, call = { "", 0 };
    for (bool first = true;; first = false) {
        if (think && (first || think_at < pos)) { /* else the match found before still holds */
            think_end = pos;
            think = parse_between(text, "<think>", "</think>", &think_end, &think_at, &thought);
        }
        if (tools && (first || call_at < pos)) {
            call_end = pos;
            tools = parse_between(text, "<tool_call>", "</tool_call>", &call_end, &call_at, &call);
        }
        /* The block that begins first; a closed block of the other kind inside it is its text. */
        bool is_think = think && (!tools || think_at < call_at);
        if (!think && !tools)
            break;
        size_t start = is_think ? think_at : call_at, end = is_think ? think_end : call_end;
        if (start > pos)
            parse_add_part(c, p, TINKER_PART_TEXT, (struct jv_str){ text.s + pos, start - pos });
        if (!is_think)
            add_json_call(c, p, call, (struct jv_str){ text.s + start, end - start });
        /* An empty block is no reasoning. */
        else if (thought.n > 0)
            parse_add_part(c, p, TINKER_PART_THINKING, thought);
        pos = end;
    }
    if (pos < text.n)
        parse_add_part(c, p, TINKER_PART_TEXT, (struct jv_str){ text.s + pos, text.n - pos });
}

/* Occurrences that do not overlap. */
static size_t count_occurrences(struct jv_str text, const char *what)
{
    size_t n = 0, len = strlen(what);
    for (size_t at = 0; (at = text_find(text, (struct jv_str){ what, len }, at)) != SIZE_MAX;
         at += len)
        n++;
    return n;
}

/* More openings than closings: the last opening is reported, with what follows it. The cut at
 * DETAIL_MAX counts characters and leaves no half character behind. */
bool parse_unterminated(struct render_call *c, struct render_parse *p, struct jv_str text,
                        const char *open, const char *close)
{
    if (count_occurrences(text, open) <= count_occurrences(text, close))
        return false;
    size_t at = text_rfind(text, (struct jv_str){ open, strlen(open) });
    size_t end = at;
    for (size_t chars = 0; end < text.n && chars < DETAIL_MAX; chars++) {
        end++;
        while (end < text.n && ((unsigned char)text.s[end] & 0xc0) == 0x80)
            end++;
    }
    /* Programs test for the beginning of this text, so it is a constant. */
    const char *error = c->x.failed
                            ? NULL
                            : arena_printf(c->x.arena, "%s: '%s' opened without a matching '%s'",
                                           unterminated, open, close);
    if (!error)
        return jx_nomem(&c->x);
    parse_add_unparsed(c, p, (struct jv_str){ text.s + at, end - at }, error);
    return true;
}

/* ---- public ---- */

/* Turn what was found into the public message. Parts that are empty and parts that do not exist
 * differ: a list without items is still a list. */
static tinker_parsed *finish_parsed(struct render_call *c, struct render_parse *p,
                                    struct parsed_box *box)
{
    if (c->x.failed) {
        if (c->x.err)
            err_prefix(c->x.err, "renderer %s", c->r->variant->name);
        tinker_parsed_free(&box->pub);
        return NULL;
    }
    tinker_message *m = &box->message;
    *m = (tinker_message){ .role = "assistant" };
    if (p->as_list) {
        /* Not NULL, so that the message still says "list". */
        static const tinker_part none;
        m->parts = p->parts ? p->parts : &none;
        m->n_parts = p->n_parts;
    } else {
        m->content = parse_cstr(c, p->content);
        m->n_content = p->content.n;
    }
    m->tool_calls = p->calls;
    m->n_tool_calls = p->n_calls;
    m->unparsed_tool_calls = p->unparsed;
    m->n_unparsed_tool_calls = p->n_unparsed;
    box->pub.message = m;
    box->pub.termination = p->termination;
    return &box->pub;
}

/* Steps are not limited here: all scans are linear, and tokens come from the caller's sampler. */
tinker_parsed *render_parse_tokens(const tinker_renderer *r, const int32_t *tokens, size_t n,
                                   bool streaming, tinker_error *err)
{
    struct parsed_box *box = calloc(1, sizeof(*box));
    if (!box) {
        err_nomem(err, "a parsed response");
        return NULL;
    }
    struct render_call c = { .r = r };
    struct render_parse p = { .tokens = tokens, .n_tokens = n };
    arena_init(&box->arena, MAX_PARSED);
    jx_init(&c.x, &box->arena, UINT64_MAX, err);
    r->format->parse(&c, &p, streaming);
    return finish_parsed(&c, &p, box);
}

tinker_parsed *tinker_renderer_parse(const tinker_renderer *r, const int32_t *tokens, size_t n,
                                     tinker_error *err)
{
    return render_parse_tokens(r, tokens, n, false, err);
}

void tinker_parsed_free(tinker_parsed *p)
{
    struct parsed_box *box = (struct parsed_box *)p;
    if (!box)
        return;
    arena_clear(&box->arena);
    free(box);
}

/* A cut-off response counts as structural even if it holds unreadable calls, too. */
tinker_parse_failure tinker_parsed_failure(const tinker_parsed *p)
{
    if (p->termination == TINKER_TERMINATION_MALFORMED)
        return TINKER_PARSE_STRUCTURAL;
    return p->message->n_unparsed_tool_calls ? TINKER_PARSE_CONTENT : TINKER_PARSE_OK;
}
