#!/bin/sh
# Downloads the official ALFWorld games (3,553 train, 140 valid_seen, 134 valid_unseen) with alfworld's own tool.
# Usage: third_party/alfworld/get_data.sh FOLDER; then: export ALFWORLD_DATA=FOLDER
set -eu
folder=${1:?usage: get_data.sh FOLDER}
mkdir -p "$folder"
alfworld-download --data-dir "$folder"
for split in train valid_seen valid_unseen; do
    test -d "$folder/json_2.1.1/$split" || { echo "$folder/json_2.1.1/$split is missing after the download" >&2; exit 1; }
done
echo "export ALFWORLD_DATA=$folder"
