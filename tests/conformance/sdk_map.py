# requirements: sdk-map
"""Every public class, method, parameter and type of the SDK has its place in sdk_map.tsv, which says what it
is here: names of our headers, a type of docs/schema.json, or words of a line of docs/migration.md that tells
why not.  `sdk_map.py report` prints what the installed SDK has and the table has not: see `make newest`."""

import glob
import inspect
import json
import re
import sys
from pathlib import Path

import tinker
import tinker.types

root = Path(__file__).resolve().parents[2]
table = dict(line.split("\t") for line in (root / "tests/conformance/sdk_map.tsv").read_text().splitlines())


def class_names(cls, prefix):
    """The class, its methods and properties, and the parameters of methods."""
    yield prefix
    if prefix.startswith("Backcompat"):  # wrappers that forward every method of a client
        return
    for name, _ in inspect.getmembers(cls):
        owner = next((k for k in cls.__mro__ if name in k.__dict__), None)
        # What comes from pydantic, httpx or the standard library is not the SDK's.
        if name.startswith("_") or name.startswith("model_") or owner is None or not owner.__module__.startswith("tinker"):
            continue
        member = inspect.getattr_static(cls, name)
        member = getattr(member, "__func__", member)
        if isinstance(member, property) or callable(member):
            yield f"{prefix}.{name}"
        if not isinstance(member, property) and callable(member):
            for parameter in inspect.signature(member).parameters:
                if parameter not in ("self", "cls"):
                    yield f"{prefix}.{name}({parameter})"


def public_names():
    for name in dir(tinker):  # some modules load when they are asked for
        value = getattr(tinker, name)
        if not name.startswith("_"):
            yield from class_names(value, name) if inspect.isclass(value) else [name]
    for name in dir(tinker.types):
        value = getattr(tinker.types, name)
        if name.startswith("_") or name == "annotations" or inspect.ismodule(value):
            continue
        if inspect.isclass(value) and value.__module__.startswith("tinker"):
            yield from class_names(value, name if hasattr(tinker, name) else f"types.{name}")
        else:
            yield f"types.{name}"


names = set(public_names())
if sys.argv[1:] == ["report"]:
    print(f"tinker {tinker.__version__}: {len(names)} public names")
    for name in sorted(names - table.keys()):
        print(f"  new: {name}")
    for name in sorted(table.keys() - names):
        print(f"  gone: {name}")
    if names == table.keys():
        print("  nothing that tests/conformance/sdk_map.tsv has not")
    sys.exit(0)

count = 0


def tap(name, wrong):
    global count
    count += 1
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}")
    for line in sorted(wrong)[:30]:
        print(f"# {line}")


headers = " ".join(Path(f).read_text() for f in glob.glob(str(root / "include/tinker/**/*.h"), recursive=True))
words = set(re.findall(r"\w+", headers))
schema = json.loads((root / "docs/schema.json").read_text())["$defs"]
migration = (root / "docs/migration.md").read_text()

tap(f"tinker {tinker.__version__} has {len(names)} public names, more than 400", [] if len(names) > 400 else ["too few"])
tap("each of them has its place", names - table.keys())
tap("none that has one is gone", table.keys() - names)
kinds = {"migration": [], "schema": [], "headers": []}
for name, place in table.items():
    kind, _, text = place.partition(": ")
    if kind == "migration":
        kinds[kind] += [] if text in migration else [f"{name}: docs/migration.md does not say {text}"]
    elif kind == "schema":
        kinds[kind] += [] if text in schema else [f"{name}: no type {text}"]
    else:
        kinds["headers"] += [f"{name}: no {word}" for word in place.split(", ") if word not in words]
tap("every name of ours is in a header", kinds["headers"])
tap("every type is in docs/schema.json", kinds["schema"])
tap("every other is in docs/migration.md", kinds["migration"])
print(f"1..{count}")
