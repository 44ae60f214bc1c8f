/* pass.h - inside a tinker_pass: its data, its plan and its memory. */
#ifndef ENGINE_PASS_H
#define ENGINE_PASS_H

#include "base/arena.h"
#include "engine/model/adapter.h"
#include "engine/layers/block.h"
#include "engine/layers/lm_head.h"
#include "engine/train/loss.h"

/* Consecutive datums that go through the network together. */
struct micro_batch {
    size_t first, n;            /* datums */
    size_t rows, pages, chunks; /* chunks: states of the delta rule to keep, see delta.h */
};

enum pass_stage { PASS_FORWARD, PASS_HEAD, PASS_BACKWARD, PASS_DONE, PASS_FAILED };

struct tinker_pass {
    tinker_engine *engine;
    tinker_adapter *adapter;
    struct loss loss;
    tinker_datum_loss_fn *custom; /* computes the loss instead; NULL: none */
    void *custom_state;
    double custom_loss;       /* the sum so far */
    bool backward, recompute; /* recompute: keep layer inputs only */
    int64_t adapter_steps;    /* when the pass was made */
    struct arena arena;       /* everything but the work memory */

    struct loss_datum *data;
    int32_t **tokens; /* per datum */
    float **logprobs, **losses, **loss_grads;
    size_t n;
    tinker_forward_backward result;

    struct micro_batch *batches;
    size_t n_batches;
    size_t rows_max, pages_max, chunks_max;

    uint64_t bytes;        /* this pass's part of the engine's pass_bytes */
    uint64_t *expert_rows; /* (layers, experts): how often each was chosen; NULL: no experts */

    /* work memory, sized for the largest micro-batch */
    float *memory;
    size_t memory_bytes;
    struct acts *acts; /* one, or one per layer */
    struct acts_size acts_size;
    float *acts_memory; /* of the first */
    float *x;           /* layer inputs: (layers + 1, rows, hidden), or two without backward */
    float *h, *dx, *dh, *cs, *rstd, *kv;
    struct back back;
    struct lm_head head;
    struct grads grads;
    struct batch batch;
    struct segment *segments;
    float **pages;
    uint32_t *segment_of;
    int32_t *row_tokens;
    struct lm_head_row *rows;

    /* where it stands */
    enum pass_stage stage;
    size_t at; /* micro-batch */
    size_t layer, row;
    size_t scored; /* positions of a datum longer than a chunk of the head that have logprobs */
    const struct model *model;
    float *grad; /* added to the adapter at the end */
};

/* pass_data.c: check and copy the request into p, plan micro-batches. */
tinker_status pass_read(tinker_pass *p, const tinker_datum *data, size_t n, const tinker_loss *loss,
                        tinker_error *err);
/* pass_data.c: fill the metrics once all losses are known. */
void pass_metrics(tinker_pass *p);
/* pass_memory.c: choose recompute, refuse what does not fit beside the other passes,
 * allocate. */
tinker_status pass_allocate(tinker_pass *p, tinker_error *err);
/* pass_memory.c: the work memory of training on one text, with all activations kept or with each
 * layer computed again. */
uint64_t pass_text_bytes(const struct model_config *c, size_t tokens, size_t rank, bool recompute);
/* pass_memory.c: give back all but the result, once it is complete or never will be. */
void pass_release(tinker_pass *p);

#endif
