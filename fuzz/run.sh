#!/usr/bin/env bash
# Runs the fuzz targets for so many minutes, and tells what they did: fuzz/run.sh MINUTES [TARGET...]
#
# All targets run side by side, one worker each; with ONE_BY_ONE=1 one after the other, each for MINUTES.
# Corpora, logs and findings go to $FUZZ_FOLDER (fuzz/corpus); corpora grow from run to run. They start from the sample
# files of fixtures/ and of the folder $SEEDS, if one is given.
# The figures of every target's last run stand on standard output as a table for people, and in fuzz/figures.tsv.
# Needs nightly Rust and cargo-fuzz (cargo install cargo-fuzz).
set -euo pipefail

minutes=${1:?usage: fuzz/run.sh MINUTES [TARGET...]}
shift
here=$(cd "$(dirname "$0")" && pwd)
all=(npy_header safetensors_header safetensors_readers gguf_header pytorch_pickle distributed onnx_walk onnx_model zip_members checkpoint_index quantized_config string_parsing cast_any)
targets=("$@")
[ $# -gt 0 ] || targets=("${all[@]}")
folder=${FUZZ_FOLDER:-$here/corpus}
export CARGO_TARGET_DIR=$here/target
longest=65536 # bytes of an input
# Files of trials go to memory, where there is a folder for it.
memory=$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")

case $(rustc +nightly -vV) in *x86_64*) triple=x86_64-unknown-linux-gnu ;; *) triple=aarch64-unknown-linux-gnu ;; esac
(cd "$here" && nice -n 19 cargo +nightly fuzz build --target "$triple")

# Sample files whose names end so, from everywhere.
samples() {
    find "$here/../fixtures" ${SEEDS:+"$SEEDS"} -name "*$1" -type f -size -60k -print0
}

copy() {
    while IFS= read -r -d '' file; do
        cp "$file" "$2/$1-$(sha1sum <"$file" | cut -c1-16)"
    done
}

# What a target begins with, in folder $2.
seed() {
    mkdir -p "$2"
    case $1 in
    npy_header) samples .npy | copy seed "$2" ;;
    safetensors_header | safetensors_readers) samples .safetensors | copy seed "$2" ;;
    gguf_header) samples .gguf | copy seed "$2" ;;
    pytorch_pickle) samples .pt | copy seed "$2" ;;
    distributed) samples .metadata | copy seed "$2" ;;
    onnx_walk) samples .pb | copy seed "$2" ;;
    onnx_model) samples .onnx | copy seed "$2" ;;
    zip_members) samples .npz | copy seed "$2" ;;
    checkpoint_index)
        samples index.json | copy index "$2"
        samples config.json | while IFS= read -r -d '' file; do
            { printf '{"weight_map":{"x":"a.safetensors"}}\0' && cat "$file"; } >"$2/config-$(sha1sum <"$file" | cut -c1-16)"
        done
        ;;
    quantized_config)
        for folder in "$here"/../fixtures/bad/quantized/*/ "$here"/../fixtures/checkpoints/*/; do
            [ -f "$folder/config.json" ] && [ -f "$folder/model.safetensors" ] || continue
            { cat "$folder/config.json" && printf '\0' && cat "$folder/model.safetensors"; } >"$2/seed-$(basename "$folder")"
        done
        ;;
    string_parsing)
        # A byte for the type, one for the rules, texts; or 128 as the rules, and an argument.
        for dtype in $(seq 0 32); do
            printf "\\$(printf %03o "$dtype")\\$(printf %03o $((dtype * 37 % 64)))"'1.5\0-inf\0 12 \0+.5e-3\0true\0NaN' \
                >"$2/seed-$dtype"
        done
        i=0
        for text in float8_e4m3fn '*norm*=bf16' '{a,b}[0-9]?=keep' 5GB 2/3 10..20 1e-3 "it's=new" 23 '<i8'; do
            printf '\0\200%s' "$text" >"$2/seed-argument-$((i += 1))"
        done
        ;;
    cast_any)
        # A file, and 16 bytes that choose the options: of any kind, but the same in every run.
        for extension in npy npz safetensors gguf pt pb; do
            samples ".$extension" | while IFS= read -r -d '' file; do
                sum=$(sha1sum <"$file" | cut -c1-16)
                for salt in 1 2; do
                    { cat "$file" && printf '%s%s' "$sum" "$salt" | md5sum | head -c 32 | xxd -r -p; } >"$2/seed-$salt-$sum"
                done
            done
        done
        ;;
    esac
    if [ -d "$here/../fixtures/fuzz/$1" ]; then
        find "$here/../fixtures/fuzz/$1" -type f -size -64k -print0 | copy case "$2"
    fi
}

