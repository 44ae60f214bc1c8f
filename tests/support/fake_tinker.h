/* fake_tinker.h - a whole Tinker service in the test process, and time under control.
 *
 * A world is a fake clock, a fake server that answers every endpoint sensibly unless
 * the test scripts otherwise, and a service connected to it.  The test moves time:
 * world_advance() walks from one deadline to the next, client's or server's, and lets
 * everything settle in between, so tests need no sleeps and see exact times. */
#ifndef SUPPORT_FAKE_TINKER_H
#define SUPPORT_FAKE_TINKER_H

#include <tinker/rest.h>
#include <tinker/tinker.h>
#include <tinker/extra/stream.h>
#include "base/clock.h"
#include "support/fake_server.h"

#define API "/api/v1/"

struct promise {
    struct promise *next;
    char id[32];
    char path[128];
    char *body;
    size_t len;
};

struct world {
    struct fake_clock clock;
    bool real_time;
    struct fake_server *server;
    tinker_service *service;
    tinker_error err;
    char *config;             /* answer of client/config */
    struct promise *promises; /* server thread, under its lock */
    int n_promises, n_samplers, n_models;
    /* log lines of the service */
    char *log[512];
    int n_log;
    fake_handler *instead; /* answers in place of the world, with instead_state */
    void *instead_state;
    int outside; /* exchanges with somebody else, for world_settle */
    int aborted; /* exchanges given up by the client so far */
};

/* config NULL: {}.  opts NULL: key and address of the fake, telemetry off. */
void world_open(struct world *w, const char *config, const tinker_service_options *opts);
/* The options world_open uses, to be changed and given to it. */
void world_options(struct world *w, tinker_service_options *opts);
void world_open_real(struct world *w, const char *config); /* with the real clock */
void world_close(struct world *w);

int64_t world_ms(struct world *w);  /* since the world was opened */
void world_settle(struct world *w); /* until everything waits for time or for a held request */
void world_advance(struct world *w, int64_t ms);
/* To the next deadline, or beyond: at least grain_ms from now. */
void world_step(struct world *w, int64_t grain_ms);
/* Advance until f is complete, at most max_ms; its status, TINKER_ETIMEDOUT if it is not.
 * The error is left in w->err. */
tinker_status world_finish(struct world *w, tinker_future *f, int64_t max_ms);
tinker_training *world_training(struct world *w);
tinker_sampler *world_sampler(struct world *w);
int world_log_count(struct world *w, const char *part); /* lines that hold this text */
/* ms since the world was opened at which the i-th request on path arrived, -1: none */
int64_t world_at(struct world *w, const char *path, size_t i);

/* Script `times` answers (0: one, -1: for ever) of this status and body. */
void say(struct world *w, const char *path, int status, const char *body, int times);

/* The protobuf answers, malloc'd. */
char *fake_sample_result(const int32_t *tokens, size_t n, size_t *len);
char *fake_pass_result(size_t n_outputs, const tinker_named_number *metrics, size_t n_metrics,
                       size_t *len);

/* Data that is valid to send: n datums of n_tokens tokens each; free with fake_data_free. */
tinker_datum *fake_data(size_t n, size_t n_tokens);
void fake_data_free(tinker_datum *data, size_t n);
/* A prompt of n tokens in static storage. */
const tinker_model_input *fake_prompt(size_t n);
extern const tinker_loss fake_loss;

/* An integer member of a JSON body, by name; -1: absent. */
int64_t fake_json_int(const struct fake_request *r, const char *name);
/* seq_id and forward_only of a forward_backward body. */
int64_t fake_pass_seq(const struct fake_request *r);

/* The future behind a stream, for waiting with a fake clock. */
static inline tinker_future *stream_future(tinker_stream *st)
{
    return (tinker_future *)tinker_stream_future(st);
}

/* The text of an exported sampler for free(), or NULL. */
static inline char *export_text(tinker_sampler *s, tinker_error *err)
{
    tinker_text out = TINKER_TEXT_INIT;
    return tinker_sampler_export(s, &out, err) == TINKER_OK ? out.s : NULL;
}

#endif
