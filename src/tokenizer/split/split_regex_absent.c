/* split_regex_absent.c - of a build without PCRE2 (make WITHOUT=pcre2): patterns that have a matcher
 * of their own work as ever, others are refused by name when a tokenizer is loaded. */
#include "base/err.h"
#include "tokenizer/split/split_regex.h"

struct split_regex *split_regex_new(const char *pattern, size_t n, bool ruby, tinker_error *err)
{
    (void)ruby;
    err_set(err, TINKER_EINVAL,
            "the pattern \"%.*s\" has no matcher of its own, and this build is without PCRE2",
            (int)(n < 120 ? n : 120), pattern);
    return NULL;
}

void split_regex_free(struct split_regex *r)
{
    (void)r;
}

void split_regex_ctx_clear(struct split_regex_ctx *c)
{
    (void)c;
}

/* No pattern, so nothing is ever matched. */
int split_regex_find(const struct split_regex *r, struct split_regex_ctx *c, const char *text,
                     size_t n, size_t from, size_t *begin, size_t *end)
{
    (void)r, (void)c, (void)text, (void)n, (void)from, (void)begin, (void)end;
    return -1;
}

tinker_status split_regex_failed(const struct split_regex_ctx *c, const char *whose,
                                 tinker_error *err)
{
    (void)c;
    return err_set(err, TINKER_ESTATE, "%s pattern needs PCRE2", whose);
}

int split_regex_next(const struct split_regex *r, struct split_regex_ctx *c, const char *text,
                     size_t n, struct split_place *at, size_t *begin, size_t *end)
{
    (void)at;
    return split_regex_find(r, c, text, n, 0, begin, end);
}
