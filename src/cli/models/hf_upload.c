/* hf_upload.c - see hf_upload.h.
 *
 * In order: who am I, make the repository, make the branch, look at README.md, ask for each file how
 * it wants to travel (preupload), send the large ones to storage (LFS: one PUT, or one per part), and
 * commit all in one request of JSON lines.  Files of storage are committed by their hash. */
#include "cli/models/hf_upload.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/os.h"
#include "base/sha.h"
#include "cli/models/hf_token.h"
#include "cli/output/out.h"
#include "cli/service/web.h"
#include "json/json.h"

/* SAMPLE_BYTES: the Hub decides by the first 512 bytes whether a file is text.  FILE_BYTES_MAX:
 * adapters are smaller; base models do not go this way.  PARTS_MAX: what storage allows for one
 * object. */
enum { FILES_MAX = 256, SAMPLE_BYTES = 512, FILE_BYTES_MAX = 1 << 30, PARTS_MAX = 10000 };

/* oid: the hash by which storage knows the file; the Hub sets lfs and ignored, see read_modes(). */
struct upload_file {
    char name[256];
    char *data;
    size_t n;
    char oid[65]; /* SHA-256 */
    bool lfs, ignored;
};

/* Everything of one upload.  The token is wiped before the memory is freed. */
struct upload {
    struct hf_upload *u;
    char authorization[HF_AUTHORIZATION_MAX];
    char revision[128];
    struct upload_file files[FILES_MAX];
    size_t n;
};

/* ---- requests --------------------------------------------------------------------------------------- */

/* Send a request to the Hub; the answer stays in x until web_clear(). */
static tinker_status call_hub(const struct upload *p, struct web_exchange *x, const char *method,
                              const char *url, const struct buf *body, const char *type,
                              tinker_error *err)
{
    web_init(x, method, url);
    if (p->authorization[0])
        web_header(x, "Authorization", p->authorization, true);
    if (body) {
        if (!buf_ok(body))
            return err_nomem(err, "request");
        web_header(x, "Content-Type", type ? type : "application/json", false);
        x->body = body->data;
        x->n_body = body->len;
    }
    if (type && strstr(type, "git-lfs"))
        web_header(x, "Accept", type, false);
    return web_send(x, err);
}

/* Never NULL, and NUL-terminated, so that messages can quote it. */
static const char *answer_text(const struct web_exchange *x)
{
    return x->request.resp.body.data ? x->request.resp.body.data : "";
}

/* 2xx, or `also`; else the words of the Hub. */
static tinker_status check_answer(const struct web_exchange *x, int also, const char *what,
                                  tinker_error *err)
{
    if ((x->status >= 200 && x->status < 300) || x->status == also)
        return TINKER_OK;
    /* A refused token is the user's to mend; other codes may pass by themselves. */
    if (x->status == 401 || x->status == 403)
        return err_set(err, TINKER_EINVAL, "%s: the Hub refuses the token (%d)", what, x->status);
    return err_set(err, TINKER_ECONNECT, "%s: the Hub answers %d: %.150s", what, x->status,
                   answer_text(x));
}

/* A text member of the object in an answer, "" when it is not there. */
static void read_text_member(const struct web_exchange *x, const char *name, char *out, size_t size)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    char *text = NULL;
    out[0] = 0;
    arena_init(&arena, 16 << 20);
    json_reader_init(&r, answer_text(x), x->request.resp.body.len, &arena);
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key))
        ok = json_str_is(key, name) && json_peek(&r) == JSON_STRING ? json_cstring(&r, &text)
                                                                    : json_skip(&r);
    if (text)
        snprintf(out, size, "%s", text);
    arena_clear(&arena);
}

/* Also the check of the token: a wrong one must show before a repository is made. */
tinker_status hf_upload_whoami(char out[128], tinker_error *err)
{
    struct upload p = { 0 };
    struct web_exchange x;
    char url[1024];
    if (!hf_authorization(p.authorization) || !p.authorization[0])
        return err_set(err, TINKER_ESTATE, "there is no token of the Hub");
    snprintf(url, sizeof(url), "%s/api/whoami-v2", hf_endpoint());
    tinker_status status = call_hub(&p, &x, "GET", url, NULL, NULL, err);
    if (status == TINKER_OK)
        status = check_answer(&x, 0, "whoami", err);
    if (status == TINKER_OK)
        read_text_member(&x, "name", out, 128);
    web_clear(&x);
    if (status == TINKER_OK && !out[0])
        status = err_set(err, TINKER_EPROTOCOL, "the Hub does not say whose token it is");
    return status;
}

