/* cmd_completion.c - `tinker completion`: a script with which a shell completes commands, options
 * and their values.
 *
 * It is made from the tables that the parser uses and asks nobody at run time: models, runs and
 * checkpoints are those of the last lists (names_cache.h).  A word that
 * follows an option with a value is that value, so the options of all commands that have one are
 * known to the script; what is left are the words of the command and its arguments. */
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"

struct script {
    const struct command *command; /* whose options are told */
    bool globals;                  /* tell those of all commands */
};

/* Call hook with the options of every command, then with the global ones. The commands are run
 * with a hook set, in which opt_parse() hands over its table and stops: see opt_set_hook(). */
static void visit_options(opt_hook *hook)
{
    for (size_t i = n_commands;
         i-- > 0;) { /* "serve status" before "serve", which is its beginning */
        /* NAME is copied because a command may write into its argv. */
        struct script s = { &commands[i], false };
        char name[64], *argv[] = { name, NULL };
        snprintf(name, sizeof(name), "%s", commands[i].name);
        opt_set_hook(hook, &s);
        commands[i].run(1, argv);
    }
    opt_set_hook(NULL, NULL);
    struct script s = { NULL, true };
    const struct opt_spec all = opt_globals();
    hook(&all, &s);
}

/* The words that may follow `group`: the first words of all commands for "", else the commands
 * of that group. The table is sorted, so equal words are neighbors. */
static void put_next_words(const char *group)
{
    size_t len = strlen(group);
    const char *last = "";
    size_t last_len = 0;
    bool first = true;
    for (size_t i = 0; i < n_commands; i++) {
        const char *word = commands[i].name;
        if (len && (strncmp(word, group, len) != 0 || word[len] != ' '))
            continue;
        word += len + (len > 0);
        size_t word_len = strcspn(word, " ");
        if (word_len == last_len && memcmp(word, last, word_len) == 0)
            continue;
        printf("%s%.*s", first ? "" : " ", (int)word_len, word);
        first = false;
        last = word;
        last_len = word_len;
    }
}

/* Is entry i the first of a group of commands? */
static bool begins_group(size_t i)
{
    size_t len = strcspn(commands[i].name, " ");
    if (!commands[i].name[len])
        return false;
    for (size_t k = 0; k < i; k++)
        if (strncmp(commands[k].name, commands[i].name, len) == 0 && commands[k].name[len] == ' ')
            return false;
    return true;
}

/* ---- bash and zsh --------------------------------------------------------------------------- */

/* Options that take a value: the script skips the word behind them. */
static void put_valued_options(const struct opt_spec *spec, void *state)
{
    (void)state;
    for (size_t i = 0; i < spec->n_opts; i++) {
        const struct opt *o = &spec->opts[i];
        /* Flags have no value name, and only they have none. */
        if (!o->value)
            continue;
        printf(" --%s", o->name);
        if (o->letter)
            printf(" -%c", o->letter);
    }
}

/* The kind of names that a value or argument takes, as names_cache.h has them; NULL: none. */
static const char *find_name_kind(const char *what)
{
    static const struct {
        const char *what, *kind;
    } kinds[] = {
        { .what = "model", .kind = "models" },
        { .what = "path", .kind = "checkpoints" },
        { .what = "run-id", .kind = "runs" },
        { .what = "RUN_ID", .kind = "runs" },
        { .what = "PATH", .kind = "checkpoints" },
        { .what = "CHECKPOINT_PATH", .kind = "checkpoints" },
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].what, what) == 0)
            return kinds[i].kind;
    return NULL;
}

/* A case pattern for "COMMAND WORDS OPTION": global options match behind any command. */
static void put_bash_pattern(const struct script *s, const char *option)
{
    if (s->globals)
        printf("*\" %s\"", option);
    else
        printf("\"%s\"*\" %s\"", s->command->name, option);
}

/* One case per option with fixed choices; other values fall back to file names. */
static void put_bash_values(const struct opt_spec *spec, void *state)
{
    for (size_t i = 0; i < spec->n_opts; i++) {
        const struct opt *o = &spec->opts[i];
        const char *kind = find_name_kind(o->name);
        char option[64];
        if (!o->choices && !kind)
            continue;
        printf("        ");
        snprintf(option, sizeof(option), "--%s", o->name);
        put_bash_pattern(state, option);
        if (o->letter) {
            snprintf(option, sizeof(option), "-%c", o->letter);
            printf(" | ");
            put_bash_pattern(state, option);
        }
        printf(") choices=\"");
        for (const char *const *c = o->choices; c && *c; c++)
            printf("%s%s", c == o->choices ? "" : " ", *c);
        if (kind)
            printf("$(_tinker_names %s)", kind);
        printf("\" ;;\n");
    }
}

