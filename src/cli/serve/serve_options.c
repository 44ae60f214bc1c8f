/* serve_options.c - see serve_options.h. */
#include "cli/serve/serve_options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "gguf/gguf.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/models/hf_download.h"
#include "cli/output/out.h"

static const char *const dtypes[] = { "f32", "bf16", NULL };
/* In the order of tinker_weights_dtype. */
static const char *const base_dtypes[] = { "f32", "bf16",    "stored",  "q8",
                                           "q4",  "q8-int8", "q4-int8", NULL };
static const char *const logprob_kinds[] = { "scaled", "raw", NULL };
static const char *const levels[] = { "debug", "info", "warning", "error", NULL };

/* What is not set here is 0 or NULL from calloc(), which stands for "not given". */
static void set_defaults(struct serve_options *v)
{
    v->dtype = "stored";
    v->sampler_dtype = "f32";
    v->logprobs = "scaled";
    v->autosave = "every-step";
    v->session_timeout = 300;
    v->seed = -1;
    v->max_batch = 64;
    v->max_queued = 16384;
    v->train_share = 0.5;
    v->result_ttl = 3600;
    v->seq_gap = 30;
    v->max_rank = 1024;
    v->max_body = 256 << 20;
    v->ephemeral_keep = 32;
}

#define AT(member) offsetof(struct serve_options, member)

