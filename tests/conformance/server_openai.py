# requirements: openai
"""The OpenAI endpoints with the official `openai` package: models, completions and chat, whole
and streamed, the same tokens as the native sampling, adapters by path, tools, errors."""

import json
import os
import subprocess
import sys

import openai
import tinker
from tinker import types
from tokenizers import Tokenizer

from _server import BUILD, Server, attempt, check, done

MODEL = "test/bundled"
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain in Oslo?"}]
CALL = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"


tokenizer = Tokenizer.from_file("models/tiny/tokenizer.json")


def native(sampler, tokens, n=1, **params):
    got = sampler.sample(types.ModelInput.from_ints(tokens), n,
                         types.SamplingParams(**params)).result()
    return [list(s.tokens) for s in got.sequences], [list(s.logprobs) for s in got.sequences]


def rivals(sampler, prompt, tokens, k):
    """The k likeliest tokens at each position of `tokens`, at temperature 1: [(id, logprob)]."""
    got = sampler.sample(types.ModelInput.from_ints(prompt + tokens), 1,
                         types.SamplingParams(max_tokens=1), include_prompt_logprobs=True,
                         topk_prompt_logprobs=k).result()
    return got.topk_prompt_logprobs[len(prompt):]


def at_temperature(row, logprob, chosen, t):
    """Log probabilities of a row at temperature t, by way of the chosen token's."""
    raw = dict(row)
    return raw.get(chosen), {i: logprob + (lp - raw[chosen]) / t for i, lp in row} \
        if chosen in raw else None


def refused(kind, status, call, word=""):
    try:
        call()
    except kind as e:
        body = e.body or {}
        return e.status_code == status and word in e.message and body.get("message") \
            and body.get("type") and "detail" not in body
    return False


def models(client, path):
    ids = [m.id for m in client.models.list().data]
    check(MODEL in ids and path in ids, "models: bases and checkpoints are listed", f"{ids}")


def completions(client, sampler, prompt):
    args = dict(model=MODEL, prompt=prompt, max_tokens=12, seed=7, temperature=0.8)
    tokens, logprobs = native(sampler, prompt, 3, max_tokens=12, seed=7, temperature=0.8)
    r = client.completions.create(n=3, logprobs=1, **args)
    check([c.token_ids for c in r.choices] == tokens, "completions: the tokens of sample()",
          f"{[c.token_ids for c in r.choices]} {tokens}")
    check([c.index for c in r.choices] == [0, 1, 2] and r.object == "text_completion"
          and r.id.startswith("cmpl-") and r.model == MODEL, "completions: n choices with indexes")
    check(all(max(abs(a - b) for a, b in zip(c.logprobs.token_logprobs, want)) < 1e-5
              for c, want in zip(r.choices, logprobs)), "completions: their log probabilities")
    lp = r.choices[0].logprobs
    start = lp.text_offset[0]  # of the text of prompt and completion
    check("".join(lp.tokens) == r.choices[0].text and start > 0
          and lp.text_offset[2] == start + len(lp.tokens[0] + lp.tokens[1])
          and all(top[t] == v for top, t, v in zip(lp.top_logprobs, lp.tokens, lp.token_logprobs)),
          "completions: texts and offsets of the tokens", f"{lp}")
    lp = client.completions.create(logprobs=20, **args).choices[0].logprobs
    rows = rivals(sampler, prompt, tokens[0], 20)
    seen = [at_temperature(row, v, i, 0.8)[1]
            for row, v, i in zip(rows, lp.token_logprobs, tokens[0])]
    good = [sorted(want.values(), reverse=True) for want in seen if want]
    have = [sorted(top.values(), reverse=True) for top, want in zip(lp.top_logprobs, seen) if want]
    check(len(good) > 5 and all(abs(a[0] - b[0]) < 1e-3 and abs(a[3] - b[3]) < 1e-3
                                for a, b in zip(good, have)),
          "completions: the likeliest tokens, at the temperature", f"{have} {good}")
    check(r.usage.prompt_tokens == len(prompt) and r.usage.completion_tokens == sum(map(len, tokens))
          and r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens,
          "completions: usage", f"{r.usage}")
    other = client.completions.create(**{**args, "seed": 8})
    check(other.choices[0].token_ids != tokens[0], "completions: another seed, another text")
    several = client.completions.create(model=MODEL, prompt=["Once", "Twice"], max_tokens=3, seed=1)
    check(len(several.choices) == 2, "completions: several prompts")

    pieces, reasons, values, usage = [""] * 3, [None] * 3, [[], [], []], None
    tops = [[], [], []]
    for e in client.completions.create(n=3, logprobs=1, stream=True,
                                       stream_options={"include_usage": True}, **args):
        usage = e.usage or usage
        for c in e.choices:
            pieces[c.index] += c.text
            reasons[c.index] = c.finish_reason or reasons[c.index]
            values[c.index] += c.logprobs.token_logprobs if c.logprobs else []
            tops[c.index] += c.logprobs.top_logprobs if c.logprobs else []
    check(pieces == [c.text for c in r.choices], "streamed completions: the same texts",
          f"{pieces} {[c.text for c in r.choices]}")
    check(reasons == [c.finish_reason for c in r.choices]
          and usage.total_tokens == r.usage.total_tokens, "streamed completions: ends and usage",
          f"{reasons} {usage}")
    check(values == [c.logprobs.token_logprobs for c in r.choices],
          "streamed completions: the same log probabilities", f"{values}")
    check(tops == [c.logprobs.top_logprobs for c in r.choices],
          "streamed completions: the same likeliest tokens", f"{tops}")


