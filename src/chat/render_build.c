/* render_build.c - prompts and supervised examples out of rendered messages.
 *
 * Empty text chunks never leave: the service refuses them.  Weights are per chunk until
 * the end, then spread over tokens; the part of an example that its generation prompt
 * would have supplied is not trained.  Thread: any, a call owns its arena. */
#include "chat/render.h"

#include <stdlib.h>
#include <string.h>
#include <tinker/extra/renderer.h>
#include "base/err.h"

/* Bytes of one rendering, token ids and images included; beyond is TINKER_ENOMEM. */
enum { MAX_RENDERING = 1 << 30 };

/* A result and the memory behind it: chunks, weights and token ids live in the arena. */
struct rendered_box {
    tinker_rendered pub; /* first */
    struct arena arena;
    tinker_example *examples;
};

void tinker_rendered_free(tinker_rendered *x)
{
    struct rendered_box *box = (struct rendered_box *)x;
    if (!box)
        return;
    arena_clear(&box->arena);
    free(box);
}

/* Start a call: a result with an empty arena, where everything the formats make will live. Failures
 * stick in c->x and are looked at by finish_rendering(). */
static struct rendered_box *begin_rendering(struct render_call *c, const tinker_renderer *r,
                                            tinker_error *err)
{
    struct rendered_box *box = calloc(1, sizeof(*box));
    if (!box) {
        err_nomem(err, "a rendering");
        return NULL;
    }
    arena_init(&box->arena, MAX_RENDERING);
    *c = (struct render_call){ .r = r };
    jx_init(&c->x, &box->arena, UINT64_MAX, err);
    return box;
}

/* The result, or NULL with the name of the renderer put before the message. */
static tinker_rendered *finish_rendering(struct render_call *c, struct rendered_box *box)
{
    if (!c->x.failed) {
        box->pub.examples = box->examples;
        return &box->pub;
    }
    if (c->x.err)
        err_prefix(c->x.err, "renderer %s", c->r->variant->name);
    tinker_rendered_free(&box->pub);
    return NULL;
}

/* ---- where things are in a conversation ---- */

/* -1: there is no user message. Formats compare indexes with it, so it is signed. */
static int64_t find_last_user(const tinker_message *messages, size_t n)
{
    for (size_t i = n; i-- > 0;)
        if (role_is(&messages[i], "user"))
            return (int64_t)i;
    return -1;
}

/* Where the turn that is being produced begins: everything after the last user message unless the
 * format has another idea (Kimi: after the last answer without tool calls). */
static size_t find_turn_start(const tinker_renderer *r, const tinker_message *messages, size_t n)
{
    if (r->format->turn_start)
        return r->format->turn_start(messages, n);
    return (size_t)(find_last_user(messages, n) + 1);
}

/* Where message i stands. i == n describes the message that a prompt asks for. */
static struct render_at locate_message(const tinker_message *messages, size_t n, size_t i,
                                       size_t start, int64_t user)
{
    return (struct render_at){ .message = i < n ? &messages[i] : NULL,
                               .prev = i > 0 ? &messages[i - 1] : NULL,
                               .next = i + 1 < n ? &messages[i + 1] : NULL,
                               .index = (int64_t)i,
                               .last_user = user,
                               .is_last = i + 1 >= n,
                               .in_last_turn = i >= start };
}

/* Append a chunk with a weight for all its tokens. An image is pushed as a placeholder of one
 * token, which is then overwritten: render_push_ids() makes the room. */
static void append_chunk(struct render_call *c, struct render_out *to, const struct render_chunk *k,
                         float weight)
{
    if (k->chunk.kind == TINKER_CHUNK_TEXT) {
        render_push_ids(c, to, (struct render_ids){ k->chunk.tokens, k->chunk.n_tokens });
    } else {
        render_push_ids(c, to, (struct render_ids){ &c->r->stop[0], 1 });
        if (!c->x.failed)
            to->chunks[to->n - 1].chunk = k->chunk;
    }
    if (!c->x.failed && to->n > 0)
        to->chunks[to->n - 1].weight = weight;
}

/* Ids without a weight of their own, headers and such; no ids append nothing. */
static void append_ids(struct render_call *c, struct render_out *to, struct render_ids ids,
                       float weight)
{
    struct render_chunk k = { .chunk = { .tokens = ids.ids, .n_tokens = ids.n } };
    if (ids.n > 0)
        append_chunk(c, to, &k, weight);
}

