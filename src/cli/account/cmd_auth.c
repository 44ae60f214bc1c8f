/* cmd_auth.c - `tinker auth login|logout|status|whoami` and `tinker whoami`.
 *
 * The texts are those of the official program, whose file of keys is shared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <termios.h>
#include <tinker/extra/account.h>
#include <tinker/extra/http.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/log.h"
#include "cli/account/stored_key.h"
#include "cli/args/config.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"
#include "json/json.h"

/* Where keys are made by hand.  Hosted service only: a server of one's own has no console. */
#define CONSOLE "https://tinker.thinkingmachines.ai/keys"
#define SELF    "/api/v1/auth/apikey/me"

/* For commands without options. */
static bool parse_bare(const char *command, const char *about, int argc, char **argv, int *status)
{
    char example[64];
    snprintf(example, sizeof(example), "tinker %s", command);
    const struct opt_spec spec = { .command = command, .about = about, .example = example };
    return opt_parse(&spec, argc, argv, status);
}

/* An address that terminals make clickable (OSC 8); plain text elsewhere. */
static void print_link(const char *label, const char *url)
{
    if (out_can_draw(STDOUT_FILENO))
        printf("%s\033]8;;%s\033\\%s\033]8;;\033\\\n", label, url, url);
    else
        printf("%s%s\n", label, url);
}

/* ---- login ---------------------------------------------------------------------------------- */

/* A line from the terminal, with an asterisk for every character; from a pipe as it is. */
static void read_secret(const char *prompt, char *out, size_t size)
{
    struct termios old, raw;
    size_t n = 0;
    /* Echo and line mode go off together: without line mode each character can be answered by an
     * asterisk, and erasing must then be done by hand.  TCSAFLUSH drops what was typed before
     * the prompt, so a stray Enter is not taken for an empty key.  Byte 4 is Ctrl-D. */
    bool terminal = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &old) == 0;
    fputs(prompt, stdout);
    fflush(stdout);
    if (terminal) {
        raw = old;
        raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    }
    for (char c; read(STDIN_FILENO, &c, 1) == 1 && c != '\n' && c != '\r' && c != 4;) {
        bool erase = terminal && (c == 0x7f || c == '\b');
        if (erase && n) {
            n--;
            fputs("\b \b", stdout);
        } else if (!erase && n + 1 < size) {
            out[n++] = c;
            if (terminal)
                putchar('*');
        }
        fflush(stdout);
    }
    if (terminal)
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &old);
    putchar('\n');
    out[n] = 0;
}

/* {"key_id", "name", "note", "details": {"org_details": {"name"}, "user_details": {"email"}}} */
static bool read_identity(struct json_reader *r, struct stored_key *k, bool org)
{
    struct json_str key;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        char *text = NULL;
        int64_t id;
        if (json_peek(r) == JSON_OBJECT) {
            ok = read_identity(r, k, json_str_is(key, "org_details"));
        } else if (json_str_is(key, "key_id") && json_peek(r) == JSON_NUMBER) {
            ok = json_int64(r, &id);
            snprintf(k->id, sizeof(k->id), "%lld", (long long)id);
        } else if (json_peek(r) != JSON_STRING) {
            ok = json_skip(r);
        } else if ((ok = json_cstring(r, &text))) {
            if (json_str_is(key, "name"))
                snprintf(org ? k->org : k->name, sizeof(k->name), "%s", text);
            else if (json_str_is(key, "note"))
                snprintf(k->note, sizeof(k->note), "%s", text);
            else if (json_str_is(key, "email"))
                snprintf(k->email, sizeof(k->email), "%s", text);
            else if (json_str_is(key, "key_id"))
                snprintf(k->id, sizeof(k->id), "%s", text);
        }
    }
    return ok;
}

/* Ask the service whose key it is.  globals.api_key is set for this one request, ahead of every
 * other place a key may come from: it is this key that must be good. */
