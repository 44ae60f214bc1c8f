/* log.h - log lines, with secrets redacted.
 *
 * A struct log is a sink with a level.  log_line() formats one line, redacts it and
 * hands it on; with a NULL log or a lower level it costs a branch.  Redaction
 * covers the secrets registered with log_secret() (API keys, JWTs) and, in any
 * text, tokens that look like them ("tml-…", "eyJ….….…", "sig=…").  Thread-safe. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_OFF };

typedef void log_sink(void *state, enum log_level level, const char *line);

struct log {
    log_sink *sink;
    void *state;
    enum log_level level;
};

void log_line(const struct log *log, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Replace secrets in text[0..strlen) by [REDACTED]; the result fits in size bytes. */
void log_redact(char *text, size_t size);
/* Remember a secret for redaction, process-wide; NULL and short ones are ignored. */
void log_secret(const char *secret);
/* Sink that writes "2026-… level line\n" to stderr. */
void log_stderr(void *state, enum log_level level, const char *line);
/* Parse "debug", "info", "warn", "warning", "error" in any case; dflt otherwise. */
enum log_level log_level_parse(const char *s, enum log_level dflt);

#endif
