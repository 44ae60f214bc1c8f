/* cmd_tokenize.c - `tinker tokenize`: text to token ids; no network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/text/text_model.h"
#include "json/json.h"

/* The options as given; text NULL or "-" reads standard input. */
struct request {
    const char *model, *text, *file;
    bool special, count, pieces;
};

/* A token's text for people: control characters as escapes, so that a table stays a table. */
static void put_piece(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n')
            buf_puts(out, "\\n");
        else if (c == '\r')
            buf_puts(out, "\\r");
        else if (c == '\t')
            buf_puts(out, "\\t");
        else if (c == '\\')
            buf_puts(out, "\\\\");
        else if (c < 0x20 || c == 0x7F)
            buf_printf(out, "\\x%02x", c);
        else
            buf_putc(out, (char)c);
    }
}

/* Columns: id, bytes of the token itself, piece. */
static void print_pieces(const tinker_tokenizer *t, const tinker_tokens *ids)
{
    tinker_text text = TINKER_TEXT_INIT;
    struct buf line;
    buf_init(&line, 1 << 22);
    printf("%8s  %5s  %s\n", "id", "bytes", "piece");
    for (size_t i = 0; i < ids->n; i++) {
        int32_t id = ids->ids[i];
        size_t bytes;
        const char *p = tinker_tokenizer_bytes(t, id, &bytes);
        buf_reset(&line);
        /* Each token is decoded alone, so what belongs to a character of several tokens shows as
         * bytes. */
        text.n = 0;
        /* A token decodes to U+FFFD if it holds only part of a character: then its bytes say more. */
        if (tinker_tokenizer_decode(t, &id, 1, NULL, &text, NULL) == TINKER_OK && text.s &&
            strstr(text.s, "\xEF\xBF\xBD") == NULL)
            put_piece(&line, text.s, text.n);
        else
            for (size_t k = 0; p && k < bytes; k++)
                buf_printf(&line, "\\x%02x", (unsigned char)p[k]);
        printf("%8d  %5zu  %s\n", (int)id, bytes, line.data ? line.data : "");
    }
    tinker_text_clear(&text);
    buf_clear(&line);
}

/* {"tokens": [...]}, or {"count": N, "bytes": N}; --pieces adds "pieces". */
static void print_ids_json(const struct request *r, const tinker_tokenizer *t,
                           const tinker_tokens *ids, size_t n)
{
    struct buf out;
    struct json_writer w;
    /* Input is bounded by 1 GB, and a token takes at most a few characters. */
    buf_init(&out, (size_t)1 << 32);
    json_writer_init(&w, &out);
    json_put_begin_object(&w);
    if (r->count) {
        json_put_key(&w, "count");
        json_put_uint64(&w, ids->n);
        /* Of the text, not of the tokens: with the count it gives the ratio. */
        json_put_key(&w, "bytes");
        json_put_uint64(&w, n);
    } else {
        json_put_key(&w, "tokens");
        json_put_array_int32(&w, ids->ids, ids->n);
    }
    if (r->pieces) {
        json_put_key(&w, "pieces");
        json_put_begin_array(&w);
        for (size_t i = 0; i < ids->n; i++) {
            size_t bytes;
            /* A piece that is part of a character is no UTF-8; the writer puts U+FFFD in its
             * place. */
            const char *p = tinker_tokenizer_bytes(t, ids->ids[i], &bytes);
            json_put_string_n(&w, p ? p : "", bytes);
        }
        json_put_end_array(&w);
    }
    json_put_end_object(&w);
    out_json(&out);
    buf_clear(&out);
}

/* Ids on one line with blanks between, which `detokenize` reads back. */
static void print_ids(const struct request *r, const tinker_tokenizer *t, const tinker_tokens *ids,
                      size_t n)
{
    if (r->count) {
        /* The ratio goes to stderr: it tells how well the tokenizer suits the text. */
        printf("%zu\n", ids->n);
        if (ids->n > 0)
            out_say("%.2f bytes per token", (double)n / (double)ids->n);
        return;
    }
    if (r->pieces) {
        print_pieces(t, ids);
        return;
    }
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? " " : "", (int)ids->ids[i]);
    putchar('\n');
}

/* Special tokens in the text are plain text unless --special: user input must not be able to
 * inject control tokens.
 * The library makes the same choice for messages of users. */
static int tokenize_text(const struct request *r, const tinker_tokenizer *t, const char *text,
                         size_t n)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_error err;
    int status = EXIT_OK;
    o.special = r->special ? TINKER_SPECIAL_PARSE : TINKER_SPECIAL_TEXT;
    if (tinker_tokenizer_encode(t, text, n, &o, &ids, &err) != TINKER_OK)
        status = out_fail(EXIT_DATA, NULL, "%s", err.message);
    else if (globals.json)
        print_ids_json(r, t, &ids, n);
    else
        print_ids(r, t, &ids, n);
    tinker_tokens_clear(&ids);
    return status;
}

/* Exit codes: 5 without a tokenizer for the model, 8 for text that is no UTF-8, 9 for a file
 * that cannot be read. */
int cmd_tokenize(int argc, char **argv)
{
    struct request r = { 0 };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a model directory, a tokenizer file or a model name",
          .out = &r.model },
        { .name = "file",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read the text from this file",
          .out = &r.file },
        { .name = "special",
          .kind = OPT_FLAG,
          .help = "parse special tokens in the text",
          .out = &r.special },
        { .name = "count",
          .kind = OPT_FLAG,
          .help = "print only how many tokens there are",
          .out = &r.count },
        { .name = "pieces",
          .kind = OPT_FLAG,
          .help = "print a table of id, bytes and piece",
          .out = &r.pieces },
    };
    const struct opt_arg args[] = { { .name = "TEXT", .out = &r.text, .optional = true } };
    const struct opt_spec spec = { .command = "tokenize",
                                   .about =
                                       "Turn text into token ids.  TEXT \"-\", or no text, reads "
                                       "standard input.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker tokenize -m tinker/tiny 'Hello, world'" };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!r.model)
        return opt_usage_error(&spec, "Missing option '--model' / '-m'.");
    if (r.text && r.file)
        return opt_usage_error(&spec, "Give either TEXT or --file.");
    char *data = NULL;
    size_t n = r.text ? strlen(r.text) : 0;
    bool read = r.file || !r.text || strcmp(r.text, "-") == 0;
    tinker_tokenizer *t = text_model_load(r.model, NULL, &status);
    if (!t)
        return status;
    if (!read || text_model_read(r.file ? r.file : "-", &data, &n, &status))
        status = tokenize_text(&r, t, read ? data : r.text, n);
    free(data);
    tinker_tokenizer_free(t);
    return status;
}
