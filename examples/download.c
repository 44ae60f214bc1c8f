/* download.c - stream the archive of a checkpoint into a file, with progress.
 *
 *     download tinker://<run>/sampler_weights/<name> [file] */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>

static int show(void *state, int64_t done, int64_t total)
{
    (void)state;
    fprintf(stderr, "\r%3d%% of %lld bytes", total > 0 ? (int)(done * 100 / total) : 100,
            (long long)total);
    return 0; /* go on */
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: download tinker://… [file]\n");
        return 2;
    }
    tinker_error err;
    tinker_download_options opts = TINKER_DOWNLOAD_OPTIONS_INIT;
    opts.force = 1;
    opts.progress = show;
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_rest *r = service ? tinker_service_create_rest(service, &err) : NULL;
    const char *file = argc > 2 ? argv[2] : "checkpoint.tar";
    tinker_future *f = r ? tinker_rest_download_checkpoint(r, argv[1], file, &opts, &err) : NULL;
    int ok = f && tinker_future_wait(f, -1, &err) == TINKER_OK;
    if (ok)
        printf("\n%s\n", tinker_future_path(f));
    else
        fprintf(stderr, "\ndownload: %s\n", err.message);
    tinker_future_free(f);
    tinker_rest_free(r);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
