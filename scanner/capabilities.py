"""What a scan may have besides its core. A line turns a capability on; without its line, its folder can be removed."""

from scanner.follow_up import FollowUp
from scanner.ngram_filter.follow_up import learn_ngrams

FOLLOW_UPS: tuple[FollowUp, ...] = (learn_ngrams,)
"""Work after the documents of a scan and its audit, in this order."""
