/* telemetry.h - events to the service, in batches.  Runs on the loop thread. */
#ifndef CLIENT_TELEMETRY_H
#define CLIENT_TELEMETRY_H

struct holder;
struct telemetry;

#endif
