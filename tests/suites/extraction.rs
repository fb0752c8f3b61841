//! Attacks on copies without a mount: an image must not determine where a copy writes, which rights
//! it grants, or how long it takes. Each test is a script; `$KIND` is the format.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(600);

/// Prelude of the scripts. `user`: as an ordinary user; `refused HINT COMMAND...`: it exits with 1
/// within the time limit and prints the hint; `mode FILE MODE`: the file has these permissions.
const PRELUDE: &str = r#"
umask 022
image() { "$SAPWOOD" mkfs -q -t $KIND --size 128M "$@"; }
user() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
mode() { local found; found=$(stat -c %a "$1"); [ "$found" = "$2" ] || { echo "$1: $found"; exit 1; }; }
inside() { local found; found=$("$SAPWOOD" stat "$1" | grep -F "  mode"); grep -qF "mode    $2," <<< "$found" || { echo "$1: $found"; exit 1; }; }
refused() {
    local hint=$1 code=0; shift
    (ulimit -v 3000000; timeout 60 "$SAPWOOD" "$@" > out.txt 2> err.txt) || code=$?
    [ $code = 1 ] || { echo "exit code $code: $*"; tail -5 err.txt; exit 1; }
    grep -q -- "$hint" err.txt || { echo "$* says:"; cat err.txt; exit 1; }
}
mkdir t outside; echo safe > outside/kept
"#;

