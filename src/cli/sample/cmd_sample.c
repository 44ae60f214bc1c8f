/* cmd_sample.c - `tinker sample`: continue one prompt with a base model or saved weights.
 *
 * A chat model sees the prompt as one user message in its own format, unless --raw.  stdout
 * has the texts, stderr the numbers about them. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/chat.h>
#include <tinker/sampling.h>
#include "base/array.h"
#include "base/clock.h"
#include "cli/service/api.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/sample/prompt_model.h"
#include "cli/text/text_model.h"
#include "json/json.h"

#define NO_SEED INT64_MIN

/* The options as given. Limits: 1 to 1024 samples, one source for the prompt; the service
 * checks the other numbers. */
struct request {
    const char *model, *path, *tokenizer;
    const char *prompt, *prompt_file, *tokens_file, *messages_file; /* one of these */
    const char *renderer, *system;
    bool raw, prompt_logprobs, no_default_stop, show_tokens, stream;
    int64_t n, max_tokens, top_k, topk_prompt, seed;
    double temperature, top_p;
    struct opt_list stop, stop_tokens;
};

/* What a request becomes: tokens to send, and how to read the answer. */
struct job {
    const struct request *q;
    const struct api *api;
    struct prompt_model text;
    tinker_tokens prompt;
    int32_t *stop_tokens;
    const char **stop_strings;
    size_t n_stop;
    int64_t start_ns;
};

/* Members that were never set are NULL, which all of these accept. */
static void clear_job(struct job *j)
{
    prompt_model_close(&j->text);
    tinker_tokens_clear(&j->prompt);
    free(j->stop_tokens);
    free(j->stop_strings);
}

/* ---- the prompt --------------------------------------------------------------------------- */

/* Encode messages in the chat format. The tokens are copied; a prompt from the command line has
 * nothing but text. */
static int render_prompt(struct job *j, const tinker_message *messages, size_t n)
{
    tinker_error err;
    tinker_rendered *x = tinker_renderer_prompt(j->text.renderer, messages, n, NULL, NULL, &err);
    if (!x)
        return text_model_fail_data(&err);
    int status = EXIT_OK;
    const tinker_model_input *input = &x->examples[0].input;
    for (size_t i = 0; status == EXIT_OK && i < input->n_chunks; i++) {
        const tinker_chunk *c = &input->chunks[i];
        if (c->kind != TINKER_CHUNK_TEXT)
            status = out_fail(EXIT_DATA, NULL, "only text can be sampled from the command line");
        else if (tinker_tokens_append(&j->prompt, c->tokens, c->n_tokens, &err) != TINKER_OK)
            status = text_model_fail_data(&err);
    }
    tinker_rendered_free(x);
    return status;
}

/* Text as one user message in the chat format, behind the --system message if there is one;
 * without a renderer, as it is. */
static int encode_text(struct job *j, const char *text, size_t n)
{
    tinker_error err;
    tinker_message messages[2] = { { .role = "system" }, { .role = "user" } };
    if (!j->text.renderer)
        return tinker_tokenizer_encode(j->text.tokenizer, text, n, NULL, &j->prompt, &err) ==
                       TINKER_OK
                   ? EXIT_OK
                   : text_model_fail_data(&err);
    messages[0].content = j->q->system;
    messages[0].n_content = j->q->system ? strlen(j->q->system) : 0;
    messages[1].content = text;
    messages[1].n_content = n;
    return j->q->system ? render_prompt(j, messages, 2) : render_prompt(j, messages + 1, 1);
}

/* A conversation in JSON. It needs a chat format: roles mean nothing to a raw prompt. */
static int encode_messages(struct job *j, const char *json, size_t n)
{
    tinker_error err;
    if (!j->text.renderer)
        return out_fail(EXIT_USAGE, NULL, "--messages needs a renderer: give --renderer NAME");
    tinker_conversation *c = tinker_conversation_parse(json, n, &err);
    if (!c)
        return out_fail(EXIT_DATA, NULL, "%s: %s", j->q->messages_file, err.message);
    int status = c->n_messages
                     ? render_prompt(j, c->messages, c->n_messages)
                     : out_fail(EXIT_DATA, NULL, "%s: there are no messages", j->q->messages_file);
    tinker_conversation_free(c);
    return status;
}

