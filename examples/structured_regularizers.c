/* structured_regularizers.c - every regularizer of the library, without any service.
 *
 *     structured_regularizers
 *
 * A loss and twelve terms beside it are evaluated and differentiated on log-probabilities that the
 * program makes itself: in parallel, one by one, and with the norm of each gradient.  The report
 * is printed as JSON, and what goes wrong is shown to say where. */
#include "example.h"
#include <math.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>

enum { N = 2, ROWS = 3, COLUMNS = 4, SIZE = ROWS * COLUMNS, TERMS = 12 };

static double logprobs[N][SIZE], reference[N][SIZE];
static float weights[SIZE];
static const int64_t shape[] = { ROWS, COLUMNS };
static tinker_tensor logprob_tensors[N], reference_tensors[N];
static tinker_named_tensor inputs[N][1];
static tinker_datum data[N];

/* Rows of a softmax, so that entropies and divergences mean something. */
static void fill(double *out, double by)
{
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, *row = out + r * COLUMNS;
        for (int c = 0; c < COLUMNS; c++)
            sum += exp(row[c] = sin(by * (r * COLUMNS + c)));
        for (int c = 0; c < COLUMNS; c++)
            row[c] -= log(sum);
    }
}

static void make(void)
{
    for (int i = 0; i < SIZE; i++)
        weights[i] = i != 0;
    for (int i = 0; i < N; i++) {
        fill(logprobs[i], 1.7 + i);
        fill(reference[i], 1.1 + i);
        logprob_tensors[i] = (tinker_tensor){
            .dtype = TINKER_FLOAT64, .data = logprobs[i], .n = SIZE, .shape = shape, .ndim = 2
        };
        reference_tensors[i] = logprob_tensors[i];
        reference_tensors[i].data = reference[i];
        inputs[i][0] = (tinker_named_tensor){
            "weights",
            { .dtype = TINKER_FLOAT32, .data = weights, .n = SIZE, .shape = shape, .ndim = 2 }
        };
        data[i] = (tinker_datum){ .model_input = { NULL, 0 }, .inputs = inputs[i], .n_inputs = 1 };
    }
}

/* The loss itself: minus the weighted mean. */
static tinker_var *base(tinker_tape *tape, const tinker_datum *d, tinker_var *const *lp, size_t n,
                        void *state)
{
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    (void)state;
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_sub(
            sum, tinker_var_masked_mean(lp[i], tinker_tape_input(tape, &d[i], "weights")));
    tinker_tape_metric(tape, "perplexity", exp(tinker_var_item(sum) / (double)n));
    return sum;
}

/* What the gradient penalty looks at: half the sum of squares, whose gradient is x itself. */
static tinker_var *half_square(tinker_tape *tape, tinker_var *x, void *state)
{
    (void)tape, (void)state;
    return tinker_var_scale(tinker_var_sum(tinker_var_square(x), TINKER_ALL, 0), 0.5);
}

static tinker_var *broken(tinker_tape *tape, const tinker_datum *d, tinker_var *const *lp, size_t n,
                          void *state)
{
    (void)d, (void)lp, (void)n, (void)state;
    return tinker_tape_fail(tape, "no embedding for this batch");
}

static tinker_loss_report *evaluate(const tinker_regularizer *terms, size_t n, int sequential)
{
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.regularizers = terms;
    o.n_regularizers = n;
    o.sequential = sequential;
    o.track_grad_norms = 1;
    return tinker_loss_evaluate(base, NULL, data, logprob_tensors, N, &o, &err);
}

static void expect_error(tinker_regularizer term, const char *part)
{
    tinker_loss_report *r = evaluate(&term, 1, 1);
    expect(!r && strstr(err.message, part) != NULL, part);
    printf("error: %s\n", err.message);
}

int main(void)
{
    tinker_reg_norm_options mean = TINKER_REG_NORM_OPTIONS_INIT;
    mean.reduction = TINKER_REG_MEAN;
    tinker_reg_entropy_options more = TINKER_REG_ENTROPY_OPTIONS_INIT;
    more.maximize = 1;
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    ref.tensors = reference_tensors;
    ref.n_tensors = N;
    tinker_reg_reference_options both = ref, cosine = ref;
    both.symmetric = 1;
    cosine.distance = TINKER_DISTANCE_COSINE;
    tinker_reg_gradient_options penalty = TINKER_REG_GRADIENT_OPTIONS_INIT;
    penalty.f = half_square;
    const tinker_regularizer terms[TERMS] = {
        { .name = "l1", .weight = 0.01, .fn = tinker_reg_l1 },
        { .name = "l2", .weight = 0.01, .fn = tinker_reg_l2, .state = &mean },
        { .name = "elastic_net", .weight = 0.01, .fn = tinker_reg_elastic_net },
        { .name = "entropy", .weight = 0.1, .fn = tinker_reg_entropy, .state = &more },
        { .name = "kl", .weight = 0.1, .fn = tinker_reg_kl, .state = &ref },
        { .name = "kl_symmetric", .weight = 0.1, .fn = tinker_reg_kl, .state = &both },
        { .name = "js", .weight = 0.1, .fn = tinker_reg_jensen_shannon, .state = &ref },
        { .name = "consistency", .weight = 0.1, .fn = tinker_reg_consistency, .state = &ref },
        { .name = "cosine", .weight = 0, .fn = tinker_reg_consistency, .state = &cosine },
        { .name = "orthogonality", .weight = 0.1, .fn = tinker_reg_orthogonality },
        { .name = "gradient",
          .weight = 0.01,
          .fn = tinker_reg_gradient_penalty,
          .state = &penalty },
        { .name = "magnitude", .weight = 0.01, .fn = tinker_reg_magnitude },
    };
    make();
    tinker_loss_report *parallel = need(evaluate(terms, TERMS, 0), "parallel");
    tinker_loss_report *one_by_one = need(evaluate(terms, TERMS, 1), "sequential");
    double sum = parallel->base.value;
    for (size_t i = 0; i < parallel->n_regularizers; i++) {
        const tinker_loss_term *t = &parallel->regularizers[i];
        printf("%-14s value %8.4f, weight %.2f, gradient %.4f\n", t->name, t->value, t->weight,
               t->grad_norm);
        sum += t->contribution;
        expect(t->value == one_by_one->regularizers[i].value, t->name);
    }
    printf("loss %.6f of which terms %.6f, gradient %.4f\n", parallel->loss_total,
           parallel->regularizer_total, parallel->total_grad_norm);
    expect(fabs(sum - parallel->loss_total) < 1e-12, "the total is the sum of its parts");
    for (int i = 0; i < N; i++)
        expect(memcmp(parallel->gradients[i].data, one_by_one->gradients[i].data,
                      SIZE * sizeof(double)) == 0,
               "parallel and sequential give the same bits");
    puts("parallel and sequential agree");

    tinker_text json = TINKER_TEXT_INIT;
    if (tinker_loss_report_json(parallel, &json, &err) != TINKER_OK)
        die("json");
    printf("json of %zu bytes: %.60s...\n", json.n, json.s);
    expect_error((tinker_regularizer){ .name = "broken", .weight = 1, .fn = broken }, "broken");
    expect_error((tinker_regularizer){ .name = "minus", .weight = -1, .fn = tinker_reg_l1 },
                 "minus");
    expect_error((tinker_regularizer){ .name = "kl", .weight = 1, .fn = tinker_reg_kl },
                 "reference_logprobs");
    tinker_text_clear(&json);
    tinker_loss_report_free(one_by_one);
    tinker_loss_report_free(parallel);
    return EXIT_SUCCESS;
}