static int check_key(struct stored_key *k)
{
    struct api a;
    tinker_error err;
    int status;
    char details[1024];
    globals.api_key = k->key;
    if (!api_open(&a, &status))
        return status;
    tinker_future *f = tinker_service_call(a.service, "GET", SELF, NULL, 0, NULL, &err);
    if (f && api_await(f, &err) == TINKER_OK) {
        const tinker_response *answer = tinker_future_response(f);
        struct arena arena;
        struct json_reader r;
        arena_init(&arena, 1 << 20);
        json_reader_init(&r, answer->body, answer->n_body, &arena);
        bool ok = read_identity(&r, k, false) && k->id[0];
        arena_clear(&arena);
        status = ok ? EXIT_OK
                    : out_fail(EXIT_FAILED, "Is the address that of a Tinker service?",
                               "Could not validate the API key");
    } else if (err.http_status) {
        /* The service has answered and refuses the key; no answer at all is a network problem, with
         * the exit status of one. */
        snprintf(details, sizeof(details), "%s (HTTP %d from " SELF ")", err.message,
                 err.http_status);
        status = out_fail(EXIT_CONFIG, details, "Could not validate the API key");
    } else {
        status = api_fail(&err, f);
    }
    tinker_future_free(f);
    api_close(&a);
    return status;
}

