/* check.h - is this data fit to send, and how large is it?
 *
 * The checks run before anything is sent, so that a mistake costs no request and
 * the message names the place in the caller's data. */
#ifndef WIRE_CHECK_H
#define WIRE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "wire/types.h"

enum {
    WIRE_CHECKPOINT_NAME_MAX = 255, /* characters */
    WIRE_DIMENSIONS_MAX = 32        /* of a tensor */
};

/* data[0..n) for forward_backward: at least one datum; chunks and tensors well formed;
 * dtypes that convert; CSR consistent; no image_asset_pointer.  Messages start with
 * "data[i]". */
tinker_status wire_check_data(const tinker_datum *data, size_t n, tinker_error *err);
/* One model input; pointers says whether image_asset_pointer chunks are allowed
 * (sampling) or not (training).  Messages start with "chunks[i]". */
tinker_status wire_check_model_input(const tinker_model_input *input, bool pointers,
                                     tinker_error *err);
/* A tensor of a request.  Messages start with what is wrong. */
tinker_status wire_check_tensor(const tinker_tensor *t, tinker_error *err);
/* A tensor of a result: as above, but bfloat16 is allowed. */
tinker_status wire_check_result_tensor(const tinker_tensor *t, tinker_error *err);
/* The five loss names, and finite settings. */
tinker_status wire_check_loss(const tinker_loss *loss, tinker_error *err);
tinker_status wire_check_lora(const tinker_lora *lora, tinker_error *err);
tinker_status wire_check_adam(const tinker_adam *adam, tinker_error *err);
tinker_status wire_check_sampling_params(const tinker_sampling_params *params, tinker_error *err);
/* A bare name: 1 to 255 letters, digits, '.', '_' and '-', not starting with a dot. */
tinker_status wire_check_checkpoint_name(const char *name, tinker_error *err);

/* Element type on the wire: float32 or int64; 0 for a type that is not accepted. */
tinker_dtype wire_dtype(tinker_dtype in);
size_t wire_dtype_size(tinker_dtype dtype); /* bytes per element in memory, 0 unknown */

/* Estimated bytes of one datum, by which batches are cut: 4 per token, raw image and
 * audio bytes, tensors at their wire width and 8 per sparse index. */
size_t wire_datum_bytes(const tinker_datum *datum);
/* Estimated bytes of a sampling prompt: as above but 10 per token. */
size_t wire_prompt_bytes(const tinker_model_input *prompt);
/* Tokens a chunk stands for.  TINKER_EINVAL when an image does not say. */
tinker_status wire_chunk_length(const tinker_chunk *chunk, int64_t *length, tinker_error *err);

/* The end of the chunk that starts at datum `first`: the first index not in it.  A
 * chunk holds at most max_len datums and max_bytes estimated bytes, but at least one
 * datum.  *bytes (may be NULL) receives its estimate. */
size_t wire_chunk_end(const tinker_datum *data, size_t n, size_t first, size_t max_len,
                      size_t max_bytes, size_t *bytes);

/* Should a dense R x C matrix with nnz non-zeros be sent sparse?  As the reference. */
bool wire_worth_sparse(size_t rows, size_t cols, size_t nnz);

#endif