def stops(client, prompt):
    args = dict(model=MODEL, prompt=prompt, max_tokens=30, seed=3)
    whole = client.completions.create(logprobs=0, **args).choices[0]
    word = whole.text[6:9]
    cut = client.completions.create(stop=word, **args).choices[0]
    check(cut.text == whole.text[:whole.text.index(word)] and cut.finish_reason == "stop",
          "stop: a string ends the text before it", f"{whole.text!r} {word!r} {cut.text!r}")
    streamed = "".join(c.text for e in client.completions.create(stop=[word], stream=True, **args)
                       for c in e.choices)
    check(streamed == cut.text, "stop: also in a stream", f"{streamed!r} {cut.text!r}")
    token = whole.token_ids[4]
    at = whole.token_ids.index(token)
    ids = client.completions.create(extra_body={"stop_token_ids": [token]}, **args).choices[0]
    check(ids.token_ids == whole.token_ids[:at + 1] and ids.finish_reason == "stop",
          "stop: by token id", f"{ids.token_ids} {whole.token_ids} {token}")


def rendered(messages, tools=None):
    """The prompt that the model sees, by the command line's renderer."""
    command = [os.path.join(BUILD, "tinker"), "render", "-m", os.path.abspath("models/tiny"),
               "--mode", "generate", "--json"]
    if tools:
        with open("/tmp/tools.%d.json" % os.getpid(), "w") as f:
            json.dump([t["function"] for t in tools], f)
        command += ["--tools", f.name]
    out = subprocess.run(command, input=json.dumps(messages), capture_output=True, text=True)
    if tools:
        os.unlink(f.name)
    if out.returncode:
        raise RuntimeError(out.stderr)
    return json.loads(out.stdout)


def chat(client, sampler):
    args = dict(model=MODEL, messages=ASK, max_tokens=10, seed=5)
    r = client.chat.completions.create(logprobs=True, top_logprobs=1, n=2, **args)
    prompt = rendered(ASK)["tokens"]
    eos = tokenizer.token_to_id("<|im_end|>")
    tokens, logprobs = native(sampler, prompt, 2, max_tokens=10, seed=5, stop=[eos])
    content = [[t.logprob for t in c.logprobs.content] for c in r.choices]
    check(all(len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-5
              for a, b in zip(content, logprobs)), "chat: the log probabilities of sample()",
          f"{content} {logprobs}")
    text = bytes(b for t in r.choices[0].logprobs.content for b in t.bytes)
    check(r.choices[0].message.content.encode() in text and r.choices[0].message.role == "assistant"
          and r.object == "chat.completion", "chat: a message of the assistant")
    r3 = client.chat.completions.create(logprobs=True, top_logprobs=3, **args)
    rows = rivals(sampler, prompt, tokens[0], 3)
    tops = [[(t.token, t.logprob) for t in c.top_logprobs] for c in r3.choices[0].logprobs.content]
    check(len(tops) == len(rows) and all(
        len(a) == 3 and all(abs(x[1] - y[1]) < 1e-3 for x, y in zip(a, b))
        for a, b in zip(tops, rows)), "chat: top_logprobs are the likeliest tokens",
          f"{tops} {rows}")
    check(refused(openai.BadRequestError, 400, lambda: client.chat.completions.create(
        logprobs=True, top_logprobs=21, **args), "top_logprobs"), "chat: at most 20 of them")
    check(r.usage.prompt_tokens == len(prompt), "chat: usage counts the rendered prompt")
    said, roles, values = "", [], []
    for e in client.chat.completions.create(logprobs=True, stream=True, **args):
        for c in e.choices:
            said += c.delta.content or ""
            roles += [c.delta.role] if c.delta.role else []
            values += [t.logprob for t in c.logprobs.content] if c.logprobs else []
            reason = c.finish_reason
    check(said == r.choices[0].message.content and reason == r.choices[0].finish_reason,
          "streamed chat: the same message", f"{said!r} {r.choices[0].message.content!r}")
    check(roles == ["assistant"] and values == content[0],
          "streamed chat: one role, every log probability", f"{roles} {values} {content[0]}")
    streamed = [[(t.token, t.logprob) for t in one.top_logprobs]
                for e in client.chat.completions.create(logprobs=True, top_logprobs=3, stream=True, **args)
                for c in e.choices if c.logprobs for one in c.logprobs.content]
    check(streamed == tops, "streamed chat: the same likeliest tokens", f"{streamed} {tops}")


