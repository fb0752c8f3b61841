//! New files of commands: the files that they replace, and leftovers of a command that ends early.
//! Each test is a script; `$KIND` is the format.

/// Prelude of these scripts, after the common prelude.
///
/// `sources`: a directory, a layer in the form of overlayfs, archives, a container image and a
/// list. `COMMANDS`: everything that makes a file; `$OUT` is the file. `sound FILE`: it is
/// complete.
pub(crate) const PRELUDE: &str = r#"
trap 'umount -l m 2> /dev/null || true' EXIT
sources() {
    mkdir -p t/d oci/blobs/sha256; head -c 400000 /dev/urandom > t/d/big; for i in $(seq 30); do echo $i > t/d/$i; done
    tar cf t.tar -C t .; gzip -k t.tar; (cd t; find . | cpio --quiet -o -H newc > ../t.cpio)
    blob() { local sum; sum=$(sha256sum < "$1" | cut -d' ' -f1); cp "$1" oci/blobs/sha256/$sum; printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" $sum $(stat -c %s "$1"); }
    printf '{"layers":[%s]}' "$(blob t.tar application/vnd.oci.image.layer.v1.tar)" > manifest
    printf '{"manifests":[%s]}' "$(blob manifest application/vnd.oci.image.manifest.v1+json)" > oci/index.json
    mkdir -p u/d; mknod u/d/1 c 0 0; cp t/d/big u; printf '#mtree\n. type=dir\n./n type=dir mode=0750 uid=1 gid=2\n' > list
    image src.img -r t; rm manifest
}
COMMANDS=(
    'mkfs -q -t $KIND --size 160M $OUT' 'mkfs -q -t $KIND -r t $OUT' 'mkfs -q -t $KIND --size 160M -r t $OUT'
    'mkfs -q -t $KIND --tar t.tar $OUT' 'mkfs -q -t $KIND --size 160M --tar t.tar.gz $OUT' 'mkfs -q -t $KIND --oci oci $OUT'
    'mkfs -q -t $KIND --size 160M --cpio t.cpio $OUT' 'mkfs -q -t $KIND --output-format qcow2 --tar t.tar.gz $OUT'
    'mkfs -q -t $KIND --output-format zstd --oci oci --size 160M $OUT' 'mkfs -q -t $KIND --output-format vhd -r t $OUT'
    'mkfs -q -t $KIND --output-format android-sparse --cpio t.cpio $OUT'
    'mkfs -q -t $KIND --tar t.tar.gz $OUT' 'mkfs -q -t $KIND -r t --overlay u --manifest list $OUT'
    'mkfs -q -t $KIND --size 160M -r t --layer t.tar.gz $OUT' 'mkfs -q -t $KIND --size 160M --manifest list $OUT'
    'mkdisk -q $OUT --part r:$KIND:rootdir=t --part s:size=1M' 'mkdisk -q $OUT --output-format qcow2 --part r:$KIND:oci=oci'
    'export -q src.img --tar $OUT' 'export -q src.img --oci-layer $OUT' 'export -q src.img --tar $OUT --compress zstd'
)
# Without a size and a format mkfs makes the file system in a file as it is.
in_place() { [[ $1 = mkfs* && ! $1 =~ size|format ]]; }
names() { ls -A | grep -v '^\(out\|err\|trace\|why\)\.txt$'; }
"#;

/// Both kinds of image.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "no_command_replaces_a_file_unasked_or_one_in_use",
        r#"sources; image v.img; mkdir m; "$SAPWOOD" mount -q v.img m; echo kept > m/f; sync m/f; ln -s v.img l.img; ln -s none.img none
        for command in "${COMMANDS[@]}"; do
            set -- ${command%% *} ${command#* }; run() { OUT=$1; local words; words=($(eval echo "\"$command\"")); shift; fails "$@" "${words[@]}"; }
            forced() { local command=${command/ -q/ -q -f}; run "$@"; }
            # A mounted image, by its name and through a link.
            for name in v.img l.img; do run $name 3 'in use'; forced $name 3 'in use'; done; [ "$(cat m/f)" = kept ]
            # A file of another kind, with a mode of its own.
            in_place "$command" && continue
            echo mine > old; chmod 604 old; names > before; run old 1 'exists; -f replaces it'; [ "$(cat old)" = mine ]; names | diff before -
            ln -sf old link; OUT=link; eval "\"$SAPWOOD\" ${command/ -q/ -q -f}" > out.txt; [ -L link ]; [ $(stat -c '%s %a' old | cut -d' ' -f2) = 604 ]; [ "$(head -c 5 old | tr '\0' .)" != mine ]
            forced none 1 'link to nothing'; [ ! -e none.img ]; rm old link
            case $command in export*) ;; *) mkdir -p d; OUT=d code=0; eval "\"$SAPWOOD\" ${command/ -q/ -q -f}" 2> err.txt || code=$?; [ $code != 0 ]; grep -q 'regular file\|a new file' err.txt; run - 2 'standard output'; [ ! -e - ];; esac
        done
        "$SAPWOOD" umount m; "$SAPWOOD" check -q v.img; [ "$("$SAPWOOD" cat v.img:f)" = kept ]
        echo mine > demo.img; code=0; "$SAPWOOD" demo --keep demo.img > out.txt 2> err.txt || code=$?; [ $code = 1 ]; grep -q 'exists' err.txt; [ "$(cat demo.img)" = mine ]"#,
    ),
    (
        "a_command_that_a_signal_ends_leaves_no_file",
        r#"sources; names > before
        # The signal comes with a write of the file, or before it gets its name.
        for command in "${COMMANDS[@]}"; do for at in 'fsync:signal=%:when=1' 'pwrite64,pwritev,pwritev2,write:signal=%:when=20' ; do
            # An archive is written as one piece.
            case $command in export*) at=${at/when=20/when=1};; esac
            for signal in INT TERM HUP KILL; do
                OUT=new code=0; eval strace -f -qq -o trace.txt -e trace=${at%%:*} -e inject=${at/\%/$signal} "\"$SAPWOOD\"" $command > out.txt 2> err.txt || code=$?
                [ $code = $((128 + $(kill -l $signal))) ] || { echo "$command: $signal at $at: exit code $code"; cat err.txt; exit 1; }
                names | diff before - || { echo "left by $command, $signal at $at"; exit 1; }
            done
        done; done
        # What it would replace stays.
        echo mine > new; names > before
        for command in "${COMMANDS[@]}"; do
            in_place "$command" && continue
            OUT=new code=0; eval strace -f -qq -o trace.txt -e trace=fsync -e inject=fsync:signal=KILL "\"$SAPWOOD\"" ${command/ -q/ -q -f} > out.txt 2> err.txt || code=$?
            [ $code = 137 ]; [ "$(cat new)" = mine ]; names | diff before -
        done"#,
    ),
    (
        "without_unnamed_files_a_signal_removes_the_temporary_one",
        r#"sources; mkfifo p; names > before
        # Without /proc a file cannot get a name later.
        hidden=(unshare -m bash -c 'eval "$DETACH_COPIES"; mount -t tmpfs none /proc; exec "$0" "$@"' "$SAPWOOD")
        for command in 'mkfs -q -t $KIND --size 160M --tar p new' 'mkfs -q -f -t $KIND --size 160M --tar p old' 'mkdisk -q new --part r:$KIND:tar=p:size=160M'; do
            for signal in INT TERM HUP; do
                [ "${command% old}" = "$command" ] || { echo mine > old; names > before; }
                (eval exec '"${hidden[@]}"' $command) 2> err.txt & pid=$!
                # Returns when the command reads the source: then it fills the image.
                exec 9> p; [ -n "$(names | grep '^\.sapwood-')" ]; kill -$signal $pid; code=0; wait $pid || code=$?; exec 9>&-
                [ $code = $((128 + $(kill -l $signal))) ]; names | diff before -; [ ! -e old ] || [ "$(cat old)" = mine ]
            done
        done; rm old
        for name in one two; do "${hidden[@]}" mkfs -q -t $KIND --size 160M -r t $name; "$SAPWOOD" check -q $name; done; "${hidden[@]}" mkfs -q -f -t $KIND -r t two; "$SAPWOOD" check -q two
        "${hidden[@]}" export -q src.img --tar three; tar tf three | grep -c d/big; [ -z "$(names | grep '^\.sapwood-')" ]"#,
    ),
    (
        "a_signal_while_a_source_blocks_leaves_nothing",
        r#"sources; gzip -k t.cpio; mkfifo p; names > before
        for source in '--tar t.tar' '--tar t.tar.gz' '--cpio t.cpio' '--cpio t.cpio.gz' '--layer t.tar'; do
            for size in '' '--size 160M'; do for signal in INT TERM HUP KILL; do
                env --default-signal=INT "$SAPWOOD" mkfs -q -t $KIND $size ${source% *} p new 2> err.txt & pid=$!
                # The command reads what there is, and waits for more.
                exec 9> p; head -c 200000 ${source#* } >&9; kill -$signal $pid; code=0; wait $pid || code=$?; exec 9>&-
                [ $code = $((128 + $(kill -l $signal))) ]; names | diff before - || { echo "left by $source $size, $signal"; exit 1; }
            done; done
        done"#,
    ),
    (
        "a_pipe_a_file_and_standard_input_make_the_same_image",
        r#"sources; gzip -k t.cpio; mkfifo p; export SOURCE_DATE_EPOCH=1700000000
        U=11111111-2222-3333-4444-555555555555; make() { "$SAPWOOD" mkfs -q -t $KIND -U $U "$@"; }
        for source in '--tar t.tar' '--tar t.tar.gz' '--cpio t.cpio.gz' '--layer t.tar.gz'; do
            file=${source#* } kind=${source% *}
            for size in '' '--size 160M'; do
                make $size $kind $file a.img; "$SAPWOOD" check -q a.img
                make $size $kind - b.img < $file; cmp a.img b.img
                cat $file > p & make $size $kind p c.img; wait; cmp a.img c.img
                [ "$("$SAPWOOD" cat a.img:d/big | sha256sum)" = "$(sha256sum < t/d/big)" ]; rm [abc].img
            done
        done
        make --tar t.tar a.img; make --tar t.tar.gz b.img; cmp a.img b.img"#,
    ),
    (
        "what_cannot_be_read_is_left_out_with_and_without_a_size",
        r#"mkdir -p t/a t/shut; echo x > t/a/f; echo y > t/shut/f; chmod 0 t/shut; chmod 777 .
        for size in '' '--size 160M' '--output-format zstd'; do
            code=0; user "$SAPWOOD" mkfs -q -t $KIND -r t $size a.img 2> err.txt || code=$?; [ $code = 1 ]
            [ $(wc -l < err.txt) = 2 ]; grep -q 't/shut: ' err.txt; grep -q 'a.img: made, but without 1' err.txt
            [ "$size" = '--output-format zstd' ] || { [ "$("$SAPWOOD" cat a.img:a/f)" = x ]; "$SAPWOOD" check -q a.img; }; rm a.img
        done
        fails 1 'none' mkfs -t $KIND -r none a.img; [ ! -e a.img ]"#,
    ),
    (
        "a_limit_of_the_process_is_an_error_and_nothing_is_made",
        r#"sources; for i in $(seq 200); do echo $i > t/$i; done; names > before
        # `limited LIMIT HINT COMMAND...`: it fails, says why, and makes nothing. `either LIMIT COMMAND...`: so it does, or it makes a whole image.
        limited() { local limit=$1 hint=$2 code=0; shift 2; (ulimit $limit; exec "$SAPWOOD" "$@") > out.txt 2> err.txt || code=$?
            [ $code = 1 ] || { echo "$limit: exit code $code: $*"; cat err.txt; return 1; }
            grep -q "^sapwood: .*$hint" err.txt && ! grep -q 'backtrace\|panicked\|made, but' err.txt || { echo "$limit: $* says:"; cat err.txt; return 1; }
            names | diff before - || { echo "$limit: left by $*"; return 1; }; }
        either() { local limit=$1; shift; limited "$limit" . "$@" > why.txt || { [ -e a.img ] && grep -q 'exit code 0' why.txt && "$SAPWOOD" check -q a.img && rm a.img; } || { cat why.txt; exit 1; }; rm why.txt; }
        for how in '--size 160M' ''; do
            limited '-f 300' 'File too large' mkfs -q -t $KIND $how -r t a.img || exit 1
            limited '-n 8' 'Too many open files' mkfs -q -t $KIND $how -r t a.img || exit 1
            for open in 9 10 11 12 13 14; do either "-n $open" mkfs -q -t $KIND $how -r t a.img; done
            # Less than the caches of a file system in memory, or than its threads need.
            limited '-v 50000' . mkfs -q -t $KIND $how -r t a.img || exit 1
            for memory in 60000 80000 200000 300000; do either "-v $memory" mkfs -q -t $KIND $how -r t a.img; done
        done
        limited '-f 300' 'File too large' mkfs -q -t $KIND --output-format qcow2 -r t a.img || exit 1
        limited '-f 300' 'File too large' mkdisk -q a.img --part r:$KIND:rootdir=t || exit 1
        limited '-f 300' 'File too large' export -q src.img --tar a.tar || exit 1"#,
    ),
    (
        "an_error_of_a_size_names_the_image_and_sizes",
        r#"names > before; fails 1 'a.img' mkfs -q -t $KIND --size 16k a.img; not grep -E '[0-9]{5}|sapwood-' err.txt; names | diff before -
        fails 2 'standard output' mkfs -q -t $KIND --size 160M -; [ ! -e - ]; (cd t; "$SAPWOOD" mkfs -q -t $KIND --size 160M ./-; [ -e - ])
        image a.img; fails 1 '-f' mkfs -q -t $KIND a.img; fails 1 '-f' mkfs -q -t $KIND --size 160M a.img
        fails 1 'partition x: ' mkdisk disk --part x:$KIND:size=16k; not grep -E '[0-9]{5}|sapwood-' err.txt; [ ! -e disk ]"#,
    ),
    (
        "a_size_holds_for_partitions_and_exports",
        r#"trap '[ -z "${server:-}" ] || kill $server' EXIT; mkdir -p t/d; echo x > t/d/f
        "$SAPWOOD" mkdisk -q disk.img --part a:size=200M --part b:size=200M
        "$SAPWOOD" mkfs -t $KIND -f --size 150M disk.img#a | grep -c '150.00 MiB'; "$SAPWOOD" check -q disk.img#a
        "$SAPWOOD" mkfs -t $KIND -f --size 150M -r t disk.img#b | grep -c '150.00 MiB'; "$SAPWOOD" check -q disk.img#b; [ "$("$SAPWOOD" cat disk.img#b:d/f)" = x ]
        fails 1 'has only 200M, and 300M was asked for' mkfs -q -t $KIND -f --size 300M disk.img#a; "$SAPWOOD" check -q disk.img#a
        truncate -s 200M raw; nbdkit -f -U $PWD/sock file raw & server=$!; until [ -S sock ]; do kill -0 $server; done
        nbd="nbd+unix:///?socket=$PWD/sock"; "$SAPWOOD" mkfs -t $KIND -f --size 150M -r t "$nbd" | grep -c '150.00 MiB'; "$SAPWOOD" check -q "$nbd"; [ "$("$SAPWOOD" cat "$nbd:d/f")" = x ]
        fails 1 'has only 200M, and 300M was asked for' mkfs -q -t $KIND -f --size 300M "$nbd"; "$SAPWOOD" check -q "$nbd""#,
    ),
];
