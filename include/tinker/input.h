/* input.h - building model inputs and tensors, and asking about them.
 *
 * Everything in data.h is plain data that a program may fill by itself; this is for those who
 * would rather append.  Nothing is sent. */
#ifndef TINKER_INPUT_H
#define TINKER_INPUT_H

#include <tinker/data.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A model input that grows.  Thread safety: one thread at a time. */
typedef struct tinker_input tinker_input;

TINKER_API tinker_input *tinker_input_new(tinker_error *err);
TINKER_API void tinker_input_free(tinker_input *in);
/* Append a copy of a chunk of any kind, or of tokens: a last chunk of text gets longer, else a
 * new one begins.  TINKER_EINVAL: the chunk is malformed; TINKER_ENOMEM.  Nothing changes then. */
TINKER_API tinker_status tinker_input_append(tinker_input *in, const tinker_chunk *chunk,
                                             tinker_error *err);
TINKER_API tinker_status tinker_input_append_tokens(tinker_input *in, const int32_t *tokens,
                                                    size_t n, tinker_error *err);
/* What has been appended, for any call that takes a model input.  Borrowed until the next append
 * or free. */
TINKER_API const tinker_model_input *tinker_input_view(const tinker_input *in);

/* How many tokens an input stands for.  TINKER_EINVAL when an image does not say how many it
 * expects, or audio has no readable header. */
TINKER_API tinker_status tinker_model_input_length(const tinker_model_input *input, int64_t *out,
                                                   tinker_error *err);
/* Its tokens to out[0..cap), when it is all text; *n receives their number, also when there is not
 * room for all.  TINKER_EINVAL: it has other chunks. */
TINKER_API tinker_status tinker_model_input_tokens(const tinker_model_input *input, int32_t *out,
                                                   size_t cap, size_t *n, tinker_error *err);

/* Halves to float32, without loss: IEEE binary16, and bfloat16.  in and out may not overlap. */
TINKER_API void tinker_widen_float16(const uint16_t *in, size_t n, float *out);
TINKER_API void tinker_widen_bfloat16(const uint16_t *in, size_t n, float *out);
/* A matrix as compressed sparse rows, without the elements that are `pad` (0, say, or -1 in
 * target_prompt_logprobs of tinker_sample_options); and back, with pad in all places that are not
 * listed.  What is not a matrix, or would not get smaller, stays dense.  A new tensor of the same
 * type, with memory of its own, for tinker_tensor_free().  NULL with *err set: TINKER_EINVAL,
 * TINKER_ENOMEM. */
TINKER_API tinker_tensor *tinker_tensor_to_sparse(const tinker_tensor *t, int64_t pad,
                                                  tinker_error *err);
TINKER_API tinker_tensor *tinker_tensor_to_dense(const tinker_tensor *t, int64_t pad,
                                                 tinker_error *err);
TINKER_API void tinker_tensor_free(tinker_tensor *t);
/* Does every value of the tensor go to the service as it is?  0: a float64 would be rounded, or
 * something would be refused. */
TINKER_API int tinker_tensor_is_exact(const tinker_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