/* BOS, or the longer opening of GLM. It is never trained. */
static void append_bos(struct render_call *c, struct render_out *to)
{
    if (c->r->format->opening)
        append_ids(c, to, c->r->format->opening(c), 0);
    if (c->r->bos >= 0)
        append_ids(c, to, (struct render_ids){ &c->r->bos, 1 }, 0);
}

/* ---- prompts ---- */

/* The prompt of messages that are prepared already: BOS, then header and chunks of each message,
 * then the suffix for `role`. Stop overlaps are left out: they are text of the turn that follows.
 */
static void build_prompt(struct render_call *c, const tinker_message *messages, size_t n,
                         const char *role, const char *prefill, struct render_out *to)
{
    int64_t user = find_last_user(messages, n);
    size_t start = find_turn_start(c->r, messages, n);
    append_bos(c, to);
    for (size_t i = 0; i < n && !c->x.failed; i++) {
        struct render_at at = locate_message(messages, n, i, start, user);
        struct render_out out = { .n = 0 };
        c->r->format->render(c, &at, &out);
        append_ids(c, to, out.header, 0);
        for (size_t k = 0; k < out.n && !c->x.failed; k++)
            append_chunk(c, to, &out.chunks[k], 0);
    }
    struct render_at at = locate_message(messages, n, n, 0, user);
    at.is_last = at.in_last_turn = true;
    /* What makes the model answer: the header of an empty message, or what the format says, for
     * example with an open think block. */
    struct render_ids suffix = { NULL, 0 };
    if (!c->x.failed && c->r->format->suffix) {
        c->r->format->suffix(c, role, &at, &suffix);
    } else if (!c->x.failed) {
        tinker_message empty = { .role = role, .content = "" };
        struct render_out out = { .n = 0 };
        at.message = &empty;
        c->r->format->render(c, &at, &out);
        suffix = out.header;
    }
    append_ids(c, to, suffix, 0);
    /* Both prefills are encoded as one text, so that "<think>" and the caller's first word may
     * share a token, as they would in a sampled answer. */
    const char *own = c->r->format->prefill ? c->r->format->prefill(c, messages, n) : "";
    struct render_text t;
    text_init(&t, c);
    text_markup(&t, own);
    text_markup(&t, prefill ? prefill : "");
    append_ids(c, to, text_encode(&t, false), 0);
}

/* Check the messages, then let the format rewrite them (insert a system message, sort results). */
static void prepare_messages(struct render_call *c, const tinker_message **messages, size_t *n)
{
    if (chat_check(&c->x, *messages, *n) && c->r->format->prepare)
        c->r->format->prepare(c, messages, n);
}

/* Chunks and weights of `from` become a public example. Weights are one per token of the input, and
 * an image counts expected_tokens tokens: without that number they could not be aligned. */
static void publish_example(struct render_call *c, const struct render_out *from, bool weighted,
                            tinker_example *out)
{
    /* Positions of the input: tokens of text, and what images say they take. */
    size_t total = 0;
    tinker_chunk *chunks =
        c->x.failed ? NULL : arena_array(c->x.arena, from->n + 1, sizeof(*chunks));
    for (size_t i = 0; chunks && i < from->n; i++) {
        const tinker_chunk *k = &from->chunks[i].chunk;
        chunks[i] = *k;
        if (weighted && k->kind != TINKER_CHUNK_TEXT && !k->has_expected_tokens) {
            jx_fail(&c->x, "an image in an example needs expected_tokens");
            return;
        }
        total += k->kind == TINKER_CHUNK_TEXT ? k->n_tokens : (size_t)k->expected_tokens;
    }
    float *weights =
        weighted && chunks ? arena_array(c->x.arena, total + 1, sizeof(*weights)) : NULL;
    if (!chunks || (weighted && !weights)) {
        jx_nomem(&c->x);
        return;
    }
    /* Spread the weight of each chunk over its tokens. */
    for (size_t i = 0, at = 0; weights && i < from->n; i++) {
        const tinker_chunk *k = &chunks[i];
        size_t len = k->kind == TINKER_CHUNK_TEXT ? k->n_tokens : (size_t)k->expected_tokens;
        for (size_t j = 0; j < len; j++)
            weights[at++] = from->chunks[i].weight;
    }
    *out = (tinker_example){ { chunks, from->n }, weights, total };
}

/* Room for n examples and one more, so that an array of none is not NULL. The pointer is kept in
 * the box and published at the end. */
