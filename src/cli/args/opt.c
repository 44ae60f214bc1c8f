/* opt.c - table-driven option parser: see opt.h.
 *
 * Errors and help follow the shape users know from the reference program. */
#include "cli/args/opt.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "cli/command.h"
#include "cli/output/out.h"

/* -1: not given, where 0 would mean something. */
struct globals globals = {
    .format = "table", .time_format = "relative", .timeout = -1, .retries = -1
};

/* jsonl, csv and tsv only for commands whose result is rows: see check_globals(). */
static const char *const formats[] = { "table", "json", "jsonl", "csv", "tsv", NULL };
static const char *const time_formats[] = { "relative", "rfc3339", "unix", NULL };

/* Options that every command takes, in the order of `tinker help options`. They may stand before
 * the command or behind it: opt_parse_globals() and opt_parse() read the same table. */
static const struct opt global_opts[] = {
    { .name = "format",
      .letter = 'f',
      .kind = OPT_CHOICE,
      .value = "FORMAT",
      .help = "table, json; listings also jsonl, csv, tsv",
      .out = &globals.format,
      .choices = formats },
    { .name = "json", .kind = OPT_FLAG, .help = "the same as --format json", .out = &globals.json },
    { .name = "base-url",
      .kind = OPT_STRING,
      .value = "URL",
      .help = "server, or local (default: TINKER_BASE_URL)",
      .out = &globals.base_url },
    { .name = "api-key",
      .kind = OPT_STRING,
      .value = "KEY",
      .help = "credential; TINKER_API_KEY is a safer place",
      .out = &globals.api_key },
    { .name = "api-key-file",
      .kind = OPT_STRING,
      .value = "FILE",
      .help = "read the credential from this file",
      .out = &globals.api_key_file },
    { .name = "profile",
      .kind = OPT_STRING,
      .value = "NAME",
      .help = "settings of the configuration file",
      .out = &globals.profile },
    { .name = "timeout",
      .kind = OPT_DURATION,
      .value = "TIME",
      .help = "give up after this long: 90, 15m, 2h",
      .out = &globals.timeout },
    { .name = "retries",
      .kind = OPT_INT,
      .value = "N",
      .help = "attempts of one request after the first",
      .out = &globals.retries },
    { .name = "time-format",
      .kind = OPT_CHOICE,
      .value = "FORM",
      .help = "relative, rfc3339 or unix",
      .out = &globals.time_format,
      .choices = time_formats },
    { .name = "quiet",
      .letter = 'q',
      .kind = OPT_FLAG,
      .help = "print only errors on stderr",
      .out = &globals.quiet },
    { .name = "verbose",
      .letter = 'v',
      .kind = OPT_COUNT,
      .help = "print more on stderr; repeat for more",
      .out = &globals.verbose },
    { .name = "log-file",
      .kind = OPT_STRING,
      .value = "FILE",
      .help = "append a log of all requests, without secrets",
      .out = &globals.log_file },
    { .name = "trace",
      .kind = OPT_STRING,
      .value = "FILE",
      .help = "write a timeline of all requests, for Perfetto",
      .out = &globals.trace },
    { .name = "yes",
      .letter = 'y',
      .kind = OPT_FLAG,
      .help = "answer every question with yes",
      .out = &globals.yes },
    { .name = "no-color", .kind = OPT_FLAG, .help = "plain text only", .out = &globals.no_color },
    { .name = "no-progress",
      .kind = OPT_FLAG,
      .help = "no progress bars",
      .out = &globals.no_progress },
    { .name = "compat-exit",
      .kind = OPT_FLAG,
      .help = "exit 1 where the reference does, not 3 to 9",
      .out = &globals.compat_exit },
};

/* ---- values ---------------------------------------------------------------- */

/* Decimal, all of the text, in range. */
static bool read_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    /* strtoll() skips blanks and stops at the first other character; errno tells an overflow
     * from LLONG_MAX. */
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno)
        return false;
    *out = v;
    return true;
}

