/* chat.h - conversations to tokens and sampled tokens back to messages.
 *
 * A renderer knows one chat format.  It builds generation prompts and supervised
 * examples with one weight per token, names the stop sequences, and parses what a
 * model sampled into a message with thinking and tool calls.  A chat template
 * runs a model's own Jinja template instead, for models without a renderer.
 *
 * Strings are UTF-8.  A length of 0 beside a text means "up to the NUL".
 * Results own all they refer to and go away with one free. */
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
 * is possible in prompts only). */
typedef struct tinker_part {
    tinker_part_kind kind;
    const char *text;
    size_t n_text;
    const void *bytes;
    size_t n_bytes;
    const char *format; /* "png" or "jpeg"; NULL: recognised from the bytes */
    int64_t expected_tokens;
} tinker_part;

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

/* Content is a string, or (parts not NULL) a list of parts.  Zero-initialise, then fill.
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
 * JSON object (bare, not wrapped in {"type":"function"}) and wins over the other fields. */
typedef struct tinker_tool {
    const char *name;
    const char *description;
    const char *parameters; /* JSON schema */
    const char *spec;
} tinker_tool;

/* Messages read from JSON: [...], or {"messages": [...], "tools": [...]}.  Accepts the
 * cookbook's shape and the one of chat-completion APIs (null content, image_url parts,
 * reasoning_content, arguments as object, wrapped tools). */
typedef struct tinker_conversation {
    const tinker_message *messages;
    size_t n_messages;
    const tinker_tool *tools;
    size_t n_tools;
} tinker_conversation;

/* NULL with *err set: TINKER_EINVAL names the place, TINKER_ENOMEM. */
TINKER_API tinker_conversation *tinker_conversation_parse(const char *json, size_t n,
                                                          tinker_error *err);
TINKER_API void tinker_conversation_free(tinker_conversation *c);

/* The message as a JSON object, malloc'd and NUL-terminated; free() it.  NULL with *err
 * set to TINKER_ENOMEM.  len may be NULL. */
TINKER_API char *tinker_message_to_json(const tinker_message *message, size_t *len,
                                        tinker_error *err);

/* ---- renderers ------------------------------------------------------------------------------- */

typedef enum tinker_train_on {
    TINKER_TRAIN_LAST_ASSISTANT_MESSAGE = 0,
    TINKER_TRAIN_LAST_ASSISTANT_TURN = 1,
    TINKER_TRAIN_ALL_ASSISTANT_MESSAGES = 2,
    TINKER_TRAIN_ALL_MESSAGES = 3,
    TINKER_TRAIN_ALL_TOKENS = 4,
    TINKER_TRAIN_ALL_USER_AND_SYSTEM_MESSAGES = 5,
    TINKER_TRAIN_CUSTOMIZED = 6
} tinker_train_on;

/* "last_assistant_message" ... "customized"; NULL for a value out of range. */
TINKER_API const char *tinker_train_on_name(tinker_train_on mode);
/* TINKER_EINVAL lists the names. */
TINKER_API tinker_status tinker_train_on_parse(const char *name, tinker_train_on *out,
                                               tinker_error *err);

/* One renderer for one tokenizer, which must outlive it.
 * Thread safety: any thread, any time. */
typedef struct tinker_renderer tinker_renderer;

typedef struct tinker_renderer_options {
    size_t size;             /* set by TINKER_RENDERER_OPTIONS_INIT */
    int thinking_in_history; /* 0: as the name says; 1: keep; -1: strip */
    int safe_content;        /* 1: control tokens typed in content and names stay text */
    int system_as_user;      /* deepseekv3: later system messages become user messages */
    const char *date;        /* gpt_oss system prompt: "YYYY-MM-DD"; NULL: today, local time */
    void (*warn)(void *state, const char *line); /* NULL: silence; called in the caller's thread */
    void *warn_state;
} tinker_renderer_options;
#define TINKER_RENDERER_OPTIONS_INIT                               \
    {                                                              \
        sizeof(tinker_renderer_options), 0, 0, 0, NULL, NULL, NULL \
    }

/* NULL with *err set: TINKER_EINVAL for an unknown name or a tokenizer that lacks the
 * format's control tokens. */
TINKER_API tinker_renderer *tinker_renderer_new(const char *name, const tinker_tokenizer *tokenizer,
                                                const tinker_renderer_options *opts,
                                                tinker_error *err);
/* No other call on the object may be in progress. */
TINKER_API void tinker_renderer_free(tinker_renderer *r);
TINKER_API const char *tinker_renderer_name(const tinker_renderer *r);
/* Whether the prompt of each turn extends the one before, so that one example can train
 * several turns. */
