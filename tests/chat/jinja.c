/* jinja.c - chat templates: what they print, what they refuse, what they may cost. */
#include <tinker/chat.h>
#include <tinker/extra/template.h>
#include "base/buf.h"
#include "support/tap.h"

static const char messages[] =
    "[{\"role\":\"system\",\"content\":\"Sys\"},{\"role\":\"user\",\"content\":\"Hé 😀\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"b\":1,\"a\":[1.5,true,null]}}}]}]";

static char *render(const char *source, const tinker_template_options *opts, tinker_error *err)
{
    err->message[0] = 0;
    tinker_template *t = tinker_template_new(source, 0, err);
    tinker_text text = TINKER_TEXT_INIT;
    if (t && tinker_template_render_json(t, messages, NULL, opts, &text, err) != TINKER_OK)
        CHECK(!text.s);
    tinker_template_free(t);
    return text.s;
}

static const struct {
    const char *source, *want;
} cases[] = {
    { "plain", "plain" },
    { "one newline at the end goes\n", "one newline at the end goes" },
    { "{{ messages|length }}{{ messages[1].content[:2] }}", "3Hé" },
    { "{% for m in messages %}{{ loop.index }}{{ m['role'][0] }}{{ ',' if not loop.last }}{% "
      "endfor %}",
      "1s,2u,3a" },
    { "  {% if true %}\n a\n  {% endif %}\nb", " a\nb" },
    { "a {%- if true -%} b {%- endif -%} c", "abc" },
    { "{{ messages[2].tool_calls[0].function.arguments|tojson }}",
      "{\"b\": 1, \"a\": [1.5, true, null]}" },
    { "{{ messages[2].tool_calls[0].function.arguments|tojson(indent=2) }}",
      "{\n  \"b\": 1,\n  \"a\": [\n    1.5,\n    true,\n    null\n  ]\n}" },
    { "{{ messages[2].content is none }} {{ messages[2].x is defined }} {{ nope }}|",
      "True False |" },
    { "{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n * 3 %}{% endfor %}{{ "
      "ns.n }}",
      "27" },
    { "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}", "1" },
    { "{% macro m(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(b='z', a='y') }}",
      "<12><yz>" },
    { "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2**8 }} {{ 1e16 }} {{ 1.0 }}",
      "-4 2 3.5 256 1e+16 1.0" },
    { "{{ 'a-b-c'.split('-')[-1] }}{{ ' x '.strip() }}{{ 'Ab'.lower() }}{{ 'x'.startswith('x') }}",
      "cxabTrue" },
    { "{{ messages|map(attribute='role')|join('/') }}", "system/user/assistant" },
    { "{{ messages|selectattr('role','in',['user','system'])|list|length }}", "2" },
    { "{% raw %}{{ x }}{% endraw %}{# note #}{{ \"\\u00e9\\n\" }}", "{{ x }}é\n" },
    { "{% for x in [] %}{% else %}empty{% endfor %}", "empty" },
    { "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif "
      "%}{{ i }}{% endfor %}",
      "0134" },
    { "{{ {'a': 1, 'b': ['x', none]} }}{{ (1,) }}{{ \"it's\" ~ ['it\\'s'] }}",
      "{'a': 1, 'b': ['x', None]}(1,)it's[\"it's\"]" },
    { "{% set t %}a{{ 1 }}{% endset %}{{ t|upper }}", "A1" },
    { "{{ strftime_now('%Y') }}", "2026" },
    { "{% generation %}g{% endgeneration %}", "g" },
    { "{{ messages[2].tool_calls|map(attribute='function.name')|join }}"
      "{{ messages[2].tool_calls|selectattr('function.name','eq','f')|list|length }}"
      "{{ [{'items':7},{}]|map(attribute='items',default='-')|first }}"
      "{{ [{'a':{'b':2}},{'a':{'b':1}}]|sort(attribute='a.b')|map(attribute='a.b')|list }}",
      "f17[1, 2]" },
    { "{{ \"they're a tool_call (x2y) so-so\"|title }}", "They're A Tool_call (X2y) So-So" },
    { "{{ '007'|int }} {{ '+5'|int }} {{ '1_000'|int }} {{ '.5'|float }} {{ '1e3'|int }} {{ "
      "'-inf'|float }} {{ '1__0'|int }} {{ '.'|float }} {{ '99999999999999999999'|int }}",
      "7 5 1000 0.5 1000 -inf 0 0.0 99999999999999999999" },
    { "{{ 2.675|round(2) }} {{ 2.1|round(method='ceil') }} {{ 2.9|round(0,'floor') }} {{ 7|round "
      "}} {{ 1250|round(-2) }}",
      "2.67 3.0 2.0 7 1200" },
    { "[{{ 'a\\n'|indent(2,blank=true) }}][{{ '\\na'|indent(2,true) }}][{{ ''|indent(2,true) }}]",
      "[a\n  ][  \n  a][  ]" },
    { "{% for i in [1,2,3] %}{% with %}{% if i==2 %}{% break %}{% endif %}{{ i }}{% endwith %}{% "
      "endfor %}",
      "1" },
    { "{% for i in [1,2,3] %}{% for j in [] %}{% else %}{% if i==2 %}{% continue %}{% endif %}{% "
      "endfor %}{{ i }}{% endfor %}",
      "13" },
    { "a {#-#}\n  b", "a  b" },
    { "{{ ' a b  c '.split(none,1) }}{{ ' a b  c '.rsplit(none,1) }}{{ "
      "'a\\u2028b\\r\\nc\\x0b'.splitlines() }}",
      "['a', 'b  c '][' a b', 'c']['a', 'b', 'c']" },
    { "{{ 'xax'|trim(chars='x') }}{{ 'ab'.count('') }}", "a3" },
    /* methods */
    { "{{ ' a b  c '.split(none, 1) }}{{ ' a b  c '.rsplit(none, 1) }}{{ ' a b '.rsplit() }}",
      "['a', 'b  c '][' a b', 'c']['a', 'b']" },
    { "{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a\r\nb\n'.splitlines() }}{{ 'a\nb'.splitlines(true) }}",
      "['a.b', 'c']['a', 'b']['a\\n', 'b']" },
    { "{{ 'abc'.count('') }}{{ 'aXbX'.count('X') }}{{ 'hé'.find('é') }}{{ 'aba'.rfind('a') }}",
      "4212" },
    { "{{ 'aXbXc'.replace('X', '-', 1) }}{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}",
      "a-bXcba" },
    { "{{ 'x=y=z'.partition('=') }}{{ 'x=y'.rpartition('?') }}{{ '-'.join(['a', 'b']) }}",
      "('x', '=', 'y=z')('', '', 'x=y')a-b" },
    { "{{ 'ß'.upper() }}{{ 'ß'.title() }}{{ 'ß'|title }}{{ 'a,b c'.title() }}{{ 'a,b c-d'|title }}",
      "SSSsSSA,B CA,b C-D" },
    { "{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ ''.isalpha() }}{{ ' '.isspace() }}",
      "TrueTrueFalseTrue" },
    { "{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys()|list }}{{ [3, 4].index(4) }}{{ [1, 1].count(1) "
      "}}",
      "2['a']12" },
    /* operators */
    { "{{ 1 // 0.1 }} {{ -7 % 7.0 }} {{ 1 % -0.5 }} {{ -7 // 2.0 }} {{ 2 ** -1 }} {{ 2.0 ** 3 }}",
      "9.0 0.0 -0.0 -4.0 0.5 8.0" },
    { "{{ (1, 2) * 2 }}{{ 2 * [0] }}{{ [1] + [2] }}{{ 'a' in 'cat' }}{{ 3 not in [1, 2] }}",
      "(1, 2, 1, 2)[0, 0][1, 2]TrueTrue" },
    { "{{ 1 < 2 <= 2 > 1 >= 1 != 2 }}{{ 0 or 'x' }}{{ 1 and 'y' }}{{ -(2.5) }}{{ 5 - 7 }}",
      "Truexy-2.5-2" },
    { "{{ [1,2,3,4][1:-1] }}{{ 'abc'[::-1] }}{{ (1, 2, 3)[::2] }}{{ [1][9] }}|",
      "[2, 3]cba(1, 3)|" },
    /* filters */
    { "{{ 4611686018427387905|round(-1) }} {{ -15|round(-1) }} {{ -25|round(-1) }} {{ 7|round(-15) "
      "}}",
      "4611686018427387900 -20 -20 0" },
    { "{{ 3|round }} {{ 25|round(-1) }} {{ 0.15|round(1) }} {{ 2.5|round }} {{ 2.1|round(0, "
      "'ceil') }} "
      "{{ -2.1|round(method='floor') }}",
      "3 20 0.1 2.0 3.0 -3.0" },
    { "{{ 'a\r\nb\n\nc'|indent(2) }}|{{ '\na'|indent(1, true) }}|{{ ''|indent(2, first=true) }}|",
      "a\n  b\n\n  c| \n a|  |" },
    { "{{ 'x'|int(9) }}{{ ' 12 '|int }}{{ '1.5'|float }}{{ 3.9|int }}{{ -3|abs }}{{ -0.5|abs }}",
      "9121.5330.5" },
    { "{{ {'b': 1, 'A': 2}|dictsort }}{{ {'b': 1, 'A': 2}|dictsort(by='value', reverse=true) }}",
      "[('A', 2), ('b', 1)][('A', 2), ('b', 1)]" },
    { "{{ [3, 1]|max }}{{ 'ab'|reverse }}{{ [1, 2]|first }}{{ [1, 2]|last }}{{ [1.5, 2]|sum }}",
      "3ba123.5" },
    { "{{ nope|default('d') }}{{ ''|default('e', true) }}{{ {'a': 1}|length }}{{ {'a': "
      "1}|items|list }}",
      "de1[('a', 1)]" },
    { "{{ ['b', 'A']|map('lower')|sort|join('-') }}{{ [{'k': 1}]|map(attribute='z')|list }}",
      "a-b[Undefined]" },
    { "{{ [1, 2]|tojson(separators=(',', ':')) }}{{ {'b': 'é', 'a': 1}|tojson(true, "
      "sort_keys=true) }}",
      "[1,2]{\"a\": 1, \"b\": \"\\u00e9\"}" },
    /* case: one letter may become several, and a sigma knows where it stands */
    { "{{ 'ß ﬁ ŉ ΐ ᾀ ᾳ ǆ'.upper() }} {{ 'ﬁx ß ᾀ ǆ ŉ'.title() }} {{ 'ﬃ'.capitalize() }}",
      "SS FI \u02bcN \u0399\u0308\u0301 \u1f08\u0399 \u0391\u0399 \u01c4 Fix Ss \u1f88 \u01c5 "
      "\u02bcN Ffi" },
    { "{{ 'ΟΔΟΣ ΣΑΣ Σ ΑΣ.Β ΑΣ. İ'.lower() }} {{ 'ΟΔΟΣ'.title() }} {{ 'ΑΣ ß'|title }}",
      "οδος σας σ ασ.β ας. i̇ Οδος Ασ SS" },
    { "{{ 'ªx ⓐb ʰc'.title() }}", "ªx Ⓐb ʰc" },
    { "{{ 'aé'.replace('', '-') }} {{ 'aé'.replace('', '-', 2) }} {{ ''|replace('', 'x') }}",
      "-a-é- -a-é x" },
    { "{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }}{{ {'a': 1}.values()[0] }} {{ {}.keys() is "
      "sequence }} {{ {'a': 1}.keys()|list }} {{ 'a' in {'a': 1}.keys() }}",
      "dict_items([('a', 1)]) dict_keys(['a']) False ['a'] True" },
    /* repr shows what cannot be seen */
    { "{{ ['a\\u00a0\\u200b\\u2028é \\ue000\\U000e0001😀\\x7f\\x85'] }}",
      "['a\\xa0\\u200b\\u2028é \\ue000\\U000e0001😀\\x7f\\x85']" },
    /* tests and blocks */
    { "{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 'A' is upper }}{{ {} is mapping }}{{ 1.0 is float "
      "}}",
      "TrueTrueTrueTrueTrue" },
    { "{% for x in [1, 2, 3] if x is odd %}{{ loop.depth }}{{ loop.depth0 }}{{ x }}{% endfor %}",
      "101103" },
    { "{% with a = 1 %}{{ a }}{% endwith %}{% filter upper %}b{% endfilter %}{% macro m() "
      "%}<{{ caller() }}>{% endmacro %}{% call m() %}c{% endcall %}",
      "1B<c>" },
};