/* As struct opt, with the place of the value in a struct serve_options. */
static const struct row {
    const char *name;
    char letter;
    enum opt_kind kind;
    const char *value, *help;
    size_t at;
    const char *const *choices;
} table[] = {
    { "model", 'm', OPT_LIST, "[NAME=]DIR|ID",
      "a model to serve: a Hugging Face directory or an id in the local cache; repeat for more "
      "(default: the bundled " MODEL_DIR_BUNDLED ")",
      AT(models), NULL },
    { "download", 0, OPT_FLAG, NULL,
      "fetch models that are not in the cache from the Hugging Face Hub", AT(download), NULL },
    { "offline", 0, OPT_FLAG, NULL, "never download (the default)", AT(offline), NULL },
    /* Where and for whom. */
    { "listen", 'l', OPT_STRING, "HOST:PORT",
      "where to listen (default 127.0.0.1:8000; port 0: any free one)", AT(listen), NULL },
    { "unix", 0, OPT_STRING, "PATH", "listen on a Unix socket instead", AT(unix_path), NULL },
    { "path-prefix", 0, OPT_STRING, "/PATH", "serve everything below this path", AT(path_prefix),
      NULL },
    { "data-dir", 'd', OPT_STRING, "DIR",
      "state and checkpoints (default $XDG_DATA_HOME/tinker or ~/.local/share/tinker)",
      AT(data_dir), NULL },
    { "api-key", 0, OPT_LIST, "KEY", "accept only these keys, one user each; repeat for more",
      AT(keys), NULL },
    { "admin-key", 0, OPT_LIST, "KEY",
      "such a key that also sees the load of all users in /metrics and /status", AT(admin_keys),
      NULL },
    { "no-auth", 0, OPT_FLAG, NULL, "accept any key, or none (default without --api-key)",
      AT(no_auth), NULL },
    { "insecure", 0, OPT_FLAG, NULL, "allow a public address without keys", AT(insecure), NULL },
    /* Resources of this machine. */
    { "threads", 't', OPT_INT, "N", "compute threads (default: one per core)", AT(threads), NULL },
    { "memory", 0, OPT_STRING, "SIZE",
      "for all but the model: 4G, or a part of what is free (default 50%)", AT(memory), NULL },
    { "context", 0, OPT_INT, "N", "longest sequence (default: the model's own limit)", AT(context),
      NULL },
    { "dtype", 0, OPT_CHOICE, "TYPE",
      "base weights as stored (default), f32, bf16, or quantized to q8 or q4; q8-int8 and q4-int8 "
      "are faster",
      AT(dtype), base_dtypes },
    { "sampler-dtype", 0, OPT_CHOICE, "TYPE",
      "named sampler weights are stored as f32 (default) or bf16", AT(sampler_dtype), dtypes },
    { "max-adapters", 0, OPT_INT, "N",
      "most adapters in memory; the others are on disk meanwhile (default: no limit)",
      AT(max_adapters), NULL },
    /* Sessions, batches and queues. */
    { "session-timeout", 0, OPT_DURATION, "TIME", "end sessions without heartbeat (default 300)",
      AT(session_timeout), NULL },
    { "no-session-timeout", 0, OPT_FLAG, NULL, "never end sessions", AT(no_timeout), NULL },
    { "default-lora-seed", 0, OPT_INT, "N", "seed of adapters that name none (default: random)",
      AT(seed), NULL },
    { "sample-logprobs", 0, OPT_CHOICE, "KIND",
      "logprobs of sampled tokens: scaled by the temperature (default) or raw", AT(logprobs),
      logprob_kinds },
    { "no-drafts", 0, OPT_FLAG, NULL,
      "sample one token at a time, also where text repeats itself (same tokens, slower)",
      AT(no_drafts), NULL },
    { "max-batch", 0, OPT_INT, "N", "sequences sampled at once (default 64)", AT(max_batch), NULL },
    { "max-batch-tokens", 0, OPT_INT, "N",
      "tokens sampled at once, prompts and what may follow (default: no limit)",
      AT(max_batch_tokens), NULL },
    { "max-queued-samples", 0, OPT_INT, "N", "most queued samples; 429 above (default 16384)",
      AT(max_queued), NULL },
    { "max-rank", 0, OPT_INT, "N", "largest rank of an adapter (default 1024)", AT(max_rank),
      NULL },
    { "max-body", 0, OPT_SIZE, "SIZE", "largest request (default 256M)", AT(max_body), NULL },
    { "result-ttl", 0, OPT_DURATION, "TIME", "keep results this long (default 1h)", AT(result_ttl),
      NULL },
    { "seq-gap-timeout", 0, OPT_DURATION, "TIME",
      "skip a missing request number after this long (default 30)", AT(seq_gap), NULL },
    { "train-share", 0, OPT_DOUBLE, "X",
      "share of training while sampling wants time too (default 0.5)", AT(train_share), NULL },
    /* What is stored. */
    { "autosave", 0, OPT_STRING, "WHEN",
      "write the training state every-step (default), every N steps, or off", AT(autosave), NULL },
    { "no-autosave", 0, OPT_FLAG, NULL, "the same as --autosave off", AT(no_autosave), NULL },
    { "ephemeral-keep", 0, OPT_INT, "N",
      "newest unnamed sampler weights of a model that are kept (default 32)", AT(ephemeral_keep),
      NULL },
    /* Details of the protocol, for clients that expect them otherwise. */
    { "no-elementwise-loss", 0, OPT_FLAG, NULL,
      "leave elementwise_loss out of the results of passes", AT(no_elementwise), NULL },
    { "bare-checkpoint-ids", 0, OPT_FLAG, NULL, "list checkpoints as 0001, not as weights/0001",
      AT(bare_ids), NULL },
    { "strict-context", 0, OPT_FLAG, NULL,
      "refuse samples that could outgrow the context, instead of ending them there",
      AT(strict_context), NULL },
    { "no-implicit-eos", 0, OPT_FLAG, NULL, "without a stop list only max_tokens ends a sample",
      AT(no_implicit_eos), NULL },
    { "allow-local-paths", 0, OPT_FLAG, NULL,
      "let clients load PEFT adapters of this machine as file:///dir", AT(local_paths), NULL },
    { "no-advertise-tokenizer", 0, OPT_FLAG, NULL,
      "do not tell clients the model directory as their tokenizer", AT(no_tokenizer), NULL },
    { "read-only", 0, OPT_FLAG, NULL, "only sample and list: nothing is trained or changed",
      AT(read_only), NULL },
    { "tls-cert", 0, OPT_STRING, "FILE", "serve HTTPS with this certificate (PEM)", AT(tls_cert),
      NULL },
    { "tls-key", 0, OPT_STRING, "FILE", "and this private key (PEM)", AT(tls_key), NULL },
    /* The process itself. */
    { "log-level", 0, OPT_CHOICE, "LEVEL",
      "debug, info, warning or error (default: info; warning in a terminal without -v)",
      AT(log_level), levels },
    { "daemon", 0, OPT_FLAG, NULL, "return when it listens, and go on in the background",
      AT(daemon), NULL },
    { "open", 0, OPT_FLAG, NULL, "show its page in the browser when it listens", AT(open), NULL },
};

