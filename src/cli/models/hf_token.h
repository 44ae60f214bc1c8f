/* hf_token.h - the credential for the Hugging Face Hub, where its own tools keep it. */
#ifndef CLI_HF_TOKEN_H
#define CLI_HF_TOKEN_H

#include <stdbool.h>

enum { HF_AUTHORIZATION_MAX = 4096 };

/* HF_ENDPOINT, else the Hub. */
const char *hf_endpoint(void);
/* --hf-token (NULL: not given) wins over HF_TOKEN, HUGGING_FACE_HUB_TOKEN and the file. */
void hf_set_token(const char *token);
/* "Bearer TOKEN" into out, "" when there is none.  false: it is longer than any token. */
bool hf_authorization(char out[HF_AUTHORIZATION_MAX]);

#endif
