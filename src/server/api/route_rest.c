/* route_rest.c - training runs and checkpoints: listings and management.
 *
 * Users see and change only what they own; what belongs to others is reported as 404, so that ids
 * cannot be guessed.  Everything here is in the store: runs stay listed after their model ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "server/store/archive.h"
#include "server/store/checkpoint.h"
#include "server/work/sampler_table.h"
#include "server/http/signed_url.h"
#include "server/api/routes.h"
#include "server/work/usage.h"

/* ---- records to wire types -------------------------------------------------------------- */

/* Python's dates end with the year 9999: later times are sent as the last one. */
static int64_t convert_time(int64_t us)
{
    /* Of tinker_wire's dates: seconds since 1970 until the end of that year. */
    const int64_t last = INT64_C(253402300799) * 1000000; /* of the year 9999 */
    return us == 0 ? TINKER_NO_TIME : us < last ? us : last;
}

void route_metadata(const char *json, struct arena *arena, const tinker_named_string **out,
                    size_t *n)
{
    /* What the store has was checked when it came in; anything else counts as no metadata. */
    struct wire_named_strings pairs = { 0 };
    if (wire_metadata_decode((struct json_str){ json, json ? strlen(json) : 0 }, arena, &pairs,
                             NULL) != TINKER_OK)
        pairs = (struct wire_named_strings){ 0 };
    static const tinker_named_string none[1];
    *out = pairs.has && !pairs.v ? none : pairs.v; /* {} is given, too */
    *n = pairs.n;
}

void route_convert_checkpoint(const struct server *s, struct arena *arena,
                              const struct store_checkpoint *c, tinker_checkpoint *out)
{
    const char *kind = store_kind_name(c->kind);
    /* The bare form is for a client that puts the kind in front by itself. */
    const char *id =
        s->opts.bare_checkpoint_ids ? c->name : arena_printf(arena, "%s/%s", kind, c->name);
    *out = (tinker_checkpoint){
        .id = id,
        .kind = (tinker_checkpoint_kind)c->kind, /* same order */
        .time_us = convert_time(c->created_us),
        .path = arena_printf(arena, "tinker://%s/%s/%s", c->run, kind, c->name),
        .size_bytes = c->size_bytes,
        .is_public = c->is_public,
        .expires_us = convert_time(c->expires_us),
        .base_model = c->base_model,
    };
    route_metadata(c->user_metadata, arena, &out->user_metadata, &out->n_user_metadata);
}

/* The newest checkpoint of a run, converted; *out NULL: there is none. */
static tinker_status find_last_checkpoint(struct server *s, struct arena *arena, const char *run,
                                          bool sampler, const tinker_checkpoint **out,
                                          tinker_error *err)
{
    struct store_checkpoint *c = NULL;
    *out = NULL;
    tinker_status status = store_last_checkpoint(s->store, run, sampler, arena, &c, err);
    /* Without memory the run is listed without its checkpoint, which is not wrong. */
    tinker_checkpoint *v = c ? arena_alloc(arena, sizeof(*v)) : NULL;
    if (status != TINKER_OK || !v)
        return status;
    route_convert_checkpoint(s, arena, c, v);
    *out = v;
    return TINKER_OK;
}

/* A model as clients see it: a run with its two last checkpoints. */
static tinker_status convert_run(struct server *s, struct arena *arena, const struct store_model *m,
                                 tinker_training_run *out, tinker_error *err)
{
    *out = (tinker_training_run){
        .id = m->id,
        .base_model = m->base_model,
        .owner = m->owner,
        .is_lora = m->lora.rank > 0,
        .corrupted = m->status == STORE_MODEL_LOST,
        .lora_rank = m->lora.rank,
        .last_request_us = convert_time(m->last_request_us),
    };
    route_metadata(m->user_metadata, arena, &out->user_metadata, &out->n_user_metadata);
    tinker_status status = find_last_checkpoint(s, arena, m->id, false, &out->last_checkpoint, err);
    if (status == TINKER_OK)
        status = find_last_checkpoint(s, arena, m->id, true, &out->last_sampler_checkpoint, err);
    return status;
}

