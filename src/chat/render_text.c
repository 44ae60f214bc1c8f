/* render_text.c - text of messages to token ids.
 *
 * Each text_encode() is one tokenization: boundaries between calls show in the ids, so
 * formats decide what is encoded together.  With safe_content the runs between added
 * tokens of the markup are encoded with control tokens as text; as the tokenizer cuts
 * there anyway, ids differ only where a message spells a control token. */
#include "chat/render.h"

#include <string.h>
#include "base/base64.h"
#include "base/err.h"

/* Positions that one image may claim; a service's images take a few thousand at most. */
enum { IMAGE_TOKENS_MAX = 1 << 24 };

void text_init(struct render_text *t, struct render_call *c)
{
    *t = (struct render_text){ .c = c };
    buf_init(&t->buf, c->x.arena->max);
}

/* Markup is the format's own: control tokens in it are control tokens. */
void text_markup(struct render_text *t, const char *s)
{
    buf_puts(&t->buf, s);
}

/* What was added to the text from `begin` on came from a message. */
static void note_content(struct render_text *t, size_t begin)
{
    /* Ranges are needed for safe_content only; text of no length has none. */
    if (t->buf.len == begin || !t->c->r->opts.safe_content)
        return;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 8;
        void *bigger = arena_array(t->c->x.arena, cap, sizeof(*t->content));
        if (!bigger) {
            jx_nomem(&t->c->x);
            return;
        }
        if (t->n)
            memcpy(bigger, t->content, t->n * sizeof(*t->content));
        t->content = bigger;
        t->cap = cap;
    }
    t->content[t->n].begin = begin;
    t->content[t->n++].end = t->buf.len;
}

void text_content(struct render_text *t, struct jv_str s)
{
    size_t begin = t->buf.len;
    buf_append(&t->buf, s.s, s.n);
    note_content(t, begin);
}

void text_name(struct render_text *t, const char *s)
{
    text_content(t, chat_text(s, 0));
}

void text_capitalized(struct render_text *t, const char *s)
{
    size_t begin = t->buf.len;
    text_case(&t->buf, chat_text(s, 0), TEXT_CAPITALIZE);
    note_content(t, begin);
}

/* Encode one run and append its ids. The error of the tokenizer names the byte position. */
static void encode_run(struct render_call *c, const char *s, size_t n, tinker_special_policy policy,
                       tinker_tokens *out)
{
    tinker_encode_options opts = TINKER_ENCODE_OPTIONS_INIT;
    opts.special = policy;
    if (n == 0 || c->x.failed)
        return;
    if (tinker_tokenizer_encode(c->r->tokenizer, s, n, &opts, out, c->x.err) != TINKER_OK)
        c->x.failed = true;
}

/* Move ids from the heap to the arena of the call. */
static struct render_ids keep_tokens(struct render_call *c, tinker_tokens *tokens)
{
    struct render_ids out = { NULL, 0 };
    if (!c->x.failed && tokens->n > 0) {
        out.ids = arena_memdup(c->x.arena, tokens->ids, tokens->n * sizeof(*tokens->ids));
        out.n = tokens->n;
        if (!out.ids) {
            jx_nomem(&c->x);
            out.n = 0;
        }
    }
    tinker_tokens_clear(tokens);
    return out;
}

/* Length of the added token that begins at s, a '<', and ends with the next '>'; 0: none. */
static size_t added_token(const struct render_call *c, const char *s, size_t n, int32_t *id)
{
    enum { LONGEST = 128 };
    const char *end = memchr(s, '>', n < LONGEST ? n : LONGEST);
    if (!end)
        return 0;
    size_t len = (size_t)(end + 1 - s);
    *id = tinker_tokenizer_id(c->r->tokenizer, s, len);
    return *id >= 0 && tinker_tokenizer_is_added(c->r->tokenizer, *id) ? len : 0;
}

/* A run without control tokens of the markup.  Those that a message spells stay text because they
 * are special; where they are not (DeepSeek), each is encoded on its own. */
