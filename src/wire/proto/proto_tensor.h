/* proto_tensor.h - the message Tensor, dense or sparse, of requests and of samples. */
#ifndef WIRE_PROTO_TENSOR_H
#define WIRE_PROTO_TENSOR_H

#include "wire/proto/proto_read.h"

/* Content size and content.  With `shaped`, a tensor that has no shape is a vector. */
size_t proto_tensor_size(const tinker_tensor *t, bool shaped);
uint8_t *proto_put_tensor(uint8_t *p, const tinker_tensor *t, bool shaped);
/* Into *t, which is zero; checked as the tensor of a request is. */
bool proto_read_tensor(struct wire_reader *r, const struct pb_field *field, tinker_tensor *t);

#endif
