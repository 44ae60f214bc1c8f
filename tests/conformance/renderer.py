# requirements: renderer
"""Our renderers against the cookbook's: every name, every weight mode, token by token."""

import base64
import functools
import io
import json
import logging
import sys
import time
import warnings
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import _renderer_oracle as oracle
from _renderer_conversations import CONVERSATIONS, ODD_CONVERSATIONS, TOOL_SETS
from _renderer_oracle import HfTokenizer, Ours, Tap, fetch_npm, stand_in

DATE = "2026-01-31"
IMAGE_TOKENS = 5
THINK = ["<think>", "</think>"]
KIMI = THINK + ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
                "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>",
                "<|media_content|>", "<|media_end|>", "[BOS]", "[EOS]"]
HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>",
           "<|call|>", "<|endoftext|>"]
GLM = THINK + ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
               "<|endoftext|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
MODES = ["last_assistant_message", "last_assistant_turn", "all_assistant_messages", "all_messages",
         "all_tokens", "all_user_and_system_messages", "customized"]


NAMES = ["role_colon", "llama3", "qwen3", "qwen3_disable_thinking", "qwen3_instruct", "qwen3_vl",
         "qwen3_vl_instruct", "qwen3_5", "qwen3_5_disable_thinking", "qwen3_5_preserve_thinking", "qwen3_8_xhigh_reasoning",
         "qwen3_8_medium_reasoning", "qwen3_8_low_reasoning", "qwen3_8_disable_thinking", "deepseekv3",
         "deepseekv3_disable_thinking", "deepseekv3_thinking", "deepseekv4_1", "deepseekv4_1_low_reasoning",
         "deepseekv4_1_max_reasoning", "deepseekv4_1_disable_thinking", "deepseekv4_1_preserve_thinking",
         "glm5_3_max_reasoning", "glm5_3_low_reasoning", "glm5_3_high_reasoning", "kimi_k2", "kimi_k25",
         "kimi_k25_disable_thinking", "kimi_k26", "kimi_k26_disable_thinking",
         "kimi_k26_preserve_thinking", "nemotron3", "nemotron3_disable_thinking",
         "nemotron3_low_thinking", "nemotron3_preserve_thinking", "nemotron3_ultra",
         "nemotron3_ultra_disable_thinking", "nemotron3_ultra_medium_thinking",
         "nemotron3_ultra_preserve_thinking", "gpt_oss_no_sysprompt", "gpt_oss_low_reasoning",
         "gpt_oss_medium_reasoning", "gpt_oss_high_reasoning"]


SEEING = [n for n in NAMES if n.startswith(("qwen3_vl", "qwen3_5", "qwen3_8", "kimi_k2", "nemotron3"))]


def folder_for(name):
    if name.startswith("qwen3") or name.startswith("nemotron3"):
        return fetch_npm("qwen3")
    if name == "llama3":
        return fetch_npm("llama3_2")
    if name.startswith("deepseekv3"):
        return stand_in("deepseek_v3", "think", THINK)
    if name.startswith("deepseekv4"):
        return stand_in("deepseek_v3", "dsml", THINK + ["<｜System｜>", "｜DSML｜"])
    if name.startswith("glm"):
        return stand_in("qwen3", "glm", GLM, {"eos_token": "<|endoftext|>"})
    if name.startswith("kimi"):
        return stand_in("llama3_2", "kimi", KIMI, {"bos_token": "[BOS]", "eos_token": "[EOS]"})
    if name.startswith("gpt_oss"):
        return stand_in("qwen3", "harmony", HARMONY, {"eos_token": "<|return|>"})
    return fetch_npm("qwen3")


def cookbook_messages(renderers, messages, trainable=None):
    out = []
    for i, m in enumerate(messages):
        m = json.loads(json.dumps(m))
        if "tool_calls" in m:
            m["tool_calls"] = [renderers.ToolCall(**{k: v for k, v in c.items() if v is not None})
                               for c in m["tool_calls"]]
        if trainable:
            m["trainable"] = i % 2 == 1
        out.append(m)
    return out


