#!/usr/bin/env python3
"""Turn what tools/pretrain wrote into the bundled model: bf16 matrices, tokenizer, chat template.

    python3 pack.py TRAINED_DIR DATA_DIR OUT_DIR
"""
import array
import json
import os
import shutil
import struct
import sys

TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def round_to_bf16(data):
    """Nearest, ties to even."""
    words = array.array("I", data)
    return array.array("H", ((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words)).tobytes()


def convert(source, target):
    with open(source, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    out, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(n for n in header if n != "__metadata__"):
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "F32", name
        parts.append(round_to_bf16(data[begin:end]))
        out[name] = {"dtype": "BF16", "shape": header[name]["shape"], "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main():
    trained, data, out = sys.argv[1:4]
    os.makedirs(out, exist_ok=True)
    tokenizer = os.path.join(data, "tokenizer.json")
    with open(tokenizer, encoding="utf-8") as f:
        ids = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
    end, stop = ids["<|endoftext|>"], ids["<|im_end|>"]
    with open(os.path.join(trained, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    for name in ("sliding_window", "layer_types"):
        config.pop(name, None)
    config.update(torch_dtype="bfloat16", eos_token_id=stop, pad_token_id=end)
    write_json(os.path.join(out, "config.json"), config)
    write_json(os.path.join(out, "generation_config.json"), {"eos_token_id": [stop, end], "pad_token_id": end})
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "bos_token": None, "unk_token": None, "add_bos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": 512, "chat_template": TEMPLATE})
    shutil.copy(tokenizer, os.path.join(out, "tokenizer.json"))
    convert(os.path.join(trained, "model.safetensors"), os.path.join(out, "model.safetensors"))


if __name__ == "__main__":
    main()
