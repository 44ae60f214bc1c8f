/* cmd_sample.c - `tinker sample`: continue prompts with a base model or saved weights.
 *
 * A chat model sees the prompt as one user message in its own format, unless --raw.  stdout
 * has the texts, stderr the numbers about them. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/sample/sample_batch.h"
#include "cli/text/text_model.h"

/* The options as given. */
struct request {
    const char *model, *path, *tokenizer, *renderer, *system, *out;
    const char *prompt, *prompt_file, *tokens_file, *messages_file, *in; /* one of these */
    bool raw, show_tokens, stream, logprobs, unordered, resume;
    int64_t concurrency;
    struct sample_params params;
};

/* ---- one prompt --------------------------------------------------------------------------------- */

/* The prompt from the one source that was given; standard input if there is none.
 * An empty prompt is refused: a chat format would make a question of nothing, and a raw one has
 * no last token to continue. */
static int read_prompt(const struct request *q, struct sample_job *j)
{
    const char *file = q->messages_file ? q->messages_file
                       : q->tokens_file ? q->tokens_file
                                        : q->prompt_file;
    char *text = NULL;
    size_t n = 0;
    int status;
    tinker_error err;
    if (!file && q->prompt && strcmp(q->prompt, "-") != 0)
        return sample_job_set_text(j, q->prompt, strlen(q->prompt), &err) == TINKER_OK
                   ? EXIT_OK
                   : text_model_fail_data(&err);
    /* For messages: people must know which of the sources was empty. */
    const char *where = file && strcmp(file, "-") != 0 ? file : "standard input";
    if (!text_model_read(file ? file : "-", &text, &n, &status))
        return status;
    if (q->tokens_file && n) {
        status = text_model_all_ids(file, text, n, &j->prompt);
    } else if (n == 0) {
        status = out_fail(EXIT_DATA, NULL, "%s is empty", where);
    } else {
        tinker_status got = q->messages_file ? sample_job_set_messages(j, text, n, &err)
                                             : sample_job_set_text(j, text, n, &err);
        status =
            got == TINKER_OK ? EXIT_OK : out_fail(EXIT_DATA, NULL, "%s: %s", where, err.message);
    }
    free(text);
    if (status == EXIT_OK && j->prompt.n == 0)
        status = out_fail(EXIT_DATA, NULL, "the prompt is empty");
    return status;
}

/* The numbers about a sample go to stderr, so that stdout has only text. The mean is over all
 * sampled tokens; 0 without logprobs. */
static void report_sequence(const tinker_sequence *s, size_t i)
{
    double sum = 0;
    for (size_t k = 0; s->logprobs && k < s->n; k++)
        sum += s->logprobs[k];
    out_say("# sample %zu (stop_reason=%s, tokens=%zu, avg_logprob=%.3f)", i + 1,
            sample_stop_name(s->stop_reason), s->n, s->n ? sum / (double)s->n : 0);
}

/* Comment lines, so that they are told apart from sampled text. */
static void print_details(const struct request *q, const struct sample_job *j,
                          const tinker_sequence *s)
{
    for (size_t k = 0; q->show_tokens && k < s->n; k++)
        printf("%s%d%s", k ? " " : "# ", (int)s->tokens[k], k + 1 == s->n ? "\n" : "");
    for (size_t k = 0; q->logprobs && s->logprobs && k < s->n; k++) {
        tinker_text piece = TINKER_TEXT_INIT;
        tinker_tokenizer_decode(j->text->tokenizer, &s->tokens[k], 1, NULL, &piece, NULL);
        printf("# %10.4f  %6d  ", (double)s->logprobs[k], (int)s->tokens[k]);
        for (size_t i = 0; i < piece.n; i++) {
            if (piece.s[i] == '\n')
                fputs("\\n", stdout);
            else
                putchar((unsigned char)piece.s[i] < 0x20 ? '?' : piece.s[i]);
        }
        putchar('\n');
        tinker_text_clear(&piece);
    }
}

