/* page_files.h - the page at / as it is served.  tools/embed-page makes the table at build time
 * from the other files of this folder; route_page.c sends it. */
#ifndef SERVER_PAGE_FILES_H
#define SERVER_PAGE_FILES_H

#include <stddef.h>

struct page_file {
    const char *name, *content_type, *etag;
    const unsigned char *data;
    size_t size;
};
extern const struct page_file page_files[];
extern const size_t n_page_files;

#endif
