/* config.h - settings that outlive a command: ~/.config/tinker/config.toml.
 *
 *     profile = "work"                  # the profile without --profile
 *     model = "Qwen/Qwen3-0.6B"         # of all profiles
 *     [profiles.work]
 *     base_url = "http://10.0.0.5:8000"
 *
 * A setting comes from, in this order: the option, the environment, the profile, the lines
 * before the first profile, the built-in default.  The file is read once, when the first command
 * asks.  Not thread-safe. */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>

enum { CONFIG_PATH_MAX = 4096 };

/* What can be set; config_key_names[] has the spelling. */
enum config_key {
    CONFIG_API_KEY,
    CONFIG_API_KEY_FILE,
    CONFIG_BASE_URL,
    CONFIG_CREDENTIAL_CMD,
    CONFIG_MODEL,
    CONFIG_PROFILE,
    CONFIG_PROJECT_ID,
    CONFIG_TIMEOUT,
    CONFIG_KEYS
};
struct config_key_info {
    const char *name;     /* in the file */
    const char *variable; /* in the environment; NULL: none */
    const char *help;
    bool secret;
};
extern const struct config_key_info config_keys[CONFIG_KEYS];
/* CONFIG_KEYS: there is no such key. */
enum config_key config_find_key(const char *name);

/* The value that counts and where it is from ("--base-url", "TINKER_BASE_URL", "config.toml");
 * *value NULL: not set.  false after the error was printed (exit status in *status): the file is
 * broken, or readable by others although it holds a key. */
bool config_get(enum config_key key, const char **value, const char **from, int *status);

/* Change one line of the file, in the profile of --profile (NULL: before all profiles); value NULL
 * removes it.  Comments and everything else stay. */
tinker_status config_set(const char *profile, const char *name, const char *value,
                         tinker_error *err);
/* Where the file is, there or not.  false: there is no home directory. */
bool config_path(char out[CONFIG_PATH_MAX]);

/* "tml-…9f" for a secret; out holds at least 16 bytes. */
const char *config_redact(const char *secret, char out[16]);

#endif
