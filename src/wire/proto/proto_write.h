/* proto_write.h - what the protobuf encoders share. */
#ifndef WIRE_PROTO_WRITE_H
#define WIRE_PROTO_WRITE_H

#include <tinker/data.h>
#include "wire/proto/pb.h"

uint64_t proto_dtype_of(tinker_dtype in); /* number on the wire after conversion; 0: none */
/* Bytes of the elements after conversion, and the elements themselves. */
size_t proto_values_size(const tinker_tensor *t);
uint8_t *proto_put_values(uint8_t *p, const tinker_tensor *t);
/* Packed dimensions: content size, and the whole field (nothing when ndim is 0). */
size_t proto_shape_size(const int64_t *shape, size_t ndim);
uint8_t *proto_put_shape(uint8_t *p, unsigned field, const int64_t *shape, size_t ndim);
/* A map<string, double>, all its entries. */
size_t proto_numbers_size(const tinker_named_number *v, size_t n);
uint8_t *proto_put_numbers(uint8_t *p, unsigned field, const tinker_named_number *v, size_t n);

#endif
