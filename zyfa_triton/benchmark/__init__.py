"""Which attention is faster, by how much, and whether it is right: what `zyfa bench` does.

One concept a file, lower ones first: `shapes` (what is asked, how many FLOP it is), `suites` (named
lists of it), `inputs` (the tensors), `gate` (whether a result is right), `timing` and `sampling`
(how long it takes, at which clock and power), `matmul` (what the card can do at most), `peers` (who
takes part), `rows` (the result), `stamp` (on what), `table` and `plot` (how it looks), `session`
(all of it in order). Nothing here prints.
"""
