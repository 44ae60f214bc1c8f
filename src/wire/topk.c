/* topk.c - see topk.h. */
#include "wire/topk.h"

#include <math.h>
#include <string.h>

enum { TOPK_MAX = 4096 }; /* per position */

/* Rows of unequal length, gathered before the matrix has a width. */
struct topk_rows {
    struct topk_row {
        const int32_t *tokens;
        const float *logprobs;
        size_t n;
    } * v;
    size_t n, cap, widest;
};

/* One [token, logprob] pair. Exactly two items: a third one is an error, not ignored. */
static bool read_pair(struct wire_reader *r, int32_t *token, float *logprob)
{
    int64_t id = 0;
    double lp = 0;
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    if (!json_next_item(&r->json) || !wire_read_int(r, &id) || !json_next_item(&r->json) ||
        !wire_read_double(r, &lp) || json_next_item(&r->json))
        /* A fault of the JSON text itself comes first; it says more than this message. */
        return wire_read_ok(r) && wire_read_fail(r, "expected pairs of token and logprob");
    if (id < INT32_MIN || id > INT32_MAX)
        return wire_read_fail(r, "token %lld does not fit 32 bits", (long long)id);
    *token = (int32_t)id;
    /* As precise as protobuf, which carries these numbers as float32. */
    *logprob = (float)lp;
    return wire_read_ok(r);
}

/* [[token, logprob], ...], or null for a position without any. */
static bool read_row(struct wire_reader *r, struct topk_row *row)
{
    int32_t *tokens = NULL;
    float *logprobs = NULL;
    size_t cap = 0;
    *row = (struct topk_row){ 0 };
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    while (json_next_item(&r->json)) {
        /* How long a row is becomes known only at its end. Two lists that grow in turn are copied
         * each time, for only the last allocation of an arena grows in place; rows are short. */
        if (row->n == cap) {
            size_t more = cap ? cap * 2 : 8;
            tokens = arena_grow(r->arena, tokens, cap * sizeof *tokens, more * sizeof *tokens);
            logprobs =
                arena_grow(r->arena, logprobs, cap * sizeof *logprobs, more * sizeof *logprobs);
            if (!tokens || !logprobs)
                return wire_read_nomem(r);
            cap = more;
        }
        if (!read_pair(r, &tokens[row->n], &logprobs[row->n]))
            return false;
        row->n++;
    }
    row->tokens = tokens;
    row->logprobs = logprobs;
    return wire_read_ok(r);
}

/* Rows may be shorter than the widest one; what they lack is unused. */
static bool rows_to_matrix(struct wire_reader *r, const char *name, const struct topk_rows *rows,
                           struct topk_matrix *out)
{
    out->rows = rows->n;
    /* All rows are null: a matrix without columns, of which only the number of rows is told. */
    if (rows->widest == 0)
        return true;
    if (rows->n > SIZE_MAX / rows->widest)
        return wire_read_nomem(r);
    /* Memory follows what was sent: a pair takes at least five bytes, so a matrix of more cells
     * than the text has bytes is mostly padding. 65,536 cells of it are allowed, for null rows. */
    size_t cells = rows->n * rows->widest, text = (size_t)(r->json.end - r->json.start);
    if (cells > text && cells - text > 16 * TOPK_MAX)
        return wire_read_fail(r, "%s: too few of the %zu cells are given", name, cells);
    /* Row-major, rows x widest. */
    int32_t *tokens = arena_array(r->arena, cells, sizeof *tokens);
    float *logprobs = arena_array(r->arena, cells, sizeof *logprobs);
    if (!tokens || !logprobs)
        return wire_read_nomem(r);
    for (size_t i = 0; i < rows->n; i++) {
        for (size_t j = 0; j < rows->widest; j++) {
            /* Token 0 is a valid id, so the logprob tells an unused cell. */
            bool there = j < rows->v[i].n;
            tokens[i * rows->widest + j] = there ? rows->v[i].tokens[j] : 0;
            logprobs[i * rows->widest + j] = there ? rows->v[i].logprobs[j] : TOPK_UNUSED;
        }
    }
    out->tokens = tokens;
    out->logprobs = logprobs;
    out->k = rows->widest;
    return true;
}

/* Row by row, each with its own width; the matrix is made when the widest is known. */
static bool read_rows(struct wire_reader *r, struct topk_rows *rows)
{
    struct wire_place place = { .up = r->place };
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    r->place = &place;
    while (json_next_item(&r->json)) {
        place.index = rows->n;
        if (rows->n == rows->cap) {
            size_t cap = rows->cap ? rows->cap * 2 : 16, size = sizeof rows->v[0];
            rows->v = cap > SIZE_MAX / size
                          ? NULL
                          : arena_grow(r->arena, rows->v, rows->cap * size, cap * size);
            rows->cap = cap;
            if (!rows->v) {
                wire_read_nomem(r);
                break;
            }
        }
        if (!read_row(r, &rows->v[rows->n]))
            break;
        /* A limit per position: a peer must not choose the width of the matrix. */
        size_t n = rows->v[rows->n++].n;
        if (n > TOPK_MAX && !wire_read_fail(r, "more than %d entries", TOPK_MAX))
            break;
        rows->widest = n > rows->widest ? n : rows->widest;
    }
    r->place = place.up;
    return wire_read_ok(r);
}

/* For streams, where every token brings its own row. */
bool topk_read_row(struct wire_reader *r, const int32_t **tokens, const float **logprobs, size_t *n)
{
    struct topk_row row;
    if (!read_row(r, &row))
        return false;
    *tokens = row.tokens;
    *logprobs = row.logprobs;
    *n = row.n;
    return row.n <= TOPK_MAX || wire_read_fail(r, "more than %d entries", TOPK_MAX);
}

bool topk_read(struct wire_reader *r, const char *name, struct topk_matrix *out)
{
    struct topk_rows rows = { 0 };
    *out = (struct topk_matrix){ 0 };
    return read_rows(r, &rows) && rows_to_matrix(r, name, &rows, out);
}

/* A row without its unused end, or null when all of it is unused. An unused cell before a used one
 * is written, so that the others keep their ranks. */
static bool write_row(struct wire_writer *w, const int32_t *tokens, const float *logprobs, size_t k)
{
    while (k && tokens[k - 1] == 0 && logprobs[k - 1] == TOPK_UNUSED)
        k--;
    if (k == 0) {
        json_put_null(&w->json);
        return true;
    }
    json_put_begin_array(&w->json);
    for (size_t j = 0; j < k; j++) {
        /* JSON has no text for the -infinity of a token that was excluded. */
        if (!isfinite(logprobs[j]))
            return wire_write_fail(w, "must be finite");
        json_put_begin_array(&w->json);
        json_put_int64(&w->json, tokens[j]);
        json_put_float(&w->json, logprobs[j]);
        json_put_end_array(&w->json);
    }
    json_put_end_array(&w->json);
    return true;
}

/* Nothing is written for a matrix that was not asked for. */
bool topk_write(struct wire_writer *w, const char *name, const struct topk_matrix *m)
{
    if (!m->tokens || !m->logprobs)
        return true;
    json_put_key(&w->json, name);
    json_put_begin_array(&w->json);
    for (size_t i = 0; i < m->rows; i++)
        if (!write_row(w, m->tokens + i * m->k, m->logprobs + i * m->k, m->k))
            return false;
    json_put_end_array(&w->json);
    return true;
}
