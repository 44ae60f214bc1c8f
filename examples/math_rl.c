/* math_rl.c - arithmetic by a verifiable reward: the grader only compares numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/recipe.h>

enum { PROMPTS = 16, ROUNDS = 12, GROUP = 8 };

static tinker_error err;

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "math_rl: %s\n", err.message);
        exit(1);
    }
    return p;
}

int main(void)
{
    char text[PROMPTS][64], answer[PROMPTS][16];
    tinker_message ask[PROMPTS];
    tinker_conversation talk[PROMPTS];
    const tinker_conversation *prompts[PROMPTS];
    for (int i = 0; i < PROMPTS; i++) {
        int a = 1 + i % 4, b = 1 + i / 4;
        snprintf(text[i], sizeof(text[i]), "What is %d + %d?", a, b);
        snprintf(answer[i], sizeof(answer[i]), "%d", a + b);
        ask[i] = (tinker_message){ .role = "user", .content = text[i] };
        talk[i] = (tinker_conversation){ .messages = &ask[i], .n_messages = 1 };
        prompts[i] = &talk[i];
    }
    tinker_rollout_options how = TINKER_ROLLOUT_OPTIONS_INIT;
    tinker_loss loss = { .name = "importance_sampling" };
    tinker_adam adam = TINKER_ADAM_RECIPE;
    adam.learning_rate = 1e-3;
    how.group_size = GROUP;
    how.params.max_tokens = 12;
    how.params.has_seed = 1;
    tinker_grader *grader = need(tinker_grader_new("number", NULL, &err));
    tinker_recipe *r = need(tinker_recipe_open(NULL, &err));
    for (int round = 0; round < ROUNDS; round++) {
        how.params.seed = round * PROMPTS;
        tinker_rollouts *x = need(tinker_recipe_rollouts(r, prompts, PROMPTS, &how, &err));
        tinker_grade items[PROMPTS * GROUP];
        for (size_t i = 0; i < PROMPTS * GROUP; i++)
            items[i] = (tinker_grade){ .text = x->at[i].text, .expected = answer[i / GROUP] };
        if (tinker_grader_run(grader, items, PROMPTS * GROUP, &err) != TINKER_OK)
            need(NULL);
        for (size_t i = 0; i < PROMPTS * GROUP; i++)
            x->at[i].reward = items[i].score;
        size_t n;
        double mean = tinker_rollouts_advantages(x, TINKER_ADVANTAGE_GRPO, 1);
        const tinker_datum *data = need((void *)tinker_rollouts_data(x, &n, &err));
        if (n && tinker_recipe_step(r, data, n, &loss, &adam, NULL, &err) != TINKER_OK)
            need(NULL);
        printf("round %d  right %.3f  %zu answers trained\n", round, mean, n);
        tinker_rollouts_free(x);
    }
    tinker_grader_free(grader);
    tinker_recipe_close(r);
    return 0;
}
