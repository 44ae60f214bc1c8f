/* call.c - the two retry layers around one HTTP exchange.
 *
 * States, by what is pending: a token (auth), an exchange (http), or a delay (timer).
 * Exactly one of them while active.
 *
 *   call_start --> begin_try --> begin_attempt --token--> send_attempt --> on_http
 *                     ^               ^                                      |
 *                     |               '------ delay <-- layer 1: again? -----|
 *                     '------ delay <-------- layer 2: again? ---------------|
 *                                                                finish_call '--> done()
 *
 * The owner keeps the call and everything it points to alive until done, and may free it there. */
#include "client/call/call.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/array.h"
#include "base/err.h"
#include "base/rand.h"
#include "client/session/user_agent.h"
#include "client/observe/instrument.h"
#include "client/call/call_options.h"
#include "client/call/retry_policy.h"
#include "client/call/transport.h"
#include "client/call/last_error.h"
#include "client/call/truncated_body.h"
#include "wire/future.h"

/* 1 GiB, for a caller that sets no limit: a server that never stops sending must not take
 * all memory. */
/* Bytes of a response, decompressed.  A page of a listing, or whatever has no limit of its own ... */
static const size_t max_response_default = (size_t)64 << 20;
/* ... and what keeps a session alive. */
static const size_t max_response_small = (size_t)1 << 20;

static void begin_try(struct call *c);
static void begin_attempt(struct call *c);

/* ---- options of the call -------------------------------------------------------------- */

/* NULL: none. */
static const struct call_options *operation_options(const struct call *c)
{
    return c->op ? c->op->options : NULL;
}

/* Those that a poll does not share: it has its own time and its own ways to go on. */
static const struct call_options *submit_options(const struct call *c)
{
    return c->spec->pool == POOL_RETRIEVE ? NULL : operation_options(c);
}

/* Are all attempts spent that the caller allows? */
static bool attempts_spent(const struct call *c)
{
    if (c->last)
        return true;
    const struct call_options *p = submit_options(c);
    /* A sample is several calls when layer 3 submits again, so its attempts are counted over
     * all of them. */
    int sent = c->spec->pool == POOL_SAMPLE ? c->op ? c->op->sent : 0 : c->sent;
    return p && p->max_retries >= 0 && sent > p->max_retries;
}

/* Where the last of json[0..n) that is no blank is; 0 when there is none before.
 * Splicing members into the encoded body spares decoding it: only the closing brace must be found,
 * and whether the object is empty. */
static size_t find_last_byte(const char *json, size_t n)
{
    while (n > 1 && strchr(" \t\r\n", json[n - 1]))
        n--;
    return n > 0 ? n - 1 : 0;
}

/* The body with the members that the caller adds. */
static bool extend_body(struct call *c)
{
    const struct call_options *p = submit_options(c);
    /* Members can be spliced into JSON only; another content type is sent as it is. */
    if (!p || !p->extra_body || c->content_type || c->body_len < 2)
        return true;
    const char *json = c->body;
    size_t n = find_last_byte(json, c->body_len); /* the closing brace */
    if (n == 0 || json[n] != '}')
        return true;
    /* One byte for a comma, one for the brace. */
    c->own_body = malloc(n + p->n_extra_body + 2);
    if (!c->own_body)
        return false;
    memcpy(c->own_body, json, n);
    size_t at = n;
    /* "{}" takes no comma */
    if (json[find_last_byte(json, n)] != '{')
        c->own_body[at++] = ',';
    memcpy(c->own_body + at, p->extra_body, p->n_extra_body);
    at += p->n_extra_body;
    c->own_body[at++] = '}';
    c->http.body = c->own_body;
    c->http.body_len = at;
    return true;
}

/* ---- one attempt -------------------------------------------------------------------- */

/* Headers being collected.  Precedence, highest first: the credential, options of the call, options
 * of the service, the library. */
struct header_list {
    struct http_header v[24 + CALL_EXTRA_HEADERS];
    size_t n;
    const struct config *cfg;
    const struct call_options *options; /* may be NULL */
};

