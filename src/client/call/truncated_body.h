/* truncated_body.h - was a body cut whose end only the closing connection marks?
 *
 * Of such a body the headers promise no length, so what a proxy or a dying server cut short
 * arrives as a success.  Only the content can tell. */
#ifndef CLIENT_TRUNCATED_BODY_H
#define CLIENT_TRUNCATED_BODY_H

#include "http/http.h"

/* A 2xx without a length whose JSON or protobuf is empty or ends in the middle.  A protobuf cut
 * exactly between two fields cannot be told from a whole one.  empty_ok: a body that is empty and
 * has no type is an answer. */
bool truncated_body_is_cut(const struct http_response *resp, bool empty_ok);

#endif
