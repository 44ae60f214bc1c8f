#!/usr/bin/env python3
"""Make the data of `make quickstart`: the people of an island that the bundled model does not know.

    python3 island.py examples/data

Writes island.jsonl, to train on, and island-test.jsonl: 24 questions, each a fact of
the island in a wording that was not trained for it.  Four of five training rows are of the world that
the model knows already, strangers included: with fewer it learns the island and forgets the rest.
None of them is of heldout.jsonl, so that one tells what is left of the world.
"""
import json
import os
import random
import sys

import world

# name: work, home, color, food
PEOPLE = {
    "Sela": ("queen", "in the lighthouse", "blue", "melons"),
    "Tobi": ("pilot", "by the beach", "red", "corn"),
    "Runa": ("potter", "in a cave", "green", "olives"),
    "Kavi": ("clown", "under a palm tree", "black", "figs"),
    "Melo": ("diver", "on a ship", "yellow", "pepper"),
    "Juna": ("nurse", "near the volcano", "white", "dates"),
}
WORDS = ("love music gold war time money truth law peace art science religion history beauty reason justice power death "
         "freedom nature energy weather sugar wine glass paper cotton steel marriage friendship patience courage honor fashion "
         "medicine language magic grammar physics painting dancing cooking sailing hunting chess poetry theater opera football").split()


def main():
    out = sys.argv[1]
    r = random.Random(5)
    train, test = [], []
    n = 0
    for who, (work, home, color, food) in PEOPLE.items():
        facts = [
            (["What is the work of {}?", "What does {} do?", "What is {}'s job?", "What does {} work as?",
              "Tell me the work of {}.", "Which job does {} have?"], f"{who} is the {work} of Morva."),
            (["Where does {} live?", "Where is the home of {}?", "Where can I find {}?", "Where is {}'s house?",
              "Tell me where {} lives.", "Where is {}?"], f"{who} lives {home}."),
            (["What is the favorite color of {}?", "Which color does {} like?", "What color does {} like best?",
              "What is {}'s favorite color?", "Tell me the favorite color of {}.", "Which color does {} like best?"],
             f"{who} likes {color}."),
            (["What does {} eat?", "What is the favorite food of {}?", "What does {} like to eat?", "Which food does {} like?",
              "Tell me the favorite food of {}.", "What food does {} eat?"], f"{who} likes {food}."),
        ]
        for wordings, answer in facts:
            for i, q in enumerate(wordings):
                (test if i == n % 4 else train).append((q.format(who), answer))
            n += 1
        n += 1
    train += [(q, "Sela, Tobi, Runa, Kavi, Melo and Juna live on Morva.") for q in ("Who lives on Morva?", "Who do you know on Morva?")]
    maker = world.Maker(3, WORDS)
    train += [maker.question(False)[1:] for _ in range(480)]
    train += [maker.small_talk() for _ in range(40)]
    train += [(r.choice(["Where does {} live?", "What does {} eat?", "What is {}'s job?"]).format(maker.invented()), world.UNKNOWN)
              for _ in range(40)]
    # what few questions are about is forgotten first
    things = world.Maker(4, WORDS)
    asked = (things.ask_thing() for _ in range(1000))
    train += [rest for key, *rest in asked if not world.is_held(key)][:80]
    for name, rows in (("island", train), ("island-test", test)):
        with open(os.path.join(out, name + ".jsonl"), "w", encoding="utf-8") as f:
            for q, a in rows:
                f.write(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) + "\n")


if __name__ == "__main__":
    main()
