# requirements: sdk-newest
"""The messages that only the newest SDK knows, against its own models: as wire.py does it.

Our server reads the requests and writes the answers, our client the reverse.  A list that may be
missing is never sent empty: the service refuses that."""

import json
import struct
import sys

import pydantic
import wire
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.response_conv import deserialize_sample_response

REQUESTS = [types.CopyWeightsRequest, types.CreateCustomLossRequest, types.FuturesRetrieveRequest,
            types.JoinSamplingSessionRequest, types.SaveWeightsExternalRequest, types.SessionSearchRequest]
ANSWERS = {
    "CopyWeightsResponse": types.CopyWeightsResponse,
    "CreateCustomLossResponse": types.CreateCustomLossResponse,
    "JoinSamplingSessionResponse": types.JoinSamplingSessionResponse,
    "ExternalWeightsUrlsResponse": types.ExternalWeightsUrlsResponse,
    "SaveWeightsExternalResponse": types.SaveWeightsExternalResponse,
    "CheckpointStorageUsageResponse": types.CurrentCheckpointStorageUsageResponse,
    "SessionSearchResponse": types.SessionSearchResponse,
    "BillingUsageResponse": types.BillingUsageResponse,
    "AuditLogResponse": types.AuditLogResponse,
    "GetServerCapabilitiesResponse": types.GetServerCapabilitiesResponse,
    "GetSessionResponse": types.GetSessionResponse,
    "Checkpoint": types.Checkpoint,
}
KEPT_AS_SENT = {types.CreateCustomLossRequest}  # the graph is text for the wire: empty lists stay
wire.SPECIAL["limit"] = lambda: wire.rng.randrange(1, 201)


def meaning(value):
    """A document without what is empty, at any depth."""
    if isinstance(value, dict):
        pruned = {k: meaning(v) for k, v in value.items()}
        return {k: v for k, v in pruned.items() if v not in (None, [], {})}
    return [meaning(v) for v in value] if isinstance(value, list) else value


def has_empty_list(value):
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return value == [] or any(map(has_empty_list, children))


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
        elif direction == "request" and (
                meaning(json.loads(ours)) != meaning(body)
                or has_empty_list(json.loads(ours)) and cls not in KEPT_AS_SENT):
            problems.append(f"{wire.dumps(body)} became {ours}")
        elif direction == "answer":
            written = {k: v for k, v in json.loads(ours).items() if k != "type"}
            cls.model_validate(written)  # the SDK reads it
            wanted = json.loads(wire.in_utc(wire.dumps({k: v for k, v in body.items() if k != "type"})))
            if meaning(json.loads(wire.in_utc(wire.dumps(written)))) != meaning(wanted):
                problems.append(f"{wire.dumps(body)} became {ours}")
        n += 1
        values += wire.leaves(body)
    if n < 20:
        problems.append(f"only {n} cases")
    wire.table.append((name, direction, n, values))
    wire.report(f"{direction} {name}", problems)


def make_rivals(n, k):
    """TopkLogprobs; the last row is full: the list view cannot tell a narrower matrix."""
    top = pb.TopkLogprobs(k=k, length=n)
    ids, values = [], []
    for row in range(n):
        used = k if row == n - 1 else wire.rng.randrange(k + 1)
        ids += [wire.rng.randrange(1, 99) for _ in range(used)] + [0] * (k - used)
        values += wire.float32s(used) + [-99999.0] * (k - used)
    top.token_ids, top.logprobs = wire.i32(ids), wire.f32(values)
    return top


def rivals_view(answer):
    tops = [q.topk_logprobs_np for q in deserialize_sample_response(answer).sequences]
    return [top and (top.token_ids.tolist(), top.logprobs.tolist()) for top in tops]


