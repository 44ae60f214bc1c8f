/* render_custom.c - chat formats of the program's own, by name.
 *
 * A registered format is a variant like the built-in ones, made at run time; it is found
 * first, so it may replace one of them.  Renderers keep the format they were made with
 * alive, whatever happens to its name.  Any thread. */
#include "chat/render_custom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/renderer.h>
#include "base/err.h"
#include "chat/render_parse.h"

struct custom {
    struct render_variant variant; /* first: renderers point here */
    struct render_format format;
    tinker_render_message_fn *render;
    void *state;
    char *name, *bos, *stop;
    size_t refs; /* the registry's and one per renderer; under the lock */
    struct custom *next;
};

/* Guards the list `customs`, `next` and `refs`. The rest of a format never changes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct custom *customs;

static void custom_free(struct custom *c)
{
    if (!c)
        return;
    free(c->name);
    free(c->bos);
    free(c->stop);
    free(c);
}

/* Only variants made here have this format's render function. */
static bool render_custom(struct render_call *c, const struct render_at *at,
                          struct render_out *out);

/* The format's render function tells whether a variant was made here; then `variant`, which is
 * first, is the address of the whole. */
static struct custom *custom_of(const struct render_variant *v)
{
    return v->format->render == render_custom ? (struct custom *)v : NULL;
}

/* ---- rendering -------------------------------------------------------------------------- */

/* Header and tail are markup: control tokens in them count whatever the options say. */
static void append_markup(struct render_text *t, const tinker_text *text)
{
    buf_append(&t->buf, text->s ? text->s : "", text->n);
}

static bool render_custom(struct render_call *c, const struct render_at *at, struct render_out *out)
{
    const struct custom *custom = custom_of(c->r->variant);
    tinker_text header = TINKER_TEXT_INIT, body = TINKER_TEXT_INIT, tail = TINKER_TEXT_INIT;
    tinker_error err = { .message = "" };
    struct render_text t;
    tinker_status status =
        custom->render(at->message, at->is_last, &header, &body, &tail, &err, custom->state);
    if (status == TINKER_OK) {
        text_init(&t, c);
        append_markup(&t, &header);
        render_set_header(out, text_encode(&t, false));
        text_content(&t, (struct jv_str){ body.s ? body.s : "", body.n });
        append_markup(&t, &tail);
        render_push_text(&t, out, false);
    } else {
        jx_fail(&c->x, "%s", *err.message ? err.message : tinker_status_name(status));
    }
    tinker_text_clear(&header);
    tinker_text_clear(&body);
    tinker_text_clear(&tail);
    return !c->x.failed;
}

/* A custom format has no think blocks and no calls: the content is the text up to its stop token.
 */
static void parse_custom(struct render_call *c, struct render_parse *p, bool streaming)
{
    (void)streaming;
    parse_stop(c, p);
}

/* ---- the registry ----------------------------------------------------------------------- */

/* The link that points to the format of that name, or the last link. Lock held. */
static struct custom **find_custom(const char *name)
{
    struct custom **at = &customs;
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

/* Lock held. The last of registry and renderers frees. */
static void drop_custom_ref(struct custom *c)
{
    if (--c->refs == 0)
        custom_free(c);
}

const struct render_variant *render_custom_find(const char *name)
{
    pthread_mutex_lock(&lock);
    struct custom *c = *find_custom(name);
    if (c)
        c->refs++;
    pthread_mutex_unlock(&lock);
    return c ? &c->variant : NULL;
}

void render_custom_release(const struct render_variant *v)
{
    struct custom *c = custom_of(v);
    if (!c)
        return;
    pthread_mutex_lock(&lock);
    drop_custom_ref(c);
    pthread_mutex_unlock(&lock);
}

/* A copy of the caller's options, with one reference for the registry. */
static struct custom *custom_new(const char *name, const tinker_format_options *f)
{
    struct custom *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->name = strdup(name);
    c->stop = strdup(f->stop);
    c->bos = f->bos ? strdup(f->bos) : NULL;
    if (!c->name || !c->stop || (f->bos && !c->bos)) {
        custom_free(c);
        return NULL;
    }
    c->format = (struct render_format){ .tokens = { c->stop },
                                        .n_stop = 1,
                                        .bos = c->bos,
                                        .render = render_custom,
                                        .parse = parse_custom };
    c->variant = (struct render_variant){ c->name, &c->format,
                                          f->extends ? RENDER_EXTENDS : RENDER_NEVER_EXTENDS };
    c->render = f->render;
    c->state = f->state;
    c->refs = 1;
    return c;
}

tinker_status tinker_renderer_register(const char *name, const tinker_format_options *format,
                                       tinker_error *err)
{
    tinker_format_options f = TINKER_FORMAT_OPTIONS_INIT;
    if (!name || !*name)
        return err_set(err, TINKER_EINVAL, "a renderer needs a name");
    if (!format || opts_copy(&f, sizeof(f), format, "tinker_format_options", err) != TINKER_OK)
        return format ? TINKER_EINVAL : err_set(err, TINKER_EINVAL, "renderer %s: no format", name);
    if (!f.render || !f.stop)
        return err_set(err, TINKER_EINVAL, "renderer %s: %s is missing", name,
                       f.render ? "stop" : "render");
    struct custom *c = custom_new(name, &f);
    if (!c)
        return err_nomem(err, "a chat format");
    pthread_mutex_lock(&lock);
    struct custom **at = find_custom(name), *old = *at;
    /* Replace in place: renderers of the old format keep it alive. */
    c->next = old ? old->next : NULL;
    *at = c;
    if (old)
        drop_custom_ref(old);
    pthread_mutex_unlock(&lock);
    return TINKER_OK;
}

int tinker_renderer_unregister(const char *name)
{
    pthread_mutex_lock(&lock);
    struct custom **at = find_custom(name), *c = *at;
    if (c) {
        *at = c->next;
        drop_custom_ref(c);
    }
    pthread_mutex_unlock(&lock);
    return c != NULL;
}
