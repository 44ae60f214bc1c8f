/* cmd_render.c - `tinker render`: a conversation as the tokens a model sees; no network.
 *
 * Data goes to stdout: pieces, colored on a terminal, or JSON.  Totals and warnings go to
 * stderr.  --diff-template compares with the model's own chat template. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/chat.h>
#include <tinker/extra/template.h>
#include "base/array.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/text/text_model.h"
#include "json/json.h"

/* The options as given. */
struct request {
    const char *model, *renderer, *messages, *mode, *train_on, *tools;
    int64_t max_length;
    bool diff;
};

/* What all conversations of one run share. `many`: JSON Lines, so one line of output each. */
struct job {
    const struct request *q;
    tinker_tokenizer *tokenizer;
    tinker_renderer *r;
    tinker_train_on train_on;
    const tinker_conversation *tools; /* from --tools; NULL: none */
    bool many;
};

/* One rendering as flat arrays. n is what is shown, total what there was before --max-length. */
struct tokens {
    int32_t *ids;
    float *weights; /* NULL: none */
    size_t n, total;
};

/* ---- output ---- */

/* The text of ids[0..n). Tokens that are no text of their own are left out. */
static void put_pieces(struct buf *out, const tinker_tokenizer *t, const int32_t *ids, size_t n)
{
    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_tokenizer_decode(t, ids, n, NULL, &text, NULL) == TINKER_OK && text.n > 0)
        buf_append(out, text.s, text.n);
    tinker_text_clear(&text);
}

/* Both may hold: an end-of-turn token is special, and usually trained. */
enum { TRAINED = 1, SPECIAL = 2 };

/* TRAINED and SPECIAL bits of token i: they choose its color. */
static int get_style(const struct job *j, const struct tokens *t, size_t i)
{
    bool trained = t->weights && t->weights[i] != 0;
    bool special = tinker_tokenizer_is_special(j->tokenizer, t->ids[i]);
    return (trained ? TRAINED : 0) | (special ? SPECIAL : 0);
}

/* On a terminal: green is trained, gray is context, reverse video a special token. Tokens of
 * one style are decoded together, because one character may be spread over several of them.
 * Without colors it is the plain text. */
static void print_colored_tokens(const struct job *j, const struct tokens *t)
{
    bool color = out_colored();
    struct buf line;
    buf_init(&line, (size_t)1 << 30);
    for (size_t i = 0, end; i < t->n; i = end) {
        int style = get_style(j, t, i);
        for (end = i + 1; end < t->n && get_style(j, t, end) == style; end++)
            continue;
        if (color)
            buf_printf(&line, "\033[%s%sm", style & SPECIAL ? "7;" : "",
                       style & TRAINED ? "32" : "90");
        put_pieces(&line, j->tokenizer, t->ids + i, end - i);
        if (color)
            buf_puts(&line, "\033[0m");
    }
    buf_putc(&line, '\n');
    out_text(&line);
    buf_clear(&line);
}

/* One JSON object per conversation: indented for one, on one line each for JSON Lines.
 * "weights" is null unless --mode train; "truncated" counts the tokens cut by --max-length. */
static void print_tokens_json(const struct job *j, const struct tokens *t)
{
    struct buf out, piece;
    struct json_writer w;
    buf_init(&out, (size_t)1 << 31);
    buf_init(&piece, 1 << 22);
    json_writer_init(&w, &out);
    json_put_begin_object(&w);
    json_put_key(&w, "tokens");
    json_put_array_int32(&w, t->ids, t->n);
    json_put_key(&w, "weights");
    if (t->weights)
        json_put_array_float(&w, t->weights, t->n);
    else
        json_put_null(&w);
    json_put_key(&w, "pieces");
    json_put_begin_array(&w);
    for (size_t i = 0; i < t->n; i++) {
        buf_reset(&piece);
        put_pieces(&piece, j->tokenizer, &t->ids[i], 1);
        json_put_string_n(&w, piece.data ? piece.data : "", piece.len);
    }
    json_put_end_array(&w);
    json_put_key(&w, "stop");
    /* A renderer stops at strings or at token ids, never at both. */
    tinker_stop_sequences stop = tinker_renderer_stop(j->r);
    json_put_begin_array(&w);
    for (size_t i = 0; i < stop.n; i++) {
        if (stop.strings)
            json_put_string(&w, stop.strings[i]);
        else
            json_put_int64(&w, stop.tokens[i]);
    }
    json_put_end_array(&w);
    json_put_key(&w, "renderer");
    json_put_string(&w, tinker_renderer_name(j->r));
    json_put_key(&w, "truncated");
    json_put_uint64(&w, t->total - t->n);
    json_put_end_object(&w);
    if (j->many) {
        buf_putc(&out, '\n');
        out_text(&out);
    } else {
        out_json(&out);
    }
    buf_clear(&out);
    buf_clear(&piece);
}

