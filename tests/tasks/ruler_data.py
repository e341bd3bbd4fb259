"""Small corpora in the form of RULER's files, and chat templates for the small tokenizers."""

import json
import random

_WORDS = ["river", "stone", "Maple", "seven", "quick", "paper", "under", "lamp", "green", "window", "early", "north"]
CHAT = "{% for m in messages %}<|user|>You are here: {{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
CHAT_WITH_BOS = "{{ bos_token }}" + CHAT


def sentence(rng):
    words = [rng.choice(_WORDS) for _ in range(rng.randrange(4, 14))]
    return " ".join(words).capitalize() + rng.choice(".?!")


def write_corpora(folder, sentences=900, articles=40, paragraphs=5):
    """PaulGrahamEssays.json, squad.json and hotpotqa.json of random sentences; returns the folder."""
    rng = random.Random(3)
    text = "\n".join(sentence(rng) for _ in range(sentences)).replace(". ", ".\n\n", 3) + " Is it so?(see above)"
    (folder / "PaulGrahamEssays.json").write_text(json.dumps({"text": text}))
    data = []
    for article in range(articles):
        contexts = [f"A{article} P{p}. {sentence(rng)} {sentence(rng)}" for p in range(paragraphs)]
        data.append({"title": f"t{article}", "paragraphs": [_paragraph(c, article, p) for p, c in enumerate(contexts)]})
    (folder / "squad.json").write_text(json.dumps({"version": "v2.0", "data": data}))
    rows = []
    for row in range(30):
        context = [[f"Title {row} {i}", [sentence(rng), " " + sentence(rng)]] for i in range(10)]
        rows.append({"_id": str(row), "question": f"Which of {row}?", "answer": f"answer {row}", "context": context})
    (folder / "hotpotqa.json").write_text(json.dumps(rows))
    return folder


def _paragraph(context, article, number):
    answers = [{"text": f"A{article}", "answer_start": 0}, {"text": f"P{number}", "answer_start": 3}]
    return {
        "context": context,
        "qas": [
            {
                "question": f"q {article} {number}?",
                "id": f"{article}-{number}",
                "answers": answers,
                "is_impossible": False,
            },
            {"question": "impossible?", "id": f"{article}-{number}-x", "answers": [], "is_impossible": True},
        ],
    }
