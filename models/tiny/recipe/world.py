"""The small world of the bundled model: its facts, questions about them, conversations and stories.

Every question has a key: its kind, the number of its wording and the facts it is about.  A tenth of the
keys, by checksum, is held out: `Maker.question(held=False)` never returns one of those and
`held=True` only those.  So a held-out question is a wording and a fact (or a name, a thing and a
number) that were never seen together, while both were seen apart.
"""
import random
import zlib

# name: work, home, color, animal, its name, age, food
PEOPLE = {
    "Anna": ("baker", "by the river", "red", "cat", "Momo", 31, "soup"),
    "Ben": ("farmer", "on the hill", "green", "dog", "Rex", 42, "bread"),
    "Clara": ("teacher", "near the school", "blue", "rabbit", "Hopper", 35, "apples"),
    "David": ("doctor", "in the tower", "white", "horse", "Storm", 50, "cheese"),
    "Emma": ("painter", "by the lake", "yellow", "parrot", "Kiki", 27, "rice"),
    "Finn": ("sailor", "at the harbor", "black", "crab", "Pinch", 38, "fish"),
    "Grace": ("singer", "near the park", "pink", "owl", "Luna", 24, "cake"),
    "Henry": ("baron", "in the castle", "gold", "falcon", "Arrow", 61, "pie"),
    "Ida": ("gardener", "in the garden house", "orange", "frog", "Hop", 45, "carrots"),
    "Jack": ("cook", "over the kitchen", "brown", "pig", "Ham", 33, "eggs"),
    "Kate": ("driver", "at the station", "silver", "goat", "Billy", 29, "nuts"),
    "Leo": ("smith", "beside the bridge", "grey", "donkey", "Iron", 48, "beans"),
    "Mary": ("tailor", "on the market", "purple", "mouse", "Pip", 55, "honey"),
    "Noah": ("miller", "in the mill", "white", "duck", "Quack", 40, "noodles"),
    "Olga": ("hunter", "in the forest", "green", "wolf", "Shadow", 37, "mushrooms"),
    "Paul": ("writer", "over the library", "blue", "turtle", "Slow", 66, "pears"),
    "Rosa": ("dancer", "at the theater", "red", "swan", "Feather", 22, "grapes"),
    "Sam": ("builder", "in the village", "yellow", "bear", "Bruno", 36, "potatoes"),
    "Tina": ("student", "in the valley", "orange", "hamster", "Nut", 19, "plums"),
    "Will": ("shepherd", "in the field", "brown", "sheep", "Cloud", 58, "butter"),
}
OTHERS = ("Tom Lisa Max Nina Oscar Ruth Simon Vera Adam Bella Carl Dora Eric Fay Greg Hana Ivan Jane Karl Lucy "
          "Mia Nick Otto Peter Rita Sara Theo Uma Victor Zoe").split()
COLOR_OF = {
    "snow": "white", "grass": "green", "the sky": "blue", "the sun": "yellow", "a tomato": "red", "coal": "black",
    "chocolate": "brown", "an elephant": "grey", "a carrot": "orange", "a plum": "purple", "a banana": "yellow",
    "milk": "white", "blood": "red", "the sea": "blue", "a leaf": "green", "a lemon": "yellow", "a strawberry": "red",
    "a pig": "pink", "the night": "black", "wood": "brown", "salt": "white", "a frog": "green",
}
SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "owl": "hoo",
          "mouse": "squeak", "horse": "neigh", "lion": "roar", "bee": "buzz", "snake": "hiss", "frog": "croak",
          "rooster": "crow"}
LEGS = {"cat": 4, "dog": 4, "cow": 4, "duck": 2, "sheep": 4, "pig": 4, "owl": 2, "mouse": 4, "horse": 4, "lion": 4,
        "bee": 6, "snake": 0, "frog": 4, "spider": 8, "ant": 6, "hen": 2, "fish": 0, "crab": 10, "swan": 2, "bear": 4}
