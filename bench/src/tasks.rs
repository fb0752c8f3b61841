//! Workloads of ordinary programs. Each is a shell script with the variables `MOUNT`, `SCRATCH`,
//! `SAPWOOD` and `N`.

use crate::error::{Error, Result};
use crate::material::{self, ROOT};
use crate::rows::{Figure, low};
use crate::run::Run;

/// The measurements of [`small`].
pub(crate) const SMALL: &[Figure] = &[
    low("s", "tar xf", "s"),
    low("durable_s", "until durable", "s"),
    low("find_s", "find, nothing cached", "s"),
    low("read_s", "read all", "s"),
    low("remove_s", "rm -rf", "s"),
    low("untar_s", "sapwood untar through the daemon, or tar", "s"),
    low(
        "untar_offline_s",
        "sapwood untar without a mount, or tar until durable",
        "s",
    ),
    low(
        "cp_offline_s",
        "sapwood cp -a without a mount, or cp -a until durable",
        "s",
    ),
];

/// One client unpacks an archive of small files, lists, reads and removes them. Then `sapwood`
/// writes the same files through the daemon and without a mount; `tar` and `cp` write them for the
/// other contestants.
pub(crate) fn small(run: &mut Run) -> Result<()> {
    const TAR: &str = "exec tar -xf \"$SCRATCH/small.tar\" -C \"$MOUNT\"";
    let files = run.size.count;
    material::make_archive(&run.scratch.join("small.tar"), files)?;
    run.begin()?;
    run.timed("s", TAR)?;
    run.durable("durable_s")?;
    let remove = "exec rm -rf \"$MOUNT/small\"";
    if run.is_volatile() {
        return run.timed("remove_s", remove).map(drop);
    }
    run.cold()?;
    run.timed("find_s", "exec find \"$MOUNT\" -type f -printf '%s\\n'")?;
    run.timed("read_s", "tar -cf - \"$MOUNT/small\" | cat > /dev/null")?;
    run.timed("remove_s", remove)?;
    run.begin()?;
    let ours = run.is_sapwood();
    let untar = "exec \"$SAPWOOD\" untar --quiet \"$SCRATCH/small.tar\" \"$MOUNT\"";
    run.timed("untar_s", if ours { untar } else { TAR })?;
    empty_again(run)?;
    let offline = |run: &mut Run, key: &str, ours_script: &str, theirs: &str| {
        if ours {
            run.timed_unmounted(key, ours_script)
        } else {
            let written = run.timed(key, theirs)?.seconds;
            run.durable(key)?;
            run.add(key, written);
            Ok(())
        }
    };
    let untar = "exec \"$SAPWOOD\" untar --quiet \"$SCRATCH/small.tar\" \"$IMAGE:/\"";
    offline(run, "untar_offline_s", untar, TAR)?;
    empty_again(run)?;
    run.shell("mkdir \"$SCRATCH/tree\"; cd \"$SCRATCH/tree\"; tar -xf ../small.tar; sync -f .")?;
    let copy = "exec \"$SAPWOOD\" cp --quiet -a \"$SCRATCH/tree/small\" \"$IMAGE:/\"";
    offline(
        run,
        "cp_offline_s",
        copy,
        "exec cp -a \"$SCRATCH/tree/small\" \"$MOUNT\"",
    )?;
    material::expect(&run.dir()?.join(ROOT), files)
}

/// Checks that all files are there, and removes them.
fn empty_again(run: &mut Run) -> Result<()> {
    material::expect(&run.dir()?.join(ROOT), run.size.count)?;
    run.shell("rm -rf \"$MOUNT/small\"")?;
    run.begin()
}

/// Clones a repository of many small files by a URL, because a clone of a path would link the pack.
pub(crate) fn git_clone(run: &mut Run) -> Result<()> {
    material::make_archive(&run.scratch.join("small.tar"), run.size.count)?;
    run.shell(
        r#"
        mkdir "$SCRATCH/source"; cd "$SCRATCH/source"; tar -xf ../small.tar
        export GIT_AUTHOR_DATE='2025-01-01T00:00Z' GIT_COMMITTER_DATE='2025-01-01T00:00Z'
        git init -q; git add -A
        git -c user.name=bench -c user.email=bench@localhost commit -q -m all
        git repack -adq"#,
    )?;
    run.begin()?;
    run.timed(
        "s",
        "exec git clone -q \"file://$SCRATCH/source\" \"$MOUNT/clone\"",
    )?;
    run.durable("durable_s")?;
    material::expect(&run.dir()?.join("clone").join(ROOT), run.size.count)?;
    run.timed(
        "status_s",
        "test -z \"$(git -C \"$MOUNT/clone\" status --porcelain)\"",
    )?;
    run.timed("remove_s", "exec rm -rf \"$MOUNT/clone\"")
        .map(drop)
}