static void put_header(struct header_list *l, const char *name, const char *value, bool secret)
{
    /* Lower precedence yields: a name that the service's or the call's options set is left
     * out here. */
    bool taken = !value || call_options_has_header(l->options, name);
    for (size_t i = 0; !taken && i < l->cfg->n_default_headers; i++)
        taken = strcasecmp(l->cfg->default_headers[i].name, name) == 0;
    if (!taken)
        l->v[l->n++] = (struct http_header){ name, value, secret };
}

/* A line break in a value would let it become another header. */
static tinker_status check_header_values(const struct http_header *v, size_t n, tinker_error *err)
{
    tinker_status s = TINKER_OK;
    for (size_t i = 0; s == TINKER_OK && i < n; i++)
        s = call_options_check_header(&(tinker_named_string){ v[i].name, v[i].value }, err);
    return s;
}

/* What does not change from request to request.
 * Built with the first call of a session and kept by it; only the loop thread touches it. */
static tinker_status make_common_headers(struct session *h, tinker_error *err)
{
    const struct config *cfg = h->cfg;
    const struct user_agent *id = user_agent_of_machine();
    struct header_list l = { .cfg = cfg };
    put_header(&l, "User-Agent", id->product, false);
    put_header(&l, "X-Stainless-Package-Version", cfg->sdk_version, false);
    put_header(&l, "X-Stainless-OS", id->os, false);
    put_header(&l, "X-Stainless-Arch", id->arch, false);
    put_header(&l, "X-Stainless-Runtime", "C", false);
    put_header(&l, "X-Stainless-Runtime-Version", "11", false);
    put_header(&l, "X-Stainless-Async", "async:epoll", false);
    tinker_status s = check_header_values(l.v, l.n, err);
    if (s != TINKER_OK)
        return s;
    h->common = http_common_new(l.v, l.n);
    return h->common ? TINKER_OK : err_nomem(err, "headers");
}

static tinker_status build_headers(struct call *c, tinker_error *err)
{
    const struct config *cfg = c->session->cfg;
    bool get = strcmp(c->spec->method, "GET") == 0;
    const struct call_options *p = operation_options(c);
    struct header_list l = { .cfg = cfg, .options = p };
    tinker_status s = c->session->common ? TINKER_OK : make_common_headers(c->session, err);
    if (s != TINKER_OK)
        return s;
    /* Names and values as the reference SDK sends them; the service logs them. */
    c->retry_count[shortest_int64(c->attempt, c->retry_count)] = '\0';
    put_header(&l, "Accept", c->accept ? c->accept : "application/json", false);
    if (!get)
        put_header(&l, "Content-Type", c->content_type ? c->content_type : "application/json",
                   false);
    put_header(&l, "Content-Encoding", c->encoding, false);
    /* A GET has no effect to repeat, so it needs no key. */
    if (!get)
        put_header(&l, "X-Idempotency-Key", c->key, false);
    put_header(&l, "x-stainless-retry-count", c->retry_count, false);
    /* In seconds: the timeout of the call, of its kind, or of the service. */
    const struct call_options *own = submit_options(c);
    put_header(&l, "x-stainless-read-timeout",
               own && own->timeout_ms  ? own->timeout_text
               : c->spec->timeout_text ? c->spec->timeout_text
                                       : cfg->timeout_text,
               false);
    for (size_t i = 0; i < c->n_extra; i++)
        put_header(&l, c->extra[i].name, c->extra[i].value, c->extra[i].secret);
    const struct http_header key = { "X-API-Key", c->token, true };
    s = check_header_values(l.v, l.n, err); /* the others were checked where they were given */
    if (s == TINKER_OK)
        s = check_header_values(&key, c->token ? 1 : 0, err);
    if (s != TINKER_OK)
        return s;
    /* An array of their own, because the transfer keeps the pointer until the end of the attempt. */
    size_t n_own = p ? p->n_headers : 0;
    c->headers = malloc((l.n + cfg->n_default_headers + n_own + 1) * sizeof(*c->headers));
    if (!c->headers)
        return err_nomem(err, c->spec->name);
    memcpy(c->headers, l.v, l.n * sizeof(*l.v));
    size_t n = l.n;
    for (size_t i = 0; i < cfg->n_default_headers; i++)
        /* A default x-api-key gives way to the credential of the auth layer. */
        if ((!c->token || strcasecmp(cfg->default_headers[i].name, "x-api-key") != 0) &&
            !call_options_has_header(p, cfg->default_headers[i].name))
            c->headers[n++] = cfg->default_headers[i];
    for (size_t i = 0; i < n_own; i++)
        c->headers[n++] = p->headers[i];
    if (c->token) /* last, and over any default: credentials are the auth layer's */
        c->headers[n++] = key;
    c->http.headers = c->headers;
    c->http.n_headers = n;
    c->http.common = c->session->common;
    return TINKER_OK;
}

