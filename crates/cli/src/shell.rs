//! `sapwood shell`: commands in one opened image, line by line.
//!
//! # How it works
//! A line is a command of the command line; the [`session`] gives it the open image and the current
//! directory. After each command that may change it, the image is synchronized: the changes survive
//! everything that ends the shell later. The image is closed when the shell ends.
//!
//! On a terminal an error is printed and the shell goes on, and Ctrl-C ends the command that runs
//! (`terminal`). From a pipe, lines are read without a prompt, and the first error ends the shell
//! with the exit code of its command.

mod completion;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::internal::Target;
use sapwood::{ErrorKind, FileSystem};

use super::apply::ScriptCommand;
use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::script::{self, Begun, Line, Wrong};
use super::{files, interrupt, output, session};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image that nothing has mounted, and the directory in it to start in
    #[arg(value_name = "IMAGE[:DIR]")]
    pub(super) place: OsString,
    /// Change nothing; other programs may read the image meanwhile
    #[arg(short, long)]
    read_only: bool,
    /// Options of the file system, as `sapwood mount` has them: compress=zstd
    #[arg(short = 'o', long = "options", value_name = "LIST")]
    options: Vec<String>,
    /// Without a terminal: go on after an error
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// Commands of the command line that a shell has.
pub(super) const COMMANDS: [&str; 25] = [
    "cat",
    "chmod",
    "chown",
    "cp",
    "df",
    "diff",
    "du",
    "edit",
    "export",
    "find",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "send",
    "stat",
    "subvolume",
    "touch",
    "tree",
    "truncate",
    "untar",
    "write",
    "xattr",
    "sync",
];

/// Commands that change nothing.
const READING: [&str; 10] = [
    "cat", "df", "diff", "du", "export", "find", "ls", "send", "stat", "tree",
];

/// Commands of the shell itself, with their operands and meanings.
const OWN: [(&str, &str, &str); 7] = [
    ("cd", "[DIR]", "change the current directory in the image"),
    ("pwd", "", "print the current directory in the image"),
    (
        "lcd",
        "[DIR]",
        "change the current directory of this machine",
    ),
    ("lpwd", "", "print the current directory of this machine"),
    ("sync", "", "make everything durable, as after each command"),
    (
        "help",
        "[COMMAND]",
        "print this list, or the help of a command",
    ),
    ("exit", "", "end the shell; so do quit and Ctrl-D"),
];

/// A parsed line.
pub(super) enum Parsed {
    /// A command, ready to run.
    Command(ScriptCommand),
    /// A text that was asked for.
    Help(String),
}

/// Parses the words of a command; the error is a text for people.
pub(super) type Parse = fn(&mut clap::Command, Vec<OsString>) -> Result<Parsed, String>;

/// Whether the words are a command that means the current directory if no place follows.
pub(super) fn lists_directory(words: &[OsString]) -> bool {
    let word = |nth: usize| words.get(nth).and_then(|word| word.to_str());
    match word(0) {
        Some("ls" | "tree" | "find" | "du" | "df") => true,
        Some("subvolume") => matches!(word(1), Some("list" | "get-default")),
        _ => false,
    }
}

pub(super) fn run(args: &Args, parser: clap::Command, parse: Parse) -> Result<()> {
    let on_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let leaving = on_terminal.then(terminal::Leaving::prepare);
    if leaving.is_none() {
        interrupt::stop();
    }
    let (image, dir) = image_and_directory(&args.place)?;
    let mut options = args.choice.options(args.read_only)?;
    for list in &args.options {
        options.set_list(list)?;
    }
    let read_only = options.is_read_only();
    let fs = FileSystem::open_with_options(&image, &options).map_err(|error| {
        let refused = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
        let advise = !read_only && refused.contains(&error.kind());
        let failure = Failure::from(error);
        if advise {
            failure.advise("--read-only changes nothing")
        } else {
            failure
        }
    })?;
    let mut shell = Shell {
        fs: fs.clone(),
        parser,
        parse,
        read_only,
        on_terminal,
    };
    let root = PathBuf::from("/");
    let ran = session::with_directory(&image, &fs, root, || {
        change_directory(&fs, &dir)?;
        match &leaving {
            Some(leaving) => terminal::run(&mut shell, &image, leaving),
            None => from_pipe(&mut shell, args.keep_going),
        }
    });
    let open = match &leaving {
        Some(leaving) => leaving.take(fs),
        None => fs,
    };
    drop(shell);
    let closed = open.close();
    ran?;
    closed.map_err(|error| files::whole(&image, error))
}

