/* fake_server.h - a scripted HTTP/1.1 server on loopback, in a thread of the test.
 *
 * Every request is recorded with the time on the given clock.  Its answer comes from
 * the script of its path, first come first served, else from the default handler.
 * Answers can be delayed on the clock, dropped, cut anywhere or held for ever.
 *
 * Thread safety: any thread, any time. */
#ifndef SUPPORT_FAKE_SERVER_H
#define SUPPORT_FAKE_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/clock.h"

struct fake_server;

enum fake_fault {
    FAKE_NONE,
    FAKE_DROP,      /* close without an answer */
    FAKE_TRUNCATE,  /* close in the middle of the body */
    FAKE_HANG,      /* never answer */
    FAKE_NO_LENGTH, /* leave the Content-Length out and close after the body */
    FAKE_TWICE,     /* say everything twice */
    FAKE_OPEN,      /* leave the Content-Length out and never close; counts as held */
    FAKE_DRIP       /* one byte of an endless body each second of the clock; counts as held */
};

/* How a response is cut: everything up to a byte of it arrives, then the connection ends. */
enum fake_cut { FAKE_CUT_FIN, FAKE_CUT_RST };

struct fake_reply {
    int status;               /* 0: 200 */
    const char *body;         /* copied; NULL: empty */
    size_t len;               /* 0: strlen(body) */
    const char *content_type; /* NULL: application/json */
    const char *headers;      /* "Name: value\r\n…", or NULL */
    int64_t delay_ms;         /* on the clock */
    enum fake_fault fault;
    int times;       /* 0: once; -1: for ever */
    bool by_handler; /* the handler says what; this only says when */
};

struct fake_request {
    char method[8];
    char path[512]; /* with query */
    char *headers;  /* the block, "Name: value\r\n…" */
    char *body;
    size_t len;
    int64_t at_ms; /* on the clock */
    int conn;      /* connections are numbered from 0 */
    size_t index;  /* over all requests */
};

/* The default answer; runs on the server's thread under its lock.  out->body must be
 * malloc'd or NULL and is freed. */
typedef void fake_handler(void *state, const struct fake_request *r, struct fake_reply *out);

struct fake_server *fake_server_start(struct clock *clock, fake_handler *handler, void *state);
void fake_server_stop(struct fake_server *s);
const char *fake_server_url(const struct fake_server *s); /* "http://127.0.0.1:port" */
int fake_server_port(const struct fake_server *s);

/* Append to the script of a path ("/api/v1/optim_step"; the query is not compared). */
void fake_script(struct fake_server *s, const char *path, struct fake_reply reply);
/* Forget what is left of the script of a path. */
void fake_unscript(struct fake_server *s, const char *path);
/* Cut the next response on a path after its first `at` bytes, status line and headers included; one
 * that is not longer goes through. */
void fake_cut(struct fake_server *s, const char *path, size_t at, enum fake_cut how);
/* From now on cut so many percent of all responses at a random byte, by FIN or by RST. */
void fake_cut_randomly(struct fake_server *s, uint64_t seed, int percent);
void fake_trickle(struct fake_server *s, bool trickle); /* every byte in a segment of its own */
size_t fake_cuts(struct fake_server *s);                /* responses cut so far */
/* Let requests that are held answer now, with what their reply says. */
void fake_release(struct fake_server *s, const char *path);
/* Before the first request: keep none once it is answered; fake_count() and fake_get() see none. */
void fake_forget(struct fake_server *s);
void fake_refuse(struct fake_server *s, bool refuse); /* close new connections at once */

/* Requests so far on a path (NULL: on all). */
size_t fake_count(struct fake_server *s, const char *path);
/* The i-th of them; stays valid until stop.  NULL: fewer. */
const struct fake_request *fake_get(struct fake_server *s, const char *path, size_t i);
/* Wait in real time until there are n; false after 20 s. */
bool fake_await(struct fake_server *s, const char *path, size_t n);
/* Value of a header of r, copied; NULL: absent. */
const char *fake_header(const struct fake_request *r, const char *name, char out[512]);

void fake_wake(struct fake_server *s); /* look at the clock again */
int fake_held(struct fake_server *s);  /* requests received and not answered */
int fake_held_on(struct fake_server *s, const char *path);
int64_t fake_next_ns(struct fake_server *s); /* when the next delayed answer is due */
int fake_connections(struct fake_server *s); /* accepted so far */

#endif
