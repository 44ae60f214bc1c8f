/* render_tools.c - tool declarations of Qwen, Nemotron, DeepSeek, Kimi and gpt-oss.
 *
 * The wording is part of each model's chat template: models were trained on these exact
 * words, so they are data, not prose to improve. */
#include "chat/render.h"

#include <string.h>

/* Append {"role": role, "content": text} to the list `out`; text is cleared. */
void tools_add_message(struct render_call *c, struct jv out, const char *role, struct buf *text)
{
    struct jv m = jv_dict_new(&c->x);
    jv_set(&c->x, m, "role", jv_str(role));
    jv_set(&c->x, m, "content", jv_from_buf(&c->x, text));
    jv_push(&c->x, out, m);
}

bool tools_is_required(struct jv schema, struct jv name)
{
    struct jv list = jv_get(schema, "required");
    for (size_t i = 0; jv_is_seq(list) && i < list.list->n; i++)
        if (jv_equal(list.list->items[i], name))
            return true;
    return false;
}

static void put_json(struct render_call *c, struct buf *b, struct jv v)
{
    struct jv_dumps how = JV_DUMPS_PYTHON;
    jv_dump(&c->x, b, v, &how);
}

/* {"type": "function", "function": tool}, as the OpenAI API has it. */
static struct jv wrap_tool(struct render_call *c, struct jv tool)
{
    struct jv wrapped = jv_dict_new(&c->x);
    jv_set(&c->x, wrapped, "type", jv_str("function"));
    jv_set(&c->x, wrapped, "function", tool);
    return wrapped;
}

/* ---- Qwen, Nemotron ---- */

/* As Jinja prints it: a string without quotes, other values as Python's str(). */
static void put_value(struct render_call *c, struct buf *b, struct jv v)
{
    jv_print(&c->x, b, v);
}

static void put_trimmed(struct render_call *c, struct buf *b, struct jv v)
{
    struct jv_str s = text_trim(jv_to_str(&c->x, v).str, NULL, true, true);
    buf_append(b, s.s, s.n);
}

static bool is_listed(struct jv key, const char *const *names)
{
    for (; *names; names++)
        if (jv_is(key, *names))
            return true;
    return false;
}

/* Every entry that has no element of its own: <key>value</key>. */
static void put_extra(struct render_call *c, struct buf *b, struct jv d, const char *const *handled)
{
    for (size_t i = 0; d.kind == JV_DICT && i < d.dict->n; i++) {
        struct jv key = d.dict->pairs[i].key, v = d.dict->pairs[i].value;
        if (is_listed(key, handled))
            continue;
        buf_puts(b, "\n<");
        put_value(c, b, key);
        buf_putc(b, '>');
        if (v.kind == JV_DICT || v.kind == JV_LIST)
            put_json(c, b, v);
        else
            put_value(c, b, v);
        buf_puts(b, "</");
        put_value(c, b, key);
        buf_putc(b, '>');
    }
}

/* <name>value</name> on a line of its own; nothing for a value that is absent. */
static void put_element(struct render_call *c, struct buf *b, const char *name, struct jv v,
                        void (*put)(struct render_call *, struct buf *, struct jv))
{
    if (v.kind == JV_UNDEFINED)
        return;
    buf_printf(b, "\n<%s>", name);
    put(c, b, v);
    buf_printf(b, "</%s>", name);
}

/* Nemotron's template turns the JSON schema into XML, where known entries come in a fixed order and
 * all others after them, each as an element of its own. */
static void put_nemotron_tool(struct render_call *c, struct buf *b, struct jv tool)
{
    static const char *const in_parameter[] = { "name", "type", "description", "enum", NULL };
    static const char *const in_params[] = { "type", "properties", "required", NULL };
    static const char *const in_tool[] = { "type", "name", "description", "parameters", NULL };
    struct jv params = jv_get(tool, "parameters"), description = jv_get(tool, "description");
    struct jv props = jv_get(params, "properties");
    buf_puts(b, "<function>");
    put_element(c, b, "name", jv_get(tool, "name"), put_value);
    if (description.kind == JV_STRING && text_trim(description.str, NULL, true, true).n > 0)
        put_element(c, b, "description", description, put_trimmed);
    buf_puts(b, "\n<parameters>");
    for (size_t i = 0; props.kind == JV_DICT && i < props.dict->n; i++) {
        struct jv p = props.dict->pairs[i].value;
        buf_puts(b, "\n<parameter>");
        put_element(c, b, "name", props.dict->pairs[i].key, put_value);
        put_element(c, b, "type", jv_get(p, "type"), put_value);
        put_element(c, b, "description", jv_get(p, "description"), put_trimmed);
        put_element(c, b, "enum", jv_get(p, "enum"), put_json);
        put_extra(c, b, p, in_parameter);
        buf_puts(b, "\n</parameter>");
    }
    put_extra(c, b, params, in_params);
    put_element(c, b, "required", jv_get(params, "required"), put_json);
    buf_puts(b, "\n</parameters>");
    put_extra(c, b, tool, in_tool);
    buf_puts(b, "\n</function>");
}

