/* err.c - filling a tinker_error, once, where the fact is known.
 *
 * A message is built in a larger buffer, redacted there and cut last, so that a
 * secret is never cut before it could be recognized. */
#include "base/err.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/utf8.h"

_Static_assert(sizeof(tinker_error) == 512, "part of the ABI");

enum { MESSAGE_WORK = 2048, OPTS_LARGEST = 1 << 16 };

const char *tinker_version(void)
{
    return TINKER_VERSION;
}

const char *tinker_status_name(tinker_status status)
{
    static const char *const names[] = {
        "TINKER_OK",       "TINKER_EINVAL",    "TINKER_ENOMEM",    "TINKER_ESTATE",
        "TINKER_ECONNECT", "TINKER_ETIMEDOUT", "TINKER_EPROTOCOL", "TINKER_EHTTP",
        "TINKER_EREQUEST", "TINKER_ECANCELED", "TINKER_ECIRCUIT",
    };
    /* A negative value becomes a huge index, which is unknown, too. */
    size_t i = (size_t)status;
    return i < sizeof names / sizeof *names ? names[i] : "TINKER_UNKNOWN";
}

/* Redact, clean, and copy as much as fits into the message, never half a character. */
static void store_message(tinker_error *err, char *text)
{
    log_redact(text, MESSAGE_WORK);
    /* Texts of a peer may hold anything: one clean line is left, with '?' for bytes that are not
     * UTF-8 and blanks for control characters. */
    size_t n = strlen(text), max = sizeof err->message - 1;
    for (size_t i = 0; i < n; i++) {
        i += utf8_valid_prefix(text + i, n - i);
        if (i < n)
            text[i] = '?';
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = ' ';
    if (n > max)
        n = utf8_valid_prefix(text, max);
    memcpy(err->message, text, n);
    err->message[n] = '\0';
}

tinker_status err_set(tinker_error *err, tinker_status status, const char *fmt, ...)
{
    if (!err)
        return status;
    char text[MESSAGE_WORK];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    /* only now: an argument may have been the old message */
    memset(err, 0, sizeof *err);
    err->status = status;
    store_message(err, text);
    return status;
}

void err_prefix(tinker_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    char text[MESSAGE_WORK];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    /* A prefix that fills the buffer leaves no space for the message; it is cut all the same. */
    if ((size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", err->message);
    store_message(err, text);
}

tinker_status err_nomem(tinker_error *err, const char *what)
{
    return err_set(err, TINKER_ENOMEM, "out of memory for %s", what);
}

tinker_status err_errno(tinker_error *err, const char *what, const char *path)
{
    /* Before any call that may change it. */
    int code = errno;
    char reason[128];
    if (strerror_r(code, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", code);
    if (!path)
        return err_set(err, TINKER_ESTATE, "%s: %s", what, reason);
    return err_set(err, TINKER_ESTATE, "%s %s: %s", what, path, reason);
}

tinker_status opts_copy(void *ours, size_t our_size, const void *theirs, const char *type_name,
                        tinker_error *err)
{
    assert(our_size >= sizeof(size_t));
    if (!theirs)
        return TINKER_OK;
    size_t size;
    memcpy(&size, theirs, sizeof size);
    /* An implausible size means that the struct was not initialized. */
    if (size < sizeof size || size > OPTS_LARGEST)
        return err_set(err, TINKER_EINVAL,
                       "%s is not initialized: its size is %zu, start from its _INIT value",
                       type_name, size);
    /* Fields that this library does not know are fine as long as they are zero, which means the
     * old behavior for every appended field. */
    for (size_t i = our_size; i < size; i++)
        if (((const char *)theirs)[i])
            return err_set(err, TINKER_EINVAL,
                           "%s sets a field that this library (%s) does not know, at byte %zu",
                           type_name, TINKER_VERSION, i);
    memcpy(ours, theirs, size < our_size ? size : our_size);
    /* The copy has all of our fields, whatever the caller was compiled with. */
    memcpy(ours, &our_size, sizeof our_size);
    return TINKER_OK;
}
