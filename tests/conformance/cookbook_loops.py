# requirements: cookbook
"""The cookbook's supervised and RL loops, unchanged, against this server, and they improve.

Nothing of the installed package is replaced.  The working directory holds folders named as the
model and the data sets are, so nothing is loaded from a network: the bundled model under
the name of one whose chat format it shares, conversations that end in a boxed digit, and
questions whose only right digit is one of them.  The supervised loop learns to answer in the
form, its state is what the RL loop resumes from, and there the right digit gets more frequent.
"""

import importlib
import json
import os
import random

from _cookbook import NAME, kitchen, write_lines
from _server import attempt, check, done

SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
PREFIX = [  # as the RL loop begins every conversation
    {"role": "user", "content": "How many r's are in strawberry?" + SUFFIX},
    {"role": "assistant", "content":
     "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e "
     "8) r 9) r 10) y. We have r's at positions 3, 8, and 9. \\boxed{3}"},
]
SL_STEPS, SL_BATCH = 24, 16
RL_STEPS, RL_BATCH = 3, 8
RIGHT = 2


def lay_out(root):
    """Folders that stand for what the loops would download."""
    rng = random.Random(1)
    things = ["apples", "boats", "cats", "doors", "eggs", "farms", "goats", "hats"]
    questions = [f"How many {t} did you see?" for t in things]
    write_lines(os.path.join(root, "HuggingFaceH4/no_robots/train.jsonl"), [
        {"messages": PREFIX + [{"role": "user", "content": rng.choice(questions) + SUFFIX},
                               {"role": "assistant", "content": f"\\boxed{{{rng.randint(1, 4)}}}"}]}
        for _ in range(SL_STEPS * SL_BATCH)])
    gsm8k = os.path.join(root, "openai/gsm8k")
    write_lines(os.path.join(gsm8k, "main/train.jsonl"), [
        {"question": rng.choice(questions), "answer": f"Count them.\n#### {RIGHT}"}
        for _ in range(RL_STEPS * RL_BATCH)])
    with open(os.path.join(gsm8k, "README.md"), "w") as f:
        f.write("---\nconfigs:\n- config_name: main\n  data_files: main/train.jsonl\n---\n")


def run(root, loop, **config):
    """Run a loop of the installed package; returns what it logged per step."""
    module = importlib.import_module(f"tinker_cookbook.recipes.{loop}")
    module.main(module.Config(model_name=NAME, log_path=f"{root}/{loop}", **config))
    with open(os.path.join(root, loop, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def supervised(root, server):
    steps = run(root, "sl_loop", base_url=server.url, batch_size=SL_BATCH, lora_rank=16,
                learning_rate=1e-2, train_on_what="last_assistant_message", save_every=0)
    nll = [s["train_mean_nll"] for s in steps]
    print("# figure: supervised loss per token " + " ".join(f"{v:.2f}" for v in nll))
    check(len(nll) == SL_STEPS, "sl_loop ran every step")
    check(nll[2] < 0.9 * nll[0], "the loss falls within 3 steps", f"{nll}")
    check(nll[-1] < 0.3 * nll[0], "and goes on falling", f"{nll}")


def start_from(root):
    """Let the RL loop resume from the state that the supervised loop saved last."""
    with open(os.path.join(root, "sl_loop/checkpoints.jsonl")) as f:
        last = json.loads(f.readlines()[-1])
    write_lines(os.path.join(root, "rl_loop/checkpoints.jsonl"), [
        {"name": "start", "batch": 0, "state_path": last["state_path"]}])


def reinforced(root, server):
    start_from(root)
    # Sampling has no seed here: a step small enough, and groups large enough, that chance
    # (a standard deviation of 0.03) cannot hide the rise (0.15 to 0.24).
    steps = run(root, "rl_loop", base_url=server.url, batch_size=RL_BATCH, group_size=32,
                max_tokens=12, learning_rate=1.5e-3, save_every=0)
    reward = [s["reward/total"] for s in steps]
    print("# figure: mean reward " + " ".join(f"{v:.2f}" for v in reward))
    check(len(reward) == RL_STEPS, "rl_loop ran every step")
    check(0.05 < reward[0] < 0.6, "at first some answers are right", f"{reward}")
    check(reward[2] > reward[0] + 0.08, "the reward rises within 3 steps", f"{reward}")


with kitchen() as server:
    lay_out(server.dir)
    attempt("sl_loop runs", lambda: supervised(server.dir, server))
    attempt("rl_loop runs", lambda: reinforced(server.dir, server))
done()
