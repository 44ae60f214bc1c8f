/* text_model.h - what the commands about text share: the tokenizer of -m, and input. */
#ifndef CLI_TEXT_MODEL_H
#define CLI_TEXT_MODEL_H

#include <stdbool.h>
#include <tinker/tokenizer.h>
#include "cli/service/api.h"

/* The tokenizer of a model directory, a model name, or tinker/tiny.  NULL with *err set:
 * TINKER_ESTATE when there is none here. */
tinker_tokenizer *text_model_find(const char *model, tinker_error *err);
/* The same for a command with a service: the tokenizer that the user named (NULL: none), else that
 * of a->model, which api_open_model() has set. */
tinker_tokenizer *text_model_open(const struct api *a, const char *tokenizer, tinker_error *err);
/* Where the model a->model lies on this machine, a directory or a GGUF file: the engine's, one that
 * was served here, the bundled one, or one of the Hub's cache.  false: it is not here. */
bool text_model_dir(const struct api *a, char out[MODEL_DIR_MAX]);
/* Print such an error, with the hint (may be NULL) when there is no tokenizer.  The exit status. */
int text_model_fail(const tinker_error *err, const char *hint);
/* Print an error of input data; the exit status, which differs when memory ran out. */
int text_model_fail_data(const tinker_error *err);
/* Print a warning of a renderer on stderr, once where it is repeated: for tinker_renderer_options.warn. */
void text_model_warn(const char *line, void *state);
/* text_model_find() and text_model_fail(): NULL after an error was printed; *status is then the exit status. */
tinker_tokenizer *text_model_load(const char *model, const char *hint, int *status);

/* The whole of a file, or of standard input for "-".  false as above. */
bool text_model_read(const char *path, char **text, size_t *n, int *status);

/* Append the token ids in s[0..n): numbers with blanks, commas or brackets between them, as
 * `tokenize` prints them, or {"tokens": [...]}.  The exit status; `where` is named in errors. */
int text_model_ids(const char *where, const char *s, size_t n, tinker_tokens *out);
/* The same of a whole text: if it ends inside brackets it was cut off, maybe in a number. */
int text_model_all_ids(const char *where, const char *s, size_t n, tinker_tokens *out);

#endif
