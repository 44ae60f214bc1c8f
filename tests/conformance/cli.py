# requirements: sdk
"""Our command line beside the official one, on the same server: the same bytes on stdout.

Named differences only: the official program draws its progress label on stdout, and each of
its calls opens a session of its own."""

import os
import re
import subprocess
import sys

import tinker
from tinker import types

from _server import BUILD, MODEL, Server, check, done

OFFICIAL = os.path.join(os.path.dirname(sys.executable), "tinker")
OURS = os.path.join(BUILD, "tinker")
ENV = dict(os.environ, COLUMNS="500", LC_ALL="C.UTF-8", NO_COLOR="1")


def run(program, *args):
    env = dict(ENV, TINKER_BASE_URL=os.environ["TINKER_BASE_URL"],
               TINKER_API_KEY=os.environ["TINKER_API_KEY"])
    p = subprocess.run([program, *args], capture_output=True, text=True, timeout=120, env=env,
                       stdin=subprocess.DEVNULL)
    return p.returncode, p.stdout, p.stderr


def plain(text):
    """Lines without progress labels, trailing blanks and the title's indent, which centring rounds."""
    lines = [line.rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line and not re.match(r"Fetching .* (runs|checkpoints)$", line)]
    return [line.strip() if not line[0] in "┏┃┡│└" else line for line in lines]


def same(name, *args):
    theirs, ours = run(OFFICIAL, *args), run(OURS, *args)
    check(theirs[0] == ours[0] and plain(theirs[1]) == plain(ours[1]), name,
          f"official {theirs}\n# ours {ours}".replace("\\n", "\n# "))


def same_error(name, *args, status=None):
    """The headline on stderr, stdout empty; our exit status says more unless --compat-exit."""
    theirs, ours = run(OFFICIAL, *args), run(OURS, "--compat-exit", *args)
    head = [next((x for x in out.splitlines() if x.startswith("Error: ")), "") for out in
            (theirs[2], ours[2])]
    check(theirs[0] == ours[0] == status and head[0] == head[1] and head[0] != "" and not ours[1], name,
          f"official {theirs}\n# ours {ours}")


with Server() as server:
    for fmt in ("table", "json"):
        same(f"run list of nothing, {fmt}", "--format", fmt, "run", "list")
        same(f"checkpoint list of nothing, {fmt}", "--format", fmt, "checkpoint", "list")
    service = tinker.ServiceClient(user_metadata={"purpose": "täst [bold]"})
    datum = types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3]),
                        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0] * 3})
    paths = []
    for rank in (4, 8):
        training = service.create_lora_training_client(base_model=MODEL, rank=rank)
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(types.AdamParams()).result()
        paths.append(training.save_state("first").result().path)
        paths.append(training.save_weights_for_sampler("second", ttl_seconds=86400 * 3 + 60).result().path)
    run_id = paths[0].split("/")[2]

    for fmt in ("table", "json"):
        f = ("--format", fmt)
        same(f"run list, {fmt}", *f, "run", "list")
        same(f"run list of one, {fmt}", *f, "run", "list", "--limit", "1")
        same(f"run list of all, {fmt}", *f, "run", "list", "--limit", "0")
        same(f"run list with columns, {fmt}", *f, "run", "list", "-c",
             "status, owner,checkpoint,checkpoint_time,id,id")
        same(f"run info, {fmt}", *f, "run", "info", run_id)
        same(f"checkpoint list, {fmt}", *f, "checkpoint", "list")
        same(f"checkpoint list of one, {fmt}", *f, "checkpoint", "list", "--limit", "1")
        same(f"checkpoint list of a run, {fmt}", *f, "checkpoint", "list", "--run-id", run_id)
        for path in paths[:2]:
            same(f"checkpoint info {path.rsplit('/', 2)[1]}, {fmt}", *f, "checkpoint", "info", path)
        same(f"nothing matches, {fmt}", "checkpoint", "delete", "--run-id", run_id, "--before",
             "2020-01-01", "-y")

    same_error("an unknown run", "run", "info", "nope", status=1)
    same_error("a wrong number", "run", "list", "--limit", "abc", status=2)
    same_error("a missing argument", "run", "info", status=2)
    same_error("an unknown command", "run", "lisst", status=2)
    theirs, ours = (run(p, "--format", "xml", "run", "list") for p in (OFFICIAL, OURS))
    check(theirs[0] == ours[0] and "'--format' / '-f': 'xml' is not one of 'table', 'json'" in ours[2],
          "a bad choice", f"{theirs}\n# {ours}")

    code, _, _ = run(OURS, "checkpoint", "publish", paths[0])
    same("published by ours, seen by both", "checkpoint", "info", paths[0])
    run(OFFICIAL, "checkpoint", "unpublish", paths[0])
    same("hidden by the official one, seen by both", "checkpoint", "info", paths[0])
    run(OURS, "checkpoint", "set-ttl", paths[0], "--ttl", "172900")
    same("an expiry set by ours", "checkpoint", "info", paths[0])
    theirs = run(OFFICIAL, "--format", "json", "checkpoint", "delete", "-y", paths[2])
    ours = run(OURS, "--format", "json", "checkpoint", "delete", "-y", paths[3])
    check(theirs[:2] == ours[:2], "delete", f"{theirs}\n# {ours}")
    same("what is left", "--format", "json", "checkpoint", "list")
done()
