/* automaton.c - the states of a grammar: sets of stacks, made as they are needed.
 *
 * A stack says what is still to be read: its top is a literal or a class, below it are sequences
 * and repetitions that go on when that is done.  Stacks share their lower parts (struct cell), equal
 * ones are one, and a state is a sorted set of them, so equal states are one, too, and every
 * transition is computed once.  A sequence whose last part has begun is not on the stack any more,
 * so lists of any length need no space. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "grammar/automaton.h"

enum {
    STATES_MAX = 60000,
    CELLS_MAX = 2000000,
    MEMBERS_MAX = 8000000,
    CLOSURE_MAX = 200000, /* steps of one closure: a schema of any size gets an answer soon */
    /* Schemas of ordinary texts have closures of some ten steps, and a few large ones where one of
     * many texts begins.  What two counts in each other make of a long text is large all the time, so
     * all large closures of a grammar together have a limit, too: some hundredths of a second. */
    CLOSURE_LARGE = 1000,
    LARGE_MAX = 2000000,
    MEMBERS_A_STEP = 64, /* cells that are only looked at cost this much less */
    UNKNOWN = -3
};

struct cell {
    const struct node *node;
    int32_t k;      /* TEXT: next byte; SEQ: next part; REPEAT: how often it was there; CHOICE: 0 */
    int32_t parent; /* -1: nothing comes after it */
    /* Closures are numbered; these say in which one it was last seen, so that no list is searched. */
    uint32_t resumed, added;
    int32_t least; /* REPEAT with k == LEAST: the smallest count that went on in `resumed` */
};

enum { LEAST = -1 };

/* A table of numbers by hash; what a number stands for is compared by the caller. */
struct table {
    int32_t *slots; /* -1: free */
    size_t size, used;
};

struct state {
    int32_t first, n; /* its cells, in g->members */
    bool ends;
    int32_t *next; /* (256), UNKNOWN where nobody has looked; NULL: nobody has at all */
};

struct grammar {
    struct arena arena; /* of the nodes */
    const struct node *root;
    struct cell *cells;
    size_t n_cells, cap_cells;
    struct state *states;
    size_t n_states, cap_states;
    int32_t *members;
    size_t n_members, cap_members;
    struct table cell_table, state_table;
    bool failed;
    /* The closure that is being computed: its number, its cells, whether it may end, and what is
     * still to be done: a list, not recursion, as a pattern of 100,000 optional parts is that deep. */
    uint32_t closure;
    int32_t *work;
    size_t n_work, cap_work;
    bool work_ends;
    struct step {
        const struct node *node; /* to begin before `cell` goes on; NULL: `cell` goes on */
        int32_t cell;
    } * steps;
    size_t n_steps, cap_steps, done_steps;
    size_t large_steps; /* of all large closures so far */
    struct mask_cache *masks;
};

struct mask_cache **grammar_masks(struct grammar *g)
{
    return &g->masks;
}

struct grammar *grammar_new(struct arena *arena, const struct node *root)
{
    struct grammar *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->arena = *arena; /* the nodes are ours from here on */
    g->root = root;
    return g;
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_states; i++)
        free(g->states[i].next);
    mask_cache_free(g->masks);
    free(g->cells);
    free(g->states);
    free(g->members);
    free(g->cell_table.slots);
    free(g->state_table.slots);
    free(g->work);
    free(g->steps);
    arena_clear(&g->arena);
    free(g);
}

/* Make room for one more of `size` bytes; false: no memory, and the grammar is of no use any more. */
static bool reserve_item(struct grammar *g, void *array, size_t *cap, size_t n, size_t size)
{
    void **at = array;
    if (n < *cap)
        return true;
    size_t more = *cap ? *cap * 2 : 64;
    void *p = realloc(*at, more * size);
    if (!p) {
        g->failed = true;
        return false;
    }
    *at = p;
    *cap = more;
    return true;
}

