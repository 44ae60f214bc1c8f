/* adapter_config.c - see adapter_config.h. */
#include "engine/model/adapter_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/array.h"
#include "base/err.h"
#include "base/os.h"
#include "json/json.h"

enum { JSON_MAX = 16 << 20 };

/* adapter_config.json as it stands, unchecked. */
struct raw_adapter_config {
    struct json_str type, bias;
    char *base;
    int64_t rank;
    double alpha;
    bool has_rank, has_alpha, refused;
    bool parameters;                /* target_parameters names some */
    double fused_rank, fused_alpha; /* of the experts' gate_up_proj; 0: not there */
    /* the setting that is refused, for the message */
    const char *why;
};

/* Settings that would change the arithmetic; off in what we can load. */
static void refuse_if_on(struct json_reader *r, struct raw_adapter_config *c, const char *why)
{
    bool on = false;
    struct json_str key;
    switch (json_peek(r)) {
    case JSON_BOOL:
        json_bool(r, &on);
        break;
    case JSON_OBJECT:
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            on = true;
            json_skip(r);
        }
        break;
    case JSON_ARRAY:
        json_begin_array(r);
        while (json_next_item(r)) {
            on = true;
            json_skip(r);
        }
        break;
    default:
        json_skip(r);
    }
    if (on) {
        c->refused = true;
        c->why = why;
    }
}

/* rank_pattern or alpha_pattern.  One key is known: the pair of gate and up of all experts. */
static void read_fused_pattern(struct json_reader *r, struct raw_adapter_config *c, const char *why,
                               double *value)
{
    static const char known[] = "experts.gate_up_proj";
    size_t n = sizeof(known) - 1;
    struct json_str key;
    if (json_peek(r) != JSON_OBJECT) {
        json_skip(r);
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (key.n >= n && memcmp(key.s + key.n - n, known, n) == 0 && json_peek(r) == JSON_NUMBER) {
            json_double(r, value);
        } else {
            c->refused = true;
            c->why = why;
            json_skip(r);
        }
    }
}

/* Whether a list has members. */
static void note_parameters(struct json_reader *r, struct raw_adapter_config *c)
{
    struct raw_adapter_config only = { 0 };
    refuse_if_on(r, &only, "");
    c->parameters = only.refused;
}

/* One member.  What would change the arithmetic in a way that we do not compute is refused. */
static void read_adapter_config_key(struct json_reader *r, struct json_str key,
                                    struct raw_adapter_config *c)
{
    /* each of them changes which weights are used or how they are scaled */
    static const char *const refused[] = {
        "use_rslora",     "use_dora",
        "fan_in_fan_out", "modules_to_save",
        "lora_bias",      "layer_replication",
        "use_qalora",     "use_bdlora",
        "arrow_config",   "alora_invocation_tokens",
        "kasa_config",    "trainable_token_indices",
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (json_str_is(key, refused[i])) {
            refuse_if_on(r, c, refused[i]);
            return;
        }
    }
    /* These initializations subtract the first A and B from the base weights, so that the pair
     * does not belong to the weights that we have.  Compared by 5 letters: there are variants
     * such as pissa_niter_4. */
    static const char *const changed_base[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
    if (json_str_is(key, "init_lora_weights") && json_peek(r) == JSON_STRING) {
        struct json_str way = { NULL, 0 };
        json_string(r, &way);
        for (size_t i = 0; i < ARRAY_LEN(changed_base); i++) {
            if (way.n >= 5 && strncasecmp(way.s, changed_base[i], 5) == 0) {
                c->refused = true;
                c->why = "such init_lora_weights";
            }
        }
        return;
    }
    if (json_str_is(key, "target_parameters"))
        note_parameters(r, c);
    else if (json_str_is(key, "rank_pattern"))
        read_fused_pattern(r, c, "rank_pattern", &c->fused_rank);
    else if (json_str_is(key, "alpha_pattern"))
        read_fused_pattern(r, c, "alpha_pattern", &c->fused_alpha);
    else if (json_str_is(key, "base_model_name_or_path") && json_peek(r) == JSON_STRING)
        json_cstring(r, &c->base);
    else if (json_str_is(key, "peft_type"))
        json_string(r, &c->type);
    else if (json_str_is(key, "bias"))
        json_string(r, &c->bias);
    else if (json_str_is(key, "r"))
        c->has_rank = json_int64(r, &c->rank);
    else if (json_str_is(key, "lora_alpha"))
        c->has_alpha = json_double(r, &c->alpha);
    else
        json_skip(r);
}

/* The pair of gate and up of experts, whose scale must be that of the others. */
static bool is_fused_right(const struct raw_adapter_config *c)
{
    double rank = (double)c->rank;
    return (c->fused_rank == 0 || c->fused_rank == 2 * rank) &&
           (c->fused_alpha == 0 || c->fused_alpha == 2 * c->alpha) &&
           (c->fused_rank == 0) == (c->fused_alpha == 0);
}

tinker_status adapter_config_read(struct adapter_config *out, const char *path, bool experts,
                                  struct arena *arena, tinker_error *err)
{
    char *text;
    size_t len;
    *out = (struct adapter_config){ .base_name = "" };
    tinker_status status = os_read_file(path, JSON_MAX, &text, &len, err);
    if (status != TINKER_OK)
        return status;
    struct json_reader r;
    struct json_str key;
    struct raw_adapter_config c = { 0 };
    json_reader_init(&r, text, len, arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        read_adapter_config_key(&r, key, &c);
    bool full = json_str_is(c.type, "FULL"); /* what tinker_adapter_save() calls rank 0 */
    if (!json_end(&r))
        status = err_set(err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    else if (!json_str_is(c.type, "LORA") && !full)
        status = err_set(err, TINKER_EINVAL, "%s: peft_type is not LORA", path);
    else if (c.refused)
        status = err_set(err, TINKER_EINVAL, "%s: %s is not supported", path, c.why);
    else if (c.parameters && !experts)
        status = err_set(err, TINKER_EINVAL, "%s: target_parameters is not supported", path);
    else if (!is_fused_right(&c))
        status = err_set(err, TINKER_EINVAL, "%s: this rank_pattern is not supported", path);
    else if (c.bias.s && !json_str_is(c.bias, "none"))
        status = err_set(err, TINKER_EINVAL, "%s: only bias \"none\" is supported", path);
    else if (!c.has_rank || !c.has_alpha)
        status = err_set(err, TINKER_EINVAL, "%s: r and lora_alpha are needed", path);
    else if ((c.rank < 1) != full)
        status = err_set(err, TINKER_EINVAL, "%s: r is %lld", path, (long long)c.rank);
    else if (!isfinite((float)(c.alpha / (double)(c.rank ? c.rank : 1))))
        status = err_set(err, TINKER_EINVAL, "%s: lora_alpha is wrong", path);
    out->rank = c.rank;
    out->alpha = c.alpha;
    out->parameters = c.parameters;
    out->base_name = c.base ? c.base : "";
    free(text); /* strings of c may point into it */
    return status;
}
