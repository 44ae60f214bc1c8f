/* cmd_config.c - `tinker config list|get|set|unset|path`: settings that outlive a command. */
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "cli/args/config.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/listing.h"
#include "cli/output/out.h"

/* The value as people may see it.
 * A key is never shown whole, not even to its owner: terminals are recorded and shared. */
static const char *show_value(enum config_key k, const char *value, char redacted[16])
{
    return !value ? "" : config_keys[k].secret ? config_redact(value, redacted) : value;
}

/* For commands without options: only their names, words and arguments differ. */
static bool parse_plain(const char *command, const char *about, const struct opt_arg *args,
                        size_t n_args, const char *example, int argc, char **argv, int *status)
{
    const struct opt_spec spec = {
        .command = command, .about = about, .args = args, .n_args = n_args, .example = example
    };
    return opt_parse(&spec, argc, argv, status);
}

/* What holds now, wherever it is from: "From" tells a variable of the shell from the file, which
 * is the usual cause of a setting that does not take effect. */
int cmd_config_list(int argc, char **argv)
{
    static const char *const columns[] = { "Setting", "Value", "From", "Meaning" };
    struct listing l;
    int status;
    if (!parse_plain("config list", "Show all settings, their values and where those are from.",
                     NULL, 0, "tinker config list", argc, argv, &status))
        return status;
    listing_init(&l, columns, ARRAY_LEN(columns));
    for (enum config_key k = 0; k < CONFIG_KEYS; k++) {
        const char *value, *from;
        char redacted[16];
        /* A broken file was reported by config_get(). */
        if (!config_get(k, &value, &from, &status)) {
            listing_clear(&l);
            return status;
        }
        listing_cell(&l, config_keys[k].name);
        listing_cell(&l, show_value(k, value, redacted));
        listing_cell(&l, from ? from : "");
        listing_cell(&l, config_keys[k].help);
        struct json_writer *w = listing_object(&l);
        json_put_begin_object(w);
        json_put_key(w, "name");
        json_put_string(w, config_keys[k].name);
        json_put_key(w, "value");
        if (value)
            json_put_string(w, show_value(k, value, redacted));
        else
            json_put_null(w);
        json_put_key(w, "from");
        if (from)
            json_put_string(w, from);
        else
            json_put_null(w);
        json_put_end_object(w);
        listing_object_end(&l);
    }
    return listing_print(&l, "Settings", "{\"settings\":[");
}

/* Settings are few enough to be suggested by their spelling. */
static int fail_unknown_setting(const char *name)
{
    const char *names[CONFIG_KEYS];
    char hint[128] = "tinker config list shows what there is.";
    for (enum config_key k = 0; k < CONFIG_KEYS; k++)
        names[k] = config_keys[k].name;
    const char *close = opt_closest(name, names, CONFIG_KEYS);
    if (close)
        snprintf(hint, sizeof(hint), "Did you mean %s?", close);
    return out_fail(EXIT_USAGE, hint, "no such setting: %s", name);
}

/* EXIT_NOT_FOUND for a setting without a value, so that scripts can tell it from an empty one. */
int cmd_config_get(int argc, char **argv)
{
    const char *name = NULL, *value;
    const struct opt_arg args[] = { { .name = "SETTING", .out = &name } };
    char redacted[16];
    int status;
    if (!parse_plain("config get", "Print one setting; a key only in part.", args, 1,
                     "tinker config get base_url", argc, argv, &status))
        return status;
    enum config_key k = config_find_key(name);
    if (k == CONFIG_KEYS)
        return fail_unknown_setting(name);
    if (!config_get(k, &value, NULL, &status))
        return status;
    if (!value)
        return out_fail(EXIT_NOT_FOUND, NULL, "%s is not set", name);
    puts(show_value(k, value, redacted));
    return EXIT_OK;
}

/* value NULL removes it.  A wrong name is refused here, because a file with an unknown name
 * stops every later command. */
static int change_setting(const char *name, const char *value)
{
    tinker_error err;
    if (config_find_key(name) == CONFIG_KEYS)
        return fail_unknown_setting(name);
    if (config_set(globals.profile, name, value, &err) != TINKER_OK)
        return out_fail(err.status == TINKER_EINVAL ? EXIT_USAGE : EXIT_IO, NULL, "%s",
                        err.message);
    return EXIT_OK;
}

/* VALUE is not checked beyond line breaks: what a setting allows is known to the command that
 * uses it, and it names the file in its message. */
int cmd_config_set(int argc, char **argv)
{
    const char *name = NULL, *value = NULL;
    const struct opt_arg args[] = { { .name = "SETTING", .out = &name },
                                    { .name = "VALUE", .out = &value } };
    int status;
    if (!parse_plain("config set", "Write a setting, with --profile into that profile.", args, 2,
                     "tinker config set model tinker/tiny", argc, argv, &status))
        return status;
    return change_setting(name, value);
}

/* Without the setting the command succeeds: afterwards it is not set, which is what was asked
 * for. */
int cmd_config_unset(int argc, char **argv)
{
    const char *name = NULL;
    const struct opt_arg args[] = { { .name = "SETTING", .out = &name } };
    int status;
    if (!parse_plain("config unset", "Remove a setting, with --profile from that profile.", args, 1,
                     "tinker config unset model", argc, argv, &status))
        return status;
    return change_setting(name, NULL);
}

/* Printed whether or not the file is there, so that `$EDITOR "$(tinker config path)"` makes one. */
int cmd_config_path(int argc, char **argv)
{
    char path[CONFIG_PATH_MAX];
    int status;
    if (!parse_plain("config path", "Print where the configuration file is, there or not.", NULL, 0,
                     "tinker config path", argc, argv, &status))
        return status;
    if (!config_path(path))
        return out_fail(EXIT_CONFIG, NULL, "no home directory: set XDG_CONFIG_HOME");
    puts(path);
    return EXIT_OK;
}