/* Qwen3.5 and later declare tools as JSON but call them in XML, Nemotron uses XML for both. */
static void put_xml_tools(struct render_call *c, struct buf *b, struct jv tools)
{
    buf_puts(b, "# Tools\n\nYou have access to the following functions:\n\n<tools>\n");
    for (size_t i = 0; i < tools.list->n; i++) {
        if (c->r->flags & RENDER_NEMOTRON)
            put_nemotron_tool(c, b, tools.list->items[i]);
        else
            put_json(c, b, tools.list->items[i]);
        buf_putc(b, '\n');
    }
    buf_puts(b, "</tools>\n\nIf you choose to call a function ONLY reply in the following format "
                "with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n"
                "<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
                "<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
                "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
                "<IMPORTANT>\nReminder:\n"
                "- Function calls MUST follow the specified format: an inner "
                "<function=...></function> block must be nested within <tool_call></tool_call> "
                "XML tags\n"
                "- Required parameters MUST be specified\n"
                "- You may provide optional reasoning for your function call in natural language "
                "BEFORE the function call, but NOT after\n"
                "- If there is no function call available, answer the question like normal with "
                "your current knowledge and do not tell the user about function calls\n"
                "</IMPORTANT>");
}

/* One system message: Qwen3.5 puts the tools before the system prompt, the others after it. */
void qwen_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct buf b;
    bool xml = (c->r->flags & RENDER_Q35) != 0, any = tools.list->n > 0;
    bool system_first = !xml || (c->r->flags & RENDER_NEMOTRON);
    buf_init(&b, c->x.arena->max);
    if (system_first && *system) {
        buf_puts(&b, system);
        buf_puts(&b, any || !xml ? "\n\n" : "");
    }
    if (any && xml)
        put_xml_tools(c, &b, tools);
    if (any && !xml) {
        buf_puts(&b,
                 "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                 "You are provided with function signatures within <tools></tools> XML tags:\n"
                 "<tools>\n");
        for (size_t i = 0; i < tools.list->n; i++) {
            put_json(c, &b, wrap_tool(c, tools.list->items[i]));
            buf_putc(&b, '\n');
        }
        buf_puts(&b,
                 "</tools>\n\nFor each function call, return a json object with function name and "
                 "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                 "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
    }
    if (!system_first && *system) {
        buf_puts(&b, any ? "\n\n" : "");
        buf_puts(&b, system);
    }
    tools_add_message(c, out, "system", &b);
}

/* ---- DeepSeek ---- */

/* DeepSeek V3.1: a Markdown section per tool, behind the system prompt. */
void deepseek_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct buf b;
    buf_init(&b, c->x.arena->max);
    buf_puts(&b, system);
    if (tools.list->n > 0)
        buf_puts(&b, "\n\n## Tools\nYou have access to the following tools:\n");
    for (size_t i = 0; i < tools.list->n; i++) {
        struct jv tool = tools.list->items[i];
        buf_puts(&b, "\n### ");
        put_value(c, &b, jv_get(tool, "name"));
        buf_puts(&b, "\nDescription: ");
        put_value(c, &b, jv_get(tool, "description"));
        buf_puts(&b, "\n\nParameters: ");
        put_json(c, &b, jv_get(tool, "parameters"));
    }
    if (tools.list->n > 0)
        buf_puts(&b, "\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
                     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>"
                     "tool_call_arguments<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\nWhere:\n"
                     "- `tool_call_name` must be an exact match to one of the available tools\n"
                     "- `tool_call_arguments` must be valid JSON that strictly follows the tool's "
                     "Parameters Schema\n"
                     "- For multiple tool calls, chain them directly without separators or spaces");
    tools_add_message(c, out, "system", &b);
}

static struct jv wrap_tools(struct render_call *c, struct jv tools)
{
    struct jv list = jv_list_new(&c->x);
    for (size_t i = 0; i < tools.list->n && !c->x.failed; i++)
        jv_push(&c->x, list, wrap_tool(c, tools.list->items[i]));
    return list;
}

/* ---- DeepSeek V4 ---- */

