/* wire-conform.c - answers the conformance test of the wire formats, line by line.
 *
 * In:  op TAB type TAB payload      Out:  "ok" TAB payload, or "error" TAB message
 * strict, lenient    JSON of `type`, read in that mode and written again
 * to-proto           JSON of ForwardBackwardRequest, ForwardRequest, ForwardBackwardOutput
 *                    or SampleResponse to hex protobuf
 * from-proto         the reverse; a request with forward_only comes back as ForwardRequest
 * again-proto        hex protobuf, decoded and encoded again
 * path               a tinker:// path: run, checkpoint id, type
 * types              nothing; all type names, separated by spaces */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "wire/path.h"
#include "wire/proto.h"
#include "wire/wire.h"

struct job {
    struct arena arena;
    struct buf out; /* text, or bytes for hex */
    tinker_error err;
};

union value {
    struct wire_forward_backward_request request;
    tinker_forward_backward output;
    tinker_sample sample;
};

static tinker_status unknown(struct job *j, const char *what)
{
    return err_set(&j->err, TINKER_EINVAL, "unknown %s", what);
}

static tinker_status json_again(struct job *j, const char *name, const char *json,
                                enum wire_mode mode)
{
    const struct wire_type *type = wire_type_find(name);
    if (!type)
        return unknown(j, "type");
    void *value = arena_alloc(&j->arena, wire_type_size(type));
    if (!value)
        return err_nomem(&j->err, name);
    tinker_status status =
        wire_decode_json(type, json, strlen(json), mode, &j->arena, value, &j->err);
    return status ? status : wire_encode_json(type, value, &j->out, &j->err);
}

/* ---- protobuf -------------------------------------------------------------------- */

static bool is_request(const char *name)
{
    return strcmp(name, "ForwardBackwardRequest") == 0 || strcmp(name, "ForwardRequest") == 0;
}

static tinker_status encode_proto(struct job *j, const char *name, const union value *v)
{
    if (is_request(name))
        return wire_encode_forward_backward_request(&v->request, &j->out, &j->err);
    if (strcmp(name, "ForwardBackwardOutput") == 0)
        return wire_encode_forward_backward_output(&v->output, &j->out, &j->err);
    if (strcmp(name, "SampleResponse") == 0)
        return wire_encode_sample_response(&v->sample, &j->out, &j->err);
    return unknown(j, "message");
}

static tinker_status decode_proto(struct job *j, const char *name, const char *hex, union value *v)
{
    size_t n = strlen(hex) / 2;
    unsigned char *bytes = arena_alloc(&j->arena, n);
    if (!bytes)
        return err_nomem(&j->err, name);
    for (size_t i = 0; i < n; i++) {
        char two[3] = { hex[2 * i], hex[2 * i + 1], '\0' };
        bytes[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    if (is_request(name))
        return wire_decode_forward_backward_request(bytes, n, &j->arena, &v->request, &j->err);
    if (strcmp(name, "ForwardBackwardOutput") == 0)
        return wire_decode_forward_backward_output(bytes, n, &j->arena, &v->output, &j->err);
    if (strcmp(name, "SampleResponse") == 0)
        return wire_decode_sample_response(bytes, n, &j->arena, &v->sample, &j->err);
    return unknown(j, "message");
}

static tinker_status to_proto(struct job *j, const char *name, const char *json)
{
    const struct wire_type *type = wire_type_find(name);
    union value v;
    if (!type || wire_type_size(type) > sizeof v)
        return unknown(j, "type");
    tinker_status status =
        wire_decode_json(type, json, strlen(json), WIRE_LENIENT, &j->arena, &v, &j->err);
    return status ? status : encode_proto(j, name, &v);
}

static tinker_status from_proto(struct job *j, const char *name, const char *hex)
{
    union value v;
    tinker_status status = decode_proto(j, name, hex, &v);
    if (status)
        return status;
    if (is_request(name))
        name = v.request.forward_only ? "ForwardRequest" : "ForwardBackwardRequest";
    return wire_encode_json(wire_type_find(name), &v, &j->out, &j->err);
}

static tinker_status again_proto(struct job *j, const char *name, const char *hex)
{
    union value v;
    tinker_status status = decode_proto(j, name, hex, &v);
    return status ? status : encode_proto(j, name, &v);
}

/* ---- lines ----------------------------------------------------------------------- */

static tinker_status parse_path(struct job *j, const char *text)
{
    struct wire_path p;
    tinker_status status = wire_path_parse(text, &p, &j->err);
    if (status == TINKER_OK)
        buf_printf(&j->out, "%.*s %s %s", (int)p.n_run, p.run, p.checkpoint_id,
                   wire_checkpoint_type(p.sampler));
    return status;
}

static tinker_status list_types(struct job *j)
{
    for (size_t i = 0; wire_type_at(i); i++)
        buf_printf(&j->out, "%s%s", i ? " " : "", wire_type_name(wire_type_at(i)));
    return TINKER_OK;
}

static tinker_status run(struct job *j, const char *op, const char *type, const char *payload,
                         bool *hex)
{
    if (strcmp(op, "strict") == 0 || strcmp(op, "lenient") == 0)
        return json_again(j, type, payload, *op == 's' ? WIRE_STRICT : WIRE_LENIENT);
    if (strcmp(op, "from-proto") == 0)
        return from_proto(j, type, payload);
    if (strcmp(op, "path") == 0)
        return parse_path(j, payload);
    if (strcmp(op, "types") == 0)
        return list_types(j);
    *hex = true;
    if (strcmp(op, "to-proto") == 0)
        return to_proto(j, type, payload);
    if (strcmp(op, "again-proto") == 0)
        return again_proto(j, type, payload);
    return unknown(j, "op");
}

static void answer(const struct job *j, tinker_status status, bool hex)
{
    if (status != TINKER_OK) {
        printf("error\t%s\n", j->err.message);
        return;
    }
    fputs("ok\t", stdout);
    for (size_t i = 0; hex && i < j->out.len; i++)
        printf("%02x", (unsigned char)j->out.data[i]);
    if (!hex)
        fwrite(j->out.data ? j->out.data : "", 1, j->out.len, stdout);
    putchar('\n');
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct job j;
        bool hex = false;
        line[strcspn(line, "\n")] = '\0';
        char *type = strchr(line, '\t'), *payload = type ? strchr(type + 1, '\t') : NULL;
        memset(&j, 0, sizeof j);
        arena_init(&j.arena, SIZE_MAX);
        buf_init(&j.out, SIZE_MAX);
        tinker_status status = TINKER_EINVAL;
        if (payload) {
            *type++ = *payload++ = '\0';
            status = run(&j, line, type, payload, &hex);
        } else {
            unknown(&j, "line");
        }
        answer(&j, status, hex);
        fflush(stdout);
        buf_clear(&j.out);
        arena_clear(&j.arena);
    }
    free(line);
    return 0;
}
