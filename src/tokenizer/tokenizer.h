/* tokenizer.h - the inside of a tinker_tokenizer, shared by the tok_*.c files.
 *
 * A tokenizer is a list of normalizers, two matchers of added tokens, a list of pre-tokenizers,
 * a BPE model, a template and a list of decoders, all read from the model's files and never
 * changed again.  What encoding needs to write is in struct tok_ctx; contexts are kept in a pool
 * of the tokenizer, under its lock. */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tinker/tokenizer.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/map.h"
#include "base/os.h"
#include "json/json.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/split/split_block.h"
#include "tokenizer/split/split_regex.h"

/* ---- parts, as the file lists them; sequences are flattened -------------------------------- */

struct tok_str {
    const char *s;
    size_t n;
};

enum tok_norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_BYTE_LEVEL,
    NORM_NMT,
    NORM_BERT
};
struct tok_norm {
    enum tok_norm_kind kind;
    bool left, right;                        /* STRIP */
    bool clean, chinese, accents, lowercase; /* BERT */
    struct tok_str find, content;            /* REPLACE (find or regex), PREPEND (content) */
    struct split_regex *regex;
};

enum tok_pre_kind {
    PRE_SPLIT,
    PRE_BYTE_LEVEL,
    PRE_DIGITS,
    PRE_WHITESPACE,
    PRE_WHITESPACE_SPLIT,
    PRE_PUNCTUATION,
    PRE_METASPACE,
    PRE_BERT,
    PRE_CHAR,
    PRE_FIXED
};
enum tok_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_PREVIOUS,
    SPLIT_MERGED_NEXT,
    SPLIT_CONTIGUOUS
};
enum tok_prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
struct tok_pre {
    enum tok_pre_kind kind;
    enum tok_behavior behavior;
    bool invert, prefix_space, use_regex, individual, split;
    enum tok_prepend prepend;
    struct tok_str find;    /* SPLIT (find, known or regex), METASPACE and CHAR (find) */
    struct tok_str pattern; /* SPLIT: the regular expression */
    split_fn *known;
    struct split_regex *regex;
    size_t length; /* FIXED */
};

enum tok_dec_kind {
    DEC_BYTE_LEVEL,
    DEC_REPLACE,
    DEC_BYTE_FALLBACK,
    DEC_FUSE,
    DEC_STRIP,
    DEC_METASPACE,
    DEC_WORD_PIECE,
    DEC_BPE
};
struct tok_dec {
    enum tok_dec_kind kind;
    struct tok_str find, content; /* REPLACE; STRIP content; prefix or suffix in content */
    struct split_regex *regex;
    size_t start, stop; /* STRIP */
    bool cleanup, keep_first;
};

struct tok_added {
    struct tok_str content;
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* Leftmost-longest search for added tokens: a trie of bytes behind a filter of first pairs. */
struct tok_trie_node {
    uint32_t child, sibling; /* 0: none */
    uint32_t value;          /* index of the added token + 1 */
    unsigned char byte;
};
struct tok_trie {
    struct tok_trie_node *nodes; /* nodes[0]: unused */
    size_t n, cap;
    uint32_t root[256];
    unsigned char pairs[65536 / 8]; /* first two bytes of some token */
    int only_first;                 /* all tokens start with this byte; -1: they do not */
    bool any;
};

struct tok_ctx;

struct tinker_tokenizer {
    atomic_int refs;
    struct arena arena;
    struct bpe bpe;
    struct os_map block; /* what bpe is a view of */
    bool prebuilt;       /* it is a file */
    struct map odd;      /* spelling of tokens that bpe_find() does not know -> id + 1 */

    struct tok_added *added;
    size_t n_added;
    struct tok_trie raw, normalized;

    struct tok_norm *norms;
    struct tok_pre *pres;
    struct tok_dec *decs;
    size_t n_norms, n_pres, n_decs;
    bool no_decoder;                 /* tokens are joined with blanks */
    split_fn *direct;                /* byte-level and one known splitter: no piece lists needed */
    const struct split_rules *rules; /* of it, or NULL */
    unsigned char *pairs; /* char-level: tok_pair_known(); NULL: pieces cannot be cut further */
    bool kimi_blocks;     /* long runs are cut as tiktoken's Kimi wrapper does */

    int32_t *before, *after; /* the template around a text */
    size_t n_before, n_after;
    bool trim_offsets, trim_prefix_space;

    int32_t special[4]; /* by tinker_special_kind */
    char *chat_template;
    int64_t max_length;

    const tinker_tokenizer_functions *functions; /* in the arena; NULL: all of the above */

