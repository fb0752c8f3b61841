//! Colours of names, as ls(1) prints them: `$LS_COLORS`, `$NO_COLOR`, `--color`.

use std::ffi::OsStr;
use std::io::IsTerminal;

use lscolors::{Indicator, LsColors, Style};
use sapwood::Metadata;
use sapwood::vfs::FileKind;

/// When names have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum When {
    /// On a terminal, unless `$NO_COLOR` is set or the terminal is `dumb`.
    Auto,
    Always,
    Never,
}

/// The colours of a list; none if it has no colours.
#[derive(Debug)]
pub(super) struct Colors(Option<LsColors>);

impl Colors {
    /// The colours of `$LS_COLORS`, or the usual ones if it is not set.
    pub(super) fn new(when: When) -> Self {
        let wanted = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => {
                let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
                let refused = set("NO_COLOR").is_some() || set("TERM").is_some_and(|t| t == "dumb");
                !refused && std::io::stdout().is_terminal()
            }
        };
        Self(wanted.then(|| LsColors::from_env().unwrap_or_default()))
    }

    /// The printed form `shown` of `name`, in the colour of its file. `is_broken` is called for a
    /// symbolic link: whether it leads nowhere.
    pub(super) fn paint(
        &self,
        shown: String,
        name: &OsStr,
        metadata: &Metadata,
        is_broken: impl FnOnce() -> bool,
    ) -> String {
        let Some(colors) = &self.0 else {
            return shown;
        };
        let indicator = indicator(metadata, is_broken);
        let style = if indicator == Indicator::RegularFile {
            // By the end of the name, else as a regular file.
            colors.style_for_str(&name.to_string_lossy())
        } else {
            colors.style_for_indicator(indicator)
        };
        let Some(style) = style.map(Style::to_nu_ansi_term_style) else {
            return shown;
        };
        style.paint(shown).to_string()
    }
}

/// The kind of a file, for its colour. The order of the cases is the one of ls(1).
fn indicator(metadata: &Metadata, is_broken: impl FnOnce() -> bool) -> Indicator {
    let attr = metadata.attr();
    let has = |bits: u32| attr.perm & bits == bits;
    match attr.kind {
        FileKind::Symlink if is_broken() => Indicator::OrphanedSymbolicLink,
        FileKind::Symlink => Indicator::SymbolicLink,
        FileKind::Directory if has(0o1002) => Indicator::StickyAndOtherWritable,
        FileKind::Directory if has(0o002) => Indicator::OtherWritable,
        FileKind::Directory if has(0o1000) => Indicator::Sticky,
        FileKind::Directory => Indicator::Directory,
        FileKind::Fifo => Indicator::FIFO,
        FileKind::Socket => Indicator::Socket,
        FileKind::BlockDevice => Indicator::BlockDevice,
        FileKind::CharDevice => Indicator::CharacterDevice,
        FileKind::Regular if has(0o4000) => Indicator::Setuid,
        FileKind::Regular if has(0o2000) => Indicator::Setgid,
        FileKind::Regular if attr.perm & 0o111 != 0 => Indicator::ExecutableFile,
        FileKind::Regular => Indicator::RegularFile,
    }
}
