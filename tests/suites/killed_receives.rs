//! `sapwood receive` is killed at any moment: `--resume` continues, and the result is equal to that
//! of a receive that was not killed. `SAPWOOD_SEED` is the seed of the moments.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_tests::mount::sapwood;
use sapwood_tests::random::{Random, seed};
use sapwood_tests::{Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(60);

/// Times that a receive of each stream is killed.
const KILLS: u64 = 4;

const FILL: &str = r#"
    mkdir t; for i in $(seq 120); do mkdir -p t/d$((i % 7)); head -c $((i * i * 3)) /dev/urandom > t/d$((i % 7))/f$i; done
    ln t/d1/f1 t/link; ln -s d1/f1 t/symbolic; chmod 500 t/d3; head -c 3000000 /dev/urandom > t/large
    "$SAPWOOD" mkfs -q --size 256M source; "$SAPWOOD" subvolume create source:/v; "$SAPWOOD" cp -q -a t source:/v/t
    "$SAPWOOD" subvolume snapshot -r source:/v /a; "$SAPWOOD" mv source:/v/t/d1 /v/t/d2/moved; "$SAPWOOD" mv source:/v/t/d4 /v/t/d1
    "$SAPWOOD" rm -r source:/v/t/d5; "$SAPWOOD" cp -q -a t/d3 source:/v/t/again; "$SAPWOOD" subvolume snapshot -r source:/v /b
    "$SAPWOOD" send -q source:a -o a; "$SAPWOOD" send -q source:b -p a -o b
    "$SAPWOOD" mkfs -q --size 256M btrfs; "$SAPWOOD" mkfs -q -t ext4 --size 256M ext4; mkdir directory whole; "$SAPWOOD" receive -q whole < a; "$SAPWOOD" receive -q whole < b
"#;

pub(crate) fn trials() -> Vec<Trial> {
    let case = |name: &'static str, target: &'static str, streams: &'static [&'static str]| {
        trial(name, &[machine::RECEIVED_DIRECTORIES], move || {
            killed(target, streams)
        })
    };
    vec![
        case(
            "a_killed_receive_is_resumed_in_btrfs",
            "btrfs:",
            &["a", "b"],
        ),
        case("a_killed_receive_is_resumed_in_ext4", "ext4:", &["a", "b"]),
        case(
            "a_killed_receive_is_resumed_in_a_directory",
            "directory",
            &["a", "b"],
        ),
    ]
}

fn run(dir: &Path, script: &str) -> Result<String, String> {
    let script = format!("set -e; SAPWOOD={}; {script}", sapwood().display());
    process::shell(dir, &script, LIMIT)
}

fn killed(target: &str, streams: &[&str]) -> Outcome {
    // In memory, because each checkpoint waits until the files are durable.
    let memory = tempfile::tempdir_in("/dev/shm");
    let scratch = memory.unwrap_or_else(|_| scratch::directory());
    let dir = scratch.path();
    run(dir, FILL)?;
    let start = seed(0x4b11);
    for (number, name) in (0..).zip(streams) {
        let mut random = Random::new(start + number);
        let stream = fs::read(dir.join(name)).unwrap();
        for kill in 0..KILLS {
            let part = stream.len() as u64 / KILLS;
            let cut = usize::try_from(kill * part + random.below(part)).unwrap();
            let mut receive = Command::new(sapwood());
            receive.args(["receive", "-q", "--checkpoint", "300K", target]);
            if kill > 0 {
                receive.arg("--resume");
            }
            receive.current_dir(dir);
            kill_after(receive, &stream[..cut])
                .map_err(|error| format!("seed {start}, {name}, cut at {cut}: {error}"))?;
        }
        run(
            dir,
            &format!(r#""$SAPWOOD" receive -q --resume {target} < {name}"#),
        )
        .map_err(|error| format!("seed {start}, {name}: {error}"))?;
        let found = received(dir, target, name)?;
        let tree = |path: &Path| Tree::of_mount(path, Detail::Sums).map_err(|e| e.to_string());
        tree(&dir.join("whole").join(name))?
            .compare(&tree(&found)?, |_, _, _| Facts::PLAIN | Facts::MTIME)
            .map_err(|error| format!("seed {start}, {name}: {error}"))?;
    }
    Ok(())
}

/// Kills a receive when it has read a part of its stream.
fn kill_after(mut receive: Command, stream: &[u8]) -> Result<(), String> {
    receive.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = receive.spawn().map_err(|error| error.to_string())?;
    let mut pipe = child.stdin.take().unwrap();
    let written = pipe.write_all(stream);
    let limit = Instant::now() + LIMIT;
    while written.is_ok()
        && rustix::io::ioctl_fionread(&pipe).unwrap() > 0
        && child.try_wait().unwrap().is_none()
    {
        if Instant::now() > limit {
            kill(&mut child);
            return Err("it does not read its stream".to_owned());
        }
        std::thread::yield_now();
    }
    kill(&mut child);
    drop(pipe);
    let status = child.wait().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut text).unwrap();
    // It waited for more of the stream.
    if status.code().is_some() {
        return Err(format!("it ended with {status}: {text}"));
    }
    Ok(())
}

fn kill(child: &mut Child) {
    // It may have ended already.
    let _ = child.kill();
}

/// The received tree, as a directory of this machine.
fn received(dir: &Path, target: &str, name: &str) -> Result<PathBuf, String> {
    let Some(image) = target.strip_suffix(':') else {
        return Ok(dir.join(target).join(name));
    };
    run(
        dir,
        &format!(
            r#""$SAPWOOD" check -q {image}; [ -z "$("$SAPWOOD" ls -A {image}:/ | grep sapwood-receive-)" ]
            rm -rf out; mkdir out; "$SAPWOOD" cp -q -a {image}:/{name} out/{name}"#
        ),
    )?;
    Ok(dir.join("out").join(name))
}
