# requirements: sdk
"""Every JSON and protobuf type of the protocol, against the official SDK's own models.

Requests: what the SDK would send is read by our strict reader and written again; the
text must be the SDK's, byte for byte, and the SDK's model must accept it and be equal.
Answers: what the SDK's models serialize is read by ours and written again; the SDK must
read the same values from it.  Wrong answers: each field is removed or replaced by odd
values, and both sides must agree on whether that is acceptable and what it means.
Protobuf: both ways against the SDK's descriptor and its converters.
"""

import datetime
import enum
import json
import re
import os
import random
import string
import subprocess
import sys
import types as python_types
import typing
import warnings

import numpy as np
import pydantic
from tinker import types
from tinker.lib.public_interfaces.rest_client import _SessionTraceExportPollResponse
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import (
    deserialize_forward_backward_output,
    deserialize_sample_response,
)
from tinker.types.try_again_response import TryAgainResponse

warnings.filterwarnings("ignore")
RANDOM_CASES = 40
PROTO_CASES = 150
SHOWN = 8  # problems per test
rng = random.Random(20250)

# ---- our side --------------------------------------------------------------------------------


class Tool:
    def __init__(self):
        path = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tools", "wire-conform")
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, op, kind="", payload=""):
        self.process.stdin.write(f"{op}\t{kind}\t{payload}\n".encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode()
        if not line:
            sys.exit("Bail out! wire-conform ended")
        status, text = line[:-1].split("\t", 1)
        return status == "ok", text


tool = Tool()

# ---- TAP and the table -----------------------------------------------------------------------

count = failed = 0
table = []


def report(name, problems):
    global count, failed
    count += 1
    failed += bool(problems)
    print(f"{'not ok' if problems else 'ok'} {count} - {name}")
    for text in problems[:SHOWN]:
        print("# " + text.replace("\n", " ")[:600])


def leaves(value):
    """How many values a JSON document holds."""
    if isinstance(value, dict):
        return sum(leaves(v) for v in value.values())
    if isinstance(value, list):
        return sum(leaves(v) for v in value)
    return 1


def dumps(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# ---- values for any model --------------------------------------------------------------------

WORDS = ["", "a", "tinker://r:train:0/weights/x", 'quote " back \\ slash', "zeile\nzwei\t", "日本 ü €", "\U0001f600"]
EVENT_OF = {
    "SessionStartEvent": "SESSION_START",
    "SessionEndEvent": "SESSION_END",
    "UnhandledExceptionEvent": "UNHANDLED_EXCEPTION",
    "GenericEvent": "GENERIC_EVENT",
}


def make_text():
    return rng.choice(WORDS + ["".join(rng.choices(string.printable, k=rng.randrange(20)))])


def make_int():
    return rng.choice([0, 1, 7, -3, 2**31, 2**53 + 1, 2**63 - 1, rng.randrange(10**6)])


def make_float():
    return rng.choice([0.0, 1.0, 0.1, 1e-12, 1e22, -2.5e-300, rng.random(), rng.uniform(-1e6, 1e6)])


def make_time():
    us = rng.choice([0, 0, 1, 345678, 100000])
    t = datetime.datetime(rng.randrange(1970, 2100), rng.randrange(1, 13), rng.randrange(1, 29), 10, 11, 12, us)
    return t.replace(tzinfo=rng.choice([datetime.timezone.utc, datetime.timezone.utc, None]))


def make_free(depth=0):
    kind = rng.randrange(8 if depth < 2 else 6)
    if kind == 6:
        return [make_free(depth + 1) for _ in range(rng.randrange(3))]
    if kind == 7:
        return {make_text(): make_free(depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, make_int(), make_float(), make_text(), "x"][kind]


SPECIAL = {
    "max_tokens": lambda: rng.randrange(1, 10**6),
    "seed": make_int,
    "stop": lambda: rng.choice([[make_text()], [1, 2, 151645], [], ["a", "b"]]),
    "tokens": lambda: [rng.randrange(-5, 2**31) for _ in range(rng.randrange(6))],
}


def make(annotation, mode):
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return make(args[0], mode)
    if origin in (typing.Union, python_types.UnionType):
        options = [a for a in args if a is not type(None)]
        return make(rng.choice(options), mode)
    if origin is typing.Literal:
        return rng.choice(args)
    if origin is list or (origin and origin.__name__ == "Sequence"):
        return [make(args[0], mode) for _ in range(rng.randrange(mode == "most", 4))]
    if origin is dict:
        return {make_text(): make(args[1], mode) for _ in range(rng.randrange(mode == "most", 4))}
    if annotation in (object, typing.Any):
        return make_free()
    if annotation is bool:
        return rng.random() < 0.5
    makers = {str: make_text, int: make_int, float: make_float, datetime.datetime: make_time}
    if annotation in makers:
        return makers[annotation]()
    if annotation is bytes:
        return rng.randbytes(rng.randrange(9))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return rng.choice(list(annotation))
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return make_model(annotation, mode)
    if annotation is pydantic.AwareDatetime:
        return make_time().replace(tzinfo=datetime.timezone.utc)
    raise TypeError(f"no value for {annotation}")


def make_model(cls, mode):
    """mode: "least" (required fields), "most" (all fields), "some" (a random choice)."""
    values = {}
    for name, field in cls.model_fields.items():
        given = field.is_required() or mode == "most" or (mode == "some" and rng.random() < 0.5)
        if not given or name == "type":
            continue
        if name == "event" and cls.__name__ in EVENT_OF:
            values[name] = EVENT_OF[cls.__name__]
        elif name in SPECIAL:
            values[name] = SPECIAL[name]()
        else:
            values[name] = make(field.annotation, mode)
    return cls(**values)


def cases(cls):
    return [make_model(cls, m) for m in ["least", "most", "most"] + ["some"] * RANDOM_CASES]


# ---- which of our types is which of theirs ---------------------------------------------------

REQUESTS = [
    types.ClientConfigRequest, types.CreateSessionRequest, types.SessionHeartbeatRequest,
    types.CreateSamplingSessionRequest, types.CreateModelRequest, types.GetInfoRequest,
    types.UnloadModelRequest, types.OptimStepRequest, types.LoadWeightsRequest,
    types.SaveWeightsRequest, types.SaveWeightsForSamplerRequest, types.SampleRequest,
    types.FutureRetrieveRequest, types.GetBillingUsageRequest, types.TelemetrySendRequest,
    types.LoraConfig, types.AdamParams, types.SamplingParams, types.ModelInput,
]  # fmt: skip
ANSWERS = {
    name: getattr(types, name)
    for name in """ClientConfigResponse ClientDynamicConfigResponse CreateSessionResponse
        SessionHeartbeatResponse CreateSamplingSessionResponse HealthResponse AuthTokenResponse
        GetServerCapabilitiesResponse UntypedAPIFuture CreateModelResponse GetInfoResponse
        UnloadModelResponse OptimStepResponse LoadWeightsResponse SaveWeightsResponse
        WeightsInfoResponse RequestFailedResponse ListSessionsResponse GetSessionResponse
        GetSamplerResponse TrainingRun TrainingRunsResponse CheckpointsListResponse
        CheckpointArchiveUrlResponse AuditLogResponse WhoamiResponse BillingUsageResponse
        TelemetryResponse Checkpoint Cursor""".split()
    if hasattr(types, name)  # wire_newest.py imports this; here the coverage check counts them
}
ANSWERS["SaveWeightsForSamplerResponse"] = types.SaveWeightsForSamplerResponseInternal
ANSWERS["TraceExportResponse"] = _SessionTraceExportPollResponse
ANSWERS["TryAgainResponse"] = TryAgainResponse
# Bodies that the SDK builds by hand, so there is no model to compare with.
HAND_MADE = {
    "Empty": [{}],
    "WeightsInfoRequest": [{"tinker_path": "tinker://r/weights/x"}],
    "TtlRequest": [{"ttl_seconds": 86400}, {"ttl_seconds": None}],
    "ProjectRequest": [{"project_id": "prj-7"}],
    "ErrorResponse": [{"detail": "Model not found"}],
    "CompleteMetadataResponse": [{"status": "complete_metadata", "response_payload_size": 73400320}],
}
# Compared with the SDK's dataclasses and protobuf further down.
ELSEWHERE = {"ForwardBackwardRequest", "ForwardRequest", "ForwardBackwardOutput", "SampleResponse",
             "Datum", "TensorData", "TelemetryEvent"}  # fmt: skip

# Messages that newer SDKs know: the server reads and answers them, wire_newest.py compares.
NEWER = set("""CheckpointSearchRequest CheckpointSearchResponse CopyWeightsRequest CopyWeightsResponse CreateCustomLossRequest CreateCustomLossResponse
    FuturesRetrieveRequest JoinSamplingSessionRequest JoinSamplingSessionResponse
    SaveWeightsExternalRequest SaveWeightsExternalResponse
    ExternalWeightsUrlsResponse SessionSearchRequest SessionSearchResponse FinishSessionRequest
    CheckpointStorageUsageResponse""".split())

# ---- requests --------------------------------------------------------------------------------


def check_request(cls):
    problems, values, n = [], 0, 0
    for model in cases(cls):
        body = model.model_dump(mode="json", exclude_none=True)
        text = dumps(body)
        ok, ours = tool.ask("strict", cls.__name__, text)
        n += 1
        if not ok:
            problems.append(f"{text} was refused: {ours}")
        elif ours != text:
            problems.append(f"wrote {ours} for {text}")
        elif cls.model_validate(json.loads(ours)) != model:
            problems.append(f"the SDK reads something else from {ours}")
        values += leaves(body)
        ok, why = tool.ask("strict", cls.__name__, dumps({**body, "brand_new": 1}))
        forbids = cls.model_config.get("extra") == "forbid"
        if ok == forbids:
            problems.append(f"an unknown key: ours {why}, the SDK {'forbids' if forbids else 'ignores'} it")
    table.append((cls.__name__, "request", n, values))
    report(f"request {cls.__name__}", problems)


def check_hand_made(name, bodies):
    problems = []
    for body in bodies:
        ok, ours = tool.ask("strict", name, dumps(body))
        if not ok or ours != dumps(body):
            problems.append(f"{dumps(body)} became {ours}")
    table.append((name, "by hand", len(bodies), sum(map(leaves, bodies))))
    report(f"hand-made body {name}", problems)


# ---- answers ---------------------------------------------------------------------------------


def same(cls, text, model):
    """Does the SDK read *model* from our text?  We write a type tag of null in full and
    leave a null field out."""
    body = json.loads(text)
    for name in cls.model_fields:
        if getattr(model, name) is None and (name == "type" or name not in body):
            body[name] = None
    return read_by_sdk(cls, body) == (True, model)


def in_utc(text):
    """A time without a zone is read as UTC, and written so."""
    return re.sub(r'"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)"', r'"\1Z"', text)


def in_utc_model(cls, model):
    try:
        return cls.model_validate_json(in_utc(model.model_dump_json()))
    except (ValueError, TypeError):
        return model  # odd values that the SDK holds but does not read again


def check_answer(name, cls):
    problems, values, n = [], 0, 0
    for model in cases(cls):
        as_read = cls.model_validate_json(in_utc(model.model_dump_json()))
        for body in (model.model_dump(mode="json"), model.model_dump(mode="json", exclude_none=True)):
            text = dumps(body)
            for variant in (text, dumps({"brand_new": {"a": [1, None]}, **body})):
                ok, ours = tool.ask("lenient", name, variant)
                if not ok:
                    problems.append(f"{variant} was refused: {ours}")
                elif not same(cls, in_utc(ours), as_read):
                    problems.append(f"{variant} became {ours}")
            n += 1
            values += leaves(body)
    table.append((name, "answer", n, values))
    report(f"answer {name}", problems)


ODD = [None, True, False, 0, 1, 3, -1, 3.0, 3.5, 2**40, 1e30, "", "3", " 3 ", "3.0", "3.5", "+3", "1_000", "x",
       "yes", "OFF", "t", "1", "true", "2026-08-09", "2026-08-09T10:11:12Z", "2026-08-09 10:11:12+02:00",
       "2026-08-09_10:11", "1786270272", "1786270272345", 1786270272, 1786270272345, 1786270272.25,
       "2026-02-30T00:00:00Z", [], {}, [1], ["a"], {"a": "b"}, {"a": 1}, "ok", "training",
       " true", "TRUE ", "007", "1_", "_1", "3.", ".5", "3.0_0", "-0", -0.0, 5e-324, 2**63 - 1, 9007199254740993.0,
       "2026-08-09T10:11:60Z", "2026-08-09T24:00:00Z", "2026-08-09T10:11:12,5-0530", "9999-12-31T23:59:59Z",
       20000000000, 20000000001, -62135596800, 253402300799, 253402300800, 1786270272.0000005, 17862702729258, 177700864938.0625]  # fmt: skip


def read_by_sdk(cls, body):
    try:
        return True, cls.model_validate(body)
    except pydantic.ValidationError as e:
        return False, str(e)


def places(value, path=()):
    """Every place in a JSON document but its root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield path + (key,)
        yield from places(child, path + (key,))


def changed(body, path, odd=None, remove=False):
    copy = json.loads(json.dumps(body))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = odd
    return copy


# Where we differ from the validator on purpose, and why.
def on_purpose(name, path, odd):
    field = path[-1] if isinstance(path[-1], str) else path[-2]
    if "event_info" in path:
        return True  # keys and kinds newer than we are do not make a bill unreadable
    if name == "RequestFailedResponse" and field == "category":
        return True  # any other word reads as "unknown", as the SDK's future does
    if name == "TryAgainResponse" and field == "queue_state":
        return True  # unknown states are tolerated, as the SDK's future does
    if name == "CreateSessionRequest" and field == "user_metadata" and odd == "(removed)":
        return True  # a server does not insist on it
    if name == "TelemetrySendRequest" and field == "process_uuid" and odd == "(removed)":
        return True  # clients before 0.24 have none
    if name == "OptimStepRequest" and field == "adam_params" and isinstance(odd, dict):
        return True  # a server ignores unknown keys
    if name == "OptimStepRequest" and path == ("adam_params",) and odd in ("(removed)", None):
        return True  # newer clients name another optimizer instead
    if "events" in path:
        return True  # the SDK's union has no tag: it reads what fails as another kind of event
    if field in ("tokens", "stop") and isinstance(path[-1], int):
        return not (odd in (3, -1) and type(odd) is int)  # elements: integers of 32 bits only
    if field == "max_tokens" and (odd == "-0" or (type(odd) in (bool, int, float) and odd <= 0)):
        return True  # must be positive
    if field == "stop" and isinstance(odd, str):
        return True  # one text becomes a list of one
    return False


def check_odd(direction, kinds):
    problems, n, purposely = [], 0, 0
    for name, cls in kinds.items():
        body = make_model(cls, "most").model_dump(mode="json", exclude_none=direction == "request")
        for path in places(body):
            for odd in ["(removed)"] + ODD:
                mutated = changed(body, path, odd, odd == "(removed)")
                accepted, model = read_by_sdk(cls, mutated)
                ok, ours = tool.ask("lenient", name, dumps(mutated))
                n += 1
                if on_purpose(name, path, odd):
                    purposely += 1
                elif direction == "answer" and type(odd) is int and odd == -1 and ok == accepted:
                    purposely += 1  # -1 says "unknown" in the structs that answers are read into
                elif ok != accepted or (ok and not same(cls, in_utc(ours), in_utc_model(cls, model))):
                    problems.append(f"{name} {path} {odd!r}: ours {ours}; SDK {model}")
    table.append((f"odd values in a {direction}", direction, n, n))
    print(f"# differences {purposely} of {n} odd values in a {direction} are judged differently on purpose")
    report(f"odd values in a {direction}: both sides agree", problems)


def check_not_finite():
    """A server has no other way to tell a metric that is not finite than a text."""
    problems = []
    for word in ["nan", "NaN", "inf", "-inf", "+Infinity", " infinity ", "-INF", "nan()", "infin", "1e400x", "- inf"]:
        accepted, _ = read_by_sdk(types.OptimStepResponse, {"metrics": {"a": word}})
        # ours is read and then cannot be written
        ok, ours = tool.ask("lenient", "OptimStepResponse", dumps({"metrics": {"a": word}}))
        if ok or ("finite" in ours) != accepted:
            problems.append(f"{word!r}: ours {ours}, SDK {accepted}")
    report("metrics that are not finite", problems)


# ---- training requests: JSON of older SDKs and protobuf ------------------------------------------


def float32s(n):
    return [float(np.float32(rng.choice([0.0, 1.0, -2.5, 0.1, 1e-30, rng.uniform(-9, 9)]))) for _ in range(n)]


def make_tensor():
    """A TensorData and its JSON."""
    kind, dtype = rng.randrange(4), rng.choice(["float32", "int64"])
    crow = col = None
    if kind == 0:
        shape, n = None, rng.randrange(5)
    elif kind == 1:
        n = rng.randrange(5)
        shape = [n]
    elif kind == 2:
        shape = [rng.randrange(3), rng.randrange(1, 4)]
        n = shape[0] * shape[1]
    else:
        shape = [rng.randrange(1, 4), 5]
        rows = [sorted(rng.sample(range(5), rng.randrange(3))) for _ in range(shape[0])]
        crow = [sum(map(len, rows[:i])) for i in range(shape[0] + 1)]
        col = [c for row in rows for c in row]
        n = len(col)
    data = float32s(n) if dtype == "float32" else [rng.choice([0, 5, -1, 2**40, -(2**63)]) for _ in range(n)]
    body = {"data": data, "dtype": dtype, "shape": shape, "sparse_crow_indices": crow, "sparse_col_indices": col}
    body = {k: v for k, v in body.items() if v is not None}
    return types.TensorData(data=data, dtype=dtype, shape=shape, sparse_crow_indices=crow, sparse_col_indices=col), body


def make_chunk():
    return rng.choice([
        lambda: types.EncodedTextChunk(tokens=[rng.randrange(2**31) for _ in range(rng.randrange(4))]),
        lambda: types.ImageChunk(data=rng.randbytes(rng.randrange(1, 9)), format=rng.choice(["png", "jpeg"]),
                                 expected_tokens=rng.choice([None, 0, 64])),
        lambda: types.DmelChunk(dmel=b"\x04\x01" + rng.randbytes(3)),
    ])()  # fmt: skip


def make_training_request():
    data, bodies = [], []
    for _ in range(rng.randrange(1, 4)):
        chunks = [make_chunk() for _ in range(rng.randrange(3))]
        named = {k: make_tensor() for k in rng.sample(["target_tokens", "weights", "logprobs", "ü"], rng.randrange(4))}
        model_input = types.ModelInput(chunks=chunks)
        data.append(types.Datum(model_input=model_input, loss_fn_inputs={k: v[0] for k, v in named.items()}))
        bodies.append({"loss_fn_inputs": {k: v[1] for k, v in named.items()},
                       "model_input": model_input.model_dump(mode="json", exclude_none=True)})  # fmt: skip
    loss = rng.choice(["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"])
    config = rng.choice([None, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}])
    seq_id = rng.randrange(1, 2**31)
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=data, loss_fn=loss, loss_fn_config=config),
        model_id="s:train:0", seq_id=seq_id)  # fmt: skip
    inner = {"data": bodies, "loss_fn": loss}
    if config:
        inner["loss_fn_config"] = config
    return request, inner, seq_id


def as_float32(value):
    """Elements are printed with as many digits as float32 needs."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, list):
        return [as_float32(v) for v in value]
    if isinstance(value, dict):
        return {k: as_float32(v) for k, v in value.items()}
    return value


def same_request(text, body, key):
    ours = json.loads(text)
    config = ours.get(key, {}).get("loss_fn_config")
    return as_float32(ours) == as_float32(body) and config == body[key].get("loss_fn_config")


def check_training_requests():
    problems, values = [], 0
    for i in range(PROTO_CASES):
        request, inner, seq_id = make_training_request()
        message = forward_backward_request_to_proto(request)
        message.forward_only = i % 3 == 0
        name, key = ("ForwardRequest", "forward_input") if message.forward_only else (
            "ForwardBackwardRequest", "forward_backward_input")  # fmt: skip
        body = {key: inner, "model_id": "s:train:0", "seq_id": seq_id}
        values += leaves(body)
        for op, payload in (("again-proto", message.SerializeToString().hex()), ("to-proto", dumps(body))):
            ok, ours = tool.ask(op, name, payload)
            if not ok or pb.ForwardBackwardRequest.FromString(bytes.fromhex(ours)) != message:
                problems.append(f"{op} {dumps(body)}: {ours}")
        ok, ours = tool.ask("from-proto", name, message.SerializeToString().hex())
        if not ok or not same_request(ours, body, key):
            problems.append(f"from-proto {dumps(body)}: {ours}")
        ok, ours = tool.ask("strict", name, dumps(body))
        if not ok or not same_request(ours, body, key):
            problems.append(f"JSON {dumps(body)}: {ours}")
    table.append(("ForwardBackwardRequest", "protobuf", PROTO_CASES, values))
    report("protobuf and JSON ForwardBackwardRequest", problems)


def check_json_mirrors():
    """Datum and TensorData against the SDK's pydantic mirrors of them."""
    from tinker.types._pydantic_types.datum import Datum
    from tinker.types._pydantic_types.tensor_data import TensorData

    problems, values = [], {"Datum": 0, "TensorData": 0}
    for _ in range(PROTO_CASES):
        _, inner, _ = make_training_request()
        _, tensor = make_tensor()
        for cls, body in (("TensorData", tensor), ("Datum", inner["data"][0])):
            model = (Datum if cls == "Datum" else TensorData).model_validate(body)
            text = dumps(model.model_dump(mode="json", exclude_none=True))
            ok, ours = tool.ask("strict", cls, text)
            if not ok or type(model).model_validate(as_float32(json.loads(ours))) != model:
                problems.append(f"{cls} {text}: {ours}")
            values[cls] += leaves(body)
    for cls, n in values.items():
        table.append((cls, "request", PROTO_CASES, n))
    report("JSON Datum and TensorData", problems)


# ---- results ---------------------------------------------------------------------------------


def i32(values):
    return np.asarray(values, dtype=np.int32).tobytes()


def f32(values):
    return np.asarray(values, dtype=np.float32).tobytes()


def make_sample():
    message = pb.SampleResponse()
    for _ in range(rng.randrange(3)):
        n = rng.randrange(4)
        seq = message.sequences.add(stop_reason=rng.randrange(2), tokens=i32([rng.randrange(2**31) for _ in range(n)]))
        if rng.random() < 0.7:
            seq.logprobs = f32(float32s(n))
    n, k = rng.randrange(1, 4), rng.randrange(1, 4)
    if rng.random() < 0.5:
        message.prompt_logprobs = f32([np.nan] + float32s(n - 1))
    if rng.random() < 0.5:
        ids, lps = [], []
        for row in range(n):
            used = 0 if row == 0 else rng.randrange(1, k + 1)
            if row == n - 1 and n > 1:
                used = k  # the list view cannot tell a narrower matrix
            ids += [rng.randrange(1, 99) for _ in range(used)] + [0] * (k - used)
            lps += float32s(used) + [-99999.0] * (k - used)
        message.topk_prompt_logprobs.CopyFrom(pb.TopkPromptLogprobs(token_ids=i32(ids), logprobs=f32(lps), k=k, prompt_length=n))
    message.prompt_cache_hit_tokens = rng.choice([0, 5])
    return message


def sample_view(s):
    def same(a):
        return None if a is None else (a.dtype.str, a.shape, a.tobytes())

    topk = s.topk_prompt_logprobs_np
    return ([(q.stop_reason, same(q.tokens_np), same(q.logprobs_np)) for q in s.sequences],
            same(s.prompt_logprobs_np), topk and (same(topk.token_ids), same(topk.logprobs)),
            s.prompt_cache_hit_tokens)  # fmt: skip


def sample_json(s):
    """The form that SDKs before 0.25 read."""
    body = {"sequences": [], "type": "sample"}
    for q in s.sequences:
        one = {"stop_reason": q.stop_reason, "tokens": q.tokens}
        if q.logprobs is not None:
            one["logprobs"] = q.logprobs
        body["sequences"].append(one)
    if s.prompt_logprobs is not None:
        body["prompt_logprobs"] = s.prompt_logprobs
    if s.topk_prompt_logprobs is not None:
        body["topk_prompt_logprobs"] = [row and [list(p) for p in row] for row in s.topk_prompt_logprobs]
    if s.prompt_cache_hit_tokens:
        body["prompt_cache_hit_tokens"] = s.prompt_cache_hit_tokens
    return body


def check_samples():
    problems, values = [], 0
    for _ in range(PROTO_CASES):
        message = make_sample()
        theirs = deserialize_sample_response(message.SerializeToString())
        values += leaves(sample_json(theirs))
        ok, ours = tool.ask("again-proto", "SampleResponse", message.SerializeToString().hex())
        if not ok or sample_view(deserialize_sample_response(bytes.fromhex(ours))) != sample_view(theirs):
            problems.append(f"protobuf {message}: {ours}")
        ok, ours = tool.ask("from-proto", "SampleResponse", message.SerializeToString().hex())
        if not ok or as_float32(json.loads(ours)) != as_float32(sample_json(theirs)):
            problems.append(f"JSON {dumps(sample_json(theirs))}: {ours}")
            continue
        if theirs.topk_prompt_logprobs is not None and not any(theirs.topk_prompt_logprobs):
            continue  # a matrix of unused cells is all null, from which no width comes back
        ok, ours = tool.ask("to-proto", "SampleResponse", ours)
        if not ok or sample_view(deserialize_sample_response(bytes.fromhex(ours))) != sample_view(theirs):
            problems.append(f"from JSON {dumps(sample_json(theirs))}: {ours}")
    table.append(("SampleResponse", "protobuf", PROTO_CASES, values))
    report("protobuf and JSON SampleResponse", problems)


def make_batched(n):
    dtype = rng.choice([pb.DTYPE_FLOAT32, pb.DTYPE_INT64, pb.DTYPE_INT32, pb.DTYPE_BFLOAT16])
    trailing = rng.choice([[], [2], [1, 3]])
    row = int(np.prod(trailing)) if trailing else 1
    counts = [rng.randrange(4) * row for _ in range(n)]
    total = sum(counts)
    if dtype == pb.DTYPE_FLOAT32:
        array = np.asarray(float32s(total), dtype=np.float32)
    elif dtype == pb.DTYPE_BFLOAT16:
        array = (np.asarray(float32s(total), dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        array = np.asarray([rng.randrange(-9, 9) for _ in range(total)],
                           dtype=np.int64 if dtype == pb.DTYPE_INT64 else np.int32)  # fmt: skip
    offsets = np.cumsum([0] + counts).astype(np.int64) * array.itemsize
    return pb.BatchedTensor(data=array.tobytes(), offsets=offsets.tobytes(), dtype=dtype, trailing_shape=trailing)


def make_output():
    message = pb.ForwardBackwardOutput(loss_fn_output_type=rng.choice(["TorchLossReturn", "mod.sub:Cls"]))
    names = rng.sample(["logprobs", "elementwise_loss", "x"], rng.randrange(3))
    for _ in range(rng.randrange(3)):
        n = rng.randrange(1, 4)
        record = message.loss_fn_outputs.add(num_datums=n)
        for name in names:
            record.fields[name].CopyFrom(make_batched(n))
    for name in rng.sample(["loss:sum", "e_max_violation:mean", "ü:max"], rng.randrange(3)):
        message.metrics[name] = make_float()
    return message


def output_view(v):
    outputs = [{k: (t.dtype, tuple(t.shape), t.to_numpy().tobytes()) for k, t in d.items()} for d in v.loss_fn_outputs]
    return v.loss_fn_output_type, outputs, dict(v.metrics)


def output_json(v):
    outputs = [{k: {"data": t.data, "dtype": t.dtype, "shape": list(t.shape)} for k, t in d.items()}
               for d in v.loss_fn_outputs]  # fmt: skip
    return {"loss_fn_output_type": v.loss_fn_output_type, "loss_fn_outputs": as_float32(outputs), "metrics": dict(v.metrics)}


def check_outputs():
    problems, values = [], 0
    for _ in range(PROTO_CASES):
        message = make_output()
        wire = message.SerializeToString()
        theirs = deserialize_forward_backward_output(wire)
        values += leaves(output_json(theirs))
        ok, ours = tool.ask("again-proto", "ForwardBackwardOutput", wire.hex())
        if not ok or output_view(deserialize_forward_backward_output(bytes.fromhex(ours))) != output_view(theirs):
            problems.append(f"protobuf {message}: {ours}")
        ok, text = tool.ask("from-proto", "ForwardBackwardOutput", wire.hex())
        body = json.loads(text) if ok else {}
        if ok:
            body["loss_fn_outputs"] = as_float32(body["loss_fn_outputs"])
        if not ok or body != output_json(theirs):
            problems.append(f"JSON {dumps(output_json(theirs))}: {text}")
            continue
        ok, ours = tool.ask("to-proto", "ForwardBackwardOutput", text)
        if not ok or output_view(deserialize_forward_backward_output(bytes.fromhex(ours))) != output_view(theirs):
            problems.append(f"from JSON {text}: {ours}")
    table.append(("ForwardBackwardOutput", "protobuf", PROTO_CASES, values))
    report("protobuf and JSON ForwardBackwardOutput", problems)


# ---- paths, and that nothing was forgotten -------------------------------------------------------


def check_paths():
    problems = []
    texts = ["tinker://r:train:0/weights/a", "tinker://r/sampler_weights/b-1", "tinker://r/weights", "weights/x",
             "tinker://r/other/x", "tinker://r/weights/a/b", "http://r/weights/a", "", "tinker://"]  # fmt: skip
    for text in texts:
        try:
            p = types.ParsedCheckpointTinkerPath.from_tinker_path(text)
            want = (True, f"{p.training_run_id} {p.checkpoint_id} {p.checkpoint_type}")
        except ValueError:
            want = (False, None)
        ok, ours = tool.ask("path", "", text)
        if (ok, ours if ok else None) != want:
            problems.append(f"{text}: ours {ours}, SDK {want}")
    report("tinker:// paths", problems)


def check_coverage():
    """Every type of ours was compared, and every model of the SDK that can be on the wire."""
    ours = set(tool.ask("types")[1].split())
    compared = {c.__name__ for c in REQUESTS} | set(ANSWERS) | set(HAND_MADE) | ELSEWHERE
    problems = [f"{name} was not compared" for name in sorted(ours - compared - NEWER)]
    problems += [f"{name} is not a type of ours" for name in sorted(compared - ours)]
    seen = set()

    def visit(annotation):
        if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
            if annotation not in seen:
                seen.add(annotation)
                for field in annotation.model_fields.values():
                    visit(field.annotation)
        for arg in typing.get_args(annotation):
            visit(arg)

    for cls in REQUESTS + list(ANSWERS.values()):
        visit(cls)
    public = {c for c in vars(types).values() if isinstance(c, type) and issubclass(c, pydantic.BaseModel)}
    local = {"ParsedCheckpointTinkerPath", "TelemetryBatch", "SaveWeightsForSamplerResponse"}
    problems += [f"SDK model {c.__name__} was not reached" for c in public - seen if c.__name__ not in local]
    report(f"coverage: {len(ours)} types of ours, {len(seen)} models of the SDK", problems)


def main():
    for cls in REQUESTS:
        check_request(cls)
    for name, bodies in HAND_MADE.items():
        check_hand_made(name, bodies)
    for name, cls in sorted(ANSWERS.items()):
        check_answer(name, cls)
    check_odd("answer", ANSWERS)
    check_odd("request", {cls.__name__: cls for cls in REQUESTS})
    check_not_finite()
    check_training_requests()
    check_json_mirrors()
    check_samples()
    check_outputs()
    check_paths()
    check_coverage()
    for name, direction, n, values in table:
        print(f"# table {name:32} {direction:9} {n:6} cases {values:8} values")
    print(f"# table {'total':32} {'':9} {sum(r[2] for r in table):6} cases {sum(r[3] for r in table):8} values")
    print(f"1..{count}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