/// Attacks on both kinds of image.
const BOTH: &[(&str, &str)] = &[
    (
        "set_id_bits_are_not_copied_out_without_archive",
        r#"echo x > t/f; chown 1001:1001 t/f; chmod 6755 t/f; mkdir -m 2777 t/d; image a.img -r t
        "$SAPWOOD" cp -q a.img:f out; mode out 755
        "$SAPWOOD" cp -qr a.img:/ all; mode all/f 755; mode all/d 755; [ $(stat -c %u all/f) = 0 ]"#,
    ),
    (
        "archive_keeps_set_id_bits_with_the_owner",
        r#"echo x > t/f; chown 1001:1002 t/f; chmod 6755 t/f; image a.img -r t
        "$SAPWOOD" cp -qa a.img:f out; mode out 6755; [ $(stat -c %u:%g out) = 1001:1002 ]"#,
    ),
    (
        "an_ordinary_user_gets_no_set_id_bits",
        r#"echo x > t/f; chmod 6755 t/f; mkdir -m 2755 t/d; image a.img -r t; chmod 644 a.img; mkdir -m 777 o; chmod 755 .
        user "$SAPWOOD" cp -qa a.img:/f a.img:/d o; mode o/f 755; mode o/d 755; [ $(stat -c %u o/f) = 1234 ]"#,
    ),
    (
        "set_id_bits_do_not_come_in_without_archive",
        r#"echo x > f; chown 1001 f; chmod 6755 f; image a.img; "$SAPWOOD" cp -q f a.img:f; inside a.img:f 0755
        "$SAPWOOD" cp -qa f a.img:g; inside a.img:g 6755
        "$SAPWOOD" cp -qa --owner 7:7 f a.img:h; inside a.img:h 0755"#,
    ),
    (
        "set_id_bits_are_not_copied_within_and_between_images",
        r#"echo x > t/f; chown 1001 t/f; chmod 6755 t/f; image a.img -r t; image b.img
        "$SAPWOOD" cp -q a.img:f a.img:g; inside a.img:g 0755
        "$SAPWOOD" cp -q a.img:f b.img:g; inside b.img:g 0755
        "$SAPWOOD" cp -qa a.img:f b.img:h; inside b.img:h 6755"#,
    ),
    (
        "an_existing_set_id_file_loses_the_bits_with_its_content",
        r#"echo x > t/f; image a.img -r t; echo old > out; chmod 6755 out; "$SAPWOOD" cp -q a.img:f out; mode out 755
        echo old > new; chmod 6755 new; "$SAPWOOD" cp -qa new a.img:g; "$SAPWOOD" cp -q out a.img:g; inside a.img:g 0755"#,
    ),
    (
        "a_link_of_the_first_source_is_not_followed_by_the_second",
        r#"mkdir -p t/x t/y/a; ln -s "$PWD/outside" t/x/a; echo evil > t/y/a/kept; echo evil > t/y/a/new; image a.img -r t
        mkdir O; refused 'is not replaced' cp -qa a.img:/x/a a.img:/y/a O
        [ "$(cat outside/kept)" = safe ]; [ ! -e outside/new ]"#,
    ),
    (
        "a_link_below_a_merged_directory_is_not_followed",
        r#"mkdir -p t/x/d t/y/d/s; ln -s "$PWD/outside" t/x/d/s; echo evil > t/y/d/s/new; image a.img -r t
        mkdir O; refused 'is not replaced' cp -qr a.img:/x/d a.img:/y/d O; [ ! -e outside/new ]; [ -L O/d/s ]"#,
    ),
    (
        "a_link_at_the_destination_is_not_followed",
        r#"mkdir t/d; echo evil > t/d/new; image a.img -r t
        mkdir O; ln -s "$PWD/outside" O/d; refused 'is not replaced' cp -qr a.img:/d O
        refused 'is not replaced' cp -qa a.img:/. O; [ ! -e outside/new ]"#,
    ),
    (
        "a_file_replaces_a_link_of_its_name",
        r#"echo evil > t/kept; image a.img -r t; mkdir O; ln -s "$PWD/outside/kept" O/kept
        "$SAPWOOD" cp -q a.img:kept O; [ "$(cat O/kept)" = evil ]; [ ! -L O/kept ]; [ "$(cat outside/kept)" = safe ]
        rm O/kept; ln -s "$PWD/outside/kept" O/kept; "$SAPWOOD" cp -qa a.img:/. O; [ "$(cat outside/kept)" = safe ]"#,
    ),
    (
        "a_further_name_of_a_file_elsewhere_is_not_written",
        r#"echo evil > t/kept; image a.img -r t; mkdir O; ln outside/kept O/kept
        "$SAPWOOD" cp -qr a.img:/. O; [ "$(cat O/kept)" = evil ]; [ "$(cat outside/kept)" = safe ]"#,
    ),
    (
        "a_link_to_nothing_is_not_written_through",
        r#"echo evil > t/f; image a.img -r t; ln -s "$PWD/outside/new" l
        refused 'link to nothing' cp -q a.img:f l; [ ! -e outside/new ]"#,
    ),
    (
        "a_link_that_the_user_names_is_followed",
        r#"echo good > t/f; mkdir t/d; echo good > t/d/g; image a.img -r t; ln -s outside l; ln -s outside/kept k
        "$SAPWOOD" cp -q a.img:f l; [ "$(cat outside/f)" = good ]; "$SAPWOOD" cp -qr a.img:d l/; [ -e outside/d/g ]
        "$SAPWOOD" cp -q a.img:f k; [ -L k ]; [ "$(cat outside/kept)" = good ]"#,
    ),
    (
        "two_files_of_one_name_do_not_replace_each_other",
        r#"mkdir t/x t/y; echo 1 > t/x/f; echo 2 > t/y/f; image a.img -r t; mkdir O
        refused 'has made' cp -q a.img:x/f a.img:y/f O; [ "$(cat O/f)" = 1 ]"#,
    ),
    (
        "dots_at_the_end_of_a_source_do_not_leave_the_destination",
        r#"mkdir -p t/d/e; echo evil > t/d/new; image a.img -r t; mkdir -p O
        "$SAPWOOD" cp -qr a.img:d/e/.. O; [ -e O/new ]; [ ! -e new ]; "$SAPWOOD" cp -qr a.img:d/e/.. O/e; [ -e O/e/new ]"#,
    ),
    (
        "links_in_an_image_lead_nowhere_else",
        r#"ln -s "$PWD/outside" t/abs; ln -s ../../../../../../../../.. t/up; image a.img -r t
        refused 'no such file' cp -q a.img:abs/kept out
        refused 'no such file' cp -q "a.img:up$PWD/outside/kept" out; [ ! -e out ]"#,
    ),
    (
        "a_device_is_written_to_and_not_replaced",
        r#"echo x > t/f; image a.img -r t; mknod null c 1 3; "$SAPWOOD" cp -q a.img:f null; [ -c null ]
        "$SAPWOOD" cp -qa a.img:f null; [ -c null ]"#,
    ),
    (
        "a_file_is_not_copied_onto_itself",
        r#"echo x > t/f; ln t/f t/g; mkdir -p t/d; echo y > t/d/f; image a.img -r t
        refused 'same file' cp -q a.img:f a.img:f; refused 'same file' cp -q a.img:g a.img:f
        refused 'same file' cp -q a.img:f ./a.img:/; [ $("$SAPWOOD" cat a.img:f) = x ]
        refused 'same file' cp -q t/f t/g; [ $(cat t/f) = x ]"#,
    ),
    (
        "a_directory_is_not_copied_into_itself",
        r#"mkdir -p t/d/e; echo x > t/d/f; image a.img -r t; refused 'into itself' cp -qr a.img:d a.img:d/e
        refused 'into itself' cp -qr a.img:d a.img:d/new; refused 'into itself' cp -qr t t/d; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "a_directory_below_itself_ends_every_walk",
        r#"mkdir -p t/a/b/loop0001; echo x > t/a/b/f; echo x > t/keep; image a.img -r t
        $TIE a.img a loop0001 a/b/loop0001
        refused 'loop' tree a.img; refused 'loop' tree --json a.img
        refused 'directory loop.*' cp -qr a.img:a out; [ -e out/b/f ] || [ -e out/b ]; refused 'loop' cp -qa a.img:/ all; [ -e all/keep ]
        refused 'loop' cp -qr a.img:a a.img:c; refused 'loop: loop0001' rm -r a.img:a
        timeout 60 "$SAPWOOD" check -q a.img > out.txt && exit 1; [ $? = 1 ]"#,
    ),
    (
        "a_directory_below_the_root_that_is_the_root_ends_every_walk",
        r#"mkdir -p t/a/loop0001; image a.img -r t; $TIE a.img / loop0001 a/loop0001
        refused 'loop' tree a.img; refused 'loop' cp -qr a.img:/ all; refused 'loop' rm -r a.img:a"#,
    ),
    (
        "directories_with_two_names_each_are_not_copied_by_the_million",
        r#"d=t; for n in $(seq 1000 1030); do mkdir -p $d/x$n $d/y$n/f; d=$d/x$n; done; image a.img -r t
        d=; for n in $(seq 1000 1029); do $TIE a.img ${d}x$n y$n ${d}y$n; d=${d}x$n/; done
        refused 'reached a second time' tree a.img; refused 'another name' cp -qr a.img:/ all
        (ulimit -v 3000000; timeout 60 "$SAPWOOD" rm -r a.img:x1000 > out.txt 2>&1) || [ $? = 1 ]"#,
    ),
    (
        "capabilities_survive_every_archive_copy",
        r#"cp /bin/true t/f; chown 1001:1001 t/f; chmod 755 t/f; setcap cap_net_raw+ep t/f; image a.img -r t; image b.img
        has() { "$SAPWOOD" stat $1 | grep -c 'xattr   security.capability' || { echo $1; exit 1; }; }
        has a.img:f; "$SAPWOOD" cp -qa t/f a.img:g; has a.img:g; "$SAPWOOD" cp -qa a.img:f a.img:h; has a.img:h
        "$SAPWOOD" cp -qa a.img:f b.img:f; has b.img:f; "$SAPWOOD" cp -qa a.img:f out; getcap out | grep -c cap_net_raw
        [ $(stat -c %u out) = 1001 ]; "$SAPWOOD" cp -qa t/f b.img:f; has b.img:f"#,
    ),
    (
        "a_deep_tree_is_copied_and_removed",
        r#"(cd t; for n in $(seq 300); do mkdir d; cd d; done; echo x > f); image a.img -r t; "$SAPWOOD" cp -qa a.img:/ out
        diff -r t/d out/d; "$SAPWOOD" tree a.img | tail -1 | grep -c '30[01] directories, 1 files'; "$SAPWOOD" rm -r a.img:d"#,
    ),
];

