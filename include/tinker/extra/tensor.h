/* tensor.h - convert tensors: half precision to float32, dense to sparse and back.
 *
 * Thread safety: plain data.  Nothing here blocks. */
#ifndef TINKER_EXTRA_TENSOR_H
#define TINKER_EXTRA_TENSOR_H

#include <tinker/data.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Convert n half-precision values to float32, exactly: IEEE binary16, or bfloat16.  in and out must
 * not overlap. */
TINKER_API void tinker_widen_float16(const uint16_t *in, size_t n, float *out);
TINKER_API void tinker_widen_bfloat16(const uint16_t *in, size_t n, float *out);

/* Convert a matrix to compressed sparse rows, leaving out elements equal to `pad` (for example 0,
 * or -1 in target_prompt_logprobs of tinker_sample_options), or back to dense, with `pad` in every
 * place that is not listed.  A tensor that is not a matrix, or that would not get smaller, stays
 * dense.  Returns a new tensor of the same type with memory of its own, to be freed with
 * tinker_tensor_free(); NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_tensor *tinker_tensor_to_sparse(const tinker_tensor *t, int64_t pad,
                                                  tinker_error *err);
TINKER_API tinker_tensor *tinker_tensor_to_dense(const tinker_tensor *t, int64_t pad,
                                                 tinker_error *err);
/* Free a tensor that one of the two made.  NULL is allowed. */
TINKER_API void tinker_tensor_free(tinker_tensor *t);

/* 1 when every value reaches the service unchanged; 0 when a float64 would be rounded or a value
 * would be refused. */
TINKER_API int tinker_tensor_is_exact(const tinker_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
