/* cmd_version.c - `tinker version`: what this program is; no network. */
#include <stdio.h>
#include <tinker/version.h>

#include "cli/command.h"
#include "cli/opt.h"
#include "cli/out.h"

int cmd_version(int argc, char **argv)
{
    static const struct opt_spec spec = { .command = "version",
                                          .about = "Show version information.",
                                          .example = "tinker version" };
    static const char json[] = "{\"version\":\"" TINKER_VERSION "\",\"api\":\"" TINKER_SDK_VERSION
                               "\",\"features\":[\"client\",\"engine\",\"serve\"]}";
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (globals.json)
        out_json(json, sizeof(json) - 1);
    else
        printf("tinker %s\n", TINKER_VERSION);
    return EXIT_OK;
}
