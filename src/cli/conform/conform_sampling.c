/* conform_sampling.c - checks of `tinker conform`: samplers and what they sample. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "cli/conform/conform.h"

/* SAMPLE_TOKENS: enough to see an order, few enough for a slow server.  MANY: more than most
 * servers run in one batch, so that some of them wait. */
enum { SAMPLE_TOKENS = 8, MANY = 16 };

/* `params` continues the object sampling_params, ", \"seed\": 7", or is "". prompt_logprobs are
 * always asked for, so every sample also exercises them. */
static bool submit_sample(struct conform *c, const char *sampling, int64_t seq, int count,
                          int max_tokens, const char *params)
{
    return conform_submit(c, CONFORM_API "asample",
                          "{\"num_samples\":%d,\"prompt\":%s,\"sampling_params\":{"
                          "\"max_tokens\":%d%s},\"sampling_session_id\":\"%s\",\"seq_id\":%lld,"
                          "\"prompt_logprobs\":true,\"type\":\"sample\"}",
                          count, conform_prompt, max_tokens, params, sampling, (long long)seq);
}

bool conform_sample(struct conform *c, const char *sampling, int64_t seq, int count,
                    const char *params)
{
    return submit_sample(c, sampling, seq, count, SAMPLE_TOKENS, params) &&
           conform_result(c, c->accepted);
}

/* The tokens of the first sequence of a sample of the base model. */
static bool sample_tokens(struct conform *c, const char *params, float **tokens, size_t *n)
{
    return conform_sample(c, c->sampling, c->sample_seq++, 1, params) &&
           conform_numbers(c, "sequences.0.tokens", tokens, n);
}

/* A sampler of the base model; all checks below sample from it unless they make their own. */
static bool check_sampler(struct conform *c)
{
    return conform_post(c, CONFORM_API "create_sampling_session",
                        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                        "\"base_model\":\"%s\",\"type\":\"create_sampling_session\"}",
                        c->session, c->model) &&
           conform_text(c, "sampling_session_id", c->sampling, sizeof(c->sampling));
}

static bool check_sample(struct conform *c)
{
    float *tokens, *logprobs;
    size_t n, n_logprobs;
    char reason[16];
    if (!sample_tokens(c, ",\"temperature\":1.0", &tokens, &n) ||
        !conform_numbers(c, "sequences.0.logprobs", &logprobs, &n_logprobs) ||
        !conform_text(c, "sequences.0.stop_reason", reason, sizeof(reason)))
        return false;
    if (n < 1 || n > SAMPLE_TOKENS || n != n_logprobs)
        return conform_miss(c, "%zu tokens and %zu log-probabilities, max_tokens %d", n, n_logprobs,
                            SAMPLE_TOKENS);
    for (size_t i = 0; i < n; i++)
        if (!(logprobs[i] <= 0))
            return conform_miss(c, "log-probability %g of token %zu", (double)logprobs[i], i);
    /* "length" exactly when max_tokens was reached; a model may also end by itself on the last
     * token. */
    bool length = strcmp(reason, "length") == 0;
    return length == (n == SAMPLE_TOKENS) || strcmp(reason, "stop") == 0 ||
           conform_miss(c, "stop_reason %s after %zu of %d tokens", reason, n, SAMPLE_TOKENS);
}

/* The SDK names the sequences of a sample by them. */
static bool check_sequence_ids(struct conform *c)
{
    size_t n = 0;
    if (!submit_sample(c, c->sampling, c->sample_seq++, 2, 1, ""))
        return false;
    if (!conform_has(c, "sample_sequence_ids.0"))
        return conform_miss(c, "asample answers no sample_sequence_ids");
    for (char path[] = "sample_sequence_ids.0"; conform_has(c, path) && n < 9; n++)
        path[sizeof(path) - 2]++;
    return (n == 2 || conform_miss(c, "%zu sample_sequence_ids for two samples", n)) &&
           conform_result(c, c->accepted);
}

