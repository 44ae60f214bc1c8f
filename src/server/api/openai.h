/* openai.h - completions in the shape of the OpenAI API, on the same sampling code.
 *
 * openai_request.c reads a request into a struct openai, openai_prompt.c makes tokens
 * of it, openai_response.c writes the parts of an answer, openai_stream.c follows a
 * sample while it is made, route_openai.c is the endpoints.  Thread: the listener, but for the stream's observer. */
#ifndef SERVER_OPENAI_H
#define SERVER_OPENAI_H

#include <tinker/sampling.h>
#include <tinker/chat.h>
#include "server/work/sampler_table.h"
#include "server/work/stream.h"

/* Stops of a request, and room for those of the chat format and the model. */
enum { OPENAI_STOPS = 16, OPENAI_STOPS_ALL = 64, OPENAI_PROMPTS = 64, OPENAI_TOP_MAX = 20 };

/* A request and, once it was submitted, where its samples are. */
struct openai {
    struct arena arena;
    struct server *server; /* NULL: a copy for a stream, which owns no samples */
    const char *user;      /* whose samples they are */
    bool chat, stream, stream_usage, logprobs, no_tools;
    bool echo;           /* the text begins with the prompt, and logprobs with its tokens */
    bool no_new;         /* max_tokens 0: of the one token that is made nothing is shown */
    bool anthropic;      /* a request of the Messages API: see anthropic.h */
    size_t n_own_stop;   /* how many of stop[] the request named; the model's come after them */
    const char *prefill; /* what the answer begins with; NULL: nothing */
    int64_t best_of;     /* 0: not given */
    bool no_thinking;    /* use the chat format without thinking where the model has one */
    const char *model;
    struct json_str prompt, messages, tools; /* raw JSON; tools.s NULL: none */
    struct json_str schema;                  /* of the text, raw JSON; s NULL: any text */
    bool must_call;          /* the text is a call of a tool, of forced_tool unless it is NULL */
    const char *forced_tool; /* a name */
    int64_t n, top_logprobs;
    tinker_sampling_params params;      /* without stops, which are below */
    tinker_sample_options options;      /* n and top_logprobs go into it on submission */
    const char *stop[OPENAI_STOPS_ALL]; /* strings */
    size_t n_stop;
    int32_t *stop_tokens;
    size_t n_stop_tokens;

    struct sampler_source from;
    char id[64];
    int64_t created_s;
    struct {
        const int32_t *tokens;
        size_t n;
        const char *future; /* id */
    } prompts[OPENAI_PROMPTS];
    size_t n_prompts;
};

/* Samples that still wait or run are canceled: with the request goes the only one to ask for them. */
void openai_free(void *o);
/* Read the body.  TINKER_EINVAL names the field. */
tinker_status openai_read(struct openai *o, const char *body, size_t n, tinker_error *err);
/* Fill prompts, and add the stops of the chat format and, with `ends`, of the model. */
tinker_status openai_prompts(struct openai *o, bool ends, tinker_error *err);

/* What the text must be, for one sample: *out is yours, NULL: anything. */
tinker_status openai_grammar(struct openai *o, struct grammar **out, tinker_error *err);

/* Text of sampled tokens as the API shows it: no special tokens, cut before a stop
 * string.  Appends to *out. */
tinker_status openai_text(const struct openai *o, const int32_t *tokens, size_t n, tinker_text *out,
                          tinker_error *err);
/* Where the first stop string begins in s[0..n), or n. */
size_t openai_stop_at(const struct openai *o, const char *s, size_t n);

/* The message that sampled tokens are in the model's chat format; free it.  NULL: it has none. */
tinker_parsed *openai_parse(const struct openai *o, const int32_t *tokens, size_t n);

/* The chat format of the model; free it. */
tinker_renderer *openai_renderer(const struct openai *o, tinker_error *err);

/* ---- parts of answers ------------------------------------------------------------- */

/* {"error": {...}} with the status. */
void openai_error(struct response *res, int status, const char *message);
/* Characters of the tokens' text: continuation bytes of UTF-8 do not count. */
size_t openai_count_chars(const struct openai *o, const int32_t *tokens, size_t n);
/* The value of "logprobs": of q's tokens, whose text begins at *offset characters; null when
 * they were not asked for.  Without q's top-k nothing is known of each token's rivals. */
void openai_put_logprobs(const struct openai *o, struct json_writer *w, const tinker_sequence *q,
                         size_t *offset);
/* The members of a chat message (or of its delta) that the tokens are;
 * true when they call tools. */
bool openai_put_message(const struct openai *o, struct json_writer *w, const int32_t *tokens,
                        size_t n, bool delta);

/* An observer that writes server-sent events to a stream.  It copies what it needs of o.
 * *stream is the reader's reference.  NULL: no memory. */
struct observer *openai_observer(struct server *s, const struct openai *o, struct stream **stream);

#endif
