"""BABILONG: strings, the two scores, published samples from folders and the hub, lengths and options."""

import json
from types import SimpleNamespace

import pytest
from datasets import Dataset
from small_tokenizers import byte_level

from longeval.errors import UserError
from longeval.tasks import Sample, TaskOptions, get_suite, get_task
from longeval.tasks.babilong import nominal_length, protocol
from longeval.tasks.babilong.scoring import label_match, substring_match

CONTEXT = "John went to the office. It was a dark and stormy night. Mary went to the garden."


@pytest.fixture(scope="module")
def strings(request):
    file = request.path.parent / "protocol_strings.json"
    return json.loads(file.read_text(encoding="utf-8"))["babilong"]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    """No hub; tests that want one say so."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    hub = SimpleNamespace(answers=False)
    for module in ("corpora", "babilong.hub", "babilong.source"):
        monkeypatch.setattr(f"longeval.tasks.{module}.hub_answers", lambda: hub.answers)
    return hub


def task(name="qa1", **options):
    return get_task(f"babilong/{name}", TaskOptions(**options))


def row(number=0, **changes):
    return {"input": f"{CONTEXT} {number}", "question": "Where is Mary? ", "target": "garden", **changes}


def write_json(folder, rows, config="4k", name="qa1"):
    file = folder / "data" / name / f"{config}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows), encoding="utf-8")
    return file


class TestProtocol:
    def test_template_and_numbers(self, strings):
        common = strings["_common"]
        assert common["template"]["value"] == protocol.TEMPLATE
        assert common["max_new_tokens"]["value"] == protocol.NEW_TOKENS
        assert tuple(common["output_cut_strings"]["value"]) == protocol.OUTPUT_CUTS
        generation = common["generation"]["value"]
        assert generation["subtract"] == protocol.PROMPT_TOKENS
        assert generation["max_n_facts_divisor"] == protocol.TOKENS_PER_LINE
        assert generation["min_sentence_len_tokens"] == protocol.SHORTEST_SENTENCE
        lengths = {name: length for length, name in protocol.OFFICIAL_LENGTHS.items()}
        assert generation["message_lengths"].items() <= lengths.items()
        assert common["datasets"]["configs_0_to_64k"] == [task().length_label(length) for length in task().lengths]
        assert common["datasets"]["splits"] == list(get_suite("babilong").tasks)

    @pytest.mark.parametrize("name", protocol.TASKS)
    def test_wording(self, strings, name):
        ours, upstream = protocol.TASKS[name], strings[name]
        assert (ours.instruction, ours.examples, ours.post_prompt) == tuple(upstream[part] for part in protocol.PARTS)
        assert list(ours.labels) == upstream["labels"]

    def test_curly_quotes_and_the_missing_space(self):
        assert "’person’ is ’location’" in protocol.TASKS["qa1"].post_prompt
        assert "’item’ is in ’location’" in protocol.TASKS["qa2"].post_prompt
        assert "a question.You need" in protocol.TASKS["qa2"].instruction

    @pytest.mark.parametrize("name", protocol.TASKS)
    def test_prompt(self, strings, name):
        """The context is stripped, the whole is stripped (and the question's final space with it), no `Answer:`."""
        parts = strings[name]
        expected = (
            f"{parts['instruction']}\n\n{parts['examples']}\n\n{parts['post_prompt']}\n\n"
            "<context>\nA {brace}.\n</context>\n\nQuestion: Where is Mary?"
        )
        assert protocol.TASKS[name].prompt(" A {brace}.\n", "Where is Mary? ") == expected

    def test_a_part_left_out_leaves_its_blank_lines(self, strings):
        wording = protocol.TASKS["qa1"]
        end = "<context>\nA.\n</context>\n\nQuestion: Q?"
        assert wording.prompt("A.", "Q? ", []) == end  # only at the start they are stripped
        assert wording.prompt("A.", "Q?", ["instruction"]) == f"{strings['qa1']['instruction']}\n\n\n\n\n\n{end}"
        assert wording.prompt("A.", "Q?", ["post_prompt"]) == f"{strings['qa1']['post_prompt']}\n\n{end}"


ROOMS = protocol.TASKS["qa1"].labels
WHO = protocol.TASKS["qa5"].labels


class TestScores:
    @pytest.mark.parametrize(
        ("prediction", "target", "question", "labels", "label", "substring"),
        [
            ("The most recent location of Mary is garden.", "garden", "Where is Mary? ", ROOMS, True, True),
            ("GARDEN", "garden", "Where is Mary? ", ROOMS, True, True),
            ("garden or kitchen", "garden", "Where is Mary? ", ROOMS, False, True),  # a second place
            ("garden. Not the kitchen", "garden", "Where is Mary? ", ROOMS, True, True),  # only the first sentence
            ("garden\nkitchen", "garden", "Where is Mary? ", ROOMS, False, True),  # a newline does not end it
            (".garden", "garden", "Where is Mary? ", ROOMS, False, True),  # what stands before the full stop is empty
            ("garden <context> kitchen", "garden", "Where is Mary? ", ROOMS, True, True),
            ("garden <example> kitchen", "garden", "Where is Mary? ", ROOMS, True, True),
            (
                "garden\n\nQuestion: the kitchen?",
                "garden",
                "Where is Mary? ",
                ROOMS,
                False,
                True,
            ),  # this cut never fires
            ("the officer", "office", "Where is Mary? ", ROOMS, True, True),  # labels are substrings
            ("bathroom, bedroom, garden, hallway, kitchen, office", "garden", "Where? ", ROOMS, False, True),
            ("", "garden", "Where is Mary? ", ROOMS, False, False),
            ("a shed", "garden", "Where is Mary? ", ROOMS, False, False),
            # Labels of the question are never the answer and do not count.
            ("Before the kitchen it was in the garden", "garden", "before the kitchen? ", ROOMS, True, True),
            ("kitchen", "kitchen", "What is north of the kitchen? ", ROOMS, False, True),
            ("Fred gave it to Jeff", "Jeff", "Who did Fred give the apple to? ", WHO, True, True),
            ("fred gave the apple to jeff", "Jeff", "Who did Fred give the apple to? ", WHO, True, True),
            ("Fred gave the milk to Jeff", "Jeff", "Who did Fred give the apple to? ", WHO, False, True),
        ],
    )
    def test_cases(self, prediction, target, question, labels, label, substring):
        assert label_match(prediction, target, question, labels) is label
        assert substring_match(prediction, target) is substring

    def sample(self, name="qa1", target="garden", **meta):
        return Sample("", f"babilong/{name}", 0, "", (), references=[target], meta=meta)

    def test_both_are_named_and_the_label_rule_is_the_headline(self):
        scores = task().score("garden or office", self.sample(question="Where is Mary? "))
        assert list(scores.items()) == [("accuracy", 0.0), ("substring", 1.0)]

    def test_missing_question(self):
        with pytest.raises(UserError, match="babilong/qa1 is scored with the field 'question', which is missing"):
            task().score("garden", self.sample())

    def test_target_outside_the_labels(self):
        with pytest.raises(UserError, match="the target 'shed' is none of qa1's answers"):
            task().score("shed", self.sample(target="shed", question="Where is Mary? "))


class TestPublished:
    def check(self, samples, source, config="4k"):
        assert [sample.references for sample in samples] == [["garden"]] * len(samples)
        assert samples[0].prompt == protocol.TASKS["qa1"].prompt(f"{CONTEXT} 0", "Where is Mary? ")
        assert samples[0].meta["question"] == "Where is Mary? "
        assert samples[0].meta["data"].startswith(f"{source} {config}/qa1 ")
        assert samples[0].max_new_tokens == 20
        assert byte_level().decode(samples[0].ids) == "<s>" + samples[0].prompt

    @pytest.mark.parametrize("inside", ["babilong", "RMT-team/babilong"])
    def test_folder_of_the_set_of_100(self, tmp_path, inside):
        write_json(tmp_path / inside, [row(n) for n in range(3)])
        samples = task(data_dir=tmp_path).build(byte_level(), 4000)
        assert len(samples) == 3
        self.check(samples, "RMT-team/babilong")
        assert task(data_dir=tmp_path).build(byte_level(), 4000, 2) == samples[:2]

    def test_folder_of_the_set_of_1000(self, tmp_path):
        folder = tmp_path / "babilong-1k-samples" / "4k"
        folder.mkdir(parents=True)
        Dataset.from_list([row(n) for n in range(3)]).to_parquet(folder / "qa1-00000-of-00001.parquet")
        Dataset.from_list([row(target="office")]).to_parquet(folder / "qa10-00000-of-00001.parquet")
        self.check(
            task(data_dir=tmp_path, babilong_data="1k").build(byte_level(), 4000), "RMT-team/babilong-1k-samples"
        )

    def test_folder_with_a_readme_that_says_where(self, tmp_path):
        folder = tmp_path / "babilong"
        folder.mkdir()
        (folder / "README.md").write_text(
            "---\nconfigs:\n- config_name: 4k\n  data_files:\n  - split: qa1\n    path: elsewhere.jsonl\n---\n"
        )
        (folder / "elsewhere.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in range(3)))
        self.check(task(data_dir=tmp_path).build(byte_level(), 4000), "RMT-team/babilong")

    def test_hub(self, tmp_path, monkeypatch, offline):
        """config = length, split = task; what came stays in the cache."""
        monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path))
        asked = []

        def load_dataset(*source, **which):
            asked.append((*source, which))
            return [row(n) for n in range(3)]

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        offline.answers = True
        first = task().build(byte_level(), 4000)
        self.check(first, "RMT-team/babilong")
        offline.answers = False
        assert task().build(byte_level(), 4000) == first
        assert asked == [("RMT-team/babilong", "4k", {"split": "qa1"})]

    def test_the_hub_clients_cache(self, tmp_path, monkeypatch):
        """What was downloaded before is found without the hub."""
        repository = tmp_path / "datasets--RMT-team--babilong"
        write_json(repository / "snapshots" / "1a2b", [row(n) for n in range(3)])
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("1a2b")
        (repository / "snapshots" / "1a2b" / "README.md").write_text("only a part is here")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        assert task().data_status().at_hand == "yes"
        self.check(task().build(byte_level(), 4000), "RMT-team/babilong")
        with pytest.raises(UserError, match="no 8k samples of qa1 from RMT-team/babilong: the hub does not answer"):
            task().build(byte_level(), 8000)

    def test_what_datasets_loaded_before(self, tmp_path, monkeypatch):
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
        monkeypatch.setattr("datasets.load_dataset", lambda *source, **which: [row(n) for n in range(3)])
        (tmp_path / "RMT-team___babilong").mkdir()
        assert task().data_status().at_hand == "yes"
        self.check(task().build(byte_level(), 4000), "RMT-team/babilong")

    @pytest.mark.parametrize(
        ("choice", "length", "source"),
        [
            ("auto", 4000, "RMT-team/babilong"),
            ("auto", 64000, "RMT-team/babilong"),
            ("100", 4000, "RMT-team/babilong"),
            ("1k", 32000, "RMT-team/babilong-1k-samples"),
            ("1k", 64000, "RMT-team/babilong"),
        ],
    )
    def test_which_set(self, monkeypatch, offline, choice, length, source):
        monkeypatch.setattr("datasets.load_dataset", lambda *source, **which: [row()])
        offline.answers = True
        sample = task(babilong_data=choice).build(byte_level(), length)[0]
        assert sample.meta["data"].rpartition(" ")[0] == f"{source} {length // 1000}k/qa1"

    def test_default_counts(self):
        assert task().count == task(babilong_data="100").count == task(babilong_data="own").count == 100
        assert task(babilong_data="1k").count == 1000

    def test_hash_of_the_rows(self, tmp_path):
        write_json(tmp_path / "babilong", [row()])
        before = task(data_dir=tmp_path).build(byte_level(), 4000)[0].meta["data"]
        write_json(tmp_path / "babilong", [row(1)])
        assert task(data_dir=tmp_path).build(byte_level(), 4000)[0].meta["data"] != before

    def test_fingerprint_knows_the_users_own_files(self, tmp_path):
        write_json(tmp_path / "babilong", [row()])
        before = task(data_dir=tmp_path).fingerprint()
        assert list(before["RMT-team/babilong"]) == ["4k"]
        write_json(tmp_path / "babilong", [row(1)])
        assert task(data_dir=tmp_path).fingerprint() != before
        assert task(data_dir=tmp_path, babilong_parts="none").fingerprint()["parts"] == []

    @pytest.mark.parametrize(
        ("rows", "said"),
        [
            ([row(), row(target="attic")], "4k.json row 2: the target 'attic' is none of qa1's answers (bathroom, "),
            ([row(), row(target="Garden")], "4k.json row 2: the target 'Garden' is none of qa1's answers"),
            ([{"input": "x", "target": "garden"}], "4k.json row 1: the row lacks the field 'question'"),
            ([row(input=3)], "4k.json row 1: the field 'input' must be str, not int"),
            ([row(), "x"], "4k.json row 2: must be a JSON object, not str"),
        ],
    )
    def test_bad_rows(self, tmp_path, rows, said):
        write_json(tmp_path / "babilong", rows)
        with pytest.raises(UserError) as error:
            task(data_dir=tmp_path).build(byte_level(), 4000)
        assert said in str(error.value)
        assert "\n" not in str(error.value)

    def test_broken_files(self, tmp_path):
        file = write_json(tmp_path / "babilong", [])
        file.write_text('[\n{"input": "cut')
        with pytest.raises(UserError, match=r"4k\.json: not valid JSON .*line 2"):
            task(data_dir=tmp_path).build(byte_level(), 4000)
        file.write_text(json.dumps(row()) + "\n" + json.dumps(row(target="attic")))
        with pytest.raises(UserError, match=r"4k\.json line 2: the target 'attic'"):
            task(data_dir=tmp_path).build(byte_level(), 4000)

    def test_a_length_that_is_nowhere(self, tmp_path):
        write_json(tmp_path / "babilong", [row()])
        with pytest.raises(UserError, match="no 8k samples of qa1 from RMT-team/babilong: the hub does not answer"):
            task(data_dir=tmp_path).build(byte_level(), 8000)

    def test_no_own_build_where_published_samples_were_asked_for(self):
        with pytest.raises(UserError, match=r"published lengths are 0k, 1k, .* not 3,000; use --babilong-data own"):
            task(babilong_data="100").build(byte_level(), 3000)

    def test_status(self, tmp_path, offline):
        problem = task(babilong_data="100").data_status().problem
        assert problem == "put babilong into --data-dir, or go online for RMT-team/babilong"
        auto = task().data_status()
        assert "babi" in auto.problem
        assert auto.problem.endswith(problem)
        assert "or go online" not in task(babilong_data="own").data_status().problem
        write_json(tmp_path / "babilong", [row()])
        assert task(data_dir=tmp_path).data_status().problem is None
        offline.answers = True
        assert task(babilong_data="1k").data_status().problem is None


