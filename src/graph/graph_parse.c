/* graph_parse.c - from JSON to nodes.
 *
 * The text is somebody's request: nothing in it is believed.  References go to earlier nodes only,
 * so a graph has no cycles and is computed in one pass over its nodes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "base/map.h"
#include "graph/graph_impl.h"
#include "json/json.h"

enum { ARGS_MAX = CALL_ARGS_MAX, ITEMS_MAX = 4096, TEXT_MAX = 200 };

/* One per graph.  `output` says that the output node was read, after which nothing may come;
 * `failed` stops all readers above, however deep the first failure was. */
struct parser {
    struct graph *graph;
    struct json_reader r;
    struct map nodes; /* name to struct graph_node * */
    size_t placeholders;
    bool output;
    tinker_error *err;
    bool failed;
};

/* The first problem is the one that is told. */
static bool fail_parse(struct parser *p, const struct graph_node *node, const char *text)
{
    if (p->failed)
        return false;
    p->failed = true;
    if (node && node->name)
        err_set(p->err, TINKER_EINVAL, "custom loss %.60s: node %.64s: %s", p->graph->name,
                node->name, text);
    else
        err_set(p->err, TINKER_EINVAL, "custom loss %.60s: %s", p->graph->name, text);
    return false;
}

static bool fail_memory(struct parser *p)
{
    if (!p->failed)
        err_nomem(p->err, "graph");
    p->failed = true;
    return false;
}

/* What the reader found wrong, unless a problem was told before. */
static bool fail_json(struct parser *p, const struct graph_node *node)
{
    return fail_parse(p, node, json_error(&p->r));
}

/* A name or a text of limited length, ending with NUL.  TEXT_MAX bounds what an error message or a
 * lookup may have to copy. */
static bool read_text(struct parser *p, const struct graph_node *node, const char **out)
{
    char *text = NULL;
    if (!json_cstring(&p->r, &text))
        return p->graph->arena.failed ? fail_memory(p) : fail_json(p, node);
    *out = text;
    return strlen(text) <= TEXT_MAX || fail_parse(p, node, "a text is longer than 200 bytes");
}

static bool read_value(struct parser *p, const struct graph_node *node, int depth,
                       struct value *out);

/* The items of an array; the reader stands before it. */
static bool read_items(struct parser *p, const struct graph_node *node, int depth, size_t max,
                       const struct value **out, size_t *n)
{
    /* Doubling keeps the arena, which frees nothing before its end, below twice the size of the
     * list. */
    struct value *items = NULL;
    size_t cap = 0;
    *n = 0;
    if (!json_begin_array(&p->r))
        return fail_json(p, node);
    while (json_next_item(&p->r)) {
        if (*n == max)
            return fail_parse(p, node, "too many arguments");
        if (*n == cap) {
            size_t grown = cap ? cap * 2 : 4;
            items =
                arena_grow(&p->graph->arena, items, cap * sizeof(*items), grown * sizeof(*items));
            if (!items)
                return fail_memory(p);
            cap = grown;
        }
        if (!read_value(p, node, depth + 1, &items[(*n)++]))
            return false;
    }
    *out = items;
    return !p->r.failed || fail_json(p, node);
}

/* {"ref": "mul"}: the number of an earlier node.  Names of later nodes are not in the map yet,
 * which is what keeps the graph free of cycles. */
static bool read_ref(struct parser *p, const struct graph_node *node, struct value *out)
{
    const char *name;
    if (!read_text(p, node, &name))
        return false;
    const struct graph_node *to = map_get(&p->nodes, name, strlen(name));
    if (!to || to->kind == NODE_OUTPUT)
        return fail_parse(p, node, "it refers to a node that is not before it");
    *out = (struct value){ .kind = VALUE_REF, .n = (size_t)(to - p->graph->nodes) };
    return true;
}

/* float16 and bfloat16 are not here: values are computed as double, and a loss that asks for less
 * precision would not get what it asked for. */
static const struct {
    const char *name;
    enum element element;
} dtypes[] = {
    { "float32", ELEMENT_FLOAT }, { "float", ELEMENT_FLOAT }, { "float64", ELEMENT_FLOAT },
    { "double", ELEMENT_FLOAT },  { "int64", ELEMENT_INT },   { "long", ELEMENT_INT },
    { "int32", ELEMENT_INT },     { "int", ELEMENT_INT },     { "bool", ELEMENT_BOOL },
};

