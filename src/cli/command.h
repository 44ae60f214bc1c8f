/* command.h - the commands of the program and what they share.
 *
 * A command is one file cmd_<noun>_<verb>.c with one row in commands.c.
 * Its run function gets argv with argv[0] = the full command name ("checkpoint
 * list") and returns the exit status.  Rules: stdout is data, stderr is talk;
 * --json wherever there is a result; exit codes from the list below only.
 *
 * Single-threaded: everything here runs on the main thread. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct command {
    const char *name;    /* "serve", "checkpoint list" */
    const char *summary; /* one line, no full stop */
    int (*run)(int argc, char **argv);
    bool rows; /* the result is rows: --format jsonl, csv and tsv make sense */
};

/* Stable exit codes; `tinker help exit-codes` prints them. */
enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,    /* the server or the operation failed */
    EXIT_USAGE = 2,     /* wrong usage */
    EXIT_CONFIG = 3,    /* missing or refused credential, bad configuration */
    EXIT_PARTIAL = 4,   /* some items of a batch failed */
    EXIT_NOT_FOUND = 5, /* 404 */
    EXIT_CAPACITY = 6,  /* rate limited or out of capacity until the deadline */
    EXIT_NETWORK = 7,   /* unreachable or timed out */
    EXIT_DATA = 8,      /* local input data invalid */
    EXIT_IO = 9,        /* local input or output failed */
    EXIT_INTERRUPTED = 130
};

/* Options that every command accepts, before or after its name. */
struct globals {
    bool json;            /* --json, --format json */
    const char *format;   /* "table" unless told */
    const char *base_url; /* NULL: environment, then default */
    const char *api_key;  /* NULL: environment */
    const char *api_key_file;
    const char *profile;     /* of the configuration file */
    const char *time_format; /* "relative", "rfc3339", "unix" */
    const char *log_file;    /* of the library; NULL: stderr */
    const char *trace;       /* timeline of the requests, for Perfetto */
    bool quiet, yes, no_color, no_progress, compat_exit;
    int64_t verbose;
    int64_t timeout; /* seconds, -1: the command's own */
    int64_t retries; /* of one HTTP request, -1: the library's own */
    bool rows;       /* of the command that runs */
};
extern struct globals globals;

/* All commands in alphabetical order: commands.c. */
enum { COMMANDS_MAX = 128 };
extern const struct command commands[];
extern const size_t n_commands;

int cmd_api(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_auth_login(int argc, char **argv);
int cmd_auth_logout(int argc, char **argv);
int cmd_auth_status(int argc, char **argv);
int cmd_auth_whoami(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_billing_storage(int argc, char **argv);
int cmd_billing_usage(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_checkpoint_copy(int argc, char **argv);
int cmd_checkpoint_delete(int argc, char **argv);
int cmd_checkpoint_download(int argc, char **argv);
int cmd_checkpoint_import(int argc, char **argv);
int cmd_checkpoint_info(int argc, char **argv);
int cmd_checkpoint_list(int argc, char **argv);
int cmd_checkpoint_prune(int argc, char **argv);
int cmd_checkpoint_publish(int argc, char **argv);
int cmd_checkpoint_push_hf(int argc, char **argv);
int cmd_checkpoint_save(int argc, char **argv);
int cmd_checkpoint_set_ttl(int argc, char **argv);
int cmd_checkpoint_unpublish(int argc, char **argv);
int cmd_checkpoint_verify(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_config_get(int argc, char **argv);
int cmd_config_list(int argc, char **argv);
int cmd_config_path(int argc, char **argv);
int cmd_config_set(int argc, char **argv);
int cmd_config_unset(int argc, char **argv);
int cmd_conform(int argc, char **argv);
int cmd_cost(int argc, char **argv);
int cmd_cost_usage(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_logprobs(int argc, char **argv);
int cmd_model_list(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_models_pull(int argc, char **argv);
int cmd_models_rm(int argc, char **argv);
int cmd_render(int argc, char **argv);
int cmd_run_info(int argc, char **argv);
int cmd_run_list(int argc, char **argv);
int cmd_run_metrics(int argc, char **argv);
int cmd_run_plot(int argc, char **argv);
int cmd_run_watch(int argc, char **argv);
int cmd_sample(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_serve_logs(int argc, char **argv);
int cmd_serve_status(int argc, char **argv);
int cmd_serve_stop(int argc, char **argv);
int cmd_session_export_trace(int argc, char **argv);
int cmd_session_info(int argc, char **argv);
int cmd_session_list(int argc, char **argv);
int cmd_session_move(int argc, char **argv);
int cmd_session_sampler(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_train_distill(int argc, char **argv);
int cmd_train_dpo(int argc, char **argv);
int cmd_train_rl(int argc, char **argv);
int cmd_train_sft(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_weights_export(int argc, char **argv);
int cmd_weights_inspect(int argc, char **argv);
int cmd_weights_merge(int argc, char **argv);
int cmd_weights_verify(int argc, char **argv);
int cmd_whoami(int argc, char **argv);

#endif
