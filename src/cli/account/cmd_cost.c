/* cmd_cost.c - `tinker cost` estimates what a dataset takes, `tinker cost usage` sums up what was
 * used.
 *
 * Prices are the user's, in dollars per million tokens: the service publishes none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tinker/extra/account.h>
#include <tinker/extra/names.h>
#include <tinker/recipe.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"
#include "cli/text/text_model.h"

/* ---- an estimate ---------------------------------------------------------------------------------- */

/* What the options of `tinker cost` say. */
struct estimate {
    const char *data, *model, *renderer;
    int64_t epochs, samples, max_tokens;
    double train_price, prefill_price, sample_price; /* NaN: not given */
};

/* What the file holds: tokens of all rows, and those of them that carry weight. */
struct counts {
    int64_t rows, tokens, trained;
};

/* Tokens of all rows, as training would render them in the chat format of the model. */
static int count_tokens(const struct estimate *e, struct counts *c)
{
    int status = EXIT_OK;
    tinker_error err;
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    tinker_tokenizer *t =
        text_model_load(e->model, "Fetch it: tinker models pull --tokenizer-only NAME", &status);
    if (!t)
        return status;
    const char *name = e->renderer ? e->renderer : tinker_renderer_for(e->model, t);
    tinker_renderer *r = tinker_renderer_new(name, t, NULL, &err);
    /* Nothing is cut: an estimate counts what is in the file.  Rows that are longer than the
     * model's context will cost less, as training drops them. */
    o.max_length = SIZE_MAX;
    tinker_rows *rows = r ? tinker_rows_load(e->data, r, t, &o, &err) : NULL;
    if (rows) {
        tinker_rows_stats s = tinker_rows_count(rows);
        c->rows = (int64_t)s.rows;
        c->tokens = (int64_t)s.tokens;
        c->trained = (int64_t)s.trained;
    } else {
        /* The same failure means three things to a caller: a wrong --renderer, rows that cannot
         * be read, or no such file. */
        int why = !r ? EXIT_USAGE : access(e->data, R_OK) == 0 ? EXIT_DATA : EXIT_IO;
        status = out_fail(why, NULL, "%s", err.message);
    }
    tinker_rows_free(rows);
    tinker_renderer_free(r);
    tinker_tokenizer_free(t);
    return status;
}

/* Dollars for so many tokens; NaN in, NaN out: an unknown price makes an unknown cost, not 0. */
static double price_tokens(double tokens, double per_million)
{
    return tokens / 1e6 * per_million;
}

/* Four decimals: small models cost fractions of a cent per run. */
static void put_money(struct listing *l, const char *name, double usd)
{
    listing_cell(l, name);
    if (isnan(usd))
        listing_cell(l, "unknown: give a price");
    else
        listing_cellf(l, "$%.4f", usd);
}

/* A sample's prompt is what of its row is not trained on; its length is a bound, not a guess. */
static int print_estimate(const struct estimate *e, const struct counts *c)
{
    struct listing l;
    /* Every token of a row is computed in training, not only the trained ones, and that is what
     * is paid. */
    double train = (double)(c->tokens * e->epochs);
    /* A prompt is computed, and paid for, once for all of its samples. */
    double prompts = (double)(c->tokens - c->trained) * (e->samples > 0 ? 1 : 0);
    double sampled = (double)(c->rows * e->samples * e->max_tokens);
    double train_usd = price_tokens(train, e->train_price);
    double sample_usd = e->samples ? price_tokens(prompts, e->prefill_price) +
                                         price_tokens(sampled, e->sample_price)
                                   : 0;
    listing_init(&l, rows_properties, 2);
    listing_cell(&l, "Rows");
    listing_cellf(&l, "%lld", (long long)c->rows);
    listing_cell(&l, "Tokens, trained ones");
    listing_cellf(&l, "%lld, %lld", (long long)c->tokens, (long long)c->trained);
    listing_cell(&l, "Training tokens");
    listing_cellf(&l, "%.0f in %lld epoch%s", train, (long long)e->epochs,
                  e->epochs == 1 ? "" : "s");
    put_money(&l, "Training cost", train_usd);
    /* Without --samples the answer is about training alone. */
    if (e->samples) {
        listing_cell(&l, "Sampled tokens");
        listing_cellf(&l, "%.0f at most", sampled);
        put_money(&l, "Sampling cost", sample_usd);
    }
    struct json_writer *w = listing_object(&l);
    json_put_begin_object(w);
    rows_put_count(w, "rows", c->rows);
    rows_put_count(w, "tokens", c->tokens);
    rows_put_count(w, "trained_tokens", c->trained);
    rows_put_real(w, "training_tokens", train);
    rows_put_real(w, "sampled_tokens", sampled);
    rows_put_real(w, "training_usd", train_usd);
    rows_put_real(w, "sampling_usd", sample_usd);
    json_put_end_object(w);
    listing_object_end(&l);
    return listing_print_one(&l, "Estimate");
}

