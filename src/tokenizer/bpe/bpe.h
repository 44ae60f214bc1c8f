/* bpe.h - byte-pair encoding of one piece, and the tables it needs.
 *
 * All tables of a vocabulary lie in one block of memory without pointers, made by bpe_build.h or
 * mapped from a prebuilt file; struct bpe is a view of it.  A byte-level vocabulary is kept as
 * raw bytes, so text is never rewritten into the file's spelling.  A view is immutable and
 * shared; a struct bpe_ctx holds the scratch memory and the piece cache of one thread. */
#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/os.h"
#include <tinker/error.h>

enum {
    BPE_TOKEN = 1,    /* the id exists */
    BPE_MODEL = 2,    /* in the model's vocabulary */
    BPE_PLAIN = 4,    /* its bytes may occur in a piece: found by bpe_find() */
    BPE_ADDED = 8,    /* an added token */
    BPE_SPECIAL = 16, /* a special one */
    BPE_MAPPED = 32   /* stored as bytes, spelled with the byte map */
};
enum { BPE_MAX_ID = 1 << 24, BPE_VERSION = 5 };
#define BPE_NONE UINT32_MAX

struct bpe_slot {  /* tokens by their bytes, when there is no trie; empty when meta is 0 */
    uint64_t key;  /* up to 8 bytes: the bytes; longer: their hash */
    uint32_t off;  /* in the blob */
    uint32_t meta; /* id | length (127: longer) << 24 | direct << 31 */
};
struct bpe_pair { /* a merge; none when rank is BPE_NONE */
    uint32_t left, right, rank, id;
};

struct bpe_part { /* what merging does with a token; the first three are set by bpe_boundary.c */
    uint32_t left, right;
    uint32_t made; /* rank + 1 of the merge of left and right; 0: a symbol; BPE_NONE: never */
    uint32_t near; /* what it merges with: a bit each of bpe_bin(), << 16 of those before it */
};
struct bpe_cell {  /* a node of the trie, see bpe_trie.c */
    uint32_t edge; /* place of its children << 9 | 256 | the byte that leads here; 0: empty */
    uint32_t id;   /* of the token that ends here; BPE_NONE: none */
    uint32_t open; /* of that token, see bpe_greedy.c: a bit for each byte % 32 */
};
/* In the id of a cell, for a token that merging does not give: never to be taken, or only as a whole
 * piece. */
enum { BPE_ASIDE = 1 << 29, BPE_WHOLE = 1 << 30 };

struct bpe_header { /* start of the block; sizes in bytes are multiples of 64 */
    char magic[8];
    uint32_t version, byte_order;
    uint64_t checksum;  /* of everything behind this field */
    uint64_t total;     /* bytes of the block */
    uint8_t source[32]; /* SHA-256 of the files it was made from */
    uint8_t stamp[32];  /* their names, sizes and times when that was known to be so */
    uint32_t n_ids, n_vocab, n_merges, slot_bits, pair_bits, flags;
    uint64_t offsets_at, flags_at, slots_at, pairs_at, blob_at, blob_n;
    uint64_t parts_at, trie_at, n_cells;
    uint64_t json_at, json_n, config_at, config_n;
    uint32_t bytes[256]; /* id of each byte: a byte token, or <0xXX> with byte fallback */
};
enum {
    BPE_HAS_ALL_BYTES = 1,
    BPE_BYTE_LEVEL = 2,
    BPE_IGNORE_MERGES = 4,
    BPE_GREEDY = 8,
    BPE_TWICE = 16
};

struct bpe {
    const struct bpe_header *header;
    const uint32_t *offsets; /* n_ids + 1, ascending */
    const uint8_t *flags;    /* n_ids */
    const struct bpe_slot *slots;
    const struct bpe_pair *pairs; /* hash table */
    const struct bpe_part *parts; /* n_ids */
    const struct bpe_cell *trie;  /* NULL: pieces are merged */
    const char *blob;
    uint32_t n_ids;
    int slot_shift, pair_shift;
    bool byte_level, ignore_merges;
    /* set by the loader of the model's settings, char-level vocabularies only */
    bool byte_fallback, fuse_unk;
    uint32_t unk;                /* BPE_NONE: none */
    const char *prefix, *suffix; /* of continuing and last symbols; "" usually */
    size_t prefix_n, suffix_n;
    uint32_t ascii[128]; /* id of each ASCII symbol, char-level */
};

