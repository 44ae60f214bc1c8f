/* zstd.c - a run in which every body is a zstd frame, then frames that must be refused.
 *
 * Usage: zstd URL.  Prints what went wrong; exit status 0: nothing did. */
#include <curl/curl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static CURL *curl;
static const char *base;
static char answer[1 << 16];
static size_t n_answer;
static int failures;

static size_t take(char *p, size_t size, size_t n, void *state)
{
    (void)state;
    size_t room = sizeof(answer) - 1 - n_answer, k = n * size < room ? n * size : room;
    memcpy(answer + n_answer, p, k);
    n_answer += k;
    answer[n_answer] = 0;
    return n * size;
}

/* POST or PUT bytes as they are; the status, the body in `answer`. */
static long post_bytes(const char *method, const char *path, const char *type, const char *encoding,
                       const void *body, size_t n)
{
    char url[1024], text[2][128];
    struct curl_slist *headers = NULL;
    long status = 0;
    snprintf(url, sizeof(url), "%s%s", base, path);
    snprintf(text[0], sizeof(text[0]), "Content-Type: %s", type);
    snprintf(text[1], sizeof(text[1]), "Content-Encoding: %s", encoding);
    headers = curl_slist_append(headers, text[0]);
    headers = curl_slist_append(headers, text[1]);
    headers = curl_slist_append(headers, "Expect:");
    n_answer = 0;
    answer[0] = 0;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    if (curl_easy_perform(curl) == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    return status;
}

static void expect(const char *what, long status, long want)
{
    if (status == want && (status < 400 || n_answer > 0))
        return;
    printf("%s: status %ld, want %ld: %.300s\n", what, status, want, answer);
    failures++;
}

static size_t pack(const void *p, size_t n, char **out)
{
    size_t room = ZSTD_compressBound(n);
    *out = malloc(room);
    return *out ? ZSTD_compress(*out, room, p, n, 3) : 0;
}

static void send_packed(const char *method, const char *path, const char *type, const void *body,
                        size_t n, long want)
{
    char *frame;
    size_t size = pack(body, n, &frame);
    expect(path, post_bytes(method, path, type, "zstd", frame, size), want);
    free(frame);
}

static void send_json(const char *path, const char *body)
{
    send_packed("POST", path, "application/json", body, strlen(body), 200);
}

/* The text of a member of the answer. */
static void member(const char *name, char *out, size_t size)
{
    char key[64];
    snprintf(key, sizeof(key), "\"%s\":\"", name);
    const char *p = strstr(answer, key);
    p = p ? p + strlen(key) : "";
    snprintf(out, size, "%.*s", (int)strcspn(p, "\""), p);
}

static void finish(const char *what)
{
    char id[256], body[400];
    member("request_id", id, sizeof(id));
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", id);
    send_json("/api/v1/retrieve_future", body);
    if (!id[0] || strstr(answer, "\"error\"")) {
        printf("%s failed: %.300s\n", what, answer);
        failures++;
    }
}

static void submit(const char *path, const char *body)
{
    send_json(path, body);
    finish(path);
}

/* ---- a protobuf pass: fields by hand ------------------------------------------------- */

static size_t field(uint8_t *out, int number, const void *p, size_t n)
{
    out[0] = (uint8_t)(number << 3 | 2);
    out[1] = (uint8_t)n; /* every part here is short */
    memcpy(out + 2, p, n);
    return n + 2;
}

static size_t make_pass(const char *model, int seq, uint8_t *out)
{
    const int32_t tokens[] = { 3, 5, 7 };
    const int64_t targets[] = { 5, 7, 9 };
    uint8_t a[128], b[128], c[200], datum[250];
    size_t n = field(a, 1, tokens, sizeof(tokens)); /* EncodedTextChunk */
    n = field(b, 1, a, n);                          /* Chunk */
    size_t m = field(datum, 1, b, n);
    n = field(a, 1, targets, sizeof(targets)); /* Tensor: dense, dtype */
    a[n++] = 3 << 3;
    a[n++] = 2;
    size_t k = field(c, 1, "target_tokens", 13);
    k += field(c + k, 2, a, n);
    m += field(datum + m, 2, c, k);
    n = field(out, 1, model, strlen(model));
    out[n++] = 2 << 3;
    out[n++] = (uint8_t)seq;
    n += field(out + n, 3, datum, m);
    return n + field(out + n, 4, "cross_entropy", 13);
}

#define PROMPT "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[3,5]}]}"
#define DATA                                                                                   \
    "{\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[3,5]}]}," \
    "\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[5,7],\"dtype\":\"int64\"}}}],"           \
    "\"loss_fn\":\"cross_entropy\"}"

static void whole_run(void)
{
    char session[64], model[128], sampler[128], path[256], body[2048];
    uint8_t pass[1024];
    send_json("/api/v1/client/config", "{\"sdk_version\":\"0.25.0\"}");
    send_json("/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"0.25.0\"}");
    member("session_id", session, sizeof(session));
    snprintf(body, sizeof(body), "{\"session_id\":\"%s\"}", session);
    send_json("/api/v1/session_heartbeat", body);
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tinker/tiny\","
             "\"lora_config\":{\"rank\":4}}",
             session);
    submit("/api/v1/create_model", body);
    member("model_id", model, sizeof(model));
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\"}", model);
    send_json("/api/v1/get_info", body);
    size_t n = make_pass(model, 1, pass);
    send_packed("POST", "/api/v1/forward_backward", "application/x-protobuf", pass, n, 200);
    finish("protobuf pass");
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\",\"seq_id\":2,\"forward_backward_input\":%s}",
             model, DATA);
    submit("/api/v1/forward_backward", body);
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\",\"seq_id\":3,\"forward_input\":%s}", model,
             DATA);
    submit("/api/v1/forward", body);
    snprintf(body, sizeof(body),
             "{\"model_id\":\"%s\",\"seq_id\":4,\"adam_params\":{\"learning_rate\":0.01}}", model);
    submit("/api/v1/optim_step", body);
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\",\"seq_id\":5,\"path\":\"a\"}", model);
    submit("/api/v1/save_weights", body);
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\",\"seq_id\":6,\"path\":\"a\"}", model);
    submit("/api/v1/save_weights_for_sampler", body);
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
             "\"model_path\":\"tinker://%s/sampler_weights/a\"}",
             session, model);
    send_json("/api/v1/create_sampling_session", body);
    member("sampling_session_id", sampler, sizeof(sampler));
    snprintf(body, sizeof(body),
             "{\"sampling_session_id\":\"%s\",\"seq_id\":0," PROMPT
             ",\"sampling_params\":{\"max_tokens\":3}}",
             sampler);
    submit("/api/v1/asample", body);
    snprintf(body, sizeof(body), "{\"tinker_path\":\"tinker://%s/weights/a\"}", model);
    send_json("/api/v1/weights_info", body);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/weights/a/ttl", model);
    send_packed("PUT", path, "application/json", "{\"ttl_seconds\":3600}", 20, 204);
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"model_seq_id\":1,\"path\":\"tinker://%s/weights/a\","
             "\"optimizer\":true}",
             session, model);
    submit("/api/v1/load_weights", body);
    send_json("/api/v1/telemetry",
              "{\"session_id\":\"x\",\"events\":[],\"platform\":\"p\",\"sdk_version\":\"1\"}");
    send_json("/v1/completions", "{\"model\":\"tinker/tiny\",\"prompt\":[3,5],\"max_tokens\":2}");
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\"}", model);
    submit("/api/v1/unload_model", body);
}

