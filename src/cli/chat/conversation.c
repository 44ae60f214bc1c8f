/* conversation.c - see conversation.h. */
#include "cli/chat/conversation.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "cli/output/out.h"

/* FILE_MAX bounds what /load reads into memory. */
enum { FILE_MAX = 64 << 20 };

void conversation_clear(struct conversation *c)
{
    while (c->n)
        free(conversation_pop(c));
    free(c->turns);
    free(c->system);
    *c = (struct conversation){ 0 };
}

/* The text goes to the caller, who may put it back into the input line; the rest of the turn is
 * freed. */
char *conversation_pop(struct conversation *c)
{
    if (!c->n)
        return NULL;
    struct turn *t = &c->turns[--c->n];
    free(t->role);
    free(t->thinking);
    return t->text;
}

/* All three copies or none: a turn is never half there. */
bool conversation_add(struct conversation *c, const char *role, const char *text,
                      const char *thinking)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 16;
        struct turn *turns = realloc(c->turns, cap * sizeof(*turns));
        if (!turns)
            return false;
        c->turns = turns;
        c->cap = cap;
    }
    struct turn t = { strdup(role), strdup(text), thinking ? strdup(thinking) : NULL };
    if (!t.role || !t.text || (thinking && !t.thinking)) {
        free(t.role);
        free(t.text);
        free(t.thinking);
        return false;
    }
    c->turns[c->n++] = t;
    return true;
}

/* "" removes it; the old one stays when there is no memory for the new one. */
bool conversation_set_system(struct conversation *c, const char *text)
{
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy)
        return false;
    free(c->system);
    c->system = copy;
    return true;
}

/* Messages as the library takes them, pointing into the turns: they are valid until the
 * conversation changes.  A turn with thinking becomes a message of two parts, so the renderer
 * decides whether the model sees its earlier thinking; hence at most two parts per turn. */
bool conversation_messages(const struct conversation *c, size_t skip,
                           struct conversation_messages *out)
{
    out->n = 0;
    out->v = calloc(c->n + 1, sizeof(*out->v));
    out->parts = calloc(2 * c->n + 1, sizeof(*out->parts));
    if (!out->v || !out->parts) {
        conversation_messages_free(out);
        return false;
    }
    if (c->system)
        out->v[out->n++] = (tinker_message){ .role = "system", .content = c->system };
    for (size_t i = skip; i < c->n; i++) {
        const struct turn *t = &c->turns[i];
        tinker_message *m = &out->v[out->n++];
        m->role = t->role;
        if (!t->thinking) {
            m->content = t->text;
            continue;
        }
        tinker_part *parts = &out->parts[2 * i];
        parts[0] = (tinker_part){ .kind = TINKER_PART_THINKING, .text = t->thinking };
        parts[1] = (tinker_part){ .kind = TINKER_PART_TEXT, .text = t->text };
        m->parts = parts;
        m->n_parts = 2;
    }
    return true;
}

void conversation_messages_free(struct conversation_messages *m)
{
    free(m->v);
    free(m->parts);
    *m = (struct conversation_messages){ 0 };
}

/* Opened for appending: several chats make one dataset, one line each. */
int conversation_save(const struct conversation *c, const char *path)
{
    struct conversation_messages m;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_error err;
    if (!conversation_messages(c, 0, &m))
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    FILE *f = fopen(path, "a");
    bool ok = f && fputs("{\"messages\": [", f) >= 0;
    for (size_t i = 0; ok && i < m.n; i++) {
        text.n = 0;
        ok = tinker_message_to_json(&m.v[i], &text, &err) == TINKER_OK &&
             fprintf(f, "%s%.*s", i ? ", " : "", (int)text.n, text.s) > 0;
    }
    ok = ok && fputs("]}\n", f) >= 0;
    /* fclose() may overwrite it.  A full disk may show only in fclose(), where buffered bytes
     * are written. */
    int reason = errno;
    if (f && fclose(f) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    tinker_text_clear(&text);
    conversation_messages_free(&m);
    return ok ? EXIT_OK : out_fail(EXIT_IO, NULL, "write %s: %s", path, strerror(reason));
}

/* Text and thinking of a message apart.
 * Images and tool calls of a loaded file have no place here and are left out. */
static bool add_message(struct conversation *c, const tinker_message *m)
{
    tinker_text text = TINKER_TEXT_INIT, thinking = TINKER_TEXT_INIT;
    tinker_error err;
    bool ok = tinker_message_text(m, &text, &err) == TINKER_OK;
    for (size_t i = 0; ok && i < m->n_parts; i++)
        if (m->parts[i].kind == TINKER_PART_THINKING)
            ok = tinker_text_append(&thinking, m->parts[i].text, m->parts[i].n_text, &err) ==
                 TINKER_OK;
    const char *said = text.s ? text.s : "";
    /* A system message in the middle of a conversation is an ordinary turn. */
    if (ok && strcmp(m->role, "system") == 0 && !c->n)
        ok = conversation_set_system(c, said);
    else if (ok)
        ok = conversation_add(c, m->role, said, thinking.n ? thinking.s : NULL);
    tinker_text_clear(&text);
    tinker_text_clear(&thinking);
    return ok;
}

int conversation_load(struct conversation *c, const char *path)
{
    char *text;
    size_t n;
    tinker_error err;
    if (os_read_file(path, FILE_MAX, &text, &n, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    /* One document, or one per line, of which the first counts. */
    tinker_conversation *all = tinker_conversation_parse(text, n, &err);
    if (!all)
        all = tinker_conversation_parse(text, strcspn(text, "\n"), &err);
    free(text);
    if (!all)
        return out_fail(EXIT_DATA, NULL, "%s: %s", path, err.message);
    bool ok = true;
    /* Only now, when the file was read as a whole. */
    conversation_clear(c);
    for (size_t i = 0; ok && i < all->n_messages; i++)
        ok = add_message(c, &all->messages[i]);
    tinker_conversation_free(all);
    return ok ? EXIT_OK : out_fail(EXIT_FAILED, NULL, "out of memory");
}
