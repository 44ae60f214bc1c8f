/* chat_message.c - messages from JSON and back to JSON.
 *
 * Accepts the cookbook's shape and the one of chat-completion APIs.  Whatever is wrong is
 * reported with its place: "messages[2].content[0]: ...".  Strings that C sees as names must
 * not hold NUL bytes; content may. */
#include "chat/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "json/json.h"

/* Bytes of a conversation with all its texts, and of one message as JSON. */
enum { MAX_CONVERSATION = 256 << 20 };

struct chat_box *chat_box_new(tinker_error *err)
{
    struct chat_box *box = calloc(1, sizeof(*box));
    if (!box) {
        err_nomem(err, "a conversation");
        return NULL;
    }
    arena_init(&box->arena, MAX_CONVERSATION);
    return box;
}

void tinker_conversation_free(tinker_conversation *c)
{
    struct chat_box *box = (struct chat_box *)c;
    if (!box)
        return;
    arena_clear(&box->arena);
    free(box);
}

/* A length of 0 beside a text means "up to the NUL", everywhere in the public header. So an empty
 * text is "" or NULL, and a text that begins with a NUL byte cannot be told from it. */
struct jv_str chat_text(const char *s, size_t n)
{
    return (struct jv_str){ s ? s : "", s && n == 0 ? strlen(s) : n };
}

struct jv_str chat_content(const tinker_message *m)
{
    return chat_text(m->content, m->n_content);
}

struct jv_str chat_part_text(const tinker_part *p)
{
    return chat_text(p->text, p->n_text);
}

/* What a C program may leave out by mistake and the formats then rely on. Messages read from JSON
 * have been checked with better places by read_message(). */
bool chat_check(struct jx *x, const tinker_message *messages, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const tinker_message *m = &messages[i];
        if (!m->role || !*m->role)
            return jx_fail(x, "messages[%zu] has no role", i);
        for (size_t k = 0; k < m->n_tool_calls; k++)
            if (!m->tool_calls[k].name)
                return jx_fail(x, "messages[%zu].tool_calls[%zu] has no name", i, k);
    }
    return true;
}

/* ---- reading ---- */

/* Where we are, for messages about errors. */
struct place {
    struct jx *x;
    char path[96];
};

static bool fail_at_place(struct place *at, const char *what)
{
    return jx_fail(at->x, "%s: %s", at->path, what);
}

/* Zeroed; NULL and failed when memory ran out. Never of size 0, so that NULL means failure. */
static void *alloc_array(struct jx *x, size_t n, size_t size)
{
    void *p = x->failed ? NULL : arena_array(x->arena, n ? n : 1, size);
    if (!p)
        jx_nomem(x);
    return p;
}

/* An optional string without NUL; NULL when absent or null. */
static const char *read_name(struct place *at, struct jv dict, const char *key)
{
    struct jv v = jv_get(dict, key);
    if (v.kind == JV_UNDEFINED || v.kind == JV_NONE)
        return NULL;
    if (v.kind != JV_STRING || (v.str.n && memchr(v.str.s, 0, v.str.n))) {
        jx_fail(at->x, "%s.%s: expected a string", at->path, key);
        return NULL;
    }
    return jv_str_copy(at->x, v.str.s, v.str.n).str.s;
}

/* JSON text of a value that may already be text (arguments of a tool call). */
static const char *read_json_text(struct place *at, struct jv v)
{
    /* OpenAI sends arguments as text, Hugging Face datasets as an object: both end up as text. */
    struct jv_dumps how = JV_DUMPS_PYTHON;
    struct buf b;
    if (v.kind == JV_STRING)
        return v.str.n && memchr(v.str.s, 0, v.str.n)
                   ? (fail_at_place(at, "arguments hold a NUL byte"), "")
                   : jv_str_copy(at->x, v.str.s, v.str.n).str.s;
    if (v.kind == JV_UNDEFINED || v.kind == JV_NONE)
        return "{}";
    buf_init(&b, at->x->arena->max);
    jv_dump(at->x, &b, v, &how);
    return jv_from_buf(at->x, &b).str.s;
}

