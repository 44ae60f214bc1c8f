/* err.c - messages that fit, stay readable and keep no secret; options by size. */
#include "base/err.h"
#include <errno.h>
#include <tinker/data.h>
#include "support/tap.h"

static void test_set(void)
{
    tinker_error err;
    memset(&err, 0x55, sizeof err);
    CHECK_INT(err_set(&err, TINKER_EINVAL, "%s is %d", "x", 5), TINKER_EINVAL);
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK_STR(err.message, "x is 5");
    CHECK(err.http_status == 0 && err.category == 0 && err.retryable == 0 && !err.request_id[0]);
    CHECK_INT(err_set(NULL, TINKER_EHTTP, "ignored"), TINKER_EHTTP);
    /* an argument may be the message itself */
    err_set(&err, TINKER_ESTATE, "again: %s", err.message);
    CHECK_STR(err.message, "again: x is 5");
}

static void test_one_line(void)
{
    tinker_error err;
    err_set(&err, TINKER_EHTTP, "a\nb\r\n\tc\x7f");
    CHECK_STR(err.message, "a b   c ");
    err_set(&err, TINKER_EHTTP, "caf\xc3\xa9 \xff\xfe.");
    CHECK_STR(err.message, "caf\xc3\xa9 ??.");
}

static void test_cut_at_a_character(void)
{
    tinker_error err;
    char text[600];
    for (size_t lead = 0; lead < 3; lead++) {
        memset(text, 'x', lead);
        for (size_t i = lead; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xe2\x82\xac", 4);
        err_set(&err, TINKER_EINVAL, "%s", text);
        size_t n = strlen(err.message);
        CHECK(n <= 383 && n >= 381);
        CHECK_INT((n - lead) % 3, 0);
    }
    err_set(&err, TINKER_EINVAL, "%0383d", 1);
    CHECK_INT(strlen(err.message), 383);
    CHECK_INT(err.message[382], '1');
}

static void test_secrets_are_removed_even_at_the_cut(void)
{
    tinker_error err;
    err_set(&err, TINKER_EHTTP, "key tml-0123456789 refused");
    CHECK_STR(err.message, "key [REDACTED] refused");
    for (int pad = 340; pad < 400; pad++) {
        err_set(&err, TINKER_EHTTP, "%0*d tml-0123456789abcdef", pad, 1);
        CHECK(strstr(err.message, "tml-0") == NULL);
    }
}

static void test_prefix(void)
{
    tinker_error err;
    err_set(&err, TINKER_EINVAL, "bad dtype");
    err.http_status = 422;
    err_prefix(&err, "datum %d", 3);
    CHECK_STR(err.message, "datum 3: bad dtype");
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK_INT(err.http_status, 422);
    err_prefix(NULL, "nothing");
    for (int i = 0; i < 100; i++)
        err_prefix(&err, "level %d", i);
    CHECK_INT(strlen(err.message), 383);
    CHECK(strncmp(err.message, "level 99: level 98: ", 20) == 0);
}

static void test_errno_and_nomem(void)
{
    tinker_error err;
    errno = ENOENT;
    CHECK_INT(err_errno(&err, "open", "/x/y"), TINKER_ESTATE);
    CHECK_STR(err.message, "open /x/y: No such file or directory");
    errno = EACCES;
    err_errno(&err, "bind", NULL);
    CHECK_STR(err.message, "bind: Permission denied");
    CHECK_INT(err_nomem(&err, "tensor"), TINKER_ENOMEM);
    CHECK(strstr(err.message, "tensor"));
}

static void test_status_names(void)
{
    CHECK_STR(tinker_status_name(TINKER_OK), "TINKER_OK");
    CHECK_STR(tinker_status_name(TINKER_EINVAL), "TINKER_EINVAL");
    CHECK_STR(tinker_status_name(TINKER_EPROTOCOL), "TINKER_EPROTOCOL");
    CHECK_STR(tinker_status_name(TINKER_ECANCELED), "TINKER_ECANCELED");
    CHECK(tinker_status_name((tinker_status)1000) != NULL);
    CHECK(tinker_status_name((tinker_status)-1) != NULL);
    CHECK_STR(tinker_version(), TINKER_VERSION);
}

struct old_opts { /* an earlier version of the struct below */
    size_t size;
    int a;
};
struct opts {
    size_t size;
    int a, b;
    double c;
};
struct new_opts { /* a later one */
    size_t size;
    int a, b;
    double c;
    int d, e;
};

static void test_options_of_every_age(void)
{
    tinker_error err;
    struct opts ours = { sizeof ours, 1, 2, 3.0 };
    struct opts same = { sizeof same, 10, 20, 30.0 };
    CHECK_INT(opts_copy(&ours, sizeof ours, &same, "opts", &err), TINKER_OK);
    CHECK(ours.a == 10 && ours.b == 20 && ours.c == 30.0);

    ours = (struct opts){ sizeof ours, 1, 2, 3.0 };
    /* the padding of the old struct covers b: a caller of that age left it zero */
    struct old_opts old;
    memset(&old, 0, sizeof old);
    old.size = offsetof(struct opts, b);
    old.a = 7;
    CHECK_INT(opts_copy(&ours, sizeof ours, &old, "opts", &err), TINKER_OK);
    CHECK(ours.a == 7 && ours.b == 2 && ours.c == 3.0);
    CHECK_INT(ours.size, sizeof ours);

    struct new_opts newer;
    memset(&newer, 0, sizeof newer);
    newer.size = sizeof newer;
    newer.a = 5;
    CHECK_INT(opts_copy(&ours, sizeof ours, &newer, "opts", &err), TINKER_OK);
    CHECK_INT(ours.a, 5);
    CHECK_INT(ours.size, sizeof ours);
    newer.e = 1;
    CHECK_INT(opts_copy(&ours, sizeof ours, &newer, "new_opts", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "new_opts"));

    ours = (struct opts){ sizeof ours, 1, 2, 3.0 };
    CHECK_INT(opts_copy(&ours, sizeof ours, NULL, "opts", &err), TINKER_OK);
    CHECK_INT(ours.a, 1);
    same.size = 0;
    CHECK_INT(opts_copy(&ours, sizeof ours, &same, "opts", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "not initialized"));
    same.size = (size_t)1 << 40;
    CHECK_INT(opts_copy(&ours, sizeof ours, &same, "opts", &err), TINKER_EINVAL);
    CHECK_INT(ours.a, 1);
}

static void test_metric(void)
{
    tinker_named_number m[] = { { "loss:sum", 1.5 }, { "loss", 2.5 } };
    CHECK_NEAR(tinker_metric(m, 2, "loss"), 2.5, 0);
    CHECK(isnan(tinker_metric(m, 2, "loss:")));
    CHECK(isnan(tinker_metric(NULL, 0, "loss")));
}

int main(void)
{
    RUN(test_set);
    RUN(test_one_line);
    RUN(test_cut_at_a_character);
    RUN(test_secrets_are_removed_even_at_the_cut);
    RUN(test_prefix);
    RUN(test_errno_and_nomem);
    RUN(test_status_names);
    RUN(test_options_of_every_age);
    RUN(test_metric);
    return tap_done();
}
