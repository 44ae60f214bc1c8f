/* row_form.c - see row_form.h. */
#include "recipe/row_form.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/array.h"

/* Members that any form knows. Others are not errors: data sets carry ids, sources and scores. */
static const char *const keys[ROW_KEYS] = {
    [ROW_MESSAGES] = "messages",
    [ROW_CONVERSATIONS] = "conversations",
    [ROW_CHOSEN] = "chosen",
    [ROW_REJECTED] = "rejected",
    [ROW_COMPARISON] = "comparison",
    [ROW_LABEL] = "label",
    [ROW_INSTRUCTION] = "instruction",
    [ROW_OUTPUT] = "output",
    [ROW_INPUT] = "input",
    [ROW_SYSTEM] = "system",
    [ROW_HISTORY] = "history",
    [ROW_PROMPT] = "prompt",
    [ROW_COMPLETION] = "completion",
    [ROW_RESPONSE] = "response",
    [ROW_QUESTION] = "question",
    [ROW_ANSWER] = "answer",
    [ROW_EXPECTED] = "expected",
    [ROW_TARGET] = "target",
    [ROW_TOKENS] = "tokens",
    [ROW_WEIGHTS] = "weights",
    [ROW_TEXT] = "text",
    [ROW_TOOLS] = "tools",
    [ROW_WEIGHT] = "weight",
};

bool row_parts_fail(struct row_parts *p, const char *at, const char *fmt, ...)
{
    va_list ap;
    /* A pointer that is not into the line (an empty text, a value of another file) has no
     * column. */
    bool inside = at && at >= p->line && at <= p->line + p->n_line;
    p->problem->column = inside ? (size_t)(at - p->line) + 1 : 1;
    va_start(ap, fmt);
    vsnprintf(p->problem->reason, sizeof(p->problem->reason), fmt, ap);
    va_end(ap);
    return false;
}

/* The reader's own words name line 1 and a column, which the caller tells better. */
static bool fail_json(struct row_parts *p, const struct json_reader *r)
{
    const char *text = json_error(r), *colon = strstr(text, ": ");
    return row_parts_fail(p, r->start + r->error_at, "not JSON: %s", colon ? colon + 2 : text);
}

/* One pass over the line keeps where each known member stands, unparsed. null counts as absent:
 * tools that write tables fill every column. */
bool row_parts_read(struct row_parts *p, const char *line, size_t n, struct arena *arena,
                    struct row_problem *problem)
{
    struct json_reader r;
    struct json_str key, value;
    *p = (struct row_parts){ .line = line, .n_line = n, .arena = arena, .problem = problem };
    *problem = (struct row_problem){ 1, "" };
    json_reader_init(&r, line, n, arena);
    enum json_kind kind = json_peek(&r);
    if (kind == JSON_ARRAY) { /* a bare list of messages */
        if (!json_raw(&r, &p->at[ROW_MESSAGES]) || !json_end(&r))
            return fail_json(p, &r);
        return true;
    }
    if (kind != JSON_OBJECT && kind != JSON_NONE)
        return row_parts_fail(p, NULL, "not an object");
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        bool null = json_peek(&r) == JSON_NULL;
        if (!json_raw(&r, &value) || null)
            continue;
        for (size_t i = 0; i < ROW_KEYS; i++)
            /* Keys are few; the last of equal ones counts, as in Python. */
            if (json_str_is(key, keys[i]))
                p->at[i] = value;
    }
    return json_end(&r) || fail_json(p, &r);
}

/* The first rule that fits: the more specific forms stand before those that share a member with
 * them ("prompt" alone is last). */
tinker_row_form row_parts_form(const struct row_parts *p)
{
    static const struct {
        tinker_row_form form;
        enum row_key first, second; /* equal: one is enough */
    } rules[] = {
        { TINKER_FORM_MESSAGES, ROW_MESSAGES, ROW_MESSAGES },
        { TINKER_FORM_SHAREGPT, ROW_CONVERSATIONS, ROW_CONVERSATIONS },
        { TINKER_FORM_PAIR, ROW_CHOSEN, ROW_REJECTED },
        { TINKER_FORM_COMPARISON, ROW_COMPARISON, ROW_LABEL },
        { TINKER_FORM_ALPACA, ROW_INSTRUCTION, ROW_OUTPUT },
        { TINKER_FORM_PROMPT_COMPLETION, ROW_PROMPT, ROW_COMPLETION },
        { TINKER_FORM_PROMPT_COMPLETION, ROW_PROMPT, ROW_RESPONSE },
        { TINKER_FORM_QUESTION_ANSWER, ROW_QUESTION, ROW_ANSWER },
        { TINKER_FORM_TOKENS, ROW_TOKENS, ROW_TOKENS },
        { TINKER_FORM_TEXT, ROW_TEXT, ROW_TEXT },
        { TINKER_FORM_PROMPT, ROW_PROMPT, ROW_PROMPT },
    };
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (p->at[rules[i].first].s && p->at[rules[i].second].s)
            return rules[i].form;
    return TINKER_FORM_AUTO;
}