/* base_url ends with a slash and path begins without one.  The caller frees; NULL: no
 * memory. */
char *call_url(const struct call *c)
{
    const struct config *cfg = c->session->cfg;
    const struct call_options *p = operation_options(c);
    const char *own = p && p->query ? p->query : "";
    bool asked = strchr(c->path, '?') != NULL;
    const char *sep = !*cfg->default_query ? "" : asked ? "&" : "?";
    const char *own_sep = !*own ? "" : asked || *cfg->default_query ? "&" : "?";
    char *url = malloc(strlen(cfg->base_url) + strlen(c->path) + strlen(cfg->default_query) +
                       strlen(own) + 3);
    if (!url)
        return NULL;
    char *end = stpcpy(stpcpy(url, cfg->base_url), c->path);
    end = stpcpy(stpcpy(end, sep), cfg->default_query);
    stpcpy(stpcpy(end, own_sep), own);
    return url;
}

/* What belongs to one attempt, among it the credential; the next attempt makes it anew. */
static void free_attempt(struct call *c)
{
    free(c->headers);
    free(c->url);
    free(c->token);
    free(c->own_body);
    c->headers = NULL;
    c->url = c->token = c->own_body = NULL;
}

/* The owner may free the call in done, so nothing may follow this. */
static void finish_call(struct call *c)
{
    c->active = false;
    free_attempt(c);
    c->done(c);
}

static int64_t call_now_ms(const struct call *c)
{
    return loop_now_ns(c->session->rt->loop) / 1000000;
}

/* Harmless when there is no try: call_settle() may have ended it before the response was over.
 * The order matters: the breaker learns of the outcome before hooks and metrics are told. */
static void end_try(struct call *c)
{
    if (!c->trying)
        return;
    c->trying = false;
    /* Is the endpoint well?  A client error proves that it works; a local failure proves
     * nothing. */
    enum breaker_verdict verdict = BREAKER_FAILURE;
    if (c->outcome == CALL_LOCAL)
        verdict = BREAKER_NEITHER;
    else if (c->outcome == CALL_OK || c->outcome == CALL_CAUGHT || tinker_error_is_user(&c->err))
        verdict = BREAKER_SUCCESS;
    breaker_end(&c->ticket, verdict, call_now_ms(c));
    call_event(c, CALL_EVENT_TRY_END, 0);
}

/* The outcome of the last try is the outcome of the call. */
static void conclude_call(struct call *c)
{
    end_try(c);
    call_event(c, CALL_EVENT_FINAL, -1);
    finish_call(c);
}

/* Nothing was sent, or nothing can be: no layer tries again. */
static void fail_local(struct call *c, const tinker_error *err)
{
    c->outcome = CALL_LOCAL;
    c->err = *err;
    conclude_call(c);
}

static void on_http(struct http_request *r);

