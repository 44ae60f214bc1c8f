/* adapter.h - inside a tinker_adapter: a flat parameter buffer and what belongs to it.
 *
 * All trained tensors lie in one float buffer in a fixed order (params); gradient
 * and Adam moments have the same layout.  With rank > 0 `lora` views the buffer;
 * with rank 0 the buffer holds every weight of the model and `model` is packed
 * from it.  The gradient exists only between a pass and the step that uses it. */
#ifndef ENGINE_ADAPTER_H
#define ENGINE_ADAPTER_H

#include "engine/layers/lora.h"
#include "engine/model/model.h"
#include "engine/model/params.h"

struct tinker_adapter {
    tinker_engine *engine;
    uint64_t id;      /* never used twice in a process; (id, steps) names these weights */
    tinker_lora desc; /* has_seed is always set */
    double alpha;
    struct params params;
    float *w;      /* (params.total) */
    float *grad;   /* NULL: zero */
    float *m, *v;  /* NULL: zero */
    bool snapshot; /* never trained */
    int64_t steps;
    struct lora lora;    /* rank > 0 */
    struct model *model; /* rank 0 */
    bool stale;          /* rank 0: w changed since packing */
};

/* The weights to compute with.  a NULL: the base model.  Rank 0: packs first when
 * the parameters changed, so call it at the beginning of each step of work.  NULL:
 * out of memory while packing. */
const struct model *adapter_model(tinker_engine *e, tinker_adapter *a);
/* NULL for the base model and for rank 0. */
const struct lora *adapter_lora(const tinker_adapter *a);

/* An adapter with zero weights (desc.has_seed set), without moments. */
tinker_adapter *adapter_make(tinker_engine *e, const tinker_lora *lora, double alpha,
                             tinker_error *err);
/* Memory for its moments where it has none; false: out of memory. */
bool adapter_moments(tinker_adapter *a);
/* The weights a new LoRA adapter of this seed starts with. */
void adapter_draw(tinker_adapter *a);
/* A zeroed buffer of the parameters' size; free() it.  NULL: no memory. */
float *adapter_buffer(const tinker_adapter *a);

#endif
