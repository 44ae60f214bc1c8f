/* bpe_build.h - making the tables of bpe.h from a vocabulary and its merges.
 *
 * Order of calls: init, tokens, index, merges, added tokens, finish; clear in any case.  Errors name
 * the token or the merge; the caller adds the file.  Not thread-safe. */
#ifndef TOKENIZER_BPE_BUILD_H
#define TOKENIZER_BPE_BUILD_H

#include <string.h>
#include "base/buf.h"
#include "base/map.h"
#include "base/os.h"
#include "tokenizer/bpe/bpe.h"

struct bpe_entry { /* a token; its bytes are text[off..off + len) */
    uint32_t id, off, len;
    uint8_t flags;
};

struct bpe_sides {            /* a merge that waits; its bytes are in the builder's sides */
    const char *left, *right; /* as the file spells them */
    size_t left_n, right_n;
    size_t begin, cut, end;
    uint64_t keys[2]; /* bpe_key() of each */
    bool spelled[2];  /* whether each can be a token */
};
enum { BPE_SIDES = 32 };

struct bpe_builder {
    bool byte_level, ignore_merges, byte_fallback, fuse_unk;
    const char *prefix, *suffix, *unk; /* borrowed; unk NULL: none */
    size_t prefix_n, suffix_n, unk_n;
    struct buf text; /* bytes of all tokens, in order of arrival */
    struct bpe_entry *entries;
    size_t n_entries, cap_entries;
    struct map odd;  /* spelling of tokens that are not plain -> their entry */
    uint32_t *by_id; /* index of the entry + 1 */
    size_t cap_ids, n_ids;
    struct bpe_slot *slots;
    struct os_map slot_map; /* of the slots, or what was made of their memory */
    int slot_shift;
    struct bpe_pair *merges; /* by rank, then by arrival */
    size_t n_merges, cap_merges;
    struct bpe_sides waiting[BPE_SIDES];
    size_t n_waiting;
    struct buf sides;
    uint32_t n_vocab;
};

void bpe_builder_init(struct bpe_builder *b, bool byte_level);
void bpe_builder_clear(struct bpe_builder *b);

/* A token of the model as the file spells it. */
tinker_status bpe_builder_token(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                                tinker_error *err);
/* A token of the model as the bytes it stands for. */
tinker_status bpe_builder_bytes(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                                tinker_error *err);
/* All tokens of the model are there.  TINKER_EINVAL when two have the same bytes. */
tinker_status bpe_builder_index(struct bpe_builder *b, tinker_error *err);

/* The next merge, as the file spells its sides.  They are looked up together with those of other
 * merges, so the strings must stay until bpe_builder_merges_end(), and the error may be about an
 * earlier merge: in any case b->n_merges were right. */
tinker_status bpe_builder_merge(struct bpe_builder *b, const char *left, size_t left_n,
                                const char *right, size_t right_n, tinker_error *err);
tinker_status bpe_builder_merges_end(struct bpe_builder *b, tinker_error *err);
/* All merges that the tokens imply when their ids are their ranks (tiktoken). */
tinker_status bpe_builder_merges_by_rank(struct bpe_builder *b, tinker_error *err);
/* An added token.  *id is the wanted id, and receives the one it has (the model's wins). */
tinker_status bpe_builder_added(struct bpe_builder *b, uint32_t *id, const char *s, size_t n,
                                bool special, tinker_error *err);

/* Lay everything out in one block with the two texts at its end; free it with os_map_close(). */
tinker_status bpe_builder_finish(struct bpe_builder *b, const char *json, size_t json_n,
                                 const char *config, size_t config_n, bool lenient,
                                 struct os_map *block, tinker_error *err);

/* For bpe_block.c: a token by id, or NULL; the id of a plain token by its bytes, or BPE_NONE; and the
 * bits of a hash table for n entries that is at most part/whole full. */
const struct bpe_entry *bpe_builder_entry(const struct bpe_builder *b, uint32_t id);
uint32_t bpe_builder_find(const struct bpe_builder *b, const char *p, size_t n);
int bpe_bits_for(size_t n, size_t whole, size_t part);

/* Text and sides end with BPE_SLACK bytes that may be read, so that up to 8 bytes are one load: p[0..n)
 * as a number, the first byte lowest, and zeros behind. */
enum { BPE_SLACK = 8 };
static inline uint64_t bpe_head(const void *p, size_t n)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return n < 8 ? v & (((uint64_t)1 << (8 * n)) - 1) : v;
}

/* The byte map of byte-level vocabularies. */
uint32_t bpe_byte_char(unsigned char byte);
int bpe_char_byte(uint32_t cp); /* -1: not in the map */
/* Append to out the bytes that s[0..n), valid UTF-8, spells; false when a character is outside the
 * map.  Both functions leave the slack. */
void bpe_append(struct buf *out, const char *s, size_t n);
bool bpe_unmap(struct buf *out, const char *s, size_t n);

#endif