/* ---- comparison with the chat template ---- */

/* The text of a few tokens from position `at` on, enough to see where two renderings part. */
static void put_excerpt(struct buf *out, const struct job *j, const int32_t *ids, size_t n,
                        size_t at)
{
    enum { SIGHT = 8 };
    buf_init(out, 1 << 20);
    if (at < n)
        put_pieces(out, j->tokenizer, ids + at, n - at < SIGHT ? n - at : SIGHT);
}

/* The first differing token in both renderings; (end) where one is shorter. */
static void print_difference(size_t at, const struct buf *ours, const struct buf *theirs)
{
    struct buf out;
    struct json_writer w;
    if (!globals.json) {
        printf("token %zu differs\nrenderer: %s\ntemplate: %s\n", at,
               ours->len ? ours->data : "(end)", theirs->len ? theirs->data : "(end)");
        return;
    }
    buf_init(&out, 1 << 24);
    json_writer_init(&w, &out);
    json_put_begin_object(&w);
    json_put_key(&w, "equal");
    json_put_bool(&w, false);
    json_put_key(&w, "token");
    json_put_uint64(&w, at);
    json_put_key(&w, "renderer");
    json_put_string_n(&w, ours->data ? ours->data : "", ours->len);
    json_put_key(&w, "template");
    json_put_string_n(&w, theirs->data ? theirs->data : "", theirs->len);
    json_put_end_object(&w);
    out_json_line(&out);
    buf_clear(&out);
}

/* Returns EXIT_FAILED, so that scripts can use --diff-template as a check. */
static int report_difference(const struct job *j, const struct tokens *t,
                             const tinker_tokens *other, size_t at)
{
    struct buf ours, theirs;
    put_excerpt(&ours, j, t->ids, t->n, at);
    put_excerpt(&theirs, j, other->ids, other->n, at);
    print_difference(at, &ours, &theirs);
    buf_clear(&ours);
    buf_clear(&theirs);
    return EXIT_FAILED;
}

/* Render the messages with the Jinja template of the model's tokenizer. The BOS token is passed
 * by its text, as the templates expect it. */
static tinker_status run_template(const struct job *j, const tinker_message *m, size_t n,
                                  tinker_text *out, tinker_error *err)
{
    tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
    const char *source = tinker_tokenizer_chat_template(j->tokenizer);
    tinker_text bos = TINKER_TEXT_INIT;
    int32_t id = tinker_tokenizer_special(j->tokenizer, TINKER_TOKEN_BOS);
    if (!source) {
        *err = (tinker_error){ .status = TINKER_EINVAL };
        snprintf(err->message, sizeof(err->message), "the model has no chat template");
        return TINKER_EINVAL;
    }
    if (id >= 0 && tinker_tokenizer_token(j->tokenizer, id, &bos, NULL) == TINKER_OK)
        opts.bos_token = bos.s;
    /* The template must end like the renderer's prompt, or the last tokens differ always. */
    opts.add_generation_prompt = strcmp(j->q->mode, "generate") == 0;
    tinker_template *t = tinker_template_new(source, strlen(source), err);
    tinker_status status =
        t ? tinker_template_render(t, m, n, j->tools ? j->tools->tools : NULL,
                                   j->tools ? j->tools->n_tools : 0, &opts, out, err)
          : err->status;
    tinker_template_free(t);
    tinker_text_clear(&bos);
    return status;
}

