"""The variants that actors play in turn, which may change during a run.

They are in a file of the run's folder, so that a restarted learner has the same ones. Numbers are never used again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.machine.environment_arguments import text_of_table
from penstock.machine.system_errors import in_words
from penstock.runs.variants_file import read_variants, write_variants
from penstock.types.replay import relative_shares
from penstock.types.run import PlayedVariant
from penstock.types.variants import Arguments, RunVariant

MOST = 10_000
"""Most variants that a run has had."""


class Population:
    """The variants of a run, without their episodes and returns. Any thread may call.

    Attributes:
        changed: Function that is called after every change, on the thread that made it.
    """

    def __init__(
        self,
        file: Path,
        configured: Sequence[Arguments],
        *,
        check: Callable[[Arguments], None],
        least_share: float,
        writes: RetriedWrites,
        notice: Callable[[str], None],
    ) -> None:
        """Begins with the configured variants, at least one, or continues with those in the file.

        `check` raises `ConfigurationError` for arguments that a variant can't have. `least_share` is the smallest share
        of a variant.
        """
        self._file, self._writes, self._least = file, writes, least_share
        self._configured, self._check = configured, check
        self._lock = threading.Lock()
        self.changed: Callable[[], None] = lambda: None
        self._variants = [RunVariant(number, each) for number, each in enumerate(configured)]
        self._recover(notice)

    @property
    def variants(self) -> tuple[RunVariant, ...]:
        """All variants that the run has had, by number."""
        with self._lock:
            return tuple(self._variants)

    @property
    def active(self) -> tuple[RunVariant, ...]:
        """The variants that are played, by number."""
        return tuple(each for each in self.variants if not each.retired)

    @property
    def played(self) -> tuple[PlayedVariant, ...]:
        """The variants that are played, as actors receive them."""
        return tuple(PlayedVariant(each.number, text_of_table(each.arguments), each.share) for each in self.active)

    def change(self, add: Sequence[Arguments] = (), retire: Sequence[int] = ()) -> tuple[int, ...]:
        """Adds and retires variants, all of them or none; returns the numbers of the added ones.

        Raises `ConfigurationError` if an added variant can't have its arguments, a retired one is not played, or none
        would be left.
        """
        for arguments in add:
            self._check(arguments)
        with self._lock:
            variants, first = list(self._variants), len(self._variants)
            for number in retire:
                if not 0 <= number < first or variants[number].retired:
                    raise ConfigurationError(
                        f"variant {number} is not played; `penstock variants` lists those that are"
                    )
                variants[number] = replace(variants[number], retired=True)
            if first + len(add) > MOST:
                raise ConfigurationError(f"a run can have {MOST:,} variants, and this one has had {first:,} already")
            variants += [RunVariant(first + place, dict(each)) for place, each in enumerate(add)]
            if all(each.retired for each in variants):
                raise ConfigurationError("no variant would be left to play; add one first")
            self._variants = variants
        self._write()
        self.changed()
        return tuple(range(first, first + len(add)))

    def weigh(self, weights: Mapping[int, float]) -> None:
        """Sets the shares from weights of active variants by number, not negative; a variant without one keeps its."""
        with self._lock:
            active = [each for each in self._variants if not each.retired]
            known = [weights.get(each.number, each.share) for each in active]
            shares = dict(zip((each.number for each in active), relative_shares(known, self._least), strict=True))
            self._variants = [replace(each, share=shares.get(each.number, each.share)) for each in self._variants]
        self.changed()

    def _recover(self, notice: Callable[[str], None]) -> None:
        try:
            if not self._file.exists():
                return
            found = read_variants(self._file)
            for each in found[len(self._configured) :]:
                self._check(each.arguments)
        except (OSError, ValueError, ConfigurationError) as error:
            reason = in_words(error, self._file) if isinstance(error, OSError) else error
            notice(f"can't read the variants in {self._file}: {reason}; the run continues with environment.variants")
            return
        same = [each.arguments for each in found[: len(self._configured)]] == [dict(each) for each in self._configured]
        if same and not all(each.retired for each in found):
            self._variants = found
        else:
            notice(
                f"environment.variants differ from those in {self._file}, so the run continues with"
                " environment.variants alone"
            )

    def _write(self) -> None:
        self._writes.write(self._file.name, partial(write_variants, self._file, self.variants))
