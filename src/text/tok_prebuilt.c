/* tok_prebuilt.c - the block of a tokenizer as a file that is mapped instead of built.
 *
 * There is one file for each place that a tokenizer is loaded from.  It is valid when the SHA-256
 * in its header is that of the source files.  Hashing those takes longer than everything else, so
 * the header also has a stamp of their names, sizes and times: while that is the same, the files
 * are taken to be the same.  A checksum covers the rest.  Files are written aside and renamed.  Any
 * failure only means that the tokenizer is built from its source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/sha256.h"
#include "text/tok_open.h"

static bool file_name(char out[HUB_PATH], const char *dir, const struct tok_files *f)
{
    char hex[65];
    hex_encode(f->place, 32, hex);
    int n = snprintf(out, HUB_PATH, "%s/tokenizer-%s.bin", dir, hex);
    return n > 0 && n < HUB_PATH;
}

static bool add_file(struct sha256 *h, const char *path)
{
    struct os_map map;
    uint64_t n = 0;
    if (*path) {
        if (os_map_open(&map, path, NULL) != TINKER_OK)
            return false;
        n = map.len;
        sha256_update(h, map.data, map.len);
        os_map_close(&map);
    }
    sha256_update(h, &n, sizeof(n)); /* behind the text: where one ends and the other starts */
    return true;
}

static bool hash_source(const struct tok_files *f, uint8_t out[32])
{
    struct sha256 h;
    sha256_init(&h);
    bool ok = add_file(&h, f->main) && add_file(&h, f->config);
    sha256_final(&h, out);
    return ok;
}

static bool is_whole(const struct os_map *map)
{
    const struct bpe_header *h = map->data;
    return map->len >= sizeof(*h) && h->total == map->len && h->checksum == bpe_checksum(h);
}

static void write_block(const char *dir, const struct tok_files *f, const struct bpe_header *block,
                        const uint8_t source[32])
{
    char path[HUB_PATH];
    if (!file_name(path, dir, f) || os_make_dirs(dir, NULL) != TINKER_OK)
        return;
    struct bpe_header *h = malloc(block->total);
    if (!h)
        return;
    memcpy(h, block, block->total);
    memcpy(h->source, source, 32);
    memcpy(h->stamp, f->identity, 32);
    h->checksum = bpe_checksum(h);
    os_write_file(path, h, h->total, NULL);
    free(h);
}

tinker_tokenizer *tok_prebuilt_open(const char *dir, const struct tok_files *f)
{
    char path[HUB_PATH];
    uint8_t source[32];
    struct os_map map;
    if (!file_name(path, dir, f) || os_map_open(&map, path, NULL) != TINKER_OK)
        return NULL;
    const struct bpe_header *h = map.data;
    bool whole = is_whole(&map), same = whole && memcmp(h->stamp, f->identity, 32) == 0;
    if (whole && !same && hash_source(f, source) && memcmp(h->source, source, 32) == 0) {
        write_block(dir, f, h, source); /* with the new stamp; the map stays what it was */
        same = true;
    }
    if (!same) {
        os_map_close(&map);
        return NULL;
    }
    tinker_tokenizer *t = tok_from_block(map, NULL);
    if (t)
        t->prebuilt = true;
    return t;
}

void tok_prebuilt_write(const char *dir, const struct tok_files *f, const struct bpe_header *block)
{
    uint8_t source[32];
    if (hash_source(f, source))
        write_block(dir, f, block, source);
}