/* ---- repository ------------------------------------------------------------------------------------- */

/* Private unless asked otherwise.  A repository or branch that exists is used: uploading twice
 * is an update.  Its privacy is not changed then. */
static tinker_status make_repository(struct upload *p, tinker_error *err)
{
    struct hf_upload *u = p->u;
    struct web_exchange x;
    struct buf body;
    struct json_writer w;
    char url[1024];
    const char *slash = strchr(u->repo, '/');
    snprintf(url, sizeof(url), "%s/api/repos/create", hf_endpoint());
    buf_init(&body, 1 << 16);
    json_writer_init(&w, &body);
    json_put_begin_object(&w);
    json_put_key(&w, "name");
    json_put_string(&w, slash ? slash + 1 : u->repo);
    if (slash) {
        json_put_key(&w, "organization");
        json_put_string_n(&w, u->repo, (size_t)(slash - u->repo));
    }
    json_put_key(&w, "private");
    json_put_bool(&w, !u->is_public);
    json_put_end_object(&w);
    tinker_status status = call_hub(p, &x, "POST", url, &body, NULL, err);
    if (status == TINKER_OK)
        status = check_answer(&x, 409, "make the repository", err); /* 409: it exists */
    web_clear(&x);
    buf_clear(&body);
    if (status != TINKER_OK || strcmp(p->revision, "main") == 0)
        return status;
    snprintf(url, sizeof(url), "%s/api/models/%s/branch/%s", hf_endpoint(), u->full_repo,
             p->revision);
    buf_init(&body, 16);
    buf_puts(&body, "{}");
    status = call_hub(p, &x, "POST", url, &body, NULL, err);
    if (status == TINKER_OK)
        status = check_answer(&x, 409, "make the branch", err);
    web_clear(&x);
    buf_clear(&body);
    return status;
}

/* A README that speaks of another checkpoint: the repository is somebody else's work.
 * Its own last upload names the same path, and may be replaced. */
static tinker_status check_readme(struct upload *p, tinker_error *err)
{
    struct web_exchange x;
    char url[1024], other[512] = "";
    snprintf(url, sizeof(url), "%s/%s/resolve/%s/README.md", hf_endpoint(), p->u->full_repo,
             p->revision);
    tinker_status status = call_hub(p, &x, "GET", url, NULL, NULL, err);
    const char *found =
        status == TINKER_OK && x.status == 200 ? strstr(answer_text(&x), "tinker://") : NULL;
    if (found)
        snprintf(other, sizeof(other), "%.*s", (int)strcspn(found, " \t\r\n`\"'<>"), found);
    web_clear(&x);
    if (found && strcmp(other, p->u->tinker_path) != 0)
        return err_set(err, TINKER_EREQUEST,
                       "Repo ID appears to contain a different Tinker checkpoint. There: %.120s, "
                       "here: %.120s",
                       other, p->u->tinker_path);
    return status;
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* Patterns are those of fnmatch(), as in the Hub's own library; one match is enough. */
static bool matches_any(const struct opt_list *list, const char *name)
{
    for (size_t i = 0; list && i < list->n; i++)
        if (fnmatch(list->items[i], name, 0) == 0)
            return true;
    return false;
}

/* Plain files of the folder itself, not of folders in it: a checkpoint has none.  All are read
 * before anything is sent, so that a file that cannot be read ends it in time. */
static tinker_status read_files(struct upload *p, tinker_error *err)
{
    const struct hf_upload *u = p->u;
    DIR *d = opendir(u->dir);
    tinker_status status = d ? TINKER_OK : err_errno(err, "open", u->dir);
    for (const struct dirent *e; status == TINKER_OK && (e = readdir(d)) != NULL;) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", u->dir, e->d_name);
        /* --allow and --ignore are patterns of names, as for the Hub's own tool. */
        if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || matches_any(u->ignore, e->d_name) ||
            (u->allow && u->allow->n && !matches_any(u->allow, e->d_name)) || p->n == FILES_MAX)
            continue;
        struct upload_file *f = &p->files[p->n++];
        struct sha256 h;
        uint8_t digest[32];
        snprintf(f->name, sizeof(f->name), "%s", e->d_name);
        /* In memory as a whole: it is hashed, then sent once or in parts, and must not change
         * between. */
        status = os_read_file(path, FILE_BYTES_MAX, &f->data, &f->n, err);
        if (status == TINKER_OK) {
            sha256_init(&h);
            sha256_update(&h, f->data, f->n);
            sha256_final(&h, digest);
            hex_encode(digest, sizeof(digest), f->oid);
        }
    }
    if (d)
        closedir(d);
    if (status == TINKER_OK && !p->n)
        return err_set(err, TINKER_EINVAL, "there is nothing to upload");
    return status;
}

