/* config.c - see config.h.
 *
 * Of TOML the file needs tables, strings, numbers and truth values, one per line; anything else is
 * an error that names the line, not a setting that is silently missing. */
#include "cli/args/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/output/out.h"

enum { FILE_MAX = 1 << 20, VALUE_MAX = 4096, TABLE_MAX = 256 };

const struct config_key_info config_keys[CONFIG_KEYS] = {
    [CONFIG_API_KEY] = { .name = "api_key",
                         .variable = "TINKER_API_KEY",
                         .help = "credential",
                         .secret = true },
    [CONFIG_API_KEY_FILE] = { .name = "api_key_file", .help = "file with the credential" },
    [CONFIG_BASE_URL] = { .name = "base_url",
                          .variable = "TINKER_BASE_URL",
                          .help = "server; \"local\": this machine" },
    [CONFIG_CREDENTIAL_CMD] = { .name = "credential_cmd",
                                .variable = "TINKER_CREDENTIAL_CMD",
                                .help = "command that prints a credential" },
    [CONFIG_MODEL] = { .name = "model",
                       .variable = "TINKER_MODEL",
                       .help = "model of commands without -m" },
    [CONFIG_PROFILE] = { .name = "profile",
                         .variable = "TINKER_PROFILE",
                         .help = "profile without --profile" },
    [CONFIG_PROJECT_ID] = { .name = "project_id",
                            .variable = "TINKER_PROJECT_ID",
                            .help = "project that owns new sessions" },
    [CONFIG_TIMEOUT] = { .name = "timeout", .help = "give up after this long: 90, 15m, 2h" },
};

enum config_key config_find_key(const char *name)
{
    enum config_key k = 0;
    while (k < CONFIG_KEYS && strcmp(config_keys[k].name, name) != 0)
        k++;
    return k;
}

/* XDG_CONFIG_HOME first, as the base directory specification says.  false: neither variable is
 * set, as in some containers; then there is no file, which is not an error until one is to be
 * written. */
bool config_path(char out[CONFIG_PATH_MAX])
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (xdg && *xdg)
        snprintf(out, CONFIG_PATH_MAX, "%s/tinker/config.toml", xdg);
    else if (home && *home)
        snprintf(out, CONFIG_PATH_MAX, "%s/.config/tinker/config.toml", home);
    else
        return false;
    return true;
}

const char *config_redact(const char *secret, char out[16])
{
    size_t n = strlen(secret);
    /* A short text would be shown nearly whole. */
    if (n < 12)
        snprintf(out, 16, "****");
    else
        snprintf(out, 16, "%.4s...%s", secret, secret + n - 2);
    return out;
}

/* ---- one line ----------------------------------------------------------------------------- */

/* What one line of the file is. */
enum line_kind { LINE_EMPTY, LINE_TABLE, LINE_VALUE, LINE_WRONG };

struct line {
    enum line_kind kind;
    char name[TABLE_MAX];  /* of the table or the key */
    char value[VALUE_MAX]; /* of a string without quotes and escapes */
    const char *wrong;     /* LINE_WRONG: why */
};

/* \r is a blank, so files edited on Windows read the same. */
static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t\r");
}

static enum line_kind fail_line(struct line *l, const char *why)
{
    l->wrong = why;
    return LINE_WRONG;
}

/* A bare or quoted word into out; the place behind it, or NULL. */
static const char *read_word(const char *s, char *out, size_t size)
{
    /* TOML: double quotes have escapes, single quotes have none.  Numbers and truth values are
     * read as bare words; who uses a value knows its type. */
    static const char escapes[] = "\"\\ntbfr", bytes[] = "\"\\\n\t\b\f\r";
    char quote = *s == '"' || *s == '\'' ? *s : 0;
    size_t n = 0;
    for (s += quote != 0;
         quote ? *s && *s != quote : isalnum((unsigned char)*s) || strchr("_-.:", *s); s++) {
        char c = *s;
        if (!quote && !c)
            break;
        if (quote == '"' && c == '\\') {
            const char *e = s[1] ? strchr(escapes, s[1]) : NULL;
            if (!e)
                return NULL;
            c = bytes[e - escapes];
            s++;
        }
        if (n + 1 >= size)
            return NULL;
        out[n++] = c;
    }
    out[n] = 0;
    if (quote && *s != quote)
        return NULL;
    return n || quote ? s + (quote != 0) : NULL;
}

/* Of a table's name the quotes may be around each part; the parts are joined by dots. */
static enum line_kind read_table(const char *s, struct line *l)
{
    size_t n = 0;
    for (;;) {
        char part[TABLE_MAX];
        s = read_word(skip_blanks(s), part, sizeof(part));
        if (!s)
            return fail_line(l, "the name of a table is missing");
        int k = snprintf(l->name + n, sizeof(l->name) - n, "%s%s", n ? "." : "", part);
        if (k < 0 || (size_t)k >= sizeof(l->name) - n)
            return fail_line(l, "the name of the table is too long");
        n += (size_t)k;
        s = skip_blanks(s);
        if (*s == ']')
            break;
        if (*s++ != '.')
            return fail_line(l, "']' is missing");
    }
    s = skip_blanks(s + 1);
    return *s && *s != '#' ? fail_line(l, "there is something behind the table") : LINE_TABLE;
}

