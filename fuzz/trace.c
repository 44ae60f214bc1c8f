/* room: client - traceparent and tracestate, as anybody may send them: what is read can be
 * written and read again, and says the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/trace.h>

static void demand(int condition)
{
    if (!condition)
        abort();
}

static void parent(const char *text)
{
    tinker_trace a, b;
    char out[TINKER_TRACEPARENT_SIZE];
    if (tinker_trace_parse(text, &a, NULL) != TINKER_OK)
        return;
    demand(tinker_trace_format(&a, out, NULL) == TINKER_OK);
    demand(tinker_trace_parse(out, &b, NULL) == TINKER_OK);
    demand(strcmp(a.trace_id, b.trace_id) == 0 && strcmp(a.parent_id, b.parent_id) == 0);
    demand((a.flags & 3) == b.flags);
}

static void state(const char *text)
{
    char out[700], value[300];
    int n = tinker_tracestate_count(text, NULL);
    demand(n >= -1 && n <= TINKER_TRACESTATE_MEMBERS);
    tinker_status s = tinker_tracestate_put(text, "fuzz@room", "1", out, sizeof(out), NULL);
    demand((s == TINKER_OK) == (n >= 0));
    if (n < 0)
        return;
    int had = tinker_tracestate_get(text, "fuzz@room", value, sizeof(value)) >= 0;
    int now = tinker_tracestate_count(out, NULL);
    demand(now >= 1 && now <= n + 1 - had);
    demand(tinker_tracestate_get(out, "fuzz@room", value, sizeof(value)) == 1);
    demand(strcmp(value, "1") == 0 && strlen(out) < sizeof(out));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    demand(text != NULL);
    memcpy(text, data, n);
    text[n] = '\0';
    parent(text);
    state(text);
    free(text);
    return 0;
}
