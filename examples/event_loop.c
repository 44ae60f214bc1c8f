/* event_loop.c - futures inside a poll loop that also serves other descriptors.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local event_loop [model]
 *
 * The queue's descriptor is readable while completed futures wait; their callbacks run
 * here, in dispatch, and nowhere else, so the program needs no locks. */
#include "example.h"
#include <errno.h>
#include <poll.h>
#include <unistd.h>

struct program {
    tinker_sampler *sampler;
    tinker_queue *queue;
    int rounds, open;
};

static void ask(struct program *p);

static void on_sample(tinker_future *f, void *state)
{
    struct program *p = state;
    if (tinker_future_wait(f, 0, &err) != TINKER_OK)
        die("sample");
    printf("answer of %zu tokens\n", tinker_future_sample(f)->sequences[0].n);
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
    params.has_seed = 1;
    params.seed = p->rounds;
    tinker_future *f =
        need(tinker_sampler_sample(p->sampler, &input, &params, NULL, &err), "sample");
    if (tinker_queue_add_callback(p->queue, f, on_sample, p, &err) != TINKER_OK)
        die("queue");
    p->open++;
}

static void run(struct program *p)
{
    struct pollfd fds[2] = { { .fd = tinker_queue_fd(p->queue), .events = POLLIN },
                             { .fd = STDIN_FILENO, .events = POLLIN } };
    int watched = isatty(STDIN_FILENO) ? 2 : 1;
    while (p->open > 0) {
        int ready = poll(fds, (nfds_t)watched, MINUTE_MS);
        if (ready < 0 && errno == EINTR)
            continue; /* a signal, such as that of a resized window */
        expect(ready > 0, "an answer comes within a minute");
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
    struct program p = { .rounds = 5 };
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    p.sampler =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    p.queue = need(tinker_queue_new(&err), "queue");
    ask(&p);
    run(&p);
    expect(p.rounds == 0, "every round was answered");
    tinker_queue_free(p.queue);
    tinker_sampler_free(p.sampler);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