/// Attacks on btrfs, whose directories name their parents by back references.
const BTRFS: &[(&str, &str)] = &[(
    "directories_that_are_each_others_parent_end_a_rename",
    r#"mkdir -p t/a/b t/x; image a.img -r t; $RING a.img a a/b; refused 'ring' mv a.img:x a.img:a/b/y"#,
)];

/// Attacks with names that only the blocks of an ext4 directory can be patched to.
const EXT4: &[(&str, &str)] = &[
    (
        "names_that_are_no_names_are_refused",
        r#"mkdir t/d; echo evil > t/d/aXX; echo evil > t/d/bXXXXXXXXoutside; echo evil > t/d/cXX; echo good > t/d/good
        mke2fs -q -F -t ext4 -O ^metadata_csum,^dir_index -d t a.img 64M
        $PATCH a.img aXX ../; $PATCH a.img bXXXXXXXXoutside ../../../outside; printf 'cXX' > from; printf '\0XX' > to; $PATCH a.img @from @to
        mkdir -p O/P; "$SAPWOOD" cp -qr a.img:d O/P && exit 1; [ "$(cat outside/kept)" = safe ]
        [ "$(cd O; ls -A)" = P ]; (cd O/P; ls -A) | grep -cx d; ! find . -path ./t -prune -o -name '*outside*' -newer to -print | grep ."#,
    ),
    (
        "a_parent_directory_as_an_entry_is_refused",
        r#"mkdir -p t/d/zz; echo evil > t/d/zz/new; mke2fs -q -F -t ext4 -O ^metadata_csum,^dir_index -d t a.img 64M
        $PATCH a.img zz ..; mkdir -p O/P; "$SAPWOOD" cp -qr a.img:d O/P || true; [ ! -e O/P/new ]; [ ! -e O/new ]; [ ! -e new ]"#,
    ),
    (
        "a_link_and_a_directory_of_one_name_stay_inside",
        r#"mkdir -p t/d/same; ln -s "$PWD/outside" t/d/sbme; echo evil > t/d/same/new
        mke2fs -q -F -t ext4 -O ^metadata_csum,^dir_index -d t a.img 64M; $PATCH a.img sbme same; mkdir O
        "$SAPWOOD" cp -qa a.img:d O || true; "$SAPWOOD" cp -qr a.img:d O || true; [ ! -e outside/new ]"#,
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let needs = |name: &str| match name {
        _ if name.contains("walk") || name.contains("two_names") => {
            vec![Need::Root, Need::Program("debugfs")]
        }
        _ if name.contains("capabilities") => vec![Need::Root, Need::Program("setcap")],
        _ => vec![Need::Root],
    };
    let mut trials = Vec::new();
    for (kind, attacks) in [
        ("btrfs", BOTH),
        ("ext4", BOTH),
        ("btrfs", BTRFS),
        ("ext4", EXT4),
    ] {
        for (name, script) in attacks {
            let run = move || attack(kind, script);
            trials.push(trial(format!("{kind}::{name}"), &needs(name), run));
        }
    }
    trials
}

fn attack(kind: &str, script: &str) -> Outcome {
    let dir = scratch::directory();
    let own = std::env::current_exe()?;
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &format!("{PRELUDE}\n{script}")])
        .env("SAPWOOD", sapwood())
        .envs([("KIND", kind), ("TZ", "UTC")])
        .env("TIE", format!("{} {TIE}", own.display()))
        .env("RING", format!("{} {RING}", own.display()))
        .env("PATCH", format!("{} {PATCH}", own.display()))
        .current_dir(dir.path());
    process::succeed(&mut command, LIMIT)?;
    Ok(())
}

