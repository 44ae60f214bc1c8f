/* custom_loss_dpo.c - DPO on the tape: 64 pairs (128 sequences) of 4,096 tokens, value and gradient.
 *
 * Prints seconds and memory; bench/custom_loss_dpo.py does the same in PyTorch. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <tinker/recipe.h>
#include "base/clock.h"
#include "base/rand.h"

enum { SEQUENCES = 128, TOKENS = 4096, ROUNDS = 5 };

struct sequence {
    int64_t targets[TOKENS];
    float weights[TOKENS], logprobs[TOKENS], reference[TOKENS];
    tinker_named_tensor inputs[2];
};

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

int main(void)
{
    struct sequence *s = calloc(SEQUENCES, sizeof(*s));
    static tinker_datum data[SEQUENCES];
    static tinker_tensor logprobs[SEQUENCES];
    static float *reference[SEQUENCES];
    tinker_dpo dpo = TINKER_DPO_INIT;
    tinker_error err;
    struct rng rng;
    double best = 1e9, loss = 0;
    if (!s)
        return 1;
    rng_seed(&rng, 1);
    for (size_t i = 0; i < SEQUENCES; i++) {
        for (size_t t = 0; t < TOKENS; t++) {
            s[i].weights[t] = t >= TOKENS / 4;
            s[i].logprobs[t] = (float)(-3 * rng_uniform(&rng));
            s[i].reference[t] = s[i].logprobs[t] + (float)(0.02 * (rng_uniform(&rng) - 0.5));
        }
        s[i].inputs[0] =
            (tinker_named_tensor){ "target_tokens",
                                   { .dtype = TINKER_INT64, .data = s[i].targets, .n = TOKENS } };
        s[i].inputs[1] =
            (tinker_named_tensor){ "weights",
                                   { .dtype = TINKER_FLOAT32, .data = s[i].weights, .n = TOKENS } };
        data[i] =
            (tinker_datum){ .model_input = { NULL, 0 }, .inputs = s[i].inputs, .n_inputs = 2 };
        logprobs[i] =
            (tinker_tensor){ .dtype = TINKER_FLOAT32, .data = s[i].logprobs, .n = TOKENS };
        reference[i] = s[i].reference;
    }
    dpo.reference = reference;
    long before = peak_kib();
    for (int r = 0; r < ROUNDS; r++) {
        int64_t begin = clock_now_ns(clock_real());
        tinker_loss_report *report = tinker_loss_evaluate(tinker_loss_preference, &dpo, data,
                                                          logprobs, SEQUENCES, NULL, &err);
        if (!report) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        loss = report->loss_total;
        tinker_loss_report_free(report);
        double seconds = (double)(clock_now_ns(clock_real()) - begin) / 1e9;
        best = seconds < best ? seconds : best;
    }
    printf("dpo %d x %d on the tape: %.1f ms, %.1f MiB above the data, loss %.6f\n", SEQUENCES,
           TOKENS, best * 1e3, (double)(peak_kib() - before) / 1024, loss);
    free(s);
    return 0;
}
