/* cmd_doctor.c - `tinker doctor`: is it me, the network or the server?
 *
 * Checks run in order, each prints ok, warn or FAIL, what it measured, and what to do about it. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <tinker/extra/account.h>
#include <tinker/extra/http.h>
#include <tinker/sampling.h>
#include <tinker/version.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/os.h"
#include "cli/account/stored_key.h"
#include "cli/args/config.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/models/hf_token.h"
#include "cli/models/local_models.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/sample/prompt_model.h"
#include "cli/serve/serve_place.h"
#include "cli/text/text_model.h"

/* NOTICE: works, but not as well as it could.  BAD alone makes the exit status 1. */
enum verdict { GOOD, NOTICE, BAD };

/* Counts of what was found decide the last line and the exit status. */
struct doctor {
    const char *model;
    bool fix;
    struct listing rows;
    size_t bad, notices;
    struct api api;
    bool connected;
};

/* One result: value says what was found, remedy (may be NULL) what to do. */
static void report_check(struct doctor *d, enum verdict v, const char *name, const char *remedy,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void report_check(struct doctor *d, enum verdict v, const char *name, const char *remedy,
                         const char *fmt, ...)
{
    static const char *const words[] = { [GOOD] = "ok", [NOTICE] = "warn", [BAD] = "FAIL" };
    char value[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof(value), fmt, ap);
    va_end(ap);
    d->bad += v == BAD;
    d->notices += v == NOTICE;
    /* As soon as it is known: a check that hangs shows where. */
    if (!globals.json) {
        printf("%-4s  %-16s %s\n", words[v], name, value);
        if (remedy && v != GOOD)
            printf("      %-16s %s\n", "", remedy);
        out_flush();
    }
    struct json_writer *w = listing_object(&d->rows);
    json_put_begin_object(w);
    rows_put_text(w, "check", name);
    rows_put_text(w, "result", words[v]);
    rows_put_text(w, "value", value);
    rows_put_text(w, "remedy", v == GOOD ? NULL : remedy);
    json_put_end_object(w);
    listing_object_end(&d->rows);
}

/* ---- this machine --------------------------------------------------------------------------------- */

/* What decides how large a model fits and how fast it is.  1 GB is the least for a small model;
 * every client and every held poll of a server takes a descriptor. */
static void check_machine(struct doctor *d)
{
    char text[FMT_TEXT];
    int64_t limit = 0, unused = 0;
    /* The variable forces a set of kernels, as tests do; left over in a shell it makes
     * everything slow. */
    const char *kernels = getenv("TINKER_KERNELS");
    report_check(d, GOOD, "program", NULL, "tinker %s", TINKER_VERSION);
    report_check(d, GOOD, "processor", NULL, "%d cores, %s kernels", os_cpu_count(),
                 kernels && *kernels ? kernels : "the fastest");
    uint64_t free_memory = os_memory_free();
    report_check(d, free_memory > (1u << 30) ? GOOD : NOTICE, "memory",
                 "Close something, or use the hosted service.", "%s free",
                 fmt_size((int64_t)free_memory, text));
    if (os_file_limit(&limit, &unused))
        report_check(d, limit >= 4096 ? GOOD : NOTICE, "open files",
                     "Raise it with: ulimit -n 4096", "%lld allowed", (long long)limit);
}

/* A missing folder is fine, it is made when it is needed; one that cannot be written is not. */
static void check_disk(struct doctor *d, const char *name, const char *dir)
{
    struct statvfs s;
    char text[FMT_TEXT];
    tinker_error err;
    if (d->fix)
        os_make_dirs(dir, &err);
    if (statvfs(dir, &s) != 0) {
        report_check(d, GOOD, name, NULL, "%s is not there yet", dir);
        return;
    }
    /* f_bavail: what is free for this user, without the blocks that are kept for root. */
    int64_t bytes = (int64_t)s.f_bavail * (int64_t)s.f_frsize;
    bool writable = access(dir, W_OK) == 0;
    report_check(d,
                 !writable                  ? BAD
                 : bytes < (int64_t)1 << 30 ? NOTICE
                                            : GOOD,
                 name,
                 writable ? "Make room: checkpoints and models are kept there."
                          : "Make it writable, or choose another with XDG_DATA_HOME.",
                 "%s free in %s%s", fmt_size(bytes, text), dir, writable ? "" : ", not writable");
}

/* Which load, and which of these can be trained in the memory that is free; the others by name. */
static void check_models(struct doctor *d, struct local_models *here)
{
    char fit[LOCAL_FIT_MAX];
    size_t load = 0, fits = 0;
    for (size_t i = 0; i < here->n; i++) {
        struct local_model *m = &here->v[i];
        /* Reads headers only, but of every model here: a cache on a slow disk takes seconds. */
        local_models_measure(m);
        load += m->loads;
        fits += m->trains > 0;
    }
    report_check(d, here->n ? GOOD : NOTICE, "models here", "Fetch one: tinker models pull NAME",
                 "%zu, %zu load, %zu can be trained in the memory that is free", here->n, load,
                 fits);
    for (size_t i = 0; i < here->n; i++) {
        const struct local_model *m = &here->v[i];
        if (!m->loads)
            report_check(d, NOTICE, "model", "docs/models.md lists what loads.", "%s", m->problem);
        else if (!m->trains)
            report_check(d, NOTICE, "model", "tinker models shows what each takes.", "%s: %s",
                         m->name, local_models_fit(m, fit));
    }
}

/* Where files go: data of the local server, the cache of models, the configuration. */
static void check_places(struct doctor *d)
{
    char data[SERVE_PLACE_MAX], folder[MODEL_FOLDER_MAX], path[CONFIG_PATH_MAX];
    struct local_models here;
    const char *value;
    int status;
    tinker_error err;
    if (serve_place_data(NULL, data))
        check_disk(d, "data", data);
    else
        report_check(d, BAD, "data", "Set HOME or XDG_DATA_HOME.", "there is no home directory");
    /* Any id: only the cache's own folder above it is wanted. */
    model_dir_folder("a/b", folder);
    *strrchr(folder, '/') = 0;
    check_disk(d, "model cache", folder);
    if (local_models_find(&here))
        check_models(d, &here);
    local_models_clear(&here);
    if (!config_path(path))
        return;
    /* --fix makes a configuration with the one setting that suits every machine, for people to
     * edit. */
    if (access(path, F_OK) != 0 && d->fix &&
        config_set(NULL, "model", MODEL_DIR_BUNDLED, &err) == TINKER_OK)
        report_check(d, GOOD, "configuration", NULL, "wrote %s", path);
    else if (access(path, F_OK) != 0)
        report_check(d, GOOD, "configuration", NULL, "none (%s)", path);
    else if (config_get(CONFIG_PROFILE, &value, NULL, &status))
        report_check(d, GOOD, "configuration", NULL, "%s", path);
    else
        report_check(d, BAD, "configuration", "Mend the line that is named above.", "%s", path);
}

/* ---- the service ------------------------------------------------------------------------------------ */

/* In the order in which commands look, so that what is shown is what they would use.  Keys are
 * shown in part only. */
static void check_credentials(struct doctor *d)
{
    const char *key, *from, *command;
    char shown[16];
    struct stored_key stored;
    tinker_error err;
    bool found = false;
    int status;
    if (!config_get(CONFIG_API_KEY, &key, &from, &status) ||
        !config_get(CONFIG_CREDENTIAL_CMD, &command, NULL, &status))
        return;
    if (key) {
        /* Other forms are accepted by servers of one's own, so this is a remark, not a fault. */
        bool usual = strncmp(key, "tml-", 4) == 0 || strncmp(key, "eyJ", 3) == 0;
        report_check(d, usual ? GOOD : NOTICE, "credential",
                     "Keys of the hosted service begin with tml-.", "%s from %s",
                     config_redact(key, shown), from);
    } else if (command) {
        report_check(d, GOOD, "credential", NULL, "by command");
    } else if (stored_key_read(&stored, &found, &err) != TINKER_OK) {
        report_check(d, BAD, "credential", "Remove the file and run: tinker auth login", "%s",
                     err.message);
    } else if (found) {
        report_check(d, GOOD, "credential", NULL, "'%s' of tinker auth login", stored.name);
    } else {
        report_check(d, GOOD, "credential", NULL, "none: commands use this machine");
    }
}

/* Seconds that our clock is ahead of the Date of an answer; NaN: there is none.
 * Seconds are exact enough: the header has no fraction, and the way back is far below one. */
static double measure_skew(const tinker_response *r)
{
    /* The Date header of HTTP, in English whatever the locale (RFC 9110, 5.6.7). */
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const char *date = tinker_response_header(r, "date");
    char month[4], iso[64];
    int day, year, h, m, s;
    int64_t us;
    if (!date || sscanf(date, "%*3s, %d %3s %d %d:%d:%d", &day, month, &year, &h, &m, &s) != 6)
        return NAN;
    const char *at = strstr(months, month);
    if (!at)
        return NAN;
    snprintf(iso, sizeof(iso), "%04d-%02d-%02dT%02d:%02d:%02dZ", year % 10000,
             (int)(at - months) / 3 + 1, day % 100, h % 100, m % 100, s % 100);
    return fmt_read_date(iso, &us) ? (double)(clock_wall_ns(clock_real()) / 1000 - us) / 1e6 : NAN;
}

/* How far the way goes: connection, health, what the credential may see, whose it is.  The first
 * one that fails is the answer; what depends on it is left out. */
static void check_service(struct doctor *d)
{
    tinker_error err;
    int status;
    double start = (double)clock_now_ns(clock_real()) / 1e6;
    /* Without an address this starts the local engine, which is part of what is checked. */
    d->connected = api_open_model(&d->api, d->model, NULL, &status);
    if (!d->connected) {
        report_check(d, BAD, "service", "See the error above.", "no connection");
        return;
    }
    tinker_future *f =
        tinker_service_call(d->api.service, "GET", "/api/v1/healthz", NULL, 0, NULL, &err);
    if (!f || api_await(f, &err) != TINKER_OK) {
        report_check(d, BAD, "service", "Check the address and the network.", "%s", err.message);
        tinker_future_free(f);
        return;
    }
    double ms = (double)clock_now_ns(clock_real()) / 1e6 - start;
    double skew = measure_skew(tinker_future_response(f));
    report_check(d, GOOD, "service", NULL, "%s, healthy after %.0f ms, answers in %lld ms",
                 d->api.local.engine     ? "local engine"
                 : api_is_local(&d->api) ? "local server"
                                         : "remote",
                 ms, (long long)tinker_future_response(f)->elapsed_ms);
    /* 30 s: signed addresses and tokens carry times, and services allow about a minute. */
    if (!isnan(skew))
        report_check(d, fabs(skew) < 30 ? GOOD : NOTICE, "clock", "Set it: tokens depend on it.",
                     "%.0f s off", fabs(skew) < 1 ? 0 : skew);
    tinker_future_free(f);
    f = tinker_service_get_capabilities(d->api.service, &err);
    if (f && api_await(f, &err) == TINKER_OK)
        report_check(d, GOOD, "models offered", NULL, "%zu, streaming %s",
                     tinker_future_capabilities(f)->n,
                     tinker_future_capabilities(f)->stream_sample ? "yes" : "no");
    else
        report_check(d, BAD, "models offered", "Is the credential right? tinker auth status", "%s",
                     err.message);
    tinker_future_free(f);
    /* Services without identities just have no such line. */
    f = tinker_rest_whoami(d->api.rest, &err);
    if (f && api_await(f, &err) == TINKER_OK)
        report_check(d, GOOD, "identity", NULL, "%s", tinker_future_identity(f)->user_urn);
    tinker_future_free(f);
}

/* One token of the model, which is the whole way: session, queue, engine, answer.
 * A tokenizer is not needed for it, but people want one next. */
static void check_sample(struct doctor *d)
{
    static const int32_t ids[] = { 20, 21, 22 };
    tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT, .tokens = ids, .n_tokens = ARRAY_LEN(ids) };
    tinker_model_input input = { &chunk, 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    tinker_error err;
    int status;
    if (!d->connected)
        return;
    /* A service works without it, on tokens alone; text commands do not. */
    tinker_tokenizer *t = text_model_open(&d->api, NULL, &err);
    report_check(d, t ? GOOD : NOTICE, "tokenizer",
                 "Fetch it: tinker models pull --tokenizer-only NAME", "%s%s", d->api.model,
                 t ? "" : " has none here");
    tinker_tokenizer_free(t);
    double start = (double)clock_now_ns(clock_real()) / 1e6;
    tinker_sampler *s = prompt_model_sampler(&d->api, &status);
    p.max_tokens = 1;
    tinker_future *f = s ? tinker_sampler_sample(s, &input, &p, NULL, &err) : NULL;
    if (f && api_await(f, &err) == TINKER_OK)
        report_check(d, GOOD, "one token", NULL, "%s, %.0f ms", d->api.model,
                     (double)clock_now_ns(clock_real()) / 1e6 - start);
    else
        report_check(d, BAD, "one token", "tinker models lists what can be sampled.", "%s",
                     s ? err.message : "no sampler");
    tinker_future_free(f);
    tinker_sampler_free(s);
}

/* Only looked at, not tried: most users need the Hub for a download once. */
static void check_hub(struct doctor *d)
{
    char authorization[HF_AUTHORIZATION_MAX];
    bool fits = hf_authorization(authorization);
    report_check(d, fits ? GOOD : BAD, "Hub token", "Set HF_TOKEN anew.", "%s, %s",
                 authorization[0] ? "there"
                 : fits           ? "none: gated models cannot be fetched"
                                  : "broken",
                 hf_endpoint());
    /* The token does not stay in memory for a look at whether it is there. */
    memset(authorization, 0, sizeof(authorization));
}

/* From near to far: machine, files, credential, network, model.  The first FAIL is mostly the
 * cause of those below it. */
int cmd_doctor(int argc, char **argv)
{
    struct doctor d = { 0 };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "the model to try",
          .out = &d.model },
        { .name = "fix",
          .kind = OPT_FLAG,
          .help = "make missing directories and a configuration file",
          .out = &d.fix },
    };
    const struct opt_spec spec = {
        .command = "doctor",
        .about = "Check this machine, the configuration, the credential, the service and a sample.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .example = "tinker doctor"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    listing_init(&d.rows, rows_properties, 2);
    check_machine(&d);
    check_places(&d);
    check_credentials(&d);
    check_service(&d);
    check_sample(&d);
    check_hub(&d);
    if (d.connected)
        api_close(&d.api);
    if (globals.json) {
        listing_print(&d.rows, NULL, "{\"checks\":[");
    } else {
        listing_clear(&d.rows);
        printf("\n%s\n", d.bad       ? "Something is wrong: see FAIL above."
                         : d.notices ? "All works; see warn above."
                                     : "All is well.");
    }
    return d.bad ? EXIT_FAILED : EXIT_OK;
}