/// `TIE IMAGE DIRECTORY NAME PATH`: the entry NAME at PATH leads to DIRECTORY. Names have to be
/// unique.
const TIE: &str = "--tie-entry";
/// `PATCH IMAGE OLD NEW`: an entry of an ext4 directory gets another name of the same length;
/// `@FILE` has the name.
const PATCH: &str = "--patch-entry";

/// `RING IMAGE UPPER LOWER`: the directory UPPER of a btrfs names LOWER, which is in it, as its
/// parent.
const RING: &str = "--make-ring";

fn tie(image: &str, directory: &str, name: &str, path: &str) -> Result<(), String> {
    let first = fs::read(image).map_err(|error| error.to_string())?;
    if first.get(65_600..65_608) != Some(b"_BHRfS_M") {
        let script = format!("unlink {path}\nlink {directory} {path}\n");
        fs::write(format!("{image}.commands"), script).map_err(|error| error.to_string())?;
        let said = process::run(
            "debugfs",
            &["-w", "-f", &format!("{image}.commands"), image],
        )?;
        return if said.contains("File not found") {
            Err(said)
        } else {
            Ok(())
        };
    }
    let number = inode(image, directory)?;
    let mut pattern = vec![name.len() as u8, 0, 2];
    pattern.extend_from_slice(name.as_bytes());
    edit_btrfs(image, &|block| {
        let places = (101..NODE - pattern.len()).filter(|at| block[*at..].starts_with(&pattern));
        let places: Vec<usize> = places.collect();
        for at in &places {
            // A key of 17 bytes, a generation and the length of data are before the length of the
            // name.
            block[at - 27..at - 19].copy_from_slice(&number.to_le_bytes());
        }
        places.len()
    })
}

