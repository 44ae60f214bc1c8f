# requirements: cookbook
"""`tinker train rl` beside the cookbook's rl/train.py: same prompts, order, seeds, rewards.

The cookbook samples without seeds.  Its completer is wrapped here to send those that ours sends
with --sample-mode each: (iteration * groups + group) * group_size + answer.
"""

import asyncio
import contextvars
import dataclasses
import json
import os
import subprocess

import numpy

from _cookbook import NAME, kitchen, write_lines
from _server import BUILD, attempt, check, done

TINKER = os.path.abspath(os.path.join(BUILD, "tinker"))
MODEL = os.path.abspath("models/tiny")
ROWS, GROUPS, GROUP, EPOCHS, TOKENS = 6, 3, 4, 2, 12
# Ours beyond those of the cookbook.
OWN = {"env/all/groups_dropped", "grader/contains", "optim/kl_sample_train_k3"}
SEED = contextvars.ContextVar("seed")


def question(i):
    return ["Tell me a story.", "What is 3 plus 4?", "Who are you?", "Where does Anna live?",
            "What color is the grass?", "Name a number."][i]


def seeded():
    """Send SEED with each sample; the environment sets it in the task that then samples."""
    import tinker
    from tinker_cookbook import completers

    real = tinker.SamplingClient.sample_async

    async def sample_async(self, prompt, num_samples, sampling_params, **more):
        if SEED.get(None) is not None:
            sampling_params = sampling_params.model_copy(update={"seed": SEED.get()})
        return await real(self, prompt=prompt, num_samples=num_samples,
                          sampling_params=sampling_params, **more)

    completers.tinker.SamplingClient.sample_async = sample_async


def dataset_builder(order, answers):
    """Batches of GROUPS prompts in the given order; what is said goes into answers[i, p, g]."""
    import chz
    from tinker_cookbook import renderers
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    renderer = renderers.get_renderer("qwen3_instruct", get_tokenizer(NAME))

    class Question(ProblemEnv):
        def __init__(self, row, at):
            super().__init__(renderer)
            self.row, self.at = row, at

        def get_question(self):
            return question(self.row)

        def get_reference_answer(self):
            return "e"

        def check_answer(self, text):
            answers[self.at] = text
            return "e" in text

        def check_format(self, text):
            return True

        async def initial_observation(self):
            i, p, g = self.at
            SEED.set((i * GROUPS + p) * GROUP + g)
            return await super().initial_observation()

    @dataclasses.dataclass(frozen=True)
    class Builder(ProblemGroupBuilder):
        async def make_envs(self):
            row, i, p = self.env_thunk()
            return [Question(row, (i, p, g)) for g in range(GROUP)]

    class Questions(RLDataset):
        def get_batch(self, i):
            rows = order[i * GROUPS:(i + 1) * GROUPS]
            return [Builder(env_thunk=lambda row=row, p=p: (int(row), i, p), num_envs=GROUP)
                    for p, row in enumerate(rows)]

        def __len__(self):
            return len(order) // GROUPS

    @chz.chz
    class QuestionsBuilder(RLDatasetBuilder):
        async def __call__(self):
            return Questions(), None

    return QuestionsBuilder()


def cookbook(log, order, answers, **settings):
    from tinker_cookbook.rl import train

    asyncio.run(train.main(train.Config(
        log_path=log, model_name=NAME, recipe_name="conformance", renderer_name="qwen3_instruct",
        dataset_builder=dataset_builder(order, answers), learning_rate=1e-3, max_tokens=TOKENS,
        lora_rank=8, save_every=2, eval_every=0, num_groups_to_log=0, **settings)))


def lines(*path):
    with open(os.path.join(*path)) as f:
        return [json.loads(line) for line in f]


def keys(line, own=frozenset()):
    return {k for k in line if not k.startswith("time/") and not k.startswith("env/problems/")} - own


