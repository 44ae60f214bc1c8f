/* tok_json.c - from the text of a tokenizer.json to a block of tables.
 *
 * One pass in the usual key order; a "model" that comes before its pre-tokenizer, or merges that
 * come before their vocabulary, are kept aside.  What is not vocabulary or merges, a few KB, is
 * copied into the block as JSON and read again by tok_load.c, so that a prebuilt file and a fresh
 * load take the same way. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/load/tok_config.h"
#include "tokenizer/load/tok_json.h"
#include "tokenizer/load/tok_component.h"

/* One file on its way into the builder.  Raw JSON points into the file. */
struct loading {
    const struct tok_source *source;
    struct arena arena;
    struct bpe_builder builder;
    struct json_str version, added, normalizer, pre, post, decoder, model; /* raw; s NULL: none */
    struct buf settings; /* the model object without vocabulary and merges */
    struct json_writer w;
    bool has_model, has_pre, has_vocab;
    bool built; /* vocabulary and merges are in the builder */
    tinker_error *err;
};

/* TINKER_EINVAL; the caller adds the name of the file. */
static tinker_status refuse_file(struct loading *l, const char *what)
{
    return err_set(l->err, TINKER_EINVAL, "%s", what);
}

static tinker_status refuse_json(struct loading *l, const struct json_reader *r, const char *where)
{
    return err_set(l->err, TINKER_EINVAL, "%s: %s", where, json_error(r));
}

/* ---- the model ------------------------------------------------------------------------------- */

/* "vocab": {"token": id, …}. */
static tinker_status read_vocab(struct loading *l, struct json_reader *r)
{
    struct json_str token;
    json_begin_object(r);
    while (json_next_key(r, &token)) {
        int64_t id;
        if (!json_int64(r, &id))
            break;
        if (id < 0 || id >= BPE_MAX_ID) /* tables are as long as the largest id */
            return err_set(l->err, TINKER_EINVAL, "model.vocab: the id %lld is out of range",
                           (long long)id);
        /* The builder keeps the texts; the reader's buffer is used again for the next one. */
        tinker_status status =
            bpe_builder_token(&l->builder, (uint32_t)id, token.s, token.n, l->err);
        if (status != TINKER_OK) {
            err_prefix(l->err, "model.vocab");
            return status;
        }
    }
    l->has_vocab = true; /* merges can be resolved from now on */
    if (r->failed)
        return refuse_json(l, r, "model.vocab");
    tinker_status status = bpe_builder_index(&l->builder, l->err);
    if (status != TINKER_OK)
        err_prefix(l->err, "model.vocab");
    return status;
}

/* Those before it come first: one of them may be wrong, too. */
static tinker_status refuse_merge(struct loading *l, const char *what, struct json_str s)
{
    tinker_status status = bpe_builder_merges_end(&l->builder, l->err);
    if (status != TINKER_OK)
        return status;
    return err_set(l->err, TINKER_EINVAL, "%.*s%s", (int)(s.n < 60 ? s.n : 60), s.s, what);
}

/* "merges": ["A B", …] or [["A", "B"], …].  The builder looks sides up some merges behind, so an
 * error counts those that were right. */
static tinker_status read_merges(struct loading *l, struct json_reader *r)
{
    struct bpe_builder *b = &l->builder;
    /* An error says the number of the merge in the list, which counts those of this call only. */
    size_t before = b->n_merges, first = 0;
    tinker_status status = TINKER_OK;
    json_begin_array(r);
    for (size_t i = 0; status == TINKER_OK && json_next_item(r); i++) {
        struct json_str s, right;
        if (json_peek(r) == JSON_ARRAY) { /* ["A", "B"] */
            json_begin_array(r);
            if (json_next_item(r) && json_string(r, &s) && json_next_item(r) &&
                json_string(r, &right) && !json_next_item(r))
                status = bpe_builder_merge(b, s.s, s.n, right.s, right.n, l->err);
            else if (!r->failed)
                status =
                    refuse_merge(l, "a merge is a pair of strings", (struct json_str){ "", 0 });
            continue;
        }
        if (!json_string(r, &s))
            break;
        if (i == 0 && s.n >= 8 && memcmp(s.s, "#version", 8) == 0) {
            first = 1; /* a comment that old converters kept */
            continue;
        }
        /* "A B": exactly one space */
        const char *space = memchr(s.s, ' ', s.n), *end = s.s + s.n;
        if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
            status = refuse_merge(l, ": not exactly one space", s);
        else
            status = bpe_builder_merge(b, s.s, (size_t)(space - s.s), space + 1,
                                       (size_t)(end - space - 1), l->err);
    }
    if (status == TINKER_OK)
        status = bpe_builder_merges_end(b, l->err);
    if (status != TINKER_OK)
        err_prefix(l->err, "model.merges[%zu]", first + b->n_merges - before);
    else if (r->failed)
        status = refuse_json(l, r, "model.merges");
    return status;
}