/* Run when messages are prepared, because declarations become part of the system message then. */
void deepseek4_declare(struct render_call *c, struct buf *out, struct jv_str json)
{
    struct jv tools = jv_loads(&c->x, json.s, json.n, NULL);
    if (tools.kind != JV_LIST) {
        jx_fail(&c->x, "a tool_declare message must be a JSON array of tools");
        return;
    }
    buf_puts(
        out,
        "## Tools\n\nYou have access to a set of tools to help answer the user's question. You "
        "can invoke tools by writing a \"<｜DSML｜ calls>\" block like the following:\n\n"
        "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"$TOOL_NAME\">\n"
        "<｜DSML｜ parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
        "</｜DSML｜ parameter>\n...\n</｜DSML｜ invoke>\n"
        "<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n...\n</｜DSML｜ invoke>\n</｜DSML｜ calls>\n\n"
        "String parameters should be specified as is and set `string=\"true\"`. For all other "
        "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
        "`string=\"false\"`.\n\n"
        "If thinking_mode is enabled (triggered by <think>), you MUST output your complete "
        "reasoning inside <think>...</think> BEFORE any tool calls or final response.\n\n"
        "Otherwise, output directly after </think> with tool calls or final response.\n\n"
        "### Available Tool Schemas\n\n");
    for (size_t i = 0; i < tools.list->n && !c->x.failed; i++) {
        struct jv tool = jv_get(tools.list->items[i], "function");
        if (tool.kind == JV_UNDEFINED)
            jx_fail(&c->x, "tool %zu of a tool_declare message has no \"function\"", i);
        struct jv_str s = render_dumps_utf8(c, tool);
        buf_puts(out, i > 0 ? "\n" : "");
        buf_append(out, s.s, s.n);
    }
    buf_puts(out,
             "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to "
             "invoke tool calls.\n");
}

/* The declaration travels as JSON in a message of role tool_declare; deepseek4_declare() makes text
 * of it. */
void deepseek4_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct buf b;
    buf_init(&b, c->x.arena->max);
    buf_puts(&b, system);
    if (*system)
        tools_add_message(c, out, "system", &b);
    buf_init(&b, c->x.arena->max);
    if (tools.list->n > 0) {
        put_json(c, &b, wrap_tools(c, tools));
        tools_add_message(c, out, "tool_declare", &b);
    }
}

/* ---- GLM ---- */

/* GLM: the tools are a system message of their own, before the caller's. */
void glm_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct buf b;
    if (tools.list->n > 0) {
        buf_init(&b, c->x.arena->max);
        buf_puts(
            &b, "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n"
                "<tools>\n");
        for (size_t i = 0; i < tools.list->n; i++) {
            /* Two fields are for the service only; a deferred tool is declared later. */
            static const char *const hidden[] = { "defer_loading", "strict", NULL };
            struct jv tool = tools.list->items[i], shown = jv_dict_new(&c->x);
            if (jv_truth(jv_get(tool, "defer_loading")))
                continue;
            for (size_t k = 0; tool.kind == JV_DICT && k < tool.dict->n; k++)
                if (!is_listed(tool.dict->pairs[k].key, hidden))
                    jv_put(&c->x, shown, tool.dict->pairs[k].key, tool.dict->pairs[k].value);
            struct jv_str s = render_dumps_utf8(c, shown);
            buf_append(&b, s.s, s.n);
            buf_putc(&b, '\n');
        }
        buf_puts(
            &b, "</tools>\n\nFor each function call, output the function name and arguments within "
                "the following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}"
                "</arg_key><arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</arg_key>"
                "<arg_value>{arg-value-2}</arg_value>...</tool_call>");
        tools_add_message(c, out, "system", &b);
    }
    if (*system) {
        buf_init(&b, c->x.arena->max);
        buf_puts(&b, system);
        tools_add_message(c, out, "system", &b);
    }
}

/* ---- Kimi ---- */

/* K2 declares compact JSON with sorted keys, K2.5 and later TypeScript. The default system message
 * is written out here, so that adding a prompt replaces it. */
void kimi_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct buf b;
    buf_init(&b, c->x.arena->max);
    if (tools.list->n > 0) {
        struct jv_dumps compact = {
            .item_sep = ",", .key_sep = ":", .indent = -1, .ascii = true, .sort_keys = true
        };
        if (c->r->flags & RENDER_K25)
            kimi_typescript(&c->x, &b, tools);
        else
            jv_dump(&c->x, &b, wrap_tools(c, tools), &compact);
        tools_add_message(c, out, "tool_declare", &b);
    }
    buf_init(&b, c->x.arena->max);
    buf_puts(&b, *system ? system : kimi_default_system);
    tools_add_message(c, out, "system", &b);
}