static bool read_dtype(struct parser *p, const struct graph_node *node, struct value *out)
{
    const char *name;
    if (!read_text(p, node, &name))
        return false;
    /* fx writes torch.float32, a caller who builds a graph by hand may leave out the module. */
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (struct value){ .kind = VALUE_DTYPE, .element = dtypes[i].element };
            return true;
        }
    return fail_parse(
        p, node, "this dtype is not supported here (float32, float64, int64, int32, bool are)");
}

/* An object stands for what JSON has no form for; it has one key, which says what. */
static bool read_tagged(struct parser *p, const struct graph_node *node, int depth,
                        struct value *out)
{
    struct json_str key;
    if (!json_begin_object(&p->r) || !json_next_key(&p->r, &key))
        return p->r.failed ? fail_json(p, node) : fail_parse(p, node, "an argument is empty");
    bool ok = true;
    if (json_str_is(key, "ref")) {
        ok = read_ref(p, node, out);
    } else if (json_str_is(key, "tuple") || json_str_is(key, "slice")) {
        /* A tuple and a list differ in Python only in that one cannot be changed. */
        bool slice = json_str_is(key, "slice");
        *out = (struct value){ .kind = slice ? VALUE_SLICE : VALUE_LIST };
        ok = read_items(p, node, depth, ITEMS_MAX, &out->items, &out->n);
        if (ok && slice && out->n != 3)
            ok = fail_parse(p, node, "a slice has start, stop and step");
    } else if (json_str_is(key, "float")) {
        /* Numbers that JSON does not have.  "nan" and anything else is NaN: a loss that uses it is
         * refused as not finite when it runs. */
        const char *name = "";
        ok = read_text(p, node, &name);
        *out = value_number(VALUE_FLOAT, strcmp(name, "inf") == 0    ? HUGE_VAL
                                         : strcmp(name, "-inf") == 0 ? -HUGE_VAL
                                                                     : NAN);
    } else if (json_str_is(key, "dtype")) {
        ok = read_dtype(p, node, out);
    } else if (json_str_is(key, "ellipsis")) {
        *out = (struct value){ .kind = VALUE_ELLIPSIS };
        json_skip(&p->r);
    } else if (json_str_is(key, "device") || json_str_is(key, "layout") ||
               json_str_is(key, "memory_format")) {
        *out = (struct value){ .kind = VALUE_OTHER };
        json_skip(&p->r);
    } else {
        return fail_parse(p, node,
                          "an argument is of an unknown kind (ref, tuple, slice, ellipsis, float, "
                          "dtype, device, layout and memory_format are known)");
    }
    if (ok && json_next_key(&p->r, &key))
        return fail_parse(p, node, "an argument has more than one kind");
    return ok && (!p->r.failed || fail_json(p, node));
}

static bool read_value(struct parser *p, const struct graph_node *node, int depth,
                       struct value *out)
{
    bool flag = false;
    struct json_str raw;
    /* Each level is a recursion on the C stack, and the text is a stranger's. */
    if (depth > GRAPH_NESTING_MAX)
        return fail_parse(p, node, "its arguments are nested too deeply (8 levels at most)");
    *out = (struct value){ .kind = VALUE_NONE };
    /* Scalars are read without looking at their result: a failed reader stays failed, and the last
     * line tells. */
    switch (json_peek(&p->r)) {
    case JSON_NULL:
        json_null(&p->r);
        break;
    case JSON_BOOL:
        json_bool(&p->r, &flag);
        *out = value_number(VALUE_BOOL, flag);
        break;
    case JSON_NUMBER: {
        struct json_reader number;
        double v = 0;
        if (json_raw(&p->r, &raw)) {
            /* 1 is an int and 1.0 a float, as in Python: they promote differently. */
            bool whole = !memchr(raw.s, '.', raw.n) && !memchr(raw.s, 'e', raw.n) &&
                         !memchr(raw.s, 'E', raw.n);
            json_reader_part(&number, &p->r, raw);
            if (!json_double(&number, &v))
                return fail_parse(p, node, "a number is out of range");
            *out = value_number(whole ? VALUE_INT : VALUE_FLOAT, v);
        }
        break;
    }
    case JSON_STRING:
        out->kind = VALUE_TEXT;
        return read_text(p, node, &out->text);
    case JSON_ARRAY:
        out->kind = VALUE_LIST;
        return read_items(p, node, depth, ITEMS_MAX, &out->items, &out->n);
    case JSON_OBJECT:
        return read_tagged(p, node, depth, out);
    /* Broken or missing value: the reader has its own message. */
    case JSON_NONE:
        break;
    }
    return !p->r.failed || fail_json(p, node);
}