/* One content part. "input_text" and "output_text" are the names of the Responses API. */
static void read_part(struct place *at, struct jv v, tinker_part *out)
{
    struct jv type = jv_get(v, "type"), text = jv_undefined(NULL);
    if (v.kind == JV_STRING) {
        text = v;
    } else if (jv_is(type, "text") || jv_is(type, "input_text") || jv_is(type, "output_text")) {
        text = jv_get(v, "text");
    } else if (jv_is(type, "thinking")) {
        out->kind = TINKER_PART_THINKING;
        text = jv_get(v, "thinking");
    } else if (jv_is(type, "image") || jv_is(type, "image_url")) {
        out->kind = TINKER_PART_IMAGE;
        text = jv_get(v, jv_is(type, "image") ? "image" : "image_url");
        if (text.kind == JV_DICT)
            text = jv_get(text, "url");
        /* Our own extension: how many positions the image takes, for supervised examples. */
        struct jv tokens = jv_get(v, "expected_tokens");
        if (tokens.kind == JV_INT && tokens.i > 0)
            out->expected_tokens = tokens.i;
    } else {
        fail_at_place(at, "unknown type of content part (text, thinking and image are known)");
        return;
    }
    if (text.kind != JV_STRING) {
        fail_at_place(at, "content part has no text");
        return;
    }
    struct jv copy = jv_str_copy(at->x, text.str.s, text.str.n);
    out->text = copy.str.s;
    out->n_text = copy.str.n;
}

/* Content parts, after a thinking part made of `reasoning` when there is one. */
static void read_parts(struct place *at, struct jv content, struct jv reasoning, tinker_message *m)
{
    struct jv list = content;
    size_t extra = reasoning.kind == JV_STRING && reasoning.str.n > 0;
    if (content.kind == JV_STRING) {
        list = jv_list_new(at->x);
        if (content.str.n > 0)
            jv_push(at->x, list, content);
    }
    if (!jv_is_seq(list)) {
        fail_at_place(at, "content is neither a string nor a list");
        return;
    }
    tinker_part *parts = alloc_array(at->x, list.list->n + extra, sizeof(*parts));
    if (!parts)
        return;
    if (extra)
        parts[0] = (tinker_part){ .kind = TINKER_PART_THINKING,
                                  .text = reasoning.str.s,
                                  .n_text = reasoning.str.n };
    /* The place grows while we descend and is cut back after, so that errors name the item. */
    size_t root = strlen(at->path);
    for (size_t i = 0; i < list.list->n && !at->x->failed; i++) {
        snprintf(at->path + root, sizeof(at->path) - root, ".content[%zu]", i);
        read_part(at, list.list->items[i], &parts[extra + i]);
    }
    at->path[root] = 0;
    m->parts = parts;
    m->n_parts = list.list->n + extra;
}

static void read_tool_calls(struct place *at, struct jv list, tinker_message *m)
{
    if (list.kind == JV_UNDEFINED || list.kind == JV_NONE)
        return;
    if (!jv_is_seq(list)) {
        fail_at_place(at, "tool_calls is not a list");
        return;
    }
    tinker_tool_call *calls = alloc_array(at->x, list.list->n, sizeof(*calls));
    size_t root = strlen(at->path);
    for (size_t i = 0; calls && i < list.list->n && !at->x->failed; i++) {
        struct jv call = list.list->items[i], f = jv_get(call, "function");
        snprintf(at->path + root, sizeof(at->path) - root, ".tool_calls[%zu]", i);
        /* Wrapped as {"type": "function", "function": {...}}, or bare. */
        if (f.kind != JV_DICT)
            f = call;
        calls[i].id = read_name(at, call, "id");
        calls[i].name = read_name(at, f, "name");
        calls[i].arguments = read_json_text(at, jv_get(f, "arguments"));
        if (!calls[i].name)
            fail_at_place(at, "tool call has no name");
    }
    at->path[root] = 0;
    m->tool_calls = calls;
    m->n_tool_calls = list.list->n;
}

