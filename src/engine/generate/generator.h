/* generator.h - inside a tinker_generator: requests, their sequences, one step's work.
 *
 * A sequence is a list of tokens of which the first `computed` have keys and values
 * in pages.  All a step does is to compute more positions; when the last known token
 * has been computed, its logits give the next one.  A prompt, a token of decoding and
 * a sequence that lost its pages to an older one and starts over are therefore the
 * same thing, and give the same bits (see forward.h). */
#ifndef ENGINE_GENERATOR_H
#define ENGINE_GENERATOR_H

#include <stdbool.h>
#include "base/arena.h"
#include "engine/model/adapter.h"
#include "engine/train/forward.h"
#include "engine/generate/draft.h"
#include "engine/generate/kv.h"
#include "engine/generate/logit_rule.h"
#include "engine/train/budget.h"
#include "engine/generate/sample.h"

enum {
    GENERATOR_ROWS = 256,    /* rows of one forward batch */
    GENERATOR_PREFILL = 128, /* rows of prompts in one step */
    GENERATOR_DRAFTS = 16,   /* rows of a step with drafts: more cost as much as they save */
    GENERATOR_TOPK_MAX = 1024
};

struct request;

struct sequence {
    struct request *request;
    size_t index;         /* which sample of the request */
    int32_t *tokens;      /* prompt and what was generated */
    float *logprobs;      /* of the generated ones */
    int32_t *topk_tokens; /* (rows, request's sample_topk), grown as they come */
    float *topk_logprobs;
    size_t topk_rows; /* allocated */
    size_t len;
    size_t computed;
    size_t reached; /* the largest `computed` so far */
    struct kv_page **pages;
    float **data; /* the pages' memory, as forward.h wants it */
    float *state; /* of its delta layers while it has pages; NULL: none */
    size_t n_pages;
    size_t published; /* how many pages from the front are published */
    struct draft_state drafts;
    int32_t draft[DRAFT_MAX]; /* of this step */
    size_t came;              /* of it */
    bool done;
    tinker_stop_reason reason;
};

/* What a request wants to know of its prompt beside the prompt's own tokens. */
struct prompt_extras {
    tinker_tensor targets; /* int64 tokens to score, copied; data NULL: none */
    float *target_logprobs;
    size_t alt_k; /* tokens to draw at each position after the first */
    int64_t *alt_tokens;
    float *alt_logprobs;
    size_t from; /* the last position before those that they need; n_prompt: they need none */
};

struct request {
    struct request *next; /* in the list of finished requests */
    void *tag;
    tinker_adapter *adapter;
    uint64_t steps;            /* of the adapter when the request came */
    const struct model *model; /* of this step */
    const struct lora *lora;
    tinker_token_fn *on_token;
    tinker_rivals_fn *on_rivals;
    tinker_mask_fn *on_mask;
    void *state;
    uint64_t cache_scope; /* of its pages */

    struct arena arena; /* prompt, stop tokens, prompt results */
    const int32_t *prompt;
    size_t n_prompt, max_new;
    bool is_long; /* may become longer than the original context, see model_is_long() */
    struct sample_rule rule;
    struct logit_rule logit_rule;
    uint64_t seed;
    const int32_t *stop;
    size_t n_stop;

    struct sequence *samples; /* (num_samples); the first one computes the prompt */
    size_t num_samples;
    bool forked;            /* all samples have started */
    size_t unfinished;      /* samples */
    float *prompt_logprobs; /* NULL: not asked for */
    size_t scored;          /* up to here prompt positions have their scores or want none */
    size_t logprobs_from;   /* the last position without logprob and likeliest tokens */
    size_t topk;
    int32_t *topk_tokens;
    float *topk_logprobs;
    size_t sample_topk;
    struct prompt_extras extras;
    uint64_t kept;       /* its part of the generator's kept */
    uint64_t page_needs; /* and of the generator's page_needs */
    int64_t cache_hits;
    bool canceled;
    tinker_error error; /* status TINKER_OK: none */
    tinker_sample result;
};

