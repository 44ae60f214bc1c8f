/* rl_loop.c - reinforcement learning with importance sampling.
 *
 * Each round: save the weights for sampling, sample a group, reward sequences that hold
 * a wanted token, and push the model towards the better half of the group. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

enum { GROUP = 8, LENGTH = 8, ROUNDS = 3, PROMPT = 4, WANTED = 30 };

static const int32_t prompt[PROMPT] = { 10, 11, 12, 13 };

struct rollout {
    int32_t tokens[PROMPT + LENGTH];
    int64_t targets[PROMPT + LENGTH];
    float logprobs[PROMPT + LENGTH], advantages[PROMPT + LENGTH];
    double reward;
    tinker_chunk chunk;
    tinker_named_tensor inputs[3];
};

static double reward_of(const tinker_sequence *s)
{
    double reward = 0;
    for (size_t i = 0; i < s->n; i++)
        reward += s->tokens[i] == WANTED;
    return reward;
}

/* Position i predicts token i + 1; only sampled tokens have an advantage. */
static tinker_datum make(struct rollout *r, const tinker_sequence *s, double mean)
{
    size_t n = PROMPT + s->n - 1;
    for (size_t i = 0; i <= n; i++)
        r->tokens[i] = i < PROMPT ? prompt[i] : s->tokens[i - PROMPT];
    for (size_t i = 0; i < n; i++) {
        int sampled = i + 1 >= PROMPT;
        r->targets[i] = r->tokens[i + 1];
        r->logprobs[i] = sampled && s->logprobs ? s->logprobs[i + 1 - PROMPT] : 0;
        r->advantages[i] = sampled ? (float)(r->reward - mean) : 0;
    }
    r->chunk = (tinker_chunk){ .tokens = r->tokens, .n_tokens = n };
    r->inputs[0] = (tinker_named_tensor){ "target_tokens",
                                          { .dtype = TINKER_INT64, .data = r->targets, .n = n } };
    r->inputs[1] =
        (tinker_named_tensor){ "logprobs",
                               { .dtype = TINKER_FLOAT32, .data = r->logprobs, .n = n } };
    r->inputs[2] =
        (tinker_named_tensor){ "advantages",
                               { .dtype = TINKER_FLOAT32, .data = r->advantages, .n = n } };
    return (tinker_datum){ { &r->chunk, 1 }, r->inputs, 3 };
}

static int train(tinker_training *t, const tinker_sample *sample, int round, tinker_error *err)
{
    static struct rollout rollouts[GROUP];
    tinker_datum data[GROUP];
    tinker_loss loss = { "importance_sampling", NULL, 0 };
    double mean = 0;
    for (size_t i = 0; i < GROUP; i++)
        mean += (rollouts[i].reward = reward_of(&sample->sequences[i])) / GROUP;
    for (size_t i = 0; i < GROUP; i++)
        data[i] = make(&rollouts[i], &sample->sequences[i], mean);
    tinker_future *both[2] = { tinker_training_forward_backward(t, data, GROUP, &loss, err), NULL };
    both[1] = both[0] ? tinker_training_optim_step(t, NULL, err) : NULL;
    int ok = both[1] && tinker_future_wait_all(both, 2, 120000, err) == TINKER_OK;
    printf("round %d  mean reward %.3f\n", round, mean);
    tinker_future_free(both[0]);
    tinker_future_free(both[1]);
    return ok;
}

static int round_of(tinker_training *t, int round, tinker_error *err)
{
    tinker_chunk text = { .tokens = prompt, .n_tokens = PROMPT };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    tinker_sample_options opts = TINKER_SAMPLE_OPTIONS_INIT;
    params.max_tokens = LENGTH;
    opts.num_samples = GROUP;
    tinker_sampler *s = tinker_training_create_sampler(t, 120000, err);
    tinker_future *f = s ? tinker_sampler_sample(s, &input, &params, &opts, err) : NULL;
    int ok = f && tinker_future_wait(f, 120000, err) == TINKER_OK &&
             train(t, tinker_future_sample(f), round, err);
    tinker_future_free(f);
    tinker_sampler_free(s);
    return ok;
}

int main(int argc, char **argv)
{
    tinker_error err;
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_training *t =
        service ? tinker_service_create_lora(service, model, NULL, 60000, &err) : NULL;
    int ok = t != NULL;
    for (int i = 1; ok && i <= ROUNDS; i++)
        ok = round_of(t, i, &err);
    if (!ok)
        fprintf(stderr, "rl_loop: %s\n", err.message);
    tinker_training_free(t);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
