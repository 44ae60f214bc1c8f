/* renderer.h - chat formats of your own, and what is known about the built-in ones. */
#ifndef TINKER_EXTRA_RENDERER_H
#define TINKER_EXTRA_RENDERER_H

#include <tinker/chat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- chat formats of your own ---------------------------------------------------------------- */

/* Render one message: append to the three texts with tinker_text_append().  `header` comes before
 * what is trained, `body` is the content, `tail` ends the message.  Control tokens are recognized
 * in header and tail, and in the body unless safe_content is set.  A prompt is the header of an
 * empty message.  All arguments are borrowed for the call.  Called in the thread that renders; the
 * same message must always give the same texts.  is_last: no message follows.  A status other than
 * TINKER_OK fails the rendering with the message in *err. */
typedef tinker_status tinker_render_message_fn(const tinker_message *message, int is_last,
                                               tinker_text *header, tinker_text *body,
                                               tinker_text *tail, tinker_error *err, void *state);

typedef struct tinker_format_options {
    size_t size; /* set by TINKER_FORMAT_OPTIONS_INIT */
    tinker_render_message_fn *render;
    void *state;
    const char *stop; /* control token that ends a message, and a sampled answer */
    const char *bos;  /* control token before the first message; NULL: none */
    int extends;      /* the prompt of each turn extends the one before */
} tinker_format_options;
#define TINKER_FORMAT_OPTIONS_INIT                               \
    {                                                            \
        sizeof(tinker_format_options), NULL, NULL, NULL, NULL, 0 \
    }

/* Make the format known to tinker_renderer_new() under `name`; it hides a built-in format of that
 * name.  Copies the texts; state must live as long as a renderer may use it.  Thread safety: any
 * thread, any time.  TINKER_EINVAL when name, render or stop is missing, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_renderer_register(const char *name,
                                                  const tinker_format_options *format,
                                                  tinker_error *err);
/* Forget a registered format.  1: it was registered, 0: it was not.  Existing renderers keep it. */
TINKER_API int tinker_renderer_unregister(const char *name);

/* ---- what is known about renderers ----------------------------------------------------------- */

/* Whether the prompt of each turn extends the one before, so that one example can train several
 * turns. */
TINKER_API int tinker_renderer_has_extension(const tinker_renderer *r);
/* Whether its prompt tells the model not to reason. */
TINKER_API int tinker_renderer_disables_thinking(const tinker_renderer *r);
/* Names of all built-in renderers, in a fixed order; NULL past the end.  Static. */
TINKER_API const char *tinker_renderer_name_at(size_t i);
/* The i-th renderer recommended for a model, best first; NULL past the end or when the model is
 * unknown.  A ":checkpoint" suffix of the name is ignored.  Static. */
TINKER_API const char *tinker_renderer_recommended(const char *model, size_t i);

#ifdef __cplusplus
}
#endif
#endif
