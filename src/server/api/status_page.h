/* status_page.h - the status page as one HTML document. */
#ifndef SERVER_STATUS_PAGE_H
#define SERVER_STATUS_PAGE_H

#include <stddef.h>

extern const char status_page_html[];
extern const size_t status_page_html_size;
/* Stands once in the page; without it the field for the API key shows. */
#define STATUS_PAGE_KEY_HIDDEN " hidden data-no-key"

#endif
