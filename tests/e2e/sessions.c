/* sessions.c - a named session from its beginning to its end, its checkpoints, and where they are
 * found, copied and counted, at a real server.
 * Usage: sessions BASE_MODEL; the server is named by the environment. */
#include <stdio.h>
#include <string.h>
#include <tinker/tinker.h>
#include <tinker/extra/account.h>

enum { MINUTE_MS = 60000 };
static int failed;
static tinker_error err;

static void expect(int ok, const char *what)
{
    printf("%s: %s\n", what, ok ? "yes" : "NO");
    failed |= !ok;
}

static tinker_future *await(tinker_future *f)
{
    f = tinker_future_await(f, MINUTE_MS, &err);
    if (!f)
        printf("%s: %s\n", tinker_status_name(err.status), err.message);
    return f;
}

static void keep(tinker_future *f, char path[512])
{
    f = await(f);
    snprintf(path, 512, "%s", f && tinker_future_saved_path(f) ? tinker_future_saved_path(f) : "");
    tinker_future_free(f);
}

static void train_and_save(tinker_training *t, char saved[512], char external[512])
{
    int32_t tokens[4] = { 5, 6, 7, 8 };
    int64_t targets[4] = { 6, 7, 8, 9 };
    tinker_chunk text = { .tokens = tokens, .n_tokens = 4 };
    tinker_named_tensor input = { "target_tokens",
                                  { .dtype = TINKER_INT64, .data = targets, .n = 4 } };
    tinker_datum datum = { .model_input = { &text, 1 }, .inputs = &input, .n_inputs = 1 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_named_string metadata = { "step", "1" };
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    o.user_metadata = &metadata;
    o.n_user_metadata = 1;
    tinker_future_free(await(tinker_training_forward_backward(t, &datum, 1, &loss, &err)));
    tinker_future_free(await(tinker_training_optim_step(t, NULL, &err)));
    keep(tinker_training_save_state(t, "one", &o, &err), saved);
    keep(tinker_training_save_external(t, "kept", NULL, &err), external); /* for the program */
    keep(tinker_training_save_external(t, "hf", NULL, &err), external);
    expect(strstr(saved, "/weights/one") && strstr(external, "/external_weights/hf"),
           "state and external weights are saved");
}

static void look_at_checkpoints(tinker_rest *r, const char *run, const char *saved,
                                const char *external)
{
    int state = 0, files = 0;
    tinker_future *f = await(tinker_rest_list_checkpoints(r, run, &err));
    const tinker_checkpoints *all = f ? tinker_future_checkpoints(f) : NULL;
    for (size_t i = 0; all && i < all->n; i++) {
        const tinker_checkpoint *c = tinker_checkpoint_at(all, i);
        state |= strcmp(c->path, saved) == 0 && c->kind == TINKER_CHECKPOINT_TRAINING &&
                 c->n_user_metadata == 1 && strcmp(c->user_metadata[0].value, "1") == 0;
        files |= strcmp(c->path, external) == 0 && c->kind == TINKER_CHECKPOINT_EXTERNAL;
    }
    expect(state && files, "both are listed as what they are, one with metadata");
    tinker_future_free(f);
    f = await(tinker_rest_get_checkpoint_files(r, external, &err));
    const tinker_files *v = f ? tinker_future_files(f) : NULL;
    int adapter = 0;
    for (size_t i = 0; v && i < v->n; i++)
        adapter |= strcmp(v->files[i].name, "adapter_model.safetensors") == 0 &&
                   strncmp(v->files[i].value, "http", 4) == 0;
    expect(adapter, "there is an address for each file");
    tinker_future_free(f);
    f = await(tinker_rest_delete_checkpoint(r, external, &err));
    expect(f != NULL, "external weights can be deleted");
    tinker_future_free(f);
    printf("run %s\n", run);
}

static void copy_and_count(tinker_rest *r, const char *run, const char *saved)
{
    char copy[512];
    tinker_copy_options o = TINKER_COPY_OPTIONS_INIT;
    o.project_id = "archive";
    o.ttl_seconds = 3600;
    keep(tinker_rest_copy_checkpoint(r, saved, &o, &err), copy);
    expect(strstr(copy, "/weights/one") && !strstr(copy, run), "a copy has a run of its own");
    tinker_future *f = await(tinker_rest_get_storage_usage(r, "archive", &err));
    const tinker_storage *s = f ? tinker_future_storage(f) : NULL;
    expect(s && s->n == 1 && tinker_storage_share_at(s, 0)->n_checkpoints == 1 &&
               tinker_storage_share_at(s, 0)->bytes > 0,
           "and counts for its project");
    tinker_future_free(f);
}

static const tinker_session_summary *find(tinker_rest *r, int states, tinker_future **f)
{
    tinker_session_query q = TINKER_SESSION_QUERY_INIT;
    q.display_name = "E2E night";
    q.states = states;
    *f = await(tinker_rest_search_sessions(r, &q, &err));
    const tinker_session_summaries *v = *f ? tinker_future_session_summaries(*f) : NULL;
    return v && v->n == 1 ? tinker_session_summary_at(v, 0) : NULL;
}

static void end(tinker_service *s, tinker_rest *r, const char *id)
{
    tinker_future *f, *done;
    const tinker_session_summary *v = find(r, TINKER_SESSION_ACTIVE, &f);
    expect(v && strcmp(v->id, id) == 0, "the session is found by its name");
    tinker_future_free(f);
    done = await(tinker_service_finish(s, TINKER_FINISH_INTERRUPTED, "end of the test", &err));
    expect(done != NULL, "it ends");
    tinker_future_free(done);
    v = find(r, TINKER_SESSION_ACTIVE, &f);
    expect(f && !v, "it is not active any more");
    tinker_future_free(f);
    v = find(r, TINKER_SESSION_INTERRUPTED | TINKER_SESSION_ERRORED, &f);
    expect(v && v->state == TINKER_SESSION_INTERRUPTED && v->detail &&
               strcmp(v->detail, "end of the test") == 0,
           "it is found by how it ended");
    tinker_future_free(f);
}

int main(int argc, char **argv)
{
    char saved[512] = "", external[512] = "", run[256] = "";
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.display_name = "e2e Night run";
    if (argc != 2)
        return 2;
    tinker_service *s = tinker_service_new(&o, &err);
    tinker_rest *r = s ? tinker_service_create_rest(s, &err) : NULL;
    tinker_training *t = r ? tinker_service_create_lora(s, argv[1], NULL, MINUTE_MS, &err) : NULL;
    if (!t)
        return printf("%s\n", err.message), 1;
    snprintf(run, sizeof(run), "%s", tinker_training_model_id(t));
    train_and_save(t, saved, external);
    look_at_checkpoints(r, run, saved, external);
    copy_and_count(r, run, saved);
    end(s, r, tinker_service_session_id(s));
    tinker_training_free(t);
    tinker_rest_free(r);
    tinker_service_free(s);
    return failed;
}
