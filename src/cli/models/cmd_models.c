/* cmd_models.c - `tinker models`, `models pull` and `models rm`: models of this machine and of the
 * service, what they take, and what fits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/chat.h>
#include <tinker/extra/renderer.h>
#include <tinker/rest.h>
#include <tinker/tokenizer.h>

#include "base/array.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/models/hf_download.h"
#include "cli/models/hf_token.h"
#include "cli/models/local_models.h"
#include "cli/output/confirm.h"
#include "cli/output/fmt.h"
#include "cli/output/names_cache.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"

/* One line: a model of this machine, of the service, or of both. */
struct entry {
    const char *name;
    const struct local_model *local; /* NULL: not on this machine */
    int64_t context;                 /* -1: unknown */
    bool served;
};

/* What people ask first: is it here, so that it works without a network? */
static const char *describe_place(const struct entry *e)
{
    return e->served && e->local ? "service, here" : e->served ? "service" : e->local->place;
}

/* Compared with memory that is free now.  "" when nothing is known: a model of the service needs
 * none here. */
static const char *describe_fit(const struct local_model *m, char text[LOCAL_FIT_MAX])
{
    return m ? local_models_fit(m, text) : "";
}

/* The tokenizer of a model, from its directory or from the cache; NULL: not on this machine. */
static tinker_tokenizer *load_tokenizer(const struct entry *e)
{
    tinker_error err;
    if (e->local && !e->local->has_tokenizer)
        return NULL;
    return tinker_tokenizer_load(e->local ? e->local->dir : e->name, NULL, &err);
}

/* `renderer` and the tokenizer column say whether training on text would work with this model
 * here. */
static void add_entry_row(struct listing *l, const struct entry *e)
{
    char text[FMT_TEXT], fit[LOCAL_FIT_MAX];
    tinker_tokenizer *tokenizer = load_tokenizer(e);
    const char *renderer = tinker_renderer_for(e->name, tokenizer); /* a constant */
    double rate = e->local ? local_models_rate(e->name, e->local->hidden) : 0;
    const char *size = e->local ? fmt_size(e->local->weight_bytes, text) : "";
    listing_cell(l, e->name);
    listing_cell(l, describe_place(e));
    listing_cell(l, size);
    if (e->context > 0)
        listing_cellf(l, "%lld", (long long)e->context);
    else
        listing_cell(l, "");
    listing_cell(l, describe_fit(e->local, fit));
    listing_cell(l, renderer);
    listing_cell(l, tokenizer ? "yes" : "no");
    struct json_writer *w = listing_object(l);
    json_put_begin_object(w);
    rows_put_text(w, "model", e->name);
    json_put_key(w, "served");
    json_put_bool(w, e->served);
    rows_put_text(w, "directory", e->local ? e->local->dir : NULL);
    rows_put_text(w, "type", e->local && e->local->type[0] ? e->local->type : NULL);
    rows_put_count(w, "size_bytes", e->local ? e->local->weight_bytes : -1);
    bool loads = e->local && e->local->loads;
    json_put_key(w, "loads");
    if (e->local)
        json_put_bool(w, loads);
    else
        json_put_null(w);
    rows_put_text(w, "problem", e->local && !loads ? e->local->problem : NULL);
    rows_put_count(w, "memory_bytes", loads ? e->local->weights : -1);
    rows_put_count(w, "needs_bytes", loads ? e->local->training : -1);
    rows_put_count(w, "context_bytes", loads ? e->local->context_cache : -1);
    rows_put_count(w, "trains_tokens", loads ? e->local->trains : -1);
    rows_put_count(w, "trains_tokens_q4", loads ? e->local->trains_q4 : -1);
    rows_put_count(w, "context", e->context > 0 ? e->context : -1);
    rows_put_text(w, "renderer", renderer);
    json_put_key(w, "tokenizer");
    json_put_bool(w, tokenizer != NULL);
    rows_put_real(w, "suggested_lr", rate > 0 ? rate : NAN);
    json_put_end_object(w);
    listing_object_end(l);
    tinker_tokenizer_free(tokenizer);
}

/* What a model takes in memory, or why it does not load. */
static void show_needs(struct listing *l, const struct local_model *m)
{
    char text[FMT_TEXT];
    if (!m->loads) {
        rows_property(l, "Does not load", m->problem);
        return;
    }
    rows_property(l, "Memory to load", fmt_size(m->weights, text));
    rows_property(l, "Memory to train", fmt_size(m->training, text));
    listing_cell(l, "Longest text to train");
    if (m->trains_q4 > m->trains)
        listing_cellf(l, "%lld tokens, with --dtype q4 %lld", (long long)m->trains,
                      (long long)m->trains_q4);
    else
        listing_cellf(l, "%lld tokens", (long long)m->trains);
    rows_property(l, "Memory of a full context", fmt_size(m->context_cache, text));
}

/* All that is known of one model.
 * Rows without a value are left out rather than shown empty: a model of the service has no files
 * here. */