static void test_output(void)
{
    tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
    opts.now = 1780000000;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_error err;
        char *got = render(cases[i].source, &opts, &err);
        CHECK_STR(got ? got : err.message, cases[i].want);
        free(got);
    }
}

static const struct {
    const char *source, *want;
} refused[] = {
    /* what nearly occurs everywhere takes long to look for, and is counted so */
    { "{{ ('a' * 150000 ~ 'b') in ('a' * 400000) }}",
      "chat template: line 1: over the limit of 10000000 steps" },
    { "{{ ('a' * 400000).split('a' * 150000 ~ 'b') }}",
      "chat template: line 1: over the limit of 10000000 steps" },
    { "{{ ('a' * 400000).replace('a' * 150000 ~ 'b', '') }}",
      "chat template: line 1: over the limit of 10000000 steps" },
    { "{{ ('a' * 400000).find('a' * 150000 ~ 'b') }}",
      "chat template: line 1: over the limit of 10000000 steps" },
    { "{{ 'abcabc'.find('c', 3) }}", "chat template: line 1: find takes at most 1 arguments here" },
    { "{{ ','.join([1]) }}", "chat template: line 1: join: item 0 is not a string but int" },
    { "{{ nope|int }}", "chat template: line 1: 'nope' is undefined" },
    { "{{ '1f'|int(0, 16) }}", "chat template: line 1: only base 10 is supported" },
    { "{{ 1e30|int }}", "chat template: line 1: integer overflow" },
    { "{{ [[1]]|map(attribute='0')|list }}",
      "chat template: line 1: an attribute that is a number is not supported" },
    { "a\n{{ messages.x.y }}", "chat template: line 2: 'x' is undefined" },
    { "{{ raise_exception('not me') }}", "chat template: line 1: template says: not me" },
    { "\n\n{% if %}", "chat template: line 3: expected an expression, found '%}'" },
    { "{% if true %}", "chat template: line 1: a block is not closed" },
    { "{% include 'x' %}", "chat template: line 1: unknown or unsupported tag 'include'" },
    { "{{ 1 + 'a' }}", "chat template: line 1: unsupported operands for +: 'int' and 'str'" },
    { "{{ 1 // 0 }}", "chat template: line 1: division by zero" },
    { "{{ 1 % 0.0 }}", "chat template: line 1: division by zero" },
    { "{{ 0 ** -1 }}", "chat template: line 1: zero cannot be raised to a negative power" },
    { "{{ (-8) ** 0.5 }}", "chat template: line 1: ** has no finite result" },
    { "{{ nope|int }}", "chat template: line 1: 'nope' is undefined" },
    { "{{ nope|dictsort }}", "chat template: line 1: 'nope' is undefined" },
    { "{{ 9223372036854775807|round(-1) }}", "chat template: line 1: integer overflow" },
    { "{{ 1|round(0, 'up') }}",
      "chat template: line 1: round needs a number and common, ceil or floor" },
    { "{{ 9223372036854775807 + 1 }}", "chat template: line 1: integer overflow" },
    { "{{ 'x'|nothing }}", "chat template: line 1: no filter named 'nothing'" },
    { "{{ 1 is nothing }}", "chat template: line 1: no test named 'nothing'" },
    { "{{ 'open }}", "chat template: line 1: string is not closed" },
    { "{{ x", "chat template: line 1: tag is not closed" },
    { "{# x", "chat template: line 1: comment is not closed" },
    { "{{ messages.append(1) }}",
      "chat template: line 1: 'append' is undefined and cannot be called" },
    { "{% set messages.x = 1 %}",
      "chat template: line 1: cannot assign attribute on non-namespace object" },
    { "{% break %}", "chat template: line 1: not inside a loop" },
    { "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
      "chat template: line 1: cannot unpack 3 values into 2 names" },
    { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL },
    { "{{ tojson }}{{ messages[0].x|tojson }}",
      "chat template: line 1: object of type undefined is not JSON serializable" },
};

