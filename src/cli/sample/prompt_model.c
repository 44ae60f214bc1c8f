/* prompt_model.c - see prompt_model.h. */
#include "cli/sample/prompt_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/sampling.h>
#include "base/buf.h"
#include "cli/output/out.h"
#include "cli/text/text_model.h"

/* Longest wait for what only improves a message or a default, in milliseconds. */
enum { PATIENCE_MS = 3000 };

/* Does the server have the model? true also when it does not say. *names: the models it has,
 * for the hint. Waits briefly only: it is asked just to improve an error message. */
static bool is_served(struct api *a, const char *model, struct buf *names)
{
    tinker_error err;
    tinker_future *f =
        tinker_future_await(tinker_service_get_capabilities(a->service, &err), PATIENCE_MS, &err);
    const tinker_capabilities *c = f ? tinker_future_capabilities(f) : NULL;
    bool served = !c || c->n == 0;
    for (size_t i = 0; c && i < c->n; i++) {
        const char *name = tinker_supported_model_at(c, i)->name;
        if (!name)
            continue;
        served = served || strcmp(name, model) == 0;
        buf_printf(names, "%s%s", names->len ? ", " : "It has: ", name);
    }
    tinker_future_free(f);
    return served;
}

/* No tokenizer is found for a model name: a mistyped name is more likely than a missing file,
 * so ask the server which models it has. */
static int fail_no_tokenizer(struct api *a, const tinker_error *err)
{
    struct buf names;
    int status;
    buf_init(&names, 4096);
    if (err->status == TINKER_ESTATE && !a->path && !is_served(a, a->model, &names))
        status = out_fail(EXIT_NOT_FOUND, buf_ok(&names) ? names.data : NULL,
                          "the server has no model %s", a->model);
    else
        status = text_model_fail(err, "Fetch it with: tinker models pull --tokenizer-only NAME\n"
                                      "Or give its directory with --tokenizer DIR.");
    buf_clear(&names);
    return status;
}

/* `tinker train` and the cookbook note the chat format in the run; another one gives answers that
 * look broken.  "" when the run does not say, or is not ours to read. */
static void find_trained_renderer(struct api *a, char out[64])
{
    tinker_error err;
    out[0] = 0;
    if (!a->path)
        return;
    tinker_future *f = tinker_future_await(
        tinker_rest_get_training_run(a->rest, a->path, TINKER_SCOPE_ACCESSIBLE, &err), PATIENCE_MS,
        &err);
    const tinker_training_run *run = f ? tinker_future_training_run(f) : NULL;
    for (size_t i = 0; run && i < run->n_user_metadata; i++)
        if (strcmp(run->user_metadata[i].name, "renderer_name") == 0)
            snprintf(out, 64, "%s", run->user_metadata[i].value);
    tinker_future_free(f);
}

/* Stays NULL for --raw, and for a base model that is not asked to chat: the prompt is then text. */
static int open_renderer(struct prompt_model *m, struct api *a, const struct prompt_choice *c)
{
    tinker_renderer_options o = TINKER_RENDERER_OPTIONS_INIT;
    tinker_error err;
    char trained[64] = "";
    const char *name = c->renderer;
    if (c->raw)
        return EXIT_OK;
    /* What the run was trained with wins over what suits its base model: a fine-tune may have
     * given the model a format of its own. */
    find_trained_renderer(a, trained);
    if (name && *trained && strcmp(name, trained) != 0)
        out_say("warning: these weights were trained with the renderer %s, not %s", trained, name);
    if (!name)
        name = *trained ? trained : tinker_renderer_for(a->model, m->tokenizer);
    /* role_colon is what is left when nothing speaks for a chat model. */
    if (!c->renderer && !*trained && !c->chat && strcmp(name, "role_colon") == 0)
        return EXIT_OK;
    o.warn = text_model_warn;
    m->renderer = tinker_renderer_new(name, m->tokenizer, &o, &err);
    return m->renderer ? EXIT_OK : out_fail(EXIT_USAGE, NULL, "%s", err.message);
}

/* The tokenizer first: a renderer is made of its special tokens. */
int prompt_model_open(struct prompt_model *m, struct api *a, const struct prompt_choice *choice)
{
    tinker_error err;
    *m = (struct prompt_model){ 0 };
    m->tokenizer = text_model_open(a, choice->tokenizer, &err);
    int status = m->tokenizer ? open_renderer(m, a, choice) : fail_no_tokenizer(a, &err);
    if (status != EXIT_OK)
        prompt_model_close(m);
    return status;
}

/* Also after a failed open; a second call finds nothing. */
void prompt_model_close(struct prompt_model *m)
{
    tinker_renderer_free(m->renderer);
    tinker_tokenizer_free(m->tokenizer);
    *m = (struct prompt_model){ 0 };
}

/* A path selects saved weights; the base model is then implied and not sent. */
tinker_sampler *prompt_model_sampler(struct api *a, int *status)
{
    tinker_error err;
    tinker_future *f = api_wait(
        tinker_service_request_sampler(a->service, a->path ? NULL : a->model, a->path, &err), &err,
        status);
    /* The sampler outlives its future, and is freed before the service. */
    tinker_sampler *s = f ? tinker_future_take_sampler(f) : NULL;
    tinker_future_free(f);
    return s;
}
