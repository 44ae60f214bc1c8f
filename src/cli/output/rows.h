/* rows.h - training runs and checkpoints as the commands show them. */
#ifndef CLI_ROWS_H
#define CLI_ROWS_H

#include <tinker/rest.h>
#include "cli/output/listing.h"

/* The objects of --json, keys in the order of the reference. */
void rows_run_json(struct json_writer *w, const tinker_training_run *run);
void rows_checkpoint_json(struct json_writer *w, const tinker_checkpoint *c);
/* The members without the braces, for an object with more of them. */
void rows_checkpoint_members(struct json_writer *w, const tinker_checkpoint *c);

/* A member of an object: null for no text, for a number below zero, for NaN. */
void rows_put_text(struct json_writer *w, const char *key, const char *value);
void rows_put_count(struct json_writer *w, const char *key, int64_t value);
void rows_put_real(struct json_writer *w, const char *key, double value);

/* "Property", "Value": the columns of one thing. */
extern const char *const rows_properties[2];
void rows_property(struct listing *l, const char *name, const char *value);
/* "Yes (Rank 8)", "Yes", "No" */
void rows_lora(struct listing *l, int is_lora, int64_t rank);

/* "training" or "sampler" */
const char *rows_checkpoint_type(const tinker_checkpoint *c);

#endif