/* ---- values ---- */

/* As a part of the whole line, so that positions in error messages are columns of the line. */
static void read_part(struct json_reader *r, const struct row_parts *p, struct json_str raw)
{
    /* The reader of a part keeps the whole line for its messages. */
    struct json_reader whole;
    json_reader_init(&whole, p->line, p->n_line, p->arena);
    json_reader_part(r, &whole, raw);
}

static bool read_string(struct row_parts *p, struct json_str raw, const char *what,
                        struct json_str *out)
{
    struct json_reader r;
    read_part(&r, p, raw);
    /* A number or a list here is nearly always a mistake of the exporter. */
    return (json_peek(&r) == JSON_STRING && json_string(&r, out)) ||
           row_parts_fail(p, raw.s, "%s is not a text", what);
}

bool row_parts_string(struct row_parts *p, enum row_key key, struct json_str *out)
{
    return read_string(p, p->at[key], keys[key], out);
}

bool row_parts_weight(struct row_parts *p, double *out)
{
    struct json_reader r;
    /* Rows count 1 unless they say otherwise; 0 leaves a row out. */
    *out = 1;
    if (!p->at[ROW_WEIGHT].s)
        return true;
    read_part(&r, p, p->at[ROW_WEIGHT]);
    return (json_double(&r, out) && *out >= 0) ||
           row_parts_fail(p, p->at[ROW_WEIGHT].s, "weight is not a number of 0 or more");
}

/* Ids are checked against the vocabulary later, where the tokenizer is known (rows_render.c). */
bool row_parts_tokens(struct row_parts *p, int32_t **tokens, float **weights, size_t *n)
{
    struct json_reader r;
    size_t n_weights = 0;
    *weights = NULL;
    read_part(&r, p, p->at[ROW_TOKENS]);
    /* Lengths of 0 are allowed here and refused where a datum is made. */
    if (!json_array_int32(&r, tokens, n))
        return row_parts_fail(p, p->at[ROW_TOKENS].s, "tokens is not a list of token ids");
    if (!p->at[ROW_WEIGHTS].s)
        return true;
    read_part(&r, p, p->at[ROW_WEIGHTS]);
    if (!json_array_float(&r, weights, &n_weights))
        return row_parts_fail(p, p->at[ROW_WEIGHTS].s, "weights is not a list of numbers");
    return n_weights == *n || row_parts_fail(p, p->at[ROW_WEIGHTS].s,
                                             "weights has %zu elements, tokens %zu", n_weights, *n);
}

/* An expected answer that is not a text (5, true, a list of alternatives) is kept as it is
 * written; graders read it as JSON. */
bool row_parts_expected(struct row_parts *p, const char **out)
{
    static const enum row_key order[] = { ROW_ANSWER, ROW_EXPECTED, ROW_TARGET };
    *out = NULL;
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        struct json_str raw = p->at[order[i]], text;
        struct json_reader r;
        if (!raw.s)
            continue;
        read_part(&r, p, raw);
        /* A copy of JSON text: graders tell a list from a text that begins with a bracket. */
        if (json_peek(&r) != JSON_STRING)
            text = raw;
        else if (!json_string(&r, &text))
            return fail_json(p, &r);
        *out = arena_strndup(p->arena, text.s, text.n);
        return *out || row_parts_fail(p, NULL, "out of memory");
    }
    return true;
}

/* ---- messages ---- */

static bool check_role(struct row_parts *p, struct json_str raw, struct json_str role)
{
    static const char *const roles[] = { "system", "user", "assistant", "tool", "developer" };
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (json_str_is(role, roles[i]))
            return true;
    return row_parts_fail(p, raw.s,
                          "role \"%.*s\" is not one of system, user, assistant, tool, developer",
                          (int)(role.n < 40 ? role.n : 40), role.s);
}

