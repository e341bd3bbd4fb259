"""LongBench-E: strings, reading of its data, the middle cut, buckets, chat rule, scores and averages."""

import json
import zipfile
from dataclasses import replace

import pytest
from small_tokenizers import bpe, byte_level, metaspace

from longeval.errors import UserError
from longeval.tasks import DoesNotFit, Sample, TaskOptions, get_suite, get_task
from longeval.tasks.longbench_e import middle_cut
from longeval.tasks.longbench_e.protocol import DATASETS

CHAT_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def strings(request):
    file = request.path.parent / "protocol_strings.json"
    return json.loads(file.read_text(encoding="utf-8"))["longbench_e"]


def row(number=0, words=100, **changes):
    """A made-up row; `context` has a brace, because only the template is formatted."""
    return {
        "input": f"question {number}?",
        "context": f"Passage {number}: f{{x}} = {{context}} " + "filler text " * 30,
        "answers": [f"answer {number}", "Paragraph 3"],
        "length": words,
        "dataset": "made-up",
        "language": "en",
        "all_classes": ["Paragraph 3", "Food", "answer 0"],
        "_id": f"id{number}",
        **changes,
    }


def write(folder, dataset, rows):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{dataset}_e.jsonl"
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return file


def task_of(folder, dataset="qasper", **options):
    return get_task(f"longbench_e/{dataset}", TaskOptions(data_dir=folder, **options))


def retrieval(rows):
    """`rows` as every metric can score them."""
    return [{**r, "answers": ["Paragraph 3"]} for r in rows]


class TestProtocol:
    def test_datasets_are_upstreams_in_its_order(self, strings):
        assert list(DATASETS) == [name for name in strings if not name.startswith("_")]
        assert list(get_suite("longbench_e").tasks) == list(DATASETS)

    @pytest.mark.parametrize("name", DATASETS)
    def test_every_string_and_number(self, strings, name):
        expected, dataset = strings[name], DATASETS[name]
        assert dataset.prompt == expected["prompt"]
        assert dataset.max_new_tokens == expected["max_new_tokens"]
        assert dataset.metric.__name__ == expected["metric"]
        assert dataset.category == expected["category"]
        assert dataset.chat is expected["chat_template"]
        assert dataset.first_line is expected["first_line_only"]

    def test_stops(self, strings):
        extra = strings["_common"]["samsum_extra_stop"]
        assert DATASETS["samsum"].stop == (extra["value"],)
        assert DATASETS["samsum"].min_new_tokens == extra["min_new_tokens"]
        assert all(not d.stop and not d.min_new_tokens for name, d in DATASETS.items() if name != "samsum")

    def test_prompts_keep_their_ends(self):
        assert DATASETS["passage_count"].prompt.endswith("answer is: ")
        assert DATASETS["passage_retrieval_en"].prompt.endswith("answer is: ")
        assert DATASETS["lcc"].prompt.endswith("code:\n")
        assert DATASETS["repobench-p"].prompt.endswith("code:\n")

    def test_averages(self):
        macro, mean, path = get_suite("longbench_e").averages
        assert (macro.over, macro.members) == ("categories", ())
        assert (mean.over, mean.members) == ("tasks", ())
        assert path.over == "tasks"
        assert set(DATASETS) - set(path.members) == {"passage_count", "passage_retrieval_en"}
        assert len({dataset.category for dataset in DATASETS.values()}) == 6


