/* chat.h - messages between C structs, JSON and template values.
 *
 * All results live in the arena of the given jx and die with it. */
#ifndef CHAT_CHAT_H
#define CHAT_CHAT_H

#include <tinker/chat.h>
#include "jinja/jinja_value.h"

/* A conversation and the memory behind it. */
struct chat_box {
    tinker_conversation pub; /* first, so that the public pointer is ours */
    struct arena arena;
};
struct chat_box *chat_box_new(tinker_error *err);

/* Text of a NUL-terminated or counted string; NULL is empty. */
struct jv_str chat_text(const char *s, size_t n);
struct jv_str chat_content(const tinker_message *m); /* of string content */
struct jv_str chat_part_text(const tinker_part *p);

/* Whether messages from the caller have what every message needs. */
bool chat_check(struct jx *x, const tinker_message *messages, size_t n);
/* Messages from a list of dicts; `place` names it in errors ("messages"). */
tinker_message *chat_read_messages(struct jx *x, struct jv list, const char *place, size_t *n);
/* Tools from a list of dicts, wrapped in {"type":"function"} or bare. */
tinker_tool *chat_read_tools(struct jx *x, struct jv list, size_t *n);
/* The declaration of a tool as a bare dict: its spec, or name, description, parameters. */
struct jv chat_tool_value(struct jx *x, const tinker_tool *tool);
/* The message as chat templates expect it. */
struct jv chat_message_value(struct jx *x, const tinker_message *m, bool arguments_as_text);

#endif
