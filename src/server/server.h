/* server.h - the Tinker server: `tinker serve` without its command line.
 *
 *     struct server_options opts;
 *     server_options_init(&opts);
 *     struct server *s = server_open(&opts, &err);   // loads models, binds, starts
 *     ... server_port(s) ...
 *     server_close(s);                               // within ten seconds
 *
 * Threads of its own: one for HTTP, one for the engine, one for timers.
 * Thread safety: one thread at a time. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/engine.h>
#include <tinker/error.h>
#include "base/clock.h"
#include "base/log.h"

struct server;

struct server_model {
    const char *name; /* what clients call base_model */
    const char *dir;  /* Hugging Face directory */
};

struct server_options {
    const struct server_model *models;
    size_t n_models;
    const char *host;
    int port; /* 0: any free one */
    const char *unix_path;
    const char *path_prefix; /* "/tinker": everything is below it; NULL: nothing is */
    const char *data_dir;
    const char *const *api_keys; /* none: everybody is the same user */
    size_t n_api_keys;
    const char *const *admin_keys; /* those of api_keys whose owners see the work of all users */
    size_t n_admin_keys;
    const char *tls_cert, *tls_key; /* PEM texts */
    bool insecure;                  /* allow a public address without keys */
    tinker_engine_options engine;   /* memory_limit: of all models together */
    double memory_part;             /* of what is free once they are loaded, where that is 0 */
    int64_t session_timeout_s;      /* without a heartbeat; -1: never */
    bool has_default_lora_seed;
    int64_t default_lora_seed;
    int64_t hold_ms;            /* longest held poll */
    int64_t seq_gap_ms;         /* how long a missing request number is waited for */
    int64_t idle_memory_s;      /* without work: give cached prefixes back */
    int64_t result_ttl_s;       /* how long results stay after they were made */
    int64_t max_queued_samples; /* above: 429 */
    int64_t max_queued_bytes;   /* of all waiting requests; above: 429 */
    int64_t max_result_bytes;   /* above, outcomes leave memory early; four times: 429 */
    int64_t max_batch;          /* sequences sampled at once */
    size_t max_body, max_decoded_body;
    int64_t max_rank;
    double train_share;       /* of the time when training and sampling both want it */
    int64_t autosave;         /* write the training state every so many steps; 0: never */
    int64_t ephemeral_keep;   /* newest unnamed sampler weights of a model */
    int64_t max_adapters;     /* in memory, never more: see adapter_limit.h; 0: no limit */
    int64_t max_batch_tokens; /* sampled at once, what may still come included; 0: no limit */
    bool sampler_bf16;        /* named sampler weights are stored in half the size */
    bool no_elementwise_loss; /* leave it out of the results of passes */
    bool bare_checkpoint_ids; /* listings have "0001", not "weights/0001" */
    bool strict_context;      /* refuse a sample whose prompt and max_tokens exceed the context */
    bool no_implicit_eos;     /* without a stop list only max_tokens ends a sample */
    bool read_only;           /* requests that train or change anything get 403 */
    bool allow_local_paths;   /* load_weights takes file:///dir with a PEFT adapter */
    bool advertise_tokenizer; /* get_info names the model directory as tokenizer_id */
    struct clock *clock;
    const struct log *log;
};
void server_options_init(struct server_options *opts);

/* TINKER_EINVAL for bad options and models, TINKER_ESTATE when a resource is taken. */
struct server *server_open(const struct server_options *opts, tinker_error *err);
int server_port(const struct server *s);
void server_close(struct server *s);

#endif
