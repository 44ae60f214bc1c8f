/* stream.h - the inside of tinker_stream. */
#ifndef CLIENT_STREAM_H
#define CLIENT_STREAM_H

#include "client/future/future.h"
#include "client/sampling/stream_list.h"
#include <tinker/extra/stream.h>

struct tinker_stream {
    tinker_future *future;
    struct stream_list *list; /* a reference */
};

#endif