/* No service is asked, except where the tokenizer must be found: the estimate works offline. */
int cmd_cost(int argc, char **argv)
{
    struct estimate e = { .epochs = 1,
                          .max_tokens = 512,
                          .train_price = NAN,
                          .prefill_price = NAN,
                          .sample_price = NAN };
    const struct opt opts[] = {
        { .name = "data",
          .kind = OPT_STRING,
          .value = "F",
          .help = "rows to train on, as tinker train takes them",
          .out = &e.data },
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "whose tokenizer and chat format count (default tinker/tiny)",
          .out = &e.model },
        { .name = "renderer",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "chat format (default: the model's own)",
          .out = &e.renderer },
        { .name = "epochs",
          .kind = OPT_INT,
          .value = "N",
          .help = "times over the data (default 1)",
          .out = &e.epochs },
        { .name = "samples",
          .kind = OPT_INT,
          .value = "N",
          .help = "samples for each row, too (default 0)",
          .out = &e.samples },
        { .name = "max-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "of a sample (default 512)",
          .out = &e.max_tokens },
        { .name = "train-price",
          .kind = OPT_DOUBLE,
          .value = "USD",
          .help = "of a million trained tokens",
          .out = &e.train_price },
        { .name = "prefill-price",
          .kind = OPT_DOUBLE,
          .value = "USD",
          .help = "of a million tokens of prompts",
          .out = &e.prefill_price },
        { .name = "sample-price",
          .kind = OPT_DOUBLE,
          .value = "USD",
          .help = "of a million sampled tokens",
          .out = &e.sample_price },
    };
    const struct opt_spec spec = {
        .command = "cost",
        .about = "Count the tokens of a dataset and estimate what training on it costs.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .example = "tinker cost --data mine.jsonl -m tinker/tiny --epochs 3 --train-price 0.40"
    };
    struct counts c = { 0 };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!e.data)
        return opt_usage_error(&spec, "Missing option '--data'.");
    if (e.epochs < 1 || e.samples < 0 || e.max_tokens < 1)
        return opt_usage_error(&spec,
                               "--epochs and --max-tokens are 1 or more, --samples 0 or more.");
    /* The bundled model needs no download. */
    if (!e.model)
        e.model = "tinker/tiny";
    status = count_tokens(&e, &c);
    return status == EXIT_OK ? print_estimate(&e, &c) : status;
}

/* ---- usage ------------------------------------------------------------------------------------------ */

/* Sums of one group: a model, a session, a user, a kind or a day. */
struct total {
    char key[256];
    int64_t trained, prefilled, sampled;
    double gigabyte_hours, usd;
};

/* A day is the first ten characters of a time, 2026-07-13. */
static void make_key(const tinker_billing_event *e, const char *by, char out[256])
{
    char time[FMT_TEXT];
    const char *text = strcmp(by, "model") == 0     ? e->base_model
                       : strcmp(by, "session") == 0 ? e->session_id
                       : strcmp(by, "user") == 0    ? e->user_name ? e->user_name : e->user_id
                       : strcmp(by, "type") == 0    ? tinker_billing_kind_name(e->kind)
                                                    : fmt_rfc3339(e->start_us, time);
    snprintf(out, 256, "%.*s", strcmp(by, "day") == 0 ? 10 : 255, text ? text : "-");
}

