# requirements: renderer
"""Conversations and answers put together at random, rendered and parsed by us and by the cookbook.

Roles in any order, empty content, parts of all kinds, markup of every format in anybody's words,
arguments that are hardly JSON: what the cookbook refuses we refuse, the rest is the same."""

import logging
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _renderer_oracle as oracle
from _renderer_oracle import Ours, Tap
from renderer import MODES, NAMES, Comparison, folder_for

CONVERSATIONS, ANSWERS = 12, 24
KEPT = ("qwen3", "qwen3_disable_thinking", "qwen3_5", "deepseekv3_thinking", "kimi_k2", "deepseekv3")
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>", "<|eot_id|>",
         "<｜User｜>", "<｜Assistant｜>", "<|end|>", "<|channel|>", "<|message|>", "<tool_response>", "\n\nUser:",
         "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<|return|>", "<|call|>", "<|start|>",
         "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<｜tool▁calls▁begin｜>", "<arg_key>", "</arg_key>",
         "<arg_value>", "</arg_value>", "<|user|>", "<|observation|>", "<｜System｜>", "<｜DSML｜ calls>",
         "</｜DSML｜ calls>", '<｜DSML｜ invoke name="f">\n', "</｜DSML｜ invoke>",
         '<｜DSML｜ parameter name="a" string="true">', '" string="false">', "</｜DSML｜ parameter>"]
WORDS = ["a", "b c", " ", "\n", "\n\n", "\t", "é", "中文", "😀", "\u3000", "\u00a0", "\x1c", "\u200b", "word ", "42",
         "Reasoning effort is set to low.", '{"x": 1}', "  ", "x"]
ARGUMENTS = ["{}", '{"a": 1}', '{"a": "x\\ny", "b": [1, null, true], "c": {"d": 1.5}}', '{"a": NaN}',
             '{"a": -Infinity, "b": 1e400}', '{"é": "é😀"}', '{"a": "\\ud83d\\ude00"}', ' {"a" : 1 } ', "[1]", '"s"',
             '{"a": 1.0, "b": 1e22, "c": 123456789012345678901234567890, "d": false, "e": ""}', "not json",
             '{"a": 1, "a": 2}', '{"a b": " sp "}', '{"a": "</parameter>"}', ""]
CALLS = ['{"name":"f","arguments":{"a":NaN}}', '{"name":"f","arguments":"x"}', "NaN",
         '{"name":"f","arguments":{},"id":3}', '{"name": "f", "arguments": {"b": 1.0, "a": "\\u00e9"}} ']
PAIR = "<tool_call>%s<arg_key>%s</arg_key><arg_value>%s</arg_value></tool_call>"
DSML = ('<｜DSML｜ calls>\n<｜DSML｜ invoke name="%s">\n<｜DSML｜ parameter name="%s" string="false">%s'
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>")
XML = "<tool_call>\n<function=%s>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>"


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        return "".join(self.r.choice(MARKS if self.r.random() < 0.25 else WORDS)
                       for _ in range(self.r.choice([0, 1, 1, 2, 3, 5])))

    def calls(self):
        return [{"type": "function", "id": self.r.choice([None, "call_1", "functions.f:0", "x"]),
                 "function": {"name": self.r.choice(["f", "get_weather", "a.b", "f:x", "é", ""]),
                              "arguments": self.r.choice(ARGUMENTS)}} for _ in range(self.r.randint(1, 3))]

    def content(self, role):
        if self.r.random() < 0.5:
            return self.text()
        thinks = 0.5 if role == "assistant" else 0.1
        kinds = ["thinking" if self.r.random() < thinks else "text" for _ in range(self.r.choice([0, 1, 1, 2, 3, 4]))]
        return [{"type": k, k: self.text()} for k in kinds]

    def message(self, role=None):
        role = role or self.r.choice(["user", "user", "assistant", "assistant", "assistant", "system", "tool", "tool",
                                      "developer", "tool_declare", "other"])
        m = {"role": role, "content": self.content(role)}
        if self.r.random() < {"assistant": 0.35, "user": 0.03}.get(role, 0):
            m["tool_calls"] = self.calls()
        if role == "tool" and self.r.random() < 0.8:
            m["name"] = self.r.choice(["f", "functions.f", "get_weather", ""])
        if role == "tool" and self.r.random() < 0.8:
            m["tool_call_id"] = self.r.choice(["call_1", "functions.f:0", "x", ""])
        return m

    def conversation(self):
        if self.r.random() < 0.5:
            return [self.message() for _ in range(self.r.randint(1, 5))]
        out = [self.message("system")] if self.r.random() < 0.4 else []
        for _ in range(self.r.randint(1, 3)):
            out += [self.message("user"), self.message("assistant")]
            if "tool_calls" in out[-1]:
                out += [self.message("tool") for _ in range(self.r.randint(1, 2))] + [self.message("assistant")]
        return out

    def answer(self):
        pick = self.r.choice
        makers = [lambda: pick(MARKS)] * 9 + [lambda: pick(WORDS)] * 6 + [
            lambda: f"<tool_call>{pick(CALLS)}</tool_call>"] * 2 + [
            lambda: pick([XML, XML, PAIR, DSML]) % (pick(["f", "", " g "]), pick(["a", "", " b "]),
                           pick(["1", "NaN", "Infinity", "x", "null", "[1]", '"q"', ""]))] * 3
        return "".join(pick(makers)() for _ in range(self.r.randint(0, 8)))


def main():
    logging.disable(logging.CRITICAL)
    tap, ours, renderers = Tap(), Ours(), oracle.load_cookbook()
    for seed, (name, keep) in enumerate([(n, False) for n in NAMES] + [(n, True) for n in KEPT]):
        maker, c = Maker(seed), Comparison(renderers, ours, name, folder_for(name), keep=keep)
        for i in range(CONVERSATIONS):
            messages = maker.conversation()
            c.prompts(i, messages)
            for mode in MODES:
                c.supervised(i, messages, mode)
            c.responses(i, messages)
        stop = c.theirs.get_stop_sequences()
        stop = stop[:1] if isinstance(stop[0], int) else c.theirs.tokenizer.encode(stop[0])
        for i in range(ANSWERS):
            tokens = c.theirs.tokenizer.encode(maker.answer())
            c.parse(f"answer {i}", tokens + stop)
            c.parse(f"answer {i} open", tokens)
        c.settle()
        label = name + (" with history kept" if keep else "")
        tap.ok(not c.bad, f"{label}: {c.compared} comparisons ({c.refused} refused by the reference)",
               f"{len(c.bad)} differ", *(x for b in c.bad[:3] for x in b))
    tap.done()


main()
