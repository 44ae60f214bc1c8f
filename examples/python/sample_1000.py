"""sample_1000.py - what sample_1000.c does, with the official SDK and the cookbook."""
import sys
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.tokenizer_utils import get_tokenizer

MODEL = sys.argv[1]
renderer = renderers.get_renderer("qwen3_instruct", get_tokenizer(MODEL))
training = tinker.ServiceClient().create_lora_training_client(base_model=MODEL, rank=32)
sampler = training.save_weights_and_get_sampling_client()
texts = [f"What comes after {i}?" for i in range(1000)]
params = tinker.SamplingParams(max_tokens=8, temperature=0, stop=renderer.get_stop_sequences())
asked = [sampler.sample(renderer.build_generation_prompt([{"role": "user", "content": t}]), 1, params) for t in texts]
for text, future in zip(texts, asked):
    message, _ = renderer.parse_response(future.result().sequences[0].tokens)
    print(f"{text}\t{renderers.get_text_content(message)}")
