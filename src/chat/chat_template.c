/* chat_template.c - runs a model's own chat template over a conversation.
 *
 * A compiled template is immutable; each rendering has its own arena, so that any number
 * of threads may use one template.  Limits on steps, memory and depth come from the
 * options: a template is foreign code. */
#include "chat/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tinker/extra/template.h>
#include "base/err.h"
#include "base/os.h"
#include "jinja/jinja.h"

/* MAX_SOURCE: templates in the wild have at most 100 kB. MAX_TREE: a node is larger than the
 * characters it was made of. The defaults bound one rendering, see the options. */
enum {
    MAX_SOURCE = 4 << 20,
    MAX_TREE = 256 << 20,
    DEFAULT_MEMORY = 64 << 20,
    DEFAULT_STEPS = 10000000
};

/* The tree and all its names and constants are in the arena. */
struct tinker_template {
    struct arena arena;
    struct jinja_node *tree;
};

tinker_template *tinker_template_new(const char *source, size_t n, tinker_error *err)
{
    tinker_template *t = calloc(1, sizeof(*t));
    if (!t) {
        err_nomem(err, "a chat template");
        return NULL;
    }
    struct jx x;
    arena_init(&t->arena, MAX_TREE);
    /* Parsing costs steps, too: as many as the tree may have bytes is never the limit in practice.
     */
    jx_init(&x, &t->arena, MAX_TREE, err);
    if (n == 0)
        n = strlen(source);
    if (n > MAX_SOURCE)
        jx_fail(&x, "chat template is larger than %d bytes", MAX_SOURCE);
    else
        t->tree = jinja_parse(&x, source, n);
    if (!x.failed)
        return t;
    err_prefix(err, "chat template");
    tinker_template_free(t);
    return NULL;
}

void tinker_template_free(tinker_template *t)
{
    if (!t)
        return;
    arena_clear(&t->arena);
    free(t);
}

/* The template of a tokenizer_config.json. Only this one value is needed, but the file is JSON as a
 * whole: it is read into a scratch arena. */
static tinker_template *open_config(const char *path, tinker_error *err)
{
    char *data = NULL;
    size_t n = 0;
    if (os_read_file(path, MAX_TREE, &data, &n, err) != TINKER_OK)
        return NULL;
    struct arena arena;
    struct jx x;
    tinker_template *t = NULL;
    arena_init(&arena, MAX_TREE);
    jx_init(&x, &arena, UINT64_MAX, err);
    const char *why = NULL;
    struct jv v = jv_get(jv_loads(&x, data, n, &why), "chat_template");
    /* A model with several templates has a list of them: {"name": ..., "template": ...}. */
    for (size_t i = 0; jv_is_seq(v) && i < v.list->n; i++)
        if (jv_is(jv_get(v.list->items[i], "name"), "default"))
            v = jv_get(v.list->items[i], "template");
    if (why)
        err_set(err, TINKER_EINVAL, "%s: %s", path, why);
    else if (v.kind != JV_STRING)
        err_set(err, TINKER_EINVAL, "%s: no chat_template in it", path);
    else
        t = tinker_template_new(v.str.s, v.str.n, err);
    arena_clear(&arena);
    free(data);
    return t;
}

tinker_template *tinker_template_open(const char *model_dir, tinker_error *err)
{
    char path[4096];
    char *data = NULL;
    size_t n = 0;
    int len = snprintf(path, sizeof(path), "%s/chat_template.jinja", model_dir);
    if (len < 0 || (size_t)len >= sizeof(path)) {
        err_set(err, TINKER_EINVAL, "name of the model directory is too long");
        return NULL;
    }
    /* Newer model repositories have a file of its own, which wins, as in transformers. */
    if (os_read_file(path, MAX_SOURCE, &data, &n, NULL) == TINKER_OK) {
        tinker_template *t = tinker_template_new(data, n, err);
        free(data);
        return t;
    }
    len = snprintf(path, sizeof(path), "%s/tokenizer_config.json", model_dir);
    if (len < 0 || (size_t)len >= sizeof(path)) {
        err_set(err, TINKER_EINVAL, "name of the model directory is too long");
        return NULL;
    }
    return open_config(path, err);
}

/* ---- values for the template ---- */

/* Calls as templates expect them: OpenAI's shape, but with arguments as a mapping, because most
 * templates apply |tojson to them. What is not JSON stays text. */