/* Commands whose first argument is one of those names.
 * Only the first argument: no command takes two of them. */
static void put_bash_arguments(const struct opt_spec *spec, void *state)
{
    const struct script *s = state;
    const char *kind = spec->n_args && !s->globals ? find_name_kind(spec->args[0].name) : NULL;
    if (kind)
        printf("        \"%s\") choices=\"$(_tinker_names %s)\" ;;\n", s->command->name, kind);
}

/* Long names only: they explain themselves in a list of completions. */
static void put_option_names(const struct opt_spec *spec)
{
    for (size_t i = 0; i < spec->n_opts; i++)
        printf(" --%s", spec->opts[i].name);
}

/* The options of one command, offered also behind its arguments. */
static void put_bash_options(const struct opt_spec *spec, void *state)
{
    const struct script *s = state;
    if (s->globals || !spec->n_opts)
        return;
    printf("        \"%s\" | \"%s \"*) choices=\"", s->command->name, s->command->name);
    put_option_names(spec);
    printf("\" ;;\n");
}

/* The words that complete a command name, one case per group. */
static void put_bash_groups(void)
{
    printf("        \"\") choices=\"");
    put_next_words("");
    printf(" help\" ;;\n");
    for (size_t i = 0; i < n_commands; i++) {
        char group[64];
        if (!begins_group(i))
            continue;
        snprintf(group, sizeof(group), "%.*s", (int)strcspn(commands[i].name, " "),
                 commands[i].name);
        printf("        \"%s\") choices=\"", group);
        put_next_words(group);
        printf("\" ;;\n");
    }
    printf("        completion) choices=\"bash fish zsh\" ;;\n");
}

/* The function walks over the words before the cursor, skips options and their values, and
 * collects the rest in $at: the command. What is offered depends on $at and on whether the
 * cursor stands behind an option with a value ($skip) or on a dash. */
static void print_bash(void)
{
    const struct opt_spec all = opt_globals();
    /* Ids and paths have colons in them, which must not part words. */
    printf("COMP_WORDBREAKS=\"${COMP_WORDBREAKS//:/}\"\n"
           "_tinker_names()\n{\n"
           "    cat -- \"${XDG_CACHE_HOME:-$HOME/.cache}/tinker/names/$1\" 2>/dev/null\n}\n"
           "_tinker()\n{\n"
           "    local valued=\"");
    visit_options(put_valued_options);
    printf(" \" word= at= skip= choices= cur=\"${COMP_WORDS[COMP_CWORD]}\" i\n"
           "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
           "        word=\"${COMP_WORDS[i]}\"\n"
           "        if [[ -n $skip ]]; then\n"
           "            skip=\n"
           "        elif [[ $valued == *\" $word \"* ]]; then\n"
           "            skip=yes\n"
           "        elif [[ $word != -* ]]; then\n"
           "            at=\"$at${at:+ }$word\"\n"
           "        fi\n"
           "    done\n"
           "    [[ $at == help || $at == \"help \"* ]] && at=\"${at#help}\" && at=\"${at# }\"\n"
           "    if [[ -n $skip ]]; then\n"
           "        case \"$at $word\" in\n");
    visit_options(put_bash_values);
    printf("        esac\n"
           "    elif [[ $cur == -* ]]; then\n"
           "        case \"$at\" in\n");
    visit_options(put_bash_options);
    printf("        esac\n"
           "        choices=\"$choices");
    put_option_names(&all);
    printf(" --help --version\"\n"
           "    else\n"
           "        case \"$at\" in\n");
    visit_options(put_bash_arguments);
    put_bash_groups();
    printf("        esac\n"
           "    fi\n"
           "    COMPREPLY=($(compgen -W \"$choices\" -- \"$cur\"))\n"
           "}\n"
           "complete -o default -F _tinker tinker\n");
}

/* zsh runs the bash script through its own emulation.
 * One script for both shells cannot differ between them. */
static void print_zsh(void)
{
    printf("autoload -U +X compinit && compinit\n"
           "autoload -U +X bashcompinit && bashcompinit\n");
    print_bash();
}

