#!/usr/bin/env bash
# disttrain submit docker experiment.yaml 'launch.docker.hosts=[user@host1, user@host2]' \
#     launch.docker.directory=/shared/project launch.docker.user=1000:1000
#
# 2 containers, one on each host.
# Ctrl-C, SIGTERM and SIGHUP stop all of them, with a checkpoint; from that, the same again goes on. When one
# fails, the others are stopped. The exit code is that of the first that failed.
job=disttrain-$HOSTNAME-$$-$(date +%s)
ssh=(ssh -n -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=20 -oServerAliveCountMax=3 --)
hosts=(user@host1 user@host2)

words() {  # the words as the shell of a host reads them
    local word quote="'\\''"
    for word; do word=${word//\'/"$quote"}; printf "'%s' " "$word"; done
}

on() {  # machine, command: on its host
    local host=${hosts[$1 - 1]}
    shift
    "${ssh[@]}" "$host" "$(words "$@")"
}

container() {  # machine: what this job has started for it, and no container of that name that another one has
    on "$1" docker ps --all --quiet --filter "label=disttrain.job=$job-$1"
}

processes=()  # of the machines, in their order; empty of one that has ended

start() {  # in a session of its own: the terminal's Ctrl-C comes to this script only, and once
    setsid "$@" &
    processes+=($!)
}

stop() {  # machine, process: with a checkpoint
    until on "$1" docker stop -t 60 $(container "$1"); do  # which may not be there yet
        [ "$2" ] && kill -0 "$2" && sleep 1 || break
    done
}

kill_now() {  # machine, process
    [ -z "$2" ] || kill -KILL -- "-$2"
    on "$1" docker rm --force $(container "$1")
}

needed=2 grace=90
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

start "${ssh[@]}" user@host1 \
    "$(words \
    docker run --rm --init --name=disttrain-experiment-1 --network=host --user=1000:1000 --shm-size=8589934592b \
        --stop-timeout=60 --workdir=/shared/project --mount=type=bind,source=/shared/project,target=/shared/project \
        --mount=type=volume,source=disttrain-code,target=/var/cache/disttrain \
        --env=TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 --label=disttrain.job="$job-1" disttrain:cpu python -m \
        torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=0 --rdzv-backend=c10d \
        --rdzv-endpoint=host1:22298 --rdzv-id="$job" --rdzv-conf=is_host=1,join_timeout=600 --local-addr=host1 \
        --log-dir=/dev/null -m disttrain experiment.yaml 'launch.docker.hosts=[user@host1, user@host2]' \
        launch.docker.directory=/shared/project launch.docker.user=1000:1000)"
start "${ssh[@]}" user@host2 \
    "$(words \
    docker run --rm --init --name=disttrain-experiment-2 --network=host --user=1000:1000 --shm-size=8589934592b \
        --stop-timeout=60 --workdir=/shared/project --mount=type=bind,source=/shared/project,target=/shared/project \
        --mount=type=volume,source=disttrain-code,target=/var/cache/disttrain \
        --env=TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 --label=disttrain.job="$job-2" disttrain:cpu python -m \
        torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=0 --rdzv-backend=c10d \
        --rdzv-endpoint=host1:22298 --rdzv-id="$job" --rdzv-conf=is_host=0,join_timeout=600 --local-addr=host2 \
        --log-dir=/dev/null -m disttrain experiment.yaml 'launch.docker.hosts=[user@host1, user@host2]' \
        launch.docker.directory=/shared/project launch.docker.user=1000:1000)"
supervise
