/* rl_loop.c - reinforcement learning with importance sampling.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local rl_loop [model]
 *
 * Each round: save the weights for sampling, sample a group, reward sequences for every token of
 * one kind, and push the model towards the better half of the group. */
#include "example.h"

enum { GROUP = 16, LENGTH = 8, ROUNDS = 6, PROMPT = 4, WANTED = 11 };

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
    return (tinker_datum){ .model_input = { &r->chunk, 1 }, .inputs = r->inputs, .n_inputs = 3 };
}

/* One step on the group; returns its mean reward. */
static double train(tinker_training *t, const tinker_sample *sample)
{
    static struct rollout rollouts[GROUP];
    tinker_datum data[GROUP];
    tinker_loss loss = { .name = "importance_sampling" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 2e-3;
    double mean = 0;
    for (size_t i = 0; i < GROUP; i++)
        mean += (rollouts[i].reward = reward_of(&sample->sequences[i])) / GROUP;
    for (size_t i = 0; i < GROUP; i++)
        data[i] = make(&rollouts[i], &sample->sequences[i], mean);
    tinker_future *pass = tinker_training_forward_backward(t, data, GROUP, &loss, &err);
    tinker_future *step = pass ? tinker_training_optim_step(t, &adam, &err) : NULL;
    finish(pass, "forward_backward");
    finish(step, "optim_step");
    return mean;
}

/* Sample from the weights as they are now, and learn from it. */
static double round_of(tinker_training *t, int round)
{
    tinker_chunk text = { .tokens = prompt, .n_tokens = PROMPT };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    tinker_sample_options opts = TINKER_SAMPLE_OPTIONS_INIT;
    params.max_tokens = LENGTH;
    params.has_seed = 1;
    params.seed = round;
    opts.num_samples = GROUP;
    tinker_sampler *s = need(tinker_training_create_sampler(t, MINUTE_MS, &err), "sampler");
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, &opts, &err), "sample");
    double reward = train(t, tinker_future_sample(f));
    tinker_future_free(f);
    tinker_sampler_free(s);
    return reward;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_lora lora = TINKER_LORA_INIT;
    lora.has_seed = 1;
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), &lora, MINUTE_MS, &err),
             "training client");
    for (int i = 1; i <= ROUNDS; i++)
        printf("round %d  mean reward %.3f\n", i, round_of(t, i));
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
