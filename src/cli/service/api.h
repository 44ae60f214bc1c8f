/* api.h - what commands that talk to a service share: connecting, waiting, failing.
 *
 * Every wait ends: with the answer, by --timeout (ten minutes unless told, and none for
 * downloads, which end when nothing arrives for a minute), or by Ctrl-C.
 * A signal ends a wait with an error, and no second one the program before it has cleared up;
 * outside of waits it ends the program as usual. */
#ifndef CLI_API_H
#define CLI_API_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <tinker/rest.h>
#include "cli/service/local.h"

struct api {
    tinker_service *service;
    tinker_rest *rest;
    char *model;        /* base model that a command works with: see api_open_model() */
    char *path;         /* saved weights to sample from, in full; NULL: the base model */
    bool loopback;      /* its address is one of this machine */
    struct local local; /* the server of this machine, if that is used */
    FILE *log;
};

/* Connect as the global options and the environment say; nothing is sent yet.  false after
 * the error was printed; *status is then the exit status. */
bool api_open(struct api *a, int *status);
/* The same for a command that needs a model; a->model is then its name at the service.  model: what
 * the user calls it, or a directory; path: saved weights, which know their base: a path, a training
 * run for its newest, or "last" for the newest of all; a->path has it in full.  Both may be NULL:
 * then it is the configured model, or the only one that the service has.  Without a service to
 * talk to the engine starts in this process, with that model. */
bool api_open_model(struct api *a, const char *model, const char *path, int *status);
/* The newest checkpoint of that kind, of a run or of all ("last"): its path, to be freed; NULL
 * after the error was printed. */
char *api_find_newest(struct api *a, const char *run, tinker_checkpoint_kind kind, int *status);
void api_close(struct api *a);
/* Is the service on this machine, so that nothing is billed? */
bool api_is_local(const struct api *a);

/* Ask for what the service offers: the future, see tinker_future_capabilities(); NULL after the
 * error was printed. */
tinker_future *api_get_capabilities(struct api *a, int *status);

/* The future when it succeeded; else NULL after the error was printed and the future freed.
 * f may be NULL: then err tells why, so a submit call can stand in the argument list. */
tinker_future *api_wait(tinker_future *f, tinker_error *err, int *status);
/* The same for a call without result. */
int api_done(tinker_future *f, tinker_error *err);
/* Only wait: TINKER_OK, or the error in *err; nothing is printed or freed. */
tinker_status api_await(tinker_future *f, tinker_error *err);
tinker_status api_await_download(tinker_future *f, tinker_error *err);
/* The signal that ended a wait, or 0. */
int api_interrupted(void);
/* Those that do.  A command may block them where it must not end: waits are ended all the same. */
sigset_t api_stopping_signals(void);

/* Print an error as the reference program words it; f (may be NULL) has the answer's body.
 * The exit status. */
int api_fail(const tinker_error *err, const tinker_future *f);
/* "Error code: 404 - {…}", the text that stands for an error inside another message. */
void api_error_text(char *out, size_t size, const tinker_error *err, const tinker_future *f);

/* Does the text begin with tinker://?  Else the error is printed. */
bool api_check_path(const char *path, int *status);
/* Take it apart, the same way. */
bool api_read_path(const char *path, tinker_checkpoint_path *out, int *status);

#endif