static void encode_content(struct render_call *c, const char *s, size_t n, tinker_tokens *out)
{
    size_t start = 0, len;
    const char *p;
    for (size_t at = 0; at < n && (p = memchr(s + at, '<', n - at)) != NULL; at += len) {
        int32_t id;
        at = (size_t)(p - s);
        /* Control tokens begin with "<|", or with '<' and the fullwidth bar. */
        bool control = (n - at > 2 && memcmp(p, "<|", 2) == 0) ||
                       (n - at > 4 && memcmp(p, "<\xef\xbd\x9c", 4) == 0);
        len = control ? added_token(c, p, n - at, &id) : 0;
        if (len == 0 || tinker_tokenizer_is_special(c->r->tokenizer, id)) {
            len = len ? len : 1;
            continue;
        }
        encode_run(c, s + start, at - start, TINKER_SPECIAL_TEXT, out);
        encode_run(c, p, len, TINKER_SPECIAL_NONE, out);
        start = at + len;
    }
    encode_run(c, s + start, n - start, TINKER_SPECIAL_TEXT, out);
}

/* Cut the text at the control tokens of the markup; what lies between is encoded with control
 * tokens as text. Content is jumped over, so that a '<' in it is never looked at. */
static void encode_safely(struct render_text *t, tinker_tokens *out)
{
    const char *s = t->buf.data;
    size_t start = 0, at = 0, k = 0;
    while (at < t->buf.len && !t->c->x.failed) {
        if (k < t->n && at >= t->content[k].begin) {
            at = t->content[k++].end;
            continue;
        }
        /* A token of the markup cannot reach into content. */
        size_t limit = k < t->n ? t->content[k].begin : t->buf.len;
        int32_t id;
        size_t len = s[at] == '<' ? added_token(t->c, s + at, limit - at, &id) : 0;
        if (len == 0) {
            at++;
            continue;
        }
        encode_content(t->c, s + start, at - start, out);
        if (tinker_tokens_append(out, &id, 1, t->c->x.err) != TINKER_OK)
            t->c->x.failed = true;
        at += len;
        start = at;
    }
    encode_content(t->c, s + start, t->buf.len - start, out);
}

/* The one place where text becomes ids. Without ranges of content there is nothing to protect, and
 * the text is encoded as a whole. */
struct render_ids text_encode(struct render_text *t, bool plain)
{
    tinker_tokens tokens = TINKER_TOKENS_INIT;
    if (!buf_ok(&t->buf))
        jx_nomem(&t->c->x);
    else if (t->n > 0 && !plain)
        encode_safely(t, &tokens);
    else
        encode_run(t->c, t->buf.data, t->buf.len,
                   plain ? TINKER_SPECIAL_TEXT : TINKER_SPECIAL_PARSE, &tokens);
    buf_clear(&t->buf);
    t->n = 0;
    return keep_tokens(t->c, &tokens);
}

struct render_ids render_encode(struct render_call *c, const char *text)
{
    tinker_tokens tokens = TINKER_TOKENS_INIT;
    encode_run(c, text, strlen(text), TINKER_SPECIAL_PARSE, &tokens);
    return keep_tokens(c, &tokens);
}

/* Two sequences of ids, encoded separately on purpose: joining text instead could merge tokens. */
struct render_ids render_join(struct render_call *c, struct render_ids a, struct render_ids b)
{
    struct render_ids out = { NULL, a.n + b.n };
    int32_t *ids = c->x.failed ? NULL : arena_array(c->x.arena, out.n + 1, sizeof(*ids));
    if (!ids) {
        jx_nomem(&c->x);
        return (struct render_ids){ NULL, 0 };
    }
    if (a.n)
        memcpy(ids, a.ids, a.n * sizeof(*ids));
    if (b.n)
        memcpy(ids + a.n, b.ids, b.n * sizeof(*ids));
    out.ids = ids;
    return out;
}

