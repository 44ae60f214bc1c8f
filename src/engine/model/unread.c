/* unread.c - see unread.h. */
#include "engine/model/unread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/map.h"
#include "engine/safetensors/weight_files.h"

/* What is all zeros is looked for in vectors only: a matrix of zeros is not left behind by chance. */
enum { VECTOR_MAX = 1 << 20 };

struct reading {
    const tinker_engine *e;
    struct map read; /* stored names of the tensors that the model reads */
    size_t layers;
    char prefix[ENGINE_NAME]; /* of the layers in the files: "model.layers." */
    char head[ENGINE_NAME];   /* name of the head in the files */
    char embed[ENGINE_NAME];
    bool tied;
};

static void put_file_name(const tinker_engine *e, const char *module, const char *suffix,
                          char out[ENGINE_NAME])
{
    char name[ENGINE_NAME], stored[ENGINE_NAME];
    snprintf(name, sizeof(name), "%s%s", module, suffix);
    snprintf(out, ENGINE_NAME, "%s", engine_file_name(e, name, stored));
}

/* A visitor of model_tensors(). */
static tinker_status note_read(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct reading *r = state;
    char stored[ENGINE_NAME];
    const char *name = engine_file_name(r->e, at->name, stored);
    return map_put(&r->read, name, strlen(name), r, NULL) ? TINKER_OK : err_nomem(err, at->name);
}

static bool is_zero(const struct st_tensor *t)
{
    const char *p = t->data;
    if (t->bytes > VECTOR_MAX)
        return false;
    for (size_t i = 0; i < t->bytes; i++)
        if (p[i] != 0)
            return false;
    return true;
}

static bool name_ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* Which of the stacks or single matrices of experts is read, expert_stack.c decides. */
static bool is_of_experts(const struct arch *arch, const char *in_layer)
{
    const char *of[] = { arch->names->experts, arch->names->other_experts };
    for (size_t i = 0; i < 2; i++)
        if (arch->moe && of[i] && strncmp(in_layer, of[i], strlen(of[i])) == 0)
            return true;
    return false;
}

/* The head of a tied model is the embedding, whatever a file has in its place. */
static tinker_status check_head(const struct reading *r, const struct st_tensor *t,
                                tinker_error *err)
{
    const struct st_tensor *embed = weight_files_find(r->e->files, r->embed, NULL);
    bool same = embed && embed->dtype == t->dtype && embed->bytes == t->bytes &&
                memcmp(embed->data, t->data, t->bytes) == 0;
    os_map_evict(t->data, t->bytes); /* nobody reads it again */
    if (same)
        return TINKER_OK;
    return err_set(
        err, TINKER_EINVAL,
        "%s: %s is not the embedding, but tie_word_embeddings of config.json is true, as "
        "it is by default for some models: set it to false to use these weights, or "
        "remove them",
        r->e->dir, t->name);
}

static tinker_status check_tensor(const struct reading *r, const struct st_tensor *t,
                                  tinker_error *err)
{
    size_t n = strlen(r->prefix);
    if (map_get(&r->read, t->name, strlen(t->name)))
        return TINKER_OK;
    if (r->tied && strcmp(t->name, r->head) == 0)
        return check_head(r, t, err);
    if (strncmp(t->name, r->prefix, n) != 0)
        return TINKER_OK; /* vision, layers that predict further tokens */
    char *rest;
    unsigned long layer = strtoul(t->name + n, &rest, 10);
    if (layer >= r->layers)
        return err_set(err, TINKER_EINVAL,
                       "%s: there is a tensor %s, but config.json says %zu layers", r->e->dir,
                       t->name, r->layers);
    if (*rest != '.' || is_of_experts(r->e->arch, rest + 1) ||
        name_ends_with(t->name, "rotary_emb.inv_freq") || is_zero(t))
        return TINKER_OK;
    return err_set(err, TINKER_EINVAL, "%s: tensor %s would be left out: %s models have none%s",
                   r->e->dir, t->name, r->e->arch->name,
                   name_ends_with(t->name, ".bias") ? " unless config.json switches biases on"
                                                    : "");
}

tinker_status unread_check(const tinker_engine *e, const struct model_config *c, tinker_error *err)
{
    struct reading r = { .e = e, .layers = c->layers, .tied = c->tied };
    map_init(&r.read);
    put_file_name(e, e->names->layers, ".", r.prefix);
    put_file_name(e, e->names->head, ".weight", r.head);
    put_file_name(e, e->names->embed, ".weight", r.embed);
    tinker_status status = model_tensors(c, note_read, &r, err);
    for (size_t f = 0; status == TINKER_OK && f < e->files->n; f++)
        for (size_t i = 0; status == TINKER_OK && i < e->files->files[f].n; i++)
            status = check_tensor(&r, &e->files->files[f].tensors[i], err);
    map_clear(&r.read);
    return status;
}
