/* quickstart.c - teach the bundled model a new skill and measure it.
 *
 *     quickstart MODEL_NAME MODEL_DIR [STEPS]
 *
 * The skill: turn a sentence such as "Lisa sold 7 green lamps at the mill." into a record
 * "Lisa|sold|mill": who, did what, where.  The model knows such sentences and the words in them, but
 * no records.  The 64 held-out sentences are drawn as the 3,200 that it is trained on, all from the
 * same 1.8 million.  Everything goes through the public API to the service that TINKER_BASE_URL
 * names. */
#include "example.h"
#include <string.h>
#include <unistd.h>

enum { BATCH = 32, HELD_OUT = 64, TIMEOUT_MS = 120000 };

struct sentence {
    char text[160], record[120];
};

static const char *const verbs[] = { "sold", "found", "made", "bought", "painted", "carried" };
static const char *const colors[] = {
    "red", "blue", "green", "white", "black", "yellow", "golden"
};
static const char *const things[] = { "lamps", "chairs", "books", "coins",
                                      "drums", "kites",  "bells", "hats" };
static const char *const names[] = { "Tom",  "Lisa", "Max",  "Nina", "Oscar", "Ruth", "Simon",
                                     "Vera", "Adam", "Dora", "Eric", "Hana",  "Ivan", "Lucy" };
static const char *const places[] = { "garden", "river", "market", "school", "forest",
                                      "harbor", "mill",  "tower",  "bridge", "castle" };

#define PICK(list) (list)[next_random() % (sizeof(list) / sizeof *(list))]

static uint64_t random_state = 7;

static unsigned next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33);
}

static void make_sentence(struct sentence *s)
{
    const char *who = PICK(names), *place = PICK(places);
    const char *verb = PICK(verbs), *color = PICK(colors), *thing = PICK(things);
    unsigned n = 2 + next_random() % 19;
    if (next_random() % 2)
        snprintf(s->text, sizeof s->text, "%s %s %u %s %s at the %s.", who, verb, n, color, thing,
                 place);
    else
        snprintf(s->text, sizeof s->text, "At the %s, %s %s %u %s %s.", place, who, verb, n, color,
                 thing);
    snprintf(s->record, sizeof s->record, "%s|%s|%s", who, verb, place);
}

/* Greedy answers to `n` sentences at once; returns how many equal the record. */
static int evaluate(tinker_sampler *sampler, tinker_tokenizer *tok, tinker_renderer *renderer,
                    const struct sentence *s, size_t n, char *first, size_t first_size)
{
    tinker_future *answers[HELD_OUT];
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 48;
    params.temperature = 0;
    tinker_renderer_set_stop(renderer, &params);
    for (size_t i = 0; i < n; i++) {
        tinker_message m = { .role = "user", .content = s[i].text };
        tinker_rendered *prompt =
            need(tinker_renderer_prompt(renderer, &m, 1, NULL, NULL, &err), "prompt");
        answers[i] =
            need(tinker_sampler_sample(sampler, &prompt->examples[0].input, &params, NULL, &err),
                 "sample");
        tinker_rendered_free(prompt);
    }
    int right = 0;
    for (size_t i = 0; i < n; i++) {
        if (tinker_future_wait(answers[i], TIMEOUT_MS, &err) != TINKER_OK)
            die("sample");
        const tinker_sequence *q = &tinker_future_sample(answers[i])->sequences[0];
        tinker_decode_options plain = TINKER_DECODE_OPTIONS_INIT;
        tinker_text text = TINKER_TEXT_INIT;
        plain.skip_special = 1;
        if (tinker_tokenizer_decode(tok, q->tokens, q->n, &plain, &text, &err) != TINKER_OK)
            die("decode");
        right += text.s && strcmp(text.s, s[i].record) == 0;
        if (i == 0)
            snprintf(first, first_size, "%s", text.s ? text.s : "");
        tinker_text_clear(&text);
        tinker_future_free(answers[i]);
    }
    return right;
}