/* The prompt from the one source that was given; standard input if there is none. Empty prompts
 * are refused here, before anything is sent. */
static int read_prompt(struct job *j)
{
    const struct request *q = j->q;
    const char *file = q->messages_file ? q->messages_file
                       : q->tokens_file ? q->tokens_file
                                        : q->prompt_file;
    char *text = NULL;
    size_t n = 0;
    int status;
    if (!file && q->prompt && strcmp(q->prompt, "-") != 0)
        return *q->prompt ? encode_text(j, q->prompt, strlen(q->prompt))
                          : out_fail(EXIT_DATA, NULL, "the prompt is empty");
    if (!text_model_read(file ? file : "-", &text, &n, &status))
        return status;
    if (q->messages_file)
        status = encode_messages(j, text, n);
    else if (n == 0) /* a chat format would make a question of nothing */
        status = out_fail(EXIT_DATA, NULL, "%s is empty",
                          file && strcmp(file, "-") != 0 ? file : "standard input");
    else if (q->tokens_file)
        status = text_model_all_ids(file, text, n, &j->prompt);
    else
        status = encode_text(j, text, n);
    free(text);
    return status;
}

/* ---- model, tokenizer, renderer, stops ------------------------------------------------------ */

/* The user's stops, else the renderer's own. The service takes tokens or strings, not both:
 * --stop-token adds the renderer's tokens, --stop replaces all. */
static int choose_stops(struct job *j)
{
    const struct request *q = j->q;
    tinker_stop_sequences own = { 0 };
    if (q->stop.n && q->stop_tokens.n)
        return out_fail(EXIT_USAGE, NULL, "Give either --stop or --stop-token.");
    if (j->text.renderer && !q->no_default_stop && !q->stop.n)
        own = tinker_renderer_stop(j->text.renderer);
    size_t n = q->stop.n + q->stop_tokens.n + own.n;
    j->stop_tokens = calloc(n + 1, sizeof(*j->stop_tokens));
    j->stop_strings = calloc(n + 1, sizeof(*j->stop_strings));
    if (!j->stop_tokens || !j->stop_strings)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0; i < q->stop.n; i++) {
        if (!*q->stop.items[i])
            return out_fail(EXIT_USAGE, NULL, "Invalid value for '--stop': the text is empty.");
        j->stop_strings[j->n_stop++] = q->stop.items[i];
    }
    for (size_t i = 0; i < q->stop_tokens.n; i++) {
        char *end;
        long long v = strtoll(q->stop_tokens.items[i], &end, 10);
        if (*end || end == q->stop_tokens.items[i] || v < 0 || v > INT32_MAX)
            return out_fail(EXIT_USAGE, NULL, "Invalid value for '--stop-token': '%s'",
                            q->stop_tokens.items[i]);
        j->stop_tokens[j->n_stop++] = (int32_t)v;
    }
    for (size_t i = 0; i < own.n; i++) {
        if (own.strings && !q->stop_tokens.n)
            j->stop_strings[j->n_stop++] = own.strings[i];
        else if (own.tokens)
            j->stop_tokens[j->n_stop++] = own.tokens[i];
    }
    return EXIT_OK;
}

/* Each step needs the one before: tokenizer and renderer, stops, prompt. */
static int prepare_job(struct api *a, struct job *j)
{
    const struct request *q = j->q;
    const struct prompt_choice choice = { .tokenizer = q->tokenizer,
                                          .renderer = q->renderer,
                                          .raw = q->raw || q->tokens_file,
                                          .chat = q->messages_file };
    int status = prompt_model_open(&j->text, a, &choice);
    if (status == EXIT_OK && q->system && !j->text.renderer)
        status = out_fail(EXIT_USAGE, "Give one with --renderer NAME.",
                          "--system needs a chat format, and %s has none of its own", a->model);
    if (status == EXIT_OK)
        status = choose_stops(j);
    if (status == EXIT_OK)
        status = read_prompt(j);
    if (status == EXIT_OK && j->prompt.n == 0)
        status = out_fail(EXIT_DATA, NULL, "the prompt is empty");
    return status;
}

