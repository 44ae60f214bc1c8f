/* cmd_checkpoint_push.c - `tinker checkpoint push-hf`: a checkpoint to the Hugging Face Hub. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/models/hf_token.h"
#include "cli/models/hf_upload.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"
#include "cli/weights/adapter_dir.h"

/* Letters, digits, - _ . stay; other characters become one dash; none of them at the ends. */
static void sanitize_name(const char *s, char *out, size_t size)
{
    size_t n = 0;
    for (; *s && n + 1 < size; s++) {
        char c = isalnum((unsigned char)*s) || strchr("-_.", *s) ? *s : '-';
        if (c != '-' || n == 0 || out[n - 1] != '-')
            out[n++] = c;
    }
    while (n && strchr("-_. ", out[n - 1]))
        n--;
    out[n] = 0;
    size_t lead = strspn(out, "-_. ");
    memmove(out, out + lead, strlen(out + lead) + 1);
}

/* tinker-<last part of the base model>-<run>.
 * The run's id makes it unique, so two runs never share a repository by accident. */
static void derive_repo(const struct adapter_dir *a, const tinker_checkpoint_path *path,
                        char out[256])
{
    char text[600];
    const char *slash = strrchr(a->base, '/');
    snprintf(text, sizeof(text), "tinker-%s-%s",
             slash        ? slash + 1
             : a->base[0] ? a->base
                          : "adapter",
             path->training_run);
    sanitize_name(text, out, 256);
}

/* A model card, unless the checkpoint has one.
 * base_model and the adapter tag are what the Hub links adapters to their models by; tinker_path
 * is what a second upload is recognized by. */
static tinker_status write_card(const struct adapter_dir *a, const char *path, tinker_error *err)
{
    char file[ADAPTER_PATH_MAX + 16];
    struct buf b;
    const char *base = a->base[0] ? a->base : "unknown";
    snprintf(file, sizeof(file), "%s/README.md", a->dir);
    if (access(file, F_OK) == 0)
        return TINKER_OK;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "---\nbase_model: %s\nlibrary_name: peft\ntags:\n- tinker\n- peft\n- lora\n",
               base);
    if (a->base[0])
        buf_printf(&b, "- base_model:adapter:%s\n", base);
    buf_printf(&b, "tinker_path: %s\n---\n\n# LoRA adapter for %s\n\n", path, base);
    buf_printf(&b,
               "```python\nfrom peft import PeftModel\nfrom transformers import "
               "AutoModelForCausalLM\n\nbase = AutoModelForCausalLM.from_pretrained(\"%s\")\n"
               "model = PeftModel.from_pretrained(base, \"THIS_REPOSITORY\")\n```\n\n",
               base);
    buf_printf(&b, "## Source\n\n`%s`\n\n## Details\n\n- Base model: %s\n", path, base);
    if (a->rank > 0)
        buf_printf(&b, "- LoRA rank: %lld\n", (long long)a->rank);
    tinker_status status = buf_ok(&b) ? os_write_file(file, b.data, b.len, err) : TINKER_ENOMEM;
    buf_clear(&b);
    return status;
}

/* The names of the rows are those of the official program. */
static int print_push_report(const char *path, const struct hf_upload *u)
{
    struct listing l;
    char title[600];
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Checkpoint Path", path);
    rows_property(&l, "Repo ID", u->full_repo);
    rows_property(&l, "Revision", u->revision ? u->revision : "main");
    rows_property(&l, "Public", u->is_public ? "Yes" : "No");
    struct json_writer *w = listing_object(&l);
    json_put_begin_object(w);
    rows_put_text(w, "checkpoint_path", path);
    rows_put_text(w, "repo_id", u->full_repo);
    if (u->revision)
        rows_put_text(w, "revision", u->revision);
    json_put_key(w, "public");
    json_put_bool(w, u->is_public);
    json_put_end_object(w);
    listing_object_end(&l);
    snprintf(title, sizeof(title), "Checkpoint Hub Upload: %s", path);
    return listing_print_one(&l, title);
}

/* The causes as hf_upload_folder() tells them: no token, no network, a refused request, anything
 * else. */
static int fail_upload(const tinker_error *err)
{
    switch (err->status) {
    case TINKER_ESTATE:
        return out_fail(EXIT_CONFIG, "Set HF_TOKEN, or run: hf auth login", "Not logged in");
    case TINKER_ECONNECT:
    case TINKER_ETIMEDOUT:
        return out_fail(EXIT_NETWORK, NULL, "%s", err->message);
    default:
        return out_fail(err->status == TINKER_EINVAL ? EXIT_CONFIG : EXIT_FAILED, NULL, "%s",
                        err->message);
    }
}

