/* rest_types.h - answers of REST calls as the public structs.  Each function decodes a
 * body into the future's arena and sets its value. */
#ifndef CLIENT_REST_TYPES_H
#define CLIENT_REST_TYPES_H

#include "client/rest/rest_op.h"

/* Their addresses tell results apart. */
extern const char type_checkpoints[], type_training_run[], type_training_runs[],
    type_weights_info[], type_strings[], type_session[], type_sampler_info[], type_identity[],
    type_billing[], type_audit[], type_capabilities[], type_model_info[], type_archive[],
    type_files[], type_sessions[], type_storage[];

tinker_status read_checkpoints(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_copied(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_files(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_training_run(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_training_runs(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_weights_info(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_sessions(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_session(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_search(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_storage(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_sampler_info(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_base_model(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_billing(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_audit(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_capabilities(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_health(struct rest_op *r, const char *b, size_t n, tinker_error *err);
tinker_status read_model_info(struct rest_op *r, const char *b, size_t n, tinker_error *err);

#endif