/// The image, and the path of the directory to start in.
fn image_and_directory(place: &OsStr) -> Result<(PathBuf, PathBuf)> {
    let (image, path) = Target::parse_in_image(place)?;
    // lcd changes the meaning of a relative path.
    let image = whole_path(&image)?;
    Ok((image, Path::new("/").join(OsString::from_vec(path))))
}

/// The path of an image, with any current directory of this machine. An address stays as it is.
fn whole_path(image: &Path) -> Result<PathBuf> {
    if is_address(image) {
        return Ok(image.to_owned());
    }
    std::path::absolute(image).map_err(|error| Failure::local(image, error))
}

/// Whether an image is an address, such as `nbd://box/export`, and not a file.
fn is_address(image: &Path) -> bool {
    let bytes = image.as_os_str().as_bytes();
    bytes.windows(3).any(|three| three == b"://")
}

/// What follows a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Line,
    End,
}

struct Shell {
    fs: FileSystem,
    parser: clap::Command,
    parse: Parse,
    read_only: bool,
    on_terminal: bool,
}

impl Shell {
    /// Runs a line.
    fn execute(&mut self, line: Line) -> Result<Next> {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["exit" | "quit"] => return Ok(Next::End),
            ["pwd"] => output::line(files::shown_path(&session::dir().unwrap_or_default()))?,
            ["cd"] => change_directory(&self.fs, Path::new("/"))?,
            ["cd", dir] => {
                let path = session::path(OsStr::new(dir)).unwrap_or_default();
                change_directory(&self.fs, &Path::new("/").join(OsString::from_vec(path)))?;
            }
            ["lpwd"] => {
                let dir = std::env::current_dir().map_err(|error| Failure::on("lpwd", error))?;
                output::line(output::name(dir.as_os_str().as_bytes()))?;
            }
            ["lcd"] => {
                let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
                change_local_directory(Path::new(&home))?;
            }
            ["lcd", dir] => change_local_directory(Path::new(dir))?,
            ["sync"] => self.sync()?,
            ["help"] => output::line(self.help())?,
            ["help", command @ ..] => {
                let mut words: Vec<OsString> = command.iter().map(OsString::from).collect();
                words.push("--help".into());
                self.command(words, None)?;
            }
            [
                own @ ("exit" | "quit" | "pwd" | "cd" | "lpwd" | "lcd" | "sync"),
                ..,
            ] => {
                let line = format!("{own}: too many words; help lists all commands");
                return Err(Failure::new(USAGE, line));
            }
            _ => self.command(line.words.into_iter().map(Into::into).collect(), line.input)?,
        }
        Ok(Next::Line)
    }

    /// Runs a command of the command line, and makes its work durable.
    fn command(&mut self, words: Vec<OsString>, input: Option<Vec<u8>>) -> Result<()> {
        if !self.on_terminal && reads_standard_input(&words) {
            let line = "- is standard input, which has the commands of this shell";
            return Err(Failure::new(USAGE, line));
        }
        let reads = words
            .first()
            .is_some_and(|name| READING.iter().any(|one| name == one));
        let parsed = (self.parse)(&mut self.parser, words);
        let command = match parsed.map_err(|why| Failure::new(USAGE, why))? {
            Parsed::Help(text) => return output::line(text.trim_end()),
            Parsed::Command(command) => command,
        };
        if command.reads_input && input.is_none() && !self.on_terminal {
            let line = "write needs its text: <<END, and lines until END";
            return Err(Failure::new(USAGE, line));
        }
        session::set_input(input);
        let done = (command.run)();
        session::set_input(None);
        let synced = if reads { Ok(()) } else { self.sync() };
        if done.is_err()
            && let Err(failure) = &synced
        {
            output::report(failure);
        }
        done.and(synced)
    }

    /// Makes everything durable.
    fn sync(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let synced = self.fs.sync();
        synced.map_err(|error| files::whole(self.fs.image_path(), error))
    }

    /// The list of all commands.
    fn help(&self) -> String {
        let mut text = String::from("Commands of the shell:\n");
        for (name, operands, meaning) in OWN {
            text.push_str(&format!(
                "  {:<16} {meaning}\n",
                format!("{name} {operands}")
            ));
        }
        text.push_str("\nCommands, whose paths are in the image:\n");
        for name in COMMANDS {
            let found = self.parser.find_subcommand(name).filter(|_| !is_own(name));
            let about = found.and_then(clap::Command::get_about);
            if let Some(about) = about {
                text.push_str(&format!("  {name:<16} {about}\n"));
            }
        }
        text.push_str(
            "\ncp copies between this machine and the image, and untar reads an archive of this\n\
             machine: there a path in the image begins with a colon, as :etc or :/etc.",
        );
        text
    }
}

