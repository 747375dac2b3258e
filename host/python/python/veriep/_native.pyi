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

_Array = tuple[int, int]

class Handle: ...

_Given = tuple[str | None, list[_Keys], tuple[list[int], int] | None, tuple[float, str, str]]
_About = tuple[int, int, int, int, list[str], bool]

class Member:
    @staticmethod
    def join(
        place: tuple[int, int],
        rendezvous: tuple[str | None, Any],
        given: _Given,
        patience: float,
        beside: Member | None,
    ) -> Member: ...
    @staticmethod
    def local(given: _Given, beside: list[Member]) -> list[Member]: ...
    def about(self) -> tuple[int, int, list[_About]]: ...
    def experts(self) -> list[int]: ...
    def dispatch(
        self,
        layer: int,
        given: list[_Array],
        mask: tuple[int, int, bool] | None,
        scales: _Array | None,
        call: int | None,
    ) -> tuple[Handle, int, int, list[_Array]]: ...
    def combine(
        self,
        of: Handle,
        given: tuple[_Array, _Array | None, _Array | None, list[_Array]],
        x_out: _Array,
    ) -> None: ...
    def close(self) -> None: ...

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
    tail: tuple[bool, str | None],
) -> tuple[str, list[str]]: ...