def adapters(client, service):
    """Teach an adapter one answer and one tool call; ask for both by its path."""
    training = service.create_lora_training_client(base_model=MODEL, rank=16, seed=2)
    data = []
    for prompt, answer in ((rendered(ASK)["tokens"], "Dry."), (rendered(ASK, TOOLS)["tokens"], CALL)):
        tokens = prompt + tokenizer.encode(answer + "<|im_end|>").ids
        data.append(types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights":
                            [float(i >= len(prompt) - 1) for i in range(len(tokens) - 1)]}))
    for _ in range(30):
        training.forward_backward(data, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    path = training.save_weights_for_sampler("taught").result().path
    args = dict(model=path, messages=ASK, temperature=0, max_tokens=80)
    r = client.chat.completions.create(**args).choices[0]
    check(r.message.content == "Dry." and r.finish_reason == "stop", "an adapter by its path",
          f"{r}")
    r = client.chat.completions.create(tools=TOOLS, **args).choices[0]
    call = (r.message.tool_calls or [None])[0]
    check(call and call.function.name == "weather" and r.finish_reason == "tool_calls"
          and json.loads(call.function.arguments) == {"city": "Oslo"} and call.id
          and r.message.content is None, "tools: a call", f"{r}")
    calls = [(c.delta.tool_calls, c.finish_reason) for e in client.chat.completions.create(
        tools=TOOLS, stream=True, **args) for c in e.choices if c.delta.tool_calls]
    check(len(calls) == 1 and calls[0][0][0].function.name == "weather"
          and calls[0][1] == "tool_calls", "tools: a call in a stream", f"{calls}")
    r = client.chat.completions.create(tools=TOOLS, tool_choice="none", **args).choices[0]
    check(r.message.content == "Dry." and not r.message.tool_calls, "tools: none wanted", f"{r}")
    return path


def errors(client, server):
    bad, missing = openai.BadRequestError, openai.NotFoundError
    make = client.completions.create
    check(refused(missing, 404, lambda: make(model="nobody", prompt="a"), "nobody"),
          "errors: an unknown model")
    check(refused(missing, 404, lambda: make(model="tinker://x/sampler_weights/y", prompt="a")),
          "errors: an unknown path")
    check(refused(bad, 400, lambda: make(model=MODEL, prompt="a", n=1000), "n must"),
          "errors: n out of range")
    check(refused(bad, 400, lambda: make(model=MODEL, prompt="a", max_tokens=-1)),
          "errors: negative max_tokens")
    for name, value in (("best_of", 4), ("suffix", "x"), ("logit_bias", {"x": 1}),
                        ("presence_penalty", 1e9)):
        check(refused(bad, 400, lambda: make(model=MODEL, prompt="a", **{name: value}), name),
              f"errors: {name} is refused, not ignored")
    check(refused(bad, 400, lambda: client.chat.completions.create(
        model=MODEL, messages=ASK, tool_choice="required"), "tool_choice"),
        "errors: a forced call without tools")
    check(refused(bad, 400, lambda: client.chat.completions.create(
        model=MODEL, messages=ASK, response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"not": {}}}}), "not"), "errors: a keyword of a schema")
    check(refused(bad, 400, lambda: make(model=MODEL, prompt=[5] * 4000, max_tokens=1)),
          "errors: a prompt that is too long")
    check(refused(missing, 404, lambda: client.embeddings.create(model=MODEL, input="a")),
          "errors: an endpoint that is not there")


def keys():
    with Server("--api-key", "tml-right") as server:
        url = server.url + "/v1"
        right = openai.OpenAI(base_url=url, api_key="tml-right", max_retries=0)
        wrong = openai.OpenAI(base_url=url, api_key="tml-wrong", max_retries=0)
        check(len(right.models.list().data) > 0, "keys: the right one as a bearer token")
        check(refused(openai.AuthenticationError, 401, lambda: wrong.models.list(), "API key"),
              "keys: a wrong one")


model = os.path.abspath("models/tiny")
with Server("--model", f"{MODEL}={model}") as server:
    service = tinker.ServiceClient()
    sampler = service.create_sampling_client(base_model=MODEL)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="tml-x", max_retries=0)
    prompt = tokenizer.encode("Once upon a time there was").ids
    attempt("completions", lambda: completions(client, sampler, prompt))
    attempt("stops", lambda: stops(client, prompt))
    attempt("chat", lambda: chat(client, sampler))
    path = attempt("adapters", lambda: adapters(client, service))
    attempt("models", lambda: models(client, path))
    attempt("errors", lambda: errors(client, server))
    other = openai.OpenAI(base_url=server.url + "/oai/api/v1", api_key="tml-x", max_retries=0)
    attempt("the hosted prefix", lambda: len(other.models.list().data) > 0)
attempt("keys", keys)
sys.stdout.flush()
done()
