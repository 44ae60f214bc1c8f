/* log.c - log lines, with secrets redacted.
 *
 * Two nets: secrets that were registered, and anything shaped like one.  The
 * registry is process-wide, bounded (the oldest is forgotten: tokens are renewed
 * for days) and guarded by one leaf lock.  A text cut inside a registered secret is
 * caught too.  Thread-safe. */
#include "base/log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/clock.h"

/* SECRET_MIN: shorter ones would match words of the language. */
enum { SECRETS_MAX = 32, SECRET_MIN = 8, KEY_WORD = 16 };
static const char MARK[] = "[REDACTED]";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *secrets[SECRETS_MAX]; /* lock */
static size_t n_registered;        /* lock */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* In a forked child the thread that held the lock does not exist, so it would never be released.
 * Half a change of the registry is one secret more or less, never a dangling pointer. */
static void renew_lock(void)
{
    pthread_mutex_init(&lock, NULL);
}

static void register_log_fork_handler(void)
{
    pthread_atfork(NULL, NULL, renew_lock);
}

static void lock_registry(void)
{
    pthread_once(&fork_once, register_log_fork_handler);
    pthread_mutex_lock(&lock);
}

/* Length of the run of base64url characters at s. */
static size_t token_length(const char *s)
{
    size_t n = 0;
    while ((s[n] >= 'A' && s[n] <= 'Z') || (s[n] >= 'a' && s[n] <= 'z') ||
           (s[n] >= '0' && s[n] <= '9') || s[n] == '_' || s[n] == '-')
        n++;
    return n;
}

/* An API key, "tml-" and a word.  "html-escape" is none, unless the word is as long as a key. */
static size_t match_key(const char *text, const char *p)
{
    if (strncmp(p, "tml-", 4) != 0)
        return 0;
    size_t n = token_length(p + 4);
    bool html = p > text && (p[-1] == 'h' || p[-1] == 'H');
    return n >= (html ? KEY_WORD : 1) ? 4 + n : 0;
}

/* A JSON web token: base64url of '{"', then one or two more parts after dots. */
static size_t match_jwt(const char *p)
{
    if (strncmp(p, "eyJ", 3) != 0)
        return 0;
    /* A header is at least {"alg":""}, so short words that begin so are not tokens. */
    size_t n = token_length(p);
    if (n < 8 || p[n] != '.')
        return 0;
    size_t part = token_length(p + n + 1);
    if (part < 4)
        return 0;
    n += 1 + part;
    return p[n] == '.' ? n + 1 + token_length(p + n + 1) : n;
}

/* Names whose value is secret; *keep is the length of the name, which stays. */
static size_t match_named(const char *p, size_t *keep)
{
    static const struct {
        const char *name;
        size_t min; /* shortest value that is one */
    } names[] = { { "sig=", 1 },
                  { "signature=", 1 },
                  { "sig%3D", 1 },
                  { "signature%3D", 1 },
                  { "bearer ", 16 } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].name);
        if (strncasecmp(p, names[i].name, n) != 0)
            continue;
        /* Up to whatever ends a value in a URL, a header or a text that quotes one. */
        size_t value = strcspn(p + n, " \t\r\n&\"'<>;,");
        if (value < names[i].min || strncmp(p + n, MARK, sizeof MARK - 1) == 0)
            return 0;
        *keep = n;
        return n + value;
    }
    return 0;
}

/* Length of the secret at p with the first *keep bytes harmless; 0: none. */
static size_t match_locked(const char *text, const char *p, size_t *keep)
{
    *keep = 0;
    /* A registered secret, or the beginning of one when the text was cut there. */
    for (size_t i = 0; i < SECRETS_MAX && secrets[i]; i++) {
        const char *s = secrets[i];
        if (*s != *p)
            continue;
        size_t n = 0;
        while (s[n] && s[n] == p[n])
            n++;
        if (!s[n] || (!p[n] && n >= SECRET_MIN))
            return n;
    }
    /* Anything shaped like one.  Most characters begin none, so look at one first. */
    switch (*p) {
    case 't':
        return match_key(text, p);
    case 'e':
        return match_jwt(p);
    case 's':
    case 'S':
    case 'b':
    case 'B':
        return match_named(p, keep);
    default:
        return 0;
    }
}