/// Builds a workspace of four crates without dependencies; each except the first uses the one
/// before it.
pub(crate) fn rust_build(run: &mut Run) -> Result<()> {
    run.shell(
        r#"
        mkdir "$MOUNT/program"; cd "$MOUNT/program"
        printf '[workspace]\nresolver = "2"\nmembers = ["c0", "c1", "c2", "c3"]\n' > Cargo.toml
        for n in 0 1 2 3; do
            mkdir -p c$n/src
            printf '[package]\nname = "c%s"\nedition = "2021"\n[dependencies]\n' $n > c$n/Cargo.toml
            before=$((n - 1))
            [ $n = 0 ] || printf 'c%s = { path = "../c%s" }\n' $before $before >> c$n/Cargo.toml
            for f in $(seq 60); do
                [ $n = 0 ] && inner=x || inner="c$before::f$f(x)"
                echo "pub fn f$f(x: u64) -> u64 { (0..x).map(|y| y ^ $f).sum::<u64>() + $inner }"
            done > c$n/src/lib.rs
        done"#,
    )?;
    run.begin()?;
    let build = "cd \"$MOUNT/program\"; exec cargo build --quiet --offline --target-dir target";
    run.timed("s", build).map(drop)
}

/// Transactions of SQLite; each is durable before the next begins. First with a rollback journal,
/// then with a write-ahead log.
pub(crate) fn sqlite(run: &mut Run) -> Result<()> {
    // A fixed number, so that all contestants do the same work.
    let count = 150 * run.time.as_secs();
    run.shell(&format!(
        r#"
        for mode in DELETE WAL; do
            echo "PRAGMA journal_mode = $mode; PRAGMA synchronous = FULL;"
            for n in $(seq {count}); do
                echo "BEGIN; INSERT INTO t VALUES (NULL, 'name $n', randomblob(300)); COMMIT;"
            done
        done > "$SCRATCH/script"
        sqlite3 "$MOUNT/database" 'CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value BLOB);'
        head -n {lines} "$SCRATCH/script" > "$SCRATCH/rate"
        tail -n {lines} "$SCRATCH/script" > "$SCRATCH/wal""#,
        lines = count + 1,
    ))?;
    run.begin()?;
    for key in ["rate", "wal"] {
        let script = format!("exec sqlite3 -bail \"$MOUNT/database\" < \"$SCRATCH/{key}\"");
        let seconds = run.timed(key, &script)?.seconds;
        run.set(key, count as f64 / seconds);
    }
    let rows = run.shell("sqlite3 \"$MOUNT/database\" 'SELECT count(*) FROM t;'")?;
    if rows.trim() != (2 * count).to_string() {
        return Err(Error::new(format!("SQLite has {} rows", rows.trim())));
    }
    Ok(())
}

/// Transactions of PostgreSQL by `pgbench`. The server refuses to run as root, so it runs as the
/// user that Debian's package creates.
pub(crate) fn postgres(run: &mut Run) -> Result<()> {
    let programs = sapwood_testing::machine::postgres(&["initdb", "pg_ctl", "pgbench"]);
    let programs = programs.ok_or_else(|| Error::new("PostgreSQL is not installed"))?;
    // The path of a socket is limited, so it is directly below the mount.
    let output = run.shell(&format!(
        r#"
        home="$MOUNT/postgres"; mkdir "$home"; chown postgres "$home"; cd /
        unset PGDATA; export LC_ALL=C.UTF-8 PATH="{}:$PATH"
        pg() {{ setpriv --reuid postgres --regid postgres --init-groups "$@"; }}
        pg initdb --no-sync --auth=trust --no-locale -D "$home/data" > /dev/null
        trap 'pg pg_ctl -D "$home/data" -m fast -w stop > /dev/null' EXIT
        pg pg_ctl -D "$home/data" -l "$home/log" -w start > /dev/null \
            -o "-c listen_addresses='' -c unix_socket_directories='$home'"
        pg pgbench -h "$home" -i -q -s 1 postgres 2> /dev/null
        sync -f "$home"
        pg pgbench -h "$home" -c 4 -j 2 -T {} postgres"#,
        programs.display(),
        run.time.as_secs(),
    ))?;
    run.set("rate", transactions(&output)?);
    Ok(())
}

/// The transactions per second in the summary of `pgbench`.
fn transactions(output: &str) -> Result<f64> {
    let line = output.lines().find_map(|line| line.strip_prefix("tps = "));
    let number = line.and_then(|rest| rest.split(' ').next()?.parse().ok());
    number.ok_or_else(|| Error::new("pgbench reports no transactions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_pgbench_is_read() {
        let text =
            "latency average = 4.929 ms\ntps = 811.463200 (without initial connection time)\n";
        assert_eq!(transactions(text).unwrap(), 811.4632);
        assert!(transactions("failed").is_err());
    }
}