/* The checkpoint is in a temporary directory, which may be changed.
 * It is checked, then rewritten for PEFT, then given a card: what arrives on the Hub loads
 * there. */
static int push_adapter(struct hf_upload *u, struct adapter_dir *a, const char *path,
                        const char *base, bool card)
{
    char repo[256], revision[256];
    tinker_checkpoint_path parts;
    tinker_error err;
    size_t pairs;
    int status;
    if (!api_read_path(path, &parts, &status))
        return status;
    /* The same checks as `weights verify`: a broken file must not be published. */
    if (adapter_dir_check(a, &pairs, &err) != TINKER_OK)
        return out_fail(EXIT_DATA, err.message,
                        "Checkpoint archive does not contain a PEFT adapter.");
    /* Half a checkpoint must not become a public one. */
    if (!a->complete)
        return out_fail(EXIT_DATA, "Download it again; it may not be whole.",
                        "Checkpoint archive is missing 'checkpoint_complete'.");
    status = adapter_dir_to_peft(a, base);
    if (status != EXIT_OK)
        return status;
    /* Without --repo everything is derived: a repository per run, a branch per checkpoint. */
    if (!u->repo) {
        derive_repo(a, &parts, repo);
        u->repo = repo;
        if (!u->revision) {
            /* A branch named after the checkpoint, "sampler_weights-final". */
            sanitize_name(parts.checkpoint_id, revision, sizeof(revision));
            u->revision = revision;
        }
    }
    /* Files are sent from the temporary directory; adapter_dir_close() removes it afterwards. */
    u->dir = a->dir;
    u->tinker_path = path;
    if ((card && write_card(a, path, &err) != TINKER_OK) || hf_upload_folder(u, &err) != TINKER_OK)
        return fail_upload(&err);
    return print_push_report(path, u);
}

/* Token first, then the checkpoint, then the upload: the cheapest failure comes first. */
int cmd_checkpoint_push_hf(int argc, char **argv)
{
    /* Static: two lists of this size are too much for the stack of a command. */
    static struct opt_list allow, ignore;
    struct hf_upload u = { .allow = &allow, .ignore = &ignore };
    const char *path = NULL, *token = NULL, *base = NULL;
    bool no_card = false;
    char owner[128];
    const struct opt opts[] = {
        { .name = "repo",
          .letter = 'r',
          .kind = OPT_STRING,
          .value = "ID",
          .help = "repository, NAME or OWNER/NAME (default: from model and run)",
          .out = &u.repo },
        { .name = "public",
          .kind = OPT_FLAG,
          .help = "let everybody see a new repository",
          .out = &u.is_public },
        { .name = "revision",
          .kind = OPT_STRING,
          .value = "R",
          .help = "branch to upload to; it is made if need be",
          .out = &u.revision },
        { .name = "commit-message",
          .kind = OPT_STRING,
          .value = "M",
          .help = "message of the commit",
          .out = &u.message },
        { .name = "create-pr",
          .kind = OPT_FLAG,
          .help = "open a pull request instead",
          .out = &u.create_pr },
        { .name = "allow-pattern",
          .kind = OPT_LIST,
          .value = "GLOB",
          .help = "upload only such files; repeatable",
          .out = &allow },
        { .name = "ignore-pattern",
          .kind = OPT_LIST,
          .value = "GLOB",
          .help = "leave such files out; repeatable",
          .out = &ignore },
        { .name = "base",
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "its base model (default: what the checkpoint says)",
          .out = &base },
        { .name = "no-model-card",
          .kind = OPT_FLAG,
          .help = "do not make a README.md",
          .out = &no_card },
        { .name = "hf-token",
          .kind = OPT_STRING,
          .value = "TOKEN",
          .help = "of the Hub (default: HF_TOKEN, or the file of hf auth login)",
          .out = &token },
    };
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
    const struct opt_spec spec = {
        .command = "checkpoint push-hf",
        .about = "Upload a checkpoint to the Hugging Face Hub, as an adapter for PEFT.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint push-hf tinker://RUN_ID/sampler_weights/final -r me/my-lora"
    };
    struct adapter_dir a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_check_path(path, &status))
        return status;
    hf_set_token(token);
    /* Before the download: without a good token the rest is wasted. */
    if (hf_upload_whoami(owner, &err) != TINKER_OK)
        return fail_upload(&err);
    /* The marker means something to `tinker` only, and would be the one file that is not an
     * adapter's. */
    if (!allow.n && ignore.n < OPT_LIST_MAX)
        ignore.items[ignore.n++] = "checkpoint_complete";
    status = adapter_dir_open(&a, path);
    if (status != EXIT_OK)
        return status;
    status = push_adapter(&u, &a, path, base, !no_card);
    adapter_dir_close(&a);
    return status;
}