/* A view of a block that is known to be right. */
void bpe_view(struct bpe *b, const struct bpe_header *h);
/* Check a block of n bytes that came from a file and make a view of it. */
tinker_status bpe_open(struct bpe *b, const void *block, size_t n, tinker_error *err);
uint64_t bpe_checksum(const struct bpe_header *h);

/* Bytes of a token; n_ids is checked by the caller. */
static inline const char *bpe_bytes(const struct bpe *b, uint32_t id, size_t *n)
{
    *n = b->offsets[id + 1] - b->offsets[id];
    return b->blob + b->offsets[id];
}

/* Id of the plain token that is exactly these bytes, or BPE_NONE. */
uint32_t bpe_find(const struct bpe *b, const char *p, size_t n);
/* Rank and result of a merge; rank BPE_NONE when there is none. */
struct bpe_pair bpe_pair(const struct bpe *b, uint32_t left, uint32_t right);

struct bpe_out { /* where ids go; lens (may be NULL) receives the bytes each covers */
    int32_t *ids;
    uint32_t *lens;
    size_t n, cap;
    bool failed; /* out of memory */
};
bool bpe_out_reserve(struct bpe_out *out, size_t extra);
static inline void bpe_push(struct bpe_out *out, uint32_t id, size_t len)
{
    if (out->n == out->cap && !bpe_out_reserve(out, 1))
        return;
    if (out->lens)
        out->lens[out->n] = (uint32_t)len;
    out->ids[out->n++] = (int32_t)id;
}

struct bpe_words;
struct bpe_ctx {
    struct os_map tables; /* of what bpe.c remembers */
    struct bpe_words *words;
    uint32_t *places;
    char *notes;
    size_t n_notes;
    size_t unknown; /* pieces among the last that were no known words: there may be more */
    uint32_t *ids, *next, *prev, *starts;
    uint64_t *value, *heap;
    uint64_t *kept; /* answers of bpe_boundary_holds(): pair + 1, and a bit */
    size_t cap;
};
enum { BPE_KEPT_BITS = 13 };
void bpe_ctx_clear(struct bpe_ctx *c);

enum { BPE_AHEAD = 64 };
/* Encode n <= BPE_AHEAD pieces, none empty, one behind the other: the i-th is starts[i] up to
 * starts[i + 1].  Taking several at once gives their places in the tables, larger than the
 * processor's cache, time to arrive.  limit: the end of readable memory. */
void bpe_encode(const struct bpe *b, struct bpe_ctx *c, const unsigned char *const *starts,
                size_t n, const unsigned char *limit, struct bpe_out *out);
/* One piece by merging alone, without shortcut or cache; slow, and right for every vocabulary. */
void bpe_encode_merge(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                      struct bpe_out *out);

/* Private to bpe*.c. */
/* bpe_find() in the trie, and one piece with its help; it must be there. */
uint32_t bpe_trie_find(const struct bpe *b, const unsigned char *p, size_t n);
void bpe_greedy_encode(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                       struct bpe_out *out);
/* Room for n symbols in the scratch memory. */
bool bpe_ctx_reserve(struct bpe_ctx *c, size_t n);
uint64_t bpe_key(const unsigned char *p, size_t n);
static inline size_t bpe_slot_index(uint64_t key, int shift)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> shift);
}
static inline unsigned bpe_bin(uint32_t id)
{
    return (id * 0x9E3779B1u) >> 28;
}
static inline uint64_t bpe_pair_hash(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) * 0xD6E8FEB86659FD93u;
}

#endif
