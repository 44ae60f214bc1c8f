/* anthropic_request.c - the body of a Messages request: see anthropic.h.
 *
 * Messages and tools are rewritten in the form of chat completions, which the conversation parser
 * reads: tool_use becomes a tool call, tool_result a message of the role "tool". */
#include "server/api/anthropic.h"

#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "wire/check.h"

/* Texts of a string or of a list of text blocks, one after the other.  A list may hold only texts
 * here: what else a block may be has no meaning in a system prompt or a result. */
static void read_text_blocks(struct json_reader *r, struct buf *out, const char *between)
{
    struct json_str key, text, type = { 0 };
    if (json_peek(r) == JSON_STRING) {
        if (json_string(r, &text))
            buf_append(out, text.s, text.n);
        return;
    }
    json_begin_array(r);
    for (size_t i = 0; json_next_item(r); i++) {
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            if (json_str_is(key, "type"))
                json_string(r, &type);
            else if (json_str_is(key, "text") && json_string(r, &text)) {
                if (i)
                    /* Between two blocks, not before the first one. */
                    buf_puts(out, between);
                buf_append(out, text.s, text.n);
            } else if (!r->failed && !json_str_is(key, "text"))
                json_skip(r);
        }
        if (!r->failed && !json_str_is(type, "text"))
            json_fail(r, "blocks of type \"%.*s\" are not supported here", (int)type.n, type.s);
    }
}

/* The members of one content block that any kind may have. */
struct block {
    struct json_str type, text, thinking, id, name, input, tool_use_id, content;
    bool is_error;
};

static void read_block(struct json_reader *r, struct block *b)
{
    /* Raw ones are read when the type of the block is known. */
    struct json_str key;
    const struct {
        const char *name;
        struct json_str *out;
        bool raw;
    } members[] = {
        { "type", &b->type, false },         { "text", &b->text, false },
        { "thinking", &b->thinking, false }, { "id", &b->id, false },
        { "name", &b->name, false },         { "tool_use_id", &b->tool_use_id, false },
        { "input", &b->input, true },        { "content", &b->content, true },
    };
    *b = (struct block){ 0 };
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        size_t i = 0;
        while (i < ARRAY_LEN(members) && !json_str_is(key, members[i].name))
            i++;
        /* Unknown members (cache_control) are hints that change nothing. */
        if (i < ARRAY_LEN(members))
            members[i].raw ? json_raw(r, members[i].out) : json_string(r, members[i].out);
        else if (json_str_is(key, "is_error"))
            json_bool(r, &b->is_error);
        else
            json_skip(r);
    }
}

static void put_text_part(struct json_writer *w, const char *type, struct json_str text)
{
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, type);
    /* The text stands under the name of its type, as in the chat API. */
    json_put_key(w, type);
    json_put_string_n(w, text.s, text.n);
    json_put_end_object(w);
}

/* A result of a tool is a message of its own, before what else the user says. */
static void put_tool_result(struct openai *o, struct json_reader *r, struct json_writer *w,
                            const struct block *b)
{
    struct buf text;
    /* 64 MiB: a bound for one result; the request's own limit is usually lower. */
    buf_init(&text, (size_t)1 << 26);
    /* The chat API has no flag for it, and the model has to know. */
    if (b->is_error)
        buf_puts(&text, "Error: ");
    if (b->content.s) {
        struct json_reader part;
        json_reader_init(&part, b->content.s, b->content.n, &o->arena);
        read_text_blocks(&part, &text, "\n");
        if (part.failed)
            json_fail(r, "tool_result: %s", json_error(&part));
    }
    json_put_begin_object(w);
    json_put_key(w, "role");
    json_put_string(w, "tool");
    json_put_key(w, "tool_call_id");
    json_put_string_n(w, b->tool_use_id.s ? b->tool_use_id.s : "", b->tool_use_id.n);
    json_put_key(w, "content");
    json_put_string_n(w, text.data ? text.data : "", text.len);
    json_put_end_object(w);
    buf_clear(&text);
}

/* A list of blocks as one message, after those of tool results.  Anthropic mixes texts, calls and
 * results in one list, the chat API has a member or a message for each. */