/* ---- nodes ----------------------------------------------------------------------- */

static bool read_kwargs(struct parser *p, struct graph_node *node)
{
    struct json_str key;
    /* Room for all arguments at once, since moving the list would not be worth the code. */
    struct named_value *list = arena_array(&p->graph->arena, ARGS_MAX, sizeof(*list));
    if (!list)
        return fail_memory(p);
    node->kwargs = list;
    if (!json_begin_object(&p->r))
        return fail_json(p, node);
    while (json_next_key(&p->r, &key)) {
        if (node->n_kwargs == ARGS_MAX)
            return fail_parse(p, node, "too many arguments");
        /* Counted before it is read, so that a failure inside leaves no hole. */
        struct named_value *v = &list[node->n_kwargs++];
        v->name = arena_strndup(&p->graph->arena, key.s, key.n);
        if (!v->name)
            return fail_memory(p);
        if (!read_value(p, node, 1, &v->value))
            return false;
    }
    return !p->r.failed || fail_json(p, node);
}

/* "custom/margin:mean".  The suffix says how the values of several datums are combined, so a metric
 * without one has no meaning; the prefix keeps a metric of a loss from taking the name of one of
 * ours. */
static bool is_metric_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_./-";
    if (strncmp(name, "custom/", 7) != 0)
        return false;
    size_t n = strspn(name + 7, allowed);
    const char *end = name + 7 + n;
    return n >= 1 && n <= 64 && (strcmp(end, ":sum") == 0 || strcmp(end, ":mean") == 0);
}

/* {"custom/x:sum": {"ref": "n"}}: the second element of the result. */
static bool read_metrics(struct parser *p, struct graph_node *node)
{
    struct json_str key;
    struct graph *g = p->graph;
    size_t cap = 0;
    /* An fx dict literal comes tagged like every other Python object. */
    if (!json_begin_object(&p->r) || !json_next_key(&p->r, &key) || !json_str_is(key, "dict"))
        return fail_parse(p, node, "the second value that it returns must be a dict of metrics");
    if (!json_begin_object(&p->r))
        return fail_json(p, node);
    while (json_next_key(&p->r, &key)) {
        if (g->n_metrics == cap) {
            size_t grown = cap ? cap * 2 : 8;
            g->metrics = arena_grow(&g->arena, g->metrics, cap * sizeof(*g->metrics),
                                    grown * sizeof(*g->metrics));
            if (!g->metrics)
                return fail_memory(p);
            cap = grown;
        }
        struct graph_metric *m = &g->metrics[g->n_metrics];
        if (++g->n_metrics > 256)
            return fail_parse(p, node, "it has more than 256 metrics");
        m->name = arena_strndup(&g->arena, key.s, key.n);
        if (!m->name)
            return fail_memory(p);
        if (!is_metric_name(m->name))
            return fail_parse(
                p, node, "names of metrics are custom/<letters, digits, _ . / ->:sum or :mean");
        if (!read_value(p, node, 1, &m->value))
            return false;
        if (m->value.kind != VALUE_REF)
            return fail_parse(p, node, "a metric must be the value of a node");
    }
    if (json_next_key(&p->r, &key))
        return fail_parse(p, node, "an argument has more than one kind");
    return !p->r.failed || fail_json(p, node);
}

/* [{"tuple": [loss, {"dict": metrics}]}], or a list instead of the tuple. */
static bool read_result(struct parser *p, struct graph_node *node)
{
    static const char expected[] = "it must return a loss and a dict of metrics";
    struct json_str key;
    struct json_reader *r = &p->r;
    if (!json_begin_array(r) || !json_next_item(r))
        return fail_parse(p, node, expected);
    /* fx writes a return value (loss, metrics) as a tuple, but a hand-written graph may use a JSON
     * array. */
    bool tuple = json_peek(r) == JSON_OBJECT;
    if (tuple && (!json_begin_object(r) || !json_next_key(r, &key) || !json_str_is(key, "tuple")))
        return fail_parse(p, node, expected);
    if (!json_begin_array(r) || !json_next_item(r) || !read_value(p, node, 1, &p->graph->loss))
        return fail_parse(p, node, expected);
    /* A constant loss would have no gradient: nothing could be learned from it. */
    if (p->graph->loss.kind != VALUE_REF)
        return fail_parse(p, node, "the loss must be the value of a node");
    if (!json_next_item(r) || !read_metrics(p, node) || json_next_item(r))
        return fail_parse(p, node, expected);
    if ((tuple && json_next_key(r, &key)) || json_next_item(r))
        return fail_parse(p, node, expected);
    return !r->failed || fail_json(p, node);
}

