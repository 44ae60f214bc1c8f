# requirements: clients
"""Clients from PyPI, unchanged, on the endpoints of `tinker serve`: openai (echo, structured output),
litellm, lm_eval (scores and generation) and inspect_ai; 1,000 random schemas."""

import json
import math
import os
import random
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ["OPENAI_API_KEY"] = os.environ["ANTHROPIC_API_KEY"] = "tml-x"

import jsonschema
import openai
import tinker
from tinker import types
from tokenizers import Tokenizer

from _server import Server, attempt, check, done

MODEL = "test/tiny"  # the bundled model here, alone: the harness asks for its tokenizer without a name
tokenizer = Tokenizer.from_file("models/tiny/tokenizer.json")
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"], "additionalProperties": False}


def scores(sampler, ids):
    got = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    return [x for x in got]


def echo(client, sampler):
    ids = tokenizer.encode("The king went to the city, and").ids
    r = client.completions.create(model=MODEL, prompt=[ids, ids[:4]], max_tokens=1, echo=True,
                                  logprobs=1, temperature=0, seed=1, n=2)
    check([c.index for c in r.choices] == [0, 1, 2, 3], "echo: n choices for each prompt, in order")
    for c, want in ((r.choices[0], ids), (r.choices[2], ids[:4])):
        lp = c.logprobs
        native = scores(sampler, want)
        check(len(lp.tokens) == len(want) + 1 and lp.token_logprobs[0] is None
              and lp.top_logprobs[0] is None, "echo: one entry per token, none for the first")
        check(max(abs(a - b) for a, b in zip(lp.token_logprobs[1:-1], native[1:])) < 1e-5,
              "echo: log probabilities of compute_logprobs")
        check("".join(lp.tokens) == c.text and lp.text_offset[0] == 0, "echo: text and offsets")
    check(r.usage.prompt_tokens == len(ids) + 4, "echo: prompts are counted once")


def random_schema(r, depth):
    kinds = ["integer", "number", "string", "enum", "const", "boolean", "null", "pattern", "list"]
    if depth:
        kinds += ["array", "object", "object", "anyOf", "oneOf", "ref", "prefix"]
    kind = r.choice(kinds)
    if kind == "integer":
        lo = r.randint(-300, 300)
        return {"type": "integer", "minimum": lo, "maximum": lo + r.randint(0, 5000)}
    if kind == "number":
        return r.choice([{"type": "number"}, {"type": "number", "minimum": -2, "maximum": 7},
                         {"type": "number", "minimum": 0}])
    if kind == "string":
        return {"type": "string", "minLength": r.randint(0, 3), "maxLength": r.randint(3, 9)}
    if kind == "enum":
        return {"enum": r.sample(["red", "blue green", 'a"b', "é", 1, 2.5, None, True, [1, {"x": 2}]], 3)}
    if kind == "const":
        return {"const": r.choice(["x y", 17, {"k": [1, None]}, "\\ü"])}
    if kind == "pattern":
        return {"type": "string", "pattern": r.choice(
            ["^[a-f]{2,5}$", "^\\d{4}-\\d{2}$", "^(?:yes|no|may be)$", "^[A-Z][a-z]*( [A-Z]\\.)?$", "^x+y?$"])}
    if kind == "list":
        return {"type": ["boolean", "null", "integer"], "minimum": 5, "maximum": 99}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "array":
        return {"type": "array", "items": random_schema(r, depth - 1), "minItems": r.randint(0, 2),
                "maxItems": r.randint(2, 3)}
    if kind == "prefix":
        return {"type": "array", "prefixItems": [random_schema(r, depth - 1), {"type": "boolean"}],
                "items": {"type": "null"}, "minItems": r.randint(0, 3), "maxItems": 4}
    if kind == "anyOf":
        return {"anyOf": [random_schema(r, depth - 1), random_schema(r, depth - 1)]}
    if kind == "oneOf":
        return {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer", "minimum": 3, "maximum": 30},
                          {"type": "object", "properties": {"v": {"type": "boolean"}}}]}
    if kind == "ref":
        return {"$ref": "#/$defs/node"}
    names = r.sample(["a", "b", "key two", "é", "list"], r.randint(1, 3))
    s = {"type": "object", "properties": {n: random_schema(r, depth - 1) for n in names},
         "required": r.sample(names, r.randint(0, len(names))),
         "additionalProperties": r.choice([False, False, True, {"type": "integer", "maximum": 9}])}
    if s["additionalProperties"] is True:
        del s["additionalProperties"]
    return s