static void put_blocks(struct openai *o, struct json_reader *r, struct json_writer *w,
                       struct json_str role, struct json_str raw)
{
    struct json_reader list;
    struct block b;
    struct buf content, calls;
    struct json_writer parts, tools;
    size_t n_parts = 0, n_calls = 0;
    buf_init(&content, (size_t)1 << 28);
    buf_init(&calls, (size_t)1 << 28);
    json_writer_init(&parts, &content);
    json_writer_init(&tools, &calls);
    json_put_begin_array(&parts);
    json_put_begin_array(&tools);
    json_reader_init(&list, raw.s, raw.n, &o->arena);
    json_begin_array(&list);
    while (json_next_item(&list)) {
        read_block(&list, &b);
        if (list.failed)
            break;
        if (json_str_is(b.type, "text") && b.text.s) {
            put_text_part(&parts, "text", b.text);
            n_parts++;
        } else if (json_str_is(b.type, "thinking") && b.thinking.s) {
            put_text_part(&parts, "thinking", b.thinking);
            n_parts++;
        } else if (json_str_is(b.type, "tool_result")) {
            put_tool_result(o, r, w, &b);
        } else if (json_str_is(b.type, "tool_use") && b.name.s) {
            n_calls++;
            json_put_begin_object(&tools);
            json_put_key(&tools, "id");
            json_put_string_n(&tools, b.id.s ? b.id.s : "", b.id.n);
            /* The model's own id, so that the result of the tool can name it. */
            json_put_key(&tools, "type");
            json_put_string(&tools, "function");
            json_put_key(&tools, "function");
            json_put_begin_object(&tools);
            json_put_key(&tools, "name");
            json_put_string_n(&tools, b.name.s, b.name.n);
            json_put_key(&tools, "arguments");
            /* OpenAI passes arguments as a text, Anthropic as an object. */
            json_put_string_n(&tools, b.input.s ? b.input.s : "{}", b.input.s ? b.input.n : 2);
            json_put_end_object(&tools);
            json_put_end_object(&tools);
        } else if (!json_str_is(b.type, "redacted_thinking")) {
            /* redacted_thinking is encrypted for Anthropic's own models and can only be left
             * out. */
            json_fail(r, "messages: blocks of type \"%.*s\" are not supported", (int)b.type.n,
                      b.type.s ? b.type.s : "");
            break;
        }
    }
    json_put_end_array(&parts);
    json_put_end_array(&tools);
    if (list.failed)
        json_fail(r, "messages: %s", json_error(&list));
    /* A message of results alone leaves no message of its own. */
    if (!r->failed && (n_parts || n_calls)) {
        json_put_begin_object(w);
        json_put_key(w, "role");
        json_put_string_n(w, role.s, role.n);
        json_put_key(w, "content");
        if (n_parts)
            json_put_raw(w, content.data, content.len);
        else
            json_put_string(w, "");
        if (n_calls) {
            json_put_key(w, "tool_calls");
            json_put_raw(w, calls.data, calls.len);
        }
        json_put_end_object(w);
    }
    buf_clear(&content);
    buf_clear(&calls);
}

/* One message.  A last one of the assistant begins the answer: its text is the prefill. */
static void put_message(struct openai *o, struct json_reader *r, struct json_writer *w,
                        struct json_str role, struct json_str content, bool last)
{
    if (!json_str_is(role, "user") && !json_str_is(role, "assistant")) {
        json_fail(r, "messages: role must be \"user\" or \"assistant\"");
        return;
    }
    struct json_reader part;
    json_reader_init(&part, content.s, content.n, &o->arena);
    /* The renderer begins the assistant's message with it, and sampling goes on behind it. */
    if (last && json_str_is(role, "assistant")) {
        struct buf text;
        buf_init(&text, (size_t)1 << 26);
        read_text_blocks(&part, &text, "");
        o->prefill = arena_strndup(&o->arena, text.data ? text.data : "", text.len);
        if (part.failed || !o->prefill)
            json_fail(r, "messages: the last one, of the assistant, must be text");
        buf_clear(&text);
    } else if (json_peek(&part) == JSON_STRING) {
        /* The raw text already is a JSON string. */
        json_put_begin_object(w);
        json_put_key(w, "role");
        json_put_string_n(w, role.s, role.n);
        json_put_key(w, "content");
        json_put_raw(w, content.s, content.n);
        json_put_end_object(w);
    } else {
        put_blocks(o, r, w, role, content);
    }
}

