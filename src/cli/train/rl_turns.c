/* rl_turns.c - see rl_turns.h.
 *
 * All conversations advance together: the program replies to all answers of a turn, then the model
 * answers in all that go on.  The program is told the whole conversation each time, so it needs no
 * memory, and one that was started again in the middle can go on. */
#include "cli/train/rl_turns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/command.h"
#include "cli/output/out.h"

/* The form of "messages" in rows and in what graders read; NULL without memory. */
char *rl_turns_json(struct arena *a, const tinker_message *messages, size_t n)
{
    tinker_text out = TINKER_TEXT_INIT;
    bool ok = tinker_text_append(&out, "[", 1, NULL) == TINKER_OK;
    for (size_t i = 0; ok && i < n; i++)
        ok = (i == 0 || tinker_text_append(&out, ", ", 2, NULL) == TINKER_OK) &&
             tinker_message_to_json(&messages[i], &out, NULL) == TINKER_OK;
    ok = ok && tinker_text_append(&out, "]", 1, NULL) == TINKER_OK;
    char *json = ok ? arena_strndup(a, out.s, out.n) : NULL;
    tinker_text_clear(&out);
    return json;
}

static char *message_json(struct arena *a, const tinker_message *m)
{
    tinker_text out = TINKER_TEXT_INIT;
    char *json =
        tinker_message_to_json(m, &out, NULL) == TINKER_OK ? arena_strndup(a, out.s, out.n) : NULL;
    tinker_text_clear(&out);
    return json;
}

/* Outgrown arrays stay in the arena until the iteration ends: doubling wastes at most as much again
 * as the last one holds. */
static bool add_message(struct arena *a, struct rl_talk *talk, const tinker_message *m)
{
    if (talk->n == talk->room) {
        size_t room = talk->room ? 2 * talk->room : 8;
        tinker_message *grown = arena_array(a, room, sizeof(*grown));
        if (!grown)
            return false;
        if (talk->n)
            memcpy(grown, talk->messages, talk->n * sizeof(*grown));
        talk->messages = grown;
        talk->room = room;
    }
    talk->messages[talk->n++] = *m;
    return true;
}

/* Every conversation begins as a copy of its prompt, since each goes its own way after the first
 * answer.  Texts are borrowed from the prompts, which the caller keeps until rl_turns_close(). */
static bool begin_talks(struct rl_turns *x, const tinker_rollouts *answers,
                        const tinker_conversation *const *prompts)
{
    x->n = answers->n_groups * answers->group_size;
    x->talk = arena_array(x->arena, x->n + 1, sizeof(*x->talk));
    for (size_t i = 0; x->talk && i < x->n; i++) {
        const tinker_conversation *prompt = prompts[i / answers->group_size];
        x->talk[i].view = *prompt; /* its tools */
        x->talk[i].replies = arena_array(x->arena, x->most + 1, sizeof(*x->talk[i].replies));
        if (!x->talk[i].replies)
            return false;
        for (size_t k = 0; k < prompt->n_messages; k++)
            if (!add_message(x->arena, &x->talk[i], &prompt->messages[k]))
                return false;
    }
    return x->talk != NULL;
}

/* false: the conversation has ended. A reply that is no list of messages ends it as a failure. */
static bool add_reply(struct rl_turns *x, struct rl_talk *talk, const tinker_grade *g, size_t turn,
                      double *score)
{
    tinker_error err;
    /* The last allowed turn gets no reply: nobody would answer it. */
    if (g->done || !g->observation || turn == x->most || isnan(g->score))
        return false;
    tinker_conversation *c =
        tinker_conversation_parse(g->observation, strlen(g->observation), &err);
    if (!c) {
        train_view_say(&x->t->view, "warn", "a reply of the environment: %s", err.message);
        *score = NAN;
        return false;
    }
    talk->replies[talk->n_replies++] = c;
    for (size_t i = 0; i < c->n_messages; i++)
        if (!add_message(x->arena, talk, &c->messages[i]))
            return false;
    return c->n_messages > 0;
}