/* Twice the same request under two numbers, so that no cache of results can answer the second. */
static bool same_tokens(struct conform *c, const char *params)
{
    float *first, *again;
    size_t n, n_again;
    return sample_tokens(c, params, &first, &n) && sample_tokens(c, params, &again, &n_again) &&
           ((n == n_again && memcmp(first, again, n * sizeof(*first)) == 0) ||
            conform_miss(c, "the second sample differs from the first"));
}

/* At temperature 1, where only the seed can make two draws the same. */
static bool check_seed(struct conform *c)
{
    return same_tokens(c, ",\"temperature\":1.0,\"seed\":7");
}

static bool check_greedy(struct conform *c)
{
    return same_tokens(c, ",\"temperature\":0.0");
}

static bool check_count(struct conform *c)
{
    if (!conform_sample(c, c->sampling, c->sample_seq++, 3, ",\"temperature\":1.0"))
        return false;
    return (conform_has(c, "sequences.2") && !conform_has(c, "sequences.3")) ||
           conform_miss(c, "num_samples 3 gave another number of sequences");
}

/* The third token of a greedy sample as a stop token: the sample ends where it first comes. */
static bool check_stop(struct conform *c)
{
    float *tokens, *stopped;
    size_t n, n_stopped, wanted = 0;
    char params[64], reason[16];
    if (!sample_tokens(c, ",\"temperature\":0.0", &tokens, &n))
        return false;
    if (n < 3)
        return true; /* the model ended by itself: nothing to stop */
    /* A greedy sample may repeat itself, so the token may come earlier than third. */
    while (tokens[wanted] != tokens[2])
        wanted++;
    snprintf(params, sizeof(params), ",\"temperature\":0.0,\"stop\":[%lld]", (long long)tokens[2]);
    if (!sample_tokens(c, params, &stopped, &n_stopped) ||
        !conform_text(c, "sequences.0.stop_reason", reason, sizeof(reason)))
        return false;
    return (n_stopped == wanted + 1 && strcmp(reason, "stop") == 0) ||
           conform_miss(c, "%zu tokens and reason %s, not %zu and stop", n_stopped, reason,
                        wanted + 1);
}

/* One value per token of the prompt, the first unknown.  A fresh adapter is the base model, so
 * training and sampling must agree on the tokens that both score. */
static bool check_prompt_logprobs(struct conform *c)
{
    float *prompt, *pass;
    size_t n, n_pass;
    int64_t seq = 1;
    char run[CONFORM_ID_MAX];
    if (!conform_sample(c, c->sampling, c->sample_seq++, 1, "") ||
        !conform_numbers(c, "prompt_logprobs", &prompt, &n))
        return false;
    if (n != CONFORM_TOKENS || !isnan(prompt[0]))
        return conform_miss(c, "%zu prompt_logprobs for %d tokens, the first is %g", n,
                            CONFORM_TOKENS, n ? (double)prompt[0] : 0);
    if (!conform_submit(c, CONFORM_API "create_model",
                        "{\"session_id\":\"%s\",\"model_seq_id\":2,\"base_model\":\"%s\","
                        "\"lora_config\":{\"rank\":4},\"type\":\"create_model\"}",
                        c->session, c->model) ||
        !conform_result(c, c->accepted) || !conform_text(c, "model_id", run, sizeof(run)))
        return false;
    double loss;
    bool scored = conform_loss(c, run, &seq, &loss) &&
                  conform_numbers(c, "loss_fn_outputs.0.logprobs.data", &pass, &n_pass);
    for (size_t i = 1; scored && i < n && i <= n_pass; i++)
        /* 0.05: what half precision and other batch shapes may differ by; a shift by one token
         * or a wrong temperature is far above it. */
        if (fabs((double)prompt[i] - (double)pass[i - 1]) > 0.05)
            scored = conform_miss(c, "token %zu: %.4f when sampling, %.4f when training", i,
                                  (double)prompt[i], (double)pass[i - 1]);
    struct conform cleanup = *c; /* its failure is not the failure of this check */
    if (conform_submit(&cleanup, CONFORM_API "unload_model",
                       "{\"model_id\":\"%s\",\"type\":\"unload_model\"}", run))
        conform_result(&cleanup, cleanup.accepted);
    c->arena = cleanup.arena;
    return scored;
}