/* NONE, ALL or SOME of the messages so far have the mark. */
static void count_trainable(struct row_parts *p, bool has)
{
    /* The first message decides between none and all. */
    if (p->n_messages++ == 0)
        p->trainable = has ? ROW_TRAINABLE_ALL : ROW_TRAINABLE_NONE;
    else if ((p->trainable == ROW_TRAINABLE_ALL) != has)
        p->trainable = ROW_TRAINABLE_SOME;
}

/* Copy a message, member by member: "train" is another name of "trainable", null is absent. */
static bool put_message(struct row_parts *p, struct json_writer *w, struct json_str raw)
{
    struct json_reader r;
    struct json_str key, value, role = { NULL, 0 };
    bool trainable = false;
    size_t number = p->n_messages + 1;
    read_part(&r, p, raw);
    if (json_peek(&r) != JSON_OBJECT)
        return row_parts_fail(p, raw.s, "message %zu is not an object", number);
    json_put_begin_object(w);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        enum json_kind kind = json_peek(&r);
        /* Positions of a failure are found by the reader, whose error the caller reports. */
        if (!json_raw(&r, &value) || kind == JSON_NULL)
            continue;
        if (json_str_is(key, "train") || json_str_is(key, "trainable")) {
            trainable = true;
            json_put_key(w, "trainable");
            json_put_raw(w, value.s, value.n);
            continue;
        }
        /* A message without content (a call of a tool) has the member left out or null. */
        if (json_str_is(key, "content") && kind != JSON_STRING && kind != JSON_ARRAY)
            return row_parts_fail(p, value.s, "content is neither text nor a list of parts");
        if (json_str_is(key, "role") &&
            (!read_string(p, value, "role", &role) || !check_role(p, value, role)))
            return false;
        json_put_key_n(w, key.s, key.n);
        json_put_raw(w, value.s, value.n);
    }
    json_put_end_object(w);
    if (!role.s)
        return row_parts_fail(p, raw.s, "message %zu has no role", number);
    count_trainable(p, trainable);
    return true;
}

/* All messages of a list. An empty list is refused here, with its column; the renderer could
 * only say that nothing is trained. */
static bool put_messages(struct row_parts *p, struct json_writer *w, struct json_str raw,
                         const char *what)
{
    struct json_reader r;
    struct json_str item;
    size_t before = p->n_messages;
    read_part(&r, p, raw);
    if (json_peek(&r) != JSON_ARRAY)
        return row_parts_fail(p, raw.s, "%s is not a list of messages", what);
    json_begin_array(&r);
    while (json_next_item(&r))
        /* A broken item leaves the reader failed, which ends the loop; the text is checked as a
         * whole elsewhere. */
        if (!json_raw(&r, &item) || !put_message(p, w, item))
            return false;
    return p->n_messages > before || row_parts_fail(p, raw.s, "no messages");
}

static void put_text_message(struct row_parts *p, struct json_writer *w, const char *role,
                             struct json_str text)
{
    json_put_begin_object(w);
    json_put_key(w, "role");
    json_put_string(w, role);
    json_put_key(w, "content");
    json_put_string_n(w, text.s, text.n);
    json_put_end_object(w);
    /* A text that comes from another member never has a mark of its own. */
    count_trainable(p, false);
}

/* A text as one message of `role`, or a message, or a list of them. */
static bool put_any(struct row_parts *p, struct json_writer *w, const char *role,
                    struct json_str raw, const char *what)
{
    struct json_reader r;
    struct json_str text;
    read_part(&r, p, raw);
    switch (json_peek(&r)) {
    case JSON_STRING:
        if (!json_string(&r, &text))
            return fail_json(p, &r);
        put_text_message(p, w, role, text);
        return true;
    case JSON_OBJECT:
        return put_message(p, w, raw);
    case JSON_ARRAY:
        return put_messages(p, w, raw, what);
    default:
        return row_parts_fail(p, raw.s, "%s is neither text nor messages", what);
    }
}

/* ---- forms ---- */

/* ShareGPT files name the speaker after whatever product they were exported from. */
static const char *role_of_speaker(struct json_str from)
{
    static const struct {
        const char *from, *role;
    } speakers[] = {
        { "human", "user" },      { "user", "user" },         { "gpt", "assistant" },
        { "model", "assistant" }, { "chatgpt", "assistant" }, { "assistant", "assistant" },
        { "bing", "assistant" },  { "system", "system" },     { "tool", "tool" },
        { "function", "tool" },   { "observation", "tool" },
    };
    for (size_t i = 0; i < ARRAY_LEN(speakers); i++)
        if (json_str_is(from, speakers[i].from))
            return speakers[i].role;
    return NULL;
}

