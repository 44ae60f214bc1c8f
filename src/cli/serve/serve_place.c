/* serve_place.c - see serve_place.h. */
#include "cli/serve/serve_place.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/os.h"
#include "json/json.h"

enum { INFO_MAX = 1 << 16 };

/* --data-dir, else $XDG_DATA_HOME/tinker, else ~/.local/share/tinker. */
bool serve_place_data(const char *given, char out[SERVE_PLACE_MAX])
{
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (given)
        snprintf(out, SERVE_PLACE_MAX, "%s", given);
    else if (xdg && *xdg)
        snprintf(out, SERVE_PLACE_MAX, "%s/tinker", xdg);
    else if (home && *home)
        snprintf(out, SERVE_PLACE_MAX, "%s/.local/share/tinker", home);
    else
        return false;
    return true;
}

/* Path of a file in the data directory. */
static void name_data_file(const char *data, const char *name, char out[SERVE_PLACE_MAX + 32])
{
    snprintf(out, SERVE_PLACE_MAX + 32, "%s/%s", data, name);
}

/* Written whole or not at all, by rename(). No fsync(): the file describes a process and is
 * worthless after a crash. */
static tinker_status write_without_sync(const char *path, const char *p, size_t n,
                                        tinker_error *err)
{
    char temporary[SERVE_PLACE_MAX + 40];
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    /* Removed first: what another process left there may be a link, which would be followed. */
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !f)
        close(fd);
    bool ok = f && fwrite(p, 1, n, f) == n;
    if (f)
        ok = fclose(f) == 0 && ok;
    return ok && rename(temporary, path) == 0 ? TINKER_OK : err_errno(err, "write", path);
}

/* {"pid":N,"port":N,"url":"...","path_prefix":"..."} */
tinker_status serve_place_write(const char *data, const struct serve_info *info, tinker_error *err)
{
    char path[SERVE_PLACE_MAX + 32];
    struct buf b;
    struct json_writer w;
    name_data_file(data, "server.json", path);
    buf_init(&b, INFO_MAX);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "pid");
    json_put_int64(&w, info->pid);
    json_put_key(&w, "port");
    json_put_int64(&w, info->port);
    json_put_key(&w, "url");
    json_put_string(&w, info->url);
    json_put_key(&w, "path_prefix");
    json_put_string(&w, info->path_prefix);
    json_put_end_object(&w);
    tinker_status status = write_without_sync(path, b.data ? b.data : "", b.len, err);
    buf_clear(&b);
    return status;
}

/* Only the description goes; the lock belongs to the server and ends with it. */
void serve_place_remove(const char *data)
{
    char path[SERVE_PLACE_MAX + 32];
    name_data_file(data, "server.json", path);
    unlink(path);
}

/* Values that are too long are cut; the URL then leads nowhere.
 * Both ends of the file are this program, so this happens to hand-made files only. */
static void read_string_member(struct json_reader *r, char *out, size_t size)
{
    char *text = NULL;
    if (json_cstring(r, &text))
        snprintf(out, size, "%s", text);
}

/* pid > 1: `serve stop` sends a signal to it, and 0, 1 and negative numbers are not a server.
 * Unknown members are passed over: a newer program may have written the file. */
bool serve_place_read(const char *data, struct serve_info *info)
{
    char path[SERVE_PLACE_MAX + 32], *text;
    size_t n;
    memset(info, 0, sizeof(*info));
    name_data_file(data, "server.json", path);
    if (os_read_file(path, INFO_MAX, &text, &n, NULL) != TINKER_OK)
        return false;
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    arena_init(&arena, 1 << 20);
    json_reader_init(&r, text, n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "pid"))
            json_int64(&r, &info->pid);
        else if (json_str_is(key, "port"))
            json_int64(&r, &info->port);
        else if (json_str_is(key, "url"))
            read_string_member(&r, info->url, sizeof(info->url));
        else if (json_str_is(key, "path_prefix"))
            read_string_member(&r, info->path_prefix, sizeof(info->path_prefix));
        else
            json_skip(&r);
    }
    /* A file that is broken or half written counts as none. */
    bool ok = json_end(&r) && info->pid > 1 && info->url[0];
    arena_clear(&arena);
    free(text);
    return ok;
}

/* The server holds an exclusive flock() on "lock" while it runs; a shared one that is refused
 * tells so without disturbing it. */
bool serve_place_busy(const char *data)
{
    char path[SERVE_PLACE_MAX + 32];
    name_data_file(data, "lock", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool busy = flock(fd, LOCK_SH | LOCK_NB) != 0;
    close(fd);
    return busy;
}