void log_redact(char *text, size_t size)
{
    if (!text || !size)
        return;
    lock_registry();
    for (char *p = text; *p;) {
        size_t keep, n = match_locked(text, p, &keep);
        if (!n) {
            p++;
            continue;
        }
        /* The mark may be longer than the secret: what no longer fits is cut. */
        p += keep;
        n -= keep;
        size_t space = size - 1 - (size_t)(p - text);
        size_t mark = sizeof MARK - 1 < space ? sizeof MARK - 1 : space;
        size_t rest = strlen(p + n);
        /* The end of the text is lost rather than the mark. */
        if (rest > space - mark)
            rest = space - mark;
        memmove(p + mark, p + n, rest);
        memcpy(p, MARK, mark);
        p[mark + rest] = '\0';
        p += mark;
    }
    pthread_mutex_unlock(&lock);
}

void log_secret(const char *secret)
{
    /* A secret of a few letters would turn every log into marks. */
    if (!secret || strlen(secret) < SECRET_MIN)
        return;
    char *copy = strdup(secret);
    if (!copy)
        return;
    lock_registry();
    bool known = false;
    for (size_t i = 0; i < SECRETS_MAX && secrets[i]; i++)
        known = known || strcmp(secrets[i], secret) == 0;
    if (!known) {
        /* A ring: the oldest secret makes space for the newest. */
        char **slot = &secrets[n_registered++ % SECRETS_MAX];
        char *oldest = *slot;
        *slot = copy;
        copy = oldest;
    }
    pthread_mutex_unlock(&lock);
    free(copy);
}

/* Any thread.  The sink gets the line without its line feed. */
void log_line(const struct log *log, enum log_level level, const char *fmt, ...)
{
    /* Before anything is formatted: debug lines are cheap when they are off. */
    if (!log || !log->sink || level < log->level || level >= LOG_OFF)
        return;
    char fixed[2048], *text = fixed;
    size_t size = sizeof fixed;
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(fixed, sizeof fixed, fmt, ap);
    if (n >= (int)sizeof fixed) {
        /* Redact before cutting, so take memory for all of it; without, the line is cut. */
        char *large = malloc((size_t)n + 1);
        if (large) {
            text = large;
            size = (size_t)n + 1;
            vsnprintf(text, size, fmt, again);
        }
    }
    va_end(again);
    va_end(ap);
    if (n >= 0) {
        log_redact(text, size);
        for (char *p = text; *p; p++) /* one line, whatever a peer put into it */
            if ((unsigned char)*p < 0x20 && *p != '\t')
                *p = ' ';
        log->sink(log->state, level, text);
    }
    if (text != fixed)
        free(text);
}

/* One call of fprintf(), so that lines of several threads do not mix. */
void log_stderr(void *state, enum log_level level, const char *line)
{
    static const char *const names[] = { "debug", "info", "warning", "error" };
    (void)state;
    char when[32];
    clock_format_rfc3339(clock_wall_ns(clock_real()), when);
    fprintf(stderr, "%s %s %s\n", when, level < LOG_OFF ? names[level] : "off", line);
}

/* In any case; a word that is not known gives dflt. */
enum log_level log_level_parse(const char *s, enum log_level dflt)
{
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = { { "debug", LOG_DEBUG },
                  { "info", LOG_INFO },
                  { "warn", LOG_WARNING },
                  { "warning", LOG_WARNING },
                  { "error", LOG_ERROR } };
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
        if (strcasecmp(s, names[i].name) == 0)
            return names[i].level;
    return dflt;
}
