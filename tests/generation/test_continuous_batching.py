"""Transformers' continuous batching drops or keeps processors by what they declare: ours raise an error."""

import pytest
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from scanner.errors import Refused
from scanner.generation.mark import MARKING
from scanner.generation.processor import RowsProcessor


@pytest.mark.parametrize(
    "kind", sorted({m.processor for m in MARKING.values()} | {RowsProcessor}, key=lambda k: k.__name__)
)
@pytest.mark.parametrize("drops", [True, False])
def test_no_processor_of_ours_goes_into_continuous_batching(kind, drops):
    processors = LogitsProcessorList([object.__new__(kind)])
    with pytest.raises(Refused, match="moves requests between rows"):
        ContinuousBatchingLogitsProcessorList(processors, drop_unsupported_processors=drops)
