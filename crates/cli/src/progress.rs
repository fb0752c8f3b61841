//! Progress of long work, on a terminal only: position, speed and remaining time.

use std::fmt::Write;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use sapwood::{FileSystem, Place, Progress};

/// Names between two looks at whether a count is still wanted.
const STEP: u64 = 256;

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    // A bad template leaves the default look.
    if let Ok(style) = ProgressStyle::with_template(template) {
        let style = style.with_key("rate", |state: &ProgressState, to: &mut dyn Write| {
            // An error would be one of memory.
            let _ = write!(to, "{:.0}/s", state.per_sec());
        });
        bar.set_style(style.progress_chars("##-"));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Gives a bar another template.
fn restyle(bar: &ProgressBar, template: &str) {
    // A bad template leaves the default look.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("##-"));
    }
}

/// A counter of things whose number is not known at first; hidden if `quiet`.
pub(super) fn items(quiet: bool, what: &'static str) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = styled(ProgressBar::no_length(), COUNTER);
    bar.set_message(what);
    bar
}

/// The progress of work that moves bytes whose number is not known; hidden if `quiet`.
pub(super) fn moved(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    styled(ProgressBar::no_length(), MOVED)
}

/// The progress of work that moves a known number of bytes; hidden if `quiet`.
pub(super) fn moving(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    styled(ProgressBar::no_length(), MOVING)
}

const MOVING: &str = "moving [{bar:20}] {percent}%, {binary_bytes_per_sec}, {eta} left";

/// Displays a step of such work.
pub(super) fn show_moved(bar: &ProgressBar, step: Progress<'_>) {
    match step {
        Progress::Total(total) => bar.set_length(total),
        Progress::Done { done, .. } => bar.set_position(done),
        _ => {}
    }
}

/// The progress of a scan of bytes; hidden if `quiet`.
pub(super) fn scanned(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    styled(ProgressBar::no_length(), SCANNED)
}

const SCANNED: &str = "scanning [{bar:20}] {percent}%, {binary_bytes_per_sec}, {eta} left";

const MOVED: &str = "{spinner} moved {binary_bytes}, {binary_bytes_per_sec}, {elapsed}";

const COUNTER: &str = "{spinner} {msg} {human_pos}, {rate}, {elapsed}";

/// Sets the number of things to do; 0: it is not known.
pub(super) fn expect_items(bar: &ProgressBar, total: u64) {
    match total {
        0 => styled(bar.clone(), COUNTER),
        total => {
            bar.set_length(total);
            let template = "{spinner} {msg} [{bar:20}] {percent}%, {rate}, {eta} left";
            styled(bar.clone(), template)
        }
    };
}

/// The progress of work in phases; hidden if `quiet`.
pub(super) fn phases(quiet: bool) -> ProgressBar {
    if quiet {
        ProgressBar::hidden()
    } else {
        styled(ProgressBar::no_length(), UNKNOWN_PHASE).with_message("the image")
    }
}

/// A phase whose end is not known.
const UNKNOWN_PHASE: &str = "{spinner} checking {msg}, {elapsed}";
const PHASE: &str = "checking {msg} [{bar:20}] {percent}%, {eta} left";

/// Displays a step of work in phases.
pub(super) fn show_phase(bar: &ProgressBar, step: Progress<'_>) {
    match step {
        Progress::Total(total) => begin_phase(bar, total),
        Progress::Done { phase, done } => {
            bar.set_message(phase);
            bar.set_position(done);
        }
        _ => {}
    }
}

const COPIES: &str = "reading {msg} [{bar:20}] {percent}%, {binary_bytes_per_sec}, {eta} left";

/// Displays a step of a scrub, whose first phase counts bytes.
pub(super) fn show_scrub(bar: &ProgressBar, step: Progress<'_>) {
    if let Progress::Done { phase, .. } = step
        && phase == "copies"
        && bar.message() != phase
        && let Ok(style) = ProgressStyle::with_template(COPIES)
    {
        bar.set_style(style.progress_chars("##-"));
    }
    show_phase(bar, step);
}

