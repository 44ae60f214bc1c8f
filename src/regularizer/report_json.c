/* report_json.c - a report as JSON.  Written here and not with json/, which losses must
 * not know; a report has few kinds of values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/number.h"
#include "autodiff/tape.h"

/* null for what is not finite, which JSON has no text for. */
static void put_number(struct buf *b, double v)
{
    char text[NUMBER_SIZE] = "null";
    if (isfinite(v))
        number_text(v, 17, text);
    buf_puts(b, text);
}

/* RFC 8259, 7: quotes, backslashes and control characters are escaped; UTF-8 stays as it is. */
static void put_text(struct buf *b, const char *s)
{
    buf_putc(b, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_printf(b, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            buf_printf(b, "\\u%04x", (unsigned char)*s);
        else
            buf_putc(b, *s);
    }
    buf_putc(b, '"');
}

static void put_member(struct buf *b, const char *name, double v)
{
    buf_printf(b, "\"%s\":", name);
    put_number(b, v);
}

/* A norm that was not tracked is null. */
static void put_norm(struct buf *b, const char *name, int has, double v)
{
    buf_printf(b, ",\"%s\":", name);
    put_number(b, has ? v : NAN);
}

/* What a term reported itself, and the end of its object. */
static void put_custom_json(struct buf *b, const tinker_loss_term *t)
{
    buf_puts(b, ",\"custom\":{");
    for (size_t i = 0; i < t->n_custom; i++) {
        if (i)
            buf_putc(b, ',');
        put_text(b, t->custom[i].name);
        buf_putc(b, ':');
        if (t->custom[i].text)
            put_text(b, t->custom[i].text);
        else
            put_number(b, t->custom[i].value);
    }
    buf_puts(b, "}}");
}

tinker_status tinker_loss_report_json(const tinker_loss_report *r, tinker_text *out,
                                      tinker_error *err)
{
    struct buf b;
    /* No limit: it is the user's own report. */
    buf_init(&b, SIZE_MAX / 4);
    buf_putc(&b, '{');
    put_member(&b, "loss_total", r->loss_total);
    buf_putc(&b, ',');
    put_member(&b, "regularizer_total", r->regularizer_total);
    /* put_custom_json() closes the object that is opened here, and those of the regularizers
     * below. */
    buf_puts(&b, ",\"base_loss\":{");
    put_member(&b, "value", r->base.value);
    put_norm(&b, "grad_norm", r->base.has_grad_norm, r->base.grad_norm);
    put_custom_json(&b, &r->base);
    buf_puts(&b, ",\"regularizers\":{");
    for (size_t i = 0; i < r->n_regularizers; i++) {
        if (i)
            buf_putc(&b, ',');
        const tinker_loss_term *t = &r->regularizers[i];
        put_text(&b, t->name);
        buf_puts(&b, ":{");
        put_member(&b, "value", t->value);
        buf_putc(&b, ',');
        put_member(&b, "weight", t->weight);
        buf_putc(&b, ',');
        put_member(&b, "contribution", t->contribution);
        put_norm(&b, "grad_norm", t->has_grad_norm, t->grad_norm);
        put_norm(&b, "grad_norm_weighted", t->has_grad_norm, t->grad_norm_weighted);
        put_custom_json(&b, t);
    }
    buf_putc(&b, '}');
    if (r->has_total_grad_norm) {
        buf_putc(&b, ',');
        put_member(&b, "total_grad_norm", r->total_grad_norm);
    }
    buf_putc(&b, '}');
    tinker_status s =
        buf_ok(&b) ? tinker_text_append(out, b.data, b.len, err) : err_nomem(err, "loss report");
    buf_clear(&b);
    return s;
}
