/* stored_key.c - see stored_key.h.
 *
 * {"version":1,"default":ID,"keys":{ID:{"type","key","name","note","details":{...}}}} */
#include "cli/account/stored_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/os.h"
#include "cli/output/out.h"
#include "json/json.h"

/* FILE_MAX bounds what is read into memory: a file of keys has a few kilobytes. */
enum { FILE_MAX = 1 << 20, PATH_SIZE = 4096 };

/* The file in pieces: raw JSON of `keys`, texts in the arena. */
struct key_file {
    struct arena arena;
    char *text;
    char path[PATH_SIZE];
    char *name;           /* of the default, NULL: none */
    struct json_str keys; /* the object, "" when there is none */
};

/* No file is no error: nobody has logged in yet.
 * The JSON stays in f->text, and f->keys points into it: both live until close_key_file(). */
static tinker_status open_key_file(struct key_file *f, tinker_error *err)
{
    /* The path is fixed, not under XDG_CONFIG_HOME: the official program looks here. */
    const char *home = getenv("HOME");
    struct json_reader r;
    struct json_str key;
    size_t n;
    memset(f, 0, sizeof(*f));
    arena_init(&f->arena, FILE_MAX * 4);
    if (!home || !*home)
        return err_set(err, TINKER_ESTATE, "there is no home directory");
    snprintf(f->path, sizeof(f->path), "%s/.tinker/credentials.json", home);
    if (access(f->path, F_OK) != 0)
        return TINKER_OK;
    if (os_read_file(f->path, FILE_MAX, &f->text, &n, err) != TINKER_OK)
        return err->status;
    json_reader_init(&r, f->text, n, &f->arena);
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key)) {
        if (json_str_is(key, "default") && json_peek(&r) == JSON_STRING)
            ok = json_cstring(&r, &f->name);
        else if (json_str_is(key, "keys") && json_peek(&r) == JSON_OBJECT)
            /* Keys are kept as text, so that members of newer versions survive a login and a
             * logout of ours. */
            ok = json_raw(&r, &f->keys);
        else
            ok = json_skip(&r);
    }
    return ok && json_end(&r) ? TINKER_OK
                              : err_set(err, TINKER_EINVAL, "%s is not a file of keys", f->path);
}

static void close_key_file(struct key_file *f)
{
    arena_clear(&f->arena);
    free(f->text);
}

/* Texts of an object and of the objects in it, wherever they are: names are unique in a key. */
static bool read_key_members(struct json_reader *r, struct stored_key *k, const char *within)
{
    struct json_str key;
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        char *text = NULL;
        if (json_peek(r) == JSON_OBJECT) {
            bool org = json_str_is(key, "org_details");
            ok = read_key_members(r, k, org ? "org" : "");
            continue;
        }
        if (json_peek(r) != JSON_STRING) {
            ok = json_skip(r);
            continue;
        }
        ok = json_cstring(r, &text);
        if (!ok)
            break;
        if (json_str_is(key, "type"))
            snprintf(k->type, sizeof(k->type), "%s", text);
        else if (json_str_is(key, "key"))
            snprintf(k->key, sizeof(k->key), "%s", text);
        else if (json_str_is(key, "note"))
            snprintf(k->note, sizeof(k->note), "%s", text);
        else if (json_str_is(key, "email"))
            snprintf(k->email, sizeof(k->email), "%s", text);
        else if (json_str_is(key, "name"))
            snprintf(*within ? k->org : k->name, sizeof(k->name), "%s", text);
    }
    return ok;
}

/* A damaged file is an error, not "no key": a new login would write over the other keys in it. */
tinker_status stored_key_read(struct stored_key *out, bool *found, tinker_error *err)
{
    struct key_file f;
    struct json_reader r;
    struct json_str key;
    tinker_status status = open_key_file(&f, err);
    *found = false;
    memset(out, 0, sizeof(*out));
    if (status == TINKER_OK && f.name && f.keys.n) {
        json_reader_init(&r, f.keys.s, f.keys.n, &f.arena);
        bool ok = json_begin_object(&r);
        while (ok && json_next_key(&r, &key)) {
            if (!json_str_is(key, f.name) || json_peek(&r) != JSON_OBJECT) {
                ok = json_skip(&r);
                continue;
            }
            ok = read_key_members(&r, out, "");
            /* The id is the name of the member, not a member of its own. */
            snprintf(out->id, sizeof(out->id), "%s", f.name);
            *found = ok && out->key[0];
        }
        if (!ok)
            status = err_set(err, TINKER_EINVAL, "%s is not a file of keys", f.path);
    }
    if (*found)
        log_secret(out->key);
    close_key_file(&f);
    return status;
}

