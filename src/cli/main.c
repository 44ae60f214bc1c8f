/* main.c - the program: find the command, run it.
 *
 * Commands of several words ("checkpoint list") are found by the longest match; a
 * group without a command prints its members.  No network, no files are touched
 * before a command runs, so --help and version are instant. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/sampling.h>

#include "base/array.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"

/* `tinker help exit-codes`; the man page and scripts rely on these numbers. */
static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    { EXIT_OK, "success" },
    { EXIT_FAILED, "the server or the operation failed" },
    { EXIT_USAGE, "wrong usage" },
    { EXIT_CONFIG, "configuration or credential problem (missing key, 401, 403)" },
    { EXIT_PARTIAL, "some items of a batch failed" },
    { EXIT_NOT_FOUND, "not found (404)" },
    { EXIT_CAPACITY, "rate limited or out of capacity until the deadline" },
    { EXIT_NETWORK, "network unreachable or timed out" },
    { EXIT_DATA, "local input data invalid" },
    { EXIT_IO, "local input or output failed" },
    { EXIT_INTERRUPTED, "interrupted (143: terminated) after a clean stop" },
};

/* What the first page of help shows, in the order in which a newcomer needs it.  A group stands for
 * its commands, which `tinker GROUP` lists. */
static const struct {
    const char *title, *names;
} sections[] = {
    { .title = "Start here", .names = "models chat train eval serve doctor" },
    { .title = "Text and tokens", .names = "sample logprobs tokenize detokenize render" },
    { .title = "What you made", .names = "run checkpoint session weights" },
    { .title = "The service", .names = "auth whoami model billing cost audit api bench conform" },
    { .title = "The program", .names = "config completion version" },
};

/* Is the word the first of a command with several words? */
static bool is_group(const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i < n_commands; i++)
        if (n && strncmp(commands[i].name, word, n) == 0 && commands[i].name[n] == ' ')
            return true;
    return false;
}

