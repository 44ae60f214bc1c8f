# requirements: sdk
"""Calls that fail inside the official SDK before they are sent use up a number all the same.

The server must run the next call and not wait for the number, whatever that call is.
"""

import os

import tinker
from tinker import types

from _server import MODEL, Server, attempt, check, done

TOKENS = [3, 5, 7, 9, 11, 13, 15, 17]
LIMIT = 60  # seconds: not a measurement, only less than the 300 that clients try


def datum():
    return types.Datum(model_input=types.ModelInput.from_ints(TOKENS[:7]),
                       loss_fn_inputs={"target_tokens": TOKENS[1:8], "weights": [1.0] * 7})


def fails_inside(training):
    """A pass whose request cannot be built."""
    before = training._request_id_counter
    try:
        training.forward_backward([datum()], loss_fn=5).result(timeout=LIMIT)
    except Exception as e:  # noqa: BLE001 - of pydantic or of the SDK
        check(training._request_id_counter == before + 1, "the failed call used up a number",
              f"{type(e).__name__}: {e}")
        return
    check(False, "the call fails inside the SDK")


def calls(service):
    training = service.create_lora_training_client(base_model=MODEL, rank=4)
    step = types.AdamParams(learning_rate=1e-3)

    def good():
        return training.forward_backward([datum()], "cross_entropy")

    fails_inside(training)
    attempt("then optim_step runs", lambda: training.optim_step(step).result(timeout=LIMIT))
    fails_inside(training)
    attempt("then forward_backward runs",
            lambda: good().result(timeout=LIMIT).metrics["loss:sum"] > 0)
    fails_inside(training)
    fails_inside(training)
    passed, stepped = good(), training.optim_step(step)
    attempt("then a pass and a step in one go run",
            lambda: (passed.result(timeout=LIMIT), stepped.result(timeout=LIMIT)) and None)
    fails_inside(training)
    attempt("then save_state runs", lambda: training.save_state("after").result(timeout=LIMIT))
    attempt("and everything after that at once", lambda: good().result(timeout=LIMIT) and None)


os.environ["TINKER_TELEMETRY"] = "0"
with Server("--seq-gap-timeout", "1") as server:
    calls(tinker.ServiceClient(base_url=server.url, api_key="tml-test"))
with Server() as server:  # as it comes: seconds, because the step shows that the client went on
    training = tinker.ServiceClient(base_url=server.url, api_key="tml-test") \
        .create_lora_training_client(base_model=MODEL, rank=4)
    fails_inside(training)
    attempt("with default options the next step runs", lambda: training.optim_step(
        types.AdamParams(learning_rate=1e-3)).result(timeout=LIMIT))
done()