/* The number of a sample identifies it as the number of a training request does. */
static bool check_sample_again(struct conform *c)
{
    char first[CONFORM_ID_MAX];
    int64_t seq = c->sample_seq++;
    if (!submit_sample(c, c->sampling, seq, 1, 2, ""))
        return false;
    snprintf(first, sizeof(first), "%s", c->accepted);
    return submit_sample(c, c->sampling, seq, 1, 2, "") &&
           (strcmp(first, c->accepted) == 0 ||
            conform_miss(c, "the repetition is another request, %.100s", c->accepted)) &&
           conform_result(c, first);
}

/* Refused when it is submitted, so that no client waits for a result that cannot come. */
static bool check_unknown_sampler(struct conform *c)
{
    return submit_sample(c, "conform-no-such-sampler", 0, 1, 1, "")
               ? conform_miss(c, "a sample of an unknown sampler was accepted")
               : conform_refused(c, "a sample of an unknown sampler");
}

/* Every result is that of its own request: they have different lengths. */
static bool check_many(struct conform *c)
{
    char ids[MANY][CONFORM_ID_MAX];
    for (int i = 0; i < MANY; i++) {
        if (!submit_sample(c, c->sampling, c->sample_seq++, 1, 1 + i % 4, ",\"stop\":[]"))
            return false;
        snprintf(ids[i], sizeof(ids[i]), "%s", c->accepted);
    }
    /* Read in reverse: a server that gives out results in order of completion would give wrong
     * ones here. */
    for (int i = MANY; i-- > 0;) {
        float *tokens;
        size_t n;
        if (!conform_result(c, ids[i]) || !conform_numbers(c, "sequences.0.tokens", &tokens, &n))
            return false;
        if (n != (size_t)(1 + i % 4))
            return conform_miss(c, "%zu tokens where %d were asked for", n, 1 + i % 4);
    }
    return true;
}

/* Weights for sampling without a name: a sampler comes back. */
static bool check_unnamed(struct conform *c)
{
    char sampling[CONFORM_ID_MAX];
    if (!conform_submit(c, CONFORM_API "save_weights_for_sampler",
                        "{\"model_id\":\"%s\",\"sampling_session_seq_id\":1,\"seq_id\":%lld,"
                        "\"type\":\"save_weights_for_sampler\"}",
                        c->run, (long long)c->seq))
        return false;
    c->seq++;
    return conform_result(c, c->accepted) &&
           conform_text(c, "sampling_session_id", sampling, sizeof(sampling)) &&
           conform_sample(c, sampling, 0, 1, "") &&
           (conform_has(c, "sequences.0.tokens") || conform_miss(c, "a sample without tokens"));
}

/* What `tinker checkpoint` and other sessions use: weights that outlive the sampler. */
static bool check_named(struct conform *c)
{
    char sampling[CONFORM_ID_MAX];
    if (!conform_submit(c, CONFORM_API "save_weights_for_sampler",
                        "{\"model_id\":\"%s\",\"path\":\"%s\",\"seq_id\":%lld,"
                        "\"ttl_seconds\":3600,\"type\":\"save_weights_for_sampler\"}",
                        c->run, c->mark, (long long)c->seq))
        return false;
    c->seq++;
    return conform_result(c, c->accepted) &&
           conform_text(c, "path", c->weights, sizeof(c->weights)) &&
           conform_post(c, CONFORM_API "create_sampling_session",
                        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":2,"
                        "\"model_path\":\"%s\",\"type\":\"create_sampling_session\"}",
                        c->session, c->weights) &&
           conform_text(c, "sampling_session_id", sampling, sizeof(sampling)) &&
           conform_sample(c, sampling, 0, 1, "") &&
           (conform_has(c, "sequences.0.tokens") || conform_miss(c, "a sample without tokens"));
}

