/* chat_commands.c - see chat_commands.h. */
#include "cli/chat/chat_commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/chat/line_input.h"
#include "cli/output/out.h"

/* argument: what stands behind the name, "" for nothing.  false as chat_command_run(). */
typedef bool command_fn(struct chat *c, const char *argument, int *status);

/* Commands change the state in *c and return; the loop in cmd_chat.c acts on c->quit and c->ask.
 * So each of them is a few lines and none of them waits for the model. */
static bool quit_chat(struct chat *c, const char *argument, int *status)
{
    (void)argument;
    (void)status;
    c->quit = true;
    return true;
}

/* The system message stays: it belongs to the chat, not to one conversation. */
static bool reset_talk(struct chat *c, const char *argument, int *status)
{
    (void)argument;
    (void)status;
    while (c->talk.n)
        free(conversation_pop(&c->talk));
    out_say("(a new conversation)");
    return true;
}

/* An empty TEXT removes it.  Earlier turns stay and are read under the new message from now on. */
static bool set_system(struct chat *c, const char *argument, int *status)
{
    (void)status;
    conversation_set_system(&c->talk, argument);
    out_say(*argument ? "(system message set)" : "(no system message)");
    return true;
}

/* Take back replies up to the last message of the user, which stays.
 * More than one reply can stand at the end only after /load. */
static bool drop_replies(struct chat *c)
{
    while (c->talk.n && strcmp(c->talk.turns[c->talk.n - 1].role, "user") != 0)
        free(conversation_pop(&c->talk));
    if (c->talk.n)
        return true;
    out_say("(there is nothing yet)");
    return false;
}

/* The same question again; with a fixed seed the reply is the same one, otherwise another draw. */
static bool retry_reply(struct chat *c, const char *argument, int *status)
{
    (void)argument;
    (void)status;
    c->ask = drop_replies(c);
    return true;
}

static bool undo_turn(struct chat *c, const char *argument, int *status)
{
    (void)argument;
    (void)status;
    if (drop_replies(c)) {
        free(conversation_pop(&c->talk));
        out_say("(the last question is forgotten)");
    }
    return true;
}

/* The old question goes into the input line, where the user changes it and presses Enter: no
 * state is kept between, so giving up the edit needs no undo. */
static bool edit_turn(struct chat *c, const char *argument, int *status)
{
    (void)argument;
    (void)status;
    if (drop_replies(c)) {
        char *text = conversation_pop(&c->talk);
        line_input_prefill(text);
        free(text);
    }
    return true;
}

/* ---- parameters ---------------------------------------------------------------------------- */

static void print_params(const struct chat_options *o)
{
    out_say("max_tokens=%lld temperature=%g top_p=%g top_k=%lld thinking=%s",
            (long long)o->max_tokens, o->temperature, o->top_p, (long long)o->top_k, o->thinking);
    if (o->has_seed)
        out_say("seed=%lld", (long long)o->seed);
}

/* One k=v; false: it makes no sense. */
static bool set_param(struct chat_options *o, const char *name, const char *value)
{
    static const char *const modes[] = { "show", "hide", "raw" };
    /* Numbers are read as doubles even for integer settings; 1e9 and 9e15 are bounds below which
     * a double is exact. */
    char *end;
    double x = strtod(value, &end);
    bool number = end != value && !*end;
    if (strcmp(name, "thinking") == 0) {
        for (size_t i = 0; i < ARRAY_LEN(modes); i++)
            if (strcmp(value, modes[i]) == 0) {
                o->thinking = modes[i];
                return true;
            }
        return false;
    }
    if (!number)
        return false;
    if (strcmp(name, "temperature") == 0 && x >= 0)
        o->temperature = x;
    else if (strcmp(name, "top_p") == 0 && x > 0 && x <= 1)
        o->top_p = x;
    else if (strcmp(name, "max_tokens") == 0 && x >= 1 && x <= 1e9)
        o->max_tokens = (int64_t)x;
    else if (strcmp(name, "top_k") == 0 && x >= -1 && x <= 1e9)
        o->top_k = (int64_t)x;
    else if (strcmp(name, "seed") == 0 && x >= -9e15 && x <= 9e15) {
        o->seed = (int64_t)x;
        o->has_seed = true;
    } else {
        return false;
    }
    return true;
}

