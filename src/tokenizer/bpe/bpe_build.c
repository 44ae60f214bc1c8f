/* bpe_build.c - from a vocabulary in the file's order to tables by id and by bytes.
 *
 * Tokens arrive in any order.  They are kept in one text and found by id; when all are there,
 * bpe_index.c finds them by their bytes.  bpe_block.c writes the tables at last. */
#include "tokenizer/bpe/bpe_build.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "unicode/unicode.h"

/* Bounds for hostile files; the longest tokens of real vocabularies have some hundred bytes. */
enum { MAX_TOKEN = 1 << 20, MAX_TEXT = 1 << 30 };

/* The map of GPT-2: bytes that print are themselves in Latin-1; the 68 others, in order, are
 * U+0100 and up, so that every byte is spelled by a character that can be seen. */
uint32_t bpe_byte_char(unsigned char byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x121u + (byte - 0x7Fu);
}

/* The byte that a character of the map stands for; *bad is set for one outside. */
static inline uint32_t decode_byte_char(uint32_t cp, uint32_t *bad)
{
    /* Without branches, as bpe_unmap() does this for every byte of a vocabulary. */
    *bad |= (cp < 0x21) | (cp - 0x7F <= 0xA0 - 0x7F) | (cp == 0xAD) | (cp > 0x143);
    return (cp + (cp > 0x120) * 0x5Eu + (cp == 0x143) * 0xCu) & 0xFF;
}

int bpe_char_byte(uint32_t cp)
{
    uint32_t bad = 0, byte = decode_byte_char(cp, &bad);
    return bad ? -1 : (int)byte;
}

/* A token as vocab.json spells it, back to the bytes that it stands for, written straight into the
 * buffer.  false: not a spelling by that map; such a token can never match text. */
bool bpe_unmap(struct buf *out, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;
    if (!buf_reserve(out, n + BPE_SLACK))
        return true; /* the buffer remembers that it failed */
    char *to = out->data + out->len;
    uint32_t bad = 0;
    while (p < end) {
        uint32_t cp = *p++;
        if (cp >= 0xE0)
            return false; /* the map ends before */
        /* Two bytes of UTF-8: all characters of the map are below U+0800. */
        if (cp >= 0x80)
            cp = (cp & 0x1F) << 6 | (*p++ & 0x3Fu);
        *to++ = (char)decode_byte_char(cp, &bad);
    }
    if (bad)
        return false;
    out->len = (size_t)(to - out->data);
    *to = '\0';
    return true;
}

/* BPE_SLACK bytes stay readable behind the text: keys are read eight bytes at a time. */
void bpe_append(struct buf *out, const char *s, size_t n)
{
    if (buf_reserve(out, n + BPE_SLACK))
        buf_append(out, s, n);
}

void bpe_builder_init(struct bpe_builder *b, bool byte_level)
{
    memset(b, 0, sizeof(*b));
    b->byte_level = byte_level;
    /* Affixes of WordPiece-like files: "##" before, "</w>" behind. */
    b->prefix = b->suffix = "";
    map_init(&b->odd);
    buf_init(&b->text, MAX_TEXT);
    buf_init(&b->sides, MAX_TEXT);
}

void bpe_builder_clear(struct bpe_builder *b)
{
    buf_clear(&b->text);
    buf_clear(&b->sides);
    map_clear(&b->odd);
    free(b->entries);
    free(b->by_id);
    os_map_close(&b->slot_map);
    free(b->merges);
    memset(b, 0, sizeof(*b));
}

/* NULL: no token has this id; vocabularies may have holes. */
const struct bpe_entry *bpe_builder_entry(const struct bpe_builder *b, uint32_t id)
{
    return id < b->n_ids && b->by_id[id] ? &b->entries[b->by_id[id] - 1] : NULL;
}

