/* cmd_version.c - `tinker version`: what this program is; no network. */
#include <stdio.h>
#include <tinker/version.h>

#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"

/* Of the source, as the Makefile tells it; "" outside of a repository. */
#ifndef TINKER_COMMIT
#define TINKER_COMMIT ""
#endif

/* "features" tells scripts what this build can do; "api" is the version of the official SDK
 * whose wire format it speaks. */
int cmd_version(int argc, char **argv)
{
    /* No options of its own: the global --json is all there is to choose. */
    static const struct opt_spec spec = { .command = "version",
                                          .about = "Show version information.",
                                          .example = "tinker version" };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!globals.json) {
        printf("tinker %s\n", TINKER_VERSION);
        return EXIT_OK;
    }
    struct buf b;
    /* Written by hand: three constants and a hash need no writer of JSON. */
    buf_init(&b, 1024);
    buf_puts(&b, "{\"version\":\"" TINKER_VERSION "\",\"commit\":");
    buf_puts(&b, *TINKER_COMMIT ? "\"" TINKER_COMMIT "\"" : "null");
    buf_puts(&b,
             ",\"api\":\"" TINKER_SDK_VERSION "\",\"features\":[\"client\",\"engine\",\"serve\"]}");
    out_json(&b);
    buf_clear(&b);
    return EXIT_OK;
}
