/* row_form.h - one line of a data file, in any of the accepted forms, as conversations.
 *
 * A row is taken apart into its known members, its form decided, and what it says written as the
 * JSON that tinker_conversation_parse() reads.  Everything borrowed is borrowed from the line or
 * from the arena. */
#ifndef RECIPE_ROW_FORM_H
#define RECIPE_ROW_FORM_H

#include <stdbool.h>
#include <tinker/recipe.h>
#include "base/arena.h"
#include "base/buf.h"
#include "json/json.h"

/* What is wrong with a row; reason "" when nothing is. */
struct row_problem {
    size_t column; /* from 1 */
    char reason[384];
};

enum row_key {
    ROW_MESSAGES,
    ROW_CONVERSATIONS,
    ROW_CHOSEN,
    ROW_REJECTED,
    ROW_COMPARISON,
    ROW_LABEL,
    ROW_INSTRUCTION,
    ROW_OUTPUT,
    ROW_INPUT,
    ROW_SYSTEM,
    ROW_HISTORY,
    ROW_PROMPT,
    ROW_COMPLETION,
    ROW_RESPONSE,
    ROW_QUESTION,
    ROW_ANSWER,
    ROW_EXPECTED,
    ROW_TARGET,
    ROW_TOKENS,
    ROW_WEIGHTS,
    ROW_TEXT,
    ROW_TOOLS,
    ROW_WEIGHT,
    ROW_KEYS
};

enum row_trainable { ROW_TRAINABLE_NONE, ROW_TRAINABLE_SOME, ROW_TRAINABLE_ALL };

/* A line taken apart; a member that is absent or null has s NULL. */
struct row_parts {
    const char *line;
    size_t n_line;
    struct arena *arena;
    struct json_str at[ROW_KEYS];
    struct row_problem *problem;
    enum row_trainable trainable; /* of the messages written so far */
    size_t n_messages;
    bool tie; /* a comparison without a winner */
};

/* false: problem has been set. */
bool row_parts_read(struct row_parts *p, const char *line, size_t n, struct arena *arena,
                    struct row_problem *problem);
/* TINKER_FORM_AUTO: none is recognized. */
tinker_row_form row_parts_form(const struct row_parts *p);
/* {"messages": [...], "tools": [...]} of the row: the conversation, or of a pair the chosen
 * (side 0) and the rejected one (1). */
bool row_parts_talk(struct row_parts *p, tinker_row_form form, int side, struct buf *out);
/* The expected answer that the row names, in the arena, NULL without one: a text as it is, other
 * values as JSON. */
bool row_parts_expected(struct row_parts *p, const char **out);
/* A member as numbers, into the arena. */
bool row_parts_tokens(struct row_parts *p, int32_t **tokens, float **weights, size_t *n);
/* A member that is a text; false when it is something else. */
bool row_parts_string(struct row_parts *p, enum row_key key, struct json_str *out);
/* The row's weight, 1 unless given. */
bool row_parts_weight(struct row_parts *p, double *out);
/* Set the problem, at a value of the line (s NULL: its beginning).  Returns false. */
bool row_parts_fail(struct row_parts *p, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
