"""Random numbers by place: importing it registers the workers' random operators."""

from collections.abc import Sequence

def philox(counter: Sequence[int], key: Sequence[int], /) -> list[int]: ...
