/* rl_prompt.c - see rl_prompt.h. */
#include "cli/train/rl_prompt.h"

#include <string.h>
#include "base/array.h"
#include "json/json.h"

/* What is put behind a question so that the graders of the same name find their answer: "math"
 * and "gsm" look for a box, "choice" for a letter. */
static const struct {
    const char *name, *suffix;
} templates[] = {
    { "math", "\nReason step by step, then give the final answer in \\boxed{}." },
    { "gsm", "\nReason step by step, then give the final answer, a plain number without units, in "
             "\\boxed{}." },
    { "choice", "\nAnswer with one letter." },
};

static const char *template_suffix(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(templates); i++)
        if (strcmp(templates[i].name, name) == 0)
            return templates[i].suffix;
    return "";
}

/* The row's "choices", lettered, one on each line. */
static const char *list_choices(struct arena *a, const tinker_row *row)
{
    struct json_reader r;
    struct json_str key, item;
    const char *out = "";
    json_reader_init(&r, row->json, row->n_json, a);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (!json_str_is(key, "choices") || json_peek(&r) != JSON_ARRAY) {
            json_skip(&r);
            continue;
        }
        json_begin_array(&r);
        for (int i = 0; json_next_item(&r); i++)
            if (json_peek(&r) != JSON_STRING || !json_string(&r, &item))
                json_skip(&r);
            else if (i < 26 && out)
                out = arena_printf(a, "%s\n%c) %.*s", out, 'A' + i, (int)item.n, item.s);
    }
    return out;
}

/* The last user message with text before and behind; parts stay as they are. */
static bool wrap_message(struct arena *a, const struct train_options *o, const tinker_row *row,
                         tinker_message *m)
{
    bool choice = strcmp(o->template, "choice") == 0;
    const char *choices = choice ? list_choices(a, row) : "";
    const char *suffix = o->prompt_suffix ? o->prompt_suffix : template_suffix(o->template);
    /* Messages with parts (images) have no text to put things around. */
    if (m->parts || !choices)
        return choices != NULL;
    m->content = arena_printf(a, "%s%s%s%s", o->prompt_prefix ? o->prompt_prefix : "", m->content,
                              choices, suffix);
    /* 0: the length is that of the string. */
    m->n_content = 0;
    return m->content != NULL;
}

/* System message, examples, the row's own messages.  Only the list of messages is new: their texts
 * are borrowed from the row and the examples, which live as long as the run. */
const tinker_conversation *rl_prompt_make(struct arena *a, const struct train_options *o,
                                          const tinker_conversation *examples,
                                          const tinker_row *row)
{
    size_t n_examples = examples ? examples->n_messages : 0;
    const tinker_conversation *c = row->prompt;
    tinker_conversation *out = arena_alloc(a, sizeof(*out));
    tinker_message *m = arena_array(a, c->n_messages + n_examples + 1, sizeof(*m));
    size_t n = 0;
    if (!out || !m)
        return NULL;
    if (o->system)
        m[n++] = (tinker_message){ .role = "system", .content = o->system };
    for (size_t i = 0; i < n_examples; i++)
        m[n++] = examples->messages[i];
    for (size_t i = 0; i < c->n_messages; i++)
        m[n++] = c->messages[i];
    /* The last user message is the question; earlier turns of a conversation are examples and
     * stay. */
    for (size_t i = n; i-- > 0;)
        if (strcmp(m[i].role, "user") == 0) {
            if (!wrap_message(a, o, row, &m[i]))
                return NULL;
            break;
        }
    *out = *c;
    out->messages = m;
    out->n_messages = n;
    return out;
}
