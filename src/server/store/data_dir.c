/* data_dir.c - see data_dir.h.
 *
 * Everything is changed through descriptors that were opened without following links, so a name
 * that is exchanged meanwhile cannot lead the change elsewhere.  The directory itself is closed
 * first: from then on nobody else can exchange anything. */
#include "server/store/data_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os.h"

enum { DIR_MODE = 0700, FILE_MODE = 0600, DEPTH_MAX = 8 };

/* What one walk has changed. */
struct repair {
    size_t n;
    bool failed;
    tinker_error *err;
};

/* The first failure is the one that is told; what follows is mostly its consequence. */
static void fail_repair(struct repair *r, const char *what, const char *name)
{
    if (!r->failed)
        err_errno(r->err, what, name);
    r->failed = true;
}

/* Take the rights of others away from what fd is. */
static void close_to_others(int fd, const struct stat *st, const char *name, struct repair *r)
{
    mode_t mode = S_ISDIR(st->st_mode) ? DIR_MODE : FILE_MODE;
    if (!(st->st_mode & 077))
        return;
    if (fchmod(fd, mode) != 0)
        fail_repair(r, "change the mode of", name);
    else
        r->n++;
}

/* Walk a directory, whose descriptor is taken over.  There are few levels: checkpoints and the
 * directories of the weights. */
static void repair_tree(int dir_fd, const char *place, int depth, struct repair *r)
{
    DIR *d = fdopendir(dir_fd);
    if (!d) {
        fail_repair(r, "open", place);
        close(dir_fd);
        return;
    }
    for (struct dirent *e; !r->failed && (e = readdir(d)) != NULL;) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue; /* it went meanwhile */
        if (S_ISLNK(st.st_mode)) {
            err_set(r->err, TINKER_ESTATE,
                    "%s/%s is a link: nothing in a data directory may lead elsewhere; remove it, "
                    "or move there what it leads to",
                    place, e->d_name);
            r->failed = true;
        }
        if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
            continue;
        bool deeper = S_ISDIR(st.st_mode) && depth < DEPTH_MAX;
        if (!(st.st_mode & 077) && !deeper)
            continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) {
            fail_repair(r, "open", e->d_name);
            break;
        }
        close_to_others(fd, &st, e->d_name, r);
        if (deeper)
            repair_tree(fd, e->d_name, depth + 1, r);
        else
            close(fd);
    }
    closedir(d);
}

tinker_status data_dir_secure(const char *path, const struct log *log, bool *exposed,
                              tinker_error *err)
{
    struct stat st;
    tinker_error local = { 0 };
    struct repair r = { .err = err ? err : &local };
    *exposed = false;
    tinker_status status = os_make_dirs(path, err);
    if (status != TINKER_OK)
        return status;
    /* The path itself may be a link of the user's: it is theirs to choose. */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        err_errno(err, "open", path);
        if (fd >= 0)
            close(fd);
        return TINKER_ESTATE;
    }
    if (st.st_uid != geteuid()) {
        close(fd);
        return err_set(err, TINKER_ESTATE,
                       "%s belongs to another user, who could read and change everything in it; "
                       "choose another directory (--data-dir)",
                       path);
    }
    *exposed = (st.st_mode & 077) != 0;
    close_to_others(fd, &st, path, &r);
    repair_tree(fd, path, 0, &r);
    if (r.failed)
        return r.err->status;
    if (r.n)
        log_line(log, LOG_WARNING, "%s was open to other users: closed it, and %zu entries in it",
                 path, r.n - (size_t)*exposed);
    return TINKER_OK;
}

/* O_NONBLOCK: opening a FIFO that somebody put there must fail below, not wait for a writer. */
int data_dir_open_file(const char *path, tinker_error *err)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, FILE_MODE);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && fchmod(fd, FILE_MODE) == 0)
        return fd;
    if (fd < 0 && errno == ELOOP)
        err_set(err, TINKER_ESTATE, "%s is a link; remove it", path);
    else
        err_errno(err, "open", path);
    if (fd >= 0)
        close(fd);
    return -1;
}
