/* conversation.h - the turns of a chat, owned.
 *
 * Thread safety: one thread at a time. */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/chat.h>

struct turn {
    char *role, *text;
    char *thinking; /* NULL: none */
};

struct conversation {
    char *system; /* NULL: none */
    struct turn *turns;
    size_t n, cap;
};

void conversation_clear(struct conversation *c); /* turns and system message */
/* All texts are copied.  false: out of memory. */
bool conversation_add(struct conversation *c, const char *role, const char *text,
                      const char *thinking);
bool conversation_set_system(struct conversation *c, const char *text); /* "" removes it */
/* Take back the last turn; NULL when there is none.  The text is the caller's. */
char *conversation_pop(struct conversation *c);

/* All of it but the first `skip` turns as messages, the system message first; free with
 * conversation_messages_free().  false: out of memory. */
struct conversation_messages {
    tinker_message *v;
    tinker_part *parts;
    size_t n;
};
bool conversation_messages(const struct conversation *c, size_t skip,
                           struct conversation_messages *out);
void conversation_messages_free(struct conversation_messages *m);

/* {"messages": [...]} on one line: what `tinker train sft` reads.  The exit status, after the error
 * was printed. */
int conversation_save(const struct conversation *c, const char *path);
/* The first conversation of such a file takes the place of this one. */
int conversation_load(struct conversation *c, const char *path);

#endif
