//! Progress of long work, on a terminal only: how far it is, how fast, and how long it takes yet.

use std::fmt::Write;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use sapwood::FileSystem;
use sapwood::copy::Place;

/// Names between two looks at whether a count is still wanted.
const STEP: u64 = 256;

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    // A template of ours that does not parse leaves the default look.
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

const MOVED: &str = "{spinner} moved {binary_bytes}, {binary_bytes_per_sec}, {elapsed}";

const COUNTER: &str = "{spinner} {msg} {human_pos}, {rate}, {elapsed}";

/// Says how many things there are from now on; 0: it is not known.
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
    match quiet {
        true => ProgressBar::hidden(),
        false => styled(ProgressBar::no_length(), UNKNOWN_PHASE).with_message("the image"),
    }
}

/// A phase whose end is not known.
const UNKNOWN_PHASE: &str = "{spinner} checking {msg}, {elapsed}";
const PHASE: &str = "checking {msg} [{bar:20}] {percent}%, {eta} left";

/// Begins a phase with so much to do; 0: it is not known.
pub(super) fn begin_phase(bar: &ProgressBar, total: u64) {
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

/// The progress of a copy: files and bytes. The bytes that there are to copy are counted meanwhile,
/// by a thread of its own; when it is done, the bar shows how long the copy takes yet.
pub(super) struct Bytes {
    bar: ProgressBar,
    /// Bytes in all, once they are counted.
    total: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    counting: Option<JoinHandle<()>>,
}

/// The count is not done.
const UNKNOWN: u64 = u64::MAX;

impl Bytes {
    /// Hidden if `quiet`.
    pub(super) fn new(quiet: bool) -> Self {
        let bar = match quiet {
            true => ProgressBar::hidden(),
            false => styled(
                ProgressBar::no_length(),
                "{spinner} copied {msg}{binary_bytes}, {binary_bytes_per_sec}, {elapsed}",
            ),
        };
        Self {
            bar,
            total: Arc::new(AtomicU64::new(UNKNOWN)),
            ended: Arc::new(AtomicBool::new(false)),
            counting: None,
        }
    }

    /// Begins to count what there is to copy, if anybody sees it.
    pub(super) fn measure(&mut self, sources: &[Place<'_>]) {
        if self.bar.is_hidden() {
            return;
        }
        let mut all = Vec::new();
        for source in sources {
            all.push(match source {
                Place::Host(path) => Source::Host(path.clone()),
                Place::Image(fs, path) => Source::Image((*fs).clone(), path.clone()),
                // Of a stream the end is not known.
                _ => return,
            });
        }
        let (total, ended) = (Arc::clone(&self.total), Arc::clone(&self.ended));
        self.counting = Some(std::thread::spawn(move || {
            let mut count = Count::new(&ended);
            for source in all {
                count.source(&source);
            }
            if !ended.load(Ordering::Relaxed) {
                total.store(count.bytes, Ordering::Relaxed);
            }
        }));
    }

    pub(super) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    pub(super) fn files(&self, done: u64) {
        let files = if done == 1 { "file" } else { "files" };
        self.bar.set_message(format!("{done} {files}, "));
    }

    pub(super) fn bytes(&mut self, done: u64) {
        let total = self.total.load(Ordering::Relaxed);
        if total != UNKNOWN && self.bar.length().is_none() {
            self.bar.set_length(total);
            let template = "copied {msg}{binary_bytes} of {binary_total_bytes} [{bar:16}] \
                            {binary_bytes_per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style.progress_chars("##-"));
            }
        }
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

enum Source {
    Host(PathBuf),
    Image(FileSystem, PathBuf),
}

/// Bytes of the files below sources. What cannot be read counts nothing: the copy reports it.
struct Count<'e> {
    bytes: u64,
    names: u64,
    ended: &'e AtomicBool,
}

impl<'e> Count<'e> {
    fn new(ended: &'e AtomicBool) -> Self {
        Self {
            bytes: 0,
            names: 0,
            ended,
        }
    }

    fn is_ended(&mut self) -> bool {
        self.names += 1;
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
                if !found.is_dir() {
                    self.bytes = self.bytes.saturating_add(found.len());
                    return;
                }
                for entry in fs.walk(path).into_iter().flatten() {
                    let Ok(entry) = entry else { return };
                    let found = entry.metadata();
                    if found.is_file() {
                        let bytes = found.len();
                        self.bytes = self.bytes.saturating_add(bytes);
                    }
                    if self.is_ended() {
                        return;
                    }
                }
            }
        }
    }

    fn host(&mut self, path: &Path, found: &Metadata) {
        use std::os::unix::fs::MetadataExt;

        if !found.is_dir() {
            let bytes = found.len().min(found.blocks().saturating_mul(512));
            self.bytes = self.bytes.saturating_add(bytes);
            return;
        }
        let mut waiting = vec![path.to_owned()];
        while let Some(dir) = waiting.pop() {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let Ok(found) = entry.metadata() else {
                    continue;
                };
                if found.is_dir() {
                    waiting.push(entry.path());
                } else if found.is_file() {
                    let bytes = found.len().min(found.blocks().saturating_mul(512));
                    self.bytes = self.bytes.saturating_add(bytes);
                }
                if self.is_ended() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use indicatif::{ProgressDrawTarget, TermLike};
    use parking_lot::Mutex;

    use super::*;

    /// A terminal that keeps what is written to it.
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
