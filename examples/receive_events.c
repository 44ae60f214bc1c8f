/* receive_events.c - an answer piece by piece, from any endpoint: here server-sent events.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local receive_events [model]
 *
 * The library has no function for the OpenAI endpoints, and needs none: tinker_service_receive()
 * sends any request and hands over what comes as it comes.  A slow callback makes the sender wait,
 * so memory stays small however long the answer is.  sampling_stream.c is the native way. */
#include "example.h"
#include <string.h>
#include <tinker/extra/http.h>

struct reader {
    int events, enough; /* enough 0: all of them */
    int done;           /* the sender said so */
};

/* On a thread of the library that does nothing else. */
static tinker_receive_next on_event(const tinker_piece *piece, void *state)
{
    struct reader *r = state;
    const char *text = strstr(piece->data, "\"text\""); /* a real program reads the JSON */
    if (strcmp(piece->data, "[DONE]") == 0)
        r->done = 1;
    else
        printf("%d: %.24s...\n", ++r->events, text ? text : "");
    return r->events == r->enough && r->enough ? TINKER_RECEIVE_STOP : TINKER_RECEIVE_MORE;
}

/* The future of a request whose events go to *r, when all have come; NULL with err set. */
static tinker_future *complete(tinker_service *service, const char *model, struct reader *r)
{
    char body[512];
    int n = snprintf(body, sizeof(body),
                     "{\"model\":\"%s\",\"prompt\":\"Once there was a\",\"max_tokens\":6,"
                     "\"temperature\":0,\"stream\":true}",
                     model);
    expect(n > 0 && (size_t)n < sizeof(body), "the name of the model is short");
    tinker_receive_options opts = TINKER_RECEIVE_OPTIONS_INIT;
    opts.events = 1;
    return tinker_future_await(tinker_service_receive(service, "POST", "/oai/api/v1/completions",
                                                      body, (size_t)n, &opts, on_event, r, &err),
                               MINUTE_MS, &err);
}

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    struct reader all = { 0 }, few = { .enough = 2 };

    tinker_future *f = need(complete(service, model, &all), "completion");
    expect(all.done && all.events >= 6, "a piece for every token, and an end");
    printf("%d events, then the end\n", all.events);
    tinker_future_free(f);

    f = complete(service, model, &few); /* the callback wants no more */
    expect(!f && err.status == TINKER_ECANCELED, "the callback ends it");
    printf("ended after %d events\n", few.events);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
