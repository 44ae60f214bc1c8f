/* hf_download.c - see hf_download.h.
 *
 * The cache is laid out as the Hub's own tools do it: blobs/ETAG holds a file's bytes,
 * snapshots/COMMIT/NAME is a link to it, refs/main names the commit and is written last, so
 * a model is there as a whole or not at all.  A file on its way is
 * blobs/COMMIT.NAME.incomplete; whoever holds download.lock may write to it.
 *
 * Thread: the caller's. */
#include "cli/models/hf_download.h"
#include <tinker/tokenizer.h>

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/os.h"
#include "base/sha.h"
#include "cli/models/hf_token.h"
#include "cli/models/model_dir.h"
#include "cli/output/out.h"
#include "cli/service/web.h"
#include "json/json.h"

/* LIST_MAX bounds the list of files, TRIES the attempts per file (each resumes where the last
 * ended), NAME_MAX_LEN what becomes part of a path. */
enum { PATH = MODEL_FOLDER_MAX + 512, LIST_MAX = 64 << 20, TRIES = 5, NAME_MAX_LEN = 200 };

/* The model that is being fetched, and how the Hub is reached. */
struct hub {
    const char *id, *endpoint;
    const char *revision; /* "main", or a commit that is pinned */
    const char *quant;    /* of GGUF files; NULL: safetensors, or a usual one */
    char folder[MODEL_FOLDER_MAX];
    char commit[72];
    char authorization[HF_AUTHORIZATION_MAX]; /* "": no token */
    bool tokenizer_only;                      /* no weights */
};

/* ---- one exchange ---------------------------------------------------------------------- */

/* GET url. fd -1: the body stays in memory; else to the file from offset on. `ours`: the host may
 * see the token. Redirects of our host for files are not followed here, because the token must not
 * go along. */
static tinker_status get_url(const struct hub *h, const char *url, bool ours, int fd,
                             int64_t offset, struct web_exchange *x, tinker_error *err)
{
    web_init(x, "GET", url);
    x->fd = fd;
    x->offset = offset;
    x->keep_redirect = ours && fd >= 0;
    x->label = fd >= 0 ? "download" : NULL;
    if (ours && h->authorization[0])
        web_header(x, "Authorization", h->authorization, true);
    return web_send(x, err);
}

/* 401, 403 and 404 look alike from outside: the Hub hides gated and private models. */
static tinker_status fail_refused(const struct hub *h, const char *what, int http,
                                  tinker_error *err)
{
    if (http == 401 || http == 403 || http == 404)
        return err_set(err, TINKER_EINVAL,
                       "%s of %s: %s answers %d; check the id, and HF_TOKEN if it is gated", what,
                       h->id, h->endpoint, http);
    return err_set(err, TINKER_ECONNECT, "%s of %s: %s answers %d", what, h->id, h->endpoint, http);
}

/* ---- one file -------------------------------------------------------------------------------- */

/* Exactly n lowercase hex digits? */
static bool is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

/* For files in large file storage, X-Linked-Etag is the SHA-256 of the content and ETag
 * something else. "" if the server sends neither. */
static void copy_etag(const struct web_exchange *x, char etag[128])
{
    if (!web_answer_header(x, "X-Linked-Etag", etag, 128))
        web_answer_header(x, "ETag", etag, 128);
    /* An ETag is quoted, and W/"..." when it is weak (RFC 9110, 8.8.3); keep only the value. */
    char *from = strncmp(etag, "W/", 2) == 0 ? etag + 2 : etag;
    from += *from == '"';
    size_t n = strcspn(from, "\"");
    memmove(etag, from, n);
    etag[n] = 0;
}

/* Feed a whole file into a hash. */
static tinker_status hash_file(struct sha_blocks *h, const char *path, tinker_error *err)
{
    unsigned char piece[1 << 16];
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_errno(err, "open", path);
    for (size_t n; (n = fread(piece, 1, sizeof(piece), f)) > 0;)
        sha_blocks_update(h, piece, n);
    tinker_status status = ferror(f) ? err_errno(err, "read", path) : TINKER_OK;
    fclose(f);
    return status;
}

