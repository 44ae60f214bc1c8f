/* serve_options.h - the options of `tinker serve`, read and turned into settings. */
#ifndef CLI_SERVE_OPTIONS_H
#define CLI_SERVE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include "cli/models/model_dir.h"
#include "cli/args/opt.h"
#include "cli/serve/serve_place.h"
#include "server/server.h"

enum { SERVE_MODELS_MAX = 16 };

/* What the options say, before it is checked. */
struct serve_options {
    struct opt_list models, keys, admin_keys;
    const char *listen, *unix_path, *path_prefix, *data_dir, *dtype, *logprobs, *tls_cert, *tls_key,
        *log_level, *memory, *autosave, *sampler_dtype;
    int64_t threads, context, session_timeout, seed, max_batch, max_queued, result_ttl, seq_gap,
        max_rank, max_body, ephemeral_keep, max_adapters, max_batch_tokens;
    double train_share;
    bool insecure, no_auth, no_autosave, no_timeout, local_paths, no_tokenizer, read_only;
    bool strict_context, no_implicit_eos, no_elementwise, bare_ids, download, offline, daemon, open,
        no_drafts;
    /* made from them */
    struct server_model list[SERVE_MODELS_MAX];
    char dirs[SERVE_MODELS_MAX][MODEL_DIR_MAX];
    char names[SERVE_MODELS_MAX][256];
    char host[256], data[SERVE_PLACE_MAX];
    char *cert, *key;
};

/* All defaults, then the command line.  false: *status is the exit status. */
bool serve_options_parse(struct serve_options *v, int argc, char **argv, int *status);
/* Check and turn into the server's own; it borrows from v.  Returns the exit status, with
 * the reason said. */
int serve_options_take(struct serve_options *v, struct server_options *o);
void serve_options_clear(struct serve_options *v);

#endif