static void test_refusals(void)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        tinker_error err;
        char *got = render(refused[i].source, NULL, &err);
        CHECK(!got);
        if (refused[i].want)
            CHECK_STR(err.message, refused[i].want);
        CHECK_INT(err.status, TINKER_EINVAL);
        free(got);
    }
}

static void test_limits(void)
{
    tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
    tinker_error err;
    opts.max_steps = 1000;
    CHECK(!render("{% for i in range(100000) %}x{% endfor %}", &opts, &err));
    CHECK(strstr(err.message, "over the limit of 1000 steps"));
    opts.max_steps = 0;
    opts.max_memory = 1 << 16;
    CHECK(!render(
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        &opts, &err));
    CHECK_INT(err.status, TINKER_ENOMEM);
    CHECK(!render("{{ 'x' * 99999999999 }}", &opts, &err));
    CHECK_INT(err.status, TINKER_ENOMEM);
    opts.max_memory = 0;
    CHECK(!render("{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}"
                  "{% endfor %}",
                  &opts, &err));
    CHECK(strstr(err.message, "nested too deeply"));
}

/* Time that no item, no key and no argument seems to cost. */
static void test_hidden_work(void)
{
    static const struct {
        const char *source, *want;
    } all[] = {
        { "{{ [] * 9223372036854775807 }}", "over the limit of 10000000 steps" },
        { "{{ 9223372036854775807 * () }}", "over the limit of 10000000 steps" },
        { "{% set x = ['nan'|float] * 300000 %}{{ x|unique|list|length }}",
          "over the limit of 10000000 steps" },
    };
    tinker_error err;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        CHECK(!render(all[i].source, NULL, &err));
        CHECK(strstr(err.message, all[i].want));
    }
    /* Keys that differ do not share a chain: by their integer parts it would cost too many steps. */
    struct buf b;
    buf_init(&b, 1 << 22);
    buf_printf(&b, "{{ '");
    for (int i = 0; i < 40000; i++)
        buf_printf(&b, "0.%05d ", i);
    buf_printf(&b, "1'.split(' ')|map('float')|unique|list|length }}");
    char *got = render(b.data, NULL, &err);
    CHECK_STR(got ? got : err.message, "40001");
    free(got);
    b.len = 0;
    buf_printf(&b, "{{ ['a']|map(");
    for (int i = 0; i < 100000; i++)
        buf_printf(&b, "'map',");
    buf_printf(&b, "'upper')|list }}");
    got = render(b.data, NULL, &err);
    CHECK_STR(got ? got : err.message, "chat template: line 1: nested too deeply");
    free(got);
    buf_clear(&b);
}

