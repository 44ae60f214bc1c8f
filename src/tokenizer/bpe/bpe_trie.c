/* bpe_trie.c - all tokens of a vocabulary as a tree of bytes.
 *
 * A double array: a node says where its children are, a child stands at that place plus its byte,
 * and the children of different nodes lie between one another.  As no two nodes have the same
 * place, a cell need not name its parent: its byte is enough.  The first 256 cells are empty, for
 * nodes without children; the root has no byte, and cell 0 carries its place.
 *
 * Nodes are laid out in depth first, each as near behind its parent as there is room, so that
 * walking down a token mostly stays in a cache line. */
#include "tokenizer/bpe/bpe_trie.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_CELLS = (1 << 23) - 1, /* a place has 23 bits in an edge */
    NEAR = 4,                  /* how many times 64 places are searched behind a node */
    FEW = 32,                  /* words: up to here they are sorted by comparing */
    FIRST_CELLS = 4096
};

/* ---- tokens in order: by bytes while they are many, a few by comparing ------------------------ */

/* head holds the first eight bytes, big-endian, so that most words are compared with one number. */
static int compare_words(const void *a, const void *b)
{
    const struct bpe_word *x = a, *y = b;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* Insertion sort, for up to FEW words.
 * Near the leaves most groups are a handful of tokens: moving them one by one costs less than
 * 256 counters. */
static void sort_words(struct bpe_word *words, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct bpe_word w = words[i];
        size_t k = i;
        for (; k > 0 && compare_words(&words[k - 1], &w) > 0; k--)
            words[k] = words[k - 1];
        words[k] = w;
    }
}

/* Bytes behind the end of a short word are 0 in its head; add_node() takes a word that ends at
 * `depth` out before its byte is asked for. */
static unsigned char read_byte(const struct bpe_word *w, uint32_t depth)
{
    return depth < 8 ? (unsigned char)(w->head >> (56 - 8 * depth)) : w->p[depth];
}

static void swap_words(struct bpe_word *a, struct bpe_word *b)
{
    struct bpe_word w = *a;
    *a = *b;
    *b = w;
}

/* Put words[lo..hi) in the order of their bytes at `depth`, in place; ends[c]: where those with c
 * end. */
static void partition_words(struct bpe_word *words, uint32_t lo, uint32_t hi, uint32_t depth,
                            uint32_t ends[256])
{
    uint32_t next[256], counts[256] = { 0 }, at = lo;
    for (uint32_t i = lo; i < hi; i++)
        counts[read_byte(&words[i], depth)]++;
    for (int c = 0; c < 256; c++) {
        next[c] = at;
        at += counts[c];
        ends[c] = at;
    }
    /* Swap each word into the part of its byte (American flag sort): every swap puts one right. */
    for (int c = 0; c < 256; c++)
        while (next[c] < ends[c]) {
            unsigned char is = read_byte(&words[next[c]], depth);
            if (is != c)
                swap_words(&words[next[c]], &words[next[is]]);
            next[is]++;
        }
}

/* ---- cells ------------------------------------------------------------------------------------ */

struct node { /* the tokens words[lo..hi) have `depth` bytes in common, which lead to the cell */
    uint32_t lo, hi, depth, cell;
    bool sorted;
};

/* taken: cells that are some node's child. places: positions at which some node has its children,
 * which two nodes may not share, or a cell could belong to either. */
struct trie {
    struct bpe_word *words;
    struct os_map map; /* of the cells, `front` bytes behind its start */
    size_t front;
    struct bpe_cell *cells;
    uint64_t *taken, *places; /* bits: cells in use, and places that nodes have their children at */
    size_t n, cap;            /* cells */
    struct node *waiting;
    size_t n_waiting, cap_waiting;
};

/* 64 bits from the i-th on. */
static uint64_t read_bits(const uint64_t *bits, size_t i)
{
    uint64_t low = bits[i / 64] >> (i % 64);
    return i % 64 ? low | bits[i / 64 + 1] << (64 - i % 64) : low;
}

