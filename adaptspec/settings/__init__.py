"""Reads the settings that a dataclass declares: flags win over variables, variables over a YAML file, over defaults.

A setting is declared once, as a field with its type, bounds and docstring:

    max_num_seqs: Annotated[int, Ge(1)] = 16
    \"\"\"Requests that run at once.\"\"\"

Its flag is `--max-num-seqs`, its variable `ADAPTSPEC_MAX_NUM_SEQS`, its key in a file `max_num_seqs`. The first line of
the docstring is the help of the flag; `reference` has all of it. Imports nothing that takes time.
"""

from adaptspec.settings.fields import Setting
from adaptspec.settings.flags import add_flags, argument_type, words_of
from adaptspec.settings.reference import reference
from adaptspec.settings.sources import dump, load

__all__ = ["Setting", "add_flags", "argument_type", "dump", "load", "reference", "words_of"]
