"""grpo.py - what grpo.c does, with the official SDK and the cookbook."""
import sys
import tinker
import torch
from tinker_cookbook import renderers
from tinker_cookbook.tokenizer_utils import get_tokenizer

PROMPTS, ROUNDS, GROUP, MODEL = 8, 6, 8, sys.argv[1]
def reward(answer): return (1.0 if "!" in answer else 0.0) - 0.01 * len(answer.encode())
renderer = renderers.get_renderer("qwen3_instruct", get_tokenizer(MODEL))
training = tinker.ServiceClient().create_lora_training_client(base_model=MODEL, rank=32)
prompts = [renderer.build_generation_prompt([{"role": "user", "content": f"Greet person {i}"}]) for i in range(PROMPTS)]
adam = tinker.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
for round in range(ROUNDS):
    sampler = training.save_weights_and_get_sampling_client()
    asked = [sampler.sample(p, GROUP, tinker.SamplingParams(max_tokens=24, stop=renderer.get_stop_sequences(),
                            temperature=1.0, seed=round * PROMPTS + i)) for i, p in enumerate(prompts)]
    data, rewards = [], []
    for prompt, answers in zip(prompts, asked):
        answers = answers.result().sequences
        got = [reward(renderers.get_text_content(renderer.parse_response(a.tokens)[0])) for a in answers]
        rewards += got
        for a, r in zip(answers, got):
            if len(set(got)) > 1:
                tokens, skip = prompt.to_ints() + list(a.tokens), prompt.length - 1
                advantage = (torch.tensor(r) - torch.tensor(got).mean()).item()
                data.append(tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={
                    "target_tokens": tinker.TensorData.from_torch(torch.tensor(tokens[1:])),
                    "logprobs": tinker.TensorData.from_torch(torch.tensor([0.0] * skip + list(a.logprobs))),
                    "advantages": tinker.TensorData.from_torch(torch.tensor([0.0] * skip + [advantage] * len(a.tokens)))}))
    passed, stepped = training.forward_backward(data, "importance_sampling"), training.optim_step(adam)
    passed.result(), stepped.result()
    print(f"round {round}  mean reward {sum(rewards) / len(rewards):.6f}  {len(data)} answers trained")
