//! `sapwood help`: commands by task, and examples of each.

mod examples;
mod operands;

use std::ffi::OsString;

use clap::{Arg, Command};

use examples::Example;
pub(super) use examples::examples;
pub(super) use operands::operands;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Command, of several words if it has commands itself
    #[arg(value_name = "COMMAND")]
    words: Vec<OsString>,
    /// Show the help of all commands, with the options of images once, at the end
    #[arg(long, conflicts_with = "words")]
    pub(super) all: bool,
}

impl Args {
    /// The command line of the wanted help.
    pub(super) fn as_option(&self) -> Vec<OsString> {
        let words = self.words.iter().cloned();
        let words = std::iter::once("sapwood".into()).chain(words);
        words.chain(["--help".into()]).collect()
    }
}

/// Examples of `help`, for its own.
const HELP_EXAMPLES: &[Example] = &[
    ("sapwood help subvolume snapshot", "one command"),
    ("sapwood help --all", "all commands with their options"),
];

/// The commands for one task.
struct Task {
    title: &'static str,
    commands: &'static [&'static str],
}

const TASKS: &[Task] = &[
    Task {
        title: "Make an image",
        commands: &["mkfs", "untar", "mkdisk", "export"],
    },
    Task {
        title: "Look inside",
        commands: &["ls", "cat", "stat", "tree", "find", "du", "df", "info"],
    },
    Task {
        title: "Change files",
        commands: &[
            "cp", "mv", "rm", "mkdir", "ln", "write", "edit", "touch", "truncate", "chmod",
            "chown", "xattr", "shell", "apply",
        ],
    },
    Task {
        title: "Mount",
        commands: &["mount", "umount", "sync", "stats", "doctor"],
    },
    Task {
        title: "Subvolumes and snapshots (btrfs)",
        commands: &["subvolume", "quota"],
    },
    Task {
        title: "Backup",
        commands: &["diff", "send", "receive"],
    },
    Task {
        title: "Check and maintain",
        commands: &[
            "check", "undo", "scrub", "rescue", "resize", "trim", "balance", "device", "verity",
            "luks", "dump",
        ],
    },
    Task {
        title: "Learn",
        commands: &["help", "demo", "mount-options", "mkfs-options"],
    },
];

/// Heading of the commands without a task.
const OTHERS: &str = "More";

/// Commands that open no image. Options that choose a part of one are not in their help.
const WITHOUT_IMAGE: [&str; 12] = [
    "undo",
    "mkdisk",
    "verity",
    "luks",
    "demo",
    "umount",
    "sync",
    "stats",
    "doctor",
    "help",
    "mount-options",
    "mkfs-options",
];

/// Commands that take one device only.
const OF_ONE_DEVICE: [&str; 2] = ["mkfs", "resize"];

/// The command line with examples in the help of each command, and its commands by task.
pub(super) fn complete(command: Command) -> Command {
    let page = page(&command);
    let template = "{about-with-newline}\n{usage-heading} {usage}{after-help}";
    let global = command.get_arguments().filter(|arg| arg.is_global_set());
    let global: Vec<Arg> = global.cloned().collect();
    let command = command.mut_subcommands(|sub| with_examples(without_foreign(sub, &global), ""));
    command.help_template(template).after_help(page)
}

/// Hides options that a command has no use for. It still accepts them, for a precise error.
fn without_foreign(command: Command, global: &[Arg]) -> Command {
    let name = command.get_name();
    let (no_image, one_device) = (WITHOUT_IMAGE.contains(&name), OF_ONE_DEVICE.contains(&name));
    let foreign = global
        .iter()
        .filter(|arg| no_image || (one_device && is_for_several(arg)));
    let hidden: Vec<Arg> = foreign.map(|arg| arg.clone().hide(true)).collect();
    command.args(hidden)
}

fn is_for_several(arg: &Arg) -> bool {
    ["device", "scan", "degraded", "journal-device"]
        .map(Some)
        .contains(&arg.get_long())
}

fn with_examples(command: Command, above: &str) -> Command {
    let path = format!("{above}{}", command.get_name());
    let below = format!("{path} ");
    let command = command.mut_subcommands(|sub| with_examples(sub, &below));
    let command = operands::shown(command, &path);
    let examples = examples(&path);
    if examples.is_empty() {
        return command;
    }
    let heading = match examples.len() {
        1 => "Example:",
        _ => "Examples:",
    };
    let mut text = heading.to_owned();
    for (line, what) in examples {
        text.push_str(&format!("\n  {line}\n      {what}"));
    }
    command.after_help(text)
}

/// The first line of a command's description.
fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    about
        .unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Tasks with the commands that there are; commands that no task names come last.
pub(super) fn tasks(command: &Command) -> Vec<(&'static str, Vec<(String, String)>)> {
    let row = |name: &str| {
        let found = command.find_subcommand(name)?;
        (!found.is_hide_set()).then(|| (name.to_owned(), about(found)))
    };
    let mut tasks: Vec<_> = TASKS
        .iter()
        .map(|task| {
            (
                task.title,
                task.commands.iter().filter_map(|name| row(name)).collect(),
            )
        })
        .collect();
    let named = |name: &str| TASKS.iter().any(|task| task.commands.contains(&name));
    let others = command.get_subcommands().map(Command::get_name);
    let others: Vec<_> = others.filter(|name| !named(name)).filter_map(row).collect();
    if !others.is_empty() {
        tasks.push((OTHERS, others));
    }
    tasks
}

