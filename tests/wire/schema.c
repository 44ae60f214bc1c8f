/* docs/schema.json says what the library reads and writes.
 *
 *     schema print > docs/schema.json     after a change of the tables */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/jansson.h"
#include "support/tap.h"
#include "wire/wire.h"

static json_t *root;

static bool has_type(const json_t *v, const char *name)
{
    return (strcmp(name, "object") == 0 && json_typeof(v) == JANSSON_OBJECT) ||
           (strcmp(name, "array") == 0 && json_typeof(v) == JANSSON_ARRAY) ||
           (strcmp(name, "string") == 0 && json_typeof(v) == JANSSON_STRING) ||
           (strcmp(name, "boolean") == 0 && json_is_boolean(v)) ||
           (strcmp(name, "null") == 0 && json_typeof(v) == JANSSON_NULL) ||
           (strcmp(name, "number") == 0 && json_is_number(v)) ||
           (strcmp(name, "integer") == 0 && json_is_integer(v));
}

static bool is_one_of(const json_t *v, const json_t *types)
{
    if (json_typeof(types) == JANSSON_STRING)
        return has_type(v, json_string_value(types));
    for (size_t i = 0; i < json_array_size(types); i++)
        if (has_type(v, json_string_value(json_array_get(types, i))))
            return true;
    return json_array_size(types) == 0;
}

static bool fits_schema(const json_t *v, const json_t *schema);

static bool fits_object(const json_t *v, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    const json_t *required = json_object_get(schema, "required");
    const char *key;
    json_t *member;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(v, json_string_value(json_array_get(required, i))))
            return false;
    json_object_foreach((json_t *)v, key, member)
    {
        const json_t *of = json_object_get(properties, key);
        of = of ? of : others;
        if (of && !fits_schema(member, of))
            return false;
    }
    return true;
}

static bool fits_array(const json_t *v, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *least = json_object_get(schema, "minItems");
    if (least && json_array_size(v) < (size_t)json_integer_value(least))
        return false;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *of = i < json_array_size(first) ? json_array_get(first, i) : items;
        if (of && !fits_schema(json_array_get(v, i), of))
            return false;
    }
    return true;
}

static bool fits_any(const json_t *v, const json_t *schemas)
{
    for (size_t i = 0; i < json_array_size(schemas); i++)
        if (fits_schema(v, json_array_get(schemas, i)))
            return true;
    return false;
}

static bool fits_variants(const json_t *v, const json_t *all)
{
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *one = json_array_get(all, i);
        if (fits_schema(v, json_object_get(one, "if")) &&
            !fits_schema(v, json_object_get(one, "then")))
            return false;
    }
    return true;
}

/* As much of JSON Schema as the file has. */
static bool fits_schema(const json_t *v, const json_t *schema)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *types = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf");
    const json_t *words = json_object_get(schema, "enum");
    const json_t *only = json_object_get(schema, "const");
    const json_t *least = json_object_get(schema, "minimum");
    bool known = !words;
    if (ref) {
        const json_t *type = json_object_get(json_object_get(root, "$defs"), strrchr(ref, '/') + 1);
        return type && fits_schema(v, type);
    }
    for (size_t i = 0; i < json_array_size(words); i++)
        known |= json_equal(json_array_get(words, i), v);
    return known && (!types || is_one_of(v, types)) && (!any || fits_any(v, any)) &&
           (!only || json_equal(only, v)) &&
           (!least || json_integer_value(v) >= json_integer_value(least)) &&
           (json_typeof(v) != JANSSON_OBJECT || fits_object(v, schema)) &&
           (json_typeof(v) != JANSSON_ARRAY || fits_array(v, schema)) &&
           fits_variants(v, json_object_get(schema, "allOf"));
}

static bool text_fits(const char *type, const char *json)
{
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    bool ok = v && fits_schema(v, json_object_get(json_object_get(root, "$defs"), type));
    json_decref(v);
    return ok;
}

static void test_it_is_the_file(void)
{
    struct buf b;
    FILE *f = fopen("docs/schema.json", "r");
    char *text = calloc(1, 1 << 20);
    buf_init(&b, 1 << 20);
    wire_schema(&b);
    REQUIRE(f != NULL && buf_ok(&b));
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    CHECK_INT(n, b.len);
    CHECK(strcmp(text, b.data) == 0);
    root = json_loads(b.data, JSON_REJECT_DUPLICATES, NULL); /* each name once */
    CHECK(root != NULL);
    buf_clear(&b);
    free(text);
}

static void test_all_types_are_there(void)
{
    for (size_t i = 0; wire_type_at(i); i++)
        if (!json_object_get(json_object_get(root, "$defs"), wire_type_name(wire_type_at(i))))
            TAP_FAIL("no %s", wire_type_name(wire_type_at(i)));
}

static void test_what_the_reference_says_fits(void)
{
    FILE *f = fopen("tests/vectors/wire-json.txt", "r");
    char line[8192];
    int seen = 0;
    REQUIRE(f != NULL);
    while (fgets(line, sizeof(line), f)) {
        char *json = strchr(line, '\t');
        if (line[0] == '#' || !json)
            continue;
        *json++ = '\0';
        seen++;
        if (!text_fits(line, json))
            TAP_FAIL("%s does not fit: %s", line, json);
    }
    fclose(f);
    CHECK(seen >= 60);
}

static void test_what_is_wrong_does_not_fit(void)
{
    static const char *const wrong[][2] = {
        { "CreateSessionRequest", "[]" },
        { "CreateSessionRequest",
          "{\"tags\":[],\"user_metadata\":{},\"type\":\"create_session\"}" },
        { "CreateSessionRequest", "{\"tags\":[1],\"user_metadata\":{},\"sdk_version\":\"1\"}" },
        { "CreateSessionRequest",
          "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"1\",\"type\":\"x\"}" },
        { "SamplingParams", "{\"max_tokens\":0}" },
        { "SamplingParams", "{\"stop\":[1,\"a\"]}" },
        { "ModelInput", "{\"chunks\":[{\"type\":\"encoded_text\"}]}" },
        { "ModelInput", "{\"chunks\":[{\"type\":\"image\",\"format\":\"png\"}]}" },
        { "ModelInput", "{\"chunks\":[{\"type\":\"poem\"}]}" },
        { "TensorData", "{\"data\":[1],\"dtype\":\"float16\"}" },
        { "TensorData", "{\"data\":[\"a\"],\"dtype\":\"int64\"}" },
        { "SampleResponse", "{\"sequences\":[{\"tokens\":[1]}]}" },
        { "SampleResponse", "{\"sequences\":[],\"topk_prompt_logprobs\":[[[1]]]}" },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        if (text_fits(wrong[i][0], wrong[i][1]))
            TAP_FAIL("%s fits: %s", wrong[i][0], wrong[i][1]);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "print") == 0) {
        struct buf b;
        buf_init(&b, 1 << 20);
        wire_schema(&b);
        fputs(b.data, stdout);
        return 0;
    }
    RUN(test_it_is_the_file);
    RUN(test_all_types_are_there);
    RUN(test_what_the_reference_says_fits);
    RUN(test_what_is_wrong_does_not_fit);
    json_decref(root);
    return tap_done();
}
