from os import PathLike
from typing import Any

_Keys = list[tuple[str, str]]
_Tensors = list[tuple[str, str, tuple[int, ...], bytes]]
_Options = tuple[str, str, str | None, int | None, int]
_Subject = tuple[Any, ...]

class Plan:
    def __new__(cls, preset: str | None, keys: _Keys, options: _Options) -> Plan: ...
    def plan(self) -> str: ...
    def share(self, rank: int, core: int) -> str: ...
    def export(self, folder: str | PathLike[str], prefix: str, ranks: list[int] | None) -> list[str]: ...

def check(subject: _Subject, options: _Options, of_case: bool) -> str: ...
def oracle(
    subject: _Subject, half: str, returned: _Tensors
) -> list[tuple[str, str, list[int], bytearray]]: ...
def compare(
    expected: _Tensors,
    seen: _Tensors,
    near: tuple[int, float, float],
    ranks: list[int],
    tensors: list[str],
    padded: bool,
) -> tuple[str, list[str]]: ...
