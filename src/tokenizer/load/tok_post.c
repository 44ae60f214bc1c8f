/* tok_post.c - post-processors: the template that is put around a text.
 *
 * Only single texts are encoded, so a template is two lists of ids: before and after. */
#include <string.h>
#include "base/err.h"
#include "tokenizer/load/tok_component.h"

/* Append an id to one of the two lists. */
static tinker_status put_template_id(tinker_tokenizer *t, bool after, int64_t id, tinker_error *err)
{
    int32_t **list = after ? &t->after : &t->before;
    size_t *n = after ? &t->n_after : &t->n_before;
    if (id < 0 || id >= BPE_MAX_ID)
        return err_set(err, TINKER_EINVAL, "the id %lld is out of range", (long long)id);
    *list = arena_grow(&t->arena, *list, *n * sizeof(**list), (*n + 1) * sizeof(**list));
    if (!*list)
        return err_nomem(err, "template");
    (*list)[(*n)++] = (int32_t)id;
    return TINKER_OK;
}

/* Put the ids that special_tokens lists for `name`. */
static tinker_status put_named_ids(tinker_tokenizer *t, struct json_str table, struct json_str name,
                                   bool after, tinker_error *err)
{
    struct json_reader r;
    struct json_str key, field;
    bool found = false;
    tinker_status status = TINKER_OK;
    json_reader_init(&r, table.s ? table.s : "{}", table.s ? table.n : 2, &t->arena);
    json_begin_object(&r);
    /* {"name": {"id": …, "ids": […], "tokens": […]}} */
    while (json_next_key(&r, &key) && status == TINKER_OK) {
        if (key.n != name.n || memcmp(key.s, name.s, name.n) != 0) {
            json_skip(&r);
            continue;
        }
        json_begin_object(&r);
        while (json_next_key(&r, &field) && status == TINKER_OK) {
            int64_t *ids;
            size_t n;
            if (!json_str_is(field, "ids")) {
                json_skip(&r);
                continue;
            }
            if (!json_array_int64(&r, &ids, &n))
                break;
            found = true;
            for (size_t i = 0; i < n && status == TINKER_OK; i++)
                status = put_template_id(t, after, ids[i], err);
        }
    }
    if (status != TINKER_OK)
        return status;
    if (r.failed)
        return err_set(err, TINKER_EINVAL, "special_tokens: %s", json_error(&r));
    if (!found)
        return err_set(err, TINKER_EINVAL,
                       "the template names \"%.*s\", which special_tokens lacks", (int)name.n,
                       name.s);
    return TINKER_OK;
}

/* TemplateProcessing: what stands before the sequence, and behind it. */
static tinker_status add_template(tinker_tokenizer *t, const struct tok_component *p,
                                  tinker_error *err)
{
    struct json_reader r;
    bool after = false;
    t->n_before = t->n_after = 0; /* an earlier template is replaced */
    json_reader_init(&r, p->single.s ? p->single.s : "[]", p->single.s ? p->single.n : 2,
                     &t->arena);
    json_begin_array(&r);
    while (json_next_item(&r)) {
        struct json_str special = { NULL, 0 };
        bool sequence = false;
        /* {"SpecialToken": {"id": …}} or {"Sequence": {"id": "A"}} */
        struct json_str key, field;
        json_begin_object(&r);
        while (json_next_key(&r, &key)) {
            bool is_special = json_str_is(key, "SpecialToken");
            sequence = sequence || json_str_is(key, "Sequence");
            json_begin_object(&r);
            while (json_next_key(&r, &field)) {
                if (is_special && json_str_is(field, "id"))
                    json_string(&r, &special);
                else
                    json_skip(&r);
            }
        }
        if (r.failed)
            break;
        if (sequence) /* the text itself; what follows comes behind it */
            after = true;
        if (special.s) {
            tinker_status status = put_named_ids(t, p->special_tokens, special, after, err);
            if (status != TINKER_OK)
                return status;
        }
    }
    return r.failed ? err_set(err, TINKER_EINVAL, "single: %s", json_error(&r)) : TINKER_OK;
}

/* ["text", id] */
static tinker_status put_token_pair(tinker_tokenizer *t, struct json_str json, bool after,
                                    tinker_error *err)
{
    struct json_reader r;
    struct json_str text; /* the id is enough */
    int64_t id = -1;
    json_reader_init(&r, json.s ? json.s : "", json.n, &t->arena);
    if (!json_begin_array(&r) || !json_next_item(&r) || !json_string(&r, &text) ||
        !json_next_item(&r) || !json_int64(&r, &id))
        return err_set(err, TINKER_EINVAL, "expected [\"token\", id]");
    return put_template_id(t, after, id, err);
}

/* One component of the file; of several templates the last one counts. */
static tinker_status add_post(tinker_tokenizer *t, const struct tok_component *p, tinker_error *err)
{
    if (tok_str_is(p->type, "TemplateProcessing"))
        return add_template(t, p, err);
    if (tok_str_is(p->type, "ByteLevel")) { /* about spans only */
        t->trim_offsets = p->trim_offsets != 0;
        t->trim_prefix_space = p->add_prefix_space != 0;
        return TINKER_OK;
    }
    /* cls text sep; RoBERTa also trims spans */
    bool roberta = tok_str_is(p->type, "RobertaProcessing");
    if (!roberta && !tok_str_is(p->type, "BertProcessing"))
        return tok_component_refuse(p, err);
    if (roberta) {
        t->trim_offsets = p->trim_offsets != 0;
        t->trim_prefix_space = p->add_prefix_space != 0;
    }
    t->n_before = t->n_after = 0;
    tinker_status status = put_token_pair(t, p->cls, false, err);
    return status == TINKER_OK ? put_token_pair(t, p->sep, true, err) : status;
}

tinker_status tok_parse_post(tinker_tokenizer *t, struct json_str json, tinker_error *err)
{
    return tok_component_walk(t, json, "post_processor", add_post, err);
}
