/* page.h - the status page as one HTML document. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char page_html[];
extern const size_t page_html_size;
/* Stands once in the page; without it the field for the API key shows. */
#define PAGE_KEY_HIDDEN " hidden data-no-key"

#endif