NODE = {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {
    "anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v"], "additionalProperties": False}


def schemas(client, count=1000):
    r = random.Random(7)
    valid = cut = 0
    wrong = []
    for i in range(0, count):
        schema = dict(random_schema(r, 3))
        schema["$defs"] = {"node": NODE}
        if "$ref" in schema:
            schema = {"anyOf": [{"$ref": "#/$defs/node"}], "$defs": {"node": NODE}}
        got = client.post("/completions", cast_to=object, body={
            "model": MODEL, "prompt": "In the beginning", "max_tokens": 400, "seed": i,
            "temperature": r.choice([0, 0.7, 1, 1.5]),
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
        choice = got["choices"][0]
        if choice["finish_reason"] == "length":
            cut += 1
            continue
        try:
            value = json.loads(choice["text"])
            jsonschema.Draft202012Validator(schema).validate(value)
            valid += 1
        except Exception as e:  # noqa: BLE001
            wrong.append((schema, choice["text"], str(e)[:200]))
    check(not wrong and valid > 0.9 * count, f"schemas: {valid} of {count} answers valid, {cut} cut, none wrong",
          f"{wrong[:2]}")


def masked(client, sampler):
    """Constrained log probabilities are the model's own, normalized over what the grammar allows."""
    ids = tokenizer.encode("He said: ").ids
    got = client.post("/completions", cast_to=object, body={
        "model": MODEL, "prompt": ids, "max_tokens": 60, "seed": 3, "temperature": 1, "logprobs": 20,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}})
    choice = got["choices"][0]
    tokens, lp = choice["token_ids"], choice["logprobs"]
    raw = sampler.sample(types.ModelInput.from_ints(ids + tokens), 1, types.SamplingParams(max_tokens=1),
                         include_prompt_logprobs=True, topk_prompt_logprobs=1000).result().topk_prompt_logprobs
    worst, sums, forced = 0.0, [], 0
    for at, top in enumerate(lp["top_logprobs"]):
        row = dict(raw[len(ids) + at])
        shown = {tokenizer.encode(t).ids[0]: v for t, v in top.items() if len(tokenizer.encode(t).ids) == 1}
        both = [(v, row[i]) for i, v in shown.items() if i in row]
        worst = max([worst] + [abs((a[0] - b[0]) - (a[1] - b[1])) for a in both for b in both])
        total = sum(math.exp(v) for v in top.values())
        forced += len(top) == 1
        if len(top) < 20:
            sums.append(total)
    check(worst < 1e-4, "grammar: ratios of allowed tokens are those of the model", f"{worst}")
    check(sums and max(abs(s - 1) for s in sums) < 1e-4, "grammar: what is allowed sums to 1", f"{sums}")
    check(forced > 0, "grammar: the only token that may come has probability 1")
    jsonschema.validate(json.loads(choice["text"]), PERSON)


def structured(client):
    r = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Who?"}], seed=2, max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}})
    jsonschema.validate(json.loads(r.choices[0].message.content), PERSON)
    check(r.choices[0].finish_reason == "stop", "openai: a schema in chat")
    text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Who?"}], seed=2, max_tokens=200, stream=True,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}))
    check(text == r.choices[0].message.content, "openai: the same text as a stream", text)
    digit = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": n, "parameters": digit}} for n in ("add", "find")]
    for choice, names in (("required", ("add", "find")),
                          ({"type": "function", "function": {"name": "find"}}, ("find",))):
        m = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Who?"}], seed=2,
                                           tools=tools, tool_choice=choice).choices[0]
        call = m.message.tool_calls[0].function
        jsonschema.validate(json.loads(call.arguments), digit)
        check(call.name in names and m.finish_reason == "tool_calls", f"openai: a forced call, {choice}")


