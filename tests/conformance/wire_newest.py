# requirements: sdk-newest
"""The messages that only the newest SDK knows, against its own models: as wire.py does it.

Our server reads the requests and writes the answers; our client sends none of them, so an
empty list in place of nothing is the same here."""

import json
import sys

import pydantic
import wire
from tinker import types

REQUESTS = [types.CopyWeightsRequest, types.SaveWeightsExternalRequest, types.SessionSearchRequest]
ANSWERS = {
    "CopyWeightsResponse": types.CopyWeightsResponse,
    "ExternalWeightsUrlsResponse": types.ExternalWeightsUrlsResponse,
    "SaveWeightsExternalResponse": types.SaveWeightsExternalResponse,
    "CheckpointStorageUsageResponse": types.CurrentCheckpointStorageUsageResponse,
}
wire.SPECIAL["limit"] = lambda: wire.rng.randrange(1, 201)


def meaning(value):
    """A document without what is empty, at any depth."""
    if isinstance(value, dict):
        pruned = {k: meaning(v) for k, v in value.items()}
        return {k: v for k, v in pruned.items() if v not in (None, [], {})}
    return [meaning(v) for v in value] if isinstance(value, list) else value


def part_of(small, large):
    """Is everything in the one document in the other?"""
    if isinstance(small, dict):
        return isinstance(large, dict) and all(part_of(v, large.get(k)) for k, v in small.items())
    if isinstance(small, list):
        return len(small) == len(large) and all(map(part_of, small, large))
    return small == large


def cases(cls):
    """Random models; those that the SDK itself refuses do not count."""
    made = []
    for mode in ["least", "most", "most"] + ["some"] * 80:
        try:
            made.append(wire.make_model(cls, mode))
        except pydantic.ValidationError:
            pass
    return made


def check(direction, how, name, cls):
    problems, values, n = [], 0, 0
    for model in cases(cls):
        body = model.model_dump(mode="json", exclude_none=True)
        ok, ours = wire.tool.ask(how, name, wire.dumps(body))
        if not ok:
            problems.append(f"{wire.dumps(body)} was refused: {ours}")
        elif direction == "request" and meaning(json.loads(ours)) != meaning(body):
            problems.append(f"{wire.dumps(body)} became {ours}")
        elif direction == "answer":
            written = {k: v for k, v in json.loads(ours).items() if k != "type"}
            cls.model_validate(written)  # the SDK reads it; what hosted billing adds may be missing
            if not part_of(meaning(written), meaning(body)):
                problems.append(f"{wire.dumps(body)} became {ours}")
        n += 1
        values += wire.leaves(body)
    if n < 20:
        problems.append(f"only {n} cases")
    wire.table.append((name, direction, n, values))
    wire.report(f"{direction} {name}", problems)


def main():
    for cls in REQUESTS:
        check("request", "strict", cls.__name__, cls)
    for name, cls in ANSWERS.items():
        check("answer", "lenient", name, cls)
    for name, direction, n, values in wire.table:
        print(f"# table {name:32} {direction:9} {n:6} cases {values:8} values")
    print(f"1..{wire.count}")
    return wire.failed > 0


if __name__ == "__main__":
    sys.exit(main())
