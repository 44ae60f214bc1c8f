/* room: grammar - any bytes as a JSON schema: no crash, and what compiles can be read to its end. */
#include <stdint.h>
#include <stdlib.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tinker_error err;
    if (size > 4000)
        return 0;
    struct grammar *g = grammar_from_schema((const char *)data, size, &err);
    if (!g)
        return 0;
    int32_t s = grammar_start(g);
    for (int i = 0; s >= 0 && i < 300 && !grammar_must_end(g, s); i++) {
        int32_t next = GRAMMAR_DEAD;
        /* From the top: closing brackets and quotes come before most of what goes on. */
        for (int c = 255; c >= 0 && next == GRAMMAR_DEAD; c--)
            next = grammar_next(g, s, (unsigned char)c);
        if (next == GRAMMAR_DEAD && !grammar_may_end(g, s))
            abort(); /* a dead end */
        if (next == GRAMMAR_DEAD)
            break;
        s = next;
    }
    grammar_free(g);
    return 0;
}
