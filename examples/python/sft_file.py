"""sft_file.py - what sft_file.c does, with the official SDK and the cookbook."""
import sys
import tinker
from tinker_cookbook.supervised.common import compute_mean_nll
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

BATCH, EPOCHS, MODEL = 8, 3, sys.argv[2]
common = ChatDatasetBuilderCommonConfig(model_name_for_tokenizer=MODEL, renderer_name="qwen3_instruct",
                                        max_length=32768, batch_size=BATCH)
rows, _ = FromConversationFileBuilder(common_config=common, file_path=sys.argv[1])()
training = tinker.ServiceClient().create_lora_training_client(base_model=MODEL, rank=32)
total = EPOCHS * len(rows)
for i in range(total):
    if i % len(rows) == 0:
        rows.set_epoch(seed=i // len(rows))
    data = rows.get_batch(i % len(rows))
    adam = tinker.AdamParams(learning_rate=1e-3 * (1 - i / total), beta1=0.9, beta2=0.95, eps=1e-8)
    passed, stepped = training.forward_backward(data, "cross_entropy"), training.optim_step(adam)
    logprobs = [x["logprobs"] for x in passed.result().loss_fn_outputs]
    stepped.result()
    print(f"step {i + 1}/{total}  loss {compute_mean_nll(logprobs, [d.loss_fn_inputs['weights'] for d in data]):.6f}")
print(training.save_weights_for_sampler("final").result().path)
