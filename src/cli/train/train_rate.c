/* train_rate.c - see train_rate.h. */
#include "cli/train/train_rate.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include "base/arena.h"
#include "base/os.h"
#include "cli/models/model_dir.h"
#include "json/json.h"

/* Uncalibrated, but what LoRA on models of other families is usually begun with. */
#define USUAL_RATE 5e-4

/* What the files of a model say. */
struct model_facts {
    char type[64];
    int64_t hidden;
    double suggested; /* NaN: none */
};

/* A missing or broken file leaves the facts unknown; the rules below then know less. */
static void read_facts(const char *path, struct model_facts *f)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    char *data, *text;
    size_t n;
    if (os_read_file(path, 16 << 20, &data, &n, NULL) != TINKER_OK)
        return;
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, data, n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "hidden_size") && json_peek(&r) == JSON_NUMBER)
            json_int64(&r, &f->hidden);
        else if (json_str_is(key, "suggested_learning_rate") && json_peek(&r) == JSON_NUMBER)
            json_double(&r, &f->suggested);
        else if (json_str_is(key, "model_type") && json_peek(&r) == JSON_STRING &&
                 json_cstring(&r, &text))
            snprintf(f->type, sizeof(f->type), "%s", text);
        else
            json_skip(&r);
    }
    arena_clear(&arena);
    free(data);
}

/* Only models on this machine have files to read: the bundled one, and what `models pull`
 * fetched.  For hosted models the name alone decides. */
static struct model_facts find_facts(const char *model)
{
    struct model_facts f = { .suggested = NAN };
    char dir[MODEL_DIR_MAX], path[MODEL_DIR_MAX + 32];
    bool found = strcmp(model, MODEL_DIR_BUNDLED) == 0 ? model_dir_bundled(dir)
                                                       : model_dir_cached(model, dir);
    if (!found)
        return f;
    snprintf(path, sizeof(path), "%s/config.json", dir);
    read_facts(path, &f);
    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    read_facts(path, &f);
    return f;
}

/* In the order of trust: rates that the cookbook uses for the kind of training, what the model's
 * own files suggest, the cookbook's formula, a usual value.  *rule is shown in the plan, so that
 * a user sees how much the number is worth. */
double train_rate_auto(const char *model, enum train_kind kind, bool on_policy, const char **rule)
{
    struct model_facts f = find_facts(model);
    *rule = "auto";
    if (kind == TRAIN_DPO) {
        *rule = "auto: for preferences";
        return 1e-5;
    }
    /* Small models need larger steps before anything moves. */
    if (kind == TRAIN_RL) {
        *rule = "auto: for rewards";
        return f.hidden > 0 && f.hidden < 2048 ? 4e-5 : 1e-5;
    }
    if (kind == TRAIN_DISTILL && on_policy) {
        *rule = "auto: on policy";
        return 1e-4;
    }
    if (isfinite(f.suggested)) {
        *rule = "auto: the model's card";
        return f.suggested;
    }
    double rate = tinker_lr_auto(model, *f.type ? f.type : NULL, f.hidden, 1);
    if (isfinite(rate)) {
        *rule = "auto: by family and width";
        return rate;
    }
    *rule = "auto: usual, not calibrated for this model";
    return USUAL_RATE;
}
