/* engine-dump.c - run a request on the engine and write every number it produced.
 *
 *   engine-dump MODEL REQUEST.json OUT.safetensors [SAVE_DIR [EXPORT_DIR]]
 *
 * For comparisons with other implementations.  REQUEST is an object:
 *   "adapter"  directory of an adapter to load, or "lora": {"rank", "seed", "attn",
 *              "mlp", "unembed"} for a new one; neither: the base model, forward only
 *   "loss", "config"  name and settings; "threads", "memory", "bf16"  of the engine
 *   "data"     [{"tokens": [...], "target_tokens": [...], "k": K, "weights": [...], ...}]
 *   "peft"     1: save with the names of PEFT
 *   "gguf"     a file for the merged model, of type "gguf_type"; "gguf_lora": one for the adapter
 *   "dtype"    number of tinker_weights_dtype; "base": 1 writes the weights of the model
 *   "generate" tokens to sample greedily after each datum's tokens
 *   "steps"    number of AdamW steps (0: none), "adam": {"lr", "wd", "clip", "eps"}
 * OUT has logits.I, logprobs.I, losses.I of each datum, grad.NAME after the first
 * pass, weight.NAME at the end and loss, one value per pass; generated.I and the sampler's
 * log-probabilities of them and of the prompt, sampled.I and prompt.I. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/os.h"
#include "engine/model/adapter.h"
#include "engine/layers/delta.h"
#include "engine/train/forward.h"
#include "engine/safetensors/safetensors.h"
#include "json/json.h"

enum { MAX_DATA = 256, MAX_INPUTS = 8, MAX_CONFIG = 8, MAX_OUT = 4096 };

struct request {
    struct arena arena;
    char *adapter, *loss;
    tinker_lora lora;
    bool has_lora;
    tinker_named_number config[MAX_CONFIG];
    size_t n_config;
    tinker_engine_options engine;
    tinker_adam adam;
    int64_t steps, peft, base, generate, gguf_type;
    char *gguf, *gguf_lora; /* files to write */
    tinker_datum data[MAX_DATA];
    size_t n;
};

/* What goes into OUT; the values are copied when they are added. */
struct output {
    struct arena arena;
    struct st_entry entries[MAX_OUT];
    const void *data[MAX_OUT];
    size_t n;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "engine-dump: %s: %s\n", what, why);
    exit(1);
}

static void add_output(struct output *o, const char *prefix, const char *name, const float *data,
                       size_t rows, size_t cols)
{
    if (o->n == MAX_OUT)
        die(name, "too many results");
    struct st_entry *e = &o->entries[o->n];
    e->name = arena_printf(&o->arena, "%s%s", prefix, name);
    e->dtype = SOURCE_F32;
    if (rows)
        e->shape[e->ndim++] = rows;
    e->shape[e->ndim++] = cols;
    o->data[o->n] = arena_memdup(&o->arena, data, (rows ? rows : 1) * cols * sizeof(float));
    if (!e->name || !o->data[o->n])
        die(name, "no memory");
    o->n++;
}

static const void *fetch_output(void *state, size_t entry, tinker_error *err)
{
    (void)err;
    return ((struct output *)state)->data[entry];
}

/* ---- the request ------------------------------------------------------------------------- */

static void read_datum(struct json_reader *r, struct request *q)
{
    struct json_str key;
    int64_t k = 0;
    if (q->n == MAX_DATA)
        die("data", "too many");
    tinker_datum *d = &q->data[q->n++];
    tinker_named_tensor *inputs = arena_array(&q->arena, MAX_INPUTS, sizeof(*inputs));
    tinker_chunk *chunk = arena_array(&q->arena, 1, sizeof(*chunk));
    int64_t *shape = arena_array(&q->arena, 2, sizeof(*shape));
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "tokens")) {
            int32_t *tokens;
            json_array_int32(r, &tokens, &chunk->n_tokens);
            chunk->tokens = tokens;
        } else if (json_str_is(key, "k")) {
            json_int64(r, &k);
        } else {
            tinker_named_tensor *t = &inputs[d->n_inputs++];
            t->name = arena_strndup(&q->arena, key.s, key.n);
            if (json_str_is(key, "target_tokens")) {
                int64_t *values;
                json_array_int64(r, &values, &t->tensor.n);
                t->tensor.dtype = TINKER_INT64;
                t->tensor.data = values;
            } else {
                float *values;
                json_array_float(r, &values, &t->tensor.n);
                t->tensor.dtype = TINKER_FLOAT32;
                t->tensor.data = values;
            }
        }
    }
    d->model_input = (tinker_model_input){ chunk, 1 };
    d->inputs = inputs;
    shape[0] = (int64_t)chunk->n_tokens;
    shape[1] = k;
    for (size_t i = 0; k && i < d->n_inputs; i++) {
        inputs[i].tensor.shape = shape;
        inputs[i].tensor.ndim = 2;
    }
}