/* Only what the kind counts: `count` is tokens for three kinds and a number of checkpoints for
 * another.  A cost that is not known yet adds nothing, which the title of the table says. */
static void add_event(struct total *t, const tinker_billing_event *e)
{
    t->trained += e->kind == TINKER_BILLING_TRAINING ? e->count : 0;
    t->prefilled += e->kind == TINKER_BILLING_PREFILL ? e->count : 0;
    t->sampled += e->kind == TINKER_BILLING_SAMPLING ? e->count : 0;
    t->gigabyte_hours += e->kind == TINKER_BILLING_STORAGE ? e->gigabyte_hours : 0;
    t->usd += isnan(e->cost_usd) ? 0 : e->cost_usd;
}

/* Groups in the order of their first event, which for days is the order of time.
 * Added up in double: sums of prices at this scale are exact to far below a cent. */
static int print_totals(const tinker_billing *b, const char *by)
{
    static const char *const columns[] = {
        "Of", "Trained", "Prompts", "Sampled", "GB-hours", "USD"
    };
    /* At most one group per event, so the table never grows. */
    struct total *totals = calloc(b->n_events + 1, sizeof(*totals));
    struct listing l;
    size_t n = 0;
    if (!totals)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0; i < b->n_events; i++) {
        const tinker_billing_event *e = tinker_billing_event_at(b, i);
        char key[256];
        /* A linear search: rows are hours, 14 days at most, and groups are few. */
        size_t k = 0;
        make_key(e, by, key);
        while (k < n && strcmp(totals[k].key, key) != 0)
            k++;
        if (k == n)
            snprintf(totals[n++].key, sizeof(totals[0].key), "%s", key);
        add_event(&totals[k], e);
    }
    listing_init(&l, columns, ARRAY_LEN(columns));
    for (size_t k = 0; k < n; k++) {
        const struct total *t = &totals[k];
        listing_cell(&l, t->key);
        listing_cellf(&l, "%lld", (long long)t->trained);
        listing_cellf(&l, "%lld", (long long)t->prefilled);
        listing_cellf(&l, "%lld", (long long)t->sampled);
        listing_cellf(&l, "%.3g", t->gigabyte_hours);
        listing_cellf(&l, "%.4f", t->usd);
        struct json_writer *w = listing_object(&l);
        json_put_begin_object(w);
        rows_put_text(w, by, t->key);
        rows_put_count(w, "training_tokens", t->trained);
        rows_put_count(w, "prefill_tokens", t->prefilled);
        rows_put_count(w, "sampled_tokens", t->sampled);
        rows_put_real(w, "gigabyte_hours", t->gigabyte_hours);
        rows_put_real(w, "estimated_cost_usd", t->usd);
        json_put_end_object(w);
        listing_object_end(&l);
    }
    free(totals);
    return listing_print(&l, n ? "Usage; costs as far as the service knows them" : "No usage",
                         "{\"totals\":[");
}

/* The same call as `billing usage`, summed here: the service has hours, people want models or
 * days. */
int cmd_cost_usage(int argc, char **argv)
{
    static const char *const groups[] = { "model", "session", "user", "type", "day", NULL };
    const char *start = NULL, *end = NULL, *by = groups[0];
    const struct opt opts[] = {
        { .name = "by",
          .kind = OPT_CHOICE,
          .value = "WHAT",
          .help = "model (default), session, user, type or day",
          .out = &by,
          .choices = groups },
    };
    const struct opt_arg args[] = { { .name = "STARTING_ON", .out = &start },
                                    { .name = "ENDING_BEFORE", .out = &end } };
    const struct opt_spec spec = {
        .command = "cost usage",
        .about = "Sum up what was used between two times, whole UTC hours at most 14 days apart.",
        .opts = opts,
        .n_opts = 1,
        .args = args,
        .n_args = 2,
        .example = "tinker cost usage 2026-07-13 2026-07-14 --by day"
    };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    /* One request for the whole span; the library refuses one that is too long for the service. */
    tinker_future *f =
        api_wait(tinker_rest_get_billing_usage(a.rest, start, end, &err), &err, &status);
    if (f)
        status = print_totals(tinker_future_billing(f), by);
    tinker_future_free(f);
    api_close(&a);
    return status;
}
