/* openai_grammar.c - response_format and tool_choice as a grammar: see openai.h.
 *
 * A forced call is written in the form that the model's chat format has for calls.  Only formats
 * whose calls are one JSON object between tags can be forced: the others would need a grammar of
 * their own. */
#include "server/api/openai.h"

#include <string.h>

#include "base/err.h"
#include "grammar/grammar.h"

/* The text around a call in the format of this renderer. */
static const struct call_form {
    const char *renderer; /* its name begins so */
    const char *before, *between, *after;
} forms[] = {
    { "qwen3_5", NULL, NULL, NULL },
    { "qwen3_8", NULL, NULL, NULL },
    { "qwen3", "<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>" },
};

static const struct call_form *find_form(const char *renderer)
{
    for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++)
        if (strncmp(renderer, forms[i].renderer, strlen(forms[i].renderer)) == 0)
            return forms[i].before ? &forms[i] : NULL;
    return NULL;
}

static bool is_empty_object(struct json_str raw)
{
    return raw.n >= 2 && raw.s[0] == '{' && 2 + strspn(raw.s + 1, " \t\r\n") == raw.n;
}

/* Members of one tool: wrapped in {"type": "function", "function": ...} or bare.  Arguments are always
 * an object, so that parameters that say nothing mean any object, not any value. */
static void read_tool(struct json_reader *r, struct grammar_call *call)
{
    struct json_str key, raw;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "function"))
            read_tool(r, call);
        else if (json_str_is(key, "name"))
            json_cstring(r, (char **)&call->name);
        else if (json_str_is(key, "parameters")) {
            if (json_peek(r) == JSON_NULL)
                json_null(r);
            else if (json_raw(r, &raw) && !is_empty_object(raw)) {
                call->schema = raw.s;
                call->n_schema = raw.n;
            }
        } else
            json_skip(r);
    }
}

static tinker_status make_call_grammar(struct openai *o, struct grammar **out, tinker_error *err)
{
    enum { TOOLS_MAX = 128 };
    struct grammar_call calls[TOOLS_MAX];
    struct json_reader r;
    size_t n = 0;
    tinker_renderer *renderer = openai_renderer(o, err);
    if (!renderer)
        return TINKER_EINVAL;
    const struct call_form *form = find_form(tinker_renderer_name(renderer));
    tinker_renderer_free(renderer);
    if (!form)
        return err_set(err, TINKER_EINVAL,
                       "tool_choice: a call cannot be forced in the chat format of this model; use "
                       "\"auto\"");
    json_reader_init(&r, o->tools.s, o->tools.n, &o->arena);
    json_begin_array(&r);
    while (json_next_item(&r)) {
        struct grammar_call call = { 0 };
        read_tool(&r, &call);
        if (n == TOOLS_MAX)
            return err_set(err, TINKER_EINVAL, "tools: more than %d", TOOLS_MAX);
        if (call.name && (!o->forced_tool || strcmp(call.name, o->forced_tool) == 0))
            calls[n++] = call;
    }
    if (r.failed)
        return err_set(err, TINKER_EINVAL, "tools: %s", json_error(&r));
    if (n == 0)
        return err_set(err, TINKER_EINVAL, "tool_choice: there is no tool \"%s\"",
                       o->forced_tool ? o->forced_tool : "");
    *out = grammar_from_calls(calls, n, form->before, form->between, form->after, err);
    return *out ? TINKER_OK : err->status;
}

tinker_status openai_grammar(struct openai *o, struct grammar **out, tinker_error *err)
{
    *out = NULL;
    if (o->must_call)
        return make_call_grammar(o, out, err);
    if (!o->schema.s)
        return TINKER_OK;
    *out = grammar_from_schema(o->schema.s, o->schema.n, err);
    return *out ? TINKER_OK : err->status;
}
