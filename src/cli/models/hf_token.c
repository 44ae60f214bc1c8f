/* hf_token.c - see hf_token.h. */
#include "cli/models/hf_token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

/* Of --hf-token; NULL: not given.  One process runs one command, so a variable is enough. */
static const char *given;

/* The variable of the Hub's own tools: mirrors and companies set it. */
const char *hf_endpoint(void)
{
    const char *endpoint = getenv("HF_ENDPOINT");
    return endpoint && *endpoint ? endpoint : "https://huggingface.co";
}

/* From the command line; it wins over the environment and the file, in this process only. */
void hf_set_token(const char *token)
{
    given = token;
}

/* HF_TOKEN_PATH, else "token" where the cache is. */
static void find_token_file(char *out, size_t size)
{
    static const char *const places[][2] = { { "HF_TOKEN_PATH", "" },
                                             { "HF_HOME", "/token" },
                                             { "XDG_CACHE_HOME", "/huggingface/token" },
                                             { "HOME", "/.cache/huggingface/token" } };
    out[0] = 0;
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        const char *value = getenv(places[i][0]);
        if (value && *value) {
            snprintf(out, size, "%s%s", value, places[i][1]);
            return;
        }
    }
}

/* The order of the Hub's own tools, with the option in front.  false only for a token that does
 * not fit: that is a wrong file, and sending its beginning would be a leak. */
bool hf_authorization(char out[HF_AUTHORIZATION_MAX])
{
    char path[4096], *text = NULL;
    size_t n;
    const char *first = getenv("HF_TOKEN"), *second = getenv("HUGGING_FACE_HUB_TOKEN");
    const char *token = given ? given : first && *first ? first : second && *second ? second : NULL;
    out[0] = 0;
    if (!token) {
        find_token_file(path, sizeof(path));
        if (*path && os_read_file(path, 1 << 16, &text, &n, NULL) == TINKER_OK) {
            token = text + strspn(text, " \t\r\n");
            text[strlen(text) - strlen(token) + strcspn(token, " \t\r\n")] = 0;
        }
    }
    bool fits = !token || strlen(token) + sizeof("Bearer ") <= HF_AUTHORIZATION_MAX;
    if (token && *token && fits) {
        /* The log never shows the token, whatever else fails. */
        log_secret(token);
        snprintf(out, HF_AUTHORIZATION_MAX, "Bearer %s", token);
    }
    free(text);
    return fits;
}
