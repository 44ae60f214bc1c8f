/* rand.c - known answers, ranges, and that seeds repeat. */
#include "base/rand.h"
#include <sys/wait.h>
#include <unistd.h>
#include "support/tap.h"

static void test_philox_known_answers(void)
{
    /* from the Random123 distribution's kat_vectors, philox4x32 with 10 rounds */
    uint32_t w[4];
    philox4x32(0, 0, 0, w);
    CHECK(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8);
    philox4x32(UINT64_MAX, UINT64_MAX, UINT64_MAX, w);
    CHECK(w[0] == 0x408f276d && w[1] == 0x41c83b0e && w[2] == 0xa20bc7c6 && w[3] == 0x6d5451fd);
    philox4x32(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu, w);
    CHECK(w[0] == 0xd16cfe09 && w[1] == 0x94fdcceb && w[2] == 0x5001e420 && w[3] == 0x24126ea1);
}

static void test_philox_uniform_repeats_and_spreads(void)
{
    double sum = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        double u = philox_uniform(1, i);
        CHECK(u >= 0 && u < 1);
        CHECK(u == philox_uniform(1, i));
        sum += u;
    }
    CHECK_NEAR(sum / 20000, 0.5, 0.01);
    CHECK(philox_uniform(1, 5) != philox_uniform(2, 5));
    CHECK(philox_uniform(1, 5) != philox_uniform(1, 6));
}

static void test_xoshiro_known_answers(void)
{
    /* state 1, 2, 3, 4: the first outputs by the published definition */
    struct rng r = { { 1, 2, 3, 4 } };
    CHECK(rng_next(&r) == 11520);
    CHECK(rng_next(&r) == 0);
    CHECK(rng_next(&r) == 1509978240);
    CHECK(rng_next(&r) == UINT64_C(1215971899390074240));
}

static void test_seeds(void)
{
    struct rng a, b, c;
    rng_seed(&a, 5);
    rng_seed(&b, 5);
    rng_seed(&c, 6);
    /* splitmix64 of seed 0 starts with this published value */
    struct rng zero;
    rng_seed(&zero, 0);
    CHECK(zero.s[0] == 0xe220a8397b1dcdafu);
    int equal = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t x = rng_next(&a);
        CHECK(x == rng_next(&b));
        equal += x == rng_next(&c);
    }
    CHECK_INT(equal, 0);
    rng_seed_os(&a);
    rng_seed_os(&b);
    CHECK(rng_next(&a) != rng_next(&b));
}

static void test_uniform_range(void)
{
    struct rng r;
    rng_seed(&r, 1);
    double low = 1, high = 0, sum = 0;
    for (int i = 0; i < 100000; i++) {
        double u = rng_uniform(&r);
        low = u < low ? u : low;
        high = u > high ? u : high;
        sum += u;
    }
    CHECK(low >= 0 && low < 0.001 && high < 1 && high > 0.999);
    CHECK_NEAR(sum / 100000, 0.5, 0.005);
    struct rng max = { { 0, 0, 0, 0 } };
    CHECK(rng_uniform(&max) == 0);
}

static void test_uuid(void)
{
    char a[37], b[37];
    for (int i = 0; i < 100; i++) {
        rand_uuid(a);
        CHECK_INT(strlen(a), 36);
        CHECK(a[8] == '-' && a[13] == '-' && a[18] == '-' && a[23] == '-');
        CHECK_INT(a[14], '4');
        CHECK(strchr("89ab", a[19]));
        CHECK_INT(strspn(a, "0123456789abcdef-"), 36);
    }
    rand_uuid(b);
    CHECK(strcmp(a, b) != 0);
}

/* Bytes are fetched ahead: a child must not hand out what its parent will. */
static void test_uuid_in_a_child(void)
{
    char mine[37], its[37] = "";
    int p[2];
    rand_uuid(mine); /* there are bytes ahead now */
    CHECK(pipe(p) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        rand_uuid(its);
        _exit(write(p[1], its, 37) == 37 ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_INT(read(p[0], its, 37), 37);
    rand_uuid(mine);
    CHECK_INT(strlen(its), 36);
    CHECK(strcmp(mine, its) != 0);
    close(p[0]);
    close(p[1]);
}

static void test_os_bytes(void)
{
    unsigned char a[300] = { 0 }, b[300] = { 0 };
    CHECK_INT(rand_os(a, sizeof a), 0);
    CHECK_INT(rand_os(b, sizeof b), 0);
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK_INT(rand_os(a, 0), 0);
}

int main(void)
{
    RUN(test_philox_known_answers);
    RUN(test_philox_uniform_repeats_and_spreads);
    RUN(test_xoshiro_known_answers);
    RUN(test_seeds);
    RUN(test_uniform_range);
    RUN(test_uuid);
    RUN(test_uuid_in_a_child);
    RUN(test_os_bytes);
    return tap_done();
}
