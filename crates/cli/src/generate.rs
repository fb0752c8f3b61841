//! `sapwood generate`: man pages and shell completions from the declaration of the command line.

mod completions;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use sapwood::internal::options::table::Part;

use super::failure::{Failure, Result};
use super::{help, output};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Man pages
    Man {
        /// Directory, which gets man1 and man8
        dir: PathBuf,
    },
    /// Completions for a shell, on standard output
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// Names that mount(8) and umount(8) call the helpers by.
const HELPERS: [(&str, &str); 6] = [
    ("mount.sapwood", "mount"),
    ("mount.fuse.sapwood", "mount"),
    ("mount.fuseblk.sapwood", "mount"),
    ("umount.sapwood", "umount"),
    ("umount.fuse.sapwood", "umount"),
    ("umount.fuseblk.sapwood", "umount"),
];

/// Exit codes and their meanings.
const CODES: [(&str, &str); 8] = [
    ("0", "Done."),
    (
        "1",
        "An operation failed. check: the file system has errors.",
    ),
    ("2", "The command line is invalid."),
    (
        "3",
        "The image cannot be opened: missing, in use, damaged, or of another kind.",
    ),
    (
        "4",
        "umount: the directory is unmounted, but the image is not complete yet: another mount \
         namespace has it mounted, or --timeout ended.",
    ),
    ("32", "mount: the mount failed."),
    (
        "130, 143",
        "Ctrl-C or SIGTERM ended the command. The image is consistent.",
    ),
    (
        "141",
        "The reader of standard output closed its pipe (shown by a shell).",
    ),
];

/// Generates the requested files from `command`, the whole command line.
pub(super) fn run(args: &Args, mut command: Command) -> Result<()> {
    match args {
        Args::Man { dir } => man(dir, command).map_err(|error| Failure::local(dir, error)),
        Args::Completions { shell } => {
            let script = completions::script(*shell, &mut command);
            output::bytes(script.as_bytes())
        }
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, text)
}

fn man(dir: &Path, command: Command) -> io::Result<()> {
    // The page of all commands has tasks, not the list that help prints.
    let mut command = command.after_help("").disable_help_subcommand(true);
    command.build();
    let section = dir.join("man1");
    write(&section.join("sapwood.1"), &overview(&command)?)?;
    pages(&section, &command, "", "sapwood")?;
    for (name, of) in HELPERS {
        let link = format!(".so man1/sapwood-{of}.1\n");
        write(&dir.join("man8").join(format!("{name}.8")), link.as_bytes())?;
    }
    Ok(())
}

/// A page for each command below `command`, whose words are `above`.
fn pages(dir: &Path, command: &Command, above: &str, parent: &str) -> io::Result<()> {
    let all: Vec<&Command> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .collect();
    for sub in all {
        let path = format!("{above}{}", sub.get_name());
        let name = format!("sapwood-{}", path.replace(' ', "-"));
        write(
            &dir.join(format!("{name}.1")),
            &page(sub, &path, &name, parent)?,
        )?;
        pages(dir, sub, &format!("{path} "), &name)?;
    }
    Ok(())
}

/// The page of one command.
fn page(command: &Command, path: &str, name: &str, parent: &str) -> io::Result<Vec<u8>> {
    let subs: Vec<String> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| format!("{name}-{}", sub.get_name()))
        .collect();
    let named = command
        .clone()
        .name(name.to_owned())
        .display_name(name.to_owned())
        .after_help("");
    // The lists of options are sections of their own.
    let lists = options_of(path);
    let named = if lists.is_empty() {
        named
    } else {
        named.long_about(None::<&'static str>)
    };
    let man = manual(named, name);
    let mut text = Vec::new();
    title(&man, &mut text)?;
    man.render_name_section(&mut text)?;
    let mut head = Roff::new();
    synopsis(&mut head, command, path);
    head.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    let mut rest = Roff::new();
    arguments(&mut rest, command, path);
    options(&mut rest, command);
    for part in lists {
        rest.control("SH", [part.of.to_uppercase().as_str()]);
        for (option, paragraphs) in part.options {
            entry_of(&mut rest, &option, &paragraphs);
        }
    }
    if !subs.is_empty() {
        rest.control("SH", ["COMMANDS"]);
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            entry(&mut rest, sub.get_name(), &about(sub));
        }
    }
    examples(&mut rest, path);
    exit_codes(&mut rest);
    let mut related = vec![(parent.to_owned(), '1')];
    related.extend(subs.into_iter().map(|sub| (sub, '1')));
    related.extend(
        see_also(path)
            .iter()
            .map(|(name, section)| ((*name).to_owned(), *section)),
    );
    links(&mut rest, &related);
    rest.to_writer(&mut text)?;
    Ok(text)
}

