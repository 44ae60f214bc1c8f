/* chat.h - conversations to tokens and sampled tokens back to messages.
 *
 * A renderer knows one chat format.  It builds generation prompts and supervised
 * examples with one weight per token, names the stop sequences, and parses what a
 * model sampled into a message with thinking and tool calls.  For models without a
 * renderer, <tinker/extra/template.h> runs the model's own Jinja template; formats of
 * your own are in <tinker/extra/renderer.h>.
 *
 *     tinker_renderer *r = tinker_renderer_new("qwen3", tokenizer, NULL, &err);
 *     tinker_message ask = { .role = "user", .content = "What is 2 + 2?" };
 *     tinker_rendered *prompt = tinker_renderer_prompt(r, &ask, 1, NULL, NULL, &err);
 *     tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
 *     tinker_renderer_set_stop(r, &params);
 *     f = tinker_sampler_sample(sampler, &prompt->examples[0].input, &params, NULL, &err);
 *     ...
 *     tinker_parsed *answer = tinker_renderer_parse(r, sequence->tokens, sequence->n, &err);
 *     tinker_text text = TINKER_TEXT_INIT;
 *     tinker_message_text(answer->message, &text, &err);
 *
 * Strings are UTF-8.  A length of 0 beside a text means "up to the NUL".  Results own all
 * they refer to and go away with one free.  Functions that take a tinker_text append to it
 * and leave it as it was when they fail; clear it with tinker_text_clear().  Nothing here
 * uses the network or reads files, so no call blocks. */
#ifndef TINKER_CHAT_H
#define TINKER_CHAT_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- messages: plain data -------------------------------------------------------------------- */

typedef enum tinker_part_kind {
    TINKER_PART_TEXT = 0,
    TINKER_PART_THINKING = 1, /* reasoning of the model */
    TINKER_PART_IMAGE = 2
} tinker_part_kind;

/* One piece of content.  An image is a data: URI in `text`, or the bytes of a png or
 * jpeg file; expected_tokens is how many positions it takes (0: ask the service, which
 * is possible in prompts only).  Thread safety: plain data. */
typedef struct tinker_part {
    tinker_part_kind kind;
    const char *text;
    size_t n_text;
    const void *bytes;
    size_t n_bytes;
    const char *format; /* "png" or "jpeg"; NULL: recognized from the bytes */
    int64_t expected_tokens;
} tinker_part;

/* A call of a function that the model asked for. */
typedef struct tinker_tool_call {
    const char *id; /* NULL: none */
    const char *name;
    const char *arguments; /* JSON text of an object */
} tinker_tool_call;

/* A tool call in a response that could not be read. */
typedef struct tinker_unparsed_tool_call {
    const char *raw_text;
    const char *error;
} tinker_unparsed_tool_call;

/* Content is a string, or (parts not NULL) a list of parts.  Zero-initialize, then fill.
 * Thread safety: plain data. */
typedef struct tinker_message {
    const char *role; /* "system", "user", "assistant", "tool", ... */
    const char *content;
    size_t n_content;
    const tinker_part *parts;
    size_t n_parts;
    const tinker_tool_call *tool_calls;
    size_t n_tool_calls;
    const tinker_unparsed_tool_call *unparsed_tool_calls;
    size_t n_unparsed_tool_calls;
    const char *tool_call_id; /* role "tool": which call this answers */
    const char *name;         /* role "tool": name of the function */
    int has_trainable;        /* required by, and only by, TINKER_TRAIN_CUSTOMIZED */
    int trainable;
} tinker_message;

/* A function the model may call.  `spec`, when not NULL, is the whole declaration as a
 * JSON object (bare, not wrapped in {"type":"function"}) and wins over the other fields.
 * Thread safety: plain data. */
typedef struct tinker_tool {
    const char *name;
    const char *description;
    const char *parameters; /* JSON schema */
    const char *spec;
} tinker_tool;

