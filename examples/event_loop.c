/* event_loop.c - futures inside a poll loop that also serves other descriptors.
 *
 * The queue's descriptor is readable while completed futures wait; their callbacks run
 * here, in dispatch, and nowhere else, so the program needs no locks. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <tinker/tinker.h>

struct program {
    tinker_sampler *sampler;
    tinker_queue *queue;
    int rounds, open, failed;
};

static void ask(struct program *p);

static void on_sample(tinker_future *f, void *state)
{
    struct program *p = state;
    tinker_error err;
    if (tinker_future_wait(f, 0, &err) == TINKER_OK)
        printf("answer of %zu tokens\n", tinker_future_sample(f)->sequences[0].n);
    else {
        fprintf(stderr, "event_loop: %s\n", err.message);
        p->failed = 1;
    }
    tinker_future_free(f);
    p->open--;
    if (--p->rounds > 0)
        ask(p); /* callbacks may submit */
}

static void ask(struct program *p)
{
    int32_t prompt[] = { 10, 11, 12 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    tinker_error err;
    tinker_future *f = tinker_sampler_sample(p->sampler, &input, &params, NULL, &err);
    if (f && tinker_queue_add_callback(p->queue, f, on_sample, p, &err) == TINKER_OK)
        p->open++;
    else {
        fprintf(stderr, "event_loop: %s\n", err.message);
        p->failed = 1;
    }
}

static void run(struct program *p)
{
    struct pollfd fds[2] = { { .fd = tinker_queue_fd(p->queue), .events = POLLIN },
                             { .fd = STDIN_FILENO, .events = POLLIN } };
    int watched = isatty(STDIN_FILENO) ? 2 : 1;
    while (p->open > 0 && poll(fds, (nfds_t)watched, 120000) > 0) {
        if (fds[0].revents)
            tinker_queue_dispatch(p->queue, 0);
        if (watched == 2 && fds[1].revents) {
            char line[256];
            if (read(STDIN_FILENO, line, sizeof(line)) <= 0)
                watched = 1;
            else
                printf("you typed something; %d answers are open\n", p->open);
        }
    }
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    tinker_error err;
    struct program p = { .rounds = 5 };
    tinker_service *service = tinker_service_new(NULL, &err);
    p.sampler = service ? tinker_service_create_sampler(service, model, NULL, 60000, &err) : NULL;
    p.queue = p.sampler ? tinker_queue_new(&err) : NULL;
    if (p.queue) {
        ask(&p);
        run(&p);
    } else
        fprintf(stderr, "event_loop: %s\n", err.message);
    int ok = p.queue && !p.failed && p.rounds == 0;
    tinker_queue_free(p.queue);
    tinker_sampler_free(p.sampler);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
