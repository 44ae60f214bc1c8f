/* rl_turns.h - answers in several turns: a program of the user's is the world that replies. */
#ifndef CLI_RL_TURNS_H
#define CLI_RL_TURNS_H

#include <tinker/recipe.h>
#include "base/arena.h"
#include "cli/train/trainer.h"

/* One conversation, as long as it has become. */
struct rl_talk {
    tinker_message *messages;
    size_t n, room;
    tinker_conversation view;
    tinker_conversation **replies; /* what the messages of the world belong to */
    size_t n_replies;
};

struct rl_turns {
    struct trainer *t;
    tinker_grader *world;
    tinker_sampler *sampler;
    tinker_rollout_options how;
    size_t most;          /* turns */
    struct arena *arena;  /* of the iteration */
    struct rl_talk *talk; /* of each answer */
    size_t n;
};

/* Play all conversations to their ends.  items: what the program is told of each answer, besides
 * the conversation.  scores[]: the sums of what it gave for the turns; NaN: it failed there. */
int rl_turns_play(struct rl_turns *x, tinker_rollouts *answers,
                  const tinker_conversation *const *prompts, const tinker_grade *items,
                  double *scores);
void rl_turns_close(struct rl_turns *x);

/* The messages as a JSON array in the arena; NULL: out of memory. */
char *rl_turns_json(struct arena *a, const tinker_message *messages, size_t n);

#endif