/* Each text is flushed at once: a reader behind a pipe sees the first before the last. */
static int print_sample_text(const struct request *q, const struct sample_job *j,
                             const tinker_sample *sample)
{
    tinker_error err;
    for (size_t i = 0; i < sample->n_sequences; i++) {
        const tinker_sequence *s = &sample->sequences[i];
        tinker_text text = TINKER_TEXT_INIT;
        if (sample_decode(j, s, q->raw, &text, &err) != TINKER_OK)
            return text_model_fail_data(&err);
        /* A single sample is printed without remarks, for pipes. */
        if (sample->n_sequences > 1 || globals.verbose)
            report_sequence(s, i);
        fwrite(text.s ? text.s : "", 1, text.n, stdout);
        putchar('\n');
        print_details(q, j, s);
        out_flush();
        tinker_text_clear(&text);
    }
    return EXIT_OK;
}

/* The whole result as one object. Numbers that were not asked for are null. */
static int print_sample_json(const struct request *q, const struct api *a,
                             const struct sample_job *j, const tinker_future *f)
{
    struct buf b;
    struct json_writer w;
    tinker_error err;
    /* Bounds the document: many long samples with their log-probabilities. */
    buf_init(&b, (size_t)1 << 31);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    rows_put_text(&w, "model", a->model);
    rows_put_text(&w, "model_path", a->path);
    json_put_key(&w, "prompt_tokens");
    json_put_array_int32(&w, j->prompt.ids, j->prompt.n);
    tinker_status status = sample_put_result(&w, j, q->raw, tinker_future_sample(f), &err);
    json_put_key(&w, "latency_ms");
    /* From submission, without the time to load a model or a tokenizer. */
    json_put_int64(&w, (clock_now_ns(clock_real()) - j->start_ns) / 1000000);
    json_put_key(&w, "request_ids");
    json_put_begin_array(&w);
    /* A list, because the SDK may split a request; here there is one. */
    json_put_string(&w, tinker_future_request_id(f));
    json_put_end_array(&w);
    json_put_end_object(&w);
    if (status == TINKER_OK)
        out_json(&b);
    buf_clear(&b);
    return status == TINKER_OK ? EXIT_OK : text_model_fail_data(&err);
}

/* ---- while it is made ----------------------------------------------------------------------------- */

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
    /* The memory is kept for the next token. */
    s->text.n = 0;
    bool left = fflush(stdout) != 0;
    if (left)
        atomic_store(&s->left, true);
    return left || status != TINKER_OK;
}

/* Sample with the text printed as it comes. A reader that left ends the stream without an
 * error, as with any other output. The decoder must outlive the future, whose events use it. */
static int stream_sample(const struct request *q, struct sample_job *j, tinker_sampler *s)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    struct screen screen = { .text = TINKER_TEXT_INIT };
    tinker_error err;
    int status = EXIT_OK;
    /* --raw shows what was sampled, control tokens included. */
    o.skip_special = !q->raw;
    screen.decoder = tinker_decoder_new(j->text->tokenizer, &o, &err);
    if (!screen.decoder)
        return text_model_fail_data(&err);
    tinker_future *f = sample_job_submit(j, s, on_stream_event, &screen, &err);
    bool ok = f && api_await(f, &err) == TINKER_OK;
    /* What was printed so far ends with a line end, also when it was cut off. */
    if (ok || atomic_load(&screen.begun))
        putchar('\n');
    if (ok) {
        const tinker_sequence *all = &tinker_future_sample(f)->sequences[0];
        print_details(q, j, all);
        if (globals.verbose)
            report_sequence(all, 0);
    } else if (!atomic_load(&screen.left)) {
        /* A reader that has left wants no message about it. */
        status = api_fail(&err, f);
    }
    tinker_future_free(f); /* then nobody writes to the screen */
    tinker_decoder_free(screen.decoder);
    tinker_text_clear(&screen.text);
    return status;
}

