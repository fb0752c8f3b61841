//! Scripts of exports: archives, layers, and changes since a snapshot.

/// Exports, for each format (`$KIND`). `image FILE DIR`: an image of a directory; `apply LAYER
/// DIR`: applies a layer as a container engine does.
pub(super) const EXPORT_PRELUDE: &str = r#"
image() { "$SAPWOOD" mkfs -q -t $KIND --size 128M -r "$2" "$1"; }
more() {
    local deep="$1/d/$(printf 'd%.0s' {1..90})/$(printf 'e%.0s' {1..90})"
    mkdir -p "$deep"; echo deep > "$deep/$(printf 'f%.0s' {1..200})"
    ln "$deep/$(printf 'f%.0s' {1..200})" "$1/deephard"
    chown 3000000:4000000 "$1/d/empty"; touch -d '1960-01-02 03:04:05.25' "$1/d/empty"
    setfacl -m u:77:rwx,g:88:r "$1/d/text"; setfacl -d -m u:77:rx "$1/sub"
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 "$1/d/e/large"
}
untar() { mkdir -p "$2"; tar -x --xattrs --xattrs-include='*' --acls --numeric-owner -p -f "$1" -C "$2"; }
apply() {
    tar -tf "$1" --quoting-style=literal | grep -E '(^|/)\.wh\.' | while IFS= read -r path; do
        dir=$(dirname "$path"); name=$(basename "$path")
        case $name in
            .wh..wh..opq) find "$2/$dir" -mindepth 1 -delete;;
            *) rm -r "$2/$dir/${name#.wh.}";;
        esac
    done
    tar -x --xattrs --xattrs-include='*' --acls --numeric-owner -p --exclude='.wh.*' -f "$1" -C "$2"
}
"#;

