/* jwt.h - reading the claims of a token, without checking its signature: the service
 * does that.  Pure functions. */
#ifndef CLIENT_JWT_H
#define CLIENT_JWT_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"

struct jwt_claims {
    bool has_exp;
    double exp;                             /* Unix seconds */
    const char *sub, *email, *iss, *org_id; /* NULL: absent */
};

/* false: not a token whose second part is a JSON object. */
bool jwt_read(const char *token, struct arena *arena, struct jwt_claims *out);
/* Seconds until it expires, 0 when that cannot be read. */
double jwt_remaining(const char *token, int64_t wall_ns);

#endif