/* Copy a setting to the settings object and take over what the builder needs. */
static tinker_status read_setting(struct loading *l, struct json_reader *r, struct json_str key,
                                  bool merges_done)
{
    struct bpe_builder *b = &l->builder;
    struct json_str raw, text = { NULL, 0 };
    if (!json_raw(r, &raw))
        return refuse_json(l, r, "model");
    /* Copied before it is looked at, so that tok_load.c reads exactly what the file says. */
    json_put_key_n(&l->w, key.s, key.n);
    json_put_raw(&l->w, raw.s, raw.n);
    /* The value is read a second time, now that the settings have it as it is. */
    bool on = raw.n == 4 && memcmp(raw.s, "true", 4) == 0;
    struct json_reader value;
    json_reader_init(&value, raw.s, raw.n, &l->arena);
    if (json_peek(&value) == JSON_STRING)
        json_string(&value, &text);
    /* What would give other ids than the reference is refused, not ignored. */
    if (json_str_is(key, "type") && !tok_str_is(text, "BPE"))
        return err_set(l->err, TINKER_EINVAL, "model.type: \"%.*s\" is not supported", (int)text.n,
                       text.s ? text.s : "");
    if (json_str_is(key, "dropout") && json_peek(&value) == JSON_NUMBER) {
        double dropout;
        if (json_double(&value, &dropout) && dropout != 0)
            return refuse_file(l, "model.dropout: encoding at random is not supported");
    }
    if (json_str_is(key, "ignore_merges"))
        b->ignore_merges = on;
    else if (json_str_is(key, "byte_fallback"))
        b->byte_fallback = on;
    else if (json_str_is(key, "fuse_unk"))
        b->fuse_unk = on;
    else if (json_str_is(key, "unk_token"))
        b->unk = text.s, b->unk_n = text.n;
    else if (json_str_is(key, "end_of_word_suffix") && text.s)
        b->suffix = text.s, b->suffix_n = text.n;
    else if (json_str_is(key, "continuing_subword_prefix") && text.s) {
        if (text.n > 0 && merges_done) /* the results of merges were looked up without it */
            return refuse_file(l, "model.continuing_subword_prefix must come before the merges");
        b->prefix = text.s, b->prefix_n = text.n;
    }
    return TINKER_OK;
}

