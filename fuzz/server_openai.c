/* room: server - any body for the OpenAI endpoints, with the bundled model's tokenizer.
 *
 * The first byte chooses between completions and chat. */
#include "server_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    fuzz_open(os_is_dir("models/tiny") ? "models/tiny" : NULL);
    char *body = malloc(size);
    if (!body)
        return 0;
    memcpy(body, data + 1, size - 1);
    body[size - 1] = 0;
    struct fuzz_ask a = { .method = "POST",
                          .path = data[0] & 1 ? "/v1/chat/completions" : "/v1/completions",
                          .content_type = "application/json",
                          .body = body,
                          .n_body = size - 1 };
    fuzz_send(&a);
    free(body);
    return 0;
}