TINKER_API int tinker_renderer_has_extension(const tinker_renderer *r);
/* Whether its prompt tells the model not to reason. */
TINKER_API int tinker_renderer_disables_thinking(const tinker_renderer *r);

/* Stop sequences: token ids or strings, one of the two; ready for tinker_sampling_params.
 * Borrowed from the renderer. */
typedef struct tinker_stop_sequences {
    const int32_t *tokens;
    const char *const *strings;
    size_t n;
} tinker_stop_sequences;
TINKER_API tinker_stop_sequences tinker_renderer_stop(const tinker_renderer *r);

/* Names of all renderers, in a fixed order; NULL past the end. */
TINKER_API const char *tinker_renderer_name_at(size_t i);
/* The i-th renderer recommended for a model, best first; NULL past the end or when the
 * model is unknown.  A ":checkpoint" suffix of the name is ignored. */
TINKER_API const char *tinker_renderer_recommended(const char *model, size_t i);
/* The renderer to use for a model: the recommended one, else what the control tokens of its
 * tokenizer (may be NULL) speak for, "role_colon" when nothing does.  Static. */
TINKER_API const char *tinker_renderer_for(const char *model, const tinker_tokenizer *tokenizer);
/* 1 when `name` suits `model` or nothing is known of the model, else 0 with a sentence
 * for the user in warning[0..size). */
TINKER_API int tinker_renderer_suits(const char *model, const char *name, char *warning,
                                     size_t size);

/* A chat format of your own: append one message to the three texts with
 * tinker_text_append().  `header` comes before what is trained; `body` is what somebody
 * wrote, `tail` ends it.  Control tokens count as such in header and tail, and in the body
 * unless safe_content.  A prompt is the header of an empty message.  Called in the thread
 * that renders, for the same message always with the same result; is_last: no other message
 * was given after it.  A status other than
 * TINKER_OK fails the rendering with the message in *err. */
typedef tinker_status tinker_render_message(void *state, const tinker_message *message, int is_last,
                                            tinker_text *header, tinker_text *body,
                                            tinker_text *tail, tinker_error *err);

typedef struct tinker_format {
    size_t size; /* set by TINKER_FORMAT_INIT */
    tinker_render_message *render;
    void *state;
    const char *stop; /* control token that ends a message, and a sampled answer */
    const char *bos;  /* control token before the first message; NULL: none */
    int extends;      /* the prompt of each turn extends the one before */
} tinker_format;
#define TINKER_FORMAT_INIT                               \
    {                                                    \
        sizeof(tinker_format), NULL, NULL, NULL, NULL, 0 \
    }

/* Make the format known to tinker_renderer_new() by a name, before any other of that name.
 * Copies the texts; state must live as long as a renderer may use it.  TINKER_EINVAL,
 * TINKER_ENOMEM. */
TINKER_API tinker_status tinker_renderer_register(const char *name, const tinker_format *format,
                                                  tinker_error *err);
/* 1: it was registered.  Renderers that were made keep it. */
TINKER_API int tinker_renderer_unregister(const char *name);

/* One token sequence.  weights (NULL in prompts) has one entry per token of the input. */
typedef struct tinker_example {
    tinker_model_input input;
    const float *weights;
    size_t n_tokens;
} tinker_example;

typedef struct tinker_rendered {
    const tinker_example *examples; /* at least one, except from tinker_renderer_examples() */
    size_t n_examples;
} tinker_rendered;
TINKER_API void tinker_rendered_free(tinker_rendered *x);

/* Prompt for the next message, of `role` (NULL: "assistant"), which begins with `prefill`
 * (NULL: nothing).  NULL with *err set: TINKER_EINVAL for messages the format cannot
 * express, TINKER_ENOMEM. */
TINKER_API tinker_rendered *tinker_renderer_prompt(const tinker_renderer *r,
                                                   const tinker_message *messages, size_t n,
                                                   const char *role, const char *prefill,
                                                   tinker_error *err);
/* One supervised example over all messages. */
TINKER_API tinker_rendered *tinker_renderer_example(const tinker_renderer *r,
                                                    const tinker_message *messages, size_t n,
                                                    tinker_train_on mode, tinker_error *err);
/* As many examples as it takes to train every turn in the context it will be sampled in. */
TINKER_API tinker_rendered *tinker_renderer_examples(const tinker_renderer *r,
                                                     const tinker_message *messages, size_t n,
                                                     tinker_train_on mode, tinker_error *err);

/* The messages that declare tools, to be put before a conversation.  TINKER_EINVAL when
 * the format has no tools. */
