/* cmd_api.c - `tinker api METHOD PATH [BODY]`: any request, with the credentials of this user. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tinker/extra/http.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/service/api.h"
#include "cli/text/text_model.h"

/* Headers that hold secrets: signed addresses and cookies. */
static bool is_secret_header(const char *name)
{
    static const char *const names[] = { "set-cookie", "location", "authorization", "x-api-key" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Status and headers are talk, the body is data, so that a pipe gets the body alone. */
static void print_response(const tinker_response *r, bool headers)
{
    if (headers) {
        fprintf(stderr, "HTTP %d, %lld ms\n", r->status, (long long)r->elapsed_ms);
        for (size_t i = 0; i < r->n_headers; i++)
            fprintf(stderr, "%s: %s\n", r->headers[i].name,
                    is_secret_header(r->headers[i].name) ? "(hidden)" : r->headers[i].value);
        fputc('\n', stderr);
    }
    const char *body = r->body ? r->body : "";
    const char *type = tinker_response_header(r, "content-type");
    /* JSON is printed as every other command prints it, indented and in color on a terminal.
     * Other bodies pass through byte for byte, with a line end if they had none. */
    if (type && strstr(type, "json") && r->n_body) {
        struct buf b;
        buf_init(&b, r->n_body + 1);
        buf_append(&b, body, r->n_body);
        out_json(&b);
        buf_clear(&b);
        return;
    }
    fwrite(body, 1, r->n_body, stdout);
    if (r->n_body && body[r->n_body - 1] != '\n')
        putchar('\n');
}

/* The body of an error is printed as well: a caller of the API wants to see what it said. */
int cmd_api(int argc, char **argv)
{
    static const char *const methods[] = { "GET", "POST", "PUT", "PATCH", "DELETE" };
    const char *method = NULL, *path = NULL, *body = NULL, *file = NULL;
    bool include = false;
    const struct opt opts[] = {
        { .name = "include",
          .letter = 'i',
          .kind = OPT_FLAG,
          .help = "print status and headers on stderr",
          .out = &include },
        { .name = "body-file",
          .kind = OPT_STRING,
          .value = "F",
          .help = "read the body from this file",
          .out = &file },
    };
    const struct opt_arg args[] = { { .name = "METHOD", .out = &method },
                                    { .name = "PATH", .out = &path },
                                    { .name = "BODY", .out = &body, .optional = true } };
    const struct opt_spec spec = {
        .command = "api",
        .about = "Send any request with the credentials of this user; BODY is JSON.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = ARRAY_LEN(args),
        .example = "tinker api GET /api/v1/healthz"
    };
    struct api a;
    /* Set by api_await() and by a submission that was refused; read only after a failure. */
    tinker_error err;
    int status;
    /* The entry of methods[] that was meant, NULL: none. */
    const char *known = NULL;
    char *text = NULL;
    size_t n = 0;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* The library wants the method in capitals; people type it in lower case. */
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (strcasecmp(method, methods[i]) == 0)
            known = methods[i];
    if (!known)
        return opt_usage_error(&spec, "METHOD is GET, POST, PUT, PATCH or DELETE, not %s.", method);
    /* Not completed silently: "healthz" could mean /healthz or /api/v1/healthz. */
    if (*path != '/')
        return opt_usage_error(&spec, "PATH begins with /, as in /api/v1/healthz.");
    if (body && file)
        return opt_usage_error(&spec, "Give BODY or --body-file.");
    /* The body comes from one place.  Read before connecting, so that a wrong file name costs
     * nothing. */
    if (file && !text_model_read(file, &text, &n, &status))
        return status;
    if (body)
        n = strlen(body);
    if (!api_open(&a, &status)) {
        free(text);
        return status;
    }
    tinker_future *f =
        /* Goes through the client like every other call: the same credentials, retries and
         * deadlines. */
        tinker_service_call(a.service, known, path, text ? text : body, n, NULL, &err);
    if (f && api_await(f, &err) == TINKER_OK) {
        print_response(tinker_future_response(f), include);
        status = EXIT_OK;
    } else {
        /* A refused request has a response, too: its body says more than our one line about it. */
        const tinker_response *r = f ? tinker_future_response(f) : NULL;
        if (r && r->body)
            print_response(r, include);
        status = api_fail(&err, f);
    }
    tinker_future_free(f);
    api_close(&a);
    free(text);
    return status;
}