class TestLengthsAndOptions:
    def test_names(self):
        for length, nominal, label in [
            (0, 0, "0k"),
            (1000, 1000, "1k"),
            (1024, 1000, "1k"),
            (4096, 4000, "4k"),
            (65536, 64000, "64k"),
            (128000, 128000, "128k"),
            (131072, 128000, "128k"),
            (1024**2, 1_000_000, "1M"),
            (10_000_000, 10_000_000, "10M"),
            (3072, 3000, "3k"),
            (1500, 1500, "1500"),
        ]:
            assert nominal_length(length) == task().bucket(length) == nominal
            assert task().length_label(length) == label

    def test_4096_is_4k(self, tmp_path):
        write_json(tmp_path / "babilong", [row()])
        ours, theirs = (task(data_dir=tmp_path).build(byte_level(), length)[0] for length in (4096, 4000))
        assert (ours.prompt, ours.length, theirs.length) == (theirs.prompt, 4096, 4000)
        assert (ours.id, theirs.id) == ("babilong/qa1/4096/0/0", "babilong/qa1/4000/0/0")

    def test_parts(self, tmp_path):
        write_json(tmp_path / "babilong", [row()])
        few = task(data_dir=tmp_path, babilong_parts="instruction, post_prompt")
        prompt = few.build(byte_level(), 4000)[0].prompt
        wording = protocol.TASKS["qa1"]
        assert wording.instruction in prompt
        assert wording.post_prompt in prompt
        assert "<example>" not in prompt
        assert few.notes()[0] == "prompt without examples"
        assert (
            task(data_dir=tmp_path, babilong_parts="none").build(byte_level(), 4000)[0].prompt.startswith("<context>")
        )

    def test_unknown_choices(self):
        with pytest.raises(UserError, match="--babilong-parts 'example' is not known; did you mean examples"):
            task(babilong_parts="instruction,example")
        with pytest.raises(UserError, match="--babilong-data '1000' is not known"):
            task(babilong_data="1000")

    def test_chat(self, tmp_path):
        write_json(tmp_path / "babilong", [row()])
        tokenizer = byte_level("none")
        tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
        try:
            sample = task(data_dir=tmp_path).build(tokenizer, 4000, chat=True)[0]
        finally:
            tokenizer.chat_template = None
        assert tokenizer.decode(sample.ids) == f"[user]{sample.prompt}[assistant]"
