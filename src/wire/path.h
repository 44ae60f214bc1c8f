/* path.h - tinker://<training run>/<weights|sampler_weights|external_weights>/<name>. */
#ifndef WIRE_PATH_H
#define WIRE_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>
#include "base/buf.h"

/* Views into the parsed text. */
struct wire_path {
    const char *run;
    size_t n_run;
    const char *checkpoint_id; /* "weights/<name>": to the end of the text */
    const char *name;          /* to the end of the text */
    bool bare;                 /* no kind is named: checkpoint_id is the name */
    bool sampler;              /* sampler_weights: to sample from */
    bool external;             /* external_weights: for others; else training state */
};

/* Only what a model can be loaded or sampled from: weights and sampler_weights. TINKER_EINVAL says
 * what the text should look like. */
tinker_status wire_path_parse(const char *text, struct wire_path *out, tinker_error *err);
/* The same, and tinker://<run>/<name> without a kind, as some services name checkpoints. */
tinker_status wire_path_parse_known(const char *text, struct wire_path *out, tinker_error *err);
/* For paths that are only passed on (list, delete, download): external weights, too. */
tinker_status wire_path_parse_any(const char *text, struct wire_path *out, tinker_error *err);
/* Is it at least a tinker:// text? */
bool wire_path_is(const char *text);
const char *wire_checkpoint_type(bool sampler); /* "training", "sampler" */

/* Check a name that becomes one part of a URL's path. Every byte with a meaning there is escaped,
 * so only an empty name, "." and "..", and control characters are refused. what: for the message,
 * "run id". */
tinker_status wire_check_segment(const char *what, const char *s, size_t n, tinker_error *err);
void wire_put_segment(struct buf *out, const char *s, size_t n);
/* The reverse; out has room for n bytes and a NUL.  false: an invalid escape, or NUL. */
bool wire_read_segment(const char *s, size_t n, char *out);

#endif
