/* files.c - model and adapter files: round trips, exports, and files that lie. */
#include <tinker/engine.h>
#include <math.h>
#include <unistd.h>
#include "base/buf.h"
#include "engine/model/adapter.h"
#include "engine/model/expert_stack.h"
#include "engine/safetensors/weight_files.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static const size_t lengths[] = { 20, 9 };

static void options(struct init_model *o)
{
    tiny_options(o, "qwen3");
    o->config.context = 64;
}

static tinker_adapter *trained(tinker_engine *e, const tinker_lora *want, int steps)
{
    tinker_error err = { 0 };
    tinker_lora lora = *want;
    lora.has_seed = 1;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    struct tiny_data *d = tiny_data(lengths, 2, 13, "cross_entropy", 3);
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 0.02;
    for (int i = 0; i < steps; i++) {
        tiny_train(e, a, d, "cross_entropy");
        tinker_adapter_step(a, &adam, NULL, &err);
    }
    free(d);
    return a;
}

/* Logprobs of the fixed data; n values. */
static size_t logprobs(tinker_engine *e, tinker_adapter *a, float *out)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    struct tiny_data *d = tiny_data(lengths, 2, 13, "cross_entropy", 3);
    tinker_pass *p = tiny_pass(e, a, d, &loss, 1, &err);
    size_t n = 0;
    for (size_t i = 0; p && i < 2; i++) {
        const tinker_tensor *t = &tinker_pass_result(p)->outputs[i].tensors[0].tensor;
        memcpy(out + n, t->data, t->n * sizeof(float));
        n += t->n;
    }
    tinker_pass_free(p);
    free(d);
    return n;
}

static double largest_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

static void test_save_and_load(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    for (int flags = 1; flags < 8; flags++) {
        tinker_lora lora = TINKER_LORA_INIT;
        lora.rank = 3;
        lora.train_attn = flags & 1;
        lora.train_mlp = flags >> 1 & 1;
        lora.train_unembed = flags >> 2;
        tinker_adapter *a = trained(e, &lora, 2);
        const char *dir = tiny_path("saved");
        os_make_dirs(dir, NULL);
        CHECK_INT(tinker_adapter_save(a, dir, "base/name", 0, &err), TINKER_OK);
        tinker_adapter *b = tinker_adapter_load(e, dir, 0, &err);
        if (!b)
            TAP_FAIL("%s", err.message);
        REQUIRE(b);
        const tinker_lora *l = tinker_adapter_describe(b);
        CHECK_INT(l->rank, 3);
        CHECK_INT(l->train_attn, flags & 1);
        CHECK_INT(l->train_mlp, flags >> 1 & 1);
        CHECK_INT(l->train_unembed, flags >> 2);
        CHECK_MEM(a->w, a->params.total * 4, b->w, b->params.total * 4);
        CHECK_INT(tinker_adapter_steps(b), 0);
        /* no optimizer was saved */
        CHECK(!tinker_adapter_load(e, dir, TINKER_ADAPTER_OPTIMIZER, &err));
        tinker_adapter_free(a);
        tinker_adapter_free(b);
    }
    tinker_engine_close(e);
}

