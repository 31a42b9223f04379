"""``make bench``: one file per question, each answered by a ratio to something measured beside it.

Figures of one machine say little about another one. What a ratio compares ran in the same minutes,
on the same cores and the same disk, in turns.
"""