def with_litellm(url):
    import litellm
    ask = [{"role": "user", "content": "Tell me of the king."}]
    args = dict(messages=ask, max_tokens=20, seed=4, api_key="tml-x")
    r = litellm.completion(model=f"openai/{MODEL}", api_base=url + "/v1", **args)
    text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(
        model=f"openai/{MODEL}", api_base=url + "/v1", stream=True, **args))
    check(text == r.choices[0].message.content and r.usage.completion_tokens > 0, "litellm: openai, whole and streamed")
    del args["seed"]
    r = litellm.completion(model=f"anthropic/{MODEL}", api_base=url, **args)
    check(r.choices[0].message.content and r.usage.completion_tokens > 0, "litellm: anthropic")
    r = litellm.completion(model=f"openai/{MODEL}", api_base=url + "/v1", response_format={
        "type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
        **{**args, "max_tokens": 200})
    jsonschema.validate(json.loads(r.choices[0].message.content), PERSON)
    check(True, "litellm: a schema")


def with_lm_eval(url, sampler):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    folder = tempfile.mkdtemp()
    rows = [{"q": "The king went to the", "choices": [" city", " purple", " sleep"], "gold": 0},
            {"q": "And he said unto", "choices": [" green", " them", " seven"], "gold": 1}]
    with open(folder + "/rows.json", "w") as f:
        f.write("\n".join(json.dumps(x) for x in rows))
    base = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/rows.json\ntest_split: test\n"
    with open(folder + "/score.yaml", "w") as f:
        f.write("task: local_score\n" + base + "output_type: multiple_choice\ndoc_to_text: '{{q}}'\n"
                "doc_to_choice: '{{choices}}'\ndoc_to_target: gold\ntarget_delimiter: ''\n"
                "metric_list:\n  - metric: acc\n")
    with open(folder + "/make.yaml", "w") as f:
        f.write("task: local_make\n" + base + "output_type: generate_until\ndoc_to_text: '{{q}}'\n"
                "doc_to_target: '{{choices[gold]}}'\ngeneration_kwargs:\n  until: ['.']\n  max_gen_toks: 8\n"
                "metric_list:\n  - metric: exact_match\n")
    out = simple_evaluate(
        model="local-completions", tasks=["local_score", "local_make"], log_samples=True, bootstrap_iters=0,
        model_args={"model": MODEL, "base_url": url + "/v1/completions", "tokenizer_backend": "remote",
                    "num_concurrent": 1, "max_retries": 1, "max_length": 256},
        task_manager=TaskManager(include_path=folder, include_defaults=False))
    worst = 0.0
    for sample in out["samples"]["local_score"]:
        row = sample["doc"]
        for resp, text in zip(sample["resps"], row["choices"]):
            context = tokenizer.encode(row["q"]).ids
            ids = tokenizer.encode(row["q"] + text).ids
            want = sum(scores(sampler, ids)[len(context):])
            worst = max(worst, abs(float(resp[0][0]) - want))
    check(worst < 1e-5, "lm_eval: loglikelihoods are those of compute_logprobs", f"{worst}")
    check("acc,none" in out["results"]["local_score"], "lm_eval: a task that scores",
          f"{out['results']}")
    texts = [s["resps"][0][0] for s in out["samples"]["local_make"]]
    check(all(isinstance(t, str) and t and "." not in t for t in texts), "lm_eval: a task that generates", f"{texts}")


def with_inspect(url):
    from inspect_ai import Task, eval as run
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate
    from inspect_ai.util import JSONSchema
    task = Task(dataset=[Sample(input="Tell me of the king.", target="e")], solver=generate(), scorer=includes())
    model = get_model(f"openai/{MODEL}", base_url=url + "/v1", api_key="tml-x", responses_api=False,
                      config=GenerateConfig(max_tokens=40, seed=1, temperature=0.5))
    log = run(task, model=model, display="none", log_dir=tempfile.mkdtemp())[0]
    check(log.status == "success" and log.samples[0].output.completion, "inspect_ai: a task", f"{log.error}")
    model = get_model(f"openai/{MODEL}", base_url=url + "/v1", api_key="tml-x", responses_api=False,
                      config=GenerateConfig(max_tokens=200, seed=1, response_schema=ResponseSchema(
                          name="p", json_schema=JSONSchema.model_validate(PERSON))))
    log = run(task, model=model, display="none", log_dir=tempfile.mkdtemp())[0]
    value = json.loads(log.samples[0].output.completion)
    check(isinstance(value["age"], int) and len(value["name"]) <= 12, "inspect_ai: a schema", f"{value}")


folder = tempfile.mkdtemp(prefix="tinker-conformance.")
os.symlink(os.path.abspath("models/tiny"), folder + "/model")
with Server(keep=folder) as server:
    service = tinker.ServiceClient()
    sampler = service.create_sampling_client(base_model=MODEL)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="tml-x", max_retries=0)
    attempt("echo", lambda: echo(client, sampler))
    attempt("masked", lambda: masked(client, sampler))
    attempt("structured", lambda: structured(client))
    attempt("schemas", lambda: schemas(client))
    attempt("litellm", lambda: with_litellm(server.url))
    attempt("lm_eval", lambda: with_lm_eval(server.url, sampler))
    attempt("inspect_ai", lambda: with_inspect(server.url))
sys.stdout.flush()
done()
