/* conform_training.c - checks of `tinker conform`: a small model is trained, saved and loaded.
 *
 * The training run has rank 4 and one sequence of CONFORM_TOKENS tokens.  A new adapter changes
 * nothing, so the first loss is that of the base model, whatever the seed was. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <tinker/extra/http.h>
#include <tinker/training.h>
#include "base/array.h"
#include "cli/conform/conform.h"

/* Two losses are the same: sums of log-probabilities in half precision, of different batches. */
static const double NEAR = 2e-3;

const char conform_prompt[] = "{\"chunks\":[{\"tokens\":[20,21,22,23,24,25],"
                              "\"type\":\"encoded_text\"}]}";
/* The prompt shifted by one: token i predicts token i + 1. */
#define TARGETS "{\"data\":[21,22,23,24,25,26],\"dtype\":\"int64\",\"shape\":[6]}"
#define WEIGHTS "{\"data\":[1.0,1.0,1.0,1.0,1.0,1.0],\"dtype\":\"float32\",\"shape\":[6]}"
#define INPUTS  "{\"target_tokens\":" TARGETS ",\"weights\":" WEIGHTS "}"

/* One training request of the run; its number counts only when the server took it. */
static bool submit_step(struct conform *c, const char *path, const char *members)
{
    char full[64];
    snprintf(full, sizeof(full), CONFORM_API "%s", path);
    if (!conform_submit(c, full, "{%s,\"model_id\":\"%s\",\"seq_id\":%lld}", members, c->run,
                        (long long)c->seq))
        return false;
    c->seq++;
    return true;
}

/* Only the inputs and the loss differ between passes; the text is always the same six tokens. */
static bool submit_pass(struct conform *c, const char *loss, const char *inputs)
{
    char members[1024];
    snprintf(members, sizeof(members),
             "\"forward_backward_input\":{\"data\":[{\"loss_fn_inputs\":%s,\"model_input\":%s}],"
             "\"loss_fn\":\"%s\"}",
             inputs, conform_prompt, loss);
    return submit_step(c, "forward_backward", members);
}

/* A large learning rate, so that one step moves the loss by much more than rounding does. */
static bool submit_adam(struct conform *c)
{
    return submit_step(c, "optim_step",
                       "\"adam_params\":{\"learning_rate\":0.001,\"beta1\":0.9,\"beta2\":0.95,"
                       "\"eps\":1e-12,\"weight_decay\":0.0,\"grad_clip_norm\":0.0},"
                       "\"type\":\"optim_step\"");
}

/* Loss of the pass whose result is c->body: minus the sum of its log-probabilities. */
static bool read_loss(struct conform *c, double *loss)
{
    float *logprobs;
    size_t n;
    if (!conform_numbers(c, "loss_fn_outputs.0.logprobs.data", &logprobs, &n))
        return false;
    if (n != CONFORM_TOKENS)
        return conform_miss(c, "%zu log-probabilities for %d targets", n, CONFORM_TOKENS);
    *loss = 0;
    for (size_t i = 0; i < n; i++)
        *loss -= (double)logprobs[i];
    return isfinite(*loss) || conform_miss(c, "the loss is %g", *loss);
}

static bool submit_forward(struct conform *c, const char *run, int64_t seq)
{
    return conform_submit(c, CONFORM_API "forward",
                          "{\"forward_input\":{\"data\":[{\"loss_fn_inputs\":" INPUTS
                          ",\"model_input\":%s}],\"loss_fn\":\"cross_entropy\"},"
                          "\"model_id\":\"%s\",\"seq_id\":%lld}",
                          conform_prompt, run, (long long)seq);
}

/* A forward pass leaves no gradient, so it may stand anywhere between the others. */
bool conform_loss(struct conform *c, const char *run, int64_t *seq, double *loss)
{
    if (!submit_forward(c, run, *seq))
        return false;
    ++*seq;
    return conform_result(c, c->accepted) && read_loss(c, loss);
}

static bool check_near(struct conform *c, const char *what, double got, double wanted)
{
    return fabs(got - wanted) <= NEAR * (1 + fabs(wanted)) ||
           conform_miss(c, "%s is %.6f, not %.6f", what, got, wanted);
}

/* ---- a new run ------------------------------------------------------------------------------------- */

