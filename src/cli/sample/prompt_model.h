/* prompt_model.h - how text becomes tokens for the model of a service: tokenizer and chat format. */
#ifndef CLI_PROMPT_MODEL_H
#define CLI_PROMPT_MODEL_H

#include <stdbool.h>
#include <tinker/chat.h>
#include <tinker/tokenizer.h>
#include "cli/service/api.h"

struct prompt_model {
    tinker_tokenizer *tokenizer;
    tinker_renderer *renderer; /* NULL: text is sent as it is */
};

/* What the user says about it; all may be NULL. */
struct prompt_choice {
    const char *tokenizer; /* directory, instead of what belongs to the model */
    const char *renderer;  /* instead of what the weights were trained with, or the model's own */
    bool raw;              /* no chat format */
    bool chat;             /* a chat format in any case: "role_colon" where there is none */
};

/* For a->model and a->path of a connection made by api_open_model().  The exit status, after the
 * error was printed. */
int prompt_model_open(struct prompt_model *m, struct api *a, const struct prompt_choice *choice);
void prompt_model_close(struct prompt_model *m);

/* A sampler on a->path, else on a->model.  NULL after the error was printed. */
tinker_sampler *prompt_model_sampler(struct api *a, int *status);

#endif