/* Messages and tools that own their memory.  Thread safety: plain data. */
typedef struct tinker_conversation {
    const tinker_message *messages;
    size_t n_messages;
    const tinker_tool *tools;
    size_t n_tools;
} tinker_conversation;

/* Read json[0..n): [...], or {"messages": [...], "tools": [...]}.  Accepts the cookbook's
 * shape and the one of chat-completion APIs (null content, image_url parts,
 * reasoning_content, arguments as object, wrapped tools).  The text is not needed after the
 * call.  Returns a conversation to be freed with tinker_conversation_free(), or NULL with
 * *err set: TINKER_EINVAL names the place ("messages[2].content[0]: ..."), TINKER_ENOMEM. */
TINKER_API tinker_conversation *tinker_conversation_parse(const char *json, size_t n,
                                                          tinker_error *err);
/* Free a conversation and all its messages.  NULL is allowed. */
TINKER_API void tinker_conversation_free(tinker_conversation *c);

/* Append the message as a JSON object, in the shape that tinker_conversation_parse() reads, to
 * *out.  TINKER_ENOMEM. */
TINKER_API tinker_status tinker_message_to_json(const tinker_message *message, tinker_text *out,
                                                tinker_error *err);
/* Append what the message says, without thinking, images and tool calls, to *out: its text
 * parts one after the other, or the string content as it is.  TINKER_ENOMEM. */
TINKER_API tinker_status tinker_message_text(const tinker_message *message, tinker_text *out,
                                             tinker_error *err);

/* ---- renderers ------------------------------------------------------------------------------- */

/* Which tokens of a supervised example get weight 1. */
typedef enum tinker_train_on {
    TINKER_TRAIN_LAST_ASSISTANT_MESSAGE = 0,
    TINKER_TRAIN_LAST_ASSISTANT_TURN = 1, /* all answers after the last user message */
    TINKER_TRAIN_ALL_ASSISTANT_MESSAGES = 2,
    TINKER_TRAIN_ALL_MESSAGES = 3,
    TINKER_TRAIN_ALL_TOKENS = 4, /* headers, too */
    TINKER_TRAIN_ALL_USER_AND_SYSTEM_MESSAGES = 5,
    TINKER_TRAIN_CUSTOMIZED = 6 /* messages whose `trainable` is set */
} tinker_train_on;

/* "last_assistant_message" ... "customized"; NULL for an invalid value.  Static. */
TINKER_API const char *tinker_train_on_name(tinker_train_on mode);
/* The value of such a name in *out.  TINKER_EINVAL lists the names. */
TINKER_API tinker_status tinker_train_on_parse(const char *name, tinker_train_on *out,
                                               tinker_error *err);

/* One renderer for one tokenizer, which must outlive it.
 * Thread safety: any thread, any time. */
typedef struct tinker_renderer tinker_renderer;

/* Receives a warning about a conversation, one line without a newline, which is borrowed for
 * the call.  Called in the thread that renders. */
typedef void tinker_renderer_warn_fn(const char *line, void *state);

typedef struct tinker_renderer_options {
    size_t size;             /* set by TINKER_RENDERER_OPTIONS_INIT */
    int thinking_in_history; /* 0: as the name says; 1: keep; -1: strip */
    int safe_content;        /* 1: control tokens typed in content and names stay text */
    int system_as_user;      /* deepseekv3: later system messages become user messages */
    const char *date;        /* gpt_oss system prompt: "YYYY-MM-DD"; NULL: today, local time */
    tinker_renderer_warn_fn *warn; /* NULL: silence */
    void *warn_state;
    int has_thinking_effort; /* tml_v0: 1: say thinking_effort; -1: say nothing; 0: 0.9 */
    double thinking_effort;  /* from 0 to 1 */
} tinker_renderer_options;
#define TINKER_RENDERER_OPTIONS_INIT                                       \
    {                                                                      \
        sizeof(tinker_renderer_options), 0, 0, 0, NULL, NULL, NULL, 0, 0.0 \
    }

