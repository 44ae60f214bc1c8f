/* linux.c - what differs between operating systems: the machine, events, files.
 *
 * A port to another system writes this file again.  Every descriptor is opened
 * close-on-exec; interrupted calls are repeated.  Thread-safe. */
#define _GNU_SOURCE
#include "base/os.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/err.h"

int os_random(void *p, size_t n)
{
    unsigned char *out = p;
    /* Requests of more than 256 bytes may be cut short by a signal. */
    while (n) {
        ssize_t got = getrandom(out, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        out += got;
        n -= (size_t)got;
    }
    return 0;
}

/* ---- the machine -------------------------------------------------------------- */

/* The kernel grants the state of the tile registers, 8 KB per thread that uses them, to
 * processes that ask.  Old kernels say no, and so do others where a signal's stack is too small
 * to save it. */
bool os_allow_tiles(void)
{
#if defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

#define CGROUP_ROOT "/sys/fs/cgroup"

/* The folder of our control group (version 2), "" when there is none. */
static void cgroup_folder(char *out, size_t size)
{
    char line[512];
    out[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return;
    /* "0::/path" is the line of version 2; the others are controllers of version 1. */
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::", 3) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(out, size, CGROUP_ROOT "%s", strcmp(line + 3, "/") == 0 ? "" : line + 3);
    }
    fclose(f);
}

/* Go to the parent group; false at the top.  A limit of any of them binds. */
static bool cgroup_parent(char *folder)
{
    char *slash = strrchr(folder, '/');
    if (!slash || strlen(folder) <= strlen(CGROUP_ROOT))
        return false;
    *slash = '\0';
    return true;
}

/* First line of a file of the group, without newline. */
static bool cgroup_read(const char *folder, const char *name, char *out, size_t size)
{
    char path[640];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(out, (int)size, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok;
}

int os_cpu_count(void)
{
    /* The affinity mask is what taskset and cpusets leave to this process. */
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        n = 1;
    /* A container may see all cores and yet get the time of a few: the tightest quota of our group
     * and its parents, "<quota> <period>" in microseconds, counts. */
    char folder[576], line[128];
    cgroup_folder(folder, sizeof folder);
    if (!folder[0])
        return n;
    do {
        double quota, period;
        if (cgroup_read(folder, "cpu.max", line, sizeof line) &&
            sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0) {
            double cpus = (quota + period - 1) / period; /* may be larger than an int */
            if (cpus < n)
                n = cpus >= 1 ? (int)cpus : 1;
        }
    } while (cgroup_parent(folder));
    return n;
}

/* The figure that follows `key` at the start of a line of `path`. */
static bool read_figure(const char *path, const char *key, uint64_t *out)
{
    char line[128];
    unsigned long long n;
    size_t len = strlen(key);
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f))
        found = strncmp(line, key, len) == 0 && sscanf(line + len, " %llu", &n) == 1;
    fclose(f);
    if (found)
        *out = n;
    return found;
}

/* A system call, so it works where /proc is not mounted.  It does not say how much the caches
 * would give back: assume that at least half of the memory is available. */
static uint64_t sysinfo_available(void)
{
    struct sysinfo s;
    if (sysinfo(&s) != 0 || s.totalram == 0)
        return OS_MEMORY_UNKNOWN;
    uint64_t half = s.totalram / 2, unused = (uint64_t)s.freeram + s.bufferram;
    return (unused > half ? unused : half) * (s.mem_unit ? s.mem_unit : 1);
}

/* "MemAvailable" is the kernel's own estimate, since Linux 3.14. */
static uint64_t machine_available(const char *meminfo)
{
    uint64_t kb;
    return read_figure(meminfo, "MemAvailable: ", &kb) ? kb * 1024 : sysinfo_available();
}

/* The files of a control group that tell its memory, in either version. */
struct cgroup_memory {
    const char *limit, *used, *cache;
};

/* What a group may still take; clean pages of files are counted as its use but given back
 * when they are needed. */
static uint64_t cgroup_available(const char *folder, const struct cgroup_memory *names)
{
    char limit[128], used[128], stat[640];
    unsigned long long max, now;
    uint64_t cache = 0;
    if (!cgroup_read(folder, names->limit, limit, sizeof limit) ||
        !cgroup_read(folder, names->used, used, sizeof used) || sscanf(limit, "%llu", &max) != 1 ||
        sscanf(used, "%llu", &now) != 1)
        return OS_MEMORY_UNKNOWN; /* no such group, or "max" */
    snprintf(stat, sizeof stat, "%s/memory.stat", folder);
    read_figure(stat, names->cache, &cache);
    /* Both figures change while they are read: never below zero. */
    now = now > cache ? now - cache : 0;
    return max > now ? max - now : 0;
}

/* No limit is the largest number, so the minimum works without a special case. */
static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void os_memory_return(void)
{
    malloc_trim(0);
}

uint64_t os_memory_free(void)
{
    static const struct cgroup_memory v2 = { "memory.max", "memory.current", "inactive_file " };
    static const struct cgroup_memory v1 = { "memory.limit_in_bytes", "memory.usage_in_bytes",
                                             "total_inactive_file " };
    /* The least of what the machine has and what each group on the way up may still take. */
    uint64_t bytes = machine_available("/proc/meminfo");
    char folder[576];
    cgroup_folder(folder, sizeof folder);
    if (!folder[0]) /* without /proc: a container sees its own group there */
        snprintf(folder, sizeof folder, "%s", CGROUP_ROOT);
    do
        bytes = min_u64(bytes, cgroup_available(folder, &v2));
    while (cgroup_parent(folder));
    return min_u64(bytes, cgroup_available(CGROUP_ROOT "/memory", &v1));
}

void os_thread_name(const char *name)
{
    /* Longer names are refused, not cut, so cut them here. */
    char cut[16]; /* the kernel's limit, NUL included */
    snprintf(cut, sizeof cut, "%s", name);
    pthread_setname_np(pthread_self(), cut);
}

/* ---- events -------------------------------------------------------------------- */

/* Entries of a directory of numbers; -1: it cannot be read. */
static int64_t count_entries(const char *path)
{
    DIR *d = opendir(path);
    int64_t n = 0;
    if (!d)
        return -1;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n - 1; /* the directory itself was one of them */
}

/* Descriptors, not files.  unused is of this moment: the program opens others later. */
bool os_file_limit(int64_t *limit, int64_t *unused)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur > INT32_MAX)
        return false;
    int64_t used = count_entries("/proc/self/fd");
    *limit = (int64_t)r.rlim_cur;
    if (used < 0) /* perhaps because none is free */
        used = *limit;
    *unused = used < *limit ? *limit - used : 0;
    return true;
}