/* ---- the answer ----------------------------------------------------------------------------- */

/* As in the API: "stop" at a stop sequence, "length" at max_tokens. */
static const char *get_stop_name(tinker_stop_reason reason)
{
    return reason == TINKER_STOP_STOP ? "stop" : "length";
}

/* Without the control tokens at its end, unless --raw asks for exactly what was sampled. */
static bool decode_sequence(const struct job *j, const tinker_sequence *s, tinker_text *out)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    tinker_error err;
    o.skip_special = !j->q->raw;
    if (tinker_tokenizer_decode(j->text.tokenizer, s->tokens, s->n, &o, out, &err) == TINKER_OK)
        return true;
    text_model_fail_data(&err);
    return false;
}

/* The numbers about a sample go to stderr, so that stdout has only text. The mean is over all
 * sampled tokens; 0 without logprobs. */
static void report_sequence(const tinker_sequence *s, size_t i)
{
    double sum = 0;
    for (size_t k = 0; s->logprobs && k < s->n; k++)
        sum += s->logprobs[k];
    out_say("# sample %zu (stop_reason=%s, tokens=%zu, avg_logprob=%.3f)", i + 1,
            get_stop_name(s->stop_reason), s->n, s->n ? sum / (double)s->n : 0);
}

/* A comment line, so that it is told apart from sampled text. */
static void print_token_ids(const struct job *j, const tinker_sequence *s)
{
    if (!j->q->show_tokens)
        return;
    for (size_t k = 0; k < s->n; k++)
        printf("%s%d", k ? " " : "# ", (int)s->tokens[k]);
    putchar('\n');
}

/* Each text is flushed at once: a reader behind a pipe sees the first before the last. */
static bool print_sample_text(const struct job *j, const tinker_sample *sample)
{
    for (size_t i = 0; i < sample->n_sequences; i++) {
        const tinker_sequence *s = &sample->sequences[i];
        tinker_text text = TINKER_TEXT_INIT;
        if (!decode_sequence(j, s, &text))
            return false;
        if (sample->n_sequences > 1 || globals.verbose)
            report_sequence(s, i);
        fwrite(text.s ? text.s : "", 1, text.n, stdout);
        putchar('\n');
        print_token_ids(j, s);
        out_flush();
        tinker_text_clear(&text);
    }
    return true;
}

/* NaN stands for "none", as for the first token of a prompt, and becomes null. */
static void put_logprobs(struct json_writer *w, const float *v, size_t n)
{
    if (!v) {
        json_put_null(w);
        return;
    }
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i]))
            json_put_null(w);
        else
            json_put_float(w, v[i]);
    }
    json_put_end_array(w);
}

/* {"text", "tokens", "logprobs", "stop_reason"} */
static bool put_sequence(struct json_writer *w, const struct job *j, const tinker_sequence *s)
{
    tinker_text text = TINKER_TEXT_INIT;
    if (!decode_sequence(j, s, &text))
        return false;
    json_put_begin_object(w);
    json_put_key(w, "text");
    json_put_string_n(w, text.s ? text.s : "", text.n);
    json_put_key(w, "tokens");
    json_put_array_int32(w, s->tokens, s->n);
    json_put_key(w, "logprobs");
    put_logprobs(w, s->logprobs, s->n);
    json_put_key(w, "stop_reason");
    json_put_string(w, get_stop_name(s->stop_reason));
    json_put_end_object(w);
    tinker_text_clear(&text);
    return true;
}

/* One list of [token, logprob] pairs per position of the prompt. The array is rectangular;
 * cells that are not used hold -99999 or less. */
static void put_topk(struct json_writer *w, const tinker_sample *s)
{
    if (!s->topk_tokens) {
        json_put_null(w);
        return;
    }
    json_put_begin_array(w);
    for (size_t i = 0; i < s->n_prompt; i++) {
        json_put_begin_array(w);
        for (size_t k = 0; k < s->topk; k++) {
            float logprob = s->topk_logprobs[i * s->topk + k];
            if (logprob <= -99999) /* an unused cell */
                continue;
            json_put_begin_array(w);
            json_put_int64(w, s->topk_tokens[i * s->topk + k]);
            json_put_float(w, logprob);
            json_put_end_array(w);
        }
        json_put_end_array(w);
    }
    json_put_end_array(w);
}

