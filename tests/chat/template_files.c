/* template_files.c - chat templates of a model directory. */
#include <tinker/chat.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/template.h>
#include "base/os.h"
#include "support/tap.h"

static char dir[64];

static const char *path(const char *name)
{
    static char out[4][256];
    static int k;
    k = (k + 1) % 4;
    snprintf(out[k], sizeof(out[k]), "%s/%s", dir, name);
    return out[k];
}

static void write_text(const char *name, const char *text, size_t n)
{
    char parent[256];
    snprintf(parent, sizeof(parent), "%s", path(name));
    *strrchr(parent, '/') = '\0';
    CHECK_INT(os_make_dirs(parent, NULL), TINKER_OK);
    CHECK_INT(os_write_file(path(name), text, n, NULL), TINKER_OK);
}

static void expect_template(const char *want)
{
    tinker_error err = { 0 };
    tinker_template *t = tinker_template_open(path("chat"), &err);
    tinker_text text = TINKER_TEXT_INIT;
    if (!t || tinker_template_render_json(t, "[]", NULL, NULL, &text, &err) != TINKER_OK)
        TAP_FAIL("%s", err.message);
    CHECK_STR(text.s, want);
    tinker_text_clear(&text);
    tinker_template_free(t);
}

/* A file of its own comes before the configuration, and "default" before its neighbors. */
static void test_template_of_a_directory(void)
{
    tinker_error err = { 0 };
    static const char list[] =
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},"
        "{\"name\":\"default\",\"template\":\"{{ messages|length }} of a list\"}]}";
    CHECK(!tinker_template_open(path("chat"), &err));
    CHECK(err.status == TINKER_ESTATE || err.status == TINKER_EINVAL);
    write_text("chat/tokenizer_config.json", "{\"eos_token\":\"x\"}", 17);
    CHECK(!tinker_template_open(path("chat"), &err)); /* it has none */
    write_text("chat/tokenizer_config.json", list, strlen(list));
    expect_template("0 of a list");
    write_text("chat/chat_template.jinja", "a file", 6);
    expect_template("a file");
    write_text("chat/chat_template.jinja", "\n{% if %}", 9);
    CHECK(!tinker_template_open(path("chat"), &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(strstr(err.message, "line 2") != NULL);
}

int main(void)
{
    snprintf(dir, sizeof(dir), "/tmp/tinker-template-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    RUN(test_template_of_a_directory);
    os_remove_tree(dir, NULL);
    return tap_done();
}