TINKER_API tinker_conversation *tinker_renderer_tool_prefix(const tinker_renderer *r,
                                                            const tinker_tool *tools, size_t n,
                                                            const char *system_prompt,
                                                            tinker_error *err);

/* ---- responses ------------------------------------------------------------------------------- */

typedef enum tinker_termination {
    TINKER_TERMINATION_STOP_SEQUENCE = 0,
    TINKER_TERMINATION_EOS = 1,
    TINKER_TERMINATION_MALFORMED = 2
} tinker_termination;

typedef struct tinker_parsed {
    const tinker_message *message;
    tinker_termination termination;
} tinker_parsed;

/* NULL with *err set: TINKER_EINVAL when the tokens hold several stop tokens. */
TINKER_API tinker_parsed *tinker_renderer_parse(const tinker_renderer *r, const int32_t *tokens,
                                                size_t n, tinker_error *err);
TINKER_API void tinker_parsed_free(tinker_parsed *p);

typedef enum tinker_parse_failure {
    TINKER_PARSE_OK = 0,
    TINKER_PARSE_STRUCTURAL = 1, /* no clean end: the turn cannot be rendered again */
    TINKER_PARSE_CONTENT = 2     /* a tool call could not be read; asking again may help */
} tinker_parse_failure;
TINKER_API tinker_parse_failure tinker_parsed_failure(const tinker_parsed *p);

typedef enum tinker_delta_kind {
    TINKER_DELTA_HEADER = 0, /* once, before the first content */
    TINKER_DELTA_TEXT = 1,
    TINKER_DELTA_THINKING = 2
} tinker_delta_kind;

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
TINKER_API tinker_parse_stream *tinker_parse_stream_new(const tinker_renderer *r,
                                                        tinker_error *err);
TINKER_API void tinker_parse_stream_free(tinker_parse_stream *s);
/* Deltas are borrowed until the next call on the stream. */
TINKER_API tinker_status tinker_parse_stream_feed(tinker_parse_stream *s, int32_t token,
                                                  const tinker_delta **deltas, size_t *n,
                                                  tinker_error *err);
/* The last deltas, and (out may be NULL) the whole message; free *out. */
TINKER_API tinker_status tinker_parse_stream_finish(tinker_parse_stream *s,
                                                    const tinker_delta **deltas, size_t *n,
                                                    tinker_parsed **out, tinker_error *err);

/* ---- chat templates -------------------------------------------------------------------------- */

/* A compiled Jinja chat template.
 * Thread safety: any thread, any time. */
typedef struct tinker_template tinker_template;

typedef struct tinker_template_options {
    size_t size; /* set by TINKER_TEMPLATE_OPTIONS_INIT */
    int add_generation_prompt;
    int arguments_as_text; /* tool-call arguments as JSON text, not as a mapping (DeepSeek) */
    const char *bos_token, *eos_token; /* NULL: undefined in the template */
    const char *variables;             /* JSON object of further variables; NULL: none */
    int64_t now;                       /* seconds since 1970 for strftime_now; 0: the clock */
    size_t max_memory;                 /* bytes; 0: 64 MiB */
    uint64_t max_steps;                /* evaluation steps; 0: 10 million */
} tinker_template_options;
#define TINKER_TEMPLATE_OPTIONS_INIT                                     \
    {                                                                    \
        sizeof(tinker_template_options), 0, 0, NULL, NULL, NULL, 0, 0, 0 \
    }

/* TINKER_EINVAL says "line N: ..." when the source does not parse. */
TINKER_API tinker_template *tinker_template_new(const char *source, size_t n, tinker_error *err);
/* The chat_template of a model directory: chat_template.jinja, or the entry in
 * tokenizer_config.json (the one called "default" of a list). */
TINKER_API tinker_template *tinker_template_open(const char *model_dir, tinker_error *err);
TINKER_API void tinker_template_free(tinker_template *t);

/* Text of the conversation, malloc'd and NUL-terminated; free() it.  NULL with *err set:
 * TINKER_EINVAL for an error in or raised by the template, TINKER_ENOMEM over a limit. */
TINKER_API char *tinker_template_render(const tinker_template *t, const tinker_message *messages,
                                        size_t n, const tinker_tool *tools, size_t n_tools,
                                        const tinker_template_options *opts, size_t *len,
                                        tinker_error *err);
/* The same with messages and tools (NULL: none) as JSON arrays, handed to the template as
 * they are. */
TINKER_API char *tinker_template_render_json(const tinker_template *t, const char *messages,
                                             const char *tools, const tinker_template_options *opts,
                                             size_t *len, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