/* The part of a node that depends on its `op`. */
static bool check_kind(struct parser *p, struct graph_node *node, const char *kind)
{
    struct graph *g = p->graph;
    if (strcmp(kind, "placeholder") == 0) {
        node->kind = NODE_PLACEHOLDER;
        node->input = p->placeholders++;
        /* The recorded function's parameters are matched by position and name: with an order of its
         * own a loss would silently train on the wrong input. */
        if (node->input >= g->n_inputs || strcmp(g->inputs[node->input].name, node->target) != 0)
            return fail_parse(p, node, "placeholders must be the inputs, in their order");
        return true;
    }
    if (strcmp(kind, "output") == 0) {
        node->kind = NODE_OUTPUT;
        p->output = true;
        return true;
    }
    bool method = strcmp(kind, "call_method") == 0;
    node->kind = NODE_CALL;
    if (!method && strcmp(kind, "call_function") != 0)
        return fail_parse(p, node,
                          "this kind of node is not supported here (placeholder, call_function, "
                          "call_method and output are)");
    /* Looked up once here, not at each datum; an unknown operation is found before anything is
     * queued. */
    node->op = op_find(method, node->target);
    if (node->op)
        return true;
    char text[330];
    snprintf(text, sizeof(text), "%.80s is not supported here (supported: %s)", node->target,
             op_known());
    return fail_parse(p, node, text);
}

/* A node is read twice: its name and kind say how to read its arguments, and may stand behind them. */
static bool read_node(struct parser *p, struct graph_node *node)
{
    struct json_str raw, key, args = { 0 }, kwargs = { 0 };
    struct json_reader *r = &p->r, whole = *r;
    const char *kind = NULL;
    /* The first pass takes the object as a whole and remembers where the text goes on. */
    if (!json_raw(r, &raw))
        return fail_json(p, NULL);
    struct json_reader after = *r;
    json_reader_part(r, &whole, raw);
    if (!json_begin_object(r))
        return fail_json(p, NULL);
    while (json_next_key(r, &key)) {
        /* All keys are optional here and checked below: JSON objects have no order. */
        if (json_str_is(key, "op") && !read_text(p, node, &kind))
            return false;
        else if (json_str_is(key, "op"))
            continue;
        if (json_str_is(key, "name")) {
            if (!read_text(p, node, &node->name))
                return false;
        } else if (json_str_is(key, "target")) {
            if (!read_text(p, node, &node->target))
                return false;
        } else if (json_str_is(key, "args"))
            json_raw(r, &args);
        else if (json_str_is(key, "kwargs"))
            json_raw(r, &kwargs);
        else
            json_skip(r);
    }
    if (r->failed)
        return fail_json(p, node);
    if (!kind || !node->name || !node->target)
        return fail_parse(p, node, "a node needs op, name and target");
    if (p->output)
        return fail_parse(p, node, "nothing may follow the output");
    /* A second node of the name would redirect references to the first. */
    if (map_get(&p->nodes, node->name, strlen(node->name)))
        return fail_parse(p, node, "another node has this name");
    if (!check_kind(p, node, kind))
        return false;
    /* The second pass: the arguments, now that the kind is known. */
    bool ok = true;
    if (args.s) {
        json_reader_part(r, &whole, args);
        ok = node->kind == NODE_OUTPUT
                 ? read_result(p, node)
                 : read_items(p, node, 0, ARGS_MAX, &node->args, &node->n_args);
    } else if (node->kind == NODE_OUTPUT) {
        ok = fail_parse(p, node, "it returns nothing");
    }
    if (ok && kwargs.s && node->kind == NODE_CALL) {
        json_reader_part(r, &whole, kwargs);
        ok = read_kwargs(p, node);
    }
    *r = after;
    return ok && (map_put(&p->nodes, node->name, strlen(node->name), node, NULL) || fail_memory(p));
}