static bool change_params(struct chat *c, const char *argument, int *status)
{
    char copy[256];
    (void)status;
    snprintf(copy, sizeof(copy), "%s", argument);
    /* Good settings count even when one beside them is wrong; the line below shows what holds
     * now. */
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *equals = strchr(word, '=');
        if (equals)
            *equals = 0;
        if (!equals || !set_param(&c->session.options, word, equals + 1))
            out_say("(%s%s%s: not a setting; see below)", word, equals ? "=" : "",
                    equals ? equals + 1 : "");
    }
    print_params(&c->session.options);
    return true;
}

/* ---- models and files ------------------------------------------------------------------------ */

/* Another model may need another engine, so everything is opened anew; the conversation stays. */
static bool change_model(struct chat *c, const char *argument, int *status)
{
    const struct chat_options before = c->session.options;
    struct chat_options o = before;
    /* Static: the options keep a pointer to it for as long as the session is open. Two of them, by
     * turns: the one before is still needed when the new model cannot be opened. */
    static char names[2][1024];
    static int turn;
    bool screen = c->session.screen;
    if (!*argument) {
        out_say("%s%s%s", c->session.api.model, c->session.api.path ? ", " : "",
                c->session.api.path ? c->session.api.path : "");
        return true;
    }
    char *name = names[turn = !turn];
    snprintf(name, sizeof(names[0]), "%s", argument);
    /* "last" is the newest checkpoint of this user, as everywhere in the program. */
    bool weights = strncmp(name, "tinker://", 9) == 0 || strcmp(name, "last") == 0;
    o.model = weights ? NULL : name;
    o.path = weights ? name : NULL;
    struct chat_session next;
    /* Closed before the next one is opened: two local models at once may not fit into memory.
     * A name that is wrong should not end a conversation: then the one before is opened again. */
    chat_session_close(&c->session);
    if (chat_session_open(&next, &o) != EXIT_OK) {
        *status = chat_session_open(&next, &before);
        if (*status != EXIT_OK) {
            c->quit = true;
            return false;
        }
        out_say("(still %s)", next.api.model);
    }
    c->session = next;
    c->session.screen = screen;
    return true;
}

/* Appended, in the row format of `tinker train sft`: a chat that went well is training data. */
static bool save_talk(struct chat *c, const char *argument, int *status)
{
    (void)status;
    if (!*argument)
        out_say("(give a file: /save talk.jsonl)");
    else if (conversation_save(&c->talk, argument) == EXIT_OK)
        out_say("(added to %s; tinker train sft --data %s learns from it)", argument, argument);
    return true;
}

/* A file that cannot be read leaves the current conversation as it is; the message says why. */
static bool load_talk(struct chat *c, const char *argument, int *status)
{
    (void)status;
    if (!*argument)
        out_say("(give a file: /load talk.jsonl)");
    else if (conversation_load(&c->talk, argument) == EXIT_OK)
        out_say("(%zu messages)", c->talk.n);
    return true;
}

/* ---- what the model sees and thinks -------------------------------------------------------------- */

/* A token as text with its line breaks shown. */
static void print_piece(const struct chat *c, int32_t token)
{
    tinker_text text = TINKER_TEXT_INIT;
    tinker_tokenizer_decode(c->session.text.tokenizer, &token, 1, NULL, &text, NULL);
    putchar('\'');
    for (size_t i = 0; i < text.n; i++) {
        if (text.s[i] == '\n')
            fputs("\\n", stdout);
        else
            putchar((unsigned char)text.s[i] < 0x20 ? '?' : text.s[i]);
    }
    putchar('\'');
    tinker_text_clear(&text);
}

/* The prompt of the next turn as ids and texts: what decides about a reply is here, not on the
 * screen, and wrong chat formats are seen at once. */