/* Compare token by token. The text of the template is encoded with special tokens recognized. */
static int compare_with_template(const struct job *j, const tinker_conversation *c,
                                 const struct tokens *t)
{
    tinker_error err;
    tinker_tokens other = TINKER_TOKENS_INIT;
    size_t at = 0;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_status made = run_template(j, c->messages, c->n_messages, &text, &err);
    if (made == TINKER_OK)
        made = tinker_tokenizer_encode(j->tokenizer, text.s, text.n, NULL, &other, &err);
    tinker_text_clear(&text);
    if (made != TINKER_OK)
        return text_model_fail_data(&err);
    while (at < t->n && at < other.n && t->ids[at] == other.ids[at])
        at++;
    int status = EXIT_OK;
    if (at < t->n || at < other.n)
        status = report_difference(j, t, &other, at);
    else
        printf(globals.json ? "{\"equal\": true, \"tokens\": %zu}\n" : "all %zu tokens are equal\n",
               t->n);
    tinker_tokens_clear(&other);
    return status;
}

/* ---- rendering ---- */

/* The form in which the library reports it, so that one function prints both. */
static tinker_status set_no_memory(tinker_error *err)
{
    *err = (tinker_error){ .status = TINKER_ENOMEM, .message = "out of memory" };
    return err->status;
}

/* The tokens of the first example; a conversation renders to exactly one. Images have no token
 * ids to show and are refused. */
static tinker_status flatten_example(const tinker_rendered *x, int64_t max_length, bool weighted,
                                     struct tokens *out, tinker_error *err)
{
    const tinker_example *e = &x->examples[0];
    *out = (struct tokens){ .total = e->n_tokens };
    out->ids = calloc(e->n_tokens + 1, sizeof(*out->ids));
    out->weights = weighted && e->weights ? calloc(e->n_tokens + 1, sizeof(*out->weights)) : NULL;
    if (!out->ids || (weighted && e->weights && !out->weights))
        return set_no_memory(err);
    for (size_t i = 0; i < e->input.n_chunks; i++) {
        const tinker_chunk *c = &e->input.chunks[i];
        if (c->kind != TINKER_CHUNK_TEXT) {
            *err = (tinker_error){ .status = TINKER_EINVAL,
                                   .message = "an image has no tokens to show: text only" };
            return err->status;
        }
        for (size_t k = 0; k < c->n_tokens; k++)
            out->ids[out->n++] = c->tokens[k];
    }
    if (out->weights)
        memcpy(out->weights, e->weights, out->n * sizeof(*out->weights));
    if (max_length > 0 && (uint64_t)max_length < out->n)
        out->n = (size_t)max_length;
    return TINKER_OK;
}

/* Tool declarations, then the messages. Renderers merge a leading system message into the
 * declarations, so it is taken out of the list. The result points into c and *prefix; free only
 * the array. */
static tinker_message *prepend_tools(const struct job *j, const tinker_conversation *c,
                                     tinker_conversation **prefix, size_t *n, tinker_error *err)
{
    const tinker_message *m = c->messages;
    size_t skip = c->n_messages > 0 && strcmp(m[0].role, "system") == 0 && !m[0].parts;
    const tinker_conversation *tools = j->tools;
    *prefix = tinker_renderer_tool_prefix(j->r, tools->tools, tools->n_tools,
                                          skip ? m[0].content : NULL, err);
    if (!*prefix)
        return NULL;
    *n = (*prefix)->n_messages + c->n_messages - skip;
    tinker_message *all = calloc(*n + 1, sizeof(*all));
    if (!all) {
        set_no_memory(err);
        return NULL;
    }
    memcpy(all, (*prefix)->messages, (*prefix)->n_messages * sizeof(*all));
    memcpy(all + (*prefix)->n_messages, m + skip, (c->n_messages - skip) * sizeof(*all));
    return all;
}

/* Data goes to stdout, totals to stderr.
 * The totals count what is shown, so with --max-length they are those of the cut text. */
static int show_tokens(const struct job *j, const tinker_conversation *c, const struct tokens *t)
{
    if (j->q->diff)
        return compare_with_template(j, c, t);
    if (globals.json)
        print_tokens_json(j, t);
    else
        print_colored_tokens(j, t);
    size_t trained = 0;
    for (size_t i = 0; t->weights && i < t->n; i++)
        trained += t->weights[i] != 0;
    out_say("%zu token%s, %zu trained, %zu truncated", t->n, t->n == 1 ? "" : "s", trained,
            t->total - t->n);
    return EXIT_OK;
}

/* Render one conversation in the chosen mode. Tools of the command line win over tools in the
 * conversation.
 * Free functions accept NULL, so every path leads through the same end. */
