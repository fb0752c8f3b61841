//! Archives in and out with other programs as oracle, layers, modes of piped files, and progress on
//! a terminal. Each test is a script.

use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(300);

/// Prelude of the scripts. `image FILE DIR`: an image of a directory; `refused HINT COMMAND`: it
/// fails with 1 and prints the hint; `shown PATTERN`: waits until a terminal shows it.
const PRELUDE: &str = r#"
umask 022; export LC_ALL=C
image() { "$SAPWOOD" mkfs -q -t $KIND --size 256M -r "$2" "$1"; }
refused() {
    local hint=$1 code=0; shift
    "$@" > out.txt 2> err.txt || code=$?
    [ $code = 1 ] || { echo "exit code $code: $*"; exit 1; }
    grep -q -- "$hint" err.txt || { echo "$* says:"; cat err.txt; exit 1; }
}
shown() { until grep -aqE -- "$1" terminal; do sleep 0.05; done; }
"#;

/// Files with holes at their start, within, at their end, and all over; and dense ones.
const SPARSE: &str = r#"mkdir -p r/d; cd r
    truncate -s 40M big; printf data | dd of=big bs=1 seek=30000000 conv=notrunc status=none
    truncate -s 3M hole; printf start > d/start; truncate -s 2M d/start
    truncate -s 1M d/end; printf end >> d/end; echo dense > dense; : > empty
    for at in $(seq 0 3 900); do printf $at | dd of=many bs=4096 seek=$at conv=notrunc status=none; done
    cp --sparse=always big "d/$(printf 'n%.0s' {1..180})"; cp --sparse=always many 'd/two words ü'
    ln d/start d/hard; cd ..
    same() { diff -r r "$1"; [ $(du -s "$1" | cut -f1) -lt 20000 ] || { du -a "$1"; exit 1; }; }
    out() { "$SAPWOOD" cp -qa $1: $2; rmdir $2/lost+found 2> /dev/null || true; }
    image i r; "$SAPWOOD" export i --tar t; [ $(stat -c %s t) -lt 4000000 ]; "$SAPWOOD" export i: --tar - | cmp - t
    mkdir gnu; tar -xf t -C gnu; same gnu; [ $(stat -c %h gnu/d/hard) = 2 ]
    [ "$(tar -tf t | sort)" = "$(tar -cf - -C r . | tar -tf - | sort | sed 's,^\./\(.\),\1,')" ]
    mkdir py; python3 -c 'import tarfile; tarfile.open("t").extractall("py")'; diff -r r py
    "$SAPWOOD" mkfs -q -t $KIND --tar t --size 256M j; out j ours; same ours
    "$SAPWOOD" export j --tar u; cmp t u; mkdir here; "$SAPWOOD" untar -q t here; same here
    for version in 0.0 0.1 1.0; do
        tar --format=posix --sparse-version=$version -Scf g -C r .
        "$SAPWOOD" mkfs -q -t $KIND --tar g --size 256M k$version; out k$version o$version; same o$version
    done
    [ $("$SAPWOOD" export i --tar - --no-sparse 2> err | wc -c) -gt 80000000 ]; [ ! -s err ]
    mkdir long; truncate -s 300M long/big; image n long; [ $("$SAPWOOD" export n --tar - --no-sparse 2> err | wc -c) -gt 300000000 ]; grep -q 'big: its holes' err
    "$SAPWOOD" export i:d --oci-layer l --sparse --compress none > json; grep -aq GNU.sparse l; [ $(stat -c %s l) -lt 4000000 ]
    "$SAPWOOD" export -f i:d --oci-layer l --compress zstd > json 2> err; zstd -dc l | cmp - <("$SAPWOOD" export i:d --tar - --no-sparse 2> err)"#;

const LAYER: &str = r#"mkdir -p r/etc r/var/cache w/etc w/var/cache; echo a > r/etc/a; echo b > r/etc/b; echo c > r/var/cache/c
    touch w/etc/.wh.a w/var/cache/.wh..wh..opq; echo new > w/etc/new; echo d > w/var/cache/d
    tar -cf l -C w .; gzip -k l; mkdir dir
    image i r; refused 'removes a file; `--layer` applies' "$SAPWOOD" untar -q l i:
    "$SAPWOOD" cat i:etc/a | grep -qx a; refused 'no such file' "$SAPWOOD" stat i:etc/.wh.a
    refused '`--layer`' "$SAPWOOD" untar -q l dir; [ -z "$(find dir -name '.wh*')" ]
    refused '`--layer`' "$SAPWOOD" mkfs -q -t $KIND --size 128M -r r --tar l x; [ ! -e x ]
    refused '`--layer`' "$SAPWOOD" mkfs -q -t $KIND --size 128M -r r --overlay l x; [ ! -e x ]
    rm r/etc/a r/var/cache/c; echo new > r/etc/new; echo d > r/var/cache/d
    same() { rm -rf out; "$SAPWOOD" cp -qa "$1": out; rmdir out/lost+found 2> /dev/null || true; diff -r r out; }
    mkdir -p base/etc base/var/cache; echo a > base/etc/a; echo b > base/etc/b; echo c > base/var/cache/c
    for layer in l l.gz; do rm -f i2; image i2 base
        "$SAPWOOD" untar -q --layer $layer i2:; same i2; done
    image i3 base; cat l.gz | "$SAPWOOD" untar -q --layer - i3:; same i3
    "$SAPWOOD" mkfs -q -t $KIND --size 128M -r base --layer l i4; same i4
    "$SAPWOOD" mkfs -q -t $KIND --size 128M -r base --layer - i5 < l.gz; same i5
    "$SAPWOOD" untar --layer l dir 2> err && exit 1; grep -q -- '--layer is for IMAGE:DIR' err"#;

