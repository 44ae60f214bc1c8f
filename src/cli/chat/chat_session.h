/* chat_session.h - a model to talk to: one reply at a time, shown while it is made.
 *
 * Thread safety: one thread at a time. */
#ifndef CLI_CHAT_SESSION_H
#define CLI_CHAT_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/extra/stream.h>
#include <tinker/sampling.h>
#include "cli/chat/conversation.h"
#include "cli/sample/prompt_model.h"

struct chat_options {
    const char *model, *path, *tokenizer, *renderer, *thinking;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p;
    bool has_seed, no_stream;
};

struct chat_session {
    struct api api;
    struct prompt_model text;
    tinker_sampler *sampler;
    struct chat_options options;
    bool streams;         /* the service offers it */
    bool told_dropped;    /* the user knows that old turns are left out */
    int64_t context;      /* tokens of prompt and reply together; -1: unknown */
    bool screen;          /* replies are shown as they come; else only kept */
    tinker_tokens tokens; /* of the last reply */
    float *logprobs;      /* of those */
    const char *stop;     /* "stop", "length" or "interrupted" */
    int64_t reply_ns;     /* how long it took */
};

/* Connect and load the model.  The exit status, after the error was printed. */
int chat_session_open(struct chat_session *s, const struct chat_options *options);
void chat_session_close(struct chat_session *s);

/* Ask for the next message and add it to the conversation, as far as it came before Ctrl-C.  The
 * exit status, after the error was printed; then nothing is added. */
int chat_session_reply(struct chat_session *s, struct conversation *c);

/* The prompt of the next reply as tokens; clear with tinker_tokens_clear(). */
int chat_session_prompt(struct chat_session *s, const struct conversation *c, tinker_tokens *out);

/* From here on Ctrl-C ends a reply, not the program. */
void chat_session_catch_interrupts(void);
/* Was it pressed since the last call? */
bool chat_session_interrupted(void);

#endif