/// Begins a phase with this much to do; 0: it is not known.
fn begin_phase(bar: &ProgressBar, total: u64) {
    bar.reset();
    let template = match total {
        0 => UNKNOWN_PHASE,
        total => {
            bar.set_length(total);
            PHASE
        }
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("##-"));
    }
}

/// The progress of work on files: their number, and their bytes. A thread counts both while the
/// work runs, or one of them is known from the start. The bar then shows the remaining time.
pub(super) struct Files {
    bar: ProgressBar,
    /// The participle of the work: `copied`.
    what: &'static str,
    /// Displays steps that change no count, such as files left out.
    others: fn(&ProgressBar, Progress<'_>),
    /// Files that are done.
    done: u64,
    /// Names in all, once they are counted.
    total: Arc<OnceLock<u64>>,
    ended: Arc<AtomicBool>,
    counting: Option<JoinHandle<()>>,
}

/// Phases that copy files.
const FILLING: [&str; 4] = ["copied", "export", "extract", "sent"];

const FILES: &str = "{spinner} {msg}, {binary_bytes}, {binary_bytes_per_sec}, {elapsed}";
const FILES_OF_TOTAL: &str = "{msg}, {binary_bytes} of {binary_total_bytes} [{bar:16}] \
                              {binary_bytes_per_sec}, {eta} left";
const ARCHIVE: &str = "{msg}, {binary_bytes} of {binary_total_bytes} of the archive [{bar:16}] \
                       {binary_bytes_per_sec}, {eta} left";

impl Files {
    /// A progress that is hidden if `quiet`. `what` is a participle, such as `copied`. `others`
    /// displays the steps that change no count.
    pub(super) fn new(
        quiet: bool,
        what: &'static str,
        others: fn(&ProgressBar, Progress<'_>),
    ) -> Self {
        let bar = if quiet {
            ProgressBar::hidden()
        } else {
            styled(ProgressBar::no_length(), FILES)
        };
        bar.set_message(format!("{what} 0 files"));
        Self {
            bar,
            what,
            others,
            done: 0,
            total: Arc::new(OnceLock::new()),
            ended: Arc::new(AtomicBool::new(false)),
            counting: None,
        }
    }

    /// Begins to count the total. Does not count if nothing is displayed, or if the end of a source
    /// is unknown.
    pub(super) fn measure(&mut self, sources: &[Place<'_>], holes: Holes) {
        if self.bar.is_hidden() {
            return;
        }
        let mut all = Vec::new();
        for source in sources {
            all.push(match source {
                Place::Host(path) => Source::Host(path.clone()),
                Place::Image(fs, path) => Source::Image((*fs).clone(), path.clone()),
                _ => return,
            });
        }
        let (total, ended) = (Arc::clone(&self.total), Arc::clone(&self.ended));
        let bar = self.bar.clone();
        self.counting = Some(std::thread::spawn(move || {
            let mut count = Count::new(&ended, holes);
            for source in all {
                count.source(&source);
            }
            let Count { names, bytes, .. } = count;
            // Only this thread sets it.
            if !ended.load(Ordering::Relaxed) && total.set(names).is_ok() {
                bar.set_length(bytes);
                restyle(&bar, FILES_OF_TOTAL);
            }
        }));
    }

    /// Sets the position in an archive of `size` bytes as the progress.
    pub(super) fn of_archive(&self, size: u64) {
        self.bar.set_length(size);
        restyle(&self.bar, ARCHIVE);
    }

    /// Files that are done.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Displays a step; prints files that were left out.
    pub(super) fn show(&mut self, step: Progress<'_>) {
        match step {
            Progress::Done { phase, done } if !FILLING.contains(&phase) => {
                self.bar.set_message(format!("{phase} {done}"));
            }
            // A total of names, which are counted here.
            Progress::Total(_) => {}
            Progress::Done { done, .. } => {
                self.done = done;
                let names = self.total.get();
                // Directories that are there already are counted, and not copied.
                let of = names.filter(|names| **names >= done);
                let of = of.map_or(String::new(), |names| format!(" of {names}"));
                let files = if done == 1 && of.is_empty() {
                    "file"
                } else {
                    "files"
                };
                self.bar
                    .set_message(format!("{} {done}{of} {files}", self.what));
            }
            Progress::Bytes(done) => self.bar.set_position(done),
            step => (self.others)(&self.bar, step),
        }
    }

    /// Bytes of the archive that are read.
    pub(super) fn read(&self, done: u64) {
        self.bar.set_position(done);
    }

    pub(super) fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(counting) = self.counting {
            // It uses the images, which are closed next. A panic there was printed.
            let _ = counting.join();
        }
        self.bar.finish_and_clear();
    }
}

/// Whether the holes of files count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holes {
    Count,
    AreLeftOut,
}

enum Source {
    Host(PathBuf),
    Image(FileSystem, PathBuf),
}

/// Names and bytes below the sources. Unreadable files count nothing: the work reports them.
struct Count<'e> {
    bytes: u64,
    names: u64,
    holes: Holes,
    ended: &'e AtomicBool,
}

