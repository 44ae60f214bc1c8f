/* access_log.h - one line of the log per request.
 *
 *     method=POST path=/api/v1/asample status=200 ms=0.4 in=310 out=96 user=local tokens=12
 *
 * Words of name=value; a value that is not plain ASCII, or has a blank, a quote or an
 * equals sign, stands in quotes with \xNN for what would break the line.  Queries are
 * left out: they carry signatures. */
#ifndef SERVER_ACCESS_LOG_H
#define SERVER_ACCESS_LOG_H

#include "base/log.h"
#include "server/http/http_message.h"

struct access_entry {
    int status; /* 0: no answer was made */
    int64_t ns;
    uint64_t n_in, n_out;
    bool aborted; /* the client left */
};
void access_log_write(const struct log *log, const struct request *req,
                      const struct access_entry *a);

#endif
