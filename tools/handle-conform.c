/* handle-conform.c - one sampler shared with the official SDK: see tests/conformance/handles_newest.py.
 *
 *   handle-conform write MODEL_PATH   a handle, the ids of one sample, then whatever is on stdin
 *                                     until its end, so that the session lives
 *   handle-conform read HANDLE        the ids of one sample, made through that handle */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tinker/tinker.h>

static int fail(const tinker_error *err)
{
    fprintf(stderr, "%s\n", err->message);
    return 1;
}

static int print_sample(tinker_sampler *s)
{
    static const int32_t tokens[] = { 5, 6, 7 };
    tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT, .tokens = tokens, .n_tokens = 3 };
    tinker_model_input prompt = { .chunks = &chunk, .n_chunks = 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    tinker_error err;
    p.max_tokens = 8;
    p.has_seed = 1;
    p.seed = 4;
    tinker_future *f =
        tinker_future_await(tinker_sampler_sample(s, &prompt, &p, NULL, &err), 30000, &err);
    const tinker_sample *r = f ? tinker_future_sample(f) : NULL;
    if (!r)
        return fail(&err);
    for (size_t i = 0; i < r->sequences[0].n; i++)
        printf("%d ", (int)r->sequences[0].tokens[i]);
    printf("%s\n", r->sequence_ids ? r->sequence_ids[0] : "-");
    tinker_future_free(f);
    return 0;
}

int main(int argc, char **argv)
{
    tinker_error err;
    tinker_text text = { 0 };
    if (argc != 3)
        return 2;
    tinker_service *service = tinker_service_new(NULL, &err);
    if (!service)
        return fail(&err);
    bool writes = strcmp(argv[1], "write") == 0;
    tinker_sampler *s = writes ? tinker_service_create_sampler(service, NULL, argv[2], 30000, &err)
                               : tinker_service_import_sampler(service, argv[2], &err);
    int status = !s;
    if (s && writes && (status = tinker_sampler_export_handle(s, &text, &err) != TINKER_OK) == 0)
        puts(text.s);
    if (status == 0)
        status = print_sample(s);
    else
        fail(&err);
    fflush(stdout);
    while (writes && getchar() != EOF)
        continue;
    tinker_text_clear(&text);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return status;
}
