/* cmd_chat.c - `tinker chat`: talk to a base model or to saved weights.
 *
 * In a terminal a conversation with line editing and /commands; else a filter, one message per
 * line in and one reply per line out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/chat/chat_commands.h"
#include "cli/chat/line_input.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/serve/serve_place.h"
#include "json/json.h"

/* No seed that anybody types. */
#define NO_SEED INT64_MIN
enum { MESSAGE_MAX = 16 << 20 };

/* ---- a filter --------------------------------------------------------------------------------- */

/* A reply of several lines on one. */
static void print_on_one_line(const char *text)
{
    for (; *text; text++)
        putchar(*text == '\n' || *text == '\r' ? ' ' : *text);
    putchar('\n');
}

/* One object per line, written when the reply is complete: a reader can act on each line. */
static void print_reply_json(const struct chat *c, const char *message)
{
    const struct turn *t = &c->talk.turns[c->talk.n - 1];
    struct buf b;
    struct json_writer w;
    buf_init(&b, MESSAGE_MAX * 4);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "message");
    json_put_string(&w, message);
    json_put_key(&w, "reply");
    json_put_string(&w, t->text);
    if (t->thinking) {
        json_put_key(&w, "thinking");
        json_put_string(&w, t->thinking);
    }
    json_put_key(&w, "stop_reason");
    json_put_string(&w, c->session.stop);
    json_put_key(&w, "tokens");
    json_put_uint64(&w, c->session.tokens.n);
    json_put_end_object(&w);
    buf_putc(&b, '\n');
    out_text(&b);
    buf_clear(&b);
}

/* The conversation goes on from line to line; empty lines are passed over. */
static int run_filter(struct chat *c)
{
    char *line = NULL;
    size_t size = 0;
    int status = EXIT_OK;
    for (ssize_t n; status == EXIT_OK && (n = getline(&line, &size, stdin)) > 0;) {
        line[strcspn(line, "\r\n")] = 0;
        if (!*line)
            continue;
        /* The question first: a failure of the reply then ends the filter with the question
         * unanswered, and the exit status says why. */
        if (!conversation_add(&c->talk, "user", line, NULL)) {
            status = out_fail(EXIT_FAILED, NULL, "out of memory");
            break;
        }
        status = chat_session_reply(&c->session, &c->talk);
        if (status != EXIT_OK)
            break;
        if (globals.json)
            print_reply_json(c, line);
        else
            print_on_one_line(c->talk.turns[c->talk.n - 1].text);
        /* A program that writes one line and waits for one must get it now. */
        out_flush();
        /* An interrupt during a reply ends the filter after what came of it was printed. */
        if (chat_session_interrupted())
            status = EXIT_INTERRUPTED;
    }
    free(line);
    return status;
}

/* ---- a terminal ------------------------------------------------------------------------------- */

/* A whole message: lines that end with \, and what stands between """, are joined. */
static enum line_result read_message(struct buf *out)
{
    const char *line;
    bool quoted = false, more = true;
    buf_reset(out);
    /* The second prompt, ". ", says that the message is not complete. */
    for (bool first = true; more; first = false) {
        enum line_result got = line_input_read(first ? "> " : ". ", &line);
        if (got != LINE_INPUT_TEXT)
            return got;
        size_t n = strlen(line);
        /* Inside the quotes lines are taken as they are, slashes and backslashes included. */
        if (strcmp(line, "\"\"\"") == 0) {
            quoted = !quoted;
            more = quoted;
            continue;
        }
        bool joined = !quoted && n && line[n - 1] == '\\';
        if (out->len)
            buf_putc(out, '\n');
        buf_append(out, line, n - (joined ? 1 : 0));
        more = quoted || joined;
    }
    return LINE_INPUT_TEXT;
}

/* Speed and reason go to stderr, and only when they say something.
 * A reply that was cut by max_tokens looks like a bad model; the remark says what to do. */
static void print_remark(const struct chat_session *s)
{
    double seconds = (double)s->reply_ns / 1e9;
    if (strcmp(s->stop, "length") == 0)
        out_say("(cut off after %zu tokens; /params max_tokens=%lld allows more)", s->tokens.n,
                (long long)s->options.max_tokens * 2);
    else if (globals.verbose)
        out_say("(%zu tokens, %.1f per second)", s->tokens.n,
                seconds > 0 ? (double)s->tokens.n / seconds : 0);
}

/* Failures of one reply do not end the chat: the question is taken back and can be asked again.
 * The line editor still has it in its history. */
static void ask_model(struct chat *c)
{
    c->ask = false;
    if (chat_session_reply(&c->session, &c->talk) == EXIT_OK) {
        print_remark(&c->session);
    } else {
        free(conversation_pop(&c->talk));
        out_say("(the question is forgotten; the arrow up brings it back)");
    }
    chat_session_interrupted();
}

/* Replies and prompts go to stdout, remarks to stderr.  A message that begins with '/' is a
 * command, also when it is unknown: it must not be sent to a model by accident. */