def check_rivals():
    """The likeliest tokens at sampled positions, in protobuf and in JSON, there and back."""
    problems, values = [], 0
    for _ in range(200):
        message = pb.SampleResponse()
        for _ in range(wire.rng.randrange(1, 4)):
            n = wire.rng.randrange(1, 5)
            seq = message.sequences.add(tokens=wire.i32(range(n)), logprobs=wire.f32(wire.float32s(n)))
            if wire.rng.random() < 0.7:
                seq.topk_sampled_logprobs.CopyFrom(make_rivals(n, wire.rng.randrange(1, 5)))
                values += 2 * len(seq.topk_sampled_logprobs.token_ids) // 4
        theirs = message.SerializeToString()
        ok, ours = wire.tool.ask("again-proto", "SampleResponse", theirs.hex())
        if not ok or rivals_view(bytes.fromhex(ours)) != rivals_view(theirs):
            problems.append(f"protobuf {message}: {ours}")
        ok, text = wire.tool.ask("from-proto", "SampleResponse", theirs.hex())
        lists = [q.topk_logprobs for q in deserialize_sample_response(theirs).sequences]
        told = [q.get("topk_logprobs") for q in json.loads(text)["sequences"]] if ok else text
        if wire.as_float32(told) != wire.as_float32([r and [p and [list(x) for x in p] for p in r] for r in lists]):
            problems.append(f"JSON {lists}: {text}")
        ok, ours = wire.tool.ask("to-proto", "SampleResponse", text)
        if not ok or rivals_view(bytes.fromhex(ours)) != rivals_view(theirs):
            problems.append(f"from JSON {text}: {ours}")
    wire.table.append(("SampledSequence", "protobuf", 200, values))
    wire.report("protobuf and JSON topk_sampled_logprobs", problems)


def make_tensor(rows, k, integers=False):
    """A Tensor of a sample, dense or sparse."""
    t = pb.Tensor(dtype=pb.DTYPE_INT64 if integers else pb.DTYPE_FLOAT32, shape=[rows, k])
    if not integers and wire.rng.random() < 0.5:
        cells = [[j for j in range(k) if wire.rng.random() < 0.4] for _ in range(rows)]
        crow = [sum(map(len, cells[:i])) for i in range(rows + 1)]
        t.sparse_csr.values = wire.f32(wire.float32s(crow[-1]))
        t.sparse_csr.crow_indices = struct.pack(f"<{rows + 1}q", *crow)
        t.sparse_csr.col_indices = struct.pack(f"<{crow[-1]}q", *sum(cells, []))
    elif integers:
        t.dense = struct.pack(f"<{rows * k}q", *[wire.rng.randrange(1 << 40) for _ in range(rows * k)])
    else:
        t.dense = wire.f32(wire.float32s(rows * k))
    return t


def tensors_view(answer):
    sample = deserialize_sample_response(answer)
    alts = sample.prompt_alt_tokens
    return [t and (list(t.data), t.dtype, list(t.shape), t.sparse_crow_indices, t.sparse_col_indices)
            for t in (sample.target_prompt_logprobs, alts and alts.tokens, alts and alts.logprobs)]


def check_prompt_tensors():
    """What is told of a prompt beside its own tokens, in protobuf and in JSON, there and back."""
    problems = []
    for _ in range(200):
        message, rows, k = pb.SampleResponse(), wire.rng.randrange(1, 5), wire.rng.randrange(1, 4)
        message.sequences.add(tokens=wire.i32([1]))
        if wire.rng.random() < 0.7:
            message.target_prompt_logprobs.CopyFrom(make_tensor(rows, k))
        if wire.rng.random() < 0.7:
            message.prompt_alt_tokens.tokens.CopyFrom(make_tensor(rows, k, True))
            message.prompt_alt_tokens.logprobs.CopyFrom(make_tensor(rows, k))
        theirs = message.SerializeToString()
        ok, ours = wire.tool.ask("again-proto", "SampleResponse", theirs.hex())
        if not ok or tensors_view(bytes.fromhex(ours)) != tensors_view(theirs):
            problems.append(f"protobuf {message}: {ours}")
        ok, text = wire.tool.ask("from-proto", "SampleResponse", theirs.hex())
        ok, ours = wire.tool.ask("to-proto", "SampleResponse", text) if ok else (ok, text)
        if not ok or tensors_view(bytes.fromhex(ours)) != tensors_view(theirs):
            problems.append(f"JSON {text}: {ours}")
    wire.table.append(("SampleResponse", "protobuf", 200, 0))
    wire.report("protobuf and JSON target_prompt_logprobs and prompt_alt_tokens", problems)


def main():
    for cls in REQUESTS:
        check("request", "strict", cls.__name__, cls)
    for name, cls in ANSWERS.items():
        check("answer", "lenient", name, cls)
    check_rivals()
    check_prompt_tensors()
    for name, direction, n, values in wire.table:
        print(f"# table {name:32} {direction:9} {n:6} cases {values:8} values")
    print(f"1..{wire.count}")
    return wire.failed > 0


if __name__ == "__main__":
    sys.exit(main())