/* `number` is the model_seq_id: the same one names the same run of the session. */
static bool create_run(struct conform *c, int number, char run[CONFORM_ID_MAX])
{
    return conform_submit(c, CONFORM_API "create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":\"%s\","
                          "\"lora_config\":{\"rank\":4,\"seed\":1,\"train_unembed\":true,"
                          "\"train_mlp\":true,\"train_attn\":true},\"type\":\"create_model\"}",
                          c->session, number, c->model) &&
           conform_result(c, c->accepted) && conform_text(c, "model_id", run, CONFORM_ID_MAX);
}

static bool check_create(struct conform *c)
{
    return create_run(c, 0, c->run);
}

/* A client whose connection broke sends the request again: there must not be two runs. */
static bool check_create_again(struct conform *c)
{
    char again[CONFORM_ID_MAX];
    return create_run(c, 0, again) &&
           (strcmp(again, c->run) == 0 || conform_miss(c, "a second run %.100s was made", again));
}

/* The rank that was asked for, not the server's default. */
static bool check_info(struct conform *c)
{
    char name[sizeof(c->model)];
    double rank;
    return conform_post(c, CONFORM_API "get_info", "{\"model_id\":\"%s\",\"type\":\"get_info\"}",
                        c->run) &&
           conform_text(c, "model_data.model_name", name, sizeof(name)) &&
           (strcmp(name, c->model) == 0 || conform_miss(c, "model_name is %.100s", name)) &&
           conform_number(c, "lora_rank", &rank) &&
           (rank == 4 || conform_miss(c, "lora_rank is %g, not 4", rank));
}

static bool check_forward(struct conform *c)
{
    return conform_loss(c, c->run, &c->seq, &c->first_loss);
}

static bool check_forward_again(struct conform *c)
{
    double loss;
    return conform_loss(c, c->run, &c->seq, &loss) &&
           check_near(c, "the loss of the same pass", loss, c->first_loss);
}

/* Keys are "name:reduction": clients that split a batch reduce by it. */
static bool check_metrics(struct conform *c)
{
    struct json_str metrics, key;
    struct json_reader r;
    double sum, loss;
    if (!submit_pass(c, "cross_entropy", INPUTS) || !conform_result(c, c->accepted) ||
        !read_loss(c, &loss) || !conform_object(c, "metrics", &metrics))
        return false;
    json_reader_init(&r, metrics.s, metrics.n, &c->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        const char *colon = memchr(key.s, ':', key.n);
        if (!colon || memchr(colon + 1, ':', key.n - (size_t)(colon - key.s) - 1))
            return conform_miss(c, "metric %.*s is no name:reduction",
                                (int)(key.n < 80 ? key.n : 80), key.s);
        json_skip(&r);
    }
    return conform_number(c, "metrics.loss:sum", &sum) && check_near(c, "loss:sum", sum, loss);
}

/* Once down the gradient of this very text the loss must fall; if it rises, the sign or the
 * order of the two requests is wrong. */
static bool check_step(struct conform *c)
{
    double loss;
    return submit_adam(c) && conform_result(c, c->accepted) &&
           conform_loss(c, c->run, &c->seq, &loss) &&
           (loss < c->first_loss ||
            conform_miss(c, "the loss went from %.6f to %.6f", c->first_loss, loss));
}

/* The library sends passes as protobuf and asks for protobuf: the same loss as in JSON. */
static bool check_protobuf(struct conform *c)
{
    static const int32_t tokens[CONFORM_TOKENS + 1] = { 20, 21, 22, 23, 24, 25, 26 };
    tinker_lora lora = TINKER_LORA_INIT;
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_error err = { 0 };
    bool ok = false;
    lora.rank = 4;
    tinker_datum *datum = tinker_datum_from_tokens(tokens, ARRAY_LEN(tokens), NULL, &err);
    tinker_training *t =
        datum ? tinker_service_create_lora(c->api->service, c->model, &lora, -1, &err) : NULL;
    tinker_future *f = t ? tinker_training_forward(t, datum, 1, &loss, &err) : NULL;
    if (f && api_await(f, &err) == TINKER_OK) {
        const tinker_forward_backward *result = tinker_future_forward_backward(f);
        const tinker_tensor *logprobs = NULL;
        double sum = 0;
        for (size_t i = 0; result->n_outputs == 1 && i < result->outputs[0].n_tensors; i++)
            if (strcmp(result->outputs[0].tensors[i].name, "logprobs") == 0)
                logprobs = &result->outputs[0].tensors[i].tensor;
        for (size_t i = 0; logprobs && i < logprobs->n; i++)
            sum -= (double)((const float *)logprobs->data)[i];
        ok = logprobs ? check_near(c, "the loss in protobuf", sum, c->first_loss)
                      : conform_miss(c, "the result has no logprobs");
    } else {
        conform_miss(c, "%s", err.message);
    }
    tinker_future_free(f);
    f = t ? tinker_training_unload(t, &err) : NULL;
    if (f)
        api_await(f, &err);
    tinker_future_free(f);
    tinker_training_free(t);
    tinker_datum_free(datum);
    return ok;
}

