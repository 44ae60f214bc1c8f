/* Custom losses: the two passes, what they carry, what the result says, what is refused. */
#include <pthread.h>
#include <tinker/custom_loss.h>
#include "client/training/custom.h"
#include "base/arena.h"
#include "base/buf.h"
#include "support/fake_tinker.h"
#include "support/tap.h"
#include "wire/proto.h"

#define PASS API "forward_backward"

/* ---- helpers ----------------------------------------------------------------------------- */

struct calls {
    int n;
    pthread_t thread;
    bool has_side; /* the first datum came with advantages */
    size_t n_data;
    tinker_training *step; /* submit an optim_step from inside */
    int mode;
};

static tinker_var *minus_last(tinker_tape *tape, const tinker_datum *data, tinker_var *const *lp,
                              size_t n, void *state)
{
    struct calls *c = state;
    c->n++;
    c->thread = pthread_self();
    for (size_t i = 0; i < data[0].n_inputs; i++)
        c->has_side = c->has_side || strcmp(data[0].inputs[i].name, "advantages") == 0;
    c->n_data = n;
    if (c->step)
        tinker_future_free(tinker_training_optim_step(c->step, NULL, NULL));
    if (c->mode == 1)
        return tinker_tape_fail(tape, "no such reward");
    if (c->mode == 2) /* depends on the first datum only */
        n = 1;
    if (c->mode == 3) /* not finite */
        return tinker_var_log(tinker_var_scale(tinker_var_sum(lp[0], TINKER_ALL, 0), 0));
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_sub(sum, tinker_var_sum(tinker_var_select(tinker_var_flatten(lp[i]), 0,
                                                                   tinker_var_size(lp[i]) - 1),
                                                 TINKER_ALL, 0));
    tinker_tape_metric(tape, "loss:sum", 77);
    tinker_tape_metric(tape, "mine", 3.5);
    tinker_tape_note(tape, "kind", "test");
    return sum;
}

struct pass {
    struct arena arena;
    struct wire_forward_backward_request req;
};

/* The i-th pass that was sent; free with arena_clear(). */
static void read_pass(struct world *w, size_t i, struct pass *p)
{
    const struct fake_request *r = fake_get(w->server, PASS, i);
    memset(p, 0, sizeof(*p));
    arena_init(&p->arena, SIZE_MAX);
    CHECK(r && wire_decode_forward_backward_request(r->body, r->len, &p->arena, &p->req, NULL) ==
                   TINKER_OK);
}

static const tinker_tensor *input(const tinker_datum *d, const char *name)
{
    for (size_t i = 0; i < d->n_inputs; i++)
        if (strcmp(d->inputs[i].name, name) == 0)
            return &d->inputs[i].tensor;
    return NULL;
}

static double at(const tinker_tensor *t, size_t i)
{
    return t && t->dtype == TINKER_FLOAT32 && i < t->n ? ((const float *)t->data)[i] : NAN;
}

static tinker_training *open_training(struct world *w)
{
    world_open_real(w, NULL);
    return world_training(w);
}

/* Submit and wait; NULL with w->err set: it failed.  *report (may be NULL) is the future's. */
static tinker_future *run_custom(struct world *w, tinker_training *t, const tinker_datum *data,
                                 size_t n, struct calls *c, const tinker_custom_options *o,
                                 const tinker_loss_report **report)
{
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, n, minus_last, c, o, &w->err);
    if (f && tinker_future_wait(f, 20000, &w->err) == TINKER_OK) {
        if (report)
            *report = tinker_future_loss_report(f);
        return f;
    }
    tinker_future_free(f);
    return NULL;
}

/* ---- the way it goes --------------------------------------------------------------------- */

