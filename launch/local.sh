#!/usr/bin/env bash
# disttrain submit local experiment.yaml launch.nodes=2
#
# 2 machines on this one: a torchrun each, with 1 rank.
# Ctrl-C, SIGTERM and SIGHUP stop all of them, with a checkpoint; from that, the same again goes on. When one
# fails, the others are stopped. The exit code is that of the first that failed.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
job=disttrain-$HOSTNAME-$$-$(date +%s)
port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])') || exit

processes=()  # of the machines, in their order; empty of one that has ended

start() {  # in a session of its own: the terminal's Ctrl-C comes to this script only, and once
    setsid "$@" &
    processes+=($!)
}

stop() {  # machine, process: with a checkpoint
    [ -z "$2" ] || kill -TERM "$2"
}

kill_now() {  # machine, process
    [ -z "$2" ] || kill -KILL -- $(cat "/proc/$2/task/"*/children) "-$2"
}

needed=2 grace=45
code=0 lost=0 failed= deadline= heard=

to_all() {  # stop or kill_now
    for i in "${!processes[@]}"; do "$1" $((i + 1)) "${processes[i]}" & done 2>/dev/null
}

stop_all() {  # exit code
    [ -z "$deadline" ] || return
    code=$1 deadline=$((SECONDS + grace))
    to_all stop
}

hear() {  # exit code: of a signal; its name
    heard=${heard:-$2}
    if [ -n "$deadline" ]; then
        echo "asked to stop again: at once" >&2
        to_all kill_now
    else
        echo "asked to stop: all machines leave a checkpoint; asked again, they end at once" >&2
        stop_all "$1"
    fi
}

ended() {  # machine, exit code
    [ "$2" -ne 0 ] && [ -z "$deadline" ] || return
    first=${first:-$2} failed=${failed:-$1} lost=$((lost + 1))
    if [ $((${#processes[@]} - lost)) -ge "$needed" ]; then
        echo "machine $1 ended with exit code $2: the others go on" >&2
    else
        [ ${#processes[@]} = 1 ] || echo "machine $1 ended with exit code $2: the others are stopped" >&2
        stop_all "$first"
    fi
}

supervise() {
    local running=1 i
    while [ "$running" ]; do
        sleep 0.3 & wait $!  # not `sleep` alone: a signal is heard while bash waits
        running=
        for i in "${!processes[@]}"; do
            [ "${processes[i]}" ] || continue
            if kill -0 "${processes[i]}" 2>/dev/null; then
                running=1
            else
                wait "${processes[i]}"
                set -- $?
                processes[i]=
                ended $((i + 1)) "$1"
            fi
        done
        if [ "$running" ] && [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
            echo "not all machines have stopped within $grace s: they are killed" >&2
            to_all kill_now
            deadline=$((SECONDS + grace))
        fi
    done
    deadline=$((SECONDS + grace))  # for stop and kill_now, which may ask somebody who does not answer
    while [ "$(jobs -pr)" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.3 & wait $!; done
    kill -KILL $(jobs -pr) 2>/dev/null
    if [ "$heard" ]; then
        echo "stopped by $heard: the same command goes on" >&2
    elif [ "$code" -ne 0 ]; then
        echo "failed: machine $failed ended first, with exit code $code; above, lines with disttrain: say why" >&2
    fi
    exit "$code"
}

trap 'hear 130 Ctrl-C' INT
trap 'hear 143 SIGTERM' TERM
trap 'hear 129 SIGHUP' HUP
trap : PIPE  # nobody reads what this script says any more

start python -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=0 --rdzv-backend=c10d \
    --rdzv-endpoint=localhost:"$port" --rdzv-id="$job" --rdzv-conf=is_host=1,join_timeout=600 --local-addr=localhost \
    --log-dir=/dev/null -m disttrain experiment.yaml launch.nodes=2
start python -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=0 --rdzv-backend=c10d \
    --rdzv-endpoint=localhost:"$port" --rdzv-id="$job" --rdzv-conf=is_host=0,join_timeout=600 --local-addr=localhost \
    --log-dir=/dev/null -m disttrain experiment.yaml launch.nodes=2
supervise
