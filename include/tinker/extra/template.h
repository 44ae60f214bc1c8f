/* template.h - run a model's own chat template (Jinja), for models without a renderer.
 *
 *     tinker_template *t = tinker_template_open("models/tiny", &err);
 *     tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
 *     opts.add_generation_prompt = 1;
 *     tinker_text prompt = TINKER_TEXT_INIT;
 *     if (t)
 *         tinker_template_render(t, messages, n, NULL, 0, &opts, &prompt, &err);
 *     tinker_template_free(t);
 *
 * The language is the one of Hugging Face's apply_chat_template.  A template can neither read files
 * nor use the network, and has limits of memory and steps. */
#ifndef TINKER_EXTRA_TEMPLATE_H
#define TINKER_EXTRA_TEMPLATE_H

#include <tinker/chat.h>

#ifdef __cplusplus
extern "C" {
#endif

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

/* Compile source[0..n), of at most 4 MiB, which is not needed after the call.  Free the template
 * with tinker_template_free().  NULL with *err set: TINKER_EINVAL says "line N: ..." when the
 * source does not parse, TINKER_ENOMEM. */
TINKER_API tinker_template *tinker_template_new(const char *source, size_t n, tinker_error *err);
/* The chat_template of a model directory: chat_template.jinja, or the entry in
 * tokenizer_config.json (the one called "default" of a list).  Blocks on files.  Ownership and
 * errors as above; a file that cannot be read or has no template is an error, too. */
TINKER_API tinker_template *tinker_template_open(const char *model_dir, tinker_error *err);
/* NULL is allowed.  No other call on the object may be in progress. */
TINKER_API void tinker_template_free(tinker_template *t);

/* Append the text of the conversation to *out.  opts NULL: all defaults.  TINKER_EINVAL for an
 * error in or raised by the template, or over max_steps; TINKER_ENOMEM over max_memory. */
TINKER_API tinker_status tinker_template_render(const tinker_template *t,
                                                const tinker_message *messages, size_t n,
                                                const tinker_tool *tools, size_t n_tools,
                                                const tinker_template_options *opts,
                                                tinker_text *out, tinker_error *err);
/* The same with messages and tools (NULL: none) as JSON arrays, NUL-terminated, handed to the
 * template as they are. */
TINKER_API tinker_status tinker_template_render_json(const tinker_template *t, const char *messages,
                                                     const char *tools,
                                                     const tinker_template_options *opts,
                                                     tinker_text *out, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