/* Lowercase hex, as in ETags. */
static tinker_status hash_file_sha256(const char *path, char hex[65], tinker_error *err)
{
    uint8_t digest[32];
    struct sha256 h;
    sha256_init(&h);
    tinker_status status = hash_file(&h.b, path, err);
    sha256_final(&h, digest);
    hex_encode(digest, sizeof(digest), hex);
    return status;
}

/* The SHA-1 of `head` and the file behind it. */
static tinker_status hash_file_sha1(const char *path, const char *head, size_t n, char hex[41],
                                    tinker_error *err)
{
    uint8_t digest[20];
    struct sha1 h;
    sha1_init(&h);
    sha1_update(&h, head, n);
    tinker_status status = hash_file(&h.b, path, err);
    sha1_final(&h, digest);
    hex_encode(digest, sizeof(digest), hex);
    return status;
}

/* 40 digits are the id that git gives to the file, SHA-1 of "blob SIZE\0" and the content, or
 * its plain SHA-1 at mirrors that do not use git. */
static tinker_status check_sha1(const char *path, const char *etag, bool *same, tinker_error *err)
{
    char head[32], hex[41];
    struct stat st;
    if (stat(path, &st) != 0)
        return err_errno(err, "read", path);
    int n = snprintf(head, sizeof(head), "blob %lld", (long long)st.st_size);
    tinker_status status = hash_file_sha1(path, head, (size_t)n + 1, hex, err); /* with its NUL */
    *same = strcmp(etag, hex) == 0;
    if (status == TINKER_OK && !*same) {
        status = hash_file_sha1(path, "", 0, hex, err);
        *same = strcmp(etag, hex) == 0;
    }
    return status;
}

/* Is the file what its ETag says? An ETag of another form cannot be checked: *same is true
 * then. key: the name of its blob, as the Hub's own tools choose it. */
static tinker_status check_file(const char *path, const char *etag, bool *same, char key[65],
                                tinker_error *err)
{
    *same = true;
    if (is_hex(etag, 40)) {
        memcpy(key, etag, 41); /* with its NUL */
        return check_sha1(path, etag, same, err);
    }
    tinker_status status = hash_file_sha256(path, key, err);
    if (is_hex(etag, 64))
        *same = strcmp(etag, key) == 0;
    return status;
}

/* Append to fd what is missing of a file; etag says what the whole must be. 206 is the rest,
 * 200 the whole file again. */
static tinker_status fetch_bytes(const struct hub *h, const char *name, int fd, char etag[128],
                                 tinker_error *err)
{
    char url[2048], *location = NULL;
    struct stat st;
    struct web_exchange x;
    if (fstat(fd, &st) != 0)
        return err_errno(err, "read", name);
    snprintf(url, sizeof(url), "%s/%s/resolve/%s/%s", h->endpoint, h->id, h->commit, name);
    tinker_status status = get_url(h, url, true, fd, st.st_size, &x, err);
    int http = x.status;
    if (status == TINKER_OK)
        copy_etag(&x, etag);
    if (status == TINKER_OK && http >= 301 && http <= 308)
        location = http_response_location(&x.request.resp);
    web_clear(&x);
    if (location) { /* large files are elsewhere, where our token has no business */
        if (location[0] == '/')
            snprintf(url, sizeof(url), "%s%.1900s", h->endpoint, location);
        status = get_url(h, location[0] == '/' ? url : location, false, fd, st.st_size, &x, err);
        http = x.status;
        web_clear(&x);
        free(location);
    }
    /* 416: there is nothing after what we have. */
    if (status == TINKER_OK && http != 200 && http != 206 && !(http == 416 && st.st_size))
        status = fail_refused(h, name, http, err);
    return status;
}

/* Verify the finished part file, give it its blob name and link it into the snapshot. A damaged
 * one is deleted, so that the next attempt starts again. */
static tinker_status check_and_link(const struct hub *h, const char *name, const char *part,
                                    const char *etag, tinker_error *err)
{
    char key[65], blob[PATH], target[PATH], link[PATH];
    bool same;
    tinker_status status = check_file(part, etag, &same, key, err);
    if (status != TINKER_OK)
        return status;
    if (!same) {
        /* Resuming a damaged file would never repair it. */
        unlink(part);
        return err_set(err, TINKER_EPROTOCOL, "%s of %s arrived damaged: its %s is wrong", name,
                       h->id, is_hex(etag, 40) ? "SHA-1" : "SHA-256");
    }
    snprintf(blob, sizeof(blob), "%s/blobs/%s", h->folder, key);
    snprintf(target, sizeof(target), "../../blobs/%s", key);
    snprintf(link, sizeof(link), "%s/snapshots/%s/%s", h->folder, h->commit, name);
    if (rename(part, blob) != 0 || (symlink(target, link) != 0 && errno != EEXIST))
        return err_errno(err, "write", link);
    return TINKER_OK;
}