static int show_model(const struct entry *e)
{
    struct listing l;
    char text[FMT_TEXT], fit[LOCAL_FIT_MAX], title[300];
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Model", e->name);
    rows_property(&l, "Where", describe_place(e));
    if (e->local) {
        rows_property(&l, "Directory", e->local->dir);
        rows_property(&l, "Architecture", e->local->type);
        listing_cell(&l, "Layers, hidden size");
        listing_cellf(&l, "%lld, %lld", (long long)e->local->layers, (long long)e->local->hidden);
        rows_property(&l, "Weights", fmt_size(e->local->weight_bytes, text));
        show_needs(&l, e->local);
        rows_property(&l, "Fits here", describe_fit(e->local, fit));
    }
    if (e->context > 0) {
        listing_cell(&l, "Context");
        listing_cellf(&l, "%lld", (long long)e->context);
    }
    tinker_tokenizer *tokenizer = load_tokenizer(e);
    rows_property(&l, "Renderer", tinker_renderer_for(e->name, tokenizer));
    /* The first recommendation is the renderer itself, above. */
    for (size_t i = 1; tinker_renderer_recommended(e->name, i); i++)
        rows_property(&l, "  - or", tinker_renderer_recommended(e->name, i));
    rows_property(&l, "Tokenizer here", tokenizer ? "yes" : "no");
    tinker_tokenizer_free(tokenizer);
    double rate = e->local ? local_models_rate(e->name, e->local->hidden) : 0;
    if (rate > 0) {
        listing_cell(&l, "Suggested learning rate");
        listing_cellf(&l, "%.2g", rate);
    }
    struct listing json;
    listing_init(&json, rows_properties, 2);
    add_entry_row(&json, e);
    /* The object of the list is the object of the one. */
    buf_append(&l.objects, json.objects.data, json.objects.len);
    listing_clear(&json);
    snprintf(title, sizeof(title), "Model: %s", e->name);
    return listing_print_one(&l, title);
}

static const struct local_model *find_local(const struct local_models *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->v[i].name, name) == 0)
            return &all->v[i];
    return NULL;
}

/* Models of the service first, then the others of this machine; name (may be NULL): only that.
 * A model that is in both lists is one entry with both sides. */
static size_t list_entries(const tinker_capabilities *c, const struct local_models *here,
                           const char *name, struct entry *out)
{
    size_t n = 0;
    for (size_t i = 0; c && i < c->n; i++) {
        const tinker_supported_model *m = tinker_supported_model_at(c, i);
        if (m->name && (!name || strcmp(name, m->name) == 0))
            out[n++] = (struct entry){ .name = m->name,
                                       .local = find_local(here, m->name),
                                       .context = m->max_context_length,
                                       .served = true };
    }
    /* Only these can be named twice: local names differ from each other. */
    size_t served = n;
    for (size_t i = 0; i < here->n; i++) {
        const struct local_model *m = &here->v[i];
        bool listed = name && strcmp(name, m->name) != 0;
        for (size_t k = 0; k < served; k++)
            listed = listed || strcmp(out[k].name, m->name) == 0;
        if (!listed)
            out[n++] = (struct entry){ .name = m->name, .local = m, .context = m->context };
    }
    return n;
}

/* One name that is nowhere is an error with the command that fetches it; an empty list is not. */
static int show_entries(const tinker_capabilities *c, struct local_models *here, const char *name)
{
    static const char *const columns[] = { "Model",     "Where",    "Weights",  "Context",
                                           "Fits here", "Renderer", "Tokenizer" };
    /* At most every model of both lists. */
    struct entry *entries = calloc((c ? c->n : 0) + here->n + 1, sizeof(*entries));
    struct listing l;
    char title[64];
    int status;
    if (!entries)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    size_t n = list_entries(c, here, name, entries);
    for (size_t i = 0; i < here->n; i++)
        if (!name || strcmp(name, here->v[i].name) == 0)
            local_models_measure(&here->v[i]);
    if (name && !n) {
        char hint[300];
        snprintf(hint, sizeof(hint), "tinker models lists them; tinker models pull %s fetches one.",
                 name);
        status = out_fail(EXIT_NOT_FOUND, hint, "no model %s", name);
    } else if (name) {
        status = show_model(&entries[0]);
    } else {
        listing_init(&l, columns, ARRAY_LEN(columns));
        for (size_t i = 0; i < n; i++)
            add_entry_row(&l, &entries[i]);
        snprintf(title, sizeof(title), "%zu model%s", n, n == 1 ? "" : "s");
        /* For the shell's completion, which asks nobody at run time. */
        names_cache_keep("models", &l, 0);
        status = listing_print(&l, title, "{\"models\":[");
    }
    free(entries);
    return status;
}

