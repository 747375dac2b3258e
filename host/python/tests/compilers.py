"""The compilers of a generator of kernels, as far as they are there."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
# What a compiler for AscendC defines, on one that is not. Its programs have these types without an include.
CCE = [
    "-x",
    "c++",
    "-D__CCE_AICORE__=220",
    "-D__aicore__=",
    "-D__global__=",
    "-D__gm__=",
    "-include",
    "stdint.h",
]


def nvcc():
    """It comes from the package index as well."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    return shutil.which("nvcc") or next(map(str, packages.glob("*/bin/nvcc")), None)


def libraries():
    """Those of the package are where it does not look for them."""
    return ["-L", str(Path(nvcc()).parent.parent / "lib")] if nvcc() else []


def commands():
    """By name, the start of a command line."""
    all_ = {
        "C99": ["cc", "-std=c99", *WARNINGS],
        "C++17": ["c++", "-std=c++17", "-x", "c++", *WARNINGS],
        "AscendC": ["clang++", "-std=c++17", *CCE, *WARNINGS],
        "CUDA's host pass": [nvcc(), "-std=c++17", "-x", "cu", "-arch=sm_90", *libraries()],
    }
    return {name: command for name, command in all_.items() if command[0] and shutil.which(command[0])}


def needed(name):
    """The start of a command line, without which a test is left out."""
    command = commands().get(name)
    if command is None:
        pytest.skip(f"no compiler for {name}")
    return command


def compiled(command, source, program, *more):
    done = subprocess.run([*command, "-o", program, source, *more], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return program
