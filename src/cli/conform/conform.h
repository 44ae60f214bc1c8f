/* conform.h - what `tinker conform` asks a server, and what it remembers between two questions.
 *
 * A check is one rule that a client can see; it passes or says in one line what was wrong.  Requests
 * are sent as they are written here, once: no retry hides what the server does.  Checks run in the
 * order of the tables; one that needs what an earlier one failed to get fails, too, and says so.
 * Not thread-safe. */
#ifndef CLI_CONFORM_H
#define CLI_CONFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/service.h>
#include "base/arena.h"
#include "cli/service/api.h"
#include "json/json.h"

enum { CONFORM_ID_MAX = 768, CONFORM_TOKENS = 6 };
#define CONFORM_API "/api/v1/"

struct conform {
    struct api *api;
    tinker_service *raw; /* sends every request once, keeps the response */
    struct arena arena;  /* of the check that runs */
    char mark[32];       /* in the names of everything that is made: "conform-1a2b3c" */
    const char *wanted;  /* -m, or NULL */
    char model[256], session[CONFORM_ID_MAX], run[CONFORM_ID_MAX], sampling[CONFORM_ID_MAX];
    char second_run[CONFORM_ID_MAX];
    char state[CONFORM_ID_MAX], weights[CONFORM_ID_MAX]; /* tinker:// paths of what was saved */
    char accepted[CONFORM_ID_MAX];                       /* request_id of the last submission */
    int64_t seq;                   /* number of the next training request of `run` */
    int64_t sample_seq;            /* and of the next sample of `sampling` */
    double first_loss, saved_loss; /* NaN: not known */
    /* The last response: its status (0: none came) and body. */
    int status;
    struct json_str body;
    bool sized;    /* it said Content-Length */
    char why[256]; /* of a failure */
};

struct conform_check {
    const char *name;  /* "train.forward" */
    const char *about; /* what a server does that passes */
    bool (*run)(struct conform *c);
};
/* The checks of one subject: conform_<subject>.c. */
struct conform_group {
    const char *name;
    const struct conform_check *checks;
    size_t n;
};
extern const struct conform_group conform_service, conform_errors, conform_training,
    conform_sampling, conform_chat, conform_rest;

/* ---- requests: conform_request.c ----------------------------------------------------------------- */

/* Fail the check that runs: false. */
bool conform_miss(struct conform *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Send one request; body NULL: none.  false: no response at all, which fails the check. */
bool conform_send(struct conform *c, const char *method, const char *path, const char *body);
/* The same, and the status must be 2xx. */
bool conform_get(struct conform *c, const char *path);
bool conform_post(struct conform *c, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The response must be an error of the client: 4xx. */
bool conform_refused(struct conform *c, const char *what);
/* Submit a request whose result comes later: its id is in c->accepted. */
bool conform_submit(struct conform *c, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Poll until the result of a request is c->body.  false: it failed, or took too long. */
bool conform_result(struct conform *c, const char *id);
/* Does the last response say that the request is still pending? */
bool conform_pending(struct conform *c);

/* Members of the last response, "sequences.0.tokens".  false: it is not there or of another kind,
 * which fails the check. */
bool conform_has(struct conform *c, const char *path); /* only looks: fails nothing */
bool conform_text(struct conform *c, const char *path, char *out, size_t size);
bool conform_number(struct conform *c, const char *path, double *out);
/* null reads as NaN. */
bool conform_numbers(struct conform *c, const char *path, float **out, size_t *n);
bool conform_object(struct conform *c, const char *path, struct json_str *out);

/* ---- what several groups need -------------------------------------------------------------------- */

/* The prompt of all requests, as JSON: CONFORM_TOKENS ids that every vocabulary has. */
extern const char conform_prompt[];
/* Run `forward` on the prompt: the sum of the losses of its tokens. */
bool conform_loss(struct conform *c, const char *run, int64_t *seq, double *loss);
/* Sample from a sampling session; params as JSON members behind max_tokens.  The result is c->body. */
bool conform_sample(struct conform *c, const char *sampling, int64_t seq, int count,
                    const char *params);

#endif
