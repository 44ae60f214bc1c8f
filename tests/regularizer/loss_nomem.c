/* Every allocation of an evaluation fails once: an error or the same result, no leak. */
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>
#include "support/failmalloc.h"
#include "support/tap.h"

static tinker_var *sum_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                            size_t n, void *state)
{
    (void)data, (void)state;
    tinker_var *all = tinker_var_concat(lp, n, 0);
    tinker_var *s =
        tinker_var_softmax(tinker_var_index_select(all, 0, (int64_t[]){ 4, 0, 2 }, 3), 0);
    tinker_tape_metric(t, "largest", tinker_var_item(tinker_var_max(s, 0, 0)));
    tinker_tape_note(t, "kind", "test");
    return tinker_var_add(tinker_var_dot(s, s), tinker_var_variance(all, TINKER_ALL, 0, 0));
}

static void test_every_allocation_fails(void)
{
    double big[4000], small[2] = { -1, -2 };
    for (int i = 0; i < 4000; i++)
        big[i] = -0.001 * i;
    tinker_tensor lp[2] = { { .dtype = TINKER_FLOAT64, .data = big, .n = 4000 },
                            { .dtype = TINKER_FLOAT64, .data = small, .n = 2 } };
    tinker_regularizer regs[2] = { { .name = "l2", .weight = 1, .fn = tinker_reg_l2 },
                                   { .name = "h", .weight = 1, .fn = tinker_reg_entropy } };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.regularizers = regs;
    o.n_regularizers = 2;
    o.sequential = 1;
    o.track_grad_norms = 1;
    long n = 1;
    for (;; n++) {
        tinker_error err = { 0 };
        failmalloc_at(n);
        tinker_loss_report *r = tinker_loss_evaluate(sum_loss, NULL, NULL, lp, 2, &o, &err);
        tinker_text text = TINKER_TEXT_INIT;
        const char *json =
            r && tinker_loss_report_json(r, &text, &err) == TINKER_OK ? text.s : NULL;
        bool failed = failmalloc_stop();
        if (!r && err.status != TINKER_ENOMEM)
            TAP_FAIL("allocation %ld: %s", n, err.message);
        CHECK(failed || json);
        CHECK(!failed || !json);
        free(text.s);
        tinker_loss_report_free(r);
        if (!failed)
            break;
    }
    CHECK(n > 30);
}

int main(void)
{
    RUN(test_every_allocation_fails);
    return tap_done();
}