/* The whole result as one object. Numbers that were not asked for are null. */
static bool print_sample_json(const struct job *j, const tinker_future *f, const tinker_sample *s)
{
    struct buf b;
    struct json_writer w;
    size_t sampled = 0;
    bool ok = true;
    buf_init(&b, (size_t)1 << 31);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "model");
    json_put_string(&w, j->api->model);
    json_put_key(&w, "model_path");
    if (j->api->path)
        json_put_string(&w, j->api->path);
    else
        json_put_null(&w);
    json_put_key(&w, "prompt_tokens");
    json_put_array_int32(&w, j->prompt.ids, j->prompt.n);
    json_put_key(&w, "sequences");
    json_put_begin_array(&w);
    for (size_t i = 0; ok && i < s->n_sequences; i++) {
        ok = put_sequence(&w, j, &s->sequences[i]);
        sampled += s->sequences[i].n;
    }
    json_put_end_array(&w);
    json_put_key(&w, "prompt_logprobs");
    put_logprobs(&w, s->prompt_logprobs, s->n_prompt);
    json_put_key(&w, "topk_prompt_logprobs");
    put_topk(&w, s);
    json_put_key(&w, "usage");
    json_put_begin_object(&w);
    json_put_key(&w, "prompt");
    json_put_uint64(&w, j->prompt.n);
    json_put_key(&w, "sampled");
    json_put_uint64(&w, sampled);
    json_put_end_object(&w);
    json_put_key(&w, "latency_ms");
    json_put_int64(&w, (clock_now_ns(clock_real()) - j->start_ns) / 1000000);
    json_put_key(&w, "request_ids");
    json_put_begin_array(&w);
    json_put_string(&w, tinker_future_request_id(f));
    json_put_end_array(&w);
    json_put_end_object(&w);
    if (ok)
        out_json(&b);
    buf_clear(&b);
    return ok;
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* The text that appears while it is sampled. Written by a library thread; the main thread reads
 * the atomics after the wait and frees it after the future. */
struct screen {
    tinker_decoder *decoder;
    tinker_text text;
    atomic_bool begun;
    atomic_bool left; /* nobody reads it, or it cannot be written */
};

/* Called by a library thread for each token. The decoder holds back bytes until a character is
 * complete. Returns non-zero to stop sampling, when nobody reads the output any more. */
static int on_stream_event(const tinker_stream_event *e, void *state)
{
    struct screen *s = state;
    atomic_store(&s->begun, true);
    tinker_status status = e->kind == TINKER_STREAM_TOKEN
                               ? tinker_decoder_put(s->decoder, &e->token, 1, &s->text, NULL)
                               : tinker_decoder_end(s->decoder, &s->text, NULL);
    fwrite(s->text.s ? s->text.s : "", 1, s->text.n, stdout);
    s->text.n = 0;
    bool left = fflush(stdout) != 0;
    if (left)
        atomic_store(&s->left, true);
    return left || status != TINKER_OK;
}

/* Translate the options into the request. screen NULL: no streaming. The input is copied by the
 * call, so the arrays may end with it. */
static tinker_future *submit_sample(const struct job *j, tinker_sampler *s, struct screen *screen,
                                    tinker_error *err)
{
    const struct request *q = j->q;
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT,
                           .tokens = j->prompt.ids,
                           .n_tokens = j->prompt.n };
    tinker_model_input input = { &chunk, 1 };
    p.max_tokens = q->max_tokens;
    /* A seed may be any number, 0 and negative ones included: hence NO_SEED. */
    p.has_seed = q->seed != NO_SEED;
    p.seed = q->seed;
    p.temperature = q->temperature;
    p.top_k = q->top_k;
    p.top_p = q->top_p;
    if (j->n_stop) {
        p.n_stop = j->n_stop;
        if (j->stop_strings[0])
            p.stop_strings = j->stop_strings;
        else
            p.stop_tokens = j->stop_tokens;
    } else if (q->no_default_stop) {
        p.stop_tokens = j->stop_tokens; /* an empty list: not where the model itself ends, either */
    }
    o.num_samples = (size_t)q->n;
    o.prompt_logprobs = q->prompt_logprobs;
    o.topk_prompt_logprobs = (size_t)q->topk_prompt;
    return screen ? tinker_sampler_sample_stream(s, &input, &p, &o, on_stream_event, screen, err)
                  : tinker_sampler_sample(s, &input, &p, &o, err);
}

