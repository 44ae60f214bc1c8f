/* listener_socket.h - the socket that a listener listens on.
 *
 * Thread safety: any thread, any time. */
#ifndef SERVER_LISTENER_SOCKET_H
#define SERVER_LISTENER_SOCKET_H

#include "server/http/listener.h"

/* Bind and listen.  *port is the one bound, 0 for a Unix socket.  -1: err says why. */
int listener_socket_open(const struct listener_options *opts, int *port, tinker_error *err);

/* How many connections there may be: as many as asked, less when the system allows
 * fewer descriptors; the rest of those stays for files. */
unsigned listener_socket_limit(int max_connections);

#endif