static tinker_example *alloc_examples(struct render_call *c, struct rendered_box *box, size_t n)
{
    box->examples = c->x.failed ? NULL : arena_array(c->x.arena, n + 1, sizeof(*box->examples));
    if (!box->examples)
        jx_nomem(&c->x);
    return box->examples;
}

tinker_rendered *tinker_renderer_prompt(const tinker_renderer *r, const tinker_message *messages,
                                        size_t n, const char *role, const char *prefill,
                                        tinker_error *err)
{
    struct render_call c;
    struct rendered_box *box = begin_rendering(&c, r, err);
    struct render_out all = { .n = 0 };
    if (!box)
        return NULL;
    prepare_messages(&c, &messages, &n);
    if (!c.x.failed)
        build_prompt(&c, messages, n, role ? role : "assistant", prefill, &all);
    if (alloc_examples(&c, box, 1))
        publish_example(&c, &all, false, box->examples);
    box->pub.n_examples = 1;
    return finish_rendering(&c, box);
}

/* ---- supervised examples ---- */

/* Whether a message's output gets weight 1. ALL_TOKENS and ALL_MESSAGES train every message; they
 * differ in the header only. */
static bool is_trained(const struct render_at *at, tinker_train_on mode)
{
    bool assistant = role_is(at->message, "assistant");
    switch (mode) {
    case TINKER_TRAIN_LAST_ASSISTANT_MESSAGE:
        return at->is_last && assistant;
    /* A turn may hold several answers, with results of tools between them. */
    case TINKER_TRAIN_LAST_ASSISTANT_TURN:
        return assistant && at->in_last_turn;
    case TINKER_TRAIN_ALL_ASSISTANT_MESSAGES:
        return assistant;
    case TINKER_TRAIN_ALL_USER_AND_SYSTEM_MESSAGES:
        return role_is(at->message, "user") || role_is(at->message, "system");
    case TINKER_TRAIN_CUSTOMIZED:
        return at->message->trainable != 0;
    default:
        return true;
    }
}

/* The field `trainable` is all or nothing: on every message for CUSTOMIZED, on none otherwise. A
 * half-filled conversation is a mistake in the data. */
static bool check_trainable(struct render_call *c, const tinker_message *messages, size_t n,
                            tinker_train_on mode)
{
    for (size_t i = 0; i < n; i++) {
        if ((mode == TINKER_TRAIN_CUSTOMIZED) == (messages[i].has_trainable != 0))
            continue;
        return jx_fail(&c->x,
                       mode == TINKER_TRAIN_CUSTOMIZED
                           ? "messages[%zu] has no \"trainable\", which customized requires"
                           : "messages[%zu] has \"trainable\", which only customized accepts",
                       i);
    }
    return true;
}

/* Index of the message before which the generation prompt ends; -1: there is none. Only the modes
 * that train one last stretch have such a point. */
static int64_t find_prompt_boundary(const tinker_message *messages, size_t n, tinker_train_on mode)
{
    int64_t at = -1;
    if (mode == TINKER_TRAIN_LAST_ASSISTANT_MESSAGE)
        at = (int64_t)n - 1;
    else if (mode == TINKER_TRAIN_LAST_ASSISTANT_TURN)
        at = find_last_user(messages, n) + 1;
    else
        return -1;
    return at >= 0 && (size_t)at < n && role_is(&messages[at], "assistant") ? at : -1;
}

/* Whether the example begins with the tokens of the prompt, whose number goes to *len. Compares
 * token by token, because the two are chunked differently. */
static bool example_starts_with(const tinker_example *e, const struct render_out *prompt,
                                size_t *len)
{
    size_t chunk = 0, at = 0;
    *len = 0;
    for (size_t i = 0; i < prompt->n; i++) {
        if (prompt->chunks[i].chunk.kind != TINKER_CHUNK_TEXT)
            return false;
        for (size_t k = 0; k < prompt->chunks[i].chunk.n_tokens; k++, at++, ++*len) {
            while (chunk < e->input.n_chunks && at == e->input.chunks[chunk].n_tokens) {
                chunk++;
                at = 0;
            }
            if (chunk == e->input.n_chunks ||
                e->input.chunks[chunk].tokens[at] != prompt->chunks[i].chunk.tokens[k])
                return false;
        }
    }
    return true;
}

/* Withhold loss from what the generation prompt supplies, an open <think> for example: in the
 * example those tokens belong to the assistant message and would be trained, although the model
 * never has to produce them. The prompt is rendered a second time to find out; where example and
 * prompt diverge (history is rendered differently from what was sampled) nothing is masked. */
