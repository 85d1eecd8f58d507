"""A mutation fuzzer: damaged and hostile files may only ever raise `FormatError`.

Run it with `python -m tests.fuzz 100000`. Each mutant follows from the seed and its number
alone, so that a finding can be repeated: `python -m tests.fuzz --only NUMBER --seed SEED`.
"""