static int render_conversation(struct job *j, const tinker_conversation *c)
{
    tinker_error err;
    tinker_conversation *prefix = NULL;
    size_t n = c->n_messages;
    /* Tools of this conversation must not leak into the next one of a JSON Lines file. */
    struct job own = *j;
    if (!own.tools && c->n_tools > 0)
        own.tools = c;
    tinker_message *all = own.tools ? prepend_tools(&own, c, &prefix, &n, &err) : NULL;
    const tinker_message *m = own.tools ? all : c->messages;
    tinker_rendered *x = NULL;
    struct tokens t = { .ids = NULL };
    bool generate = strcmp(j->q->mode, "generate") == 0, train = strcmp(j->q->mode, "train") == 0;
    /* "history" renders like "train", but shows no weights: what was said so far, without a
     * question for the model at the end. */
    if (m && generate)
        x = tinker_renderer_prompt(j->r, m, n, NULL, NULL, &err);
    else if (m)
        x = tinker_renderer_example(j->r, m, n, train ? j->train_on : TINKER_TRAIN_ALL_MESSAGES,
                                    &err);
    int status = x && flatten_example(x, j->q->max_length, train, &t, &err) == TINKER_OK
                     ? show_tokens(&own, c, &t)
                     : text_model_fail_data(&err);
    free(t.ids);
    free(t.weights);
    free(all);
    tinker_rendered_free(x);
    tinker_conversation_free(prefix);
    return status;
}

/* ---- input ---- */

/* JSON Lines: one conversation per line, blank lines skipped. Stops at the first bad line,
 * which the message names. */
static int render_lines(struct job *j, char *text, size_t n)
{
    int status = EXIT_OK;
    size_t line = 0;
    j->many = true;
    for (char *p = text, *end = text + n; p < end && status == EXIT_OK; line++) {
        char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (strspn(p, " \t\r") < len) {
            tinker_error err;
            tinker_conversation *c = tinker_conversation_parse(p, len, &err);
            status =
                c ? render_conversation(j, c)
                  : out_fail(EXIT_DATA, NULL, "%s:%zu: %s", j->q->messages, line + 1, err.message);
            tinker_conversation_free(c);
        }
        p += len + (nl != NULL);
    }
    return status;
}

/* One JSON document, or JSON Lines if the text as a whole does not parse, begins with { and has
 * more than one line. */
static int render_text(struct job *j, char *text, size_t n)
{
    tinker_error err;
    tinker_conversation *c = n ? tinker_conversation_parse(text, n, &err) : NULL;
    if (!c) {
        char *first = memchr(text, '\n', n);
        bool lines =
            first && text[strspn(text, " \t\r\n")] == '{' && first[strspn(first, " \t\r\n")];
        if (n == 0)
            return out_fail(EXIT_DATA, NULL, "%s is empty", j->q->messages);
        return lines ? render_lines(j, text, n)
                     : out_fail(EXIT_DATA, NULL, "%s: %s", j->q->messages, err.message);
    }
    int status = render_conversation(j, c);
    tinker_conversation_free(c);
    return status;
}

/* Check the file alone first, so that positions in the message are those of the file and not of
 * the text it is embedded in below.
 * The reader's limit of memory grows with the file, since it copies at most its strings. */
static bool check_json(const char *path, const char *text, size_t n, int *status)
{
    struct arena arena;
    struct json_reader r;
    arena_init(&arena, n + 4096);
    json_reader_init(&r, text, n, &arena);
    bool ok = json_skip(&r) && json_end(&r);
    if (!ok)
        *status = out_fail(EXIT_DATA, NULL, "%s: not JSON: %s", path, json_error(&r));
    arena_clear(&arena);
    return ok;
}

/* Parse a file of tool declarations by wrapping it as {"messages":[],"tools":FILE}, so that the
 * parser for conversations does the checks. */
static tinker_conversation *load_tools(const char *path, int *status)
{
    char *text;
    size_t n;
    tinker_error err;
    if (!text_model_read(path, &text, &n, status))
        return NULL;
    struct buf b;
    buf_init(&b, n + 64);
    buf_printf(&b, "{\"messages\":[],\"tools\":");
    buf_append(&b, text, n);
    buf_putc(&b, '}');
    bool json = check_json(path, text, n, status);
    tinker_conversation *c = json ? tinker_conversation_parse(b.data, b.len, &err) : NULL;
    if (json && !c)
        *status = out_fail(EXIT_DATA, NULL, "%s: %s", path, err.message);
    buf_clear(&b);
    free(text);
    return c;
}