static void send_attempt(struct call *c)
{
    const struct call_spec *spec = c->spec;
    const struct config *cfg = c->session->cfg;
    struct http_request *r = &c->http;
    tinker_error err;
    struct http_pool *pool = cfg->has_transport ? NULL : session_pool(c->session, spec->pool, &err);
    r->body = c->body;
    r->body_len = c->body_len;
    /* a transport of the program's takes the place of our connections */
    bool way = pool || cfg->has_transport;
    c->url = call_url(c);
    tinker_status ok = way ? build_headers(c, &err) : TINKER_ESTATE; /* err says why */
    if (ok == TINKER_OK && (!c->url || !extend_body(c)))
        ok = err_nomem(&err, spec->name);
    if (ok != TINKER_OK) {
        fail_local(c, &err);
        return;
    }
    const struct call_options *p = submit_options(c);
    /* 0 means unset, at each level: call, kind of call, service. */
    int64_t own_ms = p && p->timeout_ms ? p->timeout_ms : spec->timeout_ms;
    int64_t ms = own_ms ? own_ms : cfg->timeout_ms;
    r->method = spec->method;
    r->url = c->url;
    /* an own timeout of the call or its kind covers connecting, too */
    r->timeouts = (struct http_timeouts){ ms, own_ms ? ms : cfg->connect_ms, ms, ms };
    /* Calls that keep a session alive have small responses, so one that trickles in is given up:
     * connecting and one silence are enough time for all of it.  0: no limit. */
    enum pool_kind kind = spec->pool;
    bool small =
        kind == POOL_SESSION || kind == POOL_CONFIG || kind == POOL_AUTH || kind == POOL_TELEMETRY;
    bool endless = r->timeouts.connect_ms > INT64_MAX / 4 || r->timeouts.read_ms > INT64_MAX / 4;
    r->total_ms = small && !endless ? r->timeouts.connect_ms + r->timeouts.read_ms : 0;
    r->follow = !spec->no_redirect;
    r->max_response = c->max_response ? c->max_response
                      : small         ? max_response_small
                                      : max_response_default;
    r->done = on_http;
    /* c->sent counts attempts of this call, op->sent those of all its calls: max_retries of a
     * sample is for the sample as a whole.  Polls are not attempts. */
    c->sent++;
    c->sent_ns = loop_now_ns(c->session->rt->loop);
    if (c->op && spec->pool != POOL_RETRIEVE)
        c->op->sent++;
    call_event(c, CALL_EVENT_SEND, 0);
    if (pool) {
        /* on_http() comes later, never from inside http_start(). */
        http_start(pool, r);
        return;
    }
    c->exchange = transport_start(c->session, r);
    if (!c->exchange) {
        err_nomem(&err, spec->name);
        fail_local(c, &err);
    }
}

/* Credentials are asked for before every attempt, because a token may expire between two.
 * Loop thread, maybe from inside auth_token() when the token is at hand. */
static void on_token(struct auth_wait *w, const char *token, const tinker_error *err)
{
    struct call *c = container_of(w, struct call, auth);
    if (err) {
        fail_local(c, err);
        return;
    }
    c->token = token ? strdup(token) : NULL;
    if (token && !c->token) {
        tinker_error nomem;
        err_nomem(&nomem, c->spec->name);
        fail_local(c, &nomem);
        return;
    }
    send_attempt(c);
}

/* Headers carry the attempt's number and token, so everything is built anew. */
static void begin_attempt(struct call *c)
{
    free_attempt(c);
    c->auth.ready = on_token;
    auth_token(c->session->auth, &c->auth, c->use);
}

/* ---- judging ------------------------------------------------------------------------ */

/* Into c->err: status, text for people, and whether the program may try again itself. */
static void describe_failure(struct call *c)
{
    const struct http_response *resp = &c->http.resp;
    char text[320];
    /* Refused because an earlier attempt of this very call may have succeeded. */
    bool repeated =
        c->maybe_done && ((resp->status == 409 && c->conflict_final) ||
                          (resp->status == 404 && strcmp(c->spec->method, "DELETE") == 0));
    switch (c->outcome) {
    case CALL_STATUS:
    case CALL_CAUGHT:
        /* The service explains itself in the body; wire_error_text() finds the words in it. */
        wire_error_text(resp->status, resp->body.data ? resp->body.data : "", resp->body.len, text,
                        sizeof(text));
        err_set(&c->err, TINKER_EHTTP, "%s%s", text,
                repeated ? " (an attempt whose response was lost may have done it)" : "");
        c->err.http_status = resp->status;
        if (c->spec->pool != POOL_RETRIEVE) /* a poll is known by its promise */
            http_response_header(resp, "x-request-id", c->err.request_id,
                                 sizeof(c->err.request_id));
        c->err.retryable = retry_status_is(resp->status, RETRY_ON_TRY) &&
                           !(c->conflict_final && resp->status == 409);
        break;
    case CALL_CONNECT:
        err_set(&c->err, TINKER_ECONNECT, "%s: %s", c->session->cfg->base_url, resp->reason);
        c->err.retryable = 1;
        break;
    case CALL_TIMEOUT:
        err_set(&c->err, TINKER_ETIMEDOUT, "%s: %s", c->session->cfg->base_url, resp->reason);
        c->err.retryable = 1;
        break;
    default:
        /* Not retryable: certificates do not change between two attempts. */
        if (resp->failure == HTTP_FAIL_TLS) {
            err_set(&c->err, TINKER_ECONNECT, "%s: %s", c->session->cfg->base_url, resp->reason);
            break;
        }
        if (resp->refused) {
            err_set(&c->err, TINKER_ECONNECT, "%s: %s; is the server running? tinker serve",
                    c->session->cfg->base_url, resp->reason);
            break;
        }
        err_set(&c->err, resp->failure == HTTP_FAIL_NOMEM ? TINKER_ENOMEM : TINKER_EPROTOCOL, "%s",
                resp->reason);
    }
}

