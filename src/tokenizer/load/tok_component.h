/* tok_component.h - one JSON object of a tokenizer.json that describes a component.
 *
 * Normalizers, pre-tokenizers, decoders and post-processors are objects with a "type" and a few
 * settings in any order; all settings that any of them has are read into one struct.  Strings
 * live in the arena. */
#ifndef TOKENIZER_TOK_COMPONENT_H
#define TOKENIZER_TOK_COMPONENT_H

#include "tokenizer/tokenizer.h"

struct tok_component {
    struct json_str type;
    struct json_str string, regex; /* of "pattern" */
    struct json_str content, behavior, prepend, replacement, prepend_scheme, delimiter, prefix,
        suffix;
    struct json_str pad_token;
    struct json_str children;                         /* raw array of a Sequence */
    struct json_str single, special_tokens, sep, cls; /* raw */
    int64_t start, stop, length;
    int invert, add_prefix_space, use_regex, trim_offsets, individual_digits, split, cleanup;
    int strip_left, strip_right, clean_text, handle_chinese_chars, strip_accents, lowercase;
    /* the last two rows: -1 when absent */
};

/* Read one object.  TINKER_EINVAL with the place. */
tinker_status tok_component_read(struct tok_component *p, struct json_reader *r, tinker_error *err);
bool tok_str_is(struct json_str s, const char *text);

/* Which of names[0..n) is the type of the component; -1 with *err set: none. */
int tok_component_kind(const struct tok_component *p, const char *const *names, size_t n,
                       tinker_error *err);
/* TINKER_EINVAL: the type is none that we know. */
tinker_status tok_component_refuse(const struct tok_component *p, tinker_error *err);

/* Walk the raw JSON of a component, calling add for every one that is not a Sequence. */
typedef tinker_status tok_component_fn(tinker_tokenizer *t, const struct tok_component *p,
                                       tinker_error *err);
tinker_status tok_component_walk(tinker_tokenizer *t, struct json_str json, const char *what,
                                 tok_component_fn *add, tinker_error *err);

#endif