static void set_bit(uint64_t *bits, size_t i)
{
    bits[i / 64] |= (uint64_t)1 << (i % 64);
}

/* The new part is cleared.  NULL leaves the old bits to their owner. */
static uint64_t *grow_bits(uint64_t *bits, size_t had, size_t n)
{
    uint64_t *more = realloc(bits, n * sizeof(*more));
    if (more)
        memset(more + had, 0, (n - had) * sizeof(*more));
    return more;
}

/* Room for cap cells; arrays have room for what read_bits() reads beyond. */
static bool grow_cells(struct trie *t, size_t cap)
{
    size_t words = cap / 64 + 16, had = t->cap ? t->cap / 64 + 16 : 0;
    struct os_map map;
    /* Children stand up to 256 cells behind their place, and the search looks further; four
     * times the most is beyond all of it. */
    if (cap > 4 * (size_t)MAX_CELLS)
        return false;
    /* A new map, cleared by the system: realloc() would copy, and clear by hand. */
    char *data = os_map_new(&map, t->front + cap * sizeof(struct bpe_cell));
    uint64_t *taken = data ? grow_bits(t->taken, had, words) : NULL;
    t->taken = taken ? taken : t->taken;
    uint64_t *places = taken ? grow_bits(t->places, had, words) : NULL;
    t->places = places ? places : t->places;
    if (!places) {
        os_map_close(&map);
        return false;
    }
    struct bpe_cell *cells = (struct bpe_cell *)(data + t->front);
    if (t->n > 0)
        memcpy(cells, t->cells, t->n * sizeof(*cells));
    os_map_close(&t->map);
    t->map = map;
    t->cells = cells;
    t->cap = cap;
    return true;
}

/* The first n cells are in use from now on. */
static void init_cells(struct trie *t, size_t n)
{
    for (; t->n < n; t->n++)
        t->cells[t->n].id = BPE_NONE;
}

/* Nodes wait on a stack of their own: a vocabulary may hold tokens of a million bytes, which
 * recursion would not survive. */
static bool push_node(struct trie *t, struct node node)
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

/* Give a node with this cell children with these bytes, ascending, at the returned place; 0: out of
 * memory, or no room.  The place is behind the node itself, or else where the cells in use end, so
 * that the search does not take long. */
static size_t put_children(struct trie *t, uint32_t cell, const unsigned char *bytes, size_t n)
{
    size_t from = (size_t)cell + 1, place = from > 256u + bytes[0] ? from - bytes[0] : 256;
    uint64_t fits = 0;
    /* First near the parent, for the cache; after NEAR windows at the end, so that a full region is
     * not searched again for every node. */
    for (int tries = 0;; tries++, place += 64) {
        if (tries == NEAR && place + 256 + 64 < t->n)
            place = t->n - 256 - 64;
        while (place + 64 + 256 > t->cap)
            if (!grow_cells(t, 2 * t->cap))
                return 0;
        /* 64 places at once: a bit stays set where no node has its children and the cell of every
         * child is free. */
        fits = ~read_bits(t->places, place);
        for (size_t i = 0; i < n && fits; i++)
            fits &= ~read_bits(t->taken, place + bytes[i]);
        if (fits)
            break;
    }
    place += (size_t)__builtin_ctzll(fits);
    if (place + 256 > MAX_CELLS)
        return 0;
    /* Edge: the place of the children in the upper 23 bits, "in use" in bit 8, the own byte
     * below. */
    set_bit(t->places, place);
    t->cells[cell].edge |= (uint32_t)place << 9;
    init_cells(t, place + 256);
    for (size_t i = 0; i < n; i++) {
        set_bit(t->taken, place + bytes[i]);
        t->cells[place + bytes[i]].edge = 256u | bytes[i];
    }
    return place;
}

/* Bytes and ends of the node's children, and how many.
 * A sorted group is walked; an unsorted one is parted by its bytes at this depth first. */
