/* tok_prebuilt.c - the block of a tokenizer as a file that is mapped instead of built.
 *
 * There is one file for each place that a tokenizer is loaded from.  It is valid when the SHA-256
 * in its header is that of the source files.  Hashing those takes longer than everything else, so
 * the header also has a stamp of their names, sizes and times: while that is the same, the files
 * are taken to be the same.  Times are coarse, so a file that changed in the last two seconds gets
 * no stamp: it could change again within the same tick.  A checksum covers the rest.  Files are
 * written aside and renamed.  Any failure only means that the tokenizer is built from its source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/sha.h"
#include "tokenizer/load/tok_open.h"

/* One file for each place: a changed source replaces it instead of adding another. */
static bool make_file_name(char out[HF_PATH], const char *dir, const struct tok_files *f)
{
    char hex[65];
    hex_encode(f->place, 32, hex);
    int n = snprintf(out, HF_PATH, "%s/tokenizer-%s.bin", dir, hex);
    return n > 0 && n < HF_PATH;
}

/* SHA-256 of both texts and their lengths. */
static void hash_source(struct tok_str main, struct tok_str config, uint8_t out[32])
{
    const struct tok_str files[2] = { main, config };
    struct sha256 h;
    sha256_init(&h);
    for (int i = 0; i < 2; i++) {
        uint64_t n = files[i].n;
        sha256_update(&h, files[i].s, files[i].n);
        sha256_update(&h, &n, sizeof(n)); /* behind the text: where one ends and the other starts */
    }
    sha256_final(&h, out);
}

/* SHA-256 of the source files as they are now. */
static bool hash_files(const struct tok_files *f, uint8_t out[32])
{
    struct os_map main, config = { .data = "" };
    if (os_map_open(&main, f->main, NULL) != TINKER_OK)
        return false;
    bool ok = !*f->config || os_map_open(&config, f->config, NULL) == TINKER_OK;
    if (ok)
        hash_source((struct tok_str){ main.data, main.len },
                    (struct tok_str){ config.data, config.len }, out);
    os_map_close(&config);
    os_map_close(&main);
    return ok;
}

/* A copy of the block with its header filled in.  os_write_file() writes aside and renames. */
static void write_block(const char *dir, const struct tok_files *f, const struct bpe_header *block,
                        const uint8_t source[32])
{
    char path[HF_PATH];
    if (!make_file_name(path, dir, f) || os_make_dirs(dir, NULL) != TINKER_OK)
        return;
    struct bpe_header *h = malloc(block->total);
    if (!h)
        return;
    memcpy(h, block, block->total);
    memcpy(h->source, source, 32);
    memset(h->stamp, 0, 32); /* no identity is all zeros: hash the source next time */
    if (f->settled)
        memcpy(h->stamp, f->identity, 32);
    h->checksum = bpe_checksum(h);
    os_write_file(path, h, h->total, NULL);
    free(h);
}

tinker_tokenizer *tok_prebuilt_open(const char *dir, const struct tok_files *f)
{
    char path[HF_PATH];
    uint8_t source[32];
    struct os_map map;
    if (!make_file_name(path, dir, f) || os_map_open(&map, path, NULL) != TINKER_OK)
        return NULL;
    const struct bpe_header *h = map.data;
    bool whole = map.len >= sizeof(*h) && h->total == map.len && h->checksum == bpe_checksum(h);
    bool same = whole && memcmp(h->stamp, f->identity, 32) == 0;
    /* Other times, perhaps the same content: copies and checkouts change times only. */
    if (whole && !same && hash_files(f, source) && memcmp(h->source, source, 32) == 0) {
        same = true;
        if (f->settled)
            write_block(dir, f, h, source); /* with the new stamp; the map stays what it was */
    }
    if (!same) {
        os_map_close(&map);
        return NULL;
    }
    /* bpe_open() checks every number in it, checksum or not. */
    tinker_tokenizer *t = tok_from_block(map, NULL);
    if (t)
        t->prebuilt = true;
    return t;
}

/* With the hash of what it was made from: a changed tokenizer.json never meets an old table.  A failure
 * costs only time, so nobody is told. */
void tok_prebuilt_write(const char *dir, const struct tok_files *f, const struct bpe_header *block,
                        struct tok_str main, struct tok_str config)
{
    uint8_t source[32];
    hash_source(main, config, source);
    write_block(dir, f, block, source);
}
