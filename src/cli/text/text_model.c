/* text_model.c - see text_model.h. */
#include "cli/text/text_model.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/os.h"
#include "cli/models/known_models.h"
#include "cli/models/model_dir.h"
#include "cli/output/out.h"
#include "cli/serve/serve_place.h"

/* Largest file or standard input, 1 GB: it is held in memory. */
enum { MAX_INPUT = 1 << 30 };

/* tinker/tiny is bundled with the program, and names of directories were remembered when they were
 * served; other names are looked up by the library. */
tinker_tokenizer *text_model_find(const char *model, tinker_error *err)
{
    char dir[MODEL_DIR_MAX], data[SERVE_PLACE_MAX];
    if ((strcmp(model, MODEL_DIR_BUNDLED) == 0 && model_dir_bundled(dir)) ||
        (!os_is_dir(model) && serve_place_data(NULL, data) && known_models_find(data, model, dir)))
        model = dir;
    return tinker_tokenizer_load(model, NULL, err);
}

/* The name of a model at a service is no path: a directory of that name here may be another model.
 * In order: what the command named, the engine of this process, the local server's own
 * directory, then the lookup by name. */
tinker_tokenizer *text_model_open(const struct api *a, const char *tokenizer, tinker_error *err)
{
    char dir[MODEL_DIR_MAX], data[SERVE_PLACE_MAX];
    if (tokenizer)
        return text_model_find(tokenizer, err);
    if (a->local.engine)
        return tinker_tokenizer_load(a->local.dir, NULL, err);
    if (api_is_local(a) && strcmp(a->model, MODEL_DIR_BUNDLED) != 0 &&
        serve_place_data(NULL, data) && known_models_find(data, a->model, dir))
        return tinker_tokenizer_load(dir, NULL, err);
    return text_model_find(a->model, err);
}

bool text_model_dir(const struct api *a, char out[MODEL_DIR_MAX])
{
    char data[SERVE_PLACE_MAX];
    if (a->local.engine) {
        snprintf(out, MODEL_DIR_MAX, "%s", a->local.dir);
        return true;
    }
    if (strcmp(a->model, MODEL_DIR_BUNDLED) == 0)
        return model_dir_bundled(out);
    return (api_is_local(a) && serve_place_data(NULL, data) &&
            known_models_find(data, a->model, out)) ||
           model_dir_cached(a->model, out);
}

/* Exit code 5 if there is no tokenizer, 8 if there is a broken one. */
int text_model_fail(const tinker_error *err, const char *hint)
{
    return err->status == TINKER_ESTATE ? out_fail(EXIT_NOT_FOUND, hint, "%s", err->message)
                                        : out_fail(EXIT_DATA, NULL, "%s", err->message);
}

/* Wrong input is the user's to mend, a lack of memory is not. */
int text_model_fail_data(const tinker_error *err)
{
    return out_fail(err->status == TINKER_ENOMEM ? EXIT_FAILED : EXIT_DATA, NULL, "%s",
                    err->message);
}

/* The same line again is not printed: a warning about a format comes once per row. */
void text_model_warn(const char *line, void *state)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* rows are rendered in threads */
    static char last[256];
    (void)state;
    pthread_mutex_lock(&mutex);
    if (strncmp(last, line, sizeof(last) - 1) != 0)
        out_say("warning: %s", line);
    snprintf(last, sizeof(last), "%s", line);
    pthread_mutex_unlock(&mutex);
}

/* As text_model_find(), with the error printed; NULL with *status set.  hint may be NULL. */
tinker_tokenizer *text_model_load(const char *model, const char *hint, int *status)
{
    tinker_error err;
    tinker_tokenizer *t = text_model_find(model, &err);
    if (!t)
        *status = text_model_fail(&err, hint);
    return t;
}

/* Files and standard input up to 1 GiB. The caller frees *text. */
bool text_model_read(const char *path, char **text, size_t *n, int *status)
{
    tinker_error err;
    if (strcmp(path, "-") != 0) {
        if (os_read_file(path, MAX_INPUT, text, n, &err) == TINKER_OK)
            return true;
        *status = out_fail(EXIT_IO, NULL, "%s", err.message);
        return false;
    }
    struct buf b;
    char part[65536];
    buf_init(&b, MAX_INPUT);
    /* A program that waits silently for input looks hung. */
    if (isatty(STDIN_FILENO))
        out_say("Reading from the terminal; Ctrl-D ends the input.");
    /* feof() is asked first: in a terminal one Ctrl-D ends the input, a further read would wait. */
    while (!feof(stdin) && !ferror(stdin))
        buf_append(&b, part, fread(part, 1, sizeof(part), stdin));
    if (!ferror(stdin) && buf_ok(&b) && (b.data || buf_reserve(&b, 1))) {
        *text = buf_detach(&b, n);
        return true;
    }
    /* b.failed: the limit of the buffer was reached. */
    *status = out_fail(EXIT_IO, NULL, "standard input: %s",
                       b.failed ? "more than 1 GB" : strerror(errno));
    buf_clear(&b);
    return false;
}

/* Bytes up to the next separator. Brackets, braces and colons separate, so JSON needs no parser.
 * A NUL in the input is part of a word, and then no number. */
static size_t measure_word(const char *s, size_t n)
{
    size_t len = 0;
    while (len < n && !(s[len] && strchr(" \t\r\n,[]{}:", s[len])))
        len++;
    return len;
}

/* The id that s[0..n) spells, or -1. No sign, no blank, at most INT32_MAX. */
static int64_t read_id(const char *s, size_t n)
{
    int64_t id = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        id = id * 10 + (s[i] - '0');
        if (id > INT32_MAX)
            return -1;
    }
    return id;
}

/* "tokens" with its quotes is skipped, so {"tokens": [1, 2]} reads as 1 2. */
int text_model_ids(const char *where, const char *s, size_t n, tinker_tokens *out)
{
    static const char key[] = "\"tokens\"";
    size_t word;
    for (size_t i = 0; i < n; i += word ? word : 1) {
        word = measure_word(s + i, n - i);
        if (word == 0 || (word == strlen(key) && memcmp(s + i, key, word) == 0))
            continue;
        int64_t id = read_id(s + i, word);
        if (id < 0)
            return out_fail(EXIT_DATA, NULL, "%s: '%.*s' at byte %zu is not a token id", where,
                            (int)(word < 20 ? word : 20), s + i, i);
        int32_t value = (int32_t)id;
        tinker_error err;
        if (tinker_tokens_append(out, &value, 1, &err) != TINKER_OK)
            return out_fail(EXIT_FAILED, NULL, "%s", err.message);
    }
    return EXIT_OK;
}

/* Brackets that do not close mean that the text was cut off, maybe in the middle of a number. */
int text_model_all_ids(const char *where, const char *s, size_t n, tinker_tokens *out)
{
    size_t open = 0;
    for (size_t i = 0; i < n; i++) {
        open += s[i] == '[' || s[i] == '{';
        open -= open > 0 && (s[i] == ']' || s[i] == '}');
    }
    if (open > 0)
        return out_fail(EXIT_DATA, NULL, "%s: ends before all brackets are closed", where);
    return text_model_ids(where, s, n, out);
}