/// The tests of exports.
pub(super) const EXPORTS: &[(&str, &str)] = &[
    (
        "an_archive_has_the_whole_tree",
        r#"tree r; more r; listing r > expected; image i r
        "$SAPWOOD" export i --tar t; untar t out; listing out > found; same expected found
        [ "$(stat -c '%a %u %g %Y' out)" = "$(stat -c '%a %u %g %Y' r)" ]
        [ $(tar -tvf t | wc -l) = $(($(find r -not -name '*'$'\n''*' | wc -l) + 1)) ]
        [ $(bsdtar -tf t | wc -l) = $(tar -tf t | wc -l) ]
        python3 -c 'import tarfile; assert len(tarfile.open("t").getnames()) == '$(tar -tf t | wc -l)
        tar -tf t > names.txt; not grep lost+found names.txt
        "$SAPWOOD" mkfs -q -t $KIND --tar t --size 128M again; sound again; kernel again"#,
    ),
    (
        "the_same_tree_gives_the_same_bytes",
        r#"tree r; more r; image i r; "$SAPWOOD" mkfs -q -t btrfs --size 256M -r r other
        "$SAPWOOD" export i --tar t; "$SAPWOOD" export i: --tar - > u; cmp t u
        "$SAPWOOD" export other --tar v; cmp t v
        "$SAPWOOD" mkfs -q -t $KIND --tar t --size 128M again; "$SAPWOOD" export again --tar w; cmp t w
        mkdir part; cp -a r/d part/d; "$SAPWOOD" export i:/d --tar x; untar x y; listing y > found; listing part/d > expected; same expected found"#,
    ),
    (
        "archives_are_compressed_and_their_digests_are_right",
        r#"tree r; image i r; "$SAPWOOD" export i --tar t
        for form in gzip gzip:9 zstd zstd:19; do
            "$SAPWOOD" export -f i --tar c --compress $form; "$SAPWOOD" export -f i --tar c2 --compress $form; cmp c c2
            case $form in gzip*) gzip -dc c;; *) zstd -dqc c;; esac | cmp - t
        done
        "$SAPWOOD" export i --oci-layer l > layer.json; "$SAPWOOD" export -f i --tar t --no-sparse; gzip -dc l | cmp - t
        grep -q "\"digest\": \"sha256:$(sha256sum < l | cut -d' ' -f1)\"" layer.json
        grep -q "\"diffID\": \"sha256:$(sha256sum < t | cut -d' ' -f1)\"" layer.json
        grep -q "\"size\": $(stat -c %s l)," layer.json; grep -q 'layer.v1.tar+gzip"' layer.json"#,
    ),
    (
        "changes_since_another_image_make_the_new_tree",
        r#"tree r; more r; mkdir -p r/gone/x r/cleared/a r/kept; touch r/gone/x/y r/cleared/1 r/cleared/a/2 r/kept/k
        echo file > r/to_dir; mkdir r/to_file; echo x > r/to_file/x; echo one > r/samesize; touch -d @1 r/samesize
        echo h > r/h1; ln r/h1 r/h2; echo s > r/s1; ln r/s1 r/s2; ln -s a r/relinked; mkdir r/modes; echo q > r/quiet
        image i r; cp -a r n
        rm -r n/gone n/cleared/*; echo 3 > n/cleared/3; rm n/d/link n/to_dir; mkdir n/to_dir; echo in > n/to_dir/in
        rm -r n/to_file; echo file > n/to_file; echo two > n/samesize; touch -d @1 n/samesize
        rm n/h2; echo h > n/h2; ln n/s1 n/s3; rm n/relinked; ln -s b n/relinked; chmod 700 n/modes
        setfattr -n user.note -v other n/d/text; mv n/kept n/moved; echo new > n/d/e/new; rm n/char; mknod n/char c 5 301
        touch -h -d @5 n/d/longlink
        image j n; listing n > expected
        "$SAPWOOD" export i --tar base; "$SAPWOOD" export j --tar layer --since i; "$SAPWOOD" export j --tar again --since i:/
        cmp layer again; untar base out; apply layer out; listing out > found; same expected found
        tar -tf layer > names; grep -qx 'cleared/.wh..wh..opq' names; grep -qx '.wh.gone' names; grep -qx '.wh.kept' names
        not grep -qx quiet names; not grep -qx d/e/large names; not grep -q '^gone' names; grep -qx s2 names
        "$SAPWOOD" export j --tar none --since j; [ $(tar -tf none | wc -l) = 0 ]"#,
    ),
    (
        "what_no_archive_can_have_is_said",
        r#"mkdir -p r/d; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("r/sock")'; touch r/d/.wh.x
        image i r; "$SAPWOOD" export i --tar t 2> err; grep -q 'sock: a socket is left out' err; tar -tf t | grep -c 'd/.wh.x'
        refused 'd/.wh.x: in a layer' "$SAPWOOD" export i --oci-layer l; [ ! -e l ]
        refused 'd/.wh.x: in a layer' "$SAPWOOD" export i --tar l --since i:d; [ ! -e l ]
        refused 'not a directory' "$SAPWOOD" export i:d/.wh.x --tar l; [ ! -e l ]
        refused 'o such file' "$SAPWOOD" export i:none --tar l; [ ! -e l ]
        refused 'o such file' "$SAPWOOD" export i --tar l --since none; [ ! -e l ]
        echo old > l; refused 'd/.wh.x' "$SAPWOOD" export -f i --oci-layer l; [ "$(cat l)" = old ]; [ -z "$(ls -A | grep '^\.sapwood')" ]
        not "$SAPWOOD" export i --tar /dev/full 2> err; grep -q 'No space' err
        not "$SAPWOOD" export i 2> err; not "$SAPWOOD" export i --tar t --compress xz 2> err; grep -q 'none, gzip or zstd' err
        umask 077; "$SAPWOOD" export i --tar p; [ $(stat -c %a p) = 600 ]"#,
    ),
];

/// Changes since a snapshot.
pub(super) const SNAPSHOT: &str = r#"KIND=btrfs; tree r; image i r; cp -a r n
    "$SAPWOOD" subvolume create i:work; "$SAPWOOD" cp -qa r/. i:work; "$SAPWOOD" subvolume snapshot -r i:work i:monday
    "$SAPWOOD" rm -r i:work/sub; rm -r n/sub; echo new > n/new; touch -d @7 n/new; "$SAPWOOD" cp -qa n/new i:work/new
    "$SAPWOOD" export i:work --tar layer --since monday; cp -a r out; apply layer out
    touch -r n out; listing out > found; listing n > expected; same expected found
    [ "$(tar -tf layer)" = ./$'\n'.wh.sub$'\n'new ]
    "$SAPWOOD" export --subvol work i --oci-layer other > /dev/null; tar -tf other | grep -cx d/text"#;
