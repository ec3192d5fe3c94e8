#!/bin/sh
# Downloads WebShop's data from the links of princeton-nlp/WebShop's setup script (needs gdown: pip install gdown).
# Usage: third_party/webshop/get_data.sh FOLDER [small|full]; then: export WEBSHOP_DATA=FOLDER
set -eu
folder=${1:?usage: get_data.sh FOLDER [small|full]}
size=${2:-small}
mkdir -p "$folder"
get() { # file, id
    test -s "$folder/$1" || gdown "https://drive.google.com/uc?id=$2" -O "$folder/$1"
    test -s "$folder/$1" || { echo "$folder/$1 is missing after the download" >&2; exit 1; }
}
case "$size" in
small)
    get items_shuffle_1000.json 1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib
    get items_ins_v2_1000.json 1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu
    ;;
full)
    get items_shuffle.json 1A2whVgOO0euk5O13n2iYDM0bQRkkRduB
    get items_ins_v2.json 1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi
    ;;
*)
    echo "size $size: expected small or full" >&2
    exit 2
    ;;
esac
get items_human_ins.json 14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O
echo "export WEBSHOP_DATA=$folder"