/* ---- hostile frames -------------------------------------------------------------------- */

/* A frame of a few kilobytes that says nothing about being n bytes of spaces. */
static size_t make_bomb(size_t n, char **out)
{
    static char spaces[1 << 20];
    ZSTD_CCtx *c = ZSTD_createCCtx();
    size_t room = 1 << 20;
    memset(spaces, ' ', sizeof(spaces));
    *out = malloc(room);
    ZSTD_outBuffer to = { *out, *out ? room : 0, 0 };
    for (size_t done = 0; *out && done < n; done += sizeof(spaces)) {
        ZSTD_inBuffer from = { spaces, sizeof(spaces), 0 };
        ZSTD_compressStream2(c, &to, &from,
                             done + sizeof(spaces) >= n ? ZSTD_e_end : ZSTD_e_continue);
    }
    ZSTD_freeCCtx(c);
    return to.pos;
}

static void hostile_frames(void)
{
    const char *json = "application/json", *path = "/api/v1/create_session";
    const char *body = "{\"tags\":[],\"sdk_version\":\"0.25.0\"}";
    char *frame, *bomb;
    size_t size = pack(body, strlen(body), &frame), n = make_bomb((size_t)1200 << 20, &bomb);
    expect("a bomb", post_bytes("POST", path, json, "zstd", bomb, n), 413);
    expect("a bomb for OpenAI", post_bytes("POST", "/v1/completions", json, "zstd", bomb, n), 413);
    for (size_t cut = 0; cut < size; cut += cut < 12 ? 1 : 7)
        expect("a cut frame", post_bytes("POST", path, json, "zstd", frame, cut), 422);
    expect("no frame", post_bytes("POST", path, json, "zstd", body, strlen(body)), 422);
    char *longer = malloc(size + 4);
    if (longer) {
        memcpy(longer, frame, size);
        memcpy(longer + size, "more", 4);
        expect("bytes behind a frame", post_bytes("POST", path, json, "zstd", longer, size + 4),
               422);
    }
    frame[size / 2] ^= 0x55;
    long status = post_bytes("POST", path, json, "zstd", frame, size);
    if (status != 422 && status != 200) /* a changed letter of the text is no error of the frame */
        expect("a damaged frame", status, 422);
    expect("another encoding", post_bytes("POST", path, json, "br", frame, size), 415);
    free(longer);
    free(frame);
    free(bomb);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    base = argv[1];
    curl = curl_easy_init();
    if (!curl)
        return 2;
    whole_run();
    hostile_frames();
    curl_easy_cleanup(curl);
    printf("%d failures\n", failures);
    return failures > 0;
}