/* A row of the batch whose logits are needed, and what came of them. */
struct want {
    struct sequence *sequence;
    size_t position;
    size_t row;           /* in the batch */
    size_t first;         /* of its draws */
    bool scores;          /* a prompt position that is asked for */
    bool draws;           /* the last known token: its successor is to be drawn */
    size_t ahead;         /* or token ahead - 1 of the draft, if it comes */
    bool due;             /* everything before the row is known: it can be evaluated */
    bool bad;             /* logits are not finite */
    bool barred;          /* the mask leaves no token */
    const uint64_t *mask; /* of the tokens that may be drawn; NULL: all */
};

struct draw {
    int32_t token;
    float logprob;
};

/* One sequence's part of a step. */
struct work {
    struct sequence *sequence;
    size_t rows;
    size_t drafted; /* of these rows, the last ones */
};

struct tinker_generator {
    tinker_engine *engine;
    struct kv kv;
    struct budget_user budget; /* its part of the engine's memory */
    uint64_t page_needs;       /* pages that running requests may come to need, together */
    size_t state_floats;       /* of a sequence's delta layers; 0: the model has none */
    size_t state_pages;        /* as many pages as that takes, rounded up */
    struct sequence **active;  /* oldest first */
    size_t n_active, cap_active;
    size_t unfinished; /* requests */
    uint64_t kept;     /* bytes that likeliest and drawn tokens of all requests may take */
    struct request *finished, **finished_end;
    struct request *given;  /* lent out by tinker_generator_next() */
    bool stepping;          /* inside step: cancel only marks */
    uint64_t drafted, came; /* tokens that were guessed, and those of them that came */

    /* of one step */
    struct forward_space *space;
    size_t space_rank;
    float *h, *logits;
    size_t logit_rows;
    struct work *work;
    size_t n_work;
    struct want *wants; /* (GENERATOR_ROWS) */
    struct draw *draws;
    size_t cap_draws;
    struct candidate *scratch; /* (threads, vocab) */
    _Atomic int *scratch_taken;
    const struct lora **row_lora;
    int32_t *row_tokens;
    struct segment *segments;
};

/* generator_step.c */
tinker_status generator_buffers(tinker_generator *g, tinker_error *err);
/* generator_pages.c: what keeps sequences in pages */
void sequence_release(tinker_generator *g, struct sequence *s);
void sequence_reuse_prefix(tinker_generator *g, struct sequence *s);
void sequence_publish(tinker_generator *g, struct sequence *s);
bool sequence_share_prompt(tinker_generator *g, struct sequence *to, const struct sequence *from);
/* Tell the engine what the generator holds and was promised. */
void generator_account(tinker_generator *g);
/* Bytes to promise when running requests need so many pages and keep so many bytes. */
uint64_t generator_reserve(const tinker_generator *g, uint64_t pages, uint64_t kept);
/* Choose the step's work: rows per sequence, with pages for them. */
void generator_schedule(tinker_generator *g);
/* generator_draw.c: logits of the wanted rows [first, first + n) that are due into draws and
 * scores */
void generator_evaluate(tinker_generator *g, size_t first, size_t n);

/* generator_extras.c: chosen and drawn tokens at positions of the prompt */
tinker_status extras_check(const tinker_generator *g, const tinker_generate *q, tinker_error *err);
bool extras_init(struct request *r, const tinker_generate *q);
/* Position `at` of the prompt, with the logits of the token before it. */
void extras_score(struct request *r, size_t at, const float *z, size_t vocab,
                  const struct logits_norm *norm);
bool extras_result(struct request *r); /* into r->result */

/* generator.c */
bool request_scores(const struct request *r); /* anything of its prompt */
bool sequence_topk_room(struct sequence *s);  /* for the next token */
bool generator_activate(tinker_generator *g, struct sequence *s, size_t at);
void generator_sweep(tinker_generator *g); /* take ended sequences and requests away */
void request_fail(struct request *r, tinker_status status, const char *message);

#endif
