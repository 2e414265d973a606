#!/bin/sh
# Train on what the lake has of the last days, and leave the bundle beside the one that serves. Which of them
# is to serve is not decided here: look at `tidegate backtest` of the same days first.
set -eu
bundles=${TIDEGATE_BUNDLES:-var/bundles}
since=$(date -u -d "${TIDEGATE_TRAIN_DAYS:-14} days ago" +%Y-%m-%d)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$bundles"
tidegate lake export --to "$scratch/lake" --since "$since"
python - "$scratch" <<'PYTHON'
import sys
from pathlib import Path

import polars as pl

scratch = Path(sys.argv[1])
days = sorted((scratch / "lake" / "requests").rglob("*.parquet"))
if not days:
    sys.exit("The lake has no requests of these days: nothing was trained.")
pl.concat([pl.scan_parquet(day) for day in days], how="diagonal").sink_parquet(scratch / "requests.parquet")
PYTHON
name=$(date -u +%Y-%m-%dT%H%M%S)
# Under another name until it is whole: whoever looks at the folder finds finished bundles alone.
tidegate train "$scratch/requests.parquet" --out "$bundles/.$name"
mv "$bundles/.$name" "$bundles/$name"
echo "Trained $bundles/$name. To serve it: ln -sfn $name $bundles/current"
