/* cmd_detokenize.c - `tinker detokenize`: token ids to text; no network.
 *
 * Ids are separated by blanks, commas or brackets, so that the output of `tokenize`, also with
 * --json, can be given back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/text/text_model.h"
#include "json/json.h"

/* strict: an id that the tokenizer does not know is an error with its number, not a blank.
 * The text ends with a line end that is not part of it, as every command's output does; --json
 * is exact. */
static int print_detokenized(const tinker_tokenizer *t, const tinker_tokens *ids, bool skip_special)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_error err;
    int status = EXIT_OK;
    o.skip_special = skip_special;
    o.strict = 1;
    if (tinker_tokenizer_decode(t, ids->ids, ids->n, &o, &text, &err) != TINKER_OK) {
        status = out_fail(EXIT_DATA, NULL, "%s", err.message);
    } else if (globals.json) {
        struct buf out;
        struct json_writer w;
        /* Ids are limited by the input, 1 GB of text, and a token has a few bytes. */
        buf_init(&out, (size_t)1 << 32);
        json_writer_init(&w, &out);
        json_put_begin_object(&w);
        json_put_key(&w, "text");
        json_put_string_n(&w, text.s ? text.s : "", text.n);
        json_put_end_object(&w);
        out_json(&out);
        buf_clear(&out);
    } else {
        fwrite(text.s ? text.s : "", 1, text.n, stdout);
        putchar('\n');
    }
    tinker_text_clear(&text);
    return status;
}

/* From the arguments, or from standard input if there are none or the first is "-". Input from
 * a pipe is checked for brackets that do not close: it may have been cut off.
 * Arguments are complete by themselves. */
static int collect_ids(const struct opt_words *words, tinker_tokens *ids)
{
    int status = EXIT_OK;
    if (words->n > 0 && strcmp(words->items[0], "-") != 0) {
        for (size_t i = 0; i < words->n && status == EXIT_OK; i++)
            status = text_model_ids("IDS", words->items[i], strlen(words->items[i]), ids);
        return status;
    }
    char *data;
    size_t n;
    if (!text_model_read("-", &data, &n, &status))
        return status;
    status = text_model_all_ids("standard input", data, n, ids);
    free(data);
    return status;
}

/* Exit codes: 5 without a tokenizer for the model, 8 for something that is no id. */
int cmd_detokenize(int argc, char **argv)
{
    const char *model = NULL;
    bool skip_special = false;
    struct opt_words words = { 0 };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a model directory, a tokenizer file or a model name",
          .out = &model },
        { .name = "skip-special",
          .kind = OPT_FLAG,
          .help = "leave out special tokens",
          .out = &skip_special },
    };
    const struct opt_arg args[] = { { .name = "IDS", .optional = true, .many = &words } };
    const struct opt_spec spec = {
        .command = "detokenize",
        .about = "Turn token ids into text.  \"-\", or no ids, reads standard "
                 "input.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker detokenize -m tinker/tiny 582 11 1926"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* There is no default: ids mean nothing without the tokenizer that made them. */
    if (!model)
        return opt_usage_error(&spec, "Missing option '--model' / '-m'.");
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_tokenizer *t = text_model_load(model, NULL, &status);
    if (!t)
        return status;
    status = collect_ids(&words, &ids);
    if (status == EXIT_OK)
        status = print_detokenized(t, &ids, skip_special);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(t);
    return status;
}