/// The page of `sapwood` itself.
fn overview(command: &Command) -> io::Result<Vec<u8>> {
    let man = manual(command.clone(), "sapwood");
    let mut text = Vec::new();
    title(&man, &mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    let mut rest = Roff::new();
    rest.control("SH", ["COMMANDS"]);
    let mut related = Vec::new();
    for (title, commands) in help::tasks(command) {
        rest.control("SS", [title]);
        for (name, about) in commands {
            related.push((format!("sapwood-{name}"), '1'));
            entry(&mut rest, &name, &about);
        }
    }
    rest.control("SH", ["PLACES"]);
    for (place, what) in help::PLACES {
        entry(&mut rest, place, what);
    }
    options(&mut rest, command);
    exit_codes(&mut rest);
    related.extend([("mount".to_owned(), '8'), ("fuse".to_owned(), '4')]);
    links(&mut rest, &related);
    rest.to_writer(&mut text)?;
    Ok(text)
}

fn manual(command: Command, name: &str) -> Man {
    Man::new(command)
        .title(name.to_uppercase())
        .section("1")
        .source(format!("sapwood {}", env!("CARGO_PKG_VERSION")))
        .manual("Sapwood")
}

/// The title, after which lines are not stretched: long words would leave wide gaps.
fn title(man: &Man, text: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(text)?;
    let mut left = Roff::new();
    left.control("ad", ["l"]);
    left.to_writer(text)
}

fn about(command: &Command) -> String {
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    about.lines().next().unwrap_or_default().to_owned()
}

fn entry(page: &mut Roff, term: &str, text: &str) {
    entry_of(page, term, &[text.to_owned()]);
}

/// A term with paragraphs, each on lines of its own.
fn entry_of(page: &mut Roff, term: &str, paragraphs: &[String]) {
    page.control("TP", []);
    page.text([bold(term)]);
    for (nth, paragraph) in paragraphs.iter().enumerate() {
        if nth > 0 {
            page.control("br", []);
        }
        page.text([roman(paragraph.as_str())]);
    }
}

/// The declared options that a page lists.
fn options_of(path: &str) -> Vec<Part> {
    match path {
        "mount" | "mount-options" => sapwood::internal::options::table::as_list(),
        "mkfs-options" => sapwood::internal::mkfs_table::as_list(),
        _ => Vec::new(),
    }
}

fn synopsis(page: &mut Roff, command: &Command, path: &str) {
    page.control("SH", ["SYNOPSIS"]);
    let ways = match help::operands(path) {
        Some(operands) => operands.usage.iter().map(|way| (*way).to_owned()).collect(),
        None => {
            let mut named = command.clone().bin_name(format!("sapwood {path}"));
            let usage = named.render_usage().to_string();
            let begin = format!("Usage: sapwood {path}");
            vec![usage.trim_start_matches(&begin).trim().to_owned()]
        }
    };
    for (nth, way) in ways.iter().enumerate() {
        if nth > 0 {
            page.control("br", []);
        }
        page.text([bold(format!("sapwood {path}")), roman(format!(" {way}"))]);
    }
}

/// The operands of a command.
fn arguments(page: &mut Roff, command: &Command, path: &str) {
    let shown = help::operands(path).map_or(&[][..], |operands| operands.list);
    let own = command.get_positionals().filter(|arg| !arg.is_hide_set());
    let own: Vec<&Arg> = own.collect();
    if shown.is_empty() && own.is_empty() {
        return;
    }
    page.control("SH", ["ARGUMENTS"]);
    for (term, text) in shown {
        entry(page, term, text);
    }
    for arg in own {
        entry(page, &arg.to_string(), &explained(arg));
    }
}

/// The options of a command, under their headings.
fn options(page: &mut Roff, command: &Command) {
    let shown = |arg: &&Arg| !arg.is_positional() && !arg.is_hide_set();
    let options: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for option in &options {
        if !headings.contains(&option.get_help_heading()) {
            headings.push(option.get_help_heading());
        }
    }
    headings.sort_by_key(Option::is_some);
    for heading in headings {
        let heading_text = heading.unwrap_or("OPTIONS").to_uppercase();
        page.control("SH", [heading_text.as_str()]);
        for option in options
            .iter()
            .filter(|one| one.get_help_heading() == heading)
        {
            entry(page, &term(option), &explained(option));
        }
    }
}

/// The names of an option, with its value.
fn term(option: &Arg) -> String {
    let short = option.get_short().map(|letter| format!("-{letter}"));
    let long = option.get_long().map(|word| format!("--{word}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let values = option.get_value_names().unwrap_or_default();
    let values: Vec<String> = values.iter().map(|value| format!(" <{value}>")).collect();
    let values = if option.get_action().takes_values() {
        values.concat()
    } else {
        String::new()
    };
    format!("{}{values}", names.join(", "))
}

/// The help of an argument, with its default value and further names. Lists in it are left out:
/// they are sections.
fn explained(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut text = help.lines().next().unwrap_or_default().to_owned();
    let defaults = arg.get_default_values().iter();
    let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        text.push_str(&format!(" [default: {}]", defaults.join(" ")));
    }
    let letters = arg.get_visible_short_aliases().unwrap_or_default();
    let words = arg.get_visible_aliases().unwrap_or_default();
    let letters = letters.iter().map(|letter| format!("-{letter}"));
    let others: Vec<String> = letters
        .chain(words.iter().map(|word| format!("--{word}")))
        .collect();
    if !others.is_empty() {
        text.push_str(&format!(" [also: {}]", others.join(", ")));
    }
    text
}

fn examples(page: &mut Roff, path: &str) {
    let all = help::examples(path);
    if all.is_empty() {
        return;
    }
    page.control("SH", ["EXAMPLES"]);
    for (line, what) in all {
        entry(page, line, what);
    }
}

fn exit_codes(page: &mut Roff) {
    page.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in CODES {
        entry(page, code, meaning);
    }
}

fn links(page: &mut Roff, related: &[(String, char)]) {
    page.control("SH", ["SEE ALSO"]);
    for (nth, (name, section)) in related.iter().enumerate() {
        let end = if nth + 1 == related.len() { "" } else { "," };
        page.text([bold(name.as_str()), roman(format!("({section}){end}"))]);
    }
}

/// Pages of other programs that do the same elsewhere.
fn see_also(path: &str) -> &'static [(&'static str, char)] {
    match path {
        "mkfs" => &[
            ("sapwood-mkfs-options", '1'),
            ("mkfs.btrfs", '8'),
            ("mke2fs", '8'),
        ],
        "mkfs-options" => &[("sapwood-mkfs", '1')],
        "mount" => &[
            ("sapwood-mount-options", '1'),
            ("sapwood-umount", '1'),
            ("mount", '8'),
        ],
        "mount-options" => &[("sapwood-mount", '1')],
        "umount" => &[("sapwood-mount", '1'), ("umount", '8')],
        "resize" => &[("btrfs-filesystem", '8'), ("resize2fs", '8')],
        "trim" => &[("fstrim", '8')],
        "check" => &[("btrfs-check", '8'), ("e2fsck", '8')],
        "subvolume" => &[("btrfs-subvolume", '8')],
        "dump" => &[("btrfs-inspect-internal", '8'), ("debugfs", '8')],
        "xattr" => &[("getfattr", '1'), ("setfattr", '1'), ("xattr", '7')],
        "untar" => &[("tar", '1')],
        "verity" => &[("veritysetup", '8')],
        "luks" => &[("cryptsetup", '8')],
        "apply" => &[("sapwood-cp", '1'), ("debugfs", '8'), ("guestfish", '1')],
        "write" => &[("sapwood-cp", '1'), ("sapwood-edit", '1')],
        "ls" => &[("ls", '1')],
        "cat" => &[("cat", '1')],
        "stat" => &[("stat", '1')],
        "find" => &[("find", '1')],
        "du" => &[("du", '1')],
        "df" => &[("df", '1')],
        "cp" => &[("cp", '1')],
        "mv" => &[("mv", '1')],
        "rm" => &[("rm", '1')],
        "mkdir" => &[("mkdir", '1')],
        "ln" => &[("ln", '1')],
        "touch" => &[("touch", '1')],
        "truncate" => &[("truncate", '1')],
        "chmod" => &[("chmod", '1')],
        "chown" => &[("chown", '1')],
        _ => &[],
    }
}
