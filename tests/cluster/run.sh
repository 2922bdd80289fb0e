#!/usr/bin/env bash
# tests/cluster/run.sh PYTHON: the tests marked `cluster`, which train over several hosts that are network namespaces of
# this machine, or containers. They need root, and iproute2, Slurm and Docker, which are installed with apt-get where they
# are missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
if [ "$(id -u)" != 0 ]; then
  echo "test-cluster: skipped, network namespaces need root"
  exit 0
fi
if ! command -v ip >/dev/null; then
  echo "test-cluster: installing iproute2"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends iproute2
fi
if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v sbatch >/dev/null; then
  echo "test-cluster: installing Slurm"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    slurmctld slurmd slurm-client >/dev/null || echo "test-cluster: there is no Slurm to be had, its tests are skipped, or fail in CI"
fi
if ! command -v dockerd >/dev/null || ! command -v docker-compose >/dev/null || ! command -v mmdebstrap >/dev/null; then
  echo "test-cluster: installing Docker, and mmdebstrap for a base image"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    docker.io docker-compose mmdebstrap >/dev/null || echo "test-cluster: there is no Docker to be had, its tests are skipped, or fail in CI"
fi
if ! ip netns add dt-probe 2>/dev/null; then
  echo "test-cluster: skipped, this machine does not allow network namespaces"
  exit 0
fi
ip netns del dt-probe
# Most of the time they wait; but not more at a time than leaves each enough to keep within its bounds.
"$python" -m pytest -m cluster --numprocesses 2 --dist loadfile tests/cluster/test_docker.py tests/cluster/test_slurm.py
"$python" -m pytest -m cluster --numprocesses 2 --dist loadfile tests/cluster \
  --ignore tests/cluster/test_docker.py --ignore tests/cluster/test_slurm.py