enum { OPTIONS = ARRAY_LEN(table) };

/* The table has offsets, not pointers, so that it can be constant; pointers into *v are made
 * here. */
bool serve_options_parse(struct serve_options *v, int argc, char **argv, int *status)
{
    struct opt opts[OPTIONS];
    set_defaults(v);
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct row *r = &table[i];
        opts[i] = (struct opt){ r->name, r->letter,         r->kind,   r->value,
                                r->help, (char *)v + r->at, r->choices };
    }
    const struct opt_spec spec = {
        .command = "serve",
        .about = "Run the local Tinker server: train and sample on this machine's CPU.\n"
                 "State survives restarts; stop it with Ctrl-C or SIGTERM.\n"
                 "See also: tinker serve status, tinker serve stop, tinker serve logs.",
        .opts = opts,
        .n_opts = OPTIONS,
        .example = "tinker serve --model Qwen/Qwen3-0.6B --listen 127.0.0.1:8000"
    };
    return opt_parse(&spec, argc, argv, status);
}

/* ---- options to settings --------------------------------------------------------------- */

/* The last part of a path, without slashes at its end: "qwen" for "/models/qwen/" and for
 * "/models/qwen.gguf". */
static void make_default_name(const char *dir, char *out, size_t size)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    const char *start = dir + n;
    while (start > dir && start[-1] != '/')
        start--;
    if (gguf_is_name(dir))
        n -= strlen(".gguf");
    snprintf(out, size, "%.*s", (int)(dir + n - start), start);
}

/* The directory of a model id: in the cache, or fetched into it if --download was given. Exit
 * code 7 for the network, 9 for anything local. */
static int find_by_id(const struct serve_options *v, const char *id, char out[MODEL_DIR_MAX])
{
    char hint[MODEL_HINT_MAX];
    tinker_error err = { 0 };
    if (model_dir_cached(id, out))
        return EXIT_OK;
    if (!model_dir_is_id(id))
        return out_fail(EXIT_IO, model_dir_hint(id, hint), "no model '%s'", id);
    if (!v->download)
        return out_fail(EXIT_IO,
                        v->offline ? "It is not in the Hugging Face cache, and --offline is given."
                                   : "It is not in the Hugging Face cache; --download "
                                     "fetches it.",
                        "no model '%s'", id);
    if (hf_download_model(id, NULL, &err) != TINKER_OK)
        return out_fail(err.status == TINKER_ECONNECT || err.status == TINKER_ETIMEDOUT
                            ? EXIT_NETWORK
                            : EXIT_IO,
                        NULL, "%s", err.message);
    if (model_dir_cached(id, out))
        return EXIT_OK;
    return out_fail(EXIT_IO, NULL, "%s was fetched but is no model directory", id);
}

static bool is_place(const char *text)
{
    return os_is_dir(text) || (gguf_is_name(text) && access(text, F_OK) == 0);
}

/* The "=" between a name and a place, NULL: there is no name. Names and paths may have a "=" of
 * their own, so what exists decides: all of it, else what follows one of them. When nothing is there,
 * what begins as a path is one. */