/* One message. Unknown keys are ignored: datasets carry all kinds of annotations. */
static void read_message(struct place *at, struct jv v, tinker_message *m)
{
    if (v.kind != JV_DICT) {
        fail_at_place(at, "message is not an object");
        return;
    }
    m->role = read_name(at, v, "role");
    if (!m->role || !*m->role) {
        fail_at_place(at, "message has no role");
        return;
    }
    /* Content is a string unless it is given as a list or has reasoning beside it. */
    struct jv content = jv_get(v, "content"), reasoning = jv_get(v, "reasoning_content");
    if (reasoning.kind != JV_STRING)
        reasoning = jv_get(v, "reasoning");
    if (content.kind == JV_UNDEFINED || content.kind == JV_NONE)
        content = jv_str("");
    if (content.kind != JV_STRING || (reasoning.kind == JV_STRING && reasoning.str.n > 0)) {
        read_parts(at, content, reasoning, m);
    } else {
        struct jv copy = jv_str_copy(at->x, content.str.s, content.str.n);
        m->content = copy.str.s;
        m->n_content = copy.str.n;
    }
    read_tool_calls(at, jv_get(v, "tool_calls"), m);
    /* Calls that an earlier response got wrong, as tinker_message_to_json() writes them. */
    struct jv list = jv_get(v, "unparsed_tool_calls");
    tinker_unparsed_tool_call *calls =
        jv_is_seq(list) ? alloc_array(at->x, list.list->n, sizeof(*calls)) : NULL;
    for (size_t i = 0; calls && i < list.list->n; i++) {
        const char *raw = read_name(at, list.list->items[i], "raw_text");
        const char *error = read_name(at, list.list->items[i], "error");
        calls[i] = (tinker_unparsed_tool_call){ raw ? raw : "", error ? error : "" };
        m->n_unparsed_tool_calls = i + 1;
    }
    m->unparsed_tool_calls = calls;
    m->tool_call_id = read_name(at, v, "tool_call_id");
    m->name = read_name(at, v, "name");
    struct jv trainable = jv_get(v, "trainable");
    if (trainable.kind != JV_UNDEFINED) {
        if (trainable.kind != JV_BOOL)
            fail_at_place(at, "trainable is neither true nor false");
        m->has_trainable = 1;
        m->trainable = jv_truth(trainable);
    }
    /* A mistake in the data; an empty turn in its place would be trained on. */
    if (jv_get(v, "content").kind == JV_UNDEFINED && !m->n_parts && !m->n_tool_calls &&
        !m->n_unparsed_tool_calls)
        fail_at_place(at, "message has no content");
}

tinker_message *chat_read_messages(struct jx *x, struct jv list, const char *place, size_t *n)
{
    if (!jv_is_seq(list)) {
        jx_fail(x, "%s: expected a list", place);
        return NULL;
    }
    tinker_message *messages = alloc_array(x, list.list->n, sizeof(*messages));
    for (size_t i = 0; messages && i < list.list->n && !x->failed; i++) {
        struct place at = { .x = x };
        snprintf(at.path, sizeof(at.path), "%s[%zu]", place, i);
        read_message(&at, list.list->items[i], &messages[i]);
    }
    *n = list.list->n;
    return x->failed ? NULL : messages;
}

/* The spec keeps every entry of the declaration, also those that have no field here. */
tinker_tool *chat_read_tools(struct jx *x, struct jv list, size_t *n)
{
    *n = 0;
    if (list.kind == JV_UNDEFINED || list.kind == JV_NONE)
        return NULL;
    if (!jv_is_seq(list)) {
        jx_fail(x, "tools: expected a list");
        return NULL;
    }
    tinker_tool *tools = alloc_array(x, list.list->n, sizeof(*tools));
    for (size_t i = 0; tools && i < list.list->n && !x->failed; i++) {
        struct place at = { .x = x };
        struct jv spec = list.list->items[i], f = jv_get(spec, "function"), v;
        snprintf(at.path, sizeof(at.path), "tools[%zu]", i);
        if (f.kind == JV_DICT)
            spec = f;
        tools[i].name = read_name(&at, spec, "name");
        tools[i].description = read_name(&at, spec, "description");
        v = jv_get(spec, "parameters");
        tools[i].parameters = v.kind == JV_UNDEFINED ? NULL : read_json_text(&at, v);
        tools[i].spec = spec.kind == JV_DICT ? read_json_text(&at, spec) : NULL;
        if (!tools[i].name)
            fail_at_place(&at, "tool has no name");
    }
    *n = list.list->n;
    return x->failed ? NULL : tools;
}

/* Everything that is read is copied into the arena of the conversation; the intermediate values
 * live there, too, which is the price of a single free. */
