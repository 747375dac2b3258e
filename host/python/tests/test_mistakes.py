"""What is said of each mistake, as docs/reference/torch_npu.md has it. SNAPSHOTS=overwrite writes the page's tables."""

import os
import re
from pathlib import Path

import pytest
import veriep.torch_npu
from mistakes import MISTAKES, table
from veriep.testing import Ranks

PAGE = Path(__file__).parents[3] / "docs/reference/torch_npu.md"


def golden(name, text):
    """The part of the page between two marks is this text."""
    page = PAGE.read_text()
    marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    begin, end = page.index(marks[0]) + len(marks[0]), page.index(marks[1])
    if os.environ.get("SNAPSHOTS") == "overwrite":
        PAGE.write_text(page[:begin] + "\n" + text + "\n" + page[end:])
    else:
        assert page[begin:end].strip() == text.strip(), "stale: SNAPSHOTS=overwrite pytest writes it"


def said(name):
    """What `Ranks.run` raises first, on one line and without what differs between two runs."""
    function, options = MISTAKES[name]
    with pytest.raises(Exception) as raised:
        Ranks(2, **options).run(function)
    text = f"{type(raised.value).__name__}: {raised.value}".splitlines()[0]
    text = re.sub(r"pid [0-9]+, host [^,]+", "pid 4711", text)
    # How a process has ended is not always known yet.
    text = text.replace("runs no more", "was killed by signal 9")
    return "`` " + text.replace("|", "\\|") + " ``"


def test_each_mistake_has_its_message():
    assert len(MISTAKES) >= 10
    golden("mistakes", table({name: said(name) for name in MISTAKES}))


def test_the_page_has_every_parameter():
    golden("parameters", veriep.torch_npu.table())
