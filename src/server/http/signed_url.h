/* signed_url.h - URLs of this server that work without an API key, for a while.
 *
 * "<scheme>://<host>/<place>/<what>?exp=<unix>&sig=<hmac>": whoever has the link may
 * fetch that one thing until it expires.  Thread: the listener. */
#ifndef SERVER_SIGNED_URL_H
#define SERVER_SIGNED_URL_H

#include "server/work/live_state.h"
#include "server/http/http_message.h"

enum { SIGNED_URL_SECONDS = 900 };

/* The URL in the request's arena, NULL: no memory; *expires is its last second. */
const char *signed_url_make(struct server *s, struct request *req, const char *place,
                            const char *what, int64_t *expires);
/* Is the request such a link, unbroken and in time?  The response says 403 otherwise. */
bool signed_url_check(struct server *s, struct request *req, struct response *res,
                      const char *place, const char *what);

#endif
