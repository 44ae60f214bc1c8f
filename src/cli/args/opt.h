/* opt.h - options and arguments of a command from one table, help text included.
 *
 *     int64_t limit = 20;
 *     const struct opt opts[] = {
 *         { .name = "limit", .kind = OPT_INT, .value = "N",
 *           .help = "how many to show (default 20)", .out = &limit },
 *     };
 *     const char *path = NULL;
 *     const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
 *     const struct opt_spec spec = { .command = "checkpoint info", .about = "Show one checkpoint.",
 *                                    .opts = opts, .n_opts = 1, .args = args, .n_args = 1,
 *                                    .example = "tinker checkpoint info tinker://RUN/weights/1" };
 *     int status;
 *     if (!opt_parse(&spec, argc, argv, &status))
 *         return status;
 *
 * Grammar: --name value, --name=value, -o value, -ovalue; no abbreviations; options
 * and arguments may be mixed; -- ends options; the last value of a repeated option
 * wins unless its kind is OPT_LIST.  The global options are accepted everywhere.
 * Strings point into argv, whose order parsing may change.  Not thread-safe. */
#ifndef CLI_OPT_H
#define CLI_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum opt_kind {               /* what `out` points to */
                OPT_FLAG,     /* bool */
                OPT_COUNT,    /* int64_t, one more per occurrence */
                OPT_STRING,   /* const char * */
                OPT_CHOICE,   /* const char *, one of `choices` */
                OPT_INT,      /* int64_t */
                OPT_DOUBLE,   /* double */
                OPT_DURATION, /* int64_t seconds: 90, 90s, 15m, 2h, 7d, 1w */
                OPT_SIZE,     /* int64_t bytes: 4096, 64K, 64M, 2G, 1T */
                OPT_LIST      /* struct opt_list, one item per occurrence */
};

enum { OPT_LIST_MAX = 256 };
struct opt_list {
    const char *items[OPT_LIST_MAX];
    size_t n;
};

struct opt {
    const char *name; /* without dashes */
    char letter;      /* 0: no short form */
    enum opt_kind kind;
    const char *value; /* name of the value in the help; NULL for flags */
    const char *help;
    void *out;
    const char *const *choices; /* NULL-terminated; OPT_CHOICE only */
};

/* Any number of arguments, one behind the other in argv. */
struct opt_words {
    char **items;
    size_t n;
};

struct opt_arg {
    const char *name; /* "CHECKPOINT_PATH" */
    const char **out; /* NULL when `many` is set */
    bool optional;
    struct opt_words *many; /* takes all that is left; only for the last one */
};

struct opt_spec {
    const char *command; /* "checkpoint info"; "" for the program itself */
    const char *about;   /* a sentence or a few lines */
    const struct opt *opts;
    size_t n_opts;
    const struct opt_arg *args;
    size_t n_args;
    const char *example; /* a command line that works; NULL: none */
};

/* Parse argv[1..argc).  true: go on.  false: return *status, which is 0 after
 * --help (printed to stdout) and EXIT_USAGE after an error (printed to stderr). */
bool opt_parse(const struct opt_spec *spec, int argc, char **argv, int *status);

/* For usage errors of a group of commands, or of the program (""). */
struct opt_spec opt_group(const char *name);
/* The options that all commands have. */
struct opt_spec opt_globals(void);

/* Milliseconds of --timeout when it was given, else usual_ms: the deadline of one wait. */
int64_t opt_wait_ms(int64_t usual_ms);

/* Print them: the page of `tinker help options`. */
void opt_print_globals(void);

/* While there is a hook, opt_parse() hands it the spec and goes no further: so the options of a
 * command are told without running it.  NULL: none. */
typedef void opt_hook(const struct opt_spec *spec, void *state);
void opt_set_hook(opt_hook *hook, void *state);

/* Parse leading global options only, those of the program ("") or behind the name of a group;
 * *next is the first argument that is none. */
bool opt_parse_globals(const char *group, int argc, char **argv, int *next, int *status);

/* Print a usage error in the same form for checks the table cannot express;
 * returns EXIT_USAGE. */
int opt_usage_error(const struct opt_spec *spec, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The closest of names[0..n) to `word`, or NULL when none is close. */
const char *opt_closest(const char *word, const char *const *names, size_t n);

bool opt_read_duration(const char *s, int64_t *seconds);
bool opt_read_size(const char *s, int64_t *bytes);

/* A line of help, `help` from the given column on (0: a paragraph without `left`); what does not fit
 * the terminal, or 80 columns in a pipe, goes to lines below. */
void opt_print_entry(FILE *f, size_t column, const char *left, const char *help);

#endif