static void test_two_passes(void) /* R-104 R-108 */
{
    struct world w;
    tinker_training *t = open_training(&w);
    tinker_datum *data = fake_data(2, 2);
    struct calls c = { 0 };
    const tinker_loss_report *r = NULL;
    tinker_future *f = run_custom(&w, t, data, 2, &c, NULL, &r);
    CHECK(f != NULL);
    CHECK_INT(c.n, 1);
    CHECK(!pthread_equal(c.thread, pthread_self()));
    CHECK_INT(c.n_data, 2);
    REQUIRE(f && r);
    CHECK_NEAR(r->loss_total, 4, 0);
    CHECK_NEAR(r->base.value, 4, 0);
    CHECK_STR(r->base.custom[2].text, "test");
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(fake_count(w.server, PASS), 2);
    struct pass p;
    read_pass(&w, 0, &p);
    CHECK(p.req.forward_only);
    CHECK_STR(p.req.loss.name, "cross_entropy");
    CHECK_INT(p.req.loss.n_config, 0);
    CHECK_INT(input(&p.req.data[1], "weights")->n, 2); /* zeros */
    CHECK_NEAR(at(input(&p.req.data[1], "weights"), 1), 0, 0);
    arena_clear(&p.arena);
    read_pass(&w, 1, &p);
    CHECK(!p.req.forward_only);
    CHECK_INT(p.req.n_data, 2);
    CHECK_INT(input(&p.req.data[1], "target_tokens")->n, 2);
    CHECK_NEAR(at(input(&p.req.data[1], "weights"), 0), 0, 0);
    CHECK_NEAR(at(input(&p.req.data[1], "weights"), 1), 1, 0);
    arena_clear(&p.arena);
    const tinker_forward_backward *fb = tinker_future_forward_backward(f);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "mine"), 3.5, 0);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "loss:sum"), 77, 0);
    CHECK_INT(fb->n_metrics, 2);
    CHECK_INT(data[0].n_inputs, 1); /* the caller's data is as it was */
    tinker_future_free(f);
    fake_data_free(data, 2);
    tinker_training_free(t);
    world_close(&w);
}

static void test_given_weights_are_sent(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    tinker_datum *plain = fake_data(1, 2);
    const float mine[2] = { 0.5f, -3 };
    const double side[3] = { 1, 2, 3 };
    tinker_named_tensor in[3] = {
        { "weights", { .dtype = TINKER_FLOAT32, .data = mine, .n = 2 } },
        { "advantages", { .dtype = TINKER_FLOAT64, .data = side, .n = 3 } },
        plain[0].inputs[0],
    };
    tinker_datum d = { .model_input = plain[0].model_input, .inputs = in, .n_inputs = 3 };
    struct calls c = { 0 };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    CHECK(!run_custom(&w, t, &d, 1, &c, &o, NULL)); /* */
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK(strstr(w.err.message, "advantages") != NULL);
    CHECK_INT(fake_count(w.server, PASS), 0);
    o.strip_local_inputs = 1;
    tinker_future *f = run_custom(&w, t, &d, 1, &c, &o, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK(c.has_side);
    struct pass p;
    read_pass(&w, 0, &p);
    CHECK_INT(p.req.data[0].n_inputs, 2);
    CHECK_NEAR(at(input(&p.req.data[0], "weights"), 1), -3, 0);
    CHECK(input(&p.req.data[0], "advantages") == NULL);
    arena_clear(&p.arena);
    tinker_future_free(f);
    fake_data_free(plain, 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_chunks(void)
{
    struct world w;
    world_open_real(&w, "{\"fwdbwd_max_chunk_len\":2}");
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(3, 2);
    struct calls c = { 0 };
    const tinker_loss_report *r = NULL;
    tinker_future *f = run_custom(&w, t, data, 3, &c, NULL, &r);
    REQUIRE(f && r);
    CHECK_INT(c.n, 1); /* over all chunks at once */
    CHECK_INT(c.n_data, 3);
    CHECK_NEAR(r->loss_total, 6, 0);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(fake_count(w.server, PASS), 4);
    const tinker_forward_backward *fb = tinker_future_forward_backward(f);
    CHECK_INT(fb->n_outputs, 3);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "mine"), 3.5, 0); /* not reduced */
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "loss:sum"), 77, 0);
    tinker_future_free(f);
    fake_data_free(data, 3);
    tinker_training_free(t);
    world_close(&w);
}