/// The help of all commands as one text, in the order of the tasks.
pub(super) fn all(command: Command) -> String {
    let images = command.get_arguments().filter(|arg| arg.is_global_set());
    let images: Vec<Arg> = images.cloned().collect();
    let order = tasks(&command);
    let mut command = complete(command);
    command.build();
    let mut text = String::new();
    for (_, commands) in order {
        for (name, _) in commands {
            if let Some(found) = command.find_subcommand(&name) {
                add_help(found, &images, &mut text);
            }
        }
    }
    let images = Command::new("images")
        .disable_help_flag(true)
        .help_template("{options}")
        .args(
            images
                .into_iter()
                .map(|arg| arg.global(false).help_heading(None::<&str>)),
        )
        .render_help();
    text.push_str(&format!(
        "Options of every command that opens images:\n{images}\n"
    ));
    text
}

/// Adds the help of a command and of the commands below it, without the options `hidden`.
fn add_help(command: &Command, hidden: &[Arg], text: &mut String) {
    let is_hidden = |arg: &Arg| hidden.iter().any(|one| one.get_id() == arg.get_id());
    let mut alone = command.clone().mut_args(|arg| {
        let hide = arg.is_hide_set() || is_hidden(&arg);
        arg.hide(hide)
    });
    let help = match command.get_long_about() {
        Some(_) => alone.render_long_help(),
        None => alone.render_help(),
    };
    text.push_str(&format!("{help}\n\n"));
    for sub in command.get_subcommands() {
        if sub.get_name() != "help" && !sub.is_hide_set() {
            add_help(sub, hidden, text);
        }
    }
}

fn page(command: &Command) -> String {
    let mut page = String::new();
    for (title, commands) in tasks(command) {
        page.push_str(&format!("{title}:\n"));
        for (name, about) in commands {
            page.push_str(&format!("  {name:<14} {about}\n"));
        }
        page.push('\n');
    }
    page.push_str("Places:\n");
    for (place, what) in PLACES {
        page.push_str(&format!("  {place:<20} {what}\n"));
    }
    page.push_str(MORE);
    page
}

/// Notations of a place.
pub(super) const PLACES: [Example; 5] = [
    (
        "disk.img:/etc",
        "a path in an image; a pattern too: 'disk.img:/etc/*.conf'",
    ),
    (
        "disk.img#2:/etc",
        "partition 2 of a disk; #root: the GPT partition root",
    ),
    (
        "nbd://HOST/EXPORT",
        "a server's export; also nbd+unix:///EXPORT?socket=PATH",
    ),
    ("-", "standard input or output (cp, cat, untar)"),
    (
        "--offset, --length",
        "the file system is in this range (bytes, or k, M, G, T)",
    ),
];

const MORE: &str = "
`sapwood help COMMAND` has options and examples; `man sapwood-COMMAND` is the
same as a page.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::examples::EXAMPLES;
    use super::*;
    use crate::Cli;

    /// Words of a line as a shell splits it, after the last pipe and up to a redirection.
    fn words(line: &str) -> Vec<String> {
        let line = line.rsplit("| ").next().unwrap();
        let line = line.split(" < ").next().unwrap();
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for char in line.chars() {
            match char {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                char => word.push(char),
            }
        }
        words.push(word);
        words
    }

    fn all(command: &Command, above: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{above}{}", sub.get_name());
            all(sub, &format!("{path} "), found);
            found.push(path);
        }
    }

    #[test]
    fn every_command_has_a_task_and_an_example() {
        let command = Cli::command();
        let tasks = tasks(&command);
        assert!(tasks.iter().all(|(title, _)| *title != OTHERS), "{tasks:?}");
        let mut commands = Vec::new();
        all(&command, "", &mut commands);
        for command in &commands {
            assert!(!examples(command).is_empty(), "{command} has no example");
        }
        for (command, _) in EXAMPLES {
            assert!(
                commands.iter().any(|one| one == command),
                "{command} is none"
            );
        }
        for task in TASKS {
            for name in task.commands {
                assert!(commands.iter().any(|one| one == name), "{name} is none");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line() {
        for (command, examples) in EXAMPLES {
            for (line, _) in *examples {
                let args = words(line).into_iter().map(Into::into).collect();
                let args = crate::find::with_long_options(args);
                let parsed = complete(Cli::command()).try_get_matches_from(args);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(
                    line.contains(&format!("sapwood {command} "))
                        || *line == format!("sapwood {command}"),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn help_fits_into_a_terminal() {
        let mut command = complete(Cli::command());
        let help = command.render_help().to_string();
        for line in help.lines().skip_while(|line| !line.starts_with("Usage")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for (_, examples) in EXAMPLES {
            for (line, what) in *examples {
                assert!(line.len() <= 76 && what.len() <= 72, "{line}: {what}");
            }
        }
    }
}
