# SPDX-License-Identifier: MIT
"""What is asked: three workloads whose texts follow from a seed.

A workload has threads (a document, or a chat) and a main round of requests, the same number
for each thread. Behind it come two short rounds, one request for each thread, with all
processes restarted between them.

    documents   one system prompt, one document in front of each question; questions to one
                document have nothing else in common
    chats       one system prompt; each turn repeats the whole chat with the answers that
                this contender gave
"""

import random

WORDS = """the of and to in a is that for it as was with be by on not he his but at are this
have from or had an they which one you were all her she there would their we him been has when
who will no more if out so up said what its about than into them can only other time new some
could these two may first then do any like my now over such our man me even most made after
also did many off before must well back through years where much your way down should because
long each just state those people too world still between life being under same while last
might us great old year come since go against right came take used himself few house use place
during high without again home around small however found part school once general upon every
left number course war until always away something fact water less public put think almost hand
enough far took head yet government system better set told nothing night end why called find
going look asked later knew point next program city business give group toward young days let
room within side social given present several order national rather second face possible
""".split()

SYSTEM_W1 = ("You answer questions about papers that are pasted in front of them, in one short "
             "sentence and only from the paper.")


def sentence(rng):
    words = [rng.choice(WORDS) for _ in range(rng.randint(6, 14))]
    return " ".join(words).capitalize() + "."


def text(rng, n_words):
    """About this many words; always the same for the same state of rng."""
    out, n = [], 0
    while n < n_words:
        s = sentence(rng)
        n += s.count(" ") + 1
        out.append(s)
    return " ".join(out)


class Workload:
    """threads: for each of them the texts that its user sends, one for each request.
    rounds: (name, [thread …]) in the order in which they are asked."""

    def __init__(self, name, title, seed, threads, requests, answer_tokens, in_turn=False):
        """in_turn: nobody asks again before all others have asked."""
        self.name, self.title, self.seed = name, title, seed
        self.n_threads, self.answer_tokens = threads, answer_tokens
        rng = random.Random(f"{seed} {name} order")

        def all_once():
            return rng.sample(range(threads), threads)
        if in_turn:
            order = [t for _ in range(requests) for t in all_once()]
        else:
            order = [t for t in range(threads) for _ in range(requests)]
            rng.shuffle(order)
        self.rounds = [("main", order), ("before", all_once()), ("after", all_once())]

    def rng(self, *what):
        return random.Random(" ".join(map(str, (self.seed, self.name, *what))))

    def start(self):
        """State of one contender's conversation: [asked so far, messages] per thread."""
        return [[0, []] for _ in range(self.n_threads)]

    def messages(self, state, thread):
        raise NotImplementedError

    def answered(self, state, thread, answer):
        raise NotImplementedError

    def request(self, state, thread, seed):
        return {"messages": self.messages(state, thread), "max_tokens": self.answer_tokens,
                "temperature": 0, "seed": seed, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}}


class Documents(Workload):
    """Each question stands alone behind its document."""

    def __init__(self, name, seed, threads, requests, document_tokens, cut):
        super().__init__(name, f"{threads} documents of {document_tokens:,} tokens, "
                         f"{requests} questions each in random order", seed, threads,
                         requests, 8)
        self.documents = [cut(text(self.rng("document", t), document_tokens),
                              document_tokens) for t in range(threads)]

    def messages(self, state, thread):
        question = text(self.rng("question", thread, state[thread][0]), 12)
        return [{"role": "system", "content": SYSTEM_W1},
                {"role": "user",
                 "content": f"{self.documents[thread]}\n\nQuestion: {question}"}]

    def answered(self, state, thread, answer):
        state[thread][0] += 1


class Chats(Workload):
    """Turns of one chat wait for each other."""

    def __init__(self, name, seed, threads, requests, system_words, turn_words, in_turn=False):
        order = ("a chat's next turn behind one of all others" if in_turn
                 else "in random order")
        super().__init__(name, f"{threads} chats of {requests} turns, one system prompt of "
                         f"about {system_words:,} words, turns of about {turn_words} words, "
                         f"{order}", seed, threads, requests, 16, in_turn)
        self.system = text(self.rng("system"), system_words)
        self.turn_words = turn_words

    def messages(self, state, thread):
        n, history = state[thread]
        turn = text(self.rng("turn", thread, n), self.turn_words)
        if not history:
            history.append({"role": "system", "content": self.system})
        if history[-1]["role"] != "user":
            history.append({"role": "user", "content": turn})
        return list(history)

    def answered(self, state, thread, answer):
        state[thread][0] += 1
        state[thread][1].append({"role": "assistant", "content": answer})


def make(name, seed, quick, cut):
    """W1, W2 or W3. cut(text, n): its first n tokens, as text."""
    if name == "W1":
        return Documents(name, seed, 8 if quick else 16, 4 if quick else 8, 1000, cut)
    if name == "W2":
        return Chats(name, seed, 16 if quick else 64, 4 if quick else 6, 400, 60)
    return Chats(name, seed, 40 if quick else 200, 2 if quick else 3, 60, 120, in_turn=True)


class Trie:
    """Token sequences; shared starts are one path."""

    def __init__(self):
        self.edges = {}

    def add(self, ids):
        """Returns how many of them were new."""
        at, before = 0, len(self.edges)
        for token in ids:
            at = self.edges.setdefault((at, token), len(self.edges) + 1)
        return len(self.edges) - before


def survey(w, ids):
    """(working set: tokens that a store needs for every prompt of the main round, shared
    starts once; share of the prompt tokens that a store of any size could reuse). Answers
    are as many words as they have tokens. ids(messages, answered): their tokens."""
    prompts, everything, state = Trie(), Trie(), w.start()
    total = new = 0
    for thread in w.rounds[0][1]:
        messages = w.messages(state, thread)
        prompt = ids(messages, False)
        answer = text(w.rng("answer", thread, state[thread][0]), w.answer_tokens)
        total += len(prompt)
        prompts.add(prompt)
        new += everything.add(prompt)
        everything.add(ids(messages + [{"role": "assistant", "content": answer}], True))
        w.answered(state, thread, answer)
    return len(prompts.edges), (total - new) / total