/* One batch of fresh sentences; returns the mean loss per trained token. */
static double train_batch(tinker_training *t, tinker_renderer *renderer, double learning_rate)
{
    tinker_training_row *rows[BATCH];
    tinker_datum data[BATCH];
    size_t trained = 0;
    for (size_t i = 0; i < BATCH; i++) {
        struct sentence s;
        make_sentence(&s);
        tinker_message m[2] = { { .role = "user", .content = s.text },
                                { .role = "assistant", .content = s.record } };
        tinker_rendered *x =
            need(tinker_renderer_example(renderer, m, 2, TINKER_TRAIN_LAST_ASSISTANT_MESSAGE, &err),
                 "example");
        rows[i] = need(tinker_training_row_new(&x->examples[0], 0, TINKER_REDUCTION_NONE, &err),
                       "training row");
        data[i] = rows[i]->datum;
        trained += rows[i]->n_trained;
        tinker_rendered_free(x);
    }
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = learning_rate;
    tinker_future *both[2];
    both[0] = need(tinker_training_forward_backward(t, data, BATCH, &loss, &err), "pass");
    both[1] = need(tinker_training_optim_step(t, &adam, &err), "step");
    if (tinker_future_wait_all(both, 2, TIMEOUT_MS, &err) != TINKER_OK)
        die("training step");
    double value = loss_of(both[0]) / (double)trained;
    tinker_future_free(both[0]);
    tinker_future_free(both[1]);
    for (size_t i = 0; i < BATCH; i++)
        tinker_training_row_free(rows[i]);
    return value;
}

static void progress(int step, int steps, double loss)
{
    char bar[31];
    if (!isatty(STDERR_FILENO)) { /* a file: a line now and then */
        if (step % 10 == 0 || step == steps)
            fprintf(stderr, "  training %d/%d  loss %.3f\n", step, steps, loss);
        return;
    }
    int filled = step * 30 / steps;
    for (int i = 0; i < 30; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, "\r  training [%s] %d/%d  loss %.3f ", bar, step, steps, loss);
    if (step == steps)
        fputc('\n', stderr);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: quickstart MODEL_NAME MODEL_DIR [STEPS]\n");
        return 2;
    }
    int steps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 100;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);

    tinker_tokenizer *tok = need(tinker_tokenizer_load(argv[2], NULL, &err), argv[2]);
    tinker_renderer *renderer =
        need(tinker_renderer_new("qwen3_instruct", tok, NULL, &err), "renderer");
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_lora lora = TINKER_LORA_INIT;
    /* `tinker chat` and `tinker sample` then use the same chat format. */
    const tinker_named_string format = { "renderer_name", "qwen3_instruct" };
    lora.has_seed = 1;
    lora.user_metadata = &format;
    lora.n_user_metadata = 1;
    tinker_training *training = need(
        tinker_service_create_lora(service, argv[1], &lora, TIMEOUT_MS, &err), "training client");
    tinker_sampler *base =
        need(tinker_service_create_sampler(service, argv[1], NULL, TIMEOUT_MS, &err), "sampler");

    struct sentence held_out[HELD_OUT];
    for (size_t i = 0; i < HELD_OUT; i++)
        make_sentence(&held_out[i]);
    char before_text[200], after_text[200];
    int before = evaluate(base, tok, renderer, held_out, HELD_OUT, before_text, sizeof before_text);
    fprintf(stderr, "  before   %d of %d held-out sentences right\n", before, HELD_OUT);
    for (int i = 0; i < steps; i++) {
        double rate = 4e-3 * (i < steps / 2 ? 1.0 : 2.0 * (steps - i) / steps);
        progress(i + 1, steps, train_batch(training, renderer, rate));
    }
    tinker_future *saved = need(
        tinker_training_save_for_sampler(training, "quickstart", NULL, &err), "save the weights");
    if (tinker_future_wait(saved, TIMEOUT_MS, &err) != TINKER_OK)
        die("save the weights");
    const char *path = tinker_future_saved_path(saved);
    tinker_sampler *tuned =
        need(tinker_service_create_sampler(service, NULL, path, TIMEOUT_MS, &err), "sampler");
    int after = evaluate(tuned, tok, renderer, held_out, HELD_OUT, after_text, sizeof after_text);
    fprintf(stderr, "  after    %d of %d held-out sentences right\n", after, HELD_OUT);
    printf("prompt  %s\nbefore  %s\nafter   %s\nwanted  %s\n", held_out[0].text, before_text,
           after_text, held_out[0].record);
    printf("weights %s\n", path);
    tinker_future_free(saved);

    tinker_sampler_free(tuned);
    tinker_sampler_free(base);
    tinker_training_free(training);
    tinker_service_free(service);
    tinker_renderer_free(renderer);
    tinker_tokenizer_free(tok);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    int ok = before * 5 < HELD_OUT && after * 5 > HELD_OUT * 4;
    printf("quickstart: %s accuracy_before=%.3f accuracy_after=%.3f steps=%d seconds=%.1f\n",
           ok ? "ok" : "failed", (double)before / HELD_OUT, (double)after / HELD_OUT, steps,
           seconds);
    return ok ? 0 : 1;
}
