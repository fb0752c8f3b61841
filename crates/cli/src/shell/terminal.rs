//! The shell on a terminal: prompt, line editing, history, signals.

use std::collections::VecDeque;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use sapwood::FileSystem;

use super::completion::Completion;
use super::{Next, Shell, is_address};
use crate::failure::{Failure, Result, USAGE};
use crate::script::{self, Begun, Line, Wrong};
use crate::{interrupt, output, session};

/// Lines that the history has at most.
const HISTORY: usize = 2000;

/// The end of a shell by a signal. At the prompt the thread of the signal closes the image and ends
/// the process, because the main thread waits for a key. Otherwise the command that runs is
/// stopped, and the main thread ends the shell. The thread that takes the open image ends the
/// process.
pub(super) struct Leaving(Arc<State>);

struct State {
    at_prompt: AtomicBool,
    open: Mutex<Option<FileSystem>>,
    /// The attributes that the terminal had before the shell.
    terminal: Option<Termios>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.restore();
    }
}

impl Leaving {
    /// Prepares for signals.
    pub(super) fn prepare() -> Self {
        let state = Arc::new(State {
            at_prompt: AtomicBool::new(false),
            open: Mutex::new(None),
            terminal: tcgetattr(rustix::stdio::stdin()).ok(),
        });
        let watched = Arc::clone(&state);
        interrupt::outlive(move |signal| {
            if watched.at_prompt.load(Ordering::SeqCst) {
                watched.end(signal);
            }
        });
        state.keep_keys();
        Self(state)
    }

    /// The image, for the thread that ends the process. If a signal ends it, this does not return.
    pub(super) fn take(&self, fs: FileSystem) -> FileSystem {
        let was_given = self.0.at_prompt.load(Ordering::SeqCst);
        if was_given && self.0.open.lock().take().is_none() {
            loop {
                std::thread::park();
            }
        }
        fs
    }
}

