"""Measures a Reverb 0.14 server and prints the result as one JSON line: the peer's side of the replay benchmark.

Called by `benchmarks/replay.py` in Reverb's environment (`reverb.txt`). The server is a separate process, and this
process is the client, both on loopback. Each candidate of a case is measured for half of the time, and the fastest
counts. One item is one segment.

Every candidate is among the fastest configurations on 2 cores with TensorFlow 2.15. The lists below give the rate of
each alternative as a fraction of the fastest one's. Differences below a tenth are within the noise of the machine.

Sampling: `TrajectoryDataset` with 3 or 4 workers of 100 samples in flight and batches of 256 (vector), with one worker
of 16 to 64 and batches of 32 (pixel), from a table that `Client.writer` filled with one segment per chunk.

- vector: a table filled by `TrajectoryWriter`, which makes a chunk of every column, 0.7; batches of 32, 0.7; of 1024,
  0.9; 1 or 2 workers, 0.8; 8 workers or four interleaved datasets, 0.95; `Client.sample(32)`, 0.09, from two threads
  0.12, also when one call streams 320 samples.
- pixel: 2 workers, 0.75; 4 or 8 in flight, 0.9; 1 or 2 in flight, 0.75; batches of 256, 0.75; `Client.sample(32)`,
  0.65, from two threads 0.75.
- frames: as pixel; frames_once: 2 workers, 0.9; one, 0.55.
- all, no faster: `TimestepDataset`, no prefetch, prefetch of 16, max_samples_per_stream, a private thread pool, no
  autotuning, any order.

Insertion: `Client.writer` with a segment as one step, kept open; four threads with 1,000 items in flight (vector), one
thread with 8 (pixel).

- vector: one thread, 0.75; 8 threads, 0.95; 100 in flight, 0.75; 25 in flight, one thread, 0.4; `StructuredWriter`,
  0.85; `TrajectoryWriter` with whole columns, 0.4 with any flushing, number of references or threads, 0.5 with chunks
  of 16 segments, with T steps 0.02; `Client.insert`, 0.05, from two threads 0.1; `TFClient.insert`, 0.08.
- pixel: 2 threads, 0.95; 4 threads, 0.75; `StructuredWriter`, 0.65; `TrajectoryWriter` with whole columns, 0.5, with T
  steps, 0.35; `Client.insert`, 0.2, from two threads 0.35; `TFClient.insert`, 0.25.

- frames and frames_once, with four threads and 64 in flight: 200 in flight, 1.0; 2 threads, 0.7; one thread and 8 in
  flight, 0.4; `StructuredWriter`, 0.5.

Priorities: `TFClient.update_priorities` with 10,000 per call from two threads.

- one thread, 0.65; 4,096 per call, 0.6; 1,024, 0.4; `Client.mutate_priorities` with dictionaries made beforehand, one
  thread: 10,000 or 4,096 per call, 0.5; 1,024, 0.45; 256, 0.25; 32, 0.05.

Two faster alternatives are excluded. A vector segment as one column of bytes, which the user packs and unpacks, is
sampled 2.2 times and inserted 1.9 times as fast, but such a table has neither columns nor types. Chunks of 2 to 4
segments are inserted up to 1.1 times as fast, but sampled 0.6 times as fast, because a sample carries its whole chunk.
"""

import argparse
import dataclasses
import faulthandler
import json
import sys
from collections.abc import Sequence

from benchmarks.peers.place import Place, add_arguments, place_of
from benchmarks.peers.reverb_insertion import insertion_candidates
from benchmarks.peers.reverb_priorities import priorities_candidates
from benchmarks.peers.reverb_sampling import sampling_candidates
from benchmarks.peers.reverb_segments import segment_kind
from benchmarks.peers.reverb_table import Candidate, FullTable, Rate, full_table


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The printed result.

    Attributes:
        case: Measured operation: sample, insert or priorities.
        segment: Kind of segment.
        configuration: Description of the fastest candidate.
        per_s: Segments (or priorities) per second of that candidate.
        cpu_s_per_million: User and system seconds of server and client together, per million of them.
        wire_bytes: Bytes between server and client for each of them.
        tried: Every candidate and its rate.
    """

    case: str
    segment: str
    configuration: str
    per_s: float
    cpu_s_per_million: float
    wire_bytes: float
    tried: dict[str, float]


def candidates(case: str, segment: str) -> Sequence[Candidate]:
    """Returns the candidates of a case."""
    if case == "sample":
        return sampling_candidates(segment)
    if case == "insert":
        return insertion_candidates(segment)
    return priorities_candidates()


def measure(case: str, segment: str, seconds: float, place: Place) -> Result:
    """Measures all candidates of a case in turn on one server, and returns the fastest."""
    chosen = candidates(case, segment)
    with full_table(segment_kind(segment), place) as table:
        rates = [_measure_one(candidate, table, seconds / 2) for candidate in chosen]
    fastest = max(range(len(rates)), key=lambda number: rates[number].per_s)
    return Result(
        case=case,
        segment=segment,
        configuration=chosen[fastest].label,
        per_s=rates[fastest].per_s,
        cpu_s_per_million=rates[fastest].cpu_s_per_million,
        wire_bytes=rates[fastest].wire_bytes,
        tried={candidate.label: rate.per_s for candidate, rate in zip(chosen, rates, strict=True)},
    )


def _measure_one(candidate: Candidate, table: FullTable, seconds: float) -> Rate:
    rate = candidate.measure(table, seconds)
    sys.stderr.write(f"{candidate.label}: {rate.per_s:,.0f}/s, {rate.cpu_s_per_million:,.2f} CPU s per million\n")
    return rate


def main() -> None:
    """Measures one case and prints its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=("sample", "insert", "priorities"), required=True)
    parser.add_argument("--segment", choices=("vector", "pixel", "frames", "frames_once"), required=True)
    parser.add_argument("--seconds", type=float, required=True, help="seconds of measurement; each candidate gets half")
    add_arguments(parser)
    arguments = parser.parse_args()
    # Many of Reverb's calls wait without a deadline. The alarm ends this process, and the server ends with it.
    faulthandler.dump_traceback_later(120.0 + 3.0 * arguments.seconds, exit=True)
    result = measure(arguments.case, arguments.segment, arguments.seconds, place_of(arguments))
    sys.stdout.write(json.dumps(dataclasses.asdict(result)) + "\n")


if __name__ == "__main__":
    main()