/* NULL for a group: its name alone is no command. */
static const struct command *find_exact(const char *name)
{
    for (size_t i = 0; i < n_commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* One topic of the first page: a command, a group with its members, or both; nothing for a name
 * that this program does not have. */
static void list_topic(FILE *f, const char *word)
{
    /* Wide enough for "detokenize" and two blanks, so that all summaries begin in one column. */
    enum { COLUMN = 15 };
    const struct command *c = find_exact(word);
    char members[512] = "";
    size_t n = strlen(word), used = 0;
    for (size_t i = 0; i < n_commands; i++) {
        const char *name = commands[i].name;
        /* snprintf() returns the length that it wanted, so `used` may pass the end; the check
         * stops there and the list is cut, not the stack. */
        if (strncmp(name, word, n) == 0 && name[n] == ' ' && used < sizeof(members))
            used += (size_t)snprintf(members + used, sizeof(members) - used, "%s%s",
                                     used ? ", " : "", name + n + 1);
    }
    if (c)
        opt_print_entry(f, COLUMN, word, c->summary);
    if (used)
        opt_print_entry(f, COLUMN, c ? "" : word, members);
}

/* The first page of help: by subject, not by the alphabet, with the groups' members in one line. */
static void list_sections(FILE *f)
{
    char names[128];
    fprintf(f, "Usage: tinker [OPTIONS] COMMAND [ARGS]...\n\n");
    opt_print_entry(f, 0, "",
                    "Fine-tune and sample language models through the Tinker API: on this machine, "
                    "on a server of your own, or on the hosted service.");
    for (size_t i = 0; i < ARRAY_LEN(sections); i++) {
        fprintf(f, "\n%s:\n", sections[i].title);
        snprintf(names, sizeof(names), "%s", sections[i].names);
        for (char *rest = names, *word; (word = strtok_r(rest, " ", &rest)) != NULL;)
            list_topic(f, word);
    }
    fputc('\n', f);
    opt_print_entry(
        f, 0, "",
        "Try 'tinker COMMAND -h' for help on one, 'tinker help options' for the options "
        "of all commands, 'tinker help commands' for a list, 'tinker help exit-codes'.");
}

/* Print the commands below `group` ("": all of them), one per line, beside the longest name. */
static void list_commands(FILE *f, const char *group)
{
    size_t n = strlen(group), longest = 0;
    /* Two arrays rather than a sort: the table is alphabetical already. */
    const char *below[COMMANDS_MAX], *summaries[COMMANDS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < n_commands; i++) {
        const char *name = commands[i].name;
        if (n && (strncmp(name, group, n) != 0 || name[n] != ' '))
            continue;
        below[count] = n ? name + n + 1 : name;
        summaries[count] = commands[i].summary;
        if (strlen(below[count]) > longest)
            longest = strlen(below[count]);
        count++;
    }
    fprintf(f, "Usage: tinker%s%s [OPTIONS] COMMAND [ARGS]...\n\nCommands:\n", n ? " " : "", group);
    for (size_t i = 0; i < count; i++)
        opt_print_entry(f, longest + 4, below[i], summaries[i]);
    fprintf(f, "\nTry 'tinker%s%s COMMAND -h' for help on one.\n", n ? " " : "", group);
}

/* How many words of argv match the command name? 0 unless all words of the name do. */
static int match_words(const char *name, int argc, char **argv)
{
    int words = 0;
    while (*name) {
        size_t n = strcspn(name, " ");
        if (words >= argc || strlen(argv[words]) != n || memcmp(argv[words], name, n) != 0)
            return 0;
        words++;
        name += n;
        name += *name == ' ';
    }
    return words;
}

/* The longest match wins: "serve status" before "serve". */
static const struct command *find_command(int argc, char **argv, int *words)
{
    const struct command *best = NULL;
    *words = 0;
    for (size_t i = 0; i < n_commands; i++) {
        int n = match_words(commands[i].name, argc, argv);
        if (n > *words) {
            *words = n;
            best = &commands[i];
        }
    }
    return best;
}

/* The command `word` of any group: "sft" is "train sft". NULL: none. */
static const char *find_by_last_word(const char *word)
{
    for (size_t i = 0; i < n_commands; i++) {
        const char *blank = strrchr(commands[i].name, ' ');
        if (blank && strcmp(blank + 1, word) == 0)
            return commands[i].name;
    }
    return NULL;
}

/* group is "" for the program itself. The closest name within the group is suggested; for the
 * program the names of groups count, too, and so does a command whose group was left out. */
static int fail_unknown_command(const char *group, const char *word)
{
    const char *names[COMMANDS_MAX] = { NULL };
    /* Of "checkpoint list" the word "checkpoint": candidates must end at the first blank. */
    char first_words[COMMANDS_MAX][32];
    size_t count = 0, n = strlen(group);
    for (size_t i = 0; i < n_commands; i++) {
        const char *name = commands[i].name;
        if (!n) {
            snprintf(first_words[count], sizeof(first_words[count]), "%.*s",
                     (int)strcspn(name, " "), name);
            names[count] = first_words[count];
            count++;
        } else if (strncmp(name, group, n) == 0 && name[n] == ' ') {
            names[count++] = name + n + 1;
        }
    }
    /* NULL when nothing is near enough: a wild guess helps less than no guess. */
    const char *close = opt_closest(word, names, count);
    if (!close && !n)
        close = find_by_last_word(word);
    const struct opt_spec spec = opt_group(group);
    return close ? opt_usage_error(&spec, "No such command '%s'. Did you mean '%s'?", word, close)
                 : opt_usage_error(&spec, "No such command '%s'.", word);
}

/* tinker help [COMMAND...]: the same as COMMAND --help. */
static int run_help(int argc, char **argv)
{
    int words;
    if (argc < 1) {
        list_sections(stdout);
        return EXIT_OK;
    }
    if (strcmp(argv[0], "commands") == 0) {
        list_commands(stdout, "");
        return EXIT_OK;
    }
    if (strcmp(argv[0], "options") == 0) {
        opt_print_globals();
        return EXIT_OK;
    }
    if (strcmp(argv[0], "exit-codes") == 0) {
        for (size_t i = 0; i < ARRAY_LEN(exit_codes); i++)
            printf("%3d  %s\n", exit_codes[i].code, exit_codes[i].meaning);
        return EXIT_OK;
    }
    const struct command *c = find_command(argc, argv, &words);
    if (c) {
        /* Writable copies, as strings of argv are; the command itself prints its help. */
        char name[64], flag[] = "--help";
        snprintf(name, sizeof(name), "%s", c->name);
        char *args[] = { name, flag, NULL };
        return c->run(2, args);
    }
    if (!is_group(argv[0]))
        return fail_unknown_command("", argv[0]);
    if (argc > 1)
        return fail_unknown_command(argv[0], argv[1]);
    list_commands(stdout, argv[0]);
    return EXIT_OK;
}

/* Help is recognized before any other option, also behind a group. */
static bool wants_help(const char *s)
{
    return strcmp(s, "-h") == 0 || strcmp(s, "--help") == 0;
}

static int dispatch_command(int argc, char **argv);

/* argv[0] is a group, and what follows does not name one of its commands. */
static int dispatch_group(int argc, char **argv)
{
    int next, status;
    if (argc > 1 && wants_help(argv[1])) {
        list_commands(stdout, argv[0]);
        return EXIT_OK;
    }
    if (!opt_parse_globals(argv[0], argc, argv, &next, &status))
        return status;
    if (next > 1) { /* options between the two words: as if they stood before */
        argv[next - 1] = argv[0];
        return dispatch_command(argc - next + 1, argv + next - 1);
    }
    if (argc > 1)
        return fail_unknown_command(argv[0], argv[1]);
    list_commands(stderr, argv[0]);
    return EXIT_USAGE;
}

/* argv[0] is the first word behind the global options. */
static int dispatch_command(int argc, char **argv)
{
    int words;
    if (argc < 1) {
        list_sections(stderr);
        return EXIT_USAGE;
    }
    if (wants_help(argv[0]) || strcmp(argv[0], "help") == 0)
        return run_help(argc - 1, argv + 1);
    if (strcmp(argv[0], "--version") == 0)
        return cmd_version(argc, argv);
    const struct command *c = find_command(argc, argv, &words);
    if (c) {
        /* A command may have been given as two words; the parser prints the name it finds in
         * argv[0]. */
        char name[64]; /* the command finds its full name in argv[0] */
        snprintf(name, sizeof(name), "%s", c->name);
        argv[words - 1] = name;
        globals.rows = c->rows;
        return c->run(argc - words + 1, argv + words - 1);
    }
    return is_group(argv[0]) ? dispatch_group(argc, argv) : fail_unknown_command("", argv[0]);
}

/* Overwrite text[from] and on with asterisks and go on with a copy: /proc/PID/cmdline shows the
 * original memory to everybody. */
static void hide_text(char **text, size_t from)
{
    char *copy = strdup(*text);
    if (!copy)
        return;
    memset(*text + from, '*', strlen(*text + from));
    *text = copy;
}

/* The process list shows the arguments for as long as the program runs: no keys, then. */
static void hide_keys(int argc, char **argv)
{
    static const char *const options[] = { "--api-key", "--admin-key" };
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < ARRAY_LEN(options); k++) {
            size_t n = strlen(options[k]);
            if (strncmp(argv[i], options[k], n) != 0)
                continue;
            if (argv[i][n] == '=')
                hide_text(&argv[i], n + 1);
            else if (!argv[i][n] && i + 1 < argc)
                hide_text(&argv[++i], 0);
        }
}

/* Started by the library as a subprocess, never by hand, so it is not in the table. 2: no such
 * program started it. */
static int run_sampling_helper(void)
{
    int status = tinker_sampling_helper();
    if (status == 2)
        fprintf(stderr, "tinker: sampling-helper is started by programs that sample\n");
    return status;
}

/* Exit status: that of the command; 9 if its output could not be written.  --compat-exit maps 3 to 9
 * to 1, as the official program does. */
int main(int argc, char **argv)
{
    int next, status;
    /* A reader that leaves is seen as EPIPE, which ends the program quietly. */
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "sampling-helper") == 0)
        return run_sampling_helper();
    /* A write beyond the file size limit then fails with EFBIG, an ordinary error. */
    signal(SIGXFSZ, SIG_IGN);
    hide_keys(argc, argv);
    if (!opt_parse_globals("", argc, argv, &next, &status))
        return status;
    status = dispatch_command(argc - next, argv + next);
    if (status == EXIT_OK)
        status = out_finish();
    /* Usage errors (2) and signals (128 and above) keep their numbers. */
    if (globals.compat_exit && status >= EXIT_CONFIG && status <= EXIT_IO)
        status = EXIT_FAILED;
    return status;
}
