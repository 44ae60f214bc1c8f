/* cmd_checkpoint_make.c - `tinker checkpoint copy|import|save|verify|prune`: making checkpoints,
 * checking them, and keeping few. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/training.h>

#include "base/array.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"
#include "cli/weights/adapter_dir.h"
#include "cli/weights/weights.h"

/* {"tinker_path": ...} or the path alone: for $(...).
 * Nothing else is on stdout, so `P=$(tinker checkpoint save ...)` is a path. */
static void print_path(const char *path)
{
    if (!globals.json) {
        puts(path);
        return;
    }
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1 << 16);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    rows_put_text(&w, "tinker_path", path);
    json_put_end_object(&w);
    out_json(&b);
    buf_clear(&b);
}

/* ---- copy ---------------------------------------------------------------------------------------- */

/* The copy is made by the service; nothing passes through this machine. */
int cmd_checkpoint_copy(int argc, char **argv)
{
    const char *path = NULL, *key_variable = NULL;
    /* The options of the command are members of this struct; what is not given keeps its
     * default. */
    tinker_copy_options o = TINKER_COPY_OPTIONS_INIT;
    const struct opt opts[] = {
        { .name = "to-project",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "the project that will own the copy (default: yours)",
          .out = &o.project_id },
        { .name = "source-key-env",
          .kind = OPT_STRING,
          .value = "VAR",
          .help = "variable with the key of the account that owns the source",
          .out = &key_variable },
        { .name = "ttl",
          .kind = OPT_DURATION,
          .value = "TIME",
          .help = "let the copy expire: 90, 12h, 7d (default: never)",
          .out = &o.ttl_seconds },
    };
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
    const struct opt_spec spec = {
        .command = "checkpoint copy",
        .about = "Copy a checkpoint into a project, also from another account.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint copy tinker://RUN_ID/weights/0001 --to-project PROJECT"
    };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_check_path(path, &status))
        return status;
    /* The key of the other account comes from a variable: an option would stand in the process
     * list. */
    o.access_token = key_variable ? getenv(key_variable) : NULL;
    if (key_variable && (!o.access_token || !*o.access_token))
        return out_fail(EXIT_CONFIG, NULL, "the variable %s is not set", key_variable);
    if (!api_open(&a, &status))
        return status;
    tinker_future *f = api_wait(tinker_rest_copy_checkpoint(a.rest, path, &o, &err), &err, &status);
    if (f)
        print_path(tinker_future_saved_path(f));
    tinker_future_free(f);
    api_close(&a);
    return status;
}

/* ---- import, save ---------------------------------------------------------------------------------- */

/* Which of the two kinds --kind asks for. */
static const char *const kinds[] = { "sampler", "training", "both", NULL };

/* Save under a name, as training state, as sampler weights, or as both; prints the paths.
 * State first: if the second save fails, what training needs is there. */
static int save_kinds(tinker_training *t, const char *name, const char *kind, int64_t ttl)
{
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    tinker_error err;
    int status = EXIT_OK;
    o.ttl_seconds = ttl;
    /* Anything but "sampler" includes the training state, anything but "training" the weights. */
    if (strcmp(kind, "sampler") != 0) {
        tinker_future *f = api_wait(tinker_training_save_state(t, name, &o, &err), &err, &status);
        if (f)
            print_path(tinker_future_saved_path(f));
        tinker_future_free(f);
    }
    if (status == EXIT_OK && strcmp(kind, "training") != 0) {
        tinker_future *f =
            api_wait(tinker_training_save_for_sampler(t, name, &o, &err), &err, &status);
        if (f)
            print_path(tinker_future_saved_path(f));
        tinker_future_free(f);
    }
    return status;
}

/* A new run with an untrained adapter; its checkpoints belong to this run. */
static tinker_training *create_training(struct api *a, const tinker_lora *lora, int *status)
{
    tinker_error err;
    tinker_future *f =
        api_wait(tinker_service_request_lora(a->service, a->model, lora, &err), &err, status);
    tinker_training *t = f ? tinker_future_take_training(f) : NULL;
    tinker_future_free(f);
    return t;
}

/* Loads the adapter into a new training run and saves it from there: the server checks it on the
 * way, and from then on it is a checkpoint like any other. */
