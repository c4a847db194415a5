"""The lines of bash in the scripts for Slurm. `launch.slurm_scripts` fills them in.

Two things are less simple than they look. A signal must not be missed between two commands, so that the trap itself
passes it on, and `wait` is repeated. A script that simply ended after a warning would be complete for Slurm, which then
starts it no more: with `preempt_send_user_signal`, the warning is a part of preemption.
"""

SERVICES_JOB = "job=$SLURM_JOB_ID"

TASK = (
    "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID of the last task is the number of the whole array."
)

STORE = """\
# On a disk of the node, since a store on a shared file system is refused. A job that is requeued to this node finds it.
store=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/penstock-$SLURM_JOB_ID-store"""

FREE_PORT = """\
# A free port. The learner is told which, and tells all others.
port=$((20000 + SLURM_JOB_ID % 10000))
while (: </dev/tcp/127.0.0.1/$port) 2>/dev/null; do ((port++)); done
replay=0.0.0.0:$port"""

KEEP = """\
# Runs a command of Penstock, and again after a crash. Exit codes 0, 2 and 3 are final: the end, a wrong setting, and a
# fault that a restart does not cure. The run ends if a service fails for good.
keep() {{
    local code try ending='' certificate="$run/certificates/$1/certificate.pem"
    trap 'ending=yes' TERM # The command gets the signal too, and ends in order.
    for ((try = 1; try <= {restarts}; try++)); do
        "${{penstock[@]}}" "$@" "${{settings[@]}}" --security.certificate="$certificate"
        code=$?
        case $code in 0) exit 0 ;; 2 | 3) break ;; esac
        [[ $ending ]] || sleep $((try < 5 ? try : 5))
        [[ -z $ending ]] || exit 0
    done
    ((${{#first[@]}} == 0)) || kill -TERM -- "${{first[@]}}"
    exit $((code > 128 ? 1 : code))
}}

# Waits for a command's end, also through signals, and notes the exit code of one that has failed.
code=0
await_end() {{
    local last
    while wait "$1"; last=$?; kill -0 "$1" 2>/dev/null; do :; done
    ((last == 0 || last > 128)) || code=$last
}}

# Slurm sends SIGTERM before it takes the node or ends the time, and then this asks for another turn; and for `scancel`.
warned='' first=()
trap 'warned=yes; kill -TERM -- "${{first[@]}}" 2>/dev/null' TERM
another_turn() {{
    case $(squeue --noheader --jobs="$job" --format=%T) in
    # The request makes Slurm signal all processes of this job, scontrol included.
    RUNNING | SIGNALING) scontrol requeue "$job" || (($? > 128)) ;;
    *) false ;;
    esac
}}
set -o monitor # Each command below is a process group, which gets a signal as a whole."""

SERVICES = """\
# The certificates of a long run are renewed at each turn. Actors that run now read the new ones by themselves.
"${{penstock[@]}}" certificates "$run" >/dev/null
keep learner --learner.replay-addresses="127.0.0.1:${{replay##*:}}" >>"$run/logs/learner.log" 2>&1 &
learner=$! first=("-$!")
keep replay --replay.listen="$replay" --replay.folder="$store" --replay.snapshot-folder="$snapshots" \\
    >>"$run/logs/replay.log" 2>&1 &
others=("-$!")
keep evaluator --evaluation.run="$run" >>"$run/logs/evaluator.log" 2>&1 &
others+=("-$!")
{scaling}
[[ -z $warned ]] || kill -TERM -- "${{first[@]}}"
await_end "$learner"
kill -TERM -- "${{others[@]}}" 2>/dev/null
for _ in {{1..10}}; do kill -0 -- "${{others[@]}}" 2>/dev/null || break; sleep 1; done
kill -KILL -- "${{others[@]}}" 2>/dev/null
for other in "${{others[@]}}"; do await_end "${{other#-}}"; done

if [[ $warned ]] && another_turn; then exit 0; fi
if [[ -s $run/launch/actors.job ]]; then scancel "$(<"$run/launch/actors.job")"; fi
{remove}exit $code
"""

SCALING = """\
"${{penstock[@]}}" launch slurm-actors "$run" auto --actors-per-task={actors_per_task} >>"$run/logs/scaling.log" 2>&1 &
others+=("-$!")
"""

REMOVE_STORE = 'rm -rf -- "$store"\n'

TUNING = """\
# Processes of a study, each of which may be taken away at any time.
"${{penstock[@]}}" tune {arguments} &
first=("-$!")
[[ -z $warned ]] || kill -TERM -- "${{first[@]}}"
await_end "${{first[0]#-}}"

if [[ $warned ]] && another_turn; then exit 0; fi
exit $code
"""

ACTORS = """\
actors=()
for _ in {numbers}; do
    keep actor --actor.run="$run" &
    actors+=("-$!")
done
first=("${{actors[@]}}")
[[ -z $warned ]] || kill -TERM -- "${{first[@]}}"
for actor in "${{actors[@]}}"; do await_end "${{actor#-}}"; done

if [[ $warned ]] && another_turn; then exit 0; fi
exit $code
"""
