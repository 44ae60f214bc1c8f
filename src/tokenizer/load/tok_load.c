/* tok_load.c - from a block of tables to a tokenizer.
 *
 * The block carries the components of the file as JSON; they are read here, whether the block was
 * just made or mapped from a prebuilt file.  Their strings point into the block. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/load/tok_config.h"
#include "tokenizer/tok_decode.h"
#include "tokenizer/load/tok_json.h"
#include "tokenizer/load/tok_component.h"
#include "unicode/unicode.h"

/* The last reference is gone, or loading failed half way. */
static void destroy_tokenizer(tinker_tokenizer *t)
{
    if (t->functions && t->functions->free)
        t->functions->free(t->functions->state);
    while (t->idle) { /* all contexts were given back: no call is in progress */
        struct tok_ctx *next = t->idle->next;
        tok_ctx_free(t->idle);
        t->idle = next;
    }
    for (size_t i = 0; i < t->n_norms; i++)
        split_regex_free(t->norms[i].regex);
    for (size_t i = 0; i < t->n_pres; i++)
        split_regex_free(t->pres[i].regex);
    for (size_t i = 0; i < t->n_decs; i++)
        split_regex_free(t->decs[i].regex);
    tok_trie_clear(&t->raw);
    tok_trie_clear(&t->normalized);
    map_clear(&t->odd);
    free(t->pairs);
    os_map_close(&t->slot_map);
    os_map_close(&t->block);
    pthread_mutex_destroy(&t->lock);
    arena_clear(&t->arena);
    free(t);
}

/* The reference that brings the count to 0 destroys; the default order makes what other threads
 * did before they gave theirs back visible here. */
void tinker_tokenizer_free(tinker_tokenizer *t)
{
    if (t && atomic_fetch_sub(&t->refs, 1) == 1)
        destroy_tokenizer(t);
}

