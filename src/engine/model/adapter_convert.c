/* adapter_convert.c - the files of an adapter in the form of PEFT, without its base model's weights. */
#include <tinker/engine.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"
#include "gguf/gguf.h"
#include "base/os.h"
#include "engine/gguf/gguf_model.h"
#include "engine/model/adapter_config.h"
#include "engine/model/config.h"
#include "engine/model/peft_form.h"

enum { CONFIG_MAX = 16 << 20 };

/* What a model directory, or a GGUF file, says about its architecture. */
static tinker_status read_model_config(struct model_config *c, const char *model,
                                       struct arena *arena, tinker_error *err)
{
    tinker_status status;
    if (gguf_is_name(model)) {
        struct gguf_model m = { 0 };
        status = gguf_model_open(&m, model, err);
        if (status != TINKER_OK)
            return status;
        status = config_parse(c, model, m.config.data, m.config.len, err);
        gguf_model_close(&m);
        return status;
    }
    char *path = arena_printf(arena, "%s/config.json", model), *text;
    size_t n;
    status = path ? os_read_file(path, CONFIG_MAX, &text, &n, err) : err_nomem(err, model);
    if (status != TINKER_OK)
        return status;
    status = config_parse(c, path, text, n, err);
    free(text);
    return status;
}

/* The tensors of the file as sources; all of them must be finite matrices or stacks. */
static tinker_status list_sources(const struct safetensors *f, struct peft_source *list,
                                  tinker_error *err)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct st_tensor *t = &f->tensors[i];
        if (!t->usable)
            return err_set(err, TINKER_EINVAL, "%s: tensor %s: dtype %s is not supported", f->path,
                           t->name, t->dtype_name);
        if (t->ndim != 2 && t->ndim != 3)
            return err_set(err, TINKER_EINVAL, "%s: tensor %s is neither a matrix nor a stack",
                           f->path, t->name);
        list[i] = (struct peft_source){ .name = t->name, .dtype = t->dtype, .data = t->data };
        list[i].ndim = t->ndim;
        memcpy(list[i].shape, t->shape, t->ndim * sizeof(*t->shape));
    }
    return f->n ? TINKER_OK : err_set(err, TINKER_EINVAL, "%s: no tensors", f->path);
}

/* An adapter that has experts in the form of PEFT already: a copy. */
static tinker_status copy_files(const struct safetensors *f, const char *config,
                                const char *out_dir, struct arena *arena, tinker_error *err)
{
    char *to_config = arena_printf(arena, "%s/adapter_config.json", out_dir), *text;
    char *to_weights = arena_printf(arena, "%s/adapter_model.safetensors", out_dir);
    size_t n;
    if (!to_config || !to_weights)
        return err_nomem(err, out_dir);
    tinker_status status = os_read_file(config, CONFIG_MAX, &text, &n, err);
    if (status != TINKER_OK)
        return status;
    status = os_write_file(to_config, text, n, err);
    free(text);
    return status == TINKER_OK ? os_write_file(to_weights, f->file.data, f->file.len, err) : status;
}

tinker_status tinker_adapter_to_peft(const char *dir, const char *model, const char *base_name,
                                     const char *out_dir, tinker_error *err)
{
    struct arena arena;
    struct model_config *config = NULL;
    struct adapter_config said;
    struct safetensors file;
    struct peft_source *list = NULL;
    tinker_status status = TINKER_OK;
    arena_init(&arena, SIZE_MAX);
    char *path = arena_printf(&arena, "%s/adapter_config.json", dir);
    char *weights = arena_printf(&arena, "%s/adapter_model.safetensors", dir);
    if (model)
        config = arena_array(&arena, 1, sizeof(*config));
    if (!path || !weights || (model && !config))
        status = err_nomem(err, dir);
    if (status == TINKER_OK && model)
        status = read_model_config(config, model, &arena, err);
    if (status == TINKER_OK)
        status = adapter_config_read(&said, path, true, &arena, err);
    if (status == TINKER_OK && said.rank == 0)
        status = err_set(err, TINKER_ESTATE,
                         "it has all weights of the model (rank 0), which PEFT has no adapter for");
    if (status == TINKER_OK)
        status = safetensors_open(&file, weights, err);
    if (status == TINKER_OK) {
        struct peft_settings settings = { .config = config,
                                          .base_name = base_name ? base_name : said.base_name,
                                          .rank = said.rank,
                                          .alpha = said.alpha };
        list = arena_array(&arena, file.n + 1, sizeof(*list));
        status = list ? list_sources(&file, list, err) : err_nomem(err, dir);
        if (status == TINKER_OK && said.parameters)
            status = copy_files(&file, path, out_dir, &arena, err);
        else if (status == TINKER_OK)
            status = peft_form_write(out_dir, &settings, list, file.n, err);
        safetensors_close(&file);
    }
    if (status == TINKER_OK)
        status = os_sync_dir(out_dir, err);
    arena_clear(&arena);
    return status;
}
