/* raw_call.h - what all requests that the program spells itself have in common. */
#ifndef CLIENT_RAW_CALL_H
#define CLIENT_RAW_CALL_H

#include <tinker/error.h>
#include "client/future/operation.h"

/* The method as a static text, if method, path and content type (may be NULL) can be sent; NULL
 * with *err set: TINKER_EINVAL. */
const char *raw_call_check(const char *method, const char *path, const char *content_type,
                           tinker_error *err);
/* Let messages name the request. */
void raw_call_label(struct operation *op, const char *method, const char *path);

#endif