tinker_tokenizer *tinker_tokenizer_ref(tinker_tokenizer *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

/* ---- components ------------------------------------------------------------------------------ */

/* Tokens that a piece can never be are found by their spelling. */
static tinker_status index_odd_tokens(tinker_tokenizer *t, tinker_error *err)
{
    const struct bpe *b = &t->bpe;
    struct buf spelled;
    bool ok = true;
    buf_init(&spelled, SIZE_MAX);
    /* the added ones, mostly */
    for (uint32_t id = 0; id < b->n_ids && ok; id++) {
        if ((b->flags[id] & (BPE_TOKEN | BPE_PLAIN)) != BPE_TOKEN)
            continue;
        buf_reset(&spelled);
        tok_spell(t, id, &spelled);
        ok = buf_ok(&spelled) && map_put(&t->odd, spelled.data ? spelled.data : "", spelled.len,
                                         (void *)(uintptr_t)(id + 1), NULL);
    }
    buf_clear(&spelled);
    return ok ? TINKER_OK : err_nomem(err, "vocabulary");
}

/* Added tokens of both files: their ids, and the two matchers. */
static tinker_status load_added(tinker_tokenizer *t, struct json_str json,
                                const struct tok_config *config, tinker_error *err)
{
    tinker_status status = tok_added_read(&t->added, &t->n_added, json, config, &t->arena, err);
    for (size_t i = 0; status == TINKER_OK && i < t->n_added; i++) {
        struct tok_added *a = &t->added[i];
        /* The tables gave it its id, which need not be the one that the file asks for. */
        int32_t id = tinker_tokenizer_id(t, a->content.s, a->content.n);
        if (id < 0)
            return err_set(err, TINKER_EINVAL, "added token \"%.*s\" is not in the tables",
                           (int)(a->content.n < 60 ? a->content.n : 60), a->content.s);
        a->id = (uint32_t)id;
        if (!a->normalized) { /* taken literally */
            status = tok_trie_add(&t->raw, a->content.s, a->content.n, (uint32_t)i, err);
            continue;
        }
        /* found in normalized text, so it is its own normal form that is looked for */
        struct tok_text text = { a->content.s, a->content.n, NULL };
        struct tok_ctx *c = tok_ctx_take(t);
        status = c ? tok_normalize(t, c, &text, err) : err_nomem(err, "added tokens");
        if (status == TINKER_OK)
            status = tok_trie_add(&t->normalized, text.s, text.n, (uint32_t)i, err);
        if (c)
            tok_ctx_give(t, c);
    }
    tok_trie_done(&t->raw);
    tok_trie_done(&t->normalized);
    return status;
}

/* The settings of the model that only encoding needs. */
static tinker_status load_model(tinker_tokenizer *t, struct json_str json, tinker_error *err)
{
    struct json_reader r;
    struct json_str key, unk = { NULL, 0 };
    struct bpe *b = &t->bpe;
    bool on;
    json_reader_init(&r, json.s ? json.s : "{}", json.s ? json.n : 2, &t->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        struct json_str text = { NULL, 0 };
        if (json_peek(&r) == JSON_STRING) {
            json_string(&r, &text);
            if (json_str_is(key, "unk_token"))
                unk = text;
            else if (json_str_is(key, "continuing_subword_prefix"))
                b->prefix = text.s, b->prefix_n = text.n;
            else if (json_str_is(key, "end_of_word_suffix"))
                b->suffix = text.s, b->suffix_n = text.n;
        } else if (json_peek(&r) == JSON_BOOL && json_bool(&r, &on)) {
            if (json_str_is(key, "byte_fallback"))
                b->byte_fallback = on;
            else if (json_str_is(key, "fuse_unk"))
                b->fuse_unk = on;
        } else {
            json_skip(&r);
        }
    }
    if (r.failed)
        return err_set(err, TINKER_EINVAL, "model: %s", json_error(&r));
    if (unk.s) { /* may be a token that the vocabulary does not have: then there is none */
        int32_t id = tinker_tokenizer_id(t, unk.s, unk.n);
        b->unk = id < 0 ? BPE_NONE : (uint32_t)id;
        t->special[TINKER_TOKEN_UNK] = id;
    }
    return TINKER_OK;
}

/* Roles of tokens, chat template and length, by tokenizer_config.json. */
static tinker_status load_config(tinker_tokenizer *t, const struct tok_config *config,
                                 tinker_error *err)
{
    for (int i = 0; i < 4; i++)
        if (config->special[i].s)
            t->special[i] = tinker_tokenizer_id(t, config->special[i].s, config->special[i].n);
    if (config->chat_template.s) {
        t->chat_template =
            arena_strndup(&t->arena, config->chat_template.s, config->chat_template.n);
        if (!t->chat_template)
            return err_nomem(err, "chat template");
    }
    if (config->max_length > 0 && config->max_length < 1e15) /* Python writes 1e30 for "none" */
        t->max_length = (int64_t)config->max_length;
    /* The Python class for Llama ignores the file's template and builds its own from two flags. */
    struct json_str c = config->class;
    if (!c.s || (!json_str_is(c, "LlamaTokenizerFast") && !json_str_is(c, "LlamaTokenizer")))
        return TINKER_OK;
    t->n_before = t->n_after = 0;
    t->before = arena_array(&t->arena, 2, sizeof(*t->before));
    if (!t->before)
        return err_nomem(err, "template");
    t->after = t->before + 1;
    if (config->add_bos != 0 && t->special[TINKER_TOKEN_BOS] >= 0) /* on unless switched off */
        t->before[t->n_before++] = t->special[TINKER_TOKEN_BOS];
    if (config->add_eos == 1 && t->special[TINKER_TOKEN_EOS] >= 0) /* off unless switched on */
        t->after[t->n_after++] = t->special[TINKER_TOKEN_EOS];
    return TINKER_OK;
}

/* ---- fast paths ------------------------------------------------------------------------------ */

/* The one matcher that does what all pre-tokenizers do, or NULL. */
static split_fn *find_direct_split(const tinker_tokenizer *t)
{
    /* Split, ..., Split, ByteLevel that only maps bytes, which a byte-level vocabulary does not
     * need; or ByteLevel alone with its own pattern. */
    const char *patterns[3];
    size_t lengths[3], n = t->n_pres;
    if (n == 0 || n > 4 || !t->bpe.byte_level)
        return NULL;
    const struct tok_pre *last = &t->pres[n - 1];
    if (last->kind != PRE_BYTE_LEVEL || last->prefix_space)
        return NULL;
    if (last->use_regex)
        return n == 1 ? split_known(split_gpt2_pattern, strlen(split_gpt2_pattern)) : NULL;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tok_pre *s = &t->pres[i];
        /* both keep all of the text, as a known matcher leaves no gaps */
        bool isolated = (s->behavior == SPLIT_ISOLATED && !s->invert) ||
                        (n == 2 && s->behavior == SPLIT_REMOVED && s->invert);
        if (s->kind != PRE_SPLIT || !s->pattern.s || !isolated)
            return NULL;
        patterns[i] = s->pattern.s;
        lengths[i] = s->pattern.n;
    }
    return n > 1 ? split_known_chain(patterns, lengths, n - 1) : NULL;
}

/* Mark the pairs of characters that stand side by side in some token; false: out of memory.
 * A char-level piece may be cut where no token reaches over, if every character has a symbol of
 * its own: a token, or byte tokens. */