fn ring(image: &str, upper: &str, lower: &str) -> Result<(), String> {
    const INODE_REF: u8 = 12;
    let (upper, lower) = (inode(image, upper)?, inode(image, lower)?);
    let mut key = upper.to_le_bytes().to_vec();
    key.push(INODE_REF);
    edit_btrfs(image, &|block| {
        let places: Vec<usize> = (101..NODE - 17)
            .filter(|at| block[*at..].starts_with(&key))
            .collect();
        for at in &places {
            block[at + 9..at + 17].copy_from_slice(&lower.to_le_bytes());
        }
        places.len()
    })
}

fn inode(image: &str, path: &str) -> Result<u64, String> {
    let sapwood = std::env::var("SAPWOOD").unwrap();
    let shown = process::run(&sapwood, &["stat", "--json", &format!("{image}:{path}")])?;
    let number = shown
        .split("\"ino\": ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    number.and_then(|number| number.parse().ok()).ok_or(shown)
}

/// Bytes of a tree block of `sapwood mkfs`.
const NODE: usize = 16384;

/// Edits every tree block of a btrfs and renews the checksums; `edit` returns the number of its
/// changes.
fn edit_btrfs(image: &str, edit: &dyn Fn(&mut [u8]) -> usize) -> Result<(), String> {
    let edited = || -> std::io::Result<usize> {
        let (mut bytes, file) = (
            fs::read(image)?,
            OpenOptions::new().write(true).open(image)?,
        );
        let fsid = bytes[65_568..65_584].to_vec();
        let mut edits = 0;
        for (nth, block) in bytes.chunks_exact_mut(NODE).enumerate() {
            let sum = crc32c::crc32c(&block[32..]).to_le_bytes();
            if block[32..48] != fsid || block[..4] != sum {
                continue;
            }
            let found = edit(block);
            if found > 0 {
                let sum = crc32c::crc32c(&block[32..]).to_le_bytes();
                block[..4].copy_from_slice(&sum);
                file.write_all_at(block, (nth * NODE) as u64)?;
                edits += found;
            }
        }
        Ok(edits)
    };
    match edited().map_err(|error| error.to_string())? {
        0 => Err("nothing to edit".into()),
        _ => Ok(()),
    }
}

fn patch(image: &str, old: &str, new: &str) -> std::io::Result<()> {
    let bytes_of = |text: &str| match text.strip_prefix('@') {
        Some(path) => fs::read(path),
        None => Ok(text.as_bytes().to_vec()),
    };
    let (old, new, bytes) = (bytes_of(old)?, bytes_of(new)?, fs::read(image)?);
    assert_eq!(old.len(), new.len());
    let file: File = OpenOptions::new().write(true).open(image)?;
    let mut patched = 0;
    for at in memchr_all(&bytes, &old) {
        if at > 8 && usize::from(bytes[at - 2]) == old.len() && bytes[at - 1] < 8 {
            file.write_all_at(&new, at as u64)?;
            patched += 1;
        }
    }
    assert!(patched > 0, "no entry of this name");
    Ok(())
}

fn memchr_all<'b>(bytes: &'b [u8], wanted: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    let starts = bytes.windows(wanted.len()).enumerate();
    starts
        .filter(move |(_, window)| *window == wanted)
        .map(|(at, _)| at)
}

/// Plays the program that a script of this module calls, if the arguments ask for one.
pub(crate) fn played() -> bool {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [_, TIE, image, directory, name, path] => tie(image, directory, name, path).unwrap(),
        [_, RING, image, upper, lower] => ring(image, upper, lower).unwrap(),
        [_, PATCH, image, old, new] => patch(image, old, new).unwrap(),
        _ => return false,
    }
    true
}
