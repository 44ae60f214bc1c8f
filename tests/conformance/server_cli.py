# requirements: sdk
"""The official command line against our server: runs and checkpoints."""

import json
import os
import subprocess
import sys
import tempfile

import tinker
from tinker import types

from _server import MODEL, Server, attempt, check, done

CLI = os.path.join(os.path.dirname(sys.executable), "tinker")


def cli(*args, status=0, **more):
    p = subprocess.run([CLI, "--format", "json", *args], capture_output=True, text=True, timeout=120, **more)
    if p.returncode != status:
        raise RuntimeError(f"tinker {' '.join(args)}: exit {p.returncode}: {p.stderr}")
    return json.loads(p.stdout) if p.stdout.strip().startswith(("{", "[")) else p.stdout


def has(*command):
    return subprocess.run([CLI, *command, "--help"], capture_output=True, timeout=120).returncode == 0


def download(what, path, files):
    with tempfile.TemporaryDirectory() as d:
        cli("checkpoint", "download", path, "-o", d)
        found = {f for _, _, files in os.walk(d) for f in files}
        check(files <= found, f"checkpoint download of {what}", f"{found}")


def keys():
    """Log in with a key that the server knows, and not with another one."""
    with tempfile.TemporaryDirectory() as home, Server("--api-key", "tml-right"):
        env = {**os.environ, "HOME": home}
        env.pop("TINKER_API_KEY")
        attempt("auth login with a wrong key", lambda: cli("auth", "login", status=1, env=env, input="tml-wrong\n"))
        attempt("auth login", lambda: "Logged in" in cli("auth", "login", env=env, input="tml-right\n"))
        attempt("auth status", lambda: "accessible: yes" in cli("auth", "status", env=env))
        attempt("auth logout", lambda: "Removed credential" in cli("auth", "logout", env=env))


with Server() as server:
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=4)
    datum = types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3]),
                        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0] * 3})
    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams()).result()
    state = training.save_state("first").result().path
    weights = training.save_weights_for_sampler("second").result().path
    run = state.split("/")[2]

    attempt("run list", lambda: run in json.dumps(cli("run", "list")))
    attempt("run info", lambda: cli("run", "info", run)["training_run_id"] == run)
    attempt("checkpoint list", lambda: len(cli("checkpoint", "list")["checkpoints"]) == 2)
    attempt("checkpoint list of a run",
            lambda: len(cli("checkpoint", "list", "--run-id", run)["checkpoints"]) == 2)
    attempt("checkpoint info", lambda: cli("checkpoint", "info", state)["size_bytes"] > 0)
    cli("checkpoint", "publish", state)
    attempt("checkpoint publish", lambda: cli("checkpoint", "info", state)["public"] is True)
    cli("checkpoint", "unpublish", state)
    attempt("checkpoint unpublish", lambda: cli("checkpoint", "info", state)["public"] is False)
    cli("checkpoint", "set-ttl", state, "--ttl", "3600")
    attempt("checkpoint set-ttl", lambda: cli("checkpoint", "info", state)["expires_at"] is not None)
    cli("checkpoint", "set-ttl", state, "--remove")
    attempt("checkpoint set-ttl --remove",
            lambda: cli("checkpoint", "info", state)["expires_at"] is None)
    adapter = {"adapter_config.json", "adapter_model.safetensors"}
    # Newer releases refuse to download sampler weights, and have a third kind instead.
    if hasattr(training, "save_weights_external"):
        external = training.save_weights_external("third").result().path
        download("external weights", external, adapter)
        download("training state", state, adapter)
        cli("checkpoint", "delete", "-y", external)
    else:
        download("sampler weights", weights, adapter | {"checkpoint_complete"})
        download("training state", state, adapter | {"checkpoint_complete", "optimizer.safetensors"})
    cli("checkpoint", "delete", "-y", weights)
    attempt("checkpoint delete", lambda: len(cli("checkpoint", "list")["checkpoints"]) == 1)
    attempt("what is gone is not found", lambda: cli("checkpoint", "info", weights, status=1) == "")
    attempt("session export-trace", lambda: "http" in str(
        cli("session", "export-trace", service.holder.get_session_id(), "--url-only")))
    if has("model"):
        attempt("model list", lambda: MODEL in json.dumps(cli("model", "list")))
    if has("billing", "usage"):
        attempt("billing usage", lambda: cli("billing", "usage", "2026-01-01T00:00:00Z",
                                             "2026-01-02T00:00:00Z")["data"] == [])
    if has("billing", "checkpoint-storage"):
        attempt("billing checkpoint-storage", lambda: sum(
            d["checkpoint_count"] for d in cli("billing", "checkpoint-storage")["data"]) == 1)
if has("auth"):
    keys()
done()