/* NULL for names that we did not send. */
static struct upload_file *find_file(struct upload *p, const char *name)
{
    for (size_t i = 0; name && i < p->n; i++)
        if (strcmp(p->files[i].name, name) == 0)
            return &p->files[i];
    return NULL;
}

/* {"files":[{"path","uploadMode","shouldIgnore"}]}
 * shouldIgnore: the repository's .gitignore leaves the file out. */
static bool read_modes(struct upload *p, const struct web_exchange *x)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    arena_init(&arena, 16 << 20);
    json_reader_init(&r, answer_text(x), x->request.resp.body.len, &arena);
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key)) {
        if (!json_str_is(key, "files")) {
            ok = json_skip(&r);
            continue;
        }
        ok = json_begin_array(&r);
        while (ok && json_next_item(&r)) {
            char *path = NULL, *mode = NULL;
            bool ignore = false;
            ok = json_begin_object(&r);
            while (ok && json_next_key(&r, &key))
                ok = json_str_is(key, "path")           ? json_cstring(&r, &path)
                     : json_str_is(key, "uploadMode")   ? json_cstring(&r, &mode)
                     : json_str_is(key, "shouldIgnore") ? json_bool(&r, &ignore)
                                                        : json_skip(&r);
            struct upload_file *f = find_file(p, path);
            if (f) {
                f->lfs = mode && strcmp(mode, "lfs") == 0;
                f->ignored = ignore;
            }
        }
    }
    arena_clear(&arena);
    return ok;
}

/* Large and binary files must go to storage; which ones these are is the repository's setting,
 * so the Hub is asked for each. */
static tinker_status ask_modes(struct upload *p, tinker_error *err)
{
    struct web_exchange x;
    struct buf body, sample;
    struct json_writer w;
    char url[1024];
    buf_init(&body, 1 << 20);
    json_writer_init(&w, &body);
    json_put_begin_object(&w);
    json_put_key(&w, "files");
    json_put_begin_array(&w);
    for (size_t i = 0; i < p->n; i++) {
        const struct upload_file *f = &p->files[i];
        buf_init(&sample, 4096);
        /* Of the beginning only: text or binary is all that is judged by it. */
        base64_encode(&sample, f->data, f->n < SAMPLE_BYTES ? f->n : SAMPLE_BYTES);
        json_put_begin_object(&w);
        json_put_key(&w, "path");
        json_put_string(&w, f->name);
        json_put_key(&w, "sample");
        json_put_string(&w, sample.data ? sample.data : "");
        json_put_key(&w, "size");
        json_put_uint64(&w, f->n);
        json_put_end_object(&w);
        buf_clear(&sample);
    }
    json_put_end_array(&w);
    json_put_end_object(&w);
    snprintf(url, sizeof(url), "%s/api/models/%s/preupload/%s%s", hf_endpoint(), p->u->full_repo,
             p->revision, p->u->create_pr ? "?create_pr=1" : "");
    tinker_status status = call_hub(p, &x, "POST", url, &body, NULL, err);
    if (status == TINKER_OK)
        status = check_answer(&x, 0, "preupload", err);
    if (status == TINKER_OK && !read_modes(p, &x))
        status = err_set(err, TINKER_EPROTOCOL, "the Hub's answer about files is not understood");
    web_clear(&x);
    buf_clear(&body);
    return status;
}

/* ---- storage ------------------------------------------------------------------------------------------ */