/* Fetch one file unless its link is there. Only network failures are retried; each retry
 * resumes. */
static tinker_status fetch_file(const struct hub *h, const char *name, tinker_error *err)
{
    char part[PATH], link[PATH], etag[128] = "";
    struct timespec pause = { 1, 0 };
    tinker_status status = TINKER_ECONNECT;
    snprintf(link, sizeof(link), "%s/snapshots/%s/%s", h->folder, h->commit, name);
    snprintf(part, sizeof(part), "%s/blobs/%s.%s.incomplete", h->folder, h->commit, name);
    /* The link is made after the check of the bytes, so what it leads to is good. */
    if (access(link, R_OK) == 0)
        return TINKER_OK;
    out_say("fetching %s of %s", name, h->id);
    for (int i = 0; i < TRIES && status != TINKER_OK; i++) {
        int fd = open(part, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0)
            return err_errno(err, "create", part);
        if (i)
            nanosleep(&pause, NULL);
        status = fetch_bytes(h, name, fd, etag, err);
        close(fd);
        if (status != TINKER_ECONNECT && status != TINKER_ETIMEDOUT && status != TINKER_OK)
            break;
    }
    return status == TINKER_OK ? check_and_link(h, name, part, etag, err) : status;
}

/* ---- the list of files -------------------------------------------------------------------------- */

/* Suffix test. */
static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Weights, configuration and tokenizer. Names come from the network: only plain names, so none
 * can leave the folder. consolidated*: the same weights in another layout. */
static bool is_wanted(const char *name)
{
    static const char *const ends[] = {
        ".safetensors", ".gguf", ".json", ".txt", ".jinja", ".model"
    };
    if (name[0] == '.' || strchr(name, '/') || strlen(name) > NAME_MAX_LEN ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
            strlen(name) ||
        strncmp(name, "consolidated", 12) == 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

/* What the Hub says about a revision; the texts are in an arena. */
struct file_list {
    const char *commit;
    const char **names;
    size_t n, max;
};

/* One entry {"rfilename": NAME, ...} of the list. Entries beyond the maximum are ignored. */
static void read_sibling(struct json_reader *r, struct file_list *l)
{
    struct json_str key;
    char *name = NULL;
    json_begin_object(r);
    while (json_next_key(r, &key))
        if (!json_str_is(key, "rfilename") || !json_cstring(r, &name))
            json_skip(r);
    if (name && is_wanted(name) && l->n < l->max)
        l->names[l->n++] = name;
}

/* {"sha": COMMIT, "siblings": [...]}. The commit becomes a folder name, so it must be hex. */
static bool read_file_list(const char *text, size_t n, struct arena *arena, struct file_list *l)
{
    struct json_reader r;
    struct json_str key;
    char *commit = NULL;
    l->max = 4096;
    l->names = arena_array(arena, l->max, sizeof(*l->names));
    if (!l->names)
        return false;
    json_reader_init(&r, text, n, arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "sha")) {
            json_cstring(&r, &commit);
        } else if (json_str_is(key, "siblings")) {
            json_begin_array(&r);
            while (json_next_item(&r))
                read_sibling(&r, l);
        } else {
            json_skip(&r);
        }
    }
    l->commit = commit;
    return json_end(&r) && commit && strlen(commit) < 72 &&
           strspn(commit, "0123456789abcdef") == strlen(commit) && *commit;
}

/* blobs, refs and snapshots/COMMIT, as the Hub's own tools lay them out. */
static tinker_status make_folders(const struct hub *h, tinker_error *err)
{
    char path[PATH];
    tinker_status status = TINKER_OK;
    const char *const names[] = { "blobs", "refs", "snapshots" };
    for (size_t i = 0; status == TINKER_OK && i < 3; i++) {
        snprintf(path, sizeof(path), i == 2 ? "%s/%s/%s" : "%s/%s", h->folder, names[i], h->commit);
        status = os_make_dirs(path, err);
    }
    return status;
}

