"""Static rules: tests that check many files, links or settings, and report all that break the rule at once."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

_LONGEST = 600


def for_each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Makes one test of a function that checks one case, with the arguments of `pytest.mark.parametrize`.

    Thousands of parametrised tests would take longer to schedule than to run. Patches are undone and output is dropped
    after each case. A case can't skip, because the cases after it would be lost.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    every = [
        (case.values, case.id)
        if isinstance(case, type(pytest.param()))
        else (tuple(case) if len(keys) > 1 else (case,), None)
        for case in cases
    ]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def check(**given: Any) -> None:
            assert every, "the rule has no case"
            broken = []
            for values, name in every:
                try:
                    test(**dict(zip(keys, values, strict=True)), **given)
                except (Exception, SystemExit, pytest.skip.Exception) as error:
                    said = f"{type(error).__name__}: {error}".replace("\n", "\n    ")[:_LONGEST]
                    broken.append(f"{name or ', '.join(map(str, values))[:_LONGEST]}\n    {said}")
                finally:
                    if "monkeypatch" in given:
                        given["monkeypatch"].undo()
                    if "capsys" in given:
                        given["capsys"].readouterr()
            assert not broken, f"{len(broken)} of {len(every)} break this rule:\n" + "\n".join(broken)

        own = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        check.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return check

    return decorate