/* Tell the program the last answers of the conversations that are open. */
static int ask_world(struct rl_turns *x, const tinker_rollouts *answers, const tinker_grade *items,
                     const size_t *open, size_t n_open, size_t turn, tinker_grade *asked)
{
    tinker_error err;
    for (size_t k = 0; k < n_open; k++) {
        size_t i = open[k];
        struct rl_talk *talk = &x->talk[i];
        asked[k] = items[i];
        asked[k].text = answers->at[i].text;
        asked[k].turn = (int64_t)turn;
        asked[k].tokens = answers->at[i].sequence->n;
        /* The program sees the conversation up to the answer, and the answer apart from it, as a
         * grader does; only then does the answer join the conversation. */
        asked[k].prompt = rl_turns_json(x->arena, talk->messages, talk->n);
        /* What could not be read as a message is one with that text. */
        const tinker_rollout *a = &answers->at[i];
        tinker_message plain = { .role = "assistant", .content = a->text };
        if (!add_message(x->arena, talk, a->message ? a->message : &plain))
            return out_fail(EXIT_FAILED, NULL, "out of memory");
        asked[k].message = message_json(x->arena, &talk->messages[talk->n - 1]);
    }
    if (tinker_grader_run(x->world, asked, n_open, &err) == TINKER_OK)
        return EXIT_OK;
    train_view_clear(&x->t->view);
    return out_fail(EXIT_FAILED, NULL, "%s", err.message);
}

/* scores[] add up over the turns.  open[] has the conversations that go on, in ascending order; it
 * shrinks in place, for `still` never passes k. */
int rl_turns_play(struct rl_turns *x, tinker_rollouts *answers,
                  const tinker_conversation *const *prompts, const tinker_grade *items,
                  double *scores)
{
    if (!begin_talks(x, answers, prompts))
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    size_t *open = arena_array(x->arena, x->n + 1, sizeof(*open)), n_open = x->n;
    tinker_grade *asked = arena_array(x->arena, x->n + 1, sizeof(*asked));
    const tinker_conversation **next = arena_array(x->arena, x->n + 1, sizeof(*next));
    int64_t seed = x->how.params.seed;
    int status = open && asked && next ? EXIT_OK : out_fail(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0; status == EXIT_OK && i < x->n; i++) {
        open[i] = i;
        scores[i] = 0;
    }
    for (size_t turn = 1; status == EXIT_OK && n_open > 0; turn++) {
        tinker_error err;
        size_t still = 0;
        status = ask_world(x, answers, items, open, n_open, turn, asked);
        /* NULL in next[]: this conversation has ended, no answer is sampled. */
        memset(next, 0, x->n * sizeof(*next));
        for (size_t k = 0; k < n_open; k++) {
            size_t i = open[k];
            struct rl_talk *talk = &x->talk[i];
            scores[i] += asked[k].score;
            if (status == EXIT_OK && add_reply(x, talk, &asked[k], turn, &scores[i])) {
                talk->view.messages = talk->messages;
                talk->view.n_messages = talk->n;
                next[i] = &talk->view;
                open[still++] = i;
            }
            free(asked[k].observation);
        }
        n_open = still;
        /* Another seed for every turn and answer, or a second turn would draw the numbers of the
         * first; modulo 2^31 as samplers expect. */
        x->how.params.seed = (seed + (int64_t)(turn * x->n)) % (INT64_C(1) << 31);
        if (status == EXIT_OK && n_open > 0 &&
            tinker_rollouts_next_turn(answers, x->sampler, next, &x->how, &err) != TINKER_OK)
            status = trainer_fail(x->t, &err);
    }
    return status;
}

/* Messages live in the arena; only parsed replies own memory of their own. */
void rl_turns_close(struct rl_turns *x)
{
    for (size_t i = 0; x->talk && i < x->n; i++)
        for (size_t k = 0; k < x->talk[i].n_replies; k++)
            tinker_conversation_free(x->talk[i].replies[k]);
    x->talk = NULL;
}
