/* gguf_scores.c - see gguf_scores.h. */
#include "engine/gguf/gguf_scores.h"

#include <string.h>
#include "base/err.h"
#include "base/map.h"

bool gguf_read_merge(struct json_reader *r, struct json_str part[2])
{
    if (json_peek(r) != JSON_STRING)
        return json_begin_array(r) && json_next_item(r) && json_string(r, &part[0]) &&
               json_next_item(r) && json_string(r, &part[1]) && !json_next_item(r);
    struct json_str both;
    if (!json_string(r, &both))
        return false;
    const char *space = memchr(both.s, ' ', both.n);
    if (!space)
        return false;
    part[0] = (struct json_str){ both.s, (size_t)(space - both.s) };
    part[1] = (struct json_str){ space + 1, both.n - part[0].n - 1 };
    return true;
}

/* Index + 1 of the normal token of this text; 0: there is none. */
static size_t find_normal(const struct map *ids, const char *s, size_t n)
{
    return (size_t)(uintptr_t)map_get(ids, s, n);
}

/* In how many places a token can be cut into two that are tokens. */
static size_t count_cuts(const struct map *ids, struct json_str text)
{
    size_t n = 0;
    for (size_t cut = 1; cut < text.n; cut++)
        n += find_normal(ids, text.s, cut) && find_normal(ids, text.s + cut, text.n - cut);
    return n;
}

struct merges {
    const struct gguf_token *tokens;
    size_t n;
    struct map ids;   /* texts of normal tokens to index + 1 */
    uint32_t *listed; /* of each token: cuts that are in the list */
    float *scores;
};

/* The first merge that makes a token is its rank: the earlier, the higher its score. */
static bool read_ranks(struct merges *m, struct json_str list, struct arena *arena)
{
    struct json_reader r;
    struct json_str part[2];
    size_t rank = 0;
    json_reader_init(&r, list.s, list.n, arena);
    json_begin_array(&r);
    while (json_next_item(&r)) {
        if (!gguf_read_merge(&r, part))
            return false;
        char *text =
            arena_printf(arena, "%.*s%.*s", (int)part[0].n, part[0].s, (int)part[1].n, part[1].s);
        size_t id = text ? find_normal(&m->ids, text, part[0].n + part[1].n) : 0;
        rank++;
        if (id && m->scores[id - 1] > 0)
            m->scores[id - 1] = -(float)rank;
        /* Cuts into tokens of other types are in some lists and not in others. */
        if (id && find_normal(&m->ids, part[0].s, part[0].n) &&
            find_normal(&m->ids, part[1].s, part[1].n))
            m->listed[id - 1]++;
    }
    /* What no merge makes, single characters above all, comes after everything that one does. */
    for (size_t i = 0; i < m->n; i++)
        if (m->scores[i] > 0)
            m->scores[i] = m->tokens[i].type == TOKEN_NORMAL ? -(float)(rank + 1 + i) : 0;
    return json_end(&r);
}

/* Of a token all cuts must be listed, or none (converters forget the one whose score is 0): else the
 * list says more than scores can.  That is so where byte pairs were learned without SentencePiece. */
static tinker_status check_cuts(const struct merges *m, tinker_error *err)
{
    for (size_t i = 0; i < m->n; i++) {
        struct json_str text = m->tokens[i].text;
        if (m->listed[i] && m->listed[i] != count_cuts(&m->ids, text))
            return err_set(err, TINKER_EINVAL,
                           "tokenizer.json: the merges do not follow from scores of tokens, which "
                           "GGUF has instead of them: \"%.*s\" can be made in other ways, too",
                           text.n > 60 ? 60 : (int)text.n, text.s);
    }
    return TINKER_OK;
}

tinker_status gguf_scores(const struct gguf_token *tokens, size_t n, struct json_str merges,
                          struct arena *arena, float *scores, tinker_error *err)
{
    struct merges m = { .tokens = tokens, .n = n, .scores = scores };
    bool complete = true;
    m.listed = arena_array(arena, n, sizeof(*m.listed));
    if (!m.listed)
        return err_nomem(err, "scores");
    map_init(&m.ids);
    for (size_t i = 0; complete && i < n; i++) {
        scores[i] = 1; /* none yet */
        if (tokens[i].type == TOKEN_NORMAL && tokens[i].text.s && tokens[i].text.n)
            complete = map_put(&m.ids, tokens[i].text.s, tokens[i].text.n,
                               (void *)(uintptr_t)(i + 1), NULL);
    }
    tinker_status status = complete ? TINKER_OK : err_nomem(err, "scores");
    if (complete && !read_ranks(&m, merges, arena))
        status = err_set(err, TINKER_EINVAL, "tokenizer.json: merges are not pairs of texts");
    if (status == TINKER_OK)
        status = check_cuts(&m, err);
    map_clear(&m.ids);
    return status;
}