static struct jv make_calls_value(struct jx *x, const tinker_message *m, bool as_text)
{
    struct jv list = jv_list_new(x);
    for (size_t i = 0; i < m->n_tool_calls && !x->failed; i++) {
        const tinker_tool_call *c = &m->tool_calls[i];
        struct jv call = jv_dict_new(x), f = jv_dict_new(x);
        struct jv args = jv_str(c->arguments ? c->arguments : "{}");
        if (!as_text) {
            struct jv parsed = jv_loads(x, args.str.s, args.str.n, NULL);
            args = parsed.kind == JV_UNDEFINED ? args : parsed;
        }
        jv_set(x, call, "type", jv_str("function"));
        if (c->id)
            jv_set(x, call, "id", jv_str(c->id));
        jv_set(x, f, "name", jv_str(c->name));
        jv_set(x, f, "arguments", args);
        jv_set(x, call, "function", f);
        jv_push(x, list, call);
    }
    return list;
}

/* Text and thinking parts joined by kind. */
static struct jv join_parts_of_kind(struct jx *x, const tinker_message *m, tinker_part_kind kind)
{
    struct buf b;
    buf_init(&b, x->arena->max);
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].kind == kind)
            buf_append(&b, chat_part_text(&m->parts[i]).s, chat_part_text(&m->parts[i]).n);
    return jv_from_buf(x, &b);
}

/* A list of dicts, for templates that look for images. Thinking goes to reasoning_content. */
static struct jv make_parts_value(struct jx *x, const tinker_message *m)
{
    struct jv list = jv_list_new(x);
    for (size_t i = 0; i < m->n_parts && !x->failed; i++) {
        const tinker_part *p = &m->parts[i];
        struct jv d = jv_dict_new(x), text = jv_strn(chat_part_text(p).s, chat_part_text(p).n);
        if (p->kind == TINKER_PART_THINKING)
            continue;
        jv_set(x, d, "type", jv_str(p->kind == TINKER_PART_TEXT ? "text" : "image"));
        jv_set(x, d, p->kind == TINKER_PART_TEXT ? "text" : "image", text);
        jv_push(x, list, d);
    }
    return list;
}

/* The shape of transformers: content is a string unless there are images; reasoning is a key of its
 * own, which templates print or leave out as they see fit. */
struct jv chat_message_value(struct jx *x, const tinker_message *m, bool arguments_as_text)
{
    struct jv d = jv_dict_new(x);
    bool images = false, thinking = false;
    for (size_t i = 0; m->parts && i < m->n_parts; i++) {
        images = images || m->parts[i].kind == TINKER_PART_IMAGE;
        thinking = thinking || m->parts[i].kind == TINKER_PART_THINKING;
    }
    jv_set(x, d, "role", jv_str(m->role));
    jv_set(x, d, "content",
           !m->parts ? jv_strn(chat_content(m).s, chat_content(m).n)
           : images  ? make_parts_value(x, m)
                     : join_parts_of_kind(x, m, TINKER_PART_TEXT));
    if (thinking)
        jv_set(x, d, "reasoning_content", join_parts_of_kind(x, m, TINKER_PART_THINKING));
    if (m->n_tool_calls)
        jv_set(x, d, "tool_calls", make_calls_value(x, m, arguments_as_text));
    if (m->tool_call_id)
        jv_set(x, d, "tool_call_id", jv_str(m->tool_call_id));
    if (m->name)
        jv_set(x, d, "name", jv_str(m->name));
    return d;
}

/* The bare declaration: {"name": ..., "description": ..., "parameters": schema}. */
struct jv chat_tool_value(struct jx *x, const tinker_tool *tool)
{
    const char *why = NULL;
    if (tool->spec) {
        struct jv v = jv_loads(x, tool->spec, strlen(tool->spec), &why);
        if (v.kind != JV_DICT)
            jx_fail(x, "tool: spec is not a JSON object");
        return v;
    }
    struct jv d = jv_dict_new(x);
    jv_set(x, d, "name", jv_str(tool->name ? tool->name : ""));
    jv_set(x, d, "description", jv_str(tool->description ? tool->description : ""));
    const char *schema = tool->parameters ? tool->parameters : "{}";
    struct jv v = jv_loads(x, schema, strlen(schema), &why);
    if (v.kind != JV_DICT)
        jx_fail(x, "tool %s: parameters are not a JSON object", tool->name ? tool->name : "");
    jv_set(x, d, "parameters", v);
    return d;
}

/* ---- rendering ---- */