/* ---- order and repetition -------------------------------------------------------------------------- */

/* Three requests at once take effect by their numbers: the last one sees the step.
 * None is awaited before the next is sent, as clients do it to keep a server busy. */
static bool check_pipeline(struct conform *c)
{
    double before, after;
    if (!conform_loss(c, c->run, &c->seq, &before) || !submit_pass(c, "cross_entropy", INPUTS) ||
        !submit_adam(c) || !submit_forward(c, c->run, c->seq))
        return false;
    c->seq++;
    return conform_result(c, c->accepted) && read_loss(c, &after) &&
           (after < before - 1e-6 ||
            conform_miss(c, "the loss behind a step is %.6f, before it %.6f", after, before));
}

/* The forward pass arrives before the optimizer step whose number is smaller.  A poll for it must
 * wait, and its result must see the step. */
static bool check_gap(struct conform *c)
{
    char body[CONFORM_ID_MAX + 32], late[CONFORM_ID_MAX];
    double before, after;
    tinker_error err;
    if (!conform_loss(c, c->run, &c->seq, &before) || !submit_pass(c, "cross_entropy", INPUTS) ||
        !submit_forward(c, c->run, c->seq + 1))
        return false;
    snprintf(late, sizeof(late), "%s", c->accepted);
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", late);
    tinker_future *poll = tinker_service_call(c->raw, "POST", CONFORM_API "retrieve_future", body,
                                              strlen(body), NULL, &err);
    /* 100 ms: long enough for a server to run the pass too early if it is going to. */
    nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
    /* 2xx that is no "try again" is a result, and it came too early. */
    const tinker_response *r =
        poll && tinker_future_done(poll) ? tinker_future_response(poll) : NULL;
    bool early = r && r->status == 200 && r->body && !strstr(r->body, "try_again");
    bool sent = submit_adam(c);
    c->seq += sent; /* the pass that came first */
    if (poll)
        api_await(poll, &err);
    tinker_future_free(poll);
    if (early)
        return conform_miss(c, "a request did not wait for the one before it");
    return sent && conform_result(c, late) && read_loss(c, &after) &&
           (after < before - 1e-6 ||
            conform_miss(c, "the loss behind a late step is %.6f, before it %.6f", after, before));
}

/* The number says which request it is: sent twice it is one. */
static bool check_repeat(struct conform *c)
{
    char first[CONFORM_ID_MAX];
    if (!submit_pass(c, "cross_entropy", INPUTS))
        return false;
    snprintf(first, sizeof(first), "%s", c->accepted);
    c->seq--;
    return submit_pass(c, "cross_entropy", INPUTS) &&
           (strcmp(first, c->accepted) == 0 ||
            conform_miss(c, "the repetition is another request, %.100s", c->accepted)) &&
           conform_result(c, first);
}

/* The number belongs to the pass; an optimizer step under it must not be taken for a retry, nor
 * run. */
static bool check_conflict(struct conform *c)
{
    int64_t next = c->seq;
    c->seq--; /* the number of the last pass */
    bool taken = submit_adam(c);
    c->seq = next;
    return taken ? conform_miss(c, "another request with a used number was accepted")
                 : conform_refused(c, "another request with a used number");
}

/* The first answer may have been lost on its way. */
static bool check_result_again(struct conform *c)
{
    double first, again;
    return conform_loss(c, c->run, &c->seq, &first) && conform_result(c, c->accepted) &&
           read_loss(c, &again) && check_near(c, "the result read again", again, first);
}

/* ---- failures -------------------------------------------------------------------------------------- */

/* A request that makes no sense is refused at once, or its result is a failure of the user.
 * The category decides whether a client retries: "user" says that it is no use. */
