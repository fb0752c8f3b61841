//! `sapwood shell`: lines of a pipe, and a session on a terminal, which `script` of util-linux
//! makes.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(120);

/// Lines of a pipe, the errors, and what a killed shell leaves.
const PIPE: &str = r#"
set -e; umask 022; export LC_ALL=C HOME=$PWD/home; unset XDG_STATE_HOME; mkdir home
kernel_check() {
    case $KIND in
    ext4) e2fsck -fn "$1" > check.txt 2>&1 ;;
    btrfs) btrfs check --readonly --check-data-csum "$1" > check.txt 2>&1 ;;
    esac || { cat check.txt; exit 1; }
}
mkdir r r/etc; echo old > r/etc/old; echo colon > 'r/etc/a:b'; mkdir 'r/a[b]'
"$SAPWOOD" mkfs -q -t $KIND --size 256M -r r i
echo host > file; mkdir out; tar -cf t.tar file
cat > lines <<'END'
# a comment
cd etc
pwd
cat old a:b
cp file :
cp -r ./r/etc :/copy
write --mode 600 secret <<TEXT
two 'lines'
TEXT
chown :8 old
chmod 640 :old
xattr set user.note "a b" old
ln -s old link
mv file :moved
untar -q t.tar /copy
lcd out
cp :/copy/file got
cp moved /etc/o* nowhere
find -name 'mo*'
cd ../'a[b]'
ls
mkdir deep
cd *
pwd
exit
mkdir /never
END
code=0; "$SAPWOOD" shell i < lines > printed 2> err || code=$?
[ $code = 2 ] || { cat err; exit 1; }; grep -q '^sapwood: line 18: no place is in the image' err || { cat err; exit 1; }
sed -i '/nowhere/d' lines; "$SAPWOOD" rm -r i:/copy i:/etc/moved i:/etc/link
"$SAPWOOD" shell i < lines > printed
printf '/etc\nold\ncolon\n/etc/moved\n/a[b]/deep\n' > wanted; cmp printed wanted
"$SAPWOOD" check i > check.txt || { cat check.txt; exit 1; }; kernel_check i
[ "$(cat out/got)" = host ]; [ "$("$SAPWOOD" cat i:/etc/moved)" = host ]; [ "$("$SAPWOOD" cat i:/etc/secret)" = "two 'lines'" ]
[ "$("$SAPWOOD" cat i:/copy/old)" = old ]; [ "$("$SAPWOOD" cat i:/copy/file)" = host ]; [ "$("$SAPWOOD" xattr get user.note i:/etc/link)" = 'a b' ]
"$SAPWOOD" stat --json i:/etc/old > s; grep -q '"gid": 8' s; grep -q '"mode": "0640"' s
"$SAPWOOD" stat i:/never 2> /dev/null && exit 1
[ ! -e home/.local ]
# The first error ends the shell, and what was done stays.
fails() { code=0; "$SAPWOOD" shell "$@" > out.txt 2> err || code=$?; [ $code = $want ] || { echo "code $code, not $want"; cat err; exit 1; }; }
want=1; printf 'mkdir one\nls nope\nmkdir two\n' | fails i; grep -q 'line 2: failed; the commands before it took effect' err
"$SAPWOOD" stat i:one > /dev/null; "$SAPWOOD" stat i:two 2> /dev/null && exit 1
printf 'ls nope\nmkdir two\n' | fails --keep-going i; grep -q '1 of 2 commands failed' err; "$SAPWOOD" stat i:two > /dev/null
printf "mkdir 'x <<E\nmkdir three\nE\nmkdir four\r\n" | fails --keep-going i; grep -q '1 of 2 commands failed' err
"$SAPWOOD" stat i:four > /dev/null; "$SAPWOOD" stat i:three 2> /dev/null && exit 1
mkdir far; "$SAPWOOD" mkfs -q -t ext4 --size 16M far/i; echo other | "$SAPWOOD" write far/i:/inner
[ "$(printf 'lcd far\ncat i:/inner\n' | "$SAPWOOD" shell i)" = other ]
printf 'cd etc/old\n' | fails i; grep -q 'not a directory' err
printf 'mkdir no\n' | fails --read-only i; grep -q 'read-only' err
printf 'mkdir no\n' | fails -o ro i
want=2; for line in 'frobnicate' 'mkdir' "rm 'x" 'write x' 'cat -' 'cp - :x' 'apply :x y' 'ls --offset 1k' 'ls --top-level' 'cd a b' 'write x <<E'; do echo "$line" | fails i; done
head -c 67108865 /dev/zero | tr '\0' x | fails i; grep -q 'line 1: it is longer than 64 MiB' err
want=3; fails missing < /dev/null; fails err < /dev/null
# Others are kept out, and readers are not.
mkfifo pipe; "$SAPWOOD" shell i < pipe > live & pid=$!; exec 3> pipe
echo pwd >&3; until [ -s live ]; do sleep 0.05; done
fails i < /dev/null; grep -q 'in use' err
# What a command did is on disk when the next one runs.
printf 'mkdir kept\nwrite kept/file <<E\nbody\nE\nls kept\n' >&3; until grep -q file live; do sleep 0.05; done
kill -9 $pid; wait $pid || true; exec 3>&-
[ "$("$SAPWOOD" cat i:kept/file)" = body ]; "$SAPWOOD" check i > check.txt || { cat check.txt; exit 1; }
rm live; "$SAPWOOD" shell -r i < pipe > live & pid=$!; exec 3> pipe
echo 'ls /kept' >&3; until [ -s live ]; do sleep 0.05; done
[ "$("$SAPWOOD" ls i:kept)" = file ]; exec 3>&-; wait $pid
# Ctrl-C ends the shell; the image is closed.
rm live; "$SAPWOOD" shell i < pipe > live 2> err & pid=$!; exec 3> pipe
printf 'mkdir last\nls\n' >&3; until [ -s live ]; do sleep 0.05; done
kill -INT $pid; code=0; wait $pid || code=$?; exec 3>&-; [ $code = 130 ] || { cat err; exit 1; }
kernel_check i; "$SAPWOOD" stat i:last > /dev/null
case $KIND in
ext4) want=1; echo 'subvolume list' | fails i; grep -q 'subvolumes need a btrfs' err ;;
btrfs)
    printf 'subvolume create etc/s\ncd etc\nsubvolume snapshot -r s ../t\nsubvolume list\nsubvolume delete s\n' | "$SAPWOOD" shell i > list
    grep -q 'etc/s$' list; grep -q ' t (read-only)$' list; "$SAPWOOD" subvolume list i > list; [ $(grep -c . list) = 1 ]; kernel_check i ;;