static void read_lora(struct json_reader *r, struct request *q)
{
    struct json_str key;
    int64_t v = 0;
    q->has_lora = true;
    q->lora.has_seed = 1;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        json_int64(r, &v);
        if (json_str_is(key, "rank"))
            q->lora.rank = v;
        else if (json_str_is(key, "seed"))
            q->lora.seed = v;
        else if (json_str_is(key, "attn"))
            q->lora.train_attn = (int)v;
        else if (json_str_is(key, "mlp"))
            q->lora.train_mlp = (int)v;
        else if (json_str_is(key, "unembed"))
            q->lora.train_unembed = (int)v;
    }
}

static void read_adam(struct json_reader *r, struct request *q)
{
    struct json_str key;
    double v = 0;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        json_double(r, &v);
        if (json_str_is(key, "lr"))
            q->adam.learning_rate = v;
        else if (json_str_is(key, "wd"))
            q->adam.weight_decay = v;
        else if (json_str_is(key, "clip"))
            q->adam.grad_clip_norm = v;
        else if (json_str_is(key, "eps"))
            q->adam.eps = v;
    }
}

static void read_config(struct json_reader *r, struct request *q)
{
    struct json_str key;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (q->n_config == MAX_CONFIG)
            die("config", "too many");
        tinker_named_number *c = &q->config[q->n_config++];
        c->name = arena_strndup(&q->arena, key.s, key.n);
        json_double(r, &c->value);
    }
}

static void read_key(struct json_reader *r, struct json_str key, struct request *q)
{
    int64_t v = 0;
    if (json_str_is(key, "adapter"))
        json_cstring(r, &q->adapter);
    else if (json_str_is(key, "loss"))
        json_cstring(r, &q->loss);
    else if (json_str_is(key, "lora"))
        read_lora(r, q);
    else if (json_str_is(key, "adam"))
        read_adam(r, q);
    else if (json_str_is(key, "config"))
        read_config(r, q);
    else if (json_str_is(key, "steps"))
        json_int64(r, &q->steps);
    else if (json_str_is(key, "generate"))
        json_int64(r, &q->generate);
    else if (json_str_is(key, "peft"))
        json_int64(r, &q->peft);
    else if (json_str_is(key, "threads"))
        q->engine.threads = json_int64(r, &v) ? (int)v : 0;
    else if (json_str_is(key, "memory"))
        q->engine.memory_limit = json_int64(r, &v) ? (uint64_t)v : 0;
    else if (json_str_is(key, "bf16"))
        q->engine.dtype = json_int64(r, &v) && v ? TINKER_WEIGHTS_BF16 : TINKER_WEIGHTS_F32;
    else if (json_str_is(key, "stored"))
        q->engine.dtype = json_int64(r, &v) && v ? TINKER_WEIGHTS_STORED : TINKER_WEIGHTS_F32;
    else if (json_str_is(key, "dtype"))
        q->engine.dtype = json_int64(r, &v) ? (tinker_weights_dtype)v : TINKER_WEIGHTS_F32;
    else if (json_str_is(key, "base"))
        json_int64(r, &q->base);
    else if (json_str_is(key, "gguf"))
        json_cstring(r, &q->gguf);
    else if (json_str_is(key, "gguf_type"))
        json_int64(r, &q->gguf_type);
    else if (json_str_is(key, "gguf_lora"))
        json_cstring(r, &q->gguf_lora);
    else if (json_str_is(key, "data")) {
        json_begin_array(r);
        while (json_next_item(r))
            read_datum(r, q);
    } else {
        json_skip(r);
    }
}

