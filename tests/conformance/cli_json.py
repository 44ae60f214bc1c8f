# requirements: sdk
"""JSON of every command that the official program has, beside ours: the same bytes on stdout.

Both programs ask the same server: first `tinker serve`, then the scripted service of the shell tests,
which has what the local server never has (billing, pages, odd texts).

Named differences, which are not compared: `version` tells more; `checkpoint delete` that finds nothing
prints JSON, the official program a sentence.  Commands that are in both releases are compared with 0.25,
whose checkpoints have no `user_metadata`; `billing`, `model` and `auth` with the newest, whose columns they have."""

import os
import re
import subprocess
import sys
import tempfile

import tinker
from tinker import types

from _server import BUILD, MODEL, Server, check, done

OFFICIAL = os.path.join(os.path.dirname(sys.executable), "tinker")
OURS = os.path.abspath(os.path.join(BUILD, "tinker"))
SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
compared = []


def run(program, *args, cwd=None, **env):
    p = subprocess.run([program, *args], capture_output=True, timeout=120, cwd=cwd, stdin=subprocess.DEVNULL,
                       env={**os.environ, "LC_ALL": "C.UTF-8", **env})
    return p.returncode, p.stdout, p.stderr


def run_whole(program, *args, **more):
    """The official program sometimes aborts while it ends, its output complete: then once more, thrice at most."""
    for _ in range(3):
        result = run(program, *args, **more)
        if result[0] >= 0:
            break
    return result


def has(*command):
    return run(OFFICIAL, *command, "--help")[0] == 0


def same(name, *args, again=None, files=(), clean=lambda text: text, **env):
    """Run args with both (ours: `again`, when an act cannot be done twice); stdout and files are equal to the byte."""
    if args[:2] not in [c[:2] for c in compared]:
        compared.append(args[:2] if args[1:2] and not args[1].startswith("-") else args[:1])
    results = []
    for program, words in ((OFFICIAL, args), (OURS, again or args)):
        with tempfile.TemporaryDirectory() as d:
            result = run_whole(program, "--format", "json", *words, cwd=d, **env)
            written = []
            for f in files:
                with open(os.path.join(d, f), "rb") as opened:
                    written.append(opened.read())
            results.append((result[0], clean(result[1].replace(d.encode(), b"DIR")), written, result[2]))
    check(results[0][:3] == results[1][:3], name, f"official {results[0]}\n# ours {results[1]}")


NEWEST = has("billing", "checkpoint-storage")


def compare_manage():
    """run, checkpoint and session, with `tinker serve`."""
    same("run list of nothing", "run", "list")
    same("checkpoint list of nothing", "checkpoint", "list")
    service = tinker.ServiceClient(user_metadata={"purpose": "täst [bold] \U0001F600", "quote": '"\\'})
    datum = types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3]),
                        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0] * 3})
    states, weights = [], []
    for rank in (4, 8):
        training = service.create_lora_training_client(base_model=MODEL, rank=rank)
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(types.AdamParams()).result()
        for name in ("first", "second", "third"):
            states.append(training.save_state(name).result().path)
        weights.append(training.save_weights_for_sampler("fourth", ttl_seconds=86400 * 3 + 60).result().path)
    ids = [states[0].split("/")[2], states[3].split("/")[2]]
    for more in ([], ["--limit", "1"], ["--limit", "0"], ["-c", "status,id"]):
        same("run list " + " ".join(more), "run", "list", *more)
    for run_id in ids:
        same("run info", "run", "info", run_id)
        same("checkpoint list --run-id", "checkpoint", "list", "--run-id", run_id)
    for more in ([], ["--limit", "1"], ["--limit", "0"]):
        same("checkpoint list " + " ".join(more), "checkpoint", "list", *more)
    for path in (*states, *weights):
        same("checkpoint info " + path.split("/", 3)[3], "checkpoint", "info", path)
    same("checkpoint publish", "checkpoint", "publish", states[0], again=("checkpoint", "publish", states[3]))
    same("checkpoint info of a public one", "checkpoint", "info", states[3])
    same("checkpoint unpublish", "checkpoint", "unpublish", states[0], again=("checkpoint", "unpublish", states[3]))
    same("checkpoint set-ttl --ttl", "checkpoint", "set-ttl", states[0], "--ttl", "3600")
    same("checkpoint info with an expiry", "checkpoint", "info", states[0])
    same("checkpoint set-ttl --remove", "checkpoint", "set-ttl", states[0], "--remove")
    # Newer releases refuse to download sampler weights.
    same("checkpoint download", "checkpoint", "download", states[0], "-o", "there/")
    same("checkpoint download into .", "checkpoint", "download", states[0])
    same("checkpoint delete of paths", "checkpoint", "delete", "-y", states[0], states[1],
         again=("checkpoint", "delete", "-y", states[3], states[4]))
    same("checkpoint delete of a run", "checkpoint", "delete", "-y", "--run-id", ids[0], "--type", "weights",
         again=("checkpoint", "delete", "-y", "--run-id", ids[1], "--type", "weights"))
    same("what is left", "checkpoint", "list")
    session = service.holder.get_session_id()
    # The address is signed for a moment of its own.
    signed = lambda text: re.sub(rb'("url": ").*(")', rb"\1URL\2", text)
    same("session export-trace --url-only", "session", "export-trace", session, "--url-only", clean=signed)
    same("session export-trace", "session", "export-trace", session, "-o", "here/trace",
         clean=lambda text: re.sub(rb'("file_size_bytes": )\d+', rb"\1N", text))


