/* lazy_curl.c - the functions of libcurl that src/http calls; see lazy_library.h. */
#define CURL_DISABLE_TYPECHECK                        /* else the three with ... are macros */
#define curl_url_get           curl_url_get_of_header /* its first argument is const in newer releases only */
#include <curl/curl.h>
#undef curl_url_get
#include <pthread.h>
#include <stdarg.h>
#include "cli/lazy/lazy_library.h"

#ifndef LAZY_CURL /* the Makefile asks the library itself; this is the name on Debian */
#define LAZY_CURL "libcurl.so.4"
#endif

/* Declared with const in every version, so that the definition below has one signature. */
CURLUcode curl_url_get(const CURLU *u, CURLUPart part, char **text, unsigned flags);

/* libcurl's headers check the types of these three with macros of the same name; here the
 * functions themselves are defined. */
#undef curl_easy_setopt
#undef curl_easy_getinfo
#undef curl_multi_setopt

/* Every function of libcurl that src/http calls, once: the struct of pointers and the look-up
 * are made of this list.  One that is missing here is a link error, never a crash. */
#define CURL_FUNCTIONS(X)       \
    X(curl_easy_cleanup)        \
    X(curl_easy_getinfo)        \
    X(curl_easy_init)           \
    X(curl_easy_pause)          \
    X(curl_easy_setopt)         \
    X(curl_easy_strerror)       \
    X(curl_free)                \
    X(curl_global_init)         \
    X(curl_multi_add_handle)    \
    X(curl_multi_cleanup)       \
    X(curl_multi_info_read)     \
    X(curl_multi_init)          \
    X(curl_multi_remove_handle) \
    X(curl_multi_setopt)        \
    X(curl_multi_socket_action) \
    X(curl_slist_append)        \
    X(curl_slist_free_all)      \
    X(curl_url)                 \
    X(curl_url_cleanup)         \
    X(curl_url_get)             \
    X(curl_url_set)

#define MEMBER(name) __typeof__(&name) name;
/* Filled once by load_curl() and only read afterwards. */
static struct curl_functions {
    CURL_FUNCTIONS(MEMBER)
} functions;

static void load_curl(void)
{
    void *library = lazy_load_library(LAZY_CURL);
#define FIND(name) lazy_find_function(library, #name, &functions.name);
    CURL_FUNCTIONS(FIND)
}

/* Any thread may come first. */
static const struct curl_functions *loaded_curl(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_curl);
    return &functions;
}

/* ---- with one argument of a type that the option's number tells -------------------------------- */

CURLcode curl_easy_setopt(CURL *h, CURLoption option, ...)
{
    const struct curl_functions *c = loaded_curl();
    va_list more;
    CURLcode code;
    va_start(more, option);
    /* Numbers of options are ranges by type (curl/curl.h): from 0 long, from 10000 objects, from
     * 20000 functions, from 30000 curl_off_t, from 40000 blobs.  va_arg() must name the right
     * type, or the wrong bytes arrive. */
    if (option < CURLOPTTYPE_OBJECTPOINT)
        code = c->curl_easy_setopt(h, option, va_arg(more, long));
    else if (option >= CURLOPTTYPE_OFF_T && option < CURLOPTTYPE_BLOB)
        code = c->curl_easy_setopt(h, option, va_arg(more, curl_off_t));
    else /* objects, functions and blobs are pointers */
        code = c->curl_easy_setopt(h, option, va_arg(more, void *));
    va_end(more);
    return code;
}

CURLMcode curl_multi_setopt(CURLM *m, CURLMoption option, ...)
{
    const struct curl_functions *c = loaded_curl();
    va_list more;
    CURLMcode code;
    va_start(more, option);
    if (option < (CURLMoption)CURLOPTTYPE_OBJECTPOINT)
        code = c->curl_multi_setopt(m, option, va_arg(more, long));
    else if (option >= (CURLMoption)CURLOPTTYPE_OFF_T)
        code = c->curl_multi_setopt(m, option, va_arg(more, curl_off_t));
    else
        code = c->curl_multi_setopt(m, option, va_arg(more, void *));
    va_end(more);
    return code;
}

/* Whatever the information is, its place is a pointer. */
CURLcode curl_easy_getinfo(CURL *h, CURLINFO info, ...)
{
    va_list more;
    /* The caller's pointer may be to a long, a double or a list; libcurl alone has to know. */
    va_start(more, info);
    CURLcode code = loaded_curl()->curl_easy_getinfo(h, info, va_arg(more, void *));
    va_end(more);
    return code;
}

/* ---- the others pass their arguments on --------------------------------------------------------- */

void curl_easy_cleanup(CURL *h)
{
    loaded_curl()->curl_easy_cleanup(h);
}

CURL *curl_easy_init(void)
{
    return loaded_curl()->curl_easy_init();
}

CURLcode curl_easy_pause(CURL *h, int mask)
{
    return loaded_curl()->curl_easy_pause(h, mask);
}

const char *curl_easy_strerror(CURLcode code)
{
    return loaded_curl()->curl_easy_strerror(code);
}

void curl_free(void *p)
{
    loaded_curl()->curl_free(p);
}

CURLcode curl_global_init(long flags)
{
    return loaded_curl()->curl_global_init(flags);
}

CURLMcode curl_multi_add_handle(CURLM *m, CURL *h)
{
    return loaded_curl()->curl_multi_add_handle(m, h);
}

CURLMcode curl_multi_cleanup(CURLM *m)
{
    return loaded_curl()->curl_multi_cleanup(m);
}

CURLMsg *curl_multi_info_read(CURLM *m, int *left)
{
    return loaded_curl()->curl_multi_info_read(m, left);
}

CURLM *curl_multi_init(void)
{
    return loaded_curl()->curl_multi_init();
}

CURLMcode curl_multi_remove_handle(CURLM *m, CURL *h)
{
    return loaded_curl()->curl_multi_remove_handle(m, h);
}

CURLMcode curl_multi_socket_action(CURLM *m, curl_socket_t fd, int events, int *running)
{
    return loaded_curl()->curl_multi_socket_action(m, fd, events, running);
}

struct curl_slist *curl_slist_append(struct curl_slist *list, const char *text)
{
    return loaded_curl()->curl_slist_append(list, text);
}

void curl_slist_free_all(struct curl_slist *list)
{
    loaded_curl()->curl_slist_free_all(list);
}

CURLU *curl_url(void)
{
    return loaded_curl()->curl_url();
}

void curl_url_cleanup(CURLU *u)
{
    loaded_curl()->curl_url_cleanup(u);
}

CURLUcode curl_url_get(const CURLU *u, CURLUPart part, char **text, unsigned flags)
{
    return loaded_curl()->curl_url_get(u, part, text, flags);
}

CURLUcode curl_url_set(CURLU *u, CURLUPart part, const char *text, unsigned flags)
{
    return loaded_curl()->curl_url_set(u, part, text, flags);
}