/* Room for one more chunk, zeroed; arrays grow within the arena. */
static struct render_chunk *push_chunk(struct render_call *c, struct render_out *out)
{
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 4;
        struct render_chunk *chunks =
            c->x.failed ? NULL : arena_array(c->x.arena, cap, sizeof(*chunks));
        if (!chunks) {
            jx_nomem(&c->x);
            return NULL;
        }
        if (out->n)
            memcpy(chunks, out->chunks, out->n * sizeof(*chunks));
        out->chunks = chunks;
        out->cap = cap;
    }
    out->chunks[out->n] = (struct render_chunk){ .weight = 0 };
    return &out->chunks[out->n++];
}

/* No ids are no chunk: the service refuses empty ones. */
void render_push_ids(struct render_call *c, struct render_out *out, struct render_ids ids)
{
    struct render_chunk *k = ids.n ? push_chunk(c, out) : NULL;
    if (k)
        k->chunk =
            (tinker_chunk){ .kind = TINKER_CHUNK_TEXT, .tokens = ids.ids, .n_tokens = ids.n };
}

void render_push_text(struct render_text *t, struct render_out *out, bool plain)
{
    struct render_ids ids = text_encode(t, plain);
    render_push_ids(t->c, out, ids);
}

void render_set_header(struct render_out *out, struct render_ids ids)
{
    out->header = ids;
    out->has_header = true;
}

/* ---- images ---- */

/* Bytes of a base64 data: URI, in the arena. */
static bool decode_data_uri(struct render_call *c, struct jv_str uri, tinker_chunk *out)
{
    size_t comma = text_find(uri, (struct jv_str){ ",", 1 }, 0);
    struct jv_str head = { uri.s, comma == SIZE_MAX ? 0 : comma };
    if (!text_starts(uri, "data:") || !text_ends(head, ";base64"))
        return jx_fail(&c->x, "an image must be given as bytes or as a base64 data: URI");
    struct buf b;
    buf_init(&b, c->x.arena->max);
    if (!base64_decode(&b, uri.s + comma + 1, uri.n - comma - 1))
        jx_fail(&c->x, "image: the data: URI is not valid base64");
    struct jv bytes = jv_from_buf(&c->x, &b);
    if (c->x.failed)
        return false;
    out->bytes = bytes.str.s;
    out->n_bytes = bytes.str.n;
    return true;
}

/* The format of an image is told by its first bytes unless the caller knows better. */
void render_push_image(struct render_call *c, struct render_out *out, const tinker_part *part)
{
    struct render_chunk *k = push_chunk(c, out);
    if (!k)
        return;
    tinker_chunk *chunk = &k->chunk;
    chunk->kind = TINKER_CHUNK_IMAGE;
    chunk->bytes = part->bytes;
    chunk->n_bytes = part->n_bytes;
    if (!part->bytes && !decode_data_uri(c, chat_part_text(part), chunk))
        return;
    const unsigned char *b = chunk->bytes;
    bool png = chunk->n_bytes > 8 && memcmp(b, "\x89PNG\r\n\x1a\n", 8) == 0;
    bool jpeg = chunk->n_bytes > 3 && b[0] == 0xff && b[1] == 0xd8;
    chunk->format = part->format ? part->format : png ? "png" : jpeg ? "jpeg" : NULL;
    if (!chunk->format)
        jx_fail(&c->x, "image is neither png nor jpeg");
    if (part->expected_tokens > IMAGE_TOKENS_MAX) /* so that no sum of them overflows */
        jx_fail(&c->x, "expected_tokens of an image are more than %d", IMAGE_TOKENS_MAX);
    chunk->has_expected_tokens = part->expected_tokens > 0;
    chunk->expected_tokens = chunk->has_expected_tokens ? part->expected_tokens : 0;
}

/* ---- looking at messages ---- */

/* NULL, no neighbor, has no role. */
bool role_is(const tinker_message *m, const char *role)
{
    return m && strcmp(m->role, role) == 0;
}

struct jv_str message_text(struct render_call *c, const tinker_message *m)
{
    if (!m->parts)
        return chat_content(m);
    if (m->n_parts == 1 && m->parts[0].kind == TINKER_PART_TEXT)
        return chat_part_text(&m->parts[0]);
    jx_fail(&c->x, "expected text content in the %s message, got %zu parts", m->role, m->n_parts);
    return (struct jv_str){ "", 0 };
}