/* system and messages as those of a chat completion, in o->messages. */
static void rewrite_messages(struct openai *o, struct json_reader *r, struct json_str system,
                             struct json_str messages)
{
    struct buf out;
    struct json_writer w;
    struct json_reader list;
    struct json_str key, role = { 0 }, content = { 0 };
    bool any = false;
    buf_init(&out, (size_t)1 << 29);
    json_writer_init(&w, &out);
    json_put_begin_array(&w);
    /* Not in `messages` as with OpenAI: it is a member beside them. */
    if (system.s) {
        struct buf text;
        struct json_reader part;
        buf_init(&text, (size_t)1 << 26);
        json_reader_init(&part, system.s, system.n, &o->arena);
        read_text_blocks(&part, &text, "\n");
        if (part.failed)
            json_fail(r, "system: %s", json_error(&part));
        json_put_begin_object(&w);
        json_put_key(&w, "role");
        json_put_string(&w, "system");
        json_put_key(&w, "content");
        json_put_string_n(&w, text.data ? text.data : "", text.len);
        json_put_end_object(&w);
        buf_clear(&text);
    }
    json_reader_init(&list, messages.s, messages.n, &o->arena);
    json_begin_array(&list);
    /* One behind, because the last message may be the beginning of the answer. */
    while (json_next_item(&list)) {
        if (any)
            put_message(o, r, &w, role, content, false);
        any = true;
        role = content = (struct json_str){ 0 };
        json_begin_object(&list);
        while (json_next_key(&list, &key))
            if (json_str_is(key, "role"))
                json_string(&list, &role);
            else if (json_str_is(key, "content"))
                json_raw(&list, &content);
            else
                json_skip(&list);
        if (!list.failed && (!role.s || !content.s))
            json_fail(&list, "a message needs role and content");
    }
    if (list.failed)
        json_fail(r, "messages: %s", json_error(&list));
    else if (!any)
        json_fail(r, "messages is empty");
    else
        put_message(o, r, &w, role, content, true);
    json_put_end_array(&w);
    /* Copied into the arena of the request: the prompt is made when the model is known. */
    o->messages.s = buf_ok(&out) ? arena_memdup(&o->arena, out.data, out.len) : NULL;
    o->messages.n = out.len;
    buf_clear(&out);
}

/* Tools in the form of chat completions, in o->tools. */
static void rewrite_tools(struct openai *o, struct json_reader *r, struct json_str raw)
{
    struct buf out;
    struct json_writer w;
    struct json_reader list;
    struct json_str key;
    size_t n = 0;
    buf_init(&out, (size_t)1 << 26);
    json_writer_init(&w, &out);
    json_put_begin_array(&w);
    json_reader_init(&list, raw.s, raw.n, &o->arena);
    json_begin_array(&list);
    for (; json_next_item(&list); n++) {
        struct json_str name = { 0 }, description = { 0 }, schema = { 0 }, type = { 0 };
        json_begin_object(&list);
        while (json_next_key(&list, &key))
            if (json_str_is(key, "name"))
                json_string(&list, &name);
            else if (json_str_is(key, "description"))
                json_string(&list, &description);
            else if (json_str_is(key, "type"))
                json_string(&list, &type);
            else if (json_str_is(key, "input_schema"))
                json_raw(&list, &schema);
            else
                json_skip(&list);
        /* Tools that Anthropic's servers run (web search, bash) cannot be run here. */
        if (!list.failed && type.s && !json_str_is(type, "custom"))
            json_fail(&list, "a tool of type \"%.*s\" is not supported", (int)type.n, type.s);
        else if (!list.failed && !name.s)
            json_fail(&list, "a tool needs a name");
        if (list.failed)
            break;
        json_put_begin_object(&w);
        json_put_key(&w, "type");
        json_put_string(&w, "function");
        json_put_key(&w, "function");
        json_put_begin_object(&w);
        json_put_key(&w, "name");
        json_put_string_n(&w, name.s, name.n);
        if (description.s) {
            json_put_key(&w, "description");
            json_put_string_n(&w, description.s, description.n);
        }
        /* Without a schema any object may come. */
        json_put_key(&w, "parameters");
        if (schema.s)
            json_put_raw(&w, schema.s, schema.n);
        else
            json_put_raw(&w, "{\"type\":\"object\"}", 17);
        json_put_end_object(&w);
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    if (list.failed)
        json_fail(r, "tools: %s", json_error(&list));
    /* An empty list means no tools, as with OpenAI. */
    if (n && buf_ok(&out)) {
        o->tools.s = arena_memdup(&o->arena, out.data, out.len);
        o->tools.n = out.len;
    }
    buf_clear(&out);
}

/* {"type": "auto"|"any"|"none"|"tool", "name"}.  "auto" leaves it to the model. */
static void read_choice(struct openai *o, struct json_reader *r)
{
    struct json_str key, type = { 0 };
    json_begin_object(r);
    while (json_next_key(r, &key))
        if (json_str_is(key, "type"))
            json_string(r, &type);
        else if (json_str_is(key, "name"))
            json_cstring(r, (char **)&o->forced_tool);
        else
            json_skip(r);
    o->no_tools = json_str_is(type, "none");
    /* "tool" names one, which forced_tool has. */
    o->must_call = json_str_is(type, "any") || json_str_is(type, "tool");
    if (!r->failed && !o->no_tools && !o->must_call && !json_str_is(type, "auto"))
        json_fail(r, "tool_choice: type must be \"auto\", \"any\", \"none\" or \"tool\"");
}

/* The member `format` of output_config, or `type` of thinking. */
static void read_output_config(struct openai *o, struct json_reader *r)
{
    struct json_str key;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        /* Other members of output_config are about the effort of the model. */
        if (!json_str_is(key, "format") || json_peek(r) == JSON_NULL) {
            json_skip(r);
            continue;
        }
        json_begin_object(r);
        while (json_next_key(r, &key))
            if (json_str_is(key, "schema"))
                json_raw(r, &o->schema);
            else
                json_skip(r);
    }
}

