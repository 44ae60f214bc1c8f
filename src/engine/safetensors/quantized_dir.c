/* quantized_dir.c - see quantized_dir.h. */
#include "engine/safetensors/quantized_dir.h"

#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "json/json.h"

/* What to do instead is the same for all. */
static tinker_status refuse_method(const char *where, const char *what, int n, const char *s,
                                   tinker_error *err)
{
    return err_set(err, TINKER_EINVAL,
                   "%s: %s %.*s, which is not read; take the repository without it and load with "
                   "--dtype q4 or q8, or a GGUF file of the model",
                   where, what, n, s);
}

/* quant_method of the object that the reader is at; GPT-OSS's mxfp4 is a format of ours. */
static void read_method(struct json_reader *r, struct json_str *method)
{
    struct json_str key;
    if (json_peek(r) != JSON_OBJECT) {
        json_skip(r);
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "quant_method") && json_peek(r) == JSON_STRING)
            json_string(r, method);
        else
            json_skip(r);
    }
}

tinker_status quantized_check_config(const char *path, const char *text, size_t n,
                                     tinker_error *err)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key, method = { 0 };
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, text, n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "quantization_config"))
            read_method(&r, &method);
        else
            json_skip(&r);
    }
    tinker_status status = TINKER_OK;
    /* a text that is not JSON is refused by whoever reads all of it */
    if (json_end(&r) && method.s && !json_str_is(method, "mxfp4"))
        status = refuse_method(path, "quantization_config says", method.n > 40 ? 40 : (int)method.n,
                               method.s, err);
    arena_clear(&arena);
    return status;
}

/* Not every such repository has a config that says so; the names of its tensors do.  Read as
 * plain weights, the packed integers would be noise. */
tinker_status quantized_check_files(const struct weight_files *files, tinker_error *err)
{
    static const struct {
        const char *suffix, *method;
    } known[] = { { ".qweight", "GPTQ or AWQ" },
                  { ".SCB", "bitsandbytes" },
                  { ".quant_map", "bitsandbytes" } };
    for (size_t f = 0; f < files->n; f++)
        for (size_t i = 0; i < files->files[f].n; i++) {
            const char *name = files->files[f].tensors[i].name, *dot = strrchr(name, '.');
            for (size_t k = 0; dot && k < ARRAY_LEN(known); k++)
                if (strcmp(dot, known[k].suffix) == 0)
                    return refuse_method(files->files[f].path, "its tensors are those of",
                                         (int)strlen(known[k].method), known[k].method, err);
        }
    return TINKER_OK;
}