/* A server on this machine that was never there: waiting for it hides a wrong port or a server that
 * was not started.  One that has answered before may be restarting and is waited for. */
static bool is_nobody_there(const struct call *c)
{
    return c->http.resp.refused && c->session->cfg->loopback && !c->session->reached;
}

/* Statuses are judged later: 3xx that arrive here were not followed, and are failures like 4xx. */
static enum call_outcome classify_outcome(const struct call *c)
{
    const struct http_response *resp = &c->http.resp;
    switch (resp->failure) {
    case HTTP_OK:
        return resp->status >= 200 && resp->status < 300 ? CALL_OK : CALL_STATUS;
    case HTTP_FAIL_CONNECT:
        return is_nobody_there(c) ? CALL_BAD : CALL_CONNECT;
    case HTTP_FAIL_TIMEOUT:
        return CALL_TIMEOUT;
    case HTTP_FAIL_NOMEM:
        return CALL_LOCAL;
    default:
        return CALL_BAD;
    }
}

/* Layer 1: would another attempt with the same key make sense? */
static bool attempt_again(const struct call *c)
{
    const struct http_response *resp = &c->http.resp;
    int max =
        c->spec->max_retries == CALL_DEFAULT ? c->session->cfg->max_retries : c->spec->max_retries;
    /* max counts repetitions, so a call makes at most max + 1 attempts per try. */
    if (c->attempt >= max || attempts_spent(c))
        return false;
    if (c->outcome == CALL_CONNECT || c->outcome == CALL_TIMEOUT)
        return true;
    if (c->outcome != CALL_STATUS)
        return false;
    /* The service may overrule the table of statuses either way. */
    char should[16];
    if (http_response_header(resp, "x-should-retry", should, sizeof(should))) {
        if (strcmp(should, "true") == 0)
            return true;
        if (strcmp(should, "false") == 0)
            return false;
    }
    if (resp->status == 409 && c->conflict_final)
        return false;
    return retry_status_is(resp->status, RETRY_ON_ATTEMPT);
}

/* c->attempt is the number that goes out as x-stainless-retry-count. */
static void next_attempt(struct timer *t)
{
    struct call *c = container_of(t, struct call, timer);
    c->attempt++;
    begin_attempt(c);
}

/* A new try has a new idempotency key, unless one_key; the owner may change the body. */
static void next_try(struct timer *t)
{
    struct call *c = container_of(t, struct call, timer);
    if (c->renew)
        c->renew(c);
    begin_try(c);
}