fn is_own(name: &str) -> bool {
    OWN.iter().any(|(own, ..)| *own == name)
}

/// Whether a command has standard input as an operand.
fn reads_standard_input(words: &[OsString]) -> bool {
    let Some((name, operands)) = words.split_first() else {
        return false;
    };
    let operands = match name.to_str() {
        // The last one is standard output.
        Some("cp") => operands
            .split_last()
            .map_or(operands, |(_, sources)| sources),
        Some("cat" | "untar") => operands,
        _ => return false,
    };
    operands.iter().any(|word| word == "-")
}

/// Changes the current directory in the image.
fn change_directory(fs: &FileSystem, dir: &Path) -> Result<()> {
    let found = fs.glob(dir).map_err(files::failed)?;
    let [dir] = found.as_slice() else {
        return Err(Failure::on(files::shown_path(dir), "several names match"));
    };
    let path = fs.canonicalize(dir).map_err(files::failed)?;
    if fs.metadata(&path).map_err(files::failed)?.is_dir() {
        session::set_dir(path);
        Ok(())
    } else {
        Err(Failure::on(files::shown_path(&path), "not a directory"))
    }
}

fn change_local_directory(dir: &Path) -> Result<()> {
    std::env::set_current_dir(dir).map_err(|error| Failure::local(dir, error))
}

/// Runs the lines of standard input, until one fails.
fn from_pipe(shell: &mut Shell, keep_going: bool) -> Result<()> {
    let mut lines = Lines::of_standard_input()?;
    let (mut count, mut failed) = (0_u64, 0_u64);
    while let Some((number, line)) = lines.next()? {
        count += 1;
        let done = match line {
            Ok(line) => shell.execute(line),
            Err(why) => Err(Failure::new(USAGE, why)),
        };
        let failure = match done {
            Ok(Next::End) => break,
            Ok(Next::Line) => continue,
            Err(failure) => failure,
        };
        if output::broken() || interrupt::came() {
            return Err(failure);
        }
        let failure = if failure.to_string().is_empty() {
            // The command printed why.
            Failure::new(FAILED, format_args!("line {number}: failed"))
        } else {
            failure.about(format_args!("line {number}"))
        };
        if !keep_going {
            return Err(if count > 1 {
                failure.advise("the commands before it took effect")
            } else {
                failure
            });
        }
        output::report(&failure);
        failed += 1;
    }
    if failed == 0 {
        return Ok(());
    }
    let line = format!("{failed} of {count} commands failed");
    Err(Failure::new(FAILED, line))
}