int cmd_checkpoint_import(int argc, char **argv)
{
    const char *dir = NULL, *model = NULL, *name = "imported", *kind = "both";
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "its base model (default: what the adapter says)",
          .out = &model },
        { .name = "name",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "of the checkpoint (default: imported)",
          .out = &name },
        { .name = "kind",
          .kind = OPT_CHOICE,
          .value = "KIND",
          .help = "sampler, training or both (default)",
          .out = &kind,
          .choices = kinds },
    };
    const struct opt_arg args[] = { { .name = "DIR", .out = &dir } };
    const struct opt_spec spec = {
        .command = "checkpoint import",
        .about = "Bring a PEFT adapter of this machine into the local server, as a training run.\n"
                 "A running server must allow it: tinker serve --allow-local-paths.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint import ./adapter -m tinker/tiny"
    };
    struct adapter_dir adapter;
    struct api a;
    tinker_error err;
    tinker_lora lora = TINKER_LORA_INIT;
    int status;
    char url[ADAPTER_PATH_MAX + 16];
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* The server runs in another directory, so it is told the full path, as a file URL. */
    char *full = os_full_path(dir);
    snprintf(url, sizeof(url), "file://%s", full ? full : dir);
    free(full);
    status = adapter_dir_open(&adapter, dir);
    if (status != EXIT_OK)
        return status;
    /* Checked before connecting: nothing can be created without a base model. */
    if (!model && !adapter.base[0])
        return opt_usage_error(&spec, "The adapter does not say its base: give it with '-m'.");
    /* The run must have the rank of the adapter, or its tensors do not fit. */
    if (adapter.rank > 0)
        lora.rank = adapter.rank;
    if (!api_open_model(&a, model ? model : adapter.base, NULL, &status))
        return status;
    tinker_training *t = create_training(&a, &lora, &status);
    if (t)
        /* 0: weights only.  A PEFT adapter has no optimizer state. */
        status = api_done(tinker_training_load_state(t, url, 0, NULL, &err), &err);
    if (t && status == EXIT_OK)
        status = save_kinds(t, name, kind, 0);
    tinker_training_free(t);
    api_close(&a);
    return status;
}

/* Untrained, or a copy of another run's state under a name of its own: a common beginning for
 * several runs that are to be compared. */
int cmd_checkpoint_save(int argc, char **argv)
{
    const char *model = NULL, *name = "initial", *kind = "sampler", *from = NULL;
    tinker_lora lora = TINKER_LORA_INIT;
    int64_t seed = INT64_MIN, ttl = 0;
    bool no_mlp = false, no_attn = false, no_unembed = false;
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a base model, or the directory of one",
          .out = &model },
        { .name = "from",
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "begin with this training state",
          .out = &from },
        { .name = "name",
          .kind = OPT_STRING,
          .value = "NAME",
          .help = "of the checkpoint (default: initial)",
          .out = &name },
        { .name = "kind",
          .kind = OPT_CHOICE,
          .value = "KIND",
          .help = "sampler (default), training or both",
          .out = &kind,
          .choices = kinds },
        { .name = "rank",
          .kind = OPT_INT,
          .value = "N",
          .help = "of the adapter (default 32)",
          .out = &lora.rank },
        { .name = "seed",
          .kind = OPT_INT,
          .value = "S",
          .help = "of its first weights",
          .out = &seed },
        { .name = "ttl",
          .kind = OPT_DURATION,
          .value = "TIME",
          .help = "let it expire: 90, 12h, 7d (default: never)",
          .out = &ttl },
        { .name = "no-mlp", .kind = OPT_FLAG, .help = "do not adapt the MLP", .out = &no_mlp },
        { .name = "no-attn", .kind = OPT_FLAG, .help = "do not adapt attention", .out = &no_attn },
        { .name = "no-unembed",
          .kind = OPT_FLAG,
          .help = "do not adapt the unembedding",
          .out = &no_unembed },
    };
    const struct opt_spec spec = {
        .command = "checkpoint save",
        .about = "Make a training run with a new adapter, or from a training state, and save it.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .example = "tinker checkpoint save -m tinker/tiny --rank 8 --name start"
    };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (from && !api_check_path(from, &status))
        return status;
    lora.train_mlp = !no_mlp;
    lora.train_attn = !no_attn;
    lora.train_unembed = !no_unembed;
    /* Without --seed the service draws one; with it, two runs begin with the same weights. */
    lora.has_seed = seed != INT64_MIN;
    lora.seed = lora.has_seed ? seed : 0;
    if (!api_open_model(&a, model, NULL, &status))
        return status;
    tinker_training *t = create_training(&a, &lora, &status);
    if (t && from)
        /* 1: with the optimizer, so that training goes on as if the run had never stopped. */
        status = api_done(tinker_training_load_state(t, from, 1, NULL, &err), &err);
    if (t && status == EXIT_OK)
        status = save_kinds(t, name, kind, ttl);
    tinker_training_free(t);
    api_close(&a);
    return status;
}

/* ---- verify, prune --------------------------------------------------------------------------------- */

/* Everything that can be checked without computing: what passes here can still be a bad model. */
int cmd_checkpoint_verify(int argc, char **argv)
{
    const char *where = NULL, *base = NULL;
    const struct opt opts[] = {
        { .name = "base",
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "also compare with this base model",
          .out = &base },
    };
    const struct opt_arg args[] = { { .name = "PATH", .out = &where } };
    const struct opt_spec spec = {
        .command = "checkpoint verify",
        .about =
            "Fetch a checkpoint, or take a directory, and check that it is whole: its marker,\n"
            "its file, that all numbers are finite, ranks and pairs.",
        .opts = opts,
        .n_opts = 1,
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint verify tinker://RUN_ID/sampler_weights/final"
    };
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* The same checks as `tinker weights verify`; the base model is only loaded when it was
     * named. */
    return weights_verify(where, base, base != NULL);
}

struct prune {
    const char *run;
    int64_t keep_last, keep_every;
    struct opt_list keep;
    bool dry_run;
};