/* The renderer called `name` ("qwen3"; see tinker_renderer_for()) for a tokenizer, which is
 * borrowed for as long as the renderer lives.  opts NULL: all defaults.  Free it with
 * tinker_renderer_free().  NULL with *err set: TINKER_EINVAL for an unknown name or a tokenizer
 * that lacks the format's control tokens, TINKER_ENOMEM. */
TINKER_API tinker_renderer *tinker_renderer_new(const char *name, const tinker_tokenizer *tokenizer,
                                                const tinker_renderer_options *opts,
                                                tinker_error *err);
/* NULL is allowed.  No other call on the object may be in progress. */
TINKER_API void tinker_renderer_free(tinker_renderer *r);
/* The name it was made with; borrowed. */
TINKER_API const char *tinker_renderer_name(const tinker_renderer *r);

/* Stop sequences: token ids or strings, one of the two; the other is NULL.  Borrowed from the
 * renderer. */
typedef struct tinker_stop_sequences {
    const int32_t *tokens;
    const char *const *strings;
    size_t n;
} tinker_stop_sequences;
/* What ends an answer in this format. */
TINKER_API tinker_stop_sequences tinker_renderer_stop(const tinker_renderer *r);
/* Make sampling stop where an answer in this format ends: replaces stop_tokens, stop_strings and
 * n_stop.  The lists are borrowed: use the parameters while the renderer lives. */
TINKER_API void tinker_renderer_set_stop(const tinker_renderer *r, tinker_sampling_params *params);

/* The renderer to use for a model: the recommended one, else what the control tokens of its
 * tokenizer (may be NULL) indicate, "role_colon" when nothing does.  Never NULL.  Static. */
TINKER_API const char *tinker_renderer_for(const char *model, const tinker_tokenizer *tokenizer);
/* 1 when `name` suits `model` or nothing is known of the model; else 0, with a sentence for the
 * user appended to *warning (may be NULL; unchanged when memory runs out). */
TINKER_API int tinker_renderer_suits(const char *model, const char *name, tinker_text *warning);

/* One token sequence.  weights (NULL in prompts) has one entry per token of the input.
 * Thread safety: plain data. */
typedef struct tinker_example {
    tinker_model_input input;
    const float *weights;
    size_t n_tokens;
} tinker_example;

typedef struct tinker_rendered {
    const tinker_example *examples; /* at least one, except from tinker_renderer_examples() */
    size_t n_examples;
} tinker_rendered;
/* Free a rendering and its examples.  NULL is allowed. */
TINKER_API void tinker_rendered_free(tinker_rendered *x);

/* Prompt for the next message, of `role` (NULL: "assistant"), which begins with `prefill`
 * (NULL: nothing).  The prompt is examples[0].input of the result, which is yours: free it with
 * tinker_rendered_free().  Messages are not needed after the call.  NULL with *err set:
 * TINKER_EINVAL for messages the format cannot express, TINKER_ENOMEM. */
TINKER_API tinker_rendered *tinker_renderer_prompt(const tinker_renderer *r,
                                                   const tinker_message *messages, size_t n,
                                                   const char *role, const char *prefill,
                                                   tinker_error *err);
/* One supervised example over all messages.  Ownership and errors as above; TINKER_EINVAL also for
 * no messages, and for an image without expected_tokens. */
TINKER_API tinker_rendered *tinker_renderer_example(const tinker_renderer *r,
                                                    const tinker_message *messages, size_t n,
                                                    tinker_train_on mode, tinker_error *err);
/* As many examples as it takes to train every turn in the context it will be sampled in; may be
 * none.  Ownership and errors as above; TINKER_EINVAL also for a mode that cannot be split. */
TINKER_API tinker_rendered *tinker_renderer_examples(const tinker_renderer *r,
                                                     const tinker_message *messages, size_t n,
                                                     tinker_train_on mode, tinker_error *err);

