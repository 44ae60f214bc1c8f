# requirements: cookbook
"""`tinker train dpo` beside the cookbook's preference/train_dpo.py: same pairs, seed and batches.

The cookbook does not shuffle a file of comparisons before its first epoch; ours does, so its file
has the rows in the order of that shuffle.
"""

import json
import os
import subprocess

import numpy

from _cookbook import NAME, kitchen, write_lines
from _server import BUILD, attempt, check, done

TINKER = os.path.abspath(os.path.join(BUILD, "tinker"))
MODEL = os.path.abspath("models/tiny")
# Ours beyond those of the cookbook: what the optimizer says.
OWN = {"grad_norm:mean", "learning_rate:mean", "step:max", "clip_coef:mean", "update_norm:mean"}


def comparison(i):
    def say(role, text):
        return [{"role": role, "content": text}]
    return {"comparison": {"prompt_conversation": say("user", f"Is {i} a small number?"),
                           "completion_A": say("assistant", "yes, it is" if i % 2 else "yes"),
                           "completion_B": say("assistant", f"no, {i} is large")},
            "label": "B" if i % 3 == 0 else "A"}


def cookbook(path, log):
    from tinker_cookbook.preference import train_dpo
    from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=NAME, renderer_name="qwen3_instruct", max_length=8192, batch_size=4)
    builder = DPODatasetBuilderFromComparisons(
        common_config=common, comparison_builder=ComparisonBuilderFromJsonl(train_path=path))
    train_dpo.main(train_dpo.Config(
        log_path=log, model_name=NAME, recipe_name="conformance", renderer_name="qwen3_instruct",
        dataset_builder=builder, learning_rate=1e-3, num_epochs=2, lora_rank=8, save_every=2))


def steps(log):
    with open(os.path.join(log, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def main(root):
    rows = [comparison(i) for i in range(12)]
    mine, theirs = os.path.join(root, "mine.jsonl"), os.path.join(root, "theirs.jsonl")
    write_lines(mine, rows)
    write_lines(theirs, [rows[i] for i in numpy.random.default_rng(0).permutation(12)])
    cookbook(theirs, os.path.join(root, "theirs"))
    run = subprocess.run([TINKER, "train", "dpo", "-m", NAME, "--tokenizer", MODEL, "--data", mine,
                          "--renderer", "qwen3_instruct", "--batch-size", "4", "--lr", "1e-3",
                          "--epochs", "2", "--rank", "8", "--save-every", "2",
                          "--out", os.path.join(root, "mine")],
                         capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    a, b = steps(os.path.join(root, "mine")), steps(os.path.join(root, "theirs"))
    check(len(a) == len(b) == 6, "both have six steps", f"{len(a)} {len(b)}")
    check(abs(a[0]["dpo_loss"] - 0.6931472) < 1e-6 and a[0]["accuracy"] == a[0]["margin"] == 0,
          "the first step is undecided")
    worst = max(abs(x[k] - y[k]) for x, y in zip(a, b)
                for k in ("dpo_loss", "accuracy", "margin", "chosen_reward", "rejected_reward",
                          "loss:sum", "surrogate_loss:sum"))
    print(f"# figure: largest difference of a metric {worst:.2e}")
    check(worst < 1e-4, "loss, accuracy, margin and rewards agree to 1e-4 at every step", str(worst))
    for key in ("num_pairs", "num_tokens", "learning_rate", "progress", "epoch"):
        check([x[key] for x in a] == [y[key] for y in b], f"{key} is equal at every step",
              f"{[x[key] for x in a]} {[y[key] for y in b]}")
    def keys(line, own=frozenset()):
        return {k for k in line if not k.startswith("time/") and k != "batch_time"} - own
    missing = keys(b[1]) - keys(a[1]) - {"state_path"}
    more = keys(a[1], OWN) - keys(b[1])
    check(not missing and not more, "the keys of metrics.jsonl are equal", f"{missing} {more}")


with kitchen() as server:
    attempt("preferences", lambda: main(server.dir))
done()