esac
"#;

fn pipe(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let program = sapwood().display();
    let script = format!("SAPWOOD='{program}'; KIND={kind}\n{PIPE}");
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

/// A shell on a pseudo-terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Output that no call has looked at.
    seen: Vec<u8>,
}

impl Terminal {
    fn start(dir: &Path, arguments: &str) -> Self {
        let command = format!(
            "stty cols 100 rows 30; exec {} shell {arguments}",
            sapwood().display()
        );
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .current_dir(dir)
            .env("HOME", dir.join("home"))
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buf = [0; 1 << 16];
            while let Ok(count @ 1..) = stdout.read(&mut buf) {
                if sender.send(buf[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keys,
            output,
            seen: Vec::new(),
        }
    }

    /// Waits for a text, and returns the output before it.
    fn until(&mut self, text: &str) -> String {
        self.within(text, LIMIT).unwrap_or_else(|| {
            let seen = String::from_utf8_lossy(&self.seen);
            let shown: String = seen.chars().take(2000).collect();
            panic!("no {text:?} in {shown:?}")
        })
    }

    fn comes(&mut self, text: &str, limit: Duration) -> bool {
        self.within(text, limit).is_some()
    }

    /// The output before a text, if it comes in time.
    fn within(&mut self, text: &str, limit: Duration) -> Option<String> {
        let end = Instant::now() + limit;
        let mut from = 0;
        loop {
            let mut parts = self.seen[from..].windows(text.len());
            let found = parts.position(|part| part == text.as_bytes());
            let found = found.map(|at| from + at);
            from = (self.seen.len() + 1).saturating_sub(text.len()).max(from);
            if let Some(at) = found {
                let before = self
                    .seen
                    .drain(..at + text.len())
                    .take(at)
                    .collect::<Vec<_>>();
                return Some(String::from_utf8_lossy(&before).into_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(more) => self.seen.extend(more),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Types keys at the prompt of `dir`, and returns the output until the next one of it.
    fn run(&mut self, line: &str, prompt: &str) -> String {
        self.keys(line);
        self.keys("\r");
        // The prompt is drawn again while keys are typed; the end of the line is drawn once.
        self.until("\x1b[?2004l");
        self.until(prompt)
    }

    /// Types Ctrl-C at a prompt, and waits for the next one.
    fn clear(&mut self, prompt: &str) {
        self.keys("\x03");
        self.until("\x1b[?2004l");
        self.until(prompt);
    }

    /// Interrupts a command that runs. A Ctrl-C just before the command runs has no effect, so it
    /// is typed until it has one.
    fn interrupt(&mut self, prompt: &str) {
        let end = Instant::now() + LIMIT;
        loop {
            self.keys("\x03");
            if self.comes("interrupted", Duration::from_secs(10)) {
                break;
            }
            assert!(Instant::now() < end, "Ctrl-C has no effect");
        }
        // A second Ctrl-C may have come at the prompt.
        self.keys("cat the-last\r");
        self.until("the-last: no such file");
        self.until(prompt);
    }

    fn ends(mut self, code: i32) {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.code(), Some(code));
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the shell did not end");
    }
}

impl Drop for Terminal {
    /// Ends a shell that a failed test leaves.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Completion of a command, a path in the image, a path of this machine.
fn completes(terminal: &mut Terminal) {
    terminal.keys("mkd\t");
    terminal.until("mkdir ");
    terminal.keys("et\t");
    terminal.until("mkdir etc/");
    terminal.keys("new");
    terminal.run("", "i:/> ");
    terminal.keys("cp hostf\t");
    terminal.until("cp hostfile ");
    terminal.keys(":et\t");
    terminal.until("cp hostfile :etc/");
    terminal.run("", "i:/> ");
}

/// Names with control characters are escaped.
fn escapes(terminal: &mut Terminal) {
    terminal.run("cd ../evil*x", "i:/evil\\u{1b}[32mx> ");
    terminal.keys("ls /e\t\t");
    let candidates = terminal.until("evil\\u{1b}[32mx/");
    assert!(candidates.contains("evil\\u{1b}[31m/"), "{candidates:?}");
    assert!(!candidates.contains("\x1b[31m"), "{candidates:?}");
    terminal.clear("i:/evil\\u{1b}[32mx> ");
}

fn on_a_terminal(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let dir = dir.path();
    let prepare = r#"mkdir -p home r/etc/app $'r/evil\e[31m' $'r/evil\e[32mx'; echo text > r/etc/motd; echo here > hostfile
        touch $'r/etc/app/b\e[2J'; truncate -s 20G r/zeros; truncate -s 40M r/some"#;
    let script = format!(
        "{prepare}\n'{}' mkfs -q -t {kind} --size 256M -r r i",
        sapwood().display()
    );
    process::shell(dir, &script, LIMIT)?;
    let mut terminal = Terminal::start(dir, "i");
    terminal.until("i:/> ");
    completes(&mut terminal);
    terminal.run("cd etc", "i:/etc> ");
    let listed = terminal.run("ls -1 --color=never", "i:/etc> ");
    assert!(
        listed.contains("app\r\nhostfile\r\nmotd\r\nnew\r\n"),
        "{listed:?}"
    );
    // Ctrl-C clears the line.
    terminal.keys("rm -r app");
    terminal.clear("i:/etc> ");
    // An error does not end the shell.
    let missing = terminal.run("cat nope", "i:/etc> ");
    assert!(missing.contains("/etc/nope: no such file"), "{missing:?}");
    // Ctrl-C ends a command that prints, and one that waits.
    // With the first one, the lines that were pasted with it end.
    terminal.keys("\x1b[200~cat /zeros\nmkdir /pasted\x1b[201~\r");
    terminal.until("\0\0\0\0");
    terminal.interrupt("i:/etc> ");
    let pasted = terminal.run("ls /pasted", "i:/etc> ");
    assert!(pasted.contains("/pasted: no such file"), "{pasted:?}");
    terminal.keys("write typed\r");
    terminal.until("\x1b[?2004l\r\n");
    // The line may come before the terminal takes lines, which its echo shows.
    terminal.keys("a\n");
    terminal.until("a");
    terminal.interrupt("i:/etc> ");
    // A text after the line; the history.
    terminal.run("write doc <<E", "> ");
    terminal.run("one", "> ");
    terminal.run("E", "i:/etc> ");
    let printed = terminal.run("cat doc", "i:/etc> ");
    assert!(printed.contains("one\r\n"), "{printed:?}");
    terminal.keys("\x1b[A\x1b[A");
    terminal.until("write doc <<E");
    terminal.clear("i:/etc> ");
    escapes(&mut terminal);
    // Keys that are typed while a command runs are kept for the next prompt, Ctrl-D too.
    terminal.keys("cat /some\r");
    terminal.until("\0\0\0\0");
    terminal.keys("mkdir /ahead\r\x04");
    terminal.ends(0);
    process::shell(
        dir,
        &format!(
            "set -e; S='{}'; [ \"$($S cat i:/etc/doc)\" = one ]; $S stat i:/etc/app i:/ahead > /dev/null; $S check i
            [ \"$(stat -c %a home/.local/state/sapwood/history)\" = 600 ]
            grep -qx 'write doc <<E' home/.local/state/sapwood/history",
            sapwood().display()
        ),
        LIMIT,
    )?;
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let tools = [Need::Program("btrfs"), Need::Program("e2fsck")];
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        let name = format!("{kind}::lines_of_a_pipe");
        trials.push(trial(name, &tools, move || pipe(kind)));
        let name = format!("{kind}::a_session_on_a_terminal");
        let tools = [Need::Program("script")];
        trials.push(trial(name, &tools, move || on_a_terminal(kind)));
    }
    trials
}