dictionary() {
    case $1 in
    npy_header) echo npy ;;
    safetensors_header) echo safetensors ;;
    gguf_header) echo gguf ;;
    pytorch_pickle | distributed) echo pickle ;;
    onnx_walk | onnx_model) echo onnx ;;
    zip_members) echo zip ;;
    checkpoint_index) echo index ;;
    string_parsing) echo text ;;
    *) echo any ;;
    esac
}

# The last figure of a name in a log.
last() {
    awk -v name="$1:" '{ for (i = 1; i < NF; i++) if ($i == name) value = $(i + 1) } END { print value + 0 }' "$2"
}

# Runs one target until the time is over; after a finding it goes on, as far as that lets it.
fuzz() {
    local target=$1 work="$folder/$1" start now end trials status
    mkdir -p "$work/findings"
    seed "$target" "$work/corpus"
    : >"$work/log"
    start=$(date +%s)
    end=$((start + minutes * 60))
    for _ in $(seq 20); do
        now=$(date +%s)
        [ "$now" -lt "$end" ] || break
        trials=$(mktemp -d -p "$memory")
        ASAN_OPTIONS=malloc_context_size=2:quarantine_size_mb=16 TMPDIR=$trials nice -n 19 "$here/target/$triple/release/$target" "$work/corpus" -artifact_prefix="$work/findings/" \
            -dict="$here/dictionaries/$(dictionary "$target").dict" -max_total_time=$((end - now)) \
            -max_len=$longest -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -detect_leaks=0 \
            -print_final_stats=1 >>"$work/log" 2>&1 && status=0 || status=$?
        rm -rf "$trials"
        [ "$status" -ne 0 ] || break
    done
    now=$(date +%s)
    local runs coverage features inputs findings
    runs=$(awk '/stat::number_of_executed_units/ { sum += $2 } END { print sum + 0 }' "$work/log")
    coverage=$(last cov "$work/log")
    features=$(last ft "$work/log")
    inputs=$(find "$work/corpus" -type f | wc -l)
    findings=$(find "$work/findings" -type f ! -name 'slow-unit-*' | wc -l)
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$target" "$runs" $((runs / (now > start ? now - start : 1))) \
        "$coverage" "$features" "$inputs" "$findings" $(((now - start) / 60)) >"$work/figures"
}

for target in "${targets[@]}"; do
    if [ -n "${ONE_BY_ONE:-}" ]; then fuzz "$target"; else fuzz "$target" & fi
done
wait

{
    printf 'target\texecutions\tper second\tedges\tfeatures\tcorpus\tfindings\tminutes\n'
    for target in "${all[@]}"; do [ ! -f "$folder/$target/figures" ] || cat "$folder/$target/figures"; done
} >"$here/figures.tsv"
awk -F'\t' '{ print "| " $1 " | " $2 " | " $3 " | " $4 " | " $5 " | " $6 " | " $7 " | " $8 " |" }
    NR == 1 { print "|---|--:|--:|--:|--:|--:|--:|--:|" }' "$here/figures.tsv"
! find "$folder" -path '*/findings/*' -type f ! -name 'slow-unit-*' | grep .