/* One turn of ShareGPT: {"from": speaker, "value": text}. */
static bool put_turn(struct row_parts *p, struct json_writer *w, struct json_str raw)
{
    struct json_reader r;
    struct json_str key, value, from = { NULL, 0 }, text = { NULL, 0 };
    read_part(&r, p, raw);
    if (json_peek(&r) != JSON_OBJECT)
        return row_parts_fail(p, raw.s, "message %zu is not an object", p->n_messages + 1);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        /* Members that we do not know (a score of the turn) are skipped. */
        if (!json_raw(&r, &value))
            break;
        if (json_str_is(key, "from") && !read_string(p, value, "from", &from))
            return false;
        if (json_str_is(key, "value") && !read_string(p, value, "value", &text))
            return false;
    }
    if (!from.s || !text.s)
        return row_parts_fail(p, raw.s, "message %zu needs \"from\" and \"value\"",
                              p->n_messages + 1);
    const char *role = role_of_speaker(from);
    if (!role)
        return row_parts_fail(p, raw.s, "from \"%.*s\" is not one of human, gpt, system, tool",
                              (int)(from.n < 40 ? from.n : 40), from.s);
    put_text_message(p, w, role, text);
    return true;
}

/* An empty system text is no message: tables have the column in every row. */
static bool put_system(struct row_parts *p, struct json_writer *w)
{
    struct json_str text;
    if (!p->at[ROW_SYSTEM].s)
        return true;
    if (!row_parts_string(p, ROW_SYSTEM, &text))
        return false;
    if (text.n)
        put_text_message(p, w, "system", text);
    return true;
}

/* Some files keep the system text beside the conversation instead of in it. */
static bool put_sharegpt(struct row_parts *p, struct json_writer *w)
{
    struct json_reader r;
    struct json_str item;
    read_part(&r, p, p->at[ROW_CONVERSATIONS]);
    if (!put_system(p, w))
        return false;
    if (json_peek(&r) != JSON_ARRAY)
        /* The position is that of the value, where the reader stands. */
        return row_parts_fail(p, r.p, "conversations is not a list");
    json_begin_array(&r);
    while (json_next_item(&r))
        if (!json_raw(&r, &item) || !put_turn(p, w, item))
            return false;
    return p->n_messages > 0 || row_parts_fail(p, r.p, "no messages");
}

/* history: a list of [user, assistant]. */
static bool put_history(struct row_parts *p, struct json_writer *w)
{
    struct json_reader r;
    struct json_str text;
    if (!p->at[ROW_HISTORY].s)
        return true;
    read_part(&r, p, p->at[ROW_HISTORY]);
    json_begin_array(&r);
    while (json_next_item(&r)) {
        json_begin_array(&r);
        for (size_t i = 0; json_next_item(&r); i++)
            if (json_string(&r, &text))
                /* The roles alternate, and the first is the user. */
                put_text_message(p, w, i % 2 ? "assistant" : "user", text);
    }
    return !r.failed ||
           row_parts_fail(p, p->at[ROW_HISTORY].s, "history is not a list of [user, assistant]");
}

/* Instruction and input are joined by a blank line, as the Alpaca template does without its
 * headings. */
static bool put_alpaca(struct row_parts *p, struct json_writer *w)
{
    struct json_str instruction, input = { "", 0 }, output;
    if (!put_system(p, w) || !put_history(p, w) ||
        !row_parts_string(p, ROW_INSTRUCTION, &instruction) ||
        (p->at[ROW_INPUT].s && !row_parts_string(p, ROW_INPUT, &input)) ||
        !row_parts_string(p, ROW_OUTPUT, &output))
        return false;
    struct json_str user = instruction;
    /* Two newlines: the headings of the template would teach a prompt that nobody writes later. */
    if (input.n) {
        user.s = arena_printf(p->arena, "%.*s\n\n%.*s", (int)instruction.n, instruction.s,
                              (int)input.n, input.s);
        user.n = instruction.n + 2 + input.n;
        if (!user.s)
            return row_parts_fail(p, NULL, "out of memory");
    }
    put_text_message(p, w, "user", user);
    put_text_message(p, w, "assistant", output);
    return true;
}

/* side 0: the chosen answer, 1: the rejected one. Without a prompt both are whole conversations. */
static bool put_pair(struct row_parts *p, struct json_writer *w, int side)
{
    enum row_key key = side ? ROW_REJECTED : ROW_CHOSEN;
    if (p->at[ROW_PROMPT].s && !put_any(p, w, "user", p->at[ROW_PROMPT], "prompt"))
        return false;
    return put_any(p, w, "assistant", p->at[key], keys[key]);
}