static void read_request(struct request *q, const char *path)
{
    struct json_reader r;
    struct json_str key;
    tinker_error err;
    char *text;
    size_t len;
    if (os_read_file(path, 1 << 30, &text, &len, &err) != TINKER_OK)
        die(path, err.message);
    json_reader_init(&r, text, len, &q->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        read_key(&r, key, q);
    if (!json_end(&r))
        die(path, json_error(&r));
    free(text);
}

/* ---- running it -------------------------------------------------------------------------- */

static void dump_logits(struct output *o, tinker_engine *e, tinker_adapter *a,
                        const tinker_datum *d, const char *name)
{
    tinker_error err;
    const struct model *m = adapter_model(e, a);
    const struct model_config *c = &m->config;
    const struct lora *lora = adapter_lora(a);
    size_t n = d->model_input.chunks[0].n_tokens, pages = (n + KV_BLOCK - 1) / KV_BLOCK;
    struct forward_space *s = forward_space_new(c, n, lora ? lora->rank : 0, &err);
    float *kv = calloc(pages, kv_page_floats(c) * sizeof(float));
    float **page = calloc(pages, sizeof(*page));
    float *h = calloc(n * c->hidden, sizeof(float)), *logits = calloc(n * c->vocab, sizeof(float));
    const struct lora **rows = calloc(n, sizeof(*rows));
    if (!s || !kv || !page || !h || !logits || !rows)
        die(name, "no memory");
    for (size_t i = 0; i < pages; i++)
        page[i] = kv + i * kv_page_floats(c);
    for (size_t i = 0; i < n; i++)
        rows[i] = lora;
    float *state = calloc(delta_state_floats(c) + 1, sizeof(*state));
    if (!state)
        die(name, "no memory");
    struct segment segment = { .n = n,
                               .lora = lora,
                               .pages = page,
                               .is_long = model_is_long(c, n),
                               .state = delta_state_floats(c) ? state : NULL };
    struct batch batch = { n, d->model_input.chunks[0].tokens, &segment, 1 };
    forward_rows(m, e->threads, s, &batch, h);
    forward_logits(m, e->threads, s, h, n, rows, logits);
    add_output(o, "logits.", name, logits, n, c->vocab);
    forward_space_free(s);
    free(state);
    free(kv);
    free(page);
    free(h);
    free(logits);
    free(rows);
}

/* Greedy tokens after the tokens of a datum, and the sampler's logprobs of prompt and tokens. */
static void dump_generated(struct output *o, tinker_engine *e, tinker_adapter *a,
                           const tinker_datum *d, int64_t count, const char *name)
{
    tinker_error err = { 0 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    int32_t none = -1;
    params.max_tokens = count;
    params.temperature = 0;
    params.stop_tokens = &none; /* an empty list: nothing ends it */
    tinker_generate q = { .adapter = a,
                          .prompt = d->model_input.chunks[0].tokens,
                          .n_prompt = d->model_input.chunks[0].n_tokens,
                          .params = &params,
                          .num_samples = 1,
                          .prompt_logprobs = 1 };
    const tinker_sample *sample = NULL;
    tinker_generator *g = tinker_generator_new(e, &err);
    if (!g || tinker_generator_add(g, &q, &err) != TINKER_OK)
        die(name, err.message);
    while (tinker_generator_step(g, &err) > 0)
        ;
    if (!tinker_generator_next(g, NULL, &sample, &err) || !sample)
        die(name, err.message);
    float tokens[1024];
    const tinker_sequence *s = &sample->sequences[0];
    for (size_t i = 0; i < s->n && i < 1024; i++)
        tokens[i] = (float)s->tokens[i];
    add_output(o, "generated.", name, tokens, 0, s->n);
    add_output(o, "sampled.", name, s->logprobs, 0, s->n);
    if (sample->n_prompt > 1)
        add_output(o, "prompt.", name, sample->prompt_logprobs + 1, 0, sample->n_prompt - 1);
    tinker_generator_free(g);
}

static double run_pass(struct output *o, tinker_engine *e, tinker_adapter *a, struct request *q)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = q->loss, .config = q->config, .n_config = q->n_config };
    tinker_pass *p = tinker_pass_new(e, a, q->data, q->n, &loss, a == NULL, &err);
    int more = p ? 1 : -1;
    while (more > 0)
        more = tinker_pass_step(p, &err);
    if (more < 0)
        die("pass", err.message);
    const tinker_forward_backward *r = tinker_pass_result(p);
    for (size_t i = 0; o && i < r->n_outputs; i++) {
        char name[32];
        const tinker_tensor *lp = &r->outputs[i].tensors[0].tensor;
        snprintf(name, sizeof(name), "%zu", i);
        add_output(o, "logprobs.", name, lp->data, 0, lp->n);
        add_output(o, "losses.", name, r->outputs[i].tensors[1].tensor.data, 0, lp->n);
    }
    double sum = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    tinker_pass_free(p);
    return sum;
}