static void read_stops(struct openai *o, struct json_reader *r)
{
    char *text = NULL;
    json_begin_array(r);
    while (json_next_item(r) && json_cstring(r, &text)) {
        if (!*text)
            json_fail(r, "stop_sequences: an empty string");
        else if (o->n_stop == OPENAI_STOPS)
            json_fail(r, "stop_sequences: more than %d", OPENAI_STOPS);
        else
            o->stop[o->n_stop++] = text;
    }
    o->n_own_stop = o->n_stop;
}

tinker_status anthropic_read(struct openai *o, const char *body, size_t n, bool count,
                             tinker_error *err)
{
    struct json_reader r;
    struct json_str key, system = { 0 }, messages = { 0 }, tools = { 0 }, type = { 0 };
    /* This API always gives one message. */
    o->n = 1;
    o->params = (tinker_sampling_params)TINKER_SAMPLING_PARAMS_INIT;
    o->options = (tinker_sample_options)TINKER_SAMPLE_OPTIONS_INIT;
    /* Without `thinking` a model must not think, even if its template would let it. */
    o->no_thinking = true;
    json_reader_init(&r, body, n, &o->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        /* null counts as absent, for every member. */
        if (json_peek(&r) == JSON_NULL)
            json_null(&r);
        else if (json_str_is(key, "model"))
            json_cstring(&r, (char **)&o->model);
        else if (json_str_is(key, "max_tokens"))
            /* 0 where it is missing, which is refused below: this API requires it. */
            json_int64(&r, &o->params.max_tokens);
        else if (json_str_is(key, "messages"))
            json_raw(&r, &messages);
        else if (json_str_is(key, "system"))
            json_raw(&r, &system);
        else if (json_str_is(key, "stop_sequences"))
            read_stops(o, &r);
        else if (json_str_is(key, "stream"))
            json_bool(&r, &o->stream);
        else if (json_str_is(key, "temperature"))
            json_double(&r, &o->params.temperature);
        else if (json_str_is(key, "top_p"))
            json_double(&r, &o->params.top_p);
        else if (json_str_is(key, "top_k"))
            json_int64(&r, &o->params.top_k);
        else if (json_str_is(key, "tools"))
            json_raw(&r, &tools);
        else if (json_str_is(key, "tool_choice"))
            read_choice(o, &r);
        else if (json_str_is(key, "output_config"))
            read_output_config(o, &r);
        else if (json_str_is(key, "thinking")) {
            json_begin_object(&r);
            while (json_next_key(&r, &key))
                if (json_str_is(key, "type"))
                    json_string(&r, &type);
                else
                    json_skip(&r);
            o->no_thinking = json_str_is(type, "disabled");
        } else
            json_skip(&r);
    }
    if (!r.failed && messages.s)
        rewrite_messages(o, &r, system, messages);
    if (!r.failed && tools.s && !o->no_tools)
        rewrite_tools(o, &r, tools);
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "%s", json_error(&r));
    if (!o->model || !messages.s)
        return err_set(err, TINKER_EINVAL, "%s: field required", o->model ? "messages" : "model");
    /* Counting tokens needs no limit. */
    if (!count && o->params.max_tokens < 1)
        return err_set(err, TINKER_EINVAL, "max_tokens: must be at least 1");
    if (o->must_call && !o->tools.s)
        return err_set(err, TINKER_EINVAL, "tool_choice asks for a call, but there are no tools");
    if (!o->messages.s)
        return err_nomem(err, "messages");
    /* A grammar begins with the first byte of the answer, so no thinking may come before it. */
    o->no_thinking = o->no_thinking || o->must_call || o->schema.s;
    return wire_check_sampling_params(&o->params, err);
}
