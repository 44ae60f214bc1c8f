/* training_op.h - one request of a training client: its parts, their turns and results.
 *
 * forward and forward_backward have one part per chunk, everything else one.  A part
 * waits for its turn, is sent, leaves the turn whatever came of it, and is polled.  One
 * that leaves without having been accepted leaves a gap (seq_gap.h).
 * Of several parallel parts the first is sent last, when the others were accepted: the
 * service starts with the lowest number, so the batch is complete when it starts. */
#ifndef CLIENT_TRAINING_OP_H
#define CLIENT_TRAINING_OP_H

#include "client/call/call.h"
#include "client/training/custom.h"
#include "client/future/operation.h"
#include "client/call/poll.h"
#include "client/future/result.h"
#include "client/training/training_client.h"

struct training_op;

struct training_kind {
    struct operation_class class;
    struct call_spec spec;
    const char *path;
    const struct result_reader *reader;
    enum { TRAINING_SINGLE, TRAINING_PASS, TRAINING_SAMPLER, TRAINING_UNLOAD } result;
};

struct training_part {
    struct training_op *op;
    size_t index;
    size_t data_end;        /* of a pass: the first datum that is not part of it */
    int64_t bytes_estimate; /* of the data, 0: none */
    int64_t queued;         /* bytes that count as not accepted */
    struct buf body;
    struct send_turn turn;
    struct budget_wait bytes;
    struct call call;
    struct poll poll;
    enum { PART_WAITING, PART_INSIDE, PART_LEFT } turn_state;
    struct compress_job *compressing; /* while its body is being compressed */
    bool compressed, accepted;
    tinker_forward_backward *pass;
};

struct training_op {
    struct operation op;
    const struct training_kind *kind;
    tinker_training *training; /* a reference */
    int64_t first_id, started_ns;
    bool parallel, proto_body, conflict_final;
    /* Write the body anew before every try, for what changes with each; may be NULL. */
    void (*renew)(struct training_op *op, struct buf *body);
    size_t n_parts, n_open, n_accepted, n_done; /* open: has not left its turn */
    struct training_part *parts;
    struct custom_metrics *overlay; /* of a custom loss, owned; NULL: none */
    struct custom_job *job;         /* makes the bodies; NULL: they are there */
    struct seq_gap_fill *fill;      /* while it fills the numbers before its own */
    bool filled;                    /* that was done */
};

struct training_op *training_op_new(tinker_training *t, size_t n_parts,
                                    const struct training_kind *kind, tinker_error *err);
void training_op_free(struct training_op *op); /* one that was not submitted */
/* With the ids reserved and the bodies written. */
tinker_future *training_op_submit(struct training_op *op, tinker_error *err);

/* Count the bodies of a batch as queued; all that are, these included. */
int64_t training_op_count(struct training_op *op);
/* The same.  TINKER_ENOMEM: there would be more than the service allows; the caller frees op. */
tinker_status training_op_queue(struct training_op *op, tinker_error *err);

/* The job has made the bodies: send what waits for them.  Loop thread. */
void training_op_resume(struct training_op *op);
void training_op_refuse(struct training_op *op, const tinker_error *err); /* there are none */

/* For the class member of a training_kind. */
void training_op_start(struct operation *op);
void training_op_abandon(struct operation *op);
void training_op_destroy(struct operation *op);

#endif