static size_t find_children(struct trie *t, const struct node *node, unsigned char bytes[256],
                            uint32_t ends[256])
{
    size_t n = 0;
    if (!node->sorted) {
        uint32_t at = node->lo, all[256];
        partition_words(t->words, node->lo, node->hi, node->depth, all);
        for (int c = 0; c < 256; at = all[c++])
            if (all[c] > at) {
                bytes[n] = (unsigned char)c;
                ends[n++] = all[c];
            }
        return n;
    }
    for (uint32_t i = node->lo; i < node->hi; n++) {
        bytes[n] = read_byte(&t->words[i], node->depth);
        while (i < node->hi && read_byte(&t->words[i], node->depth) == bytes[n])
            i++;
        ends[n] = i;
    }
    return n;
}

/* The node's token and children; those wait for their turn. */
static bool add_node(struct trie *t, struct node node)
{
    unsigned char bytes[256];
    uint32_t ends[256];
    if (node.hi - node.lo == 1) { /* the rest of a token that shares no more bytes with others */
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
    if (!node.sorted && node.hi - node.lo <= FEW) {
        sort_words(t->words + node.lo, node.hi - node.lo);
        node.sorted = true;
    }
    /* The token that ends here, of which there is one at most, goes first. */
    for (uint32_t i = node.lo; !node.sorted && i < node.hi; i++)
        if (t->words[i].n == node.depth) {
            swap_words(&t->words[i], &t->words[node.lo]);
            break;
        }
    if (node.depth > 0 && t->words[node.lo].n == node.depth)
        t->cells[node.cell].id = t->words[node.lo++].id;
    size_t n = find_children(t, &node, bytes, ends);
    if (n == 0)
        return true;
    size_t place = put_children(t, node.cell, bytes, n);
    if (place == 0)
        return false;
    for (size_t i = n; i-- > 0;) { /* the first is taken up next */
        struct node child = { i ? ends[i - 1] : node.lo, ends[i], node.depth + 1,
                              (uint32_t)place + bytes[i], node.sorted };
        if (!push_node(t, child))
            return false;
    }
    return true;
}

bool bpe_trie_build(struct bpe_word *words, size_t n, size_t front, struct os_map *out,
                    size_t *n_cells)
{
    struct trie t = { .words = words, .front = front };
    size_t bytes = FIRST_CELLS;
    for (size_t i = 0; i < n; i++)
        bytes += words[i].n;
    /* All bytes of all tokens are more cells than any trie of them needs. */
    bool ok = n > 0 && n < UINT32_MAX && grow_cells(&t, bytes < MAX_CELLS ? bytes : MAX_CELLS) &&
              push_node(&t, (struct node){ 0, (uint32_t)n, 0, 0, false });
    init_cells(&t, ok ? 1 : 0);
    /* A stack: the last pushed, which is the first child, comes next, so nodes are placed depth
     * first. */
    while (ok && t.n_waiting > 0)
        ok = add_node(&t, t.waiting[--t.n_waiting]);
    free(t.taken);
    free(t.places);
    free(t.waiting);
    if (!ok) {
        os_map_close(&t.map);
        return false;
    }
    /* Give back the pages behind the last cell. */
    size_t used = front + (t.n * sizeof(*t.cells) + 63) / 64 * 64;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (used + page - 1) / page * page;
    if (end < t.map.len) {
        struct os_map rest = { (const char *)t.map.data + end, t.map.len - end };
        os_map_close(&rest);
    }
    t.map.len = used;
    *out = t.map;
    *n_cells = t.n;
    return true;
}

/* The edge of a cell says which byte led there, and that it is in use (256).
 * A child's cell is at the place plus its byte, and some other node's child may stand there:
 * hence the comparison. */
uint32_t bpe_trie_find(const struct bpe *b, const unsigned char *p, size_t n)
{
    struct bpe_cell cell = b->trie[0];
    for (size_t i = 0; i < n; i++) {
        cell = b->trie[(cell.edge >> 9) + p[i]];
        if ((cell.edge & 511) != (256u | p[i]))
            return BPE_NONE;
    }
    return cell.id == BPE_NONE ? BPE_NONE : cell.id & (BPE_ASIDE - 1u);
}