/* What the Hub says about one object: where it goes, in how many parts, and whom to tell. */
struct lfs_actions {
    char *href, *verify, *chunk_size;
    char *parts[PARTS_MAX];
    size_t n_parts;
};

/* "header": {"chunk_size": "N", "1": URL, "00002": URL, ...} or headers of a plain upload. */
static bool read_lfs_header(struct json_reader *r, struct lfs_actions *a)
{
    struct json_str key;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        char *text = NULL;
        if (json_peek(r) != JSON_STRING) {
            ok = json_skip(r);
            continue;
        }
        size_t number = 0, digits = 0;
        /* Parts are members called "1" or "00001"; other members are headers of a plain upload,
         * which signed addresses do not need. */
        for (; digits < key.n && key.s[digits] >= '0' && key.s[digits] <= '9' && number < PARTS_MAX;
             digits++)
            number = number * 10 + (size_t)(key.s[digits] - '0');
        ok = json_cstring(r, &text);
        if (json_str_is(key, "chunk_size"))
            a->chunk_size = text;
        else if (ok && key.n && digits == key.n && number >= 1 && number <= PARTS_MAX) {
            a->parts[number - 1] = text;
            a->n_parts = number > a->n_parts ? number : a->n_parts;
        }
    }
    return ok;
}

/* {"upload": {"href","header"}, "verify": {"href"}}
 * href: where an "href" at this level goes; NULL at the top, where there is none. */
static bool read_lfs_actions(struct json_reader *r, struct lfs_actions *a, char **href)
{
    struct json_str key;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        if (json_str_is(key, "upload") && json_peek(r) == JSON_OBJECT)
            ok = read_lfs_actions(r, a, &a->href);
        else if (json_str_is(key, "verify") && json_peek(r) == JSON_OBJECT)
            ok = read_lfs_actions(r, a, &a->verify);
        else if (json_str_is(key, "href") && href)
            ok = json_cstring(r, href);
        else if (json_str_is(key, "header") && href == &a->href && json_peek(r) == JSON_OBJECT)
            ok = read_lfs_header(r, a);
        else
            ok = json_skip(r);
    }
    return ok;
}

/* {"objects":[{"oid","actions":{...}}]}, of which there is one. */
static bool read_lfs_answer(struct json_reader *r, struct lfs_actions *a)
{
    struct json_str key;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        if (json_str_is(key, "objects")) {
            ok = json_begin_array(r);
            while (ok && json_next_item(r))
                ok = read_lfs_answer(r, a);
        } else if (json_str_is(key, "actions") && json_peek(r) == JSON_OBJECT) {
            ok = read_lfs_actions(r, a, NULL);
        } else {
            ok = json_skip(r);
        }
    }
    return ok;
}

/* PUT bytes to a signed address, which must not see the token.  etag (may be NULL): of the part. */
static tinker_status put_bytes(const char *url, const char *data, size_t n, char etag[256],
                               tinker_error *err)
{
    struct web_exchange x;
    web_init(&x, "PUT", url);
    x.body = data;
    x.n_body = n;
    tinker_status status = web_send(&x, err);
    if (status == TINKER_OK)
        status = check_answer(&x, 0, "upload", err);
    if (status == TINKER_OK && etag)
        web_answer_header(&x, "ETag", etag, 256);
    web_clear(&x);
    return status;
}

/* Signed addresses, one per part, all but the last of chunk_size bytes.  Storage names each part
 * by an ETag, and is told all of them at the end to put the object together. */
