"""The first page about the double: its test file runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "operate" / "test.md"


def test_the_first_lines_pass(tmp_path):
    text = re.search(r"^```python\n(# test_moe\.py\n.*?)^```$", PAGE.read_text(), re.M | re.S).group(1)
    (tmp_path / "test_moe.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_moe.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
    # Without the double there is no such module.
    spoilt = text.replace("veriep.testing.install()", "")
    (tmp_path / "test_moe.py").write_text(spoilt)
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "No module named 'torch_npu'" in ran.stdout
