//! `dpkg` unpacking packages into the mount, the way a system is installed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::form::Form;
use sapwood_tests::mount::cache;
use sapwood_tests::{Need, Outcome, machine, process};

pub(super) fn trials() -> Vec<Trial> {
    let needs = ["dpkg", "dpkg-deb", "md5sum"].map(Need::Program);
    let trial = |form: Form| form.trial("dpkg::unpack_verify_and_remove", &needs, unpack);
    Form::plain_ones().map(trial).into()
}

/// Packs `count` installed packages of this machine again: no network needed.
fn packages(count: usize) -> Result<PathBuf, String> {
    /// One trial makes them, the others of this process wait.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = cache().join(format!("packages-{count}"));
    if dir.is_dir() {
        return Ok(dir);
    }
    let half = cache().join(format!("packages-{count}-{}", std::process::id()));
    std::fs::create_dir_all(&half).map_err(|error| error.to_string())?;
    let script = format!("COUNT={count}\n{REPACK}");
    process::shell(&half, &script, Duration::from_secs(1200))?;
    match std::fs::rename(&half, &dir) {
        Ok(()) => Ok(dir),
        Err(error) if dir.is_dir() => {
            let _ = std::fs::remove_dir_all(&half);
            drop(error);
            Ok(dir)
        }
        Err(error) => Err(format!("{}: {error}", dir.display())),
    }
}

/// Makes a package of each installed one that is not large. Configuration scripts are left out:
/// they have no place in a directory.
const REPACK: &str = r#"
    made=0
    dpkg-query -W -f '${Installed-Size} ${binary:Package} ${Package}\n' | sort -k2 > list
    while read -r size full name; do
        [ "$made" -lt "$COUNT" ] || break
        [ "${size:-0}" -lt 4000 ] || continue
        info=/var/lib/dpkg/info
        files=$info/$full.list; [ -f "$files" ] || files=$info/$name.list
        sums=${files%.list}.md5sums
        [ -f "$files" ] && [ -f "$sums" ] || continue
        rm -rf build; mkdir -p build/DEBIAN
        while read -r path; do
            [ "$path" = /. ] && continue
            if [ -d "$path" ] && [ ! -L "$path" ]; then
                mkdir -p "build$path" 2>/dev/null || true
            elif [ -e "$path" ] || [ -L "$path" ]; then
                mkdir -p "build$(dirname "$path")" 2>/dev/null && cp -a "$path" "build$path" || true
            fi
        done < "$files"
        dpkg-query -s "$full" | grep -v '^Status:\|^Conffiles:\|^ /.* [0-9a-f]\{32\}' > build/DEBIAN/control
        (cd build; find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0r md5sum) > sums
        mv sums build/DEBIAN/md5sums
        dpkg-deb -Znone --root-owner-group --build build "$name.deb" > /dev/null 2>&1 || continue
        made=$((made + 1))
    done < list
    rm -rf build list
    [ "$made" -gt 0 ]
"#;

fn unpack(form: &Form) -> Outcome {
    let packages = packages(if machine::full() { 300 } else { 40 })?;
    let mut volume = form.volume(8 << 30)?;
    let root = volume.join("system");
    run(&root, &packages, INSTALL)?;
    volume.remount()?;
    let root = volume.join("system");
    run(&root, &packages, VERIFY)?;
    run(&root, &packages, REMOVE)?;
    volume.finish_and_compare()?;
    Ok(())
}

fn run(root: &Path, packages: &Path, script: &str) -> Result<(), String> {
    std::fs::create_dir_all(root).map_err(|error| error.to_string())?;
    let script = format!("PACKAGES='{}'\n{script}", packages.display());
    process::shell(root, &script, Duration::from_secs(1800)).map(drop)
}

const INSTALL: &str = r#"
    mkdir -p var/lib/dpkg/{info,updates,triggers} usr/bin
    touch var/lib/dpkg/status
    DEBIAN_FRONTEND=noninteractive dpkg --root="$PWD" --force-all --no-triggers --unpack "$PACKAGES"/*.deb > ../log 2>&1 ||
        { tail -20 ../log; exit 1; }
"#;

const VERIFY: &str = r#"
    want=$(ls "$PACKAGES"/*.deb | wc -l)
    have=$(dpkg-query --admindir=var/lib/dpkg -W -f '${db:Status-Status}\n' | grep -c unpacked)
    [ "$have" = "$want" ] || { echo "$have of $want are unpacked"; exit 1; }
    for sums in var/lib/dpkg/info/*.md5sums; do
        md5sum --quiet -c "$sums" || exit 1
    done 2>&1 | grep -v 'etc/' | grep FAILED && exit 1
    true
"#;

const REMOVE: &str = r#"
    dpkg-query --admindir=var/lib/dpkg -W -f '${Package}\n' | awk 'NR % 3 == 0' |
        xargs dpkg --root="$PWD" --force-all --no-triggers --purge > ../log 2>&1 || { tail -20 ../log; exit 1; }
    DEBIAN_FRONTEND=noninteractive dpkg --root="$PWD" --force-all --no-triggers --unpack "$PACKAGES"/*.deb > ../log 2>&1 ||
        { tail -20 ../log; exit 1; }
"#;
