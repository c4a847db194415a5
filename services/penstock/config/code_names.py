"""The types of settings that name code of users: a class or a function, also by the name that a package registers.

In Python, the class or the function itself is taken. Every process of a run imports it by its name; `foreign_code`
decides which names may be imported.
"""

import functools
from typing import Annotated

import pydantic

from penstock.config.setting_types import EnvironmentName, read_list
from penstock.config.wanted import InWords
from penstock.machine.environment_names import absolute, name_of
from penstock.machine.extensions import resolved


def _extension(group: str) -> pydantic.AfterValidator:
    """Returns the validator that replaces the name of an extension by its module and class."""
    return pydantic.AfterValidator(functools.partial(resolved, group=group))


def _read_optimizer(value: object) -> object:
    # As other libraries name the optimizer that Penstock has.
    return None if isinstance(value, str) and value.lower() == "adam" else value


def _check_optimizer(name: str) -> str:
    if ":" not in name:
        raise ValueError(f"must be {_OPTIMIZER}; got {name!r}")
    return name


def _read_callbacks(value: object) -> object:
    return read_list(value) if isinstance(value, (str, list, tuple)) else [value]


def _class_of(callback: object) -> object:
    """Returns the class of a callback that is like one made without arguments; a class and a name unchanged.

    Raises `ValueError` if its class can't make it so, because the learner's process makes it once more.
    """
    if isinstance(callback, (str, type)):
        return callback
    if callable(callback) and hasattr(callback, "__qualname__"):
        raise ValueError(f"must be subclasses of penstock.callbacks.Callback; got the function {callback.__qualname__}")
    kind = type(callback)
    try:
        same = bool(vars(kind()) == vars(callback))
    except Exception:
        same = False
    if not same:
        raise ValueError(
            f"can't have an object of {kind.__qualname__} with arguments, because the learner's process makes its own"
            f" without arguments; give the arguments default values, in {kind.__qualname__} or in a subclass of it, and"
            " give the class"
        )
    return kind


EnvironmentId = Annotated[EnvironmentName, _extension("penstock.environments")]
ModuleName = Annotated[
    str,
    pydantic.BeforeValidator(functools.partial(name_of, what="network")),
    pydantic.AfterValidator(absolute),
    _extension("penstock.modules"),
    InWords("a class in a module or a file, such as my_package.my_module:MyNet or file.py:MyNet"),
]
LossName = Annotated[
    str,
    pydantic.BeforeValidator(functools.partial(name_of, what="loss")),
    pydantic.AfterValidator(absolute),
    _extension("penstock.losses"),
    InWords("a function or a class in a module or a file, such as my_package.my_module:MyLoss or file.py:my_loss"),
]
AdvantageName = Annotated[
    str,
    pydantic.BeforeValidator(functools.partial(name_of, what="advantage")),
    pydantic.AfterValidator(absolute),
    _extension("penstock.advantages"),
    InWords("a function in a module or a file, such as my_package.my_module:my_advantage or file.py:my_advantage"),
]
PriorityName = Annotated[
    str,
    pydantic.BeforeValidator(functools.partial(name_of, what="priority")),
    pydantic.AfterValidator(absolute),
    _extension("penstock.priorities"),
    InWords("a function in a module or a file, such as my_package.my_module:my_priority or file.py:my_priority"),
]
_OPTIMIZER = "a class or a function in a module or a file, such as torch.optim:AdamW or file.py:my_optimizer"
OptimizerName = Annotated[
    str,
    pydantic.BeforeValidator(functools.partial(name_of, what="optimizer")),
    pydantic.AfterValidator(_check_optimizer),
    pydantic.AfterValidator(absolute),
    InWords(_OPTIMIZER),
]
OwnOptimizer = Annotated[OptimizerName | None, pydantic.BeforeValidator(_read_optimizer)]
RULES = ("equal", "return", "error", "learnability")
"""Penstock's rules by which variants share collection."""
Rule = Annotated[
    str,
    pydantic.BeforeValidator(functools.partial(name_of, what="curriculum")),
    pydantic.AfterValidator(absolute),
    pydantic.AfterValidator(functools.partial(resolved, group="penstock.curricula", built_in=RULES)),
    InWords(f"{', '.join(RULES)}, or a function in a file or a module, such as file.py:my_curriculum"),
]
CallbackNames = Annotated[
    tuple[
        Annotated[
            str,
            pydantic.BeforeValidator(functools.partial(name_of, what="callback")),
            # Runs before the one above.
            pydantic.BeforeValidator(_class_of),
            pydantic.AfterValidator(absolute),
            _extension("penstock.callbacks"),
        ],
        ...,
    ],
    pydantic.BeforeValidator(_read_callbacks),
    InWords("classes in modules or files, separated by commas, such as file.py:MyCallback"),
]
TRACKERS = ("wandb", "mlflow", "trackio")
"""Trackers of Penstock itself, which are named as their extras."""
TrackerName = Annotated[
    str,
    pydantic.AfterValidator(absolute),
    pydantic.AfterValidator(functools.partial(resolved, group="penstock.trackers", built_in=TRACKERS)),
    InWords("wandb, mlflow, trackio, or a class of your own, such as my_package.module:MyTracker"),
]
