/* download.c - stream the archive of a checkpoint into a file, with progress, and unpack it.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
 *         download tinker://<run>/sampler_weights/<name> [file [new directory]]
 *
 * The file appears when it is complete.  What is in an archive is not trusted: one with links, or
 * with names that lead elsewhere, is refused as a whole. */
#include "example.h"

static int show(int64_t done, int64_t total, void *state)
{
    (void)state;
    if (total > 0)
        fprintf(stderr, "\r%3d%% of %lld bytes", (int)(done * 100 / total), (long long)total);
    else
        fprintf(stderr, "\r%lld bytes", (long long)done); /* the length was not told */
    return 0;                                             /* go on */
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: download tinker://… [file [new directory]]\n");
        return 2;
    }
    const char *file = argc > 2 ? argv[2] : "checkpoint.tar";
    tinker_download_options opts = TINKER_DOWNLOAD_OPTIONS_INIT;
    opts.force = 1;
    opts.progress = show;
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_rest *r = need(tinker_service_create_rest(service, &err), "REST client");
    tinker_future *f = /* however long it takes: the progress is shown */
        need(tinker_future_await(tinker_rest_download_checkpoint(r, argv[1], file, &opts, &err), -1,
                                 &err),
             "download");
    fputc('\n', stderr);
    printf("%s\n", tinker_future_file(f));
    if (argc > 3) {
        if (tinker_archive_extract(file, argv[3], &err) != TINKER_OK)
            die("extract");
        printf("unpacked into %s\n", argv[3]);
    }
    tinker_future_free(f);
    tinker_rest_free(r);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
