/* cmd_logprobs.c - `tinker logprobs`: how likely a given text is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/listing.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/sample/sample_job.h"
#include "cli/text/text_model.h"

/* The options as given; one of text, file and tokens, or standard input. */
struct request {
    const char *model, *path, *tokenizer, *text, *file, *tokens;
    int64_t topk;
};

/* A line break would end the row of the table. */
static void put_piece(struct listing *l, const struct prompt_model *text, int32_t id)
{
    /* Decoded one by one: a character that is spread over several tokens shows as replacement
     * marks. */
    tinker_text piece = TINKER_TEXT_INIT;
    struct buf shown;
    tinker_tokenizer_decode(text->tokenizer, &id, 1, NULL, &piece, NULL);
    buf_init(&shown, 1 << 16);
    for (size_t i = 0; i < piece.n; i++)
        buf_printf(&shown, piece.s[i] == '\n' ? "\\n" : "%c", piece.s[i]);
    listing_cell(l, buf_ok(&shown) && shown.data ? shown.data : "");
    buf_clear(&shown);
    tinker_text_clear(&piece);
}

/* "12 -0.31, 7 -2.10": the likeliest tokens at a position.
 * Unused cells of the rectangle have a log-probability of -99999. */
static void put_rivals(struct listing *l, const tinker_sample *s, size_t i)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "");
    for (size_t k = 0; s->topk_tokens && k < s->topk; k++) {
        float logprob = s->topk_logprobs[i * s->topk + k];
        if (logprob > -99999)
            buf_printf(&b, "%s%d %.2f", b.len ? ", " : "", (int)s->topk_tokens[i * s->topk + k],
                       (double)logprob);
    }
    listing_cell(l, buf_ok(&b) && b.data ? b.data : "");
    buf_clear(&b);
}

/* The title sums up: perplexity is exp of the negative mean, the number that papers give. */
static int show_scores(const struct request *q, const struct prompt_model *text,
                       const struct sample_job *j, const tinker_sample *s)
{
    static const char *const columns[] = { "Position", "Token", "Text", "Logprob", "Likeliest" };
    struct listing l;
    double sum = 0;
    size_t scored = 0;
    char title[128];
    /* Without --topk the last column is left off. */
    listing_init(&l, columns, q->topk ? 5 : 4);
    for (size_t i = 0; i < j->prompt.n && i < s->n_prompt; i++) {
        /* The first token has none: nothing predicts it.  It is not part of the mean. */
        float logprob = s->prompt_logprobs ? s->prompt_logprobs[i] : NAN;
        if (!isnan(logprob)) {
            sum += logprob;
            scored++;
        }
        /* Counted from 0, as positions of prompt_logprobs are. */
        listing_cellf(&l, "%zu", i);
        listing_cellf(&l, "%d", (int)j->prompt.ids[i]);
        put_piece(&l, text, j->prompt.ids[i]);
        if (isnan(logprob))
            listing_cell(&l, "");
        else
            listing_cellf(&l, "%.4f", (double)logprob);
        if (q->topk)
            put_rivals(&l, s, i);
        struct json_writer *w = listing_object(&l);
        json_put_begin_object(w);
        json_put_key(w, "token");
        json_put_int64(w, j->prompt.ids[i]);
        /* NaN becomes null. */
        rows_put_real(w, "logprob", (double)logprob);
        json_put_end_object(w);
        listing_object_end(&l);
    }
    /* NaN if nothing was scored, which prints as nan rather than as a wrong figure. */
    double mean = scored ? sum / (double)scored : NAN;
    snprintf(title, sizeof(title), "%zu tokens, mean %.4f, perplexity %.4g", j->prompt.n, mean,
             exp(-mean));
    return listing_print(&l, title, "{\"tokens\":[");
}

/* raw: the text is scored as it is, without a chat format around it. */
static int score_text(const struct request *q, struct api *a)
{
    const struct prompt_choice choice = { .tokenizer = q->tokenizer, .raw = true };
    /* One token is sampled because the API has no request that samples none; it is not shown. */
    const struct sample_params params = {
        .n = 1,
        .how = { .size = sizeof(tinker_sampling_params), .max_tokens = 1, .top_k = -1, .top_p = 1 },
        .prompt_logprobs = true,
        .topk_prompt = q->topk
    };
    struct prompt_model text;
    struct sample_job j;
    tinker_error err;
    const char *file = q->tokens ? q->tokens : q->file;
    /* What was read from a file or from standard input; an argument needs no copy. */
    char *read = NULL;
    size_t n = q->text ? strlen(q->text) : 0;
    int status = prompt_model_open(&text, a, &choice);
    if (status != EXIT_OK)
        return status;
    /* The job of `tinker sample` is used as it is: a score is a sample that nobody looks at. */
    sample_job_init(&j, &text, &params);
    if (!q->text || strcmp(q->text, "-") == 0)
        /* Without any source the text is read from standard input, as everywhere. */
        text_model_read(file ? file : "-", &read, &n, &status);
    if (status == EXIT_OK && q->tokens)
        status = text_model_all_ids(file, read, n, &j.prompt);
    else if (status == EXIT_OK &&
             (sample_job_set_text(&j, read ? read : q->text, n, &err) != TINKER_OK ||
              sample_job_set_stops(&j, &err) != TINKER_OK))
        status = text_model_fail_data(&err);
    /* The first token has no log-probability, so one token has none at all. */
    if (status == EXIT_OK && j.prompt.n < 2)
        status = out_fail(EXIT_DATA, NULL, "a text of one token has nothing to score");
    /* The model is loaded only when the text is known to be good. */
    tinker_sampler *s = status == EXIT_OK ? prompt_model_sampler(a, &status) : NULL;
    tinker_future *f =
        s ? api_wait(sample_job_submit(&j, s, NULL, NULL, &err), &err, &status) : NULL;
    if (f)
        status = show_scores(q, &text, &j, tinker_future_sample(f));
    tinker_future_free(f);
    tinker_sampler_free(s);
    sample_job_clear(&j);
    free(read);
    prompt_model_close(&text);
    return status;
}

/* No service call scores a text alone; prompt_logprobs of a sample does. */
int cmd_logprobs(int argc, char **argv)
{
    struct request q = { 0 };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a base model, or the directory of one",
          .out = &q.model },
        { .name = "path",
          .letter = 'p',
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "saved weights: tinker://RUN/sampler_weights/NAME, a run, or last",
          .out = &q.path },
        { .name = "tokenizer",
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "where the tokenizer is, if not found by the model",
          .out = &q.tokenizer },
        { .name = "file",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read the text from this file",
          .out = &q.file },
        { .name = "tokens",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read token ids from this file",
          .out = &q.tokens },
        { .name = "topk",
          .kind = OPT_INT,
          .value = "K",
          .help = "also the K likeliest tokens at each position",
          .out = &q.topk },
    };
    const struct opt_arg args[] = { { .name = "TEXT", .out = &q.text, .optional = true } };
    const struct opt_spec spec = {
        .command = "logprobs",
        .about = "Score a text: the log probability of each of its tokens.  It is sent as it is.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker logprobs 'Once there was a cat'"
    };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!!q.text + !!q.file + !!q.tokens > 1)
        return opt_usage_error(&spec, "Give one of TEXT, --file and --tokens.");
    /* A bound on what one response may hold: K numbers for each token of the prompt. */
    if (q.topk < 0 || q.topk > 1000)
        return opt_usage_error(&spec, "Invalid value for '--topk': must be 0 to 1000.");
    if (!api_open_model(&a, q.model, q.path, &status))
        return status;
    status = score_text(&q, &a);
    api_close(&a);
    return status;
}
