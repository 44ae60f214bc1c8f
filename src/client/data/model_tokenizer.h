/* model_tokenizer.h - from the name that the service gives a model to its tokenizer. */
#ifndef CLIENT_MODEL_TOKENIZER_H
#define CLIENT_MODEL_TOKENIZER_H

#include <tinker/sampling.h>

/* By the answer of get_info or get_sampler.  Reads files; any thread but the loop's. */
tinker_tokenizer *model_tokenizer_load(const tinker_future *answer,
                                       const tinker_tokenizer_options *opts, tinker_error *err);

#endif
