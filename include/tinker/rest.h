/* rest.h - what the service keeps: sessions, training runs, checkpoints, usage.
 *
 * These calls open no session. */
#ifndef TINKER_REST_H
#define TINKER_REST_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif
#endif
