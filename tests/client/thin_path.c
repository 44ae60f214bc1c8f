/* The thin path: service, training, saving, sampling, in the order a program uses them. */
#include "support/fake_tinker.h"
#include "support/tap.h"

static void test_thin_path(void)
{
    struct world w;
    world_open_real(&w, NULL);
    REQUIRE(w.service != NULL);
    CHECK_INT(fake_count(w.server, NULL), 0);
    tinker_error err;
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    if (!t)
        printf("# %s\n", err.message);
    REQUIRE(t != NULL);
    CHECK_STR(tinker_training_model_id(t), "sess:train:0");

    tinker_datum *data = fake_data(4, 8);
    tinker_future *fb = tinker_training_forward_backward(t, data, 4, &fake_loss, &err);
    REQUIRE(fb != NULL);
    tinker_future *step = tinker_training_optim_step(t, NULL, &err);
    REQUIRE(step != NULL);
    CHECK_INT(tinker_future_wait(fb, 60000, &err), TINKER_OK);
    const tinker_forward_backward *r = tinker_future_forward_backward(fb);
    REQUIRE(r != NULL);
    CHECK_INT(r->n_outputs, 4);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "loss:sum"), 8, 0);
    CHECK_STR(tinker_future_request_id(fb), "req-1");
    CHECK_INT(tinker_future_wait(step, 60000, &err), TINKER_OK);
    size_t n;
    const tinker_named_number *m = tinker_future_metrics(step, &n);
    CHECK_INT(n, 1);
    CHECK_NEAR(tinker_metric(m, n, "grad_norm:mean"), 0.5, 0);
    CHECK(tinker_future_sample(step) == NULL);
    tinker_future_free(fb);
    tinker_future_free(step);

    tinker_future *save = tinker_training_save_state(t, "named", NULL, &err);
    CHECK_INT(tinker_future_wait(save, 60000, &err), TINKER_OK);
    CHECK_STR(tinker_future_saved_path(save), "tinker://sess:train:0/weights/named");
    tinker_future_free(save);
    save = tinker_training_save_for_sampler(t, "named", NULL, &err);
    CHECK_INT(tinker_future_wait(save, 60000, &err), TINKER_OK);
    CHECK_STR(tinker_future_saved_path(save), "tinker://sess:train:0/sampler_weights/named");

    tinker_sampler *s =
        tinker_service_create_sampler(w.service, NULL, tinker_future_saved_path(save), 5000, &err);
    tinker_future_free(save);
    REQUIRE(s != NULL);
    CHECK_STR(tinker_sampler_id(s), "sess:sample:0");
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(5), NULL, NULL, &err);
    REQUIRE(f != NULL);
    CHECK_INT(tinker_future_wait(f, 60000, &err), TINKER_OK);
    const tinker_sample *sample = tinker_future_sample(f);
    REQUIRE(sample && sample->n_sequences == 1);
    CHECK_INT(sample->sequences[0].n, 3);
    CHECK_INT(sample->sequences[0].tokens[2], 13);
    tinker_future_free(f);
    tinker_sampler_free(s);

    s = tinker_training_create_sampler(t, 5000, &err);
    REQUIRE(s != NULL);
    CHECK_STR(tinker_sampler_id(s), "sess:sample:1");
    tinker_sampler_free(s);
    tinker_training_free(t);
    fake_data_free(data, 4);
    world_close(&w);
}

static void test_pending_futures_end_when_the_service_is_freed(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_error err;
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    REQUIRE(t != NULL);
    fake_script(w.server, API "optim_step", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[3];
    for (int i = 0; i < 3; i++)
        f[i] = tinker_training_optim_step(t, NULL, &err);
    CHECK(fake_await(w.server, API "optim_step", 1));
    CHECK_INT(tinker_future_wait(f[0], 20, &err), TINKER_ETIMEDOUT);
    tinker_training_free(t);
    world_close(&w);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tinker_future_wait(f[i], 60000, &err), TINKER_ECANCELED);
        tinker_future_free(f[i]);
    }
}

int main(void)
{
    RUN(test_thin_path);
    RUN(test_pending_futures_end_when_the_service_is_freed);
    return tap_done();
}