class TestData:
    def check(self, folder):
        samples = task_of(folder).build(byte_level(), 4000)
        assert [sample.meta["_id"] for sample in samples] == ["id0", "id1"]
        assert samples[0].references == ["answer 0", "Paragraph 3"]
        return samples

    @pytest.mark.parametrize("inside", ["", "data", "longbench", "longbench/data"])
    def test_a_folder(self, tmp_path, inside):
        write(tmp_path / inside, "qasper", [row(0), row(1)])
        self.check(tmp_path)

    @pytest.mark.parametrize("inside", ["data.zip", "longbench/data.zip"])
    def test_an_archive(self, tmp_path, inside):
        write(tmp_path / "made", "qasper", [row(0), row(1)])
        (tmp_path / inside).parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(tmp_path / inside, "w") as archive:
            archive.write(tmp_path / "made" / "qasper_e.jsonl", "data/qasper_e.jsonl")
        self.check(tmp_path)
        if inside == "data.zip":
            self.check(tmp_path / inside)  # --data-dir may be the archive itself

    def test_the_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path))
        write(tmp_path / "corpora" / "longbench", "qasper", [row(0), row(1)])
        self.check(None)

    def test_fingerprint_is_of_the_datasets_own_file(self, tmp_path):
        write(tmp_path, "qasper", [row(0)])
        before = task_of(tmp_path).fingerprint()
        write(tmp_path, "lcc", [row(0)])
        assert task_of(tmp_path).fingerprint() == before
        assert task_of(tmp_path, max_length=77).fingerprint() != before
        assert task_of(tmp_path, buckets="tokens").fingerprint() != before
        write(tmp_path, "qasper", [row(0), row(1)])
        assert task_of(tmp_path).fingerprint() != before

    @pytest.mark.parametrize(
        ("broken", "said"),
        [
            ({**row(), "input": None}, "line 2: the field 'input' must be str, not NoneType"),
            ({k: v for k, v in row().items() if k != "answers"}, "line 2: the row lacks the field 'answers'"),
            ({k: v for k, v in row().items() if k != "length"}, "line 2: the row lacks the field 'length'"),
            ({**row(), "length": "100"}, "line 2: the field 'length' must be int, not str"),
            ({**row(), "answers": "answer"}, "line 2: the field 'answers' must be list, not str"),
            ({**row(), "answers": [1]}, "line 2: the field 'answers' must be a list of strings"),
            ({**row(), "answers": []}, "line 2: the field 'answers' is empty"),
            ({**row(), "all_classes": ["a", 1]}, "line 2: the field 'all_classes' must be a list of strings"),
            ([1], "line 2: must be a JSON object, not list"),
        ],
    )
    def test_bad_rows(self, tmp_path, broken, said):
        write(tmp_path, "qasper", [row(), broken])
        with pytest.raises(UserError) as error:
            task_of(tmp_path).build(byte_level(), 4000)
        assert said in str(error.value)
        assert str(tmp_path / "qasper_e.jsonl") in str(error.value)
        assert "\n" not in str(error.value)

    def test_what_a_metric_needs(self, tmp_path):
        write(tmp_path, "trec", [row(all_classes=None)])
        with pytest.raises(UserError, match="line 1: classification needs the field 'all_classes'"):
            task_of(tmp_path, "trec").build(byte_level(), 4000)
        write(tmp_path, "passage_retrieval_en", [row(answers=["3"])])
        with pytest.raises(UserError, match="line 1: the reference '3' must contain 'Paragraph' and a number"):
            task_of(tmp_path, "passage_retrieval_en").build(byte_level(), 4000)

    def test_broken_line(self, tmp_path):
        file = write(tmp_path, "qasper", [row(), row()])
        file.write_text(file.read_text() + '{"input": "cut')
        with pytest.raises(UserError, match=r"qasper_e\.jsonl line 3: not valid JSON"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_not_utf8(self, tmp_path):
        write(tmp_path, "qasper", []).write_bytes(b'{"input": "\xff"}\n')
        with pytest.raises(UserError, match="line 1: not UTF-8"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_archive_without_the_file(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
            archive.writestr("data/lcc_e.jsonl", "")
        with pytest.raises(UserError, match=r"data\.zip holds no qasper_e\.jsonl"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_line_of_an_archive(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
            archive.writestr("data/qasper_e.jsonl", json.dumps(row()) + "\n{}\n")
        with pytest.raises(UserError, match=r"data\.zip:data/qasper_e\.jsonl line 2: the row lacks the field 'input'"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_no_archive_at_all(self, tmp_path):
        (tmp_path / "data.zip").write_bytes(b"PK not really")
        with pytest.raises(UserError, match=r"data\.zip: not a readable zip file"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_folder_with_other_datasets_only(self, tmp_path):
        write(tmp_path, "lcc", [row()])
        with pytest.raises(UserError, match=r"holds neither qasper_e\.jsonl nor data\.zip"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_nowhere(self, tmp_path, monkeypatch):
        monkeypatch.setattr("longeval.tasks.longbench_e.data.hub_answers", lambda: False)
        with pytest.raises(UserError, match=r"'longbench' not found and not fetched .*--data-dir"):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_from_the_hub(self, tmp_path, monkeypatch):
        """The archive goes into the cache, where the next run finds it."""
        asked = []

        def download(repository, file, repo_type, local_files_only):
            asked.append((repository, file, repo_type, local_files_only))
            with zipfile.ZipFile(tmp_path / "downloaded", "w") as archive:
                archive.writestr("data/qasper_e.jsonl", "".join(json.dumps(row(n)) + "\n" for n in range(2)))
            return str(tmp_path / "downloaded")

        monkeypatch.setattr("longeval.tasks.longbench_e.data.hub_answers", lambda: True)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        self.check(tmp_path)
        self.check(tmp_path)
        assert asked == [("THUDM/LongBench", "data.zip", "dataset", False)]

    def test_from_the_hub_clients_cache(self, tmp_path, monkeypatch):
        """What was downloaded before is found without the hub."""
        repository = tmp_path / "datasets--THUDM--LongBench"
        for folder in ("refs", "snapshots/1a2b"):
            (repository / folder).mkdir(parents=True)
        (repository / "refs" / "main").write_text("1a2b")
        with zipfile.ZipFile(repository / "snapshots" / "1a2b" / "data.zip", "w") as archive:
            archive.writestr("data/qasper_e.jsonl", "".join(json.dumps(row(n)) + "\n" for n in range(2)))
        monkeypatch.setattr("longeval.tasks.longbench_e.data.hub_answers", lambda: False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        self.check(None)


class TestBuild:
    def test_prompt_is_the_template_filled_once(self, tmp_path):
        for name in DATASETS:
            write(tmp_path, name, retrieval([row(7)]))
            sample = task_of(tmp_path, name).build(byte_level(), 4000)[0]
            expected = DATASETS[name].prompt.replace("{context}", "\0").replace("{input}", row(7)["input"])
            assert sample.prompt == expected.replace("\0", row(7)["context"])
            assert byte_level().decode(sample.ids) == "<s>" + sample.prompt
            assert sample.max_new_tokens == DATASETS[name].max_new_tokens

    def test_buckets_by_words(self, tmp_path):
        counts = [0, 3999, 4000, 7999, 8000, 90000]
        write(tmp_path, "qasper", [row(n, words=w) for n, w in enumerate(counts)])
        task = task_of(tmp_path)
        for lengths, expected in (
            ((4000, 4096), [0, 3999]),
            ((8000, 8192), [4000, 7999]),
            ((16000, 16384), [8000, 90000]),
        ):
            for length in lengths:
                samples = task.build(byte_level(), length)
                assert [sample.meta["words"] for sample in samples] == expected
                assert all(sample.length == length for sample in samples)
        assert task.lengths == (4000, 8000, 16000)
        assert [task.length_label(length) for length in (*task.lengths, 4096, 8192, 16384)] == [
            "0–4k",
            "4–8k",
            "8k+",
        ] * 2
        assert [task.bucket(words) for words in counts] == [4000, 4000, 8000, 8000, 16000, 16000]
        assert task.unit == "words"

    def test_buckets_by_tokens_of_the_whole_prompt(self, tmp_path):
        """One byte is one token here, and the tokenizer's BOS counts."""
        empty = len(DATASETS["qasper"].prompt.format(context="", input=""))
        sizes = [3999, 4000, 7999, 8000]
        rows = [row(n, words=5, input="", context="x" * (size - empty - 1)) for n, size in enumerate(sizes)]
        write(tmp_path, "qasper", rows)
        task = task_of(tmp_path, buckets="tokens")
        assert task.unit == "tokens"
        for length, expected in ((4000, [3999]), (8000, [4000, 7999]), (16000, [8000])):
            assert [sample.meta["tokens"] for sample in task.build(byte_level(), length)] == expected
        # A tokenizer without BOS counts one less: nothing is remembered from the first.
        assert [sample.meta["tokens"] for sample in task.build(byte_level("none"), 4000)] == [3998, 3999]

    def test_the_last_bucket_is_not_cut_off(self, tmp_path):
        write(tmp_path, "qasper", [row(n, words=9000) for n in range(160)])
        task = task_of(tmp_path)
        assert len(task.build(byte_level(), 16000, task.count)) == 160
        assert len(task.build(byte_level(), 16000, 3)) == 3

    def test_empty_bucket_does_not_fit(self, tmp_path):
        write(tmp_path, "qasper", [row(words=5000)])
        with pytest.raises(DoesNotFit):
            task_of(tmp_path).build(byte_level(), 4000)

    def test_unknown_bucket(self, tmp_path):
        write(tmp_path, "qasper", [row()])
        with pytest.raises(UserError, match="no bucket 2048; its lengths are 4k"):
            task_of(tmp_path).build(byte_level(), 2048)

    def test_ids_are_stable_and_do_not_depend_on_count(self, tmp_path):
        write(tmp_path, "qasper", [row(n) for n in range(5)])
        task = task_of(tmp_path)
        samples = task.build(byte_level(), 4000)
        assert [sample.id for sample in samples] == [f"longbench_e/qasper/4000/0/{n}" for n in range(5)]
        assert task.build(byte_level(), 4000, 2) == samples[:2]

    def test_chat_rule(self, tmp_path):
        tokenizer = byte_level("none")
        tokenizer.chat_template = CHAT_TEMPLATE
        try:
            for name, dataset in DATASETS.items():
                write(tmp_path, name, retrieval([row()]))
                sample = task_of(tmp_path, name).build(tokenizer, 4000, chat=True)[0]
                text = f"[user]{sample.prompt}[assistant]" if dataset.chat else sample.prompt
                assert tokenizer.decode(sample.ids) == text
        finally:
            tokenizer.chat_template = None

    def test_samsum_stops_at_a_newline(self, tmp_path):
        write(tmp_path, "samsum", [row()])
        sample = task_of(tmp_path, "samsum").build(byte_level(), 4000)[0]
        assert (sample.stop, sample.min_new_tokens, sample.max_new_tokens) == (("\n",), 1, 128)


class TestMiddleCut:
    @pytest.mark.parametrize("limit", [40, 41, 200])
    @pytest.mark.parametrize("make", [byte_level, bpe, metaspace])
    def test_keeps_both_ends_as_upstream_does(self, tmp_path, make, limit):
        tokenizer = make()
        write(tmp_path, "qasper", [row()])
        uncut = task_of(tmp_path).build(tokenizer, 4000)[0]
        sample = task_of(tmp_path, max_length=limit).build(tokenizer, 4000)[0]
        # LongBench/pred.py, written out: special tokens are in the count and in the first half, not in the text.
        ids = tokenizer(uncut.prompt).input_ids
        half = int(limit / 2)
        head = tokenizer.decode(ids[:half], skip_special_tokens=True)
        tail = tokenizer.decode(ids[-half:], skip_special_tokens=True)
        assert sample.prompt == head + tail
        assert list(sample.ids) == tokenizer(head + tail).input_ids
        assert sample.meta["truncated"] is True
        assert sample.meta["tokens"] == len(ids)

    def test_bytes_lose_one_token_to_the_bos_and_one_to_an_odd_limit(self, tmp_path):
        write(tmp_path, "qasper", [row()])
        prompt = task_of(tmp_path).build(byte_level(), 4000)[0].prompt
        assert middle_cut(byte_level(), prompt, 10) == prompt[:4] + prompt[-5:]
        assert middle_cut(byte_level(), prompt, 11) == prompt[:4] + prompt[-5:]
        assert middle_cut(byte_level("none"), prompt, 10) == prompt[:5] + prompt[-5:]

    def test_only_what_is_longer(self, tmp_path):
        write(tmp_path, "qasper", [row(0, context="short"), row(1)])
        size = task_of(tmp_path).build(byte_level(), 4000)[0].meta["tokens"]
        short, long = task_of(tmp_path, max_length=size).build(byte_level(), 4000)
        assert (short.meta["truncated"], long.meta["truncated"]) == (False, True)
        assert len(short.ids) == size
        assert task_of(tmp_path, max_length=size - 1).build(byte_level(), 4000)[0].meta["truncated"] is True

    def test_without_a_limit_nothing_is_cut(self, tmp_path):
        write(tmp_path, "qasper", [row(context="word " * 5000)])
        sample = task_of(tmp_path).build(byte_level(), 4000)[0]
        assert len(sample.ids) == len(sample.prompt) + 1 > 25000
        assert sample.meta["truncated"] is False

    def test_the_cut_comes_before_the_template(self, tmp_path):
        tokenizer = byte_level("none")
        tokenizer.chat_template = CHAT_TEMPLATE
        try:
            write(tmp_path, "qasper", [row()])
            sample = task_of(tmp_path, max_length=40).build(tokenizer, 4000, chat=True)[0]
        finally:
            tokenizer.chat_template = None
        assert len(sample.prompt) == 40
        assert tokenizer.decode(sample.ids) == f"[user]{sample.prompt}[assistant]"

    @pytest.mark.parametrize("limit", [0, 1])
    def test_a_limit_that_leaves_nothing(self, limit):
        with pytest.raises(UserError, match="must be at least 2"):
            get_task("longbench_e/qasper", TaskOptions(max_length=limit))


class TestScore:
    def score(self, dataset, prediction, references, options=None, **meta):
        task = get_task(f"longbench_e/{dataset}", options or TaskOptions())
        sample = Sample(id="", task=task.name, length=0, prompt="", ids=(), references=references, meta=meta)
        return task.score(prediction, sample)

    def test_best_of_the_references(self):
        assert self.score("hotpotqa", "Paris", ["London", "Paris", "Rome"]) == {"qa_f1_score": 1.0}

    @pytest.mark.parametrize("dataset", ["trec", "triviaqa", "samsum"])
    def test_first_line_of_three_datasets(self, dataset):
        score = self.score(dataset, "\n\nFood\nAnimal", ["Food"], all_classes=["Food", "Animal"])
        assert next(iter(score.values())) == pytest.approx(1.0, abs=1e-8)

    def test_other_datasets_are_scored_whole(self):
        assert self.score("hotpotqa", "Food\nAnimal", ["Food"])["qa_f1_score"] == pytest.approx(2 / 3)
        assert self.score("gov_report", "a\nb", ["a b"])["rouge_score"] == pytest.approx(1.0, abs=1e-8)

    def test_first_line_of_all_on_request(self):
        every = TaskOptions(first_line="all")
        assert self.score("hotpotqa", "Food\nAnimal", ["Food"], every)["qa_f1_score"] == 1.0
        assert self.score("gov_report", "a\nb", ["a b"], every)["rouge_score"] == pytest.approx(2 / 3)

    def test_each_rows_own_classes(self):
        assert self.score("trec", "Food", ["Food"], all_classes=["Food"]) == {"classification_score": 1.0}
        assert self.score("trec", "Food", ["Food"], all_classes=["Animal"]) == {"classification_score": 0.0}
        with pytest.raises(UserError, match="'all_classes'"):
            self.score("trec", "Food", ["Food"])

    @pytest.mark.parametrize("name", DATASETS)
    def test_first_score_is_the_headline(self, name):
        score = self.score(name, "Paragraph 3", ["Paragraph 3"], all_classes=["Paragraph 3"])
        assert next(iter(score)) == DATASETS[name].metric.__name__

    @pytest.mark.parametrize("name", ["lcc", "repobench-p"])
    def test_code_has_the_score_with_python_levenshtein_beside(self, name):
        assert self.score(name, "bcb", ["x", "cab"]) == {"code_sim_score": 0.33, "levenshtein": 0.67}
        assert get_task(f"longbench_e/{name}").beside == ("levenshtein",)


class TestOptions:
    def test_unknown_choices(self):
        with pytest.raises(UserError, match="--buckets 'token' is not known; did you mean tokens"):
            get_task("longbench_e/qasper", TaskOptions(buckets="token"))
        with pytest.raises(UserError, match="--first-line 'none' is not known"):
            get_task("longbench_e/qasper", TaskOptions(first_line="none"))

    def test_notes_say_what_was_done_to_prompts_and_predictions(self):
        options = TaskOptions()
        assert get_task("longbench_e/qasper", options).notes() == ["no prompt is cut"]
        options = replace(options, max_length=3500, first_line="all")
        assert get_task("longbench_e/qasper", options).notes() == [
            "prompts of more than 3,500 tokens lose their middle",
            "only the first line of every prediction is scored",
        ]
