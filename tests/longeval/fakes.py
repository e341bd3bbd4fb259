"""A model and a suite small enough to see through."""

import numpy as np

from longeval.tasks import DoesNotFit, Sample, Suite, Task
from longeval.types import Generation, TokenScores


class Tokenizer:
    """One token per character."""

    bos_token_id = None
    chat_template = None

    def decode(self, ids):
        return "".join(map(chr, ids))


class Echo(Task):
    """Asks for the sample's own number; needs 10 tokens."""

    suite = "fake"
    version = "1"
    metric = "exact"
    category = "echo"
    lengths = (16, 32)
    count = 4

    def build(self, tokenizer, length, count=None, seed=0, *, chat=False):
        if length < 10:
            raise DoesNotFit(10)
        return [self._sample(index, length, seed) for index in range(count or self.count)]

    def _sample(self, index, length, seed):
        prompt = f"say {index}".ljust(length - 2)
        return Sample(
            id=f"{self.name}/{length}/{seed}/{index}",
            task=self.name,
            length=length,
            prompt=prompt,
            ids=tuple(map(ord, prompt)),
            references=[str(index)],
            max_new_tokens=2,
        )

    def score(self, prediction, sample):
        return {"exact": float(prediction == sample.references[0]), "shown": 1.0}


class Loss(Echo):
    kind = "logprob"
    percent = False
    metric = "nll"

    def score(self, prediction, sample):
        return {"nll": float(-prediction.logprobs.mean())}


SUITE = Suite("fake", "Fake suite", {"echo": Echo, "loss": Loss})


class Model:
    """Answers right, except that it fails on prompts that hold one of `poison`."""

    def __init__(self, poison=()):
        self.name = "fake"
        self.tokenizer = Tokenizer()
        self.trained_length = 20
        self.bos = None
        self.provenance = {"checkpoint_hash": "0", "backend": "fake", "dtype": "float32", "device": "cpu"}
        self.poison = poison
        self.prompts = []

    def _check(self, text):
        for bad in self.poison:
            if bad in text:
                raise RuntimeError(f"cannot do {bad}\nsecond line")

    def generate(self, prompts, max_new_tokens=32, min_new_tokens=0, stop=()):
        for index in reversed(range(len(prompts))):
            text = self.tokenizer.decode(prompts[index])
            self._check(text)
            self.prompts.append(text)
            answer = text.split()[1]
            yield Generation(index, tuple(map(ord, answer)), answer, "stop")

    def token_scores(self, ids):
        self._check(self.tokenizer.decode(ids))
        self.prompts.append(self.tokenizer.decode(ids))
        return TokenScores(np.full(len(ids) - 1, -2.0, np.float32), np.ones(len(ids) - 1, bool))
