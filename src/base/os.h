/* os.h - what differs between operating systems; os/linux.c implements it, os/<system>.c would. */
#ifndef BASE_OS_H
#define BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

int os_cpu_count(void);                /* cores this process may use, >= 1 */
void os_memory_return(void);           /* what free() keeps goes back to the system */
uint64_t os_memory_free(void);         /* bytes, cgroup limits included; or: */
#define OS_MEMORY_UNKNOWN UINT64_MAX   /* the system does not tell, so no limit is known */
void os_thread_name(const char *name); /* of the calling thread */
/* May this process use the tile registers of its CPU (x86 AMX)?  Linux wants to be asked. */
bool os_allow_tiles(void);
int os_random(void *p, size_t n); /* random bytes; 0, or -1 and errno */

/* How many descriptors this process may have open, and how many of these are free; false: no limit
 * that matters. */
bool os_file_limit(int64_t *limit, int64_t *unused);

/* A descriptor that becomes readable when signalled (eventfd, or a pipe). */
int os_event_open(void);      /* -1 and errno on failure */
void os_event_signal(int fd); /* async-signal-safe */
void os_event_drain(int fd);
/* After fork() a descriptor is shared with the parent, which would miss what is drained here: make fd
 * another one, of this process alone, under the same number.  -1 and errno on failure. */
int os_event_renew(int fd);

/* Which of these sockets has the peer closed, or will it send no more to?  gone[i] says so; the
 * count is returned, 0 also when there is no memory to look.  Does not wait; -1 is no socket. */
size_t os_find_closed(const int *fds, size_t n, bool *gone);

/* Read-only map of a whole file.  TINKER_ESTATE with path and reason. */
struct os_map {
    const void *data;
    size_t len;
};
tinker_status os_map_open(struct os_map *m, const char *path, tinker_error *err);
/* Zeroed memory for tables that are read at random, in large pages where the system has them.
 * Returns m->data for writing, or NULL. */
void *os_map_new(struct os_map *m, size_t len);
void os_map_close(struct os_map *m);
/* The whole memory pages inside p[0..n), which is part of an os_map_new(), go back to the system; read
 * again they are zero. */
void os_map_release(void *p, size_t n);
/* Bytes of a file's map are not needed soon: they leave this process, and are read again when asked
 * for.  Never of memory that was written. */
void os_map_evict(const void *data, size_t n);
/* Move memory that is in use into a large page; p is aligned to its size.  false: this system
 * cannot; one that just now has no such page, and leaves all as it is, is true. */
size_t os_large_page(void); /* 0: there are none */
bool os_make_large_page(void *p);

/* Whole file into malloc'd memory, NUL-terminated, refused above max bytes. */
tinker_status os_read_file(const char *path, size_t max, char **data, size_t *len,
                           tinker_error *err);
/* Write to path.tmp.<random> (mode 0600), fsync, rename, fsync the directory. */
tinker_status os_write_file(const char *path, const void *data, size_t len, tinker_error *err);
tinker_status os_sync_dir(const char *path, tinker_error *err);
tinker_status os_make_dirs(const char *path, tinker_error *err); /* like mkdir -p, mode 0700 */
tinker_status os_remove_tree(const char *path, tinker_error *err);
bool os_is_dir(const char *path);
/* From the root, without links; as it is when there is no such file.  free() it; NULL: out of memory. */
char *os_full_path(const char *path);

#endif
