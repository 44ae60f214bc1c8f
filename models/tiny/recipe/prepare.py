#!/usr/bin/env python3
"""Make the training text and the tokenizer of the bundled model.

    apt-get install bible-kjv bible-kjv-text dict-devil        # public-domain English
    pip install tokenizers==0.21.0
    python3 prepare.py OUT_DIR [--megabytes 24] [--vocab 2048]

Writes OUT_DIR/tokenizer.json, OUT_DIR/train.bin and OUT_DIR/valid.bin (uint16 token ids, documents
separated by <|endoftext|>).  A third of the text is public-domain English (the King James Bible and
The Devil's Dictionary), the rest is made here: small stories and conversations from grammars, with
invented names so that the model must learn to read rather than to remember.  Same arguments, same bytes.
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys

ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fr gr kr pl sk st tr th sh ch".split()
VOWELS = "a e i o u ai ea ee io oa".split()
CODAS = ["", "", "", "n", "l", "r", "s", "m", "t", "nd", "x", "k"]
COLORS = "red blue green white black yellow brown grey pink golden silver orange purple".split()
THINGS = ("lamp box chair book apple stone cup boat hat rope map coin drum wheel kite basket bell key "
          "brush candle blanket shoe ladder bottle mirror spoon jar button pillow hammer").split()
ANIMALS = "dog cat horse fox owl hen goat mouse bear duck sheep wolf crow frog bee".split()
PLACES = ("garden river market school forest kitchen harbour village mill tower bridge field library "
          "station castle valley").split()
SIZES = "small big little huge tiny long short heavy light old new".split()
MOODS = "happy sad tired proud angry afraid calm curious hungry brave".split()
ACTS = [("sold", "sell"), ("found", "find"), ("made", "make"), ("lost", "lose"), ("bought", "buy"),
        ("saw", "see"), ("painted", "paint"), ("carried", "carry"), ("hid", "hide"), ("broke", "break"),
        ("kept", "keep"), ("wanted", "want")]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
         "twelve"]
IM_START, IM_END, END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def plural(noun, n=2):
    if n == 1:
        return noun
    if noun == "sheep":
        return noun
    if noun == "mouse":
        return "mice"
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def name(self, syllables=None):
        r = self.r
        n = syllables or r.choice([1, 2, 2, 2, 3])
        text = "".join(r.choice(ONSETS) + r.choice(VOWELS) + (r.choice(CODAS) if i == n - 1 else "")
                       for i in range(n))
        return text.capitalize()

    def pick(self, items):
        return self.r.choice(items)

    def fact(self):
        """One sentence about one event, with its parts."""
        r = self.r
        past, base = self.pick(ACTS)
        f = {"who": self.name(), "act": past, "base": base, "n": r.randint(2, 99), "color": self.pick(COLORS),
             "thing": self.pick(THINGS), "city": self.name(), "day": self.pick(DAYS)}
        f["things"] = plural(f["thing"])
        f["text"] = self.pick([
            "{who} {act} {n} {color} {things} in {city}.",
            "In {city}, {who} {act} {n} {color} {things}.",
            "On {day} {who} {act} {n} {color} {things} in {city}.",
            "{who} went to {city} and {act} {n} {color} {things} there.",
        ]).format(**f)
        return f

    def ask(self, f):
        """A question about a fact and its short answer."""
        return self.pick([
            ("Who {base} the {things}?".replace("{base}", "{act}"), "{who}"),
            ("How many {things} did {who} {base}?", "{n}"),
            ("What color were the {things}?", "{color}"),
            ("What did {who} {base}?", "{things}"),
            ("Where was {who}?", "{city}"),
            ("Where did {who} {base} the {things}?", "{city}"),
            ("What happened to the {things}?", "{who} {act} them"),
        ]), f

    def story(self):
        r = self.r
        hero, friend = self.name(), self.name()
        place, place2 = r.sample(PLACES, 2)
        thing, thing2 = r.sample(THINGS, 2)
        animal, color, mood = self.pick(ANIMALS), self.pick(COLORS), self.pick(MOODS)
        s = [self.pick([
            f"Once there was {article(self.pick(SIZES) + ' ' + animal)} named {hero}.",
            f"{hero} lived near the {place} with {article(color + ' ' + animal)}.",
            f"Every {self.pick(DAYS)} {hero} walked to the {place}.",
            f"Long ago, in {self.name()}, a child named {hero} had {article(color + ' ' + thing)}."])]
        beats = [
            f"One day {hero} found {article(color + ' ' + thing)} in the {place}.",
            f"{hero} was {mood}, because the {thing} was {self.pick(SIZES)}.",
            f"\"What is that?\" asked {friend}.",
            f"\"It is my {thing},\" said {hero}.",
            f"Then {friend} came from the {place2} and brought {article(thing2)}.",
            f"They put the {thing} and the {thing2} in the {place2}.",
            f"\"Please help me,\" said {friend}. So {hero} helped.",
            f"The {animal} ran to the {place2} and would not stop.",
            f"{hero} looked for the {thing}, but it was gone.",
            f"At last {hero} saw the {thing} under the {thing2}.",
            f"{friend} counted {WORDS[r.randint(2, 12)]} {plural(self.pick(THINGS))} and smiled.",
            f"It began to rain, and they ran back to the {place}.",
        ]
        for i in sorted(r.sample(range(len(beats)), r.randint(3, 7))):
            s.append(beats[i])
        s.append(self.pick([
            f"In the end {hero} was {self.pick(MOODS)} and went home.",
            f"{hero} and {friend} were friends from that day on.",
            f"And the {thing} stayed in the {place} for many years.",
            f"That night {hero} slept well."]))
        return " ".join(s)

    def pairs(self):
        """Plain text that rewards copying: tables, lists, repeated records."""
        r = self.r
        kind = r.randrange(4)
        if kind == 0:
            rows = [(self.name(), r.randint(1, 99)) for _ in range(r.randint(3, 7))]
            text = "\n".join(f"{k}: {v}" for k, v in rows)
            k, v = self.pick(rows)
            return f"{text}\n\n{k} has {v}."
        if kind == 1:
            words = [self.name().lower() for _ in range(r.randint(3, 6))]
            return "Copy: " + " ".join(words) + "\nCopy: " + " ".join(words)
        if kind == 2:
            items = r.sample(THINGS, r.randint(3, 6))
            return "List: " + ", ".join(items) + ".\n" + "\n".join(f"- {i}" for i in items)
        f = self.fact()
        return f["text"] + "\n" + "\n".join(f"{k}: {f[k]}" for k in r.sample(
            ["who", "act", "n", "color", "things", "city"], r.randint(2, 5)))

    def chat(self, turns):
        return "".join(f"{IM_START}{role}\n{text}{IM_END}\n" for role, text in turns)

    def conversation(self):
        r = self.r
        kind = r.randrange(8)
        if kind <= 3:
            f = self.fact()
            turns = []
            for i in range(r.randint(1, 3)):
                (q, a), _ = self.ask(f)
                q = q.format(**f)
                turns += [("user", f["text"] + " " + q if i == 0 else q), ("assistant", a.format(**f))]
            return self.chat(turns)
        if kind == 4:
            a, b = r.randint(0, 20), r.randint(0, 20)
            q, v = self.pick([(f"What is {a} plus {b}?", a + b), (f"{a} + {b} =", a + b),
                              (f"What is {max(a, b)} minus {min(a, b)}?", max(a, b) - min(a, b)),
                              (f"Which is larger, {a} or {b}?", max(a, b))])
            return self.chat([("user", q), ("assistant", str(v))])
        if kind == 5:
            words = [self.name().lower() if r.random() < 0.5 else self.pick(THINGS) for _ in range(r.randint(1, 5))]
            text = " ".join(words)
            q, a = self.pick([(f"Repeat: {text}", text), (f"Say {text}", text),
                              (f"First word of: {text}", words[0]), (f"Last word of: {text}", words[-1]),
                              (f"Write with commas: {text}", ", ".join(words)),
                              (f"One per line: {text}", "\n".join(words))])
            return self.chat([("user", q), ("assistant", a)])
        if kind == 6:
            name = self.name()
            return self.chat([("user", self.pick(["Hello!", "Hi, who are you?", f"Hello, I am {name}.", "Good morning."])),
                              ("assistant", self.pick(["Hello! How can I help?", f"Hello, {name}. How can I help?"])
                               if r.random() < 0.3 else "Hello! How can I help?")])
        return self.chat([("user", self.pick(["Tell me a story.", "A short story, please."])),
                          ("assistant", self.story())])

    def document(self):
        x = self.r.random()
        return self.story() if x < 0.3 else self.pairs() if x < 0.5 else self.conversation()


def bible():
    try:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True,
                              stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit("prepare: the command `bible` is missing: apt-get install bible-kjv bible-kjv-text")
    verses = [line.split(" ", 1)[1] for line in text.splitlines() if " " in line]
    return ["\n".join(verses[i:i + 12]) for i in range(0, len(verses), 12)]


def devil():
    for path in ("/usr/share/dictd/devil.dict.dz", "/usr/share/dictd/devils.dict.dz"):
        if os.path.exists(path):
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as f:
                parts = [p.strip() for p in f.read().split("\n\n") if len(p.strip()) > 40]
            return parts
    sys.exit("prepare: no Devil's Dictionary: apt-get install dict-devil")


def build_tokenizer(docs, vocab, path):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    pattern = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
               "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    specials = [END, IM_START, IM_END]
    trainer = trainers.BpeTrainer(vocab_size=vocab - len(specials), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    t.train_from_iterator((d.replace(IM_START, "").replace(IM_END, "") for d in docs), trainer)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    t.save(path)
    return t


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--megabytes", type=float, default=24)
    p.add_argument("--vocab", type=int, default=2048)
    p.add_argument("--seed", type=int, default=20261)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    m = Maker(a.seed)
    real = bible() + devil()
    made, size = [], 0
    target = a.megabytes * 1e6 - sum(map(len, real))
    while size < target:
        d = m.document()
        made.append(d)
        size += len(d) + 1
    docs = made + real
    m.r.shuffle(docs)
    t = build_tokenizer(docs[:: max(1, len(docs) // 60000)], a.vocab, os.path.join(a.out, "tokenizer.json"))
    end = t.token_to_id(END)
    import array
    ids = array.array("H")
    held = array.array("H")
    for i, e in enumerate(t.encode_batch(docs)):
        target_ids = held if i % 100 == 0 else ids
        target_ids.extend(e.ids)
        target_ids.append(end)
    for name, data in (("train.bin", ids), ("valid.bin", held)):
        with open(os.path.join(a.out, name), "wb") as f:
            data.tofile(f)
    print(json.dumps({"documents": len(docs), "train_tokens": len(ids), "valid_tokens": len(held),
                      "vocab": t.get_vocab_size(), "bytes_per_token": round(sum(map(len, docs)) / (len(ids) + len(held)), 2)}))


if __name__ == "__main__":
    main()
