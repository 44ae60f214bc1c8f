/* lazy_library.h - load a shared library at its first call instead of at the start of the program.
 *
 * libcurl and libmicrohttpd bring some thirty libraries with them (TLS twice, LDAP, Kerberos, ...);
 * mapping and relocating those took four of the five milliseconds of `tinker version`.  The program
 * is therefore linked without the two: lazy_curl.c and lazy_microhttpd.c define the functions that
 * it calls, each of which loads the library once and passes the call on.  A function that has no
 * such definition fails to link.  libtinker itself is linked as usual. */
#ifndef CLI_LAZY_LIBRARY_H
#define CLI_LAZY_LIBRARY_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Like the dynamic loader, end the program when a library or a function of it is missing. */
static inline void *lazy_load_library(const char *soname)
{
    void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (library)
        return library;
    fprintf(stderr, "tinker: cannot load %s; is its package installed?\n", dlerror());
    exit(127);
}

/* function: the address of a function pointer, of whatever type; POSIX promises the conversion. */
static inline void lazy_find_function(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "tinker: %s; this library is older than the one tinker was built with\n",
                dlerror());
        exit(127);
    }
    memcpy(function, &found, sizeof(found));
}

#endif