/* Also lists without a service: a machine that is offline still knows its own models. */
int cmd_models(int argc, char **argv)
{
    const char *name = NULL;
    bool server_only = false, local_only = false;
    const struct opt opts[] = {
        { .name = "server-only",
          .kind = OPT_FLAG,
          .help = "only those of the service",
          .out = &server_only },
        { .name = "local-only",
          .kind = OPT_FLAG,
          .help = "only those of this machine; asks no service",
          .out = &local_only },
    };
    const struct opt_arg args[] = { { .name = "NAME", .out = &name, .optional = true } };
    const struct opt_spec spec = {
        .command = "models",
        .about = "List the models of this machine and of the service, what they take and whether\n"
                 "they fit; with NAME all about one.  Also: tinker models pull, tinker models rm.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker models tinker/tiny"
    };
    struct api a;
    struct local_models here = { 0 };
    tinker_future *f = NULL;
    int status = EXIT_OK;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (server_only && local_only)
        return opt_usage_error(&spec, "--server-only and --local-only exclude each other.");
    /* --local-only works offline and starts no engine. */
    bool connected = !local_only && api_open(&a, &status);
    if (connected)
        f = api_get_capabilities(&a, &status);
    if (status == EXIT_OK && !server_only && !local_models_find(&here))
        status = out_fail(EXIT_FAILED, NULL, "out of memory");
    /* The engine of this command has the bundled model alone: nothing that is not listed anyway. */
    bool remote = f && !a.local.engine;
    if (status == EXIT_OK)
        status =
            show_entries(remote || server_only ? tinker_future_capabilities(f) : NULL, &here, name);
    local_models_clear(&here);
    tinker_future_free(f);
    if (connected)
        api_close(&a);
    return status;
}

/* The folder is the Hub's own cache, so that transformers and other tools find the same files,
 * and files that they fetched are not fetched again. */
int cmd_models_pull(int argc, char **argv)
{
    const char *id = NULL, *token = NULL, *quant = NULL;
    bool tokenizer_only = false;
    const struct opt opts[] = {
        { .name = "tokenizer-only",
          .kind = OPT_FLAG,
          .help = "leave out the weights: enough to use a model of a service",
          .out = &tokenizer_only },
        { .name = "quant",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "of a repository of GGUF files, e.g. Q8_0 (default: Q4_K_M, or a near one)",
          .out = &quant },
        { .name = "hf-token",
          .kind = OPT_STRING,
          .value = "TOKEN",
          .help = "for gated models (default: HF_TOKEN, or the file of hf auth login)",
          .out = &token },
    };
    const struct opt_arg args[] = { { .name = "NAME", .out = &id } };
    const struct opt_spec spec = {
        .command = "models pull",
        .about = "Fetch a model from the Hugging Face Hub into its cache.  What was begun is\n"
                 "continued, and every file is checked.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker models pull Qwen/Qwen3-0.6B"
    };
    tinker_error err;
    int status;
    char dir[MODEL_DIR_MAX];
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!model_dir_is_id(id))
        return opt_usage_error(
            &spec, "'%s' is not an id of the Hub, OWNER/NAME: Qwen/Qwen3-0.6B is one.", id);
    /* Options first: the token of this command line wins over the environment and the file. */
    hf_set_token(token);
    tinker_status got =
        tokenizer_only ? hf_download_tokenizer(id, dir, &err) : hf_download_model(id, quant, &err);
    if (got != TINKER_OK)
        /* A refused id is "not found", since the Hub does not say whether it is missing or
         * gated. */
        return out_fail(got == TINKER_ECONNECT || got == TINKER_ETIMEDOUT ? EXIT_NETWORK
                        : got == TINKER_EINVAL                            ? EXIT_NOT_FOUND
                        : got == TINKER_EPROTOCOL                         ? EXIT_FAILED
                                                                          : EXIT_IO,
                        NULL, "%s", err.message);
    /* stdout is the directory alone, for scripts; the hint goes to stderr. */
    if (tokenizer_only || model_dir_cached(id, dir))
        puts(dir);
    out_say(tokenizer_only ? "Ready: %s" : "Next: tinker chat -m %s", id);
    return EXIT_OK;
}

/* Removes the folder of the cache with all its snapshots, also an unfinished one. */
int cmd_models_rm(int argc, char **argv)
{
    const char *id = NULL;
    const struct opt_arg args[] = { { .name = "NAME", .out = &id } };
    const struct opt_spec spec = {
        .command = "models rm",
        .about = "Remove a model from the Hugging Face cache of this machine.",
        .args = args,
        .n_args = 1,
        .example = "tinker models rm Qwen/Qwen3-0.6B"
    };
    char folder[MODEL_FOLDER_MAX], size[FMT_TEXT];
    struct local_models here;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!model_dir_is_id(id))
        return opt_usage_error(&spec, "'%s' is not an id of the Hub, OWNER/NAME.", id);
    model_dir_folder(id, folder);
    /* Checked before the question, which would otherwise ask about nothing. */
    if (!os_is_dir(folder))
        return out_fail(EXIT_NOT_FOUND, "tinker models --local-only lists what is here.",
                        "%s is not in the cache", id);
    local_models_find(&here);
    const struct local_model *m = find_local(&here, id);
    /* Gigabytes that took an hour to fetch are not deleted by a typing error; --yes skips the
     * question. */
    bool go = confirm_ask(&status, "Remove %s (%s) from %s?", id,
                          m ? fmt_size(m->weight_bytes, size) : "unfinished", folder);
    local_models_clear(&here);
    if (!go)
        return status;
    if (os_remove_tree(folder, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    out_say("Removed %s", id);
    return EXIT_OK;
}
