/* tok_prebuilt.c - the block of a tokenizer as a file that is mapped instead of built.
 *
 * The name is the identity of the source files, so a changed source has another name; the header
 * repeats it, and a checksum covers the rest.  Files are written aside and renamed.  Any failure
 * only means that the tokenizer is built from its source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/sha256.h"
#include "text/tok_open.h"

static bool file_name(char out[HUB_PATH], const char *dir, const uint8_t identity[32])
{
    char hex[65];
    hex_encode(identity, 32, hex);
    int n = snprintf(out, HUB_PATH, "%s/tokenizer-%s.bin", dir, hex);
    return n > 0 && n < HUB_PATH;
}

tinker_tokenizer *tok_prebuilt_open(const char *dir, const uint8_t identity[32])
{
    char path[HUB_PATH];
    struct os_map map;
    if (!file_name(path, dir, identity) || os_map_open(&map, path, NULL) != TINKER_OK)
        return NULL;
    const struct bpe_header *h = map.data;
    if (map.len < sizeof(*h) || h->total != map.len || memcmp(h->source, identity, 32) != 0 ||
        h->checksum != bpe_checksum(h)) {
        os_map_close(&map);
        return NULL;
    }
    return tok_from_block(NULL, &map, NULL);
}

void tok_prebuilt_write(const char *dir, const uint8_t identity[32], const struct bpe_header *block)
{
    char path[HUB_PATH];
    if (!file_name(path, dir, identity) || os_make_dirs(dir, NULL) != TINKER_OK)
        return;
    struct bpe_header *h = malloc(block->total);
    if (!h)
        return;
    memcpy(h, block, block->total);
    memcpy(h->source, identity, 32);
    h->checksum = bpe_checksum(h);
    os_write_file(path, h, h->total, NULL);
    free(h);
}