/* ---- running -------------------------------------------------------------------------------------- */

/* Stops first, prompt second: a wrong option should show before a long text is read. */
static int sample_one(const struct request *q, struct api *a, const struct prompt_model *text,
                      tinker_sampler *s)
{
    struct sample_job j;
    tinker_error err;
    sample_job_init(&j, text, &q->params);
    j.system = q->system;
    int status = sample_job_set_stops(&j, &err) == TINKER_OK
                     ? EXIT_OK
                     : out_fail(EXIT_USAGE, NULL, "%s", err.message);
    if (status == EXIT_OK)
        status = read_prompt(q, &j);
    if (status == EXIT_OK && q->stream) {
        status = stream_sample(q, &j, s);
    } else if (status == EXIT_OK) {
        tinker_future *f = api_wait(sample_job_submit(&j, s, NULL, NULL, &err), &err, &status);
        if (f)
            status = globals.json ? print_sample_json(q, a, &j, f)
                                  : print_sample_text(q, &j, tinker_future_sample(f));
        tinker_future_free(f);
    }
    sample_job_clear(&j);
    return status;
}

/* --out of a single sample: standard output goes there.
 * An existing file is replaced, as a shell's > would. */
static int redirect_output(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    /* The file becomes standard output, so that text, JSON and details need no other way to
     * print. */
    bool ok = fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0;
    /* close() may overwrite it. */
    int reason = errno;
    if (fd >= 0)
        close(fd);
    return ok ? EXIT_OK : out_fail(EXIT_IO, NULL, "open %s: %s", path, strerror(reason));
}

/* One prompt or a file of them; the model's text side and the sampler are the same for both. */
static int run_sample(const struct request *q, struct api *a)
{
    /* Token ids need no format; messages always need one. */
    const struct prompt_choice choice = { .tokenizer = q->tokenizer,
                                          .renderer = q->renderer,
                                          .raw = q->raw || q->tokens_file,
                                          .chat = q->messages_file };
    struct prompt_model text;
    int status = prompt_model_open(&text, a, &choice);
    if (status != EXIT_OK)
        return status;
    /* A system message without a format would be text before the prompt, which nobody means. */
    if (q->system && !text.renderer)
        status = out_fail(EXIT_USAGE, "Give one with --renderer NAME.",
                          "--system needs a chat format, and %s has none of its own", a->model);
    /* A batch writes its file itself, line by line. */
    if (status == EXIT_OK && q->out && !q->in)
        status = redirect_output(q->out);
    tinker_sampler *s = status == EXIT_OK ? prompt_model_sampler(a, &status) : NULL;
    if (s && q->in) {
        const struct sample_batch batch = { .in = q->in,
                                            .out = q->out,
                                            .text = &text,
                                            .params = &q->params,
                                            .system = q->system,
                                            .concurrency = q->concurrency,
                                            .unordered = q->unordered,
                                            .resume = q->resume,
                                            .raw = q->raw };
        status = sample_batch_run(&batch, s);
    } else if (s) {
        status = sample_one(q, a, &text, s);
    }
    tinker_sampler_free(s);
    prompt_model_close(&text);
    return status;
}

/* Option combinations the table cannot express; first problem wins.
 * Checked before connecting, so that a wrong command line costs nothing. */
