/* multipart.h - bodies of multipart/form-data, for endpoints that take files.
 *
 * No function of this library sends one, because no endpoint of the service takes it today; with
 * tinker_service_call() (call.h) a program can.
 *
 * Thread safety: one thread at a time. */
#ifndef TINKER_MULTIPART_H
#define TINKER_MULTIPART_H

#include <stddef.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tinker_multipart tinker_multipart;

/* NULL with *err set: TINKER_ENOMEM, TINKER_ESTATE when the system gives no random numbers. */
TINKER_API tinker_multipart *tinker_multipart_new(tinker_error *err);
TINKER_API void tinker_multipart_free(tinker_multipart *m);

/* Add a field; names may be "a[b]" for what is nested.  TINKER_EINVAL: no name, or the body was
 * asked for already; TINKER_ENOMEM. */
TINKER_API tinker_status tinker_multipart_field(tinker_multipart *m, const char *name,
                                                const char *value, tinker_error *err);
/* Add a file by its content; content_type NULL: application/octet-stream. */
TINKER_API tinker_status tinker_multipart_bytes(tinker_multipart *m, const char *name,
                                                const char *filename, const char *content_type,
                                                const void *data, size_t n, tinker_error *err);
/* Add a file by its path, read now; filename NULL: the last part of the path.  TINKER_ESTATE when
 * it cannot be read. */
TINKER_API tinker_status tinker_multipart_file(tinker_multipart *m, const char *name,
                                               const char *path, const char *filename,
                                               const char *content_type, tinker_error *err);

/* The whole body, *n bytes; nothing can be added any more.  NULL: no memory.  Borrowed until
 * free, as is the content type, "multipart/form-data; boundary=…". */
TINKER_API const void *tinker_multipart_body(tinker_multipart *m, size_t *n);
TINKER_API const char *tinker_multipart_content_type(const tinker_multipart *m);

#ifdef __cplusplus
}
#endif
#endif
