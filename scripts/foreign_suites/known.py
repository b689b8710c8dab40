"""Differences that docs/limitations.md explains, in lines "| `suite` | `test id` | why |"; * and ? as in a shell. The id may have
its program's name before it."""
import fnmatch
import os
import pathlib
import re

LINE = re.compile(r"^\| `([\w-]+)` \| `([^`]+)` \|", re.MULTILINE)


def read():
    text = (pathlib.Path(os.environ["SANSHIM_ROOT"]) / "docs" / "limitations.md").read_text()
    return LINE.findall(text.partition("## Tests of other projects")[2])


def expected(suite, difference):
    ids = difference.test, f"{difference.unit}: {difference.test}"
    return any(suite == name and fnmatch.filter(ids, pattern) for name, pattern in read())