def compare_newest():
    """What came after 0.25."""
    same("model list", "model", "list")
    same("billing checkpoint-storage", "billing", "checkpoint-storage",
         clean=lambda text: re.sub(rb'"[^"]*_at": "[^"]*"', b"AT", text))
    same("auth status", "auth", "status")


def compare_scripted():
    """The same with the scripted service."""
    same("run list of 250", "run", "list", "--limit", "0")
    if not NEWEST:
        same("run list with texts to escape", "run", "list", TINKER_API_KEY="tml-x-golden")
        same("run info with texts to escape", "run", "info", "golden")
        same("checkpoint list of 2,300", "checkpoint", "list", "--limit", "0")
        same("checkpoint list of all sizes", "checkpoint", "list", "--run-id", "sizes")
        download = ("checkpoint", "download", "tinker://run/weights/plain", "-o", "to")
        same("checkpoint download of an archive", *download, again=(*download, "--format", "tinker"),
             files=("to/run_weights_plain/adapter_config.json", "to/run_weights_plain/adapter_model.safetensors"))
    else:
        day = ("2026-07-13T05:00:00Z", "2026-07-14T00:00:00Z")
        same("billing usage", "billing", "usage", *day)
        same("billing usage of nothing", "billing", "usage", "2020-07-13T05:00:00Z", "2020-07-14T00:00:00Z")
        same("billing usage as CSV", "billing", "usage", *day, "--csv", "a.csv", "--sessions-csv", "b.csv",
             files=("a.csv", "b.csv"))
        same("auth whoami", "auth", "whoami", TINKER_API_KEY="tml-jwt-with")
    same("session export-trace that is ready", "session", "export-trace", "ready", "-o", "t", files=("t",))
    same("session export-trace --url-only of it", "session", "export-trace", "ready", "--url-only")
    same("checkpoint delete", "checkpoint", "delete", "-y", "tinker://run/weights/1", "tinker://run/weights/2")


with Server() as server:
    if NEWEST:
        compare_newest()
    else:
        compare_manage()

with tempfile.TemporaryDirectory() as d:
    mock = subprocess.Popen([sys.executable, os.path.join(SUPPORT, "mock_service.py"), os.path.join(d, "log")],
                            stdout=subprocess.PIPE, text=True)
    os.environ["TINKER_BASE_URL"] = f"http://127.0.0.1:{mock.stdout.readline().strip()}"
    os.environ["TINKER_TELEMETRY"] = "0"
    try:
        compare_scripted()
    finally:
        mock.terminate()
        mock.wait()
print("# table: compared " + ", ".join(sorted({" ".join(c) for c in compared})))
done()