/* "model": vocabulary and merges go to the builder, all else to the settings. */
static tinker_status read_model(struct loading *l, struct json_reader *r)
{
    struct json_str key, late = { NULL, 0 };
    bool has_merges = false;
    tinker_status status = TINKER_OK;
    json_writer_init(&l->w, &l->settings);
    json_put_begin_object(&l->w);
    json_begin_object(r);
    while (status == TINKER_OK && json_next_key(r, &key)) {
        if (json_str_is(key, "vocab") && json_peek(r) != JSON_OBJECT)
            return refuse_file(l, "model.vocab: only an object of a BPE model is supported");
        if (json_str_is(key, "vocab")) {
            status = read_vocab(l, r);
        } else if (json_str_is(key, "merges")) {
            /* Merges name tokens by their text, so the vocabulary must be there. */
            has_merges = true;
            if (l->has_vocab)
                status = read_merges(l, r);
            else
                json_raw(r, &late);
        } else {
            status = read_setting(l, r, key, has_merges && !late.s);
        }
    }
    json_put_end_object(&l->w);
    if (status != TINKER_OK)
        return status;
    if (r->failed)
        return refuse_json(l, r, "model");
    if (!l->has_vocab || !has_merges)
        return refuse_file(l, l->has_vocab ? "model: no merges" : "model: no vocab");
    if (late.s) { /* merges that came before their vocabulary */
        struct json_reader again;
        json_reader_init(&again, late.s, late.n, &l->arena);
        status = read_merges(l, &again);
    }
    l->built = true;
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Whether the last pre-tokenizer maps bytes to characters: then the vocabulary is in bytes. */
static tinker_status note_last_type(tinker_tokenizer *t, const struct tok_component *p,
                                    tinker_error *err)
{
    (void)err;
    t->kimi_blocks = tok_str_is(p->type, "ByteLevel"); /* a scratch flag of a scratch object */
    return TINKER_OK;
}

/* The pre-tokenizer is parsed in full later; here only its last type counts. */
static tinker_status find_byte_level(struct loading *l)
{
    tinker_tokenizer scratch; /* what tok_component_walk() hands to the callback */
    memset(&scratch, 0, sizeof(scratch));
    arena_init(&scratch.arena, SIZE_MAX);
    tinker_status status =
        tok_component_walk(&scratch, l->pre, "pre_tokenizer", note_last_type, l->err);
    l->builder.byte_level = scratch.kimi_blocks;
    arena_clear(&scratch.arena);
    return status;
}

/* The whole file. */
static tinker_status read_file(struct loading *l, struct json_reader *r)
{
    struct json_str key, *slot;
    tinker_status status = TINKER_OK;
    json_begin_object(r);
    while (status == TINKER_OK && json_next_key(r, &key)) {
        if (json_str_is(key, "model")) {
            if (l->has_model)
                return refuse_file(l, "two objects called \"model\"");
            l->has_model = true;
            if (!l->has_pre) { /* it says whether the vocabulary is in bytes: later */
                json_raw(r, &l->model);
                continue;
            }
            status = find_byte_level(l);
            if (status == TINKER_OK)
                status = read_model(l, r);
            continue;
        }
        slot = json_str_is(key, "version")          ? &l->version
               : json_str_is(key, "added_tokens")   ? &l->added
               : json_str_is(key, "normalizer")     ? &l->normalizer
               : json_str_is(key, "pre_tokenizer")  ? &l->pre
               : json_str_is(key, "post_processor") ? &l->post
               : json_str_is(key, "decoder")        ? &l->decoder
                                                    : NULL;
        if (slot) {
            /* The vocabulary was built with the first one. */
            if (slot == &l->pre && l->built)
                return refuse_file(l, "two objects called \"pre_tokenizer\"");
            l->has_pre = l->has_pre || slot == &l->pre;
            json_raw(r, slot);
        } else {
            json_skip(r);
        }
    }
    if (status != TINKER_OK)
        return status;
    if (!json_end(r))
        return err_set(l->err, TINKER_EINVAL, "%s", json_error(r));
    if (!l->has_model)
        return refuse_file(l, "no \"model\"");
    /* the only version there ever was */
    if (l->version.s && !(l->version.n == 5 && memcmp(l->version.s, "\"1.0\"", 5) == 0))
        return err_set(l->err, TINKER_EINVAL, "version %.*s is unknown", (int)l->version.n,
                       l->version.s);
    return TINKER_OK;
}

/* What the file does not have is left out. */
static void put_component(struct json_writer *w, const char *key, struct json_str raw)
{
    if (!raw.s)
        return;
    json_put_key(w, key);
    json_put_raw(w, raw.s, raw.n);
}

static tinker_status build_from_json(struct loading *l, struct os_map *block)
{
    struct json_reader r;
    json_reader_init(&r, l->source->json, l->source->json_n, &l->arena);
    tinker_status status = read_file(l, &r);
    if (status == TINKER_OK && !l->built) { /* "model" came before "pre_tokenizer", or alone */
        struct json_reader model;
        json_reader_init(&model, l->model.s, l->model.n, &l->arena);
        status = find_byte_level(l);
        if (status == TINKER_OK)
            status = read_model(l, &model);
    }
    struct tok_config config;
    struct tok_added *list = NULL;
    size_t n = 0;
    if (status == TINKER_OK)
        status =
            tok_config_read(&config, l->source->config, l->source->config_n, &l->arena, l->err);
    if (status == TINKER_OK)
        status = tok_added_read(&list, &n, l->added, &config, &l->arena, l->err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        status = bpe_builder_added(&l->builder, &list[i].id, list[i].content.s, list[i].content.n,
                                   list[i].special, l->err);
    if (status != TINKER_OK)
        return status;
    /* The file without vocabulary and merges. */
    struct buf rest;
    struct json_writer w;
    buf_init(&rest, SIZE_MAX);
    json_writer_init(&w, &rest);
    json_put_begin_object(&w);
    put_component(&w, "added_tokens", l->added);
    put_component(&w, "normalizer", l->normalizer);
    put_component(&w, "pre_tokenizer", l->pre);
    put_component(&w, "post_processor", l->post);
    put_component(&w, "decoder", l->decoder);
    put_component(&w, "model", (struct json_str){ l->settings.data, l->settings.len });
    json_put_end_object(&w);
    if (!buf_ok(&rest) || !buf_ok(&l->settings))
        status = err_nomem(l->err, "tokenizer");
    else
        status = bpe_builder_finish(&l->builder, rest.data, rest.len, l->source->config,
                                    l->source->config_n, l->source->lenient, block, l->err);
    buf_clear(&rest);
    return status;
}

tinker_status tok_build_json(const struct tok_source *source, struct os_map *block,
                             tinker_error *err)
{
    struct loading l = { .source = source, .err = err };
    arena_init(&l.arena, SIZE_MAX);
    buf_init(&l.settings, 1 << 22); /* a few hundred bytes in real files */
    bpe_builder_init(&l.builder, false);
    tinker_status status = build_from_json(&l, block);
    bpe_builder_clear(&l.builder);
    buf_clear(&l.settings);
    arena_clear(&l.arena);
    return status;
}
