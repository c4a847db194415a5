"""The types of settings that name code of users: a class or a function, also by the name that a package registers.

In Python, the class or the function itself is taken. Every process of a run imports it by its name; `foreign_code`
decides which names may be imported.
"""

import functools
import typing
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function, no_info_before_validator_function

from penstock.config.setting_types import EnvironmentName, read_list
from penstock.config.wanted import InWords
from penstock.machine.environment_names import absolute, name_of
from penstock.machine.extensions import ENVIRONMENTS, resolved


@dataclass(frozen=True, slots=True)
class CodeName(InWords):
    """Marks a text that names code of users: a class or a function, which Python code may give itself.

    `foreign_code` finds the settings that have it, so that a file alone can't name such code.

    Attributes:
        text: Words for the values.
        what: Word for the class or the function in messages.
        group: Group of entry points, whose names are taken too (`machine.extensions`); None: there is none.
        built_in: Names that mean code of Penstock.
    """

    what: str
    group: str | None = None
    built_in: tuple[str, ...] = ()

    @classmethod
    def of_class(cls, example: str, what: str, group: str) -> "CodeName":
        """Returns the mark of a setting that names a class, such as `example`."""
        return cls(
            f"a class in a module or a file, such as my_package.my_module:{example} or file.py:{example}", what, group
        )

    @classmethod
    def of_function(cls, example: str, what: str, group: str) -> "CodeName":
        """Returns the mark of a setting that names a function, such as `example`."""
        return cls(
            f"a function in a module or a file, such as my_package.my_module:{example} or file.py:{example}",
            what,
            group,
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema of the text. It makes names absolute, and resolves the names of extensions."""
        schema = no_info_after_validator_function(absolute, handler(source))
        if self.group is not None:
            resolve = functools.partial(resolved, group=self.group, built_in=self.built_in)
            schema = no_info_after_validator_function(resolve, schema)
        return no_info_before_validator_function(functools.partial(name_of, what=self.what), schema)


def code_name(*annotations: object) -> CodeName | None:
    """Returns the mark among the annotations of a setting, or in a part of them; None if there is none."""
    for each in annotations:
        if isinstance(each, CodeName):
            return each
        if found := code_name(*getattr(each, "__metadata__", ()), *typing.get_args(each)):
            return found
    return None


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


EnvironmentId = Annotated[EnvironmentName, pydantic.AfterValidator(functools.partial(resolved, group=ENVIRONMENTS))]
_OPTIMIZER = "a class or a function in a module or a file, such as torch.optim:AdamW or file.py:my_optimizer"
OwnOptimizer = Annotated[
    Annotated[str, pydantic.AfterValidator(_check_optimizer), CodeName(_OPTIMIZER, "optimizer")] | None,
    pydantic.BeforeValidator(_read_optimizer),
]
RULES = ("equal", "return", "error", "learnability")
"""Penstock's rules by which variants share collection."""
Rule = Annotated[
    str,
    CodeName(
        f"{', '.join(RULES)}, or a function in a file or a module, such as file.py:my_curriculum",
        "curriculum",
        "penstock.curricula",
        RULES,
    ),
]
_CALLBACKS = "classes in modules or files, separated by commas, such as file.py:MyCallback"
CallbackNames = Annotated[
    tuple[
        Annotated[
            str,
            CodeName(_CALLBACKS, "callback", "penstock.callbacks"),
            # Runs before the check of the name.
            pydantic.BeforeValidator(_class_of),
        ],
        ...,
    ],
    pydantic.BeforeValidator(_read_callbacks),
    InWords(_CALLBACKS),
]
TRACKERS = ("wandb", "mlflow", "trackio")
"""Trackers of Penstock itself, which are named as their extras."""
TrackerName = Annotated[
    str,
    CodeName(
        "wandb, mlflow, trackio, or a class of your own, such as my_package.module:MyTracker",
        "tracker",
        "penstock.trackers",
        TRACKERS,
    ),
]
