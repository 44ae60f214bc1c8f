/* cmd_weights.c - `tinker weights inspect|verify|export|merge`: files of weights. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tinker/engine.h>
#include <unistd.h>

#include "base/array.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/weights/adapter_dir.h"
#include "cli/weights/weights.h"

/* ---- inspect ------------------------------------------------------------------------------------ */

/* Shapes as the file has them, outermost dimension first. */
static void add_tensor_row(struct listing *l, const struct tensor_entry *t)
{
    char size[FMT_TEXT], shape[128] = "";
    size_t n = 0;
    for (size_t i = 0; i < t->n_dims && n < sizeof(shape); i++)
        /* snprintf() returns what it wanted to write; the loop ends when that passes the end. */
        n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%lld", i ? " x " : "",
                              (long long)t->shape[i]);
    listing_cell(l, t->name);
    listing_cell(l, t->dtype);
    listing_cell(l, shape);
    listing_cell(l, fmt_size((int64_t)(t->end - t->begin), size));
    struct json_writer *w = listing_object(l);
    json_put_begin_object(w);
    rows_put_text(w, "name", t->name);
    rows_put_text(w, "dtype", t->dtype);
    json_put_key(w, "shape");
    json_put_array_int64(w, t->shape, t->n_dims);
    rows_put_count(w, "bytes", (int64_t)(t->end - t->begin));
    json_put_end_object(w);
    listing_object_end(l);
}

/* FILE, or the weights in a directory.
 * An adapter before a model: a directory that has both is an adapter beside its merged model. */
static bool find_weights_file(const char *given, char out[ADAPTER_PATH_MAX])
{
    static const char *const names[] = { "adapter_model.safetensors", "model.safetensors" };
    if (!os_is_dir(given)) {
        snprintf(out, ADAPTER_PATH_MAX, "%s", given);
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(out, ADAPTER_PATH_MAX, "%s/%s", given, names[i]);
        if (access(out, R_OK) == 0)
            return true;
    }
    return false;
}

/* Reads the header alone, so it is instant for a file of any size. */
int cmd_weights_inspect(int argc, char **argv)
{
    static const char *const columns[] = { "Tensor", "Type", "Shape", "Size" };
    const char *given = NULL;
    const struct opt_arg args[] = { { .name = "FILE", .out = &given } };
    const struct opt_spec spec = {
        .command = "weights inspect",
        .about = "List the tensors of a safetensors file, or of what is in a directory.",
        .args = args,
        .n_args = 1,
        .example = "tinker weights inspect ./adapter"
    };
    char path[ADAPTER_PATH_MAX], title[128], size[FMT_TEXT];
    struct tensor_file f;
    struct listing l;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!find_weights_file(given, path))
        return out_fail(EXIT_NOT_FOUND, "Name one of its *.safetensors files.",
                        "%s has neither adapter_model.safetensors nor model.safetensors", given);
    /* A file that is open but wrong may have been read in part. */
    if (tensor_file_open(&f, path, &err) != TINKER_OK) {
        tensor_file_clear(&f);
        return out_fail(err.status == TINKER_EINVAL ? EXIT_DATA : EXIT_IO, NULL, "%s", err.message);
    }
    uint64_t parameters = 0;
    listing_init(&l, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < f.n; i++) {
        parameters += tensor_file_count(&f.v[i]);
        add_tensor_row(&l, &f.v[i]);
    }
    snprintf(title, sizeof(title), "%zu tensors, %llu parameters, %s", f.n,
             (unsigned long long)parameters, fmt_size((int64_t)f.data_size, size));
    tensor_file_clear(&f);
    return listing_print(&l, title, "{\"tensors\":[");
}

/* ---- verify -------------------------------------------------------------------------------------- */

/* From cheap to dear: the configuration, the file with all its numbers, the marker, and loading
 * it on its base, which alone proves that shapes and names fit. */
int weights_verify(const char *where, const char *base, bool with_base)
{
    struct adapter_dir a;
    tinker_error err;
    size_t pairs = 0;
    int status = adapter_dir_open(&a, where);
    if (status != EXIT_OK)
        return status;
    if (adapter_dir_check(&a, &pairs, &err) != TINKER_OK)
        status = out_fail(EXIT_DATA, NULL, "%s: %s", where, err.message);
    /* Adapters of other programs have no marker; they are not wrong for that. */
    if (status == EXIT_OK && !a.complete)
        out_say("warning: there is no checkpoint_complete, so it may not be whole");
    if (status == EXIT_OK && with_base) {
        tinker_engine *e = adapter_dir_open_base(&a, base, &status);
        tinker_adapter *loaded = e ? tinker_adapter_load(e, a.dir, 0, &err) : NULL;
        if (e && !loaded)
            status =
                out_fail(EXIT_DATA, NULL, "%s does not fit its base model: %s", where, err.message);
        tinker_adapter_free(loaded);
        if (e)
            tinker_engine_close(e);
    }
    if (status == EXIT_OK)
        printf("ok: %zu matrices adapted, rank %lld, base %s%s\n", pairs, (long long)a.rank,
               a.base[0] ? a.base : "not named", with_base ? ", which they fit" : "");
    adapter_dir_close(&a);
    return status;
}