/* Newest first, so that an index counts back from the present. */
static int compare_newest(const void *a, const void *b)
{
    const tinker_checkpoint *const *x = a, *const *y = b;
    return ((*x)->time_us < (*y)->time_us) - ((*x)->time_us > (*y)->time_us);
}

/* index: among those of its kind, the newest is 0. */
static bool is_kept(const struct prune *p, const tinker_checkpoint *c, size_t index)
{
    const char *slash = strrchr(c->id, '/'), *name = slash ? slash + 1 : c->id;
    if ((int64_t)index < p->keep_last)
        return true;
    /* Index 0 is the newest, so every Kth is counted back from the present, and which ones are
     * kept moves as new ones come. */
    if (p->keep_every > 0 && index % (size_t)p->keep_every == 0)
        return true;
    for (size_t i = 0; i < p->keep.n; i++)
        if (fnmatch(p->keep.items[i], name, 0) == 0)
            return true;
    /* The result of a run goes only when somebody names it. */
    return strcmp(name, "final") == 0;
}

/* The paths that go, behind the name of the command that deletes them; *n counts both.  NULL: out
 * of memory. */
static char **list_pruned(const struct prune *p, const tinker_checkpoints *all, int *n)
{
    const tinker_checkpoint **sorted = calloc(all->n + 1, sizeof(*sorted));
    /* The name of the command, the paths, --dry-run and the final NULL. */
    char **argv = calloc(all->n + 4, sizeof(*argv));
    /* One count per kind, and one for kinds that this program does not know: the newest of each
     * is kept, so that a run keeps both its training state and its sampler weights. */
    size_t index[4] = { 0 };
    bool ok = sorted && argv && (argv[0] = strdup("checkpoint delete")) != NULL;
    *n = ok;
    for (size_t i = 0; ok && i < all->n; i++)
        sorted[i] = tinker_checkpoint_at(all, i);
    /* qsort() of one or no element is allowed, but not with a NULL array. */
    if (ok && all->n > 1)
        qsort(sorted, all->n, sizeof(*sorted), compare_newest);
    for (size_t i = 0; ok && i < all->n; i++) {
        size_t *at = &index[sorted[i]->kind >= 0 && sorted[i]->kind < 3 ? sorted[i]->kind : 3];
        if (!is_kept(p, sorted[i], (*at)++))
            ok = (argv[(*n)++] = strdup(sorted[i]->path)) != NULL;
    }
    if (ok && p->dry_run)
        ok = (argv[(*n)++] = strdup("--dry-run")) != NULL;
    free(sorted);
    /* What was copied before memory ran out. */
    for (int i = 0; !ok && argv && i < *n; i++)
        free(argv[i]);
    if (!ok) {
        free(argv);
        return NULL;
    }
    return argv;
}

/* Only makes the list: deleting, with its question and report, is `checkpoint delete`. */
int cmd_checkpoint_prune(int argc, char **argv)
{
    struct prune p = { .keep_last = 1 };
    const struct opt opts[] = {
        { .name = "run-id",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "the training run",
          .out = &p.run },
        { .name = "keep-last",
          .kind = OPT_INT,
          .value = "N",
          .help = "keep the newest N of each kind (default 1)",
          .out = &p.keep_last },
        { .name = "keep-every",
          .kind = OPT_INT,
          .value = "K",
          .help = "and every Kth before them",
          .out = &p.keep_every },
        { .name = "keep",
          .kind = OPT_LIST,
          .value = "NAME",
          .help = "and those with this name, * and ? allowed; repeatable",
          .out = &p.keep },
        { .name = "dry-run",
          .kind = OPT_FLAG,
          .help = "only show what would go",
          .out = &p.dry_run },
    };
    const struct opt_spec spec = {
        .command = "checkpoint prune",
        .about = "Delete the older checkpoints of a training run; \"final\" is always kept.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .example = "tinker checkpoint prune --run-id RUN_ID --keep-last 3 --dry-run"
    };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!p.run)
        return opt_usage_error(&spec, "Missing option '--run-id'.");
    if (p.keep_last < 0 || p.keep_every < 0)
        return opt_usage_error(&spec, "--keep-last and --keep-every are 0 or more.");
    if (!api_open(&a, &status))
        return status;
    /* One list is all that is read; what to keep is decided here. */
    tinker_future *f = api_wait(tinker_rest_list_checkpoints(a.rest, p.run, &err), &err, &status);
    int n = 0;
    char **list = f ? list_pruned(&p, tinker_future_checkpoints(f), &n) : NULL;
    if (f && !list)
        status = out_fail(EXIT_FAILED, NULL, "out of memory");
    tinker_future_free(f);
    /* The deletion connects by itself: it shows what goes, asks, and reports. */
    api_close(&a);
    /* Only the name, and perhaps --dry-run: no path is left to delete. */
    if (list && n == 1 + p.dry_run)
        out_say("Nothing to prune");
    else if (list)
        status = cmd_checkpoint_delete(n, list);
    for (int i = 0; list && i < n; i++)
        free(list[i]);
    free(list);
    return status;
}