static bool check_sample_request(const struct opt_spec *spec, const struct request *q)
{
    const struct sample_params *p = &q->params;
    int prompts = !!q->prompt + !!q->prompt_file + !!q->tokens_file + !!q->messages_file + !!q->in;
    if (prompts > 1)
        opt_usage_error(spec, "Give one of PROMPT, --prompt-file, --tokens, --messages and --in.");
    else if (q->raw && (q->renderer || q->system || q->messages_file))
        opt_usage_error(spec,
                        "--raw sends the text as it is: no --renderer, --system, --messages.");
    else if (q->tokens_file && (q->renderer || q->system))
        opt_usage_error(spec, "--tokens are sent as they are: no --renderer, --system.");
    else if (q->messages_file && q->system)
        opt_usage_error(spec, "--messages has all messages: no --system.");
    else if (q->stream && (globals.json || p->n != 1 || q->in))
        opt_usage_error(spec, "--stream is for one text: no --json, no -n, no --in.");
    else if (p->n < 1 || p->n > SAMPLE_MAX_NUM)
        opt_usage_error(spec, "Invalid value for '-n': must be 1 to %d.", SAMPLE_MAX_NUM);
    else if (p->how.max_tokens < 1 || p->topk_prompt < 0)
        opt_usage_error(spec, "--max-tokens must be 1 or more, --topk-prompt-logprobs 0 or more.");
    else if (!q->in && (q->unordered || q->resume))
        opt_usage_error(spec, "--unordered and --resume belong to --in.");
    else if (q->resume && (!q->out || strcmp(q->out, "-") == 0))
        opt_usage_error(spec, "--resume goes on with the file of --out.");
    else if (q->concurrency < 1 || q->concurrency > 10000)
        opt_usage_error(spec, "Invalid value for '--concurrency': must be 1 to 10000.");
    else
        return true;
    return false;
}

/* A table from top to bottom: the options in the order of --help, then what they must agree on.
 * false: return *status. */
