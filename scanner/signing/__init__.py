"""Sign tables of results, so that changes, removals and restores by hand are noticed when a table is read.

A person who can write the results can write any row. So each commit signs the whole table with the registry's audit
secret:

1. The name of a file contains the SHA-256 of its content (scanner.storage.data_files). The set of names therefore
   fixes the content of the table.
2. A table has two digests: one of its files, and one of its application transactions, which tell scans what is done.
   - Each digest is a sum, modulo 2^126, of HMAC-SHA-256 values. One is over each file (its name, rows, and ranges of
     `path` and `scan_id`) or over each transaction that does not expire. One more is over the signature's number, nonce
     and other fields. All of them include the table's name and Delta id.
   - This is MSet-Add-Hash of Clarke, Devadas, van Dijk, Gassend and Suh, "Incremental Multiset Hash Functions and Their
     Application to Memory Integrity Checking" (2003). Without the key nobody finds another set with the same digest. A
     commit updates a digest by adding and subtracting only the changes.
   - Each commit draws a new nonce, so the difference of two digests reveals nothing about their content.
   - Transactions that expire belong to frozen nights. The table `shards` shows which ones these are
     (scanner.results.transactions).
3. The signature is stored in Delta's log as application transactions: its number, the number of the signature that it
   follows, an id shared by all tables of the results, the nonce and the digests. They are committed together with the
   files and survive checkpoints. A commit by another program leaves them unchanged, and then they no longer fit.
4. The registry keeps a record of signatures and of tables that were given up (scanner.registry.signed_tables), by the
   id of the results.
   - The results may be anywhere. Of a copy and its original, only the one with the last commit fits.
   - Numbers grow with time, in every process. So an older state has a smaller number. The same holds for a commit of a
     killed scan that somebody kept for later.
   - Two commits that follow the same commit show that the first was taken back. So does a commit with a number
     between those of another commit and its predecessor.
   - A signature includes the number that the registry had for the table at that time. If the registry lacks a
     signature, as after a killed scan, the signature is accepted only if that number fits, or if the table's log has
     the signatures in between.
   - Another table has another id, and a table of other results has another id of results. A table that is gone is
     noticed as missing.
   - The process that makes a table signs it and puts it on record at once. So nobody else chose its id.
5. The registry records which results are at which place, by the path that people use, without following links.
   Replacing a folder by another folder or by a link is noticed.
   - At a new path, the table of verdicts there tells which results they are, and a line in the log says where they were
     last. The line is needed because anybody can put other results there without forging a signature.
   - If the registry knows nothing of the results, as after it was restored from an old copy, they are read with a note.
     They accept no commit until a person says that they are the newest.

A reader of a table recomputes its digest from the files in the log, and checks each file that is read against its name.
It decodes the same bytes that it checked. A process that commits to a table, or looks up what is done, checks both
digests for each new version of the table. Sums are updated, so this costs only as much as the changes. A scan checks
all tables when it begins and before it ends.

Without a registry, or if its audit secret cannot be read, tables are read as they are and not checked. Signed tables
then accept no commits.
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
