/* console.c - addresses where people look at what a service keeps. */
#include <string.h>
#include <tinker/rest.h>
#include <tinker/service.h>
#include "base/buf.h"
#include "base/err.h"
#include "client/session/service.h"

#define HOSTED_CONSOLE "https://tinker.thinkingmachines.ai"

/* Is the service one of the hosted ones?  By its host: the path names one of several. */
static bool is_hosted(const char *base_url)
{
    static const char *const domains[] = { ".thinkingmachines.dev", ".thinkingmachines.ai" };
    const char *host = strstr(base_url, "://");
    if (!host)
        return false;
    host += 3;
    size_t n = strcspn(host, ":/");
    for (size_t i = 0; i < 2; i++) {
        size_t k = strlen(domains[i]);
        /* The dot in front keeps "notthinkingmachines.ai" out. */
        if (n > k && strncmp(host + n - k, domains[i], k) == 0)
            return true;
    }
    return false;
}

/* As Python's quote(text, safe=""), which made the addresses that the console knows. */
static void put_escaped(struct buf *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || strchr("-._~", c))
            buf_putc(out, (char)c);
        else
            buf_printf(out, "%%%02X", c);
    }
}

/* A checkpoint is two segments, the others one id; the playground takes a path whole, escaped. */
static void put_hosted(struct buf *b, tinker_console_page page, const char *id,
                       const tinker_checkpoint_path *parts)
{
    buf_puts(b, HOSTED_CONSOLE);
    buf_puts(b, page == TINKER_CONSOLE_SESSION      ? "/sessions/"
                : page == TINKER_CONSOLE_RUN        ? "/training_runs/"
                : page == TINKER_CONSOLE_CHECKPOINT ? "/checkpoints/"
                                                    : "/playground?mode=checkpoint&checkpoint=");
    if (page == TINKER_CONSOLE_CHECKPOINT) {
        put_escaped(b, parts->training_run);
        buf_putc(b, '/');
        put_escaped(b, parts->checkpoint_id);
    } else
        put_escaped(b, id);
}

/* The page of `tinker serve` has runs and a chat, but nothing for sessions alone. */
static void put_local(struct buf *b, const char *base_url, tinker_console_page page, const char *id,
                      const tinker_checkpoint_path *parts)
{
    size_t n = strlen(base_url);
    buf_append(b, base_url, n && base_url[n - 1] == '/' ? n - 1 : n);
    if (page == TINKER_CONSOLE_SESSION) {
        buf_puts(b, "/#/runs");
        return;
    }
    buf_puts(b, page == TINKER_CONSOLE_PLAYGROUND ? "/#/chat/" : "/#/run/");
    put_escaped(b, page == TINKER_CONSOLE_CHECKPOINT ? parts->training_run : id);
}

/* Only `tinker serve` has this flag, so nobody else's users are sent to a page that is not there. */
static bool is_tinker_serve(tinker_service *s)
{
    pthread_mutex_lock(&s->base->lock);
    const struct session *h = s->base->session;
    bool yes = h && h->session_id && h->server.stream_sample.has && h->server.stream_sample.value;
    pthread_mutex_unlock(&s->base->lock);
    return yes;
}

tinker_status tinker_service_console_url(tinker_service *s, tinker_console_page page,
                                         const char *id, tinker_text *out, tinker_error *err)
{
    const char *url = s->base->cfg.base_url;
    tinker_checkpoint_path parts;
    struct buf b;
    if (page < TINKER_CONSOLE_SESSION || page > TINKER_CONSOLE_PLAYGROUND)
        return err_set(err, TINKER_EINVAL, "page: %d is no page of a console", (int)page);
    if (!id && page == TINKER_CONSOLE_SESSION)
        id = tinker_service_session_id(s);
    if (!id || !*id)
        return err_set(err, page == TINKER_CONSOLE_SESSION ? TINKER_ESTATE : TINKER_EINVAL,
                       page == TINKER_CONSOLE_SESSION ? "no session is open yet"
                                                      : "no id or path given");
    if (page == TINKER_CONSOLE_CHECKPOINT &&
        tinker_checkpoint_path_parse(id, &parts, err) != TINKER_OK)
        return TINKER_EINVAL;
    bool hosted = is_hosted(url);
    if (!hosted && !is_tinker_serve(s))
        return err_set(err, TINKER_ESTATE, "%s has no console that is known", url);
    buf_init(&b, 1 << 16);
    if (hosted)
        put_hosted(&b, page, id, &parts);
    else
        put_local(&b, url, page, id, &parts);
    tinker_status status =
        buf_ok(&b) ? tinker_text_append(out, b.data, b.len, err) : err_nomem(err, "address");
    buf_clear(&b);
    return status;
}
