/* The option parser: grammar, values, help and errors. */
#include <unistd.h>

#include "cli/command.h"
#include "cli/args/opt.h"
#include "support/tap.h"

static int64_t limit, span, size, count;
static double share;
static bool all;
static const char *name, *choice, *path, *second;
static struct opt_list words;
static struct opt_words rest;
static const char *const choices[] = { "red", "green", NULL };

static const struct opt opts[] = {
    { "limit", 'l', OPT_INT, "N", "how many", &limit, NULL },
    { "span", 0, OPT_DURATION, "TIME", "how long", &span, NULL },
    { "size", 0, OPT_SIZE, "SIZE", "how large", &size, NULL },
    { "share", 0, OPT_DOUBLE, "X", "how much", &share, NULL },
    { "all", 'a', OPT_FLAG, NULL, "everything", &all, NULL },
    { "more", 'm', OPT_COUNT, NULL, "again", &count, NULL },
    { "name", 'n', OPT_STRING, "NAME", "a name", &name, NULL },
    { "color", 0, OPT_CHOICE, "C", "a color", &choice, choices },
    { "word", 'w', OPT_LIST, "W", "a word", &words, NULL },
};
static const struct opt_arg args[] = { { "PATH", &path, false, NULL },
                                       { "SECOND", &second, true, NULL } };
static const struct opt_spec spec = {
    "test cmd", "About it.", opts, 9, args, 2, "tinker test cmd x"
};
static const struct opt_arg many[] = { { "REST", NULL, false, &rest } };
static const struct opt_spec spec_many = { "test many", "About it.", opts, 9, many, 1, NULL };

/* Parse a line of words separated by blanks; stderr goes into `said`. */
static char said[4096];
static int parse(const struct opt_spec *s, const char *line)
{
    static char copy[4096];
    static char *argv[1024] = { (char *)(uintptr_t) "test cmd" };
    int argc = 1, status = -1;
    snprintf(copy, sizeof(copy), "%s", line);
    for (char *p = copy; *p && argc < 1023;) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p)
            *p++ = 0;
    }
    limit = span = size = count = 0;
    share = 0;
    all = false;
    name = choice = path = second = NULL;
    words.n = rest.n = 0;
    FILE *out = tmpfile(), *err = tmpfile();
    int old_out = dup(1), old_err = dup(2);
    fflush(stdout);
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    bool go_on = opt_parse(s, argc, argv, &status);
    fflush(stdout);
    fflush(stderr);
    dup2(old_out, 1);
    dup2(old_err, 2);
    close(old_out);
    close(old_err);
    FILE *from = !go_on && status == 0 ? out : err;
    rewind(from);
    said[fread(said, 1, sizeof(said) - 1, from)] = 0;
    fclose(out);
    fclose(err);
    return go_on ? -1 : status;
}

static void test_forms(void)
{
    CHECK_INT(parse(&spec, "--limit 5 file"), -1);
    CHECK_INT(limit, 5);
    CHECK_STR(path, "file");
    CHECK(second == NULL);
    CHECK_INT(parse(&spec, "file --limit=-7 two"), -1);
    CHECK_INT(limit, -7);
    CHECK_STR(second, "two");
    CHECK_INT(parse(&spec, "-l3 file -nBob"), -1);
    CHECK_INT(limit, 3);
    CHECK_STR(name, "Bob");
    CHECK_INT(parse(&spec, "-amml 9 file"), -1);
    CHECK(all);
    CHECK_INT(count, 2);
    CHECK_INT(limit, 9);
    CHECK_INT(parse(&spec, "--name a --name b file"), -1);
    CHECK_STR(name, "b");
    CHECK_INT(parse(&spec, "-w a --word=b -wc file"), -1);
    CHECK_INT(words.n, 3);
    CHECK_STR(words.items[2], "c");
    CHECK_INT(parse(&spec, "-- --limit"), -1);
    CHECK_STR(path, "--limit");
    CHECK_INT(parse(&spec, "-"), -1);
    CHECK_STR(path, "-");
    CHECK_INT(parse(&spec_many, "a b -a c"), -1);
    CHECK_INT(rest.n, 3);
    CHECK_STR(rest.items[0], "a");
    CHECK_STR(rest.items[2], "c");
    CHECK_INT(parse(&spec_many, "-l 3 a --name=x -w y b -- -c"), -1);
    CHECK_INT(rest.n, 3);
    CHECK_STR(rest.items[1], "b");
    CHECK_STR(rest.items[2], "-c");
    CHECK_STR(name, "x");
    CHECK_STR(words.items[0], "y");
}

static void test_as_many_arguments_as_there_are(void)
{
    char line[2048] = "";
    for (int i = 0; i < 900; i++)
        snprintf(line + strlen(line), sizeof(line) - strlen(line), "%d ", i % 10);
    CHECK_INT(parse(&spec_many, line), -1);
    CHECK_INT(rest.n, 900);
    CHECK_STR(rest.items[899], "9");
}

