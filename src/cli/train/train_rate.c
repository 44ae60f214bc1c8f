/* train_rate.c - see train_rate.h. */
#include "cli/train/train_rate.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include "base/arena.h"
#include "base/os.h"
#include "cli/models/local_models.h"
#include "json/json.h"

/* Uncalibrated, but what LoRA on models of other families is usually begun with. */
#define USUAL_RATE 5e-4

/* suggested_learning_rate of generation_config.json; NaN: none.  A missing or broken file has none. */
static double read_suggested(const char *dir)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    char path[MODEL_DIR_MAX + 32], *data;
    size_t n;
    double rate = NAN;
    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    if (os_read_file(path, 16 << 20, &data, &n, NULL) != TINKER_OK)
        return rate;
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, data, n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "suggested_learning_rate") && json_peek(&r) == JSON_NUMBER)
            json_double(&r, &rate);
        else
            json_skip(&r);
    }
    arena_clear(&arena);
    free(data);
    return rate;
}

/* In the order of trust: rates that the cookbook uses for the kind of training, what the model's
 * own files suggest, the cookbook's formula, a usual value.  *rule is shown in the plan, so that
 * a user sees how much the number is worth. */
double train_rate_auto(const char *model, const char *dir, enum train_kind kind, bool on_policy,
                       const char **rule)
{
    struct local_model f = { .dir = "" };
    if (dir)
        local_models_read(dir, &f);
    double suggested = dir ? read_suggested(dir) : NAN;
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
    if (isfinite(suggested)) {
        *rule = "auto: the model's card";
        return suggested;
    }
    double rate = tinker_lr_auto(model, *f.type ? f.type : NULL, f.hidden, 1);
    if (isfinite(rate)) {
        *rule = "auto: by family and width";
        return rate;
    }
    *rule = "auto: usual, not calibrated for this model";
    return USUAL_RATE;
}
