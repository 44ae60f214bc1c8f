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


def cli(*args, status=0):
    p = subprocess.run([CLI, "--format", "json", *args], capture_output=True, text=True, timeout=120)
    if p.returncode != status:
        raise RuntimeError(f"tinker {' '.join(args)}: exit {p.returncode}: {p.stderr}")
    return json.loads(p.stdout) if p.stdout.strip().startswith(("{", "[")) else p.stdout


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
    with tempfile.TemporaryDirectory() as d:
        cli("checkpoint", "download", weights, "-o", d)
        found = {f for _, _, files in os.walk(d) for f in files}
        check({"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= found,
              "checkpoint download", f"{found}")
    cli("checkpoint", "delete", "-y", weights)
    attempt("checkpoint delete", lambda: len(cli("checkpoint", "list")["checkpoints"]) == 1)
    attempt("what is gone is not found", lambda: cli("checkpoint", "info", weights, status=1) == "")
    attempt("session export-trace", lambda: "http" in str(
        cli("session", "export-trace", service.holder.get_session_id(), "--url-only")))
done()
