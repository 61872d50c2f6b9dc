# SPDX-License-Identifier: Apache-2.0
"""What locust's users do; test_http_locust.py runs this with `locust --headless`.

Each answer is compared with the first one to the same question: under load it stays what it was.
"""
import json
import random

import locust

QUESTIONS = [f"{word} " * n for n, word in enumerate(("alpha", "beta gamma", "delta", "epsilon zeta eta", "theta", "iota"), 2)]
FIELDS = {"temperature": 1.2, "max_tokens": 24, "ignore_eos": True}
known = {}


class Asker(locust.HttpUser):
    abstract = True
    wait_time = locust.between(0, 0.02)

    def ask(self, path, body, name, read, stream=False):
        """read(response) -> text."""
        with self.client.post(path, json=body, name=name, stream=stream, catch_response=True, timeout=120) as r:
            if r.status_code != 200:
                r.failure(f"{r.status_code}: {r.text[:300]}")
                return
            text = read(r)
            if text is None:
                r.failure("the stream has no end")
                return
            question = json.dumps([path, body.get("prompt") or body.get("messages"), body["seed"]])
            if known.setdefault(question, text) != text:
                r.failure(f"{question}: {text!r} instead of {known[question]!r}")

    def completion(self, stream):
        return {"prompt": random.choice(QUESTIONS), "seed": random.randrange(4), "stream": stream, **FIELDS}

    def chat(self, stream):
        return {"messages": [{"role": "user", "content": random.choice(QUESTIONS)}], "seed": random.randrange(4),
                "stream": stream, **FIELDS}


def text_of(choice):
    if "delta" in choice:
        return choice["delta"].get("content") or ""
    return choice["text"] if "text" in choice else choice["message"]["content"]


def whole(r):
    return text_of(r.json()["choices"][0])


def streamed(r):
    """The text, or None where the end is missing."""
    text, last = "", None
    for line in r.iter_lines():
        if line.startswith(b"data: "):
            last = line[6:]
            if last != b"[DONE]":
                text += "".join(map(text_of, json.loads(last)["choices"]))
    return text if last == b"[DONE]" else None


class Unstreamed(Asker):
    weight = 3

    @locust.task
    def complete(self):
        self.ask("/v1/completions", self.completion(False), "completions", whole)

    @locust.task
    def converse(self):
        self.ask("/v1/chat/completions", self.chat(False), "chat", whole)


class Watcher(Asker):
    """Looks around."""
    weight = 1

    @locust.task
    def look(self):
        self.client.get("/health", timeout=120)
        self.client.get("/v1/models", timeout=120)
        self.client.get("/metrics", timeout=120)
        self.client.post("/tokenize", json={"content": random.choice(QUESTIONS)}, timeout=120)


class Streamed(Asker):
    weight = 3

    @locust.task
    def complete(self):
        self.ask("/v1/completions", self.completion(True), "completions, streamed", streamed, stream=True)

    @locust.task
    def converse(self):
        self.ask("/v1/chat/completions", self.chat(True), "chat, streamed", streamed, stream=True)


class Leaver(Asker):
    """Goes away in the middle of its streams."""
    weight = 1

    @locust.task
    def leave(self):
        body = {**self.completion(True), "max_tokens": 1500}
        with self.client.post("/v1/completions", json=body, name="left", stream=True, catch_response=True, timeout=120) as r:
            for n, _ in enumerate(r.iter_lines()):
                if n > random.randrange(6):
                    break
            r.close()
