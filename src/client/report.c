/* report.c - see report.h. */
#include "client/report.h"

void report_attempt(struct call *c)
{
    if (c->holder->cfg->dump_headers)
        log_line(&c->holder->log, LOG_INFO, "%s %s (attempt %d, %zu bytes)", c->spec->method,
                 c->path, c->attempt + 1, c->body_len);
}

void report_try(struct call *c, bool retryable, int64_t elapsed_ms)
{
    log_line(&c->holder->log, LOG_DEBUG, "%s failed after %lld ms%s: %s", c->spec->name,
             (long long)elapsed_ms, retryable ? ", will be tried again" : "", c->err.message);
}