def our_messages(messages, trainable=None):
    return [{**m, **({"trainable": i % 2 == 1} if trainable else {})} for i, m in enumerate(messages)]


def chunks_of(model_input):
    return [list(c.tokens) if hasattr(c, "tokens") else {"image": c.length}
            for c in model_input.chunks if c.length]


def plain(message):
    """A cookbook message as JSON, errors of unparsed calls cut to what is fixed."""
    m = json.loads(json.dumps(message, default=lambda o: o.model_dump()))
    for c in m.get("tool_calls", []):
        if c.get("id") is None:
            c.pop("id", None)
    for c in m.get("unparsed_tool_calls", []):
        c["error"] = c["error"].split(": ")[0]
    return m


def attempt(fn):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fn()
    except Exception as e:
        return e


@functools.cache
def tokenizer_of(folder):
    return HfTokenizer(folder)


class ImageProcessor:
    """Every image is as many tokens as the ones of our messages say."""

    def get_resize_config(self, part):
        return {"num_tokens": IMAGE_TOKENS}


def image_conversations():
    data = io.BytesIO()
    Image.new("RGB", (2, 2)).save(data, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    image = {"type": "image", "image": uri, "expected_tokens": IMAGE_TOKENS}

    def part(text, kind="text"):
        return {"type": kind, kind: text}

    answer = {"role": "assistant", "content": "A cat."}
    contents = [[image], [part("What? "), image], [image, part(" this\n"), image, part("")],
                [part(" a\n"), image, part(""), part("b "), part(" "), image, image]]
    for content in contents:
        yield [{"role": "user", "content": content}, answer]
    yield [{"role": "user", "content": "Look."},
           {"role": "assistant", "content": [part("hm", "thinking"), image, part(" so ")]},
           {"role": "tool", "content": [part("shot"), image], "tool_call_id": "1", "name": "f"}, answer]


class Comparison:
    def __init__(self, renderers, ours, name, folder, **options):
        self.renderers, self.ours, self.name, self.folder = renderers, ours, name, folder
        self.theirs = renderers.get_renderer(name, tokenizer_of(folder), model_name="x/y",
                                             image_processor=ImageProcessor())
        if "gpt_oss" in name:
            self.theirs.current_date = DATE
        if options.get("keep"):
            self.theirs.strip_thinking_from_history = False
        self.options = {"thinking_in_history": 1} if options.get("keep") else {}
        self.bad, self.compared, self.refused, self.waiting = [], 0, 0, []

    def later(self, label, want, view, op, **request):
        """Compare `want` with view(our answer) when all questions are asked."""
        self.waiting.append((label, want, view, dict(
            op=op, renderer=self.name, tokenizer=str(self.folder), date=DATE, **self.options, **request)))

    def settle(self):
        answers = self.ours.ask_all([w[3] for w in self.waiting])
        for (label, want, view, _), got in zip(self.waiting, answers):
            self.check(label, want, got if "error" in got else view(got))
        self.waiting = []

    def check(self, label, want, got):
        self.compared += 1
        if isinstance(want, Exception):
            self.refused += 1
            # where the reference stumbles over its own inserted message, ours goes on
            tolerated = isinstance(want, AssertionError) and "trainable" in str(want)
            if "error" not in got and not tolerated:
                self.bad.append((label, f"reference refuses: {want!r}", json.dumps(got)[:600]))
        elif got != want:
            self.bad.append((label, json.dumps(want)[:900], json.dumps(got)[:900]))

    def examples(self, got):
        return [[e["chunks"]] + ([e["weights"]] if "weights" in e else []) for e in got["examples"]]

    def prompts(self, i, messages):
        cb = cookbook_messages(self.renderers, messages)
        for prefill in (None, "Sure, <think>"):
            want = attempt(lambda: [[chunks_of(self.theirs.build_generation_prompt(cb, prefill=prefill))]])
            self.later(f"prompt {i} {prefill}", want, self.examples, "prompt", messages=messages, prefill=prefill)

    def supervised(self, i, messages, mode):
        custom = mode == "customized"
        cb = cookbook_messages(self.renderers, messages, custom)
        mine = our_messages(messages, custom)
        T = self.renderers.TrainOnWhat

        def one(pair):
            return [chunks_of(pair[0]), [float(w) for w in pair[1]]]

        want = attempt(lambda: [one(self.theirs.build_supervised_example(cb, T(mode)))])
        self.later(f"example {i} {mode}", want, self.examples, "example", messages=mine, train_on=mode)
        want = attempt(lambda: [one(p) for p in self.theirs.build_supervised_examples(cb, T(mode))])
        self.later(f"examples {i} {mode}", want, self.examples, "examples", messages=mine, train_on=mode)

    def tools(self):
        for i, tools in enumerate(TOOL_SETS):
            for prompt in ("", "You are terse."):
                want = attempt(lambda: [plain(m) for m in self.theirs.create_conversation_prefix_with_tools(tools, prompt)])
                self.later(f"tools {i} {prompt}", want, lambda got: got["messages"], "tools", tools=tools,
                           system_prompt=prompt)

    def parse(self, label, tokens):
        want = attempt(lambda: self.theirs.parse_response(tokens))
        if not isinstance(want, Exception):
            want = [plain(want[0]), str(want[1])]
        self.later(f"parse {label}", want, lambda got: [plain(got["message"]), got["termination"]], "parse",
                   tokens=tokens)
        if self.theirs.supports_streaming and not isinstance(want, Exception):
            self.stream(label, tokens)

    def stream(self, label, tokens):
        """Deltas may be cut differently: compare each block's text and the final message."""
        stops = self.theirs.get_stop_sequences()
        end = next((i + 1 for i, t in enumerate(tokens) if t in stops), len(tokens))
        tokens = tokens[:end]
        events = attempt(lambda: list(self.theirs.parse_response_streaming(tokens)))
        if isinstance(events, Exception):
            return
        normal = self.theirs._normalize_response_tokens(tokens)
        prefilled = self.theirs.build_generation_prompt([{"role": "user", "content": "x"}]).to_ints()
        prefix = self.theirs.tokenizer.encode("<think>\n")
        if prefilled[-2:] != prefix:
            prefix = self.theirs.tokenizer.encode("<think>")
        opened = prefilled[-len(prefix):] == prefix
        if normal == tokens and opened and tokens[:len(prefix)] != prefix:
            return  # ours begins inside the block, theirs looked ahead
        blocks = {}
        for e in events[1:-1]:
            kind = "thinking" if hasattr(e, "thinking") else "text"
            key = (kind, e.content_index)
            blocks[key] = blocks.get(key, "") + getattr(e, kind)
        if normal != tokens and not opened:
            return  # theirs looked ahead

        def view(got):
            ours = {}
            for kind, text, index in got["deltas"][1:]:
                ours[kind, index] = ours.get((kind, index), "") + text
            return [[f"{k}: {v}" for k, v in ours.items()], plain(got["message"])]

        want = [[f"{k}: {v}" for k, v in blocks.items()], plain(events[-1])]
        self.later(f"stream {label}", want, view, "stream", tokens=tokens)

    def responses(self, i, messages):
        if messages[-1]["role"] != "assistant":
            return
        cb = cookbook_messages(self.renderers, messages)
        full = attempt(lambda: self.theirs.build_supervised_example(cb)[0].to_ints())
        prompt = attempt(lambda: self.theirs.build_generation_prompt(cb[:-1]).to_ints())
        if isinstance(full, Exception) or isinstance(prompt, Exception):
            return
        n = 0
        while n < min(len(full), len(prompt)) and full[n] == prompt[n]:
            n += 1
        self.parse(f"{i}", full[n:])
        self.parse(f"{i} cut", full[n:][: max(1, (len(full) - n) // 2)])
        self.parse(f"{i} no stop", full[n:-1])

    def texts(self):
        stop = self.theirs.get_stop_sequences()
        stop = stop[:1] if isinstance(stop[0], int) else self.theirs.tokenizer.encode(stop[0])
        for i, text in enumerate(RESPONSES):
            self.parse(f"text {i}", self.theirs.tokenizer.encode(text) + stop)
            self.parse(f"text {i} open", self.theirs.tokenizer.encode(text))
        self.parse("twice", self.theirs.tokenizer.encode("x") + stop + stop)

    def datums(self):
        common = load_common()
        for i in (3, 14, 27):
            cb = cookbook_messages(self.renderers, CONVERSATIONS[i])
            for max_length in (None, 40, 9, 2):
                for mean in (False, True):
                    def build():
                        pair = self.theirs.build_supervised_example(cb, self.renderers.TrainOnWhat("all_assistant_messages"))
                        pair = (type(pair[0])([c for c in pair[0].chunks if c.tokens]), common.torch_like(pair[1]))
                        d = common.datum(pair[0], pair[1], max_length, "mean" if mean else "none")
                        return [chunks_of(d.model_input), d.loss_fn_inputs["target_tokens"].data,
                                [round(float(w), 6) for w in d.loss_fn_inputs["weights"].data]]
                    want = attempt(build)
                    self.later(f"datum {i} {max_length} {mean}", want,
                               lambda got: [got["datum"]["chunks"], got["target_tokens"],
                                            [round(w, 6) for w in got["weights"]]],
                               "datum", messages=CONVERSATIONS[i], train_on="all_assistant_messages",
                               max_length=max_length, mean=mean)


RESPONSES = [
    "plain", "", " leading", "<think>\nabc\n</think>\n\nanswer", "<think>abc</think>answer", "abc</think>answer",
    "\nabc\n</think>\n\nanswer\n", "<think>open", "<think></think>", "<think>\n\n</think>\n\nnow",
    '<tool_call>\n{"name": "f", "arguments": {"a": 1.50, "b": "é"}}\n</tool_call>',
    'x\n<tool_call>\n{"name": "f", "arguments": {}, "id": "i"}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "<tool_call>[1]</tool_call>", "<tool_call>{bad</tool_call> tail",
    '<tool_call>{"name": "f", "arguments": {}}', "<think>a</think>b<think>c</think>d",
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=f>\n</function>\n</tool_call>", "<tool_call><function=f>junk</function></tool_call>",
    "<tool_call><function=f><parameter=a>1</parameter>junk</function></tool_call>", "<tool_call><function=></function></tool_call>",
    "think\n</think>\n\n<tool_call>\n<function=get>\n<parameter=q>\n{\"a\": [1, null]}\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=a>\n<b>\n</parameter>\n</tool_call>",
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city":"Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    'Text \n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{bad<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜> [] <｜tool▁call▁end｜><｜tool▁calls▁end｜> after',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}",
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
    'r</think>T<|tool_calls_section_begin|><|tool_call_begin|> functions.a.b:12 <|tool_call_argument_begin|> {} <|tool_call_end|>'
    '<|tool_call_begin|>noid<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>x:1<|tool_call_argument_begin|>nope<|tool_call_end|><|tool_calls_section_end|>',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0",
    "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>42", "<|channel|>final<|message|>only",
    '<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"x": 1}',
    ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{bad', " to=functions.f<|channel|>commentary", "no channels here",
    "<|channel|>commentary<|message|>pre<|end|><|start|>assistant<|channel|>final<|message|>  ",
    "answer\n\nUser: more\n\nUser: again", " answer\n\n", "emoji 😀 and é",
    "r</think>T<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>\n<arg_key> b </arg_key> <arg_value>x y</arg_value></tool_call>",
    "<tool_call>\n get.it-2 \n</tool_call><tool_call>f<arg_key>a</arg_key>junk<arg_key>b</arg_key><arg_value>v</arg_value></tool_call>",
    "<tool_call>f<arg_key></arg_key><arg_value>1</arg_value></tool_call>", "<tool_call>é中_1 rest</tool_call><tool_call>?</tool_call>",
    "<tool_call>f x<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>",
    'T\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="false">[1, null]</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="b" string="true">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name="g">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
    '<｜DSML｜ calls>\n<｜DSML｜ invoke name=" ">\n</｜DSML｜ invoke><｜DSML｜ invoke name="f">\njunk</｜DSML｜ invoke>\n'
    '<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="false">bad</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls> after',
    '<｜DSML｜ calls>junk<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke></｜DSML｜ calls>', "a<｜DSML｜ calls>b", "stray ｜DSML｜ here",
    '<｜DSML｜ calls><｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">1</｜DSML｜ parameter>'
    '<｜DSML｜ parameter name="a" string="true">2</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>', "<｜DSML｜ calls></｜DSML｜ calls>",
]


class Common:
    """The cookbook's datum helper, without the package init that needs more dependencies."""

    def __init__(self):
        import importlib.util
        path = Path(sys.modules["tinker_cookbook"].__file__).parent / "supervised/common.py"
        spec = importlib.util.spec_from_file_location("cookbook_common", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.datum = module.datum_from_model_input_weights

    class Vector(list):
        shape = property(lambda self: [len(self)])

        def sum(self):
            return sum(self[:])

        def tolist(self):
            return [float(x) for x in self]

        def __getitem__(self, i):
            v = list.__getitem__(self, i)
            return Common.Vector(v) if isinstance(i, slice) else v

        def __truediv__(self, x):
            return Common.Vector([v / x for v in self])

    def torch_like(self, weights):
        return Common.Vector(list.__getitem__(weights, slice(None)))


_common = None


def load_common():
    global _common
    _common = _common or Common()
    return _common


def main():
    logging.disable(logging.CRITICAL)
    tap, ours = Tap(), Ours()
    renderers = oracle.load_cookbook()
    began, total = time.time(), 0
    only = sys.argv[1:]
    kept = ["qwen3", "qwen3_disable_thinking", "qwen3_5", "deepseekv3_thinking", "deepseekv4_1", "kimi_k2"]
    runs = [(n, False) for n in NAMES] + [(n, True) for n in kept]
    for name, keep in runs:
        if only and name not in only:
            continue
        c = Comparison(renderers, ours, name, folder_for(name), keep=keep)
        for i, messages in enumerate(CONVERSATIONS + ODD_CONVERSATIONS):
            c.prompts(i, messages)
            for mode in MODES:
                c.supervised(i, messages, mode)
            c.responses(i, messages)
        for i, messages in enumerate(image_conversations() if name in SEEING else []):
            c.prompts(f"image {i}", messages)
            for mode in MODES:
                c.supervised(f"image {i}", messages, mode)
        c.texts()
        if not keep:
            c.tools()
        if name in ("qwen3", "llama3", "role_colon"):
            c.datums()
        c.settle()
        total += c.compared
        got = ours.ask(op="prompt", renderer=name, tokenizer=str(c.folder), messages=[], **c.options)
        if got.get("extension") != c.theirs.has_extension_property:
            c.bad.append(("extension", c.theirs.has_extension_property, got.get("extension")))
        label = name + (" with history kept" if keep else "")
        tap.ok(not c.bad, f"{label}: {c.compared} comparisons ({c.refused} refused by the reference)",
               f"{len(c.bad)} differ", *(x for b in c.bad[:3] for x in b))
    print(f"# figure: {total} comparisons over {len(CONVERSATIONS + ODD_CONVERSATIONS)} conversations, {time.time() - began:.1f} s")
    tap.done()


if __name__ == "__main__":
    main()
