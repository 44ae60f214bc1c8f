/* tok_encode.c - text to tokens, in the reference's order.
 *
 * Validate; cut at added tokens whose text is taken literally; normalize each gap; cut it at the
 * other added tokens; pre-tokenize what is left; run the model on each piece; put the template
 * around.  For a byte-level model with a known splitter the last steps are one loop over the
 * caller's own bytes. */
#include "tokenizer/tok_encode.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/utf8.h"
#include "unicode/unicode.h"

/* One call of tok_encode().  Lives on its stack; one thread. */
struct job {
    const tinker_tokenizer *t;
    struct tok_ctx *c;
    const tinker_encode_options *o;
    const char *text; /* the caller's, or repaired */
    size_t n;
    const char *given; /* the caller's */
    size_t given_n;
    struct bpe_out out;
    tinker_spans *spans; /* NULL: not wanted */
    size_t first_span;   /* of the text, behind the template's */
    tinker_error *err;
};

static tinker_status out_of_memory(struct job *j)
{
    return err_nomem(j->err, "tokens");
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* Put the span of a token whose text is s[0..n), without its white space if the post-processor's
 * trim_offsets says so. */
static bool push_span(struct job *j, tinker_span span, const char *s, size_t n, bool mapped)
{
    if (!tok_spans_reserve(j->spans, 1))
        return false;
    if (j->t->trim_offsets) {
        /* white space at both ends, in characters; the byte map writes a space as U+0120 */
        size_t lead = 0, trail = 0;
        bool leading = true;
        unsigned len;
        for (size_t i = 0; i < n; i += len) {
            uint32_t cp = (unsigned char)s[i];
            len = 1;
            if (!mapped)
                cp = uni_decode((const unsigned char *)s + i, &len);
            bool space = mapped ? cp == ' ' : cp == 0x120 || (uni_class(cp) & UNI_WS);
            leading = leading && space;
            lead += leading;
            trail = space ? trail + 1 : 0;
        }
        bool first = j->spans->n == j->first_span || span.begin == 0;
        if (lead == 1 && first && j->t->trim_prefix_space)
            lead = 0; /* a space that may have been put there; of several none was */
        span.begin = span.begin + lead < span.end ? span.begin + lead : span.end;
        if (trail > 0 && span.end >= trail)
            span.end = span.end - trail > span.begin ? span.end - trail : span.begin;
    }
    j->spans->spans[j->spans->n++] = span;
    return true;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Encode [begin, end) of text as one piece, with the spans of its tokens. */
static bool encode_piece(struct job *j, const struct tok_text *text, size_t begin, size_t end)
{
    size_t first = j->out.n;
    const unsigned char *base = (const unsigned char *)text->s;
    const unsigned char *const starts[2] = { base + begin, base + end };
    bpe_encode(&j->t->bpe, &j->c->bpe, starts, 1, base + text->n, &j->out);
    if (j->out.failed)
        return false;
    size_t at = begin; /* tokens cover their bytes in order; a dropped byte belongs to none */
    for (size_t i = first; j->spans && i < j->out.n; i++) {
        const tinker_span *map = text->map + at;
        size_t len = j->out.lens[i], n;
        tinker_span s = { map[0].begin, len ? map[len - 1].end : map[0].begin };
        uint32_t id = (uint32_t)j->out.ids[i];
        const char *p = bpe_bytes(&j->t->bpe, id, &n);
        if (!push_span(j, s, p, n, (j->t->bpe.flags[id] & BPE_MAPPED) != 0))
            return false;
        at += len;
    }
    return true;
}

/* End of the part of p[0..end) that can be encoded alone: up to two characters that stand side by
 * side in no token, so that no merge reaches over. */
static const unsigned char *find_part_end(const tinker_tokenizer *t, const unsigned char *p,
                                          const unsigned char *end)
{
    unsigned len;
    uint32_t before = uni_decode(p, &len);
    for (p += len; p < end; p += len) {
        uint32_t cp = uni_decode(p, &len);
        if (!tok_pair_known(t->pairs, before, cp))
            break;
        before = cp;
    }
    return p;
}

/* Kimi's Python wrapper cuts text into blocks of 400 000 scalars and, inside, before the scalar
 * that would make a run of more than 25 000 with or without whitespace. */
static const unsigned char *find_kimi_block(const unsigned char *p, const unsigned char *end)
{
    size_t total = 0, run = 0;
    int kind = -1; /* 1: white space, 0: anything else, -1: nothing yet */
    while (p < end && total < 400000) {
        unsigned len;
        uint32_t cp = uni_decode(p, &len);
        /* Python's isspace() also takes the four information separators */
        int space = (uni_class(cp) & UNI_WS) || (cp >= 0x1C && cp <= 0x1F);
        run = space == kind ? run + 1 : 1;
        if (run > 25000) /* MAX_NO_WHITESPACES_CHARS of the wrapper */
            break;
        kind = space;
        total++;
        p += len;
    }
    return p;
}

/* Byte-level model, known splitter: the caller's own bytes, no lists. */
static bool encode_known(struct job *j, const struct tok_text *text)
{
    const unsigned char *base = (const unsigned char *)text->s, *p = base, *end = p + text->n;
    while (p < end && !j->out.failed) {
        const unsigned char *stop = j->t->kimi_blocks ? find_kimi_block(p, end) : end;
        /* Most texts have fewer tokens than a third of their bytes: room for these spares copying
         * as the result grows. */
        if (!j->spans)
            bpe_out_reserve(&j->out, (size_t)(stop - p) / 3);
        while (!j->spans && p < stop && !j->out.failed) { /* many pieces at a time */
            const unsigned char *starts[BPE_AHEAD + 1];
            size_t n = split_many(j->t->direct, j->t->rules, p, stop, starts, BPE_AHEAD);
            bpe_encode(&j->t->bpe, &j->c->bpe, starts, n, stop, &j->out);
            p = starts[n];
        }
        while (j->spans && p < stop) {
            const unsigned char *q = j->t->direct(p, stop);
            if (!encode_piece(j, text, (size_t)(p - base), (size_t)(q - base)))
                return false;
            p = q;
        }
    }
    return !j->out.failed;
}

/* A gap between added tokens, after normalization: cut it into pieces and run the model on each.
 * at_start: it starts the caller's text. */
static tinker_status encode_gap(struct job *j, struct tok_text text, bool at_start)
{
    const tinker_tokenizer *t = j->t;
    if (text.n == 0)
        return TINKER_OK;
    if (t->direct)
        return encode_known(j, &text) ? TINKER_OK : out_of_memory(j);
    tinker_status status = tok_pre_split(t, j->c, &text, at_start, j->err);
    if (status != TINKER_OK)
        return status;
    /* pieces[0] is where every step leaves its result */
    for (size_t i = 0; i < j->c->pieces[0].n; i++) {
        struct tok_piece piece = j->c->pieces[0].at[i];
        if (!t->pairs) {
            if (!encode_piece(j, &text, piece.begin, piece.end))
                return out_of_memory(j);
            continue;
        }
        /* A char-level piece, often the whole text, in parts that are encoded like pieces: no merge
         * reaches over their ends. */
        const unsigned char *base = (const unsigned char *)text.s, *p = base + piece.begin;
        const unsigned char *stop = base + piece.end, *starts[BPE_AHEAD + 1];
        while (p < stop && j->spans) { /* spans are made one by one */
            const unsigned char *q = find_part_end(t, p, stop);
            if (!encode_piece(j, &text, (size_t)(p - base), (size_t)(q - base)))
                return out_of_memory(j);
            p = q;
        }
        while (p < stop && !j->out.failed) { /* many parts at a time */
            size_t n = 0;
            for (starts[0] = p; n < BPE_AHEAD && p < stop; starts[++n] = p)
                p = find_part_end(t, p, stop);
            bpe_encode(&t->bpe, &j->c->bpe, starts, n, base + text.n, &j->out);
        }
        if (j->out.failed)
            return out_of_memory(j);
    }
    return TINKER_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* The character that ends at `at`, which is not 0. */
static uint32_t read_scalar_before(const char *text, size_t at)
{
    size_t i = at - 1;
    unsigned len;
    while (i > 0 && ((unsigned char)text[i] & 0xC0) == 0x80)
        i--;
    return uni_decode((const unsigned char *)text + i, &len);
}

/* Bytes of the caller's text at `at` that are one character of the text, which may be repaired. */
static size_t count_given_bytes(const struct job *j, size_t at, unsigned len)
{
    bool incomplete;
    uint32_t cp;
    if (j->text == j->given)
        return len;
    int good = utf8_decode(j->given + at, j->given_n - at, &cp);
    return good ? (size_t)good : uni_bad_part(j->given + at, j->given_n - at, &incomplete);
}

/* Where in the caller's text the byte at `at` of a segment is, for a message. */
static size_t find_position(const struct job *j, const struct tok_text *text, size_t at)
{
    if (text->map) /* spans are wanted, so every byte knows where it came from */
        return text->map[at].begin;
    if (text->s < j->text || text->s > j->text + j->n)
        return at; /* normalized, without a map of positions */
    at += (size_t)(text->s - j->text);
    if (j->text == j->given)
        return at;
    size_t given = 0;
    unsigned len;
    for (size_t i = 0; i < at; i += len) {
        uni_decode((const unsigned char *)j->text + i, &len);
        given += count_given_bytes(j, given, len);
    }
    return given;
}

/* Whether the token found at [*begin, *end) counts, and what it covers with the white space that it
 * strips.  floor: what is before belongs to an earlier token. */
static bool accept_added(struct job *j, const struct tok_text *text, const struct tok_added *a,
                         size_t floor, size_t *begin, size_t *end)
{
    if (a->special && j->o->special == TINKER_SPECIAL_TEXT)
        return false;
    const unsigned char *s = (const unsigned char *)text->s;
    unsigned len;
    if (a->single_word && ((*begin > 0 && uni_is_word(read_scalar_before(text->s, *begin))) ||
                           (*end < text->n && uni_is_word(uni_decode(s + *end, &len)))))
        return false;
    if (a->lstrip && *begin < floor)
        *begin = floor;
    while (a->lstrip && *begin > floor) {
        uint32_t cp = read_scalar_before(text->s, *begin);
        if (!(uni_class(cp) & UNI_WS))
            break;
        *begin -= cp < 0x80 ? 1 : cp < 0x800 ? 2 : 3; /* no white space is longer */
    }
    while (a->rstrip && *end < text->n && (uni_class(uni_decode(s + *end, &len)) & UNI_WS))
        *end += len;
    return *begin < *end;
}

typedef tinker_status gap_fn(struct job *j, struct tok_text text, bool at_start);

static struct tok_text slice_text(struct tok_text text, size_t begin, size_t end)
{
    return (struct tok_text){ text.s + begin, end - begin, text.map ? text.map + begin : NULL };
}

/* Cut text at the tokens of a trie; gaps go to the function.  A token that does not count is
 * passed over as a whole.  White space that one strips to its right is still searched: it may be
 * a token. */
static tinker_status cut_added(struct job *j, const struct tok_trie *trie, struct tok_text text,
                               bool at_start, gap_fn *gap)
{
    size_t done = 0, from = 0, begin, end;
    int index;
    tinker_status status = TINKER_OK;
    if (j->o->special == TINKER_SPECIAL_NONE || !trie->any)
        return gap(j, text, at_start);
    while ((index = tok_trie_find(trie, text.s, text.n, from, &begin, &end)) >= 0) {
        const struct tok_added *a = &j->t->added[index];
        from = end;
        if (a->special && j->o->special == TINKER_SPECIAL_ERROR)
            return err_set(j->err, TINKER_EINVAL, "special token \"%.*s\" in the text at byte %zu",
                           (int)a->content.n, a->content.s, find_position(j, &text, begin));
        if (!accept_added(j, &text, a, done, &begin, &end))
            continue;
        if (done < begin)
            status = gap(j, slice_text(text, done, begin), at_start && done == 0);
        if (status != TINKER_OK)
            return status;
        bpe_push(&j->out, a->id, end - begin);
        bool ok = !j->out.failed;
        if (ok && j->spans) {
            tinker_span span = { text.map[begin].begin, text.map[end - 1].end };
            ok = push_span(j, span, text.s + begin, end - begin, false);
        }
        if (!ok)
            return out_of_memory(j);
        done = end;
    }
    if (done < text.n)
        status = gap(j, slice_text(text, done, text.n), at_start && done == 0);
    return status;
}

/* A gap between tokens whose text is taken literally: normalize, then look for the others. */
static tinker_status encode_raw_gap(struct job *j, struct tok_text text, bool at_start)
{
    tinker_status status = TINKER_OK;
    if (j->t->n_norms > 0)
        status = tok_normalize(j->t, j->c, &text, j->err);
    if (status != TINKER_OK)
        return status;
    return cut_added(j, &j->t->normalized, text, at_start, encode_gap);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* For each byte of the caller's text the span of its character, in the wanted unit. */
static bool fill_identity(struct job *j)
{
    tinker_spans *map = &j->c->identity;
    map->n = 0;
    if (!tok_spans_reserve(map, j->n + 1)) /* never NULL, even of an empty text */
        return false;
    size_t scalar = 0, given = 0; /* how far we are, in code points and in the caller's bytes */
    unsigned len;
    for (size_t i = 0; i < j->n; i += len, scalar++) {
        uni_decode((const unsigned char *)j->text + i, &len);
        size_t begin = given;
        given += count_given_bytes(j, begin, len);
        tinker_span s = { begin, given };
        if (j->o->scalar_offsets)
            s = (tinker_span){ scalar, scalar + 1 };
        for (unsigned k = 0; k < len; k++) /* all bytes of a character report all of it */
            map->spans[map->n++] = s;
    }
    return true;
}

/* Tokens that the model's template adds come from no text. */
static bool push_template(struct job *j, const int32_t *ids, size_t n)
{
    if (!bpe_out_reserve(&j->out, n) || (j->spans && !tok_spans_reserve(j->spans, n)))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (j->out.lens)
            j->out.lens[j->out.n] = 0;
        j->out.ids[j->out.n++] = ids[i];
        if (j->spans)
            j->spans->spans[j->spans->n++] = (tinker_span){ 0, 0 };
    }
    return true;
}

/* The caller's text between the two halves of the template. */
static tinker_status encode_text(struct job *j)
{
    size_t good = uni_valid_prefix(j->text, j->n);
    if (good < j->n && !j->o->replace_invalid)
        return err_set(j->err, TINKER_EINVAL, "the text is not UTF-8 at byte %zu", good);
    if (good < j->n) { /* from here on the text is ours; spans still refer to the caller's */
        buf_reset(&j->c->repaired);
        uni_repair(&j->c->repaired, j->text, j->n);
        if (!buf_ok(&j->c->repaired))
            return out_of_memory(j);
        j->text = j->c->repaired.data;
        j->n = j->c->repaired.len;
    }
    struct tok_text text = { j->text, j->n, NULL };
    if (j->spans) {
        if (!fill_identity(j))
            return out_of_memory(j);
        text.map = j->c->identity.spans;
    }
    j->first_span = j->spans ? j->spans->n : 0;
    return j->n > 0 ? cut_added(j, &j->t->raw, text, true, encode_raw_gap) : TINKER_OK;
}

tinker_status tok_encode_options(tinker_encode_options *ours, const tinker_encode_options *theirs,
                                 tinker_error *err)
{
    *ours = (tinker_encode_options)TINKER_ENCODE_OPTIONS_INIT;
    if (!theirs)
        return TINKER_OK;
    tinker_status status = opts_copy(ours, sizeof(*ours), theirs, "tinker_encode_options", err);
    if (status == TINKER_OK &&
        (ours->special < TINKER_SPECIAL_PARSE || ours->special > TINKER_SPECIAL_ERROR))
        return err_set(err, TINKER_EINVAL, "special-token policy %d is unknown",
                       (int)ours->special);
    return status;
}

tinker_status tok_encode(const tinker_tokenizer *t, struct tok_ctx *c, const char *text, size_t n,
                         const tinker_encode_options *o, tinker_tokens *out, tinker_spans *spans,
                         tinker_error *err)
{
    if (t->functions)
        return tok_functions_encode(t, text, n, o, out, spans, err);
    struct job j = { .t = t, .c = c, .o = o, .text = text, .n = n, .spans = spans, .err = err };
    j.given = text;
    j.given_n = n;
    if (!text && n)
        return err_set(err, TINKER_EINVAL, "there is no text");
    size_t had = out->n, had_spans = spans ? spans->n : 0;
    tinker_status status = TINKER_OK;
    j.out = (struct bpe_out){ .ids = out->ids, .n = out->n, .cap = out->cap };
    if (spans) { /* as long as ids, of which it describes those that are appended */
        j.out.lens = malloc((j.out.cap + 1) * sizeof(*j.out.lens));
        if (!j.out.lens)
            return out_of_memory(&j);
    }
    if (o->add_special && !push_template(&j, t->before, t->n_before))
        status = out_of_memory(&j);
    if (status == TINKER_OK)
        status = encode_text(&j);
    if (status == TINKER_OK && o->add_special && !push_template(&j, t->after, t->n_after))
        status = out_of_memory(&j);
    free(j.out.lens);
    *out = (tinker_tokens){ j.out.ids, j.out.n, j.out.cap };
    if (status != TINKER_OK) {
        out->n = had;
        if (spans)
            spans->n = had_spans;
    }
    return status;
}