/* Layer 2; false: the outcome stands. */
static bool try_again(struct call *c)
{
    struct loop *l = c->session->rt->loop;
    /* Both branches below arm the same timer, and it always leads to a new try. */
    c->timer.fire = next_try;
    /* 402: out of credit.  While session_billing_pause() allows it, wait and try again; the
     * pause does not count as a try. */
    if (c->outcome == CALL_STATUS && retry_status_is(c->http.resp.status, RETRY_BILLING) &&
        !attempts_spent(c) && session_billing_pause(c->session, c->err.message)) {
        call_event(c, CALL_EVENT_RETRY, RETRY_BILLING_MS);
        loop_arm(l, &c->timer, RETRY_BILLING_MS);
        return true;
    }
    /* The budget covers all tries and pauses together; the last delay is cut to what is left of it. */
    int64_t elapsed_ms = (loop_now_ns(l) - c->start_ns) / 1000000;
    int status = c->http.resp.status;
    bool retryable = c->outcome == CALL_CONNECT || c->outcome == CALL_TIMEOUT ||
                     (c->outcome == CALL_STATUS && retry_status_is(status, RETRY_ON_TRY) &&
                      !(c->conflict_final && status == 409));
    retryable = retryable && !attempts_spent(c);
    call_event(c, CALL_EVENT_TRY_FAILED, retryable ? 0 : -1);
    /* The budget is looked at before the delay: a try that has begun may run over it. */
    if (!retryable || elapsed_ms >= RETRY_TRY_BUDGET_MS)
        return false;
    int64_t delay = retry_delay_ms(RETRY_DELAY_TRY, c->tries + 1, 0);
    if (delay > RETRY_TRY_BUDGET_MS - elapsed_ms)
        delay = RETRY_TRY_BUDGET_MS - elapsed_ms;
    call_event(c, CALL_EVENT_RETRY, delay);
    c->tries++;
    loop_arm(l, &c->timer, delay);
    return true;
}

/* Some attempt was sent, and what the service made of it is not known. */
static bool response_was_lost(const struct call *c)
{
    const struct http_response *resp = &c->http.resp;
    bool lost = c->outcome == CALL_CONNECT || c->outcome == CALL_TIMEOUT ||
                /* RETRY_LOST: a gateway's answer says nothing about what the service behind
                 * it did. */
                (c->outcome == CALL_STATUS && retry_status_is(resp->status, RETRY_LOST));
    /* More than one sending means that curl repeated the request on a new connection, and
     * the first may have arrived. */
    return resp->sends > 1 || (lost && resp->sends > 0);
}

static void on_http(struct http_request *r)
{
    struct call *c = container_of(r, struct call, http);
    /* Judge the response and report it, then decide among another attempt (layer 1), the owner's
     * own handling (catch), another try (layer 2), and the end.
     * The exchange frees itself when it is done. */
    c->exchange = NULL;
    if (!c->trying) { /* settled before */
        finish_call(c);
        return;
    }
    /* A body that was cut is as good as none: the usual retry of a lost connection. */
    if (r->resp.failure == HTTP_OK && !r->on_data && truncated_body_is_cut(&r->resp, c->empty_ok)) {
        r->resp.failure = HTTP_FAIL_CONNECT;
        snprintf(r->resp.reason, sizeof(r->resp.reason),
                 "the connection closed in the middle of the response");
    }
    c->session->reached = c->session->reached || r->resp.failure == HTTP_OK;
    c->outcome = classify_outcome(c);
    c->maybe_done = c->maybe_done || response_was_lost(c);
    if (c->op)
        response_record(c);
    call_event(c, CALL_EVENT_RESPONSE, 0);
    if (c->outcome != CALL_OK)
        describe_failure(c);
    last_error_record(c);
    if (c->outcome == CALL_OK) {
        conclude_call(c);
        return;
    }
    if (attempt_again(c)) {
        /* A wait that the service asks for comes before our own back-off. */
        struct runtime *rt = c->session->rt;
        int64_t ms =
            c->outcome == CALL_STATUS ? retry_after_ms(&c->http.resp, clock_wall_ns(rt->clock)) : 0;
        if (ms == 0)
            ms = retry_delay_ms(RETRY_DELAY_ATTEMPT, c->attempt + 1, rt->uniform(rt));
        c->timer.fire = next_attempt;
        call_event(c, CALL_EVENT_AGAIN, ms);
        loop_arm(rt->loop, &c->timer, ms);
        return;
    }
    /* before layer 2, because a rate limit of samples pauses the account instead of this call */
    if (c->outcome == CALL_STATUS && c->catch && c->catch (c, r->resp.status)) {
        c->outcome = CALL_CAUGHT;
        conclude_call(c);
        return;
    }
    end_try(c);
    if (c->spec->outer && c->outcome != CALL_LOCAL && try_again(c))
        return;
    conclude_call(c);
}

