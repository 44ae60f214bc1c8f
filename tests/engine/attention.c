/* Attention over pages that hold bfloat16, beside the one of float32. */
#include "engine/layers/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/rand.h"
#include "engine/kernels/attn.h"
#include "engine/kernels/kernels.h"
#include "engine/threads.h"
#include "support/tap.h"

enum { HEADS = 6, KV_HEADS = 2, HD = 32, ROWS = 150, PAGES = (ROWS + KV_BLOCK - 1) / KV_BLOCK };
enum { Q = ROWS * HEADS * HD, KV = ROWS * KV_HEADS * HD };

static float q[Q], k[KV], v[KV], dout[Q];

static void fill_random(float *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(philox_uniform(seed, i) * 2 - 1);
}

/* One sequence of ROWS rows: its pages, and what came of it. */
struct sequence {
    struct model_config config;
    struct attention attention;
    float *pages[PAGES];
    uint32_t segment_of[ROWS];
    float out[Q], lse[ROWS * HEADS];
    float dq[Q], dk[KV], dv[KV];
    size_t first; /* position of the batch's first row */
};

static void place(const void *arg, size_t kv, size_t row, size_t end)
{
    const struct sequence *s = arg;
    for (; row < end; row++) {
        size_t pos = s->first + row, at = (pos * KV_HEADS + kv) * HD;
        attention_store(&s->attention, s->pages[pos / KV_BLOCK], kv, pos % KV_BLOCK, k + at,
                        v + at);
    }
}

static struct sequence *new_sequence(bool rounded, size_t window, float cap)
{
    struct sequence *s = calloc(1, sizeof *s);
    s->config = (struct model_config){ .layers = 1,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = HD,
                                       .attention_scale = 0.5f,
                                       .attn_cap = cap,
                                       .rounded_attention = rounded };
    s->attention = (struct attention){ .config = &s->config,
                                       .segment_of = s->segment_of,
                                       .v_offset = kv_half(&s->config),
                                       .window = window };
    size_t floats = 2 * kv_half(&s->config);
    for (size_t i = 0; i < PAGES; i++) {
        s->pages[i] = aligned_alloc(64, floats * sizeof(float));
        memset(s->pages[i], 0xff, floats * sizeof(float)); /* NaN where nothing is written */
    }
    return s;
}

static void free_sequence(struct sequence *s)
{
    for (size_t i = 0; i < PAGES; i++)
        free(s->pages[i]);
    free(s);
}

/* Rows [from, from + n) as one batch. */
static void run_forward(struct sequence *s, struct threads *t, size_t from, size_t n)
{
    struct segment segment = { .n = n, .pos = from, .pages = s->pages };
    struct batch batch = { .n = n, .segments = &segment, .n_segments = 1 };
    s->attention.batch = &batch;
    s->first = from;
    attention_forward(t, &s->attention, place, s, q + from * HEADS * HD, s->out + from * HEADS * HD,
                      s->lse + from * HEADS);
}

static void run_backward(struct sequence *s, struct threads *t)
{
    struct segment segment = { .n = ROWS, .pages = s->pages };
    struct batch batch = { .n = ROWS, .segments = &segment, .n_segments = 1 };
    s->attention.batch = &batch;
    attention_backward(t, &s->attention, q, s->out, s->lse, dout, s->dq, s->dk, s->dv);
}

/* Length of the difference, as a part of that of b. */
static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, length = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        length += (double)b[i] * b[i];
    }
    return sqrt(d / length);
}

static const struct {
    size_t window;
    float cap;
} kinds[] = { { 0, 0 }, { 40, 0 }, { 20, 0 }, { 0, 3 } };

static void rounding_stays_small(void)
{
    struct threads *t = threads_new(2);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct sequence *r = new_sequence(true, kinds[i].window, kinds[i].cap);
        struct sequence *f = new_sequence(false, kinds[i].window, kinds[i].cap);
        run_forward(r, t, 0, ROWS);
        run_forward(f, t, 0, ROWS);
        CHECK(distance(r->out, f->out, Q) > 0);
        CHECK(distance(r->out, f->out, Q) < 0.005);
        CHECK(distance(r->lse, f->lse, ROWS * HEADS) < 0.002);
        run_backward(r, t);
        run_backward(f, t);
        CHECK(distance(r->dq, f->dq, Q) < 0.01);
        CHECK(distance(r->dk, f->dk, KV) < 0.01);
        CHECK(distance(r->dv, f->dv, KV) < 0.01);
        printf("# window %zu, cap %g: out %.4f, dq %.4f, dk %.4f, dv %.4f\n", kinds[i].window,
               (double)kinds[i].cap, distance(r->out, f->out, Q), distance(r->dq, f->dq, Q),
               distance(r->dk, f->dk, KV), distance(r->dv, f->dv, KV));
        free_sequence(r);
        free_sequence(f);
    }
    threads_free(t);
}

/* However a sequence is cut into batches, and on any number of threads. */
static void rows_do_not_depend_on_the_cut(void)
{
    static const size_t cuts[] = { 1, 3, 31, 33, 64, 100 };
    struct threads *one = threads_new(1), *three = threads_new(3);
    for (size_t i = 0; i < 2 * sizeof kinds / sizeof *kinds; i++) {
        bool rounded = i % 2;
        struct sequence *whole = new_sequence(rounded, kinds[i / 2].window, kinds[i / 2].cap);
        run_forward(whole, one, 0, ROWS);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            struct sequence *s = new_sequence(rounded, kinds[i / 2].window, kinds[i / 2].cap);
            for (size_t from = 0; from < ROWS; from += cuts[c])
                run_forward(s, three, from, ROWS - from < cuts[c] ? ROWS - from : cuts[c]);
            CHECK(memcmp(s->out, whole->out, sizeof s->out) == 0);
            CHECK(memcmp(s->lse, whole->lse, sizeof s->lse) == 0);
            free_sequence(s);
        }
        free_sequence(whole);
    }
    threads_free(one);
    threads_free(three);
}

int main(void)
{
    if (attn_ops()->scores_rounded == NULL) {
        printf("1..0 # SKIP the kernels %s do not round\n", kernels_name());
        return 0;
    }
    fill_random(q, Q, 1);
    fill_random(k, KV, 2);
    fill_random(v, KV, 3);
    fill_random(dout, Q, 4);
    RUN(rounding_stays_small);
    RUN(rows_do_not_depend_on_the_cut);
    return tap_done();
}