static void test_order_of_ids(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    tinker_datum *data = fake_data(1, 2);
    struct calls c = { .step = t };
    tinker_future *f = run_custom(&w, t, data, 1, &c, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(fake_pass_seq(fake_get(w.server, PASS, 0)), 1);
    /* both passes have their ids before the loss runs */
    CHECK_INT(fake_pass_seq(fake_get(w.server, PASS, 1)), 2);
    CHECK(fake_await(w.server, API "optim_step", 1));
    CHECK_INT(fake_json_int(fake_get(w.server, API "optim_step", 0), "seq_id"), 3);
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_matrices_keep_their_shape(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    const int64_t shape[2] = { 4, 4 };
    float lp[16];
    for (int i = 0; i < 16; i++)
        lp[i] = -0.25f * (float)(i + 1);
    tinker_named_tensor tensor = { "logprobs", { TINKER_FLOAT32, lp, 16, shape, 2, NULL, NULL } };
    tinker_loss_output output = { &tensor, 1 };
    tinker_forward_backward fb = { "TorchLossReturn", &output, 1, NULL, 0 };
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    CHECK_INT(wire_encode_forward_backward_output(&fb, &b, NULL), TINKER_OK);
    fake_script(
        w.server, API "retrieve_future",
        (struct fake_reply){
            .body = b.data, .len = b.len, .content_type = "application/x-protobuf", .times = 2 });
    tinker_datum *data = fake_data(1, 4);
    const int64_t targets[16] = { 0 };
    tinker_named_tensor in = { "target_tokens",
                               { TINKER_INT64, targets, 16, shape, 2, NULL, NULL } };
    tinker_datum d = { .model_input = data[0].model_input, .inputs = &in, .n_inputs = 1 };
    struct calls c = { 0 };
    const tinker_loss_report *r = NULL;
    tinker_future *f = run_custom(&w, t, &d, 1, &c, NULL, &r);
    REQUIRE(f && r);
    CHECK_INT(r->gradients[0].ndim, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    struct pass p;
    read_pass(&w, 0, &p);
    const tinker_tensor *zeros = input(&p.req.data[0], "weights");
    CHECK(zeros && zeros->ndim == 2 && zeros->shape[1] == 4 && zeros->n == 16);
    arena_clear(&p.arena);
    read_pass(&w, 1, &p); /* one of sixteen: sparse, as the reference */
    const tinker_tensor *x = input(&p.req.data[0], "weights");
    CHECK(x && x->crow && x->n == 1 && x->col[0] == 3 && x->shape[0] == 4);
    CHECK_NEAR(at(x, 0), 1, 0);
    CHECK_INT(x->crow[3], 0);
    CHECK_INT(x->crow[4], 1);
    arena_clear(&p.arena);
    buf_clear(&b);
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

/* ---- what is refused --------------------------------------------------------------------- */

static void refused(struct world *w, tinker_training *t, const tinker_datum *data, size_t n,
                    struct calls *c, const tinker_custom_options *o, const char *why)
{
    const tinker_loss_report *r = NULL;
    w->err.message[0] = 0;
    CHECK(!run_custom(w, t, data, n, c, o, &r));
    CHECK(r == NULL);
    if (!strstr(w->err.message, why))
        TAP_FAIL("\"%s\" does not say \"%s\"", w->err.message, why);
}

static void test_refusals(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    tinker_datum *data = fake_data(2, 2);
    struct calls c = { 0 };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    refused(&w, t, data, 0, &c, NULL, "No data");
    o.input_type = "logits";
    refused(&w, t, data, 2, &c, &o, "logits");
    o.input_type = "logprobs";
    tinker_datum bare = data[0];
    bare.n_inputs = 0;
    refused(&w, t, &bare, 1, &c, NULL, "target_tokens");
    CHECK_INT(fake_count(w.server, PASS), 0); /* nothing was sent */
    CHECK_INT(c.n, 0);
    c.mode = 1;
    refused(&w, t, data, 2, &c, NULL, "no such reward");
    c.mode = 2;
    refused(&w, t, data, 2, &c, NULL, "no gradient computed for datum 1");
    c.mode = 3;
    refused(&w, t, data, 2, &c, NULL, "-inf");
    /* forwards only: of the losses, and in place of the first two backward passes */
    CHECK_INT(fake_count(w.server, PASS), 5);
    c.mode = 2;
    o.allow_unused = 1;
    tinker_future *f = run_custom(&w, t, data, 2, &c, &o, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(fake_count(w.server, PASS), 8);
    CHECK_INT(fake_pass_seq(fake_get(w.server, PASS, 7)), 8); /* no hole in the ids */
    fake_data_free(data, 2);
    tinker_training_free(t);
    world_close(&w);
}

static void test_answers_that_make_no_sense(void)
{
    struct world w;
    tinker_training *t = open_training(&w);
    tinker_datum *data = fake_data(2, 2);
    struct calls c = { 0 };
    size_t len;
    say(&w, PASS, 400, "{\"detail\":\"too long\"}", 1);
    refused(&w, t, data, 2, &c, NULL, "too long");
    CHECK_INT(c.n, 0);
    char *one = fake_pass_result(1, NULL, 0, &len);
    fake_script(
        w.server, API "retrieve_future",
        (struct fake_reply){ .body = one, .len = len, .content_type = "application/x-protobuf" });
    refused(&w, t, data, 2, &c, NULL, "1 outputs for 2 datums");
    CHECK_INT(w.err.status, TINKER_EPROTOCOL);
    CHECK_INT(c.n, 0);
    free(one);
    fake_data_free(data, 2);
    tinker_training_free(t);
    world_close(&w);
}

/* ---- regularizers ------------------------------------------------------------------------ */

static tinker_var *total(tinker_tape *tape, const tinker_datum *data, tinker_var *const *lp,
                         size_t n, void *state)
{
    (void)data, (void)state;
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_add(sum, tinker_var_sum(tinker_var_square(lp[i]), TINKER_ALL, 0));
    return sum;
}

static void test_pipeline_reaches_the_wire(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    tinker_datum *data = fake_data(1, 2);
    struct calls c = { 0 };
    tinker_regularizer reg = { .name = "square", .weight = 0.5, .fn = total };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.regularizers = &reg;
    o.n_regularizers = 1;
    o.track_grad_norms = 1;
    tinker_future *f = run_custom(&w, t, data, 1, &c, &o, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    struct pass p;
    read_pass(&w, 1, &p);
    /* logprobs -1, -2; gradient 0, -1 of the loss and 2 x of the square */
    CHECK_NEAR(at(input(&p.req.data[0], "weights"), 0), 1, 0);
    CHECK_NEAR(at(input(&p.req.data[0], "weights"), 1), 3, 0);
    arena_clear(&p.arena);
    const tinker_forward_backward *fb = tinker_future_forward_backward(f);
    REQUIRE(fb);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "loss_total"), 4.5, 0);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "reg/square/value"), 5, 0);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "reg/square/contribution"), 2.5, 0);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "reg/square/grad_norm"), sqrt(20), 1e-12);
    CHECK_NEAR(tinker_metric(fb->metrics, fb->n_metrics, "total_grad_norm"), sqrt(10), 1e-12);
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

int main(void)
{
    RUN(test_two_passes);
    RUN(test_given_weights_are_sent);
    RUN(test_chunks);
    RUN(test_order_of_ids);
    RUN(test_matrices_keep_their_shape);
    RUN(test_refusals);
    RUN(test_answers_that_make_no_sense);
    RUN(test_pipeline_reaches_the_wire);
    return tap_done();
}
