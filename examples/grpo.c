/* grpo.c - reinforcement learning: short, friendly greetings are worth more. */
#include <stdio.h>
#include <string.h>
#include <tinker/recipe.h>

enum { PROMPTS = 8, ROUNDS = 6 };

static double reward(const char *answer)
{
    return (strchr(answer, '!') ? 1.0 : 0.0) - 0.01 * (double)strlen(answer);
}

int main(void)
{
    tinker_error err = { 0 };
    tinker_rollout_options how = TINKER_ROLLOUT_OPTIONS_INIT;
    tinker_adam adam = TINKER_ADAM_RECIPE;
    tinker_loss loss = { .name = "importance_sampling" };
    char text[PROMPTS][32];
    tinker_message message[PROMPTS];
    tinker_conversation one[PROMPTS];
    const tinker_conversation *prompts[PROMPTS];
    for (int i = 0; i < PROMPTS; i++) {
        snprintf(text[i], sizeof text[i], "Greet person %d", i);
        message[i] = (tinker_message){ .role = "user", .content = text[i] };
        one[i] = (tinker_conversation){ &message[i], 1, NULL, 0 };
        prompts[i] = &one[i];
    }
    how.params.max_tokens = 24;
    how.params.has_seed = 1;
    adam.learning_rate = 1e-3;
    tinker_recipe *r = tinker_recipe_open(NULL, &err);
    for (int round = 0; r && round < ROUNDS; round++) {
        how.params.seed = round * PROMPTS;
        tinker_rollouts *x = tinker_recipe_rollouts(r, prompts, PROMPTS, &how, &err);
        size_t n = 0;
        for (size_t i = 0; x && i < x->n_groups * x->group_size; i++)
            x->at[i].reward = reward(x->at[i].text);
        double mean = x ? tinker_rollouts_advantages(x, TINKER_ADVANTAGE_CENTER, 1) : 0;
        const tinker_datum *data = x ? tinker_rollouts_data(x, &n, &err) : NULL;
        if (!data || (n && tinker_recipe_step(r, data, n, &loss, &adam, NULL, &err) != TINKER_OK))
            return fprintf(stderr, "grpo: %s\n", err.message), 1;
        printf("round %d  mean reward %.6f  %zu answers trained\n", round, mean, n);
        tinker_rollouts_free(x);
    }
    tinker_recipe_close(r);
    return r ? 0 : (fprintf(stderr, "grpo: %s\n", err.message), 1);
}
