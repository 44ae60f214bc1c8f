/* tok_config.h - what is read from tokenizer_config.json and from lists of added tokens. */
#ifndef TOKENIZER_TOK_CONFIG_H
#define TOKENIZER_TOK_CONFIG_H

#include "tokenizer/tokenizer.h"

struct tok_config {
    struct json_str special[4];                  /* by tinker_special_kind; s NULL: absent */
    struct json_str class, chat_template, added; /* added: raw added_tokens_decoder */
    int add_bos, add_eos;                        /* -1: absent */
    double max_length;
};

/* Read a tokenizer_config.json; n 0 gives an empty one.  Strings live in json or the arena. */
tinker_status tok_config_read(struct tok_config *c, const char *json, size_t n, struct arena *arena,
                              tinker_error *err);

/* The added tokens of a tokenizer.json (raw array; s NULL: none) with the changes of the
 * configuration, in the order in which they get their ids. */
tinker_status tok_added_read(struct tok_added **list, size_t *n, struct json_str json,
                             const struct tok_config *config, struct arena *arena,
                             tinker_error *err);

#endif
