"""Programs of the cookbook against a server, with nothing loaded from a network.

They look for models and data sets by their names on the Hugging Face Hub, and take a folder of
that name in the working directory instead.  The bundled model stands under the name of one whose
chat format it shares.
"""

import contextlib
import json
import os

from _server import Server

NAME = "Qwen/Qwen3-4B-Instruct-2507"


def write_lines(path, rows):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)


@contextlib.contextmanager
def kitchen():
    """A server, in whose folder the programs are to run; that becomes the working directory."""
    model = os.path.abspath("models/tiny")
    with Server("--model", f"{NAME}={model}", "--default-lora-seed", "1") as server:
        os.makedirs(os.path.join(server.dir, os.path.dirname(NAME)))
        os.symlink(model, os.path.join(server.dir, NAME))
        os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=os.path.join(server.dir, "hf"),
                          TOKENIZERS_PARALLELISM="false")
        os.chdir(server.dir)
        yield server