/* Add the token whose bytes were appended to the text from `off` on. */
static tinker_status add_entry(struct bpe_builder *b, uint32_t id, size_t off, uint8_t flags,
                               tinker_error *err)
{
    /* Entries point into the text, which may move while it grows: hence offsets. */
    size_t len = b->text.len - off;
    if (id >= BPE_MAX_ID)
        return err_set(err, TINKER_EINVAL, "token id %u is out of range", (unsigned)id);
    if (len > MAX_TOKEN)
        return err_set(err, TINKER_EINVAL, "token %u has %zu bytes, more than 1 MB", (unsigned)id,
                       len);
    if (!buf_ok(&b->text))
        return err_nomem(err, "vocabulary");
    /* by_id maps an id to the number of its entry plus one; 0 means that no token has the id. */
    if (id >= b->cap_ids) {
        size_t cap = b->cap_ids ? b->cap_ids : 4096;
        while (cap <= id)
            cap *= 2;
        uint32_t *by_id = realloc(b->by_id, cap * sizeof(*by_id));
        if (!by_id)
            return err_nomem(err, "vocabulary");
        memset(by_id + b->cap_ids, 0, (cap - b->cap_ids) * sizeof(*by_id));
        b->by_id = by_id;
        b->cap_ids = cap;
    }
    if (id >= b->n_ids)
        b->n_ids = (size_t)id + 1;
    const struct bpe_entry *other = bpe_builder_entry(b, id);
    if (other)
        return err_set(err, TINKER_EINVAL, "two tokens have the id %u: \"%.*s\" and \"%.*s\"",
                       (unsigned)id, (int)(other->len < 40 ? other->len : 40),
                       b->text.data + other->off, (int)(len < 40 ? len : 40), b->text.data + off);
    if (b->n_entries == b->cap_entries) {
        size_t cap = b->cap_entries ? b->cap_entries * 2 : 4096;
        struct bpe_entry *entries = realloc(b->entries, cap * sizeof(*entries));
        if (!entries)
            return err_nomem(err, "vocabulary");
        b->entries = entries;
        b->cap_entries = cap;
    }
    struct bpe_entry e = { id, (uint32_t)off, (uint32_t)len, flags };
    if (len == 0)
        e.flags &= (uint8_t)~BPE_PLAIN; /* never occurs as a piece */
    b->entries[b->n_entries++] = e;
    b->by_id[id] = (uint32_t)b->n_entries;
    b->n_vocab += (flags & BPE_MODEL) != 0;
    return TINKER_OK;
}

/* Add a token that no piece of text can be.
 * It is found by its spelling in the file, since several of them may stand for the same bytes. */
static tinker_status add_odd(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                             uint8_t flags, tinker_error *err)
{
    size_t off = b->text.len;
    if (b->byte_level && bpe_unmap(&b->text, s, n))
        flags |= BPE_MAPPED;
    else
        bpe_append(&b->text, s, n);
    tinker_status status = add_entry(b, id, off, flags, err);
    if (status != TINKER_OK)
        return status;
    if (!map_put(&b->odd, s, n, (void *)(uintptr_t)b->n_entries, NULL))
        return err_nomem(err, "vocabulary");
    return TINKER_OK;
}

/* A token of the model as the file spells it. Byte-level vocabularies spell bytes by the map of
 * GPT-2; one that does not is kept aside as odd, for decoding only.
 * Decoding such a token gives its spelling: it never stood for bytes. */
tinker_status bpe_builder_token(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                                tinker_error *err)
{
    size_t off = b->text.len;
    uint8_t flags = BPE_TOKEN | BPE_MODEL | BPE_PLAIN;
    if (b->byte_level) {
        if (bpe_unmap(&b->text, s, n))
            return add_entry(b, id, off, flags | BPE_MAPPED, err);
        return add_odd(b, id, s, n, BPE_TOKEN | BPE_MODEL, err);
    }
    bpe_append(&b->text, s, n);
    return add_entry(b, id, off, flags, err);
}

/* A token given as its bytes (tiktoken).
 * tiktoken's files have no spelling of bytes by characters. */
tinker_status bpe_builder_bytes(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                                tinker_error *err)
{
    size_t off = b->text.len;
    bpe_append(&b->text, s, n);
    return add_entry(b, id, off, BPE_TOKEN | BPE_MODEL | BPE_PLAIN | BPE_MAPPED, err);
}

/* An entry of added_tokens. It may repeat a token of the model, which then is the same one with
 * more flags; else it is new and must have an id of its own. */
tinker_status bpe_builder_added(struct bpe_builder *b, uint32_t *id, const char *s, size_t n,
                                bool special, tinker_error *err)
{
    uint8_t flags = (uint8_t)(BPE_ADDED | (special ? BPE_SPECIAL : 0));
    const struct bpe_entry *at = bpe_builder_entry(b, *id);
    /* A token of the model that the file spells the same way, among the plain ones or the odd. */
    struct bpe_entry *e = NULL;
    size_t off = b->text.len; /* the bytes are put behind the text for a moment */
    uint32_t plain = BPE_NONE;
    if (!b->byte_level)
        plain = bpe_builder_find(b, s, n);
    else if (bpe_unmap(&b->text, s, n) && buf_ok(&b->text))
        plain = bpe_builder_find(b, b->text.data + off, b->text.len - off);
    b->text.len = off;
    uintptr_t odd = plain == BPE_NONE ? (uintptr_t)map_get(&b->odd, s, n) : 0;
    if (plain != BPE_NONE)
        e = &b->entries[b->by_id[plain] - 1];
    else if (odd)
        e = &b->entries[odd - 1];
    if (e) { /* the model's id wins */
        *id = e->id;
        /* The entry of added_tokens decides whether it is special. */
        e->flags = (uint8_t)((e->flags & ~BPE_SPECIAL) | flags);
        return TINKER_OK;
    }
    if (at)
        return err_set(err, TINKER_EINVAL, "added token \"%.*s\": the id %u is taken by \"%.*s\"",
                       (int)(n < 60 ? n : 60), s, (unsigned)*id, (int)(at->len < 60 ? at->len : 60),
                       b->text.data + at->off);
    return add_odd(b, *id, s, n, flags | BPE_TOKEN, err);
}
