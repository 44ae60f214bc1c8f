/* rows_render.c - rows to training data: tokens, weights, what is too long, what is double. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/map.h"
#include "base/sha.h"
#include "recipe/rows.h"

/* Messages of a conversation with its tools declared before them; a leading system message becomes
 * part of the declaration.  free() the array; the texts live in the conversation and *prefix. */
static tinker_message *declare_tools(const tinker_renderer *r, const tinker_conversation *c,
                                     tinker_conversation **prefix, size_t *n, tinker_error *err)
{
    const tinker_message *m = c->messages;
    size_t skip = c->n_messages > 0 && strcmp(m[0].role, "system") == 0 && !m[0].parts;
    *prefix = tinker_renderer_tool_prefix(r, c->tools, c->n_tools, skip ? m[0].content : NULL, err);
    if (!*prefix)
        return NULL;
    *n = (*prefix)->n_messages + c->n_messages - skip;
    tinker_message *all = calloc(*n + 1, sizeof(*all));
    if (all) {
        memcpy(all, (*prefix)->messages, (*prefix)->n_messages * sizeof(*all));
        memcpy(all + (*prefix)->n_messages, m + skip, (c->n_messages - skip) * sizeof(*all));
    }
    return all;
}

/* Most families put the declarations of tools into the system message, so it cannot be rendered
 * before they are known. */
static tinker_rendered *render_talk(const tinker_renderer *r, const tinker_conversation *c,
                                    tinker_train_on mode, tinker_error *err)
{
    if (c->n_tools == 0)
        return tinker_renderer_example(r, c->messages, c->n_messages, mode, err);
    tinker_conversation *prefix = NULL;
    size_t n = 0;
    tinker_message *all = declare_tools(r, c, &prefix, &n, err);
    tinker_rendered *x = all ? tinker_renderer_example(r, all, n, mode, err) : NULL;
    free(all);
    tinker_conversation_free(prefix);
    return x;
}

/* ---- one row ---- */

/* sha: over all examples, so that a run can tell whether a resumed one has the same data. seen:
 * hashes of rows, for counting duplicates. */
struct rendering {
    tinker_rows *x;
    const tinker_renderer *renderer;
    const tinker_tokenizer *tokenizer;
    struct sha256 sha;
    struct map seen;
};

static bool fail_row(struct row_problem *p, const char *reason)
{
    p->column = 1;
    snprintf(p->reason, sizeof(p->reason), "%s", reason);
    return false;
}

/* A fingerprint that two rows share when they train the same. 64 bits are enough to count
 * duplicates: a collision would only miscount. */
static void hash_example(struct rendering *g, struct row *row, const tinker_example *e)
{
    for (size_t i = 0; i < e->input.n_chunks; i++) {
        const tinker_chunk *c = &e->input.chunks[i];
        const void *bytes = c->kind == TINKER_CHUNK_TEXT ? (const void *)c->tokens : c->bytes;
        size_t n = c->kind == TINKER_CHUNK_TEXT ? c->n_tokens * sizeof(*c->tokens) : c->n_bytes;
        if (!n)
            continue;
        sha256_update(&g->sha, bytes, n);
        row->hash = hash_bytes(bytes, n, row->hash);
    }
    if (e->weights) {
        sha256_update(&g->sha, e->weights, e->n_tokens * sizeof(float));
        row->hash = hash_bytes(e->weights, e->n_tokens * sizeof(float), row->hash);
    }
}

/* Make the datum of an example.  A row to be left out has none and is no problem. Pairs are
 * never averaged: preference losses sum the logprobs of an answer. A row that is too long and
 * loses all its trained tokens by the cut is left out like one that is dropped; one that has
 * none to begin with is a mistake. */
static bool take_example(struct rendering *g, struct row *row, int side, const tinker_example *e,
                         struct row_problem *p)
{
    const tinker_rows_options *o = &g->x->opts;
    tinker_error err;
    hash_example(g, row, e);
    size_t over = o->max_length && e->n_tokens > o->max_length ? e->n_tokens - o->max_length : 0;
    if (over && o->on_truncate == TINKER_TRUNCATE_FAIL) {
        snprintf(p->reason, sizeof(p->reason), "longer than --max-length by %zu tokens", over);
        p->column = 1;
        return false;
    }
    if (over && o->on_truncate == TINKER_TRUNCATE_DROP)
        return true;
    bool pair = row->talk[1] != NULL;
    row->datum[side] = tinker_training_row_new(e, o->max_length,
                                               pair ? TINKER_REDUCTION_NONE : o->reduction, &err);
    if (!row->datum[side])
        return fail_row(p, err.message);
    if (row->datum[side]->n_trained > 0)
        return true;
    if (!over)
        return fail_row(p, "nothing to train on: no assistant message");
    tinker_training_row_free(row->datum[side]);
    row->datum[side] = NULL;
    return true;
}

/* Of a pair only the last answer differs, so only that is trained. */
static bool render_conversation(struct rendering *g, struct row *row, int side,
                                struct row_problem *p)
{
    tinker_error err;
    if (!g->renderer)
        return fail_row(p, "a conversation needs a renderer");
    tinker_train_on mode = row->talk[1] ? TINKER_TRAIN_LAST_ASSISTANT_MESSAGE : g->x->opts.train_on;
    tinker_rendered *r = render_talk(g->renderer, row->talk[side], mode, &err);
    if (!r)
        return fail_row(p, err.message);
    bool ok = take_example(g, row, side, &r->examples[0], p);
    tinker_rendered_free(r);
    return ok;
}