static enum line_kind read_line(const char *s, struct line *l)
{
    s = skip_blanks(s);
    if (!*s || *s == '#')
        return LINE_EMPTY;
    if (*s == '[')
        return s[1] == '[' ? fail_line(l, "arrays of tables are not supported")
                           : read_table(s + 1, l);
    s = read_word(s, l->name, sizeof(l->name));
    s = s ? skip_blanks(s) : NULL;
    if (!s || *s != '=')
        return fail_line(l, "expected: name = value");
    s = skip_blanks(s + 1);
    /* Arrays and inline tables are not read.  At the end of the line *s is 0, which strchr()
     * finds, too: that is "no value" as well. */
    s = strchr("[{", *s) ? NULL : read_word(s, l->value, sizeof(l->value));
    if (!s)
        return fail_line(l, "expected a text in quotes, a number, true or false");
    s = skip_blanks(s);
    return *s && *s != '#' ? fail_line(l, "there is something behind the value") : LINE_VALUE;
}

/* ---- the file ------------------------------------------------------------------------------- */

/* Call `each` for every line with the table it is in; stops when it returns false. */
typedef bool line_fn(const char *table, const struct line *l, const char *text, size_t n,
                     size_t number, void *state);
/* TOML allows no table inside of a line, so line by line is enough; `table` is the one last
 * opened. */
static void walk_lines(const char *text, line_fn *each, void *state)
{
    char table[TABLE_MAX] = "", copy[VALUE_MAX * 2];
    size_t number = 0;
    for (const char *s = text; *s; number++) {
        size_t n = strcspn(s, "\n");
        struct line l = { .kind = LINE_EMPTY };
        snprintf(copy, sizeof(copy), "%.*s", (int)n, s);
        l.kind = n < sizeof(copy) ? read_line(copy, &l) : fail_line(&l, "the line is too long");
        if (l.kind == LINE_TABLE)
            snprintf(table, sizeof(table), "%s", l.name);
        if (!each(table, &l, s, n, number + 1, state))
            return;
        s += n + (s[n] == '\n');
    }
}

/* Both levels of the file: [0] before all profiles, [1] of the profile that counts. */
struct settings {
    char *v[2][CONFIG_KEYS];
    const char *profile; /* NULL: none */
    bool found_profile, pass_top;
    const char *path;
    int status;
};
static struct settings settings;
static bool loaded;

/* Two passes: the profile may be named behind it. */
static bool keep_line(const char *table, const struct line *l, const char *text, size_t n,
                      size_t number, void *state)
{
    struct settings *s = state;
    (void)text;
    (void)n;
    if (l->kind == LINE_WRONG) {
        s->status = out_fail(EXIT_CONFIG, NULL, "%s:%zu: %s", s->path, number, l->wrong);
        return false;
    }
    bool mine =
        s->profile && strncmp(table, "profiles.", 9) == 0 && strcmp(table + 9, s->profile) == 0;
    s->found_profile = s->found_profile || mine;
    if (l->kind != LINE_VALUE || (s->pass_top ? *table != 0 : !mine))
        return true;
    enum config_key k = config_find_key(l->name);
    /* A misspelled name would otherwise be a setting that silently does nothing. */
    if (k == CONFIG_KEYS) {
        s->status = out_fail(EXIT_CONFIG, "tinker config list shows what there is.",
                             "%s:%zu: no such setting: %s", s->path, number, l->name);
        return false;
    }
    /* The last of several equal lines counts. */
    char **place = &s->v[s->pass_top ? 0 : 1][k];
    free(*place);
    *place = strdup(l->value);
    return *place != NULL;
}

/* A key that others can read is as good as published. */
static bool check_mode(const char *path)
{
    struct stat st;
    bool has_key = settings.v[0][CONFIG_API_KEY] || settings.v[1][CONFIG_API_KEY];
    if (!has_key || stat(path, &st) != 0 || !(st.st_mode & 077))
        return true;
    settings.status = out_fail(EXIT_CONFIG, "Protect it with: chmod 600 FILE",
                               "%s holds a key and can be read by others", path);
    return false;
}

static bool load_settings(void)
{
    static char path[CONFIG_PATH_MAX];
    char *text = NULL;
    size_t n;
    tinker_error err;
    const char *variable = getenv("TINKER_PROFILE");
    /* Read at most once per process, and only when no option and no variable has answered
     * already: most commands with TINKER_API_KEY set never touch the file. */
    if (loaded)
        return settings.status == EXIT_OK;
    loaded = true;
    settings.profile = globals.profile ? globals.profile : variable && *variable ? variable : NULL;
    settings.path = path;
    bool there = config_path(path) && access(path, F_OK) == 0;
    if (there && os_read_file(path, FILE_MAX, &text, &n, &err) != TINKER_OK) {
        settings.status = out_fail(EXIT_CONFIG, NULL, "%s", err.message);
        return false;
    }
    settings.pass_top = true;
    if (text)
        walk_lines(text, keep_line, &settings);
    /* --profile and TINKER_PROFILE are known before the file; the line `profile = "x"` is in it.
     * So the first pass reads the top of the file, the second one the profile. */
    if (!settings.profile)
        settings.profile = settings.v[0][CONFIG_PROFILE];
    settings.pass_top = false;
    if (text && settings.status == EXIT_OK && settings.profile)
        walk_lines(text, keep_line, &settings);
    free(text);
    if (settings.status == EXIT_OK && settings.profile && !settings.found_profile)
        settings.status = out_fail(EXIT_CONFIG, NULL, "there is no profile '%s' in %s",
                                   settings.profile, there ? path : "a configuration file");
    return settings.status == EXIT_OK && check_mode(path);
}