int os_event_open(void)
{
    /* One descriptor instead of the two of a pipe, and a counter instead of a full pipe. */
    return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

void os_event_signal(int fd)
{
    /* A signal handler may call this between any two lines of the program. */
    int saved = errno;
    uint64_t one = 1;
    /* EAGAIN means the counter is full: it is readable, which is all we want */
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    errno = saved;
}

/* The descriptor is non-blocking: without a signal this returns at once. */
void os_event_drain(int fd)
{
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

/* The number stays, so that poll sets that hold it stay valid. */
int os_event_renew(int fd)
{
    int own = os_event_open();
    if (own < 0)
        return -1;
    int rc = dup3(own, fd, O_CLOEXEC);
    close(own);
    return rc < 0 ? -1 : 0;
}

/* ---- files --------------------------------------------------------------------- */

/* open() on a slow file system may be interrupted by a signal. */
static int open_retry(const char *path, int flags, mode_t mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Open a regular file for reading; -1 with *err set. */
static int open_regular(const char *path, struct stat *st, tinker_error *err)
{
    int fd = open_retry(path, O_RDONLY, 0);
    if (fd < 0) {
        err_errno(err, "open", path);
        return -1;
    }
    if (fstat(fd, st) != 0) {
        err_errno(err, "stat", path);
        close(fd);
        return -1;
    }
    /* open() takes a folder for reading; read() and mmap() would fail with less to say. */
    if (S_ISDIR(st->st_mode)) {
        errno = EISDIR;
        err_errno(err, "open", path);
        close(fd);
        return -1;
    }
    return fd;
}

/* POLLRDHUP is seen also behind bytes that were not read yet, as the end of a TLS session is. */
size_t os_find_closed(const int *fds, size_t n, bool *gone)
{
    size_t found = 0;
    struct pollfd *list = calloc(n ? n : 1, sizeof(*list));
    if (!list)
        return 0;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct pollfd){ .fd = fds[i], .events = POLLRDHUP };
    bool any = poll(list, (nfds_t)n, 0) > 0;
    for (size_t i = 0; i < n; i++) {
        gone[i] = any && list[i].revents != 0;
        found += gone[i];
    }
    free(list);
    return found;
}

tinker_status os_map_open(struct os_map *m, const char *path, tinker_error *err)
{
    struct stat st;
    *m = (struct os_map){ 0 };
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return TINKER_ESTATE;
    if (st.st_size == 0) { /* mmap refuses length 0 */
        close(fd);
        m->data = "";
        return TINKER_OK;
    }
    if ((uintmax_t)st.st_size > SIZE_MAX) {
        close(fd);
        return err_set(err, TINKER_ESTATE, "map %s: too large for this machine", path);
    }
    /* The map stays when the descriptor is closed. */
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    tinker_status status = p == MAP_FAILED ? err_errno(err, "map", path) : TINKER_OK;
    close(fd);
    if (status == TINKER_OK)
        *m = (struct os_map){ p, (size_t)st.st_size };
    return status;
}

#define LARGE_PAGE ((size_t)2 << 20)

/* Small pages cost a fault each at first and a look-up in the page tables later; a table much
 * larger than the translation cache pays that at nearly every access.  Large pages must be
 * aligned, which newer kernels do by themselves. */
void *os_map_new(struct os_map *m, size_t len)
{
    const size_t large = LARGE_PAGE, extra = len >= large ? large : 0;
    *m = (struct os_map){ 0 };
    if (len == 0 || len > SIZE_MAX - large)
        return NULL;
    char *p = mmap(NULL, len + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (extra) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (len + page - 1) / page * page;
        /* Ask for one page more, and give back what lies before and behind the aligned part. */
        size_t skip = (large - (uintptr_t)p % large) % large;
        if (skip > 0)
            munmap(p, skip);
        if (end < len + extra - skip)
            munmap(p + skip + end, len + extra - skip - end);
        p += skip;
        madvise(p, len, MADV_HUGEPAGE);
    }
    *m = (struct os_map){ p, len };
    return p;
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1, which older headers do not know */
#endif

size_t os_large_page(void)
{
    return LARGE_PAGE;
}

/* false: the kernel cannot do it at all, and asking again is of no use. */
bool os_make_large_page(void *p)
{
    /* These mean "not now": the kernel has the call, but no page to spare or one under I/O. */
    return madvise(p, LARGE_PAGE, MADV_COLLAPSE) == 0 || errno == EAGAIN || errno == ENOMEM ||
           errno == EBUSY;
}

/* A page at the edge belongs to the neighbor, too, and stays. */
void os_map_release(void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + n) / page * page;
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Harmless for a map of no bytes, which mmap() has not seen. */
void os_map_evict(const void *data, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data;
    uintptr_t first = (from + page - 1) / page * page, end = (from + n) / page * page;
    if (end > first)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

void os_map_close(struct os_map *m)
{
    if (m->len)
        munmap((void *)(uintptr_t)m->data, m->len);
    *m = (struct os_map){ 0 };
}

/* Everything that fd still has, at most max bytes, appended to out. */
static tinker_status read_all(int fd, const char *path, size_t max, struct buf *out,
                              tinker_error *err)
{
    for (;;) {
        char chunk[16384];
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "read", path);
        if (n == 0)
            return buf_reserve(out, 0) ? TINKER_OK : err_nomem(err, path);
        /* Checked before appending, so a limit of max bytes never allocates more. */
        if ((size_t)n > max - out->len)
            return err_set(err, TINKER_EINVAL, "%s is larger than the limit of %zu bytes", path,
                           max);
        buf_append(out, chunk, (size_t)n);
        if (!buf_ok(out))
            return err_nomem(err, path);
    }
}

tinker_status os_read_file(const char *path, size_t max, char **data, size_t *len,
                           tinker_error *err)
{
    struct stat st;
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return TINKER_ESTATE;
    struct buf b;
    buf_init(&b, max);
    /* the size is a hint only: files of /proc say 0, and a file may grow */
    if (st.st_size > 0 && (uintmax_t)st.st_size <= max && !buf_reserve(&b, (size_t)st.st_size)) {
        close(fd);
        return err_nomem(err, path);
    }
    tinker_status status = read_all(fd, path, max, &b, err);
    close(fd);
    size_t n = b.len;
    if (status == TINKER_OK) {
        *data = buf_detach(&b, NULL);
        if (len)
            *len = n;
    }
    buf_clear(&b);
    return status;
}

/* A new file with all of the data on the disk; the name is the caller's to remove on failure. */
static tinker_status write_and_sync(const char *path, const void *data, size_t len,
                                    tinker_error *err)
{
    int fd = open_retry(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return err_errno(err, "create", path);
    tinker_status status = TINKER_OK;
    for (size_t done = 0; done < len && status == TINKER_OK;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            status = err_errno(err, "write", path);
    }
    /* Before the rename: else a crash could leave the new name with no data. */
    if (status == TINKER_OK && fsync(fd) != 0)
        status = err_errno(err, "sync", path);
    if (close(fd) != 0 && status == TINKER_OK)
        status = err_errno(err, "close", path);
    return status;
}

tinker_status os_write_file(const char *path, const void *data, size_t len, tinker_error *err)
{
    uint64_t unique;
    if (os_random(&unique, sizeof unique) != 0)
        return err_errno(err, "random number for", path);
    char *tmp = NULL;
    if (asprintf(&tmp, "%s.tmp.%016llx", path, (unsigned long long)unique) < 0)
        return err_nomem(err, path);
    /* Written beside it and renamed: a reader sees the old file or the new one, never a part. */
    tinker_status status = write_and_sync(tmp, data, len, err);
    if (status == TINKER_OK && rename(tmp, path) != 0)
        status = err_errno(err, "rename to", path);
    if (status != TINKER_OK)
        unlink(tmp);
    free(tmp);
    if (status != TINKER_OK)
        return status;
    /* The name is in the folder, so that must reach the disk, too: "a/b" -> "a", "b" -> ".",
     * "/b" -> "/". */
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    status = folder ? os_sync_dir(folder, err) : err_nomem(err, path);
    free(folder);
    return status;
}

tinker_status os_sync_dir(const char *path, tinker_error *err)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return err_errno(err, "open", path);
    /* some file systems cannot sync a folder and say EINVAL: nothing more can be done there */
    tinker_status status =
        fsync(fd) == 0 || errno == EINVAL ? TINKER_OK : err_errno(err, "sync", path);
    close(fd);
    return status;
}

/* Links are followed. */
bool os_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *os_full_path(const char *path)
{
    /* realpath() fails for what does not exist yet, whose name is good enough. */
    char *full = realpath(path, NULL);
    return full ? full : strdup(path);
}

static tinker_status make_dir(const char *path, tinker_error *err)
{
    /* Another process may create it at the same time: all that matters is that it exists. */
    if (mkdir(path, 0700) == 0 || (errno == EEXIST && os_is_dir(path)))
        return TINKER_OK;
    return err_errno(err, "create folder", path);
}

/* Like mkdir -p; new folders are for the owner alone. */
tinker_status os_make_dirs(const char *path, tinker_error *err)
{
    char *copy = strdup(path);
    if (!copy)
        return err_nomem(err, path);
    tinker_status status = TINKER_OK;
    for (char *p = copy + 1; status == TINKER_OK && copy[0] && *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        /* a folder above may exist and yet be closed to us: ask only for missing ones */
        if (!os_is_dir(copy))
            status = make_dir(copy, err);
        *p = '/';
    }
    if (status == TINKER_OK)
        status = make_dir(copy, err);
    free(copy);
    return status;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1; /* somebody else removed it */
}

tinker_status os_remove_tree(const char *path, tinker_error *err)
{
    /* depth first, and a link is removed, never followed */
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return TINKER_OK;
    return err_errno(err, "remove", path);
}