/* Sample with the text printed as it comes. A reader that left ends the stream without an
 * error, as with any other output. */
static int stream_to_screen(const struct job *j, tinker_sampler *s, struct screen *screen)
{
    tinker_error err;
    int status = EXIT_OK;
    tinker_future *f = submit_sample(j, s, screen, &err);
    bool ok = f && api_await(f, &err) == TINKER_OK;
    if (ok || atomic_load(&screen->begun))
        putchar('\n');
    if (ok) {
        const tinker_sequence *all = &tinker_future_sample(f)->sequences[0];
        print_token_ids(j, all);
        if (globals.verbose)
            report_sequence(all, 0);
    } else if (!atomic_load(&screen->left)) {
        status = api_fail(&err, f);
    }
    /* Order matters: the future stops the events before the caller frees the decoder. */
    tinker_future_free(f); /* then nobody writes to the screen */
    return status;
}

/* The decoder must outlive the future, whose events use it. */
static int stream_sample(const struct job *j, tinker_sampler *s)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    struct screen screen = { .text = TINKER_TEXT_INIT };
    tinker_error err;
    o.skip_special = !j->q->raw;
    screen.decoder = tinker_decoder_new(j->text.tokenizer, &o, &err);
    if (!screen.decoder)
        return text_model_fail_data(&err);
    int status = stream_to_screen(j, s, &screen);
    tinker_decoder_free(screen.decoder);
    tinker_text_clear(&screen.text);
    return status;
}

/* The latency counts from here: loading weights is not part of it. */
static int sample_with_sampler(struct job *j, tinker_sampler *s)
{
    tinker_error err;
    int status = EXIT_OK;
    if (j->q->stream)
        return stream_sample(j, s);
    j->start_ns = clock_now_ns(clock_real());
    tinker_future *f = api_wait(submit_sample(j, s, NULL, &err), &err, &status);
    if (!f)
        return status;
    const tinker_sample *sample = tinker_future_sample(f);
    bool ok = globals.json ? print_sample_json(j, f, sample) : print_sample_text(j, sample);
    tinker_future_free(f);
    return ok ? EXIT_OK : EXIT_DATA;
}

static int run_sample(struct api *a, struct job *j)
{
    j->api = a;
    int status = prepare_job(a, j);
    tinker_sampler *s = status == EXIT_OK ? prompt_model_sampler(a, &status) : NULL;
    if (s)
        status = sample_with_sampler(j, s);
    tinker_sampler_free(s);
    return status;
}

/* Option combinations the table cannot express; first problem wins. */
static bool check_sample_request(const struct opt_spec *spec, const struct request *q, int *status)
{
    int prompts = !!q->prompt + !!q->prompt_file + !!q->tokens_file + !!q->messages_file;
    *status = EXIT_USAGE;
    if (prompts > 1)
        opt_usage_error(spec, "Give one of PROMPT, --prompt-file, --tokens and --messages.");
    else if (q->raw && (q->renderer || q->system || q->messages_file))
        opt_usage_error(spec,
                        "--raw sends the text as it is: no --renderer, --system, --messages.");
    else if (q->tokens_file && (q->renderer || q->system))
        opt_usage_error(spec, "--tokens are sent as they are: no --renderer, --system.");
    else if (q->messages_file && q->system)
        opt_usage_error(spec, "--messages has all messages: no --system.");
    else if (q->stream && (globals.json || q->n != 1))
        opt_usage_error(spec, "--stream is for one text: no --json, no -n.");
    else if (q->n < 1 || q->n > 1024)
        opt_usage_error(spec, "Invalid value for '-n': must be 1 to 1024.");
    else if (q->max_tokens < 1 || q->topk_prompt < 0)
        opt_usage_error(spec, "--max-tokens must be 1 or more, --topk-prompt-logprobs 0 or more.");
    else
        *status = EXIT_OK;
    return *status == EXIT_OK;
}

