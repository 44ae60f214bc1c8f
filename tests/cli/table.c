/* Tables: as wide as need be in a pipe, and within the columns of a terminal. */
#include <stdlib.h>
#include "cli/output/table.h"
#include "support/tap.h"

static const char *const columns[] = { "Run ID", "Base Model", "Path" };
static const char *const rows[] = {
    "0123456789abcdef", "a model", "tinker://r/weights/1", "short", "b", "tinker://r/weights/2"
};
static const struct table table = { "2 things", columns, 3, rows, 2 };

static void check(size_t width, bool color, const char *want)
{
    const struct table_style style = { width, false, color };
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

/* Words move to a second line; ids and paths stay whole. */
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
}

/* There is an end to it: what cannot fit becomes a list, of which nothing is cut. */
static void test_hopeless(void)
{
    static const char want[] = "2 things\n"
                               "\n"
                               "Run ID: 0123456789abcdef\n"
                               "Base Model: a model\n"
                               "Path: tinker://r/weights/1\n"
                               "\n"
                               "Run ID: short\n"
                               "Base Model: b\n"
                               "Path: tinker://r/weights/2\n";
    check(1, false, want);
    check(50, false, want); /* one column less than the narrowest table has */
}

static void test_colors(void)
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

static void put(const struct table *t, size_t width, struct buf *out)
{
    const struct table_style style = { width, false, false };
    buf_init(out, 1 << 24);
    table_put(out, t, &style);
    CHECK(buf_ok(out));
}

/* Texts of others: lines of their own, and no way to steer the terminal. */
static void test_strange_texts(void)
{
    static const char *const heads[] = { "Quantity", "Value" };
    static const char *const cells[] = { "a\nb", "one\n\nthree", "c",     "\033[31mred\007",
                                         "d",    "\xc2\x9bx",    "e\x7f", "" };
    const struct table t = { "Things", heads, 2, cells, 4 };
    struct buf out;
    put(&t, 0, &out);
    CHECK_STR(out.data, "         Things\n"
                        "+----------+-----------+\n"
                        "| Quantity | Value     |\n"
                        "+----------+-----------+\n"
                        "| a?b      | one       |\n"
                        "|          |           |\n"
                        "|          | three     |\n"
                        "| c        | ?[31mred? |\n"
                        "| d        | ?x        |\n"
                        "| e?       |           |\n"
                        "+----------+-----------+\n");
    buf_clear(&out);
    put(&t, 4, &out);
    CHECK_STR(out.data, "Things\n\n"
                        "Quantity: a\n  b\nValue: one\n  \n  three\n\n"
                        "Quantity: c\nValue: ?[31mred?\n\n"
                        "Quantity: d\nValue: ?x\n\n"
                        "Quantity: e?\nValue: \n");
    buf_clear(&out);
}

/* The properties of one thing stay together, named by themselves. */
static void test_narrow_properties(void)
{
    static const char *const heads[] = { "Property", "Value" };
    static const char *const cells[] = { "Run ID", "abc:train:0", "  - Pa\nth", "tinker://abc" };
    const struct table t = { "Run", heads, 2, cells, 2 };
    struct buf out;
    put(&t, 10, &out);
    CHECK_STR(out.data, "Run\n\nRun ID: abc:train:0\n  - Pa?th: tinker://abc\n");
    buf_clear(&out);
}

/* A word of a megabyte beside many rows: not a minute's work. */
static void test_huge_word(void)
{
    enum { SIZE = 1 << 20, ROWS = 200 };
    static const char *const heads[] = { "Quantity", "Value" };
    static const char *cells[2 * ROWS];
    char *word = malloc(SIZE + 1);
    memset(word, 'x', SIZE);
    word[SIZE] = 0;
    for (size_t i = 0; i < ROWS; i++) {
        cells[2 * i] = "name";
        cells[2 * i + 1] = i ? "two words" : word;
    }
    const struct table t = { "Things", heads, 2, cells, ROWS };
    struct buf out;
    put(&t, 80, &out);
    CHECK(strstr(out.data, "Quantity: name\nValue: two words\n") !=
          NULL); /* a list: nothing is cut */
    buf_clear(&out);
    free(word);
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
    RUN(test_colors);
    RUN(test_strange_texts);
    RUN(test_narrow_properties);
    RUN(test_huge_word);
    RUN(test_no_rows);
    return tap_done();
}
