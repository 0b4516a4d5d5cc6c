"""The format of docs/examples/add_a_format.py, the same without a law, and a worker whose process knows both."""

from scanner.cluster.worker import Worker
from scanner.watermark.formats import FORMATS
from tests.support.examples import example

ToyFormat = example("add_a_format").HalfOfAll


class LawlessFormat(ToyFormat):
    """The same format without a known law of its scores."""

    name = "lawless"

    def label(self):
        return f"lawless;salt={self.salt}"

    def law(self):
        return None


class ToyWorker(Worker):
    """A worker that registers these formats in its process."""

    def __init__(self, *arguments):
        FORMATS.update({format_.name: format_ for format_ in (ToyFormat, LawlessFormat)})
        super().__init__(*arguments)
