/* anthropic.h - the Messages API of Anthropic, on the same sampling code as the OpenAI endpoints.
 *
 * A request becomes a struct openai; what differs is how it is read and how the answer looks.
 * Thread: the listener; the events of a stream, the engine thread. */
#ifndef SERVER_ANTHROPIC_H
#define SERVER_ANTHROPIC_H

#include "server/api/openai.h"

/* Read the body of /v1/messages, or of its count_tokens when `count`.  TINKER_EINVAL names the
 * field. */
tinker_status anthropic_read(struct openai *o, const char *body, size_t n, bool count,
                             tinker_error *err);
/* {"type": "error", ...} with the status. */
void anthropic_error(struct response *res, int status, const char *message);
/* The whole answer. */
void anthropic_put_message(const struct openai *o, struct json_writer *w, const tinker_sample *s);

/* Events of a stream, appended to *out: the beginning; a piece of text, the first of which opens its
 * block; the end, with all content if no text was sent (*opened false). */
void anthropic_put_start(const struct openai *o, struct buf *out, size_t n_prompt);
void anthropic_put_text(struct buf *out, const char *text, size_t n, bool *opened);
void anthropic_put_end(const struct openai *o, struct buf *out, const tinker_sequence *q,
                       bool opened);
void anthropic_put_failure(struct buf *out, const char *message);

#endif