static bool parse_sample_request(struct request *q, int argc, char **argv, int *status)
{
    *q = (struct request){ .concurrency = 64,
                           .params = { .n = 1,
                                       .how = { .size = sizeof(tinker_sampling_params),
                                                .max_tokens = 512,
                                                .top_k = -1,
                                                .seed = SAMPLE_NO_SEED,
                                                .temperature = 1,
                                                .top_p = 1 } } };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a base model, or the directory of one",
          .out = &q->model },
        { .name = "path",
          .letter = 'p',
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "saved weights: tinker://RUN/sampler_weights/NAME, a run, or last",
          .out = &q->path },
        { .name = "tokenizer",
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "where the tokenizer is, if not found by the model",
          .out = &q->tokenizer },
        /* Where the prompt is from. */
        { .name = "prompt-file",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read the prompt from this file",
          .out = &q->prompt_file },
        { .name = "tokens",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read the prompt as token ids from this file",
          .out = &q->tokens_file },
        { .name = "messages",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read a conversation, as JSON, from this file",
          .out = &q->messages_file },
        { .name = "in",
          .kind = OPT_STRING,
          .value = "F",
          .help = "many prompts: JSON lines with prompt, messages or tokens, and id",
          .out = &q->in },
        /* How the prompt becomes tokens. */
        { .name = "raw", .kind = OPT_FLAG, .help = "send the text as it is", .out = &q->raw },
        { .name = "renderer",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "chat format (default: that of the run, else the model's own)",
          .out = &q->renderer },
        { .name = "system",
          .kind = OPT_STRING,
          .value = "TEXT",
          .help = "a system message before the prompt",
          .out = &q->system },
        /* How tokens are chosen. */
        { .name = "num",
          .letter = 'n',
          .kind = OPT_INT,
          .value = "N",
          .help = "how many samples (default 1)",
          .out = &q->params.n },
        { .name = "max-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "longest sample (default 512)",
          .out = &q->params.how.max_tokens },
        { .name = "temperature",
          .kind = OPT_DOUBLE,
          .value = "T",
          .help = "0 takes the likeliest token (default 1)",
          .out = &q->params.how.temperature },
        { .name = "top-p",
          .kind = OPT_DOUBLE,
          .value = "P",
          .help = "only the likeliest tokens up to this mass",
          .out = &q->params.how.top_p },
        { .name = "top-k",
          .kind = OPT_INT,
          .value = "K",
          .help = "only the K likeliest tokens",
          .out = &q->params.how.top_k },
        { .name = "min-p",
          .kind = OPT_DOUBLE,
          .value = "P",
          .help = "only tokens at least P times as likely as the likeliest",
          .out = &q->params.how.min_p },
        { .name = "repetition-penalty",
          .kind = OPT_DOUBLE,
          .value = "R",
          .help = "make tokens of prompt and sample less likely (1: off)",
          .out = &q->params.how.repetition_penalty },
        { .name = "presence-penalty",
          .kind = OPT_DOUBLE,
          .value = "R",
          .help = "make tokens of the sample less likely",
          .out = &q->params.how.presence_penalty },
        { .name = "frequency-penalty",
          .kind = OPT_DOUBLE,
          .value = "R",
          .help = "the same for each time they are there",
          .out = &q->params.how.frequency_penalty },
        { .name = "seed",
          .kind = OPT_INT,
          .value = "S",
          .help = "random seed, for repeatable samples",
          .out = &q->params.how.seed },
        /* Where a sample ends. */
        { .name = "stop",
          .kind = OPT_LIST,
          .value = "TEXT",
          .help = "end at this text; repeatable",
          .out = &q->params.stop },
        { .name = "stop-token",
          .kind = OPT_LIST,
          .value = "ID",
          .help = "end at this token; repeatable",
          .out = &q->params.stop_tokens },
        { .name = "no-default-stop",
          .kind = OPT_FLAG,
          .help = "do not stop at the model's own stop sequences",
          .out = &q->params.no_default_stop },
        /* What is printed. */
        { .name = "logprobs",
          .kind = OPT_FLAG,
          .help = "print the logprob of each token below the text",
          .out = &q->logprobs },
        { .name = "prompt-logprobs",
          .kind = OPT_FLAG,
          .help = "logprobs of the prompt too (with --json)",
          .out = &q->params.prompt_logprobs },
        { .name = "topk-prompt-logprobs",
          .kind = OPT_INT,
          .value = "K",
          .help = "also the K most likely tokens at each prompt position",
          .out = &q->params.topk_prompt },
        { .name = "stream",
          .kind = OPT_FLAG,
          .help = "print the text while it is made",
          .out = &q->stream },
        { .name = "show-tokens",
          .kind = OPT_FLAG,
          .help = "print the token ids below each text",
          .out = &q->show_tokens },
        { .name = "out",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "F",
          .help = "write the result to this file",
          .out = &q->out },
        /* Many prompts. */
        { .name = "concurrency",
          .kind = OPT_INT,
          .value = "N",
          .help = "requests at the same time, with --in (default 64)",
          .out = &q->concurrency },
        { .name = "unordered",
          .kind = OPT_FLAG,
          .help = "write results as they come, not in the order of the input",
          .out = &q->unordered },
        { .name = "resume",
          .kind = OPT_FLAG,
          .help = "skip what --out has already",
          .out = &q->resume },
    };
    const struct opt_arg args[] = { { .name = "PROMPT", .out = &q->prompt, .optional = true } };
    const struct opt_spec spec = {
        .command = "sample",
        .about = "Continue a prompt, or many.  PROMPT \"-\", or none, reads standard input.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker sample 'Hello' --max-tokens 20"
    };
    if (!opt_parse(&spec, argc, argv, status))
        return false;
    *status = EXIT_USAGE;
    return check_sample_request(&spec, q);
}

/* Exit codes: 2 for options that exclude each other, 4 when lines of a batch failed, 5 for an
 * unknown model, 8 for a prompt that cannot be encoded, else as for any request. */
int cmd_sample(int argc, char **argv)
{
    struct request q;
    struct api a;
    int status;
    if (!parse_sample_request(&q, argc, argv, &status) ||
        !api_open_model(&a, q.model, q.path, &status))
        return status;
    status = run_sample(&q, &a);
    api_close(&a);
    return status;
}