/* Load tokenizer and renderer, then stream the input through them. Everything is freed on every
 * path: pointers start as NULL. */
static int run_render(const struct request *q)
{
    struct job j = { .q = q };
    tinker_renderer_options opts = TINKER_RENDERER_OPTIONS_INIT;
    tinker_error err;
    tinker_conversation *tools = NULL;
    tinker_text warning = TINKER_TEXT_INIT;
    char *text = NULL;
    size_t n = 0;
    int status = EXIT_OK;
    opts.warn = text_model_warn;
    j.tokenizer = text_model_load(q->model, NULL, &status);
    if (!j.tokenizer)
        return status;
    const char *name = q->renderer ? q->renderer : tinker_renderer_for(q->model, j.tokenizer);
    /* A renderer for another model family gives tokens the model was not trained on: warn, but
     * obey. */
    if (!tinker_renderer_suits(q->model, name, &warning) && warning.s)
        out_say("warning: %s", warning.s);
    tinker_text_clear(&warning);
    j.r = tinker_renderer_new(name, j.tokenizer, &opts, &err);
    if (!j.r || tinker_train_on_parse(q->train_on, &j.train_on, &err) != TINKER_OK)
        status = out_fail(EXIT_USAGE, NULL, "%s", err.message);
    if (status == EXIT_OK && q->tools)
        tools = load_tools(q->tools, &status);
    j.tools = tools;
    if (status == EXIT_OK && text_model_read(q->messages, &text, &n, &status))
        status = render_text(&j, text, n);
    free(text);
    tinker_conversation_free(tools);
    tinker_renderer_free(j.r);
    tinker_tokenizer_free(j.tokenizer);
    return status;
}

/* Exit codes: 1 when --diff-template finds a difference, 2 for a bad option or renderer, 8 for
 * bad input data. */
int cmd_render(int argc, char **argv)
{
    static const char *const modes[] = { "generate", "train", "history", NULL };
    static const char *const weights[] = { "last_assistant_message",
                                           "last_assistant_turn",
                                           "all_assistant_messages",
                                           "all_messages",
                                           "all_tokens",
                                           "all_user_and_system_messages",
                                           "customized",
                                           NULL };
    struct request q = { .messages = "-",
                         .mode = "generate",
                         .train_on = "all_assistant_messages" };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a model directory, a tokenizer file or a model name",
          .out = &q.model },
        { .name = "renderer",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "chat format (default: the one made for the model)",
          .out = &q.renderer },
        { .name = "messages",
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "a JSON array of messages, or JSON Lines of {\"messages\":[...]} (default -)",
          .out = &q.messages },
        { .name = "mode",
          .kind = OPT_CHOICE,
          .value = "MODE",
          .help = "generate: prompt for the next answer; train: with weights; history: as context",
          .out = &q.mode,
          .choices = modes },
        { .name = "train-on",
          .kind = OPT_CHOICE,
          .value = "WHAT",
          .help = "tokens with weight in train mode (default all_assistant_messages)",
          .out = &q.train_on,
          .choices = weights },
        { .name = "tools",
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "a JSON array of tool declarations",
          .out = &q.tools },
        { .name = "max-length",
          .kind = OPT_INT,
          .value = "N",
          .help = "cut after N tokens",
          .out = &q.max_length },
        { .name = "diff-template",
          .kind = OPT_FLAG,
          .help = "compare with the model's own chat template; exit 1 at the first difference",
          .out = &q.diff },
    };
    const struct opt_spec spec = { .command = "render",
                                   .about = "Show a conversation as the tokens that a model sees.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example =
                                       "tinker render -m tinker/tiny --messages chat.json --json" };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!q.model)
        return opt_usage_error(&spec, "Missing option '--model' / '-m'.");
    if (q.max_length < 0)
        return opt_usage_error(&spec, "Invalid value for '--max-length': must not be negative.");
    if (q.max_length && q.diff)
        return opt_usage_error(&spec, "--diff-template compares all tokens: no --max-length.");
    return run_render(&q);
}
