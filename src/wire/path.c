/* path.c - takes tinker:// paths apart, and makes parts of URLs of names. */
#include "wire/path.h"

#include <string.h>
#include "base/err.h"

static const char scheme[] = "tinker://";

/* A path, or the id of a run?  Nothing else about it is checked. */
bool wire_path_is(const char *text)
{
    return text && strncmp(text, scheme, sizeof scheme - 1) == 0;
}

/* One message for every way to be wrong: the two forms say more than which part failed. */
static tinker_status refuse_path(const char *text, bool any, tinker_error *err)
{
    return err_set(err, TINKER_EINVAL,
                   "\"%.120s\" is not a checkpoint path: expected "
                   "tinker://<training run>/weights/<name> or "
                   "tinker://<training run>/sampler_weights/<name>%s",
                   text, any ? ", or external_weights" : "");
}

/* The three namespaces of checkpoints below a training run. */
static bool is_kind(const char *s, size_t n)
{
    return (n == 7 && memcmp(s, "weights", 7) == 0) ||
           (n == 15 && memcmp(s, "sampler_weights", 15) == 0) ||
           (n == 16 && memcmp(s, "external_weights", 16) == 0);
}

/* tinker://<run>/<kind>/<name>, or without the kind, as some services name checkpoints; `any` takes
 * these and external weights, too. */
static tinker_status parse_path(const char *text, bool any, struct wire_path *out,
                                tinker_error *err)
{
    if (!text)
        return refuse_path("", any, err);
    if (!wire_path_is(text))
        return refuse_path(text, any, err);
    const char *run = text + sizeof scheme - 1;
    const char *kind = strchr(run, '/');
    /* tinker://<run> alone names a run and no checkpoint. */
    if (!kind)
        return refuse_path(text, any, err);
    /* kind runs to the end of the text: "weights/<name>" is the id that REST paths have. */
    size_t n_run = (size_t)(kind++ - run), n = strcspn(kind, "/");
    const char *name = kind[n] ? kind + n + 1 : kind;
    bool bare = name == kind;
    /* The lengths of "sampler_weights" and "external_weights", which is_kind() checks. */
    bool sampler = !bare && n == 15, external = !bare && n == 16;
    /* A slash in a name would lead elsewhere on a server's disk. */
    /* Bare, the name of a kind is a path whose name is missing, and not a name. */
    if (bare ? !any || is_kind(kind, n) : strchr(name, '/') || !is_kind(kind, n))
        return refuse_path(text, any, err);
    if (external && !any)
        return refuse_path(text, any, err);
    tinker_status s = wire_check_segment("the training run of a checkpoint path", run, n_run, err);
    if (s == TINKER_OK)
        s = wire_check_segment("the name in a checkpoint path", name, strlen(name), err);
    if (s != TINKER_OK)
        return s;
    *out = (struct wire_path){ .run = run,
                               .n_run = n_run,
                               .checkpoint_id = kind,
                               .name = name,
                               .bare = bare,
                               .sampler = sampler,
                               .external = external };
    return TINKER_OK;
}

/* For what a user types: the kind must be there, external weights cannot be used. */
tinker_status wire_path_parse(const char *text, struct wire_path *out, tinker_error *err)
{
    return parse_path(text, false, out, err);
}

/* For what a service has handed out: also names without a kind, but nothing external. */
tinker_status wire_path_parse_known(const char *text, struct wire_path *out, tinker_error *err)
{
    tinker_status s = parse_path(text, true, out, err);
    return s == TINKER_OK && out->external ? refuse_path(text, false, err) : s;
}

/* For REST calls, which only pass a path on: all forms. */
tinker_status wire_path_parse_any(const char *text, struct wire_path *out, tinker_error *err)
{
    return parse_path(text, true, out, err);
}

const char *wire_checkpoint_type(bool sampler)
{
    return sampler ? "sampler" : "training";
}

/* ---- names in URLs ------------------------------------------------------------------------ */

/* What becomes a part of a URL must not change the path: no "..", and no controls. */
tinker_status wire_check_segment(const char *what, const char *s, size_t n, tinker_error *err)
{
    if (n == 0)
        return err_set(err, TINKER_EINVAL, "%s must not be empty", what);
    /* Clients and proxies remove these two from a path (RFC 3986, 5.2.4), escaped or not, because a
     * dot is unreserved. */
    if (s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.')))
        return err_set(err, TINKER_EINVAL, "%s is \"%.*s\", which is a direction and no name", what,
                       (int)n, s);
    for (size_t i = 0; i < n; i++)
        /* Escaped they are legal, but would get into logs, headers and file names. */
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return err_set(err, TINKER_EINVAL, "%s has a control character, which no name has",
                           what);
    return TINKER_OK;
}

/* Everything else as %XX, in upper case as RFC 3986, 2.1 recommends. */
void wire_put_segment(struct buf *out, const char *s, size_t n)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        /* The unreserved characters (RFC 3986, 2.3), and the colon: ids of runs have it, and behind
         * the first slash of a path it means nothing (3.3). */
        if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
            (c && strchr("-._~:", c)))
            buf_putc(out, (char)c);
        else {
            buf_putc(out, '%');
            buf_putc(out, hex[c >> 4]);
            buf_putc(out, hex[c & 15]);
        }
    }
}

/* Either case, as RFC 3986, 2.1 allows. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* out needs n + 1 bytes.  An escaped NUL is refused, because names are C strings. */
bool wire_read_segment(const char *s, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        if (c == '%') {
            /* A cut or wrong escape becomes 0, which is refused below as NUL is. */
            int high = i + 2 < n ? hex_digit(s[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(s[i + 2]) : -1;
            c = low >= 0 ? high * 16 + low : 0;
            i += 2;
        }
        if (c == 0)
            return false;
        *out++ = (char)c;
    }
    *out = '\0';
    return true;
}
