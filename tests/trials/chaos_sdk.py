"""chaos_sdk.py STEPS FILE: the run of tests/e2e/cut.c by the official SDK: prints every number it is told, downloads its weights."""
import http.client
import os
import sys
import time
import urllib.request
import tinker
from tinker import types

steps, file = int(sys.argv[1]), sys.argv[2]
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model="tinker/tiny", rank=4, seed=7)
flying = []
for s in range(steps):
    tokens = [20 + (s + i) % 40 for i in range(12)]
    targets = [21 + (s + i) % 40 for i in range(12)]
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs={
        "target_tokens": types.TensorData(data=targets, dtype="int64", shape=[12])})
    flying.append((training.forward_backward([datum], "cross_entropy"),
                   training.optim_step(types.AdamParams(learning_rate=3e-3))))
for s, (fb, step) in enumerate(flying):
    print("step", s, float(fb.result().metrics["loss:sum"]).hex(), sorted((step.result().metrics or {}).items()), flush=True)
path = training.save_weights_for_sampler(name="end").result().path
sampler = service.create_sampling_client(model_path=path)
params = types.SamplingParams(max_tokens=8, seed=5)
out = sampler.sample(prompt=types.ModelInput.from_ints([20, 21, 22]), num_samples=1, sampling_params=params).result()
print("sample", out.sequences[0].tokens, [float(x).hex() for x in out.sequences[0].logprobs])
run, name = path.removeprefix("tinker://").split("/", 1)
request = urllib.request.Request(f"{os.environ['TINKER_BASE_URL']}/api/v1/training_runs/{run}/checkpoints/{name}/archive",
                                 headers={"X-API-Key": os.environ["TINKER_API_KEY"]})
for attempt in range(100):  # newer SDKs leave the download to their users
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = answer.read()
        open(file, "wb").write(data)
        break
    except (OSError, http.client.HTTPException):
        time.sleep(0.1)