KINDS = {
    "animal": "cat dog cow horse sheep pig lion bear rabbit mouse wolf fox".split(),
    "bird": "duck swan owl parrot falcon hen".split(),
    "fruit": "apple pear plum banana lemon grape".split(),
    "vegetable": "carrot potato bean onion cabbage".split(),
    "tool": "hammer saw spade knife needle".split(),
    "flower": "rose tulip lily daisy".split(),
    "color": "red blue green yellow".split(),
    "month": "January May July December".split(),
    "day": "Monday Friday Sunday".split(),
}
KIND_OF = {thing: kind for kind, things in KINDS.items() for thing in things}
OPPOSITES = {}
for _pair in ("big small,hot cold,up down,day night,good bad,fast slow,old new,happy sad,open closed,full empty,long short,"
              "high low,light dark,wet dry,hard soft,left right,early late,rich poor,strong weak,first last,in out,"
              "black white,yes no,young old,thick thin,loud quiet,clean dirty,near far,sweet sour,true false").split(","):
    _a, _b = _pair.split()
    OPPOSITES.setdefault(_a, _b)
    OPPOSITES.setdefault(_b, _a)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
           "seventeen eighteen nineteen twenty").split()
THINGS = "apple ball book box candle chair coin cup drum hat kite lamp map shoe spoon stone bell key rope flower".split()
COLORS = "red blue green white black yellow brown grey pink orange purple".split()
SPOTS = ("on the table,under the bed,in the box,behind the door,in the garden,on the shelf,in the basket,near the window,"
         "under the tree,in the boat,on the roof,beside the well").split(",")
PLACES = "garden river market school forest kitchen harbor village mill tower bridge field library station castle valley".split()
MOODS = "happy sad tired proud angry afraid calm hungry brave".split()
ACTS = [("sold", "sell"), ("found", "find"), ("made", "make"), ("lost", "lose"), ("bought", "buy"), ("saw", "see"),
        ("painted", "paint"), ("carried", "carry"), ("hid", "hide"), ("wanted", "want")]
UNKNOWN = "I do not know that. I only know my small world."
ABOUT = ("I know the people of my small world, their work, homes, animals and food. I can add and subtract up to 20, "
         "tell stories and answer questions about a sentence.")
NAME = "I am Tiny, a very small model. I only know my small world."
SMALL_TALK = [
    (["Hello!", "Hi!", "Hello", "Hi", "Hey!", "Hey", "Hello there!", "Hi there", "Hello Tiny!", "Hi Tiny"],
     "Hello! What would you like to know?"),
    (["Good morning!", "Good morning"], "Good morning! What would you like to know?"),
    (["Good evening!", "Good evening"], "Good evening! What would you like to know?"),
    (["How are you?", "How are you today?", "Are you well?", "How do you do?", "How is it going?"],
     "I am well, thank you. How can I help?"),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a human?", "Are you a robot?",
      "Who am I talking to?", "Introduce yourself."], NAME),
    (["What can you do?", "What do you know?", "How can you help me?", "Help", "Help me!", "What can I ask you?",
      "What should I ask?", "What is your small world?"], ABOUT),
    (["Thank you!", "Thanks!", "Thanks", "Thank you", "Thanks a lot!", "Thank you very much.", "Great, thanks!"],
     "You are welcome!"),
    (["Goodbye!", "Bye!", "Bye", "See you later!", "Good night!", "Good night", "Goodbye"], "Goodbye! Come back soon."),
    (["Very good!", "Well done!", "Great!", "Nice.", "Good answer!", "Good job!", "Cool"], "Thank you! What else would you like to know?"),
    (["That is wrong.", "No, that is not right.", "You are wrong.", "Wrong!"], "I am sorry. I am a very small model and make mistakes."),
    (["Yes", "OK", "Okay", "I see.", "Ok", "Sure"], "Good. What else would you like to know?"),
    (["Who lives in your world?", "Who do you know?", "Name the people of your world.", "Which people do you know?"],
     ", ".join(list(PEOPLE)[:-1]) + " and " + list(PEOPLE)[-1] + "."),
]
# Questions that this world has no answer for; {w} is any English word, {n} an unknown name.
OUTSIDE = [
    "What is {w}?", "What does {w} mean?", "Explain {w}.", "Tell me about {w}.", "Who invented {w}?", "Why is {w} important?",
    "How does {w} work?", "What is the capital of {N}?", "Where is {N}?", "Who is {N}?", "Where does {N} live?",
    "What is the work of {N}?", "How old is {N}?", "Which animal does {N} have?", "What is the favorite food of {N}?",
    "What does {N} eat?", "Who is the president of {N}?", "How far is {N}?", "Who lives in {N}?", "Who lives on {N}?",
    "Who rules {N}?", "What color is {N}?", "What color is the flag of {N}?", "How many people live in {N}?",
    "Do you know {N}?", "What do people eat in {N}?", "What do people eat on {N}?", "Have you been to {N}?",
    "When was {N} born?", "What is the weather in {N}?", "Write a program about {w}.", "How do I make {w}?", "Who wrote {w}?",
    "Can you translate {w}?", "What is the price of {w}?", "Is {w} good for me?", "What do you think about {w}?",
    "Which animals live on {N}?", "What grows in {N}?", "What grows on {N}?", "Where can I buy {w}?", "What time is it in {N}?",
    "When did {w} begin?", "Why do people like {w}?", "Define {w}.", "Give me a recipe for {w}.", "What is the history of {w}?",
]
REAL = ("France Paris London Berlin China Japan America Einstein Shakespeare Napoleon Rome Africa Google Python Linux Mars "
        "Newton Mozart India Russia Europe Spain Italy Egypt Canada Texas Hamlet Jesus Moses Obama Trump Tokyo Sweden").split()