/* Values that share their parts: cheap to build, exponential to walk. */
static void test_shared_values(void)
{
    static const char *const ends[] = { "{{ a.x == b.x }}",
                                        "{{ a.x in [b.x] }}",
                                        "{{ a.x|string }}",
                                        "{{ a.x|tojson }}",
                                        "{{ [a.x, b.x]|unique|list|length }}",
                                        "{{ [a.x].index(b.x) }}",
                                        "{{ [a.x, b.x]|sort|length }}" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
        tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
        tinker_error err;
        char source[512];
        opts.max_steps = 100000;
        snprintf(
            source, sizeof(source),
            "{%% set a = namespace(x=[]) %%}{%% set b = namespace(x=[]) %%}{%% for i in range(60) "
            "%%}{%% set a.x = [a.x, a.x] %%}{%% set b.x = [b.x, b.x] %%}{%% endfor %%}%s",
            ends[i]);
        char *got = render(source, &opts, &err);
        CHECK(!got);
        CHECK(strstr(err.message, "over the limit of 100000 steps") || err.status == TINKER_ENOMEM);
        free(got);
    }
}

static void test_deep_sources(void)
{
    static const struct {
        const char *unit;
    } units[] = { { "(" }, { "[" }, { "not " }, { "-" }, { "{%if 1%}" }, { "x.y+" }, { "{'a':" } };
    for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
        struct buf b;
        tinker_error err;
        buf_init(&b, 1 << 22);
        if (units[i].unit[1] != '%')
            buf_puts(&b, "{{ ");
        for (int k = 0; k < 100000; k++)
            buf_puts(&b, units[i].unit);
        buf_puts(&b, units[i].unit[1] != '%' ? "1 }}" : "");
        char *got = render(b.data, NULL, &err);
        CHECK(!got);
        free(got);
        buf_clear(&b);
    }
}

