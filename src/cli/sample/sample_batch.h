/* sample_batch.h - `tinker sample --in FILE`: many prompts, a line of JSON each. */
#ifndef CLI_SAMPLE_BATCH_H
#define CLI_SAMPLE_BATCH_H

#include "cli/sample/sample_job.h"

struct sample_batch {
    const char *in, *out; /* files; "-" or (out) NULL for standard input and output */
    const struct prompt_model *text;
    const struct sample_params *params; /* of lines that say nothing else */
    const char *system;
    int64_t concurrency;
    bool unordered, resume, raw;
};

/* All lines; the exit status, EXIT_PARTIAL when some failed. */
int sample_batch_run(const struct sample_batch *b, tinker_sampler *s);

#endif