/* Exit codes: 2 for options that exclude each other, 5 for an unknown model, 8 for a prompt
 * that cannot be encoded, else as for any request. */
int cmd_sample(int argc, char **argv)
{
    struct request q = {
        .n = 1, .max_tokens = 512, .top_k = -1, .seed = NO_SEED, .temperature = 1, .top_p = 1
    };
    const struct opt opts[] = {
        { "model", 'm', OPT_STRING, "MODEL", "a base model of the service", &q.model, NULL },
        { "path", 'p', OPT_STRING, "PATH",
          "saved weights: tinker://RUN/sampler_weights/NAME, a run, or last", &q.path, NULL },
        { "tokenizer", 0, OPT_STRING, "DIR", "where the tokenizer is, if not found by the model",
          &q.tokenizer, NULL },
        { "prompt-file", 0, OPT_STRING, "F", "read the prompt from this file", &q.prompt_file,
          NULL },
        { "tokens", 0, OPT_STRING, "F", "read the prompt as token ids from this file",
          &q.tokens_file, NULL },
        { "messages", 0, OPT_STRING, "F", "read a conversation, as JSON, from this file",
          &q.messages_file, NULL },
        /* How the prompt becomes tokens. */
        { "raw", 0, OPT_FLAG, NULL, "send the text as it is", &q.raw, NULL },
        { "renderer", 0, OPT_STRING, "NAME", "chat format (default: the model's own)", &q.renderer,
          NULL },
        { "system", 0, OPT_STRING, "TEXT", "a system message before the prompt", &q.system, NULL },
        /* How tokens are chosen. */
        { "num", 'n', OPT_INT, "N", "how many samples (default 1)", &q.n, NULL },
        { "max-tokens", 0, OPT_INT, "N", "longest sample (default 512)", &q.max_tokens, NULL },
        { "temperature", 0, OPT_DOUBLE, "T", "0 takes the likeliest token (default 1)",
          &q.temperature, NULL },
        { "top-p", 0, OPT_DOUBLE, "P", "only the likeliest tokens up to this mass", &q.top_p,
          NULL },
        { "top-k", 0, OPT_INT, "K", "only the K likeliest tokens", &q.top_k, NULL },
        { "seed", 0, OPT_INT, "S", "random seed, for repeatable samples", &q.seed, NULL },
        /* Where a sample ends. */
        { "stop", 0, OPT_LIST, "TEXT", "end at this text; repeatable", &q.stop, NULL },
        { "stop-token", 0, OPT_LIST, "ID", "end at this token; repeatable", &q.stop_tokens, NULL },
        { "no-default-stop", 0, OPT_FLAG, NULL, "do not stop at the model's own stop sequences",
          &q.no_default_stop, NULL },
        /* What is printed. */
        { "prompt-logprobs", 0, OPT_FLAG, NULL, "logprobs of the prompt too (with --json)",
          &q.prompt_logprobs, NULL },
        { "topk-prompt-logprobs", 0, OPT_INT, "K",
          "also the K most likely tokens at each prompt position", &q.topk_prompt, NULL },
        { "stream", 0, OPT_FLAG, NULL, "print the text while it is made", &q.stream, NULL },
        { "show-tokens", 0, OPT_FLAG, NULL, "print the token ids below each text", &q.show_tokens,
          NULL },
    };
    const struct opt_arg args[] = { { "PROMPT", &q.prompt, true, NULL } };
    const struct opt_spec spec = { "sample",
                                   "Continue a prompt.  PROMPT \"-\", or none, reads standard "
                                   "input.",
                                   opts,
                                   ARRAY_LEN(opts),
                                   args,
                                   1,
                                   "tinker sample -m tinker/tiny 'Hello' --max-tokens 20" };
    struct job j = { .q = &q, .prompt = TINKER_TOKENS_INIT };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !check_sample_request(&spec, &q, &status) ||
        !api_open_model(&a, q.model, q.path, &status))
        return status;
    status = run_sample(&a, &j);
    clear_job(&j);
    api_close(&a);
    return status;
}
