/* tok-conform.c - run the tokenizer over records on stdin, for comparison with another engine.
 *
 *     tok-conform encode|spans|decode FILE [special=parse|text|none] [add_special] [skip_special]
 *     tok-conform split FILE
 *
 * encode: records are a 32-bit length and text; answers are a count and 32-bit ids.  spans: the
 * same, followed by begin and end (in code points) of each token.  decode: records are a count
 * and ids, answers a length and text.  Little-endian.  A record that is refused is answered by
 * 0xFFFFFFFF.
 *
 * split: FILE holds a pattern that has a hand-written matcher.  Cuts the texts with it and with
 * PCRE2, and prints bytes, pieces and how many boundaries differ. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/os.h"
#include "tokenizer/split/split.h"
#include "tokenizer/split/split_regex.h"
#include <tinker/tokenizer.h>

static void put32(uint32_t v)
{
    fwrite(&v, 4, 1, stdout);
}

static void encode_record(const tinker_tokenizer *t, const char *text, uint32_t n,
                          const tinker_encode_options *o, bool want_spans)
{
    static tinker_tokens ids;
    static tinker_spans spans;
    tinker_slice slice = { text, n };
    tinker_status status;
    ids.n = spans.n = 0;
    if (want_spans)
        status = tinker_tokenizer_encode_batch(t, &slice, 1, o, &ids, &spans, NULL);
    else
        status = tinker_tokenizer_encode(t, text, n, o, &ids, NULL);
    if (status != TINKER_OK) {
        put32(UINT32_MAX);
        return;
    }
    put32((uint32_t)ids.n);
    if (ids.n > 0)
        fwrite(ids.ids, 4, ids.n, stdout);
    for (size_t i = 0; i < spans.n; i++) {
        put32((uint32_t)spans.spans[i].begin);
        put32((uint32_t)spans.spans[i].end);
    }
}

static void decode_record(const tinker_tokenizer *t, const char *record, uint32_t n,
                          const tinker_decode_options *o)
{
    static tinker_text text;
    text.n = 0;
    if (tinker_tokenizer_decode(t, (const int32_t *)(const void *)record, n, o, &text, NULL) !=
        TINKER_OK) {
        put32(UINT32_MAX);
        return;
    }
    put32((uint32_t)text.n);
    if (text.n > 0)
        fwrite(text.s, 1, text.n, stdout);
}

/* Next record of stdin, in units of bytes; the memory is used again.  NULL: there is none. */
static char *next_record(size_t unit, uint32_t *n)
{
    static char *record;
    if (fread(n, 4, 1, stdin) != 1)
        return NULL;
    char *grown = realloc(record, *n * unit + 1);
    if (!grown || fread(grown, unit, *n, stdin) != *n)
        exit(1);
    return record = grown;
}

static int compare_splits(const char *path)
{
    char *pattern, *text;
    size_t length, bytes = 0, pieces = 0, differ = 0;
    uint32_t n;
    tinker_error err;
    if (os_read_file(path, 1 << 20, &pattern, &length, &err) != TINKER_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    split_fn *next = split_known(pattern, length);
    struct split_regex *regex = split_regex_new(pattern, length, true, &err);
    struct split_regex_ctx ctx = { 0 };
    if (!next || !regex) {
        fprintf(stderr, "%s\n", next ? err.message : "the pattern has no matcher");
        return 1;
    }
    while ((text = next_record(1, &n))) {
        const unsigned char *base = (const unsigned char *)text, *p = base, *stop = base + n;
        size_t begin, end = 0;
        for (; p < stop; pieces++) {
            p = next(p, stop);
            bool found = split_regex_find(regex, &ctx, text, n, end, &begin, &end) == 1;
            differ += !found || (size_t)(p - base) != end;
        }
        bytes += n;
    }
    printf("%zu %zu %zu\n", bytes, pieces, differ);
    split_regex_ctx_clear(&ctx);
    split_regex_free(regex);
    free(pattern);
    return 0;
}

int main(int argc, char **argv)
{
    tinker_error err;
    tinker_encode_options e = TINKER_ENCODE_OPTIONS_INIT;
    tinker_decode_options d = TINKER_DECODE_OPTIONS_INIT;
    tinker_tokenizer_options load = TINKER_TOKENIZER_OPTIONS_INIT;
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "split") == 0)
        return compare_splits(argv[2]);
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "special=text") == 0)
            e.special = TINKER_SPECIAL_TEXT;
        else if (strcmp(argv[i], "special=none") == 0)
            e.special = TINKER_SPECIAL_NONE;
        else if (strcmp(argv[i], "add_special") == 0)
            e.add_special = 1;
        else if (strcmp(argv[i], "skip_special") == 0)
            d.skip_special = 1;
    }
    e.scalar_offsets = 1;
    tinker_tokenizer *t = tinker_tokenizer_load(argv[2], &load, &err);
    if (!t) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    char *record;
    uint32_t n;
    size_t unit = strcmp(argv[1], "decode") == 0 ? 4 : 1;
    while ((record = next_record(unit, &n))) {
        if (unit == 4)
            decode_record(t, record, n, &d);
        else
            encode_record(t, record, n, &e, strcmp(argv[1], "spans") == 0);
    }
    tinker_tokenizer_free(t);
    return 0;
}