impl State {
    /// Lets the terminal keep the keys that are typed between two prompts: the next prompt
    /// interprets them. In canonical mode the terminal itself would take Ctrl-D, for one.
    fn keep_keys(&self) {
        if let Some(mut terminal) = self.terminal.clone() {
            terminal.local_modes.remove(LocalModes::ICANON);
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &terminal);
        }
    }

    /// Gives the terminal the attributes that it had before the shell.
    fn restore(&self) {
        if let Some(terminal) = &self.terminal {
            // Nothing is left to do if the terminal is gone.
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, terminal);
        }
    }

    fn end(&self, signal: i32) {
        let Some(fs) = self.open.lock().take() else {
            return;
        };
        self.restore();
        if let Err(error) = fs.close() {
            output::message(error);
        }
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

/// Runs the lines that are typed, until the shell is left.
pub(super) fn run(shell: &mut Shell, image: &Path, leaving: &Leaving) -> Result<()> {
    let failed = |error: ReadlineError| Failure::on("terminal", error);
    let mut terminal = Terminal::new(shell).map_err(failed)?;
    let name = shown_image(image);
    *leaving.0.open.lock() = Some(shell.fs.clone());
    output::line("help lists the commands; exit or Ctrl-D ends")?;
    loop {
        let dir = session::dir().unwrap_or_default();
        let prompt = format!("{name}:{}> ", crate::files::shown_path(&dir));
        leaving.0.at_prompt.store(true, Ordering::SeqCst);
        if interrupt::has_ended() {
            return Err(ended());
        }
        let line = terminal.line(&prompt);
        if interrupt::came() {
            terminal.pasted.clear();
        }
        let line = match line {
            Ok(Read::Command(line)) => line,
            Ok(Read::Nothing) => continue,
            Ok(Read::End) => return Ok(()),
            Err(failure) => {
                output::report(&failure);
                continue;
            }
        };
        leaving.0.at_prompt.store(false, Ordering::SeqCst);
        output::end_with(interrupt::renew());
        let reads_terminal = line.input.is_none() && reads_terminal(&line.words);
        if reads_terminal {
            leaving.0.restore();
        }
        let done = shell.execute(line);
        if reads_terminal {
            leaving.0.keep_keys();
        }
        if interrupt::came() {
            terminal.pasted.clear();
        }
        match done {
            Ok(Next::End) => {
                leaving.0.at_prompt.store(true, Ordering::SeqCst);
                return Ok(());
            }
            Ok(Next::Line) => {}
            Err(failure) if interrupt::came() && failure.to_string().is_empty() => {
                output::message("interrupted");
            }
            Err(failure) => {
                output::report(&failure);
            }
        }
        output::end_with(interrupt::renew());
        if output::broken() {
            leaving.0.at_prompt.store(true, Ordering::SeqCst);
            return Err(Failure::reported());
        }
    }
}

/// Whether a command may read lines of the terminal, or gives it to an editor.
fn reads_terminal(words: &[String]) -> bool {
    let name = words.first().map(String::as_str);
    matches!(name, Some("write" | "edit")) || words.iter().any(|word| word == "-")
}

/// The failure of a shell that a signal ends.
fn ended() -> Failure {
    let signal = u8::try_from(interrupt::signal()).unwrap_or(0);
    Failure::new(128_u8.saturating_add(signal), "")
}

/// The name of the image in the prompt: of a file without its directories.
fn shown_image(image: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;

    let bytes = image.as_os_str().as_bytes();
    let name = image.file_name().filter(|_| !is_address(image));
    output::name(name.map_or(bytes, OsStrExt::as_bytes))
}

/// The result of a prompt.
enum Read {
    Command(Line),
    Nothing,
    End,
}

struct Terminal {
    editor: Editor<Completion, FileHistory>,
    /// Lines that were pasted together with an earlier one.
    pasted: VecDeque<String>,
    history: Option<PathBuf>,
}

impl Terminal {
    fn new(shell: &Shell) -> rustyline::Result<Self> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .history_ignore_space(true)
            .history_ignore_dups(true)?
            .max_history_size(HISTORY)?
            .build();
        let history = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history)?;
        editor.set_helper(Some(Completion::new(shell.fs.clone(), &shell.parser)));
        let history = history_file();
        if let Some(path) = &history
            && let Err(error) = editor.load_history(path)
        {
            log::info!("{}: {error}", path.display());
        }
        Ok(Self {
            editor,
            pasted: VecDeque::new(),
            history,
        })
    }

    /// Reads a command with its text.
    fn line(&mut self, prompt: &str) -> Result<Read> {
        let Some(text) = self.typed(prompt)? else {
            return Ok(Read::End);
        };
        if text.trim().is_empty() {
            return Ok(Read::Nothing);
        }
        self.remember(&text);
        let wrong = |error: Wrong| Failure::new(USAGE, error.why());
        let begun = script::begin(1, &text).map_err(|error| {
            // Lines of a text would be commands.
            self.pasted.clear();
            wrong(error)
        });
        let Some(Begun { mut line, end }) = begun? else {
            return Ok(Read::Nothing);
        };
        let Some(end) = end else {
            return Ok(Read::Command(line));
        };
        self.complete_words(false);
        let input = self.text(&end);
        self.complete_words(true);
        Ok(match input? {
            Some(input) => {
                line.input = Some(input);
                Read::Command(line)
            }
            None => Read::Nothing,
        })
    }

    /// Reads lines until `end`; `None` after Ctrl-C.
    fn text(&mut self, end: &str) -> Result<Option<Vec<u8>>> {
        let mut input = Vec::new();
        loop {
            match self.read("> ") {
                Ok(line) if line == end => return Ok(Some(input)),
                Ok(line) => {
                    input.extend_from_slice(line.as_bytes());
                    input.push(b'\n');
                }
                // As in other shells, the end of the input ends the text.
                Err(ReadlineError::Eof) => return Ok(Some(input)),
                Err(ReadlineError::Interrupted) => return Ok(None),
                Err(error) => return Err(Failure::on("terminal", error)),
            }
        }
    }

    /// Reads a line; `None` at the end. After Ctrl-C it is empty.
    fn typed(&mut self, prompt: &str) -> Result<Option<String>> {
        match self.read(prompt) {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Some(String::new())),
            // The terminal is gone, or its other end is closed.
            Err(_) => Ok(None),
        }
    }

    /// Reads one line. Of several that are pasted at once, the next call returns the second.
    fn read(&mut self, prompt: &str) -> rustyline::Result<String> {
        if let Some(line) = self.pasted.pop_front() {
            return Ok(line);
        }
        let text = self.editor.readline(prompt)?;
        let mut lines = text.lines().map(str::to_owned);
        let first = lines.next().unwrap_or_default();
        self.pasted.extend(lines);
        Ok(first)
    }

    fn complete_words(&mut self, active: bool) {
        if let Some(helper) = self.editor.helper_mut() {
            helper.active = active;
        }
    }

    /// Adds a line to the history, in its file too.
    fn remember(&mut self, line: &str) {
        let added = self.editor.add_history_entry(line);
        let path = self.history.as_ref().filter(|_| matches!(added, Ok(true)));
        if let Some(path) = path
            && let Err(error) = self.editor.append_history(path)
        {
            log::info!("{}: {error}", path.display());
        }
    }
}

/// The file of the history, which only its user can read. `None` if it cannot be made.
fn history_file() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    // A relative path is to be ignored.
    let state = given.filter(|path| path.is_absolute()).or_else(|| {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        home.is_absolute().then(|| home.join(".local/state"))
    })?;
    let dir = state.join("sapwood");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .ok()?;
    let path = dir.join("history");
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.open(&path).ok()?;
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_names_the_file_without_its_directories() {
        for (image, shown) in [
            ("disk.img", "disk.img"),
            ("/var/lib/disk.img#root", "disk.img#root"),
            ("nbd://box/export", "nbd://box/export"),
            ("a\u{1b}[31m", "a\\u{1b}[31m"),
        ] {
            assert_eq!(shown_image(Path::new(image)), shown);
        }
    }
}
