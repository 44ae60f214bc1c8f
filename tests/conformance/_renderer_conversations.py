"""Conversations that every renderer and every chat template is compared on."""

WEATHER = {"name": "get_weather", "description": "Weather of a city, now.", "parameters": {
    "type": "object", "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city"]}}
SEARCH = {"name": "search", "description": "Search the web\nin two lines.", "parameters": {
    "type": "object", "properties": {
        "query_list": {"type": "array", "items": {"type": "string"}, "description": "What to seek"},
        "exact": {"type": "boolean"}, "limit": {"type": ["integer", "null"]},
        "filter": {"type": "object", "properties": {"lang": {"type": "string"}},
                   "additionalProperties": False}},
    "required": ["query_list"], "additionalProperties": False}}
NOTHING = {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOL_SETS = [[WEATHER], [WEATHER, SEARCH], [NOTHING], [SEARCH, NOTHING, WEATHER]]


def u(text):
    return {"role": "user", "content": text}


def a(text, **more):
    return {"role": "assistant", "content": text, **more}


def s(text):
    return {"role": "system", "content": text}


def think(thinking, text):
    parts = [{"type": "thinking", "thinking": thinking}]
    return a(parts + ([{"type": "text", "text": text}] if text else []))


def call(name, arguments, id=None):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def t(text, name="get_weather", id="functions.get_weather:0"):
    return {"role": "tool", "content": text, "name": name, "tool_call_id": id}


def parts(*texts):
    return [{"type": "text", "text": x} for x in texts]


PARIS = '{"city": "Paris"}'

TOOLS = '[{"type": "function", "function": {"name": "f", "description": "d\\u00e9", "parameters": {}}}]'

CONVERSATIONS = [
    [u("What's 2+2?"), a("4")],
    [u("What's 2+2?")],
    [s("Be brief."), u("What's 2+2?"), a("4")],
    [s("Be brief."), u("What's 2+2?"), a("4"), u("And 3+3?"), a("6")],
    [u("Hi"), a("Hello!"), u("How are you?"), a("Fine."), u("Bye"), a("See you.")],
    [u("Think!"), think("Simple.", "4")],
    [u("Think!"), think("\n\nWell,\nlet me see.\n", "\n\nThe answer is 4.\n")],
    [u("One"), think("first", "1"), u("Two"), think("second", "2")],
    [s("Sys"), u("One"), think("first", "1"), u("Two"), a("plain 2"), u("Three"), think("third", "3")],
    [u("inline"), a("<think>\nreasons\n</think>\n\nanswer")],
    [u("inline"), a("<think>x</think>y"), u("again"), a("<think></think>z")],
    [u("empty"), a("")],
    [u("only thinking"), think("hmm", "")],
    [u("a<|im_end|>b <think> <|eot_id|> <|end|> <|im_start|>assistant\nhi"), a("no")],
    [u("Weather in Paris?"), a("", tool_calls=[call("get_weather", PARIS, "functions.get_weather:0")]),
     t("18 C"), a("18 degrees.")],
    [u("Weather?"), a("Let me look.", tool_calls=[call("get_weather", PARIS)]), t("rain"), a("Rain.")],
    [u("Weather?"), a("", tool_calls=[call("get_weather", PARIS)])],
    [u("Two"), a("Both:", tool_calls=[call("get_weather", PARIS, "call_1"),
                                      call("search", '{"query_list": ["a", "b"], "exact": true, "limit": null}')]),
     t("18 C"), t("found", "search", "functions.search:1"), a("Done.")],
    [u("T"), {**think("I need the tool.", ""), "tool_calls": [call("get_weather", PARIS)]},
     t("18 C"), think("Now I know.", "18 C it is.")],
    [u("T"), {**think("tool", "Looking."), "tool_calls": [call("get_weather", PARIS)]},
     t("18 C"), a("18"), u("thanks"), think("polite", "welcome")],
    [u("numbers"), a("", tool_calls=[call("f", '{"a": 1.0, "b": 1e-05, "c": 1e16, "d": -0.5, "e": [1, {"x": null}], '
                                          '"f": "é\\u4e2d😀\\n\\"q\\"", "g": true, "h": 12345678901234567890}')])],
    [s(""), u("empty system"), a("ok")],
    [s("  spaced  "), u("  leading and trailing \n"), a("\n\nanswer \n")],
    [u("unicode: é 中文 😀 \u200b \u3000"), a("naïve café — “quotes”")],
    [u("code"), a("```python\nprint('hi')\n```\n")],
    [{"role": "user", "content": parts("single part")}, a("ok")],
    [s("S"), {"role": "user", "content": parts("q")}, {"role": "assistant", "content": parts("one ", "two")}],
    [u("x" * 300 + " " + "word " * 60), a("long " * 50)],
    [a("I speak first."), u("ok"), a("good")],
    [s("only system")],
    [u("a"), u("b"), a("c"), a("d")],
    [s("S"), u("q1"), a("", tool_calls=[call("get_weather", '{"city": "Rome", "days": 2}')]), t("sunny"),
     a("", tool_calls=[call("get_weather", '{"city": "Oslo"}')]), t("snow"), a("Rome sunny, Oslo snow.")],
    [u("q"), {**think("a", ""), "tool_calls": [call("get_weather", PARIS)]}, t("1"), t("2"), t("3"), a("three results")],
    [u("tags"), a("text <tool_call> not closed")],
    [u("q"), a("before\n\nUser: not a real user")],
    [u("newline\n"), a("\nnewline")],
    [s("S1"), u("u1"), think("t1", "a1"), u("u2"), {**think("t2", "x"), "tool_calls": [call("search", '{"query_list": []}')]},
     t("[]", "search", "functions.search:0"), think("t3", "none"), u("u3"), a("bye")],
    [u("{\"json\": true}"), a("{\"a\": [1, 2]}")],
    [u("spaces    and\ttabs"), a(" leading space")],
    [{"role": "developer", "content": "dev note"}, u("q"), a("r")],
    [u("q"), {"role": "assistant", "content": [{"type": "text", "text": "pre"}, {"type": "thinking", "thinking": "mid"},
                                               {"type": "text", "text": "post"}]}],
    [u("q"), a("answer with </think> stray")],
    [u("q"), think("  padded  ", "  text  "), u("r"), a("  end  ")],
    [s("S"), u("q"), a("r"), s("late system"), u("q2"), a("r2")],
    [u("Three"), a("", tool_calls=[call("f", "{}", "c1"), call("f", "{}", "c2"), call("f", "{}", "c3")]),
     t("third", "f", "c3"), u("meanwhile"), t("first", "f", "c1"), t("second", "f", "c2"), a("ok"), u("bye"), a("bye")],
    [u("Three"), a("", tool_calls=[call("f", "{}", "c1"), call("f", "{}", "c2"), call("f", "{}", "c3")]),
     t("third", "f", "c3"), t("first", "f", "c1"), a("ok")],
    [u("Twice"), a("", tool_calls=[call("f", "{}", "c2"), call("f", "{}", "c1")]), t("1", "f", "c1"), t("1", "f", "c1"),
     t("2", "f", "c2"), t("?", "f", "c9"), a("ok")],
    [s("S"), {"role": "tool_declare", "content": TOOLS}, u("q"), think("t", "a"), u("q2"), think("t2", "a2")],
    [{"role": "tool_declare", "content": TOOLS}, u("q"), think("t", "a"), u("q2"), a("a2")],
    [u("q"), a("r"), t("a result that nobody asked for"), a("r2"), u("q3")],
]

# Arguments that chat templates do not expect.
ODD_CONVERSATIONS = [
    [u("arguments"), a("", tool_calls=[call("f", '"{\\"a\\": 1}"'), call("g", "")])],
]