/* What a message lacks is said, not looked for. */
static void test_incomplete_structs(void)
{
    tinker_error err = { .message = "" };
    tinker_template *t =
        tinker_template_new("{{ messages[0].tool_calls[0].function.arguments }}", 0, &err);
    tinker_tool_call call = { .name = "f" };
    tinker_message m = { .role = "assistant", .tool_calls = &call, .n_tool_calls = 1 };
    REQUIRE(t);
    tinker_text text = TINKER_TEXT_INIT;
    CHECK_INT(tinker_template_render(t, &m, 1, NULL, 0, NULL, &text, &err), TINKER_OK);
    CHECK_STR(text.s, "{}");
    /* Text is appended, and stays as it was when a rendering fails. */
    CHECK_INT(tinker_template_render(t, &m, 1, NULL, 0, NULL, &text, &err), TINKER_OK);
    call.name = NULL;
    CHECK_INT(tinker_template_render(t, &m, 1, NULL, 0, NULL, &text, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "chat template: messages[0].tool_calls[0] has no name");
    CHECK_INT(tinker_template_render(t, &m, 1, NULL, 0, NULL, &text, NULL), TINKER_EINVAL);
    m.role = NULL;
    CHECK_INT(tinker_template_render(t, &m, 1, NULL, 0, NULL, &text, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "chat template: messages[0] has no role");
    CHECK_STR(text.s, "{}{}");
    tinker_text_clear(&text);
    tinker_template_free(t);
}

static void test_structs(void)
{
    static const char source[] =
        "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.reasoning_content }}:"
        "{{ m.tool_calls|tojson if m.tool_calls }};{% endfor %}{{ tools|tojson }}{{ bos_token }}{{ "
        "k }}";
    tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
    tinker_error err = { .message = "" };
    const tinker_part parts[] = { { .kind = TINKER_PART_THINKING, .text = "t" },
                                  { .kind = TINKER_PART_TEXT, .text = "a" } };
    const tinker_tool_call call = { "i", "f", "{\"x\":1}" };
    const tinker_message m[] = { { .role = "user", .content = "q" },
                                 { .role = "assistant",
                                   .parts = parts,
                                   .n_parts = 2,
                                   .tool_calls = &call,
                                   .n_tool_calls = 1 } };
    const tinker_tool tool = { "f", "d", "{}", NULL };
    opts.bos_token = "<s>";
    opts.variables = "{\"k\":7}";
    tinker_template *t = tinker_template_new(source, 0, &err);
    REQUIRE(t);
    tinker_text got = TINKER_TEXT_INIT;
    tinker_status status = tinker_template_render(t, m, 2, &tool, 1, &opts, &got, &err);
    CHECK_STR(
        status == TINKER_OK ? got.s : err.message,
        "user:q::;assistant:a:t:[{\"type\": \"function\", \"id\": \"i\", \"function\": {\"name\": "
        "\"f\", \"arguments\": {\"x\": 1}}}];[{\"type\": \"function\", \"function\": {\"name\": "
        "\"f\", \"description\": \"d\", \"parameters\": {}}}]<s>7");
    tinker_text_clear(&got);
    opts.arguments_as_text = 1;
    CHECK_INT(tinker_template_render(t, m, 2, NULL, 0, &opts, &got, &err), TINKER_OK);
    CHECK(got.s && strstr(got.s, "\"arguments\": \"{\\\"x\\\":1}\""));
    tinker_text_clear(&got);
    opts.variables = "[]";
    CHECK_INT(tinker_template_render(t, m, 2, NULL, 0, &opts, &got, &err), TINKER_EINVAL);
    tinker_template_free(t);
}

int main(void)
{
    RUN(test_output);
    RUN(test_refusals);
    RUN(test_limits);
    RUN(test_hidden_work);
    RUN(test_shared_values);
    RUN(test_deep_sources);
    RUN(test_incomplete_structs);
    RUN(test_structs);
    return tap_done();
}