/* NaN and infinity are numbers to strtod() but to no option. */
static bool read_double(const char *s, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (end == s || *end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

/* A non-negative number followed by at most one letter of `units`, whose factors are given in
 * the same order. Fractions are rounded up: 0.5s is one second, never zero. */
static bool read_scaled(const char *s, const char *units, const double *factors, int64_t *out)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || !isfinite(v) || v < 0)
        return false;
    double factor = 1;
    if (*end) {
        const char *unit = strchr(units, *end);
        if (!unit || end[1])
            return false;
        factor = factors[unit - units];
    }
    v *= factor;
    if (v > 9.0e18)
        return false;
    /* Below 2^63, by the check above. */
    *out = (int64_t)ceil(v);
    return true;
}

/* Seconds without a unit. */
bool opt_read_duration(const char *s, int64_t *seconds)
{
    static const double factors[] = { 1, 60, 3600, 86400, 604800 };
    return read_scaled(s, "smhdw", factors, seconds);
}

/* Units are powers of 1024, in either case. */
bool opt_read_size(const char *s, int64_t *bytes)
{
    static const double factors[] = {
        0x1p10, 0x1p20, 0x1p30, 0x1p40, 0x1p10, 0x1p20, 0x1p30, 0x1p40
    };
    return read_scaled(s, "KMGTkmgt", factors, bytes);
}

/* ---- errors and help ---------------------------------------------------------- */

/* "Usage: tinker COMMAND [OPTIONS] ARG [OPTIONAL] [MANY...]" */
static void print_usage_line(FILE *f, const struct opt_spec *spec)
{
    fprintf(f, "Usage: tinker%s%s [OPTIONS]", *spec->command ? " " : "", spec->command);
    for (size_t i = 0; i < spec->n_args; i++) {
        const struct opt_arg *a = &spec->args[i];
        fprintf(f, a->optional ? " [%s%s]" : " %s%s", a->name, a->many ? "..." : "");
    }
    fputc('\n', f);
}

/* --json and --format json are the same; afterwards both members agree. */
static void settle_globals(void)
{
    if (globals.json)
        globals.format = "json";
    globals.json = strcmp(globals.format, "json") == 0;
}

/* Usage, hint and error in the layout of the official program, or JSON if --json was read
 * before the mistake. */
