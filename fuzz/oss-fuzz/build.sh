#!/bin/bash -eu
# Builds every fuzz target with its corpus, in the builder of OSS-Fuzz, which sets RUSTFLAGS for the
# coverage and the sanitizer.
host=x86_64-unknown-linux-gnu
cargo build --release --target "$host" --package sapwood-fuzz --features targets --bins
for source in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    cp "target/$host/release/$target" "$OUT/"
    if [ -d "fuzz/corpus/$target" ]; then
        zip -qr "$OUT/${target}_seed_corpus.zip" "fuzz/corpus/$target"
    fi
done
