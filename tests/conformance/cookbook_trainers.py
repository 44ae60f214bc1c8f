# requirements: cookbook
"""The cookbook's own trainers, started as its readers start them, against this server.

Supervised training with an evaluator, reinforcement learning (in step, off policy, and
resumed from its log folder) and DPO, whose loss the SDK computes itself.  Each is
`python -m tinker_cookbook.recipes...` of the installed package in a folder that holds the
model and the data under the names they have on the Hugging Face Hub.
"""

import json
import os
import subprocess
import sys

from _cookbook import NAME, kitchen, write_lines
from _server import attempt, check, done

COMMON = {"model_name": NAME, "renderer_name": "qwen3_instruct"}
ARITHMETIC = {"env": "arithmetic", "max_tokens": 8, "group_size": 8, "groups_per_batch": 16,
              "learning_rate": 1e-3}


def lay_out(root):
    chats = [{"messages": [{"role": "user", "content": f"How many cats are in house {i % 9}?"},
                           {"role": "assistant", "content": str(i % 9)}]} for i in range(256)]
    pairs = [{"chosen": f"\n\nHuman: Is {i % 9} a digit?\n\nAssistant: yes",
              "rejected": f"\n\nHuman: Is {i % 9} a digit?\n\nAssistant: no"} for i in range(64)]
    for split in ("train", "test"):
        write_lines(os.path.join(root, f"HuggingFaceH4/no_robots/{split}.jsonl"), chats)
        write_lines(os.path.join(root, f"Anthropic/hh-rlhf/{split}.jsonl"), pairs)


def train(root, recipe, log, **config):
    """Run a recipe to its end; returns what it logged per step."""
    words = [f"{k}={v}" for k, v in {**config, "log_path": os.path.join(root, log)}.items()]
    run = subprocess.run([sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", *words],
                          capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise RuntimeError(f"{recipe}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    with open(os.path.join(root, log, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def supervised(root):
    steps = train(root, "sl_basic", "sl", model_name=NAME, learning_rate=5e-3, eval_every=1,
                  save_every=2, num_epochs=3)
    nll = [s["test/nll"] for s in steps]
    print("# figure: held-out loss per token " + " ".join(f"{v:.2f}" for v in nll))
    check(len(nll) == 6, "supervised training ran every step")
    check(nll[-1] < 0.5 * nll[0], "the evaluator sees the loss fall", f"{nll}")


def reinforced(root):
    steps = train(root, "math_rl.train", "rl", **COMMON, **ARITHMETIC, max_steps=3)
    drift = [s["optim/kl_sample_train_v1"] for s in steps]
    check(len(steps) == 3, "reinforcement learning ran every step")
    check(drift == [0, 0, 0], "what was sampled has the same probabilities in training, to the bit",
          f"{drift}")
    steps = train(root, "math_rl.train", "rl", **COMMON, **ARITHMETIC, max_steps=5,
                  behavior_if_log_dir_exists="resume")
    check([s["step"] for s in steps] == [0, 1, 2, 3, 4], "it resumes after its last step",
          f"{[s['step'] for s in steps]}")


def off_policy(root):
    steps = train(root, "math_rl.train", "async", **COMMON, **ARITHMETIC, max_steps=4,
                  max_steps_off_policy=2)
    drift = [s["optim/kl_sample_train_v1"] for s in steps]
    print("# figure: drift off policy " + " ".join(f"{v:.3f}" for v in drift))
    check(drift[0] == 0 and max(drift) > 0, "samples of older weights are seen as such", f"{drift}")


def preferences(root):
    steps = train(root, "preference.dpo.train", "dpo", **COMMON, dataset="hhh", batch_size=16,
                  max_steps=4, learning_rate=1e-3, max_length=200)
    loss = [s["dpo_loss"] for s in steps]
    print("# figure: DPO loss " + " ".join(f"{v:.3f}" for v in loss))
    check(abs(loss[0] - 0.693147) < 1e-5, "at first the model is its own reference", f"{loss}")
    check(loss[-1] < 0.5 * loss[0], "the loss falls", f"{loss}")
    check(steps[-1]["accuracy"] == 1, "the chosen answers win")


with kitchen() as server:
    lay_out(server.dir)
    attempt("supervised training", lambda: supervised(server.dir))
    attempt("reinforcement learning", lambda: reinforced(server.dir))
    attempt("off-policy reinforcement learning", lambda: off_policy(server.dir))
    attempt("direct preference optimization", lambda: preferences(server.dir))
done()
