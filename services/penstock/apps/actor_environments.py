"""Makes an actor's environments, makes them again after a failure, and undoes their effects on the process."""

from pathlib import Path

from penstock.acting import faults
from penstock.acting.environments import Environments
from penstock.acting.progress import Progress
from penstock.acting.variants import make_variant
from penstock.apps.environments import take_process_back
from penstock.apps.service import Service
from penstock.config import Config
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.types import EnvironmentSpec


class ActorEnvironments:
    """The environments of one actor. Used only on its main thread."""

    def __init__(self, config: Config, service: Service, progress: Progress) -> None:
        """Makes the environments of the first variant.

        An actor needs their spaces to join the run, and learns its own variant only by joining.

        Raises:
            ConfigurationError: They can't be made.
            EnvironmentFailed: They can't be made, although the launcher's check has made them before.
        """
        self._config, self._service, self._progress = config, service, progress
        self._folder = Path.cwd()
        self._spec: EnvironmentSpec | None = None
        self.variant = 0
        try:
            self.current = self._make()
        except ConfigurationError as error:
            if service.supervised:
                raise EnvironmentFailed(str(error)) from error
            raise
        self._spec = self.current.spec

    @property
    def spec(self) -> EnvironmentSpec:
        """Spaces of the environments, the same in all variants."""
        return self.current.spec

    def become(self, variant: int) -> None:
        """Switches to the environments of this variant. Raises as `make_again`."""
        if variant != self.variant:
            self.variant = variant
            self.make_again()

    def make_again(self) -> Environments:
        """Closes the environments, whatever their state, and returns new ones.

        Raises:
            EnvironmentFailed: They can't be made.
        """
        self.close()
        try:
            self.current = self._make()
        except ConfigurationError as error:
            raise EnvironmentFailed(str(error)) from error
        return self.current

    def close(self) -> None:
        """Closes the environments; an error is only logged."""
        try:
            self.current.close()
        except faults.MISBEHAVIOUR as error:
            self._service.logger.warning("closing an environment failed", error=faults.describe(error))

    def _make(self) -> Environments:
        config, self._progress.doing = self._config, "make"
        try:
            return make_variant(
                config.environment.id,
                config.actor.environments,
                variants=config.environment.training_variants,
                variant=self.variant,
                spec=self._spec,
                imports=config.environment.imports,
                vectorization=config.environment.vectorization,
                frames=config.environment.frame_stack,
                progress=self._progress,
            )
        finally:
            self._progress.doing = ""
            take_process_back(self._service, self._folder)