/* ---- fish ----------------------------------------------------------------------------------- */

/* Single quotes of fish know two escapes, for the quote and the backslash. */
static void put_quoted(const char *s)
{
    putchar('\'');
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\')
            putchar('\\');
        putchar(*s);
    }
    putchar('\'');
}

/* One `complete` line per option; -x: only the choices, -r: a value is required. */
static void put_fish_options(const struct opt_spec *spec, void *state)
{
    const struct script *s = state;
    for (size_t i = 0; i < spec->n_opts; i++) {
        const struct opt *o = &spec->opts[i];
        printf("complete -c tinker");
        if (!s->globals)
            printf(" -n '__tinker_at \"%s\" yes'", s->command->name);
        printf(" -l %s", o->name);
        if (o->letter)
            printf(" -s %c", o->letter);
        /* Fixed choices, names of the cache, or anything at all; a flag takes nothing. */
        if (o->choices) {
            printf(" -xa '");
            for (const char *const *c = o->choices; *c; c++)
                printf("%s%s", c == o->choices ? "" : " ", *c);
            putchar('\'');
        } else if (find_name_kind(o->name)) {
            printf(" -xa '(__tinker_names %s)'", find_name_kind(o->name));
        } else if (o->value) {
            printf(" -r");
        }
        printf(" -d ");
        put_quoted(o->help);
        putchar('\n');
    }
}

/* First words, then the commands of each group with their summary. */
static void put_fish_commands(void)
{
    printf("complete -c tinker -n '__tinker_at \"\"' -xa '");
    put_next_words("");
    printf(" help'\n");
    for (size_t i = 0; i < n_commands; i++) {
        const char *space = strchr(commands[i].name, ' ');
        if (!space)
            continue;
        printf("complete -c tinker -n '__tinker_at \"%.*s\"' -xa %s -d ",
               (int)(space - commands[i].name), commands[i].name, space + 1);
        put_quoted(commands[i].summary);
        putchar('\n');
    }
    printf("complete -c tinker -n '__tinker_at completion' -xa 'bash fish zsh'\n");
}

/* __tinker_at does what the loop of the bash function does; its condition guards each line. */
static void print_fish(void)
{
    printf("function __tinker_names\n"
           "    set -l cache $XDG_CACHE_HOME\n"
           "    test -n \"$cache\"; or set cache ~/.cache\n"
           "    cat $cache/tinker/names/$argv[1] 2>/dev/null\n"
           "end\n"
           "# Are the words of the command these?  yes: there may be arguments, too.\n"
           "function __tinker_at --argument-names wanted more\n"
           "    set -l at\n"
           "    set -l skip\n"
           "    for word in (commandline -opc)[2..-1]\n"
           "        if test -n \"$skip\"\n"
           "            set skip\n"
           "        else if contains -- $word");
    visit_options(put_valued_options);
    printf("\n"
           "            set skip yes\n"
           "        else if not string match -q -- '-*' $word\n"
           "            set at $at $word\n"
           "        end\n"
           "    end\n"
           "    test \"$at[1]\" = help; and set -e at[1]\n"
           "    test \"$at\" = \"$wanted\"; and return 0\n"
           "    test -n \"$more\"; and string match -q -- \"$wanted *\" \"$at\"\n"
           "end\n");
    put_fish_commands();
    visit_options(put_fish_options);
    printf("complete -c tinker -l version -d 'print the version'\n"
           "complete -c tinker -s h -l help -d 'describe the command'\n");
}

/* ---- the command ---------------------------------------------------------------------------- */

/* The script goes to stdout; where to put it depends on the shell and the system. */
int cmd_completion(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = { { "bash", print_bash }, { "fish", print_fish }, { "zsh", print_zsh } };
    const char *shell = NULL;
    const struct opt_arg args[] = { { .name = "SHELL", .out = &shell } };
    const struct opt_spec spec = {
        .command = "completion",
        .about = "Print a script that completes commands and options in bash, fish or zsh.",
        .args = args,
        .n_args = 1,
        .example = "tinker completion bash > ~/.local/share/bash-completion/completions/tinker"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    for (size_t i = 0; i < ARRAY_LEN(shells); i++)
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].print();
            return EXIT_OK;
        }
    return opt_usage_error(
        &spec, "Invalid value for 'SHELL': '%s' is not one of 'bash', 'fish', 'zsh'.", shell);
}
