/* chat_session.c - see chat_session.h. */
#include "cli/chat/chat_session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/text/text_model.h"

/* LOOK_MS: how often a wait looks for Ctrl-C, which sets a flag and wakes nobody.  REPLY_MS:
 * longest wait for a reply when --timeout says nothing. */
enum { LOOK_MS = 50, REPLY_MS = 600000 };

/* Set by the handler; one Ctrl-C ends one reply, so each reader resets it. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* No SA_RESTART: a read from the terminal returns, too. */
void chat_session_catch_interrupts(void)
{
    struct sigaction action = { .sa_handler = on_interrupt };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool chat_session_interrupted(void)
{
    bool was = interrupted;
    interrupted = 0;
    return was;
}

int chat_session_open(struct chat_session *s, const struct chat_options *options)
{
    /* A chat needs a renderer even where `tinker sample` would continue plain text. */
    const struct prompt_choice choice = { .tokenizer = options->tokenizer,
                                          .renderer = options->renderer,
                                          .chat = true };
    int status = EXIT_FAILED;
    memset(s, 0, sizeof(*s));
    s->options = *options;
    s->tokens = (tinker_tokens)TINKER_TOKENS_INIT;
    if (!api_open_model(&s->api, options->model, options->path, &status))
        return status;
    status = prompt_model_open(&s->text, &s->api, &choice);
    if (status == EXIT_OK)
        s->sampler = prompt_model_sampler(&s->api, &status);
    tinker_future *f = s->sampler ? api_get_capabilities(&s->api, &status) : NULL;
    if (f) {
        const tinker_capabilities *has = tinker_future_capabilities(f);
        s->streams = has->stream_sample && !options->no_stream;
        /* Services may list models without the length of their context; then nothing is ever
         * dropped. */
        s->context = -1;
        for (size_t i = 0; i < has->n; i++) {
            const tinker_supported_model *m = tinker_supported_model_at(has, i);
            if (m->name && strcmp(m->name, s->api.model) == 0)
                s->context = m->max_context_length;
        }
        tinker_future_free(f);
        return EXIT_OK;
    }
    chat_session_close(s);
    return status;
}

void chat_session_close(struct chat_session *s)
{
    tinker_tokens_clear(&s->tokens);
    free(s->logprobs);
    tinker_sampler_free(s->sampler);
    prompt_model_close(&s->text);
    api_close(&s->api);
    s->sampler = NULL;
    s->logprobs = NULL;
}

/* The prompt without the first `skip` turns; NULL after the error was printed. */
static tinker_rendered *render_from(struct chat_session *s, const struct conversation *c,
                                    size_t skip, int *status)
{
    struct conversation_messages m;
    tinker_error err;
    if (!conversation_messages(c, skip, &m)) {
        *status = out_fail(EXIT_FAILED, NULL, "out of memory");
        return NULL;
    }
    tinker_rendered *x = tinker_renderer_prompt(s->text.renderer, m.v, m.n, NULL, NULL, &err);
    conversation_messages_free(&m);
    if (!x)
        *status = text_model_fail_data(&err);
    return x;
}

/* The next message of the assistant, rendered; NULL after the error was printed.  A conversation
 * that has outgrown the context loses its oldest turns here, and only here: the system message and
 * the newest question stay, /save still writes everything.  *length: tokens of the prompt. */
static tinker_rendered *render_next(struct chat_session *s, const struct conversation *c,
                                    int64_t *length, int *status)
{
    /* Leave room for a whole reply, but not more than half of the context. */
    int64_t reply = s->options.max_tokens, room = INT64_MAX;
    if (s->context > 0)
        room = s->context - (reply < s->context / 2 ? reply : s->context / 2);
    for (size_t skip = 0;;) {
        tinker_error err;
        tinker_rendered *x = render_from(s, c, skip, status);
        if (!x)
            return NULL;
        if (tinker_model_input_length(&x->examples[0].input, length, &err) != TINKER_OK) {
            *status = text_model_fail_data(&err);
            tinker_rendered_free(x);
            return NULL;
        }
        /* What remains begins with a question, as formats expect it. */
        size_t next = skip + 1;
        while (next < c->n && strcmp(c->turns[next].role, "user") != 0)
            next++;
        if (*length <= room || next >= c->n) {
            if (skip && !s->told_dropped)
                out_say("(the conversation is longer than the context of %lld tokens: the model no "
                        "longer sees its oldest turns)",
                        (long long)s->context);
            s->told_dropped = s->told_dropped || skip;
            return x;
        }
        tinker_rendered_free(x);
        skip = next;
    }
}

/* The tokens of the next prompt, for /tokens; images have none. */
int chat_session_prompt(struct chat_session *s, const struct conversation *c, tinker_tokens *out)
{
    int status = EXIT_OK;
    int64_t length;
    tinker_error err;
    tinker_rendered *x = render_next(s, c, &length, &status);
    for (size_t i = 0; x && status == EXIT_OK && i < x->examples[0].input.n_chunks; i++) {
        const tinker_chunk *k = &x->examples[0].input.chunks[i];
        if (k->kind == TINKER_CHUNK_TEXT &&
            tinker_tokens_append(out, k->tokens, k->n_tokens, &err) != TINKER_OK)
            status = text_model_fail_data(&err);
    }
    tinker_rendered_free(x);
    return status;
}

/* ---- showing ------------------------------------------------------------------------------- */

/* What of a reply is on the screen. */
struct view {
    const struct chat_session *s;
    tinker_parse_stream *parser;
    tinker_decoder *decoder; /* --thinking raw: everything, control tokens too */
    tinker_text raw;
    bool colored, dim, said_thinking, begun;
};

/* Thinking is dim on a terminal.  Where it ends the answer begins on a line of its own. */
static void set_dim(struct view *v, bool on)
{
    if (v->dim == on)
        return;
    v->dim = on;
    if (v->colored)
        fputs(on ? "\033[2m" : "\033[0m", stdout);
    if (!on && v->begun)
        fputs("\n", stdout);
}

/* Control characters of a model must not steer the terminal; line breaks and tabs are text. */
static void print_safe(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        putchar((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ? '?' : c);
    }
}

/* The parser has decided what each piece of text is; here it is only placed and colored. */
static void show_deltas(struct view *v, const tinker_delta *deltas, size_t n)
{
    const char *mode = v->s->options.thinking;
    if (!v->s->screen)
        return;
    for (size_t i = 0; i < n; i++) {
        const tinker_delta *d = &deltas[i];
        const char *text = d->text;
        size_t len = d->n_text;
        /* The role of the message, which the layout of the screen shows already. */
        if (d->kind == TINKER_DELTA_HEADER)
            continue;
        bool thinks = d->kind == TINKER_DELTA_THINKING;
        /* A short note stands in place of the hidden text and is overwritten by the answer, so
         * that the terminal does not look stuck. */
        if (thinks && strcmp(mode, "hide") == 0) {
            if (!v->said_thinking && v->colored)
                fputs("\033[2m(thinking)\033[0m\r", stdout);
            v->said_thinking = true;
            continue;
        }
        if (v->said_thinking && v->colored)
            fputs("\033[K", stdout);
        v->said_thinking = false;
        set_dim(v, thinks);
        /* Formats begin an answer with a blank or a line break. */
        while (!v->begun && len && strchr(" \n", *text)) {
            text++;
            len--;
        }
        v->begun = v->begun || len;
        print_safe(text, len);
    }
    out_flush();
}

/* token NULL: the end, which may still hold back bytes of an unfinished character. */
static void show_raw(struct view *v, const int32_t *token)
{
    v->raw.n = 0;
    if (token)
        tinker_decoder_put(v->decoder, token, 1, &v->raw, NULL);
    else
        tinker_decoder_end(v->decoder, &v->raw, NULL);
    if (v->s->screen)
        print_safe(v->raw.s ? v->raw.s : "", v->raw.n);
    out_flush();
}

/* Every token goes through the parser, also when only raw text is shown: the message that is
 * kept comes from it. */
static tinker_status show_token(struct view *v, int32_t token, tinker_error *err)
{
    const tinker_delta *deltas;
    size_t n;
    tinker_status status = tinker_parse_stream_feed(v->parser, token, &deltas, &n, err);
    if (status != TINKER_OK)
        return status;
    if (v->decoder)
        show_raw(v, &token);
    else
        show_deltas(v, deltas, n);
    return TINKER_OK;
}

/* ---- one reply -------------------------------------------------------------------------------- */

/* For /logprobs.  realloc() per token is cheap beside computing one. */
static bool keep_token(struct chat_session *s, int32_t token, float logprob, tinker_error *err)
{
    float *grown = realloc(s->logprobs, (s->tokens.n + 1) * sizeof(*grown));
    if (!grown)
        return false;
    s->logprobs = grown;
    grown[s->tokens.n] = logprob;
    return tinker_tokens_append(&s->tokens, &token, 1, err) == TINKER_OK;
}

/* The stops are the renderer's: a chat reply ends where its format says, not at a text of the
 * user's. */
static void set_sampling(const struct chat_session *s, tinker_sampling_params *p)
{
    const struct chat_options *o = &s->options;
    p->max_tokens = o->max_tokens;
    p->temperature = o->temperature;
    p->top_p = o->top_p;
    p->top_k = o->top_k;
    p->has_seed = o->has_seed;
    p->seed = o->seed;
    tinker_renderer_set_stop(s->text.renderer, p);
}

/* Token by token.  Ctrl-C cancels the stream, which then says so. */
static tinker_status take_stream(struct chat_session *s, const tinker_model_input *input,
                                 const tinker_sampling_params *p, struct view *v, tinker_error *err)
{
    tinker_stream_event e;
    tinker_stream *st = tinker_sampler_stream(s->sampler, input, p, NULL, err);
    if (!st)
        return err->status;
    tinker_stream_set_deadline(st, opt_wait_ms(REPLY_MS));
    tinker_status status = TINKER_OK;
    for (bool over = false; !over && status == TINKER_OK;) {
        status = tinker_stream_next(st, LOOK_MS, &e, err);
        if (interrupted) {
            s->stop = "interrupted";
            status = TINKER_OK;
            break;
        }
        /* LOOK_MS have passed without an event, which is normal; a deadline of the stream itself
         * also says TINKER_ETIMEDOUT, but then its future is complete. */
        if (status == TINKER_ETIMEDOUT && !tinker_future_done(tinker_stream_future(st))) {
            status = TINKER_OK;
            continue;
        }
        if (status != TINKER_OK)
            break;
        if (e.kind == TINKER_STREAM_TOKEN) {
            if (!keep_token(s, e.token, e.logprob, err))
                status = TINKER_ENOMEM;
            else
                status = show_token(v, e.token, err);
        } else if (e.kind == TINKER_STREAM_END) {
            over = true;
        } else {
            s->stop = e.stop_reason == TINKER_STOP_STOP ? "stop" : "length";
        }
    }
    tinker_stream_free(st);
    return status;
}

/* All at once, for services without streams. */
static tinker_status take_sample(struct chat_session *s, const tinker_model_input *input,
                                 const tinker_sampling_params *p, struct view *v, tinker_error *err)
{
    tinker_future *f = tinker_sampler_sample(s->sampler, input, p, NULL, err);
    if (!f)
        return err->status;
    tinker_future_set_deadline(f, opt_wait_ms(REPLY_MS));
    tinker_status status;
    do
        status = tinker_future_wait(f, LOOK_MS, err);
    while (status == TINKER_ETIMEDOUT && !tinker_future_done(f) && !interrupted);
    if (interrupted) {
        s->stop = "interrupted";
        tinker_future_cancel(f);
        status = TINKER_OK;
    } else if (status == TINKER_OK) {
        const tinker_sequence *q = &tinker_future_sample(f)->sequences[0];
        s->stop = q->stop_reason == TINKER_STOP_STOP ? "stop" : "length";
        for (size_t i = 0; status == TINKER_OK && i < q->n; i++) {
            if (!keep_token(s, q->tokens[i], q->logprobs ? q->logprobs[i] : 0, err))
                status = TINKER_ENOMEM;
            else
                status = show_token(v, q->tokens[i], err);
        }
    }
    tinker_future_free(f);
    return status;
}

/* The message that the tokens make, into the conversation. */
static tinker_status keep_reply(struct conversation *c, tinker_parsed *parsed, tinker_error *err)
{
    tinker_text text = TINKER_TEXT_INIT, thinking = TINKER_TEXT_INIT;
    const tinker_message *m = parsed->message;
    tinker_status status = tinker_message_text(m, &text, err);
    for (size_t i = 0; status == TINKER_OK && i < m->n_parts; i++)
        if (m->parts[i].kind == TINKER_PART_THINKING)
            status = tinker_text_append(&thinking, m->parts[i].text, m->parts[i].n_text, err);
    if (status == TINKER_OK &&
        !conversation_add(c, "assistant", text.s ? text.s : "", thinking.n ? thinking.s : NULL))
        status = TINKER_ENOMEM;
    tinker_text_clear(&text);
    tinker_text_clear(&thinking);
    return status;
}

/* Feeding ends here: what the parser held back (the start of a tag that never came) is text
 * after all, and the whole message goes into the conversation. */
static tinker_status end_view(struct view *v, struct conversation *c, tinker_error *err)
{
    const tinker_delta *deltas;
    size_t n;
    tinker_parsed *parsed = NULL;
    tinker_status status = tinker_parse_stream_finish(v->parser, &deltas, &n, &parsed, err);
    if (status == TINKER_OK && v->decoder)
        show_raw(v, NULL);
    else if (status == TINKER_OK)
        show_deltas(v, deltas, n);
    if (v->dim && v->colored)
        fputs("\033[0m", stdout);
    if (status == TINKER_OK)
        status = keep_reply(c, parsed, err);
    tinker_parsed_free(parsed);
    return status;
}

/* An interrupted reply stays in the conversation as far as it came, so that the user can answer
 * it; a failed one leaves the conversation unchanged. */
int chat_session_reply(struct chat_session *s, struct conversation *c)
{
    int status = EXIT_OK;
    int64_t length;
    tinker_error err = { 0 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    struct view v = { .s = s, .raw = TINKER_TEXT_INIT, .colored = out_colored() };
    tinker_rendered *x = render_next(s, c, &length, &status);
    if (!x)
        return status;
    int64_t start_ns = clock_now_ns(clock_real());
    set_sampling(s, &p);
    /* Services refuse a prompt and a reply that do not fit together. */
    if (s->context > length && p.max_tokens > s->context - length)
        p.max_tokens = s->context - length;
    s->tokens.n = 0;
    s->stop = "length";
    interrupted = 0;
    v.parser = tinker_parse_stream_new(s->text.renderer, &err);
    if (v.parser && strcmp(s->options.thinking, "raw") == 0)
        v.decoder = tinker_decoder_new(s->text.tokenizer, NULL, &err);
    tinker_status got = v.parser ? TINKER_OK : err.status;
    if (got == TINKER_OK)
        got = (s->streams ? take_stream : take_sample)(s, &x->examples[0].input, &p, &v, &err);
    if (got == TINKER_OK)
        got = end_view(&v, c, &err);
    s->reply_ns = clock_now_ns(clock_real()) - start_ns;
    if (s->screen && (got == TINKER_OK || v.begun))
        putchar('\n');
    out_flush();
    if (got != TINKER_OK) {
        err.status = got;
        status = api_fail(&err, NULL);
    }
    tinker_parse_stream_free(v.parser);
    tinker_decoder_free(v.decoder);
    tinker_text_clear(&v.raw);
    tinker_rendered_free(x);
    return status;
}