/* The messages that declare tools[0..n), to be put before a conversation; system_prompt (NULL:
 * none) becomes part of them, as the format demands.  Free the result with
 * tinker_conversation_free().  NULL with *err set: TINKER_EINVAL when the format has no tools or a
 * schema cannot be read, TINKER_ENOMEM. */
TINKER_API tinker_conversation *tinker_renderer_tool_prefix(const tinker_renderer *r,
                                                            const tinker_tool *tools, size_t n,
                                                            const char *system_prompt,
                                                            tinker_error *err);

/* ---- responses ------------------------------------------------------------------------------- */

/* How a response ended. */
typedef enum tinker_termination {
    TINKER_TERMINATION_STOP_SEQUENCE = 0,
    TINKER_TERMINATION_EOS = 1,
    TINKER_TERMINATION_MALFORMED = 2 /* cut off, for example by max_tokens */
} tinker_termination;

typedef struct tinker_parsed {
    const tinker_message *message;
    tinker_termination termination;
} tinker_parsed;

/* The message in sampled tokens[0..n), which are not needed after the call.  What the model wrote
 * is never an error: a tool call that cannot be read is in unparsed_tool_calls.  Free the result
 * with tinker_parsed_free().  NULL with *err set: TINKER_EINVAL when the tokens hold several stop
 * tokens, that is, were not sampled with this renderer's stop sequences; TINKER_ENOMEM. */
TINKER_API tinker_parsed *tinker_renderer_parse(const tinker_renderer *r, const int32_t *tokens,
                                                size_t n, tinker_error *err);
/* Free a parsed response and its message.  NULL is allowed. */
TINKER_API void tinker_parsed_free(tinker_parsed *p);

typedef enum tinker_parse_failure {
    TINKER_PARSE_OK = 0,
    TINKER_PARSE_STRUCTURAL = 1, /* no clean end: the turn cannot be rendered again */
    TINKER_PARSE_CONTENT = 2     /* a tool call could not be read; asking again may help */
} tinker_parse_failure;
/* Whether the response is usable as a turn of a conversation. */
TINKER_API tinker_parse_failure tinker_parsed_failure(const tinker_parsed *p);

typedef enum tinker_delta_kind {
    TINKER_DELTA_HEADER = 0, /* once, before the first content */
    TINKER_DELTA_TEXT = 1,
    TINKER_DELTA_THINKING = 2
} tinker_delta_kind;

/* A piece of a response.  text is not NUL-terminated. */
typedef struct tinker_delta {
    tinker_delta_kind kind;
    const char *text; /* HEADER: the role */
    size_t n_text;
    int content_index; /* grows whenever thinking begins or ends */
} tinker_delta;

/* Parses a response while it arrives; never emits half a character or part of a tag.
 * Where the prompt opened a thinking block the stream begins inside it.
 * Thread safety: one thread at a time. */
typedef struct tinker_parse_stream tinker_parse_stream;
/* A stream for one response; the renderer must outlive it.  Free it with
 * tinker_parse_stream_free().  NULL with *err set: TINKER_ENOMEM. */
TINKER_API tinker_parse_stream *tinker_parse_stream_new(const tinker_renderer *r,
                                                        tinker_error *err);
/* NULL is allowed.  No other call on the object may be in progress. */
TINKER_API void tinker_parse_stream_free(tinker_parse_stream *s);
/* Take one token.  (*deltas)[0..*n), possibly none, are borrowed until the next call on the
 * stream.  Tokens after a stop token are ignored.  TINKER_ESTATE after finish, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_parse_stream_feed(tinker_parse_stream *s, int32_t token,
                                                  const tinker_delta **deltas, size_t *n,
                                                  tinker_error *err);
/* The last deltas, borrowed as above, and in *out (out may be NULL) the whole message, to be freed
 * with tinker_parsed_free().  TINKER_ESTATE the second time, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_parse_stream_finish(tinker_parse_stream *s,
                                                    const tinker_delta **deltas, size_t *n,
                                                    tinker_parsed **out, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