/* The cookbook's own form.  Label "B": the second completion is the better one. A tie is read in
 * full, so that its mistakes are told, and left out later. */
static bool put_comparison(struct row_parts *p, struct json_writer *w, int side)
{
    struct json_reader r;
    struct json_str key, value, label, talk = { NULL, 0 }, ab[2] = { { NULL, 0 }, { NULL, 0 } };
    if (!row_parts_string(p, ROW_LABEL, &label))
        return false;
    /* The sides are those of the label, not of the file: chosen is always side 0. */
    bool b = json_str_is(label, "B");
    p->tie = json_str_is(label, "Tie");
    if (!b && !p->tie && !json_str_is(label, "A"))
        return row_parts_fail(p, p->at[ROW_LABEL].s, "label is not one of A, B, Tie");
    read_part(&r, p, p->at[ROW_COMPARISON]);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (!json_raw(&r, &value))
            break;
        if (json_str_is(key, "prompt_conversation"))
            talk = value;
        else if (json_str_is(key, "completion_A"))
            ab[0] = value;
        else if (json_str_is(key, "completion_B"))
            ab[1] = value;
    }
    if (r.failed || !talk.s || !ab[0].s || !ab[1].s)
        return row_parts_fail(p, p->at[ROW_COMPARISON].s,
                              "comparison needs prompt_conversation, completion_A, completion_B");
    return put_any(p, w, "user", talk, "prompt_conversation") &&
           put_any(p, w, "assistant", ab[b != (side != 0)], side ? "completion_B" : "completion_A");
}

static bool put_prompt_completion(struct row_parts *p, struct json_writer *w)
{
    /* Two names for the same thing; completion wins where a row has both. */
    enum row_key key = p->at[ROW_COMPLETION].s ? ROW_COMPLETION : ROW_RESPONSE;
    return put_system(p, w) && put_any(p, w, "user", p->at[ROW_PROMPT], "prompt") &&
           put_any(p, w, "assistant", p->at[key], keys[key]);
}

/* The answer is the one that graders expect as well, so one file serves training and evaluation. */
static bool put_question_answer(struct row_parts *p, struct json_writer *w)
{
    const char *answer;
    if (!put_system(p, w) || !put_any(p, w, "user", p->at[ROW_QUESTION], "question") ||
        !row_parts_expected(p, &answer))
        return false;
    put_text_message(p, w, "assistant", (struct json_str){ answer, strlen(answer) });
    return true;
}

static bool put_form(struct row_parts *p, tinker_row_form form, int side, struct json_writer *w)
{
    switch (form) {
    case TINKER_FORM_MESSAGES:
        return put_messages(p, w, p->at[ROW_MESSAGES], "messages");
    case TINKER_FORM_SHAREGPT:
        return put_sharegpt(p, w);
    case TINKER_FORM_PAIR:
        return put_pair(p, w, side);
    case TINKER_FORM_COMPARISON:
        return put_comparison(p, w, side);
    case TINKER_FORM_ALPACA:
        return put_alpaca(p, w);
    case TINKER_FORM_PROMPT_COMPLETION:
        return put_prompt_completion(p, w);
    case TINKER_FORM_QUESTION_ANSWER:
        return put_question_answer(p, w);
    /* A prompt alone has no answer: rollouts and evaluations. */
    default:
        return put_system(p, w) && put_any(p, w, "user", p->at[ROW_PROMPT], "prompt");
    }
}

/* Every form is rewritten as {"messages": [...], "tools": [...]} and then parsed by the same
 * function as any conversation: there is one reader of messages, not one per form. */
bool row_parts_talk(struct row_parts *p, tinker_row_form form, int side, struct buf *out)
{
    struct json_writer w;
    json_writer_init(&w, out);
    /* A row may be read for both of its sides, each with its own count. */
    p->n_messages = 0;
    json_put_begin_object(&w);
    json_put_key(&w, "messages");
    json_put_begin_array(&w);
    if (!put_form(p, form, side, &w))
        return false;
    json_put_end_array(&w);
    /* Tools are kept as JSON until a chat template wants them. */
    if (p->at[ROW_TOOLS].s) {
        json_put_key(&w, "tools");
        json_put_raw(&w, p->at[ROW_TOOLS].s, p->at[ROW_TOOLS].n);
    }
    json_put_end_object(&w);
    return buf_ok(out) || row_parts_fail(p, NULL, "out of memory");
}
