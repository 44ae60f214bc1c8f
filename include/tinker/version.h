/* version.h - what this library is, at compile time and at run time. */
#ifndef TINKER_VERSION_H
#define TINKER_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TINKER_API
#define TINKER_API __attribute__((visibility("default")))
#endif

#define TINKER_VERSION_MAJOR 0
#define TINKER_VERSION_MINOR 1
#define TINKER_VERSION_PATCH 0
#define TINKER_VERSION       "0.1.0"

/* The release of the reference SDK whose wire behavior this library speaks;
 * announced to the service as sdk_version. */
#define TINKER_SDK_VERSION "0.25.0"

/* Version of the library that was loaded, "major.minor.patch".  Borrowed, static. */
TINKER_API const char *tinker_version(void);

#ifdef __cplusplus
}
#endif
#endif
