/* room: server - any bytes as the body of each endpoint that takes one: JSON, protobuf, zstd.
 *
 * The first byte chooses the endpoint, the second the content type, the encoding and what
 * the client accepts; the rest is the body.  What is accepted runs on a fake engine. */
#include "server_fixture.h"

#define API "/api/v1/"

static const char *const paths[][2] = {
    { "POST", API "forward_backward" },
    { "POST", API "forward" },
    { "POST", API "optim_step" },
    { "POST", API "save_weights" },
    { "POST", API "save_weights_for_sampler" },
    { "POST", API "load_weights" },
    { "POST", API "create_model" },
    { "POST", API "unload_model" },
    { "POST", API "create_session" },
    { "POST", API "session_heartbeat" },
    { "POST", API "create_sampling_session" },
    { "POST", API "asample" },
    { "POST", API "retrieve_future" },
    { "POST", API "cancel_future" },
    { "POST", API "get_info" },
    { "POST", API "weights_info" },
    { "PUT", API "sessions/" FUZZ_SESSION "/project" },
    { "PUT", API "training_runs/" FUZZ_MODEL "/checkpoints/weights/w/ttl" },
    { "POST", API "stream_sample" },
    { "POST", API "copy_weights" },
    { "POST", API "save_weights_external" },
    { "POST", API "sessions/search" },
    { "POST", API "sessions/" FUZZ_SESSION "/finish" },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    fuzz_open(NULL);
    size_t n = sizeof(paths) / sizeof(paths[0]);
    char *body = malloc(size - 1);
    if (!body)
        return 0;
    memcpy(body, data + 2, size - 2);
    body[size - 2] = 0;
    struct fuzz_ask a = { .method = paths[data[0] % n][0],
                          .path = paths[data[0] % n][1],
                          .content_type =
                              data[1] & 1 ? "application/x-protobuf" : "application/json",
                          .encoding = data[1] & 2 ? "zstd" : NULL,
                          .accept = data[1] & 4 ? "application/x-protobuf" : "application/json",
                          .body = body,
                          .n_body = size - 2 };
    fuzz_send(&a);
    free(body);
    return 0;
}
