"""Batches between dispatch and combine, found by the tensor that dispatch returned for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from .._group import Group, Handle

# Batches that a loose order may combine again. Each holds a tensor of A * 128 words.
_AGAIN = 8
# Batches that a message can still tell from tensors that dispatch never returned.
_REMEMBERED = 256


@dataclass
class Batch:
    """What combine must be given again."""

    group: Group
    handle: Handle
    number: int
    token: np.ndarray[Any, Any]
    """The tensor that names it, and whose memory is kept, so that no other tensor comes to its address."""
    words: int
    """How many words at its start say where rows came from."""
    arguments: dict[str, Any]
    """Arguments of dispatch that combine has too."""
    ids: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any] | None
    recv_counts: np.ndarray[Any, Any]
    x: np.ndarray[Any, Any] | None
    """The tokens, where special experts need them."""

    def __post_init__(self) -> None:
        self._content = self._of(self.token)
        self.is_open = True

    def _of(self, token: np.ndarray[Any, Any]) -> bytes:
        return bytes(token[: self.words].tobytes() + token[-1:].tobytes())

    def is_named_by(self, token: np.ndarray[Any, Any]) -> bool:
        return token.shape == self.token.shape and self._of(token) == self._content


class Batches:
    """Those of a rank, the newest last."""

    def __init__(self, order: str) -> None:
        self._is_loose = order == "loose"
        self._kept: list[Batch] = []
        self._past: deque[tuple[tuple[int, ...], bytes]] = deque(maxlen=_REMEMBERED)
        self.dispatched = 0

    def add(self, batch: Batch) -> None:
        self._kept.append(batch)
        self.dispatched += 1
        while self._is_loose and len(self._kept) > _AGAIN:
            self._forget(self._kept[0])

    def find(self, name: str, token: np.ndarray[Any, Any]) -> Batch:
        """The batch that a tensor names: the tensor itself, or a copy whose words are those of one batch alone.

        Raises:
            ValueError: no batch, or several.
        """
        at = token.ctypes.data
        for batch in self._kept:
            if batch.token.ctypes.data == at and batch.token.shape == token.shape:
                if batch.is_named_by(token):
                    return batch
                raise ValueError(f"{name}: is not what dispatch returned: its words have been changed")
        named = [batch for batch in self._kept if batch.is_named_by(token)]
        had_the_same = any(
            shape == token.shape and self._begins(token, content) for shape, content in self._past
        )
        if named and not token.size:
            # Tensors of no token are all alike; batches are combined in order.
            return next((batch for batch in named if batch.is_open), named[-1])
        if len(named) == 1 and not had_the_same:
            return named[0]
        if len(named) == 1:
            raise ValueError(
                f"{name}: is a copy, and a batch that has been combined had the same words; "
                "hint: pass what dispatch returned itself"
            )
        if named:
            numbers = ", ".join(str(batch.number) for batch in named)
            raise ValueError(
                f"{name}: is a copy, and batches {numbers} have the same words; hint: pass what dispatch returned itself"
            )
        if had_the_same and self._is_loose:
            raise ValueError(
                f"{name}: its batch is too old: of a loose group the last {_AGAIN} batches are kept"
            )
        if had_the_same:
            raise ValueError(
                f"{name}: its batch has been combined already; hint: order='loose' lets a batch be combined again"
            )
        raise ValueError(f"{name}: is not what dispatch returned for a batch of this group")

    @staticmethod
    def _begins(token: np.ndarray[Any, Any], content: bytes) -> bool:
        words = len(content) // 4 - 1
        return content == token[:words].tobytes() + token[-1:].tobytes()

    def combined(self, batch: Batch) -> None:
        batch.is_open = False
        if not self._is_loose:
            self._forget(batch)

    def _forget(self, batch: Batch) -> None:
        self._kept.remove(batch)
        self._past.append((batch.token.shape, batch._content))
