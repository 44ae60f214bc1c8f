/* Tables: as wide as need be in a pipe, and within the columns of a terminal. */
#include "cli/table.h"
#include "support/tap.h"

static const char *const columns[] = { "Run ID", "Base Model", "Path" };
static const char *const rows[] = {
    "0123456789abcdef", "a model", "tinker://r/weights/1", "short", "b", "tinker://r/weights/2"
};
static const struct table table = { "2 things", columns, 3, rows, 2 };

static void check(size_t width, bool colour, const char *want)
{
    const struct table_style style = { width, false, colour };
    struct buf out;
    buf_init(&out, 1 << 20);
    table_put(&out, &table, &style);
    CHECK(buf_ok(&out));
    CHECK_STR(out.data, want);
    buf_clear(&out);
}

static void test_natural(void)
{
    static const char want[] = /* and the same where it just fits */
        "                        2 things\n"
        "+------------------+------------+----------------------+\n"
        "| Run ID           | Base Model | Path                 |\n"
        "+------------------+------------+----------------------+\n"
        "| 0123456789abcdef | a model    | tinker://r/weights/1 |\n"
        "| short            | b          | tinker://r/weights/2 |\n"
        "+------------------+------------+----------------------+\n";
    check(0, false, want);
    check(strlen("+------------------+------------+----------------------+"), false, want);
}

/* Words move to a second line first; then paths break; then the first column is cut. */
static void test_narrow(void)
{
    check(51, false,
          "                     2 things\n"
          "+------------------+-------+----------------------+\n"
          "| Run ID           | Base  | Path                 |\n"
          "|                  | Model |                      |\n"
          "+------------------+-------+----------------------+\n"
          "| 0123456789abcdef | a     | tinker://r/weights/1 |\n"
          "|                  | model |                      |\n"
          "| short            | b     | tinker://r/weights/2 |\n"
          "+------------------+-------+----------------------+\n");
    check(36, false,
          "              2 things\n"
          "+---------------+-------+----------+\n"
          "| Run ID        | Base  | Path     |\n"
          "|               | Model |          |\n"
          "+---------------+-------+----------+\n"
          "| 0123456789ab~ | a     | tinker:/ |\n"
          "|               | model | /r/weigh |\n"
          "|               |       | ts/1     |\n"
          "| short         | b     | tinker:/ |\n"
          "|               |       | /r/weigh |\n"
          "|               |       | ts/2     |\n"
          "+---------------+-------+----------+\n");
}

/* There is an end to it: what cannot fit is left to the terminal. */
static void test_hopeless(void)
{
    const struct table_style style = { 1, true, true };
    struct buf out;
    buf_init(&out, 1 << 20);
    table_put(&out, &table, &style);
    CHECK(buf_ok(&out) && strstr(out.data, "0123456") && strstr(out.data, "…"));
    buf_clear(&out);
}

static void test_colours(void)
{
    check(0, true,
          "                        \033[3m2 things\033[0m\n"
          "+------------------+------------+----------------------+\n"
          "| \033[1mRun ID\033[0m           | \033[1mBase Model\033[0m | \033[1mPath\033[0m      "
          "           |\n"
          "+------------------+------------+----------------------+\n"
          "| \033[96m0123456789abcdef\033[0m | a model    | tinker://r/weights/1 |\n"
          "| \033[96mshort\033[0m            | b          | tinker://r/weights/2 |\n"
          "+------------------+------------+----------------------+\n");
}

static void test_no_rows(void)
{
    const struct table empty = { "No things found", columns, 2, NULL, 0 };
    const struct table_style style = { 0 };
    struct buf out;
    buf_init(&out, 1 << 20);
    table_put(&out, &empty, &style);
    CHECK_STR(out.data, "    No things found\n"
                        "+--------+------------+\n"
                        "| Run ID | Base Model |\n"
                        "+--------+------------+\n"
                        "+--------+------------+\n");
    buf_clear(&out);
}

int main(void)
{
    RUN(test_natural);
    RUN(test_narrow);
    RUN(test_hopeless);
    RUN(test_colours);
    RUN(test_no_rows);
    return tap_done();
}
