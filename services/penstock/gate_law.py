"""The law of the gate: which fresh segments, degree, windows, shards and store fit together.

`config`, `replay.admission`, `replay.buffer` and `rpc.clients.sharded_source` raise the reasons that the `*_conflict`
functions return. The arguments have the same meaning everywhere:

    fresh    fresh segments per batch (F); with 0, nothing limits collection
    degree   batches that collection may run ahead of training (d)
    window   segments in an actor's window, one per environment
    shards   number of replay services
    least    smallest share of collection of a slot, relative to an equal share
"""


def window_conflict(fresh: int, degree: int, window: int, other: int | None = None) -> str | None:
    """Returns the reason for which a window can never be granted; None if it can. `other` is another actor's size."""
    refused = f"windows of {window} segments (actor.environments {window}) can't be granted:"
    if fresh == 0:
        return None
    if degree == 0 and fresh % window:
        return (
            f"{refused} with off_policy_degree 0, the {fresh} fresh segments of a batch must be a multiple of that;"
            " change sampling.batch_segments, sampling.fresh_fraction or actor.environments"
        )
    if degree == 0 and other is not None:
        return (
            f"{refused} another actor's have {other}, and with off_policy_degree 0 and {fresh} fresh segments a batch"
            " could wait for a window that does not fit; give all actors the same number of environments"
        )
    if degree > 0 and window > degree * fresh:
        return (
            f"{refused} they exceed off_policy_degree {degree} times the {fresh} fresh segments of a batch; raise"
            " sampling.batch_segments or lower actor.environments"
        )
    return None


def shards_conflict(fresh: int, shards: int) -> str | None:
    """Returns the reason for which shards can't divide a batch's fresh segments; None if they can."""
    if shards > 1 and fresh == 0:
        return (
            f"sampling.fresh_fraction 0 requires a single replay service, and there are {shards}: their parts of a"
            " batch are matched by its fresh segments; set train.replay_shards to 1 and learner.replay_addresses to one"
            " service, or raise the fraction"
        )
    if fresh < shards and fresh:
        return (
            f"the {fresh} fresh segments of a batch can't be spread over {shards} replay services; raise"
            " sampling.batch_segments or sampling.fresh_fraction"
        )
    return None


def shard_window_conflict(fresh: int, degree: int, window: int, shards: int) -> str | None:
    """Returns the reason for which windows don't fit the shards' parts of a batch; None if they do."""
    if shards > 1 and degree == 0 and fresh % (shards * window):
        return (
            f"with sampling.off_policy_degree 0, the {fresh} fresh segments of a batch must be a multiple of {shards}"
            f" replay services times actor.environments {window}; change sampling.batch_segments or actor.environments"
        )
    if shards > 1 and shards * least_part(degree, window) > fresh:
        return (
            f"the {fresh} fresh segments of a batch are too few for {shards} replay services with actors of {window}"
            f" environments at sampling.off_policy_degree {degree}; raise sampling.batch_segments or lower"
            " actor.environments"
        )
    return None


def store_conflict(fresh: int, degree: int, batch: int, capacity: int, replay_from: int = 0) -> str | None:
    """Returns the reason for which the plan needs a larger store; None if one of `capacity` segments suffices.

    `batch` is the size of a batch, and `replay_from` the number of trained segments at which replay begins.
    """
    if capacity < least_capacity(fresh, degree, batch):
        return (
            f"the store holds {capacity} segments, and off_policy_degree {degree} with batches of {batch} needs"
            f" {least_capacity(fresh, degree, batch)}; raise replay.capacity_bytes, or set"
            f" replay.capacity_segments to {least_capacity(fresh, degree, batch)}"
        )
    needed = least_capacity(fresh, degree, batch, replay_from)
    if capacity < needed:
        return (
            f"the store holds {capacity} segments, and replay from sampling.min_replay_segments {replay_from} on needs"
            f" {needed}; set sampling.min_replay_segments to {capacity - fresh} or less, or raise replay.capacity_bytes"
        )
    return None


def share_conflict(least: float) -> str | None:
    """Returns the reason for which a smallest share excludes slots from collection or is impossible; None if not."""
    if 0.0 < least <= 1.0:
        return None
    return (
        f"sampling.least_share {least:g} would exclude slots from collection, or promise more than all of it; set it"
        " above 0 and at most 1, such as 0.2"
    )


def collection_conflict(collection: str, *, variants: int, fresh: int, degree: int) -> str | None:
    """Returns the reason for which collection can't be divided by this rule; None if it can or is equal."""
    kept = f"sampling.collection {collection}"
    if collection == "equal":
        return None
    if variants < 2:
        return (
            f"{kept} divides collection between environment.variants, and there are {variants}; give at least two, or"
            " set sampling.collection to equal"
        )
    if degree == 0:
        return (
            f"{kept} has no effect with sampling.off_policy_degree 0, where all actors contribute equally to every"
            " batch; set the degree to 1, or sampling.collection to equal"
        )
    if fresh == 0:
        return (
            f"{kept} has no effect with sampling.fresh_fraction 0, where nothing limits collection; raise the fraction,"
            " or set sampling.collection to equal"
        )
    return None


def least_capacity(fresh: int, degree: int, batch: int, replay_from: int = 0) -> int:
    """Returns the least number of segments that a store must hold. Takes the arguments of `store_conflict`."""
    # Replay draws with replacement, so a batch without fresh segments may be larger than the store.
    least = (degree + 1) * fresh + batch if fresh else 0
    # A batch takes its fresh segments before it replays any.
    return max(least, fresh + replay_from) if batch > fresh else least


def least_store(*, fresh: int, degree: int, batch: int, replay_from: int, window: int, shards: int) -> int:
    """Returns the least number of segments with which each store of a run is started.

    Each of several services holds its part of the fresh segments, and has room to replay a whole batch. Takes the
    arguments of `store_conflict` for the whole run, with windows of `window` segments and this number of services.
    """
    part = -(-fresh // shards)
    if part and shards > 1:
        part = max(part, least_part(degree, window))
    return max(least_capacity(part, degree, batch, -(-replay_from // shards)), batch)


def least_degree(fresh: int, windows: set[int]) -> int:
    """Returns the lowest degree at which windows of all these sizes can be granted."""
    if not windows or fresh == 0 or (len(windows) == 1 and fresh % min(windows) == 0):
        return 0
    return -(-max(windows) // fresh)


def least_part(degree: int, window: int) -> int:
    """Returns the smallest part of a batch's fresh segments with which a shard can grant a window."""
    return max(1, -(-window // degree)) if degree else 1