def said(log, iterations):
    """The answers of our run by iteration, group and place."""
    out = {}
    for i in range(iterations):
        for x in lines(log, f"iteration_{i:06d}", "train_rollout_summaries.jsonl"):
            out[i, x["group_idx"], x["traj_idx"]] = x["steps"][0]["logs"]["response"]
    return out


def beside(root, name, options, kept=True, **settings):
    """Both run; their metrics line by line.  kept: groups with one reward are trained too."""
    log, theirs, answers = os.path.join(root, name), os.path.join(root, name + "-theirs"), {}
    order = numpy.concatenate([numpy.random.default_rng(e).permutation(ROWS) for e in range(EPOCHS)])
    cookbook(theirs, order, answers, remove_constant_reward_groups=not kept, **settings)
    command = [TINKER, "train", "rl", "-m", NAME, "--tokenizer", MODEL, "--renderer",
               "qwen3_instruct", "--data", os.path.join(root, "questions.jsonl"), "--grader",
               "contains", "--format-coef", "0.1", "--groups", str(GROUPS), "--group-size",
               str(GROUP), "--epochs", str(EPOCHS), "--max-tokens", str(TOKENS), "--lr", "1e-3",
               "--rank", "8", "--save-every", "2", "--sample-mode", "each", "--out", log]
    run = subprocess.run(command + options + ["--keep-constant-groups"] * kept,
                         capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    a, b = lines(log, "metrics.jsonl"), lines(theirs, "metrics.jsonl")
    count = ROWS * EPOCHS // GROUPS
    check(len(a) == len(b) == count, f"{name}: both have {count} iterations", f"{len(a)} {len(b)}")
    check(len(answers) == count * GROUPS * GROUP and said(log, count) == answers,
          f"{name}: every sampled answer is equal", f"{said(log, count)} {answers}")
    rewards = [[x["total_reward"] for i in range(count)
                for x in lines(d, f"iteration_{i:06d}", "train_rollout_summaries.jsonl")]
               for d in (log, theirs)]
    check(rewards[0] == rewards[1] and len(set(rewards[0])) > 1, f"{name}: and its reward",
          f"{rewards}")
    compared = [k for k in b[0] if k in keys(b[0]) and (kept or not k.startswith("env/"))]
    worst = max((abs(x[k] - y[k]) / max(1, abs(y[k])), k) for x, y in zip(a, b)
                for k in compared if k in x)
    print(f"# figure: {name}: largest difference of a metric {worst[0]:.1e}, {worst[1]}")
    check(worst[0] < 1e-5, f"{name}: all {len(compared)} metrics agree to 1e-5 in each iteration",
          str(worst))
    missing, more = keys(b[0]) - keys(a[0]), keys(a[0], OWN) - keys(b[0])
    check(not missing and not more, f"{name}: the keys of metrics.jsonl are equal",
          f"{missing} {more}")
    # The cookbook saves after the last step what it then saves again as "final".
    saved = [[(x["name"], x["batch"]) for x in lines(d, "checkpoints.jsonl")
              if x["batch"] < count or x["name"] == "final"] for d in (log, theirs)]
    check(saved[0] == saved[1], f"{name}: checkpoints have the same names and places", f"{saved}")


def main(root):
    from tinker_cookbook.rl.train import KLReferenceConfig

    seeded()
    write_lines(os.path.join(root, "questions.jsonl"),
                [{"question": question(i), "answer": "e"} for i in range(ROWS)])
    beside(root, "plain", [])
    beside(root, "dropping", [], kept=False)
    beside(root, "penalized", ["--kl", "0.1", "--kl-discount", "0.9", "--substeps", "2", "--post-kl"],
           num_substeps=2, kl_penalty_coef=0.1, kl_discount_factor=0.9, compute_post_kl=True,
           kl_reference_config=KLReferenceConfig(base_model=NAME))
    beside(root, "ppo", ["--loss", "ppo", "--loss-config", "clip_low_threshold=0.9"],
           loss_fn="ppo", loss_fn_config={"clip_low_threshold": 0.9})


with kitchen() as server:
    attempt("rewards", lambda: main(server.dir))
done()