impl<'e> Count<'e> {
    fn new(ended: &'e AtomicBool, holes: Holes) -> Self {
        Self {
            bytes: 0,
            names: 0,
            holes,
            ended,
        }
    }

    /// Counts a name, and the content of a file.
    fn add(&mut self, file: Option<(u64, u64)>) {
        self.names += 1;
        let (length, allocated) = file.unwrap_or_default();
        let bytes = match self.holes {
            Holes::Count => length,
            Holes::AreLeftOut => length.min(allocated),
        };
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn is_ended(&self) -> bool {
        self.names.is_multiple_of(STEP) && self.ended.load(Ordering::Relaxed)
    }

    fn source(&mut self, source: &Source) {
        match source {
            Source::Host(path) => {
                if let Ok(found) = path.metadata() {
                    self.host(path, &found);
                }
            }
            Source::Image(fs, path) => {
                let Ok(found) = fs.metadata(path) else { return };
                self.add(found.is_file().then(|| (found.len(), found.allocated())));
                if !found.is_dir() {
                    return;
                }
                let Ok(mut walk) = fs.walk(path) else { return };
                while let Ok(Some(step)) = walk.step() {
                    let found = step.metadata();
                    self.add(found.is_file().then(|| (found.len(), found.allocated())));
                    if self.is_ended() {
                        return;
                    }
                }
            }
        }
    }

    fn host(&mut self, path: &Path, found: &Metadata) {
        self.add(host_bytes(found));
        if !found.is_dir() {
            return;
        }
        let mut waiting = vec![path.to_owned()];
        while let Some(dir) = waiting.pop() {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let Ok(found) = entry.metadata() else {
                    continue;
                };
                self.add(host_bytes(&found));
                if found.is_dir() {
                    waiting.push(entry.path());
                }
                if self.is_ended() {
                    return;
                }
            }
        }
    }
}

/// Length and allocated bytes of a file of this machine.
fn host_bytes(found: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;

    let allocated = found.blocks().saturating_mul(512);
    found.is_file().then_some((found.len(), allocated))
}

#[cfg(test)]
mod tests {
    use std::io;

    use indicatif::{ProgressDrawTarget, TermLike};
    use parking_lot::Mutex;

    use super::*;

    /// A terminal that keeps its output.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn moved_bytes_have_units() {
        let screen = Screen::default();
        let bar = moved(false);
        bar.disable_steady_tick();
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        bar.set_position(3 << 30);
        bar.tick();
        let shown = screen.0.lock().clone();
        assert!(shown.contains("moved 3.00 GiB, "), "{shown}");
        assert!(shown.contains("B/s, "), "{shown}");
        assert!(!shown.contains(&(3_u64 << 30).to_string()), "{shown}");
    }
}
