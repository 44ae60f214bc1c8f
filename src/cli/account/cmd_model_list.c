/* cmd_model_list.c - `tinker model list`: the models of a service, as the official program lists
 * them.  `tinker models` knows more about them, and those of this machine. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <tinker/extra/account.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"

/* In any case, as the official program compares.
 * ASCII case only: names of models have no other letters. */
static bool contains_word(const char *name, const char *part)
{
    size_t n = strlen(part);
    for (const char *p = name; *p; p++)
        if (strncasecmp(p, part, n) == 0)
            return true;
    return n == 0;
}

/* -1 is what the service does not say. */
static const char *name_flag(int value)
{
    return value < 0 ? "N/A" : value ? "Yes" : "No";
}

/* As in name_flag(): null is what the service does not say. */
static void put_flag(struct json_writer *w, const char *key, int value)
{
    json_put_key(w, key);
    if (value < 0)
        json_put_null(w);
    else
        json_put_bool(w, value);
}

/* Cells for people, an object for programs; names of members as the API has them. */
static void add_model_row(struct listing *l, const tinker_supported_model *m)
{
    listing_cell(l, m->name ? m->name : "N/A");
    /* -1: the service does not say. */
    if (m->max_context_length < 0)
        listing_cell(l, "N/A");
    else
        listing_cellf(l, "%lld", (long long)m->max_context_length);
    listing_cell(l, name_flag(m->trainable));
    listing_cell(l, name_flag(m->sampleable));
    struct json_writer *w = listing_object(l);
    json_put_begin_object(w);
    rows_put_text(w, "model_name", m->name);
    rows_put_count(w, "max_context_length", m->max_context_length);
    put_flag(w, "trainable", m->trainable);
    put_flag(w, "sampleable", m->sampleable);
    json_put_end_object(w);
    listing_object_end(l);
}

/* The organization is part of the message, so that a wrong account is noticed.
 * whoami may fail itself (no identity); the message then says None, as the official one does. */
static int fail_no_match(struct api *a, const char *part)
{
    tinker_error err;
    tinker_future *f = tinker_rest_whoami(a->rest, &err);
    const tinker_identity *who =
        f && api_await(f, &err) == TINKER_OK ? tinker_future_identity(f) : NULL;
    int status = out_fail(EXIT_FAILED,
                          "Run 'tinker model list' to see every model this organization can use.",
                          "No model name contains '%s' for organization %s", part,
                          who && who->org_urn ? who->org_urn : "None");
    tinker_future_free(f);
    return status;
}

/* The table of the official program, column for column: scripts that parse one read the other. */
int cmd_model_list(int argc, char **argv)
{
    static const char *const columns[] = { "Model", "Max Context", "Trainable", "Sampleable" };
    const char *part = NULL;
    const struct opt_arg args[] = { { .name = "SUBSTRING", .out = &part, .optional = true } };
    const struct opt_spec spec = {
        .command = "model list",
        .about = "List the models of the service; SUBSTRING keeps those with it in "
                 "their name.",
        .args = args,
        .n_args = 1,
        .example = "tinker model list qwen"
    };
    struct api a;
    struct listing l;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    tinker_future *f = api_get_capabilities(&a, &status);
    const tinker_capabilities *c = f ? tinker_future_capabilities(f) : NULL;
    if (c) {
        listing_init(&l, columns, ARRAY_LEN(columns));
        for (size_t i = 0; i < c->n; i++) {
            const tinker_supported_model *m = tinker_supported_model_at(c, i);
            if (!part || (m->name && contains_word(m->name, part)))
                add_model_row(&l, m);
        }
        /* No match is an error, because a script that asks for one model would go on with none. */
        if (part && !l.n) {
            listing_clear(&l);
            /* A script that asks for one model must not go on with an empty list. */
            status = fail_no_match(&a, part);
        } else {
            status = listing_print(&l, NULL, "{\"models\":[");
        }
    }
    tinker_future_free(f);
    api_close(&a);
    return status;
}
