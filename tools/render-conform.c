/* render-conform.c - answers requests of the conformance tests, one JSON object per line.
 *
 * {"op":"template","source":...,"messages":[...],...} gives {"text":...}; {"op":"prompt"},
 * "example", "examples", "tools", "parse", "stream" and "datum" drive a renderer over a
 * tokenizer file.  Errors come back as {"error":...}: the tests compare those as well. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/tinker.h>
#include <tinker/extra/renderer.h>
#include <tinker/extra/template.h>
#include "json/json.h"
#include "chat/chat.h"

enum { MAX_TOKENIZERS = 16 };

struct request {
    struct jx x;
    struct arena arena;
    struct jv v;
    tinker_error err;
};

static struct {
    char *path;
    tinker_tokenizer *tokenizer;
} loaded[MAX_TOKENIZERS];

static const char *text_of(struct request *q, const char *key)
{
    struct jv v = jv_get(q->v, key);
    return v.kind == JV_STRING ? v.str.s : NULL;
}

static char *json_of(struct request *q, const char *key)
{
    struct jv v = jv_get(q->v, key);
    if (v.kind == JV_UNDEFINED || v.kind == JV_NONE)
        return NULL;
    struct jv_dumps how = JV_DUMPS_PYTHON;
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    jv_dump(&q->x, &b, v, &how);
    return buf_detach(&b, NULL);
}

static void put_field(struct json_writer *w, const char *key, const char *s)
{
    json_put_key(w, key);
    json_put_string(w, s);
}

static bool failed(struct request *q, struct json_writer *w)
{
    put_field(w, "error", q->err.message);
    return false;
}

static bool run_template(struct request *q, struct json_writer *w)
{
    tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
    const char *source = text_of(q, "source");
    tinker_template *t = tinker_template_new(source, strlen(source), &q->err);
    if (!t)
        return failed(q, w);
    char *messages = json_of(q, "messages"), *tools = json_of(q, "tools");
    char *variables = json_of(q, "variables");
    struct jv now = jv_get(q->v, "now");
    opts.add_generation_prompt = jv_truth(jv_get(q->v, "add_generation_prompt"));
    opts.bos_token = text_of(q, "bos_token");
    opts.eos_token = text_of(q, "eos_token");
    opts.variables = variables;
    opts.now = now.kind == JV_INT ? now.i : 0;
    tinker_text text = TINKER_TEXT_INIT;
    bool ok = tinker_template_render_json(t, messages, tools, &opts, &text, &q->err) == TINKER_OK;
    if (ok) {
        json_put_key(w, "text");
        json_put_string_n(w, text.s, text.n);
    } else {
        failed(q, w);
    }
    tinker_text_clear(&text);
    free(messages);
    free(tools);
    free(variables);
    tinker_template_free(t);
    return ok;
}
#ifndef TEMPLATES_ONLY
static tinker_tokenizer *tokenizer_of(struct request *q)
{
    const char *path = text_of(q, "tokenizer");
    for (size_t i = 0; i < MAX_TOKENIZERS; i++) {
        if (loaded[i].path && strcmp(loaded[i].path, path) == 0)
            return loaded[i].tokenizer;
        if (!loaded[i].path) {
            loaded[i].tokenizer = tinker_tokenizer_load(path, NULL, &q->err);
            loaded[i].path = loaded[i].tokenizer ? strdup(path) : NULL;
            return loaded[i].tokenizer;
        }
    }
    return NULL;
}

static void put_chunk(struct json_writer *w, const tinker_chunk *k)
{
    if (k->kind == TINKER_CHUNK_TEXT) {
        json_put_array_int32(w, k->tokens, k->n_tokens);
        return;
    }
    json_put_begin_object(w);
    json_put_key(w, "image");
    json_put_int64(w, k->expected_tokens);
    json_put_end_object(w);
}

static void put_example(struct json_writer *w, const tinker_example *e)
{
    json_put_begin_object(w);
    json_put_key(w, "chunks");
    json_put_begin_array(w);
    for (size_t i = 0; i < e->input.n_chunks; i++)
        put_chunk(w, &e->input.chunks[i]);
    json_put_end_array(w);
    if (e->weights) {
        json_put_key(w, "weights");
        json_put_array_float(w, e->weights, e->n_tokens);
    }
    json_put_end_object(w);
}

static void put_rendered(struct json_writer *w, const tinker_rendered *x)
{
    json_put_key(w, "examples");
    json_put_begin_array(w);
    for (size_t i = 0; i < x->n_examples; i++)
        put_example(w, &x->examples[i]);
    json_put_end_array(w);
}

static void put_message(struct request *q, struct json_writer *w, const tinker_message *m)
{
    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_message_to_json(m, &text, &q->err) == TINKER_OK)
        json_put_raw(w, text.s, text.n);
    tinker_text_clear(&text);
}

static void put_datum(struct request *q, struct json_writer *w, const tinker_rendered *x)
{
    struct jv max = jv_get(q->v, "max_length");
    bool mean = jv_truth(jv_get(q->v, "mean"));
    tinker_training_row *row =
        tinker_training_row_new(&x->examples[0], max.kind == JV_INT ? (size_t)max.i : 0,
                                mean ? TINKER_REDUCTION_MEAN : TINKER_REDUCTION_NONE, &q->err);
    if (!row) {
        failed(q, w);
        return;
    }
    tinker_example inputs = { .input = row->datum.model_input };
    json_put_key(w, "datum");
    put_example(w, &inputs);
    for (size_t i = 0; i < row->datum.n_inputs; i++) {
        const tinker_named_tensor *t = &row->datum.inputs[i];
        json_put_key(w, t->name);
        if (t->tensor.dtype == TINKER_INT64)
            json_put_array_int64(w, t->tensor.data, t->tensor.n);
        else
            json_put_array_float(w, t->tensor.data, t->tensor.n);
    }
    tinker_training_row_free(row);
}

static bool run_render(struct request *q, struct json_writer *w, tinker_renderer *r, const char *op)
{
    tinker_train_on mode = TINKER_TRAIN_LAST_ASSISTANT_MESSAGE;
    size_t n = 0;
    tinker_message *m = chat_read_messages(&q->x, jv_get(q->v, "messages"), "messages", &n);
    tinker_rendered *x = NULL;
    if (!m || (text_of(q, "train_on") &&
               tinker_train_on_parse(text_of(q, "train_on"), &mode, &q->err) != TINKER_OK))
        return failed(q, w);
    if (strcmp(op, "prompt") == 0)
        x = tinker_renderer_prompt(r, m, n, text_of(q, "role"), text_of(q, "prefill"), &q->err);
    else if (strcmp(op, "examples") == 0)
        x = tinker_renderer_examples(r, m, n, mode, &q->err);
    else
        x = tinker_renderer_example(r, m, n, mode, &q->err);
    if (!x)
        return failed(q, w);
    if (strcmp(op, "datum") == 0)
        put_datum(q, w, x);
    else
        put_rendered(w, x);
    tinker_rendered_free(x);
    return true;
}

static bool run_tools(struct request *q, struct json_writer *w, tinker_renderer *r)
{
    size_t n = 0;
    tinker_tool *tools = chat_read_tools(&q->x, jv_get(q->v, "tools"), &n);
    if (q->x.failed)
        return failed(q, w);
    const char *system = text_of(q, "system_prompt");
    tinker_conversation *c = tinker_renderer_tool_prefix(r, tools, n, system, &q->err);
    if (!c)
        return failed(q, w);
    json_put_key(w, "messages");
    json_put_begin_array(w);
    for (size_t i = 0; i < c->n_messages; i++)
        put_message(q, w, &c->messages[i]);
    json_put_end_array(w);
    tinker_conversation_free(c);
    return true;
}

static void put_parsed(struct request *q, struct json_writer *w, const tinker_parsed *p)
{
    static const char *const ends[] = { "stop_sequence", "eos", "malformed" };
    static const char *const failures[] = { "ok", "structural", "content" };
    put_field(w, "termination", ends[p->termination]);
    put_field(w, "failure", failures[tinker_parsed_failure(p)]);
    json_put_key(w, "message");
    put_message(q, w, p->message);
}

static int32_t *tokens_of(struct request *q, size_t *n)
{
    struct jv list = jv_get(q->v, "tokens");
    int32_t *tokens = arena_array(&q->arena, list.list->n + 1, sizeof(*tokens));
    for (size_t i = 0; i < list.list->n; i++)
        tokens[i] = (int32_t)list.list->items[i].i;
    *n = list.list->n;
    return tokens;
}

static void put_deltas(struct json_writer *w, const tinker_delta *d, size_t n)
{
    static const char *const kinds[] = { "header", "text", "thinking" };
    for (size_t i = 0; i < n; i++) {
        json_put_begin_array(w);
        json_put_string(w, kinds[d[i].kind]);
        json_put_string_n(w, d[i].text, d[i].n_text);
        json_put_int64(w, d[i].content_index);
        json_put_end_array(w);
    }
}

static bool run_stream(struct request *q, struct json_writer *w, tinker_renderer *r)
{
    size_t n = 0, n_deltas = 0;
    int32_t *tokens = tokens_of(q, &n);
    const tinker_delta *deltas = NULL;
    tinker_parsed *p = NULL;
    tinker_parse_stream *s = tinker_parse_stream_new(r, &q->err);
    json_put_key(w, "deltas");
    json_put_begin_array(w);
    tinker_status st = s ? TINKER_OK : TINKER_ENOMEM;
    for (size_t i = 0; i < n && st == TINKER_OK; i++) {
        st = tinker_parse_stream_feed(s, tokens[i], &deltas, &n_deltas, &q->err);
        if (st == TINKER_OK)
            put_deltas(w, deltas, n_deltas);
    }
    if (st == TINKER_OK)
        st = tinker_parse_stream_finish(s, &deltas, &n_deltas, &p, &q->err);
    if (st == TINKER_OK)
        put_deltas(w, deltas, n_deltas);
    json_put_end_array(w);
    if (st == TINKER_OK)
        put_parsed(q, w, p);
    else
        failed(q, w);
    tinker_parsed_free(p);
    tinker_parse_stream_free(s);
    return st == TINKER_OK;
}

static bool run_parse(struct request *q, struct json_writer *w, tinker_renderer *r)
{
    size_t n = 0;
    int32_t *tokens = tokens_of(q, &n);
    tinker_parsed *p = tinker_renderer_parse(r, tokens, n, &q->err);
    if (!p)
        return failed(q, w);
    put_parsed(q, w, p);
    tinker_parsed_free(p);
    return true;
}

static bool run_renderer(struct request *q, struct json_writer *w, const char *op)
{
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    tinker_tokenizer *tokenizer = tokenizer_of(q);
    struct jv effort = jv_get(q->v, "thinking_effort");
    opts.has_thinking_effort = effort.kind == JV_NONE ? -1 : effort.kind != JV_UNDEFINED;
    opts.thinking_effort = effort.kind == JV_FLOAT ? effort.f
                           : effort.kind == JV_INT ? (double)effort.i
                                                   : 0;
    opts.date = text_of(q, "date");
    struct jv history = jv_get(q->v, "thinking_in_history");
    opts.thinking_in_history = history.kind == JV_INT ? (int)history.i : 0;
    tinker_renderer *r =
        tokenizer ? tinker_renderer_new(text_of(q, "renderer"), tokenizer, &opts, &q->err) : NULL;
    bool ok;
    if (!r)
        ok = failed(q, w);
    else if (strcmp(op, "tools") == 0)
        ok = run_tools(q, w, r);
    else if (strcmp(op, "parse") == 0)
        ok = run_parse(q, w, r);
    else if (strcmp(op, "stream") == 0)
        ok = run_stream(q, w, r);
    else
        ok = run_render(q, w, r, op);
    if (r) {
        json_put_key(w, "extension");
        json_put_bool(w, tinker_renderer_has_extension(r));
    }
    tinker_renderer_free(r);
    return ok;
}
#endif

static void answer(const char *line, size_t n)
{
    struct request q = { .err = { .status = TINKER_OK } };
    struct buf out;
    struct json_writer w;
    arena_init(&q.arena, SIZE_MAX);
    buf_init(&out, SIZE_MAX / 2);
    json_writer_init(&w, &out);
    jx_init(&q.x, &q.arena, UINT64_MAX, &q.err);
    q.v = jv_loads(&q.x, line, n, NULL);
    const char *op = text_of(&q, "op");
    json_put_begin_object(&w);
    if (op && strcmp(op, "template") == 0)
        run_template(&q, &w);
#ifndef TEMPLATES_ONLY
    else if (op)
        run_renderer(&q, &w, op);
#endif
    json_put_end_object(&w);
    puts(out.data);
    fflush(stdout);
    buf_clear(&out);
    arena_clear(&q.arena);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0)
        answer(line, (size_t)n);
    free(line);
#ifndef TEMPLATES_ONLY
    for (size_t i = 0; i < MAX_TOKENIZERS && loaded[i].path; i++) {
        tinker_tokenizer_free(loaded[i].tokenizer);
        free(loaded[i].path);
    }
#endif
    return 0;
}