bool message_has_thinking_part(const tinker_message *m)
{
    for (size_t i = 0; m->parts && i < m->n_parts; i++)
        if (m->parts[i].kind == TINKER_PART_THINKING)
            return true;
    return false;
}

bool message_has_thinking(const tinker_message *m)
{
    if (m->parts)
        return message_has_thinking_part(m);
    return text_find(chat_content(m), (struct jv_str){ "<think>", 7 }, 0) != SIZE_MAX;
}

bool message_has_text_part(const tinker_message *m)
{
    for (size_t i = 0; m->parts && i < m->n_parts; i++)
        if (m->parts[i].kind == TINKER_PART_TEXT && chat_part_text(&m->parts[i]).n > 0)
            return true;
    return false;
}

/* By its shape, as the reference's templates test it: a part without text is still content. */
bool message_is_empty(const tinker_message *m)
{
    return m->parts ? m->n_parts == 0 : chat_content(m).n == 0;
}

struct jv_str message_join(struct render_call *c, const tinker_message *m, tinker_part_kind kind)
{
    if (!m->parts)
        return kind == TINKER_PART_TEXT ? chat_content(m) : (struct jv_str){ "", 0 };
    struct buf b;
    buf_init(&b, c->x.arena->max);
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].kind == kind)
            buf_append(&b, chat_part_text(&m->parts[i]).s, chat_part_text(&m->parts[i]).n);
    return jv_from_buf(&c->x, &b).str;
}

struct jv message_arguments(struct render_call *c, const tinker_tool_call *call)
{
    const char *why = NULL, *text = call->arguments ? call->arguments : "{}";
    struct jv v = jv_loads(&c->x, text, strlen(text), &why);
    if (why)
        jx_fail(&c->x, "arguments of the call to %s are not JSON: %s", call->name, why);
    return v;
}

struct jv call_arguments(struct render_call *c, const tinker_tool_call *call)
{
    if (!call->arguments || !*call->arguments)
        return jv_none();
    struct jv v = message_arguments(c, call);
    if (v.kind != JV_DICT)
        jx_fail(&c->x, "arguments of the call to %s are no JSON object", call->name);
    return v;
}

/* As json.dumps() of Python: models were trained on its spaces after commas and colons. */
static struct jv_str dump_json(struct render_call *c, struct jv v, bool ascii)
{
    struct jv_dumps how = JV_DUMPS_PYTHON;
    struct buf b;
    how.ascii = ascii;
    buf_init(&b, c->x.arena->max);
    jv_dump(&c->x, &b, v, &how);
    return jv_from_buf(&c->x, &b).str;
}

struct jv_str render_dumps(struct render_call *c, struct jv v)
{
    return dump_json(c, v, true);
}

struct jv_str render_dumps_utf8(struct render_call *c, struct jv v)
{
    return dump_json(c, v, false);
}

void render_warn(const struct render_call *c, const char *line)
{
    if (c->r->opts.warn)
        c->r->opts.warn(line, c->r->opts.warn_state);
}

/* The inserted message takes part in customized training as not trained. */
const tinker_message *render_insert(struct render_call *c, const tinker_message *messages,
                                    size_t *n, size_t at, tinker_message first)
{
    tinker_message *copy = c->x.failed ? NULL : arena_array(c->x.arena, *n + 1, sizeof(*copy));
    if (!copy) {
        jx_nomem(&c->x);
        return messages;
    }
    if (at > 0)
        memcpy(copy, messages, at * sizeof(*copy));
    copy[at] = first;
    if (*n > at)
        memcpy(copy + at + 1, messages + at, (*n - at) * sizeof(*copy));
    for (size_t i = 0; i < *n && !first.has_trainable; i++)
        copy[at].has_trainable |= messages[i].has_trainable; /* and not trained */
    ++*n;
    return copy;
}