/* One poll tells of all samples of a sampler. */
static bool check_futures(struct conform *c)
{
    char wanted[CONFORM_ID_MAX], id[CONFORM_ID_MAX], path[64], state[16];
    double cursor = 0;
    if (!submit_sample(c, c->sampling, c->sample_seq++, 1, 1, ""))
        return false;
    snprintf(wanted, sizeof(wanted), "%s", c->accepted);
    /* A poll may return early with other requests, so a few are allowed; each continues behind
     * the cursor of the last. */
    for (int polls = 0; polls < 20; polls++) {
        if (!conform_post(c, CONFORM_API "retrieve_futures",
                          "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":"
                          "\"%s\",\"cloned_sampler_id\":0},\"prev_cursor\":%.0f,"
                          "\"retrieved_request_ids\":[]}",
                          c->sampling, cursor))
            return false;
        for (size_t i = 0; i < 10000; i++) {
            snprintf(path, sizeof(path), "completions.%zu.request_id", i);
            if (!conform_has(c, path))
                break;
            if (!conform_text(c, path, id, sizeof(id)))
                return false;
            snprintf(path, sizeof(path), "completions.%zu.state", i);
            if (strcmp(id, wanted) == 0)
                return conform_text(c, path, state, sizeof(state)) &&
                       (strcmp(state, "finished") == 0 || conform_miss(c, "state %s", state)) &&
                       conform_result(c, wanted);
        }
        if (!conform_number(c, "cursor", &cursor))
            return false;
    }
    return conform_miss(c, "20 polls did not name %.100s", wanted);
}

/* Copies of a sampler in several processes number their requests apart by this counter. */
static bool check_join(struct conform *c)
{
    double first, second;
    for (int i = 0; i < 2; i++)
        if (!conform_post(c, CONFORM_API "join_sampling_session",
                          "{\"sampling_session_id\":\"%s\",\"type\":\"join_sampling_session\"}",
                          c->sampling) ||
            !conform_number(c, "client_counter", i ? &second : &first))
            return false;
    return (first >= 1 && second > first) ||
           conform_miss(c, "client_counter is %g, then %g", first, second);
}

/* Canceling what has finished is no error: the two cross on the network all the time. */
static bool check_cancel(struct conform *c)
{
    if (!submit_sample(c, c->sampling, c->sample_seq++, 1, 1, "") ||
        !conform_result(c, c->accepted))
        return false;
    return conform_post(c, CONFORM_API "cancel_future", "{\"request_id\":\"%s\"}", c->accepted);
}

static const struct conform_check checks[] = {
    { "sampling.sampler", "create_sampling_session answers its id", check_sampler },
    { "sampling.sample", "a sample has tokens, log-probabilities and a stop reason", check_sample },
    { "sampling.sequence_ids", "asample names the sequences to come", check_sequence_ids },
    { "sampling.seed", "the same seed gives the same tokens", check_seed },
    { "sampling.greedy", "temperature 0 gives the same tokens", check_greedy },
    { "sampling.count", "num_samples 3 gives three sequences", check_count },
    { "sampling.stop", "a stop token ends a sequence", check_stop },
    { "sampling.prompt_logprobs", "prompt_logprobs are those of a forward pass",
      check_prompt_logprobs },
    { "sampling.sample_again", "the same seq_id and body are one request", check_sample_again },
    { "sampling.unknown_sampler", "a sample of an unknown sampler is refused",
      check_unknown_sampler },
    { "sampling.many", "16 samples at once get their own results", check_many },
    { "sampling.unnamed", "weights without a name become a sampler", check_unnamed },
    { "sampling.named", "weights with a name are sampled from by their path", check_named },
    { "sampling.futures", "retrieve_futures names a sample that finished", check_futures },
    { "sampling.join", "join_sampling_session gives every copy its number", check_join },
    { "sampling.cancel", "cancel_future accepts a request that finished", check_cancel },
};
const struct conform_group conform_sampling = { "sampling", checks, ARRAY_LEN(checks) };
