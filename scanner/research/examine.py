"""Taking exams: lm_eval's own HFLM whose answers are marked. Imports torch and lm_eval: import it late."""

from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

from scanner.errors import Refused, ScanFailed
from scanner.generation import load_pretrained, marking_of, refused_alike
from scanner.research.plan import GREEDY, Exam, ExamAnswer
from schemas.config import ReaderDtype


class MarkedLM(HFLM):  # type: ignore[misc]
    """HFLM that marks what it generates, or samples without a mark, as an exam says.

    Greedy and without a mark it is HFLM itself: then the task's own generation parameters hold. Otherwise the exam's
    temperature and top-p do, and top-k is off.
    """

    def __init__(self, model: Any, tokenizer: Any, exam: Exam) -> None:  # noqa: ANN401
        super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=exam.batch)
        self._setting, self._mark = exam.setting, exam.watermark()

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **how: Any) -> Any:  # noqa: ANN401
        if self._mark is not None or self._setting.temperature != GREEDY:
            for name in ("do_sample", "temperature", "top_p", "top_k"):
                how.pop(name, None)
            how |= self._decoding(how["attention_mask"], context.shape[1])
        return super()._model_generate(context, max_length, stop, **how)

    def _decoding(self, attention_mask: torch.Tensor, width: int) -> dict[str, Any]:
        setting, lengths = self._setting, attention_mask.sum(dim=1).tolist()
        sampled: dict[str, Any] = {"temperature": setting.temperature, "top_p": setting.top_p, "top_k": 0}
        if self._mark is None:
            return {"do_sample": True, **sampled}
        marking = marking_of(self._mark)
        strength = sampled if marking.samples else {"delta": setting.delta}
        processor = marking.processor(self._mark, [0] * len(lengths), lengths, width, **strength)
        return {"do_sample": False, "logits_processor": LogitsProcessorList([processor])}


class Examiner:
    """A model that takes exams.

    Args:
        folder: as `save_pretrained` writes it, with a tokenizer that transformers can load.
        threads: CPU threads of torch in this process.
        device: where the model runs.
        dtype: precision of its weights.

    Raises:
        Refused: model or tokenizer cannot be loaded.
    """

    def __init__(self, folder: Path, threads: int = 1, device: str = "cpu", dtype: ReaderDtype = "float32") -> None:
        torch.set_num_threads(threads)
        named = f"model {str(folder)!r}"
        self._model = load_pretrained(AutoModelForCausalLM, folder, named, getattr(torch, dtype)).to(device)
        with refused_alike(named):
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)

    def take(self, exam: Exam) -> list[ExamAnswer]:
        """Answer a task's documents.

        Raises:
            Refused: the file is no task with local data, or its first metric is not 0 or 1 for each document.
            ScanFailed: lm_eval gave no answers.
        """
        try:
            manager = TaskManager(include_defaults=False)
            (name,) = manager.load([str(exam.file)])["tasks"]
        except Exception as error:  # a task file can raise anything
            raise Refused(f"utility.tasks: {exam.file} cannot be loaded as a task of lm_eval: {error}") from None
        results = simple_evaluate(
            model=MarkedLM(self._model, self._tokenizer, exam),
            tasks=[str(exam.file)],
            limit=exam.documents,
            bootstrap_iters=0,
            log_samples=True,
            confirm_run_unsafe_code=True,
            task_manager=manager,
        )
        if results is None or not results["samples"].get(name):
            raise ScanFailed(f"utility.tasks: {exam.file} gave no answers")
        return [_answer(exam, name, sample) for sample in results["samples"][name]]


def _answer(exam: Exam, name: str, sample: dict[str, Any]) -> ExamAnswer:
    correct = sample[sample["metrics"][0]]
    if correct not in (0, 1):
        raise Refused(f"utility.tasks: {exam.file}: its first metric gave {correct!r}; one is needed that gives 0 or 1")
    return ExamAnswer(name, int(sample["doc_id"]), str(sample["filtered_resps"][0]), bool(correct))