static bool find_char_pairs(tinker_tokenizer *t)
{
    const struct bpe *b = &t->bpe;
    /* with affixes the symbol of a character depends on its place in the piece */
    bool all = b->byte_fallback && (b->header->flags & BPE_HAS_ALL_BYTES);
    /* byte-level vocabularies are split by patterns; ignore_merges looks at whole pieces */
    if (b->byte_level || b->ignore_merges || !all || b->prefix_n > 0 || b->suffix_n > 0)
        return true;
    t->pairs = calloc(((size_t)1 << TOK_PAIR_BITS) / 8, 1);
    if (!t->pairs)
        return false;
    for (uint32_t id = 0; id < b->n_ids; id++) {
        size_t n;
        const char *p = bpe_bytes(b, id, &n);
        unsigned len;
        uint32_t before = 0;
        for (size_t i = 0; (b->flags[id] & BPE_PLAIN) && i < n; i += len) {
            uint32_t cp = uni_decode((const unsigned char *)p + i, &len);
            size_t bit = tok_pair_bit(before, cp);
            if (i > 0)
                t->pairs[bit / 8] |= (unsigned char)(1u << bit % 8);
            /* A token that holds the spelling of a byte token, which stands for one byte of a
             * character, may reach over places that this does not see. */
            if (cp == '<' && n > 6 && n - i >= 6 && tok_byte_token(p + i, 6) >= 0) {
                free(t->pairs);
                t->pairs = NULL;
                return true;
            }
            before = cp;
        }
    }
    return true;
}

/* Everything that the block says as JSON.  The order matters: added tokens are looked up in the
 * vocabulary and normalized, and the configuration may replace the template. */
static tinker_status load_components(tinker_tokenizer *t, tinker_error *err)
{
    const struct bpe_header *h = t->bpe.header;
    const char *base = (const char *)h;
    struct json_str key, added = { NULL, 0 }, norm = added, pre = added, post = added, dec = added;
    struct json_str model = added;
    struct json_reader r;
    struct tok_config config;
    bool kimi = false;
    /* Keys may come in any order, so all are found before the first is read. */
    json_reader_init(&r, base + h->json_at, h->json_n, &t->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        struct json_str *slot = json_str_is(key, "added_tokens")     ? &added
                                : json_str_is(key, "normalizer")     ? &norm
                                : json_str_is(key, "pre_tokenizer")  ? &pre
                                : json_str_is(key, "post_processor") ? &post
                                : json_str_is(key, "decoder")        ? &dec
                                : json_str_is(key, "model")          ? &model
                                                                     : NULL;
        if (slot)
            json_raw(&r, slot);
        else if (json_str_is(key, "kimi_blocks"))
            json_bool(&r, &kimi);
        else
            json_skip(&r);
    }
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "%s", json_error(&r));
    t->kimi_blocks = kimi;
    tinker_status status =
        tok_config_read(&config, base + h->config_at, h->config_n, &t->arena, err);
    if (status == TINKER_OK)
        status = index_odd_tokens(t, err);
    if (status == TINKER_OK)
        status = load_model(t, model, err);
    if (status == TINKER_OK)
        status = tok_parse_normalizer(t, norm, err);
    if (status == TINKER_OK)
        status = tok_parse_pre(t, pre, err);
    if (status == TINKER_OK)
        status = tok_parse_decoder(t, dec, err);
    if (status == TINKER_OK)
        status = tok_parse_post(t, post, err);
    if (status == TINKER_OK)
        status = load_added(t, added, &config, err);
    if (status == TINKER_OK)
        status = load_config(t, &config, err);
    if (status != TINKER_OK)
        return status;
    t->direct = find_direct_split(t);
    t->rules = split_rules_of(t->direct);
    return find_char_pairs(t) ? TINKER_OK : err_nomem(err, "tokenizer");
}

tinker_tokenizer *tok_from_block(struct os_map block, tinker_error *err)
{
    tinker_tokenizer *t = calloc(1, sizeof(*t));
    if (!t || pthread_mutex_init(&t->lock, NULL) != 0) {
        free(t);
        os_map_close(&block);
        err_nomem(err, "tokenizer");
        return NULL;
    }
    /* From here on destroy_tokenizer() can deal with it. */
    atomic_init(&t->refs, 1);
    arena_init(&t->arena, SIZE_MAX);
    map_init(&t->odd);
    t->block = block;
    for (int i = 0; i < 4; i++)
        t->special[i] = -1;
    tinker_status status = bpe_open(&t->bpe, block.data, block.len, err);
    if (status == TINKER_OK)
        status = load_components(t, err);
    if (status == TINKER_OK)
        return t;
    destroy_tokenizer(t);
    return NULL;
}

/* Fresh tables take the same way from here as prebuilt ones: one way to be tested. */
tinker_tokenizer *tok_load(const struct tok_source *source, tinker_error *err)
{
    struct os_map block;
    tinker_status status =
        source->ranks ? tok_build_ranks(source, &block, err) : tok_build_json(source, &block, err);
    return status == TINKER_OK ? tok_from_block(block, err) : NULL;
}
