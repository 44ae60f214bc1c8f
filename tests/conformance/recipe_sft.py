# requirements: cookbook
"""`tinker train sft` beside the cookbook's supervised/train.py: same file, seed and batches.

Token ids and weights of every batch are equal, losses per step to 1e-5, and the folders of both
runs have the same keys, names and places.
"""

import asyncio
import json
import os
import subprocess

import numpy

from _cookbook import NAME, kitchen, write_lines
from _server import BUILD, attempt, check, done

TOOLS = os.path.abspath(BUILD)
MODEL = os.path.abspath("models/tiny")
SIZES = {"test": 4, "batch": 4, "epochs": 2}
SETTINGS = {"learning_rate": 2e-3, "lora_rank": 8, "save_every": 3, "eval_every": 4}
# Ours beyond those of the cookbook.
OWN = {"num_trained_tokens"}


def rows():
    words = "cat dog house tree river stone bird cloud fish lamp".split()
    for i in range(20):
        talk = [{"role": "user", "content": f"Where is the {words[i % 10]} number {i}?"},
                {"role": "assistant", "content": f"In the {words[(3 * i + 1) % 10]}."}]
        if i % 3 == 0:
            talk = [{"role": "system", "content": "Be brief."}, *talk,
                    {"role": "user", "content": "And então – naïve?"},
                    {"role": "assistant", "content": "Yes, on the " + " ".join(words[: i % 7 + 1]) + "."}]
        yield {"messages": talk}


def cookbook(path, log):
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=NAME, renderer_name="qwen3_instruct", max_length=60,
        batch_size=SIZES["batch"])
    builder = FromConversationFileBuilder(common_config=common, file_path=path,
                                          test_size=SIZES["test"])
    config = train.Config(log_path=log, model_name=NAME, recipe_name="conformance",
                          renderer_name="qwen3_instruct", dataset_builder=builder,
                          num_epochs=SIZES["epochs"], **SETTINGS)
    asyncio.run(train.main(config))
    return builder


def ours(path, log, *more):
    command = [f"{TOOLS}/tinker", "train", "sft", "-m", NAME, "--tokenizer", MODEL, "--data", path,
               "--out", log, "--renderer", "qwen3_instruct", "--max-length", "60", "--on-truncate", "cut",
               "--test-size", str(SIZES["test"]), "--batch-size", str(SIZES["batch"]),
               "--epochs", str(SIZES["epochs"]), "--lr", str(SETTINGS["learning_rate"]),
               "--rank", str(SETTINGS["lora_rank"]), "--save-every", str(SETTINGS["save_every"]),
               "--eval-every", str(SETTINGS["eval_every"]), *more]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)


def lines(log, name):
    with open(os.path.join(log, name)) as f:
        return [json.loads(line) for line in f]


def same_data(path, builder):
    got = [json.loads(line) for line in subprocess.run(
        [f"{TOOLS}/tools/rows-conform", MODEL, "qwen3_instruct", path, str(SIZES["test"]),
         str(SIZES["batch"]), str(SIZES["epochs"]), "60"],
        capture_output=True, text=True, check=True).stdout.splitlines()]
    train, test = builder()
    want = []
    for b in range(len(test)):
        want += [(-1, 0, d) for d in test.get_batch(b)]
    for e in range(SIZES["epochs"]):
        train.set_epoch(seed=e)
        for b in range(len(train)):
            want += [(e, b, d) for d in train.get_batch(b)]
    differ = 0
    for g, (e, b, d) in zip(got, want):
        inputs = {k: v.tolist() for k, v in d.loss_fn_inputs.items()}
        weights = numpy.array(g["weights"], numpy.float32).tolist()  # read as doubles
        differ += (g["epoch"], g["batch"], g["input"], g["target_tokens"], weights) != (
            e, b, d.model_input.to_ints(), inputs["target_tokens"], inputs["weights"])
    check(len(got) == len(want) and differ == 0,
          f"ids and weights of {len(want)} examples are equal, in order", f"{differ} differ")


def same_steps(mine, theirs):
    a, b = lines(mine, "metrics.jsonl"), lines(theirs, "metrics.jsonl")
    check(len(a) == len(b) == 8, "both have eight steps", f"{len(a)} {len(b)}")
    worst = 0.0
    for x, y in zip(a, b):
        for key in ("train_mean_nll", "train_mean_bpb", "test/nll", "test/bpb"):
            if key in y:
                worst = max(worst, abs(x[key] - y[key]))
    print(f"# figure: largest difference of a loss {worst:.2e}")
    check(worst < 1e-5, "losses of every step and evaluation agree to 1e-5", str(worst))
    for key in ("step", "epoch", "progress", "learning_rate", "num_sequences", "num_tokens"):
        check([x[key] for x in a] == [y[key] for y in b], f"{key} is equal at every step",
              f"{[x[key] for x in a]} {[y[key] for y in b]}")
    def keys(steps, own=frozenset()):
        return [{k for k in s if not k.startswith("time/")} - own for s in steps]
    check(keys(a, OWN) == keys(b), "the keys of metrics.jsonl are equal",
          f"{keys(a, OWN)[0] ^ keys(b)[0]}")


def same_records(mine, theirs):
    a, b = lines(mine, "checkpoints.jsonl"), lines(theirs, "checkpoints.jsonl")
    def places(records):
        return [(r["name"], r["batch"], r.get("epoch")) for r in records]
    check(places(a) == places(b), "checkpoints have equal names and places",
          f"{places(a)} {places(b)}")
    with open(os.path.join(mine, "config.json")) as f, open(os.path.join(theirs, "config.json")) as g:
        missing = set(json.load(g)) - set(json.load(f))
    check(not missing, "config.json has the cookbook's keys", str(missing))


def main(root):
    path = os.path.join(root, "mine.jsonl")
    write_lines(path, rows())
    theirs, mine = os.path.join(root, "theirs"), os.path.join(root, "mine")
    builder = cookbook(path, theirs)
    ours(path, mine)
    same_data(path, builder)
    same_steps(mine, theirs)
    same_records(mine, theirs)


with kitchen() as server:
    attempt("supervised training", lambda: main(server.dir))
done()
