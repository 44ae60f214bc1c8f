/* log.c - levels, and that no secret gets through in any position. */
#include "base/log.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/tap.h"

static char line[8192];
static enum log_level line_level;
static int lines;

static void keep_log_line(void *state, enum log_level level, const char *text)
{
    (void)state;
    line_level = level;
    lines++;
    snprintf(line, sizeof line, "%s", text);
}

static const char *redact_text(const char *text)
{
    static char s[4096];
    snprintf(s, sizeof s, "%s", text);
    log_redact(s, sizeof s);
    return s;
}

static void test_levels(void)
{
    struct log log = { keep_log_line, NULL, LOG_WARNING };
    lines = 0;
    log_line(&log, LOG_INFO, "quiet");
    log_line(NULL, LOG_ERROR, "nobody");
    log_line(&(struct log){ NULL, NULL, LOG_DEBUG }, LOG_ERROR, "nowhere");
    CHECK_INT(lines, 0);
    log_line(&log, LOG_WARNING, "loud %d", 7);
    CHECK_INT(lines, 1);
    CHECK_INT(line_level, LOG_WARNING);
    CHECK_STR(line, "loud 7");
    log.level = LOG_OFF;
    log_line(&log, LOG_ERROR, "off");
    log_line(&log, LOG_OFF, "off");
    CHECK_INT(lines, 1);
}

