/* number.c - numbers to text and back: every digit and every last bit. */
#include <float.h>
#include <stdint.h>
#include "base/rand.h"
#include "json/decimal.h"
#include "json/exact.h"
#include "json/shortest.h"
#include "support/tap.h"

static const char *text_of(double v)
{
    static char text[SHORTEST_MAX + 1];
    text[shortest_double(v, text)] = '\0';
    return text;
}

static const char *float_text_of(float v)
{
    static char text[SHORTEST_MAX + 1];
    text[shortest_float(v, text)] = '\0';
    return text;
}

static double parse_number(const char *s)
{
    struct decimal d;
    double v = NAN;
    const char *end = decimal_scan(s, s + strlen(s), &d);
    if (end != s + strlen(s))
        return NAN;
    decimal_double(&d, &v);
    return v;
}

static float parse_float(const char *s)
{
    struct decimal d;
    float v = NAN;
    const char *end = decimal_scan(s, s + strlen(s), &d);
    if (end != s + strlen(s))
        return NAN;
    decimal_float(&d, &v);
    return v;
}

static uint64_t bits_of(double v)
{
    uint64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static uint32_t float_bits(float v)
{
    uint32_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static double from_bits(uint64_t b)
{
    double v;
    memcpy(&v, &b, sizeof v);
    return v;
}

static float float_from_bits(uint32_t b)
{
    float v;
    memcpy(&v, &b, sizeof v);
    return v;
}

static void test_texts_are_those_of_python(void)
{
    CHECK_STR(text_of(0.0), "0.0");
    CHECK_STR(text_of(-0.0), "-0.0");
    CHECK_STR(text_of(1.0), "1.0");
    CHECK_STR(text_of(-1.5), "-1.5");
    CHECK_STR(text_of(0.1), "0.1");
    CHECK_STR(text_of(0.30000000000000004), "0.30000000000000004");
    CHECK_STR(text_of(100.0), "100.0");
    CHECK_STR(text_of(123456789.125), "123456789.125");
    CHECK_STR(text_of(0.0001), "0.0001");
    CHECK_STR(text_of(0.00012345), "0.00012345");
    CHECK_STR(text_of(0.00001), "1e-05");
    CHECK_STR(text_of(1e-12), "1e-12");
    CHECK_STR(text_of(1.5e-7), "1.5e-07");
    CHECK_STR(text_of(1e15), "1000000000000000.0");
    CHECK_STR(text_of(1e16), "1e+16");
    CHECK_STR(text_of(12345678901234567.0), "1.2345678901234568e+16");
    CHECK_STR(text_of(9007199254740993.0), "9007199254740992.0");
    CHECK_STR(text_of(1e22), "1e+22");
    CHECK_STR(text_of(1e100), "1e+100");
    CHECK_STR(text_of(DBL_MAX), "1.7976931348623157e+308");
    CHECK_STR(text_of(DBL_MIN), "2.2250738585072014e-308");
    CHECK_STR(text_of(5e-324), "5e-324");
    CHECK_STR(text_of(2e-323), "2e-323");
    CHECK_STR(text_of(9.5367431640625e-07), "9.5367431640625e-07");
    CHECK_STR(text_of(2.0 / 3.0), "0.6666666666666666");
}

static void test_float_texts(void)
{
    CHECK_STR(float_text_of(0.1f), "0.1");
    CHECK_STR(float_text_of(-0.0f), "-0.0");
    CHECK_STR(float_text_of(16777216.0f), "16777216.0");
    CHECK_STR(float_text_of(3.4028235e38f), "3.4028235e+38");
    CHECK_STR(float_text_of(1e-45f), "1e-45");
    CHECK_STR(float_text_of(1.1754944e-38f), "1.1754944e-38");
    CHECK_STR(float_text_of(-99999.0f), "-99999.0");
    CHECK_STR(float_text_of(0.33333334f), "0.33333334");
    CHECK_STR(float_text_of(1e10f), "10000000000.0");
}

static void test_integers(void)
{
    char text[SHORTEST_MAX + 1];
    text[shortest_int64(INT64_MIN, text)] = '\0';
    CHECK_STR(text, "-9223372036854775808");
    text[shortest_uint64(UINT64_MAX, text)] = '\0';
    CHECK_STR(text, "18446744073709551615");
    text[shortest_uint64(0, text)] = '\0';
    CHECK_STR(text, "0");
    /* around every power of ten, where a digit count goes wrong */
    for (uint64_t ten = 10; ten < UINT64_C(10000000000000000000); ten *= 10)
        for (uint64_t v = ten - 1; v <= ten + 1; v++) {
            char want[32];
            snprintf(want, sizeof want, "%llu", (unsigned long long)v);
            text[shortest_uint64(v, text)] = '\0';
            CHECK_STR(text, want);
        }
}

static void test_doubles_round_trip_and_are_shortest(void)
{
    struct rng r;
    rng_seed(&r, 42);
    for (int i = 0; i < 300000; i++) {
        double v = from_bits(rng_next(&r));
        if (!isfinite(v))
            continue;
        const char *s = text_of(v);
        if (bits_of(parse_number(s)) != bits_of(v) || bits_of(strtod(s, NULL)) != bits_of(v))
            TAP_FAIL("%a -> %s", v, s);
        if (i % 16)
            continue;
        /* one digit fewer must not be enough; the text must be the nearest of its length */
        int digits = 0;
        for (const char *p = s; *p && *p != 'e'; p++)
            digits += *p >= '0' && *p <= '9';
        char shorter[64];
        if (digits > 1) {
            snprintf(shorter, sizeof shorter, "%.*e", digits - 2, v);
            const char *lead = s + (*s == '-');
            if (bits_of(strtod(shorter, NULL)) == bits_of(v) && strncmp(lead, "0.", 2) != 0 &&
                strcmp(s + strlen(s) - 2, ".0") != 0)
                TAP_FAIL("%s is enough, got %s", shorter, s);
            snprintf(shorter, sizeof shorter, "%.*e", digits - 1, v);
            if (strchr(s, 'e') && strtod(shorter, NULL) == v &&
                strncmp(shorter, s, strcspn(s, "e")) != 0)
                TAP_FAIL("%s is nearer, got %s", shorter, s);
        }
    }
}

static void test_floats_round_trip(void)
{
    struct rng r;
    rng_seed(&r, 7);
    for (int i = 0; i < 300000; i++) {
        float v = float_from_bits((uint32_t)rng_next(&r));
        if (!isfinite(v))
            continue;
        const char *s = float_text_of(v);
        if (float_bits(parse_float(s)) != float_bits(v) ||
            float_bits(strtof(s, NULL)) != float_bits(v))
            TAP_FAIL("%a -> %s", (double)v, s);
    }
    /* every exponent with the significands at which intervals are lopsided */
    for (uint32_t e = 0; e < 255; e++)
        for (uint32_t m = 0; m < 3; m++) {
            float v = float_from_bits(e << 23 | (m == 2 ? 0x7fffff : m));
            const char *s = float_text_of(v);
            if (float_bits(parse_float(s)) != float_bits(v) ||
                float_bits(strtof(s, NULL)) != float_bits(v))
                TAP_FAIL("%a -> %s", (double)v, s);
        }
}

/* strtod of glibc rounds exactly; the C locale is in force here. */
static void compare_with_libc(const char *s)
{
    double want = strtod(s, NULL), got = parse_number(s);
    if (bits_of(want) != bits_of(got))
        TAP_FAIL("double %s: got %a, want %a", s, got, want);
    float fwant = strtof(s, NULL), fgot = parse_float(s);
    if (float_bits(fwant) != float_bits(fgot))
        TAP_FAIL("float %s: got %a, want %a", s, (double)fgot, (double)fwant);
}

static void test_reading_random_texts(void)
{
    struct rng r;
    rng_seed(&r, 99);
    for (int i = 0; i < 200000; i++) {
        char s[64], *p = s;
        int n = 1 + (int)(rng_next(&r) % 25), point = (int)(rng_next(&r) % (uint64_t)(n + 1));
        if (rng_next(&r) & 1)
            *p++ = '-';
        if (point == 0)
            *p++ = '0';
        for (int k = 0; k < n; k++) {
            if (k == point)
                *p++ = '.';
            /* no zero in front of another digit */
            *p++ = (char)('0' + (k == 0 && point > 0 ? 1 + rng_next(&r) % 9 : rng_next(&r) % 10));
        }
        *p = '\0';
        if (i % 3)
            snprintf(p, 16, "e%d", (int)(rng_next(&r) % 700) - 350);
        compare_with_libc(s);
    }
}

static void test_reading_hard_texts(void)
{
    static const char *const texts[] = {
        "0",
        "-0",
        "-0.0",
        "1e0",
        "1E+2",
        "9007199254740993",
        "9007199254740992.9999999999999999999999999",
        "9007199254740993.0000000000000000000000001",
        "9007199254740995",
        "2.2250738585072011e-308",
        "2.2250738585072012e-308",
        "4.9406564584124654e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "2.470328229206232720882843964341106861825299013071623822127928412503377536351043e-324",
        "1.7976931348623157e308",
        "1.7976931348623158e308",
        "1.797693134862315807e308",
        "1.797693134862315808e308",
        "1e308",
        "1e309",
        "1e-400",
        "123456789012345678901234567890e-400",
        "0.000000000000000000000000000000000000000000000000000001e300",
        "16777217",
        "16777217.0000000001",
        "16777216.9999999999",
        "16777219",
        "3.4028234663852886e38",
        "3.40282356e38",
        "3.4028235677973366e38",
        "3.4028235677973365e38",
        "7.0064923216240853e-46",
        "7.0064923216240854e-46",
        "7.006492321624085354618e-46",
        "1.17549429e-38",
        "8.5899345930000001e9",
        "8589934592.5",
        "1.00000005960464477539062499",
        "1.000000059604644775390625",
        "1.00000005960464477539062501",
        "1.000000178813934326171875",
        "6.631236846766476e-316",
        "3.518437208883201171875e13",
        "358416272e-33",
        "1448997445238699",
        "0.500000000000000166533453693773481063544750213623046875",
        "3.7455744005952583e15",
        "1e23",
        "8.5e22",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        compare_with_libc(texts[i]);
}

/* A middle between two doubles needs up to 767 digits; one beyond decides. */
static void test_reading_exact_middles(void)
{
    struct rng r;
    rng_seed(&r, 5);
    for (int i = 0; i < 400; i++) {
        uint64_t b = rng_next(&r) & ~(UINT64_C(1) << 63);
        if (i < 100)
            b &= (UINT64_C(1) << 53) - 1; /* subnormal and just above */
        if (i >= 100 && i < 200)
            b = (b & ~(UINT64_C(0x7ff) << 52)) | (uint64_t)(1023 + i % 60) << 52;
        double v = from_bits(b);
        if (!isfinite(v) || b >> 52 >= 0x7fe)
            continue;
        /* the middle to the next double, exactly, in decimal */
        long double middle = ((long double)v + (long double)from_bits(b + 1)) / 2;
        static char s[2400];
        int n = snprintf(s, sizeof s - 4, "%.1100Lf", middle);
        compare_with_libc(s);
        s[n] = '1';
        s[n + 1] = '\0';
        compare_with_libc(s);
    }
}

static void test_float_middles(void)
{
    struct rng r;
    rng_seed(&r, 6);
    for (int i = 0; i < 4000; i++) {
        uint32_t b = (uint32_t)rng_next(&r) & 0x7fffffff;
        float v = float_from_bits(b);
        if (!isfinite(v) || b >> 23 >= 0xfe)
            continue;
        double middle = ((double)v + (double)float_from_bits(b + 1)) / 2;
        char s[400];
        int n = snprintf(s, sizeof s - 4, "%.200f", middle);
        compare_with_libc(s);
        s[n] = '1';
        s[n + 1] = '\0';
        compare_with_libc(s);
    }
}

static void test_exact_rounding_from_a_bad_guess(void)
{
    static const char s[] = "1.5";
    struct decimal d;
    decimal_scan(s, s + 3, &d);
    uint64_t want = bits_of(1.5);
    for (int off = -3; off <= 3; off++)
        CHECK(exact_round(&d, want + (uint64_t)(int64_t)off, 52, 0x7ff) == want);
}

static void test_malformed(void)
{
    static const char *const texts[] = { "",   "-",   "01", "-01", ".5",  "1.",   "1.e5",
                                         "1e", "1e+", "+1", "00",  "--1", "1.2.3" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!isnan(parse_number(texts[i])))
            TAP_FAIL("accepted %s", texts[i]);
}

static void test_integers_from_any_spelling(void)
{
    static const struct {
        const char *text;
        int ok; /* 1: value; 0: fraction; -1: out of range */
        uint64_t value;
    } cases[] = {
        { "3", 1, 3 },
        { "3.0", 1, 3 },
        { "3.5", 0, 0 },
        { "30e-1", 1, 3 },
        { "1.5e1", 1, 15 },
        { "0.0000000000000000000000000", 1, 0 },
        { "0e99999999999", 1, 0 },
        { "18446744073709551615", 1, UINT64_MAX },
        { "18446744073709551616", -1, 0 },
        { "99999999999999999999", -1, 0 },
        { "1e19", 1, UINT64_C(10000000000000000000) },
        { "1e20", -1, 0 },
        { "1e999999999", -1, 0 },
        { "3.00000000000000000000000000000", 1, 3 },
        { "3.00000000000000000000000000001", 0, 0 },
        { "0.1", 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decimal d;
        const char *s = cases[i].text;
        uint64_t v = 1;
        bool fraction = false;
        REQUIRE(decimal_scan(s, s + strlen(s), &d));
        bool ok = decimal_uint64(&d, &v, &fraction);
        if (ok != (cases[i].ok == 1) || (ok && v != cases[i].value) ||
            (!ok && fraction != (cases[i].ok == 0)))
            TAP_FAIL("%s: ok %d fraction %d", s, ok, fraction);
    }
}

int main(void)
{
    RUN(test_texts_are_those_of_python);
    RUN(test_float_texts);
    RUN(test_integers);
    RUN(test_doubles_round_trip_and_are_shortest);
    RUN(test_floats_round_trip);
    RUN(test_reading_random_texts);
    RUN(test_reading_hard_texts);
    RUN(test_reading_exact_middles);
    RUN(test_float_middles);
    RUN(test_exact_rounding_from_a_bad_guess);
    RUN(test_malformed);
    RUN(test_integers_from_any_spelling);
    return tap_done();
}
