/* path.c - takes tinker:// paths apart. */
#include "wire/path.h"

#include <string.h>
#include "base/err.h"

static const char scheme[] = "tinker://";

bool wire_path_is(const char *text)
{
    return text && strncmp(text, scheme, sizeof scheme - 1) == 0;
}

static tinker_status refuse_path(const char *text, bool any, tinker_error *err)
{
    return err_set(err, TINKER_EINVAL,
                   "\"%.120s\" is not a checkpoint path: expected "
                   "tinker://<training run>/weights/<name> or "
                   "tinker://<training run>/sampler_weights/<name>%s",
                   text, any ? ", or external_weights" : "");
}

/* tinker://<run>/<kind>/<name>, three parts that are not empty; `any` also takes external weights. */
static tinker_status parse_path(const char *text, bool any, struct wire_path *out,
                                tinker_error *err)
{
    if (!text)
        return refuse_path("", any, err);
    if (!wire_path_is(text))
        return refuse_path(text, any, err);
    const char *run = text + sizeof scheme - 1;
    const char *kind = strchr(run, '/');
    const char *name = kind ? strchr(kind + 1, '/') : NULL;
    /* Exactly three parts: a slash in a name would lead elsewhere on a server's disk. */
    if (!name || strchr(name + 1, '/') || kind == run || name[1] == '\0')
        return refuse_path(text, any, err);
    kind++;
    size_t n = (size_t)(name - kind);
    bool training = n == 7 && memcmp(kind, "weights", 7) == 0;
    bool sampler = n == 15 && memcmp(kind, "sampler_weights", 15) == 0;
    bool external = any && n == 16 && memcmp(kind, "external_weights", 16) == 0;
    if (!training && !sampler && !external)
        return refuse_path(text, any, err);
    *out = (struct wire_path){ .run = run,
                               .n_run = (size_t)(kind - 1 - run),
                               .checkpoint_id = kind,
                               .name = name + 1,
                               .sampler = sampler,
                               .external = external };
    return TINKER_OK;
}

tinker_status wire_path_parse(const char *text, struct wire_path *out, tinker_error *err)
{
    return parse_path(text, false, out, err);
}

tinker_status wire_path_parse_any(const char *text, struct wire_path *out, tinker_error *err)
{
    return parse_path(text, true, out, err);
}

const char *wire_checkpoint_type(bool sampler)
{
    return sampler ? "sampler" : "training";
}
