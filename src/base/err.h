/* err.h - filling a tinker_error, once, where the fact is known. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>
#include <tinker/error.h>

/* Set *err (may be NULL) and return status.  The message is cut to fit at a UTF-8
 * boundary, newlines become spaces, secrets are redacted. */
tinker_status err_set(tinker_error *err, tinker_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Put "<text>: " before the message: adds the place as an error travels up. */
void err_prefix(tinker_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
tinker_status err_nomem(tinker_error *err, const char *what);
/* TINKER_ESTATE with strerror(errno): "open /x/y: No such file or directory". */
tinker_status err_errno(tinker_error *err, const char *what, const char *path);

/* Copy an options struct of the caller's version over defaults of ours:
 * min(size) bytes; TINKER_EINVAL for size 0 or for non-zero bytes beyond ours. */
tinker_status opts_copy(void *ours, size_t our_size, const void *theirs, const char *type_name,
                        tinker_error *err);

#endif