/* flock() is interrupted by signals. */
static bool lock_file(int fd, int how)
{
    int status;
    do
        status = flock(fd, how);
    while (status != 0 && errno == EINTR);
    return status == 0;
}

/* One process at a time fetches a model; others wait, then find its files, or resume what it
 * left. The kernel releases the lock with the descriptor, however the process ends. */
static tinker_status lock_model(const struct hub *h, int *fd, tinker_error *err)
{
    char path[PATH];
    snprintf(path, sizeof(path), "%s/download.lock", h->folder);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0)
        return err_errno(err, "create", path);
    if (lock_file(*fd, LOCK_EX | LOCK_NB))
        return TINKER_OK;
    if (errno == EWOULDBLOCK) {
        out_say("waiting for another process that is fetching %s", h->id);
        if (lock_file(*fd, LOCK_EX))
            return TINKER_OK;
    }
    err_errno(err, "lock", path);
    close(*fd);
    return err->status;
}

/* ---- which weights --------------------------------------------------------------------------- */

/* Length of a name without "-00001-of-00003" and ".gguf": what the parts of a model share. */
static size_t stem_length(const char *name)
{
    size_t n = strlen(name) - strlen(".gguf");
    if (n > 15 && strncmp(name + n - 9, "-of-", 4) == 0 && name[n - 15] == '-')
        n -= 15;
    return n;
}

/* Whether a name has this quantization as a part of its own: "q8_0" is in x-Q8_0.gguf. */
static bool has_quantization(const char *name, const char *quant)
{
    size_t n = strlen(quant);
    for (const char *at = name; n && *at; at++) {
        if (strncasecmp(at, quant, n) != 0)
            continue;
        /* "q4_k" must not match inside of "q4_k_m": letters, digits and '_' continue a name. */
        bool begins = at == name || (!isalnum((unsigned char)at[-1]) && at[-1] != '_');
        if (begins && !isalnum((unsigned char)at[n]) && at[n] != '_')
            return true;
    }
    return false;
}

/* mmproj*.gguf is the vision tower of a model, which is no language model by itself. */
static bool is_gguf_model(const char *name)
{
    return ends_with(name, ".gguf") && strncmp(name, "mmproj", 6) != 0;
}

/* The name with this quantization that says the least else; "": the only model. NULL: none. */
static const char *find_quantization(const struct file_list *l, const char *quant)
{
    const char *best = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->names[i];
        if (!is_gguf_model(name) || (*quant && !has_quantization(name, quant)))
            continue;
        size_t n = stem_length(name);
        if (best && !*quant && (stem_length(best) != n || strncmp(best, name, n) != 0))
            return NULL;
        if (!best || n < stem_length(best))
            best = name;
    }
    return best;
}

/* With the names that are there: the answer to the question is in the message. */
static tinker_status refuse_choice(const struct hub *h, const struct file_list *l,
                                   tinker_error *err)
{
    char names[200] = "";
    size_t at = 0;
    for (size_t i = 0; i < l->n && at < sizeof(names); i++)
        if (is_gguf_model(l->names[i]))
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", at ? ", " : "",
                                   l->names[i]);
    if (!at)
        return err_set(err, TINKER_EINVAL,
                       "%s has neither safetensors nor GGUF files in its first folder", h->id);
    return err_set(err, TINKER_EINVAL, "%s has no GGUF file of %s; choose with --quant one of: %s",
                   h->id, h->quant ? h->quant : "a usual quantization", names);
}

