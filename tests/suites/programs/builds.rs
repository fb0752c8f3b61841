//! Developers' work in the mount: `git`, `cargo`, SQLite.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::form::Form;
use sapwood_tests::mount::workspace;
use sapwood_tests::{Need, Outcome, machine, process};

const LIMIT: Duration = Duration::from_secs(900);

pub(super) fn trials() -> Vec<Trial> {
    let git_needs = [Need::Program("git"), machine::HISTORY];
    let cargo_needs = [Need::Program("cargo")];
    let sqlite_needs = [Need::Program("sqlite3")];
    let mut trials = Vec::new();
    for form in Form::plain_ones() {
        trials.extend([
            form.trial("git::clone_fsck_and_gc", &git_needs, git),
            form.trial("cargo::build_and_test_a_crate", &cargo_needs, cargo),
            form.trial("sqlite::journals_and_integrity", &sqlite_needs, sqlite),
        ]);
    }
    let compressed = Form::btrfs("compressed", "", "compress=zstd");
    let in_place = Form::btrfs("nodatacow", "", "nodatacow");
    let journaled = Form::ext4("data_journal", "", "data=journal");
    trials.push(compressed.trial("git::clone_fsck_and_gc_compressed", &git_needs, git));
    for form in [in_place, journaled] {
        let name = format!("sqlite::journals_and_integrity_{}", form.name);
        trials.push(form.trial(name, &sqlite_needs, sqlite));
    }
    trials
}

/// Clones this repository with its history, works in the clone, checks it.
fn git(form: &Form) -> Outcome {
    let mut volume = form.volume(8 << 30)?;
    let clone = format!("git clone -q --no-local '{}' clone", workspace().display());
    process::shell(volume.path(), &clone, LIMIT)?;
    let work = "
        export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
        cd clone
        git fsck --full --strict
        git checkout -q -B work
        for i in 1 2 3 4 5; do
            echo $i > file-$i; mkdir -p dir-$i/sub; cp -r crates dir-$i/sub
            git add -A; git commit -qm $i
        done
        git checkout -q HEAD~3; git checkout -q work
        git gc -q --prune=now
        git fsck --full --strict
        test -z \"$(git status --porcelain)\"
    ";
    process::shell(volume.path(), work, LIMIT)?;
    volume.remount()?;
    process::shell(
        volume.path(),
        "cd clone; git fsck --full --strict; test -z \"$(git status --porcelain)\"",
        LIMIT,
    )?;
    volume.finish()?;
    Ok(())
}

/// Builds a crate, changes it, builds and tests it again.
fn cargo(form: &Form) -> Outcome {
    let mut volume = form.volume(8 << 30)?;
    let root = volume.join("crate");
    crate_in(&root, if machine::full() { 120 } else { 20 })?;
    let build = "export CARGO_TARGET_DIR=$PWD/target; cargo build -q --offline; cargo test -q --offline; cargo run -q --offline";
    let said = process::shell(&root, build, LIMIT)?;
    let change = "for i in src/part_*.rs; do sed -i 's/wrapping_add(1)/wrapping_add(2)/' $i; done";
    process::shell(&root, change, LIMIT)?;
    let again = process::shell(&root, build, LIMIT)?;
    if said == again {
        return Err("the change is not in what was built".into());
    }
    volume.remount()?;
    let root = volume.join("crate");
    let last = process::shell(
        &root,
        "CARGO_TARGET_DIR=$PWD/target cargo run -q --offline",
        LIMIT,
    )?;
    if !again.ends_with(&last) {
        return Err(format!("before the unmount it said {again}, now {last}").into());
    }
    volume.finish_and_compare()?;
    Ok(())
}

fn crate_in(root: &Path, parts: usize) -> std::io::Result<()> {
    fs::create_dir_all(root.join("src"))?;
    let manifest =
        "[package]\nname = \"inside\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n";
    fs::write(root.join("Cargo.toml"), manifest)?;
    let mut main = String::new();
    let mut sum = String::new();
    for at in 0..parts {
        let part = format!(
            "use std::collections::HashMap;\n\
             pub fn value() -> u64 {{\n    let map: HashMap<u64, String> = (0..{at}).map(|i| (i, i.to_string())).collect();\n    \
             map.values().map(|v| v.len() as u64).sum::<u64>().wrapping_add(1)\n}}\n\
             #[test]\nfn is_positive() {{ assert!(value() > 0); }}\n"
        );
        fs::write(root.join(format!("src/part_{at}.rs")), part)?;
        main.push_str(&format!("mod part_{at};\n"));
        sum.push_str(&format!(" + part_{at}::value()"));
    }
    main.push_str(&format!("fn main() {{ println!(\"{{}}\", 0{sum}); }}\n"));
    fs::write(root.join("src/main.rs"), main)
}

/// A database with both kinds of journal, changed and vacuumed.
fn sqlite(form: &Form) -> Outcome {
    let mut volume = form.volume(4 << 30)?;
    let rounds = if machine::full() { 300 } else { 30 };
    for journal in ["DELETE", "WAL", "TRUNCATE", "PERSIST"] {
        let mut script = format!(
            "PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;\n\
             CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b BLOB); CREATE INDEX i ON t(a);\n"
        );
        for round in 0..rounds {
            script.push_str(&format!(
                "BEGIN; WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<200)\n\
                 INSERT INTO t(a,b) SELECT hex(randomblob(12)), randomblob(x*7) FROM n; COMMIT;\n\
                 BEGIN; UPDATE t SET b=randomblob(900) WHERE id%17={}; DELETE FROM t WHERE id%23={}; COMMIT;\n",
                round % 17,
                round % 23,
            ));
        }
        script.push_str("VACUUM; PRAGMA integrity_check; SELECT count(*) FROM t;\n");
        let file = volume.image().beside("script.sql");
        fs::write(&file, script)?;
        let database = format!("{journal}.db");
        let run = format!("sqlite3 '{database}' < '{}'", file.display());
        let said = process::shell(volume.path(), &run, LIMIT)?;
        if !said.lines().any(|line| line == "ok") {
            return Err(format!("{journal}: {}", process::tail(&said)).into());
        }
    }
    volume.remount()?;
    let check = "for db in *.db; do test \"$(sqlite3 $db 'PRAGMA integrity_check')\" = ok; done";
    process::shell(volume.path(), check, LIMIT)?;
    volume.finish()?;
    Ok(())
}
