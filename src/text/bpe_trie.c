/* bpe_trie.c - all tokens of a vocabulary as a tree of bytes.
 *
 * A double array: a node says where its children are, a child stands at that place plus its byte,
 * and the children of different nodes lie between one another.  As no two nodes have the same
 * place, a cell need not name its parent: its byte is enough.  The first 256 cells are empty, for
 * nodes without children; the root has no byte, and cell 0 carries its place.
 *
 * Nodes are laid out in depth first, each as near behind its parent as there is room, so that
 * walking down a token mostly stays in a cache line. */
#include "text/bpe_trie.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = (1 << 23) - 1, NEAR = 4 };

/* ---- tokens in order -------------------------------------------------------------------------- */

static uint64_t head_of(const struct bpe_word *w)
{
    uint64_t head = 0;
    for (uint32_t i = 0; i < 8; i++)
        head = head << 8 | (i < w->n ? w->p[i] : 0);
    return head;
}

static int by_bytes(const void *a, const void *b)
{
    const struct bpe_word *x = a, *y = b;
    int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* By the first 8 bytes in four passes, and then, the few that are equal there, by all. */
static bool sort_words(struct bpe_word *words, size_t n)
{
    struct bpe_word *other = malloc((n + 1) * sizeof(*other)), *from = words, *to = other;
    uint32_t *at = calloc(4 * 65536, sizeof(*at));
    bool ok = other && at;
    for (size_t i = 0; ok && i < n; i++) {
        words[i].head = head_of(&words[i]);
        for (int pass = 0; pass < 4; pass++)
            at[pass * 65536 + (words[i].head >> (16 * pass) & 0xFFFF)]++;
    }
    for (int pass = 0; ok && pass < 4; pass++) {
        uint32_t *place = at + pass * 65536, sum = 0;
        for (size_t i = 0; i < 65536; i++) {
            uint32_t count = place[i];
            place[i] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            to[place[from[i].head >> (16 * pass) & 0xFFFF]++] = from[i];
        struct bpe_word *swap = from;
        from = to;
        to = swap;
    }
    for (size_t i = 0, end; ok && i < n; i = end) {
        for (end = i + 1; end < n && words[end].head == words[i].head; end++)
            continue;
        if (end - i > 1)
            qsort(words + i, end - i, sizeof(*words), by_bytes);
    }
    free(other);
    free(at);
    return ok;
}

/* ---- cells ------------------------------------------------------------------------------------ */

struct node { /* the tokens words[lo..hi) have `depth` bytes in common, which lead to the cell */
    uint32_t lo, hi, depth, cell;
};

struct trie {
    const struct bpe_word *words;
    struct bpe_cell *cells;
    uint64_t *taken, *places; /* bits: cells in use, and places that nodes have their children at */
    size_t n, cap;            /* cells */
    struct node *waiting;
    size_t n_waiting, cap_waiting;
};

static uint64_t bits_at(const uint64_t *bits, size_t i)
{
    uint64_t low = bits[i / 64] >> (i % 64);
    return i % 64 ? low | bits[i / 64 + 1] << (64 - i % 64) : low;
}

static void set_bit(uint64_t *bits, size_t i)
{
    bits[i / 64] |= (uint64_t)1 << (i % 64);
}

/* Twice the room; arrays have room for what bits_at() reads beyond. */
static bool grow(struct trie *t)
{
    size_t cap = t->cap ? 2 * t->cap : 1 << 16, words = cap / 64 + 16;
    size_t had = t->cap ? t->cap / 64 + 16 : 0;
    if (cap > 2 * (size_t)MAX_CELLS)
        return false;
    struct bpe_cell *cells = realloc(t->cells, cap * sizeof(*cells));
    t->cells = cells ? cells : t->cells;
    uint64_t *taken = realloc(t->taken, words * sizeof(*taken));
    t->taken = taken ? taken : t->taken;
    uint64_t *places = realloc(t->places, words * sizeof(*places));
    t->places = places ? places : t->places;
    if (!cells || !taken || !places)
        return false;
    memset(taken + had, 0, (words - had) * sizeof(*taken));
    memset(places + had, 0, (words - had) * sizeof(*places));
    for (size_t i = t->cap; i < cap; i++)
        cells[i] = (struct bpe_cell){ 0, BPE_NONE, 0 };
    t->cap = cap;
    return true;
}

/* Where children with these bytes, ascending, have room: behind `from`, or else where the cells in
 * use end, so that the search does not take long.  0: out of memory. */
static size_t find_place(struct trie *t, const unsigned char *bytes, size_t n, size_t from)
{
    size_t place = from > 256u + bytes[0] ? from - bytes[0] : 256;
    for (int tries = 0;; tries++, place += 64) {
        if (tries == NEAR && place + 256 + 64 < t->n)
            place = t->n - 256 - 64;
        while (place + 64 + 256 > t->cap)
            if (!grow(t))
                return 0;
        uint64_t fits = ~bits_at(t->places, place);
        for (size_t i = 0; i < n && fits; i++)
            fits &= ~bits_at(t->taken, place + bytes[i]);
        if (fits)
            return place + (size_t)__builtin_ctzll(fits);
    }
}

static bool push(struct trie *t, struct node node)
{
    if (t->n_waiting == t->cap_waiting) {
        size_t cap = t->cap_waiting ? 2 * t->cap_waiting : 1024;
        struct node *waiting = realloc(t->waiting, cap * sizeof(*waiting));
        if (!waiting)
            return false;
        t->waiting = waiting;
        t->cap_waiting = cap;
    }
    t->waiting[t->n_waiting++] = node;
    return true;
}

static unsigned char byte_at(const struct bpe_word *w, uint32_t depth)
{
    return depth < 8 ? (unsigned char)(w->head >> (56 - 8 * depth)) : w->p[depth];
}

/* Give a node with this cell children at the returned place; 0: no room. */
static size_t put_children(struct trie *t, uint32_t cell, const unsigned char *bytes, size_t n)
{
    size_t place = find_place(t, bytes, n, cell + 1);
    if (place == 0 || place + 256 > MAX_CELLS)
        return 0;
    set_bit(t->places, place);
    t->cells[cell].edge |= (uint32_t)place << 9;
    t->n = place + 256 > t->n ? place + 256 : t->n;
    for (size_t i = 0; i < n; i++) {
        set_bit(t->taken, place + bytes[i]);
        t->cells[place + bytes[i]].edge = 256u | bytes[i];
    }
    return place;
}

/* The rest of a token that shares no more bytes with others. */
static bool add_tail(struct trie *t, struct node node)
{
    const struct bpe_word *w = &t->words[node.lo];
    for (uint32_t i = node.depth; i < w->n; i++) {
        size_t place = put_children(t, node.cell, w->p + i, 1);
        if (place == 0)
            return false;
        node.cell = (uint32_t)place + w->p[i];
    }
    t->cells[node.cell].id = w->id;
    return true;
}

/* The node's token and children; those wait for their turn. */
static bool add_node(struct trie *t, struct node node)
{
    unsigned char bytes[256];
    uint32_t ends[256];
    size_t n = 0;
    if (node.hi - node.lo == 1)
        return add_tail(t, node);
    if (node.depth > 0 && t->words[node.lo].n == node.depth)
        t->cells[node.cell].id = t->words[node.lo++].id;
    for (uint32_t i = node.lo; i < node.hi; n++) {
        bytes[n] = byte_at(&t->words[i], node.depth);
        while (i < node.hi && byte_at(&t->words[i], node.depth) == bytes[n])
            i++;
        ends[n] = i;
    }
    if (n == 0)
        return true;
    size_t place = put_children(t, node.cell, bytes, n);
    if (place == 0)
        return false;
    for (size_t i = n; i-- > 0;) { /* the first is taken up next */
        uint32_t cell = (uint32_t)place + bytes[i];
        if (!push(t, (struct node){ i ? ends[i - 1] : node.lo, ends[i], node.depth + 1, cell }))
            return false;
    }
    return true;
}

struct bpe_cell *bpe_trie_build(struct bpe_word *words, size_t n, size_t *n_cells)
{
    struct trie t = { .words = words };
    bool ok = n > 0 && n < UINT32_MAX && sort_words(words, n) &&
              push(&t, (struct node){ 0, (uint32_t)n, 0, 0 });
    while (ok && t.n_waiting > 0)
        ok = add_node(&t, t.waiting[--t.n_waiting]);
    free(t.taken);
    free(t.places);
    free(t.waiting);
    if (!ok) {
        free(t.cells);
        return NULL;
    }
    *n_cells = t.n;
    return t.cells;
}
