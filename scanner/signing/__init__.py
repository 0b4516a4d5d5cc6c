"""Signatures of tables of results: what somebody changed, took away or put back by hand is seen when it is read.

Who can write the results can write any row. So each commit signs the whole table, under the registry's audit secret:

1. A file's name states the SHA-256 of its content (scanner.storage.data_files), so that a set of names says what the
   table holds.
2. A table has two digests, of its files and of its application transactions, by which scans know what is done. Each is
   the sum, modulo 2^126, of HMAC-SHA-256 over each file (its name, rows, and ranges of `path` and `scan_id`) or over
   each transaction that does not expire, and over the signature's number, nonce and other fields; all of them with the
   table's name and Delta id. This is MSet-Add-Hash of Clarke, Devadas, van Dijk, Gassend and Suh, "Incremental
   Multiset Hash Functions and Their Application to Memory Integrity Checking" (2003): without the key nobody finds
   another set of the same digest, and a commit changes it by what it adds and takes away. A nonce is drawn for each
   commit, so that the difference of two digests shows nothing of what is in them. Transactions that expire are of
   nights that are frozen; the table `shards` shows which these are (scanner.results.transactions).
3. The signature stands in Delta's log as application transactions: its number, that of the one that it follows, an id
   that all tables of the results have, the nonce and the digests. They are committed together with the files and
   outlive checkpoints. A commit that brickscan did not make leaves them as they were, and they do not fit.
4. The registry keeps what was signed and given up at each place (scanner.registry.signed_tables). Numbers grow with
   time, in whatever process: an older state has a smaller number, and so has what a killed scan committed and somebody
   kept for later. Two commits that follow one show that the first was taken back. A signature names its place, and
   the number that the registry kept of the table there: one that the registry lacks, as of a scan that was killed, is
   taken only where both fit, so that nothing that was committed to a copy of the results, or under a copy of the
   registry, stands for them. Another table has another id, a table of other results another id of results, a table
   that is gone is missed, and one with rows that the registry does not know beside others that it knows is refused. A
   table is signed and on record as soon as it is made, by the process that made it: nobody else chose its id. The
   first commit at a place that the registry does not know puts all tables there on record, as they are.

Whoever reads a table recomputes its digest from the files of the log, and holds each file that is read against its
name, in the same bytes that are then decoded. Whoever commits to one, or looks up what is done, checks both digests
whenever the table has a new version; sums are kept up, so that this costs as much as what is new. A scan checks all
tables when it begins and before it ends.

Where no registry is named, or its audit secret cannot be read, tables are read as they are and nothing is checked; what
was signed can then not be committed to.
"""

from scanner.signing.checked_files import checked_rows
from scanner.signing.opened_signers import (
    keep_signatures,
    open_results,
    registry_of,
    sign_with,
    signer_of,
    unchecked,
    unchecked_notes,
    use_signer,
)
from scanner.signing.signature import signature_of

__all__ = [
    "checked_rows",
    "keep_signatures",
    "open_results",
    "registry_of",
    "sign_with",
    "signature_of",
    "signer_of",
    "unchecked",
    "unchecked_notes",
    "use_signer",
]