static void test_values(void)
{
    CHECK_INT(parse(&spec, "f --span 90"), -1);
    CHECK_INT(span, 90);
    CHECK_INT(parse(&spec, "f --span 15m"), -1);
    CHECK_INT(span, 900);
    CHECK_INT(parse(&spec, "f --span 1.5h"), -1);
    CHECK_INT(span, 5400);
    CHECK_INT(parse(&spec, "f --span 1w --size 64M"), -1);
    CHECK_INT(span, 604800);
    CHECK_INT(size, 64 << 20);
    CHECK_INT(parse(&spec, "f --size 2G --share 0.25 --color green"), -1);
    CHECK_INT(size, (int64_t)2 << 30);
    CHECK_NEAR(share, 0.25, 0);
    CHECK_STR(choice, "green");
    CHECK_INT(parse(&spec, "f --span 0.2 --size 0"), -1);
    CHECK_INT(span, 1); /* not 0, which may mean something else */
    CHECK_INT(size, 0);
    CHECK_INT(parse(&spec, "f --span 15x"), EXIT_USAGE);
    CHECK_INT(parse(&spec, "f --size -1"), EXIT_USAGE);
    CHECK_INT(parse(&spec, "f --share nan"), EXIT_USAGE);
    CHECK_INT(parse(&spec, "f --limit 99999999999999999999"), EXIT_USAGE);
}

static void test_errors(void)
{
    CHECK_INT(parse(&spec, "f --limit abc"), EXIT_USAGE);
    CHECK_STR(said, "Usage: tinker test cmd [OPTIONS] PATH [SECOND]\n"
                    "Try 'tinker test cmd -h' for help.\n\n"
                    "Error: Invalid value for '--limit' / '-l': 'abc' is not a valid integer.\n");
    CHECK_INT(parse(&spec, ""), EXIT_USAGE);
    CHECK(strstr(said, "Error: Missing argument 'PATH'."));
    CHECK_INT(parse(&spec, "f --limt 3"), EXIT_USAGE);
    CHECK(strstr(said, "No such option: --limt Did you mean --limit?"));
    CHECK_INT(parse(&spec, "f --lim 3"), EXIT_USAGE);
    CHECK(strstr(said, "No such option: --lim Did you mean --limit?"));
    CHECK_INT(parse(&spec, "f -z"), EXIT_USAGE);
    CHECK(strstr(said, "No such option: -z"));
    CHECK_INT(parse(&spec, "f --color blue"), EXIT_USAGE);
    CHECK(strstr(said, "'blue' is not one of 'red', 'green'."));
    CHECK_INT(parse(&spec, "f --limit"), EXIT_USAGE);
    CHECK(strstr(said, "Option '--limit' requires an argument."));
    CHECK_INT(parse(&spec, "f --all=1"), EXIT_USAGE);
    CHECK_INT(parse(&spec, "a b c"), EXIT_USAGE);
    CHECK(strstr(said, "unexpected extra argument (c)"));
    CHECK_INT(parse(&spec, "f --nam=tml-secret"), EXIT_USAGE);
    CHECK(strstr(said, "No such option: --nam Did you mean --name?"));
    CHECK(!strstr(said, "secret"));
}

static void forget_globals(void)
{
    globals = (struct globals){ .format = "table", .time_format = "relative", .timeout = -1 };
}

static void test_usage_errors_as_json(void)
{
    CHECK_INT(parse(&spec, "--json f --limit abc"), EXIT_USAGE);
    CHECK_STR(said, "{\"error\":{\"code\":2,\"kind\":\"usage\",\"message\":\"Invalid value for "
                    "'--limit' / '-l': 'abc' is not a valid integer.\",\"hint\":\"Try 'tinker test "
                    "cmd -h' for help.\"}}\n");
    forget_globals();
    CHECK_INT(parse(&spec, "-f json"), EXIT_USAGE);
    CHECK(strstr(said, "{\"error\":{\"code\":2,") == said);
    forget_globals();
}

/* Accepted and ignored would be worse. */
static void test_globals_that_make_no_sense(void)
{
    CHECK_INT(parse(&spec, "f --timeout 0"), EXIT_USAGE);
    forget_globals();
    CHECK_INT(parse(&spec, "f --timeout 0.1"), -1);
    CHECK_INT(globals.timeout, 1);
    forget_globals();
    CHECK_INT(parse(&spec, "f --format csv"), EXIT_USAGE);
    CHECK(strstr(said, "'csv' is not one of 'table', 'json'."));
    forget_globals();
    globals.rows = true;
    CHECK_INT(parse(&spec, "f --format csv"), -1);
    CHECK_STR(globals.format, "csv");
    forget_globals();
}

static void test_help_comes_from_the_table(void)
{
    CHECK_INT(parse(&spec, "--help"), 0);
    CHECK(strstr(said, "About it."));
    CHECK(strstr(said, "-l, --limit N"));
    CHECK(strstr(said, "--color C"));
    CHECK(strstr(said, "tinker test cmd x"));
    CHECK_INT(parse(&spec, "-h --limit abc"), 0);
}

static void test_globals_anywhere(void)
{
    CHECK_INT(parse(&spec, "f --json"), -1);
    CHECK(globals.json);
    CHECK_STR(globals.format, "json");
    forget_globals();
    CHECK_INT(parse(&spec, "-f json f --base-url http://x"), -1);
    CHECK(globals.json);
    CHECK_STR(globals.base_url, "http://x");
    forget_globals();
    CHECK_INT(parse(&spec, "f --format xml"), EXIT_USAGE);
}

int main(void)
{
    RUN(test_forms);
    RUN(test_as_many_arguments_as_there_are);
    RUN(test_values);
    RUN(test_errors);
    RUN(test_help_comes_from_the_table);
    RUN(test_globals_anywhere);
    RUN(test_usage_errors_as_json);
    RUN(test_globals_that_make_no_sense);
    return tap_done();
}
