/* trace.h - --trace FILE: a timeline of the program's requests, for ui.perfetto.dev. */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

#include <stdbool.h>
#include <tinker/service.h>

/* Write every request, retry and pause of the service to the file.  false after the error was
 * printed; *status is then the exit status. */
bool trace_attach(tinker_service *s, const char *path, int *status);
/* After the service was freed: end the file.  Harmless without one. */
void trace_finish(void);

#endif
