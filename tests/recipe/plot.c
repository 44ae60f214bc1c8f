/* plot.c - the pictures of a run: places, gaps, ranges without extent. */
#include "recipe/plot.h"
#include <math.h>
#include "support/tap.h"

static struct buf out;

static const char *spark(const double *y, size_t n, size_t width)
{
    buf_reset(&out);
    plot_sparkline(&out, y, n, width);
    return out.len ? out.data : "";
}

static void test_sparkline(void)
{
    const double y[] = { 0, 7, NAN, 3.5 }, same[] = { 2, 2 }, many[] = { 0, 0, 7, 7 };
    CHECK_STR(spark(y, 4, 10), "▁█ ▅");
    CHECK_STR(spark(same, 2, 10), "▄▄");
    CHECK_STR(spark(many, 4, 2), "▁█");
    CHECK_STR(spark(many, 0, 2), "");
}

static void test_ticks(void)
{
    CHECK_NEAR(plot_tick(10, 5), 2, 1e-12);
    CHECK_NEAR(plot_tick(0.1, 4), 0.05, 1e-12);
    CHECK_NEAR(plot_tick(7, 7), 1, 1e-12);
}

static void test_svg(void)
{
    const double y[] = { 3, NAN, 1 }, x[] = { 0, 5, 10 };
    const struct plot_series s[] = { { "loss", x, y, 3 }, { "a<b&\"", x, y, 1 } };
    const struct plot_panel panels[] = { { "Loss", s, 2 }, { "Nothing", NULL, 0 } };
    buf_reset(&out);
    plot_svg(&out, panels, 2, "step");
    REQUIRE(buf_ok(&out));
    CHECK(strncmp(out.data, "<svg ", 5) == 0);
    CHECK(strcmp(out.data + out.len - 7, "</svg>\n") == 0);
    /* the gap at step 5 begins a new part; the ends of the range are the ends of the box */
    CHECK(strstr(out.data, "d=\"M64 34h0M704 214h0\"") != NULL);
    CHECK(strstr(out.data, "a&lt;b&amp;&quot;</text>") != NULL);
    CHECK(strstr(out.data, "nan") == NULL && strstr(out.data, "inf") == NULL);
}

/* The axis of a plot whose labels are long is as straight as that of others. */
static void test_terminal_labels_are_aligned(void)
{
    const double y[] = { -0.0007601, -0.02373 };
    const struct plot_series s = { "loss", NULL, y, 2 };
    const struct plot_panel p = { "Loss", &s, 1 };
    buf_reset(&out);
    plot_terminal(&out, &p, 40, 3);
    REQUIRE(buf_ok(&out));
    size_t axis = 0, rows = 0;
    for (const char *line = strchr(out.data, '\n') + 1, *mark; (mark = strstr(line, "┤"));
         line = strchr(mark, '\n') + 1) {
        if (rows++ == 0)
            axis = (size_t)(mark - line);
        CHECK_INT(mark - line, axis);
    }
    CHECK_INT(rows, 3);
}

static void test_terminal(void)
{
    const double y[] = { 0, 1 };
    const struct plot_series s = { "loss", NULL, y, 2 };
    const struct plot_panel p = { "Loss", &s, 1 };
    buf_reset(&out);
    plot_terminal(&out, &p, 29, 2);
    REQUIRE(buf_ok(&out));
    CHECK(strstr(out.data, "      1 ┤          ") != NULL); /* rises from the left */
    CHECK(strstr(out.data, "      0 ┤⣀") != NULL || strstr(out.data, "      0 ┤⢀") != NULL ||
          strstr(out.data, "      0 ┤⡀") != NULL);
    CHECK(strstr(out.data, "loss  1\n") != NULL);
    buf_reset(&out);
    plot_terminal(&out, &(struct plot_panel){ "None", NULL, 0 }, 5, 0);
    CHECK(buf_ok(&out));
}

int main(void)
{
    buf_init(&out, 1 << 20);
    RUN(test_sparkline);
    RUN(test_ticks);
    RUN(test_svg);
    RUN(test_terminal);
    RUN(test_terminal_labels_are_aligned);
    buf_clear(&out);
    return tap_done();
}
