/* tok_decode.h - what decoding at once and decoding as tokens arrive share. */
#ifndef TOKENIZER_TOK_DECODE_H
#define TOKENIZER_TOK_DECODE_H

#include "tokenizer/tokenizer.h"

/* Append what ids[0..n) stand for.  From a byte-level vocabulary these are the tokens' bytes, not
 * repaired yet: the caller knows whether more follows.  *sound: they are known to be UTF-8. */
tinker_status tok_decode(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                         const tinker_decode_options *o, struct buf *out, bool *sound,
                         tinker_error *err);
bool tok_decodes_bytes(const tinker_tokenizer *t); /* such a vocabulary and decoder */
/* The same for a part of a text: what tok_strip_meta() takes off is still there. */
tinker_status tok_decode_part(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                              const tinker_decode_options *o, struct buf *out, bool *sound,
                              tinker_error *err);

/* A part in one pass, for the decoders that tok_decodes_meta() recognizes. */
bool tok_decodes_meta(const tinker_tokenizer *t);
tinker_status tok_decode_meta(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                              const tinker_decode_options *o, struct buf *out, tinker_error *err);

/* Append a token with every metaspace replaced; most have one at the start or none. */
void tok_put_meta(struct buf *out, const char *p, size_t n, const struct tok_dec *d);
/* How many copies of a character the last decoder strips from the start of a text, and taking up to
 * max of them off out[from..): returns how many there were. */
size_t tok_strips(const tinker_tokenizer *t);
size_t tok_strip_meta(const tinker_tokenizer *t, struct buf *out, size_t from, size_t max);

/* Decode bytes, or as tok_decode_meta() without stripping, from a table of all tokens; false: there
 * is none. */
bool tok_decode_slots(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                      const tinker_decode_options *o, struct buf *out, bool *sound,
                      tinker_status *status, tinker_error *err);

tinker_status tok_use_id(const tinker_tokenizer *t, int32_t id, const tinker_decode_options *o,
                         bool *use, tinker_error *err);
int tok_byte_token(const char *s, size_t n); /* value of "<0xXX>", or -1 */
/* The text of a run of byte tokens: itself, or one U+FFFD for each byte. */
void tok_put_byte_run(struct buf *out, const char *run, size_t n);
void tok_cleanup(struct buf *out, const char *s, size_t n, bool word_piece);

#endif