/* Empty texts are left out: the file's readers treat a missing member as unknown. */
static void put_text(struct json_writer *w, const char *name, const char *value)
{
    if (!*value)
        return;
    json_put_key(w, name);
    json_put_string(w, value);
}

/* With the details, so that the official program shows the same of a key that ours has stored. */
static void put_key_object(struct json_writer *w, const struct stored_key *k)
{
    json_put_begin_object(w);
    put_text(w, "type", k->type);
    put_text(w, "key", k->key);
    put_text(w, "name", k->name);
    put_text(w, "note", k->note);
    json_put_key(w, "details");
    json_put_begin_object(w);
    json_put_key(w, "org_details");
    json_put_begin_object(w);
    put_text(w, "name", k->org);
    json_put_end_object(w);
    json_put_key(w, "user_details");
    json_put_begin_object(w);
    put_text(w, "email", k->email);
    json_put_end_object(w);
    json_put_end_object(w);
    json_put_end_object(w);
}

/* Write the file with the other keys as they are, and `add` (may be NULL) as the default. */
static tinker_status write_key_file(struct key_file *f, const char *without,
                                    const struct stored_key *add, tinker_error *err)
{
    char dir[PATH_SIZE];
    struct buf compact, pretty;
    struct json_writer w;
    struct json_reader r;
    struct json_str key, raw;
    buf_init(&compact, FILE_MAX * 2);
    buf_init(&pretty, FILE_MAX * 4);
    json_writer_init(&w, &compact);
    json_put_begin_object(&w);
    json_put_key(&w, "version");
    json_put_int64(&w, 1);
    if (add)
        put_text(&w, "default", add->id);
    json_put_key(&w, "keys");
    json_put_begin_object(&w);
    if (f->keys.n) {
        json_reader_init(&r, f->keys.s, f->keys.n, &f->arena);
        bool ok = json_begin_object(&r);
        while (ok && json_next_key(&r, &key) && json_raw(&r, &raw)) {
            /* A key that is added again replaces the old entry of its id. */
            if ((without && json_str_is(key, without)) || (add && json_str_is(key, add->id)))
                continue;
            json_put_key_n(&w, key.s, key.n);
            json_put_raw(&w, raw.s, raw.n);
        }
    }
    if (add) {
        json_put_key(&w, add->id);
        put_key_object(&w, add);
    }
    json_put_end_object(&w);
    json_put_end_object(&w);
    out_pretty_json(&pretty, &compact);
    /* ~/.tinker may not exist yet.  os_write_file() writes beside and renames, with mode 0600,
     * so a crash leaves the old keys in place. */
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(f->path, '/') - f->path), f->path);
    tinker_status status =
        buf_ok(&compact) && buf_ok(&pretty) ? os_make_dirs(dir, err) : err_nomem(err, f->path);
    if (status == TINKER_OK)
        status = os_write_file(f->path, pretty.data, pretty.len, err);
    buf_clear(&compact);
    buf_clear(&pretty);
    return status;
}

/* Read, change, write: two logins at the same instant could lose one key, never damage the file. */
tinker_status stored_key_write(const struct stored_key *key, tinker_error *err)
{
    struct key_file f;
    tinker_status status = open_key_file(&f, err);
    if (status == TINKER_OK)
        status = write_key_file(&f, NULL, key, err);
    close_key_file(&f);
    return status;
}

/* Called by `auth logout` alone. */
tinker_status stored_key_remove(tinker_error *err)
{
    struct key_file f;
    tinker_status status = open_key_file(&f, err);
    if (status == TINKER_OK && f.name)
        /* Without a default there is nothing to remove; other keys of the file stay, none of
         * them becomes the default. */
        status = write_key_file(&f, f.name, NULL, err);
    close_key_file(&f);
    return status;
}