/* Without weights every token is trained. */
static bool take_tokens(struct rendering *g, struct row *row, const int32_t *tokens,
                        const float *weights, size_t n, struct row_problem *p)
{
    float *ones = weights ? NULL : calloc(n + 1, sizeof(*ones));
    for (size_t i = 0; ones && i < n; i++)
        ones[i] = 1;
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = n };
    tinker_example e = { { &chunk, 1 }, weights ? weights : ones, n };
    bool ok = take_example(g, row, 0, &e, p);
    free(ones);
    return ok;
}

/* Raw text begins as the tokenizer begins texts and ends with its end token. */
static bool render_text(struct rendering *g, struct row *row, struct row_problem *p)
{
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_error err;
    int32_t end = tinker_tokenizer_special(g->tokenizer, TINKER_TOKEN_EOS);
    o.add_special = 1;
    bool ok = tinker_tokenizer_encode(g->tokenizer, row->text.s, row->text.n, &o, &ids, &err) ==
                  TINKER_OK &&
              (end < 0 || (ids.n && ids.ids[ids.n - 1] == end) ||
               tinker_tokens_append(&ids, &end, 1, &err) == TINKER_OK);
    ok = ok ? take_tokens(g, row, ids.ids, NULL, ids.n, p) : fail_row(p, err.message);
    tinker_tokens_clear(&ids);
    return ok;
}

/* An id outside the vocabulary would be refused by the service in the middle of a run. */
static bool render_tokens(struct rendering *g, struct row *row, struct row_problem *p)
{
    int32_t most = tinker_tokenizer_max_id(g->tokenizer);
    for (size_t i = 0; i < row->n_tokens; i++)
        if (row->tokens[i] < 0 || row->tokens[i] > most) {
            snprintf(p->reason, sizeof(p->reason), "token %d is outside the vocabulary of %d",
                     (int)row->tokens[i], (int)most + 1);
            p->column = 1;
            return false;
        }
    return take_tokens(g, row, row->tokens, row->weights, row->n_tokens, p);
}

/* A row's own weight multiplies what the reduction left.  The arrays belong to the row. */
static void apply_weight(struct row *row)
{
    for (int side = 0; side < 2; side++) {
        tinker_training_row *t = row->datum[side];
        float *weights = t ? (float *)t->datum.inputs[1].tensor.data : NULL;
        for (size_t i = 0; weights && row->weight != 1 && i < t->n_targets; i++)
            weights[i] = (float)(weights[i] * row->weight);
    }
}

static bool render_row(struct rendering *g, struct row *row, struct row_problem *p)
{
    bool ok = g->x->stats.form == TINKER_FORM_TEXT     ? render_text(g, row, p)
              : g->x->stats.form == TINKER_FORM_TOKENS ? render_tokens(g, row, p)
                                                       : render_conversation(g, row, 0, p);
    if (ok && row->talk[1])
        ok = render_conversation(g, row, 1, p);
    apply_weight(row);
    return ok;
}

/* ---- all of them ---- */

/* After rendering, so the numbers are those of what is really trained. */
static bool count_row(struct rendering *g, struct row *row)
{
    tinker_rows_stats *s = &g->x->stats;
    void *before = NULL;
    for (int side = 0; side < 2 && row->datum[side]; side++) {
        const tinker_training_row *t = row->datum[side];
        s->tokens += t->n_targets + 1;
        s->trained += t->n_trained;
        s->truncated += t->n_truncated > 0;
        s->longest = t->n_targets + 1 > s->longest ? t->n_targets + 1 : s->longest;
    }
    if (!map_put(&g->seen, (const char *)&row->hash, sizeof(row->hash), row, &before))
        return false;
    s->duplicates += before != NULL;
    return true;
}

/* Rows that are kept move to the front of the array. A row is taken out of it while it is
 * rendered, so that no two entries own the same memory if this ends early. */
bool rows_render(tinker_rows *x, const tinker_renderer *renderer, const tinker_tokenizer *tokenizer)
{
    struct rendering g = { .x = x, .renderer = renderer, .tokenizer = tokenizer };
    size_t kept = 0;
    bool ok = true;
    sha256_init(&g.sha);
    map_init(&g.seen);
    for (size_t i = 0; i < x->n && ok; i++) {
        struct row row = x->rows[i];
        struct row_problem problem = { 1, "" };
        x->rows[i] = (struct row){ .line = row.line };
        if (!render_row(&g, &row, &problem))
            rows_problem(x, &row, &problem);
        if (!row.datum[0] || (row.talk[1] && !row.datum[1])) {
            x->stats.dropped++;
            row_clear(&row);
            continue;
        }
        ok = count_row(&g, &row);
        x->rows[kept++] = row;
    }
    if (ok)
        x->n = kept;
    uint8_t digest[32];
    sha256_final(&g.sha, digest);
    hex_encode(digest, sizeof(digest), x->stats.sha256);
    map_clear(&g.seen);
    return ok;
}
