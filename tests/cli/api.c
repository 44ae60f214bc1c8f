/* What is printed of the body of an error. */
#include "cli/service/api.c"
#include "support/tap.h"

static void check(const char *text, const char *want)
{
    char copy[256];
    snprintf(copy, sizeof(copy), "%s", text);
    squeeze_blanks(copy);
    CHECK_STR(copy, want);
}

static void test_bodies_on_one_line(void)
{
    check("", "");
    check("{\n  \"detail\": \"no  such\\n thing\",\r\n  \"n\": [1, 2]\n}\n",
          "{\"detail\":\"no  such\\n thing\",\"n\":[1,2]}");
    check("{\"a\": \"\\\" b\\\\\", \"c\": 1}", "{\"a\":\"\\\" b\\\\\",\"c\":1}");
    check("<html>\r\n  <body>Bad  gateway</body>\n</html>\n",
          "<html> <body>Bad gateway</body> </html>");
    check("{\"cut off in \\", "{\"cut off in \\");
    check("  say \"two  words\"  ", "say \"two words\"");
}

int main(void)
{
    RUN(test_bodies_on_one_line);
    return tap_done();
}