static void test_one_line_of_any_length(void)
{
    struct log log = { keep_log_line, NULL, LOG_DEBUG };
    char text[6000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    text[3000] = '\n';
    memcpy(text + 5000, " tml-secretsecret ", 18);
    log_line(&log, LOG_INFO, "%s", text);
    CHECK(strchr(line, '\n') == NULL);
    CHECK(strstr(line, "secretsecret") == NULL);
    CHECK(strstr(line, " [REDACTED] ") != NULL);
    CHECK(strlen(line) > 5900);
}

static void test_keys(void)
{
    CHECK_STR(redact_text("key tml-abcDEF_123-x is bad"), "key [REDACTED] is bad");
    CHECK_STR(redact_text("tml-a"), "[REDACTED]");
    CHECK_STR(redact_text("(tml-abcdef),(tml-ghijkl)"), "([REDACTED]),([REDACTED])");
    CHECK_STR(redact_text("tml-abcdeftml-ghijkl"), "[REDACTED]");
    CHECK_STR(redact_text("xtml-abcdef"), "x[REDACTED]");
    CHECK_STR(redact_text("X-API-Key: tml-AAAA\r\n"), "X-API-Key: [REDACTED]\r\n");
    CHECK_STR(redact_text("\"tml-q1\""), "\"[REDACTED]\"");
    /* no key: */
    CHECK_STR(redact_text("a key starts with tml-"), "a key starts with tml-");
    CHECK_STR(redact_text("the html-escape rule"), "the html-escape rule");
    CHECK_STR(redact_text("html-0123456789abcdef0123"), "h[REDACTED]");
    CHECK_STR(redact_text(""), "");
}

static void test_tokens(void)
{
    CHECK_STR(redact_text("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl end"),
              "jwt [REDACTED] end");
    CHECK_STR(
        redact_text("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln,eyJhbGciOiJIUzI1NiJ9.eyJzdWIi."),
        "[REDACTED],[REDACTED]");
    CHECK_STR(redact_text("cut eyJhbGciOiJIUzI1NiJ9.eyJzdWI"), "cut [REDACTED]");
    CHECK_STR(redact_text("eyJust a word"), "eyJust a word");
    CHECK_STR(redact_text("Authorization: Bearer abcdefghijklmnopqrstuvwxyz"),
              "Authorization: Bearer [REDACTED]");
    CHECK_STR(redact_text("Bearer token missing"), "Bearer token missing");
}

static void test_signed_urls(void)
{
    CHECK_STR(redact_text("GET /a?sig=AbC%2F123&exp=5 200"), "GET /a?sig=[REDACTED]&exp=5 200");
    CHECK_STR(redact_text("https://h/x?X-Goog-Signature=0a1b2c&y=1"),
              "https://h/x?X-Goog-Signature=[REDACTED]&y=1");
    CHECK_STR(redact_text("?SIG=abc"), "?SIG=[REDACTED]");
    CHECK_STR(redact_text("sig=a&sig=b"), "sig=[REDACTED]&sig=[REDACTED]");
    CHECK_STR(redact_text("sig= nothing"), "sig= nothing");
}

static void test_redacting_twice_changes_nothing(void)
{
    char once[256];
    snprintf(once, sizeof once, "%s", redact_text("tml-abcd sig=xyz eyJhbGciOiJI.eyJzdWIi.c2ln"));
    CHECK_STR(redact_text(once), once);
}

static void test_registered_secrets(void)
{
    log_secret(NULL);
    log_secret("short");
    log_secret("hunter2-hunter2");
    CHECK_STR(redact_text("short hunter2-hunter2"), "short [REDACTED]");
    CHECK_STR(redact_text("xhunter2-hunter2hunter2-hunter2x"), "x[REDACTED][REDACTED]x");
    CHECK_STR(redact_text("hunter2-hunter3"), "hunter2-hunter3");
    /* a text that was cut inside the secret */
    CHECK_STR(redact_text("last words: hunter2-hun"), "last words: [REDACTED]");
    CHECK_STR(redact_text("last words: hunter"), "last words: hunter");
}

/* The mark may be longer than the secret: the text is cut, the buffer kept. */
static void test_result_fits(void)
{
    for (size_t size = 1; size < 40; size++) {
        char *s = malloc(size);
        REQUIRE(s);
        snprintf(s, size, "tml-a tml-b tml-c tail");
        log_redact(s, size);
        CHECK(strlen(s) < size);
        CHECK(strstr(s, "tml-a") == NULL && strstr(s, "tml-b") == NULL);
        free(s);
    }
    char exact[] = "sig=a";
    log_redact(exact, sizeof exact);
    CHECK_STR(exact, "sig=[");
}

static void test_old_secrets_make_room_for_new(void)
{
    char secret[32];
    for (int i = 0; i < 100; i++) {
        snprintf(secret, sizeof secret, "secret-number-%03d", i);
        log_secret(secret);
        log_secret(secret);
    }
    CHECK_STR(redact_text("secret-number-099"), "[REDACTED]");
    CHECK_STR(redact_text("secret-number-080"), "[REDACTED]");
}

static void *hammer_log(void *arg)
{
    for (int i = 0; i < 200; i++) {
        char secret[32], text[64];
        snprintf(secret, sizeof secret, "thread-%d-secret-%d", *(int *)arg, i);
        log_secret(secret);
        snprintf(text, sizeof text, "tml-abc %s", secret);
        log_redact(text, sizeof text);
        if (strncmp(text, "[REDACTED] ", 11) != 0)
            return arg;
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t t[4];
    int id[4];
    for (int i = 0; i < 4; i++) {
        id[i] = i;
        REQUIRE(pthread_create(&t[i], NULL, hammer_log, &id[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        CHECK(bad == NULL);
    }
}

static atomic_bool enough;
static void *redact_on(void *arg)
{
    while (!atomic_load(&enough)) {
        char text[4096];
        memset(text, 'x', sizeof text);
        text[sizeof text - 1] = '\0';
        log_redact(text, sizeof text);
    }
    return arg;
}

/* A child that was made while somebody held the lock would wait for it for ever. */
static void test_children_redact_too(void)
{
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, redact_on, NULL) == 0);
    int bad = 0;
    for (int i = 0; i < 50 && !bad; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            char text[] = "tml-0123456789abcdef";
            alarm(10);
            log_redact(text, sizeof text);
            _exit(strcmp(text, "[REDACTED]") != 0);
        }
        int status = 1;
        waitpid(pid, &status, 0);
        bad = status;
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    CHECK_INT(bad, 0);
}

static void test_level_names(void)
{
    CHECK_INT(log_level_parse("debug", LOG_OFF), LOG_DEBUG);
    CHECK_INT(log_level_parse("WARN", LOG_OFF), LOG_WARNING);
    CHECK_INT(log_level_parse("Warning", LOG_OFF), LOG_WARNING);
    CHECK_INT(log_level_parse("info", LOG_OFF), LOG_INFO);
    CHECK_INT(log_level_parse("error", LOG_OFF), LOG_ERROR);
    CHECK_INT(log_level_parse("loud", LOG_INFO), LOG_INFO);
    CHECK_INT(log_level_parse(NULL, LOG_ERROR), LOG_ERROR);
}

int main(void)
{
    RUN(test_levels);
    RUN(test_one_line_of_any_length);
    RUN(test_keys);
    RUN(test_tokens);
    RUN(test_signed_urls);
    RUN(test_redacting_twice_changes_nothing);
    RUN(test_registered_secrets);
    RUN(test_result_fits);
    RUN(test_old_secrets_make_room_for_new);
    RUN(test_threads);
    RUN(test_children_redact_too);
    RUN(test_level_names);
    return tap_done();
}
