/* sample_1000.c - answers to a thousand prompts, all under way at once. */
#include <stdio.h>
#include <tinker/recipe.h>
int main(void)
{
    enum { PROMPTS = 1000 };
    static char text[PROMPTS][32];
    static tinker_message ask[PROMPTS];
    static tinker_conversation talk[PROMPTS];
    static const tinker_conversation *prompts[PROMPTS];
    tinker_error err = { 0 };
    tinker_rollout_options how = TINKER_ROLLOUT_OPTIONS_INIT;
    for (int i = 0; i < PROMPTS; i++) {
        snprintf(text[i], sizeof text[i], "What comes after %d?", i);
        ask[i] = (tinker_message){ .role = "user", .content = text[i] }, prompts[i] = &talk[i];
        talk[i] = (tinker_conversation){ .messages = &ask[i], .n_messages = 1 };
    }
    how.group_size = 1, how.params.max_tokens = 8, how.params.temperature = 0;
    tinker_recipe *r = tinker_recipe_open(NULL, &err);
    tinker_rollouts *x = r ? tinker_recipe_rollouts(r, prompts, PROMPTS, &how, &err) : NULL;
    for (int i = 0; x && i < PROMPTS; i++)
        printf("%s\t%s\n", text[i], x->at[i].text);
    tinker_rollouts_free(x), tinker_recipe_close(r);
    return err.status == TINKER_OK ? 0 : (fprintf(stderr, "%s\n", err.message), 1);
}