    pthread_mutex_t lock; /* guards idle and the making of slots */
    struct tok_ctx *idle;
    struct tok_slot *_Atomic slots; /* tok_decode_slots.c; NULL: not yet */
    struct os_map slot_map;         /* of the slots */
    atomic_size_t decoded;          /* ids so far, until there are slots */
};

/* Whether two characters may stand side by side in a token: a bitmap by hash, so that a yes may be
 * wrong and a no is right. */
enum { TOK_PAIR_BITS = 20 };
static inline size_t tok_pair_bit(uint32_t a, uint32_t b)
{
    return (a * 0x9E3779B1u ^ b * 0x85EBCA77u) >> (32 - TOK_PAIR_BITS);
}
static inline bool tok_pair_known(const unsigned char *pairs, uint32_t a, uint32_t b)
{
    size_t i = tok_pair_bit(a, b);
    return pairs[i / 8] >> i % 8 & 1;
}

/* ---- working memory -------------------------------------------------------------------------- */

/* Text on its way through the pipeline.  map (NULL unless spans are wanted): for each byte, where
 * in the caller's text its character came from. */
struct tok_text {
    const char *s;
    size_t n;
    const tinker_span *map;
};
struct tok_outbuf {
    struct buf text;
    tinker_spans map;
    bool want_map;
};
struct tok_piece {
    size_t begin, end;
};
struct tok_pieces {
    struct tok_piece *at;
    size_t n, cap;
};
struct tok_ctx {
    struct tok_ctx *next;
    struct bpe_ctx bpe;
    struct split_regex_ctx regex;
    struct tok_outbuf norm[2], pre[2];
    struct tok_pieces pieces[2];
    size_t most; /* bytes that rewriting may make of the text at hand: tok_growth() */
    struct buf repaired;
    tinker_spans identity;
};
struct tok_ctx *tok_ctx_take(const tinker_tokenizer *t); /* NULL: out of memory */
void tok_ctx_give(const tinker_tokenizer *t, struct tok_ctx *c);
void tok_ctx_free(struct tok_ctx *c);
bool tok_spans_reserve(tinker_spans *s, size_t extra);

void tok_outbuf_reset(struct tok_outbuf *o, bool want_map, size_t most);
/* How much the steps of a file may make of n bytes, all together.  Some dozens that each double the
 * text would fill the memory; no step that has a purpose comes near this. */
static inline size_t tok_growth(size_t n)
{
    enum { TIMES = 64, MORE = 64 * 1024 };
    return n < SIZE_MAX / TIMES - MORE ? TIMES * n + MORE : SIZE_MAX;
}
/* Append s[0..n), which comes from [begin, end) of in. */
void tok_outbuf_put(struct tok_outbuf *o, const struct tok_text *in, size_t begin, size_t end,
                    const char *s, size_t n);
/* Append s[0..n), which is said to come from the character before in[at], as the reference does. */
void tok_outbuf_insert(struct tok_outbuf *o, const struct tok_text *in, size_t at, const char *s,
                       size_t n);
bool tok_outbuf_ok(const struct tok_outbuf *o);
bool tok_pieces_put(struct tok_pieces *p, size_t begin, size_t end); /* empty ones are dropped */

/* ---- the stages ---------------------------------------------------------------------------- */

/* Parse the parts of a tokenizer.json (raw JSON each; s NULL: absent). */
tinker_status tok_parse_normalizer(tinker_tokenizer *t, struct json_str json, tinker_error *err);
tinker_status tok_parse_pre(tinker_tokenizer *t, struct json_str json, tinker_error *err);
tinker_status tok_parse_decoder(tinker_tokenizer *t, struct json_str json, tinker_error *err);
tinker_status tok_parse_post(tinker_tokenizer *t, struct json_str json, tinker_error *err);
void tok_spell(const tinker_tokenizer *t, uint32_t id, struct buf *out); /* as in the file */

/* The normal form of *text: in c->norm, or *text itself.  TINKER_ENOMEM, TINKER_EINVAL. */
tinker_status tok_normalize(const tinker_tokenizer *t, struct tok_ctx *c, struct tok_text *text,
                            tinker_error *err);
/* Cut *text into c->pieces[0]; *text may be replaced by a rewritten one in c->pre.
 * at_start: the segment starts the caller's text. */
tinker_status tok_pre_split(const tinker_tokenizer *t, struct tok_ctx *c, struct tok_text *text,
                            bool at_start, tinker_error *err);

tinker_status tok_trie_add(struct tok_trie *t, const char *s, size_t n, uint32_t index,
                           tinker_error *err);
void tok_trie_done(struct tok_trie *t);
void tok_trie_clear(struct tok_trie *t);
/* Leftmost-longest token in text[from..n): its index, and [*begin, *end); -1: none. */
int tok_trie_find(const struct tok_trie *t, const char *text, size_t n, size_t from, size_t *begin,
                  size_t *end);

/* ---- loading --------------------------------------------------------------------------------- */

struct tok_source { /* the bytes of the files, and how to read them */
    const char *json, *config;
    size_t json_n, config_n;
    const char *ranks, *pattern; /* a rank file instead of json */
    size_t ranks_n;
    const tinker_special_token *special;
    size_t n_special;
    bool lenient, kimi;
};
/* Read the files.  The result has one reference. */
tinker_tokenizer *tok_load(const struct tok_source *source, tinker_error *err);
/* Everything but the tables, from a block that bpe_open() accepts; takes over the block, also
 * on failure. */
tinker_tokenizer *tok_from_block(struct os_map block, tinker_error *err);
/* The tables of a rank file, with a tokenizer.json text that describes the rest. */
tinker_status tok_build_ranks(const struct tok_source *source, struct os_map *block,
                              tinker_error *err);

/* tok_functions.c: a tokenizer of functions. */
tinker_tokenizer *tok_from_functions(const tinker_tokenizer_functions *functions,
                                     tinker_error *err);
/* What it does in place of tok_encode() and tok_decode(). */
tinker_status tok_functions_encode(const tinker_tokenizer *t, const char *text, size_t n,
                                   const tinker_encode_options *o, tinker_tokens *out,
                                   tinker_spans *spans, tinker_error *err);
tinker_status tok_functions_decode(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                                   const tinker_decode_options *o, struct buf *out, bool *sound,
                                   tinker_error *err);

#endif
