//! `sapwood apply`: the commands of a script in one image, all or nothing.

mod debugfs;
mod difference;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use sapwood::FileSystem;

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::script::Line;
use super::{files, interrupt, output, script, session};
use debugfs::Before;
use difference::Names;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image that nothing has mounted
    #[arg(value_name = "IMAGE")]
    pub(super) image: PathBuf,
    /// Commands, one in each line; - for standard input
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,
    /// Print what would change, and change nothing
    #[arg(long, conflicts_with = "keep_going")]
    dry_run: bool,
    /// Go on after an error, and keep what was done
    #[arg(long)]
    keep_going: bool,
    /// The script has requests of debugfs
    #[arg(long)]
    debugfs: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// A command that a line of a script can have.
pub(super) struct ScriptCommand {
    /// Whether it reads standard input.
    pub(super) reads_input: bool,
    /// Runs it.
    pub(super) run: Box<dyn FnOnce() -> Result<()>>,
}

/// Parses the words of a line; the error is a text for people.
pub(super) type Parse<'p> = dyn FnMut(Vec<OsString>) -> Result<ScriptCommand, String> + 'p;

/// A command of the script, ready to run.
struct Step {
    line: Line,
    before: Before,
    command: ScriptCommand,
}

pub(super) fn run(args: &Args, parse: &mut Parse<'_>) -> Result<()> {
    let steps = steps(args, read(&args.script)?, parse)?;
    interrupt::stop();
    if args.dry_run {
        return rehearse(args, steps);
    }
    let count = steps.len();
    if args.keep_going {
        let left_out = files::with_image(&args.image, &args.choice, false, |fs| {
            session::with(&args.image, fs, || keep_going(args, fs, steps))
        })?;
        return if left_out == 0 {
            Ok(())
        } else {
            let line = format!("{left_out} of {count} commands failed");
            Err(Failure::local(&args.image, line))
        };
    }
    let options = args.choice.options(false)?;
    options.transaction(&args.image, |fs| {
        session::with(&args.image, fs, || all(args, fs, steps))
    })?;
    if args.quiet {
        return Ok(());
    }
    output::line(format_args!(
        "{}: {count} commands applied",
        args.image.display()
    ))
}

/// Runs the commands until one fails.
fn all(args: &Args, fs: &FileSystem, steps: Vec<Step>) -> Result<()> {
    for step in steps {
        interrupt::check(|| "nothing was changed".to_owned())?;
        let number = step.line.number;
        run_one(fs, step).map_err(|failure| {
            if interrupt::came() {
                return interrupt::failure("nothing was changed");
            }
            let place = format!("{}:{number}", args.script.display());
            if failure.to_string().is_empty() {
                // The command printed why.
                Failure::new(FAILED, format!("{place}: failed; nothing was changed"))
            } else {
                failure.about(place).advise("nothing was changed")
            }
        })?;
    }
    Ok(())
}

/// Runs all commands. Returns how many failed.
fn keep_going(args: &Args, fs: &FileSystem, steps: Vec<Step>) -> Result<usize> {
    let mut left_out = 0;
    for step in steps {
        interrupt::check(|| "the commands until then were applied".to_owned())?;
        let number = step.line.number;
        if let Err(failure) = run_one(fs, step) {
            if output::broken() || interrupt::came() {
                return Err(failure);
            }
            left_out += 1;
            if !failure.to_string().is_empty() {
                output::report(&failure.about(format!("{}:{number}", args.script.display())));
            }
        }
    }
    Ok(left_out)
}

/// Runs the commands in memory, and prints the difference.
fn rehearse(args: &Args, steps: Vec<Step>) -> Result<()> {
    let options = args.choice.options(true)?;
    options.rehearse(&args.image, |fs| {
        let before = Names::of(fs)?;
        session::with(&args.image, fs, || all(args, fs, steps))?;
        Names::of(fs)?.print_changes(&before)
    })
}

fn run_one(fs: &FileSystem, step: Step) -> Result<()> {
    match &step.before {
        Before::Nothing => {}
        Before::Absent(place) => {
            let path = place.trim_start_matches(':');
            if fs.symlink_metadata(path).is_ok() {
                return Err(Failure::on(path, "exists"));
            }
        }
        Before::Empty(place) => {
            let path = Path::new(place.trim_start_matches(':'));
            let empty = fs.read_dir(path).map_err(files::failed)?.next().is_none();
            if !empty {
                return Err(Failure::on(path.display(), "the directory is not empty"));
            }
        }
    }
    session::set_input(step.line.input);
    let done = (step.command.run)();
    session::set_input(None);
    done
}

/// The commands of the script, parsed before the first one runs.
fn steps(args: &Args, script: String, parse: &mut Parse<'_>) -> Result<Vec<Step>> {
    let name = args.script.display();
    let wrong =
        |error: &dyn std::fmt::Display| Failure::new(USAGE, format_args!("{name}: {error}"));
    let lines: Vec<(Line, Before)> = if args.debugfs {
        let requests = debugfs::parse(&script).map_err(|error| wrong(&error))?;
        requests
            .into_iter()
            .map(|one| (one.line, one.before))
            .collect()
    } else {
        let lines = script::parse(&script).map_err(|error| wrong(&error))?;
        lines
            .into_iter()
            .map(|line| (line, Before::Nothing))
            .collect()
    };
    drop(script);
    lines
        .into_iter()
        .map(|(line, before)| step(parse, line, before, args))
        .collect()
}

/// Parses the command of a line.
fn step(parse: &mut Parse<'_>, line: Line, before: Before, args: &Args) -> Result<Step> {
    let place = format!("{}:{}", args.script.display(), line.number);
    let wrong = |why: String| Failure::new(USAGE, format_args!("{place}: {why}"));
    let words = line.words.iter().map(|word| in_image(word, &args.image));
    let command = parse(words.collect()).map_err(wrong)?;
    if command.reads_input && line.input.is_none() {
        return Err(wrong(
            "write needs its text: <<END, and lines until END".to_owned(),
        ));
    }
    Ok(Step {
        line,
        before,
        command,
    })
}

/// A word of a script; `:/PATH` is a place in the image.
fn in_image(word: &str, image: &Path) -> OsString {
    if word != ":" && !word.starts_with(":/") {
        return word.into();
    }
    let mut place = image.as_os_str().to_owned();
    place.push(word);
    place
}

/// The text of a script.
fn read(script: &Path) -> Result<String> {
    let most = script::MOST;
    let mut bytes = Vec::new();
    let read = if script == Path::new("-") {
        interrupt::Input(std::io::stdin())
            .take(most + 1)
            .read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(script);
        file.and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Failure::local(script, error))?;
    if bytes.len() as u64 > most {
        return Err(Failure::local(script, "larger than 64 MiB").with_code(USAGE));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to());
        let line = before
            .unwrap_or_default()
            .split(|byte| *byte == b'\n')
            .count();
        Failure::local(script, format_args!("line {line} is not UTF-8")).with_code(USAGE)
    })
}