static void test_another_base_is_refused(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    o.seed++;
    tinker_engine *other = tiny_open(&o, NULL);
    o.config.intermediate++;
    tinker_engine *wider = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    tinker_adapter *a = trained(e, &lora, 1);
    const char *dir = tiny_path("other");
    os_make_dirs(dir, NULL);
    tinker_adapter_save(a, dir, "m", TINKER_ADAPTER_OPTIMIZER, &err);
    CHECK(!tinker_adapter_load(other, dir, TINKER_ADAPTER_OPTIMIZER, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(strstr(err.message, "another base model") != NULL);
    tinker_adapter_save(a, tiny_path("other"), "m", 0, &err);
    unlink(tiny_path("other/trainer_state.json"));
    CHECK(!tinker_adapter_load(wider, tiny_path("other"), 0, &err));
    CHECK(strstr(err.message, "mlp") != NULL);
    CHECK(strcmp(tinker_engine_describe(e)->fingerprint,
                 tinker_engine_describe(other)->fingerprint) != 0);
    tinker_adapter_free(a);
    tinker_engine_close(e);
    tinker_engine_close(other);
    tinker_engine_close(wider);
}

static void check_export(struct init_model *o, tinker_lora *lora, double tolerance)
{
    tinker_error err = { 0 };
    float want[64], got[64];
    tinker_engine *e = tiny_open(o, NULL);
    tinker_adapter *a = trained(e, lora, 3);
    const char *dir = tiny_path("merged");
    os_remove_tree(dir, NULL);
    CHECK_INT(tinker_adapter_export(a, dir, &err), TINKER_OK);
    size_t n = logprobs(e, a, want);
    float base[64];
    logprobs(e, NULL, base);
    CHECK(largest_difference(want, base, n) > 0.05); /* it did learn something */
    tinker_engine *merged = tinker_engine_open(tiny_path("merged"), NULL, &err);
    if (!merged)
        TAP_FAIL("%s", err.message);
    REQUIRE(merged);
    CHECK_INT(logprobs(merged, NULL, got), n);
    double worst = largest_difference(want, got, n);
    if (!(worst < tolerance))
        TAP_FAIL("merged logprobs differ by %g", worst);
    CHECK_INT(access(tiny_path("merged/tokenizer.json"), F_OK), 0);
    CHECK_INT(tinker_adapter_export(a, e->dir, &err), TINKER_EINVAL);
    tinker_engine_close(merged);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void test_export_merges(void)
{
    struct init_model o;
    options(&o);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    check_export(&o, &lora, 2e-5); /* tied: the export unties */
    lora.train_unembed = 0;
    o.shards = 3;
    check_export(&o, &lora, 2e-5);
    o.config.tied = false;
    lora.train_unembed = 1;
    check_export(&o, &lora, 2e-5);
    o.dtype = SOURCE_BF16;
    check_export(&o, &lora, 0.2);
    o.dtype = SOURCE_F32;
    lora.rank = 0;
    check_export(&o, &lora, 0.0 + 1e-6);
}

/* ---- experts -------------------------------------------------------------------------------- */

/* Tensors of a model with its experts in two stacks, as transformers 5 may write them. */
struct stacking {
    const struct model_config *c;
    const tinker_engine *e;
    struct st_entry entries[64];
    char names[64][96];
    size_t n;
    float values[4096];
};

static tinker_status collect(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct stacking *s = state;
    (void)err;
    bool first = at->expert == 0 && (at->id == LINEAR_GATE || at->id == LINEAR_DOWN);
    if (at->kind == TENSOR_EXPERT && !first)
        return TINKER_OK;
    struct st_entry *e = &s->entries[s->n];
    char *name = s->names[s->n++];
    snprintf(name, 96, "%s", at->name);
    *e = (struct st_entry){ .name = name, .dtype = SOURCE_F32 };
    if (at->kind == TENSOR_EXPERT) {
        snprintf(name, 96, "model.layers.%zu.mlp.experts.%s", at->layer,
                 at->id == LINEAR_DOWN ? "down_proj" : "gate_up_proj");
        e->shape[e->ndim++] = s->c->experts;
    }
    if (at->rows)
        e->shape[e->ndim++] =
            at->rows * (at->kind == TENSOR_EXPERT && at->id == LINEAR_GATE ? 2 : 1);
    e->shape[e->ndim++] = at->cols;
    return TINKER_OK;
}

static const void *stacked(void *state, size_t entry, tinker_error *err)
{
    struct stacking *s = state;
    const struct st_entry *t = &s->entries[entry];
    const char *last = strrchr(t->name, '.') + 1;
    struct weight w;
    if (t->ndim < 3) {
        bool ok = engine_weight(s->e, t->name, t->ndim == 2 ? t->shape[0] : 0,
                                t->shape[t->ndim - 1], &w, err);
        return ok ? w.data : NULL;
    }
    if (strcmp(last, "scale") == 0)
        return memset(s->values, 0, sizeof(s->values));
    bool pair = strcmp(last, "gate_up_proj") == 0;
    size_t rows = t->shape[1] / (pair ? 2 : 1), n = rows * t->shape[2];
    for (size_t i = 0; i < t->shape[0] * (pair ? 2 : 1); i++) {
        char name[128];
        snprintf(name, sizeof(name), "%.*s%zu.%s.weight", (int)(last - t->name), t->name,
                 pair ? i / 2 : i,
                 !pair   ? "down_proj"
                 : i % 2 ? "up_proj"
                         : "gate_proj");
        if (!engine_weight(s->e, name, rows, t->shape[2], &w, err))
            return NULL;
        memcpy(s->values + i * n, w.data, n * sizeof(float));
    }
    return s->values;
}

/* Files are converted without the model's weights, to the same bytes. */
static void check_converted(const char *saved, const char *expected)
{
    static const char *const files[] = { "adapter_model.safetensors", "adapter_config.json" };
    tinker_error err = { 0 };
    char model[512], path[600], want[600];
    snprintf(model, sizeof(model), "%s", tiny_path("stacks"));
    os_make_dirs(tiny_path("converted"), NULL);
    CHECK_INT(tinker_adapter_to_peft(saved, model, NULL, tiny_path("converted"), &err), TINKER_OK);
    for (size_t i = 0; i < 2; i++) {
        char *a, *b;
        size_t n, k;
        snprintf(path, sizeof(path), "%s/%s", tiny_path("converted"), files[i]);
        snprintf(want, sizeof(want), "%s/%s", expected, files[i]);
        REQUIRE(os_read_file(path, 1 << 24, &a, &n, &err) == TINKER_OK);
        REQUIRE(os_read_file(want, 1 << 24, &b, &k, &err) == TINKER_OK);
        CHECK_MEM(a, n, b, k);
        free(a);
        free(b);
    }
    /* what is in that form already stays so */
    char again[512];
    snprintf(again, sizeof(again), "%s", tiny_path("converted"));
    os_make_dirs(tiny_path("converted-again"), NULL);
    CHECK_INT(tinker_adapter_to_peft(again, model, NULL, tiny_path("converted-again"), &err),
              TINKER_OK);
    /* without the model nobody knows how PEFT lays its experts out */
    CHECK_INT(tinker_adapter_to_peft(saved, NULL, NULL, tiny_path("converted"), &err),
              TINKER_ESTATE);
    CHECK(strstr(err.message, "need the base model") != NULL);
}

/* What PEFT has of all experts comes back as stacks, unless a shared factor differs. */
static void check_peft_experts(tinker_engine *e, const tinker_adapter *a)
{
    tinker_error err = { 0 };
    tinker_adapter *b = tinker_adapter_load(e, tiny_path("stacks-saved"), 0, &err);
    if (!b)
        TAP_FAIL("%s", err.message);
    REQUIRE(b);
    CHECK_MEM(a->w, a->params.total * 4, b->w, b->params.total * 4);
    /* expert 4's copy of the shared A of gate, changed in memory and written again */
    const struct lora_pair *gate = lora_pair(&b->lora, 0, LINEAR_GATE);
    CHECK_INT(gate->a_step, 0);
    char *data;
    size_t n;
    const char *path = tiny_path("stacks-saved/adapter_model.safetensors");
    REQUIRE(os_read_file(path, 1 << 24, &data, &n, &err) == TINKER_OK);
    size_t last = 0, bytes = 2 * 10 * sizeof(float);
    for (size_t i = 0; i + bytes <= n; i++)
        if (memcmp(data + i, gate->a, bytes) == 0)
            last = i;
    CHECK(last > 0);
    data[last] ^= 1;
    CHECK_INT(os_write_file(path, data, n, &err), TINKER_OK);
    free(data);
    CHECK(!tinker_adapter_load(e, tiny_path("stacks-saved"), 0, &err));
    CHECK(strstr(err.message, "all experts share it") != NULL);
    tinker_adapter_free(b);
}

/* What older versions of PEFT write: a matrix for each expert, also of a factor that all share. */
struct older_form {
    struct st_entry entries[128];
    char names[128][PARAM_NAME];
    const float *from[128];
    size_t n;
};

static void add_older(struct older_form *o, const struct param *p, const float *w)
{
    struct st_entry *e = &o->entries[o->n];
    o->from[o->n] = w;
    *e = (struct st_entry){
        .name = o->names[o->n++], .dtype = SOURCE_F32, .shape = { p->rows, p->cols }, .ndim = 2
    };
}

static const void *fetch_older(void *state, size_t i, tinker_error *error)
{
    (void)error;
    return ((struct older_form *)state)->from[i];
}

static void check_older_peft_experts(tinker_engine *e, const tinker_adapter *a)
{
    static struct older_form o;
    tinker_error err = { 0 };
    float other[60];
    size_t last = 0; /* a copy of a shared factor */
    o.n = 0;
    for (size_t i = 0; i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        for (size_t k = 0; k < (p->stack ? e->model->config.experts : 1); k++) {
            if (p->stack)
                params_peft_expert_name(e->names, p->name, k, o.names[o.n]);
            else
                params_peft_name(&e->model->config, p->name, o.names[o.n]);
            if (p->stack == 1 && k > 0)
                last = o.n;
            add_older(&o, p, a->w + p->offset + (p->stack > 1 ? k * p->rows * p->cols : 0));
        }
    }
    const char *path = tiny_path("stacks-form/adapter_model.safetensors");
    for (int differs = 0; differs < 2; differs++) {
        if (differs) {
            size_t n = o.entries[last].shape[0] * o.entries[last].shape[1];
            REQUIRE(last > 0 && n <= sizeof(other) / sizeof(other[0]));
            memcpy(other, o.from[last], n * sizeof(float));
            other[n - 1] += 1;
            o.from[last] = other;
        }
        CHECK_INT(safetensors_write(path, o.entries, o.n, fetch_older, &o, &err), TINKER_OK);
        tinker_adapter *b = tinker_adapter_load(e, tiny_path("stacks-form"), 0, &err);
        CHECK_INT(b == NULL, differs);
        if (b)
            CHECK_MEM(a->w, a->params.total * 4, b->w, b->params.total * 4);
        if (!b && !strstr(err.message, differs ? "all experts share it" : "no error"))
            TAP_FAIL("%s", err.message);
        tinker_adapter_free(b);
    }
}

static const void *zeros(void *state, size_t i, tinker_error *error)
{
    static const float none[5 * 2 * 60 * 10];
    (void)state, (void)i, (void)error;
    return none;
}

/* The same model from one matrix per expert and from stacks; exports of both; the names of
 * PEFT. */
static void test_experts_in_files(void)
{
    static struct stacking s;
    struct init_model o;
    tinker_error err = { 0 };
    float want[64], got[64];
    tiny_options(&o, "qwen3_moe");
    o.config.context = 64;
    o.config.tied = false;
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    check_export(&o, &lora, 2e-5);
    tinker_engine *e = tiny_open(&o, NULL);
    char dir[160];
    snprintf(dir, sizeof(dir), "%s", tiny_path("stacks"));
    CHECK_INT(init_model_write(&o, dir, &err), TINKER_OK); /* for its other files */
    s.c = &e->model->config;
    s.e = e;
    model_tensors(s.c, collect, &s, NULL);
    s.entries[s.n++] = (struct st_entry){ /* of no model, and larger than what it looks like */
                                          "model.layers.0.mlp.experts.scale",
                                          SOURCE_F32,
                                          { 5, 40, 20 },
                                          3
    };
    CHECK_INT(
        safetensors_write(tiny_path("stacks/model.safetensors"), s.entries, s.n, stacked, &s, &err),
        TINKER_OK);
    tinker_engine *f = tinker_engine_open(dir, NULL, &err);
    if (!f)
        TAP_FAIL("%s", err.message);
    REQUIRE(f);
    size_t n = logprobs(e, NULL, want);
    CHECK_MEM(got, logprobs(f, NULL, got) * sizeof(float), want, n * sizeof(float));
    for (lora.rank = 0; lora.rank <= 2; lora.rank += 2) { /* all weights, then LoRA */
        tinker_adapter *a = trained(f, &lora, 2);
        os_remove_tree(tiny_path("stacks-merged"), NULL);
        CHECK_INT(tinker_adapter_export(a, tiny_path("stacks-merged"), &err), TINKER_OK);
        tinker_engine *merged = tinker_engine_open(tiny_path("stacks-merged"), NULL, &err);
        REQUIRE(merged);
        n = logprobs(f, a, want);
        CHECK_INT(logprobs(merged, NULL, got), n);
        CHECK(largest_difference(want, got, n) < 2e-5);
        const struct st_tensor *other =
            weight_files_find(merged->files, "model.layers.0.mlp.experts.scale", NULL);
        REQUIRE(other);
        CHECK_MEM(other->data, other->bytes, zeros(NULL, 0, NULL), 5 * 40 * 20 * 4);
        tinker_engine_close(merged);
        os_make_dirs(tiny_path("stacks-saved"), NULL);
        CHECK_INT(tinker_adapter_save(a, tiny_path("stacks-saved"), "m", 0, &err), TINKER_OK);
        tinker_adapter *b = tinker_adapter_load(e, tiny_path("stacks-saved"), 0, &err);
        REQUIRE(b);
        CHECK_MEM(a->w, a->params.total * 4, b->w, b->params.total * 4);
        tinker_adapter_free(b);
        if (!lora.rank) { /* all weights: PEFT has no adapter for that */
            CHECK_INT(tinker_adapter_to_peft(tiny_path("stacks-saved"), dir, NULL, dir, &err),
                      TINKER_ESTATE);
            CHECK(strstr(err.message, "rank 0") != NULL);
        } else {
            struct safetensors st;
            char saved[160], form[160];
            snprintf(saved, sizeof(saved), "%s", tiny_path("stacks-saved"));
            snprintf(form, sizeof(form), "%s", tiny_path("stacks-form"));
            os_make_dirs(form, NULL);
            CHECK_INT(tinker_adapter_save(a, form, "m", TINKER_ADAPTER_PEFT, &err), TINKER_OK);
            check_converted(saved, form);
            CHECK_INT(
                tinker_adapter_save(a, tiny_path("stacks-saved"), "m", TINKER_ADAPTER_PEFT, &err),
                TINKER_OK);
            REQUIRE(safetensors_open(&st, tiny_path("stacks-saved/adapter_model.safetensors"),
                                     &err) == TINKER_OK);
            const struct lora_pair *down = lora_pair(&a->lora, 1, LINEAR_DOWN);
            const struct st_tensor *x =
                safetensors_find(&st, "base_model.model.model.layers.1.mlp.experts.lora_A.weight");
            const struct st_tensor *y =
                safetensors_find(&st, "base_model.model.model.layers.1.mlp.experts.lora_B.weight");
            REQUIRE(x && y);
            CHECK_INT(x->ndim, 2);
            CHECK_MEM(x->data, x->bytes, down->a, 5 * 2 * 6 * 4);
            /* (out, rank, expert): every expert has the shared B */
            CHECK_INT(y->count, 10 * 2 * 5);
            for (size_t i = 0; i < y->count; i++)
                CHECK(((const float *)y->data)[i] == down->b[i / 5]);
            safetensors_close(&st);
            check_peft_experts(e, a);
            check_older_peft_experts(e, a);
        }
        tinker_adapter_free(a);
    }
    tinker_engine_close(e);
    tinker_engine_close(f);
}

/* A stack beside the matrices of the experts, which are what the model reads: it is copied as
 * it stands, whatever its shape. */
static void test_export_leaves_unused_stacks(void)
{
    const struct st_entry stack = {
        "model.layers.0.mlp.experts.gate_up_proj", SOURCE_F32, { 5, 2 * 60, 10 }, 3
    };
    struct init_model o;
    tinker_error err = { 0 };
    char dir[160];
    snprintf(dir, sizeof(dir), "%s", tiny_path("both"));
    tiny_options(&o, "qwen3_moe");
    o.config.context = 64;
    CHECK_INT(init_model_write(&o, dir, &err), TINKER_OK);
    rename(tiny_path("both/model.safetensors"), tiny_path("both/a.safetensors"));
    CHECK_INT(safetensors_write(tiny_path("both/b.safetensors"), &stack, 1, zeros, NULL, &err),
              TINKER_OK);
    tinker_engine *e = tinker_engine_open(dir, NULL, &err);
    REQUIRE(e);
    tinker_lora lora = TINKER_LORA_INIT;
    for (lora.rank = 0; lora.rank <= 2; lora.rank += 2) { /* all weights, then LoRA */
        struct safetensors st;
        tinker_adapter *a = trained(e, &lora, 1);
        os_remove_tree(tiny_path("both-merged"), NULL);
        CHECK_INT(tinker_adapter_export(a, tiny_path("both-merged"), &err), TINKER_OK);
        REQUIRE(safetensors_open(&st, tiny_path("both-merged/b.safetensors"), &err) == TINKER_OK);
        CHECK_MEM(st.tensors[0].data, st.tensors[0].bytes, zeros(NULL, 0, NULL),
                  5 * 2 * 60 * 10 * 4);
        safetensors_close(&st);
        tinker_adapter_free(a);
    }
    tinker_engine_close(e);
}

static const void *counted(void *state, size_t i, tinker_error *error)
{
    (void)i, (void)error;
    return state;
}

/* GPT-OSS has its experts by columns, gates and ups in turn: each is laid out as a matrix of its own. */
static void test_stacks_of_columns(void)
{
    enum { EXPERTS = 2, HIDDEN = 3, SIZE = 4 };
    static const struct st_entry entries[] = {
        { "model.layers.0.mlp.experts.gate_up_proj", SOURCE_F32, { EXPERTS, HIDDEN, 2 * SIZE }, 3 },
        { "model.layers.0.mlp.experts.gate_up_proj_bias", SOURCE_F32, { EXPERTS, 2 * SIZE }, 2 },
        { "model.layers.0.mlp.experts.down_proj", SOURCE_F32, { EXPERTS, SIZE, HIDDEN }, 3 },
    };
    float values[EXPERTS * HIDDEN * 2 * SIZE];
    tinker_error err = { 0 };
    struct weight w;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        values[i] = (float)i;
    os_make_dirs(tiny_path("columns"), NULL);
    CHECK_INT(safetensors_write(tiny_path("columns/model.safetensors"), entries, 3, counted, values,
                                &err),
              TINKER_OK);
    struct weight_files *files = weight_files_open(tiny_path("columns"), &err);
    if (!files)
        TAP_FAIL("%s", err.message);
    REQUIRE(files);
    const struct arch *arch = arch_by_name("gpt_oss");
    static const struct {
        const char *name;
        size_t rows, cols, expert_size, row_step, row_first, col_step;
    } cases[] = {
        { "model.layers.0.mlp.experts.1.gate_proj.weight", SIZE, HIDDEN, 24, 2, 0, 2 * SIZE },
        { "model.layers.0.mlp.experts.1.up_proj.weight", SIZE, HIDDEN, 24, 2, 1, 2 * SIZE },
        { "model.layers.0.mlp.experts.1.down_proj.weight", HIDDEN, SIZE, 12, 1, 0, HIDDEN },
        { "model.layers.0.mlp.experts.1.up_proj.bias", 0, SIZE, 8, 0, 1, 2 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        REQUIRE(expert_stack_weight(files, arch, cases[i].name, cases[i].rows, cases[i].cols, &w,
                                    &err) == STACK_FOUND);
        const float *got = w.data;
        for (size_t row = 0; row < (cases[i].rows ? cases[i].rows : 1); row++)
            for (size_t col = 0; col < cases[i].cols; col++)
                CHECK_NEAR(got[row * cases[i].cols + col],
                           cases[i].expert_size + row * cases[i].row_step + cases[i].row_first +
                               col * cases[i].col_step,
                           0);
        free(w.owned);
    }
    CHECK_INT(expert_stack_weight(files, arch, "model.layers.0.mlp.experts.2.up_proj.weight", SIZE,
                                  HIDDEN, &w, &err),
              STACK_WRONG);
    CHECK(strstr(err.message, "has no expert 2 of 8 x 3"));
    CHECK_INT(expert_stack_weight(files, arch, "model.layers.0.mlp.experts.2.other.weight", SIZE,
                                  HIDDEN, &w, &err),
              STACK_NONE);
    weight_files_close(files);
}

/* Whether positions are rotated is written only where readers look for it. */
static void test_position_of_written_configs(void)
{
    static const struct {
        const char *arch, *says;
        unsigned flags;
    } cases[] = { { "granitemoehybrid", "\"position_embedding_type\":\"rope\"", 0 },
                  { "granitemoehybrid", "\"position_embedding_type\":\"nope\"", LAYER_NO_ROPE },
                  { "granite", NULL, 0 },
                  { "qwen3", NULL, 0 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct init_model o;
        tinker_error err = { 0 };
        char dir[160], *text = NULL;
        size_t n = 0;
        snprintf(dir, sizeof(dir), "%s", tiny_path("position"));
        tiny_options(&o, cases[i].arch);
        for (size_t k = 0; k < o.config.layers; k++)
            o.config.flags[k] |= (unsigned char)cases[i].flags;
        CHECK_INT(init_model_write(&o, dir, &err), TINKER_OK);
        REQUIRE(os_read_file(tiny_path("position/config.json"), 1 << 20, &text, &n, &err) ==
                TINKER_OK);
        if (cases[i].says ? !strstr(text, cases[i].says)
                          : !!strstr(text, "position_embedding_type"))
            TAP_FAIL("%s: %s", cases[i].arch, text);
        free(text);
    }
}

/* ---- files that lie -------------------------------------------------------------------------- */

static void write_bytes(const char *path, const void *data, size_t n)
{
    tinker_error err;
    if (os_write_file(path, data, n, &err) != TINKER_OK)
        TAP_FAIL("%s", err.message);
}

/* Replace the first `from` in a file by `to`, with blanks behind where that is shorter. */
static void patch(const char *path, const char *from, const char *to)
{
    char *data;
    size_t n, k = strlen(from);
    tinker_error err;
    if (os_read_file(path, 1 << 24, &data, &n, &err) != TINKER_OK)
        TAP_FAIL("%s", err.message);
    for (size_t i = 0; i + k <= n; i++) {
        if (memcmp(data + i, from, k) == 0) {
            memset(data + i, ' ', k);
            memcpy(data + i, to, strlen(to));
            write_bytes(path, data, n);
            free(data);
            return;
        }
    }
    TAP_FAIL("%s has no %s", path, from);
    free(data);
}

static void refused(const char *dir, const char *want)
{
    tinker_error err = { 0 };
    tinker_engine *e = tinker_engine_open(dir, NULL, &err);
    if (e || !strstr(err.message, want))
        TAP_FAIL("wanted \"%s\", got \"%s\"", want, e ? "no error" : err.message);
    tinker_engine_close(e);
}

/* A stack that is not what config.json asks is named itself: its experts have no names. */
static void test_stacks_that_lie(void)
{
    static struct stacking s;
    struct init_model o;
    tinker_error err = { 0 };
    char dir[160];
    snprintf(dir, sizeof(dir), "%s", tiny_path("lying-stacks"));
    tiny_options(&o, "qwen3_moe");
    tinker_engine *e = tiny_open(&o, NULL);
    CHECK_INT(init_model_write(&o, dir, &err), TINKER_OK);
    s.c = &e->model->config;
    s.e = e;
    model_tensors(s.c, collect, &s, NULL);
    CHECK_INT(safetensors_write(tiny_path("lying-stacks/model.safetensors"), s.entries, s.n,
                                stacked, &s, &err),
              TINKER_OK);
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        { "F32\",\"shape\":[5,12,10]", "I32\",\"shape\":[5,12,10]",
          "mlp.experts.gate_up_proj: dtype I32" },
        { "I32\",\"shape\":[5,12,10]", "F32\",\"shape\":[5,10,12]",
          "mlp.experts.gate_up_proj has no expert 0 of 12 x 10" },
        { "F32\",\"shape\":[5,10,12]", "F32\",\"shape\":[5,12,10]", NULL },
        { "F32\",\"shape\":[5,10,6]", "F32\",\"shape\":[5,6,10]",
          "mlp.experts.down_proj has no expert 0 of 10 x 6" },
        { "F32\",\"shape\":[5,6,10]", "F32\",\"shape\":[50,6]",
          "mlp.experts.down_proj has no expert 0 of 10 x 6" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        patch(tiny_path("lying-stacks/model.safetensors"), cases[i].from, cases[i].to);
        if (cases[i].want)
            refused(dir, cases[i].want);
    }
    patch(tiny_path("lying-stacks/model.safetensors"), "F32\",\"shape\":[50,6]",
          "F32\",\"shape\":[5,10,6]");
    patch(tiny_path("lying-stacks/config.json"), "\"num_experts\":5", "\"num_experts\":6");
    refused(dir, "mlp.gate.weight is not 6 x 10");
    tinker_engine_close(e);
}

static const char *fresh(const struct init_model *o)
{
    const char *dir = tiny_path("hostile");
    os_remove_tree(dir, NULL);
    init_model_write(o, dir, NULL);
    return dir;
}

static void test_models_that_lie(void)
{
    struct init_model o;
    options(&o);
    const char *weights = "hostile/model.safetensors", *config = "hostile/config.json";
    fresh(&o);
    patch(tiny_path(weights), "layers.1.mlp.up_proj", "layers.1.mlp.xx_proj");
    refused(tiny_path("hostile"), "model.layers.1.mlp.up_proj.weight is missing");
    fresh(&o);
    patch(tiny_path(config), "\"intermediate_size\":14", "\"intermediate_size\":15");
    refused(tiny_path("hostile"), "mlp.gate_proj.weight is not 15 x 10");
    fresh(&o);
    patch(tiny_path(config), "Qwen3ForCausalLM", "QwenXForCausalLM");
    refused(tiny_path("hostile"), "QwenXForCausalLM is not supported");
    fresh(&o);
    patch(tiny_path(weights), "\"F32\",\"shape\":[13,10]", "\"I32\",\"shape\":[13,10]");
    refused(tiny_path("hostile"), "model.embed_tokens.weight: dtype I32");
    fresh(&o);
    truncate(tiny_path(weights), 3000);
    refused(tiny_path("hostile"), "beyond the end of the file");
    fresh(&o);
    truncate(tiny_path(weights), 5);
    refused(tiny_path("hostile"), "too short");
    fresh(&o);
    unlink(tiny_path(weights));
    refused(tiny_path("hostile"), "no *.safetensors");
    os_write_file(tiny_path("hostile/pytorch_model.bin"), "x", 1, NULL);
    refused(tiny_path("hostile"), "only pytorch_model.bin");
    os_write_file(tiny_path("hostile/tiny-Q8_0.gguf"), "x", 1, NULL);
    refused(tiny_path("hostile"), "hostile/tiny-Q8_0.gguf");
    unlink(tiny_path("hostile/pytorch_model.bin"));
    unlink(tiny_path("hostile/tiny-Q8_0.gguf"));
    fresh(&o);
    unlink(tiny_path(config));
    refused(tiny_path("hostile"), "config.json");
    o.shards = 2;
    fresh(&o);
    patch(tiny_path("hostile/model.safetensors.index.json"), "\"model-00001-of",
          "\"../xl-00001-of");
    refused(tiny_path("hostile"), "not plain");
    fresh(&o);
    unlink(tiny_path("hostile/model-00002-of-00002.safetensors"));
    refused(tiny_path("hostile"), "model-00002-of-00002.safetensors");
}

static const void *give_bytes(void *state, size_t i, tinker_error *error)
{
    (void)i, (void)error;
    return state;
}

/* The files of a directory with one more tensor, in a file of its own. */
static tinker_status open_with(const struct init_model *o, const char *name, float *values,
                               size_t rows, size_t cols, tinker_error *err)
{
    struct st_entry entry = { name, SOURCE_F32, { rows, cols }, 2 };
    if (cols == 0)
        entry = (struct st_entry){ name, SOURCE_F32, { rows }, 1 };
    fresh(o);
    rename(tiny_path("hostile/model.safetensors"), tiny_path("hostile/a.safetensors"));
    CHECK_INT(
        safetensors_write(tiny_path("hostile/b.safetensors"), &entry, 1, give_bytes, values, NULL),
        TINKER_OK);
    tinker_engine *e = tinker_engine_open(tiny_path("hostile"), NULL, err);
    tinker_engine_close(e);
    return e ? TINKER_OK : err->status;
}

/* What a model would leave out, and so compute something else, is refused. */
static void test_weights_that_nobody_reads(void)
{
    static const char *const changing[] = { "model.layers.0.self_attn.q_proj.bias",
                                            "model.layers.1.mlp.down_proj.bias",
                                            "model.layers.0.self_attn.sinks",
                                            "model.layers.0.post_feedforward_layernorm.weight" };
    struct init_model o;
    tinker_error err = { 0 };
    float values[13 * 10] = { 0 };
    options(&o);
    for (size_t i = 0; i < sizeof(changing) / sizeof(changing[0]); i++) {
        values[3] = 0;
        CHECK_INT(open_with(&o, changing[i], values, 10, 0, &err), TINKER_OK);
        values[3] = 1;
        CHECK_INT(open_with(&o, changing[i], values, 10, 0, &err), TINKER_EINVAL);
        CHECK(strstr(err.message, changing[i]));
        CHECK(strstr(err.message, "would be left out"));
    }
    CHECK_INT(open_with(&o, "model.layers.0.self_attn.rotary_emb.inv_freq", values, 4, 0, &err),
              TINKER_OK);
    CHECK_INT(open_with(&o, "mtp.layers.0.input_layernorm.weight", values, 10, 0, &err), TINKER_OK);
    CHECK_INT(open_with(&o, "model.layers.2.input_layernorm.weight", values, 10, 0, &err),
              TINKER_EINVAL);
    CHECK(strstr(err.message, "config.json says 2 layers"));
}

/* A head that is tied to the embedding may be there as a copy of it, and not as anything else. */
static void test_a_tied_head_of_its_own(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    struct safetensors st;
    float embed[13 * 10];
    options(&o);
    o.config.tied = true;
    fresh(&o);
    REQUIRE(safetensors_open(&st, tiny_path("hostile/model.safetensors"), &err) == TINKER_OK);
    const struct st_tensor *t = safetensors_find(&st, "model.embed_tokens.weight");
    REQUIRE(t && t->bytes == sizeof(embed));
    memcpy(embed, t->data, sizeof(embed));
    safetensors_close(&st);
    CHECK_INT(open_with(&o, "lm_head.weight", embed, 13, 10, &err), TINKER_OK);
    embed[77] += 1;
    CHECK_INT(open_with(&o, "lm_head.weight", embed, 13, 10, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "lm_head.weight is not the embedding"));
    CHECK(strstr(err.message, "tie_word_embeddings"));
    /* Said to be its own, it is used. */
    patch(tiny_path("hostile/config.json"), "tie_word_embeddings", "xxx_word_embeddings");
    tinker_engine *e = tinker_engine_open(tiny_path("hostile"), NULL, &err);
    REQUIRE(e);
    CHECK(!e->model->config.tied);
    tinker_engine_close(e);
}

/* Every length of a cut file is refused, and every flipped byte of a header gives an
 * answer: an error or a model, never a crash. */
static void test_cut_and_flipped_files(void)
{
    struct init_model o;
    options(&o);
    o.config.layers = 1;
    fresh(&o);
    char *data;
    size_t n;
    REQUIRE(os_read_file(tiny_path("hostile/model.safetensors"), 1 << 24, &data, &n, NULL) == 0);
    for (size_t cut = 0; cut < n; cut += 1 + cut / 7) {
        struct safetensors s;
        tinker_error err;
        char *copy = malloc(cut + 1); /* exact size, so that a sanitizer sees a read beyond */
        memcpy(copy, data, cut);
        CHECK(safetensors_parse(&s, "cut", copy, cut, &err) != TINKER_OK);
        free(copy);
    }
    uint64_t header = 0;
    memcpy(&header, data, 8);
    for (size_t i = 0; i < 8 + header; i++) {
        struct safetensors s;
        tinker_error err;
        data[i] ^= 0x15;
        if (safetensors_parse(&s, "flip", data, n, &err) == TINKER_OK)
            safetensors_close(&s);
        data[i] ^= 0x15;
    }
    free(data);
}

static void test_adapters_that_lie(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    tinker_adapter *a = trained(e, &lora, 1);
    const struct {
        const char *file, *from, *to, *want;
    } cases[] = {
        { "liar/adapter_config.json", "\"r\":2", "\"r\":3", "is not 3 x" },
        { "liar/adapter_config.json", "LORA", "IA3X", "peft_type" },
        /* settings that make PEFT compute something else from the same tensors */
        { "liar/adapter_config.json", "\"init_lora_weights\":true", "\"use_qalora\":true",
          "use_qalora" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"init_lora_weights\":\"pissa_niter_16\"", "init_lora_weights" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"alora_invocation_tokens\":[151644,872]", "alora_invocation_tokens" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"layer_replication\":[[0,2],[1,2]]", "layer_replication" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"init_lora_weights\":\"lora_ga\"", "init_lora_weights" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"init_lora_weights\":\"OLoRA\"", "init_lora_weights" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"target_parameters\":[\"down_proj\"]", "target_parameters" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"trainable_token_indices\":[7,8]", "trainable_token_indices" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true,\"modules_to_save\":null",
          "\"kasa_config\":{\"beta\":1e-4}", "kasa_config" },
        { "liar/adapter_config.json", "\"modules_to_save\":null,\"rank_pattern\":{}",
          "\"modules_to_save\":[\"embed_tokens\"]", "modules_to_save" },
        { "liar/adapter_config.json", "\"init_lora_weights\":true", "\"use_rslora\":true",
          "use_rslora" },
        { "liar/adapter_config.json", "\"rank_pattern\":{},\"alpha_pattern\":{}",
          "\"alpha_pattern\":{\"q_proj\":64}", "alpha_pattern" },
        { "liar/adapter_config.json", "\"fan_in_fan_out\":false", "\"fan_in_fan_out\":true",
          "fan_in_fan_out" },
        { "liar/adapter_model.safetensors", "unembed_tokens.lora_A", "unembed_tokenz.lora_A",
          "unembed_token" },
        { "liar/optimizer.safetensors", "lora_B.weight.exp_avg\"", "lora_B.weight.exp_avx\"",
          "exp_avg is missing" },
        { "liar/trainer_state.json", "\"format\":1", "\"format\":2", "format 2" },
        { "liar/trainer_state.json", "\"step\":1", "\"step\":x", "trainer_state.json" },
        { "liar/adapter_config.json", "\"lora_alpha\":32,\"target_modules\"",
          "\"lora_alpha\":1e300,\"target_modu\"", "lora_alpha" },
        { "liar/trainer_state.json", "\"step\":1,\"lora\":{\"rank\":2,\"alpha\":32.0,",
          "\"step\":9223372036854775807,\"lora\":{", "step" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        os_make_dirs(tiny_path("liar"), NULL);
        tinker_adapter_save(a, tiny_path("liar"), "m", TINKER_ADAPTER_OPTIMIZER, &err);
        patch(tiny_path(cases[i].file), cases[i].from, cases[i].to);
        tinker_adapter *b =
            tinker_adapter_load(e, tiny_path("liar"), TINKER_ADAPTER_OPTIMIZER, &err);
        if (b || !strstr(err.message, cases[i].want))
            TAP_FAIL("case %zu: got \"%s\"", i, b ? "no error" : err.message);
        tinker_adapter_free(b);
    }
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* Files whose tensors are none of this model's say which one is not. */
static void test_foreign_adapters_are_named(void)
{
    static const char *const names[] = {
        "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.base_layer.lora_A.weight",
        "base_model.model.model.embed_tokens.weight",
    };
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    tinker_adapter *a = trained(e, &lora, 0);
    os_make_dirs(tiny_path("foreign"), NULL);
    tinker_adapter_save(a, tiny_path("foreign"), "m", 0, &err);
    for (size_t i = 0; i <= sizeof(names) / sizeof(names[0]); i++) {
        bool none = i == sizeof(names) / sizeof(names[0]);
        struct st_entry entry = { none ? NULL : names[i], SOURCE_F32, { 2, 10 }, 2 };
        safetensors_write(tiny_path("foreign/adapter_model.safetensors"), &entry, !none, zeros,
                          NULL, &err);
        CHECK(!tinker_adapter_load(e, tiny_path("foreign"), 0, &err));
        CHECK_INT(err.status, TINKER_EINVAL);
        CHECK(strstr(err.message, none ? "no tensors" : names[i]) != NULL);
    }
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* The step of such a state would take the root of it. */
static void test_negative_moments_are_refused(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    tinker_adapter *a = trained(e, &lora, 1);
    a->v[3] = -a->v[3] - 1e-9f;
    os_make_dirs(tiny_path("negative"), NULL);
    tinker_adapter_save(a, tiny_path("negative"), "m", TINKER_ADAPTER_OPTIMIZER, &err);
    CHECK(!tinker_adapter_load(e, tiny_path("negative"), TINKER_ADAPTER_OPTIMIZER, &err));
    CHECK(strstr(err.message, "negative") != NULL);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* Before memory for a large adapter is touched, which a few bytes can ask for. */
static void test_small_files_make_no_large_adapters(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    for (lora.rank = 0; lora.rank <= 2; lora.rank += 2) {
        struct st_entry entry = { "model.norm.weight", SOURCE_F32, { 10 }, 1 };
        if (lora.rank)
            entry = (struct st_entry){ "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
                                       SOURCE_F32,
                                       { 2, 10 },
                                       2 };
        tinker_adapter *a = trained(e, &lora, 0);
        os_make_dirs(tiny_path("small"), NULL);
        tinker_adapter_save(a, tiny_path("small"), "m", 0, &err);
        safetensors_write(tiny_path("small/adapter_model.safetensors"), &entry, 1, zeros, NULL,
                          &err);
        if (lora.rank)
            patch(tiny_path("small/adapter_config.json"),
                  "\"r\":2,\"lora_alpha\":32,\"target_modules\"",
                  "\"r\":4000,\"lora_alpha\":32,\"target_modu\"");
        CHECK(!tinker_adapter_load(e, tiny_path("small"), 0, &err));
        CHECK(strstr(err.message, lora.rank ? "is not 4000 x 10" : "has 10 weights") != NULL);
        tinker_adapter_free(a);
    }
    /* nor with tensors that are no factors, factors without elements, or B alone; what refuses
     * them must do so before it reserves memory for the rank */
    const struct {
        struct st_entry entry;
        const char *want;
    } cases[] = {
        { { "base_model.model.model.layers.0.self_attn.q_proj.weight", SOURCE_F32, { 1 }, 1 },
          "q_proj.weight has no place" },
        { { "base_model.model.lm_head.base_layer.weight", SOURCE_F32, { 1 }, 1 },
          "base_layer.weight has no place" },
        { { "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            SOURCE_F32,
            { 4000, 0 },
            2 },
          "is not 4000 x 0" },
        { { "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            SOURCE_F32,
            { 10 },
            1 },
          "is not 4000 x 0" },
        { { "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
            SOURCE_F32,
            { 24, 2 },
            2 },
          "is not 24 x 4000" },
    };
    e->model->config.hidden = (size_t)1 << 24; /* too much for an adapter of this rank */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        safetensors_write(tiny_path("small/adapter_model.safetensors"), &cases[i].entry, 1, zeros,
                          NULL, &err);
        CHECK(!tinker_adapter_load(e, tiny_path("small"), 0, &err));
        if (err.status != TINKER_EINVAL || !strstr(err.message, cases[i].want))
            TAP_FAIL("case %zu: got \"%s\"", i, err.message);
    }
    e->model->config.hidden = o.config.hidden;
    tinker_engine_close(e);
}

/* The step refuses it, saved or not. */
static void test_a_pending_gradient_may_be_infinite(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    tinker_adapter *a = trained(e, &lora, 1);
    struct tiny_data *d = tiny_data(lengths, 2, 13, "cross_entropy", 3);
    tiny_train(e, a, d, "cross_entropy");
    REQUIRE(a->grad);
    a->grad[5] = INFINITY;
    os_make_dirs(tiny_path("infinite"), NULL);
    tinker_adapter_save(a, tiny_path("infinite"), "m", TINKER_ADAPTER_OPTIMIZER, &err);
    tinker_adapter *b =
        tinker_adapter_load(e, tiny_path("infinite"), TINKER_ADAPTER_OPTIMIZER, &err);
    if (!b)
        TAP_FAIL("%s", err.message);
    REQUIRE(b);
    CHECK_INT(tinker_adapter_step(b, NULL, NULL, &err), TINKER_EREQUEST);
    CHECK_INT(tinker_adapter_step(b, NULL, NULL, &err), TINKER_OK);
    free(d);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
}

static const void *fetch_param(void *state, size_t i, tinker_error *error)
{
    const tinker_adapter *a = state;
    (void)error;
    return a->w + a->params.list[i].offset;
}

/* PEFT trains q and v by default: the rest of the group loads as new. */
static void test_partial_adapter_loads(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    lora.train_mlp = lora.train_unembed = 0;
    tinker_adapter *a = trained(e, &lora, 2);
    struct st_entry entries[2] = { { .dtype = SOURCE_F32, .ndim = 2 },
                                   { .dtype = SOURCE_F32, .ndim = 2 } };
    os_make_dirs(tiny_path("partial"), NULL);
    tinker_adapter_save(a, tiny_path("partial"), "m", 0, &err);
    for (int i = 0; i < 2; i++) {
        entries[i].name = a->params.list[i].name;
        entries[i].shape[0] = a->params.list[i].rows;
        entries[i].shape[1] = a->params.list[i].cols;
    }
    safetensors_write(tiny_path("partial/adapter_model.safetensors"), entries, 2, fetch_param, a,
                      &err);
    tinker_adapter *b = tinker_adapter_load(e, tiny_path("partial"), 0, &err);
    if (!b)
        TAP_FAIL("%s", err.message);
    REQUIRE(b);
    const struct param *q_b = &b->params.list[1], *k_a = &b->params.list[2],
                       *k_b = &b->params.list[3];
    CHECK(strstr(k_b->name, "k_proj.lora_B") != NULL);
    CHECK_MEM(b->w + q_b->offset, q_b->rows * q_b->cols * 4, a->w + q_b->offset,
              q_b->rows * q_b->cols * 4);
    CHECK(b->w[k_b->offset] == 0);
    CHECK(b->w[k_a->offset] != 0);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
}

int main(void)
{
    RUN(test_save_and_load);
    RUN(test_another_base_is_refused);
    RUN(test_export_merges);
    RUN(test_experts_in_files);
    RUN(test_stacks_that_lie);
    RUN(test_stacks_of_columns);
    RUN(test_position_of_written_configs);
    RUN(test_export_leaves_unused_stacks);
    RUN(test_models_that_lie);
    RUN(test_weights_that_nobody_reads);
    RUN(test_a_tied_head_of_its_own);
    RUN(test_cut_and_flipped_files);
    RUN(test_adapters_that_lie);
    RUN(test_foreign_adapters_are_named);
    RUN(test_negative_moments_are_refused);
    RUN(test_small_files_make_no_large_adapters);
    RUN(test_a_pending_gradient_may_be_infinite);
    RUN(test_partial_adapter_loads);
    tiny_done();
    return tap_done();
}
