"""What LongBench-E fixes: the 13 datasets with their prompts, limits, metrics and categories.

Source: THUDM/LongBench (MIT) at 2e00731f, LongBench/config/dataset2prompt.json and dataset2maxlen.json, pred.py,
eval.py, task.md. Spaces and newlines at the ends of prompts count; the tests compare every string byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from longeval.tasks.longbench_e import scorers
from longeval.tasks.longbench_e.scorers import Metric


@dataclass(frozen=True)
class Dataset:
    """`prompt`: filled with `str.format` from a row's `context` and `input`. `chat`: whether chat models get it through
    their template. `first_line`: whether only the first line of a prediction is scored. `stop`: text that ends a
    generation of at least `min_new_tokens`. `beside`: another score of the same name in published tables.
    """

    prompt: str
    max_new_tokens: int
    metric: Metric
    category: str
    chat: bool
    first_line: bool
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0
    beside: Metric | None = None


_QASPER = (
    "You are given a scientific article and a question. Answer the question as concisely as you can, using a "
    "single phrase or sentence if possible. If the question cannot be answered based on the information in the "
    'article, write "unanswerable". If the question is a yes/no question, answer "yes", "no", or '
    '"unanswerable". Do not provide any explanation.\n\n'
    "Article: {context}\n\n"
    " Answer the question based on the above article as concisely as you can, using a single phrase or "
    "sentence if possible. If the question cannot be answered based on the information in the article, write "
    '"unanswerable". If the question is a yes/no question, answer "yes", "no", or "unanswerable". Do '
    "not provide any explanation.\n\n"
    "Question: {input}\n\n"
    "Answer:"
)
_MULTIFIELDQA_EN = (
    "Read the following text and answer briefly.\n\n"
    "{context}\n\n"
    "Now, answer the following question based on the above text, only give me the answer and do not output any "
    "other words.\n\n"
    "Question: {input}\n"
    "Answer:"
)
_MULTI_DOCUMENT = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other "
    "words.\n\n"
    "The following are given passages.\n"
    "{context}\n\n"
    "Answer the question based on the given passages. Only give me the answer and do not output any other "
    "words.\n\n"
    "Question: {input}\n"
    "Answer:"
)
_GOV_REPORT = (
    "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
    "Report:\n"
    "{context}\n\n"
    "Now, write a one-page summary of the report.\n\n"
    "Summary:"
)
_MULTI_NEWS = (
    "You are given several news passages. Write a one-page summary of all news. \n\n"
    "News:\n"
    "{context}\n\n"
    "Now, write a one-page summary of all the news.\n\n"
    "Summary:"
)
_TREC = "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}"
_TRIVIAQA = (
    "Answer the question based on the given passage. Only give me the answer and do not output any other "
    "words. The following are some examples.\n\n"
    "{context}\n\n"
    "{input}"
)
_SAMSUM = "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}"
_PASSAGE_COUNT = (
    "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully "
    "read these paragraphs and determine how many unique paragraphs there are after removing duplicates. In "
    "other words, how many non-repeating paragraphs are there in total?\n\n"
    "{context}\n\n"
    "Please enter the final count of unique paragraphs after removing duplicates. The output format should "
    "only contain the number, such as 1, 2, 3, and so on.\n\n"
    "The final answer is: "
)
_PASSAGE_RETRIEVAL_EN = (
    "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the "
    "abstract is from.\n\n"
    "{context}\n\n"
    "The following is an abstract.\n\n"
    "{input}\n\n"
    "Please enter the number of the paragraph that the abstract is from. The answer format must be like "
    '"Paragraph 1", "Paragraph 2", etc.\n\n'
    "The answer is: "
)
_LCC = "Please complete the code given below. \n{context}Next line of code:\n"
_REPOBENCH_P = "Please complete the code given below. \n{context}{input}Next line of code:\n"

DATASETS = {
    "qasper": Dataset(_QASPER, 128, scorers.qa_f1_score, "Single-document QA", chat=True, first_line=False),
    "multifieldqa_en": Dataset(
        _MULTIFIELDQA_EN, 64, scorers.qa_f1_score, "Single-document QA", chat=True, first_line=False
    ),
    "hotpotqa": Dataset(_MULTI_DOCUMENT, 32, scorers.qa_f1_score, "Multi-document QA", chat=True, first_line=False),
    "2wikimqa": Dataset(_MULTI_DOCUMENT, 32, scorers.qa_f1_score, "Multi-document QA", chat=True, first_line=False),
    "gov_report": Dataset(_GOV_REPORT, 512, scorers.rouge_score, "Summarization", chat=True, first_line=False),
    "multi_news": Dataset(_MULTI_NEWS, 512, scorers.rouge_score, "Summarization", chat=True, first_line=False),
    "trec": Dataset(_TREC, 64, scorers.classification_score, "Few-shot learning", chat=False, first_line=True),
    "triviaqa": Dataset(_TRIVIAQA, 32, scorers.qa_f1_score, "Few-shot learning", chat=False, first_line=True),
    "samsum": Dataset(
        _SAMSUM,
        128,
        scorers.rouge_score,
        "Few-shot learning",
        chat=False,
        first_line=True,
        stop=("\n",),
        min_new_tokens=1,
    ),
    "passage_count": Dataset(_PASSAGE_COUNT, 32, scorers.count_score, "Synthetic", chat=True, first_line=False),
    "passage_retrieval_en": Dataset(
        _PASSAGE_RETRIEVAL_EN, 32, scorers.retrieval_score, "Synthetic", chat=True, first_line=False
    ),
    **{
        name: Dataset(
            prompt,
            64,
            scorers.code_sim_score,
            "Code completion",
            chat=False,
            first_line=False,
            beside=scorers.levenshtein,
        )
        for name, prompt in (("lcc", _LCC), ("repobench-p", _REPOBENCH_P))
    },
}