/* The key is checked before it is stored: one that does not work would be found out much later. */
int cmd_auth_login(int argc, char **argv)
{
    struct stored_key k = { .type = "manual" }, old;
    tinker_error err;
    bool found;
    int status;
    char host[128] = "", url[512];
    if (!parse_bare("auth login", "Store an API key for this user.", argc, argv, &status))
        return status;
    if (stored_key_read(&old, &found, &err) != TINKER_OK)
        return out_fail(EXIT_CONFIG, NULL, "%s", err.message);
    if (found)
        return out_fail(EXIT_CONFIG, "Run 'tinker auth logout' before logging in again.",
                        "Already logged in");
    gethostname(host, sizeof(host) - 1);
    snprintf(url, sizeof(url), CONSOLE "?new_key=true&key_name=tinker-cli-%s", host);
    print_link("Create an API Key: ", url);
    putchar('\n');
    read_secret("Paste your API key: ", k.key, sizeof(k.key));
    /* Pasting from a web page brings blanks and a line end along; a key has neither. */
    char *key = k.key + strspn(k.key, " \t");
    memmove(k.key, key, strlen(key) + 1);
    k.key[strcspn(k.key, " \t\r\n")] = 0;
    if (!k.key[0])
        return out_fail(EXIT_CONFIG, NULL, "The API key must not be empty");
    /* From here on no log line shows the key, whatever is logged. */
    log_secret(k.key);
    status = check_key(&k);
    if (status != EXIT_OK)
        return status;
    if (stored_key_write(&k, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    printf("Logged in as %s (%s). Stored API key '%s' as the default credential.\n", k.email, k.org,
           k.name);
    return EXIT_OK;
}

/* ---- logout, status ----------------------------------------------------------------------------- */

/* A key that was made for this machine is of no use without it. */
static bool delete_on_server(struct stored_key *k)
{
    struct api a;
    tinker_error err;
    int status;
    globals.api_key = k->key;
    if (!api_open(&a, &status))
        return false;
    tinker_future *f = tinker_service_call(a.service, "DELETE", SELF, NULL, 0, NULL, &err);
    bool ok = f && api_await(f, &err) == TINKER_OK;
    tinker_future_free(f);
    api_close(&a);
    return ok;
}

/* The local key goes whatever the service says; what is left to do by hand is told. */
int cmd_auth_logout(int argc, char **argv)
{
    struct stored_key k;
    tinker_error err;
    bool found;
    int status;
    char url[256], hint[1024];
    if (!parse_bare("auth logout", "Remove the stored API key.", argc, argv, &status))
        return status;
    if (stored_key_read(&k, &found, &err) != TINKER_OK)
        return out_fail(EXIT_CONFIG, NULL, "%s", err.message);
    if (!found)
        return out_fail(EXIT_CONFIG,
                        "There is nothing to log out from. Run 'tinker auth login' to log in.",
                        "No default credential is stored");
    /* "manual" keys were made in the console and may be in use elsewhere, so they stay valid;
     * "generated" ones were made by `login` of the official program for this machine alone. */
    bool generated = strcmp(k.type, "generated") == 0;
    bool deleted = generated && delete_on_server(&k);
    if (stored_key_remove(&err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    const char *org = k.org[0] ? k.org : "unknown (not stored with this credential)";
    snprintf(url, sizeof(url), CONSOLE "/%s", k.id);
    if (generated && !deleted) {
        snprintf(hint, sizeof(hint),
                 "Removed the local credential.\nAPI key name: %s\nAPI key ID: %s\nAPI key "
                 "organization: %s\nDelete api key here: %s",
                 k.name, k.id, org, url);
        return out_fail(EXIT_FAILED, hint, "Could not delete the API key on the server");
    }
    if (generated) {
        printf("Removed credential '%s' and deleted its API key on the server.\n", k.name);
        return EXIT_OK;
    }
    printf("Removed credential '%s'. The API key is still active.\nAPI key organization: %s\n",
           k.name, org);
    print_link("Delete api key here: ", url);
    return EXIT_OK;
}

/* Is there a credential, wherever it is from?
 * In the order in which api_open() looks: option or variable or file, command, key file, login. */
static bool has_credential(int *status)
{
    const char *key, *command, *file;
    struct stored_key k;
    tinker_error err;
    bool found = false;
    if (!config_get(CONFIG_API_KEY, &key, NULL, status) ||
        !config_get(CONFIG_CREDENTIAL_CMD, &command, NULL, status) ||
        !config_get(CONFIG_API_KEY_FILE, &file, NULL, status))
        return false;
    stored_key_read(&k, &found, &err);
    return key || command || file || found;
}

/* Two questions with two answers, because the remedies differ. */
int cmd_auth_status(int argc, char **argv)
{
    struct api a;
    int status = EXIT_OK;
    if (!parse_bare("auth status", "Is there a credential, and does the service take it?", argc,
                    argv, &status))
        return status;
    /* A broken configuration file is neither "yes" nor "no". */
    bool has = has_credential(&status);
    if (status != EXIT_OK)
        return status;
    printf("Credentials available: %s\n", has ? "yes" : "no");
    if (!has)
        return out_fail(EXIT_CONFIG, "Run 'tinker auth login' or configure a Tinker credential.",
                        "No Tinker credentials are available");
    if (!api_open(&a, &status))
        return status;
    tinker_future *f = api_get_capabilities(&a, &status);
    printf("Tinker accessible: %s\n", f ? "yes" : "no");
    tinker_future_free(f);
    api_close(&a);
    return f ? EXIT_OK : status;
}

/* ---- whoami --------------------------------------------------------------------------------------- */

/* A table of two columns, or one object; what the service does not say is an empty cell, and
 * null. */
static int show_identity(const tinker_identity *who)
{
    struct listing l;
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Email", who->email);
    rows_property(&l, "User", who->user_urn);
    rows_property(&l, "Organization", who->org_urn);
    struct json_writer *w = listing_object(&l);
    json_put_begin_object(w);
    rows_put_text(w, "user_urn", who->user_urn);
    rows_put_text(w, "org_urn", who->org_urn);
    rows_put_text(w, "email", who->email);
    json_put_end_object(w);
    listing_object_end(&l);
    return listing_print_one(&l, NULL);
}

/* Two names for one command: the official program has both. */
static int run_whoami(const char *command, int argc, char **argv)
{
    struct api a;
    tinker_error err;
    int status;
    if (!parse_bare(command, "Show the user and organization of the active credential.", argc, argv,
                    &status) ||
        !api_open(&a, &status))
        return status;
    tinker_future *f = tinker_rest_whoami(a.rest, &err);
    if (f && api_await(f, &err) == TINKER_OK)
        status = show_identity(tinker_future_identity(f));
    /* The identity is in the token that the service exchanges a key for.  Services without such
     * tokens (tinker serve among them) cannot say who a key belongs to. */
    else if (err.status == TINKER_ESTATE)
        status =
            out_fail(EXIT_CONFIG, "The service hands out no tokens, and a plain key names nobody.",
                     "No identity: %s", err.message);
    else
        status = api_fail(&err, f);
    tinker_future_free(f);
    api_close(&a);
    return status;
}

int cmd_auth_whoami(int argc, char **argv)
{
    return run_whoami("auth whoami", argc, argv);
}

/* The short form of `auth whoami`; its own name appears in usage errors. */
int cmd_whoami(int argc, char **argv)
{
    return run_whoami("whoami", argc, argv);
}