static const char *find_equals(const char *text)
{
    if (is_place(text))
        return NULL;
    for (const char *s = strchr(text, '='); s; s = strchr(s + 1, '='))
        if (is_place(s + 1))
            return s;
    return strchr("/.", *text) ? NULL : strchr(text, '=');
}

/* [NAME=]DIR, [NAME=]FILE.gguf or [NAME=]ID. A directory wins over an id of the same spelling. */
static int add_model(struct serve_options *v, size_t i, const char *text)
{
    const char *equals = find_equals(text), *place = equals ? equals + 1 : text;
    v->list[i].name = v->names[i];
    v->list[i].dir = v->dirs[i];
    if (is_place(place)) {
        snprintf(v->dirs[i], MODEL_DIR_MAX, "%s", place);
        make_default_name(place, v->names[i], sizeof(v->names[i]));
    } else {
        int status = find_by_id(v, place, v->dirs[i]);
        if (status != EXIT_OK)
            return status;
        snprintf(v->names[i], sizeof(v->names[i]), "%s", place);
    }
    if (equals)
        snprintf(v->names[i], sizeof(v->names[i]), "%.*s", (int)(equals - text), text);
    return v->names[i][0] ? EXIT_OK
                          : out_fail(EXIT_USAGE, NULL, "--model %s has an empty name", text);
}

/* The bundled model is served only if no other was named. */
static int take_models(struct serve_options *v, struct server_options *o)
{
    o->models = v->list;
    if (!v->models.n) {
        if (!model_dir_bundled(v->dirs[0]))
            return out_fail(EXIT_IO, "Give one with --model [NAME=]DIR.",
                            "the bundled model was not found");
        v->list[0] = (struct server_model){ MODEL_DIR_BUNDLED, v->dirs[0] };
        o->n_models = 1;
        return EXIT_OK;
    }
    if (v->models.n > SERVE_MODELS_MAX)
        return out_fail(EXIT_USAGE, NULL, "at most %d models", SERVE_MODELS_MAX);
    for (size_t i = 0; i < v->models.n; i++) {
        int status = add_model(v, i, v->models.items[i]);
        if (status != EXIT_OK)
            return status;
    }
    o->n_models = v->models.n;
    return EXIT_OK;
}

/* "every-step" is 1, "off" is 0, else the number of steps. */
static bool take_autosave(const char *text, int64_t *out)
{
    char *end;
    if (strcmp(text, "every-step") == 0 || strcmp(text, "off") == 0) {
        *out = text[0] == 'e';
        return true;
    }
    long long n = strtoll(text, &end, 10);
    *out = n;
    return end != text && !*end && n >= 1 && n <= 1000000;
}

/* "HOST:PORT", "[::1]:PORT", ":PORT" or "PORT". The last colon separates, so an IPv6 host needs
 * brackets. */
static bool take_address(struct serve_options *v, struct server_options *o)
{
    const char *colon = strrchr(v->listen, ':'), *port = colon ? colon + 1 : v->listen;
    char *end;
    long n = strtol(port, &end, 10);
    if (end == port || *end || n < 0 || n > 65535)
        return false;
    o->port = (int)n;
    /* No host: the default, this machine only. */
    size_t len = colon ? (size_t)(colon - v->listen) : 0;
    const char *host = v->listen;
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    if (len >= sizeof(v->host))
        return false;
    if (len) {
        memcpy(v->host, host, len);
        v->host[len] = 0;
        o->host = v->host;
    }
    return true;
}

/* Without $HOME there is no default.
 * The directory is made by the server, which also takes its lock. */
static int take_data_dir(struct serve_options *v, struct server_options *o)
{
    if (!serve_place_data(v->data_dir, v->data))
        return out_fail(EXIT_USAGE, NULL, "no home directory: give --data-dir");
    o->data_dir = v->data;
    return EXIT_OK;
}

