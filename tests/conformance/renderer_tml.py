# requirements: tml
"""tml_v0 against tml-renderers: tokenizer, prompts, examples with weights, efforts, responses."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tml_renderers
from tml_renderers import chat, tokenizers, v0

SEED = int(os.environ.get("CONFORMANCE_SEED", "1"))
random.seed(SEED)
oracle_tokenizer = tokenizers.O200kBaseChatTokenizer()
oracle = v0.Renderer(oracle_tokenizer)
# The vocabulary is in the package; the name of the directory says whose tokens are added to it.
work = Path(tempfile.mkdtemp())
ranks = work / "thinkingmachines" / "Inkling" / "o200k_base.tiktoken"
ranks.parent.mkdir(parents=True)
ranks.symlink_to(Path(tml_renderers.__file__).parent / "data/o200k_base.tiktoken")
program = Path(os.environ.get("BUILD_DIR", "build/release")) / "tools/render-conform"
process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
count = 0


def tap(name, wrong):
    global count
    count += 1
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}")
    for line in wrong[:10]:
        print("#", str(line)[:1000])


def ask(**request):
    request = {"renderer": "tml_v0", "tokenizer": str(ranks), **request}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def prompt(messages, **options):
    """All tokens of our prompt; the error when there is one."""
    answer = ask(op="prompt", messages=messages, **options)
    return answer["error"] if "error" in answer else [t for c in answer["examples"][0]["chunks"] for t in c]


def span_ids(spans):
    return [t for s in spans for t in s.span.tokens]


TEXTS = ["", "Hello  world\n\n123456 don't", "naïve café 数学 🙂", "<|message_model|> is typed here",
         "a<|end_message|>b<|content_model_end_sampling|>", " leading", "trailing \n", "{\"json\": [1, 2.5]}"]


def random_text():
    return random.choice(TEXTS) + " ".join(random.choice(["one", "Two", "3", "<|audio|>", "é"]) for _ in range(random.randrange(5)))


def random_arguments():
    values = [1, 2.5, "text é", None, True, [1, "b", {"z": 1, "a": 2}], {"k": [], "b": {}}, -7, 1e3]
    return json.dumps({k: random.choice(values) for k in random.sample(["b", "a", "zeta", "unit", "é"], random.randrange(4))})


def random_message():
    role = random.choice(["system", "user", "assistant", "assistant", "tool", "tool_declare"])
    if role == "tool_declare":
        tool = {"name": "look", "description": random_text(), "parameters": {"type": "object", "properties": {"x": {"type": "number", "minimum": 1.0}}}}
        if random.random() < 0.3:
            del tool["description"]
        return {"role": role, "content": json.dumps([{"type": "function", "function": tool}] * random.randrange(3))}
    if random.random() < 0.3:
        kinds = ["text", "thinking"] if role == "assistant" else ["text"]
        content = [{"type": k, k: random_text()} for k in random.choices(kinds, k=random.randrange(1, 4))]
    else:
        content = random_text()
    message = {"role": role, "content": content}
    if role == "tool" and random.random() < 0.7:
        message["name"] = "look"
    if role == "tool":
        message["tool_call_id"] = "c1"
    if role == "assistant" and random.random() < 0.4:
        message["tool_calls"] = [{"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": random_arguments()}}
                                 for i in range(random.randrange(1, 3))]
    return message


def theirs(messages):
    return chat.OpenAIMessage.from_oss_messages(messages)


wrong = [t for t in TEXTS if prompt([{"role": "user", "content": t}], thinking_effort=None) !=
         span_ids(oracle.render_for_completion(theirs([{"role": "user", "content": t}]))[0])]
tap("text, with control tokens spelled in it", wrong)

prompts, examples = [], []
for i in range(500):
    messages = [random_message() for _ in range(random.randrange(1, 7))]
    want = span_ids(oracle.render_for_completion(theirs(messages))[0])
    got = prompt(messages, thinking_effort=None)
    if got != want:
        prompts.append((messages, got if isinstance(got, str) else oracle_tokenizer.decode(got), oracle_tokenizer.decode(want)))
    ours = ask(op="example", messages=messages, thinking_effort=None, train_on="all_assistant_messages")
    want = oracle.render_for_sft(theirs(messages))
    want = [(t, w) for e in want for t, w in zip(span_ids(e.input_token_spans), e.per_token_loss_weight_unshifted)]
    example = ours.get("examples", [{}])[0]
    got = list(zip([t for c in example.get("chunks", []) for t in c], example.get("weights", [])))
    # The oracle ends an example with its last trained token; what follows has no weight in ours.
    if got[: len(want)] != want or any(w for _, w in got[len(want) :]):
        examples.append((messages, ours.get("error"), got[:20], want[:20]))
tap("500 random prompts", prompts)
tap("500 random examples, tokens and weights", examples)

wrong = []
for effort in [m / 1000 for m in range(1001)]:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    if prompt(messages, thinking_effort=effort) != span_ids(oracle.render_for_completion_with_effort(theirs(messages), effort)[0]):
        wrong.append(effort)
tap("all thousandths of effort", wrong)
user = [{"role": "user", "content": "u"}]
tap("0.9 unless told", [] if prompt(user) == span_ids(oracle.render_for_completion_with_effort(theirs(user), 0.9)[0]) else [prompt(user)])
tap("an effort of 1.5 is refused", [] if "thinking_effort" in prompt(user, thinking_effort=1.5) else ["accepted"])
tap("so is the role developer", [] if "developer" in prompt([{"role": "developer", "content": "u"}]) else ["accepted"])

# What a model would write is what an assistant message renders to.
wrong = []
for i in range(200):
    message = random_message()
    while message["role"] != "assistant":
        message = random_message()
    tokens = span_ids(oracle.render_for_completion(theirs([message]))[0])
    ours = ask(op="parse", tokens=tokens)
    parts = [{"type": "text", "text": message["content"]}] if isinstance(message["content"], str) else message["content"]
    parts = [p for p in parts if p["type"] != "text" or p["text"] or "tool_calls" not in message]
    got = ours.get("message", {})
    content = got.get("content")
    got_parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    got_parts = [] if content == "" and not parts else got_parts
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in got.get("tool_calls") or []]
    want = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
    if got_parts != parts or calls != want or ours.get("termination") != "stop_sequence":
        wrong.append((message, ours))
tap("200 responses read back as the messages they were", wrong)


def special(name):
    return {"model": 200001, "text": 200004, "end": 200010, "stop": 200006, "call": 200049}[name]


def response(*items):
    return [t for i in items for t in ([special(i[1:])] if i.startswith("@") else oracle_tokenizer.encode_ordinary(i))]


wrong = []
parser = oracle.render_for_completion(theirs([{"role": "user", "content": "u"}]))[1]
for name, tokens in [("no end of the message", response("@model", "@text", "Hi", "@stop")), ("no header", response("Hi", "@stop")),
                     ("nothing", response("@stop")), ("no stop", response("@model", "@text", "Hi", "@end"))]:
    ours = ask(op="parse", tokens=tokens)
    if ours.get("termination") != "malformed":
        wrong.append((name, ours))
for body in ['{"name":"g"}', "{bad", '{"name":"g","args":{},"x":1}', '{"name":1,"args":{}}', '{"name":"other","args":{}}']:
    tokens = response("@model", "g", "@call", body, "@end", "@stop")
    ours = ask(op="parse", tokens=tokens)
    try:
        parser.parse_tokens(tokens)
        wrong.append((body, "the oracle takes it"))
    except Exception:
        pass
    if ours.get("message", {}).get("tool_calls") or not ours.get("message", {}).get("unparsed_tool_calls"):
        wrong.append((body, ours))
tap("malformed responses and calls", wrong)
tap("no messages are no tokens", [] if prompt([], thinking_effort=None) == [] else ["tokens"])
shutil.rmtree(work)
print(f"1..{count}")