/* One rendering: options, arena, and the template's variables. */
struct template_run {
    tinker_template_options opts;
    struct arena arena;
    struct jx x;
    struct jv globals;
    tinker_error err;
};

static tinker_status begin_template_run(struct template_run *j, const tinker_template_options *opts,
                                        tinker_error *err)
{
    static const tinker_template_options defaults = TINKER_TEMPLATE_OPTIONS_INIT;
    j->opts = defaults;
    if (opts &&
        opts_copy(&j->opts, sizeof(j->opts), opts, "tinker_template_options", err) != TINKER_OK)
        return TINKER_EINVAL;
    arena_init(&j->arena, j->opts.max_memory ? j->opts.max_memory : DEFAULT_MEMORY);
    /* The status of a failure is in the error only, so a caller without one gets ours. */
    jx_init(&j->x, &j->arena, j->opts.max_steps ? j->opts.max_steps : DEFAULT_STEPS,
            err ? err : &j->err);
    /* Variables of the caller first: the names below win over them. */
    j->globals = jv_dict_new(&j->x);
    if (j->opts.variables) {
        j->globals = jv_loads(&j->x, j->opts.variables, strlen(j->opts.variables), NULL);
        if (j->globals.kind != JV_DICT)
            jx_fail(&j->x, "template variables are not a JSON object");
    }
    jv_set(&j->x, j->globals, "add_generation_prompt", jv_bool(j->opts.add_generation_prompt != 0));
    if (j->opts.bos_token)
        jv_set(&j->x, j->globals, "bos_token", jv_str(j->opts.bos_token));
    if (j->opts.eos_token)
        jv_set(&j->x, j->globals, "eos_token", jv_str(j->opts.eos_token));
    return TINKER_OK;
}

/* Run the template, append what it wrote to *out, free what the run held. */
static tinker_status end_template_run(struct template_run *j, const tinker_template *t,
                                      tinker_text *out)
{
    struct buf b;
    buf_init(&b, j->arena.max);
    int64_t now = j->opts.now ? j->opts.now : (int64_t)time(NULL);
    if (!j->x.failed)
        jinja_run(&j->x, t->tree, j->globals, now, &b);
    tinker_status status = j->x.failed
                               ? j->x.err->status
                               : tinker_text_append(out, b.len ? b.data : "", b.len, j->x.err);
    if (status != TINKER_OK)
        err_prefix(j->x.err, "chat template");
    buf_clear(&b);
    arena_clear(&j->arena);
    return status;
}

tinker_status tinker_template_render(const tinker_template *t, const tinker_message *messages,
                                     size_t n, const tinker_tool *tools, size_t n_tools,
                                     const tinker_template_options *opts, tinker_text *out,
                                     tinker_error *err)
{
    struct template_run j;
    if (begin_template_run(&j, opts, err) != TINKER_OK)
        return TINKER_EINVAL;
    struct jv list = jv_list_new(&j.x);
    chat_check(&j.x, messages, n);
    for (size_t i = 0; i < n && !j.x.failed; i++)
        jv_push(&j.x, list, chat_message_value(&j.x, &messages[i], j.opts.arguments_as_text));
    jv_set(&j.x, j.globals, "messages", list);
    /* Templates test "if tools": none is None, not an empty list. */
    struct jv declared = n_tools ? jv_list_new(&j.x) : jv_none();
    for (size_t i = 0; i < n_tools && !j.x.failed; i++) {
        struct jv d = jv_dict_new(&j.x);
        jv_set(&j.x, d, "type", jv_str("function"));
        jv_set(&j.x, d, "function", chat_tool_value(&j.x, &tools[i]));
        jv_push(&j.x, declared, d);
    }
    jv_set(&j.x, j.globals, "tools", declared);
    return end_template_run(&j, t, out);
}

tinker_status tinker_template_render_json(const tinker_template *t, const char *messages,
                                          const char *tools, const tinker_template_options *opts,
                                          tinker_text *out, tinker_error *err)
{
    struct template_run j;
    const char *why = NULL;
    if (begin_template_run(&j, opts, err) != TINKER_OK)
        return TINKER_EINVAL;
    jv_set(&j.x, j.globals, "messages", jv_loads(&j.x, messages, strlen(messages), &why));
    if (why)
        jx_fail(&j.x, "messages: %s", why);
    jv_set(&j.x, j.globals, "tools",
           tools ? jv_loads(&j.x, tools, strlen(tools), &why) : jv_none());
    if (why)
        jx_fail(&j.x, "tools: %s", why);
    return end_template_run(&j, t, out);
}
