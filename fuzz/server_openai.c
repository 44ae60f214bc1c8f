/* room: server - any body for the chat endpoints, with the bundled model's tokenizer.
 *
 * The first byte chooses between completions, chat, messages and the counting of their tokens. */
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
    static const char *const paths[] = { "/v1/completions", "/v1/chat/completions", "/v1/messages",
                                         "/v1/messages/count_tokens" };
    struct fuzz_ask a = { .method = "POST",
                          .path = paths[data[0] & 3],
                          .content_type = "application/json",
                          .body = body,
                          .n_body = size - 1 };
    fuzz_send(&a);
    free(body);
    return 0;
}