static void mask_prompt(struct render_call *c, const tinker_message *messages, size_t n,
                        tinker_train_on mode, tinker_example *e)
{
    int64_t boundary = find_prompt_boundary(messages, n, mode);
    struct render_out prompt = { .n = 0 };
    size_t len = 0;
    if (boundary < 0)
        return;
    for (size_t i = 0; i < e->input.n_chunks; i++)
        if (e->input.chunks[i].kind != TINKER_CHUNK_TEXT)
            return; /* images are not compared */
    const tinker_message *before = messages;
    size_t n_before = (size_t)boundary;
    /* The messages are prepared already; formats whose preparation must see the whole conversation
     * leave a part of it alone when nested. */
    c->nested = true;
    prepare_messages(c, &before, &n_before);
    if (!c->x.failed)
        build_prompt(c, before, n_before, "assistant", NULL, &prompt);
    c->nested = false;
    if (c->x.failed)
        return;
    if (!example_starts_with(e, &prompt, &len)) {
        /* With thinking off the prompt ends in a closed block. An example with reasoning there
         * would teach what can never be sampled: refuse it. */
        if (c->r->flags & RENDER_NO_THINK)
            jx_fail(&c->x, "thinking is off, so its prompt closes the think block, but the "
                           "trained turn contains reasoning; use the thinking renderer or "
                           "remove the reasoning");
        return;
    }
    float *weights = (float *)e->weights;
    for (size_t i = 0; i < len && i < e->n_tokens; i++)
        weights[i] = 0;
}

/* One supervised example: as a prompt, but with weights, and the last message closes with its stop
 * overlap, so that the model learns to stop. */
static void build_example(struct render_call *c, const tinker_message *messages, size_t n,
                          tinker_train_on mode, tinker_example *out)
{
    struct render_out all = { .n = 0 };
    prepare_messages(c, &messages, &n);
    if (c->x.failed || !check_trainable(c, messages, n, mode))
        return;
    if (n == 0) {
        jx_fail(&c->x, "no messages");
        return;
    }
    int64_t user = find_last_user(messages, n);
    /* The turn is that of the last message, which is why it is not looked at itself. */
    size_t start = find_turn_start(c->r, messages, n - 1);
    append_bos(c, &all);
    for (size_t i = 0; i < n && !c->x.failed; i++) {
        struct render_at at = locate_message(messages, n, i, start, user);
        struct render_out one = { .n = 0 };
        c->r->format->render(c, &at, &one);
        float weight = is_trained(&at, mode) ? 1 : 0;
        /* Headers are trained by ALL_TOKENS only: at sampling time they are given. */
        append_ids(c, &all, one.header, mode == TINKER_TRAIN_ALL_TOKENS ? 1 : 0);
        for (size_t k = 0; k < one.n && !c->x.failed; k++)
            append_chunk(c, &all, &one.chunks[k], weight);
        /* In between, the next header supplies the same text. */
        if (at.is_last && one.has_overlap)
            append_ids(c, &all, one.overlap, weight);
    }
    publish_example(c, &all, true, out);
    if (!c->x.failed)
        mask_prompt(c, messages, n, mode, out);
}

static size_t count_answers(const tinker_message *messages, size_t n)
{
    size_t answers = 0;
    for (size_t i = 0; i < n; i++)
        answers += messages[i].role && strcmp(messages[i].role, "assistant") == 0;
    return answers;
}

tinker_rendered *tinker_renderer_example(const tinker_renderer *r, const tinker_message *messages,
                                         size_t n, tinker_train_on mode, tinker_error *err)
{
    struct render_call c;
    struct rendered_box *box = begin_rendering(&c, r, err);
    if (!box)
        return NULL;
    /* Without the extension property, earlier answers stand in the example as history, not as they
     * were sampled (their thinking is stripped, for instance). */
    if (mode == TINKER_TRAIN_ALL_ASSISTANT_MESSAGES && count_answers(messages, n) > 1 &&
        !tinker_renderer_has_extension(r))
        render_warn(&c, "all_assistant_messages with a renderer whose history differs from what "
                        "was sampled: earlier turns are trained in a context they never had; "
                        "use tinker_renderer_examples()");
    if (alloc_examples(&c, box, 1))
        build_example(&c, messages, n, mode, box->examples);
    box->pub.n_examples = 1;
    return finish_rendering(&c, box);
}

/* ---- several examples ---- */