static int run_terminal(struct chat *c, const char *history)
{
    struct buf message;
    int status = EXIT_OK;
    if (!line_input_open(history, chat_command_names))
        return out_fail(EXIT_IO, NULL, "the terminal cannot be used");
    chat_session_catch_interrupts();
    c->session.screen = true;
    const struct api *a = &c->session.api;
    out_say("%s%s%s: /help lists the commands, Ctrl-D ends", a->model, a->path ? " with " : "",
            a->path ? a->path : "");
    buf_init(&message, MESSAGE_MAX);
    while (!c->quit) {
        /* Ctrl-C on an empty prompt must not end a long conversation by accident: it only says
         * how to end. */
        enum line_result got = read_message(&message);
        if (got == LINE_INPUT_END)
            break;
        if (got == LINE_INPUT_INTERRUPTED) {
            chat_session_interrupted();
            out_say("\n(Ctrl-D or /quit ends)");
            continue;
        }
        const char *text = buf_ok(&message) && message.data ? message.data : "";
        /* An empty line asks nothing. */
        if (!text[strspn(text, " \t\n")])
            continue;
        /* Commands are remembered, too: /params with long values is worth bringing back. */
        line_input_remember(text);
        if (*text == '/' && !chat_command_run(c, text, &status))
            break;
        if (*text != '/')
            c->ask = conversation_add(&c->talk, "user", text, NULL);
        if (c->ask)
            ask_model(c);
    }
    if (!c->quit && status == EXIT_OK)
        fputc('\n', stderr);
    buf_clear(&message);
    line_input_close();
    return status;
}

/* ---- the command -------------------------------------------------------------------------------- */

/* --history FILE, "none", or chat_history beside the data of the local engine. */
static const char *choose_history(const char *given, char out[SERVE_PLACE_MAX + 32])
{
    char data[SERVE_PLACE_MAX];
    if (given)
        /* Without a place for data there is no history, and the chat works all the same. */
        return strcmp(given, "none") == 0 ? NULL : given;
    if (!serve_place_data(NULL, data) || os_make_dirs(data, NULL) != TINKER_OK)
        return NULL;
    snprintf(out, SERVE_PLACE_MAX + 32, "%s/chat_history", data);
    return out;
}

/* Options become a session (service, tokenizer, renderer, sampler), which one of the two loops
 * uses. */
int cmd_chat(int argc, char **argv)
{
    static const char *const thinking[] = { "show", "hide", "raw", NULL };
    /* Lively but not wild: what chat front ends begin with.  `tinker sample` has the API's
     * defaults. */
    struct chat_options o = { .max_tokens = 512,
                              .top_k = -1,
                              .seed = NO_SEED,
                              .temperature = 0.7,
                              .top_p = 0.9,
                              .thinking = "show" };
    const char *system = NULL, *history = NULL;
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a base model, or the directory of one",
          .out = &o.model },
        { .name = "path",
          .letter = 'p',
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "saved weights: tinker://RUN/sampler_weights/NAME, a run, or last",
          .out = &o.path },
        { .name = "tokenizer",
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "where the tokenizer is, if not found by the model",
          .out = &o.tokenizer },
        { .name = "renderer",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "chat format (default: that of the run, else the model's own)",
          .out = &o.renderer },
        { .name = "system",
          .kind = OPT_STRING,
          .value = "TEXT",
          .help = "a system message before the conversation",
          .out = &system },
        { .name = "max-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "longest reply (default 512)",
          .out = &o.max_tokens },
        { .name = "temperature",
          .kind = OPT_DOUBLE,
          .value = "T",
          .help = "0 takes the likeliest token (default 0.7)",
          .out = &o.temperature },
        { .name = "top-p",
          .kind = OPT_DOUBLE,
          .value = "P",
          .help = "only the likeliest tokens up to this mass (default 0.9)",
          .out = &o.top_p },
        { .name = "top-k",
          .kind = OPT_INT,
          .value = "K",
          .help = "only the K likeliest tokens",
          .out = &o.top_k },
        { .name = "seed",
          .kind = OPT_INT,
          .value = "S",
          .help = "random seed, for repeatable replies",
          .out = &o.seed },
        { .name = "thinking",
          .kind = OPT_CHOICE,
          .value = "HOW",
          .help = "show (default, dimmed), hide, or raw: all tokens as they are",
          .out = &o.thinking,
          .choices = thinking },
        { .name = "history",
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "where typed lines are kept, or none",
          .out = &history },
        { .name = "no-stream",
          .kind = OPT_FLAG,
          .help = "show replies as a whole",
          .out = &o.no_stream },
    };
    const struct opt_spec spec = {
        .command = "chat",
        .about = "Talk to a base model or to saved weights.  In a pipe: one message per line in,\n"
                 "one reply per line out, with --json as JSON Lines.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .example = "tinker chat -p last"
    };
    struct chat c = { 0 };
    char place[SERVE_PLACE_MAX + 32];
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (o.max_tokens < 1 || o.temperature < 0 || o.top_p <= 0 || o.top_p > 1)
        return opt_usage_error(&spec, "--max-tokens is 1 or more, --temperature 0 or more, --top-p "
                                      "above 0 and at most 1.");
    o.has_seed = o.seed != NO_SEED;
    status = chat_session_open(&c.session, &o);
    if (status != EXIT_OK)
        return status;
    if (system && !conversation_set_system(&c.talk, system))
        status = out_fail(EXIT_FAILED, NULL, "out of memory");
    /* --json makes a filter of it even in a terminal: its output is for programs. */
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !globals.json;
    if (status == EXIT_OK)
        status = terminal ? run_terminal(&c, choose_history(history, place)) : run_filter(&c);
    conversation_clear(&c.talk);
    chat_session_close(&c.session);
    return status;
}
