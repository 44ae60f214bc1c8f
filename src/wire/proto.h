/* proto.h - the three binary messages of the protocol (see tinker_public.proto).
 *
 * Written and read by hand: a batch is measured first, then its payload is copied
 * once into a buffer of exactly that size.  Decoders accept any field order,
 * unknown fields, packed and unpacked numbers; a repeated map key means its last
 * value, and so does a message given twice, whose parts the standard would merge: no
 * writer sends parts.  Everything decoded lives in the arena, aligned, no pointer into
 * the input remains.  Thread-safe. */
#ifndef WIRE_PROTO_H
#define WIRE_PROTO_H

#include <stddef.h>
#include "base/arena.h"
#include "base/buf.h"
#include "wire/types.h"

/* ForwardBackwardRequest.  Checks as wire_check_data() does; TINKER_EINVAL names the
 * place ("data[3].loss_fn_inputs.weights: …").  seq_id absent is sent as 0. */
tinker_status wire_encode_forward_backward_request(const struct wire_forward_backward_request *req,
                                                   struct buf *out, tinker_error *err);
tinker_status wire_decode_forward_backward_request(const void *p, size_t n, struct arena *arena,
                                                   struct wire_forward_backward_request *out,
                                                   tinker_error *err);

/* ForwardBackwardOutput, the result of forward and forward_backward. */
tinker_status wire_encode_forward_backward_output(const tinker_forward_backward *value,
                                                  struct buf *out, tinker_error *err);
tinker_status wire_decode_forward_backward_output(const void *p, size_t n, struct arena *arena,
                                                  tinker_forward_backward *out, tinker_error *err);

/* SampleResponse, the result of asample. */
tinker_status wire_encode_sample_response(const tinker_sample *value, struct buf *out,
                                          tinker_error *err);
tinker_status wire_decode_sample_response(const void *p, size_t n, struct arena *arena,
                                          tinker_sample *out, tinker_error *err);

#endif
