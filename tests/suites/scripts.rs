//! Scripts of `sapwood apply`: all or nothing, after errors and signals too; the kernel's tools check
//! the result, and debugfs is the oracle of its own scripts. Each test is a script.

use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(300);

/// Prelude of the scripts. `image FILE DIR`: an image of a directory; `kernel_check FILE`: the check
/// of the format's own tools.
const PRELUDE: &str = r#"
set -e; umask 022; export LC_ALL=C
image() { "$SAPWOOD" mkfs -q -t $KIND --size 256M -r "$2" "$1"; }
kernel_check() {
    case $KIND in
    ext4) e2fsck -fn "$1" > check.txt 2>&1 ;;
    btrfs) btrfs check --readonly --check-data-csum "$1" > check.txt 2>&1 ;;
    esac || { cat check.txt; exit 1; }
}
"#;

const APPLY: &str = r#"mkdir r; echo old > r/old; mkdir r/dir r/empty; echo x > r/dir/x; for n in $(seq 50); do echo $n > r/dir/$n; done
image i r
"$SAPWOOD" export i --tar before.tar
state() { "$SAPWOOD" export "${1:-i}" --tar - | sha256sum; }
was=$(state)
cat > good <<'END'
# a comment, and an empty line

mkdir -p /etc/app ":/with space"
cp -r ./r/dir :/etc/app
write --mode 600 /etc/app/secret <<TEXT
two 'lines'
# of text
TEXT
["write", "/json"]
END
code=0; "$SAPWOOD" apply i good 2> err || code=$?; [ $code = 2 ]; grep -q 'good:9: write needs its text' err
sed -i '$d' good
cat >> good <<'END'
{"args": ["write", "/json"], "input": "box\n"}
chmod 640 /old
chown 7:8 /old
mv /old /moved
ln -s moved :/link
ln :/moved /hard
xattr set user.note "a b" /moved
rm -r /dir
END
"$SAPWOOD" apply --dry-run i good > diff; cp i copy; cat diff
grep -qx -- '- /dir/x' diff; grep -qx '+ /etc/app/secret' diff; grep -qx -- '- /old' diff; grep -qx '+ /moved' diff
[ "$(state)" = "$was" ]
"$SAPWOOD" apply i good
"$SAPWOOD" check i; kernel_check i
[ "$("$SAPWOOD" cat i:/json)" = box ]; [ "$("$SAPWOOD" cat i:/etc/app/secret)" = "two 'lines'
# of text" ]
[ "$("$SAPWOOD" xattr get user.note i:/moved)" = "a b" ]; [ "$("$SAPWOOD" cat i:/link)" = old ]
"$SAPWOOD" ls i:dir 2> /dev/null && exit 1
"$SAPWOOD" stat i:'/with space' > /dev/null
# nothing of a script that fails
now=$(state)
printf 'rm -r /etc\nwrite /a <<E\nb\nE\nrm /no-such-file\nmkdir /never\n' > bad
code=0; "$SAPWOOD" apply i bad 2> err || code=$?; cat err; [ $code = 1 ]; grep -q no-such-file err; grep -q 'bad:5: failed; nothing was changed' err
[ "$(state)" = "$now" ]; "$SAPWOOD" check i; kernel_check i
code=0; "$SAPWOOD" apply --keep-going i bad 2> err || code=$?; [ $code = 1 ]; cat err; grep -q '1 of 4 commands failed' err
"$SAPWOOD" stat i:/never > /dev/null; "$SAPWOOD" stat i:/etc 2> /dev/null && exit 1
for wrong in 'frobnicate' 'rm' "rm 'x" 'mkfs x' 'mount x y' 'subvolume list :'; do
    echo "$wrong" | { code=0; "$SAPWOOD" apply i - 2> err || code=$?; [ $code = 2 ] || { echo "$wrong: $code"; cat err; exit 1; }; }
done
code=0; "$SAPWOOD" apply nowhere good 2> err || code=$?; [ $code = 3 ]; cat err
# untar, and a signal
tar -cf t -C r .; printf 'mkdir /u\nuntar -q t /u\n' | "$SAPWOOD" apply -q i -; [ "$("$SAPWOOD" cat i:/u/old)" = old ]
now=$(state); mkfifo pipe
head -c 6000000 /dev/zero > z; tar -cf z.tar z
printf 'rm -r /u\nmkdir /big\nuntar pipe /big\n' > slow; "$SAPWOOD" apply i slow 2> err & pid=$!
exec 3> pipe; head -c 3000000 z.tar >&3; kill -INT $pid; code=0; wait $pid || code=$?; exec 3>&-; cat err; [ $code = 130 ] || { echo "code $code"; exit 1; }
[ "$(state)" = "$now" ]"#;

const DEBUGFS: &str = r#"mkdir r; echo old > r/old; echo data > source; mkdir sub; echo other > sub/other
image i r; cp i j
cat > requests <<'END'
mkdir d
cd d
write source new
symlink l ../old
mkdir e
rmdir e
cd /
ln old hard
set_inode_field old mode 0100640
sif old uid 7
sif old gid 8
lcd sub
write other other
unlink hard
ea_set old user.k value
END
debugfs -w -f requests j > /dev/null 2>&1
"$SAPWOOD" apply -q --debugfs i requests
names() { "$SAPWOOD" find "$1:/" | sort; }
[ "$(names i)" = "$(names j)" ] || { diff <(names i) <(names j); exit 1; }
for file in d/new other old; do [ "$("$SAPWOOD" cat i:$file)" = "$("$SAPWOOD" cat j:$file)" ]; done
field() { "$SAPWOOD" stat --json "$1" | grep -o '"\(mode\|uid\|gid\|links\|nlink\)": [^,]*'; }
for file in d d/new d/l other; do [ "$(field i:$file)" = "$(field j:$file)" ] || { echo $file; field i:$file; field j:$file; exit 1; }; done
[ "$("$SAPWOOD" xattr get user.k i:old)" = value ]
kernel_check i
now=$(sha256sum < i); printf 'mkdir x\nclri <12>\n' > other
code=0; "$SAPWOOD" apply --debugfs i other 2> err || code=$?; [ $code = 2 ]; grep -q 'line 2.*clri' err; [ "$(sha256sum < i)" = "$now" ]
printf 'write source old\n' > twice; code=0; "$SAPWOOD" apply --debugfs i twice 2> err || code=$?; [ $code = 1 ]; grep -q exists err
printf 'rmdir d\n' > full; code=0; "$SAPWOOD" apply --debugfs i full 2> err || code=$?; [ $code = 1 ]; grep -q 'not empty' err"#;

fn run(kind: Kind, script: &str) -> Outcome {
    let dir = scratch::directory();
    let program = sapwood().display();
    std::fs::write(dir.path().join("prelude"), PRELUDE)?;
    let script = format!("SAPWOOD='{program}'; KIND={kind}; . ./prelude\n{script}");
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let tools = [Need::Program("btrfs"), Need::Program("e2fsck")];
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        let name = format!("{kind}::all_or_nothing");
        trials.push(trial(name, &tools, move || run(kind, APPLY)));
    }
    let debugfs = [Need::Program("debugfs"), Need::Program("e2fsck")];
    trials.push(trial("ext4::requests_of_debugfs", &debugfs, || {
        run(Kind::Ext4, DEBUGFS)
    }));
    trials
}