tinker_conversation *tinker_conversation_parse(const char *json, size_t n, tinker_error *err)
{
    struct chat_box *box = chat_box_new(err);
    struct jx x;
    if (!box)
        return NULL;
    jx_init(&x, &box->arena, UINT64_MAX, err);
    const char *why = NULL;
    struct jv v = jv_loads(&x, json, n ? n : strlen(json), &why);
    if (why)
        jx_fail(&x, "not JSON: %s", why);
    struct jv list = v.kind == JV_DICT ? jv_get(v, "messages") : v;
    if (!x.failed && v.kind == JV_DICT && list.kind == JV_UNDEFINED)
        jx_fail(&x, "object has no \"messages\"");
    if (!x.failed)
        box->pub.messages = chat_read_messages(&x, list, "messages", &box->pub.n_messages);
    if (!x.failed && v.kind == JV_DICT)
        box->pub.tools = chat_read_tools(&x, jv_get(v, "tools"), &box->pub.n_tools);
    if (!x.failed)
        return &box->pub;
    tinker_conversation_free(&box->pub);
    return NULL;
}

/* ---- writing ---- */

static void put_json_text(struct json_writer *w, const char *key, struct jv_str s)
{
    json_put_key(w, key);
    json_put_string_n(w, s.s, s.n);
}

/* A key for a text that exists; NULL leaves the key out. */
static void put_json_optional(struct json_writer *w, const char *key, const char *s)
{
    if (s)
        put_json_text(w, key, chat_text(s, 0));
}

tinker_status tinker_message_to_json(const tinker_message *m, tinker_text *out, tinker_error *err)
{
    static const char *const types[] = { "text", "thinking", "image" };
    struct buf b;
    struct json_writer w;
    buf_init(&b, MAX_CONVERSATION);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    put_json_optional(&w, "role", m->role);
    json_put_key(&w, "content");
    if (m->parts)
        json_put_begin_array(&w);
    else
        json_put_string_n(&w, chat_content(m).s, chat_content(m).n);
    for (size_t i = 0; m->parts && i < m->n_parts; i++) {
        const char *type = types[m->parts[i].kind];
        json_put_begin_object(&w);
        put_json_optional(&w, "type", type);
        if (m->parts[i].text) /* the key of the text is the type, as the cookbook has it */
            put_json_text(&w, type, chat_part_text(&m->parts[i]));
        json_put_end_object(&w);
    }
    if (m->parts)
        json_put_end_array(&w);
    if (m->n_tool_calls) {
        json_put_key(&w, "tool_calls");
        json_put_begin_array(&w);
        for (size_t i = 0; i < m->n_tool_calls; i++) {
            json_put_begin_object(&w);
            put_json_optional(&w, "type", "function");
            put_json_optional(&w, "id", m->tool_calls[i].id);
            json_put_key(&w, "function");
            json_put_begin_object(&w);
            put_json_optional(&w, "name", m->tool_calls[i].name);
            put_json_optional(&w, "arguments", m->tool_calls[i].arguments);
            json_put_end_object(&w);
            json_put_end_object(&w);
        }
        json_put_end_array(&w);
    }
    if (m->n_unparsed_tool_calls) {
        json_put_key(&w, "unparsed_tool_calls");
        json_put_begin_array(&w);
        for (size_t i = 0; i < m->n_unparsed_tool_calls; i++) {
            json_put_begin_object(&w);
            put_json_optional(&w, "raw_text", m->unparsed_tool_calls[i].raw_text);
            put_json_optional(&w, "error", m->unparsed_tool_calls[i].error);
            json_put_end_object(&w);
        }
        json_put_end_array(&w);
    }
    if (m->has_trainable) {
        json_put_key(&w, "trainable");
        json_put_bool(&w, m->trainable != 0);
    }
    put_json_optional(&w, "tool_call_id", m->tool_call_id);
    put_json_optional(&w, "name", m->name);
    json_put_end_object(&w);
    tinker_status status =
        buf_ok(&b) ? tinker_text_append(out, b.data, b.len, err) : err_nomem(err, "a message");
    buf_clear(&b);
    return status;
}

tinker_status tinker_message_text(const tinker_message *m, tinker_text *out, tinker_error *err)
{
    size_t before = out->n;
    if (!m->parts)
        return tinker_text_append(out, chat_content(m).s, chat_content(m).n, err);
    /* Appending nothing makes the text of a message without text parts a string, too. */
    tinker_status status = tinker_text_append(out, "", 0, err);
    for (size_t i = 0; status == TINKER_OK && i < m->n_parts; i++) {
        struct jv_str s = chat_part_text(&m->parts[i]);
        if (m->parts[i].kind == TINKER_PART_TEXT)
            status = tinker_text_append(out, s.s, s.n, err);
    }
    if (status != TINKER_OK && out->s) {
        out->n = before; /* a failed call leaves what was there before */
        out->s[before] = 0;
    }
    return status;
}
