/* rows.h - the rows of a file in memory; shared by reading (rows.c), rendering (rows_render.c) and
 * ordering (rows_order.c). */
#ifndef RECIPE_ROWS_H
#define RECIPE_ROWS_H

#include <stdbool.h>
#include <tinker/recipe.h>
#include "base/arena.h"
#include "recipe/row_form.h"

struct row {
    struct json_str raw;
    size_t line, column;          /* where raw begins */
    tinker_conversation *talk[2]; /* the conversation; of a pair chosen and rejected */
    tinker_conversation prompt;   /* borrowed from talk[0]: what comes before the last answer */
    const char *expected;         /* in the arena */
    enum row_trainable trainable; /* of its messages */
    int32_t *tokens;              /* TOKENS: in the arena */
    float *weights;               /* TOKENS: may be NULL */
    size_t n_tokens;
    struct json_str text; /* TEXT */
    double weight;
    tinker_training_row *datum[2];
    uint64_t hash; /* of tokens and weights */
};

struct tinker_rows {
    char *path, *data; /* the file */
    size_t n_data;
    struct arena arena;
    tinker_rows_options opts;
    tinker_rows_stats stats;
    struct row *rows;
    size_t n, cap;
    size_t *train, *test, *epoch_order, *fixed; /* row numbers; fixed: of set_order, or NULL */
    size_t n_train, n_test, n_fixed;
    size_t batch_size;
    tinker_datum *batch, *test_data;
    size_t batch_cap, n_test_data;
    size_t problems;
    char first_problem[384];
};

/* Count a problem and tell it; the place is that of the row. */
void rows_problem(tinker_rows *x, const struct row *row, const struct row_problem *p);
/* Render all rows; rows to be left out lose their place.  false: out of memory. */
bool rows_render(tinker_rows *x, const tinker_renderer *renderer,
                 const tinker_tokenizer *tokenizer);
/* Shuffle, split, lay out.  false: out of memory. */
bool rows_arrange(tinker_rows *x, tinker_error *err);
void row_clear(struct row *row);

#endif
