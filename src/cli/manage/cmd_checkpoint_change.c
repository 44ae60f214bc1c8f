/* cmd_checkpoint_change.c - `tinker checkpoint publish`, `unpublish` and `set-ttl`.
 *
 * A checkpoint that already is as it should be is a success, unless --strict. */
#include <stdio.h>
#include "cli/service/api.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"

enum { CONFLICT = 409 };

/* The two calls of the library have the same shape, which is what lets one function serve both. */
typedef tinker_future *visibility_call(tinker_rest *r, const char *path, tinker_error *err);

/* Publish and unpublish differ only in the call. path and strict point into the caller's option
 * table, which opt_parse() fills here. 409 means that the checkpoint already is as wanted. */
static int set_visibility(const struct opt_spec *spec, int argc, char **argv, const char **path,
                          const bool *strict, visibility_call *call, const char *done)
{
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(spec, argc, argv, &status) || !api_check_path(*path, &status) ||
        !api_open(&a, &status))
        return status;
    tinker_future *f = call(a.rest, *path, &err);
    if (f && api_await(f, &err) == TINKER_OK) {
        out_say("%s %s", done, *path);
        status = EXIT_OK;
    } else if (err.http_status == CONFLICT && !*strict) {
        out_say("Nothing to do: %s", err.message);
        status = EXIT_OK;
    } else {
        status = api_fail(&err, f);
    }
    tinker_future_free(f);
    api_close(&a);
    return status;
}

/* Public: other users of the service can load it by its path. */
int cmd_checkpoint_publish(int argc, char **argv)
{
    const char *path = NULL;
    bool strict = false;
    /* Scripts that must know whether they changed anything give --strict; all others may be run
     * twice. */
    const struct opt opts[] = { { .name = "strict",
                                  .kind = OPT_FLAG,
                                  .help = "fail when it is published already",
                                  .out = &strict } };
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
    const struct opt_spec spec = { .command = "checkpoint publish",
                                   .about = "Make a checkpoint public.",
                                   .opts = opts,
                                   .n_opts = 1,
                                   .args = args,
                                   .n_args = 1,
                                   .example =
                                       "tinker checkpoint publish tinker://RUN_ID/weights/0001" };
    return set_visibility(&spec, argc, argv, &path, &strict, tinker_rest_publish_checkpoint,
                          "Published");
}

/* The same call with the other verb; nothing of the checkpoint itself changes. */
int cmd_checkpoint_unpublish(int argc, char **argv)
{
    const char *path = NULL;
    bool strict = false;
    const struct opt opts[] = { { .name = "strict",
                                  .kind = OPT_FLAG,
                                  .help = "fail when it is private already",
                                  .out = &strict } };
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
    const struct opt_spec spec = { .command = "checkpoint unpublish",
                                   .about = "Make a checkpoint private again.",
                                   .opts = opts,
                                   .n_opts = 1,
                                   .args = args,
                                   .n_args = 1,
                                   .example =
                                       "tinker checkpoint unpublish tinker://RUN_ID/weights/0001" };
    return set_visibility(&spec, argc, argv, &path, &strict, tinker_rest_unpublish_checkpoint,
                          "Unpublished");
}

/* The texts of the two usage errors are those of the official program; its --ttl takes seconds
 * only, ours also 12h or 7d. */
int cmd_checkpoint_set_ttl(int argc, char **argv)
{
    const char *path = NULL;
    /* -1: not given; 0 is a value that people type and that is refused. */
    int64_t ttl = -1;
    bool forget = false;
    const struct opt opts[] = {
        { .name = "ttl",
          .kind = OPT_DURATION,
          .value = "TIME",
          .help = "expire after this long: 3600, 12h, 7d",
          .out = &ttl },
        { .name = "remove", .kind = OPT_FLAG, .help = "never expire", .out = &forget },
    };
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
    const struct opt_spec spec = {
        .command = "checkpoint set-ttl",
        .about = "Set or remove the expiration of a checkpoint.",
        .opts = opts,
        .n_opts = 2,
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint set-ttl tinker://RUN_ID/weights/0001 --ttl 7d"
    };
    /* One hint for both mistakes: neither option, or both. */
    static const char hint[] = "Give --ttl TIME to set an expiry, or --remove to take it away.";
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (ttl == -1 && !forget)
        return out_fail(EXIT_USAGE, hint, "Must specify either --ttl <seconds> or --remove");
    if (ttl != -1 && forget)
        return out_fail(EXIT_USAGE, hint, "Cannot specify both --ttl and --remove");
    if (ttl == 0)
        return opt_usage_error(&spec, "Invalid value for '--ttl': must be more than 0.");
    if (!api_check_path(path, &status) || !api_open(&a, &status))
        return status;
    /* 0 stands for "never" in the call, which is why --ttl 0 was refused above. */
    status = api_done(tinker_rest_set_checkpoint_ttl(a.rest, path, forget ? 0 : ttl, &err), &err);
    api_close(&a);
    return status;
}
