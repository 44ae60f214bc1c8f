/* names_cache.c - see names_cache.h. */
#include "cli/output/names_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

enum { NAMES_MAX = 1000 };

void names_cache_keep(const char *kind, const struct listing *l, size_t column)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char dir[4096], path[4200];
    struct buf b;
    if (xdg && *xdg)
        snprintf(dir, sizeof(dir), "%s/tinker/names", xdg);
    else if (home && *home)
        snprintf(dir, sizeof(dir), "%s/.cache/tinker/names", home);
    else
        return;
    buf_init(&b, 1 << 20);
    for (size_t i = column, n = 0; i < l->n && n < NAMES_MAX; i += l->n_columns, n++)
        buf_printf(&b, "%s\n", l->cells[i]);
    snprintf(path, sizeof(path), "%s/%s", dir, kind);
    if (buf_ok(&b) && os_make_dirs(dir, NULL) == TINKER_OK)
        os_write_file(path, b.data ? b.data : "", b.len, NULL);
    buf_clear(&b);
}
