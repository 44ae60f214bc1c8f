# requirements: sdk
"""The thin path with the official SDK: train ten steps, save, sample."""

import tinker
from tinker import types

from _server import MODEL, Server, check, done

TOKENS = [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]

with Server():
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=8, seed=1)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * 9})
    losses = []
    for _ in range(10):
        passed = training.forward_backward([datum] * 4, "cross_entropy")
        stepped = training.optim_step(types.AdamParams(learning_rate=0.01))
        losses.append(passed.result().metrics["loss:sum"])
        metrics = stepped.result().metrics
    check(losses[-1] < losses[0] / 2, "loss falls over ten steps", f"{losses}")
    check(metrics["step:max"] == 10, "ten steps were taken", f"{metrics}")

    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=6, temperature=0.0)
    prompt = types.ModelInput.from_ints(TOKENS[:3])
    result = sampler.sample(prompt=prompt, num_samples=2, sampling_params=params).result()
    first = result.sequences[0]
    check(len(result.sequences) == 2, "two samples come back")
    check(list(first.tokens) == TOKENS[3:9], "it has learned the sequence", f"{first.tokens}")
    check(len(first.logprobs) == len(first.tokens) and max(first.logprobs) <= 0,
          "each token has a log probability")
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()
    check(scored[0] is None and len(scored) == len(TOKENS), "the first token has none")
    check(max(abs(a - b) for a, b in zip(scored[3:9], first.logprobs)) < 1e-4,
          "sampling and scoring agree")
done()
