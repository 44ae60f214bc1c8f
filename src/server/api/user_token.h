/* user_token.h - tokens that say who a user is and stand for an API key for an hour.
 *
 * JSON Web Tokens (RFC 7519), signed with HMAC-SHA-256 under the key of the store: they outlive a
 * restart, and nobody else can make one.  A token is good as long as the key that it was given for
 * is one of the server's. */
#ifndef SERVER_USER_TOKEN_H
#define SERVER_USER_TOKEN_H

#include "server/work/live_state.h"
#include "server/http/http_message.h"

/* The name of the user with this key; it does not reveal the key.  NULL: no memory. */
const char *user_name_of_key(struct arena *arena, const char *key);

/* Is it a token at all, and not a key? */
bool user_token_is_one(const char *text);
/* Append a token of req->user.  false: no memory. */
bool user_token_make(struct server *s, struct request *req, struct buf *out);
/* Whose token it is; NULL with a reason in *problem when it is not valid. */
const char *user_token_read(struct server *s, const char *token, struct arena *arena,
                            const char **problem);

#endif