/* The newest SDK whose source does not know external weights is 0.25. */
bool route_knows_kind(const struct request *req, int kind)
{
    int major = 0, minor = 0;
    /* Other programs have no version and get everything. */
    if (kind != STORE_EXTERNAL || !req->sdk_version ||
        sscanf(req->sdk_version, "%d.%d", &major, &minor) != 2)
        return true;
    return major > 0 || minor > 25;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* GET items: the user's runs, most recent request first, with their last checkpoints. */
void route_list_runs(struct server *s, struct request *req, struct response *res)
{
    tinker_training_runs r = { 0 };
    struct store_model *models;
    size_t n;
    tinker_error err = { 0 };
    if (!route_query_int(req, res, "limit", 20, 1000, &r.cursor.limit) ||
        !route_query_int(req, res, "offset", 0, INT64_MAX, &r.cursor.offset))
        return;
    /* -1: in whatever state. */
    tinker_status status =
        store_list_models(s->store, req->user, NULL, -1, r.cursor.limit, r.cursor.offset,
                          &req->arena, &models, &n, &r.cursor.total_count, &err);
    /* One more, since an array of no elements may be NULL. */
    tinker_training_run *runs = arena_array(&req->arena, n + 1, sizeof(*runs));
    for (size_t i = 0; status == TINKER_OK && runs && i < n; i++)
        status = convert_run(s, &req->arena, &models[i], &runs[i], &err);
    if (status != TINKER_OK || !runs) {
        route_store_error(s, res, &err);
        return;
    }
    r.items = runs;
    r.n = n;
    route_reply(res, &wire_training_runs_response, &r);
}

/* The run of the path if it is the user's; else 404. */
struct store_model *route_own_run(struct server *s, struct request *req, struct response *res)
{
    struct store_model *m = NULL;
    tinker_error err = { 0 };
    if (store_get_model(s->store, req->param[0], &req->arena, &m, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return NULL;
    }
    if (m && strcmp(m->owner, req->user) == 0)
        return m;
    response_error(res, 404, "Training run not found: %s", req->param[0]);
    return NULL;
}

/* GET items/{}: one run of the user. */
void route_get_run(struct server *s, struct request *req, struct response *res)
{
    tinker_training_run r;
    tinker_error err = { 0 };
    struct store_model *m = route_own_run(s, req, res);
    if (!m)
        return;
    if (convert_run(s, &req->arena, m, &r, &err) == TINKER_OK)
        route_reply(res, &wire_training_run, &r);
    else
        route_store_error(s, res, &err);
}

/* ---- lists of checkpoints ------------------------------------------------------------------------ */

/* 200 with a list; cursor NULL: it is complete. */
static void reply_checkpoints(const struct server *s, struct request *req, struct response *res,
                              const struct store_checkpoint *list, size_t n,
                              const tinker_cursor *cursor)
{
    tinker_checkpoint *out = arena_array(&req->arena, n + 1, sizeof(*out));
    if (!out) {
        response_no_memory(res);
        return;
    }
    size_t shown = 0;
    for (size_t i = 0; i < n; i++)
        /* An older SDK fails on a kind that it does not know, for the whole list. */
        if (route_knows_kind(req, list[i].kind))
            route_convert_checkpoint(s, &req->arena, &list[i], &out[shown++]);
    tinker_checkpoints r = { shown, out, cursor };
    route_reply(res, &wire_checkpoints_list_response, &r);
}

/* GET items/{}/checkpoints: all of them, without a cursor: the SDK expects one response. */
void route_run_checkpoints(struct server *s, struct request *req, struct response *res)
{
    struct store_checkpoint *list;
    size_t n;
    tinker_error err = { 0 };
    if (!route_own_run(s, req, res))
        return;
    /* A bound that no run reaches, instead of a cursor. */
    if (store_list_checkpoints(s->store, req->user, req->param[0], 100000, 0, &req->arena, &list,
                               &n, NULL, &err) == TINKER_OK)
        reply_checkpoints(s, req, res, list, n, NULL);
    else
        route_store_error(s, res, &err);
}

/* GET checkpoints: those of all runs of the user, newest first. */
void route_list_checkpoints(struct server *s, struct request *req, struct response *res)
{
    struct store_checkpoint *list;
    tinker_cursor cursor = { 0 };
    size_t n;
    tinker_error err = { 0 };
    if (!route_query_int(req, res, "limit", 100, 1000, &cursor.limit) ||
        !route_query_int(req, res, "offset", 0, INT64_MAX, &cursor.offset))
        return;
    if (store_list_checkpoints(s->store, req->user, NULL, cursor.limit, cursor.offset, &req->arena,
                               &list, &n, &cursor.total_count, &err) == TINKER_OK)
        reply_checkpoints(s, req, res, list, n, &cursor);
    else
        route_store_error(s, res, &err);
}

/* ---- one checkpoint ----------------------------------------------------------------------------------- */

/* The user's own checkpoint named by the path: run, kind, name. */
static struct store_checkpoint *find_own_checkpoint(struct server *s, struct request *req,
                                                    struct response *res)
{
    /* The segments of the path are a kind and a name; the kinds have the same names as in tinker://
     * paths. */
    for (int kind = STORE_TRAINING; kind <= STORE_EXTERNAL; kind++)
        if (strcmp(req->param[1], store_kind_name(kind)) == 0)
            return route_checkpoint(s, req, res, req->param[0], kind, req->param[2], false);
    response_error(res, 400,
                   "Invalid checkpoint identifier. Expected format 'weights/<name>', "
                   "'sampler_weights/<name>' or 'external_weights/<name>'");
    return NULL;
}

/* An identifier without its kind: that of the listings with --bare-checkpoint-ids, where the name
 * must be of one kind only.  Puts the kind into the request, or responds. */
static bool add_kind(struct server *s, struct request *req, struct response *res)
{
    const char *found = NULL, *name = req->param[1];
    size_t n = 0;
    tinker_error err = { 0 };
    /* Without the option the loop does not run, and the response is 400. */
    for (int kind = STORE_TRAINING; s->opts.bare_checkpoint_ids && kind <= STORE_EXTERNAL; kind++) {
        struct store_checkpoint *c = NULL;
        if (store_get_checkpoint(s->store, req->param[0], kind, name, &req->arena, &c, &err) !=
            TINKER_OK) {
            route_store_error(s, res, &err);
            return false;
        }
        if (c && !c->hidden && strcmp(c->owner, req->user) == 0) {
            found = store_kind_name(kind);
            n++;
        }
    }
    /* Two kinds of one name: which of them is meant cannot be guessed. */
    if (n == 1) {
        req->param[2] = name;
        req->param[1] = found;
        return true;
    }
    if (s->opts.bare_checkpoint_ids && n == 0)
        response_error(res, 404, "Checkpoint not found: %s/%s", req->param[0], name);
    else
        response_error(res, 400,
                       "Invalid checkpoint identifier. Expected format 'weights/<name>' or "
                       "'sampler_weights/<name>'");
    return false;
}

/* 204 when the change is recorded, else 500. */
static void reply_changed(struct server *s, struct response *res, tinker_status status,
                          const tinker_error *err)
{
    if (status == TINKER_OK)
        response_no_content(res);
    else
        route_store_error(s, res, err);
}

/* Note an event about a checkpoint for the audit log. */
static void note_checkpoint(struct server *s, struct request *req, const char *event,
                            const struct store_checkpoint *c, const char *purpose)
{
    usage_note(
        s, req->user, event, c->run,
        arena_printf(&req->arena, "tinker://%s/%s/%s", c->run, store_kind_name(c->kind), c->name),
        purpose, NULL);
}

/* DELETE: the record goes now, the files once no other record names their directory. */
void route_delete_checkpoint(struct server *s, struct request *req, struct response *res)
{
    tinker_error err = { 0 };
    struct store_checkpoint *c = find_own_checkpoint(s, req, res);
    if (!c)
        return;
    /* The record first: files that nobody lists take room, but a record without files would fail
     * every load. */
    tinker_status status = store_delete_checkpoint(s->store, c->run, c->kind, c->name, &err);
    if (status == TINKER_OK)
        status = sampler_table_end(s, c, NULL, &err);
    if (status == TINKER_OK)
        /* Removes the directory unless another record names it. */
        checkpoint_release(s, c->dir);
    if (status == TINKER_OK)
        note_checkpoint(s, req, "checkpoint_delete", c, NULL);
    reply_changed(s, res, status, &err);
}

/* Publish or unpublish. */
static void set_public(struct server *s, struct request *req, struct response *res, bool on)
{
    tinker_error err = { 0 };
    struct store_checkpoint *c = find_own_checkpoint(s, req, res);
    if (!c)
        return;
    tinker_status status =
        store_set_checkpoint_public(s->store, c->run, c->kind, c->name, on, &err);
    /* Sampling sessions of others end; samples that have started do not. */
    if (status == TINKER_OK && !on)
        status = sampler_table_end(s, c, c->owner, &err);
    if (status == TINKER_OK)
        note_checkpoint(s, req, on ? "checkpoint_publish" : "checkpoint_unpublish", c, NULL);
    reply_changed(s, res, status, &err);
}

/* Anybody with a key may then load the checkpoint, but only its owner may change it. */
void route_publish(struct server *s, struct request *req, struct response *res)
{
    set_public(s, req, res, true);
}

/* Loads that have started are not stopped. */
void route_unpublish(struct server *s, struct request *req, struct response *res)
{
    set_public(s, req, res, false);
}

/* PUT ttl: set the expiry, counted from now; without ttl_seconds clear it. */
void route_set_ttl(struct server *s, struct request *req, struct response *res)
{
    struct wire_ttl_request in;
    tinker_error err = { 0 };
    if (!route_body(req, res, &wire_ttl_request, &in))
        return;
    struct store_checkpoint *c = find_own_checkpoint(s, req, res);
    if (!c)
        return;
    /* Half of what fits, so that adding the present time cannot overflow. */
    if (in.ttl_seconds.has &&
        (in.ttl_seconds.value <= 0 || in.ttl_seconds.value > INT64_MAX / 2000000)) {
        response_error(res, 400, "ttl_seconds must be a positive number of seconds");
        return;
    }
    int64_t expires = in.ttl_seconds.has ? live_wall_us(s) + in.ttl_seconds.value * 1000000 : 0;
    tinker_status status =
        store_set_checkpoint_expiry(s->store, c->run, c->kind, c->name, expires, &err);
    if (status == TINKER_OK)
        note_checkpoint(s, req, "checkpoint_set_ttl", c, NULL);
    reply_changed(s, res, status, &err);
}

/* ---- archives --------------------------------------------------------------------------------------------- */

/* 302 to a signed URL, with the time until which it works. */
static void redirect_to_archive(struct server *s, struct request *req, struct response *res,
                                const struct store_checkpoint *c)
{
    char date[64];
    int64_t expires;
    struct tm tm;
    /* The URL works for a while and for whoever has it, as one of a cloud's storage would. */
    const char *url = signed_url_make(s, req, "download", c->dir, &expires);
    time_t when = (time_t)expires;
    gmtime_r(&when, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    const char *until = arena_strdup(&req->arena, date);
    if (!url || !until) {
        response_no_memory(res);
        return;
    }
    /* {} for clients that do not follow redirects and read the body. */
    response_json(res, "{}");
    res->status = 302;
    response_header(res, "Location", url);
    response_header(res, "Expires", until);
    note_checkpoint(s, req, "checkpoint_read", c, "download");
}

/* GET archive: a redirect, because SDKs download from storage without their API key. */
void route_archive(struct server *s, struct request *req, struct response *res)
{
    struct store_checkpoint *c = find_own_checkpoint(s, req, res);
    if (c)
        redirect_to_archive(s, req, res, c);
}

/* The older form without a kind means sampler weights, unless listings have that form. */
void route_bare_archive(struct server *s, struct request *req, struct response *res)
{
    struct store_checkpoint *c = NULL;
    /* Under that option a bare id may be of any kind. */
    if (!s->opts.bare_checkpoint_ids)
        c = route_checkpoint(s, req, res, req->param[0], STORE_SAMPLER, req->param[1], false);
    else if (add_kind(s, req, res))
        c = find_own_checkpoint(s, req, res);
    if (c)
        redirect_to_archive(s, req, res, c);
}

/* Changes of a checkpoint that is named without its kind: the handler of the form with one goes on. */
void route_bare_checkpoint(struct server *s, struct request *req, struct response *res)
{
    /* The last part of the pattern, not of the path: the path ends in what the client chose. */
    const char *path = req->route->path, *last = strrchr(path, '/');
    if (!add_kind(s, req, res))
        return;
    if (strcmp(last, "/publish") == 0)
        route_publish(s, req, res);
    else if (strcmp(last, "/ttl") == 0)
        route_set_ttl(s, req, res);
    else
        route_delete_checkpoint(s, req, res);
}

/* The target of the redirect: a tar archive, opened on a worker thread (routes_place()). */
void route_download(struct server *s, struct request *req, struct response *res)
{
    const char *dir = req->param[0];
    bool used = false;
    tinker_error err = { 0 };
    /* The signature covers the directory name, so it is one that we have given out. */
    if (!signed_url_check(s, req, res, "download", dir))
        return;
    if (store_dir_in_use(s->store, dir, &used, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    /* Deleted since the URL was signed. */
    if (!used) {
        response_error(res, 404, "Checkpoint not found");
        return;
    }
    struct archive *a;
    uint64_t size;
    if (archive_open(s, dir, &a, &size, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    res->source = (struct body_source){ archive_read, archive_free, a, size };
    res->status = 200;
    res->content_type = "application/octet-stream";
    /* A browser that follows the link should save it. */
    response_header(res, "Content-Disposition", "attachment; filename=\"checkpoint.tar\"");
}

/* ---- external weights: a link per file --------------------------------------------------------------------- */

/* One signed URL per file; the marker of completeness is not one of them. */
void route_external_urls(struct server *s, struct request *req, struct response *res)
{
    tinker_error err = { 0 };
    size_t n = 0;
    int64_t expires = 0;
    struct store_checkpoint *c = find_own_checkpoint(s, req, res);
    if (!c)
        return;
    /* Other kinds are downloaded as one archive. */
    if (c->kind != STORE_EXTERNAL) {
        response_error(res, 400, "only external_weights checkpoints have files with links");
        return;
    }
    const char *const *names = checkpoint_files(s, c->dir, &req->arena, &n, &err);
    tinker_named_string *urls = arena_array(&req->arena, n + 1, sizeof(*urls));
    size_t m = 0; /* files with a URL */
    for (size_t i = 0; names && urls && i < n; i++) {
        const char *what = arena_printf(&req->arena, "%s/%s", c->dir, names[i]);
        /* A URL that could not be made leaves NULL, which encoding then refuses. */
        if (strcmp(names[i], "checkpoint_complete") != 0)
            urls[m++] = (tinker_named_string){
                names[i], what ? signed_url_make(s, req, "file", what, &expires) : NULL
            };
    }
    if (!names || !urls) {
        route_store_error(s, res, &err);
        return;
    }
    note_checkpoint(s, req, "checkpoint_read", c, "download");
    tinker_files r = { urls, m, convert_time(expires * 1000000) };
    route_reply(res, &wire_external_weights_urls_response, &r);
}

/* The part of a file that a client asks for which has the rest already: "bytes=N-", if the file is
 * still the one of If-Range.  The directory of a checkpoint never changes, so its name is the tag. */
static void apply_range(struct request *req, struct response *res, const char *dir)
{
    const char *tag = arena_printf(&req->arena, "\"%s\"", dir);
    char *end;
    if (!tag)
        return;
    response_header(res, "ETag", tag);
    response_header(res, "Accept-Ranges", "bytes");
    if (!req->range || strncmp(req->range, "bytes=", 6) != 0 || req->range[6] < '0' ||
        req->range[6] > '9' || (req->if_range && strcmp(req->if_range, tag) != 0))
        return;
    /* Other forms of ranges may be ignored: then the client gets everything. */
    unsigned long long from = strtoull(req->range + 6, &end, 10);
    if (strcmp(end, "-") != 0)
        return;
    unsigned long long size = res->fd_size;
    if (from >= size) {
        response_drop(res);
        res->fd = -1;
        response_error(res, 416, "the file has %llu bytes", size);
        return;
    }
    const char *text = arena_printf(&req->arena, "bytes %llu-%llu/%llu", from, size - 1, size);
    if (!text)
        return;
    res->fd_at = from;
    res->status = 206;
    response_header(res, "Content-Range", text);
}

/* The target of such a URL. */
void route_file(struct server *s, struct request *req, struct response *res)
{
    const char *dir = req->param[0], *name = req->param[1];
    const char *what = arena_printf(&req->arena, "%s/%s", dir, name);
    bool used = false;
    tinker_error err = { 0 };
    /* The signature covers the name, so only names from route_external_urls() get here.  what: the
     * same text that was signed. */
    if (!what)
        response_no_memory(res);
    if (!what || !signed_url_check(s, req, res, "file", what))
        return;
    if (store_dir_in_use(s->store, dir, &used, &err) != TINKER_OK)
        route_store_error(s, res, &err);
    else if (!used ||
             checkpoint_open_file(s, dir, name, &res->fd, &res->fd_size, &err) != TINKER_OK)
        response_error(res, 404, "Checkpoint not found");
    else {
        res->content_type = "application/octet-stream";
        apply_range(req, res, dir);
    }
}
