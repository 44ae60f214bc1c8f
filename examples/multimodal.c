/* multimodal.c - a prompt with an image, and what to do where the model cannot see.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local multimodal [model [image.png]]
 *
 * A prompt is a list of chunks: text, images, and text again.  Whether a model takes images is
 * known when it is asked; the answer of one that does not is an error of category user, so
 * trying again is of no use, and this program goes on with the text alone. */
#include "example.h"

/* A png of one red pixel. */
static const unsigned char red[] = { 0x89, 'P',  'N',  'G',  '\r', '\n', 0x1a, '\n', 0,   0,
                                     0,    13,   'I',  'H',  'D',  'R',  0,    0,    0,   1,
                                     0,    0,    0,    1,    8,    2,    0,    0,    0,   0x90,
                                     0x77, 0x53, 0xde, 0,    0,    0,    12,   'I',  'D', 'A',
                                     'T',  8,    0xd7, 0x63, 0xf8, 0xcf, 0xc0, 0,    0,   3,
                                     1,    1,    0,    0x18, 0xdd, 0x8d, 0xb0, 0,    0,   0,
                                     0,    'I',  'E',  'N',  'D',  0xae, 0x42, 0x60, 0x82 };

static size_t read_image(const char *path, unsigned char *out, size_t size)
{
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(out, 1, size, file) : 0;
    if (file)
        fclose(file);
    expect(n > 0 && n < size, "the image can be read and is not too large");
    return n;
}

static tinker_status sample(tinker_sampler *s, const tinker_chunk *chunks, size_t n)
{
    tinker_model_input input = { chunks, n };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    params.has_seed = 1;
    tinker_future *f =
        tinker_future_await(tinker_sampler_sample(s, &input, &params, NULL, &err), MINUTE_MS, &err);
    if (!f)
        return err.status;
    printf("%zu tokens\n", tinker_future_sample(f)->sequences[0].n);
    tinker_future_free(f);
    return TINKER_OK;
}

int main(int argc, char **argv)
{
    static unsigned char file[1 << 20];
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    int32_t before[] = { 10, 11, 12 }, after[] = { 13, 14 };
    tinker_chunk chunks[] = {
        { .tokens = before, .n_tokens = 3 },
        { .kind = TINKER_CHUNK_IMAGE, .bytes = red, .n_bytes = sizeof(red), .format = "png" },
        { .tokens = after, .n_tokens = 2 },
    };
    if (argc > 2) {
        chunks[1].bytes = file;
        chunks[1].n_bytes = read_image(argv[2], file, sizeof(file));
    }
    printf("with an image of %zu bytes: ", chunks[1].n_bytes);
    if (sample(s, chunks, 3) != TINKER_OK) {
        printf("%s\n", err.message);
        expect(tinker_error_is_user(&err), "the model does not see; nothing is broken");
        printf("with the text alone: ");
        chunks[1] = chunks[2];
        if (sample(s, chunks, 2) != TINKER_OK)
            die("sample");
    }
    tinker_sampler_free(s);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