static void dump_params(struct output *o, const tinker_adapter *a, const char *prefix,
                        const float *values)
{
    for (size_t i = 0; i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        size_t rows = p->vector ? 0 : param_count(p) / p->cols; /* stacks lie one below the other */
        add_output(o, prefix, p->name, values + p->offset, rows, p->cols);
    }
}

/* The walk of dump_base(). */
struct base_dump {
    struct output *o;
    const tinker_engine *e;
};

/* A visitor of model_tensors(): the numbers that the file has for a tensor. */
static tinker_status dump_tensor(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct base_dump *d = state;
    struct weight w = { 0 };
    size_t stored = tensor_stored_rows(at);
    size_t rows = stored ? stored : at->cols, cols = stored ? at->cols : 1;
    if (at->first)
        return TINKER_OK; /* came with the first rows of its module */
    float *values = malloc(rows * cols * sizeof(*values));
    if (!values || !engine_weight(d->e, at->name, stored, at->cols, &w, err))
        die(at->name, err->message);
    weight_to_float(&w, rows, cols, values);
    add_output(d->o, "base.", at->name, values, stored, at->cols);
    free(values);
    free(w.owned);
    return TINKER_OK;
}

static void run(struct output *o, tinker_engine *e, tinker_adapter *a, struct request *q)
{
    tinker_error err = { 0 };
    float losses[1024];
    size_t n = 0;
    struct base_dump base = { o, e };
    if (q->base)
        model_tensors(&e->model->config, dump_tensor, &base, &err);
    if (q->n == 0)
        return;
    for (size_t i = 0; i < q->n; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%zu", i);
        dump_logits(o, e, a, &q->data[i], name);
        if (q->generate > 0)
            dump_generated(o, e, a, &q->data[i], q->generate, name);
    }
    for (int64_t step = 0; step == 0 || step < q->steps; step++) {
        losses[n++] = (float)run_pass(step ? NULL : o, e, a, q);
        if (a && step == 0)
            dump_params(o, a, "grad.", a->grad);
        if (a && q->steps && tinker_adapter_step(a, &q->adam, NULL, &err) != TINKER_OK)
            die("step", err.message);
    }
    add_output(o, "loss", "", losses, 0, n);
    if (a)
        dump_params(o, a, "weight.", a->w);
}

int main(int argc, char **argv)
{
    static struct request q;
    static struct output o;
    tinker_error err = { 0 };
    if (argc < 4) {
        fprintf(stderr,
                "usage: engine-dump MODEL REQUEST.json OUT.safetensors [SAVE_DIR [EXPORT_DIR]]\n");
        return 2;
    }
    arena_init(&q.arena, SIZE_MAX);
    arena_init(&o.arena, SIZE_MAX);
    q.lora = (tinker_lora)TINKER_LORA_INIT;
    q.engine = (tinker_engine_options)TINKER_ENGINE_OPTIONS_INIT;
    q.adam = (tinker_adam)TINKER_ADAM_INIT;
    read_request(&q, argv[2]);
    if (q.steps > 1024)
        die("steps", "at most 1024");
    tinker_engine *e = tinker_engine_open(argv[1], &q.engine, &err);
    if (!e)
        die(argv[1], err.message);
    tinker_adapter *a = NULL;
    if (q.adapter)
        a = tinker_adapter_load(e, q.adapter, 0, &err);
    else if (q.has_lora)
        a = tinker_adapter_new(e, &q.lora, &err);
    if (!a && (q.adapter || q.has_lora))
        die("adapter", err.message);
    run(&o, e, a, &q);
    if (safetensors_write(argv[3], o.entries, o.n, fetch_output, &o, &err) != TINKER_OK)
        die(argv[3], err.message);
    if (q.gguf &&
        tinker_engine_export_gguf(e, a, q.gguf, (tinker_gguf_type)q.gguf_type, &err) != TINKER_OK)
        die(q.gguf, err.message);
    if (q.gguf_lora && tinker_adapter_export_gguf(a, q.gguf_lora, &err) != TINKER_OK)
        die(q.gguf_lora, err.message);
    if (argc > 4 && tinker_adapter_save(a, argv[4], argv[1],
                                        q.peft ? TINKER_ADAPTER_PEFT : TINKER_ADAPTER_OPTIMIZER,
                                        &err) != TINKER_OK)
        die(argv[4], err.message);
    if (argc > 5 && tinker_adapter_export(a, argv[5], &err) != TINKER_OK)
        die(argv[5], err.message);
    tinker_adapter_free(a);
    tinker_engine_close(e);
    arena_clear(&o.arena);
    arena_clear(&q.arena);
    return 0;
}