/* --no-base checks what can be checked without gigabytes of a base model. */
int cmd_weights_verify(int argc, char **argv)
{
    const char *where = NULL, *base = NULL;
    bool no_base = false;
    const struct opt opts[] = {
        { .name = "base",
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "its base model (default: what the adapter says)",
          .out = &base },
        { .name = "no-base", .kind = OPT_FLAG, .help = "check the files alone", .out = &no_base },
    };
    const struct opt_arg args[] = { { .name = "DIR", .out = &where } };
    const struct opt_spec spec = {
        .command = "weights verify",
        .about = "Check an adapter: its file, that all numbers are finite, ranks and pairs, and\n"
                 "that it fits its base model.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker weights verify ./adapter --base tinker/tiny"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    return weights_verify(where, base, !no_base);
}

/* ---- export, merge --------------------------------------------------------------------------------- */

/* A new directory for a result that appears as a whole: work first, renamed at the end. */
static int begin_output(const char *out, char work[ADAPTER_PATH_MAX])
{
    if (access(out, F_OK) == 0)
        return out_fail(EXIT_IO, "Choose another name.", "%s exists already", out);
    /* Beside the result, hence on its file system: rename() does not cross them. */
    snprintf(work, ADAPTER_PATH_MAX, "%s.tmp-%d", out, (int)getpid());
    if (mkdir(work, 0755) != 0)
        return out_fail(EXIT_IO, NULL, "make %s: %s", work, strerror(errno));
    return EXIT_OK;
}

/* The result appears under its name or not at all; a failure leaves nothing behind. */
static int end_output(const char *out, const char *work, int status)
{
    if (status == EXIT_OK && rename(work, out) != 0)
        status = out_fail(EXIT_IO, NULL, "make %s: %s", out, strerror(errno));
    if (status != EXIT_OK)
        os_remove_tree(work, NULL);
    return status;
}

/* What a command writes, and where. */
struct conversion {
    const char *where, *base, *out; /* base NULL: what the adapter says */
    const char *form;               /* one of forms */
    tinker_gguf_type type;
};
/* Words of --to, compared by strcmp() where a form is written. */
static const char *const forms[] = { "peft", "hf", "gguf", "gguf-lora", NULL };
/* In the order of tinker_gguf_type. */
static const char *const gguf_types[] = { "f16", "q8_0", "q4_0", "q4_k", "f32", "bf16", NULL };

/* Text for ollama beside a GGUF file.  Its TEMPLATE has a language of its own and is left out:
 * ollama takes the chat template of the file for the families it knows. */
static tinker_status write_modelfile(const tinker_engine *e, const char *dir, const char *file,
                                     const char *base, tinker_error *err)
{
    char path[ADAPTER_PATH_MAX], text[1024];
    /* ollama takes 2,048 or 4,096 tokens unless the file says more. */
    const long long context = tinker_engine_describe(e)->context;
    int n = snprintf(text, sizeof(text), "# ollama create NAME -f Modelfile\n");
    /* An adapter is no model: ollama wants the base as a GGUF file of its own. */
    if (base)
        n += snprintf(text + n, sizeof(text) - (size_t)n,
                      "# FROM must be %.300s in GGUF\nFROM %.300s\nADAPTER ./%s\n", base, base,
                      file);
    else
        n += snprintf(text + n, sizeof(text) - (size_t)n, "FROM ./%s\n", file);
    n += snprintf(text + n, sizeof(text) - (size_t)n, "PARAMETER num_ctx %lld\n", context);
    snprintf(path, sizeof(path), "%.*s/Modelfile", ADAPTER_PATH_MAX - 16, dir);
    return os_write_file(path, text, (size_t)n, err);
}

/* "peft" and "gguf-lora" are the adapter alone; "hf" and "gguf" are the base model with the
 * adapter merged in. */
static tinker_status write_form(const struct conversion *c, tinker_engine *e,
                                const tinker_adapter *a, const char *dir, const char *base,
                                tinker_error *err)
{
    char path[ADAPTER_PATH_MAX];
    bool alone = strcmp(c->form, "gguf-lora") == 0;
    const char *file = alone ? "adapter.gguf" : "model.gguf";
    if (strcmp(c->form, "peft") == 0)
        return tinker_adapter_save(a, dir, base, TINKER_ADAPTER_PEFT, err);
    if (strcmp(c->form, "hf") == 0)
        return tinker_adapter_export(a, dir, err);
    snprintf(path, sizeof(path), "%.*s/%s", ADAPTER_PATH_MAX - 16, dir, file);
    tinker_status status = alone ? tinker_adapter_export_gguf(a, path, err)
                                 : tinker_engine_export_gguf(e, a, path, c->type, err);
    return status == TINKER_OK ? write_modelfile(e, dir, file, alone ? base : NULL, err) : status;
}

/* Load the adapter on its base and write the result into a new directory.
 * Its own directory on stdout, for scripts; everything else is talk. */
static int convert_adapter(const struct conversion *c)
{
    struct adapter_dir a;
    char work[ADAPTER_PATH_MAX];
    tinker_error err;
    int status = adapter_dir_open(&a, c->where);
    if (status != EXIT_OK)
        return status;
    tinker_engine *e = adapter_dir_open_base(&a, c->base, &status);
    tinker_adapter *loaded = e ? tinker_adapter_load(e, a.dir, 0, &err) : NULL;
    if (e && !loaded)
        status = out_fail(EXIT_DATA, NULL, "%s: %s", c->where, err.message);
    if (loaded && (status = begin_output(c->out, work)) == EXIT_OK) {
        if (write_form(c, e, loaded, work, a.base[0] ? a.base : c->base, &err) != TINKER_OK)
            status = out_fail(EXIT_IO, NULL, "%s", err.message);
        status = end_output(c->out, work, status);
    }
    tinker_adapter_free(loaded);
    if (e)
        tinker_engine_close(e);
    adapter_dir_close(&a);
    if (status == EXIT_OK)
        puts(c->out);
    return status;
}

/* Everything is done on this machine: the base model is needed, the service only if PATH is a
 * tinker:// path. */
int cmd_weights_export(int argc, char **argv)
{
    struct conversion c = { .form = forms[0] };
    const char *type = gguf_types[0];
    const struct opt opts[] = {
        { .name = "to",
          .kind = OPT_CHOICE,
          .value = "FORM",
          .help =
              "peft (default): what PEFT and transformers read; hf: the merged model; gguf: the "
              "merged model for llama.cpp and ollama; gguf-lora: the adapter alone for them",
          .out = &c.form,
          .choices = forms },
        { .name = "type",
          .kind = OPT_CHOICE,
          .value = "TYPE",
          .help = "of the matrices of --to gguf (default f16)",
          .out = &type,
          .choices = gguf_types },
        { .name = "out",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "a new directory for the result",
          .out = &c.out },
        { .name = "base",
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "its base model (default: what the adapter says)",
          .out = &c.base },
    };
    const struct opt_arg args[] = { { .name = "PATH", .out = &c.where } };
    const struct opt_spec spec = {
        .command = "weights export",
        .about = "Write an adapter for use elsewhere.  PATH is a checkpoint or a directory.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker weights export tinker://RUN_ID/sampler_weights/final -o adapter"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!c.out)
        return opt_usage_error(&spec, "Missing option '--out' / '-o'.");
    /* The parser has checked the word, so one of them is it. */
    for (int i = 0; gguf_types[i]; i++)
        if (strcmp(gguf_types[i], type) == 0)
            c.type = (tinker_gguf_type)i;
    return convert_adapter(&c);
}

/* The same as `weights export --to hf`, under the name that people look for. */
int cmd_weights_merge(int argc, char **argv)
{
    struct conversion c = { .form = "hf" };
    const struct opt opts[] = {
        { .name = "adapter",
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "a checkpoint, or the directory of an adapter",
          .out = &c.where },
        { .name = "base",
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "its base model (default: what the adapter says)",
          .out = &c.base },
        { .name = "out",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "a new directory for the model",
          .out = &c.out },
    };
    const struct opt_spec spec = {
        .command = "weights merge",
        .about = "Merge an adapter into its base model: a Hugging Face model of its own, which\n"
                 "tinker serve and others load.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .example = "tinker weights merge --adapter ./adapter --base tinker/tiny -o merged"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!c.where || !c.out)
        return opt_usage_error(&spec, "Missing option '--%s'.", c.where ? "out" : "adapter");
    return convert_adapter(&c);
}
