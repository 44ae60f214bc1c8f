/* open_page.h - show an address in the user's browser. */
#ifndef CLI_OPEN_PAGE_H
#define CLI_OPEN_PAGE_H

/* With the program of BROWSER, else the usual openers of a desktop.  Does not wait for it.  -1:
 * none could be started. */
int open_page(const char *url);

#endif