static uint64_t mix_hash(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_cell(const struct cell *c)
{
    return mix_hash(mix_hash((uintptr_t)c->node >> 4, (uint64_t)c->k), (uint64_t)c->parent);
}

/* Members are in one order whatever way led to them, so equal sets have equal hashes. */
static uint64_t hash_members(const int32_t *members, size_t n, bool ends)
{
    uint64_t h = ends;
    for (size_t i = 0; i < n; i++)
        h = mix_hash(h, (uint64_t)members[i]);
    return h;
}

static uint64_t hash_number(const struct grammar *g, const struct table *t, int32_t number)
{
    if (t == &g->cell_table)
        return hash_cell(&g->cells[number]);
    const struct state *s = &g->states[number];
    return hash_members(g->members + s->first, (size_t)s->n, s->ends);
}

/* Twice the size when it is half full: linear probing stays short. */
static bool grow_table(struct grammar *g, struct table *t)
{
    if (t->used * 2 < t->size)
        return true;
    struct table bigger = { .size = t->size ? t->size * 2 : 256, .used = t->used };
    bigger.slots = malloc(bigger.size * sizeof *bigger.slots);
    if (!bigger.slots) {
        g->failed = true;
        return false;
    }
    for (size_t i = 0; i < bigger.size; i++)
        bigger.slots[i] = -1;
    for (size_t i = 0; i < t->size; i++) {
        if (t->slots[i] < 0)
            continue;
        size_t at = hash_number(g, t, t->slots[i]) & (bigger.size - 1);
        while (bigger.slots[at] >= 0)
            at = (at + 1) & (bigger.size - 1);
        bigger.slots[at] = t->slots[i];
    }
    free(t->slots);
    *t = bigger;
    return true;
}

/* The number of a stack; -1: no memory. */
static int32_t intern_cell(struct grammar *g, const struct node *node, int32_t k, int32_t parent)
{
    struct cell c = { .node = node, .k = k, .parent = parent };
    if (g->failed || !grow_table(g, &g->cell_table))
        return -1;
    struct table *t = &g->cell_table;
    size_t at = hash_cell(&c) & (t->size - 1);
    for (; t->slots[at] >= 0; at = (at + 1) & (t->size - 1)) {
        const struct cell *x = &g->cells[t->slots[at]];
        if (x->node == node && x->k == k && x->parent == parent)
            return t->slots[at];
    }
    if (g->n_cells == CELLS_MAX ||
        !reserve_item(g, &g->cells, &g->cap_cells, g->n_cells, sizeof *g->cells)) {
        g->failed = true;
        return -1;
    }
    g->cells[g->n_cells] = c;
    t->slots[at] = (int32_t)g->n_cells++;
    t->used++;
    return t->slots[at];
}

/* ---- closures: what may be read next ------------------------------------------------------------ */

static void add_step(struct grammar *g, const struct node *node, int32_t cell)
{
    if (g->done_steps + g->n_steps >= CLOSURE_MAX)
        g->failed = true;
    else if (!g->failed && reserve_item(g, &g->steps, &g->cap_steps, g->n_steps, sizeof *g->steps))
        g->steps[g->n_steps++] = (struct step){ .node = node, .cell = cell };
}

static void add_work(struct grammar *g, int32_t cell)
{
    if (cell < 0 || g->cells[cell].added == g->closure)
        return;
    g->cells[cell].added = g->closure;
    if (reserve_item(g, &g->work, &g->cap_work, g->n_work, sizeof *g->work))
        g->work[g->n_work++] = cell;
}

/* Was it resumed already in this closure?  Remembers that it is now, so that circles without a byte
 * end. */
static bool is_resumed(struct grammar *g, int32_t cell)
{
    if (cell < 0 || g->cells[cell].resumed == g->closure)
        return true;
    g->cells[cell].resumed = g->closure;
    return false;
}

/* Begin a node, after which `parent` goes on.  What matches no finite text is not begun at all:
 * that is why no state is a dead end. */
static void expand_node(struct grammar *g, const struct node *x, int32_t parent)
{
    if (!x->productive)
        return;
    switch (x->kind) {
    case NODE_TEXT:
        if (x->n == 0)
            add_step(g, NULL, parent);
        else
            add_work(g, intern_cell(g, x, 0, parent));
        break;
    case NODE_CLASS:
        add_work(g, intern_cell(g, x, 0, parent));
        break;
    case NODE_SEQ:
        if (x->n == 0)
            add_step(g, NULL, parent);
        else
            add_step(g, x->parts[0], x->n == 1 ? parent : intern_cell(g, x, 1, parent));
        break;
    case NODE_CHOICE: /* only a choice refers to what it is part of */
        if (!is_resumed(g, intern_cell(g, x, 0, parent)))
            for (int32_t i = 0; i < x->n; i++)
                add_step(g, x->parts[i], parent);
        break;
    case NODE_REPEAT:
        add_step(g, NULL, intern_cell(g, x, 0, parent));
        break;
    }
}

/* Is there a smaller count that went on in this closure?  All that this one can read that one can,
 * too, once both have their minimum; so `(a?){99999}` has few states, not 99,999. */
static bool is_covered(struct grammar *g, const struct cell *c)
{
    if (c->k < c->node->min)
        return false;
    int32_t at = intern_cell(g, c->node, LEAST, c->parent);
    if (at < 0)
        return true;
    struct cell *least = &g->cells[at];
    if (least->resumed == g->closure && least->least <= c->k)
        return true;
    least->resumed = g->closure;
    least->least = c->k;
    return false;
}

/* What was above a cell is done. */
static void resume_cell(struct grammar *g, int32_t cell)
{
    if (cell < 0) {
        g->work_ends = true;
        return;
    }
    if (is_resumed(g, cell))
        return;
    const struct cell c = g->cells[cell]; /* a copy: the array may move */
    const struct node *x = c.node;
    if (x->kind == NODE_SEQ) {
        int32_t rest = c.k + 1 == x->n ? c.parent : intern_cell(g, x, c.k + 1, c.parent);
        add_step(g, x->parts[c.k], rest);
        return;
    }
    if (is_covered(g, &c))
        return;
    /* A repetition without limit need not count beyond its minimum. */
    if (c.k >= x->min)
        add_step(g, NULL, c.parent);
    if (x->max < 0 || c.k < x->max)
        add_step(g, x->parts[0],
                 intern_cell(g, x, x->max < 0 && c.k >= x->min ? x->min : c.k + 1, c.parent));
}

static void run_steps(struct grammar *g)
{
    while (g->n_steps && !g->failed) {
        struct step s = g->steps[--g->n_steps];
        g->done_steps++;
        if (s.node)
            expand_node(g, s.node, s.cell);
        else
            resume_cell(g, s.cell);
    }
}

static int compare_cells(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Count a closure that looked at so many cells. */
static void count_closure(struct grammar *g, size_t looked_at)
{
    size_t steps = g->done_steps + g->n_work + looked_at / MEMBERS_A_STEP;
    if (steps > CLOSURE_LARGE)
        g->large_steps += steps;
    if (g->large_steps > LARGE_MAX)
        g->failed = true;
}

/* The state of the closure that was collected. */
static int32_t intern_state(struct grammar *g)
{
    if (g->failed || !grow_table(g, &g->state_table))
        return GRAMMAR_NO_MEMORY;
    if (g->n_work == 0 && !g->work_ends)
        return GRAMMAR_DEAD;
    if (g->n_work)
        qsort(g->work, g->n_work, sizeof *g->work, compare_cells);
    struct table *t = &g->state_table;
    size_t at = hash_members(g->work, g->n_work, g->work_ends) & (t->size - 1);
    for (; t->slots[at] >= 0; at = (at + 1) & (t->size - 1)) {
        const struct state *s = &g->states[t->slots[at]];
        if ((size_t)s->n == g->n_work && s->ends == g->work_ends &&
            (s->n == 0 || memcmp(g->members + s->first, g->work, g->n_work * sizeof *g->work) == 0))
            return t->slots[at];
    }
    if (g->n_states == STATES_MAX || g->n_members + g->n_work > MEMBERS_MAX ||
        !reserve_item(g, &g->states, &g->cap_states, g->n_states, sizeof *g->states))
        return GRAMMAR_NO_MEMORY;
    struct state s = { .first = (int32_t)g->n_members,
                       .n = (int32_t)g->n_work,
                       .ends = g->work_ends };
    for (size_t i = 0; i < g->n_work; i++) {
        if (!reserve_item(g, &g->members, &g->cap_members, g->n_members, sizeof *g->members))
            return GRAMMAR_NO_MEMORY;
        g->members[g->n_members++] = g->work[i];
    }
    g->states[g->n_states] = s;
    t->slots[at] = (int32_t)g->n_states++;
    t->used++;
    return t->slots[at];
}

static void begin_closure(struct grammar *g)
{
    g->closure++; /* from 1 on: no cell has been seen in closure 0 */
    g->n_work = g->n_steps = g->done_steps = 0;
    g->work_ends = false;
}

int32_t grammar_start(struct grammar *g)
{
    begin_closure(g);
    add_step(g, g->root, -1);
    run_steps(g);
    count_closure(g, 0);
    return intern_state(g);
}

/* One step of the subset construction: every cell that takes the byte goes on.  Its result is interned
 * and kept, so that each pair of state and byte is computed once however long the text gets. */
static int32_t compute_next(struct grammar *g, int32_t state, unsigned char byte)
{
    begin_closure(g);
    const int32_t first = g->states[state].first, n = g->states[state].n;
    for (int32_t i = 0; i < n; i++) {
        const struct cell c = g->cells[g->members[first + i]];
        const struct node *x = c.node;
        if (x->kind == NODE_CLASS) {
            if (x->set[byte / 64] >> byte % 64 & 1)
                add_step(g, NULL, c.parent);
        } else if ((unsigned char)x->text[c.k] == byte) {
            if (c.k + 1 < x->n)
                add_work(g, intern_cell(g, x, c.k + 1, c.parent));
            else
                add_step(g, NULL, c.parent);
        }
    }
    run_steps(g);
    count_closure(g, (size_t)n);
    return intern_state(g);
}

int32_t grammar_next(struct grammar *g, int32_t state, unsigned char byte)
{
    struct state *s = &g->states[state];
    if (!s->next) {
        s->next = malloc(256 * sizeof *s->next);
        if (!s->next)
            return GRAMMAR_NO_MEMORY;
        for (int i = 0; i < 256; i++)
            s->next[i] = UNKNOWN;
    }
    if (s->next[byte] != UNKNOWN)
        return s->next[byte];
    int32_t to = compute_next(g, state, byte);
    if (to != GRAMMAR_NO_MEMORY)
        g->states[state].next[byte] = to; /* the array of states may have moved */
    return to;
}

bool grammar_may_end(const struct grammar *g, int32_t state)
{
    return g->states[state].ends;
}

bool grammar_must_end(const struct grammar *g, int32_t state)
{
    return g->states[state].ends && g->states[state].n == 0;
}