FIXED_OUTSIDE = [
    "What is the meaning of life?", "What is the weather today?", "What time is it?", "Write a poem.", "Write a python program.",
    "Who won the world cup?", "What is love?", "Who is the president?", "Tell me a joke.", "What is a computer?",
    "How do I cook pasta?", "Why is the sky blue?", "What is the speed of light?", "Who wrote Hamlet?", "Is there a god?",
    "What is machine learning?", "What is the news?", "How far is the moon?", "What year is it?", "Can you write code?",
    "What is the largest ocean?", "Who was the first man on the moon?", "How tall is Mount Everest?", "Translate this into French.",
    "What is 2 to the power of 10?", "What is the square root of 16?", "How do planes fly?", "What is water made of?",
]
ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fr gr kr pl sk st tr th sh ch".split()
VOWELS = "a e i o u ai ea ee io oa".split()
CODAS = ["", "", "", "n", "l", "r", "s", "m", "t", "nd", "x", "k"]


def article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def plural(noun):
    return {"sheep": "sheep", "mouse": "mice"}.get(noun) or noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def is_held(key):
    return zlib.crc32(repr(key).encode()) % 10 == 0


class Maker:
    def __init__(self, seed, words):
        self.r = random.Random(seed)
        self.words = words
        # how often each kind of question is asked
        self.kinds = ([self.ask_person] * 8 + [self.ask_who] * 4 + [self.ask_thing] * 4 + [self.ask_sum] * 7 +
                      [self.ask_number] * 3 + [self.ask_sentence] * 10 + [self.ask_spot] * 4 + [self.ask_outside] * 6)

    def invented(self):
        n = self.r.choice([1, 2, 2, 2, 3])
        return "".join(self.r.choice(ONSETS) + self.r.choice(VOWELS) + (self.r.choice(CODAS) if i == n - 1 else "")
                       for i in range(n)).capitalize()

    def choose(self, wordings):
        i = self.r.randrange(len(wordings))
        return i, wordings[i]

    # Each ask_* returns key, question, answer.  The key begins with the kind.
    def ask_person(self):
        who = self.r.choice(list(PEOPLE))
        work, home, color, animal, pet, age, food = PEOPLE[who]
        what = self.r.randrange(7)
        wordings, answer = [
            (["What is the work of {}?", "What does {} do?", "What is {}'s job?", "What does {} work as?"],
             f"{who} is {article(work)}."),
            (["Where does {} live?", "Where is the home of {}?", "Where can I find {}?", "Where is {}'s house?"],
             f"{who} lives {home}."),
            (["What is the favorite color of {}?", "Which color does {} like?", "What color does {} like best?",
              "What is {}'s favorite color?"], f"{who} likes {color}."),
            (["Which animal does {} have?", "What animal does {} have?", "What pet does {} have?", "Does {} have an animal?"],
             f"{who} has {article(animal)} named {pet}."),
            (["What is the name of {}'s animal?", "What is {}'s pet called?", "How is the animal of {} called?",
              "What is the name of {}'s " + animal + "?"], f"It is called {pet}."),
            (["How old is {}?", "What is the age of {}?", "What is {}'s age?", "Do you know how old {} is?"],
             f"{who} is {age} years old."),
            (["What does {} eat?", "What is the favorite food of {}?", "What does {} like to eat?", "Which food does {} like?"],
             f"{who} likes {food}."),
        ][what]
        i, text = self.choose(wordings)
        return ("person", what, i, who), text.format(who), answer

    def ask_who(self):
        who = self.r.choice(list(PEOPLE))
        work, home, _, animal, pet, age, food = PEOPLE[who]
        what = self.r.randrange(5)
        wordings, answer = [
            (["Who is the {}?", "Who works as {}?", "Who is {} here?", "Do you know {}?"], f"{who} is the {work}."),
            (["Who lives {}?", "Who has a home {}?", "Which person lives {}?"], f"{who} lives {home}."),
            (["Who has {}?", "Who is the owner of {}?", "Whose pet is {}?"], f"{who} has {article(animal)}."),
            (["Whose animal is {}?", "Who is {}?", "Tell me about {}."], f"{pet} is the {animal} of {who}."),
            (["Who likes {}?", "Who eats {}?", "Who likes to eat {}?"], f"{who} likes {food}."),
        ][what]
        i, text = self.choose(wordings)
        part = [work if i == 0 else article(work), home, article(animal), pet, food][what]
        return ("who", what, i, who), text.format(part), answer

    def ask_thing(self):
        r = self.r
        what = r.choice([0, 0, 1, 2, 2, 3, 3, 3, 4])
        if what == 0:
            thing = r.choice(list(COLOR_OF))
            i, text = self.choose(["What color is {}?", "Which color does {} have?", "What is the color of {}?"])
            answer = f"{thing[0].upper()}{thing[1:]} is {COLOR_OF[thing]}."
        elif what == 1:
            thing = r.choice(list(SOUNDS))
            i, text = self.choose(["What does a {} say?", "What sound does a {} make?", "How does a {} sound?"])
            answer = SOUNDS[thing].capitalize() + "!"
        elif what == 2:
            thing = r.choice(list(LEGS))
            a = article(thing)
            i, text = self.choose([f"How many legs does {a} have?", f"How many legs has {a}?", f"Count the legs of {a}."])
            answer = f"{a[0].upper()}{a[1:]} has {LEGS[thing] or 'no'} legs."
        elif what == 3:
            thing = r.choice(list(OPPOSITES))
            i, text = self.choose(["What is the opposite of {}?", "Opposite of {}?", "Tell me the opposite of {}."])
            answer = f"The opposite of {thing} is {OPPOSITES[thing]}."
        else:
            thing = r.choice(list(KIND_OF))
            a = thing if thing[0].isupper() or KIND_OF[thing] == "color" else article(thing)
            i, text = self.choose([f"What is {a}?", f"What kind of thing is {a}?", f"Is {a} {article(KIND_OF[thing])}?"])
            answer = f"{a[0].upper()}{a[1:]} is {article(KIND_OF[thing])}."
            if i == 2:
                answer = f"Yes, {a} is {article(KIND_OF[thing])}."
        return ("thing", what, i, thing), text.format(thing), answer

    def ask_sum(self):
        a, b = self.r.randint(0, 20), self.r.randint(0, 20)
        plus = self.r.random() < 0.5
        if plus and a + b > 20:
            a, b = 20 - a, 20 - b
        if not plus and a < b:
            a, b = b, a
        i, text = self.choose(["What is {} plus {}?", "{} + {}", "{} + {} =", "What is {} + {}?", "How much is {} and {}?", "Add {} and {}."]
                              if plus else
                              ["What is {} minus {}?", "{} - {}", "{} - {} =", "What is {} - {}?", "How much is {} less {}?", "What is left of {} without {}?"])
        return ("sum", plus, i, a, b), text.format(a, b), str(a + b if plus else a - b)

    def ask_number(self):
        r = self.r
        what = r.randrange(6)
        if what == 0:
            x, y = r.sample(range(21), 2)
            i, text = self.choose([f"Which is larger, {x} or {y}?", f"Which is more, {x} or {y}?", f"Is {x} or {y} larger?"])
            return ("number", what, i, x, y), text, str(max(x, y))
        if what == 1:
            x = r.randint(0, 9)
            y = r.randint(x + 2, x + 8)
            i, text = self.choose([f"Count from {x} to {y}.", f"Count from {x} up to {y}.", f"Which numbers go from {x} to {y}?"])
            return ("number", what, i, x, y), text, ", ".join(map(str, range(x, y + 1)))
        if what == 2:
            x = r.randint(0, 20)
            i, text = self.choose([f"Write {x} as a word.", f"What is {x} in words?", f"How do you write {x}?"])
            return ("number", what, i, x), text, NUMBERS[x]
        if what == 3:
            x = r.randint(0, 20)
            i, text = self.choose([f"Write {NUMBERS[x]} as a number.", f"What is {NUMBERS[x]} in digits?", f"Which number is {NUMBERS[x]}?"])
            return ("number", what, i, x), text, str(x)
        days, unit = (DAYS, "day") if what == 4 else (MONTHS, "month")
        x, after = r.randrange(len(days)), r.random() < 0.5
        side = "after" if after else "before"
        i, text = self.choose([f"What {unit} comes {side} {days[x]}?", f"Which {unit} is {side} {days[x]}?", f"What comes {side} {days[x]}?"])
        return ("number", what, i, x, after), text, days[(x + (1 if after else -1)) % len(days)] + "."

    def event(self):
        past, base = self.r.choice(ACTS)
        f = {"who": self.r.choice(OTHERS + list(PEOPLE)), "act": past, "base": base, "n": self.r.randint(2, 20),
             "color": self.r.choice(COLORS), "thing": self.r.choice(THINGS), "place": "the " + self.r.choice(PLACES)}
        f["things"] = plural(f["thing"])
        f["form"] = self.r.randrange(5)
        f["text"] = ["{who} {act} {n} {color} {things} at {place}.", "At {place}, {who} {act} {n} {color} {things}.",
                     "{who} has {n} {color} {things} at {place}.", "{who} went to {place} and {act} {n} {color} {things} there.",
                     "Yesterday {who} {act} {n} {color} {things} at {place}."][f["form"]].format(**f)
        if f["form"] == 2:
            f["act"], f["base"] = "has", "have"
        return f

    def ask_event(self, f):
        does = "does" if f["base"] == "have" else "did"
        i, (q, a) = self.choose([
            ("Who {act} the {things}?", "{who}."), (f"How many {{things}} {does} {{who}} {{base}}?", "{n}."),
            ("What color are the {things}?", "{color}."), (f"What {does} {{who}} {{base}}?", "{n} {color} {things}."),
            ("Where is {who}?", "At {place}."), (f"Where {does} {{who}} {{base}} the {{things}}?", "At {place}.")])
        answer = a.format(**f)
        return ("sentence", i, f["who"], f["thing"], f["n"]), q.format(**f), answer[0].upper() + answer[1:]

    def ask_sentence(self):
        f = self.event()
        key, question, answer = self.ask_event(f)
        return key, f["text"] + " " + question, answer

    def ask_spot(self):
        r = self.r
        things, spots = r.sample(THINGS, 2), r.sample(SPOTS, 2)
        which = r.randrange(2)
        facts = " ".join(f"The {t} is {s}." for t, s in zip(things, spots))
        if r.random() < 0.3:
            facts, which = facts.split(". ")[0] + ".", 0
        thing, spot = things[which], spots[which]
        i, (q, a) = self.choose([(f"Where is the {thing}?", f"The {thing} is {spot}."), (f"What is {spot}?", f"The {thing} is {spot}.")])
        return ("spot", i, thing, spot), facts.rstrip(".") + ". " + q, a

    def ask_outside(self):
        r = self.r
        x = r.random()
        if x < 0.08:
            q = r.choice(FIXED_OUTSIDE)
            return ("outside", q), q, UNKNOWN
        if x < 0.16:
            a, b = r.randint(21, 999), r.randint(2, 999)
            q = r.choice(["What is {} plus {}?", "{} + {}", "What is {} minus {}?", "What is {} times {}?", "{} * {}"]).format(a, b)
            return ("outside", q), q, "I only know numbers up to 20."
        name = r.choice(REAL) if r.random() < 0.2 else r.choice(OTHERS) if r.random() < 0.15 else self.invented()
        word = r.choice(self.words)
        i, text = self.choose(OUTSIDE)
        return ("outside", i, name if "{N}" in text else word), text.format(w=word, N=name), UNKNOWN

    def question(self, held):
        while True:
            key, q, a = self.r.choice(self.kinds)()
            if is_held(key) == held:
                return key, q, a

    def story(self):
        r = self.r
        hero, friend = r.sample(list(PEOPLE), 2)
        work, home, color, animal, pet, _, food = PEOPLE[hero]
        thing, thing2 = r.sample(THINGS, 2)
        place, mood = r.choice(PLACES), r.choice(MOODS)
        s = [r.choice([f"{hero} the {work} lived {home}.", f"Once {hero} the {work} went to the {place}.",
                       f"One {r.choice(DAYS)} {hero} and the {animal} {pet} walked to the {place}."])]
        beats = [
            f"There {hero} found {article(r.choice(COLORS) + ' ' + thing)}.",
            f"{hero} was {mood}, because the {thing} was lost.",
            f"\"What is that?\" asked {friend}. \"It is my {thing},\" said {hero}.",
            f"{friend} came and brought {article(thing2)}.",
            f"They put the {thing} beside the {thing2}.",
            f"\"Please help me,\" said {friend}. So {hero} helped.",
            f"{pet} ran away, but {friend} brought it back.",
            f"{hero} looked for the {thing} and saw it {r.choice(SPOTS)}.",
            f"Then it began to rain, and they ran home.",
            f"They ate {food} together.",
        ]
        s += [beats[i] for i in sorted(r.sample(range(len(beats)), r.randint(2, 4)))]
        s.append(r.choice([f"In the end {hero} was happy and went home.", f"{hero} and {friend} were friends from that day on.",
                           f"That night {hero} slept well."]))
        return " ".join(s)

    def small_talk(self):
        asks, answer = self.r.choice(SMALL_TALK)
        if self.r.random() < 0.1:
            name = self.r.choice(OTHERS + [self.invented()])
            return self.r.choice([f"Hello, I am {name}.", f"My name is {name}.", f"Hi, I am {name}!"]), f"Hello, {name}! What would you like to know?"
        return self.r.choice(asks), answer

    def exchange(self, held):
        x = self.r.random()
        if x < 0.10:
            return [self.small_talk()]
        if x < 0.14:
            return [(self.r.choice(["Tell me a story.", "Tell a story.", "A story, please.", "Do you know a story?",
                                    "Tell me another story.", "Please tell me a short story."]), self.story())]
        if x < 0.22:  # more than one question about a sentence
            f = self.event()
            turns = []
            while len(turns) < 2:
                key, q, a = self.ask_event(f)
                if not is_held(key):
                    turns.append((f["text"] + " " + q if not turns else q, a))
            return turns
        return [self.question(held)[1:]]

    def careless(self, q):
        """The same question as people type it."""
        x = self.r.random()
        if x < 0.06:
            q = q.rstrip("?.!") or q
        if 0.03 < x < 0.09:
            q = q[0].lower() + q[1:]
        return q

    def conversation(self):
        turns = []
        for _ in range(self.r.choice([1, 1, 1, 2, 2, 3, 4])):
            turns += self.exchange(False)
        messages = [("system", self.r.choice(["Be brief.", "You are a helpful assistant.", "Answer the questions."]))
                    ] if self.r.random() < 0.04 else []
        for q, a in turns:
            messages += [("user", self.careless(q)), ("assistant", a)]
        return messages