static bool show_tokens(struct chat *c, const char *argument, int *status)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    (void)argument;
    (void)status;
    if (chat_session_prompt(&c->session, &c->talk, &ids) == EXIT_OK)
        for (size_t i = 0; i < ids.n; i++) {
            printf("%8d  ", (int)ids.ids[i]);
            print_piece(c, ids.ids[i]);
            putchar('\n');
        }
    out_say("(%zu tokens, renderer %s)", ids.n, tinker_renderer_name(c->session.text.renderer));
    tinker_tokens_clear(&ids);
    return true;
}

/* Of the last reply: tokens with a low value are where another draw would have gone elsewhere. */
static bool show_logprobs(struct chat *c, const char *argument, int *status)
{
    const struct chat_session *s = &c->session;
    double sum = 0;
    (void)argument;
    (void)status;
    for (size_t i = 0; i < s->tokens.n; i++) {
        printf("%9.4f  ", (double)s->logprobs[i]);
        print_piece(c, s->tokens.ids[i]);
        putchar('\n');
        sum += s->logprobs[i];
    }
    out_say("(%zu tokens, mean %.4f, ended by: %s)", s->tokens.n,
            s->tokens.n ? sum / (double)s->tokens.n : 0, s->stop ? s->stop : "nothing yet");
    return true;
}

/* Declared here because the table that it prints lists it. */
static bool print_commands(struct chat *c, const char *argument, int *status);

static const struct {
    const char *name, *argument, *help;
    command_fn *run;
} table[] = {
    { .name = "/help", .help = "show this", .run = print_commands },
    { .name = "/quit", .help = "end the chat (Ctrl-D)", .run = quit_chat },
    { .name = "/reset", .help = "begin a new conversation", .run = reset_talk },
    { .name = "/system", .argument = "TEXT", .help = "set the system message", .run = set_system },
    { .name = "/retry", .help = "ask for another reply", .run = retry_reply },
    { .name = "/edit", .help = "edit the last question and ask again", .run = edit_turn },
    { .name = "/undo", .help = "forget the last question and reply", .run = undo_turn },
    { .name = "/params",
      .argument = "K=V ...",
      .help = "show or set temperature, top_p, ...",
      .run = change_params },
    { .name = "/model",
      .argument = "NAME",
      .help = "show or change the model",
      .run = change_model },
    { .name = "/save",
      .argument = "FILE",
      .help = "add the conversation to a file",
      .run = save_talk },
    { .name = "/load", .argument = "FILE", .help = "go on with a saved one", .run = load_talk },
    { .name = "/tokens", .help = "show what the model gets", .run = show_tokens },
    { .name = "/logprobs", .help = "how likely each token of the reply was", .run = show_logprobs },
};

/* The names alone, for completion by Tab; NULL ends them. */
const char *const chat_command_names[] = { "/help", "/quit",   "/reset",    "/system", "/retry",
                                           "/edit", "/undo",   "/params",   "/model",  "/save",
                                           "/load", "/tokens", "/logprobs", NULL };
_Static_assert(ARRAY_LEN(chat_command_names) == ARRAY_LEN(table) + 1, "one name per command");

static bool print_commands(struct chat *c, const char *argument, int *status)
{
    (void)c;
    (void)argument;
    (void)status;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        char left[32];
        snprintf(left, sizeof(left), "%s %s", table[i].name,
                 table[i].argument ? table[i].argument : "");
        out_say("  %-17s %s", left, table[i].help);
    }
    out_say("A line that ends with \\ goes on in the next;\n\"\"\" begins and ends several lines.\n"
            "Ctrl-C ends a reply.");
    return true;
}

/* /exit and /q are what people type from other programs; they are not listed. */
bool chat_command_run(struct chat *c, const char *line, int *status)
{
    size_t n = strcspn(line, " ");
    char word[32];
    const char *argument = line + n + strspn(line + n, " ");
    snprintf(word, sizeof(word), "%.*s", (int)n, line);
    if (strcmp(word, "/exit") == 0 || strcmp(word, "/q") == 0)
        return quit_chat(c, argument, status);
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (strcmp(table[i].name, word) == 0)
            return table[i].run(c, argument, status);
    const char *close = opt_closest(word, chat_command_names, ARRAY_LEN(table));
    out_say(close ? "(no command %s; did you mean %s?)" : "(no command %s; /help lists them%s)",
            word, close ? close : "");
    return true;
}