const MODES: &str = r#"mkdir r; image i r; mode() { "$SAPWOOD" stat --json "i:$1" | sed -n 's/.*"mode": "\([0-7]*\)".*/\1/p'; }
    is() { [ "$(mode "$1")" = "$2" ] || { echo "$1: $(mode "$1"), expected $2"; "$SAPWOOD" stat --json "i:$1"; exit 1; }; }
    for mask in 022 027 077; do umask $mask; wanted=$(printf %04o $((0666 & ~0$mask)))
        echo x | "$SAPWOOD" cp - i:/piped$mask; is /piped$mask $wanted
        echo x > f; "$SAPWOOD" cp - i:/file$mask < f; is /file$mask $wanted
        echo x | "$SAPWOOD" cp -p - i:/kept$mask; is /kept$mask $wanted
        echo x | "$SAPWOOD" write i:/written$mask; is /written$mask $wanted
        echo x | "$SAPWOOD" cp - here$mask; [ $(stat -c %04a here$mask) = $wanted ]
    done
    umask 022; chmod 640 f; "$SAPWOOD" cp f i:/f; is /f 0640; "$SAPWOOD" cp --mode 755 f i:/f; is /f 0755
    echo x | "$SAPWOOD" cp --mode 600 - i:/secret; is /secret 0600
    echo x | "$SAPWOOD" write --mode 4711 i:/setid; is /setid 4711; echo x | "$SAPWOOD" write --mode 600 i:/setid; is /setid 0600
    mkdir -p t/d; touch t/d/1; chmod 700 t/d; "$SAPWOOD" cp -a --mode 444 t i:; is /t/d/1 0444; is /t/d 0700
    "$SAPWOOD" cp -a --mode 400 i:t out; [ $(stat -c %a out/d/1) = 400 ]; [ $(stat -c %a out/d) = 700 ]
    "$SAPWOOD" cp --mode 8 f i: 2> err && exit 1; grep -q 'not an octal mode' err"#;

/// The reader of the export waits until the terminal shows the total.
const PROGRESS: &str = r#"mkdir -p r/d; yes sapwood | head -c 60000000 > r/d/big || true; touch r/d/1 r/d/2; mkfifo out
    image i r; terminal() { rm -f terminal; script -qfec "$1" terminal > /dev/null < /dev/null; }
    slow() { terminal "strace -f -qq -o /dev/null -e trace=read,pread64 -e inject=read,pread64:delay_enter=30000:when=1..100 $1"; }
    blocked() { terminal "$1" & exec 3< out; shown 'of 57.* MiB.* left'; cat <&3 > /dev/null; exec 3<&-; wait $!; }
    blocked "'$SAPWOOD' export i --tar out"; grep -aq 'exported' terminal
    blocked "'$SAPWOOD' export i --oci-layer out --compress none"
    blocked "'$SAPWOOD' cp i:d/big - > out"; grep -aq 'copied' terminal
    slow "'$SAPWOOD' cp -a r i:copy"; grep -aqE 'of 57.* MiB.* left' terminal
    terminal "'$SAPWOOD' mkfs -q -f -t $KIND --size 256M -r r j"; not() { ! "$@"; }; not grep -aq left terminal
    slow "'$SAPWOOD' mkfs -f -t $KIND --size 256M -r r j"; grep -aqE 'files .*[0-9]%.* left' terminal
    tar -cf t -C r .; for place in i:d there; do mkdir -p there; slow "'$SAPWOOD' untar t $place"; grep -aqE 'of 57.* MiB of the archive.* left' terminal; done
    terminal "'$SAPWOOD' cp -q i:d/big big"; not grep -aq left terminal"#;

fn run(kind: Kind, script: &str) -> Outcome {
    let dir = scratch::directory();
    let program = sapwood().display();
    std::fs::write(dir.path().join("prelude"), PRELUDE)?;
    let script = format!("SAPWOOD='{program}'; KIND={kind}; . ./prelude\n{script}");
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let sparse = ["tar", "python3"].map(Need::Program);
    let tools = [Need::Program("tar")];
    let terminal = ["script", "strace", "tar"].map(Need::Program);
    let scripts: [(&str, &[Need], &'static str); 4] = [
        ("files_with_holes", &sparse, SPARSE),
        ("layers_are_applied_or_refused", &tools, LAYER),
        ("modes_of_what_is_piped", &[], MODES),
        ("progress_on_a_terminal", &terminal, PROGRESS),
    ];
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        for (name, needs, script) in scripts {
            trials.push(trial(format!("{kind}::{name}"), needs, move || {
                run(kind, script)
            }));
        }
    }
    trials
}
