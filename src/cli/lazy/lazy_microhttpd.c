/* lazy_microhttpd.c - the functions of libmicrohttpd that src/server calls; see lazy_library.h. */
#include <microhttpd.h>
#include <pthread.h>
#include <stdarg.h>
#include "cli/lazy/lazy_library.h"

#ifndef LAZY_MICROHTTPD /* the Makefile asks the library itself; this is the name on Debian */
#define LAZY_MICROHTTPD "libmicrohttpd.so.12"
#endif

/* As CURL_FUNCTIONS in lazy_curl.c.  The variadic MHD_start_daemon() is passed on to its _va
 * sibling. */
#define MHD_FUNCTIONS(X)                       \
    X(MHD_add_response_header)                 \
    X(MHD_create_response_from_buffer)         \
    X(MHD_create_response_from_callback)       \
    X(MHD_create_response_from_fd_at_offset64) \
    X(MHD_destroy_response)                    \
    X(MHD_get_connection_info)                 \
    X(MHD_get_connection_values)               \
    X(MHD_lookup_connection_value)             \
    X(MHD_queue_response)                      \
    X(MHD_quiesce_daemon)                      \
    X(MHD_resume_connection)                   \
    X(MHD_start_daemon_va)                     \
    X(MHD_stop_daemon)                         \
    X(MHD_suspend_connection)

/* One pointer for each name in the list, of the type that the header gives the function. */
#define MEMBER(name) __typeof__(&name) name;
/* Filled once by load_mhd() and only read afterwards. */
static struct mhd_functions {
    MHD_FUNCTIONS(MEMBER)
} functions;

static void load_mhd(void)
{
    void *library = lazy_load_library(LAZY_MICROHTTPD);
#define FIND(name) lazy_find_function(library, #name, &functions.name);
    MHD_FUNCTIONS(FIND)
}

/* Any thread may come first. */
static const struct mhd_functions *loaded_mhd(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_mhd);
    return &functions;
}

/* A function with "..." cannot pass its arguments on to another one; its sibling takes them as a
 * va_list. */
struct MHD_Daemon *MHD_start_daemon(unsigned flags, uint16_t port, MHD_AcceptPolicyCallback accept,
                                    void *accept_context, MHD_AccessHandlerCallback access,
                                    void *access_context, ...)
{
    va_list options;
    va_start(options, access_context);
    struct MHD_Daemon *d = loaded_mhd()->MHD_start_daemon_va(flags, port, accept, accept_context,
                                                             access, access_context, options);
    va_end(options);
    return d;
}

/* None of the kinds of information that the server asks for takes an argument. */
const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *conn,
                                                        enum MHD_ConnectionInfoType type, ...)
{
    return loaded_mhd()->MHD_get_connection_info(conn, type);
}

/* The rest passes its arguments on unchanged.  Declarations are the library's own, from its
 * header, so a wrong type here does not compile. */
enum MHD_Result MHD_add_response_header(struct MHD_Response *r, const char *name, const char *value)
{
    return loaded_mhd()->MHD_add_response_header(r, name, value);
}

struct MHD_Response *MHD_create_response_from_buffer(size_t size, void *data,
                                                     enum MHD_ResponseMemoryMode mode)
{
    return loaded_mhd()->MHD_create_response_from_buffer(size, data, mode);
}

struct MHD_Response *MHD_create_response_from_callback(uint64_t size, size_t block,
                                                       MHD_ContentReaderCallback read,
                                                       void *context,
                                                       MHD_ContentReaderFreeCallback drop)
{
    return loaded_mhd()->MHD_create_response_from_callback(size, block, read, context, drop);
}

struct MHD_Response *MHD_create_response_from_fd_at_offset64(uint64_t size, int fd, uint64_t offset)
{
    return loaded_mhd()->MHD_create_response_from_fd_at_offset64(size, fd, offset);
}

void MHD_destroy_response(struct MHD_Response *r)
{
    loaded_mhd()->MHD_destroy_response(r);
}

int MHD_get_connection_values(struct MHD_Connection *conn, enum MHD_ValueKind kind,
                              MHD_KeyValueIterator next, void *context)
{
    return loaded_mhd()->MHD_get_connection_values(conn, kind, next, context);
}

const char *MHD_lookup_connection_value(struct MHD_Connection *conn, enum MHD_ValueKind kind,
                                        const char *key)
{
    return loaded_mhd()->MHD_lookup_connection_value(conn, kind, key);
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *conn, unsigned status,
                                   struct MHD_Response *r)
{
    return loaded_mhd()->MHD_queue_response(conn, status, r);
}

MHD_socket MHD_quiesce_daemon(struct MHD_Daemon *d)
{
    return loaded_mhd()->MHD_quiesce_daemon(d);
}

void MHD_resume_connection(struct MHD_Connection *conn)
{
    loaded_mhd()->MHD_resume_connection(conn);
}

void MHD_stop_daemon(struct MHD_Daemon *d)
{
    loaded_mhd()->MHD_stop_daemon(d);
}

/* Held polls: the connection sleeps without a thread until MHD_resume_connection(). */
void MHD_suspend_connection(struct MHD_Connection *conn)
{
    loaded_mhd()->MHD_suspend_connection(conn);
}