static bool read_graph(struct parser *p)
{
    struct graph *g = p->graph;
    struct json_str key;
    int64_t format = 0;
    bool nodes = false;
    if (!json_begin_object(&p->r))
        return fail_json(p, NULL);
    while (json_next_key(&p->r, &key)) {
        if (json_str_is(key, "format"))
            /* An unknown version of the format may give known keys another meaning; it is refused
             * below. */
            json_int64(&p->r, &format);
        else if (json_str_is(key, "nodes") && !nodes) {
            /* A second "nodes" would add to the first under the same map; it is skipped. */
            nodes = true;
            /* The array must not move while map and references point into it, so it gets room for
             * all nodes that a graph may have. */
            g->nodes = arena_array(&g->arena, GRAPH_NODES_MAX, sizeof(*g->nodes));
            if (!g->nodes)
                return fail_memory(p);
            if (!json_begin_array(&p->r))
                return fail_json(p, NULL);
            while (json_next_item(&p->r)) {
                if (g->n_nodes == GRAPH_NODES_MAX)
                    return fail_parse(p, NULL, "it has more than 4096 nodes");
                if (!read_node(p, &g->nodes[g->n_nodes++]))
                    return false;
            }
        } else
            json_skip(&p->r);
    }
    if (!json_end(&p->r))
        return fail_json(p, NULL);
    if (format != 1)
        return fail_parse(p, NULL, "graphs of another format than 1 are not supported here");
    if (!p->output)
        return fail_parse(p, NULL, "it has no output");
    /* check_kind() sees a placeholder that is missing in between, but not at the end. */
    return p->placeholders == g->n_inputs || fail_parse(p, NULL, "an input has no placeholder");
}

static bool copy_inputs(struct parser *p, const struct graph_input *inputs, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
    struct graph *g = p->graph;
    if (n < 1 || n > GRAPH_INPUTS_MAX)
        return fail_parse(p, NULL, "it must have from 1 to 16 inputs");
    for (size_t i = 0; i < n; i++) {
        /* [a-z_][a-z0-9_]{0,63}: what is a name in Python, in the datum and on the wire. */
        const char *name = inputs[i].name ? inputs[i].name : "";
        size_t length = strspn(name, allowed);
        if (length < 1 || length > 64 || name[length] || (name[0] >= '0' && name[0] <= '9'))
            return fail_parse(p, NULL, "names of inputs are small letters, digits and _");
        /* A scalar logprob cannot occur: one datum has at least one position. */
        if (inputs[i].rank < (i == 0) || inputs[i].rank > 2)
            return fail_parse(p, NULL, "inputs have rank 0, 1 or 2, logprobs 1 or 2");
        g->inputs[i].rank = inputs[i].rank;
        g->inputs[i].name = arena_strdup(&g->arena, name);
        if (!g->inputs[i].name)
            return fail_memory(p);
    }
    g->n_inputs = n;
    /* Its gradient is what trains the model, so it has a fixed place. */
    return strcmp(inputs[0].name, "logprobs") == 0 ||
           fail_parse(p, NULL, "its first input must be logprobs");
}

struct graph *graph_new(const char *name, const struct graph_input *inputs, size_t n_inputs,
                        const char *json, size_t n, tinker_error *err)
{
    struct graph *g = calloc(1, sizeof(*g));
    if (!g) {
        err_nomem(err, "graph");
        return NULL;
    }
    /* 64 MiB for nodes and arguments, many times what 4096 nodes need. */
    arena_init(&g->arena, 64 << 20);
    struct parser p = { .graph = g, .err = err };
    map_init(&p.nodes);
    g->name = arena_strdup(&g->arena, name ? name : "");
    json_reader_init(&p.r, json, n, &g->arena);
    bool ok = g->name ? copy_inputs(&p, inputs, n_inputs) && read_graph(&p) : fail_memory(&p);
    map_clear(&p.nodes);
    if (ok)
        return g;
    graph_free(g);
    return NULL;
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    arena_clear(&g->arena);
    free(g);
}

size_t graph_metrics(const struct graph *g)
{
    return g->n_metrics;
}

const char *graph_metric_name(const struct graph *g, size_t i)
{
    return g->metrics[i].name;
}

int graph_metric_is_mean(const struct graph *g, size_t i)
{
    /* is_metric_name() has made sure of the suffix. */
    return strcmp(strrchr(g->metrics[i].name, ':'), ":mean") == 0;
}
