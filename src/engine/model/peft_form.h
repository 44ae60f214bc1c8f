/* peft_form.h - an adapter with the names and shapes that PEFT applies.
 *
 * Ours differ from PEFT's in three ways, and PEFT drops what it does not know without a word:
 *  - the unembedding is unembed_tokens here, and what the model calls it (lm_head) there;
 *  - the text part of a multimodal model lies in language_model there;
 *  - factors of experts are stacks here.  transformers keeps all experts of a layer in two
 *    parameters, gate_up_proj and down_proj, which PEFT adapts by name (target_parameters):
 *    lora_A (experts * rank, in), expert by expert, and lora_B (out, rank * experts), expert
 *    fastest.  gate and up have a pair each here and one of twice the rank there:
 *    A = [A_gate; A_up], B = [[B_gate, 0], [0, B_up]].
 * Such files are read again by tinker_adapter_load(). */
#ifndef ENGINE_PEFT_FORM_H
#define ENGINE_PEFT_FORM_H

#include "engine/model/params.h"
#include "engine/safetensors/safetensors.h"

/* A tensor of an adapter with our name; a stack has three dimensions. */
struct peft_source {
    const char *name;
    enum source_dtype dtype;
    size_t shape[3], ndim;
    const void *data;
};

struct peft_settings {
    /* NULL: unknown, taken for a dense text model; stacks are refused */
    const struct model_config *config;
    const char *base_name;
    int64_t rank;
    double alpha;
    bool bf16; /* write the weights in bf16; else as the sources have them */
};

/* Write adapter_model.safetensors and adapter_config.json into dir. */
tinker_status peft_form_write(const char *dir, const struct peft_settings *s,
                              const struct peft_source *sources, size_t n, tinker_error *err);

/* The name of the tensor of a file of PEFT that holds a stack; false: p is none. */
bool peft_stack_name(const struct model_config *c, const struct param *p, char out[PARAM_NAME]);
/* Copy a stack out of that tensor.  What ours cannot hold (factors that differ between experts
 * where they share one, gates that use the factors of ups) is refused. */
tinker_status peft_stack_read(const struct model_config *c, const struct param *p,
                              const struct safetensors *file, const struct st_tensor *t, float *out,
                              tinker_error *err);

#endif
