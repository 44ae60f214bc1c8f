/* recipe.h - conversations in files to training data.
 *
 *     tinker_dataset *d = tinker_dataset_open("data.jsonl", &err);
 *     const tinker_conversation *c;
 *     while (tinker_dataset_next(d, &c, &err) == TINKER_OK && c) {
 *         ... tinker_renderer_example(r, c->messages, c->n_messages, ...)
 *     }
 *
 * Thread safety: one thread at a time. */
#ifndef TINKER_RECIPE_H
#define TINKER_RECIPE_H

#include <stddef.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/chat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reader of a JSON Lines file: one conversation per line, as for
 * tinker_conversation_parse(); empty lines are skipped. */
typedef struct tinker_dataset tinker_dataset;

/* "-" reads standard input.  NULL with *err set when the file cannot be opened. */
TINKER_API tinker_dataset *tinker_dataset_open(const char *path, tinker_error *err);
TINKER_API void tinker_dataset_close(tinker_dataset *d);
/* The next conversation into *out, borrowed until the next call; NULL at the end of the data,
 * which is TINKER_OK.  A failure (TINKER_EINVAL for a line that cannot be read, TINKER_ENOMEM)
 * sets *out to NULL, too, and its message says "file:line: ..."; the next call goes on with the
 * following line.  Blocks on the file. */
TINKER_API tinker_status tinker_dataset_next(tinker_dataset *d, const tinker_conversation **out,
                                             tinker_error *err);
/* Line number of the conversation last returned or refused, from 1. */
TINKER_API size_t tinker_dataset_line(const tinker_dataset *d);

typedef enum tinker_reduction {
    TINKER_REDUCTION_NONE = 0, /* weights as they are: loss summed over tokens */
    TINKER_REDUCTION_MEAN = 1  /* weights of one example sum to 1 */
} tinker_reduction;

/* A datum for cross-entropy: the input without its last token, "target_tokens" one step
 * ahead and "weights" aligned with them.  Owns what `datum` refers to. */
typedef struct tinker_training_row {
    tinker_datum datum;
    size_t n_targets;
    size_t n_trained;   /* targets with a weight other than 0 */
    size_t n_truncated; /* tokens cut off to keep max_length */
} tinker_training_row;

/* max_length 0: no limit.  Too long: text is cut at the end, an image that does not fit
 * is dropped whole, images left at the end are dropped.  NULL with *err set: TINKER_EINVAL
 * when fewer than 2 tokens are left. */
TINKER_API tinker_training_row *tinker_training_row_new(const tinker_example *example,
                                                        size_t max_length,
                                                        tinker_reduction reduction,
                                                        tinker_error *err);
TINKER_API void tinker_training_row_free(tinker_training_row *row);

#ifdef __cplusplus
}
#endif
#endif
