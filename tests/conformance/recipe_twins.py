# requirements: cookbook
"""The short examples beside their Python twins: the same job, the same numbers, how many lines.

examples/NAME.c uses <tinker/recipe.h>, examples/python/NAME.py the official SDK and the cookbook.
Both talk to the same server, whose adapters begin alike.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile

from _cookbook import NAME
from _server import BUILD, attempt, check, done

ROOT = os.getcwd()
EXAMPLES = os.path.abspath(os.path.join(BUILD, "examples"))
DATA = os.path.abspath("examples/data/greetings.jsonl")
# Lines that a program in C may have.
LIMITS = {"sft_file": 35, "grpo": 50, "sample_1000": 25}


@contextlib.contextmanager
def one_model():
    """A server with a single model, which programs need not name, in a folder of its own."""
    tinker, model = os.path.abspath(os.path.join(BUILD, "tinker")), os.path.abspath("models/tiny")
    with tempfile.TemporaryDirectory(prefix="tinker-twins.") as root:
        os.makedirs(os.path.join(root, os.path.dirname(NAME)))
        os.symlink(model, os.path.join(root, NAME))
        with open(os.path.join(root, "log"), "wb") as log:
            process = subprocess.Popen(
                [tinker, "serve", "--model", f"{NAME}={model}", "--listen", "127.0.0.1:0",
                 "--data-dir", os.path.join(root, "data"), "--default-lora-seed", "1"],
                stdout=subprocess.PIPE, stderr=log)
        url = process.stdout.readline().decode().strip().split("=", 1)[-1]
        os.environ.update(TINKER_BASE_URL=url, TINKER_API_KEY="tml-dummy", TINKER_TELEMETRY="0",
                          HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                          HF_HOME=os.path.join(root, "hf"))
        os.chdir(root)
        try:
            yield
        finally:
            os.chdir(ROOT)
            process.terminate()
            process.wait(timeout=30)


def length(path):
    with open(path) as f:
        return len(f.readlines())


def output(command):
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise RuntimeError(run.stdout[-1000:] + run.stderr[-2000:])
    return run.stdout


def numbers(text, word):
    return [float(v) for v in re.findall(word + r" (-?[0-9.]+)", text)]


def pair(name, *arguments):
    c = output([f"{EXAMPLES}/{name}", *arguments])
    python = output([sys.executable, f"{ROOT}/examples/python/{name}.py", *arguments, NAME])
    lines = length(f"{ROOT}/examples/{name}.c")
    print(f"# figure: {name} {lines} lines of C, {length(f'{ROOT}/examples/python/{name}.py')} of Python")
    check(lines <= LIMITS[name], f"{name}.c has at most {LIMITS[name]} lines", str(lines))
    return c, python


def same(name, word, count, *arguments):
    c, python = pair(name, *arguments)
    a, b = numbers(c, word), numbers(python, word)
    worst = max((abs(x - y) for x, y in zip(a, b)), default=1)
    check(len(a) == len(b) == count and worst < 1e-4,
          f"{name}: {count} numbers agree to 1e-4", f"{a} {b}")


def texts():
    c, python = pair("sample_1000")
    asked = re.findall(r"^What comes after \d+\?\t", c, re.MULTILINE)  # an answer may have more than one line
    check(len(asked) == 1000 and c == python, "sample_1000: a thousand answers are equal",
          f"{c[:300]} {python[:300]}")


with one_model():
    attempt("supervised fine-tuning", lambda: same("sft_file", "loss", 6, DATA))
    attempt("GRPO", lambda: same("grpo", "mean reward", 6))
    attempt("a thousand prompts", texts)
done()