/* Leaves the weights that are wanted in the list: safetensors, or one GGUF model with all its parts. */
static tinker_status choose_weights(const struct hub *h, struct file_list *l, tinker_error *err)
{
    /* In the order of what most machines can use: about half a byte per weight first, then what
     * is nearest; "" is a repository with a single model of any kind. */
    static const char *const usual[] = { "Q4_K_M", "Q4_0", "Q5_K_M", "Q6_K",  "Q8_0",
                                         "Q4_K_S", "BF16", "F16",    "MXFP4", "" };
    const char *chosen = NULL;
    bool safetensors = false;
    for (size_t i = 0; i < l->n; i++)
        safetensors = safetensors || ends_with(l->names[i], ".safetensors");
    safetensors = safetensors && !h->quant;
    for (size_t i = 0; !h->quant && !safetensors && !chosen && i < ARRAY_LEN(usual); i++)
        chosen = find_quantization(l, usual[i]);
    if (h->quant)
        chosen = find_quantization(l, h->quant);
    if (!safetensors && !chosen && !h->tokenizer_only)
        return refuse_choice(h, l, err);
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->names[i];
        /* n is 0 for everything that is not a GGUF file: configuration and tokenizer are always
         * wanted. */
        size_t n = ends_with(name, ".gguf") ? stem_length(name) : 0;
        bool wanted = !n && !ends_with(name, ".safetensors");
        if (!h->tokenizer_only && n)
            wanted = chosen && n == stem_length(chosen) && strncmp(name, chosen, n) == 0;
        else if (!h->tokenizer_only && !wanted)
            wanted = safetensors;
        if (wanted)
            l->names[kept++] = name;
    }
    l->n = kept;
    return TINKER_OK;
}

/* The name of the revision is written last: a reader sees the whole model or none. */
static tinker_status fetch_model_files(struct hub *h, struct file_list *l, tinker_error *err)
{
    char path[PATH];
    int lock;
    tinker_status status = choose_weights(h, l, err);
    snprintf(h->commit, sizeof(h->commit), "%s", l->commit);
    if (status == TINKER_OK)
        status = make_folders(h, err);
    if (status == TINKER_OK)
        status = lock_model(h, &lock, err);
    if (status != TINKER_OK)
        return status;
    for (size_t i = 0; status == TINKER_OK && i < l->n; i++)
        status = fetch_file(h, l->names[i], err);
    snprintf(path, sizeof(path), "%s/refs/%s", h->folder, h->revision);
    /* A commit has no name in refs; where the Hub resolved it to another one it gets one. */
    if (status == TINKER_OK && strcmp(h->revision, h->commit) != 0)
        status = os_write_file(path, h->commit, strlen(h->commit), err);
    close(lock);
    return status;
}

/* The token is sent only to the endpoint. The list of files names the
 * commit, and all files are fetched from that commit, so that a push in between does no harm. */
static tinker_status download_files(struct hub *h, tinker_error *err)
{
    char url[2048];
    struct web_exchange x;
    struct arena arena;
    struct file_list l = { 0 };
    h->endpoint = hf_endpoint();
    model_dir_folder(h->id, h->folder);
    if (!hf_authorization(h->authorization))
        return err_set(err, TINKER_EINVAL, "the token of the Hub is longer than any token");
    snprintf(url, sizeof(url), "%s/api/models/%s/revision/%s", h->endpoint, h->id, h->revision);
    tinker_status status = get_url(h, url, true, -1, 0, &x, err);
    arena_init(&arena, (size_t)256 << 20);
    if (status == TINKER_OK && x.status != 200)
        status = fail_refused(h, "the list of files", x.status, err);
    if (status == TINKER_OK &&
        !read_file_list(x.request.resp.body.data ? x.request.resp.body.data : "",
                        x.request.resp.body.len, &arena, &l))
        status = err_set(err, TINKER_EPROTOCOL, "%s: the list of files of %s is not understood",
                         h->endpoint, h->id);
    web_clear(&x);
    if (status == TINKER_OK)
        status = fetch_model_files(h, &l, err);
    arena_clear(&arena);
    return status;
}

tinker_status hf_download_model(const char *id, const char *quant, tinker_error *err)
{
    struct hub h = { .id = id, .revision = "main", .quant = quant };
    return download_files(&h, err);
}

tinker_status hf_download_tokenizer(const char *id, char dir[MODEL_DIR_MAX], tinker_error *err)
{
    tinker_tokenizer_source from;
    tinker_status status = tinker_tokenizer_resolve(id, NULL, &from, err);
    if (status != TINKER_OK)
        return status;
    struct hub h = { .id = from.repo,
                     .revision = *from.revision ? from.revision : "main",
                     .tokenizer_only = true };
    status = download_files(&h, err);
    snprintf(dir, MODEL_DIR_MAX, "%s/snapshots/%s", h.folder, h.commit);
    return status;
}
