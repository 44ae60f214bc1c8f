/* room: json - any text of a number rounds as the C library rounds it, and is written
 * back with digits that mean the same bits. */
#include <stdlib.h>
#include <string.h>
#include "json/decimal.h"
#include "json/shortest.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

static void check_double(const struct decimal *d, const char *text)
{
    double want = strtod(text, NULL), got, back;
    bool finite = decimal_double(d, &got);
    demand(memcmp(&want, &got, sizeof want) == 0);
    demand(finite == __builtin_isfinite(want));
    if (!finite)
        return;
    char s[SHORTEST_MAX];
    struct decimal again;
    size_t n = shortest_double(got, s);
    demand(n <= SHORTEST_MAX && decimal_scan(s, s + n, &again) == s + n);
    decimal_double(&again, &back);
    demand(memcmp(&back, &got, sizeof got) == 0);
}

static void check_float(const struct decimal *d, const char *text)
{
    float want = strtof(text, NULL), got, back;
    bool finite = decimal_float(d, &got);
    demand(memcmp(&want, &got, sizeof want) == 0);
    if (!finite)
        return;
    char s[SHORTEST_MAX];
    struct decimal again;
    size_t n = shortest_float(got, s);
    demand(n <= SHORTEST_MAX && decimal_scan(s, s + n, &again) == s + n);
    decimal_float(&again, &back);
    demand(memcmp(&back, &got, sizeof got) == 0);
}

/* Bytes become the characters of numbers, so that most inputs are some. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char alphabet[16] = "0123456789.eE+-0";
    if (size > 1200)
        return 0;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    for (size_t i = 0; i < size; i++)
        text[i] = data[i] >= '0' && data[i] <= '9' ? (char)data[i] : alphabet[data[i] & 15];
    text[size] = '\0';
    struct decimal d;
    const char *end = decimal_scan(text, text + size, &d);
    if (end) {
        demand(end > text && end <= text + size);
        text[end - text] = '\0';
        check_double(&d, text);
        check_float(&d, text);
    }
    free(text);
    return 0;
}