/* ---- tries --------------------------------------------------------------------------- */

/* The name is the key of the process-wide registry, so services with the same scope share
 * it. */
static bool admit_call(struct call *c)
{
    /* one breaker per service and kind of call, shared by the process */
    const struct config *cfg = c->session->cfg;
    char name[512];
    tinker_error refusal;
    snprintf(name, sizeof(name), "%s %s", cfg->breaker_scope, c->spec->name);
    if (breaker_admit(name, &cfg->breaker, call_now_ms(c), &c->ticket, &refusal) == TINKER_OK)
        return true;
    if (c->tries > 0) /* the last failure of this very call says more */
        err_prefix(&c->err, "%s", refusal.message);
    else
        c->err = refusal;
    c->err.status = refusal.status;
    c->err.retryable = 1;
    return false;
}

/* Nothing was sent: this is not a try. */
static void on_refused(struct timer *t)
{
    struct call *c = container_of(t, struct call, timer);
    c->outcome = CALL_LOCAL;
    call_event(c, CALL_EVENT_REFUSED, 0);
    finish_call(c);
}

static void begin_try(struct call *c)
{
    /* Heartbeats, polls, telemetry and what they need are never stopped. */
    enum pool_kind pool = c->spec->pool;
    bool guarded = c->session->cfg->breaker_scope &&
                   (pool == POOL_TRAIN || pool == POOL_SAMPLE || pool == POOL_REDIRECT);
    if (guarded && !admit_call(c)) {
        c->timer.fire = on_refused; /* not now: the owner may still be starting the call */
        loop_arm(c->session->rt->loop, &c->timer, 0);
        return;
    }
    /* attempt counts within the try, and goes out as x-stainless-retry-count */
    c->trying = true;
    c->try_ns = loop_now_ns(c->session->rt->loop);
    call_event(c, CALL_EVENT_TRY, 0);
    /* The same key lets the service recognize a repetition of what it has executed already.  All
     * attempts of a try share one; the prefix is the reference SDK's. */
    const struct call_options *p = submit_options(c);
    if (!c->one_key || c->tries == 0) {
        if (!p || !p->key)
            /* What must happen only once has a plain one in the reference. */
            rand_uuid(c->one_key ? c->key : stpcpy(c->key, "stainless-python-retry-"));
        /* An operation may consist of several calls; the caller's key must differ between them. */
        else if (c->op->number == 0 && c->part == 0)
            snprintf(c->key, sizeof(c->key), "%s", p->key);
        else
            snprintf(c->key, sizeof(c->key), "%s-%d.%d", p->key, c->op->number, c->part);
    }
    c->attempt = 0;
    begin_attempt(c);
}

/* Loop thread.  The owner has set session, spec, path, body and done. */
void call_start(struct call *c)
{
    assert(!c->active);
    c->active = true;
    c->tries = c->sent = 0;
    c->maybe_done = false;
    c->start_ns = loop_now_ns(c->session->rt->loop);
    memset(&c->err, 0, sizeof(c->err));
    begin_try(c);
}

/* The owner has all it wants before the response has ended.  The outcome is booked now;
 * on_http() later only finishes. */
void call_settle(struct call *c)
{
    c->outcome = CALL_OK;
    if (c->op)
        response_record(c);
    last_error_record(c);
    end_try(c);
    call_event(c, CALL_EVENT_FINAL, -1);
}

/* done() is not called.  Harmless at any time, also twice. */
void call_cancel(struct call *c)
{
    if (!c->active)
        return;
    c->active = false;
    /* A canceled try says nothing about the endpoint, but the breaker must get its permit back. */
    if (c->trying) {
        c->trying = false;
        breaker_end(&c->ticket, BREAKER_NEITHER, call_now_ms(c));
        call_event(c, CALL_EVENT_CANCELED, 0);
    }
    /* Only one of these can be pending; canceling what is not is harmless. */
    auth_forget(&c->auth);
    http_cancel(&c->http);
    transport_cancel(c->exchange);
    c->exchange = NULL;
    loop_disarm(c->session->rt->loop, &c->timer);
    free_attempt(c);
}

void call_clear(struct call *c)
{
    call_cancel(c);
    http_request_clear(&c->http);
}
