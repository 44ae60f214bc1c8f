/* room: json - whatever the bytes: no crash, and reader, skipper and writer agree.
 *
 * A text that is read is written again; that text must read back and write the same
 * bytes.  Arrays of numbers must give what single reads give. */
#include <stdlib.h>
#include <string.h>
#include "support/json_again.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

/* Read s and write it to out; false: refused. */
static bool again(const char *s, size_t n, struct buf *out)
{
    struct arena a;
    struct json_reader r;
    struct json_writer w;
    arena_init(&a, 64 << 20);
    json_reader_init(&r, s, n, &a);
    json_writer_init(&w, out);
    bool ok = json_again(&r, &w) && json_end(&r);
    demand(ok == !r.failed);
    demand(ok == (r.error[0] == '\0'));
    demand(r.error_at <= n);
    arena_clear(&a);
    return ok && buf_ok(out);
}

static bool skips(const char *s, size_t n)
{
    struct json_reader r;
    struct json_str raw;
    json_reader_init(&r, s, n, NULL);
    bool ok = json_raw(&r, &raw) && json_end(&r);
    if (ok)
        demand(raw.s >= s && raw.s + raw.n <= s + n && raw.n > 0);
    return ok;
}

/* The same array element by element. */
static bool single_floats(const char *s, size_t n, const float *v, size_t count)
{
    struct json_reader r;
    size_t i = 0;
    double d;
    json_reader_init(&r, s, n, NULL);
    json_begin_array(&r);
    for (; json_next_item(&r) && json_double(&r, &d); i++)
        /* one rounding or two: at most the last bit differs */
        demand(i < count && (v[i] == (float)d || __builtin_fabs((double)v[i] - d) <=
                                                     __builtin_fabs(d) * 1.2e-7 + 1.5e-45));
    return json_end(&r) && i == count;
}

static void arrays(const char *s, size_t n)
{
    struct arena a;
    struct json_reader r;
    float *f;
    int64_t *v;
    int32_t *w;
    size_t count;
    arena_init(&a, 64 << 20);
    json_reader_init(&r, s, n, &a);
    if (json_array_float(&r, &f, &count) && json_end(&r))
        demand(single_floats(s, n, f, count));
    json_reader_init(&r, s, n, &a);
    bool wide = json_array_int64(&r, &v, &count) && json_end(&r);
    json_reader_init(&r, s, n, &a);
    size_t narrow_count;
    if (json_array_int32(&r, &w, &narrow_count) && json_end(&r)) {
        demand(wide && count == narrow_count);
        for (size_t i = 0; i < count; i++)
            demand(v[i] == w[i]);
    }
    json_reader_init(&r, s, n, &a);
    json_array_float_null(&r, &f, &count);
    arena_clear(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data;
    struct buf once, twice;
    buf_init(&once, 64 << 20);
    buf_init(&twice, 64 << 20);
    bool read = again(s, size, &once), skipped = skips(s, size);
    demand(!read || skipped); /* skipping does not look at the range of numbers */
    if (read) {
        demand(again(once.data, once.len, &twice));
        demand(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    }
    arrays(s, size);
    buf_clear(&once);
    buf_clear(&twice);
    return 0;
}