int opt_usage_error(const struct opt_spec *spec, const char *fmt, ...)
{
    char message[1024], hint[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    snprintf(hint, sizeof(hint), "Try 'tinker%s%s -h' for help.", *spec->command ? " " : "",
             spec->command);
    settle_globals();
    if (globals.json)
        return out_fail(EXIT_USAGE, hint, "%s", message);
    print_usage_line(stderr, spec);
    fprintf(stderr, "%s\n\nError: %s\n", hint, message);
    return EXIT_USAGE;
}

void opt_print_entry(FILE *f, size_t column, const char *left, const char *help)
{
    enum { LEAST = 20, PIPE = 80 };
    size_t width = out_width(fileno(f));
    width = width ? width : PIPE;
    size_t room = width >= column + LEAST ? width - column : LEAST;
    if (column)
        fprintf(f, "  %-*s", (int)column - 2, left);
    while (strlen(help) > room) {
        size_t n = room;
        while (n > 0 && help[n] != ' ')
            n--;
        if (n == 0)
            break;
        fprintf(f, "%.*s\n%*s", (int)n, help, (int)column, "");
        help += n + 1;
    }
    fprintf(f, "%s\n", help);
}

/* Options longer than the left column have their help on the next line. */
static void print_option(const struct opt *o)
{
    char left[64];
    int n = o->letter ? snprintf(left, sizeof(left), "-%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof(left), "--%s", o->name);
    if (o->value && n > 0 && (size_t)n < sizeof(left))
        snprintf(left + n, sizeof(left) - (size_t)n, " %s", o->value);
    /* A description beside a left column of more than 26 characters would begin past column 30. */
    bool beside = strlen(left) <= 26;
    if (!beside)
        printf("  %s\n", left);
    opt_print_entry(stdout, 30, beside ? left : "", o->help);
}

/* The options of the command; those of all commands have a page of their own. The man pages in
 * docs/man say the same at length. */
static void print_help(const struct opt_spec *spec)
{
    print_usage_line(stdout, spec);
    printf("\n%s\n", spec->about);
    if (spec->n_opts)
        printf("\nOptions:\n");
    for (size_t i = 0; i < spec->n_opts; i++)
        print_option(&spec->opts[i]);
    if (spec->example)
        printf("\nExample:\n  %s\n", spec->example);
    printf("\nAll commands also take the global options: tinker help options\n");
}

void opt_print_globals(void)
{
    printf("Options of all commands, before or after the name of the command:\n\n");
    for (size_t i = 0; i < ARRAY_LEN(global_opts); i++)
        print_option(&global_opts[i]);
    opt_print_entry(stdout, 30, "-h, --help", "show help");
    printf("\nEach can be given for good in the configuration file or the environment where\n"
           "tinker config list shows a name for it.\n");
}

/* Levenshtein distance: how many characters to insert, delete or replace. One row of the matrix
 * is kept; `diagonal` is the cell above and to the left. Long words are never close. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    size_t na = strlen(a), nb = strlen(b), row[MAX + 1];
    if (na > MAX || nb > MAX)
        return MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        /* row[j] is the distance between the first i - 1 letters of a and the first j of b. */
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t above = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[nb];
}

/* Words of up to four letters may differ in one place, longer ones in two. */
const char *opt_closest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) > 4 ? 3 : 2;
    for (size_t i = 0; i < n; i++) {
        /* The beginning of a name is as good as one slip. */
        size_t d = strncmp(word, names[i], strlen(word)) == 0 ? 1 : edit_distance(word, names[i]);
        if (*word && d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

/* ---- parsing ------------------------------------------------------------------ */

/* By letter if it is not 0, else by the name s[0..n). */
static const struct opt *find_in_table(const struct opt *opts, size_t count, const char *s,
                                       size_t n, char letter)
{
    for (size_t i = 0; i < count; i++)
        if (letter ? opts[i].letter == letter
                   : strlen(opts[i].name) == n && memcmp(opts[i].name, s, n) == 0)
            return &opts[i];
    return NULL;
}

/* The command's own table first: it may shadow a global option, as `serve --api-key` does. */
static const struct opt *find_option(const struct opt_spec *spec, const char *s, size_t n,
                                     char letter)
{
    const struct opt *o = find_in_table(spec->opts, spec->n_opts, s, n, letter);
    return o ? o : find_in_table(global_opts, ARRAY_LEN(global_opts), s, n, letter);
}

/* What stands behind = is not repeated in the message: it may be a key.
 * Letters have no neighbors worth suggesting; only long names are compared. */
static void fail_unknown_option(const struct opt_spec *spec, const char *option)
{
    enum { MAX = 96 };
    const char *names[MAX];
    char word[128];
    size_t n = 0;
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(option, "="), option);
    for (size_t i = 0; i < spec->n_opts && n < MAX; i++)
        names[n++] = spec->opts[i].name;
    for (size_t i = 0; i < ARRAY_LEN(global_opts) && n < MAX; i++)
        names[n++] = global_opts[i].name;
    const char *close = strncmp(word, "--", 2) == 0 ? opt_closest(word + 2, names, n) : NULL;
    if (close)
        opt_usage_error(spec, "No such option: %s Did you mean --%s?", word, close);
    else
        opt_usage_error(spec, "No such option: %s", word);
}

/* Always false, so that it can end a condition. */
static bool fail_invalid_value(const struct opt_spec *spec, const struct opt *o, const char *value,
                               const char *what)
{
    char letter[8] = "";
    if (o->letter)
        snprintf(letter, sizeof(letter), " / '-%c'", o->letter);
    opt_usage_error(spec, "Invalid value for '--%s'%s: '%s' is not %s.", o->name, letter, value,
                    what);
    return false;
}

/* The list of choices for the message is built during the search. */
static bool store_choice(const struct opt_spec *spec, const struct opt *o, const char *value)
{
    char list[256] = "one of ";
    size_t n = strlen(list), first = n;
    for (const char *const *c = o->choices; *c; c++) {
        if (strcmp(*c, value) == 0) {
            *(const char **)o->out = *c;
            return true;
        }
        int k = snprintf(list + n, sizeof(list) - n, "%s'%s'", n > first ? ", " : "", *c);
        if (k > 0 && n + (size_t)k < sizeof(list))
            n += (size_t)k;
    }
    return fail_invalid_value(spec, o, value, list);
}

/* Convert the value and store it where the table says. value is NULL for flags and counts. */
static bool store_value(const struct opt_spec *spec, const struct opt *o, const char *value)
{
    switch (o->kind) {
    case OPT_FLAG:
        *(bool *)o->out = true;
        return true;
    /* -vv counts 2. */
    case OPT_COUNT:
        ++*(int64_t *)o->out;
        return true;
    case OPT_STRING:
        *(const char **)o->out = value;
        return true;
    case OPT_CHOICE:
        return store_choice(spec, o, value);
    case OPT_INT:
        return read_int(value, o->out) || fail_invalid_value(spec, o, value, "a valid integer");
    case OPT_DOUBLE:
        return read_double(value, o->out) || fail_invalid_value(spec, o, value, "a valid number");
    case OPT_DURATION:
        return opt_read_duration(value, o->out) ||
               fail_invalid_value(spec, o, value, "a duration such as 90, 15m or 2h");
    case OPT_SIZE:
        return opt_read_size(value, o->out) ||
               fail_invalid_value(spec, o, value, "a size such as 64M or 2G");
    /* Lists have a fixed size so that options need no memory of their own and nothing to free. */
    case OPT_LIST: {
        struct opt_list *list = o->out;
        if (list->n == OPT_LIST_MAX)
            return fail_invalid_value(spec, o, value, "accepted: given too often");
        list->items[list->n++] = value;
        return true;
    }
    }
    return false;
}

/* Flags and counts stand alone; all other kinds take the next word. */
static bool takes_value(const struct opt *o)
{
    return o->kind != OPT_FLAG && o->kind != OPT_COUNT;
}

/* Always false, as above. */
static bool fail_missing_value(const struct opt_spec *spec, const struct opt *o)
{
    opt_usage_error(spec, "Option '--%s' requires an argument.", o->name);
    return false;
}

/* argv[*i] starts with "--"; on success *i is the last argument consumed. */
static bool parse_long(const struct opt_spec *spec, int argc, char **argv, int *i)
{
    const char *word = argv[*i] + 2;
    size_t n = strcspn(word, "=");
    const struct opt *o = find_option(spec, word, n, 0);
    if (!o) {
        fail_unknown_option(spec, argv[*i]);
        return false;
    }
    /* "--name=" gives an empty value, which is a value. */
    const char *value = word[n] == '=' ? word + n + 1 : NULL;
    if (!takes_value(o)) {
        if (value) {
            opt_usage_error(spec, "Option '--%s' does not take a value.", o->name);
            return false;
        }
        return store_value(spec, o, NULL);
    }
    if (!value) {
        if (*i + 1 >= argc)
            return fail_missing_value(spec, o);
        value = argv[++*i];
    }
    return store_value(spec, o, value);
}

/* argv[*i] is "-abc": flags may be joined; the first that takes a value takes the rest of the
 * word, or the next word. */
static bool parse_short(const struct opt_spec *spec, int argc, char **argv, int *i)
{
    for (const char *p = argv[*i] + 1; *p; p++) {
        const struct opt *o = find_option(spec, NULL, 0, *p);
        if (!o) {
            char word[3] = { '-', *p, 0 };
            fail_unknown_option(spec, word);
            return false;
        }
        if (!takes_value(o)) {
            if (!store_value(spec, o, NULL))
                return false;
            continue;
        }
        /* "-n5" and "-n 5" are the same. */
        const char *value = p[1] ? p + 1 : *i + 1 < argc ? argv[++*i] : NULL;
        return value ? store_value(spec, o, value) : fail_missing_value(spec, o);
    }
    return true;
}

/* argv[i] is an argument, *n the number of single arguments before it. Arguments of a `many`
 * kind are moved to argv[1] and on: those places have been read already. */
static bool take_argument(const struct opt_spec *spec, size_t *n, char **argv, int i)
{
    const struct opt_arg *a = *n < spec->n_args ? &spec->args[*n] : NULL;
    if (!a) {
        opt_usage_error(spec, "Got unexpected extra argument (%s)", argv[i]);
        return false;
    }
    if (!a->many) {
        *a->out = argv[i];
        ++*n;
        return true;
    }
    a->many->items = argv + 1;
    a->many->items[a->many->n++] = argv[i];
    return true;
}

/* Looked for by hand rather than in the table, since it ends the parsing without running
 * anything. */
static bool is_help(const char *s)
{
    return strcmp(s, "-h") == 0 || strcmp(s, "--help") == 0;
}

int64_t opt_wait_ms(int64_t usual_ms)
{
    if (globals.timeout < 0)
        return usual_ms;
    return globals.timeout > INT64_MAX / 1000 ? INT64_MAX : globals.timeout * 1000;
}

/* What the table of global options cannot express. */
static bool check_globals(const struct opt_spec *spec)
{
    settle_globals();
    if (globals.timeout == 0)
        opt_usage_error(spec, "Invalid value for '--timeout': must be more than 0.");
    else if (globals.retries < -1 || globals.retries > 1000)
        opt_usage_error(spec, "Invalid value for '--retries': must be 0 to 1000.");
    else if (!globals.json && !globals.rows && strcmp(globals.format, "table") != 0)
        opt_usage_error(spec,
                        "Invalid value for '--format' / '-f': '%s' is not one of 'table', 'json'.",
                        globals.format);
    else
        return true;
    return false;
}

/* `tinker completion` asks a command for its options without running it: with a hook set,
 * opt_parse() hands over the table and reports a stop. */
static opt_hook *spec_hook;
static void *spec_hook_state;

void opt_set_hook(opt_hook *hook, void *state)
{
    spec_hook = hook;
    spec_hook_state = state;
}

/* Options and arguments may be mixed; "--" ends options; "-" alone is an argument. Help wins as
 * soon as it is seen. */
bool opt_parse(const struct opt_spec *spec, int argc, char **argv, int *status)
{
    bool options = true;
    size_t n = 0;
    *status = EXIT_USAGE;
    if (spec_hook) {
        spec_hook(spec, spec_hook_state);
        return false;
    }
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i];
        if (options && is_help(s)) {
            print_help(spec);
            *status = EXIT_OK;
            return false;
        }
        if (options && strcmp(s, "--") == 0) {
            options = false;
            continue;
        }
        bool ok = !options || s[0] != '-' || !s[1] ? take_argument(spec, &n, argv, i)
                  : s[1] == '-'                    ? parse_long(spec, argc, argv, &i)
                                                   : parse_short(spec, argc, argv, &i);
        if (!ok)
            return false;
    }
    /* After the loop: --json may stand behind the option that it makes sense of. */
    if (!check_globals(spec))
        return false;
    for (; n < spec->n_args; n++) {
        const struct opt_arg *a = &spec->args[n];
        if (!a->optional && !(a->many && a->many->n)) {
            opt_usage_error(spec, "Missing argument '%s'.", a->name);
            return false;
        }
    }
    *status = EXIT_OK;
    return true;
}

/* What help shows for a group: it has no options of its own, only commands. */
struct opt_spec opt_group(const char *name)
{
    static const struct opt_arg args[] = { { .name = "COMMAND" }, { .name = "[ARGS]..." } };
    return (
        struct opt_spec){ .command = name, .about = "", .args = args, .n_args = ARRAY_LEN(args) };
}

/* For completion, which offers these before any command. */
struct opt_spec opt_globals(void)
{
    return (struct opt_spec){
        .command = "", .about = "", .opts = global_opts, .n_opts = ARRAY_LEN(global_opts)
    };
}

/* Stops at the first word that is no option, at help and at --version. */
bool opt_parse_globals(const char *group, int argc, char **argv, int *next, int *status)
{
    const struct opt_spec spec = opt_group(group);
    int i = 1;
    *status = EXIT_USAGE;
    for (; i < argc && argv[i][0] == '-' && argv[i][1] && !is_help(argv[i]); i++) {
        if (strcmp(argv[i], "--version") == 0)
            break;
        bool ok = argv[i][1] == '-' ? parse_long(&spec, argc, argv, &i)
                                    : parse_short(&spec, argc, argv, &i);
        if (!ok)
            return false;
    }
    settle_globals();
    *next = i;
    return true;
}
