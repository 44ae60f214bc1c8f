/* transport.h - HTTP requests through the program's own transport, in the shape of http.h.
 * Runs on the loop thread. */
#ifndef CLIENT_TRANSPORT_H
#define CLIENT_TRANSPORT_H

#include <tinker/extra/http.h>
#include "client/session/session.h"
#include "http/http.h"

/* Start r, which is filled as for http_start(); its done is called later.  NULL: no memory, and
 * nothing was started. */
tinker_exchange *transport_start(struct session *h, struct http_request *r);
/* Its done will not be called; x may be NULL. */
void transport_cancel(tinker_exchange *x);

#endif