/* One example per assistant message from index `from` on; each ends with that message, in the
 * context in which it will be sampled. */
static void split_by_message(struct render_call *c, struct rendered_box *box,
                             const tinker_message *messages, size_t n, size_t from)
{
    if (!alloc_examples(c, box, n))
        return;
    for (size_t i = from; i < n && !c->x.failed; i++)
        if (role_is(&messages[i], "assistant"))
            build_example(c, messages, i + 1, TINKER_TRAIN_LAST_ASSISTANT_MESSAGE,
                          &box->examples[box->pub.n_examples++]);
}

/* Kimi: one example up to each user message but the first, and one over everything. Its turns may
 * contain several answers, so that a split per answer would cut a turn. */
static void split_by_user(struct render_call *c, struct rendered_box *box,
                          const tinker_message *messages, size_t n, tinker_train_on mode)
{
    bool seen = false;
    tinker_train_on each =
        mode == TINKER_TRAIN_ALL_ASSISTANT_MESSAGES ? TINKER_TRAIN_LAST_ASSISTANT_TURN : mode;
    if (!alloc_examples(c, box, n + 1))
        return;
    /* All answers are trained turn by turn; any other mode is applied to each part as it is. */
    if (mode != each)
        mode = each;
    else
        render_warn(c, "this renderer rewrites history: the same mode is applied to every turn");
    for (size_t i = 0; i <= n && !c->x.failed; i++) {
        bool user = i < n && role_is(&messages[i], "user");
        if (i == n || (user && seen))
            build_example(c, messages, i, mode, &box->examples[box->pub.n_examples++]);
        seen = seen || user;
    }
}

tinker_rendered *tinker_renderer_examples(const tinker_renderer *r, const tinker_message *messages,
                                          size_t n, tinker_train_on mode, tinker_error *err)
{
    bool last =
        mode == TINKER_TRAIN_LAST_ASSISTANT_MESSAGE || mode == TINKER_TRAIN_LAST_ASSISTANT_TURN;
    /* With the extension property one example serves all turns. */
    if ((r->format->split_by_user && last) ||
        (!r->format->split_by_user && tinker_renderer_has_extension(r)))
        return tinker_renderer_example(r, messages, n, mode, err);
    struct render_call c;
    struct rendered_box *box = begin_rendering(&c, r, err);
    if (!box)
        return NULL;
    if (!chat_check(&c.x, messages, n))
        return finish_rendering(&c, box);
    if (r->format->split_by_user)
        split_by_user(&c, box, messages, n, mode);
    else if (mode == TINKER_TRAIN_LAST_ASSISTANT_MESSAGE)
        split_by_message(&c, box, messages, n, n ? n - 1 : 0);
    else if (mode == TINKER_TRAIN_LAST_ASSISTANT_TURN)
        split_by_message(&c, box, messages, n, find_turn_start(r, messages, n));
    else if (mode == TINKER_TRAIN_ALL_ASSISTANT_MESSAGES)
        split_by_message(&c, box, messages, n, 0);
    else
        jx_fail(&c.x,
                "%s cannot be split into examples: its history differs from what was "
                "sampled and the mode trains more than assistant turns",
                tinker_train_on_name(mode));
    return finish_rendering(&c, box);
}

tinker_conversation *tinker_renderer_tool_prefix(const tinker_renderer *r, const tinker_tool *tools,
                                                 size_t n, const char *system_prompt,
                                                 tinker_error *err)
{
    struct chat_box *box = chat_box_new(err);
    if (!box)
        return NULL;
    struct render_call c = { .r = r };
    jx_init(&c.x, &box->arena, UINT64_MAX, err);
    struct jv list = jv_list_new(&c.x), out = jv_list_new(&c.x);
    if (!r->format->tools)
        jx_fail(&c.x, "this format has no tools");
    for (size_t i = 0; i < n && !c.x.failed; i++)
        jv_push(&c.x, list, chat_tool_value(&c.x, &tools[i]));
    /* Formats write dicts, so that declarations take the same way as messages read from JSON. */
    if (!c.x.failed)
        r->format->tools(&c, list, system_prompt ? system_prompt : "", out);
    if (!c.x.failed)
        box->pub.messages = chat_read_messages(&c.x, out, "messages", &box->pub.n_messages);
    if (!c.x.failed)
        return &box->pub;
    if (err)
        err_prefix(err, "renderer %s", r->variant->name);
    tinker_conversation_free(&box->pub);
    return NULL;
}