static tinker_status put_parts(const struct upload *p, const struct upload_file *f,
                               const struct lfs_actions *a, tinker_error *err)
{
    struct web_exchange x;
    struct buf body;
    struct json_writer w;
    size_t size = (size_t)strtoull(a->chunk_size, NULL, 10);
    tinker_status status =
        size && a->n_parts && a->href && (f->n + size - 1) / size == a->n_parts
            ? TINKER_OK
            : err_set(err, TINKER_EPROTOCOL, "the parts of %s make no sense", f->name);
    buf_init(&body, 4 << 20);
    json_writer_init(&w, &body);
    json_put_begin_object(&w);
    json_put_key(&w, "oid");
    json_put_string(&w, f->oid);
    json_put_key(&w, "parts");
    json_put_begin_array(&w);
    for (size_t i = 0; status == TINKER_OK && i < a->n_parts; i++) {
        char etag[256] = "";
        /* The last part is what is left. */
        size_t n = i * size + size <= f->n ? size : f->n - i * size;
        status = a->parts[i] ? put_bytes(a->parts[i], f->data + i * size, n, etag, err)
                             : err_set(err, TINKER_EPROTOCOL, "part %zu of %s has no address",
                                       i + 1, f->name);
        json_put_begin_object(&w);
        json_put_key(&w, "partNumber");
        json_put_uint64(&w, i + 1);
        json_put_key(&w, "etag");
        json_put_string(&w, etag);
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    json_put_end_object(&w);
    if (status == TINKER_OK) {
        status = call_hub(p, &x, "POST", a->href, &body, "application/vnd.git-lfs+json", err);
        if (status == TINKER_OK)
            status = check_answer(&x, 0, "complete the upload", err);
        web_clear(&x);
    }
    buf_clear(&body);
    return status;
}

/* {"oid","size"}, which the batch and the check want. */
static void put_object(struct json_writer *w, const struct upload_file *f)
{
    json_put_begin_object(w);
    json_put_key(w, "oid");
    json_put_string(w, f->oid);
    json_put_key(w, "size");
    json_put_uint64(w, f->n);
    json_put_end_object(w);
}

/* Upload, then "verify" if storage asks for it: it then compares size and hash with what has
 * arrived. */
static tinker_status send_object(const struct upload *p, const struct upload_file *f,
                                 const struct lfs_actions *a, tinker_error *err)
{
    struct web_exchange x;
    struct buf body;
    struct json_writer w;
    tinker_status status = TINKER_OK;
    if (!a->href && !a->n_parts)
        return TINKER_OK; /* it is there already */
    status = a->chunk_size ? put_parts(p, f, a, err) : put_bytes(a->href, f->data, f->n, NULL, err);
    if (status != TINKER_OK || !a->verify)
        return status;
    buf_init(&body, 4096);
    json_writer_init(&w, &body);
    put_object(&w, f);
    status = call_hub(p, &x, "POST", a->verify, &body, "application/vnd.git-lfs+json", err);
    if (status == TINKER_OK)
        status = check_answer(&x, 0, "verify the upload", err);
    web_clear(&x);
    buf_clear(&body);
    return status;
}

/* One object per request: uploads are few, and a failure then names its file.  No addresses in
 * the answer: storage has an object with this hash already. */
static tinker_status store_file(const struct upload *p, const struct upload_file *f,
                                tinker_error *err)
{
    struct web_exchange x;
    struct buf body;
    struct json_writer w;
    struct arena arena;
    struct json_reader r;
    char url[1024];
    /* 80 KB of pointers to parts: too large for the stack. */
    struct lfs_actions *a = calloc(1, sizeof(*a));
    if (!a)
        return err_nomem(err, f->name);
    buf_init(&body, 1 << 16);
    json_writer_init(&w, &body);
    json_put_begin_object(&w);
    json_put_key(&w, "operation");
    json_put_string(&w, "upload");
    json_put_key(&w, "transfers");
    json_put_raw(&w, "[\"basic\",\"multipart\"]", 21);
    json_put_key(&w, "objects");
    json_put_begin_array(&w);
    put_object(&w, f);
    json_put_end_array(&w);
    json_put_key(&w, "hash_algo");
    json_put_string(&w, "sha256");
    json_put_key(&w, "ref");
    json_put_begin_object(&w);
    json_put_key(&w, "name");
    json_put_string(&w, p->revision);
    json_put_end_object(&w);
    json_put_end_object(&w);
    snprintf(url, sizeof(url), "%s/%s.git/info/lfs/objects/batch", hf_endpoint(), p->u->full_repo);
    tinker_status status = call_hub(p, &x, "POST", url, &body, "application/vnd.git-lfs+json", err);
    if (status == TINKER_OK)
        status = check_answer(&x, 0, "ask for storage", err);
    arena_init(&arena, 64 << 20);
    if (status == TINKER_OK) {
        json_reader_init(&r, answer_text(&x), x.request.resp.body.len, &arena);
        status = read_lfs_answer(&r, a)
                     ? send_object(p, f, a, err)
                     : err_set(err, TINKER_EPROTOCOL,
                               "the Hub's answer about storage is not understood");
    }
    arena_clear(&arena);
    web_clear(&x);
    buf_clear(&body);
    free(a);
    return status;
}

/* ---- commit ------------------------------------------------------------------------------------------- */

/* One JSON line: {"key": KEY, "value": {...}}. */
static void put_commit_line(struct buf *out, const struct upload_file *f, const char *message)
{
    struct json_writer w;
    struct buf text;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    json_put_key(&w, "key");
    json_put_string(&w, !f ? "header" : f->lfs ? "lfsFile" : "file");
    json_put_key(&w, "value");
    json_put_begin_object(&w);
    if (!f) {
        json_put_key(&w, "summary");
        json_put_string(&w, message);
        json_put_key(&w, "description");
        json_put_string(&w, "");
    } else if (f->lfs) {
        json_put_key(&w, "path");
        json_put_string(&w, f->name);
        json_put_key(&w, "algo");
        json_put_string(&w, "sha256");
        json_put_key(&w, "oid");
        json_put_string(&w, f->oid);
        json_put_key(&w, "size");
        json_put_uint64(&w, f->n);
    } else {
        buf_init(&text, f->n * 2 + 16);
        base64_encode(&text, f->data, f->n);
        json_put_key(&w, "content");
        json_put_string(&w, text.data ? text.data : "");
        json_put_key(&w, "path");
        json_put_string(&w, f->name);
        json_put_key(&w, "encoding");
        json_put_string(&w, "base64");
        buf_clear(&text);
    }
    json_put_end_object(&w);
    json_put_end_object(&w);
    buf_putc(out, '\n');
}

/* One commit with everything: the repository never shows half a checkpoint.  Small files travel
 * in it as base64, stored ones by their hash. */
static tinker_status commit_files(struct upload *p, tinker_error *err)
{
    struct web_exchange x;
    struct buf body;
    char url[1024];
    buf_init(&body, (size_t)2 << 30);
    /* The first line is the message, then one line per file. */
    put_commit_line(&body, NULL, p->u->message ? p->u->message : "Upload with tinker");
    for (size_t i = 0; i < p->n; i++)
        if (!p->files[i].ignored)
            put_commit_line(&body, &p->files[i], NULL);
    snprintf(url, sizeof(url), "%s/api/models/%s/commit/%s%s", hf_endpoint(), p->u->full_repo,
             p->revision, p->u->create_pr ? "?create_pr=1" : "");
    tinker_status status = call_hub(p, &x, "POST", url, &body, "application/x-ndjson", err);
    if (status == TINKER_OK)
        status = check_answer(&x, 0, "commit", err);
    web_clear(&x);
    buf_clear(&body);
    return status;
}

/* Repository, branch, files, commit: nothing is visible on the Hub before the commit, so a failure
 * leaves no half of an adapter there. */
tinker_status hf_upload_folder(struct hf_upload *u, tinker_error *err)
{
    char owner[128] = "";
    struct upload *p = calloc(1, sizeof(*p));
    if (!p)
        return err_nomem(err, "upload");
    p->u = u;
    snprintf(p->revision, sizeof(p->revision), "%s", u->revision ? u->revision : "main");
    /* Checked by whoami, which fails without a token. */
    hf_authorization(p->authorization);
    tinker_status status = hf_upload_whoami(owner, err);
    /* A name without an owner belongs to the token's user; "%.0s" takes the owner and prints
     * nothing of it. */
    snprintf(u->full_repo, sizeof(u->full_repo), strchr(u->repo, '/') ? "%.0s%s" : "%s/%s", owner,
             u->repo);
    if (status == TINKER_OK)
        status = make_repository(p, err);
    if (status == TINKER_OK)
        status = check_readme(p, err);
    if (status == TINKER_OK)
        status = read_files(p, err);
    if (status == TINKER_OK)
        status = ask_modes(p, err);
    for (size_t i = 0; status == TINKER_OK && i < p->n; i++) {
        if (p->files[i].ignored || !p->files[i].lfs)
            continue;
        out_say("uploading %s", p->files[i].name);
        status = store_file(p, &p->files[i], err);
    }
    if (status == TINKER_OK)
        status = commit_files(p, err);
    for (size_t i = 0; i < p->n; i++)
        free(p->files[i].data);
    memset(p->authorization, 0, sizeof(p->authorization));
    free(p);
    return status;
}