/// The lines of a pipe or file.
struct Lines {
    input: BufReader<interrupt::Input<File>>,
    number: usize,
}

impl Lines {
    /// Takes standard input, so that no command reads lines of the shell.
    fn of_standard_input() -> Result<Self> {
        let failed = |error: std::io::Error| Failure::on("standard input", error);
        let input =
            rustix::io::dup(rustix::stdio::stdin()).map_err(|error| failed(error.into()))?;
        let nothing = File::open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdin(&nothing).map_err(|error| failed(error.into()))?;
        Ok(Self {
            input: BufReader::new(interrupt::Input(input.into())),
            number: 0,
        })
    }

    /// The next command with its text, or its error, and the number of its line; `None` at the end.
    fn next(&mut self) -> Result<Option<(usize, Result<Line, String>)>> {
        while let Some(text) = self.text()? {
            let number = self.number;
            let Begun { mut line, end } = match script::begin(number, &text) {
                Ok(Some(begun)) => begun,
                Ok(None) => continue,
                Err(error) => {
                    self.skip_text(&text)?;
                    return Ok(Some((number, Err(error.why().to_owned()))));
                }
            };
            if let Some(end) = end {
                line.input = Some(self.input(number, &end)?);
            }
            return Ok(Some((number, Ok(line))));
        }
        Ok(None)
    }

    /// Reads a text until the line `end`.
    fn input(&mut self, number: usize, end: &str) -> Result<Vec<u8>> {
        let wrong = |error: Wrong| Failure::new(USAGE, error);
        let mut input = Vec::new();
        loop {
            let next = self.text()?;
            let next = next.ok_or_else(|| wrong(script::unended(number, end)))?;
            if next == end {
                return Ok(input);
            }
            input.extend_from_slice(next.as_bytes());
            input.push(b'\n');
            if input.len() as u64 > script::MOST {
                return Err(wrong(Wrong::new(number, too_long("its text"))));
            }
        }
    }

    /// Skips the text of a line that is wrong, so that it is not read as commands.
    fn skip_text(&mut self, line: &str) -> Result<()> {
        let last = line.split_whitespace().next_back();
        let end = last.and_then(|word| word.strip_prefix("<<"));
        if let Some(end) = end.filter(|end| !end.is_empty()) {
            while self.text()?.is_some_and(|next| next != end) {}
        }
        Ok(())
    }

    /// The next line, without its end.
    fn text(&mut self) -> Result<Option<String>> {
        self.number += 1;
        let number = self.number;
        let wrong = |why: String| Failure::new(USAGE, Wrong::new(number, why));
        let mut bytes = Vec::new();
        let mut input = (&mut self.input).take(script::MOST + 1);
        let read = input.read_until(b'\n', &mut bytes);
        interrupt::check(|| "the commands until then took effect".to_owned())?;
        read.map_err(|error| Failure::on("standard input", error))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        } else if bytes.len() as u64 > script::MOST {
            return Err(wrong(too_long("it")));
        }
        let text = String::from_utf8(bytes);
        Ok(Some(text.map_err(|_| wrong("not UTF-8".to_owned()))?))
    }
}

fn too_long(subject: &str) -> String {
    let most = script::MOST >> 20;
    format!("{subject} is longer than {most} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_source_may_be_standard_input() {
        for line in ["cat -", "cp - :x", "cp a - :x", "untar - :"] {
            assert!(reads_standard_input(&words(line)), "{line}");
        }
        for line in ["cp :x -", "write -", "rm -", "cat -v"] {
            assert!(!reads_standard_input(&words(line)), "{line}");
        }
    }

    #[test]
    fn every_command_of_the_list_is_one() {
        use clap::CommandFactory;

        let command = crate::Cli::command();
        for name in COMMANDS {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
    }
}