/* Certificate and key are read here, so that errors come before the weights are loaded. */
static int take_tls(struct serve_options *v, struct server_options *o)
{
    tinker_error err = { 0 };
    size_t n;
    /* One alone is a typing error that would otherwise mean "no TLS". */
    if (!v->tls_cert != !v->tls_key)
        return out_fail(EXIT_USAGE, NULL, "--tls-cert and --tls-key belong together");
    if (!v->tls_cert)
        return EXIT_OK;
    if (os_read_file(v->tls_cert, 1 << 20, &v->cert, &n, &err) != TINKER_OK ||
        os_read_file(v->tls_key, 1 << 20, &v->key, &n, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    o->tls_cert = v->cert;
    o->tls_key = v->key;
    return EXIT_OK;
}

/* "4G", or a part of the free memory: "50%". */
static bool take_memory(const char *text, struct server_options *o)
{
    char *end;
    int64_t bytes;
    double percent = strtod(text, &end);
    if (end != text && strcmp(end, "%") == 0) {
        /* Resolved by the server when all models are loaded: what is free is known only then. */
        o->memory_part = percent / 100;
        return percent > 0 && percent <= 100;
    }
    bool ok = opt_read_size(text, &bytes) && bytes > 0;
    o->engine.memory_limit = ok ? (uint64_t)bytes : 0;
    return ok;
}

/* Settings of the compute engine. 0 threads: one per core; 0 context: the model's limit. */
static int take_engine(struct serve_options *v, struct server_options *o)
{
    o->engine.threads = (int)v->threads;
    o->engine.max_context = v->context;
    int dtype = 0;
    while (strcmp(base_dtypes[dtype], v->dtype) != 0) /* OPT_CHOICE has checked it */
        dtype++;
    o->engine.dtype = (tinker_weights_dtype)dtype;
    o->engine.raw_logprobs = strcmp(v->logprobs, "raw") == 0;
    o->engine.no_drafts = v->no_drafts;
    if (v->memory && !take_memory(v->memory, o))
        return out_fail(EXIT_USAGE, NULL, "--memory takes a size or a percentage, not '%s'",
                        v->memory);
    return EXIT_OK;
}

/* Who may connect, where, and what they may do. */
static int take_access(struct serve_options *v, struct server_options *o)
{
    if (v->listen && !take_address(v, o))
        return out_fail(EXIT_USAGE, NULL, "--listen takes HOST:PORT, not '%s'", v->listen);
    /* An administrator is a user, too. */
    for (size_t i = 0; i < v->admin_keys.n; i++) {
        if (v->keys.n == OPT_LIST_MAX)
            return out_fail(EXIT_USAGE, NULL, "more than %d keys", OPT_LIST_MAX);
        v->keys.items[v->keys.n++] = v->admin_keys.items[i];
    }
    if (v->no_auth && v->keys.n)
        return out_fail(EXIT_USAGE, NULL, "--no-auth and --api-key exclude each other");
    /* Clients, the official ones too, refuse to send keys that begin with anything else. */
    for (size_t i = 0; i < v->keys.n; i++)
        if (strncmp(v->keys.items[i], "tml-", 4) != 0 && strncmp(v->keys.items[i], "eyJ", 3) != 0)
            out_say("warning: key %zu does not start with tml-: clients of the Tinker API will "
                    "not send it",
                    i + 1);
    o->unix_path = v->unix_path;
    o->path_prefix = v->path_prefix;
    o->api_keys = v->keys.items;
    o->n_api_keys = v->keys.n;
    o->admin_keys = v->admin_keys.items;
    o->n_admin_keys = v->admin_keys.n;
    o->insecure = v->insecure;
    o->allow_local_paths = v->local_paths;
    o->advertise_tokenizer = !v->no_tokenizer;
    o->read_only = v->read_only;
    return EXIT_OK;
}

enum { MILLION = 1000000 };
#define CENTURY (INT64_C(100) * 365 * 86400) /* in nanoseconds it still is a number */

/* Numbers that the server takes as they are. */
static const struct {
    const char *name;
    size_t at;
    int64_t least, most;
} ranges[] = {
    { "threads", AT(threads), 0, 4096 },
    { "context", AT(context), 0, INT32_MAX },
    { "max-adapters", AT(max_adapters), 0, MILLION },
    { "max-batch", AT(max_batch), 1, MILLION },
    { "max-batch-tokens", AT(max_batch_tokens), 0, INT64_MAX },
    { "max-queued-samples", AT(max_queued), 1, MILLION },
    { "max-rank", AT(max_rank), 1, MILLION },
    { "max-body", AT(max_body), 1, INT64_MAX / 8 },
    { "ephemeral-keep", AT(ephemeral_keep), 1, MILLION },
    { "session-timeout", AT(session_timeout), 1, CENTURY },
    { "result-ttl", AT(result_ttl), 1, CENTURY },
    { "seq-gap-timeout", AT(seq_gap), 1, CENTURY },
    { "default-lora-seed", AT(seed), -1, INT64_MAX },
};

/* Each value is copied out of *v by its offset; all of them are int64_t. */
static int check_numbers(const struct serve_options *v)
{
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        int64_t value;
        memcpy(&value, (const char *)v + ranges[i].at, sizeof(value));
        if (value < ranges[i].least || value > ranges[i].most)
            return out_fail(EXIT_USAGE, NULL, "--%s takes a number from %lld to %lld, not %lld",
                            ranges[i].name, (long long)ranges[i].least, (long long)ranges[i].most,
                            (long long)value);
    }
    return EXIT_OK;
}

/* What is kept, for how long, and how much at once. Times are seconds but for seq_gap_ms. */
static int take_limits(struct serve_options *v, struct server_options *o)
{
    const char *autosave = v->no_autosave ? "off" : v->autosave;
    if (!take_autosave(autosave, &o->autosave))
        return out_fail(EXIT_USAGE, NULL,
                        "--autosave takes every-step, off or a number of steps, not '%s'",
                        autosave);
    int status = check_numbers(v);
    if (status != EXIT_OK)
        return status;
    o->session_timeout_s = v->no_timeout ? -1 : v->session_timeout;
    o->result_ttl_s = v->result_ttl;
    o->seq_gap_ms = v->seq_gap * 1000;
    o->ephemeral_keep = v->ephemeral_keep;
    o->max_adapters = v->max_adapters;
    o->max_batch = v->max_batch;
    o->max_batch_tokens = v->max_batch_tokens;
    o->max_queued_samples = v->max_queued;
    o->max_rank = v->max_rank;
    o->max_body = (size_t)v->max_body;
    o->train_share = v->train_share;
    return EXIT_OK;
}

/* Deviations from what the service does, one option each. */
static int take_behavior(struct serve_options *v, struct server_options *o)
{
    o->has_default_lora_seed = v->seed >= 0;
    o->default_lora_seed = v->seed;
    o->sampler_bf16 = strcmp(v->sampler_dtype, "bf16") == 0;
    o->no_elementwise_loss = v->no_elementwise;
    o->bare_checkpoint_ids = v->bare_ids;
    o->strict_context = v->strict_context;
    o->no_implicit_eos = v->no_implicit_eos;
    return EXIT_OK;
}

/* Cheap checks first: models come last, because --download may take hours. */
int serve_options_take(struct serve_options *v, struct server_options *o)
{
    static int (*const parts[])(struct serve_options *, struct server_options *) = {
        take_limits, take_engine, take_access, take_behavior, take_data_dir, take_tls, take_models
    };
    int status = EXIT_OK;
    server_options_init(o);
    if (v->offline && v->download)
        return out_fail(EXIT_USAGE, NULL, "--offline and --download exclude each other");
    for (size_t i = 0; status == EXIT_OK && i < ARRAY_LEN(parts); i++)
        status = parts[i](v, o);
    return status;
}

/* The only two texts that are read from files; all others are words of argv. */
void serve_options_clear(struct serve_options *v)
{
    free(v->cert);
    free(v->key);
}