static bool expect_failure(struct conform *c, bool accepted, const char *what)
{
    char category[32] = "";
    if (!accepted)
        return conform_refused(c, what);
    if (conform_result(c, c->accepted))
        return conform_miss(c, "%s succeeded", what);
    if (!conform_has(c, "error"))
        return conform_refused(c, what);
    return conform_text(c, "category", category, sizeof(category)) &&
           (strcmp(category, "user") == 0 ||
            conform_miss(c, "%s: category %s, not user", what, category));
}

static bool check_bad_loss(struct conform *c)
{
    return expect_failure(c, submit_pass(c, "conform_no_such_loss", INPUTS), "an unknown loss");
}

/* Checked by servers before or during the pass; both are allowed, a crash or a loss of NaN is
 * not. */
static bool check_bad_shape(struct conform *c)
{
    bool accepted = submit_pass(c, "cross_entropy",
                                "{\"target_tokens\":{\"data\":[21,22],\"dtype\":\"int64\","
                                "\"shape\":[2]}}");
    return expect_failure(c, accepted, "two targets for six tokens");
}

/* The numbers of failed requests are used up: what follows must not wait for them. */
static bool check_after_failure(struct conform *c)
{
    double loss;
    return conform_loss(c, c->run, &c->seq, &loss);
}

/* ---- checkpoints ----------------------------------------------------------------------------------- */

/* The loss right before saving is kept: the run that loads the state must start from it. */
static bool check_save(struct conform *c)
{
    char members[128];
    snprintf(members, sizeof(members),
             "\"path\":\"%s\",\"ttl_seconds\":3600,\"overwrite\":false,\"type\":\"save_weights\"",
             c->mark);
    return conform_loss(c, c->run, &c->seq, &c->saved_loss) &&
           submit_step(c, "save_weights", members) && conform_result(c, c->accepted) &&
           conform_text(c, "path", c->state, sizeof(c->state)) &&
           (strncmp(c->state, "tinker://", 9) == 0 ||
            conform_miss(c, "%.100s does not begin with tinker://", c->state));
}

/* What a client needs to know before it can load a path: the base model and the rank. */
static bool check_weights_info(struct conform *c)
{
    char base[sizeof(c->model)];
    return conform_post(c, CONFORM_API "weights_info", "{\"tinker_path\":\"%s\"}", c->state) &&
           conform_text(c, "base_model", base, sizeof(base)) &&
           (strcmp(base, c->model) == 0 || conform_miss(c, "base_model is %.100s", base));
}

/* Another run, made from the saved one: weights are loaded before anything else is done with it. */
static bool check_load(struct conform *c)
{
    int64_t seq = 1;
    double loss;
    if (!create_run(c, 1, c->second_run) ||
        !conform_submit(c, CONFORM_API "load_weights",
                        "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"%s\",\"optimizer\":true,"
                        "\"type\":\"load_weights\"}",
                        c->second_run, c->state))
        return false;
    seq++;
    return conform_result(c, c->accepted) && conform_loss(c, c->second_run, &seq, &loss) &&
           check_near(c, "the loss of the loaded run", loss, c->saved_loss);
}

static const struct conform_check checks[] = {
    { "training.create", "create_model makes a run of rank 4", check_create },
    { "training.create_again", "the same model_seq_id is the same run", check_create_again },
    { "training.info", "get_info names base model and rank", check_info },
    { "training.forward", "forward gives one log-probability per target", check_forward },
    { "training.forward_again", "the same pass gives the same loss", check_forward_again },
    { "training.metrics", "metrics are name:reduction, loss:sum is the loss", check_metrics },
    { "training.step", "an optimizer step lowers the loss", check_step },
    { "training.protobuf", "a pass in protobuf gives the loss of the pass in JSON",
      check_protobuf },
    { "training.pipeline", "requests sent at once take effect in order", check_pipeline },
    { "training.gap", "a request waits for a smaller number that comes late", check_gap },
    { "training.repeat", "the same seq_id and body are one request", check_repeat },
    { "training.conflict", "the same seq_id with another body is refused", check_conflict },
    { "training.result_again", "a result can be read twice", check_result_again },
    { "training.bad_loss", "an unknown loss is the user's error", check_bad_loss },
    { "training.bad_shape", "targets that do not fit are the user's error", check_bad_shape },
    { "training.after_failure", "a failed request does not stop those behind it",
      check_after_failure },
    { "training.save", "save_weights answers a tinker:// path", check_save },
    { "training.weights_info", "weights_info names the base model", check_weights_info },
    { "training.load", "another run continues from the saved one", check_load },
};
const struct conform_group conform_training = { "training", checks, ARRAY_LEN(checks) };
