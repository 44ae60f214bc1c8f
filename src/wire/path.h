/* path.h - tinker://<training run>/<weights|sampler_weights|external_weights>/<name>. */
#ifndef WIRE_PATH_H
#define WIRE_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>

/* Views into the parsed text. */
struct wire_path {
    const char *run;
    size_t n_run;
    const char *checkpoint_id; /* "weights/<name>": to the end of the text */
    const char *name;          /* to the end of the text */
    bool sampler;              /* sampler_weights: to sample from */
    bool external;             /* external_weights: for others; else training state */
};

/* Of what can be trained or sampled.  TINKER_EINVAL says what the text should look like. */
tinker_status wire_path_parse(const char *text, struct wire_path *out, tinker_error *err);
/* Of what can be listed, deleted and the like: external weights, too. */
tinker_status wire_path_parse_any(const char *text, struct wire_path *out, tinker_error *err);
/* Is it at least a tinker:// text? */
bool wire_path_is(const char *text);
const char *wire_checkpoint_type(bool sampler); /* "training", "sampler" */

#endif
