/* recipe.h - conversations in files to training data.
 *
 *     tinker_dataset *d = tinker_dataset_open("data.jsonl", &err);
 *     while ((row = tinker_dataset_next(d, &err)) != NULL) {
 *         ... tinker_renderer_example(r, row->messages, row->n_messages, ...)
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
/* The next conversation, borrowed until the next call.  NULL at the end, with
 * err->status TINKER_OK, or on failure: the message says "file:line: ..."; the reader may
 * then go on with the following line. */
TINKER_API const tinker_conversation *tinker_dataset_next(tinker_dataset *d, tinker_error *err);
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
