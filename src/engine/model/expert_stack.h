/* expert_stack.h - the matrix of one expert in a tensor that holds those of a whole layer.
 *
 *   rows      gate_up_proj (experts, 2 size, hidden), gates above ups; down_proj (experts, hidden,
 *             size), as transformers 5 may write any mixture
 *   columns   gate_up_proj (experts, hidden, 2 size), gates and ups in turn; down_proj (experts,
 *             size, hidden); biases gate_up_proj_bias (experts, 2 size), down_proj_bias: GPT-OSS
 *   blocks    GPT-OSS as released: gate_up_proj_blocks (experts, 2 size, hidden / 32, 16) and
 *             gate_up_proj_scales (experts, 2 size, hidden / 32), rows of gates and ups in turn:
 *             MXFP4, byte i of a block has elements 2 i (low half) and 2 i + 1 */
#ifndef ENGINE_EXPERT_STACK_H
#define ENGINE_EXPERT_STACK_H

#include "engine/model/model.h"
#include "engine/safetensors/weight_files.h"

enum stack_result { STACK_NONE, STACK_FOUND, STACK_WRONG /* *err is set */ };

/* The weight (rows, cols), or bias of cols (rows 0), called `name` when it is an expert's and the
 * files have a stack for it.  out->owned is set where it had to be laid out anew. */
enum stack_result expert_stack_weight(const struct weight_files *files, const struct arch *arch,
                                      const char *name, size_t rows, size_t cols,
                                      struct weight *out, tinker_error *err);

/* Whether the experts of a model are MXFP4 blocks. */
bool expert_stack_is_mxfp4(const struct weight_files *files);

#endif
