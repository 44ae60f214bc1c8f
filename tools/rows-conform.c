/* rows-conform.c - print the batches that a data file gives, for the conformance tests.
 *
 * rows-conform MODEL_DIR RENDERER FILE TEST_SIZE BATCH EPOCHS [MAX_LENGTH]: one JSON object per
 * datum, {"epoch", "batch", "input", "target_tokens", "weights"}; test rows have epoch -1. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/recipe.h>
#include "base/buf.h"
#include "json/json.h"

static void print_datum(const tinker_datum *d, int64_t epoch, int64_t batch)
{
    struct buf b;
    struct json_writer w;
    const tinker_tensor *targets = &d->inputs[0].tensor, *weights = &d->inputs[1].tensor;
    buf_init(&b, 64 << 20);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "epoch");
    json_put_int64(&w, epoch);
    json_put_key(&w, "batch");
    json_put_int64(&w, batch);
    json_put_key(&w, "input");
    json_put_begin_array(&w);
    for (size_t i = 0; i < d->model_input.n_chunks; i++)
        for (size_t k = 0; k < d->model_input.chunks[i].n_tokens; k++)
            json_put_int64(&w, d->model_input.chunks[i].tokens[k]);
    json_put_end_array(&w);
    json_put_key(&w, "target_tokens");
    json_put_array_int64(&w, targets->data, targets->n);
    json_put_key(&w, "weights");
    json_put_array_float(&w, weights->data, weights->n);
    json_put_end_object(&w);
    printf("%s\n", b.data);
    buf_clear(&b);
}

int main(int argc, char **argv)
{
    tinker_error err;
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    if (argc < 7)
        return 2;
    o.test_size = strtoul(argv[4], NULL, 10);
    o.batch_size = strtoul(argv[5], NULL, 10);
    o.on_truncate = TINKER_TRUNCATE_CUT;
    if (argc > 7)
        o.max_length = strtoul(argv[7], NULL, 10);
    tinker_tokenizer *tok = tinker_tokenizer_load(argv[1], NULL, &err);
    tinker_renderer *r = tok ? tinker_renderer_new(argv[2], tok, NULL, &err) : NULL;
    tinker_rows *rows = r ? tinker_rows_load(argv[3], r, tok, &o, &err) : NULL;
    if (!rows) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    size_t n;
    const tinker_datum *data = tinker_rows_test(rows, &n);
    for (size_t i = 0; i < n; i++)
        print_datum(&data[i], -1, 0);
    for (size_t e = 0; e < strtoul(argv[6], NULL, 10); e++)
        for (size_t b = 0; b < tinker_rows_batches(rows); b++) {
            data = tinker_rows_batch(rows, e, b, &n);
            for (size_t i = 0; i < n; i++)
                print_datum(&data[i], (int64_t)e, (int64_t)b);
        }
    tinker_rows_free(rows);
    tinker_renderer_free(r);
    tinker_tokenizer_free(tok);
    return 0;
}
