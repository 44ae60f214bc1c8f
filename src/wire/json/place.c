/* place.c - turns the chain of places into the path that an error message names. */
#include "wire/json/describe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"

/* "data[3].model_input.chunks[0].tokens"; "" for the whole value. */
void wire_place_text(const struct wire_place *place, char *out, size_t size)
{
    /* Built from the end, because the chain starts with the innermost place. */
    char text[256];
    size_t at = sizeof text - 1;
    text[at] = '\0';
    for (; place; place = place->up) {
        /* Names come from a peer, too, so each part is cut as well. */
        char part[96];
        if (place->name)
            snprintf(part, sizeof part, "%s%.80s", place->up ? "." : "", place->name);
        else
            snprintf(part, sizeof part, "[%zu]", place->index);
        size_t n = strlen(part);
        /* The innermost parts say most; what does not fit is cut in front. */
        if (n > at)
            break;
        at -= n;
        memcpy(text + at, part, n);
    }
    /* The outermost part that fits begins without a point. */
    snprintf(out, size, "%s", text + at + (text[at] == '.'));
}

/* Every message about a value begins with where it is: the path is what a user can look up. */
tinker_status wire_refuse(const struct wire_place *place, tinker_error *err, const char *fmt, ...)
{
    char where[256], text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    wire_place_text(place, where, sizeof where);
    return err_set(err, TINKER_EINVAL, "%s%s%s", where, *where ? ": " : "", text);
}
