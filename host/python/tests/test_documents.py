"""What the documents show."""

import doctest
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent
DOCUMENTS = [PACKAGE / "README.md", PACKAGE.parent.parent / "docs/generate/python.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_snippet_runs_and_prints_what_it_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"^```(pycon|python)\n(.*?)^```$", document.read_text(), re.M | re.S)
    assert blocks
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, document, "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(text, names, document.name, str(document), 0)
        said = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
        assert not said, "".join(said)
        names = test.globs