/* The option of the command line, for the settings that have one. */
static const char *read_option(enum config_key key, const char **from)
{
    switch (key) {
    case CONFIG_API_KEY:
        *from = "--api-key";
        return globals.api_key;
    case CONFIG_API_KEY_FILE:
        *from = "--api-key-file";
        return globals.api_key_file;
    case CONFIG_BASE_URL:
        *from = "--base-url";
        return globals.base_url;
    case CONFIG_PROFILE:
        *from = "--profile";
        return globals.profile;
    default:
        return NULL;
    }
}

/* Option, then variable, then file: the nearer to the command, the stronger.  An empty variable
 * counts as unset, so that `TINKER_API_KEY= tinker ...` switches one off. */
bool config_get(enum config_key key, const char **value, const char **from, int *status)
{
    const char *place = NULL;
    *value = read_option(key, &place);
    if (!*value && config_keys[key].variable) {
        place = config_keys[key].variable;
        *value = getenv(place);
        if (*value && !**value)
            *value = NULL;
    }
    if (!*value) {
        if (!load_settings()) {
            *status = settings.status;
            return false;
        }
        place = "config.toml";
        *value = settings.v[1][key] ? settings.v[1][key] : settings.v[0][key];
    }
    if (from)
        *from = *value ? place : NULL;
    return true;
}

/* ---- changing it -------------------------------------------------------------------------------- */

struct edit {
    struct buf out;
    const char *table, *name, *value;
    bool in_table, done;
};

static void put_setting(struct edit *e)
{
    if (e->value) {
        buf_printf(&e->out, "%s = \"", e->name);
        for (const char *p = e->value; *p; p++)
            buf_printf(&e->out, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
        buf_puts(&e->out, "\"\n");
    }
    e->done = true;
}

/* Copy the file line by line; the setting replaces its old line or ends its table. */
static bool edit_line(const char *table, const struct line *l, const char *text, size_t n,
                      size_t number, void *state)
{
    struct edit *e = state;
    (void)number;
    bool here = strcmp(table, e->table) == 0;
    /* The next table begins and the setting was not in this one: it is added at the end of it. */
    if (l->kind == LINE_TABLE && e->in_table && !e->done)
        put_setting(e);
    e->in_table = here;
    if (here && l->kind == LINE_VALUE && strcmp(l->name, e->name) == 0) {
        if (!e->done)
            put_setting(e);
        return true;
    }
    buf_append(&e->out, text, n);
    buf_putc(&e->out, '\n');
    return true;
}

/* Comments and the order of lines stay as the user wrote them; only the one line changes.  value
 * NULL removes it. */
tinker_status config_set(const char *profile, const char *name, const char *value,
                         tinker_error *err)
{
    char path[CONFIG_PATH_MAX], dir[CONFIG_PATH_MAX], table[TABLE_MAX] = "";
    char *text = NULL;
    size_t n;
    if (!config_path(path))
        return err_set(err, TINKER_ESTATE, "no home directory: set XDG_CONFIG_HOME");
    if (value && strpbrk(value, "\n\r"))
        return err_set(err, TINKER_EINVAL, "a setting has no line breaks");
    if (access(path, F_OK) == 0 && os_read_file(path, FILE_MAX, &text, &n, err) != TINKER_OK)
        return err->status;
    if (profile)
        snprintf(table, sizeof(table), "profiles.%s", profile);
    struct edit e = { .table = table, .name = name, .value = value, .in_table = !profile };
    buf_init(&e.out, FILE_MAX * 2);
    if (text)
        walk_lines(text, edit_line, &e);
    if (!e.done && value) {
        if (!e.in_table && *table)
            buf_printf(&e.out, "%s[%s]\n", e.out.len ? "\n" : "", table);
        /* Behind tables there is no place for what belongs before them. */
        if (!e.in_table && !*table) {
            struct buf rest = e.out;
            buf_init(&e.out, FILE_MAX * 2);
            put_setting(&e);
            buf_append(&e.out, rest.data ? rest.data : "", rest.len);
            buf_clear(&rest);
        } else {
            put_setting(&e);
        }
    }
    free(text);
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
    tinker_status status = buf_ok(&e.out) ? os_make_dirs(dir, err) : err_nomem(err, path);
    if (status == TINKER_OK)
        status = os_write_file(path, e.out.data ? e.out.data : "", e.out.len, err);
    buf_clear(&e.out);
    return status;
}
